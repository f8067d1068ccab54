"""Weights in another layout are the same function: against the cells of Keras, flax and TensorFlow 1 in plain numpy."""

import numpy as np
import pytest
import torch
from joined import forms
from oracles import networks
from samplehold import GRU, LSTM, Elman
from samplehold.models.networks import layouts
from torch.nn.utils import parametrizations, prune
from torch.testing import assert_close

F, H, T = 3, 4, 6
LAYERS = {"lstm": LSTM, "gru": GRU, "elman": Elman}
random = np.random.default_rng(0)


def normal(*shape):
    return random.normal(size=shape)


def of_torch(cell, seed=0):
    return networks.with_normal_weights(LAYERS[cell](F, H, dtype=torch.float64), seed)[0]


def run(cell, weights, x):
    """States of torch's layer with these weights."""
    layer = LAYERS[cell](F, H, dtype=torch.float64)
    layer.load_state_dict(weights.state_dict())
    return layer(torch.from_numpy(x))[0].detach().numpy()


def loop(step, x, cell):
    h, c, states = np.zeros(H), np.zeros(H), []
    for x_t in x:
        if cell == "lstm":
            h, c = step(x_t, h, c)
        else:
            h = step(x_t, h)
        states.append(h)
    return np.array(states)


def keras_arrays(cell):
    G = len(layouts.GATES[cell])
    return normal(F, G * H), normal(H, G * H), normal(2, G * H) if cell == "gru" else normal(G * H)


def tf1_arrays(cell):
    G = len(layouts.GATES[cell])
    return normal(F + H, G * H), normal(G * H)


def flax_arrays(cell):
    if cell == "elman":
        return {"i": {"kernel": normal(F, H), "bias": normal(H)}, "h": {"kernel": normal(H, H)}}
    biased = {"lstm": ("hi", "hf", "hg", "ho"), "gru": ("ir", "iz", "in", "hn")}[cell]
    params = {}
    for gate in layouts.GATES[cell]:
        for side, width in (("i", F), ("h", H)):
            bias = {"bias": normal(H)} if side + gate in biased else {}
            params[side + gate] = {"kernel": normal(width, H)} | bias
    return params


GRU_MATRICES = normal(F, 3 * H), normal(H, 3 * H)
KERAS = {"lstm": networks.keras_lstm, "gru": networks.keras_gru, "elman": networks.keras_simple_rnn}
TF1 = {"lstm": networks.tf1_lstm, "elman": networks.tf1_rnn}
FLAX = {"lstm": networks.flax_lstm, "gru": networks.flax_gru, "elman": networks.flax_simple_rnn}


@pytest.mark.parametrize("cell", KERAS)
def test_keras_weights_are_the_same_layer_and_come_back_exactly(cell):
    arrays, x = keras_arrays(cell), normal(T, F)
    weights = layouts.from_keras(cell, *arrays)
    expected = loop(lambda *args: KERAS[cell](*args, *arrays), x, cell)
    np.testing.assert_allclose(run(cell, weights, x), expected, rtol=1e-12, atol=1e-13)
    for got, given in zip(layouts.to_keras(weights), arrays, strict=True):
        np.testing.assert_array_equal(got, given)


@pytest.mark.parametrize("cell", TF1)
@pytest.mark.parametrize("forget_bias", [1.0, 0.3])
def test_tf1_variables_are_the_same_layer_and_come_back_exactly(cell, forget_bias):
    arrays, x = tf1_arrays(cell), normal(T, F)
    weights = layouts.from_tf1(cell, *arrays, hidden_size=H, forget_bias=forget_bias)
    more = (forget_bias,) if cell == "lstm" else ()
    expected = loop(lambda *args: TF1[cell](*args, *arrays, *more), x, cell)
    np.testing.assert_allclose(run(cell, weights, x), expected, rtol=1e-12, atol=1e-13)
    for got, given in zip(layouts.to_tf1(weights, forget_bias), arrays, strict=True):
        np.testing.assert_array_equal(got, given)


@pytest.mark.parametrize("cell", FLAX)
def test_flax_parameters_are_the_same_layer_and_come_back_exactly(cell):
    params, x = flax_arrays(cell), normal(T, F)
    weights = layouts.from_flax(cell, params)
    expected = loop(lambda *args: FLAX[cell](*args, params), x, cell)
    np.testing.assert_allclose(run(cell, weights, x), expected, rtol=1e-12, atol=1e-13)
    back = layouts.to_flax(weights)
    assert {name: set(table) for name, table in back.items()} == {name: set(table) for name, table in params.items()}
    for name, table in params.items():
        for part, array in table.items():
            np.testing.assert_array_equal(back[name][part], array)


