"""Every emission's density, moments and M-step against textbook definitions."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.models import EMISSIONS, random_model
from oracles.placement import close
from samplehold import Bernoulli, Categorical, Copy, Emission, Gated, MultivariateNormal, Normal, Poisson, SwitchingSSM
from samplehold.switching.priors import log_prior
from torch.testing import assert_close

PLAIN = {name: e for name, e in EMISSIONS.items() if not isinstance(e, Gated)}


def data(name, n=40, missing=0.0, seed=0):
    x = random_model("copy", name, seed=seed).simulate(n, seed=seed).x
    hole = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < missing
    return torch.where(hole, torch.nan, x)


def weights(n, k=2, restarts=(), seed=0):
    return torch.rand(*restarts, n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rounded(values, dtype):
    """Parameters in a dtype, and these in float64."""
    found = {name: value.to(dtype) for name, value in values.items()}
    return found, {name: value.double() for name, value in found.items()}


def size(table):
    """Of the finite entries the greatest, by which the terms are judged that make one."""
    return max(1.0, float(table[table.isfinite()].abs().amax()))


@pytest.mark.parametrize("name", list(PLAIN))
def test_log_prob_is_that_of_the_pyro_distribution(name, dtype):
    model, x = random_model("copy", name), data(name).to(dtype)
    values, exact = rounded(model.values, dtype)
    table = model.emission.log_likelihood(x, values).redrawn
    assert table.dtype == dtype
    for state in range(2):
        at = {name: exact[name][state % len(exact[name])] for name in model.emission.parameters}
        expected = model.emission.distribution(at).log_prob(x.double())
        close(table[:, state], expected, dtype, size(expected), rtol=1e-10, atol=1e-10)


def started(emission, x):
    return emission.start(emission.default_prior(1, x))


@pytest.mark.parametrize("name", ["normal", "bernoulli", "poisson", "full", "tied", "tied_full"])
def test_a_missing_feature_leaves_the_marginal_of_the_others(name):
    model, x = random_model("copy", name), data(name)
    values = model.describe()
    seen = x.clone()
    seen[:, 0] = torch.nan
    table = model.emission.log_likelihood(seen, model.values).redrawn
    if name.endswith("full"):
        scale = values["covariance"][:, 1, 1].sqrt()
        expected = torch.distributions.Normal(values["loc"][:, 1], scale).log_prob(x[:, 1:])
    else:
        one = replace(model.emission, n_features=1)
        expected = one.log_likelihood(x[:, 1:], {n: v[:, 1:] for n, v in model.values.items() if n in one.parameters})
        expected = expected.redrawn
    assert_close(table, expected, rtol=1e-10, atol=1e-10)
    assert_close(
        model.emission.log_likelihood(torch.full_like(x, torch.nan), model.values).redrawn,
        torch.zeros(len(x), 2, dtype=x.dtype),
        rtol=0,
        atol=0,
    )


@pytest.mark.few(5)
@pytest.mark.parametrize("name", list(PLAIN))
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_m_step_is_a_stationary_point_of_its_objective(name, missing):
    """With missing features the objective is that of EM: its gradient is the gradient of the observed
    log-likelihood."""
    model, w = random_model("copy", name), weights(40)
    x = data(name, missing=missing)
    emission, prior = model.emission, model.emission.default_prior(2, x)
    values = model.values
    if name.endswith("full") and missing:  # iterate: the fill-in of missing values depends on the parameters
        for _ in range(1500):
            values = emission.maximize(x, w, values, prior, torch.zeros(2)).values
    else:
        values = emission.maximize(x, w, values, prior, torch.zeros(2)).values
    leaves = {n: values[n].clone().requires_grad_() for n in emission.parameters}
    objective = (w * emission.log_likelihood(x, leaves).redrawn).sum() + log_prior(emission.sites(prior), leaves)
    gradients = torch.autograd.grad(objective, list(leaves.values()))
    for (leaf_name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        gradient = gradient * leaf  # relative steps
        if name == "categorical":  # stationary on the simplex: the gradient is the same in every direction
            gradient = gradient - leaf * gradient.sum(-1, keepdim=True)
        assert float(gradient.abs().max()) < 1e-7 * float(w.sum()), leaf_name


@pytest.mark.parametrize("name", list(PLAIN))
def test_restarts_are_one_more_axis(name):
    model, x = random_model("copy", name), data(name, missing=0.2)
    w = weights(40, restarts=(3,))
    stacked = {n: torch.stack([model.values[n]] * 3) for n in model.emission.parameters}
    prior = model.emission.default_prior(2, x)
    whole = model.emission.maximize(x, w, stacked, prior, torch.zeros(2)).values
    for r in range(3):
        alone = model.emission.maximize(x, w[r], model.values, prior, torch.zeros(2)).values
        for n in alone:
            assert_close(whole[n][r], alone[n], rtol=1e-12, atol=1e-12)
    table = model.emission.log_likelihood(x, whole).redrawn
    one = model.emission.log_likelihood(x, {n: v[1] for n, v in whole.items()}).redrawn
    assert_close(table[1], one, rtol=1e-12, atol=1e-12)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3), st.integers(0, 10_000))
def test_variances_keep_their_digits_far_from_zero(centre, scale, seed):
    """The variance of data at 1e6 with scale 1e-3 is found to the digits that the data themselves carry."""
    generator = torch.Generator().manual_seed(seed)
    x = centre + scale * torch.randn(50, 1, generator=generator, dtype=torch.float64)
    ones = torch.ones(50, 1, dtype=torch.float64)
    for emission in (Normal(1), MultivariateNormal(1)):
        found = emission.maximize(x, ones, started(emission, x), None, torch.full_like(x[0], 1e-12)).values
        assert_close(1 / found["precision"].flatten(), ((x - x.mean()) ** 2).mean().reshape(1), rtol=1e-9, atol=0)


def test_a_state_on_one_point_is_reported_and_stays_finite_under_maximum_likelihood():
    x = torch.tensor([[0.0], [1.0], [5.0], [5.0]], dtype=torch.float64)
    w = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    for emission in (Normal(1), MultivariateNormal(1)):
        result = emission.maximize(x, w, started(emission, x), None, torch.tensor([1e-8], dtype=x.dtype))
        assert emission.collapsed(result.values, torch.tensor([1e-8], dtype=x.dtype)).tolist() == [False, True]
        assert bool(torch.isfinite(result.values["precision"]).all())
        assert_close(result.values["precision"][1].flatten(), torch.tensor([1e8], dtype=x.dtype))


def test_gated_emission_sends_redrawn_and_held_weights_to_their_parts():
    emission = Gated(Normal(1), Normal(1))
    redrawn, held = weights(40), weights(40, seed=1)
    drawn, background = emission.weights(redrawn, held)
    assert_close(drawn, redrawn, rtol=0, atol=0)
    assert_close(background, held.sum(-1, keepdim=True), rtol=0, atol=0)
    drawn, background = Gated(Normal(1), Normal(1), by_state=True).weights(redrawn, held)
    assert_close(drawn, redrawn, rtol=0, atol=0)
    assert_close(background, held, rtol=0, atol=0)
    (both,) = Normal(1).weights(redrawn, held)
    assert_close(both, redrawn + held, rtol=0, atol=0)


def test_normals_that_differ_at_redrawn_steps_alone_have_the_log_odds_of_their_closed_form():
    generator = torch.Generator().manual_seed(0)
    shift, by_state, x, root = (
        torch.randn(*n, 2, generator=generator, dtype=torch.float64) for n in ((), (3,), (9,), (2,))
    )
    covariance = root @ root.mT + torch.eye(2, dtype=torch.float64)
    model = SwitchingSSM(Copy(3), Gated(MultivariateNormal(2), MultivariateNormal(2), by_state=True)).with_values(
        redraw_prob=0.2,
        state_probs=[0.2, 0.3, 0.5],
        loc=shift + by_state,
        covariance=covariance.expand(3, 2, 2),
        background_loc=torch.zeros(3, 2),
        background_covariance=covariance.expand(3, 2, 2),
    )
    mean = shift + by_state
    weight = torch.linalg.solve(covariance, mean.mT).mT
    expected = x @ weight.mT - 0.5 * (mean * weight).sum(-1)
    redrawn, held = model.emission.log_likelihood(x, model.values)
    assert_close(redrawn - held, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_a_fit_tells_redrawn_from_held_observations_of_each_state():
    truth = SwitchingSSM(Copy(2), Gated(Normal(1), Normal(1), by_state=True)).with_values(
        redraw_prob=0.3,
        state_probs=[0.4, 0.6],
        loc=[[-20.0], [20.0]],
        scale=[[1.0], [2.0]],
        background_loc=[[-5.0], [5.0]],
        background_scale=[[1.0], [2.0]],
    )
    x = truth.simulate(300, seed=0).x
    for method in ("em", "vmp"):
        fitted = truth.without_values().fit(x, method, progress=False).model
        for name in ("loc", "background_loc"):
            assert_close(fitted.values[name], truth.values[name], rtol=0, atol=1.0)


@pytest.mark.parametrize(
    ("emission", "bad", "said"),
    [
        (Bernoulli(1), 2.0, "0 or 1"),
        (Poisson(1), -1.0, "counts"),
        (Poisson(1), 1.5, "counts"),
        (Categorical(3), 3.0, "from 0 to 2"),
        (Categorical(3), 0.5, "from 0 to 2"),
    ],
)
def test_values_outside_the_support_are_named(emission, bad, said):
    model = SwitchingSSM(Copy(2), emission)
    with pytest.raises(ValueError, match=rf"x: got {bad:g} at step 2, feature 0; expected .*{said}"):
        model.fit([0.0, 1.0, bad, 1.0], progress=False)


def test_mean_and_variance_are_those_of_the_distribution(dtype):
    for name in ("normal", "full", "bernoulli", "poisson", "tied", "tied_full"):
        model = random_model("copy", name)
        values, exact = rounded(model.values, dtype)
        pyro_form = model.emission.distribution({n: exact[n] for n in model.emission.parameters})
        close(model.emission.mean(values).redrawn, pyro_form.mean, dtype)
        close(model.emission.variance(values).redrawn, pyro_form.variance, dtype)
    model = random_model("copy", "categorical")
    p = model.probs
    mean = p[:, 1] + 2 * p[:, 2]
    assert_close(model.emission.mean(model.values).redrawn[:, 0], mean)
    assert_close(model.emission.variance(model.values).redrawn[:, 0], p[:, 1] + 4 * p[:, 2] - mean**2)


def test_default_priors_are_in_the_units_of_the_data():
    """Rescaling the data rescales the fitted parameters and nothing else."""
    x = data("normal")
    for emission in (Normal(2), MultivariateNormal(2)):
        w = weights(40)
        small = emission.maximize(x, w, started(emission, x), emission.default_prior(2, x), torch.zeros(2))
        y = 1000 * x + 5
        large = emission.maximize(y, w, started(emission, y), emission.default_prior(2, y), torch.zeros(2))
        assert_close(large.values["loc"], 1000 * small.values["loc"] + 5, rtol=1e-10, atol=1e-8)
        assert_close(large.values["precision"] * 1e6, small.values["precision"], rtol=1e-10, atol=1e-10)


def test_poisson_of_no_events_is_certain():
    zero = {"rate": torch.zeros(1, 1, dtype=torch.float64)}
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    assert Poisson(1).log_likelihood(x, zero).redrawn.flatten().tolist() == [0.0, -math.inf]


def wide(name, dtype=torch.float64):
    """Seven binary or count features of two sequences, some missing and one step all; parameters of three restarts,
    among them probabilities 0 and 1 and a rate of 0."""
    generator = torch.Generator().manual_seed(3)
    level = torch.randn(3, 4, 7, generator=generator, dtype=dtype)
    missing = torch.rand(2, 5, 7, generator=generator) < 0.2
    missing[1, 2] = True
    draw = torch.rand(2, 5, 7, generator=generator, dtype=dtype)
    if name == "Bernoulli":
        probs = level.sigmoid()
        probs[0, 0, 0], probs[1, 2, 3] = 0.0, 1.0
        return Bernoulli(7), (draw > 0.5).to(dtype).masked_fill(missing, torch.nan), {"probs": probs}
    rate = level.exp()
    rate[0, 0, 0] = 0.0
    return Poisson(7), (30 * draw**3).floor().masked_fill(missing, torch.nan), {"rate": rate}


@pytest.mark.parametrize("name", ["Bernoulli", "Poisson"])
@pytest.mark.parametrize("complete", [True, False])
def test_tables_by_matrix_products_are_those_of_every_feature_by_itself(name, complete, dtype):
    emission, x, values = wide(name, dtype)
    x = x.nan_to_num(0.0) if complete else x
    _, exact = rounded(values, dtype)
    found, expected = emission.table(x, values), Emission.table(emission, x.double(), exact)
    assert found.shape == (3, 2, 5, 4)
    assert expected.isneginf().any()
    close(found, expected, dtype, size(expected), rtol=1e-12, atol=1e-12)
    if not complete:
        assert_close(found[:, 1, 2], torch.zeros(3, 4, dtype=x.dtype), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["Bernoulli", "Poisson"])
def test_tables_by_matrix_products_can_be_differentiated_twice(name):
    emission, x, values = wide(name)
    (parameter, table), *_ = values.items()
    inside = table.clamp(1e-3, 1 - 1e-3) if name == "Bernoulli" else table.clamp_min(1e-3)
    direction = torch.linspace(-1, 1, 3 * 2 * 5 * 4, dtype=x.dtype).reshape(3, 2, 5, 4)

    def derivatives(function):
        leaf = inside.clone().requires_grad_()
        (first,) = torch.autograd.grad((function(x, {parameter: leaf}) * direction).sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad((first * first.detach()).sum(), leaf)
        return first.detach(), second

    found = derivatives(emission.table)
    expected = derivatives(lambda *given: Emission.table(emission, *given))
    assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("x", [[[0.0, 3.0]], [[1e6, 3.0]], [[0.5, 3.0]]], ids=["small", "large", "no counts"])
def test_log_factorials_are_those_of_the_gamma_function(x, dtype):
    x, values = torch.tensor(x, dtype=dtype), {"rate": torch.tensor([[2.0, 5.0]], dtype=dtype)}
    expected = Emission.table(Poisson(2), x.double(), rounded(values, dtype)[1])
    close(Poisson(2).table(x, values), expected, dtype, rtol=1e-12, atol=1e-12)
