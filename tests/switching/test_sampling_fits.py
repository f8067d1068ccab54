"""SVI and NUTS on the collapsed density, beside message passing, on data that identify the parameters well."""

import re

import arviz as az
import matplotlib.pyplot as plt
import pytest
import samplehold as sh
import torch
from examples import slow
from oracles.effort import effort
from oracles.models import ALTERNATE, drive, random_model
from samplehold.switching.fitting import sampling
from torch.testing import assert_close

PARAMETERS = ("redraw_prob", "loc", "precision")


@pytest.fixture(scope="module")
def fits():
    generator = torch.Generator().manual_seed(0)
    jumps = (torch.rand(100, generator=generator) < 0.1).cumsum(-1) % 2
    x = (4.0 * jumps + torch.randn(100, generator=generator, dtype=torch.float64))[:, None]
    x[40:43] = torch.nan
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
    before = torch.random.get_rng_state()
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(sampling, "CHAINS", 2)
    found = {
        method: model.fit(x, method=method, restarts=1, progress=False, **effort(method, steps))
        for method, steps in (("vmp", 100), ("svi", 120), ("nuts", 150))
    }
    monkeypatch.undo()
    assert torch.equal(torch.random.get_rng_state(), before)
    return x, found


@pytest.mark.slow
def test_the_three_give_the_same_record(fits):
    x, found = fits
    shapes = {name: value.shape for name, value in found["vmp"].model.values.items()}
    for method, fit in found.items():
        assert fit.method == method
        assert {name: value.shape for name, value in fit.posterior.mean.items()} == shapes
        assert {name: value.shape[1:] for name, value in fit.posterior.sample(5).items()} == shapes
        assert bool(fit.active_states.all())
        assert fit.steps == len(fit.objective)
        assert float(fit.posterior.smooth(x).state.sum(-1).sub(1).abs().max()) < 1e-10
        assert bool(torch.isfinite(fit.posterior.forecast(x, 3, draws=20).variance).all())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vmp", "svi", "nuts"])
def test_each_has_its_draws_and_its_trace_in_arviz_and_a_figure(fits, method):
    x, fit = fits[0], fits[1][method]
    data = fit.to_arviz(x, draws=50, seed=1)
    assert {"posterior", "posterior_predictive", "log_likelihood", "smoothed", "sample_stats"} <= set(data.groups())
    drawn, (chains, each) = fit.posterior.refined.chains(50, seed=1)
    assert (chains, each) == ((2, 25) if method == "nuts" else (1, 50))
    assert_close(torch.from_numpy(data["posterior"]["redraw_prob"].values).flatten(), drawn["redraw_prob"])
    trace = torch.from_numpy(data["sample_stats"]["objective"].values)
    assert_close(trace.to(fit.objective), fit.objective, rtol=0, atol=0)
    assert data["log_likelihood"]["x"].shape == (chains, each, 97)  # three steps are missing
    figure = fit.plot(x)
    assert len(figure.axes) >= 3
    plt.close(figure)


@pytest.mark.slow
def test_every_draw_of_nuts_is_exported(fits):
    x, fit = fits[0], fits[1]["nuts"]
    data, (n_chains, n_draws) = fit.to_arviz(x), fit.posterior.draws["redraw_prob"].shape
    assert (n_chains, n_draws) == (2, 150)
    assert dict(data["posterior"].sizes)["draw"] == n_draws
    assert data["log_likelihood"]["x"].shape[:2] == (n_chains, n_draws)
    assert data["sample_stats"]["diverging"].shape == (n_chains, n_draws)
    assert az.loo(data).n_samples == n_chains * n_draws


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "nuts", "max_steps": 10}, "uses num_samples, the draws of each chain, and warmup_steps"),
        ({"method": "svi", "num_samples": 10}, 'num_samples: got 10, but method="svi" is no sampler'),
        ({"method": "em", "warmup_steps": 10}, 'warmup_steps: got 10, but method="em" is no sampler'),
        ({"method": "nuts", "num_samples": 0}, "num_samples: got 0"),
        ({"method": "nuts", "warmup_steps": 2.5}, "warmup_steps"),
    ],
)
def test_draws_are_counted_in_their_own_words(options, said):
    for model in (sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)), sh.LinearSSM(sh.LocalLevel())):
        with pytest.raises((ValueError, TypeError), match=re.escape(said)):
            model.fit(torch.randn(20, 1), progress=False, **options)


