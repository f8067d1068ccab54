"""The elements of figures: a shared time axis, series, bands, stacked states and gates."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from textwrap import fill
from typing import Any

import matplotlib.dates as dates
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy import ndarray
from scipy.optimize import isotonic_regression

from ..data.timeline import calendar, label_text
from .colors import from_dark_to_light

INK, FAINT = "#262626", "#8c8c8c"
WIDTH, PANEL, STRIP, CURVE, GATE, MARGIN = 9.0, 2.6, 0.4, 1.2, 0.85, 0.9  # inches
MAX_NAMED_GATES = 6
LETTER = 0.009  # width of a gate's letter, as a share of the panel
LATE = 0.75  # the share of the panel from which on the name of a gate is on its left
LINE, FONT = 0.16, 9.0  # of a label: inches and points
LONGEST_NAME = 36  # letters of a feature's name in a line
MANY_STEPS = 2000
HALO: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.0}


@dataclass(frozen=True)
class TimeAxis:
    """The positions of steps: `at [T]`, edges of their cells `[T + 1]`, the labels of ticks, and the limits."""

    at: ndarray
    edges: ndarray
    labels: pd.Index
    kind: str  # "date", "number" or "text"
    limits: tuple[float, float]

    @staticmethod
    def of(index: pd.Index, gaps: Any = None) -> "TimeAxis":
        """Dates and increasing numbers are positions, and so are cumulated gaps; otherwise steps are at distance 1."""
        index = calendar(index)
        kind, at = "text", np.arange(len(index), dtype=np.float64)
        if gaps is not None:
            kind, at = "number", np.concatenate([[0.0], np.cumsum(np.asarray(gaps, dtype=np.float64)[1:])])
        elif isinstance(index, pd.PeriodIndex):
            kind, at = "date", np.asarray(dates.date2num(index.to_timestamp()))
        elif isinstance(index, pd.DatetimeIndex):
            kind, at = "date", np.asarray(dates.date2num(index.tz_localize(None)))
        elif pd.api.types.is_numeric_dtype(index):
            kind, at = "number", index.to_numpy(dtype=np.float64)
        if not (np.isfinite(at).all() and (np.diff(at) > 0).all()):
            kind, at = "text", np.arange(len(index), dtype=np.float64)
        steps = np.diff(at) if len(at) > 1 else np.ones(1)
        edges = np.concatenate([[at[0] - steps[0] / 2], (at[:-1] + at[1:]) / 2, [at[-1] + steps[-1] / 2]])
        return TimeAxis(at, edges, index, kind, (edges[0], edges[-1]))

    def part(self, start: int, stop: int) -> "TimeAxis":
        """The steps from `start` up to `stop`."""
        edges = self.edges[start : stop + 1]
        return TimeAxis(self.at[start:stop], edges, self.labels[start:stop], self.kind, (edges[0], edges[-1]))

    def thinned(self, every: int) -> "TimeAxis":
        """Every n-th step, with the width of n steps."""
        edges = np.concatenate([self.edges[:-1:every], self.edges[-1:]])
        return replace(self, at=self.at[::every], edges=edges, labels=self.labels[::every])

    def mark(self, panels: Sequence[Axes]) -> None:
        """Set the limits, and the ticks under the last panel; all panels share both."""
        last = panels[-1]
        last.set_xlim(*self.limits)
        last.tick_params(axis="x", labelbottom=True, bottom=True)
        if self.kind == "date":
            locator = dates.AutoDateLocator(minticks=4, maxticks=9)
            last.xaxis.set_major_locator(locator)
            last.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
            return
        integer_valued = self.kind == "text" or bool((self.at == np.round(self.at)).all())
        last.xaxis.set_major_locator(MaxNLocator(8, integer=integer_valued, steps=[1, 2, 5, 10]))
        if self.kind == "text":
            names = {round(at): label_text(label) for at, label in zip(self.at, self.labels, strict=True)}
            last.xaxis.set_major_formatter(FuncFormatter(lambda at, _: names.get(round(at), "")))
        if self.labels.name is not None:
            last.set_xlabel(str(self.labels.name))


class NotebookFigure(Figure):
    """A figure on white that a notebook shows as the last line of a cell, with or without pyplot."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), layout="constrained", facecolor="white")

    def _repr_png_(self) -> bytes:
        """The method that IPython calls for an object of unknown type."""
        file = BytesIO()
        self.savefig(file, format="png", bbox_inches="tight")
        return file.getvalue()


