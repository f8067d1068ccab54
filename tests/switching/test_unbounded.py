"""Maximum likelihood where a state sits on a single point, and the likelihood has no maximum."""

import numpy as np
import pytest
import samplehold as sh
import torch

from tests.examples import slow

QUIET = {"prior": None, "progress": False}


def sensor(seed):
    """A sensor with a floor, and few levels above it."""
    rng = np.random.default_rng(seed)
    return np.r_[[0.001] * 80, rng.choice([0.001, 0.3, 0.6, 1.2], 60)]


@pytest.mark.parametrize("seed", [3, *map(slow, (0, 1, 2))])
def test_a_state_on_many_equal_values_is_kept_and_reported(seed):
    """No end without such a state is preferred to it where the weak prior finds it too."""
    model = sh.SwitchingSSM(sh.Markov(3), sh.Normal(1))
    weak = model.fit(sensor(seed), restarts=2, progress=False)
    fit = model.fit(sensor(seed), restarts=2, **QUIET)
    assert fit.loglik > weak.loglik
    assert bool(fit.collapsed_states.any())
    assert 'where the likelihood is unbounded (this one too): prior="weak" bounds it' in fit.reason
    assert fit.loglik == pytest.approx(fit.restarts.objective.max(), abs=1e-6)


def test_a_state_on_few_values_is_passed_over_which_is_said(nile):
    fit = sh.SwitchingSSM(sh.Markov(3), sh.Normal(1)).fit(nile[:40], restarts=2, max_steps=20, **QUIET)
    assert not bool(fit.collapsed_states.any())
    assert fit.restarts.objective.max() > fit.objective[-1] + 1
    assert "(the best of the others is kept)" in fit.reason


Y = np.r_[np.zeros(40), np.cumsum(np.random.default_rng(1).normal(size=40)), np.zeros(30)]
REGRESSIONS = {
    "autoregressive": sh.AutoRegressive(1),
    "regression": sh.LinearRegression(1, inputs=["before"]),
    "shared coefficients": sh.AutoRegressive(1, switching=["scale"]),
    "shared inputs": sh.LinearRegression(1, inputs=["before"], shared=["before"]),
}


@pytest.mark.parametrize("name", ["autoregressive", *map(slow, list(REGRESSIONS)[1:])])
def test_a_regression_without_residuals_is_reported(name):
    inputs = {"inputs": {"before": np.r_[0, Y[:-1]]}} if "before" in str(REGRESSIONS[name]) else {}
    model = sh.SwitchingSSM(sh.Markov(2), REGRESSIONS[name])
    fit = model.fit(Y, restarts=2, **QUIET, **inputs)
    narrow = fit.model.describe()["scale"].flatten() < 1e-3 * np.std(Y)
    assert narrow.tolist() == fit.collapsed_states.tolist()
    assert bool(narrow.any())
    assert "unbounded" in fit.reason


def test_lags_of_zeros_leave_the_other_coefficients():
    """A column of zeros has no coefficient, and the M-step is that of the other columns."""
    emission, x = sh.AutoRegressive(1), torch.tensor([[1.0, 0.0], [3.0, 0.0]]).double()
    near = emission.start(emission.default_prior(1, x[:, :1]))
    best = emission.maximize(x, torch.ones(2, 1).double(), near, None, torch.full((1,), 1e-10).double()).values
    assert float(best["loc"]) == pytest.approx(2.0)
    assert float(best["precision"]) == pytest.approx(1.0)


EMISSIONS = {
    "normal": sh.Normal(2),
    "spherical": sh.Normal(2, covariance="spherical"),
    "full": sh.MultivariateNormal(2),
    "student t": sh.StudentT(2),
    "regression": sh.LinearRegression(2, inputs=1),
    "autoregressive": sh.AutoRegressive(1, 2),
    "vector autoregressive": sh.AutoRegressive(1, 2, covariance="full"),
    "factors": sh.FactorAnalysis(2, 1),
    "mixture": sh.Mixture(sh.Normal(2), 2),
    "joint": sh.Joint(one=sh.Normal(1), two=sh.Normal(1)),
}


@pytest.mark.parametrize("name", EMISSIONS)
def test_every_emission_has_the_same_definition_of_a_collapse(name):
    """A scale at the square root of the floor has collapsed, and one of four times it has not."""
    emission, floor = EMISSIONS[name], torch.tensor([1e-8, 1e-8], dtype=torch.float64)
    values = emission.start(emission.default_prior(2, None))
    for scale, expected in ((1e-4, [True, False]), (4e-4, [False, False])):
        assert emission.collapsed(at_scale(values, scale), floor).tolist() == expected


def at_scale(values, scale):
    """The values with this scale of the first state, and 1 of the second."""

    def moved(name, table):
        if name.endswith("precision"):
            unit = torch.eye(2).double() if table.ndim > 2 and table.shape[-1] == table.shape[-2] else 1.0
            by = torch.tensor([scale**-2, 1.0]).double().reshape(-1, *[1] * (table.ndim - 1))
            return (by * unit).expand_as(table)
        if name == "noise":
            return torch.tensor([[scale**2], [1.0]]).double().expand_as(table)
        return torch.zeros_like(table) if name == "loadings" else table

    return {name: moved(name, table.double()) for name, table in values.items()}


@pytest.mark.parametrize("concentration", [1.0, 1e6, 1e10, 1e12])
def test_an_m_step_on_one_angle_never_lowers_the_likelihood(concentration):
    """Not even where the concentration is at its limit, or beyond it."""
    emission, x = sh.VonMises(1), torch.full((12, 1), 0.7).double()
    weights = torch.rand(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    near = {"loc": torch.full((2, 1), 0.7).double(), "concentration": torch.full((2, 1), concentration).double()}
    best = emission.maximize(x, weights, near, None, torch.full((1,), 1e-10).double()).values
    assert (weights * emission.table(x, best)).sum() >= (weights * emission.table(x, near)).sum() - 1e-9
