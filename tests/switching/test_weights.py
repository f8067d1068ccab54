"""Weights of sequences and of steps: what they mean in inference, and in every fit."""

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from oracles.effort import effort
from oracles.models import (
    DYNAMICS,
    EMISSIONS,
    KINDS,
    drive,
    enumerated_by_pyro,
    every_path,
    random_model,
    trace_log_prob,
)
from samplehold.switching.fitting import ChainGraph, Density, Units, chunked
from torch.testing import assert_close

N = 4
POWER = torch.tensor([0.5, 2.0, 1.0, 0.3], dtype=torch.float64)
ODD = [("copy", "normal"), ("inputs", "gated"), ("markov", "full"), ("copy", "gated_tied_by_state")]


def data(dynamics, emission, n=20, batch=3, seed=2):
    given = drive(dynamics, (batch,), n)
    return random_model(dynamics, emission).simulate(n, (batch,), seed=seed, **given).x, given


def twice(table):
    """The first sequence twice."""
    return torch.cat([table, table[:1]])


# ---- steps -----------------------------------------------------------------------------------------------------------


def assert_same_rises(a, b):
    """Rounding decides at which step the rises end."""
    both = min(len(a), len(b))
    assert_close(a[:both], b[:both], rtol=1e-8, atol=1e-7)
    assert_close(a[-1], b[-1], rtol=1e-8, atol=1e-7)


