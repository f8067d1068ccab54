"""Normal densities and moments as fused numba kernels: one pass over the data, no table of residuals.

Steps are processed in blocks. Within a block every loop runs over steps, which are contiguous after a small
transposition, so the arithmetic vectorises for any number of states and features.
"""

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..numerics.compilation import kernel
from ..numerics.op import blank
from ..numerics.threads import in_parallel, ranges
from .op import diagonal_density, diagonal_moments, full_density, full_moments
from .plain import LOG_2PI

BLOCK = 256  # steps in a block: residuals and weights of a block stay in the first-level cache
_MIN_WORK = 1 << 18  # steps times numbers of a covariance, from which on a second thread pays
_PIECES = 8  # restarts times ranges of steps, at most


@kernel
def _columns(x, begin, size, columns):
    for n in range(size):
        for f in range(x.shape[1]):
            columns[f, n] = x[begin + n, f]


@kernel
def _full_density(steps, x, loc, chol, constant, out):
    n_states, n_features = loc.shape
    columns = np.empty((n_features, BLOCK), x.dtype)
    total, whitened = np.empty(BLOCK, x.dtype), np.empty(BLOCK, x.dtype)
    for begin in range(steps[0], steps[1], BLOCK):
        size = min(BLOCK, steps[1] - begin)
        _columns(x, begin, size, columns)
        for k in range(n_states):
            for n in range(size):
                total[n] = constant[k]
            for g in range(n_features):
                for n in range(size):
                    whitened[n] = 0.0
                for f in range(g, n_features):
                    weight, centre = chol[k, f, g], loc[k, f]
                    for n in range(size):
                        whitened[n] += weight * (columns[f, n] - centre)
                for n in range(size):
                    total[n] -= 0.5 * whitened[n] * whitened[n]
            for n in range(size):
                out[begin + n, k] = total[n]


@kernel
def _seen_columns(x, begin, size, columns, seen):
    """The columns with 0 where missing, and whether each is seen; returns whether no value is missing."""
    complete = True
    for n in range(size):
        for f in range(x.shape[1]):
            value = x[begin + n, f]
            there = value == value
            complete &= there
            columns[f, n], seen[f, n] = (value, 1.0) if there else (0.0, 0.0)
    return complete


@kernel
def _diagonal_density(steps, x, loc, precision, constant, out):
    n_states, n_features = loc.shape
    columns, seen = np.empty((n_features, BLOCK), x.dtype), np.empty((n_features, BLOCK), x.dtype)
    total = np.empty(BLOCK, x.dtype)
    for begin in range(steps[0], steps[1], BLOCK):
        size = min(BLOCK, steps[1] - begin)
        complete = _seen_columns(x, begin, size, columns, seen)
        for k in range(n_states):
            start = constant[k].sum() if complete else 0.0
            for n in range(size):
                total[n] = start
            for f in range(n_features):
                half, centre, log_constant = 0.5 * precision[k, f], loc[k, f], constant[k, f]
                if complete:
                    for n in range(size):
                        residual = columns[f, n] - centre
                        total[n] -= half * residual * residual
                else:
                    for n in range(size):
                        residual = columns[f, n] - centre
                        total[n] += log_constant - half * residual * residual if seen[f, n] > 0 else 0.0
            for n in range(size):
                out[begin + n, k] = total[n]


@kernel
def _diagonal_sums(steps, x, weights, about, sums):
    count, first, second = sums
    n_states, n_features = about.shape
    columns, seen = np.empty((n_features, BLOCK), x.dtype), np.empty((n_features, BLOCK), x.dtype)
    weight = np.empty(BLOCK, x.dtype)
    for begin in range(steps[0], steps[1], BLOCK):
        size = min(BLOCK, steps[1] - begin)
        complete = _seen_columns(x, begin, size, columns, seen)
        for k in range(n_states):
            whole = 0.0
            for n in range(size):
                weight[n] = weights[begin + n, k]
                whole += weight[n]
            for f in range(n_features):
                centre, of_seen, of_residual, of_square = about[k, f], 0.0, 0.0, 0.0
                if complete:
                    of_seen = whole
                    for n in range(size):
                        residual = columns[f, n] - centre
                        weighted = weight[n] * residual
                        of_residual += weighted
                        of_square += weighted * residual
                else:
                    for n in range(size):
                        residual = columns[f, n] - centre
                        seen_weight = weight[n] * seen[f, n]
                        weighted = seen_weight * residual
                        of_seen += seen_weight
                        of_residual += weighted
                        of_square += weighted * residual
                count[k, f] += of_seen
                first[k, f] += of_residual
                second[k, f] += of_square


