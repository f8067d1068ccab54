"""Hazards of `Segments` that depend on inputs: a change is a gate of a logit."""

from dataclasses import replace
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from oracles.every_segmentation import evidences, segmentations
from oracles.streams import assert_stream_is_filter
from samplehold.switching.segments.hyperparameters import sites
from samplehold.switching.segments.rows import with_state
from torch import Tensor
from torch.nn.functional import logsigmoid

FLOAT, NAMES = torch.float64, ["dose", "age"]
X = torch.tensor([[1.0], [0.0], [float("nan")], [7.0], [9.0], [2.0]], dtype=FLOAT)
INPUTS = torch.tensor([[0.3, 1.0], [-1.0, 0.0], [0.5, -2.0], [1.2, 0.4], [-0.4, 0.9], [0.9, 0.1]], dtype=FLOAT)
VALUES: dict[str, Any] = {"hazard_intercept": -0.7, "hazard_weights": [1.5, -0.8], "shape": 1.5, "rate": 0.4}
CHANCES = torch.sigmoid(-0.7 + INPUTS @ torch.tensor([1.5, -0.8], dtype=FLOAT))


def by_inputs(**options: Any) -> sh.Segments:
    return sh.Segments(sh.Poisson(), NAMES, **options).with_values(VALUES)


def joints(x: Tensor, chances: Tensor) -> tuple[list[tuple[int, ...]], Tensor]:
    """All segmentations and their log joints, with a probability of a change before each step."""
    tables = with_state(sh.Poisson(), {name: torch.tensor([VALUES[name]], dtype=FLOAT) for name in ("shape", "rate")})
    begins, values = [], []
    for one in segmentations(evidences(sh.Poisson(), tables, x), [0.5] * len(x)):
        begun = torch.tensor([t in one.begins for t in range(1, len(x))])
        gates = torch.where(begun, chances[1 : len(x)], 1 - chances[1 : len(x)]).log().sum()
        begins.append(one.begins)
        values.append(one.log_joint - (len(x) - 1) * torch.tensor(0.5, dtype=FLOAT).log() + gates)
    return begins, torch.stack(values)


