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
from ...numerics.threads import sum_of_steps
from ..log_products import beliefs, futures, repays


class _Steps(NamedTuple):
    """The tables by step; a step after its sequence's end has likelihood 1 everywhere."""

    log_initial: Tensor  # [*B, K]
    transition: Tensor  # [T - 1 or 1, .., K, K], with an axis for each batch axis
    likelihood: Tensor  # [T, *B, K], divided by the largest of the step
    shift: Tensor  # [*B, T], the logarithm of the largest
    active: Tensor  # [T, *B], whether each sequence has this step

    def transitions(self) -> tuple[Tensor, ...]:
        """The transition table of each move."""
        tables = self.transition.unbind(0)
        return tables if len(tables) > 1 else tables * (len(self.likelihood) - 1)


def _steps(log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor) -> _Steps:
    n_steps, n_states = log_likelihood.shape[-2:]
    active = torch.arange(n_steps, device=lengths.device) < lengths.unsqueeze(-1)
    log_weight = torch.where(active.unsqueeze(-1), log_likelihood, 0.0)
    shift = log_weight.detach().amax(-1)
    tables = log_transition.movedim(-3, 0)
    return _Steps(
        log_initial.expand(*lengths.shape, n_states),
        tables.reshape(len(tables), *[1] * (lengths.dim() + 3 - tables.dim()), *tables.shape[1:]),
        (log_weight - shift.unsqueeze(-1)).movedim(-2, 0),
        shift,
        active.movedim(-1, 0),
    )


def _moves(steps: _Steps) -> Tensor:
    """The moves into all steps except the first as matrices [T - 1, *B, K, K] of log-weights; after an end all moves
    are equal."""
    return torch.where(steps.active[1:, ..., None, None], steps.transition + steps.likelihood[1:].unsqueeze(-2), 0.0)


def _at_once(steps: _Steps) -> bool:
    return repays(steps.likelihood.movedim(0, -2), steps.log_initial, steps.transition)


def _forward_at_once(steps: _Steps) -> tuple[Tensor, Tensor]:
    first, scale = _normalize(steps.likelihood[0] + steps.log_initial)
    states = torch.cat([first.unsqueeze(0), beliefs(first, _moves(steps))])
    _, scales = _normalize(steps.likelihood[1:] + log_matmul(states[:-1], steps.transition))
    return states, torch.cat([scale.unsqueeze(0), scales])


def _forward_by_steps(steps: _Steps) -> tuple[Tensor, Tensor]:
    message, states, scales = steps.log_initial, [], []
    transitions = *steps.transitions(), None
    for likelihood, active, onward in zip(steps.likelihood.unbind(0), steps.active.unbind(0), transitions, strict=True):
        state, scale = _normalize(likelihood + torch.where(active.unsqueeze(-1), message, 0.0))
        states.append(state)
        scales.append(scale)
        if onward is not None:
            message = log_matmul(state, onward)
    return torch.stack(states), torch.stack(scales)


def _forward(steps: _Steps) -> tuple[Tensor, Tensor, Tensor]:
    """log P(s_t | x_1..t) [T, *B, K], log p(x_t | x_1..t-1) - shift_t as [*B, T], and failed."""
    states, scales = _forward_at_once(steps) if _at_once(steps) else _forward_by_steps(steps)
    active, scale = steps.active.movedim(0, -1), scales.movedim(0, -1)
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
    return (sum_of_steps(scale.double()) + sum_of_steps(shift.double())).to(scale.dtype)


def log_normalizer(*tables: Tensor) -> tuple[Tensor, ...]:
    """log p(x_1..T), [*B]; failed."""
    steps = _steps(*tables)
    _, scale, failed = _forward(steps)
    return _total(scale, steps.shift), failed


def filter(*tables: Tensor) -> tuple[Tensor, ...]:
    """log p(x_1..T) [*B], P(s_t | x_1..t) [*B, T, K] and log p(x_t | x_1..t-1) [*B, T]; failed."""
    steps = _steps(*tables)
    states, scale, failed = _forward(steps)
    state = torch.where(steps.active.unsqueeze(-1), states.exp(), 0.0).movedim(0, -2)
    return _total(scale, steps.shift), state, scale + steps.shift, failed


