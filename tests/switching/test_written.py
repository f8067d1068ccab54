"""Results that are written to Parquet, part by part: the tables of the same data in memory."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import samplehold as sh
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles.coupled import factorial_of
from samplehold.switching.views import written

LENGTHS = [3, 9, 1, 20]
NORMAL = {"loc": [[0.0], [2.0]], "scale": [[1.0], [0.5]]}
COPY = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).with_values(redraw_prob=0.3, state_probs=[0.4, 0.6], **NORMAL)
MARKOV = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).with_values(
    initial_probs=[0.5, 0.5], transition_probs=[[0.9, 0.1], [0.3, 0.7]], **NORMAL
)
DRIVEN = sh.SwitchingSSM(sh.Copy(2, inputs=["u"]), sh.Normal(1)).with_values(
    redraw_intercept=-1.0, redraw_weights=[2.0], state_probs=[0.4, 0.6], **NORMAL
)
LAGGED = sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(2, 1)).with_values(
    initial_probs=[0.5, 0.5],
    transition_probs=[[0.9, 0.1], [0.3, 0.7]],
    loc=[[0.0], [1.0]],
    coefficients=[[[0.5, 0.1]], [[0.0, -0.2]]],
    precision=[[1.0], [4.0]],
)
LINEAR = sh.LinearSSM(sh.LocalLevel()).with_values({"sigma2.irregular": 1.0, "sigma2.level": 0.3})
FACTORIAL = factorial_of(
    torch.tensor([0.3, 0.5], dtype=torch.float64),
    [torch.tensor([0.4, 0.6], dtype=torch.float64)] * 2,
    [torch.tensor([[0.0], [2.0]], dtype=torch.float64), torch.tensor([[0.0], [-1.0]], dtype=torch.float64)],
    torch.ones(1, 1, dtype=torch.float64),
)
MODELS = {"copy": COPY, "markov": MARKOV, "driven": DRIVEN, "lagged": LAGGED, "factorial": FACTORIAL, "linear": LINEAR}


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(written, "STEPS", 7)


def frame_of(lengths: list[int] = LENGTHS, seed: int = 0) -> pd.DataFrame:
    draw, n = np.random.default_rng(seed), sum(lengths)
    x = pd.Series(draw.normal(size=n)).mask(draw.random(n) < 0.2)
    times = np.concatenate([np.arange(length) for length in lengths])
    who = np.repeat([f"s{i}" for i in range(len(lengths))], lengths)
    gap, state = draw.integers(1, 4, n), np.where(draw.random(n) < 0.2, "low", None)
    return pd.DataFrame({"who": who, "t": times, "x": x, "u": draw.normal(size=n), "gap": gap, "state": state})


def both(model, path: Path, result: str, frame: pd.DataFrame, **named) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What is written of a series on disk, and of the same in memory."""
    tables = []
    for read in (sh.open_sequences, sh.read_panel):
        model.write(read(frame, "who", "t", ["x"], **named), path / "x.parquet", result)
        tables.append(pq.read_table(path / "x.parquet").to_pandas())
    return tables[0], tables[1]


def named_for(name: str) -> dict[str, str]:
    return {"copy": {"dt": "gap", "states": "state"}, "driven": {"inputs": "u"}}.get(name, {})


