r"""Backtests: a walk forward through one series, with fits, filtered states and forecasts that know only the past.

At origin t the model was fitted to steps up to some $r \le t$, its states are $P(s_t \mid x_{1:t})$, and its forecasts
are the distributions $p(x_{t+h} \mid x_{1:t})$. Each is scored at the value that came: by its log density, its
continuous ranked probability score, the probability integral transform (see `scores`), and whether the central interval
holds the value.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...inference.numerics.checks import ImpossibleError
from ...inference.numerics.interrupts import importing, interruptible, may_interrupt
from ...inference.numerics.randomness import Seed
from ...inference.numerics.scalars import check_integer, check_probability, kind_of
from ..data.series import Series
from ..data.timeline import time_index
from ..emissions.contract import ByGate
from ..fitting.alignment import match_states
from ..mixture import StateMixture
from ..problem import Problem
from ..seeding import number_of, seeded
from ..views.tables import html, number
from .fits import fitted, is_model, possible, split
from .scores import crps, limits

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Backtest:
    """Forecasts of a walk forward, and their scores.

    Attributes:
        forecasts: a row for each `origin` (the label of the last step that was known) and `horizon`, with the label
            `time` of the step that was forecast, the `log_score` of its observation (log density; higher is better),
            and for each feature `observed`, `mean`, `lower`, `upper`, `covered`, `pit` and `crps` (lower is better);
            the names of several features follow, as `crps_price`. Scores are NaN where the observation is missing.
        states: a row for each origin t, with the most probable `state` and the filtered probabilities `state_0`, ...,
            P(s_t | x_1..t), under the last fit before. States keep the numbers of the first fit: each later fit's
            states are matched to the previous fit's, by the steps that they explain. Empty for models without a single
            chain of states.
        refits: a row for each fit, by its origin: the number of its steps, `converged`, `agreeing`, `n_kinds`, and its
            own numbers of the states 0, 1, ... in `order`.
        fits: the fits.
        level: probability of the intervals.
        series: the whole series.
        interrupted: whether Ctrl-C ended it; then only origins with a complete fit remain.
    """

    forecasts: pd.DataFrame
    states: pd.DataFrame
    refits: pd.DataFrame
    fits: tuple[Any, ...]
    level: float
    series: Series
    interrupted: bool = False

    @property
    def means(self) -> pd.DataFrame:
        """For each horizon the number of scored forecasts, and the means of their scores; `covered` is the share of
        intervals that hold the observation."""
        columns = [name for name in self.forecasts if name.startswith(("log_score", "crps", "covered"))]
        by_horizon: Any = self.forecasts[columns].astype(float).groupby(level="horizon")
        return by_horizon.mean().assign(n=by_horizon["log_score"].count())

    def plot(self) -> "Figure":
        """The series with the forecasts of the shortest horizon and their intervals, the filtered states, and for each
        horizon a histogram of the probability integral transforms, which is flat for the true model."""
        with importing():
            from ..views.judging_figures import plot_backtest

        return plot_backtest(self)

    def __repr__(self) -> str:
        n = self.forecasts.index.get_level_values("origin").nunique()
        ended = ", interrupted" if self.interrupted else ""
        title = (
            f"Backtest of {n} origins and {len(self.fits)} fits{ended}; means, with intervals of {100 * self.level:g}%:"
        )
        return "\n".join([title, *self.means.map(number).to_string().splitlines()])

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return html(repr(self).splitlines()[0], self.means)


@interruptible()
def backtest(
    model: Any,
    x: Any,
    refit_every: int = 20,
    horizon: int | Iterable[int] = (1, 5),
    window: int | None = None,
    *,
    first: int | None = None,
    level: float = 0.9,
    seed: Seed = 0,
    **options: Any,
) -> Backtest:
    """Walk forward through one series: refit, filter the states, forecast, and score the forecasts.

    Nothing after an origin enters its fit, its states or its forecasts, except inputs and gaps of the steps that are
    forecast, which are treated as known. Forecasts average over the posterior if the method has one that can forecast;
    otherwise they use the fitted values. Scores are exact, except `crps` where neither a mixture of normals nor whole
    numbers are forecast, and `pit` of emissions without a distribution function: these come from 10,000 draws. If the
    model has lags, scores at horizons above 1 come from 2,000 drawn paths; means are exact.

    Arguments:
        model: any model with `fit` and `forecast`.
        x: one series, as in `fit`.
        refit_every: the number of origins from one fit to the next.
        horizon: the horizons of the forecasts, in steps.
        window: the number of last steps that each fit reads; forecasts also know the steps after it. None: all steps.
        first: the number of steps before the first origin; by default `window`, or half of the series.
        level: probability of the intervals.
        seed: of the fits, and of draws.
        options: options of `fit` (`method`, `restarts`, `prior`, ...), and data beside x (`inputs`, `dt`, ...).
            `checkpoint` is a folder here, with a file for each fit.

    Ctrl-C ends the walk and keeps the origins of the fits that are complete. With a checkpoint the same call then goes
    on.

    Raises:
        KeyboardInterrupt: Ctrl-C before the first fit is complete.
        TypeError: something else than a model.
        ValueError: several sequences; weights or noise; a window, or first steps, shorter than the model needs; a
            series without a step to forecast; see `fit`.

    Gneiting & Raftery 2007, for `crps`; Brockwell 2007, *Universal residuals*, for `pit`.

    See Also:
        `select`, which chooses a model; `Forecast`, which is scored; docs/how_to/forecast_and_backtest.md, a worked
        case.

    >>> import samplehold as sh
    >>> x = [0.1, -0.2, 0.0, 5.1, 4.8, 5.0, 5.2, 0.2, -0.1, 0.3, 5.0, 4.9]
    >>> result = sh.backtest(sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)), x, horizon=1, first=8, restarts=1)
    >>> len(result.forecasts), result.states.columns.tolist()
    (4, ['state', 'state_0', 'state_1'])
    """
    if not is_model(model):
        raise TypeError(f"model: got {kind_of(model)}, expected a model such as a SwitchingSSM.")
    refit_every, level = check_integer("refit_every", refit_every), check_probability("level", level, proper=True)
    horizons = _horizons(horizon)
    given, options = split(options)
    series = _one(model.read(x, **given).detached())
    n = series.n_steps
    least = model.order + max(model.chain_sizes, default=1) + 1
    window = None if window is None else _enough("window", window, model, least)
    name = "first" if window is None or first is not None else "window"
    if first is None:
        first = max(least, n // 2) if window is None else window
    first = _enough(name, first, model, least)
    if first + horizons[0] > n:
        raise ValueError(f"{name}: the first origin has {first} steps before it, but x has {n}; no step is forecast.")
    seed = number_of(seed)
    refits_at, blocks = range(first, n - horizons[0] + 1, refit_every), []
    with suppress(KeyboardInterrupt):
        for origin in refits_at:
            with may_interrupt():
                start = 0 if window is None else max(0, origin - window)
                fit = fitted(model, series.cut(start, origin), options, seed, file=str(origin))
                if not blocks:
                    _check_parameters("first" if window is None else "window", origin - start, fit)
                stop = min(origin + refit_every, n - horizons[0] + 1)
                order = _order(fit, blocks[-1] if blocks else None)
                blocks.append(Block(fit, order, series, start, range(origin, stop), horizons, level))
    tables: list[tuple[pd.DataFrame, ...]] = []
    with torch.no_grad(), seeded(seed, series.like), possible(model, options), suppress(KeyboardInterrupt):
        for block in blocks:  # those that are complete are scored after Ctrl-C too
            with may_interrupt(anyway=True):
                tables.append((block.forecasts(), block.states(), block.refit()))
    if not tables:
        raise KeyboardInterrupt
    fits = tuple(block.fit for block in blocks[: len(tables)])
    forecasts, states, refits = (pd.concat(part) for part in zip(*tables, strict=True))
    return Backtest(forecasts, states, refits, fits, level, series, len(fits) < len(refits_at))


def _horizons(horizon: Any) -> tuple[int, ...]:
    several = horizon if isinstance(horizon, Iterable) else (horizon,)
    horizons = tuple(sorted({check_integer("horizon", one) for one in several}))
    if not horizons:
        raise ValueError("horizon: got none; give the steps ahead that are forecast, such as [1, 5].")
    return horizons


def _one(series: Series) -> Series:
    """The only sequence, without batch axes."""
    if series.n_sequences != 1:
        raise ValueError(
            f"x: got {series.n_sequences} sequences, but a backtest walks through one; give one at a time."
        )
    for name in series.known:
        if name in ("weights", "noise"):
            raise ValueError(f"{name}: was given, but forecasts are not scored with any; leave it out.")
    return series.one(0)


def _enough(name: str, steps: Any, model: Any, least: int) -> int:
    """A number of steps that a fit reads."""
    steps = check_integer(name, steps)
    if steps < least:
        lags = f" and {model.order} lag(s)" if model.order else ""
        raise ValueError(
            f"{name}: got {steps} step(s), but a fit of {max(model.chain_sizes, default=1)} state(s){lags} needs at "
            f"least {least}; give more."
        )
    return steps


def _check_parameters(name: str, steps: int, fit: Any) -> None:
    n_features = fit.model.n_features
    if steps * n_features < fit.n_parameters:
        raise ValueError(
            f"{name}: got {steps} step(s) of {n_features} feature(s), fewer numbers than the model's "
            f"{fit.n_parameters} free parameters; give more steps, or a smaller model."
        )


@torch.no_grad()
def _order(fit: Any, before: "Block | None") -> tuple[int, ...]:
    """The numbers in this fit of the states of the first fit; empty for models without a single chain of states."""
    problem = fit.model.problem(fit.series)
    if fit.model.chain_name or not isinstance(problem, Problem):
        return ()
    if before is None:
        return tuple(range(problem.n_states))
    values, like = fit.model.values_like(problem.series.like), problem.series.like
    one, earlier = {name: value.unsqueeze(0) for name, value in values.items()}, before.fit.model.values_like(like)
    try:
        match = match_states(problem, one, earlier)[0].tolist()
    except ImpossibleError:  # a step that is new has no probability under the fit before
        match = match_states(before.fit.model.problem(before.fit.series), one, earlier)[0].tolist()
    return tuple(match[number] for number in before.order)


@dataclass(frozen=True)
class Block:
    """The origins from one fit to the next.

    Attributes:
        order: see `_order`.
        start: the first step that the fit and the forecasts know.
        origins: the numbers of steps before each origin; the steps of the fit end at the first one.
    """

    fit: Any
    order: tuple[int, ...]
    series: Series
    start: int
    origins: range
    horizons: tuple[int, ...]
    level: float

    @property
    def labels(self) -> pd.Index:
        """The labels of all steps."""
        return time_index(self.series.index_of(), self.series.n_steps)

    def refit(self) -> pd.DataFrame:
        """The row of the fit."""
        origin = self.origins[0]
        row = {"n_steps": origin - self.start, "converged": self.fit.converged}
        row |= {"agreeing": self.fit.agreeing, "n_kinds": self.fit.n_kinds, "order": self.order}
        return pd.DataFrame([row], index=pd.Index(self.labels[[origin - 1]], name="origin"))

    def states(self) -> pd.DataFrame:
        """The filtered states of each origin."""
        index = self.labels[self.origins.start - 1 : self.origins.stop - 1].rename("origin")
        if not self.order:
            return pd.DataFrame(index=index)
        filtered = self.fit.model.filter(self.series.cut(self.start, self.origins[-1])).state
        probs = filtered[self.origins[0] - 1 - self.start :, list(self.order)].cpu().numpy()
        names = self.series.state_names or range(probs.shape[-1])
        best = np.asarray(names, dtype=object if self.series.state_names else int)[probs.argmax(-1)]
        columns = {f"state_{name}": column for name, column in zip(names, probs.T, strict=True)}
        return pd.DataFrame({"state": best} | columns, index=index)

    def forecasts(self) -> pd.DataFrame:
        """The scored forecasts of each origin."""
        return pd.concat([self._of_origin(origin) for origin in self.origins])

    def _of_origin(self, origin: int) -> pd.DataFrame:
        ahead = min(self.horizons[-1], self.series.n_steps - origin)
        source = self.fit.posterior if hasattr(self.fit.posterior, "forecast") else self.fit.model
        forecast = source.forecast(self.series.cut(self.start, origin, ahead), ahead)
        places = torch.tensor([h - 1 for h in self.horizons if h <= ahead], device=forecast.mean.device)
        x = self.series.observations[origin + places]
        lower, upper = (end[places] for end in forecast.interval(self.level))
        tables = {"observed": x, "mean": forecast.mean[places], "lower": lower, "upper": upper}
        scores = _scores(_at(forecast.observation, places), x)
        inside = torch.where(x.isnan(), torch.nan, ((lower <= x) & (x <= upper)).to(x))
        columns = {"time": self.labels[(origin + places).tolist()], "log_score": scores.pop("log_score").cpu().numpy()}
        names = [f"_{name}" for name in self.series.features_of()] if x.shape[-1] > 1 else [""]
        for f, name in enumerate(names):
            for kind, table in (tables | {"covered": inside} | scores).items():
                columns[f"{kind}{name}"] = table[:, f].cpu().numpy()
        origins = [self.labels[origin - 1]] * len(places)
        index = pd.MultiIndex.from_arrays([origins, (places + 1).tolist()], names=["origin", "horizon"])
        return pd.DataFrame(columns, index=index)


def _at(mixture: StateMixture, places: Tensor) -> StateMixture:
    """The mixture at some of its steps."""

    def some(table: Tensor) -> Tensor:
        return table[places]

    return StateMixture(mixture.emission.cut(some), mixture.values, ByGate(*map(some, mixture.weights)))


def _scores(mixture: StateMixture, x: Tensor) -> dict[str, Tensor]:
    """Scores by name: `[H]` of the observation, `[H, F]` of each feature; NaN where missing."""
    below, at = limits(mixture, x)
    pit = below + torch.rand(x.shape, dtype=x.dtype, device="cpu").to(x) * (at - below)
    density = mixture.log_prob(x).masked_fill(x.isnan().all(-1), torch.nan)
    return {"log_score": density, "pit": pit, "crps": crps(mixture, x)}
