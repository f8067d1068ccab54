"""`filter_vmp` on models: what it shares with a minGRU, and how far it is from enumeration."""

import pytest
import torch
from oracles.copy_paths import enumerate_paths
from oracles.models import drive, random_model
from samplehold import Categorical, Copy, Gated, Markov, Normal, SwitchingSSM, filter_vmp, lerp_scan
from samplehold.inference.message_passing.stepwise.op import filter_steps
from torch.testing import assert_close


def exact(model, x):
    """P(s_t | x_1..t) and P(z_t = 1 | x_1..t) by enumeration of every path."""
    chain = model.chain(x)
    initial, fresh, held, lengths = getattr(chain, "multiplied_out", chain)._tables()
    found = enumerate_paths(fresh, held, initial, lengths)
    return found.filtered_state[0], found.filtered_redraw[0]


def in_float64(model):
    return model.with_values({name: value.double() for name, value in model.values.items()})


def separated(distance):
    """A gated model whose observations tell the gate the better, the farther its two means are apart."""
    model = SwitchingSSM(Copy(2), Gated(Normal(2), Normal(2)))
    return model.with_values(
        redraw_prob=0.4,
        state_probs=[0.3, 0.7],
        loc=[[distance, 1.0], [distance, -1.0]],
        scale=[[1.0, 1.0], [1.0, 1.0]],
        background_loc=[[-distance, 0.0]],
        background_scale=[[1.0, 1.0]],
    )


def overlapping(kind):
    """Models whose emissions leave states and gates uncertain."""
    if kind == "gated":
        return in_float64(separated(0.6))
    if kind == "normal":
        model = SwitchingSSM(Copy(3), Normal(1))
        model = model.with_values(
            redraw_prob=0.3, state_probs=[0.2, 0.5, 0.3], loc=[[0.0], [1.0], [2.5]], scale=[[1.0], [0.5], [1.5]]
        )
        return in_float64(model)
    model = SwitchingSSM(Copy(2), Categorical(3))
    model = model.with_values(redraw_prob=0.4, state_probs=[0.3, 0.7], probs=[[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]])
    return in_float64(model)


@pytest.mark.parametrize("emission", ["gated", "gated_symbols"])
def test_with_gated_emissions_and_an_input_gate_logits_follow_the_minGRU_step(emission):
    model = random_model("copy", emission, 3)
    x = model.simulate(200, (2,), seed=1).x
    found = filter_vmp(model, x, gate="input")
    values = model.values
    v = values["state_probs"].log() + model.emission.log_likelihood(x, values).redrawn
    h = lerp_scan(found.redraw.unsqueeze(-1).expand_as(v), v, torch.zeros_like(v[:, 0]))
    assert_close(found.state, torch.softmax(h, -1), rtol=1e-12, atol=1e-12)
    assert found.redraw[:, 1:].std() > 0.05  # the gate is not a constant
    assert not found.change.any()


def test_default_input_gate_of_a_gated_emission_is_the_exact_posterior_of_the_gate():
    model = overlapping("gated")
    x = model.simulate(5, seed=2).x
    found = filter_vmp(model, x, gate="input")
    state, redraw = exact(model, x)
    assert_close(found.redraw, redraw, rtol=1e-10, atol=1e-12)
    assert (found.state - state).abs().max() > 1e-4  # averaging logits is not averaging beliefs


@pytest.mark.slow
def test_input_and_posterior_gate_approach_the_exact_filter_as_the_input_tells_the_gate():
    errors = {"input": [], "posterior": []}
    for distance in (0.0, 1.0, 2.0, 4.0):
        model = separated(distance)
        x = model.simulate(400, (5,), seed=4).x
        state = model.filter(x).state
        for gate, error in errors.items():
            error.append(float((filter_vmp(model, x, gate=gate).state - state).abs().mean()))
    assert errors["input"][0] > 0.02
    assert errors["input"][-1] < 1e-3
    assert errors["posterior"][-1] < 1e-3


@pytest.mark.parametrize("emission", ["normal", "categorical"])
def test_conditional_form_is_the_exact_filter_of_states_where_gates_do_not_show(emission):
    model = overlapping(emission)
    x = model.simulate(5, seed=3).x
    state, redraw = exact(model, x)
    found = filter_vmp(model, x, form="conditional")
    assert_close(found.state, state, rtol=1e-10, atol=1e-12)
    assert_close(found.redraw[1:], model.values["redraw_prob"].expand(4), rtol=1e-12, atol=0)  # the gate learns nothing
    assert (redraw[1:] - model.values["redraw_prob"]).abs().max() > 1e-3
    mean_field = filter_vmp(model, x)
    assert (mean_field.state - state).abs().max() > 1e-4
    assert ((mean_field.redraw - redraw)[1:].abs() < (found.redraw - redraw)[1:].abs()).any()


