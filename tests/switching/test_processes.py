"""Fits whose data are shared by real processes, against fits in one process."""

import os
import re
from typing import Any

import pytest
import samplehold as sh
import torch
from oracles.files import in_file
from oracles.processes import in_processes
from samplehold.inference.numerics.ranks import Ranks
from samplehold.switching.fitting import whole
from samplehold.switching.fitting.checkpoint import Checkpoint
from samplehold.switching.fitting.whole import Whole
from samplehold.switching.resuming import sum_of_digests

MODELS = {
    "markov": sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)),
    "copy": sh.SwitchingSSM(sh.Copy(2), sh.MultivariateNormal(2)),
}
RUNS: list[tuple[str, dict[str, Any]]] = [
    ("markov", {}),
    ("markov", {"prior": None}),
    ("copy", {"method": "vmp"}),
    ("copy", {"start": {"loc": [[0.0, 1.0], [4.0, -2.0]]}, "restarts": 1}),
]


def data() -> torch.Tensor:
    """Twelve sequences."""
    truth = MODELS["markov"].with_values(
        initial_probs=[0.5, 0.5],
        transition_probs=[[0.9, 0.1], [0.2, 0.8]],
        loc=[[0.0, 1.0], [4.0, -2.0]],
        scale=[[1.0, 0.5], [0.7, 1.0]],
    )
    x = truth.simulate(30, (12,), seed=0).x.double()
    x[2, 5] = x[7, 3, 0] = torch.nan
    return x


def fits(rank: int, cuts: list[int], sample: int, stored: bool, runs: list[Any]) -> list[Any]:
    """The traces and values of fits of the sequences from `cuts[rank]` up to `cuts[rank + 1]`."""
    whole.SAMPLE = sample
    part, results = data()[cuts[rank] : cuts[rank + 1]], []
    lengths = torch.arange(19, 31)[cuts[rank] : cuts[rank + 1]]
    for name, options in runs:
        x = MODELS[name].read(part, lengths=lengths)
        x = in_file(x) if stored else x
        fit = MODELS[name].fit(x, progress=False, **({"restarts": 2} | options))
        results.append((fit.objective, fit.steps, dict(fit.model.values), fit.empty_states.tolist()))
    return results


def check_same(found: list[Any], expected: list[Any]) -> None:
    for (trace, steps, values, empty), (other, other_steps, other_values, other_empty) in zip(
        found, expected, strict=True
    ):
        assert steps == other_steps
        assert empty == other_empty
        torch.testing.assert_close(trace, other, rtol=1e-10, atol=1e-10)
        for name, table in values.items():
            torch.testing.assert_close(table, other_values[name], rtol=1e-9, atol=1e-10)


