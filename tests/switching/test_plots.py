"""Figures show what the model computes, at the times that the data has."""

import io
import itertools

import matplotlib.dates
import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from samplehold import (
    Bernoulli,
    Categorical,
    Copy,
    Gated,
    Joint,
    Markov,
    MultivariateNormal,
    Normal,
    Poisson,
    SwitchingSSM,
    VonMises,
)
from samplehold.switching.data.timeline import continued, evenly_spaced, following, label_text
from samplehold.switching.fitting.alignment import state_levels
from samplehold.switching.parameters import reordered
from samplehold.switching.views import figures
from samplehold.switching.views.colors import from_dark_to_light, state_colors
from samplehold.switching.views.drawing import TimeAxis, apart, draw_gate, new_figure
from samplehold.switching.views.figures import plot_fit


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def nile_model() -> SwitchingSSM:
    return SwitchingSSM(Copy(2), Normal(1)).with_values(
        redraw_prob=tensor(0.025),
        state_probs=tensor([0.4, 0.6]),
        loc=tensor([[1100.0], [850.0]]),
        scale=tensor([[130.0], [125.0]]),
    )


def steps(panel) -> list[StepPatch]:
    return [patch for patch in panel.patches if isinstance(patch, StepPatch)]


def texts(figure: Figure) -> str:
    return " | ".join(text.get_text() for panel in figure.axes for text in panel.texts)


def rendered(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=50)
    return file.getvalue()


# ---- the fit -------------------------------------------------------------------------------------------------------


def test_the_nile_figure_shows_series_states_and_the_redraw_of_1899(nile):
    model = nile_model()
    figure = plot_fit(model, nile)
    series, states, gate = figure.axes
    assert series.get_ylabel() == "volume"
    line = series.lines[0]
    np.testing.assert_array_equal(line.get_xdata(), np.arange(1871, 1971))
    np.testing.assert_array_equal(line.get_ydata(), nile["volume"])
    smoothed = model.smooth(nile)
    bars = steps(gate)[0].get_data()
    np.testing.assert_allclose(bars.values[1:], smoothed.redraw.numpy()[1:])
    np.testing.assert_allclose(bars.edges, np.arange(1871, 1972) - 0.5)
    assert np.isnan(bars.values[0])
    assert f"1899: {float(smoothed.redraw[1899 - 1871]):.2f}" in texts(figure)
    assert "state 0: 1100" in texts(figure)
    assert "state 1: 850" in texts(figure)
    low_state = steps(states)[0].get_data()
    np.testing.assert_allclose(low_state.values, smoothed.state[:, 1].numpy())
    np.testing.assert_allclose(steps(states)[1].get_data().values, 1.0)
    assert gate.get_xlim() == series.get_xlim() == (1870.5, 1970.5)
    assert len(rendered(figure)) > 5000


def test_the_band_is_the_mean_and_spread_of_the_smoothed_mixture(nile):
    model = nile_model()
    panel = plot_fit(model, nile, level=0.9).axes[0]
    state, values = model.smooth(nile).state.numpy(), model.describe()
    mean = state @ values["loc"].numpy()[:, 0]
    second = state @ (values["scale"] ** 2 + values["loc"] ** 2).numpy()[:, 0]
    reach = 1.6448536269514722 * np.sqrt(second - mean**2)
    curves = [patch.get_data() for patch in steps(panel)]
    np.testing.assert_allclose(curves[0].values, mean, rtol=1e-10)
    high = state[:, 0] > 0.5
    for k, here in enumerate((high, ~high)):
        band, middle = curves[1 + 2 * k], curves[2 + 2 * k]
        np.testing.assert_allclose(band.values[here], (mean + reach)[here], rtol=1e-10)
        np.testing.assert_allclose(band.baseline[here], (mean - reach)[here], rtol=1e-10)
        np.testing.assert_allclose(middle.values[here], mean[here], rtol=1e-10)
        assert np.isnan(band.values[~here]).all()


def test_missing_values_break_the_line_and_nothing_else(nile):
    gappy = nile.astype(float)
    gappy.iloc[10:15] = np.nan
    panel = plot_fit(nile_model(), gappy).axes[0]
    assert np.flatnonzero(np.isnan(panel.lines[0].get_ydata())).tolist() == [10, 11, 12, 13, 14]
    assert np.isfinite(steps(panel)[0].get_data().values).all()


