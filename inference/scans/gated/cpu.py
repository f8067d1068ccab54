r"""The gated recurrence straight from pre-activations, fused for the CPU: one pass forward, one pass back.

Each step of the forward pass activates gates and candidates and applies them to the state at once. The backward pass
activates them again, which costs less than reading them from memory would:

$$\bar h_t \mathrel{+}= hold_{t+1} \odot \bar h_{t+1}, \qquad
\overline{hold}_t = \bar h_t \odot h_{t-1}, \quad \overline{draw}_t = \bar h_t \odot v_t, \quad
\bar v_t = \bar h_t \odot draw_t$$

Sequences are spread over threads, and, where there are fewer sequences than threads, stretches of units as well.

A step goes through its units one vector after another, but for the softmax of a simplex, which takes its blocks first:
their rows lie in one buffer at constant distances, so that LLVM sees that they do not overlap, and vectorises.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ...numerics.compilation import inlined, kernel
from ...numerics.elementary import exp, sigmoids, tanh
from ...numerics.lanes import by_sign, load_some, muladd, smaller, splat, store_some
from ...numerics.lanes import width as lanes
from ...numerics.memory import empty_like, prefetch
from ...numerics.op import Call, in_single_precision
from ...numerics.threads import in_parallel, ranges, zeros
from .op import scan

_REDRAW, _HOLD, _RATIO, _FREE = 0, 1, 2, 3
_LINEAR, _TANH, _POSITIVE, _SIMPLEX = 0, 1, 2, 3
_GATES = {"redraw": _REDRAW, "hold": _HOLD, "ratio": _RATIO, "free": _FREE}
_CANDIDATES = {"linear": _LINEAR, "tanh": _TANH, "positive": _POSITIVE, "simplex": _SIMPLEX}

WIDEST = 4096  # units a kernel takes at once, and so the largest block of a simplex
_AHEAD = 4  # rows to ask for before their turn
_STRETCH = 512  # units whose rows fit the first-level cache
_MIN_WORK = 32_768  # steps times units that repay a second thread
_ROW = WIDEST + 64  # not a multiple of a page: rows a page apart would wait for each other's stores
_STATE, _VALUES, _D_VALUES = (k * _ROW for k in range(3))

_at = np.uintp  # an unsigned index: numba need not ask whether it counts from the end, and the loop vectorises


@inlined
def _gates(kind, x, at, units, n):
    """A vector of holds, one of draws, and the two slopes that `_gate_gradients` multiplies them with."""
    zero = x.dtype.type(0)
    first = load_some(x, at, n, zero)
    if kind in (_REDRAW, _HOLD):
        opened, closed = sigmoids(first)
        hold, draw = (closed, opened) if kind == _REDRAW else (opened, closed)
        return hold, draw, draw, hold
    second = load_some(x, at + units, n, zero)
    if kind == _FREE:
        hold, no_f = sigmoids(first)
        draw, no_i = sigmoids(second)
        return hold, draw, no_f, no_i
    # sigmoid(i) / (sigmoid(f) + sigmoid(i)), numerator and denominator scaled so that nothing overflows
    nothing = splat(zero)
    low = smaller(smaller(first, second), nothing)
    both, no_f, no_i = exp(low), exp(low - first), exp(low - second)
    scale = splat(x.dtype.type(1)) / (both + both + no_f + no_i)
    return (both + no_i) * scale, (both + no_f) * scale, no_f * scale, no_i * scale


@inlined
def _gate_gradients(kind, step, d_hold, d_draw, out, at, units, n):
    """Write the gradients of the gates' pre-activations, from the gradients of hold and draw."""
    hold, draw, slope_f, slope_i = step
    if kind == _REDRAW:
        store_some(out, at, (d_draw - d_hold) * hold * draw, n)
    elif kind == _HOLD:
        store_some(out, at, (d_hold - d_draw) * hold * draw, n)
    else:
        if kind == _RATIO:
            d_hold, d_draw = d_hold - d_draw, d_draw - d_hold
        store_some(out, at, d_hold * hold * slope_f, n)
        store_some(out, at + units, d_draw * draw * slope_i, n)


