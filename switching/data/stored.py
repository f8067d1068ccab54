"""A `Series`, labels and tables of pandas as trees of tensors, numbers and text, for files (see `fitting.trees`)."""

from typing import Any

import numpy as np
import pandas as pd
import torch

from .packed import Packed
from .series import TABLES, Scaling, Series
from .stacked import Stacked
from .timeline import calendar

NAMES = "features", "sequences", "drivers", "state_names", "subject_names"


def tree_of_series(series: Series) -> dict[str, Any]:
    """The data and labels of a series. The kind of frame of the user is left out.

    Raises:
        TypeError: labels of steps that are neither numbers, dates nor text.
        ValueError: data in files.
    """
    if series.on_disk:
        raise ValueError("data: got True, but the data of this fit are in files; leave it out, and keep these files.")
    index, stacked = series.index, series.stacked
    scaling = series.scaling
    return {
        "listed": series.listed,
        "scaling": None if scaling is None else scaling._asdict(),
        "tables": {name: _tree_of_table(getattr(series, name)) for name in TABLES},
        "names": tree_of_names(series),
        "index": tree_of_labels(index)
        if index is None or isinstance(index, pd.Index)
        else [*map(tree_of_labels, index)],
        "stacked": None
        if stacked is None
        else {
            "index": tree_of_labels(stacked.index),
            "members": [torch.from_numpy(rows) for rows in stacked.members],
            "times": [tree_of_labels(times) for times in stacked.times],
            "names": stacked.names,
        },
    }


def series_of(tree: dict[str, Any]) -> Series:
    """The series of a tree."""
    index, stacked = tree["index"], tree["stacked"]
    if stacked is not None:
        rows, times = (table.numpy() for table in stacked["members"]), map(labels_of, stacked["times"])
        stacked = Stacked(labels_of(stacked["index"]), tuple(rows), tuple(times), _tuples(stacked["names"]))
    return Series(
        listed=tree["listed"],
        scaling=None if tree["scaling"] is None else Scaling(**tree["scaling"]),
        **{name: _table_of(table) for name, table in tree["tables"].items()},
        **{name: _tuples(names) for name, names in tree["names"].items()},
        index=tuple(map(labels_of, index)) if isinstance(index, list) else labels_of(index),
        stacked=stacked,
    )


def tree_of_names(series: Series) -> dict[str, Any]:
    """The names of features, sequences, inputs, states and subjects."""
    return {name: _plain(getattr(series, name)) for name in NAMES}


def names_alone(n_features: int, names: dict[str, Any]) -> Series:
    """A series without a step, with these names."""
    return Series(torch.empty(0, n_features, device="cpu"), **{name: _tuples(some) for name, some in names.items()})


def _tree_of_table(table: Any) -> Any:
    if isinstance(table, Packed):
        return {"rows": table.rows, "lengths": table.lengths, "beyond": float(table.beyond)}
    return table


def _table_of(tree: Any) -> Any:
    return Packed(**tree) if isinstance(tree, dict) else tree


def _plain(names: Any) -> Any:
    """Names in JSON types."""
    if isinstance(names, tuple | list):
        return [_plain(name) for name in names]
    names = names.item() if isinstance(names, np.generic) else names
    return names if isinstance(names, str | bool | int | float | None) else str(names)


def _tuples(names: Any) -> Any:
    return tuple(_tuples(name) for name in names) if isinstance(names, list) else names


# ---- pandas ----------------------------------------------------------------------------------------------------------


def tree_of_labels(index: pd.Index | None) -> dict[str, Any] | None:
    """Labels of pandas.

    Raises:
        TypeError: labels that are neither numbers, dates nor text.
    """
    if index is None:
        return None
    name = {"name": _plain(index.name)}
    if isinstance(index, pd.MultiIndex):
        codes = [torch.from_numpy(np.array(code, dtype=np.int64)) for code in index.codes]
        return {
            "levels": [tree_of_labels(level) for level in index.levels],
            "codes": codes,
            "names": _plain([*index.names]),
        }
    if isinstance(index, pd.CategoricalIndex):
        codes = torch.from_numpy(np.array(index.codes, dtype=np.int64))
        return name | {"categories": tree_of_labels(index.categories), "codes": codes, "ordered": bool(index.ordered)}
    if isinstance(index, pd.RangeIndex):
        return name | {"range": [index.start, index.stop, index.step]}
    index = calendar(index)
    if isinstance(index, pd.PeriodIndex):
        return name | {"periods": torch.from_numpy(index.asi8.copy()), "freq": index.freqstr}
    if isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex):
        zone = None if index.dtype.kind == "m" or index.tz is None else str(index.tz)  # pyright: ignore[reportAttributeAccessIssue]
        moments = {"moments": torch.from_numpy(index.asi8.copy()), "kind": index.dtype.kind, "unit": index.unit}
        return name | moments | {"zone": zone, "freq": index.freqstr}
    numbers = index.to_numpy()
    if numbers.dtype.kind in "biuf":
        return name | {"numbers": torch.from_numpy(numbers.copy())}
    if not all(isinstance(label, str) for label in index):
        kind = next(type(label).__name__ for label in index if not isinstance(label, str))
        raise TypeError(
            f"data: got True, but labels of type {kind} cannot be stored; give x an index of text or dates."
        )
    return name | {"text": list(index)}


def labels_of(tree: dict[str, Any] | None) -> Any:
    """The labels of a tree."""
    if tree is None:
        return None
    if "levels" in tree:
        codes = [code.numpy() for code in tree["codes"]]
        return pd.MultiIndex(levels=[*map(labels_of, tree["levels"])], codes=codes, names=tree["names"])
    name = tree["name"]
    if "categories" in tree:
        kinds = pd.CategoricalDtype(labels_of(tree["categories"]), tree["ordered"])
        return pd.CategoricalIndex(pd.Categorical.from_codes(tree["codes"].numpy(), dtype=kinds), name=name)
    if "range" in tree:
        return pd.RangeIndex(*tree["range"], name=name)
    if "periods" in tree:
        return pd.PeriodIndex.from_ordinals(tree["periods"].numpy(), freq=tree["freq"], name=name)
    if "moments" in tree:
        moments = tree["moments"].numpy().view(f"{tree['kind']}8[{tree['unit']}]")
        index: Any = pd.Index(moments, name=name)
        index = index if tree["zone"] is None else index.tz_localize("UTC").tz_convert(tree["zone"])
        index.freq = tree["freq"]
        return index
    return pd.Index(tree["numbers"].numpy() if "numbers" in tree else tree["text"], name=name)


def tree_of_frame(table: pd.DataFrame) -> dict[str, Any]:
    """A table of numbers, dates and text."""
    columns = [[str(name), tree_of_labels(pd.Index(column))] for name, column in table.items()]
    return {"index": tree_of_labels(table.index), "columns": columns}


def frame_of(tree: dict[str, Any]) -> pd.DataFrame:
    """The table of a tree."""
    index = labels_of(tree["index"])
    return pd.DataFrame(
        {name: pd.Series(labels_of(column), index=index) for name, column in tree["columns"]}, index=index
    )
