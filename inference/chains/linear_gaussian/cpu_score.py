r"""The part of the gradient of log p(x) that depends on covariances, as a fused numba kernel.

With $r_t$ and $\frac12 (r_t r_t^\top - N_t)$ the gradients of log p(x) in the predicted mean and covariance, and u the
gradient in the observation offset, backward from the last step (de Jong 1989; Koopman & Shephard 1992):

$$u = F^{-1} v - K^\top A^\top r_{t+1}, \quad r_t = C^\top u + A^\top r_{t+1}, \quad
N_t = C^\top F^{-1} C + (I - K C)^\top A^\top N_{t+1} A (I - K C)$$

The gradients in A, Q, C and R are then products of means, of which `op` makes them, less the tables made here:

$$N_{t+1} A P_f, \quad N_{t+1}, \quad K^\top (I - A^\top N_{t+1} A P_f), \quad F^{-1} + K^\top A^\top N_{t+1} A K$$

summed over steps where a parameter is constant. Over diffuse coordinates of covariance $\Delta$, products of means have
covariances too, which are taken from these tables.
"""

import numpy as np

from ...numerics.compilation import kernel
from ...numerics.small_matrices import (
    add,
    clear,
    copy,
    is_steady,
    multiply,
    multiply_by_transposed,
    multiply_transposed,
    solve,
    solve_transposed,
)
from .cpu_covariances import row


@kernel
def _add(table, left, right, out):
    """out += table - left right'."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            total = table[i, j]
            for k in range(left.shape[1]):
                total -= left[i, k] * right[j, k]
            out[i, j] += total


@kernel
def _pass_sight(root, gain, emission, sees, covariance, back, room, of_sight, of_noise, future):
    """From A' N A, N before the observation, and the gradients of the tables of C and R."""
    n_features, n_states = of_sight.shape
    turned, whitened, rest, product, inverse = room
    for f in range(n_features):
        for i in range(n_states):
            turned[f, i] = gain[i, f]
            whitened[f, i] = emission[f, i] if sees[f] else 0.0
        for g in range(n_features):
            inverse[f, g] = 1.0 if f == g else 0.0
    solve_transposed(root, turned)  # K'
    multiply_transposed(turned, whitened, rest)
    for i in range(n_states):
        for j in range(n_states):
            rest[i, j] = (1.0 if i == j else 0.0) - rest[i, j]
    multiply(back, rest, product)
    multiply_transposed(rest, product, future)
    solve(root, whitened)
    solve(root, inverse)
    multiply_transposed(inverse, inverse, of_noise)
    multiply(turned, back, of_sight)
    for k in range(n_features):
        for i in range(n_states):
            for j in range(n_states):
                future[i, j] += whitened[k, i] * whitened[k, j]
        for f in range(n_features):
            for i in range(n_states):
                of_noise[f, k] += of_sight[f, i] * turned[k, i]
    multiply(of_sight, covariance, whitened)
    for f in range(n_features):
        for i in range(n_states):
            of_sight[f, i] = turned[f, i] - whitened[f, i]
    for f in range(n_features):
        if not sees[f]:
            for i in range(n_states):
                of_sight[f, i] = 0.0
            for g in range(n_features):
                of_noise[f, g], of_noise[g, f] = 0.0, 0.0


@kernel
def _pass_columns(root, gain, factor, emission, sees, spread, means, white, ahead, room, state, error, later):
    """The diffuse columns of the smoothed state, of u, and of r before the observation."""
    n_features, n_states = emission.shape
    multiply(white, spread, error)
    multiply(means, spread, state)
    moved, tall = room
    multiply_transposed(factor, ahead, moved)
    multiply(factor, moved, tall)
    add(tall, state)
    for f in range(n_features):
        for k in range(error.shape[1]):
            for i in range(n_states):
                error[f, k] -= gain[i, f] * ahead[i, k]
    solve_transposed(root, error)
    for k in range(error.shape[1]):
        for i in range(n_states):
            later[i, k] = ahead[i, k]
        for f in range(n_features):
            if not sees[f]:
                error[f, k] = 0.0
            for i in range(n_states):
                later[i, k] += emission[f, i] * error[f, k]


@kernel
def score_covariances(part, model, gains, diffuse, out):
    """Add to `out`, tables of zeros, for the sets `part[0] : part[1]`."""
    n_features, n_states = model.emission.shape[-2:]
    q = model.directions.shape[1]
    square, sight, columns = (n_states, n_states), (n_features, n_states), (n_states, q)
    future, before, reference, clock = np.empty(square), np.empty(square), np.empty(square), np.zeros(1, np.int64)
    covariance, back, product, of_move = np.empty(square), np.empty(square), np.empty(square), np.empty(square)
    of_sight, of_noise = np.empty(sight), np.empty((n_features, n_features))
    room = (np.empty(sight), np.empty(sight), np.empty(square), np.empty(square), np.empty((n_features, n_features)))
    later, ahead, state, error = np.empty(columns), np.empty(columns), np.empty(columns), np.empty((n_features, q))
    narrow = (np.empty(columns), np.empty(columns))
    for c in range(part[0], part[1]):
        if gains.fault[c] >= 0:
            continue
        transition, emission = model.transition[model.transition_of[c]], model.emission[model.emission_of[c]]
        seen, n_steps, steady = model.seen[model.seen_of[c]], model.lengths[c], gains.steady[c]
        for table in (future, back):
            clear(table)
        for table in (later, ahead):
            clear(table)
        clock[0], at_rest = 0, False
        for t in range(n_steps - 1, -1, -1):
            r, sees = min(t, steady), row(seen, t)
            root, gain, factor = gains.root[c, r], gains.gain[c, r], gains.filtered[c, r]
            fresh = t < steady or not at_rest
            if t < n_steps - 1:
                _add(future, later, later, row(out.state[c], t))
                multiply_transposed(row(transition, t), later, ahead)
            if fresh:
                copy(future, before)
                multiply_by_transposed(factor, factor, covariance)
                if t < n_steps - 1:
                    multiply(future, row(transition, t), product)
                    multiply(product, covariance, of_move)
                    multiply_transposed(row(transition, t), product, back)
                _pass_sight(root, gain, row(emission, t), sees, covariance, back, room, of_sight, of_noise, future)
                at_rest = t > steady and is_steady(future, before, reference, clock, n_steps - t)
            if q:
                spread, means, white = diffuse.spread[c, -1], diffuse.filtered[c, t], diffuse.white[c, t]
                for i in range(n_states):
                    for j in range(q):
                        product[i, j] = later[i, j]
                _pass_columns(
                    root, gain, factor, row(emission, t), sees, spread, means, white, ahead, narrow, state, error, later
                )
            if t < n_steps - 1:
                _add(of_move, product[:, :q], state, row(out.transition[c], t))
            _add(of_sight, error, state, row(out.emission[c], t))
            _add(of_noise, error, error, row(out.observation[c], t))
        _add(future, later, later, out.initial[c, 0])
