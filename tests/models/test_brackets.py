"""Networks that accept brackets by hand-set weights: long words, near misses, and every step by interval arithmetic."""

import itertools
import random
import re

import pytest
import samplehold as sh
import torch
from oracles.networks import with_normal_weights

LONG = 2000
NETWORKS = {
    "Dyck-1, LSTM": (sh.automata.shuffle_dyck_lstm, (1,), None),
    "Dyck-1, Elman": (sh.automata.shuffle_dyck_elman, (1,), None),
    "shuffle of 2, LSTM": (sh.automata.shuffle_dyck_lstm, (2,), None),
    "shuffle of 2, Elman": (sh.automata.shuffle_dyck_elman, (2,), None),
    "Dyck-1 to 3": (sh.automata.dyck_lstm, (1, 3), 3),
    "Dyck-2 to 3": (sh.automata.dyck_lstm, (2, 3), 3),
    "Dyck-2 to 6": (sh.automata.dyck_lstm, (2, 6), 6),
    "Dyck-3 to 2": (sh.automata.dyck_lstm, (3, 2), 2),
}


def balanced(word, depth):
    """Whether a word nests properly within a depth; for None, whether each kind is balanced by itself."""
    if depth is None:
        kinds = {"([{<"[k]: ")]}>"[k] for k in range(4)}
        for opens, closes in kinds.items():
            sums = list(itertools.accumulate((z == opens) - (z == closes) for z in word))
            if sums and (min(sums) < 0 or sums[-1]):
                return False
        return True
    deepest = max(itertools.accumulate([0, *(1 if z in "([{<" else -1 for z in word)]))
    while (shorter := re.sub(r"\(\)|\[\]|\{\}|<>", "", word)) != word:
        word = shorter
    return not word and deepest <= depth


def draw_word(n, kinds, depth, draw):
    """A word of n symbols of the language, often near its greatest depth."""
    pairs, stack, counts, word = ("()", "[]", "{}", "<>")[:kinds], [], [0] * kinds, []
    for t in range(n):
        most = min(n - t, depth or n)
        up = len(stack) < most and (not stack or draw.random() < 0.55) and len(stack) < n - t
        k = draw.randrange(kinds)
        if not up:
            k = stack[-1] if depth else draw.choice([k for k in range(kinds) if counts[k]])
        word.append(pairs[k][not up])
        counts[k] += 1 if up else -1
        stack = [*stack, k] if up else stack[:-1]
    return "".join(word)


@pytest.mark.parametrize("name", NETWORKS)
def test_all_short_words_are_accepted_or_rejected_as_the_language_says(name):
    make, arguments, depth = NETWORKS[name]
    network = make(*arguments)
    words = [
        "".join(word)
        for n in range({1: 10, 2: 6, 3: 5}[arguments[0]])
        for word in itertools.product(network.alphabet, repeat=n)
    ]
    expected = [balanced(word, depth) for word in words]
    assert network.accepts(words).tolist() == expected
    assert sum(expected) > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_two_thousand_symbols_are_told_from_near_misses(name):
    make, arguments, depth = NETWORKS[name]
    network, draw = make(*arguments), random.Random(3)
    words = [draw_word(LONG, arguments[0], depth, draw) for _ in range(2)]
    assert all(balanced(word, depth) for word in words)
    for word in list(words):
        for t in (0, draw.randrange(LONG), LONG - 1):  # one symbol changed
            words.append(word[:t] + draw.choice([z for z in network.alphabet if z != word[t]]) + word[t + 1 :])
        words.append(word[:1000] + ")(" + word[1000:])
        words.append(word + word[0])
        if depth:
            words.append(word + "(" * (depth + 1) + ")" * (depth + 1))
            words.append(word + "(" * depth + ")" * depth)
    expected = [balanced(word, depth) for word in words]
    assert network.accepts(words).tolist() == expected
    assert 2 <= sum(expected) < len(words) - 4


def instructions(layer, low, high, symbol):
    """Interval arithmetic: bounds of hold = f and add = i g of an LSTM, for cells in a box and open output gates."""
    weight, at_symbol = layer.weight_hh_l0, layer.weight_ih_l0[:, symbol] + layer.bias_ih_l0
    centre, radius = (low.tanh() + high.tanh()) / 2, (high.tanh() - low.tanh()) / 2
    middle, spread = weight @ centre + at_symbol, weight.abs() @ radius
    i, f, g, o = zip((middle - spread).chunk(4), (middle + spread).chunk(4), strict=True)
    assert (o[0] > 100).all()
    i, f, g = [z.sigmoid() for z in i], [z.sigmoid() for z in f], [z.tanh() for z in g]
    adds = torch.stack([a * b for a in i for b in g])
    return f, (adds.amin(0), adds.amax(0))


class Counts:
    """The shuffle: for each kind the sign of its count, and whether it has been below 0."""

    def __init__(self, kinds):
        self.states = list(itertools.product(((-1, 0), (0, 0), (1, 0), (-1, 1), (0, 1), (1, 1)), repeat=kinds))

    def box(self, state):
        """Bounds of all cells; counts beyond 0 are anything from 1 on."""
        ends = {-1: (-9e15, -0.95), 0: (-0.05, 0.05), 1: (0.95, 9e15)}
        return [end for sign, below in state for end in (ends[sign], ends[below])]

    def step(self, state, symbol):
        """The changes of all cells."""
        kind, closes = divmod(symbol, 2)
        return [(1, z) for k, (sign, _) in enumerate(state) for z in ((k == kind) * (1 - 2 * closes), int(sign < 0))]


