r"""The recursions of copy chains as numba kernels: O(K) a step, little memory beside the results.

A sequence is taken in blocks of steps, whose weights and beliefs fill a buffer. A sweep forward keeps the belief at the
start of every block. A sweep backward takes the blocks from the last to the first, fills the buffer again, and walks it
from its end; the last block is still in the buffer, and most sequences have no other. Every step is divided by
$c_t \sum_s a_t(s) b_t(s)$, which is $c_t$ but for rounding, so that no error accumulates.

Two threads can share one sequence: while the one sweeps the first half forward, the other sweeps the futures $b_t$ of
the second half backward; then they exchange what they found in the middle, and each goes back where it came from.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...numerics.workers import exact_kernel, kernel
from .cpu_weights import FINE, FLOOR, IMPOSSIBLE, RISKY, larger, smaller, weigh, weights_at_once

BLOCK = 262_144  # weights of each kind in a buffer


class Tables(NamedTuple):
    """What is known of all sequences."""

    log_fresh: NDArray  # [N, T, K]
    log_held: NDArray  # [N, T, K] or [N, T, 1]
    start: NDArray  # [N, K], the belief before the first step
    lengths: NDArray  # [N]


class Posterior(NamedTuple):
    """Where results go; an array without columns is not wanted."""

    state: NDArray  # [N, T, K]
    redraw: NDArray  # [N, T]
    fresh: NDArray  # [N, T, K]
    held: NDArray  # [N, T, K] or [N, T, 1]
    initial: NDArray  # [N, 1, K]


def no_posterior(sequences: int, dtype: DTypeLike) -> Posterior:
    none = np.empty((sequences, 1, 0), dtype)
    return Posterior(none, none[:, 0], none, none, none)


class Buffer(NamedTuple):
    """The weights and beliefs of one block, and what is kept of the others."""

    fresh: NDArray  # [rows, K]
    held: NDArray  # [rows, K]
    belief: NDArray  # [rows + 1, K], before and after each step
    totals: NDArray  # [rows], c_t
    redrawn: NDArray  # [rows], the sum of the weights of redraws
    shifts: NDArray  # [rows], the logarithm of what the weights were divided by
    future: NDArray  # [1, K], b_t
    kept: NDArray  # [blocks + 1, K], beliefs before each block, or futures after it


def new_buffer(rows: int, states: int, blocks: int, dtype: DTypeLike) -> Buffer:
    return Buffer(
        fresh=np.empty((rows, states), dtype),
        held=np.empty((rows, states), dtype),
        belief=np.empty((rows + 1, states)),
        totals=np.empty(rows),
        redrawn=np.empty(rows),
        shifts=np.empty(rows),
        future=np.empty((1, states)),
        kept=np.empty((blocks + 1, states)),
    )


@kernel
def _advance(fresh, held, belief, r, scale):
    """Scale row r of the beliefs, and put the next, not yet scaled, in row r + 1."""
    total, redrawn, least = 0.0, 0.0, fresh[r, 0]
    for s in range(fresh.shape[1]):
        before = belief[r, s] * scale
        weight = held[r, s] * before + fresh[r, s]
        belief[r, s] = before
        belief[r + 1, s] = weight
        total += weight
        redrawn += fresh[r, s]
        least = smaller(least, fresh[r, s])
    return total, redrawn, least


@kernel
def _guard(fresh, held, belief, r, total, limits):
    """Keep beliefs from vanishing; whether a lost state gained by being held."""
    floor, lost, gained = FLOOR * total, limits.lost * total, 0
    for s in range(fresh.shape[1]):
        before, weight = belief[r, s], belief[r + 1, s]
        kept = held[r, s] * before
        rises = (before < limits.lost) & (weight >= lost) & (kept > limits.share * fresh[r, s])
        gained += 1 if rises else 0
        belief[r + 1, s] = floor if (weight < floor) & (weight > 0.0) else weight
    return gained > 0


@kernel
def _scale(belief, r, scale):
    for s in range(belief.shape[1]):
        belief[r, s] *= scale


@kernel
def forward(log_fresh, log_held, t0, n, weighed, buffer, limits):
    """n steps from t0, from the belief in row 0 to that in row n; the last row that is not fine, and what it is.

    `weighed`: the weights are in the buffer already.
    """
    fresh, held, belief = buffer.fresh, buffer.held, buffer.belief
    chunk = weights_at_once(n, fresh.shape[1])
    scale, row, verdict = 1.0, -1, FINE
    for r0 in range(0, n, chunk):
        r1 = min(n, r0 + chunk)
        if not weighed:
            weigh(log_fresh, log_held, t0, r0, r1, fresh, held, buffer.shifts, limits.lowest)
        for r in range(r0, r1):
            total, redrawn, least = _advance(fresh, held, belief, r, scale)
            if not (0.0 < total < np.inf):
                return r, IMPOSSIBLE
            if (not least > limits.calm and _guard(fresh, held, belief, r, total, limits)) or total < limits.least:
                row, verdict = r, RISKY
            buffer.totals[r] = total
            buffer.redrawn[r] = redrawn
            scale = 1.0 / total
    _scale(belief, n, scale)
    return row, verdict


@exact_kernel
def _compensated(total, carry, x):
    """Neumaier's sum: total + carry grows by x without loss."""
    new = total + x
    carry += (total - new) + x if abs(total) >= abs(x) else (x - new) + total
    return new, carry


