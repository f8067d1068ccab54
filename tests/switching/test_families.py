"""Every family of observations: its density, its extremes, and each thing that a model with it does."""

import contextlib
import warnings

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from hmmlearn.hmm import GMMHMM
from oracles.effort import effort
from oracles.models import enumerate_evidence
from samplehold import Emission
from samplehold.switching.emissions.separate import Separate
from samplehold.switching.fitting import sampling
from samplehold.switching.priors import log_prior
from scipy import stats
from torch.testing import assert_close

FAMILIES = {
    "spherical": sh.Normal(2, covariance="spherical"),
    "tied vectors": sh.MultivariateNormal(2, covariance="tied"),
    "factors": sh.FactorAnalysis(3, 1),
    "student t": sh.StudentT(2),
    "gamma": sh.Gamma(2),
    "exponential": sh.Exponential(2),
    "log-normal": sh.LogNormal(2),
    "beta": sh.Beta(2),
    "negative binomial": sh.NegativeBinomial(2),
    "geometric": sh.Geometric(2),
    "von mises": sh.VonMises(2),
    "multinomial": sh.Multinomial(3, 6),
    "zero-inflated poisson": sh.ZeroInflated(sh.Poisson(2)),
    "zero-inflated negative binomial": sh.ZeroInflated(sh.NegativeBinomial(2)),
    "zero-inflated gamma": sh.ZeroInflated(sh.Gamma(2)),
    "zero-inflated beta": sh.ZeroInflated(sh.Beta(2)),
    "zero-inflated log-normal": sh.ZeroInflated(sh.LogNormal(2)),
    "joint": sh.Joint(
        step=sh.ZeroInflated(sh.Gamma()), angle=sh.VonMises(), kind=sh.Categorical(3), wind=sh.MultivariateNormal(2)
    ),
    "mixture": sh.Mixture(sh.Normal(2), 2),
    "mixture of vectors": sh.Mixture(sh.MultivariateNormal(2), 2),
    "gated": sh.Gated(sh.Gamma(2), sh.LogNormal(2)),
}
POPULATIONS = ("exponential", "geometric", "log-normal", "multinomial")  # every member of the family is a prior
BY_MESSAGES = ("spherical", "tied vectors", "student t", *POPULATIONS)
DYNAMICS = {"copy": sh.Copy(2), "markov": sh.Markov(2)}