class Registers:
    """The stacks of Dyck-k to a depth, in the order of the units of `dyck_lstm`."""

    def __init__(self, kinds, depth):
        self.bits, self.depth = range((kinds - 1).bit_length()), depth
        self.states = [s for n in range(depth + 1) for s in itertools.product(range(kinds), repeat=n)]

    def box(self, state):
        box = [(-0.05, 0.05)] * 2
        for d in range(self.depth):
            here = d < len(state)
            box.append((here - 0.05, here + 0.05))
            for j in self.bits:
                bit = (2 * (state[d] >> j & 1) - 1) if here else 0
                box += [(bit - 0.05, bit + 0.05), (-0.05, 0.05), (-0.05, 0.05)]
        return box

    def step(self, state, symbol):
        kind, closes = divmod(symbol, 2)
        top, changes = (
            len(state) - 1,
            [(1, int(closes and not state)), (1, int(not closes and len(state) == self.depth))],
        )
        for d in range(self.depth):
            hold, set_ = int(not (closes and d >= top)), not closes and d == len(state)
            changes.append((hold, int(set_)))
            for j in self.bits:
                value = 2 * (kind >> j & 1) - 1
                wrong = closes and d == top and kind >> j & 1 != state[d] >> j & 1
                changes += [(hold, value * set_), *((1, int(wrong and value == sign)) for sign in (1, -1))]
        return changes


@pytest.mark.parametrize(
    ("make", "arguments", "machine"),
    [
        (sh.automata.shuffle_dyck_lstm, (1,), Counts),
        (sh.automata.shuffle_dyck_lstm, (2,), Counts),
        (sh.automata.dyck_lstm, (1, 4), Registers),
        (sh.automata.dyck_lstm, (2, 4), Registers),
        (sh.automata.dyck_lstm, (3, 2), Registers),
    ],
)
def test_every_step_from_every_state_is_the_machines_within_1e_minus_20(make, arguments, machine):
    """So a cell of at most n is off by at most n * n * 1e-20 after n symbols: the boxes of 0.05 hold up to 1e9."""
    network, machine = make(*arguments), machine(*arguments)
    for state, symbol in itertools.product(machine.states, range(len(network.alphabet))):
        low, high = torch.tensor(machine.box(state), dtype=torch.float64).mT
        hold, add = instructions(network.layer, low, high, symbol)
        expected = torch.tensor(machine.step(state, symbol), dtype=torch.float64).mT
        for end in (0, 1):
            assert (hold[end] - expected[0]).abs().max() < 1e-20
            assert (add[end] - expected[1]).abs().max() < 1e-20


def test_a_unit_that_stores_a_failure_never_falls():
    """Where cells are in no box: its hold is 1 and its add is not negative, whatever the others are."""
    layer = sh.automata.dyck_lstm(2, 3).layer
    n, stores = layer.hidden_size, [0, 1, 4, 5, 8, 9, 12, 13]
    rows = [
        layer.weight_hh_l0[n : 3 * n].reshape(2, n, n)[:, stores],
        layer.weight_ih_l0[n : 3 * n].reshape(2, n, 4)[:, stores],
    ]
    assert not any(row.any() for row in rows)  # f and g read nothing
    assert (layer.bias_ih_l0[n : 3 * n].reshape(2, n)[:, stores] == 256).all()


@pytest.mark.parametrize("kinds", [1, 3])
def test_the_relu_networks_weights_and_states_are_integers(kinds):
    network, draw = sh.automata.shuffle_dyck_elman(kinds), random.Random(0)
    assert all(set(weight.flatten().tolist()) <= {-1.0, 0.0, 1.0} for weight in network.layer.parameters())
    states = network.states(["".join(draw.choices(network.alphabet, k=300))])
    assert torch.equal(states, states.round())
    high = 2.0**53 - 2  # as far as float64 counts
    state = torch.zeros(1, 2 * kinds + 1, dtype=torch.float64)
    state[0, 0] = high
    after = network.advance(network.advance(state, "("), ")")
    assert after[0, 0] == high


def test_a_qrnn_layer_ends_alike_on_a_balanced_word_and_one_that_is_not():
    every = "(" * 9 + "".join(map("".join, itertools.product("()", repeat=2)))
    words = ["(" * p + ")" * 5 + "(" * r + ")" * 4 + every + ")" * 11 for p, r in ((8, 3), (3, 8))]
    assert [balanced(word, None) for word in words] == [True, False]
    for seed in range(10):
        layer = sh.QRNN(2, 5, pooling="ifo", window=2, dtype=torch.float64).requires_grad_(False)
        with_normal_weights(layer, seed)
        x = torch.eye(2).double()[torch.tensor([["()".index(z) for z in word] for word in words])]
        out, _ = sh.automata.saturated(layer)(x)
        assert torch.equal(out[0, -1], out[1, -1])


def test_kinds_beyond_the_four_brackets_are_refused():
    with pytest.raises(ValueError, match="kinds: got 5, expected an integer from 1 to 4"):
        sh.automata.dyck_lstm(5)
    with pytest.raises(ValueError, match="depth: got 0"):
        sh.automata.dyck_lstm(2, 0)
