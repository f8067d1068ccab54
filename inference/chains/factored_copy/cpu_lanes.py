r"""Factored copy chains side by side: each lane of a vector has a number of another sequence.

Sums over states are then plain additions, few states leave no lane idle, and a step of all sequences costs the same as
a step of one. With $l_t$ the likelihoods of step t divided by the largest, and $\pi$ the states' table,

$$a_t = l_t \odot (hold_t\, a_{t-1} / \textstyle\sum a_{t-1} + redraw_t\, \pi), \qquad
b_t = l_t \odot m_t, \quad m_{t-1} = (hold_t\, b_t + redraw_t\, \pi^\top b_t) / \textstyle\sum b_t,$$

and posteriors are as in `cpu_moves`. Steps are processed in blocks, whose likelihoods and $a_t$ stay in the cache. The
forward sweep keeps the $a_t$ between blocks, and the backward sweep fills all blocks except the last again.

After the end of a sequence a step has no effect: it holds, and all likelihoods are 1. The rules for dropped numbers and
certainty are those of `chains.cpu_sweeps`.
"""

from functools import partial
from typing import Any

import numpy as np
import torch

from ...numerics.compilation import inlined, lean_kernel
from ...numerics.lanes import (
    BYTES,
    at_least,
    by_sign,
    exponent,
    load,
    mantissa,
    muladd,
    splat,
    store,
    width,
)
from ...numerics.threads import in_parallel, worthwhile
from .cpu_blocks import copy, load_steps, new_block, rows_of, write_rows

_SECONDS = 2e-9  # for a step and state
_LN2 = np.log(2.0)


@inlined
def forward(inputs: Any, block: Any, at: int, n: int) -> None:
    """a of the steps in a block, from the normalised a in the first row."""
    likelihood, weight, state, wide = block.likelihood, block.weight, block.state, width(block.weight)
    states, number, tiny = inputs.n_states * wide, weight.dtype.type, inputs.tiny
    one, zero, least = splat(number(1)), splat(number(0)), splat(inputs.least)
    ends, sure, inverse, row = load(block.ends, 0), load(block.sure, 0), one, 0
    for r in range(n):
        hold, redraw, mass = load(block.hold, r * wide) * inverse, load(block.redraw, r * wide), zero
        for s in range(0, states, wide):
            message = muladd(hold, load(weight, row + s), redraw * load(state, s))
            belief = at_least(load(likelihood, at + row + s) * message, tiny)
            store(weight, row + states + s, belief)
            mass = mass + belief
        mass = by_sign(ends - splat(number(r)), mass, one)
        sure = by_sign(mass - least, sure, zero)
        inverse = one / mass
        store(block.mass, r * wide, mass)
        row += states
    store(block.sure, 0, sure)


@inlined
def keep(block: Any, n: int, states: int, table: Any, at: int) -> None:
    """table[at:] <- the last a of a block, normalised."""
    wide, row = width(table), n * states
    inverse = splat(table.dtype.type(1)) / load(block.mass, (n - 1) * wide)
    for s in range(0, states, wide):
        store(table, at + s, load(block.weight, row + s) * inverse)


@inlined
def gain(block: Any, n: int) -> None:
    """Add the steps of a block to log p(x)."""
    evidence, wide = block.evidence, width(block.evidence)
    high, low = load(evidence, 0), load(evidence, wide)
    power, product = load(evidence, 2 * wide), load(evidence, 3 * wide)
    wanted, zero, one = load(block.wanted, 0), splat(evidence.dtype.type(0)), splat(evidence.dtype.type(1))
    for r in range(n):
        top = by_sign(wanted, load(block.top, r * wide), zero)
        after = high + top
        gained = after - high
        low = low + ((high - (after - gained)) + (top - gained))
        high = after
        product = product * by_sign(wanted, load(block.mass, r * wide), one)
        power, product = power + exponent(product), mantissa(product)
    store(evidence, 0, high)
    store(evidence, wide, low)
    store(evidence, 2 * wide, power)
    store(evidence, 3 * wide, product)


@inlined
def start_backward(block: Any, at: int, n: int, states: int) -> None:
    """Set all futures after the last step to 1."""
    wide, number = width(block.likelihood), block.likelihood.dtype.type
    for s in range(at + n * states, at + (n + 1) * states, wide):
        store(block.likelihood, s, splat(number(1)))
    store(block.after, 0, splat(number(1)))
    store(block.after, wide, splat(number(0)))


