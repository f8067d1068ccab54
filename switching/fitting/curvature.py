r"""Standard errors and draws at a maximum, from the curvature of the objective.

Let y be free coordinates of the parameters, and $\ell(y)$ the log-likelihood plus the log prior, if there is one. With
the observed information $H = -\nabla^2 \ell(\hat y)$ a number $g(y)$ has, to first order, the variance

$$\nabla g^\top H^{-1}\, \nabla g$$

(the delta method; Efron & Hinkley 1978). H is computed from differences of exact gradients over steps of a
hundredth of a standard error, all in one batch, like restarts. There is no standard error if the maximum lies on the
boundary of a parameter's range, which is infinitely far away in free coordinates. There is none along a direction in
which $\ell$ is flat, such as the parameters of a state without steps.

Draws are of the normal $N(\hat y, H^{-1})$, mapped back to the parameters (Laplace's approximation). Probabilities at
0 or 1, or so near that the objective has its limit there, stay as they are in all draws. There are no draws if some
other free number has no standard error, or if the point is not a maximum: a normal would then claim too much.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import constraints

from ...inference.numerics.randomness import Seed, generator_of
from ..definite import free_coordinates
from ..entries import Entries, of_free
from ..parameters import Parameter, Parameters, described, is_simplex, places
from .density import IMPOSSIBLE

FIRST, SHARE, WIDEST = (
    1e-3,
    1e-2,
    0.05,
)  # steps: the first, then in standard errors, and the largest for bounded parameters
ROUNDS = 2  # that estimate the standard errors, the unit of the steps
AT_BOUNDARY = 0.5  # Newton step of a logarithm or log odds, beyond which it diverges to infinity
VAGUE = 10.0  # standard error of a logarithm or log odds, from which on the data say nothing of it
FLAT = 1e-7  # eigenvalue of the information, scaled to a diagonal of 1
GAIN = 0.1  # nats above the point from which on it is no maximum
NEAR = 1e-3  # distance of a probability from 0 or 1, below which it may have its maximum there
LEANS = 1e-3  # share of a number's gradient along flat directions, above which the number has no standard error


def errors_of(factors: Parameters) -> Parameters:
    """The standard errors of numbers with these factors."""
    return {name: table.norm(dim=-1) for name, table in factors.items()}


@dataclass(frozen=True)
class Curvature:
    """The normal of the curvature at a point, in free coordinates.

    Attributes:
        coordinates: about the point.
        spread: `[P, P]`, a factor of the covariance of the coordinates, without the flat directions.
        blind: `[P, D]`, directions of the scaled coordinates along which there is no standard error.
        scale: `[P]`, the unit of the scaled coordinates.
        at_end: `[P]`, the coordinates of probabilities at the boundary.
        gain: the nats that the quadratic form of the objective rises above the point.
        back: from the parameters of the coordinates to those whose numbers have errors.
    """

    coordinates: "Coordinates"
    spread: Float[Tensor, "P P"]
    blind: Float[Tensor, "P D"]
    scale: Float[Tensor, "P"]
    at_end: Bool[Tensor, "P"]
    gain: float
    back: Callable[[Parameters], Parameters]

    @staticmethod
    def of(
        objective: Callable[[Parameters], Float[Tensor, "r"]],
        turns: Callable[[Parameters], Iterator[Parameters]],
        known: Mapping[str, Parameter],
        values: Parameters,
        unit: Float[Tensor, "F"],
        free: Mapping[str, Bool[Tensor, "..."]] | None = None,
        back: Callable[[Parameters], Parameters] = dict,
    ) -> "Curvature":
        """The curvature of a function at its maximum.

        Arguments:
            objective: the function of parameters `[r, ...]` that was maximised.
            turns: splits parameters `[n, ...]` into parts for one evaluation.
            known: the axes and supports of the parameters, by name.
            values: the parameters at the maximum.
            unit: the spread of each feature of the data, the unit of the first steps.
            free: which entries of the parameters are free; None: all.
            back: from these parameters to those whose numbers have errors.
        """
        coordinates = Coordinates.of(known, values, unit, free or {})
        information, slope = _information(_gradient(objective, turns, coordinates), coordinates)
        information = torch.where(information.isfinite(), information, 0.0)  # a step leads outside: no standard error
        curvature = information.diagonal()
        lost = coordinates.bounded & ((slope.abs() > AT_BOUNDARY * curvature) | (curvature < VAGUE**-2))
        lost = lost | (curvature <= 0)
        scale = torch.where(lost, 1.0, curvature).rsqrt()
        scaled = scale.unsqueeze(-1) * information * scale
        both = ~lost.unsqueeze(-1) & ~lost
        scaled = torch.where(both, scaled, torch.diag(lost.to(scaled)))
        level, axes = torch.linalg.eigh(scaled)
        flat = level < FLAT
        spread = axes * torch.where(flat, 0.0, level.clamp_min(FLAT)).rsqrt().masked_fill(flat, 0.0)
        vague = lost | coordinates.bounded & (scale * spread.norm(dim=-1) > VAGUE)
        blind = torch.cat([axes[:, flat], torch.eye(len(lost)).to(axes)[:, vague]], -1)
        gain = float((spread.mT @ (scale * slope)).square().sum() / 2)
        at_end = lost & coordinates.near & (slope.abs() < GAIN)  # which is what is gained on the way to the boundary
        return Curvature(coordinates, spread, blind, scale, at_end, gain, back)

    def error_factors(self) -> Parameters:
        r"""The error of each number in its displayed form, as a row $r$ of numbers: its variance is $r^\top r$, and
        the covariance of two numbers that of their rows. NaN where a number has no standard error; none if no number
        can move."""
        factors: Parameters = {}
        if not len(self.scale):
            return factors
        for name, table in self.coordinates.jacobian(self.back).items():
            rows = table * self.scale
            length = rows.norm(dim=-1)
            leans = (rows @ self.blind).norm(dim=-1) > LEANS * length
            factors[name] = torch.where((leans | (length == 0)).unsqueeze(-1), torch.nan, rows @ self.spread)
        return factors

    def sample(self, n: int, seed: Seed = 0) -> Parameters | None:
        """Draws `[n, ...]` of the parameters from the normal, with the same probabilities at the boundary in all; None
        if some other coordinate has no standard error, or if the point is not a maximum.

        Arguments:
            n: the number of draws.
            seed: a number, a `torch.Generator`, or None, torch's global generator.
        """
        if bool((self.blind[~self.at_end] != 0).any()) or not self.gain < GAIN:
            return None
        generator, device = generator_of(seed, self.scale.device), self.scale.device
        normal = torch.randn(n, len(self.scale), generator=generator, dtype=self.scale.dtype, device=device)
        steps = (normal @ self.spread.mT * self.scale).masked_fill(self.at_end, 0.0)
        return self.back(self.coordinates.values(steps))


def _gradient(
    objective: Callable[[Parameters], Float[Tensor, "r"]],
    turns: Callable[[Parameters], Iterator[Parameters]],
    coordinates: "Coordinates",
) -> Callable[[Tensor], Tensor]:
    """The gradient at points `[n, P]`; NaN at one that is outside the range of the parameters, as of a joint
    boundary."""

    def gradient(points: Tensor) -> Tensor:
        try:
            return inside(points)
        except IMPOSSIBLE:
            if len(points) <= 1:  # none, if no parameter can move
                return torch.full_like(points, torch.nan)
            return torch.cat([gradient(half) for half in points.tensor_split(2)])

    def inside(points: Tensor) -> Tensor:
        gradients = []
        for some in turns({"y": points}):
            y = some["y"].detach().requires_grad_()
            with torch.enable_grad():
                gradients += torch.autograd.grad(objective(coordinates.values(y)).sum(), y)
        return torch.cat(gradients)

    return gradient


@dataclass(frozen=True)
class Coordinates:
    """Free coordinates about a point: steps from it, in logarithms, log odds and the like for bounded ranges.

    Attributes:
        known, at: the parameters, and the point.
        free: by name, which entries are not held; a missing name: all.
        moving: by name, which entries of a table have a coordinate. For other supports than the usual ones, they are
            entries of torch's free coordinates.
        bounded: `[P]`, whether the range of a coordinate's number is bounded.
        near: `[P]`, whether it is that of a probability near 0 or 1.
        first: `[P]`, a small step.
    """

    known: Mapping[str, Parameter]
    at: Parameters
    free: Mapping[str, Bool[Tensor, "..."]]
    moving: dict[str, Bool[Tensor, "..."]]
    bounded: Bool[Tensor, "P"]
    near: Bool[Tensor, "P"]
    first: Float[Tensor, "P"]

    @staticmethod
    def of(
        known: Mapping[str, Parameter],
        values: Parameters,
        unit: Float[Tensor, "F"],
        free: Mapping[str, Bool[Tensor, "..."]],
    ) -> "Coordinates":
        moving = {name: _moving(known[name].support, value, free.get(name)) for name, value in values.items()}
        bounded, near, first = [], [], []
        for name, mask in moving.items():
            real, dims = of_free(known[name].support) is constraints.real, known[name].dims
            size = unit.new_ones(())
            if real and "feature" in dims:
                size = unit.reshape(-1, *[1] * (len(dims) - 1 - dims.index("feature")))
            first.append((FIRST * size).expand(mask.shape)[mask])
            bounded.append(torch.full_like(first[-1], not real, dtype=torch.bool))
            near.append(_near(known[name].support, values[name], mask)[mask])
        return Coordinates(known, values, free, moving, torch.cat(bounded), torch.cat(near), torch.cat(first))

    def values(self, steps: Float[Tensor, "*r P"]) -> Parameters:
        """The parameters after these steps from the point."""
        sizes = [int(mask.sum()) for mask in self.moving.values()]
        values = {}
        for (name, mask), part in zip(self.moving.items(), steps.split(sizes, -1), strict=True):
            table = part.new_zeros(*part.shape[:-1], mask.numel())
            table[..., mask.flatten()] = part
            step = table.reshape((*part.shape[:-1], *mask.shape))
            values[name] = _stepped(self.known[name].support, self.at[name], step, self.free.get(name))
        return values

    def jacobian(self, back: Callable[[Parameters], Parameters]) -> dict[str, Float[Tensor, "... P"]]:
        """The derivative of each number in its displayed form, after another map."""
        zero = torch.zeros_like(self.first)
        shown = {name: parameter.shown.name if parameter.shown else name for name, parameter in self.known.items()}
        return {
            shown[name]: torch.autograd.functional.jacobian(  # pyright: ignore[reportReturnType]
                lambda y, name=name: described(self.known, {name: back(self.values(y))[name]})[shown[name]], zero
            )
            for name in self.at
        }


def _moving(support: constraints.Constraint, value: Tensor, free: Tensor | None) -> Tensor:
    """Which entries of a table, or of its free coordinates, can move."""
    if support.event_dim and not isinstance(support, Entries) and not is_simplex(support):
        if free is None:
            return torch.ones_like(cast(Tensor, free_coordinates(support).inv(value)), dtype=torch.bool)
        rows, columns = torch.tril_indices(*free.shape[-2:], device=free.device)  # free in whole groups of rows
        return free[..., rows, columns]
    free = torch.ones_like(value, dtype=torch.bool) if free is None else free
    ends = (0.0, torch.inf) if is_simplex(support) else _ends(of_free(support))
    return places(support, free if ends is None else free & (value > ends[0]) & (value < ends[1]), value)


def _near(support: constraints.Constraint, value: Tensor, moving: Tensor) -> Tensor:
    """Which entries of a table are probabilities near 0 or 1."""
    if is_simplex(support):
        return value < NEAR
    if _ends(of_free(support)) == (0.0, 1.0):
        return (value < NEAR) | (value > 1 - NEAR)
    return torch.zeros_like(moving)


def _stepped(support: constraints.Constraint, value: Tensor, step: Tensor, free: Tensor | None = None) -> Tensor:
    """A parameter after a step of its coordinates; the step is 0 at entries that do not move. Free probabilities of a
    row keep their sum."""
    if is_simplex(support):
        constant = value == 0 if free is None else (value == 0) | ~free
        part = torch.where(constant, 0.0, value)
        raised = part * step.exp()
        share = raised / raised.sum(-1, keepdim=True).clamp_min(torch.finfo(value.dtype).tiny)
        return torch.where(constant, value, part.sum(-1, keepdim=True) * share)
    transform, ends = free_coordinates(of_free(support)), _ends(of_free(support))
    moved = cast(Tensor, transform(cast(Tensor, transform.inv(value)) + step))
    return moved if ends is None else torch.where((value > ends[0]) & (value < ends[1]), moved, value)


def _ends(support: constraints.Constraint) -> tuple[float, float] | None:
    """The range of a support of single numbers with a lower bound; None for other supports."""
    low = getattr(support, "lower_bound", None)
    if support.event_dim or not isinstance(low, int | float):
        return None
    high = getattr(support, "upper_bound", torch.inf)
    return float(low), float(high)


def _information(
    gradient: Callable[[Tensor], Tensor], free: Coordinates
) -> tuple[Float[Tensor, "P P"], Float[Tensor, "P"]]:
    """Minus the second derivatives at the point, and the slope there."""
    steps = free.first
    slope = gradient(torch.zeros_like(steps).unsqueeze(0))[0]
    for _ in range(ROUNDS):
        curvature = _differences(gradient, steps, ((1.0, 0.5),)).diagonal()
        wanted = SHARE * torch.where(curvature > 0, curvature, torch.nan).rsqrt()
        wanted = torch.where(wanted.isfinite(), wanted, steps)
        steps = torch.where(free.bounded, wanted.clamp_max(WIDEST), wanted)
    information = _differences(gradient, steps, ((1.0, 2 / 3), (2.0, -1 / 12)))
    return (information + information.mT) / 2, slope


def _differences(
    gradient: Callable[[Tensor], Tensor], steps: Float[Tensor, "P"], weights: tuple[tuple[float, float], ...]
) -> Float[Tensor, "P P"]:
    """Minus central differences of the gradient; `weights` has pairs of a number of steps and a weight."""
    n, moves = len(steps), torch.diag(steps)
    points = torch.cat([sign * times * moves for times, _ in weights for sign in (1, -1)])
    gradients = gradient(points).unflatten(0, (len(weights), 2, n))
    total = sum(weight * (ends[0] - ends[1]) for (_, weight), ends in zip(weights, gradients, strict=True))
    return -cast(Tensor, total) / steps.unsqueeze(-1)
