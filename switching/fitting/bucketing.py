"""Ragged sequences without their padding, for fits that hold the tables of all steps at once.

The E-step goes over groups of sequences of like length (`Problem.groups`). Of an M-step nothing depends on the
order of the steps, but for the first of each sequence, which has no gate: so it sees a batch of as many sequences, each
of which begins as its own does, and goes on with any of the other steps.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from ...inference.chains.contract import Marginals
from ..data.series import Series
from ..parameters import Parameters
from ..problem import Problem


@dataclass(frozen=True)
class Bucketing:
    """A problem's sequences in groups of like length, and its steps in an order that needs little padding.

    Attributes:
        source: whose sequences are in groups.
        problem: whose steps are packed, NaN where none is; its sequences are none, and good for M-steps alone.
        where: [B, M], the number of each packed step among those of all groups, below each other; where none is, that
            of one more.
    """

    source: Problem
    problem: Problem
    where: Int[Tensor, "B M"]

    @staticmethod
    def of(problem: Problem) -> "Bucketing | None":
        """None where there is little padding."""
        if len(problem.groups) == 1:
            return None
        series, parts = problem.series, [part for _, part in problem.groups]
        where = _packed([part.series for part in parts]).to(series.observations.device)
        observations = _taken([part.series.observations for part in parts], where, 0, torch.nan)
        assert observations is not None
        covariates = _taken([part.series.drive.covariates for part in parts], where, 0, 0.0)
        gaps = _taken([part.series.drive.gaps for part in parts], where, 0, 0.0)
        packed = Series(observations, None, covariates, gaps, checked=series.checked)
        return Bucketing(problem, problem.of(packed), where)

    def marginals(self, values: Parameters) -> Marginals:
        """Those of all steps under parameters `[*r, ...]`, of states and gates in the order of the packed ones."""
        found = self.source.by_group(lambda part: part.chain(values).marginals())
        evidence = torch.cat([part.log_normalizer for part in found], -1)
        n_lead = evidence.ndim - 1
        by_step = ("fresh", "held", *(["gates"] if _by_step(found) else []))
        whole = [name for name in ("initial", "transition", "gates", "drawn") if name not in by_step]
        tables = {name: _taken([getattr(part, name) for part in found], self.where, n_lead, 0.0) for name in by_step}
        for name in whole:
            given = [getattr(part, name) for part in found]
            tables[name] = None if given[0] is None else torch.cat(given, n_lead)
        return Marginals(evidence, **tables)  # pyright: ignore[reportArgumentType]


def _by_step(found: list[Marginals]) -> bool:
    """Whether gates are told step by step, not in sum."""
    return any(part.gates is not None and part.gates.shape[-2] > 1 for part in found)


def _packed(groups: list[Series]) -> Int[Tensor, "B M"]:
    """See `Bucketing.where`."""
    inside = torch.cat([group.inside.flatten().cpu() for group in groups])
    sizes = torch.tensor([group.n_steps for group in groups for _ in range(group.n_sequences)], device="cpu")
    first = sizes.cumsum(0) - sizes
    inside[first] = False
    others = inside.nonzero().flatten()
    more = -(-len(others) // len(first))
    padded = torch.full((len(first) * more,), len(inside), device="cpu")
    padded[: len(others)] = others
    return torch.cat([first[:, None], padded.reshape(len(first), more)], -1)


def _taken(tables: list[Tensor | None], where: Tensor, axis: int, filler: float) -> Tensor | None:
    """The steps of all tables at these places, on two axes; the filler at the place beyond their end."""
    there = [table.flatten(axis, axis + 1) for table in tables if table is not None]
    if not there:
        return None
    beyond = torch.full_like(there[0].narrow(axis, 0, 1), filler)
    return torch.cat([*there, beyond], axis).index_select(axis, where.flatten()).unflatten(axis, tuple(where.shape))
