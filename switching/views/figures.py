"""Figures of a fitted model: a series with its smoothed states, and its forecast.

Every figure is a plain `matplotlib.figure.Figure`; this file does not touch pyplot's global state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ndtri
from torch import Tensor
from torch.distributions import constraints

from ...inference.numerics.scalars import check_probability
from ..data.series import Given, Series
from ..data.timeline import continued, time_index
from ..emissions.by_subject import of_one
from ..emissions.contract import ByGate, Emission
from ..emissions.driven import emission_at
from ..emissions.lagged import Lagged
from ..fitting.alignment import only_scales, state_levels
from ..mixture import StateMixture
from ..parameters import Parameters, of_subject
from ..problem import Problem
from .colors import state_colors
from .drawing import (
    FAINT,
    GATE,
    INK,
    PANEL,
    STRIP,
    TimeAxis,
    draw_arc,
    draw_band,
    draw_categories,
    draw_gate,
    draw_series,
    draw_states,
    draw_steps,
    label_states,
    name_feature,
    new_figure,
    set_title,
)

MOST_DRAWN = 50_000  # the most steps of a figure, which is some thousand pixels wide
LEAST_SHOWN, SHOWN_HORIZONS = 40, 4  # a forecast's figure shows at least this many steps, or horizons, before it


@torch.no_grad()
def plot_fit(model: Any, x: Any, *, sequence: int = 0, level: float = 0.9, **given: Unpack[Given]) -> Figure:
    """A series with its smoothed mean, its states, and its redraws.

    From the top: each feature with the mean of its smoothed state mixture, and a band of this mean plus and minus
    normal quantiles times the mixture's standard deviation (for a categorical symbol: the probability of each
    category; a band of angles goes on at the other end); the probability of each state, stacked; the probability that
    a step redrew its state (for Markov dynamics: that the state changed). States are coloured from dark to light by
    their mean. The first step always redraws, so the last panel omits it. If there are many steps, every n-th is drawn,
    and the title says so; the last panel then shows the greatest probability of each n steps.

    Arguments:
        x, lengths, inputs, dt: as in every method of the model; a pandas index becomes the time axis.
        sequence: the number of the sequence to draw, if x has several.
        level: probability of the band if the mixture were normal.

    Raises:
        ValueError: as `model.smooth`; no such sequence; level outside (0, 1).
    """
    level = check_probability("level", level, proper=True)
    whole = model.read(x, **given)
    problem, values = _alone(model, whole, sequence)
    every = -(-problem.series.n_steps // MOST_DRAWN)
    emission, seen = model.emission, Smoothing.of(problem, values).thinned(every)
    series = replace(problem.series, x=problem.series.observations[::every], states=None, step_weights=None, noise=None)
    here = emission_at(emission, problem.series, problem.series.drive.at(slice(None, None, every)))
    mixture = StateMixture(here, values, seen.weights)
    reach = float(ndtri(0.5 + level / 2)) * mixture.variance.sqrt()
    ends = within_support(emission, mixture.mean - reach, mixture.mean + reach)
    around = angular(emission, values), reach.clamp_max(np.pi)
    band = Band(mixture.mean, *about(mixture.mean, *ends, *around), seen.state)
    axis = time_axis(problem.series).thinned(every)
    figure, panels = new_figure([*[PANEL] * emission.n_features, STRIP, GATE])
    part = "" if every == 1 else f", 1 step of {every} drawn"
    shown = _shown(emission, f"{100 * level:g}% band")
    set_title(panels[0], f"Observed series, with {shown} in its smoothed state{part}{which(whole, sequence)}")
    draw_features(panels, emission, values, (series, axis), (band, axis), mixture)
    draw_states(panels[-2], axis, seen.state.numpy(), _colors(emission, values))
    draw_gate(panels[-1], axis, seen.gate.numpy(), seen.gate_name)
    axis.mark(panels)
    return figure


@torch.no_grad()
def plot_forecast(forecast: Any, level: float = 0.9) -> Figure:
    """The end of a series and the forecast after it, for one sequence; see `Forecast.plot`.

    It shows each feature with the forecast's mean and the central interval of its mixture (for angles: the arc about
    the mean direction with this probability); below, the probability of each state, smoothed up to the last observation
    and forecast after it.
    """
    source, mixture = forecast.source, forecast.observation
    assert isinstance(forecast.state, Tensor)
    emission, values = _described(source, forecast.series)
    heights, shown = [*[PANEL] * emission.n_features, STRIP], _shown(emission, f"{100 * level:g}% interval")
    frame, state = ForecastFrame.of(forecast, heights, level, shown), forecast.state.cpu()
    mean, lower, upper = frame.expected
    angles = angular(emission, values)
    if bool(angles.any()):
        lower, upper = about(mean, lower, upper, angles, mixture.arc(level).cpu())
    band = Band(mean, lower, upper, state)
    draw_features(frame.panels, emission, values, frame.observed, (band, frame.ahead), mixture)
    seen = source.smooth(forecast.series).state.cpu()[frame.first :]
    draw_states(frame.panels[-1], frame.axis, torch.cat([seen, state]).numpy(), _colors(emission, values))
    return frame.finished()


# ---- the numbers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Smoothing:
    """The smoothed quantities of one sequence."""

    weights: ByGate  # P(s_t, z_t = 1 | x) and P(s_t, z_t = 0 | x), [T, K] each
    state: Float[Tensor, "T K"]
    gate: Float[Tensor, "T"]
    gate_name: str

    @staticmethod
    def of(problem: Problem, values: Parameters) -> "Smoothing":
        chain = problem.chain(values)
        smoothed, marginals = chain.smooth(), chain.marginals()
        fresh, held = marginals.fresh, marginals.held
        weights = ByGate(fresh, torch.zeros_like(fresh) if held is None else held)
        if smoothed.redraw is not None:
            return Smoothing(weights, smoothed.state, smoothed.redraw, "redraw")
        return Smoothing(weights, smoothed.state, chain.change_probability(), "change")

    def thinned(self, every: int) -> "Smoothing":
        """Every n-th step, with the most probable gate of each n."""
        weights, missing = ByGate(*(table[::every] for table in self.weights)), -len(self.gate) % every
        gate = torch.cat([self.gate, self.gate.new_zeros(missing)]).reshape(-1, every).amax(-1)
        return Smoothing(weights, self.state[::every], gate, self.gate_name)


def _alone(model: Any, series: Series, sequence: int) -> tuple[Problem, Parameters]:
    """The problem of one sequence, and the model's values for it."""
    one = series.one(sequence).cpu()
    values = {name: value.detach() for name, value in model.values_like(one.observations).items()}
    return model.problem(one), values


