r"""What the gradient of log p(x) needs of covariances, on a GPU: a program a set of them, from the last step back.

The equations are those of `native/kalman_score.h`. A step costs $O(L^3 + F L (F + L) + F^3)$. It reads C, A and
the gains, $F (F + 2 L) + 2 L^2$ numbers, and writes what parameters that vary with the step get, $F (F + L) + 2 L^2$
at most.
"""

from ...numerics.gpu import constexpr, kernel, position, tl, within
from ...numerics.gpu_matrices import at_step, outer, product, times, transposed_product, transposed_times, unit


@kernel
def _take(share, total, out, mask, BY_STEP: constexpr):
    """Where the parameter varies with the step its share goes into memory, else it is added to the total."""
    if BY_STEP:
        tl.store(out, share, mask)
    else:
        total += share
    return total


@kernel
def score_sets(
    transition, emission, seen, filtered, white, gain, lengths, steady, fault,
    of_transition, of_state, of_emission, of_observation, of_initial,
    n_transition, n_emission, steps,
    STATES: constexpr, FEATURES: constexpr, SIDE: constexpr, WIDE: constexpr,
    BY_TRANSITION: constexpr, BY_STATE: constexpr, BY_EMISSION: constexpr, BY_OBSERVATION: constexpr,
):  # fmt: skip
    """What is taken from the products of means, by step where the parameter is, else the sum."""
    c, i, f = position(0), tl.arange(0, SIDE), tl.arange(0, WIDE)
    state, feature = i < STATES, f < FEATURES
    square, at = state[:, None] & state[None, :], i[:, None] * STATES + i[None, :]
    sight, on_sight = feature[:, None] & state[None, :], f[:, None] * STATES + i[None, :]
    noise, on_noise = feature[:, None] & feature[None, :], f[:, None] * FEATURES + f[None, :]
    size: constexpr = STATES * STATES
    n, last = tl.where(tl.load(fault + c) < 0, tl.load(lengths + c), 0), tl.load(steady + c)
    future, t = tl.zeros((SIDE, SIDE), tl.float64), c * 0 + steps - 1
    sum_a, sum_q = tl.zeros_like(future), tl.zeros_like(future)
    sum_c, sum_r = tl.zeros((WIDE, SIDE), tl.float64), tl.zeros((WIDE, WIDE), tl.float64)
    for _ in range(steps):
        row = c * steps + tl.minimum(t, last)
        goes = within(state, t, 0, n - 1)
        sees = within(feature, t, 0, n)
        if seen is not None:
            sees = sees & (tl.load(seen + (c * steps + t) * FEATURES + f, feature, 0) != 0)
        z = tl.load(filtered + row * size + at, within(square, t, 0, n), 0.0)
        covariance, to = outer(z, z, i, STATES), at_step(transition, c, t, n_transition, size)
        half = transposed_product(to, STATES, i, goes, future)  # A' N
        share = transposed_times(half, covariance, i, STATES)
        moves, move = within(square, t, 0, steps - 1), (c * (steps - 1) + t) * size + at
        sum_a = _take(share, sum_a, of_transition + move, moves, BY_TRANSITION)
        sum_q = _take(future, sum_q, of_state + move, moves, BY_STATE)
        back = transposed_product(to, STATES, i, goes, tl.trans(half))  # A' N A
        whitens = white + row * FEATURES * FEATURES
        whiten = tl.load(whitens + on_noise, within(noise, t, 0, n), 0.0)
        seen_by = at_step(emission, c, t, n_emission, FEATURES * STATES)
        shown = tl.load(seen_by + on_sight, sight & sees[:, None], 0.0).to(tl.float64)
        shown = product(whitens, FEATURES, f, within(feature, t, 0, n), shown, f)  # F^-1/2 C
        gains, inside = gain + row * STATES * FEATURES, within(state, t, 0, n)
        kalman = product(gains, FEATURES, i, inside, whiten, f)  # K
        rest = unit(SIDE) - product(gains, FEATURES, i, inside, shown, f)  # I - K C
        turned = times(back, kalman, i, STATES)
        share = tl.trans(kalman) - transposed_times(turned, covariance, i, STATES)
        share = tl.where(sees[:, None], share, 0.0)
        target = of_emission + (c * steps + t) * FEATURES * STATES + on_sight
        sum_c = _take(share, sum_c, target, sight, BY_EMISSION)
        share = transposed_times(whiten, whiten, f, FEATURES) + transposed_times(kalman, turned, i, STATES)
        share = tl.where(sees[:, None] & sees[None, :], share, 0.0)
        target = of_observation + (c * steps + t) * FEATURES * FEATURES + on_noise
        sum_r = _take(share, sum_r, target, noise, BY_OBSERVATION)
        future = transposed_times(rest, times(back, rest, i, STATES), i, STATES)
        future += transposed_times(shown, shown, f, FEATURES)
        t -= 1
    tl.store(of_initial + c * size + at, future, square)
    if not BY_TRANSITION:
        tl.store(of_transition + c * size + at, sum_a, square)
    if not BY_STATE:
        tl.store(of_state + c * size + at, sum_q, square)
    if not BY_EMISSION:
        tl.store(of_emission + c * FEATURES * STATES + on_sight, sum_c, sight)
    if not BY_OBSERVATION:
        tl.store(of_observation + c * FEATURES * FEATURES + on_noise, sum_r, noise)
