"""Operators without their kernels: what a device has for which there is only the plain implementation."""

from functools import cache

from samplehold.inference.numerics.op import Op


@cache
def without_kernels(operator: Op) -> Op:
    return Op(f"{operator.name}_without_kernels", operator.plain, operator.fake, operator.gradient)
