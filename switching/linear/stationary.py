"""Stationary autoregressions: coefficients, partial autocorrelations and covariances."""

from functools import cache

import torch
from torch import Tensor

from ...inference.numerics.placement import constant

EDGE = 1e-6  # distance of a partial autocorrelation from 1 or -1, below which it counts as 1 or -1
LOST = 1e-11  # share of noise in an autoregression, below which its covariances have no digits in float64


def share_of_noise(partial: Tensor) -> Tensor:
    """The share [*r] of the variance that the past does not explain, from partial autocorrelations [*r, p]."""
    return (1 - partial.square()).prod(-1)


def partial_autocorrelations(weights: Tensor) -> Tensor:
    """Partial autocorrelations from the coefficients [*r, p] of an autoregression, by Levinson's recursion backwards.
    The autoregression is stationary if all are inside (-1, 1)."""
    partial = []
    while weights.shape[-1]:
        last, rest = weights[..., -1:], weights[..., :-1]
        partial.append(last)
        outside = last.abs() >= 1
        weights = torch.where(
            outside, 0.0, (rest + last * rest.flip(-1)) / torch.where(outside, 1.0, 1 - last.square())
        )
    return torch.cat(partial[::-1], -1)


def at_edge(weights: Tensor) -> bool:
    """Whether an autoregression with coefficients [p] is stationary only up to rounding."""
    return bool((partial_autocorrelations(weights.double()).abs() >= 1 - EDGE).any())


def from_partial_autocorrelations(partial: Tensor) -> Tensor:
    """The coefficients [*r, p] with these partial autocorrelations (Monahan 1984)."""
    weights = partial[..., :1]
    for order in range(1, partial.shape[-1]):
        last = partial[..., order : order + 1]
        weights = torch.cat([weights - last * weights.flip(-1), last], -1)
    return weights


def log_volume_of_weights(partial: Tensor) -> Tensor:
    r"""The log Jacobian of `from_partial_autocorrelations`.

    The step to order k multiplies by $I - r_k J$, J the reversal of k - 1 numbers, whose eigenvalues are 1 and -1.
    """
    before = torch.arange(partial.shape[-1], device=partial.device)
    return ((before + 1) // 2 * torch.log1p(-partial) + before // 2 * torch.log1p(partial)).sum(-1)


def autocovariances(weights: Tensor) -> Tensor:
    r"""Covariances [*r, p] of lags 0, ..., p - 1 of an autoregression with noise of variance 1, by Yule and Walker.

    $$\gamma_k = \sum_j \phi_j \gamma_{|k-j|} + [k = 0], \qquad k = 0, ..., p$$
    """
    p = weights.shape[-1]
    if p == 1:
        return 1 / ((1 - weights) * (1 + weights))
    unit = torch.eye(p + 1, dtype=weights.dtype, device=weights.device)
    used = constant(_used(p), weights.dtype, weights.device)
    system = unit - (weights @ used).unflatten(-1, (p + 1, p + 1))
    covariances, _ = torch.linalg.solve_ex(system, unit[:, 0])
    return covariances[..., :p]


@cache
def _used(p: int) -> tuple[tuple[bool, ...], ...]:
    """[p, (p + 1)^2], for each coefficient j the covariances |k - j| in each equation k."""
    lags = range(p + 1)
    return tuple(tuple(abs(k - j) == lag for k in lags for lag in lags) for j in range(1, p + 1))
