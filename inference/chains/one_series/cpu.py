r"""The kernel: the Kalman filter with covariances, and with the exact diffuse start of Koopman 1997.

With $M = P h$, $F = h^\top M + r$ and $M_\infty = P_\infty h$, $F_\infty = h^\top M_\infty$, an observation leaves

$$a + M_\infty v / F_\infty, \quad P_\infty - M_\infty M_\infty^\top / F_\infty, \quad
P + M_\infty M_\infty^\top F / F_\infty^2 - (M M_\infty^\top + M_\infty M^\top) / F_\infty$$

and counts $-\frac12 \log 2 \pi F_\infty$ while $F_\infty > 0$; then $a + M v / F$, $P - M M^\top / F$, and
$-\frac12 (\log 2 \pi F + v^2 / F)$. Series with the same missing steps and inputs share all covariances. These stop
when they no longer change (`SETTLED`), until a step is missing. Zeros of the transition and of the emission are left
out. `LANES` parameters run side by side in the lanes of vectors: the last axis of every table.
"""

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ...numerics.compilation import inlined, kernel
from ...numerics.threads import in_parallel, ranges
from .op import evidence

LANES = 8
LOG_2PI = math.log(2 * math.pi)
SETTLED = 1e-12  # change of a covariance in a step, in standard deviations of its entries
DETERMINED = 1e-10  # diffuse variance of an observation, relative to that of its emission, which counts as 0
SINGULAR = 1e-14  # variance of an observation, relative to the greatest so far, which counts as 0


@evidence.kernel("cpu", takes=lambda x, *tables: x.dtype == torch.float64 and tables[0].shape[0] > 0 and len(x) > 0)
def of_series(
    x: Tensor,
    transition: Tensor,
    state_noise: Tensor,
    emission: Tensor,
    observation_noise: Tensor,
    initial: Tensor,
    diffuse: Tensor,
) -> Tensor:
    numbers, n = x.numpy(), len(transition)
    seen, by_lane = ~np.isnan(numbers), (transition, state_noise, observation_noise, initial)
    moves, noise, observed, start = map(_in_lanes, by_lane)
    columns = np.where(seen, numbers, 0.0).T
    total = np.empty((len(moves), len(numbers), LANES))
    for members in _groups(seen, len(emission) > 1):
        rows = np.ascontiguousarray(emission[members[0] if len(emission) > 1 else 0].numpy())
        series, out = np.ascontiguousarray(columns[:, members]), np.empty((len(moves), len(members), LANES))
        inputs = series, seen[members[0]], moves, noise, rows, observed, start, diffuse.numpy(), out
        in_parallel([partial(sweep, *part, *inputs) for part in ranges(len(moves))])
        total[:, members] = out
    return torch.from_numpy(np.ascontiguousarray(total.transpose(0, 2, 1).reshape(-1, len(numbers))[:n]))


