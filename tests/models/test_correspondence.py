"""A minGRU layer over tokens is the exact filter of copy chains, and a copy model with gated tokens is a minGRU."""

import itertools
import math

import pytest
import torch
from examples import examples, slow
from hypothesis import given
from hypothesis import strategies as st
from oracles.copy_paths import enumerate_paths
from samplehold import (
    GRU,
    QRNN,
    Categorical,
    Copy,
    Gated,
    Markov,
    MinGRU,
    MinLSTM,
    MultivariateNormal,
    Normal,
    SwitchingSSM,
    as_rnn,
    as_ssm,
    filter_vmp,
    one_hot,
    redrawn_start,
    token_marginal,
)
from samplehold.switching.parameters import Parameters
from torch.testing import assert_close

CANDIDATES = ("linear", "tanh", "positive", "simplex")


def build(kind=MinGRU, tokens=5, units=3, scale=2.0, seed=0, dtype=torch.float64, **options):
    random = torch.Generator().manual_seed(seed)
    layer = kind(tokens, units, dtype=dtype, **options).requires_grad_(False)
    for parameter in layer.parameters():
        parameter.uniform_(-scale, scale, generator=random)
    return layer, random


def simplex(random, *shape, power=1.0):
    table = torch.rand(*shape, generator=random, dtype=torch.float64) ** power + 1e-3
    return table / table.sum(-1, keepdim=True)


