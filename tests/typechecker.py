"""The run-time type checker of the tests: as PEP 484 has it, an int may stand where a float is expected.

A check takes about as long as a small computation, and fits call the same functions some thousands of times. So in each
test the calls number 1, 8, 64, ... of a function are checked, and the others are not. The cases of a test count as one
test.
"""

from collections import Counter
from collections.abc import Callable
from functools import cache, wraps
from inspect import signature
from typing import Any

import jaxtyping

CHECKED = frozenset(8**n for n in range(8))  # the numbers of the calls that are checked

_jaxtyped = jaxtyping.jaxtyped
_calls: Counter[int] = Counter()  # of each function in a test
_test = ""


def install() -> None:
    """Check every function and dataclass of the package that is imported from now on."""
    jaxtyping.jaxtyped = jaxtyped
    jaxtyping.install_import_hook("samplehold", "typechecker.check")


def begin(test: str) -> None:
    """A test begins, or another case of it."""
    global _test
    if test != _test:
        _calls.clear()
        _test = test


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its annotations checked; to be given what has its signature and no body of its own."""
    return _beartype()(function)


@cache
def _beartype() -> Callable[..., Any]:
    from beartype import BeartypeConf, beartype  # half a second, which a quick run need not wait for

    return beartype(conf=BeartypeConf(is_pep484_tower=True))


def jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
    """In the place of jaxtyping's decorator, which checks all calls."""

    def decorate(made: Any) -> Any:
        if not isinstance(made, type):
            return _first_calls(made, typechecker) if hasattr(made, "__code__") else checked_always(made)
        plain = vars(made).get("__init__")
        made = checked_always(made)
        if plain is not None and made.__init__ is not plain:
            made.__init__ = _first_calls(plain, typechecker)
        return made

    def checked_always(made: Any) -> Any:
        return _jaxtyped(made, typechecker=typechecker)

    return decorate


def _first_calls(function: Any, typechecker: Any) -> Any:
    """The function with some of its calls checked in each test.

    One within a function is made anew at every call of the outer one, so it is counted by its code, and its check is
    made when a call needs it.
    """
    key, checked = id(function.__code__), None

    @wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal checked
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return function(*arguments, **named)
        _calls[key] += 1
        if _calls[key] not in CHECKED:
            return function(*arguments, **named)
        try:
            signature(function).bind(*arguments, **named)
        except TypeError:
            return function(*arguments, **named)  # which says so in its own words
        if checked is None:
            checked = _jaxtyped(function, typechecker=typechecker)
        return checked(*arguments, **named)

    return counted
