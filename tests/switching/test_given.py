"""Where the user says to start, and what to hold."""

from dataclasses import replace

import numpy as np
import pytest
import samplehold as sh
import torch
from oracles.coupled import factorial_of
from oracles.effort import effort
from oracles.models import KINDS, drive, random_model
from samplehold.switching.responses import Frame
from torch.testing import assert_close

METHODS = ("em", "vmp", "svi", "nuts")
TRUTH = sh.SwitchingSSM(sh.Markov(3), sh.Normal(1)).with_values(
    initial_probs=[1 / 3, 1 / 3, 1 / 3],
    transition_probs=[[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]],
    loc=[[3.0], [0.0], [-3.0]],
    scale=[[1.0], [1.0], [1.0]],
)
MODEL = sh.SwitchingSSM(sh.Markov(3), sh.Normal(1))
MODEL_SIZE = 2 + 6 + 3 + 3  # numbers that can be chosen freely


@pytest.fixture(scope="module")
def drawn():
    return TRUTH.simulate(150, seed=1)


@pytest.fixture(scope="module")
def x(drawn):
    return drawn.x


# ---- where to start --------------------------------------------------------------------------------------------------


@pytest.mark.few(4)
@pytest.mark.parametrize("method", ["em", "vmp"])
@pytest.mark.parametrize("kind", ["model", "values", "some values", "fit", "labels", "some labels"])
def test_a_start_of_ones_own_is_the_only_one_of_a_single_climb(drawn, x, method, kind):
    path = drawn.path.double()
    start = {
        "model": TRUTH,
        "values": TRUTH.values,
        "some values": {"loc": [[5.0], [0.0], [-5.0]]},
        "fit": MODEL.fit(x, start=TRUTH, restarts=1, progress=False),
        "labels": drawn.path,
        "some labels": torch.where(torch.arange(150) % 2 == 0, path, torch.nan),
    }[kind]
    fit = MODEL.fit(x, method, start=start, restarts=1, progress=False)
    assert fit.restarts.start.tolist() == ["own"]
    assert_close(fit.model.loc, TRUTH.loc, rtol=0, atol=0.5)  # the states have kept their numbers


def test_among_other_starts_it_is_one_more_and_gives_the_states_their_numbers(x):
    fit = MODEL.fit(x, start=TRUTH, restarts=4, progress=False)
    assert (fit.restarts.start == "own").sum() == 1
    assert len(fit.restarts) > 4
    assert_close(fit.model.loc, TRUTH.loc, rtol=0, atol=0.5)
    free = MODEL.fit(x, restarts=4, progress=False)
    assert bool((free.model.loc.diff(dim=0) > 0).all())  # by location, where nobody has numbered them
    assert_close(free.objective[-1], fit.objective[-1], rtol=1e-5, atol=0)


def test_the_first_feature_orders_states_that_differ_in_opposite_directions():
    """The sums over features of their standardised means are equal."""
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(2)).with_values(
        redraw_prob=0.1, state_probs=[0.5, 0.5], loc=[[0.0, 3.0], [3.0, 0.0]], scale=[[1.0, 1.0], [1.0, 1.0]]
    )
    x = model.simulate(80, seed=0).x
    for seed, unit in ((0, 1.0), (1, 0.1), (2, 1e3)):
        fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal(2)).fit(unit * x, restarts=2, seed=seed, progress=False)
        assert bool(fit.model.loc[0, 0] < fit.model.loc[1, 0])


def test_what_a_start_rules_out_stays_ruled_out_under_maximum_likelihood(x):
    moves = [[0.9, 0.1, 0.0], [0.0, 0.9, 0.1], [0.1, 0.0, 0.9]]
    fit = MODEL.fit(x, prior=None, start={"transition_probs": moves}, restarts=1, progress=False)
    assert_close(fit.model.transition_probs == 0, torch.tensor(moves) == 0)
    assert MODEL.fit(x, "vmp", start={"transition_probs": moves}, restarts=1, progress=False).converged


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"level": [0.0]}, "start: got unknown"),
        ({"loc": [[0.0], [1.0]]}, "start: loc: got shape"),
        ({"scale": [[-1.0], [1.0], [1.0]]}, "start: scale: got -1"),
        ({"scale": [[1.0]] * 3, "precision": [[1.0]] * 3}, "start: scale"),
        (MODEL, "start: got a model without values"),
        (np.zeros(7), "start: got labels of shape"),
        (np.full(150, 3), "expected states 0 to 2"),
        (np.full(150, 0.5), "expected states 0 to 2"),
    ],
)  # fmt: skip
def test_a_start_that_does_not_fit_is_refused(x, start, message):
    with pytest.raises(ValueError, match=message):
        MODEL.fit(x, start=start, progress=False)


def test_labels_that_are_no_numbers_are_refused(x):
    labels = torch.zeros(150)
    for bad in (labels.to("meta"), labels.to_sparse(), labels + 1j):
        with pytest.raises(TypeError, match=r"^start: got "):
            MODEL.fit(x, start=bad, progress=False)


