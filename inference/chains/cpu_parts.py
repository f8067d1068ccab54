r"""The distribution of the sweeps of `cpu_sweeps` over threads: each takes groups of sequences, or parts of long ones.

Groups and parts follow from sizes and tables alone. Threads only decide who computes which, so that results are the
same bits for any number of threads.

A chain forgets its start: after some steps its messages are those of the whole chain. So the messages where two parts
meet come from sweeps over a margin of steps, which is doubled until they do not change. If the margin takes more than a
share of the parts, there are half as many parts. The results are checked: the first message of one part must equal the
last message of the other, which started much earlier. The first part begins with the sequence, so it is right. If the
second agrees with it, the second is right from there on, because a step brings any two messages nearer to each other,
measured by the ratios of their entries (Birkhoff 1957, *Extensions of Jentzsch's theorem*). The same holds from part to
part, and from the last part in the other direction of time. If the parts of a sequence do not agree to rounding, the
sequence is swept from one end to the other.

`inputs` and `outputs` may be of any kind of table.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ..numerics.lanes import BYTES
from ..numerics.threads import in_parallel, worthwhile
from .cpu_steps import GROUP, padded
from .cpu_sweeps import APPROACH, JOIN, SMOOTH, Part, keeping, sweep_groups, sweep_part

_KEPT = 1 << 24  # bytes of likelihoods that are kept between two sweeps, the size of a cache
_PARTS = 1 << 3  # of a sequence, at most
_STEPS = 1 << 13  # of a part, at least
_VECTORS = 1 << 15  # steps of a part times vectors of a message, at least
_MARGIN = 1 << 7  # steps on both sides of the meeting of two parts that are tried first
_SHARE = 1 << 3  # a margin is at most a part over this number
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

    `divided`: long sequences may be cut into parts when smoothing.
    """
    n = len(inputs.lengths)
    if divided and smoothing and 0 < n < 2 * GROUP:
        n_parts = _n_parts(int(inputs.lengths.min()), inputs, outputs)
        if n_parts > 1:
            if _sweep_parts(inputs, outputs, workspace, n_parts):
                return
            outputs.certain[:] = 1
    _sweep_groups(inputs, outputs, workspace, smoothing)


