"""Filters and smoothers of switching linear models, with faster forms on some devices; arguments as in `plain`."""

from torch import Tensor

from ...numerics.op import Variants
from . import plain
from .tables import Tables


def _filter(x: Tensor, lengths: Tensor, tables: Tables, order: int, belief: plain.Belief | None) -> plain.Filtered:
    return plain.filter(tables, x, lengths, order, belief)


def _smooth(x: Tensor, lengths: Tensor, tables: Tables) -> plain.Smoothed:
    return plain.smooth(tables, x, lengths)


filter = Variants(_filter, "switching_gaussian_filter")
smooth = Variants(_smooth, "switching_gaussian_smooth")
