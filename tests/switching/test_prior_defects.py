"""What priors say of themselves: names in errors, text, supports of rescaled distributions, ends of ranges."""

import pickle

import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from oracles.effort import short_starts
from samplehold.switching.user_priors import on, support_of
from torch.distributions import constraints
from torch.distributions.transforms import AffineTransform
from torch.testing import assert_close

DOUBLE = torch.float64
X = torch.tensor([0.3, -0.2, 0.1, 4.2, 3.9, 4.4, 0.0, 0.2, 4.1], dtype=DOUBLE)[:, None]
QUIET = {"progress": False, "restarts": 1}


def rescaled(base: dist.Distribution, loc: float, scale: float) -> dist.TransformedDistribution:
    return dist.TransformedDistribution(base, [AffineTransform(loc, scale)])


@pytest.mark.parametrize(
    "part",
    [
        sh.Copy(2, prior={"redraw_prob": dist.Uniform(0.0, 0.1)}),
        sh.Markov(2, prior={"transition_probs": dist.LogisticNormal(torch.zeros(1), torch.ones(1))}),
        sh.Normal(1, prior={"loc": dist.Normal(0.0, 1.0)}),
        sh.AutoRegressive(1, prior={"coefficients": dist.Normal(0.0, 1.0)}),
    ],
    ids=lambda part: part.name,
)
def test_a_prior_is_printed(part) -> None:
    (name, one), *_ = part.prior.items()
    text = repr(part)
    assert f"prior={{'{name}': {type(one).__name__}(" in text
    assert "\n" not in text
    assert "tensor(" not in text
    assert "prior={" not in repr(type(part)(2))
    assert "prior=None" not in repr(type(part)(2))


