"""Weighted automata against the networks and chains that they are, and against sums over all words."""

import pytest
import samplehold as sh
import torch
from oracles.machines import all_words
from torch import nn

LAYERS = {
    "linear": lambda n: sh.MinGRU(n, 3, dtype=torch.float64),
    "tanh, no bias": lambda n: sh.MinGRU(n, 3, candidate="tanh", bias=False, dtype=torch.float64),
    "positive": lambda n: sh.MinGRU(n, 3, candidate="positive", batch_first=False, dtype=torch.float64),
    "simplex": lambda n: sh.MinGRU(n, 4, candidate="simplex", block=2, dtype=torch.float64),
    "minLSTM": lambda n: sh.MinLSTM(n, 3, dtype=torch.float64),
    "f": lambda n: sh.QRNN(n, 3, pooling="f", dtype=torch.float64),
    "fo": lambda n: sh.QRNN(n, 3, pooling="fo", dtype=torch.float64),
    "ifo": lambda n: sh.QRNN(n, 3, pooling="ifo", bias=False, dtype=torch.float64),
}
WORDS = all_words("abc", 5)


@pytest.mark.few(4)
@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
@torch.no_grad()
def test_a_network_gated_by_its_symbols_is_a_weighted_automaton(kind, start):
    torch.manual_seed(1)
    layer = LAYERS[kind](3 + start)
    for parameter in layer.parameters():
        parameter.mul_(3)
    network = sh.automata.Acceptor(layer, nn.Linear(layer.hidden_size, 1, dtype=torch.float64), "abc")
    automaton = sh.automata.as_weighted_automaton(network)
    assert automaton.alphabet == ("a", "b", "c")
    assert automaton.n_states == 1 + layer.hidden_size * (1 + (kind in ("fo", "ifo")))
    words = [*WORDS, "abc" * 50]
    assert torch.allclose(automaton.values(words), network(words), rtol=1e-11, atol=1e-11)


def chain(kind: str) -> sh.SwitchingSSM:
    torch.manual_seed(2)
    emitted = torch.rand(3, 2, dtype=torch.float64).softmax(-1)
    first, moves = (
        torch.rand(3, dtype=torch.float64).softmax(-1),
        (3 * torch.rand(3, 3, dtype=torch.float64)).softmax(-1),
    )
    if kind == "markov":
        model = sh.SwitchingSSM(sh.Markov(3), sh.Categorical(2))
        return model.with_values(initial_probs=first, transition_probs=moves, probs=emitted)
    model = sh.SwitchingSSM(sh.Copy(3), sh.Categorical(2))
    return model.with_values(redraw_prob=torch.tensor(0.3, dtype=torch.float64), state_probs=first, probs=emitted)


@pytest.mark.parametrize("kind", ["markov", "copy"])
def test_a_hidden_chain_is_a_weighted_automaton(kind):
    model = chain(kind)
    automaton = sh.automata.as_weighted_automaton(model, "xy")
    for word in all_words("xy", 6)[1:]:
        evidence = model.log_evidence(["xy".index(symbol) for symbol in word])
        assert automaton.values([word])[0].log().item() == pytest.approx(float(evidence), abs=1e-11)
    assert torch.allclose(automaton.totals(30), torch.ones(31, dtype=torch.float64), rtol=1e-12)
    assert automaton.values([""])[0].item() == pytest.approx(1, rel=1e-14)


