"""Segments on the CPU: the recursions of `native/segments.h` behind `op`, several sequences in a call.

They know `NormalGamma` with one observation or none in each entry, `Gamma`, `Beta` and `Dirichlet`. Other families and
statistics, and numbers that are not finite, which the plain form names, are left to the plain form.
"""

import math
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...native.library import addresses, empty, integers, pointer
from ...numerics.native_calls import check_given, refuse_lack
from ...numerics.threads import in_parallel, ranges, sum_of_steps
from . import native_stream as native_stream  # has its kernel registered
from . import op, paths, plain
from .native_kinds import KINDS, are_moments, check_prior, knows, number_from, takes, widths
from .plain import Forward, Functions, Smoothed
from .tables import Filtered, Tables

_ROWS = {"normal_gamma": lambda size: 4, "gamma": lambda size: 3, "simplex": lambda size: size + 1}
_DONE, _MORE, _FULL, _NO_MEMORY = range(4)
_FIRST_CAPACITY, _WIDEST = 1024, 16  # beginnings that fit at first; numbers of two vectors, or more
_MIN_PAIRS = 20_000  # beginnings and ends that repay a second thread


def _check(tables: Tables) -> None:
    """Raise an error unless the tables of a chain fit each other."""
    (n, steps), real, size = tables.log_base.shape, torch.float64, tables.log_change.shape[-1]
    check_given("log_base", tables.log_base, (n, steps), real)
    for name, table in (("log_change", tables.log_change), ("log_hold", tables.log_hold)):
        check_given(name, table, (n, max(1, size) if tables.by_run else steps), real)
    check_given("lengths", tables.lengths, (n,), torch.int64)
    for family, prior, x in tables.blocks():
        plates, width = check_prior(family.kernel, prior, n)
        check_given("statistics", x, (n, steps, plates, width), real)


