"""The mode of a structure's parameters, or the maximum of their likelihood, from starts on many scales."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ..fitting.options import Options
from ..fitting.refinement import peak
from ..fitting.search import SearchResult, multi_start
from ..fitting.units import Units
from ..parameters import Parameters
from .ascent import Ascent
from .coordinates import LinearDensity
from .problem import LinearProblem, typical

LEAST, MOST = 1e-3, 1.0  # standard deviations of starts, in units of the data
NOTHING = 1e-3  # standard deviation that may as well be 0
COST = 1e-9  # nats that this may cost
SMALL = 1e-4  # standard deviation below which a likelihood that still rises has no maximum


def maximum(
    problem: LinearProblem, units: Units, options: Options, own: Parameters | None
) -> tuple[Parameters, SearchResult]:
    """Parameters where the objective is greatest, and how they were reached; `own` is the user's own first guess."""
    inner = problem.in_units(units)
    device = inner.series.observations.device
    near = {name: value.to(device) for name, value in (typical(inner.dynamics, inner.emission) | inner.fixed).items()}
    inner.objective(near)  # which says what is wrong with x
    density = LinearDensity(inner, units, near, volume=False)
    check_noise(density)
    starts = scattered(density, options)
    kinds = ["scattered"] * len(starts)
    if own is not None:
        starts[0], kinds[0] = density.coordinates.of(units.values(own)), "own"
    shift = float(problem.objective(density.values({"y": density.point})) - inner.objective(near))
    with multi_start(options, problem.series, shift) as search:
        search.run(Ascent(density, starts), kinds, options.n_kept)
        best = search.best
        if not search.interrupted:
            best.tables["y"] = polished(density, best.tables["y"])
            best.trace[-1] = max(best.trace[-1], float(density.at(best.tables["y"][None])))
    return density.values(best.tables), search.result().raised(shift)


def check_noise(density: LinearDensity) -> None:
    """Raise ValueError where the likelihood grows without bound as all noise goes to 0."""
    n, fixed = len(density.variances), density.problem.fixed
    if not n or any(float(value) for name, value in fixed.items() if name.startswith("sigma2.")):
        return
    points = torch.zeros_like(density.point).repeat(2, 1)
    points[0, :n], points[1, :n] = SMALL, SMALL / 10
    heights = density.at(points)
    if float(heights[1]) > float(heights[0]):
        structure = density.problem.dynamics
        raise ValueError(
            f"x: follows {structure!r} without any noise, so that the likelihood of its variances has no maximum; give "
            "a longer series, or a structure with less freedom."
        )


def scattered(density: LinearDensity, options: Options) -> Float[Tensor, "R P"]:
    """Starts of all scales; the first is in their middle."""
    n, generator = options.n_tried, torch.Generator().manual_seed(options.number)
    n_variances = len(density.variances)
    low, high = math.log(LEAST), math.log(MOST)
    uniform = torch.rand(n, n_variances, generator=generator, dtype=torch.float64, device="cpu")
    uniform[0] = 0.75
    scales = (low + uniform * (high - low)).exp()
    rest = torch.randn(n, len(density.point) - n_variances, generator=generator, dtype=torch.float64, device="cpu") / 2
    rest[0] = 0.0
    return torch.cat([scales, rest], -1).to(density.point)


def polished(density: LinearDensity, at: Float[Tensor, "P"]) -> Float[Tensor, "P"]:
    """The peak near by, by Newton's steps; standard deviations of which only rounding is left are 0."""
    density.start = {"y": at}
    found, _, _ = peak(density)
    for i in range(len(density.variances)):
        without = found.clone()
        without[i] = 0.0
        if abs(float(found[i])) < NOTHING:
            heights = density.at(torch.stack([found, without]))
            found = without if float(heights[1]) >= float(heights[0]) - COST else found
    return found
