"""Tables from files: CSV and Parquet. An error names the place of a mistake in the file."""

import bz2
import csv
import gzip
import lzma
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .files import check_file
from .timeline import TIME_NAMES, distances, is_number, is_time, label_text, out_of_order, rows_by

PACKED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
PARQUET = (".parquet", ".pq")
UNNAMED = "row"  # the name of a first column without a name
WHOLE_TIMES = frozenset({"time", "date", "datetime", "timestamp", "t", "step", UNNAMED})  # not parts, as a month is


@dataclass(frozen=True)
class TableSeries:
    """One or several series from a file: observed columns and inputs, indexed by the columns that label the
    rows."""

    observed: pd.DataFrame
    inputs: pd.DataFrame
    time: str | None
    sequence: str | None = None
    left_out: tuple[str, ...] = ()  # columns without numbers, if no columns were chosen


# ---- files ---------------------------------------------------------------------------------------------------------


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV file (comma-separated, with a header; `.tsv`: tab-separated; maybe compressed), or a Parquet file.

    Raises:
        ValueError: no such file, an empty file, or one whose content does not match its name.
    """
    check_file(path)
    table = _read_parquet(path) if path.suffix.lower() in PARQUET else _read_csv(path)
    if table.empty:
        raise ValueError(f"data: {path} has no rows; give at least one row below the header.")
    return table


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        from pyarrow import ArrowException
    except ModuleNotFoundError:
        raise ValueError(
            f"data: {path} is a Parquet file, which needs pyarrow; pip install 'samplehold[parquet]' installs it, or "
            "give a CSV file."
        ) from None
    try:
        table = pd.read_parquet(path)
    except (ArrowException, OSError) as error:
        raise ValueError(f"data: {path} cannot be read as Parquet ({_first_line(error)}).") from None
    counted = isinstance(table.index, pd.RangeIndex) and table.index.name is None
    return _named(table if counted else table.reset_index())


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        n_columns = len(_header(path))
        one_column = n_columns == 1  # then a blank line is a missing value
        _check_cells(path, n_columns)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # of lines that are longer than the header
            warnings.simplefilter("ignore", pd.errors.DtypeWarning)
            with _lines(path) as lines:
                table = pd.read_csv(
                    lines,
                    sep=_separator(path),
                    index_col=False,
                    skipinitialspace=True,
                    skip_blank_lines=not one_column,
                )
    except pd.errors.EmptyDataError:
        raise ValueError(f"data: {path} is empty; give a table with a header and at least one row.") from None
    except pd.errors.ParserWarning:
        raise ValueError(
            f"data: {path} cannot be read as CSV (lines have more cells than the header); name every column."
        ) from None
    except (pd.errors.ParserError, csv.Error) as error:
        raise ValueError(f"data: {path} cannot be read as CSV ({_first_line(error)}).") from None
    except UnicodeDecodeError:
        raise ValueError(f"data: {path} is not text in UTF-8; save it as a CSV file in UTF-8, or as Parquet.") from None
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise ValueError(f"data: {path} cannot be unpacked ({_first_line(error)}).") from None
    if one_column:
        last = table.iloc[:, 0].last_valid_index()
        table = table.iloc[: 0 if last is None else int(last) + 1]
    return _named(table)


def _header(path: Path) -> list[str]:
    """The names of the columns in the file.

    Raises:
        ValueError: names that occur twice; no names, if the header is missing; another separator.
    """
    with _lines(path) as lines:
        rows = csv.reader(lines, delimiter=_separator(path), skipinitialspace=True)
        names = [name.strip() for name in next((row for row in rows if row), [])]
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        raise ValueError(
            f"data: {path} is one column, and it has {names[0]} (is the file comma-separated?). Save it with commas "
            "and decimal points, or with tabs as a .tsv file."
        )
    twice = [name for i, name in enumerate(names) if name and name in names[:i]]
    if twice:
        raise ValueError(f"data: {path} has two columns called {twice[0]}; give each a different name.")
    if names and all(is_number(name) for name in names):
        raise ValueError(f"data: {path} has no header, its first line is {', '.join(names)}; name the columns there.")
    return names


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The first line and the cells of each row below the header; quoted cells may span several lines."""
    with _lines(path) as lines:
        rows = csv.reader(lines, delimiter=_separator(path), skipinitialspace=True)
        width, start = 0, 1
        for cells in rows:
            if width == 0:
                width = len(cells)
            elif width == 1 or cells not in ([], [""]):
                yield start, cells
            start = rows.line_num + 1


