r"""Markov chains in plain torch: all sequences and states of a step at once, in logarithms.

$$\log a_t = l_t + m_t - \log c_t, \quad m_{t+1}(j) = \log \sum_i a_t(i) A_{ij}, \qquad
w_t = l_t + v_t, \quad v_{t-1}(i) = \log \sum_j A_{ij} e^{w_t(j)}$$

Runs on any device, and autograd differentiates it any number of times: -inf gives exact zeros and finite gradients, and
no step stores more than a vector for the backward pass. If no derivative is recorded, the steps of few small sequences
are multiplied all at once (`chains.log_products`). Arguments and results are those of `op`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...numerics.logs import log_matmul
from ...numerics.randomness import invert
from ..log_products import beliefs, futures, repays


class _Steps(NamedTuple):
    """The tables step by step; a step after its sequence's end has likelihood 1 everywhere."""

    log_initial: Tensor
    transitions: tuple[Tensor, ...]
    likelihoods: tuple[Tensor, ...]  # divided by the largest of the step
    shift: Tensor  # [*B, T], the logarithm of the largest
    active: tuple[Tensor, ...]  # whether each sequence has this step

    def transition(self, t: int) -> Tensor:
        return self.transitions[t if len(self.transitions) > 1 else 0]


def _steps(log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor) -> _Steps:
    n_steps, n_states = log_likelihood.shape[-2:]
    active = torch.arange(n_steps, device=lengths.device) < lengths.unsqueeze(-1)
    log_weight = torch.where(active.unsqueeze(-1), log_likelihood, 0.0)
    shift = log_weight.detach().amax(-1)
    return _Steps(
        log_initial.expand(*lengths.shape, n_states),
        log_transition.unbind(-3),
        (log_weight - shift.unsqueeze(-1)).unbind(-2),
        shift,
        active.unbind(-1),
    )


def _transitions(steps: _Steps) -> Tensor:
    """The transition tables of all moves, [T - 1 or 1, .., K, K], with an axis for each batch axis."""
    tables = torch.stack(steps.transitions)
    return tables.reshape(len(tables), *[1] * (steps.shift.dim() + 2 - tables.dim()), *tables.shape[1:])


def _moves(steps: _Steps) -> Tensor:
    """The moves into all steps except the first as matrices [T - 1, *B, K, K] of log-weights; identities after an
    end."""
    likelihood, active = torch.stack(steps.likelihoods[1:]), torch.stack(steps.active[1:])
    none = torch.full_like(steps.transitions[0], -torch.inf).diagonal_scatter(
        torch.zeros_like(steps.transitions[0].diagonal(dim1=-2, dim2=-1)), dim1=-2, dim2=-1
    )
    return torch.where(active[..., None, None], _transitions(steps) + likelihood.unsqueeze(-2), none)


def _at_once(steps: _Steps) -> bool:
    table = steps.shift.unsqueeze(-1).expand(*steps.shift.shape, steps.log_initial.shape[-1])
    return repays(table, steps.log_initial, *steps.transitions[:1], *steps.likelihoods[:1])


def _forward_at_once(steps: _Steps) -> tuple[list[Tensor], list[Tensor]]:
    first, scale = _normalize(steps.likelihoods[0] + steps.log_initial)
    states = torch.cat([first.unsqueeze(0), beliefs(first, _moves(steps))])
    weight = torch.stack(steps.likelihoods[1:]) + log_matmul(states[:-1], _transitions(steps))
    _, scales = _normalize(weight)
    return list(states.unbind(0)), [scale, *scales.unbind(0)]


def _forward_by_steps(steps: _Steps) -> tuple[list[Tensor], list[Tensor]]:
    message, states, scales = steps.log_initial, [], []
    for t, (likelihood, active) in enumerate(zip(steps.likelihoods, steps.active, strict=True)):
        weight = likelihood + torch.where(active.unsqueeze(-1), message, 0.0)
        state, scale = _normalize(weight)
        states.append(state)
        scales.append(scale)
        if t + 1 < len(steps.likelihoods):
            message = log_matmul(states[-1], steps.transition(t))
    return states, scales