def fading(n_states: int, seed: int) -> sh.automata.WeightedAutomaton:
    """Probabilities of words that end."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.rand(n_states, 2 * n_states + 1, generator=draw, dtype=torch.float64)
    rows = rows / rows.sum(-1, keepdim=True)
    first = torch.rand(n_states, generator=draw, dtype=torch.float64)
    tables = {"a": rows[:, :n_states], "b": rows[:, n_states:-1]}
    return sh.automata.WeightedAutomaton(first / first.sum(), tables, rows[:, -1])


def test_totals_are_the_sums_over_all_words():
    automaton = fading(3, 0)
    for n, total in enumerate(automaton.totals(8)):
        words = [word for word in all_words("ab", n) if len(word) == n]
        assert total.item() == pytest.approx(automaton.values(words).sum().item(), rel=1e-12)
    assert automaton.total() == pytest.approx(1, rel=1e-12)
    assert automaton.totals(400).sum().item() == pytest.approx(1, rel=1e-12)
    grown = sh.automata.WeightedAutomaton([1.0], {"a": [[0.5]], "b": [[0.5]]}, [1.0])
    with pytest.raises(ValueError, match="spectral radius of 1,"):
        grown.total()


@pytest.mark.parametrize(("rank", "longest"), [(1, 1), (2, 1), (3, 2), (4, 2)])
def test_exact_values_give_back_the_function_everywhere(rank, longest):
    automaton = fading(rank, rank)
    words = all_words("ab", 2 * longest + 1)
    learned = sh.automata.spectral(dict(zip(words, automaton.values(words).tolist(), strict=True)), rank)
    beyond = all_words("ab", 9)
    assert torch.allclose(learned.values(beyond), automaton.values(beyond), rtol=0, atol=1e-9)
    assert learned.total() == pytest.approx(1, abs=1e-8)


def test_a_chain_is_learned_from_the_probabilities_of_short_words():
    automaton = sh.automata.as_weighted_automaton(chain("markov"), "xy")
    words = all_words("xy", 5)
    learned = sh.automata.spectral(dict(zip(words, automaton.values(words).tolist(), strict=True)), rank=2)
    assert learned.n_states == 2  # of three states two symbols tell fewer apart, or more than rounding tells
    assert float((learned.values(all_words("xy", 8)) - automaton.values(all_words("xy", 8))).abs().max()) < 0.01


def test_samples_give_an_approximation_that_gets_better():
    automaton, words = fading(2, 7), all_words("ab", 5)
    exact = automaton.values(all_words("ab", 12))
    share = exact / exact.sum()
    draw = torch.Generator().manual_seed(0)
    errors = []
    for n in (300, 100_000):
        drawn = torch.multinomial(share, n, replacement=True, generator=draw).tolist()
        every = all_words("ab", 12)
        learned = sh.automata.spectral([every[i] for i in drawn], rank=2)
        errors.append(float((learned.values(words) - automaton.values(words)).abs().max()))
    assert errors[1] < 0.01
    assert errors[1] < errors[0]


def test_prefixes_of_series_without_an_end():
    model = sh.SwitchingSSM(sh.Markov(2), sh.Categorical(2)).with_values(
        initial_probs=[0.5, 0.5], transition_probs=[[0.9, 0.1], [0.2, 0.8]], probs=[[0.9, 0.1], [0.1, 0.9]]
    )
    x = model.simulate(12, (20_000,), seed=0).x[..., 0].long().tolist()
    learned = sh.automata.spectral(["".join(map(str, row)) for row in x], rank=2, count="prefixes")
    exact = sh.automata.as_weighted_automaton(model)
    words = all_words("01", 5)
    assert float((learned.values(words) - exact.values(words)).abs().max()) < 0.03


GOOD = {"": 1.0, "a": 0.5, "aa": 0.25, "aaa": 0.125}


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (
            lambda: sh.automata.spectral(GOOD, 2),
            ValueError,
            r"rank: got 2, but the Hankel matrix of 2 prefixes and suffixes has",
        ),
        (lambda: sh.automata.spectral(GOOD, 0), ValueError, r"rank: got 0, expected an integer of at least 1"),
        (lambda: sh.automata.spectral(GOOD, 1, longest=2), ValueError, r"values: has none of 'aaaa'"),
        (lambda: sh.automata.spectral(GOOD, 1, "ab"), ValueError, r"values: has none of 'b'"),
        (
            lambda: sh.automata.spectral(GOOD, 1, "b"),
            ValueError,
            r"values: got 'a', but 'a' is not one of the letters 'b'",
        ),
        (lambda: sh.automata.spectral(GOOD | {"a": float("nan")}, 1), ValueError, r"values\['a'\]: got nan"),
        (lambda: sh.automata.spectral({}, 1), ValueError, r"values: got no word"),
        (
            lambda: sh.automata.spectral(["a"], 1, count="prefixes"),
            ValueError,
            r"values: got words of at most 1 symbols",
        ),
        (
            lambda: sh.automata.WeightedAutomaton([1.0], {}, [1.0]),
            ValueError,
            r"transitions: got \[\], expected at least one",
        ),
        (
            lambda: sh.automata.WeightedAutomaton([1.0], {"a": [[1.0, 2.0]]}, [1.0]),
            ValueError,
            r"transitions\['a'\]: got shape",
        ),
        (
            lambda: sh.automata.WeightedAutomaton([1.0], {"a": [[1.0]]}, [torch.inf]),
            ValueError,
            r"final: got numbers that are not",
        ),
        (
            lambda: sh.automata.WeightedAutomaton([1.0], {"a": [[1.0]]}, [1.0]).values(["b"]),
            ValueError,
            r"words\[0\]: got 'b'",
        ),
        (lambda: of(sh.GRU(2, 2)), ValueError, r"network: the gates of its GRU read its own state"),
        (lambda: of(sh.MinGRU(2, 2, num_layers=2)), ValueError, r"network: its MinGRU has 2 layers"),
        (lambda: of(sh.MinGRU(2, 2), nn.Linear(2, 2)), ValueError, r"network: its readout has 2 outputs"),
        (lambda: of(sh.QRNN(2, 2, window=2)), ValueError, r"network: the gates of its QRNN read 2 symbols each"),
        (
            lambda: of(sh.MinGRU(2, 2), nn.Sequential(nn.Tanh(), nn.Linear(2, 1))),
            ValueError,
            r"readout is a Sequential",
        ),
        (
            lambda: sh.automata.as_weighted_automaton(chain("copy"), "x"),
            ValueError,
            r"alphabet: got 1 symbols for 2 categories",
        ),
        (
            lambda: sh.automata.as_weighted_automaton(sh.SwitchingSSM(sh.Copy(2), sh.Normal())),
            ValueError,
            r"network: got SwitchingSSM\(.*, expected Markov or Copy dynamics with Categorical emissions",
        ),
    ],
)
def test_what_does_not_fit_is_named(spoil, error, message):
    with pytest.raises(error, match=message):
        spoil()


def of(layer: nn.Module, readout: nn.Module | None = None) -> sh.automata.WeightedAutomaton:
    return sh.automata.as_weighted_automaton(sh.automata.Acceptor(layer, readout or nn.Linear(2, 1), "ab"))


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize(("bias", "offset"), [(False, False), (True, False), (False, True), (True, True)])
@torch.no_grad()
def test_a_linear_second_order_network_is_a_weighted_automaton(bias, offset, start):
    torch.manual_seed(3)
    layer = sh.automata.SecondOrder(3 + start, 4, bias=bias, dtype=torch.float64)
    layer.weight_l0.mul_(3)
    network = sh.automata.Acceptor(layer, nn.Linear(4, 1, bias=offset, dtype=torch.float64), "abc")
    automaton = sh.automata.as_weighted_automaton(network)
    assert automaton.n_states == 4 + (bias or offset)
    assert torch.allclose(automaton.values(WORDS), network(WORDS), rtol=1e-12, atol=1e-12)


def test_a_weighted_automaton_goes_through_a_second_order_network_unchanged():
    automaton = fading(4, 5)
    network = sh.automata.as_second_order(automaton)
    words = all_words("ab", 8)
    assert torch.allclose(network(words), automaton.values(words), rtol=1e-12, atol=0)
    back = sh.automata.as_weighted_automaton(network)
    assert torch.equal(back.initial, automaton.initial)
    assert torch.equal(back.final, automaton.final)
    assert all(torch.equal(back.transitions[z], automaton.transitions[z]) for z in "ab")


def test_a_learned_chain_starts_a_second_order_network_and_a_gated_network_becomes_one():
    model = chain("markov")
    exact = sh.automata.as_weighted_automaton(model, "xy")
    learned = sh.automata.spectral(
        dict(zip(all_words("xy", 7), exact.values(all_words("xy", 7)).tolist(), strict=True)), 3
    )
    network = sh.automata.as_second_order(learned)
    words = all_words("xy", 9)
    assert torch.allclose(network(words), exact.values(words), rtol=1e-7, atol=1e-12)
    network(words).sum().backward()
    assert all(parameter.grad.any() for parameter in network.parameters())


def test_second_order_layers_have_the_interface_of_the_others():
    torch.manual_seed(0)
    options = {"num_layers": 2, "bidirectional": True, "bias": True, "nonlinearity": "tanh", "dtype": torch.float64}
    layer, x = sh.automata.SecondOrder(3, 4, **options), torch.randn(2, 6, 3, dtype=torch.float64)
    out, h = layer(x, lengths=[6, 4])
    assert out.shape == (2, 6, 8)
    assert h.shape == (4, 2, 4)
    alone = layer(x[1, :4])
    assert torch.allclose(out[1, :4], alone[0], rtol=1e-12)
    single = sh.automata.SecondOrder(3, 4, dtype=torch.float64)
    whole, end = single(x)
    _, middle = single(x[:, :5])
    step, after = single.step(x[:, 5], middle)
    assert torch.allclose(step, whole[:, 5], rtol=1e-12)
    assert torch.allclose(after, end, rtol=1e-12)
    W, h_naive = single.weight_l0, single.start_l0
    for t in range(6):
        h_naive = torch.stack(
            [sum(W[n, i, j] * x[0, t, i] * h_naive[j] for i in range(3) for j in range(4)) for n in range(4)]
        )
    assert torch.allclose(whole[0, 5], h_naive, rtol=1e-10)
    acceptor = sh.automata.Acceptor(sh.automata.SecondOrder(2, 3, nonlinearity="tanh"), nn.Linear(3, 1), "ab")
    with pytest.raises(ValueError, match='network: its SecondOrder layer has nonlinearity="tanh"'):
        sh.automata.as_weighted_automaton(acceptor)
