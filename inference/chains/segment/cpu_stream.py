"""One observation more, of one sequence: the step of `plain_stream` in a kernel."""

import math
from typing import Any, NamedTuple

import numpy as np

from ...numerics.compilation import inlined, kernel
from .cpu_plates import GAMMA, NORMAL

_EPS = 2.3e-16
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Kinds(NamedTuple):
    """The plates of a sequence, side by side in tables [..., D]."""

    kind: Any  # [P]
    column: Any  # [P]
    size: Any  # [P]
    prior: Any  # [D], natural parameters
    evidence: float  # log-normalizer of the priors


class Hazards(NamedTuple):
    log_change: Any  # [H]
    log_hold: Any  # [H]
    by_hazards: Any  # [H], or [0] by step


@inlined
def _change(hazards: Any, run: int) -> float:
    return hazards.log_change[min(run, len(hazards.log_change)) - 1]


@inlined
def _hold(hazards: Any, run: int) -> float:
    return hazards.log_hold[min(run, len(hazards.log_hold)) - 1]


@inlined
def _evidence(kinds: Any, sums: Any, r: int) -> float:
    """The log-normalizer of a posterior."""
    total = 0.0
    for p in range(len(kinds.kind)):
        c, prior = kinds.column[p], kinds.prior
        if kinds.kind[p] == NORMAL:
            weighted, kappa = prior[c] + sums[r, c], -2 * (prior[c + 1] + sums[r, c + 1])
            shape = prior[c + 2] + sums[r, c + 2]
            rate = -(prior[c + 3] + sums[r, c + 3]) - weighted * weighted / kappa / 2
            total += math.lgamma(shape) - shape * math.log(rate) - math.log(kappa) / 2 + _HALF_LOG_2PI
        elif kinds.kind[p] == GAMMA:
            shape = prior[c] + sums[r, c]
            total += math.lgamma(shape) - shape * math.log(-(prior[c + 1] + sums[r, c + 1]))
        else:
            whole = 0.0
            for k in range(c, c + kinds.size[p]):
                total += math.lgamma(prior[k] + sums[r, k])
                whole += prior[k] + sums[r, k]
            total -= math.lgamma(whole)
    return total


@inlined
def _supremum(kinds: Any, sums: Any, r: int) -> float:
    """See `VectorFamily.supremum`."""
    total = 0.0
    for p in range(len(kinds.kind)):
        c = kinds.column[p]
        if kinds.kind[p] == NORMAL:
            shape, kappa, square = sums[r, c + 2], -2 * sums[r, c + 1], -sums[r, c + 3]
            if kappa > 0:
                rate = square - sums[r, c] ** 2 / kappa / 2 - (1 + 2 * shape) * 4 * _EPS * square
                total += shape * (math.log(shape / rate) - 1) if rate > 0 else math.inf
        elif kinds.kind[p] == GAMMA:
            shape, rate = sums[r, c], -sums[r, c + 1]
            if shape > 0:
                total += shape * (math.log(shape / rate) - 1) if rate > 0 else math.inf
        else:
            whole = 0.0
            for k in range(c, c + kinds.size[p]):
                whole += sums[r, k]
            for k in range(c, c + kinds.size[p]):
                if sums[r, k] > 0:
                    total += sums[r, k] * math.log(sums[r, k] / whole)
    return total


@kernel
def log_evidence(kinds, sums):
    """That of the first row."""
    return _evidence(kinds, sums, 0)


@inlined
def _cost(kinds: Any, hazards: Any, length: Any, weight: Any, sums: Any, top: float, evidence: float, r: int) -> float:
    """The bound of the share of a beginning."""
    if weight[r] == -np.inf:
        return 0.0
    ratio = max(0.0, _supremum(kinds, sums, r) - (evidence - kinds.evidence))
    if len(hazards.by_hazards):
        run, change = length[r], _change(hazards, length[r])
        ratio += hazards.by_hazards[min(run, len(hazards.by_hazards)) - 1] + _hold(hazards, run)
        above = max(ratio, change)
        if above < np.inf:
            ratio = above + math.log(math.exp(ratio - above) + math.exp(change - above))
    cost = math.exp(weight[r] + ratio - top)
    return cost if cost == cost else math.inf


@kernel
def advance(kinds, hazards, length, weight, sums, evidence, x, base, tol, most):
    """New lengths, weights, sums, log-normalizers, natural parameters; the increment; and the bound of what was left
    out."""
    size, before, left_out = len(length), 0.0, 0.0
    cost, out, n = np.zeros(size), np.zeros(size, np.bool_), size
    if size > 0:
        above, whole = -np.inf, 0.0
        for r in range(size):
            above = max(above, weight[r] + _change(hazards, length[r]))
        for r in range(size):
            whole += math.exp(weight[r] + _change(hazards, length[r]) - above)
        top = above + math.log(whole)
        if tol > 0 or size > most:
            n = 0
            for r in range(size):
                if tol > 0 and weight[r] - top < math.log(tol / size):
                    cost[r] = _cost(kinds, hazards, length, weight, sums, top, evidence[r], r)
                    out[r] = cost[r] < tol / size
                n += not out[r]
            if n > most:
                for r in np.argsort(weight):
                    if n > most and not out[r]:
                        cost[r] = _cost(kinds, hazards, length, weight, sums, top, evidence[r], r)
                        out[r] = True
                        n -= 1
        above, whole = -np.inf, 0.0
        for r in range(size):
            if out[r]:
                left_out += cost[r]
            else:
                above = max(above, weight[r] + _change(hazards, length[r]))
        for r in range(size):
            if not out[r]:
                whole += math.exp(weight[r] + _change(hazards, length[r]) - above)
        before = above + math.log(whole)
    lengths, weights = np.empty(n + 1, np.int64), np.empty(n + 1)
    totals, natural, evidences = np.zeros((n + 1, len(x))), np.empty((n + 1, len(x))), np.empty(n + 1)
    at = 0
    for r in range(size):
        if not out[r]:
            lengths[at] = length[r] + 1
            weights[at] = weight[r] + _hold(hazards, length[r]) - evidence[r]
            totals[at] = sums[r]
            at += 1
    lengths[n], weights[n] = 1, before - kinds.evidence
    above = -np.inf
    for r in range(n + 1):
        for d in range(len(x)):
            totals[r, d] += x[d]
            natural[r, d] = kinds.prior[d] + totals[r, d]
        evidences[r] = _evidence(kinds, totals, r)
        weights[r] += evidences[r] + base
        above = max(above, weights[r])
    whole = 0.0
    for r in range(n + 1):
        whole += math.exp(weights[r] - above)
    increment = above + math.log(whole)
    for r in range(n + 1):
        weights[r] -= increment
    return lengths, weights, totals, evidences, natural, increment, left_out
