"""A series on disk is read in parts, and has the numbers and the errors of the same series in memory."""

import copy
import pickle
import re
import tempfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from samplehold.switching.data.series import Series
from torch import Tensor

MODEL = sh.SwitchingSSM(sh.Copy(2), sh.Normal(2))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(Series.turns, "__defaults__", (6,))
    monkeypatch.setattr("samplehold.switching.data.scratch.BLOCK", 5)
    monkeypatch.setattr("samplehold.switching.data.lags.BLOCK", 5)
    monkeypatch.setattr("samplehold.switching.data.series.TURN", 5)


def frame_of(lengths: list[int], seed: int = 0) -> pd.DataFrame:
    draw, n = np.random.default_rng(seed), sum(lengths)
    frame = pd.DataFrame(draw.normal(size=(n, 2)), columns=["u", "v"]).mask(draw.random((n, 2)) < 0.3)
    return frame.assign(who=np.repeat(np.arange(len(lengths)), lengths), gap=draw.integers(1, 4, n))


def both(frame: pd.DataFrame, columns=("u", "v"), **named) -> tuple[Series, Series]:
    """A series on disk, and the same in memory."""
    return (read(frame, "who", columns=list(columns), **named) for read in (sh.open_sequences, sh.read_panel))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda series: pickle.loads(pickle.dumps(series))])
def test_a_copy_and_a_pickle_have_files_of_their_own(again):
    series, _ = both(frame_of([7, 2, 12]), dt="gap")
    other = again(series)
    assert other.on_disk
    assert torch.equal(other.rows.nan_to_num(), series.rows.nan_to_num())
    assert torch.equal(other.lengths, series.lengths)
    other.rows[0] = 7.0
    assert not torch.equal(other.rows.nan_to_num(), series.rows.nan_to_num())
    fit = sh.SwitchingSSM(sh.Copy(1), sh.Normal(2)).fit(series, restarts=1, max_steps=2, progress=False)
    assert torch.equal(again(fit).objective, fit.objective)


@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=6), steps=st.integers(2, 12))
@examples(30)
def test_turns_take_every_step(lengths, steps):
    series, _ = both(frame_of(lengths))
    rows, seen = series.rows, torch.zeros(sum(lengths), dtype=torch.int64)
    starts = np.cumsum([0, *lengths])
    for first, step, part in series.turns(steps):
        assert part.n_sequences * part.n_steps <= steps
        assert not part.on_disk
        assert part.features == ("u", "v")
        for i, n in enumerate((part.last + 1).tolist()):
            begin = int(starts[first + i]) + step
            torch.testing.assert_close(
                part.observations[i, :n], rows[begin : begin + n], rtol=0, atol=0, equal_nan=True
            )
            seen[begin : begin + n] += 1
    once = seen == 1  # or twice, where a stretch begins
    assert bool((once | (seen == 2)).all())
    assert bool(once.all()) or max(lengths) > steps


def test_counts_and_pages_are_those_in_memory():
    series, expected = both(frame_of([3, 9, 1, 20]), dt="gap")
    assert series.n_observed == expected.n_observed
    assert series.n_seen.tolist() == expected.n_seen.tolist()
    assert series.at_once == expected.at_once is False
    assert series._repr_html_() == expected._repr_html_()
    assert "on_disk" not in repr(series)
    zero = frame_of([3, 9])
    zero.loc[[0, 3], "gap"] = 0  # before first steps
    assert [one.at_once for one in both(zero, dt="gap")] == [False, False]
    zero.loc[4, "gap"] = 0
    assert [one.at_once for one in both(zero, dt="gap")] == [True, True]
    for i in (1, -1):
        one, theirs = series.one(i), expected.one(i)
        assert not one.on_disk
        assert one.batch_shape == ()
        torch.testing.assert_close(one.observations, theirs.observations, rtol=0, atol=0, equal_nan=True)
        assert one.gaps.tolist() == theirs.gaps.tolist()
        assert one.index_of().equals(theirs.index_of())
        assert one.sequences == theirs.sequences
    part = series.part(torch.tensor([3, 0]))
    torch.testing.assert_close(part.x, expected.part(torch.tensor([3, 0])).x, rtol=0, atol=0, equal_nan=True)
    assert series.labels.tolist() == [(str(i), step) for i, n in enumerate([3, 9, 1, 20]) for step in range(n)]


