"""A chain in continuous time: mean sojourn times, and the figure of its transition probabilities over time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from scipy.special import ndtri
from torch import Tensor
from torch.distributions import constraints

from ...inference.numerics.scalars import check_probability
from ..fitting.alignment import state_levels
from ..fitting.curvature import errors_of
from ..intervals import central_interval
from ..parameters import Parameter, Shown, described
from .colors import state_colors
from .effects import HIGH, WIDE, parameter_draws
from .estimates import DRAWS, error_factors, normal_ends
from .tables import states

POINTS = 101
LONG = 3.0  # mean sojourn times that a figure shows, if it gets no times


def sojourns(fit: Any, level: float = 0.9) -> pd.DataFrame:
    """The mean time in each state from entering it to leaving it, as `Fit.sojourn`."""
    level = check_probability("level", level, proper=True)
    model = fit.model
    check_continuous(model)
    known = {"rates": _as_sojourns(model.known["rates"])}
    at = described(known, {"rates": model.values["rates"].double().cpu()})["sojourn"]
    if fit.posterior is None:
        errors = errors_of(error_factors(fit, fit.series, model.known | known))["sojourn"]
        ends = normal_ends(known, {"sojourn": at}, {"sojourn": errors}, float(ndtri((1 + level) / 2)), {})["sojourn"]
    else:
        draws = fit.posterior.refined.sample(DRAWS)["rates"].double().cpu()
        table = described(known, {"rates": draws})["sojourn"]
        errors, ends = table.std(0), central_interval(table, level)
    left = at < torch.inf
    columns = {"estimate": at, "standard error": errors, "lower": ends[0], "upper": ends[1]}
    numbers = {
        name: np.where(left, np.asarray(column), np.inf if name == "estimate" else np.nan)
        for name, column in columns.items()
    }
    return pd.DataFrame(numbers, index=pd.Index(states(model, fit.state_names), name="state"))


def _as_sojourns(rates: Parameter) -> Parameter:
    """Rates whose displayed form is the mean time in each state."""
    shown = Shown("sojourn", constraints.positive, lambda table: 1 / table.sum(-1), lambda table: table)
    return replace(rates, shown=shown)


def check_continuous(model: Any) -> None:
    """TypeError unless the chain of a model has rates."""
    if not hasattr(getattr(model, "dynamics", None), "generators") or model.subjects:
        raise TypeError(
            f"model: got {str(model).splitlines()[0]}, expected a SwitchingSSM of ContinuousMarkov dynamics, of one "
            "subject."
        )


@torch.no_grad()
def plot_transitions(fit: Any, times: Sequence[float] | Any = None, level: float = 0.9) -> Figure:
    """The probability of each state at some times after each state, as `Fit.plot_transitions`."""
    level, model = check_probability("level", level, proper=True), fit.model
    check_continuous(model)
    if times is None:
        stays = 1 / model.values["rates"].sum(-1)
        stays = stays[stays < torch.inf]
        times = np.linspace(0.0, LONG * float(stays.max()) if len(stays) else 1.0, POINTS)
    estimate = model.transition_table(times).cpu()
    problem = model.problem(fit.series.cpu())
    draws = parameter_draws(fit, problem)
    several = None if draws is None else model.dynamics.transition_table(draws, times)
    k = model.n_states
    figure = Figure(figsize=(WIDE * min(3, k), HIGH * -(-k // 3)), layout="constrained")
    panels = figure.subplots(-(-k // 3), min(3, k), squeeze=False).flatten()
    colors = state_colors(state_levels(model.emission, model.values).cpu().numpy())
    at, names = np.asarray(times, dtype=np.float64), states(model, fit.state_names)
    for old, panel in enumerate(panels):
        if old >= k:
            panel.set_axis_off()
            continue
        for new, color in zip(range(k), colors, strict=False):
            panel.plot(at, estimate[:, old, new], color=color, label=names[new])
            if several is not None:
                panel.fill_between(at, *_band(several[..., old, new], level), color=color, alpha=0.2, linewidth=0)
        panel.set_title(f"P(state at t | {names[old]} at 0)", fontsize=9, loc="left")
        panel.set_xlabel("t")
        panel.set_ylim(-0.02, 1.02)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=8)
    return figure


def _band(draws: Tensor, level: float) -> tuple[Tensor, Tensor]:
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2]).to(draws)
    low, high = draws.quantile(ends, 0)
    return low, high
