"""One fused step of a superposition stack: from the controller's raw outputs to the new cells and their reading.

A small network spends its time on calls, not on arithmetic: the softmax, the sigmoid, the update and the read are one
node of the autograd graph each way, with less ado than an operator has. The equation is that of `op.superpose`.
"""

from typing import Any

import torch
from torch import Tensor

from ...numerics.compilation import kernel
from ...numerics.elementary import exp, sigmoids
from ...numerics.op import Call, beyond_kernels, replay
from .op import step


@kernel
def _shift(n):
    """Which old cell action n moves to cell i: i + shift; -1 push, 1 pop, 0 no-op, 2, 3, ... pop several."""
    return -1 if n == 0 else (1 if n == 1 else (0 if n == 2 else n - 1))


@kernel
def forward_cells(raw, cells, n_cells, empty, action, value, new, reading):
    """Cells are flat rows here, so that moving them is one long loop."""
    M, A = action.shape
    V = value.shape[1]
    size = new.shape[1]
    for m in range(M):
        highest = raw[m, 0]
        for n in range(1, A):
            highest = max(highest, raw[m, n])
        total = type(empty)(0)
        for n in range(A):
            action[m, n] = exp(raw[m, n] - highest)
            total += action[m, n]
        for n in range(A):
            action[m, n] /= total
        for j in range(V):
            value[m, j] = sigmoids(raw[m, A + j])[0] - empty
            new[m, j] = action[m, 0] * value[m, j]
        for j in range(V, size):
            new[m, j] = action[m, 0] * cells[m, j - V]
        for n in range(1, A):
            weight, shift = action[m, n], _shift(n) * V
            for j in range(min(size, n_cells * V - shift)):
                new[m, j] += weight * cells[m, j + shift]
        for j in range(min(reading.shape[1], size)):
            reading[m, j] = new[m, j] + empty


@kernel
def backward_cells(g_new, g_reading, cells, n_cells, empty, action, value, g_raw, g_cells):
    M, A = action.shape
    V = value.shape[1]
    size = g_new.shape[1]
    for m in range(M):
        for j in range(min(g_reading.shape[1], size)):
            g_new[m, j] += g_reading[m, j]
        weight, total = action[m, 0], type(empty)(0)
        for j in range(V):
            total += g_new[m, j] * value[m, j]
            s = value[m, j] + empty
            g_raw[m, A + j] = weight * g_new[m, j] * s * (1 - s)
        for j in range(V, size):
            total += g_new[m, j] * cells[m, j - V]
        for j in range(size - V):
            g_cells[m, j] = weight * g_new[m, j + V]
        for j in range(size - V, n_cells * V):
            g_cells[m, j] = 0
        g_raw[m, 0] = total
        mean = weight * total
        for n in range(1, A):
            weight, total, shift = action[m, n], type(empty)(0), _shift(n) * V
            for j in range(min(size, n_cells * V - shift)):
                total += g_new[m, j] * cells[m, j + shift]
            for j in range(min(size, n_cells * V - shift)):
                g_cells[m, j + shift] += weight * g_new[m, j]
            g_raw[m, n] = total
            mean += weight * total
        for n in range(A):
            g_raw[m, n] = action[m, n] * (g_raw[m, n] - mean)


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, cells: Tensor, depth: int, n_read: int, empty: float) -> tuple[Tensor, Tensor]:
        inputs = raw, cells
        M, n_cells, V = cells.shape
        A = raw.shape[1] - V
        raw, cells = raw.contiguous(), cells.reshape(M, n_cells * V)
        action, value = raw.new_empty(M, A), raw.new_empty(M, V)
        new, reading = raw.new_empty(M, depth * V), raw.new_full((M, n_read * V), empty)
        ctx.empty = raw.numpy().dtype.type(empty)
        ctx.n_cells, ctx.others = n_cells, (depth, n_read, empty)
        forward_cells(
            raw.numpy(), cells.numpy(), n_cells, ctx.empty, action.numpy(), value.numpy(), new.numpy(), reading.numpy()
        )  # fmt: skip
        ctx.save_for_backward(*inputs, cells, action, value)
        return new.view(M, depth, V), reading

    @staticmethod
    def backward(ctx: Any, g_new: Tensor, g_reading: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, cells, action, value = ctx.saved_tensors
        if beyond_kernels(g_new, g_reading):
            return replay(step.plain, Call((*inputs, *ctx.others), (), ctx.needs_input_grad), (g_new, g_reading))
        g_raw, g_cells = cells.new_empty(len(cells), action.shape[1] + value.shape[1]), torch.empty_like(cells)
        g_new = g_new.flatten(1).clone(memory_format=torch.contiguous_format)
        backward_cells(
            g_new.numpy(), g_reading.contiguous().numpy(), cells.numpy(), ctx.n_cells, ctx.empty, action.numpy(),
            value.numpy(), g_raw.numpy(), g_cells.numpy(),
        )  # fmt: skip
        return g_raw, g_cells.view(len(cells), ctx.n_cells, value.shape[1]), None, None, None


@step.kernel("cpu")
def superposed_step(raw: Tensor, cells: Tensor, depth: int, n_read: int, empty: float) -> tuple[Tensor, Tensor]:
    return _Step.apply(raw, cells, depth, n_read, empty)  # pyright: ignore[reportReturnType]
