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
from ...numerics.lanes import BYTES, load, muladd, splat, store
from ...numerics.threads import in_parallel, ranges
from .op import evidence

LANES = BYTES // 8
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
    full = numbers[np.minimum(np.arange(groups * LANES), len(numbers) - 1)].reshape(groups, LANES, -1)
    return np.ascontiguousarray(full.transpose(0, 2, 1)).reshape(groups, *numbers.shape[1:], LANES)


def _groups(seen: np.ndarray, alone: bool) -> list[np.ndarray]:
    """The numbers of the series with the same missing steps; of each one if its inputs are its own."""
    if alone:
        return [np.array([i]) for i in range(len(seen))]
    if (seen == seen[0]).all():
        return [np.arange(len(seen))]
    _, kind = np.unique(np.packbits(seen, axis=1), axis=0, return_inverse=True)
    return [np.flatnonzero(kind.ravel() == k) for k in range(kind.max() + 1)]


@kernel
def sweep(first, last, x, seen, transition, state_noise, emission, observation_noise, initial, diffuse, out):
    """log p(x) [groups, n, LANES] under groups `first` to `last` of parameters; x is [T, n], the emission [S, L]."""
    (n_steps, n), size, varies = x.shape, transition.shape[1], len(emission) > 1
    mean, moved = np.empty((size, n, LANES)), np.empty((size, n, LANES))
    ahead, spread, open_, half = np.empty((4, size, size, LANES))  # covariances before and after an observation
    gain, wide, weights = np.empty((size, LANES)), np.empty((size, LANES)), np.empty((2, LANES))
    scale, free, most, constant, weight = np.empty((5, LANES))
    n_open, fine = np.empty(LANES, np.int64), np.empty(LANES, np.bool_)
    entries, ends, shown = np.empty(size * size, np.int64), np.empty(size + 1, np.int64), np.empty(size, np.int64)
    values = np.empty((size * size, LANES))
    for r in range(first, last):
        list_entries(transition[r], entries, ends, values)
        ahead[:], open_[:], mean[:], most[:], out[r] = initial[r], 0.0, 0.0, 0.0, 0.0
        for i in range(size):
            if diffuse[i]:
                open_[i, i] = 1.0
        n_open[:], fine[:], opens, settled = diffuse.sum(), True, diffuse.sum() > 0, False
        for t in range(n_steps):
            share, opened = emission[t if varies else 0], opens
            if not seen[t]:
                spread[:] = ahead
            else:
                n_shown = list_shown(share, shown)
                if not settled:
                    project(ahead, share, shown[:n_shown], gain, scale)
                    scale += observation_noise[r]
                    if opens:
                        spread[:] = ahead
                        project(open_, share, shown[:n_shown], wide, free)
                        see_diffuse(spread, open_, gain, wide, scale, free, np.dot(share, share), n_open, weights)
                    else:
                        see(ahead, gain, scale, spread)
                    count(scale, free, opens, most, fine, constant, weight)
                    opens = n_open.max() > 0
                follow(mean, x[t], share, shown[:n_shown], gain, constant, weight, out[r])
            move(mean, entries, ends, values, moved)
            mean, moved = moved, mean
            if settled and seen[t]:
                continue
            predict(spread, entries, ends, values, half)
            for i in range(size):
                for w in range(LANES):
                    spread[i, i, w] += state_noise[r, i, w]
            if opens:
                predict(open_, entries, ends, values, half)
            settled = seen[t] and not opened and not varies and is_settled(spread, ahead, fine)
            ahead, spread = spread, ahead
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
        covariance = splat(0.0)
        for m in shown:
            covariance = muladd(splat(share[m]), load(spread[m, i], 0), covariance)
        store(gain[i], 0, covariance)
    variance = splat(0.0)
    for m in shown:
        variance = muladd(splat(share[m]), load(gain[m], 0), variance)
    store(total, 0, variance)


@inlined
def see(ahead, gain, scale, spread):
    """The covariance after an observation; covariances with the states become the gain."""
    inverse = splat(1.0) / load(scale, 0)
    for i in range(len(gain)):
        by = splat(0.0) - load(gain[i], 0) * inverse
        for j in range(i + 1):
            both(spread, i, j, muladd(by, load(gain[j], 0), load(ahead[i, j], 0)))
    for i in range(len(gain)):
        store(gain[i], 0, load(gain[i], 0) * inverse)


@inlined
def see_diffuse(spread, open_, gain, wide, scale, free, length, n_open, weights):
    """The same while diffuse directions are open; `free` becomes 0 in lanes in which the step determines none."""
    for w in range(LANES):
        determines = n_open[w] > 0 and free[w] > DETERMINED * length
        n_open[w] -= determines
        free[w] = free[w] if determines else 0.0
        weights[0, w] = 1.0 / free[w] if determines else 0.0
        weights[1, w] = 0.0 if determines else 1.0 / scale[w]
    freed, usual = load(weights[0], 0), load(weights[1], 0)
    square = freed * freed * load(scale, 0)
    for i in range(len(gain)):
        row, wide_row = load(gain[i], 0), load(wide[i], 0)
        for j in range(i + 1):
            column, wide_column = load(gain[j], 0), load(wide[j], 0)
            crossed = freed * muladd(row, wide_column, wide_row * column)
            change = square * wide_row * wide_column - crossed - usual * row * column
            both(spread, i, j, load(spread[i, j], 0) + change)
            both(open_, i, j, load(open_[i, j], 0) - freed * wide_row * wide_column)
    for i in range(len(gain)):
        store(gain[i], 0, muladd(freed, load(wide[i], 0), usual * load(gain[i], 0)))


@inlined
def both(table, i, j, value):
    """Write two entries of a symmetric table."""
    size = len(table)
    store(table, (i * size + j) * LANES, value)
    store(table, (j * size + i) * LANES, value)


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
def follow(mean, x, share, shown, gain, constant, weight, out):
    """The means after an observation, and its log density."""
    for k in range(len(x)):
        error = splat(x[k])
        for m in shown:
            error = error - splat(share[m]) * load(mean[m, k], 0)
        for i in range(len(gain)):
            store(mean[i, k], 0, muladd(load(gain[i], 0), error, load(mean[i, k], 0)))
        store(out[k], 0, load(out[k], 0) + (load(constant, 0) - load(weight, 0) * error * error))


@inlined
def move(table, entries, ends, values, moved):
    """The transitions times tables."""
    n = table.shape[1]
    for i in range(len(table)):
        combine(table, n * LANES, LANES, entries, ends[i], ends[i + 1], values, moved, i * n, n)


@inlined
def predict(spread, entries, ends, values, half):
    """Covariances between the transitions and their transposes."""
    n = len(spread)
    move(spread, entries, ends, values, half)
    for k in range(n):  # the upper triangle, of which the lower one is the mirror image
        here = k * n + k
        combine(half[k:], LANES, n * LANES, entries, ends[k], ends[k + 1], values, spread, here, n - k)
    for i in range(n):
        for k in range(i):
            store(spread, (i * n + k) * LANES, load(spread, (k * n + i) * LANES))


@inlined
def combine(table, by_entry, by_place, entries, first, last, values, out, place, n):
    """n numbers of the sum of rows or columns of a table, each times its value."""
    if first == last:
        for k in range(place, place + n):
            store(out, k * LANES, splat(0.0))
    for e in range(first, last):
        value, start = load(values, e * LANES), entries[e] * by_entry
        for k in range(n):
            here = (place + k) * LANES
            before = splat(0.0) if e == first else load(out, here)
            store(out, here, muladd(value, load(table, start + k * by_place), before))


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
