"""Angluin's L* with a network as its teacher (Weiss, Goldberg & Yahav 2018, *Extracting automata from RNNs*).

The learner, from AALpy, asks whether words are accepted, and proposes machines. A machine is compared with the network
in two ways. The first uses words: the shortest ones, and random ones. The second uses a *state abstraction*: a
partition of the network's states into cells, each represented by the first word that reached it. Words are explored
from the empty one, shortest first, and only from the first word of each cell, so exploration ends when all cells are
known. Meanwhile

        the network and the machine disagree on a word         it is a counterexample
        one cell is reached in two states of the machine        a word that separates these two is read after both
        words:
                                                                if the machine is wrong after one, a counterexample;
                                                                if the network separates the two words, the cell is
                                                                split
                                                                between the states that they led to

Cells start as the k-means clusters of states after such words. A cell is split into the part nearer to one state and
the part nearer to the other.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ...inference.numerics.extras import needs
from .acceptor import Acceptor
from .distances import longest_within, short_words

if TYPE_CHECKING:
    from automata.fa.dfa import DFA
    from sklearn.cluster import KMeans

SHORT = 255  # at most this many short words, all of those up to some length
LONGEST, DRAWN = 30, 1000  # length and number of random words in a comparison


class Exhausted(Exception):
    """The teacher has answered the maximal number of queries."""


class Teacher:
    """A network that answers each word once, and always the same; AALpy's "system under learning"."""

    network: Acceptor
    max_queries: int

    def __init__(self, network: Acceptor, max_queries: int) -> None:
        self.network, self.max_queries = network, max_queries
        self.answers: dict[str, bool] = {}
        self.num_queries = self.num_steps = 0  # which AALpy reads

    def accepts(self, words: Sequence[str]) -> list[bool]:
        new = list(dict.fromkeys(word for word in words if word not in self.answers))
        if len(self.answers) + len(new) > self.max_queries:
            raise Exhausted
        self.answers.update(zip(new, self.network.accepts(new).tolist(), strict=True))
        return [self.answers[word] for word in words]

    def query(self, word: tuple[str, ...]) -> list[bool]:
        """Answers for all prefixes of a word except the empty one, which is asked separately."""
        text = "".join(word)
        return self.accepts([text[:i] for i in range(1, len(text) + 1)] or [""])


@dataclass(frozen=True)
class Landmarks:
    """A partition of states by the nearest of several points, or of two points in one part."""

    points: np.ndarray  # [n, S]

    def nearest(self, state: np.ndarray) -> int:
        return int(((self.points - state) ** 2).sum(1).argmin())


class Partition:
    """A tree of landmarks whose leaves are cells; the path to a cell is its name."""

    def __init__(self, points: np.ndarray) -> None:
        self.tree: dict[tuple[int, ...], Landmarks] = {(): Landmarks(points)}

    def cell(self, state: np.ndarray) -> tuple[int, ...]:
        way: tuple[int, ...] = ()
        while way in self.tree:
            way = (*way, self.tree[way].nearest(state))
        return way

    def split(self, cell: tuple[int, ...], one: np.ndarray, other: np.ndarray) -> None:
        self.tree[cell] = Landmarks(np.stack([one, other]))