def _n_parts(n_steps: int, inputs: Any, outputs: Any) -> int:
    """A power of two: the parts of so many steps that are long enough each."""
    size = outputs.state.itemsize
    vectors = n_steps * padded(inputs.n_states, size) * size // BYTES
    most = max(1, min(_PARTS, n_steps // _STEPS, vectors // _VECTORS))
    return 1 << (most.bit_length() - 1)


def _n_threads(n: int, size: int) -> int:
    """The number of threads for n sequences of `size` numbers; a clock decides for many, which may be short."""
    if n >= GROUP * torch.get_num_threads():
        return worthwhile(n * size * _SECONDS)
    return min(torch.get_num_threads(), max(1, n * size // _MIN_WORK))


def _size(inputs: Any, room: Any) -> int:
    """Bytes of the tables of one sequence."""
    return inputs.n_steps * room.likelihood.size // GROUP * room.likelihood.itemsize


def _sweep_groups(inputs: Any, outputs: Any, workspace: Callable[[], Any], smoothing: bool) -> None:
    """Groups of sequences side by side, spread over threads."""
    groups = _groups(inputs, smoothing)
    numbers = inputs.n_steps * padded(inputs.n_states, outputs.state.itemsize)
    n_threads = min(len(groups), _n_threads(len(inputs.lengths), numbers))
    shares = [np.ascontiguousarray(groups[i::n_threads]) for i in range(n_threads)]
    # made here, not by the threads: torch releases the interpreter for each, and threads would wait for one another
    rooms = [workspace() for _ in shares]
    homes = 1 if groups.shape[1] > 1 and (groups[:, 1] < 0).all() else GROUP
    kept = smoothing and rooms and _size(inputs, rooms[0]) * homes * len(rooms) <= _KEPT
    with keeping(rooms, homes * inputs.n_steps) if kept else nullcontext(rooms) as rooms:
        pairs = zip(rooms, shares, strict=True)
        in_parallel([partial(sweep_groups, inputs, outputs, *pair, 1 + smoothing) for pair in pairs])


def _groups(inputs: Any, smoothing: bool) -> np.ndarray:
    """Groups of sequences, [n, GROUP], -1 for none, with equal tables and similar lengths if possible.

    Few sequences are smoothed one by one, from both ends at once, or filtered in pairs.
    """
    n = len(inputs.lengths)
    size = GROUP if n >= 2 * GROUP else 1 if smoothing else 2
    groups, place = np.full((-(-n // size), GROUP), -1), np.arange(n)
    groups[place // size, place % size] = np.lexsort((-inputs.lengths, inputs.table_of))
    return groups


def _sweep_parts(inputs: Any, outputs: Any, workspace: Callable[[], Any], most: int) -> bool:
    """Smooth few sequences in at most so many parts each; False if one forgets too slowly.

    Then all outputs are invalid except the counts, which are unchanged.
    """
    rooms = [workspace() for _ in range(most * len(inputs.lengths))]
    kept = len(inputs.lengths) * _size(inputs, rooms[0]) <= _KEPT
    with keeping(rooms, inputs.n_steps, most) if kept else nullcontext(rooms) as rooms:
        messages = _approach(inputs, outputs, rooms, most)
        if messages is None:
            return False
        return _sweep_between(inputs, outputs, _first(messages.shape[1] + 1, rooms, most), messages)


def _approach(inputs: Any, outputs: Any, rooms: Sequence[Any], most: int) -> np.ndarray | None:
    """The messages where parts meet, [sequence, meeting, message and weight, direction, P], or None."""
    n_parts, margin, before = most, _MARGIN, None
    shortest = int(inputs.lengths.min())
    outputs = outputs._replace(certain=np.ones_like(outputs.certain))
    while n_parts > 1:
        if margin * _SHARE * n_parts > shortest:
            n_parts //= 2  # every second meeting remains where it is
            before = None if before is None else before[:, 1::2]
            continue
        meetings = [(b, edge) for b, ends in enumerate(_edges(inputs, n_parts)) for edge in ends[1:-1]]
        parts = [(b, Part(edge - margin, edge + margin)) for b, edge in meetings]
        now = _run(APPROACH, inputs, [outputs] * len(parts), _first(n_parts - 1, rooms, most), parts)
        now = now.reshape(len(inputs.lengths), n_parts - 1, *now.shape[1:])
        if before is not None and agree(before[:, :, 1], now[:, :, 1]):
            return now
        margin, before = 2 * margin, now
    return None


def _sweep_between(inputs: Any, outputs: Any, rooms: Sequence[Any], messages: np.ndarray) -> bool:
    """Smooth the parts between meetings, given the messages there; whether these were right."""
    n_parts = messages.shape[1] + 1
    parts = [(b, Part(*ends)) for b, edges in enumerate(_edges(inputs, n_parts)) for ends in pairwise(edges)]
    sums, counts = (np.zeros((len(parts), x.size), x.dtype) for x in (outputs.log_normalizer, outputs.counts))
    certain = np.ones((len(parts), outputs.certain.size), outputs.certain.dtype)
    results = [
        outputs._replace(log_normalizer=sums[i], counts=counts[i], certain=certain[i]) for i in range(len(parts))
    ]
    for i, room in enumerate(rooms):
        b, at = divmod(i, n_parts)
        for slot, meeting in ((0, at - 1), (1, at)):
            if 0 <= meeting < n_parts - 1:
                _put(room, slot, messages[b, meeting, :, slot])
    ended = _run(SMOOTH, inputs, results, rooms, parts)[:, 1].reshape(len(messages), n_parts, 2, -1)
    begun = messages[:, :, 1]
    if not agree(begun, np.stack([ended[:, :-1, 0], ended[:, 1:, 1]], 2)):
        return False
    outputs.log_normalizer[:] = sums.sum(0)
    inner = [i for i in range(len(parts)) if (i + 1) % n_parts]
    for i in inner:
        b, at = divmod(i, n_parts)
        row = (b * inputs.n_steps + parts[i][1].high) * inputs.n_states
        outputs.state[row : row + inputs.n_states] = begun[b, at, 1, : inputs.n_states]
    _run(JOIN, inputs, *([kind[i] for i in inner] for kind in (results, rooms, parts)))
    outputs.certain[:] = certain.min(0)
    outputs.counts[:] += counts.sum(0)
    return True


def _first(n: int, rooms: Sequence[Any], most: int) -> list[Any]:
    """The first n of the workspaces of each sequence."""
    return [room for i, room in enumerate(rooms) if i % most < n]


def _edges(inputs: Any, n_parts: int) -> list[list[int]]:
    """The steps at which the parts of each sequence begin, and its end."""
    return [[length * i // n_parts for i in range(n_parts + 1)] for length in inputs.lengths.tolist()]


def _run(
    stage: int, inputs: Any, outputs: Sequence[Any], rooms: Sequence[Any], parts: Sequence[tuple[int, Part]]
) -> np.ndarray:
    """A stage of all parts; messages and weights of both slots after it, [part, message and weight, direction, P]."""
    groups = np.full((len(parts), GROUP), -1)
    groups[:, 0] = [b for b, _ in parts]
    tasks = zip(outputs, rooms, groups, parts, strict=True)
    in_parallel([partial(sweep_part, inputs, *others, part, stage) for *others, (_, part) in tasks])
    after = np.empty((len(parts), 2, 2, rooms[0].message.size // GROUP), rooms[0].message.dtype)
    for row, room in zip(after, rooms, strict=True):
        row[0].flat, row[1].flat = room.message, room.weight  # of the first two slots
    return after


def _put(room: Any, slot: int, message_and_weight: np.ndarray) -> None:
    """Let a slot begin with a message, and evidence of 1."""
    p = message_and_weight.shape[-1]
    room.message[slot * p :][:p], room.weight[slot * p :][:p] = message_and_weight
    room.inverse[slot], room.sure[slot] = 1, True
    room.evidence[3 * slot :][:3] = 0, 0, 1


def agree(begun: np.ndarray, ended: np.ndarray) -> bool:
    """Whether the first messages [.., K] of stretches equal the last messages of the previous ones."""
    with np.errstate(all="ignore"):
        begun, ended = (message / message.sum(-1, keepdims=True) for message in (begun, ended))
        return bool((np.abs(begun - ended) <= _AGREED * np.finfo(begun.dtype).eps * ended).all())
