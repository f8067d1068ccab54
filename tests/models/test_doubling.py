"""The LSTM whose forget gates reach 2: an ordinary layer, and by hand a memory of a word in one cell."""

import itertools
import math
import random

import pytest
import torch
from oracles.networks import with_normal_weights
from samplehold import DoublingLSTM
from samplehold.face.automata import Acceptor, palindrome_lstm, saturated
from torch.testing import assert_close

DIGITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53}


def build(**options):
    layer, random = with_normal_weights(DoublingLSTM(3, 4, dtype=torch.float64, **options))
    return layer, torch.randn(2, 7, 3, generator=random, dtype=torch.float64)


def textbook(layer, x):
    """One sequence, one unit at a time."""
    weight, bias, D = layer.weight_l0.tolist(), layer.bias_l0.tolist(), layer.hidden_size
    sigmoid = lambda z: 1 / (1 + math.exp(-z))
    h, c, out = [0.0] * D, [0.0] * D, []
    for row in x.tolist():
        seen = row + h
        pre = [sum(w * z for w, z in zip(line, seen, strict=True)) + b for line, b in zip(weight, bias, strict=True)]
        for d in range(D):
            i, f, more, g, o = (pre[part * D + d] for part in range(5))
            c[d] = (sigmoid(f) + sigmoid(more)) * c[d] + sigmoid(i) * math.tanh(g)
            h[d] = sigmoid(o) * math.tanh(c[d])
        out.append(list(h))
    return torch.tensor(out, dtype=torch.float64), c


def test_it_is_the_textbook_form():
    layer, x = build()
    out, (h, c) = layer(x)
    for b in range(2):
        expected, cells = textbook(layer, x[b])
        assert_close(out[b], expected, rtol=1e-10, atol=1e-10)
        assert_close(c[0, b], torch.tensor(cells, dtype=torch.float64), rtol=1e-10, atol=1e-10)
        assert_close(h[0, b], expected[-1], rtol=1e-10, atol=1e-10)


def test_gradients_are_right():
    layer, x = build(bidirectional=True)
    assert torch.autograd.gradcheck(lambda x: layer(x)[0], x[:, :3].requires_grad_())


def test_states_that_do_not_fit_are_refused():
    layer, x = build()
    with pytest.raises(TypeError, match="hx: got Tensor, expected a pair of hidden states and cells"):
        layer(x, torch.zeros(1, 2, 4))
    with pytest.raises(ValueError, match=r"hx\[1\]: got shape"):
        layer(x, (torch.zeros(1, 2, 4).double(), torch.zeros(1, 2, 3).double()))


def test_all_short_words_are_told_by_the_network_and_by_its_limit():
    acceptor = palindrome_lstm()
    limit = Acceptor(saturated(acceptor.layer), acceptor.readout, acceptor.alphabet)
    for n in range(9):
        words = ["".join(symbols) for symbols in itertools.product("01#", repeat=n)]
        expected = [word.count("#") == 1 and word == word[::-1] for word in words]
        assert acceptor.accepts(words).tolist() == limit.accepts(words).tolist() == expected


@pytest.mark.parametrize("dtype", DIGITS)
def test_a_word_is_held_as_long_as_floats_have_digits_for_it(dtype):
    acceptor, draw = palindrome_lstm(dtype), random.Random(0)
    for n in (DIGITS[dtype] - 1, DIGITS[dtype], DIGITS[dtype] + 1):
        for _ in range(10):
            word = f"1{draw.getrandbits(n - 2):0{n - 2}b}1"
            assert bool(acceptor.accepts([f"{word}#{word[::-1]}"])) == (n <= DIGITS[dtype])
            k = draw.randrange(n - 1)
            other = word[:k] + "10"[int(word[k])] + word[k + 1 :]
            if n <= DIGITS[dtype]:
                assert not acceptor.accepts([f"{word}#{other[::-1]}"])


def test_the_cell_holds_the_word_as_a_binary_fraction():
    acceptor = palindrome_lstm()
    for word in ("1", "01", "110", "0111010"):
        _, (_, cell) = acceptor.layer(acceptor.inputs([word])[0])
        assert cell[0, 0].item() == int(word[::-1], 2) / 2 ** len(word)
