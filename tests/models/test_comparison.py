"""What `compare` measures is what it says, of networks that are the filter and of those that are not."""

import itertools
import math

import matplotlib.dates as mdates
import numpy as np
import pandas as pd
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from samplehold import (
    GRU,
    LSTM,
    QRNN,
    Categorical,
    Copy,
    Elman,
    Gated,
    Markov,
    MinGRU,
    MinLSTM,
    Normal,
    SwitchingSSM,
    as_rnn,
    compare,
    filter_vmp,
    fit_probe,
    one_hot,
)
from samplehold.face.stacks import NondeterministicStackRNN, StratificationStackRNN, SuperpositionStackRNN
from samplehold.models.bridge.comparison import measure
from samplehold.models.bridge.gate_reading import read_gates
from samplehold.models.bridge.network_states import best_order
from sklearn.metrics import roc_auc_score
from torch.testing import assert_close


def rows(random, *shape):
    table = torch.rand(*shape, generator=random, dtype=torch.float64) ** 2 + 0.02
    return table / table.sum(-1, keepdim=True)


def make(kind="gated", states=3, tokens=5, redraw=0.2, seed=0):
    random = torch.Generator().manual_seed(seed)
    if kind == "markov":
        model = SwitchingSSM(Markov(states), Categorical(tokens))
        return model.with_values(
            initial_probs=rows(random, states),
            transition_probs=rows(random, states, states),
            probs=rows(random, states, tokens),
        )
    own = {"redraw_prob": redraw, "state_probs": rows(random, states), "probs": rows(random, states, tokens)}
    if kind == "held":
        return SwitchingSSM(Copy(states), Categorical(tokens)).with_values(own)
    model = SwitchingSSM(Copy(states), Gated(Categorical(tokens), Categorical(tokens)))
    return model.with_values(own | {"background_probs": rows(random, 1, tokens)})


def ragged(model, seed=0):
    x = model.simulate(40, (4,), seed=seed).x
    x[0, 7] = torch.nan
    return x, torch.tensor([40, 13, 1, 29])


def test_a_model_s_own_network_is_exact_in_everything():
    model = make()
    x, lengths = ragged(model)
    report = compare(model, as_rnn(model), x, lengths=lengths)
    assert report.reads == "belief"
    assert report.probe is None
    assert report.network.total_variation.max() < 1e-14
    assert report.network.divergence.max() < 1e-13
    assert report.network.gate_error is not None
    assert report.network.gate_error.max() < 1e-14
    assert report.network.evidence_lost.abs().max() < 1e-13
    logits = compare(model, as_rnn(model, space="logit"), x, lengths=lengths)
    assert logits.reads == "logits"
    expected = filter_vmp(model, x, gate="input", lengths=lengths)
    assert_close(logits.network.state, expected.state, rtol=0, atol=1e-12)
    assert logits.network.total_variation.max() > 0.01


