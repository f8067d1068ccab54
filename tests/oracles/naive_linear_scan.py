"""Linear recurrences as a textbook writes them: one step after another."""

import torch
from torch import Tensor


def scan(first: Tensor, second: Tensor, h0: Tensor, lerp: bool) -> Tensor:
    """All states [..., T, D] of `h = first h + second`, or `h = (1 - first) h + first second` if `lerp`."""
    h, states = h0, []
    for x, y in zip(first.unbind(-2), second.unbind(-2), strict=True):
        h = (1 - x) * h + x * y if lerp else x * h + y
        states.append(h)
    return torch.stack(states, -2) if states else first * h0.unsqueeze(-2) + second
