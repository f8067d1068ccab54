"""Operators without their kernels, as on a device for which there are none, and code without the checks of tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import jaxtyping
import pytest
from samplehold.inference.numerics.op import Op, Variants


@cache
def without_kernels(operator: Op) -> Op:
    schema = operator.schema.replace("(", "_without_kernels(", 1)
    return Op(schema, operator.plain, operator.fake, operator.gradient)


def use_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends, as on a device for which nothing is registered."""
    for kind in (Op, Variants):
        monkeypatch.setattr(kind, "__call__", lambda self, *arguments: self.plain(*arguments))
    monkeypatch.setattr(Variants, "serving", lambda self, *arguments: None)


@contextmanager
def unchecked() -> Iterator[None]:
    """Without the checks of annotations that tests add, which draw random numbers: no compiler can trace those."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
