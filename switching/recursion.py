"""Observations drawn one after another, each from its own lags: simulations, replicates and forecasts.

The lags of the first step are the observations before it. Where they are missing, they are those that are typical of
the first state, its constant series: see `AutoRegressive.typical_lags`.
"""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .data.series import Drive, Series
from .emissions.by_subject import of_one
from .emissions.contract import Emission
from .emissions.driven import emission_at
from .emissions.lagged import Lagged
from .parameters import Parameters


def drawn_along(
    emission: Emission, series: Series, values: Parameters, path: Int[Tensor, "*n T"], redraw: Tensor
) -> Float[Tensor, "*n T F"]:
    """Observations of the steps of a series along paths of states, `*n` ending with the axes of the sequences."""
    if not emission.order:
        return emission_at(emission, series, series.drive).sample_at(values, path, redraw)
    past = series.drive.past
    assert past is not None
    first = series.drive.at(0)
    lags = filled(emission, values, past[..., 0, :, :].expand(*path.shape[:-1], -1, -1), path[..., 0], first)
    drawn = []
    for step in range(path.shape[-1]):
        here = replace(series.drive.at(step), past=lags)
        drawn.append(at_lags(emission, series, here).sample_at(values, path[..., step], redraw[..., step]))
        lags = after(lags, drawn[-1])
    return torch.stack(drawn, -2)


def at_lags(emission: Emission, series: Series, here: Drive) -> Emission:
    """The emission at one step with these lags `[*n, P, F]`, and inputs `[*b, C]`."""
    assert here.past is not None
    inputs = None if here.inputs is None else here.inputs.expand(*here.past.shape[:-2], -1)
    return emission_at(emission, series, replace(here, inputs=inputs))


def after(lags: Float[Tensor, "*n P F"], x: Float[Tensor, "*n F"]) -> Float[Tensor, "*n P F"]:
    """The lags of the next step."""
    return torch.cat([x.unsqueeze(-2), lags], -2)[..., : lags.shape[-2], :]


def filled(
    emission: Emission, values: Parameters, lags: Float[Tensor, "*n P F"], state: Int[Tensor, "*n"], here: Drive
) -> Float[Tensor, "*n P F"]:
    """Lags with those that are typical of the state, and of the subject, in place of missing ones."""
    if not bool(lags.isnan().any()):
        return lags
    typical, state = autoregression(emission).typical_lags(values), state.clamp_min(0)
    return torch.where(lags.isnan(), typical[here.subjects, state] if emission.reads_subjects else typical[state], lags)


def autoregression(emission: Emission) -> Lagged:
    """The autoregression of one subject."""
    alone = of_one(emission)
    assert isinstance(alone, Lagged)
    return alone
