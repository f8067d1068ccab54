"""When the state may be ignored in the update of the gate: three updates of a minGRU as I(x;z) -> H(z)."""

import math

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles.models import drive, random_model
from samplehold import Categorical, Copy, SwitchingSSM, as_rnn, filter_vmp
from samplehold.face.studies import information_sweep, input_gate_bound, input_gate_updates
from samplehold.models.studies.information import gaussian_model, mutual_information
from torch.testing import assert_close

pytestmark = pytest.mark.cpu("the study makes its models there")
UPDATES = ["probabilities", "logits", "logits, held evidence"]


@pytest.fixture(scope="module")
def sweep():
    return information_sweep((0.0, 1.0, 2.0, 4.0, 6.0, 8.0), n_steps=500)


def curve(sweep, held_steps, update, quantity="TV"):
    return torch.tensor(sweep.of(held_steps, update)[quantity].to_numpy())


@pytest.mark.slow
def test_information_is_measured_and_runs_from_near_nothing_to_the_entropy_of_the_gate(sweep):
    entropy = -(0.2 * math.log(0.2) + 0.8 * math.log(0.8))
    for held_steps in ("silent", "emitting"):
        rows = sweep.of(held_steps, "logits")
        information = rows["I(x;z), nats"]
        assert rows["H(z), nats"].tolist() == pytest.approx([entropy] * 6)
        assert information.iloc[0] < 0.05 * entropy
        assert information.iloc[-1] > 0.999 * entropy
        assert (information.diff()[1:] > 0).all()
        assert (information <= entropy).all()


@pytest.mark.parametrize(("separation", "emitting"), [(0.5, False), (3.0, False), (1.5, True)])
def test_information_by_quadrature_is_that_of_samples(separation, emitting):
    model = gaussian_model(separation, 2.0, 0.2, emitting)
    drawn = model.simulate(2, (200_000,), seed=0)  # the second step may hold
    x, z = drawn.x[:, 1], drawn.redraw[:, 1].bool()

    def density(centre):
        return (-0.5 * ((x - torch.tensor(centre)) ** 2).sum(-1)).exp() / (2 * math.pi)

    fresh = 0.5 * (density([separation, -1.0]) + density([separation, 1.0]))
    held = 0.5 * (density([0.0, -1.0]) + density([0.0, 1.0])) if emitting else density([0.0, 0.0])
    terms = (torch.where(z, fresh, held) / (0.2 * fresh + 0.8 * held)).log()
    error = 5 * float(terms.std()) / math.sqrt(len(terms))
    assert abs(float(mutual_information(model, separation, 2.0) - terms.mean())) < error


def test_no_separation_and_no_spread_tell_nothing():
    assert abs(float(mutual_information(gaussian_model(0.0, 0.0, 0.3), 0.0, 0.0))) < 1e-12


def test_beside_silent_steps_a_network_on_probabilities_is_exact_and_the_others_become_so(sweep):
    assert float(curve(sweep, "silent", "probabilities").max()) < 1e-12
    assert float(sweep.of("silent", "probabilities")["nats lost"].abs().max()) < 1e-12
    for name in ("linear gate", "logits", "logits, held evidence", "message passing"):
        distance = curve(sweep, "silent", name)
        assert (distance.diff() < 0).all(), name
        assert distance[-1] < 0.01 * distance[0], name
        assert distance[-1] < 5e-4, name
    assert (curve(sweep, "silent", "linear gate") < curve(sweep, "silent", "message passing")).all()
    assert_close(curve(sweep, "silent", "logits"), curve(sweep, "silent", "logits, held evidence"), rtol=0, atol=1e-12)


def test_beside_emitting_steps_a_network_becomes_exact_on_logits_and_not_on_probabilities(sweep):
    for quantity in ("TV", "nats lost", "gate error", "bound on TV"):
        distance = curve(sweep, "emitting", "logits, held evidence", quantity)
        assert distance[-1] < 0.07 * distance[0], quantity
    distance = curve(sweep, "emitting", "logits, held evidence")
    assert (distance.diff() < 0).all()
    assert distance[-1] < 1e-3 * distance[0]
    for name in ("probabilities", "logits"):  # both leave out the evidence of held steps
        distance = curve(sweep, "emitting", name)
        assert distance[-1] > 0.1, name
        assert curve(sweep, "emitting", name, "nats lost")[-1] > 0.05, name


