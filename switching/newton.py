"""Newton's method from many starts at once, for functions of which many values cost little more than one."""

from collections.abc import Callable
from typing import Protocol, cast

import torch
from jaxtyping import Float
from torch import Tensor

from .ascent import Ascent, Climbable, Peak

RADIUS = 0.5  # the longest step of Newton's method along an axis of the curvature
FAR = 2.0  # the same for functions whose steps are halved until they rise
DIFFERENCE = 1e-5  # of coordinates, for the curvature
LEAST = 1e-6  # the least curvature
LENGTHS = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.03)  # of steps that are compared
SHORTER = 2e-3  # the factor of the lengths that are compared next, if the function rises at none
TRIES = 4


class Curved(Climbable, Protocol):
    """A function whose second derivatives cost little."""

    def at(self, flat: Float[Tensor, "R P"]) -> Float[Tensor, "R"]:
        """Its values at many points; -inf where the data are impossible."""
        ...

    def curved(
        self, flat: Float[Tensor, "R P"]
    ) -> tuple[Float[Tensor, "R"], Float[Tensor, "R P"], Float[Tensor, "R P P"]]:
        """Its values, gradients and Hessians at many points; -inf and 0 where the data are impossible."""
        ...


class NewtonAscent(Ascent):
    """A batch of restarts by Newton's method.

    An axis of positive curvature counts with its absolute value, so steps lead away from saddles. The best of several
    lengths is taken. The highest restart that rests at a peak makes the peak a known one.
    """

    known: Peak
    inverse: Tensor
    slopes: Tensor
    stuck: Tensor
    point: Tensor

    stride = 4

    def _begin(self) -> None:
        self.heights, self.slopes, curvature = cast(Curved, self.density).curved(self.point)
        self.inverse = capped_inverse(curvature, self.slopes)

    def _advance(self, move: Tensor, promised: Tensor, going: Tensor) -> None:
        density, before, point = cast(Curved, self.density), self.height(), self.point.clone()
        lengths, left, moved = move.new_tensor(LENGTHS).unsqueeze(-1), going, going[:0]
        for _ in range(TRIES):
            tried = self.point[left].unsqueeze(1) + lengths * move[left].unsqueeze(1)
            heights, best = density.at(tried.flatten(0, 1)).unflatten(0, tried.shape[:2]).max(1)
            risen = heights > before[left]
            point[left[risen]] = tried[risen, best[risen]]
            moved, left, lengths = torch.cat([moved, left[risen]]), left[~risen], lengths * SHORTER
            if not len(left):
                break
        self.stuck = self.stuck.index_fill(0, left, True)
        if not len(moved):
            return
        heights, slopes, curvature = density.curved(point[moved])
        self.point, self.heights = point, before.index_copy(0, moved, heights)
        self.slopes = self.slopes.index_copy(0, moved, slopes)
        self.inverse = self.inverse.index_copy(0, moved, capped_inverse(curvature, slopes))
        self._remember_peak(moved, curvature)

    def _remember_peak(self, moved: Tensor, curvature: Float[Tensor, "n P P"]) -> None:
        """Make the highest peak at which one of these restarts rests the known one, if it is higher."""
        heights, slopes = self.height()[moved], self.slopes[moved].unsqueeze(-1)
        promised = (slopes.mT @ self.inverse[moved] @ slopes).flatten()
        heights = torch.where(promised <= self.tol, heights, -torch.inf)
        best = int(heights.argmax())
        if float(heights[best]) <= (-torch.inf if self.known is None else float(self.known.height)):
            return
        if bool((torch.linalg.eigvalsh(curvature[best]) < 0).all()):
            self.known = Peak(self.point[moved[best]], heights[best], -curvature[best])


def uphill(
    function: Callable[[Float[Tensor, "*n P"]], Float[Tensor, "*n"]], flat: Float[Tensor, "*r P"]
) -> tuple[Float[Tensor, "*r P"], Float[Tensor, "*r"]]:
    """The steps of Newton's method for functions of which values at many points cost little more than one, and the
    gains that their slopes promise. The curvature is that of central differences of slopes."""
    n = flat.shape[-1]
    moves = DIFFERENCE * torch.eye(n, dtype=flat.dtype, device=flat.device).reshape(n, *[1] * (flat.ndim - 1), n)
    with torch.enable_grad():
        points = (flat.detach() + torch.cat([torch.zeros_like(moves[:1]), moves, -moves])).requires_grad_()
        (slopes,) = torch.autograd.grad(function(points).sum(), points)
    curvature = (slopes[1 : n + 1] - slopes[n + 1 :]).movedim(0, -1) / (2 * DIFFERENCE)
    there = curvature.isfinite().all(-1).all(-1, keepdim=True) & slopes[0].isfinite().all(-1, keepdim=True)
    curvature = torch.where(there.unsqueeze(-1), (curvature + curvature.mT) / 2, 0.0)
    slope = torch.where(there, slopes[0], 0.0)
    step = (capped_inverse(curvature, slope, FAR) @ slope.unsqueeze(-1)).squeeze(-1)
    return step, (step * slope).sum(-1)


def capped_inverse(
    curvature: Float[Tensor, "*r P P"], slopes: Float[Tensor, "*r P"], radius: float = RADIUS
) -> Float[Tensor, "*r P P"]:
    """The inverse of minus the curvature with the absolute values of its eigenvalues.

    They are raised so far that no step along an axis is longer than `radius`.
    """
    values, axes = torch.linalg.eigh(curvature)
    along = (axes.mT @ slopes.unsqueeze(-1)).squeeze(-1)
    size = values.abs().maximum(along.abs() / radius).clamp_min(LEAST)
    return axes / size.unsqueeze(-2) @ axes.mT
