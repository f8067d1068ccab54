"""The backward pass of `plain` over one sequence in a numba kernel; ends of segments are side by side in vectors."""

from typing import Any, NamedTuple

import numpy as np

from ...numerics.compilation import inlined, kernel
from ...numerics.elementary import exp
from ...numerics.lanes import load, splat, store, total
from .cpu_plates import LANES, add_expected, follow


class Back(NamedTuple):
    """What the pass from the last beginning to the first fills in; see `plain.Smoothed`."""

    change: Any  # [T + 1]
    expected: Any  # [T, M]
    first: Any  # [M]
    ended: Any  # [T]
    last: Any  # [T]


@kernel
def backward(steps, plates, passed, back):
    """Segments from each beginning, the last first."""
    length, capacity = steps.length, _longest(passed.death, steps.length) + 2 * LANES
    state, level = np.zeros(len(plates.prior) * capacity), np.zeros(capacity)
    later, own, last_run = np.zeros(len(back.first)), steps.log_base - passed.increment, len(steps.log_hold) - 1
    held_on = own if steps.by_run else own + steps.log_hold
    for j in range(length - 1, -1, -1):
        n = min(length, passed.death[j]) - j
        if n < 1 or passed.change[j] == -np.inf:
            continue
        held = passed.change[j] + own[j]
        level[0] = held
        for i in range(1, n):
            held += held_on[j + i]
            if steps.by_run:
                held += steps.log_hold[min(i - 1, last_run)]
            level[i] = held
        for p in range(len(plates.kind)):
            follow(plates, p, steps.x, j, n, state, capacity, level)
        if steps.by_run:
            for i in range(min(n, length - 1 - j)):
                change = passed.change[j + i + 1]
                level[i] += steps.log_change[min(i, last_run)] - change if change > -np.inf else -np.inf
        for i in range(n, n + LANES):
            level[i] = -np.inf
        for i in range(0, n, LANES):
            store(level, i, exp(load(level, i)))
        back.change[j] = _given_later(back, level, j, n, length)
        later[:] = 0.0
        for i in range(n - 1, -1, -1):
            if level[i] > plates.least:
                for p in range(len(plates.kind)):
                    add_expected(plates, p, state, capacity, i, level[i], later)
            for d in range(len(later)):
                back.expected[j + i, d] += later[d]
        for d in range(len(later)):
            back.first[d] += later[d]


@inlined
def _given_later(back: Any, level: Any, j: int, n: int, length: int) -> float:
    """Makes of the probabilities of segments given a change after them those given all steps; their sum."""
    ended = min(n, length - 1 - j)
    if ended < n:
        back.last[ended] += level[ended]
    whole = splat(0.0)
    for i in range(0, ended - LANES + 1, LANES):
        share = load(level, i) * load(back.change, j + 1 + i)
        store(level, i, share)
        store(back.ended, i, load(back.ended, i) + share)
        whole = whole + share
    begun = total(whole) + (level[ended] if ended < n else 0.0)
    for i in range(ended - ended % LANES, ended):
        level[i] *= back.change[j + 1 + i]
        back.ended[i] += level[i]
        begun += level[i]
    return begun


@inlined
def _longest(death: Any, length: int) -> int:
    most = 1
    for j in range(length):
        most = max(most, min(length, death[j]) - j)
    return most
