"""`sh.backtest`: walk forward with fits, filtered states and forecasts that know only the past."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from oracles.models import numbers
from samplehold.switching.judging import backtest, fits, scores

MODEL = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
FAST = {"restarts": 1, "max_steps": 10}


@pytest.fixture(scope="module")
def walk(nile):
    return sh.backtest(MODEL, nile[:54], refit_every=10, horizon=[1, 3], first=40, **FAST)


def test_there_is_a_row_for_each_origin_and_horizon(walk, nile):
    origins, horizons = nile.index[39:53], [1, 3]
    rows = [(o, h) for o in origins for h in horizons if o + h <= nile.index[53]]
    assert walk.forecasts.index.tolist() == rows
    assert (walk.forecasts.time - walk.forecasts.index.get_level_values("origin")).tolist() == [h for _, h in rows]
    observed = nile.volume.loc[walk.forecasts.time].to_numpy()
    np.testing.assert_array_equal(walk.forecasts.observed, observed)
    assert walk.refits.index.tolist() == [nile.index[39], nile.index[49]]
    assert walk.refits.n_steps.tolist() == [40, 50]


def test_forecasts_are_those_of_a_fit_to_the_past(walk, nile):
    model = MODEL.fit(nile[:50], progress=False, **FAST).model
    ahead = model.forecast(nile[:51], 3)
    row = walk.forecasts.loc[(nile.index[50], 3)]
    x = torch.tensor(nile.volume.iloc[53]).double().reshape(1, 1)
    lower, upper = ahead.interval(0.9)
    expected = {
        "mean": ahead.mean[2, 0],
        "lower": lower[2, 0],
        "upper": upper[2, 0],
        "pit": ahead.observation.cdf(x)[2, 0],
        "log_score": ahead.observation.log_prob(x)[2],
        "crps": scores.crps(ahead.observation, x.expand(3, 1))[2, 0],
    }
    for name, value in expected.items():
        assert row[name] == pytest.approx(float(value), rel=1e-9), name
    assert row.covered == float(row.lower <= row.observed <= row.upper)


def test_states_are_filtered_by_the_last_fit(walk, nile):
    model = MODEL.fit(nile[:50], progress=False, **FAST).model
    filtered = model.filter(nile[:52]).state[-1]
    row = walk.states.loc[nile.index[51]]
    np.testing.assert_allclose(row[["state_0", "state_1"]].to_numpy(float), filtered, rtol=1e-9)
    assert row.state == int(filtered.argmax())
    assert walk.states.index.tolist() == nile.index[39:53].tolist()


def test_states_keep_their_numbers_from_fit_to_fit(walk, nile, monkeypatch):
    turned = []

    def fitted(model, series, options, seed, file):
        """The fit, with its states in the other order every second time."""
        fit, values = fits.fitted(model, series, options, seed, file=file), {}
        turned.append(len(turned) % 2 == 1)
        for name, value in fit.model.values.items():
            values[name] = value.flip(0) if turned[-1] and value.ndim else value
        return replace(fit, model=fit.model.with_values(values))

    monkeypatch.setattr(backtest, "fitted", fitted)
    other = sh.backtest(MODEL, nile[:54], refit_every=10, horizon=[1, 3], first=40, **FAST)
    assert turned == [False, True]
    assert other.refits["order"].tolist() == [(0, 1), (1, 0)]
    assert walk.refits["order"].tolist() == [(0, 1), (0, 1)]
    pd.testing.assert_frame_equal(other.states, walk.states)


def test_later_values_change_nothing(nile):
    changed = nile[:60].astype(float).copy()
    changed.iloc[50:] = 5000.0 + 100 * np.arange(10)[:, None]
    given = {"refit_every": 3, "horizon": [1, 3], "first": 47, **FAST}
    before, after = (sh.backtest(MODEL, x, **given) for x in (nile[:53], changed[:53]))
    known = [origin for origin in before.states.index if origin <= nile.index[49]]
    assert len(known) == 4
    pd.testing.assert_frame_equal(before.states.loc[known], after.states.loc[known])
    columns = ["time", "mean", "lower", "upper"]
    pd.testing.assert_frame_equal(before.forecasts.loc[known, columns], after.forecasts.loc[known, columns])
    seen = before.forecasts.time <= nile.index[49]
    pd.testing.assert_frame_equal(before.forecasts[seen], after.forecasts[seen])
    assert not before.forecasts.equals(after.forecasts)


def test_a_window_forgets_the_steps_before_it(nile):
    changed = nile[:40].astype(float).copy()
    changed.iloc[:10] = 5000.0
    given = {"refit_every": 5, "horizon": 1, "window": 20, "first": 30, **FAST}
    a, b = (sh.backtest(MODEL, x, **given) for x in (nile[:36], changed[:36]))
    pd.testing.assert_frame_equal(a.forecasts, b.forecasts)
    pd.testing.assert_frame_equal(a.states, b.states)
    assert a.refits.n_steps.tolist() == [20, 20]


def test_means_leave_out_what_is_missing(nile):
    x = nile[:40].astype(float).copy()
    x.iloc[35] = np.nan
    walk = sh.backtest(MODEL, x, horizon=[1, 2], first=32, **FAST)
    row = walk.forecasts.loc[(nile.index[34], 1)]
    assert row[["log_score", "observed", "covered", "pit", "crps"]].isna().all()
    assert np.isfinite(row["mean"])
    assert walk.means.n.tolist() == [7, 6]
    scored = walk.forecasts.xs(1, level="horizon").dropna()
    assert walk.means.loc[1, "crps"] == pytest.approx(scored.crps.mean())
    assert walk.means.loc[1, "covered"] == pytest.approx(scored.covered.mean())


def test_two_features_have_scores_each_and_a_log_score_together():
    x = pd.DataFrame(numbers(30, 2).numpy(), columns=["a", "b"])
    x.loc[27, "b"] = np.nan
    model = sh.SwitchingSSM(sh.Markov(1), sh.MultivariateNormal(2))
    walk = sh.backtest(model, x, horizon=1, first=26, **FAST)
    assert {"crps_a", "crps_b", "pit_a", "observed_b"} <= set(walk.forecasts)
    ahead = model.fit(x[:26], progress=False, **FAST).model.forecast(x[:27], 1)
    row = walk.forecasts.loc[(26, 1)]
    assert row.log_score == pytest.approx(
        float(ahead.observation.log_prob(torch.tensor(x.to_numpy()[27:28]))), rel=1e-9
    )
    assert np.isnan(row.crps_b)
    assert len(walk.plot().axes) == 5


@pytest.mark.parametrize("emission", [sh.Poisson(1), sh.Categorical(3), sh.Bernoulli(1)])
def test_counts_and_categories_are_scored_alike(emission):
    x = (torch.arange(24) % 2).double().unsqueeze(-1)
    walk = sh.backtest(sh.SwitchingSSM(sh.Copy(2), emission), x, horizon=[1, 2], first=20, seed=5, **FAST)
    assert walk.forecasts.drop(columns="time").notna().to_numpy().all()
    assert walk.forecasts.pit.between(0, 1).all()


def test_inputs_of_the_steps_that_are_forecast_are_known():
    dose = numbers(30, 1, seed=2)
    x = 3 * dose + 0.1 * numbers(30, 1)
    model = sh.SwitchingSSM(sh.Markov(1), sh.LinearRegression(1, inputs=["dose"]))
    frame = pd.DataFrame({"dose": dose[:, 0].numpy()})
    walk = sh.backtest(model, pd.DataFrame(x.numpy()), inputs=frame, first=20, horizon=[1, 4], **FAST)
    assert (walk.forecasts["mean"] - walk.forecasts.observed).abs().max() < 1.0


def test_lags_are_observations_before_each_origin(nile):
    model = sh.SwitchingSSM(sh.Markov(1), sh.AutoRegressive(1))
    walk = sh.backtest(model, nile[:32], first=30, horizon=1, **FAST)
    fitted = model.fit(nile[:30], progress=False, **FAST).model
    assert walk.forecasts["mean"].iloc[1] == pytest.approx(float(fitted.forecast(nile[:31], 1).mean), rel=1e-9)


@pytest.mark.parametrize("dynamics", [sh.Markov(2), sh.Copy(3)])
def test_the_next_step_after_lags_has_its_exact_density(dynamics, nile):
    """The first horizon is a mixture of K normals, whose density is that of the filter."""
    model = sh.SwitchingSSM(dynamics, sh.AutoRegressive(2))
    result = sh.backtest(model, nile[:40], refit_every=20, horizon=[1, 2], first=30, **FAST)
    filtered = result.fits[0].model.filter(nile[:40]).log_increment[30:]
    first = result.forecasts.xs(1, level="horizon")
    np.testing.assert_allclose(first.log_score, filtered, rtol=1e-12)
    several = result.fits[0].forecast(1).observation
    weight, mean, _ = several.components
    assert float((weight.sum(-1) - 1).abs().max()) < 1e-12
    np.testing.assert_allclose((weight.unsqueeze(-1) * mean).sum(-2), result.fits[0].forecast(1).mean, rtol=1e-12)


def test_linear_models_walk_too(nile):
    linear = sh.backtest(sh.LinearSSM(sh.LocalLevel()), nile[:30], first=28, horizon=1)
    assert linear.states.empty
    assert np.isfinite(linear.means.crps).all()


@pytest.mark.slow
def test_forecasts_after_message_passing_average_over_the_posterior(nile):
    averaged = sh.backtest(MODEL, nile[:30], first=28, horizon=1, method="vmp", **FAST)
    fit = MODEL.fit(nile[:28], method="vmp", progress=False, **FAST)
    ahead = fit.posterior.forecast(nile[:28], 1)
    assert averaged.forecasts["mean"].iloc[0] == pytest.approx(float(ahead.mean), rel=1e-9)


def test_the_record_prints_its_means_and_draws_them(walk):
    assert repr(walk).startswith("Backtest of 14 origins and 2 fits; means, with intervals of 90%:")
    assert "Backtest of 14 origins" in walk._repr_html_()
    titles = [panel.get_title(loc="left") for panel in walk.plot().axes]
    assert titles[0] == "Forecasts 1 step ahead, with 90% intervals"
    assert len(titles) == 3


@pytest.mark.slow
def test_a_true_model_has_uniform_transforms_and_covers_as_it_says():
    values = {"redraw_prob": 0.1, "state_probs": [0.5, 0.5], "loc": [[0.0], [3.0]], "scale": [[1.0], [0.5]]}
    x = MODEL.with_values(**values).simulate(260, seed=3).x
    walk = sh.backtest(MODEL, x, first=200, horizon=1, refit_every=60, level=0.8, **FAST)
    assert 0.6 < walk.means.covered[1] < 0.95
    assert 0.35 < walk.forecasts.pit.mean() < 0.65


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"window": 2}, ValueError, r"^window: got 2 step\(s\), but a fit of 2 state\(s\) needs at least 3"),
        (
            {"window": 4},
            ValueError,
            r"^window: got 4 step\(s\) of 1 feature\(s\), fewer numbers than the model's 6 free",
        ),
        ({"first": 4}, ValueError, "^first: got 4 step"),
        ({"first": 30}, ValueError, "^first: the first origin has 30 steps before it, but x has 30"),
        ({"window": 40}, ValueError, "^window: the first origin has 40 steps before it, but x has 30"),
        ({"horizon": []}, ValueError, "^horizon: got none"),
        ({"horizon": 0}, ValueError, "^horizon: got 0"),
        ({"refit_every": 0}, ValueError, "^refit_every: got 0"),
        ({"level": 1.0}, ValueError, "^level: got 1.0"),
        ({"model": "hmm"}, TypeError, "^model: got str"),
        ({"x": [[1.0, 2.0, 3.0], [1.0, 2.0]]}, ValueError, "^x: got 2 sequences"),
        ({"weights": torch.ones(30)}, ValueError, "^weights: was given"),
    ],
)
def test_bad_input_is_named(nile, change, error, message):
    given = {"model": MODEL, "x": nile[:30], "horizon": 1, **FAST} | change
    with pytest.raises(error, match=message):
        sh.backtest(**given)


def test_a_window_must_hold_the_lags():
    model = sh.SwitchingSSM(sh.Markov(1), sh.AutoRegressive(3))
    with pytest.raises(ValueError, match=r"^window: got 4 step\(s\), but a fit of 1 state\(s\) and 3 lag\(s\) needs"):
        sh.backtest(model, numbers(20, 1), window=4)


def test_the_class_of_a_model_is_refused():
    with pytest.raises(TypeError, match="model: got the class SwitchingSSM, expected a model"):
        sh.backtest(sh.SwitchingSSM, numbers(20, 1))


def test_states_are_matched_where_the_fit_before_knows_the_steps():
    x = np.array([0, 0, 0, 0, 1, 1, 1, 1] * 3 + [2, 0, 0, 0])
    model = sh.SwitchingSSM(sh.Markov(2), sh.Categorical(3))
    found = sh.backtest(model, x, horizon=1, refit_every=1, first=24, **FAST)
    assert sorted(found.refits.order.iloc[1]) == [0, 1]
    assert found.forecasts.log_score.iloc[0] == -np.inf


@pytest.mark.filterwarnings("error")
def test_forecasts_of_missing_steps_have_no_scores():
    x = numbers(20, 1)
    x[16:] = torch.nan
    found = sh.backtest(MODEL, x, horizon=1, first=16, **FAST)
    assert found.means.n.tolist() == [0]
    assert found.plot().axes
