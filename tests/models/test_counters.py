"""Networks that count by hand-set weights, their saturated limits, and the boxes that others stay in."""

import itertools
import re

import pytest
import samplehold as sh
import torch
from oracles.networks import with_normal_weights
from samplehold.models.automata import reachable
from samplehold.models.automata.counters import LANGUAGES
from torch.testing import assert_close

RULES = {
    "anbn": lambda w: re.fullmatch("a+b+", w) and w.count("a") == w.count("b"),
    "anbncn": lambda w: re.fullmatch("a+b+c+", w) and w.count("a") == w.count("b") == w.count("c"),
    "anbnw": lambda w: 0 < len(re.match("a*", w)[0]) <= len(re.match("a*(b*)", w)[1]),
}
BY_HAND = [(sh.automata.counting_lstm, name) for name in RULES] + [
    (sh.automata.counting_qrnn, name) for name in ("anbn", "anbncn")
]
CALLS = {
    "LSTM": (sh.LSTM, {}),
    "GRU": (sh.GRU, {}),
    "Elman": (sh.Elman, {}),
    "MinGRU": (sh.MinGRU, {}),
    "MinGRU, tanh": (sh.MinGRU, {"candidate": "tanh"}),
    "MinGRU, positive": (sh.MinGRU, {"candidate": "positive"}),
    "MinGRU, simplex": (sh.MinGRU, {"candidate": "simplex", "block": 2}),
    "MinLSTM": (sh.MinLSTM, {}),
    "QRNN, fo": (sh.QRNN, {"pooling": "fo", "window": 2}),
    "QRNN, ifo": (sh.QRNN, {"pooling": "ifo", "window": 2}),
    "DoublingLSTM": (sh.DoublingLSTM, {}),
}
BOXED = [name for name in CALLS if name not in ("LSTM", "QRNN, ifo", "DoublingLSTM")]


def build(name, seed=0, scale=2.0):
    kind, options = CALLS[name]
    layer = kind(3, 4, dtype=torch.float64, **options).requires_grad_(False)
    return with_normal_weights(layer, seed, scale)[0]


def symbols(steps, seed=1):
    random = torch.Generator().manual_seed(seed)
    return torch.eye(3, dtype=torch.float64)[torch.randint(3, (steps,), generator=random)]


@pytest.mark.parametrize(("make", "language"), BY_HAND)
def test_all_short_words_are_told_by_the_network_and_by_its_limit(make, language):
    acceptor = make(language)
    limit = sh.automata.Acceptor(sh.automata.saturated(acceptor.layer), acceptor.readout, acceptor.alphabet)
    assert acceptor.accepts([""]).tolist() == limit.accepts([""]).tolist() == [False]
    for n in range(1, 8 if language == "anbncn" else 10):
        words = ["".join(letters) for letters in itertools.product(LANGUAGES[language], repeat=n)]
        expected = [bool(RULES[language](word)) for word in words]
        assert acceptor.accepts(words).tolist() == limit.accepts(words).tolist() == expected


@pytest.mark.parametrize(("make", "language"), BY_HAND)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts_of_a_thousand_are_told_from_a_thousand_and_one(make, language, dtype):
    acceptor = make(language, dtype)
    blocks = [letter * 1000 for letter in LANGUAGES[language]]
    assert acceptor.accepts(["".join(blocks)])
    for k in range(len(blocks)):
        for change in (-1, 1):
            longer = [*blocks[:k], LANGUAGES[language][k] * (1000 + change), *blocks[k + 1 :]]
            assert bool(acceptor.accepts(["".join(longer)])) == bool(RULES[language]("".join(longer)))


def test_a_count_is_over_after_its_block():
    acceptor = sh.automata.counting_lstm("anbnw")
    for k in (500, 499):
        assert bool(acceptor.accepts(["a" * 500 + "b" * k + "ab" * 700 + "b" * 3000])) == (k == 500)


