"""The summary of a fit: its errors are those of the likelihood's curvature, its criteria those of its parameters."""

import math
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import scipy.stats
import torch
from hmmlearn.hmm import CategoricalHMM, GaussianHMM, PoissonHMM
from oracles.coupled import factorial_of, layered_of
from oracles.models import KINDS, drive, random_model
from statsmodels.genmod import families
from statsmodels.genmod.generalized_linear_model import GLM
from statsmodels.tools import add_constant, eval_measures

FIT = {"progress": False, "restarts": 2, "max_steps": 3000}


@pytest.fixture(scope="module")
def likeliest(nile) -> sh.Fit:
    return sh.SwitchingSSM(sh.Copy(2), sh.Normal()).fit(nile, prior=None, tol=1e-13, **FIT)


def second_differences(function, at: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """The Hessian of a function of some numbers, by the plainest formula."""
    n, found = len(at), np.zeros((len(at), len(at)))
    moves = np.diag(steps)
    for i in range(n):
        for j in range(n):
            ends = [a * b * function(at + a * moves[i] + b * moves[j]) for a in (1, -1) for b in (1, -1)]
            found[i, j] = sum(ends) / (4 * steps[i] * steps[j])
    return found


# ---- standard errors -------------------------------------------------------------------------------------------------


def test_of_one_normal_state_they_are_those_of_a_sample():
    x = torch.randn(80, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 7
    summary = sh.SwitchingSSM(sh.Markov(1), sh.Normal()).fit(x, prior=None, **FIT).summary(level=0.95)
    scale, table = float(x.std(correction=0)), summary.parameters
    assert table.loc["loc[0, 0]", "standard error"] == pytest.approx(scale / math.sqrt(80), rel=1e-6)
    assert table.loc["scale[0, 0]", "standard error"] == pytest.approx(scale / math.sqrt(160), rel=1e-6)
    reach = 1.959963984540054 / math.sqrt(160)
    assert table.loc["scale[0, 0]", ["lower", "upper"]].tolist() == pytest.approx(
        [scale * math.exp(-reach), scale * math.exp(reach)], rel=1e-6
    )
    assert table.loc["loc[0, 0]", "upper"] == pytest.approx(float(x.mean()) + 1.959963984540054 * scale / 80**0.5)


def test_of_one_state_of_counts_and_symbols_they_are_those_of_shares():
    counts = torch.tensor([0, 3, 1, 4, 2, 2, 5, 0, 1, 2], dtype=torch.float64)
    rate = sh.SwitchingSSM(sh.Markov(1), sh.Poisson()).fit(counts, prior=None, **FIT).summary().parameters
    assert rate.loc["rate[0, 0]", "standard error"] == pytest.approx(math.sqrt(2.0 / 10), rel=1e-6)
    symbols = torch.tensor([0, 0, 1, 2, 1, 0, 0, 2, 0, 1], dtype=torch.float64)
    probs = sh.SwitchingSSM(sh.Markov(1), sh.Categorical(4)).fit(symbols, prior=None, **FIT).summary().parameters
    for symbol, p in enumerate((0.5, 0.3, 0.2)):
        found = probs.loc[f"probs[0, {symbol}]", "standard error"]
        assert found == pytest.approx(math.sqrt(p * (1 - p) / 10), rel=1e-6)
    assert math.isnan(probs.loc["probs[0, 3]", "standard error"])  # never seen: at the end of its range


def test_they_are_the_inverse_of_plain_second_differences_of_the_evidence(nile, likeliest):
    model = likeliest.model

    def evidence(at: np.ndarray) -> float:
        rho, first, a, b, s, r = at.tolist()
        values = {"redraw_prob": rho, "state_probs": [first, 1 - first], "loc": [[a], [b]], "scale": [[s], [r]]}
        return float(model.with_values(values).log_evidence(nile))

    own = model.describe()
    at = torch.cat([own["redraw_prob"].reshape(1), own["state_probs"][:1], own["loc"][:, 0], own["scale"][:, 0]])
    hessian = second_differences(evidence, at.numpy(), np.array([2e-4, 2e-3, 0.1, 0.1, 0.1, 0.1]))
    covariance = np.linalg.inv(-hessian)
    names = [
        "redraw_prob",
        "state_probs[0]",
        "loc[0, volume]",
        "loc[1, volume]",
        "scale[0, volume]",
        "scale[1, volume]",
    ]
    found, errors = likeliest.summary().parameters["standard error"], np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(found[names], errors, rtol=1e-3)
    table = likeliest.cov_params()
    np.testing.assert_allclose(
        table.loc[names, names] / np.outer(errors, errors), covariance / np.outer(errors, errors), atol=2e-3
    )
    np.testing.assert_allclose(np.sqrt(np.diag(table)), likeliest.summary().parameters["standard error"], rtol=1e-10)
    other = ["state_probs[0]", "state_probs[1]"]  # which add up to 1
    np.testing.assert_allclose(table.loc[other, other], table.loc[other[0], other[0]] * np.array([[1, -1], [-1, 1]]))


def test_under_a_prior_they_are_those_of_the_log_posterior(nile):
    fit = sh.SwitchingSSM(sh.Markov(1), sh.Normal()).fit(nile, tol=1e-13, **FIT)
    model = fit.model

    def posterior(at: np.ndarray) -> float:  # in precision, whose prior density the mode is of
        here = model.with_values(model.values | {"loc": [[at[0]]], "precision": [[at[1]]]})
        return float(here.log_evidence(nile) + here.log_prior(here.values))

    at = torch.stack([model.loc[0, 0], model.precision[0, 0]]).numpy()
    covariance = np.linalg.inv(-second_differences(posterior, at, np.array([0.1, 1e-3 * at[1]])))
    found = fit.summary().parameters["standard error"]
    assert found["loc[0, volume]"] == pytest.approx(covariance[0, 0] ** 0.5, rel=1e-4)
    assert found["scale[0, volume]"] == pytest.approx(covariance[1, 1] ** 0.5 * at[1] ** -1.5 / 2, rel=1e-4)


@pytest.mark.parametrize(("factor", "shift"), [(1e-6, 0.0), (1e6, 0.0), (1.0, 1e6)])
def test_another_unit_changes_nothing_but_the_units(nile, likeliest, factor, shift):
    moved = nile.astype(float) * factor + shift
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal()).fit(moved, prior=None, tol=1e-13, **FIT)
    own, here = likeliest.summary().parameters, fit.summary().parameters
    with_unit = own.index.str.startswith(("loc", "scale"))
    expected = own["standard error"] * np.where(with_unit, factor, 1.0)
    np.testing.assert_allclose(sorted(here["standard error"]), sorted(expected), rtol=1e-3)  # in any order of states


@pytest.mark.slow
def test_single_precision_gives_the_same_errors(nile, likeliest):
    values = {name: value.float() for name, value in likeliest.model.values.items()}
    single = torch.from_numpy(nile.to_numpy(np.float32))
    model = likeliest.model.with_values(values)
    fit = sh.Fit(**(vars(likeliest) | {"model": model, "series": model.read(single)}))
    np.testing.assert_allclose(
        fit.summary().parameters["standard error"], likeliest.summary().parameters["standard error"], rtol=1e-3
    )


def test_what_the_data_leave_open_has_no_error_and_what_they_settle_has_one():
    x = torch.randn(60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    summary = sh.SwitchingSSM(sh.Copy(1), sh.Normal()).fit(x, prior=None, **FIT).summary()
    error = summary.parameters["standard error"]
    assert math.isnan(error["redraw_prob"])  # a redraw finds the same state
    assert math.isnan(error["state_probs[0]"])
    assert error["loc[0, 0]"] > 0
    assert any("do not determine it" in note for note in summary.notes)
    assert summary.parameters.loc["redraw_prob", ["lower", "upper"]].isna().all()


def test_of_chains_that_may_trade_their_levels_only_differences_are_known():
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    loc = [torch.tensor([[0.0], [4.0]], dtype=torch.float64), torch.tensor([[0.0], [9.0]], dtype=torch.float64)]
    model = factorial_of(torch.tensor([0.2, 0.1], dtype=torch.float64), [half, half], loc, torch.eye(1).double())
    fit = model.fit(model.simulate(200, seed=3).x, prior=None, **FIT)
    error = fit.summary().parameters["standard error"]
    assert error.filter(like="loc").isna().all()
    assert (error.filter(like="covariance") > 0).all()
    assert fit.n_parameters == 2 + 2 + 4 - 1 + 1


# ---- tests of coefficients, covariances, exports ---------------------------------------------------------------------


def regression(counts: bool) -> tuple[sh.Fit, Any]:
    """A regression of one state, here and by statsmodels."""
    rng = np.random.default_rng(3)
    inputs = pd.DataFrame({"dose": rng.normal(size=120), "age": rng.normal(size=120)})
    mean = 0.5 + 0.4 * inputs["dose"]
    x = rng.poisson(np.exp(mean)).astype(float) if counts else (mean + rng.normal(size=120)).to_numpy()
    names = ["dose", "age"]
    emission = sh.Poisson(1, inputs=names) if counts else sh.LinearRegression(1, inputs=names)
    fit = sh.SwitchingSSM(sh.Markov(1), emission).fit(x, inputs=inputs, prior=None, tol=1e-12, **FIT)
    family = families.Poisson() if counts else families.Gaussian()
    return fit, GLM(x, add_constant(inputs), family=family).fit(tol=1e-14)


@pytest.mark.parametrize("counts", [False, True])
def test_coefficients_have_the_tests_and_covariance_of_statsmodels(counts):
    fit, peer = regression(counts)
    ours, theirs = ["coefficients[0, 0, dose]", "coefficients[0, 0, age]"], ["dose", "age"]
    unbiased = 1.0 if counts else 117 / 120  # its variance of the noise; ours is that of maximum likelihood
    table, covariance = fit.summary(level=0.95).parameters, fit.cov_params()
    assert table.columns.tolist() == ["state", "estimate", "standard error", "z", "p", "lower", "upper"]
    np.testing.assert_allclose(covariance.loc[ours, ours], peer.cov_params().loc[theirs, theirs] * unbiased, rtol=2e-5)
    np.testing.assert_allclose(table.loc[ours, "z"], peer.tvalues[theirs] / unbiased**0.5, rtol=2e-5)
    expected = 2 * scipy.stats.norm.sf(np.abs(peer.tvalues[theirs] / unbiased**0.5))
    np.testing.assert_allclose(table.loc[ours, "p"], expected, rtol=1e-3)
    if counts:
        np.testing.assert_allclose(fit.conf_int(0.95).loc[ours], peer.conf_int().loc[theirs], rtol=1e-4)
        np.testing.assert_allclose(table.loc[ours, "p"], peer.pvalues[theirs], rtol=1e-3)
    assert table["z"].notna().sum() == 2  # not of constants, scales and probabilities
    assert "z: estimate / std. error" in str(fit.summary())
    assert " z " in str(fit.summary())


def test_criteria_are_those_of_statsmodels(nile, likeliest):
    assert likeliest.nobs == 100
    assert likeliest.n_parameters == 6
    for name in ("aic", "aicc", "bic", "hqic"):
        expected = getattr(eval_measures, name)(likeliest.loglik, 100, 6)
        assert getattr(likeliest, name) == pytest.approx(expected, rel=1e-12)
    few = likeliest.model.fit(nile[:7], prior=None, **FIT)
    assert few.aicc == math.inf
    lagged = sh.SwitchingSSM(sh.Markov(1), sh.AutoRegressive(2)).fit(nile, **FIT)
    assert lagged.nobs == 98
    assert sh.SwitchingSSM(sh.Markov(1), sh.Normal()).fit(nile, weights=2.0, **FIT).nobs == 200


@pytest.mark.parametrize("criterion", ["aicc", "hqic"])
def test_models_are_chosen_by_any_criterion(nile, criterion):
    chosen = sh.select(lambda k: sh.SwitchingSSM(sh.Copy(k), sh.Normal()), nile, (1, 2), criterion, **FIT)
    assert chosen.table[criterion].tolist() == [getattr(fit, criterion) for fit in chosen.fits]
    assert chosen.best == (1, 2)[int(chosen.table[criterion].argmin())]
    assert chosen.plot().axes[0].get_title(loc="left") == f"Best by {criterion}: {chosen.best}"


def test_covariances_of_a_posterior_are_those_of_its_draws(nile):
    fit = sh.SwitchingSSM(sh.Markov(1), sh.Normal()).fit(nile, method="vmp", **FIT)
    draws = fit.posterior.refined.sample(20_000, seed=3)
    numbers = torch.stack([draws["loc"][:, 0, 0], draws["precision"][:, 0, 0].rsqrt()])
    names = ["loc[0, volume]", "scale[0, volume]"]
    found, errors = fit.cov_params().loc[names, names], fit.summary().parameters.loc[names, "standard error"]
    np.testing.assert_allclose(np.sqrt(np.diag(found)), errors, rtol=1e-10)
    np.testing.assert_allclose(found / np.outer(errors, errors), np.corrcoef(numbers.numpy()), atol=0.03)
    assert fit.nobs == 100
    assert "z" not in fit.summary().parameters


def test_numbers_without_an_error_have_no_covariance():
    x = torch.randn(60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    fit = sh.SwitchingSSM(sh.Copy(1), sh.Normal()).fit(x, prior=None, fixed={"loc": [[0.0]]}, **FIT)
    table = fit.cov_params()
    assert table.loc["loc[0, 0]"].isna().all()
    assert table["redraw_prob"].isna().all()
    assert table.loc["scale[0, 0]", "scale[0, 0]"] > 0


def test_a_summary_is_exported(likeliest):
    summary = likeliest.summary(0.8)
    assert summary.to_frame().equals(summary.parameters)
    assert likeliest.conf_int(0.8).equals(summary.parameters[["lower", "upper"]])
    text = summary.to_latex()
    assert r"redraw\_prob & 0.0" in text
    assert r"& estimate & std. error & 10\% & 90\% \\" in text
    assert r"\caption{SwitchingSSM(Copy(2 states), Normal(n\_features=1))}" in text
    assert text.count(r"\\") == 1 + len(summary.parameters)


# ---- criteria --------------------------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["normal", "full", "poisson", "categorical"])
def test_criteria_equal_those_of_hmmlearn_at_the_same_parameters(kind):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, (60, 1)).astype(float) if kind == "categorical" else rng.poisson(4.0, (60, 2)) * 1.0
    emission = {
        "normal": sh.Normal(2),
        "full": sh.MultivariateNormal(2),
        "poisson": sh.Poisson(2),
        "categorical": sh.Categorical(3),
    }[kind]
    fit = sh.SwitchingSSM(sh.Markov(2), emission).fit(x, **FIT)
    values = {name: value.numpy() for name, value in fit.model.describe().items()}
    if kind in ("normal", "full"):
        peer = GaussianHMM(2, "diag" if kind == "normal" else "full", init_params="")
        peer.means_ = values["loc"]
        peer.covars_ = values["scale"] ** 2 if kind == "normal" else values["covariance"]
    elif kind == "poisson":
        peer = PoissonHMM(2, init_params="")
        peer.lambdas_ = values["rate"]
    else:
        peer = CategoricalHMM(2, init_params="")
        peer.emissionprob_, peer.n_features = values["probs"], 3
    peer.n_features = 3 if kind == "categorical" else 2
    peer.startprob_, peer.transmat_ = values["initial_probs"], values["transition_probs"]
    seen = x.astype(int) if kind in ("poisson", "categorical") else x
    assert fit.loglik == pytest.approx(peer.score(seen), rel=1e-10)
    assert fit.aic == pytest.approx(peer.aic(seen), rel=1e-10)
    assert fit.bic == pytest.approx(peer.bic(seen), rel=1e-10)


def test_only_observed_steps_count(nile):
    holes = nile.astype(float)
    holes.iloc[10:30] = np.nan
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal()).fit(holes, **FIT)
    assert fit.bic == pytest.approx(math.log(80) * 6 - 2 * float(fit.model.log_evidence(holes)))
    assert fit.summary().statistics["observed steps"] == 80


def test_a_posterior_has_no_point_to_judge(nile):
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal()).fit(nile, method="vmp", **FIT)
    with pytest.raises(ValueError, match=r'aic: got a fit by "vmp".*az.loo'):
        _ = fit.aic
    summary = fit.summary()
    assert "aic" not in summary.statistics
    draws = fit.posterior.refined.sample(20_000, seed=5)
    found = summary.parameters["standard error"]
    assert found["redraw_prob"] == pytest.approx(float(draws["redraw_prob"].std()), rel=0.05)
    assert found["scale[1, volume]"] == pytest.approx(float(draws["precision"][:, 1].rsqrt().std()), rel=0.05)
    lower = draws["precision"][:, 1, 0].rsqrt().quantile(0.05)
    assert summary.parameters.loc["scale[1, volume]", "lower"] == pytest.approx(float(lower), rel=0.01)


