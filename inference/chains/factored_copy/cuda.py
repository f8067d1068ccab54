"""Factored copy chains on a GPU: the recursions of `copy.cuda_recursions`, which read one table of likelihoods."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...numerics.checks import broadcast_shapes
from ...numerics.gpu import accumulated, launch
from ...numerics.gpu_sequences import side_by_side
from ..copy.cuda import MOST
from ..copy.cuda_recursions import factored_recursions
from ..cuda_stretches import Kernel, Stretches, WindowResults, in_stretches, whole
from . import op

Results = tuple[Tensor, ...]


def _takes(*tables: Tensor) -> bool:
    return tables[3].shape[-1] <= MOST


def _find(kernel: Kernel, stretches: Stretches, *tables: Tensor) -> WindowResults:
    """The results of a kernel for windows; see `in_stretches`."""
    *factors, lengths = tables
    redraw, hold, state, likelihood = whole(factors, (1, 1, 1, 2), lengths.shape)
    gates = [stretches.cut(gate) if gate.shape[1] > 1 else gate.unsqueeze(1) for gate in (redraw, hold)]
    windows = *gates, state.unsqueeze(1), stretches.cut(likelihood), stretches.lengths(lengths.reshape(-1))
    _, filtered, increment, drawn, failed = _filter(*windows)
    smoothed, by_step, counts = None, (filtered, increment, drawn), []
    if kernel is _posterior:
        _, smoothed, *gates, _, _ = _posterior(*windows)
        by_step = smoothed, *gates
        counts.append(_drawn(redraw, hold, state, stretches.join(filtered), stretches.join(smoothed)))
    total = stretches.join(increment).sum(-1, dtype=torch.float64)
    return WindowResults(failed, filtered, smoothed, [total, *map(stretches.join, by_step), *counts])


def _drawn(redraw: Tensor, hold: Tensor, state: Tensor, filtered: Tensor, smoothed: Tensor) -> Tensor:
    """The sums [n, K] over time of P(s_t, z_t = 1 | x): the share of redraws in each belief."""
    fresh = redraw[:, -smoothed.shape[1] + 1 :].unsqueeze(-1) + state.unsqueeze(1)
    held = hold[:, -smoothed.shape[1] + 1 :].unsqueeze(-1) + filtered[:, :-1].log()
    share = torch.where(fresh == -torch.inf, 0, torch.sigmoid(fresh - held))
    return smoothed[:, 0] + (smoothed[:, 1:] * share).sum(1)


def _filter(*tables: Tensor) -> Results:
    by_step = tables[-1].shape + tables[3].shape[-2:-1]
    state, increment, redraw = tables[3].new_empty(*by_step, tables[3].shape[-1]), *_two(tables[3], by_step)
    value, failed = _recursions(*tables, increment=increment, state=state, redraw=redraw)
    return value, state, increment, redraw, failed


def _posterior(*tables: Tensor) -> Results:
    batch, (steps, states) = tables[-1].shape, tables[3].shape[-2:]
    state, drawn = tables[3].new_empty(*batch, steps, states), tables[3].new_empty(*batch, states)
    redraw, held = _two(tables[3], (*batch, steps))
    value, failed = _recursions(*tables, state=state, redraw=redraw, held=held, drawn=drawn)
    return value, state, redraw, held, drawn, failed


op.filter.kernel("cuda", _takes)(partial(in_stretches, _filter, _find))
op.posterior.kernel("cuda", _takes)(partial(in_stretches, _posterior, _find))


def _recursions(
    log_redraw: Tensor, log_hold: Tensor, log_state: Tensor, log_likelihood: Tensor, lengths: Tensor, **wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """log p(x) and the failed steps; the tables that are wanted are filled."""
    steps, states = log_likelihood.shape[-2:]
    table_axes = broadcast_shapes(log_redraw.shape[:-1], log_hold.shape[:-1], log_state.shape[:-1])
    gates = max(log_redraw.shape[-1], log_hold.shape[-1])
    tables = (
        log_redraw.expand(*table_axes, gates),
        log_hold.expand(*table_axes, gates),
        log_state.expand(*table_axes, states),
    )
    read = (table.detach().contiguous() for table in (log_likelihood, *tables))
    numbers = (_numbers(shape, lengths) for shape in (log_likelihood.shape[:-2], table_axes))
    value, failed = log_likelihood.new_empty(lengths.shape), lengths.new_empty(lengths.shape)
    results = value, failed, *(wanted.get(name) for name in ("increment", "state", "redraw", "held", "drawn"))
    side = side_by_side(lengths.numel(), states)
    sizes: Any = lengths.numel(), steps, states, int(gates > 1)
    options = side.options | {"DTYPE": accumulated(log_likelihood)}
    launch(factored_recursions, (side.programs,), *read, *numbers, lengths.contiguous(), *results, *sizes, **options)
    return value, failed


def _numbers(table_axes: torch.Size, lengths: Tensor) -> Tensor:
    """The number of each sequence's entry in a table with these batch axes."""
    return torch.arange(table_axes.numel(), device=lengths.device).view(table_axes).expand(lengths.shape).contiguous()


def _two(like: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return like.new_empty(shape), like.new_empty(shape)
