"""Frames of polars and pyarrow are read as those of pandas, and results come back as frames of the same library."""

import copy
import pickle
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import samplehold as sh
import torch
from polars.testing import assert_frame_equal
from samplehold.switching.data.frames import Frame, plain
from sklearn.model_selection import GroupKFold, cross_val_score

MODEL = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).with_values(
    redraw_prob=0.2, state_probs=[0.4, 0.6], loc=[[0.0], [3.0]], scale=[[1.0], [1.0]]
)
DRIVEN = sh.SwitchingSSM(sh.Copy(2, inputs=["rain"]), sh.Normal(1)).with_values(
    redraw_intercept=-1.0, redraw_weights=[2.0], state_probs=[0.4, 0.6], loc=[[0.0], [3.0]], scale=[[1.0], [1.0]]
)
FEW: dict[str, Any] = {"restarts": 2, "max_steps": 4, "progress": False}
DAYS = [date(2024, 2, day) for day in range(26, 30)] + [date(2024, 3, 1)]
ROWS = {
    "site": ["north", "south", "north", "south", "north"],
    "day": [DAYS[0], DAYS[0], DAYS[1], DAYS[1], DAYS[2]],
    "level": [0.1, 3.0, None, 2.9, 3.1],
    "rain": [0.5, 0.0, 1.5, -1.0, 0.2],
    "gap": [1.0, 1.0, 2.0, 1.0, 0.5],
    "known": [None, "high", None, None, "low"],
    "error": [0.1, 0.0, 0.2, 0.0, 0.1],
}
TABLE = pl.DataFrame(ROWS)
SINGLE = TABLE.filter(pl.col("site") == "north")
FRAMES = {"polars": TABLE, "pyarrow": TABLE.to_arrow(), "batch": TABLE.to_arrow().to_batches()[0]}


def polars_of(frame: Any) -> pl.DataFrame:
    return frame if isinstance(frame, pl.DataFrame) else pl.DataFrame(frame)


# ---- what is read ----------------------------------------------------------------------------------------------------


