"""GPB filters and Kim's smoother on the CPU: fused over time, threads over sequences; see `plain`."""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...numerics.compilation import kernel
from ...numerics.threads import in_parallel, ranges, sum_of_steps
from . import cpu_moves, op  # noqa: F401  what registers the moves
from .cpu_back import back
from .cpu_steps import Arrays, arrays_of, choose, log_sum, merge, observe, predict, put, work_of
from .plain import Belief, Filtered, Smoothed
from .tables import Tables

_MIN_WORK = 1 << 15  # numbers of covariances that repay a second thread


class Room(NamedTuple):
    """The working memory of a filter step: its densities, and those for the next regimes."""

    log_weight: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    fan: np.ndarray
    fan_mean: np.ndarray
    fan_covariance: np.ndarray
    met_mean: np.ndarray
    met_covariance: np.ndarray


def _room_of(n_made: int, n_fan: int, n: int) -> Room:
    new = lambda size: (np.empty(size), np.zeros((size, n)), np.zeros((size, n, n)))
    return Room(*new(n_made), *new(n_fan), np.empty(n), np.empty((n, n)))


@kernel
def _filter(
    part, room, work, x, lengths, order, p, recurrent, going_on, increment, state, lagged, mean, covariance, w, m, v,
    failed,
):  # fmt: skip
    k, n = p.emission.shape[0], p.emission.shape[2]
    n_kept, n_densities, keeps = w.shape[2], m.shape[2], w.shape[1] > 1
    log_weight, means, covariances, fan, fan_mean, fan_covariance, met_mean, met_covariance = room
    n_made = log_weight.shape[0]
    for s in range(part[0], part[1]):
        for t in range(lengths[s]):
            last, now = (t - 1, t) if keeps else (0, 0)
            if t == 0 and not going_on:
                for h in range(n_made):
                    log_weight[h] = p.log_initial[h] if h < k else -np.inf
                    put(p.initial_mean[h % k], p.initial_covariance[h % k], means[h], covariances[h])
            else:
                for c in range(n_kept):
                    here, first = min(c, n_densities - 1), c * k
                    if w[s, last, c] == -np.inf:
                        for h in range(first, first + k):
                            fan[h] = -np.inf
                        continue
                    if recurrent is None:
                        for h in range(first, first + k):
                            fan[h] = p.log_transition[c % k, h - first]
                            for i in range(n):
                                fan_mean[h, i] = m[s, last, here, i]
                                for j in range(n):
                                    fan_covariance[h, i, j] = v[s, last, here, i, j]
                    else:
                        new = slice(first, first + k)
                        choose(
                            p,
                            c % k,
                            m[s, last, here],
                            v[s, last, here],
                            fan[new],
                            fan_mean[new],
                            fan_covariance[new],
                        )
                    for h in range(first, first + k):
                        fan[h] += w[s, last, c]
                for h in range(n_made):
                    z = h % k
                    if order == 1:
                        log_weight[h] = merge(fan, z, k, n_kept, fan_mean, fan_covariance, met_mean, met_covariance)
                        predict(p, z, met_mean, met_covariance, work, means[h], covariances[h])
                    else:
                        log_weight[h] = fan[h]
                        predict(p, z, fan_mean[h], fan_covariance[h], work, means[h], covariances[h])
            for h in range(n_made):
                if log_weight[h] > -np.inf:
                    log_weight[h] += observe(p, h % k, x[s, t], means[h], covariances[h], work)
            total = log_sum(log_weight, n_made)
            if not abs(total) < np.inf:
                failed[s] = t
                break
            increment[s, t] = total
            for h in range(n_made):
                log_weight[h] -= total
                share = math.exp(log_weight[h])
                state[s, t, h % k] += share
                place, digits = t, h
                for age in range(order):
                    if place >= 0 and (age == order - 1 or t == lengths[s] - 1):
                        lagged[s, place, digits % k] += share
                    digits //= k
                    place -= 1
            merge(log_weight, 0, 1, n_made, means, covariances, mean[s, t], covariance[s, t])
            if order == 1:
                for h in range(n_made):
                    w[s, now, h] = log_weight[h]
                put(mean[s, t], covariance[s, t], m[s, now, 0], v[s, now, 0])
            else:
                for c in range(n_kept):
                    w[s, now, c] = merge(log_weight, c, n_kept, k, means, covariances, m[s, now, c], v[s, now, c])


class _Run(NamedTuple):
    """A finished filter, with the tables for the next stage."""

    arrays: Arrays
    ends: np.ndarray
    pieces: list[tuple[int, int]]
    results: list[Tensor]
    kept: Belief  # [N, S, ...], after each step or the last alone
    failed: Tensor

    @property
    def recurrent(self) -> bool | None:
        """None if there are no regressions; then their functions are not compiled."""
        return True if len(self.arrays.log_weight) else None


def _run(x: Tensor, lengths: Tensor, tables: Tables, order: int, belief: Belief | None, n_kept: int) -> _Run:
    (n_sequences, n_steps, _), k, n = x.shape, tables.n_regimes, tables.n_latent
    arrays = arrays_of(tables)
    histories, densities = k ** max(order - 1, 1), k ** (order - 1)
    kept = Belief(
        x.new_zeros(n_sequences, n_kept, histories),
        x.new_zeros(n_sequences, n_kept, densities, n),
        x.new_zeros(n_sequences, n_kept, densities, n, n),
    )
    if belief is not None:
        for table, before in zip(kept, belief, strict=True):
            table[:, 0] = before
    results = [x.new_zeros(n_sequences, n_steps, *size) for size in ((), (k,), (k,), (n,), (n, n))]
    work = n_steps * k**order * n**2
    pieces = ranges(n_sequences, max(1, -(-_MIN_WORK // max(1, work))))
    run = _Run(arrays, lengths.contiguous().numpy(), pieces, results, kept, torch.full_like(lengths, -1))
    outputs = [table.numpy() for table in (*results, *kept, run.failed)]
    first = x.contiguous().numpy(), run.ends, order, run.arrays, run.recurrent, belief is not None
    rooms = lambda: (_room_of(k**order, histories * k, n), work_of(x.shape[-1], n))
    in_parallel([partial(_filter, part, *rooms(), *first, *outputs) for part in pieces])
    return run


@op.filter.kernel("cpu")
def filter(x: Tensor, lengths: Tensor, tables: Tables, order: int, belief: Belief | None) -> Filtered:
    run = _run(x, lengths, tables, order, belief, 1)
    increment, state, lagged, mean, covariance = run.results
    last = Belief(*(table.squeeze(1) for table in run.kept))
    return Filtered(increment, state, lagged, mean, covariance, last, run.failed)


@op.smooth.kernel("cpu")
def smooth(x: Tensor, lengths: Tensor, tables: Tables) -> Smoothed:
    (n_sequences, n_steps, _), k = x.shape, tables.n_regimes
    run = _run(x, lengths, tables, 2, None, n_steps)
    increment, state, _, mean, covariance = run.results
    pairs = x.new_zeros(n_sequences, n_steps - 1, k, k)
    if not bool((run.failed >= 0).any()):
        outputs = [table.numpy() for table in (*run.kept, state, pairs, mean, covariance)]
        first = run.ends, run.arrays, run.recurrent
        in_parallel([partial(back, part, work_of(1, tables.n_latent), *first, *outputs) for part in run.pieces])
    return Smoothed(sum_of_steps(increment), state, pairs, mean, covariance, run.failed)