def _forward(steps: _Steps) -> tuple[list[Tensor], Tensor, Tensor]:
    """log P(s_t | x_1..t) of each step, log p(x_t | x_1..t-1) - shift_t as [*B, T], and failed."""
    states, scales = _forward_at_once(steps) if _at_once(steps) else _forward_by_steps(steps)
    active = torch.stack(steps.active, -1)
    scale = torch.stack(scales, -1)
    failed = _first(active & ~(scale.isfinite() & steps.shift.isfinite()))
    return states, torch.where(active, scale, 0.0), failed


def _normalize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights whose exponentials add up to one, and the subtracted constant; the largest goes first, to keep more
    digits."""
    top = weight.detach().amax(-1, keepdim=True)
    rest = torch.logsumexp(weight - top, -1, keepdim=True)
    return weight - top - rest, (top + rest).squeeze(-1)


def _first(bad: Tensor) -> Tensor:
    """The first True along the last axis, or -1."""
    return torch.where(bad.any(-1), bad.byte().argmax(-1), -1)


def _total(scale: Tensor, shift: Tensor) -> Tensor:
    return (scale.double().sum(-1) + shift.double().sum(-1)).to(scale.dtype)


def log_normalizer(*tables: Tensor) -> tuple[Tensor, ...]:
    """log p(x_1..T), [*B]; failed."""
    steps = _steps(*tables)
    _, scale, failed = _forward(steps)
    return _total(scale, steps.shift), failed


def filter(*tables: Tensor) -> tuple[Tensor, ...]:
    """log p(x_1..T) [*B], P(s_t | x_1..t) [*B, T, K] and log p(x_t | x_1..t-1) [*B, T]; failed."""
    steps = _steps(*tables)
    states, scale, failed = _forward(steps)
    active = torch.stack(steps.active, -1)
    state = torch.where(active.unsqueeze(-1), torch.stack(states, -2).exp(), 0.0)
    return _total(scale, steps.shift), state, scale + steps.shift, failed


def posterior(*tables: Tensor) -> tuple[Tensor, ...]:
    """log p(x_1..T) [*B], P(s_t | x) [*B, T, K] and P(s_t, s_t+1 | x) [*B, S, K, K]; failed.

    The last is by step, or summed over all steps if they share one table.
    """
    steps = _steps(*tables)
    states, scale, failed = _forward(steps)
    if _at_once(steps):
        state, pair = _posterior_at_once(steps, torch.stack(states))
        return _total(scale, steps.shift), state, pair, failed
    n_steps, last = len(states), len(states) - 1
    message, weight = torch.zeros_like(states[last]), steps.likelihoods[last]
    smoothed, pairs = [], []
    for t in reversed(range(n_steps)):
        belief, _ = _normalize(states[t] + message)
        smoothed.append(torch.where(steps.active[t].unsqueeze(-1), belief.exp(), 0.0))
        if t < last:
            reached = torch.where(message == -torch.inf, 0.0, message).unsqueeze(-1)
            onward = steps.transition(t) + weight.unsqueeze(-2) - reached
            pair = torch.exp(belief.unsqueeze(-1) + onward)
            pairs.append(torch.where(steps.active[t + 1][..., None, None], pair, 0.0))
        if t > 0:
            weight = steps.likelihoods[t] + message
            weight = weight - weight.detach().amax(-1, keepdim=True)
            message = log_matmul(weight, steps.transition(t - 1).mT)
            message = torch.where(steps.active[t].unsqueeze(-1), message, 0.0)
    state, pair = torch.stack(smoothed[::-1], -2), _collect(pairs, len(steps.transitions), states[last])
    return _total(scale, steps.shift), state, pair, failed


def _posterior_at_once(steps: _Steps, states: Tensor) -> tuple[Tensor, Tensor]:
    """P(s_t | x) [*B, T, K] and P(s_t, s_t+1 | x) [*B, S, K, K], from log P(s_t | x_1..t) [T, *B, K]."""
    tables, active, future = _transitions(steps), torch.stack(steps.active), futures(_moves(steps))
    weight = torch.stack(steps.likelihoods[1:])
    weight = weight + torch.cat([future[1:], torch.zeros_like(future[:1])])
    weight = weight - weight.amax(-1, keepdim=True)
    message = torch.where(active[1:].unsqueeze(-1), log_matmul(weight, tables.mT), 0.0)
    belief, _ = _normalize(torch.cat([states[:-1] + message, states[-1:]]))
    reached = torch.where(message == -torch.inf, 0.0, message).unsqueeze(-1)
    pair = torch.exp(belief[:-1].unsqueeze(-1) + (tables + weight.unsqueeze(-2) - reached))
    pair = torch.where(active[1:, ..., None, None], pair, 0.0).movedim(0, -3)
    state = torch.where(active.unsqueeze(-1), belief.exp(), 0.0).movedim(0, -2)
    return state, pair if len(steps.transitions) > 1 else pair.sum(-3, keepdim=True)


def _collect(pairs: list[Tensor], n_tables: int, like: Tensor) -> Tensor:
    """Pairs, the last step first, as the posterior of transition tables by step or of one table for all steps."""
    if not pairs:
        return like.new_zeros(*like.shape[:-1], n_tables, like.shape[-1], like.shape[-1])
    if len(pairs) == n_tables:
        return torch.stack(pairs[::-1], -3)
    return torch.stack(pairs, -3).sum(-3, keepdim=True)


def _double(*tables: Tensor) -> tuple[Tensor, ...]:
    return *(table.double() for table in tables[:3]), tables[3]


def viterbi(*tables: Tensor) -> tuple[Tensor, ...]:
    """The most probable path [*B, T], -1 after a sequence's end; failed."""
    steps = _steps(*_double(*tables))
    message, best = steps.log_initial, []
    for t, likelihood in enumerate(steps.likelihoods):
        weight = likelihood + message
        best.append(weight - weight.amax(-1, keepdim=True))
        if t + 1 < len(steps.likelihoods):
            message = (best[-1].unsqueeze(-1) + steps.transition(t)).amax(-2)
    failed = _first(torch.stack(steps.active, -1) & ~torch.stack(best, -2).amax(-1).isfinite())
    return _trace(steps, best, lambda t, score: score.argmax(-1)), failed


