"""Autoregressions whose noise has a covariance matrix: densities, fits, forecasts, priors."""

import itertools

import numpy as np
import pyro.distributions as dist
import pytest
import samplehold as sh
import scipy.stats
import torch
from oracles.models import trace_log_prob
from oracles.modes import assert_at_the_mode
from oracles.streams import streamed
from samplehold.switching.priors import log_prior
from torch.testing import assert_close

DOUBLE = torch.float64
QUIET = {"progress": False}
PARTS = ("intercept", "coefficients", "scale")


def full(order: int = 1, n: int = 2, **options) -> sh.AutoRegressive:
    return sh.AutoRegressive(order, n, covariance="full", **options)


def model_of(emission, k: int = 2, seed: int = 0) -> sh.SwitchingSSM:
    """A model of Markov states, whose lags have coefficients that sum to less than 1."""
    generator = torch.Generator().manual_seed(seed)
    values = {"initial_probs": torch.full((k,), 1.0 / k), "transition_probs": torch.eye(k) * 0.8 + 0.2 / k}
    model = sh.SwitchingSSM(sh.Markov(k), emission)
    for name, one in emission.start(model.prior).items():
        rows = torch.randn(one.shape, generator=generator, dtype=DOUBLE)
        if name == "precision":
            rows = rows @ rows.mT + torch.eye(one.shape[-1], dtype=DOUBLE)
        values[name] = rows / rows.abs().sum(-1, keepdim=True).clamp_min(1.2) if name == "coefficients" else rows
    return model.with_values(values)


def drawn(n_steps: int = 250, seed: int = 0, unit: float = 1.0, about: float = 0.0) -> torch.Tensor:
    """Two states with noise of opposite correlations."""
    model = model_of(full()).with_values(
        initial_probs=[0.5, 0.5],
        transition_probs=[[0.95, 0.05], [0.05, 0.95]],
        loc=[[0.0, 0.0], [2.0, -1.0]],
        coefficients=[[[0.5, 0.1], [0.0, 0.4]], [[0.5, 0.1], [0.0, 0.4]]],
        covariance=[[[1.0, 0.7], [0.7, 1.0]], [[0.4, -0.2], [-0.2, 0.4]]],
    )
    return unit * model.simulate(n_steps, seed=seed).x + about


def naive_table(model: sh.SwitchingSSM, x: torch.Tensor, u: torch.Tensor | None = None) -> torch.Tensor:
    """log p(x_t | s, earlier observations) of every step and state, by torch's normal of the observed features."""
    values, order, table = model.values, model.order, torch.zeros(len(x), model.n_states, dtype=DOUBLE)
    for t, state in itertools.product(range(order, len(x)), range(model.n_states)):
        loc, coefficients, precision = (
            values[n][min(state, len(values[n]) - 1)] for n in ("loc", "coefficients", "precision")
        )
        lags = torch.cat([*(x[t - lag] for lag in range(1, order + 1)), *([] if u is None else [u[t]])])
        seen = ~x[t].isnan()
        if bool(lags.isnan().any()) or not bool(seen.any()):
            continue
        covariance = torch.linalg.inv(precision)[seen][:, seen]
        law = torch.distributions.MultivariateNormal((loc + coefficients @ lags)[seen], covariance)
        table[t, state] = law.log_prob(x[t, seen])
    return table


FORMS = [full(), full(2, 3), full(1, 2, switching=["scale"]), full(1, 2, switching=["intercept"])]


