r"""An LSTM cell that drives superposition or stratification stacks, all steps in one node of the autograd graph.

$$[i, f, g, o]_t = W [x_t, r_{t-1}, h_{t-1}] + b, \quad c_t = \sigma(f) c_{t-1} + \sigma(i) \tanh(g), \quad
h_t = \sigma(o) \tanh(c_t), \quad (S_t, r_t) = step(S_{t-1}, U h_t + d)$$

A stratification stack is one table, whose rows are layers, oldest first: a strength and then a value.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....inference.numerics.op import Variants
from ....inference.stacks.stratification.op import step as stratification
from ....inference.stacks.superposition.op import step as superposition


class Weights(NamedTuple):
    """W [4H, I + R + H] and b [4H] of the gates, and U [O, H] and d [O] of the actions."""

    gates: Tensor
    gates_bias: Tensor
    actions: Tensor
    actions_bias: Tensor


class Start(NamedTuple):
    """The state before the first step: hidden state and cell [B, H], reading [B, R], and stacks [B stacks, n, V]."""

    hidden: Tensor
    cell: Tensor
    reading: Tensor
    stacks: Tensor


class Settings(NamedTuple):
    """Stacks in a sequence, values in a cell, cells read, value of an empty cell, most cells kept; layers or cells.

    For sequences that end early: the steps [T, B] after their ends, at which the raw actions are `idle` [O].
    """

    stacks: int
    width: int
    n_read: int
    empty: float
    capacity: int | None
    layered: bool = False
    past: Tensor | None = None
    idle: Tensor | None = None


class Pass(NamedTuple):
    """Hidden states [T, B, H], readings [T, B, R], raw actions [T, B, O], cells [T, B, H], and the last stacks."""

    hidden: Tensor
    reading: Tensor
    raw: Tensor
    cell: Tensor
    stacks: Tensor


def plain(x: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """The same in plain torch, differentiable any number of times."""
    start, weights, settings = Start(*arguments[:4]), Weights(*arguments[4:8]), arguments[8]
    (hidden, cell, reading, stacks), steps = start, []
    for t, x_t in enumerate(x):
        logits = torch.addmm(weights.gates_bias, torch.cat([x_t, reading, hidden], 1), weights.gates.t())
        i, f, g, o = logits.chunk(4, 1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        raw = torch.addmm(weights.actions_bias, hidden, weights.actions.t())
        if settings.past is not None:
            raw = torch.where(settings.past[t, :, None], settings.idle, raw)
        each = raw.view(len(stacks), -1)
        if settings.layered:
            strength, values, reading = stratification.plain(each, stacks[..., 0], stacks[..., 1:])
            stacks = torch.cat([strength.unsqueeze(-1), values], -1)
        else:
            depth = depth_after(stacks.shape[1], settings)
            stacks, reading = superposition.plain(each, stacks, depth, settings.n_read, settings.empty)
        reading = reading.reshape(len(x_t), -1)
        steps.append((hidden, reading, raw, cell))
    return *(torch.stack(z) for z in zip(*steps, strict=True)), stacks


def depth_after(n_cells: int, settings: Settings) -> int:
    """The number of cells after one more step from `n_cells`."""
    return n_cells + 1 if settings.capacity is None else min(n_cells + 1, settings.capacity)


passes: Variants = Variants(plain)
"""`plain`, or the fused form if there is one."""


def stack_lstm(x: Tensor, start: Start, weights: Weights, settings: Settings) -> Pass:
    """All steps over x [T, B, I], differentiable in x, start and weights."""
    return Pass(*passes(x, *start, *weights, settings))
