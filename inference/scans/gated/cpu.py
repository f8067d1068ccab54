r"""The gated recurrence straight from pre-activations, fused for the CPU: one pass forward, one pass back.

Each step of the forward pass activates one row of gates and candidates in the first-level cache and applies it to the
state. The backward pass activates the row again, which costs less than reading it from memory would:

$$\bar h_t \mathrel{+}= hold_{t+1} \odot \bar h_{t+1}, \qquad
\overline{hold}_t = \bar h_t \odot h_{t-1}, \quad \overline{draw}_t = \bar h_t \odot v_t, \quad
\bar v_t = \bar h_t \odot draw_t$$

Sequences are spread over threads, and, where there are fewer sequences than threads, stretches of units as well.

All rows of one thread lie in one buffer at constant distances. So LLVM sees that they do not overlap and vectorises
loops over many of them without checks at run time.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ...numerics.compilation import kernel
from ...numerics.elementary import exp, sigmoids, tanh
from ...numerics.memory import prefetch
from ...numerics.op import Call, blank
from ...numerics.threads import in_parallel, ranges
from .op import scan

_REDRAW, _HOLD, _RATIO, _FREE = 0, 1, 2, 3
_LINEAR, _TANH, _POSITIVE, _SIMPLEX = 0, 1, 2, 3
_GATES = {"redraw": _REDRAW, "hold": _HOLD, "ratio": _RATIO, "free": _FREE}
_CANDIDATES = {"linear": _LINEAR, "tanh": _TANH, "positive": _POSITIVE, "simplex": _SIMPLEX}

WIDEST = 4096  # units a kernel takes at once, and so the largest block of a simplex
_AHEAD = 2  # rows to ask for before their turn
_STRETCH = 512  # units whose rows fit the first-level cache
_MIN_WORK = 32_768  # steps times units that repay a second thread
_ROW = WIDEST + 64  # not a multiple of a page: rows a page apart would wait for each other's stores
_HOLDS, _DRAWS, _VALUES, _SLOPES_F, _SLOPES_I, _STATE, _D_F, _D_I, _D_V = (k * _ROW for k in range(9))

_at = np.uintp  # an unsigned index: numba need not ask whether it counts from the end, and the loop vectorises


@kernel
def _activate_gates(kind, x, lo, units, n, rows):
    """Fill the rows of holds and draws, and, for two gates, the slopes that `_gate_gradients` multiplies with."""
    one = type(rows[0])(1)
    if kind in (_REDRAW, _HOLD):
        sign = one if kind == _HOLD else -one
        for d in range(n):
            rows[_HOLDS + d], rows[_DRAWS + d] = sigmoids(sign * x[_at(lo + d)])
    elif kind == _FREE:
        for d in range(n):
            rows[_HOLDS + d], rows[_SLOPES_F + d] = sigmoids(x[_at(lo + d)])
        for d in range(n):
            rows[_DRAWS + d], rows[_SLOPES_I + d] = sigmoids(x[_at(units + lo + d)])
    else:
        for d in range(n):
            # sigmoid(i) / (sigmoid(f) + sigmoid(i)), numerator and denominator scaled so that nothing overflows
            f, i = x[_at(lo + d)], x[_at(units + lo + d)]
            shift = max(-f, -i, one - one)
            both = exp(-shift)
            no_f = exp(-f - shift)
            no_i = exp(-i - shift)
            scale = one / (both + both + no_f + no_i)
            rows[_HOLDS + d] = (both + no_i) * scale
            rows[_DRAWS + d] = (both + no_f) * scale
            rows[_SLOPES_F + d] = no_f * scale
            rows[_SLOPES_I + d] = no_i * scale


@kernel
def _activate_candidates(layout, x, start, n, rows):
    """Fill the row of candidates from the pre-activations that begin at `start`."""
    kind, block = layout.candidate, layout.block
    zero, half, one = type(rows[0])(0), type(rows[0])(0.5), type(rows[0])(1)
    if kind == _LINEAR:
        for d in range(n):
            rows[_VALUES + d] = x[_at(start + d)]
    elif kind == _TANH:
        for d in range(n):
            rows[_VALUES + d] = tanh(x[_at(start + d)])
    elif kind == _POSITIVE:
        for d in range(n):
            c = x[_at(start + d)]
            rows[_VALUES + d] = c + half if c >= zero else sigmoids(c)[0]
    else:
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
def _state_gradients(d_h, y, h, before, n, rows):
    for d in range(n):
        total = d_h[_at(y + d)] + rows[_STATE + d]
        rows[_D_F + d] = total * h[_at(before + d)]
        rows[_D_I + d] = total * rows[_VALUES + d]
        rows[_D_V + d] = total * rows[_DRAWS + d]
        rows[_STATE + d] = total * rows[_HOLDS + d]


@kernel
def _gate_gradients(kind, n, out, lo, units, rows):
    """Write the gradients of the gates' pre-activations, from those of hold and draw."""
    if kind in (_REDRAW, _HOLD):
        sign = type(rows[0])(1 if kind == _HOLD else -1)
        for d in range(n):
            out[_at(lo + d)] = sign * (rows[_D_F + d] - rows[_D_I + d]) * rows[_HOLDS + d] * rows[_DRAWS + d]
        return
    if kind == _RATIO:
        for d in range(n):
            difference = rows[_D_F + d] - rows[_D_I + d]
            rows[_D_F + d] = difference
            rows[_D_I + d] = -difference
    for d in range(n):
        out[_at(lo + d)] = rows[_D_F + d] * rows[_HOLDS + d] * rows[_SLOPES_F + d]
    for d in range(n):
        out[_at(units + lo + d)] = rows[_D_I + d] * rows[_DRAWS + d] * rows[_SLOPES_I + d]


