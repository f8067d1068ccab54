"""One fused step of a superposition stack on a GPU; the equation is that of `op.superpose`.

The cells of a stack are one flat row, which an action moves by so many cells. With n the numbers of a stack's row and A
the actions, forward reads n numbers and writes n and what is read of them, with 2 A operations for each; backward reads
2 n and writes n, with 4 A operations for each. (What an action moves is read again by the next one, from the cache.)
Probabilities and values, A + V numbers a stack, are computed again in the backward pass.
"""

from typing import Any

import torch
from torch import Tensor

from ...numerics.gpu import accumulated, constexpr, kernel, launch, position, tl, triton
from ...numerics.gpu_elementary import exp, sigmoids
from ...numerics.op import Call, beyond_kernels, replay
from .op import step

_TILE = 256  # numbers of a program at once


@kernel
def _actions(raw, m, mask, n_raw, ACTIONS: constexpr, DTYPE: constexpr):
    """Probabilities of the actions of stacks m [STACKS, 1]."""
    logits, highest = (), tl.full(m.shape, -float("inf"), DTYPE)
    for n in tl.static_range(ACTIONS):
        logit = tl.load(raw + m * n_raw + n, mask, 0.0).to(DTYPE)
        highest = tl.maximum(highest, logit)
        logits += (logit,)
    grown, total = (), tl.zeros(m.shape, DTYPE)
    for n in tl.static_range(ACTIONS):
        grown += (exp(logits[n] - highest),)
        total += grown[n]
    action = ()
    for n in tl.static_range(ACTIONS):
        action += (grown[n] / total,)
    return action


@kernel
def _moved(
    raw, cells, m, j, mask, n_raw, n_old, width, ACTIONS: constexpr, N: constexpr, EMPTY: constexpr, DTYPE: constexpr
):
    """What action N brings to the numbers j [1, WIDTH] of stacks m [STACKS, 1]."""
    if N == 0:  # push
        pushed = sigmoids(tl.load(raw + m * n_raw + ACTIONS + j, mask & (j < width), 0.0).to(DTYPE))[0] - EMPTY
        above = tl.load(cells + m * n_old + j - width, mask & (j >= width) & (j - width < n_old), 0.0)
        moved = tl.where(j < width, pushed, above)
    else:
        from_cell = j + (1 if N == 1 else (0 if N == 2 else N - 1)) * width  # pop, no-op, pop several
        moved = tl.load(cells + m * n_old + from_cell, mask & (from_cell < n_old), 0.0)
    return moved.to(DTYPE)


@kernel
def _forward(
    raw, cells, new, reading, n_stacks, n_raw, n_old, n_new, n_reading, width,
    ACTIONS: constexpr, EMPTY: constexpr, STACKS: constexpr, WIDTH: constexpr, DTYPE: constexpr,
):  # fmt: skip
    m = (position(0) * STACKS + tl.arange(0, STACKS))[:, None]
    j = (position(1) * WIDTH + tl.arange(0, WIDTH))[None, :]
    action = _actions(raw, m, m < n_stacks, n_raw, ACTIONS, DTYPE)
    mask = (m < n_stacks) & (j < n_new)
    result = tl.zeros((STACKS, WIDTH), DTYPE)
    for n in tl.static_range(ACTIONS):
        result += action[n] * _moved(raw, cells, m, j, mask, n_raw, n_old, width, ACTIONS, n, EMPTY, DTYPE)
    tl.store(new + m * n_new + j, result, mask)
    tl.store(reading + m * n_reading + j, tl.where(j < n_new, result, 0) + EMPTY, (m < n_stacks) & (j < n_reading))


@kernel
def _gradient(g_new, g_reading, m, j, mask, n_new, n_reading, DTYPE: constexpr):
    """Of the numbers j of the cells after a step, 0 for those that are none."""
    mask = mask & (j >= 0) & (j < n_new)
    gradient = tl.load(g_new + m * n_new + j, mask, 0.0).to(DTYPE)
    return gradient + tl.load(g_reading + m * n_reading + j, mask & (j < n_reading), 0.0).to(DTYPE)


