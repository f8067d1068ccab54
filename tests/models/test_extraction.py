"""Machines out of networks that are machines by their weights, and what networks say of words."""

import random

import pytest
import samplehold as sh
import torch
from oracles.machines import all_words, network_of, random_machine
from samplehold.models.automata.teaching import Comparison, Teacher, as_dfa, run
from samplehold.models.automata.tomita import tomita
from scipy.stats import beta
from torch import nn

LAYERS = {
    "GRU": lambda n: sh.GRU(n, 4, num_layers=2, dtype=torch.float64),
    "LSTM": lambda n: sh.LSTM(n, 4, dtype=torch.float64),
    "Elman": lambda n: sh.Elman(n, 4, batch_first=False, dtype=torch.float64),
    "MinGRU": lambda n: sh.MinGRU(n, 4, num_layers=2, candidate="simplex", block=2, dtype=torch.float64),
    "MinLSTM": lambda n: sh.MinLSTM(n, 4, dtype=torch.float64),
    "QRNN": lambda n: sh.QRNN(n, 4, num_layers=2, window=2, dtype=torch.float64),
    "torch": lambda n: nn.LSTM(n, 4, dtype=torch.float64),
}
WORDS = ["", "a", "bab", "bbba", "abab", "b"]


def acceptor(kind: str, start: bool) -> sh.automata.Acceptor:
    torch.manual_seed(0)
    return sh.automata.Acceptor(LAYERS[kind](2 + start), nn.Linear(4, 1, dtype=torch.float64), "ab")


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
@torch.no_grad()
def test_a_word_is_told_by_the_last_output_of_the_layer_alone(kind, start):
    network = acceptor(kind, start)
    told = network(WORDS)
    for word, found in zip(WORDS, told, strict=True):
        rows = [2] * start + ["ab".index(x) for x in word]
        if rows:
            x = nn.functional.one_hot(torch.tensor(rows), 2 + start).double()
            out = network.layer(x)[0][-1]
        else:  # what the layer holds before a step
            out = network.layer.initial_state()[-1] if kind == "MinGRU" else torch.zeros(4, dtype=torch.float64)
        assert torch.allclose(network.readout(out)[0], found, rtol=0, atol=1e-12), word
    assert network.accepts(WORDS).tolist() == (told > 0).tolist()


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
@torch.no_grad()
def test_a_state_and_a_symbol_lead_to_the_state_of_the_longer_word(kind, start):
    network = acceptor(kind, start)
    states = network.states(WORDS)
    for symbol in "ab":
        later = network.states([word + symbol for word in WORDS])
        assert torch.allclose(network.advance(states, symbol), later, rtol=0, atol=1e-12)


def test_gradients_reach_layer_and_readout():
    network = acceptor("GRU", True)
    network(WORDS).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.slow
def test_a_stack_network_reads_a_start_symbol_and_is_taught_by_random_words():
    network = sh.automata.Acceptor(sh.stacks.SuperpositionStackRNN(3, 4), nn.Linear(4, 1), "ab").requires_grad_(False)
    assert not network.has_fixed_states
    network.readout.weight.zero_(), network.readout.bias.fill_(1.0)
    found = sh.automata.extract_automaton(network)
    assert (found.states, found.cells, found.faithfulness.exact) == (1, 0, True)
    with pytest.raises(ValueError, match="no fixed size"):
        sh.automata.extract_automaton(network, method="clusters")
    bare = sh.automata.Acceptor(sh.stacks.SuperpositionStackRNN(2, 4), nn.Linear(4, 1), "ab")
    with pytest.raises(ValueError, match="the start symbol of every word"):
        bare([""])


MACHINES = [(tomita(number), "01") for number in range(1, 8)]
MACHINES += [
    (random_machine(n, alphabet, seed), alphabet)
    for seed, (n, alphabet) in enumerate([(3, "a"), (6, "ab"), (5, "xyz"), (8, "01")])
]


@pytest.mark.few(2)
@pytest.mark.parametrize(("machine", "alphabet"), MACHINES)
def test_a_network_of_zeros_and_ones_is_found_exactly(machine, alphabet):
    network, least = network_of(machine, alphabet), machine.minify()
    for method in ("lstar", "clusters"):
        found = sh.automata.extract_automaton(
            network, method=method, n_clusters=4 * len(machine.states) * len(alphabet)
        )
        assert sh.automata.distance(found.automaton, machine).equal
        assert found.states == len(least.states) <= found.found
        assert found.complete
        assert found.faithfulness.exact
        assert (found.faithfulness.share == 1).all()


