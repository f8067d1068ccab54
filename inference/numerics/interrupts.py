"""Ctrl-C during a fit ends its loops and keeps the best result so far.

The loops of a fit are blocks of `may_interrupt`. Ctrl-C raises KeyboardInterrupt at once before the first such block
and inside the blocks. Between blocks a result is assembled, so Ctrl-C waits for the next block, or for the end. A fit
that consists of several fits ends too, because all later blocks are interrupted when they begin. A second Ctrl-C raises
at once anywhere. Only the main thread is interrupted.

If several processes share the data, one that leaves a step alone breaks the sums of the others. So Ctrl-C, the second
one too, waits for the computation of the next sum, after which all processes raise KeyboardInterrupt.

A module whose import is broken off stays incomplete for the rest of the process. So Ctrl-C waits for the end of an
import, even if it is the second. Outside a fit, blocks of `importing` do this: the first use of a name of the package,
kernels, and figures.
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
    """The state of Ctrl-C during a fit of the main thread."""

    preparing: bool = True  # no block has been open yet, so there is no result to lose
    open: int = 0  # number of nested open blocks
    waiting: bool = False  # a press came while no block was open
    heard: bool = False  # a press has interrupted the open block, or the preparation
    ended: bool = False  # a press has ended a loop, so each later one ends at once
    shared: bool = False  # other processes take the same steps


_keys: Keys | None = None  # of the main thread's current fit


def _of_this_thread() -> Keys | None:
    return _keys if threading.current_thread() is threading.main_thread() else None


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
def importing() -> Iterator[None]:
    """A block of imports, at whose end Ctrl-C is heard."""
    before = signal.getsignal(signal.SIGINT)
    if _keys is not None or threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    presses: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda number, frame: presses.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if presses:
            before(signal.SIGINT, presses[-1])


@contextmanager
def may_interrupt(anyway: bool = False) -> Iterator[None]:
    """A block that Ctrl-C interrupts with KeyboardInterrupt.

    An earlier press interrupts it at once, if it waits or has ended another block; `anyway`: only if it waits.
    """
    keys = _of_this_thread()
    if keys is None:
        yield
        return
    keys.preparing, keys.open = False, keys.open + 1
    try:
        in_vain = keys.heard and keys.open == 1  # heard before this block, as in a finaliser
        if not keys.shared and (keys.waiting or in_vain or (keys.ended and not anyway)):
            keys.waiting = False
            raise KeyboardInterrupt
        yield
        check_interrupt()
    except KeyboardInterrupt:
        keys.ended = True
        raise
    finally:
        keys.open -= 1
        keys.heard = keys.heard and keys.open > 0


def check_interrupt() -> None:
    """Raise KeyboardInterrupt if an earlier one was lost, as in a finaliser, which ignores errors, or had to wait."""
    keys = _of_this_thread()
    if keys is not None and not keys.shared and (keys.heard or (keys.waiting and keys.open)):
        keys.waiting, keys.heard = False, True
        raise KeyboardInterrupt


def interrupt_together() -> None:
    """From now on, Ctrl-C waits for a block of `heard`: other processes take the same steps of this fit."""
    keys = _of_this_thread()
    if keys is not None:
        keys.shared = True


@contextmanager
def heard() -> Iterator[None]:
    """A block in which Ctrl-C interrupts as in a fit of one process, because the others will know of it."""
    keys = _of_this_thread()
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
