r"""The posterior of the parameters: means, intervals and draws, and predictions that include their uncertainty.

A prediction averages over draws $\theta_1, \ldots, \theta_n$ of the parameters:

$$p(x_{t+h} \mid x_{1:t}) = \frac1n \sum_i p(x_{t+h} \mid x_{1:t}, \theta_i), \qquad
p(x_t \mid x_{1:t-1}) = \frac{\sum_i p(x_{1:t} \mid \theta_i)}{\sum_i p(x_{1:t-1} \mid \theta_i)}.$$

The first is for the series that was fitted. The second is for another series, whose earlier steps update the
parameters.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar, Unpack, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...inference.chains.contract import Smoothed
from ...inference.families import Gamma, Point, VectorFamily
from ...inference.numerics.checks import naming
from ...inference.numerics.randomness import Seed, generator_of
from ...inference.numerics.scalars import check_flag, check_integer, check_probability
from ..data.ragged import by_sequence
from ..data.series import Given, Series
from ..emissions.contract import ByGate
from ..emissions.driven import emission_at
from ..forecast import Forecast, look_ahead
from ..intervals import Interval, central_interval
from ..lagged_forecast import DRAWS as DRAWS_AHEAD
from ..lagged_forecast import observation_ahead
from ..parameters import Parameters
from ..problem import Problem
from .chain_graph import Blocks, ChainGraph, collected, is_curved
from .graph import Etas, Graph, Points
from .refinement import RELIABLE, draw_posterior
from .units import Units

DRAWS = 200  # in the average of a prediction
EXPORTED = 100  # in an export
MOST = 300  # parameters of all subjects that are refined together


def _not_refined(problem: Problem | None, values: Parameters) -> bool:
    """Whether there is no problem, or its density has no peak that is typical of it, or the parameters of all its
    subjects are too many for one curvature."""
    by_subject = problem is not None and problem.series.subjects is not None
    return (
        problem is None
        or bool(problem.dynamics.not_maximal)
        or (by_subject and sum(value.numel() for value in values.values()) > MOST)
    )


class ParameterPosterior(ABC):
    """The parameters' posterior distribution, under their names in the program.

    Attributes:
        labels: of a fit's, its model and series, which name the numbers.
    """

    labels: Any = None

    def labelled(self, model: Any, series: Any) -> Any:
        """The same posterior with these labels.

        Arguments:
            model: the model whose parameters these are.
            series: the fitted series.
        """
        known = copy(self)
        object.__setattr__(known, "labels", (model, series))
        return known

    @property
    @abstractmethod
    def mean(self) -> Parameters:
        """Posterior means."""

    @abstractmethod
    def sample(self, n: int, seed: Seed = 0) -> Parameters:
        """n draws, on a leading axis.

        Arguments:
            n: the number of draws.
            seed: a number, a `torch.Generator`, or None, torch's global generator.
        """

    def __repr__(self) -> str:
        """The kind of posterior and the means of the parameters."""
        shapes = (f"  {name}: mean of shape {list(mean.shape)}" for name, mean in self.mean.items())
        return "\n".join([type(self).__name__, *shapes])

    @property
    def refined(self) -> "ParameterPosterior":
        """The best approximation of the posterior; for exact draws, the object itself."""
        return self

    def _repr_html_(self) -> str:
        """The HTML for notebooks."""
        from ..views.pages import posterior_page

        return posterior_page(self)

    def chains(self, n: int | None = None, seed: Seed = 0) -> tuple[Parameters, tuple[int, int]]:
        """About n draws, one chain after another, with the number of chains and of draws in each; None: a default
        number, or all draws of a sampler.

        Arguments:
            n: the number of draws.
            seed: a number, a `torch.Generator`, or None, torch's global generator.
        """
        n = EXPORTED if n is None else n
        return self.sample(n, seed), (1, n)

    def interval(self, level: float = 0.9, n: int = 10_000, seed: Seed = 0, correct: bool = True) -> Interval:
        """Central intervals of each number, from the quantiles of n draws: lower and upper ends by parameter.

        Arguments:
            level: the probability of the intervals.
            n: the number of draws.
            seed: a number, a `torch.Generator`, or None, torch's global generator.
            correct: use draws of `refined`. Draws of a variational q lie too close together, because q ignores the
                dependence between the parameters and the paths.

        90 % intervals of short series contain the true value in about 80 to 95 % of the cases, by parameter, degrees of
        freedom in fewer: see docs/quality/interval_coverage.md. Intervals of `state_probs` of short copy series
        contained it in 75 to 77 % in one measurement. Exact Gibbs sampling had 78 % there, so this is a property of the
        posterior.
        """
        level, n = check_probability("level", level, proper=True), check_integer("n", n)
        draws = (self.refined if check_flag("correct", correct) else self).sample(n, seed)
        ends_of = {name: central_interval(value, level) for name, value in draws.items()}
        return Interval(*({name: ends[i] for name, ends in ends_of.items()} for i in range(2)))


@runtime_checkable
class Reader(Protocol):
    """An object, such as a model, that makes a problem of any series."""

    def problem(self, x: Any, *, horizon: int = 0, **given: Unpack[Given]) -> Problem:
        """The problem of the series x."""
        ...

    def read(self, x: Any, *, horizon: int = 0, **given: Unpack[Given]) -> Series:
        """The series x."""
        ...


class Posterior(ParameterPosterior):
    """The posterior of a `SwitchingSSM`, with predictions.

    Attributes:
        model: reads the series of predictions; the model sets it when it makes the record of a fit.
    """

    model: Reader | None

    together = False

    @property
    def _reader(self) -> Reader:
        if self.model is None:
            raise TypeError(
                "posterior: it does not belong to a SwitchingSSM, so it has no predictions; use the methods of the fit."
            )
        return self.model

    def read(self, x: Any, **given: Any) -> Series:
        """The series x, as the model reads it.

        Arguments:
            x: the series and the arguments beside it, as in `SwitchingSSM.read`.
        """
        return self._reader.read(x, **given)

    def _problem_of(self, x: Any, **given: Any) -> Problem:
        """The problem of the series x."""
        return self._reader.problem(x, **given)

    @abstractmethod
    def smooth(self, x: Any, **given: Unpack[Given]) -> Smoothed:
        """P(s_t | x) and P(z_t = 1 | x), averaged over the parameters.

        Arguments:
            x: the series and the arguments beside it, as in `read`; or a `Series`.
        """

    def forecast(self, x: Any, horizon: int, *, draws: int = DRAWS, seed: Seed = 0, **given: Unpack[Given]) -> Forecast:
        """As `SwitchingSSM.forecast`, averaged over draws of the parameters. Pass the series that was fitted.

        Arguments:
            x: the series and the arguments beside it, as in `read`; or a `Series`.
            horizon: the number of steps to forecast, at least 1.
            draws: the number of draws of the parameters.
            seed: of these draws.
        """
        horizon = check_integer("horizon", horizon)
        problem = self._problem_of(x, horizon=horizon, **given)
        problem.series.check_ahead(horizon)
        values = self._draws(problem, draws, seed)
        with naming("x"):
            ahead_by_part = [look_ahead(problem, some, horizon) for some in problem.in_turns(values)]
        ahead = ByGate(*(torch.cat(parts) for parts in zip(*ahead_by_part, strict=True)))
        if problem.emission.order:
            state, redraw = (ahead.redrawn + ahead.held).mean(0), ahead.redrawn.sum(-1).mean(0)
            parts = observation_ahead(problem, values, horizon, DRAWS_AHEAD, seed)
            return Forecast(state, redraw, *parts, problem.series, self)
        mixed = ByGate(*(weights.movedim(0, -2).flatten(-2) / len(ahead.held) for weights in ahead))
        emission = emission_at(problem.emission, problem.series, problem.series.ahead)
        forecast = Forecast.of(emission, self._all_states(problem, values), mixed, problem.series, self)
        return replace(forecast, state=(ahead.redrawn + ahead.held).mean(0))

    def log_likelihood(
        self, x: Any, *, draws: int = DRAWS, seed: Seed = 0, **given: Unpack[Given]
    ) -> Float[Tensor, "*b T"]:
        """log p(x_t | x_1..t-1, fitted data) of every step of a series that was not fitted; 0 after its end.

        Arguments:
            x: the series and the arguments beside it, as in `read`; or a `Series`.
            draws: the number of draws of the parameters.
            seed: of these draws.
        """
        problem = self._problem_of(x, **given)
        values = self._draws(problem, draws, seed)
        with naming("x"):
            increments = [problem.chain(some).filter().log_increment for some in problem.in_turns(values)]
        evidence = torch.cat(increments).cumsum(-1).logsumexp(0) - math.log(check_integer("draws", draws))
        each = evidence.diff(dim=-1, prepend=torch.zeros_like(evidence[..., :1]))
        return torch.where(problem.series.inside, each, 0.0)

    def _draws(self, problem: Problem, n: int, seed: Seed) -> Parameters:
        n = check_integer("draws", n)
        return {name: value.to(problem.series.like) for name, value in self.sample(n, seed).items()}

    @staticmethod
    def _all_states(problem: Problem, values: Parameters) -> Parameters:
        """The emission's parameters in all states of all draws, one after another, for a mixture over both."""
        n_states, tables = problem.n_states, {}
        for name, parameter in problem.emission.parameters.items():
            axis = 2 if parameter.dims[0] == "subject" else 1
            shape = (*values[name].shape[:axis], n_states, *values[name].shape[axis + 1 :])
            tables[name] = values[name].expand(shape).movedim(0, axis - 1).flatten(axis - 1, axis)
        return tables


