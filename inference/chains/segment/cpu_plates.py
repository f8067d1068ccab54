r"""Posteriors of a segment's parameters in kernels: of many beginnings at one step, or of one beginning at many steps.

A plate is one parameter with its prior. The kernels know three kinds. The numbers of a plate are in rows, each with a
number for each beginning or each step:

    NORMAL    location, rate, log rate, number of observations n; shape and kappa are those of the prior plus n/2 and n
    GAMMA     shape, rate, log rate
    SIMPLEX   K concentrations, their sum

Welford's recursion updates locations and rates of normal posteriors, so that no large numbers are subtracted.
"""

import math
from typing import Any, NamedTuple

from ...numerics.compilation import inlined
from ...numerics.elementary import digamma, log
from ...numerics.lanes import load, muladd, splat, store

NORMAL, GAMMA, SIMPLEX = 0, 1, 2
LANES = 8
NEGLIGIBLE = 1e-60, 1e-100  # probabilities below it do not count in expectations of statistics, and in moments
_FEW = 8  # observations in one, such as counts, up to which log Gamma(a + s) - log Gamma(a) is the log of a product
_EPS = 2.3e-16


class Plates(NamedTuple):
    """P plates of one sequence."""

    kind: Any  # [P]
    column: Any  # [P], the first one in tables of statistics
    row: Any  # [P], the first row
    size: Any  # [P], the number of statistics
    kappa: Any  # [P], of normal priors
    shape: Any  # [P]
    constant: Any  # [P, T + 1], log Gamma(shape) - log(kappa) / 2 of normal posteriors, by n
    digamma: Any  # [P, T + 1], of their shapes
    scale: Any  # [P, T + 1], E[scale] / sqrt(rate) of normal posteriors
    variance: Any  # [P, T + 1], E[scale^2] / rate
    out: Any  # [P], the first column in tables of expectations
    n_means: Any  # [P], of which the moments are
    prior: Any  # [rows], the numbers of the priors
    moments: bool  # whether expectations are moments of the parameters, not their statistics
    least: float  # see `NEGLIGIBLE`


@inlined
def begin(plates: Any, state: Any, capacity: int, r: int) -> None:
    """The numbers of the priors at a place."""
    for row in range(len(plates.prior)):
        state[row * capacity + r] = plates.prior[row]


@inlined
def observe(plates: Any, p: int, x: Any, t: int, state: Any, capacity: int, first: int, end: int, gain: Any) -> None:
    """Add the statistics x[t] to beginnings `first` to `end`, and their log evidence, log h excepted, to the gain."""
    column, rows = plates.column[p], plates.row[p] * capacity
    if plates.kind[p] == NORMAL:
        if x[t, column + 1] != 0:
            _observe_normal(plates, p, x[t, column], state, capacity, first, end, gain)
    elif plates.kind[p] == GAMMA:
        _observe_gamma(x[t, column], -x[t, column + 1], state, rows, capacity, first, end, gain)
    else:
        size, whole = plates.size[p], 0.0
        for k in range(size + 1):
            more, row = whole if k == size else x[t, column + k], rows + k * capacity
            if more != 0:
                _rise(state, row, more, first, end, -1.0 if k == size else 1.0, gain)
                for r in range(first, end):
                    state[row + r] += more
                whole += more


@inlined
def _observe_normal(plates: Any, p: int, x: float, state: Any, capacity: int, first: int, end: int, gain: Any) -> None:
    rows = plates.row[p] * capacity
    for r in range(first, end):
        n = int(state[rows + 3 * capacity + r])
        gain[r] += plates.constant[p, n + 1] - plates.constant[p, n]
    one, half, value = splat(1.0), splat(0.5), splat(x)
    kappa0, shape0 = splat(plates.kappa[p]), splat(plates.shape[p])
    for r in range(first, end, LANES):
        at = rows + r
        loc, rate, log_rate = load(state, at), load(state, at + capacity), load(state, at + 2 * capacity)
        n = load(state, at + 3 * capacity)
        kappa, shape = kappa0 + n, muladd(half, n, shape0)
        error = value - loc
        share = error / (kappa + one)
        rate = muladd(half * error * kappa, share, rate)
        new = log(rate)
        # shape log_rate - (shape + 1/2) new
        store(gain, r, muladd(shape, log_rate - new, load(gain, r)) - half * new)
        store(state, at, loc + share)
        store(state, at + capacity, rate)
        store(state, at + 2 * capacity, new)
        store(state, at + 3 * capacity, n + one)


@inlined
def _observe_gamma(
    more: float, exposure: float, state: Any, rows: int, capacity: int, first: int, end: int, gain: Any
) -> None:
    _rise(state, rows, more, first, end, 1.0, gain)
    for r in range(first, end, LANES):
        at = rows + r
        shape, log_rate = load(state, at), load(state, at + 2 * capacity)
        rate = load(state, at + capacity) + splat(exposure)
        new = log(rate)
        store(gain, r, load(gain, r) + shape * (log_rate - new) - splat(more) * new)
        store(state, at, shape + splat(more))
        store(state, at + capacity, rate)
        store(state, at + 2 * capacity, new)


