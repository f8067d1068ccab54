"""Message passing where a part of a block of parameters is fixed: exact where that is possible, a bound everywhere."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import samplehold as sh
import torch
from oracles.models import CONJUGATE, drive, numbers, random_model
from samplehold.switching.fitting import ChainGraph, ChunkedVMP, chunked, engine_from, first_guesses
from torch import Tensor
from torch import distributions as dist
from torch.testing import assert_close

QUIET = {"method": "vmp", "progress": False}
N, F = 12, 2


def matrix(seed: int) -> Tensor:
    root = numbers(F, F, seed=seed)
    return root @ root.T + torch.eye(F, dtype=torch.float64)


# ---- one state: the textbook's posterior and evidence ----------------------------------------------------------------

X = 3.0 + numbers(N, F) @ matrix(1)
KAPPA, DF, LOC, SCALE = 0.75, 3.5, numbers(F, seed=2), matrix(3)  # a normal-Wishart prior; SCALE is inv(W)
HELD = {"loc": 2.5 + numbers(F, seed=4), "precision": torch.linalg.inv(matrix(5))}


def given_loc(x: Tensor, at: Tensor, loc: Tensor, df: float, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """E[precision] and log p(x) of normal vectors x [n, D] about a known location."""
    (n, dim), gap = x.shape, (at - loc)[:, None]
    df0, inverse0 = df + 1, inverse + KAPPA * gap @ gap.T
    df1, inverse1 = df0 + n, inverse0 + (x - at).T @ (x - at)

    def log_z(df: float, inverse: Tensor) -> Tensor:
        half = torch.tensor(df / 2, dtype=x.dtype)
        return torch.mvlgamma(half, dim) + half * (dim * math.log(2) - torch.logdet(inverse))

    evidence = log_z(df1, inverse1) - log_z(df0, inverse0) - n * dim / 2 * math.log(2 * math.pi)
    return df1 * torch.linalg.inv(inverse1), evidence


def given_precision(x: Tensor, at: Tensor, loc: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and covariance of the location, and log p(x): all of x is one normal vector."""
    n, covariance = len(x), torch.linalg.inv(at)
    mean = (KAPPA * loc + x.sum(0)) / (KAPPA + n)
    same = torch.eye(n, dtype=x.dtype) + torch.ones(n, n, dtype=x.dtype) / KAPPA
    evidence = dist.MultivariateNormal(loc.repeat(n), torch.kron(same, covariance.contiguous())).log_prob(x.flatten())
    return mean, covariance / (KAPPA + n), evidence


def one_state(emission: sh.Emission, prior: Mapping[str, Tensor], fixed: Mapping[str, Tensor]) -> sh.Fit:
    given = {name: value[None] for name, value in prior.items()}
    held = {name: value[None] for name, value in fixed.items()}
    return sh.SwitchingSSM(sh.Markov(1), emission).fit(X, prior=given, restarts=1, fixed=held, **QUIET)


def whole(held: str) -> sh.Fit:
    prior = {"loc": LOC, "count": torch.tensor(KAPPA), "df": torch.tensor(DF), "inverse_scale": SCALE}
    prior = {name: value.double() for name, value in prior.items()}
    return one_state(sh.MultivariateNormal(F), prior, {held: HELD[held]})


def by_feature(held: str) -> sh.Fit:
    ones = torch.ones(F, dtype=torch.float64)
    prior = {"loc": LOC, "count": KAPPA * ones, "shape": DF / 2 * ones, "rate": SCALE.diag() / 2}
    fixed = HELD["loc"] if held == "loc" else HELD["precision"].diag()
    return one_state(sh.Normal(F), prior, {held: fixed})


def check_draws(fit: sh.Fit, free: str, mean: Tensor) -> None:
    draws = fit.posterior.sample(4000, seed=1)[free][:, 0]
    assert bool(((draws.mean(0) - mean).abs() < 5 * draws.std(0) / 4000**0.5).all())


def test_one_state_with_its_location_known_has_a_wishart():
    fit = whole("loc")
    mean, evidence = given_loc(X, HELD["loc"], LOC, DF, SCALE)
    assert_close(fit.posterior.mean["precision"][0], mean, rtol=1e-10, atol=1e-10)
    assert_close(fit.objective[-1], evidence, rtol=1e-10, atol=0)
    check_draws(fit, "precision", mean)


def test_one_state_with_its_covariance_known_has_a_normal_location():
    fit = whole("precision")
    mean, covariance, evidence = given_precision(X, HELD["precision"], LOC)
    assert_close(fit.posterior.mean["loc"][0], mean, rtol=1e-10, atol=1e-10)
    q = fit.posterior.families["emission"].usual(fit.posterior.blocks["emission"])
    unit = fit.posterior.units.unit  # in which q is
    found = q.precision[0] / (unit.unsqueeze(-1) * unit)
    assert_close(found, torch.linalg.inv(covariance), rtol=1e-10, atol=1e-10)
    assert_close(fit.objective[-1], evidence, rtol=1e-10, atol=0)
    check_draws(fit, "loc", mean)


