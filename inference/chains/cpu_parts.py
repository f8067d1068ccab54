r"""The distribution of the sweeps of `cpu_sweeps` over threads: each takes groups of sequences, or a part of a long
one.

A chain forgets its start: after some steps its messages are those of the whole chain. So each thread first sweeps a
margin of steps before its part. The results are checked: where two parts meet, the first message of one part must equal
the last message of the other, which started much earlier. The first part begins with the sequence, so it is right. If
the second agrees with it, the second is right from there on, because a step brings any two messages nearer to each
other, measured by the ratios of their entries (Birkhoff 1957, *Extensions of Jentzsch's theorem*). The same holds from
part to part, and from the last part in the other direction of time. If the parts of a sequence do not agree to
rounding, one thread sweeps the whole sequence.

`inputs` and `outputs` may be of any kind of table.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ..numerics.threads import in_parallel, worthwhile
from .cpu_steps import GROUP, padded
from .cpu_sweeps import APPROACH, JOIN, SMOOTH, Part, keeping, sweep_groups, sweep_part

_KEPT = 1 << 24  # bytes of likelihoods that are kept between two sweeps, the size of a cache
_MIN_DIVIDED = 1 << 19  # steps times states, padded, that repay a second thread for one sequence
_MARGIN = 1 / 16  # of a part
_AGREED = 64  # roundings
_MIN_WORK = 1 << 16  # sequences times steps times states, padded, that repay a second thread
_SECONDS = 3e-9  # least time for each of these numbers


def sweep(
    inputs: Any,
    outputs: Any,
    workspace: Callable[[], Any],
    *,
    smoothing: bool,
    divided: bool = False,
) -> None:
    """Filter or smooth all sequences. Each thread has its own workspace.

    `divided`: several threads may share a long sequence when smoothing.
    """
    n, size = len(inputs.lengths), inputs.n_steps * padded(inputs.n_states, outputs.state.itemsize)
    n_parts = torch.get_num_threads() // max(1, n)
    if divided and smoothing and size >= _MIN_DIVIDED and n_parts > 1 and int(inputs.lengths.min()) >= n_parts:
        if _sweep_parts(inputs, outputs, workspace, n_parts):
            return
        outputs.certain[:] = 1
    n_threads = _n_threads(n, size)
    _sweep_groups(inputs, outputs, workspace, _groups(inputs, n_threads), n_threads, smoothing)


def _n_threads(n: int, size: int) -> int:
    """The number of threads for n sequences of `size` numbers.

    If it decides which sequences form a group, and so how sums are rounded, it does not depend on a clock."""
    if n >= GROUP * torch.get_num_threads():
        return worthwhile(n * size * _SECONDS)
    return min(torch.get_num_threads(), max(1, n * size // _MIN_WORK))


def _size(inputs: Any, room: Any) -> int:
    """Bytes of the tables of one sequence."""
    return inputs.n_steps * room.likelihood.size // GROUP * room.likelihood.itemsize


def _sweep_groups(
    inputs: Any, outputs: Any, workspace: Callable[[], Any], groups: np.ndarray, n_threads: int, smoothing: bool
) -> None:
    """Groups of sequences side by side, spread over threads."""
    shares = [np.ascontiguousarray(groups[i::n_threads]) for i in range(min(n_threads, len(groups)))]
    # made here, not by the threads: torch releases the interpreter for each, and threads would wait for one another
    rooms = [workspace() for _ in shares]
    homes = 1 if groups.shape[1] > 1 and (groups[:, 1] < 0).all() else GROUP
    kept = smoothing and rooms and _size(inputs, rooms[0]) * homes * len(rooms) <= _KEPT
    with keeping(rooms, homes * inputs.n_steps) if kept else nullcontext(rooms) as rooms:
        pairs = zip(rooms, shares, strict=True)
        in_parallel([partial(sweep_groups, inputs, outputs, *pair, 1 + smoothing) for pair in pairs])


def _groups(inputs: Any, n_threads: int) -> np.ndarray:
    """Groups of sequences, [n, GROUP], -1 for none, with equal tables and similar lengths if possible."""
    n = len(inputs.lengths)
    size = min(GROUP, max(1, n // n_threads))
    groups, place = np.full((-(-n // size), GROUP), -1), np.arange(n)
    groups[place // size, place % size] = np.lexsort((-inputs.lengths, inputs.table_of))
    return groups


def _sweep_parts(inputs: Any, outputs: Any, workspace: Callable[[], Any], n_parts: int) -> bool:
    """Smooth few sequences with `n_parts` threads each; False if one forgets too slowly.

    Then all outputs are invalid except the counts, which are unchanged.
    """
    edges = [[length * i // n_parts for i in range(n_parts + 1)] for length in inputs.lengths.tolist()]
    parts = [Part(low, high, int(_MARGIN * (high - low))) for ends in edges for low, high in pairwise(ends)]
    groups = np.full((len(parts), GROUP), -1)
    groups[:, 0] = np.arange(len(parts)) // n_parts
    rooms = [workspace() for _ in parts]
    results = [_apart(outputs) for _ in parts]
    inner = [i for i in range(len(parts)) if (i + 1) % n_parts]
    kept = len(inputs.lengths) * _size(inputs, rooms[0]) <= _KEPT
    with keeping(rooms, inputs.n_steps, n_parts) if kept else nullcontext(rooms) as rooms:

        def run_stage(stage: int, chosen: Iterable[int]) -> np.ndarray:
            """The messages at the ends of parts, [part, direction, P]."""
            in_parallel([partial(sweep_part, inputs, results[i], rooms[i], groups[i], parts[i], stage) for i in chosen])
            return np.stack([room.weight.reshape(GROUP, -1)[:2] for room in rooms])

        begun = run_stage(APPROACH, range(len(parts)))
        ended = run_stage(SMOOTH, range(len(parts)))
        after = [i + 1 for i in inner]
        if not (agree(begun[after, 0], ended[inner, 0]) and agree(begun[inner, 1], ended[after, 1])):
            return False
        np.sum([part.log_normalizer for part in results], 0, out=outputs.log_normalizer)
        for i in inner:
            row = (groups[i, 0] * inputs.n_steps + parts[i].high) * inputs.n_states
            outputs.state[row : row + inputs.n_states] = begun[i, 1, : inputs.n_states]
        run_stage(JOIN, inner)
    np.min([part.certain for part in results], 0, out=outputs.certain)
    outputs.counts[:] += np.sum([part.counts for part in results], 0)
    return True


def _apart(outputs: Any) -> Any:
    """The same outputs, with new sums and counts."""
    sums, counts, certain = outputs.log_normalizer, outputs.counts, outputs.certain
    fresh = {"log_normalizer": np.zeros_like(sums), "counts": np.zeros_like(counts), "certain": np.ones_like(certain)}
    return outputs._replace(**fresh)


def agree(begun: np.ndarray, ended: np.ndarray) -> bool:
    """Whether the first messages [.., K] of stretches equal the last messages of the previous ones."""
    with np.errstate(all="ignore"):
        begun, ended = (message / message.sum(-1, keepdims=True) for message in (begun, ended))
        return bool((np.abs(begun - ended) <= _AGREED * np.finfo(begun.dtype).eps * ended).all())