def observations(name: str, shape: tuple[int, ...] = (40,), seed: int = 0) -> torch.Tensor:
    """Numbers that the emission can have produced, in two states that last for ten steps."""
    generator = torch.Generator().manual_seed(seed)
    state = (torch.arange(shape[-1]) // 10 % 2).double().unsqueeze(-1).expand(*shape, 1)
    normal = torch.randn(*shape, 2, generator=generator, dtype=torch.float64)
    zero = torch.rand(*shape, 2, generator=generator, dtype=torch.float64) < 0.25
    positive, angle = (normal / 2 + 2 * state).exp(), (normal / 2 + 3 * state + np.pi) % (2 * np.pi) - np.pi
    share, count = (normal + 3 * state - 1.5).sigmoid(), (2 * positive).floor()
    if name == "multinomial":
        probs = torch.cat([1 + 4 * state, 1 + state, 5 - 4 * state], -1)
        return torch.distributions.Multinomial(6, probs=probs).sample().double()
    if name == "joint":
        step = positive[..., :1].masked_fill(zero[..., :1], 0.0)
        return torch.cat([step, angle[..., :1], (share[..., :1] * 2.99).floor(), 1e5 + normal], -1)
    third = normal[..., :1] + torch.randn(*shape, 1, generator=generator, dtype=torch.float64)
    by_name = {
        "factors": 5 * state + torch.cat([normal + normal[..., :1], third], -1),
        "spherical": 5 * state + normal,
        "tied vectors": 5 * state + normal,
        "student t": 5 * state + normal / zero.double().add(0.3),
        "mixture": 6 * state + normal + 3 * zero[..., :1],
        "mixture of vectors": 6 * state + normal + 3 * zero[..., :1],
        "beta": share,
        "negative binomial": count,
        "geometric": count,
        "von mises": angle,
        "zero-inflated poisson": count.masked_fill(zero, 0.0),
        "zero-inflated negative binomial": count.masked_fill(zero, 0.0),
        "zero-inflated gamma": positive.masked_fill(zero, 0.0),
        "zero-inflated log-normal": positive.masked_fill(zero, 0.0),
        "zero-inflated beta": share.masked_fill(zero, 0.0),
    }
    return by_name.get(name, positive)


def drawn(name: str, seed: int = 0) -> sh.SwitchingSSM:
    """A model whose parameters are typical of some data."""
    emission, x = FAMILIES[name], observations(name, seed=seed)
    prior, weights = emission.default_prior(2, x), torch.full((40, 2), 0.1, dtype=torch.float64)
    weights[torch.arange(40), torch.arange(40) // 10 % 2] = 0.9
    values = emission.maximize(x, weights, emission.start(prior), prior, torch.full_like(x[0], 1e-12)).values
    return sh.SwitchingSSM(sh.Copy(2), emission).with_values(redraw_prob=0.1, state_probs=[0.4, 0.6], **values)


# ---- densities -------------------------------------------------------------------------------------------------------

REFERENCES = {
    "student t": lambda v: stats.t(v["df"], v["loc"], v["precision"] ** -0.5),
    "gamma": lambda v: stats.gamma(v["shape"], scale=1 / v["rate"]),
    "exponential": lambda v: stats.expon(scale=1 / v["rate"]),
    "log-normal": lambda v: stats.lognorm(v["precision"] ** -0.5, scale=np.exp(v["loc"])),
    "beta": lambda v: stats.beta(v["concentration1"], v["concentration0"]),
    "negative binomial": lambda v: stats.nbinom(1 / v["dispersion"], 1 / (1 + v["dispersion"] * v["mean"])),
    "geometric": lambda v: stats.geom(v["probs"], loc=-1),
    "von mises": lambda v: stats.vonmises(v["concentration"], v["loc"]),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_densities_and_moments_are_those_of_scipy(name):
    model, x = drawn(name), observations(name, seed=1)
    emission, values = model.emission, model.values
    reference = REFERENCES[name]({n: values[n].numpy() for n in emission.parameters})
    wide = x.unsqueeze(-2).numpy()
    log_density = reference.logpmf if emission.support.is_discrete else reference.logpdf
    expected = torch.from_numpy(log_density(wide).sum(-1))
    assert_close(emission.table(x, values), expected, rtol=1e-12, atol=1e-12)
    cdf = reference.cdf(wide) - (reference.cdf(-np.pi) if name == "von mises" else 0)
    assert_close(emission.marginal_cdf(x.unsqueeze(-2), values), torch.from_numpy(cdf), rtol=1e-10, atol=1e-12)
    mean, variance = emission.moments(values)
    if name == "von mises":
        assert_close(mean, values["loc"])
        assert_close((-variance / 2).exp(), 1 - torch.from_numpy(_circular_variance(values)), rtol=1e-9, atol=0)
    else:
        assert_close(mean, torch.from_numpy(reference.mean()), rtol=1e-12, atol=1e-12)
        assert_close(variance, torch.from_numpy(np.asarray(reference.var())), rtol=1e-10, atol=1e-12)


def _circular_variance(values):
    angle = np.linspace(-np.pi, np.pi, 20_000, endpoint=False)
    kappa = values["concentration"].numpy()
    weight = np.exp(kappa[..., None] * (np.cos(angle) - 1))
    return 1 - (weight * np.cos(angle)).mean(-1) / weight.mean(-1)


def test_multinomial_densities_are_those_of_scipy_and_sum_over_missing_counts():
    emission, probs = sh.Multinomial(3, 6), torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], dtype=torch.float64)
    x, values = observations("multinomial"), {"probs": probs}
    expected = np.stack([stats.multinomial.logpmf(x.numpy(), 6, row.numpy()) for row in probs], -1)
    assert_close(emission.table(x, values), torch.from_numpy(expected), rtol=1e-12, atol=1e-12)
    at = torch.arange(-1.0, 8.0).double()
    below = emission.marginal_cdf(at[:, None, None], values)
    of_each = stats.binom.cdf(at[:, None, None].numpy(), 6, probs.numpy())
    assert_close(below, torch.from_numpy(of_each), rtol=1e-12, atol=1e-15)
    first_only = torch.tensor([[2.0, torch.nan, torch.nan]], dtype=torch.float64)
    of_first = stats.binom.logpmf(2, 6, probs[:, 0].numpy())
    assert_close(emission.table(first_only, values)[0], torch.from_numpy(of_first), rtol=1e-12, atol=0)
    assert_close(emission.table(torch.full_like(first_only, torch.nan), values), torch.zeros(1, 2).double())


@pytest.mark.parametrize("name", ["zero-inflated poisson", "zero-inflated gamma"])
def test_zero_inflated_densities_are_mixtures_with_a_point_mass(name):
    model, x = drawn(name), observations(name, seed=1)
    emission, values = model.emission, model.values
    inner, zero = emission.emission, values["zero_probs"]
    one = type(inner)(1)
    parts = {n: values[n].unsqueeze(-1) for n in inner.parameters}
    density = one.log_prob(torch.where(x == 0, 0.0 if "poisson" in name else 1.0, x)[:, None, :, None], parts).exp()
    is_zero = (x == 0).double().unsqueeze(-2)
    at_zero = zero + (1 - zero) * density * (1.0 if "poisson" in name else 0.0)
    expected = (is_zero * at_zero + (1 - is_zero) * (1 - zero) * density).log().sum(-1)
    assert_close(emission.table(x, values), expected, rtol=1e-12, atol=1e-12)
    draws = emission.distribution({n: values[n] for n in emission.parameters}).sample((4000,))
    mean, variance = emission.moments(values)
    assert float(((draws.mean(0) - mean) / (variance / 4000).sqrt()).abs().max()) < 5
    below = emission.marginal_cdf(torch.full_like(mean, 1.5), values)
    assert_close((draws <= 1.5).double().mean(0), below, rtol=0, atol=0.05)


@pytest.mark.few(9)
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gated"])
def test_missing_features_are_marginalised_and_the_program_has_the_same_density(name):
    model, x = drawn(name), observations(name, (4,))
    if name != "multinomial":
        x[1, 0], x[2, 1] = torch.nan, torch.nan
    assert_close(model.log_evidence(x), enumerate_evidence(model, x), rtol=1e-10, atol=1e-10)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "name", [*REFERENCES, "factors", "zero-inflated poisson", "zero-inflated gamma", "multinomial"]
)
@pytest.mark.parametrize("prior", [True, False])
def test_the_m_step_is_a_stationary_point_of_its_objective(name, prior):
    model, x = drawn(name), observations(name)
    weights = torch.rand(40, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    emission, values = model.emission, model.values
    default = emission.default_prior(2, x)
    for _ in range(4):
        best = emission.maximize(x, weights, values, default if prior else None, torch.full_like(x[0], 1e-12))
        values = values | best.values
    assert not bool(emission.collapsed(values, torch.full_like(x[0], 1e-12)).any())
    leaves = {n: values[n].clone().requires_grad_() for n in emission.parameters}
    objective = (weights * emission.table(x, leaves)).sum()
    objective = objective + log_prior(emission.sites(default), leaves) if prior else objective
    for leaf, slope in zip(leaves.values(), torch.autograd.grad(objective, list(leaves.values())), strict=True):
        scaled = slope * leaf
        if name == "multinomial":
            scaled = scaled - leaf * scaled.sum(-1, keepdim=True)
        assert float(scaled.detach().abs().max()) < 1e-4


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gated"])
def test_draws_quantiles_and_coordinates_of_every_family(name):
    model, x = drawn(name), observations(name)
    emission = model.emission
    values = {n: model.values[n] for n in emission.parameters}
    law = emission.distribution(values)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        draws = law.sample((3,))  # [3, K, F]
    emission.check(draws.to(x))
    each = torch.stack([emission.table(draws[:, k].to(x), values)[:, k] for k in range(2)], -1)
    assert_close(law.expand([3, 2]).log_prob(draws), each, rtol=1e-10, atol=1e-10)
    assert law.support.check(draws.to(x)).all()
    assert emission.embed(x).shape[0] == 40
    assert bool(emission.embed(x).isfinite().all())
    lower, upper = model.forecast(x, 1).interval(0.8)
    assert bool((lower <= upper).all())
    assert emission.shifts([]) is ("zero" not in name)
    if "joint" not in name and "mixture" not in name and name not in ("von mises", "student t"):
        assert_close(law.mean, emission.moments(values)[0])
        assert_close(law.variance, emission.moments(values)[1])


@pytest.mark.parametrize("name", POPULATIONS)
def test_conjugate_families_have_their_messages(name):
    emission, x = FAMILIES[name], observations(name)
    prior = emission.default_prior(2, x)
    if name == "student t":
        with pytest.raises(TypeError, match="has no population"):
            emission.hyperparameters_of(emission.natural(prior))
    else:
        again = emission.hyperparameters_of(emission.natural(prior))
        assert all(torch.allclose(again[n], prior[n]) for n in prior)
    fit = sh.SwitchingSSM(sh.Copy(2), emission).fit(x, "vmp", restarts=1, max_steps=3, progress=False)
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())


