"""Copy chains on the CPU, by `native/copy.h`. Threads take whole sequences; results do not depend on their number."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...native.library import empty, function, integers
from ...numerics.native_calls import refuse_lack, run
from ...numerics.threads import ranges
from . import op

Results = tuple[Tensor, ...]
BLOCK = 1 << 20  # weights of a sequence that are kept between its sweeps
MIN_WORK = 1 << 16  # weights that repay a second thread
LONGEST = 1 << 25  # weights of a task, which an interrupt waits for


def tasks_of(sequences: int, numbers: int) -> list[Any]:
    """Ranges of sequences, of so many weights each, as kernels read them; a third number says if memory was missing."""
    if sequences * numbers < MIN_WORK:
        return [integers(0, sequences, 0)]
    most = max(1, LONGEST // max(1, numbers))
    parts = [
        (low, min(low + most, n1))
        for n0, n1 in ranges(sequences, -(-MIN_WORK // max(1, numbers)))
        for low in range(n0, n1, most)
    ]
    return [integers(*span, 0) for span in parts]


def rows_of(table: Tensor) -> Tensor:
    """A table whose rows lie side by side in memory; steps and sequences may lie anywhere, or all be one."""
    return table if table.stride(-1) == 1 or table.shape[-1] == 1 else table.contiguous()


def call(name: str, given: tuple[Any, ...], *results: Tensor | None, failed: Tensor) -> None:
    """Call a function of the library for all sequences."""
    log_initial, log_fresh, log_held, lengths, *others = given
    (sequences, steps, states), columns = log_fresh.shape, log_held.shape[-1]
    tables = [log_fresh, log_held] if log_initial is None else [log_fresh, log_held, log_initial]
    check_kind(name, tables, lengths)
    fits = log_held.shape[:2] == (sequences, steps) and columns in (1, states) and lengths.shape == (sequences,)
    if not fits or (log_initial is not None and log_initial.shape != (sequences, states)) or not steps * states:
        raise ValueError(f"{name}: got tables of {', '.join(str(list(table.shape)) for table in (*tables, lengths))}.")
    if not sequences:
        return
    fresh, held, initial = rows_of(log_fresh), rows_of(log_held), None if log_initial is None else rows_of(log_initial)
    apart = 0 if initial is None else initial.stride(0)
    strides = fresh.stride(0), fresh.stride(1), held.stride(0), held.stride(1)
    of = integers(steps, states, columns, apart, *strides, BLOCK)
    tasks = tasks_of(sequences, steps * states)
    run(function(name, fresh.dtype), tasks, of, initial, fresh, held, lengths.contiguous(), *others, *results, failed)
    refuse_lack(any(task[2] for task in tasks))


def check_kind(name: str, tables: Sequence[Tensor], lengths: Tensor) -> None:
    dtype = tables[0].dtype
    if any(table.dtype != dtype for table in tables) or lengths.dtype != torch.int64:
        raise TypeError(f"{name}: got {', '.join(str(table.dtype) for table in (*tables, lengths))}.")


@op.evidence.kernel("cpu")
def log_normalizer(*tables: Any) -> Results:
    fresh = tables[1]
    value, failed = empty(len(fresh), dtype=fresh.dtype), empty(len(fresh), dtype=torch.int64)
    call("copy_posterior", tables, value, None, None, None, None, None, failed=failed)
    return value, failed


@op.smooth.kernel("cpu")
def smooth(*tables: Any) -> Results:
    fresh = tables[1]
    n, steps, _ = fresh.shape
    value, state, redraw = (empty(*shape, dtype=fresh.dtype) for shape in ((n,), fresh.shape, (n, steps)))
    failed = empty(n, dtype=torch.int64)
    call("copy_posterior", tables, value, state, redraw, None, None, None, failed=failed)
    return value, state, redraw, failed


@op.marginals.kernel("cpu")
def marginals(*tables: Any) -> Results:
    _, fresh, held, _ = tables
    n, _, states = fresh.shape
    shapes = (n,), fresh.shape, held.shape, (n, states)
    value, *shares = (empty(*shape, dtype=fresh.dtype) for shape in shapes)
    failed = empty(n, dtype=torch.int64)
    call("copy_posterior", tables, value, None, None, *shares, failed=failed)
    return value, *shares, failed


@op.filter.kernel("cpu")
def filter(*tables: Any) -> Results:
    fresh = tables[1]
    n, steps, _ = fresh.shape
    increment = empty(n, steps, dtype=torch.float64)
    state, redraw = empty(*fresh.shape, dtype=fresh.dtype), empty(n, steps, dtype=fresh.dtype)
    failed = empty(n, dtype=torch.int64)
    call("copy_filter", tables, increment, state, redraw, failed=failed)
    return increment, state, redraw, failed


@op.viterbi.kernel("cpu")
def viterbi(*tables: Any) -> Results:
    fresh = tables[1]
    n, steps, _ = fresh.shape
    path, failed = empty(n, steps, dtype=torch.int64), empty(n, dtype=torch.int64)
    redraw, value = torch.empty(n, steps, dtype=torch.bool, device="cpu"), empty(n, dtype=fresh.dtype)
    call("copy_viterbi", tables, path, redraw, value, failed=failed)
    return path, redraw, value, failed


@op.sample.kernel("cpu")
def sample(*arguments: Any) -> Results:
    *tables, uniform = arguments
    draws, (n, steps, _) = len(uniform), tables[1].shape
    if uniform.shape != (draws, n, steps, 2) or uniform.dtype != torch.float64:
        raise ValueError(
            f"uniform: got {uniform.dtype} {list(uniform.shape)}, expected float64 {[draws, n, steps, 2]}."
        )
    path, failed = empty(draws, n, steps, dtype=torch.int64), empty(n, dtype=torch.int64)
    redraw = torch.empty(draws, n, steps, dtype=torch.bool, device="cpu")
    others = integers(draws, n), uniform.contiguous()
    call("copy_sample", (*tables, *others), path, redraw, failed=failed)
    return path, redraw, failed
