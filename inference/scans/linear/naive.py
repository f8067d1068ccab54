"""Linear recurrences as a textbook writes them: one step after another."""

import torch
from torch import Tensor


def linear_scan(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """`h_t = a_t h_{t-1} + b_t` for a, b [..., T, D] and h0 [..., D]."""
    h, states = h0, []
    for a_t, b_t in zip(a.unbind(-2), b.unbind(-2), strict=True):
        h = a_t * h + b_t
        states.append(h)
    return torch.stack(states, -2) if states else a * h0.unsqueeze(-2) + b


def lerp_scan(gate: Tensor, value: Tensor, h0: Tensor) -> Tensor:
    """`h_t = (1 - gate_t) h_{t-1} + gate_t value_t` for gate, value [..., T, D] and h0 [..., D]."""
    h, states = h0, []
    for gate_t, value_t in zip(gate.unbind(-2), value.unbind(-2), strict=True):
        h = (1 - gate_t) * h + gate_t * value_t
        states.append(h)
    return torch.stack(states, -2) if states else gate * h0.unsqueeze(-2) + value
