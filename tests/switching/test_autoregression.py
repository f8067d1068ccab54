"""Autoregressive emissions: densities, fits, simulations and forecasts."""

import itertools
import math

import numpy as np
import pandas as pd
import pyro
import pytest
import samplehold as sh
import torch
from examples import slow
from oracles.models import enumerate_evidence, enumerated_by_pyro, trace_log_prob
from oracles.streams import assert_stream_is_filter
from samplehold import Emission
from samplehold.switching.emissions.driven import rows_read
from samplehold.switching.emissions.lagged import parts_of
from torch.testing import assert_close

PARTS = ("intercept", "coefficients", "scale")
SUBSETS = [some for n in (1, 2) for some in itertools.combinations(PARTS, n)]
KINDS = {
    "one": sh.AutoRegressive(1),
    "two lags": sh.AutoRegressive(2),
    "vector": sh.AutoRegressive(2, 2),
    "own": sh.AutoRegressive(2, 2, lags="own"),
    "inputs": sh.AutoRegressive(1, 2, inputs=["a", "b"]),
    "own and inputs": sh.AutoRegressive(2, 2, inputs="b", lags="own"),
    "scale": sh.AutoRegressive(1, 2, switching="scale"),
    "coefficients": sh.AutoRegressive(2, switching=["coefficients"]),
}
DYNAMICS = {"copy": sh.Copy(2), "markov": sh.Markov(2), "driven": sh.Markov(2, inputs=["a"])}
CASES = [("markov", kind) for kind in KINDS] + [("copy", "one"), ("driven", "inputs"), ("copy", "own and inputs")]


def model_of(dynamics: str, emission: sh.AutoRegressive, seed: int = 0) -> sh.SwitchingSSM:
    """A model whose lags have coefficients that sum to less than 1."""
    model, generator = sh.SwitchingSSM(DYNAMICS[dynamics], emission), torch.Generator().manual_seed(seed)
    sizes, values = {"state": 2, "state_new": 2, "shared": 1} | model.sizes, {}
    for name, parameter in model.known.items():
        table = torch.randn([sizes[dim] for dim in parameter.dims], generator=generator, dtype=torch.float64)
        values[name] = table
        if name.endswith("_probs"):
            values[name] = table.softmax(-1)
        elif name.endswith("_prob"):
            values[name] = table.sigmoid()
        elif name == "precision":
            values[name] = table.exp()
        elif name == "coefficients":
            values[name] = table / table.abs().sum(-1, keepdim=True).clamp_min(1.2)
        elif name == "transition_weights":
            values[name] = table * (1 - torch.eye(2, dtype=torch.float64)).unsqueeze(-1)
    return model.with_values(values)


def given_of(model: sh.SwitchingSSM, n_steps: int, seed: int = 0) -> dict:
    generator = torch.Generator().manual_seed(seed)
    table = {name: torch.randn(n_steps, generator=generator, dtype=torch.float64) for name in "ab"}
    return {"inputs": {name: table[name] for name in model.inputs}} if model.n_inputs else {}


def log_density(model: sh.SwitchingSSM, x: torch.Tensor, t: int, state: int, u: torch.Tensor) -> torch.Tensor:
    """log p(x_t | s, earlier observations) by its formula; 0 of a feature whose lags are missing."""
    emission, values, total = model.emission, model.values, torch.zeros((), dtype=x.dtype)
    for f in range(emission.n_features):
        row = {n: values[n][min(state, len(values[n]) - 1), f] for n in ("loc", "coefficients", "precision")}
        own = emission.lags == "own"
        lags = [x[t - lag, f : f + 1] if own else x[t - lag] for lag in range(1, emission.order + 1) if t >= lag]
        if len(lags) < emission.order or bool(torch.cat([*lags, x[t, f : f + 1]]).isnan().any()):
            continue
        mean = row["loc"] + row["coefficients"] @ torch.cat([*lags, u])
        total = total + torch.distributions.Normal(mean, row["precision"].rsqrt()).log_prob(x[t, f])
    return total


