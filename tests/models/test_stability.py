"""The Lipschitz table of a network bounds its steps, and the published conditions imply what it certifies."""

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles.networks import with_normal_weights
from samplehold import GRU, LSTM, Elman
from samplehold.face.studies import stability, stabilize
from torch.testing import assert_close

LAYERS = (GRU, LSTM, Elman)


def build(layer_class, seed, scale, num_layers=1, units=4, **options):
    layer = layer_class(3, units, num_layers=num_layers, dtype=torch.float64, **options)
    return with_normal_weights(layer, seed, scale)


def uniform(random, *shape):
    return 2 * torch.rand(*shape, generator=random, dtype=torch.float64) - 1


def states_within(layer, reach, random, n):
    """n random states of every layer within reach, as the layer takes them, and their parts [h (, c)]."""
    parts = 2 if isinstance(layer, LSTM) else 1
    tables = []
    for part in range(parts):
        table = uniform(random, layer.num_layers, n, layer.hidden_size)
        if isinstance(layer, Elman):
            table = table / layer.hidden_size**0.5
        tables.append(table * reach[part::parts, None, None].to(table))
    return tuple(tables) if parts == 2 else tables[0]


def distances(layer, one, other):
    """[parts of all layers, n], in the order of the Lipschitz table, and where that lies."""
    pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
    kind = 2 if isinstance(layer, Elman) else torch.inf
    rows = [torch.linalg.vector_norm(a - b, kind, dim=-1) for a, b in pairs]
    return torch.stack(rows, 1).flatten(0, 1).cpu()


