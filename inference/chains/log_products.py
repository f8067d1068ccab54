r"""Products of all steps of discrete chains in plain torch, without a loop over all steps.

A step is a matrix of K x K log-weights. The T steps are cut into about $\sqrt T$ blocks of $\sqrt T$ steps. The
products of all blocks are taken side by side. A vector passes from block to block, and then through all blocks side by
side. These are $3 \sqrt T$ batched operations in place of T, with $K^3$ products a step. This is faster for few
sequences of few states, whose loops mostly wait for Python.

If no entry of a step is smaller than `_MIXING` times its largest, the products are taken in probabilities, by matrix
multiplication: a product of such matrices has no entry below the square of `_MIXING` times its largest, so nothing that
counts underflows. Otherwise they are taken in logarithms. A product is then a matrix whose rows sum to one, and the
logarithms of the scales of its rows, so that no row loses digits beside a larger one. Where derivatives are recorded,
the loops serve: they keep less.
"""

import math
from collections.abc import Callable
from functools import reduce
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from ..numerics.logs import log_sum_exp
from ..numerics.op import differentiated, transformed

Elements = tuple[Tensor, ...]  # of a step, or of a product of steps
Join = Callable[[Elements, Elements], Elements]
Move = Callable[[Tensor, Elements], Tensor]
_LEAST_STEPS = 12  # that are worth products
_MOST_PRODUCTS = 1 << 14  # of a step of all sequences, beyond which a loop over steps takes no longer
_MOST_AT_ONCE = 1 << 24  # of all steps, for the sake of memory
_MIXING = 1e-70  # its fourth power, in a product before it is scaled, is a normal number of float64


def repays(table: Float[Tensor, "*b T K"], *tables: Tensor | None) -> bool:
    """Whether products take less time than a loop over the steps of a table; never if derivatives are recorded."""
    return is_small(table) and not differentiated(table, *tables) and not transformed()


def is_small(table: Float[Tensor, "*b T K"]) -> bool:
    """Whether the products of all steps of a chain with this table are few enough."""
    if table.dim() < 2 or table.shape[-2] < _LEAST_STEPS:
        return False
    n_steps, n_states = table.shape[-2:]
    products = table.numel() * n_states**2
    return products <= _MOST_PRODUCTS * n_steps and products <= _MOST_AT_ONCE


def beliefs(start: Float[Tensor, "*b K"], moves: Float[Tensor, "T *b K K"]) -> Float[Tensor, "T *b K"]:
    """The log-weights of states after each move, from those before the first; their sums are 1."""
    if (matrices := _probabilities(moves)) is not None:
        first = (start.double() - start.amax(-1, keepdim=True)).exp()
        found = _passed(first, (_whole_blocks(matrices, 1.0, 0.0),), _multiply, _move).log().to(start.dtype)
    else:
        steps = _over_rows(_whole_blocks(moves, 0.0, -torch.inf), moves.new_zeros(()))
        found = _passed(start, steps, _join, _log_move)
    return found[: len(moves)]


def futures(moves: Float[Tensor, "T *b K K"]) -> Float[Tensor, "T *b K"]:
    """The log-weights of all steps from each move on, by the state before it; the largest is 0."""
    weights = beliefs(moves.new_zeros(moves.shape[1:-1]), moves.mT.flip(0)).flip(0)
    return weights - weights.amax(-1, keepdim=True)


def _probabilities(moves: Tensor) -> Tensor | None:
    """Each step as a matrix of probabilities in float64, the largest of which is 1; None if one is below `_MIXING`."""
    least, most = moves.flatten(-2).aminmax(dim=-1)
    if not bool(((most - least) <= -math.log(_MIXING)).all()):  # False for NaN and -inf too
        return None
    return (moves - most[..., None, None]).double().exp()


def _whole_blocks(moves: Tensor, kept: float, left: float) -> Tensor:
    """Blocks of moves [n, L, *b, K, K]; at the end of the last one are moves that keep each state."""
    n_steps, n_states = moves.shape[0], moves.shape[-1]
    size = math.isqrt(max(n_steps - 1, 0)) + 1
    n = -(-n_steps // size)
    same = moves.new_full((n_states, n_states), left).fill_diagonal_(kept)
    padding = same.expand(n * size - n_steps, *moves.shape[1:])
    return torch.cat([moves, padding]).unflatten(0, (n, size))


def _passed(vector: Tensor, steps: Elements, join: Join, move: Move) -> Tensor:
    """A vector [*b, K] after each step, [T, *b, K], of steps [n, L, *b, ...]."""
    in_turn = list(zip(*(part.unbind(1) for part in steps), strict=True))  # the first step of all blocks, the second
    blocks = zip(*(part.unbind(0) for part in reduce(join, in_turn)), strict=True)
    *begun, _ = accumulate(blocks, move, initial=vector)
    each = torch.stack([x.expand_as(begun[-1]) for x in begun])
    return torch.stack([*accumulate(in_turn, move, initial=each)][1:], 1).flatten(0, 1)


def _multiply(earlier: Elements, later: Elements) -> Elements:
    product = earlier[0] @ later[0]
    return (product / product.amax((-2, -1), keepdim=True),)


def _move(vector: Tensor, step: Elements) -> Tensor:
    moved = (vector.unsqueeze(-2) @ step[0]).squeeze(-2)
    return moved / moved.sum(-1, keepdim=True)


def _log_move(vector: Tensor, step: Elements) -> Tensor:
    rows, scale = step
    return log_sum_exp((vector + scale).unsqueeze(-1) + rows, -2).log_softmax(-1)


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
