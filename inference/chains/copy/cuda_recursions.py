r"""The recursions of copy chains as a Triton kernel: sequences side by side, to their last step and back.

The product of two steps is not a step of the same form, so time is not cut into chunks. The backward pass carries a
posterior instead of a message. Given the state after a step, the gate does not depend on later steps, and before a
redraw only the belief $a_{t-1}$ matters. With $k_t(s)$ the share of
$held_t(s)\, a_{t-1}(s)$ in itself plus $fresh_t(s)$,

$$P(s_{t-1} \mid x) = k_t\, P(s_t \mid x) + a_{t-1} \textstyle\sum_s (1 - k_t(s))\, P(s_t{=}s \mid x).$$

All terms are positive and sum to one: nothing overflows, and no divisor can vanish. The forward pass
stores beliefs in the table of the results; the backward pass reads each before it replaces it.

O(K) per step, with w bytes per number. The evidence reads both tables, 2wK bytes per step ((1 + 1/K) wK if `log_held`
has one column). Filtering writes wK more. Smoothing reads the tables twice, and writes, reads and writes its result:
7wK; marginals one wK more. A factored chain has one table to read: filtering takes 2wK, smoothing 5wK.
About 50 instructions and 2 exponentials (1 for factored chains) per state and step, as many in the backward pass. No
memory besides the results.
"""

from ...numerics.gpu import constexpr, kernel, position, rows, tl, within
from ...numerics.gpu_sequences import fill, sequences
from .cuda_weights import (
    AHEAD,
    INFINITE,
    factored,
    log_sum,
    log_weights,
    normalise,
    note,
    number,
    reach,
    recall,
    start,
    weigh,
)


@kernel
def _filter(
    m, e, scale, source, gates, increment, state, redraw, scratch, by_step, by_state, there, lanes, length, high,
    states, REDRAWN: constexpr, NARROW: constexpr, DTYPE: constexpr,
):  # fmt: skip
    """The last belief, log p(x) and the failed step of each sequence; beliefs are written to one table or none."""
    total, failed, t = scale, length * 0 - 1, high * 0
    found = log_weights(source, t, 1, high, states, gates, there, lanes, NARROW, DTYPE)
    for _ in range(0, high, AHEAD):
        following = log_weights(source, t + AHEAD, 1, high, states, gates, there, lanes, NARROW, DTYPE)
        for i in tl.static_range(AHEAD):
            now = t + i
            m_fresh, e_fresh, m_held, e_held, shift = weigh(source, found, i, now, there, lanes, REDRAWN, DTYPE)
            from_fresh, from_held, top = reach(m, e, m_fresh, e_fresh, m_held, e_held, DTYPE)
            new_m, new_e, size, scaled = normalise(from_fresh + from_held, top, DTYPE)
            gain = log_sum(size, scaled, shift)
            inside = within(there, now, 0, length)
            possible = (size > 0) & (size < INFINITE)
            failed = tl.where(inside & (failed < 0) & (possible == 0), now, failed)
            total = tl.where(inside, total + gain, total)
            inside_lanes, row = within(lanes, now, 0, length), within(lanes, now, 0, high)
            if scratch is not None:
                tl.store(scratch + by_state + now * states, note(m, e, from_fresh, from_held, DTYPE), row)
            elif state is not None:
                shown = tl.where(inside_lanes, number(new_m, new_e, DTYPE), 0.0)
                tl.store(state + by_state + now * states, shown, row)
                row = within(there, now, 0, high)
                gain += tl.where(within(there, now, 0, 1), scale, 0.0)
                tl.store(increment + by_step + now, tl.where(inside, gain, 0.0), row)
                from_redraws = tl.sum(number(from_fresh, top - scaled, DTYPE), 1, keep_dims=True)
                tl.store(
                    redraw + by_step + now, tl.where(inside, from_redraws / tl.where(size > 0, size, 1.0), 0.0), row
                )
            m, e = tl.where(inside_lanes, new_m, m), tl.where(inside_lanes, new_e, e)
        found = following
        t += AHEAD
    return m, e, total, failed


@kernel
def _smooth(
    posterior, source, gates, state, redraw, in_fresh, in_held, drawn, by_step, by_state,
    there, lanes, length, high, states, REDRAWN: constexpr, NARROW: constexpr, DTYPE: constexpr,
):  # fmt: skip
    """From the posterior of the last states back to the first; the posterior of each step overwrites its belief."""
    scratch, by_held = state if in_fresh is None else in_fresh, by_step if NARROW else by_state
    t, all_drawn = high - 1, posterior.to(tl.float64) * 0
    tl.debug_barrier()  # another thread may read what one has written
    found = log_weights(source, t, -1, high, states, gates, there, lanes, NARROW, DTYPE)
    noted = rows(scratch + by_state, t, -1, 0, high, states, lanes, DTYPE, AHEAD)
    for _ in range(0, high, AHEAD):
        following = log_weights(source, t - AHEAD, -1, high, states, gates, there, lanes, NARROW, DTYPE)
        noted_those = rows(scratch + by_state, t - AHEAD, -1, 0, high, states, lanes, DTYPE, AHEAD)
        tl.debug_barrier()  # all threads have read before they overwrite
        for i in tl.static_range(AHEAD):
            now = t - i
            m_fresh, e_fresh, m_held, e_held, _ = weigh(source, found, i, now, there, lanes, REDRAWN, DTYPE)
            belief, from_fresh, from_held = recall(noted[i], m_fresh, e_fresh, m_held, e_held, DTYPE)
            weight = from_fresh + from_held
            inside, row = within(lanes, now, 0, length), within(lanes, now, 0, high)
            share = posterior / tl.where(weight > 0, weight, 1.0)
            by_fresh, by_hold = tl.where(inside, share * from_fresh, 0.0), tl.where(inside, share * from_held, 0.0)
            redrawn = tl.sum(by_fresh, 1, keep_dims=True)
            if in_fresh is None:
                tl.store(state + by_state + now * states, by_fresh + by_hold, row)
                tl.store(redraw + by_step + now, redrawn, within(there, now, 0, high))
            else:
                tl.store(in_fresh + by_state + now * states, by_fresh, row)
            if drawn is not None:
                all_drawn += by_fresh.to(tl.float64)
            if in_held is not None:
                if NARROW:
                    held_at_all = tl.sum(by_hold, 1, keep_dims=True)
                    tl.store(in_held + by_held + now, held_at_all, within(there, now, 0, high))
                else:
                    tl.store(in_held + by_held + now * states, by_hold, row)
            posterior = tl.where(inside, by_hold + redrawn * belief, posterior)
        total = tl.sum(posterior, 1, keep_dims=True)
        posterior = posterior / tl.where(total > 0, total, 1.0)  # so that rounding does not add up
        found = following
        noted = noted_those
        t -= AHEAD
    return posterior, all_drawn


