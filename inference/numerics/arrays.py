"""Numbers in any form as a tensor: one reader for tables, lengths, priors and tokens.

Masked entries, pandas' NA, and None in a list or an array of objects are missing: NaN. Values that are not numbers
raise an error with the argument's name.
"""

import sys
from decimal import Decimal
from itertools import chain
from numbers import Integral, Real
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor

_FLOATS = (torch.float32, torch.float64)
_TORCH_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def numbers(x: Any, name: str) -> Tensor:
    """A tensor of real numbers: float32 and float64 are kept, other floating types become float64, integers int64, and
    booleans stay bool.

    Arguments:
        x: a tensor, an array, a masked array, any input that numpy can convert, numbers, or nested lists of these.
        name: of the argument, for error messages.

    Raises:
        TypeError: complex numbers, text, dates, None alone or other objects; a sparse tensor, or one without values.
        ValueError: nested lists of unequal lengths.
    """
    if isinstance(x, Tensor):
        return _dense(x, name)
    array = _array(x, name)
    return torch.from_numpy(np.array(array, dtype=_native(array), order="C"))  # a copy: the caller's may be read-only


def floating(x: Any, name: str) -> Tensor:
    """As `numbers`, with all types except float32 and float64 converted to float64."""
    x = numbers(x, name)
    return x if x.dtype in _FLOATS else x.to(torch.float64)


def _dense(x: Tensor, name: str) -> Tensor:
    if x.dtype in _FLOATS and x.layout is torch.strided and not (x.is_nested or x.is_meta):
        return ordinary(x)
    if x.is_complex():
        raise complex_numbers(name)
    if x.layout != torch.strided or x.is_nested or x.is_quantized or x.is_meta:
        kind = f"a tensor on {x.device}" if x.is_meta else f"a tensor of layout {x.layout}"
        raise TypeError(f"{name}: got {kind}, expected a dense tensor with values; convert it with `.to_dense()`.")
    x = ordinary(x)
    if x.dtype in (torch.bool, torch.int64):
        return x
    return x.to(torch.float64 if x.is_floating_point() else torch.int64)


def ordinary(x: Tensor) -> Tensor:
    """The tensor itself, or a copy: numpy cannot read a tensor with a negative bit, and autograd cannot keep one from
    inference mode."""
    if torch.compiler.is_compiling():  # tracing does not support these questions
        return x
    x = x.resolve_neg()
    return x.clone() if x.is_inference() and not torch.is_inference_mode_enabled() else x


def complex_numbers(name: str) -> TypeError:
    """The error for complex numbers."""
    return TypeError(f"{name}: got complex numbers, expected real ones; give real and imaginary parts as two features.")


def _native(array: np.ndarray) -> np.dtype:
    if array.dtype.kind == "b":
        return np.dtype(bool)
    if array.dtype.kind in "iu":
        return np.dtype(np.int64)
    kept = array.dtype.newbyteorder("=")
    return kept if kept in _TORCH_FLOATS else np.dtype(np.float64)


def _array(x: Any, name: str) -> np.ndarray:
    """An array of floats, integers or booleans."""
    if isinstance(x, list | tuple):
        return _nested(x, name)
    if isinstance(x, Tensor):
        return _dense(x, name).detach().cpu().numpy()
    if isinstance(x, np.ma.MaskedArray):
        data = _array(np.asarray(x.data), name)
        mask = np.ma.getmaskarray(x)
        if not mask.any():
            return data
        data = np.array(data, dtype=_native(data) if data.dtype.kind == "f" else np.float64)
        data[mask] = np.nan
        return data
    if isinstance(x, str | bytes | bytearray | memoryview | set | frozenset | dict) or x is None:
        raise _no_numbers(x, name)
    try:
        array = np.asarray(x)
    except (TypeError, ValueError, RuntimeError, AttributeError):
        raise _no_numbers(x, name) from None
    if array.dtype.kind in "biu":
        return array
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return array.astype(_native(array), copy=False)
    if array.dtype.kind == "c":
        raise complex_numbers(name)
    if array.dtype.kind != "O":
        raise _no_numbers(x, name, str(array.dtype))
    return _objects(array, name)


def _nested(x: Any, name: str) -> np.ndarray:
    """Nested lists, level by level."""
    kinds = set(map(type, x))
    if NoneType in kinds and not kinds & {list, tuple}:
        return _objects(np.fromiter(x, dtype=object, count=len(x)), name)
    if kinds <= {float, int, bool}:
        array = np.asarray(x, dtype=np.float64 if not x else None)
        return array if array.dtype.kind in "biuf" else _objects(np.asarray(x, dtype=object), name)
    if kinds <= {list, tuple}:
        sizes = set(map(len, x))
        if len(sizes) > 1:
            raise _unequal(name)
        flat = _nested(list(chain.from_iterable(x)), name)
        return flat.reshape(len(x), sizes.pop(), *flat.shape[1:])
    parts = [_array(part, name) for part in x]
    if len({part.shape for part in parts}) > 1:
        raise _unequal(name)
    return np.stack(parts)


def _unequal(name: str) -> ValueError:
    return ValueError(f"{name}: got nested lists of unequal lengths, expected a table; give rows of one length.")


def _objects(array: np.ndarray, name: str) -> np.ndarray:
    """Python's and pandas' numbers, with missing ones: None, NA, and masked."""
    na = getattr(sys.modules.get("pandas"), "NA", None)
    flat = array.ravel().tolist()
    if array.ndim and flat and all(isinstance(value, bool | np.bool_) for value in flat):
        return array.astype(bool)
    if array.ndim and flat and all(isinstance(value, Integral) and abs(int(value)) < 2**63 for value in flat):
        return array.astype(np.int64)

    def number(value: Any) -> float:
        if value is None or (na is not None and value is na) or value is np.ma.masked:
            return np.nan
        if isinstance(value, Real | Decimal | np.bool_):
            try:
                return float(value)
            except OverflowError:
                return np.inf
        if isinstance(value, Tensor | np.ndarray) and value.ndim == 0:
            return float(_array(value, name))
        if isinstance(value, complex | np.complexfloating):
            raise complex_numbers(name)
        raise _no_numbers(value, name)

    return np.array([number(value) for value in flat], dtype=np.float64).reshape(array.shape)


def _no_numbers(x: Any, name: str, dtype: str = "") -> TypeError:
    got = f"{type(x).__name__} of {dtype}" if dtype else type(x).__name__
    return TypeError(f"{name}: got {got}, expected numbers; convert text and dates first.")
