"""The run-time type checker of the tests: as PEP 484 has it, an int may stand where a float is expected.

A function within a function is made anew at every call of the outer one, but its check is made once: that takes a
millisecond, and fits call some thousands of them.
"""

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_within: dict[tuple[str, str, str], Callable[..., Any]] = {}


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its annotations checked; to be given what has its signature and no body of its own."""
    if "<locals>" not in function.__qualname__:
        return _check(function)
    name = function.__module__, function.__qualname__, repr(function.__annotations__)
    if name not in _within:
        _within[name] = _check(function)
    return _within[name]
