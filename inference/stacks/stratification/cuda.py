"""One fused step of a stratification stack on a GPU: one program a stack, which holds all its layers.

With V numbers a layer, forward reads and writes V + 1 numbers for each layer; backward reads 2 V + 2 and writes V + 1;
about 2 V + 10 and 4 V + 20 operations, and two sums over the layers above, or below. Between the two passes nothing
else is kept.
"""

from typing import Any

import torch
from torch import Tensor

from ...numerics.gpu import accumulated, constexpr, kernel, launch, position, tl, triton
from ...numerics.gpu_elementary import sigmoids, tanh
from ...numerics.op import Call, beyond_kernels, replay
from .op import step

_MOST = 2047  # layers before a step
_TILE = 4096  # numbers of a program at once


@kernel
def _relu(x):
    return tl.where(x < 0, 0, x)  # NaN stays


@kernel
def _strengths(raw, strength, m, i, n_layers, n_raw, DTYPE: constexpr):
    """Poured and drained; the rest of the layers i before; the layers after; the part of the read unit above each
    layer."""
    poured = sigmoids(tl.load(raw + m * n_raw + i * 0).to(DTYPE))
    drained = sigmoids(tl.load(raw + m * n_raw + 1 + i * 0).to(DTYPE))
    before = tl.load(strength + m * n_layers + i, i < n_layers, 0.0).to(DTYPE)
    lack = drained[0] - (tl.cumsum(before, 0, reverse=True) - before)
    rest = before - _relu(lack)
    after = tl.where(i == n_layers, poured[0], tl.where(i < n_layers, _relu(rest), 0))
    unread = 1 - (tl.cumsum(after, 0, reverse=True) - after)
    return poured, drained, lack, rest, after, unread


@kernel
def _values(raw, values, m, i, v, n_layers, n_raw, width, DTYPE: constexpr):
    """Of the layers i after a step, in the columns v [1, WIDTH]."""
    poured = tanh(tl.load(raw + m * n_raw + 2 + v, v < width, 0.0).to(DTYPE))
    at = (m * n_layers + i[:, None]) * width + v
    before = tl.load(values + at, (i[:, None] < n_layers) & (v < width), 0.0).to(DTYPE)
    return tl.where(i[:, None] == n_layers, poured, before), poured


@kernel
def _forward(
    raw, strength, values, strength_after, values_after, reading, n_layers, n_raw, width,
    LAYERS: constexpr, WIDTH: constexpr, DTYPE: constexpr,
):  # fmt: skip
    m, i = position(0), tl.arange(0, LAYERS)
    _, _, _, _, after, unread = _strengths(raw, strength, m, i, n_layers, n_raw, DTYPE)
    tl.store(strength_after + m * (n_layers + 1) + i, after, i <= n_layers)
    weight = tl.minimum(after, _relu(unread), propagate_nan=tl.PropagateNan.ALL)
    for first in range(0, width, WIDTH):
        v = (first + tl.arange(0, WIDTH))[None, :]
        layers = _values(raw, values, m, i, v, n_layers, n_raw, width, DTYPE)[0]
        at = (m * (n_layers + 1) + i[:, None]) * width + v
        tl.store(values_after + at, layers, (i[:, None] <= n_layers) & (v < width))
        tl.store(reading + m * width + v, tl.sum(weight[:, None] * layers, 0)[None, :], v < width)


