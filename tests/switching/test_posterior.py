"""What a fit knows of the parameters: means, draws and intervals agree, and predictions average over them."""

import math
from dataclasses import replace

import pytest
import samplehold as sh
import torch
from oracles.models import CONJUGATE, drive, random_model
from samplehold.switching.fitting import Units
from samplehold.switching.fitting.alignment import match_states
from samplehold.switching.fitting.chain_graph import blocks_of, renumbered
from samplehold.switching.fitting.posterior import DrawnPosterior, VariationalPosterior
from samplehold.switching.parameters import reordered, with_prefix
from torch import Tensor
from torch.testing import assert_close


def posterior_of(dynamics: str, emission: str, worth: float = 40.0) -> tuple[sh.SwitchingSSM, VariationalPosterior]:
    """A posterior that nobody fitted: the prior, made `worth` times as sure."""
    model = random_model(dynamics, emission, seed=3)
    one, blocks = torch.ones(model.emission.n_features, dtype=torch.float64), {}
    known = blocks_of(model.dynamics, model.emission)
    for name, (prefix, block) in known.items():
        blocks[name] = worth * block.natural(with_prefix(model.prior, prefix)).to(one)
    return model, VariationalPosterior.of_chain(blocks, known, Units(model.emission, one - 1, one), model=model)


def fitted(dynamics: str = "copy", emission: str = "normal", **keywords) -> tuple[Tensor, sh.Fit]:
    model = random_model(dynamics, emission, seed=2)
    x = model.simulate(60, (2,), seed=0).x
    return x, model.fit(x, method="vmp", restarts=2, progress=False, **keywords)


@pytest.mark.parametrize(("dynamics", "emission"), CONJUGATE)
def test_draws_have_the_means_and_are_parameters_of_the_program(dynamics, emission):
    model, posterior = posterior_of(dynamics, emission)
    draws, mean = posterior.sample(4000, seed=1), posterior.mean
    assert set(draws) == set(model.values) == set(mean)
    assert_close(model.with_values(mean).values, mean)
    for name, value in mean.items():
        error = draws[name].std(0) / 4000**0.5
        assert bool(((draws[name].mean(0) - value).abs() < 5 * error + 1e-12).all()), name
        assert draws[name].shape == (4000, *model.values[name].shape)
    assert bool(torch.isfinite(model.log_prior(draws)).all())


def test_the_same_seed_gives_the_same_draws_and_global_state_stays():
    _, posterior = posterior_of("copy", "full")
    before = torch.random.get_rng_state()
    assert_close(posterior.sample(3, seed=5), posterior.sample(3, seed=5), rtol=0, atol=0)
    assert not torch.equal(posterior.sample(3, seed=5)["loc"], posterior.sample(3, seed=6)["loc"])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_intervals_are_the_quantiles_of_the_family():
    _, posterior = posterior_of("copy", "bernoulli", worth=5.0)
    interval = posterior.interval(0.8)
    a, b = posterior.blocks["redraw"].tolist()
    for end, probability in ((interval.lower, 0.1), (interval.upper, 0.9)):
        value = float(end["redraw_prob"])
        below = torch.distributions.Beta(a, b).sample((200_000,)).lt(value).double().mean()
        assert abs(float(below) - probability) < 0.02
    with pytest.raises(ValueError, match="level: got 90"):
        posterior.interval(90)


@pytest.mark.parametrize(("dynamics", "emission"), CONJUGATE)
def test_a_posterior_that_is_sure_predicts_as_the_model_with_its_values_does(dynamics, emission):
    model, posterior = posterior_of(dynamics, emission, worth=1e9)
    sure = model.with_values(posterior.mean)
    keywords = drive(dynamics, (2,), 14)
    x = sure.simulate(10, (2,), seed=0, **{n: k[:, :10] for n, k in keywords.items()}).x
    x[0, 4] = torch.nan
    seen = {n: k[:, :10] for n, k in keywords.items()}
    assert_close(posterior.smooth(x, **seen).state, sure.smooth(x, **seen).state, rtol=0, atol=1e-3)
    increment = sure.filter(x, **seen).log_increment
    assert_close(posterior.log_likelihood(x, draws=20, **seen), increment, rtol=0, atol=1e-2)
    ours, theirs = posterior.forecast(x, 4, draws=20, **keywords), sure.forecast(x, 4, **keywords)
    assert_close(ours.state, theirs.state, rtol=0, atol=1e-3)
    assert_close(ours.redraw, theirs.redraw, rtol=0, atol=1e-3)
    assert_close(ours.mean, theirs.mean, rtol=1e-3, atol=1e-2)
    assert_close(ours.variance, theirs.variance, rtol=1e-2, atol=1e-2)
    assert_close(
        ours.observation.log_prob(x[:, :4]), theirs.observation.log_prob(x[:, :4]), rtol=0, atol=2e-2, equal_nan=True
    )


