"""An emission from outside the library, with nothing but a density and priors, and one with a conjugate family."""

import math
from dataclasses import dataclass

import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from oracles.effort import effort
from samplehold.inference.families import Gamma
from samplehold.switching.ascent import leaving
from samplehold.switching.emissions.ascent import ascend
from samplehold.switching.emissions.conjugate import Representative
from samplehold.switching.fitting import first_guesses
from samplehold.switching.fitting.em import LEFT
from samplehold.switching.fitting.starts import typical
from samplehold.switching.parameters import Named
from torch import Tensor
from torch.distributions import constraints
from torch.testing import assert_close


@dataclass(frozen=True)
class Laplace(sh.Emission):
    """Independent Laplace features."""

    n_features: int = 1
    name = "LaplaceOfTheTests"
    parameters = {  # noqa: RUF012
        "loc": sh.Parameter(("state", "feature")),
        "scale": sh.Parameter(("state", "feature"), constraints.positive),
    }

    def log_prob(self, x, values):
        found = dist.Laplace(values["loc"], values["scale"]).log_prob(x.nan_to_num())
        return torch.where(x.isnan(), 0.0, found).sum(-1)

    def distribution(self, values):
        return dist.Laplace(values["loc"], values["scale"]).to_event(1)

    def default_prior(self, n_states, x):
        x = torch.tensor([[-1.0], [1.0]]).double().expand(-1, self.n_features) if x is None else x
        median = x.nanmedian(0).values
        return {"median": median.expand(n_states, -1), "spread": (x - median).abs().nanmean(0).expand(n_states, -1)}

    def priors(self, prior):
        loc = dist.Laplace(prior["median"], 5 * prior["spread"]).to_event(2)
        return {"loc": loc, "scale": dist.LogNormal(prior["spread"].log(), 1.0).to_event(2)}


@dataclass(frozen=True)
class PlainNormal(Laplace):
    """Normal features whose conjugate prior is left unused."""

    name = "PlainNormalOfTheTests"

    def log_prob(self, x, values):
        return sh.Normal(self.n_features).log_prob(x, {"loc": values["loc"], "precision": values["scale"] ** -2})

    def distribution(self, values):
        return dist.Normal(values["loc"], values["scale"]).to_event(1)


@dataclass(frozen=True)
class Gumbel(Laplace):
    """Features whose distribution function torch computes by way of a uniform number."""

    name = "GumbelOfTheTests"

    def distribution(self, values):
        return dist.Gumbel(values["loc"], values["scale"]).to_event(1)


@dataclass(frozen=True)
class HalfNormal(Laplace):
    """Features of at least 0; `loc` has no effect."""

    name = "HalfNormalOfTheTests"
    support = constraints.nonnegative

    def distribution(self, values):
        return dist.HalfNormal(values["scale"]).to_event(1)


@dataclass(frozen=True)
class NoSupport(HalfNormal):
    """The same with a support that is too wide."""

    name = "NoSupportOfTheTests"
    support = constraints.real


@dataclass(frozen=True)
class Exponential(sh.ConjugateEmission):
    """Waiting times, with a gamma prior on their rate: all that a conjugate emission must write."""

    n_features: int = 1
    name = "ExponentialOfTheTests"
    family = Gamma()
    parameters = {"rate": sh.Parameter(("state", "feature"), constraints.positive)}  # noqa: RUF012
    support = constraints.nonnegative
    expects = "waiting times of at least 0"

    def default_prior(self, n_states, x):
        mean = torch.ones(self.n_features).double() if x is None else x.nanmean(0)
        two = torch.full((n_states, self.n_features), 2.0).to(mean)
        return {"shape": two, "rate": two * mean}

    def natural(self, prior):
        return self.family.natural(prior["shape"], prior["rate"])

    def log_prob(self, x, values):
        terms = values["rate"].log() - values["rate"] * x.nan_to_num()
        return torch.where(x.isnan(), 0.0, terms).sum(-1)

    def distribution(self, values):
        return dist.Exponential(values["rate"]).to_event(1)

    def message(self, x, weights, near=None):
        seen = ~x.isnan()
        return torch.stack([weights.mT @ seen.to(x), -(weights.mT @ x.nan_to_num())], -1)

    def representative(self, statistics):
        rate = statistics[..., 1]
        return Representative({"rate": rate}, statistics[..., 0] - rate.log())


