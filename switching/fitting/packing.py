"""Ragged sequences without their padding, for fits that hold the tables of all steps at once.

The E-step goes over groups of sequences, none more than twice as long as another. Of an M-step nothing depends on the
order of the steps, but for the first of each sequence, which has no gate: so it sees a batch of as many sequences, each
of which begins as its own does, and goes on with any of the other steps.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...inference.chains.contract import Marginals
from ..data.series import Series
from ..parameters import Parameters
from ..problem import Problem

WASTE = 2.0  # times as many steps with the padding as without it, from which on it is left out


@dataclass(frozen=True)
class Packing:
    """A problem's sequences in groups of like length, and its steps in an order that needs little padding.

    Attributes:
        parts: the groups.
        problem: whose steps are packed, NaN where none is; its sequences are none, and good for M-steps alone.
        where: [B, M], the number of each packed step among those of all groups, below each other; where none is, that
            of one more.
    """

    parts: list[Problem]
    problem: Problem
    where: Int[Tensor, "B M"]

    @staticmethod
    def of(problem: Problem) -> "Packing | None":
        """None where there is little padding."""
        series = problem.series
        if series.lengths is None or series.n_sequences * series.n_steps <= WASTE * int(series.lengths.sum()):
            return None
        lengths = series.lengths.flatten().cpu()
        classes = lengths.double().log2().floor().long()
        groups = [(classes == size).nonzero().flatten() for size in classes.unique()]
        parts = [problem.of(series.part(group)) for group in groups]
        where = _packed([part.series for part in parts]).to(series.observations.device)

        def joined(tables: list[Tensor | None], filler: float) -> Tensor | None:
            there = [table.flatten(0, 1) for table in tables if table is not None]
            return _taken(torch.cat(there), where, 0, filler) if there else None

        observations = joined([part.series.observations for part in parts], torch.nan)
        assert observations is not None
        covariates = joined([part.series.drive.covariates for part in parts], 0.0)
        gaps = joined([part.series.drive.gaps for part in parts], 0.0)
        packed = Series(observations, None, covariates, gaps, checked=series.checked)
        return Packing(parts, problem.of(packed), where)

    def marginals(self, values: Parameters) -> Marginals:
        """Those of all steps under parameters `[*r, ...]`, of states and gates in the order of the packed ones."""
        found = [part.chain(values).marginals() for part in self.parts]
        evidence = torch.cat([part.log_normalizer for part in found], -1)
        n_lead = evidence.ndim - 1
        fresh, held = (self._steps([getattr(part, name) for part in found], n_lead) for name in ("fresh", "held"))
        initial, transition = (
            None if getattr(found[0], name) is None else torch.cat([getattr(part, name) for part in found], n_lead)
            for name in ("initial", "transition")
        )
        assert fresh is not None
        return Marginals(evidence, fresh, held, initial, transition)

    def _steps(self, tables: list[Tensor | None], n_lead: int) -> Float[Tensor, "*r B M K"] | None:
        there = [table.flatten(n_lead, n_lead + 1) for table in tables if table is not None]
        return _taken(torch.cat(there, n_lead), self.where, n_lead, 0.0) if there else None


def _packed(groups: list[Series]) -> Int[Tensor, "B M"]:
    """See `Packing.where`."""
    inside = torch.cat([group.inside.flatten().cpu() for group in groups])
    sizes = torch.tensor([group.n_steps for group in groups for _ in range(group.n_sequences)])
    first = sizes.cumsum(0) - sizes
    inside[first] = False
    others = inside.nonzero().flatten()
    more = -(-len(others) // len(first))
    padded = torch.full((len(first) * more,), len(inside))
    padded[: len(others)] = others
    return torch.cat([first[:, None], padded.reshape(len(first), more)], -1)


def _taken(table: Tensor, where: Tensor, axis: int, filler: float) -> Tensor:
    """The entries of an axis at these places, which become two; the filler where they are beyond its end."""
    found = table.index_select(axis, where.flatten().clamp(max=table.shape[axis] - 1))
    found = found.unflatten(axis, tuple(where.shape))
    there = (where < table.shape[axis]).reshape(*where.shape, *[1] * (table.ndim - axis - 1))
    return torch.where(there, found, filler)
