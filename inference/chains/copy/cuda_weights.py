r"""Weights and beliefs of copy chains on a GPU: numbers m 2^e with a separate exponent.

No weight underflows for any log-weights of a step, without checks: m is near 1, in the precision of the tables, and e,
an integer in float64, covers every valid log-weight. Two numbers are added by the power of two between them, which is a
shift of bits. So a step takes two exponentials and some fifty other instructions per state (one exponential for
factored chains), and one logarithm, of its sum. It waits for one largest exponent and one sum over states. 0 has m = 0
and the lowest e. NaN and +inf make m NaN, and with it the sum.

All tables are [S, P], or [S, 1] if they are equal for all states.
"""

from ...numerics.gpu import INTERPRETED, constexpr, kernel, rows, tl, within

AHEAD = constexpr(2 if INTERPRETED else 4)  # steps whose rows are on their way while as many are worked on

NONE = constexpr(float("-inf"))
INFINITE = constexpr(float("inf"))
LOWEST = constexpr(-1e300)  # the exponent of 0; two of them can be added
LN2 = constexpr(0.6931471805599453)
_LN2_REST = constexpr(2.3190468138462996e-17)  # what rounding has taken off
_LOG2E = constexpr(1.4426950408889634)


@kernel
def power(e, dtype: constexpr):
    """2^e for integers e <= 1023, or 127; 0 if it underflows."""
    if dtype == tl.float64:
        found = ((tl.maximum(e, -1023) + 1023).to(tl.int32).to(tl.int64) << 52).to(tl.float64, bitcast=True)
    else:
        found = ((tl.maximum(e, -127) + 127).to(tl.int32) << 23).to(tl.float32, bitcast=True)
    return found


