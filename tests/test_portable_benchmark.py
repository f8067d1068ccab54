"""The benchmark of this machine: contenders do the same work, and its files say what was measured and what was not."""

import json
from dataclasses import replace

import numpy as np
import portable
import pytest
import torch
from bench_portable import app
from portable_cases import CASES, Missing, Size, copy_smoother, em, kalman_smoother, markov_smoother
from typer.testing import CliRunner

pytestmark = pytest.mark.cpu("it chooses its device")
CPU = torch.device("cpu")


def states(found: object) -> np.ndarray:
    """Smoothed probabilities, whichever library they are of."""
    if isinstance(found, tuple):  # of the plain form
        return found[1].numpy()
    if isinstance(found, torch.Tensor):
        return found.numpy()
    return np.stack(found) if isinstance(found, list) else found.state.double().numpy()  # type: ignore[attr-defined]


@pytest.mark.parametrize("case", [markov_smoother, copy_smoother])
def test_contenders_of_a_chain_smooth_the_same_posterior(case):
    found = case(Size(2, 30, 3), CPU)
    smoothed = {by: states(run()) for by, run in found.items() if not isinstance(run, Missing) and "dynamax" not in by}
    assert {"samplehold", next(by for by in found if "hmmlearn" in by)} <= set(smoothed)
    for by, posterior in smoothed.items():
        assert np.abs(posterior - smoothed["samplehold"]).max() < (1e-5 if "float32" in by else 1e-10), by


def test_every_case_runs_and_the_peers_of_the_cpu_are_told_from_those_of_a_gpu():
    for name, case in CASES.items():
        for by, run in case.contenders(Size(1, 30, 2), CPU).items():
            assert isinstance(run, Missing) or run() is not NotImplemented, (name, by)
    assert kalman_smoother(Size(1, 20, 2), torch.device("meta"))["statsmodels"] == Missing("runs on the CPU alone")
    run = em(Size(1, 200, 2), CPU)["samplehold"]()
    assert bool((run.elbo.diff(dim=0) > -1e-9).all())


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Size(2, 20, 2), Size(2, 40, 2), Size(4, 20, 2)
    for name, case in CASES.items():
        monkeypatch.setitem(CASES, name, replace(case, sizes=sizes, quick=2))
    monkeypatch.setattr(portable, "SECONDS", {True: 0.0, False: 0.0})


@pytest.mark.slow
def test_a_run_writes_its_rows_where_they_were_measured_and_a_figure_of_each_case(short, tmp_path):
    out = tmp_path / "bench"
    done = CliRunner().invoke(app, ["--only", "scan", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert {file.name for file in out.iterdir()} == {"bench.json", "bench.md", "scan.png"}
    found = json.loads((out / "bench.json").read_text())
    assert found["machine"]["versions"]["torch"] == torch.__version__
    assert found["machine"]["threads"] == torch.get_num_threads()
    rows = found["rows"]
    assert len({(r["work"], r["by"], r["device"], *r["size"].values()) for r in rows}) == len(rows) == 2 * 3 * 2
    for row in rows:
        measured = row["least_ms"] is not None
        assert measured == (row["note"] == "")
        assert not measured or 0 < row["least_ms"] <= row["median_ms"]
        assert measured or row["device"] == "cuda" or "installed" in row["note"]
    table = (out / "bench.md").read_text()
    assert table.count("\n| ") == len(rows) + 1
    assert f"torch {torch.__version__}" in table
    if not torch.cuda.is_available():
        assert all(row["least_ms"] is None for row in rows if row["device"] == "cuda")
        assert "not measured" in table
        assert "there is no such device" in done.output


@pytest.mark.slow
def test_a_quick_run_of_one_device_writes_nothing_unless_it_is_told_to(short, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["--quick", "--only", "scan,copy", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    assert done.output.count("copying the same bytes") == done.output.count("hmmlearn, dense") == 2
    assert "cuda" not in done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--only", "markow"], "--only: got 'markow', expected some of markov, copy"),
        (["--only", ","], "--only: got no name"),
        (["--out", "there"], "add --force"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line_before_anything_is_measured(given, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "bench.json").write_text("{}")
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 2
    assert said in done.output
    assert done.output.count("\n") == 1
