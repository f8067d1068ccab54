"""Whatever a network of input gates reads, given it each layer is the exact filter of copy chains."""

import inspect
import itertools

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles.copy_paths import enumerate_paths
from samplehold import QRNN, MinGRU, MinLSTM, as_ssm, one_hot
from samplehold.face.chains import CopyChain
from samplehold.models.networks.qrnn import QRNNState
from torch import nn
from torch.nn.utils import prune
from torch.testing import assert_close

CANDIDATES = ("linear", "tanh", "positive", "simplex")
KINDS = ("MinGRU", "MinLSTM", "QRNN f", "QRNN fo")
BOTH = "bidirectional" in inspect.signature(MinGRU).parameters


def build(kind="MinGRU", features=3, units=4, scale=1.0, seed=0, dtype=torch.float64, candidate="linear", **options):
    random = torch.Generator().manual_seed(seed)
    if kind.startswith("QRNN"):
        layer = QRNN(features, units, pooling=kind.split()[1], dtype=dtype, **options)
    else:
        make = MinGRU if kind == "MinGRU" else MinLSTM
        block = {"block": 2} if candidate == "simplex" else {}
        layer = make(features, units, candidate=candidate, dtype=dtype, **block, **options)
    layer.requires_grad_(False)
    for parameter in layer.parameters():
        parameter.uniform_(-scale, scale, generator=random)
    return layer, random


def normal(random, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=random, dtype=dtype)


def start_of(layer, random, *batch):
    directions = 2 if getattr(layer, "bidirectional", False) else 1
    rows = layer.num_layers * directions
    state = normal(random, rows, *batch, layer.hidden_size)
    if not isinstance(layer, QRNN):
        return state.unflatten(-1, (-1, 2)).softmax(-1).flatten(-2) if layer.candidate == "simplex" else state
    before = layer.initial_state(*batch).inputs
    return QRNNState(state, tuple(normal(random, *part.shape) for part in before))


@examples(60)
@given(
    st.integers(0, 2**20),
    st.sampled_from(KINDS),
    st.sampled_from(CANDIDATES),
    st.integers(1, 3),
    st.sampled_from([(), (2,), (2, 3)]),
    st.integers(1, 30),
    st.sampled_from([0.1, 1.0, 3.0]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_the_filters_of_the_chains_are_the_network(
    seed, kind, candidate, layers, batch, steps, scale, started, ragged, both
):
    """Any class, candidate, number of layers, direction, h0 and lengths, on vectors of any size."""
    options = {"window": 1 + seed % 3} if kind.startswith("QRNN") else {}
    options |= {"bidirectional": True} if both and BOTH else {}
    layer, random = build(kind, seed=seed, scale=scale, candidate=candidate, num_layers=layers, **options)
    x = 3 * normal(random, *batch, steps, 3)
    h0 = start_of(layer, random, *batch) if started else None
    lengths = torch.randint(1, steps + 1, batch, generator=random) if ragged and batch else None
    if lengths is not None:
        x = torch.where((torch.arange(steps) < lengths[..., None])[..., None], x, torch.nan)
    expected = layer(x, h0, lengths)[0]
    lifted = as_ssm(layer, inputs="given")
    found = lifted.hidden(x, h0, lengths)
    assert_close(found, expected, rtol=0, atol=1e-12 * max(1.0, float(expected.abs().max())) * 10 ** (layers - 1))
    parts = lifted.layers(x, h0, lengths)
    assert len(parts) == layers * (1 + (both and BOTH))
    for part in parts:
        assert isinstance(part.chain, CopyChain)
        assert part.chain.log_fresh.dtype == torch.float64
        weights = part.last_draw()
        assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), rtol=0, atol=1e-13)
        assert part.chain.log_normalizer().abs().max() < 1e-12  # no density of x


