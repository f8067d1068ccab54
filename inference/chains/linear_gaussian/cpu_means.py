r"""Means of linear Gaussian chains, as fused numba kernels: the only part that reads observations.

With the gains at hand, a step is $w = F^{-1/2} (x - d - C m)$, $m_f = m + K F^{1/2} w$ and $m = A m_f + c$. Sequences
of one set of covariances go side by side, so that their numbers fill vectors; one alone is multiplied row by row.

Means are those given that the diffuse coordinates are 0, until the last step has told what they are.
"""

import math

import numpy as np

from ...numerics.compilation import inlined, kernel
from .cpu_covariances import row

LOG_2PI = math.log(2 * math.pi)


@inlined
def add_product(matrix, vectors, n, sign, out):
    """out += sign * matrix vectors, for n vectors side by side: entry i of vector l lies at i * n + l."""
    if n == 1:
        for i in range(matrix.shape[0]):
            total = 0.0
            for j in range(matrix.shape[1]):
                total += matrix[i, j] * vectors[j]
            out[i] += sign * total
        return
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            factor = sign * matrix[i, j]
            for lane in range(n):
                out[i * n + lane] += factor * vectors[j * n + lane]


@inlined
def add_transposed_product(matrix, vectors, n, sign, out):
    """out += sign * matrix' vectors."""
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            factor = sign * matrix[i, j]
            for lane in range(n):
                out[j * n + lane] += factor * vectors[i * n + lane]


@inlined
def solve_lanes(root, n, vectors):
    """vectors <- root^-1 vectors, of a lower triangle."""
    for i in range(root.shape[0]):
        for j in range(i):
            factor = root[i, j]
            for lane in range(n):
                vectors[i * n + lane] -= factor * vectors[j * n + lane]
        inverse = 1.0 / root[i, i]
        for lane in range(n):
            vectors[i * n + lane] *= inverse


@inlined
def solve_transposed_lanes(root, n, vectors):
    """vectors <- root'^-1 vectors."""
    for i in range(root.shape[0] - 1, -1, -1):
        for j in range(i + 1, root.shape[0]):
            factor = root[j, i]
            for lane in range(n):
                vectors[i * n + lane] -= factor * vectors[j * n + lane]
        inverse = 1.0 / root[i, i]
        for lane in range(n):
            vectors[i * n + lane] *= inverse


@kernel
def _set_rows(table, of, group, n, t, out):
    """The rows of step t, or those of all steps, of the sequences of a group."""
    for lane in range(n):
        own = row(table[of[group[lane]]], t)
        for i in range(len(own)):
            out[i * n + lane] = own[i]


@kernel
def _see(model, sequences, gains, c, group, n, t, mean, white):
    """Whitened innovations of a step."""
    n_features = gains.root.shape[-1]
    r = min(t, gains.steady[c])
    emission, sees = row(model.emission[model.emission_of[c]], t), row(model.seen[model.seen_of[c]], t)
    for lane in range(n):
        b = group[lane]
        x = sequences.x[sequences.x_of[b], t]
        offset = row(sequences.emission_offset[sequences.emission_offset_of[b]], t)
        for f in range(n_features):
            white[f * n + lane] = x[f] - offset[f]
    add_product(emission, mean, n, -1.0, white)
    for f in range(n_features):
        if not sees[f]:
            for lane in range(n):
                white[f * n + lane] = 0.0
    solve_lanes(gains.root[c, r], n, white)


@kernel
def _move(model, sequences, c, group, n, t, mean, room):
    """The means of the next step."""
    for k in range(len(mean)):
        room[k] = mean[k]
    _set_rows(sequences.transition_offset, sequences.transition_offset_of, group, n, t, mean)
    add_product(row(model.transition[model.transition_of[c]], t), room, n, 1.0, mean)


