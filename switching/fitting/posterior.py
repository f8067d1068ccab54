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
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.chains.contract import Chain, Smoothed
from ..data.series import Sequences
from ..dynamics import Drive
from ..emissions.contract import ByGate
from ..forecast import Forecast
from ..parameters import Parameters
from .trajectories import Trajectories, pieces

if TYPE_CHECKING:
    from ..model import SwitchingSSM

DRAWS = 200  # that a prediction averages over
TABLE_SIZE = 2**24  # numbers in one likelihood table: draws beyond it are taken in turns


@dataclass(frozen=True)
class Interval:
    """Lower and upper ends of central intervals, by parameter."""

    lower: Parameters
    upper: Parameters


class Posterior(ABC):
    """The parameters' posterior distribution, under their names in the program."""

    model: "SwitchingSSM"

    @property
    @abstractmethod
    def mean(self) -> Parameters:
        """Posterior means."""

    @abstractmethod
    def sample(self, n: int, seed: int = 0) -> Parameters:
        """n draws, on a leading axis."""

    @abstractmethod
    def smooth(self, x: Any, *, lengths: Any = None, covariates: Any = None, dt: Any = None) -> Smoothed:
        """P(s_t | x) and P(z_t = 1 | x), the parameters averaged out."""

    def interval(self, level: float = 0.9, n: int = 10_000, seed: int = 0) -> Interval:
        """Central intervals of each number, from the quantiles of n draws."""
        return central_intervals(self.sample(n, seed), level)

    def forecast(
        self,
        x: Any,
        horizon: int,
        *,
        lengths: Any = None,
        covariates: Any = None,
        dt: Any = None,
        draws: int = DRAWS,
        seed: int = 0,
    ) -> Forecast:
        """As `SwitchingSSM.forecast`, averaged over draws of the parameters. Give the series that was fitted."""
        if not isinstance(horizon, int) or horizon < 1:
            raise ValueError(f"horizon: got {horizon!r}, expected a number of steps of at least 1.")
        series = self.model.read(x, lengths)
        n_steps = series.values.shape[-2]
        whole = self.model._drive(covariates, dt, series.values, series.batch_shape, n_steps + horizon)
        if series.lengths is not None and (whole.covariates is not None or whole.dt is not None):
            raise ValueError(
                "lengths: forecasts with covariates or dt need sequences of equal length; forecast one at a time."
            )
        values = self._draws(series, draws, seed)
        past, future = whole.at(slice(0, n_steps)), whole.at(slice(n_steps, None))
        beliefs = []
        for some in in_turns(values, series, self.model.n_states):
            state = chain_of(self.model, some, series, past).filter().state
            last = series.inside.sum(-1, keepdim=True).unsqueeze(-1) - 1
            beliefs.append(state.gather(-2, last.expand(*state.shape[:-2], 1, state.shape[-1])).squeeze(-2))
        ahead = self.model.dynamics.propagate(values, torch.cat(beliefs), future, horizon)
        mixed = ByGate(*(weights.movedim(0, -2).flatten(-2) / draws for weights in ahead))
        forecast = Forecast.of(self.model.emission, self._all_states(values), mixed)
        return replace(forecast, state=(ahead.redrawn + ahead.held).mean(0))

    def log_likelihood(
        self,
        x: Any,
        *,
        lengths: Any = None,
        covariates: Any = None,
        dt: Any = None,
        draws: int = DRAWS,
        seed: int = 0,
    ) -> Float[Tensor, "*b T"]:
        """log p(x_t | x_1..t-1, what was fitted) of every step of a series that was not fitted; 0 beyond its end."""
        series = self.model.read(x, lengths)
        drive = self.model._drive(covariates, dt, series.values, series.batch_shape, series.values.shape[-2])
        values = self._draws(series, draws, seed)
        increments = [
            chain_of(self.model, some, series, drive).filter().log_increment
            for some in in_turns(values, series, self.model.n_states)
        ]
        evidence = torch.cat(increments).cumsum(-1).logsumexp(0) - math.log(draws)
        return torch.where(series.inside, evidence.diff(dim=-1, prepend=torch.zeros_like(evidence[..., :1])), 0.0)

    def _draws(self, series: Sequences, n: int, seed: int) -> Parameters:
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"draws: got {n!r}, expected an integer of at least 1.")
        return {name: value.to(series.values) for name, value in self.sample(n, seed).items()}

    def _all_states(self, values: Parameters) -> Parameters:
        """The emission's parameters in all states of all draws, one after another: a mixture over both is one."""
        n_states = self.model.n_states
        return {
            name: values[name].expand(-1, n_states, *values[name].shape[2:]).flatten(0, 1)
            for name in self.model.emission.event_dims
        }


