r"""The means of linear Gaussian chains on a GPU, with known covariances: each program takes a few sequences.

With the gains of `cuda_sets`, a step is $w = F^{-1/2} (x - d - C m)$, $m_f = m + K F^{1/2} w$ and $m = A m_f + c$. All
numbers of a step are loaded before the first is used. Steps are sequential in time.

A step of a sequence with L states and F features costs $O((F + L)^2)$. Forward it reads x, the gains and parameters, $F
(2 + F + 2 L) + L (L + 1)$ numbers (those that sequences share are in the cache), and writes the requested ones of w,
$m_f$ and m, $F + 2 L$. Backward it reads w, $m_f$, J, H and $Z_f$, $F + L + L (F + 2 L)$ numbers, and writes L.
"""

from ...numerics.gpu import constexpr, kernel, position, tl
from ...numerics.gpu_matrices import at_step, each_times, each_transposed_times, matrices, vectors


@kernel
def filter_means(
    set_of, lengths, steady, fault,
    x, seen, initial, transition, transition_offset, emission, emission_offset, white, gain, constant,
    total, increment, predicted, filtered, innovations,
    n_transition, n_move, n_emission, n_sight, sequences, steps,
    STATES: constexpr, FEATURES: constexpr, SIDE: constexpr, WIDE: constexpr, SEQUENCES: constexpr,
):  # fmt: skip
    """Forward: log p(x), and if requested its increments, means before and after, and whitened innovations."""
    b = position(0) * SEQUENCES + tl.arange(0, SEQUENCES)
    i, f, exists = tl.arange(0, SIDE), tl.arange(0, WIDE), b < sequences
    state, feature = i < STATES, f < FEATURES
    c = tl.load(set_of + b, exists, 0)
    n = tl.where(tl.load(fault + c, exists, 0) < 0, tl.load(lengths + c, exists, 0), 0)
    last = tl.load(steady + c, exists, 0)
    m = tl.load(initial + b[:, None] * STATES + i[None, :], exists[:, None] & state[None, :], 0.0).to(tl.float64)
    log_p, t = tl.zeros((SEQUENCES,), tl.float64), position(0) * 0
    for _ in range(steps):
        inside, row = exists & (n > t), c * steps + tl.minimum(last, t)
        moves = exists & (n > t + 1)
        y = vectors(x + b * steps * FEATURES, t, steps, FEATURES, f, inside)
        y -= vectors(emission_offset + b * n_sight * FEATURES, t, n_sight, FEATURES, f, inside)
        sights = matrices(at_step(emission, c, t, n_emission, FEATURES * STATES), f, i, FEATURES, STATES, inside)
        whitens = matrices(white + row * FEATURES * FEATURES, f, f, FEATURES, FEATURES, inside)
        gains = matrices(gain + row * STATES * FEATURES, i, f, STATES, FEATURES, inside)
        turns = matrices(at_step(transition, c, t, n_transition, STATES * STATES), i, i, STATES, STATES, moves)
        offset = vectors(transition_offset + b * n_move * STATES, t, n_move, STATES, i, moves)
        cost = tl.load(constant + row, inside, 0.0)
        sees = inside[:, None] & feature[None, :]
        if seen is not None:
            sees = sees & (tl.load(seen + (c[:, None] * steps + t) * FEATURES + f[None, :], sees, 0) != 0)
        if predicted is not None:
            at = (b[:, None] * steps + t) * STATES + i[None, :]
            tl.store(predicted + at, tl.where(inside[:, None], m, 0.0), exists[:, None] & state[None, :])
        w = each_times(whitens, tl.where(sees, y - each_times(sights, m), 0.0))
        m += each_times(gains, w)
        change = -(cost + tl.sum(w * w, 1) / 2)
        log_p += tl.where(inside, change, 0.0)
        if increment is not None:
            tl.store(increment + b * steps + t, tl.where(inside, change, 0.0), exists)
        if filtered is not None:
            at = (b[:, None] * steps + t) * STATES + i[None, :]
            tl.store(filtered + at, tl.where(inside[:, None], m, 0.0), exists[:, None] & state[None, :])
        if innovations is not None:
            tl.store(
                innovations + (b[:, None] * steps + t) * FEATURES + f[None, :], w, inside[:, None] & feature[None, :]
            )
        m = each_times(turns, m) + offset
        t += 1
    tl.store(total + b, log_p, exists)


