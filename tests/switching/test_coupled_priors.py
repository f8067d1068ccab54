"""Priors of models of several chains: the posteriors and modes under them, files and text, and what refuses them."""

import math
import pickle
import re

import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from samplehold.switching.coupled.contract import CoupledSSM
from samplehold.switching.emissions.ascent import ascend
from torch.testing import assert_close

DOUBLE = torch.float64
QUIET = {"progress": False, "restarts": 1}


def of(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=DOUBLE)


def normal(n_steps: int = 30, seed: int = 0) -> torch.Tensor:
    noise = torch.randn(n_steps, 2, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    level = (torch.arange(n_steps) // 6 % 2).to(DOUBLE)
    return 3.0 * level.unsqueeze(-1) + noise


COUNTS = normal()[:, :1].exp().floor()
BETA, ROWS = dist.Beta(of(2.0)[0], of(9.0)[0]), dist.Dirichlet(of(3.0, 2.0))
WISHART = dist.Wishart(of(6.0)[0], covariance_matrix=0.2 * torch.eye(2, dtype=DOUBLE))
GAMMA = dist.Gamma(of(4.0)[0], of(3.0)[0])
CHAIN = {"redraw_prob": BETA, "state_probs_1": ROWS}


def joint_normal(*sizes: int) -> sh.FactorialSSM:
    return sh.FactorialSSM(sizes, sh.MultivariateNormal(2))


def joint_counts(*sizes: int) -> sh.FactorialSSM:
    return sh.FactorialSSM(sizes, sh.Poisson(1))


def layers(*sizes: int) -> sh.LayeredSSM:
    return sh.LayeredSSM(sizes, sh.Normal(2))


# ---- posteriors ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_wishart_has_the_posterior_of_a_known_path() -> None:
    x = normal()  # of a single state, so no path is hidden
    fit = joint_normal(1).fit(x, "vmp", prior={"precision": WISHART}, **QUIET)
    n, mean = len(x), x.mean(0)
    kappa = 0.05 + n  # the weight of a location is a twentieth of a step
    scatter = (x - mean).mT @ (x - mean)  # locations are about the mean of x
    expected = (6.0 + n) * torch.linalg.inv(WISHART.precision_matrix + scatter)
    assert_close(fit.values["precision"], expected, rtol=1e-9, atol=1e-12)
    assert_close(fit.values["loc_1"], mean.unsqueeze(0), rtol=1e-9, atol=1e-12)
    inner = fit.posterior.families["noise"].usual(fit.posterior.blocks["noise"])
    assert_close(inner.weight, of(kappa)[:, None], rtol=1e-12, atol=0)


@pytest.mark.slow
def test_a_gamma_of_rates_has_the_posterior_of_a_known_path() -> None:
    fit = joint_counts(1).fit(COUNTS, "vmp", prior={"rate_1": GAMMA}, **QUIET)
    shape, rate = 4.0 + COUNTS.sum(), 3.0 + len(COUNTS)
    expected = torch.digamma(shape) - math.log(rate)  # means of rates are geometric
    assert_close(fit.values["loc_1"], expected.reshape(1, 1), rtol=1e-10, atol=1e-12)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("model", "x", "prior", "blocks"),
    [
        (joint_normal(2, 2), normal(), {"redraw_prob": BETA, "state_probs_2": ROWS}, ["state_1", "state_2"]),
        (joint_counts(2, 2), COUNTS, {"redraw_prob": BETA, "state_probs_2": ROWS}, ["state_1", "state_2"]),
        (layers(2, 2), normal(), {"redraw_prob": BETA, "table_1": ROWS}, ["table_1", "state"]),
        (layers(2, 2), normal(), {"redraw_prob": BETA, "state_probs": ROWS}, ["table_1", "state"]),
    ],
)
def test_q_adds_expected_counts_to_the_priors(model: CoupledSSM, x, prior: dict, blocks: list[str]) -> None:
    fit = model.fit(x, "vmp", prior=prior, tol=1e-14, **QUIET)
    redraw = fit.paths.redraw[1:]  # the first step redraws whatever the probability
    counts = torch.stack([redraw.sum(0), (1 - redraw).sum(0)], -1)
    found = torch.stack([fit.posterior.blocks[f"redraw_{d}"] for d in (1, 2)])
    assert_close(found, of(2.0, 9.0) + counts, rtol=1e-5, atol=1e-5)
    assert float(fit.objective.diff().min()) > -1e-9 * abs(float(fit.objective[-1]))
    chosen = {"state_probs_2": "state_2", "table_1": "table_1", "state_probs": "state"}
    for block in blocks:
        flat = 0.0 if block in {chosen.get(name) for name in prior} else 1.0
        least = of(3.0, 2.0) if not flat else of(1.0, 1.0)
        assert bool((fit.posterior.blocks[block] >= least - 1e-9).all())
    drawn = fit.paths.redraw.sum(0)
    expected = {"state_2": drawn[1], "state": drawn[1], "table_1": drawn[0]}
    for name in set(prior) - {"redraw_prob"}:
        eta = fit.posterior.blocks[chosen[name]]
        rows = eta.ndim - 1
        assert_close(eta.sum(), 5.0 * (2 if rows else 1) + expected[chosen[name]], rtol=1e-5, atol=1e-5)


# ---- modes -----------------------------------------------------------------------------------------------------------


def log_prior(values: dict, prior: dict) -> torch.Tensor:
    return torch.stack([one.log_prob(values[name]).sum() for name, one in prior.items()]).sum()


@pytest.mark.parametrize(
    ("model", "x", "prior"),
    [
        (joint_counts(2), COUNTS, CHAIN | {"rate_1": dist.Gamma(of(2.0)[0], of(1.0)[0])}),
        (
            layers(2),
            normal(),
            {"redraw_prob": BETA, "state_probs": ROWS, "precision": dist.Gamma(of(3.0)[0], of(2.0)[0])},
        ),
    ],
)
def test_em_ends_at_the_mode_that_direct_ascent_finds(model: CoupledSSM, x: torch.Tensor, prior: dict) -> None:
    """With one chain the bound is the evidence."""
    fit = model.fit(x, prior=prior, tol=1e-13, max_steps=2000, **QUIET)
    fitted = fit.model
    values = dict(fitted.values)
    if "rate_1" in prior:  # the mode of the rates themselves
        values["rate_1"] = values.pop("loc_1").exp()
    loc = values.pop("loc", None)
    supports = {name: one.support for name, one in prior.items()}

    def height(some: dict) -> torch.Tensor:
        inner = dict(some) | ({} if loc is None else {"loc": loc})
        density = log_prior(some, prior)
        if loc is not None:  # locations given the precision, as by default
            normals = fitted.emission.default_prior(2, x)
            spread = (normals["count"] * some["precision"]).rsqrt()
            density = density + torch.distributions.Normal(normals["loc"], spread).log_prob(loc).sum()
        if "rate_1" in inner:
            inner["loc_1"] = inner.pop("rate_1").log()
        problem = fitted.problem(x)
        return problem.total(problem.evidence(fitted.product_of(inner))) + density

    best = height(values)
    assert_close(fit.objective[-1], best, rtol=1e-9, atol=1e-8)
    raised = ascend(height, values, supports)
    assert float(height(raised) - best) < 1e-6
    for name, value in raised.items():
        assert_close(value, values[name], rtol=1e-3, atol=1e-3)


def test_priors_of_the_emission_count() -> None:
    tight = dist.Wishart(of(1e6)[0], covariance_matrix=1e-6 * torch.eye(2, dtype=DOUBLE))
    for model in (
        joint_normal(2).with_prior({"precision": tight}),
        sh.FactorialSSM([2], sh.MultivariateNormal(2, prior={"precision": tight})),
        sh.LayeredSSM([2], sh.MultivariateNormal(2, prior={"precision": tight})),
    ):
        fit = model.fit(5 * normal(), max_steps=20, **QUIET)
        assert_close(fit.values["precision"].reshape(-1, 2, 2)[0], torch.eye(2, dtype=DOUBLE), rtol=0, atol=0.05)


def test_maximum_likelihood_ignores_them() -> None:
    model = joint_counts(2).with_prior({"rate_1": dist.Gamma(of(1e6)[0], of(1.0)[0])})
    fit = model.fit(COUNTS, prior=None, max_steps=20, **QUIET)
    assert float(fit.values["loc_1"].max()) < 10


# ---- text, files, errors ---------------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("model", "prior", "text"),
    [
        (
            joint_counts(2),
            CHAIN | {"rate_1": GAMMA},
            "prior={'redraw_prob': Beta(concentration1: 2.0, concentration0: 9.0)",
        ),
        (
            joint_normal(2),
            CHAIN | {"precision": WISHART},
            "MultivariateNormal(n_features=2, prior={'precision': Wishart(",
        ),
        (layers(2), {"redraw_prob": BETA, "precision": GAMMA}, "Normal(n_features=2, prior={'precision': Gamma("),
    ],
)
def test_text_files_and_pickles_have_them(model: CoupledSSM, prior: dict, text: str, tmp_path) -> None:
    x = COUNTS if "rate_1" in prior else normal()
    fitted = model.fit(x, prior=prior, max_steps=3, **QUIET).model
    assert text in repr(fitted).splitlines()[0]
    assert fitted.without_values().chain_priors == fitted.chain_priors
    fitted.save(tmp_path / "model")
    for again in (sh.load(tmp_path / "model"), pickle.loads(pickle.dumps(fitted))):
        fits = [one.fit(x, "vmp", max_steps=3, **QUIET) for one in (again, fitted)]
        assert_close(fits[0].objective, fits[1].objective, rtol=0, atol=0)
    plain = model.fit(x, "vmp", max_steps=3, **QUIET)
    assert abs(float(plain.objective[-1] - fits[0].objective[-1])) > 1e-3