@inlined
def _rise(state: Any, row: int, more: float, first: int, end: int, sign: float, gain: Any) -> None:
    """Add sign (log Gamma(a + more) - log Gamma(a)) to the gain, for the numbers a of a row."""
    if more == 0:
        return
    if more == math.floor(more) and 0 < more <= _FEW:
        for r in range(first, end, LANES):
            a = load(state, row + r)
            product = a
            for i in range(1, int(more)):
                product = product * (a + splat(float(i)))
            store(gain, r, muladd(splat(sign), log(product), load(gain, r)))
    else:
        for r in range(first, end):
            a = state[row + r]
            gain[r] += sign * (math.lgamma(a + more) - math.lgamma(a))


@inlined
def add_expected(plates: Any, p: int, state: Any, capacity: int, r: int, weight: float, out: Any) -> None:
    """Add the expectations of a posterior, times a weight, to a table's row."""
    if plates.moments:
        _add_moments(plates, p, state, capacity, r, weight, out)
    else:
        _add_means(plates, p, state, capacity, r, weight, out)


@inlined
def _add_moments(plates: Any, p: int, state: Any, capacity: int, r: int, weight: float, out: Any) -> None:
    """The means of the parameters, then their mean squares."""
    first, at, n_means = plates.out[p], plates.row[p] * capacity + r, plates.n_means[p]
    if plates.kind[p] == NORMAL:
        loc, rate, n = state[at], state[at + capacity], int(state[at + 3 * capacity])
        variance = rate * plates.variance[p, n]
        out[first] += weight * loc
        out[first + 1] += weight * (math.sqrt(rate) * plates.scale[p, n])
        out[first + 2] += weight * (loc * loc + variance / (plates.kappa[p] + n))
        out[first + 3] += weight * variance
    elif plates.kind[p] == GAMMA:
        shape, rate = state[at], state[at + capacity]
        out[first] += weight * (shape / rate)
        out[first + 1] += weight * (shape / rate * ((shape + 1) / rate))
    else:
        whole = state[at + plates.size[p] * capacity]
        for k in range(n_means):
            mean = state[at + k * capacity] / whole
            out[first + k] += weight * mean
            out[first + n_means + k] += weight * (mean * (state[at + k * capacity] + 1) / (whole + 1))


@inlined
def _add_means(plates: Any, p: int, state: Any, capacity: int, r: int, weight: float, out: Any) -> None:
    """The expected statistics."""
    column, at = plates.out[p], plates.row[p] * capacity + r
    if plates.kind[p] == NORMAL:
        n = int(state[at + 3 * capacity])
        precision = (plates.shape[p] + 0.5 * n) / state[at + capacity]
        first = precision * state[at]
        out[column] += weight * first
        out[column + 1] += weight * (first * state[at] + 1 / (plates.kappa[p] + n))
        out[column + 2] += weight * (plates.digamma[p, n] - state[at + 2 * capacity])
        out[column + 3] += weight * precision
    elif plates.kind[p] == GAMMA:
        out[column] += weight * (digamma(state[at]) - state[at + 2 * capacity])
        out[column + 1] += weight * state[at] / state[at + capacity]
    else:
        size = plates.size[p]
        whole = digamma(state[at + size * capacity])
        for k in range(size):
            out[column + k] += weight * (digamma(state[at + k * capacity]) - whole)


@inlined
def log_ratio(plates: Any, state: Any, capacity: int, r: int) -> float:
    """The log of the greatest ratio of the posterior and the prior density; see `plain.Bound`."""
    total = 0.0
    for p in range(len(plates.kind)):
        at = plates.row[p] * capacity + r
        if plates.kind[p] == NORMAL:
            total += max(0.0, _normal_ratio(plates, p, state, capacity, at))
        elif plates.kind[p] == GAMMA:
            shape0, rate0 = plates.prior[plates.row[p]], plates.prior[plates.row[p] + 1]
            more, exposure = state[at] - shape0, state[at + capacity] - rate0
            greatest = 0.0
            if more > 0:
                greatest = more * math.log(more / exposure) - more if exposure > 0 else math.inf
            evidence = math.lgamma(state[at]) - state[at] * state[at + 2 * capacity]
            total += max(0.0, greatest - (evidence - math.lgamma(shape0) + shape0 * math.log(rate0)))
        else:
            size, start = plates.size[p], plates.row[p]
            whole0, whole = plates.prior[start + size], state[at + size * capacity]
            value = math.lgamma(whole) - math.lgamma(whole0)
            for k in range(size):
                a0, a = plates.prior[start + k], state[at + k * capacity]
                value += math.lgamma(a0) - math.lgamma(a)
                if a > a0:
                    value += (a - a0) * math.log((a - a0) / (whole - whole0))
            total += max(0.0, value)
    return total


