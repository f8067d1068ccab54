r"""An LSTM cell that drives superposition stacks, all steps in one node of the autograd graph.

$$[i, f, g, o]_t = W [x_t, r_{t-1}, h_{t-1}] + b, \quad c_t = \sigma(f) c_{t-1} + \sigma(i) \tanh(g), \quad
h_t = \sigma(o) \tanh(c_t), \quad (S_t, r_t) = step(S_{t-1}, U h_t + d)$$

With a small batch a step is a dozen calls of microseconds each; here it is two matrix products and two kernels each
way, and the gradient of each weight matrix is one product over all steps at the end.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...inference.numerics.compilation import kernel
from ...inference.numerics.elementary import sigmoids, tanh
from ...inference.stacks.superposition.cpu import backward_cells, forward_cells


@kernel
def _forward_gates(gates, old, act, cell, hidden):
    B, H = old.shape
    for b in range(B):
        for k in range(H):
            act[b, k] = sigmoids(gates[b, k])[0]
            act[b, H + k] = sigmoids(gates[b, H + k])[0]
            act[b, 2 * H + k] = tanh(gates[b, 2 * H + k])
            act[b, 3 * H + k] = sigmoids(gates[b, 3 * H + k])[0]
            cell[b, k] = act[b, H + k] * old[b, k] + act[b, k] * act[b, 2 * H + k]
            hidden[b, k] = act[b, 3 * H + k] * tanh(cell[b, k])


@kernel
def _backward_gates(g_hidden, g_cell, old, act, cell, g_gates):
    """Overwrites g_cell with the gradient of the cell before."""
    B, H = old.shape
    one = type(old[0, 0])(1)
    for b in range(B):
        for k in range(H):
            i, f, g, o = act[b, k], act[b, H + k], act[b, 2 * H + k], act[b, 3 * H + k]
            t = tanh(cell[b, k])
            d = g_cell[b, k] + g_hidden[b, k] * o * (one - t * t)
            g_gates[b, k] = d * g * i * (one - i)
            g_gates[b, H + k] = d * old[b, k] * f * (one - f)
            g_gates[b, 2 * H + k] = d * i * (one - g * g)
            g_gates[b, 3 * H + k] = g_hidden[b, k] * t * o * (one - o)
            g_cell[b, k] = d * f


class Settings(NamedTuple):
    """What is fixed: stacks a sequence, values a cell, cells read, value of an empty cell, most cells kept."""

    stacks: int
    width: int
    n_read: int
    empty: float
    capacity: int | None


class StackLSTM(torch.autograd.Function):
    """`apply(x, hidden, cell, reading, cells, W, b, U, d, settings)`, time first.

    x [T, B, I], hidden and cell [B, H], reading [B, R], cells [B stacks, n, V], W [4H, I + R + H], U [O, H]; to hidden
    states [T, B, H], readings [T, B, R], raw actions [T, B, O], and the last cell [B, H] and cells.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, hidden: Tensor, cell: Tensor, reading: Tensor, cells: Tensor,
        W: Tensor, b: Tensor, U: Tensor, d: Tensor, settings: Settings,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        (T, B, n_in), (H, R, V) = x.shape, (hidden.shape[1], reading.shape[1], settings.width)
        M, A, empty = B * settings.stacks, len(d) // settings.stacks - V, x.numpy().dtype.type(settings.empty)
        new = x.new_empty
        inputs, act, c, h = new(T + 1, B, n_in + R + H), new(T, B, 4 * H), new(T + 1, B, H), new(T, B, H)
        raw, action, value, r = new(T, B, len(d)), new(T, M, A), new(T, M, V), x.new_full((T, B, R), settings.empty)
        inputs[:T, :, :n_in], inputs[0, :, n_in : n_in + R], inputs[0, :, n_in + R :], c[0] = x, reading, hidden, cell
        stacks = [cells.flatten(1)]
        for t in range(T):
            gates = torch.addmm(b, inputs[t], W.t())
            _forward_gates(gates.numpy(), c[t].numpy(), act[t].numpy(), c[t + 1].numpy(), h[t].numpy())
            torch.addmm(d, h[t], U.t(), out=raw[t])
            n = stacks[-1].shape[1] // V
            depth = n + 1 if settings.capacity is None else min(n + 1, settings.capacity)
            stacks.append(new(M, depth * V))
            forward_cells(
                raw[t].view(M, A + V).numpy(), stacks[-2].numpy(), n, empty, action[t].numpy(), value[t].numpy(),
                stacks[-1].numpy(), r[t].view(M, R * B // max(M, 1)).numpy(),
            )  # fmt: skip
            inputs[t + 1, :, n_in : n_in + R], inputs[t + 1, :, n_in + R :] = r[t], h[t]
        ctx.save_for_backward(W, U, inputs, act, c, h, action, value, *stacks)
        ctx.sizes, ctx.empty, ctx.n_first = (n_in, R), empty, cells.shape[1]
        return h, r, raw, c[T].clone(), stacks[-1].unflatten(1, (stacks[-1].shape[1] // V, V)).clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, g_h: Tensor, g_r: Tensor, g_raw: Tensor, g_c: Tensor, g_cells: Tensor
    ) -> tuple[Tensor | None, ...]:
        W, U, inputs, act, c, h, action, value, *stacks = ctx.saved_tensors
        (n_in, R), (T, M, V) = ctx.sizes, value.shape
        g_c, g_stack, g_raw = (
            g_c.clone(),
            g_cells.flatten(1).clone(),
            g_raw.clone(memory_format=torch.contiguous_format),
        )
        g_gates, g_inputs = torch.empty_like(act), torch.zeros_like(inputs[0])
        g_step, g_x = g_raw.new_empty(M, g_raw.shape[2] * g_raw.shape[1] // M), g_raw.new_empty(T, len(g_c), n_in)
        for t in range(T - 1, -1, -1):
            g_read = (g_r[t] + g_inputs[:, n_in : n_in + R]).view(M, -1)
            g_before = torch.empty_like(stacks[t])
            backward_cells(
                g_stack.numpy(), g_read.numpy(), stacks[t].numpy(), stacks[t].shape[1] // V, ctx.empty,
                action[t].numpy(), value[t].numpy(), g_step.numpy(), g_before.numpy(),
            )  # fmt: skip
            g_stack = g_before
            g_raw[t] += g_step.view(g_raw[t].shape)
            g_hidden = torch.addmm(g_h[t] + g_inputs[:, n_in + R :], g_raw[t], U)
            _backward_gates(
                g_hidden.numpy(), g_c.numpy(), c[t].numpy(), act[t].numpy(), c[t + 1].numpy(), g_gates[t].numpy()
            )  # fmt: skip
            g_inputs = g_gates[t] @ W
            g_x[t] = g_inputs[:, :n_in]
        flat, flat_raw = g_gates.flatten(0, 1), g_raw.flatten(0, 1)
        return (
            g_x, g_inputs[:, n_in + R :], g_c, g_inputs[:, n_in : n_in + R], g_stack.view(M, ctx.n_first, V),
            flat.t() @ inputs[:T].flatten(0, 1), flat.sum(0), flat_raw.t() @ h.flatten(0, 1), flat_raw.sum(0), None,
        )  # fmt: skip
