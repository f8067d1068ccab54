"""What fits over files and reading show of their progress, and what a fit reports of its time."""

import pickle
import re

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import samplehold as sh
import torch
from oracles.files import in_file
from samplehold.switching import progress
from samplehold.switching.data.scratch import Scratch
from samplehold.switching.data.series import Series
from samplehold.switching.fitting import chunked
from samplehold.switching.fitting.report import Report

MODEL = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1))
LENGTHS = torch.tensor([7, 20, 13, 20, 1, 9])


def series() -> Series:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 20, 1, generator=generator) + 1.5 * (torch.arange(20) > 9)[:, None]
    return MODEL.read(x.double(), lengths=LENGTHS)


@pytest.fixture
def said(monkeypatch):
    """What a bar shows: the number of steps or rows, their total, and the texts beside it."""
    lines = []

    class Bar(progress.NotebookBar):
        def update(self, step: int, rate: str, objective: str) -> None:
            lines.append((step, self._total, rate, objective))

    monkeypatch.setattr(progress, "TerminalBar", Bar)
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    return lines


@pytest.mark.parametrize("kind", ["parquet", "feather", "csv", "array", "items"])
def test_reading_shows_rows_a_second_and_the_time_left(said, tmp_path, kind, monkeypatch):
    monkeypatch.setattr("samplehold.switching.data.arrow.ROWS", 10)
    table = pa.table({"id": torch.arange(6).repeat_interleave(5).numpy(), "x": torch.randn(30).numpy()})
    if kind == "parquet":
        for i in range(2):
            pq.write_table(table.slice(15 * i, 15), tmp_path / f"{i}.parquet")
    elif kind == "feather":
        pa.feather.write_feather(table, tmp_path / "all.feather")
    elif kind == "csv":
        table.to_pandas().to_csv(tmp_path / "all.csv", index=False)
    source = {"array": torch.randn(6, 5, 1).numpy(), "items": [torch.randn(5) for _ in range(6)]}.get(kind, tmp_path)
    sh.open_sequences(source, sequence=None if kind in ("array", "items") else "id")
    steps, totals, rates, _ = zip(*said, strict=True)
    assert steps[-1] == 30
    assert set(totals) == {None if kind == "items" else 30}
    words = r"[\d,]+ rows/s" + (r"" if kind == "items" else r", \d:\d\d:\d\d left")
    assert all(re.fullmatch(words, rate) for rate in rates)
    said.clear()
    sh.open_sequences(source, sequence=None if kind in ("array", "items") else "id", progress=False)
    assert said == []


def test_a_fit_over_files_shows_rows_a_second_and_the_time_left(said, monkeypatch):
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 2 * 2 * 40)
    monkeypatch.setattr("samplehold.switching.fitting.whole.SAMPLE", 20)
    MODEL.fit(in_file(series()), restarts=1, max_steps=12, tol=0.0)
    rates = [rate for _, _, rate, _ in said if rate]
    assert all(re.match(r"[\d,]+ rows/s, pass \d+:\d\d:\d\d", rate) for rate in rates)
    assert re.search(r", all <= \d:\d\d:\d\d$", rates[-1])
    assert said[-1][1] == 12
    assert "objective -" in said[-1][3]
    said.clear()
    MODEL.fit(series(), restarts=1, max_steps=12)
    assert said
    assert not any(rate for _, _, rate, _ in said)


def test_a_report_has_the_rows_of_all_passes(monkeypatch):
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 2 * 2 * 20)
    stored = MODEL.fit(in_file(series()), restarts=1, max_steps=4, progress=False, tol=0.0).report
    assert stored.steps == 4
    assert stored.rows >= 4 * 70
    assert stored.rows % 70 == 0
    assert stored.reading > 0
    assert stored.waiting == 0
    fit = MODEL.fit(series(), restarts=1, max_steps=4, progress=False)
    assert (fit.report.rows, fit.report.reading) == (6 * 20, 0)
    assert pickle.loads(pickle.dumps(fit)).report == fit.report
    later = fit.update(series())
    assert (later.report.rows, later.report.steps) == (6 * 20, later.steps)
    assert later.report != fit.report


def test_passes_through_minibatches_and_stretches_are_counted(monkeypatch):
    options = {"method": "vmp", "restarts": 1, "progress": False}
    by_batches = MODEL.fit(in_file(series()), batch_size=3, max_steps=1, **options).report
    assert by_batches.rows in (70 * n for n in range(1, 9))
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 2 * 2 * 7)
    monkeypatch.setattr(chunked, "LONG", 8)
    one = in_file(MODEL.read(torch.randn(1, 20, 1, generator=torch.Generator().manual_seed(1)).double()))
    assert MODEL.fit(one, max_steps=1, **options).report.rows in (20 * n for n in range(1, 9))


def test_a_report_without_a_fit_has_no_rows_a_second():
    assert str(Report()) == "0 steps in 0 s: computing 0 s, reading 0 s, waiting 0 s; 0 rows, 0 rows/s"


def test_the_next_part_is_fetched_while_one_is_in_use(monkeypatch):
    asked = []
    monkeypatch.setattr(Scratch, "fetch", lambda self, first, stop: asked.append((first, stop)))
    stored = in_file(series())
    parts = [int(part.n_sequences) for _, _, part in stored.turns(20)]
    assert parts == [1, 1, 1, 1, 2]
    assert asked == [(7, 27), (27, 40), (40, 60), (60, 70)]
    asked.clear()
    stored.fetch(torch.tensor([0, 1, 3, 5]))  # consecutive sequences together
    stored.fetch(torch.tensor([1, 2]), 15, 10)
    assert asked == [(0, 27), (40, 60), (61, 70), (22, 27)]
    asked.clear()
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 2 * 2 * 7)
    monkeypatch.setattr(chunked, "LONG", 8)
    one = in_file(MODEL.read(torch.randn(1, 20, 1).double()))
    MODEL.fit(one, restarts=1, max_steps=1, progress=False)
    assert {(13, 20)} < set(asked)  # the last stretch, which begins with the last step of the first, before that again


def test_rows_that_were_fetched_are_those_that_were_written():
    table = Scratch(torch.float64, (2,))
    rows = torch.randn(5000, 2, dtype=torch.float64)
    table.append(rows)
    table.fetch(0, 10)  # nothing is mapped yet
    assert torch.equal(table.rows(), rows)
    table.fetch(3000, 5000)
    table.fetch(7, 7)
    assert torch.equal(table.rows(), rows)
