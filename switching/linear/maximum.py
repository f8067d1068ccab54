"""The mode of a structure's parameters, or the maximum of their likelihood, from starts on many scales."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ..ascent import Ascent
from ..fitting.options import Options
from ..fitting.refinement import peak
from ..fitting.search import SearchResult, multi_start
from ..fitting.units import Units
from ..parameters import Parameters
from .coordinates import LinearDensity
from .problem import LinearProblem, typical

LEAST, MOST = 1e-3, 1.0  # standard deviations of starts, in units of the data
NOTHING = 1e-3  # standard deviation below which 0 is tried
COST = 1e-9  # largest loss in nats by a 0
SMALL = 1e-4  # standard deviation below which a rising likelihood has no maximum


def maximum(
    problem: LinearProblem, units: Units, options: Options, user_start: Parameters | None
) -> tuple[Parameters, SearchResult]:
    """The parameters with the greatest objective, and the search for them."""
    inner = problem.in_units(units)
    device = inner.series.observations.device
    near = {name: value.to(device) for name, value in (typical(inner.dynamics, inner.emission) | inner.fixed).items()}
    inner.objective(near)  # raises an error if x does not fit
    density = LinearDensity(inner, units, near, volume=False)
    check_noise(density)
    starts = scattered(density, options)
    kinds = ["scattered"] * len(starts)
    if user_start is not None:
        starts[0], kinds[0] = density.coordinates.of(units.values(user_start)), "own"
    shift = float(problem.objective(density.values({"y": density.point})) - inner.objective(near))
    with multi_start(options, problem.series, shift) as search:
        search.run(Ascent(density, starts), kinds, options.n_kept)
        best = search.best
        if not search.interrupted:
            best.tables["y"] = polished(density, best.tables["y"])
            best.trace[-1] = max(best.trace[-1], float(density.at(best.tables["y"][None])))
    return density.values(best.tables), search.result().raised(shift)


def check_noise(density: LinearDensity) -> None:
    """Raise ValueError if the likelihood grows without bound as all noise goes to 0."""
    n, fixed = len(density.variances), density.problem.fixed
    if not n or any(float(value) for name, value in fixed.items() if name.startswith("sigma2.")):
        return
    points = density.point.repeat(2, 1)
    points[0, :n], points[1, :n] = SMALL, SMALL / 10
    heights = density.at(points)
    if float(heights[1]) > float(heights[0]):
        structure = density.problem.dynamics
        raise ValueError(
            f"x: follows {structure!r} without any noise, so the likelihood of its variances has no maximum; give a "
            "longer series, or a structure with fewer components."
        )


def scattered(density: LinearDensity, options: Options) -> Float[Tensor, "R P"]:
    """Starts of all scales; the first is in the middle."""
    n, generator = options.n_tried, torch.Generator().manual_seed(options.number)
    n_variances = len(density.variances)
    low, high = math.log(LEAST), math.log(MOST)
    uniform = torch.rand(n, n_variances, generator=generator, dtype=torch.float64, device="cpu")
    uniform[0] = 0.75
    scales = (low + uniform * (high - low)).exp()
    rest = torch.randn(n, len(density.point) - n_variances, generator=generator, dtype=torch.float64, device="cpu") / 2
    rest[0] = 0.0
    n_ranges = len(density.ranges)
    rest[:, rest.shape[-1] - n_ranges :] = math.pi * torch.rand(
        n, n_ranges, generator=generator, dtype=torch.float64, device="cpu"
    )
    return torch.cat([scales, rest], -1).to(density.point)


def polished(density: LinearDensity, at: Float[Tensor, "P"]) -> Float[Tensor, "P"]:
    """The nearby peak, by Newton's method; standard deviations that are 0 up to rounding become 0."""
    density.start = {"y": at}
    point, _, _ = peak(density)
    for i in range(len(density.variances)):
        without = point.clone()
        without[i] = 0.0
        if abs(float(point[i])) < NOTHING:
            heights = density.at(torch.stack([point, without]))
            point = without if float(heights[1]) >= float(heights[0]) - COST else point
    return point
