"""The mode of a structure's parameters, or the maximum of their likelihood, from one start of each kind of solution."""

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..ascent import Ascent, Peak
from ..emissions.spread import varying
from ..fitting.climbs import Climb, SearchResult
from ..fitting.options import Options
from ..fitting.progress import reported
from ..fitting.refinement import peak
from ..fitting.search import ROUNDS, MultiStart, continued, multi_start
from ..fitting.units import Units
from ..fitting.whole import Whole, together
from ..newton import NewtonAscent
from ..parameters import Parameters
from .coordinates import STEEPEST, LinearDensity
from .kinds import Starts, changed, grid
from .priors import prior_volume
from .problem import LinearProblem, typical
from .quick import DOUBT, QuickDensity
from .stationary import LOST, share_of_noise

LEAST, MOST = 1e-3, 1.0  # standard deviations of random starts, in units of the data
FIRST = 4  # starts of a structure that has only variances
USUAL = 8  # restarts up to which none is random
RESTS = 1e-5  # promised gain in nats at which an ascent rests; Newton's method goes on from the best end
NOTHING = 1e-3  # standard deviation below which 0 is tried
COST = 1e-9  # largest loss in nats by a 0
CLEAR = 1e-6  # share of noise in an autoregression, below which digits may be lost
SMALL = 1e-4  # standard deviation below which a rising likelihood has no maximum


def maximum(
    problem: LinearProblem, units: Units, options: Options, user_start: Parameters | None, whole: Whole | None = None
) -> tuple[Parameters, SearchResult]:
    """The parameters with the greatest objective, and the search for them.

    Arguments:
        whole: all data, if the series of the problem is a sample of them. The best ends on the sample go on with all.
    """
    inner = problem.in_units(units)
    device = inner.series.like.device
    near = {name: value.to(device) for name, value in (typical(inner.dynamics, inner.emission) | inner.fixed).items()}
    density = QuickDensity(inner, units, near, volume=False)
    shift = _shift(density, problem, near)
    everywhere = density if whole is None else LinearDensity(inner, units, near, volume=False, whole=whole)
    check_noise(everywhere)
    found, of_all = together(whole, lambda: _searched(density, problem, options, user_start, shift)), shift
    if whole is not None:
        of_all = _shift(everywhere, problem, near)
        found = _gone_on(found, everywhere, whole, options, of_all)
    check_rounding(density, found.best.tables["y"])
    return density.values(found.best.tables), found.raised(of_all, shift)


def _searched(
    density: QuickDensity, problem: LinearProblem, options: Options, user_start: Parameters | None, shift: float
) -> SearchResult:
    """The ends of one start of each kind, and of changes of the best."""
    (starts, kinds), more = first_starts(density, options)
    if user_start is not None:
        starts[-1], kinds[-1] = density.coordinates.of(density.units.values(user_start)), "own"
    with multi_start(options, problem.series, shift) as search:
        search.run(ascent(density, starts), kinds, options.n_kept)
        polished = change(search, density, options) if more and options.restarts > 1 else None
        if not search.interrupted and search.best is not polished:
            polish(density, search.best)
    return search.result()


def _gone_on(found: SearchResult, density: LinearDensity, whole: Whole, options: Options, shift: float) -> SearchResult:
    """The best ends on the sample, run on with all data."""

    def make_optimizer(tables: Parameters) -> Ascent:
        n = len(density.variances)
        sizes, others = tables["y"].tensor_split([n], -1)
        sizes = sizes.where(sizes.abs() >= LEAST, LEAST)  # the slope is 0 at 0, also if 0 is best for the sample alone
        return Ascent(density, torch.cat([sizes, others], -1), RESTS, n)

    def finish(search: MultiStart) -> None:
        if not search.interrupted:
            polish(density, search.best)

    with reported(options, shift) as report:
        return continued(
            found, lambda climb: climb.tables, make_optimizer, options, whole, report, options.n_kept, finish
        )


def mode_of_tables(
    problem: LinearProblem, units: Units, options: Options, start: Parameters, whole: Whole | None = None
) -> tuple[Parameters, SearchResult]:
    """The mode of the tables of a linear model under priors of the user, near the mode under the default prior; of all
    data, if the series of the problem is a sample of them."""
    inner, series = problem.in_units(units), problem.series if whole is None else whole
    near = units.values(start) | inner.fixed
    density = LinearDensity(inner, units, near, volume=False, whole=whole)
    values = density.values(density.start)
    height = density.evidence(problem, values) + float(problem.log_prior(values))
    shift = height - float(density.at(density.point[None])[0])
    with multi_start(replace(options, restarts=1), series, shift) as search:
        search.run(Ascent(density, density.point[None]), ["default prior"], 1)
    result = search.result()
    return density.values(result.best.tables), result.raised(shift)


def _shift(density: LinearDensity, problem: LinearProblem, near: Parameters) -> float:
    """The difference of the objective in the data's units from the density; ValueError if x does not fit."""
    height = density.evidence(problem, density.values({"y": density.point}))
    if problem.prior is None:
        return height - float(density.at(density.point[None])[0])
    inside = density.evidence(density.problem, near)
    return height - inside - float(prior_volume(problem.dynamics, problem.emission, density.units.unit))


