"""User priors of autoregressions: their density, the modes under them, and what refuses them."""

import math

import pyro
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from oracles.modes import assert_at_the_mode
from samplehold.switching.priors import log_prior
from torch.testing import assert_close

DOUBLE = torch.float64
QUIET = {"progress": False}


def table(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=DOUBLE)


OWN = {
    "coefficients": dist.Normal(table(0.4), table(0.2)),
    "intercept": dist.Normal(table(1.0), table(3.0)),
    "scale": dist.LogNormal(table(0.0), table(0.5)),
}


def series(n_features: int = 1, n_steps: int = 60, unit: float = 1.0, about: float = 0.0) -> torch.Tensor:
    """Two states, a level of 5 and then one of 10, beside lags."""
    noise = torch.randn(n_steps, n_features, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
    x, level = [torch.zeros(n_features, dtype=DOUBLE)], 2.5
    for t in range(n_steps):
        level = 2.5 if (t // 15) % 2 == 0 else 5.0
        x.append(level + 0.5 * x[-1] + (0.3 + 0.6 * (level > 3)) * noise[t])
    return unit * torch.stack(x[1:]) + about


def model_of(emission: sh.AutoRegressive, k: int = 2) -> sh.SwitchingSSM:
    return sh.SwitchingSSM(sh.Markov(k), emission)


def own_density(values: dict) -> torch.Tensor:
    """The log density of OWN at values in the units of the data, by torch, in the coordinates of the program."""
    scale = values["precision"].rsqrt()
    terms = torch.distributions.Normal(table(0.4), table(0.2)).log_prob(values["coefficients"]).sum()
    terms = terms + torch.distributions.Normal(table(1.0), table(3.0)).log_prob(values["loc"]).sum()
    terms = terms + torch.distributions.LogNormal(table(0.0), table(0.5)).log_prob(scale).sum()
    return terms - (2 * values["precision"] ** 1.5).log().sum()


@pytest.mark.parametrize(
    "form", [{"n_features": 2}, {"n_features": 2, "lags": "own"}, {"switching": ["intercept"]}, {"inputs": ["dose"]}]
)
def test_a_prior_is_the_density_of_its_distribution(form: dict) -> None:
    emission = sh.AutoRegressive(1, **form, prior=OWN)
    generator = torch.Generator().manual_seed(0)
    model = sh.SwitchingSSM(sh.Copy(2), emission)
    values = {"redraw_prob": 0.2, "state_probs": [0.4, 0.6]}
    for name, one in emission.start(dict(model.prior)).items():
        values[name] = torch.rand(one.shape, generator=generator, dtype=DOUBLE) + 0.2
    model = model.with_values(values)
    assert_close(model.log_prior(model.values), own_density(model.values), rtol=1e-10, atol=1e-10)
    x = torch.randn(6, emission.n_features, generator=generator, dtype=DOUBLE)
    given = {"inputs": {"dose": torch.arange(6.0, dtype=DOUBLE)}} if emission.n_inputs else {}
    trace = pyro.poutine.trace(pyro.poutine.condition(model.without_values().collapsed, model.values))
    expected = model.log_evidence(x, **given) + own_density(model.values)
    assert_close(trace.get_trace(x, **given).log_prob_sum(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", [{}, {"lags": "own"}, {"switching": ["intercept"]}, {"switching": ["coefficients"]}])
def test_the_density_inside_a_fit_is_that_of_the_data_s_units(form: dict) -> None:
    emission = sh.AutoRegressive(2, 2, **form, prior=OWN)
    model, unit = model_of(emission), table(3.0, 40.0)
    about = table(100.0, -7.0) if emission.shifts(()) else table(0.0, 0.0)
    values = {name: torch.rand_like(one.double()) + 0.2 for name, one in emission.start(model.prior).items()}
    inside = emission.in_units(emission.shifted(values, -about), unit)
    there = emission.in_fit_units(about, unit)
    density = log_prior(there.sites(emission.in_units(model.prior, unit)), inside)
    ones = {name: torch.ones_like(one) for name, one in values.items()}
    volume = sum(float(factor.log().sum()) for factor in emission.in_units(ones, unit).values())
    assert_close(density + volume, own_density(values), rtol=1e-10, atol=1e-10)
    for site in there.sites(emission.in_units(model.prior, unit)):
        drawn = site.distribution(inside).sample()
        assert drawn.shape == values[site.name].shape


@pytest.mark.parametrize("lags", [1, 2])
def test_the_mode_of_coefficients_at_a_known_scale_is_that_of_ridge_regression(lags: int) -> None:
    """One state: a normal prior of coefficients, independent of the noise, is a penalty beside least squares."""
    x, wide, mean, scale = series(), 0.2, 0.4, 0.8
    prior = {"coefficients": OWN["coefficients"], "loc": dist.Normal(table(1.0), table(3.0))}
    model = model_of(sh.AutoRegressive(lags, prior=prior), 1)
    fit = model.fit(x, fixed={"scale": [[scale]]}, tol=1e-13, restarts=1, **QUIET)
    rows = torch.cat([torch.ones_like(x[lags:]), *(x[lags - lag : len(x) - lag] for lag in range(1, lags + 1))], -1)
    weight = torch.diag(table(3.0**-2, *[wide**-2] * lags))
    right = rows.mT @ x[lags:] / scale**2 + weight @ table(1.0, *[mean] * lags).unsqueeze(-1)
    expected = torch.linalg.solve(rows.mT @ rows / scale**2 + weight, right).squeeze(-1)
    found = torch.cat([fit.model.values["loc"].flatten(), fit.model.values["coefficients"].flatten()])
    assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("switching", [("intercept", "coefficients", "scale"), ("intercept",), ("coefficients",)])
def test_em_rises_to_the_mode_that_direct_ascent_finds(switching: tuple) -> None:
    x = series()
    model = model_of(sh.AutoRegressive(1, switching=switching, prior=OWN))
    fit = model.fit(x, restarts=1, max_steps=300, tol=1e-10, **QUIET)
    assert_at_the_mode(fit, x)


def test_a_fit_does_not_depend_on_the_unit_or_the_origin() -> None:
    """The coefficient of a lag has no unit; the intercept is of x less the lags' share."""

    def fitted(unit: float, about: float) -> tuple:
        prior = {"coefficients": OWN["coefficients"], "scale": dist.LogNormal(table(math.log(unit)), table(0.5))}
        prior["loc"] = dist.Normal(table(unit + about * 0.5), table(3.0 * unit))
        x = series(unit=unit, about=about)
        options = {"fixed": {"coefficients": [[[0.5]], [[0.5]]]}, "restarts": 1, "tol": 1e-12}
        return model_of(sh.AutoRegressive(1, prior=prior)).fit(x, **options, **QUIET).model.values

    one, other = fitted(1.0, 0.0), fitted(1e3, 2e4)
    assert_close((other["loc"] - 0.5 * 2e4) / 1e3, one["loc"], rtol=1e-4, atol=1e-5)
    assert_close(other["precision"] * 1e6, one["precision"], rtol=1e-4, atol=1e-6)


def test_a_gamma_of_the_precision_is_the_default_s_hyperparameters() -> None:
    x, model = series(), model_of(sh.AutoRegressive(1))
    tables = {"shape": torch.full((2, 1), 2.0), "rate": torch.full((2, 1), 0.3)}
    for method in ("em", "vmp"):
        own = model.fit(x, method, prior={"precision": dist.Gamma(2.0, 0.3)}, restarts=1, **QUIET)
        other = model.fit(x, method, prior=tables, restarts=1, **QUIET)
        for name, value in own.model.values.items():
            assert_close(value, other.model.values[name], rtol=1e-8, atol=1e-9)


def test_message_passing_refuses_other_priors_by_name() -> None:
    x = series()
    with pytest.raises(TypeError, match=r"^prior: AutoRegressive has priors of coefficients that are not of its conj"):
        model_of(sh.AutoRegressive(1, prior={"coefficients": dist.Normal(0.0, 1.0)})).fit(x, "vmp", **QUIET)
    with pytest.raises(TypeError, match=r"^prior: AutoRegressive has priors of loc that"):
        model_of(sh.AutoRegressive(1)).fit(x, "vmp", prior={"intercept": dist.Normal(0.0, 1.0)}, **QUIET)


@pytest.mark.parametrize(
    ("prior", "said"),
    [
        ({"coefficient": dist.Normal(0.0, 1.0)}, "got 'coefficient', expected some of loc, coefficients, precision"),
        ({"intercept": dist.Normal(0.0, 1.0), "loc": dist.Normal(0.0, 1.0)}, "two names of one parameter"),
        ({"scale": dist.Normal(0.0, 1.0)}, r"prior\['scale'\]: got Normal, whose support does not fit scale"),
        ({"coefficients": 0.3}, r"prior\['coefficients'\]: got float"),
        ({"coefficients": dist.Delta(torch.zeros(()))}, r"prior\['coefficients'\]: got Delta"),
    ],
)
def test_bad_priors_are_named(prior: dict, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        sh.AutoRegressive(1, prior=prior)


def test_a_file_holds_them(tmp_path) -> None:
    model = model_of(sh.AutoRegressive(1, prior=OWN)).fit(series(), restarts=1, max_steps=3, **QUIET).model
    model.save(tmp_path / "model")
    again = sh.load(tmp_path / "model")
    assert_close(again.log_prior(again.values), model.log_prior(model.values), rtol=0, atol=0)


@pytest.mark.slow
def test_svi_is_near_the_mode() -> None:
    x = series(n_steps=200)
    model = model_of(sh.AutoRegressive(1, switching=["intercept", "scale"], prior=OWN))
    mode = model.fit(x, restarts=1, **QUIET)
    fit = model.fit(x, "svi", start=mode, restarts=1, max_steps=600, **QUIET)
    for name, wide in (("coefficients", 0.08), ("loc", 0.5)):
        assert_close(fit.model.values[name], mode.model.values[name], rtol=0, atol=wide)
