"""Distributions of Pyro as priors: their density, the modes under them, and what refuses them."""

import math
import re

import pyro
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from examples import slow
from torch.testing import assert_close

DOUBLE = torch.float64
X = torch.tensor([0.3, -0.2, 0.1, 4.2, 3.9, 4.4, 0.0, 0.2, 4.1], dtype=DOUBLE)[:, None]
QUIET = {"progress": False}


def double(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=DOUBLE)


OWN = {"loc": dist.Normal(2.0, 1.5), "scale": dist.HalfNormal(double(0.7))}


def test_a_prior_is_the_density_of_its_distribution() -> None:
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1, prior=OWN)).with_values(
        redraw_prob=0.2, state_probs=[0.4, 0.6], loc=[[0.1], [4.0]], scale=[[0.3], [0.5]]
    )
    loc, precision = model.values["loc"], model.values["precision"]
    scale = precision.rsqrt()
    law = torch.distributions.Normal(double(2.0), double(1.5))
    half = torch.distributions.HalfNormal(double(0.7))
    # those of the dynamics are flat, with density 1
    expected = law.log_prob(loc).sum() + half.log_prob(scale).sum() - (2 * precision**1.5).log().sum()
    assert_close(model.log_prior(model.values), expected, rtol=1e-10, atol=1e-10)
    free = model.without_values()
    trace = pyro.poutine.trace(pyro.poutine.condition(free.collapsed, model.values)).get_trace(X)
    assert_close(trace.log_prob_sum(), model.log_evidence(X) + expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("unit", [1.0, 1e6])
def test_the_mode_of_one_location_is_that_of_the_textbook(unit: float) -> None:
    about, wide, noise = 2.0 * unit, 0.4 * unit, 1.5 * unit
    emission = sh.Normal(1, prior={"loc": dist.Normal(torch.tensor(about).double(), torch.tensor(wide).double())})
    fit = sh.SwitchingSSM(sh.Copy(1), emission).fit(X * unit, fixed={"scale": [[noise]]}, tol=1e-12, **QUIET)
    weight, n = wide**-2, len(X) / noise**2
    expected = (weight * about + n * float(X.mean()) * unit) / (weight + n)
    assert float(fit.model.values["loc"]) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("prior", [dist.HalfNormal(0.5), dist.LogNormal(0.0, 0.3), dist.Exponential(4.0)])
def test_the_mode_of_one_scale_is_where_its_density_is_flat(prior: dist.Distribution) -> None:
    """In the coordinates of the program, in which EM looks for the mode: the precision."""
    own = {"scale": prior, "loc": dist.Normal(0.0, 1.0)}  # the default's location would depend on the scale
    fit = sh.SwitchingSSM(sh.Copy(1), sh.Normal(1, prior=own)).fit(X, fixed={"loc": [[1.0]]}, tol=1e-12, **QUIET)
    precision = fit.model.values["precision"].clone().requires_grad_()
    scale = precision.rsqrt()
    height = torch.distributions.Normal(1.0, scale).log_prob(X).sum()
    height = height + prior.log_prob(scale.squeeze()) - (2 * precision**1.5).log().squeeze()
    (slope,) = torch.autograd.grad(height, precision)
    assert abs(float(slope * precision)) < 1e-4


@pytest.mark.parametrize("dynamics", [sh.Copy(2), sh.Markov(2)])
def test_the_objective_is_that_of_the_model_and_no_unit_changes_the_fit(dynamics) -> None:
    def scaled(c: float) -> dict[str, dist.Distribution]:
        return {"loc": dist.Normal(2.0 * c, 1.5 * c), "scale": dist.HalfNormal(0.7 * c)}

    one, other = (
        sh.SwitchingSSM(dynamics, sh.Normal(1, prior=scaled(c))).fit(X * c, restarts=1, max_steps=20, **QUIET)
        for c in (1.0, 1e4)
    )
    model = one.model
    assert_close(one.objective[-1], model.log_evidence(X) + model.log_prior(model.values), rtol=1e-9, atol=1e-9)
    assert_close(other.model.values["loc"] / 1e4, model.values["loc"], rtol=1e-5, atol=1e-6)
    assert_close(other.model.describe()["scale"] / 1e4, model.describe()["scale"], rtol=1e-4, atol=1e-6)
    vague = sh.SwitchingSSM(dynamics, sh.Normal(1)).fit(X, restarts=1, max_steps=20, **QUIET).model
    assert float(model.log_prior(model.values)) > float(model.log_prior(vague.values)) - 1e-9


def test_distributions_of_the_defaults_form_serve_message_passing() -> None:
    own = {"precision": dist.Gamma(2.0, 0.3), "redraw_prob": dist.Beta(1.0, 5.0)}
    own["state_probs"] = dist.Dirichlet(torch.ones(2))
    tables = {
        "shape": torch.full((2, 1), 2.0),
        "rate": torch.full((2, 1), 0.3),
        "redraw_concentration": [1.0, 5.0],
        "state_concentration": [1.0, 1.0],
    }
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
    for method in ("em", "vmp"):
        fit, other = (model.fit(X, method, prior=prior, restarts=2, **QUIET) for prior in (own, tables))
        for name, value in fit.model.values.items():
            assert_close(value, other.model.values[name], rtol=1e-6, atol=1e-7)
    for emission, x in (
        (sh.Poisson(1, prior={"rate": dist.Gamma(2.0, 1.0)}), X.abs().round()),
        (sh.Bernoulli(1, prior={"probs": dist.Beta(2.0, 3.0)}), (X > 2).double()),
        (sh.Categorical(2, prior={"probs": dist.Dirichlet(torch.tensor([1.0, 2.0]))}), (X > 2).double()),
    ):
        made = sh.SwitchingSSM(sh.Markov(2), emission)
        fit = made.fit(x, "vmp", restarts=1, max_steps=5, **QUIET)
        assert math.isfinite(float(fit.objective[-1]))
        assert emission.is_conjugate
    assert made.prior["concentration"].tolist() == [[1.0, 2.0]] * 2


@pytest.mark.parametrize("method", ["em", slow("svi"), slow("nuts")])
def test_every_method_but_message_passing_takes_any(method: str) -> None:
    model = sh.SwitchingSSM(sh.Copy(1), sh.Normal(1, prior={"loc": dist.StudentT(3.0, 1.0, 0.01)}))
    options = {"num_samples": 40} if method == "nuts" else {"max_steps": 300}
    fit = model.fit(X, method, restarts=1, **options, **QUIET)
    assert abs(float(fit.model.values["loc"]) - 1.0) < 0.2  # the data have a mean of 1.9
    assert bool(fit.summary().parameters["estimate"].notna().all())
    with pytest.raises(TypeError, match=r"^prior: Normal has priors of loc that are not of its conjugate family"):
        model.fit(X, "vmp", **QUIET)


def test_parts_of_a_gated_emission_have_their_own() -> None:
    gated = sh.Gated(sh.Normal(1, prior={"loc": dist.Normal(0.0, 0.1)}), sh.Normal(1))
    model = sh.SwitchingSSM(sh.Copy(2), gated).with_prior({"background_loc": dist.Normal(7.0, 0.01)})
    fit = model.fit(X, restarts=1, max_steps=20, **QUIET)
    assert abs(float(fit.model.values["background_loc"]) - 7.0) < 0.2
    assert float(fit.model.values["loc"].abs().max()) < 1.5
    values = fit.model.values
    assert_close(fit.objective[-1], fit.model.log_evidence(X) + fit.model.log_prior(values), rtol=1e-9, atol=1e-9)


def test_files_hold_them(tmp_path) -> None:
    prior = {"loc": dist.Normal(torch.tensor([[0.0], [4.0]]), 1.5), "scale": dist.HalfNormal(0.7)}
    for emission in (
        sh.Normal(1, prior=prior),
        sh.Gated(sh.Normal(1), sh.Normal(1, prior={"scale": dist.Exponential(1.0)})),
    ):
        model = sh.SwitchingSSM(sh.Copy(2), emission).fit(X, restarts=1, max_steps=3, **QUIET).model
        model.save(tmp_path / "model")
        again = sh.load(tmp_path / "model")
        assert_close(again.log_prior(again.values), model.log_prior(model.values), rtol=0, atol=0)
    mixture = dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Normal(torch.zeros(2), 1.0))
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1, prior={"loc": mixture}))
    with pytest.raises(TypeError, match="which cannot be stored"):
        model.save(tmp_path / "other")