@pytest.mark.parametrize("kind", ["gated", "held"])
def test_every_measure_of_every_step_is_its_formula(kind):
    """A loop over sequences, steps and states in plain floats."""
    model = make(kind)
    x, lengths = ragged(model)
    report = compare(model, MinGRU(5, 3, candidate="simplex", dtype=torch.float64), x, lengths=lengths)
    exact = model.filter(x, lengths=lengths)
    values = {name: table.tolist() for name, table in model.values.items()}
    for sweeps, name in ((100, "message passing"), (1, "one sweep")):
        found = filter_vmp(model, x, sweeps=sweeps, lengths=lengths)
        assert_close(report.updates[name].state, found.state)
        assert_close(report.updates[name].redraw, found.redraw)
    for update in report.updates.values():
        for b, length in enumerate(lengths.tolist()):
            for t in range(length):
                a, q = exact.state[b, t].tolist(), update.state[b, t].tolist()
                tv = 0.5 * sum(abs(u - v) for u, v in zip(a, q, strict=True))
                kl = sum(u * math.log(u / v) for u, v in zip(a, q, strict=True) if u > 0)
                assert float(update.total_variation[b, t]) == pytest.approx(tv, abs=1e-13)
                assert float(update.divergence[b, t]) == pytest.approx(kl, abs=1e-12)
                assert update.gate_error is not None
                assert update.redraw is not None
                gate = abs(float(update.redraw[b, t]) - float(exact.redraw[b, t]))
                assert float(update.gate_error[b, t]) == pytest.approx(gate, abs=1e-13)
                lost = 0.0
                if t > 0 and not math.isnan(x[b, t, 0]):
                    k = int(x[b, t, 0])

                    def evidence(belief, k=k):
                        rho = values["redraw_prob"]
                        drawn = sum(p * r[k] for p, r in zip(values["state_probs"], values["probs"], strict=True))
                        if kind == "gated":
                            return rho * drawn + (1 - rho) * values["background_probs"][0][k]
                        return rho * drawn + (1 - rho) * sum(
                            u * r[k] for u, r in zip(belief, values["probs"], strict=True)
                        )

                    before = exact.state[b, t - 1].tolist(), update.state[b, t - 1].tolist()
                    lost = math.log(evidence(before[0])) - math.log(evidence(before[1]))
                    assert float(exact.log_increment[b, t]) == pytest.approx(math.log(evidence(before[0])))
                assert float(update.evidence_lost[b, t]) == pytest.approx(lost, abs=1e-12)
            for table in (update.total_variation, update.divergence, update.evidence_lost, update.gate_error):
                assert table is not None
                assert (table[b, length:] == 0).all()


def test_a_markov_model_has_no_gates_and_its_evidence_is_lost_by_its_own_moves():
    model = make("markov")
    x = model.simulate(60, (4,), seed=1).x
    report = compare(model, GRU(5, 8, dtype=torch.float64), x)
    assert list(report.updates) == ["network"]
    assert report.network.redraw is None
    exact = model.filter(x)
    before, table = report.network.state[:, :-1], model.values["transition_probs"]
    likelihood = model.values["probs"].T[x[:, 1:, 0].long()]
    evidence = ((before @ table) * likelihood).sum(-1).log()
    assert_close(report.network.evidence_lost[:, 1:], exact.log_increment[:, 1:] - evidence)
    assert (report.network.evidence_lost[:, 0].abs() < 1e-14).all()
    assert measure(model.chain(x), exact, exact.state, None, report.inside).total_variation.max() == 0


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", [MinGRU, MinLSTM, GRU, LSTM, Elman, torch.nn.GRU])
def test_any_network_is_read_by_a_probe_that_is_judged_on_other_sequences(kind):
    model = make("held", redraw=0.1)
    x = model.simulate(60, (6,), seed=2).x
    torch.manual_seed(0)
    network = kind(5, 12, dtype=torch.float64)
    report = compare(model, network, x)
    assert report.reads == "probe"
    assert report.probe is not None
    assert report.hidden.shape == (6, 60, 12)
    assert not report.probe.held_out[:3].any()
    assert report.probe.held_out[3:].all()
    assert report.probe.r2["network"] > report.probe.r2["input"] > 0.1
    assert report.probe.log_loss["belief"] < report.probe.log_loss["network"] < report.probe.log_loss["marginal"]
    assert_close(report.network.state.sum(-1), torch.ones(6, 60, dtype=torch.float64))


def test_a_probe_finds_what_is_there_and_only_that():
    random = torch.Generator().manual_seed(0)
    belief = rows(random, 6, 500, 3)
    noise = torch.randn(6, 500, 4, generator=random, dtype=torch.float64)
    mixed = torch.cat([belief, noise], -1) @ torch.randn(7, 7, generator=random, dtype=torch.float64)
    found = fit_probe(mixed, belief, noise)
    assert found.r2["network"] == pytest.approx(1.0, abs=1e-6)
    assert abs(found.r2["input"]) < 0.02
    logits = fit_probe(belief.log(), belief, noise)
    assert logits.log_loss["network"] == pytest.approx(logits.log_loss["belief"], abs=1e-3)
    assert logits.log_loss["input"] == pytest.approx(logits.log_loss["marginal"], abs=0.01)
    assert_close(logits.state, belief, rtol=0, atol=0.02)
    one = fit_probe(mixed[0], belief[0], noise[0])
    assert one.held_out.tolist() == [False] * 250 + [True] * 250
    table = one.summary()
    assert list(table.index) == ["network", "input", "marginal", "belief"]
    assert table.loc["network", "R2"] == one.r2["network"]
    with pytest.raises(ValueError, match="x: a probe has 1 steps to fit and 1 to judge"):
        fit_probe(mixed[0, :2], belief[0, :2], noise[0, :2])