def _check_cells(path: Path, n_columns: int) -> None:
    """Raise ValueError if the number of cells of a row differs from the header; extra empty cells at its end are
    allowed."""
    try:
        for line, cells in _rows(path):
            if len(cells) == n_columns or (not cells and n_columns == 1):
                continue
            if len(cells) < n_columns or any(cell.strip() for cell in cells[n_columns:]):
                few = len(cells) < n_columns
                cure = (
                    "leave cells empty where values are missing"
                    if few
                    else "name every column, quote cells with commas"
                )
                raise ValueError(
                    f"data: line {line} of {path} has {len(cells)} cell(s), but the header has {n_columns}; {cure}."
                )
    except csv.Error:  # of cells that are longer than the module takes
        return


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """Names without surrounding blanks; a first column without a name numbers the rows, and empty columns are
    dropped."""
    unnamed = [str(name).startswith("Unnamed: ") for name in table.columns]  # names that pandas gives
    kept = table.loc[:, [not (bare and table.iloc[:, i].isna().all()) for i, bare in enumerate(unnamed)]]
    names = [str(name).strip() for name in kept.columns]
    if names and unnamed[0] and UNNAMED not in names:
        names[0] = UNNAMED
    return kept.set_axis(names, axis=1)


def _lines(path: Path) -> TextIOWrapper:
    lines = PACKED.get(path.suffix.lower(), open)(path, "rt", encoding="utf-8-sig", newline="")
    assert isinstance(lines, TextIOWrapper)
    return lines


def _separator(path: Path) -> str:
    packed = path.suffix.lower() in PACKED
    return "\t" if Path(path.stem if packed else path.name).suffix.lower() in (".tsv", ".tab") else ","


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")


# ---- columns -------------------------------------------------------------------------------------------------------


def pick_series(
    table: pd.DataFrame,
    path: Path,
    columns: Sequence[str] | None,
    inputs: Sequence[str],
    time: str | None,
    sequence: str | None = None,
) -> TableSeries:
    """The columns of a table that form one or several series.

    Arguments:
        table, path: the table, and its file.
        columns: observed features; None takes every numeric column that is neither a input nor a label.
        inputs: columns with inputs of the dynamics.
        time: column that labels the rows; None: see `time_column`.
        sequence: column that names the sequence of a row; None: all rows are one sequence.

    Raises:
        ValueError: see `numeric_columns` and `time_column`; no numeric column, or numeric columns that look like times.
    """
    if sequence is not None:
        _check_labels(table, sequence, path, "--sequence")
    label = time_column(table, path, time, [*(columns or ()), *inputs], sequence)
    left_out: tuple[str, ...] = ()
    if columns is None:
        taken = {sequence, label, UNNAMED, *inputs}
        columns = _observed(table, path, taken)
        left_out = tuple(str(name) for name in table.columns if name not in {*columns, *taken})
    observed, drivers = numeric_columns(table, columns, path), numeric_columns(table, inputs, path, "--inputs")
    index = _index(table, label, sequence)
    return TableSeries(observed.set_axis(index), drivers.set_axis(index), label, sequence, left_out)


def _index(table: pd.DataFrame, time: str | None, sequence: str | None) -> pd.Index:
    """The labels of the rows: sequence and time, or time; without a column of labels, steps are numbered."""
    steps = np.empty(len(table), dtype=np.int64)
    for members in _members(table, sequence):
        steps[members] = np.arange(len(members))
    times = pd.Index(steps, name="step") if time is None else pd.Index(table[time], name=time)
    if sequence is None:
        return times
    return pd.MultiIndex.from_arrays([pd.Index(table[sequence], name=sequence), times])


def _observed(table: pd.DataFrame, path: Path, taken: set[str | None]) -> list[str]:
    """Every numeric column that is not in `taken`.

    Raises:
        ValueError: there is none; one has the name of a time; one is numeric except for some cells.
    """
    there = ", ".join(map(str, table.columns))
    columns = [
        str(name) for name in table.columns if name not in taken and _holds_numbers(pd.Series(table[name]), path)
    ]
    times = [name for name in columns if name.lower() in TIME_NAMES]
    if times:
        raise ValueError(
            f"--columns: {path} has {', '.join(times)}, named like a time; name the columns to "
            f"model, or name the time with --time. It has {there}."
        )
    if not columns:
        raise ValueError(f"--columns: {path} has no numeric column to model; it has {there}.")
    return columns


def _holds_numbers(column: pd.Series, path: Path) -> bool:
    """Whether all cells are numbers or empty; ValueError if most are numbers and some are text."""
    kind = pd.api.types.infer_dtype(column, skipna=True)
    if kind == "string" or kind.startswith("mixed"):
        mostly = pd.Series(pd.to_numeric(column, errors="coerce")).count() > 0.5 * column.count()
        return bool(mostly) and _numeric(column, path).size > 0
    return kind in ("integer", "floating", "boolean", "decimal", "empty")