def new_figure(heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """Panels of these heights in inches, one below the other, with one time axis."""
    figure = NotebookFigure(WIDTH, sum(heights) + MARGIN)
    panels = list(figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
    for panel in panels:
        style(panel)
    for panel in panels[:-1]:
        panel.tick_params(axis="x", bottom=False)
    figure.align_ylabels(panels)
    return figure, panels


def style(panel: Axes) -> None:
    """The lines and letters of every panel."""
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        panel.spines[side].set_color(FAINT)
    panel.tick_params(colors=INK, labelsize=9, color=FAINT)
    for axis in (panel.xaxis, panel.yaxis):
        axis.label.set_size(9)  # pyright: ignore[reportAttributeAccessIssue] a method that matplotlib makes


def set_title(panel: Axes, text: str) -> None:
    """A line of text above the panel."""
    panel.set_title(text, loc="left", fontsize=10, color=INK, pad=8)


def draw_series(panel: Axes, axis: TimeAxis, observed: ndarray, joined: bool = True) -> None:
    """Points, joined by a thin line with gaps at missing values; a long series is a faint cloud."""
    n = len(observed)
    size, alpha = (1.0, 0.2) if n >= MANY_STEPS else (min(3.2, max(1.0, 600 / n)), 1.0)
    if joined and n < MANY_STEPS:
        panel.plot(axis.at, observed, color=INK, linewidth=0.5, alpha=0.55, zorder=3)
    panel.plot(axis.at, observed, "o", color=INK, markersize=size, alpha=alpha, markeredgewidth=0, zorder=4)


def draw_steps(panel: Axes, axis: TimeAxis, values: ndarray, baseline: ndarray | None, **style: Any) -> None:
    """A line of steps, filled down to the baseline if there is one; gaps where values are NaN."""
    if np.isnan(values).all():
        return
    # Axes.stairs would loop over every vertex in Python to find the limits, which takes minutes for a long series
    floor: Any = baseline  # matplotlib accepts an array, but its annotation differs
    panel.add_artist(StepPatch(values, axis.edges, baseline=floor, fill=baseline is not None, **style))
    ends = np.concatenate([values, [] if baseline is None else baseline])
    ends = ends[np.isfinite(ends)]
    if ends.size:
        panel.update_datalim([(axis.edges[0], ends.min()), (axis.edges[-1], ends.max())])
        panel.autoscale_view()


def draw_band(
    panel: Axes, axis: TimeAxis, best: ndarray, colors: Sequence[str], mean: ndarray, lower: ndarray, upper: ndarray
) -> None:
    """The mean as steps in a band, each step in the colour of its most probable state."""
    draw_steps(panel, axis, mean, None, color=FAINT, linewidth=0.6, zorder=2)
    for state, color in enumerate(colors):
        here = best == state
        if here.any():
            shown = here & ~np.isnan(upper + lower)
            top, bottom = (np.where(shown, bound, np.nan) for bound in (upper, lower))
            middle = np.where(here, mean, np.nan)
            draw_steps(panel, axis, top, bottom, color=color, alpha=0.22, linewidth=0, zorder=1)
            draw_steps(panel, axis, middle, None, color=color, linewidth=2.2, zorder=5)


def draw_arc(
    panel: Axes, axis: TimeAxis, best: ndarray, colors: Sequence[str], mean: ndarray, lower: ndarray, upper: ndarray
) -> None:
    """`draw_band` of angles from -pi to pi: the part beyond one end is drawn at the other."""
    draw_band(panel, axis, best, colors, mean, lower.clip(-np.pi, np.pi), upper.clip(-np.pi, np.pi))
    nothing, turn = np.full_like(mean, np.nan), 2 * np.pi
    above = np.where(upper > np.pi, upper - turn, np.nan), np.full_like(mean, -np.pi)
    below = np.full_like(mean, np.pi), np.where(lower < -np.pi, lower + turn, np.nan)
    for top, bottom in (above, below):
        draw_band(panel, axis, best, colors, nothing, bottom, top)
    panel.set_ylim(-np.pi, np.pi)
    panel.set_yticks([-np.pi, 0.0, np.pi], ["-π", "0", "π"])


def draw_categories(panel: Axes, axis: TimeAxis, probs: ndarray) -> None:
    """The probability of each category at each step as shades of grey."""
    rows = np.arange(probs.shape[1] + 1) - 0.5
    panel.pcolormesh(axis.edges, rows, probs.T, cmap="Blues", vmin=0.0, vmax=1.2, zorder=1)
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))


