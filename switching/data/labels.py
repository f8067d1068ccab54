"""`Labels`: the times of the steps of many sequences, in a file."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int

from .scratch import BLOCK, Scratch
from .timeline import calendar, check_times, label_text, out_of_order, uneven

Where = Callable[[int], str]
"""The place of a row in the user's data, as text."""


class Labels(Sequence[pd.Index]):
    """The labels of the steps of each sequence. An index is made when it is asked for.

    Arguments:
        table: a number for each step.
        ends: the number of the row after each sequence.
        make: an index from some of the numbers.
    """

    table: Scratch
    ends: Int[np.ndarray, "B"]
    make: Callable[[np.ndarray], pd.Index]

    def __init__(self, table: Scratch, ends: Int[np.ndarray, "B"], make: Callable[[np.ndarray], pd.Index]) -> None:
        self.table, self.ends, self.make = table, ends, make

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, sequence: int) -> pd.Index: ...
    @overload
    def __getitem__(self, sequence: slice) -> Sequence[pd.Index]: ...
    def __getitem__(self, sequence: int | slice) -> pd.Index | Sequence[pd.Index]:
        if isinstance(sequence, slice):
            return [self[i] for i in range(*sequence.indices(len(self)))]
        i = range(len(self))[sequence]
        return self.between(int(self.ends[i - 1]) if i else 0, int(self.ends[i]))

    def between(self, first: int, stop: int) -> pd.Index:
        """The labels of some rows."""
        return self.make(self.table.rows()[first:stop].numpy())

    def __repr__(self) -> str:
        return f"Labels of {len(self)} sequences"

    def common(self) -> "pd.Index | Labels":
        """One index for all sequences if each is the start of the longest."""
        numbers, starts = self.table.rows().numpy(), np.concatenate([[0], self.ends[:-1]])
        longest = int(np.argmax(self.ends - starts))
        first = int(starts[longest])
        for rows in range(0, len(numbers), BLOCK):
            places = np.arange(rows, min(rows + BLOCK, len(numbers)))
            steps = places - starts[np.searchsorted(self.ends, places, side="right")]
            if not np.array_equal(numbers[places], numbers[first + steps]):
                return self
            self.table.release()
        return self[longest]


class LabelWriter:
    """Writes the labels of steps, and refuses those that do not rise within a sequence.

    Arguments:
        name: the column of the times.
    """

    def __init__(self, name: Any) -> None:
        self.name = name
        self._table: Scratch | None = None
        self._dtype: Any = None
        self._number: dict[Any, int] = {}  # of each label that is neither a number nor a date
        self._last: pd.Index | None = None
        self._seen: set[int] = set()  # the numbers of such labels in the current sequence

    def add(self, index: pd.Index, starts: Int[np.ndarray, "s"], where: Where) -> None:
        """The labels of further rows, of which those of `starts` begin a sequence.

        Raises:
            ValueError: a label that is missing, that is not after the one before it, or of another type.
        """
        empty = np.flatnonzero(index.isna())
        if empty.size:
            raise ValueError(f"time: got no {self.name} in {where(int(empty[0]))}; fill it, or drop the row.")
        ordinal = index.dtype.kind in "iufMm"
        numbers = _numbers(index) if ordinal else self._coded(index)
        if self._table is None:
            self._dtype = index.dtype
            self._table = Scratch(torch.float64 if numbers.dtype.kind == "f" else torch.int64, ())
        elif index.dtype != self._dtype:
            raise ValueError(
                f"time: got {self.name} of {index.dtype} in {where(0)}, but of {self._dtype} before; use one type."
            )
        continued = self._last is not None and 0 not in starts
        known = index if not continued or self._last is None else self._last.append(index)
        n_before = len(known) - len(index)
        if ordinal:
            values = np.concatenate([_numbers(known[:n_before]), numbers])
            rises = values[1:] > values[:-1]
            rises[starts[starts + n_before > 0] + n_before - 1] = True
            if not rises.all():
                self._refuse(known, int(np.argmin(rises)) + 1, n_before, where)
        else:
            self._check_text(known, numbers, starts, n_before, where)
        self._last = index[-1:]
        self._table.append(torch.from_numpy(np.array(numbers)))  # a copy: those of arrow are read-only

    def _coded(self, index: pd.Index) -> np.ndarray:
        """The number of each label, in the order in which labels come."""
        codes, labels = index.factorize()
        return np.array([self._number.setdefault(label, len(self._number)) for label in labels], dtype=np.int64)[codes]

    def _check_text(
        self, known: pd.Index, numbers: np.ndarray, starts: Int[np.ndarray, "s"], n_before: int, where: Where
    ) -> None:
        """Refuse labels of text that come twice in a sequence, or dates as text that go back."""
        cuts = [0, *(int(start) for start in starts if start > 0), len(numbers)]
        for first, stop in pairwise(cuts):
            if first or not n_before:
                self._seen = set()
            before = 0 if first else n_before
            part = known[first + n_before - before : stop + n_before]
            step = out_of_order(part)
            if step is not None:
                self._refuse(known, first + n_before - before + step, n_before, where)
            for i, number in enumerate(numbers[first:stop].tolist(), first):
                if number in self._seen:
                    self._refuse(known, i + n_before, n_before, where, twice=True)
                self._seen.add(number)

    def _refuse(self, known: pd.Index, place: int, n_before: int, where: Where, twice: bool = False) -> None:
        here, before = known[place], known[place - 1]
        verb, cure = "goes back", "sort the rows of each sequence by time"
        if twice or here == before:
            verb, cure = "comes twice", "keep one of the rows"
        raise ValueError(
            f"time: {self.name} {verb} in {where(place - n_before)}, where {label_text(here)} follows "
            f"{label_text(before)}; {cure}, or name the column of the sequences by `sequence`."
        )

    def finish(self, lengths: Int[np.ndarray, "B"], names: Sequence[str] | None, cured: bool) -> pd.Index | Labels:
        """The labels, after a warning if they are not evenly spaced.

        Arguments:
            names: the names of the sequences; None: they are numbered.
            cured: whether the gaps between steps are given.
        """
        assert self._table is not None
        table, make, spaced = self._table, _maker(self._dtype, self.name), True
        if self._dtype.kind not in "iufMm":
            values = calendar(pd.Index(list(self._number), name=self.name))
            if values.dtype.kind == "f" or isinstance(values, pd.DatetimeIndex | pd.PeriodIndex):
                ordinals = torch.from_numpy(_numbers(values).copy())
                table = table.map(lambda codes: ordinals[codes])
                make = _maker(values.dtype, self.name)
            else:
                make, spaced = values.take, False
        labels = Labels(table, np.cumsum(lengths), make)
        if spaced and not cured:
            _warn_if_uneven(labels, names)
        return labels.common()


