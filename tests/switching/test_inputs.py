"""Inputs of models: how they are read, named and chosen."""

import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
import samplehold as sh
import torch
from torch.testing import assert_close

T = 12
FRAME = pd.DataFrame({"site": np.arange(T) % 3.0, "dose": np.cos(np.arange(T)), "rain": np.sin(np.arange(T))})
X = torch.linspace(-1, 1, T, dtype=torch.float64)
MODEL = sh.SwitchingSSM(sh.Copy(2, inputs=["rain", "dose"]), sh.Normal(1)).with_values(
    redraw_intercept=-1.0, redraw_weights=[0.5, -2.0], state_probs=[0.4, 0.6], loc=[[-1.0], [1.0]], scale=[[0.5], [1.0]]
)
LOST = -3000 - math.log1p(math.exp(-10))  # a 0 at log odds of 3000, and a 1 at 10
TABLE = FRAME[["rain", "dose"]].to_numpy().copy()


@pytest.mark.parametrize(
    "given",
    [
        {"inputs": FRAME},
        {"inputs": FRAME[["dose", "rain"]]},
        {"inputs": {"dose": FRAME["dose"], "rain": FRAME["rain"]}},
        {"inputs": {"dose": FRAME["dose"].to_numpy(), "other": TABLE[:, 0], "rain": FRAME["rain"].tolist()}},
        {"inputs": FRAME.to_numpy(), "input_names": ["site", "dose", "rain"]},
        {"inputs": torch.from_numpy(TABLE)},
        {"inputs": TABLE, "input_names": ("rain", "dose")},
    ],
    ids=["frame", "frame in another order", "mapping", "mapping of arrays", "named table", "table", "named in order"],
)
def test_inputs_in_any_form_are_the_same(given):
    series = MODEL.read(X, **given)
    assert series.drivers == ("rain", "dose")
    assert_close(series.design, torch.from_numpy(TABLE), rtol=0, atol=0)
    assert MODEL.read(series) is series


@pytest.mark.parametrize("column", [FRAME["dose"], FRAME["dose"].to_numpy(), FRAME["dose"].tolist()], ids=type)
def test_a_single_input_needs_no_axis_of_columns(column):
    model = sh.SwitchingSSM(sh.Copy(2, inputs="dose"), sh.Normal(1)).with_values(
        MODEL.values | {"redraw_weights": MODEL.values["redraw_weights"][..., :1]}
    )
    table, rows = FRAME[["dose"]].to_numpy(), X.reshape(3, 4, 1)
    assert_close(model.smooth(X, inputs=column).state, model.smooth(X, inputs=table).state, rtol=0, atol=0)
    batch = np.reshape(column, (3, 4))
    assert_close(model.smooth(rows, inputs=batch).state, model.smooth(rows, inputs=batch[..., None]).state)
    by_list = model.smooth([X[:5], X], inputs=[table[:5, 0], table[:, 0]], ragged=False).state
    assert_close(by_list, model.smooth([X[:5], X], inputs=[table[:5], table], ragged=False).state, rtol=0, atol=0)
    one_table = model.smooth(X, inputs=column, lengths=[5, 7]).state
    assert_close(one_table, model.smooth(X, inputs=table, lengths=[5, 7]).state, rtol=0, atol=0)
    past = model.read(X[:8], inputs=column[:8])
    assert_close(model.forecast(past, 4, inputs=column[8:]).mean, model.forecast(X[:8], 4, inputs=table).mean)
    assert_close(model.update(model.start(), X[0], inputs=table[0, 0])[1].state, model.filter(X, inputs=table).state[0])
    with pytest.raises(
        ValueError, match=r"^inputs: got shape \(12, 1\), expected \(12, 2\)|^inputs: 'rain' is missing"
    ):
        MODEL.smooth(X, inputs=column)


def test_sequences_by_name_have_inputs_by_name():
    x = {"a": X, "b": X[:5]}
    inputs = {"b": FRAME[:5], "a": FRAME}
    columns = {name: [FRAME[name].to_numpy(), FRAME[name][:5].to_numpy()] for name in ("rain", "dose")}
    for given in (inputs, columns):
        series = MODEL.read(x, inputs=given)
        assert_close(series.design[0], torch.from_numpy(TABLE), rtol=0, atol=0)
        assert_close(series.design[1, :5], torch.from_numpy(TABLE[:5]), rtol=0, atol=0)


@pytest.mark.parametrize("form", [lambda frame: frame, pl.from_pandas], ids=["pandas", "polars"])
def test_frames_of_several_sequences_have_their_columns_in_any_order(form):
    x, expected = [X, X[:5]], MODEL.smooth([X, X[:5]], inputs=[FRAME, FRAME[:5]], ragged=False).state
    for frames in (
        [form(FRAME), FRAME[:5][["rain", "site", "dose"]]],
        [FRAME, form(FRAME[:5][["dose", "rain", "site"]])],
    ):
        assert_close(MODEL.smooth(x, inputs=frames, ragged=False).state, expected, rtol=0, atol=0)
    with pytest.raises(
        ValueError, match=r"^inputs\[1\]: got columns \['dose', 'rain'\], but inputs\[0\] has \['site', 'dose'"
    ):
        MODEL.smooth(x, inputs=[form(FRAME), form(FRAME[:5][["dose", "rain"]])])