def test_a_rescaled_prior_has_the_density_and_the_range_of_its_values() -> None:
    tenth = rescaled(dist.Beta(torch.tensor(2.0, dtype=DOUBLE), torch.tensor(3.0, dtype=DOUBLE)), 0.0, 0.1)
    model = sh.SwitchingSSM(sh.Copy(2, prior={"redraw_prob": tenth}), sh.Normal(1))
    fit = model.fit(X, **QUIET)
    assert 0.0 < float(fit.model.values["redraw_prob"]) < 0.1
    p = fit.model.values["redraw_prob"]
    law = torch.distributions.Beta(torch.tensor(2.0, dtype=DOUBLE), torch.tensor(3.0, dtype=DOUBLE))
    expected = law.log_prob(p / 0.1) - torch.tensor(0.1, dtype=DOUBLE).log()
    plain = sh.SwitchingSSM(
        sh.Copy(2),
        sh.Normal(1),
    ).scaled_to(X)
    rest = plain.log_prior(fit.model.values)  # that of the dynamics is flat there, with density 1
    assert_close(fit.model.log_prior(fit.model.values) - rest, expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(TypeError, match="the prior of redraw_prob is a TransformedDistribution, not a Beta"):
        model.fit(X, "vmp", **QUIET)


@pytest.mark.parametrize(
    ("base", "loc", "scale", "low", "high"),
    [
        (dist.Beta(2.0, 2.0), 0.0, 0.5, 0.0, 0.5),
        (dist.Beta(2.0, 2.0), 1.0, -0.5, 0.5, 1.0),
        (dist.Uniform(1.0, 2.0), 1.0, 2.0, 3.0, 5.0),
        (dist.HalfNormal(1.0), 0.0, 3.0, 0.0, None),
        (dist.HalfNormal(1.0), 2.0, 3.0, 2.0, None),
        (dist.HalfNormal(1.0), 0.0, -1.0, None, 0.0),
        (dist.Normal(0.0, 1.0), 2.0, 3.0, None, None),
    ],
)
def test_the_support_of_a_rescaled_distribution_is_its_image(base, loc, scale, low, high) -> None:
    law = rescaled(base, loc, scale)
    for support in (support_of(law), on(law, X).support):
        ends = [getattr(support, name, None) for name in ("lower_bound", "upper_bound")]
        assert [None if end is None else float(end) for end in ends] == [low, high]
        assert bool(support.check(law.sample((50,))).all())


def test_a_rescaled_prior_of_a_scale_is_taken_and_a_shifted_one_is_refused() -> None:
    wide = rescaled(dist.HalfNormal(torch.tensor(0.35, dtype=DOUBLE)), 0.0, 2.0)
    plain = dist.HalfNormal(torch.tensor(0.7, dtype=DOUBLE))
    fits = [sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(X, prior={"scale": one}, **QUIET) for one in (wide, plain)]
    assert_close(fits[0].values["precision"], fits[1].values["precision"], rtol=1e-6, atol=0)
    with pytest.raises(ValueError, match=r"prior\['scale'\]: got TransformedDistribution, whose support does not fit"):
        sh.Normal(1, prior={"scale": rescaled(dist.HalfNormal(1.0), 1.0, 2.0)})
    with pytest.raises(ValueError, match=r"prior\['loc'\]: got TransformedDistribution, whose support does not fit"):
        sh.Normal(1, prior={"loc": rescaled(dist.HalfNormal(1.0), 1.0, 2.0)})


def test_the_support_of_a_scale_in_a_fit_is_positive() -> None:
    """The density of a sampler takes its coordinates from it."""
    emission = sh.Normal(1, prior={"scale": dist.HalfNormal(0.7)}).in_fit_units(X[0], X[0].new_tensor([3.0]))
    (site,) = [one for one in emission.sites(emission.default_prior(2, X)) if one.name == "precision"]
    support = site.distribution({}).support
    assert support.base_constraint is constraints.positive
    assert support.event_dim == 2


@pytest.mark.parametrize("one", [dist.HalfNormal(torch.ones(3)), dist.Gamma(torch.ones(3), 1.0)])
@pytest.mark.parametrize("name", ["scale", "precision"])
def test_a_prior_of_another_shape_is_named_as_the_user_did(name: str, one: dist.Distribution) -> None:
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
    with pytest.raises(ValueError, match=rf"^prior\['{name}'\]: got a distribution of shape \[3\]"):
        model.fit(X, prior={name: one}, **QUIET)


@pytest.mark.slow
def test_a_start_outside_the_range_of_a_prior_is_refused_by_every_model() -> None:
    model = sh.SwitchingSSM(sh.Copy(2, prior={"redraw_prob": dist.Uniform(0.0, 0.1)}), sh.Normal(1))
    with pytest.raises(ValueError, match=r"^start\['redraw_prob'\]: got 0.5, which its prior of Uniform excludes"):
        model.fit(X, start={"redraw_prob": 0.5}, **QUIET)
    other = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(X, fixed={"redraw_prob": 0.5}, **QUIET)
    with pytest.raises(ValueError, match=r"^start\['redraw_prob'\]"):
        model.fit(X, start=other, **QUIET)
    assert float(model.fit(X, start={"redraw_prob": 0.05}, **QUIET).values["redraw_prob"]) <= 0.1
    at_end = model.fit(X, **QUIET)  # its optimum is at the end of the range, and is a start
    assert float(model.fit(X, start=at_end, **QUIET).values["redraw_prob"]) == pytest.approx(0.1, rel=1e-4)
    held = model.fit(X, start={"redraw_prob": 0.5}, fixed={"redraw_prob": 0.02}, **QUIET)
    assert float(held.values["redraw_prob"]) == 0.02
    structure = sh.LinearSSM(sh.Cycle(period=(4, 30)))
    name = next(iter(structure.emission.ranges))
    low, high = structure.emission.ranges[name]
    bounded = {name: dist.Uniform(low, low + 0.3 * (high - low))}
    values = structure.fit(torch.sin(torch.arange(60.0)), progress=False).values | {name: low + 0.9 * (high - low)}
    with pytest.raises(ValueError, match=rf"^start\['{name}'\]: got .*which its prior of Uniform excludes"):
        structure.fit(torch.sin(torch.arange(60.0)), prior=bounded, start=values, progress=False)


def test_a_summary_names_an_estimate_at_the_end_of_its_prior() -> None:
    model = sh.SwitchingSSM(sh.Copy(2, prior={"redraw_prob": dist.Uniform(0.0, 0.1)}), sh.Normal(1))
    summary = model.fit(X, **QUIET).summary()
    assert torch.tensor(summary.parameters.loc["redraw_prob", "standard error"]).isnan()
    assert "redraw_prob: at the end 0.1 of the range of its prior, a Uniform." in str(summary).replace("\n", " ")
    inside = sh.SwitchingSSM(sh.Copy(2, prior={"redraw_prob": dist.Uniform(0.0, 0.9)}), sh.Normal(1)).fit(X, **QUIET)
    assert inside.model.at_ends() == []


@pytest.mark.slow
def test_an_autoregression_at_the_edge_of_stationarity_is_named() -> None:
    nearly_constant = torch.full((40,), 3.0, dtype=DOUBLE)
    nearly_constant[-1] += 1e-4
    with pytest.warns(UserWarning, match=r"^ar.L1: at the edge of stationarity, where shocks do not fade"):
        fit = sh.LinearSSM(sh.Autoregression(1)).fit(nearly_constant, progress=False)
    assert "ar.L1: at the edge of stationarity" in str(fit.summary())
    noise = torch.randn(80, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    usual = sh.LinearSSM(sh.Autoregression(1)).fit(noise, progress=False)
    assert usual.model.at_ends() == []


NOISE = torch.randn(30, 1, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
PANEL = NOISE + 4 * (torch.arange(30)[:, None] // 10 % 2)
FITS = {
    "copy": (sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)), {}),
    "tied": (sh.SwitchingSSM(sh.Markov(2), sh.Normal(1, tied={"scale": "all states"})), {}),
    "fixed": (sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)), {"fixed": {"loc": [[0.0], [4.0]]}}),
    "driven": (sh.SwitchingSSM(sh.Markov(2, inputs=1), sh.Normal(1)), {"inputs": torch.linspace(-1, 1, 30)[:, None]}),
    "lags": (sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(1, 1, covariance="full")), {}),
    "linear": (sh.LinearSSM(1, 1), {}),
    "switching linear": (sh.SwitchingLinearSSM(2, 1, 1), {}),
    "factorial": (sh.FactorialSSM((2, 2), sh.MultivariateNormal(1)), {}),
    "layered": (sh.LayeredSSM((2, 2), sh.Normal(1)), {}),
}


@pytest.mark.parametrize("kind", FITS)
def test_fits_by_message_passing_are_pickled(kind: str, monkeypatch) -> None:
    short_starts(monkeypatch)
    model, options = FITS[kind]
    fit = model.fit(PANEL, "vmp", max_steps=3, **options, **QUIET)
    again = pickle.loads(pickle.dumps(fit))
    for name, draws in fit.posterior.sample(3, seed=0).items():
        assert_close(again.posterior.sample(3, seed=0)[name], draws, rtol=0, atol=0)
    for name, value in fit.values.items():
        assert_close(again.values[name], value, rtol=0, atol=0)
