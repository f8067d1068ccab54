"""The gradient of a gated layer's state is the belief of its model that nothing was redrawn; no weights explode it."""

import math
from functools import partial

import pytest
import torch
from oracles.copy_paths import enumerate_paths
from oracles.networks import with_normal_weights
from samplehold import GRU, LSTM, QRNN, Elman, MinGRU, MinLSTM, as_ssm
from samplehold.face.chains import CopyChain
from samplehold.face.studies import gradient_memory
from samplehold.models.networks.qrnn import QRNNState
from samplehold.models.studies.gradient_memory import crossing, log_norms
from torch.autograd.functional import jacobian
from torch.testing import assert_close

TOKENS, UNITS, STEPS = 5, 4, 12
GATED = {
    "linear": lambda: MinGRU(TOKENS, UNITS, dtype=torch.float64),
    "tanh": lambda: MinGRU(TOKENS, UNITS, candidate="tanh", dtype=torch.float64),
    "positive": lambda: MinLSTM(TOKENS, UNITS, candidate="positive", dtype=torch.float64),
    "simplex": lambda: MinLSTM(TOKENS, UNITS, candidate="simplex", block=2, dtype=torch.float64),
    "f": lambda: QRNN(TOKENS, UNITS, pooling="f", dtype=torch.float64),
    "fo": lambda: QRNN(TOKENS, UNITS, pooling="fo", window=2, dtype=torch.float64),
}
RECURRENT = {"GRU": GRU, "LSTM": LSTM, "Elman": Elman}


def drawn(make, seed, scale=1.0):
    """A layer with normal weights of some scale, and normal inputs."""
    layer, random = with_normal_weights(make().requires_grad_(False), seed, scale)
    return layer, torch.randn(STEPS, TOKENS, generator=random, dtype=torch.float64)


def by_autograd(layer, x, n):
    """d state_T / d state_{T - n} through the layer, on the inputs that are seen after it."""
    before = layer(x[:-n])[1] if n < len(x) else layer.initial_state()
    if not isinstance(layer, QRNN):
        return jacobian(lambda state: layer(x[-n:], state[None])[1][0], before[0])
    return jacobian(lambda cell: layer(x[-n:], QRNNState(cell[None], before.inputs))[1].cell[0], before.cell[0])


def nothing_redrawn(chain, n):
    """P(z = 0 in the last n steps | x) of each chain [C, T, K]: the evidence without draws there, over the evidence."""
    fresh = chain.log_fresh.clone()
    fresh[..., -n:, :] = -torch.inf
    return (CopyChain(chain.log_initial, fresh, chain.log_held).log_normalizer() - chain.log_normalizer()).exp()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", GATED)
