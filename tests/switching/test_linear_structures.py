"""Structures of one series: numbers of the Nile, and those of statsmodels."""

import math
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from oracles import naive_linear_gaussian as naive
from samplehold import Autoregression, LinearSSM, LocalLevel, LocalLinearTrend, Seasonal
from samplehold.switching.linear.stationary import (
    from_partial_autocorrelations,
    partial_autocorrelations,
)
from statsmodels.tsa.api import UnobservedComponents
from torch.testing import assert_close

FLOAT = torch.float64
DATA = Path(__file__).parents[2] / "notebooks" / "data"
IRREGULAR, LEVEL = 15098.518, 1469.1764


def nile() -> pd.Series:
    return pd.read_csv(DATA / "nile.csv", index_col=0).iloc[:, 0]


def inflation() -> np.ndarray:
    """Quarterly inflation of the United States, with some values put out."""
    series = pd.read_csv(DATA / "us_macro.csv")["infl"].to_numpy(dtype=float).copy()
    series[[3, 40, 41, 42, 100]] = np.nan
    return series


def values(structure: object, irregular: float = 0.7) -> dict[str, float]:
    """Some variances, and weights of a stationary autoregression."""
    found = {"sigma2.irregular": irregular}
    for place, name in enumerate(structure.parameters):  # type: ignore[attr-defined]
        found[name] = 0.3 + 0.2 * place if name.startswith("sigma2") else 0.5 / int(name.removeprefix("ar.L")) ** 2
    return found


# ---- the Nile --------------------------------------------------------------------------------------------------------


def test_evidence_of_the_nile_is_that_of_durbin_and_koopman_with_the_constant_of_the_diffuse_step() -> None:
    model = LinearSSM(LocalLevel()).with_values({"sigma2.irregular": IRREGULAR, "sigma2.level": LEVEL})
    found = float(model.log_evidence(nile()))
    assert found == pytest.approx(-633.4645636, abs=5e-8)
    assert found + np.log(2 * np.pi) / 2 == pytest.approx(-632.5456251, abs=5e-8)


@pytest.mark.few(1)
@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e6])
def test_maximum_likelihood_of_the_nile_is_found_in_any_unit(unit: float) -> None:
    fit = LinearSSM(LocalLevel()).fit(nile() * unit, restarts=1, progress=False)
    found = {name: float(value) / unit**2 for name, value in fit.model.values.items()}
    assert found["sigma2.irregular"] == pytest.approx(IRREGULAR, rel=5e-6)
    assert found["sigma2.level"] == pytest.approx(LEVEL, rel=5e-6)
    assert fit.converged
    assert fit.prior is None
    assert fit.n_parameters == 2
    assert float(fit.objective[-1]) == pytest.approx(fit.loglik, abs=1e-6)
    assert fit.loglik + 99 * np.log(unit) == pytest.approx(-633.4645636, abs=1e-6)


def test_standard_errors_are_those_of_the_observed_information() -> None:
    """Of second differences of the evidence, in the logarithms of the variances."""
    fit = LinearSSM(LocalLevel()).fit(nile(), restarts=1, progress=False)
    at = torch.stack([*fit.model.values.values()]).log()
    steps = 1e-3 * torch.eye(2).to(at)
    points = [at + a + b for a in (*steps, *-steps) for b in (*steps, *-steps)]
    values = torch.stack(points).exp()
    heights = fit.model.problem(nile()).evidence(dict(zip(fit.model.values, values.unbind(-1), strict=True)))
    corners = heights.reshape(2, 2, 2, 2)  # sign and place of one step, of the other
    signs = corners.new_tensor([1.0, -1.0])
    information = -torch.einsum("s,u,siuj->ij", signs, signs, corners) / (4 * 1e-6)
    expected = at.exp() * torch.linalg.inv(information).diagonal().sqrt()
    found = torch.tensor(fit.summary().parameters["standard error"].to_numpy())
    assert_close(found, expected, rtol=1e-3, atol=0)


