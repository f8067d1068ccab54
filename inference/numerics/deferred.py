"""Checks of what has been computed, made together.

A check that looks at a number waits until the device on which it lies has done all that was asked of it before. Within
`deferred` a check leaves its truth value where it is, and all of them are looked at in one copy, with whatever else one
has to know by then: an iteration waits once. What is refused, and in what words, is the same.

>>> x = torch.tensor([1.0, torch.nan])
>>> def complain() -> None:
...     raise ValueError("x: holds NaN.")
>>> with deferred() as checks:
...     refuse_if(x.isnan().any(), complain)
...     (total,) = checks.settle(x.sum())
Traceback (most recent call last):
ValueError: x: holds NaN.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial

import torch
from torch import Tensor

Complaint = Callable[[], object]
"""Raises what is to be said."""

Check = tuple[Tensor, Complaint]

_open: ContextVar["Checks | None"] = ContextVar("checks", default=None)


class Checks:
    """Truth values that are yet to be looked at, each with what is to be raised where it holds."""

    def __init__(self) -> None:
        self.found: list[Check] = []

    def settle(self, *numbers: Tensor) -> list[float]:
        """Look at all of them, in the order in which they came, and at some numbers, which are returned."""
        found, self.found = self.found, []
        seen = _looked_at([bad for bad, _ in found] + list(numbers))
        for bad, (_, complain) in zip(seen, found, strict=False):
            if bad:
                token = _open.set(None)
                try:
                    complain()
                    raise RuntimeError("a check that failed passed when it was made again; look for draws or threads.")
                finally:
                    _open.reset(token)
        return seen[len(found) :]


def _looked_at(numbers: list[Tensor]) -> list[float]:
    """Numbers that may lie on several devices, in a copy from each."""
    seen = [0.0] * len(numbers)
    for device in dict.fromkeys(x.device for x in numbers):
        own = [i for i, x in enumerate(numbers) if x.device == device]
        copied = torch.stack([numbers[i].detach() for i in own]).tolist()
        for i, value in zip(own, copied, strict=True):
            seen[i] = value
    return seen


def passed(trials: Sequence[Callable[[], object]], *kinds: type[Exception]) -> list[bool]:
    """Whether each trial raises none of these kinds, where all that their checks have to say is looked at together."""
    found: list[list[Check] | None] = []
    for trial in trials:
        checks = Checks()
        token = _open.set(checks)
        try:
            trial()
            found.append(checks.found)
        except kinds:
            found.append(None)
        finally:
            _open.reset(token)
    seen = iter(_looked_at([bad for checks in found for bad, _ in checks or ()]))
    own = [[next(seen) for _ in checks or ()] for checks in found]
    return [checks is not None and not any(bad) for checks, bad in zip(found, own, strict=True)]


def refuse_if(bad: Tensor, complain: Complaint) -> None:
    """Call `complain`, which raises, where the truth value holds: now, or where `deferred` ends or is settled."""
    checks = _open.get()
    if checks is not None:
        checks.found.append((bad, complain))
    elif bool(bad):
        complain()


def are_deferred() -> bool:
    """Whether checks wait."""
    return _open.get() is not None


@contextmanager
def deferred() -> Iterator[Checks]:
    """Within, checks wait until they are settled, at the latest at the end; before another error, they come first."""
    checks = Checks()
    token = _open.set(checks)
    try:
        yield checks
    except Exception:
        checks.settle()
        raise
    finally:
        _open.reset(token)
    checks.settle()


def told_by(again: Complaint, *kinds: type[Exception]) -> AbstractContextManager[None]:
    """Where something is refused within, now or later, `again` may raise what says more of it."""
    return _retold(
        again, kinds, lambda found: [(bad, partial(_told, again, kinds, complain)) for bad, complain in found]
    )


def redone(again: Complaint, *kinds: type[Exception]) -> AbstractContextManager[None]:
    """Where something is refused within, now or later, `again` computes it again and raises what is to be said.

    What checks within would have to say is not kept, nor are the tables that they would say it of.
    """
    return _retold(again, kinds, lambda found: [(torch.stack([bad for bad, _ in found]).any(), again)])


@contextmanager
def _retold(
    again: Complaint, kinds: tuple[type[Exception], ...], retell: Callable[[list[Check]], list[Check]]
) -> Iterator[None]:
    """Where something is refused within, `again` is called; of checks within that wait, others take the place."""
    checks = _open.get()
    first = 0 if checks is None else len(checks.found)
    try:
        yield
    except kinds:
        again()
        raise
    if checks is not None and len(checks.found) > first:
        checks.found[first:] = retell(checks.found[first:])


def _told(again: Complaint, kinds: tuple[type[Exception], ...], complain: Complaint) -> None:
    try:
        complain()
    except kinds:
        again()
        raise
