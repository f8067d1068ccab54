"""Pictures of a stack over time: heat maps of tables [T, X] on one time axis."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor


@dataclass(frozen=True)
class Panel:
    """One heat map: probabilities [T, X], and the names of its rows (numbers where None)."""

    title: str
    table: Tensor
    rows: Sequence[str] | None = None


def heat_maps(panels: Sequence[Panel], steps: Sequence[str] | None = None) -> Figure:
    """Panels under each other, time to the right, probability as darkness; `steps` names the steps."""
    tables = [panel.table.detach().cpu().double().numpy() for panel in panels]
    heights = [0.5 + 0.17 * table.shape[1] for table in tables]
    figure, axes = plt.subplots(
        len(panels), 1, sharex=True, squeeze=False, layout="constrained", height_ratios=heights,
        figsize=(2 + 0.28 * tables[0].shape[0], 0.6 + sum(heights)),
    )  # fmt: skip
    for axis, panel, table in zip(axes[:, 0], panels, tables, strict=True):
        axis.imshow(table.T, aspect="auto", origin="lower", cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        axis.set_ylabel(panel.title)
        if panel.rows is not None:
            axis.set_yticks(range(len(panel.rows)), panel.rows)
    if steps is not None:
        axes[-1, 0].set_xticks(range(len(steps)), steps)
    axes[-1, 0].set_xlabel("step")
    figure.colorbar(axes[0, 0].images[0], ax=axes[:, 0], label="probability", shrink=0.6)
    return figure
