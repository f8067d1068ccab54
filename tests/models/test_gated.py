"""MinGRU and MinLSTM: parallel form, step form and textbook loop are one function, in value and in gradient."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles import networks
from oracles.placement import close
from samplehold import MinGRU, MinLSTM
from torch.testing import assert_close

LOOPS = {MinGRU: networks.min_gru, MinLSTM: networks.min_lstm}
KINDS = ("linear", "tanh", "positive", "simplex")


def build(layer_class, features, units, seed, scale=1.0, **options):
    return networks.with_normal_weights(layer_class(features, units, dtype=torch.float64, **options), seed, scale)


def normal(random, *shape):
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def textbook(layer, x, h0):
    """out [B, T, D] and h_n [L, B, D] by the loops of the oracle."""
    outputs, ends = [], []
    for b in range(x.shape[0]):
        rows = x[b]
        ends.append([])
        for k in range(layer.num_layers):
            weight, bias = (spread(layer, getattr(layer, f"{name}_l{k}")) for name in ("weight", "bias"))
            states = LOOPS[type(layer)](rows, h0[k, b], weight, bias, layer.candidate, layer.block)
            rows = torch.stack(states)
            ends[-1].append(states[-1])
        outputs.append(rows)
    return torch.stack(outputs), torch.stack([torch.stack(end) for end in ends], 1)


def spread(layer, rows):
    """One row a unit: units of a simplex share their gates."""
    if layer.candidate != "simplex":
        return rows
    gates = rows[: -layer.hidden_size]
    return torch.cat([torch.stack([row] * layer.block) for row in gates.unbind()] + [rows[-layer.hidden_size :]])


def gradients(layer, loss, *others):
    return torch.autograd.grad(loss, [*layer.parameters(), *others])


@pytest.mark.parametrize("layer_class", [MinGRU, MinLSTM])
@pytest.mark.parametrize("candidate", KINDS)
@examples(12)
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3)),
    num_layers=st.integers(1, 2),
    scale=st.sampled_from([0.3, 1.0, 8.0]),
    seed=st.integers(0, 2**20),
)
def test_parallel_step_and_loop_agree_in_value_and_gradient(
    dtype, layer_class, candidate, sizes, num_layers, scale, seed
):
    B, T, F, blocks = sizes
    options = {"candidate": candidate, "num_layers": num_layers, "block": 3 if candidate == "simplex" else None}
    layer, random = build(layer_class, F, 3 * blocks, seed, scale, **options)
    layer = layer.to(dtype)
    x, h0 = normal(random, B, T, F).to(dtype), normal(random, num_layers, B, 3 * blocks).to(dtype)
    seeds = normal(random, B, T, 3 * blocks), normal(random, num_layers, B, 3 * blocks)
    wide = deepcopy(layer).double()
    exact = x.double().requires_grad_(), h0.double().requires_grad_()
    x, h0 = x.requires_grad_(), h0.requires_grad_()

    expected = textbook(wide, *exact)
    expected_gradients = gradients(wide, sum((a * b).sum() for a, b in zip(expected, seeds, strict=True)), *exact)
    for form in (layer, partial(networks.stepped, layer)):
        got = form(x, h0)
        for a, b in zip(got, expected, strict=True):
            close(a, b, dtype, rtol=1e-12, atol=1e-12)
        got_gradients = gradients(layer, sum((a * b).sum() for a, b in zip(got, seeds, strict=True)), x, h0)
        size = max(g.abs().max().item() for g in expected_gradients)
        for a, b in zip(got_gradients, expected_gradients, strict=True):
            close(a, b, dtype, max(1.0, size), rtol=1e-12, atol=1e-12 * max(1.0, size))


def test_layouts_of_batch_and_time():
    layer, random = build(MinGRU, 3, 4, 2, num_layers=2)
    first = MinGRU(3, 4, num_layers=2, batch_first=False, dtype=torch.float64)
    first.load_state_dict(layer.state_dict())
    x, h0 = normal(random, 5, 2, 6, 3), normal(random, 2, 5, 2, 4)
    out, end = layer(x, h0)
    assert out.shape == (5, 2, 6, 4)
    assert end.shape == (2, 5, 2, 4)
    alone, alone_end = layer(x[3, 1], h0[:, 3, 1])
    assert_close(out[3, 1], alone)
    assert_close(end[:, 3, 1], alone_end)
    moved, moved_end = first(x.movedim(2, 0), h0)
    assert_close(moved.movedim(0, 2), out)
    assert_close(moved_end, end)
    nothing, same = layer(x[..., :0, :], h0)
    assert nothing.shape == (5, 2, 0, 4)
    assert_close(same, h0, rtol=0, atol=0)
    assert layer(x[:0])[0].shape == (0, 2, 6, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept(dtype):
    layer = MinLSTM(2, 3, dtype=dtype)
    out, end = layer(torch.ones(4, 5, 2, dtype=dtype))
    assert out.dtype == end.dtype == dtype
    assert layer.step(torch.ones(4, 2, dtype=dtype))[0].dtype == dtype


def test_saturated_gates_hold_or_draw_exactly():
    layer, random = build(MinGRU, 2, 3, 0)
    x, h0 = normal(random, 1, 6, 2), normal(random, 1, 1, 3)
    with torch.no_grad():
        layer.bias_l0[:3] = -1e4
        assert_close(layer(x, h0)[0], h0.movedim(0, 1).expand(1, 6, 3), rtol=0, atol=0)
        layer.bias_l0[:3] = 1e4
        candidates = x @ layer.weight_l0[3:].T + layer.bias_l0[3:]
        assert_close(layer(x, h0)[0], candidates, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_min_lstm_normalises_gates_that_both_underflow(dtype):
    layer = MinLSTM(1, 1, dtype=dtype)
    with torch.no_grad():
        layer.weight_l0.zero_()
        layer.bias_l0.copy_(torch.tensor([-2000.0, -1998.0, 1.0]))
    out, _ = layer(torch.zeros(1, 1, 1, dtype=dtype))
    expected = torch.sigmoid(torch.tensor(2.0, dtype=torch.float64))
    assert_close(out.double().squeeze(), expected, rtol=5 * torch.finfo(dtype).eps, atol=0)
    (gradient,) = torch.autograd.grad(out.sum(), [layer.bias_l0])
    slope = expected * (1 - expected)
    wanted = torch.stack([-slope, slope, expected])
    assert_close(gradient.double(), wanted, rtol=10 * torch.finfo(dtype).eps, atol=0)


def test_simplex_keeps_every_block_a_distribution():
    layer, random = build(MinGRU, 3, 12, 3, 4.0, candidate="simplex", block=4)
    out, _ = layer(normal(random, 2, 50, 3))
    assert layer.weight_l0.shape == (3 + 12, 3)
    assert (out >= 0).all()
    assert_close(out.unflatten(-1, (3, 4)).sum(-1), torch.ones(2, 50, 3, dtype=torch.float64), rtol=1e-13, atol=0)


def test_the_positive_candidate_is_the_published_network():
    layer, random = build(MinGRU, 3, 5, 4, candidate="positive")
    x, h0 = normal(random, 80, 3), normal(random, 1, 5).abs() + 0.1
    expected = networks.log_space_min_gru(x, h0[0], layer.weight_l0, layer.bias_l0)
    assert_close(layer(x, h0)[0], expected, rtol=1e-10, atol=0)


def test_torch_gru_without_recurrent_weights_is_a_min_gru():
    gru = torch.nn.GRU(3, 4, batch_first=True, dtype=torch.float64)
    layer = MinGRU(3, 4, candidate="tanh", dtype=torch.float64)
    with torch.no_grad():
        gru.weight_hh_l0.zero_()
        gru.bias_hh_l0.zero_()
        layer.weight_l0.copy_(torch.cat([-gru.weight_ih_l0[4:8], gru.weight_ih_l0[8:]]))
        layer.bias_l0.copy_(torch.cat([-gru.bias_ih_l0[4:8], gru.bias_ih_l0[8:]]))
    x = normal(torch.Generator().manual_seed(0), 2, 20, 3)
    assert_close(layer(x), gru(x), rtol=1e-13, atol=1e-14)


def test_a_stored_state_dict_keeps_its_names_and_its_meaning():
    layer = MinGRU(2, 1, dtype=torch.float64)
    stored = {
        "weight_l0": torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64),
        "bias_l0": torch.tensor([0.0, -1.0], dtype=torch.float64),
    }
    layer.load_state_dict(stored)
    out, _ = layer(torch.tensor([[0.0, 1.0], [0.0, 3.0]], dtype=torch.float64))
    # gates 1/2, candidates 2 * 1 - 1 and 2 * 3 - 1
    assert_close(out.squeeze(-1), torch.tensor([0.5, 2.75], dtype=torch.float64), rtol=1e-15, atol=0)
    assert list(layer.state_dict()) == ["weight_l0", "bias_l0"]


def test_a_state_dict_of_a_later_version_is_refused():
    layer = MinGRU(2, 3)
    state = layer.state_dict()
    state._metadata[""]["version"] = 99
    with pytest.raises(ValueError, match="state_dict: MinGRU was saved by version 99"):
        layer.load_state_dict(state)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MinGRU(0, 3), "input_size: got 0"),
        (lambda: MinGRU(2, 3, candidate="relu"), "candidate: got 'relu', expected one of"),
        (lambda: MinGRU(2, 4, candidate="simplex", block=3), "block: got 3, but there are 4 units"),
        (lambda: MinGRU(2, 4, block=2), "block: got 2 with candidate='linear'"),
        (lambda: MinGRU(2, 3)(torch.ones(4, 5, 3)), r"x: got shape \[4, 5, 3\], expected"),
        (lambda: MinGRU(2, 3)(torch.ones(2)), r"x: got shape \[2\], expected"),
        (lambda: MinGRU(2, 3).step(torch.ones(4, 3)), r"x: got shape \[4, 3\], expected one step"),
        (lambda: MinGRU(2, 3)(torch.ones(4, 5, 2), torch.ones(4, 3)), r"hx: got shape \[4, 3\], expected \[1, 4, 3\]"),
        (lambda: MinGRU(2, 3)(torch.ones(4, 5, 2), None, torch.tensor([1, 5, 6, 2])), "lengths: got 6"),
    ],
)
def test_wrong_input_is_refused_with_the_cure(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_training_from_two_threads_gives_the_gradients_of_one():
    from concurrent.futures import ThreadPoolExecutor

    layer, random = build(MinGRU, 16, 64, 5)
    x = normal(random, 2, 8, 300, 16)

    def gradient(k):
        return gradients(layer, layer(x[k % 2])[0].square().sum())

    alone = [gradient(0), gradient(1)]
    with ThreadPoolExecutor(2) as pool:
        for k, got in enumerate(pool.map(gradient, range(8))):
            for a, b in zip(got, alone[k % 2], strict=True):
                assert_close(a, b, rtol=1e-13, atol=1e-13)