def waits() -> Tensor:
    model = sh.SwitchingSSM(sh.Markov(2), Exponential(1)).with_values(
        initial_probs=[0.5, 0.5], transition_probs=[[0.95, 0.05], [0.05, 0.95]], rate=[[5.0], [0.1]]
    )
    x = model.simulate(120, seed=3).x.double()
    x[7] = torch.nan
    return x


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["em", "vmp", "svi"])
def test_a_conjugate_emission_of_six_functions_fits(method):
    fit = sh.SwitchingSSM(sh.Markov(2), Exponential(1)).fit(waits(), method, restarts=3, max_steps=200, progress=False)
    rate = fit.model.rate.flatten().sort().values
    assert_close(rate.log(), torch.tensor([0.1, 5.0]).log().double(), rtol=0, atol=0.5)
    assert fit.plot(waits()).axes
    assert fit.model.forecast(waits(), 2).mean.shape == (2, 1)


def test_its_bound_of_one_state_is_the_conjugate_evidence():
    x = waits()
    model = sh.SwitchingSSM(sh.Markov(1), Exponential(1)).scaled_to(x)
    fit = model.fit(x, "vmp", restarts=1, prior=model.prior, progress=False)
    a, b, seen = model.prior["shape"][0, 0], model.prior["rate"][0, 0], x[~x.isnan()]
    n = len(seen)
    expected = a * b.log() - torch.lgamma(a) + torch.lgamma(a + n) - (a + n) * (b + seen.sum()).log()
    assert_close(fit.objective[-1], expected, rtol=1e-12, atol=0)


def levels(n_steps: int = 150) -> Tensor:
    model = sh.SwitchingSSM(sh.Copy(2), Laplace(1)).with_values(
        redraw_prob=0.08, state_probs=[0.5, 0.5], loc=[[0.0], [4.0]], scale=[[0.5], [1.0]]
    )
    x = model.simulate(n_steps, seed=1).x.double()
    x[10:14] = torch.nan
    return x


@pytest.mark.few(1)
@pytest.mark.parametrize("prior", ["weak", None])
@pytest.mark.parametrize("dynamics", [sh.Copy(2), sh.Markov(2)])
def test_em_rises_to_the_log_joint_at_its_values(dynamics, prior):
    model, x = sh.SwitchingSSM(dynamics, Laplace(1)), levels()
    fit = model.fit(x, restarts=2, prior=prior, progress=False)
    assert fit.converged
    assert float(fit.objective.diff().min()) >= -1e-12 * float(fit.objective[-1].abs())
    expected = fit.model.log_evidence(x)
    if prior is not None:
        expected = expected + fit.model.log_prior(fit.model.values)
    assert_close(fit.objective[-1], expected, rtol=1e-10, atol=0)
    assert_close(fit.model.loc.flatten().sort().values, torch.tensor([0.0, 4.0]).double(), rtol=0, atol=0.5)


def test_one_state_has_the_maximum_likelihood_of_the_textbook():
    x = levels()
    fit = sh.SwitchingSSM(sh.Markov(1), Laplace(1)).fit(x, restarts=1, prior=None, tol=1e-12, progress=False)
    seen = x[~x.isnan()]
    best = -len(seen) * (1 + math.log(2 * (seen - seen.median()).abs().mean()))
    assert_close(float(fit.objective[-1]), best, rtol=1e-6, atol=0)


@pytest.mark.slow
def test_climbing_ends_where_the_conjugate_m_step_does():
    x = levels()
    plain, conjugate = (
        sh.SwitchingSSM(sh.Copy(2), emission).fit(x, prior=None, restarts=4, tol=1e-10, progress=False)
        for emission in (PlainNormal(1), sh.Normal(1))
    )
    assert_close(plain.objective[-1], conjugate.objective[-1], rtol=1e-8, atol=0)
    order = [fit.model.loc.flatten().argsort() for fit in (plain, conjugate)]
    assert_close(plain.model.loc[order[0]], conjugate.model.loc[order[1]], rtol=1e-4, atol=1e-4)


