"""Tables beside x, matched by label: inputs, known states, weights, noise, and inputs of steps to come.

If both x and a table have labels, the table's rows are read in the order of the labels of x. If one of them has none,
rows are read in order. A default index 0, 1, 2, ... of pandas is no label.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from jaxtyping import Int

from .frames import labelled
from .timeline import calendar, following, label_text

Table = TypeVar("Table")
Places = Int[np.ndarray, "_"]


def has_labels(index: pd.Index) -> bool:
    """Whether an index is more than the default numbers of rows."""
    return not (isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1)


def matched(table: Table, index: pd.Index | None, name: str) -> Table:
    """The rows of a frame or a column in the order of the labels of x, and after them those of steps to come. A table
    without labels is returned unchanged, and so is any table if x has no labels.

    Raises:
        ValueError: labels of another kind; a label that is missing or that occurs twice; rows of other steps.
    """
    if not labelled(table) or index is None or (table.index.nlevels > 1) != (index.nlevels > 1):
        return table
    return table.iloc[places(index, table.index, name)]


def labelled_by(table: Any, keys: Sequence[Any]) -> Any:
    """A frame without labels, with those in its columns of these names, if it has them; other tables unchanged. Columns
    of numbers stay, since they may be inputs too."""
    if not isinstance(table, pd.DataFrame) or has_labels(table.index) or not keys or not set(keys) <= set(table):
        return table
    others = [key for key in keys if not pd.api.types.is_numeric_dtype(table[key])]
    return table.set_index(list(keys), drop=False).drop(columns=others)


def places(ours: pd.Index, theirs: pd.Index, name: str) -> Places:
    """The rows of a table in the order of the labels of x, `ours`; see `matched`."""
    n = len(theirs)
    if not (has_labels(ours) and has_labels(theirs)) or ours.equals(theirs):
        return np.arange(n)
    ours, theirs = _of_one_kind(ours, theirs, name)
    if ours.has_duplicates:
        raise ValueError(
            f"x: its index has {_first(ours, ours.duplicated())} twice, so the rows of {name} cannot be matched to it; "
            f"give different labels, or {name} as an array, whose rows are read in order."
        )
    rows = _rows_with(ours, theirs)
    if bool((rows < 0).any()):
        raise ValueError(
            f"{name}: has no row for {_first(ours, rows < 0)}, a step of x; give a row for each label of x, or an "
            "array, whose rows are read in order."
        )
    others = np.setdiff1d(np.arange(n), rows)
    if not others.size:
        return rows
    if _ordered(ours) and bool((wrong := ~(theirs[others] > ours[-1])).any()):
        raise ValueError(f"{name}: has a row for {_first(theirs[others], wrong)}, which is no step of x; drop it.")
    if not _ordered(ours) and others[0] < rows.max():
        raise ValueError(f"{name}: has a row for {label_text(theirs[others[0]])}, which is no step of x; drop it.")
    return np.concatenate([rows, others[places_ahead(ours, theirs[others], name)]])


def places_ahead(ours: pd.Index, theirs: pd.Index, name: str) -> Places:
    """The rows of a table of steps after the end of x, in the order of time.

    Raises:
        ValueError: labels of another kind, or that occur twice; labels other than the next ones, if the labels of x are
            evenly spaced; labels that are not after those of x.
    """
    if not (has_labels(ours) and has_labels(theirs)):
        return np.arange(len(theirs))
    ours, theirs = _of_one_kind(ours, theirs, name)
    if not _ordered(ours):
        return np.arange(len(theirs))
    expected = calendar(following(ours, len(theirs)))
    if _kind(expected) == _kind(ours):
        rows = _rows_with(expected, theirs)
        if bool((rows < 0).any()):
            raise ValueError(
                f"{name}: has no row for {_first(expected, rows < 0)}, a step after the end of x; give a row for each "
                "step to come, or an array, whose rows are read in order."
            )
        return rows
    if bool((wrong := ~(theirs > ours[-1])).any()):
        raise ValueError(
            f"{name}: has a row for {_first(theirs, wrong)}, which is not after the last step of x, "
            f"{label_text(ours[-1])}; give rows for steps to come."
        )
    return theirs.argsort()


def matched_before(table: Table, index: pd.Index | None, name: str) -> Table:
    """The rows of observations before x in the order of time, if both have labels.

    Raises:
        ValueError: labels of another kind, or that occur twice; a label that is not before those of x.
    """
    if not labelled(table) or index is None or not (has_labels(index) and has_labels(table.index)):
        return table
    ours, theirs = _of_one_kind(index, table.index, name)
    if not _ordered(ours):
        return table
    if bool((wrong := ~(theirs < ours[0])).any()):
        raise ValueError(
            f"{name}: has a row for {_first(theirs, wrong)}, which is not before the first step of x, "
            f"{label_text(ours[0])}; give the rows before it."
        )
    return table.iloc[theirs.argsort()]


def matched_columns(table: Any, features: Sequence[Any] | None, name: str) -> Any:
    """A frame with its columns in the order of the features of x, if it has their names.

    Raises:
        ValueError: some of the features are columns, but not all.
    """
    if not isinstance(table, pd.DataFrame) or isinstance(table.columns, pd.RangeIndex) or features is None:
        return table
    columns = [str(column) for column in table.columns]
    shared = set(columns) & set(features)
    if not shared:
        return table
    if shared != set(features) or len(columns) != len(features):
        raise ValueError(f"{name}: got columns {columns}, but x has {list(features)}; give one for each feature.")
    return table.iloc[:, [columns.index(feature) for feature in features]]


def _of_one_kind(ours: pd.Index, theirs: pd.Index, name: str) -> tuple[pd.Index, pd.Index]:
    """The labels of x and of a table, each label of the table once.

    Raises:
        ValueError: they are of different kinds; the table has a label twice.
    """
    ours, theirs = _comparable(ours), _comparable(theirs)
    if _kind(ours) != _kind(theirs):
        raise ValueError(
            f"{name}: its index has {_kind(theirs)}, but that of x has {_kind(ours)}; give both the same labels, or "
            f"{name} as an array, whose rows are read in order."
        )
    if theirs.has_duplicates:
        label = _first(theirs, theirs.duplicated())
        raise ValueError(f"{name}: its index has {label} twice; give one row for each step.")
    return ours, theirs


def _rows_with(labels: pd.Index, theirs: pd.Index) -> Places:
    """The row of each label, -1 where there is none; numbers are equal up to rounding."""
    rows = theirs.get_indexer(labels)
    if not (labels.dtype.kind == theirs.dtype.kind == "f" and bool((rows < 0).any())):
        return rows
    order, size = theirs.argsort(), float(np.abs(labels.to_numpy()).max())
    near = theirs[order].get_indexer(labels, method="nearest", tolerance=1e-12 * size)
    return np.where(near < 0, -1, order[near])


def _comparable(index: pd.Index) -> pd.Index:
    index = calendar(index)
    return pd.Index(index.to_list()) if isinstance(index, pd.CategoricalIndex) else index


def _ordered(index: pd.Index) -> bool:
    """Whether labels are numbers or times, whose order is that of the steps."""
    return _kind(index) not in ("text", "other labels")


def _kind(index: pd.Index) -> str:
    if isinstance(index, pd.PeriodIndex):
        return f"periods of frequency {index.freqstr}"
    if isinstance(index, pd.DatetimeIndex):
        return "dates" if index.tz is None else "dates with a time zone"
    if isinstance(index, pd.TimedeltaIndex):
        return "durations"
    if pd.api.types.is_numeric_dtype(index) and not pd.api.types.is_bool_dtype(index):
        return "numbers"
    return "text" if all(isinstance(label, str) for label in index) else "other labels"


def _first(labels: pd.Index, chosen: np.ndarray) -> str:
    return label_text(labels[int(np.argmax(chosen))])