@pytest.mark.parametrize("cell", LAYERS)
def test_a_torch_layer_survives_every_layout(cell):
    layer, x = of_torch(cell), normal(T, F)
    weights = layouts.from_torch(layer)
    expected = layer(torch.from_numpy(x))[0].detach().numpy()
    np.testing.assert_array_equal(run(cell, weights, x), expected)
    ways = [
        layouts.from_keras(cell, *layouts.to_keras(weights)),
        layouts.from_flax(cell, layouts.to_flax(weights)),
    ]
    if cell != "gru":
        ways += [layouts.from_tf1(cell, *layouts.to_tf1(weights), hidden_size=H)]
        ways += [layouts.from_joined(cell, *layouts.to_joined(weights), hidden_size=H)]
    for again in ways:
        np.testing.assert_array_equal(again.input, weights.input)
        np.testing.assert_array_equal(again.hidden, weights.hidden)
        np.testing.assert_allclose(again.bias, weights.bias, rtol=1e-15, atol=1e-15)
        np.testing.assert_allclose(run(cell, again, x), expected, rtol=1e-12, atol=1e-14)
    if cell == "gru":
        np.testing.assert_array_equal(ways[0].input_bias, weights.input_bias)
        np.testing.assert_array_equal(ways[0].hidden_bias, weights.hidden_bias)


@pytest.mark.parametrize("cell", LAYERS)
def test_the_weight_that_a_parametrisation_or_a_mask_makes_is_what_counts(cell):
    layer, x = of_torch(cell), normal(T, F)
    parametrizations.spectral_norm(layer.eval(), "weight_hh_l0")
    prune.l1_unstructured(layer, "weight_ih_l0", 0.5)
    expected = layer(torch.from_numpy(x))[0].detach().numpy()
    np.testing.assert_array_equal(run(cell, layouts.from_torch(layer), x), expected)


@pytest.mark.parametrize("cell", ["lstm", "elman"])
def test_one_matrix_on_x_and_h_equals_the_two_matrices(cell):
    weights = layouts.from_torch(of_torch(cell, 1))
    kernel, bias = layouts.to_joined(weights)
    x, h = normal(F), normal(H)
    one = np.concatenate([x, h]) @ kernel + bias
    two = weights.input @ x + weights.input_bias + weights.hidden @ h + weights.hidden_bias
    np.testing.assert_allclose(one, two, rtol=1e-13, atol=1e-14)


def test_a_layer_without_bias():
    kernel, recurrent, _ = keras_arrays("gru")
    weights, x = layouts.from_keras("gru", kernel, recurrent, reset_after=True), normal(T, F)
    expected = loop(lambda *args: networks.keras_gru(*args, kernel, recurrent, np.zeros((2, 1))), x, "gru")
    np.testing.assert_allclose(run("gru", weights, x), expected, rtol=1e-12, atol=1e-13)
    plain = LSTM(F, H, bias=False, dtype=torch.float64)
    assert (layouts.from_torch(plain).bias == 0).all()