@kernel
def settle(m, e, dtype: constexpr):
    """The same number with 1 <= m < 2."""
    if dtype == tl.float64:
        bits = m.to(tl.int64, bitcast=True)
        excess = (bits >> 52) - 1023
        near_one = ((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).to(tl.float64, bitcast=True)
    else:
        bits = m.to(tl.int32, bitcast=True)
        excess = (bits >> 23) - 127
        near_one = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    some = m > 0
    return tl.where(some, near_one, m), tl.where(some, tl.maximum(e + excess.to(tl.float64), LOWEST), LOWEST)


@kernel
def split(log, shift, dtype: constexpr):
    """exp(log - shift) as m 2^e, where log <= shift."""
    real = (log > NONE) & (log < INFINITE)
    x = tl.where(real, log, shift).to(tl.float64) - shift.to(tl.float64)
    e = tl.maximum(tl.floor(x * _LOG2E + 0.5), LOWEST)
    minus = tl.full(x.shape, -LN2, tl.float64)  # Triton before 3.9 takes a number in a call for float32
    rest = (tl.fma(e, minus, x) - e * _LN2_REST).to(dtype)
    m = tl.exp(tl.minimum(tl.maximum(rest, -0.5), 0.5))  # rounding of logs near 1e290 may leave more
    zero_or_nan = tl.where(log == NONE, 0.0, float("nan")).to(dtype)
    return tl.where(real, m, zero_or_nan), tl.where(real, e, LOWEST)


@kernel
def _finite(largest):
    """The shift of logarithms: the largest, if there is one."""
    return tl.where(largest == NONE, 0.0, largest)


@kernel
def number(m, e, dtype: constexpr):
    """m 2^e as a floating-point number, 0 if it underflows."""
    return m * power(e, dtype)


@kernel
def factored(likelihood, redraw, hold, state, number, tables, k, steps, states, gates, lanes, dtype: constexpr):
    """The source of the weights of a factored chain: three tables, in the rows `number` (of likelihoods) and `tables`
    [S, 1], with gates of every step or one for all, and P(state) as weights divided by the largest."""
    x = tl.where(lanes, tl.load(state + tables * states + k, lanes, 0.0).to(dtype), NONE)
    shift = _finite(tl.max(x, 1, keep_dims=True))
    m, e = split(x, shift, dtype)
    gate = tables * (steps if gates > 0 else 1)
    return likelihood + number * steps * states + k, hold + gate, redraw + gate, m, e, shift


@kernel
def log_weights(
    source, t, direction: constexpr, steps, states, gates, there, lanes, NARROW: constexpr, dtype: constexpr
):
    """The rows of all tables at t, t + direction, ..., AHEAD of them.

    `source`: both tables, as pointers into row 0, or the result of `factored`. `gates`: 1, or 0 if all steps share
        them.
    """
    first = rows(source[0], t, direction, 0, steps, states, lanes, dtype, AHEAD)
    if len(source) == 2:
        wide = 1 if NARROW else states
        found = first, rows(source[1], t, direction, 0, steps, wide, there if NARROW else lanes, dtype, AHEAD)
    else:
        hold = rows(source[1], t, direction, 0, steps, gates, there, dtype, AHEAD)
        found = first, hold, rows(source[2], t, direction, 0, steps, gates, there, dtype, AHEAD)
    return found


@kernel
def weigh(source, found, i: constexpr, t, there, lanes, REDRAWN: constexpr, dtype: constexpr):
    """The weights of a step, fresh and held, divided by about the largest, and the logarithm of the divisor, [S, 1].

    REDRAWN: the first step is redrawn; its gates and its holding weights are ignored.
    """
    x = tl.where(lanes, found[0][i], NONE)
    if len(source) == 2:
        kept = found[1][i]
        if REDRAWN:
            kept = tl.where(within(lanes, t, 0, 1), NONE, kept)
        shift = _finite(tl.max(tl.where(lanes, tl.maximum(x, kept), NONE), 1, keep_dims=True))
        m_fresh, e_fresh = split(x, shift, dtype)
        m_held, e_held = split(kept, shift, dtype)
    else:
        first, m_state, e_state = within(there, t, 0, 1), source[3], source[4]
        hold = tl.where(first, NONE, found[1][i].to(tl.float64))
        redraw = tl.where(first, 0.0, found[2][i].to(tl.float64)) + source[5].to(tl.float64)
        gate, likelihood = _finite(tl.maximum(redraw, hold)), _finite(tl.max(x, 1, keep_dims=True))
        m, e = split(x, likelihood, dtype)
        m_hold, e_hold = split(hold, gate, dtype)
        m_redraw, e_redraw = split(redraw, gate, dtype)
        m_fresh, e_fresh = m * (m_redraw * m_state), tl.maximum(e + (e_redraw + e_state), LOWEST)
        m_held, e_held = m * m_hold, tl.maximum(e + e_hold, LOWEST)
        shift = likelihood.to(tl.float64) + gate
    return m_fresh, e_fresh, m_held, e_held, shift


@kernel
def normalise(m, e, dtype: constexpr):
    """Numbers that add up to one; the sum [S, 1] of the arguments as m 2^e."""
    top = tl.max(e, 1, keep_dims=True)
    total = tl.sum(m * power(e - top, dtype), 1, keep_dims=True)
    m, e = settle(m / tl.where(total > 0, total, 1.0), e - top, dtype)
    return m, e, total, top


@kernel
def reach(m, e, m_fresh, e_fresh, m_held, e_held, dtype: constexpr):
    """From a belief to the weight of each state after a step: redrawn and held, and the exponent of both."""
    e_kept = tl.maximum(e + e_held, LOWEST)
    top = tl.maximum(e_fresh, e_kept)
    return m_fresh * power(e_fresh - top, dtype), m * m_held * power(e_kept - top, dtype), top


@kernel
def note(m, e, from_fresh, from_held, dtype: constexpr):
    """The record of a step for the backward pass, one number per state: the belief before it. If the belief underflows,
    a redraw cannot have come from that state; the record is then minus the ratio of the held to the redrawn weight."""
    ratio = tl.where(from_fresh > 0, from_held / tl.where(from_fresh > 0, from_fresh, 1.0), INFINITE)
    ratio = tl.minimum(
        tl.maximum(ratio, 1e-300 if dtype == tl.float64 else 1e-37), 1e300 if dtype == tl.float64 else 1e37
    )
    lost = e < (-1022 if dtype == tl.float64 else -126)
    return tl.where(lost, tl.where(from_held > 0, 0 - ratio, 0.0), number(m, e, dtype))


@kernel
def recall(noted, m_fresh, e_fresh, m_held, e_held, dtype: constexpr):
    """The belief before a step, and the redrawn and held weights, on one scale for each state."""
    before = tl.maximum(noted, 0.0)
    m, e = settle(before, before.to(tl.float64) * 0, dtype)
    from_fresh, from_held, _ = reach(m, e, m_fresh, e_fresh, m_held, e_held, dtype)
    lost = noted < 0
    return before, tl.where(lost, (m_fresh > 0).to(dtype), from_fresh), tl.where(lost, 0 - noted, from_held)


@kernel
def log_sum(total, top, shift):
    """log(total 2^top) + shift in float64; for a total that is not above 0 the number is invalid."""
    return tl.log(tl.where(total > 0, total, 1.0)).to(tl.float64) + top * LN2 + shift.to(tl.float64)


@kernel
def start(initial, b, k, states, lanes, P: constexpr, dtype: constexpr):
    """The belief before the first step, and the logarithm [S, 1] of its divisor.

    If the first step redraws, the belief is 0. If no state is possible, it is NaN, so that all steps fail.
    """
    if initial is None:
        m = tl.where(lanes, 0.0, 0.0).to(dtype)
        e, scale = m.to(tl.float64) + LOWEST, tl.sum(m, 1, keep_dims=True).to(tl.float64)
    else:
        x = tl.where(lanes, tl.load(initial + b * states + k, lanes, 0.0).to(dtype), NONE)
        shift = _finite(tl.max(x, 1, keep_dims=True))
        m, e = split(x, shift, dtype)
        m, e, total, top = normalise(m, e, dtype)
        m, scale = tl.where(total > 0, m, float("nan")), log_sum(total, top, shift)
    return m, e, scale
