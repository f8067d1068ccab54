"""What happens around a command: the time until its first answer, and its end by a signal."""

import gc
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

import typer

MANY = 100_000  # new objects between two collections: loading the libraries makes several times as many


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely: imports make many objects and hardly any garbage, and a walk sees all of them."""
    before = gc.get_threshold()
    gc.set_threshold(MANY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def announcements() -> Iterator[None]:
    """Write what the package logs, such as that it compiles kernels, on stderr, a line each."""
    logger, handler = logging.getLogger("samplehold"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("samplehold: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class Termination:
    """SIGTERM as Ctrl-C: the fit that it finds ends with the best so far; what comes after is done, then status 143."""

    def __init__(self) -> None:
        self._asked = self._fitting = False

    def __enter__(self) -> "Termination":
        self._main = threading.current_thread() is threading.main_thread()  # the only one that signals reach
        if self._main:
            self._before = signal.signal(signal.SIGTERM, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._main:
            signal.signal(signal.SIGTERM, self._before)
        if self._asked and kind in (None, KeyboardInterrupt):
            raise typer.Exit(128 + signal.SIGTERM) from None

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """While this lasts it is Ctrl-C."""
        self._fitting = True
        try:
            yield
        finally:
            self._fitting = False

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        if self._fitting:
            interrupt = signal.getsignal(signal.SIGINT)
            (interrupt if callable(interrupt) else signal.default_int_handler)(signal.SIGINT, frame)
