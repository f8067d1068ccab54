r"""Forecasts: a mixture over states and gates at every horizon.

$$p(x_{T+h} \mid x_{1:T}) = \sum_{s, z} P(s_{T+h} = s, z_{T+h} = z \mid x_{1:T})\, p(x \mid s, z)$$
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..inference.numerics.cholesky import cholesky, cholesky_inverse
from ..inference.numerics.randomness import Seed, generator_of
from ..inference.numerics.scalars import check_integer, check_probability
from .data.series import Series
from .emissions.contract import ByGate, Emission
from .emissions.drawn import Drawn
from .emissions.multivariate_normal import MultivariateNormal
from .emissions.normal import Normal
from .intervals import Interval, central_interval
from .mixture import StateMixture
from .parameters import Parameters
from .peers import explains_options, missing_member
from .problem import Problem
from .seeding import seeded

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class AfterSeries:
    """Methods that forecasts of all models share; a frozen dataclass whose tensors have the batch axes of the
    series."""

    series: Series | None  # the series before the forecast
    source: Any  # the model or the posterior that made it

    def one(self, sequence: int) -> Any:
        """The forecast of one sequence, without batch axes; `ValueError` if there is no such sequence.

        Arguments:
            sequence: the number of the sequence.
        """
        if self.series is None:
            raise ValueError("forecast: got one without a series; make it with model.forecast(x, horizon).")
        n_batch = len(self.series.batch_shape)

        def part(table: Tensor) -> Tensor:
            return table.flatten(0, n_batch - 1)[sequence] if n_batch else table

        return self._alone(self.series.one(sequence), part)

    def first(self) -> Any:
        """The forecast of the first sequence; this one, if there is no other."""
        return self if self.series is None or not self.series.batch_shape else self.one(0)

    @explains_options
    def table(self, level: float = 0.9) -> "pd.DataFrame":
        """The forecast as a table: a row for each step to come, with its date or number.

        Columns: `mean`; `lower` and `upper`, the ends of the central interval; then the beliefs about states as in
        `states`: `state_0`, ..., and `redraw` of copy dynamics. The index has the sequence (if there are several), the
        time, which continues the data's, and the feature (if there are several). `to_frame` is another name.

        Arguments:
            level: the probability of the interval.

        Raises:
            ValueError: level outside (0, 1).
        """
        from .views.forecasts import table_of

        return table_of(self, level)

    to_frame = table

    def _alone(self, series: Series, part: Callable[[Tensor], Tensor]) -> Any:
        tables = {name: part(table) for name, table in vars(self).items() if isinstance(table, Tensor)}
        return replace(self, series=series, **tables)  # type: ignore[type-var]

    def plot(self, *, sequence: int = 0, level: float = 0.9) -> "Figure":
        """The end of the series and the forecast after it: see `plot_forecast` in `views`.

        Arguments:
            sequence: the number of the sequence to draw.
            level: probability of the interval.

        Raises:
            ValueError: no such sequence; level outside (0, 1).
        """
        level = check_probability("level", level, proper=True)
        model = getattr(self.source, "model", self.source)
        return model._figures().plot_forecast(model, self.one(sequence), level)

    def __repr__(self) -> str:
        """The table of the first sequence, with intervals of 90 %."""
        from .views.forecasts import LEVEL, printed, table_of, title_of

        return printed(table_of(self.first(), LEVEL), title_of(self))

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        from .views.pages import forecast_page

        return forecast_page(self)

    def __getattr__(self, name: str) -> Any:
        raise missing_member(self, name, "forecast")

    def _labelled(self, lower: Tensor, upper: Tensor) -> "ForecastInterval":
        ends = ForecastInterval(lower, upper)
        ends.of = self
        return ends


class ForecastInterval(Interval):
    """The interval of a forecast: `lower` and `upper`, `[*b, H, F]`. It prints as a table."""

    of: AfterSeries

    def to_frame(self) -> "pd.DataFrame":
        """A table with the index of `Forecast.table`, and the columns `lower` and `upper`."""
        import pandas as pd

        from .views.forecasts import labels_of

        ends = {name: end.detach().cpu().flatten().numpy() for name, end in self._asdict().items()}
        return pd.DataFrame(ends, index=labels_of(self.of))

    def __repr__(self) -> str:
        from .views.forecasts import printed

        return printed(self.to_frame(), "Interval of a forecast")


@dataclass(frozen=True, repr=False)
class Forecast(AfterSeries):
    """State and observation at horizons 1..H after the last step of each sequence.

    It prints as a table with the dates of these steps; `table` returns it. For a model of several chains, `state` holds
    a table for each chain and `redraw` a column for each.

    Attributes:
        state: `[*b, H, K]`, the probabilities of states.
        redraw: `[*b, H]`, the probability that a step redraws.
        observation: the distribution of each observation: a mixture over states.
        mean, variance: `[*b, H, F]`, of each feature.
        series: the series before the forecast.
        source: the model or the posterior that made it.

    See Also:
        `SwitchingSSM.forecast`, which returns it; `backtest`, which scores forecasts;
        docs/how_to/forecast_and_backtest.md.

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
    series: Series | None = None
    source: Any = None

    @staticmethod
    def of(
        emission: Emission, values: Parameters, weights: ByGate, series: Series | None = None, source: Any = None
    ) -> "Forecast":
        """The forecast with joint probabilities `weights` of states and gates, each `[*b, H, K]`.

        Arguments:
            emission: of the steps to come.
            values: of its parameters.
            weights: of redrawn and of held states.
            series: what was observed.
            source: the model or the posterior.
        """
        observation = StateMixture(emission, values, weights)
        mean, variance = observation.mean, observation.variance
        state, redraw = weights.redrawn + weights.held, weights.redrawn.sum(-1)
        return Forecast(state, redraw, observation, mean, variance, series, source)

    @property
    def beliefs(self) -> dict[str, Float[Tensor, "*b H"]]:
        """The beliefs about states, by the column names of a table."""
        states = self.state if isinstance(self.state, tuple) else (self.state,)
        labels = None if self.series is None else self.series.state_names
        columns = {}
        for d, state in enumerate(states, start=1):
            chain = f"state_{d}" if isinstance(self.state, tuple) else "state"
            names = labels or range(state.shape[-1])
            columns |= {f"{chain}_{k}": column for k, column in zip(names, state.unbind(-1), strict=True)}
        if not getattr(getattr(self.source, "model", self.source), "holds", False):
            return columns
        if not isinstance(self.state, tuple):
            return columns | {"redraw": self.redraw}
        return columns | {f"redraw_{d}": column for d, column in enumerate(self.redraw.unbind(-1), start=1)}

    def _alone(self, series: Series, part: Callable[[Tensor], Tensor]) -> "Forecast":
        mixture = self.observation
        weights = ByGate(*map(part, mixture.weights))
        state = tuple(map(part, self.state)) if isinstance(self.state, tuple) else part(self.state)
        observation = StateMixture(mixture.emission.cut(part), mixture.values, weights)
        mean, variance = part(self.mean), part(self.variance)
        return Forecast(state, part(self.redraw), observation, mean, variance, series, self.source)

    @property
    def probs(self) -> Float[Tensor, "*b H C"]:
        """P(category) at each horizon, for categorical observations; `TypeError` for others."""
        return self.observation.probs

    @explains_options
    def interval(self, level: float = 0.9, n: int = 20_000, seed: Seed = 0) -> ForecastInterval:
        """Lower and upper ends of the central interval of each feature, `[*b, H, F]`.

        These are quantiles of the mixture over states. If the emission's distribution has no `cdf` or no variance
        (which bounds the search), they are quantiles of n draws.

        Arguments:
            level: the probability of the interval.
            n: the number of draws, where quantiles come from draws.
            seed: of these draws.
        """
        level, n = check_probability("level", level, proper=True), check_integer("n", n, least=2)
        generator_of(seed)
        with suppress(NotImplementedError):
            return self._labelled(*(self.observation.quantile(p) for p in ((1 - level) / 2, (1 + level) / 2)))
        with seeded(seed, self.mean):
            return self._labelled(*central_interval(self.observation.sample((n,)), level))


def normal_mixture(
    weights: Float[Tensor, "*b M"], loc: Float[Tensor, "*b M F"], covariance: Float[Tensor, "*b M F F"]
) -> StateMixture:
    """A mixture of normal observations."""
    n_features = loc.shape[-1]
    if n_features == 1:
        emission = Drawn(Normal(1), loc, 1 / covariance.squeeze(-1))
    else:
        emission = Drawn(MultivariateNormal(n_features), loc, cholesky_inverse(cholesky(covariance)))
    return StateMixture(emission, {}, ByGate(weights, torch.zeros_like(weights)))


def look_ahead(problem: Problem, values: Parameters, horizon: int) -> ByGate:
    """P(s, z | x) at each of the `horizon` steps after the end of x: `[*r, *b, H, K]` for z = 1 and for z = 0."""
    parts = problem.by_group(lambda part: part.dynamics.ahead(values, part.chain(values), part.series.ahead, horizon))
    return ByGate(*(problem.of_all(list(tables), 2) for tables in zip(*parts, strict=True)))