@pytest.mark.parametrize("layer_class", LAYERS)
@examples(25)
@given(
    seed=st.integers(0, 2**20),
    scale=st.sampled_from([0.1, 0.3, 1.0]),
    num_layers=st.integers(1, 2),
    bound=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_no_two_states_part_faster_than_the_table_says(layer_class, seed, scale, num_layers, bound):
    layer, random = build(layer_class, seed, scale, num_layers)
    found = stability(layer, bound)
    x = (bound * uniform(random, 1, 3)).expand(200, 3)
    one, other = (states_within(layer, found.reach, random, 200) for _ in range(2))
    before = distances(layer, one, other)
    with torch.no_grad():
        after = distances(layer, layer.step(x, one)[1], layer.step(x, other)[1])
    assert (after <= found.gain @ before * (1 + 1e-12) + 1e-12).all()


@pytest.mark.parametrize("layer_class", LAYERS)
def test_states_stay_within_reach(layer_class):
    layer, random = build(layer_class, 1, 2.0, 2)
    found = stability(layer, 2.0)
    _, end = layer(2 * uniform(random, 50, 100, 3))
    parts = end if isinstance(end, tuple) else (end,)
    kind = 2 if isinstance(layer, Elman) else torch.inf
    for part, table in enumerate(parts):
        sizes = torch.linalg.vector_norm(table, kind, dim=-1).amax(1).cpu()
        assert (sizes <= found.reach[part :: len(parts)] * (1 + 1e-12)).all()


@pytest.mark.parametrize("layer_class", LAYERS)
@examples(10)
@given(seed=st.integers(0, 2**20), scale=st.sampled_from([0.1, 0.3, 1.0]), num_layers=st.integers(1, 2))
def test_a_step_in_single_precision_is_off_by_its_rounding_at_most(layer_class, seed, scale, num_layers):
    layer, random = build(layer_class, seed, scale, num_layers, units=16)
    layer.float()
    found = stability(layer, 2.0)
    x = 2 * uniform(random, 100, 3).float()
    states = states_within(layer, found.reach.clamp(max=1e3), random, 100)
    states = tuple(part.float() for part in states) if isinstance(states, tuple) else states.float()
    with torch.no_grad():
        single = layer.step(x, states)[1]
        layer.double()
        wide = tuple(part.double() for part in states) if isinstance(states, tuple) else states.double()
        off = distances(layer, layer.step(x.double(), wide)[1], single)
    assert (off <= found.rounding[:, None] * torch.finfo(torch.float32).eps / 2).all()


@given(seed=st.integers(0, 2**20), bound=st.sampled_from([0.0, 1.0, 5.0]), share=st.floats(0.05, 0.999))
def test_the_published_conditions_of_an_lstm_imply_a_contraction(seed, bound, share):
    layer, _ = build(LSTM, seed, 1.0)
    with torch.no_grad():
        gates = layer.weight_hh_l0.view(4, 4, 4)
        rest = 1 - (
            (layer.weight_ih_l0[4:8].abs().sum(1) * bound + layer.bias_ih_l0[4:8] + layer.bias_hh_l0[4:8] + 1)
            .sigmoid()
            .max()
        )
        for k, limit in enumerate((rest, rest**2, rest / 4, rest)):
            gates[k] *= share * limit / gates[k].abs().sum(1).max()
    found = stability(layer, bound)
    assert found.meets_conditions
    assert found.stable
    assert (found.gain.sum(1) < 1).all()


@pytest.mark.parametrize("layer_class", LAYERS)
@examples(25)
@given(
    seed=st.integers(0, 2**20),
    scale=st.sampled_from([0.01, 0.3, 1.0]),
    num_layers=st.integers(1, 2),
    bound=st.sampled_from([0.5, 1.0]),
)
def test_a_stabilized_network_meets_the_conditions_and_a_stable_one_is_left_alone(
    layer_class, seed, scale, num_layers, bound
):
    layer, _ = build(layer_class, seed, scale, num_layers)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    projected = stabilize(layer, bound)
    found = stability(projected, bound)
    assert found.meets_conditions
    assert found.stable
    for name, value in layer.state_dict().items():
        assert_close(value, before[name], rtol=0, atol=0)
        if "weight_hh" not in name:
            assert_close(projected.state_dict()[name], value, rtol=0, atol=0)
    again = stabilize(projected, bound)
    for name, value in projected.state_dict().items():
        assert_close(again.state_dict()[name], value, rtol=0, atol=0)


def test_projection_onto_the_conditions_is_the_nearest_matrix():
    layer, random = build(LSTM, 3, 1.0)
    projected = stabilize(layer, 1.0)
    given_rows, rows = layer.weight_hh_l0.detach()[:4], projected.weight_hh_l0.detach()[:4]
    limit = rows.abs().sum(1)
    assert_close(limit, limit[:1].expand(4), rtol=1e-9, atol=0)
    best = (given_rows - rows).norm(dim=1)
    for _ in range(300):
        other = uniform(random, 4, 4)
        other = rows + 0.1 * (other / other.abs().sum(1, keepdim=True) * limit[:, None] - rows)
        assert (other.abs().sum(1) <= limit * (1 + 1e-9)).all()
        assert ((given_rows - other).norm(dim=1) >= best - 1e-12).all()


def test_elman_is_stable_just_below_spectral_norm_one():
    layer, _ = build(Elman, 0, 1.0)
    with torch.no_grad():
        layer.weight_hh_l0 /= torch.linalg.matrix_norm(layer.weight_hh_l0, 2)
        layer.weight_hh_l0 *= 0.999
        assert stability(layer, 1.0).stable
        assert stability(layer, 1.0).rate == pytest.approx(0.999, rel=1e-12)
        layer.weight_hh_l0 *= 1.01
    assert not stability(layer, 1.0).stable


def test_wrong_input_is_refused_with_the_cure():
    for certify in (stability, stabilize):
        with pytest.raises(ValueError, match="network: it runs both ways"):
            certify(torch.nn.GRU(2, 3, bidirectional=True), 1.0)
        with pytest.raises(ValueError, match="input_bound: got -1"):
            certify(GRU(2, 3), -1.0)
        with pytest.raises(TypeError, match="network: got Linear, expected GRU, LSTM or Elman"):
            certify(torch.nn.Linear(2, 3), 1.0)
    for layer_class in (GRU, LSTM):
        layer, _ = build(layer_class, 0, 10.0)
        assert not stability(layer, 5.0).stable
        with pytest.raises(ValueError, match="network: gates of layer 0 can reach 1"):
            stabilize(layer, 5.0)
    with pytest.raises(ValueError, match="slack: got 1"):
        stabilize(GRU(2, 3), 1.0, slack=1.0)
