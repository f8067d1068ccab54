"""Transition tables in which some moves are impossible: the mask, and its prior."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions.constraints import Constraint

from ...inference.families import Dirichlet, VectorFamily
from ...inference.families.pieces import given_entries
from ...inference.numerics.arrays import numbers
from ..entries import PossibleRows
from ..parameters import Parameter, Parameters
from ..priors import Probabilities, Site

Mask = tuple[tuple[bool, ...], ...]
NO_AXES = torch.Size()


def read_mask(mask: Any, n_states: int) -> Mask:
    """Which moves are possible, from truth values `[K, K]` in any form.

    Raises:
        TypeError: numbers that are not truth values.
        ValueError: another shape; a state without an exit.
    """
    table = numbers(mask, "mask")
    if table.dtype != torch.bool:
        raise TypeError(f"mask: got {table.dtype}, expected True where a move is possible and False elsewhere.")
    if table.shape != (n_states, n_states):
        raise ValueError(f"mask: got shape {tuple(table.shape)}, expected {(n_states, n_states)}, [old, new].")
    for row, possible in enumerate(table.any(-1).tolist()):
        if not possible:
            raise ValueError(f"mask: got no possible move in row {row}; a state at least stays, so make one True.")
    return tuple(tuple(row) for row in table.tolist())


def band(n_states: int, below: int, above: int) -> list[list[bool]]:
    """The mask of moves by at most so many states down and up."""
    return [[-below <= new - old <= above for new in range(n_states)] for old in range(n_states)]


class PossibleDirichlet(TorchDistribution):
    """Rows of probabilities with Dirichlet priors of their possible entries."""

    arg_constraints: dict = {}  # noqa: RUF012 the interface of torch.distributions
    has_rsample = True

    def __init__(self, concentration: Tensor, rows: PossibleRows, batch_shape: torch.Size = NO_AXES) -> None:
        self.concentration, self.rows = concentration, rows
        super().__init__(batch_shape, concentration.shape, validate_args=False)

    @property
    def support(self) -> Constraint:
        return self.rows

    def log_prob(self, value: Tensor) -> Tensor:
        free = self.rows.free.to(value.device)
        terms = torch.where(free, torch.xlogy(self.concentration - 1, torch.where(free, value, 1.0)), 0.0)
        used = torch.where(free, self.concentration, 0.0)
        parts = torch.where(free, torch.lgamma(self.concentration), 0.0)
        return terms.sum((-2, -1)) + (torch.lgamma(used.sum(-1)) - parts.sum(-1)).sum()

    def rsample(self, sample_shape: torch.Size = NO_AXES) -> Tensor:
        alpha = self.concentration.expand(self._extended_shape(sample_shape))
        drawn = torch.distributions.Gamma(alpha, torch.ones_like(alpha)).rsample()
        drawn = drawn * self.rows.free.to(drawn)
        return drawn / drawn.sum(-1, keepdim=True)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> "PossibleDirichlet":
        return PossibleDirichlet(self.concentration, self.rows, torch.Size(batch_shape))


@dataclass(frozen=True, eq=False)
class PossibleProbabilities(Probabilities):
    """Rows of probabilities, of which some entries are 0."""

    rows: PossibleRows

    @cached_property
    def family(self) -> VectorFamily[Any]:  # type: ignore[override]
        return given_entries(Dirichlet(), torch.where(self.rows.free, torch.nan, 0.0).double())

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        return {self.name: Parameter(self.dims, self.rows)}

    def sites(self, prior: Parameters) -> list[Site]:
        whole = PossibleDirichlet(self.natural(prior), self.rows)
        return [Site(self.name, lambda values: whole, lambda values: whole.log_prob(values[self.name]))]


def possible_rows(mask: Mask) -> PossibleRows:
    """The support of a transition table."""
    return PossibleRows(torch.tensor(mask, device="cpu"), "the mask excludes this move")


def references(free: Bool[Tensor, "K K"]) -> Bool[Tensor, "K K"]:
    """The move of each row to which the weights of inputs are relative: staying, or if it is impossible, the first
    possible one."""
    staying = torch.eye(len(free), dtype=torch.bool, device="cpu")
    first = torch.zeros_like(staying).scatter(-1, free.byte().argmax(-1, keepdim=True), True)
    return torch.where(free.diagonal().unsqueeze(-1), staying, first)
