"""The density of a linear model's data that are in a file, or that processes share: its value and its gradient are sums
over parts of the file, and over the processes."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..ascent import Differentiable
from ..data.packed import consecutive
from ..fitting import chunked
from ..fitting.units import Units
from ..fitting.whole import Piece, Whole
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
        self._prior = Differentiable(lambda flat: sample.log_prior(self.coordinates.values(flat)) + 0.0 * flat.sum(-1))

    def _summed(
        self, whole: Whole, problem: LinearProblem, compute: Callable[[LinearDensity], list[Tensor]], like: list[Tensor]
    ) -> list[Tensor]:
        """The sums of what the densities of the evidence of all parts give."""

        def density(piece: Piece) -> LinearDensity:
            part = copy(self)
            part.problem = replace(problem, series=piece.series, prior=None)
            return part

        groups = consecutive(whole.lengths, max(1, chunked.max_numbers(whole.like) // problem.n_states))
        zeros = [torch.zeros_like(table) for table in like]
        return whole.summed(lambda: whole.of_pieces(groups, density, compute), zeros)

    def _of_all(self, compute: Callable[[LinearDensity], list[Tensor]], like: list[Tensor]) -> list[Tensor]:
        """`_summed` in the units of the coordinates."""
        return self._summed(replace(self.whole, units=self.units), self.problem, compute, like)

    def evidence(self, problem: LinearProblem, values: Parameters) -> float:
        """log p(x) of all data, in the units of a problem: of this density, or of the user."""
        units = self.units if problem is self.problem else None

        def of_part(part: LinearDensity) -> list[Tensor]:
            return [part.problem.total(part.problem.evidence(values)).reshape(())]

        zero = self.point.new_zeros(())
        return float(self._summed(replace(self.whole, units=units), problem, of_part, [zero])[0])

    def at(self, flat: Float[Tensor, "R P"]) -> Float[Tensor, "R"]:
        heights = self._of_all(lambda part: [LinearDensity.at(part, flat)], [flat[:, 0]])[0]
        return heights + self._prior.climb(flat)[0]

    def climb(self, flat: Float[Tensor, "R P"]) -> tuple[Float[Tensor, "R"], Float[Tensor, "R P"]]:
        heights, slopes = self._of_all(lambda part: list(LinearDensity.climb(part, flat)), [flat[:, 0], flat])
        height, slope = self._prior.climb(flat)
        heights = heights + height
        return heights, torch.where(heights.isfinite().unsqueeze(-1), slopes + slope, 0.0)

    def gradient(self, flat: Float[Tensor, "R P"]) -> Float[Tensor, "R P"]:
        gradient = self._of_all(lambda part: [LinearDensity.gradient(part, flat)], [flat])[0]
        return gradient + self._prior.climb(flat)[1]