@inlined
def _candidates(kind, x, at, rows, d, n):
    """A vector of candidates; candidates of a simplex are in their row already."""
    zero = x.dtype.type(0)
    if kind == _SIMPLEX:
        return load_some(rows, _VALUES + d, n, zero)
    c = load_some(x, at, n, zero)
    if kind == _TANH:
        return tanh(c)
    if kind == _POSITIVE:
        return by_sign(c, c + splat(x.dtype.type(0.5)), sigmoids(c)[0])
    return c


@inlined
def _candidate_gradients(kind, x, at, value, d_value, out, rows, d, n):
    one = splat(x.dtype.type(1))
    if kind == _SIMPLEX:
        store_some(rows, _D_VALUES + d, d_value, n)
    elif kind == _TANH:
        store_some(out, at, d_value * (one - value * value), n)
    elif kind == _POSITIVE:
        c = load_some(x, at, n, x.dtype.type(0))
        store_some(out, at, by_sign(c, d_value, d_value * value * (one - value)), n)
    else:
        store_some(out, at, d_value, n)


@kernel
def _shares(x, start, n, block, rows):
    """Fill the row of candidates with the softmax of each block of the pre-activations that begin at `start`."""
    zero, one = type(rows[0])(0), type(rows[0])(1)
    for first in range(0, n, block):
        most = x[start + first]
        for d in range(first + 1, first + block):
            most = max(most, x[_at(start + d)])
        for d in range(first, first + block):
            rows[_VALUES + d] = exp(x[_at(start + d)] - most)
        total = zero
        for d in range(first, first + block):
            total += rows[_VALUES + d]
        share = one / total
        for d in range(first, first + block):
            rows[_VALUES + d] *= share


@kernel
def _share_gradients(start, n, block, out, rows):
    zero = type(rows[0])(0)
    for first in range(0, n, block):
        mean = zero
        for d in range(first, first + block):
            mean += rows[_D_VALUES + d] * rows[_VALUES + d]
        for d in range(first, first + block):
            out[_at(start + d)] = rows[_VALUES + d] * (rows[_D_VALUES + d] - mean)


class Layout(NamedTuple):
    """What is the same for all rows of pre-activations."""

    gate: int
    candidate: int
    block: int
    steps: int
    units: int
    width: int  # of a row: two or three times the units


@kernel
def _forward(layout, job, pre, h0, h):
    """Sequences b0..b1 and units lo..hi of a job."""
    steps, units, width = layout.steps, layout.units, layout.width
    b0, b1, lo, hi = job
    n, candidates = hi - lo, width - units
    rows = np.empty(3 * _ROW, pre.dtype)
    zero = pre.dtype.type(0)
    for b in range(b0, b1):
        for d in range(n):
            rows[_STATE + d] = h0[b * units + lo + d]
        for t in range(steps):
            x, y = (b * steps + t) * width + lo, (b * steps + t) * units + lo
            if layout.candidate == _SIMPLEX:
                _shares(pre, x + candidates, n, layout.block, rows)
            for d in range(0, n, lanes(pre)):
                prefetch(h, y + d + _AHEAD * units)
                for part in range(0, width, units):
                    prefetch(pre, x + d + _AHEAD * width + part)
                hold, draw, _, _ = _gates(layout.gate, pre, x + d, units, n - d)
                value = _candidates(layout.candidate, pre, x + candidates + d, rows, d, n - d)
                state = muladd(hold, load_some(rows, _STATE + d, n - d, zero), draw * value)
                store_some(rows, _STATE + d, state, n - d)
                store_some(h, y + d, state, n - d)


