"""A saved fit comes back: its numbers without its data, and all of it with them."""

from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest
import samplehold as sh
import torch
from examples import slow
from oracles.command_line import run
from pandas.testing import assert_frame_equal, assert_index_equal, assert_series_equal
from samplehold.switching.data.series import Series
from samplehold.switching.data.stored import tree_of_series
from torch.testing import assert_close

NILE = Path(__file__).parents[2] / "notebooks" / "data" / "nile.csv"

QUIET = {"restarts": 2, "progress": False}
COPY = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))


def same(a, b) -> None:
    """All fields that a file keeps are equal."""
    for name in ("method", "converged", "steps", "interrupted", "reason", "fixed", "updates", "shared"):
        assert getattr(a, name) == getattr(b, name), name
    for name in ("values", "objective", "held", "empty_states", "collapsed_states"):
        assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=0, equal_nan=True)
    assert_frame_equal(a.restarts, b.restarts)
    assert type(a) is type(b)
    if isinstance(a.prior, dict):  # a file has all hyperparameters
        assert_close(torch.as_tensor(a.prior["loc"]), torch.as_tensor(b.prior["loc"]), check_dtype=False)
    else:
        assert a.prior == b.prior
    assert sorted(repr(a).splitlines()) == sorted(repr(b).splitlines())


def same_summary(a, b) -> None:
    assert_frame_equal(a.parameters, b.parameters, rtol=1e-12)
    assert_frame_equal(a.states, b.states)
    assert a.notes == b.notes
    assert_series_equal(a.statistics, b.statistics)


@pytest.fixture(scope="module")
def nile_fit(nile):
    return COPY.fit(nile, **QUIET)


def back(fit, folder, **options):
    fit.save(folder / "fit", **options)
    return sh.load(folder / "fit")


# ---- without the data ------------------------------------------------------------------------------------------------


def levels(n: int = 60, n_features: int = 1) -> torch.Tensor:
    truth = sh.SwitchingSSM(sh.Copy(2), sh.Normal(n_features)).with_values(
        redraw_prob=0.1,
        state_probs=[0.5, 0.5],
        loc=[[0.0] * n_features, [6.0] * n_features],
        scale=[[1.0] * n_features] * 2,
    )
    return truth.simulate(n, seed=0).x.double()


LONG = "gibbs", "svi", "linear tables", "switching linear", "layered"
MODELS = {
    "copy": (COPY, {}),
    "held": (COPY, {"fixed": {"loc": [[0.0], [float("nan")]], "redraw_prob": 0.1}}),
    "maximum likelihood": (COPY, {"prior": None}),
    "own prior": (COPY, {"prior": {"loc": [[0.0], [5.0]]}}),
    "markov": (sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)), {}),
    "inputs": (
        sh.SwitchingSSM(sh.Copy(2, inputs=1), sh.LinearRegression(1, 1)),
        {"inputs": 2000.0 + levels().flatten()},
    ),
    "message passing": (COPY, {"method": "vmp"}),
    "gibbs": (COPY, {"method": "gibbs", "num_samples": 20}),
    "svi": (COPY, {"method": "svi", "max_steps": 20}),
    "structure": (sh.LinearSSM(sh.LocalLevel()), {}),
    "linear tables": (sh.LinearSSM(1, 1), {"method": "vmp", "max_steps": 20}),
    "segments": (sh.Segments(sh.Normal(1), 0.1), {"max_steps": 5}),
    "switching linear": (sh.SwitchingLinearSSM(2, 1), {"method": "vmp", "max_steps": 5}),
    "layered": (sh.LayeredSSM([2, 2], sh.Normal(1)), {"max_steps": 10}),
}


@pytest.mark.parametrize("kind", [slow(kind) if kind in LONG else kind for kind in MODELS])
def test_a_fit_without_its_data_keeps_its_numbers(tmp_path, kind):
    model, options = MODELS[kind]
    fit = model.fit(levels(), **QUIET | options)
    again = back(fit, tmp_path)
    same(fit, again)
    same_summary(fit.summary(), again.summary())
    assert (again.loglik, again.nobs) == (fit.loglik, fit.nobs)
    assert_frame_equal(fit.conf_int(0.5), again.conf_int(0.5), rtol=1e-12)
    assert_frame_equal(fit.cov_params(), again.cov_params(), rtol=1e-9, atol=1e-9)
    assert fit.n_parameters == again.n_parameters
    if fit.posterior is not None:
        one, other = fit.posterior.interval(n=500), again.posterior.interval(n=500)
        if fit.posterior.refined is not fit.posterior or fit.method == "gibbs":
            assert_close(one.lower, other.lower, rtol=0, atol=0)
    else:
        assert again.aic == fit.aic
    with pytest.raises(
        ValueError, match=r"x: .* saved without its data; give x, or save it by fit.save\(path, data=True"
    ):
        again.smooth()
    given = {name: options[name] for name in ("inputs",) if name in options}
    assert_close(again.log_evidence(levels(), **given), fit.log_evidence(), rtol=0, atol=0)
    same(fit, back(again, tmp_path / "again"))


def test_the_folder_of_a_fit_is_one_file_that_holds_the_model_too(tmp_path, nile_fit):
    nile_fit.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    model = sh.SwitchingSSM.load(tmp_path)
    assert_close(dict(model.values), dict(nile_fit.model.values), rtol=0, atol=0)
    nile_fit.model.save(tmp_path)
    assert isinstance(sh.load(tmp_path), sh.SwitchingSSM)


