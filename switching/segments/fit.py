"""Fits of the hazard and of the hyperparameters: the mode of their posterior, or draws by NUTS.

The log evidence, whose gradient is exact, is maximised by quasi-Newton steps (`switching.ascent`) in free coordinates,
from several hazards and several spreads of the segments' locations. Where the hazard alone is free, the end is the
fixed point of expectation-maximisation: with the concentrations $(a, b)$ of its prior, and T steps of which N begin a
sequence, $h = (a - 1 + E[\\text{changes} \\mid x]) / (a + b - 2 + T - N)$.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.transforms import AffineTransform

from ...inference.families.peak import NEAR_FLOOR
from ...inference.numerics.quantiles import median
from ..ascent import Ascent
from ..emissions.spread import typical_square
from ..fitting.density import FreeDensity
from ..fitting.initialization import values_of_model
from ..fitting.options import Options
from ..fitting.posterior import SampledParameters
from ..fitting.result import Result, diagnostics, only_start
from ..fitting.sampling import run_nuts, sampled_diagnostics
from ..fitting.search import multi_start
from ..fitting.starts import VARIANCE_FLOOR
from ..known import FreeCoordinates, joined
from ..parameters import Parameters, check_parameters, read_tables
from .hazards import INTERCEPT, frame_of, near, of_hazard
from .hyperparameters import OF_LOCATION, above_floor, check_hazard, of_scale, sites, widened
from .problem import SegmentProblem
from .rows import has_location

LENGTHS = 30.0, 8.0  # expected steps of a segment at a start, at most half of the series
COUNTS = 1.0, 30.0  # weights of a location's prior at a start, in those of the default
RESTS = 1e-7  # promised gain in nats at which an ascent rests


class SegmentDensity(FreeDensity):
    """The objective of a problem in free coordinates, locations in units of their spread.

    Arguments:
        problem: in float64.
        center: hyperparameters of the weak prior, which give the units.
        volume: whether it is a density of the coordinates, as samplers need.
        near: parameters at which the density is defined.
    """

    problem: SegmentProblem
    volume: bool

    def __init__(self, problem: SegmentProblem, center: Parameters, near: Parameters, volume: bool) -> None:
        self.problem, self.volume = problem, volume
        rows = problem.series.rows
        rows = rows - median(rows) if has_location(problem.emission) else rows
        self.floor = VARIANCE_FLOOR * typical_square(rows)
        self.scales = [] if volume else of_scale(problem.emission)
        self.scales = [] if set(self.scales) & set(problem.fixed) else self.scales  # what is fixed stays
        supports, spreads = {}, {}
        for site in sites(problem.parameters, center, problem.hazard):
            supports[site.name] = problem.parameters[site.name].support
            if supports[site.name] is constraints.real and site.name != INTERCEPT:
                law: Any = site.distribution(center)
                spreads[site.name] = AffineTransform(law.mean, law.stddev)
        self.coordinates = FreeCoordinates(supports, near, problem.fixed, spreads)
        self.start = self.coordinates.start

    def values(self, free: Parameters) -> Parameters:
        values = self.coordinates.values(free)
        values = above_floor(self.problem.emission, values, self.floor) if self.scales else values
        return {name: values[name] for name in self.problem.parameters}

    def log_prob(self, free: Parameters) -> Float[Tensor, "*r"]:
        values = self.values(free)
        height = self.problem.objective(values)
        return height + self.coordinates.log_volume(free, values) if self.volume else height

    @property
    def at_once(self) -> int:
        return self.problem.evidences_at_once


class SegmentAscent(Ascent):
    """An ascent that finds where segments have collapsed onto single points."""

    density: SegmentDensity

    @property
    def collapsed(self) -> Bool[Tensor, "R 1"]:
        """Whether the typical variance within a segment is at its floor."""
        density = self.density
        values = density.values(density.by_name(self.point))
        raised = above_floor(density.problem.emission, values, NEAR_FLOOR * density.floor) if density.scales else values
        changed = [(raised[name] != values[name]).reshape(len(self.point), -1) for name in density.scales]
        return torch.cat([*changed, torch.zeros_like(self.stuck).unsqueeze(-1)], -1).any(-1, keepdim=True)


def fit_segments(problem: SegmentProblem, center: Parameters, known: Parameters, options: Options) -> Result:
    """Fit the parameters of a problem in float64: see `Segments.fit`.

    Arguments:
        center: the weak prior, scaled to the data.
        known: the values of the model, from which the first start begins; empty if there are none.
    """
    frame, fixed, volume = frame_of(problem.hazard, problem.series, center), problem.fixed, 0.0
    if frame is not None:
        problem, center, known = problem.in_frame(frame), frame.into(center), frame.into(known)
        volume = 0.0 if problem.prior is None else float(frame.scale.log().sum())
    first, kinds = starts(problem, center, known, options)
    density = SegmentDensity(problem, center, {name: table[0] for name, table in first.items()}, volume=False)
    with multi_start(options, problem.series) as search:
        at = joined(density.coordinates.of(first), density.start)
        search.run(SegmentAscent(density, at, RESTS), kinds, options.n_kept)
        if search.best.ended == "left behind":
            search.avoids_points = False
    cure = ", ".join(f'"{name}": ...' for name in of_scale(problem.emission))
    points = "segments on single points", f"fixed={{{cure}}} bounds it; leave out a constant feature"
    found = replace(search.result().raised(volume), points=points)
    values = density.values(density.by_name(found.best.tables["y"]))
    posterior: SampledParameters | None = None
    how = diagnostics(found)
    if options.method == "nuts":
        density = SegmentDensity(problem, center, values, volume=True)
        drawn = None if found.interrupted else draw(lambda at: problem.objective(at) + volume, density, options)
        posterior, how = (None, how | only_start("nuts", "em")) if drawn is None else drawn
        values = values if posterior is None else posterior.mean | problem.fixed
    if frame is not None:
        values = frame.inverse.into(values) | fixed
        if posterior is not None:
            posterior = replace(posterior, draws=frame.inverse.into(posterior.draws))
    nothing = torch.zeros(0, dtype=torch.bool, device="cpu")
    how.setdefault("method", options.method)
    return Result(
        values={name: values[name] for name in problem.parameters},
        empty_states=nothing,
        collapsed_states=nothing,
        posterior=posterior,
        fixed=tuple(fixed),
        held=fixed,
        **how,
    )


def draw(
    objective: Callable[[Parameters], Tensor], density: SegmentDensity, options: Options
) -> tuple[SampledParameters, dict[str, Any]] | None:
    """Draws of NUTS and the other fields of a `Result`; None: interrupted before the first draw."""
    chains = run_nuts(density, objective, options, density.problem.series.like)
    if chains is None:
        return None
    free = {name: chains.draws[name] for name in density.start}
    how = sampled_diagnostics(chains.objective, len(chains.diverging), *chains.judged(free), chains.interrupted)
    return SampledParameters(chains.draws, chains.diverging), how


def starts(
    problem: SegmentProblem, center: Parameters, known: Parameters, options: Options
) -> tuple[Parameters, list[str]]:
    """Values `[R, ...]` from which a fit starts, and their kinds."""
    moves = of_hazard(problem.hazard)
    plain = {name: center[name] for name in problem.parameters if name not in moves}
    made: list[tuple[Parameters, str]] = [(known, "own")] if known else []
    for times in COUNTS if OF_LOCATION in plain else COUNTS[:1]:
        spread = plain | ({OF_LOCATION: plain[OF_LOCATION] * times} if times != 1 else {})
        for length in LENGTHS if moves else LENGTHS[:1]:
            hazard = 1 / min(length, max(2.0, problem.series.n_steps / 2))
            some = near(problem.hazard, hazard, next(iter(plain.values())))
            made.append((some | spread, f"segments of {1 / hazard:.0f} steps" + ", near" * (times != 1)))
    made = made[: max(1, options.restarts)]
    tables = [{**values, **problem.fixed} for values, _ in made]
    return {name: torch.stack([table[name] for table in tables]) for name in problem.parameters}, [k for _, k in made]


def fixed_tables(model: Any, fixed: Any) -> Parameters:
    """Tables of the parameters of a model that a fit holds.

    Raises:
        ValueError: unknown parameters, all of them, or values outside their space.
    """
    unknown = sorted(set(fixed or {}) - set(model.known))
    if unknown:
        raise ValueError(f"fixed: got unknown parameter(s) {unknown}; this model has {list(model.known)}.")
    if fixed and set(fixed) == set(model.known):
        raise ValueError("fixed: got all parameters, which leaves nothing to fit; use model.with_values(...).")
    known = {name: parameter for name, parameter in model.known.items() if name in (fixed or {})}
    tables = widened(model.emission, model.hazard, read_tables(fixed)) if fixed else {}
    checked = check_parameters(known, tables, model.sizes, model.name)
    check_hazard(checked)
    return checked


def start_values(model: Any, start: Any) -> Parameters:
    """The values from which a fit begins: those that the user gives, or those of the model, if it has some."""
    if start is None:
        return model.values
    values = values_of_model(start)
    if not isinstance(values, Mapping):
        raise TypeError(f"start: got {type(values).__name__}, expected a model, a fit, or values by name.")
    return model.with_values(values).values
