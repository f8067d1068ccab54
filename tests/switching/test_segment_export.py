"""Residuals, ArviZ's groups and predictive draws of `Segments`, against ratios of exact evidences."""

from typing import Any

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from scipy.special import ndtri
from torch import Tensor

FLOAT, NAN = torch.float64, float("nan")


def table(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=FLOAT)


NORMAL = {"loc": [0.5, 1.0], "count": [0.3, 0.5], "shape": [2.0, 1.5], "rate": [0.7, 1.1]}
WISHART = {"loc": [0.5, 1.0], "count": 0.3, "df": 6.0, "inverse_scale": [[1.5, 0.3], [0.3, 1.2]]}
GAMMA = {"shape": [1.0, 2.5], "rate": [1.0, 0.4]}
NUMBERS = table([0.1, 2.0], [-0.4, 2.5], [NAN, 1.5], [3.0, NAN], [3.4, -1.0])
COUNTS = table([0.0, 3.0], [1.0, 2.0], [NAN, 4.0], [7.0, NAN], [9.0, 0.0])
INPUTS = table([0.3], [-1.0], [0.5], [1.2], [-0.4])
CASES: dict[str, tuple[Any, dict[str, Any], Tensor]] = {
    "Normal": (sh.Normal(2), NORMAL, NUMBERS),
    "MultivariateNormal": (sh.MultivariateNormal(2), WISHART, NUMBERS.nan_to_num(0.2)),
    "Poisson": (sh.Poisson(2), GAMMA, COUNTS),
    "Exponential": (sh.Exponential(2), GAMMA, COUNTS + 0.5),
    "Bernoulli": (sh.Bernoulli(2), {"successes": 1.0, "failures": 1.5}, (COUNTS > 2).double() + 0 * COUNTS),
    "Categorical": (sh.Categorical(3), {"concentration": [1.0, 0.5, 2.0]}, (COUNTS % 3)[:, :1]),
    "LinearRegression": (sh.LinearRegression(2, 1), NORMAL, NUMBERS),
}


def case(name: str, hazard: Any = 0.2, **options: Any) -> tuple[sh.Segments, Tensor, dict[str, Tensor]]:
    emission, prior, x = CASES[name]
    return sh.Segments(emission, hazard, **options).with_prior(prior), x, beside(name)


def beside(name: str) -> dict[str, Tensor]:
    return {"inputs": INPUTS} if name == "LinearRegression" else {}


@pytest.mark.parametrize("name", CASES)
def test_probability_transforms_are_those_of_forecasts(name):
    model, x, given = case(name, dist.Poisson(1.5) if name == "Normal" else 0.2)
    ends = model.problem(x, **given).limits_before(model.values)
    for t in range(1, len(x)):
        until = {key: value[: t + 1] for key, value in given.items()}
        ahead = model.forecast(x[:t], 1, **until).observation
        at = ahead.cdf(x[t : t + 1].nan_to_num(0.0))[0]
        torch.testing.assert_close(ends["at"][t], at.masked_fill(x[t].isnan(), NAN), equal_nan=True)


