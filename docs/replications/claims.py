"""Do this library's claims about networks and models hold, and to which error? `samplehold compare --out DIR`.

Every row of the table is a number, its bound, and whether the bound is met.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from engine_filter import engine_filter
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from samplehold.inference.scans.linear.op import linear_scan
from samplehold.models.bridge.comparison import MESSAGE_PASSING, compare
from samplehold.models.bridge.correspondence import as_rnn, as_ssm
from samplehold.models.bridge.input_gate import HELD_EVIDENCE, PROBABILITIES, input_gate_bound
from samplehold.models.bridge.layered_network import compare_layers
from samplehold.models.bridge.lowering import token_marginal
from samplehold.models.bridge.tokens import one_hot, redrawn_start
from samplehold.models.networks.minimal import MinGRU, MinLSTM
from samplehold.models.studies.information import EMITTING, LINEAR_GATE, SILENT, gaussian_model, information_sweep
from samplehold.models.studies.next_token import held_model, make_layer, price_of_exactness, train_next_token
from samplehold.switching.coupled.layered import LayeredSSM
from samplehold.switching.data.writing import write_file
from samplehold.switching.dynamics.copy import Copy
from samplehold.switching.emissions.discrete import Bernoulli, Categorical, Poisson
from samplehold.switching.emissions.gated import Gated
from samplehold.switching.emissions.normal import Normal
from samplehold.switching.filter_vmp import filter_vmp
from samplehold.switching.model import SwitchingSSM
from study import Findings, Track, seeds_from
from torch import Tensor

LAYERS = 200  # random layers; the tests take a thousand
ROUNDINGS = 8.0  # of a state at each step, in units of the float's precision
STACKS = 24  # random stacks of layers
CANDIDATES = ("linear", "tanh", "positive", "simplex")
ENGINE_STEPS = 60  # that are taken one by one
TRAINED = 0.9  # least R^2 of a trained network's probe
JUDGED = 40  # sequences of 200 tokens, on which a trained network is compared


@dataclass(frozen=True)
class Shown:
    """One claim, its measurement, and its bound."""

    claim: str
    value: float
    bound: float
    below: bool = True
    figure: tuple[str, Figure] | None = None

    @property
    def met(self) -> bool:
        return self.value < self.bound if self.below else self.value > self.bound


def show(out: Path, console: Console, seed: int = 0) -> bool:
    """Measure all claims, print the table, and write the figures into the folder `out`; return whether all bounds are
    met.

    Raises:
        OSError: the folder cannot be created or written to.
    """
    out.mkdir(parents=True, exist_ok=True)
    table = Table(title="Networks and models", title_justify="left")
    table.add_column("claim", overflow="fold")
    for name in ("measured", "bound"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    met = True
    with console.status("Measuring") as status:
        for part in parts():
            for shown in part(seed):
                status.update(f"Measured: {shown.claim}")
                sign = "<" if shown.below else ">"
                table.add_row(
                    shown.claim, f"{shown.value:.2g}", f"{sign} {shown.bound:.2g}", "met" if shown.met else "MISSED"
                )
                met = met and shown.met
                if shown.figure is not None:
                    image = BytesIO()
                    shown.figure[1].savefig(image, dpi=150)
                    write_file(out / shown.figure[0], image.getvalue())
    console.print(table)
    console.print(f"Figures in {out}: " + ", ".join(sorted(path.name for path in out.glob("*.png"))))
    return met


def study(scale: str, track: Track[Any], seed: int = 0) -> Findings:
    """The same as a study: all claims with one seed, or with three."""
    seeds, rows, figures = seeds_from(seed, scale), [], {}
    for one, part in track(list(product(seeds, parts())), "claims"):
        for shown in part(one):
            row = {"claim": shown.claim.strip(), "seed": one, "measured": shown.value}
            rows.append(row | {"bound": f"{'<' if shown.below else '>'} {shown.bound:.2g}", "met": shown.met})
            if shown.figure is not None and one == seed:
                figures[Path(shown.figure[0]).stem] = shown.figure[1]
    return Findings({"bridge": pd.DataFrame(rows)}, figures, seeds)


def parts() -> tuple[Callable[[int], Iterator[Shown]], ...]:
    """The measurements of the claims, in order."""
    return tokens, given, networks, engine, linear, layers, information, price, trained


# ---- the claims ----------------------------------------------------------------------------------------------------


def tokens(seed: int) -> Iterator[Shown]:
    """Random layers of every candidate, gates saturated and not, any h0, against the filters of their chains."""
    random = torch.Generator().manual_seed(seed)
    worst = {torch.float64: (0.0, 0.0), torch.float32: (0.0, 0.0)}
    for number in range(LAYERS):
        layer = random_layer(number, random)
        steps = 100_000 if number == 0 else 1 + int(200 * _uniform(random))
        symbols = torch.randint(layer.input_size, (1 if number == 0 else 2, steps), generator=random)
        h0 = torch.randn(1, len(symbols), layer.hidden_size, generator=random, dtype=torch.float64)
        probs = torch.rand(layer.input_size, generator=random, dtype=torch.float64) + 1e-3
        for dtype, seen in worst.items():
            errors = lifting_error(layer.to(dtype), symbols, h0.to(dtype), probs)
            worst[dtype] = max(seen[0], errors[0]), max(seen[1], errors[1])
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        name = str(dtype).removeprefix("torch.")
        yield Shown(f"1. {LAYERS} random layers over tokens - filter of their chains, {name}", worst[dtype][0], bound)
        yield Shown("   the same in roundings of a state, one for each step it is held", worst[dtype][1], ROUNDINGS)


def given(seed: int) -> Iterator[Shown]:
    """Stacks of layers on real vectors, each layer against the filters of its chains."""
    random, worst = torch.Generator().manual_seed(seed), 0.0
    for number in range(STACKS):
        options = {"num_layers": 1 + number % 3, "candidate": CANDIDATES[number % 4], "dtype": torch.float64}
        layer = (MinLSTM if number % 2 else MinGRU)(8, 16, **options).requires_grad_(False)
        for parameter in layer.parameters():
            parameter.uniform_(-1, 1, generator=random)
        x = torch.randn(4, 200, 8, generator=random, dtype=torch.float64)
        expected = layer(x)[0]
        worst = max(
            worst, float((as_ssm(layer, inputs="given").hidden(x) - expected).abs().max() / expected.abs().max())
        )
    yield Shown(f"1. {STACKS} stacks of layers on real vectors - filters of their chains", worst, 1e-12)


def networks(seed: int) -> Iterator[Shown]:
    """A copy model with gated tokens, its two networks, and the model that comes back."""
    model = gated_model(seed)
    x = model.simulate(1000, (8,), seed=seed).x
    comparison = compare(model, as_rnn(model), x)
    yield Shown(
        "   as_rnn(model) - exact filter, total variation", float(comparison.network.total_variation.max()), 1e-12
    )
    (again,) = as_ssm(as_rnn(model), token_probs=token_marginal(model)).models
    change = (again.log_evidence(x) / model.log_evidence(x) - 1).abs().max()
    yield Shown("2. model -> network -> model, relative change of the log likelihood", float(change), 1e-12)
    rows = one_hot(x[..., 0], 8)
    layer = as_rnn(model, space="logit")
    with torch.no_grad():
        belief = layer(rows, redrawn_start(layer, rows))[0].softmax(-1)
    error = (belief - filter_vmp(model, x, gate="input").state).abs().max()
    picture = compare(model, layer, x).plot(steps=slice(0, 150))
    yield Shown(
        '3. logit-space network - filter_vmp(gate="input")', float(error), 1e-12, figure=("beliefs.png", picture)
    )


def engine(seed: int) -> Iterator[Shown]:
    """The message-passing engine, given the factors of one step, against the network and the filter that it is."""
    model = gated_model(seed)
    x = model.simulate(ENGINE_STEPS, (8,), seed=seed).x
    values = model.values_like(x)
    log_odds = torch.logit(values["redraw_prob"]).expand(x.shape[:-1])
    redrawn, held = model.emission.log_likelihood(x, values)
    tables = redrawn, held, values["state_probs"].log(), log_odds
    layer, rows = as_rnn(model, space="logit"), one_hot(x[..., 0], 8)
    with torch.no_grad():
        hidden, gate = layer(rows, redrawn_start(layer, rows))[0], layer.activations(rows).draw[..., 0]
    error = (engine_filter(*tables, gate=gate).logits - hidden.log_softmax(-1)).abs().max()
    yield Shown("   message passing by the engine, gate given - logit-space network", float(error), 1e-12)
    inferred = engine_filter(*tables, sweeps=7)
    error = (inferred.logits.exp() - filter_vmp(model, x, sweeps=7).state).abs().max()
    yield Shown("   the same, gate inferred - filter_vmp", float(error), 1e-12)
    away = (inferred.logits.exp() - model.filter(x).state).abs().sum(-1).mean() / 2
    yield Shown("   the same - exact filter, mean total variation", float(away), 1e-3, below=False)


def linear(seed: int) -> Iterator[Shown]:
    """Copy models of bits, counts and real numbers, with the log-sum-exp of the gate and without it."""
    random = torch.Generator().manual_seed(seed)
    tables = {
        Bernoulli(4): {"probs": torch.rand(4, 4, generator=random, dtype=torch.float64)},
        Poisson(2): {"rate": 5 * torch.rand(4, 2, generator=random, dtype=torch.float64)},
        Normal(2): {"loc": 2 * torch.randn(4, 2, generator=random, dtype=torch.float64), "scale": torch.ones(4, 2)},
    }
    for emission, table in tables.items():
        values = {name: rows[:3] for name, rows in table.items()}
        values |= {f"background_{name}": rows[3:] for name, rows in table.items()}
        model = SwitchingSSM(Copy(3), Gated(emission, emission))
        model = model.with_values(values, redraw_prob=0.2, state_probs=_rows(random, 3))
        x, name = model.simulate(500, (4,), seed=seed).x, type(emission).__name__
        kept, dropped = (
            compare(model, as_rnn(model, gate=gate), x).network.total_variation for gate in ("exact", "linear")
        )
        yield Shown(f"   as_rnn(model) of {name} - exact filter, total variation", float(kept.max()), 1e-11)
        yield Shown(f"   the same with a linear gate, mean of {name}", float(dropped.mean()), 1e-4, below=False)


def layers(seed: int) -> Iterator[Shown]:
    """A stack with and without softmax between its layers."""
    model = layered_model(seed)
    summary = compare_layers(model, as_rnn(model), model.simulate(200, (8,), seed=seed).x).summary()
    with_softmax = float(summary["network - sweep, max"].to_numpy().max())
    yield Shown("   layers with softmax between - one bottom-up sweep", with_softmax, 1e-12)
    without = float(summary["without softmax - sweep, mean"].to_numpy()[1:].max())
    yield Shown("   layers without softmax - one bottom-up sweep", without, 0.01, below=False)


def information(seed: int) -> Iterator[Shown]:
    """Distances of updates whose gate reads x alone, as x tells more of the gate."""
    sweep = information_sweep(seed=seed)
    figure = ("information.png", sweep.plot())

    def ends(held_steps: str, update: str) -> tuple[float, float, float]:
        rows = sweep.of(held_steps, update)
        return float(rows["TV"].iloc[0]), float(rows["TV"].iloc[-1]), float(rows["I / H(z)"].iloc[-1])

    text = "4. held steps silent: minGRU on probabilities - exact filter, mean total variation"
    yield Shown(text, max(ends(SILENT, PROBABILITIES)[:2]), 1e-12, figure=figure)
    for held_steps, update in (
        (SILENT, LINEAR_GATE),
        (SILENT, MESSAGE_PASSING),
        (EMITTING, HELD_EVIDENCE),
        (EMITTING, MESSAGE_PASSING),
    ):
        first, last, share = ends(held_steps, update)
        name = f"minGRU on {update}" if update == HELD_EVIDENCE else update
        text = f"   {held_steps}: {name} - exact at I(x;z) = {share:.4f} H(z), over that at the least I(x;z)"
        yield Shown(text, last / first, 0.01)
    text = "   emitting: minGRU on probabilities - exact filter at that I(x;z), mean total variation"
    yield Shown(text, ends(EMITTING, PROBABILITIES)[1], 0.1, below=False)
    model = gaussian_model(2.0, 2.0, 0.2, emitting=True)
    x = model.simulate(2000, (4,), seed=seed).x
    distance = compare(model, as_rnn(model, space="logit"), x).network.total_variation
    excess = float((distance - input_gate_bound(model, x).total_variation).max())
    yield Shown("   emitting: minGRU on logits, greatest excess of its distance over its bound", excess, 1e-12)


def price(seed: int) -> Iterator[Shown]:
    """Lifted models have independent tokens; where held states emit, a minGRU loses."""
    layer = random_layer(3, torch.Generator().manual_seed(seed))
    drawn = as_ssm(layer).sample(200_000, seed=seed).tokens
    pairs = torch.bincount(drawn[:-1] * layer.input_size + drawn[1:], minlength=layer.input_size**2).double()
    joint = (pairs / pairs.sum()).reshape(layer.input_size, -1)
    expected = joint.sum(1, keepdim=True) * joint.sum(0)
    statistic = float(((joint - expected) ** 2 / expected.clamp(min=1e-300)).sum()) * len(drawn)
    freedom = (layer.input_size - 1) ** 2
    text = "5. sampled from a lifted model: chi-square of neighbours over its degrees of freedom"
    yield Shown(text, statistic / freedom, 1 + 5 * (2 / freedom) ** 0.5)
    result = price_of_exactness(seed=seed)
    figure = ("price.png", result.plot())
    worst = float(result.network[:, 0].min())
    rho = float(result.redraw_prob[0])
    yield Shown(
        f"   held states emit: the minGRU loses, rho = {rho:g}, nats a token", worst, 1e-3, below=False, figure=figure
    )
    yield Shown("   rho = 1: the minGRU loses, nats a token", float(result.network[:, -1].abs().max()), 1e-3)


def trained(seed: int) -> Iterator[Shown]:
    """Networks trained to predict tokens, and the information of their states about a model they were not trained
    on."""
    model = held_model(0.1, 0.5)
    x = one_hot(model.simulate(64, (2048,), seed=seed).x[..., 0], model.n_states, dtype=torch.float32)
    test = model.simulate(200, (JUDGED,), seed=seed + 1).x
    for kind in (MinGRU, MinLSTM):
        network = train_next_token(make_layer(kind, model.n_states, 16, seed), x, seed=seed)
        report = compare(model, network.layer, test, reads="probe")
        assert report.probe is not None
        base = report.probe.r2["input"]
        text = f"6. {kind.__name__} trained on a copy model: R2 of the exact posterior (from the input: {base:.2f})"
        figure = (f"trained_{kind.__name__.lower()}.png", report.plot(sequence=JUDGED - 1))
        yield Shown(text, report.probe.r2["network"], TRAINED, below=False, figure=figure)


# ---- models and layers to measure ----------------------------------------------------------------------------------


def random_layer(number: int, random: torch.Generator) -> MinGRU | MinLSTM:
    """V 2-50, D 1-64, weights up to 0.1 to 1000, candidates in turn."""
    kind = MinLSTM if number % 3 == 2 else MinGRU
    n_tokens, n_units = 2 + int(49 * _uniform(random)), 1 + int(64 * _uniform(random))
    layer = kind(n_tokens, n_units, candidate=CANDIDATES[number % 4], dtype=torch.float64).requires_grad_(False)
    scale = 10 ** (4 * _uniform(random) - 1)
    for parameter in layer.parameters():
        parameter.uniform_(-scale, scale, generator=random)
    return layer


def lifting_error(layer: MinGRU | MinLSTM, symbols: Tensor, h0: Tensor, probs: Tensor) -> tuple[float, float]:
    r"""Greatest difference between a layer's states and those of its lifted model, relative to the span of each unit.

    And the same in units of what rounding may do to the layer: a state is rounded at every step, and rounded states are
    held, so with $n_t = hold_t\, n_{t-1} + 1$ a unit may be off by a few $n_t \epsilon$. A unit that holds for long has
    long forgotten its digits, in float32 after some hundred steps the fifth one.
    """
    lifted, x = as_ssm(layer, token_probs=probs), one_hot(symbols, layer.input_size, dtype=h0.dtype)
    levels = lifted.spanning(h0).levels
    width = (levels.amax(1) - levels.amin(1)).flatten()
    difference = (layer(x, h0)[0].double() - lifted.hidden(symbols, h0).double()).abs()
    error = difference / torch.where(width > 0, width, 1.0)
    hold = layer.activations(x).hold.double()
    rounded = linear_scan(hold, torch.ones_like(hold), torch.zeros_like(hold[..., 0, :]))
    return float(error.max()), float((error / (rounded * torch.finfo(h0.dtype).eps)).max())


def gated_model(seed: int) -> SwitchingSSM:
    """Four states and eight tokens."""
    random = torch.Generator().manual_seed(seed)
    return SwitchingSSM(Copy(4), Gated(Categorical(8), Categorical(8))).with_values(
        redraw_prob=0.2, state_probs=_rows(random, 4), probs=_rows(random, 4, 8), background_probs=_rows(random, 1, 8)
    )


def layered_model(seed: int) -> LayeredSSM:
    """Three layers over six tokens."""
    random = torch.Generator().manual_seed(seed)
    values = {"probs": _rows(random, 3, 6), "background_probs": _rows(random, 1, 6), "redraw_prob": [0.5, 0.2, 0.1]}
    values |= {"table_1": _rows(random, 3, 3), "table_2": _rows(random, 2, 3), "state_probs": _rows(random, 2)}
    return LayeredSSM([3, 3, 2], Gated(Categorical(6), Categorical(6))).with_values(values)


def _rows(random: torch.Generator, *shape: int) -> Tensor:
    table = torch.rand(*shape, generator=random, dtype=torch.float64) ** 3 + 0.01
    return table / table.sum(-1, keepdim=True)


def _uniform(random: torch.Generator) -> float:
    return float(torch.rand((), generator=random))


if __name__ == "__main__":
    from samplehold.cli.app import app

    app(["study", "bridge", *sys.argv[1:]])
