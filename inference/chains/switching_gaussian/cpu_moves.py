"""The moves of a Gibbs sampler on the CPU: the kernels behind `sampling`, threads over chains."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...numerics.threads import in_parallel, ranges
from ..linear_gaussian.factors import factor_of
from . import op
from .cpu_collapsed import sweep
from .cpu_latents import draw
from .cpu_particles import redraw
from .cpu_polya_gamma import polya_gamma as draw_polya_gamma
from .cpu_steps import arrays_of, work_of
from .sampling import Results
from .tables import Tables

_MIN_WORK = 1 << 13  # numbers of covariances that repay a second thread


def _run(function: Callable[..., None], x: Tensor, lengths: Tensor, tables: Tables, *arguments: Any) -> None:
    n, n_sticks = tables.n_latent, 0 if tables.recurrence is None else len(tables.recurrence)
    work, rows = x.shape[-2] * tables.n_regimes * n**2, max(n, x.shape[-1] + n_sticks)
    pieces = ranges(len(lengths), max(1, -(-_MIN_WORK // max(1, work))))
    first = _numpy(x), _numpy(lengths)
    in_parallel([partial(function, part, work_of(rows, n), *first, *arguments) for part in pieces])


@op.latents.kernel("cpu")
def latents(
    x: Tensor, lengths: Tensor, tables: Tables, path: Tensor, omega: Tensor, noise: Tensor, seen: Tensor
) -> Results:
    n = tables.n_latent
    drawn, mean, covariance = (x.new_zeros(*path.shape, *size) for size in ((n,), (n,), (n, n)))
    failed = torch.full_like(lengths, -1)
    covariances = tables.initial_covariance, tables.state_noise, tables.observation_noise
    roots = tuple(factor_of(table)[0].contiguous().numpy() for table in covariances)
    numbers = map(_numpy, (omega, noise, seen, drawn, mean, covariance, failed))
    _run(draw, x, lengths, tables, _numpy(path), arrays_of(tables, regressions=False), roots, *numbers)
    return drawn, mean, covariance, failed


@op.collapsed.kernel("cpu")
def collapsed(x: Tensor, lengths: Tensor, tables: Tables, path: Tensor, uniform: Tensor) -> Results:
    drawn, state = path.clone(), x.new_zeros(*path.shape, tables.n_regimes)
    failed = torch.full_like(lengths, -1)
    outputs = map(_numpy, (uniform, drawn, state, failed))
    _run(sweep, x, lengths, tables, arrays_of(tables, regressions=False), *outputs)
    return drawn, state, failed


@op.redrawn.kernel("cpu")
def redrawn(x: Tensor, lengths: Tensor, tables: Tables, path: Tensor, n_particles: int, seeds: Tensor) -> Results:
    drawn, failed = path.clone(), torch.full_like(lengths, -1)
    outputs = map(_numpy, (seeds, drawn, failed))
    _run(redraw, x, lengths, tables, arrays_of(tables, regressions=False), n_particles, *outputs)
    return drawn, failed


@op.polya_gamma.kernel("cpu")
def polya_gamma(c: Tensor, seeds: Tensor) -> Tensor:
    drawn = torch.empty_like(c)
    arrays = _numpy(c), _numpy(seeds), _numpy(drawn)
    pieces = ranges(len(c), max(1, _MIN_WORK // max(1, c.shape[1])))
    in_parallel([partial(draw_polya_gamma, part, *arrays) for part in pieces])
    return drawn


def _numpy(table: Tensor) -> Any:
    assert table.is_contiguous()
    return table.numpy()
