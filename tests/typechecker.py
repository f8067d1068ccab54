"""The run-time type checker of the tests: as PEP 484 has it, an int may stand where a float is expected.

A check takes about as long as a small computation, and fits call the same functions some thousands of times. So in each
test the first call of a function is checked, and the others are not.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import jaxtyping

CHECKED = 1  # calls of each function in a test

_jaxtyped = jaxtyping.jaxtyped
_left: dict[int, int] = defaultdict(lambda: CHECKED)


def install() -> None:
    """Check every function and dataclass of the package that is imported from now on."""
    jaxtyping.jaxtyped = jaxtyped
    jaxtyping.install_import_hook("samplehold", "typechecker.check")


def begin() -> None:
    """A test begins."""
    _left.clear()


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
    """The function with `CHECKED` of its calls checked in each test.

    One within a function is made anew at every call of the outer one, so it is counted by its code, and its check is
    made when a call needs it.
    """
    key, checked = id(function.__code__), None

    @wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal checked
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable or _left[key] <= 0:
            return function(*arguments, **named)
        _left[key] -= 1
        if checked is None:
            checked = _jaxtyped(function, typechecker=typechecker)
        return checked(*arguments, **named)

    return counted
