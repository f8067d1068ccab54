"""Gated recurrences of minimal networks, straight from pre-activations: the functions to call are in `op`."""

from ...numerics.op import load_kernels

load_kernels(__name__)
