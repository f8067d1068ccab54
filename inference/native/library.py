"""Loading the library of CPU kernels, and calling its functions on tensors.

An installed package has its library, or several levels of it. In a source tree one is built when the sources have
changed. If there is none, operators serve their plain forms, and a warning says so once.
"""

import ctypes
import math
import warnings
from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from . import compiling

_SUFFIX = {torch.float64: "f64", torch.float32: "f32"}
_NUMPY = {torch.float64: np.float64, torch.float32: np.float32, torch.int64: np.int64}
_CTYPES = {"q": ctypes.c_int64, "d": ctypes.c_double}
_LEVELS = {"AVX512": ("x86-64-v3", "x86-64-v2"), "AVX2": ("x86-64-v3", "x86-64-v2")}
_LARGE = 1 << 16  # numbers, of less than which no large page is made
_CURE = "install the package again where there is a C++ compiler"


class KernelWarning(UserWarning):
    """The package works by its plain forms, which are slower."""


@cache
def library() -> ctypes.CDLL | None:
    """The library for this processor; None, with a warning, if there is none that can be used."""
    if compiling.sources():
        return _of_tree()
    levels = (*_LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("x86-64-v2",)), "baseline")
    paths = [path for level in levels if (path := compiling.library(level)).exists()]
    return _loaded(paths[0]) if paths else _missing("this installation has none")


def _of_tree() -> ctypes.CDLL | None:
    """The library of a source tree, built anew if its sources have changed."""
    digest = compiling.digest().encode()
    for level in compiling.LEVELS:
        path = compiling.library(level)
        if path.exists() and digest in path.read_bytes():
            return _loaded(path)
    try:
        (path,) = compiling.build([compiling.own_level()])
    except (compiling.BuildError, OSError) as error:
        return _missing(f"it cannot be built: {error}")
    return _loaded(path)


def _loaded(path: Any) -> ctypes.CDLL | None:
    try:
        found = ctypes.CDLL(str(path))
        found.samplehold_digest.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        return _missing(f"{path} cannot be loaded: {error}")
    return found


def _missing(why: str) -> None:
    warnings.warn(
        f"samplehold has no library of CPU kernels, and works by slower forms: {why}; {_CURE}.",
        KernelWarning,
        stacklevel=2,
    )


@cache
def function(name: str, dtype: torch.dtype | None = None) -> Callable[..., Any]:
    """A function of the library, for numbers of a dtype. It is called with addresses and integers."""
    found = library()
    if found is None:
        raise RuntimeError("there is no library of CPU kernels; ask `library` first.")
    of = getattr(found, name if dtype is None else f"{name}_{_SUFFIX[dtype]}")
    of.restype = None
    return of


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """A contiguous tensor of no content.

    numpy requests large pages from the system, and torch does not. For a large result, the first touch of every small
    page would cost more than the computation.
    """
    if math.prod(shape) < _LARGE:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.from_numpy(np.empty(shape, _NUMPY[dtype]))


def integers(*values: int) -> Any:
    """An array of int64 for one argument; keep it until the call has returned."""
    pack, array = _array("q", len(values))
    return array(pack(*values))


def numbers(*values: float) -> Any:
    """An array of double for one argument; keep it until the call has returned."""
    pack, array = _array("d", len(values))
    return array(pack(*values))


@cache
def _array(kind: str, n: int) -> tuple[Callable[..., bytes], Callable[[bytes], Any]]:
    """From n numbers their bytes, and from these an array; ctypes takes four times as long to set them one by one."""
    return Struct(f"{n}{kind}").pack, (_CTYPES[kind] * n).from_buffer_copy


def pointer(table: Tensor | None) -> ctypes.c_void_p | None:
    """The address of a contiguous tensor."""
    return None if table is None else ctypes.c_void_p(table.data_ptr() if table.is_cpu else _refused(table))


def _refused(table: Tensor) -> NoReturn:
    raise TypeError(f"got a tensor on {table.device}, which kernels cannot read; expected all of them on cpu.")


def addresses(*tables: Tensor | int | None) -> Any:
    """An argument that is a record of addresses of contiguous tensors, and of integers; keep it as `integers`."""
    at = ((x.data_ptr() if x.is_cpu else _refused(x)) if isinstance(x, Tensor) else x or 0 for x in tables)
    return integers(*at)
