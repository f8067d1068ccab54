"""Forms of levels and trends, cycles and regressions beside statsmodels: evidence, states, forecasts and maxima."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from oracles.operators import unchecked
from oracles.streams import streamed
from samplehold import Autoregression, Cycle, LinearSSM, LocalLevel, LocalLinearTrend, Regression, Seasonal, load
from statsmodels.tsa.statespace.initialization import Initialization
from statsmodels.tsa.statespace.structural import UnobservedComponents
from torch.testing import assert_close

from tests.examples import slow

FLOAT = torch.float64
DATA = Path(__file__).parents[2] / "notebooks" / "data"


def nile() -> np.ndarray:
    series = pd.read_csv(DATA / "nile.csv")["volume"].to_numpy(dtype=float).copy()
    series[[20, 21, 60]] = np.nan
    return series


def sunspots() -> np.ndarray:
    """The roots of the yearly numbers, which have a cycle of about eleven years."""
    return np.sqrt(pd.read_csv(DATA / "sunspots.csv").iloc[:120, 1].to_numpy(dtype=float))


def peer_of(x: np.ndarray, **keywords: object) -> UnobservedComponents:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = UnobservedComponents(x, use_exact_diffuse=True, **keywords)
    peer.ssm.tolerance = 0.0  # of a filter that has settled: it is to go on
    if keywords.get("damped_cycle"):  # statsmodels has a diffuse start there, and takes another
        starts, size = Initialization(peer.k_states), peer.k_states - 2
        if size:
            starts.set((0, size), "diffuse")
        starts.set((size, size + 2), "stationary")
        peer.ssm.initialization = starts
    return peer


def values_of(peer: UnobservedComponents) -> dict[str, float]:
    """A value for each of its parameters."""
    rest = {"frequency.cycle": 0.55, "damping.cycle": 0.85}
    return {name: rest.get(name, 0.3 + 0.2 * place) for place, name in enumerate(peer.param_names)}


CYCLE = {"cycle": True, "stochastic_cycle": True}
FORMS = {
    "random walk": (LocalLevel(irregular=False), {"level": "rwalk"}),
    "constant": (LocalLevel(stochastic=False), {"level": "dconstant"}),
    "smooth trend": (LocalLinearTrend(stochastic_level=False), {"level": "strend"}),
    "deterministic drift": (LocalLinearTrend(stochastic_trend=False), {"level": "lldtrend"}),
    "random walk with drift": (LocalLinearTrend(stochastic_trend=False, irregular=False), {"level": "rwdrift"}),
    "random trend": (LocalLinearTrend(stochastic_level=False, irregular=False), {"level": "rtrend"}),
    "line": (LocalLinearTrend(stochastic_level=False, stochastic_trend=False), {"level": "dtrend"}),
    "fixed season": (
        LocalLevel(irregular=False) + Seasonal(4, stochastic=False),
        {"level": "rwalk", "seasonal": 4, "stochastic_seasonal": False},
    ),
    "cycle": (LocalLevel() + Cycle((4, 40)), {"level": "llevel", "cycle_period_bounds": (4, 40)} | CYCLE),
    "fixed cycle": (
        LocalLevel() + Cycle((4, 40), stochastic=False),
        {"level": "llevel", "cycle": True, "cycle_period_bounds": (4, 40)},
    ),
    "damped cycle": (LocalLevel() + Cycle(damped=True), {"level": "llevel", "damped_cycle": True} | CYCLE),
    "damped cycle of a walk": (
        LocalLevel(irregular=False) + Cycle(damped=True),
        {"level": "rwalk", "damped_cycle": True} | CYCLE,
    ),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", FORMS)
def test_forms_are_those_of_statsmodels(name: str) -> None:
    structure, keywords = FORMS[name]
    x, peer = nile() / 100, peer_of(nile() / 100, **keywords)
    given = values_of(peer)
    model = LinearSSM(structure).with_values(given)
    assert set(model.known) == set(given)
    expected = peer.smooth(list(given.values()))
    assert float(model.log_evidence(x)) == pytest.approx(float(expected.llf), abs=1e-8)
    smoothed, ahead = model.smooth(x), model.forecast(x, 5)
    forecast = expected.get_forecast(5)
    for own, other in (
        (smoothed.mean, expected.smoothed_state.T),
        (smoothed.covariance, expected.smoothed_state_cov.transpose(2, 0, 1)),
        (ahead.mean[:, 0], forecast.predicted_mean),
        (ahead.variance[:, 0], forecast.var_pred_mean),
    ):
        assert_close(own, torch.tensor(np.asarray(other)), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "name",
    [
        "random walk",
        slow("smooth trend"),
        slow("random trend"),
        slow("deterministic drift"),
        slow("random walk with drift"),
        slow("fixed season"),
    ],
)
def test_maxima_of_forms_are_no_lower_than_those_of_statsmodels(name: str) -> None:
    structure, keywords = FORMS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = peer_of(nile(), **keywords).fit(disp=False).llf
    fit = LinearSSM(structure).fit(nile(), restarts=2, progress=False)
    assert fit.loglik >= float(expected) - 1e-5
    assert fit.converged


# ---- cycles ----------------------------------------------------------------------------------------------------------


def test_a_period_that_is_given_is_the_frequency_that_is_held() -> None:
    free, x = LinearSSM(LocalLevel() + Cycle((4, 40))), sunspots()
    variances = {"sigma2.irregular": 0.1, "sigma2.level": 0.2, "sigma2.cycle": 0.3}
    fixed = LinearSSM(LocalLevel() + Cycle(11)).with_values(variances)
    expected = free.with_values(variances | {"frequency.cycle": 2 * np.pi / 11}).log_evidence(x)
    assert_close(fixed.log_evidence(x), expected, rtol=1e-12, atol=0)
    assert "frequency.cycle" not in fixed.known


def test_the_evidence_of_a_damped_cycle_has_the_gradient_of_its_differences() -> None:
    model, x = LinearSSM(Cycle((4, 40), damped=True)), sunspots() - 6
    problem, names = model.problem(x), ["sigma2.irregular", "sigma2.cycle", "frequency.cycle", "damping.cycle"]
    at = torch.tensor([0.1, 0.4, 0.6, 0.9], dtype=FLOAT, requires_grad=True)

    def evidence(numbers: torch.Tensor) -> torch.Tensor:
        return problem.evidence(dict(zip(names, numbers.unbind(-1), strict=True)))

    (slope,) = torch.autograd.grad(evidence(at), at)
    steps = 1e-5 * torch.eye(4, dtype=FLOAT)
    differences = (evidence(at.detach() + steps) - evidence(at.detach() - steps)) / 2e-5
    assert_close(slope, differences, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("damped", [False, True])
def test_the_maximum_of_a_cycle_is_no_lower_than_that_of_statsmodels(damped: bool) -> None:
    x, bounds = sunspots(), (6, 20)
    peer = peer_of(x, level="llevel", damped_cycle=damped, cycle_period_bounds=bounds, **CYCLE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        starts = [[0.1, 0.1, 0.5, frequency, *[0.9] * damped] for frequency in (0.4, 0.57, 0.8)]
        expected = max(float(peer.fit(start, disp=False).llf) for start in starts)
    fit = LinearSSM(LocalLevel() + Cycle(bounds, damped=damped)).fit(x, progress=False)
    assert fit.loglik >= expected - 1e-5
    assert 9 < 2 * np.pi / float(fit.model.values["frequency.cycle"]) < 13


def test_a_frequency_and_a_damping_are_held() -> None:
    held = {"frequency.cycle": 0.57, "damping.cycle": 0.9}
    fit = LinearSSM(Cycle(damped=True)).fit(sunspots() - 6, fixed=held, restarts=1, progress=False)
    assert {name: float(fit.model.values[name]) for name in held} == held
    assert fit.n_parameters == 2


# ---- regressions -----------------------------------------------------------------------------------------------------


def driven(n_steps: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A level beside two inputs of very different sizes, with some values missing."""
    draws = np.random.default_rng(seed)
    inputs = draws.normal(size=(n_steps, 2)) * [1.0, 300.0]
    x = np.cumsum(draws.normal(size=n_steps)) / 2 + inputs @ [1.5, -0.02] + draws.normal(size=n_steps)
    x[[n_steps // 6, n_steps // 2]] = np.nan
    return x, inputs


def test_a_regression_is_that_of_statsmodels_with_its_coefficients_as_states() -> None:
    x, inputs = driven()
    coming = driven(5, seed=1)[1]
    peer = peer_of(x, level="llevel", exog=inputs, mle_regression=False)
    given = values_of(peer)
    model = LinearSSM(LocalLevel() + Regression(2)).with_values(given)
    expected = peer.smooth(list(given.values()))
    assert float(model.log_evidence(x, inputs=inputs)) == pytest.approx(float(expected.llf), abs=1e-8)
    smoothed = model.smooth(x, inputs=inputs)
    assert_close(smoothed.mean, torch.tensor(expected.smoothed_state.T.copy()), rtol=1e-8, atol=1e-8)
    ahead = model.forecast(x, 5, inputs=np.concatenate([inputs, coming]))
    forecast = expected.get_forecast(5, exog=coming)
    assert_close(ahead.mean[:, 0], torch.tensor(np.asarray(forecast.predicted_mean)), rtol=1e-8, atol=1e-8)
    assert_close(ahead.variance[:, 0], torch.tensor(np.asarray(forecast.var_pred_mean)), rtol=1e-8, atol=1e-8)


def test_a_regression_beside_noise_alone_is_least_squares() -> None:
    x, inputs = driven()
    seen = ~np.isnan(x)
    design = np.column_stack([np.ones(len(x)), inputs])
    expected, residual, *_ = np.linalg.lstsq(design[seen], x[seen], rcond=None)
    fit = LinearSSM(LocalLevel(stochastic=False) + Regression(2)).fit(x, inputs=inputs, restarts=1, progress=False)
    assert_close(fit.smooth().mean[0], torch.tensor(expected), rtol=1e-8, atol=0)
    unbiased = float(residual[0]) / (seen.sum() - 3)  # of restricted maximum likelihood, as coefficients are diffuse
    assert float(fit.model.values["sigma2.irregular"]) == pytest.approx(unbiased, rel=1e-6)


def test_varying_coefficients_are_random_walks_seen_through_their_inputs() -> None:
    """Against the dense normal density of the series, given the coefficients at the start, under a flat prior."""
    x, inputs = driven(30)
    variances = {"sigma2.irregular": 0.5, "sigma2.beta.x1": 0.2, "sigma2.beta.x2": 1e-4}
    model = LinearSSM(Regression(2, varying=True)).with_values(variances)
    times, seen = np.arange(len(x)), ~np.isnan(x)
    walk = np.minimum(times[:, None], times)
    rows = inputs * np.sqrt([0.2, 1e-4])
    covariance = 0.5 * np.eye(len(x)) + (rows @ rows.T) * walk
    inverse = np.linalg.inv(covariance[np.ix_(seen, seen)])
    design, y = inputs[seen], x[seen]
    information = design.T @ inverse @ design
    rest = y - design @ np.linalg.solve(information, design.T @ inverse @ y)
    log_dets = np.linalg.slogdet(covariance[np.ix_(seen, seen)])[1] + np.linalg.slogdet(information)[1]
    expected = -(seen.sum() * np.log(2 * np.pi) + log_dets + rest @ inverse @ rest) / 2
    assert float(model.log_evidence(x, inputs=inputs)) == pytest.approx(expected, abs=1e-8)


@pytest.mark.slow
def test_a_fit_does_not_depend_on_the_units_of_inputs() -> None:
    x, inputs = driven()
    x = x + np.cumsum(np.random.default_rng(2).normal(size=len(x))) * inputs[:, 1] / 300
    model = LinearSSM(LocalLevel(irregular=False) + Regression(2, varying=True))
    fits = [model.fit(x, inputs=inputs * unit, restarts=2, progress=False) for unit in (1.0, 1e5)]
    assert fits[1].loglik + 2 * np.log(1e5) == pytest.approx(fits[0].loglik, abs=1e-6)
    ratio = float(fits[0].model.values["sigma2.beta.x2"] / fits[1].model.values["sigma2.beta.x2"])
    assert ratio == pytest.approx(1e10, rel=1e-3)


def test_lists_of_series_have_lists_of_inputs() -> None:
    series = [driven(n, seed) for seed, n in enumerate((40, 25, 31))]
    model = LinearSSM(LocalLevel() + Regression(2)).with_values({"sigma2.irregular": 0.9, "sigma2.level": 0.3})
    together = model.log_evidence([x for x, _ in series], inputs=[inputs for _, inputs in series])
    alone = [model.log_evidence(x, inputs=inputs) for x, inputs in series]
    assert_close(together, torch.stack(alone), rtol=1e-12, atol=0)
    shorter = [inputs if i != 1 else inputs[1:] for i, (_, inputs) in enumerate(series)]
    with pytest.raises(ValueError, match=r"inputs\[1\]: got shape \(24, 2\), expected a row for each of 25 steps"):
        model.log_evidence([x for x, _ in series], inputs=shorter)


def test_everything_of_a_fit_works_with_inputs(tmp_path: Path) -> None:
    x, inputs = driven(40)
    model = LinearSSM(LocalLevel() + Regression(2, varying=True) + Autoregression(1))
    held = {"sigma2.beta.x2": 0.0, "sigma2.irregular": 0.3}
    fit = model.fit(x, inputs=inputs, fixed=held, restarts=1, progress=False)
    assert float(fit.model.values["sigma2.beta.x2"]) == 0.0
    coming = driven(4, seed=1)[1]
    ahead = fit.forecast(4, inputs=coming)
    assert_close(ahead.mean, fit.model.forecast(x, 4, inputs=np.concatenate([inputs, coming])).mean)
    assert "beta.x1" in str(fit.summary())
    assert list(fit.states().columns[1:3]) == ["latent_mean_beta.x1", "latent_mean_beta.x2"]
    fit.plot()
    ahead.plot()
    fit.save(tmp_path)
    again = load(tmp_path).model
    assert again.dynamics == model.dynamics
    assert_close(again.log_evidence(x, inputs=inputs), fit.log_evidence())
    drawn = fit.model.simulate(5, (2,), seed=0, inputs=np.stack([coming[[0, 0, 1, 2, 3]]] * 2))
    assert drawn.x.shape == (2, 5, 1)


def test_a_stream_with_inputs_is_the_filter() -> None:
    x, inputs = driven(20)
    model = LinearSSM(LocalLevel() + Regression(2)).with_values({"sigma2.irregular": 0.9, "sigma2.level": 0.3})
    state, outputs = streamed(model, torch.as_tensor(x).unsqueeze(-1), inputs=torch.as_tensor(inputs))
    filtered = model.filter(x, inputs=inputs)
    assert_close(outputs[-1].mean, filtered.mean[-1], rtol=1e-9, atol=1e-9)
    assert_close(state.log_evidence, filtered.log_normalizer, rtol=1e-9, atol=0)


# ---- files and errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMS)
def test_forms_are_written_and_read(name: str, tmp_path: Path) -> None:
    structure = FORMS[name][0]
    LinearSSM(structure).save(tmp_path)
    assert load(tmp_path).dynamics == structure
    assert eval(repr(structure)) == structure


def test_wrong_arguments_are_refused_with_their_cure() -> None:
    x, inputs = driven(20)
    model = LinearSSM(LocalLevel() + Regression(2))
    with pytest.raises(ValueError, match=r"inputs: missing; the model reads 2; give them, of shape \(20, 2\)"):
        model.fit(x, progress=False)
    with pytest.raises(ValueError, match=r"inputs: got shape \(20, 1\), expected \(20, 2\)"):
        model.fit(x, inputs=inputs[:, :1], progress=False)
    with pytest.raises(ValueError, match="inputs: got NaN"):
        model.fit(x, inputs=inputs * np.nan, progress=False)
    with pytest.raises(ValueError, match=r"as in LocalLevel\(\) \+ Regression"):
        LinearSSM(LocalLevel()).fit(x, inputs=inputs, progress=False)
    with pytest.raises(ValueError, match=r"diffuse: .* do not determine"):
        model.with_values({"sigma2.irregular": 1.0, "sigma2.level": 1.0}).smooth(x, inputs=np.ones((20, 2)))
    with pytest.raises(ValueError, match="no noise"):
        LinearSSM(LocalLevel(stochastic=False, irregular=False))
    with unchecked(), pytest.raises(TypeError, match="irregular: got 1, expected True or False"):
        LocalLevel(irregular=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="period: got 2, expected more than 2"):
        Cycle(2)
    with pytest.raises(ValueError, match="period: got None"):
        Cycle()
    with pytest.raises(ValueError, match="period: got bounds 9 and 4"):
        Cycle((9, 4))
    with pytest.raises(ValueError, match="stochastic: got False"):
        Cycle(9, damped=True, stochastic=False)
    with pytest.raises(ValueError, match=r"damping.cycle: got 1.0, expected less than 1"):
        LinearSSM(Cycle(9, damped=True)).with_values(
            {"sigma2.irregular": 1.0, "sigma2.cycle": 1.0, "damping.cycle": 1.0}
        )
    with pytest.raises(ValueError, match=r"frequency.cycle"):
        LinearSSM(Cycle((4, 9))).with_values({"sigma2.irregular": 1.0, "sigma2.cycle": 1.0, "frequency.cycle": 3.0})