MODELS = {
    "poisson": SwitchingSSM(Copy(2), Poisson(1)).with_values(
        redraw_prob=tensor(0.1), state_probs=tensor([0.5, 0.5]), rate=tensor([[0.5], [6.0]])
    ),
    "bernoulli": SwitchingSSM(Markov(2), Bernoulli(2)).with_values(
        initial_probs=tensor([0.5, 0.5]),
        transition_probs=tensor([[0.9, 0.1], [0.2, 0.8]]),
        probs=tensor([[0.1, 0.9], [0.8, 0.3]]),
    ),
    "categorical": SwitchingSSM(Copy(2), Categorical(3)).with_values(
        redraw_prob=tensor(0.1), state_probs=tensor([0.5, 0.5]), probs=tensor([[0.8, 0.1, 0.1], [0.0, 0.3, 0.7]])
    ),
    "gated": SwitchingSSM(Copy(2), Gated(Normal(1), Normal(1))).with_values(
        redraw_prob=tensor(0.2),
        state_probs=tensor([0.5, 0.5]),
        loc=tensor([[-5.0], [5.0]]),
        scale=tensor([[1.0], [1.0]]),
        background_loc=tensor([[0.0]]),
        background_scale=tensor([[0.5]]),
    ),
    "vectors": SwitchingSSM(Markov(2), MultivariateNormal(2)).with_values(
        initial_probs=tensor([0.5, 0.5]),
        transition_probs=tensor([[0.9, 0.1], [0.2, 0.8]]),
        loc=tensor([[0.0, 1.0], [3.0, -1.0]]),
        covariance=tensor([[[1.0, 0.5], [0.5, 1.0]], [[2.0, 0.0], [0.0, 0.5]]]),
    ),
    "one state": SwitchingSSM(Copy(1), Normal(1)).with_values(
        redraw_prob=tensor(0.2), state_probs=tensor([1.0]), loc=tensor([[0.0]]), scale=tensor([[1.0]])
    ),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", MODELS)
def test_every_family_is_drawn(name):
    model = MODELS[name]
    x = model.simulate(40, seed=1).x
    figure = plot_fit(model, x)
    n_features = model.emission.n_features
    assert len(figure.axes) == n_features + 2
    for feature in range(n_features):
        drawn = figure.axes[feature].lines[-1]
        np.testing.assert_array_equal(drawn.get_ydata(), x[:, feature].numpy())
    expected = "redraw" if isinstance(model.dynamics, Copy) else "change"
    assert figure.axes[-1].get_ylabel() == f"{expected}\nprobability"
    assert all(f"state {k}: " in texts(figure) for k in range(model.n_states))
    ahead = model.plot_forecast(x, 5)
    assert len(ahead.axes) == n_features + 1
    assert rendered(figure) != rendered(ahead)


def test_a_gated_band_follows_the_background_at_held_steps():
    model = MODELS["gated"]
    x = tensor([5.1, 0.2, -0.1, -4.8, 0.3])
    curve = steps(plot_fit(model, x).axes[0])[0].get_data().values
    np.testing.assert_allclose(curve, [5.0, 0.0, 0.0, -5.0, 0.0], atol=1e-3)


def test_counts_have_no_band_below_zero():
    model = MODELS["poisson"]
    bands = [patch.get_data() for patch in steps(plot_fit(model, model.simulate(40, seed=1).x).axes[0])][1::2]
    lowest = [np.nanmin(band.baseline) for band in bands]
    assert min(lowest) == 0.0


def test_one_of_several_sequences_is_drawn_to_its_end():
    model = nile_model()
    frames = [
        pd.DataFrame({"a": [1000.0, 900.0, 800.0]}, index=pd.date_range("2020-01-01", periods=3)),
        pd.DataFrame({"b": [1100.0, 1090.0]}, index=pd.date_range("2021-01-01", periods=2)),
    ]
    figure = plot_fit(model, frames, sequence=1)
    assert figure.axes[0].get_ylabel() == "b"
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), [1100.0, 1090.0])
    np.testing.assert_allclose(
        figure.axes[0].lines[0].get_xdata(), matplotlib.dates.date2num(frames[1].index.to_numpy())
    )
    padded = torch.full((2, 3, 1), torch.nan, dtype=torch.float64)
    padded[0, :, 0], padded[1, :2, 0] = tensor([1000.0, 900.0, 800.0]), tensor([1100.0, 1090.0])
    panel = plot_fit(model, padded, lengths=[3, 2], sequence=-1).axes[0]
    np.testing.assert_array_equal(panel.lines[0].get_ydata(), [1100.0, 1090.0])
    with pytest.raises(ValueError, match=r"sequence: got 2, but x holds 2 sequence"):
        plot_fit(model, frames, sequence=2)


