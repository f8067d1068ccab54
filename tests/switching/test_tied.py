"""Normal emissions whose states share one precision, against the textbook, enumeration and another library."""

import itertools
import math
from dataclasses import replace

import arviz as az
import numpy as np
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from oracles.models import COVARIANCE, SCALE
from samplehold.switching.dynamics.contract import PATHS
from samplehold.switching.fitting import ChainGraph, engine_from, first_guesses
from torch.testing import assert_close

NORMAL, FULL = sh.Normal(2, tied=SCALE), sh.MultivariateNormal(2, tied=COVARIANCE)
GATED = sh.Gated(sh.Normal(2), sh.Normal(2), tied=SCALE)
GATED_FULL = sh.Gated(sh.MultivariateNormal(2), sh.MultivariateNormal(2), tied=COVARIANCE)
BY_STATE, BY_STATE_FULL = replace(GATED, by_state=True), replace(GATED_FULL, by_state=True)
TRUTH = sh.SwitchingSSM(sh.Copy(2), GATED).with_values(
    redraw_prob=0.3,
    state_probs=[0.6, 0.4],
    loc=[[3.0, 1.0], [-3.0, 0.0]],
    background_loc=[[0.0, 0.0]],
    scale=[[0.6, 0.8]],
)
quiet = {"restarts": 2, "progress": False}


@pytest.fixture(scope="module")
def x():
    return TRUTH.simulate(120, seed=1).x


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def textbook(x, weights, loc, kappa, nu, inverse):
    """The posterior of the docstring of `tied`, by loops: its locations, weights, degrees of freedom and inverse."""
    x, weights, loc, inverse = x.numpy(), weights.numpy(), loc.numpy(), inverse.numpy().copy()
    total, rows, counts = float(nu), [], []
    for k in range(len(loc)):
        seen = ~np.isnan(x).any(-1)
        w, rest = weights[seen, k], x[seen]
        n = w.sum()
        mean = (w[:, None] * rest).sum(0) / n if n else loc[k]  # no step may be held
        kappa_k = float(kappa[k])
        inverse += sum(w_t * np.outer(r, r) for w_t, r in zip(w, rest - mean, strict=True))
        inverse += kappa_k * n / (kappa_k + n) * np.outer(mean - loc[k], mean - loc[k])
        total += n
        rows.append((kappa_k * loc[k] + n * mean) / (kappa_k + n))
        counts.append(kappa_k + n)
    return torch.from_numpy(np.stack(rows)), torch.tensor(counts).double(), total, torch.from_numpy(inverse)


@pytest.mark.parametrize("with_prior", [True, False])
def test_the_m_step_of_redrawn_and_held_steps_is_the_textbook_one(x, with_prior):
    """With a prior the mode, without one the mean scatter within states; a feature of Normal by itself."""
    for emission in (GATED, GATED_FULL, BY_STATE, BY_STATE_FULL):
        held = 2 if emission.by_state else 1
        weights = [uniform(len(x), 2), uniform(len(x), held, seed=1)]
        both, by_feature = torch.cat(weights, -1), emission in (GATED, BY_STATE)
        data = x.clone()
        if by_feature:
            data[3, 0] = data[5] = torch.nan
        model = sh.SwitchingSSM(sh.Copy(2), emission)
        prior = model.scaled_to(x).prior if with_prior else None
        near = {"loc": TRUTH.loc, "background_loc": torch.zeros(held, 2)}
        near["precision"] = torch.ones(1, 2) if by_feature else torch.eye(2)[None]
        near = {name: value.double() for name, value in near.items()}
        best = emission.maximize_parts(data, weights, near, prior, torch.full((2,), 1e-12)).values
        assert set(best) == {"loc", "background_loc", "precision"}
        loc = torch.cat([best["loc"], best["background_loc"]])
        rows = torch.cat([prior["loc"], prior["background_loc"]]) if with_prior else torch.zeros(2 + held, 2).double()
        for features in ([0], [1]) if by_feature else ([0, 1],):
            n = len(features)
            kappa, nu, inverse = torch.full((2 + held,), 1e-300), 0.0, torch.zeros(n, n).double()
            if with_prior:
                kappa = torch.cat([prior["count"], prior["background_count"]])
                kappa = kappa[:, features[0]] if by_feature else kappa
                nu = 2 * prior["shape"][0, features[0]] if by_feature else prior["df"][0]
                inverse = 2 * prior["rate"][:, features] if by_feature else prior["inverse_scale"][0]
            means, _, df, total = textbook(data[:, features], both, rows[:, features], kappa, nu, inverse)
            assert_close(loc[:, features], means, rtol=1e-12, atol=1e-12)
            found = best["precision"][:, features] if by_feature else best["precision"][0]
            expected = (df + (2 + held - n - 1 if with_prior else 0)) * torch.linalg.inv(total)
            assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("emission", [GATED, FULL, BY_STATE_FULL])
