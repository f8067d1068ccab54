"""Files of tables, Parquet, Arrow or CSV, that are read one batch of rows after another."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from ...inference.numerics.extras import needs
from .files import check_file

PARQUET, ARROW, TEXT = (".parquet", ".pq", ".parq"), (".arrow", ".feather", ".ipc", ".arrows"), (".csv", ".tsv")
SQUEEZED = (".gz", ".bz2", ".xz", ".zst", ".lz4")
SUFFIXES = (*PARQUET, *ARROW, *TEXT)
HEAD = 2**20  # bytes of a CSV file that are read together


@dataclass(frozen=True)
class Table:
    """A table that gives its rows in batches.

    Attributes:
        place: its name, for errors.
        schema: its columns.
        count: its number of rows, or an estimate if it is not `exact`.
        read: batches of some columns, from a row on, with so many rows each.
        counted: whether this number is known before the rows are read.
        alone: whether a sequence begins with it, whose name is `key`.
    """

    place: str
    schema: Any
    count: Callable[[], int]
    read: Callable[[list[str], int, int], Iterator[Any]]
    exact: bool = True
    counted: bool = True
    alone: bool = False
    key: Any = None


def arrow() -> Any:
    """The library."""
    with needs("pyarrow", "parquet"):
        import pyarrow

        return pyarrow


def compute() -> Any:
    """The functions of the library."""
    with needs("pyarrow", "parquet"):
        import pyarrow.compute

        return pyarrow.compute


# ---- files -----------------------------------------------------------------------------------------------------------


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files of some paths; those of a folder in the natural order of their names.

    Raises:
        ValueError: no such file; a folder without files; a file whose name does not tell its format.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"source: there is no file or folder {path}.")
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted((p for p in path.rglob("*") if _is_shown(p, path)), key=lambda p: _natural(p.relative_to(path)))
        if not inside:
            raise ValueError(f"source: {path} has no files to read; give a folder of Parquet, Arrow or CSV files.")
        files += inside
    for file in files:
        check_file(file, "source")
        if format_of(file) is None:
            raise ValueError(
                f"source: {file} has the suffix {file.suffix!r}, expected one of {', '.join(SUFFIXES)}; rename it, or "
                "give a list of the files to read."
            )
    return files


def _is_shown(path: Path, folder: Path) -> bool:
    """Whether a path is a file that is not hidden, as _SUCCESS and .part.crc are."""
    return path.is_file() and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)


def _natural(path: Path) -> list[tuple[int, Any]]:
    """A key by which part-2 is before part-10."""
    pieces = re.split(r"(\d+)", str(path))
    return [(0, int(piece)) if piece.isdigit() and piece.isascii() else (1, piece) for piece in pieces]


def format_of(path: Path) -> str | None:
    """The format of a file, by its suffix."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if len(suffixes) == 2 and suffixes[-1] in SQUEEZED and suffixes[0] in TEXT:
        return "CSV"
    last = suffixes[-1] if suffixes else ""
    return "Parquet" if last in PARQUET else "Arrow" if last in ARROW else "CSV" if last in TEXT else None


def table_of(path: Path, keys: Sequence[str], times: Sequence[str]) -> Table:
    """The table in a file.

    Arguments:
        keys, times: the columns of sequences and of times, which a CSV file may have without their types.

    Raises:
        ValueError: it cannot be read.
    """
    kind = format_of(path)
    with errors_named(path, kind):
        return _parquet(path) if kind == "Parquet" else _ipc(path) if kind == "Arrow" else _csv(path, keys, times)


@contextmanager
def errors_named(path: Any, kind: str | None) -> Iterator[None]:
    """A block, or a function, whose errors name the file."""
    pa = arrow()
    try:
        yield
    except UnicodeDecodeError:
        raise ValueError(
            f"source: {path} cannot be read as {kind}: its names are not text in UTF-8; give a file of that format, or "
            "save it in UTF-8."
        ) from None
    except (pa.ArrowException, OSError, EOFError) as error:
        first = str(error).strip().split("\n")[0].rstrip(".")
        raise ValueError(f"source: {path} cannot be read as {kind} ({first}).") from None


