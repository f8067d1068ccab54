"""The frame of a command: fast start, other processes beside it, and end by a signal."""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

import typer

MANY = 100_000  # new objects between two collections; loading the libraries makes several times as many


def is_shared() -> bool:
    """Whether this is one of several processes that `torchrun` or another launcher has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely: imports make many objects and hardly any garbage, and each collection visits all
    objects."""
    before = gc.get_threshold()
    gc.set_threshold(MANY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Termination:
    """Treat SIGTERM as Ctrl-C: a running fit ends with its best result, the command finishes, and the status is 143."""

    def __init__(self) -> None:
        self._asked = self._fitting = False

    def __enter__(self) -> "Termination":
        self._main = threading.current_thread() is threading.main_thread()  # only the main thread receives signals
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
        """While this is active, SIGTERM interrupts like Ctrl-C."""
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
