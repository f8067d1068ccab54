"""Gradients as networks are drawn and trained: open gates lengthen them, and only recurrent weights explode them."""

import math
from dataclasses import replace

import pytest
import torch
from gradients import QUICK, exponent, first_zero, made, series
from latches import Latch, Learning, examples, latch, learned
from samplehold.face.studies import gradient_memory
from torch.testing import assert_close


def test_recurrent_weights_explode_the_gradients_of_recurrent_networks_alone():
    plan = replace(QUICK, scale_steps=200)
    for name in ("GRU", "LSTM"):
        for seed in (0, 1):
            assert exponent(name, 1, "recurrent", 1.0, seed, plan) < -0.3
            assert exponent(name, 1, "recurrent", 16.0, seed, plan) > 0.1
    for name in ("MinGRU", "MinLSTM", "QRNN"):
        assert exponent(name, 1, "all", 16.0, 0, plan) < -0.3


def test_open_gates_hold_a_hundred_times_as_long_and_nothing_underflows():
    x = series(4000, 0)
    for name in ("MinGRU", "MinLSTM", "QRNN"):
        fast, slow = gradient_memory(made(name, 8, 0), x), gradient_memory(made(name, 8, 0, 1000), x)
        assert fast.half_life < 3
        assert slow.half_life > 100 * fast.half_life
        assert fast.log_norm[-1] < -1500  # far below the least float
        assert (fast.log_held.diff(dim=-1) < 0).all()


def test_a_symbol_of_the_latch_is_a_redraw_half_of_the_time_and_a_blank_never():
    model = latch(0.1)
    tokens = torch.tensor([0.0, 3.0, 1.0, 3.0], dtype=torch.float64)[:, None]
    assert_close(model.filter(tokens).redraw[1:], torch.tensor([0, 0.5, 0], dtype=torch.float64))
    tokens, states = examples(model, 4000, 3, 0)
    assert ((tokens == 3) | (tokens == states)).double()[:, 1:].mean() > 0.9  # distractors show other symbols


def test_the_exact_filter_as_a_network_has_the_half_life_of_the_belief():
    rho, network = 0.1, Latch("MinGRU, simplex", 0, 0)
    with torch.no_grad():  # a symbol draws it, half of the time, and a blank holds
        network.layer.bias_l0.zero_()
        network.layer.weight_l0.copy_(torch.cat([torch.tensor([[0.0, 0.0, 0.0, -50.0]]), 50 * torch.eye(3, 4)]))
    model = latch(rho)
    tokens, _ = examples(model, 2000, 20, 1)
    gates = network.layer.activations(torch.eye(4)).draw[tokens, 0].double()
    exact = model.filter(tokens[..., None].double()).redraw
    assert_close(gates[:, 1:], exact[:, 1:], rtol=0, atol=1e-6)  # the first step of the model always redraws
    belief = math.log(0.5) / math.log1p(-rho)
    assert abs(network.half_life(tokens) - belief) < 0.6  # four standard errors


@pytest.mark.slow
def test_training_lengthens_the_gradient_towards_that_of_the_belief():
    plan = Learning((0.1,), ("MinGRU, simplex",), 100, 32)
    table = learned(plan, (0,), 0, lambda items, _: items)
    here = table[table["start"] == "default"]
    assert (here["before"] < 2).all()
    assert (here["after"] > 1.5 * here["before"]).all()
    assert (here["loss"] > here["loss of the filter"] - 0.02).all()


def test_the_scale_of_no_growth_lies_between_those_measured():
    assert first_zero((1, 2, 4), [-3.0, -1.0, 1.0]) == 3.0
    assert first_zero((1, 2, 4), [-3.0, -1.0, -2.0]) == math.inf