def gated_model(states=3, tokens=6, redraw=0.3, seed=0, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    model = SwitchingSSM(Copy(states), Gated(Categorical(tokens), Categorical(tokens)))
    return model.with_values(
        redraw_prob=torch.tensor(redraw, dtype=dtype),
        state_probs=simplex(random, states).to(dtype),
        probs=simplex(random, states, tokens, power=3.0).to(dtype),
        background_probs=simplex(random, 1, tokens).to(dtype),
    )


# ---- network -> model ----------------------------------------------------------------------------------------------


def span(lifted, h0):
    """hi - lo of each unit in the model that serves this h0."""
    used = lifted.spanning(h0)
    low, high = used.levels.amin(1).flatten(), used.levels.amax(1).flatten()
    return torch.where(high > low, high - low, 1.0)  # units that cannot move have no range


def random_case(number: int, random: torch.Generator):
    """V 2-50, D 1-64, T up to 1e5, weights from 0.1 to 1e3, every candidate, h0 in and far out of their range."""

    def uniform() -> float:
        return float(torch.rand((), generator=random))

    tokens, units = 2 + int(49 * uniform()), 1 + int(64 * uniform())
    steps, batch = int(10 ** (2.3 * uniform())), 1 + int(3 * uniform())
    if number % 250 == 0:
        steps, batch, units = 100_000, 1, 1 + int(12 * uniform())
    kind = MinLSTM if number % 4 == 3 else MinGRU
    layer, _ = build(kind, tokens, units, candidate=CANDIDATES[(number // 4) % 4])
    scale = 10 ** (4 * uniform() - 1)
    for parameter in layer.parameters():
        parameter.uniform_(-scale, scale, generator=random)
    h0 = torch.randn(1, batch, units, generator=random, dtype=torch.float64) * 10 ** (4 * uniform() - 2)
    probs = torch.rand(tokens, generator=random, dtype=torch.float64) + 1e-3
    return layer, torch.randint(tokens, (batch, steps), generator=random), None if number % 3 == 0 else h0, probs


@pytest.mark.parametrize("first", [0, slow(250), slow(500), slow(750)])
def test_a_thousand_random_layers_equal_the_filters_of_their_chains(first, one_thread):
    """Relative to the range of candidates and h0: under 1e-12 in float64, 1e-5 in float32."""
    random = torch.Generator().manual_seed(1 + first)
    worst, saturated, outside = {torch.float64: 0.0, torch.float32: 0.0}, 0, 0
    for number in range(first, first + 250):
        layer, tokens, h0, probs = random_case(number, random)
        for dtype in (
            (torch.float64, torch.float32) if number % 3 == 1 or tokens.shape[-1] > 10**4 else (torch.float64,)
        ):
            layer, start = layer.to(dtype), None if h0 is None else h0.to(dtype)
            lifted = as_ssm(layer, token_probs=probs)
            expected = layer(one_hot(tokens, layer.input_size, dtype=dtype), start)[0]
            found = lifted.hidden(tokens, start)
            assert found.dtype == dtype
            error = (found.double() - expected.double()).abs() / span(lifted, start)
            worst[dtype] = max(worst[dtype], float(error.max()))
            gates = lifted.reading.log_draw.exp().to(dtype)
            saturated += int(bool(((gates == 0) | (gates == 1)).any()))
            outside += int(lifted.spanning(start) is not lifted)
    assert worst[torch.float64] < 1e-12
    assert worst[torch.float32] < 1e-5
    assert saturated > 50
    assert outside > 50


@examples(20)
@given(st.integers(0, 2**20), st.sampled_from(CANDIDATES), st.sampled_from([MinGRU, MinLSTM]), st.booleans())
def test_hidden_states_are_expectations_over_all_enumerated_paths(seed, candidate, kind, given_start):
    layer, random = build(kind, 3, 2, seed=seed, candidate=candidate)
    tokens = torch.randint(3, (2, 4), generator=random)
    h0 = torch.randn(1, 2, 2, generator=random, dtype=torch.float64) if given_start else None
    lifted = as_ssm(layer, token_probs=simplex(random, 3)).spanning(h0)
    chain = lifted.chain(tokens, h0)
    flat = [
        table.expand(*chain.batch_shape, *table.shape[-2:]).flatten(0, 1) for table in (chain.log_fresh, chain.log_held)
    ]
    paths = enumerate_paths(
        *flat, chain.log_initial.expand(*chain.batch_shape, -1).flatten(0, 1), chain.lengths.flatten()
    )
    belief = paths.filtered_state.unflatten(0, chain.batch_shape)
    assert_close(lifted.read(belief), layer(one_hot(tokens, 3), h0)[0], rtol=1e-12, atol=1e-12)
    assert_close(lifted.hidden(tokens, h0), lifted.read(belief), rtol=1e-12, atol=1e-12)
    assert_close(
        paths.log_normalizer.unflatten(0, chain.batch_shape), lifted.log_evidence(tokens).expand(chain.batch_shape)
    )


def naive_tables(layer: MinGRU, unit: int, probs: torch.Tensor) -> Parameters:
    """The tables of one unit as the design writes them, in probabilities."""
    now = layer.activations(torch.eye(layer.input_size, dtype=torch.float64))
    g, v = now.draw[:, unit], now.value[:, unit]
    low, high = min(0.0, float(v.min())), max(0.0, float(v.max()))
    r = (v - low) / (high - low)
    rho = (probs * g).sum()
    drawn = g * probs / rho
    pi = (drawn * r).sum()
    return {
        "redraw_prob": rho,
        "state_probs": torch.stack([1 - pi, pi]),
        "probs": torch.stack([(1 - r) * drawn / (1 - pi), r * drawn / pi]),
        "background_probs": ((1 - g) * probs / (1 - rho))[None],
    }


def test_the_tables_are_those_of_the_derivation_and_are_models_of_the_library():
    layer, random = build(tokens=6, units=4)
    probs = simplex(random, 6)
    lifted = as_ssm(layer, token_probs=7 * probs)
    assert_close(lifted.token_probs, probs)
    assert len(lifted.models) == 4
    for unit, model in enumerate(lifted.models):
        expected = naive_tables(layer, unit, probs)
        for name, table in model.values.items():
            assert_close(table, expected[name], rtol=1e-12, atol=1e-14)
        drawn = model.simulate(50, (3,), seed=0)
        found = model.viterbi(drawn.x)
        assert found.path.shape == (3, 50)
        joint = model.emission.log_likelihood(drawn.x, model.values)
        odds = model.values["redraw_prob"].log() + (model.values["state_probs"].log() + joint.redrawn).logsumexp(-1)
        redraw = torch.sigmoid(odds - torch.log1p(-model.values["redraw_prob"]) - joint.held[..., 0])
        assert_close(model.filter(drawn.x).redraw[:, 1:], redraw[:, 1:])
        assert_close(redraw, layer.activations(one_hot(drawn.x[..., 0], 6)).draw[..., unit])


def test_a_block_of_a_simplex_is_one_chain_and_the_chain_is_its_filter():
    layer, random = build(units=6, candidate="simplex", block=3)
    lifted = as_ssm(layer)
    assert (lifted.n_chains, lifted.n_states) == (2, 3)
    tokens = torch.randint(5, (2, 40), generator=random)
    states = layer(one_hot(tokens, 5))[0]
    filtered = lifted.chain(tokens).filter()
    assert_close(filtered.state.movedim(0, -2).flatten(-2), states, rtol=0, atol=1e-14)
    assert_close(filtered.redraw.movedim(0, -1), layer.activations(one_hot(tokens, 5)).draw[..., ::3])
    h0 = simplex(random, 2, 2, 3).flatten(-2)[None]
    assert lifted.spanning(h0) is lifted
    assert_close(lifted.hidden(tokens, h0), layer(one_hot(tokens, 5), h0)[0], rtol=0, atol=1e-14)
    assert lifted.spanning(2 * h0).n_states == 2  # no distribution, so each unit is a chain of its own
    assert_close(lifted.hidden(tokens, 2 * h0), layer(one_hot(tokens, 5), 2 * h0)[0], rtol=0, atol=1e-14)


def test_ragged_batches_and_missing_tokens_are_those_of_their_sequences_one_by_one():
    layer, random = build()
    tokens = torch.randint(5, (3, 2, 12), generator=random)
    h0 = torch.randn(1, 3, 2, 3, generator=random, dtype=torch.float64)
    lengths = torch.tensor([[12, 5], [1, 7], [3, 3]])
    lifted = as_ssm(layer)
    expected = layer(one_hot(tokens, 5), h0, lengths)[0]
    assert_close(lifted.hidden(tokens, h0, lengths), expected, rtol=1e-13, atol=1e-14)
    for i, j in itertools.product(range(3), range(2)):
        alone = lifted.hidden(tokens[i, j, : lengths[i, j]], h0[:, i, j])
        assert_close(expected[i, j, : lengths[i, j]], alone, rtol=1e-13, atol=1e-14)
    missing = tokens[0, 0].double()
    missing[3] = math.nan
    chain = lifted.chain(missing).filter()
    rho = lifted.log_redraw.exp()[:, None]
    assert_close(chain.redraw[:, 3:4], rho)
    assert_close(chain.state[:, 3], (1 - rho) * chain.state[:, 2] + rho * lifted.log_state.exp())


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_gates_of_exactly_zero_and_one_and_units_that_cannot_move(size):
    layer, random = build(tokens=4, units=3)
    layer.weight_l0[:3] = size
    layer.weight_l0[0, 0] = -size
    layer.weight_l0[5] = 0.0  # the last unit's candidate is the same for all tokens
    layer.bias_l0[5] = 0.0
    tokens = torch.randint(4, (2, 30), generator=random)
    lifted = as_ssm(layer)
    for h0 in (None, torch.full((1, 2, 3), 0.25, dtype=torch.float64)):
        expected = layer(one_hot(tokens, 4), h0)[0]
        assert_close(lifted.hidden(tokens, h0), expected, rtol=0, atol=1e-14)
    for model in lifted.models:
        for name in ("state_probs", "probs", "background_probs"):
            assert_close(model.values[name].sum(-1), torch.ones_like(model.values[name].sum(-1)))


def test_tokens_sampled_from_a_lifted_model_are_independent_and_its_paths_are_those_of_the_layer():
    """The price of exactness: no token says anything about the next one."""
    layer, random = build(tokens=4, units=2, scale=1.5)
    probs = simplex(random, 4)
    lifted = as_ssm(layer, token_probs=probs)
    n = 200_000
    drawn = lifted.sample(n, seed=3)
    tokens = one_hot(drawn.tokens, 4)
    assert (tokens.mean(0) - probs).abs().max() < 5 / math.sqrt(n)
    pairs = tokens[:-1].T @ tokens[1:] / (n - 1)
    assert (pairs - probs[:, None] * probs).abs().max() < 5 / math.sqrt(n)
    chain = lifted.chain(drawn.tokens)
    assert_close(lifted.log_evidence(drawn.tokens), probs.log()[drawn.tokens].sum())
    assert_close(chain.log_normalizer(), lifted.log_evidence(drawn.tokens).expand(2))
    assert_close(chain.filter().log_increment[0], probs.log()[drawn.tokens])
    filtered, smoothed = chain.filter(), chain.smooth()
    for found in (filtered.state[..., 1], smoothed.state[..., 1]):
        bins = (found * 5).long().clamp(max=4)
        for unit, k in itertools.product(range(2), range(5)):  # beliefs are calibrated
            here = bins[unit] == k
            if here.sum() > 2000:
                rate = (drawn.state[unit, here] == 1).double().mean()
                assert (rate - found[unit, here].mean()).abs() < 0.04
    assert_close(drawn.redraw.double().mean(-1), lifted.log_redraw.exp(), rtol=0, atol=0.01)
    assert_close(lifted.sample(7, (2, 3), seed=1).state, lifted.sample(7, (2, 3), seed=1).state)
    generator = torch.Generator().manual_seed(1)
    assert_close(lifted.sample(7, (2, 3), seed=generator).state, lifted.sample(7, (2, 3), seed=1).state)
    assert not torch.equal(lifted.sample(50, seed=generator).tokens, lifted.sample(50, seed=generator).tokens)


def test_any_token_probabilities_make_the_same_filter():
    layer, random = build()
    tokens = torch.randint(5, (200,), generator=random)
    rare = torch.tensor([1.0, 1e-30, 1.0, 1e-12, 1e-5], dtype=torch.float64)
    assert_close(as_ssm(layer, rare).hidden(tokens), as_ssm(layer).hidden(tokens), rtol=0, atol=1e-13)


# ---- model -> network ----------------------------------------------------------------------------------------------


@examples(20)
@given(st.integers(0, 2**20), st.integers(1, 6), st.integers(2, 9), st.sampled_from([0.0, 0.01, 0.5, 0.99, 1.0]))
def test_the_network_of_a_model_is_its_exact_filter(seed, states, tokens, redraw):
    model = gated_model(states, tokens, redraw, seed)
    layer = as_rnn(model)
    random = torch.Generator().manual_seed(seed)
    symbols = torch.randint(tokens, (3, 40), generator=random)
    missing = torch.where(torch.rand(3, 40, generator=random) < 0.1, torch.nan, symbols.double())
    for series in (symbols.double(), missing):
        x = one_hot(series, tokens)
        out, last = layer(x, redrawn_start(layer, x))
        exact = model.filter(series.unsqueeze(-1))
        assert_close(out.detach(), exact.state, rtol=0, atol=1e-12)
        assert_close(last[0].detach(), exact.state[:, -1], rtol=0, atol=1e-12)
        redraws = layer.activations(x).draw[..., 0].detach()
        assert_close(redraws[:, 1:], exact.redraw[:, 1:], rtol=0, atol=1e-12)


def test_impossible_tokens_and_states_keep_the_network_exact():
    model = SwitchingSSM(Copy(3), Gated(Categorical(4), Categorical(4))).with_values(
        redraw_prob=0.2,
        state_probs=[0.5, 0.5, 0.0],
        probs=[[0.5, 0.5, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]],
        background_probs=[[0.25, 0.0, 0.25, 0.5]],
    )
    layer = as_rnn(model)
    symbols = torch.tensor([1, 0, 2, 3, 1, 3, 0, 0, 2, 1])
    x = one_hot(symbols, 4)
    out = layer(x, redrawn_start(layer, x))[0]
    assert_close(out.detach(), model.filter(symbols.double()).state, rtol=0, atol=1e-15)
    with pytest.raises(ValueError, match="positive state_probs and probs"):
        as_rnn(model, space="logit")


@examples(20)
@given(st.integers(0, 2**20), st.integers(2, 6), st.integers(2, 9), st.sampled_from([0.01, 0.5, 0.99]))
def test_the_logit_network_is_the_variational_update_with_the_gate_from_x_alone(seed, states, tokens, redraw):
    model = gated_model(states, tokens, redraw, seed)
    layer = as_rnn(model, space="logit")
    symbols = torch.randint(tokens, (3, 50), generator=torch.Generator().manual_seed(seed))
    x = one_hot(symbols, tokens)
    out = layer(x, redrawn_start(layer, x))[0].detach()
    expected = filter_vmp(model, symbols.unsqueeze(-1), gate="input")
    assert_close(out.softmax(-1), expected.state, rtol=0, atol=1e-12)
    assert_close(layer.activations(x).draw[:, 1:, 0].detach(), expected.redraw[:, 1:], rtol=0, atol=1e-12)


@examples(20)
@given(st.integers(0, 2**20), st.integers(1, 5), st.integers(2, 9), st.sampled_from([0.02, 0.5, 0.98]))
def test_model_to_network_to_model_gives_the_same_likelihood_of_any_sequence(seed, states, tokens, redraw):
    model = gated_model(states, tokens, redraw, seed)
    lifted = as_ssm(as_rnn(model), token_probs=token_marginal(model))
    (again,) = lifted.models
    for name, table in model.values.items():
        assert_close(again.values[name], table, rtol=1e-9, atol=1e-13)
    symbols = torch.randint(tokens, (4, 60), generator=torch.Generator().manual_seed(seed)).unsqueeze(-1).double()
    assert_close(again.log_evidence(symbols), model.log_evidence(symbols), rtol=1e-12, atol=1e-12)
    assert_close(again.smooth(symbols).state, model.smooth(symbols).state, rtol=0, atol=1e-11)


def test_the_network_of_a_model_can_be_trained_further():
    model = gated_model()
    layer = as_rnn(model)
    x = one_hot(model.simulate(200, (8,), seed=0).x[..., 0], 6)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    optimizer = torch.optim.Adam(layer.parameters(), 1e-2)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = (layer(x)[0][..., 0] - 0.5).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert all(bool((value != before[name]).any()) for name, value in layer.state_dict().items())
    twin = MinGRU(6, 3, candidate="simplex", dtype=torch.float64)
    twin.load_state_dict(layer.state_dict())
    assert_close(twin(x)[0], layer(x)[0])


def test_networks_of_models_in_single_precision():
    model = gated_model(dtype=torch.float32)
    layer = as_rnn(model)
    symbols = torch.randint(6, (2, 500), generator=torch.Generator().manual_seed(0))
    x = one_hot(symbols, 6, dtype=torch.float32)
    out = layer(x, redrawn_start(layer, x))[0].detach()
    assert out.dtype == torch.float32
    assert_close(out, model.filter(symbols.float().unsqueeze(-1)).state, rtol=0, atol=1e-5)


# ---- Gaussian inputs -----------------------------------------------------------------------------------------------


@examples(20)
@given(st.integers(0, 2**20), st.integers(1, 4), st.sampled_from(["linear", "tanh"]), st.sampled_from([0.3, 1.0]))
def test_gaussian_candidates_are_exact_and_gates_leave_out_what_is_said(seed, units, candidate, scale):
    layer, random = build(tokens=4, units=units, scale=scale, seed=seed, candidate=candidate)
    lifted = as_ssm(layer, inputs="gaussian")
    x = 2 * torch.randn(3, 7, 4, generator=random, dtype=torch.float64)
    now = layer.activations(x)
    expected = torch.sigmoid(now.value) if candidate == "linear" else (1 + now.value) / 2
    assert_close(lifted.candidate(x), expected, rtol=0, atol=1e-11)
    # the gap, by the formula of the derivation
    slope = torch.linalg.solve(lifted.covariance, lifted.separation)
    u = x @ slope - ((lifted.shift + 0.5 * lifted.separation) * slope).sum(0)
    pi = torch.stack([model.values["state_probs"][1] for model in lifted.models])
    assert_close(lifted.gap(x), torch.log(1 - pi + pi * u.exp()), rtol=1e-10, atol=1e-11)
    gram = lifted.separation.T @ slope
    assert_close(gram, gram[0, 0] * torch.eye(units, dtype=torch.float64), rtol=0, atol=1e-9 * float(gram[0, 0]))
    filtered = lifted.models[0].filter(x)
    drawn = torch.sigmoid(lifted.gate_log_odds(x))[..., 0]
    assert_close(filtered.redraw[:, 1:], drawn[:, 1:], rtol=1e-9, atol=1e-9)


def test_units_that_are_all_drawn_have_independent_posteriors_and_the_candidates_as_margins():
    """Enumeration of all 2^D states under x | z=1, s ~ N(M s, Sigma)."""
    layer, random = build(tokens=5, units=3, scale=0.8)
    lifted = as_ssm(layer, inputs="gaussian")
    x = torch.randn(20, 5, generator=random, dtype=torch.float64)
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)), dtype=torch.float64)
    density = torch.distributions.MultivariateNormal(states @ lifted.separation.T, lifted.covariance)
    joint = density.log_prob(x[:, None]).softmax(-1)  # even prior odds
    margins = joint @ states
    product = (margins[:, None] * states + (1 - margins[:, None]) * (1 - states)).prod(-1)
    assert_close(joint, product, rtol=1e-9, atol=1e-12)
    slope = torch.linalg.solve(lifted.covariance, lifted.separation)
    assert_close(slope, layer.weight_l0[3:].T, rtol=1e-9, atol=1e-10)
    assert_close(torch.logit(margins), x @ slope - 0.5 * (lifted.separation * slope).sum(0), rtol=1e-10, atol=1e-10)


# ---- errors --------------------------------------------------------------------------------------------------------


def categorical(states=2):
    table = torch.full((states, 3), 1 / 3, dtype=torch.float64)
    return SwitchingSSM(Copy(states), Categorical(3)).with_values(
        redraw_prob=0.5, state_probs=torch.full((states,), 1 / states), probs=table
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: as_ssm(GRU(3, 2)), "layer: a GRU's gates read its own state"),
        (lambda: as_ssm(QRNN(3, 2, pooling="ifo")), "layer: a QRNN with pooling='ifo' holds and draws by gates"),
        (lambda: as_ssm(QRNN(3, 2, window=2)), "layer: its gates read 2 inputs each"),
        (lambda: as_ssm(torch.nn.Linear(3, 2)), "layer: got Linear, expected MinGRU, MinLSTM or QRNN"),
        (lambda: as_ssm(MinGRU(3, 2), [1, 1, 1], inputs="given"), 'token_probs: was given with inputs="given"'),
        (lambda: as_ssm(MinGRU(3, 2, num_layers=2)), "layer: has 2 layers, and those above the first read beliefs"),
        (
            lambda: as_ssm(MinGRU(3, 2), [0.5, 0.5, 0.0]),
            r"token_probs: got \[0.5, 0.5, 0.0\] of shape \[3\], expected 3",
        ),
        (lambda: as_ssm(MinGRU(3, 2), [0.5, 0.5]), "token_probs: got .* expected 3 positive numbers"),
        (lambda: as_ssm(MinGRU(3, 2), inputs="images"), "inputs: got 'images'"),
        (lambda: as_ssm(MinGRU(3, 2)).hidden([[0, 1], [3, 0]]), "tokens: got 3 at sequence 1, step 0, expected an int"),
        (lambda: as_ssm(MinGRU(3, 2)).hidden(torch.rand(4, 3) / 2), "give the indices of tokens"),
        (lambda: as_ssm(MinGRU(3, 2)).hidden([0, 1], torch.zeros(2)), r"h0: got shape \[2\], expected \[1, 2\]"),
        (lambda: as_ssm(MinGRU(3, 2)).hidden([0, 1], torch.zeros(1, 4)), "h0: got shape .*, but the layer has 2 units"),
        (lambda: as_ssm(MinGRU(3, 2)).hidden([[0, 1]], lengths=[3]), "lengths: got 3 for|lengths: got 3"),
        (lambda: as_ssm(MinGRU(2, 3), inputs="gaussian"), "layer: 3 units over 2 features"),
        (lambda: as_ssm(MinLSTM(3, 2), inputs="gaussian"), "layer: a MinLSTM's gate is a ratio"),
        (lambda: as_ssm(MinGRU(3, 2, candidate="simplex"), inputs="gaussian"), "layer: has candidate='simplex'"),
        (lambda: as_rnn(SwitchingSSM(Markov(2), Categorical(3))), "model: has Markov dynamics"),
        (lambda: as_rnn(SwitchingSSM(Copy(2, inputs=1), Categorical(3))), "model: reads inputs"),
        (lambda: as_rnn(categorical()), 'space: got "probability", but this model has no exact minGRU'),
        (
            lambda: as_rnn(SwitchingSSM(Copy(2), Gated(Normal(2), MultivariateNormal(2)))),
            "model: emits Normal on Multi",
        ),
        (
            lambda: as_rnn(SwitchingSSM(Copy(2), Gated(Categorical(3), Categorical(3)))),
            "model: has no parameter values yet",
        ),
        (lambda: as_rnn(gated_model(), space="log"), "space: got 'log'"),
        (lambda: as_rnn(GRU(3, 2)), "model: got GRU, expected a SwitchingSSM or LayeredSSM"),
    ],
)
def test_what_cannot_be_converted_says_why(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
