r"""The log joint density of a model's parameters and a series in free coordinates, for samplers and intervals.

The paths are summed out exactly. Coordinates are those of each parameter's support (`known.FreeCoordinates`), in units
of the data's spread, so that the density does not depend on the unit of x. The density includes their Jacobian,

$$\log p(y, x) = \log p(x \mid \theta(y)) + \log p(\theta(y)) + \log |\partial \theta / \partial y|,$$

so that its peak is inside the support.
"""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.numerics.deferred import deferred
from ...inference.numerics.ranks import IMPOSSIBLE
from ..known import FreeCoordinates, joined, parted, whole_parameters
from ..parameters import Parameters
from ..problem import Problem
from .units import Units

WIDEST = 10.0  # the largest variance of a coordinate; where the density is flatter, it is not normal
STEP = 1e-4  # of differences between gradients, in coordinates in which the data have spread 1


class FreeDensity(ABC):
    """A log density in free coordinates, given by name or as one vector.

    Attributes:
        start: coordinates at which the density is defined.
    """

    start: Parameters

    @abstractmethod
    def values(self, free: Parameters) -> Parameters:
        """Parameters in the data's units at coordinates `[*r, ...]`."""

    @abstractmethod
    def log_prob(self, free: Parameters) -> Float[Tensor, "*r"]:
        """Log density at coordinates.

        Raises:
            ValueError: the data are impossible there, or rounding moved parameters out of their support.
        """

    @property
    @abstractmethod
    def at_once(self) -> int:
        """The number of points that fit into memory together."""

    def potential(self, free: Parameters) -> Tensor:
        """Minus the log density; infinite if the data are impossible. Pyro draws momenta in its dtype."""
        try:
            return -self.log_prob(free).to(next(iter(free.values())))
        except IMPOSSIBLE:
            return torch.stack([(0.0 * value).sum() for value in free.values()]).sum() + torch.inf

    # ---- all coordinates in one vector -----------------------------------------------------------------------------

    @property
    def point(self) -> Float[Tensor, "P"]:
        """The coordinates of `start`."""
        return joined(self.start, self.start)

    def by_name(self, flat: Float[Tensor, "*r P"]) -> Parameters:
        """The same coordinates by the names of their parameters."""
        return parted(flat, self.start)

    @torch.no_grad()
    def at(self, flat: Float[Tensor, "R P"]) -> Float[Tensor, "R"]:
        """Log density at many points, computed in parts; -inf if the data are impossible."""
        return torch.cat([self._at(some) for some in flat.split(self.at_once)])

    def _at(self, flat: Tensor) -> Tensor:
        try:
            return self.log_prob(self.by_name(flat)).nan_to_num(-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
        except IMPOSSIBLE:
            if len(flat) == 1:
                return flat.new_full((1,), -torch.inf)
            return torch.cat([self._at(half) for half in flat.tensor_split(2)])

    def climb(self, flat: Float[Tensor, "R P"]) -> tuple[Float[Tensor, "R"], Float[Tensor, "R P"]]:
        """The log density at many points and its gradient; -inf and 0 if the data are impossible."""
        pairs = [self._climb(some) for some in flat.split(self.at_once)]
        heights, gradients = zip(*pairs, strict=True)
        return torch.cat(heights), torch.cat(gradients)

    def _climb(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        try:
            with torch.enable_grad(), deferred():
                here = flat.detach().requires_grad_()
                height = self.log_prob(self.by_name(here))
                (gradient,) = torch.autograd.grad(height.sum(), here)
        except IMPOSSIBLE:
            if len(flat) == 1:
                return flat.new_full((1,), -torch.inf), torch.zeros_like(flat)
            halves = [self._climb(half) for half in flat.tensor_split(2)]
            return torch.cat([height for height, _ in halves]), torch.cat([gradient for _, gradient in halves])
        there = height.detach().isfinite() & gradient.isfinite().all(-1)
        return torch.where(there, height.detach(), -torch.inf), torch.where(there.unsqueeze(-1), gradient, 0.0)

    def gradient(self, flat: Float[Tensor, "R P"]) -> Float[Tensor, "R P"]:
        """The gradient of the log density at each point."""
        gradients = []
        for some in flat.split(self.at_once):
            with torch.enable_grad():
                here = some.detach().requires_grad_()
                gradients.append(torch.autograd.grad(self.log_prob(self.by_name(here)).sum(), here)[0])
        return torch.cat(gradients)

    def hessian(self, flat: Float[Tensor, "P"]) -> Float[Tensor, "P P"]:
        """The Hessian at a point, by central differences of gradients."""
        moves = STEP * torch.eye(len(flat)).to(flat)
        above, below = self.gradient(torch.cat([flat + moves, flat - moves])).chunk(2)
        table = (above - below) / (2 * STEP)
        return (table + table.mT) / 2


class Density(FreeDensity):
    """The log joint of a problem in free coordinates; fixed parameters have no coordinates.

    Arguments:
        near: parameters in the data's units at which the density is defined.

    Attributes:
        start: the coordinates of `near`, by name.
    """

    problem: Problem
    units: Units

    def __init__(self, problem: Problem, near: Parameters) -> None:
        self.problem, self.units = problem, Units.of_problem(problem)
        self._inner = self.units.problem(problem)
        near = self.units.values(near)
        self._inner.objective(near)
        supports = {site.name: site.distribution(near).support for site in self._inner.sites}
        self.coordinates = FreeCoordinates(supports, near, whole_parameters(self._inner.fixed))
        self.start = self.coordinates.start

    def values(self, free: Parameters) -> Parameters:
        return self.problem.admitted(self.units.back(self.coordinates.values(free)))

    def log_prob(self, free: Parameters) -> Float[Tensor, "*r"]:
        values = self.coordinates.values(free)
        return self._inner.objective(values) + self.coordinates.log_volume(free, values)

    def hessian(self, flat: Float[Tensor, "P"]) -> Float[Tensor, "P P"]:
        """The Hessian at a point. If all parameters are of subjects, it has a block for each, and differences move
        the same coordinate of all subjects at once."""
        known = self.problem.parameters
        if self.problem.series.subjects is None or any(known[name].dims[:1] != ("subject",) for name in self.start):
            return super().hessian(flat)
        of_subject = torch.cat(
            [torch.arange(len(v), device=flat.device).repeat_interleave(v[0].numel()) for v in self.start.values()]
        )
        place = torch.zeros_like(of_subject)  # of a coordinate among those of its subject
        for subject in range(int(of_subject.max()) + 1):
            place[of_subject == subject] = torch.arange(int((of_subject == subject).sum()), device=flat.device)
        moves = STEP * torch.nn.functional.one_hot(place).mT.to(flat)
        above, below = self.gradient(torch.cat([flat + moves, flat - moves])).chunk(2)
        table = ((above - below) / (2 * STEP))[place].mT * (of_subject[:, None] == of_subject)
        return (table + table.mT) / 2

    @property
    def at_once(self) -> int:
        return self.problem.evidences_at_once


class Whitened(FreeDensity):
    """A density in coordinates in which its curvature at a point is that of a standard normal.

    Arguments:
        centre: the coordinates of the point.
        variances, axes: of the normal with the same curvature there.
    """

    def __init__(self, inner: FreeDensity, centre: Tensor, variances: Tensor, axes: Tensor) -> None:
        self._inner, self._centre = inner, centre
        self._root = (axes * variances.clamp_max(WIDEST).sqrt()) @ axes.mT  # does not depend on the signs of the axes
        self.start = {"u": torch.zeros_like(centre)}

    def _free(self, free: Parameters) -> Parameters:
        return self._inner.by_name(self._centre + free["u"] @ self._root)

    def values(self, free: Parameters) -> Parameters:
        return self._inner.values(self._free(free))

    def log_prob(self, free: Parameters) -> Float[Tensor, "*r"]:
        return self._inner.log_prob(self._free(free))

    @property
    def at_once(self) -> int:
        return self._inner.at_once
