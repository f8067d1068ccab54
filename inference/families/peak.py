"""Maximum likelihood of normal vectors from a message: the maximum of <m, t> of a NormalWishart, which may not exist.

If a state's steps are on a point, or in a plane, its likelihood is unbounded. So covariances have a floor.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..numerics.cholesky import rounding
from ..numerics.op import Variants

NEAR_FLOOR = 10.0  # times the floor: a variance that is no greater has fallen to it


class Peak(NamedTuple):
    """NaN if a plate has no weight."""

    loc: Float[Tensor, "*plates D"]
    precision: Float[Tensor, "*plates D D"]


def _peak(message: Tensor, floor: Tensor) -> Peak:
    dim = math.isqrt(message.shape[-1] - 2)
    first, half, _, second = message.split([dim, 1, 1, dim * dim], -1)
    n = -2 * half
    mean = first / n
    scatter = -2 * second.unflatten(-1, (dim, dim)) / n.unsqueeze(-1)
    covariance = scatter - mean.unsqueeze(-1) * mean.unsqueeze(-2)
    # in units of the floor's square root
    unit, any_mass = floor.sqrt(), n.unsqueeze(-1) > 0
    scaled = torch.where(any_mass, covariance, 0.0) / (unit.unsqueeze(-1) * unit)
    variance, axes = torch.linalg.eigh(scaled.double())
    inverse = _inverse_of(axes, variance.clamp(min=1.0), scaled) / (unit.unsqueeze(-1) * unit)
    inverse = torch.where(any_mass, 0.5 * (inverse + inverse.mT), torch.nan)
    return Peak(mean, inverse)


def _inverse_of(axes: Tensor, variance: Tensor, like: Tensor) -> Tensor:
    """The inverse of the covariance with these axes, if the dtype of the result can separate the eigenvalues of its
    correlations from 0; otherwise the inverse of a nearby one for which it can."""
    covariance = (axes * variance.unsqueeze(-2)) @ axes.mT
    unit = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    both, least = unit.unsqueeze(-1) * unit.unsqueeze(-2), rounding(like)
    level, turned = torch.linalg.eigh(covariance / both)
    held = (turned / level.clamp(min=least).unsqueeze(-2)) @ turned.mT / both
    singular = (level[..., :1] < least).unsqueeze(-1)
    return torch.where(singular, held, (axes / variance.unsqueeze(-2)) @ axes.mT).to(like)


peak: Variants = Variants(_peak)
"""The `Peak` of messages `[*plates, P]`, with covariances of at least diag(floor)."""
