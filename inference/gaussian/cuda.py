r"""Normal densities and moments on a GPU: one pass over the data, no table of residuals.

A density's program processes a block of steps and states, and loops over features. It reads F numbers for each step,
writes K, and takes K F multiplications and additions for independent features, K F^2 / 2 otherwise. A moment's program
processes a block of states and of moments, and loops over a chunk of steps. Each of its lanes has its own steps, and
lanes are added at the end. A second pass adds the sums of chunks, always in the same order. It reads F + K numbers for
each step, and takes 3 K F products of residuals and weights, or K (F + 1)^2 with full second moments.
"""

from typing import Any

from torch import Tensor

from ..numerics.gpu import accumulated, chunks, constexpr, kernel, launch, position, tl, triton
from ..numerics.op import blank
from .op import diagonal_density, diagonal_moments, full_density, full_moments
from .plain import LOG_2PI

_WORK = 1024  # numbers that a program processes at once


@kernel
def _block(steps, states, N: constexpr, K: constexpr):
    """A program's restart, its steps [N, 1] and states [1, K], masks of those that exist, and the place of its
    results."""
    blocks = tl.cdiv(steps, N)
    r, n = position(0) // blocks, position(0) % blocks * N + tl.arange(0, N)[:, None]
    k = position(1) * K + tl.arange(0, K)[None, :]
    return r, n, k, n < steps, k < states, (r * steps + n) * states + k


@kernel
def _diagonal_density(
    x, loc, half_precision, constant, out, steps, states, features, N: constexpr, K: constexpr, DTYPE: constexpr
):
    r, n, k, step, state, to = _block(steps, states, N, K)
    row, total = (r * states + k) * features, tl.zeros((N, K), DTYPE)
    for f in range(features):
        value = tl.load(x + n * features + f, step, 0.0)
        residual = value - tl.load(loc + row + f, state, 0.0)
        square = tl.load(half_precision + row + f, state, 0.0) * residual * residual
        total += tl.where(value == value, tl.load(constant + row + f, state, 0.0) - square, 0)
    tl.store(out + to, total, step & state)


@kernel
def _full_density(
    x, loc, chol_precision, constant, out, steps, states, features, N: constexpr, K: constexpr, DTYPE: constexpr
):
    r, n, k, step, state, to = _block(steps, states, N, K)
    row, total = (r * states + k) * features, tl.zeros((N, K), DTYPE)
    for g in range(features):
        whitened = tl.zeros((N, K), DTYPE)
        for f in range(g, features):
            residual = tl.load(x + n * features + f, step, 0.0) - tl.load(loc + row + f, state, 0.0)
            whitened += tl.load(chol_precision + (row + f) * features + g, state, 0.0) * residual
        total += whitened * whitened
    tl.store(out + to, tl.load(constant + r * states + k, state, 0.0) - 0.5 * total, step & state)


@kernel
def _sums(
    x, weights, about, sums, steps, chunk, count, states, features, columns,
    FULL: constexpr, N: constexpr, K: constexpr, Q: constexpr, DTYPE: constexpr,
):  # fmt: skip
    """Sums [restarts, chunks, K, columns] of products of weights, residuals and ones.

    If FULL, sums of products of features and a one with each other, [F + 1, F + 1]; otherwise, for each feature, the
    number of seen values, the residuals and the squares, [3, F].
    """
    of_columns, of_states = tl.cdiv(columns, Q), tl.cdiv(states, K)
    q = position(0) % of_columns * Q + tl.arange(0, Q)[None, None, :]
    rest = position(0) // of_columns
    k, rest = rest % of_states * K + tl.arange(0, K)[None, :, None], rest // of_states
    r, part = rest // count, rest % count
    width = features + 1 if FULL else features
    left, right = q % width, q // width if FULL else q % width
    state, there = k < states, q < columns
    of_left, of_right = there & (left < features), there & (right < features)
    row = about + (r * states + k) * features
    centre_left = tl.load(row + left, state & of_left, 0.0)
    centre_right = tl.load(row + right, state & of_right, 0.0)
    total, low = tl.zeros((N, K, Q), DTYPE), part * chunk
    high = tl.minimum(low + chunk, steps)
    for begin in range(low, high, N):
        n = begin + tl.arange(0, N)[:, None, None]
        inside = n < high
        weight = tl.load(weights + (r * steps + n) * states + k, inside & state, 0.0)
        value = tl.load(x + n * features + left, inside & of_left, 0.0)
        if FULL:
            other = tl.load(x + n * features + right, inside & of_right, 0.0)
            first, second = tl.where(of_left, value - centre_left, 1), tl.where(of_right, other - centre_right, 1)
        else:
            residual = tl.where(value == value, value - centre_left, 0)
            first = tl.where(q < features, (value == value).to(DTYPE), residual)
            second = tl.where(q < 2 * features, 1, residual)
        total += tl.where(inside & state, first * second * weight, 0)
    to = sums + ((r * count + part) * states + k) * columns + q
    tl.store(to, tl.sum(total, 0, keep_dims=True), state & there)