def sample(*tables_and_uniform: Tensor) -> tuple[Tensor, ...]:
    """Paths [n, *B, T] drawn from the posterior by inverting its distribution at uniform numbers [n, *B, T]; failed."""
    *tables, uniform = tables_and_uniform
    steps = _steps(*_double(*tables))
    states, _, failed = _forward(steps)

    def pick(t: int, score: Tensor) -> Tensor:
        weight = (score - score.amax(-1, keepdim=True)).exp()
        return invert(weight, uniform[..., t : t + 1]).squeeze(-1)

    return _trace(steps, [state.expand(*uniform.shape[:-1], -1) for state in states], pick), failed


def _trace(steps: _Steps, scores: list[Tensor], pick: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Choose states backward from the last step, each by its score plus the transition into the next state."""
    path, following = [], None
    for t in reversed(range(len(scores))):
        score = scores[t]
        if following is not None:
            into = steps.transition(t).expand(*score.shape, score.shape[-1])
            into = into.gather(-1, following[..., None, None].expand(*score.shape, 1)).squeeze(-1)
            score = torch.where(steps.active[t + 1].unsqueeze(-1), score + into, score)
        following = pick(t, score)
        path.append(torch.where(steps.active[t], following, -1))
    return torch.stack(path[::-1], -1)
