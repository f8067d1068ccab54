"""A comparison as a table of labelled arrays, and as a figure."""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...inference.numerics.scalars import MOST, check_integer, check_kind
from ...switching.data.timeline import time_index
from ...switching.views.colors import state_colors
from ...switching.views.drawing import GATE, INK, STRIP, TimeAxis, draw_states, new_figure, set_title

if TYPE_CHECKING:
    import xarray as xr

EXACT = "exact"
COLORS = {
    "message passing": "#8c2981",
    "one sweep": "#de4968",
    "one step": "#8c2981",
    "hard": "#de4968",
    "network": "#1f77b4",
}
MOST_NAMED = 12  # states
LEAST = 1e-17  # the value that the logarithmic axis shows for a distance of 0


def dataset(report: Any) -> "xr.Dataset":
    """See `Comparison.to_xarray`."""
    import xarray as xr

    inside = report.inside.cpu().numpy()
    names, batch = [*report.updates], inside.shape[:-1]
    sequences = ("sequence",) if batch else ()

    def flat(table: Any, *tail: int) -> np.ndarray:
        if table is None:
            return np.full((*((int(np.prod(batch)),) if batch else ()), inside.shape[-1], *tail), np.nan)
        values = table.detach().cpu().double().numpy()
        kept = inside.reshape(*inside.shape, *(1,) * (values.ndim - inside.ndim))
        values = np.where(kept, values, np.nan)
        return values.reshape(-1, *values.shape[len(batch) :]) if batch else values

    states = report.exact.state.shape[-1]
    beliefs = [flat(report.exact.state), *(flat(update.state) for update in report.updates.values())]
    gates = [flat(report.exact.redraw), *(flat(update.redraw) for update in report.updates.values())]
    fields = {"total_variation", "divergence", "gate_error", "evidence_lost"}
    data = {
        "state_probability": (("belief", *sequences, "time", "state"), np.stack(beliefs)),
        "redraw_probability": (("belief", *sequences, "time"), np.stack(gates)),
        "hidden": ((*sequences, "time", "unit"), flat(report.hidden)),
    } | {
        field: (
            ("update", *sequences, "time"),
            np.stack([flat(getattr(update, field)) for update in report.updates.values()]),
        )
        for field in sorted(fields)
    }
    coordinates = {"belief": [EXACT, *names], "update": names, "state": np.arange(states)}
    return xr.Dataset(data, coordinates | {"time": np.arange(inside.shape[-1])})


def plot_comparison(report: Any, sequence: int, steps: slice) -> Figure:
    """See `Comparison.plot`."""
    table, sequence = dataset(report), check_integer("sequence", sequence, least=-MOST)
    n = table.sizes.get("sequence", 1)
    if not -n <= sequence < n:
        raise ValueError(f"sequence: got {sequence}, but there are {n}.")
    if "sequence" in table.dims:
        table = table.isel(sequence=sequence)
    index = time_index(report.series.index_of(sequence), report.series.n_steps)
    length = int(np.isfinite(table["state_probability"].values[0, :, 0]).sum())
    kept = range(length)[check_kind("steps", steps, slice, "a slice")]
    if kept.step != 1 or len(kept) < 1:
        raise ValueError(f"steps: got {steps}, expected a range of the {length} steps of this sequence.")
    table, axis = table.isel(time=slice(kept.start, kept.stop)), TimeAxis.of(index[kept.start : kept.stop])
    beliefs = [str(name) for name in table["belief"].values]
    figure, panels = new_figure([*[STRIP] * len(beliefs), 2 * GATE, GATE])
    colors = state_colors(np.arange(table.sizes["state"]))
    for panel, name in zip(panels, beliefs, strict=False):
        draw_states(panel, axis, table["state_probability"].sel(belief=name).values, colors)
        panel.set_ylabel(name, rotation=0, ha="right", va="center")
    set_title(panels[0], "P(state), exact and as each update has it; its distance from the exact one; P(redraw)")
    for name in beliefs[1:]:
        distance = np.maximum(table["total_variation"].sel(update=name).values, LEAST)
        panels[-2].semilogy(axis.at, distance, color=COLORS.get(name, INK), linewidth=1.0, label=name)
    shown = np.maximum(table["total_variation"].values, LEAST)
    panels[-2].set_ylim(bottom=float(np.quantile(shown, 0.02)) / 3, top=1.0)  # distances of 0 do not stretch the axis
    panels[-2].set_ylabel("total\nvariation")
    _legend(panels[-2])
    for name in beliefs:
        gate = table["redraw_probability"].sel(belief=name).values
        if np.isfinite(gate).any():
            style = {"color": INK, "linewidth": 2.0, "alpha": 0.35} if name == EXACT else {"linewidth": 0.9}
            panels[-1].plot(axis.at, gate, label=name, **{"color": COLORS.get(name, INK), **style})
    if report.gates is not None:
        unit = report.gates.best
        draw = report.gates.draw[..., unit].detach().cpu().double().reshape(-1, report.series.n_steps).numpy()
        gate = draw[sequence if report.series.batch_shape else 0][kept.start : kept.stop]
        color = COLORS["network"]
        panels[-1].plot(
            axis.at, gate, label=f"network, gate of unit {unit}", color=color, linewidth=0.9, linestyle="--"
        )
    if panels[-1].lines:
        _legend(panels[-1])
    panels[-1].set_ylim(-0.02, 1.02)
    panels[-1].set_ylabel("redraw\nprobability")
    axis.mark(panels)
    if len(colors) <= MOST_NAMED:
        keys = [Patch(color=color, label=f"state {k}") for k, color in enumerate(colors)]
        figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), fontsize=8, frameon=False)
    return figure


def _legend(panel: Axes) -> None:
    """A legend above the panel, so that it hides nothing."""
    panel.legend(fontsize=8, frameon=False, ncols=4, loc="lower right", bbox_to_anchor=(1.0, 0.98), borderaxespad=0.0)
