"""Mean field on one gate and one state a step in plain torch, over all sequences at once; differentiable.

Computations are in float64, for any dtype of the tables.
"""

from typing import Any

import torch
from torch import Tensor

from ...numerics.logs import NEVER, POSSIBLE, log_sigmoid


def filter(*arguments: Any) -> tuple[Tensor, ...]:
    """state [N, T, K], redraw, bound and change [N, T], failed [N]; see `op.filter`."""
    *tables, gate, lengths, sweeps, independent = arguments
    log_redrawn, log_held, log_state, log_odds, log_initial = (table.double() for table in tables)
    sequences, steps, states = log_redrawn.shape
    inside = torch.arange(steps, device=lengths.device) < lengths.unsqueeze(-1)
    redrawn, held = (_finite(t.where(inside.unsqueeze(-1), 0.0)).transpose(0, 1) for t in (log_redrawn, log_held))
    odds = log_odds.where(inside, 0.0).clamp(NEVER, -NEVER).mT.unsqueeze(-1)
    gates = [None] * steps if gate is None else gate.double().where(inside, 0.5).mT.unsqueeze(-1).unbind(0)
    fresh, before = _finite(log_state), _finite(log_initial)
    failed, rows = torch.full_like(lengths, -1), []
    for t in range(steps):
        drawn, kept = fresh, before
        if independent:
            drawn = kept = torch.logaddexp(log_sigmoid(odds[t]) + fresh, log_sigmoid(-odds[t]) + before)
        j1, j0 = (_finite(j) for j in (drawn + redrawn[t], (kept + held[t]).expand(sequences, states)))
        before, *numbers, possible = _step(j1, j0, odds[t], gates[t], sweeps)
        failed = torch.where((failed < 0) & ~possible & inside[:, t], t, failed)
        rows.append(torch.cat([before.exp(), *numbers], -1))
    table = torch.stack(rows, 1).where(inside.unsqueeze(-1), 0.0)
    redraw, bound, change = table[..., states:].unbind(-1)
    return *(part.to(tables[0]) for part in (table[..., :states], redraw, bound, change)), failed


def _step(
    j1: Tensor, j0: Tensor, odds: Tensor, known_gate: Tensor | None, sweeps: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """log Q(s) [N, K]; Q(z = 1), the bound and the last change of Q(z = 1) [N, 1]; whether anything is possible [N]."""
    possible = torch.ones_like(odds, dtype=torch.bool)
    if known_gate is None:
        q, hold, possible = _first_gate(j1, j0, odds)
    else:
        q, hold = known_gate, 1 - known_gate
    log_q, total = _state(j1, j0, q, hold)
    change = torch.zeros_like(q)
    gap = (j1 - j0).where((j1 > POSSIBLE) & (j0 > POSSIBLE), 0.0)
    for _ in range(sweeps if known_gate is None else 0):
        belief, old = log_q.exp(), q
        certain = ((belief > 0) & (j0 <= POSSIBLE)).any(-1, True).to(q) - ((belief > 0) & (j1 <= POSSIBLE)).any(
            -1, True
        ).to(q)
        logit = (odds + (belief * gap).sum(-1, True) - certain * NEVER).clamp(NEVER, -NEVER)
        q, hold = logit.sigmoid(), (-logit).sigmoid()
        log_q, total = _state(j1, j0, q, hold)
        change = (q - old).abs()
    divergence = _divergence(q, log_sigmoid(odds)) + _divergence(hold, log_sigmoid(-odds))
    bound = total - divergence
    bound = bound.masked_fill(bound <= POSSIBLE, -torch.inf)
    return log_q, q, bound, change, (possible & (total > POSSIBLE)).squeeze(-1)


def _first_gate(j1: Tensor, j0: Tensor, odds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where the sweeps start: the exact posterior of the gate, or a certain one if no state is possible under both."""
    drawn = _finite(log_sigmoid(odds) + j1.logsumexp(-1, True))
    kept = _finite(log_sigmoid(-odds) + j0.logsumexp(-1, True))
    logit = drawn - kept
    both = ((j1 > POSSIBLE) & (j0 > POSSIBLE)).any(-1, True)
    logit = torch.where(both, logit, torch.full_like(logit, -NEVER).copysign(logit))
    return logit.sigmoid(), (-logit).sigmoid(), (drawn > POSSIBLE) | (kept > POSSIBLE)


def _state(j1: Tensor, j0: Tensor, q: Tensor, hold: Tensor) -> tuple[Tensor, Tensor]:
    """log Q(s) given Q(z), and the log of its normaliser."""
    weights = _times(q, j1) + _times(hold, j0)
    total = weights.logsumexp(-1, True)
    return _finite(weights - total), total


def _times(weight: Tensor, log: Tensor) -> Tensor:
    """weight * log, where any weight of an impossible event is an impossible event."""
    never = log <= POSSIBLE
    product = weight * log.masked_fill(never, 0.0)
    return torch.where(never & (weight > 0), NEVER, product)


def _divergence(weight: Tensor, log_prior: Tensor) -> Tensor:
    """weight * (log weight - log_prior), 0 where the weight is."""
    real = weight > 0
    ratio = weight.where(real, 1.0).log() - log_prior
    return torch.where(real & (log_prior <= POSSIBLE), -NEVER, torch.where(real, weight * ratio, 0.0))


def _finite(log: Tensor) -> Tensor:
    return log.clamp_min(NEVER)
