r"""The best path and random paths of copy chains as Triton kernels, without tables of every state at every step.

The ends of its runs determine a path: the state at the last step, the step of its redraw, the state at the step before
that, and so on. Whether a state was redrawn or held at a step does not depend on later steps: for the best path it
depends on the larger weight, for a random path on the uniform number of the step. So in the forward pass each state
carries the step of its last redraw, and a step writes only its best state, or the state that its uniform number picks
from the filtered belief, with the step at which the run of that state began. The backward pass reads these, and skips
steps in which no run ends.

O(K) per step, also for each draw. With w bytes per number, a step reads 2wK bytes, and writes 9 bytes for each path, 8
of them twice. A program makes several draws of one sequence, for which it filters once.
"""

from ...numerics.gpu import STRIDE, constexpr, kernel, position, rows, tl, within
from ...numerics.gpu_sequences import sequences
from .cuda_weights import AHEAD, INFINITE, NONE, log_weights, normalise, number, reach, start, weigh

_SHIFT = constexpr(40)  # bits for the step at which a run began, in one number with the state
_STEP = constexpr((1 << 40) - 1)
_MOST = constexpr(1 << 62)


@kernel
def _trace(path, redraw, at, length, high, mask):
    """Paths from the ends of runs; the paths overwrite them."""
    none = at * 0
    state, begin, t = none, none + length, high - 1
    tl.debug_barrier()  # another thread may read what one has written
    for _ in range(0, high, STRIDE):
        ends = rows(path + at, t, -1, 0, high, 1, mask, tl.int64)
        tl.debug_barrier()  # all threads have read before they overwrite
        for i in tl.static_range(STRIDE):
            now = t - i
            inside = within(mask, now, 0, length)
            is_end = inside & (begin > now)
            state = tl.where(is_end, ends[i] >> _SHIFT, state)
            begin = tl.where(is_end, (ends[i] & _STEP) - 1, begin)
            tl.store(path + at + now, state, inside)
            tl.store(redraw + at + now, begin == now, inside)
        t -= STRIDE


@kernel
def viterbi_paths(
    fresh, held, initial, lengths, path, redraw, value, failed, n, steps, states,
    S: constexpr, P: constexpr, NARROW: constexpr, DTYPE: constexpr,
):  # fmt: skip
    """The best paths of S sequences by sums in float64; of equally good ones, one that holds, then the least state."""
    b, there, k, lanes, length = sequences(position(0), lengths, n, states, S, P)
    high = tl.max(length)
    by_step, by_state = b * steps, b * steps * states + k
    if initial is None:
        best = tl.where(lanes, NONE, NONE).to(tl.float64)
        total = tl.sum(tl.where(lanes, 0.0, 0.0).to(tl.float64), 1, keep_dims=True)
    else:
        best = tl.where(lanes, tl.load(initial + b * states + k, lanes, 0.0).to(tl.float64), NONE)
        top = tl.max(best, 1, keep_dims=True)
        top = tl.where(top == NONE, 0.0, top)
        mass = tl.sum(tl.exp(best - top), 1, keep_dims=True)
        rest = tl.log(tl.where(mass > 0, mass, 1.0))
        best, total = tl.where(mass > 0, best - top - rest, float("nan")), top + rest
    since, wrong, t = tl.where(lanes, 0, 0), length * 0 - 1, high * 0
    source = fresh + by_state, held + (by_step if NARROW else by_state)
    found = log_weights(source, t, 1, high, states, 0, there, lanes, NARROW, tl.float64)
    for _ in range(0, high, AHEAD):
        following = log_weights(source, t + AHEAD, 1, high, states, 0, there, lanes, NARROW, tl.float64)
        for i in tl.static_range(AHEAD):
            now = t + i
            hold = found[1][i]
            if initial is None:
                hold = tl.where(within(lanes, now, 0, 1), NONE, hold)
            hold += best
            redrawn = tl.where(lanes, found[0][i], NONE)
            redrawn = tl.where(redrawn == redrawn, redrawn, INFINITE)  # NaN is to be found by the largest of all
            hold = tl.where(lanes, tl.where(hold == hold, hold, INFINITE), NONE)
            new = tl.maximum(redrawn, hold)
            top = tl.max(new, 1, keep_dims=True)
            since = tl.where(redrawn > hold, (now + 1).to(tl.int32), since)
            code = (k.to(tl.int64) << _SHIFT) | since.to(tl.int64)
            end = tl.min(tl.where(lanes & (new == top), code, _MOST), 1, keep_dims=True)
            inside = within(there, now, 0, length)
            tl.store(path + by_step + now, end, inside)
            possible = (top > NONE) & (top < INFINITE)
            wrong = tl.where(inside & (wrong < 0) & (possible == 0), now, wrong)
            total = tl.where(inside, total + top, total)
            best = tl.where(within(lanes, now, 0, length), new - tl.where(possible, top, 0.0), best)
        found = following
        t += AHEAD
    tl.store(value + b, total, there)
    tl.store(failed + b, wrong, there)
    _trace(path, redraw, by_step, length, high, there)


