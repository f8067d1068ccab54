"""How well stack networks learn context-free languages: excess cross-entropy over the exact bound, by seed.

`python tests/benchmarks/stack_languages.py` trains an LSTM and three stack networks on strings of up to 40 symbols and
prints a markdown table: nats per symbol above the entropy rate of the source, on longer strings (40 to 100 symbols) and
on strings as long as those trained on. One thread; `--languages`, `--networks`, `--seeds` and `--updates` choose less.

Each language is a distribution with exact samples and exact probabilities: a number of pairs, geometric within a range
of lengths for training (so that nothing but the range tells where a string ends) and uniform for testing, then a string
uniform among those of that length. Strings end with an end symbol, which is predicted too. The bound is that of the
strings tested; a learner cannot know that long strings are all that comes, so the table also gives the excess of one
that knows the source of the training strings, without their longest length, exactly.
"""

import argparse
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from samplehold.face.stacks import NondeterministicStackRNN, StratificationStackRNN, SuperpositionStackRNN
from samplehold.models.networks.stack_network import StackRNN
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

HIDDEN = 20
STOP = 0.1  # in training, a string goes on with probability 0.9 after each pair


class Language(ABC):
    """Strings over 0..n_symbols-1, made from a number of pairs."""

    n_symbols: int

    @abstractmethod
    def length(self, pairs: int) -> int:
        """Symbols in a string."""

    @abstractmethod
    def draw(self, pairs: int, rng: random.Random) -> list[int]:
        """One of all strings with so many pairs, uniformly."""

    @abstractmethod
    def log_count(self, pairs: int) -> float:
        """log of the number of these strings."""

    def sizes(self, shortest: int, longest: int) -> list[int]:
        """Numbers of pairs that make strings of so many symbols."""
        return [n for n in range(1, longest) if shortest <= self.length(n) <= longest]


class Counting(Language):
    """a^n b^n."""

    n_symbols = 2

    def length(self, pairs: int) -> int:
        return 2 * pairs

    def draw(self, pairs: int, rng: random.Random) -> list[int]:
        return [0] * pairs + [1] * pairs

    def log_count(self, pairs: int) -> float:
        return 0.0


class Dyck(Language):
    """Balanced strings of two kinds of brackets; 0, 1 open, 2, 3 close."""

    n_symbols = 4

    def length(self, pairs: int) -> int:
        return 2 * pairs

    def draw(self, pairs: int, rng: random.Random) -> list[int]:
        """Step by step, with the exact number of ways to finish (ballot numbers)."""
        string, stack = [], []
        for left in range(2 * pairs, 0, -1):
            opening = _finishes(left - 1, len(stack) + 1)
            closing = _finishes(left - 1, len(stack) - 1) if stack else 0
            if rng.randrange(opening + closing) < opening:
                stack.append(rng.randrange(2))
                string.append(stack[-1])
            else:
                string.append(2 + stack.pop())
        return string

    def log_count(self, pairs: int) -> float:
        return math.log(_finishes(2 * pairs, 0)) + pairs * math.log(2)


def _finishes(steps: int, height: int) -> int:
    """Paths of up and down steps from a height to 0 that never go below 0."""
    if height < 0 or height > steps or (steps - height) % 2:
        return 0
    up = (steps - height) // 2
    return math.comb(steps, up) - (math.comb(steps, up - 1) if up else 0)


class Reversal(Language):
    """w # reversed w, over two symbols; # is 2."""

    n_symbols = 3

    def length(self, pairs: int) -> int:
        return 2 * pairs + 1

    def draw(self, pairs: int, rng: random.Random) -> list[int]:
        word = [rng.randrange(2) for _ in range(pairs)]
        return [*word, 2, *reversed(word)]

    def log_count(self, pairs: int) -> float:
        return pairs * math.log(2)


LANGUAGES: dict[str, Language] = {"a^n b^n": Counting(), "Dyck-2": Dyck(), "marked reversal": Reversal()}
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "LSTM": lambda n: nn.LSTM(n, HIDDEN, batch_first=True),
    "superposition": lambda n: SuperpositionStackRNN(n, HIDDEN, value_size=3),
    "stratification": lambda n: StratificationStackRNN(n, HIDDEN, value_size=3),
    "nondeterministic 1-1-3": lambda n: NondeterministicStackRNN(n, HIDDEN, 1, 1, value_size=3),
}


@dataclass(frozen=True)
class Batch:
    """Strings padded with -1 after their end symbol, and -log of the probability with which the source drew each."""

    symbols: Tensor
    nats: Tensor


