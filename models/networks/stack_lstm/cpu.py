"""An LSTM cell that drives superposition stacks, all steps in one node of the autograd graph, on the CPU.

With a small batch, a step in plain torch is a dozen calls of microseconds each. Here it is two matrix products and two
kernels each way, and the gradient of each weight matrix is one product over all steps at the end. If a gradient is to
be differentiated again, the plain form computes it.
"""

from typing import Any

import torch
from torch import Tensor

from ....inference.numerics.compilation import kernel
from ....inference.numerics.elementary import sigmoids, tanh
from ....inference.numerics.op import Call, beyond_kernels, replay
from ....inference.stacks.superposition.cpu import backward_cells, forward_cells
from .op import Start, Weights, depth_after, passes

INPUT, FORGET, CANDIDATE, OUTPUT = range(4)  # an LSTM's gates, as torch orders them


@kernel
def _forward_gates(gates, old, cell, hidden):
    """`gates` [B, 4, H] holds the logits of the gates, and then the gates."""
    B, H = old.shape
    for b in range(B):
        for k in range(H):
            i, f = sigmoids(gates[b, INPUT, k])[0], sigmoids(gates[b, FORGET, k])[0]
            g, o = tanh(gates[b, CANDIDATE, k]), sigmoids(gates[b, OUTPUT, k])[0]
            gates[b, INPUT, k], gates[b, FORGET, k] = i, f
            gates[b, CANDIDATE, k], gates[b, OUTPUT, k] = g, o
            cell[b, k] = f * old[b, k] + i * g
            hidden[b, k] = o * tanh(cell[b, k])


@kernel
def _backward_gates(g_hidden, g_cell, old, gates, cell, g_logits):
    """Overwrites g_cell with the gradient of the previous cell."""
    B, H = old.shape
    one = type(old[0, 0])(1)
    for b in range(B):
        for k in range(H):
            i, f = gates[b, INPUT, k], gates[b, FORGET, k]
            g, o = gates[b, CANDIDATE, k], gates[b, OUTPUT, k]
            t = tanh(cell[b, k])
            d = g_cell[b, k] + g_hidden[b, k] * o * (one - t * t)
            g_logits[b, INPUT, k] = d * g * i * (one - i)
            g_logits[b, FORGET, k] = d * old[b, k] * f * (one - f)
            g_logits[b, CANDIDATE, k] = d * i * (one - g * g)
            g_logits[b, OUTPUT, k] = g_hidden[b, k] * t * o * (one - o)
            g_cell[b, k] = d * f


