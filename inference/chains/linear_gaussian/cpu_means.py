r"""Means of linear Gaussian chains forward in time, as fused numba kernels: the part that reads observations.

With known gains, a step is $w = F^{-1/2} (x - d - C m)$, $m_f = m + K F^{1/2} w$ and $m = A m_f + c$. Sequences with
one set of covariances run side by side, n of them, in lanes: entry i of lane l is at `i * n + l`, so numbers of one
kind fill vectors. Arrays of steps are flat, and the part of a step starts at some position.

Means are conditional on diffuse coordinates of 0, until the last step has determined these.
"""

import math

from ...numerics.compilation import inlined, kernel, lean_kernel
from ...numerics.lanes import load, muladd, splat, store, width

LOG_2PI = math.log(2 * math.pi)


@inlined
def count_of(sequences, k):
    """The number of sequences of group k."""
    count = 0
    while count < sequences.groups.shape[1] and sequences.groups[k, count] >= 0:
        count += 1
    return count


@inlined
def lanes_for(count, array):
    """One lane for a single sequence, or enough vectors of lanes for all sequences."""
    return 1 if count == 1 else -(-count // width(array)) * width(array)


@inlined
def entry(table, t):
    """The index of step t in a table with an axis of steps."""
    return t if table.shape[1] > 1 else 0


@inlined
def fill(out, at, size, number):
    for k in range(at, at + size):
        out[k] = number


@inlined
def add_product(table, a, b, vectors, v, n, sign, out, at):
    """out += sign * table[a, b] vectors, from the positions v and `at` on."""
    for i in range(table.shape[2]):
        if n == 1:
            total = 0.0
            for j in range(table.shape[3]):
                total += table[a, b, i, j] * vectors[v + j]
            out[at + i] += sign * total
            continue
        for lane in range(0, n, width(out)):
            sums = load(out, at + i * n + lane)
            for j in range(table.shape[3]):
                sums = muladd(splat(sign * table[a, b, i, j]), load(vectors, v + j * n + lane), sums)
            store(out, at + i * n + lane, sums)


@inlined
def add_transposed_product(table, a, b, first, size, vectors, v, n, sign, out, at):
    """out += sign * table[a, b, first : first + size]' vectors."""
    if n == 1:
        for i in range(size):
            number = sign * vectors[v + i]
            for j in range(table.shape[3]):
                out[at + j] += number * table[a, b, first + i, j]
        return
    for j in range(table.shape[3]):
        for lane in range(0, n, width(out)):
            sums = load(out, at + j * n + lane)
            for i in range(size):
                sums = muladd(splat(sign * table[a, b, first + i, j]), load(vectors, v + i * n + lane), sums)
            store(out, at + j * n + lane, sums)


@inlined
def solve_lanes(root, a, b, n, vectors, v):
    """vectors <- root[a, b]^-1 vectors, of a lower triangle."""
    for i in range(root.shape[2]):
        inverse = 1.0 / root[a, b, i, i]
        if n == 1:
            total = vectors[v + i]
            for j in range(i):
                total -= root[a, b, i, j] * vectors[v + j]
            vectors[v + i] = total * inverse
            continue
        for lane in range(0, n, width(vectors)):
            sums = load(vectors, v + i * n + lane)
            for j in range(i):
                sums = muladd(splat(-root[a, b, i, j]), load(vectors, v + j * n + lane), sums)
            store(vectors, v + i * n + lane, sums * splat(inverse))


@inlined
def start(model, sequences, k, count, n, room):
    q, n_states = model.directions.shape[1], model.emission.shape[-1]
    fill(room.side, 0, q * n, 0.0)
    fill(room.weights, 0, q * n, 0.0)
    fill(room.total, 0, n, 0.0)
    fill(room.rest, 0, n, 0.0)
    for lane in range(count):
        source = sequences.initial_mean_of[sequences.groups[k, lane]]
        for i in range(n_states):
            room.mean[i * n + lane] = sequences.initial_mean[source, i]


@inlined
def update(model, sequences, gains, c, k, count, n, t, room, at):
    """Whitened innovations of a step, from `at` on, and the means that they lead to; returns the constant cost."""
    n_features, r = gains.root.shape[-1], min(t, gains.steady[c])
    source, seen = model.emission_of[c], model.seen_of[c]
    for lane in range(count):
        b = sequences.groups[k, lane]
        x, offset = sequences.x_of[b], sequences.emission_offset_of[b]
        step = entry(sequences.emission_offset, t)
        for f in range(n_features):
            room.white[at + f * n + lane] = sequences.x[x, t, f] - sequences.emission_offset[offset, step, f]
    add_product(model.emission, source, entry(model.emission, t), room.mean, 0, n, -1.0, room.white, at)
    n_seen = n_features
    for f in range(n_features):
        if not model.seen[seen, entry(model.seen, t), f]:
            n_seen -= 1
            fill(room.white, at + f * n, n, 0.0)
    solve_lanes(gains.root, c, r, n, room.white, at)
    add_product(gains.gain, c, r, room.white, at, n, 1.0, room.mean, 0)
    return gains.log_det[c, r] + 0.5 * LOG_2PI * n_seen


@inlined
def predict(model, sequences, c, k, count, n, t, room):
    """The means of the next step."""
    n_states = model.transition.shape[-1]
    for i in range(n_states * n):
        room.moved[i] = room.mean[i]
    for lane in range(count):
        source = sequences.transition_offset_of[sequences.groups[k, lane]]
        step = entry(sequences.transition_offset, t)
        for i in range(n_states):
            room.mean[i * n + lane] = sequences.transition_offset[source, step, i]
    add_product(
        model.transition, model.transition_of[c], entry(model.transition, t), room.moved, 0, n, 1.0, room.mean, 0
    )


@inlined
def regress(diffuse, c, t, n, room, at):
    """Turn the innovations of a step into the right side of the regression; the remainder is their cost."""
    n_features, q = diffuse.white.shape[-2:]
    fill(room.cost, 0, n, 0.0)
    if q == 0:
        for f in range(n_features):
            for lane in range(n):
                room.cost[lane] += 0.5 * room.white[at + f * n + lane] * room.white[at + f * n + lane]
        return
    fill(room.turned, 0, (q + n_features) * n, 0.0)
    add_transposed_product(diffuse.turn, c, t, 0, q, room.side, 0, n, 1.0, room.turned, 0)
    add_transposed_product(diffuse.turn, c, t, q, n_features, room.white, at, n, 1.0, room.turned, 0)
    for i in range(q * n):
        room.side[i] = room.turned[i]
    for i in range(q, q + n_features):
        for lane in range(n):
            room.cost[lane] += 0.5 * room.turned[i * n + lane] * room.turned[i * n + lane]


@inlined
def weigh(diffuse, c, s, n, room):
    """The diffuse coordinates, from entry s of the regression."""
    fill(room.weights, 0, len(room.side), 0.0)
    add_product(diffuse.weight, c, s, room.side, 0, n, -1.0, room.weights, 0)


@lean_kernel
def run_forward(model, sequences, gains, diffuse, c, k, count, n, room):
    """Go through the steps of group k: log p(x), diffuse coordinates and, if they are kept, innovations and means."""
    n_features, n_states = model.emission.shape[-2:]
    keep = room.filtered.shape[0] > 0
    start(model, sequences, k, count, n, room)
    for t in range(model.lengths[c]):
        at = t * n_features * n if keep else 0
        constant = update(model, sequences, gains, c, k, count, n, t, room, at)
        regress(diffuse, c, t, n, room, at)
        for lane in range(n):
            room.total[lane] -= room.cost[lane] + constant
        if keep:
            for i in range(n_states * n):
                room.filtered[t * n_states * n + i] = room.mean[i]
        if t + 1 < model.lengths[c]:
            predict(model, sequences, c, k, count, n, t, room)
    if diffuse.white.shape[-1]:
        weigh(diffuse, c, 0, n, room)
        for lane in range(n):
            room.total[lane] -= diffuse.log_det[c, 0]


@inlined
def write_means(sequences, table, c, t, k, count, n, room, out):
    """Means [B, T, L] of a step, with the diffuse coordinates known so far."""
    for i in range(len(room.mean)):
        room.moved[i] = room.mean[i]
    if table.shape[-1]:
        add_product(table, c, t, room.weights, 0, n, 1.0, room.moved, 0)
    for lane in range(count):
        for i in range(out.shape[-1]):
            out[sequences.groups[k, lane], t, i] = room.moved[i * n + lane]


@lean_kernel
def run_filter(model, sequences, gains, diffuse, c, k, count, n, room, out):
    """The same, written by step: increments of log p(x), and means before and after each observation."""
    q, volume, change = model.directions.shape[1], 0.0, 0.0
    start(model, sequences, k, count, n, room)
    for t in range(model.lengths[c]):
        write_means(sequences, diffuse.predicted, c, t, k, count, n, room, out.predicted_mean)
        constant = update(model, sequences, gains, c, k, count, n, t, room, 0)
        regress(diffuse, c, t, n, room, 0)
        for lane in range(n):
            room.cost[lane] += constant - room.rest[lane]
        if q:
            weigh(diffuse, c, t, n, room)
            change, volume = diffuse.log_det[c, t] - volume, diffuse.log_det[c, t]
            fill(room.turned, 0, q * n, 0.0)
            add_product(diffuse.rest, c, t, room.side, 0, n, 1.0, room.turned, 0)
            fill(room.rest, 0, n, 0.0)
            for i in range(q):
                for lane in range(n):
                    room.rest[lane] += 0.5 * room.turned[i * n + lane] * room.turned[i * n + lane]
        for lane in range(count):
            increment = -(room.cost[lane] + change + room.rest[lane])
            room.total[lane] += increment
            out.log_increment[sequences.groups[k, lane], t] = increment
        write_means(sequences, diffuse.filtered, c, t, k, count, n, room, out.mean)
        if t + 1 < model.lengths[c]:
            predict(model, sequences, c, k, count, n, t, room)


@kernel
def evidence_of(part, model, sequences, gains, diffuse, room, total):
    """log p(x) of the groups `part[0] : part[1]`."""
    for k in range(part[0], part[1]):
        count, c = count_of(sequences, k), sequences.set_of[sequences.groups[k, 0]]
        n = lanes_for(count, room.mean)
        if gains.fault[c] < 0:
            run_forward(model, sequences, gains, diffuse, c, k, count, n, room)
            for lane in range(count):
                total[sequences.groups[k, lane]] = room.total[lane]


@kernel
def filter_means(part, model, sequences, gains, diffuse, room, out):
    """The filter's results for means, and log p(x)."""
    for k in range(part[0], part[1]):
        count, c = count_of(sequences, k), sequences.set_of[sequences.groups[k, 0]]
        n = lanes_for(count, room.mean)
        if gains.fault[c] < 0:
            run_filter(model, sequences, gains, diffuse, c, k, count, n, room, out)
            for lane in range(count):
                out.total[sequences.groups[k, lane]] = room.total[lane]
