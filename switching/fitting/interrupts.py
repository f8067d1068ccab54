"""Ctrl-C during a fit ends its loops and keeps the best result so far.

The loops of a fit are blocks of `may_interrupt`. Ctrl-C raises KeyboardInterrupt at once before the first such block
and inside the blocks. Between blocks a result is assembled, so Ctrl-C waits for the next block, or for the end. A
second Ctrl-C raises at once anywhere. Only the main thread is interrupted.

A module whose import is broken off stays incomplete for the rest of the process. So Ctrl-C waits for the end of an
import, even if it is the second.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

AGAIN = 0.05  # seconds until Ctrl-C during an import is tried again


@dataclass
class Keys:
    """The state of Ctrl-C during a fit."""

    preparing: bool = True  # no block has been open yet, so there is no result to lose
    open: int = 0  # number of nested open blocks
    waiting: bool = False  # a press came while no block was open
    heard: bool = False  # a press has interrupted the open block, or the preparation


_keys: Keys | None = None  # of the current fit


@contextmanager
def interruptible() -> Iterator[None]:
    """A block whose results survive Ctrl-C, after its first `may_interrupt` block has begun."""
    global _keys
    before = signal.getsignal(signal.SIGINT)
    if _keys is not None or threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    keys, main = Keys(), threading.get_ident()

    def pressed(number: int, frame: FrameType | None) -> None:
        if _imports(frame):
            keys.waiting = True
            again = threading.Timer(AGAIN, press_again, (number,))
            again.daemon = True
            again.start()
            return
        if keys.preparing or keys.open or keys.waiting:
            keys.waiting, keys.heard = False, keys.preparing or keys.open > 0
            before(number, frame)  # which raises KeyboardInterrupt
        keys.waiting = True

    def press_again(number: int) -> None:
        if not (_keys is keys and keys.waiting and (keys.preparing or keys.open)):
            return
        if hasattr(signal, "pthread_kill"):  # to the main thread, so that it also ends a wait there
            signal.pthread_kill(main, number)
        else:
            signal.raise_signal(number)

    _keys = keys
    signal.signal(signal.SIGINT, pressed)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        _keys = None


@contextmanager
def may_interrupt() -> Iterator[None]:
    """A block that Ctrl-C interrupts with KeyboardInterrupt; an earlier press that waits interrupts it at once."""
    keys = _keys
    if keys is None:
        yield
        return
    keys.preparing, keys.open = False, keys.open + 1
    try:
        if keys.waiting or (keys.heard and keys.open == 1):  # heard before this block: in vain, as in a finaliser
            keys.waiting = False
            raise KeyboardInterrupt
        yield
        check_interrupt()
    finally:
        keys.open -= 1
        keys.heard = keys.heard and keys.open > 0


def check_interrupt() -> None:
    """Raise KeyboardInterrupt if an earlier one was lost, as in a finaliser, which ignores errors, or had to wait."""
    if _keys is not None and (_keys.heard or (_keys.waiting and _keys.open)):
        _keys.waiting, _keys.heard = False, True
        raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is being imported."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None
