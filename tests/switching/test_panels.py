"""Several sequences in one table: read apart, and what is found comes back on the table's own index."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from oracles.coupled import factorial_of
from samplehold.switching.data.reading import read_series
from torch.testing import assert_close

MODEL = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).with_values(
    redraw_prob=0.2, state_probs=[0.4, 0.6], loc=[[0.0], [3.0]], scale=[[1.0], [1.0]]
)
DRIVEN = sh.SwitchingSSM(sh.Copy(2, inputs=1), sh.Normal(1)).with_values(
    redraw_intercept=-1.0, redraw_weights=[2.0], state_probs=[0.4, 0.6], loc=[[0.0], [3.0]], scale=[[1.0], [1.0]]
)
PARTS = {"north": [0.1, 3.2, np.nan, 2.9], "south": [2.7, 3.1], "east": [0.3, -0.4, 0.0]}


def panel(kind=list) -> pd.DataFrame:
    """The parts as a frame with an index of subject and time."""
    rows = [(name, t, x) for name, part in PARTS.items() for t, x in zip(kind(range(len(part))), part, strict=True)]
    return pd.DataFrame(rows, columns=["subject", "t", "level"]).set_index(["subject", "t"])


def by_time(frame: pd.DataFrame) -> pd.DataFrame:
    """The same rows with those of one time together."""
    return frame.iloc[np.argsort(frame.index.get_level_values("t"), kind="stable")]


@pytest.mark.parametrize("arranged", [panel, lambda: by_time(panel()), lambda: panel()["level"]])
def test_a_panel_is_the_list_of_its_sequences(arranged):
    series = read_series(arranged(), 1)
    expected = read_series([np.array(part) for part in PARTS.values()], 1)
    assert_close(series.observations, expected.observations, equal_nan=True)
    assert series.lengths.tolist() == [4, 2, 3]
    assert series.sequences == ("north", "south", "east")
    assert series.features_of() == ("level",)
    assert series.index_of(1)[: series.lengths[1]].tolist() == [0, 1]


def test_what_is_found_comes_back_on_the_index_of_the_panel():
    alone = {name: MODEL.smooth(part) for name, part in PARTS.items()}
    for frame in (panel(), by_time(panel())):
        found = MODEL.states(frame)
        assert found.index.equals(frame.index)
        assert list(found.columns) == ["state", "state_0", "state_1", "redraw", "change"]
        for name, smoothed in alone.items():
            own = found.xs(name)
            np.testing.assert_allclose(own[["state_0", "state_1"]], smoothed.state, rtol=1e-12)
            np.testing.assert_allclose(own["redraw"], smoothed.redraw, rtol=1e-12)
            assert own["state"].tolist() == smoothed.state.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("x", "index"),
    [
        (pd.Series([0.1, 3.0, 2.9], index=pd.period_range("2020-01", periods=3, freq="M")), None),
        ([0.1, 3.0, 2.9], pd.RangeIndex(3, name="step")),
        (
            [[0.1], [3.0, 2.9]],
            pd.MultiIndex.from_tuples([(0, 0), (1, 0), (1, 1)], names=["sequence", "step"]),
        ),
        (
            {"a": pd.Series([0.1], index=[5]), "b": pd.Series([3.0, 2.9], index=[7, 8])},
            pd.MultiIndex.from_tuples([("a", 5), ("b", 7), ("b", 8)], names=["sequence", "step"]),
        ),
        (
            torch.tensor([[[[0.1], [3.0]]], [[[2.9], [0.0]]]]),
            pd.MultiIndex.from_product([[0, 1], [0], [0, 1]], names=["sequence_0", "sequence_1", "step"]),
        ),
    ],
)
def test_states_of_any_series_stand_on_its_own_labels(x, index):
    found = MODEL.states(x)
    pd.testing.assert_index_equal(found.index, x.index if index is None else index, exact="equiv")
    assert found["state"].tolist() == [0, 1, 1, 0][: len(found)]
    np.testing.assert_allclose(found["state_0"] + found["state_1"], 1.0, rtol=1e-6)


def test_states_without_a_gate_and_of_several_chains_have_their_own_columns():
    x = [0.1, 3.0, 2.9]
    markov = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).with_values(
        initial_probs=[0.5, 0.5], transition_probs=[[0.9, 0.1], [0.1, 0.9]], loc=[[0.0], [3.0]], scale=[[1.0], [1.0]]
    )
    assert list(markov.states(x).columns) == ["state", "state_0", "state_1", "change"]
    np.testing.assert_allclose(markov.states(x)["change"], markov.chain(x).change_probability())
    several = factorial_of(
        redraw_prob=torch.tensor([0.2, 0.4]),
        state_probs=[torch.tensor([0.5, 0.5]), torch.tensor([0.2, 0.3, 0.5])],
        loc=[torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0], [3.0]])],
        precision=torch.eye(1),
    )
    found, smoothed = several.states(x), several.smooth(x)
    first, second = ["state_1_0", "state_1_1"], ["state_2_0", "state_2_1", "state_2_2"]
    assert list(found.columns) == ["state_1", *first, "state_2", *second, "redraw_1", "redraw_2"]
    np.testing.assert_allclose(found[second], smoothed.state[1], rtol=1e-5)
    np.testing.assert_allclose(found["redraw_2"], smoothed.redraw[:, 1], rtol=1e-5)


def test_every_verb_takes_a_panel():
    frame, parts = panel(), list(PARTS.values())
    assert_close(MODEL.log_evidence(frame), torch.stack([MODEL.log_evidence(part) for part in parts]))
    assert torch.equal(MODEL.viterbi(frame).path, MODEL.viterbi(parts, ragged=False).path)
    assert_close(MODEL.forecast(frame, 2).mean, MODEL.forecast(parts, 2).mean)
    fit, other = (MODEL.fit(x, restarts=1, max_steps=3, progress=False) for x in (frame, parts))
    assert torch.equal(fit.objective, other.objective)
    assert fit.states(frame).index.equals(frame.index)
    assert fit.plot(frame, sequence=1).axes
    title = fit.plot(frame, sequence=1).axes[0].get_title(loc="left")
    assert f"Sequence {fit.series.sequences[1]}, 2 of {fit.series.n_sequences}" in title
    assert fit.to_arviz(frame, draws=2).smoothed["sequence"].values.tolist() == list(PARTS)


def test_what_drives_a_panel_comes_as_it_does():
    frame = panel()
    rain = pd.DataFrame({"rain": np.linspace(-1, 1, len(frame))}, index=frame.index)
    gaps = pd.Series(np.linspace(0.5, 2, len(frame)), index=frame.index)
    order = by_time(frame).index
    found = DRIVEN.states(by_time(frame), inputs=rain.loc[order], dt=gaps.loc[order])
    for name in PARTS:
        own = DRIVEN.states(frame.xs(name), inputs=rain.xs(name), dt=gaps.xs(name))
        np.testing.assert_allclose(found.xs(name), own, rtol=1e-12)
    assert DRIVEN.read(frame, inputs=rain).drivers == ("rain",)
    with pytest.raises(ValueError, match="inputs: has no row of sequence"):
        DRIVEN.smooth(frame, inputs=rain.drop(frame.index[0][0], level=0), dt=gaps)
    with pytest.raises(ValueError, match="inputs: has an index of sequence and time, but x does not"):
        DRIVEN.smooth(frame["level"].to_numpy(), inputs=rain)


def test_rows_below_each_other_have_lengths_that_sum_to_them():
    frame = panel()
    lengths, rows = [len(part) for part in PARTS.values()], frame["level"].to_numpy()
    expected = MODEL.smooth(list(PARTS.values()), ragged=False)
    for x in (rows, rows[:, None], torch.from_numpy(rows), pd.Series(rows), frame.reset_index()[["level"]]):
        assert_close(MODEL.smooth(x, lengths=lengths).state, expected.state)
    assert MODEL.states(pd.Series(rows, index=list("abcdefghi")), lengths=lengths).index.tolist() == list("abcdefghi")
    drivers = np.linspace(-1, 1, len(rows))
    stacked = DRIVEN.states(rows, lengths=lengths, inputs=drivers[:, None], dt=drivers + 2)
    frames = [pd.DataFrame({"rain": drivers}, index=frame.index), pd.Series(drivers + 2, index=frame.index)]
    np.testing.assert_allclose(stacked, DRIVEN.states(frame, inputs=frames[0], dt=frames[1]), rtol=1e-12)


@pytest.mark.parametrize("lengths", [[4, 2], [4, 2, 4], [9, 0], [9, 1, -1]])
def test_lengths_that_do_not_sum_to_the_rows_are_named(lengths):
    with pytest.raises(ValueError, match=r"lengths: got \[.*\], which sum to \d+, for 9 rows"):
        MODEL.smooth(panel()["level"].to_numpy(), lengths=lengths)


def test_a_single_length_is_that_of_a_single_sequence():
    rows = panel()["level"].to_numpy()
    assert_close(MODEL.smooth(rows, lengths=4).state[:4], MODEL.smooth(rows[:4]).state)
    assert MODEL.states(rows, lengths=4).index.tolist() == [0, 1, 2, 3]
    assert MODEL.smooth(rows, lengths=[9]).state.shape == (1, 9, 2)
    with pytest.raises(ValueError, match=r"lengths: got shape \(1, 2\), expected one length a sequence: \(\)"):
        MODEL.smooth(rows, lengths=[[4, 5]])


def test_a_long_table_is_read_by_its_columns_and_joins_what_is_found():
    frame = by_time(panel()).reset_index()
    series = sh.read_panel(frame, sequence="subject", time="t", columns=["level"])
    assert_close(series.observations, MODEL.read(panel()).observations, equal_nan=True)
    joined = frame.join(MODEL.states(series)).set_index(["subject", "t"]).drop(columns="level")
    pd.testing.assert_frame_equal(joined.loc[panel().index], MODEL.states(panel()))
    counted = sh.read_panel(frame.drop(columns="t"), sequence="subject")
    assert_close(counted.observations, series.observations, equal_nan=True)
    halves = sh.read_panel(frame.assign(half=["a", "b"] * 4 + ["a"]), ["subject", "half"], columns="level")
    assert halves.sequences[:2] == ("north, a", "south, b")
    again = pd.concat([frame, frame])
    again = again.assign(subject=np.repeat(["first", "second"], len(frame)) + again["subject"])
    assert len(MODEL.states(sh.read_panel(again, "subject", "t", ["level"]))) == 2 * len(frame)  # labels come twice


FRAME = panel().reset_index()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sequence": "patient"}, "sequence: got 'patient', expected columns among subject, t, level"),
        ({"sequence": "subject", "time": "day"}, "time: got 'day', expected columns among"),
        ({"sequence": "subject", "columns": ["x"]}, "columns: got 'x', expected columns among"),
        ({"sequence": "subject", "columns": []}, r"columns: got \[\], expected columns among"),
        ({"sequence": "subject", "columns": ["level", "level"]}, "columns: got 'level' twice"),
        ({"sequence": "level"}, "frame: got no level in row 2"),
    ],
)
def test_columns_that_are_not_there_are_named(arguments, said):
    with pytest.raises(ValueError, match=said):
        sh.read_panel(FRAME, **arguments)


def test_a_panel_of_something_else_is_a_type_error():
    with pytest.raises(TypeError, match="frame"):
        sh.read_panel(FRAME.to_numpy(), "subject")
    with pytest.raises(TypeError, match="not numbers"):
        sh.read_panel(FRAME, "t", columns=["subject"])


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (panel().swaplevel(), "x: got an index of t, subject, expected the sequence first and the time last"),
        (pd.concat([panel(), panel()]), "x: got two rows for subject north, t 0, rows 0 and 9"),
        (panel().iloc[::-1], "x: sequence east: its index t does not rise at step 1, where 1 follows 2"),
        (panel(lambda steps: [None, *steps[1:]]), "x: got no t in row 0"),
    ],
)
def test_panels_out_of_order_are_named(frame, said):
    with pytest.raises(ValueError, match=said):
        MODEL.smooth(frame)


def test_lists_of_panels_are_refused_unless_each_is_one_sequence():
    frame = panel()
    apart = [part for _, part in frame.groupby(level="subject", sort=False)]
    assert_close(MODEL.smooth(apart, ragged=False).state, MODEL.smooth(frame).state)
    with pytest.raises(ValueError, match=r"x\[1\]: got 3 sequences in one part of a list"):
        MODEL.smooth([apart[0], frame])
    with pytest.raises(ValueError, match="lengths: was given with a panel"):
        MODEL.smooth(frame, lengths=[4, 2, 3])


# ---- time ----------------------------------------------------------------------------------------------------------

DAYS = pd.date_range("2020-01-30", periods=4)


@pytest.mark.parametrize(
    "index", [[3, 2, 1, 0], [0, 1, 1, 2], DAYS[::-1], DAYS[[0, 2, 1, 3]], ["2020Q2", "2020Q1", "2020Q4", "2020Q3"]]
)
def test_times_that_go_back_or_come_twice_are_refused(index):
    with pytest.raises(ValueError, match=r"x: its index does not rise at step \d, where .* follows"):
        MODEL.smooth(pd.Series(np.zeros(4), index=index))
    with pytest.raises(ValueError, match=r"x\['b'\]: its index does not rise"):
        MODEL.smooth({"a": pd.Series([1.0]), "b": pd.Series(np.zeros(4), index=index)})


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ([0, 1, 2, 5], "as from 2 to 5"),
        (DAYS[[0, 1, 2, 3]].delete(2).append(pd.DatetimeIndex(["2020-02-03"])), "as from "),
        (["2020-01", "2020-02", "2020-05", "2020-06"], "as from 2020-02 to 2020-05"),
        (pd.PeriodIndex(["2020Q1", "2020Q2", "2020Q4", "2021Q1"], freq="Q"), "as from 2020Q2 to 2020Q4"),
    ],
)
def test_uneven_times_are_pointed_out_unless_their_gaps_are_given(index, said, as_users_call):
    x = pd.Series(np.zeros(4), index=index)
    with pytest.warns(UserWarning, match=f"x: its index is not evenly spaced, {said}") as seen:
        MODEL.smooth(x)
    assert Path(__file__).parents[1] in Path(seen[0].filename).parents  # outside the library
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MODEL.smooth(x, dt=[1, 1, 2, 1])


@pytest.mark.parametrize(
    "index",
    [
        DAYS,
        pd.date_range("2020-01-06", periods=4, freq="B"),
        pd.date_range("2019-10-31", periods=4, freq="ME"),
        ["a", "c", "b", "a"],
        [0.0, 0.1, 0.2, 0.3],
        ["2020-01", "2020-02", "2020-03", "2020-04"],
    ],
)
def test_even_times_and_names_of_steps_are_taken_as_they_are(index):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MODEL.smooth(pd.Series(np.zeros(4), index=index))


MONTHS = pd.date_range("2020-01-01", periods=6, freq="MS")


@pytest.mark.parametrize(
    ("times", "even"),
    [
        (([0, 1, 2], [5, 6]), True),
        (([0, 1, 2], [0.5, 1.5]), True),
        (([0, 1, 2, 3], [0, 2]), False),
        ((MONTHS, MONTHS[2:4]), True),
        ((MONTHS, MONTHS[[1, 3, 5]]), False),
        ((MONTHS, MONTHS + pd.Timedelta(days=14)), True),
    ],
)
def test_steps_that_one_sequence_lacks_are_pointed_out(times, even):
    rows = [(i, t, 0.0) for i, own in enumerate(times) for t in own]
    frame = pd.DataFrame(rows, columns=["subject", "t", "x"]).set_index(["subject", "t"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        MODEL.read(frame)
    assert [str(w.message).startswith("x: sequence 1: its index t is not evenly") for w in caught] == [True] * (
        not even
    )
