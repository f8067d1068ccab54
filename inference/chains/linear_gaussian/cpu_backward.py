r"""Means of linear Gaussian chains backward in time, as fused numba kernels: smoothed, drawn, or for the gradient.

They read the innovations and filtered means that `cpu_means` keeps, of a group of sequences side by side.
"""

import numpy as np

from ...numerics.compilation import kernel
from .cpu_covariances import row
from .cpu_means import (
    add_product,
    add_transposed_product,
    forward_means,
    solve_transposed_lanes,
)


@kernel
def lanes_of(group):
    n = 0
    while n < len(group) and group[n] >= 0:
        n += 1
    return n


@kernel
def _room(model, c, n, keep):
    n_features, n_states = model.emission.shape[-2:]
    n_steps = model.lengths[c] if keep else 0
    return np.empty((n_steps, n_features * n)), np.empty((n_steps, n_states * n))


@kernel
def _add_diffuse(diffuse, c, n, weights, white, filtered):
    """What the diffuse coordinates add to innovations and means."""
    for t in range(len(white)):
        add_product(diffuse.white[c, t], weights, n, 1.0, white[t])
        add_product(diffuse.filtered[c, t], weights, n, 1.0, filtered[t])


@kernel
def _step_back(gains, c, r, n, later, state, room):
    """The whitened means of a step from those of the next one and its innovations."""
    for k in range(len(state)):
        room[k] = 0.0
    add_product(gains.back[c, r], state, n, 1.0, room)
    add_product(gains.drift[c, r], later, n, 1.0, room)
    for k in range(len(state)):
        state[k] = room[k]


@kernel
def filter_means(part, model, sequences, gains, diffuse, out):
    """Evidence alone, or what `forward_means` writes by step."""
    for group in sequences.groups[part[0] : part[1]]:
        n, c = lanes_of(group), sequences.set_of[group[0]]
        if gains.fault[c] < 0:
            white, filtered = _room(model, c, n, False)
            forward_means(model, sequences, gains, diffuse, c, group, n, white, filtered, out)


@kernel
def smooth_means(part, model, sequences, gains, diffuse, out, mean):
    n_states = model.emission.shape[-1]
    for group in sequences.groups[part[0] : part[1]]:
        n, c = lanes_of(group), sequences.set_of[group[0]]
        if gains.fault[c] >= 0:
            continue
        white, filtered = _room(model, c, n, True)
        weights = forward_means(model, sequences, gains, diffuse, c, group, n, white, filtered, out)
        if len(weights):
            _add_diffuse(diffuse, c, n, weights, white, filtered)
        state, room = np.zeros(n_states * n), np.empty(n_states * n)
        for t in range(len(white) - 1, -1, -1):
            r = min(t, gains.steady[c])
            if t + 1 < len(white):
                _step_back(gains, c, r, n, white[t + 1], state, room)
            here = filtered[t]
            add_product(gains.filtered[c, r], state, n, 1.0, here)
            for lane in range(n):
                for i in range(n_states):
                    mean[group[lane], t, i] = here[i * n + lane]


@kernel
def draw_paths(part, model, sequences, gains, diffuse, out, noise, diffuse_noise, path):
    """Paths [n, B, T, L] from standard normal numbers of that shape, and [n, B, q]."""
    n_states, q = model.emission.shape[-1], model.directions.shape[1]
    for group in sequences.groups[part[0] : part[1]]:
        n, c = lanes_of(group), sequences.set_of[group[0]]
        if gains.fault[c] >= 0:
            continue
        white, filtered = _room(model, c, n, True)
        weights = forward_means(model, sequences, gains, diffuse, c, group, n, white, filtered, out)
        state, room, fresh = np.empty(n_states * n), np.empty(n_states * n), np.empty(n_states * n)
        drawn, given, later = np.empty(q * n), np.empty(q * n), np.empty(white.shape[1])
        for draw in range(len(path)):
            for lane in range(n):
                for k in range(q):
                    given[k * n + lane] = diffuse_noise[draw, group[lane], k]
            if q:
                drawn[:] = weights
                add_product(diffuse.spread[c, -1], given, n, 1.0, drawn)
            for t in range(len(white) - 1, -1, -1):
                r = min(t, gains.steady[c])
                for lane in range(n):
                    for i in range(n_states):
                        fresh[i * n + lane] = noise[draw, group[lane], t, i]
                if t + 1 < len(white):
                    later[:] = white[t + 1]
                    if q:
                        add_product(diffuse.white[c, t + 1], drawn, n, 1.0, later)
                    _step_back(gains, c, r, n, later, state, room)
                    add_product(gains.noise[c, r], fresh, n, 1.0, state)
                else:
                    state[:] = fresh
                room[:] = filtered[t]
                add_product(gains.filtered[c, r], state, n, 1.0, room)
                if q:
                    add_product(diffuse.filtered[c, t], drawn, n, 1.0, room)
                for lane in range(n):
                    for i in range(n_states):
                        path[draw, group[lane], t, i] = room[i * n + lane]


@kernel
def score_means(part, model, sequences, gains, diffuse, out, mean, state_error, error):
    """Smoothed means, and the gradients of log p(x) in the predicted means and in what is added to observations."""
    n_features, n_states = model.emission.shape[-2:]
    for group in sequences.groups[part[0] : part[1]]:
        n, c = lanes_of(group), sequences.set_of[group[0]]
        if gains.fault[c] >= 0:
            continue
        transition, emission = model.transition[model.transition_of[c]], model.emission[model.emission_of[c]]
        seen = model.seen[model.seen_of[c]]
        white, filtered = _room(model, c, n, True)
        weights = forward_means(model, sequences, gains, diffuse, c, group, n, white, filtered, out)
        if len(weights):
            _add_diffuse(diffuse, c, n, weights, white, filtered)
        later, ahead, room = np.zeros(n_states * n), np.zeros(n_states * n), np.empty(n_states * n)
        for t in range(len(white) - 1, -1, -1):
            r, here, now, sees = min(t, gains.steady[c]), filtered[t], white[t], row(seen, t)
            if t + 1 < len(white):
                ahead[:] = 0.0
                add_transposed_product(row(transition, t), later, n, 1.0, ahead)
                room[:] = 0.0
                add_transposed_product(gains.filtered[c, r], ahead, n, 1.0, room)
                add_product(gains.filtered[c, r], room, n, 1.0, here)
            add_transposed_product(gains.gain[c, r], ahead, n, -1.0, now)
            solve_transposed_lanes(gains.root[c, r], n, now)
            for f in range(n_features):
                if not sees[f]:
                    now[f * n : (f + 1) * n] = 0.0
            later[:] = ahead
            add_transposed_product(row(emission, t), now, n, 1.0, later)
            for lane in range(n):
                b = group[lane]
                for i in range(n_states):
                    mean[b, t, i] = here[i * n + lane]
                    state_error[b, t, i] = later[i * n + lane]
                for f in range(n_features):
                    error[b, t, f] = now[f * n + lane]
