"""Writing and launching Triton kernels. Only files of kernels import this file, and Triton's names from it.

A kernel is a function decorated with `kernel`, and `launch` starts it. Offsets are int64: an index that will be
multiplied starts as `position`. A program that loops over time does so in strides of a few steps. It requests all
`rows` of a stride before it uses the first, so it waits for memory once per stride.

Two things hold in the interpreter, not in the compiler. A number in a call, as in `tl.fma(x, 0.1, y)`, is of float32 in
Triton before 3.9. A loop that assigns `last = t`, where both begin as the same number, leaves `last` as it was.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton as _triton
from torch import Tensor
from triton.language import constexpr as constexpr

triton: Any = _triton  # its annotations do not describe names inside a kernel
tl: Any = _triton.language
INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether numpy interprets kernels, at a hundred steps a second; sizes are then small enough for small tests."""

BUSY = 4 if INTERPRETED else 16  # programs for each of a GPU's processors that keep its memory busy
STRIDE = tl.constexpr(2 if INTERPRETED else 8)  # steps whose rows are loaded at once
_LEAST = 3 if INTERPRETED else 32  # the least steps in a chunk
_COUNTS = "n", "steps", "chunk", "count", "draws", "sequences", "n_stacks"
"""Arguments that vary from call to call; a kernel is not recompiled if they are 1 or a multiple of 16. Alignment
follows from the widths of rows."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compile for the GPU on the first launch; `TRITON_INTERPRET=1` interprets it in numpy instead."""
    function = inspect.unwrap(function)  # Triton cannot read through a wrapper, such as a type checker's
    parameters = inspect.signature(function).parameters
    counts = [name for name in _COUNTS if name in parameters and parameters[name].annotation is inspect.Parameter.empty]
    return triton.jit(function, do_not_specialize=counts)


def launch(function: Any, grid: tuple[int, ...], *tables: Any, **options: Any) -> None:
    """Start a grid of programs on the device of the first table; an empty grid starts nothing.

    Axes of a grid except the first are limited to 65535. Products and sums are always fused, unlike Triton's default: a
    sum of products is exact if one factor is 0 and another is 1.
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
    """Time cut into parts, each for one program."""

    steps: int  # of each part but the last
    count: int


def chunks(programs: int, steps: int, table: Tensor, busy: int = BUSY) -> Chunks:
    """One chunk if there are `busy` programs for each processor; otherwise enough chunks, none shorter than
    `_LEAST`."""
    wanted = min(busy * processors(table) // max(1, programs), steps // _LEAST)
    if wanted < 2:
        return Chunks(steps, 1)
    length = -(-steps // wanted)
    return Chunks(length, -(-steps // length))


def accumulated(table: Tensor) -> Any:
    """The dtype of sums over time of the table: float64, or float32 for float32 and shorter dtypes."""
    return tl.float64 if table.dtype == torch.float64 else tl.float32


@kernel
def position(axis: constexpr):
    """The index of this program on an axis of the grid, in int64."""
    return tl.program_id(axis).to(tl.int64)


@kernel
def within(mask, t, low, high):
    """The mask if low <= t < high, else all False. (The interpreter has no `and` of a mask and a scalar.)"""
    t = mask.to(tl.int32) * 0 + t
    return mask & (t >= low) & (t < high)


@kernel
def rows(table, t, direction: constexpr, low, high, width, mask, dtype: constexpr, steps: constexpr = STRIDE):
    """The rows of a stride, at t, t + direction, ..., with zeros outside low..high; `table` points into row 0."""
    loaded = ()
    for i in tl.static_range(steps):
        now = t + direction * i
        loaded += (tl.load(table + now * width, within(mask, now, low, high), 0.0).to(dtype),)
    return loaded
