"""Priors of switching linear models: posteriors and modes under them, files and text, and what refuses them."""

import pickle
import re

import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from oracles.effort import short_starts
from samplehold.inference.families import Dirichlet, LocPrecision, MatrixNormalWishart
from samplehold.switching.emissions.ascent import ascend
from samplehold.switching.fitting.user_points import UnderPrior
from samplehold.switching.linear.priors import log_default
from samplehold.switching.user_priors import log_density
from torch.testing import assert_close

DOUBLE, NAN = torch.float64, float("nan")
QUIET = {"progress": False, "restarts": 1}


def of(*numbers: float) -> torch.Tensor:
    table = torch.tensor(numbers, dtype=DOUBLE)
    return table[0] if len(numbers) == 1 else table


def series(n_steps: int = 40, n_features: int = 1) -> torch.Tensor:
    noise = torch.randn(n_steps, n_features, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    return noise + 3.0 * (torch.arange(n_steps) // 10 % 2).to(DOUBLE).unsqueeze(-1)


NORMAL, INVERSE = dist.Normal(of(1.0), of(0.2)), dist.InverseGamma(of(6.0), of(9.0))
ROWS, LOGISTIC = dist.Dirichlet(of(6.0, 2.0)), dist.LogisticNormal(of(1.0).reshape(1), of(0.5).reshape(1))
WISHART = dist.Wishart(of(6.0), covariance_matrix=0.1 * torch.eye(2, dtype=DOUBLE))
UNSEEN = {  # the states do not reach the observations, so that bounds are evidences
    "emission": 0.0,
    "initial_mean": 0.0,
    "initial_covariance": 1.0,
    "transition": 0.5,
    "transition_offset": 0.0,
    "state_noise": 1.0,
}


def labels(n_steps: int = 40) -> torch.Tensor:
    """The regimes of a start, which is then not annealed."""
    return torch.arange(n_steps) // 10 % 2


def beside(**fixed: object) -> dict:
    return {**QUIET, "tol": 1e-10, "max_steps": 100, "fixed": UNSEEN | fixed}


# ---- posteriors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("common", [False, True])
def test_an_inverse_gamma_has_the_posterior_of_a_known_mean(common: bool) -> None:
    x, model = series(n_features=2), sh.SwitchingLinearSSM(1, 1, 2, common_emission=common)
    prior = {"observation_noise": dist.InverseGamma(of(3.0, 4.0), of(9.0))}
    fit = model.fit(x, "vmp", prior=prior, **beside(emission_offset=[1.0, 2.0]))
    squares = (x - of(1.0, 2.0)).square().sum(0)
    shape, rate = of(3.0, 4.0) + len(x) / 2, 9.0 + squares / 2
    found = fit.values["observation_noise"].flatten()  # the inverse of the mean precision
    assert_close(found, rate / shape, rtol=1e-9, atol=0)
    drawn = 1 / fit.posterior.sample(4000, seed=0)["observation_noise"].reshape(-1, 2)
    assert_close(drawn.std(0), shape.sqrt() / rate, rtol=0.05, atol=0)


@pytest.mark.slow
def test_a_normal_has_the_posterior_beside_a_known_noise() -> None:
    x, model = series(n_features=2), sh.SwitchingLinearSSM(1, 1, 2)
    prior = {"emission_offset": dist.Normal(of(1.0, -1.0), of(0.2, 0.5))}
    given = beside(observation_noise=[2.0, 3.0])
    precision = 1 / of(0.2, 0.5).square() + len(x) / of(2.0, 3.0)
    mean = (of(1.0, -1.0) / of(0.2, 0.5).square() + x.sum(0) / of(2.0, 3.0)) / precision
    mode, fit = (model.fit(x, method, prior=prior, **given) for method in ("em", "vmp"))
    for found in (mode, fit):
        assert_close(found.values["emission_offset"].flatten(), mean, rtol=1e-9, atol=1e-9)
    drawn = fit.posterior.sample(4000, seed=0)["emission_offset"]
    assert_close(drawn.std(0).flatten(), precision.rsqrt(), rtol=0.05, atol=0)


def test_dirichlets_have_the_posteriors_of_a_chain() -> None:
    """q of the paths and the Dirichlets agree with each other: a row is its prior plus expected moves."""
    x, prior = series(), {"initial_probs": ROWS, "transition_probs": ROWS}
    given = beside(emission_offset=[[0.0], [3.0]], observation_noise=[[1.0], [1.0]])
    fit = sh.SwitchingLinearSSM(2, 1).fit(x, "vmp", prior=prior, start=labels(), **given)
    blocks = fit.posterior.blocks
    rows = torch.cat([blocks["initial"][None], blocks["transition"]]).double()
    logs = torch.digamma(rows) - torch.digamma(rows.sum(-1, keepdim=True))
    weights = torch.distributions.Normal(of(0.0, 3.0), 1.0).log_prob(x)
    chain = sh.chains.MarkovChain(logs[0], logs[1:], weights)
    smoothed = chain.smooth()
    assert_close(rows[0], of(6.0, 2.0) + smoothed.state[0], rtol=1e-6, atol=1e-6)
    assert_close(rows[1:], of(6.0, 2.0) + chain.marginals().transition, rtol=1e-5, atol=1e-5)


def test_a_normal_of_the_recurrence_is_the_prior_of_its_block() -> None:
    prior = dist.Normal(torch.tensor([[1.0, -1.0], [0.5, 0.0], [2.0, 3.0]], dtype=DOUBLE), of(0.5))
    strong = dist.Normal(prior.loc, of(1e-4))
    fit = sh.SwitchingLinearSSM(3, 1, recurrent=True).fit(
        series(), "vmp", prior={"recurrence_offset": strong}, start=labels(), max_steps=2, **QUIET
    )
    assert_close(fit.values["recurrence_offset"], prior.loc, rtol=0, atol=1e-3)


# ---- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("noise", "prior"),
    [
        ("diagonal", {"emission_offset": NORMAL, "observation_noise": INVERSE}),
        (
            "diagonal",
            {"emission_offset": dist.StudentT(of(3.0)), "observation_noise": dist.LogNormal(of(0.0), of(0.3))},
        ),
        (
            "diagonal",
            {
                "transition_probs": LOGISTIC,
                "initial_probs": LOGISTIC,
                "emission_offset": NORMAL,
                "observation_noise": INVERSE,
            },
        ),
        (
            "full",
            {
                "emission_offset": dist.MultivariateNormal(of(1.0, 0.0), torch.eye(2).to(DOUBLE)),
                "observation_noise": WISHART,
            },
        ),
    ],
)
def test_em_ends_at_the_mode_that_direct_ascent_finds(noise: str, prior: dict) -> None:
    x, given = series(n_features=1 if noise == "diagonal" else 2), dict(UNSEEN)
    for name in ("initial_probs", "transition_probs"):
        if name not in prior:
            given[name] = [0.5, 0.5] if name == "initial_probs" else [[0.9, 0.1], [0.2, 0.8]]
    model = sh.SwitchingLinearSSM(2, 1, x.shape[-1], observation_noise=noise)
    fit = model.fit(x, prior=prior, **QUIET, tol=1e-12, max_steps=200, fixed=given, start=labels())
    fitted = fit.model
    markov = sh.SwitchingSSM(sh.Markov(2), sh.MultivariateNormal(x.shape[-1]))

    def height(free: dict) -> torch.Tensor:
        values = fitted.values | free
        noises = values["observation_noise"]
        covariance = noises if noise == "full" else torch.diag_embed(noises)
        as_markov = {"initial_probs": values["initial_probs"], "transition_probs": values["transition_probs"]}
        as_markov |= {"loc": values["emission_offset"], "precision": torch.linalg.inv(covariance)}
        problem = markov.problem(x)
        density = torch.stack([one.log_prob(free[name]).sum() for name, one in prior.items()]).sum()
        return problem.total(problem.evidence(as_markov)) + density

    free = {name: fitted.values[name] for name in prior}
    best = height(free)
    assert_close(fit.objective[-1], best, rtol=1e-9, atol=1e-7)
    assert float(fit.objective.diff().min()) > -1e-9 * abs(float(best))
    supports = {name: fitted.layout.forms[name].support for name in prior}
    raised = ascend(height, free, supports)
    assert float(height(raised) - best) < 1e-7
    for name, value in raised.items():
        assert_close(value, free[name], rtol=1e-3, atol=1e-3)


def test_regimes_are_numbered_by_their_steps_if_a_prior_does_not_distinguish_them() -> None:
    model = sh.SwitchingLinearSSM(2, 1).with_prior({"transition_probs": ROWS, "emission_offset": NORMAL})
    swapped = torch.tensor([1, 0])
    rows = {"transition_probs": torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=DOUBLE), "initial_probs": of(0.5, 0.5)}
    values = rows | {"emission_offset": torch.tensor([[1.0], [2.0]], dtype=DOUBLE)}
    values |= {name: torch.zeros(2, 1, 1) for name in ("transition", "state_noise", "emission")}
    values |= {name: torch.zeros(2, 1) for name in ("transition_offset", "observation_noise")}
    values |= {"initial_mean": torch.zeros(1), "initial_covariance": torch.eye(1)}
    assert not model.layout.is_as_likely(values, swapped)
    alike = model.with_prior({"transition_probs": dist.Dirichlet(of(2.0, 2.0))})
    assert alike.layout.is_as_likely(values, swapped)


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["one chain", "chain per regime"])
def test_a_fit_does_not_depend_on_the_unit(shared: str, monkeypatch) -> None:
    short_starts(monkeypatch)
    x, fits = series(), []
    for unit in (1.0, 1e3):
        prior = {"emission_offset": dist.Normal(of(unit), of(0.2 * unit)), "observation_noise": INVERSE}
        prior["observation_noise"] = dist.InverseGamma(of(6.0), of(9.0 * unit**2))
        model = sh.SwitchingLinearSSM(2, 1, shared=shared)
        fits.append(model.fit(unit * x, prior=prior, max_steps=24, **QUIET).values)
    assert_close(fits[1]["emission_offset"] / 1e3, fits[0]["emission_offset"], rtol=1e-3, atol=1e-3)
    assert_close(fits[1]["observation_noise"] / 1e6, fits[0]["observation_noise"], rtol=1e-2, atol=1e-3)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("recurrent", [True, False])
