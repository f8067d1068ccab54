r"""The factors of a linear Gaussian chain, forward in time, as a fused numba kernel.

A step makes two arrays triangular, one for what is seen and one for the move:

$$\begin{bmatrix} C Z & R^{1/2} \\ Z & 0 \\ I & 0 \end{bmatrix} \Theta =
\begin{bmatrix} F^{1/2} & 0 \\ K F^{1/2} & Z_f \\ \Theta_{11} & \Theta_{12} \end{bmatrix}, \qquad
\begin{bmatrix} A Z_f & Q^{1/2} \\ I & 0 \end{bmatrix} \Theta' =
\begin{bmatrix} Z^+ & 0 \\ \Theta'_{11} & \Theta'_{12} \end{bmatrix}$$

The rows of the unit matrix, of the smoother alone, keep how whitened states turn into each other: with $s_t = m + Z_f
\epsilon_t$, $\epsilon_t = \Theta'_{11} (\Theta_{11} w_{t+1} + \Theta_{12} \epsilon_{t+1}) + \Theta'_{12} \nu$.
"""

import math

import numpy as np

from ...numerics.compilation import kernel
from ...numerics.small_matrices import clear, copy, is_steady, multiply, triangularize
from .steps import SCALE
from .tables import OVERFLOW, SINGULAR


@kernel
def seen_noise(factor, seen, room, out):
    """A lower triangle for the noise of the features that are seen, and unit noise for the others."""
    n = len(seen)
    count = 0
    for f in range(n):
        if seen[f]:
            for g in range(n):
                room[count, g] = factor[f, g]
            count += 1
    if count == n:
        copy(factor, out)
        return
    triangularize(room[:count], count)
    row = 0
    for f in range(n):
        for g in range(n):
            out[f, g] = 0.0
        if not seen[f]:
            out[f, f] = 1.0
            continue
        column = 0
        for g in range(f + 1):
            if seen[g]:
                out[f, g] = room[row, column]
                column += 1
        row += 1


@kernel
def row(table, t):
    """What a table with an axis of steps has for step t."""
    return table[t if len(table) > 1 else 0]


@kernel
def _set_sight(table, emission, factor, noise, seen):
    """The array of the observation."""
    n_features, n_states = emission.shape
    clear(table)
    for f in range(n_features):
        for g in range(n_features):
            table[f, n_states + g] = noise[f, g]
        for k in range(n_states if seen[f] else 0):
            weight = emission[f, k]
            for j in range(k + 1):  # a lower triangle, as all factors are but the first
                table[f, j] += weight * factor[k, j]
    for i in range(n_states):
        for j in range(n_states):
            table[n_features + i, j] = factor[i, j]
    for i in range(table.shape[0] - n_features - n_states):
        table[n_features + n_states + i, i] = 1.0


@kernel
def _set_move(table, transition, factor, noise):
    """The array of a move."""
    n_states = transition.shape[0]
    clear(table)
    for i in range(n_states):
        for k in range(n_states):
            weight = transition[i, k]
            for j in range(k + 1):  # a lower triangle
                table[i, j] += weight * factor[k, j]
        for j in range(n_states):
            table[i, n_states + j] = noise[i, j]
    for i in range(table.shape[0] - n_states):
        table[n_states + i, i] = 1.0


@kernel
def _variances_overflow(factor, largest):
    for i in range(factor.shape[0]):
        variance = 0.0
        for j in range(factor.shape[1]):
            variance += factor[i, j] * factor[i, j]
        if not variance <= largest:
            return True
    return False


@kernel
def _set_scale(sight, scale):
    """The greatest number of each innovation's row."""
    for f in range(len(scale)):
        scale[f] = 0.0
        for j in range(sight.shape[1]):
            scale[f] = max(scale[f], abs(sight[f, j]))


@kernel
def _log_det(sight, scale, least):
    """Of the innovation's factor, NaN where that is singular."""
    total = 0.0
    for f in range(len(scale)):
        if not sight[f, f] > least * scale[f]:
            return math.nan
        total += math.log(sight[f, f])
    return total


@kernel
def filter_factors(part, model, gains):
    """Go through the steps of the sets `part[0] : part[1]`, until one fails or nothing changes any more."""
    n_features, n_states = model.emission.shape[-2:]
    smoothing = gains.noise.shape[1] > 0
    n_turned = n_states if smoothing else 0
    sight = np.empty((n_features + n_states + n_turned, n_features + n_states))
    move = np.empty((n_states + n_turned, 2 * n_states))
    factor, reference = np.empty((n_states, n_states)), np.empty((n_states, n_states))
    noise, room = np.empty((n_features, n_features)), np.empty((n_features, n_features))
    scale, clock = np.empty(n_features), np.zeros(1, np.int64)
    least = SCALE * model.least
    upper, lower = sight[:, :n_features], sight[:, n_features:]
    for c in range(part[0], part[1]):
        transition, state_factor = (
            model.transition[model.transition_of[c]],
            model.state_factor[model.state_factor_of[c]],
        )
        emission, seen = model.emission[model.emission_of[c]], model.seen[model.seen_of[c]]
        observation_factor = model.observation_factor[model.observation_factor_of[c]]
        constant = len(transition) == len(state_factor) == len(emission) == len(observation_factor) == len(seen) == 1
        copy(model.initial_factor[model.initial_factor_of[c]], factor)
        triangularize(factor, n_states)
        n_steps, clock[0] = model.lengths[c], 0
        gains.steady[c] = n_steps - 1
        for t in range(n_steps):
            if _variances_overflow(factor, model.largest):
                gains.fault[c] = 4 * t + OVERFLOW
                break
            sees = row(seen, t)
            seen_noise(row(observation_factor, t), sees, room, noise)
            _set_sight(sight, row(emission, t), factor, noise, sees)
            _set_scale(sight, scale)
            triangularize(sight, n_features + n_states)
            gains.log_det[c, t] = _log_det(sight, scale, least)
            if math.isnan(gains.log_det[c, t]):
                gains.fault[c] = 4 * t + SINGULAR
                break
            copy(factor, gains.predicted[c, t])
            copy(upper, gains.root[c, t])
            copy(upper[n_features:], gains.gain[c, t])
            copy(lower[n_features:], gains.filtered[c, t])
            if smoothing and t:
                _keep_turn(sight, move, gains, c, t - 1)
            if t + 1 == n_steps:
                break
            _set_move(move, row(transition, t), gains.filtered[c, t], row(state_factor, t))
            triangularize(move, n_states)
            if smoothing:
                copy(move[n_states:, n_states:], gains.noise[c, t])
            at_rest = constant and is_steady(move, factor, reference, clock, t + 1)
            copy(move, factor)
            if at_rest:
                gains.steady[c] = t
                if smoothing:
                    _keep_turn(sight, move, gains, c, t)
                break


@kernel
def _keep_turn(sight, move, gains, c, t):
    """How the whitened state of a step follows from that of the next one."""
    n_states, n_features = gains.drift.shape[-2:]
    turned, into = sight[n_features + n_states :], move[n_states:, :n_states]
    multiply(into, turned[:, :n_features], gains.drift[c, t])
    multiply(into, turned[:, n_features:], gains.back[c, t])
