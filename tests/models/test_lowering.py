"""Copy models whose emissions are linear in x are minGRUs: binary features, counts, real numbers of one scale."""

import itertools
import math

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from samplehold import (
    Bernoulli,
    Categorical,
    Copy,
    EvidenceGRU,
    Gated,
    LogitGRU,
    MinGRU,
    MultivariateNormal,
    Normal,
    Poisson,
    SwitchingSSM,
    as_rnn,
    as_ssm,
    compare,
    filter_vmp,
    redrawn_start,
    token_marginal,
)
from torch.testing import assert_close

KINDS = ("bernoulli", "poisson", "normal", "multivariate")


def uniform(random, *shape):
    return torch.rand(*shape, generator=random, dtype=torch.float64)


def make(kind, states=3, features=2, redraw=0.3, seed=0):
    """A model, and log p(x | s) of each kind in plain torch, for the drawn states and the background."""
    random = torch.Generator().manual_seed(seed)
    values = {"redraw_prob": redraw, "state_probs": (uniform(random, states) + 0.1)}
    values["state_probs"] = values["state_probs"] / values["state_probs"].sum()
    if kind == "bernoulli":
        emission, own = Bernoulli(features), {"probs": uniform(random, states + 1, features)}
    elif kind == "poisson":
        emission, own = Poisson(features), {"rate": 5 * uniform(random, states + 1, features) + 0.1}
    elif kind == "normal":
        scale = uniform(random, features) + 0.3
        emission = Normal(features)
        own = {"loc": 4 * uniform(random, states + 1, features) - 2, "scale": scale.expand(states + 1, -1)}
    else:
        mixed = torch.randn(features, features, generator=random, dtype=torch.float64)
        covariance = mixed @ mixed.T + 0.3 * torch.eye(features, dtype=torch.float64)
        emission = MultivariateNormal(features)
        own = {"loc": 4 * uniform(random, states + 1, features) - 2}
        own["covariance"] = covariance.expand(states + 1, -1, -1)
    values |= {name: table[:-1] for name, table in own.items()}
    values |= {f"background_{name}": table[-1:] for name, table in own.items()}
    return SwitchingSSM(Copy(states), Gated(emission, emission)).with_values(values)


def log_prob(model, x, background):
    """log p(x | s) by torch's own distributions."""
    prefix = "background_" if background else ""
    own = {name.removeprefix(prefix): table for name, table in model.values.items() if name.startswith(prefix)}
    x = x.unsqueeze(-2)
    if isinstance(model.emission.emission, MultivariateNormal):
        return torch.distributions.MultivariateNormal(own["loc"], precision_matrix=own["precision"]).log_prob(x)
    kinds = {
        Bernoulli: lambda: torch.distributions.Bernoulli(own["probs"]),
        Poisson: lambda: torch.distributions.Poisson(own["rate"]),
        Normal: lambda: torch.distributions.Normal(own["loc"], own["precision"].rsqrt()),
    }
    return kinds[type(model.emission.emission)]().log_prob(x).sum(-1)


def enumerated(model, x):
    """P(s_t | x_1..t) of one short sequence, by all histories of gates and fresh states."""
    rho, pi = float(model.values["redraw_prob"]), model.values["state_probs"].tolist()
    drawn, held = log_prob(model, x, False).exp().tolist(), log_prob(model, x, True).exp().tolist()
    beliefs = []
    for steps in range(1, len(x) + 1):
        belief = [0.0] * len(pi)
        for gates in itertools.product([0, 1], repeat=steps - 1):
            opened = (1, *gates)
            for fresh in itertools.product(range(len(pi)), repeat=sum(opened)):
                weight, state, draws = 1.0, 0, iter(fresh)
                for t, gate in enumerate(opened):
                    if gate:
                        state = next(draws)
                        weight *= (rho if t else 1.0) * pi[state] * drawn[t][state]
                    else:
                        weight *= (1 - rho) * held[t][0]
                belief[state] += weight
        beliefs.append([value / sum(belief) for value in belief])
    return torch.tensor(beliefs, dtype=torch.float64)


@examples(10)
@given(st.integers(0, 2**20), st.sampled_from(KINDS), st.integers(1, 3), st.integers(1, 3))
def test_the_network_is_the_filter_by_enumeration_of_all_histories(seed, kind, states, features):
    model = make(kind, states, features, seed=seed)
    x = model.simulate(4, seed=seed).x
    layer = as_rnn(model)
    assert_close(layer(x, redrawn_start(layer, x))[0].detach(), enumerated(model, x), rtol=0, atol=1e-12)


