"""The seconds of a computation, apart by what it does."""

import itertools
from types import SimpleNamespace

import pytest
from samplehold.inference.numerics import clock
from samplehold.inference.numerics.clock import READING, WAITING, during, passed, showing, timed


@pytest.fixture(autouse=True)
def _ticking(monkeypatch):
    """Each look at the clock takes a second."""
    ticks = itertools.count()
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))


def test_each_second_counts_once():
    with timed() as there:
        with during(READING), during(WAITING):
            pass
        with pytest.raises(ZeroDivisionError), during(READING):
            raise ZeroDivisionError
    # reading, waiting, reading; computing; reading; computing
    assert there.seconds == {"computing": 3.0, "reading": 3.0, "waiting": 1.0}


def test_a_computation_within_another_has_its_own_clock():
    seen = []
    with timed() as outer:
        with showing(seen.append):
            passed(3)
            with timed() as inner:
                passed(5)
            passed(4)
        passed(1)
    assert (outer.rows, inner.rows, seen) == (8, 5, [3, 4])


def test_without_a_clock_nothing_is_counted():
    seen = []
    with during(READING), showing(seen.append):
        passed(3)
    assert clock.time.perf_counter() == 0.0  # nobody has looked at it
    assert seen == []
