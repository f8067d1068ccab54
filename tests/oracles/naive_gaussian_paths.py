r"""Gaussian paths as one dense normal distribution, by definition, in float64."""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Posterior(NamedTuple):
    log_normalizer: Tensor  # []
    mean: Tensor  # [T, L]
    covariance: Tensor  # [T, L, T, L]


def posterior(linear: Tensor, square: Tensor, cross: Tensor) -> Posterior:
    """Of one sequence, [T, L], [T, L, L] and [T-1, L, L]; differentiable."""
    n_steps, n_states = linear.shape
    rows = [[torch.zeros(n_states, n_states, dtype=linear.dtype)] * n_steps for _ in range(n_steps)]
    for t in range(n_steps):
        rows[t][t] = -(square[t] + square[t].mT)
        if t + 1 < n_steps:
            rows[t + 1][t], rows[t][t + 1] = -cross[t], -cross[t].mT
    precision = torch.cat([torch.cat(row, 1) for row in rows])
    covariance = torch.linalg.inv(precision)
    mean = covariance @ linear.flatten()
    total = linear.numel() * math.log(2 * math.pi) - torch.linalg.slogdet(precision)[1] + linear.flatten() @ mean
    shape = (n_steps, n_states, n_steps, n_states)
    return Posterior(total / 2, mean.reshape(n_steps, n_states), covariance.reshape(shape))
