"""The figure of the flow of each regime of a switching linear model."""

from typing import Any, Unpack

import numpy as np
import torch
from matplotlib.figure import Figure

from ...inference.chains.switching_gaussian.tables import stick_breaking
from ...inference.numerics.scalars import check_integer
from ..data.series import Given
from .colors import state_colors

MARGIN = 0.15  # of the extent of the states, around them


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
    margin = MARGIN * (high - low).clamp_min(1e-9)
    sides = [
        torch.linspace(float(a - r), float(b + r), points, device="cpu")
        for a, b, r in zip(low, high, margin, strict=True)
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