@kernel
def _log_total(buffer, n, total, carry):
    """Add the logarithms of n totals and their shifts to total + carry."""
    product = 1.0
    for r in range(n):
        total, carry = _compensated(total, carry, buffer.shifts[r])
        product *= buffer.totals[r]
        if not 1e-200 < product < 1e200:
            total, carry = _compensated(total, carry, math.log(product))
            product = 1.0
    return _compensated(total, carry, math.log(product))


@kernel
def _sums(fresh, belief, r, future):
    """The sums of the belief after step r, and of its redraws, both times their future."""
    reached, drawn = 0.0, 0.0
    for s in range(fresh.shape[1]):
        reached += belief[r + 1, s] * future[0, s]
        drawn += fresh[r, s] * future[0, s]
    return reached, drawn


@kernel
def _retreat(held, belief, r, future, drawn, scale):
    """The future of the step before; 0 for states that cannot be reached, as it may grow without bound there."""
    for s in range(held.shape[1]):
        x = (held[r, s] * future[0, s] + drawn) * scale
        future[0, s] = 0.0 if belief[r, s] == 0.0 else x


@kernel
def _product(table, r, future, scale, out, i, t):
    for s in range(out.shape[2]):
        out[i, t, s] = table[r, s] * future[0, s] * scale


@kernel
def _held_share(held, belief, r, future, scale, out, i, t):
    if out.shape[2] == held.shape[1]:
        for s in range(held.shape[1]):
            out[i, t, s] = held[r, s] * belief[r, s] * future[0, s] * scale
    else:
        total = 0.0
        for s in range(held.shape[1]):
            total += held[r, s] * belief[r, s] * future[0, s]
        out[i, t, 0] = total * scale


@kernel
def _backward(i, t0, n, buffer, posterior):
    """Walk the block of n steps from t0 that is in the buffer, from the future after it to that before it."""
    fresh, held, belief, future = buffer.fresh, buffer.held, buffer.belief, buffer.future
    for r in range(n - 1, -1, -1):
        reached, drawn = _sums(fresh, belief, r, future)
        scale = 1.0 / (buffer.totals[r] * reached)
        if posterior.state.shape[2] > 0:
            _product(belief, r + 1, future, 1.0 / reached, posterior.state, i, t0 + r)
            posterior.redraw[i, t0 + r] = drawn * scale
        if posterior.fresh.shape[2] > 0:
            _product(fresh, r, future, scale, posterior.fresh, i, t0 + r)
            _held_share(held, belief, r, future, scale, posterior.held, i, t0 + r)
        _retreat(held, belief, r, future, drawn, scale)
    if t0 == 0:
        _product(belief, 0, future, 1.0, posterior.initial, i, 0)


@kernel
def sweep_forward(tables, limits, i, first, last, buffer):
    """Blocks first..last of sequence i, from the belief kept in row 0; its evidence, verdict and failed step."""
    log_fresh, log_held, rows = tables.log_fresh[i], tables.log_held[i], len(buffer.totals)
    total, carry, verdict, failed = 0.0, 0.0, FINE, -1
    for block in range(first, last):
        t0 = block * rows
        n = min(rows, tables.lengths[i] - t0)
        buffer.belief[0] = buffer.kept[block - first]
        row, found = forward(log_fresh, log_held, t0, n, False, buffer, limits)
        if found != FINE:
            verdict, failed = found, t0 + row
        if found == IMPOSSIBLE:
            break
        total, carry = _log_total(buffer, n, total, carry)
        buffer.kept[block - first + 1] = buffer.belief[n]
    return total + carry, verdict, failed


@kernel
def sweep_backward(tables, limits, i, first, last, buffer, posterior):
    """Back over the blocks of `sweep_forward`, from the future in the buffer."""
    log_fresh, log_held, rows = tables.log_fresh[i], tables.log_held[i], len(buffer.totals)
    for block in range(last - 1, first - 1, -1):
        t0 = block * rows
        n = min(rows, tables.lengths[i] - t0)
        if block < last - 1:
            buffer.belief[0] = buffer.kept[block - first]
            forward(log_fresh, log_held, t0, n, False, buffer, limits)
        _backward(i, t0, n, buffer, posterior)