@kernel
def _regress(diffuse, c, t, n, white, side, room, cost):
    """Turn the innovations of a step into the right side of the regression; what is left over adds to the cost."""
    q = diffuse.white.shape[-1]
    for k in range(len(room)):
        room[k] = 0.0
    turn = diffuse.turn[c, t]
    add_transposed_product(turn[:q], side, n, 1.0, room)
    add_transposed_product(turn[q:], white, n, 1.0, room)
    for k in range(q * n):
        side[k] = room[k]
    for k in range(q * n, len(room)):
        cost[k % n] += 0.5 * room[k] * room[k]


@kernel
def forward_means(model, sequences, gains, diffuse, c, group, n, white, filtered, out):
    """Go through the steps of a group: keep its innovations and filtered means, unless they have no steps.

    Where `out` has increments, they are written, and the means that the regression so far gives.
    """
    n_features, n_states = model.emission.shape[-2:]
    q = model.directions.shape[1]
    by_step = out.log_increment.shape[1] > 0
    mean, room = np.empty(n_states * n), np.empty(n_states * n)
    now, turned = np.empty(n_features * n), np.empty((q + n_features) * n)
    side, cost, last, total = np.zeros(q * n), np.zeros(n), np.zeros(n), np.zeros(n)
    seen, weights = model.seen[model.seen_of[c]], np.zeros(q * n)
    rest, volume = np.zeros(n), 0.0
    for lane in range(n):
        own = sequences.initial_mean[sequences.initial_mean_of[group[lane]]]
        for i in range(n_states):
            mean[i * n + lane] = own[i]
    for t in range(model.lengths[c]):
        r = min(t, gains.steady[c])
        if by_step:
            _write(diffuse.predicted, c, t, group, n, mean, weights, room, out.predicted_mean)
        _see(model, sequences, gains, c, group, n, t, mean, now)
        add_product(gains.gain[c, r], now, n, 1.0, mean)
        n_seen = 0
        for f in range(n_features):
            n_seen += row(seen, t)[f]
        constant = gains.log_det[c, r] + 0.5 * LOG_2PI * n_seen
        for lane in range(n):
            cost[lane] = 0.0
        if q:
            _regress(diffuse, c, t, n, now, side, turned, cost)
        else:
            for k in range(n_features * n):
                cost[k % n] += 0.5 * now[k] * now[k]
        for lane in range(n):
            total[lane] -= cost[lane] + constant
        if by_step:
            change = 0.0
            if q:
                for k in range(q * n):
                    weights[k] = 0.0
                    turned[k] = 0.0
                add_product(diffuse.weight[c, t], side, n, -1.0, weights)
                add_product(diffuse.rest[c, t], side, n, 1.0, turned)
                for lane in range(n):
                    rest[lane] = 0.0
                for k in range(q * n):
                    rest[k % n] += 0.5 * turned[k] * turned[k]
                change = diffuse.log_det[c, t] - volume
                volume = diffuse.log_det[c, t]
            for lane in range(n):
                increment = -(cost[lane] + constant + change + rest[lane] - last[lane])
                out.log_increment[group[lane], t] = increment
                last[lane] = rest[lane]
            _write(diffuse.filtered, c, t, group, n, mean, weights, room, out.mean)
        if len(white):
            for k in range(len(now)):
                white[t, k] = now[k]
            for k in range(len(mean)):
                filtered[t, k] = mean[k]
        if t + 1 < model.lengths[c]:
            _move(model, sequences, c, group, n, t, mean, room)
    for k in range(q * n):
        weights[k] = 0.0
        turned[k] = 0.0
    if q:
        add_product(diffuse.weight[c, -1 if not by_step else model.lengths[c] - 1], side, n, -1.0, weights)
        for lane in range(n):
            total[lane] -= diffuse.log_det[c, -1 if not by_step else model.lengths[c] - 1]
    for lane in range(n):
        out.total[group[lane]] = total[lane]
    return weights


@kernel
def _write(table, c, t, group, n, mean, weights, room, out):
    """Means [*b, T, L] of a step, of diffuse coordinates that are known to be `weights`."""
    for k in range(len(mean)):
        room[k] = mean[k]
    if table.shape[-1]:
        add_product(table[c, t], weights, n, 1.0, room)
    for lane in range(n):
        for i in range(out.shape[-1]):
            out[group[lane], t, i] = room[i * n + lane]