@examples(20)
@given(
    st.integers(0, 2**20),
    st.sampled_from(KINDS),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.01, 0.5, 1.0]),
)
def test_the_network_of_every_linear_emission_is_its_exact_filter(seed, kind, states, features, redraw):
    model = make(kind, states, features, redraw, seed)
    x = model.simulate(60, (3,), seed=seed).x
    layer, exact = as_rnn(model), model.filter(x)
    out, last = layer(x, redrawn_start(layer, x))
    assert_close(out.detach(), exact.state, rtol=0, atol=1e-11)
    assert_close(last[0].detach(), exact.state[:, -1], rtol=0, atol=1e-11)
    assert_close(layer.activations(x).draw[:, 1:, 0].detach(), exact.redraw[:, 1:], rtol=0, atol=1e-11)
    held, h = [], redrawn_start(layer, x)
    for x_t in x.unbind(1):
        out_t, h = layer.step(x_t, h)
        held.append(out_t)
    assert_close(torch.stack(held, 1).detach(), exact.state, rtol=0, atol=1e-11)


@examples(10)
@given(st.integers(0, 2**20), st.sampled_from(KINDS), st.integers(2, 4))
def test_the_logit_network_of_every_linear_emission_is_the_variational_update(seed, kind, states):
    model = make(kind, states, seed=seed)
    x = model.simulate(40, (2,), seed=seed).x
    layer = as_rnn(model, space="logit")
    out = layer(x, redrawn_start(layer, x))[0].detach().softmax(-1)
    assert_close(out, filter_vmp(model, x, gate="input").state, rtol=0, atol=1e-11)


def speaking(kind, states=3, by_state=True, seed=0):
    """A model whose held steps emit from their state: with parameters of their own, or with those of redrawn steps."""
    model = make(kind, states, seed=seed)
    emission, values = model.emission.emission, dict(model.values)
    held = {name: values.pop(name) for name in list(values) if name.startswith("background_")}
    if not by_state:
        return SwitchingSSM(Copy(states), emission).with_values(values)
    for name in held:
        drawn = values[name.removeprefix("background_")]
        held[name] = drawn if name.endswith("precision") else (drawn.flip(0) + held[name]) / 2
    return SwitchingSSM(Copy(states), Gated(emission, emission, by_state=True)).with_values(values | held)


@examples(20)
@given(st.integers(0, 2**20), st.sampled_from(KINDS), st.integers(1, 4), st.booleans())
@pytest.mark.slow
def test_the_logit_network_of_states_that_emit_while_held_is_the_variational_update(seed, kind, states, by_state):
    model = speaking(kind, states, by_state, seed)
    x = model.simulate(40, (2,), seed=seed).x
    layer, expected = as_rnn(model, space="logit"), filter_vmp(model, x, gate="input")
    start = redrawn_start(layer, x)
    out = layer(x, start)[0].detach().softmax(-1)
    assert_close(out, expected.state, rtol=0, atol=1e-11)
    assert_close(layer.activations(x).draw[:, 1:, 0].detach(), expected.redraw[:, 1:], rtol=0, atol=1e-11)
    stepped, h = [], start
    for x_t in x.unbind(1):
        out_t, h = layer.step(x_t, h)
        stepped.append(out_t)
    assert_close(torch.stack(stepped, 1).detach().softmax(-1), out, rtol=0, atol=1e-11)
    if states > 1:  # a comparison reads its state as logits, and starts it with a redraw
        report = compare(model, layer, x)
        assert report.reads == "logits"
        assert_close(report.network.state, expected.state[..., report.order], rtol=0, atol=1e-11)


