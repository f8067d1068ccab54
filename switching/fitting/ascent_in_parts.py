"""The maximum that EM seeks, by quasi-Newton steps over data that are read in parts, or shared by processes.

It serves models whose M-step needs more than sums over the data: Student's t, emissions and dynamics with inputs or
gaps between steps, parameters that are known in part, and others. The log evidence and its gradient are sums over the
parts for every model (see `chains_in_parts`), so a step of BFGS takes about one pass. There is no Jacobian in the
objective, which is that of EM.
"""

import sys

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..ascent import Ascent
from ..known import FreeCoordinates, joined, whole_parameters
from ..parameters import Parameters
from ..problem import Problem
from .chains_in_parts import ChainPiece, log_evidence, summed
from .density import FreeDensity
from .em import collapsed_at, occupancy_of
from .starts import opened, variance_floor
from .whole import Whole

ROUNDING = 1e-6  # of a variance that is at the floor


class LogPosterior(FreeDensity):
    """log p(x | parameters) of all data, plus log p(parameters) if there is a prior, in free coordinates.

    Arguments:
        near: parameters at which it is defined.
    """

    def __init__(self, problem: Problem, whole: Whole, near: Parameters) -> None:
        self._problem, self._data, self._floor = problem, whole, variance_floor(problem.series)
        supports = {name: parameter.support for name, parameter in problem.parameters.items()}
        first = {name: table[0] for name, table in near.items()}
        self.coordinates = FreeCoordinates(supports, first, whole_parameters(problem.fixed))
        self.start = self.coordinates.start
        # EM leaves narrow states at the floor, and known ones may be below it
        self._least = (1 - ROUNDING) * self._floor.minimum(self.narrowness(near).amin(0))

    def values(self, free: Parameters) -> Parameters:
        return self.coordinates.values(free)

    def log_prob(self, free: Parameters) -> Float[Tensor, "*r"]:
        values = self.values(free)
        height = log_evidence(self._problem, self._data, values) + self._problem.log_prior(values)
        if self._problem.prior is not None:
            return height
        return height.where((self.narrowness(values) >= self._least).all(-1).all(-1), -torch.inf)

    def narrowness(self, values: Parameters) -> Float[Tensor, "*r K F"]:
        """See `Emission.narrowness`."""
        parts = [part for part in self._problem.emission.parts if not part.alike]
        return torch.stack([part.emission.narrowness(part.own(values)) for part in parts]).amin(0)

    def collapsed(self, values: Parameters) -> Bool[Tensor, "*r K"]:
        """See `Emission.collapsed`."""
        return collapsed_at(self._problem, values, self._floor)

    @property
    def at_once(self) -> int:
        return sys.maxsize  # parts of the data are smaller for more points


class AscentInParts(Ascent):
    """A batch of restarts that ascend by BFGS, with parameters `[R, ...]` as tables; see `fitting.search.Optimizer`.

    Arguments:
        problem: that of a sample of the data, in the units of the fit.
        whole: all data, in the same units.
        rest: see `tol` of `Ascent`.
    """

    def __init__(self, problem: Problem, whole: Whole, values: Parameters, rest: float = 0.0) -> None:
        self._problem, self._whole = problem.double(), whole.double()
        values = opened(self._problem, {name: table.double() for name, table in values.items()})
        self._posterior = LogPosterior(self._problem, self._whole, values)
        super().__init__(self._posterior, self._point(values), rest)

    def _point(self, values: Parameters) -> Float[Tensor, "R P"]:
        return joined(self._posterior.coordinates.of(values), self._posterior.start)

    @property
    def tables(self) -> Parameters:
        return self._posterior.values(self._posterior.by_name(self.point))

    @property
    def collapsed(self) -> Bool[Tensor, "R K"]:
        return self._posterior.collapsed(self.tables)

    def counted(self) -> Float[Tensor, "R K"]:
        """See `EM.counted`."""
        zero = torch.zeros(len(self.point), self._problem.n_states, dtype=torch.float64, device=self.point.device)

        def steps(piece: ChainPiece[Problem]) -> list[Tensor]:
            return [occupancy_of(piece.marginals())]

        with torch.no_grad():
            return summed(self._problem, self._whole, self.tables, steps, [zero])[0]

    def at(self, tables: Parameters) -> "AscentInParts":
        return self._from(self._point(tables))
