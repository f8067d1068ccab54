r"""Few long sequences are smoothed in parts, which threads share.

The parts of a sequence follow from sizes and tables alone. Threads only decide who computes which, so that results are
the same bits for any number of threads.

A chain forgets its start: after some steps its messages are those of the whole chain. So the messages where two parts
meet come from sweeps over a margin of steps, which is doubled until they do not change. If the margin takes more than a
share of the parts, there are half as many parts. The results are checked: the first message of one part must equal the
last message of the other, which started much earlier. The first part begins with the sequence, so it is right. If the
second agrees with it, the second is right from there on, because a step brings any two messages nearer to each other,
measured by the ratios of their entries (Birkhoff 1957, *Extensions of Jentzsch's theorem*). The same holds from part to
part, and from the last part in the other direction of time. If the parts of a sequence do not agree to rounding, the
sequence is swept from one end to the other.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

PARTS = 1 << 6  # of a sequence, at most
STEPS = 1 << 12  # of a part, at least
SECONDS = 5e-5  # of a part on one thread, at least
FEW = 4  # vectors hold so many parts beside each other
LONG = 1e-3  # seconds of a part, at least, if there are fewer
MARGIN = 1 << 7  # steps on both sides of the meeting of two parts that are tried first
SHARE = 1 << 3  # a margin is at most a part over this number
AGREED = 64  # roundings


class Part(NamedTuple):
    """Steps low <= t < high of a sequence; `before` and `after`: the numbers of the meetings at its ends, or -1."""

    sequence: int
    low: int
    high: int
    before: int = -1
    after: int = -1


Ends = np.ndarray
"""Messages at both ends, and the weights that they were pushed from, [part or meeting, forward or backward, 2, K]."""


def number_of_parts(shortest: int, seconds: float) -> int:
    """A power of two: the parts that are long enough, of a sequence that takes so many seconds."""
    most = min(PARTS, shortest // STEPS, int(seconds / SECONDS))
    if most < FEW:
        most = max(1, min(most, int(seconds / LONG)))
    return 1 << (most.bit_length() - 1)


def meet(lengths: Sequence[int], n_parts: int, approach: Callable[[list[Part]], Ends]) -> tuple[int, Ends] | None:
    """The number of parts of each sequence, and the messages at their meetings; None if a sequence forgets too slowly.

    Arguments:
        n_parts: at most, a power of two.
        approach: sweeps windows from both ends to the middle, as if nothing was known before and after.
    """
    margin, before = MARGIN, None
    while n_parts > 1:
        if margin * SHARE * n_parts > min(lengths):
            n_parts //= 2  # every second meeting remains where it is
            before = None if before is None else before.reshape(len(lengths), -1, *before.shape[1:])[:, 1::2]
            before = None if before is None else before.reshape(-1, *before.shape[2:])
            continue
        meetings = [(b, edge) for b, ends in enumerate(_edges(lengths, n_parts)) for edge in ends[1:-1]]
        now = approach([Part(b, edge - margin, edge + margin) for b, edge in meetings])
        if before is not None and agree(before[:, :, 1], now[:, :, 1]):
            return n_parts, now
        margin, before = 2 * margin, now
    return None


def between(lengths: Sequence[int], n_parts: int) -> list[Part]:
    """The parts of all sequences between meetings, which are numbered as `meet` numbers them."""
    parts = []
    for b, edges in enumerate(_edges(lengths, n_parts)):
        for i, ends in enumerate(pairwise(edges)):
            first = b * (n_parts - 1) + i
            parts.append(Part(b, *ends, first - 1 if i else -1, first if i + 1 < n_parts else -1))
    return parts


def were_right(meetings: Ends, parts: list[Part], ended: Ends) -> bool:
    """Whether the messages with which parts began are those with which their neighbours ended."""
    last = np.empty_like(meetings[:, :, 1])
    for part, end in zip(parts, ended, strict=True):
        if part.after >= 0:
            last[part.after, 0] = end[0, 1]
        if part.before >= 0:
            last[part.before, 1] = end[1, 1]
    return agree(meetings[:, :, 1], last)


def agree(begun: np.ndarray, ended: np.ndarray) -> bool:
    """Whether the first messages [.., K] of stretches equal the last messages of the previous ones."""
    with np.errstate(all="ignore"):
        begun, ended = (message / message.sum(-1, keepdims=True) for message in (begun, ended))
        return bool((np.abs(begun - ended) <= AGREED * np.finfo(begun.dtype).eps * ended).all())


def _edges(lengths: Sequence[int], n_parts: int) -> list[list[int]]:
    """The steps at which the parts of each sequence begin, and its end."""
    return [[length * i // n_parts for i in range(n_parts + 1)] for length in lengths]
