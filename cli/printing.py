"""What a fit says on the terminal: its parameters, its most probable switches, and how it went."""

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..switching.data.tables import TableSeries
from ..switching.data.timeline import label_text
from ..switching.fitting.fit import Fit

if TYPE_CHECKING:
    import xarray as xr

MAX_LISTED = 10  # switches in the printed list
LISTED_FROM = 0.1  # and the least probability that gets one there


def show_parameters(console: Console, posterior: "xr.Dataset", smoothed: "xr.Dataset") -> None:
    """Print the parameters of each state side by side, and a line for each parameter that belongs to no state."""
    share = smoothed["state_probability"].mean("time").values
    table = Table(title="Parameters", title_justify="left")
    table.add_column("")
    for state in range(len(share)):
        table.add_column(f"state {state}", justify="right")
    table.add_row("share of steps", *(f"{number:.4g}" for number in share))
    others = []
    for name, value in posterior.data_vars.items():
        by_state = value.dims[:1] == ("state",)
        for label, entries in _rows(value, value.dims[1:] if by_state else value.dims):
            if by_state:
                table.add_row(escape(f"{name}{label}"), *(f"{number:.4g}" for number in entries))
            else:
                others.append(f"{name}{label}: {float(entries):.4g}")
    console.print(table)
    for line in others:
        console.print(escape(line))


def _rows(value: "xr.DataArray", dims: Sequence[Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Each entry along the dims with what tells it from the others; of a covariance, one half."""
    for place in itertools.product(*(range(value.sizes[dim]) for dim in dims)):
        if "feature_new" in dims and place[0] < place[1]:
            continue
        labels = [str(value[dim].values[i]) for dim, i in zip(dims, place, strict=True)]
        if tuple(dims) == ("state_new",):
            labels = [f"-> {labels[0]}"]
        yield " ".join(["", *labels]), value.isel(dict(zip(dims, place, strict=True))).values


def show_switches(console: Console, series: TableSeries, smoothed: "xr.Dataset") -> None:
    """Print the steps at which the state was most probably redrawn (Markov dynamics: changed)."""
    copies = "redraw_probability" in smoothed
    change = smoothed["change_probability"].values
    probability = smoothed["redraw_probability"].values if copies else change
    best = smoothed["state_probability"].values.argmax(-1)
    order = [t for t in np.argsort(-probability, kind="stable") if t > 0 and probability[t] >= LISTED_FROM][:MAX_LISTED]
    if not order:
        console.print(
            f"No step after the first has a probability of {LISTED_FROM:g} or more that its state was redrawn."
        )
        return
    what = "redraws" if copies else "changes of state"
    table = Table(title=f"Most probable {what}", title_justify="left")
    for name in (series.time or "step", *(["P(redraw)"] if copies else []), "P(state changed)", "most probable state"):
        table.add_column(escape(name), justify="right")
    for t in order:
        shown = [f"{probability[t]:.3f}"] if copies else []
        table.add_row(
            escape(label_text(series.observed.index[t])), *shown, f"{change[t]:.3f}", f"{best[t - 1]} -> {best[t]}"
        )
    console.print(table)


def show_course(console: Console, fit: Fit) -> None:
    """Print how the fit went, and what is wrong with it, if anything is."""
    end = "converged" if fit.converged else "not converged: raise --max-steps"
    if fit.interrupted:
        end = "interrupted, the best so far"
    restarts = len(fit.restarts)
    console.print(
        f"EM: objective {float(fit.objective[-1]):.6g} after {fit.steps} steps, {end}; best of {restarts} start(s)."
    )
    for name, states in (("empty", fit.empty_states), ("collapsed onto a single point", fit.collapsed_states)):
        assert not isinstance(states, tuple)
        if states.any():
            which = ", ".join(str(k) for k in states.nonzero()[:, 0].tolist())
            console.print(
                f"Warning: state(s) {which} {name}; fit fewer states, or keep --prior scaled.", style="yellow"
            )
