"""Words of regular languages and of brackets, read with centroids and without: accuracy by length and depth.

A word is read after a start symbol. After every symbol the network says whether the prefix is in the language. In
training words are short; longer and deeper ones show whether states drift.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from reading import NO_LABEL, Labelled, Reader, Recipe
from samplehold.inference.numerics.extras import needs
from samplehold.models.automata.tomita import labelled_words, tomita
from samplehold.models.networks.peephole import PeepholeLSTM
from samplehold.models.networks.wrapped import GRU, LSTM
from study import Track
from torch.nn.functional import one_hot

if TYPE_CHECKING:
    from automata.fa.dfa import DFA

Words = Sequence[str]


@dataclass(frozen=True)
class Language:
    """Words for training, and longer or deeper words for tests."""

    name: str
    symbols: str
    labels_of: Callable[[str], list[bool]]  # whether each beginning of a word is in the language, the empty one first
    train: Words
    tests: dict[str, Words]  # of one length each
    recipes: tuple[Recipe, ...]

    def table(self, words: Words, all_steps: bool) -> Labelled:
        """Words after a start symbol, with a label at all steps or at the last one."""
        steps, start = 1 + max(map(len, words)), len(self.symbols)
        symbol = torch.full((len(words), steps), start)
        label = torch.full((len(words), steps), NO_LABEL)
        for n, word in enumerate(words):
            symbol[n, 1 : len(word) + 1] = torch.tensor([self.symbols.index(s) for s in word])
            label[n, : len(word) + 1] = torch.tensor(self.labels_of(word)).long()
            if not all_steps:
                label[n, : len(word)] = NO_LABEL
        return Labelled(one_hot(symbol, start + 1).float(), label)


def tomita_language(number: int, lengths: Sequence[int], each: int, recipe: Recipe, seed: int = 0) -> Language:
    """Training words have 1 to 16 symbols, half of each length in the language."""
    dfa = tomita(number)

    def labels_of(word: str) -> list[bool]:
        state, labels = dfa.initial_state, [dfa.initial_state in dfa.final_states]
        for symbol in word:
            state = dfa.transitions[state][symbol]
            labels.append(state in dfa.final_states)
        return labels

    def drawn(lengths: Sequence[int], each: int, seed: int) -> Words:
        return [word for word, _ in labelled_words(dfa, lengths, each, seed)]

    tests = {f"length {length}": drawn([length], each, 2 * seed + 1) for length in lengths}
    return Language(f"Tomita {number}", "01", labels_of, drawn(range(1, 17), 60, 2 * seed), tests, (recipe,))


def balanced(word: str) -> list[bool]:
    """Whether each beginning of a word is one of balanced parentheses."""
    depth, sound, labels = 0, True, [True]
    for symbol in word:
        depth += 1 if symbol == "(" else -1
        sound = sound and depth >= 0
        labels.append(sound and depth == 0)
    return labels


def brackets(depth: int) -> "DFA":
    """Balanced parentheses of at most this depth; a state for each depth, and -1 for all that is lost."""
    with needs("automata-lib", "machines"):
        from automata.fa.dfa import DFA

    moves = {d: {"(": d + 1 if d < depth else -1, ")": d - 1 if d else -1} for d in range(depth + 1)}
    return DFA(
        states={-1, *moves},
        input_symbols={"(", ")"},
        transitions=moves | {-1: {"(": -1, ")": -1}},
        initial_state=0,
        final_states={0},
    )


def bracket_words(length: int, above: int, depth: int, n: int, seed: int) -> Words:
    """Balanced words that are deeper than `above` and no deeper than `depth`; in every second, one symbol is turned."""
    draw, language, words = random.Random(seed), brackets(depth), []
    while len(words) < n:
        word = language.random_word(length, seed=draw.randrange(2**31))
        if max(word[: k + 1].count("(") - word[: k + 1].count(")") for k in range(length)) <= above:
            continue
        if len(words) % 2:
            k = draw.randrange(length)
            word = word[:k] + ")("[word[k] == ")"] + word[k + 1 :]
        words.append(word)
    return words


def bracket_language(
    places: Sequence[tuple[int, int, int]], each: int, recipes: tuple[Recipe, ...], seed: int = 0
) -> Language:
    """Training words have 2 to 24 symbols and a depth of 1 to 5; `places` are length, above and depth of others."""
    train = [word for length in range(2, 25, 2) for word in bracket_words(length, 0, 5, 80, length + 2000 * seed)]
    tests = {
        f"length {length}, depth {a + 1}-{b}": bracket_words(length, a, b, each, 1000 + 2000 * seed)
        for length, a, b in places
    }
    return Language("parentheses", "()", balanced, train, tests, recipes)


@dataclass(frozen=True)
class Trained:
    """A network of a language, and its accuracy on tests.

    `kind` is "plain"; "centroids", trained by its soft pass; or the same trained on, "chain" by its chain,
    "straight-through" in hard mode.
    """

    language: Language
    recipe: Recipe
    kind: str
    seed: int
    reader: Reader

    def accuracies(self) -> Iterator[dict[str, object]]:
        """Of every test, in soft and in hard mode where there are centroids."""
        where = {"language": self.language.name, "cell": self.recipe.kind.__name__, "seed": self.seed}
        for mode in ("soft",) if self.kind == "plain" else ("soft", "hard"):
            network = self.kind if self.kind == "plain" else f"{self.kind}, {mode}"
            for name, words in self.language.tests.items():
                share = self.reader.accuracy(self.language.table(words, all_steps=False), mode)
                row = where | {"network": network, "words": name, "accuracy": share}
                if mode == "hard":
                    path = self.reader.layer.run(self.language.table(words, all_steps=False).x, mode="hard").path
                    row["states"] = path.unique().numel()
                yield row


def languages(full: bool, seed: int = 0) -> list[Language]:
    """All of them, or two."""
    if not full:
        recipe = Recipe(GRU, 16, 10, n_steps=30)
        places = [(24, 0, 5), (50, 5, 10)]
        others = (Recipe(LSTM, 16, 10, n_steps=30),)
        return [tomita_language(1, (16, 50), 40, recipe, seed), bracket_language(places, 40, others, seed)]
    tomitas = [tomita_language(n, (16, 50, 100, 200, 400), 200, Recipe(GRU), seed) for n in range(1, 8)]
    places = [(24, 0, 5), (100, 0, 5), (200, 0, 5), (100, 5, 10), (200, 10, 20)]
    return [*tomitas, bracket_language(places, 200, (Recipe(LSTM), Recipe(PeepholeLSTM)), seed)]


def trained(some: Sequence[Language], seeds: Sequence[int], track: Track[Any]) -> Iterator[Trained]:
    """Every recipe of every language with centroids and without, from every seed."""
    runs = [(one, recipe, seed) for one in some for recipe in one.recipes for seed in seeds]
    for language, recipe, seed in track(runs, "languages"):
        data = language.table(language.train, all_steps=True)
        for kind in ("plain", "centroids"):
            start = recipe.make(data.x.shape[-1], 2, kind == "centroids", seed)
            reader = recipe.train(start, data, seed)
            yield Trained(language, recipe, kind, seed, reader)
            if kind == "centroids" and not reader.layer.remembers:
                yield Trained(language, recipe, "chain", seed, recipe.train_chain(deepcopy(reader), data, seed))
                hard = recipe.train_hard(deepcopy(reader), data, seed)
                yield Trained(language, recipe, "straight-through", seed, hard)
