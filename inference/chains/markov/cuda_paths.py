r"""The best path of a chain and paths drawn from its posterior, on a GPU and in float64.

$$\delta_t(j) = l_t(j) + \max_i (\delta_{t-1}(i) + A_{ij}), \qquad
P(s_t = i \mid s_{t+1} = j, x) \propto P(s_t = i \mid x_{1:t})\, A_{ij}$$

A step of the best path reads K numbers, writes K bytes, the best previous state of each, and takes K^2 additions;
the backward pass reads the K bytes. A step of a draw reads the K beliefs of `cuda_logs` and one column of the table.
"""

from ...numerics.gpu import STRIDE, constexpr, kernel, position, rows, tl, within
from ...numerics.gpu_sequences import fill
from .cuda_logs import chains, table_of
from .cuda_steps import NONE, cells, largest, piece, put


@kernel
def _best(score, table, moves, here, room, states, P: constexpr, ROWS: constexpr):
    """max_i score(i) + table(i, j), and the first i that reaches it, for each j."""
    if ROWS == P:
        top, index = _best_row(score[:, :, None] + table, 0, ROWS)
    else:
        put(score, room, states, P)
        top, index = tl.full(score.shape, NONE, tl.float64), tl.zeros(score.shape, tl.int32)
        for first in range(0, states, ROWS):
            place, there = cells(here, first, states, ROWS, P, False)
            terms = piece(room, first, states, ROWS, NONE) + tl.load(moves + place, there, NONE).to(tl.float64)
            new, at = _best_row(terms, first, ROWS)
            index, top = tl.where(new > top, at, index), tl.maximum(new, top)
    return top, index


@kernel
def _best_row(terms, first, ROWS: constexpr):
    top = tl.max(terms, 1)
    numbers = first + tl.arange(0, ROWS)[None, :, None]
    return top, tl.min(tl.where(terms == top[:, None, :], numbers, first + ROWS - 1), 1)


@kernel
def best_paths(
    log_initial, moves, log_likelihood, numbers, lengths, path, origin, failed, room, n, steps, states,
    VARIES: constexpr, S: constexpr, P: constexpr, ROWS: constexpr,
):  # fmt: skip
    """path <- the most probable one, -1 after its end; `failed`, the first step that no path reaches, or -1."""
    b, there, k, lanes, length, at, base, moved = chains(numbers, lengths, None, n, steps, states, VARIES, S, P)
    mask, longest, own = there & lanes, tl.max(length), room + position(0) * states
    start = tl.load(numbers + b, there, 0) * states + k
    message, t = tl.load(log_initial + start, mask, NONE).to(tl.float64), position(0) * 0
    bad, last = tl.full((S, 1), -1, tl.int64), tl.zeros((S, 1), tl.int32)
    row = origin + b * steps * states + k
    after, ahead = table_of(moves, base, t, moved, states, P, ROWS, False)
    for _ in range(0, longest, STRIDE):
        xs = rows(log_likelihood + at, t, 1, 0, length, states, mask, tl.float64)
        for i in tl.static_range(STRIDE):
            here, table = after, ahead
            if VARIES:
                after, ahead = table_of(moves, base, t + i + 1, moved, states, P, ROWS, False)
            inside = length > t + i
            score = tl.where(lanes, (xs[i] - largest(xs[i], lanes)) + message, NONE)
            top = largest(score, lanes)
            unknown = tl.sum((lanes & (score != score)).to(tl.int32), 1, keep_dims=True) > 0
            bad = tl.where(inside & (bad < 0) & (unknown | (tl.abs(top) == float("inf"))), t + i, bad)
            first = tl.min(tl.where(score == top, k, P - 1), 1, keep_dims=True)
            last = tl.where(length == t + i + 1, first, last)
            message, index = _best(score - top, table, moves, here, own, states, P, ROWS)
            tl.store(row + (t + i + 1) * states, index, within(mask, t + i + 1, 0, length))
        t += STRIDE
    tl.debug_barrier()
    fill(path + b * steps, longest, steps, 1, -1, there)
    t = position(0) * 0 + longest - 1
    for _ in range(0, longest, STRIDE):
        before = rows(row, t, -1, 1, length, states, mask, tl.int32)
        for i in tl.static_range(STRIDE):
            inside = length > t - i
            tl.store(path + b * steps + t - i, tl.where(inside, last, -1), within(there, t - i, 0, steps))
            chosen = tl.sum(tl.where(k == last, before[i], 0), 1, keep_dims=True)
            last = tl.where(inside, chosen, last)
        t -= STRIDE
    tl.store(failed + b, bad, there)


@kernel
def draw_paths(
    moves, numbers, lengths, log_state, uniform, path, n, draws, steps, states,
    VARIES: constexpr, S: constexpr, P: constexpr,
):  # fmt: skip
    """path [n, B, T] <- draws at `uniform` [n, B, T] from the filtered log P(s_t | x_1..t), -1 after the end."""
    d, k = position(0) * S + tl.arange(0, S)[:, None], tl.arange(0, P)[None, :]
    there, lanes, b = d < draws, k < states, d % n
    mask, length, moved = there & lanes, tl.load(lengths + b, there, 0), steps - 1 if VARIES else 1
    longest, own = tl.max(length), b * steps * states + k
    column = tl.load(numbers + n + b, there, 0) * moved * states * states + k * states
    following, t = tl.zeros((S, 1), tl.int32), position(0) * 0 + longest - 1
    fill(path + d * steps, longest, steps, 1, -1, there)
    for _ in range(0, longest, STRIDE):
        xs = rows(log_state + own, t, -1, 0, length, states, mask, tl.float64)
        us = rows(uniform + d * steps, t, -1, 0, length, 1, there, tl.float64)
        for i in tl.static_range(STRIDE):
            inside = length > t - i
            moving = within(mask & (length > t - i + 1), t - i, 0, steps)
            into = column + following + ((t - i) * states * states if VARIES else 0)
            score = tl.where(lanes, xs[i] + tl.load(moves + into, moving, 0.0).to(tl.float64), NONE)
            weight = tl.where(lanes, tl.exp(score - largest(score, lanes)), 0)
            sums = tl.cumsum(weight, 1)
            whole = tl.max(sums, 1, keep_dims=True)
            first = tl.min(tl.where((weight > 0) & (sums > us[i] * whole), k, P), 1, keep_dims=True)
            greatest = tl.max(tl.where(weight > 0, k, 0), 1, keep_dims=True)
            following = tl.where(inside, tl.minimum(first, greatest), following)
            tl.store(path + d * steps + t - i, tl.where(inside, following, -1), within(there, t - i, 0, steps))
        t -= STRIDE