def test_gaps_between_steps_are_drawn_to_scale():
    model = nile_model()
    panel = plot_fit(model, tensor([1100.0, 1000.0, 900.0]), dt=tensor([1.0, 4.0, 1.0])).axes[0]
    np.testing.assert_array_equal(panel.lines[0].get_xdata(), [0.0, 4.0, 5.0])


def test_of_very_many_steps_some_are_drawn_and_no_change_is_lost(nile, monkeypatch):
    model, smoothed = nile_model(), nile_model().smooth(nile)
    monkeypatch.setattr(figures, "MOST_DRAWN", 30)
    series, states, gate = plot_fit(model, nile).axes
    assert series.get_title(loc="left").endswith("smoothed state, 1 step of 4 drawn")
    np.testing.assert_array_equal(series.lines[-1].get_ydata(), nile.iloc[::4, 0])
    np.testing.assert_array_equal(series.lines[-1].get_xdata(), nile.index[::4])
    assert states.get_xlim() == (1870.5, 1970.5)
    drawn = steps(gate)[0].get_data()
    np.testing.assert_allclose(drawn.values[1:], smoothed.redraw.reshape(-1, 4).amax(-1)[1:].numpy())
    assert drawn.edges[-1] == 1970.5
    monkeypatch.setattr(figures, "MOST_DRAWN", 99)
    assert len(plot_fit(model, nile.iloc[:-1]).axes[0].lines[-1].get_ydata()) == 99
    np.testing.assert_allclose(plot_fit(model, nile.iloc[:-1]).axes[0].get_xlim(), (1870.5, 1969.5))


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 90])
def test_levels_outside_the_unit_interval_are_refused(nile, level):
    with pytest.raises(ValueError, match=r"level: got .*, expected a probability between 0 and 1"):
        plot_fit(nile_model(), nile, level=level)
    with pytest.raises(ValueError, match="level"):
        nile_model().plot_forecast(nile, 3, level=level)


def test_pyplot_keeps_no_figure(nile):
    import matplotlib.pyplot as plt

    open_before = plt.get_fignums()
    plot_fit(nile_model(), nile)
    nile_model().plot_forecast(nile, 3)
    assert plt.get_fignums() == open_before


# ---- the forecast --------------------------------------------------------------------------------------------------


def test_the_forecast_goes_on_where_the_series_ends(nile):
    model = nile_model()
    series, states = model.plot_forecast(nile, 5).axes
    assert states.get_xlim() == (1930.5, 1975.5)
    np.testing.assert_array_equal(series.lines[0].get_xdata(), np.arange(1931, 1971))
    np.testing.assert_array_equal(series.lines[-1].get_xdata(), [1970.5, 1970.5])
    mean = steps(series)[0].get_data()
    np.testing.assert_allclose(mean.values, model.forecast(nile, 5).mean[:, 0].numpy())
    np.testing.assert_allclose(mean.edges, np.arange(1971, 1977) - 0.5)
    low_state = steps(states)[0].get_data().values
    np.testing.assert_allclose(low_state[:40], model.smooth(nile).state[60:, 1].numpy(), rtol=1e-10)
    np.testing.assert_allclose(low_state[40:], model.forecast(nile, 5).state[:, 1].numpy(), rtol=1e-10)