@pytest.mark.few(4)
@pytest.mark.parametrize(("machine", "alphabet"), MACHINES)
def test_centroids_that_are_states_give_the_machine(machine, alphabet):
    network = network_of(machine, alphabet)
    n_units = network.layer.hidden_size
    layer = sh.StateRegularized(network.layer, n_units, similarity="l2", mode="hard").requires_grad_(False)
    layer.centroids.copy_(torch.eye(n_units))
    found = sh.automata.extract_automaton(sh.automata.Acceptor(layer, network.readout, alphabet), method="centroids")
    assert sh.automata.distance(found.automaton, machine).equal
    assert found.states == len(machine.minify().states)
    assert found.queries == 0
    assert found.faithfulness.exact


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("similarity", "batch_first", "start"), [("dot", True, False), ("cosine", True, True), ("l2", False, True)]
)
def test_a_hard_network_is_its_machine_whatever_its_weights(similarity, batch_first, start):
    for seed in range(2):
        torch.manual_seed(seed)
        cell = sh.GRU(3 + start, 4, batch_first=batch_first, dtype=torch.float64)
        layer = sh.StateRegularized(cell, 6, temperature=0.3, similarity=similarity, mode="hard")
        readout = nn.Linear(4, 1, dtype=torch.float64)
        torch.nn.init.normal_(layer.centroids)
        readout.bias.data.fill_(-float(readout(layer.centroids).mean()))  # so that both answers occur
        network = sh.automata.Acceptor(layer, readout, "abc")
        found = sh.automata.extract_automaton(network, method="centroids")
        assert found.faithfulness.exact
        assert (found.faithfulness.share == 1).all()
        assert sh.automata.distance(found.automaton, sh.automata.extract_automaton(network, seed=seed).automaton).equal
        layer.mode = "soft"
        soft = sh.automata.extract_automaton(network, method="centroids")
        assert sh.automata.distance(soft.automaton, found.automaton).equal  # the hard step's machine in any mode


@pytest.mark.few(3)
@pytest.mark.parametrize("oracle", ["cells", "words"])
@pytest.mark.parametrize("number", range(1, 8))
def test_either_comparison_alone_teaches_the_seven_languages(number, oracle, monkeypatch):
    if oracle == "cells":
        monkeypatch.setattr(Comparison, "by_trial", lambda self, hypothesis: None)
    else:
        monkeypatch.setattr(sh.automata.Acceptor, "has_fixed_states", False)
    found = sh.automata.extract_automaton(network_of(tomita(number), "01"))
    assert sh.automata.distance(found.automaton, tomita(number)).equal
    assert (found.cells > 0) == (oracle == "cells")
    for word in found.counterexamples:
        assert set(word) <= {"0", "1"}


def test_cells_are_split_where_they_lie_across_two_states():
    """One cell to begin with: all that the machine tells apart is found by conflicts."""
    machine = tomita(5)
    network = network_of(machine, "01")
    comparison = Comparison(Teacher(network, 10_000), "01", 1, 0)
    from aalpy.learning_algs import run_Lstar

    exact = run_Lstar(list("01"), comparison.teacher, comparison, "dfa", cache_and_non_det_check=False, print_level=0)
    assert sh.automata.distance(as_dfa(exact, "01"), machine).equal
    assert comparison.by_abstraction(exact) is None
    assert comparison.cells >= 4
    assert all(run(exact, word) == machine.accepts_input(word) for word in all_words("01", 8))


def test_the_machine_of_some_symbols_reads_only_these():
    found = sh.automata.extract_automaton(network_of(tomita(5), "01"), "0")
    assert found.automaton.input_symbols == {"0"}
    assert found.states == 2
    assert found.faithfulness.exact


def test_a_teacher_that_is_asked_too_much_ends_with_its_last_machine():
    network = network_of(random_machine(30, "ab", 5), "ab")
    found = sh.automata.extract_automaton(network, max_queries=200)
    assert not found.complete
    assert found.queries <= 200
    assert found.states < 30
    with pytest.raises(ValueError, match=r"max_queries: got 2, too few for a first machine"):
        sh.automata.extract_automaton(network, max_queries=2)


def test_every_word_is_answered_once_and_always_the_same():
    network, asked = network_of(tomita(3), "01"), []
    true = network.accepts
    network.accepts = lambda words: (asked.extend(words), true(words))[1]
    teacher = Teacher(network, 100)
    assert teacher.query(tuple("101")) == [tomita(3).accepts_input(word) for word in ("1", "10", "101")]
    assert teacher.query(()) == [True]
    teacher.query(tuple("1011"))
    assert asked == ["1", "10", "101", "", "1011"]


