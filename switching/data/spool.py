"""`Spool`: the rows of a source, which are checked and written to files once, as a `Series` on disk."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .knowledge import ordered_labels, rows_beside
from .labels import Labels, LabelWriter, Where
from .packed import Packed
from .scratch import Scratch
from .series import BEYOND, Series
from .stacked import names_of


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a source.

    Attributes:
        x: the observations.
        starts: the rows at which a sequence begins.
        keys: what names each of these sequences.
        places: the place of each of these rows in its unit of the source.
        where: the place of a row, as text.
        joins: whether the first sequence is the last one of the block before, if both have the same key.
        times: the labels of the steps.
        beside: `inputs [n, C]`, `dt`, `states`, `weights` `[n]` and `noise [n]` or `[n, F]`, by name.
        state_names: the labels whose numbers the states are, and whether they have an order.
    """

    x: Float[Tensor, "n F"]
    starts: Int[np.ndarray, "s"]
    keys: Sequence[Any]
    places: Int[np.ndarray, "s"]
    where: Where
    joins: bool = False
    times: pd.Index | None = None
    beside: dict[str, Tensor] = field(default_factory=dict)
    state_names: tuple[tuple[Any, ...], bool] | None = None

    def cut(self, first: int, stop: int) -> "Block":
        """Some of the rows."""
        kept = (self.starts >= first) & (self.starts < stop)
        return replace(
            self,
            x=self.x[first:stop],
            starts=self.starts[kept] - first,
            keys=[key for key, keep in zip(self.keys, kept.tolist(), strict=True) if keep],
            places=self.places[kept],
            where=lambda row: self.where(first + row),
            times=None if self.times is None else self.times[first:stop],
            beside={name: table[first:stop] for name, table in self.beside.items()},
        )


@dataclass(frozen=True)
class Unit:
    """A part of a source that can be read alone.

    Attributes:
        count: the number of its places, at which sequences may begin; an estimate if it is not `exact`.
        blocks: its rows from a place on.
    """

    count: Callable[[], int]
    blocks: Callable[[int], Iterator[Block]]
    exact: bool = True


@dataclass(frozen=True)
class Naming:
    """The names of a series: of features, of inputs and of the column of times, and whether sequences have names."""

    features: tuple[str, ...] | None = None
    drivers: tuple[str, ...] | None = None
    time: Any = None
    numbered_steps: bool = False  # without a column of times, whether steps have numbers as labels
    sequences: bool = False


@dataclass(frozen=True)
class Facts:
    """What the processes that read parts of one source agree on.

    Attributes:
        row, dtype: of the observations.
        labels, order: of states, and their order if they have one.
        known: whether some state is known.
        names: a hash of the name of each sequence.
    """

    row: tuple[int, ...]
    dtype: torch.dtype
    labels: tuple[Any, ...]
    order: tuple[Any, ...] | None
    known: bool
    names: Int[np.ndarray, "B"]