@pytest.mark.parametrize("emission", ["normal", "gated"])
def test_forecasts_average_the_densities_of_the_draws(emission):
    model, posterior = posterior_of("copy", emission, worth=3.0)
    x = random_model("copy", emission, seed=3).simulate(8, (2,), seed=0).x
    forecast, draws = posterior.forecast(x, 3, draws=30, seed=4), posterior.sample(30, seed=4)
    each = [model.with_values({n: v[i] for n, v in draws.items()}).forecast(x, 3) for i in range(30)]
    at = x[:, :3]
    expected = torch.stack([one.observation.log_prob(at) for one in each]).logsumexp(0) - math.log(30)
    assert_close(forecast.observation.log_prob(at), expected, rtol=1e-10, atol=1e-10)
    mean = torch.stack([one.mean for one in each])
    assert_close(forecast.mean, mean.mean(0), rtol=1e-10, atol=1e-10)
    spread = torch.stack([one.variance for one in each]).mean(0) + mean.var(0, correction=0)
    assert_close(forecast.variance, spread, rtol=1e-10, atol=1e-11)
    lower, upper = forecast.interval(0.9, n=2000)
    assert bool((lower < upper).all())
    torch.manual_seed(0)
    sampled = forecast.observation.sample((4000,))
    error = spread.sqrt() / 4000**0.5
    assert bool(((sampled.mean(0) - forecast.mean).abs() < 6 * error).all())


def test_one_step_ahead_densities_chain_to_the_evidence_averaged_over_draws():
    fit = fitted()[1]
    new = random_model("copy", "normal", seed=2).simulate(20, (3,), seed=9).x
    lengths = torch.tensor([20, 11, 1])
    found = fit.posterior.log_likelihood(new, lengths=lengths, draws=50, seed=1)
    draws = fit.posterior.sample(50, seed=1)
    evidence = torch.stack(
        [
            fit.model.with_values({n: v[i] for n, v in draws.items()}).log_evidence(new, lengths=lengths)
            for i in range(50)
        ]
    )
    assert_close(found.sum(-1), evidence.logsumexp(0) - math.log(50), rtol=1e-10, atol=1e-10)
    assert bool((found[2, 1:] == 0).all())


def test_a_fit_by_em_has_no_posterior():
    x = random_model("copy", "normal", seed=2).simulate(40, seed=0).x
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal(2)).fit(x, progress=False, restarts=2)
    assert fit.posterior is None
    assert torch.equal(fit.active_states, ~fit.empty_states)


@pytest.mark.parametrize("dynamics", ["copy", "markov"])
def test_states_are_matched_by_the_steps_they_explain(dynamics):
    model = sh.SwitchingSSM(sh.Copy(3) if dynamics == "copy" else sh.Markov(3), sh.Normal(1))
    own = {"redraw_prob": 0.2, "state_probs": [0.2, 0.5, 0.3]}
    if dynamics == "markov":
        own = {
            "initial_probs": [0.2, 0.5, 0.3],
            "transition_probs": [[0.8, 0.1, 0.1], [0.3, 0.5, 0.2], [0.2, 0.2, 0.6]],
        }
    model = model.with_values(loc=[[0.0], [3.0], [9.0]], scale=[[1.0], [1.0], [1.0]], **own)
    series = model.read(model.simulate(60, (2,), seed=0).x)
    orders = torch.tensor([[0, 1, 2], [1, 2, 0], [2, 1, 0], [0, 2, 1]])
    reference = model.values_like(series.observations)
    draws = reordered(model.known, {n: v.expand(4, *v.shape) for n, v in reference.items()}, orders)
    evidence = model.problem(series).chain(draws).log_normalizer()
    assert_close(evidence, evidence[:1].expand_as(evidence), rtol=1e-10, atol=0)  # only the names have changed
    matched = match_states(model.problem(series), draws, reference)
    back = reordered(model.known, draws, matched)
    for name, value in back.items():
        assert_close(value, reference[name].expand_as(value), rtol=0, atol=0)


def test_posteriors_by_draws_average_over_them():
    model = random_model("copy", "normal", seed=2)
    x = model.simulate(12, (2,), seed=0).x
    draws = posterior_of("copy", "normal", worth=3.0)[1].sample(6, seed=0)
    posterior = DrawnPosterior({name: value.unflatten(0, (2, 3)) for name, value in draws.items()}, model=model)
    each = [model.with_values({n: v[i] for n, v in draws.items()}).smooth(x) for i in range(6)]
    smoothed = posterior.smooth(x)
    assert_close(smoothed.state, torch.stack([one.state for one in each]).mean(0), rtol=1e-10, atol=1e-12)
    assert_close(smoothed.redraw, torch.stack([one.redraw for one in each]).mean(0), rtol=1e-10, atol=1e-12)
    assert_close(posterior.mean["loc"], draws["loc"].mean(0), rtol=1e-12, atol=0)
    assert_close(posterior.sample(6)["loc"].sum(0), draws["loc"].sum(0), rtol=1e-10, atol=1e-10)
    assert posterior.sample(50)["loc"].shape == (50, 2, 2)


@pytest.mark.parametrize(("dynamics", "emission"), [kind for kind in CONJUGATE if kind[0] != "driven start"])
def test_renumbering_states_changes_names_alone(dynamics, emission):
    model, posterior = posterior_of(dynamics, emission)
    order, known = torch.tensor([1, 0]), blocks_of(model.dynamics, model.emission)
    other = replace(posterior, blocks=renumbered(known, posterior.blocks, order))
    for name, value in reordered(model.known, posterior.mean, order).items():
        assert_close(other.mean[name], value, rtol=1e-12, atol=0)
    for name, (_, block) in known.items():
        before, after = (block.family.log_normalizer(q.blocks[name]).sum() for q in (posterior, other))
        assert_close(before, after, rtol=1e-12, atol=1e-12)
