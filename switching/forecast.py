r"""What a model says of the future: a mixture over states and gates at every horizon.

$$p(x_{T+h} \mid x_{1:T}) = \sum_{s, z} P(s_{T+h} = s, z_{T+h} = z \mid x_{1:T})\, p(x \mid s, z)$$
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from ..inference.numerics.checks import broadcast_shapes
from ..inference.numerics.randomness import Seed, generator_of
from ..inference.numerics.records import brief
from ..inference.numerics.scalars import check_integer, check_probability
from .data.series import Series
from .emissions.contract import ByGate, Emission
from .parameters import Parameters
from .problem import Problem
from .seeding import seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BISECTIONS = 80


class StateMixture(TorchDistribution):
    """An observation whose state and gate have the probabilities `weights`: batch `[*b, H]`, event `[F]`."""

    arg_constraints: dict = {}  # noqa: RUF012 the interface of torch.distributions

    def __init__(self, emission: Emission, values: Parameters, weights: ByGate) -> None:
        self.emission, self.values, self.weights = emission, values, weights
        batch_shape = weights.redrawn.shape[:-1]
        super().__init__(batch_shape, torch.Size((emission.n_features,)), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, 1)

    def log_prob(self, value: Tensor) -> Tensor:
        value = value.expand(broadcast_shapes(value.shape, self.batch_shape + self.event_shape))
        likelihood = self.emission.log_likelihood(value, self.values)
        joint = [(log + w.log()).logsumexp(-1) for log, w in zip(likelihood, self.weights, strict=True)]
        return torch.logaddexp(joint[0], joint[1])

    def sample(self, sample_shape: torch.Size | tuple[int, ...] = ()) -> Tensor:
        n_states = self.weights.redrawn.shape[-1]
        joint = torch.cat(tuple(self.weights), -1)
        drawn = torch.distributions.Categorical(probs=joint).sample(torch.Size(sample_shape))
        return self.emission.sample_at(self.values, drawn % n_states, (drawn < n_states).to(joint.dtype))

    @property
    def mean(self) -> Tensor:
        return self._expect(self.emission.mean(self.values))

    @property
    def variance(self) -> Tensor:
        mean, variance = self.emission.mean(self.values), self.emission.variance(self.values)
        centre = self.mean.unsqueeze(-2)
        spread = ByGate(*(v + (m - centre) ** 2 for m, v in zip(mean, variance, strict=True)))
        return self._expect(spread)

    @property
    def probs(self) -> Tensor:
        """P(category), of symbols."""
        return self._expect(self.emission.category_probs(self.values))

    def cdf(self, value: Tensor) -> Tensor:
        """P(x_f <= value) of each feature by itself."""
        return self._expect(self.emission.cdf(value.unsqueeze(-2), self.values)).clamp(0.0, 1.0)

    def quantile(self, p: float) -> Tensor:
        """The least value of each feature, by itself, that is not exceeded with probability p: `[*b, H, F]`.

        By bisection on the distribution function, between bounds of Chebyshev's inequality in every state.
        """
        mean, variance = self.emission.mean(self.values), self.emission.variance(self.values)
        wide = (1 / min(p, 1 - p)) ** 0.5
        low, high = (
            torch.stack([f(m + sign * wide * v.sqrt(), -2) for m, v in zip(mean, variance, strict=True)])
            for f, sign in ((torch.amin, -1.0), (torch.amax, 1.0))
        )
        whole = self.emission.support.is_discrete
        low, high = (end.expand(*self.batch_shape, -1).clone() for end in (low.amin(0), high.amax(0)))
        low, high = (low.floor() - 1, high.ceil()) if whole else (low, high)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            middle = middle.floor() if whole else middle
            enough = self.cdf(middle) >= p
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        return high

    def _expect(self, quantity: ByGate) -> Tensor:
        """The mixture's expectation of a quantity [..., K, F] of states and gates: [*b, H, F]."""
        return sum((w.unsqueeze(-1) * q).sum(-2) for w, q in zip(self.weights, quantity, strict=True))  # type: ignore[return-value]


class Interval(NamedTuple):
    """Lower and upper ends of central intervals: tensors, or tensors by name of a parameter."""

    lower: Any
    upper: Any

    def __repr__(self) -> str:
        return brief(self)


class AfterSeries:
    """What forecasts of all models share; a frozen dataclass whose tensors have the batch axes of the series."""

    series: Series | None  # that it goes on from
    source: Any  # the model or the posterior that made it

    def one(self, sequence: int) -> Any:
        """That of one sequence, without batch axes; `ValueError` where there is no such sequence."""
        if self.series is None:
            raise ValueError("forecast: got one that knows no series; make it with model.forecast(x, horizon).")
        n_batch = len(self.series.batch_shape)

        def part(table: Tensor) -> Tensor:
            return table.flatten(0, n_batch - 1)[sequence] if n_batch else table

        return self._alone(self.series.one(sequence), part)

    def _alone(self, series: Series, part: Callable[[Tensor], Tensor]) -> Any:
        tables = {name: part(table) for name, table in vars(self).items() if isinstance(table, Tensor)}
        return replace(self, series=series, **tables)  # type: ignore[type-var]

    def plot(self, *, sequence: int = 0, level: float = 0.9) -> "Figure":
        """The end of the series and the forecast after it: see `plot_forecast` in `views`.

        Arguments:
            sequence: which one to draw, of several.
            level: probability of the interval.

        Raises:
            ValueError: no such sequence; level outside (0, 1).
        """
        level = check_probability("level", level, proper=True)
        model = getattr(self.source, "model", self.source)
        return model._figures().plot_forecast(self.one(sequence), level)

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        from .views.pages import forecast_page

        return forecast_page(self)