@kernel
def _backward(layout, job, pre, h0, h, d_h, d_pre, d_h0):
    """The adjoint of `_forward`."""
    steps, units, width = layout.steps, layout.units, layout.width
    b0, b1, lo, hi = job
    n, candidates = hi - lo, width - units
    rows = np.empty(3 * _ROW, pre.dtype)
    zero = pre.dtype.type(0)
    for b in range(b0, b1):
        for d in range(n):
            rows[_STATE + d] = 0
        for t in range(steps - 1, -1, -1):
            x, y = (b * steps + t) * width + lo, (b * steps + t) * units + lo
            if layout.candidate == _SIMPLEX:
                _shares(pre, x + candidates, n, layout.block, rows)
            for d in range(0, n, lanes(pre)):
                prefetch(d_h, y + d - _AHEAD * units)
                prefetch(h, y + d - (_AHEAD + 1) * units)
                for part in range(0, width, units):
                    prefetch(pre, x + d - _AHEAD * width + part)
                    prefetch(d_pre, x + d - _AHEAD * width + part)
                step = _gates(layout.gate, pre, x + d, units, n - d)
                hold, draw, _, _ = step
                at = x + candidates + d
                value = _candidates(layout.candidate, pre, at, rows, d, n - d)
                total = load_some(d_h, y + d, n - d, zero) + load_some(rows, _STATE + d, n - d, zero)
                if t > 0:
                    before = load_some(h, y - units + d, n - d, zero)
                else:
                    before = load_some(h0, b * units + lo + d, n - d, zero)
                store_some(rows, _STATE + d, total * hold, n - d)
                _gate_gradients(layout.gate, step, total * before, total * value, d_pre, x + d, units, n - d)
                _candidate_gradients(layout.candidate, pre, at, value, total * draw, d_pre, rows, d, n - d)
            if layout.candidate == _SIMPLEX:
                _share_gradients(x + candidates, n, layout.block, d_pre, rows)
        for d in range(n):
            d_h0[b * units + lo + d] = rows[_STATE + d]


def _jobs(sequences: int, steps: int, units: int, block: int) -> list[list[tuple[int, int, int, int]]]:
    """For each thread, the ranges (of sequences, of units) it takes; ranges of units consist of whole blocks."""
    parts = len(ranges(sequences * steps * units, _MIN_WORK))
    blocks = units // block
    by_sequence = [(0, sequences)] if sequences < parts else ranges(sequences, max(1, sequences // parts))
    stretches = max(-(-units // max(_STRETCH, block)), 1 if sequences >= parts else parts)
    stretches = min(stretches, blocks)
    edges = [blocks * k // stretches * block for k in range(stretches + 1)]
    by_unit = list(pairwise(edges))
    if len(by_sequence) > 1:
        return [[(*some, *unit) for unit in by_unit] for some in by_sequence]
    jobs = [(*by_sequence[0], *unit) for unit in by_unit]
    return [jobs[k::parts] for k in range(min(parts, len(jobs)))]


def _run(kernel: Callable[..., None], gate: str, candidate: str, block: int, pre: Tensor, *tables: Tensor) -> None:
    sequences, steps, width = pre.shape
    units = tables[0].shape[1]
    layout = Layout(_GATES[gate], _CANDIDATES[candidate], block, steps, units, width)
    flat = [table.detach().contiguous().numpy().reshape(-1) for table in (pre, *tables)]

    def run(jobs: list[tuple[int, int, int, int]]) -> None:
        for job in jobs:
            kernel(layout, job, *flat)

    shares = _jobs(sequences, steps, units, block if candidate == "simplex" else 1)
    in_parallel([partial(run, jobs) for jobs in shares], among_torch=True)


def _fits(pre: Tensor, h0: Tensor, gate: str, candidate: str, block: int) -> bool:
    return candidate != "simplex" or block <= WIDEST


@scan.kernel("cpu", takes=_fits)
@in_single_precision
def forward(pre: Tensor, h0: Tensor, gate: str, candidate: str, block: int) -> Tensor:
    h = empty_like(pre[..., : h0.shape[1]])
    if h.numel():
        _run(_forward, gate, candidate, block, pre, h0, h)
    return h


@scan.adjoint("cpu", takes=_fits)
@in_single_precision
def backward(call: Call, d_h: Tensor) -> list[Tensor]:
    (pre, h0, *options), (h,) = call.inputs, call.outputs
    d_pre, d_h0 = empty_like(pre), zeros(*h0.shape, dtype=h0.dtype)
    if h.numel():
        _run(_backward, *options, pre, h0, h, d_h, d_pre, d_h0)
    return [d_pre, d_h0]
