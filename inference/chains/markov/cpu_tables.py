"""The tables of a chain as arrays with one batch axis each, as the CPU kernels read them."""

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor


class Tables(NamedTuple):
    """Entry b of `..._of` says which table sequence b has, so that a table shared by sequences is there once."""

    log_initial: np.ndarray  # [n, K]
    initial_of: np.ndarray  # [B]
    log_transition: np.ndarray  # [n, S, K, K], S = 1 (constant) or T - 1
    transition_of: np.ndarray
    log_likelihood: np.ndarray  # [n, T, K]
    likelihood_of: np.ndarray
    lengths: np.ndarray


def flatten(log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor) -> Tables:
    """Of tables whose batch axes broadcast to those of `lengths`."""
    parts: list[Any] = []
    for table, n_own in ((log_initial, 1), (log_transition, 3), (log_likelihood, 2)):
        batch, own = table.shape[: table.dim() - n_own], table.shape[table.dim() - n_own :]
        number = np.arange(batch.numel()).reshape(batch) + np.zeros(lengths.shape, np.int64)
        parts += [table.detach().reshape(batch.numel(), *own).contiguous().numpy(), number.ravel()]
    return Tables._make([*parts, lengths.reshape(-1).contiguous().numpy()])


def select(tables: Tables, sequences: np.ndarray) -> Tables:
    """The tables of some sequences only."""
    parts: list[Any] = []
    for table, of in zip(tables[:6:2], tables[1:6:2], strict=True):
        used, number = np.unique(of[sequences], return_inverse=True)
        parts += [table[used], number]
    return Tables._make([*parts, tables.lengths[sequences]])


def double(tables: Tables) -> Tables:
    """The same in float64."""
    return Tables._make(table.astype(np.float64, copy=False) if table.dtype.kind == "f" else table for table in tables)
