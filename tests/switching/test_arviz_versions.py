"""Files of fits, and their groups, are what the installed ArviZ takes: version 0.23, and version 1.

`.ci/arviz1` runs this file in an environment with ArviZ 1 and without torch, on files that this file writes in the main
environment: `python tests/switching/test_arviz_versions.py FOLDER`.
"""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import arviz as az
import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr
from samplehold.switching.views.groups import Groups, netcdf, wrapped

FOLDER = os.environ.get("ARVIZ_FILES")
NEW = int(az.__version__.split(".")[0]) >= 1
NILE = Path(__file__).parents[2] / "notebooks" / "data" / "nile.csv"
FILES = "em", "draws", "panel", "point"
WRITTEN_ELSEWHERE = "posterior"  # by the command line
COMMON = {"posterior_predictive", "replicated", "observed_data", "sample_stats", "smoothed"}
OF_DRAWS, OF_POINT = {"posterior", "log_likelihood"}, {"estimates", "log_density"}
PLOTS_OF_POINTS = ("plot_ppc_dist", "plot_ppc_pit") if NEW else ("plot_ppc",)
PLOTS_OF_DRAWS = ("plot_dist", "plot_loo_pit") if NEW else ("plot_posterior",)
PLOTS = (*PLOTS_OF_POINTS, "plot_trace", "plot_forest", *PLOTS_OF_DRAWS)


