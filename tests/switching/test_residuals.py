"""Pseudo-residuals of fits, against predictions step by step, and the tests that are made of them."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from oracles.models import KINDS, drive, numbers, random_model
from samplehold.switching.emissions.contract import ByGate
from samplehold.switching.judging.residuals import LEAST, residuals
from samplehold.switching.mixture import StateMixture
from scipy.special import ndtri
from scipy.stats import kstest, norm

T = 6


def observations(model, seed: int = 0):
    """A series with a missing value."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        x = model.simulate(T, **drive(_name(model), (), T)).x
    x[2, -1] = torch.nan
    return x


def _name(model) -> str:
    return "inputs" if model.inputs else "copy"


def step_by_step(model, x, given) -> np.ndarray:
    """The residuals from a forecast after each step, with the same draws as those of seed 0."""
    known = x.nan_to_num(0.0)
    first = model.dynamics.first(model.values, model.problem(x, **given).series.drive)
    start = StateMixture(model.emission, model.values, ByGate(first[None], torch.zeros_like(first[None])))
    ahead = [start]
    for t in range(1, len(x)):
        past = {name: table[: t + 1] for name, table in given.items()}
        ahead.append(model.forecast(x[:t], 1, **past).observation)
    whole = model.emission.support.is_discrete
    at = torch.cat([mixture.cdf(known[t : t + 1]) for t, mixture in enumerate(ahead)]).numpy()
    below = torch.cat([mixture.cdf(known[t : t + 1] - 1) for t, mixture in enumerate(ahead)]).numpy() if whole else at
    share = torch.rand(at.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).numpy()
    return np.where(x.isnan(), np.nan, ndtri(below + share * (at - below)))


@pytest.mark.parametrize(("dynamics", "emission"), [kind for kind in KINDS if kind[0] in ("copy", "markov", "inputs")])
@pytest.mark.few(12)
def test_residuals_are_scores_of_forecasts_step_by_step(dynamics, emission):
    model = random_model(dynamics, emission)
    x, given = observations(model), drive(dynamics, (), T)
    found = residuals(model, x, **given)
    np.testing.assert_allclose(found.values.to_numpy(), step_by_step(model, x, given), rtol=1e-10, atol=1e-10)


def markov(emission: sh.Emission, **values) -> sh.SwitchingSSM:
    """Two states that last 20 and 10 steps."""
    moves = {"initial_probs": [0.5, 0.5], "transition_probs": [[0.95, 0.05], [0.1, 0.9]]}
    return sh.SwitchingSSM(sh.Markov(2), emission).with_values(**moves, **values)


TRUE = {
    "normal": (sh.Normal(1), {"loc": [[0.0], [2.0]], "scale": [[1.0], [0.5]]}),
    "poisson": (sh.Poisson(1), {"rate": [[0.5], [4.0]]}),
    "categorical": (sh.Categorical(3), {"probs": [[0.8, 0.1, 0.1], [0.1, 0.2, 0.7]]}),
}


@pytest.mark.parametrize("name", TRUE)
def test_residuals_of_the_true_model_are_standard_normal_and_those_of_another_are_not(name):
    emission, values = TRUE[name]
    model = markov(emission, **values)
    x = model.simulate(1500, seed=1).x
    true = residuals(model, x)
    assert kstest(true.values.iloc[:, 0], norm.cdf).pvalue > 0.01
    assert true.ljung_box(10).p_value.iloc[0] > 0.01
    other = sh.SwitchingSSM(sh.Markov(2), emission).with_values(
        initial_probs=[0.5, 0.5], transition_probs=[[0.5, 0.5], [0.5, 0.5]], **values
    )
    assert residuals(other, x).ljung_box(10).p_value.iloc[0] < 1e-6


