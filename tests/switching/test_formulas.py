"""Inputs by formulas."""

import numpy as np
import pandas as pd
import pytest
import samplehold as sh

INDEX = pd.date_range("2026-01-01", periods=8)
TABLE = pd.DataFrame(
    {"count": [1, 0, 2, 9, 8, np.nan, 7, 1], "day": np.arange(8.0), "site": list("aabbabab"), "other": "x"}, index=INDEX
)


def test_a_formula_is_observations_and_columns_without_a_constant():
    read = sh.Formula("count ~ day + site", TABLE)
    assert read.names == ("day", "site[T.b]")
    pd.testing.assert_index_equal(read.inputs.index, INDEX)
    np.testing.assert_array_equal(read.inputs["site[T.b]"], (TABLE["site"] == "b").astype(float))
    np.testing.assert_array_equal(read.x["count"], TABLE["count"])
    model = sh.SwitchingSSM(sh.Markov(2), sh.Poisson(1, inputs=read.names))
    series = model.read(read.x, inputs=read.inputs)
    assert series.drivers == read.names
    assert series.n_observed == 7


def test_the_steps_to_come_have_the_knots_and_levels_of_the_past():
    read = sh.Formula("count ~ bs(day, df=4) + center(day) + site", TABLE)
    part = read.at(TABLE[2:5].assign(site="a"))
    pd.testing.assert_frame_equal(part.iloc[:, :-1], read.inputs.iloc[2:5, :-1])
    assert (part.iloc[:, -1] == 0).all()


def test_a_formula_without_inputs_or_observations():
    assert sh.Formula("count ~ 1", TABLE).inputs is None
    assert sh.Formula("day", TABLE).x is None


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("count ~ bs(dy)", r"^formula: got 'count ~ bs\(dy\)', .* name 'dy' is not defined"),
        ("count ~ ~ day", r"^formula: .* is incorrectly used. count ~ ~ day$"),
        ("nothing ~ day", r"^formula: .*nothing"),
    ],
)
def test_a_formula_that_cannot_be_read_is_named(formula, said):
    with pytest.raises(ValueError, match=said):
        sh.Formula(formula, TABLE)


def test_a_table_that_does_not_fit_is_named():
    read = sh.Formula("count ~ site", TABLE)
    with pytest.raises(ValueError, match=r"^table: 'count ~ site' cannot be read on it: .*\{'z'\}"):
        read.at(TABLE.assign(site="z"))
    with pytest.raises(ValueError, match=r"^table: .*site"):
        read.at(TABLE[["day"]])
