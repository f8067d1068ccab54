"""How the functions of a CPU kernel are compiled.

`kernel` is for the loops themselves, `exact_kernel` for those whose arithmetic depends on the order of its operations,
`inlined` for the small functions that they call. None uses numba's parallel mode: a kernel takes a range of sequences
and releases the interpreter lock, and `threads` runs several at once.

numba counts references to arrays, every time that one is taken out of a record. Functions that neither make nor return
an array need no counting; `lean_kernel` and `inlined` leave it out, so that there records cost nothing.
"""

import inspect
import warnings
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
# -inf is a legal weight, so no flag may assume finite numbers; sums may be reordered so that they vectorise.
_REORDERED = {"reassoc", "contract", "arcp", "nsz"}
INLINED: dict[str, Any] = {**_OPTIONS, "fastmath": {"contract"}, "forceinline": True, "_nrt": False}
"""The options of `inlined`, for what is compiled in another way."""


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
    return numba.njit(**INLINED)(inspect.unwrap(function))


def _cached(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    function = inspect.unwrap(function)  # numba cannot compile through a wrapper, such as a run-time type checker's
    compiled: Any = numba.njit(**_OPTIONS, **options)(function)
    with suppress(RuntimeError):  # no writable cache folder: compile once a process
        compiled._cache = _Cache(function)
    return compiled


class _Cache(FunctionCache):
    """numba's cache of a function: a file that cannot be read is named, and written anew.

    That none can be written is said once.
    """

    _said = False

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        locator = self._impl.locator
        self._cache_file: Any = _Files(locator.get_cache_path(), self._impl.filename_base, locator.get_source_stamp())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # damaged files can make pickle raise anything
            warnings.warn(f"kernel cache: {error or repr(error)}; the kernel is compiled anew.", stacklevel=2)
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except (OSError, ValueError) as error:
            if not _Cache._said:
                _Cache._said = True
                warnings.warn(f"kernel cache: {error}; the next process compiles its kernels again.", stacklevel=2)


class _Files(IndexDataCacheFile):
    """numba's files of a function, with a checksum at their ends, which unpickling leaves alone."""

    def __init__(self, cache_path: str, filename_base: str, source_stamp: Any) -> None:
        super().__init__(cache_path, filename_base, source_stamp)
        self._version += " with checksums"  # files of numba's own count as those of another version

    def _dump(self, obj: Any) -> bytes:
        data = super()._dump(obj)
        return data + sha256(data).digest()

    def _load_index(self) -> Any:
        try:
            return super()._load_index()
        except Exception as error:
            raise ValueError(f"{self._index_path} is damaged ({error!r})") from None

    def _load_data(self, name: str) -> Any:
        data = Path(self._data_path(name)).read_bytes()
        if sha256(data[:-32]).digest() != data[-32:]:
            raise ValueError(f"{self._data_path(name)} is damaged")
        return super()._load_data(name)