@pytest.mark.parametrize("emission", [*FORMS, full(1, 2, inputs=["dose"])], ids=repr)
@pytest.mark.parametrize("missing", [False, True])
def test_the_evidence_is_the_sum_over_all_paths_of_the_formula(emission, missing) -> None:
    model, u = model_of(emission), torch.randn(6, 1, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    given = {"inputs": {"dose": u[:, 0]}} if emission.n_inputs else {}
    x = model.simulate(6, seed=1, **given).x
    if missing:
        x[-1, 0], x[2, -1] = torch.nan, torch.nan
    table, start, moves = (
        naive_table(model, x, u if given else None),
        *(model.values[n].log() for n in ("initial_probs", "transition_probs")),
    )
    terms = [
        start[path[0]]
        + sum(moves[i, j] for i, j in itertools.pairwise(path))
        + sum(table[t, s] for t, s in enumerate(path))
        for path in itertools.product(range(2), repeat=len(x))
    ]
    expected = torch.stack(terms).logsumexp(0)
    assert_close(model.log_evidence(x, **given), expected, rtol=1e-10, atol=1e-12)
    assert_close(trace_log_prob(model.collapsed, x, **given), expected, rtol=1e-10, atol=1e-12)


def test_independent_noise_has_the_density_of_the_diagonal_form() -> None:
    one = model_of(sh.AutoRegressive(2, 2, covariance="diagonal")).values
    one = one | {"precision": one["precision"].square() + 0.5}
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    x[4, 1] = torch.nan
    diagonal = model_of(sh.AutoRegressive(2, 2)).with_values(one)
    whole = model_of(full(2)).with_values(one | {"precision": torch.diag_embed(one["precision"])})
    assert_close(whole.log_evidence(x), diagonal.log_evidence(x), rtol=1e-10, atol=0)


@pytest.mark.parametrize("switching", [PARTS, ("intercept",), ("scale",)])
def test_the_prior_is_its_formula(switching) -> None:
    emission = full(2, 2, switching=switching)
    model = model_of(emission, seed=3)
    values, prior = model.values, model.scaled_to(drawn()).prior
    total = 0.0
    for df, inverse, precision in zip(prior["df"], prior["inverse_scale"], values["precision"], strict=True):
        law = scipy.stats.wishart(float(df), torch.linalg.inv(inverse).numpy())
        total += float(law.logpdf(precision.numpy()))
    typical = (prior["df"][:, None, None] * torch.linalg.inv(prior["inverse_scale"])).mean(0, keepdim=True)
    alone = "scale" not in switching
    by_lag = values["precision"] if alone or "coefficients" in switching else typical
    by_loc = values["precision"] if alone or "intercept" in switching else typical
    lags = prior["loc"].repeat(1, 2)
    for k, table in enumerate(values["coefficients"]):
        for g, column in enumerate(table.mT):
            count = prior["coefficients_count"][k, g] * by_lag[min(k, len(by_lag) - 1)]
            total += torch.distributions.MultivariateNormal(torch.zeros(2).double(), precision_matrix=count).log_prob(
                column
            )
    effect = (values["coefficients"] * lags[:, None]).sum(-1)
    effect = effect if "intercept" in switching else effect.mean(0, keepdim=True)
    for k, loc in enumerate(values["loc"]):
        about = (prior["loc"] - effect)[min(k, max(len(prior["loc"]), len(effect)) - 1)]
        by = prior["count"][k] * by_loc[min(k, len(by_loc) - 1)]
        total += torch.distributions.MultivariateNormal(about, precision_matrix=by).log_prob(loc)
    found = log_prior(emission.sites(prior), values)
    assert_close(found, torch.as_tensor(total), rtol=1e-10, atol=1e-10)
    if emission.is_conjugate:
        of_family = emission.family.log_prob(emission.point(values), emission.natural(prior)).sum()
        assert_close(of_family, found, rtol=1e-10, atol=1e-10)


def test_maximum_likelihood_of_one_state_is_least_squares() -> None:
    x = drawn()
    fit = sh.SwitchingSSM(sh.Markov(1), full(2)).fit(x, prior=None, restarts=1, **QUIET)
    rows = np.concatenate([np.ones((len(x) - 2, 1)), x[1:-1].numpy(), x[:-2].numpy()], -1)
    best, *_ = np.linalg.lstsq(rows, x[2:].numpy(), rcond=None)
    residual = x[2:].numpy() - rows @ best
    assert_close(fit.model.values["loc"][0].numpy(), best[0], rtol=1e-8, atol=1e-10)
    assert_close(fit.model.values["coefficients"][0].numpy(), best[1:].T, rtol=1e-8, atol=1e-10)
    covariance = fit.model.describe()["covariance"][0].numpy()
    assert_close(covariance, residual.T @ residual / len(residual), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("missing", [False, True])
def test_message_passing_in_one_state_gives_the_evidence_of_bayesian_regression(missing) -> None:
    x = drawn(40)
    if missing:
        x[-1, 0] = torch.nan  # its density is a Student's t, below which the bound stays
    model = sh.SwitchingSSM(sh.Markov(1), full()).scaled_to(x)
    fit = model.fit(x, "vmp", prior=model.prior, restarts=1, tol=1e-12, **QUIET)
    emission, prior = model.emission, model.prior
    complete = len(x) - missing
    rows = torch.cat([x[1:complete], x[: complete - 1]], -1)
    eta = emission.natural(prior)
    after = eta + emission.message(rows, torch.ones(len(rows), 1, dtype=DOUBLE))
    evidence = emission.family.log_normalizer(after) - emission.family.log_normalizer(eta)
    evidence = float(evidence.sum()) - len(rows) * np.log(2 * np.pi)
    if not missing:
        assert float(fit.objective[-1]) == pytest.approx(evidence, abs=1e-7)
        return
    q = emission.family.usual(after)
    design = torch.cat([torch.ones(1, dtype=DOUBLE), x[-2]])
    df = q.df - 1
    spread = (
        torch.linalg.inv(q.scale_matrix) * (1 + design @ torch.linalg.solve(q.weight, design)[0]) / df.unsqueeze(-1)
    )
    mean = (design @ q.loc)[0]
    law = torch.distributions.StudentT(df[0], mean[1], spread[0, 1, 1].sqrt())
    exact = evidence + float(law.log_prob(x[-1, 1]))
    assert exact - 0.2 < float(fit.objective[-1]) <= exact + 1e-9
    assert bool((fit.objective.diff() >= -1e-9).all())


@pytest.mark.parametrize("missing", [False, True])
def test_an_m_step_is_a_maximum_of_the_expected_density(missing) -> None:
    emission, generator = full(1, 3), torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator, dtype=DOUBLE)
    rows = torch.cat([x[1:], x[:-1]], -1)
    weights = torch.rand(39, 2, generator=generator, dtype=DOUBLE)
    prior = emission.default_prior(2, x)
    near = emission.start(prior)
    if missing:
        rows[3, 0], rows[7, 1:3] = torch.nan, torch.nan
        for _ in range(300):  # of EM over the missing features, to its fixed point
            near = emission.maximize(rows, weights, near, prior, torch.zeros(3, dtype=DOUBLE)).values
    best = emission.maximize(rows, weights, near, prior, torch.zeros(3, dtype=DOUBLE)).values
    leaves = {name: value.clone().requires_grad_() for name, value in best.items()}
    symmetric = leaves | {"precision": (leaves["precision"] + leaves["precision"].mT) / 2}
    height = (weights * emission.table(rows, symmetric)).sum() + log_prior(emission.sites(prior), symmetric)
    for slope in torch.autograd.grad(height, list(leaves.values())):
        assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-8)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "switching",
    [PARTS, ("intercept",), *(pytest.param(some, marks=pytest.mark.slow) for some in (PARTS[1:], PARTS[2:]))],
)
def test_em_rises_to_the_mode_that_direct_ascent_finds(switching) -> None:
    x = drawn(50)
    x[20, 0] = torch.nan
    fit = sh.SwitchingSSM(sh.Markov(2), full(switching=switching)).fit(x, restarts=1, tol=1e-8, **QUIET)
    assert_at_the_mode(fit, x)