def test_tables_arrays_and_pictures_of_a_comparison():
    model = make("held")
    x, lengths = ragged(model)
    report = compare(model, MinGRU(5, 3, candidate="simplex", dtype=torch.float64), x, lengths=lengths)
    table = report.summary()
    assert list(table.index) == ["message passing", "one sweep", "network"]
    inside = report.inside
    assert table.loc["network", "TV, mean"] == pytest.approx(float(report.network.total_variation[inside].mean()))
    swept = report.updates["one sweep"].divergence[inside]
    assert table.loc["one sweep", "KL, mean"] == pytest.approx(float(swept.mean()))
    data = report.to_xarray()
    assert dict(data.sizes) == {"belief": 4, "sequence": 4, "time": 40, "state": 3, "unit": 3, "update": 3}
    exact = data["state_probability"].sel(belief="exact", sequence=3).values
    np.testing.assert_array_equal(exact[:29], report.exact.state[3, :29].numpy())
    assert np.isnan(exact[29:]).all()
    lost = data["evidence_lost"].sel(update="network").sum("time").values
    np.testing.assert_allclose(lost, report.network.evidence_lost.sum(-1).numpy())
    figure = report.plot(sequence=1)
    assert len(figure.axes) == 6
    assert [line.get_label() for line in figure.axes[4].lines] == ["message passing", "one sweep", "network"]
    np.testing.assert_array_equal(figure.axes[4].lines[2].get_ydata(), report.network.total_variation[1, :13].numpy())
    single = compare(model, as_rnn(make()), x[3, :, 0])
    assert "sequence" not in single.to_xarray().dims
    assert single.plot(steps=slice(5, 20)).axes[-1].get_xlim() == (4.5, 19.5)


def test_the_picture_of_a_sequence_has_its_own_dates():
    model = SwitchingSSM(Copy(2), Normal(1)).with_values(
        redraw_prob=0.1, state_probs=[0.5, 0.5], loc=[[-1.0], [1.0]], scale=[[1.0], [1.0]]
    )
    numbers = torch.linspace(-2, 2, 9).numpy()
    days = [pd.date_range(start, periods=9 - k, freq="D") for k, start in enumerate(("2020-01-01", "2021-01-01"))]
    x = [pd.Series(numbers[: len(index)], index=index) for index in days]
    report = compare(model, MinGRU(1, 2, candidate="simplex"), x)
    for sequence, index in enumerate(days):
        first, last = report.plot(sequence).axes[-1].get_xlim()
        assert [first + 0.5, last - 0.5] == pytest.approx(mdates.date2num([index[0], index[-1]]))


@pytest.mark.slow
def test_single_precision_and_real_numbers():
    model = SwitchingSSM(Copy(2), Normal(1)).with_values(
        redraw_prob=torch.tensor(0.1), state_probs=torch.tensor([0.5, 0.5]), loc=torch.tensor([[-1.0], [1.0]]),
        scale=torch.ones(2, 1),
    )  # fmt: skip
    x = model.simulate(80, (4,), seed=0).x
    report = compare(model, MinGRU(1, 6), x)
    assert report.network.state.dtype == torch.float32
    assert report.probe is not None
    assert report.probe.r2["network"] > 0.2