def test_multinomials_are_sized_to_tables():
    assert sh.Multinomial.sized_to(np.array([[np.nan, 2.0], [3.0, 1.0]])) == sh.Multinomial(2, 4)


def test_priors_of_components_are_those_of_each():
    emission = sh.Mixture(sh.Normal(1, prior={"scale": dist.HalfNormal(1.0)}), 3)
    sites = emission.sites(emission.default_prior(2, None))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        values = {}
        for site in sites:
            values[site.name] = site.distribution(values).sample()
            assert bool(site.distribution(values).support.check(values[site.name]).all())
            assert_close(site.distribution(values).expand([2]).log_prob(values[site.name]).shape, torch.Size([2]))
    assert {n: tuple(v.shape) for n, v in values.items()} == {
        "precision": (2, 3, 1),
        "loc": (2, 3, 1),
        "component_probs": (2, 3),
    }
    assert emission.with_user_priors({"loc": dist.Normal(0.0, 1.0)}).emission.user_priors.keys() == {"loc", "precision"}
    plain = sh.Mixture(sh.Poisson(1), 3)
    rate, _ = plain.sites(plain.default_prior(2, None))
    assert_close(rate.distribution({}).mean, torch.full((2, 3, 1), 2.0).double())
    zero = sh.ZeroInflated(sh.Gamma(), prior={"zero_probs": dist.Beta(2.0, 5.0), "rate": dist.Gamma(2.0, 1.0)})
    both = zero.with_user_priors({"shape": dist.Gamma(2.0, 1.0)})
    assert both.emission.user_priors.keys() == {"rate", "shape"}
    assert both.user_priors.keys() == {"zero_probs"}


# ---- extremes --------------------------------------------------------------------------------------------------------

EXTREMES = {
    "student t": [1e12, -1e12, 0.0, 1e-30],
    "gamma": [1e-30, 1e-3, 1.0, 1e12],
    "exponential": [0.0, 1e-30, 1.0, 1e12],
    "log-normal": [1e-30, 1e-3, 1.0, 1e12],
    "beta": [1e-30, 1e-6, 0.5, 1 - 6e-8],
    "negative binomial": [0.0, 1.0, 1e6, 1e9],
    "geometric": [0.0, 1.0, 1e6, 1e9],
    "von mises": [-np.pi, 0.0, np.pi, 3.0],
    "zero-inflated poisson": [0.0, 1.0, 1e6, 1e9],
    "zero-inflated negative binomial": [0.0, 1.0, 1e6, 1e9],
    "zero-inflated gamma": [0.0, 1e-30, 1.0, 1e12],
}