def test_a_tight_prior_is_kept(recurrent: bool) -> None:
    prior = {"emission_offset": dist.Normal(of(7.0), of(1e-4)), "observation_noise": dist.LogNormal(of(1.0), of(1e-4))}
    prior |= {"recurrence_offset": dist.Laplace(of(0.5), of(1e-4))} if recurrent else {"transition_probs": LOGISTIC}
    fit = sh.SwitchingLinearSSM(2, 1, recurrent=recurrent).fit(
        series(20), prior=prior, start=labels(20), max_steps=1, **QUIET
    )
    assert_close(fit.values["emission_offset"], torch.full((2, 1), 7.0).to(DOUBLE), rtol=0, atol=1e-2)
    assert_close(fit.values["observation_noise"].log(), torch.ones(2, 1).to(DOUBLE), rtol=0, atol=1e-2)
    if recurrent:
        assert_close(fit.values["recurrence_offset"], torch.full((2, 1), 0.5).to(DOUBLE), rtol=0, atol=1e-2)


def test_without_a_prior_there_is_none() -> None:
    model = sh.SwitchingLinearSSM(1, 1).with_prior({"emission_offset": dist.Normal(of(100.0), of(1e-6))})
    fit = model.fit(series(20), prior=None, max_steps=5, **QUIET)
    assert float(fit.values["emission_offset"].abs().max()) < 50
    assert fit.model.layout.user_priors  # the model keeps its prior