def test_the_gradient_of_given_inputs_is_the_belief_that_nothing_was_redrawn(name, seed):
    layer, x = drawn(GATED[name], seed)
    memory = gradient_memory(layer, x, list(range(1, STEPS + 1)))
    (lifted,) = as_ssm(layer, inputs="given").layers(x)
    share = UNITS // len(lifted.log_hold)
    for n in (1, 3, STEPS):
        gradient = by_autograd(layer, x, n)
        assert (gradient == gradient.diagonal().diag()).all()  # no unit reaches another
        held = memory.log_held[:, n - 1].exp()
        queries = {
            "gradient": gradient.diagonal()[::share],
            "filter": (1 - lifted.chain.filter().redraw[:, -n:]).prod(-1),
            "smoother": (1 - lifted.chain.smooth().redraw[:, -n:]).prod(-1),
            "last draw": lifted.last_draw()[:, : STEPS - n + 1].sum(-1),
            "evidence": nothing_redrawn(lifted.chain, n),
        }
        for query, probability in queries.items():
            assert_close(probability, held, rtol=1e-12, atol=1e-15, msg=query)
        assert_close(memory.log_norm[n - 1], torch.linalg.matrix_norm(gradient, 2).log(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["linear", "tanh", "positive", "simplex", "f"])
def test_the_gradient_on_tokens_is_the_belief_of_the_model_of_tokens(name):
    layer, _ = drawn(GATED[name], 2)
    random = torch.Generator().manual_seed(3)
    tokens = torch.randint(TOKENS, (STEPS,), generator=random)
    lifted = as_ssm(layer, token_probs=torch.rand(TOKENS, generator=random, dtype=torch.float64) + 0.1)
    x = torch.eye(TOKENS, dtype=torch.float64)[tokens]
    share = UNITS // (2 if name == "simplex" else 1)
    for n in (1, 4, STEPS):
        gradient = by_autograd(layer, x, n).diagonal()[:: UNITS // share]
        assert_close(nothing_redrawn(lifted.chain(tokens), n), gradient, rtol=1e-12, atol=1e-15)
        longer = torch.cat([tokens, tokens.flip(0)])  # what comes later changes nothing
        later = lifted.chain(longer).smooth().redraw[:, STEPS - n : STEPS]
        assert_close((1 - later).prod(-1), gradient, rtol=1e-12, atol=1e-15)


def test_every_path_of_the_model_is_counted():
    layer, _ = drawn(GATED["linear"], 4)
    tokens = torch.tensor([3, 0, 0, 2, 4])
    chain = as_ssm(layer).chain(tokens)
    paths = enumerate_paths(
        chain.log_fresh, chain.log_held, chain.log_initial.expand(UNITS, -1), torch.full((UNITS,), 5)
    ).paths
    x = torch.eye(TOKENS, dtype=torch.float64)[tokens]
    for n in (2, 5):
        gradient = by_autograd(layer, x, n).diagonal()
        for unit, weights in enumerate(paths):
            held = sum(weight for (_, z), weight in weights.items() if not any(z[-n:]))
            assert held / sum(weights.values()) == pytest.approx(float(gradient[unit]), rel=1e-12)


def test_the_memory_that_is_still_the_start_has_the_weight_of_the_gradient():
    layer, x = drawn(GATED["tanh"], 5)
    n = 6
    start = layer(x[:-n])[1]
    (lifted,) = as_ssm(layer, inputs="given").layers(x[-n:], start)
    gates = torch.cartesian_prod(*[torch.tensor([False, True])] * n)  # of every path, the same for all units
    gates = gates[:, None].expand(-1, UNITS, -1)
    weights = torch.where(gates, lifted.log_draw, lifted.log_hold).sum(-1).exp()
    last = lifted.memory(gates)[:, -1]
    assert_close((weights * last).sum(0), layer(x)[1][0], rtol=1e-12, atol=1e-15)
    kept = (weights * (last == start)).sum(0)
    assert_close(kept, by_autograd(layer, x, n).diagonal(), rtol=1e-12, atol=1e-15)


def test_its_mean_over_tokens_of_the_model_falls_as_the_prior_of_holding():
    layer, _ = drawn(GATED["positive"], 6)
    probs = torch.tensor([0.1, 0.3, 0.2, 0.25, 0.15], dtype=torch.float64)
    lifted = as_ssm(layer, token_probs=probs)
    words = torch.cartesian_prod(*[torch.arange(TOKENS)] * 4)  # all of four tokens
    held = gradient_memory(layer, torch.eye(TOKENS, dtype=torch.float64)[words], [4]).log_held[..., 0].exp()
    mean = (held * probs[words].prod(-1)).sum(-1)
    assert_close(mean, (4 * lifted.log_hold).exp(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("scale", [0.1, 10.0, 100.0])
def test_no_weights_explode_the_gradient_of_a_gated_layer(scale):
    for name, make in GATED.items():
        layer, x = drawn(make, 7, scale)
        closed = gradient_memory(layer, x)
        assert (closed.log_held <= 0).all()
        if "QRNN" not in type(layer).__name__:  # the products of Jacobians, which do not know that they are diagonal
            norms = log_norms(layer, x, closed.ages).exp()
            assert_close(norms, closed.log_norm.exp(), rtol=1e-10, atol=1e-300, msg=name)


@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0, 100.0])
def test_two_layers_grow_at_most_linearly(scale):
    layer, _ = drawn(lambda: MinGRU(TOKENS, UNITS, num_layers=2, candidate="tanh", dtype=torch.float64), 8, scale)
    x = torch.randn(200, TOKENS, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    memory = gradient_memory(layer, x)
    gates, values = layer.weight_l1.chunk(2)  # a gate has a slope of 1/4, and a candidate is within 2 of the state
    each = 0.5 * torch.linalg.matrix_norm(gates, 2) + torch.linalg.matrix_norm(values, 2)
    norms = memory.log_norm.exp()
    assert (norms <= 1 + memory.ages * each).all()
    assert (memory.log_norm >= memory.log_held.amax(0) - 1e-10).all()  # of which each layer's own way is a part
    if scale == 3.0:
        assert norms.max() > 1.5  # so 1 is no bound


@pytest.mark.parametrize("name", RECURRENT)
def test_products_are_the_gradients_of_recurrent_networks(name):
    layer, x = drawn(lambda: RECURRENT[name](TOKENS, UNITS, num_layers=2, dtype=torch.float64), 10)
    ages, parts = [1, 2, 7, STEPS], 2 if name == "LSTM" else 1

    def after(flat, seen):
        state = tuple(flat.reshape(parts, 2, UNITS))
        _, end = layer(seen, state if parts == 2 else state[0])
        return torch.cat([part.flatten() for part in (end if parts == 2 else (end,))])

    norms = gradient_memory(layer, x, ages).log_norm.exp()
    start = torch.zeros(parts * 2 * UNITS, dtype=torch.float64)
    for norm, n in zip(norms, ages, strict=True):
        before = after(start, x[:-n]) if n < STEPS else start
        gradient = jacobian(partial(after, seen=x[-n:]), before)
        assert_close(norm, torch.linalg.matrix_norm(gradient, 2), rtol=1e-10, atol=1e-14)


def test_half_lives_are_exact_for_constant_gates_and_summaries_and_figures_show_the_norms():
    layer = MinGRU(1, 2, dtype=torch.float64).requires_grad_(False)
    layer.weight_l0.zero_()
    layer.bias_l0.copy_(torch.tensor([-2.0, -4.0, 0.0, 0.0]))
    memory = gradient_memory(layer, torch.zeros(3, 300, 1, dtype=torch.float64))
    holds = torch.tensor([2.0, 4.0], dtype=torch.float64).sigmoid()
    assert memory.half_life == pytest.approx(math.log(0.5) / math.log(holds[1]), rel=1e-12)
    assert_close(memory.rate, holds[1:].log().expand(3), rtol=1e-12, atol=0)
    table = memory.summary()
    assert table.index.tolist() == memory.ages.tolist()
    assert table["P(held), least chain"].iloc[-1] == pytest.approx(300 * math.log10(holds[0]), rel=1e-12)
    lines = memory.plot().axes[0].lines
    assert_close(torch.tensor(lines[2].get_ydata()), torch.as_tensor(table["norm, log10"].to_numpy()))
    assert crossing(torch.tensor([1, 3]), torch.tensor([-1.0, -math.inf]), -2.0) == 3
    assert crossing(torch.tensor([1, 3]), torch.tensor([-1.0, -1.5]), -2.0) == math.inf


def test_arguments_that_do_not_fit_are_refused():
    layer, x = GATED["linear"](), torch.zeros(4, TOKENS, dtype=torch.float64)
    for ages in ([0], [5], [2, 1], [2, 2]):
        with pytest.raises(ValueError, match="ages: got"):
            gradient_memory(layer, x, ages)
    with pytest.raises(TypeError, match="layer: got Linear"):
        gradient_memory(torch.nn.Linear(2, 2), x)
    with pytest.raises(ValueError, match="layer: a QRNN with pooling='ifo'"):
        gradient_memory(QRNN(TOKENS, 2, pooling="ifo"), x)
    with pytest.raises(ValueError, match="x: got shape"):
        gradient_memory(layer, x[:0])