def ascent(density: QuickDensity, starts: Float[Tensor, "R P"], known: Peak | None = None) -> Ascent:
    """Restarts by Newton's method if differences of heights cost little, otherwise by quasi-Newton steps."""
    kind = NewtonAscent if density.serves else Ascent
    return kind(density, starts, RESTS, len(density.variances), known)


def first_starts(density: LinearDensity, options: Options) -> tuple[Starts, bool]:
    """The best start of each of the best kinds, and whether there are more kinds.

    Variances alone have few maxima, so there are only `FIRST` starts then. Beyond `USUAL` restarts, others are random.
    """
    kinds = grid(density)
    starts = kinds.first(options.n_tried if density.shapes else min(FIRST, options.n_tried))
    more, n = len(kinds.kinds) > len(starts.kinds), options.restarts - max(len(starts.kinds), USUAL)
    if n > 0:
        starts = Starts(
            torch.cat([starts.points, scattered(density, n, options.number)]), starts.kinds + ["random"] * n
        )
    return starts, more


def change(search: MultiStart, density: QuickDensity, options: Options) -> Climb | None:
    """Search on from changes of the best end, until none is better; returns the restart that was polished last."""
    best = None
    for _ in range(ROUNDS):
        if search.interrupted or best is search.best:
            break
        best = search.best
        known, before = polish(density, best), best.final
        starts = changed(density, best.tables["y"])
        search.run(ascent(density, starts.points, known), starts.kinds, 0, independent=False, beside=best)
        if search.best.final <= before + search.tol:
            break
    return best


def check_noise(density: LinearDensity) -> None:
    """Raise ValueError if the likelihood grows without bound as all noise goes to 0."""
    n, fixed = len(density.variances), density.problem.fixed
    if not n or any(float(value) for name, value in fixed.items() if name.startswith("sigma2.")):
        return
    points = density.point.repeat(2, 1)
    points[0, :n], points[1, :n] = SMALL, SMALL / 10
    heights = density.at(points)
    if float(heights[1]) > float(heights[0]):
        raise _without_noise(density)


def _without_noise(density: LinearDensity) -> ValueError:
    rows = density.problem.series.rows
    few = "a longer series, a structure with fewer components, or " if bool(varying(rows).any()) else ""
    follows = f"follows {density.problem.dynamics!r} without any noise" if few else "is constant"
    return ValueError(
        f"x: {follows}, so the likelihood of its variances has no maximum; give {few}a prior such as "
        "dist.InverseGamma, under which no variance is 0."
    )


def check_rounding(density: QuickDensity, point: Float[Tensor, "P"]) -> None:
    """Raise ValueError if covariances of an autoregression lose their digits at a maximum."""
    partial = point[len(density.variances) : len(point) - len(density.ranges)].tanh() * STEEPEST
    left = float(share_of_noise(partial))
    if left > CLEAR:
        return
    problem = density.problem
    bounded = any(name.startswith("sigma") for name in {*problem.emission.user_priors, *problem.fixed})
    if not bounded and not bool(varying(problem.series.rows).any()):
        raise _without_noise(density)
    heights = [float(at(point[None])[0]) for at in (density.at, super(QuickDensity, density).at)]
    if left < LOST or not abs(heights[0] - heights[1]) <= DOUBT:
        raise ValueError(
            f"x: is so smooth that the past explains the autoregression of {density.problem.dynamics!r} up to "
            "rounding, which decides the likelihood; give a lower order, such as 1, or a LocalLevel() in its place."
        )


def scattered(density: LinearDensity, n: int, seed: int) -> Float[Tensor, "n P"]:
    """Random starts of all scales."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(n, len(density.point), generator=generator, dtype=torch.float64, device="cpu")
    n_variances, n_ranges = len(density.variances), len(density.ranges)
    scales, weights, angles = uniform.split([n_variances, uniform.shape[-1] - n_variances - n_ranges, n_ranges], -1)
    low, high = math.log(LEAST), math.log(MOST)
    parts = (low + scales * (high - low)).exp(), 2 * weights - 1, math.pi * angles
    return torch.cat(parts, -1).to(density.point)


def polish(density: LinearDensity, climb: Climb) -> Peak:
    """Move a restart to the nearby peak, by Newton's method; standard deviations that are 0 up to rounding become 0."""
    density.start = {"y": climb.tables["y"]}
    point, variances, axes = peak(density)
    signs = torch.ones_like(point)
    signs[: len(density.variances)] -= 2 * (point[: len(density.variances)] < 0).to(signs)
    point, axes = point * signs, axes * signs.unsqueeze(-1)
    for i in range(len(density.variances)):
        without = point.clone()
        without[i] = 0.0
        if abs(float(point[i])) < NOTHING:
            heights = density.at(torch.stack([point, without]))
            point = without if float(heights[1]) >= float(heights[0]) - COST else point
    climb.tables["y"], height = point, density.at(point[None])[0]
    climb.trace[-1] = max(climb.trace[-1], float(height))
    return Peak(point, height, axes / variances @ axes.mT)
