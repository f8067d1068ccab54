"""Linear recurrences on the CPU: one pass over memory forward, one pass back.

Sequences are spread over threads, and, where there are fewer sequences than threads, blocks of columns as well.
"""

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
    cuts = min(columns, blocks)
    edges = [min(width, blocks * k // cuts * block) for k in range(cuts + 1)]
    return [integers(*row, *column, steps, width) for row in rows for column in pairwise(edges)]


@scan.kernel("cpu")
@in_single_precision
def forward(first: Tensor, second: Tensor, h0: Tensor, lerp: bool) -> Tensor:
    if first.shape != second.shape or h0.shape != (second.shape[0], second.shape[2]):
        shapes = ", ".join(str(list(x.shape)) for x in (first, second, h0))
        raise ValueError(f"first, second, h0: got shapes {shapes}, expected [N, T, D] twice, and [N, D].")
    if not first.dtype == second.dtype == h0.dtype:
        raise TypeError(f"first, second, h0: got {first.dtype}, {second.dtype}, {h0.dtype}, expected one dtype.")
    tables = [x.detach().contiguous() for x in (first, second, h0)]
    h = empty(*second.shape, dtype=second.dtype)
    if h.numel():
        run(function("linear_scan", h.dtype), parts(*h.shape), int(lerp), *tables, h)
    return h


@scan.adjoint("cpu")
@in_single_precision
def backward(call: Call, grad: Tensor) -> list[Tensor]:
    (first, second, h0, lerp), (h,) = call.inputs, call.outputs
    tables = [x.detach().contiguous() for x in (first, second, h0, h, grad)]
    gradients = [empty(*x.shape, dtype=x.dtype) for x in tables[:3]]
    if h.numel():
        run(function("linear_scan_adjoint", h.dtype), parts(*h.shape), int(lerp), *tables, *gradients)
    else:
        gradients[2].zero_()
    return gradients
