"""GRU, LSTM and Elman are torch's own, with ragged input and a step form that agree with it."""

import pytest
import torch
from oracles.networks import with_normal_weights
from samplehold import GRU, LSTM, Elman
from torch.testing import assert_close

PEERS = {GRU: torch.nn.GRU, LSTM: torch.nn.LSTM, Elman: torch.nn.RNN}


def build(layer_class, **options):
    layer, random = with_normal_weights(layer_class(3, 4, num_layers=2, dtype=torch.float64, **options))
    return layer, torch.randn(3, 7, 3, generator=random, dtype=torch.float64)


def parts(state):
    return state if isinstance(state, tuple) else (state,)


@pytest.mark.parametrize("layer_class", PEERS)
def test_it_is_torchs_module_with_torchs_state_dict(layer_class):
    layer, x = build(layer_class)
    peer = PEERS[layer_class](3, 4, num_layers=2, batch_first=True, dtype=torch.float64)
    peer.load_state_dict(layer.state_dict())
    assert_close(layer(x), peer(x), rtol=0, atol=0)
    assert_close(layer(x[0]), peer(x[0]), rtol=0, atol=0)


@pytest.mark.parametrize("layer_class", PEERS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_steps_equal_the_whole(layer_class, batch_first):
    layer, x = build(layer_class, batch_first=batch_first)
    for series in (x, x[1]):
        axis = 1 if batch_first and series.dim() == 3 else 0
        expected, end = layer(series)
        h, rows = None, []
        for x_t in series.unbind(axis):
            out, h = layer.step(x_t, h)
            rows.append(out)
        assert_close(torch.stack(rows, axis), expected, rtol=1e-12, atol=1e-12)
        assert_close(parts(h), parts(end), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layer_class", PEERS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_ragged_batch_equals_its_sequences_one_by_one(layer_class, batch_first):
    layer, x = build(layer_class, batch_first=batch_first)
    lengths = torch.tensor([2, 7, 5])
    for b, n in enumerate(lengths):
        x[b, n:] = float("nan")
    out, end = layer(x if batch_first else x.transpose(0, 1), lengths=lengths)
    out = out if batch_first else out.transpose(0, 1)
    for b, n in enumerate(lengths):
        alone, alone_end = layer(x[b, :n])
        assert_close(out[b, :n], alone, rtol=1e-12, atol=1e-12)
        assert (out[b, n:] == 0).all()
        for state, alone_state in zip(parts(end), parts(alone_end), strict=True):
            assert_close(state[:, b], alone_state, rtol=1e-12, atol=1e-12)
        single, single_end = layer(x[b], lengths=n)
        assert_close(single, out[b], rtol=1e-12, atol=1e-12)
        assert_close(parts(single_end), parts(alone_end), rtol=1e-12, atol=1e-12)


def test_wrong_input_is_refused_with_the_cure():
    layer, x = build(GRU)
    with pytest.raises(ValueError, match="lengths: got 8"):
        layer(x, lengths=torch.tensor([1, 8, 2]))
    with pytest.raises(ValueError, match=r"x: got shape \[3, 7, 2\]"):
        layer(x[..., :2])
    with pytest.raises(ValueError, match=r"x: got shape \[3, 2\], expected one step"):
        layer.step(x[:, 0, :2])


def test_one_matrix_on_input_and_state_is_the_two_of_an_elman_network():
    """As many numbers, and the same states and gradients to rounding."""
    torch.manual_seed(0)
    layer, x = Elman(3, 5, dtype=torch.float64), torch.randn(2, 20, 3, dtype=torch.float64)
    joined = torch.cat([layer.weight_ih_l0, layer.weight_hh_l0], 1).detach().requires_grad_()
    assert joined.numel() == layer.weight_ih_l0.numel() + layer.weight_hh_l0.numel()
    h, states = torch.zeros(2, 5, dtype=torch.float64), []
    for x_t in x.unbind(1):
        h = (torch.cat([x_t, h], -1) @ joined.T + (layer.bias_ih_l0 + layer.bias_hh_l0).detach()).tanh()
        states.append(h)
    one, two = torch.stack(states, 1), layer(x)[0]
    assert torch.allclose(one, two, rtol=1e-12, atol=1e-14)
    one.square().sum().backward()
    two.square().sum().backward()
    assert torch.allclose(
        joined.grad, torch.cat([layer.weight_ih_l0.grad, layer.weight_hh_l0.grad], 1), rtol=1e-11, atol=1e-13
    )
