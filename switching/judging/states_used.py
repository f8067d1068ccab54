"""How many states a series uses, and how sure that is.

A draw of the whole path visits some of the states. The shares of draws that visit one, two, ... states are the
posterior probabilities of these numbers. A Gibbs sampler has drawn paths already. For other fits, each path is an exact
draw given parameters that are drawn from the posterior, or for EM given its values.

A model of a fixed number of states is forced to use most of them, so these numbers say most for `StickyHDP`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...inference.numerics.checks import naming
from ...inference.numerics.randomness import Seed
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_integer, check_probability
from ..parameters import Parameters
from ..problem import Problem
from ..seeding import seeded

DRAWS = 1000


@dataclass(frozen=True, repr=False)
class StatesUsed(Record):
    """The posterior of the number of states that a series uses.

    Attributes:
        probability: `[K]`, of 1, 2, ..., K states.
        numbers: `[n]`, of states in each draw of the path.
    """

    probability: Float[Tensor, "K"]
    numbers: Int[Tensor, "n"]

    @property
    def mode(self) -> int:
        """The most probable number."""
        return 1 + int(self.probability.argmax())

    @property
    def mean(self) -> float:
        """The expected number."""
        return float(self.numbers.double().mean())

    def interval(self, level: float = 0.9) -> tuple[int, int]:
        """The least and the greatest number of a central interval of at least this probability.

        Arguments:
            level: the probability of the interval.

        Raises:
            ValueError: level outside (0, 1).
        """
        tail = (1 - check_probability("level", level, proper=True)) / 2
        below = self.probability.cumsum(0)
        least = int((below <= tail).sum())
        most = int((below < 1 - tail - 1e-12).sum())
        return 1 + least, 1 + max(least, most)


@torch.no_grad()
def states_used(fit: Any, x: Any, draws: int | None, least_steps: int, seed: Seed) -> StatesUsed:
    """See `Fit.n_states_used`; x is None for the fitted series."""
    least_steps = check_integer("least_steps", least_steps)
    draws = None if draws is None else check_integer("draws", draws)
    visits = getattr(fit.posterior, "visits", None) if x is None else None
    if visits is None:
        visits = _drawn_visits(fit, fit._given(x), DRAWS if draws is None else draws, seed)
    else:
        flat = visits.flatten(0, 1)
        every = len(flat) if draws is None else min(draws, len(flat))
        visits = flat[torch.linspace(0, len(flat) - 1, every, device="cpu").round().long().to(flat.device)]
    numbers = (visits >= least_steps).sum(-1)
    k = visits.shape[-1]
    shares = torch.bincount(numbers, minlength=k + 1)[1:].double()
    return StatesUsed(shares / len(numbers), numbers)


def _drawn_visits(fit: Any, x: Any, draws: int, seed: Seed) -> Int[Tensor, "n K"]:
    """The steps in each state of drawn paths of all sequences."""
    model = fit.model
    problem = None if model.subjects or model.chain_name else model.problem(x)
    if not isinstance(problem, Problem):
        raise TypeError(f"model: got a {model.name}, expected a SwitchingSSM without parameters by subject.")
    like = problem.series.like

    def visits(values: Parameters, path: Callable[[Any], Tensor]) -> Int[Tensor, "n K"]:
        by_group = problem.by_group(lambda part: _visits(path(part.chain(values)), part.n_states))
        return torch.stack(by_group).sum(0)

    with seeded(seed, like), naming("x"):
        if fit.posterior is None:
            return visits(model.values_like(like), lambda chain: chain.sample(draws).path)
        values = {name: table.to(like) for name, table in fit.posterior.sample(draws, None).items()}
        return torch.cat([visits(some, lambda chain: chain.sample(1).path[0]) for some in problem.in_turns(values)])


def _visits(path: Int[Tensor, "n *b T"], n_states: int) -> Int[Tensor, "n K"]:
    flat = path.flatten(1)
    return torch.stack([(flat == state).sum(-1) for state in range(n_states)], -1)
