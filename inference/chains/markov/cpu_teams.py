r"""How the sweeps of `cpu_sweeps` are spread over threads: each takes groups of sequences, or a part of a long one.

A chain forgets: whatever it begins with, after some steps its messages are those of the whole chain. So each thread
walks to its part from a margin of steps outside it. That the margin is wide enough is seen, not believed: where two
parts meet, the message that one begins with must be the one with which the other, long under way, ends. The first
part begins where the sequence does, and is right; where the second agrees with it, it is right from there on, since a
step brings any two messages nearer to each other, measured by the ratios of their entries (Birkhoff 1957, *Extensions
of Jentzsch's theorem*); and so on from part to part, and in the other direction of time from the last one. A sequence
whose parts do not agree to rounding is walked by one thread after all.

`inputs` and `outputs` are those of any kind of table.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ...numerics.threads import in_parallel, worthwhile
from .cpu_steps import GROUP, padded
from .cpu_sweeps import APPROACH, JOIN, SMOOTH, Part, Sweep, keeping, run, run_part

_KEPT = 1 << 24  # bytes of likelihoods that are kept between two sweeps: what a cache holds
_MIN_DIVIDED = 1 << 17  # steps times states, padded, that repay a second thread for one sequence
_MARGIN = 1 / 16  # of a part
_AGREED = 64  # roundings
_MIN_WORK = 1 << 16  # sequences times steps times states, padded, that repay a second thread
_SECONDS = 3e-9  # that such a number takes at least


def go(inputs: Any, outputs: Any, workspace: Callable[[], Any]) -> None:
    """Filter, or smooth where there is room for counts. Each thread has a workspace of its own."""
    smoothing, n = outputs.counts.size > 0, len(inputs.lengths)
    size = inputs.n_steps * padded(inputs.n_states, outputs.state.itemsize)
    n_parts = torch.get_num_threads() // max(1, n)
    if smoothing and size >= _MIN_DIVIDED and n_parts > 1 and int(inputs.lengths.min()) >= n_parts:
        if _go_by_parts(inputs, outputs, workspace, n_parts):
            return
        outputs.certain[:] = 1
    _go_along(inputs, outputs, workspace, _n_threads(n, size))


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
    there, back = Sweep(True, False), Sweep(False, True)
    sweeps = (there, back) if outputs.counts.size else (there,)
    # made here, not by the threads: torch lets go of the interpreter for each, and they would wait for one another
    rooms = [workspace() for _ in shares]
    homes = 1 if groups.shape[1] > 1 and (groups[:, 1] < 0).all() else GROUP
    kept = len(sweeps) == 2 and _size(inputs, outputs) * homes * len(rooms) <= _KEPT
    with keeping(rooms, homes * inputs.n_steps) if kept and rooms else nullcontext(rooms) as rooms:
        in_parallel([partial(run, inputs, outputs, *own, sweeps) for own in zip(rooms, shares, strict=True)])


def _groups(inputs: Any, n_threads: int) -> np.ndarray:
    """Sequences that go side by side, [n, GROUP], -1 for none: of one table and like length where possible."""
    n = len(inputs.lengths)
    size = min(GROUP, max(1, n // n_threads))
    groups, place = np.full((-(-n // size), GROUP), -1), np.arange(n)
    groups[place // size, place % size] = np.lexsort((-inputs.lengths, inputs.table_of))
    return groups


def _go_by_parts(inputs: Any, outputs: Any, workspace: Callable[[], Any], n_parts: int) -> bool:
    """Smooth few sequences with so many threads each; False where one forgets too slowly.

    Then nothing that is written means anything but the counts, to which nothing is added.
    """
    edges = [[length * i // n_parts for i in range(n_parts + 1)] for length in inputs.lengths.tolist()]
    parts = [Part(low, high, int(_MARGIN * (high - low))) for own in edges for low, high in pairwise(own)]
    groups = np.full((len(parts), GROUP), -1)
    groups[:, 0] = np.arange(len(parts)) // n_parts
    rooms = [workspace() for _ in parts]
    own = [_apart(outputs) for _ in parts]
    inner = [i for i in range(len(parts)) if (i + 1) % n_parts]
    kept = len(inputs.lengths) * _size(inputs, outputs) <= _KEPT
    with keeping(rooms, inputs.n_steps, n_parts) if kept else nullcontext(rooms) as rooms:

        def walk(stage: int, chosen: Iterable[int]) -> np.ndarray:
            """The messages at the ends of parts, [part, direction, P]."""
            in_parallel([partial(run_part, inputs, own[i], rooms[i], groups[i], parts[i], stage) for i in chosen])
            return np.stack([room.weight.reshape(GROUP, -1)[:2] for room in rooms])

        begun = walk(APPROACH, range(len(parts)))
        gone = walk(SMOOTH, range(len(parts)))
        after = [i + 1 for i in inner]
        if not (agree(begun[after, 0], gone[inner, 0]) and agree(begun[inner, 1], gone[after, 1])):
            return False
        np.sum([part.log_normalizer for part in own], 0, out=outputs.log_normalizer)
        for i in inner:
            row = (groups[i, 0] * inputs.n_steps + parts[i].high) * inputs.n_states
            outputs.state[row : row + inputs.n_states] = begun[i, 1, : inputs.n_states]
        walk(JOIN, inner)
    np.min([part.certain for part in own], 0, out=outputs.certain)
    outputs.counts[:] += np.sum([part.counts for part in own], 0)
    return True


def _apart(outputs: Any) -> Any:
    """The same, but for what several parts of a sequence would add to."""
    sums, counts, certain = outputs.log_normalizer, outputs.counts, outputs.certain
    fresh = {"log_normalizer": np.zeros_like(sums), "counts": np.zeros_like(counts), "certain": np.ones_like(certain)}
    return outputs._replace(**fresh)


def agree(begun: np.ndarray, gone: np.ndarray) -> bool:
    """Whether messages [.., K] with which stretches begin are those with which the ones before them end."""
    with np.errstate(all="ignore"):
        begun, gone = (message / message.sum(-1, keepdims=True) for message in (begun, gone))
        return bool((np.abs(begun - gone) <= _AGREED * np.finfo(begun.dtype).eps * gone).all())
