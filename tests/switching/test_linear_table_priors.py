"""Priors of the tables of linear models: their density, the modes under them, and what refuses them."""

import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from samplehold.switching.emissions.ascent import ascend
from torch.testing import assert_close

DOUBLE = torch.float64
QUIET = {"progress": False, "restarts": 2}


def of(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=DOUBLE)


def series(n_steps: int = 60) -> torch.Tensor:
    noise = torch.randn(n_steps, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    level = torch.zeros(n_steps, dtype=DOUBLE)
    for t in range(1, n_steps):
        level[t] = 0.8 * level[t - 1] + noise[t, 0]
    return torch.stack([level, 0.5 * level], -1) + 0.5 * noise.flip(0) + 2.0


OFFSET = {"emission_offset": dist.Normal(of(1.0), of(0.1))}
NOISE = {
    "diagonal": {"observation_noise": dist.InverseGamma(of(3.0), of(2.0))},
    "full": {"observation_noise": dist.Wishart(of(6.0), covariance_matrix=0.1 * torch.eye(2, dtype=DOUBLE))},
}


def values_of(noise: str) -> dict:
    table = [0.4, 0.7] if noise == "diagonal" else [[0.4, 0.1], [0.1, 0.7]]
    return {
        "transition": [[0.8]],
        "transition_offset": [0.1],
        "state_noise": [[0.9]],
        "emission": [[1.0], [0.5]],
        "emission_offset": [1.9, 2.2],
        "observation_noise": table,
        "initial_mean": [0.3],
        "initial_covariance": [[1.2]],
    }


@pytest.mark.parametrize("noise", NOISE)
def test_priors_replace_those_of_their_tables(noise: str) -> None:
    x = series()
    plain = sh.LinearSSM(1, 2, noise).scaled_to(x).with_values(values_of(noise))
    values, spread, centre = plain.values, plain.prior["spread"], plain.prior["center"]
    covariance = values["observation_noise"] if noise == "full" else torch.diag(values["observation_noise"])
    normal = torch.distributions.MultivariateNormal(centre, covariance / 0.01)
    of_offset = normal.log_prob(values["emission_offset"])
    size = 2 if noise == "full" else 1
    df, mean = size + 1.0, 0.1 * spread.square()  # the noise of the default is a tenth of the variance
    if noise == "full":
        matrix = torch.diag(1 / (df * mean))
        of_noise = torch.distributions.Wishart(of(df), matrix).log_prob(torch.linalg.inv(covariance))
    else:
        precision = 1 / values["observation_noise"]
        of_noise = torch.distributions.Gamma(of(df / 2), df * mean / 2).log_prob(precision).sum()
    own = NOISE[noise]["observation_noise"].log_prob(values["observation_noise"]).sum()
    of_own = OFFSET["emission_offset"].log_prob(values["emission_offset"]).sum()
    default = plain.problem(x).log_prior(values)
    for prior, replaced, density in (
        (OFFSET, of_offset, of_own),
        (NOISE[noise], of_noise, own),
        (OFFSET | NOISE[noise], of_offset + of_noise, of_own + own),
    ):
        found = plain.with_prior(prior).problem(x).log_prior(values)
        assert_close(found, default - replaced + density, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("noise", NOISE)
def test_a_fit_is_at_the_mode_that_direct_ascent_finds(noise: str) -> None:
    x, prior = series(), OFFSET | NOISE[noise]
    fit = sh.LinearSSM(1, 2, noise).fit(x, prior=prior, tol=1e-9, **QUIET)
    problem = fit.model.problem(x)
    assert_close(fit.objective[-1], problem.objective(fit.values), rtol=1e-9, atol=1e-8)
    assert float(fit.objective.diff().min()) > -1e-9 * abs(float(fit.objective[-1]))
    free = {name: value for name, value in fit.values.items() if name not in ("initial_mean", "initial_covariance")}
    supports = {name: parameter.support for name, parameter in fit.model.known.items() if name in free}
    held = {name: value for name, value in fit.values.items() if name not in free}

    def height(some: dict) -> torch.Tensor:
        return problem.objective(held | some)

    assert float(height(ascend(height, free, supports))) - float(fit.objective[-1]) < 1e-4
    default = sh.LinearSSM(1, 2, noise).fit(x, **QUIET)
    assert float(problem.objective(fit.values)) > float(problem.objective(default.values)) + 1e-3
    assert fit.summary().parameters.loc["emission_offset[0]", "standard error"] < 0.11


@pytest.mark.slow
def test_a_fit_under_priors_does_not_depend_on_the_unit() -> None:
    x, fits = series(), []
    for unit in (1.0, 1e3):
        prior = {"emission_offset": dist.Normal(of(unit), of(0.1 * unit))}
        fits.append(sh.LinearSSM(1, 2).fit(unit * x, prior=prior, tol=1e-9, **QUIET).values)
    assert_close(fits[1]["emission_offset"] / 1e3, fits[0]["emission_offset"], rtol=1e-3, atol=1e-3)
    assert_close(fits[1]["observation_noise"] / 1e6, fits[0]["observation_noise"], rtol=1e-2, atol=1e-3)


def test_files_and_text_have_them(tmp_path) -> None:
    x = series(30)
    model = sh.LinearSSM(1, 2).fit(x, prior=OFFSET, max_steps=5, **QUIET).model
    model.save(tmp_path / "model")
    again = sh.load(tmp_path / "model")
    assert_close(again.problem(x).log_prior(again.values), model.problem(x).log_prior(model.values), rtol=0, atol=0)
    assert "prior={'emission_offset': Normal(" in repr(model)


@pytest.mark.parametrize(
    ("prior", "options", "text"),
    [
        (OFFSET, {"method": "vmp"}, 'method: got "vmp", which supports no distribution as a prior of emission_offset'),
        ({"transition": dist.Normal(0.0, 1.0)}, {}, r"prior\['transition'\]: got Normal, but a LinearSSM"),
        ({"observation_noise": dist.Normal(0.0, 1.0)}, {}, r"prior\['observation_noise'\]: got Normal, whose support"),
        ({"emission_offset": dist.Normal(torch.zeros(3), 1.0)}, {}, r"prior\['emission_offset'\]: got .* shape \[3\]"),
        (
            OFFSET,
            {"fixed": {"transition": [[float("nan")]], "emission": [[1.0], [float("nan")]]}},
            "fixed: got .* in part",
        ),
    ],
)
def test_what_does_not_fit_is_named(prior: dict, options: dict, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        sh.LinearSSM(1, 2).fit(series(20), prior=prior, **options, **QUIET)


@pytest.mark.slow
def test_svi_is_near_the_mode() -> None:
    x, prior = series(40), OFFSET | NOISE["diagonal"]
    mode = sh.LinearSSM(1, 2).fit(x, prior=prior, **QUIET).values
    fit = sh.LinearSSM(1, 2).fit(x, "svi", prior=prior, max_steps=200, **QUIET)
    assert_close(fit.values["emission_offset"], mode["emission_offset"], rtol=0, atol=0.15)
    assert_close(fit.values["observation_noise"], mode["observation_noise"], rtol=0, atol=0.3)