# ---- what to hold ----------------------------------------------------------------------------------------------------

HELD = [
    {"loc": [[3.0], [0.0], [-3.0]]},
    {"scale": [[1.0], [1.0], [1.0]]},
    {"loc": [[3.0], [0.0], [-3.0]], "scale": [[1.0], [1.2], [1.0]]},
    {"transition_probs": [[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]]},
]


@pytest.mark.few(3)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fixed", HELD, ids=["loc", "scale", "emission", "moves"])
def test_what_is_fixed_is_held_by_every_method(monkeypatch, x, method, fixed):
    from samplehold.switching.fitting import sampling

    monkeypatch.setattr(sampling, "CHAINS", 1)
    steps = 500 if method in ("em", "vmp") else 4
    fit = MODEL.fit(x, method, fixed=fixed, restarts=2, progress=False, **effort(method, steps))
    given = {name: torch.tensor(value, dtype=torch.float64) for name, value in fixed.items()}
    expected = TRUTH.with_values(TRUTH.describe() | given)
    for name in fixed:
        own = "precision" if name == "scale" else name
        assert_close(fit.model.values[own], expected.values[own], rtol=1e-12, atol=0)
        if fit.posterior is not None:
            for end in fit.posterior.interval(0.9, n=50):
                assert_close(end[own], expected.values[own], rtol=1e-12, atol=0)
    n_held = sum(expected.values["precision" if name == "scale" else name].numel() for name in fixed)
    n_held -= 3 * ("transition_probs" in fixed)
    assert fit.n_parameters == MODEL_SIZE - n_held
    if "loc" not in fixed:
        assert not torch.equal(fit.model.loc, TRUTH.loc)


@pytest.mark.few(1)
@pytest.mark.parametrize("fixed", HELD[:2], ids=["loc", "scale"])
@pytest.mark.parametrize("prior", [None, "weak"])
def test_what_is_left_is_at_its_optimum(x, fixed, prior):
    fit = MODEL.fit(x, fixed=fixed, prior=prior, tol=1e-10, progress=False)
    problem = fit.model.problem(x)
    free = {name: value.clone().requires_grad_() for name, value in fit.model.values.items()}
    objective = problem.chain(free).log_normalizer() + (0 if prior is None else problem.log_prior(free))
    name = "precision" if "loc" in fixed else "loc"
    slope = torch.autograd.grad(objective, free[name])[0]
    scale = free["precision"].rsqrt() if name == "loc" else free["precision"]
    assert float((slope * scale).abs().max()) < 1e-3  # nats for a step as long as the parameter's own size
    assert float(fit.objective.diff().min()) > -1e-9


@pytest.mark.slow
def test_a_summary_tells_what_was_held(x):
    fit = MODEL.fit(x, fixed={"loc": TRUTH.loc}, progress=False)
    summary = fit.summary()
    assert summary.parameters.filter(like="loc", axis=0)["standard error"].isna().all()
    assert summary.parameters.filter(like="scale", axis=0)["standard error"].notna().all()
    assert "Held as given: loc." in str(summary)
    short = MODEL.fit(x, restarts=1, max_steps=2, progress=False)
    assert short.reason.capitalize()[:40] in str(short.summary())


def test_a_bound_rises_with_a_block_held_and_is_below_the_free_one(x):
    fixed = {"transition_probs": TRUTH.transition_probs}
    fit = MODEL.fit(x, "vmp", fixed=fixed, progress=False)
    assert fit.converged
    assert float(fit.objective.diff().min()) > -1e-9
    # q of what is left, and the paths: below the evidence under what is held, averaged over the prior of the rest
    joint = fit.model.log_evidence(x)
    assert float(fit.objective[-1]) < float(joint)
    smooth = fit.posterior.smooth(x)
    assert_close(smooth.state.sum(-1), torch.ones(150, dtype=torch.float64))


@pytest.mark.few(2)
@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_em_holds_a_part_of_every_model_and_starts_from_itself(dynamics, emission):
    model, keywords = random_model(dynamics, emission, seed=1), drive(dynamics, (), 40)
    x = model.simulate(40, seed=0, **keywords).x
    name = next(iter(model.emission.parameters))
    fit = model.fit(x, start=model, fixed={name: model.values[name]}, restarts=1, progress=False, **keywords)
    assert_close(fit.model.values[name], model.values[name])
    assert float(fit.objective.diff().min()) > -1e-6
    # the objective is the density of constants at the inputs where their prior is stated
    problem, values, center = fit.model.problem(x, **keywords), fit.model.values, fit.model.prior.get("inputs_center")
    if center is not None:
        values = Frame(problem.responses, problem.inputs, center, torch.ones_like(center)).into(values)
    joint = fit.model.log_evidence(x, **keywords) + problem.about_inputs(center).log_prior(values)
    assert_close(fit.objective[-1], joint, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"level": 1.0}, "fixed: got unknown"),
        ({"loc": [[1.0]]}, "fixed: loc: got shape"),
        (TRUTH.values, "nothing to fit"),
    ],
)
def test_what_cannot_be_held_is_refused(x, fixed, message):
    with pytest.raises(ValueError, match=message):
        MODEL.fit(x, fixed=fixed, progress=False)
    with pytest.raises(TypeError, match="fixed: got list"):
        MODEL.fit(x, fixed=["loc"], progress=False)


