r"""Smooth a chain with a table for every step in probabilities: one exponential for each entry of a table.

The forward sweep writes the probabilities of each table, divided by its largest, where the posterior of its moves will
be, so that the backward sweep needs no exponentials:

$$a_{t+1}(j) \propto l_{t+1}(j) \sum_i a_t(i) A_t(i, j), \quad v_t(i) = \sum_j A_t(i, j)\, w_{t+1}(j), \quad
w_t \propto l_t v_t, \qquad P(s_t = i, s_{t+1} = j \mid x) = a_t(i) A_t(i, j)\, w_{t+1}(j) / n_t$$

with $n_t = \sum_i a_t(i) v_t(i)$. Numbers smaller than `TINY` are dropped. As in `chains.cpu_sweeps`, results are right
to rounding if all normalisers and all n_t exceed `LEAST`; other sequences are reported, for `cpu_log`.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...numerics.compilation import exact_kernel, inlined
from ...numerics.elementary import exp
from ...numerics.lanes import load_some, splat, store_some, width
from ...numerics.threads import in_parallel, ranges
from ..cpu_sweeps import LEAST, TINY
from .cpu_scaled import Tables

DROPPED, LOWEST = TINY[torch.float64], LEAST[torch.float64]


def smooth_tables(tables: Tables) -> tuple[np.ndarray, tuple[Tensor, ...]]:
    """Whether all digits were kept, by sequence; log p(x), P(s_t | x) and P(s_t, s_t+1 | x); tables of float64."""
    n, (n_moves, k) = len(tables.lengths), tables.log_transition.shape[1:3]
    state = torch.zeros(n, tables.log_likelihood.shape[1], k, dtype=torch.float64)
    pairs, total = torch.zeros(n, n_moves, k, k, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    certain = np.ones(n, np.uint8)
    arrays = *(table.view(-1).numpy() for table in (state, pairs, total)), certain
    in_parallel([partial(_smooth, part, tables, *arrays) for part in ranges(n)])
    return certain == 1, (total, state, pairs)


@inlined
def _top(table: Any, at: int, n: int) -> Any:
    """The largest of n numbers."""
    top = table[at]
    for e in range(at + 1, at + n):
        top = max(top, table[e])
    return top


@inlined
def _normalised(weight: Any, at: int, k: int) -> Any:
    """Divide k numbers by their sum, without those that are too small; the sum."""
    norm = 0.0
    for j in range(at, at + k):
        weight[j] = weight[j] if weight[j] >= DROPPED else 0.0
        norm += weight[j]
    for j in range(at, at + k):
        weight[j] /= norm
    return norm


@inlined
def _exponentials(logs: Any, at: int, top: Any, out: Any, to: int, n: int) -> None:
    """out[to:] <- exp(logs[at:] - top), n numbers."""
    for e in range(0, n, width(logs)):
        store_some(out, to + e, exp(load_some(logs, at + e, n - e, -np.inf) - splat(top)), n - e)


@exact_kernel
def _smooth(sequences: Any, tables: Any, state: Any, pairs: Any, total: Any, certain: Any) -> None:
    n_tables, (n_steps, k) = tables.log_transition.shape[1], tables.log_likelihood.shape[1:]
    log_likelihood, log_transition = tables.log_likelihood.reshape(-1), tables.log_transition.reshape(-1)
    log_initial = tables.log_initial.reshape(-1)
    size = k * k
    message, weight, likelihood = np.empty(k), np.empty(k), np.empty(k)
    for b in range(sequences[0], sequences[1]):
        length, log_total, sure = tables.lengths[b], 0.0, True
        for t in range(length):
            at, row = (b * n_steps + t) * k, (tables.likelihood_of[b] * n_steps + t) * k
            if t == 0:
                begin = tables.initial_of[b] * k
                top = _top(log_initial, begin, k)
                _exponentials(log_initial, begin, top, message, 0, k)
            else:
                where, to = (tables.transition_of[b] * n_tables + t - 1) * size, (b * n_tables + t - 1) * size
                top = _top(log_transition, where, size)
                _exponentials(log_transition, where, top, pairs, to, size)
                for j in range(k):
                    message[j] = 0.0
                for i in range(k):
                    for j in range(k):
                        message[j] += state[at - k + i] * pairs[to + i * k + j]
            shift = _top(log_likelihood, row, k)
            _exponentials(log_likelihood, row, shift, likelihood, 0, k)
            for j in range(k):
                state[at + j] = message[j] * likelihood[j]
            norm = _normalised(state, at, k)
            if not norm >= LOWEST:
                sure = False
                break
            log_total += np.log(norm) + (shift + top)
        for t in range(length - 1, -1, -1):
            if not sure:
                break
            at, row = (b * n_steps + t) * k, (tables.likelihood_of[b] * n_steps + t) * k
            if t + 1 == length:
                for i in range(k):
                    message[i] = 1.0
            else:
                to, norm = (b * n_tables + t) * size, 0.0
                for i in range(k):
                    message[i] = 0.0
                    for j in range(k):
                        message[i] += pairs[to + i * k + j] * weight[j]
                    norm += state[at + i] * message[i]
                if not norm >= LOWEST:
                    sure = False
                    break
                for i in range(k):
                    belief = state[at + i] / norm
                    for j in range(k):
                        pairs[to + i * k + j] *= belief * weight[j]
                    state[at + i] = belief * message[i]
            shift = _top(log_likelihood, row, k)
            _exponentials(log_likelihood, row, shift, likelihood, 0, k)
            for j in range(k):
                weight[j] = likelihood[j] * message[j]
            if not _normalised(weight, 0, k) >= LOWEST:
                sure = False
        total[b] = log_total
        certain[b] = sure and np.isfinite(log_total)
