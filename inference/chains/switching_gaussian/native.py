"""GPB filters and Kim's smoother on the CPU, over sequences: see `native/switching.h`; and Polya-Gamma numbers."""

from collections.abc import Sequence
from functools import cache
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...native.library import addresses, empty, function, integers
from ...numerics.native_calls import as_table, parts, refuse_lack, run
from ...numerics.threads import ranges, sum_of_steps
from . import native_gibbs, op
from .plain import Belief, Filtered, Smoothed
from .tables import Tables, grid

_MIN_WORK = 1 << 13  # Polya-Gamma numbers that repay a second thread
_LONGEST = 0.1  # seconds of a stretch of steps, after which an interrupt is heard
_SIZES = 11  # of `Given`, the last of which says whether memory lacked


@op.polya_gamma.kernel("cpu")
def polya_gamma(c: Tensor, seeds: Tensor) -> Tensor:
    n, width = c.shape
    drawn = empty(n, width, dtype=torch.float64)
    tables = as_table(c.detach().resolve_neg(), c.shape, torch.float64), as_table(seeds, (n,), torch.int64)
    tasks = [integers(*rows) for rows in ranges(n, max(1, _MIN_WORK // max(1, width)), max(1, n))]
    run(function("polya_gamma_rows"), tasks, integers(width), *tables, drawn)
    return drawn.to(c.dtype)


def _table(x: Tensor, shape: Sequence[int]) -> Tensor:
    return as_table(x.detach().resolve_neg(), shape, torch.float64)


def _zeros(*shape: int) -> Tensor:
    return torch.from_numpy(np.zeros(shape))


@cache
def _points(n_directions: int) -> tuple[Tensor, Tensor]:
    """The points [d, P] of means over directions and their log-weights, filled up to whole vectors of any width."""
    nodes, log_weight = grid(n_directions, torch.zeros(0, dtype=torch.float64, device="cpu"))
    pad, fill = torch.nn.functional.pad, (0, -len(nodes) % 8)
    return pad(nodes.mT, fill).contiguous(), pad(log_weight, fill, value=-torch.inf)


class _Job(NamedTuple):
    """A record `Given` of native/switching.h, the tables that it points to, and about how many seconds a step takes."""

    given: Any
    tables: Sequence[Tensor | None]
    size: tuple[int, int]  # N, T
    seconds: float

    def run(self, name: str, *, back: bool = False) -> None:
        n, n_steps = self.size
        stretches = ranges(n_steps, at_most=ceil(self.seconds * n_steps / _LONGEST))
        for steps in stretches[::-1] if back else stretches:
            tasks = parts(n, self.seconds * n * (steps[1] - steps[0]))
            run(function(name), [integers(*span, *steps) for span in tasks], self.given)
            refuse_lack(self.given[_SIZES - 1])


def _job(
    x: Tensor,
    lengths: Tensor,
    tables: Tables,
    order: int,
    results: Sequence[Tensor | None],
    *,
    goes_on: bool = False,
    smooths: bool = False,
) -> _Job:
    native_gibbs.check_sizes(tables, order)
    (n, n_steps, f), (k, _, n_latent) = x.shape, tables.emission.shape
    j = 0 if tables.recurrence is None else len(tables.recurrence)
    d = min(j, n_latent)
    square, shapes = (k, n_latent, n_latent), [(k,), (k, k), (k, n_latent)]
    shapes += [square, square, shapes[2], square, (k, f, n_latent), (k, f), (k, f, f), (j, n_latent), (k, j), x.shape]
    model = [*tables[:10], *(tables[10:] if d else (None, None)), x]
    ready = [t if t is None else _table(t, shape) for t, shape in zip(model, shapes, strict=True)]
    nodes = _points(d) if d else (None, None)
    n_points = 0 if nodes[0] is None else nodes[0].shape[1]
    sizes = n_steps, f, n_latent, k, order, int(goes_on), int(smooths), j, d, n_points, 0
    passed = [*ready[:-1], *nodes, ready[-1], as_table(lengths, (n,), torch.int64), *results]
    seconds = 1e-9 * (ceil(k**order / 4) * (100 + 3 * (n_latent + f) ** 3) + k ** max(order - 1, 1) * n_points * 6 * k)
    return _Job(addresses(*sizes, *passed), passed, (n, n_steps), seconds)


def _unfailed(n: int) -> Tensor:
    return torch.full((n,), -1, dtype=torch.int64, device="cpu")


@op.filter.kernel("cpu")
def filter(x: Tensor, lengths: Tensor, tables: Tables, order: int, belief: Belief | None) -> Filtered:
    (n, n_steps, _), k, n_latent = x.shape, tables.n_regimes, tables.n_latent
    increment, state, lagged, mean, covariance = (
        _zeros(n, n_steps, *size) for size in ((), (k,), (k,), (n_latent,), (n_latent, n_latent))
    )
    densities = n, k ** (order - 1)
    sizes = (n, k ** max(order - 1, 1)), (*densities, n_latent), (*densities, n_latent, n_latent)
    kept = Belief(*(_zeros(*size) for size in sizes))
    for table, before in zip(kept, belief or (), strict=False):
        table.copy_(before.detach())
    failed = _unfailed(n)
    results = [increment, state, lagged, mean, covariance, None, *kept, failed]
    _job(x, lengths, tables, order, results, goes_on=belief is not None).run("switching_filter")
    return Filtered(increment, state, lagged, mean, covariance, kept, failed)


@op.smooth.kernel("cpu")
def smooth(x: Tensor, lengths: Tensor, tables: Tables) -> Smoothed:
    (n, n_steps, _), k, n_latent = x.shape, tables.n_regimes, tables.n_latent
    increment, state, mean, covariance = (
        _zeros(n, n_steps, *size) for size in ((), (k,), (n_latent,), (n_latent, n_latent))
    )
    pairs = _zeros(n, max(n_steps - 1, 0), k, k)
    kept = [empty(n, n_steps, k, *size, dtype=torch.float64) for size in ((), (n_latent,), (n_latent, n_latent))]
    failed = _unfailed(n)
    results = [increment, state, None, mean, covariance, pairs, *kept, failed]
    job = _job(x, lengths, tables, 2, results, smooths=True)
    job.run("switching_filter")
    job.run("switching_smoother", back=True)
    return Smoothed(sum_of_steps(increment), state, pairs, mean, covariance, failed)
