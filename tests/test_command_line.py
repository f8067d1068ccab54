"""The command line, as a person uses it: good runs leave their files, bad ones one line and status 2."""

import gzip
import os
import subprocess
import sys
from functools import partial
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from matplotlib.figure import Figure
from oracles.command_line import refused, run
from samplehold import Copy, Markov, SwitchingSSM
from samplehold.cli.app import DynamicsName, EmissionName
from samplehold.cli.choosing import numbers_of
from samplehold.cli.console import build
from samplehold.switching.data.tables import pick_series, read_table
from samplehold.switching.storage import read_model

DATA = Path(__file__).parents[1] / "notebooks" / "data"
DOCS = Path(__file__).parents[1] / "docs"
NILE, SUNSPOTS, MACRO = DATA / "nile.csv", DATA / "sunspots.csv", DATA / "us_macro.csv"


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("nile") / "results"
    done = run("fit", NILE, "--columns", "volume", "--states", 2, "--out", out)
    return out, done.stdout


# ---- fit -----------------------------------------------------------------------------------------------------------


def test_fit_writes_four_results_and_prints_the_redraw_of_1899(results):
    out, printed = results
    assert sorted(path.name for path in out.iterdir()) == ["model", "plot.png", "posterior.nc", "states.csv"]
    assert (out / "plot.png").read_bytes()[:4] == b"\x89PNG"
    line = next(line for line in printed.splitlines() if "1899" in line)
    probability = float(line.split("│")[2])
    assert 0.7 < probability < 0.9
    assert "1 -> 0" in line
    assert "converged" in printed
    assert f"redraw_prob: {float(SwitchingSSM.load(out / 'model').values['redraw_prob']):.4g}" in printed
    assert "kinds of start reached the best optimum" in printed


def test_a_command_with_a_checkpoint_goes_on_from_it_and_refuses_another(tmp_path):
    words = ["fit", NILE, "--columns", "volume", "--restarts", 1, "--max-steps", 8, "--every", 0]
    words += ["--checkpoint", tmp_path / "fit"]
    for folder in ("first", "again"):
        done = run(*words, "--out", tmp_path / folder)
    first, again = (SwitchingSSM.load(tmp_path / folder / "model").values for folder in ("first", "again"))
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    done = run(*words, "--seed", 1, "--out", tmp_path / "other", status=2)
    assert "differs in seed=0, now 1" in " ".join(done.output.split())


def test_the_saved_model_has_its_states_in_order_and_near_the_truth(results):
    model = SwitchingSSM.load(results[0] / "model")
    loc = model.describe()["loc"][:, 0]
    np.testing.assert_allclose(loc.numpy(), [850, 1100], atol=10)
    assert read_model(results[0] / "model").notes == {
        "columns": ["volume"],
        "time": "year",
        "inputs": {},
    }


def test_the_table_of_states_is_what_the_model_smooths(results):
    table = pd.read_csv(results[0] / "states.csv", index_col="year")
    nile = pd.read_csv(NILE, index_col="year")
    smoothed = SwitchingSSM.load(results[0] / "model").smooth(nile)
    assert list(table.columns) == ["volume", "state", "state_0", "state_1", "redraw", "change"]
    assert (table["volume"] == nile["volume"]).all()
    np.testing.assert_allclose(table[["state_0", "state_1"]], smoothed.state.numpy(), atol=5.1e-7)
    np.testing.assert_allclose(table["redraw"], smoothed.redraw.numpy(), atol=5.1e-7)
    assert (table["state"] == np.where(table.index < 1899, 1, 0)).all()


def test_the_posterior_can_be_read_by_arviz(results):
    import arviz as az

    data = az.from_netcdf(results[0] / "posterior.nc")
    np.testing.assert_allclose(data.posterior["loc"].mean(("chain", "draw")).values[:, 0], [850, 1100], atol=10)
    assert 5 < float(data.posterior["loc"].std(("chain", "draw"))[0, 0]) < 30
    assert "normal around the estimates" in data.attrs["posterior"]
    assert data.smoothed["redraw_probability"].sel(time=1899) > 0.7
    assert dict(data.posterior.sizes) == {"chain": 1, "draw": 1000, "state": 2, "feature": 1}
    assert data.posterior_predictive["x"].shape == (1, 1000, 100)


