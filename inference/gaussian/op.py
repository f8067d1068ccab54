r"""Normal log densities of every step under every state, and the weighted moments that fit them.

$$\log N(x_n; \mu_k, \Lambda_k^{-1}) = \tfrac12 \log|\Lambda_k| - \tfrac F2 \log 2\pi - \tfrac12 r^\top \Lambda_k r,
\quad
  r = x_n - \mu_k$$

$$n_k = \sum_n w_{nk}, \qquad f_k = \sum_n w_{nk} (x_n - c_k), \qquad S_k = \sum_n w_{nk} (x_n - c_k)(x_n - c_k)^\top$$

Both work on residuals, never on raw squares, so data far from zero lose no digits; moments are taken about a point c_k
of the caller's, near the mean. Parameters have leading axes `*r` (restarts, draws); the same x serves all of them.
Steps are
complete here: emissions deal with what is missing.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..numerics.backends import HAS_NUMBA
from . import plain as vectorized


class Moments(NamedTuple):
    """Weighted count, first and second moments about a point of each state."""

    count: Float[Tensor, "*r K"]
    first: Float[Tensor, "*r K F"]
    second: Tensor  # [*r, K, F, F], or [*r, K, F] where features are independent


def normal_log_density(
    x: Float[Tensor, "N F"], loc: Float[Tensor, "*r K F"], precision: Float[Tensor, "*r K F"]
) -> Float[Tensor, "*r N K"]:
    """Log density of each step under each state, features independent with the given precisions."""
    return _implementation(x, loc, precision).normal_log_density(x, loc, precision)


def multivariate_normal_log_density(
    x: Float[Tensor, "N F"], loc: Float[Tensor, "*r K F"], chol_precision: Float[Tensor, "*r K F F"]
) -> Float[Tensor, "*r N K"]:
    """Log density of each step under each state; precision = chol_precision chol_precision^T."""
    return _implementation(x, loc, chol_precision).multivariate_normal_log_density(x, loc, chol_precision)


def normal_moments(
    x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"], about: Float[Tensor, "*#r #K F"]
) -> Moments:
    """Weighted moments about `about`, second moments of each feature alone."""
    about = about.expand(*weights.shape[:-2], weights.shape[-1], x.shape[-1])
    return Moments(*_implementation(x, weights, about).normal_moments(x, weights, about))


def multivariate_normal_moments(
    x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"], about: Float[Tensor, "*#r #K F"]
) -> Moments:
    """Weighted moments about `about`, with the full second moments."""
    about = about.expand(*weights.shape[:-2], weights.shape[-1], x.shape[-1])
    return Moments(*_implementation(x, weights, about).multivariate_normal_moments(x, weights, about))


def _implementation(*tensors: Tensor):
    """The fused kernels where no gradient is asked for; plain torch, which autograd differentiates, elsewhere."""
    differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    if HAS_NUMBA and not differentiable and all(t.device.type == "cpu" for t in tensors):
        from . import cpu as gaussian

        return gaussian
    return vectorized
