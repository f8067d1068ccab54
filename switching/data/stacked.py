"""Several sequences in the rows of one table: the sequence of each row, and the layout as a batch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from .packed import Packed, stored
from .timeline import TIME_NAMES, calendar, distances, rows_by


@dataclass(frozen=True)
class Stacked:
    """The map from the N rows of a table to B sequences.

    Attributes:
        index: the labels of the rows of the table.
        members: the rows of each sequence, in the order of its steps.
        times: the labels of the steps of each sequence.
        names: the names of the sequences; None: they are numbered.
    """

    index: pd.Index
    members: tuple[Int[np.ndarray, "_"], ...]
    times: tuple[pd.Index, ...]
    names: tuple[str, ...] | None = None

    @staticmethod
    def by_labels(index: pd.Index, keys: pd.Index, times: pd.Index | None) -> "Stacked":
        """Rows with equal keys form a sequence, in the order of their first rows; without times the steps are
        numbered."""
        members, unique = rows_by(keys)
        names = names_of(unique)
        labels = None if times is None else calendar(times)
        labels_of = [pd.RangeIndex(len(rows), name="step") if labels is None else labels[rows] for rows in members]
        return Stacked(index, members, tuple(labels_of), names)

    @staticmethod
    def by_lengths(lengths: Tensor, index: pd.Index | None) -> "Stacked":
        """The first rows are the first sequence, the next the second, and so on."""
        ends = np.cumsum(lengths.cpu().numpy())
        members = tuple(np.split(np.arange(ends[-1]), ends[:-1]))
        if index is None:
            times = tuple(pd.RangeIndex(len(m), name="step") for m in members)
            return Stacked(pd.RangeIndex(ends[-1], name="step"), members, times)
        return Stacked(index, members, tuple(calendar(index[m]) for m in members))

    @property
    def lengths(self) -> list[int]:
        return [len(rows) for rows in self.members]

    def parts(self, table: Shaped[Tensor, "N *f"]) -> list[Tensor]:
        """The rows of each sequence."""
        return [table[torch.from_numpy(rows).to(table.device)] for rows in self.members]

    def split(
        self, table: Shaped[Tensor, "N *f"], lengths: Int[Tensor, "B"], beyond: float
    ) -> Shaped[Tensor, "B T *f"] | Packed:
        """The rows of each sequence as one table, with the number `beyond` after its end; see `stored`."""
        return stored(self.parts(table), lengths, beyond)

    def back(self, steps: Tensor) -> Tensor:
        """Steps `[N, ...]`, one sequence after another, in the order of the rows."""
        order = torch.from_numpy(np.concatenate(self.members)).to(steps.device)
        return torch.empty_like(steps).index_copy(0, order, steps)


def name_of(key: Any) -> str:
    """The name of a sequence from its key; the parts of several keys are separated by commas."""
    return ", ".join(map(str, key)) if isinstance(key, tuple) else str(key)


def names_of(keys: Iterable[Any]) -> tuple[str, ...]:
    """The names of sequences from their keys, each different."""
    names = tuple(map(name_of, keys))
    return names if len(set(names)) == len(names) else tuple(map(repr, keys))  # as of 1 and "1"


def check_levels(index: pd.MultiIndex, name: str) -> None:
    """Raise ValueError if a level before the last looks like a time; these levels name the sequence."""
    levels = _levels(index)
    times = [_is_time(index.get_level_values(i), level) for i, level in enumerate(levels)]
    if not any(times[:-1]):
        return
    cure = (
        f"make one time of {', '.join(level for level, time in zip(levels, times, strict=True) if time)}, or give "
        "another name to a level that names sequences."
        if times[-1]
        else f"exchange them, as by {name}.swaplevel()."
    )
    raise ValueError(
        f"{name}: got an index of {', '.join(levels)}, expected the sequence first and the time last; {cure}"
    )


def panel_of(index: pd.MultiIndex, name: str, counted: bool = False) -> Stacked:
    """The sequences of rows whose index has the time as last level, and the sequence in the levels before.

    Arguments:
        index: of two levels or more.
        name: the name of the table in an error.
        counted: whether the last level only numbers the rows, so steps have no labels.

    Raises:
        ValueError: an empty label; a pair of sequence and time that occurs twice.
    """
    levels = _levels(index)
    for i, level in enumerate(levels):
        empty = np.flatnonzero(index.get_level_values(i).isna())
        if empty.size:
            raise ValueError(f"{name}: got no {level} in row {int(empty[0])}; fill it, or drop the row.")
    twice = np.flatnonzero(index.duplicated())
    if twice.size:
        row, labels = int(twice[0]), index.to_list()
        first = next(int(i) for i in np.flatnonzero(index.duplicated(keep="last")) if labels[i] == labels[row])
        pair = ", ".join(f"{level} {label}" for level, label in zip(levels, labels[row], strict=True))
        raise ValueError(f"{name}: got two rows for {pair}, rows {first} and {row}; keep one of them.")
    return Stacked.by_labels(index, index.droplevel(-1), None if counted else index.get_level_values(-1))


def _levels(index: pd.MultiIndex) -> list[str]:
    return [f"level {i}" if level is None else str(level) for i, level in enumerate(index.names)]


def _is_time(labels: pd.Index, level: str) -> bool:
    """Whether labels have the name of a time, or are dates or periods."""
    numbers = pd.api.types.is_numeric_dtype(labels)
    return level.lower() in TIME_NAMES or not (numbers or distances(calendar(labels)) is None)


def common_index(times: Sequence[pd.Index]) -> Any:
    """One index for all sequences if each is the start of the longest; otherwise the index of each."""
    longest = max(times, key=len)
    return longest if all(index.equals(longest[: len(index)]) for index in times) else tuple(times)
