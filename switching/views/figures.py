"""Figures of a fitted model: a series with its smoothed states, and its forecast.

Every figure is a plain `matplotlib.figure.Figure`; this file does not touch pyplot's global state.
"""

from typing import Any, Unpack

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ...inference.numerics.scalars import check_probability
from ..data.series import Given, Series
from ..data.timeline import continued, time_index
from .drawing import (
    FAINT,
    INK,
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
from .panels import Curve, Panels

MOST_DRAWN = 50_000  # the most steps of a figure, which is some thousand pixels wide
LEAST_SHOWN, SHOWN_HORIZONS = 40, 4  # a forecast's figure shows at least this many steps, or horizons, before it


@torch.no_grad()
def plot_fit(model: Any, x: Any, *, sequence: int = 0, level: float = 0.9, **given: Unpack[Given]) -> Figure:
    """A series with what the model knows of each step.

    From the top: each feature with its mean, and the mean plus and minus normal quantiles times the standard deviation
    (for a categorical symbol: the probability of each category; a band of angles goes on at the other end); the
    probabilities of states, stacked, from dark to light by their mean; latents, or parameters of segments; the
    probability that a step redrew its state (or that the state changed, or a segment began), but for the first step.
    Dashed lines are the beginnings of the most probable segments. If there are many steps, every n-th is drawn, and the
    title says so; the last panels then show the greatest probability of each n steps.

    Arguments:
        x, lengths, inputs, dt: as in every method of the model; a pandas index becomes the time axis.
        sequence: the number of the sequence to draw, if x has several.
        level: probability of the bands.

    Raises:
        ValueError: as `model.smooth`; no such sequence; level outside (0, 1).
    """
    level = check_probability("level", level, proper=True)
    full_data = model.read(x, **given)
    series, panels = full_data.one(sequence).cpu(), model._panels(full_data, sequence, level)
    every = -(-series.n_steps // MOST_DRAWN)
    note = "" if every == 1 else f", 1 step of {every} drawn"
    title, axis = f"Observed series{panels.about}{note}{_which(full_data, sequence)}", _time_axis(series)
    thin, observed = axis.thinned(every), series.observations[::every]
    figure, axes = _drawn(title, panels.thinned(every), (series, observed, thin), thin, thin)
    for panel in axes[:-1]:
        for begin in panels.begins:
            panel.axvline(float(axis.edges[begin]), color=FAINT, linewidth=0.8, linestyle="--", zorder=2)
    thin.mark(axes)
    return figure


@torch.no_grad()
def plot_forecast(model: Any, forecast: Any, level: float = 0.9) -> Figure:
    """The end of a series and the forecast after it, for one sequence; see `Forecast.plot`.

    It shows each feature with the forecast's mean and central interval (for angles: the arc about the mean direction
    with this probability); below, what the model states of states, latents and changes: smoothed up to the last
    observation, and forecast after it.
    """
    series, horizon = forecast.series, len(forecast.mean)
    n_steps = series.n_steps
    first = max(0, n_steps - max(LEAST_SHOWN, SHOWN_HORIZONS * horizon))
    axis, n_past = _time_axis(series, horizon).part(first, n_steps + horizon), n_steps - first
    past, ahead = axis.part(0, n_past), axis.part(n_past, n_past + horizon)
    panels = model._panels_ahead(forecast, level)
    title = f"Observed series, then {panels.about} in the forecast"
    observed = series, series.observations.detach().cpu()[first:], past
    figure, axes = _drawn(title, panels.at(slice(first, None)), observed, ahead, axis, named=False)
    for panel, height in zip(axes, panels.heights, strict=True):
        panel.axvline(ahead.edges[0], color="white" if height == STRIP else INK, linewidth=0.9, linestyle="--")
    axis.mark(axes)
    return figure


def _drawn(
    title: str,
    panels: Panels,
    observed: tuple[Series, Tensor, TimeAxis],
    ahead: TimeAxis,
    axis: TimeAxis,
    named: bool = True,
) -> tuple[Figure, list[Axes]]:
    """The figure, and its panels from the top.

    Arguments:
        observed: the series, its observations that are drawn, and their steps.
        ahead: the steps of the curves behind the observations.
        axis: the steps of the other panels.
        named: whether likely gates are named.
    """
    figure, axes = new_figure(panels.heights)
    set_title(axes[0], title)
    (series, x, seen), places = observed, iter(axes)
    for feature, (name, curve) in enumerate(zip(series.features_of(), panels.features, strict=True)):
        panel = next(places)
        _draw_curve(panel, ahead, curve, 1.6)
        draw_series(panel, seen, x[:, feature].numpy(), joined=curve.joined)
        name_feature(panel, name)
        if curve.labels is not None:
            label_states(panel, *curve.labels, curve.colors)
    for name, (state, colors) in panels.states.items():
        draw_states(next(places), axis, state.cpu().numpy(), colors, name)
    for name, curve in panels.curves.items():
        panel = next(places)
        _draw_curve(panel, axis, curve, 1.2)
        name_feature(panel, name)
    for name, gate in panels.gates.items():
        draw_gate(next(places), axis, gate.cpu().numpy(), name, named)
    return figure, axes


def _draw_curve(panel: Axes, axis: TimeAxis, curve: Curve, width: float) -> None:
    if curve.probs is not None:
        draw_categories(panel, axis, curve.probs.cpu().numpy())
    elif curve.mean is not None and curve.lower is not None and curve.upper is not None:
        mean, lower, upper = (bound.cpu().numpy() for bound in (curve.mean, curve.lower, curve.upper))
        if curve.best is not None:
            draw = draw_arc if curve.angular else draw_band
            draw(panel, axis, curve.best.cpu().numpy(), curve.colors, mean, lower, upper)
            return
        draw_steps(panel, axis, upper, lower, color=FAINT, alpha=0.3, linewidth=0, zorder=1)
        draw_steps(panel, axis, mean, None, color=curve.colors[0], linewidth=width, zorder=5)


def _which(series: Series, sequence: int) -> str:
    """A line that names the sequence of several that a figure shows, and how to see the next."""
    n = series.n_sequences
    if n == 1:
        return ""
    number = sequence % n
    name = "" if series.sequences is None else f" {series.sequences[number]}"
    return f"\nSequence{name}, {number + 1} of {n}; sequence={(number + 1) % n} shows the next"


def _time_axis(series: Series, horizon: int = 0) -> TimeAxis:
    """The positions of the steps and of future steps: their labels, or their gaps if there are no labels."""
    index = time_index(series.index_of(), series.n_steps)
    gaps = series.gaps if series.index is None and series.gaps is not None else None
    gaps = None if gaps is None else gaps[: series.n_steps + horizon]
    return TimeAxis.of(continued(index, horizon) if horizon else index, gaps)
