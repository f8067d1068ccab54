"""Gaussian paths by their natural parameters, a block tridiagonal precision: see `op`."""

from ...numerics.op import load_kernels

load_kernels(__name__)
