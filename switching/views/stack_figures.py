"""Figures of a stack over time: heat maps on one time axis, and the most probable stacks of one step.

They show the tables of one sequence, with elements numbered as in `samplehold.switching.stacks`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from ...inference.numerics.checks import check_parts
from ...inference.numerics.scalars import MOST, check_integer
from .drawing import FAINT, INK, NotebookFigure, set_title

BLUES, BAR, CELL, LINE = "Blues", "#4a86b8", "#eef3f8", "#e8743b"
ROW, STEP = 0.17, 0.24  # inches
SMALLEST, LARGEST = 5.0, 12.0  # width of a figure
LEAST = 1e-3  # rows with less probability than this at every step are omitted
MANY = 40  # the number of rows or steps beyond which not all names are shown


@dataclass(frozen=True)
class Panel:
    """One heat map.

    Arguments:
        title: the name of the quantity.
        table: probabilities [T, X].
        rows: names of the X rows, from the bottom; None: numbers.
        best: [T], the row of each step in the most probable history, drawn as a line over the map.
    """

    title: str
    table: Tensor
    rows: Sequence[str] | None = None
    best: Tensor | None = None


def one_of(sequence: int | Sequence[int], batch: Sequence[int]) -> tuple[int, ...]:
    """The index of one sequence in the batch axes; `ValueError` if there is no such sequence."""
    several = isinstance(sequence, list | tuple)
    index = tuple(check_integer("sequence", i, least=-MOST) for i in (sequence if several else [sequence]))
    if len(index) != len(batch) or any(not -n <= i < n for i, n in zip(index, batch, strict=True)):
        raise ValueError(
            f"sequence: got {list(index)}, but the batch axes are {list(batch)}; give the index of one sequence."
        )
    return index


def heat_maps(panels: Sequence[Panel], steps: Sequence[str] | None = None) -> Figure:
    """Panels one below the other, with time to the right and probability as darkness; `steps` names the steps."""
    n = len(panels[0].table)
    heights = [max(0.5, ROW * min(panel.table.shape[1], MANY)) for panel in panels]
    width = min(LARGEST, max(SMALLEST, 1.8 + STEP * n))
    figure = NotebookFigure(width, 0.5 + sum(heights) + 0.35 * len(panels))
    axes = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
    for axis, panel in zip(axes, panels, strict=True):
        _draw(axis, panel)
    if steps is not None and n <= MANY:
        axes[-1].set_xticks(range(n), steps)
    else:
        axes[-1].xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes[-1].set_xlabel("step", fontsize=9, color=INK)
    bar = figure.colorbar(axes[0].images[0], ax=axes, shrink=min(1.0, 1.6 / sum(heights)), aspect=12, pad=0.02)
    bar.set_label("probability", fontsize=9, color=INK)
    bar.ax.tick_params(labelsize=8, colors=INK, color=FAINT)
    return figure


def _draw(axis: Axes, panel: Panel) -> None:
    table = panel.table.detach().cpu().double().numpy()
    axis.imshow(table.T, aspect="auto", origin="lower", cmap=BLUES, vmin=0, vmax=1, interpolation="nearest")
    _plain(axis)
    title = panel.title
    if panel.best is not None:
        axis.plot(range(len(table)), panel.best.cpu().numpy(), "o-", color=LINE, linewidth=1.2, markersize=3)
        title = f"{title}; line: the most probable history"
    set_title(axis, title)
    if panel.rows is not None:
        every = -(-len(panel.rows) // MANY)
        axis.set_yticks(range(0, len(panel.rows), every), panel.rows[::every])
    else:
        axis.yaxis.set_major_locator(MaxNLocator(6, integer=True))


def check_names(name: str, names: Any, **numbers: int) -> list[str] | None:
    """Names as a list, whose length is one of these numbers; None if there are none."""
    if names is None:
        return None
    parts = check_parts(name, names, 0)
    if any(getattr(one, "ndim", 0) for one in parts):
        raise TypeError(f"{name}: got a table, expected a list of names.")
    labels = [str(one) for one in parts]
    if len(labels) not in numbers.values():
        there = " or ".join(f"{number} {things}" for things, number in numbers.items())
        raise ValueError(f"{name}: got {len(labels)} names, but there are {there}; give one each, or None.")
    return labels


def _plain(axis: Axes) -> None:
    axis.tick_params(labelsize=8, colors=INK, color=FAINT, length=2)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(FAINT)


def plot_mixture(
    action: Sequence[tuple[str, Tensor]],
    depth: Float[Tensor, "T C"],
    top: Float[Tensor, "T C"],
    best: Int[Tensor, " T"],
    steps: Sequence[str] | None,
) -> Figure:
    """See `StackMixture.plot`: titles and tables [T, A] of actions, then P(depth), P(on top), depths of one history."""
    deepest = max(1, int(best.max()), int((depth > LEAST).any(0).nonzero().max()))
    names = ["push", "pop", "no-op", *(f"pop {n}" for n in range(2, action[0][1].shape[-1] - 1))]
    panels = [
        *(Panel(title, table, names) for title, table in action),
        Panel("depth", depth[:, : deepest + 1], best=best),
        _on_top(top, steps, "empty"),
    ]
    return heat_maps(panels, steps)


def plot_automaton(
    action: Float[Tensor, "T 3"],
    configuration: Float[Tensor, "T Q G"],
    top: Float[Tensor, "T C"],
    steps: Sequence[str] | None,
) -> Figure:
    """See `PushdownAutomaton.plot`."""
    _, Q, G = configuration.shape
    title = "symbol on top" if Q == 1 else "state, symbol on top"
    names = [f"{x}" if Q == 1 else f"{q}, {x}" for q in range(Q) for x in range(G)]
    panels = [
        Panel("action", action, ["push", "pop", "replace"]),
        Panel(title, configuration.flatten(1), names),
        _on_top(top, steps, "bottom"),
    ]
    return heat_maps(panels, steps)


def _on_top(top: Float[Tensor, "T C"], steps: Sequence[str] | None, last: str) -> Panel:
    """The element on top: from below the last element, the initial cells, and the push of each step, if ever on top."""
    T, C = top.shape
    names = [*(map(str, range(T)) if steps is None else steps), *(f"initial {n}" for n in range(C - 1 - T)), last]
    upward = [*reversed(range(T, C)), *range(T)]
    shown = [c for c in upward if c == C - 1 or bool((top[:, c] > LEAST).any())]
    return Panel("on top, by the step that pushed it", top[:, shown], [names[c] for c in shown])


def plot_stacks(
    stacks: Int[Tensor, "n depth"], weight: Float[Tensor, " n"], names: list[str], most: int, title: str
) -> Figure:
    """See `Histories.plot`: stacks of element numbers from the top, and a name for each element but the last.

    Equal stacks are drawn once, upward from the bottom, with a bar of their probability above.
    """
    different, group = torch.unique(stacks, dim=0, return_inverse=True)
    total = weight.new_zeros(len(different)).index_add_(0, group, weight)
    order = total.argsort(descending=True, stable=True)[:most]
    upward = [[names[c] for c in reversed(row) if c < len(names)] for row in different[order].tolist()]
    tallest, at = max(1, *map(len, upward)), range(len(order))
    column = max([0.55, *(0.15 + 0.07 * len(name) for stack in upward for name in stack)])
    size = max(3.2, 0.8 + column * len(order)), 1.9 + 0.22 * tallest
    figure = NotebookFigure(*size)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1.2, 0.3 + 0.22 * tallest])
    above.bar(at, total[order].tolist(), width=0.7, color=BAR)
    above.set(ylim=(0, 1.15 * float(total.max())), xticks=[])
    above.set_ylabel("probability", fontsize=9, color=INK)
    for i, stack, p in zip(at, upward, total[order].tolist(), strict=True):
        above.text(i, p, f"{p:.2f}", ha="center", va="bottom", fontsize=8, color=INK)
        below.bar([i] * len(stack), 1.0, 0.7, [h - 0.5 for h in range(len(stack))], color=CELL, ec=FAINT, lw=0.6)
        for height, name in enumerate(stack):
            below.text(i, height, name, ha="center", va="center", fontsize=8, color=INK)
        if not stack:
            below.text(i, 0, "empty", ha="center", va="center", fontsize=8, color=FAINT, style="italic")
    _plain(above)
    _plain(below)
    below.set(xlim=(-0.6, len(order) - 0.4), ylim=(-0.6, tallest - 0.4), xticks=[], yticks=[])
    below.spines["left"].set_visible(False)
    below.set_xlabel("stack, top uppermost", fontsize=9, color=INK)
    left_out = f": {len(order)} of {len(different)}" if len(order) < len(different) else ""
    set_title(above, f"{title}{left_out}")
    return figure