def posterior(*tables: Tensor) -> tuple[Tensor, ...]:
    """log p(x_1..T) [*B], P(s_t | x) [*B, T, K] and P(s_t, s_t+1 | x) [*B, S, K, K]; failed.

    The last is by step, or summed over all steps if they share one table.
    """
    steps = _steps(*tables)
    states, scale, failed = _forward(steps)
    weight, message = (_backward_at_once if _at_once(steps) else _backward_by_steps)(steps)
    belief, _ = _normalize(torch.cat([states[:-1] + message, states[-1:]]))
    reached = torch.where(message == -torch.inf, 0.0, message).unsqueeze(-1)
    pair = torch.exp(belief[:-1].unsqueeze(-1) + (steps.transition + weight.unsqueeze(-2) - reached))
    pair = torch.where(steps.active[1:, ..., None, None], pair, 0.0).movedim(0, -3)
    state = torch.where(steps.active.unsqueeze(-1), belief.exp(), 0.0).movedim(0, -2)
    return _total(scale, steps.shift), state, pair.sum(-3, keepdim=True) if len(steps.transition) == 1 else pair, failed


def _backward_at_once(steps: _Steps) -> tuple[Tensor, Tensor]:
    """What `_backward_by_steps` gives."""
    future = futures(_moves(steps))
    weight = steps.likelihood[1:] + torch.cat([future[1:], torch.zeros_like(future[:1])])
    weight = weight - weight.amax(-1, keepdim=True)
    return weight, torch.where(steps.active[1:].unsqueeze(-1), log_matmul(weight, steps.transition.mT), 0.0)


def _backward_by_steps(steps: _Steps) -> tuple[Tensor, Tensor]:
    """The log-weights of all steps from t + 1 on, by the state at t + 1, the largest 0, and by the state at t:
    [T - 1, *B, K]."""
    weights, messages, message = [], [], None
    for likelihood, active, table in zip(
        steps.likelihood[1:].flip(0).unbind(0),
        steps.active[1:].flip(0).unbind(0),
        steps.transitions()[::-1],
        strict=True,
    ):
        weight = likelihood if message is None else likelihood + message
        weights.append(weight - weight.detach().amax(-1, keepdim=True))
        message = torch.where(active.unsqueeze(-1), log_matmul(weights[-1], table.mT), 0.0)
        messages.append(message)
    if message is None:
        none = steps.likelihood[1:]
        return none, none
    return torch.stack(weights[::-1]), torch.stack(messages[::-1])


def _double(*tables: Tensor) -> tuple[Tensor, ...]:
    return *(table.double() for table in tables[:3]), tables[3]


def viterbi(*tables: Tensor) -> tuple[Tensor, ...]:
    """The most probable path [*B, T], -1 after a sequence's end; failed."""
    steps = _steps(*_double(*tables))
    message, best = steps.log_initial, []
    for likelihood, onward in zip(steps.likelihood.unbind(0), (*steps.transitions(), None), strict=True):
        weight = likelihood + message
        best.append(weight - weight.amax(-1, keepdim=True))
        if onward is not None:
            message = (best[-1].unsqueeze(-1) + onward).amax(-2)
    failed = _first(steps.active.movedim(0, -1) & ~torch.stack(best, -2).amax(-1).isfinite())
    return _trace(steps, best, lambda t, score: score.argmax(-1)), failed


def sample(*tables_and_uniform: Tensor) -> tuple[Tensor, ...]:
    """Paths [n, *B, T] drawn from the posterior by inverting its distribution at uniform numbers [n, *B, T]; failed."""
    *tables, uniform = tables_and_uniform
    steps = _steps(*_double(*tables))
    states, _, failed = _forward(steps)

    def pick(t: int, score: Tensor) -> Tensor:
        weight = (score - score.amax(-1, keepdim=True)).exp()
        return invert(weight, uniform[..., t : t + 1]).squeeze(-1)

    return _trace(steps, [state.expand(*uniform.shape[:-1], -1) for state in states.unbind(0)], pick), failed


def _trace(steps: _Steps, scores: list[Tensor], pick: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Choose states backward from the last step, each by its score plus the transition into the next state."""
    path, following, transitions = [], None, steps.transitions()
    for t in reversed(range(len(scores))):
        score = scores[t]
        if following is not None:
            into = transitions[t].expand(*score.shape, score.shape[-1])
            into = into.gather(-1, following[..., None, None].expand(*score.shape, 1)).squeeze(-1)
            score = torch.where(steps.active[t + 1].unsqueeze(-1), score + into, score)
        following = pick(t, score)
        path.append(torch.where(steps.active[t], following, -1))
    return torch.stack(path[::-1], -1)
