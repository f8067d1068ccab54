"""Tables from files: CSV and Parquet, checked so that a mistake in a file is named with its place."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from .files import check_file

TIME_NAMES = frozenset(
    "time date datetime timestamp year quarter month week day hour minute period step index t".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class TableSeries:
    """A series from a file: its observed columns and covariates, indexed by the column that labels its rows."""

    observed: pd.DataFrame
    covariates: pd.DataFrame
    time: str | None


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV file (comma-separated, with a header; `.tsv`: tab-separated) or a Parquet file.

    Raises:
        ValueError: no such file, an empty one, or one that is not what its name says.
    """
    check_file(path)
    table = _read_parquet(path) if path.suffix.lower() in (".parquet", ".pq") else _read_csv(path)
    if table.empty:
        raise ValueError(f"data: {path} has no rows; give at least one row below the header.")
    return table


def _read_parquet(path: Path) -> pd.DataFrame:
    from pyarrow import ArrowException

    try:
        table = pd.read_parquet(path)
    except (ArrowException, OSError) as error:
        raise ValueError(f"data: {path} cannot be read as Parquet ({_first_line(error)}).") from None
    counted = isinstance(table.index, pd.RangeIndex) and table.index.name is None
    return table if counted else table.reset_index()


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        one_column = _header_size(path) == 1  # then a blank line is a missing value
        table = pd.read_csv(
            path, sep=_separator(path), index_col=False, skipinitialspace=True, skip_blank_lines=not one_column
        )
    except pd.errors.EmptyDataError:
        raise ValueError(f"data: {path} is empty; give a table with a header and at least one row.") from None
    except pd.errors.ParserError as error:
        raise ValueError(f"data: {path} cannot be read as CSV ({_first_line(error)}).") from None
    except UnicodeDecodeError:
        raise ValueError(f"data: {path} is not text in UTF-8; save it as a CSV file in UTF-8, or as Parquet.") from None
    if one_column:
        last = table.iloc[:, 0].last_valid_index()
        table = table.iloc[: 0 if last is None else int(last) + 1]
    return table.rename(columns=lambda name: str(name).strip())


def _header_size(path: Path) -> int:
    return pd.read_csv(path, sep=_separator(path), index_col=False, skipinitialspace=True, nrows=0).shape[1]


def _separator(path: Path) -> str:
    return "\t" if path.suffix.lower() in (".tsv", ".tab") else ","


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")


def pick_series(
    table: pd.DataFrame, path: Path, columns: Sequence[str] | None, covariates: Sequence[str], time: str | None
) -> TableSeries:
    """The columns of a table that make a series.

    Arguments:
        table, path: the table, and the file that it was read from.
        columns: observed features; None takes every numeric column that is neither a covariate nor the time.
        covariates: columns that drive the dynamics.
        time: column that labels the rows; None takes the first one if its name (year, date, ...) and its order say so.

    Raises:
        ValueError: see `numeric_columns` and `time_column`; no numeric column at all.
    """
    label = time_column(table, [*(columns or ()), *covariates], time, path)
    if columns is None:
        numeric = [str(name) for name in table.select_dtypes(["number", "bool"]).columns]
        columns = [name for name in numeric if name != label and name not in covariates]
        if not columns:
            there = ", ".join(map(str, table.columns))
            raise ValueError(f"--columns: {path} has no numeric column to model; it has {there}.")
    index = pd.RangeIndex(len(table), name="step") if label is None else pd.Index(table[label], name=label)
    observed, drivers = numeric_columns(table, columns, path), numeric_columns(table, covariates, path, "--covariates")
    return TableSeries(observed.set_axis(index), drivers.set_axis(index), label)


def numeric_columns(table: pd.DataFrame, columns: Sequence[str], path: Path, option: str = "--columns") -> pd.DataFrame:
    """These columns as float64, NaN where a cell is empty; true and false become 1 and 0.

    Raises:
        ValueError: no such column, naming those there are; text or an infinite number in one, naming its line.
    """
    for name in columns:
        if name not in table.columns:
            there = ", ".join(map(str, table.columns))
            cure = " (is the file comma-separated?)" if len(table.columns) == 1 and ";" in there else ""
            raise ValueError(f"{option}: {path} has no column {name!r}; it has {there}{cure}.")
    return pd.DataFrame({name: _numeric(pd.Series(table[name]), path) for name in columns}, index=table.index)


def _numeric(column: pd.Series, path: Path) -> np.ndarray:
    if pd.api.types.is_datetime64_any_dtype(column):
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
    """Where the row (counted from 0, below the header) stands in the file: quoted cells may span several lines."""
    if path.suffix.lower() in (".parquet", ".pq"):
        return f"row {row + 1} of {path}"
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, delimiter=_separator(path), skipinitialspace=True)
        one_column = len(next(reader)) == 1
        start, seen = reader.line_num + 1, 0
        for cells in reader:
            if cells or one_column:
                if seen == row:
                    return f"line {start} of {path}"
                seen += 1
            start = reader.line_num + 1
    return f"row {row + 1} of {path}"


def time_column(table: pd.DataFrame, taken: Sequence[str], asked: str | None, path: Path) -> str | None:
    """The column that labels the rows: the one asked for, or the first one if its name and its order are those of time.

    Raises:
        ValueError: the column asked for is not there, or has empty cells.
    """
    if asked is not None:
        if asked not in table.columns:
            raise ValueError(f"--time: {path} has no column {asked!r}; it has {', '.join(map(str, table.columns))}.")
        empty = np.flatnonzero(table[asked].isna())
        if empty.size:
            place = _place(path, int(empty[0]))
            raise ValueError(f"--time: {asked} has an empty cell in {place}; every row needs a label.")
        return asked
    first = str(table.columns[0])
    labels = pd.Index(table[first])
    in_order = labels.is_monotonic_increasing and labels.is_unique and not labels.hasnans
    return first if first not in taken and first.lower() in TIME_NAMES and in_order else None