class _StackLSTM(torch.autograd.Function):
    """`apply(x, *start, *weights, settings)`. The kernels see each table by step and by stack, with M = B stacks in
    all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        start, weights, settings = Start(*arguments[:4]), Weights(*arguments[4:8]), arguments[8]
        ctx.settings = settings
        (T, B, n_inputs), M, V = x.shape, len(start.stacks), settings.width
        H, R, n_raw = start.hidden.shape[1], start.reading.shape[1], len(weights.actions_bias)
        per_stack, ctx.n_read, ctx.parts = n_raw // settings.stacks, settings.n_read * V, (n_inputs, R, H)
        new = x.new_empty
        inputs, gates, cell = new(T + 1, B, sum(ctx.parts)), new(T, B, 4 * H), new(T + 1, B, H)
        hidden, raw, reading = new(T, B, H), new(T, B, n_raw), x.new_full((T, B, R), settings.empty)
        action, value = new(T, M, per_stack - V), new(T, M, V)
        seen, read, fed = inputs.split(ctx.parts, -1)
        seen[:T], read[0], fed[0], cell[0] = x, start.reading, start.hidden, start.cell
        gates_at, cell_at, hidden_at = gates.view(T, B, 4, H).numpy(), cell.numpy(), hidden.numpy()
        raw_at, reading_at = raw.view(T, M, per_stack).numpy(), reading.view(T, M, ctx.n_read).numpy()
        action_at, value_at = action.numpy(), value.numpy()
        ctx.empty = empty = hidden_at.dtype.type(settings.empty)
        stacks, W, U = [start.stacks.flatten(1)], weights.gates.t(), weights.actions.t()
        for t in range(T):
            torch.addmm(weights.gates_bias, inputs[t], W, out=gates[t])
            _forward_gates(gates_at[t], cell_at[t], cell_at[t + 1], hidden_at[t])
            torch.addmm(weights.actions_bias, hidden[t], U, out=raw[t])
            if settings.past is not None:
                raw[t, settings.past[t]] = settings.idle
            n_cells = stacks[t].shape[1] // V
            stacks.append(new(M, depth_after(n_cells, settings) * V))
            forward_cells(
                raw_at[t], stacks[t].numpy(), n_cells, empty, action_at[t], value_at[t], stacks[t + 1].numpy(),
                reading_at[t],
            )  # fmt: skip
            read[t + 1], fed[t + 1] = reading[t], hidden[t]
        ctx.save_for_backward(x, *start, *weights, inputs, gates, cell, hidden, action, value, *stacks[:-1])
        return hidden, reading, raw, cell[1:].clone(), stacks[-1].unflatten(1, (-1, V))

    @staticmethod
    def backward(
        ctx: Any, g_hidden: Tensor, g_reading: Tensor, g_raw: Tensor, g_cells: Tensor, g_stacks: Tensor
    ) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once, because checkpoints provide them once
        arguments, (inputs, gates, cell, hidden, action, value, *stacks) = saved[:9], saved[9:]
        if beyond_kernels(g_hidden, g_reading, g_raw, g_cells, g_stacks):
            call = Call((*arguments, ctx.settings), (), ctx.needs_input_grad)
            return replay(passes.plain, call, (g_hidden, g_reading, g_raw, g_cells, g_stacks))
        W, U = arguments[5], arguments[7]
        (T, B, H), (M, V), A = hidden.shape, value.shape[1:], action.shape[2]
        past = ctx.settings.past
        g_raw = g_raw.clone(memory_format=torch.contiguous_format)
        if past is not None:
            g_raw[past] = 0
        g_cell = torch.zeros_like(cell[0])
        g_stack = g_stacks.flatten(1).clone()
        g_logits, g_inputs, g_step = torch.empty_like(gates), torch.zeros_like(inputs), value.new_empty(M, A + V)
        g_seen, g_read, g_fed = g_inputs.split(ctx.parts, -1)
        gates_at, g_logits_at = (z.view(T, B, 4, H).numpy() for z in (gates, g_logits))
        cell_at, action_at, value_at = cell.numpy(), action.numpy(), value.numpy()
        for t in range(T - 1, -1, -1):
            g_cell += g_cells[t]
            g_after, g_stack = g_stack, torch.empty_like(stacks[t])
            by_stack = (g_reading[t] + g_read[t + 1]).view(M, ctx.n_read)
            backward_cells(
                g_after.numpy(), by_stack.numpy(), stacks[t].numpy(), stacks[t].shape[1] // V, ctx.empty,
                action_at[t], value_at[t], g_step.numpy(), g_stack.numpy(),
            )  # fmt: skip
            g_raw[t] += g_step.view_as(g_raw[t])
            g_out = torch.addmm(g_hidden[t] + g_fed[t + 1], g_raw[t], U)
            _backward_gates(g_out.numpy(), g_cell.numpy(), cell_at[t], gates_at[t], cell_at[t + 1], g_logits_at[t])
            torch.mm(g_logits[t], W, out=g_inputs[t])
        by_gates, by_actions = g_logits.flatten(0, 1), g_raw.flatten(0, 1)
        return (
            g_seen[:T], g_fed[0], g_cell, g_read[0], g_stack.unflatten(1, (-1, V)),
            by_gates.t() @ inputs[:T].flatten(0, 1), by_gates.sum(0),
            by_actions.t() @ hidden.flatten(0, 1), by_actions.sum(0), None,
        )  # fmt: skip


@passes.kernel("cpu")
def stack_lstm(x: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return _StackLSTM.apply(x, *arguments)  # pyright: ignore[reportReturnType]