def test_features_with_their_locations_known_have_gammas():
    fit, total = by_feature("loc"), torch.zeros(())
    for f in range(F):
        mean, evidence = given_loc(X[:, f, None], HELD["loc"][f, None], LOC[f, None], DF, SCALE[f, f].reshape(1, 1))
        assert_close(fit.posterior.mean["precision"][0, f], mean[0, 0], rtol=1e-10, atol=1e-10)
        total = total + evidence
    assert_close(fit.objective[-1], total, rtol=1e-10, atol=0)
    check_draws(fit, "precision", fit.posterior.mean["precision"][0])


def test_features_with_their_scales_known_have_normal_locations():
    fit, total = by_feature("precision"), torch.zeros(())
    q = fit.posterior.families["emission"].usual(fit.posterior.blocks["emission"])
    for f in range(F):
        at = HELD["precision"][f, f].reshape(1, 1)
        mean, covariance, evidence = given_precision(X[:, f, None], at, LOC[f, None])
        assert_close(fit.posterior.mean["loc"][0, f], mean[0], rtol=1e-10, atol=1e-10)
        found = q.precision[0, f] / fit.posterior.units.unit[f] ** 2
        assert_close(found, 1 / covariance, rtol=1e-10, atol=1e-10)
        total = total + evidence
    assert_close(fit.objective[-1], total, rtol=1e-10, atol=0)
    check_draws(fit, "loc", fit.posterior.mean["loc"][0])


# ---- every kind of model ---------------------------------------------------------------------------------------------


def part_of(model: sh.SwitchingSSM) -> dict[str, Tensor]:
    """The first parameter of each block of an emission that has two, the intercept of a gate's logit, or the moves."""
    names = [part.prefix + next(iter(part.emission.parameters)) for part in model.emission.parts]
    names = [name for name in names if name.endswith("loc")] or [next(iter(model.dynamics.parameters))]
    names += [n for n in ("redraw_intercept", "transition_weights") if n in model.values and model.dynamics.n_inputs]
    return {name: model.values[name] for name in names}


EVERY = [(*kind, "structured") for kind in CONJUGATE]
EVERY += [(dynamics, emission, "mean_field") for dynamics, emission in CONJUGATE if emission in ("normal", "full")]


@pytest.mark.few(5)
@pytest.mark.parametrize(("dynamics", "emission", "factorization"), EVERY)
def test_every_model_can_be_held_in_part(dynamics, emission, factorization):
    model, driven = random_model(dynamics, emission, seed=1), drive(dynamics, (2,), 30)
    x = model.simulate(30, (2,), seed=0, **driven).x
    fixed = part_of(model)
    keywords = {"fixed": fixed, "factorization": factorization, "start": model}
    fit = model.fit(x, restarts=1, max_steps=60, **QUIET, **keywords, **driven)
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective[-1].abs())
    draws, mean = fit.posterior.sample(2000, seed=1), fit.posterior.mean
    assert set(draws) == set(model.values)
    for name, value in model.values.items():
        if name in fixed:
            assert_close(draws[name], value.expand_as(draws[name]), rtol=0, atol=0)
            assert_close(fit.model.values[name], value, rtol=0, atol=0)
            continue
        if name.endswith("_probs") and name.replace("_probs", "_weights") in model.values:
            continue  # these are at the means of their logits
        error = draws[name].std(0) / 2000**0.5
        assert bool(((draws[name].mean(0) - mean[name]).abs() < 5 * error + 1e-12).all()), name
    assert bool(model.log_prior(draws).isfinite().all())
    ahead = {name: torch.cat([table, table[:, :2]], 1) for name, table in driven.items()}
    assert bool(fit.posterior.forecast(x, 2, draws=5, **ahead).state.isfinite().all())
    if factorization == "structured" and not model.dynamics.n_inputs:
        # what the best paths under q of the parameters say, less the divergence of these
        priors = ChainGraph.of(fit.posterior.units.problem(fit.posterior.problem)).priors
        q = fit.posterior.blocks
        kl = sum(f.kl(q[name], priors[name]).sum() for name, f in fit.posterior.families.items())
        assert_close(fit.posterior.smooth(x).log_normalizer.sum() - kl, fit.objective[-1], rtol=1e-10, atol=0)


