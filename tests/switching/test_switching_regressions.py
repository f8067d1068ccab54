"""Switching regressions of the federal funds rate, whose maxima other people's code has computed."""

import ast
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import samplehold as sh

SCALE = {"scale": "all states"}


@pytest.fixture(scope="module")
def rate() -> np.ndarray:
    """226 quarters of the federal funds rate, as they stand in statsmodels' own tests."""
    spec = importlib.util.find_spec("statsmodels.tsa.regime_switching.tests.test_markov_regression")
    assert spec is not None
    assert spec.origin is not None
    for statement in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "fedfunds":
            return np.asarray(ast.literal_eval(statement.value), dtype=float)
    raise AssertionError("the installed statsmodels has no such series")


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_best_of_the_default_search_is_the_maximum_that_is_known(rate, seed):
    constant = sh.SwitchingSSM(sh.Markov(2, initial="stationary"), sh.Normal(1, tied=SCALE))
    best = constant.fit(rate, prior=None, seed=seed, progress=False)
    assert float(best.log_evidence()) == pytest.approx(-508.63592, abs=0.01)
    lagged = sh.SwitchingSSM(sh.Markov(2, initial="stationary"), sh.LinearRegression(1, inputs=["lag"], tied=SCALE))
    best = lagged.fit(rate[1:], inputs={"lag": rate[:-1]}, prior=None, seed=seed, progress=False)
    assert float(best.log_evidence()) == pytest.approx(-264.71069, abs=0.01)
    assert best.agreeing > 5
    emission = sh.AutoRegressive(1, switching=["intercept", "coefficients"])
    own_lag = sh.SwitchingSSM(sh.Markov(2, initial="stationary"), emission)
    assert float(own_lag.fit(rate, prior=None, seed=seed, progress=False).log_evidence()) == pytest.approx(
        -264.71069, abs=0.01
    )
