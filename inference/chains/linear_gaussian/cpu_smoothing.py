r"""Covariances of filtered and smoothed states, as fused numba kernels.

Backward in time the whitened state has the covariance $S S^\top$, with $S \leftarrow [J S, N]$ made triangular, and
so $V_t = (Z_f S)(Z_f S)^\top$. The diffuse coordinates add $M \Delta M^\top$, with $M_t = M_f + Z_f E_t$ and
$E_{t-1} = J E_t + H W_t$.
"""

import numpy as np

from ...numerics.compilation import kernel
from ...numerics.small_matrices import (
    add,
    add_by_transposed,
    clear,
    copy,
    is_steady,
    multiply,
    multiply_by_transposed,
    triangularize,
)


@kernel
def filtered_covariances(part, model, gains, diffuse, out):
    """Before and after each observation, and their parts that are multiplied by an infinite variance."""
    n_states = model.emission.shape[-1]
    q = model.directions.shape[1]
    before, after, columns = np.empty((n_states, n_states)), np.empty((n_states, n_states)), np.empty((n_states, q))
    whole = np.empty((n_states, n_states))
    for c in range(part[0], part[1]):
        if gains.fault[c] >= 0:
            continue
        for t in range(model.lengths[c]):
            if t <= gains.steady[c]:
                multiply_by_transposed(gains.predicted[c, t], gains.predicted[c, t], before)
                multiply_by_transposed(gains.filtered[c, t], gains.filtered[c, t], after)
            for s, factor, means, total in (
                (t, after, 1, out.covariance),
                (t - 1, before, 0, out.predicted_covariance),
            ):
                copy(factor, whole)
                if q:
                    table = diffuse.filtered[c, t] if means else diffuse.predicted[c, t]
                    if s >= 0:
                        multiply(table, diffuse.spread[c, s], columns)
                        add_by_transposed(columns, columns, whole)
                        multiply(table, diffuse.open[c, s], columns)
                    else:
                        copy(table, columns)
                    multiply_by_transposed(
                        columns, columns, out.diffuse[c, t] if means else out.predicted_diffuse[c, t]
                    )
                copy(whole, total[c, t])


@kernel
def _beside(left, right, out):
    """out = [left, right]."""
    n = left.shape[1]
    for i in range(left.shape[0]):
        for j in range(n):
            out[i, j] = left[i, j]
            out[i, n + j] = right[i, j]


@kernel
def smoothed_covariances(part, model, gains, diffuse, covariance, cross):
    """Of each state, and of each with the one before it, given all observations."""
    n_states, q = model.emission.shape[-1], model.directions.shape[1]
    square, wide_shape, tall = (n_states, n_states), (n_states, 2 * n_states), (n_states, q)
    spread, wide, backed = np.empty(square), np.empty(wide_shape), np.empty(square)
    reference, clock = np.empty(square), np.zeros(1, np.int64)  # of `is_steady`
    here, later, earlier = np.empty(square), np.empty(square), np.empty(square)
    noise, pair, whole = np.empty(square), np.empty(square), np.empty(square)
    drawn, moved, sums, means, after = np.empty(tall), np.empty(tall), np.empty(tall), np.empty(tall), np.empty(tall)
    for c in range(part[0], part[1]):
        if gains.fault[c] >= 0:
            continue
        n_steps, steady = model.lengths[c], gains.steady[c]
        clear(spread)
        clear(drawn)
        for i in range(n_states):
            spread[i, i] = 1.0
        clock[0], at_rest = 0, False
        for t in range(n_steps - 1, -1, -1):
            r = min(t, steady)
            if t == n_steps - 1:
                multiply(gains.filtered[c, r], spread, here)
                multiply_by_transposed(here, here, noise)
            elif t < steady or not at_rest:
                copy(here, later)
                multiply(gains.back[c, r], spread, backed)
                multiply(gains.filtered[c, r], backed, earlier)
                multiply_by_transposed(later, earlier, pair)
                _beside(backed, gains.noise[c, r], wide)
                triangularize(wide, n_states)
                at_rest = t > steady and is_steady(wide, spread, reference, clock, n_steps - 1 - t)
                copy(wide, spread)
                multiply(gains.filtered[c, r], spread, here)
                multiply_by_transposed(here, here, noise)
            copy(noise, whole)
            if q:
                copy(means, after)
                if t < n_steps - 1:
                    multiply(gains.back[c, r], drawn, moved)
                    multiply(gains.drift[c, r], diffuse.white[c, t + 1], drawn)
                    add(moved, drawn)
                multiply(gains.filtered[c, r], drawn, sums)
                add(diffuse.filtered[c, t], sums)
                multiply(sums, diffuse.spread[c, -1], means)
                add_by_transposed(means, means, whole)
            copy(whole, covariance[c, t])
            if t < n_steps - 1:
                copy(pair, whole)
                add_by_transposed(after, means, whole)
                copy(whole, cross[c, t])