def which(series: Series, sequence: int) -> str:
    """A line that names the sequence of several that a figure shows, and how to see the next."""
    n = series.n_sequences
    if n == 1:
        return ""
    number = sequence % n
    name = "" if series.sequences is None else f" {series.sequences[number]}"
    return f"\nSequence{name}, {number + 1} of {n}; sequence={(number + 1) % n} shows the next"


def time_axis(series: Series, horizon: int = 0) -> TimeAxis:
    """The positions of the steps and of future steps: their labels, or their gaps if there are no labels."""
    index = time_index(series.index_of(), series.n_steps)
    gaps = series.gaps if series.index is None and series.gaps is not None else None
    gaps = None if gaps is None else gaps[: series.n_steps + horizon]
    return TimeAxis.of(continued(index, horizon) if horizon else index, gaps)


def within_support(emission: Emission, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of a band, limited to the support of the emission."""
    least, most = (getattr(emission.support, f"{end}_bound", None) for end in ("lower", "upper"))
    lower = lower if least is None else lower.maximum(torch.as_tensor(least).to(lower))
    return lower, upper if most is None else upper.minimum(torch.as_tensor(most).to(upper))


def angular(emission: Emission, values: Parameters) -> Bool[Tensor, "F"]:
    """Which features are angles."""
    parts = (emission.of_feature(feature, values)[0] for feature in range(emission.n_features))
    return torch.tensor([part.angular for part in parts], device="cpu")


def about(mean: Tensor, lower: Tensor, upper: Tensor, angles: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of a band; those of angles lie about the mean, and may lie beyond -pi or pi."""
    return torch.where(angles, mean - reach, lower), torch.where(angles, mean + reach, upper)


# ---- the panels ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ForecastFrame:
    """Panels of the end of a series and of the forecast after it, for all kinds of models; tables are on the CPU."""

    figure: Figure
    panels: list[Axes]
    heights: Sequence[float]  # of the panels; strips are those of height `STRIP`
    first: int  # the first step of the series that is drawn
    axis: TimeAxis  # of all steps that are drawn
    observed: tuple[Series, TimeAxis]
    ahead: TimeAxis
    expected: tuple[Tensor, Tensor, Tensor]  # mean, and lower and upper ends of the interval

    @staticmethod
    def of(forecast: Any, heights: Sequence[float], level: float, shown: str | None = None) -> "ForecastFrame":
        """Empty panels with a title; `shown` describes the drawn quantities of the forecast.

        Arguments:
            forecast: of one sequence, by any kind of model.
        """
        series, horizon = forecast.series, len(forecast.mean)
        n_steps = series.n_steps
        first = max(0, n_steps - max(LEAST_SHOWN, SHOWN_HORIZONS * horizon))
        axis, n_past = time_axis(series, horizon).part(first, n_steps + horizon), n_steps - first
        past = replace(
            series.cpu(), x=series.observations.detach().cpu()[first:], states=None, step_weights=None, noise=None
        )
        figure, panels = new_figure(heights)
        shown = f"the mean and {100 * level:g}% interval" if shown is None else shown
        set_title(panels[0], f"Observed series, then {shown} in the forecast")
        lower, upper = forecast.interval(level)
        expected = forecast.mean.cpu(), lower.cpu(), upper.cpu()
        observed, ahead = (past, axis.part(0, n_past)), axis.part(n_past, n_past + horizon)
        return ForecastFrame(figure, panels, heights, first, axis, observed, ahead, expected)

    def finished(self) -> Figure:
        """The figure after its panels are drawn, with a line at the start of the forecast (white on strips)."""
        for panel, height in zip(self.panels, self.heights, strict=True):
            color = "white" if height == STRIP else INK
            panel.axvline(self.ahead.edges[0], color=color, linewidth=0.9, linestyle="--")
        self.axis.mark(self.panels)
        return self.figure


@dataclass(frozen=True)
class Band:
    """The expectation of each feature at some steps, `[T, F]` each, and the states' probabilities there."""

    mean: Tensor
    lower: Tensor
    upper: Tensor
    state: Float[Tensor, "T K"]


def draw_features(
    panels: list[Axes],
    emission: Emission,
    values: Parameters,
    observed: tuple[Series, TimeAxis],
    expected: tuple[Band, TimeAxis],
    mixture: StateMixture,
) -> None:
    """A panel for each feature: the observed steps over the expected ones, coloured by the most probable state."""
    (series, seen_at), (band, axis) = observed, expected
    colors, best = _colors(emission, values), band.state.argmax(-1).numpy()
    for feature, name in enumerate(series.features_of()):
        panel, (part, _, _) = panels[feature], emission.of_feature(feature, values)
        few = _binary(part) or _categorical(part)
        if _categorical(part):
            draw_categories(panel, axis, mixture.category_probs(feature).cpu().numpy())
        else:
            mean, lower, upper = (bound[:, feature].numpy() for bound in (band.mean, band.lower, band.upper))
            draw = draw_arc if part.angular else draw_band
            draw(panel, axis, best, colors, mean, *((mean, mean) if _binary(part) else (lower, upper)))
        draw_series(panel, seen_at, series.observations[:, feature].numpy(), joined=not (few or part.angular))
        name_feature(panel, name)
        label_states(panel, *state_labels(emission, values, feature, series.state_names), colors)


def draw_expected(
    panels: list[Axes], observed: tuple[Series, TimeAxis], expected: tuple[Tensor, ...], axis: TimeAxis
) -> None:
    """A panel for each feature: the observed steps over mean, lower and upper ends at the expected ones."""
    series, seen_at = observed
    mean, lower, upper = (table.numpy() for table in expected)
    for feature, name in enumerate(series.features_of()):
        panel = panels[feature]
        draw_steps(panel, axis, upper[:, feature], lower[:, feature], color=FAINT, alpha=0.3, linewidth=0, zorder=1)
        draw_steps(panel, axis, mean[:, feature], None, color=INK, linewidth=1.6, zorder=5)
        draw_series(panel, seen_at, series.observations[:, feature].numpy())
        name_feature(panel, name)


def state_labels(
    emission: Emission, values: Parameters, feature: int, names: Sequence[str] | None = None
) -> tuple[np.ndarray, list[str]]:
    """The position of each state in a feature's panel, and its text there: its number or its name, and its level, or
    its scale if all states have the same level."""

    def texts(kind: str, of_states: np.ndarray, form: str) -> list[str]:
        labels = range(len(of_states)) if names is None else names
        return [f"state {k}: {kind}{format(at, form)}" for k, at in zip(labels, of_states, strict=True)]

    part, own, _ = emission.of_feature(feature, values)
    if _categorical(part):
        where = own["probs"].argmax(-1).double().numpy()
        return where, texts("mostly ", where, ".0f")
    mean, scale = (
        table.redrawn[:, feature].double().numpy() for table in (emission.mean(values), emission.variance(values))
    )
    scale = np.sqrt(scale)
    if isinstance(emission, Lagged):
        mean = emission.fixed_point(values)[:, feature].double().numpy()
    if bool(only_scales(emission, values)[feature]):
        return mean + scale, texts("sd ", scale, ".3g")
    return mean, texts("", mean, ".4g")


def _described(source: Any, series: Series) -> tuple[Emission, Parameters]:
    """The emission and the values of a model, or of a posterior's model at its mean, for one sequence."""
    model = getattr(source, "model", source)
    values = source.values if model is source else source.mean
    if series.subjects is not None and model.subjects:
        values = of_subject(model.known, values, int(series.subjects))
    return model.emission.mapped(of_one), {name: value.detach().cpu() for name, value in values.items()}


def _colors(emission: Emission, values: Parameters) -> list[str]:
    return state_colors(state_levels(emission, values).numpy())


def _binary(emission: Emission) -> bool:
    """Whether observations are only 0 and 1; a band is then meaningless, and a joining line hides them."""
    return emission.support is constraints.boolean


def _categorical(emission: Emission) -> bool:
    return "category" in emission.sizes


def _shown(emission: Emission, spread: str) -> str:
    if _categorical(emission):
        return "the probability of each category"
    return "the probability of a 1" if _binary(emission) else f"the mean and {spread}"
