"""The weighted pushdown recursion, for stacks whose actions have any weights or whose top is observed: see `op`."""

from ...numerics.op import load_kernels

load_kernels(__name__)
