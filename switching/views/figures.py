"""Figures of a fitted model: what it says of a series, and of the steps after it.

Every figure is a plain `matplotlib.figure.Figure`; nothing here touches pyplot's global state.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ndtri
from torch import Tensor

from ..data.series import Sequences
from ..data.timeline import continued, time_index
from ..dynamics import Drive
from ..emissions import Bernoulli, Categorical, Emission, Gated, Poisson
from ..emissions.contract import ByGate
from ..fitting.order import state_levels
from ..forecast import StateMixture
from ..parameters import Parameters
from .arviz import chain_of, numbers
from .drawing import (
    GATE,
    INK,
    PANEL,
    STRIP,
    TimeAxis,
    draw_band,
    draw_categories,
    draw_gate,
    draw_series,
    draw_states,
    label_states,
    new_figure,
    set_title,
    state_colors,
)

if TYPE_CHECKING:
    from ..model import SwitchingSSM

LEAST_SHOWN, SHOWN_HORIZONS = 40, 4  # a forecast's figure shows at least so many steps, or horizons, before it


def plot_fit(
    model: "SwitchingSSM",
    x: Any,
    *,
    lengths: Any = None,
    covariates: Any = None,
    dt: Any = None,
    sequence: int = 0,
    level: float = 0.9,
) -> Figure:
    """A series, what the model makes of it, and where the state was drawn afresh.

    From the top: each feature with the mean of its smoothed state mixture, and a band of that mean plus and minus
    normal quantiles times the mixture's standard deviation (for a categorical symbol: the probability of each
    category); the probability of each state, stacked; the probability that a step redrew its state (for Markov
    dynamics: that the state changed). States are coloured from dark to light by their mean. The first step, a redraw
    by definition, is left out of the last panel.

    Arguments:
        x, lengths, covariates, dt: as in every method of the model; a pandas index becomes the time axis.
        sequence: which one to draw, where x holds several.
        level: probability that the band would hold if the mixture were normal.

    Raises:
        ValueError: as `model.smooth`; no such sequence; level outside (0, 1).
    """
    _check_level(level)
    series, drive = one_sequence(model, x, lengths, covariates, dt, sequence)
    seen = Posterior.of(model, series, drive)
    mixture = StateMixture(model.emission, seen.values, seen.weights)
    reach = float(ndtri(0.5 + level / 2)) * mixture.variance.sqrt()
    lower, upper = within_support(model.emission, mixture.mean - reach, mixture.mean + reach)
    band = Band(mixture.mean, lower, upper, seen.state)
    axis = TimeAxis.of(time_index(series), None if series.time is not None else drive.dt)
    figure, panels = new_figure([*[PANEL] * model.emission.n_features, STRIP, GATE])
    set_title(
        panels[0], f"Observed series, with {_shown(model.emission, f'{100 * level:g}% band')} in its smoothed state"
    )
    draw_features(panels, model.emission, seen.values, (series, axis), (band, axis), seen.weights)
    draw_states(panels[-2], axis, seen.state.numpy(), _colors(model.emission, seen.values))
    draw_gate(panels[-1], axis, seen.gate.numpy(), seen.gate_name)
    axis.mark(panels)
    return figure


def plot_forecast(
    model: "SwitchingSSM",
    x: Any,
    horizon: int,
    *,
    lengths: Any = None,
    covariates: Any = None,
    dt: Any = None,
    sequence: int = 0,
    level: float = 0.9,
) -> Figure:
    """The end of a series and the forecast after it.

    Each feature with the forecast's mean and the central interval of its mixture; under it the probability of each
    state, smoothed up to the last observation and forecast beyond.

    Arguments:
        x, lengths, sequence, level: as in `plot_fit`.
        horizon: number of steps to forecast.
        covariates, dt: of the series and of the horizon, `[*batch, T + horizon, C]` and `[*batch, T + horizon]`.

    Raises:
        ValueError: as `model.forecast`; no such sequence; level outside (0, 1).
    """
    _check_level(level)
    series, drive = one_sequence(model, x, lengths, covariates, dt, sequence, horizon)
    n_steps = series.values.shape[0]
    with torch.no_grad():
        ahead = model.forecast(series.values, horizon, covariates=drive.covariates, dt=drive.dt)
    seen = Posterior.of(model, series, drive.at(slice(0, n_steps)))
    first = max(0, n_steps - max(LEAST_SHOWN, SHOWN_HORIZONS * horizon))
    whole = TimeAxis.of(continued(time_index(series), horizon), None if series.time is not None else drive.dt)
    axis, n_past = whole.part(first, n_steps + horizon), n_steps - first
    past = replace(series, values=series.values[first:])
    figure, panels = new_figure([*[PANEL] * model.emission.n_features, STRIP])
    set_title(
        panels[0], f"Observed series, then {_shown(model.emission, f'{100 * level:g}% interval')} in the forecast"
    )
    band = Band(ahead.mean, *ahead.interval(level), ahead.state)
    both = (past, axis.part(0, n_past)), (band, axis.part(n_past, n_past + horizon))
    draw_features(panels, model.emission, seen.values, *both, ahead.observation.weights)
    states = torch.cat([seen.state[first:], ahead.state]).numpy()
    draw_states(panels[-1], axis, states, _colors(model.emission, seen.values))
    for panel in panels:
        panel.axvline(axis.edges[n_past], color="white" if panel is panels[-1] else INK, linewidth=0.9, linestyle="--")
    axis.mark(panels)
    return figure


# ---- the numbers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Posterior:
    """One sequence under the model's values."""

    values: Parameters
    weights: ByGate  # P(s_t, z_t = 1 | x) and P(s_t, z_t = 0 | x), [T, K] each
    state: Float[Tensor, "T K"]
    gate: Float[Tensor, "T"]
    gate_name: str

    @staticmethod
    def of(model: "SwitchingSSM", series: Sequences, drive: Drive) -> "Posterior":
        values = {name: value.detach() for name, value in model.values_like(series.values).items()}
        with torch.no_grad():
            chain = chain_of(model, values, series, drive)
            smoothed = chain.smooth()
            marginals = chain.marginals()
            redrawn, held = marginals.fresh, marginals.held
            if smoothed.redraw is not None:
                gate, name = smoothed.redraw, "redraw"
            else:
                gate, name = chain.change_probability(), "change"
        weights = ByGate(redrawn, torch.zeros_like(redrawn) if held is None else held)
        return Posterior(values, weights, smoothed.state, gate, name)


