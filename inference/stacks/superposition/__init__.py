"""The superposition stack, whose cells are expectations over independent actions: see `op`."""

from ...numerics.op import load_kernels

load_kernels(__name__)