@examples(40)
@given(st.integers(0, 2**20), st.sampled_from(CANDIDATES), st.sampled_from(["MinGRU", "MinLSTM"]))
def test_one_layer_is_exact_to_rounding(seed, candidate, kind):
    layer, random = build(kind, seed=seed, candidate=candidate, scale=2.0)
    x, h0 = normal(random, 2, 200, 3), start_of(layer, random, 2)
    (part,) = as_ssm(layer, inputs="given").layers(x, h0)
    span = part.levels.amax(-2) - part.levels.amin(-2)
    error = (part.hidden() - layer(x, h0)[0]).abs() / span.movedim(0, -2).flatten(-2).clamp(min=1e-9).unsqueeze(-2)
    assert error.max() < 2e-14
    assert part.hidden().dtype == torch.float64


@examples(15)
@given(st.integers(0, 2**20), st.sampled_from(KINDS), st.sampled_from(CANDIDATES), st.booleans())
def test_chains_and_last_draws_are_those_of_all_enumerated_histories(seed, kind, candidate, started):
    layer, random = build(kind, units=2, seed=seed, candidate=candidate)
    x, T = normal(random, 2, 4, 3), 4
    (part,) = as_ssm(layer, inputs="given").layers(x, start_of(layer, random, 2) if started else None)
    chain = part.chain
    flat = [
        table.expand(*chain.batch_shape, *table.shape[-2:]).flatten(0, 1) for table in (chain.log_fresh, chain.log_held)
    ]
    initial = chain.log_initial.expand(*chain.batch_shape, -1).flatten(0, 1)
    paths = enumerate_paths(*flat, initial, chain.lengths.flatten())
    belief = paths.filtered_state.unflatten(0, chain.batch_shape)
    assert_close((belief @ part.levels).movedim(0, -2).flatten(-2), part.hidden(), rtol=0, atol=1e-13)
    assert_close(chain.smooth().state, paths.state.unflatten(0, chain.batch_shape), rtol=0, atol=1e-13)
    units = part.value.shape[-1] // len(part.levels)
    for c, b in itertools.product(range(chain.batch_shape[0]), range(2)):
        for step in range(T):
            weights = torch.zeros(T + 1, dtype=torch.float64)
            memory = torch.zeros(units, dtype=torch.float64)
            numbers = torch.cat([part.start[b, None], part.value[b]])[:, units * c : units * (c + 1)]
            for gates in itertools.product([False, True], repeat=step + 1):
                logs = torch.where(
                    torch.tensor(gates), part.log_draw[c, b, : step + 1], part.log_hold[c, b, : step + 1]
                )
                last = max((t + 1 for t, gate in enumerate(gates) if gate), default=0)
                weights[last] += logs.sum().exp()
                memory += logs.sum().exp() * numbers[last]
            assert_close(part.last_draw(step)[c, b], weights, rtol=0, atol=1e-13)
            assert_close(part.hidden()[b, step, units * c : units * (c + 1)], memory, rtol=0, atol=1e-13)


def test_last_draws_are_a_copy_chain_over_steps():
    """The T x T tables that `last_draw` does without: fresh states are certain."""
    layer, random = build(scale=2.0)
    x, T = normal(random, 12, 3), 12
    (part,) = as_ssm(layer, inputs="given").layers(x)
    certain = torch.eye(T + 1, dtype=torch.float64)
    chain = CopyChain(certain[0].log(), part.log_draw.unsqueeze(-1) + certain[1:].log(), part.log_hold.unsqueeze(-1))
    belief = chain.filter().state
    for step in range(T):
        assert_close(part.last_draw(step), belief[:, step], rtol=0, atol=1e-14)
    numbers = torch.cat([part.start[None], part.value])
    assert_close(torch.einsum("dts,sd->td", belief, numbers), layer(x)[0], rtol=0, atol=1e-13)


