"""The tables of a chain with one batch axis each, as the CPU kernels read them."""

from typing import NamedTuple

import torch
from torch import Tensor


class Tables(NamedTuple):
    """Entry b of `..._of` says which table sequence b has, so that a table shared by sequences is there once."""

    log_initial: Tensor  # [n, K]
    initial_of: Tensor  # [B]
    log_transition: Tensor  # [n, S, K, K], S = 1 (constant) or T - 1
    transition_of: Tensor
    log_likelihood: Tensor  # [n, T, K]
    likelihood_of: Tensor
    lengths: Tensor


def flatten(log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor) -> Tables:
    """Of tables whose batch axes broadcast to those of `lengths`."""
    parts: list[Tensor] = []
    for table, n_own in ((log_initial, 1), (log_transition, 3), (log_likelihood, 2)):
        batch, own = table.shape[: table.dim() - n_own], table.shape[table.dim() - n_own :]
        number = torch.arange(batch.numel()).reshape(batch).expand(lengths.shape)
        parts += [table.detach().reshape(batch.numel(), *own).contiguous(), number.reshape(-1).contiguous()]
    return Tables._make([*parts, lengths.reshape(-1).contiguous()])


def select(tables: Tables, sequences: Tensor) -> Tables:
    """The tables of some sequences only."""
    parts: list[Tensor] = []
    for table, of in zip(tables[:6:2], tables[1:6:2], strict=True):
        used, number = of[sequences].unique(return_inverse=True)
        parts += [table[used], number]
    return Tables._make([*parts, tables.lengths[sequences]])


def double(tables: Tables) -> Tables:
    """The same in float64."""
    return Tables._make(table.double() if table.is_floating_point() else table for table in tables)
