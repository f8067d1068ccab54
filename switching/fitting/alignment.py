r"""Which state is which: states have no names of their own, only steps that they explain, and levels.

The states of a draw are matched one to one to those of a reference so that the expected number of steps on which both
agree, $\sum_t P(s_t = i \mid x, \theta_{ref})\, P(s_t = j \mid x, \theta)$, is greatest (Kuhn 1955; Stephens 2000).
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributions import constraints

from ..emissions.contract import Emission
from ..parameters import Parameters
from ..problem import Problem

NEAR, UNLIKE = 0.5, 1.25  # means nearer than this share of a scale, and scales in this ratio


def match_states(problem: Problem, draws: Parameters, reference: Parameters) -> Int[Tensor, "n K"]:
    """For each of the draws `[n, ...]`, which of its states is state 0, 1, ... of the reference."""
    from scipy.optimize import linear_sum_assignment  # loads for longer than much of what is done without it takes

    expected = problem.chain(reference).smooth().state.reshape(-1, problem.n_states)
    orders = []
    for some in problem.in_turns(draws):
        state = problem.chain(some).smooth().state
        shared = expected.mT @ state.reshape(state.shape[0], -1, problem.n_states)
        orders += [linear_sum_assignment(table, maximize=True)[1] for table in shared.cpu().numpy()]
    return torch.stack([torch.from_numpy(order) for order in orders]).to(problem.series.observations.device)


def state_levels(emission: Emission, values: Parameters) -> Float[Tensor, "K"]:
    """One number a state to order it by: the sum over features of its means in units of their spread.

    Of a feature whose states differ only in scale, its standard deviations take the place of its means.
    """
    level = torch.where(only_scales(emission, values), _scale(emission, values), emission.mean(values).redrawn)
    spread = level.std(0, correction=0)
    return (level / torch.where(spread > 0, spread, 1.0)).sum(-1)


def only_scales(emission: Emission, values: Parameters) -> Bool[Tensor, "F"]:
    """Of which features the states differ in scale and hardly in their means, as what is volatile at times does."""
    mean, scale = emission.mean(values).redrawn, _scale(emission, values)
    if emission.support is not constraints.real:  # a scale that goes with the mean tells nothing more
        return torch.zeros_like(mean[0], dtype=torch.bool)
    near = mean.amax(0) - mean.amin(0) < NEAR * scale.amin(0)
    return near & (scale.amax(0) > UNLIKE * scale.amin(0))


def _scale(emission: Emission, values: Parameters) -> Float[Tensor, "K F"]:
    return emission.variance(values).redrawn.sqrt()
