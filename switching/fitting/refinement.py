r"""Draws from the posterior of the parameters itself, by importance sampling around its peak.

Newton's method finds the peak $\hat y$ of the density $p(y, x)$ in free coordinates (see `density`). Draws from a
multivariate t around the peak, whose scale is the inverse of the curvature $-\nabla^2 \log p(\hat y, x)$, get the
weights $p(y, x) / t(y)$. These are smoothed (Vehtari, Simpson, Gelman, Yao & Gabry 2024, *Pareto smoothed importance
sampling*), and the draws are resampled. If the tail of the weights is too heavy, or if weights would take too long, the
result is draws of the normal at the peak (Laplace).
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.families.numerics import log_gamma_draw
from ...inference.numerics.randomness import generator_of
from ..parameters import Parameters
from ..problem import Problem
from .density import Density, FreeDensity

DRAWS = 4000
MOST = 2**29  # numbers in the tables of all draws; with more data the posterior is normal up to the error of its draws
RELIABLE = 0.7  # Pareto's shape below which the weights are reliable
NEWTON = 100  # steps at most
FRESH = 4  # steps after which the curvature is computed again
FEWEST = 4  # weights in a tail that has no shape
LEAST = math.log(torch.finfo(torch.float64).tiny)
NEAR = 1e-10  # remaining gain in nats at the peak


def draw_posterior(problem: Problem, near: Parameters, n_draws: int = DRAWS) -> tuple[Parameters, float]:
    """Draws `[n_draws, ...]` of the parameters, and Pareto's k of their weights; NaN if they were not weighted.

    Arguments:
        near: parameters from which the search for the peak starts.
    """
    like = problem.series.like
    density = Density(problem.double(), {name: value.double() for name, value in near.items()})
    point, variances, axes = peak(density)
    generator, n = generator_of(0, like.device), len(point)
    normal = torch.randn(n_draws, n, generator=generator, device=like.device, dtype=torch.float64)
    moves, points, k = normal * variances.sqrt() @ axes.mT, None, math.nan
    if problem.size * n_draws <= MOST:
        freedom = 5.0 + n
        halves = torch.full((n_draws, 1), freedom / 2, dtype=normal.dtype, device=normal.device)
        wide = (halves.log() - log_gamma_draw(halves, generator)).mul(0.5).exp()  # sqrt(freedom / chi squared)
        proposed = point + wide * moves
        log_t = -(freedom + n) / 2 * ((wide * normal).square().sum(-1) / freedom).log1p()
        smooth, k = smoothed_weights(density.at(proposed) - log_t)
        if k < RELIABLE:
            points = proposed[_systematic(smooth, generator)]
    if points is None:
        points = point + moves
    return {name: value.to(like) for name, value in density.values(density.by_name(points)).items()}, k


def peak(density: FreeDensity) -> tuple[Float[Tensor, "P"], Float[Tensor, "P"], Float[Tensor, "P P"]]:
    """The peak of the density near its start, and the variances along the axes (columns) of its curvature."""
    point = density.point
    height, (variances, axes), age = density.at(point[None]), _curvature(density, point), 0
    for _ in range(1, NEWTON):
        gradient = density.gradient(point[None])[0]
        if age == FRESH:
            (variances, axes), age = _curvature(density, point), 0
        move = axes @ (variances * (axes.mT @ gradient))
        if float(gradient @ move) / 2 < NEAR:
            break
        sizes = 0.5 ** torch.arange(20).to(point)
        heights = density.at(point + sizes[:, None] * move)
        best = int(heights.argmax())
        if float(heights[best]) <= float(height):
            break
        point, height, age = point + sizes[best] * move, heights[best], age + 1
    return point, *((variances, axes) if age == 0 else _curvature(density, point))


def _curvature(density: FreeDensity, point: Tensor) -> tuple[Tensor, Tensor]:
    """Variances and axes of the normal with the density's curvature.

    A direction of negative curvature counts with its absolute value. A flat direction has variance 1."""
    values, axes = torch.linalg.eigh(-density.hessian(point))
    size = values.abs()
    return 1 / torch.where(size > 1e-6, size, 1.0), axes


def smoothed_weights(log_weights: Float[Tensor, "n"]) -> tuple[Float[Tensor, "n"], float]:
    """Pareto-smoothed weights that sum to 1, and the tail's shape k; without a tail it is infinite.

    The largest weights become quantiles of the generalised Pareto distribution that is fitted to them.
    """
    from pyro.ops.stats import fit_generalized_pareto

    logs = log_weights.cpu().clamp_min(-1e300)
    logs = logs - logs.max()
    n = len(logs)
    ordered, order = logs.sort(stable=True)
    cut = float(ordered[-math.ceil(min(n / 5, 3 * n**0.5)) - 1].clamp_min(LEAST))
    tail, k = order[ordered > cut], math.inf
    if len(tail) > FEWEST:
        k, size = fit_generalized_pareto(logs[tail].exp() - math.exp(cut))
        at = (torch.arange(len(tail), dtype=torch.float64, device="cpu") + 0.5) / len(tail)
        quantiles = size * (torch.expm1(-k * torch.log1p(-at)) / k if k else -torch.log1p(-at))
        smooth = (quantiles + math.exp(cut)).log().clamp_max(0.0)
        logs = logs.index_copy(0, tail, torch.where(smooth.isfinite(), smooth, logs[tail]))
    return logs.softmax(-1).to(log_weights), k


def _systematic(weights: Float[Tensor, "n"], generator: torch.Generator | None) -> Tensor:
    """Indices, each about n times its weight, from one uniform draw."""
    n = len(weights)
    at = (torch.arange(n).to(weights) + torch.rand(1, generator=generator, device=weights.device).to(weights)) / n
    sums = weights.cumsum(0)
    return torch.searchsorted(sums / sums[-1], at).clamp_max(n - 1)
