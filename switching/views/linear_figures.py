"""Figures of a linear model: a series, and its latent vectors."""

from typing import Any, Unpack

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ndtri
from torch import Tensor

from ...inference.numerics.scalars import check_probability
from ..data.series import Given
from .drawing import FAINT, INK, PANEL, TimeAxis, draw_steps, name_feature, new_figure, set_title
from .figures import ForecastFrame, draw_expected, time_axis, which

LATENT = 1.2  # inches
MOST_LATENTS = 12


@torch.no_grad()
def plot_fit(model: Any, x: Any, *, sequence: int = 0, level: float = 0.9, **given: Unpack[Given]) -> Figure:
    """A series, its smoothed mean, and its latents.

    From the top: each feature with the mean of an observation given the whole series, and the band of a new
    observation; each latent with its mean and central interval, except latents that are lags or rotations of others.

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
    emission, noise, offset = model.emission.sights(model.values_like(series.observations), series.drive.inputs)
    mean = (emission @ smoothed.mean.unsqueeze(-1)).squeeze(-1) + (0.0 if offset is None else offset)
    covariance = emission @ smoothed.covariance @ emission.mT + noise
    figure, panels = new_figure(_heights(model))
    title = f"Observed series, with the mean and {100 * level:g}% band of an observation given all of it"
    set_title(panels[0], title + which(whole, sequence))
    draw_expected(panels, (series, axis), _ends(mean, covariance, level), axis)
    _draw_latents(panels[model.n_features :], model, axis, _ends(smoothed.mean, smoothed.covariance, level))
    axis.mark(panels)
    return figure


@torch.no_grad()
def plot_forecast(forecast: Any, level: float = 0.9) -> Figure:
    """The end of a series and the forecast after it, with the latents, for one sequence; see `LinearForecast.plot`."""
    model = forecast.source
    frame = ForecastFrame.of(forecast, _heights(model), level)
    draw_expected(frame.panels, frame.observed, frame.expected, frame.ahead)
    seen = model.smooth(forecast.series)
    mean = torch.cat([seen.mean[frame.first :], forecast.state_mean]).cpu()
    covariance = torch.cat([seen.covariance[frame.first :], forecast.state_covariance]).cpu()
    _draw_latents(frame.panels[model.n_features :], model, frame.axis, _ends(mean, covariance, level))
    return frame.finished()


def _heights(model: Any) -> list[float]:
    return [*[PANEL] * model.n_features, *[LATENT] * len(model.dynamics.shown[:MOST_LATENTS])]


def _ends(mean: Tensor, covariance: Tensor, level: float) -> tuple[Tensor, ...]:
    """Mean, lower and upper ends of the central interval of each entry."""
    reach = float(ndtri((1 + level) / 2)) * covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
    return mean, mean - reach, mean + reach


def _draw_latents(panels: list[Axes], model: Any, axis: TimeAxis, ends: tuple[Tensor, ...]) -> None:
    mean, lower, upper = (table.numpy() for table in ends)
    for panel, place in zip(panels, model.dynamics.shown, strict=False):
        draw_steps(panel, axis, upper[:, place], lower[:, place], color=FAINT, alpha=0.3, linewidth=0, zorder=1)
        draw_steps(panel, axis, mean[:, place], None, color=INK, linewidth=1.2, zorder=5)
        name_feature(panel, f"latent {model.dynamics.latents[place]}")
