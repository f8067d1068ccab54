r"""The gated recurrence from pre-activations, in plain torch: any device, differentiable any number of times.

Activations are taken of the whole series at once; the recurrence itself is the plain linear one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..linear import plain as linear


@dataclass(frozen=True)
class Activated:
    """What one step of `h = hold * h + draw * value` is made of, each [*b, D] or [*b, T, D]."""

    hold: Tensor
    draw: Tensor
    value: Tensor


def activate(pre: Tensor, gate: str, candidate: str, block: int) -> Activated:
    """Gates and candidates of pre-activations [..., parts * D], each accurate where it is close to 0."""
    parts = 2 if gate in ("redraw", "hold") else 3
    *gates, last = pre.chunk(parts, -1)
    value = _candidate(last, candidate, block)
    if gate == "redraw":
        return Activated((-gates[0]).sigmoid(), gates[0].sigmoid(), value)
    if gate == "hold":
        return Activated(gates[0].sigmoid(), (-gates[0]).sigmoid(), value)
    forget, take = gates
    if gate == "free":
        return Activated(forget.sigmoid(), take.sigmoid(), value)
    log_odds = logsigmoid(take) - logsigmoid(forget)
    return Activated((-log_odds).sigmoid(), log_odds.sigmoid(), value)


def _candidate(pre: Tensor, candidate: str, block: int) -> Tensor:
    if candidate == "linear":
        return pre
    if candidate == "tanh":
        return pre.tanh()
    if candidate == "positive":
        return torch.where(pre >= 0, pre + 0.5, pre.sigmoid())
    return pre.unflatten(-1, (-1, block)).softmax(-1).flatten(-2)


def gated_scan(pre: Tensor, h0: Tensor, gate: str, candidate: str, block: int) -> Tensor:
    """All states [N, T, D] from pre-activations [N, T, parts * D] and the states before them [N, D]."""
    step = activate(pre, gate, candidate, block)
    return linear.scan(step.hold, step.draw * step.value, h0, False)
