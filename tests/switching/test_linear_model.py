"""Linear models: everything exact given the values, and what all models offer."""

import itertools

import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from matplotlib.figure import Figure
from oracles import naive_linear_gaussian as naive
from oracles.linear_models import FLOAT, draw, model_of
from oracles.streams import streamed
from samplehold import Autoregression, LinearGaussian, LinearSSM, LocalLevel, LocalLinearTrend, Seasonal, read_panel
from samplehold.switching.linear.bases import turned
from torch.testing import assert_close


def structure_of() -> LinearSSM:
    """A sum, some of whose states follow from others."""
    return LinearSSM(LocalLinearTrend() + Seasonal(3) + Autoregression(2)).with_values(
        {
            "sigma2.irregular": 0.5,
            "sigma2.level": 0.3,
            "sigma2.trend": 0.1,
            "sigma2.seasonal": 0.2,
            "sigma2.ar": 0.4,
            "ar.L1": 0.5,
            "ar.L2": -0.3,
        }
    )


def with_holes(x: torch.Tensor) -> torch.Tensor:
    """A single feature and a whole step put out."""
    x = x.clone()
    x[..., 1, 0] = torch.nan
    x[..., 2, :] = torch.nan
    return x


def dense(model: LinearSSM, x: torch.Tensor) -> naive.Posterior:
    values, n = model.values, len(x)
    noise = values["observation_noise"]
    return naive.posterior(
        naive.Sequence(
            x,
            *(values[name].expand(n - 1, *values[name].shape) for name in ("transition", "transition_offset")),
            values["state_noise"].expand(n - 1, -1, -1),
            *(values[name].expand(n, *values[name].shape) for name in ("emission", "emission_offset")),
            (noise if noise.ndim == 2 else torch.diag(noise)).expand(n, -1, -1),
            values["initial_mean"],
            values["initial_covariance"],
            torch.zeros(model.n_latent, 0, dtype=FLOAT),
        ),
        n,
    )