def guarded(path: Any, kind: str, read: Callable[[list[str], int, int], Iterator[Any]]) -> Any:
    """`Table.read` of a file, with errors that name it."""

    def batches(names: list[str], skip: int, rows: int) -> Iterator[Any]:
        with errors_named(path, kind):
            yield from read(names, skip, rows)

    return batches


def _parquet(path: Path) -> Table:
    import pyarrow.parquet as pq

    def opened() -> Any:
        return pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20)

    with opened() as file:
        schema, meta = file.schema_arrow, file.metadata
        counts = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]

    def read(names: list[str], skip: int, rows: int) -> Iterator[Any]:
        ends = list(accumulate(counts))
        groups = [i for i, end in enumerate(ends) if end > skip]
        if not groups:
            return
        before = ends[groups[0]] - counts[groups[0]]
        with opened() as file:
            yield from after(file.iter_batches(rows, groups, names), skip - before)

    return Table(str(path), schema, lambda: sum(counts), guarded(path, "Parquet", read))


def _ipc(path: Path) -> Table:
    pa = arrow()

    @contextmanager
    def opened() -> Iterator[tuple[Any, bool]]:
        with pa.memory_map(str(path)) as source:
            try:
                reader, whole = pa.ipc.open_file(source), True
            except pa.ArrowInvalid:
                source.seek(0)
                reader, whole = pa.ipc.open_stream(source), False
            with reader:
                yield reader, whole

    def batches() -> Iterator[Any]:
        with opened() as (reader, whole):
            yield from (reader.get_batch(i) for i in range(reader.num_record_batches)) if whole else reader

    with opened() as (reader, _):
        schema = reader.schema

    def read(names: list[str], skip: int, rows: int) -> Iterator[Any]:
        yield from sliced(after((batch.select(names) for batch in batches()), skip), rows)

    def count() -> int:
        with errors_named(path, "Arrow"):
            return sum(batch.num_rows for batch in batches())

    return Table(str(path), schema, count, guarded(path, "Arrow", read))


def _csv(path: Path, keys: Sequence[str], times: Sequence[str]) -> Table:
    """A CSV file. Numbers are floats, because later ones may not be whole; sequences have text as names; the first rows
    tell other types."""
    import pyarrow.csv as text

    pa = arrow()
    tabs = ".tsv" in (suffix.lower() for suffix in path.suffixes[-2:])

    def opened(types: dict[str, Any], names: list[str] | None) -> Any:
        convert = text.ConvertOptions(column_types=types, include_columns=names, strings_can_be_null=True)
        parse = text.ParseOptions(delimiter="\t" if tabs else ",", newlines_in_values=True)
        stream = pa.input_stream(str(path), compression="detect")
        # One thread: only then an error names its row, and rows that are read in order gain nothing from more.
        return text.open_csv(stream, text.ReadOptions(block_size=HEAD, use_threads=False), parse, convert)

    types: dict[str, Any] = dict.fromkeys(keys, pa.string())
    with opened(types, None) as reader:
        for field in reader.schema:
            number = pa.types.is_integer(field.type) or pa.types.is_null(field.type)
            types |= {field.name: pa.float64()} if number and field.name not in (*keys, *times) else {}
    with opened(types, None) as reader:
        schema, n_rows = reader.schema, 0
        with suppress(StopIteration):
            n_rows = reader.read_next_batch().num_rows
    estimate = n_rows * max(1, path.stat().st_size // HEAD)

    def read(names: list[str], skip: int, rows: int) -> Iterator[Any]:
        with opened({name: kind for name, kind in types.items() if name in names}, names) as reader:
            yield from sliced(after(reader, skip), rows)

    return Table(str(path), schema, lambda: estimate, guarded(path, "CSV", read), exact=False)


def after(batches: Iterable[Any], skip: int) -> Iterator[Any]:
    """Batches without their first rows."""
    for batch in batches:
        if skip < batch.num_rows:
            yield batch.slice(skip)
        skip = max(0, skip - batch.num_rows)


def sliced(batches: Iterable[Any], rows: int) -> Iterator[Any]:
    """Batches of at most so many rows."""
    for batch in batches:
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)
