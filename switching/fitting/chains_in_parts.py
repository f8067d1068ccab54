r"""The log evidence of data that are read in parts, or shared by processes, with its gradient, for any model.

The log evidence is a sum over sequences, so its gradient is that of one part after another, added up. A sequence that
is too long for one part is cut into stretches, each of which begins with the last step of the one before. At a cut t a
forward pass gives the belief $a_t(s) = P(s_t = s \mid x_{1:t})$, and a backward pass gives
$b_t(s) = P(s_t = s \mid x) / a_t(s)$. The chain of the stretch from t to u has the log-normalizer

$$\log Z_{t,u} = \log \sum_{s_{t:u}} a_t(s_t) \Big[\prod_{v=t+1}^u p(s_v, x_v \mid s_{v-1}, \theta)\Big] b_u(s_u)
= \log p(x_{t+1:u} \mid x_{1:t}).$$

These add up to $\log p(x)$. Up to a constant, $\log Z_{t,u}$ is $\log p(x)$ as a function of the parameters of this
stretch alone. So the gradients of all stretches, at constant a and b, add up to that of $\log p(x)$.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...inference.chains.contract import Chain, Marginals, log_belief_at_end, log_evidence_after
from ...inference.numerics.clock import passed
from ...inference.numerics.deferred import deferred
from ..data.packed import ahead, consecutive
from ..data.series import numbered_from
from ..parameters import Parameters
from ..problem import Problem
from . import chunked
from .whole import Whole


class Piece(NamedTuple):
    """A part of the data: its problem and its chain, and the number of its first steps that another one counts."""

    problem: Problem
    chain: Chain
    counted_before: int

    def marginals(self) -> Marginals:
        """`Problem.marginals` of its steps; 0 at those that another piece counts."""
        marginals, n = self.problem.marginals_of(self.chain), self.counted_before
        if marginals.held is not None and self.problem.emission.parts[-1].alike:  # a stretch tells its states apart
            marginals = replace(marginals, held=marginals.held.sum(-1, keepdim=True))
        if not n:
            return marginals
        fresh, held = (
            None if table is None else torch.cat([torch.zeros_like(table[..., :n, :]), table[..., n:, :]], -2)
            for table in (marginals.fresh, marginals.held)
        )
        initial = None if marginals.initial is None else torch.zeros_like(marginals.initial)
        return replace(marginals, fresh=fresh, held=held, initial=initial)


def log_evidence(problem: Problem, whole: Whole, values: Parameters) -> Float[Tensor, "*r"]:
    """log p(x | parameters) of all data for each restart, each sequence times its weight; in float64.

    Its derivatives with respect to the parameters are those of the same pass through the data.
    """
    free = [name for name, table in values.items() if table.requires_grad]
    here = {name: table.detach().requires_grad_(name in free) for name, table in values.items()}

    def terms(piece: Piece) -> list[Tensor]:
        evidence = piece.problem.total(piece.chain.log_normalizer())
        leaves = [here[name] for name in free]
        return [evidence, *(torch.autograd.grad(evidence.sum(), leaves, materialize_grads=True) if free else ())]

    numbers = [whole.like.new_zeros(_lead(problem, values)), *(here[name] for name in free)]
    zeros = [torch.zeros_like(table, dtype=torch.float64) for table in numbers]
    value, *gradients = summed(problem, whole, here, terms, zeros)
    for name, gradient in zip(free, gradients, strict=True):
        moved = gradient * (values[name] - values[name].detach())
        value = value + moved.reshape(*value.shape, -1).sum(-1)
    return value


@torch.no_grad()
def occupancy(problem: Problem, whole: Whole, values: Parameters) -> Float[Tensor, "*r K"]:
    """Expected number of steps in each state, of all data."""
    lead = _lead(problem, values)

    def steps(piece: Piece) -> list[Tensor]:
        state = piece.chain.smooth().state[..., piece.counted_before :, :]
        return [state.reshape(*lead, -1, problem.n_states).sum(-2)]

    zero = torch.zeros(*lead, problem.n_states, dtype=torch.float64, device=whole.like.device)
    return summed(problem, whole, values, steps, [zero])[0].to(whole.like)


def _lead(problem: Problem, values: Parameters) -> torch.Size:
    """The axes of restarts."""
    name, value = next(iter(values.items()))
    return value.shape[: value.ndim - len(problem.parameters[name].dims)]


def summed(
    problem: Problem, whole: Whole, values: Parameters, terms: Callable[[Piece], list[Tensor]], zeros: list[Tensor]
) -> list[Tensor]:
    """The sums of the terms of all pieces, of all processes, in the dtypes of `zeros`."""

    def local() -> list[Tensor]:
        total = list(zeros)

        def add(piece: Piece) -> None:
            total[:] = [before + term.detach() for before, term in zip(total, terms(piece), strict=True)]

        _visit(problem, whole, values, add)
        return total

    return whole.ranks.summed(local, zeros)


def _visit(problem: Problem, whole: Whole, values: Parameters, add: Callable[[Piece], None]) -> None:
    """Call a function with each piece of the data of this process."""
    # of a step, in the widest table
    numbers = _lead(problem, values).numel() * problem.n_states * whole.series.n_features
    size = max(2, chunked.max_numbers(whole.like) // numbers)
    for members, later in ahead(consecutive(whole.lengths, size)):
        n_rows = int(whole.lengths[members].sum())
        if len(members) == 1 and n_rows * numbers > chunked.LONG:
            _visit_stretches(problem, whole, members, size, values, add)
        else:
            whole.series.fetch(later)
            with _placed(int(members[0]), 0):
                problem.of(whole.part(members)).by_group(lambda part: add(Piece(part, part.chain(values), 0)))
            passed(n_rows)
        whole.series.release()


def _visit_stretches(
    problem: Problem,
    whole: Whole,
    member: Int[Tensor, "1"],
    size: int,
    values: Parameters,
    add: Callable[[Piece], None],
) -> None:
    """Call a function with the stretches of a sequence, from the last to the first."""
    firsts = range(0, int(whole.lengths[member]) - 1, size - 1)
    befores: list[Tensor | None] = [None]

    def piece(i: int, after: Tensor | None, way: int) -> Piece:
        if 0 <= i + way < len(firsts):
            whole.series.fetch(member, firsts[i + way], size)
        part, before = problem.of(whole.stretch(member, firsts[i], size)), befores[i]
        whole.series.release()
        chain = part.chain(values)
        return Piece(part, chain if before is after is None else chain.between(before, after), int(before is not None))

    for i, first in enumerate(firsts[:-1]):
        with torch.no_grad(), _placed(int(member), first):
            befores.append(log_belief_at_end(piece(i, None, 1).chain))
    after = None
    for i, (first, before) in reversed(list(enumerate(zip(firsts, befores, strict=True)))):
        with _placed(int(member), first):
            here = piece(i, after, -1)
            add(here)
            passed(here.problem.series.n_steps - here.counted_before)
            if before is not None:
                after = log_evidence_after(here.chain, before).detach()


@contextmanager
def _placed(sequence: int, step: int) -> Iterator[None]:
    """Errors of a part name its first sequence and step by their numbers among those of this process."""
    with numbered_from(sequence, step), deferred():
        yield