@kernel
def _retreat_alone(fresh, held, r, future, scale):
    """The future of the step before, scaled, its largest and its least value, where no belief is known."""
    drawn = 0.0
    for s in range(fresh.shape[1]):
        drawn += fresh[r, s] * future[0, s]
    top, least = 0.0, np.inf
    for s in range(fresh.shape[1]):
        x = (held[r, s] * future[0, s] + drawn) * scale
        future[0, s] = x
        top, least = larger(top, x), smaller(least, x)
    return top, least


@kernel
def sweep_futures(tables, limits, i, first, last, buffer):
    """Futures of blocks last..first, that after each is kept; the log of their scale, and whether to trust them."""
    log_fresh, log_held, rows = tables.log_fresh[i], tables.log_held[i], len(buffer.totals)
    states = log_fresh.shape[1]
    buffer.future[:] = 1.0
    total, carry, top, trusted = 0.0, 0.0, 1.0, True
    for block in range(last - 1, first - 1, -1):
        t0 = block * rows
        n = min(rows, tables.lengths[i] - t0)
        buffer.kept[block - first] = buffer.future[0]
        chunk = weights_at_once(n, states)
        for r0 in range((n - 1) // chunk * chunk, -1, -chunk):
            r1 = min(n, r0 + chunk)
            weigh(log_fresh, log_held, t0, r0, r1, buffer.fresh, buffer.held, buffer.shifts, limits.lowest)
            for r in range(r1 - 1, r0 - 1, -1):
                buffer.totals[r] = top
                top, least = _retreat_alone(buffer.fresh, buffer.held, r, buffer.future, 1.0 / top)
                trusted &= (least > limits.calm * top) & (top < np.inf)
        total, carry = _log_total(buffer, n, total, carry)
    return total + carry, trusted


@kernel
def meet_forward(tables, limits, i, first, last, belief, buffer, posterior):
    """Forward over the blocks of `sweep_futures`, from a belief to posteriors; evidence and verdict."""
    log_fresh, log_held, rows = tables.log_fresh[i], tables.log_held[i], len(buffer.totals)
    total, carry, verdict = 0.0, 0.0, FINE
    for block in range(first, last):
        t0 = block * rows
        n = min(rows, tables.lengths[i] - t0)
        buffer.belief[0] = belief
        _, found = forward(log_fresh, log_held, t0, n, block == first, buffer, limits)
        verdict = max(verdict, found)
        if found == IMPOSSIBLE:
            break
        total, carry = _log_total(buffer, n, total, carry)
        belief[:] = buffer.belief[n]
        buffer.future[0] = buffer.kept[block - first]
        _backward(i, t0, n, buffer, posterior)
    return total + carry, verdict


@kernel
def posterior_range(n0, n1, limits, tables, buffer, posterior, value, verdict, failed):
    """Evidence of sequences n0..n1, and those posteriors that are wanted."""
    rows = len(buffer.totals)
    wanted = posterior.state.size > 0 or posterior.fresh.size > 0
    for i in range(n0, n1):
        blocks = (tables.lengths[i] + rows - 1) // rows
        buffer.kept[0] = tables.start[i]
        value[i], verdict[i], failed[i] = sweep_forward(tables, limits, i, 0, blocks, buffer)
        if wanted and verdict[i] == FINE:
            buffer.future[:] = 1.0
            sweep_backward(tables, limits, i, 0, blocks, buffer, posterior)


@kernel
def _write(belief, n, state, i, t0):
    for r in range(n):
        for s in range(state.shape[2]):
            state[i, t0 + r, s] = belief[r + 1, s]


@kernel
def filter_range(n0, n1, limits, tables, buffer, increment, state, redraw, verdict, failed):
    """Log-increments, states and redraw probabilities of sequences n0..n1."""
    rows = len(buffer.totals)
    for i in range(n0, n1):
        buffer.belief[0] = tables.start[i]
        for t0 in range(0, tables.lengths[i], rows):
            n = min(rows, tables.lengths[i] - t0)
            row, found = forward(tables.log_fresh[i], tables.log_held[i], t0, n, False, buffer, limits)
            if found != FINE:
                verdict[i], failed[i] = found, t0 + row
            if found == IMPOSSIBLE:
                break
            _write(buffer.belief, n, state, i, t0)
            for r in range(n):
                redraw[i, t0 + r] = buffer.redrawn[r] / buffer.totals[r]
                increment[i, t0 + r] = math.log(buffer.totals[r]) + buffer.shifts[r]
            buffer.belief[0] = buffer.belief[n]