@pytest.mark.slow
def test_forecasts_have_the_moments_of_the_process() -> None:
    model = model_of(full(), k=1)
    x = model.simulate(20, seed=0).x
    ahead = model.forecast(x, 3, draws=5_000)
    loc, matrix = model.values["loc"][0], model.values["coefficients"][0]
    covariance = torch.linalg.inv(model.values["precision"][0])
    mean, spread = x[-1], torch.zeros(2, 2, dtype=DOUBLE)
    for step in range(3):
        mean, spread = loc + matrix @ mean, covariance + matrix @ spread @ matrix.mT
        assert_close(ahead.mean[step], mean, rtol=1e-10, atol=1e-12)
        assert_close(ahead.variance[step], spread.diagonal(), rtol=1e-10, atol=1e-12)
    draws = ahead.observation.sample((20_000,))[:, 0]
    assert_close(torch.cov(draws.mT), covariance, rtol=0.1, atol=0.05)
    low, high = ahead.interval(0.9)
    assert_close((high - low)[2] / 2, 1.6449 * spread.diagonal().sqrt(), rtol=0.05, atol=0)


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["covariance", "scale and correlation", "precision"])
def test_user_priors_of_the_covariance_are_their_densities(form) -> None:
    matrix, wide = torch.tensor([[1.0, 0.3], [0.3, 2.0]], dtype=DOUBLE), torch.tensor(5.0, dtype=DOUBLE)
    lkj = dist.LKJ(2, torch.tensor(2.0, dtype=DOUBLE))
    half = dist.HalfNormal(torch.tensor(2.0, dtype=DOUBLE))
    prior = {
        "precision": {"precision": dist.Wishart(wide, covariance_matrix=matrix)},
        "scale and correlation": {"scale": half, "correlation": lkj},
        "covariance": {"covariance": dist.Wishart(wide, covariance_matrix=matrix)},
    }[form]
    own = {"coefficients": dist.Normal(torch.tensor(0.3, dtype=DOUBLE), torch.tensor(0.2, dtype=DOUBLE))}
    emission, plain = full(prior=prior | own), sh.MultivariateNormal(2, prior=prior)
    model = model_of(emission)
    values = model.values
    hyper = model.prior
    of_plain = [site for site in plain.sites({**hyper}) if site.name == "precision"]
    expected = log_prior(of_plain, values) + own["coefficients"].log_prob(values["coefficients"]).sum()
    some = [site for site in emission.sites(hyper) if site.name != "loc"]
    assert_close(log_prior(some, values), expected, rtol=1e-10, atol=1e-10)
    x = drawn(80)
    fit = sh.SwitchingSSM(sh.Markov(2), emission).fit(x, restarts=1, max_steps=10, **QUIET)
    assert float(fit.objective.diff().min()) > -1e-9 * abs(float(fit.objective[-1]))
    assert_close(fit.objective[-1], fit.model.log_evidence(x) + fit.model.log_prior(fit.values), rtol=1e-9, atol=1e-9)


