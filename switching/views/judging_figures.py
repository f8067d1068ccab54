"""Figures that judge models: residuals, and criteria of candidates."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ndtri

from .drawing import FAINT, INK, MARGIN, PANEL, WIDTH, NotebookFigure, TimeAxis, draw_series, set_title, style

BAND = 1.96  # standard deviations
LINES = "-", "--", ":"


def plot_residuals(residuals: Any, lags: int) -> Figure:
    """See `Residuals.plot`."""
    correlations, n = residuals.acf(lags), residuals.n_observed
    figure = NotebookFigure(WIDTH, PANEL * len(n))
    panels = figure.subplots(len(n), 3, squeeze=False, width_ratios=(2, 1, 1))
    index = residuals.values.index
    axis = TimeAxis.of(index if len(residuals.sequences) == 1 else pd.RangeIndex(len(index)))
    for row, name in zip(panels, residuals.values, strict=True):
        values = residuals.values[name].to_numpy()
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
    criteria = [name for name in ("aic", "bic", "icl") if name in table]
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
