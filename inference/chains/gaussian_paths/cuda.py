r"""Gaussian paths on a GPU: a program a sequence, its matrices in registers, in float64.

Forward, a step factors its precision and inverts the factor; backward come moments, by another kernel, or draws.
`plain` has the equations. A step costs $O(L^3)$. Forward it reads $2 L^2 + L$ numbers and writes as many, and backward
the same; a draw reads $2 L^2$, which those of one sequence share in the cache, and $2 L$, and writes L. More states
than registers hold are left to the plain form.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ...numerics.gpu import constexpr, kernel, launch, position, tl, triton, within
from ...numerics.gpu_matrices import (
    beside,
    column_of,
    each_times,
    each_transposed_times,
    matrices,
    outer,
    row_of,
    times,
    transposed_times,
    unit,
    vectors,
    warps,
)
from . import op

_MOST_STATES = 32
_HALF_LOG_2PI = constexpr(math.log(2 * math.pi) / 2)


@kernel
def _eliminate(
    linear, square, cross, lengths, total, failed, mean, gain, inverse, lower, steps,
    STATES: constexpr, SIDE: constexpr,
):  # fmt: skip
    """Forward: log normaliser, and for each step its mean and gain, and the requested form of its covariance."""
    b, i = position(0), tl.arange(0, SIDE)
    state, size = i < STATES, STATES * STATES
    full, at = state[:, None] & state[None, :], i[:, None] * STATES + i[None, :]
    n = tl.load(lengths + b)
    end, t = n, n * 0
    bad = t - 1
    less, more = tl.zeros((SIDE, SIDE), tl.float64), tl.zeros((SIDE,), tl.float64)
    value = tl.sum(more, 0)
    while t < end:
        step = b * steps + t
        block = tl.load(square + step * size + at, full, 0.0).to(tl.float64)
        precision = -(block + tl.trans(block)) - less
        shift = tl.load(linear + step * STATES + i, state, 0.0).to(tl.float64) + more
        root, log_det, wrong = unit(SIDE), value * 0, t * 0
        for k in range(STATES):  # the inverse of the factor is built with the factor, column by column
            column = column_of(precision, i, k)
            pivot = tl.sum(tl.where(i == k, column, 0.0), 0)
            fine = (pivot > 0) & (pivot < float("inf"))
            wrong = tl.where(fine, wrong, 1)
            pivot = tl.where(fine, pivot, 1.0)
            column = tl.where(i > k, column, 0.0) / pivot
            row = row_of(root, i, k)
            root -= column[:, None] * row[None, :]
            root = tl.where(i[:, None] == k, (row / tl.sqrt(pivot))[None, :], root)
            precision -= column[:, None] * (column * pivot)[None, :]
            log_det += tl.log(pivot)
        spread = transposed_times(root, root, i, STATES)
        own_mean = tl.sum(spread * shift[None, :], 1)
        value += STATES * _HALF_LOG_2PI + (tl.sum(shift * own_mean, 0) - log_det) / 2
        bad = tl.where(wrong != 0, t, bad)
        tl.store(mean + step * STATES + i, own_mean, state)
        if inverse is not None:
            tl.store(inverse + step * size + at, spread, full)
        if lower is not None:
            tl.store(lower + step * size + at, root, full)
        goes, to = within(full, t, 0, n - 1), (b * (steps - 1) + t) * size
        below = tl.load(cross + to + at, goes, 0.0).to(tl.float64)
        block = outer(spread, below, i, STATES)
        tl.store(gain + to + at, block, goes)
        less = times(below, block, i, STATES)
        more = tl.sum(below * own_mean[None, :], 1)
        t += 1
        end = tl.where(bad >= 0, 0, end)
    tl.store(total + b, value)
    tl.store(failed + b, bad)


@kernel
def _moments(
    lengths, failed, mean, gain, inverse, first, second, crossed, steps, STATES: constexpr, SIDE: constexpr
):  # fmt: skip
    """Backward: E s, E s s', E s_t+1 s_t', 0 beyond the end."""
    b, i = position(0), tl.arange(0, SIDE)
    state, size = i < STATES, STATES * STATES
    full, at = state[:, None] & state[None, :], i[:, None] * STATES + i[None, :]
    n = tl.where(tl.load(failed + b) < 0, tl.load(lengths + b), 0)
    m, covariance, t = tl.zeros((SIDE,), tl.float64), tl.zeros((SIDE, SIDE), tl.float64), b * 0 + steps - 1
    for _ in range(steps):
        step, to = b * steps + t, (b * (steps - 1) + t) * size
        step_gain = tl.load(gain + to + at, within(full, t, 0, n - 1), 0.0)
        later, between = m, outer(covariance, step_gain, i, STATES)
        m = tl.load(mean + step * STATES + i, within(state, t, 0, n), 0.0) + tl.sum(step_gain * m[None, :], 1)
        covariance = tl.load(inverse + step * size + at, within(full, t, 0, n), 0.0) + times(
            step_gain, between, i, STATES
        )
        tl.store(first + step * STATES + i, m, state)
        tl.store(second + step * size + at, covariance + m[:, None] * m[None, :], full)
        tl.store(crossed + to + at, between + later[:, None] * m[None, :], within(full, t, 0, steps - 1))
        t -= 1


@kernel
def _draw(
    lengths, failed, mean, gain, lower, noise, path, draws, sequences, steps,
    STATES: constexpr, SIDE: constexpr, DRAWS: constexpr,
):  # fmt: skip
    """Backward: draws [n, N, T, L] from noise of that shape, a few of them in a program."""
    d, i = position(0) * DRAWS + tl.arange(0, DRAWS), tl.arange(0, SIDE)
    exists, b = d < draws, d % sequences
    n = tl.where(tl.load(failed + b, exists, 0) < 0, tl.load(lengths + b, exists, 0), 0)
    x, t = tl.zeros((DRAWS, SIDE), tl.float64), position(0) * 0 + steps - 1
    for _ in range(steps):
        inside, moves, step = exists & (n > t), exists & (n > t + 1), b * steps + t
        nu = vectors(noise + d * steps * STATES, t, steps, STATES, i, inside)
        roots = matrices(lower + step * STATES * STATES, i, i, STATES, STATES, inside)
        gains = matrices(gain + (step - b) * STATES * STATES, i, i, STATES, STATES, moves)
        x = each_times(gains, x) + each_transposed_times(roots, nu)
        x += vectors(mean + b * steps * STATES, t, steps, STATES, i, inside)
        tl.store(path + (d[:, None] * steps + t) * STATES + i[None, :], x, exists[:, None] & (i < STATES)[None, :])
        t -= 1


def _takes(linear: Tensor, *others: Any) -> bool:
    return linear.shape[-1] <= _MOST_STATES


def _forward(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor, *, drawing: bool) -> list[Any]:
    """The log normaliser, failures, means and gains, and covariances or the inverses of the factors of precisions."""
    n, steps, states = linear.shape
    numbers = lambda *shape: linear.new_empty(n, *shape, dtype=torch.float64)
    total, mean, gain, spread = numbers(), numbers(steps, states), numbers(*cross.shape[1:]), numbers(*square.shape[1:])
    failed, forms = torch.empty_like(lengths), (None, spread) if drawing else (spread, None)
    tables = linear, square, cross, lengths, total, failed, mean, gain, *forms
    launch(_eliminate, (n,), *(None if x is None else x.contiguous() for x in tables), steps, **_sizes(states))
    return [total, failed, mean, gain, spread]


def _sizes(states: int) -> dict[str, int]:
    side = triton.next_power_of_2(states)
    return {"STATES": states, "SIDE": side, "num_warps": warps(side**2)}


@op.moments.kernel("cuda", _takes)
def moments(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    total, failed, mean, gain, inverse = _forward(linear, square, cross, lengths, drawing=False)
    outputs = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (linear, square, cross)]
    inputs = lengths.contiguous(), failed, mean, gain, inverse
    launch(_moments, (len(lengths),), *inputs, *outputs, linear.shape[1], **_sizes(linear.shape[2]))
    return total.to(linear.dtype), *outputs, failed


@op.sample.kernel("cuda", _takes)
def sample(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    _, failed, mean, gain, lower = _forward(linear, square, cross, lengths, drawing=True)
    path, (n, steps, states) = torch.empty_like(noise, memory_format=torch.contiguous_format), linear.shape
    draws, sizes = noise.shape[:2].numel(), _sizes(states)
    together = beside(draws, sizes["SIDE"])
    inputs = lengths.contiguous(), failed, mean, gain, lower, noise.contiguous()
    launch(_draw, (triton.cdiv(draws, together),), *inputs, path, draws, n, steps, **sizes, DRAWS=together)
    return path, failed
