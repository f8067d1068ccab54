r"""The recursions of copy chains as numba kernels: O(K) per step, with little memory besides the results.

A sequence is processed in blocks of steps; a thread holds the weights and beliefs of one in a `Block`. A forward sweep
keeps the belief at the start of every block. A backward sweep takes the blocks from the last to the first, fills the
block again, and processes it from its end. The last block is still there, and most sequences have only one. Every step
is divided by $c_t \sum_s a_t(s) b_t(s)$, which equals $c_t$ except for rounding, so that no error accumulates.

Two threads can share one sequence: while one sweeps the first half forward, the other sweeps the futures $b_t$ of the
second half backward. Then they exchange their results in the middle, and each sweeps its half in the other direction.

A `stretch` is the number of a sequence, with its first block and the end of its blocks.
"""

import math

import numpy as np

from ...numerics.compilation import exact_kernel, kernel
from ...numerics.small_matrices import copy_row
from .cpu_weights import FINE, FLOOR, IMPOSSIBLE, RISKY, larger, rows_at_once, smaller, weigh


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
    """Keep beliefs from underflow; whether a lost state gained by being held."""
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
def _forward(inputs, limits, i, t0, block, weighed):
    """The steps of a block from t0, from the belief in row 0 to that in the last; their number, and a verdict.

    The row is the last one with a verdict that is not fine. `weighed`: the block already has the weights.
    """
    log_fresh, log_held = inputs.log_fresh[i], inputs.log_held[i]
    fresh, held, belief = block.fresh, block.held, block.belief
    n = min(len(block.totals), inputs.lengths[i] - t0)
    chunk = rows_at_once(n, fresh.shape[1])
    scale, row, verdict = 1.0, -1, FINE
    for r0 in range(0, n, chunk):
        r1 = min(n, r0 + chunk)
        if not weighed:
            weigh(log_fresh, log_held, t0, (r0, r1), block, limits.lowest)
        for r in range(r0, r1):
            total, redrawn, least = _advance(fresh, held, belief, r, scale)
            if not (0.0 < total < np.inf):
                return n, r, IMPOSSIBLE
            if (not least > limits.calm and _guard(fresh, held, belief, r, total, limits)) or total < limits.least:
                row, verdict = r, RISKY
            block.totals[r] = total
            block.redrawn[r] = redrawn
            scale = 1.0 / total
    _scale(belief, n, scale)
    return n, row, verdict


@exact_kernel
def _compensated(total, carry, x):
    """Neumaier's sum: total + carry grows by x without loss."""
    new = total + x
    carry += (total - new) + x if abs(total) >= abs(x) else (x - new) + total
    return new, carry


@kernel
def _log_total(block, n, total, carry):
    """Add the logarithms of n totals and their shifts to total + carry."""
    product = 1.0
    for r in range(n):
        total, carry = _compensated(total, carry, block.shifts[r])
        product *= block.totals[r]
        if not 1e-200 < product < 1e200:
            total, carry = _compensated(total, carry, math.log(product))
            product = 1.0
    return _compensated(total, carry, math.log(product))


@kernel
def _sums(fresh, belief, r, future):
    """The sums of the belief after step r, and of its redraws, both multiplied by the future."""
    reached, drawn = 0.0, 0.0
    for s in range(fresh.shape[1]):
        reached += belief[r + 1, s] * future[0, s]
        drawn += fresh[r, s] * future[0, s]
    return reached, drawn


@kernel
def _retreat(held, belief, r, future, drawn, scale):
    """The future of the previous step; 0 for states that cannot be reached, as it could overflow there."""
    for s in range(held.shape[1]):
        x = (held[r, s] * future[0, s] + drawn) * scale
        future[0, s] = 0.0 if belief[r, s] == 0.0 else x


@kernel
def _product(table, r, future, scale, out, at):
    for s in range(out.shape[2]):
        out[at[0], at[1], s] = table[r, s] * future[0, s] * scale


@kernel
def _held_share(held, belief, r, future, scale, out, at):
    if out.shape[2] == held.shape[1]:
        for s in range(held.shape[1]):
            out[at[0], at[1], s] = held[r, s] * belief[r, s] * future[0, s] * scale
    else:
        total = 0.0
        for s in range(held.shape[1]):
            total += held[r, s] * belief[r, s] * future[0, s]
        out[at[0], at[1], 0] = total * scale


@kernel
def _backward(i, t0, n, block, outputs):
    """Process the block's n steps from t0 backward, from the future after them to the future before them."""
    fresh, held, belief, future = block.fresh, block.held, block.belief, block.future
    for r in range(n - 1, -1, -1):
        reached, drawn = _sums(fresh, belief, r, future)
        scale = 1.0 / (block.totals[r] * reached)
        at = (i, t0 + r)
        if outputs.state.shape[2] > 0:
            _product(belief, r + 1, future, 1.0 / reached, outputs.state, at)
            outputs.redraw[at] = drawn * scale
        if outputs.fresh.shape[2] > 0:
            _product(fresh, r, future, scale, outputs.fresh, at)
            _held_share(held, belief, r, future, scale, outputs.held, at)
        _retreat(held, belief, r, future, drawn, scale)
    if t0 == 0:
        for s in range(outputs.initial.shape[1]):
            outputs.initial[i, s] = belief[0, s] * future[0, s]