TWO = sh.SwitchingSSM(sh.Markov(2), sh.MultivariateNormal(2)).with_values(
    initial_probs=[0.5, 0.5],
    transition_probs=[[0.95, 0.05], [0.1, 0.9]],
    loc=[[3.0, -1.0], [-3.0, 0.0]],  # not in the order of their levels
    covariance=[[[1.0, 0.4], [0.4, 0.8]], [[0.5, -0.2], [-0.2, 1.5]]],
)
GATED = sh.SwitchingSSM(sh.Copy(2), sh.Gated(sh.Normal(1), sh.Normal(1))).with_values(
    redraw_prob=0.5,
    state_probs=[0.5, 0.5],
    loc=[[-4.0], [4.0]],
    scale=[[1.0], [1.0]],
    background_loc=[[0.0]],
    background_scale=[[0.5]],
)


@pytest.fixture(scope="module")
def x():
    return TWO.simulate(400, seed=1).x


@pytest.mark.parametrize("held", ["loc", "precision"])
@pytest.mark.slow
def test_of_much_data_it_agrees_with_em(x, held):
    long, fixed = TWO.simulate(6000, seed=2).x, {held: TWO.values[held]}
    point = TWO.fit(long, fixed=fixed, restarts=1, tol=1e-9, progress=False)
    fit = TWO.fit(long, fixed=fixed, restarts=1, tol=1e-9, **QUIET)
    for name, value in point.model.values.items():
        if name != "initial_probs":  # of which one sequence says little
            assert_close(fit.model.values[name], value, rtol=20 / 6000, atol=20 / 6000)  # a mode and a mean


def test_states_keep_the_numbers_of_what_is_fixed_and_a_background_has_none(x):
    fit = TWO.fit(x, fixed={"loc": TWO.values["loc"]}, restarts=2, **QUIET)
    assert_close(fit.model.values["precision"], TWO.values["precision"], rtol=0.5, atol=0.3)
    y = GATED.simulate(400, seed=1).x
    fit = GATED.fit(y, fixed={"background_scale": [[0.5]], "redraw_prob": 0.5}, restarts=2, **QUIET)
    assert_close(
        fit.model.describe()["background_scale"], torch.tensor([[0.5]], dtype=torch.float64), rtol=1e-15, atol=0
    )
    assert_close(fit.model.loc, GATED.loc, rtol=0, atol=0.5)  # in the order of their levels
    assert_close(fit.model.values["background_loc"], GATED.values["background_loc"], rtol=0, atol=0.2)
    assert_close(fit.model.redraw_prob, torch.tensor(0.5, dtype=torch.float64), rtol=0, atol=0)


@pytest.mark.parametrize("held", ["loc", "precision"])
def test_missing_features_are_filled_in(x, held):
    gaps = torch.where(numbers(*x.shape, seed=3) > 1.0, torch.nan, x)
    fit = TWO.fit(gaps, fixed={held: TWO.values[held]}, restarts=4, **QUIET)
    assert fit.converged
    assert float(fit.objective.diff().min()) > -1e-9
    assert_close(fit.model.loc, TWO.loc, rtol=0, atol=0.4)
    assert_close(fit.model.values["precision"], TWO.values["precision"], rtol=0.5, atol=0.4)