def _numbers(index: pd.Index) -> np.ndarray:
    """Numbers in the order of the labels: int64, or float64."""
    if isinstance(index, pd.DatetimeIndex | pd.PeriodIndex | pd.TimedeltaIndex):
        return index.asi8
    return index.to_numpy(dtype=np.int64 if index.dtype.kind in "iu" else np.float64)


def _maker(dtype: Any, name: Any) -> Callable[[np.ndarray], pd.Index]:
    """An index of this type from its numbers."""

    def make(numbers: np.ndarray) -> pd.Index:
        if isinstance(dtype, pd.PeriodDtype):
            return pd.PeriodIndex.from_ordinals(numbers, freq=dtype.freq, name=name)
        if isinstance(dtype, pd.DatetimeTZDtype):
            times = pd.DatetimeIndex(numbers.view(f"M8[{dtype.unit}]"), name=name)
            return times.tz_localize("UTC").tz_convert(dtype.tz)
        return pd.Index(numbers.view(dtype) if dtype.kind in "Mm" else numbers.astype(dtype, copy=False), name=name)

    return make


def _warn_if_uneven(labels: Labels, names: Sequence[str] | None) -> None:
    """Warn of the first block of rows in which the labels of a sequence are not evenly spaced."""
    numbers, ends = labels.table.rows().numpy(), labels.ends
    gap: Any = None
    for first in range(0, len(numbers), BLOCK):
        stop = min(first + BLOCK + 1, len(numbers))  # with the first row of the next block
        ours = ends[np.searchsorted(ends, first, side="right") : np.searchsorted(ends, stop)]
        gaps = np.delete(np.diff(numbers[first:stop]), ours - first - 1)
        gap = gaps[0] if gap is None and gaps.size else gap
        labels.table.release()
        if not gaps.size or np.allclose(gaps, gap, rtol=1e-9, atol=0):
            continue
        cuts = [first, *ours.tolist(), stop]
        parts = [labels.between(*cut) for cut in pairwise(cuts)]
        if uneven(parts) is not None:
            members = range(int(np.searchsorted(ends, first, side="right")), len(ends))
            called = [number if names is None else names[number] for number in members[: len(parts)]]
            check_times(parts, [f"source: sequence {name}" for name in called])
            return
