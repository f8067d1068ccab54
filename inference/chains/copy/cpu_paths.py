"""The best path and random paths of copy chains as numba kernels."""

import math

import numpy as np

from ...numerics.compilation import kernel
from ...numerics.small_matrices import copy_row
from .cpu_weights import highest


@kernel
def _better(log_fresh, log_held, t, best, offset, drawn):
    """One step of the best paths, whose log-weights are `best - offset`, and the log-weight of the best of them."""
    narrow = log_held.shape[1] < log_fresh.shape[1]
    top = -np.inf
    for s in range(log_fresh.shape[1]):
        kept = log_held[t, 0 if narrow else s] + (best[s] - offset)
        fresh = np.float64(log_fresh[t, s])
        drawn[t, s] = fresh > kept
        best[s] = highest(fresh, kept)
        top = highest(top, best[s])
    return top


@kernel
def viterbi_range(n0, n1, inputs, path, redraw, gain, failed):
    """Best paths and their redraws of sequences n0..n1, and the log-weight that each step adds."""
    steps, states = inputs.log_fresh.shape[1:]
    best, ends, drawn = np.empty(states), np.empty(steps, np.int64), np.empty((steps, states), np.bool_)
    for i in range(n0, n1):
        log_fresh, log_held = inputs.log_fresh[i], inputs.log_held[i]
        copy_row(inputs.log_start[i], best)
        top, last = 0.0, inputs.lengths[i] - 1
        for t in range(last + 1):
            top = _better(log_fresh, log_held, t, best, top, drawn)
            if not -np.inf < top < np.inf:
                failed[i] = t
                break
            gain[i, t] = top
            s = 0
            while best[s] != top:
                s += 1
            ends[t] = s
        if failed[i] >= 0:
            continue
        s = ends[last]
        for t in range(last, -1, -1):
            path[i, t], redraw[i, t] = s, drawn[t, s]
            if drawn[t, s] and t > 0:
                s = ends[t - 1]


@kernel
def sample_range(n0, n1, inputs, filtered, uniform, path, redraw):
    """Draws for sequences n0..n1 from filtered beliefs, with uniform numbers [n, N, T, 2]."""
    log_fresh, log_held, start, state = inputs.log_fresh, inputs.log_held, inputs.start, filtered.state
    n, states = len(uniform), log_fresh.shape[2]
    narrow = log_held.shape[2] < states
    cumulative, current, drawn = np.empty(states), np.empty(n, np.int64), np.empty(n, np.bool_)
    for i in range(n0, n1):
        if filtered.failed[i] >= 0:
            continue
        drawn[:] = True
        for t in range(inputs.lengths[i] - 1, -1, -1):
            if drawn.any():
                total = 0.0
                for s in range(states):
                    total += state[i, t, s]
                    cumulative[s] = total
                cumulative /= total
            for j in range(n):
                if drawn[j]:
                    current[j] = np.searchsorted(cumulative, uniform[j, i, t, 1], side="right")
                s = current[j]
                before = state[i, t - 1, s] if t > 0 else start[i, s]
                odds = 0.0
                if before > 0.0:
                    odds = before * math.exp(log_held[i, t, 0 if narrow else s] - log_fresh[i, t, s])
                drawn[j] = uniform[j, i, t, 0] < 1.0 / (1.0 + odds)
                path[j, i, t], redraw[j, i, t] = s, drawn[j]