@kernel
def sweep_forward(inputs, limits, stretch, block):
    """From the belief kept in row 0 over all blocks of a stretch; its evidence, verdict and failed step."""
    i, first, last = stretch
    total, carry, verdict, failed = 0.0, 0.0, FINE, -1
    for b in range(first, last):
        t0 = b * len(block.totals)
        copy_row(block.kept[b - first], block.belief[0])
        n, row, block_verdict = _forward(inputs, limits, i, t0, block, False)
        if block_verdict != FINE:
            verdict, failed = block_verdict, t0 + row
        if block_verdict == IMPOSSIBLE:
            break
        total, carry = _log_total(block, n, total, carry)
        copy_row(block.belief[n], block.kept[b - first + 1])
    return total + carry, verdict, failed


@kernel
def sweep_backward(inputs, limits, stretch, block, outputs):
    """Back over the blocks of `sweep_forward`, from the future in the last one."""
    i, first, last = stretch
    for b in range(last - 1, first - 1, -1):
        t0 = b * len(block.totals)
        n = min(len(block.totals), inputs.lengths[i] - t0)
        if b < last - 1:
            copy_row(block.kept[b - first], block.belief[0])
            _forward(inputs, limits, i, t0, block, False)
        _backward(i, t0, n, block, outputs)


@kernel
def _retreat_alone(fresh, held, r, future, scale):
    """The future of the previous step, scaled, without beliefs; its largest and its least value."""
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
def sweep_futures(inputs, limits, stretch, block):
    """Futures of a stretch; the one after each block is kept. The log of their scale, and whether they are reliable."""
    i, first, last = stretch
    log_fresh, log_held = inputs.log_fresh[i], inputs.log_held[i]
    block.future[:] = 1.0
    total, carry, top, trusted = 0.0, 0.0, 1.0, True
    for b in range(last - 1, first - 1, -1):
        t0 = b * len(block.totals)
        n = min(len(block.totals), inputs.lengths[i] - t0)
        copy_row(block.future[0], block.kept[b - first])
        chunk = rows_at_once(n, log_fresh.shape[1])
        for r0 in range((n - 1) // chunk * chunk, -1, -chunk):
            r1 = min(n, r0 + chunk)
            weigh(log_fresh, log_held, t0, (r0, r1), block, limits.lowest)
            for r in range(r1 - 1, r0 - 1, -1):
                block.totals[r] = top
                top, least = _retreat_alone(block.fresh, block.held, r, block.future, 1.0 / top)
                trusted &= (least > limits.calm * top) & (top < np.inf)
        total, carry = _log_total(block, n, total, carry)
    return total + carry, trusted


@kernel
def meet_futures(inputs, limits, stretch, belief, block, outputs):
    """Forward over the blocks of `sweep_futures`, from a belief to posteriors; evidence and verdict."""
    i, first, last = stretch
    total, carry, verdict = 0.0, 0.0, FINE
    for b in range(first, last):
        t0 = b * len(block.totals)
        copy_row(belief, block.belief[0])
        n, _, block_verdict = _forward(inputs, limits, i, t0, block, b == first)
        verdict = max(verdict, block_verdict)
        if block_verdict == IMPOSSIBLE:
            break
        total, carry = _log_total(block, n, total, carry)
        copy_row(block.belief[n], belief)
        copy_row(block.kept[b - first], block.future[0])
        _backward(i, t0, n, block, outputs)
    return total + carry, verdict


@kernel
def smooth_range(n0, n1, limits, inputs, block, outputs):
    """Evidence of sequences n0..n1, and the posteriors that are wanted."""
    rows = len(block.totals)
    wanted = outputs.state.size > 0 or outputs.fresh.size > 0
    for i in range(n0, n1):
        stretch = (i, 0, (inputs.lengths[i] + rows - 1) // rows)
        copy_row(inputs.start[i], block.kept[0])
        outputs.value[i], outputs.verdict[i], outputs.failed[i] = sweep_forward(inputs, limits, stretch, block)
        if wanted and outputs.verdict[i] == FINE:
            block.future[:] = 1.0
            sweep_backward(inputs, limits, stretch, block, outputs)


@kernel
def _write(belief, n, state, i, t0):
    for r in range(n):
        for s in range(state.shape[2]):
            state[i, t0 + r, s] = belief[r + 1, s]


@kernel
def filter_range(n0, n1, limits, inputs, block, outputs):
    """Log-increments, states and redraw probabilities of sequences n0..n1."""
    totals, redrawn, shifts = block.totals, block.redrawn, block.shifts
    redraw, increment = outputs.redraw, outputs.increment
    for i in range(n0, n1):
        copy_row(inputs.start[i], block.belief[0])
        for t0 in range(0, inputs.lengths[i], len(totals)):
            n, row, block_verdict = _forward(inputs, limits, i, t0, block, False)
            if block_verdict != FINE:
                outputs.verdict[i], outputs.failed[i] = block_verdict, t0 + row
            if block_verdict == IMPOSSIBLE:
                break
            _write(block.belief, n, outputs.state, i, t0)
            for r in range(n):
                redraw[i, t0 + r] = redrawn[r] / totals[r]
                increment[i, t0 + r] = math.log(totals[r]) + shifts[r]
            copy_row(block.belief[n], block.belief[0])
