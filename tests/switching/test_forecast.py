"""Forecasts in closed form: intervals are quantiles of the mixture over states, symbols have probabilities."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from oracles.models import KINDS, drive, random_model
from oracles.operators import unchecked
from oracles.switching_linear import values_of
from samplehold.switching.slds.layout import LinearRegimes
from torch.testing import assert_close


def forecast_of(dynamics, emission):
    model = random_model(dynamics, emission, seed=1)
    x = model.simulate(10, seed=0, **drive(dynamics, (), 10)).x
    return model.forecast(x, 3, **drive(dynamics, (), 13))


@pytest.mark.few(6)
@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_the_ends_of_an_interval_have_the_tails_that_they_say(dynamics, emission):
    forecast = forecast_of(dynamics, emission)
    mixture, level = forecast.observation, 0.8
    for end, p in zip(forecast.interval(level), (0.1, 0.9), strict=True):
        assert end.shape == forecast.mean.shape
        if mixture.emission.support.is_discrete:  # the least whole number that is not exceeded with probability p
            assert bool((mixture.cdf(end) >= p).all())
            assert bool((mixture.cdf(end - 1) < p).all())
            assert torch.equal(end, end.round())
        else:
            assert_close(mixture.cdf(end), torch.full_like(end, p), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_distribution_functions_are_those_of_draws(dynamics, emission):
    mixture = forecast_of(dynamics, emission).observation
    with torch.random.fork_rng():
        torch.manual_seed(0)
        draws = mixture.sample((4000,))
    for at in (-1.0, 0.0, 0.5, 1.0, 3.0):
        found = mixture.cdf(torch.full_like(mixture.mean, at))
        counted = (draws <= at).to(found).mean(0)
        assert_close(found, counted, rtol=0, atol=5 * 0.5 / 4000**0.5)


def test_symbols_have_probabilities_and_other_observations_none():
    forecast = forecast_of("markov", "categorical")
    assert_close(forecast.probs.sum(-1), torch.ones(3, dtype=torch.float64), rtol=1e-12, atol=0)
    logs = torch.stack(
        [forecast.observation.log_prob(torch.tensor([float(c)])) for c in range(forecast.probs.shape[-1])]
    )
    assert_close(forecast.probs, logs.exp().mT, rtol=1e-10, atol=0)
    with pytest.raises(TypeError, match="no categories"):
        _ = forecast_of("markov", "normal").probs


def test_an_interval_draws_nothing():
    forecast, before = forecast_of("copy", "normal"), torch.random.get_rng_state()
    one, other = forecast.interval(0.9, seed=1), forecast.interval(0.9, seed=2)
    assert torch.equal(one.lower, other.lower)
    assert torch.equal(torch.random.get_rng_state(), before)
    with pytest.raises(ValueError, match="level"):
        forecast.interval(1.0)
    for p in (0.0, 1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"^p: got .*, expected a probability between 0 and 1"):
            forecast.observation.quantile(p)


def test_a_stream_continues_from_a_state() -> None:
    for model in (random_model("copy", "normal", seed=1), random_model("markov", "normal", seed=1)):
        message = r"^state: got NoneType, expected the state from start\(\) or update\(\)"
        with unchecked(), pytest.raises(TypeError, match=message):
            model.update(None, [1.0] * model.n_features)


def test_the_quantile_of_one_state_is_that_of_its_normal():
    model = sh.SwitchingSSM(sh.Markov(1), sh.Normal(1))
    model = model.with_values(initial_probs=[1.0], transition_probs=[[1.0]], loc=[[3.0]], scale=[[2.0]])
    found = model.forecast([3.0, 2.0], 1).interval(0.95)
    expected = torch.distributions.Normal(torch.tensor(3.0).double(), 2.0).icdf(
        torch.tensor([0.025, 0.975], dtype=torch.float64)
    )
    assert_close(torch.cat([found.lower, found.upper]).flatten(), expected, rtol=1e-12, atol=0)


@pytest.mark.slow
def test_what_is_printed_is_short():
    x = torch.randn(60, 1, generator=torch.Generator().manual_seed(0))
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(x, "vmp", restarts=1, progress=False)
    report = sh.compare(fit.model, sh.GRU(1, 4), x)
    for shown in (fit, fit.model, fit.posterior, fit.forecast(x, 5), report):
        assert len(repr(shown).splitlines()) <= 10
        assert type(shown).__name__ in repr(shown)
    assert "loc: [[" in repr(fit.model)
    assert repr(sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))) == "SwitchingSSM(Copy(2 states), Normal(n_features=1))"


def test_a_fit_answers_for_its_model():
    x = torch.randn(50, 1, generator=torch.Generator().manual_seed(0))
    fit = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).fit(x, restarts=2, progress=False)
    assert torch.equal(fit.smooth(x).state, fit.model.smooth(x).state)
    assert torch.equal(fit.filter(x).state, fit.model.filter(x).state)
    assert torch.equal(fit.viterbi(x).path, fit.model.viterbi(x).path)
    assert torch.equal(fit.log_evidence(x), fit.model.log_evidence(x))
    assert torch.equal(fit.forecast(x, 2).mean, fit.model.forecast(x, 2).mean)
    reached = fit.restarts[fit.restarts.agrees & fit.restarts.independent]
    assert fit.agreeing == reached.start.nunique()


def test_sequences_of_equal_length_may_come_as_a_list_where_the_future_is_driven():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal())
    model = model.with_values(redraw_prob=0.2, state_probs=[0.5, 0.5], loc=[[0.0], [3.0]], scale=[[1.0], [1.0]])
    x, dt = torch.tensor([[0.5, 2.0], [3.0, 1.0]]).double(), torch.tensor([[1.0, 2.0, 0.5], [1.0, 1.0, 3.0]]).double()
    expected = model.forecast(x.unsqueeze(-1), 1, dt=dt).mean
    assert_close(model.forecast(list(x), 1, dt=dt).mean, expected)
    with pytest.raises(ValueError, match=r"^x: got sequences of 1 to 2 steps; forecasts with inputs or dt"):
        model.forecast([x[0], x[1, :1]], 1, dt=dt)


def test_a_number_in_the_place_of_a_series_is_the_number_of_steps():
    """Of fits of all kinds of models, which are the same record."""
    x = torch.randn(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    linear = sh.LinearSSM(1, 1).fit(x, restarts=1, max_steps=1, progress=False)
    switching = sh.SwitchingLinearSSM(2, 1, shared="chain per regime").with_values(values_of(LinearRegimes(2, 1, 1)))
    for model in (linear.model, switching, random_model("copy", "poisson")):
        counts = x.abs().round().unsqueeze(-1).expand(-1, model.n_features)
        fit, expected = replace(linear, model=model, series=model.read(counts)), model.forecast(counts, 4).mean
        for four in (4, np.int64(4)):
            assert_close(fit.forecast(four).mean, expected, rtol=0, atol=0)
        with pytest.raises(ValueError, match=r"^x: got 4, a single number, and horizon=2"):
            fit.forecast(4, 2)
    assert_close(linear.forecast(horizon=4).mean, linear.model.forecast(x, 4).mean, rtol=0, atol=0)
    assert linear.forecast().mean.shape == (1, 1)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_fitted_series_needs_only_the_inputs_and_gaps_of_the_steps_to_come(batch):
    generator, model = torch.Generator().manual_seed(0), sh.SwitchingSSM(sh.Copy(2, inputs=2), sh.Normal(1))
    drive = torch.randn(*batch, 25, 2, generator=generator, dtype=torch.float64)
    x, shape = torch.randn(*batch, 20, 1, generator=generator, dtype=torch.float64), (*batch, 20, 2)
    fit = model.fit(x, inputs=drive[..., :20, :], restarts=1, max_steps=3, progress=False)
    expected = fit.model.forecast(x, 5, inputs=drive).mean
    assert_close(fit.forecast(5, inputs=drive[..., 20:, :]).mean, expected, rtol=0, atol=0)
    read = model.read(x, inputs=drive[..., :20, :])
    assert_close(fit.model.forecast(read, 5, inputs=drive[..., 20:, :]).mean, expected, rtol=0, atol=0)
    if batch:  # the same for all sequences
        same = torch.cat([drive[:, :20], drive[:1, 20:].expand(3, -1, -1)], 1)
        expected = fit.model.forecast(x, 5, inputs=same).mean
        assert_close(fit.forecast(5, inputs=drive[0, 20:]).mean, expected, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"^inputs: got shape .* those of the 5 future steps"):
        fit.forecast(5, inputs=drive[..., 21:, :])
    with pytest.raises(ValueError, match=r"^dt: was given for future steps, but the series has none"):
        fit.forecast(5, dt=torch.ones(5))
    assert fit.series.design.shape == shape
    if not batch:
        named = model.read(x, inputs=pd.DataFrame(drive[:20].numpy(), columns=["wind", "rain"]))
        coming = pd.DataFrame(drive[20:].numpy(), columns=["wind", "rain"])
        swapped = fit.model.forecast(named, 5, inputs=coming[["rain", "wind"]]).mean
        assert_close(swapped, fit.model.forecast(x, 5, inputs=drive).mean, rtol=0, atol=0)
        with pytest.raises(ValueError, match=r"^inputs: 'rain' is missing; got 'wind'"):
            fit.model.forecast(named, 5, inputs=coming[["wind"]])
        gaps = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(
            x, dt=torch.ones(20), restarts=1, max_steps=3, progress=False
        )
        far = gaps.model.forecast(x, 2, dt=torch.tensor([1.0] * 20 + [3.0, 7.0])).mean
        assert_close(gaps.forecast(2, dt=[3.0, 7.0]).mean, far, rtol=0, atol=0)
