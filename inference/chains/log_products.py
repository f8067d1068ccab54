r"""Products of all steps of discrete chains at once, in plain torch and in logarithms.

A step is a matrix of K x K log-weights. Products of matrices are an associative scan: about $2 \log_2 T$ batched
operations replace a loop over T, with $K^3$ exponentials a step. This is faster for few sequences of few states, whose
loops mostly wait for Python. A product is a matrix whose rows sum to one, and the logarithms of the scales of its rows,
so that no row loses digits beside a larger one.

If no entry of a step is smaller than `_MIXING` times its largest, the products are taken in probabilities, by matrix
multiplication: a product of such matrices has no entry below the square of `_MIXING` times its largest, so nothing that
counts underflows. Where derivatives are recorded, the loops serve: they keep less.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ..numerics.costs import is_scanned
from ..numerics.logs import log_sum_exp
from ..numerics.op import differentiated, transformed
from ..numerics.prefixes import Elements, prefixes

_MIXING = 1e-70  # its fourth power, in a product before it is scaled, is a normal number of float64


def repays(table: Float[Tensor, "*b T K"], *tables: Tensor | None) -> bool:
    """Whether products take less time than a loop over the steps of a table; never if derivatives are recorded."""
    return is_scanned(table) and not differentiated(table, *tables) and not transformed()


def beliefs(start: Float[Tensor, "*b K"], moves: Float[Tensor, "T *b K K"]) -> Float[Tensor, "T *b K"]:
    """The log-weights of states after each move, from those before the first; their sums are 1."""
    if (matrices := _probabilities(moves)) is not None:
        first = (start.double() - start.amax(-1, keepdim=True)).exp()
        weights = (first.unsqueeze(-2) @ _products(matrices)).squeeze(-2)
        return (weights / weights.sum(-1, keepdim=True)).log().to(start.dtype)
    rows, scale = prefixes(_join, _over_rows(moves, moves.new_zeros(())))
    return log_sum_exp((start + scale).unsqueeze(-1) + rows, -2).log_softmax(-1)


def futures(moves: Float[Tensor, "T *b K K"]) -> Float[Tensor, "T *b K"]:
    """The log-weights of all steps from each move on, by the state before it; the largest is 0."""
    if (matrices := _probabilities(moves)) is not None:
        weights = _products(matrices.mT.flip(0)).flip(0).sum(-2)
        return (weights / weights.amax(-1, keepdim=True)).log().to(moves.dtype)
    steps = _over_rows(moves.flip(0), moves.new_zeros(()))
    _, scale = prefixes(lambda later, earlier: _join(earlier, later), steps)
    return scale.flip(0)


def _probabilities(moves: Tensor) -> Tensor | None:
    """Each step as a matrix of probabilities in float64, the largest of which is 1; None if one is below `_MIXING`."""
    least, most = moves.flatten(-2).aminmax(dim=-1)
    if not bool(((most - least) <= -math.log(_MIXING)).all()):  # False for NaN and -inf too
        return None
    return (moves - most[..., None, None]).double().exp()


def _products(matrices: Tensor) -> Tensor:
    """The product of all matrices up to each, divided by its largest entry."""

    def multiply(earlier: Elements, later: Elements) -> Elements:
        product = earlier[0] @ later[0]
        return (product / product.amax((-2, -1), keepdim=True),)

    return prefixes(multiply, (matrices,))[0]


def _join(earlier: Elements, later: Elements) -> Elements:
    (rows, scale), (rows_after, scale_after) = earlier, later
    onward = scale_after.unsqueeze(-1) + rows_after
    return _over_rows(log_sum_exp(rows.unsqueeze(-1) + onward.unsqueeze(-3), -2), scale)


def _over_rows(matrix: Tensor, scale: Tensor) -> Elements:
    """Rows that sum to one, and the logarithms of their scales, the largest of which is 0."""
    total = log_sum_exp(matrix, -1)
    scale = scale + total
    return matrix - _finite(total).unsqueeze(-1), scale - _finite(scale.amax(-1, keepdim=True))


def _finite(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, 0.0)