# ---- states ----------------------------------------------------------------------------------------------------------


def test_durations_are_those_of_drawn_paths():
    copy = sh.SwitchingSSM(sh.Copy(3), sh.Normal()).with_values(
        redraw_prob=0.3, state_probs=[0.5, 0.3, 0.2], loc=[[0.0], [1.0], [2.0]], scale=[[1.0]] * 3
    )
    moves = 0.7 * torch.eye(3) + 0.3 * torch.tensor([0.5, 0.3, 0.2])
    markov = sh.SwitchingSSM(sh.Markov(3), sh.Normal()).with_values(
        initial_probs=[0.5, 0.3, 0.2], transition_probs=moves.double(), loc=[[0.0], [1.0], [2.0]], scale=[[1.0]] * 3
    )
    torch.testing.assert_close(copy.durations([0.0]), markov.durations([0.0]), rtol=1e-6, atol=0)
    path = copy.simulate(60_000, seed=0).path
    state, run = path.unique_consecutive(return_counts=True)
    for k in range(3):
        assert float(run[state == k].double().mean()) == pytest.approx(float(copy.durations([0.0])[k]), rel=0.05)


def test_shares_of_steps_are_those_of_the_smoother(nile, likeliest):
    states = likeliest.summary().states
    shares = likeliest.smooth().state.mean(0)
    np.testing.assert_allclose(states["share of steps"], shares, rtol=1e-10)
    np.testing.assert_allclose(states["expected duration"], likeliest.model.durations(nile), rtol=1e-10)
    ragged = [nile.iloc[:30], nile]
    several = likeliest.model.fit(ragged, **FIT).summary().states
    assert several["share of steps"].sum() == pytest.approx(1.0)


