"""Normal densities and moments in textbook form, one step and state at a time, as the oracle of the tests."""

import math

import torch
from torch import Tensor


def multivariate_normal_log_density(x: Tensor, loc: Tensor, chol_precision: Tensor, log_det: Tensor) -> Tensor:
    precision = chol_precision @ chol_precision.mT
    constant = log_det - x.shape[-1] * math.log(2 * math.pi)
    table = [
        [0.5 * (constant[k] - (row - loc[k]) @ precision[k] @ (row - loc[k])) for k in range(len(loc))] for row in x
    ]
    return torch.stack([torch.stack(row) for row in table])


def normal_log_density(x: Tensor, loc: Tensor, precision: Tensor, log_precision: Tensor) -> Tensor:
    """Missing features of a step are skipped."""
    return torch.cat([_row_density(row, ~torch.isnan(row), loc, precision, log_precision) for row in x])


def _row_density(row: Tensor, seen: Tensor, loc: Tensor, precision: Tensor, log_precision: Tensor) -> Tensor:
    chol = torch.diag_embed(precision[:, seen].sqrt())
    return multivariate_normal_log_density(row[seen].unsqueeze(0), loc[:, seen], chol, log_precision[:, seen].sum(-1))


def multivariate_normal_moments(x: Tensor, weights: Tensor, about: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    count, first, second = [], [], []
    none = x.new_zeros(x.shape[-1])
    for k in range(weights.shape[-1]):
        residuals = [row - about[k] for row in x]
        count.append(sum(weights[:, k], none.sum()))
        first.append(sum((w * r for w, r in zip(weights[:, k], residuals, strict=True)), none))
        second.append(
            sum((w * torch.outer(r, r) for w, r in zip(weights[:, k], residuals, strict=True)), torch.outer(none, none))
        )
    return torch.stack(count), torch.stack(first), torch.stack(second)


def normal_moments(x: Tensor, weights: Tensor, about: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The moments of each feature over the steps where it is not missing."""
    columns = []
    for f in range(x.shape[-1]):
        seen = ~torch.isnan(x[:, f])
        columns.append(multivariate_normal_moments(x[seen, f : f + 1], weights[seen], about[:, f : f + 1]))
    count, first, second = zip(*columns, strict=True)
    return torch.stack(count, -1), torch.cat(first, -1), torch.cat([table[..., 0] for table in second], -1)