def test_labels_of_a_loaded_fit_are_those_of_the_data(tmp_path, nile):
    states = pd.Series([None] * 100, index=nile.index, dtype=object)
    states.iloc[[0, 60]] = ["wet", "dry"]
    fit = COPY.fit(nile, states=states, **QUIET)
    again = back(fit, tmp_path)
    assert again.state_names == ("dry", "wet")
    assert "loc[wet, volume]" in again.summary().parameters.index
    assert_frame_equal(again.states(nile), fit.states(nile))
    assert "volume" in again._repr_html_()


def test_draws_around_a_loaded_fit_are_those_of_the_fit(tmp_path, nile, nile_fit):
    one, other = (fit.to_arviz(nile, draws=1000, predictive=False) for fit in (nile_fit, back(nile_fit, tmp_path)))
    assert one.attrs == other.attrs
    assert (one.posterior["scale"].values == other.posterior["scale"].values).all()


def test_predictions_of_a_loaded_posterior_average_over_its_draws(tmp_path, nile):
    fit = COPY.fit(nile, method="gibbs", num_samples=20, **QUIET)
    again = back(fit, tmp_path)
    assert_close(again.posterior.forecast(nile, 3).mean, fit.posterior.forecast(nile, 3).mean, rtol=0, atol=0)
    assert_close(again.posterior.visits, fit.posterior.visits, rtol=0, atol=0)


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_a_loaded_fit_says_that_it_cannot_go_on(tmp_path, nile, method):
    again = back(COPY.fit(nile, method, max_steps=5, **QUIET), tmp_path)
    with pytest.raises(ValueError, match=r"update: got a fit .*; .*fit all data again"):
        again.update(nile)
    with pytest.raises(ValueError, match="data: got True, but this fit was read from a file without its data"):
        again.save(tmp_path / "other", data=True)


# ---- with the data ---------------------------------------------------------------------------------------------------


INDICES = {
    "years": pd.RangeIndex(1900, 1930, name="year"),
    "numbers": pd.Index([i * 0.5 for i in range(30)], name="hour"),
    "dates": pd.date_range("2020-01-31", periods=30, freq="ME", name="month"),
    "zone": pd.date_range("2020", periods=30, freq="h", tz="Europe/Berlin"),
    "quarters": pd.period_range("2020Q1", periods=30, freq="Q"),
    "days since": pd.to_timedelta(range(30), unit="D"),
    "text": pd.Index([f"s{i}" for i in range(30)]),
    "categories": pd.CategoricalIndex([f"s{i}" for i in range(30)]),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", INDICES)
def test_a_fit_with_its_data_goes_on_as_before(tmp_path, kind):
    x = pd.DataFrame({"level": levels(30).flatten().numpy()}, index=INDICES[kind])
    fit = COPY.fit(x, restarts=1, max_steps=5, progress=False)
    again = back(fit, tmp_path, data=True)
    same(fit, again)
    assert_index_equal(again.series.labels, fit.series.labels)
    assert_frame_equal(again.states(), fit.states())
    same_summary(fit.summary(), again.summary())
    assert_close(again.forecast(2).mean, fit.forecast(2).mean, rtol=0, atol=0)
    assert str(again.diagnose()) == str(fit.diagnose())


def test_panels_and_their_inputs_weights_and_known_states_are_kept(tmp_path):
    n = 40
    table = pd.DataFrame({"site": ["b"] * 25 + ["a"] * 15, "day": [*range(25), *range(15)], "x": levels(n).flatten()})
    table["dose"] = [i % 3 for i in range(n)]
    series = sh.read_panel(table, "site", "day", inputs=["dose"])
    fit = sh.SwitchingSSM(sh.Copy(2, inputs=["dose"]), sh.Normal(1)).fit(series, max_steps=5, **QUIET)
    again = back(fit, tmp_path, data=True)
    assert_frame_equal(again.states(), fit.states())
    assert again.series.drivers == ("dose",)
    lists = [levels(12), levels(200)]
    fit = COPY.fit(lists, weights=[1.0, 2.0], max_steps=5, **QUIET)
    again = back(fit, tmp_path, data=True)
    assert again.series.packed == fit.series.packed
    assert again.loglik == fit.loglik
    assert_close(again.update(levels(20)).values, fit.update(levels(20)).values, rtol=0, atol=0)


def test_every_field_of_a_series_is_kept_or_left_out_on_purpose():
    tree = tree_of_series(COPY.read(levels(5)))
    kept = {*tree["tables"], *tree["names"], *tree} - {"tables", "names"}
    assert {each.name for each in fields(Series)} - kept == {"frame", "checked"}


def test_labels_that_no_file_has_are_named(tmp_path):
    x = pd.Series(levels(30).flatten(), index=pd.Index([complex(i) for i in range(30)], dtype=object))
    fit = COPY.fit(x, max_steps=2, **QUIET)
    with pytest.raises(TypeError, match="labels of type complex cannot be stored; give x an index of text or dates"):
        fit.save(tmp_path / "fit", data=True)
    assert not (tmp_path / "fit").exists()


@pytest.mark.parametrize("method", ["em", slow("vmp")])
def test_the_results_of_the_command_line_are_a_fit(tmp_path, method):
    run("fit", NILE, "-c", "volume", "--restarts", 1, "--method", method, "-o", tmp_path)
    fit = sh.load(tmp_path)
    assert (fit.method, fit.interrupted) == (method, False)
    assert "loc[1, volume]" in fit.summary().parameters.index
