"""`Whole`: all data of a fit, of which memory holds a part at a time, and this process perhaps a share.

Units, weak priors and first guesses are computed from a sample of the sequences, which is the same however the data are
shared. A step of the fit reads the parts in turn and adds up what they contribute (see `chunked`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from ...inference.numerics.clock import passed
from ...inference.numerics.ranks import Ranks
from ..data.packed import ahead, consecutive
from ..data.series import TABLES, Series, concatenated, numbered_from
from .starts import first_of, sample_of, stretches_of
from .units import Units

T = TypeVar("T")
SAMPLE = 2**16  # steps on which the search for the best optimum is made


class Size(NamedTuple):
    """The size of the data of one process."""

    n_sequences: int
    n_rows: int
    longest: int  # steps, with padding

    @staticmethod
    def of(series: Series) -> "Size":
        return Size(series.n_sequences, int((series.last + 1).sum()), series.n_steps if series.n_sequences else 0)


@dataclass(frozen=True)
class Whole:
    """The data of a fit.

    Attributes:
        series: the sequences of this process.
        ranks: the processes that share the data; each has sequences of its own.
        by_rank: the size of the data of each process.
        units: the units of the parts that are read; None: those of `series`.
        wide: whether the parts that are read are in float64.
    """

    series: Series
    ranks: Ranks
    by_rank: tuple["Size", ...]
    units: Units | None = None
    wide: bool = False

    @staticmethod
    def of(series: Series, ranks: Ranks | None = None) -> "Whole":
        """The data of some processes; None: of this one alone."""
        ranks = Ranks() if ranks is None else ranks
        return Whole(series, ranks, tuple(ranks.gathered(lambda: Size.of(series))))

    @staticmethod
    def shared(series: Series, options: Any, files: bool = False) -> "Whole | None":
        """The data of the processes of a group, for EM or message passing; None: there is no group, so this process
        has all data.

        Arguments:
            files: whether data in a file are read in parts too; for other methods they are read into memory.

        Raises:
            ValueError: as `check`.
        """
        ranks = Ranks.of(options.group)
        in_parts = files and series.on_disk and options.method in ("em", "vmp")
        if ranks.alone and not in_parts:
            return None
        whole = Whole.of(series, ranks)
        whole.check(options, pooled=False, draws=False)
        return whole

    def check(self, options: Any, pooled: bool, draws: bool = True) -> None:
        """Raise an error if the data cannot be fitted so.

        Arguments:
            draws: whether SVI adds up its gradient over the data.

        Raises:
            ValueError: a method that needs all data at once.
        """
        methods = '"em", "vmp" or "svi"' if draws else '"em" or "vmp"'
        if pooled or f'"{options.method}"' not in methods:
            argument, cure = ("pooled", "leave it out") if pooled else ("method", f"use method={methods}")
            raise ValueError(
                f"{argument}: got {getattr(options, argument)!r}, but x is in a file or shared by processes, and this "
                f"needs all of it at once; {cure}, or fit some of the sequences in memory."
            )
        if options.batch_size is not None and not self.ranks.alone:
            raise ValueError(
                f"batch_size: got {options.batch_size}, but {self.ranks.n} processes share the data, and a step uses "
                "the sequences of all; leave it out."
            )
        if self.n_sequences == 0:
            raise ValueError("x: got no sequence; give at least one.")

    def double(self) -> "Whole":
        """The same data, read in float64."""
        return replace(self, wide=True)

    def about_inputs(self, like: Series) -> "Whole":
        """The same data, whose inputs are read as those of another series."""
        return replace(self, series=replace(self.series, scaling=like.scaling))

    @cached_property
    def lengths(self) -> Int[Tensor, "B"]:
        """The number of steps of each sequence of this process, on the CPU."""
        return (self.series.last.flatten() + 1).cpu()

    # ---- parts -------------------------------------------------------------------------------------------------------

    def part(self, members: Int[Tensor, "n"]) -> Series:
        """Some of the sequences, in the units."""
        with self.series.reading():
            return self._in_units(self.series.part(members))

    def stretch(self, member: Int[Tensor, "1"], first: int, size: int) -> Series:
        """At most `size` steps of one sequence, in the units."""
        with self.series.reading():
            return self._in_units(self.series.part(member).stretch(first, size))

    def _in_units(self, series: Series) -> Series:
        series = series.double() if self.wide else series
        return series if self.units is None else self.units.series(series)

    def parts(self, size: int) -> Iterator[Series]:
        """All sequences of this process in their order, a part of at most so many steps with padding at a time; a
        longer sequence alone."""
        for members, later in ahead(consecutive(self.lengths, size)):
            some = self.part(members)
            self.series.fetch(later)
            with numbered_from(int(members[0]), 0):
                yield some
            passed(int(self.lengths[members].sum()))
            self.series.release()

    def turns(self) -> Iterator[Series]:
        """All sequences of this process in their order, a part at a time; a long one in stretches, each step once."""
        for _, step, part in self.series.turns():
            with self.series.reading():
                some = self._in_units(part.stretch(1, part.n_steps) if step else part)
            yield some

    # ---- numbers of all data -----------------------------------------------------------------------------------------

    @property
    def like(self) -> Tensor:
        """For the dtype and the device."""
        return self.series.like.new_empty(0, dtype=torch.float64) if self.wide else self.series.like

    @property
    def n_sequences(self) -> int:
        """The number of sequences of all processes."""
        return sum(size.n_sequences for size in self.by_rank)

    @property
    def n_rows(self) -> int:
        """The number of steps of all processes."""
        return sum(size.n_rows for size in self.by_rank)

    @cached_property
    def n_observed(self) -> int:
        """The number of steps with an observed value, of all processes."""
        return int(self.total(lambda part: float(part.n_observed)))

    def total(self, compute: Callable[[Series], float]) -> float:
        """A number of each of `turns`, added up over all processes."""
        zero = torch.zeros(1, dtype=torch.float64, device="cpu")
        return float(self.ranks.summed(lambda: [zero + sum(map(compute, self.turns()))], [zero])[0])

    def log_volume(self, units: Units) -> float:
        """The increase of the log density of all sequences in these units."""
        return self.total(lambda part: float(units.log_volume(part).sum()))

    # ---- the sample --------------------------------------------------------------------------------------------------

    def sample(self, seed: int) -> Series:
        """All sequences if they are few, or about as many as `sample_of` takes; the same in all processes, each on the
        device of its data."""
        if self.ranks.alone:
            sample = sample_of(self.series, seed, SAMPLE)
            return self._in_memory(torch.arange(sample.n_sequences, device="cpu")) if sample is self.series else sample
        chosen = self._chosen(seed)
        own = chosen[(chosen >= self._first) & (chosen < self._first + self.series.n_sequences)] - self._first
        there = self.ranks.gathered(lambda: self._tables(own, alone=len(chosen) == 1))
        return concatenated([one for one in there if one is not None]).to(self.like)

    @property
    def _first(self) -> int:
        """The number of the first sequence of this process among all."""
        return sum(size.n_sequences for size in self.by_rank[: self.ranks.rank])

    def _chosen(self, seed: int) -> Int[Tensor, "n"]:
        """The numbers of the sequences in the sample, among all; see `sample_of`."""
        n, first = self.n_sequences, self._first
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed), device="cpu")
        knows = torch.cat(self.ranks.gathered(lambda: self.series.knows_states))
        order = order[(~knows[order]).long().argsort(stable=True)][:SAMPLE]  # as in `sample_of`
        mine = (order >= first) & (order < first + self.series.n_sequences)
        lengths = torch.zeros(len(order), dtype=torch.float64, device="cpu")
        lengths[mine] = (self.series.last.flatten().cpu()[order[mine] - first] + 1).double()
        (lengths,) = self.ranks.summed(partial(list, [lengths]), [lengths])
        if n * max(size.longest for size in self.by_rank) <= SAMPLE:
            return torch.arange(n, device="cpu")
        return first_of(order, lengths.long(), SAMPLE)

    def _in_memory(self, members: Int[Tensor, "n"]) -> Series:
        return self.series.part(members) if self.series.on_disk else self.series

    def _tables(self, members: Int[Tensor, "n"], alone: bool) -> Series | None:
        """This process's sequences of the sample, without files and labels; a long one that is alone in stretches."""
        if not len(members):
            return None
        few = self.series.part(members).cpu()._mapped(Tensor.clone, *TABLES)
        return replace(stretches_of(few, SAMPLE) if alone and few.n_steps > SAMPLE else few, checked=None, frame=None)


def together(whole: Whole | None, compute: Callable[[], T]) -> T:
    """What each process computes from the sample; an error of one, or Ctrl-C there, ends all."""
    return compute() if whole is None else whole.ranks.together(compute)


def jointly(whole: Whole | None, compute: Callable[[], T]) -> T:
    """The same, of which each process computes a part (see `Spread`)."""
    return whole.ranks.jointly(compute) if whole is not None and whole.ranks.n > 1 else together(whole, compute)
