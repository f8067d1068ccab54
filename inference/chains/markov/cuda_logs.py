r"""Filter and smooth chains on a GPU in logarithms and float64: exact for every table.

The recursions are those of `native/markov_logs.h`. They compute chains with tables for every step, sequences of which
`cuda_scaled` is not `certain`, and draws. A program whose sequences are all certain takes no steps, so the host need
not check them first.

A step forward reads K numbers, writes K, and takes K^2 exponentials; back it reads 2 K, writes K, and takes 2 K^2. A
table for every step adds K^2 numbers read in each direction, and K^2 written back, the pairs.
"""

from ...numerics.gpu import STRIDE, constexpr, kernel, position, rows, tl, within
from ...numerics.gpu_sequences import fill, sequences
from .cuda_steps import FEW, LOWEST, NONE, cells, largest, normalise_logs, piece, push_logs


@kernel
def chains(numbers, lengths, certain, n, steps, states, VARIES: constexpr, S: constexpr, P: constexpr):
    """A program's `sequences`, with lengths 0 for those that are certain; the addresses of their likelihoods [S, P] and
    of their tables [S], and the number of tables of each."""
    b, there, k, lanes, length = sequences(position(0), lengths, n, states, S, P)
    if certain is not None:
        there = there & (tl.load(certain + b, there, 1) == 0)
        length = tl.where(there, length, 0)
    moved = steps - 1 if VARIES else 1
    base = tl.reshape(tl.load(numbers + n + b, there, 0), (S,)) * moved * states * states
    return b, there, k, lanes, length, tl.load(numbers + 2 * n + b, there, 0) * steps * states + k, base, moved


@kernel
def table_of(moves, base, t, moved, states, P: constexpr, ROWS: constexpr, BACK: constexpr):
    """The address of the table of move t, or of the last one if there are only `moved`, and the table in registers, if
    it fits."""
    here = base + tl.minimum(tl.maximum(t, 0), moved - 1) * states * states
    if ROWS == P:
        place, real = cells(here, 0, states, P, P, BACK)
        table = tl.load(moves + place, real, NONE).to(tl.float64)
    else:
        table = 0
    return here, table


@kernel
def weigh_logs(x, message, lanes):
    """Log-likelihoods plus messages, normalised; the largest log-likelihood, and the rest of the divisor, [S, 1]."""
    shift = largest(x, lanes)
    vector, scale = normalise_logs(tl.where(lanes, (x - shift) + message, NONE))
    return vector, shift, scale


@kernel
def filter_logs(
    log_initial, moves, log_likelihood, numbers, lengths, total, state, log_state, increment, failed, certain, room,
    n, steps, states,
    VARIES: constexpr, S: constexpr, P: constexpr, ROWS: constexpr,
):  # fmt: skip
    """log p(x); P(s_t | x_1..t) in `state` and log p(x_t | x_1..t-1) if wanted, or log P(s_t | x_1..t) in
    `log_state`; `failed`, the first step whose increment is not a finite number, or -1."""
    b, there, k, lanes, length, at, base, moved = chains(numbers, lengths, certain, n, steps, states, VARIES, S, P)
    mask, longest, own = there & lanes, tl.max(length), room + position(0) * states
    start = tl.load(numbers + b, there, 0) * states + k
    message, t = tl.load(log_initial + start, mask, NONE).to(tl.float64), position(0) * 0
    tops, scales = tl.zeros((S, 1), tl.float64), tl.zeros((S, 1), tl.float64)
    bad, row = tl.full((S, 1), -1, tl.int64), b * steps * states + k
    after, ahead = table_of(moves, base, t, moved, states, P, ROWS, False)
    for _ in range(0, longest, STRIDE):
        xs = rows(log_likelihood + at, t, 1, 0, length, states, mask, tl.float64)
        for i in tl.static_range(STRIDE):
            here, table = after, ahead
            if VARIES:
                after, ahead = table_of(moves, base, t + i + 1, moved, states, P, ROWS, False)
            inside = length > t + i
            vector, top, scale = weigh_logs(xs[i], message, lanes)
            stored = within(mask, t + i, 0, steps)
            if log_state is not None:
                tl.store(log_state + row + (t + i) * states, vector, stored)
            else:
                gain = tl.where(inside, top + scale, 0)
                tl.store(state + row + (t + i) * states, tl.where(inside, tl.exp(vector), 0), stored)
                tl.store(increment + b * steps + t + i, gain, within(there, t + i, 0, steps))
            tops, scales = tl.where(inside, tops + top, tops), tl.where(inside, scales + scale, scales)
            finite = tl.abs(top + scale) < float("inf")
            bad = tl.where(inside & (bad < 0) & (finite == 0), t + i, bad)
            message = push_logs(vector, table, moves, here, own, states, P, ROWS, False)
        t += STRIDE
    if log_state is None:
        end = tl.where(longest > 0, steps, 0)
        fill(state + row, t, end, states, 0, mask)
        fill(increment + b * steps, t, end, 1, 0, there)
    tl.store(total + b, tops + scales, there)
    tl.store(failed + b, bad, there)


