"""Normal densities and moments as the textbook writes them, one step and state at a time: the oracle of the tests."""

import math

import torch
from torch import Tensor


def multivariate_normal_log_density(x: Tensor, loc: Tensor, chol_precision: Tensor) -> Tensor:
    precision = chol_precision @ chol_precision.mT
    table = [
        [
            0.5 * torch.logdet(precision[k] / (2 * math.pi)) - 0.5 * (row - loc[k]) @ precision[k] @ (row - loc[k])
            for k in range(len(loc))
        ]
        for row in x
    ]
    return torch.stack([torch.stack(row) for row in table])


def normal_log_density(x: Tensor, loc: Tensor, precision: Tensor) -> Tensor:
    return multivariate_normal_log_density(x, loc, torch.diag_embed(precision.sqrt()))


def multivariate_normal_moments(x: Tensor, weights: Tensor, about: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    count, first, second = [], [], []
    for k in range(weights.shape[-1]):
        residuals = [row - about[k] for row in x]
        count.append(sum(weights[:, k]))
        first.append(sum(w * r for w, r in zip(weights[:, k], residuals, strict=True)))
        second.append(sum(w * torch.outer(r, r) for w, r in zip(weights[:, k], residuals, strict=True)))
    return torch.stack(count), torch.stack(first), torch.stack(second)


def normal_moments(x: Tensor, weights: Tensor, about: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    count, first, second = multivariate_normal_moments(x, weights, about)
    return count, first, second.diagonal(dim1=-2, dim2=-1)