def normal(**prior: dist.Distribution) -> sh.SwitchingSSM:
    return sh.SwitchingSSM(sh.Copy(2), sh.Normal(1, prior=prior))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: normal(loc=dist.HalfNormal(1.0)), "prior['loc']: got HalfNormal, whose support does not fit"),
        (lambda: normal(scale=dist.Normal(0.0, 1.0)), "prior['scale']: got Normal, whose support does not fit"),
        (lambda: normal(loc=dist.Uniform(0.0, 9.0)), "prior['loc']: got Uniform"),
        (lambda: normal(mu=dist.Normal(0.0, 1.0)), "prior: got 'mu', expected some of loc, precision"),
        (lambda: normal(loc=3.0), "prior['loc']: got float, expected a distribution of Pyro"),
        (lambda: normal(loc=dist.Normal), "prior['loc']: got the class Normal, expected a distribution of Pyro"),
        (lambda: sh.Normal(1, prior=3.0), "prior: got float, expected distributions by name"),
        (lambda: sh.Beta(prior=3), "prior: got int, expected distributions by name"),
        (lambda: sh.ZeroInflated(sh.Poisson(), prior=3), "prior: got int, expected distributions by name"),
        (
            lambda: normal(scale=dist.HalfNormal(1.0), precision=dist.Gamma(1.0, 1.0)),
            "prior: got precision twice",
        ),
        (
            lambda: normal(loc=dist.Normal(torch.zeros(3, 1), 1.0)).fit(X),
            "prior['loc']: got a distribution of shape [3, 1], expected one number's, or a table [2, 1]",
        ),
        (
            lambda: normal().with_prior({"redraw_prob": dist.Uniform(0.0, 2.0)}),
            "prior['redraw_prob']: got Uniform, whose support does not fit redraw_prob",
        ),
        (
            lambda: sh.LinearSSM(1).with_prior({"transition": dist.Normal(0.0, 1.0)}),
            "prior['transition']: got Normal, but a LinearSSM accepts hyperparameters",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(make, said) -> None:
    with pytest.raises((TypeError, ValueError), match="^" + re.escape(said)):
        make()