def numeric_columns(table: pd.DataFrame, columns: Sequence[str], path: Path, option: str = "--columns") -> pd.DataFrame:
    """These columns as float64, with NaN for empty cells; true and false become 1 and 0.

    Raises:
        ValueError: no such column (the error lists the columns); text or an infinite number (the error gives the line).
    """
    for name in columns:
        if name not in table.columns:
            there = ", ".join(map(str, table.columns))
            raise ValueError(f"{option}: {path} has no column {name!r}; it has {there}.")
    return pd.DataFrame({name: _numeric(pd.Series(table[name]), path) for name in columns}, index=table.index)


def _numeric(column: pd.Series, path: Path) -> np.ndarray:
    if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        raise ValueError(
            f"{column.name}: {path} has dates in this column; select numeric columns, and dates with --time."
        )
    values = pd.Series(pd.to_numeric(column, errors="coerce"))
    bad = np.flatnonzero(values.isna() & column.notna())
    if bad.size:
        raise ValueError(
            f"{column.name}: got {str(column.iloc[bad[0]])!r} in {_place(path, int(bad[0]))}, expected a number; "
            "leave a cell empty where the value is missing."
        )
    array = np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    infinite = np.flatnonzero(np.isinf(array))
    if infinite.size:
        raise ValueError(
            f"{column.name}: got an infinite value in {_place(path, int(infinite[0]))}; "
            "leave a cell empty where the value is missing."
        )
    return array


def _place(path: Path, row: int) -> str:
    """The place in the file of a row (counted from 0, below the header)."""
    if path.suffix.lower() in PARQUET:
        return f"row {row + 1} of {path}"
    start = next((line for line, _ in islice(_rows(path), row, None)), None)
    return f"row {row + 1} of {path}" if start is None else f"line {start} of {path}"


def _members(table: pd.DataFrame, sequence: str | None) -> Sequence[np.ndarray]:
    """The rows of each sequence; without a column of sequences, all rows are one sequence."""
    if sequence is None:
        return [np.arange(len(table))]
    return rows_by(pd.Index(table[sequence]))[0]


def time_column(
    table: pd.DataFrame, path: Path, column: str | None, taken: Sequence[str], sequence: str | None
) -> str | None:
    """The column that labels the rows.

    This is `column`, if it is given. Otherwise it is the first column, if it has a name of times (year, date,
    ...) or holds dates; or any column with such a name and dates, or with the name date, time or t; or a column without
    a name. A column named year, month, ... whose numbers go up and down is a part of a time, and does not label rows.
    Each sequence is in order by itself.

    Raises:
        ValueError: the `column` does not exist; it has empty cells; its times are not in order.
    """
    label = _find_time(table, taken, sequence) if column is None else column
    if label is None:
        return None
    _check_labels(table, label, path, "--time")
    for members in _members(table, sequence):
        times = pd.Index(table[label].iloc[members])
        step = out_of_order(times)
        if step is None:
            continue
        if column is None and label.lower() not in WHOLE_TIMES and _is_part(times, label, table):
            return None
        cure = ", name the column of the sequences with --sequence" if sequence is None else ""
        here, before = int(members[step]), int(members[step - 1])
        if times[step] == times[step - 1]:
            raise ValueError(
                f"--time: {label} is {label_text(times[step])} in {_place(path, before)} and again in "
                f"{_place(path, here)}; keep one of them{cure}, or choose another column with --time."
            )
        raise ValueError(
            f"--time: {label} goes back in {_place(path, here)}, where {label_text(times[step])} follows "
            f"{label_text(times[step - 1])}; sort the rows by time{cure}, or choose another column with --time."
        )
    return label


def _is_part(times: pd.Index, label: str, table: pd.DataFrame) -> bool:
    """Whether numbers that do not rise are parts of a time: they go up and down, or other parts stand beside them."""
    gaps = None if is_time(times) else distances(times)
    if gaps is None or (gaps < 0).all():
        return False
    beside = TIME_NAMES & {str(name).lower() for name in table.columns} - {label.lower()}
    return bool(beside) or not (gaps >= 0).all()


def _find_time(table: pd.DataFrame, taken: Sequence[str], sequence: str | None) -> str | None:
    names = [str(name) for name in table.columns if name not in (sequence, UNNAMED)]
    for name in names:
        called, dated = name.lower() in TIME_NAMES, is_time(pd.Index(table[name].dropna()))
        first = name == names[0] and (called or dated or name.lower() == "index")
        if name not in taken and (first or (called and dated) or name.lower() in WHOLE_TIMES):
            return name
    return UNNAMED if UNNAMED in table.columns and UNNAMED not in taken else None


def _check_labels(table: pd.DataFrame, name: str, path: Path, option: str) -> None:
    """Raise ValueError if a column of labels does not exist, or has empty cells."""
    if name not in table.columns:
        raise ValueError(f"{option}: {path} has no column {name!r}; it has {', '.join(map(str, table.columns))}.")
    empty = np.flatnonzero(table[name].isna())
    if empty.size:
        place = _place(path, int(empty[0]))
        raise ValueError(f"{option}: {name} has an empty cell in {place}; every row needs a label.")
