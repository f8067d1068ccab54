"""Layers, directions, dropout and packed input: each against its plain composition from layers of one direction."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from oracles.networks import stepped, with_normal_weights
from oracles.operators import unchecked
from pyro.nn import PyroSample
from pyro.nn.module import to_pyro_module_
from samplehold import (
    GRU,
    LSTM,
    QRNN,
    DoublingLSTM,
    Elman,
    MinGRU,
    MinLSTM,
    PeepholeLSTM,
    RotatingGRU,
    as_ssm,
    redrawn_start,
    truncate,
)  # fmt: skip
from samplehold.face.studies import forgetting
from samplehold.models.networks.qrnn import QRNNState
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.testing import assert_close

OWN = {MinGRU: {"candidate": "simplex", "block": 2}, MinLSTM: {}, QRNN: {"window": 3, "pooling": "ifo"}}
PEERS = {GRU: nn.GRU, LSTM: nn.LSTM, Elman: nn.RNN}
LAYERS = [*OWN, *PEERS, RotatingGRU, PeepholeLSTM, DoublingLSTM]
every_layer = pytest.mark.parametrize("kind", LAYERS)
each_layer = pytest.mark.parametrize("kind", [*OWN, *PEERS])
each_own = pytest.mark.parametrize("kind", OWN)
each_peer = pytest.mark.parametrize("kind", PEERS)


def made(kind, features=3, **options):
    layer = kind(features, 4, dtype=torch.float64, **OWN.get(kind, {}), **options)
    return with_normal_weights(layer)[0]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_way(layer, number, reverse):
    """One layer and direction of several, as a layer of its own."""
    alone = made(type(layer), layer.input_size if number == 0 else 4 * (1 + layer.bidirectional), bias=layer.bias)
    ending = f"_l{number}{'_reverse' if reverse else ''}"
    named = {name: value for name, value in layer.state_dict().items() if name.endswith(ending)}
    alone.load_state_dict({name.replace(ending, "_l0"): value for name, value in named.items()})
    return alone


def part(state, k, b):
    """The state of layer and direction number k in sequence b, as a layer of its own has it."""
    if isinstance(state, QRNNState):
        return QRNNState(state.cell[k : k + 1, b], (state.inputs[k][b],))
    if isinstance(state, tuple):
        return tuple(part(piece, k, b) for piece in state)
    return state[k : k + 1, b]


def alone(state, b):
    """The state of sequence b, without a batch axis."""
    if isinstance(state, QRNNState):
        return QRNNState(state.cell[:, b], tuple(rows[b] for rows in state.inputs))
    return tuple(alone(piece, b) for piece in state) if isinstance(state, tuple) else state[:, b]


def pieces(state):
    return [z for piece in state for z in pieces(piece)] if isinstance(state, tuple) else [state]


@each_layer
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lengths", [None, [6, 2, 4]])
def test_both_directions_are_two_layers_each_of_which_reads_its_own_steps(kind, bias, lengths):
    layer, x = made(kind, num_layers=2, bidirectional=True, bias=bias), normal(3, 6, 3)
    start = layer(normal(3, 5, 3, seed=1))[1]
    if lengths is not None:
        for b, n in enumerate(lengths):
            x[b, n:] = float("nan")
    out, end = layer(x, start, lengths)
    assert out.shape == (3, 6, 8)
    assert not bias or any(name == "bias_l1_reverse" or name == "bias_ih_l1_reverse" for name in layer.state_dict())
    for b, n in enumerate(lengths or [6] * 3):
        rows = x[b, :n]
        for number in range(2):
            ahead, forward_end = one_way(layer, number, False)(rows, part(start, 2 * number, b))
            back, backward_end = one_way(layer, number, True)(rows.flip(0), part(start, 2 * number + 1, b))
            rows = torch.cat([ahead, back.flip(0)], -1)
            for k, expected in ((2 * number, forward_end), (2 * number + 1, backward_end)):
                assert_close(pieces(part(end, k, b)), pieces(expected), rtol=1e-12, atol=1e-12)
        assert_close(out[b, :n], rows, rtol=1e-12, atol=1e-12)
        assert not out[b, n:].any()


@every_layer
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_ragged_batch_is_its_sequences_one_by_one(kind, batch_first):
    layer, x, lengths = made(kind, num_layers=2, batch_first=batch_first), normal(3, 6, 3), torch.tensor([2, 6, 4])
    for b, n in enumerate(lengths):
        x[b, n:] = float("nan")
    start = layer(normal(*((3, 5) if batch_first else (5, 3)), 3, seed=1))[1]
    out, end = layer(x if batch_first else x.transpose(0, 1), start, lengths)
    out = out if batch_first else out.transpose(0, 1)
    losses = [out.sum() + sum(piece.square().sum() for piece in pieces(end)), 0.0]
    for b, n in enumerate(lengths):
        expected, expected_end = layer(x[b, :n], alone(start, b))
        assert_close(out[b, :n], expected, rtol=1e-12, atol=1e-12)
        assert not out[b, n:].any()
        assert_close(pieces(alone(end, b)), pieces(expected_end), rtol=1e-12, atol=1e-12)
        assert_close(layer(x[b], alone(start, b), n)[0], out[b], rtol=1e-12, atol=1e-12)
        losses[1] += expected.sum() + sum(piece.square().sum() for piece in pieces(expected_end))
    ours, theirs = (torch.autograd.grad(loss, list(layer.parameters()), retain_graph=True) for loss in losses)
    assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def in_chunks(layer, x, h):
    rows = []
    for part in x.split([3, 0, 4], 1):
        out, h = layer(part, h)
        rows.append(out)
    return torch.cat(rows, 1), h


@every_layer
@pytest.mark.parametrize("form", [stepped, in_chunks])
def test_parts_with_carried_state_are_the_whole_in_value_and_gradient(kind, form):
    layer, x = made(kind, num_layers=2), normal(2, 7, 3).requires_grad_()
    start, weight = layer(normal(2, 5, 3, seed=1))[1], normal(2, 7, 4, seed=2)
    results = form(layer, x, start), layer(x, start)
    for ours, theirs in zip(*map(pieces, results), strict=True):
        assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    leaves = [x, *layer.parameters()]
    losses = [(out * weight).sum() + sum(piece.sum() for piece in pieces(end)) for out, end in results]
    gradients = [torch.autograd.grad(loss, leaves, retain_graph=True) for loss in losses]
    assert_close(*gradients, rtol=1e-11, atol=1e-11)


@each_own
def test_dropout_acts_between_layers_in_training_alone(kind):
    layer, x = made(kind, num_layers=2, dropout=0.5), normal(2, 6, 3)
    first, second = one_way(layer, 0, False), one_way(layer, 1, False)
    assert_close(layer.eval()(x)[0], second(first(x)[0])[0], rtol=1e-13, atol=1e-13)
    layer.train()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        got = layer(x)[0]
        torch.manual_seed(3)
        expected = second(nn.functional.dropout(first(x)[0], 0.5))[0]
        assert_close(got, expected, rtol=1e-13, atol=1e-13)
        torch.manual_seed(4)
        step = layer.step(x[:, 0])[0]
        torch.manual_seed(4)
        assert_close(step, second.step(nn.functional.dropout(first.step(x[:, 0])[0], 0.5))[0], rtol=1e-13, atol=1e-13)
    silent = made(kind, num_layers=2, dropout=1.0)
    assert_close(silent(x)[0], second(torch.zeros(2, 6, 4, dtype=torch.float64))[0], rtol=1e-13, atol=1e-13)


@each_peer
@pytest.mark.parametrize("options", [{"bidirectional": True}, {"bias": False}, {"batch_first": False}])
def test_all_options_are_torchs_own(kind, options):
    layer = made(kind, num_layers=2, dropout=0.3, **options)
    peer = PEERS[kind](3, 4, num_layers=2, dropout=0.3, dtype=torch.float64, **({"batch_first": True} | options))
    peer.load_state_dict(layer.state_dict())
    x = normal(3, 6, 3)
    for train in (True, False):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            expected = peer.train(train)(x)
            torch.manual_seed(0)
            assert_close(layer.train(train)(x), expected, rtol=0, atol=0)


@each_peer
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"bias": False}, {"batch_first": False}])
@pytest.mark.parametrize("lengths", [None, [5, 2, 4]])
def test_the_plain_loop_that_transforms_use_is_torchs_kernel(kind, options, lengths):
    if kind is Elman:
        options = options | {"nonlinearity": "relu"}
    layer, x = made(kind, num_layers=2, **options), normal(3, 5, 3)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(0.5)  # so that relu does not grow
    x = x if layer.batch_first else x.transpose(0, 1)
    start = layer(0.5 * x)[1]
    parameters, _ = stack_module_state([layer, layer])
    for hx in (None, start):
        mapped = vmap(lambda p, hx=hx: functional_call(layer, p, (x, hx, lengths)))(parameters)
        for found, expected in zip(pieces(mapped), pieces(layer(x, hx, lengths)), strict=True):
            assert_close(found[1], expected, rtol=1e-12, atol=1e-12)


@each_layer
def test_a_packed_batch_is_the_ragged_one_in_both_directions(kind):
    layer, x, lengths = made(kind, bidirectional=True), normal(4, 6, 3), torch.tensor([3, 6, 1, 3])
    start = layer(x)[1]
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, state = layer(packed, start)
    expected, end = layer(x, start, lengths)
    assert isinstance(out, PackedSequence)
    assert_close(out.data, pack_padded_sequence(expected, lengths, True, enforce_sorted=False).data)
    assert torch.equal(out.unsorted_indices, packed.unsorted_indices)
    assert_close(pieces(state), pieces(end), rtol=1e-13, atol=1e-13)


@each_own
def test_half_precision_carries_its_state_in_single(kind):
    """Held for long, a state that is rounded at every step would stand still or drift."""
    options = {"pooling": "f"} if kind is QRNN else {"candidate": "linear"}
    layer = kind(1, 1, dtype=torch.bfloat16, **options)
    with torch.no_grad():
        layer.weight_l0.zero_()
        layer.bias_l0.copy_(torch.tensor({MinGRU: [-6.0, 3.0], MinLSTM: [3.0, -3.0, 3.0], QRNN: [6.0, 3.0]}[kind]))
    exact = kind(1, 1, dtype=torch.float64, **options)
    exact.load_state_dict(layer.state_dict())
    x = torch.zeros(1, 300, 1)
    expected = exact(x.double())[0]
    assert expected[0, -1] > 0.5  # what many small steps add up to
    assert_close(layer(x.bfloat16())[0].double(), expected, rtol=2**-8, atol=0)


@pytest.mark.cpu("it casts there")
def test_under_autocast_states_stay_in_single_precision():
    layer, x = MinGRU(3, 4, num_layers=2), torch.randn(2, 5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        out, h = layer(x)
        again, h = layer(x.bfloat16(), h)
        stepped, h = layer.step(x[:, 0], h)
    assert out.dtype == again.dtype == stepped.dtype == h.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.hardware("torch's compiler knows few devices")
@pytest.mark.parametrize(
    ("kind", "lengths"),
    [*((kind, torch.tensor([2, 1, 3])) for kind in (*OWN, *PEERS)), *((kind, [2, 1, 3]) for kind in (MinGRU, Elman))],
)
def test_the_compiler_takes_lengths_states_and_both_directions(kind, lengths):
    layer, x = made(kind, num_layers=2, bidirectional=True), normal(3, 3, 3)
    start = layer(x)[1]
    torch._dynamo.reset()
    with unchecked(), torch._dynamo.config.patch(allow_rnn=True):
        found = torch.compile(layer, backend="aot_eager", fullgraph=True)(x, start, lengths)
    assert_close(pieces(found), pieces(layer(x, start, lengths)), rtol=1e-12, atol=1e-12)


@each_own
def test_an_exported_layer_takes_batches_and_series_of_any_size(kind):
    layer, sizes = made(kind), {axis: torch.export.Dim(f"n{axis}", min=2, max=64) for axis in (0, 1)}
    with unchecked():
        exported = torch.export.export(layer, (normal(2, 5, 3),), dynamic_shapes=(sizes,)).module()
    x = normal(4, 9, 3)
    assert_close(pieces(exported(x)), pieces(layer(x)), rtol=1e-12, atol=1e-12)


@each_layer
def test_lengths_and_states_can_be_mapped(kind):
    layer, x = made(kind, num_layers=2), normal(2, 3, 5, 3)
    lengths = torch.tensor([[4, 2, 5], [1, 5, 3]])
    start = layer(x[0])[1]
    found = vmap(lambda x, n: layer(x, start, n)[0])(x, lengths)
    for k in range(2):
        assert_close(found[k], layer(x[k], start, lengths[k])[0], rtol=1e-12, atol=1e-12)


@each_layer
def test_a_layer_with_no_parameter_left_is_the_one_whose_weights_were_drawn(kind):
    layer, plain, x = made(kind, num_layers=2), made(kind, num_layers=2), normal(2, 5, 3)
    to_pyro_module_(layer)
    for name, value in plain.named_parameters():
        setattr(layer, name, PyroSample(dist.Normal(torch.zeros_like(value), 1.0).to_event(value.dim())))
    assert not list(layer.parameters())
    with torch.random.fork_rng(), pyro.poutine.trace() as trace:
        got = layer(x)
    plain.load_state_dict({name: trace.trace.nodes[name]["value"] for name, _ in plain.named_parameters()})
    assert_close(pieces(got), pieces(plain(x)), rtol=1e-12, atol=1e-12)


@each_own
def test_one_layer_has_nothing_to_drop(kind):
    with pytest.warns(UserWarning, match="dropout: got 0.5 for one layer"):
        kind(3, 4, dropout=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kind(3, 4, num_layers=2, dropout=0.5)


@each_layer
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 1.5}, "dropout: got 1.5"),
        ({"dtype": torch.int64}, "dtype: got torch.int64"),
    ],
)
def test_wrong_options_are_refused(kind, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        kind(3, 4, **options)


@each_layer
def test_wrong_calls_are_refused_by_the_callers_name(kind):
    layer, x = made(kind), normal(2, 5, 3)
    packed = pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True)
    narrow = pack_padded_sequence(x[..., :2], torch.tensor([5, 3]), batch_first=True)
    start = layer(x[:1])[1]
    single = layer.float()(x.float())[1]
    layer.double()
    for call, kinds, message in (
        (
            lambda: made(kind, bidirectional=True).step(x[:, 0]),
            ValueError,
            "layer: reads in both directions, .* no step",
        ),
        (lambda: layer(packed, None, [5, 3]), ValueError, "lengths: a PackedSequence has its own"),
        (lambda: layer(narrow), ValueError, r"x: got shape \[2, 5, 2\]"),
        (lambda: layer(packed.to(torch.float32)), TypeError, "x: got torch.float32 .*expected torch.float64"),
        (lambda: layer(x.float()), TypeError, "x: got torch.float32"),
        (lambda: layer(x[..., :2]), ValueError, r"x: got shape \[2, 5, 2\]"),
        (lambda: layer.step(x[:, 0, :2]), ValueError, r"x: got shape \[2, 2\], expected one step"),
        (lambda: layer(x, None, [1, 8]), ValueError, "lengths: got 8"),
        (lambda: layer(x.bfloat16()), TypeError, "x: got torch.bfloat16"),
        (lambda: layer(x, single), TypeError, "hx.*: got torch.float32"),
        (lambda: layer(x, start), ValueError, r"hx.*: got shape"),
        (lambda: layer(packed, start), ValueError, r"hx.*: got shape"),
        (lambda: layer.step(x[:, 0], start), ValueError, r"h\b.*: got shape"),
    ):
        with pytest.raises(kinds, match=f"^{message}"):
            call()


@each_own
def test_a_weight_of_another_shape_or_dtype_is_named(kind):
    layer, x = made(kind, num_layers=2), normal(2, 5, 3)
    weight = layer.weight_l1.detach()
    for given, error, message in (
        ({"weight_l1": weight[1:]}, ValueError, "weight_l1: got shape"),
        ({"bias_l0": layer.bias_l0.detach()[None]}, ValueError, "bias_l0: got shape"),
        ({"weight_l1": weight.float()}, TypeError, "weight_l1: got torch.float32"),
    ):
        with pytest.raises(error, match=f"^{message}"):
            functional_call(layer, given, (x,))


@each_layer
def test_hooks_that_change_shapes_are_told_so(kind):
    layer, x = made(kind), normal(2, 5, 3)
    handle = layer.register_forward_pre_hook(lambda module, given: (given[0][..., :2], *given[1:]))
    with pytest.raises(ValueError, match=r"^x: got shape \[2, 5, 2\]"):
        layer(x)
    with pytest.raises(ValueError, match=r"^x: got shape \[2, 1, 2\]"):
        layer.step(x[:, 0])
    handle.remove()
    for change in (lambda out, state: out, lambda out, state: (out[..., :1], state), lambda out, state: (None, state)):
        handle = layer.register_forward_hook(lambda module, given, result, change=change: change(*result))
        with pytest.raises(ValueError, match=rf"^layer: {kind.__name__} gave .* expected the pair"):
            layer.step(x[:, 0])
        with pytest.raises(ValueError, match=rf"^layer: {kind.__name__} gave .* expected the pair"):
            truncate(layer, 2)(x)
        handle.remove()


def test_what_needs_one_direction_refuses_two():
    layer, x = MinGRU(3, 4, bidirectional=True), torch.randn(2, 5, 3)
    for call in (
        lambda: as_ssm(layer),
        lambda: forgetting(layer, x, 0.1),
        lambda: redrawn_start(layer, x),
        lambda: forgetting(QRNN(3, 4, bidirectional=True), x, 0.1),
        lambda: truncate(layer, 3),
    ):
        with pytest.raises(ValueError, match=r"^layer: "):
            call()
