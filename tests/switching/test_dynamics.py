"""The two kinds of dynamics: their M-steps, forecasts and conventions."""

import math

import pytest
import torch
from oracles.models import drive, random_model
from samplehold import ContinuousMarkov, Copy, DeviationAR, Markov, Normal, SemiMarkov, StickyHDP, SwitchingSSM
from samplehold.switching.data.series import Drive
from samplehold.switching.dynamics.gates import log1mexp
from samplehold.switching.priors import log_prior
from torch.testing import assert_close

GAPS = torch.tensor([1.0, 0.5, 2.0, 1.0, 3.0, 1.0], dtype=torch.float64)


def posterior(model, x, **keywords):
    return model.chain(x, **keywords).marginals()


@pytest.mark.parametrize("dt", [None, GAPS])
@pytest.mark.parametrize("kind", ["copy", "inputs", "markov"])
def test_the_m_step_is_a_stationary_point_of_the_expected_log_joint(kind, dt):
    model = random_model(kind, "normal")
    n = len(GAPS)
    keywords = {} if kind != "inputs" else {"inputs": drive(kind, (), n)["inputs"]}
    if kind != "markov" and dt is not None:
        keywords["dt"] = dt
    x = model.simulate(n, seed=2, **keywords).x
    marginals = posterior(model, x, **keywords)
    prior, given = model.dynamics.default_prior(), Drive(keywords.get("inputs"), keywords.get("dt"))
    names = [site.name for site in model.dynamics.sites(prior)]
    stacked = type(marginals)(*(None if f is None else f.unsqueeze(0) for f in vars(marginals).values()))
    old = {name: value.unsqueeze(0) for name, value in model.values.items()}
    new = {name: v[0] for name, v in model.dynamics.maximize(stacked, prior, old, given).items()}
    leaves = {name: new[name].clone().requires_grad_() for name in names}
    # gradient of sum(marginal * log table) through the tables, at the new parameters
    likelihood = model.emission.log_likelihood(x, model.values)
    chain = model.dynamics.chain(leaves, likelihood, given)
    expected = log_prior(model.dynamics.sites(prior), leaves)
    if kind == "markov":
        expected = (
            expected
            + (marginals.initial * chain.log_initial).sum()
            + (marginals.transition * chain.log_transition).sum()
        )
    else:
        gates = torch.stack([chain.log_redraw, chain.log_hold], -1)
        used = (marginals.gates * torch.where(marginals.gates > 0, gates, 0.0)).sum()
        expected = expected + used + (marginals.drawn * chain.log_state).sum()
    for leaf, gradient in zip(leaves.values(), torch.autograd.grad(expected, list(leaves.values())), strict=True):
        if leaf.ndim and "weights" not in names[0] and leaf.shape[-1] == 2 and float(leaf.sum(-1).max()) <= 1 + 1e-9:
            gradient = gradient - (leaf * gradient).sum(-1, keepdim=True)  # along the simplex
        assert float(gradient.abs().max()) < 1e-6


def test_constant_inputs_of_zero_leave_a_constant_redraw_probability():
    shared = {"state_probs": [0.3, 0.7], "loc": [[0.0], [1.0]], "scale": [[1.0], [1.0]]}
    logit = torch.logit(torch.tensor(0.2, dtype=torch.float64))
    plain = SwitchingSSM(Copy(2), Normal(1)).with_values(shared, redraw_prob=0.2)
    moved = SwitchingSSM(Copy(2, inputs=1), Normal(1))
    moved = moved.with_values(shared, redraw_intercept=logit, redraw_weights=[3.0])
    x = plain.simulate(20, seed=0).x
    zeros = torch.zeros(20, 1)
    assert_close(moved.log_evidence(x, inputs=zeros), plain.log_evidence(x), rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["copy", "inputs", "markov"])
def test_forecasts_are_the_filter_carried_over_missing_steps(kind):
    model = random_model(kind, "normal", seed=4)
    n, horizon = 5, 6
    keywords = drive(kind, (2,), n + horizon)
    x = model.simulate(n + horizon, (2,), seed=1, **keywords).x
    forecast = model.forecast(x[:, :n], horizon, **keywords)
    x[:, n:] = torch.nan
    carried = model.filter(x, **keywords)
    assert_close(forecast.state, carried.state[:, n:], rtol=1e-12, atol=1e-14)
    if kind != "markov":
        assert_close(forecast.redraw, carried.redraw[:, n:], rtol=1e-12, atol=1e-14)


