"""The density of a linear model whose data processes share: its value and its gradient are sums over the processes."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

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
        self.whole, self.problem = whole, replace(sample, series=units.series(whole.series))

    def log_prob(self, free: Parameters) -> Float[Tensor, "*r"]:
        """That of the sequences of this process; the first process adds the prior."""
        values, total = self.coordinates.values(free["y"]), 0.0 * free["y"].sum(-1)
        if self.whole.ranks.rank == 0:
            total = total + self.problem.log_prior(values)
        return total + self._own(self.problem, values)

    def evidence(self, problem: LinearProblem, values: Parameters) -> float:
        """log p(x) of all data, in the units of a problem: of this density, or of the user."""
        here = problem if problem is self.problem else replace(problem, series=self.whole.series)
        zero = torch.zeros((), dtype=torch.float64, device="cpu")
        return float(self.whole.ranks.summed(lambda: [zero + self._own(here, values)], [zero])[0])

    @staticmethod
    def _own(problem: LinearProblem, values: Parameters) -> Tensor | float:
        return problem.total(problem.evidence(values)) if problem.series.n_sequences else 0.0

    def at(self, flat: Float[Tensor, "R P"]) -> Float[Tensor, "R"]:
        own = super().at
        return self.whole.ranks.summed(lambda: [own(flat)], [torch.zeros_like(flat[:, 0])])[0]

    def climb(self, flat: Float[Tensor, "R P"]) -> tuple[Float[Tensor, "R"], Float[Tensor, "R P"]]:
        own, zeros = super().climb, [torch.zeros_like(flat[:, 0]), torch.zeros_like(flat)]
        heights, slopes = self.whole.ranks.summed(lambda: list(own(flat)), zeros)
        return heights, torch.where(heights.isfinite().unsqueeze(-1), slopes, 0.0)

    def gradient(self, flat: Float[Tensor, "R P"]) -> Float[Tensor, "R P"]:
        own = super().gradient
        return self.whole.ranks.summed(lambda: [own(flat)], [torch.zeros_like(flat)])[0]