def test_a_series_with_more_inputs_serves_several_models():
    one = sh.SwitchingSSM(sh.Copy(2, inputs="dose"), sh.Normal(1))
    wide = sh.SwitchingSSM(sh.Copy(2, inputs=list(FRAME)), sh.Normal(1)).read(X, inputs=FRAME)
    assert_close(one.read(wide).design[:, 0], torch.from_numpy(TABLE[:, 1]), rtol=0, atol=0)
    assert_close(MODEL.log_evidence(wide), MODEL.log_evidence(X, inputs=FRAME), rtol=0, atol=0)


def test_names_survive_files_and_forecasts(tmp_path):
    MODEL.save(tmp_path / "model")
    loaded = sh.load(tmp_path / "model")
    assert loaded.inputs == ("rain", "dose")
    past, expected = MODEL.read(X[:8], inputs=FRAME[:8]), MODEL.forecast(X[:8], 4, inputs=TABLE).mean
    named, columns = {"input_names": list(FRAME)}, {name: FRAME[name][8:] for name in FRAME}
    for inputs, names in ((FRAME[8:], {}), (columns, {}), (FRAME[8:].to_numpy(), named), (TABLE[8:], {})):
        assert_close(loaded.forecast(past, 4, inputs=inputs, **names).mean, expected, rtol=0, atol=0)


def test_a_stream_reads_inputs_by_name():
    state, out = MODEL.update(MODEL.start(), X[0], inputs=TABLE[0])
    _, by_name = MODEL.update(state, X[1], inputs={"dose": TABLE[1, 1], "rain": TABLE[1, 0]})
    _, by_row = MODEL.update(state, X[1], inputs=FRAME.iloc[1])
    expected = MODEL.filter(X[:2], inputs=TABLE[:2])
    assert_close(out.state, expected.state[0])
    for got in (by_name, by_row):
        assert_close(got.state, expected.state[1], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"inputs": FRAME[["dose", "site"]]}, r"^inputs: 'rain' is missing; got 'dose', 'site'\."),
        ({"inputs": TABLE, "input_names": ["rain", "rain"]}, "^input_names: got 'rain' twice"),
        ({"inputs": TABLE, "input_names": ["rain"]}, r"^input_names: got 1 name\(s\) for 2 column"),
        ({"inputs": TABLE[:, :1]}, r"^inputs: got shape \(12, 1\), expected \(12, 2\): .* input \(rain, dose\)"),
        ({"inputs": FRAME[:5]}, r"^inputs: got shape \(5, 2\), expected \(12, 2\)"),
        ({"inputs": FRAME.mask(FRAME["dose"] < 0)}, r"^inputs: got NaN or infinite .* step 2, input 'rain'"),
        ({"inputs": {}}, "^inputs: got an empty mapping"),
        ({"inputs": {"rain": X, "dose": X[:3]}}, r"^inputs\['dose'\]: got shape \(3,\), but 'rain' has \(12,\)"),
        ({}, r"^inputs: missing; the model reads 2 \(rain, dose\)"),
    ],
)
def test_wrong_inputs_are_named(given, said):
    with pytest.raises(ValueError, match=said):
        MODEL.smooth(X, **given)


def test_parts_name_their_inputs_or_count_them():
    with pytest.raises(ValueError, match=r"^inputs: got 'a' twice"):
        sh.Copy(2, inputs=["a", "a"])
    assert sh.SwitchingSSM(sh.Copy(2, inputs=3), sh.Normal(1)).inputs == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("emission", "values", "x", "expected"),
    [
        (sh.Bernoulli(1, inputs=["u"]), {"probs": [[0.5]]}, [0.0, 1.0], LOST),
        (sh.Categorical(2, inputs=["u"]), {"probs": [[0.5, 0.5]]}, [0.0, 1.0], LOST),
        (sh.Poisson(1, inputs=["u"]), {"rate": [[1.0]]}, [0.0, 1.0], -3000.0),
    ],
    ids=["Bernoulli", "Categorical", "Poisson"],
)
def test_observations_far_in_a_tail_stay_possible(emission, values, x, expected, dtype):
    """A probability that rounds to 0 or 1 is known by its logarithm."""
    u = [3000.0, 10.0] if "probs" in values else [-3000.0, -3000.0]
    model = sh.SwitchingSSM(sh.Copy(1), emission).with_values(
        redraw_prob=0.2, state_probs=[1.0], coefficients=[[[1.0]]], **values
    )
    x = torch.tensor(x, dtype=dtype).unsqueeze(-1)
    got = model.log_evidence(x, inputs=torch.tensor(u, dtype=dtype).unsqueeze(-1))
    assert_close(got, torch.tensor(expected, dtype=got.dtype), rtol=3e-7, atol=0)
    state = model.smooth(x, inputs=torch.tensor(u, dtype=dtype).unsqueeze(-1)).state
    assert_close(state, torch.ones_like(state))