@inlined
def _normal_ratio(plates: Any, p: int, state: Any, capacity: int, at: int) -> float:
    n, row = int(state[at + 3 * capacity]), plates.row[p]
    if n == 0:
        return 0.0
    loc0, rate0, log_rate0, kappa0 = plates.prior[row], plates.prior[row + 1], plates.prior[row + 2], plates.kappa[p]
    rate, shape0, shape = state[at + capacity], plates.shape[p], 0.5 * n
    mean = loc0 + (state[at] - loc0) * (kappa0 + n) / n
    between = 0.5 * kappa0 * n / (kappa0 + n) * (mean - loc0) ** 2
    within = rate - rate0 - between - (8 + n) * _EPS * rate  # the rest is at least that, whatever rounding has done
    if not within > 0:
        return math.inf
    evidence = plates.constant[p, n] - plates.constant[p, 0] - (shape0 + shape) * state[at + 2 * capacity]
    return shape * (math.log(shape / within) - 1) - evidence - shape0 * log_rate0


@inlined
def follow(plates: Any, p: int, x: Any, start: int, steps: int, state: Any, capacity: int, level: Any) -> None:
    """The posteriors of a segment from `start` at its steps; their log evidence, log h excepted, is added to the
    level."""
    column, rows = plates.column[p], plates.row[p] * capacity
    if plates.kind[p] == NORMAL:
        _follow_normal(plates, p, x, start, steps, state, capacity, level)
        return
    size = plates.size[p]
    last = (size if plates.kind[p] == SIMPLEX else 2) * capacity + rows  # a row that holds other numbers first
    rest = 0.0
    if plates.kind[p] == GAMMA:
        shape, rate = plates.prior[plates.row[p]], plates.prior[plates.row[p] + 1]
        base = shape * math.log(rate)
        for i in range(steps):
            more = x[start + i, column]
            rest += _log_rise(shape, more)
            shape, rate = shape + more, rate - x[start + i, column + 1]
            state[rows + i], state[rows + capacity + i] = shape, rate
            level[i] += rest + base
        logs(state, rows + capacity, last, steps)
        for i in range(steps):
            level[i] -= state[rows + i] * state[last + i]
    else:
        for row in range(size + 1):
            state[rows + row * capacity] = plates.prior[plates.row[p] + row]
        for i in range(steps):
            whole = 0.0
            for k in range(size):
                at, more = rows + k * capacity + i, x[start + i, column + k]
                old = state[at - (i > 0)]
                rest += _log_rise(old, more)
                state[at] = old + more
                whole += more
            old = state[last + i - (i > 0)]
            rest -= _log_rise(old, whole)
            state[last + i] = old + whole
            level[i] += rest


@inlined
def _follow_normal(plates: Any, p: int, x: Any, start: int, steps: int, state: Any, capacity: int, level: Any) -> None:
    column, rows, row = plates.column[p], plates.row[p] * capacity, plates.row[p]
    loc, rate, n, constant = plates.prior[row], plates.prior[row + 1], 0, plates.constant[p]
    for i in range(steps):
        if x[start + i, column + 1] != 0:
            kappa, error = plates.kappa[p] + n, x[start + i, column] - loc
            share = error * (1 / (kappa + 1))  # the division does not wait for the location
            loc += share
            rate += 0.5 * error * kappa * share
            n += 1
        state[rows + i], state[rows + capacity + i], state[rows + 3 * capacity + i] = loc, rate, n
        level[i] += constant[n]
    logs(state, rows + capacity, rows + 2 * capacity, steps)
    half, shape0 = splat(0.5), splat(plates.shape[p])
    base = splat(constant[0] - plates.shape[p] * plates.prior[row + 2])
    for i in range(0, steps, LANES):
        shape = muladd(half, load(state, rows + 3 * capacity + i), shape0)
        store(level, i, load(level, i) - muladd(shape, load(state, rows + 2 * capacity + i), base))


@inlined
def _log_rise(a: float, more: float) -> float:
    """log Gamma(a + more) - log Gamma(a)."""
    if more == 0:
        return 0.0
    if more == 1:
        return math.log(a)
    if more == math.floor(more) and 0 < more <= _FEW:
        product = a
        for i in range(1, int(more)):
            product *= a + i
        return math.log(product)
    return math.lgamma(a + more) - math.lgamma(a)


@inlined
def logs(numbers: Any, source: int, target: int, n: int) -> None:
    """Logarithms of n numbers from one place on, to another place; the last vector may pass the n."""
    for i in range(0, n, LANES):
        store(numbers, target + i, log(load(numbers, source + i)))