@pytest.mark.few(5)
@pytest.mark.parametrize("prior", ["weak", None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_numbers_never_give_nan(name, dtype, prior):
    one = sh.ZeroInflated(type(FAMILIES[name].emission)(1)) if "zero" in name else type(FAMILIES[name])(1)
    x = torch.tensor(4 * EXTREMES[name], dtype=dtype)
    fit = sh.SwitchingSSM(sh.Markov(2), one).fit(x, prior=prior, restarts=1, max_steps=5, progress=False)
    assert bool(fit.objective.isfinite().all())
    assert all(bool(value.isfinite().all()) for value in fit.model.values.values())
    assert bool(fit.smooth().state.isfinite().all())


def test_an_exponential_state_of_zeros_is_reported():
    x = torch.rand(40, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[10:20] = x[30:40] = 0.0
    known = [0 if t % 20 >= 10 else -1 for t in range(40)]
    fit = sh.SwitchingSSM(sh.Markov(2), sh.Exponential(1)).fit(x, restarts=1, states=known, prior=None, progress=False)
    assert fit.collapsed_states.tolist() == [True, False]
    assert float(fit.model.rate.max()) < 1e9


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["gamma", "student t", "log-normal", "beta", "zero-inflated gamma", "von mises"])
def test_a_state_on_one_number_stays_finite_and_is_reported_without_a_prior(name):
    x = observations(name)[:, :1].flatten().clone()
    x[10:20] = x[30:40] = 0.75
    one = sh.ZeroInflated(sh.Gamma(1)) if "zero" in name else type(FAMILIES[name])(1)
    model = sh.SwitchingSSM(sh.Markov(2), one)
    weak = model.fit(x, restarts=1, max_steps=20, progress=False)
    assert not bool(weak.collapsed_states.any())
    assert bool(weak.objective.isfinite().all())
    known = [0 if t % 20 >= 10 else -1 for t in range(40)]
    free = model.fit(x, restarts=1, max_steps=50, states=known, prior=None, progress=False)
    assert bool(free.collapsed_states[0])
    assert all(bool(value.isfinite().all()) for value in free.model.values.values())


@pytest.mark.parametrize(
    "emission", [sh.Normal(2), sh.StudentT(2), sh.Joint(level=sh.StudentT(), rain=sh.ZeroInflated(sh.Gamma()))]
)
def test_a_state_on_one_number_is_named_with_its_feature_and_the_prior_that_cures_it(emission):
    generator = torch.Generator().manual_seed(0)
    x = 1 + torch.rand(40, 2, generator=generator, dtype=torch.float64)
    x[10:20, 1] = x[30:40, 1] = 0.75
    frame = pd.DataFrame(x.numpy(), columns=["level", "rain"])
    known = [0 if t % 20 >= 10 else 1 for t in range(40)]
    fit = sh.SwitchingSSM(sh.Markov(2), emission).fit(
        frame, restarts=1, max_steps=20, states=known, prior=None, progress=False
    )
    assert fit.collapsed_states.tolist() == [True, False]
    said = " ".join(str(fit.summary()).split())
    assert (
        'State 0 sits on a single point in rain, where the likelihood has no maximum. prior="weak" bounds it.' in said
    )
    assert 'on a single point: state 0 in rain (prior="weak" bounds the likelihood)' in str(fit.diagnose())
    weak = sh.SwitchingSSM(sh.Markov(2), emission).fit(frame, restarts=1, max_steps=20, states=known, progress=False)
    assert not bool(weak.collapsed_states.any())


def test_starts_that_end_on_single_points_are_said_where_the_rest_disagree():
    x = np.r_[np.zeros(20), np.random.default_rng(0).normal(5, 1, 40)]
    fit = sh.SwitchingSSM(sh.Markov(2), sh.Normal()).fit(x, prior=None, max_steps=20, progress=False)
    assert "starts ended with a state on a single point, where the likelihood is unbounded" in fit.reason


@pytest.mark.parametrize(
    ("emission", "free"),
    [(sh.ZeroInflated(sh.Gamma()), "shape and rate"), (sh.ZeroInflated(sh.Poisson()), "zero_probs")],
)
def test_zeros_alone_leave_parameters_free_which_is_said(emission, free):
    x = torch.tensor([0.0] * 20 + [3.0, 4.0, 6.0, 5.0] * 5).double()
    model, fast = sh.SwitchingSSM(sh.Markov(2), emission), {"restarts": 1, "max_steps": 20, "progress": False}
    known = [0] * 20 + [1] * 20
    with pytest.warns(UserWarning, match=rf"{free}: feature 0 is always 0 in state 0, .*prior='weak'"):
        fit = model.fit(x, prior=None, states=known, **fast)
    assert not bool(fit.collapsed_states.any())
    joint = sh.SwitchingSSM(sh.Markov(2), sh.Joint(one=emission, two=sh.Normal()))
    both = torch.stack([x, torch.sin(torch.arange(40)).double()], -1)
    with pytest.warns(UserWarning, match=rf"{free}: feature 0 is always 0 in state 0"):
        joint.fit(both, prior=None, states=known, **fast)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(x, states=known, **fast)


@pytest.mark.parametrize(
    ("probs", "rate", "free"), [(1 - 1e-10, 2.0, "rate"), (0.5, 1e-10, "zero_probs"), (0.5, 2.0, None)]
)
def test_of_counts_that_are_all_zero_either_parameter_may_be_free(probs, rate, free):
    values = {"rate": torch.tensor([[rate], [3.0]]), "zero_probs": torch.tensor([[probs], [0.1]])}
    values = {name: value.double() for name, value in values.items()}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sh.ZeroInflated(sh.Poisson()).check_fitted(values, torch.zeros(3, 1).double())
    assert [str(one.message).split(":")[0] for one in said] == ([] if free is None else [free])


def test_the_weak_prior_of_waiting_times_is_weak_beside_states_of_very_different_rates():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.exponential(1e-3, 100), rng.exponential(1.0, 100)])
    model, fast = sh.SwitchingSSM(sh.Markov(2), sh.Exponential()), {"restarts": 2, "progress": False}
    free, weak = (model.fit(x, prior=prior, **fast).model.rate.flatten().sort().values for prior in (None, "weak"))
    assert_close(weak, free, rtol=0.03, atol=0)
    assert_close(sh.Exponential().default_prior(2, None)["rate"], torch.full((2, 1), 0.5).double())
    zeros = torch.zeros(10, 1).double()
    assert bool((sh.Exponential().default_prior(2, zeros)["rate"] > 0).all())


