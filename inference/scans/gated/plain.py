r"""The gated recurrence from pre-activations, in plain torch: any device, differentiable any number of times.

Activations are taken of the whole series at once; the recurrence itself is the plain linear one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ...numerics.op import in_single_precision
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


def activate_adjoint(pre: Tensor, now: Activated, grad: Activated, gate: str, candidate: str, block: int) -> Tensor:
    """The gradient of pre-activations, from the results of `activate` and their gradients."""
    *gates, last = pre.chunk(2 if gate in ("redraw", "hold") else 3, -1)
    slope = now.hold * now.draw
    if gate in ("redraw", "hold"):
        opened = (grad.draw - grad.hold) * slope
        of_gates = [opened if gate == "redraw" else -opened]
    elif gate == "free":
        of_gates = [grad.hold * now.hold * (-gates[0]).sigmoid(), grad.draw * now.draw * (-gates[1]).sigmoid()]
    else:
        opened = (grad.draw - grad.hold) * slope
        of_gates = [-opened * (-gates[0]).sigmoid(), opened * (-gates[1]).sigmoid()]
    return torch.cat([*of_gates, _candidate_adjoint(last, now.value, grad.value, candidate, block)], -1)


def _candidate_adjoint(pre: Tensor, value: Tensor, grad: Tensor, candidate: str, block: int) -> Tensor:
    if candidate == "linear":
        return grad
    if candidate == "tanh":
        return grad * (1 - value * value)
    if candidate == "positive":
        return torch.where(pre >= 0, grad, grad * value * (1 - value))
    weighted, shares = (x.reshape(*pre.shape[:-1], pre.shape[-1] // block, block) for x in (grad * value, value))
    return (weighted - shares * weighted.sum(-1, keepdim=True)).reshape(pre.shape)


@in_single_precision
def gated_scan(pre: Tensor, h0: Tensor, gate: str, candidate: str, block: int) -> Tensor:
    """All states [N, T, D] from pre-activations [N, T, parts * D] and the states before them [N, D]."""
    step = activate(pre, gate, candidate, block)
    return linear.scan(step.hold, step.draw * step.value, h0, False)
