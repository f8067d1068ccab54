r"""The log evidence of data that are read in parts, or shared by processes, with its gradient, for any model.

The log evidence is a sum over sequences, so its gradient is that of one part after another, added up. Up to a constant,
the log-normalizer $\log Z_{t,u}$ of a stretch of a long sequence (see `whole`) is $\log p(x)$ as a function of the
parameters of this stretch alone. So the gradients of all stretches, at constant a and b, add up to that of
$\log p(x)$.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.chains.contract import Marginals, log_belief_at_end, log_evidence_after
from ...inference.numerics.deferred import deferred
from ...inference.numerics.scalars import MOST
from ..data.packed import consecutive
from ..data.series import numbered_from
from ..parameters import Parameters
from ..problem import Problem, SeriesProblem
from . import chunked
from .whole import Piece, Whole

SomeProblem = TypeVar("SomeProblem", bound=SeriesProblem)


@dataclass(frozen=True)
class ChainPiece(Generic[SomeProblem]):
    """A piece of the data: its problem, the parameters, and what is known of the steps before and after it."""

    problem: SomeProblem
    values: Parameters
    before: Tensor | None = None
    after: Tensor | None = None

    @staticmethod
    def of(problem: SomeProblem, values: Parameters, piece: Piece) -> "ChainPiece[SomeProblem]":
        return ChainPiece(problem.of(piece.series), values, piece.before, piece.after)

    @cached_property
    def chain(self) -> Any:
        chain = self.problem.chain(self.values)
        return chain if self.before is self.after is None else chain.between(self.before, self.after)

    @property
    def counted_before(self) -> int:
        """The number of its first steps that another piece counts."""
        return int(self.before is not None)

    def log_belief(self) -> Tensor:
        return log_belief_at_end(self.chain)

    def log_evidence(self, before: Tensor) -> Tensor:
        return log_evidence_after(self.chain, before).detach()

    def marginals(self: "ChainPiece[Problem]") -> Marginals:
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


def log_evidence(problem: SeriesProblem, whole: Whole | None, values: Parameters) -> Float[Tensor, "*r"]:
    """log p(x | parameters) of all data for each restart, each sequence times its weight; in float64.

    Its derivatives with respect to the parameters are those of the same pass through the data.

    Arguments:
        whole: all data, in the units of the problem; None: the series of the problem.
    """
    if whole is None:
        return problem.total(problem.evidence(values))
    free = [name for name, table in values.items() if table.requires_grad]
    here = {name: table.detach().requires_grad_(name in free) for name, table in values.items()}

    def terms(piece: ChainPiece[Any]) -> list[Tensor]:
        evidence = piece.problem.total(piece.chain.log_normalizer())
        leaves = [here[name] for name in free]
        slopes = torch.autograd.grad(evidence.sum(), leaves, materialize_grads=True) if free else ()
        return [evidence.detach(), *slopes]

    numbers = [whole.like.new_zeros(_lead(problem, values)), *(here[name] for name in free)]
    zeros = [torch.zeros_like(table, dtype=torch.float64) for table in numbers]
    value, *gradients = summed(problem, whole, here, terms, zeros)
    for name, gradient in zip(free, gradients, strict=True):
        moved = gradient * (values[name] - values[name].detach())
        value = value + moved.reshape(*value.shape, -1).sum(-1)
    return value


@torch.no_grad()
def occupancy(problem: Problem, whole: Whole | None, values: Parameters) -> Float[Tensor, "*r K"]:
    """Expected number of steps in each state; `whole`: see `log_evidence`."""
    lead, whole = _lead(problem, values), whole or Whole.of(problem.series)

    def steps(piece: ChainPiece[Any]) -> list[Tensor]:
        state = piece.chain.smooth().state[..., piece.counted_before :, :]
        return [state.reshape(*lead, -1, problem.n_states).sum(-2)]

    zero = torch.zeros(*lead, problem.n_states, dtype=torch.float64, device=whole.like.device)
    return summed(problem, whole, values, steps, [zero])[0].to(whole.like)


def _lead(problem: SeriesProblem, values: Parameters) -> torch.Size:
    """The axes of restarts."""
    name, value = next(iter(values.items()))
    return value.shape[: value.ndim - len(problem.parameters[name].dims)]


def summed(
    problem: SomeProblem,
    whole: Whole,
    values: Parameters,
    terms: Callable[[ChainPiece[SomeProblem]], list[Tensor]],
    zeros: list[Tensor],
) -> list[Tensor]:
    """The sums of the terms of all pieces, of all processes, in the dtypes of `zeros`.

    Errors of a piece name its first sequence and step by their numbers among those of this process.
    """
    # of a step, in the widest table
    numbers = _lead(problem, values).numel() * problem.n_states * whole.series.n_features
    size = max(2, chunked.max_numbers(whole.like) // numbers)

    def by_group(piece: ChainPiece[Any]) -> list[list[Tensor]]:
        return piece.problem.by_group(
            lambda part: terms(piece if part is piece.problem else replace(piece, problem=part))
        )

    def pieces() -> Iterator[list[Tensor]]:
        model, groups = partial(ChainPiece.of, problem, values), consecutive(whole.lengths, size)
        longest = chunked.LONG // numbers if isinstance(problem, Problem) else MOST  # real-valued states are in memory
        for there in whole.of_pieces(groups, model, by_group, _placed, longest, size):
            yield from there

    return whole.summed(pieces, zeros)


@contextmanager
def _placed(sequence: int, step: int) -> Iterator[None]:
    with numbered_from(sequence, step), deferred():
        yield