def test_a_wishart_of_the_precision_is_the_default_s_form() -> None:
    x, prior = drawn(80), {"precision": dist.Wishart(torch.tensor(5.0), covariance_matrix=torch.eye(2))}
    fit = sh.SwitchingSSM(sh.Markov(2), full(prior=prior)).fit(x, "vmp", restarts=1, max_steps=20, **QUIET)
    assert fit.model.prior["df"].tolist() == [5.0, 5.0]
    covariance = {"covariance": dist.Wishart(torch.tensor(5.0), covariance_matrix=torch.eye(2))}
    with pytest.raises(TypeError, match=r"^prior: .* has priors of precision that are not of its conjugate family"):
        sh.SwitchingSSM(sh.Markov(2), full(prior=covariance)).fit(x, "vmp", restarts=1, **QUIET)


def test_subjects_streams_and_files_take_it(tmp_path) -> None:
    x = {"anna": drawn(40), "ben": drawn(35, seed=1)}
    model = sh.SwitchingSSM(sh.Markov(2), full())
    fit = model.fit(x, pooled={"emission": "none"}, restarts=1, max_steps=10, **QUIET)
    alone = fit.model.of("ben")
    assert_close(fit.model.log_evidence(x)[1], alone.log_evidence(x["ben"]), rtol=1e-10, atol=0)
    assert_close(fit.model.forecast(x, 2).variance[1], alone.forecast(x["ben"], 2).variance, rtol=1e-9, atol=1e-12)
    alone.save(tmp_path / "model")
    again = sh.load(tmp_path / "model")
    assert repr(again.emission) == "AutoRegressive(order=1, n_features=2, covariance='full')"
    total = float(streamed(again, x["ben"])[0].log_evidence)
    assert total == pytest.approx(float(alone.log_evidence(x["ben"])), rel=1e-10)
    assert "covariance[0, 1, 0]" in fit.subject("ben").summary().parameters.index.astype(str).tolist()


def test_what_cannot_be_is_named() -> None:
    with pytest.raises(ValueError, match="covariance: got 'banded', expected"):
        sh.AutoRegressive(1, 2, covariance="banded")
    with pytest.raises(ValueError, match="lags: got 'own' with covariance="):
        full(lags="own")
    with pytest.raises(TypeError, match="all states share its coefficients and scale"):
        sh.SwitchingSSM(sh.Markov(2), full(switching="intercept")).fit(drawn(40), "vmp", **QUIET)
    with pytest.raises(ValueError, match="precision: got a matrix that is not symmetric positive definite"):
        model_of(full()).with_values(model_of(full()).values | {"precision": -torch.eye(2).expand(2, 2, 2)})


@pytest.mark.slow
def test_svi_is_near_the_mode() -> None:
    x, model = drawn(150), sh.SwitchingSSM(sh.Markov(2), full())
    mode = model.fit(x, restarts=1, **QUIET)
    fit = model.fit(x, "svi", start=mode, restarts=1, max_steps=600, **QUIET)
    for name, wide in (("coefficients", 0.1), ("loc", 0.3)):
        assert_close(fit.model.values[name], mode.model.values[name], rtol=0, atol=wide)
