r"""Linear recurrences on the CPU: one pass over memory forward, one pass back.

Sequences are spread over threads, and, where there are fewer sequences than threads, blocks of columns as well. The
gradient of a gradient is built from the same operators, the recurrence backward in time being one forward in reverse:

$$\bar h = reverse\big(scan(reverse(a_2, \dots, a_T, 0), reverse(\partial L / \partial h))\big)$$
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...numerics.results import empty_like
from ...numerics.workers import exact_kernel, in_parallel, kernel, ranges

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
def _linear_row_backward(grad, a, before, d_before, d_a, d_b):
    """`d_before` holds the gradient of h_t through what comes after, and is left with that of h_{t-1}."""
    for d in range(grad.shape[0]):
        total = grad[d] + d_before[d]
        d_a[d] = total * before[d]
        d_b[d] = total
        d_before[d] = total * a[d]


@exact_kernel
def _lerp_row_backward(grad, gate, value, before, d_before, d_gate, d_value):
    one = type(grad[0])(1)
    for d in range(grad.shape[0]):
        total = grad[d] + d_before[d]
        d_gate[d] = total * (value[d] - before[d])
        d_value[d] = total * gate[d]
        d_before[d] = total * (one - gate[d])


@kernel
def _linear(n0, n1, d0, d1, a, b, h0, h):
    for n in range(n0, n1):
        before = h0[n, d0:d1]
        for t in range(h.shape[1]):
            new = h[n, t, d0:d1]
            _linear_row(a[n, t, d0:d1], b[n, t, d0:d1], before, new)
            before = new


@kernel
def _lerp(n0, n1, d0, d1, gate, value, h0, h):
    for n in range(n0, n1):
        before = h0[n, d0:d1]
        for t in range(h.shape[1]):
            new = h[n, t, d0:d1]
            _lerp_row(gate[n, t, d0:d1], value[n, t, d0:d1], before, new)
            before = new


@kernel
def _linear_backward(n0, n1, d0, d1, grad, a, h0, h, d_a, d_b, d_h0):
    for n in range(n0, n1):
        d_before = d_h0[n, d0:d1]
        d_before[:] = 0
        for t in range(h.shape[1] - 1, -1, -1):
            before = h[n, t - 1, d0:d1] if t > 0 else h0[n, d0:d1]
            _linear_row_backward(
                grad[n, t, d0:d1], a[n, t, d0:d1], before, d_before, d_a[n, t, d0:d1], d_b[n, t, d0:d1]
            )


@kernel
def _lerp_backward(n0, n1, d0, d1, grad, gate, value, h0, h, d_gate, d_value, d_h0):
    for n in range(n0, n1):
        d_before = d_h0[n, d0:d1]
        d_before[:] = 0
        for t in range(h.shape[1] - 1, -1, -1):
            before = h[n, t - 1, d0:d1] if t > 0 else h0[n, d0:d1]
            _lerp_row_backward(
                grad[n, t, d0:d1],
                gate[n, t, d0:d1],
                value[n, t, d0:d1],
                before,
                d_before,
                d_gate[n, t, d0:d1],
                d_value[n, t, d0:d1],
            )


def _run(function: Callable[..., None], *tables: Tensor) -> None:
    """Call `function(n0, n1, d0, d1, *tables)` on parts that cover all sequences n and columns d."""
    sequences, steps, width = tables[0].shape
    arrays = [table.detach().numpy() for table in tables]
    parts = len(ranges(sequences * steps * width, _MIN_WORK))
    rows = ranges(sequences, -(-sequences // parts))
    blocks = -(-width // _LINE)
    columns = [(0, width)]
    if len(rows) < parts:
        columns = [(_LINE * lo, min(width, _LINE * hi)) for lo, hi in ranges(blocks, -(-blocks * len(rows) // parts))]
    in_parallel(
        [lambda part=(*row, *column): function(*part, *arrays) for row in rows for column in columns], among_torch=True
    )


def _contiguous(*tables: Tensor) -> list[Tensor]:
    return [table.contiguous() for table in tables]


@torch.library.custom_op("samplehold::linear_scan", mutates_args=())
def linear_scan(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """`h_t = a_t h_{t-1} + b_t` for a, b [N, T, D] and h0 [N, D]."""
    h = empty_like(b)
    if h.numel():
        _run(_linear, *_contiguous(a, b, h0), h)
    return h


@torch.library.custom_op("samplehold::lerp_scan", mutates_args=())
def lerp_scan(gate: Tensor, value: Tensor, h0: Tensor) -> Tensor:
    """`h_t = (1 - gate_t) h_{t-1} + gate_t value_t` for gate, value [N, T, D] and h0 [N, D]."""
    h = empty_like(value)
    if h.numel():
        _run(_lerp, *_contiguous(gate, value, h0), h)
    return h


@torch.library.custom_op("samplehold::linear_scan_backward", mutates_args=())
def _linear_gradients(grad: Tensor, a: Tensor, h0: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    d_a, d_b, d_h0 = empty_like(a), empty_like(a), empty_like(h0)
    if h.numel():
        _run(_linear_backward, *_contiguous(grad, a, h0, h), d_a, d_b, d_h0)
    else:
        d_h0.zero_()
    return d_a, d_b, d_h0


@torch.library.custom_op("samplehold::lerp_scan_backward", mutates_args=())
def _lerp_gradients(grad: Tensor, gate: Tensor, value: Tensor, h0: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    d_gate, d_value, d_h0 = empty_like(gate), empty_like(value), empty_like(h0)
    if h.numel():
        _run(_lerp_backward, *_contiguous(grad, gate, value, h0, h), d_gate, d_value, d_h0)
    else:
        d_h0.zero_()
    return d_gate, d_value, d_h0


def _fakes(*tables: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(table, memory_format=torch.contiguous_format) for table in tables)


@linear_scan.register_fake
@lerp_scan.register_fake
def _(first: Tensor, second: Tensor, h0: Tensor) -> Tensor:
    return _fakes(second)[0]


@_linear_gradients.register_fake
def _(grad: Tensor, a: Tensor, h0: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    return _fakes(a, a, h0)


@_lerp_gradients.register_fake
def _(grad: Tensor, gate: Tensor, value: Tensor, h0: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    return _fakes(gate, value, h0)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _adjoint(a: Tensor, grad: Tensor) -> Tensor:
    """The gradient of every h_t through all that depends on it, as a function that can be differentiated again."""
    after = torch.cat([a[:, 1:], torch.zeros_like(a[:, :1])], 1)
    return linear_scan(after.flip(1), grad.flip(1), grad.new_zeros(len(grad), grad.shape[2])).flip(1)


def _before(h: Tensor, h0: Tensor) -> Tensor:
    return torch.cat([h0.unsqueeze(1), h], 1)[:, :-1]


def _differentiate_linear(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, _, h0, h = ctx.saved_tensors
    if not torch.is_grad_enabled():
        return _linear_gradients(grad, a, h0, h)
    total = _adjoint(a, grad)
    return total * _before(h, h0), total, (total[:, :1] * a[:, :1]).sum(1)


def _differentiate_lerp(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gate, value, h0, h = ctx.saved_tensors
    if not torch.is_grad_enabled():
        return _lerp_gradients(grad, gate, value, h0, h)
    hold = 1 - gate
    total = _adjoint(hold, grad)
    return total * (value - _before(h, h0)), total * gate, (total[:, :1] * hold[:, :1]).sum(1)


linear_scan.register_autograd(_differentiate_linear, setup_context=_save)
lerp_scan.register_autograd(_differentiate_lerp, setup_context=_save)
