"""Profile intervals of structures, beside profiles of the evidence of the chain by scipy, in standard deviations."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from samplehold import Autoregression, Fit, LinearSSM, LocalLevel, LocalLinearTrend, Regression
from scipy.optimize import minimize
from scipy.stats import chi2

from tests.examples import slow
from tests.switching.test_linear_structures import nile

FAR = -1e8  # height of impossible parameters


pytestmark = pytest.mark.usefixtures("as_users_call")


def profile(height: Callable[[np.ndarray], float], place: int, number: float, best: np.ndarray) -> float:
    """The greatest height of points whose entry `place` is this number, by the simplex method from two starts."""
    others = [i for i in range(len(best)) if i != place]

    def minus(rest: np.ndarray) -> float:
        at = np.empty(len(best))
        at[place], at[others] = number, rest
        return -height(at)

    if not others:
        return -minus(best[others])
    options = {"xatol": 1e-6, "fatol": 1e-7, "maxiter": 2000}
    starts = best[others], 0.5 * best[others] + 0.1 * best.max() * (best[others] == 0)
    return max(-minimize(minus, start, method="Nelder-Mead", options=options).fun for start in starts)


def heights_of(fit: Fit[Any], x: Any, names: list[str], **given: Any) -> Callable[[np.ndarray], float]:
    """The objective at standard deviations, and at other numbers as they are."""
    problem = fit.model.problem(x, **given)
    problem = replace(problem, prior=None if fit.prior is None else problem.prior)

    def height(at: np.ndarray) -> float:
        numbers = {name: n * n if name.startswith("sigma2") else n for name, n in zip(names, at, strict=True)}
        values = {name: torch.tensor(n, dtype=torch.float64) for name, n in numbers.items()} | dict(fit.held)
        try:
            return float(problem.objective(values))
        except ValueError:
            return FAR

    return height


def best_of(fit: Fit[Any], names: list[str]) -> np.ndarray:
    numbers = [float(fit.model.values[name]) for name in names]
    return np.array([n**0.5 if name.startswith("sigma2") else n for name, n in zip(names, numbers, strict=True)])


def check(fit: Fit[Any], x: Any, level: float = 0.9, **given: Any) -> None:
    """At the ends of every interval the profile in standard deviations has fallen by the quantile; it is lower outside,
    and it is not at an end that is 0."""
    names = [name for name in fit.model.known if name not in fit.fixed]
    interval = fit.profile_interval(level)
    assert list(interval.lower) == list(interval.upper) == names
    best, height = best_of(fit, names), heights_of(fit, x, names, **given)
    least = height(best) - float(chi2.ppf(level, 1)) / 2
    for place, name in enumerate(names):
        is_variance = name.startswith("sigma2")
        for end in (float(interval.lower[name]), float(interval.upper[name])):
            c = end**0.5 if is_variance else end
            there = profile(height, place, c, best)
            if is_variance and end == 0.0:
                assert there >= least
                continue
            assert there == pytest.approx(least, abs=2e-5), name
            for factor in (1.2, 3.0):
                outside = best[place] + factor * (c - best[place])
                if (outside > 0.0) if is_variance else (abs(outside) < 1):
                    assert profile(height, place, outside, best) < least


def line() -> np.ndarray:
    """A line with noise: the best variances of its level and its drift are 0."""
    return 0.5 * np.arange(40) + np.random.default_rng(0).normal(size=40)


@pytest.mark.parametrize("level", [0.95, slow(0.5)])
@pytest.mark.slow
def test_intervals_of_the_nile_are_those_of_the_profile_at_any_level(level: float) -> None:
    check(LinearSSM(LocalLevel()).fit(nile(), progress=False), nile(), level)


@pytest.mark.slow
def test_an_interval_begins_at_a_variance_of_0_and_ends_where_the_profile_does() -> None:
    fit = LinearSSM(LocalLinearTrend()).fit(line(), progress=False)
    interval = fit.profile_interval()
    assert float(fit.model.values["sigma2.trend"]) == float(interval.lower["sigma2.trend"]) == 0.0
    assert float(interval.upper["sigma2.trend"]) > 0.0
    check(fit, line())


@pytest.mark.slow
def test_other_parameters_may_be_held_and_the_plain_form_serves() -> None:
    fit = LinearSSM(LocalLevel()).fit(nile(), fixed={"sigma2.irregular": 15000.0}, restarts=1, progress=False)
    check(fit, nile())


@pytest.mark.slow
def test_series_share_a_profile_and_inputs_have_theirs() -> None:
    x = nile().to_numpy(dtype=float).reshape(2, 50, 1)
    drive = np.cos(np.arange(100.0)).reshape(2, 50, 1)
    fit = LinearSSM(LocalLevel() + Regression(1)).fit(x, inputs=drive, progress=False)
    check(fit, x, inputs=drive)


@pytest.mark.slow
def test_the_profile_is_of_the_objective_that_was_maximised() -> None:
    prior = {"center": [900.0], "spread": [20.0]}
    fit = LinearSSM(LocalLevel()).fit(nile(), prior=prior, progress=False)
    check(fit, nile())
    plain = LinearSSM(LocalLevel()).fit(nile(), progress=False).profile_interval(0.9)
    assert float(fit.profile_interval(0.9).upper["sigma2.irregular"]) < float(plain.upper["sigma2.irregular"])


@pytest.mark.slow
def test_coefficients_of_an_autoregression_have_profiles() -> None:
    draws, x = np.random.default_rng(3).normal(size=80), np.zeros(80)
    for t in range(80):
        x[t] = 0.6 * x[t - 1] - 0.4 * x[t - 2] + draws[t] if t > 1 else draws[t]
    fit = LinearSSM(Autoregression(2)).fit(x, fixed={"sigma2.irregular": 0.0}, progress=False)
    check(fit, x)


def test_an_end_is_infinite_if_the_data_say_nothing_of_a_variance() -> None:
    """The input is there at one step only, so how its coefficient moves is not seen."""
    drive = (np.arange(100) == 40).astype(float)[:, None]
    fit = LinearSSM(LocalLevel() + Regression(1, varying=True)).fit(nile(), inputs=drive, progress=False)
    ends = fit.profile_interval(0.9, "sigma2.beta.x1")
    assert float(ends.lower["sigma2.beta.x1"]) == 0.0
    assert math.isinf(float(ends.upper["sigma2.beta.x1"]))


@pytest.mark.few(1)
@pytest.mark.parametrize("unit", [1e-3, 1e4])
def test_intervals_have_the_unit_and_the_dtype_of_the_series(unit: float) -> None:
    expected = LinearSSM(LocalLevel()).fit(nile(), progress=False).profile_interval(0.8)
    x = torch.tensor(nile().to_numpy() * unit, dtype=torch.float32)
    found = LinearSSM(LocalLevel()).fit(x, progress=False).profile_interval(0.8)
    for ends, reference in zip(found, expected, strict=True):
        for name, end in ends.items():
            assert end.dtype == torch.float32
            assert float(end) / unit**2 == pytest.approx(float(reference[name]), rel=1e-4)


@pytest.mark.slow
def test_a_summary_with_a_parameter_at_0_names_the_profile_and_only_fits_that_have_one_do() -> None:
    fit = LinearSSM(LocalLinearTrend()).fit(line(), restarts=2, progress=False)
    assert any("fit.profile_interval()" in note for note in fit.summary().notes)
    inside = LinearSSM(LocalLevel()).fit(nile(), restarts=1, progress=False)
    assert not any("profile_interval" in note for note in inside.summary().notes)
    tables = LinearSSM(1).fit(nile(), restarts=1, max_steps=2, progress=False)
    assert not hasattr(tables, "profile_interval")


def test_wrong_arguments_are_refused() -> None:
    fit = LinearSSM(LocalLevel()).fit(nile(), fixed={"sigma2.irregular": 15000.0}, restarts=1, progress=False)
    with pytest.raises(ValueError, match=r"level: got 1\.0"):
        fit.profile_interval(1.0)
    with pytest.raises(ValueError, match=r"parameters: got \['sigma2\.trend'\], but this fit estimates"):
        fit.profile_interval(parameters="sigma2.trend")
    with pytest.raises(ValueError, match=r"holds \['sigma2\.irregular'\]"):
        fit.profile_interval(parameters=["sigma2.level", "sigma2.irregular"])
