"""The arithmetic of one step of `markov_linear`, a vector of states at a time, and of its counts.

All arrays are flat; `at`, `row`, `to`, `where` are positions in them, `p` is the padded number of states.
"""

from typing import Any

import numpy as np

from ...numerics.compilation import inlined
from ...numerics.elementary import exp
from ...numerics.lanes import (
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


@inlined
def weigh(log_likelihood: Any, row: int, n_states: int, message: Any, weight: Any, at: int, p: int, tiny: Any) -> Any:
    """Weight <- likelihoods * message; returns its sum and the largest log-likelihood."""
    wide = width(weight)
    nothing = weight.dtype.type(-np.inf)
    most = load_some(log_likelihood, row, n_states, nothing)
    for j in range(wide, p, wide):
        most = larger(most, load_some(log_likelihood, row + j, n_states - j, nothing))
    shift = largest(most)
    height, mass = splat(shift), splat(weight.dtype.type(0))
    for j in range(0, p, wide):
        likelihood = exp(load_some(log_likelihood, row + j, n_states - j, nothing) - height)
        product = at_least(likelihood * load(message, at + j), tiny)
        store(weight, at + j, product)
        mass = mass + product
    return total(mass), shift


@inlined
def push_one(weight: Any, inverse: Any, message: Any, at: int, n_states: int, matrix: Any, where: int, p: int) -> None:
    """Message <- weight / its sum, times the matrix."""
    wide = width(weight)
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
        store(message, at + j, ((y0 + y1) + (y2 + y3)) * splat(inverse))


@inlined
def push_four(weight: Any, inverse: Any, message: Any, n_states: int, matrix: Any, where: int, p: int) -> None:
    """The same for four slots and one matrix, two panels at a time: eight sums stay in registers."""
    wide = width(weight)
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
def combine(state: Any, row: int, n_states: int, message: Any, at: int, target: Any, to: int, p: int) -> Any:
    """State <- stored vector * message, normalised; target <- stored vector over the same n_t, which is returned."""
    wide = width(message)
    zero = message.dtype.type(0)
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
def rescale(vector: Any, at: int, factor: Any, result: Any, to: int, p: int, n: int) -> None:
    """The first n numbers of result <- factor * vector."""
    for j in range(0, p, width(vector)):
        store_some(result, to + j, load(vector, at + j) * splat(factor), n - j)


@inlined
def count_narrow(source: Any, target: Any, row: int, depth: int, pairs: Any, at: int, p: int) -> None:
    """Pairs += source^T target over `depth` steps, where P is one vector: four rows at a time."""
    for i in range(0, p, 4):
        to, d = at + i * p, row
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
def count(source: Any, target: Any, row: int, depth: int, pairs: Any, at: int, p: int) -> None:
    """Pairs += source^T target over `depth` steps: four rows of two vectors at a time."""
    wide = width(source)
    for i in range(0, p, 4):
        for j in range(0, p, 2 * wide):
            to, d = at + i * p + j, row
            y0, y1, y2, y3 = load(pairs, to), load(pairs, to + p), load(pairs, to + 2 * p), load(pairs, to + 3 * p)
            on = to + wide
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