def test_a_forecast_of_text_labels_counts_the_steps_ahead():
    model = nile_model()
    x = pd.Series([1100.0, 1000.0, 900.0], index=["a", "b", "c"])
    figure = model.plot_forecast(x, 2)
    figure.draw_without_rendering()
    labels = [label.get_text() for label in figure.axes[-1].get_xticklabels()]
    assert [label for label in labels if label] == ["a", "b", "c", "+1", "+2"]


@pytest.mark.few(3)
@pytest.mark.parametrize("name", MODELS)
def test_a_forecast_draws_itself(name):
    model = MODELS[name]
    x = model.simulate(40, (3,), seed=1).x
    forecast = model.forecast(x, 5)
    assert rendered(forecast.plot(sequence=1, level=0.5)) == rendered(model.plot_forecast(x[1], 5, level=0.5))
    torch.testing.assert_close(forecast.one(1).mean, forecast.mean[1])
    torch.testing.assert_close(forecast.one(1).state, forecast.state[1])
    with pytest.raises(ValueError, match="sequence: got 3, but x holds 3"):
        forecast.plot(sequence=3)
    with pytest.raises(ValueError, match="level: got 90"):
        forecast.plot(level=90)


def test_the_forecast_of_a_posterior_draws_its_own_mixture(nile):
    fit = SwitchingSSM(Copy(2), Normal(1)).fit(nile, method="vmp", restarts=2, progress=False)
    forecast = fit.posterior.forecast(nile, 5, draws=50)
    series, states = forecast.plot().axes
    np.testing.assert_allclose(steps(series)[0].get_data().values, forecast.mean[:, 0].numpy())
    lowest = fit.posterior.mean["loc"][:, 0].argmin()
    np.testing.assert_allclose(steps(states)[0].get_data().values[40:], forecast.state[:, lowest], rtol=1e-6)


def test_a_figure_is_a_picture_in_a_notebook(nile):
    for figure in (nile_model().plot(nile), nile_model().forecast(nile, 3).plot()):
        assert figure._repr_png_().startswith(b"\x89PNG")


# ---- the parts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "ahead"),
    [
        (pd.Index([1968, 1969, 1970]), ["1971", "1972"]),
        (pd.Index([0.0, 0.5, 1.0]), ["1.5", "2"]),
        (pd.Index(["2009Q2", "2009Q3"]), ["2009Q4", "2010Q1"]),
        (pd.Index(["2020-01", "2020-02", "2020-03"]), ["2020-04-01", "2020-05-01"]),
        (pd.date_range("2020-01-30", periods=3), ["2020-02-02", "2020-02-03"]),
        (pd.date_range("2020-01-30", periods=3, tz="Europe/Berlin"), ["2020-02-02", "2020-02-03"]),
        (pd.date_range("2019-10-31", periods=4, freq="ME"), ["2020-02-29", "2020-03-31"]),
        (pd.date_range("2020-01-15", periods=3, freq=pd.DateOffset(months=2)), ["2020-07-15", "2020-09-15"]),
        (pd.date_range("2020-01-06", periods=10, freq="B"), ["2020-01-20", "2020-01-21"]),
        (pd.date_range("2020-01-01", periods=3, freq="h"), ["2020-01-01 03:00:00", "2020-01-01 04:00:00"]),
        (pd.DatetimeIndex(["2020-01-01", "2020-01-02", "2020-01-09"]), ["+1", "+2"]),
        (pd.DatetimeIndex(["2020-01-02", "2020-01-01", "2019-12-31"]), ["+1", "+2"]),
        (pd.Index(["a", "b"]), ["+1", "+2"]),
        (pd.Index([1, 2, 4]), ["+1", "+2"]),
        (pd.Index(["2009Q1", "2009Q3"]), ["+1", "+2"]),
        (pd.Index(["2020-13-01", "2020-14-01"]), ["+1", "+2"]),
    ],
)
def test_labels_go_on_where_they_are_evenly_spaced(index, ahead):
    assert [label_text(label) for label in following(index, 2)] == ahead
    assert [label_text(label) for label in continued(index, 2)][-2:] == ahead
    assert len(TimeAxis.of(continued(index, 2)).at) == len(index) + 2