FORMS = {
    "polars": lambda frame: pl.DataFrame({name: pl.Series(column.tolist()) for name, column in frame.items()}),
    "pyarrow": lambda frame: pa.Table.from_pandas(frame),
    "batch": lambda frame: pa.RecordBatch.from_pandas(frame),
}
X = np.array([[0.1, 5.0], [np.nan, 4.0], [-0.2, 6.0], [3.1, 0.4], [2.9, np.nan], [3.3, 0.5], [3.0, 0.7]])
MODELS = {
    "two features": sh.SwitchingSSM(sh.Copy(2), sh.Normal(2)),
    "columns by name": sh.SwitchingSSM(sh.Markov(2), sh.Joint(step=sh.Gamma(), level=sh.Normal())),
    "linear": sh.LinearSSM(1, 2),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", MODELS)
def test_one_table_gives_one_fit_to_the_last_bit_whatever_its_library(kind, form):
    frame = pd.DataFrame(X, columns=["level", "step"])
    fits = [MODELS[kind].fit(x, restarts=1, max_steps=3, progress=False) for x in (frame, FORMS[form](frame))]
    for name, value in fits[0].values.items():
        assert torch.equal(value, fits[1].values[name])
    assert fits[0].loglik == fits[1].loglik
    assert fits[0].series.features == fits[1].series.features
    expected = fits[0].states()
    found = polars_of(fits[1].states())
    assert found.columns == list(expected.columns)
    np.testing.assert_array_equal(found.to_numpy(), expected.to_numpy())


BERLIN = pl.Series([datetime(2024, 3, 30), datetime(2024, 3, 31), None]).dt.replace_time_zone("Europe/Berlin")
COLUMNS = {
    "integers": (pl.Series([1, 2, 3], dtype=pl.Int8), pd.Series([1, 2, 3], dtype="int8")),
    "integers and null": (pl.Series([1, None, 3]), pd.Series([1.0, np.nan, 3.0])),
    "wide integers": (pl.Series([1, 2, None], dtype=pl.Int128), pd.Series([1.0, 2.0, np.nan])),
    "floats, null and NaN": (
        pl.Series([0.1, None, np.nan], dtype=pl.Float32),
        pd.Series([np.float64(np.float32(0.1)), np.nan, np.nan]),
    ),
    "booleans": (pl.Series([True, False, None]), pd.Series([1.0, 0.0, np.nan])),
    "decimals": (pl.Series([Decimal("0.1"), None, Decimal("2.5")]), pd.Series([Decimal("0.1"), None, Decimal("2.5")])),
    "dates": (
        pl.Series([date(2024, 2, 29), None, date(2024, 3, 1)]),
        pd.Series(["2024-02-29", None, "2024-03-01"]).astype("datetime64[s]"),
    ),
    "zoned": (BERLIN, pd.Series(pd.to_datetime(["2024-03-30", "2024-03-31", None])).dt.tz_localize("Europe/Berlin")),
    "durations": (pl.Series([timedelta(1), None, timedelta(2)]), pd.Series(pd.to_timedelta(["1D", None, "2D"]))),
    "times": (pl.Series([time(3), None, time(4)]), pd.Series([time(3), None, time(4)])),
    "text": (pl.Series(["b", None, "a"]), pd.Series(["b", None, "a"])),
    "nothing": (pl.Series([None, None, None]), pd.Series([None, None, None])),
    "lists": (pl.Series([[1], [2], None]), pd.Series([[1], [2], None])),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_of_any_type_are_those_of_pandas(kind):
    column, expected = COLUMNS[kind]
    of_arrow = [] if kind == "wide integers" else [column.to_arrow(), pa.chunked_array([column.to_arrow()])]
    for found in (plain(c, "x") for c in (column, *of_arrow)):
        pd.testing.assert_series_equal(found, expected, check_names=False, check_dtype=kind != "durations")


def test_categories_of_a_fixed_order_keep_it():
    kind, cells = pl.Enum(["low", "high", "never"]), ["high", None, "low"]
    codes = pa.array([1, None, 0])
    for column in (pl.Series(cells, dtype=kind), pa.DictionaryArray.from_arrays(codes, ["low", "high", "never"])):
        found = plain(column, "states")
        assert list(found.cat.categories) == ["low", "high", "never"]
        assert found.cat.codes.tolist() == [1, -1, 0]
    assert (
        plain(pl.Series(cells, dtype=pl.Categorical), "states").dtype == pd.Series(cells).dtype
    )  # these have no order


def test_what_is_no_frame_stays_what_it_is():
    class Odd:
        def __arrow_c_stream__(self) -> None: ...

    for x in (1.0, None, "text", [1.0], [], {"a": [1.0]}, {}, np.ones(2), torch.ones(2), pd.Series([1.0]), Odd()):
        assert plain(x, "x") is x
        assert Frame.of(x) is None
    with pytest.raises(TypeError, match="x: got Odd, expected numbers"):
        MODEL.smooth(Odd())


def test_parts_beside_x_may_be_columns_too():
    rows: dict[str, Any] = {name: pd.DataFrame(ROWS)[name] for name in ("level", "rain", "gap", "error")}
    expected = DRIVEN.states(rows["level"], inputs=rows["rain"].to_frame(), dt=rows["gap"], noise=rows["error"])
    for frame in FRAMES.values():
        own = {name: frame[name] for name in rows}
        given: dict[str, Any] = {"dt": own["gap"], "noise": own["error"]}
        for inputs in (polars_of(frame).select("rain"), {"rain": own["rain"]}):
            found = DRIVEN.smooth(own["level"], inputs=inputs, **given).state
            np.testing.assert_array_equal(found.numpy(), expected[["state_0", "state_1"]].to_numpy())
    lengths, weights = pl.Series([3, 2]), pl.Series([1.0, 2.0])
    series = MODEL.read(TABLE["level"], lengths=lengths, weights=weights, states=TABLE["known"])
    assert series.lengths.tolist() == [3, 2]
    assert series.weights.tolist() == [1.0, 2.0]
    assert series.states.tolist() == [[-1, 0, -1], [-1, 1, -1]]
    assert series.state_names == ("high", "low")


def test_inputs_of_the_steps_to_come_and_single_steps_may_be_frames():
    x, rain = TABLE["rain"].abs(), TABLE.select("rain")
    fit = DRIVEN.fit(x, inputs=rain, **FEW)
    ahead = torch.tensor([[0.5], [1.5]], dtype=torch.float64)
    for inputs in (pl.DataFrame({"rain": [0.5, 1.5]}), pl.Series("rain", [0.5, 1.5]), pa.table({"rain": [0.5, 1.5]})):
        assert torch.equal(fit.forecast(2, inputs=inputs).mean, fit.forecast(2, inputs=ahead).mean)
    streams = MODEL.start((2,))
    assert torch.equal(
        MODEL.update(streams, pl.Series([0.1, None]))[1].state, MODEL.update(streams, [0.1, float("nan")])[1].state
    )


@pytest.mark.parametrize(
    ("x", "error", "said"),
    [
        (TABLE.lazy(), TypeError, r"x: got LazyFrame, a frame that is not computed yet; collect\(\) it first"),
        (TABLE, ValueError, r"x: got 7 column\(s\) \(site, day, .*\), but the emission has 1 feature\(s\); select"),
        (TABLE.select("day"), TypeError, r"x: got column 'day' of datetime64\[s\], which holds .*`read_panel`"),
        (
            pl.Series([date(2024, 1, 1)]),
            TypeError,
            r"x: got a column of datetime64\[s\], which holds values that are not",
        ),
        (TABLE.select("site"), TypeError, "x: got column 'site' of str, which holds values that are not numbers"),
        (
            pa.table([[0.1], [0.2]], names=["a", "a"]),
            ValueError,
            "x: got 2 columns called 'a'; give each a different",
        ),
        (
            pl.Series("k", ["a"], dtype=pl.Enum(["a", "b"])),
            TypeError,
            "x: got column 'k' of category, .* give its codes",
        ),
        (TABLE.select("level").clear(), ValueError, r"x: got shape \(0, 1\), a sequence without any step"),
        (pl.DataFrame(), ValueError, r"x: got 0 column\(s\) \(none\), but the emission has 1"),
        ([TABLE["level"], TABLE.lazy()], TypeError, r"x\[1\]: got LazyFrame"),
        (pl.DataFrame({"a": [0.1, np.inf]}), ValueError, "x: got an infinite value at step 1, feature 0"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_cure(x, error, said):
    with pytest.raises(error, match=said):
        MODEL.smooth(x)


# ---- tables with key columns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", FRAMES)
def test_results_have_the_key_columns_of_the_table_in_its_order(library):
    frame, table = FRAMES[library], pd.DataFrame(ROWS)
    series, expected = (sh.read_panel(f, "site", "day", ["level"]) for f in (frame, table))
    assert series.sequences == expected.sequences == ("north", "south")
    assert torch.equal(series.observations.nan_to_num(), expected.observations.nan_to_num())
    fits = [sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(s, **FEW) for s in (series, expected)]
    assert fits[0].loglik == fits[1].loglik
    found = fits[0].states()
    assert type(found) is (pl.DataFrame if library == "polars" else pa.Table)
    found = polars_of(found)
    assert_frame_equal(found.select("site", "day"), TABLE.select("site", "day"))
    np.testing.assert_array_equal(found.drop("site", "day").to_numpy(), fits[1].states().to_numpy())
    residuals = polars_of(fits[0].residuals().values)
    assert residuals.columns == ["site", "day", "level"]
    assert residuals["level"].is_null().to_list() == TABLE["level"].is_null().to_list()
    assert fits[0].residuals().ljung_box(1).equals(fits[1].residuals().ljung_box(1))
    alone = polars_of(MODEL.states(series.one(1)))
    assert_frame_equal(alone.select("site", "day"), TABLE.select("site", "day").filter(site="south"))


def test_one_sequence_has_its_times():
    day = pd.DataFrame({name: ROWS[name] for name in ("day", "level")}).iloc[[0, 2, 4]].set_index("day")["level"]
    expected = MODEL.states(day)
    series = sh.read_panel(SINGLE, time="day", columns="level")
    assert (series.batch_shape, series.sequences, list(series.index)) == ((), None, list(pd.DatetimeIndex(day.index)))
    found = MODEL.states(series)
    assert_frame_equal(found.select("day"), SINGLE.select("day"))
    np.testing.assert_array_equal(found.drop("day").to_numpy(), expected.to_numpy())
    assert_frame_equal(MODEL.states(series.cut(1, 3)).select("day"), SINGLE.select("day")[1:])
    of_pandas = MODEL.states(sh.read_panel(day.reset_index(), time="day"))
    assert list(of_pandas.index) == list(series.index)
    counted = MODEL.states(sh.read_panel(SINGLE, columns=["level"]))
    assert counted.columns == list(expected.columns)
    zoned = pl.DataFrame({"at": BERLIN[:2], "v": [0.0, 1.0]})
    assert_frame_equal(MODEL.states(sh.read_panel(zoned, time="at")).select("at"), zoned.select("at"))


def test_other_columns_of_the_table_are_what_fits_take_beside_x():
    keys = ["site", "day"]
    table = pd.DataFrame(ROWS).set_index(keys)
    given: dict[str, Any] = {"inputs": table[["rain"]], "dt": table["gap"], "noise": table["error"]}
    expected = DRIVEN.states(table[["level"]], states=table["known"], weights=table["gap"], **given)
    named: dict[str, Any] = {"inputs": "rain", "dt": "gap", "noise": "error", "states": "known", "weights": "gap"}
    for frame in (*FRAMES.values(), pd.DataFrame(ROWS)):
        series = sh.read_panel(frame, "site", "day", **named)
        assert series.drivers == ("rain",)
        assert series.features == ("level",)
        found = DRIVEN.states(series)
        found = found if isinstance(found, pd.DataFrame) else polars_of(found).drop(keys)
        assert found["state"].to_list() == expected["state"].to_list()
        numbers = found.drop(columns="state") if isinstance(found, pd.DataFrame) else found.drop("state")
        np.testing.assert_array_equal(numbers.to_numpy(), expected.drop(columns="state").to_numpy())


def test_several_frames_have_their_sequence_and_step_as_columns():
    parts = {"a": TABLE["level"], "b": TABLE["level"][:2]}
    for x, names in ((parts, ["a", "b"]), (list(parts.values()), [0, 1])):
        found = MODEL.states(x)
        assert found["sequence"].to_list() == [names[0]] * 5 + [names[1]] * 2
        assert found["step"].to_list() == [0, 1, 2, 3, 4, 0, 1]
    by_key = {key: part.select("rain") for key, part in TABLE.partition_by("site", "gap", as_dict=True).items()}
    assert MODEL.read(by_key).sequences == ("north, 1.0", "south, 1.0", "north, 2.0", "north, 0.5")
    steps = MODEL.fit({"a": pl.DataFrame({"step": ROWS["rain"]})}, **FEW).residuals().values
    assert steps.columns == ["sequence", "step_number", "step"]
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(
        [TABLE["rain"], TABLE["rain"][:3], TABLE["rain"]], subjects=pl.Series(["u", "v", "u"]), pooled="none", **FEW
    )
    assert fit.subject("u").states().columns[:2] == ["sequence", "step"]
    assert fit.subject("v").states()["state_0"].to_list() == fit.states().filter(sequence=1)["state_0"].to_list()


def test_a_fit_is_copied_and_pickled_with_its_keys():
    for frame in FRAMES.values():
        fit = MODEL.fit(sh.read_panel(frame, "site", "day", "level"), **FEW)
        for other in (copy.deepcopy(fit), pickle.loads(pickle.dumps(fit))):
            assert other.states().equals(fit.states())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"time": "when"}, "time: got 'when', expected columns among site, day, level, "),
        ({"sequence": "level", "columns": "rain"}, "frame: got no level in row 2; fill it, or drop the row"),
        (
            {"time": "day", "columns": "level"},
            "frame: got two rows for sequence 0, day 2024-02-26 00:00:00, rows 0 and 1",
        ),
        ({"columns": "level", "inputs": ["rain", "snow"]}, "inputs: got 'snow', expected columns among"),
        ({"columns": []}, r"columns: got \[\], expected columns among"),
        ({"sequence": [], "columns": "level"}, r"sequence: got \[\], expected columns among"),
        ({"time": ["day", "rain"]}, r"time: got \['day', 'rain'\], expected the name of one column"),
        ({"dt": [], "columns": "level"}, r"dt: got \[\], expected the name of one column"),
        (
            {"sequence": "site", "time": "rain", "columns": "level"},
            "frame: sequence north: its index rain does not rise at step 2, .*; sort the rows by time",
        ),
    ],
)
def test_columns_that_do_not_serve_are_named(arguments, said):
    with pytest.raises(ValueError, match=said):
        sh.read_panel(TABLE, **arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sequence": "cells"}, "frame: got column 'cells' with list cells, which cannot name sequences or times"),
        ({"time": "record"}, "frame: got column 'record' with dict cells, which cannot name sequences or times"),
        ({"columns": pl.col("level")}, "columns: got Expr, expected the name of a column, or a list of names"),
        ({"columns": "site"}, "frame: got column 'site' of str, which holds values that are not numbers"),
    ],
)
def test_columns_of_types_that_do_not_serve_are_named(arguments, said):
    table = TABLE.with_columns(cells=pl.concat_list("rain"), record=pl.struct("rain"))
    with pytest.raises(TypeError, match=said):
        sh.read_panel(table, **{"columns": "level"} | arguments)