# ---- all models ------------------------------------------------------------------------------------------------------


def check_whole(fit: sh.Fit) -> None:
    summary = fit.summary()
    table = summary.parameters
    text, page = str(summary), summary._repr_html_()
    for name, state in zip(table.index, table["state"], strict=True):
        assert name in text
        assert name in page
        assert f"{state} -" in text
    known = table.dropna()
    assert (known["standard error"] > 0).all()
    assert ((known["lower"] < known["estimate"]) & (known["estimate"] < known["upper"])).all()
    probabilities = known[known.index.str.contains("prob")]
    assert probabilities[["lower", "upper"]].stack().between(0, 1).all()
    assert len(known) > 0 or not fit.converged
    assert (summary.states["share of steps"] >= 0).all()
    assert set(summary.states.index) == set(table["state"]) - {""}
    assert fit.n_parameters <= len(table)
    assert max(map(len, text.splitlines())) < 100


@pytest.mark.few(2)
@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_every_model_has_one(dynamics, emission):
    model = random_model(dynamics, emission, seed=2)
    given = drive(dynamics, (3,), 40)
    x = model.simulate(40, (3,), seed=0, **given).x
    fit = model.fit(x, restarts=1, max_steps=50, progress=False, **given)
    check_whole(fit)
    assert fit.log_evidence().shape == (3,)  # the series, its gaps and inputs are the fit's own


