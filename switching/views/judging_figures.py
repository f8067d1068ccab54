"""Figures that judge models: residuals, criteria of candidates, and backtests."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ndtri

from ..data.timeline import time_index
from .colors import state_colors
from .drawing import (
    FAINT,
    INK,
    MARGIN,
    PANEL,
    STRIP,
    WIDTH,
    NotebookFigure,
    TimeAxis,
    draw_series,
    draw_states,
    draw_steps,
    name_feature,
    set_title,
    style,
)

BAND = 1.96  # standard deviations
BINS = 10  # of a histogram
LINES = "-", "--", ":", "-."


def plot_residuals(residuals: Any, lags: int) -> Figure:
    """See `Residuals.plot`."""
    correlations, n = residuals.acf(lags), residuals.n_observed
    figure = NotebookFigure(WIDTH, PANEL * len(n))
    panels = figure.subplots(len(n), 3, squeeze=False, width_ratios=(2, 1, 1))
    index = residuals.table.index
    axis = TimeAxis.of(index if len(residuals.sequences) == 1 else pd.RangeIndex(len(index)))
    for row, name in zip(panels, residuals.table, strict=True):
        values = residuals.table[name].to_numpy()
        draw_series(row[0], axis, values, joined=False)
        for height in (-BAND, BAND):
            row[0].axhline(height, color=FAINT, linewidth=0.6, linestyle="--")
        axis.mark([row[0]])
        row[0].set_ylabel(name)
        _draw_quantiles(row[1], np.sort(values[~np.isnan(values)]))
        _draw_correlations(row[2], correlations[name], BAND / np.sqrt(n[name]))
        for panel in row:
            style(panel)
    for panel, title in zip(panels[0], ("Residuals", "Quantiles", "Autocorrelations"), strict=True):
        set_title(panel, title)
    return figure


def _draw_quantiles(panel: Axes, ordered: np.ndarray) -> None:
    """Ordered residuals against quantiles of a standard normal."""
    expected = ndtri((np.arange(len(ordered)) + 0.5) / len(ordered))
    panel.plot(expected, expected, color=FAINT, linewidth=0.8)
    panel.plot(expected, ordered, "o", color=INK, markersize=2.0, markeredgewidth=0)
    panel.set_xlabel("standard normal")


def _draw_correlations(panel: Axes, correlations: pd.Series, reach: float) -> None:
    panel.axhspan(-reach, reach, color=FAINT, alpha=0.2, linewidth=0)
    panel.vlines(correlations.index, 0, correlations, color=INK, linewidth=1.6)
    panel.axhline(0, color=FAINT, linewidth=0.6)
    panel.set_xlabel("lag")


def plot_selection(selection: Any) -> Figure:
    """See `Selection.plot`."""
    table = selection.table
    criteria = [name for name in ("aic", "bic", "icl", "aicc", "hqic") if name in table]
    groups = [group for group in (criteria, ["heldout"] if "heldout" in table else []) if group]
    figure = NotebookFigure(WIDTH, PANEL * len(groups) + MARGIN)
    places = np.arange(len(table))
    for panel, group in zip(figure.subplots(len(groups), 1, squeeze=False)[:, 0], groups, strict=True):
        for name, line in zip(group, LINES, strict=False):
            chosen = name == selection.criterion
            panel.plot(places, table[name], line, color=INK if chosen else FAINT, marker="o", markersize=3, label=name)
            if chosen:
                best = selection.place
                panel.plot(best, table[name][best], "o", color=INK, markersize=9, fillstyle="none")
        panel.set_xticks(places, [str(one) for one in selection.candidates])
        panel.set_ylabel("nats, higher is better" if group == ["heldout"] else "lower is better")
        panel.legend(frameon=False, fontsize=8)
        style(panel)
        if selection.criterion in group:
            set_title(panel, f"Best by {selection.criterion}: {selection.best}")
    return figure


def plot_backtest(result: Any) -> Figure:
    """See `Backtest.plot`."""
    n_features, states = result.series.n_features, result.states
    horizons = result.forecasts.index.unique("horizon")
    heights = [*[PANEL] * n_features, *[STRIP] * (not states.empty), PANEL]
    figure = NotebookFigure(WIDTH, sum(heights) + MARGIN)
    grid = figure.add_gridspec(len(heights), n_features, height_ratios=heights)
    labels = time_index(result.series.index_of(), result.series.n_steps)
    axis = TimeAxis.of(labels)
    shortest = result.forecasts.xs(horizons[0], level="horizon")
    places = labels.get_indexer(shortest["time"])
    panels = []
    for f, name in enumerate(result.series.features_of()):
        panel = figure.add_subplot(grid[f, :], sharex=panels[0] if panels else None)
        suffix = f"_{name}" if n_features > 1 else ""
        mean, lower, upper = (np.full(len(labels), np.nan) for _ in range(3))
        for table, kind in ((mean, "mean"), (lower, "lower"), (upper, "upper")):
            table[places] = shortest[f"{kind}{suffix}"]
        draw_steps(panel, axis, upper, lower, color=FAINT, alpha=0.3, linewidth=0, zorder=1)
        draw_steps(panel, axis, mean, None, color=INK, linewidth=1.2, zorder=5)
        draw_series(panel, axis, result.series.observations[:, f].cpu().numpy())
        name_feature(panel, name)
        panels.append(panel)
        _draw_pit(figure.add_subplot(grid[-1, f]), result.forecasts[f"pit{suffix}"], horizons)
    step = "step" if horizons[0] == 1 else "steps"
    set_title(panels[0], f"Forecasts {horizons[0]} {step} ahead, with {100 * result.level:g}% intervals")
    if not states.empty:
        panel, probs = figure.add_subplot(grid[n_features, :], sharex=panels[0]), states.filter(regex="^state_")
        table = np.full((len(labels), probs.shape[1]), np.nan)
        table[labels.get_indexer(states.index)] = probs
        draw_states(panel, axis, table, state_colors(np.arange(probs.shape[1])), "filtered\nstate")
        panels.append(panel)
    for panel in panels:
        style(panel)
    for panel in panels[:-1]:
        panel.tick_params(axis="x", labelbottom=False)
    axis.mark(panels)
    return figure


def _draw_pit(panel: Axes, pit: pd.Series, horizons: pd.Index) -> None:
    """A histogram for each horizon."""
    for horizon, shade in zip(horizons, np.linspace(0.0, 0.7, len(horizons)), strict=True):
        values = pit.xs(horizon, level="horizon").dropna()
        if values.empty:
            continue
        panel.hist(values, bins=BINS, range=(0, 1), density=True, histtype="step", color=str(shade), label=f"{horizon}")
    panel.axhline(1, color=FAINT, linewidth=0.6, linestyle="--")
    if pit.notna().any():
        panel.legend(title="steps ahead", frameon=False, fontsize=8, title_fontsize=8)
    panel.set_xlabel("probability integral transform")
    style(panel)