def test_a_logit_network_is_its_equations_step_by_step():
    layer, x = LogitGRU(3, 2, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    hold, fresh, held = (x @ layer.weight_l0.mT + layer.bias_l0).split(2, -1)
    h, expected = torch.zeros(2, dtype=torch.float64), []
    for t in range(7):
        gate = fresh[t].exp().sum() / (fresh[t].exp().sum() + hold[t].exp().sum())
        h = (1 - gate) * (h + held[t]) + gate * fresh[t]
        expected.append(h)
    expected = torch.stack(expected)
    assert_close(layer(x)[0], expected, rtol=1e-12, atol=1e-12)
    for got, wanted in zip(
        torch.autograd.grad(layer(x)[0].square().sum(), layer.parameters()),
        torch.autograd.grad(expected.square().sum(), layer.parameters()),
        strict=True,
    ):
        assert_close(got, wanted, rtol=1e-10, atol=1e-10)
    assert_close(as_ssm(layer, inputs="given").hidden(x), layer(x)[0].detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_logit_network_stays_finite_where_x_leaves_no_doubt_about_the_gate(dtype):
    far = SwitchingSSM(Copy(2), Gated(Normal(1), Normal(1), by_state=True)).with_values(
        redraw_prob=0.1,
        state_probs=[0.5, 0.5],
        loc=[[99.0], [101.0]],
        scale=[[1.0], [1.0]],
        background_loc=[[-1.0], [1.0]],
        background_scale=[[1.0], [1.0]],
    )
    x = torch.tensor([[100.5], [0.3], [-0.2], [99.0], [-1.0]], dtype=dtype)
    layer = as_rnn(far, space="logit").to(dtype)
    out = layer(x, redrawn_start(layer, x))[0]
    rounding = 1e4 * torch.finfo(dtype).eps  # log densities reach 1e4
    assert_close(out.detach().softmax(-1), far.filter(x).state, rtol=0, atol=rounding)
    out.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters())


def test_networks_with_a_gate_that_is_not_linear_have_no_matrix():
    for layer in (EvidenceGRU(3, 2), LogitGRU(3, 2)):
        with pytest.raises(TypeError, match=f"layer: the gate of {type(layer).__name__} is not linear"):
            layer.rows()


@examples(20)
@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(0.2, 3), st.floats(0.01, 0.99))
def test_one_gaussian_against_another_is_logistic_regression(held, drawn, scale, redraw):
    r"""P(hold | x) = sigma(W x + b), W = (mu_0 - mu_1)/sigma^2, b = log prior odds + (mu_1^2 - mu_0^2)/(2 sigma^2)."""
    model = SwitchingSSM(Copy(1), Gated(Normal(1), Normal(1))).with_values(
        redraw_prob=redraw, state_probs=[1.0], loc=[[drawn]], scale=[[scale]], background_loc=[[held]],
        background_scale=[[scale]],
    )  # fmt: skip
    layer = as_rnn(model)
    assert type(layer) is MinGRU
    weight, bias = -float(layer.weight_l0[0, 0]), -float(layer.bias_l0[0])  # of the gate that holds
    assert weight == pytest.approx((held - drawn) / scale**2, rel=1e-12, abs=1e-12)
    prior = math.log((1 - redraw) / redraw)
    assert bias == pytest.approx(prior + (drawn**2 - held**2) / (2 * scale**2), rel=1e-12, abs=1e-11)
    x = torch.linspace(-4, 4, 9, dtype=torch.float64)
    odds = prior + ((x - drawn) ** 2 - (x - held) ** 2) / (2 * scale**2)
    assert_close(layer.activations(x[:, None]).hold[:, 0].detach(), odds.sigmoid(), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "features"), [("bernoulli", 1), ("poisson", 1), ("normal", 2), ("bernoulli", 3)])
def test_the_linear_gate_leaves_out_the_stated_term(kind, features):
    model = make(kind, 3, features)
    layer = as_rnn(model, gate="linear")
    assert type(layer) is MinGRU
    x = model.simulate(500, seed=0).x
    pi = model.values["state_probs"]
    mixture = (pi.log() + log_prob(model, x, False)).logsumexp(-1)
    name = {"bernoulli": "probs", "poisson": "rate", "normal": "loc"}[kind]
    mean = model.values[name].T @ pi
    member = SwitchingSSM(Copy(1), model.emission).with_values(
        model.values | {name: mean[None], "state_probs": torch.ones(1).double()}
        | ({"precision": model.values["precision"][:1]} if kind == "normal" else {})
    )  # fmt: skip
    left_out = mixture - log_prob(member, x, False)[..., 0]
    exact = torch.logit(model.values["redraw_prob"]) + mixture - log_prob(model, x, True)[..., 0]
    found = torch.nn.functional.linear(x, layer.weight_l0, layer.bias_l0)[:, 0].detach()
    assert_close(found, exact - left_out, rtol=1e-10, atol=1e-10)
    error = compare(model, layer, x).network.total_variation.max()
    if (kind, features) == ("bernoulli", 1):  # two values: any function of them is a line
        assert type(as_rnn(model)) is MinGRU
        assert left_out.abs().max() < 1e-12
        assert error < 1e-12
    else:
        assert isinstance(as_rnn(model), EvidenceGRU)
        assert left_out.abs().max() > 0.01
        assert 1e-4 < error < 0.5
        assert compare(model, as_rnn(model), x).network.total_variation.max() < 1e-11


