"""The steps of GPB filters on the CPU, one belief at a time; each is a function of `plain` or `tables`."""

import math
from typing import NamedTuple

import numpy as np

from ...numerics.compilation import inlined, kernel, lean_kernel
from ...numerics.small_matrices import multiply
from ..linear_gaussian.plain import LOG_2PI
from .tables import Tables, grid

_NONE = 1e-12  # of a direction's length, that others explain but for rounding


class Arrays(NamedTuple):
    """The tables, and the points at which regressions are evaluated; none where there are no regressions."""

    log_initial: np.ndarray
    log_transition: np.ndarray
    initial_mean: np.ndarray
    initial_covariance: np.ndarray
    transition: np.ndarray
    transition_offset: np.ndarray
    state_noise: np.ndarray
    emission: np.ndarray
    emission_offset: np.ndarray
    observation_noise: np.ndarray
    recurrence: np.ndarray
    recurrence_offset: np.ndarray
    nodes: np.ndarray
    log_weight: np.ndarray


def arrays_of(tables: Tables, *, regressions: bool = True) -> Arrays:
    """The points, too, if regressions are to be evaluated."""
    (k, _, n), x = tables.emission.shape, tables.emission
    recurrence, offset = tables.recurrence, tables.recurrence_offset
    if recurrence is None or offset is None:
        recurrence, offset = x.new_zeros(0, n), x.new_zeros(k, 0)
    nodes, weights = grid(min(k - 1, n), x) if regressions and len(recurrence) else (x.new_zeros(0, 0), x.new_zeros(0))
    all_tables = (*tables[:10], recurrence, offset, nodes, weights)
    return Arrays(*(table.contiguous().numpy() for table in all_tables))


class Work(NamedTuple):
    """What a step of L latents and F rows of observations writes over."""

    seen: np.ndarray  # [F], the rows that are seen
    shown: np.ndarray  # [F, L]
    chol: np.ndarray  # [F, F], of the innovation's covariance
    gap: np.ndarray  # [F], the innovation, whitened
    gain: np.ndarray  # [L, F]
    rest: np.ndarray  # [L, L], 1 less the gain times the emission
    half: np.ndarray  # [L, L]


def work_of(rows: int, n: int) -> Work:
    square, wide = np.empty((rows, rows)), np.empty((rows, n))
    return Work(
        np.empty(rows, np.int64), wide, square, np.empty(rows), np.empty((n, rows)), np.eye(n), np.empty((n, n))
    )


@lean_kernel
def put(mean, covariance, new_mean, new_covariance):
    """Copy a normal density."""
    for i in range(mean.shape[0]):
        new_mean[i] = mean[i]
        for j in range(mean.shape[0]):
            new_covariance[i, j] = covariance[i, j]


@lean_kernel
def root_of(matrix, factor):
    """The lower Cholesky factor of a matrix that may be singular, a column of 0 for each direction it has not."""
    n = matrix.shape[0]
    for j in range(n):
        pivot = matrix[j, j]
        for k in range(j):
            pivot -= factor[j, k] * factor[j, k]
        root = math.sqrt(pivot) if pivot > _NONE * matrix[j, j] else 0.0
        for i in range(n):
            value = 0.0
            if i == j:
                value = root
            elif i > j and root > 0.0:
                value = matrix[i, j]
                for k in range(j):
                    value -= factor[i, k] * factor[j, k]
                value /= root
            factor[i, j] = value


@inlined
def log_sum(values, n):
    """log sum exp of the first n."""
    top = -np.inf
    for i in range(n):
        top = max(top, values[i])
    if top == -np.inf:
        return top
    total = 0.0
    for i in range(n):
        total += math.exp(values[i] - top)
    return top + math.log(total)


