"""Switching linear models as filters and samplers take them, as tables of numbers: see `plain`."""

from ...numerics.op import load_kernels

load_kernels(__name__)