@kernel
def sampled_paths(
    fresh, held, initial, lengths, uniform, path, redraw, failed, n, steps, states, draws,
    J: constexpr, P: constexpr, NARROW: constexpr, DTYPE: constexpr,
):  # fmt: skip
    """J draws of one sequence."""
    block, chain = position(0) // n, position(0) % n
    b, there, k, lanes, length = sequences(chain, lengths, n, states, 1, P)
    high = tl.max(length)
    by_step, by_state = b * steps, b * steps * states + k
    j = block * J + tl.arange(0, J)[:, None]
    drawing = j < draws
    at = (j * n + b) * steps
    m, e, _ = start(initial, b, k, states, lanes, P, DTYPE)
    since, wrong, t = tl.where(lanes & drawing, 0, 0), length * 0 - 1, high * 0
    source, uniform = (fresh + by_state, held + (by_step if NARROW else by_state)), uniform + at * 2
    for _ in range(0, high, AHEAD):
        found = log_weights(source, t, 1, high, states, 0, there, lanes, NARROW, DTYPE)
        gates = rows(uniform, t, 1, 0, high, 2, drawing, tl.float64, AHEAD)
        places = rows(uniform + 1, t, 1, 0, high, 2, drawing, tl.float64, AHEAD)
        for i in tl.static_range(AHEAD):
            now = t + i
            m_fresh, e_fresh, m_held, e_held, _ = weigh(source, found, i, now, there, lanes, initial is None, DTYPE)
            from_fresh, from_held, top = reach(m, e, m_fresh, e_fresh, m_held, e_held, DTYPE)
            weight = from_fresh + from_held
            share = from_fresh / tl.where(weight > 0, weight, 1.0)
            new_m, new_e, size, _ = normalise(weight, top, DTYPE)
            belief = number(new_m, new_e, DTYPE).to(tl.float64)
            reached = tl.where(belief > 0, tl.cumsum(belief, 1), 0.0)  # sums that round apart draw no lost state
            total = tl.max(reached, 1, keep_dims=True)
            since = tl.where(gates[i] < share, (now + 1).to(tl.int32), since)
            code = (k.to(tl.int64) << _SHIFT) | since.to(tl.int64)
            picked = (reached > places[i] * total) | (reached >= total)
            end = tl.min(tl.where(picked, code, _MOST), 1, keep_dims=True)
            tl.store(path + at + now, end, within(drawing, now, 0, length))
            possible = (size > 0) & (size < INFINITE)
            wrong = tl.where(within(there, now, 0, length) & (wrong < 0) & (possible == 0), now, wrong)
            m, e = new_m, new_e
        t += AHEAD
    tl.store(failed + b, wrong, within(there, block, 0, 1))
    _trace(path, redraw, at, length, high, drawing)