@kernel
def _full_sums(steps, x, weights, about, sums):
    count, first, second = sums
    n_states, n_features = about.shape
    columns, residual = np.empty((n_features, BLOCK), x.dtype), np.empty((n_features, BLOCK), x.dtype)
    weight, weighted = np.empty((n_states, BLOCK), x.dtype), np.empty(BLOCK, x.dtype)
    for begin in range(steps[0], steps[1], BLOCK):
        size = min(BLOCK, steps[1] - begin)
        _columns(x, begin, size, columns)
        _columns(weights, begin, size, weight)
        for k in range(n_states):
            total = 0.0
            for n in range(size):
                total += weight[k, n]
            count[k] += total
            for f in range(n_features):
                centre, total = about[k, f], 0.0
                for n in range(size):
                    residual[f, n] = columns[f, n] - centre
                    weighted[n] = weight[k, n] * residual[f, n]
                    total += weighted[n]
                first[k, f] += total
                for g in range(f + 1):
                    total = 0.0
                    for n in range(size):
                        total += weighted[n] * residual[g, n]
                    second[k, f, g] += total
                    if g < f:
                        second[k, g, f] += total


@diagonal_density.kernel("cpu")
def normal_log_density(x: Tensor, loc: Tensor, precision: Tensor, log_precision: Tensor) -> Tensor:
    return _density(_diagonal_density, x, loc, precision, 0.5 * (log_precision - LOG_2PI))


@full_density.kernel("cpu")
def multivariate_normal_log_density(x: Tensor, loc: Tensor, chol_precision: Tensor, log_det: Tensor) -> Tensor:
    return _density(_full_density, x, loc, chol_precision, 0.5 * (log_det - x.shape[-1] * LOG_2PI))


def _density(fused, x: Tensor, loc: Tensor, spread: Tensor, constant: Tensor) -> Tensor:
    restarts, n_steps = loc.shape[:-2], x.shape[0]
    out = blank(x, (*restarts, n_steps, loc.shape[-2]))
    tables = [_rows(t, len(restarts)) for t in (loc, spread, constant, out)]
    rows = np.ascontiguousarray(x.detach().numpy())
    tasks = [
        partial(fused, steps, rows, *(table[r] for table in tables))
        for r in range(len(tables[0]))
        for steps in _pieces(n_steps, len(tables[0]), loc)
    ]
    in_parallel(tasks)
    return out


@diagonal_moments.kernel("cpu")
def normal_moments(x: Tensor, weights: Tensor, about: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    axes = about.shape[-2:]
    count, first, second = _moments(_diagonal_sums, x, weights, about, (axes, axes, axes))
    return count, first, second


@full_moments.kernel("cpu")
def multivariate_normal_moments(x: Tensor, weights: Tensor, about: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n_states, n_features = about.shape[-2:]
    shapes = (n_states,), (n_states, n_features), (n_states, n_features, n_features)
    count, first, second = _moments(_full_sums, x, weights, about, shapes)
    return count, first, second


def _moments(fused, x: Tensor, weights: Tensor, about: Tensor, shapes) -> list[Tensor]:
    """Sums of the given shapes over all steps, for each restart."""
    restarts, n_steps = weights.shape[:-2], x.shape[0]
    pieces = _pieces(n_steps, max(1, restarts.numel()), about)
    rows, w, c = np.ascontiguousarray(x.detach().numpy()), _rows(weights, len(restarts)), _rows(about, len(restarts))
    sums = [np.zeros((len(pieces), len(w), *shape), rows.dtype) for shape in shapes]
    tasks = [
        partial(fused, steps, rows, w[r], c[r], tuple(s[i, r] for s in sums))
        for r in range(len(w))
        for i, steps in enumerate(pieces)
    ]
    in_parallel(tasks)
    totals = (s[0] if len(pieces) == 1 else s.sum(0) for s in sums)
    return [torch.from_numpy(s).view(*restarts, *shape) for s, shape in zip(totals, shapes, strict=True)]


def _rows(table: Tensor, n_leading: int) -> np.ndarray:
    """The table as numpy with its leading axes flattened into one."""
    rows = np.ascontiguousarray(table.detach().numpy())
    return rows.reshape(math.prod(rows.shape[:n_leading]), *rows.shape[n_leading:])


def _pieces(n_steps: int, n_restarts: int, loc: Tensor) -> list[tuple[int, int]]:
    """Ranges of steps, several only if there are few restarts; by sizes alone, as they decide how sums are rounded."""
    at_least = max(4 * BLOCK, _MIN_WORK // max(1, loc.shape[-2] * loc.shape[-1] ** 2))
    return ranges(n_steps, at_least, max(1, _PIECES // max(1, n_restarts)))
