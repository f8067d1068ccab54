r"""The hazard of a change after r steps, from a distribution of the lengths of segments.

A segment of length $1 + X$ with X from a distribution on 0, 1, 2, ... ends after r steps, if it has at least r, with
probability $P(X = r - 1) / P(X \ge r - 1)$.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, constraints

from ..user_priors import on

SPREADS = 200.0  # standard deviations after the last step, beyond which the tail of lengths has no weight
FAR = 20.0  # standard deviations after the mean, where hazards have settled
MOST = 2_000_000  # steps of that tail
ROUNDING = 1e-8  # of a sum of that many probabilities


def is_duration(law: Any) -> bool:
    """Whether an object is a distribution of one number of 0, 1, 2, ..."""
    return isinstance(law, Distribution) and law.support == constraints.nonnegative_integer and not law.batch_shape


def log_hazards(law: Any, n_steps: int) -> Float[Tensor, "R"]:
    """The logarithm of the hazard after 1, 2, ... `n_steps` steps, in float64."""
    law = on(law, torch.zeros((), dtype=torch.float64, device="cpu"))
    reach = float(law.mean + SPREADS * law.stddev)
    places = torch.arange(n_steps + int(min(reach, MOST)) + 1, dtype=torch.float64, device="cpu")
    log_p = law.log_prob(places)
    if reach > MOST:  # the rest of the tail is what is missing to 1
        rest = -torch.expm1(log_p.logsumexp(0))
        log_p = torch.cat([log_p, torch.where(rest > ROUNDING, rest, 0.0).log().reshape(1)])
    at_least = log_p.flip(0).logcumsumexp(0).flip(0)
    ends = at_least == -torch.inf  # no segment is so long
    return torch.where(ends, 0.0, log_p - at_least)[:n_steps].clamp_max(0.0)


def settled(law: Any, least: int) -> int:
    """Steps of a segment from which on its hazard hardly changes; at least `least`, at most `MOST`."""
    law = on(law, torch.zeros((), dtype=torch.float64, device="cpu"))
    return max(least, int(min(float(law.mean + FAR * law.stddev), MOST)))
