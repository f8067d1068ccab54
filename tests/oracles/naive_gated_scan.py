"""The gated recurrence as a textbook writes it: one step after another, one formula a gate."""

import torch
from torch import Tensor


def gated_scan(pre: Tensor, h0: Tensor, gate: str, candidate: str, block: int) -> Tensor:
    """All states [..., T, D] from pre-activations [..., T, parts * D] and the states before them [..., D]."""
    h, states = h0, []
    for x in pre.unbind(-2):
        hold, draw, value = _step(x.split(h0.shape[-1], -1), gate, candidate, block)
        h = hold * h + draw * value
        states.append(h)
    return torch.stack(states, -2)


def _step(parts: tuple[Tensor, ...], gate: str, candidate: str, block: int) -> tuple[Tensor, Tensor, Tensor]:
    *gates, last = parts
    value = {
        "linear": lambda: last,
        "tanh": lambda: last.tanh(),
        "positive": lambda: torch.where(last >= 0, last + 0.5, last.sigmoid()),
        "simplex": lambda: torch.cat([part.softmax(-1) for part in last.split(block, -1)], -1),
    }[candidate]()
    first, second = gates[0].sigmoid(), gates[-1].sigmoid()
    hold, draw = {
        "redraw": lambda: (1 - first, first),
        "hold": lambda: (first, 1 - first),
        "ratio": lambda: (first / (first + second), second / (first + second)),
        "free": lambda: (first, second),
    }[gate]()
    return hold, draw, value