@kernel
def _backward(
    raw, strength, values, g_strength, g_values, g_reading, g_raw, g_strength_before, g_values_before,
    n_layers, n_raw, width, LAYERS: constexpr, WIDTH: constexpr, DTYPE: constexpr,
):  # fmt: skip
    m, i = position(0), tl.arange(0, LAYERS)
    poured, drained, lack, rest, after, unread = _strengths(raw, strength, m, i, n_layers, n_raw, DTYPE)
    seen = _relu(unread)
    weight = tl.minimum(after, seen, propagate_nan=tl.PropagateNan.ALL)
    g_weight = tl.zeros((LAYERS,), DTYPE)
    for first in range(0, width, WIDTH):
        v = (first + tl.arange(0, WIDTH))[None, :]
        layers, poured_value = _values(raw, values, m, i, v, n_layers, n_raw, width, DTYPE)
        g_read = tl.load(g_reading + m * width + v, v < width, 0.0).to(DTYPE)
        g_weight += tl.sum(g_read * layers, 1)
        at = (m * (n_layers + 1) + i[:, None]) * width + v
        g_layers = tl.load(g_values + at, (i[:, None] <= n_layers) & (v < width), 0.0).to(DTYPE)
        g_layers += weight[:, None] * g_read
        at_before = (m * n_layers + i[:, None]) * width + v
        tl.store(g_values_before + at_before, g_layers, (i[:, None] < n_layers) & (v < width))
        g_poured = tl.sum(tl.where(i[:, None] == n_layers, g_layers, 0), 0)[None, :]
        tl.store(g_raw + m * n_raw + 2 + v, g_poured * (1 - poured_value * poured_value), v < width)
    # a minimum of equals belongs to both by half, as in torch
    share = tl.where(after < seen, 1.0, tl.where(after == seen, 0.5, 0.0)).to(DTYPE)
    of_unread = tl.where((unread > 0) & (i <= n_layers), (1 - share) * g_weight, 0)
    g_after = tl.load(g_strength + m * (n_layers + 1) + i, i <= n_layers, 0.0).to(DTYPE)
    g_after += share * g_weight - (tl.cumsum(of_unread, 0) - of_unread)  # a layer lowers `unread` of all below
    g_rest = tl.where((i < n_layers) & (rest > 0), g_after, 0)
    of_lack = tl.where(lack > 0, g_rest, 0)
    g_before = g_rest + (tl.cumsum(of_lack, 0) - of_lack)  # and keeps all below from being drained
    tl.store(g_strength_before + m * n_layers + i, g_before, i < n_layers)
    g_poured_on = g_after * poured[0] * poured[1]
    tl.store(g_raw + m * n_raw + i * 0, g_poured_on, i == n_layers)
    g_drained = tl.where(i == n_layers, 0 - tl.sum(of_lack, 0), 0) * drained[0] * drained[1]
    tl.store(g_raw + m * n_raw + 1 + i * 0, g_drained, i == n_layers)


def _launch(function: Any, raw: Tensor, strength: Tensor, values: Tensor, *others: Tensor) -> None:
    width = values.shape[2]
    layers = triton.next_power_of_2(strength.shape[1] + 1)
    columns = min(triton.next_power_of_2(width), max(1, _TILE // layers))
    kinds: dict[str, Any] = {"LAYERS": layers, "WIDTH": columns, "DTYPE": accumulated(raw)}
    sizes = strength.shape[1], raw.shape[1], width
    warps = min(8, max(1, layers * columns // 256))
    launch(function, (len(raw),), raw, strength, values, *others, *sizes, num_warps=warps, **kinds)


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, strength: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        m, n, width = values.shape
        tables = tuple(x.contiguous() for x in (raw, strength, values))
        results = raw.new_empty(m, n + 1), raw.new_empty(m, n + 1, width), raw.new_empty(m, width)
        _launch(_forward, *tables, *results)
        ctx.save_for_backward(raw, strength, values)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        if beyond_kernels(*grads):
            return replay(step.plain, Call(saved, (), ctx.needs_input_grad), grads)
        gradients = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in saved)
        _launch(_backward, *(x.contiguous() for x in (*saved, *grads)), *gradients)
        return gradients


def _fits(raw: Tensor, strength: Tensor, values: Tensor) -> bool:
    return strength.shape[1] <= _MOST and values.shape[2] > 0


@step.kernel("cuda", takes=_fits)
def stratified_step(raw: Tensor, strength: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _Step.apply(raw, strength, values)  # pyright: ignore[reportReturnType]