def assert_close(ours: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(ours, expected, rtol=1e-12, atol=1e-14, check_index_type=False)


@pytest.mark.parametrize("name", MODELS)
def test_states_are_those_in_memory(name, tmp_path):
    frame, model = frame_of(), MODELS[name]
    ours, theirs = both(model, tmp_path, "states", frame, **named_for(name))
    assert_close(ours, theirs)
    expected = model.states(sh.read_panel(frame, "who", "t", ["x"], **named_for(name)))
    assert_close(ours.drop(columns=["sequence", "t"]), expected)
    assert ours["sequence"].tolist() == frame["who"].tolist()
    assert ours["t"].tolist() == frame["t"].tolist()


@given(
    n=st.integers(8, 40),
    seed=st.integers(0, 9),
    kind=st.sampled_from(["copy", "markov", "driven", "lagged", "factorial"]),
)
@examples(25)
def test_a_long_sequence_in_stretches_is_smoothed_exactly(n, seed, kind, tmp_path_factory):
    path, frame = tmp_path_factory.mktemp("stretches"), frame_of([n], seed)
    ours, theirs = both(MODELS[kind], path, "states", frame, **named_for(kind))
    assert_close(ours, theirs)


@given(
    n=st.integers(8, 40),
    seed=st.integers(0, 9),
    kind=st.sampled_from(["copy", "markov", "driven", "lagged", "factorial"]),
)
@examples(25)
def test_the_best_path_of_a_long_sequence_in_stretches_is_that_in_memory(n, seed, kind, tmp_path_factory):
    path, frame = tmp_path_factory.mktemp("stretches"), frame_of([3, n], seed)
    ours, theirs = both(MODELS[kind], path, "viterbi", frame, **named_for(kind))
    assert_close(ours, theirs)


@pytest.mark.parametrize("result", ["viterbi", "forecast", "draws"])
@pytest.mark.parametrize("name", MODELS)
def test_other_results(name, result, tmp_path):
    frame, model = frame_of(), MODELS[name]
    if result == "viterbi" and name == "linear":
        with pytest.raises(TypeError, match=r'^result: got "viterbi", but a LinearSSM has no states'):
            model.write(frame["x"].to_numpy(), tmp_path / "x.parquet", result)
        return
    if result == "forecast" and name == "driven":
        with pytest.raises(ValueError, match=r"^horizon: got 1, but inputs or dt are given for"):
            model.write(sh.open_sequences(frame, "who", "t", "x", inputs="u"), tmp_path / "x.parquet", result)
        return
    named = {} if result == "forecast" else named_for(name)
    ours, theirs = both(model, tmp_path, result, frame, **named)
    if result != "draws":
        assert_close(ours, theirs)
    series = sh.read_panel(frame, "who", "t", ["x"], **named)
    if result == "forecast":
        forecast = model.forecast(series, 1)
        np.testing.assert_allclose(ours["x"], forecast.mean[:, 0, 0], rtol=1e-10)
        np.testing.assert_allclose(ours["x_sd"], forecast.variance[:, 0, 0].sqrt(), rtol=1e-10)
        assert ours["sequence"].tolist() == list(series.sequences)
        assert ours["horizon"].tolist() == [1] * len(LENGTHS)
        return
    assert ours["sequence"].tolist() == frame["who"].tolist()
    assert ours["t"].tolist() == frame["t"].tolist()
    if result == "draws":
        assert not ours["x"].isna().any()
        assert len(np.unique(ours["x"])) == len(frame)
        return
    best = [model.viterbi(series.one(i)).path.reshape(n, -1) for i, n in enumerate(LENGTHS)]
    labels = model.read(series).state_names or (0, 1)
    columns = [column for column in ours if column.startswith("state")]
    assert ours[columns].to_numpy().tolist() == [[labels[k] for k in row] for row in torch.cat(best).tolist()]


CYCLE = sh.SwitchingSSM(sh.Markov(3), sh.Categorical(2)).with_values(
    initial_probs=[1.0, 0.0, 0.0],
    transition_probs=[[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]],
    probs=[[1.0, 0.0], [0.4, 0.6], [0.7, 0.3]],
)


@pytest.mark.parametrize("result", ["states", "viterbi"])
def test_states_that_cannot_be_reached_are_in_no_path_of_a_long_sequence(result, tmp_path):
    frame = pd.DataFrame({"who": 0, "t": range(40), "x": ([0, 0, 0, 1, 1, 0, 1, 0] * 5)})
    ours, theirs = both(CYCLE, tmp_path, result, frame)
    assert_close(ours, theirs)


@pytest.mark.parametrize("result", ["states", "viterbi"])
@pytest.mark.parametrize("length", [4, 30])
def test_an_impossible_observation_is_named_by_its_sequence_and_step(result, length, tmp_path):
    stuck = {"transition_probs": [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]]}
    model = CYCLE.with_values(CYCLE.values | stuck)
    x = [0] * (length - 1) + [1]
    frame = pd.DataFrame({"who": [0] * 9 + [1] * length, "t": [*range(9), *range(length)], "x": [0] * 9 + x})
    with pytest.raises(ValueError, match=rf"^x: the observation at step {length - 1} of sequence 1 is impossible"):
        model.write(sh.open_sequences(frame, "who", "t", ["x"]), tmp_path / "x.parquet", result)
    assert not (tmp_path / "x.parquet").exists()


def test_draws_are_repeatable_and_parts_differ(tmp_path):
    series = sh.open_sequences(np.zeros((20, 6, 1)))
    tables = []
    for seed in (0, 0, 1):
        COPY.write(series, tmp_path / "x.parquet", "draws", seed=seed)
        tables.append(pq.read_table(tmp_path / "x.parquet").to_pandas())
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(tables[2])
    assert len(np.unique(tables[0]["x"])) == 120
    assert pq.read_metadata(tmp_path / "x.parquet").num_row_groups == 20