def test_gammas_of_great_shape_keep_their_digits():
    x = 1e4 + torch.randn(200, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fit = sh.SwitchingSSM(sh.Markov(1), sh.Gamma()).fit(x, prior=None, restarts=1, progress=False)
    mean, variance = fit.model.emission.moments(fit.model.values)
    assert_close(mean[0], x.mean(0), rtol=1e-12, atol=0)
    assert_close(variance[0], x.var(0, correction=0), rtol=1e-5, atol=0)


# ---- what the observations have to be --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("emission", "bad", "said"),
    [
        (sh.Gamma(), 0.0, r"expected positive numbers \(Gamma\). ZeroInflated\(Gamma\(...\)\) accepts 0 too"),
        (sh.LogNormal(), -1.0, "expected positive numbers .*Normal or StudentT accept any number"),
        (sh.Exponential(), -1.0, "expected numbers of at least 0"),
        (sh.Beta(), 1.0, "expected proportions between 0 and 1, without these"),
        (sh.NegativeBinomial(), 0.5, "expected counts"),
        (sh.VonMises(), 4.0, "expected angles in radians, from -pi to pi.*Turn others"),
        (sh.ZeroInflated(sh.Gamma()), -1.0, r"expected 0 or positive numbers \(ZeroInflated\)"),
        (sh.ZeroInflated(sh.Poisson()), 0.5, "expected counts"),
    ],
)
def test_numbers_outside_the_support_are_named_with_a_family_that_takes_them(emission, bad, said):
    frame = pd.DataFrame({"level": [0.25, 0.5, bad, 0.5]})
    if emission.support.is_discrete:
        frame["level"] = [0.0, 1.0, bad, 1.0]
    with pytest.raises(ValueError, match=rf"x: got {bad:g} at step 2, feature 0 \(level\); {said}"):
        sh.SwitchingSSM(sh.Copy(2), emission).fit(frame, progress=False)


def test_multinomial_counts_have_their_total():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Multinomial(3, 6))
    with pytest.raises(ValueError, match=r"x: got counts that sum to 5 at step 1; expected the total 6"):
        model.fit([[6, 0, 0], [1, 2, 2]], progress=False)
    with pytest.raises(ValueError, match="sum to 7"):
        model.fit([[6, 0, 0], [5, 2, np.nan]], progress=False)


@pytest.mark.usefixtures("as_users_call")
def test_arguments_of_families_are_checked():
    with pytest.raises(
        TypeError, match=r"emission: got MultivariateNormal\(n_features=2\), expected one of independent"
    ):
        sh.ZeroInflated(sh.MultivariateNormal(2))
    with pytest.raises(TypeError, match="emission: got int"):
        sh.ZeroInflated(3)
    with pytest.raises(ValueError, match="sd: got -1"):
        sh.Gamma.of_moments(mean=1.0, sd=-1.0)
    with pytest.raises(ValueError, match="total"):
        sh.Multinomial(3, 0)
    with pytest.raises(TypeError, match="got no emission"):
        sh.Joint()
    with pytest.raises(TypeError, match="step: got str"):
        sh.Joint(step="gamma")
    with pytest.raises(ValueError, match="step_x: begins with step_"):
        sh.Joint(step=sh.Gamma(), step_x=sh.Gamma())
    with pytest.raises(ValueError, match="background"):
        sh.Joint(background=sh.Gamma())
    with pytest.raises(ValueError, match=r"step: got .*supports inputs"):
        sh.Joint(step=sh.Poisson(1, inputs=["dose"]))


# ---- what models do --------------------------------------------------------------------------------------------------

CASES = [(name, "copy" if i % 2 or name == "gated" else "markov") for i, name in enumerate(FAMILIES)]


@pytest.mark.few(3)
@pytest.mark.parametrize(("name", "moves"), CASES)
def test_every_family_does_everything(name, moves, tmp_path):
    model = sh.SwitchingSSM(DYNAMICS[moves], FAMILIES[name])
    x = observations(name)
    x[3, 0] = x[7] = torch.nan
    fit = model.fit(x, restarts=1, max_steps=5, progress=False)
    assert bool(fit.objective.isfinite().all())
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
    ahead = fit.forecast(3)
    lower, upper = ahead.interval(0.8)
    assert bool((lower <= upper).all())
    assert bool(ahead.observation.cdf(upper).ge(0.9 - 1e-6).all())
    assert len(fit.plot().axes) == len(ahead.plot().axes) + 1
    fit.model.read(fit.model.simulate(50, seed=0).x)  # draws are inside the support
    fit.model.save(tmp_path)
    again = sh.load(tmp_path)
    assert again.emission == model.emission
    assert torch.equal(again.log_evidence(x), fit.model.log_evidence(x))
    data = fit.to_arviz(draws=3)
    assert set(fit.model.describe()) <= set(
        data["posterior" if "posterior" in data.groups() else "estimates"].data_vars
    )
    parts = [x[:15], x[15:37], x[37:]]
    ragged = fit.model.log_evidence(parts)
    assert_close(ragged, torch.stack([fit.model.log_evidence(part) for part in parts]), rtol=1e-10, atol=1e-10)


@pytest.mark.few(4)
@pytest.mark.parametrize(("name", "moves"), CASES)
def test_message_passing_fits_conjugate_families_and_refuses_others(name, moves):
    model, x = sh.SwitchingSSM(DYNAMICS[moves], FAMILIES[name]), observations(name)
    x[3, 0] = torch.nan
    if name not in BY_MESSAGES:
        with pytest.raises(TypeError, match=r"has no conjugate family, which message passing needs; use method=\"em\""):
            model.fit(x, "vmp", progress=False)
        return
    fit = model.fit(x, "vmp", restarts=2, max_steps=20, progress=False)
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
    assert bool(fit.posterior.interval(0.9).lower[next(iter(model.emission.parameters))].isfinite().all())


