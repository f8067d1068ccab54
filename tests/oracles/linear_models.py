"""Linear models at random parameters."""

import torch
from samplehold import LinearSSM

FLOAT = torch.float64


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=FLOAT)


def covariance(seed: int, n: int) -> torch.Tensor:
    root = draw(seed, n, n)
    return root @ root.mT / 4 + 0.3 * torch.eye(n, dtype=FLOAT)


def model_of(n_latent: int = 2, n_features: int = 2, full: bool = False) -> LinearSSM:
    """Tables of which none is special; `full`: the noises of features are correlated."""
    noise = covariance(3, n_features)
    return LinearSSM(n_latent, n_features, "full" if full else "diagonal").with_values(
        transition=0.6 * torch.eye(n_latent, dtype=FLOAT) + 0.2 * draw(0, n_latent, n_latent),
        transition_offset=0.3 * draw(1, n_latent),
        state_noise=covariance(2, n_latent),
        emission=draw(4, n_features, n_latent),
        emission_offset=draw(5, n_features),
        observation_noise=noise if full else noise.diagonal(),
        initial_mean=draw(6, n_latent),
        initial_covariance=covariance(7, n_latent),
    )
