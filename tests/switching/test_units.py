"""Fits of data far from 0, of any spread, in either precision: as of the same data at 0 with spread 1."""

import math

import pytest
import samplehold as sh
import torch
from samplehold.switching.fitting import Units
from torch import Tensor
from torch.testing import assert_close

N = 60
GATED_TIED = sh.Gated(sh.Normal(2), sh.Normal(2), tied={"scale": "all states"})
NORMALS = {"Normal": sh.Normal(2), "MultivariateNormal": sh.MultivariateNormal(2)}


def two_levels(seed: int = 0) -> Tensor:
    x = torch.randn(N, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[20:40] += 6
    return x


def fitted(
    x: Tensor, emission: sh.Emission, dynamics: str = "Copy", unscaled: bool = False, **keywords: object
) -> sh.Fit:
    """A fit; `unscaled`: under the prior that the model starts with, whatever the data."""
    model = sh.SwitchingSSM(getattr(sh, dynamics)(2), emission)
    keywords |= {"prior": model.prior} if unscaled else {}
    return model.fit(x, restarts=1, max_steps=60, progress=False, **keywords)  # pyright: ignore[reportArgumentType]


def least_rise(objective: Tensor) -> float:
    return float(objective.diff().min())


@pytest.mark.slow
@pytest.mark.parametrize("dynamics", ["Copy", "Markov"])
@pytest.mark.parametrize("emission", list(NORMALS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-23, 1.0, 1e6])
@pytest.mark.parametrize("offset", [0.0, 1e6, 1e8])
def test_em_never_falls_and_finds_what_it_finds_of_standardised_data(offset, scale, dtype, emission, dynamics):
    x = (two_levels() * scale + offset).to(dtype)
    emission = NORMALS[emission]
    if dtype == torch.float32 and scale < 1e-20 and not offset:
        with pytest.raises(ValueError, match=r"x: feature 0 .* spreads by .*float32 only represents .*float64"):
            fitted(x, emission, dynamics)
        return
    fit = fitted(x, emission, dynamics)
    rounding = N * 100 * torch.finfo(dtype).eps
    assert least_rise(fit.objective) >= -rounding
    constant = bool((x == x[0]).all())  # rounding to the dtype has left nothing of the spread
    assert all(bool(value.isfinite().all()) for value in fit.model.values.values())
    if not constant:
        # the same data as the dtype has left them, at 0 and with spread 1, in float64
        inner = fitted((x.double() - offset) / scale, emission, dynamics)
        change = (fit.objective[-1] - inner.objective[-1]) / N
        # the density of N steps of two features, less that of two locations and precisions in each of two states
        matrix = isinstance(emission, sh.MultivariateNormal)
        expected = -2 * math.log(scale) * (1 - (-1 + (1.5 * 2 if matrix else 2)) * 2 / N)
        assert_close(float(change), expected, rtol=1e-6, atol=1e-3 if dtype == torch.float32 else 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("emission", list(NORMALS))
def test_a_constant_feature_far_from_0_costs_no_digits(dtype, emission):
    x = two_levels()
    found = []
    for level in (0.0, 1e6):
        fit = fitted(
            torch.stack([x[:, 0], torch.full((N,), level, dtype=torch.float64)], -1).to(dtype), NORMALS[emission]
        )
        assert least_rise(fit.objective) >= -N * 100 * torch.finfo(dtype).eps
        assert_close(fit.model.values["loc"][:, 1], torch.full((2,), level, dtype=dtype))
        found.append(fit.objective[-1])
    assert_close(*found, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=0)


@pytest.mark.few(3)
@pytest.mark.parametrize("emission", list(NORMALS))
@pytest.mark.parametrize("scale", [2.0**-30, 2.0**40])
@pytest.mark.parametrize("method", ["em", "vmp"])
def test_a_power_of_2_changes_no_digit(method, scale, emission):
    x = two_levels()
    one, other = (fitted(x * s, NORMALS[emission], method=method).model.describe() for s in (1.0, scale))
    assert_close(other["loc"], one["loc"] * scale, rtol=1e-12, atol=0)
    assert_close(other["redraw_prob"], one["redraw_prob"], rtol=1e-12, atol=0)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("emission", list(NORMALS))
@pytest.mark.parametrize("scale", [1e-4, 1e4, 1e7])
def test_message_passing_under_the_models_own_prior_takes_data_of_any_spread(scale, emission, seed):
    x = torch.randn(80, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    for dynamics in ("Copy", "Markov"):
        fit = fitted(x, NORMALS[emission], dynamics, unscaled=True, method="vmp")
        # a state with a point of its own has a covariance of condition number (scale / 1)^2
        assert least_rise(fit.objective) >= -1e-9 - 1e-15 * N * scale**2


def test_the_bound_under_the_models_own_prior_is_right_where_the_prior_lies_far_away():
    x = two_levels()[:, :1]
    prior = {"count": torch.full((2, 1), 1e-8, dtype=torch.float64)}
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal()).with_prior(prior)
    far = model.with_prior({"loc": torch.full((2, 1), -1e4, dtype=torch.float64)})
    keywords = {"method": "vmp", "progress": False, "restarts": 1}
    here, there = model.fit(x + 1e4, prior=model.prior, **keywords), far.fit(x, prior=far.prior, **keywords)
    assert_close(here.objective[-1], there.objective[-1], rtol=1e-8, atol=0)


@pytest.mark.few(2)
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("rate", [1e3, 1e9, 1e12])
def test_message_passing_takes_huge_counts(rate, background):
    x = torch.poisson(torch.full((N, 1), rate, dtype=torch.float64), torch.Generator().manual_seed(0))
    x[20:40] *= 3
    emission = sh.Gated(sh.Poisson(1), sh.Poisson(1)) if background else sh.Poisson(1)
    for unscaled in (True, False):
        fit = fitted(x, emission, unscaled=unscaled, method="vmp")
        assert least_rise(fit.objective) >= -1e-14 * N * rate * math.log(rate)


def test_data_without_a_value_are_refused_under_any_prior():
    x = torch.full((10, 2), torch.nan)
    for unscaled in (True, False):
        with pytest.raises(ValueError, match=r"x: feature 0 has no observed value"):
            fitted(x, sh.Normal(2), unscaled=unscaled, method="vmp")


@pytest.mark.parametrize("emission", [*NORMALS.values(), sh.Gated(sh.Normal(2), sh.Normal(2)), GATED_TIED])
def test_units_change_densities_by_their_volumes(emission):
    x = two_levels() * torch.tensor([1e3, 1e-3]) + 5
    model = sh.SwitchingSSM(sh.Copy(2), emission).scaled_to(x)
    problem = model.problem(x)
    units = Units.of(emission, problem.series)
    inner, values = units.problem(problem), model.fit(x, progress=False, restarts=1, max_steps=3).model.values
    there = units.values(values)
    assert_close(units.back(there), values)
    volume = units.log_volume(problem.series) + units.log_prior_volume(problem)
    assert_close(inner.objective(there) - volume, problem.objective(values), rtol=1e-12, atol=1e-9)
    assert_close(
        inner.total(inner.chain(there).log_normalizer()) - units.log_volume(problem.series),
        problem.total(problem.chain(values).log_normalizer()),
        rtol=1e-12,
        atol=1e-9,
    )


# ---- features that hang together -------------------------------------------------------------------------------------


def _hanging_together() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 40, 1, generator=generator, dtype=torch.float64)
    a[20:] += 5
    holes = torch.cat([a, a], -1)
    holes[3, 0] = holes[7, 1] = torch.nan
    return {
        "twice the same": torch.cat([a, a], -1),
        "nearly the same": torch.cat([a, a + 1e-9 * b], -1),
        "with holes": holes,
        "a sum of others": torch.cat([a, b, a + 2 * b], -1),
        "more than steps": torch.randn(5, 8, generator=generator, dtype=torch.float64),
        "a constant": torch.cat([a, torch.full_like(a, 3.0)], -1),
        "all constant": torch.full((20, 2), 3.0, dtype=torch.float64),
    }


@pytest.mark.few(10)
@pytest.mark.parametrize(("method", "prior"), [("em", "weak"), ("em", None), ("vmp", "weak"), ("vmp", "unscaled")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("features", list(_hanging_together()))
def test_features_that_hang_together_fit_and_predict(features, dtype, method, prior):
    x = _hanging_together()[features].to(dtype)
    fit = fitted(
        x, sh.MultivariateNormal(x.shape[-1]), "Markov", unscaled=prior == "unscaled", method=method, prior=prior
    )
    assert all(bool(value.isfinite().all()) for value in fit.model.values.values())
    assert math.isfinite(fit.loglik)
    assert bool(fit.forecast(horizon=2).mean.isfinite().all())
    if dtype == torch.float64 or prior is not None:
        assert least_rise(fit.objective) >= -(1e-9 if dtype == torch.float64 else 5e-3)
    if method == "em" and x.shape[-1] < 3:
        assert fit.summary().parameters is not None


@pytest.mark.slow
def test_the_posterior_of_the_same_feature_twice_is_drawn_from():
    x = _hanging_together()["twice the same"]
    posterior = fitted(x, sh.MultivariateNormal(2), method="vmp").posterior
    assert all(bool(draws.isfinite().all()) for draws in posterior.refined.sample(20).values())


@pytest.mark.parametrize("seed", range(4))  # in some, rounding happens to leave a positive definite matrix
def test_a_prior_so_far_away_that_no_covariance_is_left_is_refused(seed):
    with pytest.raises(ValueError, match=r'x: after rounding, the covariance .* prior="weak"'):
        fitted(two_levels(seed) * 1e-4 + 1e8, sh.MultivariateNormal(2), unscaled=True, method="vmp")


@pytest.mark.parametrize("emission", [sh.Normal(1), sh.MultivariateNormal(1)])
def test_a_prior_is_not_scaled_to_a_spread_whose_square_is_not_held(emission):
    x = torch.tensor([1.0, 2.0, 3.0, 5.0])
    model = sh.SwitchingSSM(sh.Copy(2), emission)
    for scale in (1e-31, 1e30):
        with pytest.raises(ValueError, match=r"^x: feature 0 spreads by .*, and float32 only represents the squares"):
            model.scaled_to(scale * x)
        assert all(table.isfinite().all() for table in model.scaled_to(scale * x.double()).prior.values())


def test_what_is_too_large_to_be_squared_is_named_by_a_fit():
    counts, rows = torch.full((12, 1), 1e300, dtype=torch.float64), torch.arange(12.0, dtype=torch.float64)
    for method in ("em", "vmp"):
        with pytest.raises(ValueError, match=r"^x: feature 0 \(x\) reaches 1e[+]300, and float64 only represents"):
            sh.SwitchingSSM(sh.Copy(2), sh.Poisson()).fit(counts, method, restarts=1, progress=False)
        driven = sh.SwitchingSSM(sh.Copy(2, inputs=1), sh.Normal())
        with pytest.raises(ValueError, match=r"^inputs: feature 0 .*reaches 1.1e[+]201"):
            driven.fit(rows, method, inputs=1e200 * rows[:, None], restarts=1, progress=False)


# ---- other models ----------------------------------------------------------------------------------------------------


def wandering(seed: int = 0) -> Tensor:
    """Two features that follow their past, about two levels."""
    noise = torch.randn(40, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = [noise[0]]
    for t, drawn in enumerate(noise[1:]):
        x.append(torch.tensor([0.6, -0.4]) * x[-1] + drawn + 3.0 * (t % 20 > 12))
    return torch.stack(x)


OTHERS = {
    "autoregression": (sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(1, n_features=2)), 1),
    "vector autoregression": (sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(1, 2, covariance="full")), 1),
    "factors": (sh.SwitchingSSM(sh.Markov(2), sh.FactorAnalysis(2, 1)), 0),
    "switching linear": (sh.SwitchingLinearSSM(2, 1, 2), 0),
    "linear": (sh.LinearSSM(2, 2), 0),
}


@pytest.mark.parametrize("method", ["em", "vmp"])
@pytest.mark.parametrize("kind", OTHERS)
def test_a_fit_in_other_units_about_other_origins_is_the_same_fit(kind, method):
    if (kind, method) == ("factors", "vmp"):
        pytest.skip("these have no messages")
    (model, lags), x = OTHERS[kind], wandering()
    if not lags:
        x[20:24, 1] = torch.nan
    unit, origin = torch.tensor([1e4, 1e-3], dtype=torch.float64), torch.tensor([3e6, -5.0], dtype=torch.float64)
    moved = unit * x + origin
    one, other = (model.fit(y, method, restarts=1, max_steps=4, progress=False) for y in (x, moved))
    volume = ((~x[lags:].isnan()).sum(0) * unit.log()).sum()
    assert_close(other.model.log_evidence(moved) + volume, one.model.log_evidence(x), rtol=0, atol=1e-3)
    ahead, there = (fit.forecast(2).mean for fit in (one, other))
    assert_close((there - origin) / unit, ahead, rtol=1e-3, atol=1e-3)
