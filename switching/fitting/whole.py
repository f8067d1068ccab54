r"""`Whole`: all data of a fit, of which memory holds a piece at a time, and this process perhaps a share.

Units, weak priors and first guesses are computed from a sample of the sequences, which is the same however the data are
shared. A step of the fit reads the pieces in turn, and adds up what they contribute. A piece is a group of sequences,
or a stretch of a long one, which begins with the last step of the stretch before. At a cut t a forward pass gives the
belief $a_t(s) = P(s_t = s \mid x_{1:t})$, and a backward pass gives $b_t(s) = P(s_t = s \mid x) / a_t(s)$. The chain of
the stretch from t to u (`Chain.between`) has the log-normalizer

$$\log Z_{t,u} = \log \sum_{s_{t:u}} a_t(s_t) \Big[\prod_{v=t+1}^u p(s_v, x_v \mid s_{v-1})\Big] b_u(s_u)
= \log p(x_{t+1:u} \mid x_{1:t}),$$

and its states have their probabilities given all steps.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from ...inference.numerics.clock import passed
from ...inference.numerics.ranks import Ranks
from ...inference.numerics.scalars import MOST
from ..data.packed import ahead
from ..data.series import TABLES, Series, concatenated
from .starts import first_of, sample_of, stretches_of
from .units import Units

T = TypeVar("T")
Model = TypeVar("Model")
SAMPLE = 2**16  # steps on which the search for the best optimum is made


class Size(NamedTuple):
    """The size of the data of one process."""

    n_sequences: int
    n_rows: int
    longest: int  # steps, with padding

    @staticmethod
    def of(series: Series) -> "Size":
        return Size(series.n_sequences, int((series.last + 1).sum()), series.n_steps if series.n_sequences else 0)


class Piece(NamedTuple):
    r"""A piece of the data.

    Attributes:
        series: some sequences, or a stretch of one, in the units.
        share: of all sequences.
        before, after: $\log a$ at the first and $\log b$ at the last step of a stretch; None: the sequence begins or
            ends there. With `before`, the first step is counted in the stretch before.
    """

    series: Series
    share: float
    before: Tensor | None = None
    after: Tensor | None = None


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
    def shared(
        series: Series, options: Any, files: bool = False, draws: bool = False, pooled: bool = False
    ) -> tuple["Whole | None", Series]:
        """The data of the processes of a group, and a sample of them. Without a group this process has all data, and
        the result is None and the series.

        Arguments:
            files: whether data in a file are read in parts too; for other methods they are read into memory.
            draws: whether SVI adds up its gradient over the data, and no method reads data in a file into memory.
            pooled: whether the fit is pooled, which needs all data at once.

        Raises:
            ValueError: a method that needs all data at once.
        """
        ranks, methods = Ranks.of(options.group), ("em", "vmp", "svi") if draws else ("em", "vmp")
        if ranks.alone and not (files and series.on_disk and (draws or options.method in methods)):
            return None, series
        whole = Whole.of(series, ranks)
        if pooled or options.method not in methods:
            named = '"em", "vmp" or "svi"' if draws else '"em" or "vmp"'
            argument, cure = ("pooled", "leave it out") if pooled else ("method", f"use method={named}")
            raise ValueError(
                f"{argument}: got {getattr(options, argument)!r}, but x is in a file or shared by processes, and this "
                f"needs all of it at once; {cure}, or fit some of the sequences in memory."
            )
        if options.batch_size is not None and not ranks.alone:
            raise ValueError(
                f"batch_size: got {options.batch_size}, but {ranks.n} processes share the data, and a step uses "
                "the sequences of all; leave it out."
            )
        if whole.n_sequences == 0:
            raise ValueError("x: got no sequence; give at least one.")
        return whole, whole.sample(options.number)

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

    # ---- pieces ------------------------------------------------------------------------------------------------------

    def part(self, members: Int[Tensor, "n"]) -> Series:
        """Some of the sequences, in the units."""
        with self.series.reading():
            return self._in_units(self.series.part(members))

    def _stretch(self, member: Int[Tensor, "1"], first: int, size: int, then: int) -> Series:
        """At most `size` steps of one sequence, in the units; the system reads those from `then` on meanwhile."""
        self.series.fetch(member, max(0, then), size)
        with self.series.reading():
            there = self._in_units(self.series.part(member).stretch(first, size))
        self.series.release()
        return there

    def _in_units(self, series: Series) -> Series:
        series = series.double() if self.wide else series
        return series if self.units is None else self.units.series(series)

    def of_pieces(
        self,
        groups: Iterable[Tensor],
        model: Callable[[Piece], Model],
        compute: Callable[[Model], T],
        within: Callable[[int, int], AbstractContextManager[None]] = lambda sequence, step: nullcontext(),
        longest: int = MOST,
        size: int = MOST,
    ) -> Iterator[T]:
        r"""What is computed from each of some groups of sequences, given by their numbers. A long sequence that is
        alone is taken in stretches, from the last to the first.

        Arguments:
            model: of a piece. That of a stretch has `log_belief()`, $\log a$ at its last step, and
                `log_evidence(before)`, $\log b$ at its first step, given $\log a$ there.
            within: the context in which it is made and used, given its first sequence and step.
            longest: steps beyond which a sequence is taken in stretches.
            size: the steps of a stretch, at least 2.
        """
        for members, later in ahead(groups):
            number, n_rows = int(members[0]), int(self.lengths[members].sum())
            share = len(members) / self.n_sequences
            if len(members) == 1 and n_rows > longest:
                firsts, befores, after = range(0, max(1, n_rows - 1), size - 1), [None], None
                for first in firsts[:-1]:
                    with torch.no_grad(), within(number, first):
                        series = self._stretch(members, first, size, first + size - 1)
                        here: Any = model(Piece(series, share, befores[-1]))
                        befores.append(here.log_belief())
                for first, before in zip(reversed(firsts), reversed(befores), strict=True):
                    with within(number, first):
                        series = self._stretch(members, first, size, first - size + 1)
                        here = model(Piece(series, share / len(firsts), before, after))
                        computed = compute(here)
                        after = None if before is None else here.log_evidence(before)
                    yield computed
                    self._passed(series.n_steps - int(before is not None))
            else:
                self.series.fetch(later)
                with within(number, 0):
                    computed = compute(model(Piece(self.part(members), share)))
                yield computed
                self._passed(n_rows)
            self.series.release()

    def _passed(self, n_rows: int) -> None:
        """Count rows, if they are of all data and not of a sample."""
        if self.series.on_disk or not self.ranks.alone:
            passed(n_rows)

    def summed(self, terms: Callable[[], Iterable[list[Tensor]]], zeros: list[Tensor]) -> list[Tensor]:
        """The sums of the terms of all pieces of this process, and of all processes, in the dtypes of `zeros`."""

        def local() -> list[Tensor]:
            total = zeros
            for some in terms():
                total = [before + term for before, term in zip(total, some, strict=True)]
            return total

        return self.ranks.summed(local, zeros)

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
        """A number of each of consecutive parts, which count each step once, added up over all processes."""
        zero = torch.zeros(1, dtype=torch.float64, device="cpu")

        def terms() -> Iterator[list[Tensor]]:
            for _, step, part in self.series.turns():
                with self.series.reading():
                    some = self._in_units(part.stretch(1, part.n_steps) if step else part)
                yield [zero + compute(some)]

        return float(self.summed(terms, [zero])[0])

    def log_volume(self, units: Units) -> float:
        """The increase of the log density of all sequences in these units."""
        return self.total(lambda part: float(units.log_volume(part).sum()))

    # ---- the sample --------------------------------------------------------------------------------------------------

    def sample(self, seed: int) -> Series:
        """All sequences if they are few, or about as many as `sample_of` takes; the same in all processes, each on the
        device of its data."""
        if self.ranks.alone:
            sample = sample_of(self.series, seed, SAMPLE)
            return sample.part(torch.arange(sample.n_sequences, device="cpu")) if sample.on_disk else sample
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
