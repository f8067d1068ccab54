r"""Latents given regimes on the CPU: a step of a Gibbs sampler.

A draw of the latents is a draw from their prior, with its observations, plus the smoother's mean for the difference to
x (Durbin & Koopman 2002, *A simple and efficient simulation smoother*). The smoother runs backward over

$$r_{t-1} = C^\top F^{-1} v_t + (I - K C)^\top A_{t+1}^\top r_t, \qquad E[s_t \mid x] = m_t + P_t r_{t-1}$$

so that no covariance of latents is inverted; they may be singular. In the recurrent kind, given Polya-Gamma numbers
$\omega$ the regression of each stick is one more observation of the latents (Linderman et al. 2017):
$\kappa / \omega \sim N(u, 1 / \omega)$ with $\kappa = \pm\frac12$.
"""

import math
from typing import NamedTuple

import numpy as np

from ...numerics.compilation import inlined, kernel
from ...numerics.small_matrices import add, copy, multiply, multiply_transposed
from .cpu_steps import predict, update


class Rows(NamedTuple):
    """The observations of a step: the F features of x, and after them the regressions of J sticks; R = F + J."""

    seen: np.ndarray  # [R], NaN where there is none
    difference: np.ndarray  # [R], of these to those that come with the prior's draw
    emission: np.ndarray  # [R, L]
    offset: np.ndarray  # [R]
    noise: np.ndarray  # [R, R], a covariance


class Steps(NamedTuple):
    """What the smoother goes back over, of x and of the difference at once: their covariances are the same."""

    mean: np.ndarray  # [T, L], before the observation
    shift: np.ndarray  # [T, L], the same of the difference
    covariance: np.ndarray  # [T, L, L], before the observation
    rest: np.ndarray  # [T, L, L], 1 less the gain times the emission
    whitened: np.ndarray  # [T, R, L], the emission divided by the factor of the innovation's covariance
    innovation: np.ndarray  # [T, 2, R], of x and of the difference, whitened


@inlined
def _draw_prior(p, z, t, roots, noise, drawn):
    """The latents of step t given the previous ones, without x."""
    n = p.emission.shape[2]
    for i in range(n):
        value = p.initial_mean[z, i] if t == 0 else p.transition_offset[z, i]
        for j in range(n):
            if t == 0:
                value += roots[0][z, i, j] * noise[j]
            else:
                value += p.transition[z, i, j] * drawn[t - 1, j] + roots[1][z, i, j] * noise[j]
        drawn[t, i] = value


@inlined
def _advance(p, z, t, mean, covariance, shift, work, steps):
    """From after the observation of step t - 1 to before that of step t, in place and in `steps`."""
    n = mean.shape[0]
    if t == 0:
        steps.shift[0] = 0.0
        for i in range(n):
            steps.mean[0, i] = p.initial_mean[z, i]
            for j in range(n):
                steps.covariance[0, i, j] = p.initial_covariance[z, i, j]
    else:
        predict(p, z, mean, covariance, work, steps.mean[t], steps.covariance[t])
        for i in range(n):
            value = 0.0
            for j in range(n):
                value += p.transition[z, i, j] * shift[j]
            steps.shift[t, i] = value
    for i in range(n):
        mean[i], shift[i] = steps.mean[t, i], steps.shift[t, i]
        for j in range(n):
            covariance[i, j] = steps.covariance[t, i, j]


@inlined
def _see_features(p, z, x, roots, noise, drawn, rows):
    """The rows of x in regime z."""
    n_features, n = p.emission.shape[1], p.emission.shape[2]
    for f in range(n_features):
        rows.offset[f] = p.emission_offset[z, f]
        rows.seen[f] = x[f]
        value = x[f] - p.emission_offset[z, f]
        for i in range(n):
            rows.emission[f, i] = p.emission[z, f, i]
            value -= p.emission[z, f, i] * drawn[i]
        for g in range(n_features):
            rows.noise[f, g] = p.observation_noise[z, f, g]
            value -= roots[2][z, f, g] * noise[g]
        rows.difference[f] = value


@inlined
def _see_sticks(p, path, t, omega, noise, drawn, rows):
    """The rows of the sticks that the move from step t to the next broke or left."""
    first = p.emission.shape[1]
    for i in range(omega.shape[0]):
        f, precision = first + i, omega[i]
        rows.seen[f] = np.nan
        if precision > 0.0:
            rows.offset[f] = p.recurrence_offset[path[t], i]
            rows.seen[f] = (0.5 if path[t + 1] == i else -0.5) / precision
            rows.noise[f, f] = 1.0 / precision
            value = rows.seen[f] - rows.offset[f] - noise[f] / math.sqrt(precision)
            for j in range(drawn.shape[0]):
                value -= p.recurrence[i, j] * drawn[j]
            rows.difference[f] = value


