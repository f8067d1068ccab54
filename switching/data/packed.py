"""`Packed`: a number or a vector for each step of several sequences, stored one sequence after another."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from ...inference.numerics.records import Record
from .scratch import Scratch, blocks_of

T = TypeVar("T")
WASTE = 2.0  # the ratio of steps with padding to steps without, from which sequences are processed in groups


@dataclass(frozen=True, repr=False)
class Packed(Record):
    """A table `[B, T, ...]` of sequences of different lengths, without the steps after their ends.

    Attributes:
        rows: the steps, one sequence after another.
        lengths: the number of steps of each sequence; all are at least 1.
        beyond: the number that stands after the end of a sequence in a padded table.
        scratch: the file that holds the rows; None: memory holds them.
    """

    rows: Shaped[Tensor, "N *f"]
    lengths: Int[Tensor, "B"]
    beyond: float
    scratch: Scratch | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def on_disk(scratch: Scratch, lengths: Int[Tensor, "B"], beyond: float) -> "Packed":
        """The sequences whose steps are in a file."""
        return Packed(scratch.rows(), lengths, beyond, scratch)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy or a pickle of a table in a file has a file of its own."""
        if self.scratch is None:
            return super().__reduce_ex__(protocol)
        return _of_rows, (self.rows, self.lengths, self.beyond)

    @cached_property
    def _ends(self) -> list[int]:
        """The number of the row after each sequence."""
        return self.lengths.cumsum(0).tolist()

    @property
    def starts(self) -> Int[Tensor, "B"]:
        """The number of the first row of each sequence."""
        return self.lengths.cumsum(0) - self.lengths

    @cached_property
    def shape(self) -> torch.Size:
        """The shape of the padded table."""
        longest = int(self.lengths.max()) if len(self.lengths) else 0
        return torch.Size((len(self.lengths), longest, *self.rows.shape[1:]))

    def padded(self) -> Shaped[Tensor, "B T *f"]:
        """The whole table."""
        return self.part(torch.arange(len(self.lengths), device="cpu"))

    def part(self, members: Int[Tensor, "n"]) -> Shaped[Tensor, "n t *f"]:
        """The table of some sequences, with the length of the longest of them."""
        ends, lengths = self._ends, self.lengths.cpu()[members].tolist()
        parts = [self.rows[ends[i] - n : ends[i]] for i, n in zip(members.tolist(), lengths, strict=True)]
        if len(parts) == 1:
            return parts[0].unsqueeze(0)
        return torch.nn.utils.rnn.pad_sequence(parts, True, padding_value=self.beyond)

    def subset(self, members: Int[Tensor, "n"]) -> "Packed":
        """Some of the sequences; those of a file in another file."""
        ends, lengths = self._ends, self.lengths[members.to(self.lengths.device)]
        steps = [self.rows[ends[i] - n : ends[i]] for i, n in zip(members.tolist(), lengths.tolist(), strict=True)]
        return self.of([self.rows[:0], *steps], lengths, self.beyond)

    def of(self, blocks: Iterable[Tensor], lengths: Int[Tensor, "B"], beyond: float) -> "Packed":
        """A table of blocks of rows, of which there is at least one, where this one is: in memory, or in a file."""
        if self.scratch is None:
            return Packed(torch.cat(list(blocks)), lengths, beyond)
        return Packed.on_disk(Scratch.of(blocks), lengths, beyond)

    def fetch(self, members: Int[Tensor, "n"], first: int, size: int) -> None:
        """See `Series.fetch`."""
        lengths = self.lengths.cpu()
        members = members[lengths[members] > first]
        if self.scratch is None or not len(members):
            return
        starts, steps = (lengths.cumsum(0) - lengths)[members] + first, (lengths[members] - first).clamp(0, size)
        begins = torch.cat([torch.ones(1, dtype=torch.bool, device="cpu"), starts[1:] != (starts + steps)[:-1]])
        ends = torch.cat([begins[1:], begins[:1]])  # consecutive sequences together
        for start, stop in zip(starts[begins].tolist(), (starts + steps)[ends].tolist(), strict=True):
            self.scratch.fetch(start, stop)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Packed":
        """The same with a change of the rows, which does not depend on their places."""
        if self.scratch is not None:
            few = self.rows[:1]
            changed = change(few)
            if changed.shape == few.shape and changed.dtype == few.dtype and changed.data_ptr() == few.data_ptr():
                return self  # as of a change to the dtype and the device that it has
            return Packed.on_disk(self.scratch.map(change), self.lengths, self.beyond)
        rows = change(self.rows)
        return Packed(rows, self.lengths.to(rows.device), self.beyond)

    def at(self, row: int) -> tuple[int, int]:
        """The sequence and the step of a row."""
        sequence = int(torch.searchsorted(self.lengths.cumsum(0).cpu(), row, right=True))
        return sequence, row - self._ends[sequence] + int(self.lengths[sequence])


def _of_rows(rows: Tensor, lengths: Tensor, beyond: float) -> Packed:
    """The table in a file, from a pickle."""
    return Packed.on_disk(Scratch.of(blocks_of(rows)), lengths, beyond)


def wasteful(lengths: Int[Tensor, "*b"], n_steps: int) -> bool:
    """Whether a table of `n_steps` steps of sequences of these lengths is mostly padding."""
    return lengths.numel() * n_steps > WASTE * int(lengths.sum())


def consecutive(lengths: Int[Tensor, "n"], most: int) -> Iterator[Int[Tensor, "m"]]:
    """The numbers of sequences in groups of at most `most` steps with padding, in order; each has at least one."""
    first, n = 0, len(lengths)
    while first < n:
        longest = lengths[first : first + most].cummax(0).values
        fit = int((longest * torch.arange(1, len(longest) + 1, device="cpu") <= most).sum())
        yield torch.arange(first, first + max(1, fit), device="cpu")
        first += max(1, fit)


def ahead(items: Iterable[T]) -> Iterator[tuple[T, T | None]]:
    """Each item with the next one; None after the last."""
    items = iter(items)
    now = next(items, None)
    while now is not None:
        later = next(items, None)
        yield now, later
        now = later


def stored(parts: Sequence[Tensor], lengths: Int[Tensor, "B"], beyond: float) -> Shaped[Tensor, "B N *f"] | Packed:
    """The tables of sequences as one, packed if most of it would be padding.

    Each has a row for each step of its sequence, or more, which are kept only if they exceed the longest sequence.
    """
    longest = max(map(len, parts))
    if longest == int(lengths.max()) and wasteful(lengths, longest):
        steps = [part[:n] for part, n in zip(parts, lengths.tolist(), strict=True)]
        return Packed(torch.cat(steps), lengths, beyond)
    return torch.nn.utils.rnn.pad_sequence(list(parts), True, padding_value=beyond)


def padded(table: Tensor | Packed) -> Tensor:
    """The table `[*b, T, ...]`."""
    return table.padded() if isinstance(table, Packed) else table


def rows_of(table: Tensor | Packed) -> Tensor:
    """The stored rows: those of all steps, and of padding in a table that is not packed."""
    return table.rows if isinstance(table, Packed) else table
