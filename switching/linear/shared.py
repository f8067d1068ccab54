"""The density of a linear model's data that are in a file, or that processes share."""

import sys
from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from ..fitting.chains_in_parts import log_evidence
from ..fitting.units import Units
from ..fitting.whole import Whole
from ..parameters import Parameters
from .coordinates import LinearDensity
from .problem import LinearProblem


class SharedDensity(LinearDensity):
    """The log joint of all data, without the Jacobian of the coordinates; all processes compute it together.

    Arguments:
        sample: the problem of sequences that all processes have, in units of the data; their inputs give the units of
            the coordinates.
        whole: all data, in the user's units.
        units, near: as in `LinearDensity`.
    """

    def __init__(self, sample: LinearProblem, whole: Whole, units: Units, near: Parameters) -> None:
        super().__init__(sample, units, near, volume=False)
        self.whole = whole

    def log_prob(self, free: Parameters) -> Float[Tensor, "*r"]:
        values = self.coordinates.values(free["y"])
        return self._evidence(self.problem, values) + self.problem.log_prior(values)

    def evidence(self, problem: LinearProblem, values: Parameters) -> float:
        """log p(x) of all data, in the units of a problem: of this density, or of the user."""
        return float(self._evidence(problem, values))

    def _evidence(self, problem: LinearProblem, values: Parameters) -> Float[Tensor, "*r"]:
        units = self.units if problem is self.problem else None
        return log_evidence(problem, replace(self.whole, units=units), values)

    @property
    def at_once(self) -> int:
        return sys.maxsize  # parts of the data are smaller for more points
