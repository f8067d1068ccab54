"""Emissions that read inputs: linear regression and generalised linear models of every state."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from oracles.models import enumerate_evidence, trace_log_prob
from samplehold.switching.emissions.driven import rows_read
from samplehold.switching.responses import Frame
from scipy.optimize import minimize
from torch.testing import assert_close

NAMES = ["a", "b"]
EMISSIONS = {
    "normal": sh.LinearRegression(2, inputs=NAMES),
    "normal, shared": sh.LinearRegression(1, inputs=NAMES, shared=["b"]),
    "normal, tied": sh.LinearRegression(1, inputs=NAMES, tied={"scale": "all states"}),
    "counts": sh.Poisson(2, inputs=NAMES),
    "counts, shared": sh.Poisson(1, inputs=NAMES, shared=["a"]),
    "counts, all shared": sh.Poisson(1, inputs="a", shared="a"),
    "binary": sh.Bernoulli(1, inputs=NAMES),
    "symbols": sh.Categorical(3, inputs=NAMES),
    "symbols, shared": sh.Categorical(3, inputs=NAMES, shared=["b"]),
}
DYNAMICS = {"copy": sh.Copy(2), "gate": sh.Copy(2, inputs=["c", "b"]), "markov": sh.Markov(2)}
KINDS = [("copy", name) for name in EMISSIONS] + [("gate", "counts"), ("markov", "normal"), ("gate", "normal")]


def inputs(*shape: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(*shape, generator=generator, dtype=torch.float64) for name in "abc"}


def model_of(dynamics: str, emission: str, seed: int = 0) -> sh.SwitchingSSM:
    """A model at values near those of its prior."""
    model, generator = sh.SwitchingSSM(DYNAMICS[dynamics], EMISSIONS[emission]), torch.Generator().manual_seed(seed)
    values = {}
    for name, parameter in model.known.items():
        sizes = {"state": 2, "state_new": 2, "shared": 1} | model.sizes
        table = torch.randn([sizes[dim] for dim in parameter.dims], generator=generator, dtype=torch.float64)
        support = torch.distributions.constraints
        to = torch.distributions.biject_to(parameter.support) if parameter.support is not support.nonnegative else None
        values[name] = 3 * table.exp() if to is None else table.softmax(-1) if "probs" in name and table.ndim and (
            parameter.support is support.simplex
        ) else to(table)  # fmt: skip
    return model.with_values(values)


@pytest.mark.few(6)
@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_the_evidence_is_the_sum_over_all_paths_and_the_density_of_the_program(dynamics, emission):
    model, given = model_of(dynamics, emission), {"inputs": inputs(4)}
    x = model.simulate(4, seed=1, **given).x
    x[2, 0] = torch.nan
    expected = enumerate_evidence(model, x, **given)
    assert_close(model.log_evidence(x, **given), expected, rtol=1e-10, atol=0)
    assert_close(trace_log_prob(model.collapsed, x, **given), expected, rtol=1e-10, atol=0)


@pytest.mark.few(1)
@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_sequences_of_several_lengths_are_those_alone(dynamics, emission):
    model, lengths = model_of(dynamics, emission), [40, 3, 90, 1, 2]
    given = [inputs(n, seed=n) for n in lengths]
    parts = [model.simulate(n, seed=n, inputs=one).x for n, one in zip(lengths, given, strict=True)]
    columns = {name: [one[name] for one in given] for name in "abc"}
    series = model.read(parts, inputs=columns)
    assert series.packed
    alone = torch.stack([model.log_evidence(x, inputs=one) for x, one in zip(parts, given, strict=True)])
    assert_close(model.log_evidence(series), alone, rtol=1e-12, atol=0)
    if emission == "counts, all shared":
        return
    for method in ("em", "svi") if emission != "normal" else ("em", "vmp", "svi"):
        fit = model.without_values().fit(series, method, restarts=1, max_steps=4, progress=False)
        assert bool(fit.objective.isfinite().all())


INSIDE = [("copy", "normal, shared"), ("copy", "counts, all shared"), ("copy", "symbols, shared"), *KINDS[-2:]]
"""Cases without a prior: a family of each kind of M-step, and each dynamics. The likelihood of binary observations or
symbols has no maximum if states share no coefficients: inputs separate the observations of a state."""


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("dynamics", "emission", "prior"), [*((*kind, "weak") for kind in KINDS), *((*kind, None) for kind in INSIDE)]
)
def test_em_climbs_to_a_point_without_slope(dynamics, emission, prior):
    n_steps = 400 if (dynamics, prior) == ("gate", None) else 200  # inputs separate the gates of fewer steps
    model, given = model_of(dynamics, emission, seed=1), {"inputs": inputs(n_steps)}
    x = model.simulate(n_steps, seed=1, **given).x
    fit = model.without_values().fit(x, prior=prior, restarts=2, tol=1e-10, max_steps=2000, progress=False, **given)
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
    assert fit.converged
    problem = model.scaled_to(x, **given).problem(x, **given)
    problem = problem if prior else type(problem)(problem.dynamics, problem.emission, problem.series)
    values = fit.model.values
    if prior:  # the mode is that of constants at the inputs where their prior is stated
        center = problem.prior["inputs_center"]
        values = Frame(problem.responses, problem.inputs, center, torch.ones_like(center)).into(values)
        problem = problem.about_inputs(center)
    free = {name: value.clone().requires_grad_() for name, value in values.items()}
    slopes = torch.autograd.grad(problem.objective(free), list(free.values()))
    for (name, value), slope in zip(free.items(), slopes, strict=True):
        if problem.parameters[name].support is torch.distributions.constraints.simplex:
            slope = value * (slope - (value * slope).sum(-1, keepdim=True))  # along the simplex
        assert float(slope.detach().abs().max()) < 0.01, name
    assert float(fit.log_evidence()) >= float(model.log_evidence(x, **given)) - (0 if prior is None else 10)


@pytest.mark.few(4)
@pytest.mark.parametrize("emission", EMISSIONS)
def test_slopes_in_all_coefficients_are_those_of_differences(emission):
    model, given = model_of("gate", emission), {"inputs": inputs(6)}
    x = model.simulate(6, seed=1, **given).x
    names = [n for n in model.values if "coefficients" in n or n.startswith("redraw") or n in ("loc", "rate")]

    def evidence(*tables: torch.Tensor) -> torch.Tensor:
        moved = model.values | dict(zip(names, tables, strict=True))
        return model.problem(x, **given).evidence(moved)

    assert torch.autograd.gradcheck(evidence, [model.values[n].clone().requires_grad_() for n in names])


def test_a_prior_of_the_rate_without_inputs_is_that_of_the_plain_emission():
    prior, given = {"rate": pyro.distributions.Gamma(50.0, 10.0)}, {"inputs": inputs(40)}
    model = model_of("copy", "counts, shared")
    x = model.simulate(40, seed=1, **given).x
    free = sh.SwitchingSSM(sh.Copy(2), EMISSIONS["counts, shared"])
    options = {"restarts": 1, "max_steps": 20, "progress": False} | given
    by_fit, by_name = free.fit(x, prior=prior, **options), free.with_prior(prior).fit(x, **options)
    made = sh.SwitchingSSM(sh.Copy(2), sh.Poisson(1, prior=prior, inputs=NAMES, shared=["a"])).fit(x, **options)
    for other in (by_name, made):
        assert_close(other.model.values, by_fit.model.values, rtol=1e-6, atol=1e-8)
    assert float((by_fit.model.values["rate"] - 5).abs().max()) < 2
    with pytest.raises(ValueError, match=r"^prior: got distributions of coefficients, but GeneralizedLinear"):
        free.with_prior({"coefficients": pyro.distributions.Normal(0.0, 1.0)})


def test_complete_separation_is_said_and_cured_by_a_prior():
    a = torch.linspace(-1, 1, 40, dtype=torch.float64)
    model = sh.SwitchingSSM(sh.Copy(1), sh.Bernoulli(1, inputs="a"))
    with pytest.warns(UserWarning, match=r"^coefficients: inputs separate .* state 0 completely.* prior='weak'"):
        model.fit((a > 0).double(), inputs={"a": a}, prior=None, progress=False)
    fit = model.fit((a > 0).double(), inputs={"a": a}, progress=False)
    assert 1 < float(fit.model.values["coefficients"]) < 20


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"a": [1.0] * 9}, r"^inputs: 'a' is constant; .* has a constant of its own \(`.*` at inputs 0\)\. Drop"),
        ({"a": [*range(9)], "b": [*range(0, 18, 2)]}, r"^inputs: 'a' and 'b' are linearly dependent"),
    ],
)
def test_dependent_inputs_are_named(columns, said):
    x = torch.arange(9.0)
    for dynamics, emission in (
        (sh.Copy(2), sh.LinearRegression(1, inputs=list(columns))),
        (sh.Copy(2, inputs=list(columns)), sh.Normal(1)),
    ):
        with pytest.raises(ValueError, match=said):
            sh.SwitchingSSM(dynamics, emission).fit(x, inputs=columns, progress=False)


def test_one_state_is_ordinary_least_squares():
    given, generator = inputs(50), torch.Generator().manual_seed(3)
    x = torch.randn(50, 2, generator=generator, dtype=torch.float64) + 1e3
    x[7, 0] = torch.nan
    fit = sh.SwitchingSSM(sh.Copy(1), EMISSIONS["normal"]).fit(x, inputs=given, prior=None, progress=False)
    design = torch.stack([torch.ones(50, dtype=torch.float64), given["a"], given["b"]], -1)
    for feature in range(2):
        seen = ~x[:, feature].isnan()
        best = torch.linalg.lstsq(design[seen], x[seen, feature, None])
        values = fit.model.describe()
        assert_close(values["loc"][0, feature], best.solution[0, 0], rtol=1e-10, atol=0)
        assert_close(values["coefficients"][0, feature], best.solution[1:, 0], rtol=1e-8, atol=1e-10)
        residual = x[seen, feature, None] - design[seen] @ best.solution
        assert_close(values["scale"][0, feature], residual.square().mean().sqrt(), rtol=1e-9, atol=0)


def test_message_passing_in_one_state_gives_the_evidence_of_bayesian_regression():
    given, generator = inputs(30), torch.Generator().manual_seed(3)
    x = torch.randn(30, 1, generator=generator, dtype=torch.float64) + given["a"][:, None]
    x[3] = torch.nan
    emission = sh.LinearRegression(1, inputs=NAMES)
    model = sh.SwitchingSSM(sh.Markov(1), emission).scaled_to(x, inputs=given)
    fit = model.fit(x, "vmp", prior=model.prior, inputs=given, progress=False)
    seen = ~x[:, 0].isnan()
    away = torch.stack([given["a"], given["b"]], -1) - model.prior["inputs_center"]
    design = torch.nn.functional.pad(away, (1, 0), value=1.0)[seen]
    loc, shape, rate = (float(model.prior[name][0, 0]) for name in ("loc", "shape", "rate"))
    counts = torch.cat([model.prior["count"][0], model.prior["coefficients_count"][0, 0]])
    # x is a Student t of 2 a degrees of freedom: a normal of precision tau with coefficients summed out, and tau too
    covariance = torch.eye(len(design), dtype=torch.float64) + design / counts @ design.mT
    residual = x[seen, 0] - loc
    square, n = float(residual @ torch.linalg.solve(covariance, residual)), len(design)
    expected = (
        math.lgamma(shape + n / 2) - math.lgamma(shape) - n / 2 * math.log(2 * math.pi * rate)
        - float(torch.logdet(covariance)) / 2 - (shape + n / 2) * math.log1p(square / (2 * rate))
    )  # fmt: skip
    assert float(fit.objective[-1]) == pytest.approx(expected, rel=1e-9)
    again = fit.posterior.interval(0.9)
    assert bool((again.lower["coefficients"] < fit.model.values["coefficients"]).all())


@pytest.mark.parametrize("emission", ["counts", "binary", "symbols"])
def test_one_state_is_the_generalised_linear_model(emission):
    model, given = model_of("copy", emission, seed=2), {"inputs": inputs(80)}
    x = model.simulate(80, seed=4, **given).x[:, :1]
    kinds = {"counts": sh.Poisson(1, inputs=NAMES), "binary": EMISSIONS["binary"], "symbols": EMISSIONS["symbols"]}
    fit = sh.SwitchingSSM(sh.Copy(1), kinds[emission]).fit(x, prior=None, progress=False, **given)
    design = np.stack([np.ones(80), given["inputs"]["a"].numpy(), given["inputs"]["b"].numpy()], -1)
    y = x[:, 0].numpy()

    def loss(flat: np.ndarray) -> float:
        predictor = design @ flat.reshape(3, -1)
        if emission == "counts":
            log_factorial = np.array([math.lgamma(value + 1) for value in y])
            return float(-(y * predictor[:, 0] - np.exp(predictor[:, 0]) - log_factorial).sum())
        wide = np.concatenate([np.zeros((80, 1)), predictor], 1)
        return float((np.logaddexp.reduce(wide, 1) - wide[np.arange(80), y.astype(int)]).sum())

    best = minimize(loss, np.zeros(3 * (2 if emission == "symbols" else 1)), tol=1e-12)
    assert float(fit.log_evidence()) == pytest.approx(-best.fun, abs=1e-5)


@pytest.mark.slow
def test_parameters_come_back_and_forecasts_use_the_inputs_to_come():
    given, n = inputs(1500), 1500
    truth = sh.SwitchingSSM(sh.Copy(2, inputs="c"), sh.LinearRegression(1, inputs=NAMES)).with_values(
        redraw_intercept=-2.0, redraw_weights=[1.5], state_probs=[0.5, 0.5], loc=[[-1.0], [1.0]],
        coefficients=[[[1.0, 0.0]], [[-1.0, 0.5]]], scale=[[0.3], [0.6]],
    )  # fmt: skip
    x = truth.simulate(n, seed=0, inputs=given).x
    fit = truth.without_values().fit(x, inputs=given, restarts=2, progress=False)
    assert_close(fit.model.values["coefficients"], truth.values["coefficients"], rtol=0, atol=0.08)
    assert_close(fit.model.values["loc"], truth.values["loc"], rtol=0, atol=0.08)
    coming = inputs(3, seed=9)
    ahead = fit.forecast(3, inputs=coming)
    values = fit.model.values
    design = torch.stack([coming["a"], coming["b"]], -1)
    means = values["loc"] + (values["coefficients"] * design[:, None, None]).sum(-1)
    assert_close(ahead.mean, (ahead.state.unsqueeze(-1) * means).sum(-2), rtol=1e-10, atol=0)
    low, high = ahead.interval(0.9)
    assert_close(ahead.observation.cdf(high), torch.full_like(high, 0.95), rtol=0, atol=1e-6)
    assert bool((low < ahead.mean).all())
    table = fit.model.filter(x, inputs=given)
    state, out = fit.model.update(fit.model.start(), x[0], inputs={name: float(given[name][0]) for name in "abc"})
    assert_close(out.state, table.state[0], rtol=1e-10, atol=1e-12)
    _, out = fit.model.update(state, x[1], inputs={name: float(given[name][1]) for name in "abc"})
    assert_close(out.state, table.state[1], rtol=1e-10, atol=1e-12)


@pytest.mark.few(4)
@pytest.mark.parametrize("emission", EMISSIONS)
def test_everything_that_a_fitted_model_does_works_on_it(emission, tmp_path):
    model, given = model_of("copy", emission), {"inputs": inputs(60)}
    x = model.simulate(60, seed=1, **given).x
    fit = model.without_values().fit(x, restarts=1, max_steps=5, progress=False, **given)
    fit.save(tmp_path / "model")
    loaded = sh.load(tmp_path / "model")
    assert repr(loaded) == repr(fit)
    assert_close(loaded.log_evidence(x, **given), fit.log_evidence(), rtol=1e-12, atol=0)
    name = "coefficients[0, " if "coefficients" in fit.model.values else "coefficients["
    summary, labels = str(fit.summary()), {"normal": "1, b]", "counts": "0, a]", "symbols": "2, b]"}
    assert name in summary
    assert labels.get(emission, "") in summary
    fit.plot()
    ahead = fit.forecast(4, inputs=inputs(4))
    ahead.plot()
    assert ahead.one(0).mean.shape == ahead.mean.shape
    data = fit.to_arviz()
    assert math.prod(data.posterior_predictive["x"].shape[2:]) == x.numel()
    assert len(fit.states(x, **given)) == 60
    assert fit.model.n_parameters == sum(
        value.numel() for name, value in fit.model.values.items() if "probs" not in name
    ) + 1 + {"binary": 2, "symbols": 4, "symbols, shared": 4}.get(emission, 0)  # probabilities sum to 1


@pytest.mark.parametrize("method", ["em", "svi", pytest.param("nuts", marks=pytest.mark.slow)])
def test_a_part_of_a_regression_may_be_fixed(method):
    model, given = model_of("copy", "normal"), {"inputs": inputs(60)}
    x, fixed = model.simulate(60, seed=1, **given).x, {"coefficients": model.values["coefficients"]}
    options = {"num_samples": 4} if method == "nuts" else {"max_steps": 5}
    fit = model.fit(x, method, fixed=fixed, restarts=1, progress=False, **given, **options)
    assert_close(fit.model.values["coefficients"], fixed["coefficients"], rtol=1e-12, atol=0)
    with pytest.raises(TypeError, match=r"^fixed: got coefficients, but message passing holds all parameters"):
        model.fit(x, "vmp", fixed=fixed, progress=False, **given)


@pytest.mark.few(1)
@pytest.mark.parametrize("unit", [1e-6, 1e5])
def test_no_unit_or_offset_of_the_data_changes_a_regression(unit):
    model, given = model_of("copy", "normal", seed=1), {"inputs": inputs(150)}
    x = model.simulate(150, seed=1, **given).x
    one, other = (
        model.without_values().fit(data, prior=None, restarts=1, progress=False, **given)
        for data in (x, unit * (x + 7))
    )
    assert_close(other.model.values["coefficients"] / unit, one.model.values["coefficients"], rtol=1e-5, atol=1e-6)
    assert_close(other.model.values["loc"] / unit - 7, one.model.values["loc"], rtol=1e-5, atol=1e-5)


def test_the_message_is_the_gradient_of_the_expected_table():
    model, given = model_of("copy", "normal"), {"inputs": inputs(20)}
    x = model.simulate(20, seed=1, **given).x
    x[4, 1] = torch.nan
    emission, rows = model.emission, rows_read(model.emission, model.read(x, **given))
    prior = model.scaled_to(x, **given).prior
    weights = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    eta = emission.natural(prior) + emission.message(rows, weights)
    statistics = emission.family.mean(eta).requires_grad_()
    total = (weights * emission.expected_table(rows, statistics)).sum()
    (slope,) = torch.autograd.grad(total, statistics)
    got = emission.expected_message(rows, weights, statistics.detach())
    base = emission.family.natural(*(emission.family.usual(eta).__dict__.values()))
    assert_close(base, eta, rtol=1e-9, atol=1e-9)
    symmetric = [emission.family.parts(table) for table in (got, slope)]
    for one, other in zip(*symmetric, strict=True):
        assert_close(
            one, (other + other.mT) / 2 if other.ndim > 3 and other.shape[-1] > 1 else other, rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: sh.Categorical(1, inputs="a"), ValueError, r"^inputs: Categorical.* has one category"),
        (lambda: sh.LayeredSSM([2, 2], sh.Poisson(1, inputs="a")), ValueError, r"^emission: got Poisson.* supports"),
        (
            lambda: sh.Poisson(1, inputs=["a"], shared=["b"]),
            ValueError,
            r"^shared: got 'b', expected names",
        ),
        (lambda: sh.Poisson(1, shared=["b"]), ValueError, r"^shared: got .* without inputs"),
        (lambda: sh.LinearRegression(1, inputs=0), ValueError, r"^inputs: got 0"),
        (
            lambda: sh.SwitchingSSM(sh.Copy(2, inputs=1), sh.Poisson(1, inputs="a")),
            ValueError,
            r"^inputs: got 1 in one",
        ),
        (
            lambda: sh.SwitchingSSM(
                sh.Copy(2), sh.Poisson(1, prior={"rate": dist.LogNormal(0.0, 1.0)}, inputs="a")
            ).fit([1, 2, 3], "vmp", inputs=[[1], [2], [3]]),
            TypeError,
            r'^prior: Poisson has priors of rate that are not .* use method="em"',
        ),
    ],
)
def test_wrong_arguments_are_refused(make, error, said):
    with pytest.raises(error, match=said):
        make()


@pytest.mark.slow
def test_svi_and_nuts_find_the_coefficients():
    model, given = model_of("copy", "counts, shared", seed=1), {"inputs": inputs(120)}
    x = model.simulate(120, seed=1, **given).x
    pyro.set_rng_seed(0)
    fit = model.without_values().fit(x, "svi", restarts=1, max_steps=60, progress=False, **given)
    assert fit.model.values["shared_coefficients"].shape == (1, 1, 1)
    interval = fit.posterior.interval(0.9)
    assert bool((interval.lower["coefficients"] < interval.upper["coefficients"]).all())


def test_an_impossible_observation_is_refused_in_the_words_of_the_plain_emission():
    with pytest.raises(ValueError, match=r"^x: got -1 at step 2, .*; expected counts 0, 1, 2, \.\.\. \(Poisson\)\."):
        model_of("copy", "counts").smooth(torch.tensor([[0.0], [1.0], [-1.0]]).expand(3, 2), inputs=inputs(3))


SMALL = torch.tensor([[[0.01]]], dtype=torch.float64)
SCALED = {
    "binary": (sh.Bernoulli(1, inputs=["a", "b"]), {}),
    "counts": (sh.Poisson(1, inputs=["a", "b"]), {}),
    "shared": (sh.Bernoulli(1, inputs=["a", "c", "b"], shared=["b"]), {"shared_coefficients_scale": SMALL}),
}


@pytest.mark.parametrize("name", SCALED)
def test_each_coefficient_has_the_prior_that_the_user_gave_it(name):
    emission, of_shared = SCALED[name]
    inputs = {key: torch.randn(200, generator=torch.Generator().manual_seed(n)).double() for n, key in enumerate("abc")}
    inputs = {key: inputs[key] for key in emission.inputs}
    x = (sum(inputs.values()) + torch.arange(200) // 100 > 0.5).double()
    model = sh.SwitchingSSM(sh.Markov(2), emission).scaled_to(x, inputs=inputs)
    scale = model.prior["coefficients_scale"].clone()
    scale[..., 0] = 0.01
    model = model.with_prior(model.prior | {"coefficients_scale": scale} | of_shared)
    fit = model.fit(x, inputs=inputs, restarts=1, max_steps=30, progress=False)
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
    first, second = fit.model.values["coefficients"].abs().amax((0, 1))
    assert first < 0.05 < second
    if of_shared:
        assert abs(float(fit.model.values["shared_coefficients"])) < 0.05
