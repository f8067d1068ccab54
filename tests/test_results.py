"""What the command line writes is there whole, or what was there before is."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import arviz as az
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from oracles.command_line import refused, run
from samplehold import Copy, Fit, Normal, SwitchingSSM
from samplehold.cli import results
from samplehold.cli.console import write_figure, write_table
from samplehold.cli.results import replacing
from samplehold.switching.data import writing
from samplehold.switching.progress import Progress
from samplehold.switching.views.arviz import to_groups
from samplehold.switching.views.groups import netcdf

NILE = Path(__file__).parents[1] / "notebooks" / "data" / "nile.csv"
NAMES = ("model/model.safetensors", "posterior.nc", "states.csv", "plot.png")
STEPS = ("open", "mkdir", "fsync", "replace", "rename", "link", "chown", "unlink", "rmdir")


def write(out: Path, text: str) -> None:
    with replacing(out) as new:
        (new / "model").mkdir()
        for name in NAMES:
            (new / name).write_text(text)


def texts(out: Path) -> list[str]:
    return [(out / name).read_text() for name in NAMES]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def with_others(out: Path) -> Path:
    """A folder of results, in which its owner keeps more."""
    write(out, "old")
    (out / "model" / "notes.txt").write_text("kept")
    (out / "own" / "deep").mkdir(parents=True)
    (out / "own" / "deep" / "data").write_text("kept")
    (out / "link").symlink_to("own/deep")
    return out


def check_others(out: Path) -> None:
    for name in ("model/notes.txt", "own/deep/data", "link/data"):
        assert (out / name).read_text() == "kept"
    assert (out / "link").is_symlink()


def fail(*arguments: object, **keywords: object) -> None:
    raise OSError(28, "No space left on device")


@contextmanager
def at_call(n: int, what, monkeypatch):
    """The n-th of the calls by which folders change does something else."""
    seen = []

    def counted(name, true):
        def call(*arguments, **keywords):
            seen.append(name)
            if len(seen) == n:
                what()
            return true(*arguments, **keywords)

        return call

    with monkeypatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        patch.setattr(results, "_exchange", counted("exchange", results._exchange))
        yield seen


def ways(out: Path, patch: pytest.MonkeyPatch, way: str) -> None:
    if way == "one by one":
        patch.setattr(results, "_exchange", fail)
    if way == "in use":
        patch.chdir(out)


# ---- a folder ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["exchange", "one by one", "in use"])
def test_results_take_the_place_of_others_and_leave_the_rest(tmp_path, monkeypatch, way):
    out = with_others(tmp_path / "results")
    out.chmod(0o750)
    ways(out, monkeypatch, way)
    write(out, "new")
    assert texts(out) == ["new"] * 4
    check_others(out)
    assert names(tmp_path) == ["results"]
    assert names(out) == ["link", "model", "own", "plot.png", "posterior.nc", "states.csv"]
    assert names(out / "model") == ["model.safetensors", "notes.txt"]
    assert out.stat().st_mode & 0o777 == 0o750


def test_a_working_directory_stays_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = tmp_path.stat().st_ino
    write(Path("."), "new")
    assert (texts(tmp_path), tmp_path.stat().st_ino) == (["new"] * 4, before)
    assert names(tmp_path) == ["model", "plot.png", "posterior.nc", "states.csv"]


def test_links_to_a_folder_stay_and_links_of_results_are_not_followed(tmp_path):
    (tmp_path / "true").mkdir()
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "true" / "states.csv").symlink_to("../precious")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "true" / "model").symlink_to("../elsewhere")
    (tmp_path / "results").symlink_to("true")
    write(tmp_path / "results", "new")
    assert (tmp_path / "results").is_symlink()
    assert texts(tmp_path / "true") == ["new"] * 4
    assert (tmp_path / "precious").read_text() == "kept"
    assert names(tmp_path / "elsewhere") == []


def test_a_folder_that_has_gone_is_made_again(tmp_path):
    out = tmp_path / "a" / "results"
    write(out, "old")
    shutil.rmtree(tmp_path / "a")
    write(out, "new")
    assert texts(out) == ["new"] * 4


def test_what_a_killed_run_left_goes_with_the_next_unless_it_is_at_work(tmp_path):
    out = with_others(tmp_path / "results")
    left = [folder / f".results.{name}{writing.ENDING}" for folder in (out, tmp_path) for name in ("dead", "busy")]
    for folder in left:
        (folder / "model").mkdir(parents=True)
        os.utime(folder, (0, 0))
    with writing.locked(left[3]):
        write(out, "new")
    assert [folder.exists() for folder in left] == [False, False, False, True]


@pytest.mark.parametrize("way", ["exchange", "in use"])
def test_a_call_that_fails_leaves_all_of_the_old_or_all_of_the_new(tmp_path, monkeypatch, way):
    out, n, failed = with_others(tmp_path / "results"), 0, True
    while failed:
        n += 1
        with monkeypatch.context() as patch:
            ways(out, patch, way)
            with at_call(n, fail, patch) as seen, suppress(ValueError):
                write(out, f"new {n}")
        failed = len(seen) >= n
        assert len(set(texts(out))) == 1 or (way == "in use" and seen[n - 1] == "replace")
        check_others(out)
    assert n > 20


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a process")
@pytest.mark.parametrize("way", ["exchange", "in use"])
def test_a_kill_at_any_call_leaves_all_of_the_old_or_all_of_the_new(tmp_path, monkeypatch, way):
    out, n, killed = with_others(tmp_path / "results"), 0, True
    while killed:
        n += 1
        child = os.fork()
        if child == 0:
            ways(out, monkeypatch, way)
            with at_call(n, lambda: os.kill(os.getpid(), signal.SIGKILL), monkeypatch):
                write(out, "new" if n % 2 else "old")
            os._exit(0)
        killed = os.waitpid(child, 0)[1] != 0
        there = set(texts(out))
        assert there <= {"old", "new"}  # each is whole
        assert len(there) == 1 or way == "in use"
        check_others(out)
    assert n > 20


# ---- a full disk ---------------------------------------------------------------------------------------------------


FIT = "fit", NILE, "-c", "volume", "--restarts", 1, "--max-steps", 3


@pytest.mark.slow
def test_a_full_disk_ends_a_fit_with_one_line_and_status_2(tmp_path):
    most = 20_000  # bytes of a file: enough for the model, not for the posterior
    write(tmp_path / "out", "old")
    command = [sys.executable, "-m", "samplehold", "fit", NILE, "-c", "volume", "--restarts", "1", "--max-steps", "3"]
    done = subprocess.run(
        [*command, "-f", "-o", "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("samplehold: --out: ")
    assert "File too large" in done.stderr
    assert texts(tmp_path / "out") == ["old"] * 4
    assert names(tmp_path) == ["out"]


def test_a_result_that_is_a_folder_stops_a_fit_at_once(tmp_path):
    (tmp_path / "states.csv").mkdir()
    assert "states.csv is in the way" in refused(*FIT, "-f", "-o", tmp_path)
    assert "--out: cannot make the folder" in refused(*FIT, "-o", NILE / "out")


def test_tables_and_figures_are_written_all_or_nothing(tmp_path, monkeypatch):
    table, figure = (
        pd.DataFrame({"x": [1.0]}),
        SwitchingSSM(Copy(1), Normal(1))
        .with_values(redraw_prob=0.1, state_probs=[1.0], loc=[[0.0]], scale=[[1.0]])
        .plot([1.0, 2.0]),
    )
    (tmp_path / "true.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("true.csv")
    write_table(table, tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "true.csv").read_text() == ",x\n0,1\n"
    write_figure(figure, tmp_path / "a.png")
    before = (tmp_path / "a.png").read_bytes()
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_table(table * 2, tmp_path / "link.csv")
    with pytest.raises(OSError, match="No space"):
        write_figure(figure, tmp_path / "a.png")
    assert (tmp_path / "true.csv").read_text() == ",x\n0,1\n"
    assert (tmp_path / "a.png").read_bytes() == before
    assert names(tmp_path) == ["a.png", "link.csv", "true.csv"]


def test_a_fit_is_exported_all_or_nothing(tmp_path, monkeypatch):
    model = SwitchingSSM(Copy(1), Normal(1)).with_values(redraw_prob=0.1, state_probs=[1.0], loc=[[0.0]], scale=[[1.0]])
    fit, place = model.fit([1.0, 2.0, 4.0], restarts=1, max_steps=2, progress=False), tmp_path / "fit.nc"
    fit.save_arviz(place, draws=2)
    xr.testing.assert_identical(az.from_netcdf(place)["smoothed"], fit.to_arviz(draws=2)["smoothed"])
    before = place.read_bytes()
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        fit.save_arviz(place, draws=3)
    assert place.read_bytes() == before
    assert names(tmp_path) == ["fit.nc"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_table(pd.DataFrame({"x": [1.0]}), tmp_path / "pipe")
    assert os.read(reader, 100) == b",x\n0,1\n"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


# ---- the posterior -------------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("index", [pd.RangeIndex(30), pd.date_range("2020", periods=30), [f"s{i}" for i in range(30)]])
def test_the_file_of_the_posterior_is_what_arviz_writes(tmp_path, index):
    x = pd.DataFrame({"y": np.sin(np.arange(30.0)), "ü": np.r_[np.nan, np.ones(28), 2.0]}, index=index)
    model = SwitchingSSM(Copy(2), Normal(2))
    values = {"redraw_prob": 0.1, "state_probs": [0.5, 0.5], "loc": [[0.0] * 2, [1.0] * 2], "scale": [[1.0] * 2] * 2}
    model = model.with_values(values)
    data = model.to_arviz(x, draws=3)
    (tmp_path / "ours.nc").write_bytes(netcdf(to_groups(model, x, draws=3)))
    data.to_netcdf(str(tmp_path / "theirs.nc"))
    ours, theirs = az.from_netcdf(tmp_path / "ours.nc"), az.from_netcdf(tmp_path / "theirs.nc")
    assert {k: str(v) for k, v in ours.attrs.items()} == {k: str(v) for k, v in theirs.attrs.items()}
    assert ours.groups() == theirs.groups()
    for name in ours.groups():
        xr.testing.assert_identical(ours[name], theirs[name])


# ---- an end by a signal --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_a_signal_ends_a_fit_with_the_best_so_far(tmp_path, monkeypatch, sent, status):
    calls, handler, report = [], signal.getsignal(signal.SIGTERM), Progress.__call__

    def told(self, step, objective):
        report(self, step, objective)
        calls.append(step)
        if len(calls) == 2:
            signal.raise_signal(sent)

    monkeypatch.setattr(Progress, "__call__", told)
    done = run("fit", NILE, "-c", "volume", "--tol", 0, "-o", tmp_path / "out", status=status)
    assert "interrupted, the best so far" in done.stdout
    assert names(tmp_path / "out") == ["model", "plot.png", "posterior.nc", "states.csv"]
    assert bool(torch.isfinite(SwitchingSSM.load(tmp_path / "out" / "model").loc).all())
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("there", [False, True])
def test_a_sampler_that_is_stopped_before_its_first_draw_leaves_nothing(tmp_path, monkeypatch, there):
    report = Progress.__call__

    def told(self, step, objective):
        report(self, step, objective)
        if self._title.startswith("NUTS"):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Progress, "__call__", told)
    if there:
        write(tmp_path / "out", "old")
    words = ("fit", NILE, "-c", "volume", "--restarts", 1, "--method", "nuts", "-f", "-o", tmp_path / "out")
    done = run(*words, status=143)
    assert "nuts was stopped before its first draw, so nothing was written" in done.stderr
    assert texts(tmp_path / "out") == ["old"] * 4 if there else names(tmp_path / "out") == []


def test_a_termination_after_the_fit_does_not_lose_it(tmp_path, monkeypatch):
    true = Fit.plot

    def plot(self, *arguments, **keywords):
        signal.raise_signal(signal.SIGTERM)
        return true(self, *arguments, **keywords)

    monkeypatch.setattr(Fit, "plot", plot)
    run(*FIT, "-o", tmp_path / "out", status=143)
    assert names(tmp_path / "out") == ["model", "plot.png", "posterior.nc", "states.csv"]


def test_a_termination_before_there_is_anything_leaves_what_was_there(tmp_path, monkeypatch):
    def begin(self, *arguments, **keywords):
        signal.raise_signal(signal.SIGTERM)

    write(tmp_path / "out", "old")
    monkeypatch.setattr(SwitchingSSM, "fit", begin)
    run(*FIT, "-f", "-o", tmp_path / "out", status=143)
    assert texts(tmp_path / "out") == ["old"] * 4
