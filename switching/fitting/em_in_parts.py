"""Expectation-maximisation over data that are read in parts, or shared by processes.

An M-step that needs only sums over the data takes those of all parts: of the counts of paths, and of the statistics of
the emission (`Dynamics.adds_up`, `Emission.adds_up`). So memory holds one part, and processes exchange only these sums.
Other models maximise the same objective by quasi-Newton steps: see `ascent_in_parts`.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..known import whole_parameters
from ..parameters import Parameters
from ..problem import Problem
from .chains_in_parts import Piece, summed
from .em import EM, collapsed_at, occupancy_of, weighted_rows
from .starts import variance_floor
from .whole import Whole


class Totals(NamedTuple):
    """What an M-step reads of all data."""

    evidence: Float[Tensor, "R"]
    occupancy: Float[Tensor, "R K"]
    counts: Parameters  # of paths, by the names of blocks
    sums: Parameters  # of the emission

    @staticmethod
    def of(piece: Piece, values: Parameters) -> "Totals":
        problem, marginals = piece.problem, piece.marginals()
        evidence = problem.summed(marginals.log_normalizer)
        rows, weights = weighted_rows(problem, marginals)
        counts = problem.dynamics.counts(marginals, evidence.shape)
        sums = problem.emission.sums_of_parts(rows, weights, values)
        return Totals(evidence, occupancy_of(marginals), counts, sums)

    @property
    def tables(self) -> list[Tensor]:
        return [self.evidence, self.occupancy, *self.counts.values(), *self.sums.values()]

    def filled(self, tables: list[Tensor]) -> "Totals":
        """The same quantities with other numbers, the counts and sums in the same dtypes."""
        evidence, occupancy, *others = tables
        numbers = iter(others)
        counts, sums = (
            {name: next(numbers).to(table) for name, table in own.items()} for own in (self.counts, self.sums)
        )
        return Totals(evidence, occupancy, counts, sums)


class EMInParts(EM):
    """A batch of restarts that are optimised by EM.

    Arguments:
        problem: that of a sample of the data, in the units of the fit.
        whole: all data, in the same units.
    """

    problem: Problem

    def __init__(self, problem: Problem, whole: Whole, values: Parameters) -> None:
        self.problem, self._whole, self._floor = problem, whole, variance_floor(problem.series)
        first = problem.series.part(torch.zeros(1, dtype=torch.long, device="cpu"))
        self._little = problem.of(first.stretch(0, 2))
        self._begin(values, None)

    @torch.no_grad()
    def _expected(self, values: Parameters) -> Totals:
        form = Totals.of(Piece(self._little, self._little.chain(values), 0), values)
        zeros = [torch.zeros_like(table, dtype=torch.float64) for table in form.tables]
        tables = summed(self.problem, self._whole, values, lambda piece: Totals.of(piece, values).tables, zeros)
        return form.filled(tables)

    def _maximized(self, now: Totals) -> tuple[Parameters, Bool[Tensor, "R K"]]:
        problem = self.problem
        moved = problem.dynamics.maximize_counts(now.counts, problem.prior, self.tables, problem.fixed)
        best = problem.emission.maximize_parts_sums(now.sums, self.tables, problem.prior, self._floor)
        values = problem.admitted(moved | best.values)
        return values, collapsed_at(problem, values, self._floor)

    def _occupancy(self, now: Totals) -> Float[Tensor, "R K"]:
        return now.occupancy

    def _evidence(self, now: Totals) -> Float[Tensor, "R"]:
        return now.evidence

    def _some(self, now: Totals, restarts: Tensor) -> Totals:
        return now.filled([table[restarts] for table in now.tables])


def adds_up(problem: Problem) -> bool:
    """Whether an M-step needs only sums over the data."""
    if not problem.dynamics.adds_up(problem.series.drive):
        return False
    for part in problem.emission.parts:
        known = {name: table for name, table in part.own(problem.fixed).items() if name in part.emission.parameters}
        in_part = known and len(whole_parameters(known)) < len(part.emission.parameters)
        if in_part or not part.emission.adds_up:
            return False
    return True
