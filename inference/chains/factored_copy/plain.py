"""Factored copy chains in plain torch: `copy.plain` on their tables, multiplied out in float64.

Arguments and results are those of `op`.
"""

from typing import Any

import torch
from torch import Tensor

from ...numerics.threads import sum_of_steps
from ..copy import plain


def multiplied_out(
    log_redraw: Tensor, log_hold: Tensor, log_state: Tensor, log_likelihood: Tensor
) -> tuple[Tensor, Tensor]:
    """`log_fresh` and `log_held` [*b, T, K] of the same chain; the first step redraws for any gates."""
    steps = log_likelihood.shape[-2]
    first = torch.arange(steps, device=log_likelihood.device) == 0
    gate = log_redraw.expand(*log_redraw.shape[:-1], steps)
    fresh = torch.where(first, 0.0, gate).unsqueeze(-1) + log_state.unsqueeze(-2)
    return log_likelihood + fresh, log_likelihood + log_hold.unsqueeze(-1)


def _one_batch_axis(*tables: Any) -> tuple[Any, ...]:
    """The arguments of functions of `plain`, with one batch axis: [N, T, K] and [N]."""
    *factors, lengths = tables
    size = lengths.numel()
    wide = (
        table.expand(*lengths.shape, *table.shape[-2:]).reshape(size, *table.shape[-2:])
        for table in multiplied_out(*(factor.double() for factor in factors))
    )
    return None, *wide, lengths.reshape(size)


def _shaped(tables: tuple[Tensor, ...], *results: Tensor) -> tuple[Tensor, ...]:
    """Results with the batch axes and the dtype of the tables."""
    shape, dtype = tables[-1].shape, tables[0].dtype
    shaped = (result.reshape((*shape, *result.shape[1:])) for result in results)
    return tuple(result.to(dtype) if result.is_floating_point() else result for result in shaped)


def log_normalizer(*tables: Tensor) -> tuple[Tensor, ...]:
    """log_normalizer [*b], failed [*b]."""
    return _shaped(tables, *plain.log_normalizer(*_one_batch_axis(*tables)))


def filter(*tables: Tensor) -> tuple[Tensor, ...]:
    """log_normalizer [*b], state [*b, T, K], log_increment [*b, T], redraw [*b, T], failed [*b]."""
    increment, state, redraw, failed = plain.filter(*_one_batch_axis(*tables))
    return _shaped(tables, sum_of_steps(increment), state, increment, redraw, failed)


def posterior(*tables: Tensor) -> tuple[Tensor, ...]:
    """log_normalizer [*b], state [*b, T, K], redraw and held [*b, T], fresh [*b, K], failed [*b]."""
    value, fresh, held, _, failed = plain.marginals(*_one_batch_axis(*tables))
    results = value, fresh + held, fresh.sum(-1), held.sum(-1), fresh.sum(-2), failed
    return _shaped(tables, *results)