@pytest.mark.slow
@pytest.mark.parametrize(("method", "steps"), [("svi", 15), ("nuts", 3)])
@pytest.mark.parametrize("name", FAMILIES)
def test_samplers_go_on_from_em(name, method, steps, monkeypatch):
    monkeypatch.setattr(sampling, "CHAINS", 1)
    moves = "copy" if method == "svi" or name == "gated" else "markov"
    model, x = sh.SwitchingSSM(DYNAMICS[moves], FAMILIES[name]), observations(name)
    fit = model.fit(x, method, restarts=1, progress=False, **effort(method, steps))
    assert set(fit.posterior.draws) == set(model.known)
    assert all(bool(draws.isfinite().all()) for draws in fit.posterior.draws.values())
    assert bool(fit.forecast(2).mean.isfinite().all())


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "prior"),
    [
        ("spherical", {"scale": dist.HalfNormal(0.1)}),
        ("factors", {"loadings": dist.Normal(0.0, 0.01), "noise": dist.Gamma(1e4, 1e4)}),
        ("student t", {"loc": dist.Normal(5.0, 0.01), "df": dist.Gamma(2e4, 1e4)}),
        ("gamma", {"rate": dist.LogNormal(2.0, 0.01)}),
        ("exponential", {"rate": dist.Gamma(1e6, 1e5)}),
        ("log-normal", {"scale": dist.HalfNormal(0.1)}),
        ("beta", {"concentration1": dist.Gamma(1e4, 1e3)}),
        ("negative binomial", {"dispersion": dist.HalfNormal(0.001)}),
        ("geometric", {"probs": dist.Beta(1e4, 1e5)}),
        ("von mises", {"concentration": dist.Gamma(1e4, 1e3)}),
        ("zero-inflated poisson", {"rate": dist.Gamma(1e4, 1e3), "zero_probs": dist.Beta(1e4, 1e4)}),
        ("zero-inflated gamma", {"shape": dist.Gamma(1e4, 1e3)}),
        ("mixture", {"loc": dist.Normal(5.0, 0.01)}),
        ("joint", {"angle_concentration": dist.Gamma(1e4, 1e3), "wind_loc": dist.Normal(1e5 + 7, 1e-3)}),
    ],
)
def test_user_priors_are_taken(name, prior, tmp_path):
    x = observations(name)
    model = sh.SwitchingSSM(sh.Markov(2), FAMILIES[name])
    fit = model.fit(x, prior=prior, restarts=1, max_steps=4, progress=False)
    weak = model.fit(x, restarts=1, max_steps=4, progress=False)
    for given, one in prior.items():
        here, before = fit.model.describe()[given], weak.model.describe()[given]
        assert float(one.log_prob(here).mean()) >= float(one.log_prob(before).mean()) - 1e-6
    fit.model.save(tmp_path)
    assert sh.load(tmp_path).emission.sites(fit.model.prior)
    with pytest.raises(ValueError, match="prior"):
        model.fit(x, prior={"size": dist.Normal(0.0, 1.0)}, progress=False)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", ["gamma", "student t", "exponential", "log-normal", "zero-inflated gamma", "mixture", "joint"]
)
def test_another_unit_of_the_data_changes_nothing_else(name):
    x = observations(name)
    factor = torch.tensor([1e4, 1.0, 1.0, 1e4, 1e4]) if name == "joint" else torch.tensor([1e4, 1e-4])
    shift = 1e5 if name == "student t" else 0.0
    model = sh.SwitchingSSM(sh.Markov(2), FAMILIES[name])
    fit, other = (model.fit(y, restarts=1, seed=1, progress=False) for y in (x, factor * x + shift))
    n_numbers = (~x.isnan()) & ((x != 0) | (name != "zero-inflated gamma"))
    if name == "joint":
        n_numbers[:, 0] &= x[:, 0] != 0
    moved = (n_numbers * factor.double().log()).sum()
    assert_close(other.model.log_evidence(factor * x + shift), fit.model.log_evidence(x) - moved, rtol=1e-4, atol=1e-4)


def test_fixed_parameters_keep_their_values():
    x = observations("gamma")
    fit = sh.SwitchingSSM(sh.Markov(2), sh.Gamma(2)).fit(
        x, fixed={"shape": [[2.0, torch.nan], [torch.nan, 3.0]]}, restarts=1, max_steps=5, progress=False
    )
    assert fit.model.values["shape"].diagonal().tolist() == [2.0, 3.0]
    quiet = sh.SwitchingSSM(sh.Markov(2), sh.ZeroInflated(sh.NegativeBinomial())).fit(
        [0, 0, 0, 0, 9, 8, 5, 0], fixed={"zero_probs": [[0.5], [0.1]]}, restarts=1, max_steps=5, progress=False
    )
    assert not bool(quiet.collapsed_states.any())
    joint = sh.SwitchingSSM(sh.Markov(2), FAMILIES["joint"]).fit(
        observations("joint"), fixed={"wind_loc": [[1e5, 1e5], [1e5, 1e5]]}, restarts=1, max_steps=5, progress=False
    )
    assert_close(joint.model.values["wind_loc"], torch.full((2, 2), 1e5).double(), rtol=0, atol=0)


@pytest.mark.parametrize("beside", [False, True])
def test_the_mean_of_a_forecast_of_angles_is_a_direction(beside):
    loc, sharp = [[3.0], [-3.0]], [[50.0], [50.0]]
    moves = {"redraw_prob": 0.5, "state_probs": [0.5, 0.5]}
    model = sh.SwitchingSSM(sh.Copy(2), sh.VonMises()).with_values(loc=loc, concentration=sharp, **moves)
    x = torch.full((3, 1), torch.nan).double()
    if beside:
        emission, x = sh.Joint(turn=sh.VonMises(), level=sh.Normal()), torch.full((3, 2), torch.nan).double()
        more = {"level_loc": [[1.0], [3.0]], "level_scale": [[1.0], [1.0]]}
        made = sh.SwitchingSSM(sh.Copy(2), emission)
        model = made.with_values(turn_loc=loc, turn_concentration=sharp, **more, **moves)
    ahead = model.forecast(x, 2)
    assert_close(ahead.mean[:, 0].abs(), torch.full((2,), np.pi).double(), rtol=0, atol=1e-6)
    each = 1 / 50 + (np.pi - 3) ** 2
    assert_close(ahead.variance[:, 0], torch.full((2,), each).double(), rtol=0.05, atol=0)
    if beside:
        assert_close(ahead.mean[:, 1], torch.full((2,), 2.0).double())


