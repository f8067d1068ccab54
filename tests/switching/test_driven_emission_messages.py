"""Message passing for generalised linear emissions: expected log-likelihoods, or bounds on them."""

import math

import pytest
import samplehold as sh
import torch
from oracles.models import numbers
from samplehold import GeneralizedLinear
from samplehold.switching.fitting import ChainGraph, chunked, message_form
from samplehold.switching.parameters import reordered
from torch import Tensor
from torch.testing import assert_close

C, K, T = 2, 3, 6
FORMS = {
    "binary": sh.Bernoulli(2, inputs=C),
    "symbols": sh.Categorical(4, inputs=C),
    "letters": sh.Categorical(2, inputs=C),
    "counts": sh.Poisson(2, inputs=C),
    "binary, shared": sh.Bernoulli(2, inputs=["a", "b"], shared=["b"]),
    "symbols, shared": sh.Categorical(4, inputs=["a", "b"], shared=["a"]),
    "counts, all shared": sh.Poisson(2, inputs=["a", "b"], shared=["a", "b"]),
}
each = pytest.mark.parametrize("emission", FORMS.values(), ids=FORMS)


def values_of(emission: GeneralizedLinear, size: float = 1.0) -> dict[str, Tensor]:
    sizes, name = emission.sizes | {"shared": 1, "state": K}, emission.link.parameter
    shapes = {name: [sizes[dim] for dim in parameter.dims] for name, parameter in emission.parameters.items()}
    values = {n: size * numbers(*shape, seed=seed) for seed, (n, shape) in enumerate(shapes.items())}
    main = {"Bernoulli": values[name].sigmoid(), "Poisson": values[name].exp()}
    return values | {name: main.get(emission.plain.name, values[name].softmax(-1))}


def series_of(emission: GeneralizedLinear, n: int, steps: int) -> tuple[Tensor, Tensor]:
    """Observations, some of which are missing, and inputs."""
    inputs = numbers(n, steps, C, seed=2)
    model = sh.SwitchingSSM(sh.Markov(K), emission).with_values(
        values_of(emission, 1.5), initial_probs=[1 / K] * K, transition_probs=(0.1 + 3 * torch.eye(K)) / 3.3
    )
    x = model.simulate(steps, (n,), seed=0, inputs=inputs).x
    x[0, 1, 0] = torch.nan
    return x, inputs


@pytest.mark.few(2)
@each
def test_bounds_are_equal_at_a_point_and_below_the_mean_of_draws(emission):
    block, values, n = message_form(emission), values_of(emission), 20_000
    x, inputs = series_of(emission, 2, T)
    rows = torch.cat([x, inputs], -1)
    point = block.point(values)
    assert_close(
        block.expected_table(rows, block.statistics(values)), emission.table(rows, values), rtol=1e-9, atol=1e-9
    )
    eta = block.family.natural(point, 3 * torch.eye(point.shape[-1]).double().expand(len(point), -1, -1))
    points = block.family.sample(eta, n, torch.Generator().manual_seed(0))
    exact = emission.table(rows, block.values(points))
    bound = block.expected_table(rows, block.family.mean(eta))
    assert bool((bound <= exact.mean(0) + 4 * exact.std(0) / math.sqrt(n)).all())
    assert float((exact.mean(0) - bound).max()) < 1  # and not far below


@each
def test_points_are_the_parameters_and_states_change_their_numbers(emission):
    block, values, order = message_form(emission), values_of(emission), torch.tensor([2, 0, 1])
    point = block.point(values)
    assert_close(block.values(point), values, rtol=1e-12, atol=1e-12)
    eta = block.family.natural(point, torch.eye(point.shape[-1]).double().expand(len(point), -1, -1))
    assert_close(
        block.values(block.family.expected(block.reordered(eta, order))),
        reordered(emission.parameters, values, order),
        rtol=1e-12,
        atol=1e-12,
    )


FITS = {
    "rows": (sh.Markov(K), FORMS["binary"]),
    "driven gate": (sh.Copy(K, inputs=C), FORMS["symbols"]),
    "driven rows": (sh.Markov(K, inputs=C), FORMS["letters"]),
    "counts": (sh.Copy(K), FORMS["counts"]),
}


@pytest.mark.few(1)
@pytest.mark.parametrize(("dynamics", "emission"), FITS.values(), ids=FITS)
def test_fits_raise_the_bound_and_come_near_the_mode(dynamics, emission):
    x, inputs = series_of(emission, 6, 60)
    model = sh.SwitchingSSM(dynamics, emission)
    fit = model.fit(x, "vmp", inputs=inputs, restarts=1, progress=False)
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
    assert float(fit.objective[-1]) < fit.loglik
    mode = model.fit(x, inputs=inputs, restarts=1, start=fit.model, progress=False)
    assert mode.loglik - 10 < fit.loglik < mode.loglik + 3


@pytest.mark.few(1)
@pytest.mark.parametrize("emission", [sh.Bernoulli(1, inputs=1), sh.Categorical(2, inputs=1)], ids=str)
def test_the_bound_of_one_state_lies_closely_below_the_evidence_of_logistic_regression(emission):
    """The evidence by quadrature over intercept and coefficient."""
    x, inputs = (numbers(30, 1, seed=5) + 0.5 * numbers(30, 1) > 0).double(), numbers(30, 1)
    model = sh.SwitchingSSM(sh.Markov(1), emission)
    fit = model.fit(x, "vmp", inputs=inputs, progress=False)
    prior = model.scaled_to(x, inputs=inputs).prior
    a, b = (prior["failures"], prior["successes"]) if "failures" in prior else prior["concentration"].unbind(-1)
    a, b, scale = a.flatten(), b.flatten(), prior["coefficients_scale"].flatten()
    grid = torch.linspace(-12, 12, 1201, dtype=torch.float64)
    first, slope = grid[:, None, None], grid[None, :, None]
    away = inputs[:, 0] - prior["inputs_center"]
    logit, log = first + slope * away, torch.nn.functional.logsigmoid
    terms = torch.where(x[:, 0] == 1, log(logit), log(-logit)).sum(-1)
    first, slope = first[..., 0], slope[..., 0]
    terms = terms + a * log(-first) + b * log(first) + torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
    terms = terms - (slope / scale).square() / 2 - (scale * math.sqrt(2 * math.pi)).log()
    evidence = float(terms.flatten().logsumexp(0)) + 2 * math.log(float(grid[1] - grid[0]))
    assert evidence - 0.3 < float(fit.objective[-1]) < evidence


