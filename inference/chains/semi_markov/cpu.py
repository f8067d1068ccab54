"""Semi-Markov chains on the CPU. A thread takes one sequence after another.

`cpu_runs` filters and smooths, and `cpu_paths` finds the best paths and draws paths. No table is expanded to the batch
axes of the others.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...numerics.threads import in_parallel, ranges, sum_of_steps
from ..markov.cpu_scaled import entries
from . import op
from .cpu_paths import best_runs, draw_runs
from .cpu_runs import Tables, filter_runs, smooth_runs
from .plain import Place, survivors


def _flatten(
    log_initial: Tensor, log_transition: Tensor, log_durations: Tensor, log_likelihood: Tensor, lengths: Tensor
) -> Tables:
    rows = log_durations.detach().double()
    rows = torch.cat([rows, survivors(rows[..., :: Place.FIRST, :, :])], -3)
    parts: list[Any] = []
    for table, n_own in ((log_initial, 1), (log_transition, 3), (rows, 3), (log_likelihood, 2)):
        parts += entries(table.double(), n_own, lengths.shape)
    return Tables._make([*parts, lengths.reshape(-1).contiguous().numpy()])


def _over_sequences(kernel: Callable[..., None], tables: Tables, *arrays: Tensor) -> None:
    n = len(tables.lengths)
    in_parallel([partial(kernel, part, tables, *(x.numpy() for x in arrays)) for part in ranges(n)])


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


@op.filter.kernel("cpu")
def filter(*tables: Tensor) -> tuple[Tensor, ...]:
    flat, lengths, dtype = _flatten(*tables), tables[-1], tables[3].dtype
    n, (n_steps, k) = lengths.numel(), tables[3].shape[-2:]
    (state, predicted), increment, failed = _zeros(2, n, n_steps, k), _zeros(n, n_steps), torch.full((n,), -1)
    _over_sequences(filter_runs, flat, state, predicted, increment, failed)
    results = sum_of_steps(increment), state, predicted, increment
    return *(_shaped(x.to(dtype), lengths) for x in results), failed.view(lengths.shape)


@op.posterior.kernel("cpu")
def posterior(*tables: Tensor) -> tuple[Tensor, ...]:
    flat, lengths, dtype = _flatten(*tables), tables[-1], tables[3].dtype
    n, (n_steps, k), longest = lengths.numel(), tables[3].shape[-2:], tables[2].shape[-1]
    state, increment, begins = _zeros(n, n_steps, k), _zeros(n, n_steps), _zeros(n, n_steps, k)
    moves, counts, entropy, failed = (
        _zeros(n, *tables[1].shape[-3:]),
        _zeros(n, 4, k, longest),
        _zeros(n),
        torch.full((n,), -1),
    )
    _over_sequences(smooth_runs, flat, state, increment, begins, moves, counts, entropy, failed)
    results = sum_of_steps(increment), state, begins, moves, counts, entropy
    return *(_shaped(x.to(dtype), lengths) for x in results), failed.view(lengths.shape)


@op.viterbi.kernel("cpu")
def viterbi(*tables: Tensor) -> tuple[Tensor, ...]:
    flat, lengths = _flatten(*tables), tables[-1]
    path, failed = (
        torch.zeros(lengths.numel(), tables[3].shape[-2], dtype=torch.int64),
        torch.full((lengths.numel(),), -1),
    )
    _over_sequences(best_runs, flat, path, failed)
    return _shaped(path, lengths), failed.view(lengths.shape)


@op.sample.kernel("cpu")
def sample(*arguments: Tensor) -> tuple[Tensor, ...]:
    *tables, uniform = arguments
    flat, lengths = _flatten(*tables), tables[-1]
    n, n_steps = len(uniform), uniform.shape[-2]
    path, failed = torch.zeros(n, lengths.numel(), n_steps, dtype=torch.int64), torch.full((lengths.numel(),), -1)
    _over_sequences(draw_runs, flat, uniform.reshape(n, lengths.numel(), n_steps, 2).contiguous(), path, failed)
    return path.view(uniform.shape[:-1]), failed.view(lengths.shape)


def _shaped(x: Tensor, lengths: Tensor) -> Tensor:
    return x.reshape((*lengths.shape, *x.shape[1:]))
