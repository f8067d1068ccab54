r"""The textbook's recursion: every segment's evidence in one table, then sums over the last beginning (Fearnhead 2006).

$$Z_t = \sum_{j \le t} Z_{j-1}\, h_j \prod_{s=j+1}^t (1 - h_s)\, p(x_{j..t}), \qquad Z_0 h_1 = 1$$

O(T^2) memory, in logarithms; differentiable in all tables.
"""

import torch
from samplehold.inference.chains.segment.tables import Tables
from samplehold.inference.numerics.logs import log_sum_exp
from torch import Tensor


def log_normalizer(tables: Tables) -> Tensor:
    """log p(x) [N]."""
    N, T = tables.log_base.shape
    step = torch.arange(T, device=tables.log_base.device)
    begun = step >= step.unsqueeze(-1)
    sums = tuple(torch.where(begun[..., None, None], table.unsqueeze(1), 0.0).cumsum(2) for table in tables.statistics)
    base = torch.where(begun, tables.log_base.unsqueeze(1), 0.0).cumsum(2)
    evidence = tables.evidence(sums) - tables.prior_evidence()[:, None, None] + base  # [N, begin, end]
    before = [torch.zeros(N, dtype=base.dtype, device=base.device)]  # log of Z h at each beginning
    total = before[0]
    weights: list[Tensor] = []  # by beginning, of the steps held so far
    for t in range(T):
        if t:
            here = step.new_tensor(t)
            change, hold = tables.change(here, t - step[:t])
            ends = torch.stack([before[j] + weights[j] + evidence[:, j, t - 1] for j in range(t)], -1)
            before.append(log_sum_exp(ends + change, -1))
            weights = [weights[j] + hold[:, j] for j in range(t)]
        weights.append(torch.zeros_like(total))
    last = [before[j] + weights[j] + evidence[:, j, T - 1] for j in range(T)]
    return log_sum_exp(torch.stack(last, -1), -1)
