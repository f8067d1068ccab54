"""QRNN: all three poolings against the loop of the paper, whole, step by step, in chunks and ragged."""

from functools import partial

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles import networks
from samplehold import QRNN
from samplehold.models.networks.qrnn import QRNNState
from torch.testing import assert_close


def build(features, units, seed, **options):
    return networks.with_normal_weights(QRNN(features, units, dtype=torch.float64, **options), seed)


def normal(random, *shape):
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def start(layer, random, batch):
    inputs = (normal(random, batch, layer.window - 1, layer.layer_inputs(k)) for k in range(layer.num_layers))
    cell = normal(random, layer.num_layers, batch, layer.hidden_size).requires_grad_()
    return QRNNState(cell, tuple(rows.requires_grad_() for rows in inputs))


def textbook(layer, x, h0):
    outputs, cells, pasts = [], [], []
    for b in range(x.shape[0]):
        rows, ends, left = x[b], [], []
        for k in range(layer.num_layers):
            weights = getattr(layer, f"weight_l{k}"), getattr(layer, f"bias_l{k}")
            past = list(h0.inputs[k][b].unbind())
            out, cell, past = networks.qrnn(rows, h0.cell[k, b], past, *weights, layer.pooling)
            rows = torch.stack(out)
            ends.append(cell)
            left.append(torch.stack(past) if past else h0.inputs[k][b])
        outputs.append(rows)
        cells.append(torch.stack(ends))
        pasts.append(left)
    inputs = tuple(torch.stack([left[k] for left in pasts]) for k in range(layer.num_layers))
    return torch.stack(outputs), QRNNState(torch.stack(cells, 1), inputs)


def flat(out, state):
    return [out, state.cell, *state.inputs]


def gradients(layer, pieces, seeds, *others):
    loss = sum((a * b).sum() for a, b in zip(pieces, seeds, strict=True))
    return torch.autograd.grad(loss, [*layer.parameters(), *others], materialize_grads=True)


@pytest.mark.parametrize("pooling", ["f", "fo", "ifo"])
@examples(12)
@given(
    sizes=st.tuples(st.integers(1, 2), st.integers(1, 8), st.integers(1, 3), st.integers(1, 4)),
    window=st.integers(1, 3),
    num_layers=st.integers(1, 2),
    cut=st.integers(0, 8),
    seed=st.integers(0, 2**20),
)
def test_parallel_step_chunks_and_loop_agree_in_value_and_gradient(pooling, sizes, window, num_layers, cut, seed):
    B, T, F, D = sizes
    layer, random = build(F, D, seed, pooling=pooling, window=window, num_layers=num_layers)
    x = normal(random, B, T, F).requires_grad_()
    h0 = start(layer, random, B)

    def chunked(x, h):
        first, h = layer(x[:, :cut], h)
        second, h = layer(x[:, cut:], h)
        return torch.cat([first, second], 1), h

    expected = flat(*textbook(layer, x, h0))
    seeds = [normal(random, *piece.shape) for piece in expected]
    wanted = gradients(layer, expected, seeds, x, h0.cell, *h0.inputs)
    size = max(1.0, *(g.abs().max().item() for g in wanted if g.numel()))
    for form in (layer, partial(networks.stepped, layer), chunked):
        got = flat(*form(x, h0))
        for a, b in zip(got, expected, strict=True):
            assert_close(a, b, rtol=1e-12, atol=1e-12)
        for a, b in zip(gradients(layer, got, seeds, x, h0.cell, *h0.inputs), wanted, strict=True):
            assert_close(a, b, rtol=1e-12, atol=1e-12 * size)


def test_a_window_of_the_causal_convolution_of_torch():
    layer, random = build(3, 2, 4, window=4, pooling="f")
    x = normal(random, 5, 9, 3)
    padded = torch.nn.functional.pad(x.transpose(1, 2), (3, 0))
    pre = torch.nn.functional.conv1d(padded, layer.weight_l0, layer.bias_l0).transpose(1, 2)
    hold, z = pre[..., :2].sigmoid(), pre[..., 2:].tanh()
    out, _ = layer(x)
    assert_close(out[:, 0], (1 - hold[:, 0]) * z[:, 0], rtol=1e-13, atol=1e-13)
    assert_close(out[:, 1:], hold[:, 1:] * out[:, :-1] + (1 - hold[:, 1:]) * z[:, 1:], rtol=1e-13, atol=1e-13)


def test_ifo_pooling_counts():
    layer = QRNN(1, 1, pooling="ifo", dtype=torch.float64)
    with torch.no_grad():
        layer.weight_l0.zero_()
        layer.bias_l0.copy_(torch.tensor([1e3, 1e3, 1e3, 1e3]))  # hold all, take all, candidate 1, show all
    out, _ = layer(torch.zeros(10, 1, dtype=torch.float64))
    assert_close(out.squeeze(), torch.arange(1.0, 11, dtype=torch.float64), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: QRNN(2, 3, pooling="max"), "pooling: got 'max', expected one of"),
        (lambda: QRNN(2, 3, window=0), "window: got 0"),
        (
            lambda: QRNN(2, 3, window=2)(torch.ones(4, 5, 2), QRNN(2, 3).initial_state(4)),
            r"hx.inputs\[0\]: got shape \[4, 0, 2\], expected \[4, 1, 2\]",
        ),
        (
            lambda: QRNN(2, 3, num_layers=2)(torch.ones(4, 5, 2), QRNN(2, 3).initial_state(4)),
            r"hx.cell: got shape \[1, 4, 3\], expected \[2, 4, 3\]",
        ),
    ],
)
def test_wrong_input_is_refused_with_the_cure(call, message):
    with pytest.raises(ValueError, match=message):
        call()
