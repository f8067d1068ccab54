"""Copy chains on a GPU: the kernels of `cuda_recursions` and `cuda_paths` behind the operators, up to 1024 states."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...numerics.gpu import accumulated, launch, triton
from ...numerics.gpu_sequences import side_by_side
from ..cuda_stretches import Kernel, Stretches, WindowResults, in_stretches
from . import op
from .cuda_paths import sampled_paths, viterbi_paths
from .cuda_recursions import recursions

MOST = 1024  # states, in the registers of one program
_DRAWS = 512  # of a program, times states
Results = tuple[Tensor, ...]


def _takes(initial: Tensor | None, fresh: Tensor, *others: Any) -> bool:
    return fresh.shape[-1] <= MOST


def _find(
    kernel: Kernel, stretches: Stretches, initial: Tensor | None, fresh: Tensor, held: Tensor, lengths: Tensor
) -> WindowResults:
    """The results of a kernel for windows; see `in_stretches`."""
    starts = None if initial is None else stretches.starts(initial).flatten(0, 1)
    tables = stretches.cut(fresh), stretches.cut(held), stretches.lengths(lengths)
    windows = starts, *(table.flatten(0, 1) for table in tables)
    increment, filtered, drawn, failed = (x.unflatten(0, (len(lengths), -1)) for x in _filter(*windows))
    smoothed, results = None, [stretches.join(increment).sum(-1)]
    if kernel is _filter:
        results = [stretches.join(x) for x in (increment, filtered, drawn)]
    elif kernel is not _log_normalizer:
        _, smoothed, *others, _ = (x.unflatten(0, (len(lengths), -1)) for x in _smooth(*windows))
        if kernel is _marginals:
            _, *others, first, _ = (x.unflatten(0, (len(lengths), -1)) for x in _marginals(*windows))
            results += [*map(stretches.join, others), first[:, 0]]
        else:
            results += map(stretches.join, (smoothed, *others))
    return WindowResults(failed, filtered, smoothed, results)


def _log_normalizer(*tables: Any) -> Results:
    return _recursions(tables)


def _filter(*tables: Any) -> Results:
    n, steps, _ = tables[1].shape
    state, redraw = _like(tables[1]), tables[1].new_empty(n, steps)
    increment = torch.empty_like(redraw, dtype=torch.float64)
    _, failed = _recursions(tables, increment=increment, state=state, redraw=redraw)
    return increment, state, redraw, failed


def _smooth(*tables: Any) -> Results:
    state, redraw = _like(tables[1]), tables[1].new_empty(tables[1].shape[:2])
    value, failed = _recursions(tables, state=state, redraw=redraw)
    return value, state, redraw, failed


def _marginals(*tables: Any) -> Results:
    fresh, held, initial = _like(tables[1]), _like(tables[2]), _like(tables[1][:, 0])
    value, failed = _recursions(tables, in_fresh=fresh, in_held=held, in_initial=initial)
    return value, fresh, held, initial, failed


op.evidence.kernel("cuda", _takes)(partial(in_stretches, _log_normalizer, _find))
op.filter.kernel("cuda", _takes)(partial(in_stretches, _filter, _find))
op.smooth.kernel("cuda", _takes)(partial(in_stretches, _smooth, _find))
op.marginals.kernel("cuda", _takes)(partial(in_stretches, _marginals, _find))


@op.viterbi.kernel("cuda", _takes)
def viterbi(*tables: Any) -> Results:
    n, steps, states = tables[1].shape
    path, redraw, value, failed = *_paths(n, steps, like=tables[3]), tables[1].new_empty(n), _like(tables[3])
    side = side_by_side(n, states)
    options = side.options | _kind(tables)
    launch(viterbi_paths, (side.programs,), *_read(*tables), path, redraw, value, failed, n, steps, states, **options)
    return path, redraw, value, failed


@op.sample.kernel("cuda", _takes)
def sample(*arguments: Any) -> Results:
    *tables, uniform = arguments
    (n, steps, states), draws = tables[1].shape, len(uniform)
    path, redraw, failed = *_paths(draws, n, steps, like=tables[3]), _like(tables[3])
    padded = triton.next_power_of_2(states)
    together = min(triton.next_power_of_2(max(1, draws)), max(1, _DRAWS // padded))
    options = {"J": together, "P": padded, "num_warps": max(1, together * padded // 64)} | _kind(tables)
    grid = (n * triton.cdiv(draws, together),)
    launch(sampled_paths, grid, *_read(*arguments), path, redraw, failed, n, steps, states, draws, **options)
    return path, redraw, failed


def _recursions(tables: Any, **wanted: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x) and the failed steps; the tables that are wanted are filled."""
    n, steps, states = tables[1].shape
    value, failed = tables[1].new_empty(n), _like(tables[3])
    names = "increment", "state", "redraw", "in_fresh", "in_held", "in_initial"
    results = value, failed, *(wanted.get(name) for name in names)
    side = side_by_side(n, states)
    options = side.options | _kind(tables)
    launch(recursions, (side.programs,), *_read(*tables), *results, n, steps, states, **options)
    return value, failed


def _kind(tables: Any) -> dict[str, Any]:
    """The compile-time constants of a kernel for these tables."""
    return {"NARROW": tables[2].shape[-1] == 1, "DTYPE": accumulated(tables[1])}


def _paths(*shape: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Paths and redraws with the values after the ends of sequences."""
    path = like.new_full(shape, -1)
    return path, torch.zeros_like(path, dtype=torch.bool)


def _read(initial: Tensor | None, fresh: Tensor, held: Tensor, *others: Tensor) -> tuple[Any, ...]:
    """The tables in the kernels' order; the first one is never None."""
    tables = fresh, held, initial, *others
    return tuple(None if table is None else table.detach().contiguous() for table in tables)


def _like(table: Tensor) -> Tensor:
    return table.new_empty(table.shape)