def naive_evidence(model: sh.SwitchingSSM, x: torch.Tensor, inputs: dict | None = None) -> torch.Tensor:
    """log p(x) of a Markov chain as the sum over all paths."""
    start, moves, terms = model.values["initial_probs"], model.values["transition_probs"], []
    names = model.emission.inputs or ()
    u = torch.stack([inputs[name] for name in names], -1) if inputs else x.new_empty(len(x), 0)
    table = torch.stack([torch.stack([log_density(model, x, t, s, u[t]) for s in range(2)]) for t in range(len(x))])
    for path in itertools.product(range(2), repeat=len(x)):
        term = start[path[0]].log() + sum(moves[i, j].log() for i, j in itertools.pairwise(path))
        terms.append(term + sum(table[t, s] for t, s in enumerate(path)))
    return torch.stack(terms).logsumexp(0)


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", KINDS)
def test_the_evidence_is_the_sum_over_all_paths_of_the_formula(kind):
    model = model_of("markov", KINDS[kind])
    given = given_of(model, 6)
    x = model.simulate(6, seed=1, **given).x
    for missing in (None, (1, 0), (4, -1)):
        if missing is not None:
            x[missing] = torch.nan
        assert_close(model.log_evidence(x, **given), naive_evidence(model, x, **given), rtol=1e-10, atol=1e-12)


@pytest.mark.few(4)
@pytest.mark.parametrize(("dynamics", "kind"), CASES)
def test_the_evidence_is_the_density_of_the_program(dynamics, kind):
    model = model_of(dynamics, KINDS[kind])
    given = given_of(model, 4)
    x = model.simulate(4, seed=1, **given).x
    x[1, 0] = torch.nan
    before = {"before": torch.randn(model.order, model.n_features, dtype=torch.float64)}
    for some in (given, given | before):
        expected = enumerate_evidence(model, x, **some)
        assert_close(model.log_evidence(x, **some), expected, rtol=1e-10, atol=1e-12)
        assert_close(trace_log_prob(model.collapsed, x, **some), expected, rtol=1e-10, atol=1e-12)
    assert_close(enumerated_by_pyro(model, x[None], inputs=_batched(given)), model.log_evidence(x, **given))


def _batched(given: dict) -> dict | None:
    return {name: table[None] for name, table in given["inputs"].items()} if given else None


def test_the_gradient_of_the_evidence_is_that_of_the_formula():
    model = model_of("markov", KINDS["vector"])
    x = model.simulate(6, seed=1).x
    slopes = []
    for evidence in (lambda m: m.log_evidence(x), lambda m: naive_evidence(m, x)):
        values = {name: value.clone().requires_grad_() for name, value in model.values.items()}
        height = evidence(model._copy(values))
        slopes.append(torch.autograd.grad(height, [values[n] for n in ("loc", "coefficients", "precision")]))
    for ours, theirs in zip(*slopes, strict=True):
        assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.few(3)
@pytest.mark.parametrize(("dynamics", "kind"), CASES)
def test_sequences_of_several_lengths_are_those_alone(dynamics, kind):
    model, lengths = model_of(dynamics, KINDS[kind]), [40, 3, 90, 1, 2]
    given = [given_of(model, n, seed=n) for n in lengths]
    parts = [model.simulate(n, seed=n, **one).x for n, one in zip(lengths, given, strict=True)]
    columns = {"inputs": {n: [one["inputs"][n] for one in given] for n in model.inputs}} if model.n_inputs else {}
    series = model.read(parts, **columns)
    assert series.packed
    alone = torch.stack([model.log_evidence(x, **one) for x, one in zip(parts, given, strict=True)])
    assert_close(model.log_evidence(series), alone, rtol=1e-12, atol=0)
    long = model.read(parts[:1] + parts[2:3] + [parts[2][:7]], **_only(columns, (0, 2, 2), 7))
    conjugate = model.emission.is_conjugate and dynamics != "driven"
    for method in ("em", "vmp") if conjugate else ("em", "svi"):
        fit = model.without_values().fit(long, method, restarts=1, max_steps=3, progress=False)
        assert bool(fit.objective.isfinite().all())


def _only(columns: dict, places: tuple, last: int) -> dict:
    if not columns:
        return {}
    some = {name: [tables[i] for i in places] for name, tables in columns["inputs"].items()}
    return {"inputs": {name: [*tables[:-1], tables[-1][:last]] for name, tables in some.items()}}


def test_a_fit_in_groups_of_similar_length_is_that_of_the_padded_batch():
    model = model_of("markov", KINDS["two lags"])
    parts = [model.simulate(n, seed=n).x for n in (20, 70, 300)]
    padded = torch.nn.utils.rnn.pad_sequence(parts, True, padding_value=torch.nan)
    lengths = torch.tensor([20, 70, 300])
    blank = model.without_values()
    for method in ("em", "vmp"):
        fits = [
            blank.fit(x, method, restarts=1, max_steps=5, progress=False, start=model, **given)
            for x, given in ((parts, {}), (padded, {"lengths": lengths}))
        ]
        assert_close(fits[0].objective[:3], fits[1].objective[:3], rtol=1e-9, atol=1e-7)


# ---- fits ------------------------------------------------------------------------------------------------------------