@inlined
def backward(inputs: Any, block: Any, at: int, n: int) -> None:
    """Posteriors of the steps in a block, and of the moves out of them."""
    likelihood, weight, state, counted = block.likelihood, block.weight, block.state, block.counted
    wide, number, tiny = width(weight), weight.dtype.type, inputs.tiny
    states = inputs.n_states * wide
    one, zero, least = splat(number(1)), splat(number(0)), splat(inputs.least)
    ends, sure, inverse, source = (
        load(block.ends, 0),
        load(block.sure, wide),
        load(block.after, 0),
        load(block.after, wide),
    )
    row, moved, wanted = (n - 1) * states, ends - splat(number(n)), load(block.wanted, 0)
    for r in range(n - 1, -1, -1):
        inside = ends - splat(number(r))
        hold, redraw = load(block.hold, (r + 1) * wide) * inverse, load(block.redraw, (r + 1) * wide)
        back, norm, kept, mass, drawn = redraw * source, zero, zero, zero, zero
        for s in range(row, row + states, wide):
            after, before = load(likelihood, at + s + states), load(weight, s + states)
            message = muladd(hold, after, back)
            met = before * message
            norm = norm + met
            kept = muladd(before, after, kept)
            store(weight, s + states, met)
            future = at_least(load(likelihood, at + s) * message, tiny)
            store(likelihood, at + s, future)
            mass = mass + future
            drawn = muladd(load(state, s - row), future, drawn)
        norms, total = one / norm, load(block.mass, r * wide)
        sure = by_sign(norm - least * total, sure, zero)
        fresh = redraw * (total * norms)
        store(block.drawn, r * wide, fresh * source)
        store(block.held, r * wide, by_sign(moved, hold * kept * norms, zero))
        share, scale = by_sign(wanted, fresh * inverse, zero), by_sign(inside, norms, zero)
        for s in range(row, row + states, wide):
            store(weight, s + states, load(weight, s + states) * scale)
            store(counted, s - row, muladd(share, load(likelihood, at + s + states), load(counted, s - row)))
        mass = by_sign(inside, mass, one)
        sure = by_sign(mass - least, sure, zero)
        inverse = one / mass
        source, moved = drawn * inverse, inside
        row -= states
    store(block.sure, wide, sure)
    store(block.after, 0, inverse)
    store(block.after, wide, source)


@inlined
def start_group(inputs: Any, block: Any, group: Any) -> None:
    """Make a block ready for a group of sequences."""
    wide, k, number = width(block.weight), inputs.n_states, block.weight.dtype.type
    p = inputs.padding
    for lane in range(wide):
        b = max(group[lane], 0)
        for s in range(k):
            block.state[s * wide + lane] = inputs.start[inputs.start_of[b] * p + s]
        if inputs.gates == 1:
            gate = inputs.table_of[b]
            block.gates[lane], block.gates[wide + lane] = inputs.hold[gate], inputs.redraw[gate]
    one, zero = splat(number(1)), splat(number(0))
    for i in range(3):
        store(block.evidence, i * wide, zero)
    store(block.evidence, 3 * wide, one)
    for i in range(2):
        store(block.sure, i * wide, one)
    for s in range(0, k * wide, wide):
        store(block.counted, s, zero)
        store(block.kept, s, zero)
    block.sums[:] = 0


@inlined
def write_totals(inputs: Any, outputs: Any, block: Any, group: Any, lanes: int, end: int, smoothing: bool) -> None:
    """Write the results of whole sequences, and 0 after the end of all."""
    wide, k, n_steps, evidence = width(block.weight), inputs.n_states, inputs.n_steps, block.evidence
    for lane in range(lanes):
        b = group[lane]
        factor = evidence[2 * wide + lane] * _LN2 + np.log(evidence[3 * wide + lane])
        outputs.log_normalizer[b] = evidence[lane] + (evidence[wide + lane] + factor)
        for way in range(2):
            outputs.certain[2 * b + way] = block.sure[way * wide + lane] > 0
        if smoothing:
            for s in range(k):
                outputs.counts[b * k + s] += block.state[s * wide + lane] * block.sums[s * wide + lane]
        outputs.state[(b * n_steps + end) * k : (b + 1) * n_steps * k] = 0
        if outputs.log_increment.size:
            outputs.log_increment[b * n_steps + end : (b + 1) * n_steps] = 0


@inlined
def filter_steps(inputs: Any, block: Any, at: int, n: int) -> None:
    """Beliefs after each step of a block, redraw probabilities and log-increments: the results of a filter."""
    weight, likelihood, wide, number = block.weight, block.likelihood, width(block.weight), block.weight.dtype.type
    states, one, zero = inputs.n_states * wide, splat(number(1)), splat(number(0))
    ends = load(block.ends, 0)
    for r in range(n):
        row = r * states
        inverse, drawn = one / load(block.mass, r * wide), zero
        for s in range(0, states, wide):
            drawn = muladd(load(likelihood, at + row + s), load(block.state, s), drawn)
        store(block.drawn, r * wide, load(block.redraw, r * wide) * drawn * inverse)
        inverse = by_sign(ends - splat(number(r)), inverse, zero)
        for s in range(row + states, row + 2 * states, wide):
            store(weight, s, load(weight, s) * inverse)
    for i in range(n * wide):
        block.mass[i] = block.top[i] + np.log(block.mass[i])


@inlined
def mark_wanted(wanted: Any, block: Any, group: Any, t: int) -> None:
    """Mark the sequences whose results are wanted from the block that begins at step t."""
    for lane in range(width(block.weight)):
        b = group[lane]
        block.wanted[lane] = 1 if b >= 0 and wanted[b, 0] <= t < wanted[b, 1] else -1