def test_inference_equals_enumeration():
    begins, log_joint = joints(X, CHANCES)
    model, weights = by_inputs(), log_joint.softmax(0)
    change = torch.stack([weights[[t in one for one in begins]].sum() for t in range(len(X))])
    smoothed, best = model.smooth(X, inputs=INPUTS), model.viterbi(X, inputs=INPUTS)
    torch.testing.assert_close(model.log_evidence(X, inputs=INPUTS), log_joint.logsumexp(0), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(smoothed.change, change, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(best.log_probability, log_joint.max(), rtol=1e-10, atol=1e-10)
    assert best.redraw is not None
    assert tuple(best.redraw.nonzero().flatten().tolist()) == begins[int(log_joint.argmax())]


def test_the_gradient_in_the_weights_is_that_of_all_segmentations():
    def enumerated(weights: Tensor) -> Tensor:
        return joints(X, torch.sigmoid(weights[0] + INPUTS @ weights[1:]))[1].logsumexp(0)

    at = torch.tensor([-0.7, 1.5, -0.8], dtype=FLOAT, requires_grad=True)
    expected = torch.autograd.grad(enumerated(at), at)[0]
    problem = by_inputs().problem(X, inputs=INPUTS)
    values = by_inputs().values | {"hazard_intercept": at[0], "hazard_weights": at[1:]}
    torch.testing.assert_close(torch.autograd.grad(problem.evidence(values), at)[0], expected, rtol=1e-9, atol=1e-10)


def test_the_program_has_the_density_of_the_engine():
    """The sites of changes alone differ from those of a constant hazard, whose program a test compares with all
    segmentations."""
    constant = sh.Segments(sh.Poisson(), 0.5).with_prior({"shape": 1.5, "rate": 0.4})
    for begins, log_joint in zip(*joints(X, CHANCES), strict=True):
        known = {f"rate_{t}": torch.tensor([[2.0]], dtype=FLOAT) for t in range(1, len(X) + 1)}
        known |= {f"z_{t}": torch.tensor(float(t - 1 in begins), dtype=FLOAT) for t in range(2, len(X) + 1)}
        ours = pyro.poutine.trace(pyro.condition(by_inputs(), known)).get_trace(X, inputs=INPUTS)
        plain = pyro.poutine.trace(pyro.condition(constant, known)).get_trace(X)
        same = joints(X, torch.full((len(X),), 0.5, dtype=FLOAT))
        expected = log_joint - same[1][same[0].index(begins)]
        torch.testing.assert_close(ours.log_prob_sum() - plain.log_prob_sum(), expected, rtol=1e-9, atol=1e-9)


def test_a_forecast_needs_the_inputs_to_come_and_is_the_ratio_of_evidences():
    model, ahead = by_inputs(), torch.cat([INPUTS, INPUTS[:2] + 0.5])
    after = torch.cat([X, torch.full_like(X[:1], torch.nan), X[4:5]])
    gained = model.log_evidence(after, inputs=ahead) - model.log_evidence(X, inputs=INPUTS)
    forecast = model.forecast(X, 2, inputs=ahead)
    torch.testing.assert_close(forecast.observation.log_prob(X[4])[1], gained, rtol=1e-9, atol=1e-10)
    chances = torch.sigmoid(-0.7 + ahead[-2:] @ torch.tensor([1.5, -0.8], dtype=FLOAT))
    torch.testing.assert_close(forecast.redraw, 1 - (1 - chances).cumprod(0))
    with pytest.raises(ValueError, match=r"inputs: got shape \(6, 2\), expected \(8, 2\)"):
        model.forecast(X, 2, inputs=INPUTS)


@pytest.mark.parametrize("shared", [False, True])
def test_a_stream_reads_the_inputs_of_each_update(shared):
    model, both = by_inputs(shared=shared), torch.stack([X, X.flip(0)])
    inputs = INPUTS.expand(2, -1, -1) if shared else torch.stack([INPUTS, -INPUTS])
    assert_stream_is_filter(model, both, "log_increment", "change", inputs=inputs)
    assert_stream_is_filter(by_inputs(), X[:3], inputs=INPUTS[:3], dt=torch.tensor([1.0, 2.0, 0.0]))


def test_gaps_count_as_steps_with_the_inputs_of_their_end():
    filled, beside = torch.stack([X[0], torch.full_like(X[0], torch.nan), X[3]]), INPUTS[[0, 3, 3]]
    gaps = by_inputs().log_evidence(X[[0, 3]], inputs=INPUTS[[0, 3]], dt=[1.0, 2.0])
    torch.testing.assert_close(gaps, by_inputs().log_evidence(filled, inputs=beside))
    ahead = by_inputs().forecast(X[[0, 3]], 1, inputs=INPUTS[[0, 3, 4]], dt=[1.0, 2.0, 3.0])
    torch.testing.assert_close(ahead.redraw, 1 - (1 - CHANCES[4:5]) ** 3)


def test_panels_lengths_float32_and_names():
    model, both = by_inputs(), torch.stack([X, X.flip(0)])
    inputs = torch.stack([INPUTS, -INPUTS])
    alone = model.smooth(X.flip(0)[:4], inputs=-INPUTS[:4])
    torch.testing.assert_close(model.smooth(both, lengths=[6, 4], inputs=inputs).change[1, :4], alone.change)
    ragged = model.smooth([X, X.flip(0)[:4]], inputs=[INPUTS, -INPUTS[:4]], ragged=True)
    torch.testing.assert_close(ragged[1].change, alone.change)
    single = model.smooth(both.float(), inputs=inputs.float())
    assert single.change.dtype == torch.float32
    torch.testing.assert_close(single.change.double(), model.smooth(both, inputs=inputs).change, rtol=1e-5, atol=1e-6)
    by_name = {"age": INPUTS[:, 1], "other": INPUTS[:, 0], "dose": INPUTS[:, 0]}
    torch.testing.assert_close(model.log_evidence(X, inputs=by_name), model.log_evidence(X, inputs=INPUTS))


def test_the_emission_may_read_other_inputs():
    numbers = {"loc": 0.5, "count": 0.3, "shape": 2.0, "rate": 0.7}
    model = sh.Segments(sh.LinearRegression(1, ["dose"]), ["age"])
    model = model.with_values(hazard_intercept=-1.0, hazard_weights=[0.5], **numbers)
    assert model.inputs == ("age", "dose")
    both = {"dose": INPUTS[:, 0], "age": INPUTS[:, 1]}
    chances = torch.sigmoid(-1.0 + 0.5 * INPUTS[:, 1])
    constant = sh.Segments(sh.LinearRegression(1, ["dose"]), 0.5).with_prior(numbers)
    gained = model.log_evidence(X[:2], inputs={name: table[:2] for name, table in both.items()})
    # of two steps: one segment, or a change
    one = constant.with_values(hazard=1e-14).log_evidence(X[:2], inputs={"dose": INPUTS[:2, 0]})
    two = constant.with_values(hazard=1 - 1e-14).log_evidence(X[:2], inputs={"dose": INPUTS[:2, 0]})
    expected = torch.logaddexp(one + torch.log1p(-chances[1]), two + chances[1].log())
    torch.testing.assert_close(gained, expected, rtol=1e-9, atol=1e-9)
    state = model.start()
    for t in range(2):
        state, _ = model.update(state, X[t], inputs={"dose": INPUTS[t, 0], "age": INPUTS[t, 1]})
    torch.testing.assert_close(state.log_evidence, gained, rtol=1e-9, atol=1e-10)
    columns = "change loc loc_sd coefficients coefficients_sd scale scale_sd"
    assert [*model.states(X, inputs=both)] == columns.split()


@pytest.fixture(scope="module")
def fitted() -> Any:
    """Of changes that come with an input."""
    truth = by_inputs().with_values(hazard_intercept=-3.0, hazard_weights=[2.0, 0.0], shape=2.0, rate=0.1)
    inputs = torch.randn(150, 2, generator=torch.Generator().manual_seed(3), dtype=FLOAT)
    x = truth.simulate(150, inputs=inputs, seed=1).x
    known = {"shape": 2.0, "rate": 0.1}
    return sh.Segments(sh.Poisson(), NAMES).fit(x, inputs=inputs, fixed=known, restarts=1, progress=False, seed=0)


def test_a_fit_recovers_the_weights(fitted):
    assert fitted.converged
    summary = fitted.summary().parameters
    for name, truth in (("hazard_intercept", -3.0), ("hazard_weights[dose]", 2.0), ("hazard_weights[age]", 0.0)):
        row = summary.loc[name]
        assert abs(row["estimate"] - truth) < 3 * row["standard error"], name
    assert float(fitted.model.hazard_weights[0]) > 1.0
    assert fitted.n_parameters == 3
    ahead = fitted.forecast(2, inputs=torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
    assert float(ahead.redraw[1]) > 3 * float(ahead.redraw[0])


def test_draws_of_the_weights_have_the_density_of_the_objective():
    model = sh.Segments(sh.Poisson(), NAMES).with_prior({"hazard": dist.Beta(1.0, 4.0)})
    known = {"shape": 1.5, "rate": 0.4}
    options: dict[str, Any] = {"restarts": 1, "num_samples": 2, "warmup_steps": 1}
    fit = model.fit(X, "nuts", inputs=INPUTS, fixed=known, progress=False, seed=0, **options)
    assert fit.posterior.draws["hazard_weights"].shape == (2, 2, 2)
    problem = replace(fit.model.scaled_to(X, inputs=INPUTS).problem(X, inputs=INPUTS), fixed=fit.held)
    draws = {name: table[0] for name, table in fit.posterior.draws.items()}
    torch.testing.assert_close(fit.objective[:2], problem.objective(draws).double(), rtol=1e-8, atol=1e-8)
    one = {name: table[0] for name, table in draws.items()}
    logit = one["hazard_intercept"]
    prior = dist.Beta(1.0, 4.0).log_prob(torch.sigmoid(logit)) + logsigmoid(torch.stack([logit, -logit])).sum()
    scale = 2.5 / INPUTS.double().std(0, correction=0)  # the prior of weights is about inputs of unit variance
    prior = prior + dist.Normal(0.0, scale).log_prob(one["hazard_weights"]).sum()
    torch.testing.assert_close(problem.log_prior(one), prior)


def test_without_values_the_program_draws_the_weights():
    model = sh.Segments(sh.Poisson(), "dose")
    with pyro.poutine.trace() as tracer:
        model(n_steps=3, batch_shape=(2,), inputs=torch.zeros(2, 3, 1).double())
    drawn = {name: tracer.trace.nodes[name]["value"] for name in model.known}
    made = sites(model.known, model.prior, model.hazard)
    total = sum(tracer.trace.nodes[site.name]["fn"].log_prob(drawn[site.name]).sum() for site in made)
    problem = model.problem(torch.zeros(3, 1).double(), inputs=torch.zeros(3, 1).double())
    torch.testing.assert_close(problem.log_prior(drawn), total)


def test_a_hazard_is_the_same_after_files(tmp_path):
    model = by_inputs()
    changed = model.with_prior({"hazard": dist.Beta(2.0, 30.0)})
    for one in (model, changed):
        one.save(tmp_path / "model")
        again = sh.load(tmp_path / "model")
        assert again.hazard == one.hazard
        assert repr(again) == repr(one)
    assert "hazard=['dose', 'age']" in repr(model)
    assert changed.prior["hazard_concentration"].tolist() == [2.0, 30.0]


REFUSED = {
    "hazard: got no names": (lambda: sh.Segments(sh.Normal(), []), ValueError),
    "hazard: got 'dose' twice": (lambda: sh.Segments(sh.Normal(), ["dose", "dose"]), ValueError),
    "hazard: got int, expected names": (lambda: sh.Segments(sh.Normal(), ["dose", 2]), TypeError),
    "prior.'hazard'.: got Normal, expected a Beta": (
        lambda: by_inputs().with_prior({"hazard": dist.Normal(0.0, 1.0)}),
        TypeError,
    ),
    "inputs: got 2 in one part and names in another": (
        lambda: sh.Segments(sh.LinearRegression(1, 2), NAMES),
        ValueError,
    ),
    "inputs: missing; the model reads 2": (lambda: by_inputs().smooth(X), ValueError),
    "inputs: got NaN or infinite values, first at step 1": (
        lambda: by_inputs().smooth(X, inputs=torch.where(INPUTS == -1, torch.nan, INPUTS)),
        ValueError,
    ),
    "inputs: input 'age' of sequence 1 at step 2 differs .* shared=True": (
        lambda: by_inputs(shared=True).smooth(
            torch.stack([X, X]), inputs=torch.stack([INPUTS, torch.where(INPUTS == -2, 0.0, INPUTS)])
        ),
        ValueError,
    ),
    "inputs: .* linearly dependent": (
        lambda: sh.Segments(sh.Poisson(), NAMES).fit(X, inputs=INPUTS[:, :1].expand(-1, 2), progress=False),
        ValueError,
    ),
    "model: has no values of hazard_intercept, hazard_weights, shape, rate yet": (
        lambda: sh.Segments(sh.Poisson(), NAMES).smooth(X, inputs=INPUTS),
        ValueError,
    ),
    "hazard_weights: weights times inputs overflow the logit": (
        lambda: by_inputs().with_values({**VALUES, "hazard_weights": [1.0, 1e300]}).smooth(X.float(), inputs=INPUTS),
        ValueError,
    ),
    "name: got 'dose', but the states of a Segments read no inputs": (
        lambda: (
            sh.Segments(sh.Poisson(), NAMES)
            .fit(X, inputs=INPUTS, restarts=1, max_steps=1, progress=False)
            .plot_effect("dose")
        ),
        ValueError,
    ),
    "inputs: missing": (lambda: by_inputs().update(by_inputs().start(), [1.0]), ValueError),
}


@pytest.mark.parametrize("message", REFUSED)
@pytest.mark.usefixtures("as_users_call")
def test_bad_input_is_refused(message):
    call, kind = REFUSED[message]
    with pytest.raises(kind, match=message):
        call()
