"""Calls of functions of the native library, spread over threads."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..native.library import pointer
from .threads import in_parallel, ranges, worthwhile

_AT_ONCE = 0.1  # seconds of a task, after which an interrupt is heard


def run(of: Callable[..., Any], tasks: Sequence[Any], *given: Any) -> None:
    """Call a function for each task, which is its first argument, as many at once as torch has threads.

    Arguments:
        tasks: what differs between calls, as `integers`.
        given: further arguments. Tensors are contiguous, and are given by their addresses.
    """
    flat = [pointer(x) if isinstance(x, Tensor) else x for x in given]
    if len(tasks) == 1:
        of(tasks[0], *flat)
    else:
        in_parallel([partial(of, task, *flat) for task in tasks], among_torch=True)


def as_table(x: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A contiguous table of a shape and dtype, as a kernel reads it; the same tensor if it is one already.

    Raises:
        ValueError: its shape does not expand to this one.
    """
    if x.shape != shape:
        try:
            x = x.expand(*shape)
        except RuntimeError:
            raise ValueError(f"a table: got shape {list(x.shape)}, which does not expand to {list(shape)}.") from None
    if x.dtype != dtype:
        x = x.to(dtype)
    return x if x.is_contiguous() else x.contiguous()


def check_given(name: str, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise an error unless a table has this shape and dtype."""
    if x.dtype != dtype or not x.is_cpu:
        raise TypeError(f"{name}: got {x.dtype} on {x.device}, expected {dtype} on cpu.")
    if x.shape != shape:
        raise ValueError(f"{name}: got shape {list(x.shape)}, expected {list(shape)}.")


def check_ends(dtype: torch.dtype | None, **tables: tuple[Tensor, tuple[int, ...]]) -> None:
    """Raise an error unless every table has the last axes that stand beside it, and this dtype, if one is given."""
    for name, (x, shape) in tables.items():
        if dtype is not None and x.dtype != dtype:
            raise TypeError(f"{name}: got {x.dtype}, expected {dtype}.")
        if x.shape[x.dim() - len(shape) :] != shape:
            raise ValueError(f"{name}: got shape {list(x.shape)}, expected [*batch, {str(list(shape))[1:]}.")


def refuse_lack(lacking: int) -> None:
    """Raise MemoryError if a kernel said that the system had no memory for it."""
    if lacking:
        raise MemoryError("the system has no memory for the tables of this computation.")


def parts(n: int, seconds: float) -> list[tuple[int, int]]:
    """Ranges of n items for tasks, by the time that one thread takes for all, about.

    Results must have the same bits however the range is split.
    """
    return ranges(n, at_most=max(worthwhile(seconds), int(seconds / _AT_ONCE))) if n else []
