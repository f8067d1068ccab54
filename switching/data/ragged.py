"""`by_sequence`: results of several sequences as one record for each, without padding.

The sequences are processed in groups of similar length (`Series.groups`), so no table is padded to the longest of all.
The shapes in the annotations of a record's fields say which axes are those of sequences (`*b`) and of steps (`T`).
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, get_args, overload, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ...inference.numerics.deferred import recompute
from ...inference.numerics.randomness import seed_number
from ...inference.numerics.scalars import check_flag
from .series import Given, Series

P = ParamSpec("P")
R = TypeVar("R")
EACH = """

        For a list of sequences the result is a list with such a record for each sequence, cut to its length. For a
        dictionary of sequences it is a dictionary. For other data it is one record of padded tables. `ragged=True`
        gives the list for all data, in the order of x, and `ragged=False` the padded tables.
        """


@runtime_checkable
class Bound(Protocol[P, R]):
    """A method whose results have an axis of steps."""

    @overload
    def __call__(self, x: Any, *args: Any, ragged: Literal[True], **options: Any) -> list[R] | dict[Any, R]: ...

    @overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> R: ...


@runtime_checkable
class Verb(Protocol[P, R]):
    """The same method, of a class."""

    def __get__(self, source: Any, kind: Any = None, /) -> Bound[P, R]: ...


def by_sequence(
    draws: bool = False, each: str | None = None
) -> Callable[[Callable[Concatenate[Any, P], R]], Verb[P, R]]:
    """Give a method `verb(x, ..., **given)` of a model the argument `ragged`. A model whose sequences belong `together`
    has tables for lists too, and refuses `ragged=True` by `check_apart(series)`.

    Arguments:
        draws: whether the method draws paths with its `seed`; then every group has other random numbers.
        each: if the sequences of one call end an iteration together, the name of a method that takes a series of
            sequences and the options, and returns the record of each sequence alone.
    """

    def extended(verb: Callable[..., Any]) -> Any:
        shape = signature(verb)

        @wraps(verb)
        def method(self: Any, x: Any, *args: Any, ragged: bool | None = None, **options: Any) -> Any:
            if ragged is None and (isinstance(x, Tensor) or type(x) is np.ndarray):  # a table has a table
                return verb(self, x, *args, **options)
            given = {name: options.pop(name) for name in Given.__annotations__ if name in options}
            series: Series = self.read(x, **given)
            apart = series.listed and not self.together if ragged is None else check_flag("ragged", ragged)
            if not apart:
                return verb(self, series.as_table(), *args, **options)
            getattr(self, "check_apart", lambda series: None)(series)
            call = shape.bind(self, series, *args, **options)
            call.apply_defaults()
            numbers = seeds_of(call.arguments["seed"]) if draws else None

            def compute(part: Series, verb: Callable[..., Any] = verb) -> Any:
                call.arguments["x"] = part
                if numbers is not None:
                    call.arguments["seed"] = next(numbers)
                return verb(*call.args, **call.kwargs)

            def of_each(part: Series) -> list[Any]:
                if each is not None:
                    return compute(part, getattr(type(self), each))
                return split(compute(part), (part.last + 1).flatten().tolist(), shape.return_annotation)

            every = range(series.n_sequences)
            records: list[Any] = [None] * len(every)
            for members in series.groups() if every else []:
                part = series.part(members)
                with recompute(lambda: compute(series), ValueError):
                    cut = of_each(part)
                for i, one in zip(members.tolist(), cut, strict=True):
                    records[i] = one
            if isinstance(x, dict) and series.sequences is not None:
                return dict(zip(x, records, strict=True))
            names = None if series.stacked is not None else series.sequences
            return records if names is None else dict(zip(names, records, strict=True))

        parameters = list(shape.parameters.values())
        last = [parameters.pop()] if parameters[-1].kind is Parameter.VAR_KEYWORD else []
        flag = Parameter("ragged", Parameter.KEYWORD_ONLY, default=None, annotation=bool | None)
        vars(method)["__signature__"] = shape.replace(parameters=[*parameters, flag, *last])
        method.__doc__ = (verb.__doc__ or "").rstrip() + EACH
        return method

    return extended


def seeds_of(seed: Any) -> Iterator[Any]:
    """A seed for each group: other numbers from a number; a generator or None as they are."""
    if seed is None or isinstance(seed, torch.Generator):
        while True:
            yield seed
    generator = torch.Generator().manual_seed(seed_number(seed))
    while True:
        yield int(torch.randint(2**62, (), generator=generator, device="cpu"))


def split(value: Any, lengths: list[int], shape: Any = None) -> list[Any]:
    """The parts of sequences `[B]` of a record, a tuple or a table, cut to their lengths.

    Arguments:
        shape: the annotation of the value; a value without axes of sequences belongs to each of them.
    """
    if isinstance(value, Tensor):
        return _split_table(value, lengths, shape)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: split(getattr(value, f.name), lengths, f.type) for f in fields(value)}
        return [replace(value, **{name: part[i] for name, part in parts.items()}) for i in range(len(lengths))]
    if isinstance(value, dict):
        of_value = next(iter(get_args(shape)[1:]), None)
        tables = {name: split(entry, lengths, of_value) for name, entry in value.items()}
        return [{name: table[i] for name, table in tables.items()} for i in range(len(lengths))]
    if isinstance(value, tuple):
        inner = (
            type(value).__annotations__.values() if hasattr(value, "_fields") else [*get_args(shape)[:1]] * len(value)
        )
        parts = [split(entry, lengths, of) for entry, of in zip(value, inner, strict=True)]
        make = type(value) if hasattr(value, "_fields") else lambda *entries: entries
        return [make(*entries) for entries in zip(*parts, strict=True)]
    return [value] * len(lengths)


def _split_table(table: Tensor, lengths: list[int], shape: Any) -> list[Tensor]:
    names = _axes(shape, table.ndim)
    if "*b" not in names:
        return [table] * len(lengths)
    first = names.index("*b")
    names = [name for name in names if name != "*b"]
    parts = table.unbind(first)
    for axis, name in enumerate(names):
        if name in ("T", "T-1"):
            sizes = [n - (name == "T-1") for n in lengths]
            parts = [part.narrow(axis, 0, n) for part, n in zip(parts, sizes, strict=True)]
    # a view would keep the table of the whole group in memory
    return [part.clone() if len(lengths) > 1 else part for part in parts]


def _axes(shape: Any, n_axes: int) -> list[str]:
    """The names of the axes of a table, from an annotation with one shape, or with several of different sizes."""
    options = [shape, *get_args(shape)]
    shapes = [option.dim_str.split() for option in options if hasattr(option, "dim_str")]
    return next((names for names in shapes if len(names) == n_axes), [])