def test_maximum_likelihood_of_one_state_is_least_squares():
    model = model_of("markov", KINDS["inputs"])
    given = given_of(model, 60)
    x = 1e4 + model.simulate(60, seed=1, **given).x
    u = torch.stack([given["inputs"]["a"], given["inputs"]["b"]], -1)
    fit = sh.SwitchingSSM(sh.Markov(1), KINDS["inputs"]).fit(x, prior=None, restarts=1, progress=False, **given)
    centred = x - 1e4
    design = torch.cat([torch.ones(59, 1).to(x), centred[:-1], u[1:]], 1).numpy()
    numbers, squares, *_ = np.linalg.lstsq(design, centred[1:].numpy(), rcond=None)
    lags = numbers[1:3].T
    np.testing.assert_allclose(fit.model.values["coefficients"][0], numbers[1:].T, rtol=1e-7)
    np.testing.assert_allclose(fit.model.values["loc"][0], numbers[0] + 1e4 - 1e4 * lags.sum(1), rtol=1e-8)
    np.testing.assert_allclose(1 / fit.model.values["precision"][0], squares / 59, rtol=1e-7)
    height = -59 / 2 * (np.log(2 * math.pi * squares / 59) + 1).sum()
    assert float(fit.objective[-1]) == pytest.approx(height, rel=1e-10)


@pytest.mark.parametrize("prior", [None, "weak"])
def test_data_far_from_zero_cost_no_digits_without_a_free_origin(prior):
    x = model_of("markov", KINDS["one"]).simulate(200, seed=1).x
    model = sh.SwitchingSSM(sh.Markov(1), sh.AutoRegressive(1, switching=["coefficients"]))
    far, near = (model.fit(x + a, prior=prior, restarts=1, progress=False) for a in (1e5, 0.0))
    assert_close(far.model.values["coefficients"], near.model.values["coefficients"], rtol=0, atol=1e-6)
    assert far.loglik == pytest.approx(near.loglik, abs=1e-6)


@pytest.mark.parametrize("kind", ["two lags", "own and inputs"])
def test_message_passing_in_one_state_gives_the_evidence_of_bayesian_regression(kind):
    model = model_of("markov", KINDS[kind])
    given = given_of(model, 30)
    x = 5 + model.simulate(30, seed=1, **given).x
    fit = sh.SwitchingSSM(sh.Markov(1), KINDS[kind]).fit(x, "vmp", restarts=1, max_steps=4, progress=False, **given)
    prior, rows = fit.model.prior, rows_read(fit.model.emission, fit.model.read(x, **given))
    seen = rows[..., : model.n_features]
    design = torch.nn.functional.pad(fit.model.emission.by_feature(rows[..., model.n_features :]), (1, 0), value=1.0)
    total = 0.0
    for f in range(model.n_features):
        here = ~seen[:, f].isnan()
        d, y = design[here, min(f, design.shape[1] - 1)].numpy(), seen[here, f].numpy()
        m0, kappa, shape, rate = (float(prior[n][0, f]) for n in ("loc", "count", "shape", "rate"))
        center = prior.get("inputs_center", np.zeros(0))
        lags = np.concatenate([[1.0], np.full(fit.model.emission.n_lags, m0), center])
        precision = kappa * np.outer(lags, lags) + np.diag(np.append(0.0, prior["coefficients_count"][0, f]))
        mean = np.append(m0, np.zeros(d.shape[1] - 1))
        spread = np.eye(len(y)) + d @ np.linalg.solve(precision, d.T)
        square = (y - d @ mean) @ np.linalg.solve(spread, y - d @ mean)
        student = math.lgamma(shape + len(y) / 2) - math.lgamma(shape) - len(y) / 2 * math.log(2 * math.pi * rate)
        total += student - np.linalg.slogdet(spread)[1] / 2 - (shape + len(y) / 2) * math.log1p(square / (2 * rate))
    assert float(fit.objective[-1]) == pytest.approx(total, rel=1e-9)


