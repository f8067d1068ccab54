"""Mean field on one gate and one state per step, as derived, with numbers and loops."""

import math
from typing import Any

import torch
from torch import Tensor


def filter(*arguments: Any) -> tuple[Tensor, ...]:
    """state [N, T, K], redraw, bound and change [N, T], failed [N]; see `op.filter`."""
    log_redrawn, log_held, log_state, log_odds, log_initial, gate, lengths, sweeps, independent = arguments
    sequences, steps, states = log_redrawn.shape
    held = log_held.expand(-1, -1, states)
    state, by_step = torch.zeros_like(log_redrawn), log_redrawn.new_zeros(3, sequences, steps)
    failed = torch.full_like(lengths, -1)
    for n in range(sequences):
        fresh, before = log_state[n].tolist(), log_initial[n].tolist()
        for t in range(int(lengths[n])):
            odds = float(log_odds[n, t])
            drawn, kept = fresh, before
            if independent:
                log_rho, log_hold = _log_sigmoid(odds), _log_sigmoid(-odds)
                pairs = zip(fresh, before, strict=True)
                drawn = kept = [_log_sum([log_rho + f, log_hold + b]) for f, b in pairs]
            j1 = [a + b for a, b in zip(drawn, log_redrawn[n, t].tolist(), strict=True)]
            j0 = [a + b for a, b in zip(kept, held[n, t].tolist(), strict=True)]
            known_gate = None if gate is None else float(gate[n, t])
            result = _step(j1, j0, odds, known_gate, sweeps)
            if result is None:
                failed[n] = t
                break
            before, *numbers = result
            state[n, t] = torch.tensor(before, dtype=torch.float64).exp()
            by_step[:, n, t] = torch.tensor(numbers, dtype=torch.float64)
    return state, by_step[0], by_step[1], by_step[2], failed


def _step(
    j1: list[float], j0: list[float], odds: float, known_gate: float | None, sweeps: int
) -> tuple[list[float], float, float, float] | None:
    """log Q(s), Q(z = 1), the bound and the last change of Q(z = 1); None if no state is possible."""
    if known_gate is None:
        start = _first_gate(j1, j0, odds)
        if start is None:
            return None
        q, hold = start
    else:
        q, hold = known_gate, 1 - known_gate
    log_q, total, change = *_state(j1, j0, q, hold), 0.0
    for _ in range(sweeps if known_gate is None and total > -math.inf else 0):
        gaps = [math.exp(log) * (a - b) for log, a, b in zip(log_q, j1, j0, strict=True) if math.exp(log) > 0]
        logit, old = odds + sum(gaps), q
        q, hold = _sigmoid(logit), _sigmoid(-logit)
        log_q, total = _state(j1, j0, q, hold)
        change = abs(q - old)
    if total == -math.inf:
        return None
    divergence = sum(
        _times(weight, math.log(weight) - log_prior if weight > 0 else 0.0)
        for weight, log_prior in ((q, _log_sigmoid(odds)), (hold, _log_sigmoid(-odds)))
    )
    return log_q, q, total - divergence, change


def _first_gate(j1: list[float], j0: list[float], odds: float) -> tuple[float, float] | None:
    """The start of the sweeps: the exact posterior of the gate, or a certain one if no state is possible under both."""
    drawn, kept = _log_sigmoid(odds) + _log_sum(j1), _log_sigmoid(-odds) + _log_sum(j0)
    if drawn == kept == -math.inf:
        return None
    if not any(min(a, b) > -math.inf for a, b in zip(j1, j0, strict=True)):
        return (1.0, 0.0) if drawn >= kept else (0.0, 1.0)
    return _sigmoid(drawn - kept), _sigmoid(kept - drawn)


def _state(j1: list[float], j0: list[float], q: float, hold: float) -> tuple[list[float], float]:
    """log Q(s) given Q(z), and the log of its normaliser."""
    weights = [_times(q, a) + _times(hold, b) for a, b in zip(j1, j0, strict=True)]
    total = _log_sum(weights)
    return [w - total if total > -math.inf else w for w in weights], total


def _times(weight: float, log: float) -> float:
    return weight * log if weight != 0 else 0.0


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _log_sigmoid(x: float) -> float:
    return min(x, 0.0) - math.log1p(math.exp(-abs(x)))


def _log_sum(logs: list[float]) -> float:
    top = max(logs)
    return top + math.log(sum(math.exp(log - top) for log in logs)) if top > -math.inf else top