def test_sampled_gates_leave_in_memory_what_the_layer_holds_on_average():
    layer, random = build(candidate="linear", scale=1.5)
    x, h0 = normal(random, 2, 25, 3), normal(random, 1, 2, 4)
    (part,) = as_ssm(layer, inputs="given").layers(x, h0)
    n = 20_000
    drawn = part.chain.sample(n, seed=0)
    memory = part.memory(drawn.redraw)
    assert memory.shape == (n, 2, 25, 4)
    spread = memory.std(0) / n**0.5
    assert ((memory.mean(0) - layer(x, h0)[0]).abs() < 6 * spread + 1e-12).all()
    best = part.chain.viterbi().redraw
    kept = part.start
    for t in range(25):
        kept = torch.where(best[:, :, t].T, part.value[:, t], kept)
        assert torch.equal(part.memory(best)[:, t], kept)
    with pytest.raises(ValueError, match=r"redraw: got shape \[2, 25\]"):
        part.memory(best[0])
    with pytest.raises(ValueError, match="step: got 25"):
        part.last_draw(25)


@pytest.mark.slow
def test_long_series_take_memory_of_their_length():
    layer, random = build(units=2)
    x = normal(random, 200_000, 3)
    (part,) = as_ssm(layer, inputs="given").layers(x)
    assert_close(part.hidden(), layer(x)[0], rtol=0, atol=1e-12)
    assert part.chain.log_fresh.numel() == 2 * 200_000 * 2
    assert_close(part.last_draw().sum(-1), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_start_that_is_no_distribution_makes_each_unit_of_a_simplex_a_chain():
    layer, random = build(candidate="simplex")
    x, h0 = normal(random, 2, 20, 3), normal(random, 1, 2, 4)
    (part,) = as_ssm(layer, inputs="given").layers(x, h0)
    assert part.chain.batch_shape == (4, 2)
    assert_close(part.hidden(), layer(x, h0)[0], rtol=0, atol=1e-13)
    assert as_ssm(layer, inputs="given").layers(x)[0].chain.batch_shape == (2, 2)


def test_single_precision_and_time_first():
    layer, random = build(dtype=torch.float32, num_layers=2, batch_first=False)
    x = normal(random, 50, 2, 3, dtype=torch.float32)
    found = as_ssm(layer, inputs="given").hidden(x)
    assert found.dtype == torch.float32
    assert_close(found, layer(x)[0], rtol=1e-5, atol=1e-5)


# ---- where there is a generative model too -------------------------------------------------------------------------


def sequential(seed=0, kind="MinGRU", **options):
    layer, random = build(kind, seed=seed, **options)
    network = nn.Sequential(nn.Embedding(6, 5), nn.Linear(5, 3), nn.Tanh(), layer).double().requires_grad_(False)
    for parameter in network.parameters():
        parameter.uniform_(-1, 1, generator=random)
    return network, random


@examples(20)
@given(st.integers(0, 2**20), st.sampled_from(["MinGRU", "MinLSTM", "QRNN f"]), st.sampled_from(CANDIDATES))
def test_an_embedding_before_a_layer_is_a_model_of_its_tokens(seed, kind, candidate):
    network, random = sequential(seed, kind, candidate=candidate)
    tokens = torch.randint(6, (2, 30), generator=random)
    probs = torch.rand(6, generator=random, dtype=torch.float64) + 0.1
    lifted = as_ssm(network, token_probs=probs)
    assert lifted.n_tokens == 6
    assert_close(lifted.hidden(tokens), network(tokens)[0], rtol=0, atol=1e-13)
    assert_close(lifted.log_evidence(tokens), (probs / probs.sum()).log()[tokens].sum(-1))
    assert_close(as_ssm(network, inputs="given").hidden(tokens), network(tokens)[0], rtol=0, atol=1e-13)


def test_a_qrnn_of_one_input_a_gate_is_a_tanh_mingru_and_its_chains_are_its_cells():
    for pooling in ("f", "fo"):
        layer, random = build(f"QRNN {pooling}", features=5)
        tokens = torch.randint(5, (2, 40), generator=random)
        cells = as_ssm(layer).hidden(tokens)
        (part,) = as_ssm(layer, inputs="given").layers(one_hot(tokens, 5))
        assert_close(cells, part.hidden(), rtol=0, atol=1e-13)
        out, state = layer(one_hot(tokens, 5))
        assert_close(cells[:, -1], state.cell[0], rtol=0, atol=1e-13)
        assert_close(part.output(), out, rtol=0, atol=1e-13)
        assert (pooling == "f") == (part.shown is None)
    assert as_ssm(build("QRNN f", features=5)[0], inputs="gaussian").candidate(torch.zeros(1, 5)).shape == (1, 4)


def test_what_has_densities_is_told_and_what_has_not_says_why():
    told = as_ssm(MinGRU(5, 3), inputs="given").generative
    assert told == {"tokens": "exact", "gaussian": "candidates exact, gates in the limit"}
    told = as_ssm(MinGRU(5, 3, num_layers=2), inputs="given").generative
    assert told["tokens"].startswith("none: has 2 layers")
    told = as_ssm(sequential()[0], inputs="given").generative
    assert told["tokens"] == "exact"
    assert told["gaussian"].startswith("none: got Sequential")
    mixing = nn.Sequential(nn.Embedding(4, 3), nn.Dropout(0.9), MinGRU(3, 2))
    for lift in (as_ssm, lambda network: as_ssm(network, inputs="given").hidden(torch.zeros(2, dtype=torch.int64))):
        with pytest.raises(ValueError, match=r"layer: its Dropout is in training mode, .* use .eval\(\)"):
            lift(mixing)
    looking = nn.Sequential(nn.Embedding(4, 3), nn.Softmax(-2), MinGRU(3, 2))
    with pytest.raises(ValueError, match="layer: the modules before the MinGRU do not make one row of 3 features"):
        as_ssm(looking)
    assert as_ssm(mixing.eval()).n_tokens == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: as_ssm(nn.Sequential(nn.Linear(3, 3)), inputs="given"), "layer: got Linear, expected MinGRU"),
        (lambda: as_ssm(nn.GRU(3, 2), inputs="given"), "layer: a GRU's gates read its own state"),
        (lambda: as_ssm(QRNN(3, 2, pooling="ifo"), inputs="given"), "layer: a QRNN with pooling='ifo'"),
        (lambda: as_ssm(MinGRU(3, 2), inputs="given").hidden(torch.full((4, 3), torch.nan)), "x: "),
        (lambda: as_ssm(MinGRU(3, 2), inputs="given").hidden(torch.zeros(4, 2)), r"x: got shape \[4, 2\]"),
        (lambda: as_ssm(MinGRU(3, 2), inputs="given").hidden(torch.zeros(0, 3)), "expected at least one step"),
        (lambda: as_ssm(MinGRU(3, 2), inputs="given").hidden(torch.zeros(4, 3), torch.zeros(2, 2)), "h0: got shape"),
        (lambda: as_ssm(QRNN(3, 2), inputs="given").hidden(torch.zeros(4, 3), torch.zeros(1, 2)), "h0: got Tensor"),
    ],
)
def test_what_is_no_filter_says_why(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_a_network_whose_hooks_change_what_it_does_is_refused_and_a_pruned_one_is_not():
    network, x = MinGRU(3, 4, dtype=torch.float64), torch.randn(2, 5, 3, dtype=torch.float64)
    prune.random_unstructured(network, "weight_l0", 0.3)
    found = as_ssm(network, inputs="given").hidden(x)
    assert_close(found, network(x)[0].detach(), rtol=0, atol=1e-12)
    network.register_forward_hook(lambda module, given, out: (2 * out[0], out[1]))
    with pytest.raises(ValueError, match="layer: its MinGRU has forward hooks"):
        as_ssm(network, inputs="given").hidden(x)
