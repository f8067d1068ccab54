r"""Which networks learn to count, and up to what length?

**Blocks.** $a^n b^n$ and $a^n b^n c^n$, positive strings only (Weiss et al. 2018): a network of ten units is trained to
predict the next symbol, and the end, of strings with n < 100 or n < 50. It fails at the least n for which, at some step
from the first b on, the symbols of probability `THRESHOLD` or more are not exactly the permitted next symbols (Gers &
Schmidhuber 2001). Before the first b, counting cannot predict the end of the block of a. This criterion accepts the
string, and rejects strings whose last block, or last but one, is one shorter or longer.

**A block, and then anything.** $a^n b^n w$ (Merrill et al. 2020): a network reads strings of 64 symbols, and says after
each symbol whether the prefix is in the language. It is judged by the whole string, at lengths of 64 and more. Half of
the strings are in the language, and the others differ by few symbols, so only counting does better than one half. The
count must be kept while w is read. This needs gates that depend on earlier inputs, and those of a QRNN do not.

**States.** How many states a saturated network of random weights can be in after n symbols
(`samplehold.models.automata.reachable`).

Weiss, Goldberg & Yahav 2018, *On the practical computational power of finite precision RNNs*; Merrill et al. 2020, *A
formal hierarchy of RNN architectures*; Gers & Schmidhuber 2001, *LSTM recurrent networks learn simple context free and
context sensitive languages*.
"""

import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from samplehold.models.automata.acceptor import Acceptor
from samplehold.models.automata.counters import counting_lstm, counting_qrnn
from samplehold.models.automata.reachable import count_states
from samplehold.models.networks.minimal import MinGRU, MinLSTM
from samplehold.models.networks.qrnn import QRNN
from samplehold.models.networks.saturated import saturated
from samplehold.models.networks.stack import NondeterministicStackRNN, StratificationStackRNN, SuperpositionStackRNN
from samplehold.models.networks.wrapped import GRU, LSTM, Elman
from samplehold.models.studies.next_token import Descent
from samplehold.switching.seeding import seeded
from study import Findings, Track, note_of, seeds_from
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

HIDDEN, BATCH, RATE, THRESHOLD = 10, 16, 0.01, 0.01
LONGEST = {"ab": 99, "abc": 49}  # block of the strings in training
PREFIX_LENGTH = 64

NETWORKS: dict[str, Callable[[int], Any]] = {
    "Elman, tanh": lambda n: Elman(n, HIDDEN),
    "Elman, ReLU": lambda n: Elman(n, HIDDEN, nonlinearity="relu"),
    "GRU": lambda n: GRU(n, HIDDEN),
    "LSTM": lambda n: LSTM(n, HIDDEN),
    "MinGRU": lambda n: MinGRU(n, HIDDEN),
    "MinLSTM": lambda n: MinLSTM(n, HIDDEN),
    "QRNN, fo": lambda n: QRNN(n, HIDDEN, pooling="fo", window=2),
    "QRNN, ifo": lambda n: QRNN(n, HIDDEN, pooling="ifo", window=2),
    "superposition": lambda n: SuperpositionStackRNN(n, HIDDEN, value_size=3, stacks=4),
    "stratification": lambda n: StratificationStackRNN(n, HIDDEN, value_size=3, stacks=4),
    "nondeterministic": lambda n: NondeterministicStackRNN(n, HIDDEN),
}
CAPPED = {"stratification": 15, "nondeterministic": 10}  # longest block in training, of stacks that cost O(T^2), O(T^3)
SLOW = "nondeterministic"  # an eighth of the updates, one seed, and tests up to 100


class Reader(nn.Module):
    """A recurrent layer over symbols, and a linear map of its outputs to logits [B, T, n_classes]."""

    layer: Any
    head: nn.Linear
    n_symbols: int

    def __init__(self, layer: Any, n_symbols: int, n_classes: int) -> None:
        super().__init__()
        self.layer, self.head, self.n_symbols = layer, nn.Linear(layer.hidden_size, n_classes), n_symbols

    def forward(self, symbols: Tensor) -> Tensor:
        x = one_hot(symbols, self.n_symbols).to(self.head.weight.dtype)
        return self.head(self.layer(x)[0])


