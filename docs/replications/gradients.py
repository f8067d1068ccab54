r"""Gates that do not depend on the state: what becomes of vanishing and exploding gradients?

`gradient_memory` says what the derivative of a state with respect to an earlier one is. Here it is measured.

**By age.** Norms for inputs from a standard normal, of layers as drawn by default and with open gates: each unit's hold
gate has the bias $\log u$, $u \sim U(1, m - 1)$, and its draw gate has $-\log u$ (chrono initialisation), so units hold
for up to m steps. The recurrent networks are torch's.

**By scale.** The greatest Lyapunov exponent if all weights and biases are multiplied by a number.

**By layer.** Two layers: the upper layer's state through itself, and the whole state through all.

**After training.** See `latches`: half-lives of gradients beside that of the belief.

Tallec & Ollivier 2018, *Can recurrent neural networks warp time?*, arXiv 1804.11188.
"""

import math
import sys
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import pandas as pd
import torch
from latches import LEARNERS, STARTS, Learning, learned, open_gates
from matplotlib.figure import Figure
from samplehold.models.networks.minimal import MinGRU, MinLSTM
from samplehold.models.networks.qrnn import QRNN
from samplehold.models.networks.wrapped import GRU, LSTM, Elman
from samplehold.models.studies.gradient_memory import gradient_memory
from samplehold.models.studies.next_token import make_layer
from samplehold.switching.views.drawing import FAINT
from study import Findings, Track, note_of, seeds_from
from torch import Tensor

NETWORKS: dict[str, Any] = {
    "MinGRU": MinGRU,
    "MinLSTM": MinLSTM,
    "QRNN": QRNN,
    "GRU": GRU,
    "LSTM": LSTM,
    "Elman": Elman,
}
COLORS = dict(zip(NETWORKS, ("#8c2981", "#de4968", "#fe9f6d", "#1f77b4", "#2ca02c", "#8c8c8c"), strict=True))
FEATURES = 8


@dataclass(frozen=True)
class Plan:
    """How much is measured and trained."""

    units: int
    steps: int  # of gradients at hand
    scales: tuple[float, ...]
    scale_steps: int
    learning: Learning
    seeds: tuple[int, ...] = (0,)
    longest: int = 1000  # m, steps that units with open gates hold


QUICK = Plan(16, 300, (1, 4, 16), 200, Learning((0.1,), ("MinGRU, simplex", "GRU"), 30, 32))
SCALED = (0.5, 1, 2, 4, 8, 16, 32, 100)
FULL = Plan(32, 10_000, SCALED, 1000, Learning((0.1, 0.02), tuple(LEARNERS), 200, 128))


def study(scale: str, track: Track[Any], seed: int = 0) -> Findings:
    """Norms by age, exponents by scale, stacks, and training (see this module)."""
    plan = replace(QUICK if scale == "quick" else FULL, seeds=seeds_from(seed, scale))
    norms, curves = by_age(plan, track)
    tables = {
        "gradients_norms": norms,
        "gradients_scale": by_scale(plan, track),
        "gradients_layers": by_layer(plan, track),
        "gradients_learned": learned(plan.learning, plan.seeds, plan.units, track),
    }
    return Findings(tables, {"gradients": drawn(curves, tables)}, plan.seeds, note_of(scale))


# --- networks as drawn ------------------------------------------------------------------------------------------------


def made(name: str, units: int, seed: int, longest: int | None = None, layers: int = 1) -> Any:
    """A network of a seed: by default, or with gates open for up to `longest` steps."""
    layer: Any = make_layer(lambda n, d: NETWORKS[name](n, d, num_layers=layers), FEATURES, units, seed)
    if longest is not None:
        open_gates(layer, longest, seed)
    return layer.requires_grad_(False)


def series(steps: int, seed: int) -> Tensor:
    """Inputs [T, F] from a standard normal."""
    return torch.randn(steps, FEATURES, generator=torch.Generator().manual_seed(1000 + seed))


def by_age(plan: Plan, track: Track[Any]) -> tuple[pd.DataFrame, dict[tuple[str, str], Any]]:
    """A row for each network and start: mean log10 of norms over seeds, the exponent, its half-life. And the curves."""
    rows, curves = [], {}
    decades = [10**k for k in range(round(math.log10(plan.steps)) + 1)]
    for name, start in track(list(product(NETWORKS, STARTS)), "norms by age"):
        if (name, start) == ("Elman", STARTS[1]):
            continue
        longest = plan.longest if start == STARTS[1] else None
        runs = [gradient_memory(made(name, plan.units, seed, longest), series(plan.steps, seed)) for seed in plan.seeds]
        ages, logs = runs[0].ages, torch.stack([run.log_norm for run in runs]).mean(0)
        curves[name, start] = ages, logs / math.log(10)
        row: dict[str, Any] = {"network": name, "start": start}
        row |= {f"n = {age}": float(logs[ages == age] / math.log(10)) for age in decades}
        rate = float(logs[-1] / ages[-1])
        row |= {"exponent": rate, "half-life": math.log(0.5) / rate if rate < 0 else math.inf}
        row["greatest norm"] = max(float(run.log_norm.max().exp()) for run in runs)
        rows.append(row)
    return pd.DataFrame(rows), curves


