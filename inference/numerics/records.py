"""Short forms of records that hold tensors."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from textwrap import wrap
from typing import Any, ClassVar, TypeVar

from torch import Tensor

Kind = TypeVar("Kind")
FEW, SEVERAL = 4, 4  # the most numbers and entries that are written out
LONG, WIDTH, LINES = 60, 100, 10  # letters of an entry, and of a line


class Record:
    """A dataclass with `repr=False` whose short form shows numbers if they are few, and shapes if they are many.

    Example:
        >>> import torch
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, repr=False)
        ... class Path(Record):
        ...     states: Tensor
        ...     log_probability: Tensor
        >>> Path(torch.zeros(100, 2), torch.tensor(-3.25))
        Path(states: [100, 2], log_probability: -3.25)
    """

    def __repr__(self) -> str:
        return brief(self)


def made(kind: type[Kind], **known: Any) -> Kind:
    """A record with these fields, the others at their defaults, which its class holds. A frozen constructor sets each
    field by a call: for records of many fields that are made at every step."""
    record = object.__new__(kind)
    vars(record).update(known)
    return record


def late(kind: type[Kind], make: Callable[[str], Mapping[str, Any]], **known: Any) -> Kind:
    """A record of which some fields are known. When another one is first read, `make` of its name gives it, and others
    if they cost nothing more: for records that are made often and read in part."""
    record = object.__new__(_late(kind))
    vars(record).update(known, _make=make)
    return record


class _Late:
    _kind: ClassVar[type]

    def __getattr__(self, name: str) -> Any:
        own = vars(self)
        if "_make" not in own or name not in self._kind.__dataclass_fields__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        own.update(own["_make"](name))
        return own[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return self._kind, tuple(getattr(self, name) for name in self._kind.__dataclass_fields__)


@cache
def _late(kind: type) -> type:
    return type(kind.__name__, (_Late, kind), {"_kind": kind, "__doc__": kind.__doc__})


def brief(record: Any) -> str:
    """A record's name and its fields, in at most ten lines."""
    text = f"{type(record).__name__}({', '.join(f'{name}: {_short(value)}' for name, value in _entries(record))})"
    lines = wrap(text, WIDTH, subsequent_indent="    ")
    return "\n".join(lines if len(lines) <= LINES else [*lines[: LINES - 1], "    ..."])


def _entries(record: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(record):
        yield from ((field.name, getattr(record, field.name)) for field in fields(record) if field.repr)
    else:
        yield from zip(record._fields, record, strict=True)


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        few = value.ndim <= 1 and value.numel() <= FEW and not value.is_meta
        return _numbers(value.tolist()) if few else str(list(value.shape))
    if isinstance(value, Mapping):
        entries = [f"{key}: {_short(entry)}" for key, entry in list(value.items())[:SEVERAL]]
        return f"{{{', '.join(entries)}{', ...' if len(value) > SEVERAL else ''}}}"
    if isinstance(value, list | tuple):
        entries = [_short(entry) for entry in value[:SEVERAL]]
        return f"({', '.join(entries)}{', ...' if len(value) > SEVERAL else ''})"
    text = repr(value)
    plain = "\n" not in text and len(text) <= LONG
    return text if plain else f"{type(value).__name__}{list(value.shape) if hasattr(value, 'shape') else ''}"


def _numbers(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_numbers, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
