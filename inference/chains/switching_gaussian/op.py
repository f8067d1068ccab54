"""Filters, smoothers and Gibbs moves of switching linear models, with faster forms on some devices.

Arguments are as in `plain` and `sampling`.
"""

from torch import Tensor

from ...numerics.op import Variants
from . import plain, sampling
from .polya_gamma import polya_gamma as plain_polya_gamma
from .tables import Tables


def _filter(x: Tensor, lengths: Tensor, tables: Tables, order: int, belief: plain.Belief | None) -> plain.Filtered:
    return plain.filter(tables, x, lengths, order, belief)


def _smooth(x: Tensor, lengths: Tensor, tables: Tables) -> plain.Smoothed:
    return plain.smooth(tables, x, lengths)


filter: Variants = Variants(_filter)
smooth: Variants = Variants(_smooth)
latents: Variants = Variants(sampling.latents)
collapsed: Variants = Variants(sampling.collapsed)
redrawn: Variants = Variants(sampling.redrawn)
polya_gamma: Variants = Variants(plain_polya_gamma)