SomeQ = TypeVar("SomeQ", bound="VariationalPosterior")


@dataclass(frozen=True, repr=False)
class VariationalPosterior(Posterior):
    """Independent blocks of conjugate families.

    Attributes:
        blocks: natural parameters of each block.
        families, collect: as in `Graph`, for parameters in the data's units.
        geometric: blocks of rates whose `mean` is the geometric mean.
        units: the units of the blocks.
        problem: the problem that was fitted; None: it is not known, and there are no `refined` draws.
        model: reads other series.
        whole: whether q comes from `problem` alone; otherwise from earlier data too, and there are no `refined` draws.
    """

    blocks: Etas
    families: Mapping[str, VectorFamily[Any]]
    collect: Callable[[Points], Parameters]
    geometric: frozenset[str] = frozenset()
    units: Units | None = None
    problem: Problem | None = None
    model: Reader | None = None
    whole: bool = True

    @staticmethod
    def of(graph: Graph, etas: Etas) -> "VariationalPosterior":
        """The distribution of the parameters with these natural parameters; those of paths are dropped.

        Arguments:
            graph: the graph of the model.
            etas: natural parameters of its blocks.
        """
        inner = {name: f.family if isinstance(f, Point) else f for name, f in graph.families.items()}
        geometric = frozenset(name for name, family in inner.items() if isinstance(family, Gamma))
        return VariationalPosterior({n: etas[n] for n in graph.families}, graph.families, graph.collect, geometric)

    @classmethod
    def of_chain(
        cls: type[SomeQ],
        etas: Etas,
        blocks: Blocks,
        units: Units,
        problem: Problem | None = None,
        model: Reader | None = None,
    ) -> SomeQ:
        """The distribution of a problem's parameters, with blocks in these units.

        Arguments:
            etas: natural parameters of the blocks.
            blocks, units, problem, model: the blocks of the problem, their units, the fitted problem and the model.
        """
        collect = partial(_in_data, collected(blocks), units, problem)
        families = {name: block.family for name, (_, block) in blocks.items()}
        return cls(etas, families, collect, units=units, problem=problem, model=model)

    @cached_property
    def refined(self) -> ParameterPosterior:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Draws of the posterior itself: see `RefinedPosterior`."""
        if not self.whole or _not_refined(self.problem, self.mean):
            return self
        return RefinedPosterior.of(self.problem, self.mean, self.model)  # type: ignore[arg-type]

    @property
    def mean(self) -> Parameters:
        """Posterior means, or geometric means; of probabilities and rates with inputs, those at the means of their
        predictors."""
        return self.collect(
            {
                name: family.mean(self.blocks[name])[..., 0].exp()
                if name in self.geometric
                else family.expected(self.blocks[name])
                for name, family in self.families.items()
            }
        )

    def sample(self, n: int, seed: Seed = 0) -> Parameters:
        n, generator = check_integer("n", n), generator_of(seed, next(iter(self.blocks.values())).device)
        return self.collect({name: f.sample(self.blocks[name], n, generator) for name, f in self.families.items()})

    @by_sequence()
    def smooth(self, x: Any, **given: Unpack[Given]) -> Smoothed:
        """The best q(paths) given q(parameters): the exact chain under expected logs of all tables.

        Its log-normaliser is a bound on the expected evidence. It is below log p(x), by more if the parameters are
        more uncertain.

        Arguments:
            x: the series and the arguments beside it, as in `read`; or a `Series`.
        """
        problem = self._problem_of(x, **given)
        assert self.units is not None
        like, units = problem.series.like, self.units.to(problem.series.like)
        fixed = {} if self.problem is None else self.problem.fixed
        problem = replace(problem, fixed={name: value.to(like) for name, value in fixed.items()})
        wide = problem.double() if is_curved(problem.emission) else problem
        etas = {name: eta.to(wide.series.like) for name, eta in self.blocks.items()}
        with naming("x"):
            smoothed = ChainGraph.of(units.problem(wide)).chain(etas).smooth()
        found = {name: part.to(like) for name, part in vars(smoothed).items() if part is not None}
        volume = units.log_volume(problem.series).to(like)
        return Smoothed(**found | {"log_normalizer": found["log_normalizer"] - volume})


def _in_data(
    inner: Callable[[Points], Parameters], units: Units, problem: Problem | None, points: Points
) -> Parameters:
    """The parameters at points in these units, in the units of the data."""
    values = units.back(inner(points))
    if problem is None:
        return values
    return problem.admitted({name: value.to(problem.series.like) for name, value in values.items()})


class DrawnParameters(ParameterPosterior):
    """Draws of the parameters, `[chains, draws, ...]`; a frozen dataclass with these attributes."""

    draws: Parameters
    diverging: Bool[Tensor, "chains draws"] | None

    @property
    def mean(self) -> Parameters:
        return {name: draws.mean((0, 1)) for name, draws in self.draws.items()}

    def sample(self, n: int, seed: Seed = 0) -> Parameters:
        """n of the draws; the numbers of copies of any two draws differ by at most one."""
        n = check_integer("n", n)
        first = next(iter(self.draws.values()))
        total = first.shape[0] * first.shape[1]
        generator = generator_of(seed, first.device)
        rounds = [torch.randperm(total, generator=generator, device=first.device) for _ in range(-(-n // total))]
        which = torch.cat(rounds)[:n]
        return {name: draws.flatten(0, 1)[which] for name, draws in self.draws.items()}

    def chains(self, n: int | None = None, seed: Seed = 0) -> tuple[Parameters, tuple[int, int]]:
        """Evenly spaced draws of each chain; None: all."""
        which = self.spaced(n)
        drawn = {name: draws[:, which].flatten(0, 1) for name, draws in self.draws.items()}
        return drawn, (next(iter(self.draws.values())).shape[0], len(which))

    def spaced(self, n: int | None) -> Int[Tensor, "m"]:
        """The numbers of the draws of each chain that `chains` takes.

        Arguments:
            n: about the number of draws of all chains; None: all draws.
        """
        n_chains, length = next(iter(self.draws.values())).shape[:2]
        if n is None:
            return torch.arange(length, device="cpu")
        return torch.linspace(0, length - 1, max(2, min(length, n // n_chains)), device="cpu").round().long()


@dataclass(frozen=True, repr=False)
class SampledParameters(DrawnParameters):
    """Draws of the parameters, `[chains, draws, ...]`, and nothing else.

    Attributes:
        diverging: the sampler's draws at which its path diverged; it may have missed regions near them.
    """

    draws: Parameters
    diverging: Bool[Tensor, "chains draws"] | None = None


@dataclass(frozen=True, repr=False)
class DrawnPosterior(DrawnParameters, Posterior):
    """Draws of the parameters, `[chains, draws, ...]`, their states aligned.

    Attributes:
        draws: by name, `[chains, draws, ...]`.
        problem: the problem that was fitted, if the draws come from an approximation; None: they come from the
            posterior itself, or the data are not all in memory, and there are no `refined` draws.
        diverging: the sampler's draws at which its path diverged; it may have missed regions near them.
        visits: the steps in each state of the path of each draw, from a Gibbs sampler.
        model: the model that was fitted; it reads other series.
    """

    draws: Parameters
    problem: Problem | None = None
    diverging: Bool[Tensor, "chains draws"] | None = None
    model: Reader | None = None
    visits: Int[Tensor, "chains draws K"] | None = None

    @cached_property
    def refined(self) -> ParameterPosterior:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Draws of the posterior itself: see `RefinedPosterior`."""
        if _not_refined(self.problem, self.mean):
            return self
        return RefinedPosterior.of(self.problem, self.mean, self.model)  # type: ignore[arg-type]

    @by_sequence()
    def smooth(self, x: Any, **given: Unpack[Given]) -> Smoothed:
        """The mean over the draws; log p(x) is the log density of the mixture of all draws."""
        problem = self._problem_of(x, **given)
        every = {name: draws.flatten(0, 1).to(problem.series.like) for name, draws in self.draws.items()}
        fields: dict[str, Any] = {}
        evidence, n = [], next(iter(every.values())).shape[0]
        for some in problem.in_turns(every):
            with naming("x"):
                smoothed = vars(problem.chain(some).smooth())
            evidence.append(smoothed.pop("log_normalizer"))
            for name, part in smoothed.items():
                if part is not None:
                    fields[name] = fields.get(name, 0.0) + part.sum(0) / n
        return Smoothed(log_normalizer=torch.cat(evidence).logsumexp(0) - math.log(n), **fields)


@dataclass(frozen=True, repr=False)
class RefinedPosterior(DrawnPosterior):
    """Draws of the posterior itself, by importance sampling around its peak: see `refinement`.

    Attributes:
        pareto_k: the shape of the tail of the importance weights. Below 0.7 the draws come from the posterior.
            Otherwise they come from the normal at its peak; NaN: there was too much data to weight draws.
    """

    pareto_k: float = math.nan

    @property
    def reliable(self) -> bool:
        """Whether the draws come from the posterior itself."""
        return self.pareto_k < RELIABLE

    @staticmethod
    def of(problem: Problem, near: Parameters, model: Reader | None = None) -> "RefinedPosterior":
        """Draws around the peak near these parameters."""
        draws, k = draw_posterior(problem, near)
        return RefinedPosterior({name: value.unsqueeze(0) for name, value in draws.items()}, pareto_k=k, model=model)
