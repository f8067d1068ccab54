"""`open_sequences`: data larger than memory, read once, as a `Series` on disk.

A source is a sequence of units: files, or items of a list. Each has places at which a sequence may begin: rows of a
table, sequences of an array. Each of several processes reads the sequences that begin in its part of all places.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate, chain, islice
from typing import Any, TypeVar

import numpy as np
import torch

from ...inference.numerics.clock import READING, WAITING, during
from ...inference.numerics.scalars import check_flag
from .panel import Choice
from .series import Series
from .source_kinds import read_source
from .spool import Block, Facts, Spool, Unit

T = TypeVar("T")
MAPPED = 2**28  # bytes of a memory map that is read into memory, at most


def open_sequences(
    source: Any,
    sequence: Any = None,
    time: Any = None,
    columns: Any = None,
    *,
    inputs: Any = (),
    dt: Any = None,
    states: Any = None,
    weights: Any = None,
    noise: Any = None,
    progress: bool = True,
) -> Series:
    """Read data that need not fit in memory, once, into a temporary file, as a `Series` that every method accepts.

    The numbers are copied to a temporary file, which is removed when the process ends. The environment variable TMPDIR
    sets its folder. Memory holds a block of rows at a time, and the names of the sequences. All data are checked here,
    before any fit.

    If `torch.distributed` has a default process group, each process reads its share of the rows: consecutive
    sequences, in the order of the ranks. All of them raise the error of one.

    Arguments:
        source: a file or a folder of Parquet, Arrow or CSV files, in natural order of their names (part-2 before
            part-10), or a list of files in its order; a dataset, table or reader of pyarrow; a dataset of Hugging Face;
            an array `[T]`, `[T, F]` or `[B, T, F]` of numpy, `numpy.memmap`, torch or zarr; a `Dataset` of torch, a
            list, a mapping by name, or an iterable, whose items are sequences `[T]` or `[T, F]`, frames, or mappings of
            columns. The rows of a sequence are consecutive and in the order of time. They may span files. A row of
            lists is a whole sequence.
        sequence, time, columns, inputs, dt, states, weights, noise: the names of columns, as in `read_panel`. Labels
            of states have sorted order, unless they are categories that have one.
        progress: show a progress bar on a terminal, of the first process.

    Returns:
        `Series` of B sequences on disk, also if B is 1. Columns of float32 stay float32; all other numbers become
        float64.

    Raises:
        ValueError: a file that cannot be read, or has other columns or types than the first; nothing to read; a
            sequence that comes back after others; times that do not rise within a sequence; numbers that cannot be.
        TypeError: a column or an item that does not hold numbers.
        ModuleNotFoundError: tables without pyarrow.

    Warns:
        UserWarning: times that are not evenly spaced.

    See Also:
        `read_panel`, for tables in memory; docs/guides/large_data.md; docs/how_to/more_data_than_memory.md, a worked
        case.

    Example:
        >>> import pyarrow as pa
        >>> import samplehold as sh
        >>> table = pa.table({"who": list("aaabb"), "t": [0, 1, 2, 0, 1], "level": [0.1, 0.0, 5.2, 5.1, 4.9]})
        >>> series = sh.open_sequences(table, sequence="who", time="t")
        >>> series.sequences, series.lengths, series.on_disk
        (('a', 'b'), tensor([3, 2]), True)
    """
    choice = Choice(sequence, time, columns, inputs, dt, states, weights, noise)
    check_flag("progress", progress)
    group = torch.distributed
    with during(READING):
        if not (group.is_available() and group.is_initialized()):
            return share_of(source, choice, progress=progress)
        rank, n_ranks = group.get_rank(), group.get_world_size()

        def agree(fact: Any) -> list[Any]:
            facts: list[Any] = [None] * n_ranks
            with during(WAITING):
                group.all_gather_object(facts, fact)
            return facts

        return share_of(source, choice, rank, n_ranks, agree, progress and rank == 0)


def is_source(x: Any) -> bool:
    """Whether x is not in memory, so that it is opened first: a `Dataset`, a dataset of Hugging Face, an array of zarr,
    or a large memory map. An iterator can be read only once, so it is none."""
    if isinstance(x, np.memmap):
        return x.nbytes > MAPPED
    library = type(x).__module__.partition(".")[0]
    return isinstance(x, torch.utils.data.Dataset) or library in ("datasets", "zarr")


def share_of(
    source: Any,
    choice: Choice,
    rank: int = 0,
    n_ranks: int = 1,
    agree: Callable[[Any], list[Any]] = lambda fact: [fact],
    progress: bool = False,
) -> Series:
    """The part of a source for one of several processes; see `open_sequences`.

    Arguments:
        agree: from a fact of this process, those of all processes.
        progress: whether to show a bar.
    """
    spool, error = None, None
    try:
        spool = spooled(source, choice, rank, n_ranks, progress)
    except Exception as raised:
        error = raised
    facts = agree(str(error) if spool is None else spool.facts)
    if spool is None:
        assert error is not None
        raise error
    for other, fact in enumerate(facts):
        if not isinstance(fact, Facts):
            raise ValueError(f"source: process {other} of {n_ranks} cannot read its part: {fact}")
    return spool.series(facts)


def spooled(source: Any, choice: Choice, rank: int, n_ranks: int, progress: bool = False) -> Spool:
    """The rows of a share, checked and written to disk."""
    from ..progress import reading  # which imports rich

    found = read_source(source, choice)
    blocks = _blocks(found.units, rank, n_ranks)
    spool = None

    def n_rows() -> int | None:
        total = found.n_rows()
        return total and -(-total // n_ranks)

    with reading(n_rows, progress) as passed:
        for block in _ahead(blocks) if found.in_files else blocks:
            spool = spool or Spool(found.naming())
            spool.add(block)
            passed(len(block.x))
    if spool is None:
        raise ValueError("source: has no rows; give at least one step.")
    return spool


def _blocks(units: Iterable[Unit], rank: int, n_ranks: int) -> Iterator[Block]:
    """The rows of the sequences that begin in the part of a process of all places of the units; if there are none, no
    row of the first block.

    To know whether a sequence begins at the first place of its part, a process reads the place before it.
    """
    if n_ranks == 1:
        yield from _joined(block for unit in units for block in unit.blocks(0))
        return
    units = list(units)
    counts = [unit.count() for unit in units]
    ends = list(accumulate(counts, initial=0))[1:]
    total = ends[-1] if ends else 0
    first, stop = total * rank // n_ranks, total * (rank + 1) // n_ranks

    def placed() -> Iterator[Block]:
        for unit, count, end in zip(units, counts, ends, strict=True):
            base = end - count
            if end <= first - 1 or not count:
                continue
            skip = max(0, first - 1 - base) if unit.exact else 0
            for block in unit.blocks(skip):
                yield replace(block, places=base + np.minimum(block.places, count - 1))

    share = _between(_joined(placed()), first, stop) if first < stop else iter(())
    begun = next(share, None)
    none = (block.cut(0, 0) for block in islice(_blocks(units, 0, 1), 1))
    yield from none if begun is None else chain([begun], share)


def _joined(blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks, of which one that continues a sequence does not begin one."""
    last: Any = object()
    for block in blocks:
        keys = block.keys
        if block.joins and keys and block.starts[0] == 0 and keys[0] == last:
            block = replace(block, starts=block.starts[1:], keys=keys[1:], places=block.places[1:])
        last = keys[-1] if keys else last
        yield block


def _between(blocks: Iterable[Block], first: int, stop: int) -> Iterator[Block]:
    """The rows of the sequences that begin at places from `first` up to `stop`."""
    begun = False
    for block in blocks:
        rows = [*block.starts.tolist(), len(block.x)]
        low, high = np.searchsorted(block.places, [first, stop]).tolist()
        begin = 0 if begun else rows[low]
        begun = begun or low < high
        if begun and begin < rows[high]:
            yield block.cut(begin, rows[high])
        if high < len(block.starts):
            return


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """The items, of which the next is made by another thread while one is in use."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item
