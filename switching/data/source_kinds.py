"""Each kind of source as units: files, tables, arrays, and collections of sequences."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...inference.numerics.scalars import check_path
from .arrow import TableReader, errors_of_columns, table_of_frame
from .frames import to_tensor
from .panel import Choice
from .scratch import BLOCK
from .spool import Block, Naming, Unit, undivided
from .table_files import Table, after, arrow, errors_named, files_of, guarded, sliced, table_of


@dataclass(frozen=True)
class Source:
    """A source as units, which may be read again if it has a length.

    Attributes:
        naming: the names of the series, which are known after the first block.
        in_files: whether reading waits for a disk, so that another thread may read ahead.
        n_rows: their number, or an estimate; None: it is not known before they are read.
    """

    units: Iterable[Unit]
    naming: Callable[[], Naming]
    in_files: bool = False
    n_rows: Callable[[], int | None] = lambda: None


def read_source(source: Any, choice: Choice) -> Source:
    """The units of a source; see `open_sequences`.

    Raises:
        ValueError, TypeError: it cannot be read.
    """
    if isinstance(source, str | Path) or _are_paths(source):
        return _files(source if isinstance(source, list | tuple) else [source], choice)
    library = type(source).__module__.partition(".")[0]
    dataset: Any = sys.modules.get("pyarrow.dataset")
    if dataset is not None and isinstance(source, dataset.Dataset):
        return _tables(_fragments(source), choice, in_files=True)
    if library == "datasets" and hasattr(source, "with_format"):
        return _tables([_hugging_face(source)], choice, in_files=True)
    if _is_frame(source):
        return _tables([table_of_frame(source, "the table")], choice)
    if isinstance(source, Tensor | pd.Series) or hasattr(source, "__arrow_c_stream__"):
        source = to_tensor(source, "source")
    if _is_array(source):
        _check_nothing_named(choice, "an array")
        shape = source.shape[:2] if len(source.shape) == 3 else source.shape[:1]
        return Source(_units_of_array(source), Naming, n_rows=lambda: math.prod(shape))
    if isinstance(source, torch.utils.data.DataLoader):
        raise TypeError("source: got a DataLoader, whose items are batches; give its dataset.")
    if isinstance(source, Mapping | Iterable) or _has_length(source):
        items = _Items(source, choice)
        return Source(items.units(), items.naming)
    raise TypeError(
        f"source: got {type(source).__name__}, expected paths of files, a table, an array, a Dataset, or an iterable "
        "of sequences."
    )


def _are_paths(source: Any) -> bool:
    return isinstance(source, list | tuple) and len(source) > 0 and all(isinstance(p, str | Path) for p in source)


def _is_frame(source: Any) -> bool:
    """Whether a source is a frame of pandas, or a stream of named columns of arrow."""
    streams = hasattr(source, "__arrow_c_stream__") and (hasattr(source, "columns") or hasattr(source, "schema"))
    return isinstance(source, pd.DataFrame) or streams


def _is_array(source: Any) -> bool:
    """Whether a source is an array of numpy, torch or zarr, or another that is read in slices."""
    return all(hasattr(source, name) for name in ("shape", "dtype", "__getitem__")) and not callable(source.shape)


def _has_length(source: Any) -> bool:
    return hasattr(source, "__getitem__") and hasattr(source, "__len__")


def _check_nothing_named(choice: Choice, kind: str) -> None:
    for option in fields(choice):
        name = getattr(choice, option.name)
        if name is not None and not (isinstance(name, tuple) and not name):
            raise ValueError(f"{option.name}: got {name!r}, but {kind} has no named columns; leave it out.")


# ---- tables ----------------------------------------------------------------------------------------------------------


def _tables(tables: Iterable[Table], choice: Choice, in_files: bool = False) -> Source:
    reader, tables = TableReader(choice), list(tables)
    units = [reader.unit(table) for table in tables]

    def n_rows() -> int | None:
        known = not reader.listed and all(table.counted for table in tables)
        return sum(table.count() for table in tables) if known else None

    return Source(units, lambda: reader.naming or Naming(), in_files, n_rows)


def _files(paths: Sequence[Any], choice: Choice) -> Source:
    named = choice.names()
    arrow()
    files = files_of([check_path("source", path) for path in paths])
    return _tables((table_of(file, named["sequence"], named["time"]) for file in files), choice, in_files=True)


def _fragments(dataset: Any) -> Iterator[Table]:
    """The parts of a dataset of pyarrow; a dataset with a filter is one part."""
    schema, is_text = dataset.schema, type(getattr(dataset, "format", None)).__name__[:3] in ("Csv", "Jso")
    try:
        parts = list(dataset.get_fragments())
    except ValueError:  # of a filter
        parts = [dataset]
    for part in parts:
        place, known = getattr(part, "path", None) or "the dataset", {} if part is dataset else {"schema": schema}

        def read(names: list[str], skip: int, rows: int, part: Any = part, known: Any = known) -> Iterator[Any]:
            batches = part.to_batches(columns=names, batch_size=rows, batch_readahead=2, fragment_readahead=1, **known)
            yield from sliced(after((batch.select(names) for batch in batches), skip), rows)

        counted, kind = part is not dataset and not is_text, "a dataset"
        count = errors_named(place, kind)(part.count_rows)
        yield Table(place, schema, count, guarded(place, kind, read), counted=counted)


def _hugging_face(dataset: Any) -> Table:
    """A dataset of Hugging Face, which gives tables of arrow."""
    if isinstance(dataset, Mapping):
        raise TypeError(f"source: got a {type(dataset).__name__}; choose a split, such as {next(iter(dataset), '')!r}.")
    formatted = dataset.with_format("arrow")
    schema = next((table.schema for table in formatted.iter(1)), None)
    if schema is None:
        raise ValueError("source: the dataset has no rows; give at least one step.")

    def read(names: list[str], skip: int, rows: int) -> Iterator[Any]:
        some = formatted.select(range(skip, len(dataset))) if skip else formatted
        for table in some.iter(rows):
            yield from table.select(names).combine_chunks().to_batches()

    def count() -> int:
        if not hasattr(dataset, "__len__"):
            raise undivided("the dataset")
        return len(dataset)

    return Table("the dataset", schema, count, read)


# ---- arrays ----------------------------------------------------------------------------------------------------------


def _units_of_array(array: Any) -> list[Unit]:
    """An array `[T]`, `[T, F]`, or `[B, T, F]`, in groups of sequences of one block."""
    shape = tuple(array.shape)
    if len(shape) not in (1, 2, 3) or 0 in shape:
        raise ValueError(f"source: got shape {shape}, expected [T], [T, F] or [B, T, F], with at least one step.")
    if len(shape) < 3:
        return [unit_of_sequence(array, "")]
    n, n_steps = shape[:2]
    size = max(1, BLOCK // n_steps)
    return [_group(array, first, min(first + size, n)) for first in range(0, n, size)]


def _group(array: Any, first: int, stop: int) -> Unit:
    """Sequences of an array, from `first` up to `stop`."""
    if stop - first == 1:
        return unit_of_sequence(array, f" of sequence {first}", first)
    n_steps = array.shape[1]

    def blocks(skip: int) -> Iterator[Block]:
        members = np.arange(first + skip, stop)

        def where(row: int) -> str:
            return f"step {row % n_steps} of sequence {members[row // n_steps]}"

        x = _numbers(array[first + skip : stop], "source").flatten(0, 1)
        yield Block(x, np.arange(len(members)) * n_steps, [None] * len(members), members - first, where)

    return Unit(lambda: stop - first, blocks)


def unit_of_sequence(array: Any, of: str, member: int | None = None, key: Any = None) -> Unit:
    """One sequence `[T]` or `[T, F]`, or one of an array of several, in stretches.

    Arguments:
        of: which one it is, for an error about a step.
    """
    n = array.shape[0 if member is None else 1]
    begins, continues = np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64)

    def blocks(skip: int) -> Iterator[Block]:
        for first in range(0, n, BLOCK):
            some = slice(first, first + BLOCK)
            x = _numbers(array[some] if member is None else array[member, some], "source")
            starts, keys = (continues, []) if first else (begins, [key])
            yield Block(
                x if x.ndim == 2 else x.unsqueeze(-1), starts, keys, starts, lambda row, f=first: f"step {f + row}{of}"
            )

    return Unit(lambda: 1, blocks)


def _numbers(array: Any, name: str) -> Tensor:
    return to_tensor(array if isinstance(array, Tensor) else np.asanyarray(array), name).detach().cpu()


# ---- collections of sequences ----------------------------------------------------------------------------------------


class _Items:
    """The items of a list, a mapping, a `Dataset` of torch, or an iterable: arrays, frames or mappings of columns."""

    def __init__(self, source: Any, choice: Choice) -> None:
        self.source, self.choice = source, choice
        self.by_name = isinstance(source, Mapping)
        self.reader = TableReader(choice)
        self._are_tables: bool | None = None

    def naming(self) -> Naming:
        return self.reader.naming or Naming(sequences=self.by_name)

    def units(self) -> Iterable[Unit]:
        if self.by_name:
            return [self._unit(key, lambda key=key: self.source[key]) for key in self.source]
        if _has_length(self.source):
            return [self._unit(i, lambda i=i: self.source[i]) for i in range(len(self.source))]
        return (self._unit(i, lambda item=item: item, sized=False) for i, item in enumerate(self.source))

    def _unit(self, number: Any, load: Callable[[], Any], sized: bool = True) -> Unit:
        def count() -> int:
            if not sized:
                raise undivided("the iterable")
            return 1

        return Unit(count, lambda skip: self._read(number, load()).blocks(0), exact=False)

    def _read(self, number: Any, item: Any) -> Unit:
        """An item as a unit."""
        place, key = f"source[{number!r}]", number if self.by_name else None
        if isinstance(item, tuple) and len(item) == 1:  # of a TensorDataset
            item = item[0]
        elif isinstance(item, tuple) and any(np.ndim(part) for part in item):
            raise TypeError(f"{place}: got a tuple of {len(item)} arrays; give a sequence, or a mapping of columns.")
        is_table = isinstance(item, Mapping) or _is_frame(item)
        if self._are_tables not in (None, is_table):
            raise TypeError(f"source: got both tables and arrays, as {place}; give items of one kind.")
        self._are_tables = is_table
        if is_table:
            frame = self._columns(item, place) if isinstance(item, Mapping) else item
            alone = self.by_name or self.choice.sequence is None
            return self.reader.unit(table_of_frame(frame, place, alone, key))
        _check_nothing_named(self.choice, place)
        x = _numbers(item, place) if _is_array(item) else to_tensor(item, place)
        if x.ndim not in (1, 2) or not x.numel():
            raise ValueError(f"{place}: got shape {tuple(x.shape)}, expected a sequence [T] or [T, F].")
        return unit_of_sequence(x, f" of {place}", key=key)

    def _columns(self, item: Mapping[str, Any], place: str) -> Any:
        """A mapping of columns as a table; one name of a sequence stands for all its steps."""
        columns = {name: _column(column, f"{place}[{name!r}]") for name, column in item.items()}
        sizes = {len(column) for column in columns.values() if column.ndim == 1}
        names = self.choice.names()["sequence"]
        for name, column in columns.items():
            if column.ndim == 0 and name in names and len(sizes) == 1:
                columns[name] = np.repeat(column, *sizes)
            elif column.ndim != 1 or len(sizes) != 1:
                raise ValueError(
                    f"{place}: got shape {column.shape} of {name!r}, expected columns [T] of one length, and a single "
                    "name of the sequence."
                )
        with errors_of_columns(place):
            return arrow().table(columns)


def _column(column: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(column)
    except ValueError:
        raise ValueError(f"{name}: got nested lists of unequal lengths, expected a column [T].") from None
