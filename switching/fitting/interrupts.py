"""Ctrl-C during a fit ends its loops, and keeps the best result so far.

Ctrl-C raises KeyboardInterrupt at once before the first block of `may_interrupt`, and inside such blocks: the loops of
a fit. Between them, where a result is put together, it waits for the next block, or for the end. A second Ctrl-C raises
at once anywhere. Only the main thread is ever interrupted.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Keys:
    """What the keys do now, and what they were pressed for."""

    preparing: bool = True  # no block has been open yet: there is nothing to lose
    open: int = 0  # blocks within each other
    waiting: bool = False  # a press that came while none was
    heard: bool = False  # a press has broken into the block that is open


_keys: Keys | None = None  # of the fit that is going on


@contextmanager
def interruptible() -> Iterator[None]:
    """A block of which nothing is lost to a press of the keys, from its first part on that is `may_interrupt`."""
    global _keys
    before = signal.getsignal(signal.SIGINT)
    if _keys is not None or threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    keys = Keys()

    def pressed(number: int, frame: FrameType | None) -> None:
        if keys.preparing or keys.open or keys.waiting:
            keys.waiting, keys.heard = False, keys.open > 0
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
def may_interrupt() -> Iterator[None]:
    """A block into which a press breaks with KeyboardInterrupt; a press that waits does so at once."""
    keys = _keys
    if keys is None:
        yield
        return
    keys.preparing, keys.open = False, keys.open + 1
    try:
        if keys.waiting:
            keys.waiting = False
            raise KeyboardInterrupt
        yield
    finally:
        keys.open -= 1
        keys.heard = keys.heard and keys.open > 0


def check_interrupt() -> None:
    """Raise KeyboardInterrupt where a press broke in and was lost, as in a finaliser, which ignores what it raises."""
    if _keys is not None and _keys.heard:
        raise KeyboardInterrupt
