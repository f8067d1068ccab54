"""What `compare` measures is what it says, of networks that are the filter and of those that are not."""

import math

import matplotlib.dates as mdates
import numpy as np
import pandas as pd
import pytest
import torch
from samplehold import (
    GRU,
    LSTM,
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
)
from samplehold.models.bridge.comparison import measure
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
    with pytest.raises(ValueError, match="x: a probe was left 1 steps to fit to and 1 to judge on"):
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: compare(m, GRU(4, 3), x), "inputs: the network reads 4 features, but x has 5"),
        (lambda m, x: compare(m, GRU(5, 4), x, reads="belief"), "reads: 'belief' needs one unit for each of 3 states"),
        (lambda m, x: compare(m, GRU(5, 4), x, reads="mind"), "reads: got 'mind'"),
        (lambda m, x: compare(m, GRU(5, 4), x, inputs=torch.zeros(3, 5)), r"inputs: got shape \[3, 5\]"),
        (lambda m, x: compare(m, GRU(5, 4), x[0, :2]), "x: a probe was left 1 steps to fit to and 1 to judge on"),
        (lambda m, x: compare(m, torch.nn.Sequential(torch.nn.Flatten()), x), "layer: Sequential returned no states"),
        (lambda m, x: compare(GRU(5, 4), m, x), "model: got GRU, expected a SwitchingSSM"),
        (
            lambda m, x: compare(SwitchingSSM(Copy(2, n_covariates=1), Categorical(5)), GRU(5, 4), x),
            "model: has covariates",
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