@kernel
def smooth_means(
    set_of, lengths, steady, fault, filtered, innovations, root, drift, back, stays, noise, out,
    n_own, sequences, steps,
    STATES: constexpr, FEATURES: constexpr, SIDE: constexpr, WIDE: constexpr, SEQUENCES: constexpr,
):  # fmt: skip
    """Backward: means given all observations or, with noise [draws, N, T, L], draws of that shape."""
    b = position(0) * SEQUENCES + tl.arange(0, SEQUENCES)
    i, f, exists = tl.arange(0, SIDE), tl.arange(0, WIDE), b < sequences
    source = b % n_own
    c = tl.load(set_of + source, exists, 0)
    n = tl.where(tl.load(fault + c, exists, 0) < 0, tl.load(lengths + c, exists, 0), 0)
    last = tl.load(steady + c, exists, 0)
    e, t = tl.zeros((SEQUENCES, SIDE), tl.float64), position(0) * 0 + steps - 1
    for _ in range(steps):
        inside, moves = exists & (n > t), exists & (n > t + 1)
        row, later = c * steps + tl.minimum(last, t), c * steps + tl.minimum(last, t + 1)
        w = vectors(innovations + source * steps * FEATURES, t + 1, steps, FEATURES, f, moves)
        m = vectors(filtered + source * steps * STATES, t, steps, STATES, i, inside)
        drifts = matrices(drift + later * STATES * FEATURES, i, f, STATES, FEATURES, moves)
        backs = matrices(back + later * STATES * STATES, i, i, STATES, STATES, moves)
        roots = matrices(root + row * STATES * STATES, i, i, STATES, STATES, inside)
        e = each_times(backs, e) + each_times(drifts, w)
        if noise is not None:
            nu = vectors(noise + b * steps * STATES, t, steps, STATES, i, inside)
            free = matrices(stays + row * STATES * STATES, i, i, STATES, STATES, moves)
            e += tl.where(moves[:, None], each_times(free, nu), nu)
        at = (b[:, None] * steps + t) * STATES + i[None, :]
        tl.store(out + at, m + each_times(roots, e), exists[:, None] & (i < STATES)[None, :])
        t -= 1


@kernel
def score_means(
    set_of, lengths, steady, fault, filtered, innovations, transition, emission, seen, root, white, gain,
    mean, state_error, error, n_transition, n_emission, sequences, steps,
    STATES: constexpr, FEATURES: constexpr, SIDE: constexpr, WIDE: constexpr, SEQUENCES: constexpr,
):  # fmt: skip
    """Backward: smoothed means, and the gradients of log p(x) in predicted means and in observation offsets."""
    b = position(0) * SEQUENCES + tl.arange(0, SEQUENCES)
    i, f, exists = tl.arange(0, SIDE), tl.arange(0, WIDE), b < sequences
    wide, narrow = exists[:, None] & (i < STATES)[None, :], exists[:, None] & (f < FEATURES)[None, :]
    c = tl.load(set_of + b, exists, 0)
    n = tl.where(tl.load(fault + c, exists, 0) < 0, tl.load(lengths + c, exists, 0), 0)
    last = tl.load(steady + c, exists, 0)
    r, t = tl.zeros((SEQUENCES, SIDE), tl.float64), position(0) * 0 + steps - 1
    for _ in range(steps):
        inside, moves, row = exists & (n > t), exists & (n > t + 1), c * steps + tl.minimum(last, t)
        w = vectors(innovations + b * steps * FEATURES, t, steps, FEATURES, f, inside)
        m = vectors(filtered + b * steps * STATES, t, steps, STATES, i, inside)
        turns = matrices(at_step(transition, c, t, n_transition, STATES * STATES), i, i, STATES, STATES, moves)
        sights = matrices(at_step(emission, c, t, n_emission, FEATURES * STATES), f, i, FEATURES, STATES, inside)
        roots = matrices(root + row * STATES * STATES, i, i, STATES, STATES, inside)
        whitens = matrices(white + row * FEATURES * FEATURES, f, f, FEATURES, FEATURES, inside)
        gains = matrices(gain + row * STATES * FEATURES, i, f, STATES, FEATURES, inside)
        sees = narrow
        if seen is not None:
            sees = sees & (tl.load(seen + (c[:, None] * steps + t) * FEATURES + f[None, :], sees, 0) != 0)
        r = each_transposed_times(turns, r)
        at = b[:, None] * steps + t
        tl.store(mean + at * STATES + i[None, :], m + each_times(roots, each_transposed_times(roots, r)), wide)
        u = tl.where(sees, each_transposed_times(whitens, w - each_transposed_times(gains, r)), 0.0)
        tl.store(error + at * FEATURES + f[None, :], u, narrow)
        r += each_transposed_times(sights, u)
        tl.store(state_error + at * STATES + i[None, :], r, wide)
        t -= 1
