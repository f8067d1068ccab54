"""Figures of a switching linear model: a series, its regimes and states, and the flow of each regime."""

from typing import Any, Unpack

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ndtri
from torch import Tensor

from ...inference.chains.switching_gaussian.tables import stick_breaking
from ...inference.numerics.scalars import check_integer, check_probability
from ..data.series import Given
from .colors import state_colors
from .drawing import FAINT, INK, PANEL, STRIP, TimeAxis, draw_states, draw_steps, name_feature, new_figure, set_title
from .figures import ForecastFrame, draw_expected, time_axis, which
from .linear_figures import LATENT, MOST_LATENTS

MARGIN = 0.15  # of the extent of the states, around them


@torch.no_grad()
def plot_fit(model: Any, x: Any, *, sequence: int = 0, level: float = 0.9, **given: Unpack[Given]) -> Figure:
    """A series, its smoothed mean, its regimes, and the states of each chain.

    From the top: each feature with the mean of a new observation given the whole series, and its band if the mixture
    were normal; the probabilities of the regimes; the states with their bands.

    Arguments:
        x, lengths: as in every method of the model; a pandas index becomes the time axis.
        sequence: the number of the sequence to draw, if x has several.
        level: probability of the bands.

    Raises:
        ValueError: as `model.smooth`; no such sequence; level outside (0, 1).
    """
    level = check_probability("level", level, proper=True)
    whole = model.read(x, **given)
    series = whole.one(sequence).cpu()
    smoothed, axis = model.smooth(series), time_axis(series)
    figure, panels = new_figure(_heights(model))
    title = f"Observed series, with the mean and {100 * level:g}% band of an observation given all of it"
    set_title(panels[0], title + which(whole, sequence))
    mean, variance = expected(model, smoothed)
    reach = float(ndtri((1 + level) / 2))
    ends = mean, mean - reach * variance.sqrt(), mean + reach * variance.sqrt()
    draw_expected(panels, (series, axis), ends, axis)
    _draw_regimes(panels[model.n_features], axis, smoothed.state)
    spread = smoothed.covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
    _draw_latents(panels[model.n_features + 1 :], model, axis, _by_latent(smoothed.mean), reach * _by_latent(spread))
    axis.mark(panels)
    return figure


@torch.no_grad()
def plot_forecast(forecast: Any, level: float = 0.9) -> Figure:
    """The end of a series and the forecast after it, with the regimes: see `SwitchingForecast.plot`."""
    model = forecast.source
    frame = ForecastFrame.of(forecast, [*[PANEL] * model.n_features, STRIP], level)
    draw_expected(frame.panels, frame.observed, frame.expected, frame.ahead)
    seen = model.smooth(forecast.series).state[frame.first :]
    _draw_regimes(frame.panels[-1], frame.axis, torch.cat([seen, forecast.state]).cpu())
    return frame.finished()


