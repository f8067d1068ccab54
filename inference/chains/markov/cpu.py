"""Markov chains on the CPU: the choice of the kernel.

- `cpu_scaled` takes constant transition tables, and reports sequences of which it is not certain.
- `cpu_tables` smooths chains with a table for every step, and reports such sequences too.
- `cpu_rows` takes chains whose rows depend on inputs, and reports such sequences, for which tables are made.
- `cpu_log` takes these sequences, and small calls, which it serves sooner. It filters chains with a table for every
  step, finds the best paths and draws paths.

No table is expanded to the batch axes of the others.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ...numerics.threads import in_parallel, ranges, sum_of_steps
from . import cpu_rows, op, plain_rows
from .cpu_log import best_paths, draw_paths, filter_logs, smooth_logs
from .cpu_scaled import Tables, filter_scaled, flatten, smooth_scaled
from .cpu_tables import smooth_tables

Results = tuple[Tensor, ...]
SMALL = 1 << 10  # transitions of all steps, up to which logarithms take less time than preparing tables


@op.filter.kernel("cpu")
def filter(*tables: Tensor) -> tuple[Tensor, ...]:
    def exactly(flat: Tables) -> tuple[Tensor, Results]:
        log_state, increment, failed = _filter_logs(flat)
        return failed, (sum_of_steps(increment), log_state.exp_(), increment)

    return _answer(tables, filter_scaled if tables[1].shape[-3] == 1 else None, exactly)


@op.posterior.kernel("cpu")
def posterior(*tables: Tensor) -> tuple[Tensor, ...]:
    def exactly(flat: Tables) -> tuple[Tensor, Results]:
        state, increment, failed = _filter_logs(flat)
        pairs = state.new_zeros(len(state), *flat.log_transition.shape[1:])
        _over_sequences(smooth_logs, flat, state, pairs)
        return failed, (sum_of_steps(increment), state, pairs)

    return _answer(tables, smooth_scaled if tables[1].shape[-3] == 1 else _smooth_tables, exactly)


@op.viterbi.kernel("cpu")
def viterbi(*tables: Tensor) -> tuple[Tensor, ...]:
    flat, lengths = flatten(*tables).double(), tables[3]
    path = torch.empty(*lengths.shape, flat.log_likelihood.shape[1], dtype=torch.int64)
    failed = torch.full((lengths.numel(),), -1)
    _over_sequences(best_paths, flat, path, failed)
    return path, failed.view(lengths.shape)


@op.sample.kernel("cpu")
def sample(*arguments: Tensor) -> tuple[Tensor, ...]:
    *tables, uniform = arguments
    flat = flatten(*tables).double()
    log_state, _, failed = _filter_logs(flat)
    path = torch.empty(uniform.shape, dtype=torch.int64)
    if not (failed >= 0).any():
        _over_sequences(draw_paths, flat, log_state, uniform.contiguous(), path)
    return path, failed.view(tables[3].shape)


@op.rows_filter.kernel("cpu")
def rows_filter(*tables: Tensor) -> tuple[Tensor, ...]:
    return _sweep_rows(tables, partial(plain_rows.filtered, op.filter), smoothing=False)


@op.rows_posterior.kernel("cpu")
def rows_posterior(*tables: Tensor) -> tuple[Tensor, ...]:
    return _sweep_rows(tables, partial(plain_rows.smoothed, op.posterior), smoothing=True)


op.row_sums.kernel("cpu")(cpu_rows.row_sums)


def _sweep_rows(arguments: tuple[Tensor, ...], exactly: Callable[..., Results], *, smoothing: bool) -> Results:
    """Results for all sequences: those of which the sweep is not certain by tables of all steps."""
    rows, lengths = cpu_rows.flatten(*arguments), arguments[-1]
    certain, results = cpu_rows.sweep_rows(rows, smoothing=smoothing)
    failed, (doubtful,) = torch.full((lengths.numel(),), -1), np.nonzero(~certain)
    if len(doubtful):
        of = rows.initial_of, rows.base_of, rows.weights_of, rows.inputs_of, rows.likelihood_of
        some = [torch.from_numpy(t[n[doubtful]]) for t, n in zip(rows[:10:2], of, strict=True)]
        *exact, failed[doubtful] = exactly(*some, torch.from_numpy(rows.lengths[doubtful]))
        for table, found in zip(results, exact, strict=True):
            table[doubtful] = found
    dtype = arguments[0].dtype
    return *(table.to(dtype).reshape((*lengths.shape, *table.shape[1:])) for table in results), failed.view(
        lengths.shape
    )


def _answer(
    arguments: tuple[Tensor, ...],
    quickly: Callable[[Tables], tuple[np.ndarray, Results]] | None,
    exactly: Callable[[Tables], tuple[Tensor, Results]],
) -> tuple[Tensor, ...]:
    """Results for all sequences: from `quickly`, if there is one, for sequences of which it is certain, from `exactly`
    for the others."""
    tables, lengths = flatten(*arguments), arguments[3]
    n_moves = lengths.numel() * math.prod(tables.log_likelihood.shape[1:]) * tables.log_transition.shape[-1]
    if quickly is not None and n_moves > SMALL:
        failed = torch.full((lengths.numel(),), -1)
        certain, results = quickly(tables)
        (doubtful,) = np.nonzero(~certain)
        if len(doubtful):
            failed[doubtful], exact = exactly(tables.select(doubtful).double())
            for table, rows in zip(results, exact, strict=True):
                table[doubtful] = rows.to(table.dtype)
    else:
        failed, results = exactly(tables.double())
        results = tuple(table.to(arguments[2].dtype) for table in results)
    if lengths.dim() == 1:
        return *results, failed
    return tuple(table.reshape((*lengths.shape, *table.shape[1:])) for table in (*results, failed))


def _smooth_tables(tables: Tables) -> tuple[np.ndarray, Results]:
    certain, results = smooth_tables(tables.double())
    dtype = torch.from_numpy(tables.log_likelihood[:0]).dtype
    return certain, tuple(table.to(dtype) for table in results)


def _filter_logs(tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
    """log P(s_t | x_1..t), log p(x_t | x_1..t-1), and failed."""
    n = len(tables.lengths)
    log_state = torch.empty(n, *tables.log_likelihood.shape[1:], dtype=torch.float64)
    increment, failed = torch.zeros(log_state.shape[:2], dtype=torch.float64), torch.full((n,), -1)
    _over_sequences(filter_logs, tables, log_state, increment, failed)
    return log_state, increment, failed


def _over_sequences(kernel: Callable[..., None], tables: Tables, *arrays: Tensor) -> None:
    """Run a kernel of `cpu_log` over ranges of sequences."""
    flat = [array.view(-1).numpy() for array in arrays]
    in_parallel([partial(kernel, part, tables, *flat) for part in ranges(len(tables.lengths))])