@pytest.mark.parametrize("emission", ["normal", "gated", "gated_by_state", "gated_symbols"])
@pytest.mark.parametrize("dynamics", ["copy", "inputs"])
@examples(4)
@given(st.integers(0, 2**20))
def test_updates_and_their_bound_are_those_of_plain_loops(dynamics, emission, seed):
    model = random_model(dynamics, emission, seed)
    given_inputs = drive(dynamics, (), 12, seed)
    x = model.simulate(12, seed=seed, **given_inputs).x
    values, series = model.values, model.read(x, **given_inputs)
    fresh, held = (t.expand(12, 2) for t in model.emission.log_likelihood(x, values))
    prior = values["state_probs"].log()
    log_rho, log_hold = (t.expand(12) for t in model.dynamics.log_gate(values, series.drive, 0))
    got, bound = input_gate_updates(model, x, **given_inputs), input_gate_bound(model, x, **given_inputs)
    one = torch.ones((), dtype=torch.float64)
    start = (prior + fresh[0]).log_softmax(0)
    exact, logits, belief, distance = start, dict.fromkeys(UPDATES[1:], start), start.exp(), 0 * one
    for t in range(12):
        drawn = prior + fresh[t]
        odds = torch.stack([log_rho[t] + drawn.logsumexp(0), log_hold[t] + (prior + held[t]).logsumexp(0)])
        q = odds.softmax(0)[0] if t else one
        if t:
            kept = exact + held[t]
            belief = (1 - q) * belief + q * drawn.softmax(0)
            for name, evidence in zip(UPDATES[1:], (0.0, held[t]), strict=True):
                logits[name] = ((1 - q) * (logits[name] + evidence) + q * drawn).log_softmax(0)
            joint = torch.stack([log_rho[t] + drawn, log_hold[t] + kept])
            exact = joint.logsumexp(0).log_softmax(0)
            ratio = exact - ((1 - q) * kept + q * drawn)
            error, u = ratio.max() - ratio.min(), kept - drawn
            distance = (1 - q) * distance + error
            of_step = (u.max() - u.min()) * (joint.softmax(0)[0] - q).abs().max()
            scale = 1e-12 * float(fresh.abs().max() + held.abs().max())
            assert_close(bound.step[t], error, rtol=1e-10, atol=1e-10 + scale)
            assert_close(bound.of_step[t], of_step, rtol=1e-10, atol=1e-10 + scale)
            assert_close(bound.distance[t], distance, rtol=1e-10, atol=1e-10 + scale)
        assert_close(got["probabilities"][t], belief, rtol=1e-10, atol=1e-10)
        for name in UPDATES[1:]:
            assert_close(got[name][t], logits[name].exp(), rtol=1e-10, atol=1e-10)
        assert_close(bound.gate[t], q, rtol=1e-10, atol=1e-10)


@examples(10)
@given(st.integers(0, 2**20), st.sampled_from(["normal", "gated_by_state", "full", "poisson", "gated_symbols"]))
def test_the_distance_on_logits_is_within_its_bound_at_every_step(seed, emission):
    model = random_model("copy", emission, seed)
    x = model.simulate(200, (3,), seed=seed).x
    bound, update = input_gate_bound(model, x), filter_vmp(model, x, gate="input").state
    distance = (update - model.filter(x).state).abs().sum(-1) / 2
    assert bool((distance <= bound.total_variation + 1e-12).all())
    assert bool((bound.step <= bound.of_step + 1e-9 * (1 + bound.of_step)).all())
    entropy = torch.special.entr(bound.gate) + torch.special.entr(1 - bound.gate)
    assert bool((bound.gate * (1 - bound.gate) <= entropy / (4 * math.log(2)) + 1e-15).all())


def test_a_bound_beside_an_impossible_state_is_refused_and_names_the_step():
    model = SwitchingSSM(Copy(2), Categorical(2)).with_values(
        redraw_prob=0.2, state_probs=[0.5, 0.5], probs=[[1.0, 0.0], [0.5, 0.5]]
    )
    with pytest.raises(ValueError, match="x: some state is impossible at step 2"):
        input_gate_bound(model, [0, 0, 1])
    assert bool(input_gate_bound(model, [0, 0]).total_variation.isfinite().all())


def test_the_bound_tends_to_nothing_as_x_tells_the_gate():
    means = []
    for separation in (8.0, 16.0, 32.0):
        model = gaussian_model(separation, 2.0, 0.2, emitting=True)
        means.append(float(input_gate_bound(model, model.simulate(2000, seed=0).x).total_variation.mean()))
    assert means[0] < 0.1
    assert means[1] < 0.1 * means[0]
    assert means[2] < 1e-6


def test_the_linear_gate_leaves_out_the_stated_term_and_its_candidates_are_exact():
    model = gaussian_model(1.5, 2.0, 0.2)
    layer = as_rnn(model, gate="linear")
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    now = layer.activations(x)
    likelihood = model.emission.log_likelihood(x, model.values)
    assert_close(now.value, likelihood.redrawn.softmax(-1))
    drawn = (likelihood.redrawn + math.log(0.5)).logsumexp(-1)
    exact = math.log(0.2 / 0.8) + drawn - likelihood.held[:, 0]
    left_out = torch.log(torch.cosh(x[:, 1])) - 0.5
    assert_close(torch.logit(now.draw[:, 0]), exact - left_out)


def test_tables_and_pictures_of_a_sweep(sweep):
    table = sweep.summary()
    assert table.shape == (12, 6)
    assert table.index.names == ["held steps", "separation"]
    assert table["linear gate"].isna().tolist() == [False] * 6 + [True] * 6
    silent, emitting, lost = sweep.plot().axes
    drawn = {str(line.get_label()): line for line in emitting.lines}
    assert_close(torch.as_tensor(drawn["probabilities"].get_ydata()), curve(sweep, "emitting", "probabilities"))
    assert len(silent.lines) == 5
    assert lost.get_ylabel() == "nats lost a step"
    with pytest.raises(ValueError, match="redraw_prob: got 1"):
        information_sweep(redraw_prob=1.0)
    with pytest.raises(ValueError, match="separations: got"):
        information_sweep((0.0, -1.0))