@pytest.mark.slow
def test_regimes_keep_their_numbers_if_a_prior_distinguishes_them() -> None:
    x = torch.cat([series(10), series(30)[20:] + 9])[:, :1]
    for first, other in ((0.0, 9.0), (9.0, 0.0)):
        prior = {"emission_offset": dist.Normal(torch.tensor([[first], [other]], dtype=DOUBLE), of(0.5))}
        fit = sh.SwitchingLinearSSM(2, 1).fit(x, prior=prior, max_steps=8, **QUIET)
        found = fit.values["emission_offset"].flatten()
        assert abs(float(found[0]) - first) < 4.5
        assert abs(float(found[1]) - other) < 4.5


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("prior", "fixed"),
    [
        ({"emission_offset": NORMAL, "observation_noise": INVERSE}, {"emission": [[1.0], [NAN]]}),
        ({"observation_noise": INVERSE}, {"emission": 1.0, "emission_offset": [0.0, NAN]}),
        ({"transition_probs": ROWS}, {"transition_probs": [[0.9, 0.1], [NAN, NAN]]}),
        ({"emission_offset": NORMAL, "transition_probs": LOGISTIC}, {"state_noise": 0.0, "initial_covariance": 1.0}),
        ({"emission_offset": NORMAL}, {"emission_offset": [1.0, 2.0]}),
    ],
)
def test_known_entries_stay_beside_priors(prior: dict, fixed: dict) -> None:
    x = series(20, 2)
    begin = None if "state_noise" in fixed else labels(20)
    fit = sh.SwitchingLinearSSM(2, 1, 2).fit(x, prior=prior, fixed=fixed, start=begin, max_steps=3, **QUIET)
    for name, table in fixed.items():
        known = torch.as_tensor(table, dtype=DOUBLE).expand_as(fit.values[name])
        free = known.isnan()
        assert_close(fit.values[name][~free], known[~free], rtol=1e-12, atol=1e-12)
    assert float(fit.objective.diff().min()) > -1e-8 * abs(float(fit.objective[-1]))


