"""Tables beside x are matched by label: the same rows in another order give the same result."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import samplehold as sh
import torch

T = 24
RNG = np.random.default_rng(0)
DAYS = pd.date_range("2026-01-01", periods=T, name="day")
VALUES = {"initial_probs": [0.5, 0.5], "transition_probs": [[0.9, 0.1], [0.2, 0.8]], "loc": [[0.0], [1.0]]}
VALUES |= {"scale": [[1.0], [1.0]]}
PLAIN = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).with_values(VALUES)
DRIVEN = sh.SwitchingSSM(sh.Markov(2), sh.LinearRegression(1, inputs=["u"])).with_values(
    VALUES | {"coefficients": [[[1.0]], [[-1.0]]]}
)
GAPS = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).with_values(
    state_probs=[0.4, 0.6], redraw_prob=0.3, loc=[[0.0], [1.0]], scale=[[1.0], [1.0]]
)
U = RNG.normal(size=T)
BESIDE = {
    "inputs": (DRIVEN, pd.Series(U, name="u")),
    "states": (PLAIN, pd.Series(np.arange(T) // 12)),
    "weights": (PLAIN, pd.Series(np.linspace(0, 2, T))),
    "noise": (PLAIN, pd.Series(np.linspace(0, 4, T))),
    "dt": (GAPS, pd.Series(np.linspace(0.5, 2, T))),
}
INDEXES = {
    "dates": DAYS,
    "periods": pd.period_range("1959Q1", periods=T, freq="Q"),
    "text of dates": pd.Index(DAYS.strftime("%Y-%m-%d")),
    "years": pd.Index(range(1960, 1960 + T)),
    "decimals": pd.Index(np.arange(T) * 0.1),
    "names": pd.Index([f"step {chr(97 + i)}" for i in range(T)]),
}
X = RNG.normal(size=T)


def evidence(model, x, **beside):
    return float(model.log_evidence(x, **beside).sum())


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("kind", INDEXES)
def test_rows_in_another_order_are_matched_by_their_labels(name, kind):
    model, table = BESIDE[name]
    x, table = pd.Series(X, index=INDEXES[kind]), table.set_axis(INDEXES[kind])
    expected = evidence(model, X, **{name: table.to_numpy()})
    for rows in (table, table[::-1], table.sample(frac=1, random_state=0)):
        assert evidence(model, x, **{name: rows}) == pytest.approx(expected, abs=1e-12)
    for unlabelled in (table.reset_index(drop=True), table.to_numpy(), table.tolist()):
        assert evidence(model, x, **{name: unlabelled}) == pytest.approx(expected, abs=1e-12)
    assert evidence(model, X, **{name: table}) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", BESIDE)
def test_labels_of_other_steps_are_refused(name):
    model, table = BESIDE[name]
    x, table = pd.Series(X, index=DAYS), table.set_axis(DAYS)
    twice = pd.concat([table[:-1], table[:1]])
    for wrong, said in (
        (table.set_axis(DAYS + pd.Timedelta("365D")), f"^{name}: has no row for 2026-01-01, a step of x; give"),
        (twice, f"^{name}: its index has 2026-01-01 twice"),
        (table.set_axis(range(5, T + 5)), f"^{name}: its index has numbers, but that of x has dates"),
        (table.set_axis(DAYS.tz_localize("UTC")), f"^{name}: its index has dates with a time zone, but"),
        (pd.concat([table, table[-1:].set_axis([pd.Timestamp("2025-01-01")])]), f"^{name}: has a row for 2025-01-01"),
    ):
        with pytest.raises(ValueError, match=said):
            model.read(x, **{name: wrong})


def test_labels_of_x_that_occur_twice_match_nothing():
    x = pd.Series(X[:3], index=["a", "b", "a"])
    with pytest.raises(ValueError, match=r"x: its index has a twice, so the rows of noise cannot be matched"):
        PLAIN.read(x, noise=pd.Series([1.0, 2.0, 3.0], index=["a", "b", "c"]))
    assert PLAIN.read(x, noise=pd.Series([1.0, 2.0, 3.0], index=x.index)).noise.flatten().tolist() == [1, 2, 3]


def test_columns_of_a_mapping_are_matched_with_each_other_and_with_x():
    model = sh.SwitchingSSM(sh.Markov(2), sh.LinearRegression(1, inputs=["u", "v"]))
    u, v = pd.Series(U, index=DAYS), pd.Series(X, index=DAYS)
    expected = torch.from_numpy(np.stack([U, X], -1))
    for inputs in ({"u": u, "v": v[::-1]}, {"u": u[::-1], "v": v}, {"u": u, "v": X}):
        assert torch.equal(model.read(pd.Series(X, index=DAYS), inputs=inputs).design, expected)

    descending = model.read(X, inputs={"u": u[::-1], "v": v}).design
    assert torch.equal(descending, expected.flip(0))
    with pytest.raises(ValueError, match=r"inputs\['v'\]: has no row for 2026-01-01"):
        model.read(X, inputs={"u": u, "v": v.set_axis(DAYS + pd.Timedelta("365D"))})


def test_a_column_with_the_name_of_the_index_has_the_labels():
    x, frame = pd.Series(X, index=DAYS), pd.DataFrame({"day": DAYS, "u": U})[::-1]
    expected = evidence(DRIVEN, X, inputs=U)
    for inputs in (frame.reset_index(drop=True), pl.from_pandas(frame)):
        assert evidence(DRIVEN, x, inputs=inputs) == pytest.approx(expected, abs=1e-12)


def test_noise_of_features_has_their_names():
    x = pd.DataFrame({"a": X, "b": U}, index=DAYS)
    noise = pd.DataFrame({"b": 2.0, "a": np.arange(T) + 1.0}, index=DAYS)
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal(2))
    assert torch.equal(model.read(x, noise=noise).noise[:, 0], torch.arange(T).double() + 1)
    assert torch.equal(
        model.read(x, noise=noise.set_axis(["sa", "sb"], axis=1)).noise[:, 0], torch.full((T,), 2.0).double()
    )
    with pytest.raises(ValueError, match=r"noise: got columns \['a', 'c'\], but x has \['a', 'b'\]"):
        model.read(x, noise=noise.set_axis(["a", "c"], axis=1))


LENGTHS = {"a": 5, "b": 8, "c": 3}
PANEL = pd.concat({name: pd.DataFrame({"y": X[:n], "u": U[:n]}, index=DAYS[:n]) for name, n in LENGTHS.items()})
PANEL.index = PANEL.index.set_names(["subject", "day"])


@pytest.mark.parametrize("name", BESIDE)
def test_rows_of_a_panel_and_of_a_list_are_matched(name):
    model, table = BESIDE[name]
    parts = {key: table[:n].set_axis(DAYS[:n]) for key, n in LENGTHS.items()}
    rows = pd.concat(parts)
    expected = evidence(model, PANEL["y"], **{name: rows.to_numpy()})
    lists = [PANEL["y"].xs(key) for key in LENGTHS]
    by_name = {key: part[::-1] for key, part in reversed(parts.items())}
    for x, given in (
        (PANEL["y"], rows.sample(frac=1, random_state=1)),
        (PANEL["y"].sort_index(level=1, sort_remaining=False), rows[::-1]),
        (PANEL["y"], [part[::-1] for part in parts.values()]),
        (lists, [part[::-1] for part in parts.values()]),
        (dict(zip(LENGTHS, lists, strict=True)), by_name if name != "dt" else [part[::-1] for part in parts.values()]),
    ):
        assert evidence(model, x, **{name: given}) == pytest.approx(expected, abs=1e-11)
    for wrong, said in (
        (rows.drop("b"), "has no row of sequence b"),
        (rows.drop(("b", DAYS[2])), "sequence b: has no row for 2026-01-03"),
        (rows.set_axis([f"row {i}" for i in range(len(rows))]), "has an index of one level"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: {said}"):
            model.read(PANEL["y"], **{name: wrong})


def test_names_of_sequences_match_weights_and_subjects():
    weights = pd.Series({"c": 3.0, "a": 1.0, "b": 2.0})
    assert PLAIN.read(PANEL["y"], weights=weights).weights.tolist() == [1, 2, 3]
    with pytest.raises(
        ValueError, match="weights: got entries for a, b, d, but the sequences of x have the names a, b, c"
    ):
        PLAIN.read(PANEL["y"], weights=pd.Series({"a": 1.0, "b": 2.0, "d": 3.0}))
    of = {"c": "two", "a": "one", "b": "one"}
    for subjects in (of, pd.Series(of), ["one", "one", "two"]):
        series = PLAIN.read(PANEL["y"], subjects=subjects)
        assert series.subjects.tolist() == [0, 0, 1]
        assert series.subject_names == ("one", "two")


COMING = pd.DataFrame({"u": [1.0, 2.0, 3.0]}, index=pd.date_range(DAYS[-1], periods=4, name="day")[1:])


@pytest.mark.parametrize("from_series", [True, False])
def test_inputs_of_steps_to_come_are_matched(from_series):
    x, past = pd.Series(X, index=DAYS), pd.DataFrame({"u": U}, index=DAYS)
    expected = DRIVEN.forecast(X, 3, inputs=np.concatenate([U, [1.0, 2.0, 3.0]])).mean

    def forecast(ahead):
        if from_series:
            return DRIVEN.forecast(DRIVEN.read(x, inputs=past), 3, inputs=ahead).mean
        return DRIVEN.forecast(x, 3, inputs=pd.concat([ahead, past])).mean

    for ahead in (COMING, COMING[::-1]):
        torch.testing.assert_close(forecast(ahead), expected)
    for wrong, said in (
        (COMING.set_axis(COMING.index + pd.Timedelta("365D")), "has no row for 2026-01-25, a step after the end of x"),
        (COMING.set_axis(COMING.index[[0, 1, 1]]), "its index has 2026-01-26 twice"),
    ):
        with pytest.raises(ValueError, match=f"inputs: {said}"):
            forecast(wrong)


def test_steps_to_come_after_uneven_ones_are_later():
    uneven = DAYS.delete(3)
    x, past = pd.Series(X[1:], index=uneven), pd.DataFrame({"u": U[1:]}, index=uneven)
    with pytest.warns(UserWarning, match="not evenly spaced"):
        series = DRIVEN.read(x, inputs=past)
    expected = DRIVEN.forecast(series, 3, inputs=COMING.to_numpy()).mean
    later = COMING.set_axis(COMING.index[[0, 1]].append(pd.DatetimeIndex(["2026-02-15"])))
    torch.testing.assert_close(DRIVEN.forecast(series, 3, inputs=later[::-1]).mean, expected)
    with pytest.raises(
        ValueError, match=r"inputs: has a row for 2025-.*, which is not after the last step of x, 2026-01-24"
    ):
        DRIVEN.forecast(series, 3, inputs=COMING.set_axis(COMING.index - pd.Timedelta("365D")))


def test_steps_to_come_of_a_panel_have_its_index():
    x = PANEL[PANEL.index.get_level_values("subject") != "c"].groupby("subject").head(5)
    series = DRIVEN.read(x["y"], inputs=x[["u"]])
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64).unsqueeze(-1)
    expected = DRIVEN.forecast(series, 2, inputs=table).mean
    ahead = pd.concat({n: pd.DataFrame({"u": v}, index=DAYS[5:7]) for n, v in (("a", [1.0, 2.0]), ("b", [3.0, 4.0]))})
    torch.testing.assert_close(DRIVEN.forecast(series, 2, inputs=ahead[::-1]).mean, expected)
    with pytest.raises(ValueError, match="inputs: has no row of sequence b"):
        DRIVEN.forecast(series, 2, inputs=ahead.loc[["a"]].reindex(ahead.index).dropna().loc[["a", "a"]].iloc[:2])
    long = pl.from_pandas(x.reset_index())
    read = sh.read_panel(long, "subject", "day", "y", inputs="u")
    rows = pl.from_pandas(ahead.rename_axis(["subject", "day"]).reset_index())[::-1]
    torch.testing.assert_close(DRIVEN.forecast(read, 2, inputs=rows).mean, expected)


def test_observations_before_the_first_are_in_the_order_of_time():
    model = sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(2, 1))
    x, before = pd.Series(X[2:], index=DAYS[2:]), pd.Series(X[:2], index=DAYS[:2])
    expected = model.read(X[2:], before=X[:2]).past
    assert torch.equal(model.read(x, before=before[::-1]).past.nan_to_num(), expected.nan_to_num())
    with pytest.raises(ValueError, match="before: has a row for 2026-01-03, which is not before the first step of x"):
        model.read(x, before=pd.Series(X[:2], index=DAYS[1:3]))
