"""The parts of a step of `cpu_sweeps` that are the same for all tables.

A thread takes up to `GROUP` sequences side by side, each in a slot of its `Workspace`. All arrays are flat; a slot's
vector of P numbers begins at `slot * P`. Vectors are processed by the width of a register.
"""

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from ..numerics.compilation import inlined
from ..numerics.elementary import exp
from ..numerics.lanes import (
    BYTES,
    at_least,
    larger,
    largest,
    load,
    load_some,
    splat,
    store,
    store_some,
    total,
    width,
)

GROUP = 4  # sequences side by side


class Workspace(NamedTuple):
    """The working memory of a thread, by slots."""

    message: Any  # [GROUP * P]
    likelihood: Any  # [GROUP * P], those of a step divided by the largest; or [homes * T * P] of all, see `place`
    weight: Any  # [GROUP * P]
    inverse: Any  # [GROUP], one over the sum of the weights
    source: Any  # [GROUP * kept], for counts: the vectors that messages came from
    target: Any  # [GROUP * kept], for counts: the vectors that messages met
    counted: Any  # [GROUP * ..], counts of the last blocks
    sums: Any  # the same in float64
    top: Any  # [GROUP] or [homes * T], log of the largest likelihood
    evidence: Any  # [GROUP * 3], float64: log p(x) so far, its rounding error, and a factor whose log is still missing
    sure: Any  # [GROUP], whether all digits were kept; not in `Outputs`, where threads would share a cache line


NarrowWorkspace: Any = namedtuple("NarrowWorkspace", Workspace._fields)
"""A `Workspace` with P equal to one vector. For this type the kernels are compiled without loops over vectors."""


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
def load_row(array: Any, at: int, count: int, filler: Any) -> Any:
    """The vector of `array[at : at + count]`, filled up with `filler`; a whole one if count is larger."""
    return load(array, at) if count >= width(array) else load_some(array, at, count, filler)


@inlined
def store_row(array: Any, at: int, value: Any, count: int) -> None:
    """Write the first `count` numbers of a vector: at once if it is complete, as some processors mask slowly."""
    if count >= width(array):
        store(array, at, value)
    else:
        store_some(array, at, value, count)


@inlined
def place(inputs: Any, work: Any, slot: int, home: int, t: int) -> int:
    """The place of the tables of a step: that of its slot, or among the tables of all steps of its home."""
    return slot if work.top.size == GROUP else home * inputs.n_steps + t


@inlined
def load_likelihood(inputs: Any, work: Any, at: int, b: int, t: int) -> None:
    """Likelihood and top at a place <- those of step t of sequence b."""
    row = (inputs.likelihood_of[b] * inputs.n_steps + t) * inputs.n_states
    log_likelihood, k, likelihood = inputs.log_likelihood, inputs.n_states, work.likelihood
    wide, p = width(likelihood), padding(work)
    nothing = likelihood.dtype.type(-np.inf)
    most = load_row(log_likelihood, row, k, nothing)
    for j in range(wide, p, wide):
        most = larger(most, load_row(log_likelihood, row + j, k - j, nothing))
    shift = largest(most)
    height = splat(shift)
    for j in range(0, p, wide):
        store(likelihood, at * p + j, exp(load_row(log_likelihood, row + j, k - j, nothing) - height))
    work.top[at] = shift


@inlined
def weigh(work: Any, slot: int, at: int, tiny: Any) -> Any:
    """Weight <- the likelihood at a place * message; returns its sum."""
    message, weight, p = work.message, work.weight, padding(work)
    offset, mass = slot * p, splat(weight.dtype.type(0))
    for j in range(0, p, width(weight)):
        product = at_least(load(work.likelihood, at * p + j) * load(message, offset + j), tiny)
        store(weight, offset + j, product)
        mass = mass + product
    return total(mass)


@inlined
def rescale(work: Any, slot: int, result: Any, to: int, n: int) -> None:
    """The first n numbers of result[to:] <- weight / its sum."""
    weight, inverse, p = work.weight, splat(work.inverse[slot]), padding(work)
    at = slot * p
    for j in range(0, p, width(weight)):
        store_row(result, to + j, load(weight, at + j) * inverse, n - j)


@inlined
def add(evidence: Any, at: int, x: Any) -> None:
    """Add to a sum and to its rounding error, by Neumaier's algorithm."""
    before = evidence[at]
    after = before + x
    evidence[at + 1] += (before - after) + x if abs(before) >= abs(x) else (x - after) + before
    evidence[at] = after


@inlined
def gain(evidence: Any, slot: int, top: Any, mass: Any) -> None:
    """Log p(x) += top + log(mass), compensated; one logarithm serves many masses."""
    at = 3 * slot
    add(evidence, at, top)
    factor = evidence[at + 2] * mass
    if factor < 1e-150 or factor > 1e150:
        add(evidence, at, np.log(factor))
        factor = 1.0
    evidence[at + 2] = factor