def test_the_counter_machine_of_the_hand_set_lstm_counts_up_and_down():
    acceptor = sh.automata.counting_lstm("anbn")
    machine = sh.automata.counter_machine(acceptor.layer, acceptor.inputs(["aaabbb"])[0])
    assert machine.cells[:, 0].tolist() == [1, 2, 3, 2, 1, 0]
    assert machine.hold[:, 0].tolist() == [1] * 6
    assert machine.add[:, 0].tolist() == [1, 1, 1, -1, -1, -1]
    assert machine.counts.tolist()[:1] == [True]


@pytest.mark.parametrize("name", CALLS)
def test_the_counter_machine_has_the_cells_of_the_saturated_layer(name):
    layer, x = build(name), symbols(40)
    machine = sh.automata.counter_machine(layer, x)
    if "simplex" in name:  # which does not start at 0
        assert machine.hold.unique().tolist() == [0, 1]
        return
    _, end = sh.automata.saturated(layer)(x)
    cell = end[1] if isinstance(end, tuple) and len(end) == 2 and "LSTM" in name else end
    cell = end.cell if name.startswith("QRNN") else cell
    assert_close(machine.cells[-1], cell[0], rtol=1e-12, atol=1e-12)
    assert set(machine.hold.unique().tolist()) <= {0, 0.5, 1, 2}


