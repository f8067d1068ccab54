r"""Is a gated update optimal, and what does each update of a belief lose in prediction?

Two copy models of three states emit a token at every step, held or not:

    hidden gate     p(x | s) = (1 - o) [x = s] + o / 3 at redrawn and held steps: a token says nothing of the gate
    visible gate    the same, but of six tokens: three for redrawn steps and three for held ones; with probability m
                    a token comes from the wrong three

The exact filter predicts the next token best. Every other update of a belief $Q_t$ loses, in nats a token,

$$E\big[\log p(x_{t+1} \mid x_{1..t}) - \log p(x_{t+1} \mid Q_t)\big] \ge 0.$$

Trained networks predict by a linear head. Work is counted in operations a step: additions, multiplications,
exponentials and logarithms are one each. For K states, V tokens and H units, with the reading $2KV$ of log-likelihoods,

| update | operations a step |
|---|---|
| exact filter | $2KV + 6K$ |
| minGRU on probabilities | $2KV + 7K$ |
| minGRU on logits, with held evidence | $4KV + 11K$ |
| message passing, n sweeps | $4KV + 8Kn$ |
| trained minGRU | $4HV + 6H + 2HV$ |
| trained GRU | $6H(V + H) + 12H + 2HV$ |
"""

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from samplehold.models.bridge.input_gate import HELD_EVIDENCE, PROBABILITIES, input_gate_updates
from samplehold.models.bridge.tokens import one_hot
from samplehold.models.networks.minimal import MinGRU
from samplehold.models.networks.wrapped import GRU
from samplehold.models.studies.next_token import LENGTH, held_model, make_layer, train_next_token
from samplehold.switching.dynamics.copy import Copy
from samplehold.switching.emissions.discrete import Categorical
from samplehold.switching.emissions.gated import Gated
from samplehold.switching.filter_vmp import filter_vmp
from samplehold.switching.model import SwitchingSSM
from samplehold.switching.views.drawing import INK, NotebookFigure
from study import Findings, Track, note_of, seeds_from
from torch import Tensor

SWEEPS = (1, 2, 4, 16)
OVERLAP, REDRAW_PROB, MISLEADING = 0.3, 0.1, 0.01
ROUNDING = 1e-12
KINDS = {
    "exact filter": ("black", "*"),
    f"minGRU on {PROBABILITIES}": ("#8c2981", "s"),
    f"minGRU on {HELD_EVIDENCE}": ("#8c2981", "o"),
    "message passing": ("#1f77b4", "o-"),
    "trained MinGRU": ("#de4968", "o-"),
    "trained GRU": ("#fd8d3c", "o-"),
}
COLUMNS = ["model", "update", "operations a step", "seed", "nats lost"]


def visible_gate(redraw_prob: float, overlap: float, misleading: float, n_states: int = 3) -> SwitchingSSM:
    """The model of a visible gate; see this module."""
    symbols = held_model(redraw_prob, overlap, n_states).values["probs"]
    redrawn, held = (1 - misleading) * symbols, misleading * symbols
    return SwitchingSSM(Copy(n_states), Gated(*[Categorical(2 * n_states)] * 2, by_state=True)).with_values(
        redraw_prob=redraw_prob,
        state_probs=[1 / n_states] * n_states,
        probs=torch.cat([redrawn, held], 1),
        background_probs=torch.cat([held, redrawn], 1),
    )


def models() -> dict[str, SwitchingSSM]:
    """The two models of this module."""
    return {
        "hidden gate": held_model(REDRAW_PROB, OVERLAP),
        "visible gate": visible_gate(REDRAW_PROB, OVERLAP, MISLEADING),
    }


def losses(model: SwitchingSSM, x: Tensor) -> Iterator[tuple[str, int, float]]:
    """Name, operations a step and nats lost a token of each update of a belief, on tokens `[*b, T, 1]`."""
    k, v = model.n_states, model.emission.sizes["category"]
    chain = model.chain(x)
    exact = chain.filter()

    def lost(state: Tensor) -> float:
        return float((exact.log_increment - chain.predictive(state))[..., 1:].mean())

    updates = input_gate_updates(model, x)
    yield "exact filter", 2 * k * v + 6 * k, lost(exact.state)
    yield f"minGRU on {PROBABILITIES}", 2 * k * v + 7 * k, lost(updates[PROBABILITIES])
    yield f"minGRU on {HELD_EVIDENCE}", 4 * k * v + 11 * k, lost(updates[HELD_EVIDENCE])
    for n in SWEEPS:
        state = filter_vmp(model, x, sweeps=n).state
        yield f"message passing, {n} sweep{'s' * (n > 1)}", 4 * k * v + 8 * k * n, lost(state)


def trained_losses(
    model: SwitchingSSM, x: Tensor, n_units: int, n_steps: int, seed: int
) -> Iterator[tuple[str, int, float]]:
    """The same of networks that are trained on the model's data."""
    v, h = model.emission.sizes["category"], n_units
    train = one_hot(model.simulate(LENGTH, (2048,), seed=seed).x[..., 0], v, dtype=torch.float32)
    exact = model.filter(x).log_increment[:, 1:].mean()
    for kind, operations in ((MinGRU, 6 * h * v + 6 * h), (GRU, 6 * h * (v + h) + 12 * h + 2 * h * v)):
        predictor = train_next_token(make_layer(kind, v, h, seed), train, n_steps, seed=seed)
        log_prob = predictor.log_probs(one_hot(x[..., 0], v, dtype=torch.float32)).mean()
        yield f"trained {kind.__name__}, {h} units", operations, float(exact - log_prob)


def study(scale: str, track: Track[Any], seed: int = 0) -> Findings:
    """Losses and operations of all updates on both models."""
    quick, seeds, rows = scale == "quick", seeds_from(seed, scale), []
    n_test, n_steps = (16, 30) if quick else (256, 500)
    for number, (name, model) in track([(s, one) for s in seeds for one in models().items()], "models"):
        x = model.simulate(256, (n_test,), seed=10_000 + number).x
        results = [*losses(model, x)]
        for n_units in (16,) if quick else (4, 16, 64):
            results += trained_losses(model, x, n_units, n_steps, number)
        rows += [(name, update, operations, number, lost) for update, operations, lost in results]
    table = pd.DataFrame(rows, columns=COLUMNS)
    mean = table.groupby(COLUMNS[:3], sort=False)["nats lost"].agg(["mean", "min", "max"]).reset_index()
    return Findings({"updates": table, "updates_mean": mean}, {"updates": drawn(mean)}, seeds, note_of(scale))


def drawn(mean: pd.DataFrame) -> Figure:
    """Nats lost against operations a step, a panel for each model."""
    figure = NotebookFigure(8.0, 3.8)
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (name, rows) in zip(panels, mean.groupby("model", sort=False), strict=True):
        for kind, (color, style) in KINDS.items():
            of = rows[rows["update"].str.startswith(kind)]
            lost = [nats if abs(nats) > ROUNDING else 0.0 for nats in of["mean"]]
            panel.plot(of["operations a step"], lost, style, color=color, markersize=5, label=kind, clip_on=False)
        panel.set_xscale("log")
        panel.set_yscale("symlog", linthresh=1e-4)
        panel.set_ylim(bottom=0)
        panel.set_title(str(name), color=INK)
        panel.set_xlabel("operations a step", color=INK)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    panels[0].set_ylabel("nats a token lost", color=INK)
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


if __name__ == "__main__":
    from samplehold.cli.app import app

    app(["study", "updates", *sys.argv[1:]])