def test_transforms_of_counts_are_sums_of_evidences():
    x = COUNTS[:, :1].nan_to_num(1.0)
    model = sh.Segments(sh.Poisson(1), 0.2).with_prior({"shape": 1.0, "rate": 0.4})
    ends = model.problem(x).limits_before(model.values)
    for t in range(1, len(x)):
        before = model.log_evidence(x[:t])
        each = [
            (model.log_evidence(torch.cat([x[:t], table([float(k)])])) - before).exp() for k in range(int(x[t]) + 1)
        ]
        torch.testing.assert_close(ends["at"][t, 0], sum(each), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(ends["below"][t, 0], sum(each[:-1], torch.zeros((), dtype=FLOAT)))


@pytest.fixture(scope="module")
def fit() -> Any:
    """Of two sequences of unequal lengths, with a missing value."""
    x = [table([0.1], [NAN], [0.3], [5.0], [5.2], [4.9]), table([4.8], [5.1], [0.2], [0.0])]
    return sh.Segments(sh.Normal(), 0.2).fit(x, restarts=1, max_steps=5, progress=False)


def test_residuals_have_the_index_of_the_data(fit):
    residuals = fit.residuals()
    assert residuals.values.shape == (10, 1)
    assert int(residuals.n_observed.iloc[0]) == 9
    ends = fit.model.problem(fit.series).limits_before(fit.model.values)
    expected = ndtri(ends["at"][0].squeeze(-1)[[0, 2, 3, 4, 5]])
    np.testing.assert_allclose(residuals.values.iloc[[0, 2, 3, 4, 5], 0], expected, rtol=1e-9)
    named = pd.DataFrame({"level": [0.1, 0.2, 5.0]}, index=pd.Index([1990, 1991, 1992], name="year"))
    assert fit.residuals(named).values.index.equals(named.index)
    assert "residuals" in str(fit.diagnose())


def test_at_the_true_values_residuals_are_standard_normal():
    model = sh.Segments(sh.Normal(), 0.05).with_prior({"loc": 0.0, "count": 0.1, "shape": 3.0, "rate": 3.0})
    x = model.simulate(100, (4,), seed=2).x
    ends = model.problem(x).limits_before(model.values)["at"].flatten()
    assert float(ends.mean()) == pytest.approx(0.5, abs=0.05)
    assert float(ends.var()) == pytest.approx(1 / 12, abs=0.015)


def test_the_groups_of_a_fit(fit):
    groups = fit.to_arviz(draws=6)
    filtered = fit.filter(ragged=False)
    assert groups.estimates["count"].shape == (1,)
    likelihood = groups.log_density.x
    total = torch.as_tensor(likelihood.values.sum())
    torch.testing.assert_close(total, filtered.log_normalizer.sum())
    assert likelihood.sizes["observation"] == 9
    assert groups.posterior_predictive.x.shape == (1, 6, 9)
    assert groups.observed_data.x.shape == (9,)
    change = torch.tensor(groups.smoothed.change_probability.values)
    torch.testing.assert_close(change[:, 1:].nan_to_num(0.0), fit.smooth(ragged=False).change[:, 1:])
    replicated = groups.replicated.x.values
    assert np.isnan(replicated[:, :, 1, 4:]).all()
    assert np.isfinite(replicated[:, :, 0]).all()


def test_predictive_draws_have_the_moments_of_forecasts():
    one = COUNTS[:, :1].nan_to_num(1.0)
    model = sh.Segments(sh.Poisson(1), 0.2).with_prior({"shape": 6.0, "rate": 1.0})
    drawn = torch.tensor(model.to_arviz(one, draws=3000).posterior_predictive.x.values[0])
    for t in (1, 4):
        ahead = model.forecast(one[:t], 1)
        error = (drawn[:, t].mean() - ahead.mean[0, 0]) / (ahead.variance[0, 0] / 3000).sqrt()
        assert abs(float(error)) < 4


def test_replicates_have_the_distribution_of_the_posterior():
    model, x, given = case("LinearRegression")
    replicated = torch.tensor(model.to_arviz(x, draws=2000, **given).replicated.x.values[0])
    drawn = model.sample_posterior(x, 2000, seed=1, **given).parameters
    center = drawn["loc"] + drawn["coefficients"].squeeze(-1) * INPUTS
    for value in (0.0, 2.0):
        expected = torch.special.ndtr((value - center) / drawn["scale"]).mean(0)
        torch.testing.assert_close((replicated <= value).double().mean(0), expected, rtol=0, atol=0.05)


@pytest.mark.parametrize("name", CASES)
def test_every_emission_is_exported(name):
    model, x, given = case(name)
    both = {key: torch.stack([value, value]) for key, value in given.items()}
    groups = model.to_arviz(torch.stack([x, x]), draws=3, **both)
    assert {"estimates", "log_density", "posterior_predictive", "replicated", "smoothed"} <= set(groups.groups())
    assert np.isfinite(groups.replicated.x.values).all()
    evidence = model.log_evidence(torch.stack([x, x]), **both).sum()
    assert float(groups.log_density.x.sum()) == pytest.approx(float(evidence), abs=1e-8)


def test_sequences_that_change_together_have_one_density_of_each_step():
    model, x, _ = case("Normal", shared=True)
    both = torch.stack([x, x.flip(0)])
    groups = model.to_arviz(both, draws=4)
    likelihood = groups.log_density.x
    assert likelihood.dims == ("time",)
    assert float(likelihood.sum()) == pytest.approx(float(model.log_evidence(both)), abs=1e-9)
    assert groups.smoothed.change_probability.shape == (2, 5)
    assert groups.replicated.x.shape == (1, 4, 2, 5, 2)
    ends = model.problem(both).limits_before(model.values)["at"]
    ahead = model.forecast(both[:, :4], 1).observation.cdf(both[:, 4:].nan_to_num(0.0))
    torch.testing.assert_close(ends[:, 4:], ahead.masked_fill(both[:, 4:].isnan(), NAN), equal_nan=True)


def test_a_tolerance_hardly_changes_predictions():
    model = sh.Segments(sh.Normal(2), 0.2, tol=1e-4).with_prior(NORMAL)
    long = NUMBERS.repeat(6, 1)
    ends, exact = (one.problem(long).limits_before(one.values)["at"] for one in (model, case("Normal")[0]))
    torch.testing.assert_close(ends, exact, rtol=0, atol=1e-2, equal_nan=True)
    single = case("Normal")[0].problem(long.float()).limits_before(case("Normal")[0].values)["at"]
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=0, atol=1e-5, equal_nan=True)


def test_draws_of_nuts_are_exported_with_a_hazard_by_inputs(tmp_path):
    options: dict[str, Any] = {"restarts": 1, "num_samples": 2, "warmup_steps": 1, "fixed": {"shape": 1.0, "rate": 0.2}}
    x, inputs = table([1.0], [0.0], [8.0], [9.0]), {"dose": [0.0, 1.0, 2.0, -1.0]}
    fit = sh.Segments(sh.Poisson(), ["dose"]).fit(x, "nuts", inputs=inputs, progress=False, seed=0, **options)
    groups = fit.to_arviz()
    assert groups.posterior["hazard_weights"].dims == ("chain", "draw", "input")
    assert groups.posterior["input"].values.tolist() == ["dose"]
    assert groups.sample_stats.diverging.shape == (2, 2)
    assert groups.log_likelihood.x.shape == (2, 2, 4)
    drawn = fit.posterior.draws
    values = {name: table[1, 0].double() for name, table in drawn.items()} | {
        "shape": table(1.0),
        "rate": table(0.2),
    }
    expected = fit.model.with_values(values).log_evidence(x, inputs=inputs)
    assert float(groups.log_likelihood.x[1, 0].sum()) == pytest.approx(float(expected), abs=1e-9)
    fit.save_arviz(tmp_path / "fit.nc")
    assert (tmp_path / "fit.nc").stat().st_size > 0


@pytest.mark.usefixtures("as_users_call")
def test_such_a_fit_does_not_go_on(fit):
    with pytest.raises(
        TypeError, match="update: got a fit of a Segments, but only fits of a SwitchingSSM can be updated; fit"
    ):
        fit.update([0.1, 0.2])
