"""What one step of `cpu_sweeps` does to the vectors of a slot, and what its counts add up to.

A thread goes through up to `GROUP` sequences side by side, each in a slot of its `Workspace`. All arrays are flat; a
slot's vector of P numbers begins at `slot * P`. Vectors are worked on a register's width at a time.
"""

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from ...numerics.compilation import inlined
from ...numerics.elementary import exp
from ...numerics.lanes import (
    BYTES,
    at_least,
    larger,
    largest,
    load,
    load_some,
    muladd,
    splat,
    spread,
    store,
    store_some,
    total,
    width,
)

GROUP = 4  # sequences side by side


class Inputs(NamedTuple):
    """What the kernels read. Entry b of `..._of` says which table sequence b has."""

    log_likelihood: Any
    likelihood_of: Any
    start: Any  # P(s_1), [n, P]
    start_of: Any
    forward: Any  # transition probabilities, by panels [n, panel, old state, lane]
    backward: Any  # the same transposed
    transition_of: Any
    lengths: Any
    n_steps: int
    n_states: int
    tiny: Any  # numbers under it are dropped
    least: Any  # normalisers under it leave doubt about the digits that this loses


class Outputs(NamedTuple):
    """What the kernels write."""

    state: Any  # [B * T * K]
    log_normalizer: Any  # [B], float64
    log_increment: Any  # [B * T], or nothing if not wanted
    counts: Any  # [B * K * K], or nothing if only filtered
    certain: Any  # [B * 2], whether each direction kept every digit


class Workspace(NamedTuple):
    """What a thread works in, by slots."""

    message: Any  # [GROUP * P]
    likelihood: Any  # [GROUP * P], of a step, over the largest
    weight: Any  # [GROUP * P]
    inverse: Any  # [GROUP], one over the sum of the weights
    source: Any  # [GROUP * depth * P], normalised vectors that the messages came from
    target: Any  # [GROUP * depth * P], stored vectors they met, over n_t
    pairs: Any  # [GROUP * P * P], G of the last blocks
    sums: Any  # [GROUP * P * P], G in float64
    top: Any  # [GROUP], log of the largest likelihood
    evidence: Any  # [GROUP * 3], float64: log p(x) so far, its rounding error, and a factor yet to be taken the log of
    sure: Any  # [GROUP], whether every digit was kept; not in `Outputs`, where threads would share a cache line


NarrowWorkspace: Any = namedtuple("NarrowWorkspace", Workspace._fields)
"""The same where P is one vector: a type of its own, for which the kernels are compiled without loops over vectors."""