@inlined
def _take_in(rows, work, t, shift, steps):
    """The shift after the observation of step t, as `update` left it in `work`, and the tables for `_smooth`."""
    n_rows, n = rows.emission.shape
    whitened, innovation, chol, k = steps.whitened[t], steps.innovation[t], work.chol, 0
    for f in range(n_rows):
        if math.isnan(rows.seen[f]):
            continue
        residual = rows.difference[f]
        for j in range(n):
            residual -= rows.emission[f, j] * steps.shift[t, j]
        white = residual
        for e in range(k):
            white -= chol[k, e] * innovation[1, e]
        innovation[0, k] = work.gap[k]
        innovation[1, k] = white / chol[k, k]
        for j in range(n):
            value = rows.emission[f, j]
            for e in range(k):
                value -= chol[k, e] * whitened[e, j]
            whitened[k, j] = value / chol[k, k]
            shift[j] += work.gain[j, k] * residual
        k += 1
    whitened[k:] = 0.0  # rows that are not seen
    innovation[:, k:] = 0.0
    for i in range(n):
        for j in range(n):
            steps.rest[t, i, j] = work.rest[i, j]


@kernel
def _smooth(p, path, steps, drawn, mean, covariance):
    """Means and covariances given all of x; the prior's draw is moved by the mean of the difference."""
    n, (means, shifts, spreads, maps, whitened, innovation) = mean.shape[1], steps
    back, moved = np.zeros((2, n)), np.empty((2, n))
    back_square, square, half = np.zeros((n, n)), np.empty((n, n)), np.empty((n, n))
    for t in range(len(path) - 1, -1, -1):
        multiply(back, maps[t], moved)
        multiply(innovation[t], whitened[t], back)
        add(moved, back)
        multiply(back_square, maps[t], half)
        multiply_transposed(maps[t], half, square)
        multiply_transposed(whitened[t], whitened[t], half)
        add(half, square)
        for i in range(n):
            mean[t, i] = means[t, i]
            drawn[t, i] += shifts[t, i]
            for j in range(n):
                mean[t, i] += spreads[t, i, j] * back[0, j]
                drawn[t, i] += spreads[t, i, j] * back[1, j]
        multiply(spreads[t], square, half)
        for i in range(n):
            for j in range(n):
                value = spreads[t, i, j]
                for e in range(n):
                    value -= half[i, e] * spreads[t, e, j]
                covariance[t, i, j] = value
        a = p.transition[path[t]]
        multiply(back, a, moved)
        copy(moved, back)
        multiply(square, a, half)
        multiply_transposed(a, half, back_square)


@kernel
def draw(part, work, x, lengths, path, p, roots, omega, noise, seen_noise, drawn, mean, covariance, failed):
    """Of each path [B, T], a draw [B, T, L] of the latents, and their means and covariances; b sees x[b % N].

    `roots` are the factors of initial_covariance, state_noise and observation_noise; `omega` [B, T, J] is 0 where a
    stick says nothing; the noises [B, T, L] and [B, T, F + J] are standard normal numbers.
    """
    n_steps, n_rows, n = x.shape[1], x.shape[2] + omega.shape[2], p.emission.shape[2]
    m, v, shift = np.empty(n), np.empty((n, n)), np.empty(n)
    # the record's arrays have names of their own, since to take them out of it in the loop would cost
    seen, difference, offset = np.empty(n_rows), np.empty(n_rows), np.zeros(n_rows)
    emission, r = np.zeros((n_rows, n)), np.zeros((n_rows, n_rows))
    copy(p.recurrence, emission[x.shape[2] :])
    rows = Rows(seen, difference, emission, offset, r)
    vectors, squares = np.empty((2, n_steps, n)), np.empty((2, n_steps, n, n))
    whitened, innovation = np.empty((n_steps, n_rows, n)), np.empty((n_steps, 2, n_rows))
    steps = Steps(vectors[0], vectors[1], squares[0], squares[1], whitened, innovation)
    for b in range(part[0], part[1]):
        for t in range(lengths[b]):
            z = path[b, t]
            _draw_prior(p, z, t, roots, noise[b, t], drawn[b])
            _advance(p, z, t, m, v, shift, work, steps)
            _see_features(p, z, x[b % x.shape[0], t], roots, seen_noise[b, t], drawn[b, t], rows)
            _see_sticks(p, path[b], t, omega[b, t], seen_noise[b, t], drawn[b, t], rows)
            if math.isnan(update(seen, emission, offset, r, m, v, work)):
                failed[b] = t
                break
            _take_in(rows, work, t, shift, steps)
        if failed[b] < 0:
            _smooth(p, path[b, : lengths[b]], steps, drawn[b], mean[b], covariance[b])