# ---- points ----------------------------------------------------------------------------------------------------------


def test_the_ratio_is_added_to_the_density_of_the_default_prior() -> None:
    family, k = Dirichlet(), 3
    law = dist.LogisticNormal(torch.zeros(2, dtype=DOUBLE), torch.ones(2, dtype=DOUBLE))

    def ratio(statistics: torch.Tensor) -> torch.Tensor:
        return law.log_prob(statistics.exp()) - torch.lgamma(of(float(k)))

    point = UnderPrior(family, ratio)
    eta = of(3.0, 9.0, 1.5) + 0.0
    best = point.expected(eta)
    grid = torch.distributions.Dirichlet(torch.ones(3, dtype=DOUBLE)).sample(torch.Size((20000,)))
    heights = torch.xlogy(eta - 1, grid).sum(-1) + law.log_prob(grid)
    here = torch.xlogy(eta - 1, best).sum(-1) + law.log_prob(best)
    assert float(here) >= float(heights.max())
    assert_close(-point.kl_of(best.log(), torch.ones(3, dtype=DOUBLE)), law.log_prob(best), rtol=1e-10, atol=1e-10)


def test_default_densities_add_up_to_that_of_the_family() -> None:
    family, weight = MatrixNormalWishart(2), torch.diag(of(0.3, 0.3))
    matrix = torch.tensor([[2.0, 0.3], [0.3, 1.0]], dtype=DOUBLE)
    point = LocPrecision(torch.tensor([[0.0, 0.0], [0.4, -0.2]], dtype=DOUBLE), matrix)
    eta = family.natural(torch.zeros(2, 2, dtype=DOUBLE), weight, of(4.0), torch.eye(2, dtype=DOUBLE) / (4.0 * 0.1))
    how = {"weight": 0.3, "unexplained": 0.1, "spare": 2.0}
    other = log_default("emission_offset", LocPrecision(0 * point.loc, matrix), **how)  # coefficients are 0
    both = log_default("emission_offset", point, **how) + log_default("observation_noise", point, **how) + other
    assert_close(both, family.log_prob(point, eta), rtol=1e-10, atol=1e-10)


# ---- text, files, errors ---------------------------------------------------------------------------------------------


def test_text_files_and_pickles_have_them(tmp_path) -> None:
    x, prior = series(20), {"observation_noise": INVERSE, "transition_probs": ROWS}
    fitted = sh.SwitchingLinearSSM(2, 1).fit(x, prior=prior, max_steps=1, start=labels(20), **QUIET).model
    assert "prior={'observation_noise': InverseGamma(" in repr(fitted)
    fitted.save(tmp_path / "model")
    density = log_density(fitted.layout.user_priors, fitted.values)
    own = [one.log_prob(fitted.values[name]).sum() for name, one in prior.items()]
    assert_close(density, torch.stack(own).sum(), rtol=1e-12, atol=1e-12)
    for again in (sh.load(tmp_path / "model"), pickle.loads(pickle.dumps(fitted)), fitted.without_values()):
        assert_close(log_density(again.layout.user_priors, fitted.values), density, rtol=0, atol=0)


def test_a_later_prior_replaces_an_earlier_one_of_the_same_parameter() -> None:
    model = sh.SwitchingLinearSSM(2, 1).with_prior({"emission_offset": NORMAL, "observation_noise": INVERSE})
    again = model.with_prior({"emission_offset": dist.StudentT(of(3.0))})
    assert [type(one).__name__ for one in again.layout.prior.values()] == ["StudentT", "InverseGamma"]
    assert model.layout == again.layout == sh.SwitchingLinearSSM(2, 1).layout  # so that either may start a fit


