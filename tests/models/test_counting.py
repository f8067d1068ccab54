"""The data and the criteria of the studies of counting, doubling and machines."""

import random

import counting
import doubling
import pytest
import torch
from samplehold import as_rnn
from samplehold.face.automata import counting_lstm
from torch import nn
from turing import binary_increment, departures, draw_tape, stack_depths, unary_multiplication

pytestmark = pytest.mark.cpu("the studies make their networks there")


def test_block_strings_are_read_to_their_end():
    read, follow = counting.block_strings("abc", [1, 2])
    assert read.tolist() == [[0, 1, 2, 3, 0, 0, 0], [0, 1, 1, 2, 2, 3, 3]]
    assert follow.tolist() == [[1, 2, 3, 0, -100, -100, -100], [1, 1, 2, 2, 3, 3, 0]]


class Told(counting.Reader):
    """Counts blocks up to `most`, and knows what follows from the first b on; beyond that it expects another b."""

    def __init__(self, n_letters, most):
        nn.Module.__init__(self)
        self.n_symbols, self.most = n_letters + 1, most

    def forward(self, read):
        logits = torch.zeros(*read.shape, self.n_symbols)
        for row, symbols in enumerate(read.tolist()):
            n = symbols.count(1)
            for t, symbol in enumerate(symbols):
                done = symbols[: t + 1].count(symbol) == n
                expected = symbol if not done or n > self.most else (symbol + 1) % self.n_symbols
                if symbol > 1:
                    logits[row, t, expected] = 9.0
        return logits


@pytest.mark.parametrize("letters", ["ab", "abc"])
@pytest.mark.parametrize("threshold", [0.01, None])
def test_the_first_failure_is_the_first_block_that_is_not_counted(letters, threshold):
    assert counting.first_failure(Told(len(letters), 37), letters, 60, threshold) == 38
    assert counting.first_failure(Told(len(letters), 60), letters, 60, threshold) is None


def test_prefixes_are_labelled_by_the_rule_and_half_are_in_the_language():
    read, label = counting.prefix_strings(40, range(4, 20), 200, random.Random(0))
    acceptor = counting_lstm("anbnw")
    for symbols, known in zip(read.tolist()[:40], label.tolist(), strict=False):
        word = "".join("ab"[symbol] for symbol in symbols)
        assert known == acceptor.accepts([word[: t + 1] for t in range(40)]).int().tolist()
    assert label[:, -1].sum() == 100


def test_networks_by_hand_do_not_fail():
    assert counting.first_failure_by_hand(counting_lstm("anbncn", torch.float32), 30) is None


def test_studies_at_the_least_scale_have_their_tables(monkeypatch):
    small = counting.Scale(("LSTM",), ("QRNN, ifo",), 2, 3, (64,), 2)
    monkeypatch.setitem(counting.SCALES, "quick", small)
    found = counting.study("quick", lambda items, label: items, 3)
    assert found.seeds == (3,)
    assert "most probable, seed 3" in found.tables["counting"]
    assert found.tables["counting"]["network"].tolist()[:2] == ["LSTM", "LSTM"]
    assert set(found.tables["counting_prefixes"]["blocks"]) == {"as in training", "up to half"}
    assert found.tables["counting_states"].columns.tolist()[-1] == "most, n = 2"
    assert set(found.tables["counting_states"]["most, n = 2"]) <= {"1", "2", "3", "4"}
    monkeypatch.setattr(doubling, "DIGITS", {torch.float16: 11})
    monkeypatch.setitem(doubling.SCALES, "quick", ((4, 8), (3,), 2))
    found = doubling.study("quick", lambda items, label: items)
    words = found.tables["doubling_words"]
    assert words["longest word"].tolist() == words["digits"].tolist()
    axis = found.figures["doubling_gradients"].axes[0].xaxis
    assert [label.get_text() for label in axis.get_ticklabels()] == ["4", "8"]
    assert not axis.get_minorticklocs().size


def test_gradients_of_cells_that_double_do_so():
    layer = lambda: doubling.made("DoublingLSTM", 2, 0, opened=True)
    norms = [doubling.gradient(layer(), n, 0, "cells") for n in (10, 30)]
    assert norms[1] > norms[0] * 1.7**20


@pytest.mark.slow
def test_floats_depart_from_the_machine_where_their_stack_ends():
    network = as_rnn(binary_increment())
    assert departures(network, "1011", torch.float64) == (None, None)
    inexact, astray = departures(network, "1" * 24, torch.float32)
    assert inexact == 0
    assert astray == 24
    table = stack_depths(3)
    assert (table["depth"] >= table["formula"]).all()
    assert (table["depth"] <= table["formula"] + 1).all()


def test_the_tape_that_is_drawn_is_that_of_the_machine():
    figure = draw_tape(as_rnn(unary_multiplication()), "1x1=")
    image = figure.axes[0].images[0].get_array()
    steps = unary_multiplication().steps("1x1=")
    assert image.shape[0] == steps + 1
    assert [int(cell) for cell in image[-1] if cell] == [1, 2, 1, 3, 1]  # 1x1=1, in the order of the symbols