@lean_kernel
def merge(log_weight, first, step, n, mean, covariance, centre, spread):
    """The log-weight of n densities from `first` on, `step` apart, and their mean and covariance, 0 without weight."""
    size, top, total = centre.shape[0], -np.inf, 0.0
    for i in range(n):
        top = max(top, log_weight[first + step * i])
    for a in range(size):
        centre[a] = 0.0
        for b in range(size):
            spread[a, b] = 0.0
    if top == -np.inf:
        return top
    for i in range(n):
        total += math.exp(log_weight[first + step * i] - top)
    log_total = top + math.log(total)
    for i in range(n):
        h = first + step * i
        share = math.exp(log_weight[h] - log_total)
        for a in range(size):
            centre[a] += share * mean[h, a]
    for i in range(n):
        h = first + step * i
        share = math.exp(log_weight[h] - log_total)
        if share > 0.0:
            for a in range(size):
                gap = mean[h, a] - centre[a]
                for b in range(a + 1):
                    spread[a, b] += share * (covariance[h, a, b] + gap * (mean[h, b] - centre[b]))
    for a in range(size):
        for b in range(a):
            spread[b, a] = spread[a, b]
    return log_total


@lean_kernel
def predict(p, z, mean, covariance, work, new_mean, new_covariance):
    """The move into regime z."""
    n, a, half = mean.shape[0], p.transition, work.half
    for i in range(n):
        value = p.transition_offset[z, i]
        for j in range(n):
            value += a[z, i, j] * mean[j]
            total = 0.0
            for k in range(n):
                total += a[z, i, k] * covariance[k, j]
            half[i, j] = total
        new_mean[i] = value
    for i in range(n):
        for j in range(i + 1):
            value = p.state_noise[z, i, j]
            for k in range(n):
                value += half[i, k] * a[z, j, k]
            new_covariance[i, j] = value
            new_covariance[j, i] = value


@lean_kernel
def update(x, c, offset, noise, mean, covariance, work):
    """Mean and covariance in place; log p(x), NaN where there is no such density."""
    n, n_seen = mean.shape[0], 0
    seen, shown, chol, gap, gain, rest, half = work
    for f in range(x.shape[0]):
        if not math.isnan(x[f]):
            seen[n_seen] = f
            n_seen += 1
    if n_seen == 0:
        for i in range(n):
            for j in range(n):
                rest[i, j] = 1.0 if i == j else 0.0
        return 0.0
    for i in range(n_seen):
        f, value = seen[i], x[seen[i]] - offset[seen[i]]
        for j in range(n):
            value -= c[f, j] * mean[j]
            total = 0.0
            for k in range(n):
                total += c[f, k] * covariance[k, j]
            shown[i, j] = total
        gap[i] = value
    log_density = -0.5 * LOG_2PI * n_seen
    for i in range(n_seen):
        for j in range(i + 1):
            value = noise[seen[i], seen[j]]
            for k in range(n):
                value += shown[i, k] * c[seen[j], k]
            for k in range(j):
                value -= chol[i, k] * chol[j, k]
            if i > j:
                chol[i, j] = value / chol[j, j]
            elif value > 0.0 and value < np.inf:
                chol[i, i] = math.sqrt(value)
            else:
                return np.nan
        white = gap[i]
        for k in range(i):
            white -= chol[i, k] * gap[k]
        gap[i] = white / chol[i, i]
        log_density -= 0.5 * gap[i] * gap[i] + math.log(chol[i, i])
    for j in range(n):
        for i in range(n_seen):
            value = shown[i, j]
            for k in range(i):
                value -= chol[i, k] * gain[j, k]
            gain[j, i] = value / chol[i, i]
        for i in range(n_seen):
            mean[j] += gain[j, i] * gap[i]
        for i in range(n_seen - 1, -1, -1):
            value = gain[j, i]
            for k in range(i + 1, n_seen):
                value -= chol[k, i] * gain[j, k]
            gain[j, i] = value / chol[i, i]
    for i in range(n):
        for j in range(n):
            value = 1.0 if i == j else 0.0
            for k in range(n_seen):
                value -= gain[i, k] * c[seen[k], j]
            rest[i, j] = value
    for i in range(n):
        for j in range(n):
            value = 0.0
            for k in range(n):
                value += rest[i, k] * covariance[k, j]
            half[i, j] = value
    for i in range(n):
        for k in range(n_seen):
            value = 0.0
            for f in range(n_seen):
                value += gain[i, f] * noise[seen[f], seen[k]]
            shown[k, i] = value
    for i in range(n):
        for j in range(i + 1):
            value = 0.0
            for k in range(n):
                value += half[i, k] * rest[j, k]
            for k in range(n_seen):
                value += shown[k, i] * gain[j, k]
            covariance[i, j] = value
            covariance[j, i] = value
    return log_density


