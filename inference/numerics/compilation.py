"""Compilation of the functions of a CPU kernel.

`kernel` is for the loops, `exact_kernel` for loops that depend on the order of operations, `inlined` for the small
functions that they call. None uses numba's parallel mode: a kernel takes a range of sequences and releases the
interpreter lock, and `threads` runs several at once.

numba counts a reference to an array every time it is taken from a record. Functions that neither create nor return an
array need no counting. `lean_kernel` and `inlined` switch it off, so records cost nothing there.
"""

import inspect
import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import numba
from numba.core.caching import FunctionCache
from numba.core.types import unliteral

_logger = logging.getLogger("samplehold")
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
# -inf is a legal weight, so no flag may assume finite numbers; sums may be reordered so that they vectorise.
_REORDERED = {"reassoc", "contract", "arcp", "nsz"}
INLINED: dict[str, Any] = {
    **_OPTIONS,
    "fastmath": {"contract"},
    "forceinline": True,
    "_nrt": False,
    "no_cpython_wrapper": True,  # no one calls them from Python
    "no_cfunc_wrapper": True,
}
"""The options of `inlined`, for functions that are compiled in another way."""


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first call; the machine code is kept on disk if a folder is writable."""
    return _cached(function, fastmath=_REORDERED)


def exact_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `kernel`, with every operation in the order of the source."""
    return _cached(function, fastmath=False)


def lean_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `kernel`, for functions that neither create nor return an array."""
    return _cached(function, fastmath=_REORDERED, _nrt=False)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function into the kernels that call it; a call would pass each array as seven arguments.

    It is compiled separately, so its operations keep their order, except fused multiply-adds. It must neither create
    nor return an array.
    """
    return _of_any_constant(numba.njit(**INLINED)(inspect.unwrap(function)))


def _of_any_constant(compiled: Any) -> Any:
    """The same function, compiled once for all constants; numba gives each constant its own type."""
    plain = compiled.get_call_template

    def get_call_template(args: Any, kws: dict[str, Any]) -> Any:
        return plain([unliteral(a) for a in args], {name: unliteral(a) for name, a in kws.items()})

    compiled.get_call_template = get_call_template
    return compiled


def _cached(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    function = inspect.unwrap(function)  # numba cannot compile through a wrapper, such as a run-time type checker's
    compiled: Any = _of_any_constant(numba.njit(**_OPTIONS, **options)(function))
    with suppress(RuntimeError):  # no writable cache folder: compile once in each process
        compiled._cache = _Cache(function)
    return compiled


class _Cache(FunctionCache):
    """numba's cache of a function; an unreadable file is replaced, and the first compilation is logged."""

    _said: ClassVar[set[str]] = set()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            loaded = super().load_overload(sig, target_context)
        except Exception:  # damaged files can make pickle raise anything
            loaded = None
            with suppress(OSError):
                self.flush()
        if loaded is None:
            self._say_once("compiling kernels, once on this machine", _logger.info)
        return loaded

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except (OSError, ValueError) as error:
            text = f"kernel cache: {error}; the next process compiles its kernels again."
            self._say_once(text, partial(warnings.warn, stacklevel=3))

    def _say_once(self, text: str, say: Callable[[str], object]) -> None:
        if text not in self._said:
            self._said.add(text)
            say(text)
