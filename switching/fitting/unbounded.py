"""Ends of maximum likelihood at which a state sits on a single point, where the likelihood has no maximum.

Any data have such ends: a state on one or two observations that happen to be equal. They are passed over for the best
end without one. If many observations are equal, such as the readings of a sensor below its floor, the narrow state is
what the data show, and other ends miss it. The weak prior bounds the likelihood, so it tells the two cases apart: both
ends continue by some steps of EM under it.
"""

from dataclasses import replace

import torch

from ..parameters import Parameters
from ..problem import Problem
from .em import EM
from .starts import opened

STEPS = 25  # of EM under the weak prior
MARGIN = 10.0  # nats by which the narrow end has to be better then


def shows_points(problem: Problem, sound: Parameters, narrow: Parameters) -> bool:
    """Whether an end with states on single points is better by `MARGIN` nats than one without, under the weak prior.

    Arguments:
        problem: without a prior.
        sound, narrow: the parameters of both ends.
    """
    series = problem.series
    prior = problem.dynamics.default_prior(series) | problem.emission.prior_scaled(problem.n_states, series.rows)
    weak = replace(problem, prior=prior)
    ends = opened(weak, {name: torch.stack([sound[name], narrow[name]]) for name in sound})
    lower, higher = EM(weak, ends).run(STEPS).elbo[-1].tolist()
    return higher > lower + MARGIN
