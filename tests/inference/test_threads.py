"""Spreading work over threads: everything runs, errors come back, and no two teams of threads compete."""

import os
import threading

import pytest
import torch
from samplehold.inference.numerics import openmp, threads

pytestmark = pytest.mark.cpu("threads of its kernels")


@pytest.fixture(params=["torch's threads", "plain threads"])
def team(request, monkeypatch):
    if request.param == "plain threads":
        monkeypatch.setattr(threads, "_team", None)
    elif threads._team is None:
        pytest.skip("torch has another runtime here")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("n", [1, 2, 3, 50])
def test_every_task_runs_once(n, team):
    done = []
    threads.in_parallel([lambda k=k: done.append(k) for k in range(n)], among_torch=True)
    assert sorted(done) == list(range(n))


def test_two_tasks_run_at_the_same_time(team):
    both = threading.Barrier(2, timeout=20)  # breaks, and raises, unless two threads arrive
    threads.in_parallel([both.wait, both.wait], among_torch=True)


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_a_task_is_raised_after_the_others_are_done(failing, error, team):
    done = []

    def task(k):
        if k == failing:
            raise error("lost")
        done.append(k)

    with pytest.raises(error, match="lost"):
        threads.in_parallel([lambda k=k: task(k) for k in range(4)], among_torch=True)
    assert len(done) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_works_without_its_parents_threads(team):
    threads.in_parallel([lambda: None] * 2, among_torch=True)
    child = os.fork()
    if child == 0:
        done = []
        threads.in_parallel([lambda k=k: done.append(k) for k in range(4)], among_torch=True)
        os._exit(0 if sorted(done) == [0, 1, 2, 3] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_where_torchs_runtime_has_no_such_call_there_is_no_team(monkeypatch):
    assert openmp.find_team("a platform of which nothing is known") is None
    monkeypatch.setitem(openmp._ENTRY, "with another runtime", "no_function_of_this_name")
    assert openmp.find_team("with another runtime") is None


def test_more_threads_work_only_if_each_has_enough_to_do(team):
    shares = [threads.worthwhile(share * threads._LEAST_SHARE) for share in (0.0, 1.9, 2.1, 100.0)]
    assert shares == [1, 1, 2, 2]
    torch.set_num_threads(1)
    assert threads.worthwhile(1.0) == 1


@pytest.mark.parametrize(("numbers", "expected"), [(100, 1), (1 << 20, 2)])
def test_small_work_runs_on_one_thread_and_the_setting_is_put_back(team, numbers, expected):
    def work() -> None:
        with threads.one_thread_if_small(numbers):
            assert torch.get_num_threads() == expected
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("n", [0, 1, 1023, 1 << 15, (1 << 15) + 7, 3 * (1 << 20) + 5])
def test_the_sum_of_a_table_does_not_depend_on_the_number_of_threads(n, team):
    table = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    two = threads.sum_of_steps(table)
    torch.set_num_threads(1)
    assert torch.equal(threads.sum_of_steps(table), two)
    torch.testing.assert_close(two, table.sum(), rtol=1e-12, atol=1e-9)
    rows = torch.stack([table, -table])
    torch.testing.assert_close(threads.sum_of_steps(rows), rows.sum(-1), rtol=0, atol=0)
