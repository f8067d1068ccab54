"""Layers of beliefs with a softmax between them are one bottom-up sweep of `LayeredSSM`; without it they are not."""

from itertools import pairwise

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles.coupled import layered_of
from samplehold import Categorical, Gated, MinGRU, Normal, SweepNetwork, as_rnn, compare_layers, one_hot
from samplehold.models.bridge.layered_network import BeliefLayer
from torch.testing import assert_close


def rows(random, *shape):
    table = torch.rand(*shape, generator=random, dtype=torch.float64) ** 3 + 0.01
    return table / table.sum(-1, keepdim=True)


def make(gated, states=(3, 2, 2), tokens=5, seed=0):
    random = torch.Generator().manual_seed(seed)
    emission = Gated(Categorical(tokens), Categorical(tokens)) if gated else Categorical(tokens)
    values = {"probs": rows(random, states[0], tokens)} | (
        {"background_probs": rows(random, 1, tokens)} if gated else {}
    )
    redraw = torch.tensor([0.5, 0.2, 0.1][: len(states)], dtype=torch.float64)
    tables = [rows(random, above, below) for below, above in pairwise(states)]
    return layered_of(emission, values, redraw, tables, rows(random, states[-1]))


@examples(10)
@given(st.integers(0, 2**20), st.booleans(), st.sampled_from([(2,), (3, 2), (2, 3, 2)]))
def test_the_network_is_one_bottom_up_sweep(seed, gated, states):
    model = make(gated, states, seed=seed)
    network = as_rnn(model)
    assert isinstance(network.layers[0], MinGRU if gated else BeliefLayer)
    x = model.simulate(30, (3,), seed=seed).x
    x[0, 4:6] = torch.nan
    report = compare_layers(model, network, x, lengths=[30, 1, 17])
    for distance in report.distance("network", "sweep"):
        assert distance.max() < 1e-12
    assert_close(report.network[0][1, 1:], torch.zeros_like(report.network[0][1, 1:]))
    top, all_layers = network(one_hot(x[..., 0], 5))
    assert top is all_layers[-1]
    assert len(all_layers) == len(states)


@pytest.mark.parametrize("gated", [False, True])
def test_without_softmax_the_upper_layers_are_astray_by_what_the_comparison_shows(gated):
    model = make(gated)
    report = compare_layers(model, as_rnn(model), model.simulate(100, (4,), seed=1).x)
    table = report.summary()
    assert list(table.index) == [1, 2, 3]
    assert (table["network - sweep, max"] < 1e-12).all()
    assert (table["without softmax - sweep, mean"].iloc[1:] > 0.05).all()
    assert table["without softmax - sweep, mean"].iloc[0] < 1e-12  # the lowest layer reads tokens
    assert (table["without softmax - exact, mean"].iloc[1:] > table["sweep - exact, mean"].iloc[1:]).all()
    expected = 0.5 * (report.without_softmax[1] - report.sweep[1]).abs().sum(-1).mean()
    assert table["without softmax - sweep, mean"].iloc[1] == pytest.approx(float(expected))
    assert_close(report.exact[2], model.filter(report.series.observations).state[2])


def test_the_network_of_layers_can_be_trained_further():
    model = make(True)
    network = as_rnn(model)
    x = one_hot(model.simulate(20, (4,), seed=0).x[..., 0], 5)
    network(x)[0][..., 0].sum().backward()
    for parameter in network.parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all())
        assert bool((parameter.grad != 0).any())
    twin = as_rnn(make(True, seed=1))
    assert isinstance(twin, SweepNetwork)
    twin.load_state_dict(network.state_dict())
    assert_close(twin(x)[0], network(x)[0])


def test_what_has_no_such_network_says_why():
    model = make(False)
    with pytest.raises(ValueError, match="between: got 'none of it'"):
        as_rnn(model)(torch.zeros(2, 5, dtype=torch.float64), between="none of it")
    with pytest.raises(ValueError, match="space: got 'logit'; layers of beliefs are in space=\"probability\""):
        as_rnn(model, space="logit")
    one = torch.ones(1, dtype=torch.float64)
    values = {"loc": torch.zeros(1, 1, dtype=torch.float64), "precision": torch.ones(1, 1, dtype=torch.float64)}
    with pytest.raises(ValueError, match="model: emits Normal, but networks of layers only read symbols"):
        as_rnn(layered_of(Normal(1), values, 0.5 * one, [], one))
