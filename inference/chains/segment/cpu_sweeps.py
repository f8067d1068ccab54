"""The forward passes of `plain` over one sequence in numba kernels, with the beginnings side by side in vectors.

Numbers of beginnings lie in rows of `capacity` numbers, which grows. What a vector holds beyond the last beginning is
not used: weights there are -inf.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from ...numerics.compilation import inlined, kernel
from ...numerics.elementary import exp
from ...numerics.lanes import larger, largest, load, splat, store, total
from .cpu_plates import LANES, add_expected, begin, log_ratio, observe
from .plain import EVERY

TILE = 512  # beginnings whose numbers stay in the nearest cache
_FIRST = 1024  # beginnings for which there is room at first


class Steps(NamedTuple):
    """The tables of one sequence."""

    x: Any  # [T, D], the statistics of all plates side by side
    log_base: Any  # [T]
    log_change: Any  # [H]
    log_hold: Any  # [H]
    by_run: bool
    length: int
    by_hazards: Any  # [H], see `plain._of_hazards`; [0] by step
    tol: float


class Passed(NamedTuple):
    """What the pass over all steps fills in; see `plain.Forward`. Empty arrays are not wanted."""

    increment: Any  # [T]
    change: Any  # [T]
    death: Any  # [T]
    entropy: Any  # [T]
    source: Any  # [T], of the best path
    run: Any  # [T] or [0], expected run length
    begun: Any  # [T] or [0]
    expected: Any  # [T, M] or [0, M]
    numbers: Any  # [2], left out; the first failed step or -1


@inlined
def _change(steps: Any, t: int, run: int) -> float:
    """log P(a change before t) after a run."""
    if t >= steps.length:
        return -np.inf
    return steps.log_change[min(run, len(steps.log_change)) - 1 if steps.by_run else t]


@inlined
def _hold(steps: Any, t: int, run: int) -> float:
    if t >= steps.length:
        return 0.0
    return steps.log_hold[min(run, len(steps.log_hold)) - 1 if steps.by_run else t]


@kernel
def forward(steps, plates, best, passed):
    """The pass over one sequence; `best` takes the largest in place of sums. Returns the kept beginnings and their log
    weights."""
    capacity = min(len(steps.log_base), _FIRST) + 2 * LANES
    state, start = np.zeros(len(plates.prior) * capacity), np.zeros(capacity, np.int64)
    weight, share, gain = np.full(capacity, -np.inf), np.zeros(capacity), np.zeros(capacity)
    n, spent = 0, 0.0
    passed.numbers[1] = -1
    for t in range(steps.length):
        if n + 2 * LANES > capacity:
            wider = 2 * capacity
            state, start = _wider(state, capacity, wider), _wider(start, capacity, wider)
            gain, share = np.zeros(wider), _wider(share, capacity, wider)
            weight = _wider(weight, capacity, wider)
            weight[n:] = -np.inf
            capacity = wider
        a = 0.0 if t == 0 else _before(steps, t, n, start, weight, share, gain, best, passed)
        passed.change[t] = a
        begin(plates, state, capacity, n)
        start[n], weight[n] = t, a
        n += 1
        for r in range(n):
            gain[r] = steps.log_base[t]
        top = -np.inf
        for first in range(0, n, TILE):
            end = min(n, first + TILE)
            for p in range(len(plates.kind)):
                observe(plates, p, steps.x, t, state, capacity, first, end, gain)
            top = max(top, _weigh(weight, gain, first, end))
        for r in range(n, n + LANES):
            weight[r] = -np.inf
        increment = top if best else _normalise(weight, share, top, n)
        if not abs(increment) < np.inf:
            passed.numbers[1] = t
            break
        passed.increment[t] = increment
        if best:
            for r in range(n):
                weight[r] -= increment
        elif len(passed.run):
            _look(plates, passed, t, state, capacity, start, share, n)
        if (best or steps.tol > 0) and t % EVERY == EVERY - 1 and t + 1 < steps.length:
            n, spent = _shorten(steps, plates, t, best, state, capacity, start, weight, share, n, spent, passed)
    passed.numbers[0] = spent
    return start[:n].copy(), weight[:n].copy()


@kernel
def _wider(table, capacity, wider):
    rows = len(table) // capacity
    grown = np.zeros(rows * wider, table.dtype)
    for row in range(rows):
        grown[row * wider : row * wider + capacity] = table[row * capacity : (row + 1) * capacity]
    return grown


@inlined
def _before(
    steps: Any, t: int, n: int, start: Any, weight: Any, share: Any, gain: Any, best: bool, passed: Any
) -> float:
    """The log probability of a change before t; the weights hold. `share` has the weights as probabilities."""
    if best:
        top, source = -np.inf, 0
        for r in range(n):
            value = weight[r] + _change(steps, t, t - start[r])
            if value > top:
                top, source = value, start[r]
        passed.source[t] = source
        for r in range(n):
            weight[r] += _hold(steps, t, t - start[r])
        return top
    entropy = 0.0
    if not steps.by_run:
        for r in range(n):
            if share[r] > 0:
                entropy -= share[r] * weight[r]
        passed.entropy[t] = entropy
        hold = _hold(steps, t, 1)
        for r in range(n):
            weight[r] += hold
        return _change(steps, t, 1)
    whole = 0.0
    for r in range(n):
        gain[r] = share[r] * math.exp(_change(steps, t, t - start[r]))
        whole += gain[r]
    for r in range(n):
        if gain[r] > 0:
            entropy -= gain[r] / whole * math.log(gain[r] / whole)
        weight[r] += _hold(steps, t, t - start[r])
    passed.entropy[t] = entropy
    return math.log(whole) if whole > 0 else -np.inf


@inlined
def _weigh(weight: Any, gain: Any, first: int, end: int) -> float:
    """Add the gain to weights; their largest."""
    top = splat(-np.inf)
    for r in range(first, end, LANES):
        value = load(weight, r) + load(gain, r)
        store(weight, r, value)
        top = larger(top, value) if r + LANES <= end else top
    found = largest(top)
    for r in range(max(first, end - LANES), end):
        found = max(found, weight[r])
    return found


@inlined
def _normalise(weight: Any, share: Any, top: float, n: int) -> float:
    """Subtract the log of the sum of the weights, which is returned; `share` gets the probabilities."""
    if not abs(top) < np.inf:
        return top
    whole, shift = splat(0.0), splat(top)
    for r in range(0, n, LANES):
        e = exp(load(weight, r) - shift)
        store(share, r, e)
        whole = whole + e
    mass = total(whole)
    log_mass = top + math.log(mass)
    scale, shift = splat(1 / mass), splat(log_mass)
    for r in range(0, n, LANES):
        store(share, r, load(share, r) * scale)
        store(weight, r, load(weight, r) - shift)
    return log_mass


@inlined
def _look(plates: Any, passed: Any, t: int, state: Any, capacity: int, start: Any, share: Any, n: int) -> None:
    """What the filter says after step t."""
    run = 0.0
    for r in range(n):
        run += share[r] * (t + 1 - start[r])
        if share[r] > plates.least:
            for p in range(len(plates.kind)):
                add_expected(plates, p, state, capacity, r, share[r], passed.expected[t])
    passed.run[t], passed.begun[t] = run, share[n - 1]


@inlined
def _shorten(
    steps: Any,
    plates: Any,
    t: int,
    best: bool,
    state: Any,
    capacity: int,
    start: Any,
    weight: Any,
    share: Any,
    n: int,
    spent: float,
    passed: Any,
) -> tuple[int, float]:
    """Leave out beginnings after step t, see `plain.Bound`; how many are kept, and what has been left out so far."""
    whole, top = 0.0, -np.inf
    for r in range(n):
        change = _change(steps, t + 1, t + 1 - start[r])
        if best:
            top = max(top, weight[r] + change)
        elif steps.by_run:
            whole += share[r] * math.exp(change)
    if not best:
        top = (math.log(whole) if whole > 0 else -np.inf) if steps.by_run else _change(steps, t + 1, 1)
    if top == -np.inf:
        return n, spent
    most = 0.0 if best else math.log(max((steps.tol * (t + 1) / len(steps.log_base) - spent) / n, 1e-300))
    kept = 0
    for r in range(n):
        cost = weight[r] - top
        if cost < most:
            run, ratio = t + 1 - start[r], log_ratio(plates, state, capacity, r)
            if steps.by_run:
                ratio += steps.by_hazards[min(run, len(steps.by_hazards)) - 1] + _hold(steps, t + 1, run)
                change = _change(steps, t + 1, run)
                above = max(ratio, change)
                if above < np.inf:
                    ratio = above + math.log(math.exp(ratio - above) + math.exp(change - above))
            cost += ratio
            if cost < most:
                spent += math.exp(cost)
                passed.death[start[r]] = t
                continue
        if kept < r:
            start[kept], weight[kept], share[kept] = start[r], weight[r], share[r]
            for row in range(len(plates.prior)):
                state[row * capacity + kept] = state[row * capacity + r]
        kept += 1
    for r in range(kept, n):
        weight[r] = -np.inf
    return kept, spent