def test_an_m_step_to_a_kink_takes_few_gradients():
    values = {"loc": torch.tensor([[0.0, 1.0], [0.29, -0.5]]).double(), "scale": torch.ones(2, 2).double()}
    x, n_calls = torch.linspace(-2, 2.4, 45).double().unsqueeze(-1), 0

    def objective(values):
        nonlocal n_calls
        n_calls += 1
        return dist.Laplace(values["loc"].unsqueeze(-2), values["scale"].unsqueeze(-2)).log_prob(x).sum((-2, -1))

    with leaving(LEFT):
        for _ in range(6):
            values = ascend(objective, values, {"loc": constraints.real, "scale": constraints.positive})
    best = -2 * len(x) * (1 + math.log(2 * (x - x.median()).abs().mean()))
    assert_close(objective(values), torch.full((2,), best).double(), rtol=0, atol=1e-2)
    assert n_calls <= 140


def test_a_climb_keeps_what_it_cannot_better():
    values = {"probs": torch.tensor([[0.2, 0.8], [0.5, 0.5]], dtype=torch.float64)}

    def objective(values):  # finite at the start of the first restart alone
        return torch.where(torch.tensor([True, False]), values["probs"].log()[:, 0], -torch.inf)

    found = ascend(objective, values, {"probs": constraints.simplex})["probs"]
    assert found[0, 0] > 0.9
    assert torch.equal(found[1], values["probs"][1]) or bool(found[1].isfinite().all())


@pytest.mark.slow
@pytest.mark.parametrize(("method", "steps"), [("svi", 200), ("nuts", 15)])
def test_pyro_goes_on_from_em(method, steps):
    model, x = sh.SwitchingSSM(sh.Copy(2), Laplace(1)), levels()
    fit = model.fit(x, method, restarts=2, progress=False, **effort(method, steps))
    draws = fit.posterior.draws
    assert set(draws) == {"redraw_prob", "state_probs", "loc", "scale"}
    assert bool((draws["scale"] > 0).all())
    assert_close(fit.model.loc.flatten().sort().values, torch.tensor([0.0, 4.0]).double(), rtol=0, atol=1.0)


def test_everything_that_a_fitted_model_does_works_on_it(tmp_path):
    x = levels()
    fit = sh.SwitchingSSM(sh.Copy(2), Laplace(1)).fit(x, restarts=1, max_steps=5, progress=False)
    model = fit.model
    assert model.smooth(x).state.shape == (150, 2)
    assert model.forecast(x, 3).interval().lower.shape == (3, 1)
    assert fit.plot(x).axes
    assert list(fit.to_arviz(x, draws=3).posterior["scale"].dims) == ["chain", "draw", "state", "feature"]
    model.save(tmp_path / "laplace")
    again = sh.SwitchingSSM.load(tmp_path / "laplace")
    assert again.emission == Laplace(1)
    assert torch.equal(again.log_evidence(x), model.log_evidence(x))


def ahead(emission: sh.Emission) -> sh.Forecast:
    model = sh.SwitchingSSM(sh.Copy(2), emission).with_values(
        redraw_prob=0.5, state_probs=[1.0, 0.0], loc=[[2.0], [9.0]], scale=[[0.5], [0.01]]
    )
    return model.forecast(torch.ones(3, 1).double(), 1)


@pytest.mark.parametrize("emission", [Gumbel(), HalfNormal()])
def test_quantiles_are_those_of_the_distribution_to_the_ends_of_its_support(emission):
    one = {"loc": torch.tensor([2.0]).double(), "scale": torch.tensor([0.5]).double()}
    ends = torch.cat([*ahead(emission).interval(0.9)])
    assert_close(emission.distribution(one).base_dist.cdf(ends), torch.tensor([[0.05], [0.95]]).double())