def test_models_of_several_chains_say_that_they_take_neither(x):
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    zero = torch.zeros(2, 1, dtype=torch.float64)
    model = factorial_of(half, [half, half], [zero, zero], torch.eye(1, dtype=torch.float64))
    for name in ("start", "fixed"):
        with pytest.raises(TypeError, match=f"fit: has no option '{name}'"):
            model.fit(x, **{name: np.zeros(150)})


@pytest.mark.few(1)
@pytest.mark.parametrize("method", METHODS)
def test_a_single_number_and_probabilities_of_zero_can_be_held(monkeypatch, method):
    from samplehold.switching.fitting import sampling

    monkeypatch.setattr(sampling, "CHAINS", 1)
    rng = np.random.default_rng(0)
    x = torch.from_numpy(np.concatenate([rng.normal(0, 1, 40), rng.normal(4, 1, 40)]))
    steps = 300 if method in ("em", "vmp") else 4
    copy, markov = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)), sh.SwitchingSSM(sh.Markov(3), sh.Normal(1))
    symbols = sh.SwitchingSSM(sh.Markov(2), sh.Categorical(2))
    cases = [
        (copy, x, {"redraw_prob": 0.1}),
        (copy, x, {"state_probs": [1.0, 0.0]}),
        (markov, x, {"transition_probs": [[0.9, 0.1, 0.0], [0.0, 0.9, 0.1], [0.0, 0.0, 1.0]]}),
        (symbols, (x > 2).long(), {"probs": [[1.0, 0.0], [0.2, 0.8]]}),
    ]
    for model, series, fixed in cases:
        fit = model.fit(series, method, fixed=fixed, restarts=2, progress=False, **effort(method, steps))
        for name, value in fixed.items():
            assert_close(fit.model.values[name], torch.tensor(value, dtype=torch.float64), rtol=0, atol=0)
        assert bool(fit.objective.isfinite().all())


@pytest.mark.parametrize("fixed", [{"redraw_intercept": 0.5}, {"redraw_weights": [-1.0, 0.5]}], ids=str)
@pytest.mark.parametrize("prior", [None, "weak"])
def test_of_what_moves_a_gate_each_can_be_held_alone(fixed, prior):
    inputs = torch.randn(150, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth = sh.SwitchingSSM(sh.Copy(2, inputs=2), sh.Normal(1)).with_values(
        redraw_intercept=-1.0, redraw_weights=[1.0, 0.0], state_probs=[0.5, 0.5], loc=[[-3.0], [3.0]], scale=[[1.0]] * 2
    )
    x = truth.simulate(150, inputs=inputs, seed=0).x.double()
    model = sh.SwitchingSSM(truth.dynamics, truth.emission)
    options = {"fixed": fixed, "prior": prior, "start": truth, "restarts": 1, "tol": 1e-9}
    fit = model.fit(x, "em", inputs=inputs, progress=False, **options)
    assert fit.converged
    assert float(fit.objective.diff().min()) > -1e-9
    free = ({"redraw_intercept", "redraw_weights"} - set(fixed)).pop()
    series = model.read(x, inputs=inputs)
    problem = (model.scaled_to(series) if prior else model).problem(series)
    problem = problem if prior else replace(problem, prior=None)
    values = {name: value.clone() for name, value in fit.model.values.items()}
    values[free].requires_grad_()
    (slope,) = torch.autograd.grad(problem.objective(values), values[free])
    assert_close(slope, torch.zeros_like(slope), rtol=0, atol=0.01)


@pytest.mark.slow
def test_a_start_that_is_differentiated_is_a_start():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
    x = torch.tensor([0.0, 0.1, -0.1, 5.0, 5.1, 4.9])
    loc = torch.tensor([[0.0], [5.0]])
    expected = model.fit(x, start={"loc": loc}, progress=False).model.loc
    assert torch.equal(model.fit(x, start={"loc": loc.clone().requires_grad_()}, progress=False).model.loc, expected)


def test_a_prior_is_not_scaled_to_a_feature_of_which_nothing_was_observed():
    x = torch.tensor([[0.0, torch.nan], [1.0, torch.nan]])
    with pytest.raises(ValueError, match=r"x: feature 1 \(x\[1\]\) has no observed value"):
        sh.SwitchingSSM(sh.Copy(2), sh.Normal(2)).scaled_to(x)