def test_draws_for_counts_depend_on_the_seed_alone():
    model = markov(sh.Poisson(1), rate=[[0.5], [4.0]])
    x = model.simulate(20, seed=1).x
    pd.testing.assert_frame_equal(residuals(model, x, seed=3).values, residuals(model, x, seed=3).values)
    assert not residuals(model, x, seed=3).values.equals(residuals(model, x, seed=4).values)


def test_residuals_of_a_panel_stand_in_its_rows():
    model = markov(sh.Normal(1), loc=[[0.0], [2.0]], scale=[[1.0], [0.5]])
    x = numbers(9).numpy()
    index = pd.MultiIndex.from_tuples(
        [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 2), ("b", 3)]
    )
    panel = pd.DataFrame({"u": x}, index=index)
    found = residuals(model, panel)
    assert found.values.index.equals(index)
    for name, part in zip("ab", found.sequences, strict=True):
        alone = residuals(model, panel.loc[name]).values.to_numpy()
        np.testing.assert_allclose(found.values.loc[name].to_numpy(), alone, rtol=1e-12)
        np.testing.assert_allclose(part, alone, rtol=1e-12)


def test_residuals_of_ragged_sequences_are_those_of_each_alone():
    model = markov(sh.Normal(1), loc=[[0.0], [2.0]], scale=[[1.0], [0.5]])
    parts = [numbers(n, 1, seed=n) for n in (30, 2, 7)]  # packed
    found = residuals(model, parts)
    for x, part in zip(parts, found.sequences, strict=True):
        np.testing.assert_allclose(part, residuals(model, x).values.to_numpy(), rtol=1e-10)


def test_subjects_have_residuals_under_their_own_parameters():
    parts = [numbers(12, 1), numbers(9, 1, seed=1) + 3]
    noise = [torch.ones(12, 1).double(), torch.ones(9, 1).double()]
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
    fit = model.fit(parts, noise=noise, pooled="none", restarts=1, max_steps=3, progress=False)
    for name, part in zip(fit.model.subjects, fit.residuals().sequences, strict=True):
        np.testing.assert_allclose(part, fit.subject(name).residuals().values.to_numpy(), rtol=1e-9, atol=1e-12)


def test_steps_without_lags_have_no_residual(nile):
    fit = sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(2)).fit(nile[:30], restarts=1, max_steps=5, progress=False)
    found = fit.residuals()
    assert found.values.isna().to_numpy()[:, 0].nonzero()[0].tolist() == [0, 1]
    assert found.values.index.equals(fit.series.index)
    model, x = fit.model, fit.series.observations
    one = model.forecast(x[:20], 1, draws=200_000).observation.cdf(x[20:21])
    assert float(norm.cdf(found.values.iloc[20, 0])) == pytest.approx(float(one), abs=3e-3)


def test_known_noise_widens_the_distribution_and_a_step_of_weight_zero_has_no_residual():
    model = markov(sh.Normal(1), loc=[[0.0], [0.0]], scale=[[1.0], [1.0]])
    x = torch.tensor([[1.0], [2.0], [3.0]]).double()
    found = residuals(model, x, noise=torch.tensor([[3.0], [0.0], [8.0]]).double())
    np.testing.assert_allclose(found.values.to_numpy()[:, 0], [0.5, 2.0, 1.0], rtol=1e-12)
    found = residuals(model, x, weights=torch.tensor([1.0, 0.0, 1.0]).double())
    assert found.values.isna().to_numpy()[:, 0].tolist() == [False, True, False]


def test_float32_and_far_values_keep_their_digits():
    model = markov(sh.Normal(1), loc=[[0.0], [0.0]], scale=[[1.0], [1.0]])
    found = residuals(model, torch.tensor([[7.5], [1000.0], [-1000.0]]))
    most = -ndtri(LEAST)
    np.testing.assert_allclose(found.values.to_numpy()[:, 0], [7.5, most, -most], rtol=1e-4)


@dataclass(frozen=True)
class NoCdf(sh.Normal):
    """A normal emission whose distribution function is unknown."""

    name = "NoCdfOfTheTests"

    def marginal_cdf(self, x, values):
        raise NotImplementedError


