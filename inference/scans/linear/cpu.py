"""Linear recurrences on the CPU: one pass over memory forward, one pass back.

Sequences are spread over threads, and, where there are fewer sequences than threads, blocks of columns as well.
"""

from collections.abc import Callable

from torch import Tensor

from ...numerics.compilation import exact_kernel, kernel
from ...numerics.memory import empty_like
from ...numerics.op import Call, in_single_precision
from ...numerics.threads import in_parallel, ranges
from .op import scan

_MIN_WORK = 32_768  # elements that repay a second thread
_LINE = 16  # columns are divided between threads in whole cache lines

# Rows are exact: reordered, (1 - gate) h + gate v may become h + gate (v - h), which a gate of 1 does not make v.


@exact_kernel
def _linear_row(a, b, before, h):
    for d in range(h.shape[0]):
        h[d] = a[d] * before[d] + b[d]


@exact_kernel
def _lerp_row(gate, value, before, h):
    one = type(h[0])(1)
    for d in range(h.shape[0]):
        h[d] = (one - gate[d]) * before[d] + gate[d] * value[d]


@exact_kernel
def _linear_row_adjoint(grad, a, before, d_before, d_a, d_b):
    """`d_before` holds the gradient of h_t from later steps, and at the end that of h_{t-1}."""
    for d in range(grad.shape[0]):
        total = grad[d] + d_before[d]
        d_a[d] = total * before[d]
        d_b[d] = total
        d_before[d] = total * a[d]


@exact_kernel
def _lerp_row_adjoint(grad, gate, value, before, d_before, d_gate, d_value):
    one = type(grad[0])(1)
    for d in range(grad.shape[0]):
        total = grad[d] + d_before[d]
        d_gate[d] = total * (value[d] - before[d])
        d_value[d] = total * gate[d]
        d_before[d] = total * (one - gate[d])


@kernel
def _forward(n0, n1, d0, d1, lerp, first, second, h0, h):
    for n in range(n0, n1):
        before = h0[n, d0:d1]
        for t in range(h.shape[1]):
            x, y, new = first[n, t, d0:d1], second[n, t, d0:d1], h[n, t, d0:d1]
            if lerp:
                _lerp_row(x, y, before, new)
            else:
                _linear_row(x, y, before, new)
            before = new


@kernel
def _backward(n0, n1, d0, d1, lerp, first, second, h0, h, grad, d_first, d_second, d_h0):
    for n in range(n0, n1):
        d_before = d_h0[n, d0:d1]
        d_before[:] = 0
        for t in range(h.shape[1] - 1, -1, -1):
            before = h[n, t - 1, d0:d1] if t > 0 else h0[n, d0:d1]
            g, x, d_x, d_y = grad[n, t, d0:d1], first[n, t, d0:d1], d_first[n, t, d0:d1], d_second[n, t, d0:d1]
            if lerp:
                _lerp_row_adjoint(g, x, second[n, t, d0:d1], before, d_before, d_x, d_y)
            else:
                _linear_row_adjoint(g, x, before, d_before, d_x, d_y)


def _run(function: Callable[..., None], lerp: bool, *tables: Tensor) -> None:
    """Call `function(n0, n1, d0, d1, lerp, *tables)` on parts that cover all sequences n and columns d."""
    sequences, steps, width = tables[0].shape
    arrays = [table.detach().contiguous().numpy() for table in tables]
    parts = len(ranges(sequences * steps * width, _MIN_WORK))
    rows = ranges(sequences, -(-sequences // parts))
    blocks = -(-width // _LINE)
    columns = [(0, width)]
    if len(rows) < parts:
        columns = [(_LINE * lo, min(width, _LINE * hi)) for lo, hi in ranges(blocks, -(-blocks * len(rows) // parts))]
    in_parallel(
        [lambda part=(*row, *column): function(*part, lerp, *arrays) for row in rows for column in columns],
        among_torch=True,
    )


@scan.kernel("cpu")
@in_single_precision
def forward(first: Tensor, second: Tensor, h0: Tensor, lerp: bool) -> Tensor:
    h = empty_like(second)
    if h.numel():
        _run(_forward, lerp, first, second, h0, h)
    return h


@scan.adjoint("cpu")
@in_single_precision
def backward(call: Call, grad: Tensor) -> list[Tensor]:
    (first, second, h0, lerp), (h,) = call.inputs, call.outputs
    d_first, d_second, d_h0 = empty_like(first), empty_like(second), empty_like(h0).zero_()
    if h.numel():
        _run(_backward, lerp, first, second, h0, h, grad, d_first, d_second, d_h0)
    return [d_first, d_second, d_h0]