@pytest.mark.few(1)
@each
def test_known_coefficients_of_0_have_the_bound_of_the_emission_without_inputs(emission):
    x, inputs = series_of(emission, 3, 20)
    known = values_of(emission)
    for name in known.keys() - {emission.link.parameter}:
        known[name] *= 0
    few = {"restarts": 1, "progress": False}
    fit = sh.SwitchingSSM(sh.Markov(K), emission).fit(x, "vmp", inputs=inputs, fixed=known, **few)
    for name, table in known.items():
        assert_close(fit.model.values[name], table, rtol=1e-9, atol=1e-9)
    plain = sh.SwitchingSSM(sh.Markov(K), emission.plain).fit(
        x, "vmp", fixed={name: known[name] for name in emission.plain.parameters}, **few
    )
    assert_close(fit.objective[-1], plain.objective[-1], rtol=0, atol=1e-6)
    with pytest.raises(TypeError, match=r"^fixed: got .*coefficients, but message passing holds all parameters of"):
        fit.model.fit(x, "vmp", inputs=inputs, fixed=dict([known.popitem()]), progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["binary", "counts"])
def test_chunks_give_the_bound_of_the_whole(monkeypatch, form):
    x, inputs = series_of(FORMS[form], 6, 20)
    model = sh.SwitchingSSM(sh.Markov(K), FORMS[form])
    given = {"inputs": inputs, "lengths": [20, 3, 7, 20, 1, 12], "restarts": 4, "progress": False}
    whole = model.fit(x, "vmp", **given)
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 2 * 20 * K)
    parts = model.fit(x, "vmp", **given)
    assert_close(parts.objective[-1], whole.objective[-1], rtol=0, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["binary", "counts"])
def test_minibatches_end_near_the_whole(form):
    x, inputs = series_of(FORMS[form], 12, 12)
    model, few = sh.SwitchingSSM(sh.Markov(K), FORMS[form]), {"restarts": 1, "progress": False}
    whole = model.fit(x, "vmp", inputs=inputs, **few)
    parts = model.fit(x, "vmp", inputs=inputs, start=whole.model, batch_size=4, max_steps=40, **few)
    assert abs(float(parts.objective[-1]) - float(whole.objective[-1])) < 1


@pytest.mark.few(1)
@each
def test_what_is_asked_of_a_fit(emission, tmp_path):
    x, inputs = series_of(emission, 2, 30)
    fit = sh.SwitchingSSM(sh.Copy(K), emission).fit(x, "vmp", inputs=inputs, restarts=1, progress=False)
    name = [*emission.parameters][-1]  # coefficients of each state, or of all
    assert name in repr(fit.summary())
    draws = fit.posterior.sample(7, seed=0)
    assert draws[name].shape == (7, *fit.model.values[name].shape)
    lower, upper = fit.posterior.interval(0.9)
    assert bool((lower[name] < fit.model.values[name]).all())
    assert emission.plain.name == "Poisson" or bool((upper["probs"] < 1).all())
    assert fit.to_arviz(draws=3).posterior[name].shape[1] == 3
    fit.save(tmp_path / "fit")
    assert_close(sh.load(tmp_path / "fit").values, fit.model.values, rtol=0, atol=0)
    ahead = fit.forecast(2, inputs=numbers(2, 2, C))
    assert bool(ahead.mean.isfinite().all()) if emission.plain.name != "Categorical" else ahead.probs.shape[-2] == 2


@pytest.mark.slow
def test_parameters_by_subject_are_refused_by_name():
    x, inputs = series_of(FORMS["binary"], 2, 9)
    model, given = sh.SwitchingSSM(sh.Markov(K), FORMS["binary"]), {"inputs": inputs, "subjects": ["a", "b"]}
    with pytest.raises(TypeError, match=r"^pooled: message passing cannot fit parameters by subject of Bernoulli"):
        model.fit(x, "vmp", pooled={"emission": "none"}, progress=False, **given)


def test_chunks_are_smaller_where_a_step_has_more_numbers():
    x, inputs = series_of(FORMS["binary"], 2, 9)
    driven = sh.SwitchingSSM(sh.Markov(K), FORMS["binary"]).problem(x, inputs=inputs)
    plain = sh.SwitchingSSM(sh.Markov(K), sh.Bernoulli(2)).problem(x)
    assert [ChainGraph.of(problem).width for problem in (plain, driven)] == [1, 4]


def test_a_first_fit_without_gradients_is_that_of_the_next_one():
    x, inputs = series_of(FORMS["binary"], 2, 9)
    model, few = sh.SwitchingSSM(sh.Markov(K), FORMS["binary"]), {"restarts": 1, "max_steps": 2, "progress": False}
    with torch.inference_mode():
        without = model.fit(x, "vmp", inputs=inputs, **few)
    fit = model.fit(x, "vmp", inputs=inputs, **few)
    torch.testing.assert_close(without.model.values, fit.model.values, rtol=0, atol=0)
