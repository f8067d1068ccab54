"""Transition tables in which some moves are impossible: the mask, and its prior."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from ...inference.families import Dirichlet, VectorFamily
from ...inference.families.pieces import given_entries
from ...inference.numerics.arrays import numbers
from ..data.series import Series
from ..entries import PossibleRows
from ..known import PossibleDirichlet
from ..parameters import Parameter, Parameters
from ..priors import Probabilities, Site

Mask = tuple[tuple[bool, ...], ...]


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
            raise ValueError(
                f"mask: row {row} has no possible move; make one of its entries True, at least the diagonal."
            )
    return tuple(tuple(row) for row in table.tolist())


def band(n_states: int, below: int, above: int) -> list[list[bool]]:
    """The mask of moves by at most so many states down and up."""
    return [[-below <= new - old <= above for new in range(n_states)] for old in range(n_states)]


def check_paths(series: Series, initial: Any, moves: Bool[Tensor, "K K"], fixed: Parameters) -> None:
    """Raise ValueError with the place if no possible path has the known states of a sequence.

    Arguments:
        initial: that of the dynamics: the probabilities of the first state, or how they are found.
        moves: those that are possible.
        fixed: tables of known parameters; a first state of probability 0 is impossible too.
    """
    begins = fixed.get("initial_probs") if isinstance(initial, str) else torch.tensor(initial, device="cpu")
    first = torch.ones(len(moves), dtype=torch.bool, device="cpu") if begins is None else begins.cpu() != 0
    if series.states is None or bool(first.all() and moves.all()):
        return
    first, table = first.to(series.like.device), moves.to(series.like.device).double()
    alive = first
    for number, start, part in series.turns():
        log_states, inside = part.log_states(len(first)), part.inside
        assert log_states is not None
        known = (log_states > -torch.inf) | ~inside.unsqueeze(-1)
        ahead = alive if start else first.expand(len(known), -1)
        for step in range(part.n_steps):
            alive = ahead & known[:, step]
            lost = ~alive.any(-1) & inside[:, step]
            if bool(lost.any()):
                sequence = int(lost.nonzero()[0])
                states = known[sequence, step].nonzero().flatten().tolist()
                of = f" of sequence {number + sequence}" if series.batch_shape else ""
                raise ValueError(
                    f"states: got {' or '.join(map(str, states))} at step {start + step}{of}, but no possible path "
                    "leads there from the known states before; correct the states, or make the moves possible in mask, "
                    "initial or fixed."
                )
            ahead = (alive.double() @ table > 0) | ~inside[:, step : step + 1]


@dataclass(frozen=True, eq=False)
class PossibleProbabilities(Probabilities):
    """Rows of probabilities, of which some entries are 0."""

    rows: PossibleRows

    @cached_property
    def family(self) -> VectorFamily[Any]:  # type: ignore[override]
        return given_entries(Dirichlet(), self.rows.table)

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        return {self.name: Parameter(self.dims, self.rows)}

    def given(self, known: Parameters) -> VectorFamily[Any]:
        """Of the possible entries; the table has 0 at the others."""
        return given_entries(Dirichlet(), known[self.name])

    def sites(self, prior: Parameters) -> list[Site]:
        rows = PossibleDirichlet(self.natural(prior), self.rows)
        return [Site(self.name, lambda values: rows, lambda values: rows.log_prob(values[self.name]))]


def possible_rows(mask: Mask) -> PossibleRows:
    """The support of a transition table."""
    free = torch.tensor(mask, device="cpu")
    return PossibleRows(torch.where(free, torch.nan, 0.0).double(), "the mask excludes this move")


def references(free: Bool[Tensor, "K K"]) -> Bool[Tensor, "K K"]:
    """The move of each row to which the weights of inputs are relative: staying, or if it is impossible, the first
    possible one."""
    staying = torch.eye(len(free), dtype=torch.bool, device="cpu")
    first = torch.zeros_like(staying).scatter(-1, free.byte().argmax(-1, keepdim=True), True)
    return torch.where(free.diagonal().unsqueeze(-1), staying, first)
