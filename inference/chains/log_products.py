r"""Products of all steps of discrete chains at once, in plain torch and in logarithms.

A step is a matrix of K x K log-weights. Products of matrices are an associative scan: about $2 \log_2 T$ batched
operations replace a loop over T, with $K^3$ exponentials a step. This is faster for few sequences of few states, whose
loops mostly wait for Python. A product is a matrix whose rows sum to one, and the logarithms of the scales of its rows,
so that no row loses digits beside a larger one. Where derivatives are recorded, the loops serve: they keep less.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ..numerics.costs import is_scanned
from ..numerics.logs import log_sum_exp
from ..numerics.op import differentiated, transformed
from ..numerics.prefixes import Elements, prefixes


def repays(table: Float[Tensor, "*b T K"], *tables: Tensor | None) -> bool:
    """Whether products take less time than a loop over the steps of a table; never if derivatives are recorded."""
    return is_scanned(table) and not differentiated(table, *tables) and not transformed()


def beliefs(start: Float[Tensor, "*b K"], moves: Float[Tensor, "T *b K K"]) -> Float[Tensor, "T *b K"]:
    """The log-weights of states after each move, from those before the first; their sums are 1."""
    rows, scale = prefixes(_join, _over_rows(moves, moves.new_zeros(())))
    return log_sum_exp((start + scale).unsqueeze(-1) + rows, -2).log_softmax(-1)


def futures(moves: Float[Tensor, "T *b K K"]) -> Float[Tensor, "T *b K"]:
    """The log-weights of all steps from each move on, by the state before it; the largest is 0."""
    steps = _over_rows(moves.flip(0), moves.new_zeros(()))
    _, scale = prefixes(lambda later, earlier: _join(earlier, later), steps)
    return scale.flip(0)


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