def test_a_model_reads_a_series_on_disk():
    series, expected = both(frame_of([3, 9, 1, 20]), dt="gap")
    read = MODEL.read(series)
    assert read.on_disk
    assert MODEL.read(read) is read
    assert read.n_observed == MODEL.read(expected).n_observed


@pytest.mark.parametrize("order", [1, 2, 7])
def test_lags_are_those_in_memory(order):
    model = sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(order, 2))
    series, expected = (model.read(one) for one in both(frame_of([3, 9, 1, 20])))
    assert series.past.scratch is not None
    torch.testing.assert_close(series.past.rows, rows(expected, "past"), rtol=0, atol=0, equal_nan=True)
    longer = sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(order + 1, 2))
    again, theirs = (longer.read(replace(one, checked=None)) for one in (series, expected))
    torch.testing.assert_close(again.past.rows, rows(theirs, "past"), rtol=0, atol=0, equal_nan=True)


def rows(series: Series, name: str) -> Tensor:
    table = getattr(series, name)
    return table.rows if series.packed else table[series.inside]


PLAIN = sh.SwitchingSSM(sh.Copy(2), sh.Normal(2))
COUNTS = sh.SwitchingSSM(sh.Copy(2), sh.Poisson(2))
DRIVEN = sh.SwitchingSSM(sh.Copy(2, inputs=["w"]), sh.Normal(2))
RIGHT = sh.SwitchingSSM(sh.Markov.left_right(3), sh.Normal(2))


@pytest.mark.parametrize(
    ("model", "change", "named", "message"),
    [
        (COUNTS, {"v": (10, 0.5)}, {}, "sequence 1, step 7, .*v"),
        (COUNTS, {"v": (30, 0.5)}, {}, "sequence 3, step 17, .*v"),
        (PLAIN, {"gap": (30, -1)}, {"dt": "gap"}, "dt: got gaps that are negative"),
        (PLAIN, {"state": (30, 2)}, {"states": "state"}, "sequence 3, step 17"),
        (DRIVEN, {"w": (30, np.nan)}, {"inputs": "w"}, "sequence 3, step 17"),
        (RIGHT, {"state": (30, 0)}, {"states": "state"}, "at step 17 of sequence 3"),
        (RIGHT, {"state": (13, 2)}, {"states": "state"}, "at step 1 of sequence 3"),
    ],
)
def test_an_error_names_the_sequence_and_the_step_among_all(model, change, named, message):
    frame = frame_of([3, 9, 1, 20]).assign(state=1.0, w=0.0)
    frame[["u", "v"]] = 1.0
    frame.loc[[0, 3, 12, 13], "state"] = 0.0
    model.read(next(iter(both(frame, **named))))
    for column, (row, value) in change.items():
        frame[column] = frame[column].astype(float)
        frame.loc[row, column] = value
    for series in both(frame, **named):
        with pytest.raises(ValueError, match=message):
            model.read(series)


def test_a_turn_has_two_steps():
    with pytest.raises(ValueError, match=r"^steps: got 1"):
        next(sh.open_sequences(np.zeros(3)).turns(1))


def test_an_empty_part_of_the_data_has_no_turns():
    empty = sh.open_sequences([torch.ones(3, 2)])
    empty = replace(
        empty, x=replace(empty.x, rows=empty.x.rows[:0], lengths=empty.lengths[:0]), lengths=empty.lengths[:0]
    )
    assert list(empty.turns()) == []
    assert empty.n_seen.tolist() == []
    assert MODEL.read(empty).n_sequences == 0


def test_a_folder_of_temporary_files_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    with pytest.raises(ValueError, match=r"TMPDIR: there is no folder .*absent; make it, or set TMPDIR to another one"):
        sh.open_sequences([np.zeros((3, 2)), np.ones((4, 2))], progress=False)


@pytest.mark.parametrize("fault", ["write", "map"])
def test_a_fault_of_a_temporary_file_names_its_folder(monkeypatch, fault):
    def broken(*_, **__):
        raise OSError(28, "No space left on device")

    class Full:
        def __getattr__(self, name):
            return broken

    if fault == "write":
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    else:
        monkeypatch.setattr("samplehold.switching.data.scratch.mmap.mmap", broken)
    folder = re.escape(tempfile.gettempdir())
    with pytest.raises(
        OSError, match=rf"No space left on device, in the folder of temporary files.*TMPDIR.*'{folder}'"
    ):
        sh.open_sequences([np.zeros((3, 2)), np.ones((4, 2))], progress=False)
