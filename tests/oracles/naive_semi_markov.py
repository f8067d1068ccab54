r"""Semi-Markov chains by their definition: one sequence, one step, and every segment that ends there.

With $L_k(u..t)$ the likelihood of steps u to t in state k,

$$e_t(k) = P(s_1 = k)\, p^{first}_k(t)\, L_k(1..t)
  + \sum_{u = 2}^{t} \sum_j e_{u-1}(j) A_{jk}\, p_k(t - u + 1)\, L_k(u..t)$$

in float64, differentiable. Arguments and results are those of `plain`.
"""

from itertools import product

import torch
from samplehold.inference.chains.semi_markov.plain import Place
from samplehold.inference.numerics.logs import log_sum_exp
from torch import Tensor

Results = tuple[Tensor, ...]


def _one(initial: Tensor, transition: Tensor, durations: Tensor, likelihood: Tensor) -> Tensor:
    """log p(x) of one sequence."""
    n_steps, longest, ends = len(likelihood), durations.shape[-1], []
    for t in range(n_steps):
        last, terms = t == n_steps - 1, []
        for u in range(max(0, t + 1 - longest), t + 1):
            places = (Place.FIRST, Place.ONLY) if u == 0 else (Place.MIDDLE, Place.LAST)
            enter = (
                initial
                if u == 0
                else log_sum_exp(ends[u - 1].unsqueeze(-1) + transition[min(u, len(transition)) - 1], 0)
            )
            terms.append(enter + durations[places[last], :, t - u] + likelihood[u : t + 1].sum(0))
        ends.append(log_sum_exp(torch.stack(terms), 0))
    return log_sum_exp(ends[-1], 0)


def log_normalizer(*tables: Tensor) -> Results:
    """log p(x_1..T), [*B]; failed, the last step of an impossible sequence."""
    *given, lengths = tables
    sizes = (1, 3, 3, 2)
    own = (table.shape[table.dim() - n :] for table, n in zip(given, sizes, strict=True))
    whole = (table.double().expand(*lengths.shape, *rest) for table, rest in zip(given, own, strict=True))
    initial, transition, durations, likelihood = whole
    totals = [
        _one(initial[i], transition[i], durations[i], likelihood[i][: int(lengths[i])])
        for i in product(*map(range, lengths.shape))
    ]
    total = torch.stack(totals).reshape(lengths.shape)
    return total.to(likelihood), torch.where(total.isfinite(), -1, lengths - 1)