@kernel
def _backward(
    raw, cells, g_new, g_reading, g_raw, g_cells, n_stacks, n_raw, n_old, n_new, n_reading, width,
    ACTIONS: constexpr, EMPTY: constexpr, STACKS: constexpr, WIDTH: constexpr, DTYPE: constexpr,
):  # fmt: skip
    m = (position(0) * STACKS + tl.arange(0, STACKS))[:, None]
    action = _actions(raw, m, m < n_stacks, n_raw, ACTIONS, DTYPE)
    dots = ()
    for _n in tl.static_range(ACTIONS):
        dots += (tl.zeros((STACKS, WIDTH), DTYPE),)
    for first in range(0, tl.maximum(n_old, n_new), WIDTH):
        j = (first + tl.arange(0, WIDTH))[None, :]
        mask = (m < n_stacks) & (j < n_new)
        g = _gradient(g_new, g_reading, m, j, mask, n_new, n_reading, DTYPE)
        below = _gradient(g_new, g_reading, m, j + width, m < n_stacks, n_new, n_reading, DTYPE)
        of_cells, sums = action[0] * below, ()
        for n in tl.static_range(ACTIONS):
            sums += (dots[n] + g * _moved(raw, cells, m, j, mask, n_raw, n_old, width, ACTIONS, n, EMPTY, DTYPE),)
            if n > 0:
                from_cell = j - (1 if n == 1 else (0 if n == 2 else n - 1)) * width
                of_cells += action[n] * _gradient(g_new, g_reading, m, from_cell, m < n_stacks, n_new, n_reading, DTYPE)
        dots = sums
        tl.store(g_cells + m * n_old + j, of_cells, (m < n_stacks) & (j < n_old))
    mean, totals = tl.zeros((STACKS, 1), DTYPE), ()
    for n in tl.static_range(ACTIONS):
        totals += (tl.sum(dots[n], 1)[:, None],)
        mean += action[n] * totals[n]
    for n in tl.static_range(ACTIONS):
        tl.store(g_raw + m * n_raw + n, action[n] * (totals[n] - mean), m < n_stacks)
    for first in range(0, width, WIDTH):
        j = (first + tl.arange(0, WIDTH))[None, :]
        mask = (m < n_stacks) & (j < width)
        up, down = sigmoids(tl.load(raw + m * n_raw + ACTIONS + j, mask, 0.0).to(DTYPE))
        g = _gradient(g_new, g_reading, m, j, mask, n_new, n_reading, DTYPE)
        tl.store(g_raw + m * n_raw + ACTIONS + j, action[0] * g * up * down, mask)


def _launch(function: Any, tables: tuple[Tensor, ...], width: int, empty: float, columns: int, parted: bool) -> None:
    """On tables [M, numbers] that begin with raw and cells; `columns` each, parted among programs or not."""
    raw, cells, *_ = tables
    after = tables[2:4]  # cells and reading, or their gradients
    tile = min(_TILE, triton.next_power_of_2(max(1, columns)))
    stacks = _TILE // tile
    sizes = len(raw), raw.shape[1], cells.shape[1], *(table.shape[1] for table in after), width
    kinds: dict[str, Any] = {"ACTIONS": raw.shape[1] - width, "EMPTY": empty, "DTYPE": accumulated(raw)}
    grid = (triton.cdiv(len(raw), stacks), *([triton.cdiv(columns, tile)] if parted else []))
    launch(function, grid, *tables, *sizes, STACKS=stacks, WIDTH=tile, num_warps=4, **kinds)


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, cells: Tensor, depth: int, n_read: int, empty: float) -> tuple[Tensor, Tensor]:
        (n, _, width), ctx.others = cells.shape, (depth, n_read, empty)
        new, reading = raw.new_empty(n, depth * width), raw.new_empty(n, n_read * width)
        tables = raw.contiguous(), cells.flatten(1).contiguous(), new, reading
        _launch(_forward, tables, width, empty, max(new.shape[1], reading.shape[1]), True)
        ctx.save_for_backward(raw, cells)
        return new.view(n, depth, width), reading

    @staticmethod
    def backward(ctx: Any, g_new: Tensor, g_reading: Tensor) -> tuple[Tensor | None, ...]:
        raw, cells = saved = ctx.saved_tensors
        if beyond_kernels(g_new, g_reading):
            return replay(step.plain, Call((*saved, *ctx.others), (), ctx.needs_input_grad), (g_new, g_reading))
        g_raw, g_cells = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in saved)
        tables = (x.flatten(1).contiguous() for x in (raw, cells, g_new, g_reading))
        tables = *tables, g_raw, g_cells.flatten(1)
        columns = max(tables[1].shape[1], tables[2].shape[1])
        _launch(_backward, tables, cells.shape[2], ctx.others[2], columns, False)
        return g_raw, g_cells, None, None, None


@step.kernel("cuda")
def superposed_step(raw: Tensor, cells: Tensor, depth: int, n_read: int, empty: float) -> tuple[Tensor, Tensor]:
    return _Step.apply(raw, cells, depth, n_read, empty)  # pyright: ignore[reportReturnType]
