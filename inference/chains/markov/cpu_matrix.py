r"""Transition matrices in `chains.cpu_sweeps`: a matrix product per step, and expected moves.

The matrix is stored by panels of a vector's width. The sum $G = \sum_t (a_t / n_t) b_{t+1}^\top$ is also a product, of
the vectors of a block of steps, which are kept until the block is full.
"""

from typing import Any, NamedTuple

from ...numerics.compilation import inlined
from ...numerics.lanes import load, muladd, splat, spread, store, total, width
from ..cpu_steps import load_row, padding, rescale, store_row
from ..cpu_sweeps import count, for_inputs, meet, push, record, write_counts


class Inputs(NamedTuple):
    """The tables that kernels read. Entry b of `..._of` is the number of sequence b's table."""

    log_likelihood: Any
    likelihood_of: Any
    start: Any  # P(s_1), [n, P]
    start_of: Any
    forward: Any  # transition probabilities, by panels [n, panel, old state, lane]
    backward: Any  # the same transposed
    table_of: Any
    lengths: Any
    n_steps: int
    n_states: int
    counted_at_once: int  # steps
    tiny: Any  # smaller numbers are dropped
    least: Any  # with smaller normalisers this may lose digits


class Outputs(NamedTuple):
    """The tables that kernels write."""

    state: Any  # [B * T * K]
    log_normalizer: Any  # [B], float64
    log_increment: Any  # [B * T], or nothing if not wanted
    counts: Any  # [B * K * K], or nothing if only filtered
    certain: Any  # [B * 2], whether each direction kept every digit


@inlined
def push_narrow(work: Any, slot: int, matrix: Any, table: int, n_states: int) -> None:
    """Message <- weight / its sum, times the matrix, for P of one vector, whose length the compiler knows."""
    weight, message, p = work.weight, work.message, padding(work)
    at, row, zero = slot * p, table * p * p, weight.dtype.type(0)
    y0, y1, y2, y3 = splat(zero), splat(zero), splat(zero), splat(zero)
    for i in range(0, p, 4):
        if i < n_states:
            y0 = muladd(spread(weight, at + i), load(matrix, row + i * p), y0)
            y1 = muladd(spread(weight, at + i + 1), load(matrix, row + (i + 1) * p), y1)
            y2 = muladd(spread(weight, at + i + 2), load(matrix, row + (i + 2) * p), y2)
            y3 = muladd(spread(weight, at + i + 3), load(matrix, row + (i + 3) * p), y3)
    store(message, at, ((y0 + y1) + (y2 + y3)) * splat(work.inverse[slot]))


@inlined
def push_one(work: Any, slot: int, matrix: Any, table: int, n_states: int) -> None:
    """The same where P is more than one vector."""
    weight, message, inverse, p = work.weight, work.message, splat(work.inverse[slot]), padding(work)
    wide, at, where = width(weight), slot * p, table * p * p
    zero = weight.dtype.type(0)
    for j in range(0, p, wide):
        y0, y1, y2, y3 = splat(zero), splat(zero), splat(zero), splat(zero)
        row = where + j * p
        for i in range(at, at + n_states, 4):
            y0 = muladd(spread(weight, i), load(matrix, row), y0)
            y1 = muladd(spread(weight, i + 1), load(matrix, row + wide), y1)
            y2 = muladd(spread(weight, i + 2), load(matrix, row + 2 * wide), y2)
            y3 = muladd(spread(weight, i + 3), load(matrix, row + 3 * wide), y3)
            row += 4 * wide
        store(message, at + j, ((y0 + y1) + (y2 + y3)) * inverse)


@inlined
def push_four(work: Any, matrix: Any, table: int, n_states: int) -> None:
    """The same for four slots and one matrix, two panels at a time: eight sums stay in registers."""
    weight, message, inverse, p = work.weight, work.message, work.inverse, padding(work)
    wide, where = width(weight), table * p * p
    zero = weight.dtype.type(0)
    r0, r1, r2, r3 = spread(inverse, 0), spread(inverse, 1), spread(inverse, 2), spread(inverse, 3)
    for j in range(0, p, 2 * wide):
        y0, y1, y2, y3 = splat(zero), splat(zero), splat(zero), splat(zero)
        z0, z1, z2, z3 = splat(zero), splat(zero), splat(zero), splat(zero)
        panel, next_panel = where + j * p, where + (j + wide) * p
        for i in range(n_states):
            y, z = load(matrix, panel + i * wide), load(matrix, next_panel + i * wide)
            x0, x1 = spread(weight, i), spread(weight, p + i)
            x2, x3 = spread(weight, 2 * p + i), spread(weight, 3 * p + i)
            y0, z0 = muladd(x0, y, y0), muladd(x0, z, z0)
            y1, z1 = muladd(x1, y, y1), muladd(x1, z, z1)
            y2, z2 = muladd(x2, y, y2), muladd(x2, z, z2)
            y3, z3 = muladd(x3, y, y3), muladd(x3, z, z3)
        store(message, j, y0 * r0)
        store(message, j + wide, z0 * r0)
        store(message, p + j, y1 * r1)
        store(message, p + j + wide, z1 * r1)
        store(message, 2 * p + j, y2 * r2)
        store(message, 2 * p + j + wide, z2 * r2)
        store(message, 3 * p + j, y3 * r3)
        store(message, 3 * p + j + wide, z3 * r3)


