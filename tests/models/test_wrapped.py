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


@pytest.mark.parametrize("layer_class", PEERS)
def test_it_is_torchs_module_with_torchs_state_dict(layer_class):
    layer, x = build(layer_class)
    peer = PEERS[layer_class](3, 4, num_layers=2, batch_first=True, dtype=torch.float64)
    peer.load_state_dict(layer.state_dict())
    assert_close(layer(x), peer(x), rtol=0, atol=0)
    assert_close(layer(x[0]), peer(x[0]), rtol=0, atol=0)


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