def _in_lanes(table: Tensor) -> np.ndarray:
    """Parameters [R, ...] as [groups, ..., LANES]; the last group is filled up with the last parameters."""
    numbers = table.numpy()
    groups = -(-len(numbers) // LANES)
    full = numbers[np.minimum(np.arange(groups * LANES), len(numbers) - 1)]
    return np.ascontiguousarray(np.moveaxis(full.reshape(groups, LANES, *numbers.shape[1:]), 1, -1))


def _groups(seen: np.ndarray, alone: bool) -> list[np.ndarray]:
    """The numbers of the series with the same missing steps; of each one if its inputs are its own."""
    if alone or len(seen) == 1:
        return [np.array([i]) for i in range(len(seen))]
    _, kind = np.unique(seen, axis=0, return_inverse=True)
    return [np.flatnonzero(kind.ravel() == k) for k in range(kind.max() + 1)]


@kernel
def sweep(first, last, x, seen, transition, state_noise, emission, observation_noise, initial, diffuse, out):
    """log p(x) [groups, n, LANES] under groups `first` to `last` of parameters; x is [T, n], the emission [S, L]."""
    (n_steps, n), size, varies = x.shape, transition.shape[1], len(emission) > 1
    mean, moved, error = np.empty((size, n, LANES)), np.empty((size, n, LANES)), np.empty((n, LANES))
    spread, open_, before, half = np.empty((4, size, size, LANES))
    gain, wide = np.empty((2, size, LANES))
    scale, free, most, constant, weight = np.empty((5, LANES))
    n_open, fine = np.empty(LANES, np.int64), np.empty(LANES, np.bool_)
    entries, ends, shown = np.empty(size * size, np.int64), np.empty(size + 1, np.int64), np.empty(size, np.int64)
    values = np.empty((size * size, LANES))
    for r in range(first, last):
        list_entries(transition[r], entries, ends, values)
        spread[:], open_[:], before[:], mean[:], most[:], out[r] = initial[r], 0.0, math.inf, 0.0, 0.0, 0.0
        for i in range(size):
            if diffuse[i]:
                open_[i, i] = 1.0
        n_open[:], fine[:], opens, settled = diffuse.sum(), True, diffuse.sum() > 0, False
        for t in range(n_steps):
            share = emission[t if varies else 0]
            if seen[t]:
                n_shown = list_shown(share, shown)
                if not settled:
                    project(spread, share, shown[:n_shown], gain, scale)
                    scale += observation_noise[r]
                    if opens:
                        project(open_, share, shown[:n_shown], wide, free)
                        see_diffuse(spread, open_, gain, wide, scale, free, np.dot(share, share), n_open)
                    else:
                        see(spread, gain, scale, wide)
                    count(scale, free, opens, most, fine, constant, weight)
                    opens = n_open.max() > 0
                follow(mean, x[t], share, shown[:n_shown], gain, error)
                for k in range(n):
                    for w in range(LANES):
                        out[r, k, w] += constant[w] - weight[w] * error[k, w] * error[k, w]
            move(mean, entries, ends, values, moved)
            mean, moved = moved, mean
            if settled and seen[t]:
                continue
            if settled:  # of a missing step the covariance before it moves on
                spread[:] = before
            settled = False
            predict(spread, entries, ends, values, half)
            for i in range(size):
                for w in range(LANES):
                    spread[i, i, w] += state_noise[r, i, w]
            if opens:
                predict(open_, entries, ends, values, half)
            elif not varies:
                settled = seen[t] and is_settled(spread, before, fine)
                before[:] = spread
        for k in range(n):
            for w in range(LANES):
                if not (fine[w] and n_open[w] == 0 and math.isfinite(out[r, k, w])):
                    out[r, k, w] = -math.inf


@inlined
def list_entries(matrix, entries, ends, values):
    """The entries of matrices that are not 0 in some lane: columns and values, row by row, and where each row ends."""
    n = 0
    for i in range(len(matrix)):
        ends[i] = n
        for j in range(len(matrix)):
            some = False
            for w in range(LANES):
                values[n, w] = matrix[i, j, w]
                some = some or matrix[i, j, w] != 0.0
            if some:
                entries[n] = j
                n += 1
    ends[len(matrix)] = n


@inlined
def list_shown(share, shown):
    """How many entries of an emission are not 0, which are listed."""
    n = 0
    for i in range(len(share)):
        if share[i] != 0.0:
            shown[n] = i
            n += 1
    return n


@inlined
def project(spread, share, shown, gain, total):
    """The variance that an emission sees; its covariances with the states become the gain."""
    for i in range(len(gain)):
        for w in range(LANES):
            gain[i, w] = 0.0
    for m in shown:
        for i in range(len(gain)):
            for w in range(LANES):
                gain[i, w] += share[m] * spread[m, i, w]
    for w in range(LANES):
        total[w] = 0.0
    for m in shown:
        for w in range(LANES):
            total[w] += share[m] * gain[m, w]


@inlined
def see(spread, gain, scale, wide):
    """The covariance after an observation; covariances with the states become the gain, `wide` too."""
    for i in range(len(gain)):
        for w in range(LANES):
            wide[i, w] = gain[i, w] / scale[w]
    for i in range(len(gain)):
        for j in range(i + 1):
            for w in range(LANES):
                spread[i, j, w] -= wide[i, w] * gain[j, w]
    mirror(spread)
    for i in range(len(gain)):
        for w in range(LANES):
            gain[i, w] = wide[i, w]


@inlined
def see_diffuse(spread, open_, gain, wide, scale, free, length, n_open):
    """The same while diffuse directions are open; `free` becomes 0 in lanes in which the step determines none."""
    for w in range(LANES):
        if n_open[w] > 0 and free[w] > DETERMINED * length:
            n_open[w] -= 1
            inverse = 1.0 / free[w]
            for i in range(len(gain)):
                for j in range(len(gain)):
                    crossed = gain[i, w] * wide[j, w] + wide[i, w] * gain[j, w]
                    spread[i, j, w] += inverse * (inverse * scale[w] * wide[i, w] * wide[j, w] - crossed)
                    open_[i, j, w] -= inverse * wide[i, w] * wide[j, w]
            for i in range(len(gain)):
                gain[i, w] = inverse * wide[i, w]
        else:
            free[w] = 0.0
            for i in range(len(gain)):
                for j in range(len(gain)):
                    spread[i, j, w] -= gain[i, w] * gain[j, w] / scale[w]
            for i in range(len(gain)):
                gain[i, w] /= scale[w]


@inlined
def count(scale, free, opens, most, fine, constant, weight):
    """The constant and the weight of a squared error in the log density of an observation."""
    for w in range(LANES):
        if opens and free[w] > 0.0:
            constant[w], weight[w] = -0.5 * (LOG_2PI + math.log(free[w])), 0.0
        else:
            most[w] = max(most[w], scale[w])
            if not scale[w] > SINGULAR * most[w]:
                fine[w] = False
            constant[w], weight[w] = -0.5 * (LOG_2PI + math.log(scale[w])), 0.5 / scale[w]


@inlined
def follow(mean, x, share, shown, gain, error):
    """Errors of prediction, and the means after an observation."""
    for k in range(len(x)):
        for w in range(LANES):
            error[k, w] = x[k]
    for m in shown:
        for k in range(len(x)):
            for w in range(LANES):
                error[k, w] -= share[m] * mean[m, k, w]
    for i in range(len(gain)):
        for k in range(len(x)):
            for w in range(LANES):
                mean[i, k, w] += gain[i, w] * error[k, w]


@inlined
def move(table, entries, ends, values, moved):
    """The transitions times tables."""
    for i in range(len(table)):
        first = ends[i]
        if first == ends[i + 1]:
            moved[i] = 0.0
            continue
        j = entries[first]
        for k in range(table.shape[1]):
            for w in range(LANES):
                moved[i, k, w] = values[first, w] * table[j, k, w]
        for e in range(first + 1, ends[i + 1]):
            j = entries[e]
            for k in range(table.shape[1]):
                for w in range(LANES):
                    moved[i, k, w] += values[e, w] * table[j, k, w]


@inlined
def predict(spread, entries, ends, values, half):
    """Covariances between the transitions and their transposes."""
    move(spread, entries, ends, values, half)
    for i in range(len(half)):
        for k in range(i + 1):
            for w in range(LANES):
                spread[i, k, w] = 0.0
            for e in range(ends[k], ends[k + 1]):
                j = entries[e]
                for w in range(LANES):
                    spread[i, k, w] += values[e, w] * half[i, j, w]
    mirror(spread)


@inlined
def mirror(table):
    """The upper triangle becomes that of the lower one."""
    for i in range(len(table)):
        for j in range(i):
            for w in range(LANES):
                table[j, i, w] = table[i, j, w]


@inlined
def is_settled(spread, before, fine):
    """Whether covariances are those of the step before."""
    for i in range(len(spread)):
        for j in range(i + 1):
            for w in range(LANES):
                bound = SETTLED * math.sqrt(spread[i, i, w] * spread[j, j, w])
                if fine[w] and not abs(spread[i, j, w] - before[i, j, w]) <= bound:
                    return False
    return True
