"""Expectation-maximisation over data that are read in parts, or shared by processes.

An M-step that needs only sums over the data takes those of all parts: of the counts of paths, and of the statistics of
the emission (`Dynamics.adds_up`, `Emission.adds_up`). So memory holds one part, and processes exchange only these sums.
Other models maximise the same objective by quasi-Newton steps: see `ascent_in_parts`.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..known import whole_parameters
from ..parameters import Parameters, prefixed, with_prefix
from ..problem import Problem
from .chains_in_parts import ChainPiece, summed
from .em import EM, collapsed_at, occupancy_of, weighted_rows
from .starts import variance_floor
from .whole import Whole

COUNTS, SUMS = "counts ", "sums "  # of paths, by the names of blocks, and of the emission


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
    def _expected(self, values: Parameters) -> Parameters:
        """What an M-step reads of all data."""

        def terms(piece: ChainPiece[Problem]) -> Parameters:
            problem, marginals = piece.problem, piece.marginals()
            evidence = problem.summed(marginals.log_normalizer)
            counts = problem.dynamics.counts(marginals, evidence.shape)
            sums = problem.emission.sums_of_parts(*weighted_rows(problem, marginals), values)
            own = {"evidence": evidence, "occupancy": occupancy_of(marginals)}
            return own | prefixed(counts, COUNTS) | prefixed(sums, SUMS)

        form = terms(ChainPiece(self._little, values))
        zeros = [torch.zeros_like(table, dtype=torch.float64) for table in form.values()]
        totals = summed(self.problem, self._whole, values, lambda piece: [*terms(piece).values()], zeros)
        return {name: total.to(form[name]) for name, total in zip(form, totals, strict=True)}

    def _maximized(self, now: Parameters) -> tuple[Parameters, Bool[Tensor, "R K"]]:
        problem, counts, sums = self.problem, with_prefix(now, COUNTS), with_prefix(now, SUMS)
        moved = problem.dynamics.maximize_counts(counts, problem.prior, self.tables, problem.fixed)
        best = problem.emission.maximize_parts_sums(sums, self.tables, problem.prior, self._floor)
        values = problem.admitted(moved | best.values)
        return values, collapsed_at(problem, values, self._floor)

    def _occupancy(self, now: Parameters) -> Float[Tensor, "R K"]:
        return now["occupancy"]

    def _evidence(self, now: Parameters) -> Float[Tensor, "R"]:
        return now["evidence"]

    def _some(self, now: Parameters, restarts: Tensor) -> Parameters:
        return {name: table[restarts] for name, table in now.items()}


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
