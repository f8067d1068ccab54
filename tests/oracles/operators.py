"""Operators without their kernels: what a device has for which there is only the plain implementation."""

from functools import cache

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
    monkeypatch.setattr(Variants, "has_kernel", lambda self, device: False)