def one_sequence(
    model: "SwitchingSSM", x: Any, lengths: Any, covariates: Any, dt: Any, sequence: int, horizon: int = 0
) -> tuple[Sequences, Drive]:
    """The sequence of that number, cut to its length, with the names of its steps and features and what drives it."""
    series = model.read(x, lengths)
    series = replace(series, values=series.values.detach().cpu())
    n_steps, n_features = series.values.shape[-2:]
    drive = model._drive(numbers(covariates), numbers(dt), series.values, series.batch_shape, n_steps + horizon)
    flat = series.values.reshape(-1, n_steps, n_features)
    if not -len(flat) <= sequence < len(flat):
        raise ValueError(f"sequence: got {sequence}, but x holds {len(flat)} sequence(s), counted from 0.")
    time, features = series.time, series.features
    if isinstance(x, list | tuple) and isinstance(x[sequence], pd.DataFrame | pd.Series):
        own = model.read(x[sequence])
        time, features = own.time, own.features
    n = n_steps if series.lengths is None else int(series.lengths.flatten()[sequence])
    if n < n_steps and horizon and (drive.covariates is not None or drive.dt is not None):
        raise ValueError(
            "lengths: forecasts with covariates or dt need sequences of equal length; forecast one at a time."
        )
    steps = slice(0, n + horizon)
    moved = Drive(
        None
        if drive.covariates is None
        else drive.covariates.reshape(len(flat), -1, drive.covariates.shape[-1])[sequence, steps],
        None if drive.dt is None else drive.dt.reshape(len(flat), -1)[sequence, steps],
    )
    return Sequences(flat[sequence, :n], None, None if time is None else time[:n], features), moved


def within_support(emission: Emission, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of a band, kept inside what the emission can produce."""
    part = emission.emission if isinstance(emission, Gated) else emission
    return (lower.clamp(min=0.0), upper) if isinstance(part, Poisson) else (lower, upper)


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level: got {level}, expected a probability between 0 and 1, such as 0.9.")


# ---- the panels ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Band:
    """What is expected of each feature at some steps, `[T, F]` each, and the states' probabilities there."""

    mean: Tensor
    lower: Tensor
    upper: Tensor
    state: Float[Tensor, "T K"]


def draw_features(
    panels: list[Axes],
    emission: Emission,
    values: Parameters,
    observed: tuple[Sequences, TimeAxis],
    expected: tuple[Band, TimeAxis],
    weights: ByGate,
) -> None:
    """A panel for each feature: the observed steps over the expected ones, coloured by the most probable state."""
    (series, seen_at), (band, axis) = observed, expected
    means, colors = emission.mean(values).redrawn.numpy(), _colors(emission, values)
    best = band.state.argmax(-1).numpy()
    for feature in range(emission.n_features):
        panel = panels[feature]
        if isinstance(emission, Categorical):
            draw_categories(panel, axis, ((weights.redrawn + weights.held) @ values["probs"]).numpy())
            where = values["probs"].argmax(-1).double().numpy()
            texts = [f"state {k}: mostly {at:.0f}" for k, at in enumerate(where)]
        else:
            mean, lower, upper = (bound[:, feature].numpy() for bound in (band.mean, band.lower, band.upper))
            draw_band(panel, axis, best, colors, mean, *((mean, mean) if _binary(emission) else (lower, upper)))
            where = means[:, feature]
            texts = [f"state {k}: {at:.4g}" for k, at in enumerate(where)]
        draw_series(panel, seen_at, series.values[:, feature].numpy(), joined=not _binary(emission))
        panel.set_ylabel(_feature_name(series, feature))
        label_states(panel, where, texts, colors)


def _colors(emission: Emission, values: Parameters) -> list[str]:
    return state_colors(state_levels(emission, values).numpy())


def _feature_name(series: Sequences, feature: int) -> str:
    if series.features is not None:
        return series.features[feature]
    return "x" if series.values.shape[-1] == 1 else f"x[{feature}]"


def _binary(emission: Emission) -> bool:
    """Whether observations are so few distinct numbers that a band says nothing and a joining line hides them."""
    return isinstance(emission, Bernoulli | Categorical)


def _shown(emission: Emission, spread: str) -> str:
    if isinstance(emission, Categorical):
        return "the probability of each category"
    return "the probability of a 1" if isinstance(emission, Bernoulli) else f"the mean and {spread}"
