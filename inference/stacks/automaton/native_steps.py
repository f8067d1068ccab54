"""Steps of the weighted pushdown recursion on the CPU, by the kernels of `native/pushdown.h`, which has the tables."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...native.library import addresses, function, integers
from ...numerics.native_calls import run
from ...numerics.threads import ranges

_MIN_WORK = 200_000  # terms that repay a second thread
_MOST_WORK = 20_000_000  # terms of a call, so that an interrupt is heard


class Weights(NamedTuple):
    """The log-weights of some steps, [B, steps, ...], or the adjoints of these; contiguous, in float64."""

    push: Tensor  # [K, K]; of all steps so far, as what was pushed long ago is popped now
    replace: Tensor  # [K, K]
    bottom: Tensor  # [K, K]
    pop: Tensor  # [K, Q]
    evidence: Tensor | None  # [C, K]


class Tables(NamedTuple):
    """The tables, [B, ...], or their adjoints; the adjoint of `matched` may be missing."""

    segment: Tensor  # [times, K, times, K]
    matched: Tensor | None  # [times, K, Q, times]
    below: Tensor  # [times, K]
    log_top: Tensor  # [times, times, K]


def check_states(configurations: int, states: int) -> int:
    """The number of states, which divides that of configurations."""
    if states < 1 or configurations % states:
        raise ValueError(f"log_pop: got {states} states, expected a divisor of the {configurations} configurations.")
    return states


def new_tables(log_initial: Tensor, n_states: int, n_steps: int) -> Tables:
    """The tables before the first step: one element, the bottom, on top of nothing."""
    (B, K), times = log_initial.shape, n_steps + 1

    def none(*shape: int) -> Tensor:
        return torch.full((B, times, *shape), -torch.inf, dtype=torch.float64, device="cpu")

    tables = Tables(none(K, times, K), none(K, n_states, times), none(K), none(times, K))
    tables.segment[:, 0, :, 0].diagonal(dim1=-2, dim2=-1).zero_()
    tables.below[:, 0] = log_initial
    tables.log_top[:, 0, 0] = log_initial
    return tables


def advance(steps: tuple[int, int], weights: Weights, tables: Tables, best: bool = False) -> None:
    """Fill the tables for some steps, from the first to the last, to which the weights belong."""
    _run("pushdown", steps, weights, tables, (), best)


def retreat(steps: tuple[int, int], weights: Weights, tables: Tables, g_weights: Weights, adjoint: Tables) -> None:
    """The adjoint of `advance`, in place."""
    _run("pushdown_adjoint", steps, weights, tables, (addresses(*g_weights), addresses(*adjoint)), False)


def _run(
    name: str, steps: tuple[int, int], weights: Weights, tables: Tables, adjoint: tuple[Any, ...], best: bool
) -> None:
    (B, n, K, Q), (first, last) = weights.pop.shape, steps
    elements = 0 if weights.evidence is None else weights.evidence.shape[2]
    sizes = integers(K, Q, tables.below.shape[1], weights.push.shape[1], n, elements, best)
    arguments = sizes, addresses(*weights), addresses(*tables), *adjoint
    terms = [K * K * Q * t * t // 2 for t in range(first, last + 1)]  # of each step
    parts = ranges(B, _MIN_WORK // (sum(terms) + 1) + 1)
    stretches, most = [], _MOST_WORK // max(1, -(-B // len(parts)))
    begin, work = first, 0
    for t, more in zip(range(first, last + 1), terms, strict=True):
        if work and work + more > most:
            stretches.append((begin, t - 1))
            begin, work = t, 0
        work += more
    stretches.append((begin, last))
    for stretch in reversed(stretches) if adjoint else stretches:
        run(function(name), [integers(*part, *stretch, first) for part in parts], *arguments)