@pytest.mark.few(3)
@pytest.mark.parametrize("switching", [*SUBSETS, PARTS])
def test_an_m_step_is_a_maximum_of_the_expected_density(switching):
    model = model_of("markov", sh.AutoRegressive(2, 2, inputs=["a"], switching=switching))
    given = given_of(model, 50)
    x = model.simulate(50, seed=1, **given).x
    problem = model.scaled_to(model.read(x, **given)).problem(x, **given)
    emission, rows = model.emission, rows_read(model.emission, problem.series)
    weights = torch.rand(2, 50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    near = {n: model.values[n].expand(2, *model.values[n].shape) for n in emission.parameters}
    for prior in (problem.prior, None):
        values = near
        for _ in range(40):  # of shared coefficients and precisions in turn
            best = emission.maximize(rows, weights, values, prior, torch.zeros(2, dtype=torch.float64))
            before, values = _height(emission, rows, weights, values, prior), best.values
            assert bool((_height(emission, rows, weights, values, prior) >= before - 1e-9).all())
        free = {name: value.clone().requires_grad_() for name, value in values.items()}
        slopes = torch.autograd.grad(_height(emission, rows, weights, free, prior).sum(), [*free.values()])
        assert max(float(slope.abs().max()) for slope in slopes) < 1e-5


def _height(emission: Emission, rows, weights, values, prior):
    total = (weights * emission.table(rows, values)).sum((-2, -1))
    return total if prior is None else total + sum(_density(site, values) for site in emission.sites(prior))


def _density(site, values):
    if site.density is not None:
        return site.density(values)
    return site.distribution(values).log_prob(values[site.name])


@pytest.mark.parametrize("switching", [PARTS, ("scale",), ("intercept", "scale")])
def test_the_objective_is_the_density_of_the_program(switching):
    model = model_of("markov", sh.AutoRegressive(1, 2, switching=switching))
    x = 3 + model.simulate(80, seed=1).x
    fit = model.without_values().fit(x, restarts=1, max_steps=20, progress=False)
    program = pyro.condition(lambda: fit.model.without_values().collapsed(x), data=fit.model.values)
    assert float(pyro.poutine.trace(program).get_trace().log_prob_sum()) == pytest.approx(float(fit.objective[-1]))


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_a_fixed_intercept_stays(method):
    model = model_of("markov", KINDS["one"])
    x = 10 + model.simulate(100, seed=1).x
    if method == "vmp":
        with pytest.raises(TypeError, match=r"fixed: got loc, but message passing holds all"):
            model.without_values().fit(x, method, fixed={"loc": [[0.0], [0.0]]}, progress=False)
        return
    fit = model.without_values().fit(x, method, restarts=1, max_steps=20, fixed={"loc": [[0.0], [0.0]]}, progress=False)
    assert fit.model.values["loc"].tolist() == [[0.0], [0.0]]


def test_simulations_are_recovered():
    values = {"initial_probs": [0.5, 0.5], "transition_probs": [[0.95, 0.05], [0.05, 0.95]]}
    values |= {"loc": [[0.5, 0.0], [0.0, 0.0]], "scale": [[0.5, 0.5], [1.0, 1.0]]}
    values["coefficients"] = [[[0.8, 0.3], [-0.3, 0.8]], [[-0.5, 0.0], [0.0, 0.5]]]
    model = sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(1, 2)).with_values(values)
    drawn = model.simulate(800, seed=0)
    fit = model.without_values().fit(drawn.x, restarts=1, progress=False, start=model)
    order = fit.model.values["coefficients"][:, 0, 0].argsort(descending=True)
    assert_close(fit.model.values["coefficients"][order], model.values["coefficients"], rtol=0, atol=0.15)
    agree = (fit.model.viterbi(drawn.x).path == order[drawn.path]).double().mean()
    assert max(float(agree), 1 - float(agree)) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("method", ["svi", "nuts"])
def test_samplers_have_posteriors_near_the_mode(method):
    model = model_of("markov", sh.AutoRegressive(1, switching=("coefficients", "scale")))
    x = model.simulate(60, seed=1).x
    options = {"num_samples": 10, "warmup_steps": 15} if method == "nuts" else {"max_steps": 150}
    fit = model.without_values().fit(x, method, restarts=2, progress=False, **options)
    assert set(fit.posterior.mean) == set(model.known)
    assert fit.forecast(3).mean.isfinite().all()
    assert fit.posterior.forecast(x, 3, draws=20).variance.min() > 0


# ---- simulations, streams, forecasts ---------------------------------------------------------------------------------


def test_a_simulation_continues_the_observations_before_it():
    values = {"initial_probs": [1.0, 0.0], "transition_probs": [[1.0, 0.0], [0.0, 1.0]]}
    values |= {"loc": [[1.0], [0.0]], "coefficients": [[[0.5, 0.25]], [[0.0, 0.0]]], "scale": [[1e-9], [1.0]]}
    model = sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(2)).with_values(values)
    x = model.simulate(4, before=[100.0, 200.0], seed=0).x[:, 0]
    expected, lags = [], [200.0, 100.0]
    for _ in range(4):
        expected.append(1 + 0.5 * lags[0] + 0.25 * lags[1])
        lags = [expected[-1], lags[0]]
    assert_close(x, torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=0)
    alone = model.simulate(3, (2,), seed=0).x
    assert_close(alone, torch.full_like(alone, 4.0), rtol=1e-7, atol=0)  # the constant series of the first state
    assert_close(model(n_steps=3)[:, 0], torch.full((3,), 4.0).double(), rtol=1e-7, atol=0)