class Spool:
    """Writes blocks of rows, and makes a `Series` of them."""

    def __init__(self, naming: Naming) -> None:
        self.naming = naming
        self._tables: dict[str, Scratch] = {}
        self._lengths: list[int] = []
        self._keys: dict[Any, int] = {}
        self._times = None if naming.time is None else LabelWriter(naming.time)
        self._labels: dict[Any, int] = {}  # of states
        self._order: tuple[Any, ...] | None = None
        self._known = False  # whether some state is known

    def add(self, block: Block) -> None:
        """Check and write further rows.

        Raises:
            ValueError: a sequence that comes back, a time that does not rise, or a number that cannot be.
        """
        if "x" in self._tables and self._tables["x"].row != tuple(block.x.shape[1:]):
            width = self._tables["x"].row[0]
            raise ValueError(
                f"source: got {block.x.shape[1]} feature(s) in {block.where(0)}, but {width} before; give all the same."
            )
        self._begin(block)
        if self._times is not None and len(block.x):
            assert block.times is not None
            self._times.add(block.times, block.starts, block.where)
        refuse = partial(self._refuse, block)
        refuse(block.x.isinf(), block.x, "x", "finite numbers, or an empty cell where a value is missing")
        rows = {"x": block.x}
        for argument, table in block.beside.items():
            numbers = self._numbered(table, block) if argument == "states" else table.to(block.x)
            rows |= rows_beside(argument, numbers, rows["x"], refuse)
        for name, table in rows.items():
            self._append(name, table)
        self._known = self._known or ("states" in rows and bool((rows["states"] >= 0).any()))

    def _begin(self, block: Block) -> None:
        starts = [*block.starts.tolist(), len(block.x)]
        if starts[0]:
            self._lengths[-1] += starts[0]
        self._lengths += [stop - first for first, stop in pairwise(starts)]
        for key, start in zip(block.keys if self.naming.sequences else (), starts, strict=False):
            if key in self._keys:
                raise ValueError(
                    f"sequence: got {key!r} again in {block.where(start)}, after other sequences; sort the rows by "
                    "sequence and time, or if they fit in memory, read them by read_panel."
                )
            self._keys[key] = len(self._keys)

    def _numbered(self, states: Float[Tensor, "n"], block: Block) -> Float[Tensor, "n"]:
        """The states with the numbers of their labels among those of all blocks."""
        if block.state_names is None:
            return states
        labels, in_order = block.state_names
        if in_order:
            if self._order not in (None, labels):
                raise ValueError(
                    f"states: got the categories {list(labels)} in {block.where(0)}, but {list(self._order or ())} "
                    "before; give all of them the same."
                )
            self._order = labels
        code = [self._labels.setdefault(label, len(self._labels)) for label in labels] or [0]
        table = torch.tensor(code, dtype=torch.float64, device="cpu")
        return torch.where(states >= 0, table[states.clamp(min=0).nan_to_num().long()], states)

    def _refuse(self, block: Block, bad: Bool[Tensor, "n *f"], table: Tensor, argument: str, expected: str) -> None:
        if not bool(bad.any()):
            return
        row, *place = bad.nonzero()[0].tolist()
        names = self.naming.features if argument == "x" else None
        column = "" if not place else f", column {names[place[0]]}" if names else f", feature {place[0]}"
        value = f"{float(table[row, *place]):g}"
        raise ValueError(f"{argument}: got {value} in {block.where(row)}{column}; expected {expected}.")

    def _append(self, name: str, table: Tensor) -> None:
        known = self._tables.get(name)
        if known is None:
            known = self._tables[name] = Scratch(table.dtype, tuple(table.shape[1:]))
        if name != "states" and table.dtype == torch.float64 and known.dtype == torch.float32:
            known = self._tables[name] = known.map(Tensor.double)
        known.append(table)

    @property
    def facts(self) -> Facts:
        """What all processes must agree on."""
        x, labels = self._tables["x"], tuple(self._labels)
        return Facts(x.row, x.dtype, labels, self._order, self._known, _hashes(self._names))

    @property
    def _names(self) -> tuple[str, ...] | None:
        return names_of(list(self._keys)) if self.naming.sequences else None

    def series(self, facts: Sequence[Facts]) -> Series:
        """The series of all rows.

        Arguments:
            facts: those of all processes, which get one dtype and one number for each label of a state.

        Raises:
            ValueError: processes with a sequence of the same name, or with rows of another width.
        """
        lengths, names = torch.tensor(self._lengths, dtype=torch.int64, device="cpu"), self._names
        _check_apart(facts, names)
        if any(fact.dtype == torch.float64 for fact in facts) and self._tables["x"].dtype == torch.float32:
            for name in self._tables.keys() - {"states"}:
                self._tables[name] = self._tables[name].map(Tensor.double)
        state_names = self._agreed(facts)
        if not any(fact.known for fact in facts):
            self._tables.pop("states", None)
            state_names = None
        tables: Any = {n: Packed.on_disk(table, lengths, BEYOND[n]) for n, table in self._tables.items()}
        index = self._index(lengths, names, "dt" in tables)
        named = self.naming
        return Series(
            **tables,
            lengths=lengths,
            index=index,
            features=named.features,
            sequences=names,
            drivers=named.drivers,
            state_names=state_names,
        )

    def _index(self, lengths: Tensor, names: tuple[str, ...] | None, cured: bool) -> pd.Index | Labels | None:
        if self._times is not None and len(lengths):
            return self._times.finish(lengths.numpy(), names, cured)
        if self._times is not None or not self.naming.numbered_steps:
            return None
        return pd.RangeIndex(int(lengths.max()) if len(lengths) else 0, name="step")

    def _agreed(self, facts: Sequence[Facts]) -> tuple[str, ...] | None:
        """The labels of the states of all processes; the states get their numbers."""
        labels, orders = [label for fact in facts for label in fact.labels], {fact.order for fact in facts} - {None}
        if not labels:
            return None
        if len(orders) > 1:
            raise ValueError(f"states: got categories {' and '.join(map(str, orders))}; give all of them the same.")
        order = next(iter(orders), None) or ordered_labels(labels)
        number = {label: place for place, label in enumerate(order)}
        change = torch.tensor([*(number[label] for label in self._labels), -1], device="cpu")
        if "states" in self._tables:
            self._tables["states"] = self._tables["states"].map(lambda codes: change[codes])
        return tuple(map(str, order))


def _hashes(names: Sequence[str] | None) -> Int[np.ndarray, "B"]:
    """Numbers of 8 bytes, in place of names, to be compared between processes."""
    digests = b"".join(blake2b(name.encode(), digest_size=8).digest() for name in names or ())
    return np.frombuffer(digests, dtype=np.int64)


def _check_apart(facts: Sequence[Facts], names: tuple[str, ...] | None) -> None:
    """Raise ValueError if two processes have a sequence of the same name, or rows of different widths."""
    widths = {fact.row for fact in facts}
    if len(widths) > 1:
        raise ValueError(f"source: processes got rows of {sorted(widths)} features; give all of them the same files.")
    every, counts = np.unique(np.concatenate([fact.names for fact in facts]), return_counts=True)
    if names is None or not (counts > 1).any():
        return
    twice = np.isin(_hashes(names), every[counts > 1])
    called = f" {names[int(np.argmax(twice))]!r}" if twice.any() else ""
    raise ValueError(
        f"sequence: got a sequence{called} in the rows of two processes, so it comes back after others; sort the rows "
        "by sequence and time."
    )


def undivided(place: str) -> ValueError:
    """The error for a source without a length, of which several processes cannot have parts."""
    return ValueError(
        f"source: {place} has no length, so several processes cannot divide it; give files, a list, an array, or a "
        "Dataset with a length."
    )
