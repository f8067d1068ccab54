"""Deferred checks of computed tensors.

A check that reads a number waits for all earlier work of its device. Within `deferred`, a check leaves its truth value
on the device. All truth values are read in one copy, with other needed numbers, so an iteration waits once. Errors and
their messages stay the same.

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
"""Raises the error of a failed check."""

Check = tuple[Tensor, Complaint]

_open: ContextVar["Checks | None"] = ContextVar("checks", default=None)


class Checks:
    """Truth values that are still to be read, each with the function that raises its error."""

    def __init__(self) -> None:
        self.pending: list[Check] = []

    def settle(self, *numbers: Tensor) -> list[float]:
        """Read all truth values in their order, raise the first error, and return the values of `numbers`."""
        pending, self.pending = self.pending, []
        values = _read([bad for bad, _ in pending] + list(numbers))
        for bad, (_, complain) in zip(values, pending, strict=False):
            if bad:
                token = _open.set(None)
                try:
                    complain()
                    raise RuntimeError("a check failed, but passed when repeated; look for random draws or threads.")
                finally:
                    _open.reset(token)
        return values[len(pending) :]


def _read(numbers: list[Tensor]) -> list[float]:
    """The values of numbers on one or several devices, with one copy from each device."""
    values = [0.0] * len(numbers)
    for device in dict.fromkeys(x.device for x in numbers):
        places = [i for i, x in enumerate(numbers) if x.device == device]
        copied = torch.stack([numbers[i].detach() for i in places]).tolist()
        for i, value in zip(places, copied, strict=True):
            values[i] = value
    return values


def passed(trials: Sequence[Callable[[], object]], *kinds: type[Exception]) -> list[bool]:
    """Whether each trial raises none of these kinds; the checks of all trials are read together."""
    pending: list[list[Check] | None] = []
    for trial in trials:
        checks = Checks()
        token = _open.set(checks)
        try:
            trial()
            pending.append(checks.pending)
        except kinds:
            pending.append(None)
        finally:
            _open.reset(token)
    values = iter(_read([bad for checks in pending for bad, _ in checks or ()]))
    failed = [[next(values) for _ in checks or ()] for checks in pending]
    return [checks is not None and not any(bad) for checks, bad in zip(pending, failed, strict=True)]


def refuse_if(bad: Tensor, complain: Complaint) -> None:
    """Call `complain`, which raises, if `bad` is true: now, or when `deferred` ends or is settled. A tensor on torch's
    device "meta" has no value, and passes."""
    if bad.is_meta:
        return
    checks = _open.get()
    if checks is not None:
        checks.pending.append((bad, complain))
    elif bool(bad):
        complain()


def are_deferred() -> bool:
    """Whether checks are deferred now."""
    return _open.get() is not None


@contextmanager
def deferred() -> Iterator[Checks]:
    """Within, checks are deferred until they are settled, at the latest at the end. They precede any other error."""
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


def add_context(again: Complaint, *kinds: type[Exception]) -> AbstractContextManager[None]:
    """If a check within fails, now or later, call `again`, which may raise a more detailed error."""
    return _replace(
        again, kinds, lambda pending: [(bad, partial(_explained, again, kinds, complain)) for bad, complain in pending]
    )


def recompute(again: Complaint, *kinds: type[Exception]) -> AbstractContextManager[None]:
    """If a check within fails, now or later, call `again`, which computes the values again and raises the error.

    The errors of the checks within are dropped, and so are their tensors.
    """
    return _replace(again, kinds, lambda pending: [(torch.stack([bad for bad, _ in pending]).any(), again)])


@contextmanager
def _replace(
    again: Complaint, kinds: tuple[type[Exception], ...], replacement: Callable[[list[Check]], list[Check]]
) -> Iterator[None]:
    """If a check within fails at once, call `again`; deferred checks within are replaced."""
    checks = _open.get()
    first = 0 if checks is None else len(checks.pending)
    try:
        yield
    except kinds:
        again()
        raise
    if checks is not None and len(checks.pending) > first:
        checks.pending[first:] = replacement(checks.pending[first:])


def _explained(again: Complaint, kinds: tuple[type[Exception], ...], complain: Complaint) -> None:
    try:
        complain()
    except kinds:
        again()
        raise
