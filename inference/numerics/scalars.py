"""Checks of arguments that are one number, a name, or a shape. Each error names the argument.

numpy's numbers and tensors without axes count as Python numbers. A boolean is neither an integer nor a number, and a
float is not an integer, for any value.
"""

import math
import os
from collections.abc import Iterable
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

Kind = TypeVar("Kind")
MOST = 2**63 - 1  # the greatest index


def _plain(value: object) -> Any:
    """The value of a number without axes."""
    if isinstance(value, Tensor):
        return value.item() if not value.dim() and value.device.type != "meta" else value
    kinds = (np.generic, np.ndarray)  # a tuple, because torch's compiler cannot trace a union of numpy's types
    return value.item() if isinstance(value, kinds) and not value.ndim else value


def _float(number: Any) -> float:
    try:
        return float(number)
    except (OverflowError, ValueError):  # beyond all floats; a signalling NaN
        return math.nan


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_integer(name: str, value: object, least: int = 1, most: int = MOST) -> int:
    """The value as an int: a number of states, features, steps, draws or similar.

    Raises:
        TypeError: not an integer.
        ValueError: less than `least`, or more than `most`.
    """
    plain: Any = _plain(value)
    between = f"an integer of at least {least}" if most == MOST else f"an integer from {least} to {most}"
    if isinstance(plain, bool) or not isinstance(plain, int):
        raise TypeError(f"{name}: got {_short(value)}, expected {between}.")
    if not least <= plain <= most:
        raise ValueError(f"{name}: got {_short(value)}, expected {between}.")
    return int(plain)


def check_states(name: str, value: object, least: int = 1, n_axes: int = 2) -> int:
    """A number of states, whose tables fit into the memory of this machine.

    Arguments:
        n_axes: the number of axes of states in the largest table.

    Raises:
        TypeError: not an integer.
        ValueError: less than `least`, or more than memory holds.
    """
    n = check_integer(name, value, least)
    size, memory = 8 * n**n_axes, _memory()
    if size > memory:
        raise ValueError(
            f"{name}: got {n}, but a table of {' x '.join(n_axes * [str(n)])} numbers takes {size / 2**30:,.1f} GiB, "
            f"and this machine has {memory / 2**30:,.1f} GiB of memory; use fewer states."
        )
    return n


def _memory() -> float:
    """The bytes of memory of this machine; infinity if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return math.inf


def check_number(name: str, value: object, least: float | None = None, above: float | None = None) -> float:
    """The value as a finite float, at least `least`, greater than `above`.

    Raises:
        TypeError: not a number.
        ValueError: NaN, infinite, or too small.
    """
    plain = _plain(value)
    bound = f" of at least {least:g}" if least is not None else f" greater than {above:g}" if above is not None else ""
    if isinstance(plain, bool) or not isinstance(plain, Real | Decimal):
        raise TypeError(f"{name}: got {_short(value)}, expected a finite number{bound}.")
    number = _float(plain)
    low = (least is not None and not number >= least) or (above is not None and not number > above)
    if low or not math.isfinite(number):
        raise ValueError(f"{name}: got {_short(value)}, expected a finite number{bound}.")
    return number


def check_probability(name: str, value: object, proper: bool = False) -> float:
    """The value as a float from 0 to 1; if `proper`, neither 0 nor 1.

    Raises:
        TypeError: not a number.
        ValueError: out of range.
    """
    between = "a probability between 0 and 1" if proper else "a probability, from 0 to 1"
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, Real | Decimal):
        raise TypeError(f"{name}: got {_short(value)}, expected {between}.")
    number = _float(plain)
    if not 0 <= number <= 1 or (proper and number in (0, 1)):
        raise ValueError(f"{name}: got {_short(value)}, expected {between}.")
    return number


def check_choice(name: str, value: object, known: Iterable[Any]) -> Any:
    """The value, which must be one of `known`.

    Raises:
        ValueError: another value.
    """
    known = tuple(known)
    if not any(type(value) is type(one) and value == one for one in known):
        raise ValueError(f"{name}: got {_short(value)}, expected one of {', '.join(map(repr, known))}.")
    return value


def check_flag(name: str, value: object) -> bool:
    """The value as a bool.

    Raises:
        TypeError: not a boolean.
    """
    plain = _plain(value)
    if not isinstance(plain, bool):
        raise TypeError(f"{name}: got {_short(value)}, expected True or False.")
    return plain


def check_kind(name: str, value: object, kinds: type[Kind] | tuple[type[Kind], ...], expected: str) -> Kind:
    """The value, an object of one of these classes; `TypeError` for other objects."""
    if not isinstance(value, kinds):
        raise TypeError(f"{name}: got {kind_of(value)}, expected {expected}.")
    return value


def kind_of(value: object) -> str:
    """What kind of object a value is, in errors."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def check_path(name: str, value: object) -> Path:
    """The value as the path of a file or folder.

    Raises:
        TypeError: not a path.
        ValueError: an empty path, or one with characters that no file system accepts.
    """
    if not isinstance(value, str | Path):
        raise TypeError(f"{name}: got {_short(value)}, expected a path: a string, or a pathlib.Path.")
    try:
        encoded = os.fsencode(value)
    except UnicodeEncodeError:
        encoded = b""
    if not encoded or b"\0" in encoded:
        raise ValueError(f"{name}: got {_short(value)}, expected the path of a file or folder.")
    return Path(value)


def check_batch_shape(name: str, value: object) -> tuple[int, ...]:
    """The sizes of batch axes as a tuple; a size may be 0.

    Raises:
        TypeError: no sequence of integers.
        ValueError: a negative size.
    """
    if not isinstance(value, tuple | list):
        raise TypeError(f"{name}: got {_short(value)}, expected a tuple of sizes, such as () or (3,).")
    sizes = tuple(check_integer(name, size, least=0) for size in value)
    if math.prod(sizes) > MOST:
        raise ValueError(f"{name}: got {_short(value)}, expected sizes with a product of at most {MOST}.")
    return sizes
