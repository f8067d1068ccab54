"""Fits whose data are shared by real processes, against fits in one process."""

import errno
import os
import pickle
import re
import signal
from functools import partial
from typing import Any

import pandas as pd
import pytest
import samplehold as sh
import torch
from examples import slow
from oracles.files import in_file
from oracles.processes import in_processes
from samplehold.inference.numerics.deferred import deferred, refuse_if
from samplehold.inference.numerics.interrupts import interrupt_together, interruptible, may_interrupt
from samplehold.inference.numerics.ranks import Ranks
from samplehold.switching.data.writing import write_output
from samplehold.switching.fitting import EM, Checkpoint, Whole, checkpoint, sample_of, whole
from samplehold.switching.fitting.starts import first_of
from samplehold.switching.resuming import sum_of_digests

MODELS = {
    "markov": sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)),
    "copy": sh.SwitchingSSM(sh.Copy(2), sh.MultivariateNormal(2)),
    "student": sh.SwitchingSSM(sh.Markov(2), sh.StudentT(2)),
    "factors": sh.SwitchingSSM(sh.Markov(2), sh.FactorAnalysis(2, 1)),
}
RUNS: list[tuple[str, dict[str, Any]]] = [
    ("markov", {}),
    ("markov", {"prior": None}),
    ("copy", {"method": "vmp"}),
    ("copy", {"start": {"loc": [[0.0, 1.0], [4.0, -2.0]]}, "restarts": 1}),
    ("markov", {"method": "svi", "restarts": 1, "max_steps": 3}),
    ("student", {"method": "svi", "restarts": 1, "max_steps": 5}),
    ("student", {"restarts": 1, "max_steps": 5}),
    ("factors", {"restarts": 1, "max_steps": 5}),
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


@pytest.mark.parametrize("sample", [100, slow(2**16)])
@pytest.mark.usefixtures("group_of_one")
def test_a_group_of_one_process_fits_what_this_process_fits_from_files(sample):
    runs = [RUNS[0], RUNS[2], RUNS[4]]
    found = fits(0, [0, 12], sample, False, runs)
    torch.distributed.destroy_process_group()
    expected = fits(0, [0, 12], sample, True, runs)
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
    runs = [RUNS[0], RUNS[4], RUNS[6]]
    expected = fits(0, [0, 12], 2**16, True, runs)
    for found in in_processes(3, fits, [0, 5, 5, 12], 2**16, True, runs):
        check_same(found, expected)


QUICK: dict[str, Any] = {"restarts": 1, "max_steps": 20, "tol": 0.0}


def fill_after(writes: int) -> Any:
    """A `write_output` that finds the disk full after so many writes."""
    count = []

    def write(*arguments: Any) -> None:
        count.append(0)
        if len(count) > writes:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_output(*arguments)

    return write


@pytest.mark.usefixtures("group_of_one")
def test_a_checkpoint_on_a_full_disk_ends_a_shared_fit(monkeypatch, tmp_path):
    monkeypatch.setattr(checkpoint, "write_output", fill_after(2))
    with pytest.raises(OSError, match=r"^checkpoint: .* cannot be written \(No space left on device\)"):
        MODELS["markov"].fit(data(), progress=False, checkpoint=tmp_path / "fit", every=0, **QUICK)


@pytest.mark.usefixtures("group_of_one")
def test_a_seed_that_is_drawn_is_that_of_the_first_process(tmp_path):
    options = {"method": "svi", "progress": False, "seed": None, "restarts": 1, "max_steps": 2}
    torch.manual_seed(4)
    first, again = (MODELS["markov"].fit(data(), **options).objective for _ in range(2))
    assert not torch.equal(first, again)
    torch.manual_seed(4)
    kept = MODELS["markov"].fit(data(), **options, checkpoint=tmp_path / "fit").objective
    assert torch.equal(kept, first)


def failing(rank: int, path: str) -> list[Any]:
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
    fails(MODELS["markov"], x, group="all")
    original = Whole.part

    def broken(self: Any, members: Any) -> Any:
        if rank == 1:
            raise OSError("the disk is gone")
        return original(self, members)

    Whole.part = broken  # type: ignore[method-assign]
    fails(MODELS["markov"], x)
    Whole.part = original  # type: ignore[method-assign]
    for method in ("em", "svi"):
        checkpoint.write_output = fill_after(3)
        fails(MODELS["markov"], x, method=method, checkpoint=path + method, every=0, **QUICK)
    if rank == 1:
        os._exit(9)
    fails(MODELS["markov"], x)
    return said


@pytest.mark.slow
def test_an_error_of_one_process_ends_all_with_its_place(tmp_path):
    said, nothing = in_processes(2, failing, str(tmp_path / "fit"))
    assert nothing is None  # this process was ended
    for text, words in zip(
        said,
        [
            "RankValueError: x: process 1 of 2 has failed: ValueError: x: got an infinite value at .*reading.py, line",
            "ValueError: model: process 1 has SwitchingSSM.Copy.* but process 0 has SwitchingSSM.Markov",
            "ValueError: tol: process 1 has 0.001, but process 0 has 1e-06",
            "ValueError: batch_size: got 2, but 2 processes share the data",
            "TypeError: group: got str, expected a group of torch.distributed",
            "RankError: x: process 1 of 2 has failed: OSError: the disk is gone .*test_processes.py, line",
            "OSError: checkpoint: .* cannot be written",
            "OSError: checkpoint: .* cannot be written",
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


BY_EM: dict[str, Any] = {"restarts": 2, "max_steps": 20, "tol": 0.0}
SVI: dict[str, Any] = {"method": "svi", "restarts": 1, "max_steps": 6}


def checkpointed(rank: int, cuts: list[int], path: str, writes: int, chosen: dict[str, Any]) -> Any:
    """A fit that goes on from a checkpoint, and dies after so many states of it, those of the start excluded."""
    whole.SAMPLE, true, count = 100, Checkpoint.note, 0

    def note(self: Checkpoint, state: Any) -> None:
        nonlocal count
        true(self, state)
        count += chosen == BY_EM or self.loops[-1].name == "svi"
        if count == writes:
            raise Stopped

    Checkpoint.note = note  # type: ignore[method-assign]
    options = chosen | {"progress": False, "checkpoint": path, "every": 0}
    try:
        fit = MODELS["markov"].fit(data()[cuts[rank] : cuts[rank + 1]], **options)
        return fit.objective, fit.steps, dict(fit.model.values), fit.empty_states.tolist()
    except Stopped:
        return count
    finally:
        Checkpoint.note = true  # type: ignore[method-assign]


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("chosen", [BY_EM, SVI])
def test_a_checkpoint_of_shared_data_goes_on(tmp_path, chosen):
    path, cuts = str(tmp_path / "fit"), [0, 12]
    expected = checkpointed(0, cuts, str(tmp_path / "other"), 0, chosen)
    assert checkpointed(0, cuts, path, 4, chosen) == 4
    found = checkpointed(0, cuts, path, 0, chosen)
    assert torch.equal(found[0], expected[0])
    check_same([found], [expected])


@pytest.mark.slow
@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("chosen", [BY_EM, SVI])
def test_another_number_of_processes_goes_on_from_a_checkpoint(tmp_path, chosen):
    path = str(tmp_path / "fit")
    assert in_processes(2, checkpointed, [0, 5, 12], path, 5, chosen) == [5, 5]
    begun = (tmp_path / "fit").read_bytes()
    expected = checkpointed(0, [0, 12], str(tmp_path / "other"), 0, chosen)
    check_same([checkpointed(0, [0, 12], path, 0, chosen)], [expected])
    (tmp_path / "fit").write_bytes(begun)
    for found in in_processes(3, checkpointed, [0, 2, 4, 12], path, 0, chosen):
        check_same([found], [expected])


def test_sequences_have_the_same_sum_of_digests_in_any_share():
    x = data()
    series = MODELS["markov"].read(x)
    total = sum_of_digests(series, Ranks())
    assert total == sum_of_digests(in_file(series), Ranks())
    assert total != sum_of_digests(MODELS["markov"].read(x.flip(0)), Ranks())
    x[3, 2, 1] += 1e-9
    assert total != sum_of_digests(MODELS["markov"].read(x), Ranks())


def differing(rank: int, path: str) -> list[str]:
    """The errors of arguments that differ between processes, and of states that are impossible in one of them; then
    the ends of fits whose seeds each process draws."""
    x, model, said = data()[6 * rank : 6 * rank + 6], MODELS["markov"], []
    states = torch.full((6, 30), -1)
    states[:, 0] = 0
    if rank:
        states[0, 10:12] = torch.tensor([1, 0])
    whole.SAMPLE = 100
    for x_and_states, options in [
        (x, {"start": {"loc": [[0.0, 1.0], [4.0 + rank, -2.0]]}}),
        (x, {"seed": rank}),
        (x, {"method": ["em", "svi"][rank]}),
        (x, {"checkpoint": [None, "here"][rank]}),
        (model.read(x, states=states), {"fixed": {"transition_probs": [[0.9, 0.1], [0.0, 1.0]]}}),
    ]:
        try:
            model.fit(x_and_states, progress=False, restarts=2, **options)
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    torch.manual_seed(rank)
    for options in ({}, {"checkpoint": path}):
        fit = model.fit(x, seed=None, progress=False, **QUICK, **options)
        said.append(str(fit.objective.tolist()))
    return said


@pytest.mark.slow
def test_what_differs_between_processes_is_told_by_all(tmp_path):
    here, there = in_processes(2, differing, str(tmp_path / "fit"))
    assert here[:4] + here[5:] == there[:4] + there[5:]
    for text, words in zip(
        [*here[:5], there[4]],
        [
            r"start: process 1 has \{'loc': \[\[0.0, 1.0\], \[5.0, -2.0\]\]\}, but process 0 has",
            "seed: process 1 has 1, but process 0 has 0",
            "method: process 1 has 'svi', but process 0 has 'em'",
            "checkpoint: process 1 has 'a path', but process 0 has None",
            "RankValueError: x: process 1 of 2 has failed: ValueError: states: got 0 at step 11 of sequence 0",
            "ValueError: states: got 0 at step 11 of sequence 0, but no possible path leads there",
        ],
        strict=True,
    ):
        assert re.search(words, text), text


def interrupted(rank: int, method: str, call: int) -> tuple[int, bool]:
    """The number of steps of a fit during which Ctrl-C reaches one process after so many sums."""
    if rank == 1:
        original, calls = Ranks.summed, []

        def summed(self: Ranks, *arguments: Any) -> Any:
            found = original(self, *arguments)
            calls.append(0)
            if len(calls) == call:
                signal.raise_signal(signal.SIGINT)
            return found

        Ranks.summed = summed  # type: ignore[method-assign]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        fit = MODELS["markov"].fit(data()[6 * rank : 6 * rank + 6], method, progress=False, restarts=2, tol=0.0)
    except KeyboardInterrupt:
        return 0, True
    return fit.steps, fit.interrupted


@pytest.mark.slow
@pytest.mark.parametrize(("method", "call"), [("em", 8), ("svi", 8), ("svi", 1)])
def test_an_interrupt_of_one_process_ends_all_at_one_step(method, call):
    here, there = in_processes(2, interrupted, method, call)
    assert here == there
    assert here[1]
    assert (here[0] > 0) == (call > 1)
    assert here[0] < 20


@pytest.mark.usefixtures("group_of_one", "keys")
def test_an_interrupt_waits_for_the_next_sum_of_processes():
    ranks, zero, steps = Ranks.of(None), [torch.zeros(1)], []

    @interruptible()
    def loop() -> None:
        interrupt_together()
        with may_interrupt():
            while len(steps) < 10:
                steps.append("begun")
                ranks.summed(lambda: zero, zero)
                signal.raise_signal(signal.SIGINT)
                steps.append("ended")

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert steps == ["begun", "ended", "begun"]


@pytest.mark.usefixtures("group_of_one")
def test_a_check_that_waits_fails_before_the_sum():
    def compute() -> list[torch.Tensor]:
        refuse_if(torch.tensor(True), partial(int, "no number"))
        return [torch.ones(1)]

    with deferred() as checks:
        with pytest.raises(ValueError, match="no number"):
            Ranks.of(None).summed(compute, [torch.zeros(1)])
        assert not checks.pending


@pytest.mark.usefixtures("group_of_one")
def test_a_sample_is_sent_without_the_rest_of_the_data():
    there = Whole.of(MODELS["markov"].read(torch.zeros(1000, 30, 2)), Ranks.of(None))
    assert len(pickle.dumps(there._tables(torch.tensor([3]), alone=False))) < 20_000


@pytest.mark.parametrize("fixed", [{"transition_probs": [[0.9, 0.1], [0.2, 0.8]]}, {"initial_probs": [0.5, 0.5]}])
def test_known_parameters_of_the_dynamics_stay_in_files(fixed):
    x, model = MODELS["markov"].read(data()), MODELS["markov"]
    expected, found = (
        model.fit(series, progress=False, restarts=1, max_steps=40, fixed=fixed) for series in (x, in_file(x))
    )
    torch.testing.assert_close(found.objective[-1], expected.objective[-1], rtol=0, atol=1e-3)
    for name, table in fixed.items():
        assert found.model.values[name].tolist() == table


def test_a_sample_is_no_short_sequence_before_a_long_one():
    lengths = torch.tensor([1, 60, 60])
    assert first_of(torch.tensor([0, 2, 1]), lengths[[0, 2, 1]], 100).tolist() == [2]
    assert first_of(torch.tensor([2, 0, 1]), lengths[[2, 0, 1]], 130).tolist() == [0, 2]


@pytest.mark.parametrize("stored", [False, True])
def test_a_sample_has_sequences_with_known_states(stored):
    states = torch.full((12, 30), -1)
    states[[4, 9], 3] = 1
    series = MODELS["markov"].read(data(), states=states)
    series = in_file(series) if stored else series
    assert series.knows_states.nonzero().flatten().tolist() == [4, 9]
    assert (sample_of(series, 0, 70).states[:, 3] == 1).all()


def chosen(rank: int, cuts: list[int], stored: bool, criterion: str) -> Any:
    """The table of a choice between models of shared data, and the values of the best."""
    x = MODELS["markov"].read(
        data()[cuts[rank] : cuts[rank + 1]], lengths=torch.arange(19, 31)[cuts[rank] : cuts[rank + 1]]
    )
    x = in_file(x) if stored else x
    found = sh.select(states, x, [1, 2], criterion, folds=3, restarts=2, max_steps=40)
    return found.table, dict(found.fit.model.values)


def states(k: int) -> sh.SwitchingSSM:
    return sh.SwitchingSSM(sh.Markov(k), sh.Normal(2))


@pytest.mark.slow
@pytest.mark.parametrize("criterion", ["bic", "heldout"])
@pytest.mark.usefixtures("group_of_one")
def test_a_choice_of_one_process_in_a_group_is_that_from_files(criterion):
    in_group, values = chosen(0, [0, 12], False, criterion)
    torch.distributed.destroy_process_group()
    expected, others = chosen(0, [0, 12], True, criterion)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    pd.testing.assert_frame_equal(in_group, expected, rtol=1e-10)
    torch.testing.assert_close(values, others, rtol=1e-9, atol=1e-10)
    assert expected[criterion].argmax() == (1 if criterion == "heldout" else 0)


def chosen_among(rank: int, cuts: list[int]) -> list[Any]:
    found: list[Any] = [chosen(rank, cuts, rank == 0, criterion) for criterion in ("icl", "heldout")]
    x = data()[cuts[rank] : cuts[rank + 1]]
    by_function = sh.select(lambda make: make(), x, [partial(states, 1)], restarts=1, max_steps=5)
    found.append(by_function.table.bic.tolist())
    one = x[: 1 - rank]  # the first process has one sequence, the other none
    for candidates, y, options in (
        ([1, 2][: 1 + rank], x, {}),
        ([1], x, {"folds": 2 + rank, "criterion": "heldout"}),
        ([1], one, {"criterion": "heldout"}),
        ([1], x, {"criterion": ["bic", "dic"][rank]}),
    ):
        try:
            sh.select(states, y, candidates, restarts=1, max_steps=5, **options)
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("group_of_one")
def test_several_processes_choose_what_one_chooses():
    expected = [chosen(0, [0, 12], True, criterion) for criterion in ("icl", "heldout")]
    here, there = in_processes(2, chosen_among, [0, 5, 12])
    for (table, values), (others, other_values), (wanted, wanted_values) in zip(
        here[:2], there, expected, strict=False
    ):
        pd.testing.assert_frame_equal(table, others, rtol=0)
        pd.testing.assert_frame_equal(table, wanted, rtol=1e-9)
        torch.testing.assert_close(values, wanted_values, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(values, other_values, rtol=0, atol=0)
    assert here[2] == there[2]  # candidates that are functions lie at other addresses there
    for text, words in zip(
        here[3:],
        [
            r"ValueError: candidates: process 1 has \(1, 2\), but process 0 has \(1,\)",
            "ValueError: folds: process 1 has 3, but process 0 has 2",
            'ValueError: candidates: 1 fails. criterion: got "heldout" and one sequence, which 2 processes',
            "RankValueError: x: process 1 of 2 has failed: ValueError: criterion: got 'dic'",
        ],
        strict=True,
    ):
        assert re.search(words, text), text


def interrupted_in_search(rank: int) -> Any:
    """A fit during whose search on the sample Ctrl-C reaches one process, in a step of its own restarts."""
    if rank == 1:
        original, calls = EM.run, []

        def run(self: EM, max_steps: int) -> Any:
            calls.append(0)
            if len(calls) == 3:
                signal.raise_signal(signal.SIGINT)
            return original(self, max_steps)

        EM.run = run  # type: ignore[method-assign]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fit = MODELS["markov"].fit(data()[6 * rank : 6 * rank + 6], progress=False, restarts=2, tol=0.0)
    return fit.interrupted, fit.steps, fit.restarts.steps.tolist(), fit.report.waiting > 0


@pytest.mark.slow
def test_an_interrupt_during_the_search_ends_it_in_all_processes():
    here, there = in_processes(2, interrupted_in_search)
    assert here == there
    assert here[0]
    assert max(here[2]) == 8
    assert here[3]


def reason_of_a_linear_fit(rank: int, cuts: list[int]) -> str:
    """Of data that are constant in the first six sequences alone."""
    x = data()[..., :1].nan_to_num(0.0)
    x[:6] = 3.0
    part = x[cuts[rank] : cuts[rank + 1]]
    return sh.LinearSSM(1, 1).fit(part, prior=None, restarts=1, max_steps=2, progress=False).reason


@pytest.mark.slow
def test_a_share_that_is_constant_or_empty_is_not_taken_for_all_data():
    here, there, empty = in_processes(3, reason_of_a_linear_fit, [0, 6, 12, 12])
    assert here == there == empty
    assert here.startswith("not converged")
    assert "constant" not in here
