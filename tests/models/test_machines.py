"""Distances between machines against all words one by one, and pictures that can be read."""

import pytest
import samplehold as sh
import torch
from automata.fa.dfa import DFA
from matplotlib.figure import Figure
from oracles.machines import all_words, random_machine
from samplehold.models.automata.tomita import tomita

PARTIAL = DFA(
    states={"q", "r"}, input_symbols={"a", "b"}, transitions={"q": {"a": "r"}, "r": {"b": "q"}}, initial_state="q",
    final_states={"q"}, allow_partial=True,
)  # fmt: skip
NOTHING = DFA(
    states={0}, input_symbols={"a"}, transitions={0: {}}, initial_state=0, final_states=set(), allow_partial=True
)
TWELVE = DFA(
    states=set(range(12)),
    input_symbols={"a", "b"},
    transitions={i: {"a": (i + 1) % 12, "b": 5 * i % 12} for i in range(12)},
    initial_state=0,
    final_states={0, 4, 7},
)


@pytest.mark.parametrize("seed", range(12))
def test_the_distance_is_that_of_all_words_one_by_one(seed):
    machine = random_machine(4, "ab", seed)
    target = PARTIAL if seed % 3 == 0 else random_machine(3, "ab", 100 + seed)
    found = sh.automata.distance(machine, target, longest=7)
    apart = [word for word in all_words("ab", 7) if machine.accepts_input(word) != target.accepts_input(word)]
    assert found.counterexample == (apart[0] if apart else None)
    share = [sum(len(word) == n for word in apart) / 2**n for n in range(8)]
    assert found.share.tolist() == share
    assert found.equal == (not apart)
    assert sh.automata.distance(target, machine, longest=7).counterexample == found.counterexample


def test_shares_of_long_words_are_exact_before_rounding():
    share = sh.automata.distance(tomita(4), tomita(4).universal_language({"0", "1"}), longest=1200).share
    assert share[-1] == 1.0  # all but e^-170 of the words have a 000
    assert bool((share.diff() >= 0).all())
    assert share[3] == 1 / 8


def test_equal_machines_have_no_distance():
    found = sh.automata.distance(tomita(7), tomita(7).complement().complement().to_partial())
    assert found.equal
    assert found.share.abs().sum() == 0


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "machine", [*(tomita(number) for number in range(1, 8)), PARTIAL, TWELVE, NOTHING, random_machine(12, "ab", 3)]
)
def test_a_picture_says_all_and_covers_nothing(machine):
    figure = sh.automata.plot_automaton(machine)
    figure.canvas.draw()
    texts = figure.axes[0].texts
    said = [text.get_text() for text in texts]
    pairs: dict[tuple, list] = {}
    for state, leads in machine.transitions.items():
        for symbol, later in leads.items():
            pairs.setdefault((state, later), []).append(symbol)
    labels = [", ".join(sorted(symbols)) for symbols in pairs.values()]
    assert sorted(said) == sorted([*map(str, machine.states), *labels])
    boxes = [text.get_window_extent() for text in texts]
    middles = torch.tensor([[(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2] for box in boxes])
    gaps = torch.cdist(middles, middles) + 1e9 * torch.eye(len(boxes))
    assert gaps.min() > 0.6 * min(box.height for box in boxes)
    circles = [patch for patch in figure.axes[0].patches if type(patch).__name__ == "Circle"]
    assert len(circles) == len(machine.states) + len(machine.final_states)


def test_many_letters_are_counted_on_an_arrow():
    machine = DFA.universal_language(set("abcdefg"))
    assert "a, b, … (7)" in [text.get_text() for text in sh.automata.plot_automaton(machine).axes[0].texts]


def test_a_picture_goes_where_it_is_asked_for():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert sh.automata.plot_automaton(tomita(2), right) is figure
    assert not left.patches
    assert right.patches


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (
            lambda: sh.automata.distance(tomita(1), PARTIAL),
            ValueError,
            r"target: has the symbols \['a', 'b'\], but dfa has",
        ),
        (lambda: sh.automata.distance(tomita(1), tomita(1), longest=-1), ValueError, r"longest: got -1"),
        (
            lambda: sh.automata.plot_automaton(random_machine(41, "a", 0)),
            ValueError,
            r"machine: has 41 states, expected at most",
        ),
    ],
)
def test_what_does_not_fit_is_named(spoil, error, message):
    with pytest.raises(error, match=message):
        spoil()