@pytest.mark.parametrize("biased", [1, 0])
def test_a_gru_that_resets_before_the_product_is_another_function(biased):
    """Why it is refused: the same weights give other states, and with a diagonal recurrent kernel the same states."""
    kernel, recurrent, bias = keras_arrays("gru")
    bias, x, diagonal = bias * [[biased], [0]], normal(T, F), np.tile(np.eye(H), 3) * recurrent
    states = lambda U, *rest: loop(lambda *args: networks.keras_gru(*args, kernel, U, *rest), x, "gru")
    assert np.abs(states(recurrent, bias[0], False) - states(recurrent, bias)).max() > 1e-2
    np.testing.assert_allclose(states(diagonal, bias[0], False), states(diagonal, bias), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layouts.from_keras("gru", normal(F, 3 * H), normal(H, 3 * H), normal(3 * H)), "reset_after=False"),
        (lambda: layouts.from_keras("gru", *GRU_MATRICES), "reset_after: got None for a GRU without bias"),
        (lambda: layouts.from_keras("gru", *GRU_MATRICES, reset_after=False), "reset_after: got False, which resets"),
        (lambda: layouts.from_keras("gru", *keras_arrays("gru"), reset_after=False), "reset_after: got False"),
        (
            lambda: layouts.from_tf1("gru", normal(F + H, 2 * H), normal(2 * H), hidden_size=H),
            "GRUCell resets h before",
        ),
        (lambda: layouts.to_tf1(layouts.from_torch(of_torch("gru"))), "GRUCell resets h before"),
        (lambda: layouts.to_joined(layouts.from_torch(of_torch("gru"))), "one matrix on"),
        (lambda: layouts.from_joined("gru", normal(F + H, 3 * H), hidden_size=H), "one matrix on"),
        (lambda: layouts.from_keras("peephole", normal(F, H), normal(H, H)), "cell: got 'peephole', expected one of"),
        (lambda: layouts.from_keras("lstm", normal(F, 3 * H), normal(H, 4 * H)), r"kernel: got shape \[3, 12\]"),
        (
            lambda: layouts.from_keras("lstm", normal(F, 4 * H), normal(H, 3 * H)),
            r"recurrent_kernel: got shape \[4, 12\]",
        ),
        (lambda: layouts.from_torch(torch.nn.LSTM(F, H, proj_size=2)), "proj_size"),
    ],
)
def test_what_cannot_be_converted_says_why(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_what_is_no_layer_of_one_direction_is_refused():
    with pytest.raises(TypeError, match="module"):
        layouts.from_torch(torch.nn.Linear(F, H))
    with pytest.raises(ValueError, match="layer: got 1"):
        layouts.from_torch(torch.nn.GRU(F, H), layer=1)
    with pytest.raises(ValueError, match="both directions"):
        layouts.from_torch(torch.nn.GRU(F, H, bidirectional=True))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_bias_of_other_rows_than_two_is_refused_for_a_gru_of_keras(rows):
    with pytest.raises(ValueError, match="bias: got shape"):
        layouts.from_keras("gru", normal(F, 3 * H), normal(H, 3 * H), normal(rows, 3 * H))


def test_missing_submodules_of_flax_are_named():
    with pytest.raises(ValueError, match=r"without .*'hn'"):
        layouts.from_flax("gru", {"in": {"kernel": normal(F, H)}})


@pytest.mark.parametrize(
    ("module", "name", "shape"),
    [("ir", "bias", (H - 1,)), ("in", "bias", (H + 1,)), ("hz", "kernel", (H, H + 1)), ("iz", "kernel", (F + 1, H))],
)
def test_tables_of_flax_of_another_shape_are_named(module, name, shape):
    params = layouts.to_flax(layouts.from_torch(of_torch("gru")))
    params[module] = params[module] | {name: normal(*shape)}
    with pytest.raises(ValueError, match=rf"^params\['{module}'\]\['{name}'\]: got shape"):
        layouts.from_flax("gru", params)


def test_weights_share_no_memory_with_what_they_came_from():
    kernel, bias = normal(F + H, 4 * H), normal(4 * H)
    weights = layouts.from_joined("lstm", kernel, bias, hidden_size=H)
    before = weights.bias.copy()
    bias += 1.0
    np.testing.assert_array_equal(weights.bias, before)
    layouts.to_flax(weights)["ii"]["kernel"][:] = 7.0
    assert not (weights.input == 7.0).any()


@pytest.mark.parametrize("kind", [LSTM, Elman])
def test_one_matrix_or_two_give_the_same_gates(kind):
    """To the bit, where sums are exact; the forms that the study times."""
    layer = kind(3, 4, dtype=torch.float64).requires_grad_(False)
    random = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.copy_(torch.randint(-8, 8, parameter.shape, generator=random) / 8)
    x = torch.randint(-8, 8, (1, 5, 3), generator=random) / 8.0
    ends = {name: form() for name, form in forms(layer, x.double()).items()}
    assert torch.equal(ends["one matrix"], ends["two matrices"])
    x = torch.randn(20, 5, 3, generator=random, dtype=torch.float64)
    for form in forms(layer, x).values():
        assert_close(form(), layer(x.transpose(0, 1))[0][:, -1], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("write", [layouts.to_joined, layouts.to_keras, layouts.to_tf1, layouts.to_flax])
def test_weights_of_another_type_are_named(write, as_users_call):
    with pytest.raises(TypeError, match="weights: got int, expected RecurrentWeights, such as from_torch"):
        write(3)