@pytest.mark.parametrize(
    ("index", "even"),
    [
        (pd.Index([1, 2, 3]), True),
        (pd.Index([1, 2, 4]), False),
        (pd.Index(["a", "b", "c"]), True),
        (pd.Index(["2020-01-01", "2020-01-02", "2020-01-09"]), False),
        (pd.Index(["2020-01-01", "2020-01-02", "2020-01-03"]), True),
        (pd.Index([5]), True),
    ],
)
def test_uneven_steps_are_noticed(index, even):
    assert evenly_spaced(index) is even


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.01, 0.12))
def test_labels_are_moved_apart_in_order_inside_and_only_if_need_be(where, gap):
    where = np.array(where)
    moved = apart(where, gap)
    order = np.argsort(where, kind="stable")
    assert (np.diff(moved[order]) >= gap - 1e-9).all()
    assert moved.min() >= gap / 2 - 1e-9
    assert moved.max() <= 1 - gap / 2 + 1e-9
    if (np.diff(where[order]) >= gap).all() and where.min() >= gap / 2 and where.max() <= 1 - gap / 2:
        np.testing.assert_allclose(moved, where, atol=1e-12)


def cielab(color: str) -> np.ndarray:
    """Textbook sRGB to CIELAB under D65 (IEC 61966-2-1, CIE 15:2004)."""
    shares = np.array(to_rgb(color))
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    x, y, z = (
        share ** (1 / 3) if share > 216 / 24389 else (24389 / 27 * share + 16) / 116
        for share in np.array(to_xyz) @ linear / np.array([0.95047, 1.0, 1.08883])
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("n", [2, 3, 5, 8, 12])
def test_states_are_coloured_from_dark_to_light_by_their_level_and_neighbours_stay_apart(n):
    levels = np.random.default_rng(n).permutation(n).astype(float)
    colors = state_colors(levels)
    places = np.array([cielab(color) for color in colors])[np.argsort(levels)]
    assert (np.diff(places[:, 0]) > 40 / n).all()  # lightness, of 100
    assert (np.linalg.norm(np.diff(places, axis=0), axis=1) > 50).all()  # 2 is just noticed
    every = np.linalg.norm(places[:, None] - places, axis=-1)[~np.eye(n, dtype=bool)]
    assert every.min() > 25
    assert from_dark_to_light(colors) == np.argsort(levels).tolist()


def volatile(n: int = 2, loc: float = 0.0) -> SwitchingSSM:
    """States at one level, of which each varies three times as much as the one before."""
    return SwitchingSSM(Copy(n), Normal(1)).with_values(
        redraw_prob=tensor(0.02),
        state_probs=tensor([1 / n] * n),
        loc=tensor([[0.0], [loc], *[[0.0]] * (n - 2)]),
        scale=tensor([[3.0**k] for k in reversed(range(n))]),
    )


def test_states_that_differ_in_scale_alone_are_named_by_it():
    model = volatile(3)
    figure = model.plot(model.simulate(200, seed=0).x)
    assert "state 0: sd 9 | state 1: sd 3 | state 2: sd 1" in texts(figure)
    assert state_levels(model.emission, model.values).argsort().tolist() == [2, 1, 0]
    ahead = model.forecast(model.simulate(200, seed=0).x, 5).plot()
    assert "state 0: sd 9 | state 1: sd 3 | state 2: sd 1" in texts(ahead)
    other = volatile(2, loc=4.0)
    assert "state 0: 0 | state 1: 4" in texts(other.plot(other.simulate(50, seed=0).x))
    counts = SwitchingSSM(Copy(2), Poisson(1)).with_values(
        redraw_prob=tensor(0.1), state_probs=tensor([0.5, 0.5]), rate=tensor([[0.1], [0.25]])
    )
    assert "state 0: 0.1 | state 1: 0.25" in texts(counts.plot(counts.simulate(50, seed=0).x))


def spread_out(n: int, n_features: int = 1) -> SwitchingSSM:
    """States of which all but the last lie close together at the lower end."""
    loc = torch.linspace(0.0, 0.2, n, dtype=torch.float64)
    loc[-1] = 50.0
    return SwitchingSSM(Copy(n), Normal(n_features)).with_values(
        redraw_prob=tensor(0.3),
        state_probs=tensor([1 / n] * n),
        loc=loc[:, None].expand(n, n_features),
        scale=torch.full((n, n_features), 0.01, dtype=torch.float64),
    )


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 8, 24])
@pytest.mark.parametrize("ahead", [False, True])
def test_labels_stay_in_their_panel(n, ahead):
    model = spread_out(n, 2)
    names = ["up", "industrial production of the manufacturing sector, seasonally adjusted, index"]
    index = pd.date_range("2020-01-01 00:00:07", periods=60, freq="h")
    x = pd.DataFrame(model.simulate(60, seed=1).x.numpy(), index=index, columns=names)
    figure = model.plot_forecast(x, 5) if ahead else model.plot(x)
    figure.draw_without_rendering()
    whole = figure.bbox
    for panel in figure.axes:
        box = panel.get_window_extent()
        for text in [*panel.texts, panel.yaxis.label]:
            own = text.get_window_extent()
            assert own.y0 >= box.y0 - 2, text
            assert own.y1 <= box.y1 + 2, text
            assert own.x0 >= whole.x0, text
            assert own.x1 <= whole.x1, text
        beside = sorted((t.get_window_extent() for t in panel.texts if "state" in t.get_text()), key=lambda b: b.y0)
        assert all(a.y1 <= b.y0 + 0.35 * a.height for a, b in itertools.pairwise(beside))