def by_scale(plan: Plan, track: Track[Any]) -> pd.DataFrame:
    """For each network and scale of its weights the greatest exponent over seeds, and the first scale where it is 0."""
    cases = [(name, 1, "all") for name in NETWORKS] + [("MinGRU", 2, "all")]
    cases += [(name, 1, "recurrent") for name in ("GRU", "LSTM", "Elman")]
    rows = []
    for name, layers, weights in track(cases, "exponents by scale"):
        row: dict[str, Any] = {"network": name, "layers": layers, "weights": weights}
        rates = [
            max(exponent(name, layers, weights, scale, seed, plan) for seed in plan.seeds) for scale in plan.scales
        ]
        row |= {f"{scale:g}": rate for scale, rate in zip(plan.scales, rates, strict=True)}
        row["0 at"] = first_zero(plan.scales, rates)
        rows.append(row)
    return pd.DataFrame(rows)


def exponent(name: str, layers: int, weights: str, scale: float, seed: int, plan: Plan) -> float:
    """The estimate of the greatest Lyapunov exponent, in nats a step."""
    layer = made(name, plan.units, seed, layers=layers)
    for key, parameter in layer.named_parameters():
        if weights == "all" or key.startswith("weight_hh"):
            parameter *= scale
    return float(gradient_memory(layer, series(plan.scale_steps, seed), [plan.scale_steps]).rate)


def first_zero(scales: tuple[float, ...], rates: list[float]) -> float:
    """The least scale at which the exponent, linear between scales, becomes positive; inf if it never does."""
    for (a, low), (b, high) in pairwise(zip(scales, rates, strict=True)):
        if low <= 0 < high:
            return a + (b - a) * low / (low - high)
    return math.inf


def by_layer(plan: Plan, track: Track[Any]) -> pd.DataFrame:
    """Two layers: log10 of norms of the upper layer's own way, and of the whole state."""
    rows, steps = [], min(plan.steps, 1000)
    ages = [10**k for k in range(round(math.log10(steps)) + 1)]
    for name, start in track(list(product(("MinGRU", "MinLSTM", "GRU"), STARTS)), "two layers"):
        longest = plan.longest if start == STARTS[1] else None
        runs = [
            gradient_memory(made(name, plan.units, seed, longest, layers=2), series(steps, seed)) for seed in plan.seeds
        ]
        ways = {"whole state": [run.log_norm for run in runs]}
        if runs[0].log_held is not None:
            ways["upper layer alone"] = [run.log_held[plan.units :].amax(0) for run in runs if run.log_held is not None]
        for way, logs in ways.items():
            mean = torch.stack(logs).mean(0) / math.log(10)
            row: dict[str, Any] = {"network": name, "start": start, "way": way}
            row |= {f"n = {age}": float(mean[runs[0].ages == age]) for age in ages}
            row["greatest norm"] = max(float(log.max().exp()) for log in logs)
            rows.append(row)
    return pd.DataFrame(rows)


# --- the figure -----------------------------------------------------------------------------------------------------


def drawn(curves: dict[tuple[str, str], Any], tables: dict[str, pd.DataFrame]) -> Figure:
    """Norms by age, exponents by scale, and half-lives beside that of the belief."""
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    ages, scales, lives = figure.subplots(1, 3)
    for (name, start), (steps, norms) in curves.items():
        style = "-" if start == STARTS[0] else "--"
        ages.plot(steps, norms, style, color=COLORS[name], linewidth=1.3, label=name if style == "-" else None)
    ages.set(xscale="log", ylim=(-16, 1), xlabel="steps back, n", ylabel="log10 of the norm")
    ages.set_title("as drawn (lines), open gates (dashed)", fontsize=10)
    for row in tables["gradients_scale"].to_dict("records"):
        name, layers, weights = row.pop("network"), row.pop("layers"), row.pop("weights")
        row.pop("0 at")
        if layers == 1:
            style = "-" if weights == "all" else ":"
            scales.plot([float(scale) for scale in row], list(row.values()), style, color=COLORS[name], linewidth=1.3)
    scales.axhline(0.0, color=FAINT, linewidth=0.8)
    scales.set(xscale="log", xlabel="scale of the weights", ylabel="greatest Lyapunov exponent, nats a step")
    scales.set_title("all weights (lines), recurrent ones (dotted)", fontsize=10)
    half_lives(lives, tables["gradients_learned"])
    ages.legend(frameon=False, fontsize=8, loc="lower left")
    for panel in (ages, scales, lives):
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def half_lives(panel: Any, table: pd.DataFrame) -> None:
    """Each trained network's half-lives, and a line at that of the belief."""
    names, longest = list(dict.fromkeys(table["network"])), 2 * table["belief"].max()
    for rho, color in zip(dict.fromkeys(table["redraw"]), ("#8c2981", "#1f77b4"), strict=False):
        here: Any = table[table["redraw"] == rho]
        belief = here["belief"].iloc[0]
        panel.axhline(belief, color=color, linewidth=0.9, label=f"belief, redraw probability {rho:g}")
        for row in here.to_dict("records"):
            opened = row["start"] == STARTS[1]
            place = names.index(row["network"]) + (0.15 if opened else -0.15)
            panel.plot(
                place, min(row["after"], longest), "o", color=color, markerfacecolor=color if opened else "white",
                markersize=5,
            )  # fmt: skip
    panel.set(yscale="log", xlim=(-0.5, len(names) - 0.5), ylim=(0.5, 1.5 * longest))
    panel.set_ylabel("half-life, steps (highest: or longer)")
    panel.yaxis.set_major_formatter("{x:g}")
    panel.set_xticks(range(len(names)), [name.replace(", ", ",\n") for name in names], fontsize=9)
    panel.set_title("trained from default (hollow) or open gates (filled)", fontsize=10)
    panel.legend(frameon=False, fontsize=8, loc="lower right")


if __name__ == "__main__":
    from samplehold.cli.app import app

    app(["study", "gradients", *sys.argv[1:]])
