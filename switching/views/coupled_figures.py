"""The figure of a model of several chains: a series, and the states of each chain."""

from typing import Any, Unpack

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ndtri
from torch import Tensor

from ...inference.numerics.scalars import check_probability
from ..data.series import Given
from ..emissions.contract import ByGate
from ..mixture import StateMixture
from .colors import state_colors
from .drawing import (
    GATE,
    PANEL,
    STRIP,
    TimeAxis,
    draw_gate,
    draw_states,
    new_figure,
    set_title,
)
from .figures import ForecastFrame, draw_expected, time_axis, which, within_support


@torch.no_grad()
def plot_fit(model: Any, x: Any, *, sequence: int = 0, level: float = 0.9, **given: Unpack[Given]) -> Figure:
    """A series, its mean under all chains together, and the states of each chain.

    From the top: each feature with the mean of its smoothed mixture, and a band as in `figures.plot_fit`; for each
    chain the probabilities of its states, stacked; then for each chain the probability that a step redrew its state.

    Arguments:
        x, lengths: as in every method of the model; a pandas index becomes the time axis.
        sequence: the number of the sequence to draw, if x has several.
        level: probability of the band if the mixture were normal.

    Raises:
        ValueError: as `model.smooth`; no such sequence; level outside (0, 1).
    """
    level = check_probability("level", level, proper=True)
    whole = model.read(x, **given)
    series = whole.one(sequence).cpu()
    problem, values = model.product.problem(series), model.values_like(series.like)
    product = model.product_of(values)
    chain = problem.chain(product)
    probabilities, joint = model.probabilities(chain, values), chain.smooth().state
    mixture = StateMixture(problem.emission, product, ByGate(joint, torch.zeros_like(joint)))
    reach = float(ndtri(0.5 + level / 2)) * mixture.variance.sqrt()
    ends = within_support(problem.emission, mixture.mean - reach, mixture.mean + reach)
    n, part = model.n_chains, model.chain_name
    axis = time_axis(series)
    figure, panels = new_figure([*[PANEL] * model.n_features, *[STRIP] * n, *[GATE] * n])
    title = f"Observed series, with the mean and {100 * level:g}% band in its smoothed states"
    set_title(panels[0], title + which(whole, sequence))
    draw_expected(panels, (series, axis), (mixture.mean, *ends), axis)
    _draw_strips(panels[-2 * n : -n], axis, [probabilities[f"state_probability_{d}"][0] for d in range(1, n + 1)], part)
    for d, panel in enumerate(panels[-n:]):
        draw_gate(panel, axis, probabilities["redraw_probability"][0][:, d].numpy(), f"{part} {d + 1}\nredraw")
    axis.mark(panels)
    return figure


@torch.no_grad()
def plot_forecast(forecast: Any, level: float = 0.9) -> Figure:
    """The end of a series and the forecast after it, as `figures.plot_forecast`, with a strip for each chain."""
    model = forecast.source
    frame = ForecastFrame.of(forecast, [*[PANEL] * model.n_features, *[STRIP] * model.n_chains], level)
    draw_expected(frame.panels, frame.observed, frame.expected, frame.ahead)
    seen = model.smooth(forecast.series).state
    states = [torch.cat([a[frame.first :], b]).cpu() for a, b in zip(seen, forecast.state, strict=True)]
    _draw_strips(frame.panels[model.n_features :], frame.axis, states, model.chain_name)
    return frame.finished()


def _draw_strips(panels: list[Axes], axis: TimeAxis, states: list[Tensor], part: str) -> None:
    for d, (panel, state) in enumerate(zip(panels, states, strict=True), start=1):
        draw_states(panel, axis, state.numpy(), state_colors(np.arange(state.shape[-1])), f"{part} {d}")
