"""Semi-Markov chains on the CPU: the sweeps of `inference/native/semi_markov.h` behind the operators.

A task takes one sequence after another. No table is expanded to the batch axes of the others.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...native.library import addresses, function, integers
from ...numerics.native_calls import check_ends, check_given, refuse_lack, run
from ...numerics.threads import ranges, sum_of_steps, worthwhile
from . import op

_TERM = 5e-9  # seconds of a run of a state at one step
_TASK = 0.1  # seconds of a task, so that an interrupt is soon heard


class _Chains(NamedTuple):
    """The tables of some sequences, in float64, as the library reads them."""

    record: Any  # `SemiMarkov`, whose last number says whether memory was lacking
    kept: tuple[Any, ...]  # the memory that it points to
    n: int
    seconds: float  # that all sequences take one thread

    def run(self, name: str, *others: Any) -> None:
        """Call a function of the library for ranges of sequences."""
        n_parts = max(worthwhile(self.seconds), int(self.seconds / _TASK))
        tasks = [integers(*span) for span in ranges(self.n, at_most=n_parts)]
        run(function(name), tasks, self.record, *others)
        refuse_lack(self.record[-1])


def _read(
    log_initial: Tensor, log_transition: Tensor, log_durations: Tensor, log_likelihood: Tensor, lengths: Tensor
) -> _Chains:
    (T, K), S, D = log_likelihood.shape[-2:], log_transition.shape[-3], log_durations.shape[-1]
    if not T * K * D or S not in (1, T - 1):
        shapes = [list(table.shape) for table in (log_transition, log_durations, log_likelihood)]
        raise ValueError(f"log_transition, log_durations, log_likelihood: got shapes {shapes}.")
    tables = {"log_initial": (log_initial, (K,)), "log_transition": (log_transition, (S, K, K))}
    check_ends(None, **tables, log_durations=(log_durations, (4, K, D)))
    if lengths.dtype != torch.int64:
        raise TypeError(f"lengths: got {lengths.dtype}, expected int64.")
    kept: list[Tensor | None] = []
    for table, n_own in ((log_initial, 1), (log_transition, 3), (log_durations, 3), (log_likelihood, 2)):
        axes = table.shape[: table.dim() - n_own]
        shared = axes.numel() == 1
        number = (
            None if shared else torch.arange(axes.numel(), device="cpu").view(axes).expand(lengths.shape).contiguous()
        )
        kept += [table.detach().double().contiguous(), number]
    kept.append(lengths.contiguous())
    n = lengths.numel()
    record = addresses(*kept, T, K, S, D, 0)
    return _Chains(record, tuple(kept), n, n * T * K * (min(D, T) + K) * _TERM)


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64, device="cpu")


def _none_failed(n: int) -> Tensor:
    return torch.full((n,), -1, device="cpu")


@op.filter.kernel("cpu")
def filter(*tables: Tensor) -> tuple[Tensor, ...]:
    chains, lengths, dtype = _read(*tables), tables[-1], tables[3].dtype
    n, (n_steps, k) = lengths.numel(), tables[3].shape[-2:]
    state, predicted, increment = _zeros(n, n_steps, k), _zeros(n, n_steps, k), _zeros(n, n_steps)
    failed = _none_failed(n)
    chains.run("semi_markov_filter", state, predicted, increment, failed)
    results = sum_of_steps(increment), state, predicted, increment
    return *(_shaped(x.to(dtype), lengths) for x in results), failed.view(lengths.shape)


@op.posterior.kernel("cpu")
def posterior(*tables: Tensor) -> tuple[Tensor, ...]:
    chains, lengths, dtype = _read(*tables), tables[-1], tables[3].dtype
    n, (n_steps, k), longest = lengths.numel(), tables[3].shape[-2:], tables[2].shape[-1]
    state, increment, begins = _zeros(n, n_steps, k), _zeros(n, n_steps), _zeros(n, n_steps, k)
    moves, counts, entropy = _zeros(n, *tables[1].shape[-3:]), _zeros(n, 4, k, longest), _zeros(n)
    failed = _none_failed(n)
    chains.run("semi_markov_posterior", state, increment, begins, moves, counts, entropy, failed)
    results = sum_of_steps(increment), state, begins, moves, counts, entropy
    return *(_shaped(x.to(dtype), lengths) for x in results), failed.view(lengths.shape)


@op.viterbi.kernel("cpu")
def viterbi(*tables: Tensor) -> tuple[Tensor, ...]:
    chains, lengths = _read(*tables), tables[-1]
    path = torch.zeros(chains.n, tables[3].shape[-2], dtype=torch.int64, device="cpu")
    failed = _none_failed(chains.n)
    chains.run("semi_markov_viterbi", path, failed)
    return _shaped(path, lengths), failed.view(lengths.shape)


@op.sample.kernel("cpu")
def sample(*arguments: Tensor) -> tuple[Tensor, ...]:
    *tables, uniform = arguments
    chains, lengths = _read(*tables), tables[-1]
    n, n_steps = len(uniform), tables[3].shape[-2]
    check_given("uniform", uniform, (n, *lengths.shape, n_steps, 2), uniform.dtype)
    path = torch.zeros(n, chains.n, n_steps, dtype=torch.int64, device="cpu")
    increment, failed = _zeros(chains.n, n_steps), _none_failed(chains.n)
    chains.run("semi_markov_sample", integers(n, chains.n), uniform.double().contiguous(), path, increment, failed)
    return path.view(uniform.shape[:-1]), failed.view(lengths.shape)


def _shaped(x: Tensor, lengths: Tensor) -> Tensor:
    return x.reshape((*lengths.shape, *x.shape[1:]))