def label_states(panel: Axes, heights: ndarray, texts: Sequence[str], colors: Sequence[str]) -> None:
    """A text for each state in its colour, beside the panel at its height, moved if two would overlap."""
    low, high = panel.get_ylim()
    panel.set_ylim(low, high)
    where, line = np.clip((heights - low) / (high - low), 0.0, 1.0), LINE / PANEL
    gap = min(line, 1 / len(texts))  # for very many states, all gaps are small
    size = FONT * gap / line
    for text, at, color in zip(texts, apart(where, gap), colors, strict=True):
        panel.text(1.01, at, text, transform=panel.transAxes, color=color, va="center", fontsize=size, weight="bold")


def apart(where: ndarray, gap: float) -> ndarray:
    """The positions in their order, moved as little as needed to be `gap` apart and half of that inside 0 and 1."""
    order, index = np.argsort(where, kind="stable"), np.arange(len(where))
    moved = np.empty(len(where))
    # positions less index * gap must not fall
    risen = isotonic_regression(where[order] - index * gap).x
    moved[order] = risen.clip(gap / 2, max(gap / 2, 1 + gap / 2 - len(where) * gap)) + index * gap
    return moved


def name_feature(panel: Axes, name: str) -> None:
    """The name of a feature to the left of its panel, in several lines if it is longer than the panel is high."""
    panel.set_ylabel(fill(name, LONGEST_NAME))


def draw_states(panel: Axes, axis: TimeAxis, state: ndarray, colors: Sequence[str], name: str = "state") -> None:
    """The probabilities of the states at each step, stacked, in the order of `colors` from dark to light."""
    base = np.zeros(len(state))
    for k in from_dark_to_light(colors):
        top = base + state[:, k]
        draw_steps(panel, axis, top, base, color=colors[k], linewidth=0)
        base = top
    panel.set_ylim(0, 1)
    panel.set_yticks([])
    panel.spines["left"].set_visible(False)
    panel.set_ylabel(name, rotation=0, ha="right", va="center")


def draw_gate(panel: Axes, axis: TimeAxis, gate: ndarray, name: str, named: bool = True) -> None:
    """The probability of a redraw (or change) at each step. If `named`, the first is left out, and the likely ones have
    their names, if they are few.

    If two are so close that their names would overlap, only the more probable one is named.
    """
    later = gate.copy()
    later[:named] = np.nan
    draw_steps(panel, axis, later, np.zeros_like(later), color=INK, linewidth=0.5)  # thin bars stay visible
    likely = np.flatnonzero(np.nan_to_num(later) >= 0.5)
    if named and len(likely) <= MAX_NAMED_GATES:
        spans: list[tuple[float, float]] = []  # start and end of each name
        duration = axis.edges[-1] - axis.edges[0]
        for step in likely[np.argsort(-gate[likely], kind="stable")]:
            text = f" {label_text(axis.labels[step])}: {gate[step]:.2f} "
            late = axis.at[step] - axis.edges[0] > LATE * duration
            side, at = "right" if late else "left", float(axis.edges[step if late else step + 1])
            width = LETTER * len(text) * float(duration)
            span = (at - width, at) if late else (at, at + width)
            if any(span[0] < end and start < span[1] for start, end in spans):
                continue
            spans.append(span)
            panel.text(at, float(gate[step]), text, ha=side, va="top", fontsize=8, color=INK, bbox=HALO)
    panel.set_ylim(0, 1)
    panel.set_yticks([0, 0.5, 1])
    panel.set_ylabel(f"{name}\nprobability")