@kernel
def _candidate_gradients(layout, x, start, n, out, rows):
    kind, block = layout.candidate, layout.block
    one, zero = type(rows[0])(1), type(rows[0])(0)
    if kind == _LINEAR:
        for d in range(n):
            out[_at(start + d)] = rows[_D_V + d]
    elif kind == _TANH:
        for d in range(n):
            out[_at(start + d)] = rows[_D_V + d] * (one - rows[_VALUES + d] * rows[_VALUES + d])
    elif kind == _POSITIVE:
        for d in range(n):
            v = rows[_VALUES + d]
            slope = one if x[_at(start + d)] >= zero else v * (one - v)
            out[_at(start + d)] = rows[_D_V + d] * slope
    else:
        for first in range(0, n, block):
            mean = zero
            for d in range(first, first + block):
                mean += rows[_D_V + d] * rows[_VALUES + d]
            for d in range(first, first + block):
                out[_at(start + d)] = rows[_VALUES + d] * (rows[_D_V + d] - mean)


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
    n, candidates = hi - lo, width - units + lo
    rows = np.empty(9 * _ROW, pre.dtype)
    for b in range(b0, b1):
        for d in range(n):
            rows[_STATE + d] = h0[_at(b * units + lo + d)]
        for t in range(steps):
            x, y = (b * steps + t) * width, (b * steps + t) * units + lo
            prefetch(h, y + _AHEAD * units, n)
            for part in range(lo, width, units):
                prefetch(pre, x + _AHEAD * width + part, n)
            _activate_gates(layout.gate, pre, x + lo, units, n, rows)
            _activate_candidates(layout, pre, x + candidates, n, rows)
            for d in range(n):
                state = rows[_HOLDS + d] * rows[_STATE + d] + rows[_DRAWS + d] * rows[_VALUES + d]
                rows[_STATE + d] = state
                h[_at(y + d)] = state


@kernel
def _backward(layout, job, pre, h0, h, d_h, d_pre, d_h0):
    """The adjoint of `_forward`."""
    steps, units, width = layout.steps, layout.units, layout.width
    b0, b1, lo, hi = job
    n, candidates = hi - lo, width - units + lo
    rows = np.empty(9 * _ROW, pre.dtype)
    for b in range(b0, b1):
        for d in range(n):
            rows[_STATE + d] = 0
        for t in range(steps - 1, -1, -1):
            x, y = (b * steps + t) * width, (b * steps + t) * units + lo
            prefetch(d_h, y - _AHEAD * units, n)
            prefetch(h, y - (_AHEAD + 1) * units, n)
            for part in range(lo, width, units):
                prefetch(pre, x - _AHEAD * width + part, n)
                prefetch(d_pre, x - _AHEAD * width + part, n)
            _activate_gates(layout.gate, pre, x + lo, units, n, rows)
            _activate_candidates(layout, pre, x + candidates, n, rows)
            if t > 0:
                _state_gradients(d_h, y, h, y - units, n, rows)
            else:
                _state_gradients(d_h, y, h0, b * units + lo, n, rows)
            _gate_gradients(layout.gate, n, d_pre, x + lo, units, rows)
            _candidate_gradients(layout, pre, x + candidates, n, d_pre, rows)
        for d in range(n):
            d_h0[_at(b * units + lo + d)] = rows[_STATE + d]


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
def forward(pre: Tensor, h0: Tensor, gate: str, candidate: str, block: int) -> Tensor:
    h = blank(h0, (*pre.shape[:2], h0.shape[1]))
    if h.numel():
        _run(_forward, gate, candidate, block, pre, h0, h)
    return h


@scan.adjoint("cpu", takes=_fits)
def backward(call: Call, d_h: Tensor) -> list[Tensor]:
    (pre, h0, *options), (h,) = call.inputs, call.outputs
    d_pre, d_h0 = blank(pre), blank(h0).zero_()
    if h.numel():
        _run(_backward, *options, pre, h0, h, d_h, d_pre, d_h0)
    return [d_pre, d_h0]