def test_columns_by_name_are_one_sequence_of_a_joint_emission():
    columns = {"angle": [0.1, 0.2, -0.3, 1.0, 2.0, np.nan], "step": [1.0, 2.0, 3.0, 0.4, 1.0, 2.0]}
    model = sh.SwitchingSSM(sh.Markov(2), sh.Joint(step=sh.Gamma(), angle=sh.VonMises()))
    read = model.read(columns)
    assert torch.equal(read.x.nan_to_num(), model.read(pd.DataFrame(columns)).x.nan_to_num())
    assert read.features == ("step", "angle")
    tensors = {name: torch.tensor(column) for name, column in columns.items()}
    assert model.read(tensors).x.dtype == torch.float32
    fit = model.fit(columns, restarts=1, max_steps=3, progress=False)
    (belief,) = fit.model.filter(columns, ragged=True)
    assert belief.state.shape == (6, 2)
    by_name = fit.model.filter({"one": columns, "two": pd.DataFrame(columns)[:3]}, ragged=True)
    assert {name: len(one.state) for name, one in by_name.items()} == {"one": 6, "two": 3}
    assert model.read([columns, columns]).x.shape == (2, 6, 2)
    assert model.read({"one": np.ones((3, 2)), "two": np.ones((4, 2))}).n_sequences == 2
    assert model.read({"one": [[1.0, 1.0]], "two": [[1.0, 1.0], [2.0, 2.0]]}).n_sequences == 2
    with pytest.raises(ValueError, match=r"x: got 1 numbers of angle, 2 numbers of step; give columns of one length"):
        model.read({"angle": [0.1], "step": [1.0, 2.0]})
    with pytest.raises(ValueError, match="expected a column step, as Joint names its emissions"):
        model.read({"angle": [0.1], "size": [1.0]})


def test_columns_by_name_have_one_index():
    model = sh.SwitchingSSM(sh.Markov(2), sh.Joint(step=sh.Gamma(), angle=sh.VonMises()))
    columns = {"step": pd.Series([1.0, 2.0, 3.0]), "angle": pd.Series([0.1, 0.2, 0.3], index=[1, 2, 3])}
    with pytest.raises(ValueError, match=r"x: got columns with different indexes; give columns with one index"):
        model.read(columns)
    assert model.read(columns | {"angle": columns["angle"].to_numpy()}).n_steps == 3


# ---- mixtures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mixture", "mixture of vectors"])
def test_mixtures_have_the_likelihood_of_hmmlearn(name):
    x = observations(name)
    fit = sh.SwitchingSSM(sh.Markov(2), FAMILIES[name]).fit(x, restarts=1, max_steps=5, progress=False)
    values, shown = fit.model.values, fit.model.describe()
    full = name == "mixture of vectors"
    peer = GMMHMM(2, 2, covariance_type="full" if full else "diag", init_params="")
    peer.startprob_, peer.transmat_ = values["initial_probs"].numpy(), values["transition_probs"].numpy()
    peer.weights_, peer.means_ = values["component_probs"].numpy(), values["loc"].numpy()
    peer.covars_ = shown["covariance"].numpy() if full else shown["scale"].square().numpy()
    peer.n_features = 2
    assert float(fit.model.log_evidence(x)) == pytest.approx(peer.score(x.numpy()), abs=1e-9)