class Comparison:
    """AALpy's "equivalence oracle"; keeps the last machine and the counterexamples."""

    cells: int
    teacher: Teacher
    alphabet: tuple[str, ...]
    draw: random.Random
    max_cells: int

    def __init__(self, teacher: Teacher, alphabet: Sequence[str], n_clusters: int, seed: int) -> None:
        self.teacher, self.alphabet = teacher, tuple(alphabet)
        self.draw, self.max_cells = random.Random(seed), 16 * n_clusters
        self.num_queries = self.num_steps = 0  # which AALpy reads
        self.last: Any = None
        self.counterexamples: list[str] = []
        self.partition: Partition | None = None
        self.known: dict[str, np.ndarray] = {}
        self.cells = 0
        if teacher.network.has_fixed_states:
            words = trial_words(self.alphabet, 2 * n_clusters, self.draw)
            self.partition = Partition(clusters(teacher.network.states(words), n_clusters, seed).cluster_centers_)

    def find_cex(self, hypothesis: Any) -> tuple[str, ...] | None:
        """A word on which the network and the machine disagree; None if none is found."""
        self.last = hypothesis
        word = self.by_abstraction(hypothesis) if self.partition is not None else None
        word = self.by_trial(hypothesis) if word is None else word
        if word is None:
            return None
        self.counterexamples.append(word)
        return tuple(word)

    def by_trial(self, hypothesis: Any) -> str | None:
        """The shortest such word among all short words and random ones."""
        words = trial_words(self.alphabet, DRAWN // LONGEST, self.draw)
        answers = self.teacher.accepts(words)
        wrong = [word for word, accepted in zip(words, answers, strict=True) if run(hypothesis, word) != accepted]
        return min(wrong, key=lambda word: (len(word), word), default=None)

    def by_abstraction(self, hypothesis: Any) -> str | None:
        """A counterexample; None if the machine and the cells agree, or there are too many cells."""
        while True:
            conflict = self._explored(hypothesis)
            if conflict is None or isinstance(conflict, str):
                return conflict
            assert self.partition is not None
            cell, word, first = conflict
            self.partition.split(cell, self._state(word), self._state(first))

    def _explored(self, hypothesis: Any) -> str | tuple[tuple[int, ...], str, str] | None:
        """A counterexample; or a cell to split, and the two words that lead to it; or None if all agree."""
        assert self.partition is not None
        reached: dict[tuple[int, ...], tuple[str, Any]] = {}
        front = [("", hypothesis.initial_state)]
        while front and len(reached) < self.max_cells:
            self._look_up([word for word, _ in front])
            later = []
            for word, at in front:
                if self.teacher.accepts([word])[0] != at.is_accepting:
                    return word
                cell = self.partition.cell(self.known[word])
                if cell not in reached:
                    reached[cell] = word, at
                    later += [(word + symbol, at.transitions[symbol]) for symbol in self.alphabet]
                    continue
                first, other = reached[cell]
                if other is not at:
                    result = self._resolved(hypothesis, cell, word, first, at, other)
                    if result is not None:
                        return result
            front = later
        self.cells = len(reached)
        return None

    def _resolved(
        self, hypothesis: Any, cell: tuple[int, ...], word: str, first: str, at: Any, other: Any
    ) -> str | tuple[tuple[int, ...], str, str] | None:
        end = "".join(hypothesis.find_distinguishing_seq(at, other, list(self.alphabet)) or ())
        for start in (word, first):
            if self.teacher.accepts([start + end])[0] != run(hypothesis, start + end):
                return start + end
        same = np.array_equal(self._state(word), self._state(first))
        return None if same else (cell, word, first)

    def _state(self, word: str) -> np.ndarray:
        return self.known[word]

    def _look_up(self, words: Sequence[str]) -> None:
        new = [word for word in words if word not in self.known]
        if new:
            states = self.teacher.network.states(new).cpu().double().numpy()
            self.known.update(zip(new, states, strict=True))


def learned(teacher: Teacher, comparison: Comparison) -> "tuple[DFA, bool]":
    """The final machine of L*, and whether the search for counterexamples ended before the queries ran out."""
    with needs("AALpy", "machines"):
        from aalpy.learning_algs import run_Lstar

    try:
        machine, complete = (
            run_Lstar(
                list(comparison.alphabet),
                teacher,  # pyright: ignore[reportArgumentType]
                comparison,  # pyright: ignore[reportArgumentType]
                automaton_type="dfa",
                cache_and_non_det_check=False,
                print_level=0,
            ),
            True,
        )
    except Exhausted:
        machine, complete = comparison.last, False
        if machine is None:
            raise ValueError(
                f"max_queries: got {teacher.max_queries}, too few for a first machine; give more."
            ) from None
    return as_dfa(machine, comparison.alphabet), complete


def as_dfa(machine: Any, alphabet: Sequence[str]) -> "DFA":
    """AALpy's machine as a machine of automata-lib."""
    with needs("automata-lib", "machines"):
        from automata.fa.dfa import DFA

    number = {state.state_id: i for i, state in enumerate(machine.states)}
    return DFA(
        states=set(number.values()),
        input_symbols=set(alphabet),
        transitions={
            number[state.state_id]: {symbol: number[state.transitions[symbol].state_id] for symbol in alphabet}
            for state in machine.states
        },
        initial_state=number[machine.initial_state.state_id],
        final_states={number[state.state_id] for state in machine.states if state.is_accepting},
    )


def run(machine: Any, word: str) -> bool:
    """Whether AALpy's machine accepts a word."""
    state = machine.initial_state
    for symbol in word:
        state = state.transitions[symbol]
    return state.is_accepting


def trial_words(alphabet: Sequence[str], each: int, draw: random.Random) -> list[str]:
    """All short words, the empty one first, and `each` random ones of every length, without duplicates."""
    short = short_words(alphabet, longest_within(len(alphabet), SHORT))
    drawn = ["".join(draw.choices(alphabet, k=length)) for length in range(1, LONGEST + 1) for _ in range(each)]
    return list(dict.fromkeys([*short, *drawn]))


def clusters(states: Tensor, n_clusters: int, seed: int) -> "KMeans":
    """k-means of states. There are at most as many clusters as distinct states."""
    from sklearn.cluster import KMeans

    points = states.cpu().double().numpy()
    n_clusters = min(n_clusters, len(np.unique(points, axis=0)))
    return KMeans(n_clusters, n_init="auto", random_state=seed % 2**32).fit(points)
