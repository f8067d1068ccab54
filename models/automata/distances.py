"""Distances between two machines, and between a machine and a network: shares of words, exact or by samples."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Float, Int

from ...inference.numerics.checks import check_parts
from ...inference.numerics.extras import needs
from ...inference.numerics.randomness import Seed
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_integer, check_kind
from ...switching.seeding import number_of
from .acceptor import Acceptor

if TYPE_CHECKING:
    from automata.fa.dfa import DFA

LENGTHS = (20, 50, 100)
MOST_WORDS = 4095  # the default limit for words that are read one by one
CONFIDENCE = 0.95


@dataclass(frozen=True, repr=False)
class Distance(Record):
    """The distance between the languages of two machines.

    Arguments:
        counterexample: the shortest word that only one machine accepts, the first in the order of the alphabet; None if
            the languages are equal.
        share: for each length 0, 1, ..., the share of words that only one machine accepts, exact before rounding.
    """

    counterexample: str | None
    share: Float[torch.Tensor, "n"]

    @property
    def equal(self) -> bool:
        """Whether both machines accept the same words of all lengths."""
        return self.counterexample is None


@dataclass(frozen=True, repr=False)
class Faithfulness(Record):
    """Agreement of a machine with a network on all short words, and on random words by length.

    Arguments:
        longest: all words of at most this many symbols were read.
        words: the number of these words.
        agreeing: the number of these words on which both agree.
        disagreement: the shortest word on which they disagree; None if there is none.
        lengths: of random words.
        drawn: the number of random words of each length, with uniform symbols.
        share: by length, the share of these words on which both agree.
        lower, upper: exact (Clopper-Pearson) intervals of 95% for this share among all words of the length.
    """

    longest: int
    words: int
    agreeing: int
    disagreement: str | None
    lengths: Int[torch.Tensor, "L"]
    drawn: int
    share: Float[torch.Tensor, "L"]
    lower: Float[torch.Tensor, "L"]
    upper: Float[torch.Tensor, "L"]

    @property
    def exact(self) -> bool:
        """Whether machine and network agree on every word of up to `longest` symbols."""
        return self.agreeing == self.words

    def summary(self) -> pd.DataFrame:
        """A row for all short words, and one for each length of random ones."""
        rows: list[tuple[Any, ...]] = [(f"all to {self.longest}", self.words, self.agreeing / self.words, None, None)]
        parts = (self.lengths, self.share, self.lower, self.upper)
        for length, *numbers in zip(*(part.tolist() for part in parts), strict=True):
            rows.append((str(length), self.drawn, *numbers))
        columns = ["symbols", "words", "agreement", "lower", "upper"]
        return pd.DataFrame(rows, columns=columns).set_index("symbols")


def distance(dfa: "DFA", target: "DFA", longest: int = 20) -> Distance:
    """Whether two machines accept the same words; if not, the share of words on which they differ.

    Arguments:
        dfa, target: machines with the same symbols.
        longest: shares are counted for the lengths 0 to this one.

    Raises:
        TypeError: a machine that is not an `automata.fa.dfa.DFA`, a number that is not an integer.
        ValueError: machines with different symbols.

    See Also:
        `faithfulness`, of a machine and a network; `extract_automaton`, which makes machines;
        docs/background/automata.md.

    Example:
        >>> import samplehold as sh
        >>> from samplehold.models.automata.tomita import tomita
        >>> result = sh.automata.distance(tomita(1), tomita(4), longest=3)  # no 0, against no 000
        >>> result.equal, result.counterexample, result.share.tolist()
        (False, '0', [0.0, 0.5, 0.75, 0.75])
        >>> sh.automata.distance(tomita(4), tomita(4).complement().complement()).equal
        True
    """
    dfa, target = check_machine("dfa", dfa), check_machine("target", target)
    longest = check_integer("longest", longest, least=0)
    if dfa.input_symbols != target.input_symbols:
        raise ValueError(
            f"target: has the symbols {sorted(target.input_symbols)}, but dfa has {sorted(dfa.input_symbols)}; "
            "give machines of one alphabet."
        )
    apart, symbols = dfa ^ target, len(dfa.input_symbols)
    counts = [Fraction(apart.count_words_of_length(n), symbols**n) for n in range(longest + 1)]
    return Distance(
        shortest_word(apart), torch.tensor([float(share) for share in counts], dtype=torch.float64, device="cpu")
    )


def faithfulness(
    machine: "DFA",
    network: Acceptor,
    longest: int | None = None,
    lengths: Sequence[int] = LENGTHS,
    n_words: int = 500,
    seed: Seed = 0,
) -> Faithfulness:
    """Measure how often a machine and a network agree on whether a word is accepted.

    Arguments:
        network: the network, an `Acceptor`.
        machine: its symbols must be symbols of the network; some may be missing.
        longest: all words of up to this many symbols are read; None: the greatest length with at most 4,095 words.
        lengths: of random words.
        n_words: random words of each length.
        seed: of the random words.

    Raises:
        TypeError: a machine or network of another kind, numbers that are not integers.
        ValueError: symbols that the network does not have; lengths less than 0; no words.

    See Also:
        `distance`, between two machines; `extract_automaton`, which makes a machine of a network;
        docs/background/automata.md.

    Example:
        >>> import torch, samplehold as sh
        >>> from samplehold.models.automata.tomita import tomita
        >>> network = sh.automata.Acceptor(sh.MinGRU(2, 1), torch.nn.Linear(1, 1), "01").requires_grad_(False)
        >>> _ = network.readout.weight.zero_(), network.readout.bias.fill_(1)  # accepts all
        >>> result = sh.automata.faithfulness(tomita(1), network, longest=2, lengths=[50])
        >>> result.words, result.agreeing, result.disagreement
        (7, 3, '0')
        >>> result.share.item(), round(result.upper.item(), 3)  # they agree on none of 500 words
        (0.0, 0.007)
    """
    from scipy.stats import binomtest

    machine, network = check_machine("machine", machine), check_network(network)
    alphabet = [symbol for symbol in network.alphabet if symbol in machine.input_symbols]
    if len(alphabet) < len(machine.input_symbols):
        raise ValueError(
            f"machine: has the symbols {sorted(machine.input_symbols)}, but the network reads "
            f"{list(network.alphabet)}; give a machine of these."
        )
    sizes = [check_integer("lengths", length, least=0) for length in check_parts("lengths", lengths, least=0)]
    longest = (
        longest_within(len(alphabet), MOST_WORDS) if longest is None else check_integer("longest", longest, least=0)
    )
    n_words, draw = check_integer("n_words", n_words), random.Random(number_of(seed))
    short = short_words(alphabet, longest)
    same = _same(machine, network, short)
    shares, lower, upper = [], [], []
    for length in sizes:
        words = ["".join(draw.choices(alphabet, k=length)) for _ in range(n_words)]
        agreeing = sum(_same(machine, network, words))
        interval = binomtest(agreeing, n_words).proportion_ci(CONFIDENCE, method="exact")
        shares.append(agreeing / n_words)
        lower.append(float(interval.low))
        upper.append(float(interval.high))
    numbers = (torch.tensor(part, dtype=torch.float64, device="cpu") for part in (shares, lower, upper))
    first = None if all(same) else short[same.index(False)]
    return Faithfulness(
        longest, len(short), sum(same), first, torch.tensor(sizes, dtype=torch.int64, device="cpu"), n_words, *numbers
    )  # fmt: skip


def shortest_word(machine: "DFA") -> str | None:
    """The first of the shortest words that a machine accepts; None if it accepts none."""
    front, seen = deque([("", machine.initial_state)]), {machine.initial_state}
    while front:
        word, state = front.popleft()
        if state in machine.final_states:
            return word
        for symbol, later in sorted(machine.transitions[state].items()):
            if later not in seen:
                seen.add(later)
                front.append((word + symbol, later))
    return None


def check_machine(name: str, machine: Any) -> "DFA":
    """A deterministic automaton of automata-lib whose symbols are letters."""
    with needs("automata-lib", "machines"):
        from automata.fa.dfa import DFA

    check_kind(name, machine, DFA, "an automata.fa.dfa.DFA")
    letters = all(isinstance(symbol, str) and len(symbol) == 1 for symbol in machine.input_symbols)
    if not machine.input_symbols or not letters:
        raise ValueError(
            f"{name}: has the symbols {sorted(machine.input_symbols, key=str)}, expected letters, at least one."
        )
    return machine


def check_network(network: Any) -> Acceptor:
    """An acceptor that gives the same answer at every call."""
    network = check_kind("network", network, Acceptor, "an Acceptor(layer, readout, alphabet)")
    for module in network.modules():
        drops = getattr(module, "p", getattr(module, "dropout", 0.0))
        if module.training and isinstance(drops, float) and drops > 0:
            raise ValueError(f"network: its {type(module).__name__} is in training, and drops inputs; use .eval().")
        if getattr(module, "mode", None) == "sample":
            raise ValueError(
                f'network: its {type(module).__name__} draws its states; set its mode to "soft" or "hard".'
            )
    return network


def short_words(alphabet: Sequence[str], longest: int) -> list[str]:
    """All words of up to `longest` symbols, shorter ones first, each length in the order of the alphabet."""
    return ["".join(word) for n in range(longest + 1) for word in product(alphabet, repeat=n)]


def longest_within(n_symbols: int, most: int) -> int:
    """The greatest length, up to 100, so that at most `most` words have up to this length."""
    longest, words = 0, 1 + n_symbols
    while words <= most and longest < 100:
        longest += 1
        words += n_symbols ** (longest + 1)
    return longest


def _same(machine: "DFA", network: Acceptor, words: list[str]) -> list[bool]:
    answers = network.accepts(words).tolist()
    return [machine.accepts_input(word) == accepted for word, accepted in zip(words, answers, strict=True)]