@pytest.mark.parametrize(("dynamics", "kind"), CASES[:2] + CASES[-2:])
def test_a_stream_keeps_the_lags(dynamics, kind):
    model = model_of(dynamics, KINDS[kind])
    given = given_of(model, 12)
    x = model.simulate(12, seed=1, **given).x
    x[5, 0] = torch.nan
    beside = {"inputs": torch.stack([*given["inputs"].values()], -1)} if given else {}
    assert_stream_is_filter(model, x, "log_increment", "state", rtol=1e-10, atol=1e-12, **beside)


def test_observations_before_the_first_step_make_all_steps_count():
    model = model_of("markov", KINDS["vector"])
    x = model.simulate(20, seed=1).x
    whole, rest = model.filter(x), model.filter(x[2:], before=x[:2])
    assert_close(whole.log_increment[:2], torch.zeros(2).double(), rtol=0, atol=1e-12)
    assert bool((rest.log_increment != 0).all())
    one = model_of("markov", KINDS["vector"]).with_values(
        model.values | {"initial_probs": whole.state[1] @ model.values["transition_probs"]}
    )
    assert_close(one.log_evidence(x[2:], before=x[:2]), whole.log_normalizer, rtol=1e-10, atol=0)
    several = model.log_evidence([x[2:], x[5:]], before=[x[:2], x[:5]])
    assert_close(several[0], rest.log_normalizer, rtol=1e-12, atol=0)
    assert_close(several[1], model.log_evidence(x[5:], before=x[3:5]), rtol=1e-12, atol=0)


def test_a_stream_starts_after_observations_before_it():
    model = model_of("markov", KINDS["vector"])
    x = model.simulate(9, (2,), seed=1).x
    for before in (x[:, :2], x[:, 1:2]):
        state, filtered = model.start((2,), before=before), model.filter(x[:, 2:], before=before)
        for t in range(2, 9):
            state, _ = model.update(state, x[:, t])
        assert_close(state.log_evidence, filtered.log_normalizer, rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match=r"before: got shape \(3, 2\), expected \(2, 2, 2\)"):
        model.start((2,), before=x[0, :3])
    with pytest.raises(ValueError, match="before: was given, but no part of the model"):
        sh.SwitchingSSM(sh.Copy(1), sh.Normal()).with_values(
            loc=[[0]], scale=[[1]], redraw_prob=0.5, state_probs=[1]
        ).start(before=[0.0])


def test_what_counts_steps_leaves_those_without_density_out():
    model = model_of("markov", sh.AutoRegressive(1, 2, lags="own"))
    x = model.simulate(50, (2,), seed=1).x
    x[0, 10, 0] = torch.nan
    fit = model.without_values().fit(x, restarts=1, max_steps=3, progress=False)
    assert fit.bic == pytest.approx(math.log(98) * fit.n_parameters - 2 * fit.loglik)
    data = fit.to_arviz(draws=2)
    observed, ahead = (data[group].x.notnull().values for group in ("observed_data", "posterior_predictive"))
    assert (~observed).sum() == 2  # the missing value and the one after it, of 98 steps
    assert ahead[..., observed].all()


def test_observations_before_the_first_step_take_every_plain_form():
    one, two = model_of("markov", KINDS["one"]), model_of("markov", sh.AutoRegressive(1, 2))
    x = two.simulate(6, seed=1).x
    parts, firsts = [x[:, 0], x[:3, 0]], [[[1.0]], [[2.0]]]
    expected = [one.log_evidence(part, before=first) for part, first in zip(parts, firsts, strict=True)]
    for before in (1.0, [1.0], torch.tensor(1.0)):
        assert_close(one.log_evidence(parts[0], before=before), expected[0], rtol=0, atol=0)
    for before in ([[1.0], [2.0]], firsts, [[1.0], [5.0, 2.0]], [torch.tensor([1.0]), torch.tensor([2.0])]):
        assert_close(one.log_evidence(parts, before=before), torch.stack(expected), rtol=1e-12, atol=0)
    assert_close(two.log_evidence(x[1:], before=x[0]), two.log_evidence(x[1:], before=x[:1]), rtol=0, atol=0)
    several = two.log_evidence([x[1:], x[2:]], before=[x[0], x[1]])
    assert_close(several[1], two.log_evidence(x[2:], before=x[1:2]), rtol=1e-12, atol=0)
    for before, text in (([1.0, 2.0, 3.0], "before: got shape"), ([x[0], x[1, 0]], r"before\[1\]: got shape \(\)")):
        with pytest.raises(ValueError, match=text):
            two.log_evidence([x[1:], x[2:]], before=before)