class _Chain:
    """The tables of a chain as the kernels read them, and the memory that they ask for."""

    def __init__(self, tables: Tables, expect: Functions | None = None, bounded: bool = False) -> None:
        self.N, self.T = tables.log_base.shape
        _check(tables)
        self.widths = widths(tables, expect)
        self.shapes = [(prior.shape[1], width) for prior, width in zip(tables.priors, self.widths, strict=True)]
        self.outs: int = sum(plates * width for plates, width in self.shapes)
        self.rows, n_tables, blocks, self.kept = 0, 0, [], []
        for (family, prior, x), width in zip(tables.blocks(), self.widths, strict=True):
            kind, (_, plates, size) = family.kernel or "", prior.shape
            x, prior = self._numbers(x), self._numbers(prior)
            blocks += [KINDS[kind], plates, size, width // 2, width, x.data_ptr(), prior.data_ptr()]
            self.rows += plates * _ROWS[kind](size)
            n_tables += plates * (kind == "normal_gamma")
        self.by_count: int = n_tables * (4 if self.outs else 2) * (self.T + _WIDEST)
        base, lengths = self._numbers(tables.log_base), self._numbers(tables.lengths)
        change, hold = (table.resolve_neg() for table in (tables.log_change, tables.log_hold))
        hazards = None
        if bounded and tables.by_run:
            hazards = self._numbers(plain.of_hazards(tables.log_change, tables.log_hold))
        self.kept += [change, hold]
        (tol,) = struct.unpack("q", struct.pack("d", tables.tol))
        self.words: list[int] = [
            *(change.shape[-1], int(tables.by_run), *change.stride(), *hold.stride(), tol),
            *(base.data_ptr(), change.data_ptr(), hold.data_ptr(), 0 if hazards is None else hazards.data_ptr()),
            *(lengths.data_ptr(), int(bool(expect) and are_moments(expect or ())), self.outs, len(tables.families)),
            *blocks,
        ]

    def _numbers(self, table: Tensor) -> Tensor:
        table = table.detach().contiguous().resolve_neg()
        self.kept.append(table)
        return table

    def part(self, first: int, end: int) -> Any:
        """Some sequences, as one call is given them."""
        return integers(self.N, self.T, first, end, *self.words)

    def is_ordinary(self) -> bool:
        return bool(number_from("segments_ordinary")(self.part(0, self.N)))

    def each(self, task: Callable[[int, int], None]) -> None:
        """Do a task for all sequences, spread over threads."""
        in_parallel([partial(task, *span) for span in ranges(self.N, max(1, _MIN_PAIRS // self.T**2))])

    def forward(self, best: bool, outputs: Any, first: int, end: int) -> None:
        part, at = self.part(first, end), integers(first, 0, 0, 0, 0, 0)
        capacity = min(self.T, _FIRST_CAPACITY) + _WIDEST
        workspace, by_count = _zeros(5 + self.rows, capacity), empty(self.by_count, dtype=torch.float64)
        of, answer = number_from("segments_forward"), _MORE
        while answer != _DONE:
            answer = of(part, int(best), outputs, at, pointer(workspace), capacity, pointer(by_count))
            if answer == _FULL:
                wider = _zeros(len(workspace), 2 * capacity)
                wider[:, :capacity], workspace, capacity = workspace, wider, 2 * capacity
            refuse_lack(answer == _NO_MEMORY)

    def backward(self, found: Any, outputs: Any, first: int, end: int) -> None:
        part, at, by_count = (
            self.part(first, end),
            integers(first, 0, 0, 0, 0, 0),
            empty(self.by_count, dtype=torch.float64),
        )
        of, answer = number_from("segments_backward"), _MORE
        while answer != _DONE:
            answer = of(part, found, outputs, at, pointer(by_count))
            refuse_lack(answer == _NO_MEMORY)


def _zeros(*shape: int) -> Tensor:
    return torch.from_numpy(np.zeros(shape))


@op.forwards.kernel("cpu", takes=takes)
def passes(steps: Tensor, tables: Tables, expect: Functions | None) -> tuple[Forward, Filtered | None]:
    chain = _Chain(tables, expect, tables.tol > 0) if knows(tables, expect) else None
    if chain is None or not chain.is_ordinary():
        return op.plain_forward(steps, tables, expect)
    N, T = chain.N, chain.T
    numbers = empty(6 if expect else 4, N, T, dtype=torch.float64)
    increment, change, entropy, weight, *looks = numbers.unbind()
    death, failed = empty(N, T, dtype=torch.int64), empty(N, dtype=torch.int64)
    left_out, expected = empty(N, dtype=torch.float64), None
    run, begun = looks if expect else (None, None)
    if expect:
        expected = empty(N, T, chain.outs, dtype=torch.float64)
    outputs = addresses(increment, change, entropy, weight, left_out, death, failed, None, run, begun, expected, None)
    chain.each(partial(chain.forward, False, outputs))
    found = Forward(increment, change, death, left_out, failed, entropy, weight)
    if expected is None or run is None or begun is None:
        return found, None
    return found, Filtered(begun, run, _apart(expected, chain.shapes))


@op.viterbis.kernel("cpu", takes=takes)
def viterbi(steps: Tensor, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
    chain = _Chain(tables, bounded=True)
    if not chain.is_ordinary():
        return paths.viterbi(tables)
    N, T = chain.N, chain.T
    increment, change, weight = empty(3, N, T, dtype=torch.float64).unbind()
    death, source = empty(2, N, T, dtype=torch.int64).unbind()
    failed, left_out = empty(N, dtype=torch.int64), empty(N, dtype=torch.float64)
    path = torch.empty(N, T, dtype=torch.bool, device="cpu")
    outputs = addresses(increment, change, None, weight, left_out, death, failed, source, None, None, None, path)
    chain.each(partial(chain.forward, True, outputs))
    return path, sum_of_steps(increment), failed


@op.smooths.kernel("cpu", takes=takes)
def smooth(steps: Tensor, tables: Tables, found: Forward, expect: Functions) -> Smoothed:
    chain = _Chain(tables, expect) if knows(tables, expect) else None
    if chain is None or not chain.is_ordinary():
        return op.plain_smooth(steps, tables, found, expect)
    N, T, real = chain.N, chain.T, torch.float64
    check_given("log_increment", found.log_increment, (N, T), real)
    check_given("log_change", found.log_change, (N, T), real)
    check_given("death", found.death, (N, T), torch.int64)
    change, *ends = empty(3 if tables.by_run else 1, N, T, dtype=real).unbind()
    ended, last = ends or (None, None)
    expected, first = empty(N, T, chain.outs, dtype=real), empty(N, chain.outs, dtype=real)
    forward = [table.contiguous() for table in (found.log_increment, found.log_change, found.death)]
    outputs = addresses(change, expected, first, ended, last)
    chain.each(partial(chain.backward, addresses(*forward), outputs))
    expectations, starts = (_apart(table, chain.shapes) if expect else () for table in (expected, first))
    return Smoothed(change, expectations, starts, ended, last)


def _apart(table: Tensor, shapes: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
    """Columns [..., D] by block, [..., F, D]."""
    if len(shapes) == 1:
        return (table.view(*table.shape[:-1], *shapes[0]),)
    parts = table.split([math.prod(shape) for shape in shapes], -1)
    return tuple(part.unflatten(-1, shape) for part, shape in zip(parts, shapes, strict=True))