@lean_kernel
def observe(p, z, x, mean, covariance, work):
    """`update` in regime z."""
    return update(x, p.emission[z], p.emission_offset[z], p.observation_noise[z], mean, covariance, work)


@lean_kernel
def _span(slopes, directions, column):
    """Orthonormal columns that span the rows of `slopes`, by Gram-Schmidt, twice for its rounding; 0 beyond them."""
    j, n = slopes.shape
    n_found = 0
    for i in range(j):
        if n_found == directions.shape[1]:
            break
        length, length_left = 0.0, 0.0
        for a in range(n):
            column[a] = slopes[i, a]
            length += column[a] * column[a]
        for _ in range(2):
            for e in range(n_found):
                share = 0.0
                for a in range(n):
                    share += directions[a, e] * column[a]
                for a in range(n):
                    column[a] -= share * directions[a, e]
        for a in range(n):
            length_left += column[a] * column[a]
        if length_left > _NONE * _NONE * length and length_left > 0.0:
            for a in range(n):
                directions[a, n_found] = column[a] / math.sqrt(length_left)
            n_found += 1


@lean_kernel
def _break_sticks(p, centre, triangle, pieces):
    """The log-weight of each node times the probability of each regime there, [J + 1, nodes]."""
    j, d = triangle.shape
    for q in range(pieces.shape[1]):
        log_left = p.log_weight[q]
        for i in range(j):
            u = centre[i]
            for e in range(d):
                u += triangle[i, e] * p.nodes[q, e]
            soft = math.log1p(math.exp(-abs(u)))
            pieces[i, q] = log_left + min(u, 0.0) - soft
            log_left += min(-u, 0.0) - soft
        pieces[j, q] = log_left


@lean_kernel
def _moments(nodes, log_weight, log_total, first, second):
    """The mean of weighted nodes, and their covariance less that of all nodes, which is 1; 0 without weight."""
    d = nodes.shape[1]
    for a in range(d):
        first[a] = 0.0
        for b in range(d):
            second[a, b] = 0.0
    if log_total == -np.inf:
        return
    for q in range(nodes.shape[0]):
        share = math.exp(log_weight[q] - log_total)
        for a in range(d):
            first[a] += share * nodes[q, a]
            for b in range(a + 1):
                second[a, b] += share * nodes[q, a] * nodes[q, b]
    for a in range(d):
        for b in range(a + 1):
            second[a, b] -= first[a] * first[b] + (1.0 if a == b else 0.0)
            second[b, a] = second[a, b]


@kernel
def choose(p, regime, mean, covariance, log_prob, new_mean, new_covariance):
    """See `tables.choose`, of one belief in the recurrent kind."""
    j, n, d = p.recurrence.shape[0], mean.shape[0], p.nodes.shape[1]
    root, directions, slopes = np.zeros((n, n)), np.zeros((n, d)), np.zeros((j, n))
    root_of(covariance, root)
    for i in range(j):
        for a in range(n):
            for b in range(a, n):
                slopes[i, a] += p.recurrence[i, b] * root[b, a]
    _span(slopes, directions, np.empty(n))
    triangle, into, centre = np.empty((j, d)), np.empty((n, d)), np.empty(j)
    multiply(slopes, directions, triangle)
    multiply(root, directions, into)
    for i in range(j):
        centre[i] = p.recurrence_offset[regime, i]
        for a in range(n):
            centre[i] += p.recurrence[i, a] * mean[a]
    n_points = len(p.log_weight)
    pieces = np.empty((j + 1, n_points))
    _break_sticks(p, centre, triangle, pieces)
    first, second, half = np.empty(d), np.empty((d, d)), np.empty((n, d))
    for k in range(j + 1):
        log_prob[k] = log_sum(pieces[k], n_points)
        _moments(p.nodes, pieces[k], log_prob[k], first, second)
        for a in range(n):
            new_mean[k, a] = mean[a]
            for e in range(d):
                new_mean[k, a] += into[a, e] * first[e]
                half[a, e] = 0.0
                for f in range(d):
                    half[a, e] += into[a, f] * second[f, e]
        for a in range(n):
            for b in range(n):
                new_covariance[k, a, b] = covariance[a, b]
                for e in range(d):
                    new_covariance[k, a, b] += half[a, e] * into[b, e]