def test_an_m_step_of_a_mixture_raises_the_objective():
    emission, x = FAMILIES["mixture"], observations("mixture")
    weights = torch.rand(3, 40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    prior = emission.default_prior(2, x)
    values = {name: value.expand(3, *value.shape) for name, value in emission.start(prior).items()}

    def objective(values):
        return (weights * emission.table(x, values)).sum((-2, -1)) + log_prior(emission.sites(prior), values)

    heights = []
    for _ in range(5):
        values = emission.maximize(x, weights, values, prior, torch.zeros(2).double()).values
        heights.append(objective(values))
    assert bool((torch.stack(heights).diff(dim=0) > -1e-9).all())
    assert bool((values["loc"][:, :, 0] - values["loc"][:, :, 1]).abs().amax(-1).gt(0.1).all())  # components differ


@pytest.mark.usefixtures("as_users_call")
def test_mixtures_check_their_arguments():
    with pytest.raises(TypeError, match="emission: got str"):
        sh.Mixture("normal", 2)
    with pytest.raises(TypeError, match="expected one with parameters of its own in each state"):
        sh.Mixture(sh.Normal(1, tied={"scale": "all states"}), 2)
    with pytest.raises(ValueError, match="n: got 0"):
        sh.Mixture(sh.Normal(1), 0)


# ---- columns by name -------------------------------------------------------------------------------------------------

COLUMNS = ["step", "angle", "kind", "wind_u", "wind_v"]


def test_joint_finds_the_columns_of_frames_by_name():
    x = observations("joint")
    frame = pd.DataFrame(x.numpy(), columns=COLUMNS)
    other = frame[["wind_u", "kind", "step", "wind_v", "angle"]]
    model = drawn("joint")
    expected = model.log_evidence(x)
    assert_close(model.log_evidence(other), expected)
    assert_close(model.log_evidence([other, other]), torch.stack([expected, expected]))
    assert model.read(other).features_of() == tuple(COLUMNS)
    assert model.read(x).features_of() == ("step", "angle", "kind", "wind_0", "wind_1")
    with pytest.raises(ValueError, match="expected a column angle, as Joint names"):
        model.fit(frame.rename(columns={"angle": "turn"}), progress=False)
    with pytest.raises(ValueError, match=r"expected 2 columns wind_\.\.\., as Joint names"):
        model.fit(frame.drop(columns="wind_v"), progress=False)
    with pytest.raises(ValueError, match="x: got the columns day, which Joint does not name"):
        model.fit(frame.assign(day=1.0), progress=False)
    series = sh.SwitchingSSM(sh.Markov(2), sh.Normal(5)).read(other)
    with pytest.raises(ValueError, match="x: got a Series with the columns wind_u, kind"):
        model.smooth(series)
    with pytest.raises(ValueError, match=r"x: got -1 at step 0, feature 0 \(step\)"):
        model.smooth(frame.assign(step=-1.0))
    with pytest.raises(ValueError, match=r"x: got 3 at step 0, feature 2 \(kind\)"):
        model.smooth(frame.assign(kind=3.0))


def test_joint_is_the_product_of_its_parts():
    model, x = drawn("joint"), observations("joint")
    emission: Emission = model.emission
    total, first = torch.zeros(40, 2, dtype=torch.float64), 0
    for name, part in emission.emissions.items():
        own = {n: model.values[f"{name}_{n}"] for n in part.parameters}
        total = total + part.table(x[:, first : first + part.n_features], own)
        first += part.n_features
    assert_close(emission.table(x, model.values), total, rtol=1e-12, atol=1e-12)
    assert repr(sh.Joint(step=sh.Gamma())) == "Joint(step=Gamma(n_features=1))"


def test_joint_of_one_family_is_that_family():
    x = observations("student t")
    whole, parts = (
        sh.SwitchingSSM(sh.Markov(2), emission).fit(x, prior=None, progress=False)
        for emission in (sh.Normal(2), sh.Joint(a=sh.Normal(), b=sh.Normal()))
    )
    assert_close(parts.objective[-1], whole.objective[-1], rtol=1e-6, atol=0)


def test_gated_parts_name_the_same_columns():
    parts = sh.Joint(a=sh.Gamma(), b=sh.Normal()), sh.Joint(b=sh.Normal(), a=sh.Gamma())
    with pytest.raises(ValueError, match=r"background: got the columns \['b', 'a'\]"):
        sh.Gated(*parts)
    with contextlib.suppress(ValueError):
        sh.Gated(parts[0], parts[0]).check(torch.tensor([[-1.0, 0.0]]))
    x = torch.cat([observations("gamma")[:, :1], observations("student t")[:, :1]], -1)
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Gated(parts[0], parts[0])).fit(x, restarts=1, max_steps=3, progress=False)
    assert fit.model.values["background_b_loc"].shape == (1, 1)


@pytest.mark.slow
def test_parameters_of_each_subject_are_those_of_fits_alone():
    sequences = [observations("gamma", seed=seed)[:, :1] for seed in range(2)]
    model = sh.SwitchingSSM(sh.Markov(2), sh.Gamma())
    both = model.fit(sequences, subjects=["a", "b"], pooled="none", prior=None, restarts=2, progress=False)
    alone = [model.fit(x, prior=None, restarts=2, progress=False).loglik for x in sequences]
    assert_close(both.loglik, sum(alone), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_weak_prior_of_gamma_does_not_reward_an_empty_state():
    rng = np.random.default_rng(1)
    x = np.where(np.repeat([0, 1, 0, 1], 15), rng.gamma(4, 1.0, 60), rng.gamma(2, 1.0, 60))
    fit = sh.SwitchingSSM(sh.Markov(2), sh.Gamma()).fit(x, restarts=6, progress=False)
    assert not bool(fit.empty_states.any())
    assert float(fit.model.rate.min()) > 0.1


@pytest.mark.parametrize("emission", [sh.NegativeBinomial(), sh.ZeroInflated(sh.Poisson())])
def test_states_of_zeros_alone_have_a_mean_of_at_least_0_in_spite_of_rounding(emission):
    x = torch.tensor([[2.0], [0.0], [0.0], [3.0], [0.0], [5.0], [0.0]], dtype=torch.float64)
    weights = torch.rand(7, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * (x == 0)
    prior = emission.default_prior(40, x)
    best = emission.maximize(x, weights, emission.start(prior), prior, torch.zeros(1, dtype=torch.float64))
    for name, value in best.values.items():
        assert bool(emission.parameters[name].support.check(value).all()), name


@pytest.mark.parametrize("form", [pd.NA, np.array([1, 2]), None])
def test_a_form_that_is_no_word_is_named(form, as_users_call):
    with pytest.raises(ValueError, match=r"covariance: got .*, expected one of 'diagonal', 'spherical'"):
        sh.Normal(1, covariance=form)


@pytest.mark.parametrize("prior", [True, False])
def test_an_m_step_of_a_negative_binomial_has_the_maximum_of_its_density(prior, monkeypatch):
    emission, generator = sh.NegativeBinomial(2), torch.Generator().manual_seed(0)
    x = torch.poisson(30 * torch.rand(200, 2, generator=generator, dtype=torch.float64).square(), generator)
    x[3, 0] = torch.nan
    weights = torch.rand(2, 200, 3, generator=generator, dtype=torch.float64)
    default = emission.default_prior(3, x)
    near = {name: torch.ones(2, 3, 2, dtype=torch.float64) for name in emission.parameters}
    step = x, weights, near, default if prior else None, torch.zeros(2, dtype=torch.float64)
    expected = Separate.maximize(emission, *step).values
    monkeypatch.setattr(sh.NegativeBinomial, "log_density", None)  # of each number, which takes longer
    assert_close(emission.maximize(*step).values, expected, rtol=1e-5, atol=0.0)
