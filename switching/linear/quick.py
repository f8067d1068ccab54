"""The density of a structure for searches, which need many evaluations, with fewer digits than those of the chain."""

from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.chains.one_series.op import evidence
from ...inference.numerics.placement import constant
from ..parameters import Parameters
from .coordinates import LinearDensity
from .emission import Irregular
from .problem import LinearProblem

STEP, FORWARD, CURVED = 1e-4, 3e-5, 2e-3  # of central, forward and second differences, relative to a coordinate's size
LEAST = 1e-2  # smallest size of a standard deviation that counts, in the norm of all
REST = 0.1  # the same of other coordinates
DOUBT = 0.1  # difference in nats of the kernel and the chain, above which the kernel is wrong


class QuickDensity(LinearDensity):
    """The log joint of a structure, and its gradient by differences, from a kernel for series of one feature.

    Where no kernel serves, or if the kernel has too few digits for the inputs, values and exact gradients are those of
    `LinearDensity`.
    """

    @property
    def serves(self) -> bool:
        """Whether the kernel serves. Values at several points then take the time of one."""
        return self._quickly(self.point[None]) is not None

    def climb(self, flat: Float[Tensor, "R P"]) -> tuple[Float[Tensor, "R"], Float[Tensor, "R P"]]:
        """The log joint and its gradient by forward differences, for ascents: half the evaluations, half the digits."""
        size = FORWARD * self._sizes(flat)
        heights = self._along(flat, size.unsqueeze(1) * _signs(flat, (0.0, 1.0)))
        if heights is None:
            return super().climb(flat)
        middle, above = heights[:, 0], heights[:, 1:]
        return middle, _finite((above - middle.unsqueeze(1)) / size)

    def curved(
        self, flat: Float[Tensor, "R P"]
    ) -> tuple[Float[Tensor, "R"], Float[Tensor, "R P"], Float[Tensor, "R P P"]]:
        """The log joint, its gradient and its Hessian, by central differences of heights."""
        n, size = flat.shape[-1], CURVED * self._sizes(flat)
        rows, columns = torch.triu_indices(n, n, 1, device=flat.device)
        single = _signs(flat, (0.0, 1.0, -1.0))
        heights = self._along(flat, size.unsqueeze(1) * torch.cat([single, single[1 + rows] + single[1 + columns]]))
        if heights is None:
            return *super().climb(flat), torch.stack([super(QuickDensity, self).hessian(point) for point in flat])
        middle, above, below, both = heights.split([1, n, n, len(rows)], 1)
        table = torch.diag_embed(above + below - 2 * middle)
        table[:, rows, columns] = both - above[:, rows] - above[:, columns] + middle
        table[:, columns, rows] = table[:, rows, columns]
        table = table / (size.unsqueeze(-1) * size.unsqueeze(-2))
        fine = table.isfinite().all(-1).all(-1)[:, None, None]
        return middle[:, 0], _finite((above - below) / (2 * size)), torch.where(fine, table, 0.0)

    def hessian(self, flat: Float[Tensor, "P"]) -> Float[Tensor, "P P"]:
        """By central differences of heights."""
        return self.curved(flat[None])[2][0]

    def gradient(self, flat: Float[Tensor, "R P"]) -> Float[Tensor, "R P"]:
        """By central differences."""
        size = STEP * self._sizes(flat)
        heights = self._along(flat, size.unsqueeze(1) * _signs(flat, (1.0, -1.0)))
        if heights is None:
            return super().climb(flat)[1]
        above, below = heights.chunk(2, 1)
        return _finite((above - below) / (2 * size))

    def _sizes(self, flat: Tensor) -> Float[Tensor, "R P"]:
        sizes, n, end = torch.full_like(flat, REST), len(self.variances), flat.shape[-1] - len(self.ranges)
        sizes[:, :n] = LEAST * flat[:, :n].norm(dim=-1, keepdim=True).clamp_min(LEAST)
        sizes[:, :end] = torch.maximum(flat[:, :end].abs(), sizes[:, :end])  # the size of an angle says nothing
        return sizes

    def _along(self, flat: Tensor, moves: Float[Tensor, "R n P"]) -> Float[Tensor, "R n"] | None:
        points = flat.unsqueeze(1) + moves
        heights = self._quickly(points.flatten(0, 1))
        return None if heights is None else heights.unflatten(0, points.shape[:2])

    @torch.no_grad()
    def at(self, flat: Float[Tensor, "R P"]) -> Float[Tensor, "R"]:
        heights = self._quickly(flat)
        return super().at(flat) if heights is None else heights

    @torch.no_grad()
    def _quickly(self, flat: Float[Tensor, "R P"]) -> Float[Tensor, "R"] | None:
        """The log joint by the kernel, if it serves; -inf if the data are impossible."""
        heights = self._by_kernel(flat)
        return heights if heights is not None and self._exact_enough else None

    @cached_property
    def _exact_enough(self) -> bool:
        """Whether the kernel and the chain agree at the first point; they may not if an input is almost constant beside
        a level."""
        if not self.problem.varies:
            return True
        heights, exact = self._by_kernel(self.point[None]), super().at(self.point[None])
        return heights is None or not bool(exact.isfinite()) or float((heights - exact).abs()) <= DOUBT

    def _by_kernel(self, flat: Float[Tensor, "R P"]) -> Float[Tensor, "R"] | None:
        values = self.coordinates.values(flat)
        groups = []
        for _, part in self.problem.groups:
            groups.append(_evidence(part, values, len(flat)))
            if groups[-1] is None:
                return None
        total = torch.stack(groups).sum(0) + self.problem.log_prior(values)
        return total.nan_to_num(-torch.inf, posinf=-torch.inf, neginf=-torch.inf)


