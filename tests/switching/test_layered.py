"""The layered model: program, product chain and enumeration are one density; sweeps raise a bound on its evidence."""

import itertools

import pytest
import torch
from oracles.coupled import check_point_masses, enumerate_all, layered_of
from oracles.models import EMISSIONS
from samplehold.face.chains import CopyChain
from torch.testing import assert_close


def random_model(seed=0, n_states=(2, 3), emission="normal"):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    values = {
        "normal": {"loc": draw(n_states[0], 2), "precision": draw(n_states[0], 2).exp()},
        "gated": {
            "loc": draw(n_states[0], 2),
            "precision": draw(n_states[0], 2).exp(),
            "background_loc": draw(1, 2),
            "background_precision": draw(1, 2).exp(),
        },
        "categorical": {"probs": draw(n_states[0], 3).softmax(-1)},
    }[emission]
    return layered_of(
        emission=EMISSIONS[emission],
        values=values,
        redraw_prob=torch.sigmoid(draw(len(n_states))),
        tables=[(2 * draw(above, below)).softmax(-1) for below, above in itertools.pairwise(n_states)],
        state_probs=draw(n_states[-1]).softmax(-1),
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("emission", "n_states", "n_steps"), [("normal", (2, 3), 2), ("gated", (2, 2), 3), ("categorical", (2, 2, 2), 2)]
)
def test_product_chain_equals_enumeration(emission, n_states, n_steps):
    model = random_model(1, n_states, emission)
    x = model.simulate(n_steps, seed=1).x
    expected, marginals, gates = enumerate_all(model, x)
    found, filtered = model.smooth(x), model.filter(x)
    assert_close(found.log_normalizer, expected, rtol=1e-10, atol=1e-10)
    assert_close(found.redraw, gates, rtol=1e-9, atol=1e-11)
    assert_close(filtered.redraw[-1], gates[-1], rtol=1e-9, atol=1e-11)
    for layer in range(len(n_states)):
        assert_close(found.state[layer], marginals[layer], rtol=1e-9, atol=1e-11)
        assert_close(filtered.state[layer][-1], marginals[layer][-1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("emission", ["normal", "gated", "categorical"])
def test_log_joint_at_point_masses_equals_the_program(emission):
    model = random_model(2, (3, 2, 2), emission)
    draw = model.simulate(6, seed=3)
    check_point_masses(model, draw, "layer")


@pytest.mark.parametrize("emission", ["normal", "gated"])
def test_elbo_rises_with_every_update_and_stays_below_the_exact_evidence(emission):
    model = random_model(3, (3, 2, 2), emission)
    x = model.simulate(12, (2,), seed=2).x
    engine = model.engine(x)
    values = [v for _ in range(6) for v in engine.sweep().elbo.values()]
    assert all(b >= a - 1e-10 * abs(a) for a, b in itertools.pairwise(values))
    assert values[-1] > values[0]
    assert values[-1] < model.log_evidence(x).sum()
    assert model.infer(x).converged


def test_exact_where_layers_do_not_depend_on_each_other():
    model = random_model(4, (3, 2))
    model = layered_of(
        model.emission, model.values, model.redraw_prob, [model.tables[0][:1].repeat(2, 1)], model.state_probs
    )
    x = model.simulate(10, seed=1).x
    found, exact = model.infer(x), model.smooth(x)
    assert_close(found.elbo[-1], exact.log_normalizer, rtol=1e-10, atol=0)
    filtered, bottom_up = model.filter(x), model.bottom_up(x)
    for layer in range(2):
        assert_close(found.state[layer], exact.state[layer], rtol=1e-9, atol=1e-11)
        assert_close(bottom_up[layer].state, filtered.state[layer], rtol=1e-9, atol=1e-11)


def test_one_layer_is_a_copy_chain():
    model = random_model(5, (3,))
    x = model.simulate(10, seed=1).x
    found, exact = model.infer(x), model.smooth(x)
    assert_close(found.elbo[-1], exact.log_normalizer, rtol=1e-10, atol=0)
    assert_close(model.bottom_up(x)[0].log_normalizer, exact.log_normalizer, rtol=1e-10, atol=0)
    assert_close(found.state[0], exact.state[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("passed", ["redrawn", "state"])
def test_bottom_up_is_a_filter_of_softmaxed_beliefs_layer_by_layer(passed):
    model = random_model(6, (3, 2, 4), "gated")
    x = model.simulate(8, seed=1).x
    likelihood = model.emission.log_likelihood(x, model.values)
    redrawn, held = likelihood.redrawn, likelihood.held
    pi = [model.state_probs @ model.tables[1] @ model.tables[0], model.state_probs @ model.tables[1], model.state_probs]
    for layer, found in enumerate(model.bottom_up(x, passed=passed)):
        rho = model.redraw_prob[layer].repeat(8, 1)
        rho[0] = 1.0  # the first step redraws
        fresh, hold = (rho.log() + pi[layer].log() + redrawn), (1 - rho).log() + held
        hold = hold.expand_as(fresh)
        chain = CopyChain(None, fresh, hold)
        assert_close(found.state, chain.filter().state, rtol=1e-10, atol=1e-12)
        message = []
        for t in range(8):  # the posterior of a filter that stops at t: P(s_t, z_t = 1 | evidence up to t)
            stopped = CopyChain(None, fresh[: t + 1], hold[: t + 1]).marginals()
            message.append(stopped.fresh[-1] if passed == "redrawn" else (stopped.fresh + stopped.held)[-1])
        if layer < 2:
            redrawn = held = torch.stack(message) @ model.tables[layer].log().T


def test_beliefs_of_upper_layers_are_closer_to_the_exact_ones_than_the_prior_is():
    model = random_model(7, (3, 2))
    x = model.simulate(40, (20,), seed=1).x
    filtered, smoothed = model.filter(x).state, model.smooth(x).state
    online, offline = model.bottom_up(x), model.infer(x)
    for layer, prior in enumerate(model.fresh_probs):
        for exact, found in ((filtered, online[layer].state), (smoothed, offline.state[layer])):
            error = (found - exact[layer]).abs().mean()
            assert error < (prior - exact[layer]).abs().mean()


def test_ragged_and_missing_data_equal_their_sequences_one_by_one():
    model = random_model(8, (2, 2))
    x = model.simulate(6, (2,), seed=1).x
    x[0, 2] = torch.nan
    whole, parts = model.infer(x, lengths=[6, 3]), [model.infer(x[0]), model.infer(x[1, :3])]
    assert_close(whole.elbo[-1], parts[0].elbo[-1] + parts[1].elbo[-1], rtol=1e-8, atol=0)
    assert_close(model.log_evidence(x, lengths=[6, 3])[1], model.log_evidence(x[1, :3]), rtol=1e-12, atol=0)
    assert_close(
        model.bottom_up(x, lengths=[6, 3])[1].state[1, :3], model.bottom_up(x[1, :3])[1].state, rtol=1e-12, atol=0
    )


def test_bad_arguments_are_named():
    model = random_model(0, (2, 3))
    with pytest.raises(ValueError, match="redraw_prob: got shape"):
        layered_of(model.emission, model.values, model.redraw_prob[:1], model.tables, model.state_probs)
    with pytest.raises(ValueError, match=r"table_1: got shape \(3, 2\); LayeredSSM needs \[2, 2\]"):
        layered_of(model.emission, model.values, model.redraw_prob, model.tables, model.state_probs[:2])
    with pytest.raises(ValueError, match="rows of positive probabilities"):
        layered_of(model.emission, model.values, model.redraw_prob, [model.tables[0].round()], model.state_probs)
    with pytest.raises(ValueError, match="passed: got 'other'"):
        model.bottom_up(torch.zeros(3, 2), passed="other")