def test_an_emission_without_a_distribution_function_has_shares_of_draws():
    values = {"loc": [[0.0], [2.0]], "scale": [[1.0], [0.5]]}
    x = numbers(5, 1)
    exact, drawn = (residuals(markov(emission, **values), x).values for emission in (sh.Normal(1), NoCdf(1)))
    np.testing.assert_allclose(norm.cdf(drawn), norm.cdf(exact), atol=0.02)


def test_residuals_of_several_chains_are_scores_of_their_forecasts():
    model = sh.FactorialSSM([2, 2], sh.MultivariateNormal(1))
    fit = model.fit(numbers(12, 1), restarts=1, max_steps=3, progress=False)
    x = fit.series.observations
    for t in (5, 11):
        at = float(fit.model.forecast(x[:t], 1).observation.cdf(x[t : t + 1]))
        assert float(norm.cdf(fit.residuals().values.iloc[t, 0])) == pytest.approx(at, rel=1e-8)


def test_other_models_have_no_pseudo_residuals():
    fit = sh.LinearSSM(sh.LocalLevel()).fit([1.0, 2.0, 4.0, 3.0, 5.0], progress=False)
    with pytest.raises(TypeError, match=r"^model: got a LinearSSM"):
        fit.residuals()


# ---- autocorrelations ------------------------------------------------------------------------------------------------


@pytest.mark.peer
def test_ljung_box_is_that_of_statsmodels():
    from statsmodels.stats.diagnostic import acorr_ljungbox

    model = markov(sh.Normal(2), loc=[[0.0, 0.0], [1.0, 1.0]], scale=[[1.0, 1.0], [1.0, 1.0]])
    found = residuals(model, numbers(60, 2))
    peer = acorr_ljungbox(found.values.iloc[:, 1], [7])
    test = found.ljung_box(7)
    assert test.index.tolist() == ["x[0]", "x[1]"]
    assert test.loc["x[1]", "statistic"] == pytest.approx(peer.lb_stat.iloc[0], rel=1e-10)
    assert test.loc["x[1]", "p_value"] == pytest.approx(peer.lb_pvalue.iloc[0], rel=1e-10)


def test_pairs_are_those_of_one_sequence_without_missing_values():
    model = markov(sh.Normal(1), loc=[[0.0], [1.0]], scale=[[1.0], [1.0]])
    parts = [numbers(5, 1, seed=1), numbers(4, 1, seed=2)]
    parts[0][2] = torch.nan
    found = residuals(model, parts)
    e = [part[:, 0] - np.nanmean(found.values) for part in found.sequences]
    total = sum(np.nansum(part**2) for part in e)
    r = [sum(np.nansum(part[lag:] * part[:-lag]) for part in e) / total for lag in (1, 2)]
    np.testing.assert_allclose(found.acf(2).iloc[:, 0], r, rtol=1e-12)
    assert found.ljung_box(2).statistic.iloc[0] == pytest.approx(8 * 10 * (r[0] ** 2 / 5 + r[1] ** 2 / 3), rel=1e-12)
    with pytest.raises(ValueError, match=r"^lags: got 9, but residuals have pairs at 4 lag"):
        found.ljung_box(9)


def test_the_figure_has_series_quantiles_and_autocorrelations(nile):
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(nile[:40], restarts=1, max_steps=3, progress=False)
    found = fit.residuals()
    titles = [panel.get_title(loc="left") for panel in found.plot(lags=5).axes]
    assert titles == ["Residuals", "Quantiles", "Autocorrelations"]
    two = residuals(markov(sh.Normal(2), loc=[[0.0] * 2] * 2, scale=[[1.0] * 2] * 2), [numbers(9, 2), numbers(8, 2)])
    assert len(two.plot(lags=2).axes) == 6
    assert repr(found).startswith("Residuals of 40 steps: volume: mean ")
