"""Normal densities and moments in plain torch: any device, differentiable."""

import math

import torch
from torch import Tensor

LOG_2PI = math.log(2 * math.pi)


def normal_log_density(x: Tensor, loc: Tensor, precision: Tensor, log_precision: Tensor) -> Tensor:
    missing = (x != x).unsqueeze(-2)
    residual = x.unsqueeze(-2).masked_fill(missing, 0.0) - loc.unsqueeze(-3)
    terms = (log_precision - LOG_2PI).unsqueeze(-3) - precision.unsqueeze(-3) * (residual * residual)
    return 0.5 * terms.masked_fill(missing, 0.0).sum(-1)


def multivariate_normal_log_density(x: Tensor, loc: Tensor, chol_precision: Tensor, log_det: Tensor) -> Tensor:
    residual = x.unsqueeze(-3) - loc.unsqueeze(-2)  # [*r, K, N, F] against x as [1, N, F]
    whitened = residual @ chol_precision.tril()
    return 0.5 * (log_det.unsqueeze(-1) - whitened.square().sum(-1) - x.shape[-1] * LOG_2PI).mT


def normal_moments(x: Tensor, weights: Tensor, about: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    seen, filled = _seen(x)
    residual = torch.where(seen.unsqueeze(-3), filled.unsqueeze(-3) - about.unsqueeze(-2), 0.0)  # [*r, K, N, F]
    weighted = residual * weights.mT.unsqueeze(-1)
    return weights.mT @ seen.to(x), weighted.sum(-2), (weighted * residual).sum(-2)


def multivariate_normal_moments(x: Tensor, weights: Tensor, about: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    residual = x.unsqueeze(-3) - about.unsqueeze(-2)
    weighted = residual * weights.mT.unsqueeze(-1)
    return weights.sum(-2), weighted.sum(-2), torch.einsum("...nf,...ng->...fg", weighted, residual)


def _seen(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each feature is seen, and x with 0 where it is missing."""
    seen = ~torch.isnan(x)
    return seen, torch.where(seen, x, 0.0)
