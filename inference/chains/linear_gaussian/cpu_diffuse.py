r"""The diffuse coordinates of a linear Gaussian chain: their effect on means, and their posterior.

The rows $[\tilde E, \tilde e]$ of whitened innovations are those of a regression, kept as a triangle that each step
rotates into itself with its own rows. Its singular values tell which coordinates are determined.
"""

import math

import numpy as np

from ...numerics.compilation import kernel
from ...numerics.small_matrices import add, clear, copy, multiply, solve, triangularize
from .cpu_covariances import row
from .plain import ROUNDINGS
from .tables import OPEN

EPS = float(np.finfo(np.float64).eps)
MOST_SWEEPS = 60


@kernel
def decompose(table, right):
    """Singular values: table [q, q] becomes left vectors times values, `right` the right vectors (Hestenes 1958)."""
    n = len(table)
    for i in range(n):
        for j in range(n):
            right[i, j] = 1.0 if i == j else 0.0
    for _ in range(MOST_SWEEPS):
        turned = False
        for a in range(n):
            for b in range(a + 1, n):
                aa, bb, ab = 0.0, 0.0, 0.0
                for i in range(n):
                    aa += table[i, a] * table[i, a]
                    bb += table[i, b] * table[i, b]
                    ab += table[i, a] * table[i, b]
                if abs(ab) <= EPS * math.sqrt(aa) * math.sqrt(bb):
                    continue
                turned = True
                zeta = (bb - aa) / (2 * ab)
                tangent = math.copysign(1.0, zeta) / (abs(zeta) + math.hypot(1.0, zeta))
                cosine = 1 / math.hypot(1.0, tangent)
                sine = cosine * tangent
                for i in range(n):
                    x, y = table[i, a], table[i, b]
                    table[i, a], table[i, b] = cosine * x - sine * y, sine * x + cosine * y
                    x, y = right[i, a], right[i, b]
                    right[i, a], right[i, b] = cosine * x - sine * y, sine * x + cosine * y
        if not turned:
            break


@kernel
def _solve_regression(triangle, c, k, least, work, right, values, diffuse):
    """The posterior of the coordinates from a regression; returns whether some are undetermined."""
    q = len(triangle)
    for i in range(q):
        for j in range(q):
            work[i, j] = triangle[j, i]
    decompose(work, right)
    greatest = 0.0
    for j in range(q):
        values[j] = 0.0
        for i in range(q):
            values[j] += work[i, j] * work[i, j]
        values[j] = math.sqrt(values[j])
        greatest = max(greatest, values[j])
    weight, spread = diffuse.weight[c, k], diffuse.spread[c, k]
    free, rest = diffuse.open[c, k], diffuse.rest[c, k]
    for table in (weight, spread, free, rest):
        clear(table)
    log_det, is_open = 0.0, False
    for i in range(q):
        rest[i, i] = 1.0
    for j in range(q):
        if values[j] <= least * greatest:
            is_open = True
            for i in range(q):
                free[i, j] = right[i, j]
            continue
        log_det += math.log(values[j])
        for i in range(q):
            spread[i, j] = right[i, j] / values[j]
            for g in range(q):
                weight[i, g] += spread[i, j] * (work[g, j] / values[j])
                rest[i, g] -= (work[i, j] / values[j]) * (work[g, j] / values[j])
    if not is_open:
        clear(rest)
    diffuse.log_det[c, k] = log_det
    return is_open


@kernel
def follow_diffuse(part, model, gains, diffuse):
    """Through the steps of the sets `part[0] : part[1]`."""
    n_features, n_states = model.emission.shape[-2:]
    q = model.directions.shape[1]
    means, after = np.empty((n_states, q)), np.empty((n_states, q))
    triangle, work, right, values = np.empty((q, q)), np.empty((q, q)), np.empty((q, q)), np.empty(q)
    turn = np.empty((2 * q + n_features, q + n_features))
    least = ROUNDINGS * q * model.least
    by_step = diffuse.weight.shape[1] > 1 or model.n_steps == 1
    for c in range(part[0], part[1]):
        if gains.fault[c] >= 0:
            continue
        transition, emission = model.transition[model.transition_of[c]], model.emission[model.emission_of[c]]
        seen = model.seen[model.seen_of[c]]
        copy(model.directions, means)
        clear(triangle)
        is_open = True
        for t in range(model.lengths[c]):
            r = min(t, gains.steady[c])
            copy(means, diffuse.predicted[c, t])
            white = diffuse.white[c, t]
            multiply(row(emission, t), means, white)
            sees = row(seen, t)
            for f in range(n_features):
                for j in range(q):
                    white[f, j] = -white[f, j] if sees[f] else 0.0
            solve(gains.root[c, r], white)
            multiply(gains.gain[c, r], white, after)
            add(means, after)
            copy(after, diffuse.filtered[c, t])
            if t + 1 < model.lengths[c]:
                multiply(row(transition, t), after, means)
            clear(turn)
            for i in range(q):
                for j in range(q):
                    turn[i, j] = triangle[i, j]
                for f in range(n_features):
                    turn[i, q + f] = white[f, i]
            for i in range(q + n_features):
                turn[q + i, i] = 1.0
            triangularize(turn, q)
            copy(turn, triangle)
            copy(turn[q:], diffuse.turn[c, t])
            if by_step or t + 1 == model.lengths[c]:
                is_open = _solve_regression(triangle, c, t if by_step else 0, least, work, right, values, diffuse)
        if is_open:
            gains.fault[c] = 4 * (model.lengths[c] - 1) + OPEN