@inlined
def write_steps(
    inputs: Any, outputs: Any, wanted: Any, block: Any, group: Any, lanes: int, t: int, n: int, smoothing: bool
) -> None:
    """Write the results of n steps from t on."""
    n_steps, k = inputs.n_steps, inputs.n_states
    for lane in range(lanes):
        block.begin[lane] = (group[lane] * n_steps + t) * k
        block.count[lane] = min(n, wanted[group[lane], 2] - t) * k if block.wanted[lane] > 0 else 0
    write_rows(block.weight, k, outputs.state, block.begin, block.count, n * k, lanes)
    first = t + 1 if smoothing else t
    for lane in range(lanes):
        block.begin[lane] = group[lane] * n_steps + first
        block.count[lane] = min(n, wanted[group[lane], 2] - first) if block.wanted[lane] > 0 else 0
    write_rows(block.drawn, 0, outputs.redraw, block.begin, block.count, n, lanes)
    if smoothing:
        write_rows(block.held, 0, outputs.held, block.begin, block.count, n, lanes)
    else:
        write_rows(block.mass, 0, outputs.log_increment, block.begin, block.count, n, lanes)


@lean_kernel
def sweep_lanes(inputs: Any, outputs: Any, wanted: Any, block: Any, groups: Any, part: int) -> None:
    """Filter groups of sequences, [n, W] of their numbers with -1 for none, or smooth them if there are counts.

    `wanted [B, 3]`: results are wanted of blocks that begin from the first of these steps on and before the second; the
    outputs have room before the third. `part`: -1 all steps, 0 the steps before the last block, 1 the rest.
    """
    k, wide = inputs.n_states, width(block.weight)
    states, rows, smoothing = k * wide, block.mass.size // wide, outputs.counts.size > 0
    keeping = block.likelihood.size > block.weight.size
    for g in range(groups.shape[0]):
        group, lanes, end = groups[g], 0, 0
        while lanes < wide and group[lanes] >= 0:
            end = max(end, inputs.lengths[group[lanes]])
            lanes += 1
        blocks = (end + rows - 1) // rows
        turns = 2 * blocks - 1 if smoothing else blocks
        if part <= 0:
            start_group(inputs, block, group)
        for i in range(blocks - 1 if part == 1 else 0, blocks - 1 if part == 0 else turns):
            again = i >= blocks
            number_of = 2 * blocks - 2 - i if again else i
            t = number_of * rows
            n, kept = min(rows, end - t), number_of * states
            at = t * states if keeping else 0
            if again:
                after = at + n * states if keeping else 0
                copy(block.likelihood, after, block.likelihood, at + n * states, states)
                copy(block.likelihood, after, block.met, kept + states, states)
            load_steps(inputs, block, group, at, t, n, again and keeping)
            mark_wanted(wanted, block, group, t)
            copy(block.kept, kept, block.weight, 0, states)
            forward(inputs, block, at, n)
            if not again:
                gain(block, n)
            if i + 1 < blocks:
                keep(block, n, states, block.kept, kept + states)
                if smoothing:
                    continue
            if smoothing:
                if not again:
                    start_backward(block, at, n, states)
                backward(inputs, block, at, n)
                for s in range(states):
                    block.sums[s] += block.counted[s]
                    block.counted[s] = 0
            else:
                filter_steps(inputs, block, at, n)
            write_steps(inputs, outputs, wanted, block, group, lanes, t, n, smoothing)
        if part != 0:
            write_totals(inputs, outputs, block, group, lanes, end, smoothing)


def faster_side_by_side(inputs: Any) -> bool:
    """Whether sequences take less time here than one by one: a step of few sequences takes as long as one of many."""
    lengths = -np.sort(-inputs.lengths)
    wide = BYTES // inputs.log_likelihood.itemsize
    return bool(lengths.sum() >= (3 if inputs.n_states <= 8 else 6) * lengths[::wide].sum())


def sweep_side_by_side(inputs: Any, outputs: Any) -> None:
    """Filter, or smooth if there is room for counts: groups of sequences of similar lengths, spread over threads."""
    dtype = torch.from_numpy(outputs.state).dtype
    n, wide = len(inputs.lengths), BYTES // dtype.itemsize
    groups, place = np.full((-(-n // wide), wide), -1), np.arange(n)
    groups[place // wide, place % wide] = np.argsort(-inputs.lengths, kind="stable")
    n_threads = min(len(groups), worthwhile(outputs.state.size * _SECONDS))
    wanted = np.empty((n, 3), np.int64)
    wanted[:] = 0, inputs.n_steps, inputs.n_steps
    # made here, not by the threads: torch releases the interpreter for each, and threads would wait for one another
    rows = rows_of(inputs.n_steps, inputs.n_states, dtype)
    blocks = [new_block(inputs.n_steps, inputs.n_states, dtype, rows) for _ in range(n_threads)]
    in_parallel(
        [
            partial(sweep_lanes, inputs, outputs, wanted, block, np.ascontiguousarray(groups[i::n_threads]), -1)
            for i, block in enumerate(blocks)
        ]
    )
