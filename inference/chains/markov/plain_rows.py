r"""Rows that depend on inputs, in plain torch: the tables of all steps, and what a step of Newton's method needs.

$$\log A_t[i, j] = P_{ij} + w_{ij}^\top c_t - \log \sum_k \exp(P_{ik} + w_{ik}^\top c_t)$$

A chain's posterior enters an M-step by sums over its moves alone. With $x_t = (1, c_t)$, $n_t(i, j)$ the probability of
a move and $m_t(i) = \sum_j n_t(i, j)$ that of leaving i, the sums are $\sum_t n_t(i, j)\, x_t$, and

$$\frac{\partial \log p(x)}{\partial (P_{ij}, w_{ij})} = \sum_t (n_t(i, j) - m_t(i)\, A_t[i, j])\, x_t.$$

Arguments and results are those of `op`. The tables of many sequences are made by and by.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ...numerics.op import differentiated
from ...numerics.products import with_ones
from . import plain

MOST = 2**22  # numbers in the tables of all steps that are made at once
PIECE = 2**16  # numbers in the tables of some steps of an M-step
Results = tuple[Tensor, ...]


def log_rows(log_base: Tensor, weights: Tensor, inputs: Tensor) -> Tensor:
    """The logarithms of the tables of all moves [*b, S, K, K], from `[*b, K, K]`, `[*b, K, K, C]` and `[*b, S, C]`."""
    logits = (inputs @ weights.flatten(-3, -2).mT).unflatten(-1, log_base.shape[-2:]) + log_base.unsqueeze(-3)
    total = logits.logsumexp(-1, keepdim=True)
    return logits - total if logits.requires_grad else logits.sub_(total)


def filtered(tables_of: Callable[..., Results], *arguments: Tensor) -> Results:
    """`op.rows_filter` by an operator on chains with a table for every step."""

    def some(log_initial: Tensor, base: Tensor, weights: Tensor, inputs: Tensor, *others: Tensor) -> Results:
        return tables_of(log_initial, log_rows(base, weights, inputs), *others)

    return _by_parts(some, arguments)


def smoothed(tables_of: Callable[..., Results], *arguments: Tensor) -> Results:
    """`op.rows_posterior` by an operator on chains with a table for every step."""

    def some(log_initial: Tensor, base: Tensor, weights: Tensor, inputs: Tensor, *others: Tensor) -> Results:
        tables = log_rows(base, weights, inputs)
        total, state, pairs, failed = tables_of(log_initial, tables, *others)
        design = with_ones(inputs)
        expected = tables.exp() * pairs.sum(-1, keepdim=True)
        moves = [torch.einsum("...tij,...td->...ijd", table, design) for table in (pairs, expected)]
        return total, state, *moves, failed

    return _by_parts(some, arguments)


def filter(*arguments: Tensor) -> Results:
    return filtered(plain.filter, *arguments)


def posterior(*arguments: Tensor) -> Results:
    return smoothed(plain.posterior, *arguments)


def _by_parts(function: Callable[..., Results], arguments: tuple[Tensor, ...]) -> Results:
    """A function of chains, of so many at once that their tables are not too large."""
    lengths, k = arguments[-1], arguments[1].shape[-1]
    size = lengths.numel() * arguments[3].shape[-2] * k**2
    if size <= MOST or lengths.dim() == 0 or lengths.numel() <= 1 or differentiated(*arguments):
        return function(*arguments)
    n = max(1, len(lengths) * MOST // size)
    if n == 1 and lengths.dim() > 1:
        parts = [_by_parts(function, tuple(_places(arguments, place))) for place in range(len(lengths))]
        return tuple(torch.stack(tables) for tables in zip(*parts, strict=True))
    parts = [function(*_places(arguments, slice(first, first + n))) for first in range(0, len(lengths), n)]
    return tuple(torch.cat(tables) for tables in zip(*parts, strict=True))


def _places(arguments: tuple[Tensor, ...], place: int | slice) -> Iterator[Tensor]:
    """Some places of the first axis of `lengths`; a table may lack that axis, or have it with the length 1."""
    lengths = arguments[-1]
    for table, n_own in zip(arguments, (1, 2, 3, 2, 2, 0), strict=True):
        if table.dim() - n_own < lengths.dim():
            yield table
        elif len(table) == len(lengths):
            yield table[place]
        else:
            yield table if isinstance(place, slice) else table[0]


def row_sums(log_base: Tensor, changes: Tensor, design: Tensor, leaving: Tensor) -> Results:
    """See `op.row_sums`."""
    k, d = changes.shape[-2:]
    used = changes.new_zeros(*changes.shape, d)
    products = changes.new_zeros(*changes.shape[:-2], k * d, k * d)
    flat, size = changes.flatten(1, 2), max(1, PIECE // log_base.numel())
    for some, left in zip(design.split(size), leaving.split(size, 1), strict=True):
        logits = (flat @ some.mT).unflatten(1, changes.shape[1:-1]).add_(log_base.unsqueeze(-1))
        probs = torch.softmax(logits, 2)
        each = (probs.unsqueeze(3) * some.mT).flatten(2, 3)
        weighed = each * left.mT.unsqueeze(-2)
        used += (weighed @ some).unflatten(2, (k, d))
        products += weighed @ each.mT
    return used, products.unflatten(-1, (k, d)).unflatten(-3, (k, d))
