r"""How many past observations an exact filter needs: the product of what is held bounds what is left of the past.

Take two filters of one copy chain with beliefs $a, a'$ before step t - w + 1, and the same w observations after it.
Given those, the states that follow are a Markov chain, whose step k holds the old state s with the probability

$$\eta_k(s) = P(z_k{=}0 \mid s_{k-1}{=}s, x_{k:t}) = \frac{held_k(s)\, b_k(s)}{b_{k-1}(s)}, \qquad
b_{k-1}(s) = held_k(s)\, b_k(s) + \textstyle\sum_{s'} fresh_k(s')\, b_k(s'), \quad b_t = 1,$$

and else draws from $\varphi_k(s') \propto fresh_k(s')\, b_k(s')$, which does not depend on s.

**Bound.** $TV(a_t, a'_t) \le \prod_{k=t-w+1}^{t} \max_s \eta_k(s)$. Proof: the filtered $a_t$ is where this chain ends
if it starts from what a says of its first state given the w observations. Run it from both starts with the same uniform
number $u_k$ at each step, holding where $u_k < \eta_k(s)$, and the same draw from $\varphi_k$. At a step with
$u_k \ge \max_s \eta_k(s)$ both draw, and the same state; from then on the two are equal. They can differ at t only if
that happened at no step, which has the probability of the bound; and a coupling's probability of differing bounds the
total variation. QED

**Tight.** Where held steps emit alike in all states (`Gated`), $\eta_k = 1 - q_k$ for every s, and
$TV(a_t, a'_t) = \prod_k (1 - q_k)\, TV(a_{t-w}, a'_{t-w})$: the bound is the error itself, but for the factor
$TV(a_{t-w}, a'_{t-w}) \le 1$.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...switching.data.series import Series
from ...switching.model import SwitchingSSM
from .windows import Forgetting, first_windows


def filter_forgetting(model: SwitchingSSM, x: Any, tol: float) -> Forgetting:
    """The windows of `forgetting` for the exact filter of a model; see there."""
    if not model.dynamics.holds or model.dynamics.n_covariates:
        raise ValueError(
            f"layer: the model has dynamics {model.dynamics}; products of holds bound the filter of Copy(n_states) "
            "without covariates."
        )
    series = model.read(x)
    series = replace(series, observations=series.observations.double())
    found = first_windows(filter_bounds(model, series), series.observations, tol)
    window, bound = (torch.where(series.inside, table, 0) for table in (found.window, found.bound))
    return Forgetting(window, bound, tol)


def filter_bounds(model: SwitchingSSM, series: Series) -> Iterator[Float[Tensor, "*b n"]]:
    """For windows w = 1, 2, ..., T the bounds at steps w - 1, ..., T - 1; 0 where the window is all there is."""
    chain: Any = model.chain(series)  # with a gate, as was seen to: it has these two tables
    fresh = chain.log_fresh.detach()
    held = chain.log_held.detach().expand_as(fresh)
    log_bound, log_b = torch.zeros_like(fresh[..., 0]), torch.zeros_like(fresh)
    for window in range(1, fresh.shape[-2] + 1):
        n = fresh.shape[-2] - window + 1  # steps that have so many observations; their window begins at steps 0 .. n-1
        after = log_b[..., log_b.shape[-2] - n :, :]
        kept = held[..., :n, :] + after
        drawn = (fresh[..., :n, :] + after).logsumexp(-1, keepdim=True)
        before = torch.logaddexp(kept, drawn)
        log_hold = torch.where(before.isneginf(), -torch.inf, kept - before).amax(-1)
        log_bound = log_bound[..., log_bound.shape[-1] - n :] + log_hold
        log_b = before - before.amax(-1, keepdim=True)
        bound = log_bound.exp()
        bound[..., 0] = 0
        yield bound