def test_certain_bits_and_counts_that_cannot_be_keep_the_network_exact():
    bits = SwitchingSSM(Copy(3), Gated(Bernoulli(2), Bernoulli(2)))
    table = [[1.0, 0.5], [0.0, 0.5], [0.5, 1.0]]
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-4)):
        values = {"redraw_prob": 0.2, "state_probs": [0.5, 0.5, 0.0], "probs": table, "background_probs": [[0.5, 1.0]]}
        model = bits.with_values({name: torch.tensor(value, dtype=dtype) for name, value in values.items()})
        x = torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0], [0, 1], [1, 1]], dtype=dtype)
        layer = as_rnn(model)
        assert_close(layer(x, redrawn_start(layer, x))[0].detach(), model.filter(x).state, rtol=0, atol=tolerance)
    single = SwitchingSSM(Copy(2), Gated(Bernoulli(1), Bernoulli(1))).with_values(
        redraw_prob=0.2, state_probs=[0.5, 0.5], probs=[[0.3], [0.2]], background_probs=[[1.0]]
    )
    x, layer = torch.tensor([[1.0], [1.0], [0.0], [1.0]], dtype=torch.float64), as_rnn(single)
    assert_close(layer(x, redrawn_start(layer, x))[0].detach(), single.filter(x).state, rtol=0, atol=1e-11)
    counts = SwitchingSSM(Copy(2), Gated(Poisson(1), Poisson(1))).with_values(
        redraw_prob=0.2, state_probs=[0.5, 0.5], rate=[[0.0], [3.0]], background_rate=[[1.0]]
    )
    x, layer = torch.tensor([[0.0], [2.0], [0.0], [9.0], [0.0]], dtype=torch.float64), as_rnn(counts)
    assert_close(layer(x, redrawn_start(layer, x))[0].detach(), counts.filter(x).state, rtol=0, atol=1e-11)
    for model in (single, counts):
        tables = {name: table.clone() for name, table in model.values.items()}
        if "probs" in tables:
            tables["probs"][0] = 1.0
        with pytest.raises(ValueError, match='space: "logit" needs positive state_probs and'):
            as_rnn(model.with_values(tables), space="logit")


def test_a_network_with_an_exact_gate_is_an_ordinary_module():
    model = make("poisson")
    layer, x = as_rnn(model), model.simulate(30, (2,), seed=0).x
    layer(x)[0].square().sum().backward()
    assert all(bool((p.grad != 0).any()) for p in layer.parameters())
    twin = EvidenceGRU(2, 3, dtype=torch.float64)
    twin.load_state_dict(layer.state_dict())
    assert_close(twin(x)[0], layer(x)[0])
    with pytest.raises(ValueError, match="candidate: got 'tanh'"):
        EvidenceGRU(2, 3, candidate="tanh")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: as_rnn(make("normal").with_values(make("normal").values | {"background_precision": [[9.0, 9.0]]})),
            "model: its scales differ between states or from the background",
        ),
        (
            lambda: as_rnn(SwitchingSSM(Copy(2), Gated(Poisson(1), Bernoulli(1)))),
            "model: emits Poisson on Bernoulli, whose log-likelihoods differ by more than a linear function of x",
        ),
        (lambda: as_rnn(make("normal"), gate="cubic"), "gate: got 'cubic'"),
        (
            lambda: as_rnn(speaking("normal"), "probability"),
            'space: got "probability", but this model has no exact minGRU',
        ),
        (
            lambda: as_rnn(speaking("normal"), "logit", "linear"),
            'gate: got "linear", but observations at held steps depend on the state',
        ),
        (
            lambda: as_rnn(
                SwitchingSSM(Copy(2), Normal(1)).with_values(
                    redraw_prob=0.1, state_probs=[0.5, 0.5], loc=[[0.0], [1.0]], scale=[[1.0], [2.0]]
                ),
                "logit",
            ),
            "model: its scales differ between states, which",
        ),
        (lambda: token_marginal(make("normal")), "model: emits Normal, which has no tokens"),
        (lambda: as_ssm(as_rnn(make("normal")), inputs="gaussian"), "layer: the gate of EvidenceGRU is not linear"),
        (lambda: as_rnn(SwitchingSSM(Copy(2), Gated(Categorical(2), Bernoulli(1)))), "Categorical on Bernoulli"),
    ],
)
def test_what_is_not_linear_says_why(call, message):
    with pytest.raises(ValueError, match=message):
        call()
