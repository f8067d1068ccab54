r"""What is gained by a forget gate that reaches 2, and what does it cost?

The gain is a stack: with weights set by hand, one cell stores a word of as many bits as floats have digits
(`counters.palindrome_lstm`), and this limit is measured. The cost is in gradients, which a step can double like a cell:

**Before training.** The norm of the gradient in all parameters of the sum of the last outputs, and of the sum of the
last cells, after T random bits, of an LSTM and of a `DoublingLSTM`, as drawn and with forget gates at 3 before the
sigmoid, where cells are multiplied by 0.95 and 1.9; in double precision. Outputs are a tanh of cells, and flat for
large cells.

**During training.** Both learn to write a word backward: n random bits, a mark, and then the bits in reverse, each from
the bits before; Adam, without clipping. The report has the greatest norm of a gradient, and the loss of the last tenth
in nats a bit, where log 2 = 0.693 is chance.
"""

import random
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from samplehold.models.automata.counters import palindrome_lstm
from samplehold.models.networks.doubling import DoublingLSTM
from samplehold.models.networks.wrapped import LSTM
from samplehold.switching.seeding import seeded
from study import Findings, Track, note_of, seeds_from, ticks_at
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

HIDDEN, BATCH, RATE, OPEN = 10, 16, 0.01, 3.0
DIGITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53}
NETWORKS: dict[str, Callable[[int], Any]] = {
    "LSTM": lambda n: LSTM(n, HIDDEN),
    "DoublingLSTM": lambda n: DoublingLSTM(n, HIDDEN),
}
STARTS = ("as drawn", f"forget gates at {OPEN:g}")
SCALES: dict[str, Any] = {  # lengths of gradients; lengths of words in training, updates
    "quick": ((4, 16, 64), (4, 12), 40),
    "full": ((4, 8, 16, 32, 64, 128, 256), (4, 8, 16), 500),
}


def longest_held(dtype: torch.dtype, n_words: int = 20, seed: int = 0) -> int:
    """The greatest n up to which words of n bits, 1 at both ends, are accepted with their reverse and no other word."""
    acceptor, draw, n = palindrome_lstm(dtype), random.Random(seed), 2
    while True:
        n += 1
        for _ in range(n_words):
            word = f"1{draw.getrandbits(n - 2):0{n - 2}b}1"
            k = draw.randrange(n)
            other = word[:k] + "10"[int(word[k])] + word[k + 1 :]
            if acceptor.accepts([f"{word}#{word[::-1]}", f"{word}#{other[::-1]}"]).tolist() != [True, False]:
                return n - 1


def made(name: str, n_inputs: int, seed: int, opened: bool = False) -> Any:
    """A network, as drawn, or with open forget gates."""
    with seeded(seed, torch.empty(0)):
        layer = NETWORKS[name](n_inputs)
    if opened:
        bias: Any = layer.bias_ih_l0 if isinstance(layer, LSTM) else layer.bias_l0
        gates = bias.detach().unflatten(0, (-1, HIDDEN))
        gates[1 : 2 if isinstance(layer, LSTM) else 3] = OPEN
    return layer


def norm(parameters: Any) -> float:
    """Of all gradients together."""
    return torch.stack([p.grad.double().norm() for p in parameters if p.grad is not None]).norm().item()


def gradient(layer: Any, n: int, seed: int, of: str) -> float:
    """The norm of the gradient of the sum of the last outputs, or cells, after n random bits."""
    bits = torch.randint(2, (1, n), generator=torch.Generator().manual_seed(seed))
    out, (_, cells) = layer.double()(one_hot(bits, 2).double())
    layer.zero_grad()
    (out[:, -1] if of == "outputs" else cells).sum().backward()
    return norm(list(layer.parameters()))


def backward_words(n: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Bits, a mark (2), the bits in reverse without the last, [B, 2 n]; and the targets from the mark on, [B, n]."""
    bits = torch.randint(2, (BATCH, n), generator=draw)
    return torch.cat([bits, torch.full((BATCH, 1), 2), bits.flip(1)[:, :-1]], 1), bits.flip(1)


def learned(name: str, n: int, n_updates: int, seed: int, opened: bool) -> tuple[float, float]:
    """The greatest norm of a gradient in training, and the mean loss of its last tenth."""
    draw, layer = torch.Generator().manual_seed(seed), made(name, 3, seed, opened)
    with seeded(seed, torch.empty(0)):
        head = nn.Linear(HIDDEN, 2)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, RATE)
    norms, losses = [], []
    for _ in range(n_updates):
        read, follow = backward_words(n, draw)
        optimizer.zero_grad()
        out = head(layer(one_hot(read, 3).float())[0][:, n:])
        loss = cross_entropy(out.flatten(0, 1), follow.flatten())
        loss.backward()
        norms.append(norm(parameters))
        losses.append(loss.item())
        optimizer.step()
    last = losses[-max(1, n_updates // 10) :]
    return max(norms), sum(last) / len(last)


def study(scale: str, track: Track[Any], seed: int = 0) -> Findings:
    """Words held, their gradients, and training (see this module)."""
    (steps, sizes, n_updates), seeds = SCALES[scale], seeds_from(seed, scale)
    held = [
        {"floats": str(dtype).partition(".")[2], "digits": digits, "longest word": longest_held(dtype, seed=seed)}
        for dtype, digits in DIGITS.items()
    ]
    gradients, training = [], []
    for name, start, of in product(NETWORKS, STARTS, ("outputs", "cells")):
        row: dict[str, Any] = {"network": name, "start": start, "of": of}
        for n in steps:
            greatest = max(gradient(made(name, 2, one, start != STARTS[0]), n, one, of) for one in seeds)
            row[str(n)] = float(f"{greatest:.3g}")
        gradients.append(row)
    for n, name, start in track(list(product(sizes, NETWORKS, STARTS)), "words in training"):
        row = {"bits": n, "network": name, "start": start}
        for one in seeds:
            most, loss = learned(name, n, n_updates, one, start != STARTS[0])
            row |= {f"greatest norm, seed {one}": float(f"{most:.3g}"), f"loss, seed {one}": round(loss, 3)}
        training.append(row)
    tables = {
        "doubling_words": pd.DataFrame(held),
        "doubling_gradients": pd.DataFrame(gradients),
        "doubling_training": pd.DataFrame(training),
    }
    figures = {"doubling_gradients": draw_gradients(tables["doubling_gradients"])}
    return Findings(tables, figures, seeds, note_of(scale))


def draw_gradients(table: pd.DataFrame) -> Figure:
    """Norms against length."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    panel: Any = figure.subplots()
    lengths = [key for key in map(str, table.columns) if key.isdigit()]
    for _, row in table.iterrows():
        norms = [row[n] for n in lengths]
        label = f"{row['of']} of {row['network']}, {row['start']}"
        panel.plot([int(n) for n in lengths], norms, marker="o", label=label)
    panel.set(xscale="log", yscale="log", xlabel="steps", ylabel="norm of the gradient")
    ticks_at(panel.xaxis, map(int, lengths))
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, fontsize=7)
    return figure


if __name__ == "__main__":
    from samplehold.cli.app import app

    app(["study", "doubling", *sys.argv[1:]])
