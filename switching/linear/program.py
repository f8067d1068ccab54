r"""The generative program: sites `s_t` for latent vectors and `x_t` for observations, t from 1.

Covariances may be singular, because a structure has only a few noises. A site's density is then a density on the
directions with noise. Coordinates of a diffuse start are drawn as 0. Each has the density $(2 \pi)^{-1/2}$, the limit
of $\kappa^{1/2} N(\cdot; 0, \kappa)$ for a variance $\kappa$.
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pyro
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from ...inference.chains.linear_gaussian.factors import factor_of
from ...inference.numerics.checks import broadcast_shapes
from ..program import sequence_plates
from .contract import TransitionParameters
from .emission import ObservationParameters

LOG_2PI = math.log(2 * math.pi)
BESIDE = 1e-6  # relative distance of a draw from the directions with noise that counts as rounding


class SingularNormal(TorchDistribution):
    """A normal vector whose covariance may be singular; NaN entries are marginalised.

    Arguments:
        loc: [*b, D].
        covariance: [*#b, D, D].
        diffuse: [D], entries with a diffuse distribution.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 the interface of torch.distributions

    def __init__(self, loc: Tensor, covariance: Tensor, diffuse: Tensor | None = None) -> None:
        self.loc: Tensor = loc.expand(*broadcast_shapes(loc.shape[:-1], covariance.shape[:-2]), -1)
        self.covariance = covariance
        self.diffuse: Tensor = loc.new_zeros(loc.shape[-1], dtype=torch.bool) if diffuse is None else diffuse
        super().__init__(self.loc.shape[:-1], loc.shape[-1:], validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, 1)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> "SingularNormal":
        return SingularNormal(self.loc.expand(*batch_shape, -1), self.covariance, self.diffuse)

    def rsample(self, sample_shape: torch.Size | tuple[int, ...] = ()) -> Tensor:
        loc = self.loc.expand(*sample_shape, *self.loc.shape)
        factor, _ = factor_of(self.covariance)
        noise = torch.randn(loc.shape, dtype=loc.dtype, device=loc.device)
        return loc + (factor @ noise.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        gap, proper = value - self.loc, ~self.diffuse
        total = torch.zeros_like(gap[..., 0]) - LOG_2PI / 2 * float(self.diffuse.sum())
        for seen in torch.unique(~gap.isnan().reshape(-1, gap.shape[-1]), dim=0):
            which = (~gap.isnan() == seen).all(-1)
            entries = seen & proper
            here = _log_density(gap[..., entries].nan_to_num(0.0), self.covariance[..., entries, :][..., entries])
            total = torch.where(which, total + here, total)
        return total


def _log_density(gap: Tensor, covariance: Tensor) -> Tensor:
    """Log density of gaps [*b, D] on the range of the covariance [*#b, D, D]; -inf outside it."""
    if not gap.shape[-1]:
        return torch.zeros_like(gap.sum(-1))
    factor, _ = factor_of(covariance)
    axes, sizes, _ = torch.linalg.svd(factor)
    there = (sizes > 1e-8 * sizes[..., :1]) & (sizes > 0)
    turned = (gap.unsqueeze(-2) @ axes).squeeze(-2)
    white = torch.where(there, turned / torch.where(there, sizes, 1.0), 0.0)
    log_sizes = torch.where(there, sizes, 1.0).log().sum(-1)
    total = -white.square().sum(-1) / 2 - log_sizes - there.to(white).sum(-1) * LOG_2PI / 2
    beside = torch.where(there, 0.0, turned.abs()).sum(-1) > BESIDE * (1 + gap.abs().sum(-1))
    return torch.where(beside, -torch.inf, total)


def linear_program(
    moves: TransitionParameters,
    sights: ObservationParameters,
    diffuse: Tensor,
    x: Tensor | None = None,
    n_steps: int = 1,
    batch_shape: tuple[int, ...] = (),
) -> tuple[Tensor, Tensor]:
    """Observations [*b, T, F] and latents [*b, T, L] of the tables; conditioned on x if it is given."""
    if x is not None:
        n_steps, batch_shape = x.shape[-2], tuple(x.shape[:-2])
    n_latent, like = moves.transition.shape[-1], moves.transition
    loc = like.new_zeros(n_latent) if moves.initial_mean is None else moves.initial_mean
    covariance = like.new_zeros(n_latent, n_latent) if moves.initial_covariance is None else moves.initial_covariance
    states, seen, plates = [], [], sequence_plates(batch_shape)
    for t in pyro.markov(range(1, n_steps + 1)):
        with ExitStack() as scope:
            for plate in plates:
                scope.enter_context(plate)
            open_now = diffuse if t == 1 else torch.zeros_like(diffuse)
            state = pyro.sample(f"s_{t}", SingularNormal(loc.expand(*batch_shape, n_latent), covariance, open_now))
            emission = sights.emission if sights.emission.ndim == 2 else sights.emission[..., t - 1, :, :]
            expected = (emission @ state.unsqueeze(-1)).squeeze(-1)
            if sights.emission_offset is not None:
                expected = expected + sights.emission_offset
            obs = None if x is None else x[..., t - 1, :]
            seen.append(pyro.sample(f"x_{t}", SingularNormal(expected, sights.observation_noise), obs=obs))
        states.append(state)
        loc, covariance = state @ moves.transition.mT, moves.state_noise
        if moves.transition_offset is not None:
            loc = loc + moves.transition_offset
    return torch.stack(seen, -2), torch.stack(states, -2)
