"""The moves of a Gibbs sampler over regimes and latents: tables in, draws out.

Paths are [B, T], of B chains that see the N sequences x [N, T, F] in turn, b that of number b % N. All is float64.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from . import op, sampling
from .tables import Tables


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

    tables: Tables
    x: Tensor
    lengths: Tensor

    def __init__(self, tables: Tables, x: Tensor, lengths: Tensor) -> None:
        self.tables, self.x, self.lengths = tables, x.contiguous(), lengths.contiguous()
        same = lambda *parts: all(bool((table == table[:1]).all()) for table in parts)
        self.starts_differ: bool = not same(tables.initial_mean, tables.initial_covariance)
        self.moves_differ: bool = not same(tables.transition, tables.transition_offset, tables.state_noise)

    def latents(self, path: Tensor, omega: Tensor, generator: torch.Generator | None) -> tuple[Latents, Tensor]:
        """A draw given regimes and the numbers of their sticks [B, T, J], and failed [B]."""
        n_chains, n_steps = path.shape
        n, rows = self.tables.n_latent, self.x.shape[-1] + omega.shape[-1]
        noise, seen = (
            torch.randn(n_chains, n_steps, size, generator=generator, dtype=torch.float64, device="cpu")
            for size in (n, rows)
        )
        *drawn, failed = op.latents(self.x, self.lengths, self.tables, path, omega, noise, seen)
        return Latents(*drawn), failed

    def log_likelihood(self, latents: Tensor) -> Tensor:
        """What latents and x say of each step's regime, [B, T, K]; 0 beyond the end."""
        differ = self.starts_differ, self.moves_differ
        return sampling.densities(self.x, self.lengths, self.tables, latents, *differ)

    def collapsed(self, path: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        """Paths with each regime drawn given all others, its distribution [B, T, K], and failed [B]."""
        uniform = torch.rand(path.shape, generator=generator, dtype=torch.float64, device="cpu")
        return op.collapsed(self.x, self.lengths, self.tables, path, uniform)

    def redrawn(self, path: Tensor, n_particles: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Whole paths drawn by a particle filter that holds on to these, and failed [B]."""
        seeds = torch.randint(2**62, self.lengths.shape, generator=generator, device="cpu")
        return op.redrawn(self.x, self.lengths, self.tables, path, n_particles, seeds)

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
        observed = (torch.arange(n_sticks, device="cpu") <= later.unsqueeze(-1)) & within.unsqueeze(-1)
        return torch.where(observed, drawn, 0.0)


def draw_polya_gamma(c: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """PG(1, c) of each of [N, M] numbers."""
    return op.polya_gamma(c, torch.randint(2**62, (len(c),), generator=generator, device="cpu"))