def test_a_later_prior_replaces_an_earlier_one_of_the_same_parameter() -> None:
    model = joint_counts(2, 2).with_prior(CHAIN).with_prior({"redraw_prob": dist.Beta(1.0, 1.0)})
    assert list(model.chain_priors) == ["redraw_prob", "state_probs_1"]
    assert float(model.chain_priors["redraw_prob"].concentration0) == 1.0


TAKEN = "supports only conjugate priors: a Beta of redraw_prob"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: joint_normal(2).with_prior({"loc_1": dist.Normal(0.0, 1.0)}),
            f"prior['loc_1']: got Normal, but a FactorialSSM {TAKEN}",
        ),
        (
            lambda: joint_counts(2).with_prior({"loc_1": dist.Normal(0.0, 1.0)}),
            f"prior['loc_1']: got Normal, but a FactorialSSM {TAKEN}",
        ),
        (
            lambda: joint_normal(2).with_prior({"covariance": WISHART}),
            "prior['covariance']: got Wishart, but a FactorialSSM",
        ),
        (
            lambda: layers(2).with_prior({"scale": dist.HalfNormal(1.0)}),
            "prior['scale']: got HalfNormal, but a LayeredSSM",
        ),
        (lambda: layers(2).with_prior({"redraw": BETA}), "prior['redraw']: got Beta, but a LayeredSSM"),
        (
            lambda: layers(2).fit(normal(), "vmp", prior={"redraw_prob": dist.Uniform(0.0, 0.1)}, **QUIET),
            "prior['redraw_prob']: got Uniform, but a LayeredSSM supports only conjugate priors: a Beta of "
            "redraw_prob, a Dirichlet of state_probs, a Gamma of precision.",
        ),
        (
            lambda: joint_counts(2).with_prior({"redraw_prob": dist.Beta}),
            "prior['redraw_prob']: got the class Beta, expected",
        ),
        (
            lambda: joint_counts(2).with_prior({"rate_1": dist.Gamma(torch.ones(3), 1.0)}),
            "prior['rate_1']: got a distribution of shape [3]",
        ),
        (
            lambda: joint_counts(2).with_prior({"state_probs_1": dist.Dirichlet(torch.ones(3))}),
            "prior['state_probs_1']: got a",
        ),
        (
            lambda: joint_counts(2).with_prior({"redraw_prob": 0.5}),
            "prior: got 'redraw_prob', expected hyperparameters of",
        ),
        (lambda: joint_counts(2).with_prior(BETA), "prior: got Beta"),
        (
            lambda: sh.FactorialSSM([2], sh.Poisson(prior={"rate": GAMMA})),
            "prior['rate']: got Gamma, but a FactorialSSM",
        ),
        (
            lambda: sh.LayeredSSM([2], sh.Gated(sh.Normal(), sh.Normal(prior={"loc": dist.Normal(0.0, 1.0)}))),
            "prior['background_loc']: got Normal, but a LayeredSSM",
        ),
        (
            lambda: joint_normal(2).with_prior({"precision": dist.Wishart(torch.tensor(5.0), torch.eye(3))}),
            "prior['precision']: got a distribution of shape [3, 3]",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(make, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match="^" + re.escape(said)):
        make()
