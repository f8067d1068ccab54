r"""Copy chains in plain torch: one step at a time over all sequences and states, on any device, differentiable any
number of times.

Beliefs are logarithms in float64 for any dtype of the tables, so that no state is lost:

$$n_t = \log(e^{held_t + l_{t-1}} + e^{fresh_t + m_{t-1}}), \quad l_t = n_t - c_t, \quad
m_t = \log \textstyle\sum_s e^{l_t(s)}$$

Here $c_t = \log \sum_s e^{n_t(s)}$ counts as a constant for derivatives, so $m_t$ has the value 0 and carries the
derivative. Then every derivative is a sum of positive terms, and small ones are as exact as large ones.

The largest weight of a step is subtracted first, so that weights of any size keep their digits. Steps after the end of
a sequence hold the state with weight 1. Arguments and results are those of `op`. If no
derivative is recorded, the steps of few small sequences are multiplied all at once (`chains.log_products`).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...numerics.logs import NEVER, POSSIBLE
from ...numerics.op import differentiated
from ...numerics.randomness import invert
from ...numerics.threads import sum_of_steps
from ..log_products import beliefs, futures, repays


class _Steps(NamedTuple):
    """The tables step by step."""

    fresh: Tensor  # [T, N, K]
    held: Tensor  # [T, N, K]
    shift: Tensor  # [T, N, 1], the largest weight of the step, which is subtracted from both
    start: Tensor  # [N, K], log P(s_0), normalised by a constant
    scale: Tensor  # [N, 1], the logarithm of its sum; 0 if the first step redraws
    inside: Tensor  # [T, N], whether the step belongs to the sequence
    narrow: bool  # whether the table of holding has one column
    dtype: torch.dtype  # of the tables


class _Forward(NamedTuple):
    before: Tensor  # [T, N, K], l_{t-1}
    after: Tensor  # [T, N, K], l_t
    carried: Tensor  # [T, N, 1], m_{t-1}
    mass: Tensor  # [T, N, 1], m_t
    total: Tensor  # [T, N, 1], c_t
    failed: Tensor  # [N]


def _steps(log_initial: Tensor | None, log_fresh: Tensor, log_held: Tensor, lengths: Tensor) -> _Steps:
    inside = torch.arange(log_fresh.shape[1], device=log_fresh.device).unsqueeze(-1) < lengths
    fresh = log_fresh.double().clamp_min(NEVER).transpose(0, 1)
    held = log_held.double().clamp_min(NEVER).transpose(0, 1).expand_as(fresh)
    if log_initial is None:
        held = torch.cat([torch.full_like(held[:1], NEVER), held[1:]])
        start, scale = torch.zeros_like(fresh[0]), fresh.new_zeros(fresh.shape[1], 1)
    else:
        start = log_initial.double()
        top = start.detach().amax(-1, keepdim=True)  # a value of 1e30 would swamp the sum
        start = (start - top).clamp_min(NEVER)
        total = start.detach().logsumexp(-1, keepdim=True)
        start, scale = start - total, top + total
    fresh = fresh.where(inside.unsqueeze(-1), NEVER)
    held = held.where(inside.unsqueeze(-1), 0.0)
    shift = torch.maximum(fresh.detach(), held.detach()).amax(-1, keepdim=True)
    shift = shift.where((shift > POSSIBLE) & (shift < torch.inf), 0.0)
    fresh, held = (fresh - shift).clamp_min(NEVER), (held - shift).clamp_min(NEVER)
    return _Steps(fresh, held, shift, start, scale, inside, log_held.shape[-1] == 1, log_fresh.dtype)


def _log_add(x: Tensor, y: Tensor) -> Tensor:
    if differentiated(x, y):  # the second derivative of logaddexp is NaN if x and y are far apart
        return torch.stack(torch.broadcast_tensors(x, y)).logsumexp(0)
    return torch.logaddexp(x, y)


def _moves(steps: _Steps) -> Tensor:
    """The steps as matrices [T, N, K, K] of log-weights, from state to state."""
    same = torch.eye(steps.held.shape[-1], dtype=torch.bool, device=steps.held.device)
    return _log_add(steps.held.unsqueeze(-2).where(same, NEVER), steps.fresh.unsqueeze(-2))


def _forward_at_once(steps: _Steps) -> _Forward:
    after = beliefs(steps.start, _moves(steps))
    before = torch.cat([steps.start.unsqueeze(0), after[:-1]])
    weight = _log_add(steps.held + before, steps.fresh)
    total, none = weight.logsumexp(-1, keepdim=True), torch.zeros_like(after[..., :1])
    return _Forward(before, weight - total, none, none, total, _first_impossible(total))


def _at_once(steps: _Steps) -> bool:
    return repays(steps.fresh.transpose(0, 1), steps.held, steps.start)


def _forward(steps: _Steps) -> _Forward:
    if _at_once(steps):
        return _forward_at_once(steps)
    belief = steps.start
    mass = torch.zeros_like(steps.scale) if not differentiated(steps.start) else belief.logsumexp(-1, keepdim=True)
    before, after, carried, masses, totals = [], [], [], [], []
    for fresh, held in zip(steps.fresh.unbind(0), steps.held.unbind(0), strict=True):
        before.append(belief)
        carried.append(mass)
        weight = _log_add(held + belief, fresh + mass)
        log_sum = weight.logsumexp(-1, keepdim=True)
        total = log_sum.detach()
        belief, mass = weight - total, log_sum - total
        after.append(belief)
        masses.append(mass)
        totals.append(total)
    total = torch.stack(totals)
    before, after, carried, masses = map(torch.stack, (before, after, carried, masses))
    return _Forward(before, after, carried, masses, total, _first_impossible(total))


def _first_impossible(total: Tensor) -> Tensor:
    """The first step [N] without a total weight [T, N, 1] that is a real number, or -1."""
    impossible = ~((total > POSSIBLE) & (total < torch.inf)).squeeze(-1)
    return torch.where(impossible.any(0), impossible.int().argmax(0), -1)


def _total(by_step: Tensor) -> Tensor:
    """[N, 1], from numbers [T, N, 1]."""
    return sum_of_steps(by_step.movedim(0, -1))


def _evidence(steps: _Steps, forward: _Forward) -> Tensor:
    return (steps.scale + _total(steps.shift) + _total(forward.total) + forward.mass[-1]).squeeze(-1)


def log_normalizer(*tables: Any) -> tuple[Tensor, ...]:
    """log_normalizer [N], and the step at which each sequence failed, or -1, [N]."""
    steps = _steps(*tables)
    forward = _forward(steps)
    return _evidence(steps, forward).to(steps.dtype), forward.failed


def filter(*tables: Any) -> tuple[Tensor, ...]:
    """log_increment [N, T] in float64, state [N, T, K], redraw [N, T], failed [N]."""
    steps = _steps(*tables)
    forward = _forward(steps)
    inside, mass = steps.inside, forward.mass
    increment = (steps.shift + forward.total + mass - forward.carried).squeeze(-1)
    first = (steps.scale + forward.carried[0]).T
    increment = torch.cat([increment[:1] + first, increment[1:]])
    state = (forward.after - mass).exp().where(inside.unsqueeze(-1), 0.0)
    drawn = steps.fresh.logsumexp(-1, keepdim=True) + forward.carried - forward.total - mass
    redraw = drawn.squeeze(-1).exp()
    state, redraw = (part.transpose(0, 1).to(steps.dtype) for part in (state, redraw.where(inside, 0.0)))
    return increment.where(inside, 0.0).T, state, redraw, forward.failed


def _futures(steps: _Steps, forward: _Forward) -> tuple[Tensor, Tensor]:
    """Log-weights of all steps after each step [T, N, K], and of all steps [N, K], by the state before them."""
    if _at_once(steps):
        all_steps = futures(_moves(steps))
        return torch.cat([all_steps[1:], torch.zeros_like(all_steps[:1])]), all_steps[0]
    future, later = torch.zeros_like(steps.start), []
    for fresh, held, total in zip(
        steps.fresh.flip(0).unbind(0), steps.held.flip(0).unbind(0), forward.total.flip(0).unbind(0), strict=True
    ):
        later.append(future)
        drawn = (fresh + future).logsumexp(-1, keepdim=True)
        future = _log_add(held + future, drawn) - total
    return torch.stack(later[::-1]), future


def _joint(steps: _Steps, forward: _Forward) -> tuple[Tensor, Tensor, Tensor]:
    """P(s_t, z_t=1 | x) and P(s_t, z_t=0 | x), [T, N, K], and P(s_0 | x), [N, K]."""
    later, future = _futures(steps, forward)
    fresh = steps.fresh + forward.carried + later
    held = steps.held + forward.before + later
    norm = _log_add(fresh, held).logsumexp(-1, keepdim=True)
    start = (steps.start + future).softmax(-1)
    inside = steps.inside.unsqueeze(-1)
    return (fresh - norm).exp().where(inside, 0.0), (held - norm).exp().where(inside, 0.0), start


def smooth(*tables: Any) -> tuple[Tensor, ...]:
    """log_normalizer [N], state [N, T, K], redraw [N, T], failed [N]."""
    steps = _steps(*tables)
    forward = _forward(steps)
    fresh, held, _ = _joint(steps, forward)
    results = _evidence(steps, forward), (fresh + held).transpose(0, 1), fresh.sum(-1).T
    return *(table.to(steps.dtype) for table in results), forward.failed


def marginals(*tables: Any) -> tuple[Tensor, ...]:
    """log_normalizer [N], fresh [N, T, K], held like its table, initial [N, K] (of the table, if any), failed [N]."""
    steps = _steps(*tables)
    forward = _forward(steps)
    fresh, held, start = _joint(steps, forward)
    if steps.narrow:
        held = held.sum(-1, keepdim=True)
    results = _evidence(steps, forward), fresh.transpose(0, 1), held.transpose(0, 1), start
    return *(table.to(steps.dtype) for table in results), forward.failed


def viterbi(*tables: Any) -> tuple[Tensor, ...]:
    """path [N, T], redraw [N, T], log_probability [N], failed [N]."""
    steps = _steps(*tables)
    best, top, total = steps.start, torch.zeros_like(steps.scale), []
    drawn, tops = [], []
    for fresh, held in zip(steps.fresh.unbind(0), steps.held.unbind(0), strict=True):
        kept = held + best
        best = torch.maximum(kept, fresh)
        drawn.append(fresh > kept)
        top, argtop = best.max(-1, keepdim=True)
        best = best - top
        total.append(top)
        tops.append(argtop)
    totals = torch.stack(total)
    state, path, redraw = tops[-1], [], []
    for t in reversed(range(len(tops))):
        path.append(state)
        redraw.append(drawn[t].gather(-1, state))
        state = torch.where(redraw[-1], tops[t - 1], state)
    states, redraws = torch.cat(path[::-1], -1), torch.cat(redraw[::-1], -1)
    value = (steps.scale + _total(steps.shift) + _total(totals)).squeeze(-1).to(steps.dtype)
    return states.where(steps.inside.T, -1), redraws & steps.inside.T, value, _first_impossible(totals)


def sample(*tables_and_uniform: Any) -> tuple[Tensor, ...]:
    """path [n, N, T], redraw [n, N, T], failed [N], from uniform numbers [n, N, T, 2] for gates and states."""
    *tables, uniform = tables_and_uniform
    steps = _steps(*tables)
    forward = _forward(steps)
    belief = (forward.after - forward.mass).exp()
    uniform = uniform.permute(2, 3, 1, 0)  # [T, 2, N, n]
    drawn = torch.ones_like(uniform[0, 0], dtype=torch.bool)
    state = torch.zeros_like(drawn, dtype=torch.int64)
    path, redraw = [], []
    for t in reversed(range(len(uniform))):
        gate, place = uniform[t].unbind(0)
        state = torch.where(drawn, invert(belief[t], place), state)
        fresh = steps.fresh[t].gather(-1, state) + forward.carried[t]
        kept = (steps.held[t] + forward.before[t]).gather(-1, state)
        drawn = (gate < (fresh - kept).sigmoid()) | ~steps.inside[t].unsqueeze(-1)
        path.append(state)
        redraw.append(drawn)
    inside = steps.inside.T
    paths, redraws = (torch.stack(part[::-1], -1).transpose(0, 1) for part in (path, redraw))
    return paths.where(inside, -1), redraws & inside, forward.failed
