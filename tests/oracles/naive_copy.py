r"""Copy chains as Markov chains over pairs $(z_t, s_t)$, by the textbook's recursions.

A pair moves to $(1, s')$ with weight $fresh_t(s')$ and to $(0, s')$ with weight $held_t(s')$ if $s' = s$. The weights
of the first pairs include the belief before the first step. O(K^2) per step, in probabilities;
differentiable for all tables, -inf included. Arguments and results are those of `plain`.
"""

from itertools import pairwise
from typing import Any

import torch
from oracles import naive_markov as markov
from torch import Tensor

Results = tuple[Tensor, ...]


def _pairs(log_initial: Tensor | None, log_fresh: Tensor, log_held: Tensor, lengths: Tensor) -> Results:
    """The tables of the Markov chain: pairs (0, s) come first, then pairs (1, s)."""
    held, first = log_held.expand_as(log_fresh), log_fresh[:, 0]
    before, total = held[:, 0] - torch.inf, torch.zeros_like(first[:, :1])
    if log_initial is not None:
        before, total = log_initial + held[:, 0], log_initial.logsumexp(-1, keepdim=True)
    same = torch.eye(log_fresh.shape[-1], dtype=torch.bool)
    stays = torch.where(same, held[:, 1:].unsqueeze(-2), -torch.inf)
    moves = torch.cat([stays, log_fresh[:, 1:].unsqueeze(-2).expand_as(stays)], -1)
    nothing_seen = log_fresh.new_zeros(*log_fresh.shape[:2], 2 * log_fresh.shape[-1])
    return torch.cat([before, total + first], -1), torch.cat([moves, moves], -2), nothing_seen, lengths


def log_normalizer(*tables: Any) -> Results:
    """log_normalizer [N], failed [N]."""
    return markov.log_normalizer(*_pairs(*tables))


def filter(*tables: Any) -> Results:
    """log_increment [N, T], state [N, T, K], redraw [N, T], failed [N]."""
    _, pair, increment, failed = markov.filter(*_pairs(*tables))
    held, fresh = pair.chunk(2, -1)
    return increment, held + fresh, fresh.sum(-1), failed


def marginals(*tables: Any) -> Results:
    """log_normalizer [N], fresh [N, T, K], held like its table, initial [N, K] (of the table, if any), failed [N]."""
    value, pair, _, failed = markov.posterior(*_pairs(*tables))
    held, fresh = pair.chunk(2, -1)
    start = torch.zeros_like(held[:, 0]) if tables[0] is None else tables[0]
    initial = held[:, 0] + fresh[:, 0].sum(-1, keepdim=True) * start.softmax(-1)
    return value, fresh, held.sum(-1, True) if tables[2].shape[-1] == 1 else held, initial, failed


def smooth(*tables: Any) -> Results:
    """log_normalizer [N], state [N, T, K], redraw [N, T], failed [N]."""
    value, pair, _, failed = markov.posterior(*_pairs(*tables))
    held, fresh = pair.chunk(2, -1)
    return value, held + fresh, fresh.sum(-1), failed


def viterbi(*tables: Any) -> Results:
    """path [N, T], redraw [N, T], log_probability [N], failed [N]."""
    start, moves, nothing, lengths = _pairs(*tables)
    pair, failed = markov.viterbi(start, moves, nothing, lengths)
    K, value = start.shape[-1] // 2, []
    for n, length in enumerate(lengths.tolist()):
        path = pair[n, :length].tolist()
        value.append(start[n, path[0]] + sum(moves[n, t, old, new] for t, (old, new) in enumerate(pairwise(path))))
    return torch.where(pair < 0, -1, pair % K), pair >= K, torch.stack(value), failed


def sample(*arguments: Any) -> Results:
    """path [n, N, T], redraw [n, N, T], failed [N], from uniform numbers [n, N, T, 2], the last argument."""
    *tables, uniform = arguments
    start, moves, _, lengths = _pairs(*tables)
    _, state, _, failed = filter(*tables)
    path, redraw = torch.full(uniform.shape[:3], -1), torch.zeros(uniform.shape[:3], dtype=torch.bool)
    for n, length in enumerate(lengths.tolist()):
        K = state.shape[-1]
        for draw in range(len(uniform)):
            s, drawn = 0, True
            for t in reversed(range(length)):
                gate, place = uniform[draw, n, t]
                if drawn:
                    cumulative = state[n, t].cumsum(-1)
                    s = int((cumulative / cumulative[-1] > place).int().argmax())
                if t > 0:
                    kept, fresh = state[n, t - 1, s] * moves[n, t - 1, s, s].exp(), moves[n, t - 1, s, K + s].exp()
                else:
                    kept, fresh = start[n, s].exp(), start[n, K + s].exp()
                drawn = bool(gate < fresh / (fresh + kept))
                path[draw, n, t], redraw[draw, n, t] = s, drawn
    return path, redraw, failed
