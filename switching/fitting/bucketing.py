"""Ragged sequences without their padding, for fits that hold the tables of all steps at once.

The E-step processes groups of sequences of similar length (`Problem.groups`). An M-step does not depend on the order of
the steps, except for the first step of each sequence, which has no gate. So the M-step sees a batch of the same number
of sequences. Each begins with the first step of a real sequence and continues with any other steps.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ...inference.chains.contract import Marginals
from ..data.series import BEYOND, Series
from ..parameters import Parameters
from ..problem import Problem


@dataclass(frozen=True)
class Bucketing:
    """The sequences of a problem in groups of similar length, and its steps in an order that needs little padding.

    Attributes:
        source: the problem with the sequences in groups.
        problem: the problem with packed steps, NaN in padding. Its sequences are artificial; use it only for M-steps.
        where: [B, M], the number of each packed step in the concatenation of all groups. Padding has the number after
            the last one.
    """

    source: Problem
    problem: Problem
    where: Int[Tensor, "B M"]

    @staticmethod
    def of(problem: Problem) -> "Bucketing | None":
        """The packed form of a problem; None if it has little padding, or if moves or subjects have to stay in
        order."""
        if problem.dynamics.counts_by_step or len(problem.groups) == 1 or problem.series.subjects is not None:
            return None
        series, parts = problem.series, [part for _, part in problem.groups]
        where = _packed([part.series for part in parts]).to(series.like.device)
        names, drives = ("x", "step_weights", "noise", "past"), [part.series.drive for part in parts]
        tables: dict[str, Any] = {name: [getattr(part.series, name) for part in parts] for name in names}
        tables |= {"inputs": [drive.inputs for drive in drives], "dt": [drive.gaps for drive in drives]}
        tables = {name: _taken(of_parts, where, 0, BEYOND[name]) for name, of_parts in tables.items()}
        packed = Series(**tables, drivers=series.drivers, checked=series.checked)
        return Bucketing(problem, problem.of(packed), where)

    def marginals(self, values: Parameters) -> Marginals:
        """`Problem.marginals` of all steps under parameters `[*r, ...]`; states and gates have the order of the packed
        steps."""
        groups = self.source.by_group(lambda part: part.marginals(values))
        evidence = torch.cat([part.log_normalizer for part in groups], -1)
        n_lead = evidence.ndim - 1
        by_step = ("fresh", "held", *(["gates"] if _by_step(groups) else []))
        tables = {name: _taken([getattr(part, name) for part in groups], self.where, n_lead, 0.0) for name in by_step}
        leaving = [part.leaving for part in groups if part.leaving is not None]
        if leaving:  # of each move; the first step has none
            into_steps: list[Tensor | None] = [torch.nn.functional.pad(table, (0, 0, 1, 0)) for table in leaving]
            packed = _taken(into_steps, self.where, n_lead, 0.0)
            assert packed is not None
            tables["leaving"] = packed.narrow(n_lead + 1, 1, packed.shape[n_lead + 1] - 1)
        joined = ("initial", "transition", "gates", "drawn", "moves", "duration", "first_duration")
        for name in joined:
            tables_of = [getattr(part, name) for part in groups]
            if name not in tables and tables_of[0] is not None:
                tables[name] = torch.cat(self.source.dynamics.alike(name, tables_of, values), n_lead)
        return Marginals(evidence, **tables)  # pyright: ignore[reportArgumentType]


def _by_step(groups: list[Marginals]) -> bool:
    """Whether the marginals have gates for each step, not only their sum."""
    return any(part.gates is not None and part.gates.shape[-2] > 1 for part in groups)


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
    """The steps of all tables at these positions, on two axes; the filler at the position after their end."""
    there = [table.flatten(axis, axis + 1) for table in tables if table is not None]
    if not there:
        return None
    beyond = torch.full_like(there[0].narrow(axis, 0, 1), filler)
    return torch.cat([*there, beyond], axis).index_select(axis, where.flatten()).unflatten(axis, tuple(where.shape))