def test_inputs_of_a_network_may_be_an_array() -> None:
    model = make()
    x = model.simulate(20, (2,), seed=0).x
    rows = one_hot(x.squeeze(-1), 5)
    found, expected = (compare(model, as_rnn(model), x, inputs=inputs) for inputs in (rows.numpy(), rows))
    torch.testing.assert_close(found.summary().to_numpy(float), expected.summary().to_numpy(float), equal_nan=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: compare(m, GRU(4, 3), x), "inputs: the network reads 4 features, but x has 5"),
        (lambda m, x: compare(m, GRU(5, 4), x, reads="belief"), "reads: 'belief' needs one unit for each of 3 states"),
        (lambda m, x: compare(m, GRU(5, 4), x, reads="mind"), "reads: got 'mind'"),
        (lambda m, x: compare(m, GRU(5, 4), x, inputs=torch.zeros(3, 5)), r"inputs: got shape \[3, 5\]"),
        (lambda m, x: compare(m, GRU(5, 4), x, inputs=[["a"]]), "inputs: got"),
        (lambda m, x: compare(m, GRU(5, 4), x[0, :2]), "x: a probe has 1 steps to fit and 1 to judge"),
        (lambda m, x: compare(m, torch.nn.Sequential(torch.nn.Flatten()), x), "layer: Flatten returned no states"),
        (lambda m, x: compare(GRU(5, 4), GRU(5, 4), x), "model: got GRU, expected a SwitchingSSM"),
        (
            lambda m, x: compare(SwitchingSSM(Copy(2, inputs=1), Categorical(5)), GRU(5, 4), x),
            "model: reads inputs",
        ),
        (lambda m, x: compare(m, as_rnn(m), x).plot(9), "sequence: got 9, but there are 2"),
        (lambda m, x: compare(m, as_rnn(m), x).plot(0, slice(50, 60)), "steps: got"),
    ],
)
def test_wrong_input_is_refused_with_the_cure(call, message):
    model = make()
    x = model.simulate(20, (2,), seed=0).x
    with pytest.raises((TypeError, ValueError), match=message):
        call(model, x)


# ---- what is measured of any network ---------------------------------------------------------------------------------


def permuted(layer, order):
    """The same network with its units in another order."""
    twin = MinGRU(layer.input_size, layer.hidden_size, candidate=layer.candidate, dtype=torch.float64)
    twin.requires_grad_(False)
    coins = layer.get_parameter("weight_l0").shape[0] - layer.hidden_size
    rows = torch.cat([torch.arange(coins), coins + torch.as_tensor(order)])
    for name, table in layer.named_parameters():
        twin.get_parameter(name).copy_(table[rows])
    return twin


@pytest.mark.parametrize("space", ["probability", "logit"])
def test_units_in_another_order_are_aligned_and_that_is_said(space):
    model = make(states=4)
    x, layer = model.simulate(200, (3,), seed=0).x, as_rnn(model, space=space)
    own = compare(model, layer, x)
    assert own.order is not None
    assert own.order.tolist() == [0, 1, 2, 3]
    assert "matched to" not in repr(own)
    report = compare(model, permuted(layer, [2, 0, 3, 1]), x)  # unit j is the model's state [2, 0, 3, 1][j]
    assert report.order is not None
    assert report.order.tolist() == [1, 3, 0, 2]
    assert "Units 1, 3, 0, 2 of the network are matched to states 0 to 3" in repr(report)
    assert "Units 1, 3, 0, 2" in report._repr_html_()
    assert_close(report.network.state, own.network.state)
    assert_close(report.network.divergence, own.network.divergence, rtol=0, atol=1e-13)


@examples(20)
@given(st.integers(0, 2**20), st.integers(1, 5))
def test_the_order_of_units_is_the_best_of_all_permutations(seed, states):
    random = torch.Generator().manual_seed(seed)
    exact, belief = rows(random, 2, 6, states), rows(random, 2, 6, states)
    inside = torch.rand(2, 6, generator=random) < 0.8
    inside[0, 0] = True
    found = best_order(belief, exact, inside)

    def distance(order):
        return float((exact - belief[..., list(order)])[inside].abs().sum())

    best = min(distance(order) for order in itertools.permutations(range(states)))
    assert distance(found.tolist()) == pytest.approx(best, rel=1e-12)
    assert best_order(exact, exact, inside).tolist() == list(range(states))
    equal = torch.full_like(belief, 1 / states)
    assert best_order(equal, exact, inside).tolist() == list(range(states))


