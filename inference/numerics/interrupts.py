"""Ctrl-C during a fit ends its loops and keeps the best result so far.

The loops of a fit are blocks of `may_interrupt`. Ctrl-C raises KeyboardInterrupt at once before the first such block
and inside the blocks. Between blocks a result is assembled, so Ctrl-C waits for the next block, or for the end. A
second Ctrl-C raises at once anywhere. Only the main thread is interrupted.

If several processes share the data, one that leaves a step alone breaks the sums of the others. So Ctrl-C, the second
one too, waits for the computation of the next sum, after which all processes raise KeyboardInterrupt.

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
    shared: bool = False  # other processes take the same steps


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
        if not keys.shared and (keys.preparing or keys.open or keys.waiting):
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
        in_vain = keys.heard and keys.open == 1  # heard before this block, as in a finaliser
        if not keys.shared and (keys.waiting or in_vain):
            keys.waiting = False
            raise KeyboardInterrupt
        yield
        check_interrupt()
    finally:
        keys.open -= 1
        keys.heard = keys.heard and keys.open > 0


def check_interrupt() -> None:
    """Raise KeyboardInterrupt if an earlier one was lost, as in a finaliser, which ignores errors, or had to wait."""
    if _keys is not None and not _keys.shared and (_keys.heard or (_keys.waiting and _keys.open)):
        _keys.waiting, _keys.heard = False, True
        raise KeyboardInterrupt


def interrupt_together() -> None:
    """From now on, Ctrl-C waits for a block of `heard`: other processes take the same steps of this fit."""
    if _keys is not None:
        _keys.shared = True


@contextmanager
def heard() -> Iterator[None]:
    """A block in which Ctrl-C interrupts as in a fit of one process, because the others will know of it."""
    keys = _keys
    if keys is None or not keys.shared:
        yield
        return
    keys.shared = False
    try:
        if keys.waiting and (keys.preparing or keys.open):
            keys.waiting = False
            raise KeyboardInterrupt
        yield
    finally:
        keys.shared = True


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is being imported."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None
