"""`Scratch`: a table of numbers in a temporary file, of which memory holds only what is in use.

The file is in the folder of `tempfile` (the environment variable TMPDIR sets it). It has no name, so it ends with the
process, however that ends.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Shaped
from torch import Tensor

BLOCK = 2**17  # rows that are read and written together


@contextmanager
def named_folder() -> Iterator[None]:
    """Errors of the file name the folder of temporary files.

    Raises:
        ValueError: TMPDIR is not a folder; `tempfile` would take another one, perhaps without space.
        OSError: the file cannot be made, written or mapped.
    """
    folder = os.environ.get("TMPDIR")
    if folder and not os.path.isdir(folder):
        raise ValueError(f"TMPDIR: there is no folder {folder}; make it, or set TMPDIR to another one.")
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror or error}, in the folder of temporary files, which TMPDIR sets"
        raise OSError(error.errno, reason, tempfile.gettempdir()) from error


class Scratch:
    """A table that is written once, a block of rows after another, and then read at any place.

    Example:
        >>> import torch
        >>> table = Scratch(torch.float64, (2,))
        >>> table.append(torch.ones(3, 2))
        >>> table.append(torch.zeros(1, 2))
        >>> table.rows().sum(0)
        tensor([3., 3.], dtype=torch.float64)
    """

    dtype: torch.dtype
    row: tuple[int, ...]

    def __init__(self, dtype: torch.dtype, row: tuple[int, ...]) -> None:
        self.dtype, self.row = dtype, row
        with named_folder():
            self._file = tempfile.TemporaryFile(prefix="samplehold-")  # noqa: SIM115 it lives as long as the table
        self._map: mmap.mmap | None = None
        self._rows: Tensor | None = None
        self._n = 0

    @staticmethod
    def of(blocks: Iterable[Tensor]) -> "Scratch":
        """A table of blocks `[n, ...]`, of which there is at least one."""
        scratch = None
        for block in blocks:
            scratch = Scratch(block.dtype, tuple(block.shape[1:])) if scratch is None else scratch
            scratch.append(block)
        assert scratch is not None
        return scratch

    def __len__(self) -> int:
        return self._n

    def append(self, rows: Shaped[Tensor, "n *row"]) -> None:
        """Write further rows; not after `rows()`."""
        table = rows.to(self.dtype).contiguous().cpu().numpy()
        with named_folder():
            self._file.write(table.data.cast("B") if table.size else b"")
        self._n += len(rows)

    def rows(self) -> Shaped[Tensor, "N *row"]:
        """The table as a tensor, whose numbers are read from the file when they are used."""
        if self._rows is None:
            shape = (self._n, *self.row)
            if self._n == 0 or 0 in shape:
                self._rows = torch.empty(shape, dtype=self.dtype, device="cpu")
            else:  # a private copy of each page that is written to, so that the tensor is an ordinary one
                with named_folder():
                    self._file.flush()
                    self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)
                self._rows = torch.frombuffer(self._map, dtype=self.dtype).reshape(shape)
        return self._rows

    def map(self, change: Callable[[Tensor], Tensor]) -> "Scratch":
        """A table of changed rows, made block by block."""
        return Scratch.of(map(change, blocks_of(self.rows())))

    def fetch(self, first: int, stop: int) -> None:
        """Have the system read the rows from `first` up to `stop` in the background, where it can."""
        if self._map is not None and hasattr(mmap, "MADV_WILLNEED") and first < stop:
            begin, end = (row * len(self._map) // self._n for row in (first, stop))
            begin -= begin % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, begin, end - begin)

    def release(self) -> None:
        """Give the memory of the rows that were read back to the system, where it can take it."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def blocks_of(rows: Shaped[Tensor, "N *row"]) -> Iterator[Shaped[Tensor, "n *row"]]:
    """The rows of a table in blocks; one block of a table without rows."""
    return iter(rows.split(BLOCK))
