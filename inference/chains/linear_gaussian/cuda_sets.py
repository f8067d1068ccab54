r"""The covariances of linear Gaussian chains on a GPU: a program a set of them, step by step.

With a lower triangle N for the noise of a sight and Q for that of a move, steps are the rotations

$$\begin{bmatrix} N & C Z \\ 0 & Z \\ 0 & E \end{bmatrix} \Theta =
\begin{bmatrix} F^{1/2} & 0 \\ K F^{1/2} & Z_f \\ H & J \end{bmatrix}, \qquad
\begin{bmatrix} Q & A Z_f \\ 0 & I \end{bmatrix} \Theta' = \begin{bmatrix} Z^+ & 0 \\ E^+ & M \end{bmatrix}$$

A sight turns one feature after another into its column, by a reflection of L + 1 columns, so that no F x F matrix is
factored. E, of the smoother alone, goes through a move and the sight after it, and comes out as how whitened states
turn into each other: $\epsilon_{t-1} = J \epsilon_t + H w_t + M \nu$. All is done in float64.

A step of L states and F features costs $O(F (F + L)^2 + L^3)$; it reads C, N, A and Q, $F (F + L) + 2 L^2$ numbers,
and writes $F^{-1/2}$ and $K F^{1/2}$, $F (F + L)$ numbers, $L (F + 3 L)$ more for the smoother. Where parameters are
constant, steps end when nothing changes any more.
"""

import math

from ...numerics.gpu import constexpr, kernel, position, tl, within
from ...numerics.gpu_matrices import absorb, at_step, column_of, outer, product, reflect, reflection, row_of, unit
from .tables import OVERFLOW, SINGULAR

_OVERFLOW, _SINGULAR = constexpr(OVERFLOW), constexpr(SINGULAR)
_HALF_LOG_2PI = constexpr(math.log(2 * math.pi) / 2)


@kernel
def triangularize(factor, seen, out, SIZE: constexpr, SIDE: constexpr):
    """Lower triangles of factors [N, SIZE, SIZE], a program each; a row that is not seen is one of unit noise."""
    i = tl.arange(0, SIDE)
    mask, at = (i[:, None] < SIZE) & (i[None, :] < SIZE), i[:, None] * SIZE + i[None, :]
    sees, start = i < SIZE, position(0) * SIZE * SIZE
    if seen is not None:
        sees = tl.load(seen + position(0) * SIZE + i, i < SIZE, 0) != 0
    tile = tl.load(factor + start + at, mask & sees[:, None], 0.0).to(tl.float64)
    start_factor = tl.where(sees[None, :], 0.0, unit(SIDE))
    lower, _, _ = absorb(start_factor, tile, tile, i, SIZE, False)
    tl.debug_barrier()  # `out` may be `factor`, of which all have read their parts
    tl.store(out + start + at, lower, mask)


@kernel
def _differs(table, other, bound):
    """1 if a number differs by more than its row's bound, else 0."""
    return tl.max(tl.max((tl.abs(table - other) > bound[:, None]).to(tl.int32), 1), 0)