def test_states_that_are_no_distributions_are_refused():
    model = make()
    x = model.simulate(20, (2,), seed=0).x
    for layer in (MinGRU(5, 3), GRU(5, 3), torch.nn.GRU(5, 3, batch_first=True)):
        with pytest.raises(
            ValueError, match=r'reads: got "belief", but the network\'s states are no distributions: at '
        ):
            compare(model, layer, x, reads="belief")
    broken = MinGRU(5, 3, dtype=torch.float64)
    broken.weight_l0.data.fill_(torch.inf)
    with pytest.raises(ValueError, match="layer: its states are not finite, first at sequence 0, step 0"):
        compare(model, broken, x)
    report = compare(model, MinGRU(5, 3, candidate="simplex"), x.expand(2, 20, 1))  # float32: within its rounding
    assert report.network.total_variation.isfinite().all()


def test_a_network_that_rules_out_what_is_possible_is_infinitely_far():
    model = make()
    x = model.simulate(30, (2,), seed=0).x
    layer = MinGRU(5, 3, candidate="simplex", dtype=torch.float64).requires_grad_(False)
    layer.bias_l0.copy_(torch.tensor([50.0, 0.0, 0.0, -2000.0]))  # the third state has the probability 0
    report = compare(model, layer, x)
    gone = report.network.state == 0
    assert gone[:, 2:].any()
    assert (report.network.divergence[gone.any(-1)] == torch.inf).all()
    assert report.network.divergence[~gone.any(-1)].isfinite().all()
    assert report.summary().loc["network", "KL, mean"] == math.inf
    zero = SwitchingSSM(Copy(2), Gated(Categorical(2), Categorical(2))).with_values(
        redraw_prob=0.5, state_probs=[1.0, 0.0], probs=[[0.5, 0.5], [0.5, 0.5]], background_probs=[[0.5, 0.5]]
    )
    assert (compare(zero, as_rnn(zero), [0, 1, 1, 0]).network.divergence == 0).all()  # what neither thinks possible


@pytest.mark.parametrize("kind", [SuperpositionStackRNN, StratificationStackRNN, NondeterministicStackRNN])
@pytest.mark.slow
def test_stack_networks_are_probed_with_what_they_read_off_their_stack(kind):
    model = make("held", redraw=0.1)
    x = model.simulate(40, (4,), seed=2).x
    torch.manual_seed(0)
    network = kind(5, 8).double()
    report = compare(model, network, x)
    assert report.reads == "probe"
    assert report.gates is None
    with torch.no_grad():
        passed = network.run(one_hot(x[..., 0], 5))
    assert_close(report.hidden, torch.cat([passed.output, passed.reading], -1))
    assert report.network.total_variation[report.probe.held_out].mean() < 0.5


def test_networks_behind_an_embedding_read_symbols():
    model = make("held", redraw=0.1)
    x = model.simulate(40, (4,), seed=2).x
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Tanh(), MinGRU(4, 6)).double()
    report = compare(model, network, x)
    assert_close(report.hidden, network(x[..., 0].long())[0].detach())
    assert report.gates is not None
    linear = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.GRU(4, 6, batch_first=True)).double()
    assert_close(compare(model, linear, x).hidden, linear(one_hot(x[..., 0], 5))[0].detach())
    with pytest.raises(ValueError, match="x: has missing symbols, but an Embedding has no row"):
        compare(model, network, torch.cat([x, torch.full_like(x[:, :1], torch.nan)], 1))
    with pytest.raises(ValueError, match="layer: its Embedding has 4 rows, but the model has 5 symbols"):
        compare(model, torch.nn.Sequential(torch.nn.Embedding(4, 4), MinGRU(4, 6)), x)


