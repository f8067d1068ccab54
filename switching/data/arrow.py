"""Batches of tables of pyarrow as blocks of rows."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .frames import plain
from .panel import Choice, user_columns
from .spool import Block, Naming, Unit, undivided
from .table_files import Table, after, arrow, compute, sliced

ROWS = 2**17  # of a batch
CELLS = 2**8  # rows of a batch if each holds a sequence
OF_NUMBERS = {"whole numbers", "numbers", "booleans", "nothing"}  # kinds of types
NUMBERS = ("columns", "inputs", "dt", "weights", "noise")


class TableReader:
    """Reads tables that have the columns of the first one."""

    listed: bool

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self._first: Table | None = None
        self._named: dict[str, list[Any]] = {}
        self.listed = False  # whether each row holds a sequence

    @property
    def naming(self) -> Naming | None:
        """The names of the series; None before the first table."""
        if self._first is None:
            return None
        named = self._named
        return Naming(
            features=tuple(named["columns"]),
            drivers=tuple(named["inputs"]) or None,
            time=named["time"][0] if named["time"] else None,
            numbered_steps=True,
            sequences=bool(named["sequence"]) or self._first.key is not None,
        )

    def unit(self, table: Table) -> Unit:
        """A table as a unit of the source.

        Raises:
            ValueError, TypeError: see `check`.
        """
        self.check(table)
        return Unit(table.count, lambda skip: self._blocks(table, skip), table.exact)

    # ---- columns -----------------------------------------------------------------------------------------------------

    def check(self, table: Table) -> None:
        """Raise ValueError if a table does not have the columns of the first one, and TypeError if some do not hold
        numbers."""
        schema, place = table.schema, table.place
        twice = [name for i, name in enumerate(schema.names) if name in schema.names[:i]]
        if twice:
            raise ValueError(f"source: {place} has two columns called {twice[0]!r}; give each a different name.")
        if self._first is None:
            self._named = self.choice.among(schema.names, place)
            steps = [schema.field(name).type for name in self._of_steps()]
            self.listed = any(map(_is_list, steps))
        else:
            self._check_same(table, self._first)
        for name in self._of_steps():
            if _is_list(schema.field(name).type) != self.listed:
                raise ValueError(
                    f"source: {place} has column {name!r} of {schema.field(name).type}, but lists in other columns; a "
                    "row of lists is a sequence, so give lists in all columns of its steps, or in none."
                )
        for option in NUMBERS:
            for name in self._named[option]:
                argument = "source" if option == "columns" and self.choice.columns is None else option
                _check_numbers(argument, name, _of_step(schema.field(name).type), place)
        self._first = self._first or table

    def _check_same(self, table: Table, first: Table) -> None:
        schema, known = table.schema, first.schema
        used = [name for names in self._named.values() for name in names]
        for name in used:
            if name not in schema.names:
                raise ValueError(
                    f"source: {table.place} has no column {name!r}, which {first.place} has; write it with the same "
                    "columns, or leave it out."
                )
        further = [name for name in user_columns(schema.names) if name not in used]
        if self.choice.columns is None and further:
            raise ValueError(
                f"source: {table.place} has a column {further[0]!r}, which {first.place} lacks; name the features by "
                "`columns`."
            )
        for name in used:
            ours, theirs = _kind(schema.field(name).type), _kind(known.field(name).type)
            if ours != theirs and not {ours, theirs} <= OF_NUMBERS:
                raise ValueError(
                    f"source: {table.place} has column {name!r} of {schema.field(name).type}, but {first.place} has it "
                    f"of {known.field(name).type}; write both with one type."
                )

    def _of_steps(self) -> list[Any]:
        """The columns with a cell for each step."""
        return [name for option, names in self._named.items() if option != "sequence" for name in names]

    # ---- rows --------------------------------------------------------------------------------------------------------

    def _blocks(self, table: Table, skip: int) -> Iterator[Block]:
        names = list(dict.fromkeys(name for names in self._named.values() for name in names))
        row = skip
        for batch in table.read(names, skip, CELLS if self.listed else ROWS):
            columns = {name: _stored(batch.column(name)) for name in names}
            block = self._of_lists(columns, table, row) if self.listed else self._of_rows(columns, table, row)
            yield replace(block, joins=block.joins and not (table.alone and row == skip))
            row += batch.num_rows

    def _of_rows(self, columns: dict[Any, Any], table: Table, row: int) -> Block:
        n = len(next(iter(columns.values())))
        starts, keys = np.zeros(1, dtype=np.int64), [table.key]

        def where(i: int) -> str:
            return f"row {row + i + 1} of {table.place}"

        if names := self._named["sequence"]:
            changes = np.zeros(n, dtype=bool)
            changes[0] = True
            for name in names:
                changes[1:] |= _changes(columns[name], name, where)
            starts = np.flatnonzero(changes)
            keys = _keys([columns[name] for name in names], starts)
        return self._block(columns, n, starts, keys, starts + row, where, True)

    def _of_lists(self, columns: dict[Any, Any], table: Table, row: int) -> Block:
        """Rows that hold a sequence each."""
        pc, steps = compute(), self._of_steps()
        lengths = np.zeros(0, dtype=np.int64)
        for name in steps:
            ours = pc.list_value_length(columns[name]).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
            lengths = lengths if lengths.size else ours
            if (ours != lengths).any():
                i = int(np.argmax(ours != lengths))
                raise ValueError(
                    f"source: row {row + i + 1} of {table.place} has {ours[i]} cells of {name!r}, but {lengths[i]} of "
                    f"{steps[0]!r}; give each step a cell in every list."
                )
        if not lengths.all():
            raise ValueError(
                f"source: row {row + int(np.argmin(lengths)) + 1} of {table.place} has an empty list, a sequence "
                "without steps; leave it out."
            )
        starts = np.cumsum(lengths) - lengths

        def where(i: int) -> str:
            member = int(np.searchsorted(starts, i, side="right")) - 1
            return f"step {i - int(starts[member])} of row {row + member + 1} of {table.place}"

        names = self._named["sequence"]
        for name in names:
            if columns[name].null_count:
                empty = int(np.argmax(columns[name].is_null().to_numpy(zero_copy_only=False)))
                raise ValueError(f"sequence: got no {name} in row {row + empty + 1} of {table.place}; fill it.")
        every = np.arange(len(lengths))
        keys = _keys([columns[name] for name in names], every) if names else [None] * len(lengths)
        cells = {name: _stored(columns[name].flatten()) for name in steps}
        return self._block(cells, int(lengths.sum()), starts, keys, every + row, where, False)

    def _block(
        self,
        columns: dict[Any, Any],
        n: int,
        starts: Int[np.ndarray, "s"],
        keys: list[Any],
        places: Int[np.ndarray, "s"],
        where: Any,
        joins: bool,
    ) -> Block:
        named = self._named
        beside, labels = {}, None
        if named["states"]:
            beside["states"], labels = _states(columns[named["states"][0]])
        for option in NUMBERS[1:]:
            if named[option]:
                table = _table([columns[name] for name in named[option]])
                beside[option] = table if option == "inputs" or table.shape[1] > 1 else table[:, 0]
        times = None
        if named["time"]:
            time = named["time"][0]
            times = pd.Index(plain(arrow().table({time: columns[time]}), "source")[time], name=time)
        x = _table([columns[name] for name in named["columns"]])
        return Block(x, starts, keys, places, where, joins, times, beside, labels)


@contextmanager
def errors_of_columns(place: str) -> Iterator[None]:
    """A block that makes columns of arrow, whose errors about values of several types name the column."""
    pa = arrow()
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        of = re.search(r"for column (.+) with type", str(error))
        column = f"column {of[1]}" if of else "a column"
        raise TypeError(
            f"{place}: got values of several types in {column}; make them of one type, as by astype(str) or "
            "pandas.to_numeric."
        ) from None


def table_of_frame(frame: Any, place: str, alone: bool = False, key: Any = None) -> Table:
    """A frame of pandas, polars or pyarrow, or another object with a stream of arrow, as a table. A stream is read
    once."""
    pa = arrow()
    if isinstance(frame, pd.DataFrame):
        with errors_of_columns(place):
            frame = pa.Table.from_pandas(frame, preserve_index=False)
    if isinstance(frame, pa.RecordBatch):
        frame = pa.table(frame)
    reader = frame if isinstance(frame, pa.Table) else pa.RecordBatchReader.from_stream(frame)

    def count() -> int:
        if isinstance(reader, pa.Table):
            return reader.num_rows
        raise undivided(place)

    def read(names: list[str], skip: int, rows: int) -> Iterator[Any]:
        batches = reader.to_batches(max_chunksize=rows) if isinstance(reader, pa.Table) else reader
        yield from sliced(after((batch.select(names) for batch in batches), skip), rows)

    return Table(place, reader.schema, count, read, counted=isinstance(reader, pa.Table), alone=alone, key=key)


# ---- columns ---------------------------------------------------------------------------------------------------------


def _stored(column: Any) -> Any:
    """A column in its plain form: the storage of an extension; text in one form."""
    pa = arrow()
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    return column.cast(pa.large_string()) if str(column.type) == "string_view" else column


def _is_list(kind: Any) -> bool:
    types = arrow().types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _of_step(kind: Any) -> Any:
    """The type of the cell of a step."""
    return kind.value_type if _is_list(kind) else kind


def _kind(kind: Any) -> str:
    """The kind of a type; types of one kind may stand in one column of several files."""
    types = arrow().types
    if _is_list(kind):
        return f"lists of {_kind(kind.value_type)}"
    if types.is_dictionary(kind):
        return _kind(kind.value_type)
    if types.is_integer(kind):
        return "whole numbers"
    if types.is_floating(kind) or types.is_decimal(kind):
        return "numbers"
    if types.is_boolean(kind):
        return "booleans"
    if types.is_null(kind):
        return "nothing"
    return "text" if "string" in str(kind) else str(kind)


def _check_numbers(option: str, name: Any, kind: Any, place: str) -> None:
    """Raise TypeError unless a column holds numbers."""
    types = arrow().types
    if not types.is_dictionary(kind) and _kind(kind) in OF_NUMBERS:
        return
    cure = "give its codes, or " if types.is_dictionary(kind) else ""
    raise TypeError(
        f"{option}: got column {name!r} of {kind} in {place}, which holds values that are not numbers; {cure}"
        "select numeric columns (`sequence` and `time` take those of sequences and times)."
    )


def _table(columns: list[Any]) -> Float[Tensor, "n F"]:
    """Columns of numbers beside each other: float32 if all are, else float64, and NaN for empty cells."""
    narrow = all(column.type == arrow().float32() for column in columns)
    table = np.empty((len(columns[0]), len(columns)), dtype=np.float32 if narrow else np.float64)
    for place, column in enumerate(columns):
        table[:, place] = _numbers(column)
    return torch.from_numpy(table)


def _numbers(column: Any) -> np.ndarray:
    """Numbers with NaN for empty cells."""
    pa = arrow()
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if pa.types.is_decimal(column.type):
        return np.array([np.nan if cell is None else float(cell) for cell in column.to_pylist()])
    return (column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column).to_numpy(zero_copy_only=False)


def _states(column: Any) -> tuple[Float[Tensor, "n"], tuple[tuple[Any, ...], bool] | None]:
    """Numbers of states, or of labels of states, NaN where empty, and the labels."""
    pa = arrow()
    coded = pa.types.is_dictionary(column.type)
    if not coded and _kind(column.type) in OF_NUMBERS:
        return torch.from_numpy(_numbers(column).astype(np.float64)), None
    column = column if coded else column.dictionary_encode()
    labels = tuple(column.dictionary.to_pylist())
    if not all(isinstance(label, str) for label in labels):
        raise TypeError(f"states: got a column of {column.type}, expected numbers, or labels of text.")
    numbers = column.indices.cast(pa.float64()).fill_null(np.nan).to_numpy()
    return torch.from_numpy(numbers.copy()), (labels, bool(column.type.ordered))


def _changes(column: Any, name: Any, where: Any) -> Bool[np.ndarray, "_"]:
    """Whether each cell differs from the one before it."""
    pa, pc = arrow(), compute()
    empty = column.is_null()
    if pa.types.is_floating(column.type):
        empty = pc.or_kleene(empty, pc.is_nan(column))
    if bool(pc.any(empty).as_py()):
        row = int(np.argmax(empty.fill_null(True).to_numpy(zero_copy_only=False)))
        raise ValueError(f"sequence: got no {name} in {where(row)}; fill it, or drop the row.")
    codes = column.indices if pa.types.is_dictionary(column.type) else column
    try:
        return pc.not_equal(codes.slice(1), codes.slice(0, len(codes) - 1)).to_numpy(zero_copy_only=False)
    except pa.ArrowNotImplementedError:
        raise TypeError(
            f"sequence: got column {name!r} of {column.type}, which cannot name sequences; name a column of text, "
            "numbers or dates."
        ) from None


def _keys(columns: list[Any], rows: Int[np.ndarray, "s"]) -> list[Any]:
    """The names of the sequences that begin at some rows: of one column, or of several as a tuple."""
    pa = arrow()
    cells = [plain(pa.table({"key": column.take(pa.array(rows))}), "source")["key"].tolist() for column in columns]
    return cells[0] if len(cells) == 1 else list(zip(*cells, strict=True))
