"""The summary of a fit: how it ended, its parameters with their errors, and its states, on one page."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ...inference.families.peak import NEAR_FLOOR
from ..data.series import Series
from ..fitting.posterior import RefinedPosterior
from ..fitting.starts import variance_floor
from .estimates import in_part, is_many, parameters_of
from .tables import html, number, states

WIDTH, START = 78, "initial_probs"
MANY = "No standard errors of so many parameters at once; fit.subject(name).summary() has those of a subject."
OF_CURVATURE = (
    "Standard errors come from the curvature of the {objective} at the estimates. Intervals are normal in "
    "unconstrained coordinates: logarithms of positive numbers, log odds of probabilities."
)
NO_ERROR = (
    "-: no standard error: the parameter is at the end of its range, or the data do not determine it. Errors of other "
    "parameters are conditional on its value, and may be much too small."
)
OF_START = (
    "initial_probs has no standard error where it is 0 or 1, as after one sequence, which begins in one state. A "
    'posterior has an interval, by method="vmp", "svi" or "nuts".'
)
BY_PROFILE = "fit.profile_interval() has intervals that are not conditional on it, for parameters at 0 too."
OF_TESTS = (
    "z: estimate / std. error, and p: the probability of a larger one if the coefficient is 0, for coefficients alone."
)
OF_POSTERIOR = "Standard errors and intervals are standard deviations and quantiles of the posterior."
INDEPENDENT = "The posterior treats parameters and paths as independent, so they are too small."
AT_PEAK = "They come from a normal at the peak, because weights of other draws were too uneven or too slow to compute."
HELD = "Held as given: {names}."
STATED = "Constants are those at inputs {at}, because at inputs 0 they would lose their digits."
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
            interval, `lower` and `upper`; NaN if there is none. If the model has coefficients of inputs or lags, `z`,
            the estimate over its standard error, and `p`, the two-sided normal probability of a larger one: for
            coefficients of a fit by EM.
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
        table = self.parameters.drop(columns="state").map(number)
        names = self._headings()
        wide = 14 if len(names) == 4 else 11
        width = max(24, *map(len, table.index))
        header = "".join(f"{name:>{wide}}" for name in names)
        lines.append(" " * width + header)
        of_all = "all states" if any(self.parameters["state"]) else "parameters"
        for state, rows in table.groupby(self.parameters["state"], sort=False):
            lines.append(f"{state or of_all} ".ljust(width + len(header), "-"))
            for name, *row in rows.itertuples():
                lines.append(f"{name:<{width}}" + "".join(f"{cell:>{wide}}" for cell in row))
        lines += ["=" * WIDTH, *self.states.map(number).to_string().splitlines(), "=" * WIDTH]
        return "\n".join([*lines, *(line for note in self.notes for line in wrap(note, WIDTH))])

    __repr__ = __str__

    def _headings(self) -> list[str]:
        """What the columns of numbers are called in print."""
        ends = (f"{100 * p:g}%" for p in ((1 - self.level) / 2, (1 + self.level) / 2))
        shown = {"standard error": "std. error", **dict(zip(("lower", "upper"), ends, strict=True))}
        return [shown.get(str(name), str(name)) for name in self.parameters.columns.drop("state")]

    def to_frame(self) -> pd.DataFrame:
        """`parameters`, as a table that may be changed."""
        return self.parameters.copy()

    def to_latex(self) -> str:
        """`parameters` as a LaTeX table, with numbers of four digits and the model as its caption.

        The preamble needs `\\usepackage{booktabs}`.
        """
        table = self.parameters.drop(columns="state").map(number).set_axis(self._headings(), axis=1)
        marks = {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$"}
        caption = "".join(marks.get(letter, letter) for letter in str(self.statistics["model"]))
        form = "l" + "r" * len(table.columns)
        return table.rename_axis(None).to_latex(escape=True, column_format=form, caption=caption)

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        title, *pairs = self.statistics.items()
        statistics = pd.DataFrame({"": [value for _, value in pairs]}, index=[name for name, _ in pairs])
        parts = [html(str(title[1]), statistics), html("Parameters", self.parameters, "-"), html("States", self.states)]
        return "".join([*parts, *(f"<p>{note}</p>" for note in self.notes)])


def summarise(fit: Any, series: Series, level: float = 0.9) -> Summary:
    """The summary of a fit and of its series: see `Fit.summary`."""
    parameters = parameters_of(fit, series, level)
    unknown = parameters.index[parameters["standard error"].isna().to_numpy()]
    notes = tuple(_notes(fit, {name.partition("[")[0] for name in unknown}, "z" in parameters))
    shares = states_table(fit, series) if fit.kept is None else fit.kept.states
    return Summary(_statistics(fit, series), parameters, shares, level, notes)


# ---- the states -----------------------------------------------------------------------------------------------------


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

    def probabilities(part: Any) -> dict[str, Tensor]:
        tables = model.probabilities(part.chain(model.product_of(values)), values)
        return {name: table for name, (table, _) in tables.items() if name.startswith("state_probability")}

    with torch.no_grad():
        shares = [table.mean(0) for table in problem.steps(probabilities).values()]
        durations = model.durations(series)
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
        "same optimum": f"{fit.agreeing} of {fit.n_kinds} kinds",
    }
    counted = {"sequences": series.n_sequences, "observed steps": series.n_observed}
    well: dict[str, Any] = {
        **(counted if fit.kept is None else fit.kept.counts),
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


def _notes(fit: Any, unknown: set[str], tested: bool) -> Iterator[str]:
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
        if tested:
            yield OF_TESTS
    if fit.posterior is not None:
        refined = fit.posterior.refined
        independent = refined is fit.posterior and fit.method == "vmp" and not isinstance(refined, RefinedPosterior)
        at_peak = not getattr(refined, "reliable", True)
        yield " ".join([OF_POSTERIOR, *[INDEPENDENT] * independent, *[AT_PEAK] * at_peak])
    if fit.fixed:
        yield HELD.format(names=", ".join(f"{name}{' in part' * (name in in_part(fit))}" for name in fit.fixed))
    if fit.model.stated_at:
        yield STATED.format(at=fit.model.stated_at)
    if is_many(fit) and fit.posterior is None:
        yield MANY
    elif fit.model.differentiable and (at_maximum or fit.posterior is not None):
        if at_maximum and START in unknown:
            yield OF_START
        if unknown - ({START} if at_maximum else set()):
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
    several = fit.model.chain_name or fit.model.subjects
    if collapsed and fit.series is not None and emission is not None and not several:
        part, series = emission.parts[0], fit.series
        narrow = part.emission.narrowness(part.own(fit.model.values_like(series.like)))
        least = 2 * NEAR_FLOOR * variance_floor(series)
        for number in collapsed:
            places = (narrow[number] <= least).nonzero().flatten().tolist()
            names = [series.features_of()[place] for place in places]
            where[number] = f" in {', '.join(names)}" if names else ""
    names = list(states(fit.model, fit.state_names))
    return {names[number]: where[number] for number in collapsed}
