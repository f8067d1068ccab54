"""The terminal output of a fit: its parameters, its most probable switches, and how it ended."""

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from ..switching.data.timeline import label_text
from ..switching.fit import Fit

if TYPE_CHECKING:
    import xarray as xr

MAX_LISTED = 10  # switches in the printed list
WIDEST = 10_000  # columns of text
LISTED_FROM = 0.1  # the least probability of a listed switch


def show_parameters(console: Console, estimates: "xr.Dataset", states_table: pd.DataFrame) -> None:
    """Print the parameters of each state side by side, and a line for each parameter that does not depend on the state.

    If the states do not fit side by side, they are in several tables, one below the other.
    """
    share = states_table.filter(regex=r"^state_\d+$").mean()
    rows, others = [("share of steps", share.to_numpy())], []
    for name, value in estimates.data_vars.items():
        by_state = value.dims[:1] == ("state",)
        for label, entries in _rows(value, value.dims[1:] if by_state else value.dims):
            if by_state:
                rows.append((f"{name}{label}", entries))
            else:
                others.append(f"{name}{label}: {float(entries):.4g}")
    n_states = len(share)

    def fit_side_by_side(width: int) -> bool:
        return all(_width(console, _states_table(rows, part)) <= console.width for part in _parts(n_states, width))

    width = next((width for width in range(n_states, 1, -1) if fit_side_by_side(width)), 1)
    for part in _parts(n_states, width):
        print_whole(console, _states_table(rows, part))
    for line in others:
        console.print(escape(line), soft_wrap=True)


def _parts(n_states: int, width: int) -> list[range]:
    return [range(start, min(start + width, n_states)) for start in range(0, n_states, width)]


def _states_table(rows: list[tuple[str, np.ndarray]], states: range) -> Table:
    table = Table(title="Parameters", title_justify="left")
    table.add_column("", no_wrap=True)
    for state in states:
        table.add_column(f"state {state}", justify="right", no_wrap=True)
    for label, entries in rows:
        table.add_row(escape(label), *(f"{entries[state]:.4g}" for state in states))
    return table


def _width(console: Console, table: Table) -> int:
    """The width at which no cell is cut."""
    return Measurement.get(console, console.options.update(max_width=WIDEST), table).maximum


def print_whole(console: Console, table: Table) -> None:
    """Print the table with complete cells, even in a narrow terminal or file."""
    Console(highlight=False, width=max(console.width, _width(console, table))).print(table)


def _rows(value: "xr.DataArray", dims: Sequence[Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Each entry along the dims with its label; for a covariance, one triangle."""
    for place in itertools.product(*(range(value.sizes[dim]) for dim in dims)):
        if "feature_new" in dims and place[0] < place[1]:
            continue
        labels = [str(value[dim].values[i]) for dim, i in zip(dims, place, strict=True)]
        if tuple(dims) == ("state_new",):
            labels = [f"-> {labels[0]}"]
        yield " ".join(["", *labels]), value.isel(dict(zip(dims, place, strict=True))).values


def show_switches(console: Console, states_table: pd.DataFrame) -> None:
    """Print the steps at which the state was most probably redrawn (Markov dynamics: changed)."""
    copies = "redraw" in states_table
    change, state = states_table["change"].to_numpy(), states_table["state"].to_numpy()
    probability = states_table["redraw"].to_numpy() if copies else change
    before = _step_before(states_table.index)
    listed = [row for row in np.argsort(-probability, kind="stable") if before[row] >= 0][:MAX_LISTED]
    listed = [row for row in listed if probability[row] >= LISTED_FROM]
    if not listed:
        console.print(
            f"No step after the first has a probability of {LISTED_FROM:g} or more that its state was redrawn.",
            soft_wrap=True,
        )
        return
    table = Table(title=f"Most probable {'redraws' if copies else 'changes of state'}", title_justify="left")
    for name in states_table.index.names:
        table.add_column(escape(str(name)), justify="right", no_wrap=True)
    for name in (*(["P(redraw)"] if copies else []), "P(change)"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", justify="right", no_wrap=True)
    for row in listed:
        labels = states_table.index[row] if states_table.index.nlevels > 1 else (states_table.index[row],)
        shown = [f"{probability[row]:.3f}"] if copies else []
        moved = f"{state[before[row]]} -> {state[row]}"
        table.add_row(*(escape(label_text(label)) for label in labels), *shown, f"{change[row]:.3f}", moved)
    print_whole(console, table)


def _step_before(index: pd.Index) -> np.ndarray:
    """The row of the previous step in the same sequence (named by the first level) for each row; -1 if there is
    none."""
    rows = pd.Series(np.arange(len(index)))
    if index.nlevels > 1:
        return rows.groupby(index.get_level_values(0), sort=False).shift(fill_value=-1).to_numpy()
    return rows.shift(fill_value=-1).to_numpy()


def _search(restarts: pd.DataFrame) -> str:
    """How many starts were tried, how many were run to their end, and how many kinds of start reached the best."""
    if len(restarts) == 1:
        return "one start"
    n_whole = sum(end not in ("left behind", "merged", "failed") for end in restarts["ended"].tolist())
    rows = zip(restarts["start"].tolist(), restarts["agrees"].tolist(), restarts["independent"].tolist(), strict=True)
    first = [(kind, agrees) for kind, agrees, independent in rows if independent]
    kinds, reached = len({kind for kind, _ in first}), len({kind for kind, agrees in first if agrees})
    agree = f", {reached} of {kinds} kinds of start reached the best optimum" if kinds > 1 else ""
    return f"best of {len(restarts)} starts, {n_whole} of them run to convergence{agree}"


def show_diagnostics(console: Console, fit: Fit[Any]) -> None:
    """Print how the fit ended, and warnings."""
    more = "--num-samples" if fit.method in ("nuts", "gibbs") else "--max-steps"
    end = "converged" if fit.converged else f"not converged: raise {more}"
    if fit.interrupted:
        end = "interrupted, the best so far"
    tried = f"{len(fit.restarts)} chains" if fit.method in ("nuts", "gibbs") else _search(fit.restarts)
    console.print(
        f"{fit.method.upper()}: objective {float(fit.objective[-1]):.6g} after {fit.steps} steps, {end}; {tried}.",
        soft_wrap=True,
    )
    for name, states in (("empty", fit.empty_states), ("collapsed onto a single point", fit.collapsed_states)):
        assert not isinstance(states, tuple)
        if states.any():
            numbers = ", ".join(str(k) for k in states.nonzero()[:, 0].tolist())
            console.print(
                f"Warning: state(s) {numbers} {name}; fit fewer states, or keep --prior weak.",
                style="yellow",
                soft_wrap=True,
            )