def padded(n_states: int, itemsize: int) -> int:
    """P: the number of states, rounded up to one vector, or to pairs of vectors."""
    lanes = BYTES // itemsize
    return lanes if n_states <= lanes else -(-n_states // (2 * lanes)) * 2 * lanes


def padding(work: Any) -> Any:
    """P, inside a kernel."""
    raise TypeError("padding: only inside a numba kernel")


@overload(padding)
def _padding_of(work):
    if work.instance_class is NarrowWorkspace:
        return lambda work: width(work.weight)
    return lambda work: work.weight.size // GROUP


@inlined
def exponentiate(inputs: Any, work: Any, slot: int, row: int) -> None:
    """Likelihood and top <- those of the step whose log-likelihoods begin at `row`."""
    log_likelihood, k, likelihood = inputs.log_likelihood, inputs.n_states, work.likelihood
    wide, p = width(likelihood), padding(work)
    nothing = likelihood.dtype.type(-np.inf)
    most = load_some(log_likelihood, row, k, nothing)
    for j in range(wide, p, wide):
        most = larger(most, load_some(log_likelihood, row + j, k - j, nothing))
    shift = largest(most)
    height = splat(shift)
    for j in range(0, p, wide):
        store(likelihood, slot * p + j, exp(load_some(log_likelihood, row + j, k - j, nothing) - height))
    work.top[slot] = shift


@inlined
def weigh(work: Any, slot: int, tiny: Any) -> Any:
    """Weight <- likelihood * message; returns its sum."""
    message, weight, p = work.message, work.weight, padding(work)
    at, mass = slot * p, splat(weight.dtype.type(0))
    for j in range(0, p, width(weight)):
        product = at_least(load(work.likelihood, at + j) * load(message, at + j), tiny)
        store(weight, at + j, product)
        mass = mass + product
    return total(mass)


@inlined
def push_narrow(work: Any, slot: int, matrix: Any, table: int, n_states: int) -> None:
    """Message <- weight / its sum, times the matrix, where P is one vector: its length is known to the compiler."""
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
        left, right = where + j * p, where + (j + wide) * p
        for i in range(n_states):
            y, z = load(matrix, left + i * wide), load(matrix, right + i * wide)
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
def rescale(work: Any, slot: int, result: Any, to: int, n: int) -> None:
    """The first n numbers of result[to:] <- weight / its sum."""
    weight, inverse, p = work.weight, splat(work.inverse[slot]), padding(work)
    at = slot * p
    for j in range(0, p, width(weight)):
        store_some(result, to + j, load(weight, at + j) * inverse, n - j)


@inlined
def combine(state: Any, row: int, n_states: int, work: Any, slot: int, to: int) -> Any:
    """State <- stored vector * message, normalised; target[to:] <- stored vector over the same n_t; returns n_t."""
    message, target, p = work.message, work.target, padding(work)
    wide, at, zero = width(message), slot * p, message.dtype.type(0)
    mass = splat(zero)
    for j in range(0, p, wide):
        mass = muladd(load_some(state, row + j, n_states - j, zero), load(message, at + j), mass)
    norm = total(mass)
    inverse = splat(message.dtype.type(1) / norm)
    for j in range(0, p, wide):
        stored = load_some(state, row + j, n_states - j, zero) * inverse
        store(target, to + j, stored)
        store_some(state, row + j, stored * load(message, at + j), n_states - j)
    return norm


@inlined
def count_narrow(work: Any, slot: int, row: int, depth: int, n_states: int) -> None:
    """Pairs of a slot += source^T target over `depth` steps, where P is one vector: four rows at a time."""
    source, target, pairs, p = work.source, work.target, work.pairs, padding(work)
    for i in range(0, n_states, 4):
        to, d = (slot * p + i) * p, row
        y0, y1, y2, y3 = load(pairs, to), load(pairs, to + p), load(pairs, to + 2 * p), load(pairs, to + 3 * p)
        for _ in range(depth):
            y = load(target, d)
            y0, y1 = muladd(spread(source, d + i), y, y0), muladd(spread(source, d + i + 1), y, y1)
            y2, y3 = muladd(spread(source, d + i + 2), y, y2), muladd(spread(source, d + i + 3), y, y3)
            d += p
        store(pairs, to, y0)
        store(pairs, to + p, y1)
        store(pairs, to + 2 * p, y2)
        store(pairs, to + 3 * p, y3)


@inlined
def count_wide(work: Any, slot: int, row: int, depth: int) -> None:
    """The same where P is more than one vector: four rows of two vectors at a time."""
    source, target, pairs, p, wide = work.source, work.target, work.pairs, padding(work), width(work.source)
    for i in range(0, p, 4):
        for j in range(0, p, 2 * wide):
            to, d = (slot * p + i) * p + j, row
            on = to + wide
            y0, y1, y2, y3 = load(pairs, to), load(pairs, to + p), load(pairs, to + 2 * p), load(pairs, to + 3 * p)
            z0, z1, z2, z3 = load(pairs, on), load(pairs, on + p), load(pairs, on + 2 * p), load(pairs, on + 3 * p)
            for _ in range(depth):
                y, z = load(target, d + j), load(target, d + j + wide)
                x0, x1 = spread(source, d + i), spread(source, d + i + 1)
                x2, x3 = spread(source, d + i + 2), spread(source, d + i + 3)
                y0, y1, y2, y3 = muladd(x0, y, y0), muladd(x1, y, y1), muladd(x2, y, y2), muladd(x3, y, y3)
                z0, z1, z2, z3 = muladd(x0, z, z0), muladd(x1, z, z1), muladd(x2, z, z2), muladd(x3, z, z3)
                d += p
            store(pairs, to, y0)
            store(pairs, to + p, y1)
            store(pairs, to + 2 * p, y2)
            store(pairs, to + 3 * p, y3)
            store(pairs, on, z0)
            store(pairs, on + p, z1)
            store(pairs, on + 2 * p, z2)
            store(pairs, on + 3 * p, z3)


@inlined
def gain(evidence: Any, slot: int, top: Any, mass: Any) -> None:
    """Log p(x) += top + log(mass), compensated; the logarithm is taken of many masses at once."""
    at = 3 * slot
    before, factor = evidence[at], evidence[at + 2] * mass
    after = before + top
    evidence[at + 1] += (before - after) + top if abs(before) >= abs(top) else (top - after) + before
    evidence[at] = after
    if factor < 1e-150 or factor > 1e150:
        evidence[at + 1] += np.log(factor)
        factor = 1.0
    evidence[at + 2] = factor
