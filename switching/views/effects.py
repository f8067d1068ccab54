"""Figures of the effects of an input: on the gate, on transitions, on the first state, and on observations."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from ...inference.numerics.scalars import check_probability
from ..data.design import places_of
from ..data.series import Drive
from ..emissions.driven import emission_at
from ..fitting.alignment import state_levels
from ..fitting.refinement import draw_posterior
from ..parameters import Parameters
from ..problem import Problem
from .colors import state_colors

POINTS, DRAWS = 101, 500
REACH = 0.01, 0.99  # quantiles of the input between which effects are drawn
WIDE, HIGH = 4.2, 2.8  # inches of a panel


class Effect(NamedTuple):
    """A quantity that depends on an input, a line for each state."""

    title: str
    table: Float[Tensor, "*r G L"]
    given_state: bool = False  # line k is about steps in state k


@torch.no_grad()
def plot_effect(fit: Any, name: str, level: float = 0.9) -> Figure:
    """The effect of an input on each part of the model that reads it, with other inputs and lags at their means.

    Panels show the probability of a redraw, or of each next state after each state; the probability of each first
    state; and the mean of each feature in each state. Bands are quantiles over draws of the parameters from their
    posterior; fits without a prior have none, nor has the mean of a state that is not in use.

    Arguments:
        fit: of a `SwitchingSSM`.
        name: of the input.
        level: probability of the bands.

    Raises:
        ValueError: no such input; level outside (0, 1); parameters by subject.
    """
    if fit.model.subjects:
        one = f"fit.subject({fit.model.subjects[0]!r}).plot_effect({name!r})"
        raise ValueError(f"fit: effects differ between subjects; plot those of one subject: {one}.")
    level = check_probability("level", level, proper=True)
    names = () if isinstance(fit.model.inputs, int) else fit.model.inputs
    column = places_of([name], names)[0]
    problem = fit.model.problem(fit.series.cpu())
    grid, drive = _grid(problem, column)
    estimate = {n: value.unsqueeze(0) for n, value in fit.model.values_like(problem.series.like).items()}
    effects = list(_effects(problem, estimate, drive, name))
    draws = parameter_draws(fit, problem)
    spread = [None] * len(effects) if draws is None else [e.table for e in _effects(problem, draws, drive, name)]
    figure = Figure(figsize=(WIDE * min(3, len(effects)), HIGH * -(-len(effects) // 3)), layout="constrained")
    panels = figure.subplots(-(-len(effects) // 3), min(3, len(effects)), squeeze=False).flatten()
    colors, active = state_colors(state_levels(fit.model.emission, fit.model.values).cpu().numpy()), fit.active_states
    for panel, effect, several in zip(panels, effects, spread, strict=False):
        single = effect.table.shape[-1] == 1
        for line, color in zip(range(effect.table.shape[-1]), ["#262626"] if single else colors, strict=False):
            panel.plot(grid, effect.table[0, :, line], color=color, label=None if single else f"state {line}")
            if several is not None and (bool(active[line]) or not effect.given_state):
                ends = torch.tensor([(1 - level) / 2, (1 + level) / 2]).to(several)
                low, high = several[..., line].quantile(ends, 0)
                panel.fill_between(grid, low, high, color=color, alpha=0.2, linewidth=0)
        panel.set_title(effect.title, fontsize=9, loc="left")
        panel.set_xlabel(name)
        panel.spines[["top", "right"]].set_visible(False)
        if not single:
            panel.legend(frameon=False, fontsize=8)
    for panel in panels[len(effects) :]:
        panel.set_axis_off()
    return figure


def _grid(problem: Problem, column: int) -> tuple[Tensor, Drive]:
    """Values of an input, and a drive with them, the other inputs at their means, `[G, 1, C]`."""
    rows = problem.series.design_rows
    assert rows is not None
    low, high = rows[:, column].quantile(torch.tensor(REACH).to(rows)).tolist()
    grid = torch.linspace(low, high, POINTS).to(rows)
    inputs = rows.mean(0).expand(POINTS, -1).clone()
    inputs[:, column] = grid
    return grid, Drive(inputs.unsqueeze(-2))


def parameter_draws(fit: Any, problem: Problem) -> Parameters | None:
    """Draws of the parameters `[n, ...]`; None for a fit by EM without a prior, or one without all its data."""
    if fit.posterior is not None:
        return {name: value.cpu() for name, value in fit.posterior.sample(DRAWS, seed=0).items()}
    if fit.prior is None or not fit.has_all:
        return None
    near = fit.model.values_like(problem.series.like)
    return {name: value[:DRAWS] for name, value in draw_posterior(problem, near)[0].items()}


def _effects(problem: Problem, values: Parameters, drive: Drive, name: str) -> Iterator[Effect]:
    """The effects of an input under parameters `[r, ...]`."""
    dynamics, n_states = problem.dynamics, problem.n_states
    reading = {dim for dim, names in dynamics.inputs_of.items() if not isinstance(names, int) and name in names}
    if "input" in reading:
        r = len(next(iter(values.values())))
        for old, belief in enumerate(torch.eye(n_states).to(problem.series.like)):
            ahead = dynamics.propagate(values, belief.expand(r, POINTS, -1), drive, 1)
            if dynamics.holds:
                yield Effect("P(redraw)", ahead.redrawn[..., 0, :].sum(-1, keepdim=True))
                break
            yield Effect(f"P(next state | state {old})", ahead.redrawn[..., 0, :])
    if reading - {"input"}:
        yield Effect("P(first state)", dynamics.first(values, drive).expand(-1, POINTS, -1))
    if not isinstance(problem.emission.inputs, int) and name in problem.emission.inputs:
        past = problem.series.drive.past
        typical = None if past is None else past.flatten(0, -3).nanmean(0).expand(POINTS, -1, -1)
        here = emission_at(problem.emission, problem.series, Drive(drive.inputs.squeeze(-2), past=typical))  # pyright: ignore[reportOptionalMemberAccess]
        parts = problem.emission.parts
        for part, means in zip(parts, here.mean(values)[: len(parts)], strict=True):
            names = part.emission.inputs
            if isinstance(names, int) or name not in names:
                continue
            when = "" if len(parts) == 1 else ", held" if part.prefix else ", redrawn"
            for feature, label in enumerate(problem.series.features_of()):
                yield Effect(f"mean of {label}{when}", means[..., feature], given_state=True)
