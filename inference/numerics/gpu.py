"""How Triton kernels are written and launched; only files of kernels import this one, and Triton's names from it.

A kernel is a function decorated with `kernel`, and is started by `launch`. Offsets are int64: an index that will be
multiplied begins as `position`. A program that walks over time does it in strides of a few steps, whose `rows` are all
asked for before the first is used, so that the memory is waited for once a stride.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton as _triton
from torch import Tensor
from triton.language import constexpr as constexpr

triton: Any = _triton  # whose annotations are not those of what a kernel sees
tl: Any = _triton.language
INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels are interpreted in numpy, a hundred steps a second: sizes are then such that small tests meet all."""

BUSY = 4 if INTERPRETED else 16  # programs for each of a GPU's processors, with which its memory is kept busy
STRIDE = tl.constexpr(2 if INTERPRETED else 8)  # steps whose rows are on their way at once
_LEAST = 3 if INTERPRETED else 32  # steps of a chunk
_COUNTS = "n", "steps", "chunk", "count", "draws", "sequences", "n_stacks"
"""Arguments that are other numbers from call to call, for which a kernel is not compiled anew where they are 1 or a
multiple of 16; where rows begin, and so how wide they are read, is known of their widths."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compile for the GPU on the first launch; `TRITON_INTERPRET=1` interprets it in numpy instead."""
    function = inspect.unwrap(function)  # Triton cannot read through a wrapper, such as a type checker's
    given = inspect.signature(function).parameters
    counts = [name for name in _COUNTS if name in given and given[name].annotation is inspect.Parameter.empty]
    return triton.jit(function, do_not_specialize=counts)


def launch(function: Any, grid: tuple[int, ...], *tables: Any, **options: Any) -> None:
    """Start a grid of programs on the device of the first table; a grid without programs starts nothing.

    The axes of a grid but the first end at 65535. Products and sums are fused, which is not left to Triton's default:
    a sum of products is exact where one factor is 0 and another is 1.
    """
    if 0 not in grid:
        with torch.cuda.device_of(tables[0]):
            function[grid](*tables, **options, enable_fp_fusion=True)


def processors(table: Tensor) -> int:
    """The number of processors of the table's device, each of which runs many programs at once."""
    if INTERPRETED:
        return 1
    return torch.cuda.get_device_properties(table.device).multi_processor_count


class Chunks(NamedTuple):
    """Time cut into parts, each for a program of its own."""

    steps: int  # of each but the last
    count: int


def chunks(programs: int, steps: int, table: Tensor, busy: int = BUSY) -> Chunks:
    """One chunk where there are `busy` programs a processor; else as many as make it so, but none shorter than pays."""
    wanted = min(busy * processors(table) // max(1, programs), steps // _LEAST)
    if wanted < 2:
        return Chunks(steps, 1)
    length = -(-steps // wanted)
    return Chunks(length, -(-steps // length))


def accumulated(table: Tensor) -> Any:
    """In what a kernel keeps sums over time of the table: float64, or float32 for what is shorter too."""
    return tl.float64 if table.dtype == torch.float64 else tl.float32


@kernel
def position(axis: constexpr):
    """This program's place on an axis of the grid, in int64."""
    return tl.program_id(axis).to(tl.int64)


@kernel
def within(mask, t, low, high):
    """The mask if low <= t < high, else nothing of it. (The interpreter has no `and` of a mask and a scalar.)"""
    t = mask.to(tl.int32) * 0 + t
    return mask & (t >= low) & (t < high)


@kernel
def rows(table, t, direction: constexpr, low, high, width, mask, dtype: constexpr, steps: constexpr = STRIDE):
    """The rows of a stride, at t, t + direction, ..., those outside low..high zeros; `table` points into row 0."""
    found = ()
    for i in tl.static_range(steps):
        now = t + direction * i
        found += (tl.load(table + now * width, within(mask, now, low, high), 0.0).to(dtype),)
    return found
