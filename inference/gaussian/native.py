"""Normal densities and moments on the CPU: one pass over the data, no table of residuals."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..native.library import empty, function, integers
from ..numerics.native_calls import as_table, refuse_lack, run
from ..numerics.threads import ranges
from .op import diagonal_density, diagonal_moments, full_density, full_moments

_BLOCK = 256  # steps that a kernel takes at once
_MIN_WORK = 1 << 18  # steps times numbers of a covariance, from which on a second thread pays
_PIECES = 64  # restarts times ranges of steps, at most


@diagonal_density.kernel("cpu")
def normal_log_density(x: Tensor, loc: Tensor, precision: Tensor, log_precision: Tensor) -> Tensor:
    return _density("diagonal_density", x, loc, (precision, loc.shape), (log_precision, loc.shape))


@full_density.kernel("cpu")
def multivariate_normal_log_density(x: Tensor, loc: Tensor, chol_precision: Tensor, log_det: Tensor) -> Tensor:
    spread = chol_precision, (*loc.shape, loc.shape[-1])
    return _density("full_density", x, loc, spread, (log_det, loc.shape[:-1]))


def _density(name: str, x: Tensor, loc: Tensor, *others: tuple[Tensor, Sequence[int]]) -> Tensor:
    dtype, (*restarts, states, features), steps = _common(x, loc), loc.shape, x.shape[0]
    out = empty(*restarts, steps, states, dtype=dtype)
    if out.numel():
        tables = [as_table(table, shape, dtype) for table, shape in ((x, (steps, features)), (loc, loc.shape), *others)]
        items, sizes = _parts(math.prod(restarts), steps, states, features)
        run(function(name, dtype), items, sizes, *tables, out)
        refuse_lack(sizes[-1])
    return out


@diagonal_moments.kernel("cpu")
def normal_moments(x: Tensor, weights: Tensor, about: Tensor) -> tuple[Tensor, ...]:
    axes = about.shape[-2:]
    return _moments(True, x, weights, about, (axes, axes, axes))


@full_moments.kernel("cpu")
def multivariate_normal_moments(x: Tensor, weights: Tensor, about: Tensor) -> tuple[Tensor, ...]:
    states, features = about.shape[-2:]
    return _moments(False, x, weights, about, ((states,), (states, features), (states, features, features)))


def _moments(by_feature: bool, x: Tensor, weights: Tensor, about: Tensor, shapes: Sequence[Any]) -> tuple[Tensor, ...]:
    """Sums of the given shapes over all steps, for each restart."""
    dtype, (*restarts, states, features), steps = _common(x, about), about.shape, x.shape[0]
    shaped = (x, (steps, features)), (weights, (*restarts, steps, states)), (about, about.shape)
    tables = [as_table(table, shape, dtype) for table, shape in shaped]
    items, sizes = _parts(math.prod(restarts), steps, states, features)
    pieces = (sizes[1],) if sizes[1] > 1 else ()
    sums = [empty(*restarts, *pieces, *shape, dtype=dtype) for shape in shapes]
    run(function("normal_moments", dtype), items, sizes, int(by_feature), *tables, *sums)
    refuse_lack(sizes[-1])
    return tuple(table.sum(len(restarts)) for table in sums) if pieces else tuple(sums)


def _common(x: Tensor, loc: Tensor) -> torch.dtype:
    return x.dtype if x.dtype == loc.dtype else torch.promote_types(x.dtype, loc.dtype)


def _parts(restarts: int, steps: int, states: int, features: int) -> tuple[list[Any], Any]:
    """Ranges of items, which are pieces of the steps of a restart, and the sizes as the kernels read them.

    Pieces follow from sizes alone, as they decide how sums are rounded.
    """
    work = max(1, states * features**2)  # of a step
    if restarts * steps * work < 2 * _MIN_WORK:
        return [integers(0, restarts)], integers(restarts, 1, steps, states, features, 0)
    pieces = len(ranges(steps, max(4 * _BLOCK, _MIN_WORK // work), max(1, _PIECES // restarts)))
    items = restarts * pieces
    tasks = ranges(items, max(1, _MIN_WORK * items // (restarts * steps * work)), items)
    return [integers(*task) for task in tasks], integers(restarts, pieces, steps, states, features, 0)
