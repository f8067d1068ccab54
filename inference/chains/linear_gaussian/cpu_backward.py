"""Means of linear Gaussian chains backward in time, as fused numba kernels: smoothed, drawn, or for the gradient.

They read the innovations and filtered means that `cpu_means.run_forward` keeps, of a group of sequences side by side.
"""

import numpy as np

from ...numerics.compilation import inlined, kernel, lean_kernel
from ...numerics.lanes import load, muladd, splat, store, width
from .cpu_means import (
    add_product,
    add_transposed_product,
    count_of,
    entry,
    fill,
    lanes_for,
    run_forward,
)


@lean_kernel
def add_diffuse(diffuse, c, n_steps, n, room):
    """What the diffuse coordinates add to innovations and means."""
    n_features, n_states = diffuse.white.shape[2], diffuse.filtered.shape[2]
    for t in range(n_steps):
        add_product(diffuse.white, c, t, room.weights, 0, n, 1.0, room.white, t * n_features * n)
        add_product(diffuse.filtered, c, t, room.weights, 0, n, 1.0, room.filtered, t * n_states * n)


@inlined
def step_back(gains, c, r, n, white, at, size, room):
    """The whitened means, in `room.mean`, of a step from those of the next one and its innovations."""
    fill(room.moved, 0, size, 0.0)
    add_product(gains.back, c, r, room.mean, 0, n, 1.0, room.moved, 0)
    add_product(gains.drift, c, r, white, at, n, 1.0, room.moved, 0)
    for i in range(size):
        room.mean[i] = room.moved[i]


@inlined
def write(sequences, vectors, v, k, count, n, t, out):
    """Vectors of lanes into [B, T, ...]."""
    for lane in range(count):
        b = sequences.groups[k, lane]
        for i in range(out.shape[-1]):
            out[b, t, i] = vectors[v + i * n + lane]


@lean_kernel
def run_smoother(sequences, gains, c, k, count, n, n_steps, room, mean):
    n_states, n_features = gains.gain.shape[-2:]
    wide, narrow = n_states * n, n_features * n
    fill(room.mean, 0, wide, 0.0)
    for t in range(n_steps - 1, -1, -1):
        r = min(t, gains.steady[c])
        if t + 1 < n_steps:
            step_back(gains, c, r, n, room.white, (t + 1) * narrow, wide, room)
        add_product(gains.filtered, c, r, room.mean, 0, n, 1.0, room.filtered, t * wide)
        write(sequences, room.filtered, t * wide, k, count, n, t, mean)


@lean_kernel
def run_draw(sequences, gains, diffuse, c, k, count, n, n_steps, room, drawn, later, draw, noise, path):
    n_states, n_features = gains.gain.shape[-2:]
    wide, narrow, q = n_states * n, n_features * n, diffuse.white.shape[-1]
    for t in range(n_steps - 1, -1, -1):
        r = min(t, gains.steady[c])
        for lane in range(count):
            for i in range(n_states):
                room.turned[i * n + lane] = noise[draw, sequences.groups[k, lane], t, i]
        if t + 1 < n_steps:
            for i in range(narrow):
                later[i] = room.white[(t + 1) * narrow + i]
            if q:
                add_product(diffuse.white, c, t + 1, drawn, 0, n, 1.0, later, 0)
            step_back(gains, c, r, n, later, 0, wide, room)
            add_product(gains.noise, c, r, room.turned, 0, n, 1.0, room.mean, 0)
        else:
            for i in range(wide):
                room.mean[i] = room.turned[i]
        for i in range(wide):
            room.moved[i] = room.filtered[t * wide + i]
        add_product(gains.filtered, c, r, room.mean, 0, n, 1.0, room.moved, 0)
        if q:
            add_product(diffuse.filtered, c, t, drawn, 0, n, 1.0, room.moved, 0)
        for lane in range(count):
            for i in range(n_states):
                path[draw, sequences.groups[k, lane], t, i] = room.moved[i * n + lane]


@inlined
def solve_transposed_lanes(root, a, b, n, vectors, v):
    """vectors <- root[a, b]'^-1 vectors, of a lower triangle."""
    for i in range(root.shape[2] - 1, -1, -1):
        inverse = 1.0 / root[a, b, i, i]
        if n == 1:
            total = vectors[v + i]
            for j in range(i + 1, root.shape[2]):
                total -= root[a, b, j, i] * vectors[v + j]
            vectors[v + i] = total * inverse
            continue
        for lane in range(0, n, width(vectors)):
            sums = load(vectors, v + i * n + lane)
            for j in range(i + 1, root.shape[2]):
                sums = muladd(splat(-root[a, b, j, i]), load(vectors, v + j * n + lane), sums)
            store(vectors, v + i * n + lane, sums * splat(inverse))


