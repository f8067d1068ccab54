r"""Matching and ordering of states, by the steps that they explain and by their levels.

States of a draw and of a reference are matched one to one. The match maximises the expected number of steps on which
both agree, $\sum_t P(s_t = i \mid x, \theta_{ref})\, P(s_t = j \mid x, \theta)$ (Kuhn 1955; Stephens 2000).
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributions import constraints

from ..emissions.contract import Emission
from ..parameters import Parameters
from ..problem import Problem

NEAR, UNLIKE = 0.5, 1.25  # means nearer than this share of a scale, and scales in this ratio
ROUNDING = 1e-9  # share of a location or of a scale, below which two states are equal in it


def match_states(problem: Problem, draws: Parameters, reference: Parameters) -> Int[Tensor, "n K"]:
    """For each draw of `[n, ...]`, the numbers of its states that match states 0, 1, ... of the reference. Known
    states match themselves."""
    expected = problem.chain(reference).smooth().state.reshape(-1, problem.n_states)
    orders = []
    for some in problem.in_turns(draws):
        state = problem.chain(some).smooth().state
        orders.append(match_shared(problem, expected.mT @ state.reshape(state.shape[0], -1, problem.n_states)))
    return torch.cat(orders)


def match_shared(problem: Problem, shared: Float[Tensor, "n K K"]) -> Int[Tensor, "n K"]:
    """`match_states` from the expected numbers of steps that each state of the reference shares with each state of a
    draw."""
    from scipy.optimize import linear_sum_assignment  # slow to import

    known = torch.zeros(problem.n_states, device=shared.device).to(shared)
    known[problem.known_states] = 1.0 + problem.series.n_sequences * problem.series.n_steps  # these keep their numbers
    orders = [linear_sum_assignment(table, maximize=True)[1] for table in (shared + known.diag()).cpu().numpy()]
    return torch.stack([torch.from_numpy(order) for order in orders]).to(problem.series.like.device)


def state_levels(emission: Emission, values: Parameters) -> Float[Tensor, "K"]:
    """The rank of each state, by which states are ordered: by the location of the first feature. Equal ones are
    ordered by the locations of the next features, then by the scales of the features."""
    mean, scale = emission.mean(values).redrawn.double(), _scale(emission, values).double()
    unit = ROUNDING * torch.maximum(mean.abs(), scale.nan_to_num(0.0, posinf=0.0)).amax(0)
    keys = torch.cat([mean / unit, scale / unit], -1).nan_to_num(0.0).round()
    order = np.lexsort(keys.mT.flip(0).detach().cpu().numpy())  # whose last key comes first
    return torch.from_numpy(order.argsort()).to(mean)


def only_scales(emission: Emission, values: Parameters) -> Bool[Tensor, "F"]:
    """The features whose states differ in scale and hardly in their means, such as a series of changing volatility."""
    mean, scale = emission.mean(values).redrawn, _scale(emission, values)
    if emission.support is not constraints.real:  # here the mean determines the scale
        return torch.zeros_like(mean[0], dtype=torch.bool)
    near = mean.amax(0) - mean.amin(0) < NEAR * scale.amin(0)
    return near & (scale.amax(0) > UNLIKE * scale.amin(0))


def _scale(emission: Emission, values: Parameters) -> Float[Tensor, "K F"]:
    return emission.variance(values).redrawn.sqrt()