def future_moments(model: sh.SwitchingSSM, x: torch.Tensor, horizon: int, u: torch.Tensor) -> list[torch.Tensor]:
    """Means and variances of the last step to come, from the normal of every path of states."""
    emission, values, belief = model.emission, model.values, model.filter(x, **_inputs_of(model, u, len(x))).state[-1]
    n, p = emission.n_features, emission.order
    matrices = emission.lag_matrices(values)
    weights, means, squares = [], [], []
    for path in itertools.product(range(2), repeat=horizon + 1):
        weight = belief[path[0]]
        for i, j in itertools.pairwise(path):
            weight = weight * model.values["transition_probs"][i, j]
        mean, covariance = x[-p:].flip(0).flatten(), torch.zeros(n * p, n * p).double()
        for step, s in enumerate(path[1:]):
            row = {name: values[name][min(s, len(values[name]) - 1)] for name in ("loc", "coefficients", "precision")}
            constant = row["loc"] + row["coefficients"][:, emission.n_lags :] @ u[len(x) + step]
            shift = torch.eye(n * p).double()[: n * (p - 1)]
            companion = torch.cat([matrices[min(s, len(matrices) - 1)], shift])
            noise = torch.zeros_like(covariance)
            noise[:n, :n] = torch.diag(1 / row["precision"])
            mean = companion @ mean + torch.cat([constant, constant.new_zeros(n * (p - 1))])
            covariance = companion @ covariance @ companion.T + noise
        weights.append(weight)
        means.append(mean[:n])
        squares.append(covariance.diagonal()[:n] + mean[:n].square())
    weight = torch.stack(weights).unsqueeze(-1)
    first, second = (weight * torch.stack(means)).sum(0), (weight * torch.stack(squares)).sum(0)
    return [first, second - first.square()]


def _inputs_of(model: sh.SwitchingSSM, u: torch.Tensor, n: int) -> dict:
    return {"inputs": u[:n]} if model.n_inputs else {}


@pytest.mark.parametrize("kind", ["one", slow("vector"), "own and inputs", "coefficients"])
def test_means_and_variances_of_forecasts_are_those_of_all_paths(kind):
    model, horizon = model_of("markov", KINDS[kind]), 4
    u = torch.randn(30 + horizon, model.n_inputs, generator=torch.Generator().manual_seed(0)).double()
    x = model.simulate(30, seed=1, **_inputs_of(model, u, 30)).x
    forecast = model.forecast(x, horizon, **_inputs_of(model, u, 30 + horizon))
    for h in range(1, horizon + 1):
        mean, variance = future_moments(model, x, h, u)
        assert_close(forecast.mean[h - 1], mean, rtol=1e-9, atol=1e-9)
        assert_close(forecast.variance[h - 1], variance, rtol=1e-9, atol=1e-9)
    error = 5 * (forecast.variance / 2000).sqrt()
    assert bool(((forecast.observation.mean - forecast.mean).abs() < error).all())
    both = model.forecast(torch.stack([x, x]), horizon, **_inputs_of(model, torch.stack([u, u]), 30 + horizon))
    assert_close(both.one(1).mean, forecast.mean, rtol=1e-9, atol=1e-9)


def test_quantiles_of_forecasts_are_those_of_simulations():
    model = model_of("markov", KINDS["two lags"])
    x = model.simulate(30, seed=1).x
    ends = model.forecast(x, 3, seed=1, draws=4000).interval(0.8)
    belief = model.filter(x).state[-1] @ model.values["transition_probs"]
    after = model.with_values(model.values | {"initial_probs": belief})
    drawn = after.simulate(3, (4000,), before=x[-2:].expand(4000, -1, -1), seed=2).x
    for end, share in ((ends.lower, 0.1), (ends.upper, 0.9)):
        assert_close((drawn <= end).double().mean(0), torch.full((3, 1), share).double(), rtol=0, atol=0.04)


def test_a_forecast_after_a_gap_continues_from_before_it():
    model = model_of("copy", KINDS["own and inputs"])
    u = {"b": torch.randn(24, generator=torch.Generator().manual_seed(0)).double()}
    x = model.simulate(20, seed=1, inputs={"b": u["b"][:20]}).x
    gap = x.clone()
    gap[-3:] = torch.nan
    forecast, before = model.forecast(gap, 4, inputs=u), model.forecast(x[:17], 7, inputs=u)
    assert_close(forecast.mean, before.mean[3:], rtol=1e-10, atol=1e-10)
    assert_close(forecast.variance, before.variance[3:], rtol=1e-10, atol=1e-10)
    both = model.forecast(torch.stack([x, gap]), 4, inputs={"b": torch.stack([u["b"], u["b"]])})
    assert_close(both.mean[1], forecast.mean, rtol=1e-10, atol=1e-10)
    assert_close(both.mean[0], model.forecast(x, 4, inputs=u).mean, rtol=1e-10, atol=1e-10)


