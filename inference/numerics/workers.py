"""How a CPU kernel is compiled and spread over threads.

Kernels are compiled without numba's parallel mode: each takes a range of sequences and releases the interpreter lock,
and `in_parallel` runs several of them at once on plain Python threads, which sleep while they wait.

Kernels that sit between matrix products run on torch's own OpenMP threads instead. Those stay awake for milliseconds
after every parallel operation of torch, and a second team beside them would find its processors taken; but after a rest
they wake less well. Where torch has another runtime, and in a forked child, whose parent kept the threads, the plain
threads do that work too.
"""

import ctypes
import inspect
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any

import numba
import torch

# -inf is a legal weight, so no flag may assume finite numbers; sums may be reordered so that they vectorise.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
}


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` with numba on first call; keep the machine code on disk where a folder can be written."""
    return _compiled(function, _OPTIONS)


def exact_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `kernel`, for arithmetic that depends on the order of its operations."""
    return _compiled(function, {**_OPTIONS, "fastmath": False})


def _compiled(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    function = inspect.unwrap(function)  # numba cannot compile through a wrapper, such as a run-time type checker's
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no writable cache folder: compile once a process
        return numba.njit(**options)(function)


def ranges(n: int, at_least: int = 1) -> list[tuple[int, int]]:
    """Split `range(n)` into at most `torch.get_num_threads()` contiguous ranges of `at_least` items or more."""
    parts = max(1, min(torch.get_num_threads(), n // max(1, at_least)))
    edges = [n * i // parts for i in range(parts + 1)]
    return list(pairwise(edges))


def in_parallel(tasks: Sequence[Callable[[], None]], *, among_torch: bool = False) -> None:
    """Run all tasks, as many at once as torch has threads; returns when all are done, raising the first error.

    Arguments:
        among_torch: the kernel is called between torch's own parallel operations, and shares their threads.
    """
    if len(tasks) == 1 or torch.get_num_threads() == 1:
        for task in tasks:
            task()
        return
    waiting, errors = iter(tasks), []

    def work(_: Any = None) -> None:
        try:
            for task in waiting:
                task()
        except BaseException as error:  # an interrupt too: raised below, as C cannot pass it on
            errors.append(error)

    if _omp_parallel is None or not among_torch:
        futures = [_executor().submit(work) for _ in range(min(len(tasks), torch.get_num_threads()) - 1)]
        work()
        wait(futures)
    else:
        _omp_parallel(_Region(work), None, torch.get_num_threads(), 0)
    work()  # what a thread left that ended by an error or an interrupt: no result may stay half written
    if errors:
        raise errors[0]


_Region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _find_omp_parallel() -> Any:
    """The C function `GOMP_parallel(region, data, n_threads, flags)` of the OpenMP runtime in this process, or None."""
    try:
        function = ctypes.CDLL(None).GOMP_parallel  # torch loads its runtime where every library can find it
    except (AttributeError, OSError, TypeError):
        return None
    function.argtypes, function.restype = (_Region, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return function


_omp_parallel = _find_omp_parallel()
_pool: ThreadPoolExecutor | None = None


def _executor() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 1)), thread_name_prefix="samplehold")
    return _pool


def _without_threads() -> None:
    global _omp_parallel, _pool
    _omp_parallel = _pool = None


if hasattr(os, "register_at_fork"):  # a forked child has none of its parent's threads
    os.register_at_fork(after_in_child=_without_threads)