@diagonal_density.kernel("cuda")
def normal_log_density(x: Tensor, loc: Tensor, precision: Tensor, log_precision: Tensor) -> Tensor:
    return _density(_diagonal_density, x, loc, 0.5 * precision, 0.5 * (log_precision - LOG_2PI))


@full_density.kernel("cuda")
def multivariate_normal_log_density(x: Tensor, loc: Tensor, chol_precision: Tensor, log_det: Tensor) -> Tensor:
    return _density(_full_density, x, loc, chol_precision, 0.5 * (log_det - x.shape[-1] * LOG_2PI))


def _density(fused: Any, x: Tensor, loc: Tensor, *others: Tensor) -> Tensor:
    restarts, (n_states, n_features), n_steps = loc.shape[:-2], loc.shape[-2:], len(x)
    out = blank(x, (*restarts, n_steps, n_states))
    k = min(32, triton.next_power_of_2(max(1, n_states)))
    n = _WORK // k
    grid = restarts.numel() * triton.cdiv(n_steps, n), triton.cdiv(n_states, k)
    tables = [table.contiguous() for table in (x, loc, *others)]
    launch(fused, grid, *tables, out, n_steps, n_states, n_features, N=n, K=k, DTYPE=accumulated(x))
    return out


@diagonal_moments.kernel("cuda")
def normal_moments(x: Tensor, weights: Tensor, about: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    sums = _moments(x, weights, about, 3 * x.shape[-1], full=False).unflatten(-1, (3, -1))
    count, first, second = (part.contiguous() for part in sums.unbind(-2))
    return count, first, second


@full_moments.kernel("cuda")
def multivariate_normal_moments(x: Tensor, weights: Tensor, about: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    f = x.shape[-1]
    sums = _moments(x, weights, about, (f + 1) ** 2, full=True).unflatten(-1, (f + 1, f + 1))
    return sums[..., f, f].contiguous(), sums[..., f, :f].contiguous(), sums[..., :f, :f].contiguous()


def _moments(x: Tensor, weights: Tensor, about: Tensor, columns: int, full: bool) -> Tensor:
    """The sums [*r, K, columns] over all steps."""
    restarts, (n_states, n_features), n_steps = weights.shape[:-2], about.shape[-2:], len(x)
    k, q = (min(16, triton.next_power_of_2(max(1, size))) for size in (n_states, columns))
    blocks = triton.cdiv(n_states, k) * triton.cdiv(columns, q)
    cut = chunks(restarts.numel() * blocks, n_steps, x)
    sums = blank(x, (*restarts, cut.count, n_states, columns))
    sizes = {"FULL": full, "N": _WORK // (k * q), "K": k, "Q": q, "DTYPE": accumulated(x)}
    tables = [table.contiguous() for table in (x, weights, about)]
    steps = n_steps, cut.steps, cut.count
    grid = (restarts.numel() * cut.count * blocks,)
    launch(_sums, grid, *tables, sums, *steps, n_states, n_features, columns, **sizes)
    return sums.sum(-3)