def draw(language: Language, n: int, shortest: int, longest: int, rng: random.Random, stop: float = 0.0) -> Batch:
    """n strings with lengths in a range, whose number of pairs has weight (1 - stop)^pairs."""
    sizes = language.sizes(shortest, longest)
    weights = [(1 - stop) ** k for k in sizes]
    pairs = rng.choices(sizes, weights, k=n)
    strings = [torch.tensor([*language.draw(k, rng), language.n_symbols]) for k in pairs]
    nats = [math.log(sum(weights)) - k * math.log(1 - stop) + language.log_count(k) for k in pairs]
    return Batch(nn.utils.rnn.pad_sequence(strings, batch_first=True, padding_value=-1), torch.tensor(nats))


class Predictor(nn.Module):
    """Next-symbol probabilities from hidden state and reading; the input at a step is the symbol before it."""

    def __init__(self, layer: nn.Module, n_symbols: int) -> None:
        super().__init__()
        self.layer, self.n_symbols = layer, n_symbols
        self.readout = nn.Linear(HIDDEN + getattr(layer, "reading_size", 0), n_symbols + 1)

    def nats(self, symbols: Tensor) -> Tensor:
        """Summed cross-entropy of a batch of strings."""
        before = torch.cat([torch.full_like(symbols[:, :1], self.n_symbols), symbols[:, :-1]], 1).clamp_min(0)
        x = one_hot(before, self.n_symbols + 1).to(self.readout.weight.dtype)
        if isinstance(self.layer, StackRNN):
            run = self.layer.run(x)
            seen = torch.cat([run.output, run.reading], -1)
        else:
            seen, _ = self.layer(x)
        logits = self.readout(seen)
        return cross_entropy(logits.flatten(0, 1), symbols.flatten(), ignore_index=-1, reduction="sum")


def train(name: str, language: Language, seed: int, updates: int, longest: int = 40, rate: float = 0.02) -> Predictor:
    """A network trained by Adam on fresh batches of 16 strings, which grow to their full length in the first half."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Predictor(NETWORKS[name](language.n_symbols + 1), language.n_symbols)
    rng = random.Random(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=updates, pct_start=0.1)
    for update in range(updates):
        grown = min(longest, 6 + (longest - 6) * 2 * update // updates)
        symbols = draw(language, 16, 1, grown, rng, stop=STOP).symbols
        loss = model.nats(symbols) / (symbols >= 0).sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model


def excess(model: Predictor, language: Language, shortest: int, longest: int, n: int = 200, stop: float = 0.0) -> float:
    """Cross-entropy less the exact bound, in nats per symbol (the end symbol included), on n fresh strings."""
    batch = draw(language, n, shortest, longest, random.Random(1000), stop)
    with torch.no_grad():
        nats = sum(float(model.nats(part)) for part in batch.symbols.split(20))
    return (nats - float(batch.nats.sum())) / float((batch.symbols >= 0).sum())


def best_possible(language: Language, shortest: int, longest: int) -> float:
    """The excess of a learner that has found the source of the training strings, with no longest length, exactly."""
    sizes = language.sizes(shortest, longest)
    nats = [-math.log(STOP) - (k - 1) * math.log(1 - STOP) - math.log(len(sizes)) for k in sizes]
    return sum(nats) / sum(language.length(k) + 1 for k in sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--languages", nargs="*", default=list(LANGUAGES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.seeds)
    print("Cross-entropy above the exact bound, nats per symbol, by seed.\n")
    print("| language | network | strings of 40 to 100 | mean | strings of up to 40 | mean | seconds a seed |")
    print("|---|---|---|---|---|---|---|")
    for title in options.languages:
        language = LANGUAGES[title]
        print(f"| {title} | the source, known exactly | | {best_possible(language, 40, 100):.3f} | | 0 | |")
        for name in options.networks:
            begun, long, short = time.process_time(), [], []
            for seed in seeds:
                model = train(name, language, seed, options.updates)
                long.append(excess(model, language, 40, 100))
                short.append(excess(model, language, 1, 40, stop=STOP))
            cells = (f"{', '.join(f'{x:.3f}' for x in row)} | {sum(row) / len(row):.3f}" for row in (long, short))
            taken = (time.process_time() - begun) / options.seeds
            print(f"| {title} | {name} | {' | '.join(cells)} | {taken:.0f} |", flush=True)


if __name__ == "__main__":
    main()