def test_faithfulness_is_counted_word_by_word():
    machine, network = tomita(4), network_of(tomita(7), "01")
    found = sh.automata.faithfulness(machine, network, longest=9, lengths=[0, 3, 40], n_words=200, seed=5)
    agree = [machine.accepts_input(word) == tomita(7).accepts_input(word) for word in all_words("01", 9)]
    assert (found.words, found.agreeing) == (1023, sum(agree))
    assert (
        found.disagreement
        == sh.automata.distance(machine, tomita(7)).counterexample
        == all_words("01", 9)[agree.index(False)]
    )
    draw = random.Random(5)
    for i, length in enumerate((0, 3, 40)):
        words = ["".join(draw.choices("01", k=length)) for _ in range(200)]
        k = sum(machine.accepts_input(word) == tomita(7).accepts_input(word) for word in words)
        assert found.share[i] == k / 200
        assert found.lower[i].item() == pytest.approx(beta.ppf(0.025, k, 201 - k) if k else 0, abs=1e-9)
        assert found.upper[i].item() == pytest.approx(beta.ppf(0.975, k + 1, 200 - k) if k < 200 else 1, abs=1e-9)
    assert found.summary().index.tolist() == ["all to 9", "0", "3", "40"]


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (
            lambda n: sh.automata.Acceptor(sh.GRU(4, 2), nn.Linear(2, 1), "ab"),
            ValueError,
            r"alphabet: got 2 symbols, 'ab', for",
        ),
        (
            lambda n: sh.automata.Acceptor(sh.GRU(2, 2), nn.Linear(2, 1), ""),
            ValueError,
            r"alphabet: got '', expected at least",
        ),
        (lambda n: sh.automata.Acceptor(sh.GRU(2, 2), nn.Linear(2, 1), "aa"), ValueError, r"alphabet: got 'aa'"),
        (
            lambda n: sh.automata.Acceptor(sh.GRU(2, 2), nn.Linear(2, 1), ["a", "bc"]),
            ValueError,
            r"alphabet: got the symbol 'bc'",
        ),
        (
            lambda n: sh.automata.Acceptor(sh.GRU(2, 2, bidirectional=True), nn.Linear(4, 1), "ab"),
            ValueError,
            r"layer: reads in",
        ),
        (
            lambda n: sh.automata.Acceptor(sh.GRU(2, 2), nn.Linear(2, 3), "ab")(["a"]),
            ValueError,
            r"readout: gave shape",
        ),
        (lambda n: n(["ab", "axa"]), ValueError, r"words\[1\]: got 'axa', but 'x' is not one of the letters 'ab'"),
        (lambda n: n.states("ab"), TypeError, r"words: got the string 'ab', expected a list"),
        (lambda n: sh.automata.extract_automaton(n, "abc"), ValueError, r"alphabet: got 'abc', but 'c' is not one"),
        (
            lambda n: sh.automata.extract_automaton(n, method="kmeans"),
            ValueError,
            r"method: got 'kmeans', expected one of",
        ),
        (
            lambda n: sh.automata.extract_automaton(n, method="centroids"),
            ValueError,
            r'method: got "centroids", but the network',
        ),
        (
            lambda n: sh.automata.extract_automaton(regularized(sh.LSTM(2, 4)), method="centroids"),
            ValueError,
            r'method: got "centroids", but the cell is a LSTM, which has more memory',
        ),
        (
            lambda n: sh.automata.extract_automaton(regularized(sh.GRU(2, 4), mode="sample")),
            ValueError,
            r"network: its StateRegularized draws its states; set its mode to",
        ),
        (lambda n: sh.automata.extract_automaton(n, n_clusters=0), ValueError, r"n_clusters: got 0"),
        (
            lambda n: sh.automata.faithfulness(tomita(1), n),
            ValueError,
            r"machine: has the symbols \['0', '1'\], but the network",
        ),
        (
            lambda n: sh.automata.extract_automaton(
                sh.automata.Acceptor(n.layer, nn.Sequential(nn.Dropout(), n.readout), "ab")
            ),
            ValueError,
            r"network: its Dropout is in training",
        ),
    ],
)
def test_what_does_not_fit_is_named(spoil, error, message):
    with pytest.raises(error, match=message):
        spoil(acceptor("GRU", False))


def regularized(cell: nn.Module, mode: str = "soft") -> sh.automata.Acceptor:
    return sh.automata.Acceptor(sh.StateRegularized(cell, 3, mode=mode), nn.Linear(4, 1), "ab")