@pytest.mark.slow
def test_a_chain_has_the_draws_and_the_warmup_that_it_is_given(monkeypatch):
    monkeypatch.setattr(sampling, "CHAINS", 1)
    asked = []

    class Watched(sampling.Sampler):
        def __init__(self, potential, start, n_warmup):
            asked.append([n_warmup, 0])
            super().__init__(potential, start, n_warmup)

        def draw(self):
            asked[-1][1] += 1
            return super().draw()

    monkeypatch.setattr(sampling, "Sampler", Watched)
    model, x = sh.SwitchingSSM(sh.Copy(1), sh.Normal(1)), torch.tensor([0.1, -0.3, 0.5, 0.2])
    fit = model.fit(x, "nuts", restarts=1, num_samples=4, warmup_steps=3, progress=False)
    model.fit(x, "nuts", restarts=1, num_samples=4, progress=False)
    assert asked == [[3, 3 + 4], [2, 2 + 4]]
    assert fit.posterior.draws["loc"].shape[:2] == (1, 4)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vmp", "svi"])
def test_posterior_means_are_those_of_nuts_up_to_its_error(fits, method):
    _, found = fits
    draws, mean = found["nuts"].posterior.draws, found[method].posterior.mean
    for name in PARAMETERS:
        spread = draws[name].std((0, 1))
        # the mean of 300 draws is within a third of a standard deviation; factorising moves a mean by as much at most
        assert bool(((mean[name] - draws[name].mean((0, 1))).abs() < 0.6 * spread).all()), name


@pytest.mark.slow
def test_intervals_of_message_passing_are_narrower_than_those_of_nuts_and_by_how_much(fits):
    _, found = fits
    draws = {method: found[method].posterior.sample(4000, seed=0) for method in ("vmp", "nuts")}
    ratio = {name: draws["vmp"][name].std(0) / draws["nuts"][name].std(0) for name in PARAMETERS}
    assert 0.4 < float(ratio["redraw_prob"]) < 0.9  # gates and their rate are coupled, which q does not know
    assert bool(((ratio["loc"] > 0.6) & (ratio["loc"] < 1.25)).all())
    assert bool(((ratio["precision"] > 0.6) & (ratio["precision"] < 1.3)).all())


@pytest.mark.slow
def test_the_objective_of_nuts_is_the_log_joint_of_its_draws(fits):
    x, found = fits
    fit = found["nuts"]
    last = {name: value[-1, -1] for name, value in fit.posterior.draws.items()}
    model = fit.model.with_values(last)
    joint = model.log_evidence(x) + model.log_prior(last)
    assert abs(float(fit.objective[-1] - joint)) < 1e-8
    assert fit.objective.shape == (300,)


@pytest.mark.slow
def test_the_bound_of_svi_lies_below_that_of_a_normal_guide_at_its_best_and_ends_near_message_passing(fits):
    _, found = fits
    assert float(found["svi"].objective[-50:].mean()) > float(found["svi"].objective[:10].mean())
    assert abs(float(found["svi"].objective[-50:].mean() - found["vmp"].objective[-1])) < 5


@pytest.mark.few(2)
@pytest.mark.parametrize(("dynamics", "emission"), ALTERNATE)
@pytest.mark.parametrize(("method", "steps"), [("svi", 5), slow("nuts", 2)])
def test_every_kind_of_model_can_be_sampled(dynamics, emission, method, steps, monkeypatch):
    monkeypatch.setattr(sampling, "CHAINS", 1)
    model, keywords = random_model(dynamics, emission, seed=1), drive(dynamics, (), 30)
    x = model.simulate(30, seed=0, **keywords).x
    fit = model.fit(x, method, restarts=1, progress=False, **effort(method, steps), **keywords)
    assert fit.method == method
    for name, parameter in model.known.items():
        assert bool(parameter.support.check(fit.posterior.mean[name]).all()), name
    log_joint = fit.model.log_evidence(x, **keywords) + fit.model.log_prior(fit.model.values)
    assert bool(log_joint.isfinite())


@pytest.mark.slow
def test_draws_are_the_same_in_any_unit():
    x = torch.tensor([0.3, -0.2, 0.1, 4.2, 3.9, 4.4, 0.0, 0.2], dtype=torch.float64)[:, None]
    model = sh.SwitchingSSM(sh.Markov(2), sh.MultivariateNormal(1))
    for method in ("svi", "nuts"):
        one, other = (model.fit(y, method, restarts=1, progress=False, **effort(method, 3)) for y in (x, 1e6 * x + 1e6))
        assert_close((other.posterior.draws["loc"] - 1e6) / 1e6, one.posterior.draws["loc"], rtol=1e-6, atol=1e-6)
        assert_close(other.posterior.draws["precision"] * 1e12, one.posterior.draws["precision"], rtol=1e-5, atol=1e-6)
    last = {name: value[-1, -1] for name, value in other.posterior.draws.items()}
    fitted = other.model.with_values(last)
    joint = fitted.log_evidence(1e6 * x + 1e6) + fitted.log_prior(last)
    assert abs(float(other.objective[-1] - joint)) < 1e-6
