"""Message passing one step at a time: mean field on the gate and the state of each step; see `op.filter_steps`."""

from ...numerics.op import load_kernels

load_kernels(__name__)
