"""Linear recurrences on the CPU: one pass over memory forward, one pass back.

Sequences are spread over threads, and, where there are fewer sequences than threads, blocks of columns as well.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

from ...native.library import empty, function, integers
from ...numerics.native_calls import run
from ...numerics.op import Call, in_single_precision
from ...numerics.threads import ranges
from .op import scan

_MIN_WORK = 32_768  # numbers that repay a second thread
_LINE = 16  # columns are divided between threads in whole cache lines


def parts(sequences: int, steps: int, width: int, block: int = _LINE, widest: int | None = None) -> list[Any]:
    """The ranges of sequences and of columns of tasks, as the kernels read them: `[n0, n1, d0, d1, steps, width]`.

    Arguments:
        block: columns that stay together.
        widest: columns of a task, if they do; None: any number.
    """
    tasks = len(ranges(sequences * steps * width, _MIN_WORK))
    rows = ranges(sequences, -(-sequences // tasks))
    blocks = -(-width // block)
    columns = -(-tasks // len(rows))
    if widest is not None:
        columns = max(columns, -(-width // max(widest, block)))
    cuts = max(1, min(columns, blocks))
    edges = [min(width, blocks * k // cuts * block) for k in range(cuts + 1)]
    return [integers(*row, *column, steps, width) for row in rows for column in pairwise(edges)]


def states(name: str, tasks: list[Any], kind: Any, shape: Sequence[int], *given: Tensor) -> Tensor:
    """The results [N, T, D] of the kernel of a recurrence."""
    tables = [x.detach().contiguous() for x in given]
    h = empty(*shape, dtype=tables[0].dtype)
    if h.numel():
        run(function(name, h.dtype), tasks, kind, *tables, h)
    return h


def gradients(
    name: str, tasks: list[Any], kind: Any, inputs: Sequence[Tensor], h: Tensor, grad: Tensor
) -> list[Tensor]:
    """The gradients of all inputs, of which the last one is the first state, by the adjoint of such a kernel."""
    tables = [x.detach().contiguous() for x in (*inputs, h, grad)]
    found = [empty(*x.shape, dtype=x.dtype) for x in inputs]
    if h.numel():
        run(function(f"{name}_adjoint", h.dtype), tasks, kind, *tables, *found)
    else:
        found[-1].zero_()
    return found


@scan.kernel("cpu")
@in_single_precision
def forward(first: Tensor, second: Tensor, h0: Tensor, lerp: bool) -> Tensor:
    if first.shape != second.shape or h0.shape != (second.shape[0], second.shape[2]):
        shapes = ", ".join(str(list(x.shape)) for x in (first, second, h0))
        raise ValueError(f"first, second, h0: got shapes {shapes}, expected [N, T, D] twice, and [N, D].")
    if not first.dtype == second.dtype == h0.dtype:
        raise TypeError(f"first, second, h0: got {first.dtype}, {second.dtype}, {h0.dtype}, expected one dtype.")
    return states("linear_scan", parts(*second.shape), int(lerp), second.shape, first, second, h0)


@scan.adjoint("cpu")
@in_single_precision
def backward(call: Call, grad: Tensor) -> list[Tensor]:
    (*inputs, lerp), (h,) = call.inputs, call.outputs
    return gradients("linear_scan", parts(*h.shape), int(lerp), inputs, h, grad)
