"""Threads for CPU kernels: a kernel takes a range of sequences, and several ranges run at once.

Results have the same bits for any number of threads. So the cut of a sequence, the sequences that go side by side and
the order of each sum follow from sizes and tables. Threads only decide who computes which.

Most kernels run on plain Python threads, which sleep while they wait. Kernels between matrix products run on torch's
OpenMP threads instead. These stay awake for milliseconds after every parallel operation of torch, and a second team
would find the processors taken; but after a pause they wake more slowly. If torch's threads are not available, or in a
forked child, whose parent kept the threads, the plain threads do this work too.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import pairwise

import torch

from .openmp import find_team


def ranges(n: int, at_least: int = 1, at_most: int | None = None) -> list[tuple[int, int]]:
    """Split `range(n)` into contiguous ranges of `at_least` items or more.

    Arguments:
        at_most: the number of ranges. None: as many as torch has threads. That is right only if results have the same
            bits however the range is split. Sums over a range have not, so their ranges must follow from sizes.
    """
    parts = max(1, min(torch.get_num_threads() if at_most is None else at_most, n // max(1, at_least)))
    edges = [n * i // parts for i in range(parts + 1)]
    return list(pairwise(edges))


@contextmanager
def one_thread_if_small(numbers: int) -> Iterator[None]:
    """Within, torch and the kernels run on one thread if tables have only so many numbers; the setting is put back.

    Threads that share small tables wait for each other longer than they work, and a loop waits at every operation.
    """
    before = torch.get_num_threads()
    if before == 1 or numbers >= _SHARED:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def worthwhile(seconds: float) -> int:
    """The number of threads for work that takes one thread this long."""
    return max(1, min(torch.get_num_threads(), int(seconds / _LEAST_SHARE)))


def sum_of_steps(table: torch.Tensor) -> torch.Tensor:
    """The sum over the last axis, with the same bits for any number of threads.

    torch divides a sum among its threads if the result is one number, and only then.
    """
    while table.shape[-1] == table.numel() >= _SHARED:
        end = table.shape[-1] // _ROW * _ROW
        table = torch.cat([table[..., :end].unflatten(-1, (-1, _ROW)).sum(-1), table[..., end:]], -1)
    return table.sum(-1)


def in_parallel(tasks: Sequence[Callable[[], None]], *, among_torch: bool = False) -> None:
    """Run all tasks, as many at once as torch has threads; returns when all are done, raising the first error.

    Arguments:
        among_torch: the kernel is called between torch's own parallel operations, and shares their threads.
    """
    n_threads = torch.get_num_threads()
    if len(tasks) <= 1 or n_threads == 1:
        for task in tasks:
            task()
        return
    waiting, errors = iter(tasks), []

    def work() -> None:
        try:
            for task in waiting:
                task()
        except BaseException as error:  # an interrupt too: raised below, as C cannot pass it on
            errors.append(error)

    if _team is not None and among_torch:
        _team(work, n_threads)
    else:
        futures = [_executor().submit(work) for _ in range(min(len(tasks), n_threads) - 1)]
        work()
        wait(futures)
    work()  # repeat the part of a thread that ended by an error or an interrupt, so no result is half written
    if errors:
        raise errors[0]


_SHARED = 1 << 15  # numbers from which torch shares an operation on a table among its threads
_ROW = 1 << 10  # numbers that are summed first
_LEAST_SHARE = 1e-3  # seconds of work for each thread; virtual machines may wake a second one as late as 4e-3
_team = find_team()
_pool: ThreadPoolExecutor | None = None


def _executor() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 1)), thread_name_prefix="samplehold")
    return _pool


def _without_threads() -> None:
    global _team, _pool
    _team = _pool = None


if hasattr(os, "register_at_fork"):  # a forked child has none of its parent's threads
    os.register_at_fork(after_in_child=_without_threads)
