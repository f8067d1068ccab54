r"""Which state is which: states have no names of their own, only steps that they explain, and levels.

The states of a draw are matched one to one to those of a reference so that the expected number of steps on which both
agree, $\sum_t P(s_t = i \mid x, \theta_{ref})\, P(s_t = j \mid x, \theta)$, is greatest (Kuhn 1955; Stephens 2000).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..emissions.contract import Emission
from ..parameters import Parameters
from ..problem import Problem


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
    """One number a state to order it by: the sum over features of its means in units of their spread."""
    mean = emission.mean(values).redrawn
    spread = mean.std(0, correction=0)
    return (mean / torch.where(spread > 0, spread, 1.0)).sum(-1)