def test_the_same_seed_gives_the_same_fit(results, tmp_path):
    run("fit", NILE, "-c", "volume", "-k", 2, "-o", tmp_path / "again")
    for name in ("states.csv", "model/model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (results[0] / name).read_bytes()


def test_all_numeric_columns_but_the_time_are_the_default(tmp_path):
    done = run("fit", MACRO, "--out", tmp_path / "out", "--restarts", 1, "--max-steps", 3)
    saved = read_model(tmp_path / "out" / "model").notes
    assert saved["columns"] == ["realgdp", "unemp", "infl"]
    assert saved["time"] == "quarter"
    assert "not converged: raise --max-steps" in done.stdout


def test_macro_with_a_full_covariance_and_markov_dynamics(tmp_path):
    options = (
        "-c",
        "infl, unemp",
        "-k",
        3,
        "--emission",
        "multivariate-normal",
        "--dynamics",
        "markov",
        "--restarts",
        2,
    )
    done = run("fit", MACRO, *options, "--out", tmp_path)
    model = SwitchingSSM.load(tmp_path / "model")
    assert isinstance(model.dynamics, Markov)
    assert tuple(model.values["precision"].shape) == (3, 2, 2)
    assert "changes of state" in done.stdout
    assert "covariance unemp infl" in done.stdout
    assert "covariance infl unemp" not in done.stdout
    table = pd.read_csv(tmp_path / "states.csv", index_col="quarter")
    assert table.index[0] == "1959Q1"
    assert list(table.columns[-1:]) == ["change"]
    ahead = run("forecast", tmp_path, MACRO, "--horizon", 2)
    assert [line.split(",")[0] for line in ahead.stdout.split()] == ["quarter", "2009Q4", "2010Q1"]


def test_sunspots_as_counts_under_maximum_likelihood(tmp_path):
    rounded = pd.read_csv(SUNSPOTS, index_col="year").round().astype(int)
    rounded.to_parquet(tmp_path / "sunspots.parquet")
    options = ("-k", 3, "--emission", "poisson", "--prior", "none", "--restarts", 2, "--out", tmp_path / "out")
    run("fit", tmp_path / "sunspots.parquet", *options)
    rate = SwitchingSSM.load(tmp_path / "out" / "model").values["rate"][:, 0]
    np.testing.assert_allclose(rate.numpy(), [12, 49, 111], atol=3)
    assert pd.read_csv(tmp_path / "out" / "states.csv", index_col="year").index[0] == 1700


@pytest.mark.parametrize("dynamics", ["copy", "markov"])
def test_inputs_are_standardised_and_asked_for_again(tmp_path, dynamics):
    options = ("-c", "infl", "--inputs", "unemp", "--restarts", 1, "--max-steps", 3, "--out", tmp_path)
    run("fit", MACRO, "--dynamics", dynamics, *options)
    model = SwitchingSSM.load(tmp_path / "model")
    assert isinstance(model.dynamics, {"copy": Copy, "markov": Markov}[dynamics])
    assert model.dynamics.n_inputs == 1
    unemp = pd.read_csv(MACRO)["unemp"]
    saved = read_model(tmp_path / "model").notes
    assert saved["inputs"]["unemp"] == pytest.approx([unemp.mean(), unemp.std(ddof=0)])
    assert "missing; give a table with unemp for the next 3 steps" in refused("forecast", tmp_path, MACRO, "-n", 3)
    ahead = run("forecast", tmp_path, MACRO, "-n", 3, "--inputs", MACRO)
    drivers = ((unemp - unemp.mean()) / unemp.std(ddof=0)).to_numpy()
    expected = model.forecast(pd.read_csv(MACRO)[["infl"]], 3, inputs=np.concatenate([drivers, drivers[:3]])[:, None])
    shown = np.array([line.split(",")[1] for line in ahead.stdout.split()[1:]], dtype=float)
    np.testing.assert_allclose(shown, expected.mean[:, 0].numpy(), rtol=1e-8)
    assert run("sample", tmp_path, "--steps", 4, "--inputs", MACRO).stdout.count("\n") == 5


def test_observations_may_depend_on_inputs_too(tmp_path):
    out = tmp_path / "out"
    options = ("-c", "infl", "--inputs", "realgdp", "--emission-inputs", "unemp,realgdp", "--restarts", 1)
    run("fit", MACRO, *options, "--max-steps", 3, "--out", out)
    model = SwitchingSSM.load(out / "model")
    assert model.inputs == ("realgdp", "unemp")
    assert model.emission.inputs == ("unemp", "realgdp")
    table = pd.read_csv(MACRO)
    drivers = table[["realgdp", "unemp"]]
    drivers = (drivers - drivers.mean()) / drivers.std(ddof=0)
    expected = model.forecast(table[["infl"]], 2, inputs=pd.concat([drivers, drivers[:2]]).reset_index(drop=True))
    ahead = run("forecast", out, MACRO, "-n", 2, "--inputs", MACRO)
    shown = np.array([line.split(",")[1] for line in ahead.stdout.split()[1:]], dtype=float)
    np.testing.assert_allclose(shown, expected.mean[:, 0].numpy(), rtol=1e-8)
    error = refused("fit", MACRO, *options, "--emission", "multivariate-normal", "--out", tmp_path / "other")
    assert "--emission-inputs: MultivariateNormal does not support inputs; use Poisson, Bernoulli" in error


@pytest.mark.parametrize("emission", EmissionName)
@pytest.mark.parametrize("dynamics", DynamicsName)
def test_every_emission_and_dynamics_on_offer_is_a_model_of_the_columns_alone(emission, dynamics):
    table = pd.DataFrame({"x": [0.0, 1.0, 1.0]})
    model = build(table, 2, emission.value, dynamics.value, ())
    assert (model.n_states, model.n_features, model.n_inputs) == (2, 1, 0)


def test_inputs_of_dynamics_that_take_none_are_refused():
    with pytest.raises(ValueError, match="--inputs: StickyHDP does not support inputs"):
        build(pd.DataFrame({"x": [0.0, 1.0, 1.0]}), 2, "normal", "sticky-hdp", ("u",))


@pytest.mark.slow
def test_a_fit_by_message_passing_writes_draws_of_its_posterior(tmp_path):
    import arviz as az

    options = ("--method", "vmp", "--restarts", 1, "--tol", 1e-3, "--out", tmp_path)
    done = run("fit", NILE, *options)
    assert "VMP: objective" in done.stdout
    posterior = az.from_netcdf(tmp_path / "posterior.nc").posterior
    assert posterior.sizes["draw"] == 1000
    assert float(posterior["loc"].std("draw").min()) > 1
    again = run("fit", NILE, *options, "--tol", 1e-9, "--force")
    steps = [int(printed.stdout.split(" after ")[1].split()[0]) for printed in (done, again)]
    assert steps[0] < steps[1]


# ---- several sequences ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def panel(tmp_path_factory) -> Path:
    """Two sites, the rows of which alternate while both go on."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("panel") / "panel.csv"
    parts = [
        pd.DataFrame(
            {
                "site": site,
                "day": pd.date_range("2020-01-01", periods=n),
                "x": rng.normal(np.arange(n) // 6 % 2 * 6.0, 1),
            }
        )
        for site, n in (("b", 30), ("a", 20))
    ]
    pd.concat(parts).sort_values("day", kind="stable").to_csv(path, index=False)
    return path


def test_a_table_of_several_sequences_is_fitted_and_forecast_as_such(panel, tmp_path):
    done = run("fit", panel, "--sequence", "site", "--restarts", 2, "--out", tmp_path)
    frame = pd.read_csv(panel, parse_dates=["day"]).set_index(["site", "day"])
    model, written = SwitchingSSM.load(tmp_path / "model"), pd.read_csv(tmp_path / "states.csv", parse_dates=["day"])
    written = written.set_index(["site", "day"])
    assert written.index.equals(frame.index)
    np.testing.assert_allclose(written.drop(columns="x"), model.states(frame), atol=5.1e-7)
    header = next(line for line in done.stdout.splitlines() if "P(redraw)" in line)
    assert [cell.strip() for cell in header.split("┃")[1:3]] == ["site", "day"]
    assert "2020-01-01" not in done.stdout  # the first step of each is a redraw by definition
    assert "plot.png shows the first of 2 sequences, b." in done.stdout
    ahead = run("forecast", tmp_path, panel, "-n", 2, "--plot", tmp_path / "ahead.png")
    table = pd.read_csv(StringIO(ahead.stdout))
    assert table["site"].tolist() == ["b", "b", "a", "a"]
    assert table["day"].tolist() == ["2020-01-31", "2020-02-01", "2020-01-21", "2020-01-22"]
    expected = model.forecast(frame, 2)
    np.testing.assert_allclose(table["x"], expected.mean.flatten(), rtol=1e-8)
    np.testing.assert_allclose(table["state_1"], expected.state[..., 1].flatten(), rtol=1e-8)


def test_sequences_below_each_other_are_not_taken_for_one(panel, tmp_path):
    error = refused("fit", panel, "--out", tmp_path)
    assert "--time: day is 2020-01-01 in line 2 of" in error
    assert "name the column of the sequences with --sequence" in error


def test_sequences_without_times_count_their_steps_and_may_have_inputs(tmp_path):
    path, rng = tmp_path / "runs.csv", np.random.default_rng(0)
    frame = pd.DataFrame({"run": np.repeat([3, 1], [8, 5]), "x": rng.normal(size=13), "c": rng.normal(size=13)})
    frame.to_csv(path, index=False)
    options = ("--sequence", "run", "-c", "x", "--inputs", "c", "--restarts", 1, "--max-steps", 3)
    run("fit", path, *options, "--out", tmp_path / "out")
    written = pd.read_csv(tmp_path / "out" / "states.csv")
    assert written["step"].tolist() == [*range(8), *range(5)]
    indexed = frame.set_index(["run", written["step"]])
    drivers = (indexed[["c"]] - frame["c"].mean()) / frame["c"].std(ddof=0)
    expected = SwitchingSSM.load(tmp_path / "out" / "model").states(indexed[["x"]], inputs=drivers)
    np.testing.assert_allclose(written[list(expected.columns)], expected, atol=5.1e-7)
    assert "--sequence: a model with inputs" in refused("forecast", tmp_path / "out", path)


# ---- what is there stays -------------------------------------------------------------------------------------------


def test_nothing_is_overwritten_without_force(results, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in results[0].rglob("*") if path.is_file()}
    table, plot = tmp_path / "table.csv", tmp_path / "plot.png"
    table.write_text("mine"), plot.write_text("mine")
    (tmp_path / "figures").mkdir(), (tmp_path / "figures" / "beliefs.png").write_text("mine")
    for arguments in (
        ("fit", NILE, "--out", results[0]),
        ("forecast", results[0], NILE, "--out", table),
        ("forecast", results[0], NILE, "--plot", plot),
        ("sample", results[0], "--out", table),
        ("compare", "--out", tmp_path / "figures"),
    ):
        assert "exists; add --force to replace it." in refused(*arguments)
    assert table.read_text() == plot.read_text() == "mine"
    assert {path: path.stat().st_mtime_ns for path in before} == before
    run("sample", results[0], "--steps", 3, "--out", table, "--force")
    assert table.read_text().startswith("step,volume")


def test_one_file_of_results_is_enough_to_stop_a_fit(tmp_path):
    (tmp_path / "states.csv").write_text("mine")
    options = (NILE, "--restarts", 1, "--max-steps", 2, "--out", tmp_path)
    refused("fit", *options)
    assert (tmp_path / "states.csv").read_text() == "mine"
    run("fit", *options, "--force")
    assert (tmp_path / "states.csv").read_text().startswith("year")


# ---- print ---------------------------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_cell_is_cut_in_a_terminal_of_any_width(width, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    options = ("-k", 5, "--emission", "multivariate-normal", "--dynamics", "markov", "--restarts", 1, "--max-steps", 5)
    done = run("fit", MACRO, *options, "--out", tmp_path)
    assert "…" not in done.stdout
    rows = [line.split("│") for line in done.stdout.splitlines() if line.startswith("│ loc realgdp")]
    shown = [float(cell) for row in rows for cell in row[2:-1]]
    loc = SwitchingSSM.load(tmp_path / "model").describe()["loc"][:, 0]
    np.testing.assert_allclose(shown, loc, rtol=1e-3)
    assert len(rows) == (5 if width <= 40 else 1 if width == 200 else len(rows))
    if width >= 80:
        assert max(map(len, done.stdout.splitlines()[:20])) <= width


# ---- forecast and sample -------------------------------------------------------------------------------------------


def test_forecast_equals_that_of_the_library(results, tmp_path):
    out, plot = tmp_path / "forecast.csv", tmp_path / "forecast.png"
    run("forecast", results[0], NILE, "--horizon", 10, "--out", out, "--plot", plot)
    table = pd.read_csv(out, index_col="year")
    expected = SwitchingSSM.load(results[0] / "model").forecast(pd.read_csv(NILE, index_col="year"), 10)
    assert list(table.columns) == ["volume", "volume_lower", "volume_upper", "state_0", "state_1", "redraw"]
    assert table.index.tolist() == list(range(1971, 1981))
    np.testing.assert_allclose(table["volume"], expected.mean[:, 0].numpy(), rtol=1e-9)
    np.testing.assert_allclose(table[["state_0", "state_1"]], expected.state.numpy(), rtol=1e-9)
    assert (table["volume_lower"] < 700).all()
    assert plot.read_bytes()[:4] == b"\x89PNG"
    assert run("forecast", results[0] / "model", NILE, "--horizon", 10).stdout == out.read_text()


def test_sample_equals_that_of_the_library(results, tmp_path):
    run("sample", results[0], "--steps", 50, "--seed", 3, "--out", tmp_path / "sample.csv")
    table = pd.read_csv(tmp_path / "sample.csv", index_col="step")
    expected = SwitchingSSM.load(results[0] / "model").simulate(50, seed=3)
    np.testing.assert_allclose(table["volume"], expected.x[:, 0].numpy(), rtol=1e-9)
    assert (table["state"] == expected.path.numpy()).all()
    assert (table["redraw"] == expected.redraw.numpy()).all()
    assert run("sample", results[0], "--steps", 50, "--seed", 3).stdout == (tmp_path / "sample.csv").read_text()


def test_a_model_saved_from_python_needs_its_columns_named_only_if_they_are_ambiguous(tmp_path):
    two = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    probs = torch.tensor([0.5, 0.5], dtype=torch.float64)
    from samplehold import Normal

    model = SwitchingSSM(Copy(2), Normal(1)).with_values(
        redraw_prob=torch.tensor(0.1, dtype=torch.float64), state_probs=probs, loc=two, scale=torch.ones_like(two)
    )
    model.save(tmp_path / "saved")
    run("forecast", tmp_path / "saved", NILE, "-n", 1)
    unnamed = refused("forecast", tmp_path / "saved", MACRO, "-n", 1)
    assert "got realgdp, unemp, infl, but the model has 1 feature(s)" in unnamed
    run("forecast", tmp_path / "saved", MACRO, "-n", 1, "-c", "infl")
    assert run("sample", tmp_path / "saved", "-n", 1).stdout.splitlines()[0] == "step,x,state,redraw"


# ---- tables --------------------------------------------------------------------------------------------------------


def test_missing_cells_true_and_false_and_other_spellings_are_read(tmp_path):
    path = tmp_path / "rain.csv"
    path.write_text("day, wet ,warm\n1, True,1\n2,,0\n3,False,NA\n4,True,1\n5,True,1\n6,False,0\n")
    run("fit", path, "--emission", "bernoulli", "--restarts", 1, "--max-steps", 5, "--out", tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "states.csv", index_col="day")
    assert table["warm"].isna().tolist() == [False, False, True, False, False, False]


def test_a_blank_line_is_a_missing_value_in_a_file_of_one_column_and_nothing_in_others(tmp_path):
    one, two = tmp_path / "one.csv", tmp_path / "two.tsv"
    one.write_text("x\n1\n\n3\n2\n4\n\n\n")
    two.write_text("x\ty\n1\t1\n\n3\t2\n2\t1\n")
    run("fit", one, "-k", 1, "--out", tmp_path / "1", "--restarts", 1)
    run("fit", two, "-k", 1, "--out", tmp_path / "2", "--restarts", 1)
    assert pd.read_csv(tmp_path / "1" / "states.csv")["x"].isna().tolist() == [False, True, False, False, False]
    assert pd.read_csv(tmp_path / "2" / "states.csv")["x"].tolist() == [1, 3, 2]


def test_columns_with_the_names_of_results_are_kept(tmp_path):
    path = tmp_path / "named.csv"
    path.write_text("state,y\n5,1\n7,2\n6,1\n")
    run("fit", path, "-k", 1, "--out", tmp_path / "out", "--restarts", 1)
    table = pd.read_csv(tmp_path / "out" / "states.csv")
    assert table["state (observed)"].tolist() == [5, 7, 6]
    assert table["state"].tolist() == [0, 0, 0]


def test_uneven_times_are_pointed_out(tmp_path):
    path = tmp_path / "uneven.csv"
    path.write_text("year,x\n2000,1\n2001,2\n2005,3\n2006,1\n")
    done = run("fit", path, "-k", 1, "--out", tmp_path / "out", "--restarts", 1)
    assert "Note: year is not evenly spaced; its rows were read as consecutive steps." in done.stdout


ROWS = [f"2020-01-{day:02d},{day % 3}" for day in range(1, 9)]


@pytest.mark.parametrize(
    ("name", "text", "time", "columns"),
    [
        ("first.csv", ["Tag,x", *ROWS], "Tag", ["x"]),
        ("unnamed.csv", [",x", *ROWS], "row", ["x"]),
        ("counted.csv", [",date,x", *(f"{i},{row}" for i, row in enumerate(ROWS))], "date", ["x"]),
        ("numbered.csv", [",x", *(f"{i},{row[-1]}" for i, row in enumerate(ROWS))], "row", ["x"]),
        ("second.csv", ["note,date,x", *(f"n,{row}" for row in ROWS)], "date", ["x"]),
        ("british.csv", ["d,x", *(f"{day}/01/2020,{day % 3}" for day in range(11, 19))], "d", ["x"]),
        ("words.csv", ["d,x", *(f"{month} 2020,1" for month in ("Jan", "Feb", "Mar"))], "d", ["x"]),
        ("empty.csv", ["t,x,", *(f"{i},{row[-1]}," for i, row in enumerate(ROWS))], "t", ["x"]),
        ("names.csv", ["a,x", *(f"2 {letter},{i}" for i, letter in enumerate("abcd"))], None, ["x"]),
    ],
)
def test_the_time_is_found(name, text, time, columns, tmp_path):
    (tmp_path / name).write_text("\n".join(text))
    found = pick_series(read_table(tmp_path / name), tmp_path / name, None, [], None)
    assert found.time == time
    assert list(found.observed.columns) == columns


def test_packed_files_and_parquet_with_dates_are_read_as_the_others(tmp_path):
    frame = pd.DataFrame({"date": pd.date_range("2020-01-01", periods=5), "x": [1.0, np.nan, 3.0, 2.0, 1.0]})
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_csv(tmp_path / "x.csv.gz", index=False)
    frame.to_csv(tmp_path / "x.tsv.xz", index=False, sep="\t")
    frame.to_parquet(tmp_path / "x.parquet")
    frame.set_index("date").to_parquet(tmp_path / "indexed.parquet")
    frame.assign(date=frame["date"].dt.date).to_parquet(tmp_path / "days.parquet")
    for path in tmp_path.iterdir():
        found = pick_series(read_table(path), path, None, [], None)
        assert found.time == "date"
        assert found.observed["x"].tolist()[2:] == [3.0, 2.0, 1.0]
        assert np.isnan(found.observed["x"].iloc[1])


CELLS = "year,note,x\n\n2000,a,1\n   \n2001,%s\n2002,c,3\n"


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.csv.gz"])
@pytest.mark.parametrize(
    ("row", "count"), [("b,2,3", 4), ("b", 2), ("b,2,,3", 5), ('"b\n",2,3', 4), ('"b, c",2', 0), ('"b\n\n",2', 0)]
)
def test_a_row_with_other_cells_than_the_header_is_named(tmp_path, name, ending, row, count):
    path, text = tmp_path / name, (CELLS % row).replace("\n", ending)
    if name == "x.tsv":
        text = text.replace(",", "\t")
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    if count:
        with pytest.raises(ValueError, match=rf"data: line 5 of .* has {count} cell\(s\), but the header has 3"):
            read_table(path)
    else:
        assert read_table(path)["x"].tolist() == [1, 2, 3]


def test_a_row_far_down_is_named(tmp_path):
    rows = ["x,y", *(f"{i},1," for i in range(300_000))]
    (tmp_path / "x.csv").write_text("\n".join(rows))
    assert read_table(tmp_path / "x.csv")["y"].eq(1).all()  # every row ends with a comma
    rows[270_001] += "5"
    (tmp_path / "x.csv").write_text("\n".join(rows))
    with pytest.raises(ValueError, match=r"line 270002 of .* has 3 cell\(s\), but the header has 2"):
        read_table(tmp_path / "x.csv")


def test_lines_of_blanks_are_counted_where_a_cell_is_named(tmp_path):
    (tmp_path / "x.csv").write_text("\n\nx,y\n1,2\n   \n\n3,4O\n5,6\n7,8\n")
    with pytest.raises(ValueError, match="got '4O' in line 7 of"):
        pick_series(read_table(tmp_path / "x.csv"), tmp_path / "x.csv", None, [], None)


FILES = {
    "text.csv": 'year,note,x\n2000,"two\nlines",1\n2001,b,2\n\n2002,c,lots\n2003,d,oops\n',
    "infinite.csv": "x\n1\n2\ninf\n",
    "empty.csv": "",
    "blank.csv": "\n\n",
    "header.csv": "year,x\n",
    "semicolon.csv": "year;x\n2000;1\n",
    "ragged.csv": "x,y\n1,2\n3,4,5\n",
    "words.csv": "a,b\none,two\nthree,four\n",
    "not.parquet": "x,y\n1,2\n",
    "short.csv": "x\n1\n",
    "missing.csv": "x,y\n1,\n2,\n3,\n",
    "holes.csv": "year,x\n2000,1\n,2\n2002,3\n",
    "counts.csv": "x\n1\n2.5\n3\n",
    "constant.csv": "x,c\n1,1\n2,1\n3,1\n",
    "parts.csv": "year,month,x\n2000,1,5\n2000,2,6\n2001,1,7\n",
    "newest.csv": "date,x\n2020-01-03,1\n2020-01-02,2\n2020-01-01,3\n",
    "british.csv": "d,x\n14/01/2020,1\n13/01/2020,2\n",
    "falling.csv": "year,x\n2002,1\n2001,2\n2000,3\n",
    "again.csv": "year,x\n2000,1\n2001,2\n2001,3\n2002,5\n",
    "twice.csv": "x, x\n1,2\n3,4\n",
    "bare.csv": "1120,1160\n963,1210\n",
    "longer.csv": "x\n1,2\n3,4\n",
    "tabs.csv": "year\tx\n2000\t1\n",
    "typo.csv": "y,x\n1,1\n2,1O\n3,1\n",
    "empty_cells.csv": "t,x\n1,\n2,\n3,\n",
    "sites.csv": "site,t,x\na,1,1\na,1,2\n,1,3\n",
    "broken.csv.gz": "x\n1\n",
    "book.xlsx": "PK",
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "absent.csv", "-o", "out"], "data: there is no file absent.csv"),
        (["fit", ".", "-o", "out"], "book.xlsx is a workbook; save its sheet as a CSV file"),
        (["select", "."], "data: . is not a file"),
        (["fit", "empty.csv", "-o", "out"], "data: empty.csv is empty; give a table"),
        (["fit", "blank.csv", "-o", "out"], "blank.csv is empty; give a table"),
        (["fit", "header.csv", "-o", "out"], "data: header.csv has no rows"),
        (["fit", "not.parquet", "-o", "out"], "data: not.parquet cannot be read as Parquet ("),
        (
            ["fit", "ragged.csv", "-o", "out"],
            "line 3 of ragged.csv has 3 cell(s), but the header has 2; name",
        ),
        (["fit", str(NILE), "-c", "height", "-o", "out"], "has no column 'height'; it has year, volume."),
        (["fit", str(NILE), "-c", "volume", "--emission-inputs", "height", "-o", "out"], "--emission-inputs: "),
        (["select", str(NILE), "-c", "volume", "--emission-inputs", "height"], "--emission-inputs: "),
        (["fit", "semicolon.csv", "-c", "x", "-o", "out"], "it has year;x (is the file comma-separated?)."),
        (["fit", "semicolon.csv", "-o", "out"], "it has year;x (is the file comma-separated?)."),
        (["fit", "tabs.csv", "-o", "out"], "(is the file comma-separated?). Save it with commas and decimal points"),
        (["fit", "parts.csv", "-o", "out"], "--columns: parts.csv has year, month, named like a time"),
        (["fit", "newest.csv", "-o", "out"], "date goes back in line 3 of newest.csv, where 2020-01-02 follows"),
        (
            ["fit", "british.csv", "-o", "out"],
            "d goes back in line 3 of british.csv, where 13/01/2020 follows 14/01/2020",
        ),
        (["fit", "falling.csv", "-c", "x", "-o", "out"], "year goes back in line 3 of falling.csv"),
        (
            ["fit", "again.csv", "-c", "x", "-o", "out"],
            "--time: year is 2001 in line 3 of again.csv and again in line 4 of again.csv; keep one of them, name the",
        ),
        (
            ["fit", "text.csv", "--time", "x", "-c", "year", "--sequence", "no", "-o", "out"],
            "--sequence: text.csv has no",
        ),
        (["fit", "sites.csv", "--sequence", "site", "-o", "out"], "--sequence: site has an empty cell in line 4"),
        (["fit", "twice.csv", "-o", "out"], "twice.csv has two columns called x"),
        (["fit", "bare.csv", "-o", "out"], "bare.csv has no header, its first line is 1120, 1160"),
        (
            ["fit", "longer.csv", "-o", "out"],
            "line 2 of longer.csv has 2 cell(s), but the header has 1; name",
        ),
        (["fit", "typo.csv", "-o", "out"], "x: got '1O' in line 3 of typo.csv"),
        (["fit", "empty_cells.csv", "-o", "out"], "feature 0 (x) has no observed value"),
        (["fit", "broken.csv.gz", "-o", "out"], "broken.csv.gz cannot be unpacked (Not a gzipped file"),
        (["fit", "book.xlsx", "-o", "out"], "book.xlsx is a workbook; save its sheet as a CSV file"),
        (["fit", str(NILE), "--tol", "-1", "-o", "out"], "tol: got -1.0"),
        (["fit", str(NILE), "--method", "vmp", "--prior", "none", "-o", "out"], "--prior: none is maximum likelihood"),
        (["fit", "text.csv", "-c", "x", "-o", "out"], "x: got 'lots' in line 6 of text.csv, expected a number"),
        (["fit", "words.csv", "-o", "out"], "words.csv has no numeric column to model; it has a, b."),
        (["fit", "words.csv", "-c", "b", "-o", "out"], "b: got 'two' in line 2 of words.csv"),
        (["fit", "infinite.csv", "-o", "out"], "x: got an infinite value in line 4 of infinite.csv"),
        (["fit", "short.csv", "-k", "2", "-o", "out"], "x: got 1 observed step(s) for 2 states"),
        (["fit", "missing.csv", "-c", "x,y", "-o", "out"], "feature 1 (y) has no observed value"),
        (["fit", "holes.csv", "--time", "year", "-o", "out"], "--time: year has an empty cell in line 3 of holes.csv"),
        (
            ["fit", "holes.csv", "--time", "month", "-o", "out"],
            "--time: holes.csv has no column 'month'; it has year, x",
        ),
        (
            ["fit", "counts.csv", "--emission", "poisson", "-o", "out"],
            "got 2.5 at step 1, feature 0 (x); expected counts",
        ),
        (["fit", "constant.csv", "-c", "x", "--inputs", "c", "-o", "out"], "--inputs: c is constant"),
        (["fit", str(NILE), "-k", "0", "-o", "out"], "--states: got 0, expected at least 1."),
        (["fit", str(NILE), "--restarts", "0", "-o", "out"], "--restarts: got 0, expected at least 1."),
        (["fit", str(NILE), "--max-steps", "0", "-o", "out"], "--max-steps: got 0, expected at least 1."),
        (["fit", str(MACRO), "--emission", "categorical", "-o", "out"], "--columns: got 3 columns, but a categorical"),
        (["fit", str(NILE), "-o", "counts.csv"], "--out: cannot make the folder counts.csv ("),
        (["forecast", "absent", str(NILE)], "model: there is no folder absent"),
        (["forecast", ".", str(NILE)], "it has no model.safetensors; give a folder"),
        (["sample", "absent"], "model: there is no folder absent"),
    ],
)
def test_bad_input_ends_with_one_line_and_status_2(arguments, message, tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    done = run(*arguments, status=2)
    assert message in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--horizon", "0"], "--horizon: got 0, expected at least 1."),
        (["--level", "90"], "--level: got 90.0, expected a probability between 0 and 1"),
        (["--out", "no/such/folder.csv"], "--out: there is no folder no/such"),
        (["--plot", "forecast.docx"], "Format 'docx' is not supported"),
        (["--inputs", str(NILE)], "--inputs: this model has none"),
        (["--columns", "year,volume"], "--columns: got year, volume, but the model has 1 feature(s)"),
    ],
)
def test_bad_options_of_a_forecast_end_with_one_line_and_status_2(results, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused("forecast", results[0], NILE, *arguments)


def test_a_sample_needs_a_step(results):
    assert refused("sample", results[0], "--steps", 0) == "samplehold: --steps: got 0, expected at least 1.\n"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert "is not writable" in refused("fit", NILE, "-o", locked)


# ---- select ----------------------------------------------------------------------------------------------------------


def test_select_prints_the_criteria_and_writes_table_and_figure(tmp_path):
    out, plot = tmp_path / "table.csv", tmp_path / "criteria.png"
    options = ["--states", "1-2", "--restarts", 1, "--criterion", "bic", "--out", out, "--plot", plot]
    done = run("select", NILE, "--columns", "volume", *options)
    assert done.stdout.splitlines()[-1] == "Best by bic: 2 state(s)."
    nile = pd.read_csv(NILE, index_col="year")
    chosen = sh.select(lambda k: SwitchingSSM(Copy(k), sh.Normal(1)), nile, [1, 2], restarts=1)
    table = pd.read_csv(out, index_col="states")
    np.testing.assert_allclose(table[["loglik", "bic", "icl"]], chosen.table[["loglik", "bic", "icl"]], rtol=1e-8)
    assert f"{table.bic[2]:.2f}" in done.stdout
    assert plot.read_bytes()[:4] == b"\x89PNG"
    assert "exists; add --force to replace it" in refused("select", NILE, *options)


def test_select_reads_inputs_as_fit_does(tmp_path):
    out = tmp_path / "table.csv"
    options = ["--inputs", "infl", "--emission-inputs", "infl,realgdp", "--restarts", 1, "--out", out]
    run("select", MACRO, "--columns", "unemp", "--states", "1,2", "--dynamics", "markov", *options)
    macro = pd.read_csv(MACRO, index_col="quarter")
    drive = macro[["infl", "realgdp"]]
    given = {"inputs": (drive - drive.mean()) / drive.std(ddof=0), "restarts": 1}
    emission = sh.LinearRegression(1, inputs=["infl", "realgdp"])
    chosen = sh.select(
        lambda k: SwitchingSSM(sh.Markov(k, inputs=["infl"]), emission), macro[["unemp"]], [1, 2], **given
    )
    table = pd.read_csv(out, index_col="states")
    np.testing.assert_allclose(table[["loglik", "bic"]], chosen.table[["loglik", "bic"]], rtol=1e-8)


def test_numbers_of_states_are_read():
    assert numbers_of("1-3") == [1, 2, 3]
    assert numbers_of("2, 4,4 , 6-7") == [2, 4, 6, 7]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--states", "3-1"], "--states: got 3-1, expected numbers from 1 to 100, such as 1-6 or 1,2,4."),
        (["--states", "0-2"], "--states: got 0-2, expected"),
        (["--states", "two"], "--states: got two, expected"),
        (["--columns", "height"], "--columns: "),
        (["--inputs", "height"], "--inputs: "),
        (["--criterion", "heldout", "--folds", "1"], "folds: got 1"),
        (["--emission", "auto-regressive", "--order", "0"], "--order: got 0"),
        (["--out", "no/such/folder.csv", "--states", "1"], "--out: there is no folder no/such"),
    ],
)
def test_bad_options_of_a_choice_end_with_one_line_and_status_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused("select", NILE, *arguments)


# ---- the program itself --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_module_runs_from_anywhere_and_leaves_its_results(tmp_path):
    command = [sys.executable, "-m", "samplehold", "fit", str(NILE), "--columns", "volume", "--restarts", "2"]
    done = subprocess.run([*command, "--out", "results"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1899" in done.stdout
    assert done.stderr == ""
    assert (tmp_path / "results" / "plot.png").stat().st_size > 10_000
    missing = subprocess.run(
        [*command, "--out", "results", "-c", "height"], cwd=tmp_path, capture_output=True, text=True
    )
    assert missing.returncode == 2
    assert missing.stderr == f"samplehold: --columns: {NILE} has no column 'height'; it has year, volume.\n"


def test_the_version_is_that_of_the_package():
    assert run("--version").stdout == f"samplehold {sh.__version__}\n"


def test_help_shows_examples_and_loads_nothing_heavy():
    for command in ((), ("fit",), ("select",), ("forecast",), ("sample",)):
        assert "Example: samplehold" in run(*command, "--help").stdout
    heavy = "import sys, samplehold.__main__; print(sorted({'torch', 'pyro', 'pandas'} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"


def test_an_option_or_a_folder_is_refused_before_anything_heavy_is_loaded(tmp_path):
    (tmp_path / "plot.png").write_text("")
    fit, out = ["fit", str(NILE), "--columns", "volume"], ["--out", str(tmp_path)]
    wrong = [["--states", "0"], ["--restarts", "0"], ["--order", "0"], ["--max-steps", "0"], ["--tol", "-1"], []]
    commands = [[*fit, *options, *out] for options in wrong] + [["select", str(NILE), "--folds", "1"]]
    program = (
        "import sys; from samplehold.cli.app import app; from typer.testing import CliRunner\n"
        f"print([CliRunner().invoke(app, words).exit_code for words in {commands}], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{[2] * len(commands)} False\n"


# ---- study ---------------------------------------------------------------------------------------------------------


def test_study_writes_tables_and_figures_and_says_the_seeds(tmp_path, monkeypatch):
    import study as studies

    def small(name, scale, track, seed):
        figure = Figure()
        figure.subplots().plot([1, 2])
        rows = [{"number": number, "[bold]": 1 / 3} for number in track(range(40), "numbers")]
        return studies.Findings({name: pd.DataFrame(rows)}, {"line": figure}, (seed, 7), studies.HARDLY_TRAINED)

    monkeypatch.setattr("study.study", small)
    done = run("study", "truncation", "bridge", "truncation", "--out", tmp_path)
    assert done.stdout.count("seeds 0, 7") == 2
    assert "The first 30 of 40 rows." in done.stdout
    assert "[bold]" in done.stdout
    assert done.stdout.count(studies.HARDLY_TRAINED) == 2
    for name in ("truncation", "bridge"):
        written = {path.name for path in (tmp_path / name).iterdir()}
        assert written == {"README.md", "line.png", f"{name}.csv", f"{name}.md"}
        assert len(pd.read_csv(tmp_path / name / f"{name}.csv")) == 40
        assert (tmp_path / name / f"{name}.md").read_text().startswith("|   number |")
    assert "bridge exists; add --force to replace it" in refused("study", "bridge", "--out", tmp_path)
    run("study", "bridge", "--out", tmp_path, "--force", "--seed", 5)
    about = (tmp_path / "bridge" / "README.md").read_text()
    assert "Scale quick, seeds 5, 7." in about
    assert about.endswith(f"{studies.HARDLY_TRAINED}\n")
    run("study", "all", "--out", tmp_path / "all")
    assert {path.name for path in (tmp_path / "all").iterdir()} == set(studies.STUDIES)


def test_study_names_what_there_is(tmp_path):
    from study import STUDIES

    error = refused("study", "foo", "--out", tmp_path)
    assert error == f"samplehold: study: got 'foo', expected one of {', '.join(STUDIES)}, or all.\n"
    listed = " ".join(run("study", "--help").stdout.split())
    assert all(name in listed for name in STUDIES)
    lines = run("study", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(STUDIES)
    assert "Is one matrix on [x, h] faster than one on x and one on h?" in lines[list(STUDIES).index("joined")]
    assert all(len(line.split()) > 4 for line in lines)
    run("study", "truncation", "--out", tmp_path, "--scale", "huge", status=2)
    run("study", "truncation", "--out", tmp_path, "--seed", -1, status=2)


@pytest.mark.slow
def test_a_study_is_a_script_of_a_checkout(tmp_path):
    script = DOCS / "replications" / "joined.py"
    done = subprocess.run([sys.executable, script, "--out", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "joined: " in done.stdout
    assert (tmp_path / "joined" / "README.md").exists()


@pytest.mark.parametrize("words", [["study", "counting"], ["study", "--list"], ["compare"]])
def test_an_installed_package_says_where_studies_are(words, tmp_path, monkeypatch):
    monkeypatch.setattr("samplehold.cli.studies.SCRIPTS", tmp_path)
    assert "studies are read from a checkout" in refused(*words, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- compare -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_compare_prints_the_table_of_claims_and_writes_their_figures(tmp_path, monkeypatch):
    import claims as shown

    small = {"LAYERS": 9, "STACKS": 4, "ENGINE_STEPS": 20, "TRAINED": -1.0, "JUDGED": 8}
    for name, value in small.items():
        monkeypatch.setattr(shown, name, value)
    monkeypatch.setattr(shown, "information_sweep", partial(shown.information_sweep, (0.0, 8.0), n_steps=200))
    monkeypatch.setattr(shown, "price_of_exactness", partial(shown.price_of_exactness, (0.02, 1.0), (0.3,), n_steps=60))
    monkeypatch.setattr(shown, "train_next_token", partial(shown.train_next_token, n_steps=5))
    done = run("compare", "--out", tmp_path / "out")
    assert "MISSED" not in done.stdout
    for number in range(1, 7):
        assert f"{number}. " in done.stdout
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["beliefs.png", "information.png", "price.png", "trained_mingru.png", "trained_minlstm.png"]
    assert (tmp_path / "out" / "price.png").read_bytes()[:4] == b"\x89PNG"


def test_compare_says_what_was_missed_and_ends_with_status_1(tmp_path, monkeypatch):
    import claims as shown

    monkeypatch.setattr(shown, "show", lambda out, console, seed: False)
    run("compare", "--out", tmp_path, status=1)
    run("compare", "--out", DATA / "nile.csv", status=2)
    missed = shown.Shown("claim", 2.0, 1.0)
    assert not missed.met
    assert shown.Shown("claim", 2.0, 1.0, below=False).met