MODEL, FULL = sh.SwitchingLinearSSM(2, 1, 2), sh.SwitchingLinearSSM(2, 1, 2, observation_noise="full")
RECURRENT, PART = sh.SwitchingLinearSSM(2, 1, 2, recurrent=True), {"emission_offset": [1.0, NAN]}
STEEP = dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Dirichlet(torch.tensor([[2.0, 0.5], [3.0, 3.0]])))
ZERO = {
    "initial_probs": [0.5, 0.5],
    "transition_probs": [[0.9, 0.1], [0.1, 0.9]],
    "initial_mean": [0.0],
    "initial_covariance": [[1.0]],
    "transition": [[[0.5]]] * 2,
    "transition_offset": [[0.0]] * 2,
    "state_noise": [[[1.0]]] * 2,
    "emission": [[[1.0], [1.0]]] * 2,
    "emission_offset": [[0.0, 0.0]] * 2,
    "observation_noise": [[0.0, 1.0]] * 2,
}


NOISE, TAKES = "prior['observation_noise']: got ", ", but message passing accepts "
OFFSET, FIRST = "prior['emission_offset']: got ", "prior['transition']: got Normal, but a SwitchingLinearSSM accepts "
OF_BASIS = (
    "hyperparameters: none; and distributions of initial_probs, transition_probs, emission_offset, observation_noise. "
    "Its other parameters depend on the basis"
)
EXCLUDED = "['observation_noise']: got [[0.0, 1.0], [0.0, 1.0]], which its prior of InverseGamma excludes"
FLAT, VMP = dist.Wishart(torch.tensor(2.0), covariance_matrix=torch.eye(2)), {"method": "vmp"}


@pytest.mark.parametrize(
    ("model", "name", "prior", "options", "said"),
    [
        (MODEL, "transition", NORMAL, {}, FIRST + OF_BASIS),
        (RECURRENT, "recurrence", NORMAL, {}, "prior['recurrence']: got Normal, but a SwitchingLinearSSM accepts"),
        (MODEL, "recurrence_offset", NORMAL, {}, "prior['recurrence_offset']: got Normal, but a SwitchingLinearSSM"),
        (MODEL, "emission_offset", 1.0, {}, "prior: got 'emission_offset', expected hyperparameters of"),
        (MODEL, "observation_noise", NORMAL, {}, NOISE + "Normal, whose support does not fit"),
        (MODEL, "emission_offset", dist.Normal(torch.zeros(3), 1.0), {}, OFFSET + "a distribution of shape [3]"),
        (
            MODEL,
            "transition_probs",
            dist.Dirichlet(torch.ones(3)),
            {},
            "prior['transition_probs']: got a distribution of",
        ),
        (
            MODEL,
            "emission_offset",
            NORMAL,
            VMP,
            OFFSET + "Normal" + TAKES + "only a Normal if observation_noise is known",
        ),
        (
            MODEL,
            "observation_noise",
            dist.LogNormal(0.0, 1.0),
            VMP,
            NOISE + "LogNormal" + TAKES + "only an InverseGamma",
        ),
        (
            MODEL,
            "transition_probs",
            LOGISTIC,
            VMP,
            "prior['transition_probs']: got LogisticNormal" + TAKES + "only a Dir",
        ),
        (FULL, "observation_noise", WISHART, VMP, NOISE + "Wishart" + TAKES + "none there"),
        (RECURRENT, "recurrence_offset", dist.StudentT(3.0), VMP, "prior['recurrence_offset']: got StudentT" + TAKES),
        (
            MODEL,
            "emission_offset",
            NORMAL,
            {"fixed": PART},
            OFFSET + "Normal together with a table in fixed that is known in part",
        ),
        (MODEL, "observation_noise", INVERSE, {"fixed": {"observation_noise": [0.0, 1.0]}}, "fixed" + EXCLUDED),
        (MODEL, "observation_noise", INVERSE, {"start": ZERO}, "start" + EXCLUDED),
        (MODEL, "observation_noise", dist.Gamma(0.5, 1.0), {}, NOISE + "Gamma with an infinite density at 0"),
        (FULL, "observation_noise", FLAT, {}, NOISE + "Wishart with an infinite density at 0"),
        (
            MODEL,
            "transition_probs",
            STEEP,
            {},
            "prior['transition_probs']: got MixtureSameFamily with an infinite density",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    model: sh.SwitchingLinearSSM, name: str, prior: object, options: dict, said: str
) -> None:
    with pytest.raises((TypeError, ValueError), match="^" + re.escape(said)):
        model.fit(series(12, 2), prior={name: prior}, **options, **QUIET)
