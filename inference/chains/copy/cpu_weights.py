r"""Inputs, outputs and memory of the kernels of copy chains, and weights from log-weights.

Weights are in the precision of the tables, and relative to the largest of their step. No number may underflow to a 0
that means "impossible". So a weight below `lowest` is raised to it, and a belief below `FLOOR` likewise. Such a state
is *lost*: its belief is an upper bound, not a value. This is harmless while a lost state gains only from redraws. If
one rises above `lost` by being held, or the total weight of a step is below `least`, the sequence is `RISKY`, and the
caller computes it in another way.

Rows are passed as a table and an index, because numba's memory manager would count a slice for every row.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import DTypeLike, NDArray

from ...numerics.compilation import kernel
from ...numerics.elementary import exp

FINE, IMPOSSIBLE, RISKY = 0, 1, 2
FLOOR = 1e-150  # the least belief that is not 0; its product with the least weight is still a normal number
_CHUNK = 1024  # weights that are computed together, in the first-level cache
BLOCK = 262_144  # weights of each kind in a block


class Limits(NamedTuple):
    """The limits of reliable numbers; products of neighbouring ones are below the precision of the tables."""

    lowest: float  # the least log-weight of a step, relative to its largest, other than -inf
    least: float  # the least total weight of a step
    lost: float  # the belief below which a state is lost
    share: float  # largest contribution of a lost state, relative to a redraw
    calm: float  # if all redraws have more weight than this, no state is lost, and earlier lost states do not matter


LIMITS = {
    torch.float64: Limits(lowest=-345.0, least=1e-75, lost=1e-70, share=1e-17, calm=1e-50),
    torch.float32: Limits(lowest=-85.0, least=1e-12, lost=1e-24, share=1e-8, calm=1e-16),
}


class Inputs(NamedTuple):
    """The tables that kernels read, of all sequences."""

    log_fresh: NDArray[Any]  # [N, T, K]
    log_held: NDArray[Any]  # [N, T, K] or [N, T, 1]
    log_start: NDArray[Any]  # [N, K], of the belief before the first step
    start: NDArray[Any]  # [N, K], that belief
    lengths: NDArray[Any]  # [N]


class Outputs(NamedTuple):
    """The tables that kernels write; an array without columns is not wanted."""

    value: NDArray[Any]  # [N]
    verdict: NDArray[Any]  # [N]
    failed: NDArray[Any]  # [N]
    increment: NDArray[Any]  # [N, T]
    state: NDArray[Any]  # [N, T, K]
    redraw: NDArray[Any]  # [N, T]
    fresh: NDArray[Any]  # [N, T, K]
    held: NDArray[Any]  # [N, T, K] or [N, T, 1]
    initial: NDArray[Any]  # [N, K]


class Block(NamedTuple):
    """The weights and beliefs of one block, and the kept vectors of all blocks."""

    fresh: NDArray[Any]  # [rows, K]
    held: NDArray[Any]  # [rows, K]
    belief: NDArray[Any]  # [rows + 1, K], before and after each step
    totals: NDArray[Any]  # [rows], c_t
    redrawn: NDArray[Any]  # [rows], the sum of the weights of redraws
    shifts: NDArray[Any]  # [rows], the logarithm of the weights' divisor
    future: NDArray[Any]  # [1, K], b_t
    kept: NDArray[Any]  # [blocks + 1, K], beliefs before each block, or futures after it


def new_block(rows: int, states: int, blocks: int, dtype: DTypeLike) -> Block:
    return Block(
        fresh=np.empty((rows, states), dtype),
        held=np.empty((rows, states), dtype),
        belief=np.empty((rows + 1, states)),
        totals=np.empty(rows),
        redrawn=np.empty(rows),
        shifts=np.empty(rows),
        future=np.empty((1, states)),
        kept=np.empty((blocks + 1, states)),
    )


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


# The first two are one instruction each, for numbers other than NaN; `highest` is NaN if either number is.
larger, smaller = _extremum("maxnum", ("nnan", "nsz")), _extremum("minnum", ("nnan", "nsz"))
highest: Any = _extremum("maximum", ("nsz",))


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
    for k in range(len(x)):
        x[k] = exp(x[k])


@kernel
def _fill(out, r, value):
    for s in range(out.shape[1]):
        out[r, s] = value


@kernel
def rows_at_once(n, states):
    """The number of rows, of n, to compute together."""
    return max(1, min(n, _CHUNK // states))


@kernel
def weigh(log_fresh, log_held, t0, rows, block, lowest):
    """Weights of the steps t0 + r for some rows r of a block, and the logarithms of their divisors."""
    fresh, held, shifts = block.fresh, block.held, block.shifts
    states = fresh.shape[1]
    narrow = log_held.shape[1] < states
    low = type(log_fresh[0, 0])(lowest)
    for r in range(rows[0], rows[1]):
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
    _exponentials(fresh.reshape(-1)[rows[0] * states : rows[1] * states])
    if not narrow:
        _exponentials(held.reshape(-1)[rows[0] * states : rows[1] * states])
