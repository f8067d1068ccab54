"""Ctrl-C during a fit: it ends the climb, and nothing that was reached is lost.

Within `sheltered`, from the first block on that is `open_to_keys`, a press of the keys breaks into such blocks alone:
the loops, which keep what they have. Elsewhere, where a result is put together, it waits for the next such block, or
for the end; a second press breaks in anywhere. Only the main thread is ever interrupted.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Keys:
    """Whether a press may break in now, and whether one waits."""

    open: bool = True
    waiting: bool = False
    depth: int = 0  # of open blocks within each other


_keys: Keys | None = None  # of the fit that is going on


@contextmanager
def sheltered() -> Iterator[None]:
    """A block of which nothing is lost to a press of the keys, from its first part on that is `open_to_keys`."""
    global _keys
    before = signal.getsignal(signal.SIGINT)
    if _keys is not None or threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    keys = Keys()

    def pressed(number: int, frame: FrameType | None) -> None:
        if keys.open or keys.waiting:
            keys.open = keys.waiting = False
            before(number, frame)  # which raises KeyboardInterrupt
        keys.waiting = True

    _keys = keys
    signal.signal(signal.SIGINT, pressed)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        _keys = None


@contextmanager
def open_to_keys() -> Iterator[None]:
    """A block into which a press breaks with KeyboardInterrupt; a press that waits does so at once."""
    keys = _keys
    if keys is None:
        yield
        return
    keys.open, keys.depth = True, keys.depth + 1
    try:
        if keys.waiting:
            keys.open = keys.waiting = False
            raise KeyboardInterrupt
        yield
    finally:
        keys.depth -= 1
        keys.open = keys.depth > 0