@pytest.fixture
def group_of_one(tmp_path, monkeypatch):
    """This process alone in a group."""
    monkeypatch.setattr(whole, "SAMPLE", whole.SAMPLE)  # which `fits` sets
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("sample", [100, 2**16])
@pytest.mark.usefixtures("group_of_one")
def test_a_group_of_one_process_fits_what_this_process_fits_from_files(sample):
    found = fits(0, [0, 12], sample, False, RUNS[:1] + RUNS[2:3])
    torch.distributed.destroy_process_group()
    expected = fits(0, [0, 12], sample, True, RUNS[:1] + RUNS[2:3])
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    check_same(found, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("group_of_one")
def test_two_processes_fit_what_one_fits():
    expected = fits(0, [0, 12], 100, False, RUNS)
    here, there = in_processes(2, fits, [0, 5, 12], 100, False, RUNS)
    check_same(here, expected)
    check_same(there, here)


def shared(rank: int, cuts: list[int]) -> list[Any]:
    """What a fit of shared data says of itself, and what it refuses, in the group and after it."""
    x, said = data()[cuts[rank] : cuts[rank + 1]], []
    fits = [MODELS["markov"].fit(x, method, restarts=1, progress=False) for method in ("em", "vmp")]
    torch.distributed.destroy_process_group()
    for refused in (lambda: fits[0].aic, lambda: fits[0].update(x)):
        try:
            refused()
        except ValueError as error:
            said.append(str(error))
    text = " ".join(str(fits[0].summary()).split())
    return [*said, text, str(fits[0].diagnose()), fits[1].update(x).updates]


@pytest.mark.slow
def test_a_fit_of_shared_data_gives_no_number_of_one_share_as_that_of_all():
    for aic, update, summary, diagnosis, updates in in_processes(2, shared, [0, 5, 12]):
        assert aic.startswith("aic: several processes shared the data of this fit, but aic needs")
        assert update.startswith('update: got a fit by "em" whose data several processes shared')
        assert "Several processes shared the data." in summary
        assert "no standard errors, for which all data are needed" in summary
        assert "those of this process of several" in diagnosis
        assert updates == 1


@pytest.mark.slow
@pytest.mark.usefixtures("group_of_one")
def test_any_share_of_sequences_in_files_gives_the_same():
    expected = fits(0, [0, 12], 2**16, True, RUNS[:1])
    for found in in_processes(3, fits, [0, 3, 3, 12], 2**16, True, RUNS[:1]):
        check_same(found, expected)


def failing(rank: int) -> list[Any]:
    x, said = data()[6 * rank : 6 * rank + 6], []

    def fails(model: sh.SwitchingSSM, x: Any, **options: Any) -> None:
        try:
            model.fit(x, progress=False, **options)
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")

    fails(MODELS["markov"], x if rank == 0 else torch.full_like(x, torch.inf))
    fails(MODELS["markov" if rank == 0 else "copy"], x)
    fails(MODELS["markov"], x, tol=1e-6 if rank == 0 else 1e-3)
    fails(MODELS["markov"], x, batch_size=2, method="vmp")
    fails(sh.LinearSSM(2, 2), x)
    fails(MODELS["markov"], x, group="all")
    original = Whole.part

    def broken(self: Any, members: Any) -> Any:
        if rank == 1:
            raise OSError("the disk is gone")
        return original(self, members)

    Whole.part = broken  # type: ignore[method-assign]
    fails(MODELS["markov"], x)
    Whole.part = original  # type: ignore[method-assign]
    if rank == 1:
        os._exit(9)
    fails(MODELS["markov"], x)
    return said


@pytest.mark.slow
def test_an_error_of_one_process_ends_all_with_its_place():
    said, nothing = in_processes(2, failing)
    assert nothing is None  # this process was ended
    for text, words in zip(
        said,
        [
            "RankError: x: process 1 of 2 has failed: ValueError: x: got an infinite value at .*reading.py, line",
            "ValueError: model: process 1 has SwitchingSSM.Copy.* but process 0 has SwitchingSSM.Markov",
            "ValueError: tol: process 1 has 0.001, but process 0 has 1e-06",
            "ValueError: batch_size: got 2, but 2 processes share the data",
            "ValueError: group: LinearSSM is fitted by one process",
            "TypeError: group: got str, expected a group of torch.distributed",
            "RankError: x: process 1 of 2 has failed: OSError: the disk is gone .*test_processes.py, line",
            "RankError: .*group: process 0 of 2 lost the others",
        ],
        strict=True,
    ):
        assert re.search(words, text), text


def test_a_process_alone_computes_what_it_has():
    ranks = Ranks.of(None)
    assert ranks.alone
    assert ranks.total(1.0, 2.0) == [1.0, 2.0]
    assert ranks.gathered(lambda: "here") == ["here"]
    with pytest.raises(ZeroDivisionError):
        ranks.together(lambda: 1 / 0)
    with pytest.raises(TypeError, match=r"group: got int, expected a group of torch.distributed"):
        Ranks.of(3)


class Stopped(Exception):
    """The process has died."""


def checkpointed(rank: int, cuts: list[int], path: str, writes: int) -> Any:
    """A fit that goes on from a checkpoint, and dies after so many writes of it."""
    whole.SAMPLE, true, count = 100, Checkpoint.note, 0

    def note(self: Checkpoint, state: Any) -> None:
        nonlocal count
        true(self, state)
        count += 1
        if count == writes:
            raise Stopped

    Checkpoint.note = note  # type: ignore[method-assign]
    options = {"restarts": 2, "max_steps": 20, "tol": 0.0, "progress": False, "checkpoint": path, "every": 0}
    try:
        fit = MODELS["markov"].fit(data()[cuts[rank] : cuts[rank + 1]], **options)
        return fit.objective, fit.steps, dict(fit.model.values), fit.empty_states.tolist()
    except Stopped:
        return count
    finally:
        Checkpoint.note = true  # type: ignore[method-assign]


@pytest.mark.usefixtures("group_of_one")
def test_a_checkpoint_of_shared_data_goes_on(tmp_path):
    path, cuts = str(tmp_path / "fit"), [0, 12]
    expected = checkpointed(0, cuts, str(tmp_path / "other"), 0)
    assert checkpointed(0, cuts, path, 4) == 4
    found = checkpointed(0, cuts, path, 0)
    assert torch.equal(found[0], expected[0])
    check_same([found], [expected])


@pytest.mark.slow
def test_another_number_of_processes_goes_on_from_a_checkpoint(tmp_path):
    path = str(tmp_path / "fit")
    assert in_processes(2, checkpointed, [0, 5, 12], path, 5) == [5, 5]
    begun = (tmp_path / "fit").read_bytes()
    (expected,) = in_processes(1, checkpointed, [0, 12], str(tmp_path / "other"), 0)
    (found,) = in_processes(1, checkpointed, [0, 12], path, 0)
    check_same([found], [expected])
    (tmp_path / "fit").write_bytes(begun)
    for found in in_processes(3, checkpointed, [0, 2, 4, 12], path, 0):
        check_same([found], [expected])


def test_sequences_have_the_same_sum_of_digests_in_any_share():
    x = data()
    series = MODELS["markov"].read(x)
    total = sum_of_digests(series, Ranks())
    assert total == sum_of_digests(in_file(series), Ranks())
    assert total != sum_of_digests(MODELS["markov"].read(x.flip(0)), Ranks())
    x[3, 2, 1] += 1e-9
    assert total != sum_of_digests(MODELS["markov"].read(x), Ranks())