def write(folder: Path) -> None:
    """Files of a fit by EM, of draws, of a ragged panel with missing values, and of a point without a posterior."""
    import pandas as pd
    import samplehold as sh

    nile, model = pd.read_csv(NILE, index_col="year"), sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
    few: dict[str, Any] = {"restarts": 1, "max_steps": 20, "progress": False}
    model.fit(nile, restarts=1, progress=False).save_arviz(folder / "em.nc", draws=60)
    model.fit(nile, restarts=1, max_steps=1, progress=False).save_arviz(folder / "point.nc", draws=60)
    model.fit(nile, method="vmp", **few).save_arviz(folder / "draws.nc", draws=60)
    flow = np.sin(np.arange(24.0)) + np.repeat([0.0, 3.0, 0.0, 3.0], 6)
    flow[[3, 17]] = np.nan
    table = pd.DataFrame({"site": ["north"] * 14 + ["south"] * 10, "up": flow, "down": -flow})
    table["day"] = [*pd.date_range("2024-02-20", periods=14), *pd.date_range("2024-02-20", periods=10)]
    series = sh.read_panel(table, "site", "day")
    sh.SwitchingSSM(sh.Copy(2), sh.Normal(2)).fit(series, method="vmp", **few).save_arviz(folder / "panel.nc", draws=40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    if FOLDER is not None:
        return Path(FOLDER)
    place = tmp_path_factory.mktemp("files")
    write(place)
    return place


def groups_of(path: Path) -> Groups:
    """The groups of a file, read without ArviZ."""
    with xr.open_datatree(path) as tree:
        datasets = {name: tree[name].to_dataset().load() for name in tree.children}
        return Groups(datasets, dict(tree.attrs))


@pytest.fixture(scope="module")
def data(folder) -> dict[str, Any]:
    """The data of each file, wrapped for the installed ArviZ."""
    return {name: wrapped(groups_of(folder / f"{name}.nc")) for name in FILES}


def read(path: Path) -> Any:
    """The data of a file, read by ArviZ. The file is closed: netCDF crashes if it is opened again while it is open."""
    loaded = az.from_netcdf(path)
    data = loaded.load()
    loaded.close()
    return data


def names(data: Any) -> set[str]:
    return set(data.children) if NEW else set(data.groups())


def same(one: Any, other: Any) -> None:
    assert names(one) == names(other)
    for name in names(one):
        xr.testing.assert_identical(*(d[name].to_dataset() if NEW else d[name] for d in (one, other)))


@pytest.mark.parametrize("name", [*FILES, WRITTEN_ELSEWHERE])
def test_what_arviz_reads_from_a_file_is_what_the_library_wraps(folder, name):
    path = folder / f"{name}.nc"
    if name == WRITTEN_ELSEWHERE and not path.exists():
        pytest.skip("the command line's file is there in .ci/arviz1 alone")
    loaded, ours = read(path), wrapped(groups_of(path))
    assert type(ours).__name__ == ("DataTree" if NEW else "InferenceData")
    assert names(ours) == COMMON | (OF_POINT if name == "point" else OF_DRAWS)
    same(loaded, ours)
    assert loaded.attrs["inference_library"] == ours.attrs["inference_library"] == "samplehold"


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_arviz_writes_holds_the_same(data, name, tmp_path):
    data[name].to_netcdf(str(tmp_path / "theirs.nc"))
    loaded = read(tmp_path / "theirs.nc")
    same(loaded, data[name])
    assert loaded.attrs["method"] == data[name].attrs["method"]
    (tmp_path / "ours.nc").write_bytes(netcdf(groups_of(tmp_path / "theirs.nc")))
    same(read(tmp_path / "ours.nc"), data[name])


def test_groups_have_the_names_and_labels_of_the_data(data):
    point, panel = data["point"], data["panel"]
    assert data["em"].posterior["loc"].dims == ("chain", "draw", "state", "feature")
    assert point.estimates["loc"].dims == ("state", "feature")
    assert point.observed_data["time"].values.tolist() == list(range(1871, 1971))
    assert point.smoothed["state_probability"].dims == ("time", "state")
    assert panel.smoothed["state_probability"].dims == ("sequence", "time", "state")
    assert panel.smoothed["sequence"].values.tolist() == ["north", "south"]
    assert panel.posterior["feature"].values.tolist() == ["up", "down"]
    assert panel.log_likelihood["x"].dims == ("chain", "draw", "observation")
    assert str(panel.observed_data["of_time"].values[3]).startswith("2024-02-24")  # the fourth day is missing


def test_summaries_are_those_of_the_draws(data):
    for name in ("em", "draws"):
        table = az.summary(data[name], round_to="none")
        loc = data[name].posterior["loc"].mean(("chain", "draw"))
        assert {"redraw_prob", "state_probs[0]", "loc[1, volume]"} <= set(table.index)
        assert float(table.loc["loc[1, volume]", "mean"]) == pytest.approx(float(loc[1, 0]), rel=1e-12)
        assert float(table.loc["loc[1, volume]", "sd"]) == pytest.approx(
            float(data[name].posterior["loc"][..., 1, 0].std(ddof=1)), rel=1e-9, abs=1e-9
        )
    assert az.extract(data["panel"])["loc"].sizes["sample"] == 40


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_leave_one_out_knows_the_log_likelihood(data):
    def elpd(data: Any) -> float:
        found: Any = az.loo(data)
        return float(found.elpd if NEW else found.elpd_loo)

    def pit(data: Any) -> np.ndarray:
        values: Any = az.loo_pit(data) if NEW else az.loo_pit(data, y="x")
        return np.asarray(values["x"] if NEW else values)

    total = float(data["point"].log_density["x"].sum())
    for name in ("em", "draws"):
        assert elpd(data[name]) == pytest.approx(total, abs=15)
        values = pit(data[name])
        assert values.shape == (100,)
        assert ((values >= 0) & (values <= 1 + 1e-12)).all()  # sums of weights, rounded
    assert np.isfinite(elpd(data["panel"]))
    with pytest.raises((TypeError, ValueError, KeyError, AttributeError)):  # nothing that could be taken for draws
        az.loo(data["point"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("plot", PLOTS)
def test_plots_take_the_groups(data, plot):
    mpl.use("Agg")
    for name in ("draws", "em", "point")[: 2 + (plot in PLOTS_OF_POINTS)]:
        assert getattr(az, plot)(data[name]) is not None


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    write(Path(sys.argv[1]))
