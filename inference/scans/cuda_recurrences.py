r"""The kernels for GPUs of all recurrences $h_t = hold_t \odot h_{t-1} + draw_t \odot v_t$ over time.

A kind of gate and a kind of candidate define hold, draw and v. They are those of `gated.op`. For plain coefficients
there are the gates "linear" ($hold = x$, $draw = 1$) and "lerp" ($hold = 1 - x$, $draw = x$).

A program takes some columns, of one or several sequences, and loops over time, so a row is read and written
contiguously for any number of columns. A warp takes 32 columns, or 64 of half precision: a whole line of the cache
each. Columns of one simplex stay together. The state is kept in float32, or in float64 for float64.

If there are too few columns to keep the device busy, time is cut into chunks. A first pass reduces each chunk to its
effect on its first state, $h \mapsto product \cdot h + end$. This is a recurrence over chunks, which one program
computes. Its states are the first states of the chunks in a last pass. The gradient does the same backward in time:
with $r_t$ the gradient of $h_t$ through all later steps, $r_{t-1} = hold_t (grad_t + r_t)$.

Words of memory for each state, of which there are one a step and column, P being the parts of a row of pre-activations
(2 for linear and lerp):

| pass | read | written | operations |
|---|---|---|---|
| forward | P | 1 | 2 and the activation |
| backward | P + 2, for linear P + 1 | P | 5 to 10 and the activation |
| reduction of chunks, forward | P more | | 3 and the activation |
| reduction of chunks, backward | P more (gates and gradient) | | 3 and that of the gates |

An activation is an exponential and a division a gate (for "ratio" three and one a pair of them), a candidate "tanh" or
"positive" one more of each, "simplex" one exponential.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..numerics.gpu import (
    INTERPRETED,
    accumulated,
    chunks,
    constexpr,
    kernel,
    launch,
    position,
    rows,
    tl,
    triton,
    within,
)
from ..numerics.gpu_elementary import exp, sigmoids, tanh

WIDEST = 512  # columns of the largest simplex
_BUSY = 4 if INTERPRETED else 8  # warps for each of a GPU's processors
_LEAST = constexpr(-(2.0**100))  # of a pre-activation that is not -inf; float32 has it exactly


@kernel
def _columns(n_columns, block, GROUPS: constexpr, BLOCK: constexpr):
    """The columns [GROUPS, BLOCK] of a program among those of all sequences, and a mask of those that exist."""
    group = (position(0) * GROUPS + tl.arange(0, GROUPS))[:, None]
    place = tl.arange(0, BLOCK)[None, :]
    return group * block + place, (group * block < n_columns) & (place < block)


@kernel
def _gates(x, y, GATE: constexpr):
    """hold, draw, and of two gates the slopes of their logarithms."""
    if GATE == "linear":
        hold, draw, slope_x, slope_y = x, tl.full(x.shape, 1, x.dtype), x, x
    elif GATE == "lerp":
        hold, draw, slope_x, slope_y = 1 - x, x, x, x
    elif GATE == "redraw":
        draw, hold = sigmoids(x)
        slope_x, slope_y = x, x
    elif GATE == "hold":
        hold, draw = sigmoids(x)
        slope_x, slope_y = x, x
    elif GATE == "free":
        hold, slope_x = sigmoids(x)
        draw, slope_y = sigmoids(y)
    else:  # sigmoid(x) / (sigmoid(x) + sigmoid(y)), numerator and denominator scaled so that nothing overflows
        none = tl.maximum(x, y) == -float("inf")
        x = tl.maximum(x, _LEAST, propagate_nan=tl.PropagateNan.ALL)  # -inf is not to be taken from itself
        y = tl.maximum(y, _LEAST, propagate_nan=tl.PropagateNan.ALL)
        shift = tl.maximum(tl.maximum(-x, -y), 0)
        both, no_x, no_y = exp(-shift), exp(-x - shift), exp(-y - shift)
        scale = tl.where(none, float("nan"), 1 / (both + both + no_x + no_y))
        hold, draw = (both + no_y) * scale, (both + no_x) * scale
        slope_x, slope_y = no_x * scale, no_y * scale
    return hold, draw, slope_x, slope_y


@kernel
def _candidates(c, mask, CANDIDATE: constexpr):
    if CANDIDATE == "linear":
        value = c
    elif CANDIDATE == "tanh":
        value = tanh(c)
    elif CANDIDATE == "positive":
        value = tl.where(c >= 0, c + 0.5, sigmoids(c)[0])
    else:
        c = tl.where(mask, c, -float("inf"))
        grown = tl.where(mask, exp(c - tl.max(c, 1)[:, None]), 0)
        value = grown / tl.sum(grown, 1)[:, None]
    return value


@kernel
def _candidate_gradient(c, value, grad, CANDIDATE: constexpr):
    if CANDIDATE == "linear":
        result = grad
    elif CANDIDATE == "tanh":
        result = grad * (1 - value * value)
    elif CANDIDATE == "positive":
        result = tl.where(c >= 0, grad, grad * value * (1 - value))
    else:
        result = value * (grad - tl.sum(grad * value, 1)[:, None])
    return result


@kernel
def _reduce(
    first, second, last, product, end, steps, chunk, n_columns, units, width, block,
    GATE: constexpr, TWO: constexpr, CANDIDATE: constexpr, DIRECTION: constexpr,
    GROUPS: constexpr, BLOCK: constexpr, STEPS: constexpr, DTYPE: constexpr,
):  # fmt: skip
    """What each chunk does to the state; or backward to the gradient, `last` then being that of the states."""
    column, mask = _columns(n_columns, block, GROUPS, BLOCK)
    n, unit, part = column // units, column % units, position(1)
    low, high = part * chunk, tl.minimum(part * chunk + chunk, steps)
    at = n * steps * width + unit
    at_last, width_last = (n * steps * units + unit, units) if DIRECTION < 0 else (at, width)
    t = high - 1 if DIRECTION < 0 else low
    h, factor = tl.zeros((GROUPS, BLOCK), DTYPE), tl.full((GROUPS, BLOCK), 1, DTYPE)
    for _ in range(0, chunk, STEPS):
        xs = rows(first + at, t, DIRECTION, low, high, width, mask, DTYPE, STEPS)
        ys = rows(second + at, t, DIRECTION, low, high, width, mask, DTYPE, STEPS) if TWO else xs
        zs = rows(last + at_last, t, DIRECTION, low, high, width_last, mask, DTYPE, STEPS)
        for i in tl.static_range(STEPS):
            inside = within(mask, t + DIRECTION * i, low, high)
            hold, draw, _, _ = _gates(xs[i], ys[i], GATE)
            new = hold * (zs[i] + h) if DIRECTION < 0 else hold * h + draw * _candidates(zs[i], mask, CANDIDATE)
            h, factor = tl.where(inside, new, h), tl.where(inside, hold * factor, factor)
        t += DIRECTION * STEPS
    out = (tl.num_programs(1) - 1 - part if DIRECTION < 0 else part) * n_columns + column
    tl.store(product + out, factor, mask)
    tl.store(end + out, h, mask)


@kernel
def _carry(product, end, start, carried, count, n_columns, COLUMNS: constexpr, STEPS: constexpr, DTYPE: constexpr):
    """The state after each chunk [chunks, columns]; a state of 0 stays so, however large the product."""
    column = position(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < n_columns
    state, t = tl.load(start + column, mask, 0.0).to(DTYPE), position(0) * 0
    for _ in range(0, count, STEPS):
        xs = rows(product + column, t, 1, 0, count, n_columns, mask, DTYPE, STEPS)
        ys = rows(end + column, t, 1, 0, count, n_columns, mask, DTYPE, STEPS)
        for i in tl.static_range(STEPS):
            state = tl.where(state == 0, ys[i], xs[i] * state + ys[i])
            tl.store(carried + (t + i) * n_columns + column, state, within(mask, t + i, 0, count))
        t += STEPS


@kernel
def _begin(start, carried, part, n_columns, column, mask, DTYPE: constexpr):
    """The state before a chunk: `start` [N, D], or the state after the previous chunks, `carried` [chunks, N, D]."""
    first = tl.load(start + column, within(mask, part, 0, 1), 0.0).to(DTYPE)
    before = carried + (part - 1) * n_columns + column
    return first + tl.load(before, within(mask, part, 1, tl.num_programs(1)), 0.0).to(DTYPE)


@kernel
def _forward(
    first, second, last, start, carried, h, steps, chunk, n_columns, units, width, block,
    GATE: constexpr, TWO: constexpr, CANDIDATE: constexpr,
    GROUPS: constexpr, BLOCK: constexpr, STEPS: constexpr, DTYPE: constexpr,
):  # fmt: skip
    column, mask = _columns(n_columns, block, GROUPS, BLOCK)
    n, unit, part = column // units, column % units, position(1)
    low, high = part * chunk, tl.minimum(part * chunk + chunk, steps)
    at, out, t = n * steps * width + unit, h + n * steps * units + unit, low
    state = _begin(start, carried, part, n_columns, column, mask, DTYPE)
    for _ in range(0, chunk, STEPS):
        xs = rows(first + at, t, 1, low, high, width, mask, DTYPE, STEPS)
        ys = rows(second + at, t, 1, low, high, width, mask, DTYPE, STEPS) if TWO else xs
        zs = rows(last + at, t, 1, low, high, width, mask, DTYPE, STEPS)
        for i in tl.static_range(STEPS):
            hold, draw, _, _ = _gates(xs[i], ys[i], GATE)
            state = hold * state + draw * _candidates(zs[i], mask, CANDIDATE)
            tl.store(out + (t + i) * units, state, within(mask, t + i, low, high))
        t += STEPS


@kernel
def _backward(
    first, second, last, start, h, grad, carried, none, d_first, d_second, d_last, d_start,
    steps, chunk, n_columns, units, width, block,
    GATE: constexpr, TWO: constexpr, CANDIDATE: constexpr,
    GROUPS: constexpr, BLOCK: constexpr, STEPS: constexpr, DTYPE: constexpr,
):  # fmt: skip
    column, mask = _columns(n_columns, block, GROUPS, BLOCK)
    n, unit, part = column // units, column % units, position(1)
    low, high = part * chunk, tl.minimum(part * chunk + chunk, steps)
    at, at_h, t = n * steps * width + unit, n * steps * units + unit, high - 1
    r = _begin(none, carried, tl.num_programs(1) - 1 - part, n_columns, column, mask, DTYPE)
    initial = tl.load(start + column, mask, 0.0).to(DTYPE)
    for _ in range(0, chunk, STEPS):
        xs = rows(first + at, t, -1, low, high, width, mask, DTYPE, STEPS)
        ys = rows(second + at, t, -1, low, high, width, mask, DTYPE, STEPS) if TWO else xs
        zs = rows(last + at, t, -1, low, high, width, mask, DTYPE, STEPS) if GATE != "linear" else xs
        gs = rows(grad + at_h, t, -1, low, high, units, mask, DTYPE, STEPS)
        hs = rows(h + at_h, t - 1, -1, tl.maximum(low - 1, 0), high, units, mask, DTYPE, STEPS)
        for i in tl.static_range(STEPS):
            inside, out = within(mask, t - i, low, high), at + (t - i) * width
            before = tl.where(within(mask, t - i, 0, 1), initial, hs[i])
            hold, draw, slope_x, slope_y = _gates(xs[i], ys[i], GATE)
            total = gs[i] + r
            if GATE == "linear":
                tl.store(d_first + out, total * before, inside)
                tl.store(d_last + out, total, inside)
            else:
                value = _candidates(zs[i], mask, CANDIDATE)
                d_value = tl.where(inside, total * draw, 0)
                tl.store(d_last + out, _candidate_gradient(zs[i], value, d_value, CANDIDATE), inside)
                opened = total * (value - before)
                if GATE == "lerp":
                    tl.store(d_first + out, opened, inside)
                elif GATE == "redraw":
                    tl.store(d_first + out, opened * hold * draw, inside)
                elif GATE == "hold":
                    tl.store(d_first + out, -opened * hold * draw, inside)
                elif GATE == "ratio":
                    tl.store(d_first + out, -opened * hold * slope_x, inside)
                    tl.store(d_second + out, opened * draw * slope_y, inside)
                else:
                    tl.store(d_first + out, total * before * hold * slope_x, inside)
                    tl.store(d_second + out, total * value * draw * slope_y, inside)
            r = tl.where(inside, total * hold, r)
        t -= STEPS
    tl.store(d_start + column, r, within(mask, part, 0, 1))


class Kind(NamedTuple):
    """The inputs of a recurrence; `block` columns are one simplex."""

    gate: str
    candidate: str = "linear"
    block: int = 1


class Parts(NamedTuple):
    """Gates (the second where there are two) and candidates, [N, T, D] each, whose rows are `width` apart."""

    first: Tensor
    second: Tensor
    last: Tensor
    width: int


class _Launches:
    """How the kernels are launched for states [N, T, D]."""

    def __init__(self, kind: Kind, h: Tensor, width: int) -> None:
        n, steps, units = h.shape
        block, size = triton.next_power_of_2(kind.block), h.element_size()
        warps, lines = min(16, max(1, block // 32)), max(1, 4 // size)
        groups = max(1, 32 * lines // block)
        programs = triton.cdiv(n * units // kind.block, groups)
        self.cut = chunks(programs * warps, steps, h, _BUSY)
        self.grid = programs, self.cut.count
        self.sizes = steps, self.cut.steps, n * units, units, width, kind.block
        most = 16 if size == 4 and block == 1 else 8  # steps whose rows the registers hold
        stride = 2 if INTERPRETED else most * 32 * lines * warps // (groups * block)
        self.dtype = accumulated(h)
        self.options: dict[str, Any] = {
            "GATE": kind.gate, "TWO": kind.gate in ("ratio", "free"), "CANDIDATE": kind.candidate,
            "GROUPS": groups, "BLOCK": block, "STEPS": stride, "DTYPE": self.dtype, "num_warps": warps,
        }  # fmt: skip

    def carried(self, first: Tensor, second: Tensor, last: Tensor, start: Tensor, direction: int) -> Tensor:
        """The states after each chunk [chunks, N, D], if `direction` is -1 from the last to the first."""
        if self.cut.count == 1:
            return start
        dtype = torch.float64 if start.dtype == torch.float64 else torch.float32
        product, end, carried = (start.new_empty(self.cut.count, *start.shape, dtype=dtype) for _ in range(3))
        launch(_reduce, self.grid, first, second, last, product, end, *self.sizes, DIRECTION=direction, **self.options)
        columns, stride = 32, 2 if INTERPRETED else 32
        options = {"COLUMNS": columns, "STEPS": stride, "DTYPE": self.dtype, "num_warps": 1}
        grid = (triton.cdiv(start.numel(), columns),)
        launch(_carry, grid, product, end, start, carried, self.cut.count, start.numel(), **options)
        return carried


def states(kind: Kind, parts: Parts, start: Tensor, h: Tensor) -> None:
    """Fill the states h [N, T, D] that come after `start` [N, D]."""
    launches, tables = _Launches(kind, h, parts.width), parts[:3]
    carried = launches.carried(*tables, start, 1)
    launch(_forward, launches.grid, *tables, start, carried, h, *launches.sizes, **launches.options)


def gradients(kind: Kind, parts: Parts, start: Tensor, h: Tensor, grad: Tensor, slopes: Parts, d_start: Tensor) -> None:
    """Fill the gradients of the parts and of `start` from `grad`, that of h."""
    launches, tables = _Launches(kind, h, parts.width), parts[:3]
    none = torch.zeros_like(start)
    carried = launches.carried(*tables[:2], grad, none, -1)
    arguments = *tables, start, h, grad, carried, none, *slopes[:3], d_start
    launch(_backward, launches.grid, *arguments, *launches.sizes, **launches.options)
