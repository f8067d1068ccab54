"""Some observations more, of one sequence: the steps of `plain_stream` in a kernel."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...numerics.compilation import inlined, kernel
from ...numerics.gammas import LEAST, inverse_moments
from .cpu_plates import GAMMA, NEGLIGIBLE, NORMAL
from .plain_stream import CHANGE, EXPECTED, INCREMENT, LEFT_OUT, RUN, TOTAL

_EPS = 2.3e-16
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_LEAST_MOMENT = NEGLIGIBLE[1]
_LEFT_OUT = -1.0  # in place of a length
_NUMBERS = 3  # of a beginning, before its statistics
_COUNTS, _ENTRIES = 4096, 1 << 18  # of the tables by count at most


class Kinds(NamedTuple):
    """The plates of a sequence, side by side in tables [..., D]."""

    plates: Any  # [P, 5]: kind, first column, numbers of columns, of means, and of means of plates before it
    prior: Any  # [D], natural parameters
    log_gamma: Any  # [D, C], log Gamma(prior + count), or + count / 2 of the shape of a normal plate
    other: Any  # [P, C], of a normal plate E[scale] / sqrt(rate) by count, of a simplex log Gamma(sum of prior + count)
    evidence: float  # log-normalizer of the priors
    n_means: int


class Hazards(NamedTuple):
    log_change: Any  # [H]
    log_hold: Any  # [H]
    by_hazards: Any  # [H], or [0] by step
    by_run: bool


def kinds_of(plates: list[tuple[int, int, int]], prior: Tensor) -> Kinds:
    """From the kind, the number of columns and that of means of each plate."""
    count = torch.arange(max(64, min(_COUNTS, _ENTRIES // len(prior))), dtype=torch.float64)
    log_gamma, other = torch.zeros(len(prior), len(count), dtype=torch.float64), []
    rows, column, before = [], 0, 0
    for kind, size, n_means in plates:
        rows.append((kind, column, size, n_means, before))
        if kind == NORMAL:
            shape = prior[column + 2] + count / 2
            log_gamma[column + 2] = torch.lgamma(shape)
            other.append(inverse_moments(shape)[0])
        else:
            own = prior[column : column + (1 if kind == GAMMA else size)]
            log_gamma[column : column + len(own)] = torch.lgamma(own.unsqueeze(-1) + count)
            other.append(torch.lgamma(own.sum() + count))
        column, before = column + size, before + n_means
    found = np.array(rows), prior.numpy(), log_gamma.numpy(), torch.stack(other).numpy()
    kinds = Kinds(*found, 0.0, before)
    return kinds._replace(evidence=float(_log_evidence(kinds, np.zeros((1, _NUMBERS + len(prior))))))


@inlined
def _by_count(table: Any, row: int, count: float) -> float:
    """The entry of a whole number; NaN if the table has none."""
    return table[row, int(count)] if 0 <= count < table.shape[1] and count == math.floor(count) else math.nan


@inlined
def _log_gamma(table: Any, row: int, count: float, value: float) -> float:
    found = _by_count(table, row, count)
    return math.lgamma(value) if math.isnan(found) else found


@inlined
def _change(hazards: Any, x: Any, run: float) -> float:
    """log P(a change before an observation x) after a run."""
    if hazards.by_run:
        return hazards.log_change[min(int(run), len(hazards.log_change)) - 1]
    return hazards.log_change[0] if x[-2] > 0 else x[-2]


@inlined
def _hold(hazards: Any, x: Any, run: float) -> float:
    if hazards.by_run:
        return hazards.log_hold[min(int(run), len(hazards.log_hold)) - 1]
    return hazards.log_hold[0] if x[-2] > 0 else x[-1]


@inlined
def _evidence(kinds: Any, rows: Any, r: int) -> float:
    """The log-normalizer of a posterior."""
    total = 0.0
    for p in range(len(kinds.plates)):
        kind, c, prior = kinds.plates[p, 0], kinds.plates[p, 1], kinds.prior
        at = c + _NUMBERS
        if kind == NORMAL:
            weighted, kappa = prior[c] + rows[r, at], -2 * (prior[c + 1] + rows[r, at + 1])
            shape = prior[c + 2] + rows[r, at + 2]
            rate = -(prior[c + 3] + rows[r, at + 3]) - weighted * weighted / kappa / 2
            total += _log_gamma(kinds.log_gamma, c + 2, 2 * rows[r, at + 2], shape)
            total += _HALF_LOG_2PI - shape * math.log(rate) - math.log(kappa) / 2
        elif kind == GAMMA:
            shape = prior[c] + rows[r, at]
            total += _log_gamma(kinds.log_gamma, c, rows[r, at], shape)
            total -= shape * math.log(-(prior[c + 1] + rows[r, at + 1]))
        else:
            more, whole = 0.0, 0.0
            for k in range(kinds.plates[p, 2]):
                total += _log_gamma(kinds.log_gamma, c + k, rows[r, at + k], prior[c + k] + rows[r, at + k])
                more += rows[r, at + k]
                whole += prior[c + k]
            total -= _log_gamma(kinds.other, p, more, whole + more)
    return total


@inlined
def _supremum(kinds: Any, rows: Any, r: int) -> float:
    """See `VectorFamily.supremum`."""
    total = 0.0
    for p in range(len(kinds.plates)):
        kind, at = kinds.plates[p, 0], kinds.plates[p, 1] + _NUMBERS
        if kind == NORMAL:
            shape, kappa, square = rows[r, at + 2], -2 * rows[r, at + 1], -rows[r, at + 3]
            if kappa > 0:
                rate = square - rows[r, at] ** 2 / kappa / 2 - (1 + 2 * shape) * 4 * _EPS * square
                total += shape * (math.log(shape / rate) - 1) if rate > 0 else math.inf
        elif kind == GAMMA:
            shape, rate = rows[r, at], -rows[r, at + 1]
            if shape > 0:
                total += shape * (math.log(shape / rate) - 1) if rate > 0 else math.inf
        else:
            whole = 0.0
            for k in range(at, at + kinds.plates[p, 2]):
                whole += rows[r, k]
            for k in range(at, at + kinds.plates[p, 2]):
                if rows[r, k] > 0:
                    total += rows[r, k] * math.log(rows[r, k] / whole)
    return total


@inlined
def _add_moments(kinds: Any, rows: Any, r: int, weight: float, found: Any) -> None:
    """As those of `cpu_plates`."""
    for p in range(len(kinds.plates)):
        kind, c, n_means, prior = kinds.plates[p, 0], kinds.plates[p, 1], kinds.plates[p, 3], kinds.prior
        first, at = EXPECTED + 2 * kinds.plates[p, 4], c + _NUMBERS
        if kind == NORMAL:
            weighted, kappa = prior[c] + rows[r, at], -2 * (prior[c + 1] + rows[r, at + 1])
            shape, loc = prior[c + 2] + rows[r, at + 2], weighted / kappa
            rate = -(prior[c + 3] + rows[r, at + 3]) - weighted * loc / 2
            root = _by_count(kinds.other, p, 2 * rows[r, at + 2])
            if math.isnan(root):
                root = math.exp(math.lgamma(max(shape - 0.5, LEAST)) - math.lgamma(shape))
            variance = rate / max(shape - 1, LEAST)
            found[first] += weight * loc
            found[first + 1] += weight * (math.sqrt(rate) * root)
            found[first + 2] += weight * (loc * loc + variance / kappa)
            found[first + 3] += weight * variance
        elif kind == GAMMA:
            shape, rate = prior[c] + rows[r, at], -(prior[c + 1] + rows[r, at + 1])
            found[first] += weight * (shape / rate)
            found[first + 1] += weight * (shape / rate * ((shape + 1) / rate))
        else:
            whole = 0.0
            for k in range(kinds.plates[p, 2]):
                whole += prior[c + k] + rows[r, at + k]
            for k in range(n_means):
                value = prior[c + k] + rows[r, at + k]
                found[first + k] += weight * (value / whole)
                found[first + n_means + k] += weight * (value / whole * ((value + 1) / (whole + 1)))


@kernel
def _log_evidence(kinds, rows):
    """That of the first row."""
    return _evidence(kinds, rows, 0)


@inlined
def _cost(kinds: Any, hazards: Any, x: Any, rows: Any, top: float, r: int) -> float:
    """The bound of the share of a beginning."""
    length, weight = rows[r, 0], rows[r, 1]
    if weight == -np.inf:
        return 0.0
    ratio = max(0.0, _supremum(kinds, rows, r) - (rows[r, 2] - kinds.evidence))
    if len(hazards.by_hazards):
        change = _change(hazards, x, length)
        ratio += hazards.by_hazards[min(int(length), len(hazards.by_hazards)) - 1] + _hold(hazards, x, length)
        above = max(ratio, change)
        if above < np.inf:
            ratio = above + math.log(math.exp(ratio - above) + math.exp(change - above))
    cost = math.exp(weight + ratio - top)
    return cost if cost == cost else math.inf


@inlined
def _before(hazards: Any, x: Any, rows: Any, n: int) -> float:
    """log P(a change before x); -inf without a beginning."""
    above, whole = -np.inf, 0.0
    for r in range(n):
        above = max(above, rows[r, 1] + _change(hazards, x, rows[r, 0]))
    if above == -np.inf:
        return above
    for r in range(n):
        whole += math.exp(rows[r, 1] + _change(hazards, x, rows[r, 0]) - above)
    return above + math.log(whole)


@kernel
def _leave_out(kinds, hazards, x, rows, n, before, tol, most, found):
    """Without the beginnings that `tol` and `most` leave out, of which `found` gets the bound; how many are kept."""
    size, kept = n, 0
    least = math.log(tol / size) if tol > 0 else -np.inf
    for r in range(size):
        if rows[r, 1] - before < least:
            cost = _cost(kinds, hazards, x, rows, before, r)
            if cost < tol / size:
                rows[r, 0] = _LEFT_OUT
                found[LEFT_OUT] += cost
                n -= 1
    if n > most:
        for r in np.argsort(rows[:size, 1].copy()):
            if n > most and rows[r, 0] != _LEFT_OUT:
                found[LEFT_OUT] += _cost(kinds, hazards, x, rows, before, r)
                rows[r, 0] = _LEFT_OUT
                n -= 1
    for r in range(size):
        if rows[r, 0] != _LEFT_OUT:
            rows[kept] = rows[r]
            kept += 1
    return kept


@kernel
def advance(kinds, hazards, rows, n, x, last, tol, most, found):
    """The first n rows are the beginnings, and are changed; how many there are at the end. See `plain_stream.update`
    for x and found."""
    D = len(kinds.prior)
    step = np.ones(D + 3)  # a log hazard of 1 is none
    for s in range(len(x)):
        step[: x.shape[1]] = x[s]
        now, before = found[s], 0.0
        now[TOTAL], now[LEFT_OUT] = last[TOTAL], last[LEFT_OUT]
        if n > 0:
            before = _before(hazards, step, rows, n)
            if tol > 0 or n > most:
                size = n
                n = _leave_out(kinds, hazards, step, rows, n, before, tol, most, now)
                if n < size:
                    before = _before(hazards, step, rows, n)
        now[LEFT_OUT] = min(now[LEFT_OUT], 1.0)
        rows[n] = 0.0
        rows[n, 1], rows[n, 2] = before, kinds.evidence
        n += 1
        above = -np.inf
        for r in range(n):
            if r < n - 1:
                rows[r, 1] += _hold(hazards, step, rows[r, 0])
            rows[r, 0] += 1
            for d in range(D):
                rows[r, _NUMBERS + d] += step[d]
            evidence = _evidence(kinds, rows, r)
            rows[r, 1] += evidence - rows[r, 2] + step[D]
            rows[r, 2] = evidence
            above = max(above, rows[r, 1])
        whole = 0.0
        for r in range(n):
            whole += math.exp(rows[r, 1] - above)
        increment = above + math.log(whole)
        now[INCREMENT] = increment
        now[TOTAL] += increment
        for r in range(n):
            rows[r, 1] -= increment
            weight = math.exp(rows[r, 1])
            now[RUN] += weight * rows[r, 0]
            if rows[r, 0] == 1:
                now[CHANGE] += weight
            if kinds.n_means > 0 and weight > _LEAST_MOMENT:
                _add_moments(kinds, rows, r, weight, now)
        last = now
    return n
