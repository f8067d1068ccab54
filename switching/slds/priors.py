"""Priors of switching linear models, for series that are centered and scaled by feature.

They are worth a few steps. The expected noise of moves is a tenth of how much the path of a single linear model moves.
"""

from typing import Any

import torch
from torch import Tensor

from .network import Graph

WORTH = 0.1  # steps that the prior of a regression is worth
SHARE = 0.1  # of how much a path moves, that its noise is expected to be
SEEN = 1e-3  # of the variance of a feature, that the noise of sights is expected to be
WEIGHT = 0.1  # precision of the logistic regressions


def priors(graph: Graph, moved: Tensor) -> dict[str, Tensor]:
    """Natural parameters of the blocks' priors; `moved` [L] is the variance of what a path moves by."""
    layout, x = graph.layout, graph.x
    families: dict[str, Any] = graph.families
    n, k = layout.n_latent, layout.n_regimes
    unit, inputs = torch.eye(n).to(x), torch.eye(n + 1).to(x)
    persists, count = torch.cat([unit, torch.zeros_like(unit[:1])]), x.new_tensor(n + 2.0)
    mean = x.new_zeros(layout.n_chains, n)
    found = {
        "first": families["first"].natural(mean, x.new_tensor(WORTH), count, unit / count),
        "moves": families["moves"].natural(
            persists.expand(k, n + 1, n), WORTH * inputs, count, torch.diag(1 / (SHARE * moved)) / count
        ),
    }
    if layout.full_noise:
        f = layout.n_features
        df, spread = x.new_tensor(f + 2.0), torch.eye(f).to(x) / (SEEN * (f + 2))
        loc = x.new_zeros(layout.n_emissions, n + 1, f)
    else:
        df, spread = x.new_tensor(3.0), x.new_ones(1, 1) / (3 * SEEN)
        loc = x.new_zeros(layout.n_emissions, layout.n_features, n + 1, 1)
    found["sights"] = families["sights"].natural(loc, WORTH * inputs, df, spread)
    if k > 1:
        found["initial"] = x.new_ones(k)
        if layout.recurrent:
            weights = x.new_zeros(k - 1, n + k)
            found["recurrence"] = families["recurrence"].natural(weights, WEIGHT * torch.eye(n + k).to(x))
        else:
            found["transition"] = x.new_ones(k, k)
    return found


def step_variance(path: Tensor, graph: Graph) -> Tensor:
    """The variance [L] of what a path [*b, T, L] moves by in a step."""
    inside = graph.inside[..., 1:, None]
    steps = (path[..., 1:, :] - path[..., :-1, :]).square() * inside
    n = path.shape[-1]
    return (steps.reshape(-1, n).sum(0) / inside.sum().clamp_min(1)).clamp_min(1e-10)