def test_forecasts_have_a_row_for_each_sequence_and_horizon(tmp_path):
    frame = frame_of()
    MARKOV.write(sh.open_sequences(frame, "who", "t", "x"), tmp_path / "x.parquet", "forecast", horizon=3)
    table = pq.read_table(tmp_path / "x.parquet").to_pandas()
    assert table.columns.tolist() == ["sequence", "horizon", "x", "x_sd", "state_0", "state_1"]
    assert table["horizon"].tolist() == [1, 2, 3] * len(LENGTHS)
    forecast = MARKOV.forecast(sh.read_panel(frame, "who", "t", "x"), 3)
    np.testing.assert_allclose(table["x"], forecast.mean.flatten(), rtol=1e-10)


def test_rows_have_the_order_of_the_data(tmp_path):
    frame = frame_of().sort_values(["t", "who"], ignore_index=True)  # the sequences are mixed
    series = sh.read_panel(frame, "who", "t", "x")
    for result in ("states", "viterbi"):
        MARKOV.write(series, tmp_path / "x.parquet", result)
        table = pq.read_table(tmp_path / "x.parquet").to_pandas()
        assert table["sequence"].tolist() == frame["who"].tolist()
        assert table["t"].tolist() == frame["t"].tolist()
    assert len(table) == len(frame)


@pytest.mark.parametrize(
    ("x", "columns", "n"),
    [
        ([0.1, 2.0, 1.9], ["step"], 3),
        (torch.zeros(2, 3, 1), ["sequence", "step"], 6),
        ({"a": [1.0], "b": [2.0, 3.0]}, ["sequence", "step"], 3),
        (pd.Series([1.0, 2.0], index=pd.period_range("2020-01", periods=2, freq="M", name="month")), ["month"], 2),
    ],
)
def test_data_of_every_form_name_their_rows(x, columns, n, tmp_path):
    MARKOV.write(x, tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.column_names == [*columns, "state", "state_0", "state_1", "change"]
    assert table.num_rows == n


def test_a_fit_writes_its_series(tmp_path):
    fit = MARKOV.fit(frame_of([30])["x"].to_numpy(), restarts=1, progress=False)
    fit.write(tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet").to_pandas()
    assert_close(table.drop(columns="step"), fit.states().reset_index(drop=True))


@pytest.mark.parametrize("result", ["states", "forecast"])
def test_a_csv_file_needs_no_pyarrow(result, tmp_path, monkeypatch):
    fit = MARKOV.fit([part["x"].to_numpy() for _, part in frame_of().groupby("who")], restarts=1, progress=False)
    fit.write(tmp_path / "x.parquet", result)
    expected = pq.read_table(tmp_path / "x.parquet").to_pandas()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    fit.write(tmp_path / "x.csv", result)
    assert_close(pd.read_csv(tmp_path / "x.csv"), expected)
    with pytest.raises(ModuleNotFoundError, match="pyarrow is not installed; pip install"):
        fit.write(tmp_path / "y.parquet", result)


def test_a_file_is_whole_or_unchanged(tmp_path, monkeypatch):
    series = sh.open_sequences(frame_of(), "who", "t", "x")
    path = tmp_path / "x.parquet"
    MARKOV.write(series, path)
    before = path.read_bytes()
    bad = sh.open_sequences(frame_of().assign(x=[0.0] * 32 + [1e300]), "who", "t", "x")
    with pytest.raises(ValueError, match=r"^x: "):
        MARKOV.write(bad, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.parquet"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": "x.parquet", "result": "filter"}, "result: got 'filter', expected one of 'states', 'viterbi'"),
        ({"path": "nowhere/x.parquet"}, "path: there is no folder nowhere"),
        ({"path": "."}, "path: .* is a folder"),
        ({"path": "x.parquet", "result": "forecast", "horizon": 0}, "horizon: got 0"),
        (
            {"path": "x.parquet", "x": pd.Series([1.0], index=pd.Index([0], name="state"))},
            "x: has the key column 'state'",
        ),
        ({"path": "x.parquet", "x": torch.zeros(0, 3, 1)}, "x: has no sequences"),
    ],
)
def test_bad_arguments_are_refused(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=rf"^{message}"):
        MARKOV.write(**{"x": [0.0, 1.0]} | arguments)
    assert not list(tmp_path.iterdir())
