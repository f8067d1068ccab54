"""How the functions of a CPU kernel are compiled.

`kernel` is for the loops themselves, `exact_kernel` for those whose arithmetic depends on the order of its operations,
`inlined` for the small functions that they call. None uses numba's parallel mode: a kernel takes a range of sequences
and releases the interpreter lock, and `threads` runs several at once.

numba counts references to arrays, every time that one is taken out of a record. Functions that neither make nor return
an array need no counting; `lean_kernel` and `inlined` leave it out, so that there records cost nothing.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numba

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
# -inf is a legal weight, so no flag may assume finite numbers; sums may be reordered so that they vectorise.
_REORDERED = {"reassoc", "contract", "arcp", "nsz"}


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first call; the machine code is kept on disk where a folder can be written."""
    return _cached(function, fastmath=_REORDERED)


def exact_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `kernel`, with every operation in the order in which it is written."""
    return _cached(function, fastmath=False)


def lean_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `kernel`, for functions that neither make nor return an array."""
    return _cached(function, fastmath=_REORDERED, _nrt=False)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function into the kernels that call it: a call would pass each array as seven arguments.

    It is compiled apart from them, so that it keeps the order of its operations, but for multiply-adds that are fused.
    It must neither make nor return an array.
    """
    options: dict[str, Any] = {**_OPTIONS, "fastmath": {"contract"}, "forceinline": True, "_nrt": False}
    return numba.njit(**options)(inspect.unwrap(function))


def _cached(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    function = inspect.unwrap(function)  # numba cannot compile through a wrapper, such as a run-time type checker's
    try:
        return numba.njit(cache=True, **_OPTIONS, **options)(function)
    except RuntimeError:  # no writable cache folder: compile once a process
        return numba.njit(**_OPTIONS, **options)(function)
