"""Markov chains whose rows depend on inputs, on the CPU: `inference/native/driven.h` behind the operators.

The library makes the table of a move when a sweep reaches it, in float64. It reports sequences that could lose digits.
These are computed by tables of all steps, in logarithms where needed.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...native.library import addresses, empty, function, integers
from ...numerics.native_calls import as_table, check_ends, parts, refuse_lack, run
from . import op, plain_rows
from .native_tables import address, entries, read

Results = tuple[Tensor, ...]
_OWN = 1, 2, 3, 2, 2  # axes of the tables that are not batch axes
_STEP, _ENTRY = 4e-8, 2e-9  # seconds of a step, and of an input in an entry of its table
_SUM = 3e-10  # seconds of a product of two numbers of the design, of a pair of states, at one step


@op.rows_filter.kernel("cpu")
def rows_filter(*arguments: Tensor) -> Results:
    like = arguments[4]
    return _sweep("markov_rows_filter", arguments, [like.shape[-2:], like.shape[-2:-1]], op.filter, plain_rows.filtered)


@op.rows_posterior.kernel("cpu")
def rows_posterior(*arguments: Tensor) -> Results:
    k, c = arguments[2].shape[-2:]
    shapes = [arguments[4].shape[-2:], (k, k, 1 + c), (k, k, 1 + c)]
    return _sweep("markov_rows_posterior", arguments, shapes, op.posterior, plain_rows.smoothed)


def _sweep(
    name: str, arguments: Results, shapes: list[Any], of_tables: Callable[..., Results], exactly: Callable[..., Results]
) -> Results:
    """Results of these shapes for each sequence, after log p(x)."""
    dtype, lengths = arguments[4].dtype, arguments[-1]
    (n_steps, k), c = arguments[4].shape[-2:], arguments[3].shape[-1]
    check_ends(None, weights=(arguments[2], (k, k, c)), inputs=(arguments[3], (n_steps - 1, c)))
    initial, base, weights, inputs, like = tables = [table.detach().double() for table in arguments[:-1]]
    chains = read(initial, base.unsqueeze(-3), like, lengths)
    kept = [entries(x, 2, lengths.shape) for x in (weights.flatten(-3, -2), inputs)]
    flat, of, apart = zip(*kept, strict=True)
    given = addresses(*flat, *map(address, of), *apart, inputs.shape[-1])
    results = [empty(*lengths.shape, *shape, dtype=torch.float64) for shape in ((), *shapes)]
    failed = empty(*lengths.shape, dtype=torch.int64)
    seconds = like.shape[-2] * (_STEP + _ENTRY * like.shape[-1] ** 2 * (2 + inputs.shape[-1]))
    group = 4 if chains.n >= 8 and like.shape[-1] <= 4 else 1
    chains._replace(group=group, seconds=seconds).run(name, None, given, *results, failed)
    if (failed.numpy() != -1).any():
        axes = lengths.shape or (1,)
        places = (failed.view(axes) != -1).nonzero(as_tuple=True)
        some = [x.expand(*axes, *x.shape[x.dim() - n :])[places] for x, n in zip(tables, _OWN, strict=True)]
        exact = exactly(of_tables, *some, lengths.view(axes)[places])
        for table, found in zip((*results, failed), exact, strict=True):
            table.view(*axes, *table.shape[lengths.dim() :])[places] = found
    return *(table.to(dtype) for table in results), failed


def row_sums(log_base: Tensor, changes: Tensor, design: Tensor, leaving: Tensor) -> Results:
    (restarts, n_rows, k, d), n_steps = changes.shape, len(design)
    shapes = (restarts, n_rows, k), changes.shape, (n_steps, d), (restarts, n_steps, n_rows)
    given = zip((log_base, changes, design, leaving), shapes, strict=True)
    tables = [as_table(x, shape, torch.float64) for x, shape in given]
    used, products = (empty(*changes.shape, *more, dtype=torch.float64) for more in ((d,), (k, d)))
    n, lacking = restarts * n_rows, integers(0)
    tasks = [integers(*part) for part in parts(n, n * n_steps * (k * d) ** 2 * _SUM)]
    run(function("markov_row_sums"), tasks, integers(k, d, n_steps, n_rows), *tables, used, products, lacking)
    refuse_lack(lacking[0])
    return used.to(changes.dtype), products.to(changes.dtype)


op.row_sums.kernel("cpu")(row_sums)
