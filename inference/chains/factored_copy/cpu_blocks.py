"""Blocks of steps of sequences side by side, for `cpu_lanes`: loading of tables and writing of results.

A row of W numbers has one step, and one state if there are several, of W sequences. So tables are transposed in squares
of W rows, for any number of states.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from ...numerics.compilation import inlined, lean_kernel
from ...numerics.elementary import exp
from ...numerics.lanes import BYTES, by_sign, larger, load, load_some, splat, store, store_some, transpose, width

_BLOCK = 1 << 18  # bytes of each table of a block
_ALONE = 1 << 22  # bytes up to which there is only one block, filled once; the size of an outer cache


class Block(NamedTuple):
    """The steps of W sequences that a thread works on, in rows of W numbers; row r is step t + r, for each state."""

    likelihood: Any  # [(R + 1) * K * W], divided by the largest; then b, with the step after the block in the last row;
    # or [(T + 1) * K * W] of all steps
    weight: Any  # [(R + 1) * K * W], a, with the step before the block in the first row; then P(s | x)
    kept: Any  # [blocks * K * W], normalised a before each block
    met: Any  # [blocks * K * W], b of the first step of each block except the first
    state: Any  # [K * W], pi
    counted: Any  # [K * W], sums of redraws
    sums: Any  # the same in float64
    gates: Any  # [2 * W], hold and redraw if they are constant
    hold: Any  # [(R + W) * W]
    redraw: Any  # [(R + W) * W]
    top: Any  # [R * W], the logarithms of the largest likelihoods
    mass: Any  # [R * W], the sums of a
    drawn: Any  # [R * W], P(z = 1 | ..)
    held: Any  # [R * W], P(z = 0 | x)
    ends: Any  # [W], the number of steps of each sequence from t on, minus a half
    wanted: Any  # [W], not negative if results are wanted of the block's steps
    evidence: Any  # [4 * W], the sum of `top` and its rounding error; the exponent and the mantissa of all masses
    sure: Any  # [2 * W], 1 if a direction kept all digits
    after: Any  # [2 * W], of the step after the block: one over the sum of b, and pi b divided by the sum
    begin: Any  # [W], the address of each sequence's numbers
    count: Any  # [W], their count


def rows_of(n_steps: int, n_states: int, dtype: torch.dtype) -> int:
    """Steps of a block."""
    wide, step = BYTES // dtype.itemsize, n_states * BYTES
    rows = -(-n_steps // wide) * wide
    return rows if rows * step <= _ALONE else max(_BLOCK // step // wide, 1) * wide


def likelihoods_of(n_steps: int, n_states: int, dtype: torch.dtype, rows: int) -> int:
    """The size of the likelihoods of `n_steps` steps, in blocks."""
    return (-(-n_steps // rows) * rows + 1) * n_states * (BYTES // dtype.itemsize)


def new_block(n_steps: int, n_states: int, dtype: torch.dtype, rows: int, kept: np.ndarray | None = None) -> Block:
    """A thread's working memory, with `rows` steps in a block; `kept` is memory for the likelihoods of all steps."""
    wide = BYTES // dtype.itemsize
    states, blocks = n_states * wide, -(-n_steps // rows)
    room = {"likelihood": likelihoods_of(rows, n_states, dtype, rows) if kept is None else 0}
    room |= {"weight": (rows + 1) * states, "kept": blocks * states, "met": blocks * states}
    room |= {"state": states, "counted": states, "gates": 2 * wide, "ends": wide, "wanted": wide}
    room |= dict.fromkeys(("hold", "redraw"), (rows + wide) * wide)
    room |= dict.fromkeys(("top", "mass", "drawn", "held"), rows * wide)
    room |= {"evidence": 4 * wide, "sure": 2 * wide, "after": 2 * wide}
    whole, begin = torch.empty(sum(room.values()), dtype=dtype).numpy(), 0  # all arrays are aligned for vectors
    arrays: dict[str, Any] = {}
    for name, size in room.items():
        arrays[name], begin = whole[begin : begin + size], begin + size
    if kept is not None:
        arrays["likelihood"] = kept
    return Block(**arrays, sums=np.empty(states), begin=np.empty(wide, np.int64), count=np.empty(wide, np.int64))


@lean_kernel
def load_rows(table: Any, begin: Any, count: Any, into: Any, at: int, n: int, filler: Any) -> None:
    """n rows, from into[at] on, <- n numbers of each sequence; `filler` after its end."""
    wide = width(into)
    for i in range(0, n, wide):
        for lane in range(wide):
            row = at + (i + lane) * wide
            if count[lane] - i >= wide:
                store(into, row, load(table, begin[lane] + i))
            else:
                store(into, row, load_some(table, begin[lane] + i, count[lane] - i, filler))
        transpose(into, at + i * wide)


@lean_kernel
def write_rows(source: Any, first: int, result: Any, begin: Any, count: Any, n: int, lanes: int) -> None:
    """n numbers of each sequence <- n rows from `first`; the rows are overwritten."""
    wide = width(source)
    for i in range(0, n, wide):
        at = (first + i) * wide
        transpose(source, at)
        for lane in range(lanes):
            if count[lane] - i >= wide:  # some processors are slow with a part of a vector
                store(result, begin[lane] + i, load(source, at + lane * wide))
            else:
                store_some(result, begin[lane] + i, load(source, at + lane * wide), count[lane] - i)


@inlined
def exponentiate_four(table: Any, i: int) -> None:
    wide = width(table)
    x0, x1, x2, x3 = load(table, i), load(table, i + wide), load(table, i + 2 * wide), load(table, i + 3 * wide)
    store(table, i, exp(x0))
    store(table, i + wide, exp(x1))
    store(table, i + 2 * wide, exp(x2))
    store(table, i + 3 * wide, exp(x3))


@inlined
def exponentiate(block: Any, at: int, n: int, states: int) -> None:
    """Log-likelihoods to likelihoods divided by the largest of each step."""
    likelihood, wide = block.likelihood, width(block.likelihood)
    for r in range(n):
        row = at + r * states
        most = load(likelihood, row)
        for s in range(row + wide, row + states, wide):
            most = larger(most, load(likelihood, s))
        store(block.top, r * wide, most)
        for s in range(row, row + states, wide):
            store(likelihood, s, load(likelihood, s) - most)
    for i in range(at, at + n * states, 8 * wide):  # eight at a time: they share the constants
        exponentiate_four(likelihood, i)
        exponentiate_four(likelihood, i + 4 * wide)


@inlined
def place(inputs: Any, block: Any, group: Any, of: Any, t: int, each: int) -> None:
    """The addresses of the numbers from step t on, `each` per step, in a table in which sequence b has row `of[b]`."""
    for lane in range(width(block.weight)):
        b = max(group[lane], 0)
        remaining = inputs.lengths[b] - t if group[lane] >= 0 else 0
        block.begin[lane] = (of[b] * inputs.n_steps + t) * each
        block.count[lane] = remaining * each


@inlined
def load_steps(inputs: Any, block: Any, group: Any, at: int, t: int, n: int, known: bool) -> None:
    """Fill the block with the tables of n steps from t on, and the gates of one more; with likelihoods unless
    `known`."""
    wide, number = width(block.weight), block.weight.dtype.type
    one, zero = splat(number(1)), splat(number(0))
    place(inputs, block, group, inputs.table_of, t, 1)
    for lane in range(wide):
        block.ends[lane] = min(block.count[lane], n + 1) - 0.5
    if inputs.gates == 1:
        ends, hold, redraw = load(block.ends, 0), load(block.gates, 0), load(block.gates, wide)
        for r in range(n + 1):
            inside = ends - splat(number(r))
            store(block.hold, r * wide, by_sign(inside, hold, one))
            store(block.redraw, r * wide, by_sign(inside, redraw, zero))
    else:
        load_rows(inputs.hold, block.begin, block.count, block.hold, 0, n + 1, number(1))
        load_rows(inputs.redraw, block.begin, block.count, block.redraw, 0, n + 1, number(0))
    if t == 0:
        store(block.hold, 0, zero)
        store(block.redraw, 0, one)
    if known:
        return
    k = inputs.n_states
    place(inputs, block, group, inputs.likelihood_of, t, k)
    load_rows(inputs.log_likelihood, block.begin, block.count, block.likelihood, at, n * k, number(0))
    exponentiate(block, at, n, k * wide)


@inlined
def copy(source: Any, at: int, table: Any, to: int, n: int) -> None:
    for s in range(0, n, width(table)):
        store(table, to + s, load(source, at + s))