def test_one_column_may_be_named_in_a_list():
    named: dict[str, Any] = {"time": "day", "columns": "level", "weights": "gap", "states": "known", "dt": "gap"}
    of_lists = sh.read_panel(TABLE, "site", **{option: [name] for option, name in named.items()})
    assert_frame_equal(MODEL.states(of_lists), MODEL.states(sh.read_panel(TABLE, "site", **named)))


@pytest.mark.parametrize("cells", [[Decimal("2.5"), Decimal("1.5")], [datetime(2024, 2, 1), datetime(2024, 1, 1)]])
def test_times_of_any_type_are_in_order(cells):
    table = pl.DataFrame({"t": cells, "level": [0.0, 1.0]})
    of_arrow = table.to_pandas(use_pyarrow_extension_array=True)
    for frame in (table, of_arrow, of_arrow.astype({"t": "category"})):
        with pytest.raises(ValueError, match="its index t does not rise at step 1"):
            sh.read_panel(frame, time="t")
        series = sh.read_panel(frame[::-1], time="t")
        times = MODEL.to_arviz(series, draws=2, predictive=False).observed_data["time"]
        assert times.dtype.kind == ("f" if isinstance(cells[0], Decimal) else "M")


def test_something_else_than_a_table_is_a_type_error():
    for frame in (TABLE["level"], TABLE.to_numpy()):
        with pytest.raises(
            TypeError, match=rf"frame: got {type(frame).__name__}, expected a DataFrame of pandas or polars"
        ):
            sh.read_panel(frame, "site")
    with pytest.raises(TypeError, match=r"frame: got LazyFrame, .*; collect\(\) it first"):
        sh.read_panel(TABLE.lazy(), "site")


