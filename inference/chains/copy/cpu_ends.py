"""The one sequence of a copy chain on two threads: from both ends to the middle, and back from there."""

import math
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from ...numerics.workers import in_parallel
from . import cpu_sums as sums
from .cpu_weights import FINE, Limits


def from_both_ends(limits: Limits, tables: sums.Tables, posterior: sums.Posterior, value: NDArray) -> bool:
    """Write the evidence, and the posteriors that are wanted, of tables with one sequence; whether that succeeded.

    It may not: a future without the belief that belongs to it may be too small to be trusted, and it does not tell
    which observation is impossible. Results do not depend on the number of threads.
    """
    steps, states = int(tables.lengths[0]), tables.log_fresh.shape[2]
    rows = min(max(1, sums.BLOCK // states), -(-steps // 2))
    blocks = -(-steps // rows)
    middle = blocks // 2
    near, far = (sums.new_buffer(rows, states, part, tables.log_fresh.dtype) for part in (middle, blocks - middle))
    near.kept[0] = tables.start[0]
    (before, verdict, _), (after, trusted) = _both(
        lambda: sums.sweep_forward(tables, limits, 0, 0, middle, near),
        lambda: sums.sweep_futures(tables, limits, 0, middle, blocks, far),
    )
    if verdict != FINE or not trusted:
        return False
    if not (posterior.state.size or posterior.fresh.size):
        met = float(near.kept[middle] @ far.future[0])
        value[0] = before + after + math.log(met) if met > 0 else math.nan
        return math.isfinite(value[0])
    near.future[:] = far.future
    _, (after, verdict) = _both(
        lambda: sums.sweep_backward(tables, limits, 0, 0, middle, near, posterior),
        lambda: sums.meet_forward(tables, limits, 0, middle, blocks, near.kept[middle], far, posterior),
    )
    value[0] = before + after
    return verdict == FINE


def _both(*functions: Callable[[], Any]) -> list[Any]:
    results: list[Any] = [None] * len(functions)

    def call(k: int) -> None:
        results[k] = functions[k]()

    in_parallel([lambda k=k: call(k) for k in range(len(functions))])
    return results