def _evidence(problem: LinearProblem, values: Parameters, n: int) -> Float[Tensor, "R"] | None:
    """log p(x) of all sequences under n parameters by the kernel, if it serves."""
    assert isinstance(problem.emission, Irregular)
    x = problem.series.observations
    moves, sights = problem.dynamics.moves(values), problem.emission.sights(values, problem.series.drive.inputs)
    emission, unit = _in_like_units(sights.emission, list(problem.emission.structure.driven))
    size = moves.transition.shape[-1]
    assert moves.initial_covariance is not None
    arguments = (
        x.reshape(-1, x.shape[-2]),
        moves.transition.expand(n, size, size),
        (moves.state_noise.diagonal(dim1=-2, dim2=-1) * unit.square()).expand(n, size),
        emission.reshape(-1, x.shape[-2] if problem.varies else 1, size),
        sights.observation_noise.reshape(-1).expand(n),
        moves.initial_covariance.expand(n, size, size),
        constant(tuple(problem.dynamics.diffuse), torch.bool, x.device),
    )
    kernel = evidence.serving(*arguments)
    return None if kernel is None else (kernel(*arguments) - unit.log().sum()).sum(-1)


def _signs(flat: Tensor, kinds: tuple[float, ...]) -> Float[Tensor, "n P"]:
    """Moves along each coordinate with these signs; one of sign 0 stands for all."""
    unit = torch.eye(flat.shape[-1], dtype=flat.dtype, device=flat.device)
    return torch.cat([sign * unit if sign else torch.zeros_like(unit[:1]) for sign in kinds])


def _finite(slope: Tensor) -> Tensor:
    """Slopes, 0 where some is none."""
    return torch.where(slope.isfinite().all(-1, keepdim=True), slope, 0.0)


def _in_like_units(emission: Tensor, driven: list[int]) -> tuple[Tensor, Float[Tensor, "L"]]:
    """The emission of coefficients in units in which all inputs are at most 1, and these units.

    Beside much larger inputs the kernel would not see that an observation determines a diffuse coefficient.
    """
    unit = torch.ones_like(emission.reshape(-1, emission.shape[-1])[0])
    if not driven:
        return emission, unit
    largest = emission.flatten(0, -2).abs().amax(0)
    unit[driven] = torch.where(largest > 0, largest, 1.0)[driven]
    return emission / unit, unit