# ---- gates of networks that are probed -------------------------------------------------------------------------------


@pytest.mark.slow
def test_gates_of_probed_networks_are_measured_by_what_they_tell_of_z():
    """Against the gates that were drawn, and the sums over tokens of the definition."""
    model = make(redraw=0.3, seed=3)
    drawn = model.simulate(20_000, (2,), seed=1)
    own = as_rnn(model)
    report = compare(model, own, drawn.x, reads="probe")
    gates = report.gates
    assert gates is not None
    assert report.network.redraw is None
    assert report.network.gate_error is None
    assert math.isnan(report.summary().loc["network", "gate error, mean"])
    values = model.values
    joint = torch.stack([0.7 * values["background_probs"][0], 0.3 * values["state_probs"] @ values["probs"]])  # P(z, x)
    information = float((joint * (joint / (joint.sum(1, keepdim=True) * joint.sum(0))).log()).sum())
    order = own.activations(torch.eye(5, dtype=torch.float64)).draw[:, 0].detach()
    more = (order[:, None] > order).double() + 0.5 * (order[:, None] == order).double()
    auc = float(joint[1] / 0.3 @ more @ (joint[0] / 0.7))
    true = drawn.redraw[:, 1:].flatten().numpy()
    assert gates.draw.shape[-1] == 1  # all units share the exact gate
    assert float(gates.auc) == pytest.approx(gates.exact_auc, abs=1e-9)
    assert float(gates.information) == pytest.approx(gates.exact_information, abs=1e-9)
    assert float(gates.auc) == pytest.approx(auc, abs=0.01)
    assert float(gates.information) == pytest.approx(information, abs=0.01)
    assert float(gates.auc) == pytest.approx(roc_auc_score(true, gates.draw[:, 1:].flatten()), abs=0.02)
    assert gates.entropy == pytest.approx(-0.3 * math.log(0.3) - 0.7 * math.log(0.7), abs=0.01)
    table = gates.summary()
    assert list(table.index) == [0, "exact"]
    assert table.loc["exact", "AUC"] == gates.exact_auc
    assert "has the most information about z" in repr(report)


@examples(30)
@given(st.integers(0, 2**20), st.integers(2, 12))
def test_auc_is_its_sum_over_pairs(seed, steps):
    random = torch.Generator().manual_seed(seed)
    draw = (torch.rand(2, steps, 1, generator=random, dtype=torch.float64) * 4).round() / 4
    exact = torch.rand(2, steps, generator=random, dtype=torch.float64)
    inside = torch.arange(steps) < torch.tensor([[steps], [2]])
    found = read_gates(draw, exact, inside)
    pairs = [(float(draw[b, t, 0]), float(exact[b, t])) for b, n in ((0, steps), (1, 2)) for t in range(1, n)]
    above = sum(p * (1 - q) * ((g > f) + 0.5 * (g == f)) for g, p in pairs for f, q in pairs)
    total = sum(p for _, p in pairs) * sum(1 - q for _, q in pairs)
    assert float(found.auc[0]) == pytest.approx(above / total, rel=1e-10)


