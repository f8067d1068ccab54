"""Is a stable network lost without its far past, in training as in use? (Miller & Hardt 2019)

A network and the feed-forward network of its last k inputs (`truncate`) are trained from the same weights, on the same
batches, by the same steps of gradient descent. Measured are the distance of their gradients before training, that of
their weights after each step, their losses on other sequences, and how far outputs of one network with all and with k
inputs are apart, beside the bound that `truncation_bound` proves; each of networks that are kept stable (`stable`) and
of those that are not. Inputs are tokens of a model that seldom redraws, whose next token is to be predicted; at full
scale also chorales, four voices at each quarter note, whose next pitches are to be predicted.
"""

import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from samplehold.models.bridge.tokens import one_hot
from samplehold.models.networks.minimal import MinGRU
from samplehold.models.networks.stable import stable
from samplehold.models.networks.truncated import Truncated, truncate
from samplehold.models.networks.wrapped import GRU, LSTM, Elman
from samplehold.models.studies.forgetting import truncation_bound
from samplehold.models.studies.next_token import held_model, make_layer
from study import Findings, Track, note_of, seeds_from
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

LAYERS: dict[str, Any] = {"Elman": Elman, "LSTM": LSTM, "GRU": GRU, "MinGRU": MinGRU}
LIPSCHITZ = 0.75
BATCH = 16
MOST_DRAWN = 1000.0  # bounds of outputs, which are at most of order 1


@dataclass(frozen=True)
class Plan:
    """How much is trained."""

    windows: tuple[int, ...]
    units: int
    steps: int  # updates
    rate: float
    length: int  # of a sequence


QUICK = Plan((2, 5, 10), 8, 40, 0.5, 40)
FULL = Plan((2, 5, 10, 20), 16, 150, 0.5, 60)


@dataclass(frozen=True)
class Sequences:
    """Inputs between 0 and 1, [N, T, F], each of which the one before is to predict: one feature, or any number."""

    name: str
    train: Tensor
    test: Tensor
    one: bool

    def loss(self, logits: Tensor, x: Tensor) -> Tensor:
        """Nats a step of x [N, T, F] after its first."""
        if self.one:
            return cross_entropy(logits.flatten(0, 1), x[:, 1:].argmax(-1).flatten())
        return binary_cross_entropy_with_logits(logits, x[:, 1:], reduction="sum") / x[:, 1:, 0].numel()


def study(scale: str, track: Track[Any], seed: int = 0) -> Findings:
    """Stable against free, recurrent against truncated, for four networks."""
    plan, seeds = QUICK if scale == "quick" else FULL, seeds_from(seed, scale)
    corpora = [tokens(plan, seed)]
    if scale == "full" and find_spec("music21"):
        corpora.append(chorales(FULL.length))
    cases = list(itertools.product(corpora, LAYERS, (True, False), seeds))
    rows, paths = [], []
    for corpus, kind, kept, one in track(cases, "networks"):
        comparisons = list(compared(corpus, kind, kept, one, plan))
        named = {"data": corpus.name, "network": kind, "weights": "stable" if kept else "free", "seed": one}
        rows += [named | row for row, _ in comparisons]
        paths += [named | {"window": row["window"], "path": path} for row, path in comparisons]
    table = pd.DataFrame(rows)
    by = ["data", "network", "weights", "window"]
    mean: Any = table.drop(columns="seed").groupby(by, sort=False, as_index=False).mean()
    tables = {"truncation": mean, "truncation_by_seed": table}
    return Findings(tables, {"truncation": drawn(mean, paths)}, seeds, note_of(scale))


def tokens(plan: Plan, seed: int = 0) -> Sequences:
    """From a copy model of four states that holds for ten steps on average, and shows its state half of the time."""
    model = held_model(redraw_prob=0.1, overlap=0.5, n_states=4)
    drawn = model.simulate(plan.length, batch_shape=(192,), seed=seed + 1).x
    x = one_hot(drawn.squeeze(-1).long(), 4, dtype=torch.float32)
    return Sequences("tokens", x[:128], x[128:], one=True)


