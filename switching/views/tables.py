"""Parameters as rows with names that a reader knows, and tables for notebooks."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from ..data.series import Series
from ..data.timeline import storable, time_index
from ..entries import Entries, PossibleRows
from ..parameters import SINGLE, described
from ..recursion import autoregression

MANY_ROWS, MANY_COLUMNS = 60, 16  # beyond which a table in a notebook leaves some out
DIGITS = 4


@dataclass(frozen=True)
class Row:
    """A number of a model's parameters.

    Attributes:
        parameter: the name of its table, in the form in which people know it.
        index: its place in the table.
        state: the state that it belongs to, e.g. "state 0" or "layer 2, state 0"; empty where it belongs to none.
        labels: the labels of its other axes, e.g. the name of a feature.
        name: it whole, as ArviZ writes it, e.g. "loc[0, volume]".
    """

    parameter: str
    index: tuple[int, ...]
    state: str
    labels: tuple[str, ...]

    name: str

    @property
    def within(self) -> str:
        """Its name among those of its state."""
        return f"{self.parameter}[{', '.join(self.labels)}]" if self.labels else self.parameter


def coordinates(series: Series, model: Any) -> dict[str, Any]:
    """The labels of every axis except chain and draw; those of the sequences come first, in order."""
    batch = series.batch_shape
    names = ["sequence"] if len(batch) == 1 else [f"sequence_{i}" for i in range(len(batch))]
    coords: dict[str, Any] = {name: np.arange(n) for name, n in zip(names, batch, strict=True)}
    if series.sequences is not None and batch:
        coords["sequence"] = list(series.sequences)
    coords |= {dim: np.arange(size) for dim, size in model.sizes.items()}
    if model.subjects:
        coords["subject"] = list(model.subjects)
    if series.state_names is not None:
        coords |= {dim: list(series.state_names) for dim in ("state", "state_new")}
    coords |= {dim: list(model.latents) for dim in ("latent", "latent_new") if model.latents}
    features: list[Any] = list(range(series.n_features))
    if series.features is not None and not isinstance(series.features[0], tuple):
        features = list(series.features)
    common = series.index if isinstance(series.index, pd.Index) else None
    coords |= {"feature": features, "feature_new": features}
    coords["time"] = storable(time_index(common, series.n_steps)).to_numpy()
    for dim, inputs in model.inputs_of.items():
        if not isinstance(inputs, int):
            coords[dim] = list(inputs)
        elif series.drivers is not None:
            coords[dim] = list(series.drivers[:inputs])
    if model.order:
        coords["regressor"] = autoregression(model.emission).regressor_names(features, series.drivers)
    if "category_after_first" in coords:
        coords["category_after_first"] = coords["category_after_first"] + 1
    return coords


def rows(model: Any, coords: dict[str, Any]) -> Iterator[Row]:
    """The numbers of a model with values, those first that belong to no state, then state by state.

    For symmetric matrices the lower triangle, and no entries that are always 0.
    `coords` names the entries of the axes: see `coordinates`.
    """
    numbered, dims = [], {p.shown.name if p.shown else name: p.dims for name, p in model.known.items()}
    supports = {name: p.support for name, p in model.known.items() if isinstance(p.support, Entries | PossibleRows)}
    for name, table in described(model.known, model.values).items():
        named_axes = [(axis, dim) for axis, dim in enumerate(dims[name]) if dim not in SINGLE]
        symmetric = dims[name][-2:] in (("feature", "feature_new"), ("latent", "latent_new"))
        for index in np.ndindex(*table.shape):
            if symmetric and index[-1] > index[-2]:
                continue
            if name in supports and not bool(supports[name].free[index[-supports[name].free.ndim :]]):
                continue
            labels = [str(coords[dim][index[axis]]) for axis, dim in named_axes]
            of_state = bool(named_axes) and named_axes[0][1].startswith("state")
            state = _state(model, named_axes[0][1], labels[0]) if of_state else ""
            label = f"{name}[{', '.join(labels)}]" if labels else name
            numbered.append(Row(name, index, state, tuple(labels[1:] if of_state else labels), label))
    order = {state: place for place, state in enumerate(dict.fromkeys(["", *states(model, coords.get("state"))]))}
    yield from sorted(numbered, key=lambda row: order[row.state])


def states(model: Any, labels: Any = None) -> list[str]:
    """What the states are called, chain after chain; by the labels of the states of a single chain, if there are
    some."""
    chains = enumerate(model.chain_sizes, start=1)
    if labels is not None and len(model.chain_sizes) == 1 and not model.chain_name:
        return [_state(model, "state", str(label)) for label in labels]
    return [_state(model, f"state_{d}" if model.chain_name else "state", str(k)) for d, n in chains for k in range(n)]


def _state(model: Any, dim: str, label: str) -> str:
    chain = dim.removeprefix("state").removeprefix("_")
    return f"{model.chain_name} {chain}, state {label}" if chain else f"state {label}"


def by_state(model: Any, coords: dict[str, Any]) -> pd.DataFrame:
    """The values of a model: a row for each parameter, a column for each state, and a first column for the other
    numbers."""
    tables = described(model.known, model.values)
    cells: dict[str, dict[str, float]] = {}
    for row in rows(model, coords):
        cells.setdefault(row.within, {})[row.state] = float(tables[row.parameter][row.index])
    columns = [
        state
        for state in ["", *states(model, coords.get("state"))]
        if any(state in entries for entries in cells.values())
    ]
    return pd.DataFrame.from_dict(cells, orient="index", columns=columns)


def number(value: Any) -> str:
    """A number with four digits; a dash for None; other values unchanged."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, float | np.floating):
        return str(value)
    return "-" if np.isnan(value) else f"{value:.{DIGITS}g}"


def html(title: str, table: pd.DataFrame, blank: str = "") -> str:
    """A heading and a table for a notebook, numbers by four digits, `blank` where there is none."""
    shown = table.map(lambda cell: blank if isinstance(cell, float) and np.isnan(cell) else number(cell))
    if shown.index.nlevels == shown.columns.nlevels == 1:  # one row of headings, with the name of the index
        shown = shown.rename_axis(index=None, columns=shown.index.name)
    body = shown.to_html(max_rows=MANY_ROWS, max_cols=MANY_COLUMNS, border=0)
    return f"<p><b>{escape(title).replace(chr(10), '<br>')}</b></p>{body}"