@pytest.mark.few(6)
@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_a_weight_of_a_step_is_the_power_of_its_density(dynamics, emission):
    model, given = random_model(dynamics, emission), drive(dynamics, (), N)
    x = model.simulate(N, seed=1, **given).x
    paths, joint = every_path(model, x, POWER, **given)
    posterior = (joint - joint.logsumexp(0)).exp()
    smoothed = (torch.nn.functional.one_hot(paths, 2).double() * posterior[:, None, None]).sum(0)
    given["weights"] = POWER
    assert_close(model.log_evidence(x, **given), joint.logsumexp(0), rtol=1e-10, atol=1e-10)
    assert_close(model.smooth(x, **given).state, smoothed, rtol=1e-9, atol=1e-10)
    assert_close(model.viterbi(x, **given).log_probability, joint.max(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("dynamics", "emission"), [("copy", "normal"), ("inputs", "gated"), ("markov", "poisson")])
def test_both_programs_have_the_density_of_the_chain(dynamics, emission):
    model, batch = random_model(dynamics, emission), (3,)
    given = drive(dynamics, batch, N) | {"lengths": torch.tensor([N, 2, 3])}
    x = model.simulate(N, batch, seed=1, **drive(dynamics, batch, N)).x
    given["weights"] = torch.stack([POWER, POWER.flip(0), 2 * POWER])
    expected = model.log_evidence(x, **given)
    assert_close(trace_log_prob(model.collapsed, x, **given), expected.sum(), rtol=1e-12, atol=0)
    assert_close(enumerated_by_pyro(model, x, **given), expected.sum(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_a_step_of_weight_0_is_missing(method):
    x, _ = data("copy", "normal")
    weights = torch.ones(3, 20)
    weights[0, 3:6] = weights[2, 10] = 0
    missing = torch.where(weights[..., None] == 0, torch.nan, x)
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(2))
    a = model.fit(x, method, restarts=2, weights=weights, progress=False)
    b = model.fit(missing, method, restarts=2, progress=False)
    assert_close(a.model.values, b.model.values, rtol=1e-12, atol=1e-12)
    assert_close(a.objective, b.objective, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_a_series_may_begin_with_steps_of_weight_0_and_one_sequence_have_a_weight(method):
    x, _ = data("markov", "full")
    model = sh.SwitchingSSM(sh.Markov(2), sh.MultivariateNormal(2))
    fit = model.fit(x[0], method, restarts=1, weights=[0, 0, 0, *[1] * 17], progress=False)
    assert fit.converged
    once, again = (model.fit(x[0], method, restarts=1, weights=w, progress=False) for w in (None, 1.0))
    assert_close(once.model.values, again.model.values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("states", [None, True], ids=["free", "supervised"])
def test_em_weighs_moments_by_the_weights_of_steps(states):
    x = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.rand(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3
    path = torch.arange(50) % 2
    n_states = 2 if states else 1
    model = sh.SwitchingSSM(sh.Markov(n_states), sh.Normal(1))
    fit = model.fit(x, prior=None, weights=weights, progress=False, states=path if states else None)
    for state in range(n_states):
        some = path == state if states else path >= 0
        loc = (weights * x)[some].sum() / weights[some].sum()
        variance = (weights * (x - loc).square())[some].sum() / weights[some].sum()
        assert_close(fit.model.values["loc"][state, 0], loc, rtol=1e-9, atol=1e-9)
        assert_close(1 / fit.model.values["precision"][state, 0], variance, rtol=1e-9, atol=1e-9)


# ---- sequences -------------------------------------------------------------------------------------------------------


def test_the_evidence_of_a_sequence_has_no_weight_and_that_of_a_fit_has():
    x, _ = data("copy", "normal")
    model = random_model("copy", "normal")
    assert_close(model.log_evidence(x, weights=[2.0, 1.0, 0.5]), model.log_evidence(x), rtol=0, atol=0)
    assert_close(model.smooth(x, weights=[2.0, 1.0, 0.5]).state, model.smooth(x).state, rtol=0, atol=0)
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal(2)).fit(x, weights=[2.0, 1.0, 0.0], restarts=2, progress=False)
    each = fit.model.log_evidence(x)
    assert fit.loglik == pytest.approx(float(2 * each[0] + each[1]))


@pytest.mark.few(3)
@pytest.mark.parametrize(("dynamics", "emission"), ODD)
@pytest.mark.parametrize("prior", [True, False], ids=["prior", "maximum likelihood"])
def test_em_with_weight_2_is_em_with_the_sequence_twice(dynamics, emission, prior):
    x, given = data(dynamics, emission)
    blank = random_model(dynamics, emission)
    options = {"prior": blank.prior if prior else None, "start": blank, "restarts": 1, "max_steps": 25}
    a = blank.fit(x, weights=[2.0, 1.0, 1.0], progress=False, **options, **given)
    b = blank.fit(twice(x), progress=False, **options, **{name: twice(table) for name, table in given.items()})
    assert len(a.objective) > 3
    assert_same_rises(a.objective, b.objective)
    for name, value in b.model.values.items():
        assert_close(a.model.values[name], value, rtol=1e-5, atol=1e-6)
    assert a.loglik == pytest.approx(b.loglik, rel=1e-7)
    if not prior:
        assert (a.aic, a.bic) == pytest.approx((b.aic, b.bic), rel=1e-7)


@pytest.mark.few(2)
@pytest.mark.parametrize("factorization", ["structured", "mean_field"])
@pytest.mark.parametrize(("dynamics", "emission"), [("copy", "normal"), ("copy", "gated"), ("markov", "full")])
def test_message_passing_with_weight_2_is_that_of_the_sequence_twice(dynamics, emission, factorization):
    x, _ = data(dynamics, emission)
    blank = random_model(dynamics, emission)
    options = {
        "prior": blank.prior,
        "start": blank,
        "restarts": 1,
        "max_steps": 20,
        "tol": 1e-14,
        "factorization": factorization,
    }
    a = blank.fit(x, "vmp", weights=[2.0, 1.0, 1.0], progress=False, **options)
    b = blank.fit(twice(x), "vmp", progress=False, **options)
    n = min(len(a.objective), len(b.objective))  # one may reach the last digit before the other
    assert_close(a.objective[:n], b.objective[:n], rtol=1e-8, atol=1e-7)
    assert_close(a.objective[-1], b.objective[-1], rtol=1e-8, atol=1e-7)
    assert bool((a.objective.diff() >= -1e-8).all())
    for name, value in b.model.values.items():
        assert_close(a.model.values[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("factorization", ["structured", "mean_field"])
def test_the_engine_checks_weighted_paths_and_steps(factorization):
    x, _ = data("copy", "gated")
    model = random_model("copy", "gated")
    weights = torch.rand(3, 20, generator=torch.Generator().manual_seed(0)) * 2
    for some in (torch.tensor([2.0, 0.5, 0.0]), weights):
        graph = ChainGraph.of(model.problem(x, weights=some), factorization == "mean_field")
        engine = graph.engine(graph.start(2))  # tests every factor
        for _ in range(3):
            engine.sweep()  # raises an error if an update lowers the bound


@pytest.mark.few(4)
@pytest.mark.parametrize(("dynamics", "emission"), ODD)
@pytest.mark.parametrize("prior", ["weak", None])
@pytest.mark.parametrize("of_steps", [False, True], ids=["sequences", "steps"])
def test_em_never_lowers_the_weighted_objective(dynamics, emission, prior, of_steps):
    x, given = data(dynamics, emission)
    weights = torch.rand((3, 20) if of_steps else (3,), generator=torch.Generator().manual_seed(0)).double() * 2
    given |= {"weights": weights, "lengths": [20, 15, 3]}
    blank = sh.SwitchingSSM(DYNAMICS[dynamics], EMISSIONS[emission])
    fit = blank.fit(x, prior=prior, restarts=1, max_steps=20, progress=False, **given)
    assert bool((fit.objective.diff() >= -1e-9).all())
    height = fit.model.log_evidence(x, **given)
    height = height.sum() if of_steps else (height * weights).sum()
    if prior is not None:
        height = height + blank.scaled_to(x, **given).log_prior(fit.model.values)
    assert_close(fit.objective[-1], height, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("of_steps", [False, True], ids=["sequences", "steps"])
@pytest.mark.parametrize("method", ["em", "vmp"])
def test_packed_sequences_are_fitted_as_alone_in_their_groups(method, of_steps):
    """Sequences of weight 2 among packed ones, against lists with these sequences twice."""
    model = random_model("markov", "normal")
    long = model.simulate(60, seed=0).x
    parts = [long, long[:3], long[10:15], long[20:22], long[30:34]]
    if of_steps:
        weights = [torch.ones(len(part)) for part in parts]
        weights[0][20:40] = 0
        weights[2][1] = 0
        other = [part.masked_fill(w[:, None] == 0, torch.nan) for part, w in zip(parts, weights, strict=True)]
    else:
        weights, other = [1.0, 2.0, 1.0, 3.0, 1.0], [*parts, parts[1], parts[3], parts[3]]
    assert model.read(parts, weights=weights).packed
    options = {"prior": model.prior, "start": model, "restarts": 1, "max_steps": 15, "progress": False}
    a, b = model.fit(parts, method, weights=weights, **options), model.fit(other, method, **options)
    assert_same_rises(a.objective, b.objective)
    for name, value in b.model.values.items():
        assert_close(a.model.values[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("of_steps", [False, True], ids=["sequences", "steps"])
def test_chunks_and_stretches_give_the_bound_of_the_whole(monkeypatch, of_steps):
    x, _ = data("markov", "normal", n=40)
    model = random_model("markov", "normal")
    weights = torch.rand(3, 40).double() if of_steps else torch.tensor([2.0, 0.5, 0.0])
    graph = ChainGraph.of(model.problem(x, weights=weights))
    etas = graph.start(2)
    whole = chunked.engine_of(graph, etas)
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 40)
    for most in (10**6, 40):  # chunks of whole sequences, and parts of one sequence
        monkeypatch.setattr(chunked, "LONG", most)
        parts = chunked.ChunkedVMP(graph, etas, graph.linear(etas))
        assert_close(parts.elbo(), whole.elbo(), rtol=1e-9, atol=1e-8)
        for name in etas:
            assert_close(parts._now.messages[name], whole.message(name), rtol=1e-8, atol=1e-8)


def test_a_batch_weighs_its_sequences():
    x, _ = data("markov", "normal", n=15, batch=8)
    blank = random_model("markov", "normal")
    options = {"batch_size": 4, "max_steps": 5, "restarts": 1, "prior": blank.prior, "start": blank, "progress": False}
    a = blank.fit(x, "vmp", weights=torch.full((8,), 2.0), **options)
    whole = blank.fit(torch.cat([x, x]), "vmp", prior=blank.prior, start=blank, restarts=1, progress=False)
    plain = blank.fit(x, "vmp", prior=blank.prior, start=blank, restarts=1, progress=False)
    end = float(whole.objective[-1])
    assert float(a.objective[-1]) == pytest.approx(end, abs=0.2 * abs(end - float(plain.objective[-1])))


@pytest.mark.parametrize("of_steps", [False, True], ids=["sequences", "steps"])
def test_samplers_fit_the_weighted_density(of_steps):
    x, _ = data("copy", "normal")
    model = random_model("copy", "normal")
    weights = torch.rand((3, 20) if of_steps else (3,), generator=torch.Generator().manual_seed(0)).double() * 2
    problem, values = model.problem(x, weights=weights), model.values
    each = model.log_evidence(x, weights=weights)
    expected = (each.sum() if of_steps else (each * weights).sum()) + model.log_prior(values)
    assert_close(problem.objective(values), expected, rtol=1e-12, atol=1e-10)
    assert_close(
        trace_log_prob(model.collapsed, x, weights=weights), expected - model.log_prior(values), rtol=1e-12, atol=1e-10
    )
    units = Units.of(problem.emission, problem.series)
    scaled, volume = units.problem(problem), units.log_volume(problem.series).sum()
    evidence = scaled.objective(units.values(values)) - scaled.log_prior(units.values(values))
    assert_close(evidence - volume, expected - model.log_prior(values), rtol=1e-10, atol=1e-9)
    density = Density(problem, values)
    (gradient,) = density.gradient(density.point[None])
    step = 1e-6 * torch.randn(density.point.shape, generator=torch.Generator().manual_seed(1)).double()
    above, below = density.at(torch.stack([density.point + step, density.point - step]))
    assert_close((above - below) / 2, gradient @ step, rtol=1e-5, atol=1e-11)


@pytest.mark.few(1)
@pytest.mark.parametrize(("method", "steps"), [("svi", 200), ("nuts", 100)])
@pytest.mark.slow
def test_large_weights_make_the_posterior_narrow(method, steps):
    x = torch.randn(1, 30, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = sh.SwitchingSSM(sh.Markov(1), sh.Normal(1)).scaled_to(x)
    spread = []
    for weight in (1.0, 25.0):
        fit = model.fit(
            x, method, weights=[weight], prior=model.prior, restarts=1, progress=False, **effort(method, steps)
        )
        spread.append(float(fit.posterior.sample(500, 0)["loc"].std()))
    assert spread[0] / spread[1] == pytest.approx(5.0, rel=0.35)


def test_standard_errors_are_those_of_the_sequence_as_often():
    x, _ = data("markov", "normal", n=30)
    model = random_model("markov", "normal")
    options = {"prior": None, "restarts": 1, "start": model, "progress": False}
    a = model.fit(x, weights=[2.0, 2.0, 2.0], **options).summary().parameters
    b = model.fit(torch.cat([x, x]), **options).summary().parameters
    np.testing.assert_allclose(a["standard error"], b["standard error"], rtol=1e-3)


# ---- forms and errors ------------------------------------------------------------------------------------------------


def test_weights_have_the_form_of_x():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
    a, b = [0.0, 0.1, 0.2], [1.0, 1.1]
    of_sequences, of_steps = [2.0, 0.5], [[1.0, 2.0, 0.5], [3.0, 1.0]]
    index = pd.MultiIndex.from_tuples([(s, t) for s, n in (("a", 3), ("b", 2)) for t in range(n)], names=["who", "t"])
    frame = pd.DataFrame({"x": a + b, "w": of_steps[0] + of_steps[1]}, index=index)
    forms = (
        ([a, b], of_sequences, of_steps),
        ({"a": a, "b": b}, {"b": 0.5, "a": 2.0}, {"b": of_steps[1], "a": of_steps[0]}),
        (frame[["x"]], pd.Series({"b": 0.5, "a": 2.0}), frame["w"]),
        (frame[["x"]], {"b": 0.5, "a": 2.0}, frame["w"].to_numpy()),
        (frame[["x"]], of_sequences, of_steps),
    )
    for x, weights, powers in forms:
        read = model.read(x, weights=weights)
        assert read.weights.tolist() == of_sequences
        assert read.step_weights is None
        read = model.read(x, weights=powers)
        assert read.weights is None
        assert read.step_weights.tolist() == [[1.0, 2.0, 0.5], [3.0, 1.0, 1.0]]
    rows = model.read(a + b, lengths=[3, 2], weights=of_steps[0] + of_steps[1])
    assert rows.step_weights.tolist() == [[1.0, 2.0, 0.5], [3.0, 1.0, 1.0]]
    assert model.read(a + b, lengths=[3, 2], weights=of_sequences).weights.tolist() == of_sequences
    alone = model.read(a, weights=2.0)
    assert float(alone.weights) == 2.0
    assert model.read(a, weights=of_steps[0]).step_weights.tolist() == of_steps[0]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -1.0], "weights: got -1 at sequence 1; expected finite weights of at least 0"),
        ([1.0, float("nan")], "weights: got nan at sequence 1"),
        ([0.0, 0.0], "weights: got only zeros"),
        ([1.0, 1.0, 1.0], r"weights: got shape \(3,\), expected \(2,\), a weight of each sequence, or \(2, 3\)"),
        ([[1.0, 1.0, float("inf")], [1.0, 1.0, 1.0]], "weights: got inf at sequence 0, step 2"),
        (torch.ones(2, 3, 1), r"weights: got shape \(2, 3, 1\)"),
        ("2", "weights: got str"),
    ],
)
def test_bad_weights_are_named(weights, message):
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
    with pytest.raises((ValueError, TypeError), match=message):
        model.read(torch.zeros(2, 3, 1), weights=weights)


def test_draws_and_the_explicit_program_refuse_what_has_no_meaning():
    model = random_model("copy", "normal")
    x = model.simulate(N, (2,), seed=0).x
    with pytest.raises(ValueError, match="weights: was given without x, but draws have no weights; leave it out"):
        model.simulate(3, weights=[1.0, 2.0, 1.0])
    with pytest.raises(ValueError, match="weights: was given for sequences, but a single path has no weight"):
        model(x, weights=[1.0, 2.0])
    with pytest.raises(ValueError, match="weights: was given, but this filter does not support it; leave it out"):
        sh.filter_vmp(model, x, weights=[1.0, 2.0])
    with pytest.raises(ValueError, match="weights: was given, but a LinearSSM does not support it; leave it out"):
        sh.LinearSSM(1, 1).read(x[..., :1], weights=[1.0, 2.0])