@examples(30)
@given(st.integers(0, 2**20), st.integers(120, 150))
def test_information_is_its_sum_over_values_that_are_met_often(seed, steps):
    random = torch.Generator().manual_seed(seed)
    draw = (torch.rand(2, steps, 1, generator=random, dtype=torch.float64) * 4).round() / 4
    exact = torch.rand(2, steps, generator=random, dtype=torch.float64)
    inside = torch.arange(steps) < torch.tensor([[steps], [2]])
    found = read_gates(draw, exact, inside)
    pairs = [(float(draw[b, t, 0]), float(exact[b, t])) for b, n in ((0, steps), (1, 2)) for t in range(1, n)]

    def entropy(p):
        return -sum(q * math.log(q) for q in (p, 1 - p) if q > 0)

    groups = {g: [p for other, p in pairs if other == g] for g, _ in pairs}
    within = sum(len(part) * entropy(sum(part) / len(part)) for part in groups.values()) / len(pairs)
    mean = sum(p for _, p in pairs) / len(pairs)
    assert float(found.information[0]) == pytest.approx(entropy(mean) - within, abs=1e-10)
    assert found.entropy == pytest.approx(entropy(mean), rel=1e-10)
    assert found.information[0] <= found.exact_information + 1e-12


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "layer",
    [lambda: MinGRU(5, 4, num_layers=2), lambda: QRNN(5, 4), lambda: QRNN(5, 4, window=3), lambda: MinLSTM(5, 4)],
)
def test_every_gate_of_every_layer_is_read(layer):
    model, layer = make("held"), layer().double()
    x, lengths = ragged(model)
    gates = compare(model, layer, x, lengths=lengths).gates
    assert gates is not None
    assert gates.draw.shape == (4, 40, 4 * layer.num_layers)
    assert (gates.draw[1, 13:] == 0).all()
    if layer.num_layers == 1 and isinstance(layer, MinLSTM):
        expected = layer.activations(one_hot(x[..., 0], 5, lengths)).draw.detach()
        assert_close(gates.draw[0], expected[0])


def test_gates_that_never_vary_and_models_that_never_hold_tell_nothing():
    never = make(redraw=1.0)
    report = compare(never, GRU(5, 4), never.simulate(20, (2,), seed=0).x)
    assert report.gates is None
    gates = compare(never, MinGRU(5, 4), never.simulate(20, (2,), seed=0).x).gates
    assert gates is not None
    assert gates.auc.isnan().all()
    assert (gates.information == 0).all()
    assert gates.summary()["share of H(z)"].isna().all()


@pytest.mark.parametrize("network", ["own", "probed", "other"])
def test_every_line_of_a_picture_is_in_a_legend(network):
    model = make("held" if network != "own" else "gated")
    x, lengths = ragged(model)
    layer = {"own": lambda: as_rnn(model), "probed": lambda: MinGRU(5, 4), "other": lambda: GRU(5, 4)}[network]()
    figure = compare(model, layer, x, lengths=lengths).plot(sequence=1)
    for panel in figure.axes[-2:]:
        named = {text.get_text() for text in panel.get_legend().get_texts()}
        assert panel.lines
        assert {line.get_label() for line in panel.lines} == named
    assert any("gate of unit" in line.get_label() for line in figure.axes[-1].lines) == (network == "probed")
    (states,) = figure.legends
    assert [text.get_text() for text in states.get_texts()] == ["state 0", "state 1", "state 2"]


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [SuperpositionStackRNN, StratificationStackRNN, NondeterministicStackRNN])
def test_a_stack_network_may_have_time_first(kind):
    model = SwitchingSSM(Copy(2), Normal(2)).with_values(
        redraw_prob=0.1, state_probs=[0.5, 0.5], loc=[[-1.0, 0.0], [1.0, 0.0]], scale=[[1.0, 1.0], [1.0, 1.0]]
    )
    x = model.simulate(30, (3,), seed=0).x.double()
    first, last = (kind(2, 5, batch_first=flag, dtype=torch.float64) for flag in (True, False))
    last.load_state_dict(first.state_dict())
    assert_close(compare(model, last, x).hidden, compare(model, first, x).hidden, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_gates_of_noise_tell_next_to_nothing_on_short_series():
    model = SwitchingSSM(Copy(2), Normal(2)).with_values(
        redraw_prob=0.1, state_probs=[0.5, 0.5], loc=[[-1.0, 0.0], [1.0, 0.0]], scale=[[1.0, 1.0], [1.0, 1.0]]
    )
    for steps in (40, 65, 100, 400):
        told = []
        for seed in range(8):
            x = model.simulate(steps, (1,), seed=seed).x.double()
            noise = torch.randn(1, steps, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            found = compare(model, MinGRU(3, 4, dtype=torch.float64), x, inputs=noise, reads="probe").gates
            told.append(float(found.information.mean()))
        assert sum(told) / len(told) < 0.012