@pytest.mark.slow
def test_a_summary_says_that_errors_beside_a_boundary_are_conditional() -> None:
    """A line with noise: the best variances of its level and its drift are 0."""
    x = 0.5 * np.arange(40) + np.random.default_rng(0).normal(size=40)
    fit = LinearSSM(LocalLinearTrend()).fit(x, restarts=2, progress=False)
    assert float(fit.model.values["sigma2.trend"]) == 0.0
    summary = fit.summary()
    assert any("conditional on its value" in note for note in summary.notes)
    held = {name: float(value) for name, value in fit.model.values.items() if not float(value)}
    alone = LinearSSM(LocalLinearTrend()).fit(x, fixed=held, restarts=1, progress=False).summary()
    errors = [part.parameters.loc["sigma2.irregular", "standard error"] for part in (summary, alone)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-4)


# ---- statsmodels -----------------------------------------------------------------------------------------------------

STRUCTURES = {
    "level": (LocalLevel(), {"level": "llevel"}),
    "trend": (LocalLinearTrend(), {"level": "lltrend"}),
    "season": (LocalLevel() + Seasonal(4), {"level": "llevel", "seasonal": 4}),
    "harmonics": (
        LocalLevel() + Seasonal(7, trigonometric=2),
        {"level": "llevel", "freq_seasonal": [{"period": 7, "harmonics": 2}]},
    ),
    "season of harmonics": (
        LocalLinearTrend() + Seasonal(4, trigonometric=True),
        {"level": "lltrend", "freq_seasonal": [{"period": 4}]},
    ),
    "autoregression": (Autoregression(2), {"autoregressive": 2, "irregular": True}),
    "sum": (
        LocalLevel() + Seasonal(4) + Seasonal(7, trigonometric=2) + Autoregression(3),
        {"level": "llevel", "seasonal": 4, "freq_seasonal": [{"period": 7, "harmonics": 2}], "autoregressive": 3},
    ),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_are_those_of_statsmodels(name: str) -> None:
    structure, keywords = STRUCTURES[name]
    x, given = inflation(), values(structure)
    model = LinearSSM(structure).with_values(given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = UnobservedComponents(x, use_exact_diffuse=True, **keywords)
    peer.ssm.tolerance = 0.0  # of a filter that has settled: it is to go on
    assert set(peer.param_names) == set(given)
    found = peer.smooth([given[parameter] for parameter in peer.param_names], transformed=True)
    evidence = float(model.log_evidence(x))
    assert float(model.log_evidence(x[:60])) == pytest.approx(dense_evidence(model, x[:60]), abs=1e-8)
    # beside harmonics, whose first variances are all but collinear, its diffuse recursions lose some digits
    tolerance = 1e-6 if "freq_seasonal" in keywords else 1e-8
    assert evidence == pytest.approx(float(found.llf), abs=tolerance)
    states, covariances = found.smoothed_state.T, found.smoothed_state_cov.transpose(2, 0, 1)
    seen = [place for place, state in enumerate(peer.state_names) if not nyquist(state, structure)]
    smoothed = model.smooth(x)
    ahead, expected = model.forecast(x, 5), found.get_forecast(5)
    for own, other in (
        (smoothed.mean, states[:, seen]),
        (smoothed.covariance, covariances[:, seen][:, :, seen]),
        (ahead.mean[:, 0], expected.predicted_mean),
        (ahead.variance[:, 0], expected.var_pred_mean),
    ):
        assert_close(own, torch.tensor(np.asarray(other)), rtol=tolerance, atol=tolerance)


def dense_evidence(model: LinearSSM, x: np.ndarray) -> float:
    """Of the series and all states as one normal vector."""
    n_latent, n_steps, x = model.n_latent, len(x), torch.tensor(x).unsqueeze(-1)
    values = model.values_like(x)
    moves, sights = model.dynamics.moves(values), model.emission.sights(values)
    zero = torch.zeros(n_latent, dtype=FLOAT)
    start = torch.diag(zero) if moves.initial_covariance is None else moves.initial_covariance
    sequence = naive.Sequence(
        x,
        moves.transition.expand(n_steps - 1, -1, -1),
        zero.expand(n_steps - 1, -1),
        moves.state_noise.expand(n_steps - 1, -1, -1),
        sights.emission.expand(n_steps, -1, -1),
        torch.zeros(n_steps, 1, dtype=FLOAT),
        sights.observation_noise.expand(n_steps, -1, -1),
        zero,
        start,
        torch.eye(n_latent, dtype=FLOAT)[:, list(model.dynamics.diffuse)],
    )
    return float(naive.posterior(sequence, n_steps).log_normalizer)


def nyquist(state: str, structure: object) -> bool:
    """The entry of the harmonic of period 2 that statsmodels adds, and that no observation sees."""
    return "Seasonal(period=4, trigonometric=2)" in repr(structure) and state == "freq_seasonal.3"


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["trend", "season", "autoregression"])
def test_maximum_likelihood_is_no_lower_than_that_of_statsmodels(name: str) -> None:
    structure, keywords = STRUCTURES[name]
    x = inflation()[43:100]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = UnobservedComponents(x, use_exact_diffuse=True, **keywords).fit(disp=False)
    fit = LinearSSM(structure).fit(x, restarts=1, progress=False)
    assert fit.loglik >= float(found.llf) - 1e-5


# ---- autoregressions -------------------------------------------------------------------------------------------------


def test_partial_autocorrelations_go_there_and_back_and_the_stationary_covariance_stays() -> None:
    partial = torch.tensor([[0.9, -0.5, 0.3], [-0.2, 0.7, -0.95]], dtype=FLOAT)
    weights = from_partial_autocorrelations(partial)
    assert_close(partial_autocorrelations(weights), partial, rtol=1e-12, atol=1e-12)
    values = dict(zip(("sigma2.ar", "ar.L1", "ar.L2", "ar.L3"), (torch.ones(2, dtype=FLOAT), *weights.mT), strict=True))
    move, noise, _, covariance, _ = Autoregression(3).moves(values)
    shift = torch.eye(3, dtype=FLOAT)[:2].expand(2, 2, 3)
    assert_close(move, torch.cat([weights.unsqueeze(-2), shift], -2), rtol=0.0, atol=0.0)
    assert_close(move @ covariance @ move.mT + noise, covariance, rtol=1e-10, atol=1e-10)


def test_an_autoregression_that_is_not_stationary_is_refused() -> None:
    with pytest.raises(ValueError, match="not stationary"):
        LinearSSM(Autoregression(2)).with_values(
            {"sigma2.irregular": 1.0, "sigma2.ar": 1.0, "ar.L1": 0.7, "ar.L2": 0.4}
        )


@pytest.mark.parametrize(("size", "taken"), [(0.99, True), (0.999, True), (0.9999, False)])
def test_an_autoregression_whose_covariances_have_no_digits_is_refused(size: float, taken: bool) -> None:
    weights = from_partial_autocorrelations(size * torch.tensor([1.0, -1.0, 1.0], dtype=FLOAT)).tolist()
    values = {"sigma2.irregular": 1.0, "sigma2.ar": 1.0, **dict(zip(("ar.L1", "ar.L2", "ar.L3"), weights, strict=True))}
    with nullcontext() if taken else pytest.raises(ValueError, match="rounding hides shares below 1e-11"):
        LinearSSM(Autoregression(3)).with_values(values)


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def test_what_is_wrong_is_told_with_its_cure() -> None:
    level = LinearSSM(LocalLevel())
    with pytest.raises(ValueError, match=r"sigma2\.level: got -1\.0, expected a number of at least 0"):
        level.with_values({"sigma2.irregular": 1.0, "sigma2.level": -1.0})
    with pytest.raises(ValueError, match=r"sigma2\.level: missing"):
        level.with_values({"sigma2.irregular": 1.0})
    with pytest.raises(ValueError, match="unknown"):
        level.with_values({"sigma2.irregular": 1.0, "sigma2.level": 1.0, "sigma2.trend": 1.0})
    with pytest.raises(ValueError, match=r"two terms with sigma2\.level"):
        LocalLevel() + LocalLinearTrend()
    with pytest.raises(TypeError, match="expected a structure"):
        LocalLevel() + 3  # type: ignore[operator]
    with pytest.raises(ValueError, match="period: got 1"):
        Seasonal(1)
    with pytest.raises(ValueError, match="trigonometric: got 4"):
        Seasonal(6, trigonometric=4)
    with pytest.raises(ValueError, match="n_features: got 2"):
        LinearSSM(LocalLevel(), 2)
    season = LinearSSM(LocalLevel() + Seasonal(4)).with_values(values(LocalLevel() + Seasonal(4)))
    with pytest.raises(ValueError, match=r"x: got 3 observed step\(s\), but .* starts with 4 unknown numbers"):
        season.log_evidence([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"x: got 3 observed step\(s\)"):
        season.fit([1.0, 2.0, 3.0], progress=False)
    with pytest.raises(ValueError, match="horizon"):
        season.forecast(inflation(), 0)
    with pytest.raises(ValueError, match="no parameter values yet"):
        level.smooth(nile())


@pytest.mark.parametrize(
    ("structure", "x", "said"),
    [
        (LocalLevel(), np.full(12, 3.0), "is constant"),
        (LocalLinearTrend(), 3.0 + 0.5 * np.arange(12.0), "follows .* without any noise"),
    ],
    ids=["constant", "line"],
)
def test_a_series_that_a_structure_follows_without_noise_is_refused(
    structure: object, x: np.ndarray, said: str
) -> None:
    with pytest.raises(ValueError, match=rf"x: {said}, so the likelihood of its variances has no maximum"):
        LinearSSM(structure).fit(x, restarts=2, progress=False)


def test_harmonics_turn_by_angles_of_double_precision() -> None:
    season = Seasonal(7, trigonometric=True)
    moves = season.moves({name: torch.ones((), dtype=torch.float64) for name in season.variances})
    angle = torch.tensor(2 * math.pi / 7, dtype=torch.float64)
    assert_close(moves.transition[0, :2], torch.stack([angle.cos(), angle.sin()]), rtol=1e-15, atol=0.0)


# ---- without an irregular part ---------------------------------------------------------------------------------------

WITHOUT = {
    "random walk": (LocalLevel(), {"level": "random walk"}, {"sigma2.level": 900.0}),
    "random trend": (LocalLinearTrend(), {"level": "random trend"}, {"sigma2.level": 0.0, "sigma2.trend": 900.0}),
    "walk and season": (
        LocalLevel() + Seasonal(4),
        {"level": "random walk", "seasonal": 4},
        {"sigma2.level": 900.0, "sigma2.seasonal": 30.0},
    ),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_structures_without_an_irregular_part_are_those_of_statsmodels(name: str) -> None:
    structure, theirs, known = WITHOUT[name]
    peer = UnobservedComponents(nile().to_numpy(dtype=float), use_exact_diffuse=True, **theirs)
    given = [value for value in known.values() if value > 0]
    model = LinearSSM(structure).with_values({"sigma2.irregular": 0.0} | known)
    assert float(model.log_evidence(nile())) == pytest.approx(peer.loglike(given), abs=1e-9)
    smoothed, expected = model.smooth(nile()).mean, peer.smooth(given).smoothed_state.T
    n = min(smoothed.shape[-1], expected.shape[-1])
    assert_close(smoothed[:, :n].numpy()[:, 0], expected[:, 0].copy(), rtol=1e-8, atol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", WITHOUT)
def test_an_irregular_part_that_is_held_at_0_is_fitted_beside(name: str) -> None:
    structure, theirs, known = WITHOUT[name]
    held = {"sigma2.irregular": 0.0} | {key: 0.0 for key, value in known.items() if value == 0}
    fit = LinearSSM(structure).fit(nile(), fixed=held, restarts=2, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = UnobservedComponents(nile().to_numpy(dtype=float), use_exact_diffuse=True, **theirs).fit(disp=0)
    assert fit.converged
    assert fit.loglik >= peer.llf - 1e-4
    assert bool(fit.summary().parameters["estimate"].notna().all())


@pytest.mark.parametrize(
    ("structure", "x"), [(LocalLevel(), [1.0]), (LocalLevel(), [[[1.0]], [[2.0]]]), (LocalLinearTrend(), [1.0, 2.0])]
)
def test_a_series_that_only_determines_the_start_is_refused(structure, x):
    with pytest.raises(ValueError, match=r"x: got \d observed step\(s\), which only determine where .* starts"):
        LinearSSM(structure).fit(x, progress=False)


def test_variances_that_few_steps_determine_only_together_are_named():
    level = LinearSSM(LocalLevel())
    with pytest.warns(UserWarning, match=r"determine sigma2\.irregular, sigma2\.level only together"):
        level.fit([1.0, 2.0], progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = level.fit([1.0, 2.0], fixed={"sigma2.irregular": 0.1}, progress=False)
    assert fit.values["sigma2.level"] == pytest.approx(0.8, abs=1e-5)  # 1 = 2 irregular + level