# ---- exact -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_evidence_and_smoothing_are_those_of_one_dense_normal(full: bool) -> None:
    model = model_of(full=full)
    x = with_holes(model.simulate(6, seed=0).x)
    expected, smoothed = dense(model, x), model.smooth(x)
    assert_close(model.log_evidence(x), expected.log_normalizer, rtol=1e-10, atol=1e-10)
    assert_close(smoothed.mean, expected.mean, rtol=1e-10, atol=1e-10)
    steps = torch.arange(6)
    assert_close(smoothed.covariance, expected.covariance[steps, :, steps], rtol=1e-10, atol=1e-10)
    assert_close(model.filter(x).mean[-1], expected.mean[-1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_the_program_and_the_chain_are_one_density(full: bool) -> None:
    """p(x, s) = p(x) p(s | x) at any path."""
    model = model_of(full=full)
    x = with_holes(model.simulate(5, seed=1).x)
    trace = pyro.poutine.trace(model).get_trace(x)
    path = torch.stack([trace.nodes[f"s_{t}"]["value"] for t in range(1, 6)])
    posterior = dense(model, x)
    given = torch.distributions.MultivariateNormal(
        posterior.mean.flatten(), posterior.covariance.reshape(10, 10).double()
    )
    expected = model.log_evidence(x) + given.log_prob(path.flatten())
    assert_close(trace.log_prob_sum(), expected, rtol=1e-9, atol=1e-9)


def test_the_program_of_a_structure_has_its_evidence() -> None:
    """log p(x, s) - log p(s | x) is the same at all paths that can be; one noise a step, so that it is known here."""
    level = LinearSSM(LocalLevel()).with_values({"sigma2.irregular": 0.5, "sigma2.level": 0.3})
    x = torch.tensor([[0.3], [1.0], [torch.nan], [0.2]], dtype=FLOAT)
    smoothed = level.smooth(x)
    precision = torch.zeros(4, 4, dtype=FLOAT)
    for t in range(4):
        precision[t, t] += 0.0 if x[t].isnan() else 1 / 0.5
    for t in range(3):
        precision[t : t + 2, t : t + 2] += torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=FLOAT) / 0.3
    given = torch.distributions.MultivariateNormal(smoothed.mean[:, 0], precision_matrix=precision)
    for seed in range(3):
        path = draw(seed, 4, 1)
        conditioned = pyro.condition(level, {f"s_{t + 1}": path[t] for t in range(4)})
        joint = pyro.poutine.trace(conditioned).get_trace(x).log_prob_sum()
        assert_close(joint - given.log_prob(path[:, 0]), level.log_evidence(x), rtol=1e-10, atol=1e-10)


def test_a_structure_cannot_leave_what_has_no_noise() -> None:
    model = structure_of()
    drawn = model.simulate(6, seed=0)
    sites = {f"s_{t + 1}": drawn.latent[t] for t in range(6)}
    there = pyro.poutine.trace(pyro.condition(model, sites)).get_trace(drawn.x).log_prob_sum()
    sites["s_4"] = sites["s_4"] + drawn.latent.new_tensor([0.0, 0.0, 0.0, 1.0, 0.0, 0.0])  # a lag of the season
    beside = pyro.poutine.trace(pyro.condition(model, sites)).get_trace(drawn.x).log_prob_sum()
    assert torch.isfinite(there)
    assert beside == -torch.inf


@pytest.mark.parametrize("make", [model_of, structure_of])
def test_streams_equal_the_filter(make) -> None:
    model = make()
    x = model.simulate(9, (2,), seed=3).x
    x[0, 4] = torch.nan
    expected, (state, outputs) = model.filter(x), streamed(model, x)
    assert_close(state.log_evidence, expected.log_normalizer, rtol=1e-9, atol=1e-9)
    assert_close(state.mean, expected.mean[:, -1], rtol=1e-8, atol=1e-8)
    assert_close(state.covariance, expected.covariance[:, -1], rtol=1e-8, atol=1e-8)
    closed = [t for t, output in enumerate(outputs) if not output.mean.isnan().any()]
    assert closed == list(range(sum(model.dynamics.diffuse) - 1 if any(model.dynamics.diffuse) else 0, 9))
    assert_close(outputs[-2].mean, expected.mean[:, -2], rtol=1e-8, atol=1e-8)


def test_draws_of_the_posterior_have_its_moments() -> None:
    model = structure_of()
    x = model.simulate(7, seed=2).x
    drawn, smoothed = model.sample_posterior(x, 4000, seed=0).latent, model.smooth(x)
    spread = smoothed.covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    assert bool(((drawn.mean(0) - smoothed.mean).abs() < 6 * spread / 4000**0.5).all())
    assert bool(((drawn.std(0) / spread - 1).abs() < 0.1).all())


def test_forecasts_are_the_smoothed_steps_of_a_series_that_goes_on_unseen() -> None:
    model = model_of()
    x = model.simulate(8, seed=4).x
    ahead = model.forecast(x, 3)
    longer = model.smooth(torch.cat([x, torch.full((3, 2), torch.nan, dtype=FLOAT)]))
    assert_close(ahead.state_mean, longer.mean[-3:], rtol=1e-10, atol=1e-10)
    assert_close(ahead.state_covariance, longer.covariance[-3:], rtol=1e-10, atol=1e-10)
    emission, noise = model.values["emission"], model.values["observation_noise"]
    assert_close(ahead.covariance, emission @ ahead.state_covariance @ emission.mT + torch.diag(noise))
    lower, upper = ahead.interval(0.9)
    assert_close((upper - lower) / 2, 1.6448536269514722 * ahead.variance.sqrt())


def test_another_basis_is_the_same_model() -> None:
    model = model_of()
    x = with_holes(model.simulate(6, seed=5).x)
    other = model.with_values(turned(model.values, draw(8, 2, 2), draw(9, 2)))
    assert_close(other.log_evidence(x), model.log_evidence(x), rtol=1e-9, atol=1e-9)
    assert model.n_parameters == 4 + 2 + 3 + 2 + 3 + 4 + 2 + 2 - 6
    assert model.n_free(("emission", "emission_offset", "observation_noise")) == 4 + 2 + 3 + 2 + 3


def test_simulated_series_have_the_moments_of_the_chain() -> None:
    model = structure_of()
    drawn = model.simulate(3, (3000,), seed=0)
    again = model.simulate(3, (3000,), seed=0)
    assert_close(drawn.x, again.x, rtol=0, atol=0)
    moves = model.dynamics.moves(model.values)
    seen = moves.transition.new_tensor(model.dynamics.seen)
    spread = moves.initial_covariance
    for t in range(3):
        variance = seen @ spread @ seen + 0.5
        assert abs(float(drawn.x[:, t].var() / variance) - 1) < 6 * (2 / 3000) ** 0.5
        spread = moves.transition @ spread @ moves.transition.mT + moves.state_noise


# ---- series of all kinds ---------------------------------------------------------------------------------------------


def test_series_come_in_any_form() -> None:
    model = model_of(n_features=1)
    x = model.simulate(6, (2,), seed=6).x
    expected = model.log_evidence(x)
    assert_close(model.log_evidence(x.numpy()), expected)
    assert_close(model.log_evidence([x[0], x[1]]), expected)
    ragged = model.log_evidence([x[0], x[1, :4]])
    assert_close(ragged, torch.stack([expected[0], model.log_evidence(x[1, :4])]))
    assert_close(model.log_evidence(x, lengths=[6, 4]), ragged)
    frame = pd.DataFrame(
        [(k, t, float(x[k, t])) for k, t in itertools.product(range(2), range(6))], columns=["who", "t", "x"]
    )
    panel = read_panel(frame, "who", "t")
    assert_close(model.log_evidence(panel), expected)
    assert model.states(panel).index.equals(frame.index)
    assert model.log_evidence(x.float()).dtype == torch.float32
    assert_close(model.log_evidence(x.float()), expected.float(), rtol=1e-4, atol=1e-4)


def test_states_are_a_table_of_latents() -> None:
    model = structure_of()
    index = pd.period_range("2020-01", periods=8, freq="M")
    x = pd.Series(model.simulate(8, seed=1).x[:, 0].numpy(), index=index)
    found, smoothed = model.states(x), model.smooth(x)
    assert found.index.equals(index)
    assert list(found.columns[:6]) == [f"latent_mean_{name}" for name in model.latents]
    assert np.allclose(found["latent_mean_trend"], smoothed.mean[:, 1])
    assert np.allclose(found["latent_sd_trend"], smoothed.covariance[:, 1, 1].sqrt())


@pytest.mark.parametrize("make", [lambda: model_of(full=True), structure_of])
def test_files_hold_the_whole_model(make, tmp_path) -> None:
    model = make().with_prior({"spread": 3.0 * np.ones(make().n_features)})
    model.save(tmp_path / "model")
    again = LinearSSM.load(tmp_path / "model")
    assert repr(again) == repr(model)
    assert all(torch.equal(again.values[name], value) for name, value in model.values.items())
    assert all(torch.equal(again.prior[name], value) for name, value in model.prior.items())


@pytest.mark.parametrize("make", [model_of, structure_of])
def test_figures_pages_and_arviz(make) -> None:
    model = make()
    x = model.simulate(12, (2,), seed=1).x
    x[0, 3] = torch.nan
    assert isinstance(model.plot(x, sequence=1), Figure)
    assert isinstance(model.plot_forecast(x, 3), Figure)
    assert len(model.plot(x).axes) == model.n_features + len(model.dynamics.shown)
    assert "<table" in model._repr_html_()
    assert "latent" in model.forecast(x, 2)._repr_html_()
    data = model.to_arviz(x, draws=4)
    assert_close(torch.tensor(data.smoothed["latent_mean"].to_numpy()), model.smooth(x).mean)
    assert list(data.smoothed["latent"].to_numpy()) == list(model.latents)
    assert data.replicated["x"].shape == (1, 4, 2, 12, model.n_features)
    assert bool(np.isfinite(data.replicated["x"]).all())


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def test_what_is_wrong_is_told_with_its_cure() -> None:
    model = model_of()
    values = model.values
    for change, said in (
        ({"state_noise": -torch.eye(2)}, "state_noise: got a matrix that is not symmetric positive definite"),
        ({"transition": torch.eye(3)}, r"transition: got shape \(3, 3\); LinearGaussian needs \[2, 2\]"),
        ({"observation_noise": torch.zeros(2)}, r"observation_noise: got 0\.0, expected a number greater than 0"),
        ({"emission": torch.full((2, 2), torch.nan)}, "emission: got values that are not finite"),
        ({"loc": 1.0}, r"unknown parameter\(s\) \['loc'\]"),
    ):
        with pytest.raises(ValueError, match=said):
            model.with_values({**values, **change})
    growing = model.with_values({**values, "transition": 1e30 * torch.eye(2)})
    with pytest.raises(ValueError, match="x: its log density overflows float64"):
        growing.log_evidence(torch.zeros(20, 2, dtype=FLOAT))
    with pytest.raises(TypeError, match=r"n_latent: got 1\.5"):
        LinearSSM(1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n_latent: got 0"):
        LinearGaussian(0)
    with pytest.raises(ValueError, match="observation_noise: got 'round'"):
        LinearSSM(1, 1, "round")
    with pytest.raises(ValueError, match="inputs: was given, but no part of the model reads any"):
        model.smooth(torch.zeros(4, 2), inputs=torch.zeros(4, 1))
    with pytest.raises(TypeError, match="restart"):
        model.fit(torch.zeros(4, 2), restart=3, progress=False)
    with pytest.raises(ValueError, match="lengths: the Series has its own; leave lengths out"):
        model.smooth(model.read(torch.zeros(2, 4, 2)), lengths=[4, 3])
    with pytest.raises(ValueError, match=r"x: got shape \(4, 3\)"):
        model.smooth(torch.zeros(4, 3))
    with pytest.raises(ValueError, match=r"x_t: got shape \(3,\)"):
        model.update(model.start(), [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="spread: got -1"):
        model.with_prior({"spread": [-1.0, 1.0]})