def chorales(length: int, most: int = 120) -> Sequences:
    """Which of the pitches sound at each quarter note of Bach's chorales, `length` of them a sequence."""
    from music21 import chord, corpus, note  # pyright: ignore[reportMissingImports]

    scores: Iterator[Any] = itertools.islice(corpus.chorales.Iterator(), most)
    parts = []
    for score in scores:
        steps = torch.zeros(int(score.highestTime) + 1, 128)
        for sound in score.flatten().notes:
            first, last = math.ceil(float(sound.offset)), math.ceil(float(sound.offset + sound.quarterLength))
            pitches = sound.pitches if isinstance(sound, chord.Chord | note.Note) else ()
            for pitch in pitches:
                steps[first:last, pitch.midi] = 1
        parts.append(steps[:-1])
    joined = torch.cat(parts)
    x = joined[: len(joined) // length * length, joined.any(0)].unflatten(0, (-1, length))
    split = len(x) * 3 // 4
    return Sequences("chorales", x[:split], x[split:], one=False)


class Predictor(nn.Module):
    """Logits of the next input, from a layer that reads all or the last inputs."""

    layer: Any
    head: nn.Module

    def __init__(self, layer: Any, features: int, window: int | None = None) -> None:
        super().__init__()
        self.layer, self.head = layer, make_layer(nn.Linear, layer.hidden_size, features)
        self.truncated: Truncated | None = truncate(layer, window) if window else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.truncated(x) if self.truncated else self.layer(x)[0]
        return self.head(out[:, :-1])


def compared(
    corpus: Sequences, kind: str, kept: bool, seed: int, plan: Plan
) -> Iterator[tuple[dict[str, float], list[float]]]:
    """For each window its measurements, and the distance of weights after each update."""
    features = corpus.train.shape[-1]

    def begun(window: int | None) -> Predictor:
        layer: Any = make_layer(LAYERS[kind], features, plan.units, seed)
        return Predictor(stable(layer, lipschitz=LIPSCHITZ) if kept else layer, features, window)

    whole = begun(None)
    gradient, weights = _gradient(whole, corpus), list(_trained(whole, corpus, plan, seed))
    with torch.no_grad():
        loss = float(corpus.loss(whole(corpus.test), corpus.test))
        full = whole.layer(corpus.test)[0]
    for window in plan.windows:
        other = begun(window)
        away = _gradient(other, corpus) - gradient
        path = [float((a - b).norm()) for a, b in zip(_trained(other, corpus, plan, seed), weights, strict=True)]
        with torch.no_grad():
            cut = float(corpus.loss(other(corpus.test), corpus.test))
            error = float((truncate(whole.layer, window)(corpus.test) - full).abs().max())
            proved = float(truncation_bound(_free(whole.layer), corpus.test.double(), window).max())
        yield (
            {
                "window": window,
                "gradient distance": float(away.norm() / gradient.norm()),
                "weight distance": path[-1] / float((weights[-1] - weights[0]).norm()),
                "loss": loss,
                "loss, truncated": cut,
                "output error": error,
                "proved": proved,
            },
            path,
        )


def _gradient(model: Predictor, corpus: Sequences) -> Tensor:
    loss = corpus.loss(model(corpus.train[: 2 * BATCH]), corpus.train[: 2 * BATCH])
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])


def _trained(model: Predictor, corpus: Sequences, plan: Plan, seed: int) -> Iterator[Tensor]:
    """The weights after each update."""
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), plan.rate)
    for _ in range(plan.steps):
        x = corpus.train[torch.randint(len(corpus.train), (BATCH,), generator=random)]
        optimizer.zero_grad()
        corpus.loss(model(x), x).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield torch.cat([part.detach().flatten() for part in model.parameters()])


def _free(layer: Any) -> nn.Module:
    """The layer as it stands in float64, with plain parameters."""
    plain: Any = type(layer).__mro__[1] if hasattr(layer, "parametrizations") else type(layer)
    free = plain(layer.input_size, layer.hidden_size, dtype=torch.float64)
    free.load_state_dict({name: getattr(layer, name).detach() for name in free.state_dict()})
    return free


def drawn(mean: pd.DataFrame, paths: list[dict[str, Any]]) -> Figure:
    """Above the distance of weights by update, below errors of outputs and their bounds; first data, first seed."""
    first = mean["data"].iloc[0]
    figure = Figure(figsize=(12, 6.2), layout="constrained")
    rows = figure.subplots(2, len(LAYERS), sharey="row")
    windows = sorted(set(mean["window"]))
    for column, kind in enumerate(LAYERS):
        above, below = rows[0, column], rows[1, column]
        for number, window in enumerate(windows):
            for weights, style in (("stable", "-"), ("free", ":")):
                keys = {"data": first, "network": kind, "weights": weights, "window": window}
                path = next(item["path"] for item in paths if all(item[key] == value for key, value in keys.items()))
                shade = f"C{number}"
                above.plot(range(1, len(path) + 1), path, style, color=shade, label=f"{weights}, last {window}")
        above.set(title=kind, xlabel="update", yscale="log")
        omitted = []
        for weights, style in (("stable", "-"), ("free", ":")):
            part = mean[(mean["data"] == first) & (mean["network"] == kind) & (mean["weights"] == weights)]
            below.plot(part["window"], part["output error"], "o" + style, color="k", label=f"{weights}, measured")
            shown = part[part["proved"] < MOST_DRAWN]
            below.plot(shown["window"], shown["proved"], "s" + style, color="C3", label=f"{weights}, proved")
            omitted += [f"{weights} at {window}" for window in part["window"][part["proved"] >= MOST_DRAWN]]
        below.set(xlabel="inputs an output has", yscale="log", xticks=windows)
        if omitted:
            text = f"proved bounds of {MOST_DRAWN:g} or more, not drawn:\n" + "; ".join(omitted)
            below.set_title(text, fontsize=7, color="C3", loc="left")
    rows[0, 0].set_ylabel("distance of weights\ntruncated from recurrent")
    rows[1, 0].set_ylabel("greatest error of an output")
    rows[0, -1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    rows[1, -1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


if __name__ == "__main__":
    from samplehold.cli.app import app

    app(["study", "truncation", *sys.argv[1:]])
