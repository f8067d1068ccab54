r"""What a fit knows of the parameters: means, intervals and draws, and predictions that take their uncertainty in.

A prediction averages over draws $\theta_1, \ldots, \theta_n$ of the parameters:

$$p(x_{t+h} \mid x_{1:t}) = \frac1n \sum_i p(x_{t+h} \mid x_{1:t}, \theta_i), \qquad
p(x_t \mid x_{1:t-1}) = \frac{\sum_i p(x_{1:t} \mid \theta_i)}{\sum_i p(x_{1:t-1} \mid \theta_i)}.$$

The first is for the series that was fitted; the second is for one that was not, and lets it teach the parameters.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.chains.contract import Chain, Smoothed
from ...inference.numerics.randomness import Seed, check_draws, generator_of
from ..data.series import Given
from ..emissions.contract import ByGate
from ..forecast import Forecast, Interval, central_interval, check_horizon, look_ahead
from ..model import SwitchingSSM
from ..parameters import Parameters, moved
from ..problem import Problem
from .graph import Blocks, Etas, Graph, blocks_of, drawn, expected

DRAWS = 200  # that a prediction averages over


class ParameterPosterior(ABC):
    """The parameters' posterior distribution, under their names in the program."""

    @property
    @abstractmethod
    def mean(self) -> Parameters:
        """Posterior means."""

    @abstractmethod
    def sample(self, n: int, seed: Seed = 0) -> Parameters:
        """n draws, on a leading axis."""

    def __repr__(self) -> str:
        """The kind of posterior and the means of the parameters."""
        shapes = (f"  {name}: mean of shape {list(mean.shape)}" for name, mean in self.mean.items())
        return "\n".join([type(self).__name__, *shapes])

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        from ..views.pages import posterior_page

        return posterior_page(self)

    def chains(self, n: int, seed: Seed = 0) -> tuple[Parameters, tuple[int, int]]:
        """About n draws, and how many chains of how many draws each they are, one chain after another."""
        return self.sample(n, seed), (1, n)

    def interval(self, level: float = 0.9, n: int = 10_000, seed: Seed = 0) -> Interval:
        """Central intervals of each number, from the quantiles of n draws: lower and upper ends by parameter."""
        found = {name: central_interval(draws, level) for name, draws in self.sample(n, seed).items()}
        return Interval(*({name: ends[i] for name, ends in found.items()} for i in range(2)))


class Posterior(ParameterPosterior):
    """The same of a `SwitchingSSM`, which predicts."""

    model: SwitchingSSM

    @abstractmethod
    def smooth(self, x: Any, **given: Unpack[Given]) -> Smoothed:
        """P(s_t | x) and P(z_t = 1 | x), the parameters averaged out."""

    def forecast(self, x: Any, horizon: int, *, draws: int = DRAWS, seed: Seed = 0, **given: Unpack[Given]) -> Forecast:
        """As `SwitchingSSM.forecast`, averaged over draws of the parameters. Give the series that was fitted."""
        check_horizon(horizon)
        problem = self.model.problem(x, horizon=horizon, **given)
        problem.series.check_ahead(horizon)
        values = self._draws(problem, draws, seed)
        found = [look_ahead(problem, some, horizon) for some in problem.in_turns(values)]
        ahead = ByGate(*(torch.cat(parts) for parts in zip(*found, strict=True)))
        mixed = ByGate(*(weights.movedim(0, -2).flatten(-2) / draws for weights in ahead))
        forecast = Forecast.of(self.model.emission, self._all_states(values), mixed, problem.series, self)
        return replace(forecast, state=(ahead.redrawn + ahead.held).mean(0))

    def log_likelihood(
        self, x: Any, *, draws: int = DRAWS, seed: Seed = 0, **given: Unpack[Given]
    ) -> Float[Tensor, "*b T"]:
        """log p(x_t | x_1..t-1, what was fitted) of every step of a series that was not fitted; 0 beyond its end."""
        problem = self.model.problem(x, **given)
        values = self._draws(problem, draws, seed)
        increments = [problem.chain(some).filter().log_increment for some in problem.in_turns(values)]
        evidence = torch.cat(increments).cumsum(-1).logsumexp(0) - math.log(draws)
        each = evidence.diff(dim=-1, prepend=torch.zeros_like(evidence[..., :1]))
        return torch.where(problem.series.inside, each, 0.0)

    def _draws(self, problem: Problem, n: int, seed: Seed) -> Parameters:
        check_draws(n, "draws")
        return {name: value.to(problem.series.observations) for name, value in self.sample(n, seed).items()}

    def _all_states(self, values: Parameters) -> Parameters:
        """The emission's parameters in all states of all draws, one after another: a mixture over both is one."""
        n_states = self.model.n_states
        return {
            name: values[name].expand(-1, n_states, *values[name].shape[2:]).flatten(0, 1)
            for name in self.model.emission.parameters
        }