def test_a_key_that_results_have_too_is_named():
    series = sh.read_panel(TABLE.rename({"site": "state"}), "state", "day", "level")
    with pytest.raises(ValueError, match="x: has the key column 'state', as the results have; give it another name"):
        MODEL.states(series)


# ---- estimators and formulas -----------------------------------------------------------------------------------------


def test_estimators_take_frames_of_any_library():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"level": rng.normal(size=24), "step": rng.normal(size=24)})
    frame.loc[3, "level"], days = np.nan, np.repeat([0, 1, 2, 3], 6)
    estimator = sh.sklearn.HMM(2, restarts=1, max_steps=5)
    expected = estimator.fit(frame, groups=days).predict_proba(frame, groups=days)
    folds = cross_val_score(estimator, frame, groups=days, cv=GroupKFold(2))
    for form in ("polars", "pyarrow"):
        X, groups = FORMS[form](frame), pl.Series([f"day {day}" for day in days], dtype=pl.Categorical)
        assert list(estimator.fit(X, groups=groups).feature_names_in_) == ["level", "step"]
        np.testing.assert_array_equal(estimator.predict_proba(X, groups=groups), expected)
        np.testing.assert_array_equal(cross_val_score(estimator, X, groups=days, cv=GroupKFold(2)), folds)
        assert isinstance(copy.deepcopy(estimator).set_output(transform="polars").transform(X), pl.DataFrame)
        with pytest.raises(ValueError, match="feature names should match"):
            estimator.predict(X.select(["step", "level"]))
    with pytest.raises(TypeError, match="X: got column 'site' of str"):
        estimator.fit(TABLE.select("site", "level"))
    with pytest.raises(ValueError, match=r"X: got one column, expected a frame .* to_frame"):
        estimator.fit(TABLE["rain"])
    with pytest.raises(ValueError, match="X: got a frame without columns"):
        estimator.fit(pl.DataFrame())
    by_name = sh.sklearn.HMM(2, emission=sh.Joint(rain=sh.Normal(), gap=sh.Gamma()), restarts=1, max_steps=2)
    with pytest.raises(ValueError, match=r"X: got the columns rain, level; expected a column gap"):
        by_name.fit(TABLE.select("rain", "level"))
    with pytest.raises(TypeError, match="groups: got dict at row 0, expected a label for each row"):
        estimator.fit(TABLE.select("rain", "gap"), groups=TABLE.select(pl.struct("site"))["site"])
    tenths = pl.DataFrame({"level": [Decimal("0.1"), None, Decimal("0.3")] * 3})
    as_floats = tenths.select(pl.col("level").cast(pl.Float64))
    assert estimator.fit(tenths).fit_.loglik == estimator.fit(as_floats).fit_.loglik


