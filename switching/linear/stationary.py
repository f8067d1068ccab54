"""Stationary autoregressions: coefficients, partial autocorrelations and covariances."""

import torch
from torch import Tensor


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


def stationary_covariance(weights: Tensor) -> Tensor:
    r"""Covariance [*r, p, p] of p successive steps of an autoregression with noise of variance 1, by Yule and Walker.

    $$\gamma_k = \sum_j \phi_j \gamma_{|k-j|} + [k = 0], \qquad k = 0, ..., p$$
    """
    p = weights.shape[-1]
    lags = torch.arange(p + 1, device=weights.device)
    unit = torch.eye(p + 1, dtype=weights.dtype, device=weights.device)
    used = unit[(lags.unsqueeze(-1) - lags[1:]).abs()]  # [k, j, |k - j|]
    system = unit - torch.einsum("...j,kji->...ki", weights, used)
    covariances, _ = torch.linalg.solve_ex(system, unit[:, 0])
    return covariances[..., (lags[:p].unsqueeze(-1) - lags[:p]).abs()]