def test_conditional_form_is_not_exact_where_gates_show():
    model = overlapping("gated")
    x = model.simulate(5, seed=2).x
    state, redraw = exact(model, x)
    found = filter_vmp(model, x, form="conditional", sweeps=200)
    assert (found.redraw - redraw).abs().max() > 1e-2
    assert (found.state - state).abs().max() > 1e-2


def test_a_gate_may_be_a_tensor_or_a_function_of_the_observations():
    model = random_model("copy", "normal", 1)
    x = model.simulate(6, (3,), seed=1).x
    probs = torch.sigmoid(x[..., 0])
    by_tensor = filter_vmp(model, x, gate=probs)
    by_function = filter_vmp(model, x, gate=lambda x: torch.sigmoid(x[..., 0]))
    assert torch.equal(by_tensor.state, by_function.state)
    assert torch.equal(by_tensor.redraw[:, 1:], probs[:, 1:])
    assert (by_tensor.redraw[:, 0] == 1).all()


@pytest.mark.parametrize("rho", [0.0, 1.0])
def test_exact_where_the_gate_is_certain(rho):
    model = random_model("copy", "normal", 2)
    model = model.with_values(model.values | {"redraw_prob": torch.tensor(rho, dtype=torch.float64)})
    x = model.simulate(20, (2,), seed=1).x
    expected = model.filter(x)
    for gate in ("posterior", "input"):
        found = filter_vmp(model, x, gate=gate)
        assert_close(found.state, expected.state, rtol=1e-10, atol=1e-12)
        assert_close(found.redraw, expected.redraw, rtol=1e-12, atol=0)


def test_inputs_and_gaps_move_the_gate_step_by_step():
    emission = {"loc": [[0.0], [1.0]], "scale": [[1.0], [0.7]], "state_probs": [0.4, 0.6]}
    model = SwitchingSSM(Copy(2, inputs=2), Normal(1))
    model = in_float64(model.with_values(emission | {"redraw_intercept": -0.5, "redraw_weights": [1.0, -0.5]}))
    keywords = drive("inputs", (2,), 12)
    keywords["dt"][1, 4] = 0.0
    x = model.simulate(12, (2,), seed=1, **keywords).x
    found, values = filter_vmp(model, x, **keywords), model.values
    logit = values["redraw_intercept"] + keywords["inputs"] @ values["redraw_weights"]
    rho = 1 - (1 - torch.sigmoid(logit)) ** keywords["dt"]
    likelihood = model.emission.log_likelihood(x, values)
    for b in range(2):
        for t in range(1, 12):  # one step on its own, from the belief before it
            tables = (table[b, t : t + 1] for table in likelihood)
            log_before = found.state[b, t - 1].log()
            alone = filter_steps(*tables, values["state_probs"].log(), torch.logit(rho[b, t : t + 1]), log_before)
            assert_close(found.state[b, t], alone.state[0], rtol=1e-9, atol=1e-11)
            assert_close(found.redraw[b, t], alone.redraw[0], rtol=1e-9, atol=1e-11)
    assert found.redraw[1, 4] == 0  # no time, no redraw
    assert (found.state - model.filter(x, **keywords).state).abs().mean() < 0.1
    given = filter_vmp(model, x, gate="input", **keywords)
    without_gaps = filter_vmp(model, x, gate="input", inputs=keywords["inputs"])
    assert (given.redraw - without_gaps.redraw).abs().max() > 0.1


def test_ragged_batches_equal_their_sequences_one_by_one():
    model = random_model("copy", "normal", 1)
    x = model.simulate(6, (3,), seed=1).x
    x[1, 1, 0] = torch.nan
    whole = filter_vmp(model, x, lengths=[6, 2, 4])
    for b, n in enumerate([6, 2, 4]):
        alone = filter_vmp(model, x[b, :n])
        assert_close(whole.state[b, :n], alone.state, rtol=1e-12, atol=0)
        assert not whole.state[b, n:].any()


def test_bad_arguments_are_named():
    model = random_model("copy", "normal", 1)
    x = model.simulate(6, seed=1).x
    with pytest.raises(ValueError, match="gate: got 'other'"):
        filter_vmp(model, x, gate="other")
    with pytest.raises(ValueError, match=r"gate: got shape \[3\], expected \[6\]"):
        filter_vmp(model, x, gate=torch.zeros(3))
    with pytest.raises(ValueError, match="model: has dynamics Markov"):
        filter_vmp(SwitchingSSM(Markov(2), Normal(2)), x)
    with pytest.raises(ValueError, match="inputs: missing"):
        filter_vmp(random_model("inputs", "normal", 1), x)