def flat_model(order: int, n_features: int, probs, loc: list, coefficients: list, lags: str = "all") -> sh.SwitchingSSM:
    """A model of two states with scales of 1."""
    values = {"initial_probs": [0.5, 0.5], "transition_probs": probs, "loc": loc, "coefficients": coefficients}
    emission = sh.AutoRegressive(order, n_features, lags=lags)
    return sh.SwitchingSSM(sh.Markov(2), emission).with_values(values | {"scale": torch.ones(2, n_features)})


def assert_drawn(forecast, mean: torch.Tensor, variance: torch.Tensor) -> None:
    """The exact moments of a forecast are these, and those of its draws agree with them."""
    assert_close(forecast.mean, mean, rtol=1e-10, atol=1e-10)
    assert_close(forecast.variance, variance, rtol=1e-10, atol=1e-10)
    assert bool(((forecast.observation.mean - mean).abs() < 6 * (variance / 4000).sqrt()).all())


def test_a_forecast_uses_known_states_after_the_last_observation():
    moves = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
    model = flat_model(1, 1, moves, [[0.0], [4.0]], [[[0.5]], [[0.5]]])
    x = torch.tensor([1.0, 2.0, torch.nan, torch.nan], dtype=torch.float64)
    for states, path in (([-1, -1, 0, 1], (0.0, 4.0)), ([-1, -1, 1, 1], (4.0, 4.0)), ([-1, -1, 1, 0], (4.0, 0.0))):
        probs = moves[states[-1]]
        last = 0.5 * (0.5 * 2.0 + path[0]) + path[1]
        mean = 0.5 * last + 4 * probs[1]
        variance = 1 + 0.25 + 0.25**2 + 16 * probs[0] * probs[1]
        forecast = model.forecast(x, 1, states=states, draws=4000, seed=0)
        assert_drawn(forecast, mean.reshape(1, 1), variance.reshape(1, 1))
    both = torch.stack([x, x.nan_to_num(3.0)]).unsqueeze(-1)
    batch = model.forecast(both, 1, states=[states, states], seed=0)
    assert_close(batch.mean[0], forecast.mean, rtol=1e-10, atol=0)
    alone = model.forecast(x.nan_to_num(3.0), 1, states=states)
    assert_close(batch.mean[1], alone.mean, rtol=1e-10, atol=0)


def test_draws_after_a_gap_follow_paths_between_known_states():
    model = flat_model(1, 1, [[0.5, 0.5], [0.0, 1.0]], [[0.0], [9.0]], [[[0.5]], [[0.5]]])
    x = torch.tensor([0.0, torch.nan, torch.nan], dtype=torch.float64)
    forecast = model.forecast(x, 1, states=[0, -1, 0], draws=4000, seed=0)  # so 0 throughout
    assert_drawn(forecast, torch.full((1, 1), 4.5).double(), torch.full((1, 1), 1 + 1 / 4 + 1 / 16 + 81 / 4).double())


def test_a_forecast_uses_the_observations_after_a_gap():
    one = [[1.0, 0.0], [0.0, 1.0]]
    model = flat_model(2, 1, one, [[1.0], [1.0]], [[[0.5, 0.25]]] * 2)
    x = torch.tensor([4.0, 2.0, torch.nan, 6.0], dtype=torch.float64)
    missing = 1 + 0.5 * 2.0 + 0.25 * 4.0  # of variance 1
    first = 1 + 0.5 * 6.0 + 0.25 * missing
    means = torch.tensor([[first], [1 + 0.5 * first + 0.25 * 6.0]], dtype=torch.float64)
    noise = 1 + 1 / 16
    assert_drawn(model.forecast(x, 2, draws=4000, seed=0), means, torch.tensor([[noise], [1 + noise / 4]]).double())
    own = flat_model(1, 2, one, [[1.0, 2.0]] * 2, [[[0.5], [0.25]]] * 2, lags="own")
    y = torch.tensor([[2.0, 4.0], [torch.nan, 8.0], [torch.nan, 12.0]], dtype=torch.float64)
    mean = torch.tensor([[0.5 * (0.5 * (0.5 * 2.0 + 1) + 1) + 1, 0.25 * 12.0 + 2]], dtype=torch.float64)
    assert_drawn(own.forecast(y, 1, draws=4000, seed=0), mean, torch.tensor([[1 + 1 / 4 + 1 / 16, 1.0]]).double())


