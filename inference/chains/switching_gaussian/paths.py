"""The moves of a Gibbs sampler over regimes and latents: tables in, draws out, by kernels of the CPU.

Paths are [B, T], of B chains that see the N sequences x [N, T, F] in turn, b that of number b % N. All is float64.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...numerics.threads import in_parallel, ranges
from ..linear_gaussian.factors import factor_of
from .cpu_collapsed import sweep
from .cpu_latents import densities, draw
from .cpu_particles import redraw
from .cpu_polya_gamma import polya_gamma
from .cpu_steps import Arrays, arrays_of, work_of
from .tables import Tables

_MIN_WORK = 1 << 13  # numbers of covariances that repay a second thread


class Latents(NamedTuple):
    """Given regimes; 0 beyond the end."""

    drawn: Tensor  # [B, T, L]
    mean: Tensor  # [B, T, L]
    covariance: Tensor  # [B, T, L, L]


class Paths:
    """Sequences of a model, of which paths are drawn.

    Arguments:
        x: [N, T, F] with NaN.
        lengths: [B], the lengths of the N sequences as often as there are chains.
    """

    def __init__(self, tables: Tables, x: Tensor, lengths: Tensor) -> None:
        self.tables, self.x, self.lengths = tables, x.contiguous(), lengths.contiguous()
        self._arrays: Arrays = arrays_of(tables)
        covariances = tables.initial_covariance, tables.state_noise, tables.observation_noise
        self._roots = tuple(factor_of(table)[0].contiguous().numpy() for table in covariances)
        same = lambda *parts: all(bool((table == table[:1]).all()) for table in parts)
        self.starts_differ = not same(tables.initial_mean, tables.initial_covariance)
        self.moves_differ = not same(tables.transition, tables.transition_offset, tables.state_noise)

    def latents(self, path: Tensor, omega: Tensor, generator: torch.Generator | None) -> tuple[Latents, Tensor]:
        """A draw given regimes and the numbers of their sticks [B, T, J], and failed [B]."""
        n_chains, n_steps = path.shape
        n, rows = self.tables.n_latent, self.x.shape[-1] + omega.shape[-1]
        noise, seen = (
            torch.randn(n_chains, n_steps, size, generator=generator, dtype=torch.float64, device="cpu")
            for size in (n, rows)
        )
        found = Latents(*(self.x.new_zeros(n_chains, n_steps, *size) for size in ((n,), (n,), (n, n))))
        failed = torch.full_like(self.lengths, -1)
        given = _numpy(path), self._arrays, self._roots, *map(_numpy, (omega, noise, seen))
        self._run(draw, *given, *map(_numpy, (*found, failed)))
        return found, failed

    def log_likelihood(self, latents: Tensor) -> Tensor:
        """What latents and x say of each step's regime, [B, T, K]; 0 beyond the end."""
        table = self.x.new_zeros(*latents.shape[:2], self.tables.n_regimes)
        self._run(densities, _numpy(latents), self._arrays, self.starts_differ, self.moves_differ, _numpy(table))
        return table

    def collapsed(self, path: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        """Paths with each regime drawn given all others, what it was drawn from [B, T, K], and failed [B]."""
        drawn, state = path.clone(), self.x.new_zeros(*path.shape, self.tables.n_regimes)
        uniform = torch.rand(path.shape, generator=generator, dtype=torch.float64, device="cpu")
        failed = torch.full_like(self.lengths, -1)
        self._run(sweep, self._arrays, *map(_numpy, (uniform, drawn, state, failed)))
        return drawn, state, failed

    def redrawn(self, path: Tensor, n_particles: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Whole paths drawn by a particle filter that holds on to these, and failed [B]."""
        drawn, failed = path.clone(), torch.full_like(self.lengths, -1)
        seeds = torch.randint(2**62, self.lengths.shape, generator=generator, device="cpu")
        self._run(redraw, self._arrays, n_particles, *map(_numpy, (seeds, drawn, failed)))
        return drawn, failed

    def sticks(self, path: Tensor, latents: Tensor, generator: torch.Generator | None) -> Tensor:
        """Polya-Gamma numbers [B, T, K-1] of the sticks that each move broke or left, 0 for all others."""
        recurrence, offset = self.tables.recurrence, self.tables.recurrence_offset
        if recurrence is None or offset is None:
            return self.x.new_zeros(*path.shape, 0)
        u = latents @ recurrence.mT + offset[path]
        drawn = draw_polya_gamma(u.flatten(1), generator).view_as(u)
        n_sticks, n_steps = u.shape[-1], path.shape[-1]
        later = torch.nn.functional.pad(path[:, 1:], (0, 1))
        within = torch.arange(1, n_steps + 1, device="cpu") < self.lengths[:, None]
        told = (torch.arange(n_sticks, device="cpu") <= later.unsqueeze(-1)) & within.unsqueeze(-1)
        return torch.where(told, drawn, 0.0)

    def _run(self, function: Callable[..., None], *arguments: Any) -> None:
        work = self.x.shape[-2] * self.tables.n_regimes * self.tables.n_latent**2
        pieces = ranges(len(self.lengths), max(1, -(-_MIN_WORK // max(1, work))))
        first, n = (_numpy(self.x), _numpy(self.lengths)), self.tables.n_latent
        rows = max(n, self.x.shape[-1] + len(self._arrays.recurrence))
        in_parallel([partial(function, part, work_of(rows, n), *first, *arguments) for part in pieces])


def draw_polya_gamma(c: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """PG(1, c) of each of [N, M] numbers."""
    seeds, drawn = torch.randint(2**62, (len(c),), generator=generator, device="cpu"), torch.empty_like(c)
    arrays = (_numpy(c), _numpy(seeds), _numpy(drawn))
    pieces = ranges(len(c), max(1, _MIN_WORK // max(1, c.shape[1])))
    in_parallel([partial(polya_gamma, part, *arrays) for part in pieces])
    return drawn


def _numpy(table: Tensor) -> Any:
    assert table.is_contiguous()
    return table.numpy()