def block_strings(letters: str, sizes: Iterable[int]) -> tuple[Tensor, Tensor]:
    """Symbols read, and those that follow, [B, T]: an edge (0), then n of each letter (1, 2, ..).

    The edge follows at the end, too; past it there is -100, which no loss counts, and zeros are read.
    """
    each = [[0] + [k + 1 for k in range(len(letters)) for _ in range(n)] for n in sizes]
    steps = max(map(len, each))
    read = torch.tensor([one + [0] * (steps - len(one)) for one in each])
    follow = torch.tensor([[*one[1:], 0] + [-100] * (steps - len(one)) for one in each])
    return read, follow


def train(reader: Reader, batches: Iterable[tuple[Tensor, Tensor]], n_updates: int) -> None:
    """Adam, gradients of norm 1 at most, at a rate that falls to 0 as a cosine does; cross-entropy of all steps."""
    descent = Descent(reader.parameters(), RATE, n_updates)
    for read, follow in batches:
        each = cross_entropy(reader(read).mT, follow, reduction="none")
        descent.step((each.sum(1) / (follow >= 0).sum(1)).mean())


def block_batches(letters: str, longest: int, n_updates: int, seed: int) -> Iterable[tuple[Tensor, Tensor]]:
    """Strings of blocks up to a size that grows from 5 to `longest` over the first half of the training."""
    draw = random.Random(seed)
    for update in range(n_updates):
        most = min(longest, 5 + (longest - 5) * 2 * update // n_updates)
        yield block_strings(letters, [draw.randint(1, draw.randint(1, most)) for _ in range(BATCH)])


@torch.no_grad()
def first_failure(reader: Reader, letters: str, up_to: int, threshold: float | None = THRESHOLD) -> int | None:
    """The least block size for which the reader's predictions are off, None where there is none `up_to` that size."""
    step = 25
    for begin in range(1, up_to + 1, step):
        sizes = range(begin, min(begin + step, up_to + 1))
        read, follow = block_strings(letters, sizes)
        probs = reader(read).softmax(-1)
        predicted = probs >= (probs.amax(-1, keepdim=True) if threshold is None else threshold)
        expected = one_hot(follow.clamp(min=0), reader.n_symbols).bool()
        judged = (follow >= 0) & ((read > 1) | (torch.arange(read.shape[1]) > torch.tensor(sizes)[:, None]))
        wrong = ((predicted != expected).any(-1) & judged).any(-1)
        if wrong.any():
            return begin + int(wrong.nonzero()[0])
    return None


def prefix_strings(length: int, blocks: range, n: int, draw: random.Random) -> tuple[Tensor, Tensor]:
    """n strings of a (0) and b (1), and after each symbol whether the prefix is in $a^k b^k w$, k > 0; [n, length].

    Half of them are: a block of a, an equal block of b, anything. In the others a follows 1 to 3 b too early.
    """
    read = torch.tensor([[draw.getrandbits(1) for _ in range(length)] for _ in range(n)])
    label = torch.zeros(n, length, dtype=torch.int64)
    for i in range(n):
        k = draw.choice(blocks)
        wanting = draw.randint(1, 3) if i % 2 else 0
        read[i, :k], read[i, k : 2 * k - wanting] = 0, 1
        if wanting:
            read[i, 2 * k - wanting] = 0
        else:
            label[i, 2 * k - 1 :] = 1
    return read, label


def prefix_batches(n_updates: int, seed: int) -> Iterable[tuple[Tensor, Tensor]]:
    """Strings of `PREFIX_LENGTH`."""
    draw = random.Random(seed)
    for _ in range(n_updates):
        yield prefix_strings(PREFIX_LENGTH, range(4, PREFIX_LENGTH // 2), BATCH, draw)


@torch.no_grad()
def prefix_accuracy(reader: Reader, length: int, most: int, seed: int = 0, n: int = 200) -> float:
    """The share of strings classified correctly at their last symbol, with blocks of 4 to `most` - 1."""
    read, label = prefix_strings(length, range(4, most), n, random.Random(length + most + seed))
    return (reader(read)[:, -1].argmax(-1) == label[:, -1]).double().mean().item()


@dataclass(frozen=True)
class Scale:
    """How much is trained and tried."""

    networks: Sequence[str]  # on blocks
    prefix_networks: Sequence[str]
    n_updates: int
    up_to: int
    lengths: Sequence[int]
    n_random: int  # networks of random weights, whose states are counted


STACKS = ("superposition", "stratification", SLOW)
SCALES = {
    "quick": Scale(("LSTM", "QRNN, ifo", "MinGRU"), ("LSTM", "QRNN, ifo"), 350, 100, (64, 128), 2),
    "full": Scale(
        tuple(NETWORKS),
        tuple(name for name in NETWORKS if name not in STACKS),
        4000,
        1000,
        (64, 128, 256, 512, 1024, 2048),
        40,
    ),
}
RANDOM: dict[str, Callable[[], Any]] = {
    "Elman, tanh": lambda: Elman(2, 3),
    "GRU": lambda: GRU(2, 3),
    "MinGRU": lambda: MinGRU(2, 3),
    "QRNN, fo, window 2": lambda: QRNN(2, 3, pooling="fo", window=2),
    "MinLSTM": lambda: MinLSTM(2, 3),
    "QRNN, ifo, window 1": lambda: QRNN(2, 3, pooling="ifo"),
    "QRNN, ifo, window 2": lambda: QRNN(2, 3, pooling="ifo", window=2),
    "LSTM": lambda: LSTM(2, 3),
}
BY_HAND = {"LSTM by hand": counting_lstm, "QRNN, ifo, by hand": counting_qrnn}


def trained(name: str, language: str, n_updates: int, seed: int) -> Reader:
    """A network trained on blocks of the letters "ab" or "abc", or on prefixes, "abw"."""
    n_symbols = 2 if language == "abw" else len(language) + 1
    with seeded(seed, torch.empty(0)):
        reader = Reader(NETWORKS[name](n_symbols), n_symbols, n_symbols)
    if language == "abw":
        train(reader, prefix_batches(n_updates, seed), n_updates)
    else:
        longest = min(LONGEST[language], CAPPED.get(name, LONGEST[language]))
        train(reader, block_batches(language, longest, n_updates, seed), n_updates)
    return reader


@torch.no_grad()
def first_failure_by_hand(acceptor: Acceptor, up_to: int) -> int | None:
    """The least n for which, of all beginnings of $a^n b^n (c^n)$ and one letter more, it accepts others than that."""
    for n in range(1, up_to + 1):
        word = "".join(letter * n for letter in acceptor.alphabet) + acceptor.alphabet[-1]
        if (acceptor.prefixes([word])[0] > 0).nonzero().flatten().tolist() != [len(word) - 1]:
            return n
    return None


def study(scale: str, track: Track[Any], seed: int = 0) -> Findings:
    """Blocks, prefixes, and the cells on $a^n b^n$ (see this module)."""
    chosen, seeds = SCALES[scale], seeds_from(seed, scale)
    kept: dict[tuple[str, str], Reader] = {}
    rows = []
    for language, name in track(list(product(LONGEST, chosen.networks)), "blocks"):
        slow = name == SLOW
        begun, row = time.process_time(), {"language": language, "network": name}
        for one in seeds[: 1 if slow else None]:
            reader = trained(name, language, chosen.n_updates // (8 if slow else 1), one)
            kept.setdefault((language, name), reader)
            up_to = min(chosen.up_to, 100) if slow else chosen.up_to
            for criterion, threshold in (("threshold", THRESHOLD), ("most probable", None)):
                row[f"{criterion}, seed {one}"] = _shown(first_failure(reader, language, up_to, threshold), up_to)
        rows.append(row | {"seconds": round(time.process_time() - begun)})
    for language, (name, make) in product(LONGEST, BY_HAND.items()):
        acceptor = make("anbn" if language == "ab" else "anbncn", torch.float32)
        begun = time.process_time()
        shown = _shown(first_failure_by_hand(acceptor, chosen.up_to), chosen.up_to)
        row = {f"{criterion}, seed {seeds[0]}": shown for criterion in ("threshold", "most probable")}
        rows.append({"language": language, "network": name} | row | {"seconds": round(time.process_time() - begun)})
    prefixes = []
    for name in track(chosen.prefix_networks, "prefixes"):
        readers = [trained(name, "abw", chosen.n_updates, one) for one in seeds]
        for blocks in ("as in training", "up to half"):
            row: dict[str, Any] = {"network": name, "blocks": blocks}
            for n in chosen.lengths:
                most = PREFIX_LENGTH // 2 if blocks == "as in training" else n // 2
                accuracies = [prefix_accuracy(reader, n, most, seed) for reader in readers]
                row[str(n)] = round(sum(accuracies) / len(accuracies), 3)
            prefixes.append(row)
    drawn = {name: reader for (language, name), reader in kept.items() if language == "ab" and name not in STACKS}
    figures = {"counting_cells": draw_cells(drawn, chosen.up_to)}
    tables = {
        "counting": pd.DataFrame(rows),
        "counting_prefixes": pd.DataFrame(prefixes),
        "counting_states": states(chosen),
    }
    return Findings(tables, figures, seeds, note_of(scale))


def states(chosen: Scale) -> pd.DataFrame:
    """The states that saturated networks of three units reach after n symbols of two kinds; weights are N(0, 1)."""
    rows = []
    for name, make in RANDOM.items():
        most = min(8 if name == "MinLSTM" else 32, chosen.up_to)  # a MinLSTM has up to 2^n
        lengths = [n for n in (1, 2, 4, 8, 16, 32) if n <= most]
        each = torch.tensor([_sizes(make(), seed, lengths) for seed in range(chosen.n_random)])
        growing = (each[:, -1] > each[:, -2]).sum().item()
        row: dict[str, Any] = {"network": name, "growing": f"{growing} of {chosen.n_random}"}
        greatest = each[each[:, -1].argmax()].tolist()
        rows.append(row | {f"most, n = {n}": str(size) for n, size in zip(lengths, greatest, strict=True)})
    return pd.DataFrame(rows).fillna("")


def _sizes(layer: Any, seed: int, lengths: Sequence[int]) -> list[int]:
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.double().parameters():
            parameter.normal_(generator=draw)
    sizes = count_states(Acceptor(saturated(layer), nn.Linear(3, 1).double(), "ab"), max(lengths))
    return [sizes[n] for n in lengths]


def _shown(failure: int | None, up_to: int) -> str:
    return f"> {up_to}" if failure is None else str(failure)


@torch.no_grad()
def cells(reader: Reader, n: int) -> Tensor:
    """What each unit holds after each symbol of $a^n b^n$, [1 + 2 n, D]: the cells of LSTM and QRNN, else the state."""
    read, _ = block_strings("ab", [n])
    layer, state, held_by_step = reader.layer, None, []
    for x in one_hot(read[0], reader.n_symbols).to(reader.head.weight.dtype):
        _, state = layer.step(x, state)
        held = state[1] if isinstance(layer, LSTM) else state.cell if isinstance(layer, QRNN) else state
        held_by_step.append(held[0])
    return torch.stack(held_by_step)


def draw_cells(readers: dict[str, Reader], n: int) -> Figure:
    """What the units of trained networks hold while $a^n b^n$ is read."""
    figure = Figure(figsize=(8, 1.5 + 1.5 * len(readers)), layout="constrained")
    panels: Any = figure.subplots(len(readers), sharex=True, squeeze=False)[:, 0]
    for panel, (name, reader) in zip(panels, readers.items(), strict=True):
        for unit, held in enumerate(cells(reader, n).mT):
            panel.plot(held.numpy(), linewidth=1, color=f"C{unit}", label=f"unit {unit + 1}")
        panel.axvline(n, color="0.6", linewidth=0.8, linestyle=":", label="first b")
        panel.set_title(name, loc="left", fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel(f"symbols read of {n} a and {n} b")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    from samplehold.cli.app import app

    app(["study", "counting", *sys.argv[1:]])