@pytest.mark.parametrize("form", ["polars", "pyarrow"])
def test_formulas_read_tables_of_any_library_and_give_the_same(form):
    table = pd.DataFrame({"count": [1.0, 0.0, 2.0, 9.0, 8.0, 7.0], "day": np.arange(6.0), "site": list("aabbab")})
    read, of_pandas = (sh.Formula("count ~ day + site", frame) for frame in (FORMS[form](table), table))
    assert read.names == of_pandas.names
    for found, expected in ((read.x, of_pandas.x), (read.inputs, of_pandas.inputs)):
        np.testing.assert_array_equal(polars_of(found).to_numpy(), expected.to_numpy())
    np.testing.assert_array_equal(
        polars_of(read.at(FORMS[form](table[:2]))).to_numpy(), of_pandas.at(table[:2]).to_numpy()
    )
    with pytest.raises(TypeError, match="table: got int, expected a frame of pandas, polars or pyarrow"):
        read.at(3)


def test_formulas_take_decimals_for_numbers_and_name_what_they_cannot_read():
    numbers = {"count": [1.0, 0.0, 2.0], "price": [Decimal("0.50"), None, Decimal("2.25")]}
    for table in (pl.DataFrame(numbers), pl.DataFrame(numbers).to_arrow(), pd.DataFrame(numbers)):
        read = sh.Formula("count ~ price", table)
        assert read.names == ("price",)
        np.testing.assert_array_equal(plain(read.inputs, "inputs")["price"], [0.5, np.nan, 2.25])
    for column in (pl.struct("count"), pl.date(2024, 1, 1)):
        with pytest.raises(ValueError, match="formula: got 'count ~ odd', which cannot be read on this table: "):
            sh.Formula("count ~ odd", pl.DataFrame(numbers).with_columns(odd=column))