@kernel
def _there_and_back(
    m, e, scale, source, gates, value, failed, increment, state, redraw, in_fresh, in_held, drawn, b, k, there, lanes,
    length, steps, states, REDRAWN: constexpr, NARROW: constexpr, DTYPE: constexpr,
):  # fmt: skip
    """The forward pass from the belief before the first step, and the backward pass if more than filtering is
    wanted."""
    by_step, by_state, high = b * steps, b * steps * states + k, tl.max(length)
    scratch = None if increment is not None else (state if in_fresh is None else in_fresh)
    m, e, total, wrong = _filter(
        m, e, scale, source, gates, increment, state, redraw, scratch, by_step, by_state, there, lanes, length, high,
        states, REDRAWN, NARROW, DTYPE,
    )  # fmt: skip
    tl.store(value + b, total, there)
    tl.store(failed + b, wrong, there)
    posterior = number(m, e, DTYPE)
    if scratch is not None:
        posterior, all_drawn = _smooth(
            posterior, source, gates, state, redraw, in_fresh, in_held, drawn, by_step, by_state, there, lanes, length,
            high, states, REDRAWN, NARROW, DTYPE,
        )  # fmt: skip
        if drawn is not None:
            tl.store(drawn + b * states + k, all_drawn, lanes)
    if state is not None:
        fill(state + by_state, high, steps, states, 0.0, lanes)
        fill(redraw + by_step, high, steps, 1, 0.0, there)
    if increment is not None:
        fill(increment + by_step, high, steps, 1, 0.0, there)
    if in_fresh is not None:
        fill(in_fresh + by_state, high, steps, states, 0.0, lanes)
    if in_held is not None:
        if NARROW:
            fill(in_held + by_step, high, steps, 1, 0.0, there)
        else:
            fill(in_held + by_state, high, steps, states, 0.0, lanes)
    return posterior


@kernel
def recursions(
    fresh, held, initial, lengths, value, failed, increment, state, redraw, in_fresh, in_held, in_initial,
    n, steps, states, S: constexpr, P: constexpr, NARROW: constexpr, DTYPE: constexpr,
):  # fmt: skip
    """Evidence and failed step of S sequences, and the other tables that are not None: those of filtering
    (`increment`, `state`, `redraw`), of smoothing (`state`, `redraw`), or the shares `in_...` of the input tables."""
    b, there, k, lanes, length = sequences(position(0), lengths, n, states, S, P)
    m, e, scale = start(initial, b, k, states, lanes, P, DTYPE)
    by_step, by_state = b * steps, b * steps * states + k
    source = fresh + by_state, held + (by_step if NARROW else by_state)
    posterior = _there_and_back(
        m, e, scale, source, 0, value, failed, increment, state, redraw, in_fresh, in_held, None, b, k, there, lanes,
        length, steps, states, initial is None, NARROW, DTYPE,
    )  # fmt: skip
    if in_initial is not None:
        tl.store(in_initial + b * states + k, posterior, lanes)


@kernel
def factored_recursions(
    log_likelihood, log_redraw, log_hold, log_state, number_of, tables_of, lengths, value, failed, increment, state,
    redraw, held, drawn, n, steps, states, gates, S: constexpr, P: constexpr, DTYPE: constexpr,
):  # fmt: skip
    """The same for factored chains: filtering (`increment`, `state`, `redraw`), or smoothing with the probabilities of
    a redraw and a hold at each step, and the sums of redraws of each state (`state`, `redraw`, `held`, `drawn`)."""
    b, there, k, lanes, length = sequences(position(0), lengths, n, states, S, P)
    m, e, scale = start(None, b, k, states, lanes, P, DTYPE)
    number, tables = tl.load(number_of + b, there, 0), tl.load(tables_of + b, there, 0)
    source = factored(
        log_likelihood, log_redraw, log_hold, log_state, number, tables, k, steps, states, gates, lanes, DTYPE
    )
    _there_and_back(
        m, e, scale, source, gates, value, failed, increment, state, redraw, None, held, drawn, b, k, there, lanes,
        length, steps, states, True, True, DTYPE,
    )  # fmt: skip
