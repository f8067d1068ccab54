r"""Fits of switching linear models whose noises are singular, by ascent of the evidence of a filter.

Independent states and regimes have no density beside a singular noise, so message passing has no bound. Kim's filter
has an approximate evidence (Kim 1994, *Dynamic linear models with Markov-switching*), which quasi-Newton steps increase
here, with the log density of the prior. Known entries have no coordinates. The prior of a group of coordinates with a
known noise is that of a noise of 1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import constraints

from ...inference.chains.switching_gaussian import plain
from ...inference.chains.switching_gaussian.tables import Tables
from ...inference.families import Point, given_entries
from ..ascent import Ascent
from ..data.series import Series
from ..fitting.curvature import Coordinates
from ..fitting.density import IMPOSSIBLE
from ..fitting.initialization import values_of_model
from ..fitting.options import Options
from ..fitting.result import Result, result_of
from ..fitting.search import multi_start
from ..known import with_known
from ..linear.fixed import Known, in_states
from ..parameters import SYMMETRIC, Parameter, Parameters
from ..user_priors import check_possible
from .gpb import gpb_filter
from .graph import families_of, priors_of, step_variance
from .layout import LinearRegimes
from .problem import ORDER, SwitchingLinearProblem
from .starts import components
from .user_priors import InFit, families_under, under_conjugate

SPREAD = 0.5  # standard deviation of a start's coordinates
LEAST = 1e-300  # floor of probabilities, whose logarithm has a gradient


def fit_by_evidence(problem: SwitchingLinearProblem, known: Known, users: InFit, options: Options) -> Result:
    """The mode of the parameters under the evidence of a filter of order 2; without a prior, its maximum."""
    layout, dtype, series = problem.layout, problem.series.observations.dtype, problem.series.double()
    if options.method != "em":
        raise ValueError(
            f"method: got {options.method!r}, but with singular noises its posterior of states has no density; use "
            '"em", which increases the evidence of a filter.'
        )
    if layout.recurrent:
        raise ValueError(
            "fixed: got singular noises, but a model whose states choose the regimes can then be filtered and "
            "smoothed, not fitted; give small variances instead."
        )
    scaled, volume = known.units.series(series), float(known.units.log_volume(series).sum())
    surface = Surface.of(layout, scaled, known, users, _user_start(problem, known, options), options.prior is not None)
    starts = surface.starts(options)
    kinds = ["random"] * len(starts) if options.start is None else ["own", *["random"] * (len(starts) - 1)]
    with multi_start(options, series, -volume) as search:
        search.run(Ascent(surface, starts), kinds, options.n_kept)
        result = search.result()
    if not math.isfinite(result.best.final):
        raise ValueError(
            "fixed: with these entries x has no density at any start of the search; give start=, or free some entries."
        )
    values = {name: v.to(dtype) for name, v in known.back(surface.values(result.best.tables["y"])).items()}
    share = gpb_filter(layout.regimes(values), problem.series.observations, ORDER, series.lengths).state
    occupancy = share.flatten(0, -2).sum(0)
    order = occupancy.argsort(descending=True, stable=True)
    numbered = options.start is not None or layout.recurrent or known.numbers(layout.known)
    if not numbered and layout.is_as_likely(values, order):
        values, occupancy = layout.reordered(values, order), occupancy[order]
    return result_of(result.raised(-volume), "em", values, occupancy < 1.0, **known.fields)


def _user_start(problem: SwitchingLinearProblem, known: Known, options: Options) -> Parameters | None:
    """The user's start in the units of the fit."""
    values = values_of_model(options.start)
    if options.start is None:
        return None
    if not isinstance(values, Mapping):
        raise TypeError(
            f"start: got {type(options.start).__name__}, but with singular noises, expected a model or values."
        )
    values = {name: value.double() for name, value in problem.values_of(values).items()}
    check_possible(problem.layout.user_priors, values, "start", options.fixed or {})
    return in_states(known.units.values(values), known.unit)