@dataclass(frozen=True)
class VariationalPosterior(Posterior):
    """Independent blocks of conjugate families.

    Attributes:
        model: the model with the prior that was used.
        blocks: natural parameters of each block; `pieces` has their families.
        about: [F], from which locations are counted in the blocks.
    """

    model: "SwitchingSSM"
    blocks: dict[str, Tensor]
    about: Float[Tensor, "F"]

    @property
    def mean(self) -> Parameters:
        found: Parameters = {}
        for name, (prefix, piece) in pieces(self.model.dynamics, self.model.emission).items():
            found |= {prefix + own: value for own, value in piece.mean(self.blocks[name]).items()}
        return moved(found, self.about)

    def sample(self, n: int, seed: int = 0) -> Parameters:
        generator = torch.Generator(self.about.device).manual_seed(seed)
        found: Parameters = {}
        for name, (prefix, piece) in pieces(self.model.dynamics, self.model.emission).items():
            point = piece.family.sample(self.blocks[name], n, generator)
            found |= {prefix + own: value for own, value in piece.named(point).items()}
        return moved(found, self.about)

    def smooth(self, x: Any, *, lengths: Any = None, covariates: Any = None, dt: Any = None) -> Smoothed:
        """The best q(paths) given q(parameters): the exact chain under expected logs of all tables.

        Its log-normaliser is the expected evidence's bound: it lies below log p(x), the more so the less is known.
        """
        return self.chain(x, lengths=lengths, covariates=covariates, dt=dt).smooth()

    def chain(self, x: Any, *, lengths: Any = None, covariates: Any = None, dt: Any = None) -> Chain:
        """The chain over paths of q."""
        series = self.model.read(x, lengths)
        drive = self.model._drive(covariates, dt, series.values, series.batch_shape, series.values.shape[-2])
        about = self.about.to(series.values)
        prior = moved(self.model.prior_like(series.values), -about)
        shifted = Sequences(series.values - about, series.lengths)
        family = Trajectories(self.model.dynamics, self.model.emission, prior, shifted, drive)
        return family.chain(family.make(**{n: s.to(series.values) for n, s in self.statistics.items()}))

    @cached_property
    def statistics(self) -> dict[str, Tensor]:
        """Expected statistics of each block."""
        names = pieces(self.model.dynamics, self.model.emission)
        return {name: piece.family.mean(self.blocks[name]) for name, (_, piece) in names.items()}


@dataclass(frozen=True)
class DrawnPosterior(Posterior):
    """Draws of the parameters, `[chains, draws, ...]`, their states aligned."""

    model: "SwitchingSSM"
    draws: Parameters

    @property
    def mean(self) -> Parameters:
        return {name: draws.mean((0, 1)) for name, draws in self.draws.items()}

    def sample(self, n: int, seed: int = 0) -> Parameters:
        """n of the draws: without replacement if there are as many."""
        first = next(iter(self.draws.values()))
        total = first.shape[0] * first.shape[1]
        generator = torch.Generator(first.device).manual_seed(seed)
        if n <= total:
            which = torch.randperm(total, generator=generator, device=first.device)[:n]
        else:
            which = torch.randint(total, (n,), generator=generator, device=first.device)
        return {name: draws.flatten(0, 1)[which] for name, draws in self.draws.items()}

    def smooth(self, x: Any, *, lengths: Any = None, covariates: Any = None, dt: Any = None) -> Smoothed:
        """The mean over the draws; log p(x) is that of the mixture of all draws."""
        series = self.model.read(x, lengths)
        drive = self.model._drive(covariates, dt, series.values, series.batch_shape, series.values.shape[-2])
        every = {name: draws.flatten(0, 1).to(series.values) for name, draws in self.draws.items()}
        found = [
            chain_of(self.model, some, series, drive).smooth() for some in in_turns(every, series, self.model.n_states)
        ]
        there = [name for name, part in vars(found[0]).items() if part is not None]
        fields = {name: torch.cat([getattr(part, name) for part in found]) for name in there}
        total = fields.pop("log_normalizer")
        evidence = total.logsumexp(0) - math.log(len(total))
        return type(found[0])(log_normalizer=evidence, **{name: part.mean(0) for name, part in fields.items()})


def central_intervals(draws: Parameters, level: float) -> Interval:
    """Central intervals of each number from the quantiles of draws `[n, ...]`."""
    if not 0 < level < 1:
        raise ValueError(f"level: got {level}, expected a probability between 0 and 1, such as 0.9.")
    n = len(next(iter(draws.values())))
    tail = round((1 - level) / 2 * (n - 1))
    ordered = {name: drawn.sort(dim=0).values for name, drawn in draws.items()}
    lower = {name: drawn[tail] for name, drawn in ordered.items()}
    return Interval(lower, {name: drawn[n - 1 - tail] for name, drawn in ordered.items()})


def chain_of(model: "SwitchingSSM", values: Parameters, series: Sequences, drive: Drive) -> Chain:
    """The chain over paths under parameters with leading axes `[*r, ...]`."""
    likelihood = model.emission.log_likelihood(series.values, values)
    return model.dynamics.chain(values, likelihood, drive, series.lengths)


def in_turns(values: Parameters, series: Sequences, n_states: int) -> list[Parameters]:
    """Draws `[n, ...]` in parts whose likelihood tables fit into memory."""
    n = next(iter(values.values())).shape[0]
    at_once = max(1, TABLE_SIZE // (series.values.shape[:-1].numel() * n_states))
    return [{name: v[i : i + at_once] for name, v in values.items()} for i in range(0, n, at_once)]


def moved(parameters: Parameters, by: Tensor) -> Parameters:
    """The same parameters, or prior, with locations counted from elsewhere."""
    return {
        name: table + by if name.removeprefix("background_") == "loc" else table for name, table in parameters.items()
    }