@dataclass(frozen=True, repr=False)
class VariationalPosterior(Posterior):
    """Independent blocks of conjugate families.

    Attributes:
        model: the model with the prior that was used.
        blocks: natural parameters of each block.
        about: [F], from which locations are counted in the blocks.
    """

    model: SwitchingSSM
    blocks: Etas
    about: Float[Tensor, "F"]

    @property
    def mean(self) -> Parameters:
        return expected(self._blocks, self.blocks, self.about)

    def sample(self, n: int, seed: Seed = 0) -> Parameters:
        return drawn(self._blocks, self.blocks, self.about, n, generator_of(seed, self.about.device))

    def smooth(self, x: Any, **given: Unpack[Given]) -> Smoothed:
        """The best q(paths) given q(parameters): the exact chain under expected logs of all tables.

        Its log-normaliser is the expected evidence's bound: it lies below log p(x), the more so the less is known.
        """
        return self.chain(x, **given).smooth()

    def chain(self, x: Any, **given: Unpack[Given]) -> Chain:
        """The chain over paths of q."""
        problem = self.model.problem(x, **given)
        like, about = problem.series.observations, self.about.to(problem.series.observations)
        assert problem.prior is not None
        shifted = replace(problem, series=problem.series.shifted(about), prior=moved(problem.prior, -about))
        return Graph(shifted, about).chain({name: eta.to(like) for name, eta in self.blocks.items()})

    @cached_property
    def statistics(self) -> Etas:
        """Expected statistics of each block."""
        return {name: block.family.mean(self.blocks[name]) for name, (_, block) in self._blocks.items()}

    @property
    def _blocks(self) -> Blocks:
        return blocks_of(self.model.dynamics, self.model.emission)


@dataclass(frozen=True, repr=False)
class DrawnPosterior(Posterior):
    """Draws of the parameters, `[chains, draws, ...]`, their states aligned."""

    model: SwitchingSSM
    draws: Parameters

    @property
    def mean(self) -> Parameters:
        return {name: draws.mean((0, 1)) for name, draws in self.draws.items()}

    def sample(self, n: int, seed: Seed = 0) -> Parameters:
        """n of the draws: without replacement if there are as many."""
        first = next(iter(self.draws.values()))
        total = first.shape[0] * first.shape[1]
        generator = generator_of(seed, first.device)
        if n <= total:
            which = torch.randperm(total, generator=generator, device=first.device)[:n]
        else:
            which = torch.randint(total, (n,), generator=generator, device=first.device)
        return {name: draws.flatten(0, 1)[which] for name, draws in self.draws.items()}

    def chains(self, n: int, seed: Seed = 0) -> tuple[Parameters, tuple[int, int]]:
        """Of each chain every so many'th draw."""
        n_chains, length = next(iter(self.draws.values())).shape[:2]
        each = max(2, min(length, n // n_chains))
        which = torch.linspace(0, length - 1, each).round().long()
        return {name: draws[:, which].flatten(0, 1) for name, draws in self.draws.items()}, (n_chains, each)

    def smooth(self, x: Any, **given: Unpack[Given]) -> Smoothed:
        """The mean over the draws; log p(x) is that of the mixture of all draws."""
        problem = self.model.problem(x, **given)
        every = {name: draws.flatten(0, 1).to(problem.series.observations) for name, draws in self.draws.items()}
        found = [problem.chain(some).smooth() for some in problem.in_turns(every)]
        there = [name for name, part in vars(found[0]).items() if part is not None]
        fields = {name: torch.cat([getattr(part, name) for part in found]) for name in there}
        total = fields.pop("log_normalizer")
        evidence = total.logsumexp(0) - math.log(len(total))
        return Smoothed(log_normalizer=evidence, **{name: part.mean(0) for name, part in fields.items()})
