r"""Products of all steps of discrete chains at once, in plain torch and in logarithms.

A step is a matrix of K x K log-weights. Products of them are an associative scan: about $2 \log_2 T$ batched operations
in the place of a loop over T, each of $K^3$ exponentials a step. That repays for few sequences of few states, whose
loops mostly wait for Python. Each product is divided by its largest entry, so that it keeps the digits of its rows
unless they lie thousands of nats apart, as where a state cannot be left. The loops are exact there too, and they are
differentiable; what kernels hand back as doubtful goes to them.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ..numerics.costs import is_scanned
from ..numerics.logs import log_sum_exp
from ..numerics.op import differentiated, transformed
from ..numerics.prefixes import Elements, prefixes


def repays(table: Float[Tensor, "*b T K"], *tables: Tensor | None) -> bool:
    """Whether products take less time than a loop over the steps of a table; never where derivatives are recorded."""
    return is_scanned(table) and not differentiated(table, *tables) and not transformed()


def beliefs(start: Float[Tensor, "*b K"], moves: Float[Tensor, "T *b K K"]) -> Float[Tensor, "T *b K"]:
    """The log-weights of states after each move, from those before the first; their sums are 1."""
    (products,) = prefixes(_join, (moves,))
    return log_sum_exp(start.unsqueeze(-1) + products, -2).log_softmax(-1)


def futures(moves: Float[Tensor, "T *b K K"]) -> Float[Tensor, "T *b K"]:
    """The log-weights of all that comes from each move on, by the state before it; the largest is 0."""
    (products,) = prefixes(lambda later, earlier: _join(earlier, later), (moves.flip(0),))
    future = log_sum_exp(products, -1).flip(0)
    return future - _largest(future, -1)


def _join(earlier: Elements, later: Elements) -> Elements:
    product = log_sum_exp(earlier[0].unsqueeze(-1) + later[0].unsqueeze(-3), -2)
    return (product - _largest(product, (-2, -1)),)


def _largest(x: Tensor, dims: int | tuple[int, ...]) -> Tensor:
    """The largest numbers over `dims`, or 0 where that is not finite."""
    top = x.amax(dims, keepdim=True)
    return torch.where(top.isfinite(), top, 0.0)
