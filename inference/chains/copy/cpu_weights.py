r"""From log-weights to weights that can be multiplied and added: exponentials, a row of the tables at a time.

Weights are in the precision of the tables, and relative to the largest of their step. No number may underflow to a 0
that means "impossible". So a weight below `lowest` is raised to it, and a belief below `FLOOR` likewise; such a state
is *lost*: its belief is an upper bound, not a value. That is harmless as long as a lost state gains nothing but from a
redraw. If one rises above `lost` by being held, or all of a step's weight is below `least`, the sequence is `RISKY`,
and is for the caller to compute in another way.

Rows are passed as a table and an index: a slice of its own for every row would be counted by numba's memory manager.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from ...numerics import lanes
from ...numerics.elementary import exp
from ...numerics.workers import kernel

FINE, IMPOSSIBLE, RISKY = 0, 1, 2
FLOOR = 1e-150  # the least belief that is not 0: times the least weight it is still a normal number
_CHUNK = 1024  # weights that are made at once, in the first-level cache


class Limits(NamedTuple):
    """What numbers the recursions trust; products of neighbouring ones are below the precision of the tables."""

    lowest: float  # the least log-weight of a step, relative to its largest, other than -inf
    least: float  # the least total weight of a step
    lost: float  # the belief below which a state is lost
    share: float  # what a lost state may contribute, in parts of a redraw
    calm: float  # if all redraws weigh more than this, no state is lost and none that was lost matters


LIMITS = {
    torch.float64: Limits(lowest=-345.0, least=1e-75, lost=1e-70, share=1e-17, calm=1e-50),
    torch.float32: Limits(lowest=-85.0, least=1e-12, lost=1e-24, share=1e-8, calm=1e-16),
}


def _extremum(name: str, flags: tuple[str, ...]) -> Any:
    @intrinsic
    def pick(typingctx: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = args[0].type
            suffix = "f64" if isinstance(kind, ir.DoubleType) else "f32"
            function = ir.FunctionType(kind, [kind, kind])
            called = cgutils.get_or_insert_function(builder.module, function, f"llvm.{name}.{suffix}")
            return builder.call(called, args, fastmath=flags)

        return a(a, b), generate

    return pick


# Of two numbers neither of which is NaN, in one instruction; and of any two, where NaN is the answer if either is.
larger, smaller = _extremum("maxnum", ("nnan", "nsz")), _extremum("minnum", ("nnan", "nsz"))
highest = _extremum("maximum", ("nsz",))


@kernel
def _largest(table, t, start):
    for s in range(table.shape[1]):
        start = larger(start, table[t, s])
    return start


@kernel
def _shift(table, t, shift, lowest, out, r):
    for s in range(table.shape[1]):
        x = table[t, s] - shift
        out[r, s] = lowest if (x < lowest) & (x > -np.inf) else x


@kernel
def _exponentials(x):
    width = lanes.width(x)
    whole = len(x) - len(x) % width
    for k in range(0, whole, width):
        lanes.store(x, k, exp(lanes.load(x, k)))
    if whole < len(x):
        rest = len(x) - whole
        lanes.store_some(x, whole, exp(lanes.load_some(x, whole, rest, x[0])), rest)


@kernel
def _fill(out, r, value):
    for s in range(out.shape[1]):
        out[r, s] = value


@kernel
def weights_at_once(n, states):
    """How many of n rows to make at once."""
    return max(1, min(n, _CHUNK // states))


@kernel
def weigh(log_fresh, log_held, t0, r0, r1, fresh, held, shifts, lowest):
    """Weights of the steps t0 + r0 to t0 + r1, in rows r0 to r1, and the logarithms of what they were divided by."""
    states = fresh.shape[1]
    narrow = log_held.shape[1] < states
    low = type(log_fresh[0, 0])(lowest)
    for r in range(r0, r1):
        t = t0 + r
        shift = _largest(log_held, t, _largest(log_fresh, t, log_fresh[t, 0]))
        if shift == -np.inf:
            shift = type(low)(0)
        shifts[r] = shift
        _shift(log_fresh, t, shift, low, fresh, r)
        if narrow:
            x = log_held[t, 0] - shift
            _fill(held, r, math.exp(low if (x < low) and (x > -np.inf) else x))
        else:
            _shift(log_held, t, shift, low, held, r)
    _exponentials(fresh.reshape(-1)[r0 * states : r1 * states])
    if not narrow:
        _exponentials(held.reshape(-1)[r0 * states : r1 * states])