@torch.no_grad()
def plot_flow(model: Any, x: Any = None, *, sequence: int = 0, points: int = 20, **given: Unpack[Given]) -> Figure:
    """The flow of each regime, one step from each state of two numbers, and the states of a series, colored by regime.

    For a recurrent model, arrows are drawn where their regime is the most probable next regime, averaged over the
    regime before. Other models have a panel for each regime.

    Arguments:
        x, lengths, sequence: a series whose smoothed states are drawn, and whose extent sets the limits; None: no
            series.
        points: the number of arrows along a side.

    Raises:
        ValueError: states of other lengths than 2, or a chain for each regime.
    """
    if model.n_latent != 2 or not model.layout.one_chain:
        raise ValueError(
            f"model: got {model!r}".splitlines()[0]
            + '; a flow is drawn of one chain of states of length 2: SwitchingLinearSSM(K, 2, F, "one chain").'
        )
    points = check_integer("points", points, least=2)
    like = torch.zeros((), dtype=torch.float64, device="cpu")
    values, path, regime_of = model.values_like(like), None, torch.empty(0, device="cpu")
    if x is not None:
        series = model.read(x, **given).one(sequence).cpu()
        smoothed = model.smooth(series)
        path, regime_of = smoothed.mean[0].double(), smoothed.state.argmax(-1)
    one = like.new_ones(2)
    low, high = (path.amin(0), path.amax(0)) if path is not None else (-one, one)
    room = MARGIN * (high - low).clamp_min(1e-9)
    sides = [
        torch.linspace(float(a - r), float(b + r), points, device="cpu")
        for a, b, r in zip(low, high, room, strict=True)
    ]
    grid = torch.cartesian_prod(*sides).double()
    steps = (values["transition"].unsqueeze(1) @ grid.unsqueeze(-1)).squeeze(-1) - grid
    steps = steps + values["transition_offset"].unsqueeze(1)  # [K, N, 2]
    k, recurrent = model.n_states, model.layout.recurrent
    colors = state_colors(np.arange(k))
    n = 1 if recurrent else k
    figure = Figure(figsize=(5.4 if recurrent else 4.6 * n, 4.4), layout="constrained")
    panels = figure.subplots(1, n, sharex=True, sharey=True, squeeze=False)[0]
    chosen = torch.zeros(len(grid), dtype=torch.long, device="cpu")
    if recurrent:
        u = (grid @ values["recurrence"].mT).unsqueeze(1) + values["recurrence_offset"]
        chosen = stick_breaking(u).exp().mean(1).argmax(-1)
    for place, panel in enumerate(panels):
        for regime in range(k) if recurrent else [place]:
            shown = chosen == regime if recurrent else torch.ones_like(chosen, dtype=torch.bool)
            arrows = (*grid[shown].T.numpy(), *steps[regime, shown].T.numpy())
            panel.quiver(*arrows, color=colors[regime], angles="xy", width=0.004, label=f"regime {regime}")
        if path is not None:
            for regime in range(k) if recurrent else [place]:
                at = path[regime_of == regime].numpy()
                panel.plot(at[:, 0], at[:, 1], ".", color=colors[regime], markersize=1.5, alpha=0.35, zorder=0)
        panel.set_xlabel("latent 0")
        panel.set_title("Where the next regime carries a state" if recurrent else f"Regime {place}", fontsize=10)
    panels[0].set_ylabel("latent 1")
    if recurrent:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    return figure


def expected(model: Any, smoothed: Any) -> tuple[Tensor, Tensor]:
    """Mean and variance [T, F] of new observations of one sequence under q."""
    parts = model.layout.separately(model.values_like(smoothed.mean))
    emission, offset = parts["emission"].unsqueeze(1), parts["emission_offset"].unsqueeze(1)
    mean = (emission @ smoothed.mean.unsqueeze(-1)).squeeze(-1) + offset  # [K, T, F]
    noise = parts["observation_noise"].unsqueeze(1)
    variance = (emission @ smoothed.covariance @ emission.mT + noise).diagonal(dim1=-2, dim2=-1)
    share = smoothed.state.mT.unsqueeze(-1)
    whole = (share * mean).sum(0)
    return whole, (share * (variance + (mean - whole).square())).sum(0)


def _heights(model: Any) -> list[float]:
    n = min(MOST_LATENTS, model.n_latent * model.layout.n_chains)
    return [*[PANEL] * model.n_features, STRIP, *[LATENT] * n]


def _by_latent(table: Tensor) -> Tensor:
    """[C, T, L] as [T, C L]."""
    return table.movedim(0, -2).flatten(-2)


def _draw_regimes(panel: Axes, axis: TimeAxis, state: Tensor) -> None:
    draw_states(panel, axis, state.numpy(), state_colors(np.arange(state.shape[-1])), "regime")


def _draw_latents(panels: list[Axes], model: Any, axis: TimeAxis, mean: Tensor, reach: Tensor) -> None:
    colors = state_colors(np.arange(model.n_states))
    for place, panel in enumerate(panels):
        chain, latent = divmod(place, model.n_latent)
        color = INK if model.layout.one_chain else colors[chain]
        upper, lower = ((mean + sign * reach)[:, place].numpy() for sign in (1, -1))
        draw_steps(panel, axis, upper, lower, color=FAINT, alpha=0.3, linewidth=0, zorder=1)
        draw_steps(panel, axis, mean[:, place].numpy(), None, color=color, linewidth=1.2, zorder=5)
        name_feature(panel, f"latent {latent}" if model.layout.one_chain else f"chain {chain}\nlatent {latent}")
