"""The moves of a Gibbs sampler on the CPU, over chains: see `native/gibbs.h` and `native/gibbs_regimes.h`."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from ...native.library import addresses, empty, function, integers
from ...numerics.native_calls import as_table, parts, refuse_lack, run
from ..linear_gaussian.factors import factor_of
from ..linear_gaussian.parameters import root
from . import op
from .sampling import Results
from .tables import Tables

_LACKING, _OUTSIDE = 1, 2  # as in gibbs.h


def _wide(table: Tensor, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return as_table(table.detach().resolve_neg(), shape, dtype)


def check_sizes(tables: Tables, order: int = 1) -> None:
    """Raise an error unless there are regimes, features, latents, and an order."""
    if min(*tables.emission.shape, order) < 1:
        raise ValueError(
            f"emission, order: got shape {list(tables.emission.shape)}, {order}; expected no size below 1."
        )


def _root(covariance: Tensor, *shape: int) -> Tensor:
    covariance = covariance.expand(shape)
    factor, wrong = root(covariance.detach())
    return _wide(factor_of(covariance)[0] if wrong else factor, *covariance.shape)


def _n_sticks(tables: Tables) -> int:
    return 0 if tables.recurrence is None else len(tables.recurrence)


def _model(tables: Tables) -> list[Any]:
    """A record `Given` of native/gibbs_model.h: sizes, then tables."""
    check_sizes(tables)
    (k, f, n), j = tables.emission.shape, _n_sticks(tables)
    shapes = (k,), (k, k), (k, n), (k, n, n), (k, n, n), (k, n), (k, n, n), (k, f, n), (k, f), (k, f, f)
    made = [_wide(table, *shape) for table, shape in zip(tables[:10], shapes, strict=True)]
    if tables.recurrence is None or tables.recurrence_offset is None:
        return [k, n, f, 0, *made, None, None]
    return [k, n, f, j, *made, _wide(tables.recurrence, j, n), _wide(tables.recurrence_offset, k, j)]


def _run(
    name: str, n_beliefs: int, x: Tensor, lengths: Tensor, tables: Tables, path: Tensor, *others: Tensor | int
) -> Tensor:
    """Call a function for all chains, whose paths it may change; returns the step at which each failed, or -1.

    Arguments:
        n_beliefs: about the updates of a belief in a step of a chain.
    """
    (n_chains, n_steps), model = path.shape, _model(tables)
    _, n, f = model[:3]
    failed, trouble = empty(n_chains, dtype=torch.int64).fill_(-1), integers(0)
    seen, ends = _wide(x, len(x), n_steps, f), _wide(lengths, n_chains, dtype=torch.int64)
    chains = addresses(len(x), n_steps, seen, ends, path, failed, ctypes.addressof(trouble))
    seconds = n_chains * n_steps * n_beliefs * (1e-7 + 1e-9 * (n + f) * (n + f + 4) ** 2)
    tasks = [integers(*span) for span in parts(n_chains, seconds)]
    run(function(name), tasks, addresses(*model), chains, addresses(*others))
    refuse_lack(trouble[0] == _LACKING)
    if trouble[0] == _OUTSIDE:
        raise IndexError("path: a regime, a length or a sequence is outside of the model's or of the tables'.")
    return failed


@op.latents.kernel("cpu")
def latents(
    x: Tensor, lengths: Tensor, tables: Tables, path: Tensor, omega: Tensor, noise: Tensor, seen: Tensor
) -> Results:
    (n_chains, n_steps), n = path.shape, tables.n_latent
    j, f = _n_sticks(tables), x.shape[-1]
    k, sizes = tables.n_regimes, (n, n, f)
    covariances = tables.initial_covariance, tables.state_noise, tables.observation_noise
    roots = [_root(table, k, size, size) for table, size in zip(covariances, sizes, strict=True)]
    numbers = [_wide(table, n_chains, n_steps, size) for table, size in ((omega, j), (noise, n), (seen, f + j))]
    drawn, mean, covariance = (
        torch.zeros(n_chains, n_steps, *size, dtype=torch.float64, device="cpu") for size in ((n,), (n,), (n, n))
    )
    chosen = _wide(path, *path.shape, dtype=torch.int64)
    failed = _run("gibbs_latents", 2, x, lengths, tables, chosen, *roots, *numbers, drawn, mean, covariance)
    return drawn, mean, covariance, failed


@op.collapsed.kernel("cpu")
def collapsed(x: Tensor, lengths: Tensor, tables: Tables, path: Tensor, uniform: Tensor) -> Results:
    k, drawn = tables.n_regimes, _wide(path, *path.shape, dtype=torch.int64).clone()
    state = torch.zeros(*path.shape, k, dtype=torch.float64, device="cpu")
    numbers = _wide(uniform, *path.shape)
    return drawn, state, _run("gibbs_collapsed", 2 * k, x, lengths, tables, drawn, numbers, state)


@op.redrawn.kernel("cpu")
def redrawn(x: Tensor, lengths: Tensor, tables: Tables, path: Tensor, n_particles: int, seeds: Tensor) -> Results:
    drawn, each = _wide(path, *path.shape, dtype=torch.int64).clone(), tables.n_regimes * n_particles
    numbers = _wide(seeds, len(path), dtype=torch.int64)
    return drawn, _run("gibbs_redrawn", each, x, lengths, tables, drawn, n_particles, numbers)
