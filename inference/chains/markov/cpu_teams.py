"""How the sweeps of `cpu_sweeps` are spread over threads: each takes groups of sequences, two share one that is alone.

`inputs` and `outputs` are those of any kind of table.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from ...numerics.threads import in_parallel, worthwhile
from .cpu_steps import GROUP, padded
from .cpu_sweeps import Sweep, keeping, run

_KEPT = 1 << 24  # bytes of likelihoods that are kept between two sweeps: what a cache holds
_MIN_HALVED = 1 << 17  # steps times states, padded, that repay a second thread for one sequence
_MIN_WORK = 1 << 16  # sequences times steps times states, padded, that repay a second thread
_SECONDS = 3e-9  # that such a number takes at least


def go(inputs: Any, outputs: Any, workspace: Callable[[], Any]) -> None:
    """Filter, or smooth where there is room for counts. Each thread has a workspace of its own."""
    smoothing = outputs.counts.size > 0
    size = inputs.n_steps * padded(inputs.n_states, outputs.state.itemsize)
    if smoothing and size >= _MIN_HALVED and 2 * len(inputs.lengths) <= torch.get_num_threads():
        _go_from_both_ends(inputs, outputs, workspace)
    else:
        _go_along(inputs, outputs, workspace, _n_threads(len(inputs.lengths), size))


def _n_threads(n: int, size: int) -> int:
    """How many threads take n sequences of so many numbers. Where that decides which sequences go side by side, and so
    how sums are rounded, it depends on no clock."""
    if n >= GROUP * torch.get_num_threads():
        return worthwhile(n * size * _SECONDS)
    return min(torch.get_num_threads(), max(1, n * size // _MIN_WORK))


def _size(inputs: Any, outputs: Any) -> int:
    """Bytes of the likelihoods of one sequence."""
    return inputs.n_steps * padded(inputs.n_states, outputs.state.itemsize) * outputs.state.itemsize


def _go_along(inputs: Any, outputs: Any, workspace: Callable[[], Any], n_threads: int) -> None:
    """Sequences side by side in groups, and groups spread over threads."""
    groups = _groups(inputs, n_threads)
    shares = [groups[i::n_threads] for i in range(min(n_threads, len(groups)))]
    there, back = Sweep(True, False, inputs.n_steps), Sweep(False, True, inputs.n_steps)
    sweeps = (there, back) if outputs.counts.size else (there,)
    # made here, not by the threads: torch lets go of the interpreter for each, and they would wait for one another
    rooms = [workspace() for _ in shares]
    kept = inputs.n_steps * (1 if groups.shape[1] > 1 and (groups[:, 1] < 0).all() else GROUP)
    if len(sweeps) == 2 and _size(inputs, outputs) * kept * len(rooms) <= _KEPT * inputs.n_steps:
        rooms = keeping(rooms, kept, together=False)
    tasks = [partial(run, inputs, outputs, room, own, sweeps) for room, own in zip(rooms, shares, strict=True)]
    if tasks:
        in_parallel(tasks)


def _groups(inputs: Any, n_threads: int) -> np.ndarray:
    """Sequences that go side by side, [n, GROUP], -1 for none: of one table and like length where possible."""
    n = len(inputs.lengths)
    size = min(GROUP, max(1, n // n_threads))
    groups, place = np.full((-(-n // size), GROUP), -1), np.arange(n)
    groups[place // size, place % size] = np.lexsort((-inputs.lengths, inputs.table_of))
    return groups


def _go_from_both_ends(inputs: Any, outputs: Any, workspace: Callable[[], Any]) -> None:
    """Two threads a sequence: each sweeps from its end to the middle, and on to meet what the other one recorded."""
    ways = [(b, forward) for b in range(len(inputs.lengths)) for forward in (True, False)]
    rooms = [workspace() for _ in ways]
    if _size(inputs, outputs) <= _KEPT:
        rooms = [
            room for i in range(0, len(rooms), 2) for room in keeping(rooms[i : i + 2], inputs.n_steps, together=True)
        ]
    halves = np.zeros((2, outputs.counts.size), outputs.counts.dtype)

    def sweep(way: int, meets: bool) -> None:
        b, forward = ways[way]
        alone = np.array([[b, *[-1] * (GROUP - 1)]])
        own = outputs._replace(counts=halves[int(forward)])
        run(inputs, own, rooms[way], alone, (Sweep(forward, meets, int(inputs.lengths[b]) // 2),))

    for meets in (False, True):
        in_parallel([partial(sweep, way, meets) for way in range(len(ways))])
    np.sum(halves, 0, out=outputs.counts)
