"""Chains by the textbook's recursions in logarithms and float64: no weight is too small or too large for them."""

import torch
from torch import Tensor


def log_sum(x: Tensor, dim: int) -> Tensor:
    top = x.amax(dim, keepdim=True)
    top = torch.where(top.isinf(), 0.0, top)
    return (x - top).exp().sum(dim).log() + top.squeeze(dim)


def markov(log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x) and P(s_t | x), [T, K], of one sequence with one transition table."""
    start, moves, seen = (table.double() for table in (log_initial, log_transition, log_likelihood))
    before, after = [start + seen[0]], [torch.zeros_like(start)]
    for t in range(1, len(seen)):
        before.append(log_sum(before[-1].unsqueeze(-1) + moves, 0) + seen[t])
    for t in reversed(range(1, len(seen))):
        after.append(log_sum(moves + (seen[t] + after[-1]), 1))
    joint = torch.stack(before) + torch.stack(after[::-1])
    return log_sum(before[-1], 0), (joint - joint.amax(-1, keepdim=True)).softmax(-1)


def copy(log_initial: Tensor, log_fresh: Tensor, log_held: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x) and P(s_t | x), [T, K], of one sequence."""
    belief, fresh = log_initial.double(), log_fresh.double()
    held, before = log_held.double().expand_as(fresh), []
    for drawn, kept in zip(fresh, held, strict=True):
        belief = torch.logaddexp(log_sum(belief, 0) + drawn, belief + kept)
        before.append(belief)
    after = [torch.zeros_like(belief)]
    for drawn, kept in zip(fresh.flip(0)[:-1], held.flip(0)[:-1], strict=True):
        after.append(torch.logaddexp(kept + after[-1], log_sum(drawn + after[-1], 0)))
    joint = torch.stack(before) + torch.stack(after[::-1])
    return log_sum(belief, 0), (joint - joint.amax(-1, keepdim=True)).softmax(-1)
