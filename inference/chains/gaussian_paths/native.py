"""Gaussian paths on the CPU: fused over time, each sequence on its own, threads over sequences."""

from typing import Any

import torch
from torch import Tensor

from ...native.library import empty, function, integers
from ...numerics.native_calls import as_table, refuse_lack, run
from ...numerics.threads import ranges
from . import op

_MIN_WORK = 1 << 15  # numbers of the square tables that repay a second thread


@op.moments.kernel("cpu")
def moments(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    n, steps, states = linear.shape
    value = torch.zeros(n, dtype=torch.float64, device="cpu")
    shapes = (n, steps, states), (n, steps, states, states), (n, max(steps - 1, 0), states, states)
    tables = [empty(*shape, dtype=linear.dtype) for shape in shapes]
    failed = _over_sequences("path_moments", (linear, square, cross, lengths), 0, (), (value, *tables))
    return value.to(linear.dtype), *tables, failed


@op.sample.kernel("cpu")
def sample(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    draws, dtype = noise.shape[0], linear.dtype
    shape = draws, *linear.shape
    path = empty(*shape, dtype=dtype)
    table = as_table(noise, shape, dtype)
    failed = _over_sequences("path_sample", (linear, square, cross, lengths), draws, (table,), (path,))
    return path, failed


def _over_sequences(name: str, tables: Any, draws: int, given: Any, results: Any) -> Tensor:
    """Run a kernel over ranges of sequences; returns the first step of each that failed, or -1."""
    linear, square, cross, lengths = tables
    dtype, (n, steps, states) = linear.dtype, linear.shape
    shapes = (n, steps, states), (n, steps, states, states), (n, max(steps - 1, 0), states, states)
    flat = [as_table(x, shape, dtype) for x, shape in zip((linear, square, cross), shapes, strict=True)]
    failed = torch.full((n,), -1, dtype=torch.int64, device="cpu")
    sizes = integers(n, steps, states, draws, 0)
    parts = ranges(n, max(1, _MIN_WORK // max(1, steps * states * states)), n)
    tasks = [integers(*span) for span in parts]
    run(function(name, dtype), tasks, sizes, *flat, as_table(lengths, (n,), torch.int64), *given, *results, failed)
    refuse_lack(sizes[-1])
    return failed
