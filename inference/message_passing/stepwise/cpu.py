"""Mean field on one gate and one state a step, compiled: one pass over time for each sequence, O(K) a sweep."""

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ...numerics.workers import in_parallel, kernel, ranges

_MIN_WORK = 2048  # log weights that repay a second thread


@kernel
def _log_sum(logs):
    top = logs.max()
    if top == -math.inf:
        return top
    total = 0.0
    for k in range(len(logs)):
        total += math.exp(logs[k] - top)
    return top + math.log(total)


@kernel
def _log_sigmoid(x):
    return min(x, 0.0) - math.log1p(math.exp(-abs(x)))


@kernel
def _sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


@kernel
def _weights(drawn, kept, redrawn, held, log_rho, log_hold, independent, j1, j0):
    """Log weights of each state under z = 1 and z = 0, the gate's own left out."""
    for k in range(len(j1)):
        fresh, before = drawn[k], kept[k]
        if independent:
            a, b = log_rho + fresh, log_hold + before
            top = max(a, b)
            fresh = top if top == -math.inf else top + math.log1p(math.exp(min(a, b) - top))
            before = fresh
        j1[k] = fresh + redrawn[k]
        j0[k] = before + held[k if len(held) > 1 else 0]


@kernel
def _first_gate(j1, j0, log_rho, log_hold):
    """The logit where the sweeps start; NaN where nothing is possible."""
    drawn, kept = log_rho + _log_sum(j1), log_hold + _log_sum(j0)
    if drawn == -math.inf and kept == -math.inf:
        return math.nan
    for k in range(len(j1)):
        if j1[k] > -math.inf and j0[k] > -math.inf:
            return drawn - kept
    return math.inf if drawn >= kept else -math.inf


@kernel
def _state(j1, j0, q, hold, log_q):
    """Write log Q(s) given Q(z); return the log of what it was divided by."""
    for k in range(len(j1)):
        log_q[k] = 0.0
        if q != 0:
            log_q[k] += q * j1[k]
        if hold != 0:
            log_q[k] += hold * j0[k]
    total = _log_sum(log_q)
    if total > -math.inf:
        for k in range(len(j1)):
            log_q[k] -= total
    return total


@kernel
def _gap(j1, j0, log_q):
    """E_Q(s)[j1 - j0]."""
    total = 0.0
    for k in range(len(j1)):
        belief = math.exp(log_q[k])
        if belief > 0:
            total += belief * (j1[k] - j0[k])
    return total


@kernel
def _divergence(weight, log_prior):
    return weight * (math.log(weight) - log_prior) if weight > 0 else 0.0


@kernel
def _sequences(
    n0,
    n1,
    redrawn,
    held,
    fresh,
    odds,
    initial,
    gate,
    lengths,
    sweeps,
    independent,
    state,
    redraw,
    bound,
    change,
    failed,
):
    """`gate` has no columns where the gate is inferred."""
    states = redrawn.shape[2]
    j1, j0, log_q = np.empty(states), np.empty(states), np.empty(states)
    for n in range(n0, n1):
        for k in range(states):
            log_q[k] = initial[n, k]
        for t in range(lengths[n]):
            log_odds = float(odds[n, t])
            log_rho, log_hold = _log_sigmoid(log_odds), _log_sigmoid(-log_odds)
            _weights(fresh[n], log_q, redrawn[n, t], held[n, t], log_rho, log_hold, independent, j1, j0)
            rounds, moved = sweeps, 0.0
            if gate.shape[1] > 0:
                q, rounds = float(gate[n, t]), 0
                hold = 1.0 - q
            else:
                logit = _first_gate(j1, j0, log_rho, log_hold)
                q, hold = _sigmoid(logit), _sigmoid(-logit)
            total = _state(j1, j0, q, hold, log_q)
            for _ in range(rounds):
                logit, old = log_odds + _gap(j1, j0, log_q), q
                q, hold = _sigmoid(logit), _sigmoid(-logit)
                total = _state(j1, j0, q, hold, log_q)
                moved = abs(q - old)
            if not total > -math.inf or total == math.inf:
                failed[n] = t
                break
            for k in range(states):
                state[n, t, k] = math.exp(log_q[k])
            redraw[n, t], change[n, t] = q, moved
            bound[n, t] = total - _divergence(q, log_rho) - _divergence(hold, log_hold)


@torch.library.custom_op("samplehold::filter_vmp", mutates_args=())
def filter(
    log_redrawn: Tensor,
    log_held: Tensor,
    log_state: Tensor,
    log_odds: Tensor,
    log_initial: Tensor,
    gate: Tensor | None,
    lengths: Tensor,
    sweeps: int,
    independent: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """state [N, T, K], redraw, bound and change [N, T], failed [N] from tables as `inference.filter_vmp` has them."""
    state, redraw, bound, change, failed = _results(log_redrawn, lengths)
    given = log_odds.new_empty(len(lengths), 0) if gate is None else gate
    tables = (log_redrawn, log_held, log_state, log_odds, log_initial, given, lengths)
    inputs = [table.detach().contiguous().numpy() for table in tables]
    outputs = [table.numpy() for table in (state, redraw, bound, change, failed)]
    parts = ranges(len(lengths), max(1, -(-_MIN_WORK // max(1, log_redrawn[:1].numel()))))
    in_parallel([partial(_sequences, *part, *inputs, sweeps, independent, *outputs) for part in parts])
    return state, redraw, bound, change, failed


@filter.register_fake
def _(
    log_redrawn: Tensor,
    log_held: Tensor,
    log_state: Tensor,
    log_odds: Tensor,
    log_initial: Tensor,
    gate: Tensor | None,
    lengths: Tensor,
    sweeps: int,
    independent: bool,
) -> tuple[Tensor, ...]:
    return _results(log_redrawn, lengths)


def _results(log_redrawn: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    by_step = [log_redrawn.new_zeros(log_redrawn.shape[:2]) for _ in range(3)]
    return log_redrawn.new_zeros(log_redrawn.shape), *by_step, torch.full_like(lengths, -1)