@lean_kernel
def run_score(model, sequences, gains, c, k, count, n, room, mean, state_error, error):
    n_states, n_features = gains.gain.shape[-2:]
    wide, narrow, n_steps = n_states * n, n_features * n, model.lengths[c]
    fill(room.mean, 0, wide, 0.0)  # r of the next step, and then A' r
    for t in range(n_steps - 1, -1, -1):
        r, here, now = min(t, gains.steady[c]), t * wide, t * narrow
        if t + 1 < n_steps:
            source, step = model.transition_of[c], entry(model.transition, t)
            fill(room.moved, 0, wide, 0.0)
            add_transposed_product(model.transition, source, step, 0, n_states, room.mean, 0, n, 1.0, room.moved, 0)
            fill(room.mean, 0, wide, 0.0)
            add_transposed_product(gains.filtered, c, r, 0, n_states, room.moved, 0, n, 1.0, room.mean, 0)
            add_product(gains.filtered, c, r, room.mean, 0, n, 1.0, room.filtered, here)
            for i in range(wide):
                room.mean[i] = room.moved[i]
        add_transposed_product(gains.gain, c, r, 0, n_states, room.mean, 0, n, -1.0, room.white, now)
        solve_transposed_lanes(gains.root, c, r, n, room.white, now)
        for f in range(n_features):
            if not model.seen[model.seen_of[c], entry(model.seen, t), f]:
                fill(room.white, now + f * n, n, 0.0)
        source, step = model.emission_of[c], entry(model.emission, t)
        add_transposed_product(model.emission, source, step, 0, n_features, room.white, now, n, 1.0, room.mean, 0)
        write(sequences, room.filtered, here, k, count, n, t, mean)
        write(sequences, room.mean, 0, k, count, n, t, state_error)
        write(sequences, room.white, now, k, count, n, t, error)


@kernel
def smooth_means(part, model, sequences, gains, diffuse, room, total, mean):
    """log p(x) and E[s_t | x] of the groups `part[0] : part[1]`."""
    for k in range(part[0], part[1]):
        count, c = count_of(sequences, k), sequences.set_of[sequences.groups[k, 0]]
        n = lanes_for(count, room.mean)
        if gains.fault[c] >= 0:
            continue
        run_forward(model, sequences, gains, diffuse, c, k, count, n, room)
        if diffuse.white.shape[-1]:
            add_diffuse(diffuse, c, model.lengths[c], n, room)
        run_smoother(sequences, gains, c, k, count, n, model.lengths[c], room, mean)
        for lane in range(count):
            total[sequences.groups[k, lane]] = room.total[lane]


@kernel
def score_means(part, model, sequences, gains, diffuse, room, mean, state_error, error):
    """Smoothed means, and the gradients of log p(x) in predicted means and in observation offsets."""
    for k in range(part[0], part[1]):
        count, c = count_of(sequences, k), sequences.set_of[sequences.groups[k, 0]]
        n = lanes_for(count, room.mean)
        if gains.fault[c] >= 0:
            continue
        run_forward(model, sequences, gains, diffuse, c, k, count, n, room)
        if diffuse.white.shape[-1]:
            add_diffuse(diffuse, c, model.lengths[c], n, room)
        run_score(model, sequences, gains, c, k, count, n, room, mean, state_error, error)


@kernel
def draw_paths(part, model, sequences, gains, diffuse, room, noise, diffuse_noise, path):
    """Paths [n, B, T, L] from standard normal numbers of that shape, and [n, B, q]."""
    q = model.directions.shape[1]
    drawn, numbers, later = np.empty(len(room.side)), np.empty(len(room.side)), np.empty(len(room.turned))
    for k in range(part[0], part[1]):
        count, c = count_of(sequences, k), sequences.set_of[sequences.groups[k, 0]]
        n = lanes_for(count, room.mean)
        if gains.fault[c] >= 0:
            continue
        run_forward(model, sequences, gains, diffuse, c, k, count, n, room)
        for draw in range(len(path)):
            for i in range(q):
                for lane in range(n):
                    drawn[i * n + lane] = room.weights[i * n + lane]
                    numbers[i * n + lane] = diffuse_noise[draw, sequences.groups[k, min(lane, count - 1)], i]
            if q:
                add_product(diffuse.spread, c, 0, numbers, 0, n, 1.0, drawn, 0)
            run_draw(sequences, gains, diffuse, c, k, count, n, model.lengths[c], room, drawn, later, draw, noise, path)
