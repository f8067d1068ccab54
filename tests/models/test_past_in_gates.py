"""The gates of a first layer know nothing of the past beyond the present input; those of a second layer do."""

import math

import pytest
import torch
from samplehold import MinGRU, one_hot
from samplehold.face.studies import past_in_gates

K = 3


def test_a_second_layer_knows_the_past_and_a_first_one_does_not():
    torch.manual_seed(0)
    tokens = torch.randint(K, (5, 40))
    layer, x = MinGRU(K, 4, num_layers=2, dtype=torch.float64), one_hot(tokens, K)
    with torch.no_grad():
        layer.weight_l1.mul_(5)
        lower, upper = past_in_gates(layer, x)
        gates = layer.activations(first_of(layer, x), 1).draw
    assert lower.information.max() < 1e-15
    assert lower.entropy.min() > 0.1
    for unit in range(4):
        gains, entropies = 0.0, 0.0
        for token in range(K):
            g = gates[..., unit][tokens == token].tolist()
            entropies += len(g) * binary(sum(g) / len(g))
            gains += len(g) * binary(sum(g) / len(g)) - sum(map(binary, g))
        assert float(upper.information[unit]) == pytest.approx(gains / tokens.numel(), abs=1e-12)
        assert float(upper.entropy[unit]) == pytest.approx(entropies / tokens.numel(), abs=1e-12)
    assert upper.information.min() > 1e-4
    with pytest.raises(ValueError, match="network: reads in both directions"):
        past_in_gates(MinGRU(K, 2, bidirectional=True), x.float())


def first_of(layer, x):
    """Outputs of the first layer."""
    first = MinGRU(layer.input_size, layer.hidden_size, dtype=x.dtype)
    first.load_state_dict({name: getattr(layer, name) for name in ("weight_l0", "bias_l0")})
    return first(x)[0]


def binary(p):
    return -p * math.log(p) - (1 - p) * math.log1p(-p)
