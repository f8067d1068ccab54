"""Transition tables in which some moves are impossible: the mask, and its prior."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
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


def check_known_states(
    log_states: Float[Tensor, "*b T K"],
    inside: Bool[Tensor, "*b T"],
    first: Bool[Tensor, "*#b K"],
    moves: Bool[Tensor, "K K"],
    numbers: Int[Tensor, "B"],
    before: int = 0,
) -> Bool[Tensor, "B K"]:
    """Raise ValueError with the place if no possible path has the known states of a sequence.

    Arguments:
        log_states: log weights, -inf where a state is known to be impossible.
        inside: whether a step is in its sequence.
        first, moves: the states and moves that are possible.
        numbers: of the sequences, for errors.
        before: the number of steps before these, for errors.

    Returns:
        The possible states at the last step.
    """
    k, n_steps = log_states.shape[-1], log_states.shape[-2]
    known = (log_states > -torch.inf).reshape(-1, n_steps, k) | ~inside.reshape(-1, n_steps, 1)
    ahead, table = first.to(known.device).expand(len(known), k), moves.to(known.device).double()
    alive = ahead
    for step in range(n_steps):
        alive = ahead & known[:, step]
        lost = ~alive.any(-1) & inside.reshape(-1, n_steps)[:, step]
        if bool(lost.any()):
            sequence = int(lost.nonzero()[0])
            states = known[sequence, step].nonzero().flatten().tolist()
            of = f" of sequence {int(numbers[sequence])}" if log_states.ndim > 2 else ""
            where = f"step {before + step}{of}"
            raise ValueError(
                f"states: got {' or '.join(map(str, states))} at {where}, but no possible path leads there from the "
                "known states before; correct the states, or make the moves possible in mask, initial or fixed."
            )
        ahead = (alive.double() @ table > 0) | ~inside.reshape(-1, n_steps)[:, step : step + 1]
    return alive


def check_paths(series: Series, initial: Any, moves: Bool[Tensor, "K K"], fixed: Parameters) -> None:
    """`check_known_states` of all sequences of a series.

    Arguments:
        initial: that of the dynamics: the probabilities of the first state, or how they are found.
        moves: those that are possible.
        fixed: tables of known parameters; a first state of probability 0 is impossible too.
    """
    n_states = len(moves)
    start = fixed.get("initial_probs") if isinstance(initial, str) else torch.tensor(initial, device="cpu")
    first = torch.ones(n_states, dtype=torch.bool, device="cpu") if start is None else start.cpu() != 0
    if series.states is None or bool(first.all() and moves.all()):
        return
    if series.on_disk:
        alive = first
        for number, step, part in series.turns():
            known, numbers = part.log_states(n_states), torch.arange(number, number + part.n_sequences, device="cpu")
            if known is not None:
                start = alive if step else first
                alive = check_known_states(known, part.inside, start, moves, numbers, step)
        return
    groups = series.groups() if series.packed else [torch.arange(series.n_sequences, device="cpu")]
    for numbers, part in zip(groups, series.parts(), strict=True):
        known = part.log_states(n_states)
        if known is not None:
            check_known_states(known, part.inside, first, moves, numbers)


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
