"""Figures of `Segments`: a series with its segments, their parameters, and the probability of a change."""

from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.special import ndtri
from torch import Tensor

from ...inference.numerics.scalars import check_probability
from ..data.series import Given
from .colors import state_colors
from .drawing import (
    FAINT,
    GATE,
    INK,
    PANEL,
    draw_band,
    draw_categories,
    draw_gate,
    draw_series,
    draw_steps,
    name_feature,
    new_figure,
    set_title,
)
from .figures import MOST_DRAWN, ForecastFrame, draw_expected, time_axis, which, within_support
from .segment_tables import columns

PARAMETER = 1.2  # inches
MOST_PARAMETERS = 12
SEEN = {"Normal": "loc", "MultivariateNormal": "loc", "Poisson": "rate", "Bernoulli": "probs"}
"""The parameter that is the mean of an observation; its panel is that of the feature."""
COLORS = state_colors(np.arange(2.0))  # of segments, in turn


@torch.no_grad()
def plot_fit(model: Any, x: Any, *, sequence: int = 0, level: float = 0.9, **given: Unpack[Given]) -> Figure:
    """A series, its most probable segments, the parameters at each step, and the probability of a change.

    From the top: each feature, with the posterior mean and band of the parameter that is its mean, if there is one, or
    for a categorical symbol with the mean probability of each category; the other parameters with their bands; P(a
    segment begins at t | x). Colours alternate between the segments of the most probable segmentation, whose beginnings
    are dashed lines. Bands are the mean plus and minus normal quantiles times the standard deviation, which includes
    the uncertainty of the segmentation. If there are many steps, every n-th is drawn.

    Arguments:
        x, lengths, inputs, dt: as in every method of the model; a pandas index becomes the time axis.
        sequence: the number of the sequence to draw, if x has several.
        level: probability of the bands, if parameters were normal.

    Raises:
        ValueError: as `model.smooth`; no such sequence; level outside (0, 1).
    """
    level = check_probability("level", level, proper=True)
    whole = model.read(x, **given)
    series = whole.one(sequence).cpu()
    smoothed, best = _of_one(model, whole, sequence)
    every = -(-series.n_steps // MOST_DRAWN)
    axis, reach = time_axis(series), float(ndtri((1 + level) / 2))
    thin = axis.thinned(every)
    number = best.path.cpu().numpy()[::every]
    categories = "category" in model.sizes
    others = [] if categories else _others(model, series, smoothed)
    n_features = series.n_features
    figure, panels = new_figure([*[PANEL] * n_features, *[PARAMETER] * len(others), GATE])
    shown = "the mean probability of each category" if categories else f"means and {100 * level:g}% bands of parameters"
    set_title(panels[0], f"Observed series and its most probable segments, with {shown}{which(whole, sequence)}")
    mean_name = SEEN.get(model.emission.name)
    for feature, name in enumerate(series.features_of()):
        if categories:
            draw_categories(panels[feature], thin, smoothed.mean["probs"].cpu().numpy()[::every])
        elif mean_name is not None:
            mean, sd = (table[mean_name][:, feature].cpu() for table in (smoothed.mean, smoothed.sd))
            ends = within_support(model.emission, mean - reach * sd, mean + reach * sd)
            bounds = (table.numpy()[::every] for table in (mean, *ends))
            draw_band(panels[feature], thin, number % 2, COLORS, *bounds)
        observed = series.observations[:, feature].numpy()[::every]
        draw_series(panels[feature], thin, observed, joined=not (categories or mean_name == "probs"))
        name_feature(panels[feature], name)
    for panel, (name, mean, sd) in zip(panels[n_features:], others, strict=False):
        bounds = (table.numpy()[::every] for table in (mean, mean - reach * sd, mean + reach * sd))
        draw_band(panel, thin, number % 2, COLORS, *bounds)
        name_feature(panel, name)
    _draw_changes(panels, axis, best, smoothed.change, every)
    thin.mark(panels)
    return figure


def _of_one(model: Any, whole: Any, sequence: int) -> tuple[Any, Any]:
    """The belief and the most probable segmentation of one sequence; if changes are shared, given all sequences."""
    if not model.shared:
        one = whole.one(sequence)
        return model.smooth(one), model.viterbi(one)
    n = len(whole.batch_shape)

    def part(table: Tensor) -> Tensor:
        return table.flatten(0, n - 1)[sequence][: int(whole.last.flatten()[sequence]) + 1] if n else table

    smoothed, best = model.smooth(whole), model.viterbi(whole)
    mean, sd = ({name: part(table) for name, table in tables.items()} for tables in (smoothed.mean, smoothed.sd))
    return (
        replace(smoothed, change=part(smoothed.change), mean=mean, sd=sd),
        replace(best, path=part(best.path), redraw=part(best.redraw)),
    )


def _others(model: Any, series: Any, smoothed: Any) -> list[tuple[str, Tensor, Tensor]]:
    """Name, mean and standard deviation of the numbers that are not drawn beside the series."""
    found = columns(model, series, smoothed.mean, smoothed.sd)
    names = [name for name in found if f"{name}_sd" in found]
    seen = SEEN.get(model.emission.name)
    names = [name for name in names if seen is None or not (name == seen or name.startswith(f"{seen}_"))]
    return [(name, found[name].cpu(), found[f"{name}_sd"].cpu()) for name in names[:MOST_PARAMETERS]]


def _draw_changes(panels: Any, axis: Any, best: Any, change: Tensor, every: int) -> None:
    """The beginnings of segments, and the probability of a change; of n steps that of the likeliest."""
    begins = best.redraw.nonzero().flatten().tolist()[1:]
    for panel in panels[:-1]:
        for begin in begins:
            panel.axvline(axis.edges[begin], color=FAINT, linewidth=0.8, linestyle="--", zorder=2)
    changes = change.cpu().numpy().copy()
    changes[0] = 0.0
    padded = np.pad(changes, (0, -len(changes) % every)).reshape(-1, every).max(-1)
    draw_gate(panels[-1], axis.thinned(every), padded, "change")


@torch.no_grad()
def plot_forecast(forecast: Any, level: float = 0.9) -> Figure:
    """The end of a series and the forecast after it, with the probability of a change: before its end P(a segment
    begins at t | x), after it that of a change since the end; for one sequence, see `Forecast.plot`."""
    model, series = forecast.source, forecast.series
    if "category" in model.sizes:
        return _plot_categories(forecast, model)
    frame = ForecastFrame.of(forecast, [*[PANEL] * series.n_features, GATE], level)
    draw_expected(frame.panels, frame.observed, frame.expected, frame.ahead)
    _draw_belief(frame, model, forecast)
    return frame.finished()


def _plot_categories(forecast: Any, model: Any) -> Figure:
    frame = ForecastFrame.of(forecast, [PANEL, GATE], 0.9, "the probability of each category")
    draw_categories(frame.panels[0], frame.ahead, forecast.probs.cpu().numpy())
    series, axis = frame.observed
    draw_series(frame.panels[0], axis, series.observations[:, 0].numpy(), joined=False)
    name_feature(frame.panels[0], series.features_of()[0])
    _draw_belief(frame, model, forecast)
    return frame.finished()


def _draw_belief(frame: Any, model: Any, forecast: Any) -> None:
    change = model.smooth(forecast.series).change.cpu().clone()
    change[..., 0] = 0.0
    both = torch.cat([change[frame.first :], forecast.redraw.cpu()]).numpy()
    panel = frame.panels[-1]
    draw_steps(panel, frame.axis, both, np.zeros_like(both), color=INK, linewidth=0.5)
    panel.set_ylim(0, 1)
    panel.set_yticks([0, 0.5, 1])
    panel.set_ylabel("change\nprobability")