@kernel
def filter_sets(
    transition, state_noise, emission, noise, initial, seen, lengths,
    white, gain, constant, filtered, drift, back, stays, covariance, predicted, steady, fault,
    n_transition, n_state, n_emission, n_noise, steps,
    STATES: constexpr, FEATURES: constexpr, SIDE: constexpr, WIDE: constexpr, AT_REST: constexpr,
    LEAST: constexpr, LARGEST: constexpr, SAME: constexpr,
):  # fmt: skip
    """Forward. `filtered` is written if requested, `drift`, `back` and `stays` (H, J, M) for the smoother."""
    c, i, f = position(0), tl.arange(0, SIDE), tl.arange(0, WIDE)
    state, feature = i < STATES, f < FEATURES
    square, at = state[:, None] & state[None, :], i[:, None] * STATES + i[None, :]
    place = feature[:, None] & feature[None, :], f[:, None] * FEATURES + f[None, :]
    size: constexpr = STATES * STATES
    z = tl.load(initial + c * size + at, square, 0.0).to(tl.float64)
    n = tl.load(lengths + c)
    end, t = n, n * 0
    bad, clock = t - 1, t
    e, reference, none = tl.zeros_like(z), tl.zeros_like(z), tl.zeros((SIDE,), tl.float64)
    after, ahead = tl.zeros_like(z), tl.zeros_like(z)
    while t < end:
        step, before = c * steps + t, z
        beyond = tl.max((state & ~(tl.sum(z * z, 1) <= LARGEST)).to(tl.int32), 0)
        if predicted is not None:
            ahead = outer(z, z, i, STATES)
            tl.store(predicted + step * size + at, ahead, square)
        sees = feature
        if seen is not None:
            sees = sees & (tl.load(seen + step * FEATURES + f, feature, 0) != 0)
        s = product(at_step(emission, c, t, n_emission, FEATURES * STATES), STATES, f, sees, z, i)
        triangle = at_step(noise, c, t, n_noise, FEATURES * FEATURES)
        triangle = tl.load(triangle + place[1], place[0], 0.0)
        scale = tl.maximum(tl.max(tl.abs(s), 1), tl.max(tl.abs(triangle), 1))
        rest, total = unit(WIDE), tl.sum(sees.to(tl.float64), 0) * _HALF_LOG_2PI
        singular = beyond * 0
        for k in range(FEATURES):
            mine, row = column_of(triangle, f, k), row_of(s, f, k)
            norm, head, factor = reflection(tl.sum(tl.where(f == k, mine, 0.0), 0), row)
            mine, s = reflect(mine, s, row, head, factor)
            share, z = reflect(none, z, row, head, factor)
            fine = norm > LEAST * tl.sum(tl.where(f == k, scale, 0.0), 0)
            singular = tl.where(fine, singular, 1)
            norm = tl.where(fine, norm, 1.0)
            total += tl.log(norm)
            inverse = row_of(rest, f, k) / norm
            rest -= tl.where(f > k, mine, 0.0)[:, None] * inverse[None, :]
            tl.store(white + (step * FEATURES + k) * FEATURES + f, inverse, feature)
            tl.store(gain + (step * STATES + i) * FEATURES + k, share, state)
            if back is not None:
                share, e = reflect(none, e, row, head, factor)
                tl.store(drift + (step * STATES + i) * FEATURES + k, share, state)
        tl.store(constant + step, total)
        if filtered is not None:
            tl.store(filtered + step * size + at, z, square)
        if covariance is not None:
            after = outer(z, z, i, STATES)
            tl.store(covariance + step * size + at, after, square)
        if back is not None:
            tl.store(back + step * size + at, e, square)
        bad = tl.where(singular != 0, 4 * t + _SINGULAR, bad)
        bad = tl.where(beyond != 0, 4 * t + _OVERFLOW, bad)
        moves, goes = within(square, t, 0, n - 1), within(state, t, 0, n - 1)
        q = tl.load(at_step(state_noise, c, t, n_state, size) + at, moves, 0.0)
        x = product(at_step(transition, c, t, n_transition, size), STATES, i, goes, z, i)
        new, e, free = absorb(q, x, unit(SIDE), i, STATES, back is not None)
        if back is not None:
            tl.store(stays + step * size + at, free, square)
        z, t = new, t + 1
        end = tl.where(bad >= 0, 0, end)
        if (
            AT_REST
        ):  # as `Steady` of `native/matrices.h` has it, and one sight more, which says how the last move is met
            bound, looks = SAME * tl.sqrt(tl.sum(before * before, 1)), t >= clock
            moved = _differs(z, before, bound) + _differs(z, reference, bound)
            end = tl.where(looks & (clock > 0) & (moved == 0), tl.minimum(end, t + 1), end)
            reference = tl.where(looks, z, reference)
            clock = tl.where(looks, t + tl.maximum(8, t // 8), clock)
    last = tl.maximum(t - 1, 0)
    tl.store(steady + c, last)
    tl.store(fault + c, bad)
    if covariance is not None:  # at rest they stay, and beyond the end are zeros
        for t in range(last + 1, steps):
            more = within(square, t, 0, n)
            tl.store(predicted + (c * steps + t) * size + at, tl.where(more, ahead, 0.0), square)
            tl.store(covariance + (c * steps + t) * size + at, tl.where(more, after, 0.0), square)


@kernel
def smooth_sets(
    filtered, back, stays, steady, lengths, covariance, cross, steps,
    STATES: constexpr, FEATURES: constexpr, SIDE: constexpr, WIDE: constexpr,
):  # fmt: skip
    r"""Backward: $V = (Z_f S) (Z_f S)^\top$ from triangles $S \leftarrow [M, J S]$, and the covariances of neighbours.

    A step costs $O(L^3)$; it reads J, M and $Z_f$, $3 L^2$ numbers, and writes $2 L^2$.
    """
    c, i = position(0), tl.arange(0, SIDE)
    state, size = i < STATES, STATES * STATES
    square, at = state[:, None] & state[None, :], i[:, None] * STATES + i[None, :]
    n, last = tl.load(lengths + c), tl.load(steady + c)
    s = unit(SIDE)
    here, t = tl.zeros_like(s), c * 0 + steps - 1
    for _ in range(steps):
        row = c * steps + tl.minimum(t, last)
        moves, goes = within(square, t, 0, n - 1), within(state, t, 0, n - 1)
        x = product(back + (c * steps + tl.minimum(t + 1, last)) * size, STATES, i, goes, s, i)
        root = filtered + row * size
        pair = outer(here, product(root, STATES, i, goes, x, i), i, STATES)
        tl.store(cross + (c * (steps - 1) + t) * size + at, pair, within(square, t, 0, steps - 1))
        new, _, _ = absorb(tl.load(stays + row * size + at, moves, 0.0), x, x, i, STATES, False)
        s = tl.where(moves, new, s)
        here = product(root, STATES, i, within(state, t, 0, n), s, i)
        tl.store(covariance + (c * steps + t) * size + at, outer(here, here, i, STATES), square)
        t -= 1
