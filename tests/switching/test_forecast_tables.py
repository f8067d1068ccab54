"""A forecast is a table: means, intervals and states by sequence, date and feature."""

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from oracles.coupled import layered_of
from oracles.switching_linear import values_of
from samplehold.switching.slds.layout import LinearRegimes

COPY = sh.SwitchingSSM(sh.Copy(2), sh.Normal()).with_values(
    redraw_prob=0.1, state_probs=[0.6, 0.4], loc=[[0.0], [4.0]], scale=[[1.0], [2.0]]
)
TWO = sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)).with_values(
    initial_probs=[0.5, 0.5],
    transition_probs=[[0.9, 0.1], [0.2, 0.8]],
    loc=[[0.0, 1.0], [4.0, 2.0]],
    scale=[[1.0] * 2] * 2,
)
X = [0.1, -0.2, 0.0, 4.1, 3.8, 4.0]
MONTHS = pd.Series(X, pd.date_range("2020-01-31", periods=6, freq="ME"), name="sales")


def test_a_table_has_the_numbers_of_the_forecast_by_date():
    ahead = COPY.forecast(MONTHS, 3)
    table, ends = ahead.table(0.8), ahead.interval(0.8)
    assert table.columns.tolist() == ["mean", "lower", "upper", "state_0", "state_1", "redraw"]
    assert table.index.equals(pd.date_range("2020-07-31", periods=3, freq="ME"))
    expected = [ahead.mean[:, 0], ends.lower[:, 0], ends.upper[:, 0], *ahead.state.unbind(-1), ahead.redraw]
    np.testing.assert_array_equal(table, torch.stack(expected, -1))
    assert ahead.to_frame(0.8).equals(table)
    with pytest.raises(ValueError, match="level: got 90"):
        ahead.table(90)


def test_several_features_and_sequences_are_levels():
    x = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ahead = TWO.forecast(x, 2)
    table = ahead.table()
    assert table.index.names == ["sequence", "step", "feature"]
    assert table.index[:4].tolist() == [(0, 5, "x[0]"), (0, 5, "x[1]"), (0, 6, "x[0]"), (0, 6, "x[1]")]
    assert table.loc[(2, 6, "x[1]"), "mean"] == float(ahead.mean[2, 1, 1])
    assert table.loc[(1, 5, "x[0]"), "state_1"] == table.loc[(1, 5, "x[1]"), "state_1"] == float(ahead.state[1, 0, 1])
    assert "redraw" not in table  # Markov dynamics have no gate
    deep = TWO.forecast(x.reshape(3, 1, 5, 2), 2).table()
    assert deep.index.names == ["sequence_0", "sequence_1", "step", "feature"]
    np.testing.assert_array_equal(deep, table)


def test_each_sequence_of_a_list_or_a_panel_goes_on_from_its_own_end():
    ragged = COPY.forecast([MONTHS, MONTHS[:4]], 2).table()
    assert [label.strftime("%m-%d") for _, label in ragged.index] == ["07-31", "08-31", "05-31", "06-30"]
    frame = pd.DataFrame({"who": [*"ab"] * 3, "t": np.repeat([4, 5, 6], 2), "v": X})
    panel = COPY.forecast(sh.read_panel(frame, "who", "t", ["v"]), 2).table()
    assert panel.index.tolist() == [("a", 7), ("a", 8), ("b", 7), ("b", 8)]
    assert panel.index.names == ["sequence", "t"]


def test_labels_of_states_are_those_of_the_fit():
    labels = ["low", None, None, "high", None, None]
    fit = COPY.fit(MONTHS, states=labels, restarts=1, max_steps=5, progress=False)
    assert fit.forecast(1).table().columns.tolist()[3:] == ["state_high", "state_low", "redraw"]


def test_a_forecast_prints_as_a_table_with_dates():
    text = repr(COPY.forecast(MONTHS, 12))
    assert text.splitlines()[0] == "Forecast of 12 steps, with intervals of 90%"
    assert len(text.splitlines()) == 14
    assert all(month in text for month in ("2020-07-31", "2020-12-31", "2021-06-30"))
    assert f"{float(COPY.forecast(MONTHS, 12).mean[4, 0]):.4g}" in text
    assert repr(COPY.forecast([X, X[:3]], 2)).endswith("0.1")
    assert "the first of 2 sequences" in repr(COPY.forecast([X, X[:3]], 2))
    assert len(repr(COPY.forecast(MONTHS, 500)).splitlines()) < 18
    assert "2020-07-31" in COPY.forecast(MONTHS, 2)._repr_html_()


def test_an_interval_has_labels_and_remains_a_pair_of_tensors():
    ahead = COPY.forecast(MONTHS, 2)
    lower, upper = interval = ahead.interval(0.5)
    assert isinstance(lower, torch.Tensor)
    assert lower.shape == upper.shape == (2, 1)
    table = interval.to_frame()
    assert table.index.equals(ahead.table().index)
    np.testing.assert_array_equal(table, torch.cat([lower, upper], -1))
    assert "2020-08-31" in repr(interval)


def test_forecasts_of_every_model_are_tables():
    linear = sh.LinearSSM(sh.LocalLevel()).with_values({"sigma2.irregular": 1.0, "sigma2.level": 0.5})
    segments = sh.Segments(sh.Normal()).fit(X, max_steps=3, progress=False).model
    regimes = sh.SwitchingLinearSSM(2, 1, shared="chain per regime").with_values(values_of(LinearRegimes(2, 1, 1)))
    table, half = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).double(), torch.tensor([0.5, 0.5]).double()
    levels = {"loc": torch.tensor([[0.0], [4.0]]).double(), "precision": torch.ones(2, 1).double()}
    layered = layered_of(sh.Normal(), levels, torch.tensor([0.5, 0.05]).double(), [table], half)
    columns = {
        linear: ["latent_mean_level", "latent_sd_level"],
        segments: ["change"],
        regimes: ["state_0", "state_1"],
        layered: ["state_1_0", "state_1_1", "state_2_0", "state_2_1", "redraw_1", "redraw_2"],
    }
    for model, expected in columns.items():
        ahead = model.forecast(MONTHS, 2)
        assert ahead.table().columns.tolist() == ["mean", "lower", "upper", *expected]
        assert "2020-08-31" in repr(ahead)
        np.testing.assert_array_equal(ahead.table()["lower"], ahead.interval(0.9).lower.flatten())
        assert ahead.interval(0.9).to_frame().index.equals(ahead.table().index)


def test_a_forecast_of_a_posterior_is_a_table_too():
    fit = COPY.fit(MONTHS, "vmp", restarts=1, max_steps=5, progress=False)
    table = fit.posterior.forecast(MONTHS, 2).table()
    assert table.index[0] == pd.Timestamp("2020-07-31")
    assert table.columns.tolist() == ["mean", "lower", "upper", "state_0", "state_1", "redraw"]


def test_a_forecast_without_a_series_counts_its_steps():
    ahead = COPY.forecast(MONTHS, 2)
    assert type(ahead)(**(vars(ahead) | {"series": None})).table().index.tolist() == [1, 2]