def test_forecasts_of_ragged_sequences_start_at_each_ones_end():
    model = random_model("copy", "normal")
    x = model.simulate(6, (2,), seed=1).x
    both = model.forecast(x, 4, lengths=[6, 3])
    assert_close(both.mean[1], model.forecast(x[1, :3], 4).mean, rtol=1e-12, atol=0)


@pytest.mark.parametrize("emission", ["normal", "gated", "gated_symbols", "poisson"])
def test_forecast_density_mean_and_interval_agree_with_draws(emission):
    model = random_model("copy", emission, seed=2)
    x = model.simulate(8, seed=0).x
    forecast = model.forecast(x, 3)
    torch.manual_seed(0)
    draws = forecast.observation.sample((40_000,))
    error = (draws.var(0) / 40_000).sqrt()
    assert bool(((draws.mean(0) - forecast.mean).abs() < 5 * error + 1e-12).all())
    low, high = forecast.interval(0.8)
    inside = ((draws >= low) & (draws <= high)).double().mean(0)
    assert bool((inside > 0.8 - 0.02).all())
    if emission == "gated_symbols":
        symbols = torch.arange(3.0, dtype=torch.float64).reshape(3, 1, 1).expand(3, 3, 1)
        total = forecast.observation.log_prob(symbols).exp().sum(0)
        assert_close(total, torch.ones(3, dtype=torch.float64), rtol=1e-12, atol=0)


def test_log1mexp_keeps_its_digits():
    x = torch.tensor([-1e-20, -1e-10, -1e-3, -0.5, -1.0, -50.0, -1000.0], dtype=torch.float64, requires_grad=True)
    exact = torch.tensor([-20 * math.log(10), -10 * math.log(10) - 5e-11], dtype=torch.float64)  # log x - x / 2 near 0
    assert_close(log1mexp(x)[:2], exact, rtol=1e-14, atol=0)
    assert_close(log1mexp(x)[2:5], torch.log(-torch.expm1(x[2:5])), rtol=1e-12, atol=0)
    (gradient,) = torch.autograd.grad(log1mexp(x).sum(), x)
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Copy(0), "n_states: got 0, expected an integer of at least 1"),
        (lambda: Markov(0), "n_states: got 0, expected an integer of at least 1"),
        (lambda: Copy(2, redraw_prior=(0, 1)), "redraw_prior: .*positive"),
        (lambda: Copy(2, state_prior=[1.0, 1.0, 1.0]), r"state_prior: got shape \(3,\)"),
        (lambda: Copy(2, inputs=-1), "inputs: got -1"),
        (lambda: Markov(2, sticky=-1.0), "sticky: got -1.0"),
    ],
)
def test_dynamics_refuse_what_they_cannot_be(build, said):
    with pytest.raises(ValueError, match=said):
        build()


def test_drives_that_do_not_fit_are_refused():
    x = torch.zeros(4)
    copy, markov = random_model("copy", "normal"), random_model("markov", "normal")
    moved = random_model("inputs", "normal")
    x = torch.zeros(4, 2)
    for model, keywords, said in [
        (copy, {"dt": [1.0, 2.0]}, r"dt: got shape \(2,\), expected \(4,\)"),
        (copy, {"dt": [1.0, -2.0, 1.0, 1.0]}, "dt: got gaps that are negative"),
        (copy, {"inputs": torch.zeros(4, 1)}, "inputs: was given, but no part of the model reads any"),
        (moved, {}, "inputs: missing"),
        (moved, {"inputs": torch.full((4, 2), torch.nan)}, "inputs: got NaN"),
        (markov, {"dt": [1.0] * 4}, "dt: Markov dynamics do not use gaps"),
    ]:
        with pytest.raises(ValueError, match=said):
            model.log_evidence(x, **keywords)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Markov, "n_states"),
        (SemiMarkov, "n_states"),
        (ContinuousMarkov, "n_states"),
        (StickyHDP, "max_states"),
        (lambda n: DeviationAR(n, 1), "n_states"),
        (lambda n: Copy(n**2), "n_states"),
    ],
)
def test_more_states_than_memory_holds_are_refused_by_name(make, name):
    """Before any table is made; some systems give memory that they do not have."""
    with pytest.raises(ValueError, match=f"{name}: got 10+, but a table of .* GiB, .* use fewer states"):
        make(10**9)