@dataclass(frozen=True)
class Surface:
    """The objective in free coordinates: see `ascent.Climbable`.

    Attributes:
        x, inside: sequences [N, T, F] in the units of the fit, and their steps.
        coordinates: those of the free entries, from a point at which known covariances are 1.
        tables: the known entries, NaN where they are free.
        prior: natural parameters of the prior of each block; None: none.
        families: of the blocks, at points beside known entries; blocks without free entries add nothing.
    """

    layout: LinearRegimes
    x: Float[Tensor, "N T F"]
    inside: Bool[Tensor, "N T"]
    coordinates: Coordinates
    tables: Parameters
    prior: Parameters | None
    families: dict[str, Any]

    @staticmethod
    def of(
        layout: LinearRegimes, series: Series, known: Known, users: InFit, own: Parameters | None, with_prior: bool
    ) -> "Surface":
        x = series.observations
        prior = priors_of(layout, step_variance(components(layout.n_latent, series), series))
        expected = {name: family.expected(prior[name]) for name, family in families_of(layout).items()}
        at = own if own is not None else layout.values(expected)
        at = _regular(layout, known.inner, at)
        free = {name: table.isnan() for name, table in known.inner.items()}
        kinds = {name: _interior(parameter) for name, parameter in layout.known.items()}
        coordinates = Coordinates.of(kinds, at, x.new_ones(x.shape[-1]), free)
        flat, steps = x.reshape(-1, *x.shape[-2:]), torch.arange(x.shape[-2], device=x.device)
        inside = steps < (series.last + 1).reshape(-1, 1)
        prior = under_conjugate(users, prior)
        known_at = layout.known_points(_regular(layout, known.inner, known.inner)) if known.inner else {}
        families = dict(families_of(layout))
        families |= {name: given_entries(families[name], point) for name, point in known_at.items()}
        points = {name: Point(family) for name, family in families.items()}
        points = families_under(users, points, prior, known_at)
        return Surface(layout, flat, inside, coordinates, known.inner, prior if with_prior else None, points)

    def starts(self, options: Options) -> Float[Tensor, "R P"]:
        """Random coordinates; the user's start is 0."""
        generator = torch.Generator().manual_seed(options.number)
        shape = options.restarts, len(self.coordinates.first)
        drawn = SPREAD * torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(self.x)
        if options.start is not None:
            drawn[0] = 0.0
        return drawn

    def values(self, y: Float[Tensor, "P"]) -> Parameters:
        """The parameters, in the units of the fit."""
        values = self.coordinates.values(y)
        return values | {name: torch.where(at.isnan(), values[name], at) for name, at in self.tables.items()}

    def climb(self, flat: Float[Tensor, "R P"]) -> tuple[Float[Tensor, "R"], Float[Tensor, "R P"]]:
        heights, slopes = torch.full_like(flat[:, 0], -torch.inf), torch.zeros_like(flat)
        with torch.enable_grad():
            points = [y.detach().requires_grad_() for y in flat]
            made = {row: tables for row, y in enumerate(points) if (tables := self._tables(y)) is not None}
            if not made:
                return heights, slopes
            evidence = plain.evidences(list(made.values()), self.x, self.inside, ORDER).sum(-1)
            there = [points[row] for row in made]
            height = evidence + torch.stack([self.log_prior(y) for y in there])
            slope = torch.stack(torch.autograd.grad(height.sum(), there))
        rows = torch.tensor(list(made), device=flat.device)
        good = height.detach().isfinite() & slope.isfinite().all(-1)
        heights[rows] = torch.where(good, height.detach(), -torch.inf)
        slopes[rows] = torch.where(good.unsqueeze(-1), slope, 0.0)
        return heights, slopes

    def _tables(self, y: Float[Tensor, "P"]) -> Tables | None:
        """The tables of the filter; None if these parameters are impossible."""
        values = self.values(y)
        probs = {name: v.clamp_min(LEAST) for name, v in values.items() if name.endswith("_probs")}
        try:
            return self.layout.regimes(values | probs).tables(attached=True)
        except IMPOSSIBLE:
            return None

    def log_prior(self, y: Float[Tensor, "P"]) -> Float[Tensor, ""]:
        """The log density of the prior; 0 if there is none."""
        if self.prior is None:
            return y.new_zeros(())
        points, terms = self.layout.points(_regular(self.layout, self.tables, self.values(y))), []
        for name, family in self.families.items():
            terms.append(-family.kl_of(family.statistics(points[name]), self.prior[name]).sum())
        return torch.stack(terms).sum()


def _interior(parameter: Parameter) -> Parameter:
    """The parameter with an open support."""
    if parameter.support in SYMMETRIC:
        return replace(parameter, support=constraints.positive_definite)
    return (
        replace(parameter, support=constraints.positive) if parameter.support is constraints.nonnegative else parameter
    )


def _regular(layout: LinearRegimes, tables: Parameters, values: Parameters) -> Parameters:
    """Values with 1 instead of known variances and noises, and 0 instead of known covariances."""
    regular = dict(values)
    for name, table in tables.items():
        is_known, support = ~table.isnan(), layout.known[name].support
        if support in SYMMETRIC:
            regular[name] = torch.where(is_known, torch.eye(table.shape[-1]).to(table), values[name])
        elif support is constraints.nonnegative:
            regular[name] = torch.where(is_known, 1.0, values[name])
        elif values is not tables:
            regular |= with_known({name: values[name]}, tables, layout.known)
    return regular