@dataclass(frozen=True, repr=False)
class Forecast(AfterSeries):
    """State and observation at horizons 1..H after the last step of each sequence.

    Of a model of several chains, `state` holds a table for each chain and `redraw` a column.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal())
        >>> model = model.with_values(redraw_prob=0.1, state_probs=[0.5, 0.5], loc=[[0.0], [5.0]], scale=[[1.0], [1.0]])
        >>> model.forecast([0.2, -0.1, 5.3, 4.9], horizon=2).mean.round(decimals=2)
        tensor([[4.7500],
                [4.5200]], dtype=torch.float64)
    """

    state: Float[Tensor, "*b H K"] | tuple[Float[Tensor, "*b H _"], ...]
    redraw: Float[Tensor, "*b H"] | Float[Tensor, "*b H D"]
    observation: StateMixture
    mean: Float[Tensor, "*b H F"]
    variance: Float[Tensor, "*b H F"]
    series: Series | None = None  # that it goes on from
    source: Any = None  # the model or the posterior that made it

    @staticmethod
    def of(
        emission: Emission, values: Parameters, weights: ByGate, series: Series | None = None, source: Any = None
    ) -> "Forecast":
        """The forecast whose states and gates have the joint probabilities `weights`, each `[*b, H, K]`."""
        observation = StateMixture(emission, values, weights)
        mean, variance = observation.mean, observation.variance
        state, redraw = weights.redrawn + weights.held, weights.redrawn.sum(-1)
        return Forecast(state, redraw, observation, mean, variance, series, source)

    def __repr__(self) -> str:
        """How far it looks, and the first and last mean of the first sequence."""
        shape, flat = list(self.mean.shape), self.mean.detach().reshape(-1, *self.mean.shape[-2:])[0]
        first, last = ([f"{number:.4g}" for number in flat[step].tolist()] for step in (0, -1))
        return f"Forecast of shape {shape}: mean {', '.join(first)} after 1 step, {', '.join(last)} after {len(flat)}"

    @property
    def beliefs(self) -> dict[str, Float[Tensor, "*b H"]]:
        """What a table says of states, by the heads of its columns."""
        states = self.state if isinstance(self.state, tuple) else (self.state,)
        found = {}
        for d, state in enumerate(states, start=1):
            chain = f" {d}" if isinstance(self.state, tuple) else ""
            found |= {f"P(state{chain} {k})": column for k, column in enumerate(state.unbind(-1))}
        return found

    def _alone(self, series: Series, part: Callable[[Tensor], Tensor]) -> "Forecast":
        mixture = self.observation
        weights = ByGate(*map(part, mixture.weights))
        state = tuple(map(part, self.state)) if isinstance(self.state, tuple) else part(self.state)
        found = Forecast.of(mixture.emission, mixture.values, weights, series, self.source)
        return replace(found, state=state, redraw=part(self.redraw))

    @property
    def probs(self) -> Float[Tensor, "*b H C"]:
        """P(category) at each horizon, of symbols; `TypeError` of other observations."""
        return self.observation.probs

    def interval(self, level: float = 0.9, n: int = 20_000, seed: Seed = 0) -> Interval:
        """Lower and upper ends of the central interval of each feature, `[*b, H, F]`.

        They are quantiles of the mixture over states; where the emission's distribution has no `cdf`, or no variance to
        look within, those of n draws.
        """
        level, n = check_probability("level", level, proper=True), check_integer("n", n, least=2)
        generator_of(seed)
        if bool((self.mean.isfinite() & self.variance.isfinite()).all()):
            with suppress(NotImplementedError):
                return Interval(*(self.observation.quantile(p) for p in ((1 - level) / 2, (1 + level) / 2)))
        with seeded(seed, self.mean):
            return central_interval(self.observation.sample((n,)), level)


def central_interval(draws: Float[Tensor, "n *d"], level: float) -> Interval:
    """The central interval of each number that was drawn n times."""
    level = check_probability("level", level, proper=True)
    tail = round((1 - level) / 2 * (len(draws) - 1)) + 1
    return Interval(draws.kthvalue(tail, dim=0).values, draws.kthvalue(len(draws) + 1 - tail, dim=0).values)


def look_ahead(problem: Problem, values: Parameters, horizon: int) -> ByGate:
    """P(s, z | x) at each of the `horizon` steps after the last one: `[*r, *b, H, K]` for z = 1 and for z = 0."""
    state, last = problem.chain(values).filter().state, problem.series.last[..., None, None]
    belief = state.gather(-2, last.expand(*state.shape[:-2], 1, state.shape[-1])).squeeze(-2)
    return problem.dynamics.propagate(values, belief, problem.series.ahead, horizon)