@inlined
def combine(state: Any, row: int, n_states: int, work: Any, slot: int, to: int) -> Any:
    """State <- stored vector * message, normalised; target[to:] <- stored vector over the same n_t; returns n_t."""
    message, target, p = work.message, work.target, padding(work)
    wide, at, zero = width(message), slot * p, message.dtype.type(0)
    mass = splat(zero)
    for j in range(0, p, wide):
        mass = muladd(load_row(state, row + j, n_states - j, zero), load(message, at + j), mass)
    norm = total(mass)
    inverse = splat(message.dtype.type(1) / norm)
    for j in range(0, p, wide):
        stored = load_row(state, row + j, n_states - j, zero) * inverse
        store(target, to + j, stored)
        store_row(state, row + j, stored * load(message, at + j), n_states - j)
    return norm


@inlined
def count_narrow(work: Any, slot: int, row: int, depth: int, n_states: int) -> None:
    """Counts of a slot += source^T target over `depth` steps, for P of one vector: four rows at a time."""
    source, target, counted, p = work.source, work.target, work.counted, padding(work)
    for i in range(0, n_states, 4):
        to, d = (slot * p + i) * p, row
        y0, y1, y2, y3 = load(counted, to), load(counted, to + p), load(counted, to + 2 * p), load(counted, to + 3 * p)
        for _ in range(depth):
            y = load(target, d)
            y0, y1 = muladd(spread(source, d + i), y, y0), muladd(spread(source, d + i + 1), y, y1)
            y2, y3 = muladd(spread(source, d + i + 2), y, y2), muladd(spread(source, d + i + 3), y, y3)
            d += p
        store(counted, to, y0)
        store(counted, to + p, y1)
        store(counted, to + 2 * p, y2)
        store(counted, to + 3 * p, y3)


@inlined
def count_wide(work: Any, slot: int, row: int, depth: int) -> None:
    """The same for P of more than one vector: four rows of two vectors at a time."""
    source, target, counted, p, wide = work.source, work.target, work.counted, padding(work), width(work.source)
    for i in range(0, p, 4):
        for j in range(0, p, 2 * wide):
            to, d = (slot * p + i) * p + j, row
            on = to + wide
            y0, y1, y2, y3 = (
                load(counted, to),
                load(counted, to + p),
                load(counted, to + 2 * p),
                load(counted, to + 3 * p),
            )
            z0, z1, z2, z3 = (
                load(counted, on),
                load(counted, on + p),
                load(counted, on + 2 * p),
                load(counted, on + 3 * p),
            )
            for _ in range(depth):
                y, z = load(target, d + j), load(target, d + j + wide)
                x0, x1 = spread(source, d + i), spread(source, d + i + 1)
                x2, x3 = spread(source, d + i + 2), spread(source, d + i + 3)
                y0, y1, y2, y3 = muladd(x0, y, y0), muladd(x1, y, y1), muladd(x2, y, y2), muladd(x3, y, y3)
                z0, z1, z2, z3 = muladd(x0, z, z0), muladd(x1, z, z1), muladd(x2, z, z2), muladd(x3, z, z3)
                d += p
            store(counted, to, y0)
            store(counted, to + p, y1)
            store(counted, to + 2 * p, y2)
            store(counted, to + 3 * p, y3)
            store(counted, on, z0)
            store(counted, on + p, z1)
            store(counted, on + 2 * p, z2)
            store(counted, on + 3 * p, z3)


@inlined
def push_slot(inputs: Any, work: Any, slot: int, b: int, forward: bool) -> None:
    matrix = inputs.forward if forward else inputs.backward
    if padding(work) == width(work.weight):
        push_narrow(work, slot, matrix, inputs.table_of[b], inputs.n_states)
    else:
        push_one(work, slot, matrix, inputs.table_of[b], inputs.n_states)


@for_inputs(Inputs, push)
def _push(inputs: Any, work: Any, group: Any, stride: Any, together: bool, t: int) -> None:
    if together:
        matrix = inputs.forward if stride.step > 0 else inputs.backward
        push_four(work, matrix, inputs.table_of[group[0]], inputs.n_states)
    else:
        for slot in range(stride.first, stride.first + stride.n):
            push_slot(inputs, work, slot, group[slot], stride.step > 0)


@for_inputs(Inputs, record)
def _record(inputs: Any, outputs: Any, work: Any, slot: int, b: int, t: int, mass: Any) -> None:
    rescale(work, slot, outputs.state, (b * inputs.n_steps + t) * inputs.n_states, inputs.n_states)


@for_inputs(Inputs, meet)
def _meet(inputs: Any, outputs: Any, work: Any, slot: int, b: int, t: int, depth: int, forward: bool) -> Any:
    p, k = padding(work), inputs.n_states
    to = (slot * inputs.counted_at_once + depth) * p
    rescale(work, slot, work.source, to, p)
    return combine(outputs.state, (b * inputs.n_steps + t) * k, k, work, slot, to)


@for_inputs(Inputs, count)
def _count(inputs: Any, work: Any, stride: Any, depth: int, renew: bool) -> None:
    p, counted, sums = padding(work), work.counted, work.sums
    for slot in range(stride.first, stride.first + stride.n):
        row = slot * inputs.counted_at_once * p
        if p == width(work.weight):
            count_narrow(work, slot, row, depth, inputs.n_states)
        else:
            count_wide(work, slot, row, depth)
        if renew:
            for i in range(slot * p * p, (slot + 1) * p * p):
                sums[i] += counted[i]
                counted[i] = 0


@for_inputs(Inputs, write_counts)
def _write_counts(inputs: Any, outputs: Any, work: Any, b: int, slot: int, forward: bool) -> None:
    matrix, sums, counts, k = inputs.forward, work.sums, outputs.counts, inputs.n_states
    wide, p = width(work.weight), padding(work)
    table, at = inputs.table_of[b] * p * p, slot * p * p
    for i in range(k):
        for j in range(k):
            pair = sums[at + (i * p + j if forward else j * p + i)]
            counts[(b * k + i) * k + j] += matrix[table + (j // wide * p + i) * wide + j % wide] * pair
    sums[at : at + p * p] = 0