def test_the_bound_and_the_update_are_those_of_their_definition(emission):
    """With the best q of the paths, the bound is the log of the sum of exp E log p(x, path) over all paths, less the
    divergences; then q of the parameters has the weights of these paths."""
    x = TRUTH.simulate(4, seed=3).x
    model = sh.SwitchingSSM(sh.Copy(2), emission).scaled_to(x)
    graph = ChainGraph.of(model.problem(x))
    engine = engine_from(graph, first_guesses(graph.problem, 1, 0).values)
    engine.run(2, 0.0)
    engine.update(PATHS)
    gate, state = (engine.blocks[name].eta[0] for name in ("redraw", "state"))
    family, plates = graph.families["emission"], emission is GATED
    usual = vars(family.usual(engine.blocks["emission"].eta[0]))
    names = ("loc", "kappa", "df", "scale_matrix")
    loc, kappa, df, scale_matrix = (usual[name] if plates else usual[name][None] for name in names)
    dim, n_rows = loc.shape[-1], loc.shape[-2]

    def log_density(t: int, k: int) -> torch.Tensor:
        total = torch.zeros(()).double()
        for plate in range(len(loc)):
            part = x[t, plate : plate + 1] if plates else x[t]
            gap = part - loc[plate, k]
            halves = (df[plate] - torch.arange(dim)) / 2
            volume = torch.digamma(halves).sum() + dim * math.log(2) + torch.logdet(scale_matrix[plate])
            square = df[plate] * gap @ scale_matrix[plate] @ gap + dim / kappa[plate, k]
            total = total + (volume - dim * math.log(2 * math.pi) - square) / 2
        return total

    def expected_logs(eta):
        return torch.digamma(eta) - torch.digamma(eta.sum())

    joints, weights = [], []
    for path in itertools.product((0, 1), repeat=4):
        for gates in itertools.product((1, 0), repeat=3):
            if any(z == 0 and path[t] != path[t + 1] for t, z in enumerate(gates)):
                continue
            joint, used = torch.zeros(()).double(), torch.zeros(4, n_rows)
            for t, z in enumerate((1, *gates)):
                joint = joint + (expected_logs(gate)[1 - z] if t else 0.0)
                joint = joint + (expected_logs(state)[path[t]] if z else 0.0)
                row = path[t] if z or emission is FULL else 2 + path[t] if emission is BY_STATE_FULL else 2
                joint, used[t, row] = joint + log_density(t, row), 1.0
            joints.append(joint)
            weights.append(used.double())
    joints = torch.stack(joints)
    divergences = sum(
        engine.blocks[n].family.kl(engine.blocks[n].eta[0], graph.priors[n]).sum() for n in graph.families
    )
    assert_close(engine.elbo()[0], torch.logsumexp(joints, 0) - divergences, rtol=1e-11, atol=1e-11)
    engine.update("emission")
    chosen = torch.einsum("p,ptk->tk", torch.softmax(joints, 0), torch.stack(weights))
    prior, now = vars(family.usual(graph.priors["emission"])), vars(family.usual(engine.blocks["emission"].eta[0]))
    for plate in range(len(loc)):
        prior_of, now_of = ({n: v[plate] if plates else v for n, v in d.items()} for d in (prior, now))
        part = x[:, plate : plate + 1] if plates else x
        inverse = torch.linalg.inv(prior_of["scale_matrix"])
        means, counts, total, whole = textbook(
            part, chosen, prior_of["loc"], prior_of["kappa"], prior_of["df"], inverse
        )
        assert_close(now_of["loc"], means, rtol=1e-10, atol=1e-10)
        assert_close(now_of["kappa"], counts, rtol=1e-11, atol=0)
        assert_close(now_of["df"], torch.as_tensor(total).double(), rtol=1e-11, atol=0)
        assert_close(torch.linalg.inv(now_of["scale_matrix"]), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["em", "vmp"])