@pytest.mark.slow
def test_with_all_features_of_a_step_missing_and_one_state_the_evidence_is_exact():
    """Steps that miss everything say nothing, under a location that is known as under none."""
    prior = {"loc": LOC[None], "count": torch.tensor([KAPPA]).double(), "df": torch.tensor([DF]).double()}
    model = sh.SwitchingSSM(sh.Markov(1), sh.MultivariateNormal(F)).with_prior(prior | {"inverse_scale": SCALE[None]})
    gaps = X.clone()
    gaps[3:5] = torch.nan
    fit = model.fit(gaps, restarts=1, fixed={"loc": HELD["loc"][None]}, **QUIET)
    expected = given_loc(torch.cat([X[:3], X[5:]]), HELD["loc"], LOC, DF, SCALE)[1]
    assert_close(fit.objective[-1], expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("held", ["loc", "precision"])
def test_groups_stretches_and_the_whole_agree(monkeypatch, held):
    x = TWO.simulate(40, (3,), seed=1).x
    problem = TWO.scaled_to(x).problem(x)
    graph = ChainGraph.of(replace(problem, fixed={held: TWO.values[held]}))
    guesses = first_guesses(graph.problem, 2, 0).values
    expected = engine_from(graph, guesses).run(3, tol=0.0).elbo
    for room, long in ((100, 2**24), (200, 100)):
        monkeypatch.setattr(chunked, "MAX_NUMBERS", room)
        monkeypatch.setattr(chunked, "LONG", long)
        engine = engine_from(graph, guesses)
        assert isinstance(engine, ChunkedVMP)
        assert_close(engine.run(3, tol=0.0).elbo, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("held", ["loc", "precision"])
def test_minibatches_end_near_the_whole(held):
    x = TWO.simulate(10, (40,), seed=1).x
    fixed = {held: TWO.values[held]}
    whole = TWO.fit(x, fixed=fixed, restarts=1, **QUIET)
    found = TWO.fit(x, fixed=fixed, restarts=1, batch_size=10, max_steps=12, **QUIET)
    assert 0 <= float(whole.objective[-1] - found.objective[-1]) < 0.5
    assert_close(found.model.loc, whole.model.loc, rtol=0, atol=0.05)


@pytest.mark.parametrize("held", ["loc", "precision"])
def test_another_unit_and_origin_of_the_data_change_nothing_but_these(x, held):
    unit, origin = torch.tensor([10.0, 0.1]).double(), torch.tensor([500.0, -20.0]).double()
    other = {"loc": TWO.loc * unit + origin, "precision": TWO.values["precision"] / (unit[:, None] * unit)}
    here = TWO.fit(x, fixed={held: TWO.values[held]}, restarts=1, **QUIET)
    there = TWO.fit(x * unit + origin, fixed={held: other[held]}, restarts=1, **QUIET)
    assert_close(there.model.loc, here.model.loc * unit + origin, rtol=1e-6, atol=1e-6)
    assert_close(there.model.transition_probs, here.model.transition_probs, rtol=1e-5, atol=1e-6)
    gap = here.objective[-1] - there.objective[-1]
    assert_close(gap, unit.log().sum() * len(x), rtol=1e-6, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("held", ["loc", "precision"])
def test_float32_agrees_with_float64(x, held):
    exact, fit = (TWO.fit(data, fixed={held: TWO.values[held]}, restarts=1, **QUIET) for data in (x, x.float()))
    assert fit.model.loc.dtype == torch.float32 or fit.posterior.mean["loc"].dtype == torch.float32
    for name, value in exact.posterior.mean.items():
        assert_close(fit.posterior.mean[name].double(), value, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("held", ["loc", "precision"])
def test_what_is_free_has_intervals_and_a_summary(x, held):
    fit = TWO.fit(x, fixed={held: TWO.values[held]}, restarts=4, **QUIET)
    free = "precision" if held == "loc" else "loc"
    for correct in (True, False):
        lower, upper = fit.posterior.interval(0.9, n=200, correct=correct)
        assert_close(lower[held], TWO.values[held], rtol=1e-12, atol=1e-12)
        assert_close(upper[held], TWO.values[held], rtol=1e-12, atol=1e-12)
        assert bool((upper[free] > lower[free]).all())
        wide = upper[free] - lower[free]
        assert bool(((fit.posterior.mean[free] - lower[free]) / wide).sub(0.5).abs().max() < 0.5)
    assert fit.posterior.refined.reliable
    assert f"Held as given: {held}" in str(fit.summary())


@pytest.mark.parametrize("fixed", [{"redraw_intercept": 0.5}, {"redraw_weights": [-1.0, 0.5]}], ids=str)
def test_a_part_of_the_weights_of_inputs_can_be_held(fixed):
    model = sh.SwitchingSSM(sh.Copy(2, inputs=2), sh.Normal(1)).with_values(
        redraw_intercept=-1.0, redraw_weights=[1.0, 0.0], state_probs=[0.5, 0.5], loc=[[-3.0], [3.0]], scale=[[1.0]] * 2
    )
    inputs = numbers(300, 2, seed=6)
    x = model.simulate(300, seed=0, inputs=inputs).x
    held = {name: torch.as_tensor(value).double() for name, value in fixed.items()}
    fit = model.fit(x, fixed=held, restarts=1, inputs=inputs, **QUIET)
    assert fit.converged
    assert float(fit.objective.diff().min()) > -1e-9
    draws = fit.posterior.sample(50)
    for name, value in held.items():
        assert_close(draws[name], value.expand_as(draws[name]), rtol=0, atol=0)


@pytest.mark.slow
def test_gates_that_are_known_cost_the_bound_nothing():
    """Of one state, whatever its gates are, the evidence is that of the emission."""
    model, loc = sh.SwitchingSSM(sh.Copy(1, inputs=2), sh.Normal(1)), HELD["loc"][:1]
    prior = {"loc": LOC[None, :1], "count": torch.full((1, 1), KAPPA).double()}
    prior |= {"shape": torch.full((1, 1), DF / 2).double(), "rate": SCALE[:1, :1] / 2}
    fixed = {"redraw_intercept": 0.3, "redraw_weights": [0.5, -2.0], "loc": loc[None]}
    fit = model.fit(X[:, :1], prior=prior, restarts=1, fixed=fixed, inputs=numbers(N, 2), **QUIET)
    assert_close(fit.objective[-1], given_loc(X[:, :1], loc, LOC[:1], DF, SCALE[:1, :1])[1], rtol=1e-10, atol=0)
