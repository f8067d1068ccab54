"""Mean field on one gate and one state a step, compiled: one pass over time for each sequence, O(K) a sweep."""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...numerics.compilation import kernel
from ...numerics.small_matrices import copy_row
from ...numerics.threads import in_parallel, ranges
from . import op

_MIN_WORK = 2048  # log weights, from which on a second thread pays


class Inputs(NamedTuple):
    """The arrays that the kernel reads."""

    redrawn: Any  # [N, T, K]
    held: Any  # [N, T, K] or [N, T, 1]
    fresh: Any  # [N, K]
    odds: Any  # [N, T]
    initial: Any  # [N, K]
    gate: Any  # [N, T]; no columns if the gate is inferred
    lengths: Any  # [N]


class Outputs(NamedTuple):
    """The arrays that the kernel writes."""

    state: Any  # [N, T, K]
    redraw: Any  # [N, T]
    bound: Any  # [N, T]
    change: Any  # [N, T]
    failed: Any  # [N]


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
def _log_either(fresh, before, log_rho, log_hold):
    """log P(s) of a state that is drawn with one weight or held with the other."""
    a, b = log_rho + fresh, log_hold + before
    top = max(a, b)
    return top if top == -math.inf else top + math.log1p(math.exp(min(a, b) - top))


@kernel
def _first_gate(j1, j0, log_rho, log_hold):
    """The logit at which the sweeps start; NaN if no state is possible."""
    drawn, kept = log_rho + _log_sum(j1), log_hold + _log_sum(j0)
    if drawn == -math.inf and kept == -math.inf:
        return math.nan
    for k in range(len(j1)):
        if j1[k] > -math.inf and j0[k] > -math.inf:
            return drawn - kept
    return math.inf if drawn >= kept else -math.inf


@kernel
def _state(j1, j0, q, hold, log_q):
    """Write log Q(s) given Q(z); return the log of its normaliser."""
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
def _range(n0, n1, inputs, outputs, sweeps, independent):
    """Filter the sequences n0..n1."""
    states = inputs.redrawn.shape[2]
    j1, j0, log_q = np.empty(states), np.empty(states), np.empty(states)
    for n in range(n0, n1):
        redrawn, held, fresh = inputs.redrawn[n], inputs.held[n], inputs.fresh[n]
        copy_row(inputs.initial[n], log_q)
        for t in range(inputs.lengths[n]):
            log_odds = float(inputs.odds[n, t])
            log_rho, log_hold = _log_sigmoid(log_odds), _log_sigmoid(-log_odds)
            for k in range(states):  # log-weights of each state under z = 1 and z = 0, without those of the gate
                drawn, kept = fresh[k], log_q[k]
                if independent:
                    drawn = kept = _log_either(drawn, kept, log_rho, log_hold)
                j1[k] = drawn + redrawn[t, k]
                j0[k] = kept + held[t, k if held.shape[1] > 1 else 0]
            rounds, moved = sweeps, 0.0
            if inputs.gate.shape[1] > 0:
                q, rounds = float(inputs.gate[n, t]), 0
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
                outputs.failed[n] = t
                break
            for k in range(states):
                outputs.state[n, t, k] = math.exp(log_q[k])
            outputs.redraw[n, t], outputs.change[n, t] = q, moved
            outputs.bound[n, t] = total - _divergence(q, log_rho) - _divergence(hold, log_hold)


@op.filter.kernel("cpu")
def filter(*arguments: Any) -> tuple[Tensor, ...]:
    *tables, gate, lengths, sweeps, independent = arguments
    log_redrawn, log_odds = tables[0], tables[3]
    gate = log_odds.new_empty(len(lengths), 0) if gate is None else gate
    inputs = Inputs._make(table.detach().contiguous().numpy() for table in (*tables, gate, lengths))
    redraw, bound, change = (log_redrawn.new_zeros(log_redrawn.shape[:2]) for _ in range(3))
    results = log_redrawn.new_zeros(log_redrawn.shape), redraw, bound, change, torch.full_like(lengths, -1)
    outputs = Outputs._make(table.numpy() for table in results)
    parts = ranges(len(lengths), max(1, -(-_MIN_WORK // max(1, log_redrawn[:1].numel()))))
    in_parallel([partial(_range, *part, inputs, outputs, sweeps, independent) for part in parts])
    return results
