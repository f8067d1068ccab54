"""A long table with the rows of one or several sequences, whose columns are named, as a `Series`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ...inference.numerics.checks import naming
from .frames import Frame, plain
from .reading import of_rows, with_beside
from .series import Series
from .stacked import panel_of


def read_panel(
    frame: Any,
    sequence: str | Sequence[str] | None = None,
    time: str | Sequence[str] | None = None,
    columns: str | Sequence[str] | None = None,
    *,
    inputs: str | Sequence[str] = (),
    dt: str | Sequence[str] | None = None,
    states: str | Sequence[str] | None = None,
    weights: str | Sequence[str] | None = None,
    noise: str | Sequence[str] | None = None,
) -> Series:
    """Read a long table with the rows of one or several sequences.

    Results of several sequences have the table's index: `frame.join(model.states(series))`. Those of one have the times
    as their index. A frame of polars or pyarrow has no index: results are frames of the same library, with the columns
    `sequence` and `time`.

    Every method also accepts a frame of pandas with an index of sequence and time, with inputs and gaps in frames of
    the same index.

    Arguments:
        frame: a row for each step, of pandas, polars or pyarrow. The rows of one sequence are in the order of time;
            they may be separated.
        sequence: the column that names the sequence of a row; a list of columns if one is not enough; None: all rows
            are one sequence.
        time: the column that names the step of a row; None: the steps of each sequence are numbered.
        columns: the features; None: all columns that are not named otherwise. Empty cells are missing values.
        inputs, dt, states, weights, noise: columns of the table that `fit` accepts under these names.

    Returns:
        `Series` of B sequences, `[B, T, F]`, where T is the length of the longest; `[T, F]` if all rows are one
        sequence.

    Raises:
        ValueError: no such column; an empty cell in `sequence` or `time`; two rows with the same sequence and time;
            times of a sequence that are not in order.
        TypeError: `frame` is not a frame; a feature that is not numeric.

    Warns:
        UserWarning: times that are not evenly spaced, or that are partly missing: rows are read as consecutive.

    See Also:
        `open_sequences`, for data larger than memory; `Formula`, which makes inputs; docs/how_to/panel.md, a worked
        case.

    Example:
        >>> import pandas as pd
        >>> import samplehold as sh
        >>> frame = pd.DataFrame({"subject": list("aaabb"), "t": [0, 1, 2, 0, 1], "level": [0.1, 0.0, 5.2, 5.1, 4.9]})
        >>> panel = sh.read_panel(frame, sequence="subject", time="t", columns=["level"])
        >>> panel.observations.shape, panel.lengths
        (torch.Size([2, 3, 1]), tensor([3, 2]))
        >>> fit = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal()).fit(panel, progress=False)
        >>> list(frame.join(fit.states(panel))["state"].map(fit.model.describe()["loc"][:, 0].argsort().tolist().index))
        [0, 0, 1, 1, 1]
    """
    table = plain(frame, "frame")
    if not isinstance(table, pd.DataFrame):
        raise TypeError(
            f"frame: got {type(frame).__name__}, expected a DataFrame of pandas or polars, or a Table of pyarrow, "
            "a row for each step."
        )
    named = Choice(sequence, time, columns, inputs, dt, states, weights, noise).among(list(table.columns))
    keys = named["sequence"]
    labels = [_labels(table[name]) for name in (*keys, *named["time"])]
    if not keys:
        labels.insert(0, pd.Index([0] * len(table), name="sequence"))
    if time is None:
        labels.append(pd.RangeIndex(len(table), name="row"))
    rows = replace(panel_of(pd.MultiIndex.from_arrays(labels), "frame", counted=time is None), index=table.index)
    beside = {option: table[named[option][0]] for option in ("dt", "states", "weights") if named[option]}
    if named["inputs"]:
        beside["inputs"] = table[named["inputs"]]
    if noise is not None:
        beside["noise"] = table[noise]
    drivers = tuple(map(str, named["inputs"])) or None
    with naming("frame"):
        series = with_beside(*of_rows(table[named["columns"]], rows, len(named["columns"])), beside, drivers)
    series = replace(series, frame=Frame.of(frame, [*keys, *named["time"]]))
    return series if keys else replace(series.one(0), sequences=None)


@dataclass(frozen=True)
class Choice:
    """The arguments that name columns of a table, as the user gave them."""

    sequence: Any = None
    time: Any = None
    columns: Any = None
    inputs: Any = ()
    dt: Any = None
    states: Any = None
    weights: Any = None
    noise: Any = None

    def names(self) -> dict[str, list[Any]]:
        """The names in each argument except `columns`, in lists."""
        single = {option: getattr(self, option) for option in ("time", "dt", "states", "weights")}
        named = {"sequence": [] if self.sequence is None else _columns("sequence", self.sequence)}
        named |= {option: [] if name is None else _column(option, name) for option, name in single.items()}
        noise = [] if self.noise is None else _columns("noise", self.noise)
        return named | {"inputs": _columns("inputs", self.inputs), "noise": noise}

    def among(self, there: Sequence[Any], place: str = "") -> dict[str, list[Any]]:
        """The columns for each argument, in lists.

        Arguments:
            there: the columns of the table.
            place: the file of the table, for an error.

        Raises:
            ValueError: a column that is not there, or none where some are needed; a name twice.
            TypeError: an argument that is not a name.
        """
        named = self.names()
        taken = [name for names in named.values() for name in names]
        others = [name for name in user_columns(there) if name not in taken]
        named["columns"] = others if self.columns is None else _columns("columns", self.columns)
        for option, names in named.items():
            needed = option == "columns" or (option == "sequence" and self.sequence is not None)
            missing = [name for name in names if name not in there]
            if missing or (needed and not names):
                found = f"{', '.join(map(str, there))}{place and f' of {place}'}"
                raise ValueError(f"{option}: got {missing[0] if missing else names!r}, expected columns among {found}.")
        return named


def user_columns(names: Sequence[Any]) -> list[Any]:
    """The columns of a table, without columns that hold an unnamed index of pandas."""
    return [name for name in names if not re.fullmatch(r"__index_level_\d+__", str(name))]


def _labels(column: Any) -> pd.Index:
    """The labels of rows in a column."""
    kinds = set(map(type, column)) if column.dtype == object else set()
    if unnamed := [kind.__name__ for kind in kinds if kind.__hash__ is None]:
        raise TypeError(
            f"frame: got column {column.name!r} with {unnamed[0]} cells, which cannot name sequences or times; "
            "name a column of text, numbers or dates."
        )
    return pd.Index(column, name=column.name)


def _column(option: str, name: Any) -> list[Any]:
    """The label of one column."""
    labels = _columns(option, name)
    if len(labels) != 1:
        raise ValueError(f"{option}: got {labels!r}, expected the name of one column.")
    return labels


def _columns(option: str, names: Any) -> list[Any]:
    """The labels of columns: one label, or a list of several."""
    names = names.tolist() if isinstance(names, np.ndarray) else names
    labels: list[Any] = list(names) if isinstance(names, list | tuple | pd.Index) else [names]
    for name in labels:
        if name is None or name is pd.NA or not pd.api.types.is_hashable(name):
            raise TypeError(f"{option}: got {type(name).__name__}, expected the name of a column, or a list of names.")
    repeated = [name for i, name in enumerate(labels) if name in labels[:i]]
    if repeated:
        raise ValueError(f"{option}: got {repeated[0]!r} twice; name each column once.")
    return labels