@pytest.mark.parametrize("name", CALLS)
def test_saturation_is_the_limit_of_ever_larger_weights(name):
    layer, x = build(name), symbols(12)
    large = build(name)
    endless = name in ("MinGRU", "MinGRU, positive", "MinLSTM")
    for weight in large.parameters():
        weight[: len(weight) - 4 * endless] *= 1e5
    assert_close(sh.automata.saturated(layer)(x)[0], large(x)[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CALLS)
def test_only_layers_whose_hold_and_draw_are_free_of_each_other_have_counters(name):
    found = [bool(sh.automata.counter_machine(build(name, seed), symbols(60, seed)).counts.any()) for seed in range(8)]
    assert any(found) == (name not in BOXED)


def widest(low, high, weight, bias):
    """The interval of weight @ z + bias with z in a box."""
    centre, radius = (low + high) / 2, (high - low) / 2
    middle = weight @ centre + bias
    spread = weight.abs() @ radius
    return middle - spread, middle + spread


def one_step(name, layer, low, high):
    """Interval arithmetic: a box that holds all states one step after those of a box, for inputs in 0 .. 1."""
    D, zero, one = 4, torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    if name in ("LSTM", "GRU", "Elman"):
        x_low, x_high = widest(zero, one, layer.weight_ih_l0, layer.bias_ih_l0)
        box = (low, high) if name != "LSTM" else (-torch.ones(D).double(), torch.ones(D).double())
        h_low, h_high = widest(*box, layer.weight_hh_l0, layer.bias_hh_l0)
        if name == "Elman":
            return (x_low + h_low).tanh(), (x_high + h_high).tanh()
        if name == "LSTM":
            (i_low, f_low, g_low, _), (i_high, f_high, g_high, _) = (x_low + h_low).chunk(4), (x_high + h_high).chunk(4)
            ends = [f * c for f in (f_low.sigmoid(), f_high.sigmoid()) for c in (low, high)]
            adds = [i * g for i in (i_low.sigmoid(), i_high.sigmoid()) for g in (g_low.tanh(), g_high.tanh())]
            return (
                torch.stack(ends).amin(0) + torch.stack(adds).amin(0),
                torch.stack(ends).amax(0) + torch.stack(adds).amax(0),
            )
        n_low, n_high = x_low[2 * D :], x_high[2 * D :]
        resets = [r * n for r in (0, 1) for n in (h_low[2 * D :], h_high[2 * D :])]
        candidate = (
            (n_low + torch.stack(resets).amin(0)).tanh(),
            (n_high + torch.stack(resets).amax(0)).tanh(),
        )
    elif name == "QRNN, fo":
        weight = layer.weight_l0.flatten(1)[D : 2 * D]
        ends = widest(zero.repeat_interleave(2), one.repeat_interleave(2), weight, layer.bias_l0[D : 2 * D])
        candidate = tuple(end.tanh() for end in ends)
    else:
        least, most = widest(zero, one, layer.rows()[-D:], layer.bias_l0[-D:])
        candidate = {
            "linear": lambda: (least, most),
            "tanh": lambda: (least.tanh(), most.tanh()),
            "positive": lambda: tuple(torch.where(c >= 0, c + 0.5, c.sigmoid()) for c in (least, most)),
            "simplex": lambda: (torch.zeros(D).double(), torch.ones(D).double()),
        }[layer.candidate]()
    return torch.minimum(low, candidate[0]), torch.maximum(high, candidate[1])  # (1 - g) h + g v, for every g in 0 .. 1


@pytest.mark.parametrize("name", BOXED)
@pytest.mark.parametrize("seed", range(3))
def test_no_step_leads_out_of_the_box(name, seed):
    layer = build(name, seed)
    box = sh.automata.state_box(layer)
    low, high = one_step(name, layer, box.lowest, box.highest)
    assert (low >= box.lowest - 1e-12).all()
    assert (high <= box.highest + 1e-12).all()
    assert (box.lowest <= 0).all()
    assert (box.highest >= 0).all()
    states = layer(symbols(2000, seed))[1]
    states = states.cell if name.startswith("QRNN") else states
    assert (states[0] >= box.lowest - 1e-9).all()
    assert (states[0] <= box.highest + 1e-9).all()


def test_the_interval_of_an_lstms_cells_grows_without_end_and_so_do_the_cells_of_one_that_counts():
    layer = sh.automata.counting_lstm("anbn").layer
    layer_4 = sh.LSTM(3, 4, dtype=torch.float64).requires_grad_(False)
    for parameter in layer_4.parameters():
        parameter.fill_(9.0)
    low = high = torch.zeros(4, dtype=torch.float64)
    for t in range(1, 50):
        low, high = one_step("LSTM", layer_4, low, high)
        assert (high > t - 1e-3).all()
    assert sh.automata.state_box(layer).highest.isinf().all()
    assert layer(torch.eye(2).double()[[0] * 700])[1][1][0, 0] == 700


@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_saturated_qrnn_layer_ends_alike_on_words_that_anbnw_tells_apart(window):
    end = "".join("".join(letters) for letters in itertools.product("ab", repeat=3))  # every window
    for seed in range(40):
        layer = sh.QRNN(2, 5, pooling="ifo", window=window, dtype=torch.float64).requires_grad_(False)
        with_normal_weights(layer, seed)
        words = ["a" * 7 + "b" * p + "a" * 5 + "b" * r + end for p, r in ((7, 4), (4, 7))]
        assert [bool(RULES["anbnw"](word)) for word in words] == [True, False]
        x = torch.eye(2).double()[torch.tensor([["ab".index(z) for z in word] for word in words])]
        out, _ = sh.automata.saturated(layer)(x)
        assert torch.equal(out[0, -1], out[1, -1])


def test_a_saturated_layer_keeps_its_interface():
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    for kind, options in CALLS.values():
        layer = kind(3, 4, num_layers=2, bidirectional=True, **options)
        before = [weight.clone() for weight in layer.parameters()]
        limit = sh.automata.saturated(layer)
        assert type(limit) is kind
        assert limit(x, lengths=[5, 2])[0].shape == (2, 5, 8)
        assert all(map(torch.equal, before, layer.parameters()))


def test_what_has_no_limit_is_refused():
    with pytest.raises(ValueError, match="network: an Elman network with ReLU"):
        sh.automata.saturated(sh.Elman(2, 3, nonlinearity="relu"))
    with pytest.raises(TypeError, match=r"network: got weights of torch.float16, expected float32 or float64"):
        sh.automata.saturated(sh.GRU(2, 3, dtype=torch.float16))
    with pytest.raises(ValueError, match="network: has parametrised weights"):
        sh.automata.saturated(torch.nn.utils.parametrizations.weight_norm(sh.GRU(2, 3), "weight_hh_l0"))
    with pytest.raises(ValueError, match="network: has several layers or directions"):
        sh.automata.counter_machine(sh.GRU(2, 3, num_layers=2), torch.zeros(4, 2))
    with pytest.raises(ValueError, match="highest: got 0, which is less than lowest, 1"):
        sh.automata.state_box(sh.MinGRU(2, 3), 1, 0)
    with pytest.raises(ValueError, match="cannot detect the end of the count"):
        sh.automata.counting_qrnn("anbnw")
    with pytest.raises(ValueError, match=r"words\[0\]: got 'abc', but 'c' is not one of the letters 'ab'"):
        sh.automata.counting_lstm("anbn").accepts(["abc"])
    with pytest.raises(ValueError, match="language: got 'abab', expected one of"):
        sh.automata.counting_lstm("abab")


def test_a_relu_network_has_half_a_box():
    box = sh.automata.state_box(sh.Elman(2, 3, nonlinearity="relu"))
    assert box.lowest.tolist() == [0, 0, 0]
    assert box.highest.isinf().all()


BOUNDS = {  # states of three units after any number of symbols of two kinds, and the state before the first
    "Elman": 2**3 + 1,
    "GRU": 3**3,
    "MinGRU": 3**3,  # each unit has a candidate of each symbol, or its start
    "MinGRU, tanh": 3**3,
    "QRNN, fo": 3**3 * 3**3 * 3,  # outputs, cells, the symbol before
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", BOUNDS)
def test_a_saturated_network_in_a_box_has_as_many_states_after_long_words_as_after_short_ones(name):
    kind, options = CALLS[name]
    reached = []
    for seed in range(12):
        layer, _ = with_normal_weights(kind(2, 3, dtype=torch.float64, **options).requires_grad_(False), seed)
        limit = sh.automata.saturated(layer)
        reached.append(sh.automata.count_states(sh.automata.Acceptor(limit, torch.nn.Linear(3, 1).double(), "ab"), 24))
    assert max(map(max, reached)) <= BOUNDS[name]
    assert max(sizes[-1] for sizes in reached) > 1
    assert all(max(sizes[8:]) <= max(sizes[:9]) for sizes in reached)


def test_counters_and_halves_have_as_many_states_as_words_have_counts_and_symbols(monkeypatch):
    qrnn = sh.QRNN(3, 2, pooling="ifo", dtype=torch.float64).requires_grad_(False)
    candidate = torch.tensor([[1.0, 0, 0], [0, 1, 0]])  # counts a and b
    gate = torch.ones(2, 3)
    qrnn.weight_l0.copy_(torch.cat([gate, 2 * candidate - 1, candidate, gate])[..., None])
    qrnn.bias_l0.zero_()
    acceptor = lambda layer, letters, n: sh.automata.Acceptor(
        sh.automata.saturated(layer), torch.nn.Linear(n, 1).double(), letters
    )
    counted = sh.automata.count_states(acceptor(qrnn, "abc", 2), 12)
    assert counted == [(n + 1) * (n + 2) // 2 for n in range(13)]  # n^2 for two counters
    half = sh.MinLSTM(2, 1, dtype=torch.float64).requires_grad_(False)
    half.weight_l0.copy_(torch.tensor([[1.0, 1], [1, 1], [0, 1]]))
    half.bias_l0.zero_()
    assert sh.automata.count_states(acceptor(half, "ab", 1), 10) == [2**n for n in range(11)]
    monkeypatch.setattr(reachable, "MOST", 100)
    with pytest.raises(ValueError, match=r"longest: got 30, but there are 128 states after 7 symbols; give less"):
        sh.automata.count_states(acceptor(half, "ab", 1), 30)
