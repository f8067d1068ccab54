"""`Clock`: the seconds in which a computation reads, waits for other processes, or computes.

They are only shown: no result depends on them.

>>> with timed() as clock:
...     with during(READING):
...         passed(10)
>>> clock.rows, sorted(clock.seconds)
(10, ['computing', 'reading', 'waiting'])
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

COMPUTING, READING, WAITING = "computing", "reading", "waiting"


class Clock:
    """The seconds of a computation so far.

    Attributes:
        seconds: by what it did.
        rows: of data, through which it went.
        shown: takes the number of further rows.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {COMPUTING: 0.0, READING: 0.0, WAITING: 0.0}
        self.rows = 0
        self.shown: Callable[[int], None] = lambda rows: None
        self._doing, self._since = COMPUTING, time.perf_counter()

    def turn(self, to: str) -> str:
        """From now on the computation does this; what it did before."""
        now, before = time.perf_counter(), self._doing
        self.seconds[before] += now - self._since
        self._doing, self._since = to, now
        return before


_running: ContextVar[Clock | None] = ContextVar("clock", default=None)


@contextmanager
def timed() -> Iterator[Clock]:
    """A computation with its own clock, which has all its seconds at the end."""
    clock = Clock()
    token = _running.set(clock)
    try:
        yield clock
    finally:
        _running.reset(token)
        clock.turn(COMPUTING)


@contextmanager
def during(doing: str) -> Iterator[None]:
    """A block whose seconds are those of reading or waiting."""
    clock = _running.get()
    if clock is None:
        yield
        return
    before = clock.turn(doing)
    try:
        yield
    finally:
        clock.turn(before)


def passed(rows: int) -> None:
    """The computation has gone through further rows of its data."""
    clock = _running.get()
    if clock is not None:
        clock.rows += rows
        clock.shown(rows)


@contextmanager
def showing(shown: Callable[[int], None]) -> Iterator[None]:
    """A block in which a function takes the number of further rows."""
    clock = _running.get()
    if clock is None:
        yield
        return
    before, clock.shown = clock.shown, shown
    try:
        yield
    finally:
        clock.shown = before
