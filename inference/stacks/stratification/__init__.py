"""The stratification stack, whose layers are poured on, drained and read by depth: see `op`."""

from ...numerics.op import load_kernels

load_kernels(__name__)
