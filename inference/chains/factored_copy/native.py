"""Factored copy chains on the CPU, by `native/copy.h`. No table is expanded to the batch axes of the others."""

import torch
from torch import Tensor

from ...native.library import empty, function, integers
from ...numerics.native_calls import refuse_lack, run
from ..copy import native as general
from . import op

Results = tuple[Tensor, ...]


def call(name: str, tables: tuple[Tensor, ...], *results: Tensor) -> None:
    """Call a function of the library for all sequences."""
    *factors, lengths = tables
    log_redraw, log_hold, log_state, log_likelihood = (general.rows_of(table) for table in factors)
    batch, (steps, states) = lengths.shape, log_likelihood.shape[-2:]
    general.check_kind(name, factors, lengths)
    fits = {log_redraw.shape[-1], log_hold.shape[-1]} <= {1, steps} and log_state.shape[-1] == states
    if not fits or not steps * states:
        raise ValueError(f"{name}: got tables of {', '.join(str(list(table.shape)) for table in tables)}.")
    wide = [
        table.expand(*batch, *table.shape[table.dim() - n :]).stride()
        for table, n in ((log_redraw, 1), (log_hold, 1), (log_state, 1), (log_likelihood, 2))
    ]
    sequences = lengths.numel()
    if not sequences:
        return
    apart = (0 if gate.shape[-1] == 1 else gate.stride(-1) for gate in (log_redraw, log_hold))
    axes = (number for axis in reversed(range(len(batch))) for number in (batch[axis], *(x[axis] for x in wide)))
    of = integers(steps, states, *apart, log_likelihood.stride(-2), general.BLOCK, *axes, 0)
    tasks = general.tasks_of(sequences, steps * states)
    pointers = log_redraw, log_hold, log_state, log_likelihood, lengths.contiguous(), *results
    run(function(name, log_likelihood.dtype), tasks, of, *pointers)
    refuse_lack(any(task[2] for task in tasks))


@op.filter.kernel("cpu")
def filter(*tables: Tensor) -> Results:
    batch, (steps, states), dtype = tables[4].shape, tables[3].shape[-2:], tables[3].dtype
    shapes = batch, (*batch, steps, states), (*batch, steps), (*batch, steps)
    results = *(empty(*shape, dtype=dtype) for shape in shapes), empty(*batch, dtype=torch.int64)
    call("factored_copy_filter", tables, *results)
    return results


@op.posterior.kernel("cpu")
def posterior(*tables: Tensor) -> Results:
    batch, (steps, states), dtype = tables[4].shape, tables[3].shape[-2:], tables[3].dtype
    shapes = batch, (*batch, steps, states), (*batch, steps), (*batch, steps), (*batch, states)
    results = *(empty(*shape, dtype=dtype) for shape in shapes), empty(*batch, dtype=torch.int64)
    call("factored_copy_posterior", tables, *results)
    return results
