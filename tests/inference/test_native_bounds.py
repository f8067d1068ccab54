"""Operators called with anything: they raise an error, or give results that can be read, and the process lives.

A valid call of every operator with a kernel is spoiled in one or two places. `.ci/sanitized` runs this file with a
library that watches every read and write.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles.operator_calls import CALLS, Size
from torch import Tensor

pytestmark = [
    pytest.mark.cpu("its kernels"),
    pytest.mark.filterwarnings("ignore:The given NumPy array is not writable", "ignore:Converting a tensor with req"),
]


def places(x: Any, at: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Where tensors and numbers are in nested arguments."""
    if isinstance(x, tuple):
        for i, part in enumerate(x):
            yield from places(part, (*at, i))
    elif isinstance(x, Tensor | int | float):
        yield at


def changed(x: Any, at: tuple[int, ...], change: Callable[[Any], Any]) -> Any:
    """The same arguments but for the one at a place."""
    if not at:
        return change(x)
    parts = [changed(part, at[1:], change) if i == at[0] else part for i, part in enumerate(x)]
    return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)


def read_only(x: Tensor) -> Tensor:
    array = x.resolve_neg().numpy().copy()
    array.setflags(write=False)
    return torch.from_numpy(array)


def filled(x: Tensor, value: float, whole: bool) -> Tensor:
    """All numbers, or the first half of them, replaced by another one."""
    some = torch.arange(x.numel()).reshape(x.shape) <= (x.numel() if whole else x.numel() // 2)
    most = 3e38 if x.is_floating_point() else 2**31 - 1
    wide = x.dtype in (torch.float64, torch.int64) or value != value
    return torch.where(some, torch.tensor(value if wide else max(-most, min(most, value))).to(x.dtype), x)


def one_axis(x: Tensor, axis: int, change: str) -> Tensor:
    if not x.dim():
        return x[None]
    axis %= x.dim()
    size = x.shape[axis]
    if change == "shorter":
        return x.narrow(axis, 0, max(size - 1, 0))
    if change == "longer":
        return torch.cat([x, x.narrow(axis, 0, min(size, 1))], axis)
    if change == "gone":
        return x.select(axis, 0) if size else x.sum(axis).to(x.dtype)
    if change == "empty":
        return x.narrow(axis, 0, 0)
    if change == "one":
        return x.narrow(axis, 0, min(size, 1))
    if change == "more":
        return x.unsqueeze(axis)
    return x.transpose(axis, -1)


def strided(x: Tensor, kind: str) -> Tensor:
    """Numbers that lie elsewhere, more than once, or in memory that cannot be written."""
    if kind == "apart":
        return torch.stack([x, x], -1)[..., 0]
    if kind == "backward":
        return x.mT.contiguous().mT if x.dim() > 1 else x
    if kind == "repeated":
        return x[:1].expand(x.shape) if x.dim() and x.numel() else x
    if kind == "overlapping":
        return x.as_strided(x.shape, [min(stride, 1) for stride in x.stride()]) if x.numel() else x
    if kind == "negative":
        return torch.complex(torch.zeros_like(x), -x).conj().imag if x.is_floating_point() else x
    return read_only(x)


AXES = "shorter", "longer", "gone", "empty", "one", "more", "transposed"
STRIDES = "apart", "backward", "repeated", "overlapping", "negative", "read-only"
DTYPES = torch.float32, torch.float64, torch.int32, torch.int64, torch.bool, torch.float16
VALUES = float("nan"), float("inf"), -float("inf"), 0, -1, 1, 1e300, -1e300
INTEGERS = -(2**63), -(2**40), -7, -1, 0, 1, 2, 3, 17, 2**31, 2**40, 2**63 - 1
FEW = -7, -1, 0, 1, 2, 5

spoils = st.one_of(
    st.tuples(st.just("axis"), st.integers(0, 3), st.sampled_from(AXES)),
    st.tuples(st.just("strides"), st.sampled_from(STRIDES)),
    st.tuples(st.just("dtype"), st.sampled_from(DTYPES)),
    st.tuples(st.just("value"), st.integers(0, len(INTEGERS) - 1), st.booleans()),
    st.tuples(st.just("meta")),
)


def spoiled(x: Any, spoil: tuple[Any, ...]) -> Any:
    kind, *how = spoil
    if not isinstance(x, Tensor):
        return FEW[how[0] % len(FEW)] if kind == "value" else x
    if kind == "value":
        values = INTEGERS if x.dtype == torch.int64 else VALUES
        value = values[how[0] % len(values)]
        return x if x.is_meta else filled(x, value, how[1])
    if x.is_meta:
        return x
    if kind == "axis":
        return one_axis(x, *how)
    if kind == "strides":
        return strided(x, *how)
    return x.to(*how) if kind == "dtype" else x.to("meta")


ERRORS = (
    ValueError,
    TypeError,
    RuntimeError,
    IndexError,
    KeyError,
    ZeroDivisionError,
    NotImplementedError,
    MemoryError,
    AssertionError,
)


def tensors(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, tuple | list):
        for part in x:
            yield from tensors(part)


def attempt(function: Callable[..., Any], arguments: tuple[Any, ...], differentiate: bool) -> list[torch.Size] | None:
    """The shapes of the results, whose numbers are read; None if there was an error."""
    if differentiate:
        for x in tensors(arguments):
            if x.is_floating_point() and x.is_leaf and x.dtype != torch.float16:
                x.requires_grad_()
    try:
        results = list(tensors(function(*arguments)))
        roots = [x.sum() for x in results if x.requires_grad]
        if roots and not any(x.is_meta for x in roots):
            leaves = [x for x in tensors(arguments) if x.requires_grad]
            torch.autograd.grad(sum(roots[1:], roots[0]), leaves, allow_unused=True)
    except ERRORS:
        return None
    for x in results:
        if not x.is_meta:
            x.detach().resolve_neg().contiguous().numpy().tobytes()
    return [x.shape for x in results]


sizes = st.builds(
    Size,
    st.sampled_from([1, 2, 9, 0]),
    st.sampled_from([1, 2, 5, 0]),
    st.sampled_from([1, 3, 20]),
    st.sampled_from([torch.float64, torch.float32]),
    st.integers(0, 11),
)


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_valid(name):
    function, arguments = CALLS[name](Size(2, 5, 3, torch.float64, 3))
    assert attempt(function, arguments, differentiate=False)


@examples(50)
@pytest.mark.parametrize("name", CALLS)
@given(size=sizes, changes=st.lists(st.tuples(st.integers(0, 30), spoils), max_size=2), differentiate=st.booleans())
def test_nothing_crashes(name, size, changes, differentiate):
    function, arguments = CALLS[name](size)
    expected = attempt(function, arguments, differentiate=False)
    for number, change in changes:
        found = list(places(arguments))
        arguments = changed(arguments, found[number % len(found)], lambda x, change=change: spoiled(x, change))
    shapes = attempt(function, arguments, differentiate)
    if None not in (shapes, expected) and all(kind == "strides" for _, (kind, *_) in changes):
        assert shapes == expected