@pytest.mark.parametrize("emission", [GATED, pytest.param(GATED_FULL, marks=pytest.mark.slow)])
def test_every_fit_of_a_tied_gated_emission_is_a_network(x, emission, method):
    fit = sh.SwitchingSSM(sh.Copy(2), emission).fit(x[:60], method, max_steps=20, progress=False, restarts=1)
    layer = sh.as_rnn(fit.model)
    out, _ = layer(x, sh.redrawn_start(layer, x))
    assert_close(out.detach(), fit.model.filter(x).state, rtol=0, atol=1e-12)
    levels = fit.model.loc.sum(-1)
    assert bool((levels.diff() > 0).all())  # states are in order, in the posterior too
    if method == "vmp":
        assert_close(fit.posterior.mean, {n: fit.model.values[n] for n in fit.posterior.mean}, rtol=1e-12, atol=0)


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["em", "vmp"])
@pytest.mark.parametrize("emission", [BY_STATE, pytest.param(BY_STATE_FULL, marks=pytest.mark.slow)])
def test_every_fit_with_a_tied_background_by_state_is_a_network_on_logits(x, emission, method):
    """x | z, s ~ N(m z + M_s z, Sigma) with one Sigma."""
    fit = sh.SwitchingSSM(sh.Copy(2), emission).fit(x[:60], method, max_steps=10, progress=False, restarts=1)
    model, layer = fit.model, sh.as_rnn(fit.model, space="logit")
    out, _ = layer(x, sh.redrawn_start(layer, x))
    assert_close(out.detach().softmax(-1), sh.filter_vmp(model, x, gate="input").state, rtol=0, atol=1e-11)
    assert float(fit.objective.diff().min()) > -1e-9
    assert model.background_loc.shape == (2, 2)
    assert bool((model.loc.sum(-1).diff() > 0).all())  # states are in order, in the posterior too
    if method == "vmp":
        assert_close(fit.posterior.mean, {n: model.values[n] for n in fit.posterior.mean}, rtol=1e-12, atol=0)


@pytest.mark.parametrize("emission", [GATED, BY_STATE, BY_STATE_FULL])
def test_another_order_of_states_is_one_of_their_held_steps_too(emission):
    model = sh.SwitchingSSM(sh.Copy(3), emission).scaled_to(TRUTH.simulate(9, seed=0).x)
    block, held = emission.joined, 3 if emission.by_state else 1
    prior = model.prior | {"loc": uniform(3, 2), "background_loc": uniform(held, 2, seed=1)}
    order = torch.tensor([2, 0, 1])
    before = block.expected(block.natural(prior))
    after = block.expected(block.reordered(block.natural(prior), order))
    at = order if emission.by_state else [0]
    expected = {
        "loc": before["loc"][order],
        "background_loc": before["background_loc"][at],
        "precision": before["precision"],
    }
    assert_close(dict(after), expected, rtol=1e-12, atol=1e-12)


def test_tied_states_alone_are_a_network_on_logits(x):
    model = sh.SwitchingSSM(sh.Copy(2), NORMAL).fit(x, max_steps=5, **quiet).model
    layer = sh.as_rnn(model, space="logit")
    out, _ = layer(x, sh.redrawn_start(layer, x))
    assert_close(out.detach().softmax(-1), sh.filter_vmp(model, x, gate="input").state, rtol=0, atol=1e-11)


def test_without_it_the_fit_is_refused_with_the_cure(x):
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Gated(sh.Normal(2), sh.Normal(2))).fit(x, max_steps=2, **quiet)
    with pytest.raises(ValueError, match=r"its scales differ .* fit Gated\(\.\.\., tied={'scale': 'all states'}\)"):
        sh.as_rnn(fit.model)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "fixed", [{"scale": [[0.6, 0.8]]}, {"loc": [[3.0, 1], [-3, 0]]}, {"background_loc": [[0.1, 0]]}]
)
@pytest.mark.parametrize("method", ["em", "vmp"])
def test_what_is_fixed_stays_and_the_rest_rises(x, method, fixed):
    fit = sh.SwitchingSSM(sh.Copy(2), GATED).fit(x[:60], method, fixed=fixed, max_steps=6, restarts=1, progress=False)
    for name, value in fixed.items():
        assert_close(fit.model.describe()[name], torch.tensor(value, dtype=torch.float64), rtol=1e-12, atol=0)
    assert float(fit.objective.diff().min()) > -1e-9
    assert fit.n_parameters == 1 + 1 + 4 + 2 + 2 - torch.tensor(next(iter(fixed.values()))).numel()


def test_a_prior_of_the_scale_is_one_of_the_one_scale(x):
    given = {"precision": dist.Gamma(2.0, 0.3)}
    fit = sh.SwitchingSSM(sh.Copy(2), GATED).fit(x[:30], "vmp", prior=given, max_steps=3, **quiet)
    assert_close(fit.model.prior["shape"], torch.full((1, 2), 2.0, dtype=torch.float64), rtol=0, atol=0)