def layered(emission: sh.Emission, values: dict) -> sh.LayeredSSM:
    table = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
    rho, top = torch.tensor([0.5, 0.05], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    return layered_of(emission, {name: torch.tensor(v).double() for name, v in values.items()}, rho, [table], top)


def factorial(counts: bool) -> sh.FactorialSSM:
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    loc = [torch.tensor([[0.0, 0.5], [1.5, 0.5]]).double(), torch.tensor([[0.2, 0.0], [0.2, 1.5]]).double()]
    precision = None if counts else 4 * torch.eye(2, dtype=torch.float64)
    return factorial_of(torch.tensor([0.2, 0.1], dtype=torch.float64), [half, half], loc, precision)


COUPLED = {
    "factorial": partial(factorial, False),
    "counts": partial(factorial, True),
    "layered": partial(layered, sh.Normal(), {"loc": [[0.0], [4.0]], "precision": [[1.0], [1.0]]}),
    "layered symbols": partial(layered, sh.Categorical(3), {"probs": [[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]]}),
    "layered gated": partial(
        layered,
        sh.Gated(sh.Normal(), sh.Normal()),
        {
            "loc": [[0.0], [4.0]],
            "precision": [[1.0], [1.0]],
            "background_loc": [[-3.0]],
            "background_precision": [[1.0]],
        },
    ),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", COUPLED)
@pytest.mark.parametrize("method", ["em", "vmp"])
def test_every_coupled_model_has_one(kind, method):
    model = COUPLED[kind]()
    x = model.simulate(120, (2,), seed=2).x
    fit = model.fit(x, method=method, restarts=1, max_steps=60, progress=False)
    check_whole(fit)
    assert fit.summary().states["share of steps"].sum() == pytest.approx(2.0)  # 1 a chain


def test_a_layered_model_has_a_gradient_where_a_move_cannot_be():
    model = COUPLED["layered"]()
    x = model.simulate(20, seed=0).x
    problem = model.problem(x)
    values = {name: value.clone().requires_grad_() for name, value in model.values.items()}
    problem.chain(model.product_of(values)).log_normalizer().backward()
    step = 1e-6
    moved = [model.values["redraw_prob"] + torch.tensor([sign * step, 0.0]) for sign in (1, -1)]
    ends = [model.with_values(model.values | {"redraw_prob": rho}).log_evidence(x) for rho in moved]
    assert float(values["redraw_prob"].grad[0]) == pytest.approx(float(ends[0] - ends[1]) / (2 * step), rel=1e-5)


def test_a_fit_keeps_its_series_for_what_is_asked_of_it(nile, likeliest):
    torch.testing.assert_close(likeliest.smooth().state, likeliest.model.smooth(nile).state)
    assert likeliest.forecast(horizon=3).mean.shape == (3, 1)
    assert likeliest.to_arviz(draws=4).observed_data["time"].values[0] == 1871
    assert likeliest.plot().axes[0].get_ylabel() == "volume"
    alone = sh.Fit(**(vars(likeliest) | {"series": None}))
    with pytest.raises(ValueError, match="x: got None, but this fit was saved without its data"):
        alone.smooth()
    with pytest.raises(ValueError, match="level: got 90"):
        likeliest.summary(level=90)


def test_why_initial_probabilities_have_no_interval_is_said():
    """One sequence begins in one state, so their maximum is 0 or 1; a posterior has an interval."""
    x = np.random.default_rng(0).normal(size=40) + 4 * (np.arange(40) // 10 % 2)
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal())
    start, others = "initial_probs[0]", "Errors of other"
    for method, has in (("em", False), ("vmp", True)):
        fit = model.fit(x, method, restarts=1, progress=False)
        assert bool(fit.conf_int().loc[start].notna().all()) == has
        notes = " ".join(fit.summary().notes)
        assert ("initial_probs has no standard error where it is 0 or 1" in notes) == (not has)
        assert others not in notes