@pytest.mark.parametrize("step", [1, 30, 48, 58])
def test_the_name_of_a_redraw_stays_in_its_panel(step):
    figure, (panel,) = new_figure([1.0])
    gate = torch.zeros(60, dtype=torch.float64)
    gate[step] = 0.97
    axis = TimeAxis.of(pd.date_range("2020-01-01 00:00:07", periods=60, freq="h"))
    draw_gate(panel, axis, gate.numpy(), "redraw")
    axis.mark([panel])
    figure.draw_without_rendering()
    box, own = panel.get_window_extent(), panel.texts[0].get_window_extent()
    assert box.x0 <= own.x0
    assert own.x1 <= box.x1


@pytest.mark.parametrize(
    ("loc", "scale", "order"),
    [
        ([[0.8], [0.7]], [[1.0], [9.0]], [1, 0]),  # means that are near are not ordered by scale
        ([[2.0, 0.0], [1.0, 50.0]], [[1.0, 1.0]] * 2, [1, 0]),  # the first feature decides
        ([[1.0, 3.0], [1.0, 2.0]], [[1.0, 1.0]] * 2, [1, 0]),  # where it is equal, the next
        ([[1.0], [1.0]], [[3.0], [2.0]], [1, 0]),  # where all are equal, the scale
    ],
)
def test_states_are_ordered_by_location_then_by_scale(loc, scale, order):
    emission = sh.Normal(len(loc[0]))
    values = {"loc": torch.tensor(loc).double(), "precision": torch.tensor(scale).double() ** -2}
    assert state_levels(emission, values).argsort().tolist() == order


def test_reordering_names_the_same_model_anew():
    for name in ("vectors", "gated", "poisson"):
        model = MODELS[name]
        x = model.simulate(30, seed=2).x
        order = torch.tensor([1, 0])
        other = model.with_values(reordered(model.known, model.values, order))
        torch.testing.assert_close(other.log_evidence(x), model.log_evidence(x), rtol=1e-12, atol=0)
        torch.testing.assert_close(other.smooth(x).state, model.smooth(x).state[:, order], rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(
            state_levels(other.emission, other.values), state_levels(model.emission, model.values)[order]
        )


def test_of_two_redraws_close_together_only_the_likelier_is_named():
    _, (panel,) = new_figure([1.0])
    gate = torch.zeros(200, dtype=torch.float64)
    gate[50], gate[55], gate[120] = 0.7, 0.9, 0.8
    draw_gate(panel, TimeAxis.of(pd.RangeIndex(200)), gate.numpy(), "redraw")
    assert sorted(text.get_text().strip() for text in panel.texts) == ["120: 0.80", "55: 0.90"]


def test_names_at_both_sides_of_their_steps_do_not_meet():
    figure, (panel,) = new_figure([1.0])
    gate = torch.zeros(120, dtype=torch.float64)
    gate[84], gate[101], gate[20] = 0.9, 0.7, 0.8  # the last is named at its left
    draw_gate(panel, TimeAxis.of(pd.RangeIndex(120)), gate.numpy(), "redraw")
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in panel.texts]
    assert len(boxes) == 2
    assert not boxes[0].overlaps(boxes[1])