@pytest.mark.slow
def test_a_prior_of_the_scale_that_is_not_conjugate_has_its_mode():
    """In the units of the fit too, which are not those of the data."""
    x = 100 * TRUTH.simulate(30, seed=1).x[:, :1]
    emission = sh.Gated(sh.Normal(1, prior={"scale": dist.HalfNormal(10.0)}), sh.Normal(1), tied=SCALE)
    fit = sh.SwitchingSSM(sh.Copy(2), emission).fit(x, tol=1e-10, restarts=1, progress=False)
    model = fit.model
    assert_close(fit.objective[-1], model.log_evidence(x) + model.log_prior(model.values), rtol=1e-9, atol=1e-9)
    free = {name: value.clone().requires_grad_() for name, value in model.values.items()}
    slope = torch.autograd.grad(model.problem(x).objective(free), free["precision"])[0] * model.precision
    assert float(slope.abs().max()) < 1e-3


@pytest.mark.slow
def test_a_shared_scale_has_no_state_in_summaries_arviz_and_figures(x):
    fit = sh.SwitchingSSM(sh.Copy(2), GATED).fit(x, "vmp", max_steps=20, **quiet)
    table = fit.summary().parameters
    assert set(table.loc[["scale[0]", "scale[1]"], "state"]) == {""}
    data = fit.to_arviz(x)
    assert data["posterior"]["scale"].dims == ("chain", "draw", "feature")
    assert az.summary(data, var_names=["scale"]).index.tolist() == ["scale[0]", "scale[1]"]
    low, high = fit.posterior.interval(0.9, n=200)
    assert bool((low["precision"] < high["precision"]).all())
    assert low["precision"].shape == (1, 2)
    ahead = fit.forecast(3)
    assert ahead.mean.shape == (3, 2)
    fit.plot()
    assert repr(fit.model.emission) == (
        "Gated(emission=Normal(n_features=2), background=Normal(n_features=2), by_state=False, "
        "tied={'scale': 'all states'})"
    )


def test_states_collapse_together():
    """One scale falls to its floor only if all steps lie on the points of their states."""
    x = torch.tensor([[0.0], [0.0], [5.0], [5.0]], dtype=torch.float64)
    w, floor = torch.eye(2, dtype=torch.float64).repeat_interleave(2, 0), torch.tensor([1e-8], dtype=torch.float64)
    for emission in (sh.Normal(1, tied=SCALE), sh.MultivariateNormal(1, tied=COVARIANCE)):
        near = emission.start(emission.default_prior(2, x))
        on_points = emission.maximize(x, w, near, None, floor)
        assert emission.collapsed(on_points.values, floor).tolist() == [True, True]
        assert_close(on_points.values["precision"].flatten(), torch.tensor([1e8]).double(), rtol=1e-6, atol=0)
        one_wide = emission.maximize(x + torch.tensor([[0.0], [1], [0], [0]]), w, near, None, floor)
        assert emission.collapsed(one_wide.values, floor).tolist() == [False, False]
        assert_close(one_wide.values["precision"].flatten(), torch.tensor([8.0]).double(), rtol=1e-12, atol=0)
        empty = emission.maximize(x, w * torch.tensor([1.0, 0.0]), near, None, floor).values
        assert empty["loc"].flatten().isnan().tolist() == [False, True]


def test_layers_share_a_scale_and_components_do_already(x):
    fit = sh.LayeredSSM([2, 2], GATED).fit(x[:40], max_steps=5, **quiet)
    assert fit.model.describe()["scale"].shape == (1, 2)
    assert float(fit.objective.diff().min()) > -1e-9
    with pytest.raises(ValueError, match="emission: got a tied one"):
        sh.FactorialSSM([2, 2], FULL)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: sh.Normal(2, tied={"loc": "all states"}), r"tied: got {'loc': 'all states'}, expected {'scale'"),
        (lambda: sh.MultivariateNormal(2, tied=SCALE), r"tied: .* expected {'covariance': 'all states'}"),
        (lambda: sh.Gated(sh.Normal(2), sh.Normal(2), tied=COVARIANCE), r"tied: .* expected {'scale': 'all states'}"),
        (
            lambda: sh.SwitchingSSM(sh.Copy(2), GATED).with_prior({"background_scale": dist.HalfNormal(1.0)}),
            r"prior: got one for scale of the background",
        ),
        (
            lambda: sh.Gated(sh.Normal(2), sh.Poisson(2), tied=SCALE),
            r"tied: got Normal\(.*\) and Poisson\(.*\)",
        ),
    ],
)
def test_what_cannot_be_tied_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
