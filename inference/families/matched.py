r"""The member of a family with given expected statistics.

$$\nabla A(\eta) = \mu \quad \text{where} \quad \langle \eta, \mu \rangle - A(\eta) \text{ is greatest},$$

so with the mean of $E_{q_i}[t]$ over $i = 1 \dots S$ it is the prior $\eta_0$ that maximises
$\sum_i E_{q_i}[\log p(\theta_i \mid \eta_0)]$. Locations are in closed form. Concentrations need Newton's method (Minka
2000, *Estimating a Dirichlet distribution*; 2002, *Estimating a Gamma distribution*), degrees of freedom bisection.
"""

import math
from functools import singledispatch
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..numerics.cholesky import cholesky, cholesky_inverse, cholesky_solve, log_det
from .family import VectorFamily
from .normal import NormalGamma, NormalWishart
from .positive import Beta, Dirichlet, Gamma

NEWTON, HALVINGS = 60, 80
MOST = 1e8  # the greatest concentration: the members of a population hardly differ


@singledispatch
def matched(
    family: VectorFamily[Any], mean: Float[Tensor, "*plates P"], start: Float[Tensor, "*plates P"]
) -> Float[Tensor, "*plates P"]:
    """Natural parameters whose expected statistics are `mean`, found from those of `start`.

    The spread of locations is a difference of statistics, so it keeps its digits only if locations are not many spreads
    away from 0; take them about a typical location, as fits do.

    Raises:
        TypeError: a family without a rule.
    """
    raise TypeError(f"family: {type(family).__name__} has no population; fit this block without one.")


@matched.register(Beta)
@matched.register(Dirichlet)
def _(family: Dirichlet | Beta, mean: Tensor, start: Tensor) -> Tensor:
    def height(alpha: Tensor) -> Tensor:
        return (alpha * mean).sum(-1) - family.log_normalizer(alpha)

    alpha = start
    for _ in range(NEWTON):
        total = alpha.sum(-1, keepdim=True)
        gradient = mean - torch.digamma(alpha) + torch.digamma(total)
        own, common = torch.polygamma(1, alpha), torch.polygamma(1, total)
        shift = (gradient / own).sum(-1, keepdim=True) / (1 / common - (1 / own).sum(-1, keepdim=True))
        step = (gradient + shift) / own
        moved = torch.where(alpha + step > 0, alpha + step, alpha / 2)
        # the concentrations of plates whose members hardly differ have no finite optimum
        moved = moved * (MOST / moved.sum(-1, keepdim=True)).clamp_max(1.0)
        done = bool(((moved - alpha).abs() <= 1e-12 * alpha).all())
        alpha = moved
        if done:
            break
    return torch.where((height(alpha) >= height(start)).unsqueeze(-1), alpha, start)


@matched.register(Gamma)
def _(family: Gamma, mean: Tensor, start: Tensor) -> Tensor:
    return family.natural(*_gamma(*mean.unbind(-1)))


@matched.register(NormalGamma)
def _(family: NormalGamma, mean: Tensor, start: Tensor) -> Tensor:
    first, second, log_precision, precision = mean.unbind(-1)
    loc = first / precision
    kappa = (1 / (second - loc * first)).clamp(max=MOST)
    return family.natural(loc, torch.where(kappa > 0, kappa, MOST), *_gamma(log_precision, precision))


@matched.register(NormalWishart)
def _(family: NormalWishart, mean: Tensor, start: Tensor) -> Tensor:
    dim = math.isqrt(mean.shape[-1] - 2)
    first, second, log_volume, last = mean.split([dim, 1, 1, dim * dim], -1)
    precision = last.unflatten(-1, (dim, dim))
    chol = cholesky(precision)
    loc = cholesky_solve(first.unsqueeze(-1), chol).squeeze(-1)
    kappa = (dim / (second.squeeze(-1) - (loc * first).sum(-1))).clamp(max=MOST)
    df = _degrees(log_volume.squeeze(-1) - log_det(chol), dim)
    inverse_scale = df[..., None, None] * cholesky_inverse(chol)
    return family.of_inverse(loc, torch.where(kappa > 0, kappa, MOST), df, inverse_scale)


def _gamma(log_mean: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Shape and rate from E log x and E x."""
    gap = (mean.log() - log_mean).clamp_min(0.5 / MOST)
    shape = (3 - gap + ((gap - 3).square() + 24 * gap).sqrt()) / (12 * gap)
    for _ in range(NEWTON):
        rise = (shape.log() - torch.digamma(shape) - gap) / (1 - shape * torch.polygamma(1, shape))
        moved = shape / (1 + rise)
        done = bool(((moved - shape).abs() <= 1e-13 * shape).all())
        shape = torch.where(moved > 0, moved, shape / 2)
        if done:
            break
    return shape, shape / mean


def _degrees(gap: Tensor, dim: int) -> Tensor:
    """The degrees of freedom with E log|X| - log|E X| = gap, of D by D matrices."""
    places = torch.arange(dim, dtype=gap.dtype, device=gap.device)
    low, high = torch.full_like(gap, math.log(1e-6)), torch.full_like(gap, math.log(MOST))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        df = middle.exp() + dim - 1
        above = torch.digamma((df.unsqueeze(-1) - places) / 2).sum(-1) - dim * (df / 2).log() > gap
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return ((low + high) / 2).exp() + dim - 1