# ---- results ---------------------------------------------------------------------------------------------------------


def test_results_name_the_lags(tmp_path):
    model = model_of("markov", KINDS["inputs"])
    given = given_of(model, 40)
    x = model.simulate(40, seed=1, **given).x
    fit = model.without_values().fit(x, restarts=1, max_steps=5, progress=False, **given)
    rows = fit.summary().parameters.index
    assert "coefficients[0, 1, lag 1 of 0]" in rows
    assert "coefficients[1, 0, b]" in rows
    data = fit.to_arviz(draws=2)
    assert data.log_density.x.shape[-1] == 39
    assert bool(data.replicated.x.notnull().all())
    fit.model.save(tmp_path / "model")
    again = sh.SwitchingSSM.load(tmp_path / "model")
    assert again.emission == model.emission
    assert_close(again.log_evidence(x, **given), fit.model.log_evidence(x, **given))
    fit.plot()
    fit.plot_effect("b")
    model.plot_forecast(x, 2, inputs={n: torch.cat([t, t[:2]]) for n, t in given["inputs"].items()})


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"order": 0}, "order: got 0"),
        ({"order": -1}, "order: got -1"),
        ({"n_features": 0}, "n_features: got 0"),
        ({"lags": "some"}, "lags: got 'some'"),
        ({"switching": ()}, "switching: got no part"),
        ({"switching": ["slope"]}, "switching: got 'slope'"),
    ],
)
def test_specifications_that_are_not_valid_are_errors(given, text):
    with pytest.raises((ValueError, TypeError), match=text):
        sh.AutoRegressive(**given)
    with pytest.raises(TypeError, match="switching: got NoneType, expected some of coefficients, scale"):
        parts_of(None, ("coefficients", "scale"))


def test_bad_input_is_named():
    model = sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(3))
    x = torch.arange(20.0).double().sin()
    with pytest.raises(ValueError, match=r"order: got 3 lags, but x has 3 step\(s\), so no step of it has all lags"):
        model.fit(x[:3], progress=False)
    with pytest.raises(ValueError, match=r"order: got 3 lags, but sequence 1 has 2 step"):
        model.fit([x, x[:2]], progress=False)
    with pytest.raises(ValueError, match=r"before: was given, but no part of the model reads earlier observations"):
        sh.SwitchingSSM(sh.Markov(2), sh.Normal()).fit(x, before=x[:2], progress=False)
    with pytest.raises(ValueError, match=r"before: got shape \(2, 2\), expected \(3, 1\)"):
        model.fit(x, before=torch.zeros(2, 2), progress=False)
    with pytest.raises(ValueError, match="before: got an infinite value"):
        model.fit(x, before=[math.inf, 0.0, 0.0], progress=False)
    with pytest.raises(ValueError, match=r"x: no step has both its observation and all of its 3 lags"):
        model.fit(torch.where(torch.arange(20) % 3 == 0, torch.nan, x), progress=False)
    shared = sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(1, switching="scale"))
    with pytest.raises(TypeError, match="all states share its intercept and coefficients"):
        shared.fit(x, "vmp", progress=False)
    with pytest.raises(ValueError, match="only a SwitchingSSM of one emission supports lags"):
        sh.Gated(sh.AutoRegressive(1), sh.Normal())


def test_a_series_of_another_order_is_read_again():
    one, two = model_of("markov", KINDS["one"]), model_of("markov", KINDS["two lags"])
    x = two.simulate(20, seed=1).x
    series = one.read(x)
    assert_close(two.log_evidence(series), two.log_evidence(x))
    assert_close(one.log_evidence(two.read(x)), one.log_evidence(x))


def test_the_command_line_builds_it():
    from samplehold.cli.console import build, check_order

    frame = pd.DataFrame({"v": np.arange(5.0), "w": np.arange(5.0)})
    model = build(frame, 2, "auto-regressive", "markov", [], ["dose"], order=3)
    assert model.emission == sh.AutoRegressive(3, 2, inputs=("dose",))
    with pytest.raises(ValueError, match="--order: got 2, but Normal has no lags"):
        build(frame, 2, "normal", "copy", [], order=2)
    with pytest.raises(ValueError, match="--order: got 0, expected at least 1"):
        build(frame, 2, "auto-regressive", "markov", [], order=0)
    check_order(model, model.read(frame[["v", "w"]], inputs={"dose": np.zeros(5)}))
    with pytest.raises(ValueError, match=r"--order: got 3, but the shortest sequence has 3 row\(s\)"):
        check_order(model, model.read(frame[:3], inputs={"dose": np.zeros(3)}))