@kernel
def _pair(belief, table, vector, message, later):
    """P(s_t, s_t+1 | x) as [S, new, old], 0 unless `later`: P(s_t | x) P(s_t+1 | s_t, x)."""
    onward = (table + vector) - tl.maximum(message, LOWEST)[:, None, :]
    return tl.where(later[:, :, None], tl.exp(belief[:, None, :] + onward), 0)


@kernel
def _add_pairs(pairs, to, real, moves, here, room, belief, message, later, states, P: constexpr, ROWS: constexpr):
    """Pairs in memory += those of a step, whose table is read again; the vector is in `room`."""
    for first in range(0, states, ROWS):
        place, there = cells(here, first, states, ROWS, P, True)
        out, _ = cells(to, first, states, ROWS, P, True)
        table = tl.load(moves + place, there, NONE).to(tl.float64)
        new = _pair(belief, table, piece(room, first, states, ROWS, NONE), message, later)
        there = there & real
        tl.store(pairs + out, tl.load(pairs + out, there, 0.0) + new, there)
    tl.debug_barrier()


@kernel
def _no_pairs(pairs, to, real, begin, end, states, P: constexpr, ROWS: constexpr):
    """0 for the pairs of moves begin..end."""
    for t in range(begin, end):
        for first in range(0, states, ROWS):
            out, there = cells(to + t * states * states, first, states, ROWS, P, True)
            tl.store(pairs + out, tl.zeros(out.shape, pairs.dtype.element_ty), there & real)


@kernel
def smooth_logs(
    moves, log_likelihood, numbers, lengths, log_state, state, pairs, certain, room, n, steps, states,
    VARIES: constexpr, S: constexpr, P: constexpr, ROWS: constexpr,
):  # fmt: skip
    """state <- P(s_t | x), of the log P(s_t | x_1..t); pairs <- P(s_t, s_t+1 | x) by step, or summed over them."""
    b, there, k, lanes, length, at, base, moved = chains(numbers, lengths, certain, n, steps, states, VARIES, S, P)
    mask, longest, real, own = there & lanes, tl.max(length), there[:, :, None], room + position(0) * states
    row, to, t = b * steps * states + k, tl.reshape(b, (S,)) * moved * states * states, position(0) * 0 + longest - 1
    _no_pairs(pairs, to, real, tl.maximum(t, 0) if VARIES and ROWS == P else t * 0, moved, states, P, ROWS)
    tl.debug_barrier()
    after, ahead = table_of(moves, base, t, moved, states, P, ROWS, True)
    vector, counts = tl.full((S, P), NONE, tl.float64), tl.zeros((S, P, P) if ROWS == P else (S, 1, 1), tl.float64)
    fill(state + row, longest, tl.where(longest > 0, steps, 0), states, 0, mask)
    xs = rows(log_likelihood + at, t, -1, 0, length, states, mask, tl.float64, FEW)
    ys = rows(log_state + row, t, -1, 0, length, states, mask, tl.float64, FEW)
    for _ in range(0, longest, FEW):
        next_xs = rows(log_likelihood + at, t - FEW, -1, 0, length, states, mask, tl.float64, FEW)
        next_ys = rows(log_state + row, t - FEW, -1, 0, length, states, mask, tl.float64, FEW)
        tl.debug_barrier()  # the posterior takes the place of what has been read
        for i in tl.static_range(FEW):
            here, table = after, ahead
            if VARIES:
                after, ahead = table_of(moves, base, t - i - 1, moved, states, P, ROWS, True)
            later = (length > t - i + 1) & (t >= i)
            message = push_logs(vector, table, moves, here, own, states, P, ROWS, True)
            message = tl.where(later, message, 0)
            belief, _ = normalise_logs(tl.where(lanes, ys[i] + message, NONE))
            held = tl.where(length > t - i, tl.exp(belief), 0)
            tl.store(state + row + (t - i) * states, held, within(mask, t - i, 0, steps))
            out = to + (here - base)
            if ROWS != P:
                _add_pairs(pairs, out, real, moves, here, own, belief, message, later, states, P, ROWS)
            elif VARIES:
                place, there_too = cells(out, 0, states, P, P, True)
                new = _pair(belief, table, vector[:, :, None], message, later)
                tl.store(pairs + place, new, within(there_too & real, t - i, 0, moved))
            else:
                counts += _pair(belief, table, vector[:, :, None], message, later)
            vector, _, _ = weigh_logs(xs[i], message, lanes)
        xs, ys = next_xs, next_ys
        t -= FEW
    if ROWS == P and not VARIES:
        place, there_too = cells(to, 0, states, P, P, True)
        tl.store(pairs + place, counts, there_too & real)