def angles_and_kinds() -> tuple[SwitchingSSM, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    state = np.repeat([0, 1], 20)
    angle = np.where(state == 0, rng.vonmises(np.pi, 4.0, 40), rng.vonmises(0.5, 4.0, 40))
    kind = np.where(state == 0, rng.integers(0, 2, 40), rng.integers(1, 3, 40)).astype(float)
    model = SwitchingSSM(Markov(2), Joint(angle=VonMises(), kind=Categorical(3))).with_values(
        initial_probs=[0.5, 0.5],
        transition_probs=[[0.9, 0.1], [0.1, 0.9]],
        angle_loc=[[3.0], [0.5]],
        angle_concentration=[[4.0], [4.0]],
        kind_probs=[[0.5, 0.4, 0.1], [0.1, 0.4, 0.5]],
    )
    return model, {"angle": angle, "kind": kind}


def bands(panel) -> list[tuple[np.ndarray, np.ndarray]]:
    """Upper and lower ends of the filled steps."""
    steps = (patch.get_data() for patch in panel.patches + panel.artists if isinstance(patch, StepPatch))
    return [(values, baseline) for values, _, baseline in steps if baseline is not None]


def test_bands_of_angles_go_on_at_the_other_end_and_categories_of_a_joint_have_probabilities():
    model, x = angles_and_kinds()
    for figure in (model.plot(x), model.forecast(x, 4).plot()):
        angle, kind = figure.axes[:2]
        assert angle.get_ylim() == (-np.pi, np.pi)
        for top, bottom in bands(angle):
            assert np.nanmax(top) <= np.pi
            assert np.nanmin(bottom) >= -np.pi
        meshes = [part for part in kind.collections if part.get_array() is not None]
        assert len(meshes) == 1
        rows = np.asarray(meshes[0].get_array()).reshape(3, -1)
        np.testing.assert_allclose(rows.sum(0), 1.0, rtol=1e-12)
        assert [text.get_text() for text in kind.texts] == ["state 0: mostly 0", "state 1: mostly 2"]
    plain = SwitchingSSM(Markov(1), VonMises()).with_values(
        initial_probs=[1.0], transition_probs=[[1.0]], loc=[[3.0]], concentration=[[4.0]]
    )
    pieces = bands(plain.plot(x["angle"]).axes[0])
    first = [(float(top[0]), float(bottom[0])) for top, bottom in pieces if np.isfinite(top[0])]
    (reach,) = {round(3.0 - bottom, 6) for _, bottom in first if bottom > 0}
    np.testing.assert_allclose(sorted(first), [(3.0 + reach - 2 * np.pi, -np.pi), (np.pi, 3.0 - reach)], atol=1e-5)


def test_an_arc_about_the_mean_direction_has_its_probability():
    model, x = angles_and_kinds()
    forecast = (
        SwitchingSSM(Markov(2), VonMises())
        .with_values(
            initial_probs=[0.5, 0.5],
            transition_probs=[[0.9, 0.1], [0.1, 0.9]],
            loc=[[3.0], [-2.0]],
            concentration=[[4.0], [1.0]],
        )
        .forecast(x["angle"], 2)
    )
    mixture = forecast.observation
    arc, mean = mixture.arc(0.8), mixture.mean
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64).reshape(-1, 1, 1)
    angle = torch.remainder(mean + arc * grid + np.pi, 2 * np.pi) - np.pi
    total = torch.trapezoid(mixture.log_prob(angle).exp(), dx=1e-4, dim=0) * arc[:, 0]
    torch.testing.assert_close(total, torch.full((2,), 0.8).double(), rtol=1e-6, atol=1e-6)
    assert torch.equal(
        model.forecast(x, 2).observation.category_probs(1).sum(-1).round(decimals=9), torch.ones(2).double()
    )
