"""The summary of a fit: how it ended, its parameters with their errors, and its states, on one page."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import expit, logit, ndtri
from torch import Tensor
from torch.distributions import constraints

from ...inference.numerics.scalars import check_probability
from ..data.series import Series
from ..entries import Entries
from ..fitting.curvature import standard_errors
from ..fitting.starts import variance_floor
from ..intervals import central_interval
from ..parameters import SYMMETRIC, Parameter, Parameters, described, is_simplex
from ..problem import SeriesProblem
from .tables import coordinates, html, number, rows, states

WIDTH = 78
DRAWS = 10_000  # of a posterior
NARROW = 100.0  # times the floor of variances
MOST = 300  # parameters of all subjects, beyond which there is no common curvature
MANY = "No standard errors of so many parameters at once; fit.subject(name).summary() has those of a subject."
OF_CURVATURE = (
    "Standard errors come from the curvature of the {objective} at the estimates. Intervals are normal in "
    "unconstrained coordinates: logarithms of positive numbers, log odds of probabilities."
)
NO_ERROR = (
    "-: no standard error: the parameter is at the end of its range, or the data do not determine it. Errors of other "
    "parameters are conditional on its value, and may be much too small."
)
BY_PROFILE = "fit.profile_interval() has intervals that are not conditional on it, for parameters at 0 too."
OF_POSTERIOR = "Standard errors and intervals are standard deviations and quantiles of the posterior."
INDEPENDENT = "The posterior takes parameters and paths as independent, so they are too small."
AT_PEAK = "They come from a normal at the peak, because weights of other draws were too uneven or too slow to compute."
HELD = "Held as given: {names}."
APPROXIMATE = (
    "The log-likelihood comes from a filter that merges paths, and its curvature is unknown, so estimates have no "
    'standard errors. method="vmp" gives those of a posterior.'
)
CONTINUED = (
    "The fit was continued by update. Sequences, steps, the log-likelihood, the objective and the states are those of "
    "the last batch."
)
SHARED = (
    "Several processes shared the data. Sequences, steps, the log-likelihood and the states are those of this process."
)
NOT_HELD = "Estimates have no standard errors, for which all data are needed."
POINT = '{state} sits on a single point{where}, where the likelihood has no maximum. prior="weak" bounds it.'
OF_BOUND = "The estimates maximise a bound on it, and may differ from its maximum."


@dataclass(frozen=True, repr=False)
class Summary:
    """The result of a fit as tables; printed, it is one page of text.

    Attributes:
        statistics: by name, the model, the method, how the fit ended, and its criteria.
        parameters: a row for each number: its `state` (empty: none), `estimate`, `standard error`, and the ends of its
            interval, `lower` and `upper`; NaN if there is none.
        states: a row for each state: `share of steps`, expected given the series, and `expected duration`, the mean
            number of steps (with gaps, of units of time) from entering it to leaving it. For a linear model a row for
            each latent: `mean` and `sd over steps` of its smoothed means, and `sd of a step`, their posterior standard
            deviation. For `Segments` a row for each of the most probable segments.
        level: probability of the intervals.
        notes: remarks that help to read the tables.
    """

    statistics: pd.Series
    parameters: pd.DataFrame
    states: pd.DataFrame
    level: float
    notes: tuple[str, ...]

    def __str__(self) -> str:
        title, *pairs = self.statistics.items()
        heading = [line.center(WIDTH).rstrip() for line in wrap(str(title[1]), WIDTH)]
        lines = [*heading, "=" * WIDTH, *_columns(pairs), "=" * WIDTH]
        ends = [f"{100 * p:g}%" for p in ((1 - self.level) / 2, (1 + self.level) / 2)]
        table = self.parameters.drop(columns="state").map(number)
        width = max(24, *map(len, table.index))
        header = "".join(f"{name:>14}" for name in ("estimate", "std. error", *ends))
        lines.append(" " * width + header)
        whole = "all states" if any(self.parameters["state"]) else "parameters"
        for state, part in table.groupby(self.parameters["state"], sort=False):
            lines.append(f"{state or whole} ".ljust(width + len(header), "-"))
            lines += [f"{name:<{width}}" + "".join(f"{cell:>14}" for cell in row) for name, *row in part.itertuples()]
        lines += ["=" * WIDTH, *self.states.map(number).to_string().splitlines(), "=" * WIDTH]
        return "\n".join([*lines, *(line for note in self.notes for line in wrap(note, WIDTH))])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        title, *pairs = self.statistics.items()
        statistics = pd.DataFrame({"": [value for _, value in pairs]}, index=[name for name, _ in pairs])
        parts = [html(str(title[1]), statistics), html("Parameters", self.parameters, "-"), html("States", self.states)]
        return "".join([*parts, *(f"<p>{note}</p>" for note in self.notes)])


def summarise(fit: Any, series: Series, level: float = 0.9) -> Summary:
    """The summary of a fit and of its series: see `Fit.summary`."""
    level = check_probability("level", level, proper=True)
    model = fit.model
    estimates = _estimates(model)
    if fit.posterior is None:
        errors = curvature_errors(fit, series)
        ends = normal_ends(model.known, estimates, errors, float(ndtri((1 + level) / 2)), fit.held)
        parameters = _table(model, series, estimates, errors, ends)
    else:
        parameters = parameters_of(fit.posterior, model, series, level)
    missing = bool(parameters["standard error"].isna().any())
    return Summary(_statistics(fit, series), parameters, states_table(fit, series), level, tuple(_notes(fit, missing)))


def parameters_of(posterior: Any, model: Any, series: Series, level: float) -> pd.DataFrame:
    """`Summary.parameters` of a posterior: a model's values, with standard deviations and central intervals of
    draws."""
    drawn = posterior.refined.sample(DRAWS)
    draws = described(model.known, {name: value.double() for name, value in drawn.items()})
    errors = {name: table.std(0) for name, table in draws.items()}
    ends: dict[str, tuple[Any, Any]] = {}
    for name, table in draws.items():
        lower, upper = central_interval(table, level)
        ends[name] = lower, upper
    return _table(model, series, _estimates(model), errors, ends)


# ---- the numbers -----------------------------------------------------------------------------------------------------


def _estimates(model: Any) -> Parameters:
    return {name: value.double().cpu() for name, value in described(model.known, model.values).items()}


def _table(
    model: Any, series: Series, estimates: Parameters, errors: Parameters, ends: dict[str, tuple[Any, Any]]
) -> pd.DataFrame:
    records = [
        (
            row.name,
            row.state,
            *(float(table[row.parameter][row.index]) for table in (estimates, errors)),
            *(float(end[row.index]) for end in ends[row.parameter]),
        )
        for row in rows(model, coordinates(series, model))
    ]
    columns = ["parameter", "state", "estimate", "standard error", "lower", "upper"]
    return pd.DataFrame.from_records(records, columns=columns, index="parameter")


def curvature_errors(fit: Any, series: Series, described_as: dict[str, Parameter] | None = None) -> Parameters:
    """Standard errors from the curvature of the log-likelihood, or with a prior of the log posterior.

    Arguments:
        described_as: the parameters with their displayed forms; None: those of the model.
    """
    model, coupled = fit.model, bool(fit.model.chain_name)
    forms = model.known if described_as is None else described_as
    if not model.differentiable or _many(fit) or not fit.has_all:
        return {name: torch.full_like(value, torch.nan) for name, value in described(forms, model.values).items()}
    problem = model.problem(series)
    prior = None if coupled or fit.prior is None else {name: t.double().cpu() for name, t in problem.prior.items()}
    problem = replace(problem, series=problem.series.cpu().double(), prior=prior)

    def objective(values: Parameters) -> Tensor:
        product = model.product_of(values)
        evidence = problem.total(problem.evidence(product))
        return evidence + problem.log_prior(product)

    values = {name: value.detach().double().cpu() for name, value in model.values.items()}
    held = {name: values.pop(name) for name in fit.fixed if name not in _in_part(fit)}
    known = {name: forms[name] for name in values}

    def beside_held(free: Parameters) -> Tensor:
        n = len(next(iter(free.values())))
        return objective(free | {name: value.expand(n, *value.shape) for name, value in held.items()})

    free = {name: entries.cpu() for name, entries in _in_part(fit).items()}
    errors = standard_errors(beside_held, problem.in_turns, known, values, _unit(problem), free)
    return errors | {name: torch.full_like(value, torch.nan) for name, value in described(forms, held).items()}


def _many(fit: Any) -> bool:
    """Whether the parameters of all subjects are too many for one curvature."""
    return bool(fit.model.subjects) and fit.n_parameters > MOST


def _in_part(fit: Any) -> dict[str, Tensor]:
    """Which entries are free, of the parameters of which some are held."""
    return {name: table.isnan() for name, table in fit.held.items() if bool(table.isnan().any())}


def _unit(problem: SeriesProblem) -> Tensor:
    """The spread of each feature."""
    observed = problem.series.rows
    about = observed - observed.nanmean(0)
    spread = about.square().nanmean(0).sqrt()
    return torch.where(spread > 0, spread, 1.0)


def normal_ends(
    known: dict[str, Parameter], estimates: Parameters, errors: Parameters, reach: float, held: Parameters
) -> dict[str, tuple[Any, Any]]:
    """The ends of normal intervals, in unconstrained coordinates."""
    ends = {}
    for name, parameter in known.items():
        shown = parameter.shown.name if parameter.shown else name
        support = parameter.shown.support if parameter.shown else parameter.support
        support = support.of if isinstance(support, Entries) else support
        at, step = estimates[shown].cpu().numpy(), reach * errors[shown].cpu().numpy()
        with np.errstate(all="ignore"):  # without an error there is no interval
            plain, positive = (at - step, at + step), (at * np.exp(-step / at), at * np.exp(step / at))
            rest = _rest(held.get(name), support, at)
            share = tuple(rest * expit(logit(at / rest) + sign * step / (at * (1 - at / rest))) for sign in (-1, 1))
        if is_simplex(support) or support is constraints.unit_interval:
            ends[shown] = share
        elif support is constraints.positive or support is constraints.nonnegative:
            ends[shown] = positive
        elif support in SYMMETRIC:
            diagonal = np.eye(at.shape[-1], dtype=bool)
            ends[shown] = tuple(np.where(diagonal, a, b) for a, b in zip(positive, plain, strict=True))
        else:
            ends[shown] = plain
    return ends


def _rest(held: Tensor | None, support: constraints.Constraint, at: np.ndarray) -> np.ndarray:
    """The probability that the free entries of each row share."""
    if held is None or not is_simplex(support):
        return np.ones_like(at)
    known = held.double().cpu().numpy()
    return np.broadcast_to(1 - np.nansum(known, -1, keepdims=True), at.shape)


def _latents(fit: Any, series: Series) -> pd.DataFrame:
    """For each latent the mean and standard deviation of its smoothed means over steps, and their posterior
    deviation."""
    table = fit.model.states(series)
    mean, spread = (table[[f"latent_{kind}_{name}" for name in fit.model.latents]] for kind in ("mean", "sd"))
    columns = {"mean": mean.mean(), "sd over steps": mean.std(ddof=0), "sd of a step": (spread**2).mean() ** 0.5}
    return pd.DataFrame({name: column.to_numpy() for name, column in columns.items()}, index=list(fit.model.latents))


def states_table(fit: Any, series: Series) -> pd.DataFrame:
    """The share of steps and the expected duration of each state."""
    model = fit.model
    if model.latents:
        return _latents(fit, series)
    if not model.chain_sizes:
        return model.segments(series)
    problem = model.problem(series)
    values = model.values_like(series.like)
    with torch.no_grad():
        chain = problem.chain(model.product_of(values))
        probabilities = model.probabilities(chain, values)
        durations = model.durations(series)
    tables = [table for name, (table, _) in probabilities.items() if name.startswith("state_probability")]
    n_steps = float((series.last + 1).sum())
    shares = [table.flatten(0, -2).nansum(0) / n_steps for table in tables]
    durations = durations if isinstance(durations, tuple) else (durations,)
    columns = {"share of steps": torch.cat(shares), "expected duration": torch.cat(durations)}
    index = states(model, series.state_names)
    return pd.DataFrame({name: column.double().cpu().numpy() for name, column in columns.items()}, index=index)


# ---- the words -------------------------------------------------------------------------------------------------------


def _statistics(fit: Any, series: Series) -> pd.Series:
    how: dict[str, Any] = {
        "model": repr(fit.model).splitlines()[0],
        "method": fit.method,
        "prior": "none" if fit.prior is None else fit.prior if isinstance(fit.prior, str) else "given",
        "converged": "yes" if fit.converged else "interrupted" if fit.interrupted else "no",
        "steps": fit.steps,
        "starts": len(fit.restarts),
        "kinds that agree": f"{fit.agreeing} of {fit.n_kinds}",
    }
    well: dict[str, Any] = {
        "sequences": series.n_sequences,
        "observed steps": series.n_observed,
        "free parameters": fit.n_parameters,
        "log-likelihood": fit.loglik,
        "objective": float(fit.objective[-1]) if len(fit.objective) else math.nan,
    }
    if fit.posterior is None and fit.has_all:
        well |= {"aic": fit.aic, "bic": fit.bic}
    return pd.Series(how | well, dtype=object)


def _columns(pairs: list[tuple[Any, Any]]) -> Iterator[str]:
    """Names and values in two columns."""
    half = WIDTH // 2 - 1
    cells = [f"{name}:".ljust(20) + _exact(value).rjust(half - 20) for name, value in pairs]
    middle = len(cells) // 2
    for left, right in zip_longest(cells[:middle], cells[middle:], fillvalue=" " * half):
        yield f"{left}  {right}".rstrip()


def _exact(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _notes(fit: Any, missing: bool) -> Iterator[str]:
    at_maximum = fit.posterior is None and fit.model.differentiable and fit.has_all
    if not fit.has_all:
        yield " ".join([CONTINUED if fit.updates else SHARED, *[NOT_HELD] * (fit.posterior is None)])
    elif fit.posterior is None and not fit.model.differentiable:
        yield APPROXIMATE
    if at_maximum:
        coupled = bool(fit.model.chain_name)
        yield OF_CURVATURE.format(objective="log-likelihood" if coupled or fit.prior is None else "log posterior")
        if coupled:
            yield OF_BOUND
    if fit.posterior is not None:
        refined = fit.posterior.refined
        independent = refined is fit.posterior and fit.method == "vmp"
        at_peak = not getattr(refined, "reliable", True)
        yield " ".join([OF_POSTERIOR, *[INDEPENDENT] * independent, *[AT_PEAK] * at_peak])
    if fit.fixed:
        yield HELD.format(names=", ".join(f"{name}{' in part' * (name in _in_part(fit))}" for name in fit.fixed))
    if _many(fit) and fit.posterior is None:
        yield MANY
    elif missing and fit.model.differentiable and (at_maximum or fit.posterior is not None):
        yield " ".join([NO_ERROR, *[BY_PROFILE] * hasattr(fit, "profile_interval")])
    if fit.posterior is None:
        yield from fit.model.at_ends()
    empty = fit.empty_states if isinstance(fit.empty_states, tuple) else (fit.empty_states,)
    for name, flag in zip(states(fit.model, fit.state_names), torch.cat(empty).tolist(), strict=True):
        if flag:
            yield f"{name[:1].upper()}{name[1:]} is expected to have less than one step."
    for name, where in on_points(fit).items():
        yield POINT.format(state=f"{name[:1].upper()}{name[1:]}", where=where)
    if not fit.converged:
        yield f"{fit.reason.capitalize()}."
    if not fit.converged and at_maximum:
        yield "Standard errors assume that the end of the fit is a maximum."


@torch.no_grad()
def on_points(fit: Any) -> dict[str, str]:
    """The states that sit on a single point, each with its features there as text."""
    flags = fit.collapsed_states if isinstance(fit.collapsed_states, tuple) else (fit.collapsed_states,)
    collapsed = [number for number, flag in enumerate(torch.cat(flags).tolist()) if flag]
    where = [""] * len(torch.cat(flags))
    emission = getattr(fit.model, "emission", None)
    if collapsed and emission is not None and not fit.model.chain_name and not fit.model.subjects:
        part, series = emission.parts[0], fit.series
        narrow = part.emission.narrowness(part.own(fit.model.values_like(series.like)))
        least = NARROW * variance_floor(series)
        for number in collapsed:
            places = (narrow[number] <= least).nonzero().flatten().tolist()
            names = [series.features_of()[place] for place in places]
            where[number] = f" in {', '.join(names)}" if names else ""
    names = list(states(fit.model, fit.state_names))
    return {names[number]: where[number] for number in collapsed}