def test_a_support_that_is_too_wide_is_named():
    message = r"^NoSupportOfTheTests.distribution: got -.*, outside its support; let `NoSupportOfTheTests.support` be"
    with pytest.raises(ValueError, match=message):
        ahead(NoSupport()).interval(0.9)


def test_message_passing_says_what_it_needs_and_what_to_use():
    with pytest.raises(TypeError, match="LaplaceOfTheTests has no conjugate family, which message passing needs; use"):
        sh.SwitchingSSM(sh.Copy(2), Laplace(1)).fit(levels(), "vmp", progress=False)


def test_names_in_files_belong_to_one_class(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="is called 'Normal' in files"):
        type("Normal", (Laplace,), {"__module__": "elsewhere"})
    type("Laplace", (Laplace,), {"name": "OnceDefined", "__module__": __name__, "__qualname__": "Once"})
    type("Laplace", (Laplace,), {"name": "OnceDefined", "__module__": __name__, "__qualname__": "Once"})  # a cell again
    sh.SwitchingSSM(sh.Copy(2), Laplace(1)).save(tmp_path)
    monkeypatch.delitem(Named._by_name, "LaplaceOfTheTests")
    with pytest.raises(ValueError, match="unknown class 'LaplaceOfTheTests': import the module that defines it"):
        sh.SwitchingSSM.load(tmp_path)


def test_what_is_left_out_is_named():
    class NoPriors(Laplace):
        name = "NoPriorsOfTheTests"

        def priors(self, prior):
            return sh.Emission.priors(self, prior)

    with pytest.raises(TypeError, match="NoPriorsOfTheTests: has no priors"):
        sh.SwitchingSSM(sh.Copy(2), NoPriors(1)).fit(levels(), progress=False)

    class Named(Laplace):
        name = "NoDataclassOfTheTests"

        def __init__(self, n):
            object.__setattr__(self, "n_features", n)

    assert Named(1).n_features == 1


@dataclass(frozen=True)
class VagueLaplace(Laplace):
    """A prior about 0, however far the data are from it."""

    name = "VagueLaplaceOfTheTests"

    def default_prior(self, n_states, x):
        size = torch.ones(self.n_features).double() if x is None else x.abs().nanmean(0)
        return {"size": size.expand(n_states, -1)}

    def priors(self, prior):
        loc = dist.Normal(torch.zeros_like(prior["size"]), 10 * prior["size"]).to_event(2)
        return {"loc": loc, "scale": dist.LogNormal(prior["size"].log(), 1.0).to_event(2)}


def test_first_guesses_follow_the_data_and_not_a_vague_prior():
    generator = torch.Generator().manual_seed(0)
    x = 900 + 50 * torch.randn(40, 1, generator=generator, dtype=torch.float64)
    x[25:] += 400
    problem = sh.SwitchingSSM(sh.Copy(2), VagueLaplace()).scaled_to(x).problem(x)
    middle = typical(problem)["loc"].flatten()
    assert_close(middle, x.median().expand(2), rtol=0.03, atol=0)
    starts = first_guesses(problem, 1, 0).values["loc"].flatten().sort().values
    assert_close(starts, torch.stack([x[:25].median(), x[25:].median()]), rtol=0.03, atol=0)


@pytest.mark.slow
def test_a_fit_under_a_vague_prior_reaches_the_optimum_of_a_near_start(nile):
    model = sh.SwitchingSSM(sh.Copy(2), VagueLaplace())
    near = {"loc": [[850.0], [1100.0]], "scale": [[100.0], [100.0]]}
    best = model.fit(nile, restarts=1, start=near, progress=False).objective[-1]
    assert model.fit(nile, restarts=2, progress=False).objective[-1] > best - 0.01


def test_a_state_without_steps_is_said_with_what_to_try():
    x = torch.tensor([0.0, 5.0] * 6).double()
    fit = sh.SwitchingSSM(sh.Markov(3), sh.Normal(1)).fit(
        x, states=[0, 1] * 6, restarts=1, max_steps=10, progress=False
    )
    assert fit.empty_states.tolist() == [False, False, True]
    assert "1 state has less than one expected step: try fewer states, or more restarts" in fit.reason
