"""The weighted pushdown recursion as numba kernels (`op` has the equations and the names).

One step is one call of `advance`, its adjoint one call of `retreat`; both walk the tables of one sequence in place.
`forward` and `backward` take several steps of several sequences: all of them at once, or one by one for a network that
reads the stack before it chooses the next weights.

Tables are float64 logarithms. Rows (element c, configuration a it was pushed in) are the contiguous axes, and at every
earlier time those in use are a prefix; so each sum over split points k is a sweep of long vectors:

    segment[t, j, c, a]   from element c newly on top in configuration a to c on top again in j at time t
    matched[t, i, r, k]   an element pushed at step k on configuration i and popped at step t into state r
    below[c, a]           everything that ends with pushing c in configuration a (c = 0: the initial weight)
    log_top[t, c, j]      all runs with element c on top at time t in configuration j

Adjoints of logarithms are shares of a posterior: they stay in [0, 1] however far the weights range.
"""

from typing import Any, NamedTuple

import numpy as np

from ...numerics.compilation import kernel
from ...numerics.elementary import exp
from ...numerics.small_matrices import copy_row


class Weights(NamedTuple):
    """The log-weights of some steps, [B, n, ...], or of one step of one sequence; or the adjoints of these."""

    push: Any  # [K, K]; of all steps so far, [B, T, K, K] or [T, K, K], as what was pushed long ago is popped now
    replace: Any  # [K, K]
    bottom: Any  # [K, K]
    pop: Any  # [K, Q]
    evidence: Any  # [C, K], or nothing


class Tables(NamedTuple):
    """The tables above, [B, ...] or of one sequence, or their adjoints, of which `matched` may be empty."""

    segment: Any
    matched: Any
    below: Any
    log_top: Any


@kernel
def _raise(top, x, weight):
    """top = max(top, x + weight), along x."""
    for i in range(x.shape[0]):
        y = x[i] + weight
        top[i] = y if y > top[i] else top[i]


@kernel
def _gather(total, x, weight, top):
    """total += exp(x + weight - top), along x."""
    for i in range(x.shape[0]):
        total[i] += exp(x[i] + weight - top[i])


@kernel
def _spread(amount, x, weight, total, grad):
    """grad += share with share = amount exp(x + weight - total), along x; returns the sum of the shares."""
    total_share = 0.0
    for i in range(x.shape[0]):
        share = amount[i] * exp(x[i] + weight - total[i])
        grad[i] += share
        total_share += share
    return total_share


@kernel
def _add(x, y, best):
    """log sum_i exp(x[i] + y[i]) for short vectors, or the maximum."""
    top = -np.inf
    for i in range(x.shape[0]):
        top = max(top, x[i] + y[i])
    if best or top == -np.inf or x.shape[0] == 1:
        return top
    total = 0.0
    for i in range(x.shape[0]):
        total += exp(x[i] + y[i] - top)
    return top + np.log(total)


@kernel
def _finish(top, total, best, out):
    """out = top + log(total), or top; -inf where nothing was summed."""
    for i in range(top.shape[0]):
        out[i] = top[i] if best else (top[i] + np.log(total[i]) if total[i] > 0.0 else -np.inf)


@kernel
def _floor(x, bottom):
    """Replace -inf by a number that can be subtracted."""
    for i in range(x.shape[0]):
        x[i] = bottom if x[i] == -np.inf else x[i]


@kernel
def _returns(t, best, log_pop, last, back):
    """back[r, k K + a]: from element k newly on top in configuration a to its pop at step t into state r."""
    K, Q = log_pop.shape
    n = t * K
    total = np.empty(n)
    for r in range(Q):
        top = back[r, :n]
        top[:] = -np.inf
        for j in range(K):
            _raise(top, last[j, :n], log_pop[j, r])
        if not best:
            _floor(top, 0.0)
            total[:] = 0.0
            for j in range(K):
                _gather(total, last[j, :n], log_pop[j, r], top)
            _finish(top, total, best, top)


@kernel
def advance(t, best, weights, tables):
    """Fill step t >= 1 of the tables of one sequence."""
    log_push, log_replace, log_bottom, log_pop, log_evidence = weights
    segment, matched, _, _ = tables
    K, Q = log_pop.shape
    G = K // Q
    n = t * K
    rows = segment.reshape((segment.shape[0], K, segment.shape[2] * K))
    back = np.empty((Q, n))
    _returns(t, best, log_pop, rows[t - 1], back)
    for r in range(Q):
        for k in range(1, t):
            for i in range(K):
                matched[t, i, r, k] = _add(log_push[k - 1, i], back[r, k * K : k * K + K], best)
    top, total = np.empty(n), np.empty(n)
    for j in range(K):
        r, y = j // G, j % G
        top[:] = -np.inf
        for i in range(K):
            _raise(top[:K], rows[t - 1, i, :K], log_bottom[i, j])
            _raise(top[K:], rows[t - 1, i, K:n], log_replace[i, j])
        for i in range(y, K, G):
            for k in range(1, t):
                _raise(top[: k * K], rows[k - 1, i, : k * K], matched[t, i, r, k])
        if not best:
            _floor(top, 0.0)
            total[:] = 0.0
            for i in range(K):
                _gather(total[:K], rows[t - 1, i, :K], log_bottom[i, j], top[:K])
                _gather(total[K:], rows[t - 1, i, K:n], log_replace[i, j], top[K:])
            for i in range(y, K, G):
                for k in range(1, t):
                    _gather(total[: k * K], rows[k - 1, i, : k * K], matched[t, i, r, k], top[: k * K])
        _finish(top, total, best, rows[t, j, :n])
        segment[t, j, t, j] = 0.0
        if log_evidence.size:
            for c in range(t + 1):
                for a in range(K):
                    segment[t, j, c, a] += log_evidence[c, j]
    _put_on_top(t, best, log_push, tables)


@kernel
def _put_on_top(t, best, log_push, tables):
    """below[t] and log_top[t]."""
    segment, _, below, log_top = tables
    K = below.shape[1]
    reached, nothing = np.empty(K), np.zeros(t)
    for i in range(K):
        reached[i] = _add(log_top[t - 1, :t, i], nothing, best)
    for a in range(K):
        below[t, a] = _add(reached, log_push[t - 1, :, a], best)
    for c in range(t + 1):
        for j in range(K):
            log_top[t, c, j] = _add(below[c], segment[t, j, c], best)


@kernel
def _retreat_top(t, tables, adjoint):
    """The adjoint of log_top[t]."""
    segment, _, below, log_top = tables
    g_segment, _, g_below, g_top = adjoint
    K = below.shape[1]
    for c in range(t + 1):
        for j in range(K):
            if g_top[t, c, j] != 0.0 and log_top[t, c, j] > -np.inf:
                for a in range(K):
                    share = g_top[t, c, j] * np.exp(below[c, a] + segment[t, j, c, a] - log_top[t, c, j])
                    g_below[c, a] += share
                    g_segment[t, j, c, a] += share


@kernel
def _retreat_segment(t, weights, tables, g_weights, adjoint, g_matched):
    """The adjoint of segment[t]."""
    _, log_replace, log_bottom, log_pop, log_evidence = weights
    _, g_replace, g_bottom, _, g_evidence = g_weights
    segment, matched, g_segment = tables.segment, tables.matched, adjoint.segment
    K, Q = log_pop.shape
    G = K // Q
    n = t * K
    rows = segment.reshape((segment.shape[0], K, segment.shape[2] * K))
    g_rows = g_segment.reshape(rows.shape)
    whole = np.empty(n)
    for j in range(K):
        r, y = j // G, j % G
        amount = g_rows[t, j, :n]
        copy_row(rows[t, j, :n], whole)
        _floor(whole, np.inf)
        if log_evidence.size:
            for c in range(t + 1):
                for a in range(K):
                    g_evidence[c, j] += g_segment[t, j, c, a]
            for c in range(t):
                if log_evidence[c, j] > -np.inf:
                    for a in range(K):
                        whole[c * K + a] -= log_evidence[c, j]
        for i in range(K):
            old, g_old = rows[t - 1, i], g_rows[t - 1, i]
            g_bottom[i, j] += _spread(amount[:K], old[:K], log_bottom[i, j], whole[:K], g_old[:K])
            g_replace[i, j] += _spread(amount[K:], old[K:n], log_replace[i, j], whole[K:], g_old[K:n])
        for i in range(y, K, G):
            for k in range(1, t):
                m = k * K
                old, g_old = rows[k - 1, i, :m], g_rows[k - 1, i, :m]
                g_matched[i, r, k] += _spread(amount[:m], old, matched[t, i, r, k], whole[:m], g_old)


@kernel
def _retreat_matched(t, weights, tables, g_weights, adjoint, g_matched):
    """The adjoint of matched[t]."""
    log_push, log_pop, g_push, g_pop, matched = weights.push, weights.pop, g_weights.push, g_weights.pop, tables.matched
    K, Q = log_pop.shape
    n = t * K
    shape = (tables.segment.shape[0], K, tables.segment.shape[2] * K)
    last, g_last = tables.segment.reshape(shape)[t - 1], adjoint.segment.reshape(shape)[t - 1]
    back, g_back = np.empty((Q, n)), np.zeros((Q, n))
    _returns(t, 0, log_pop, last, back)
    for r in range(Q):
        for k in range(1, t):
            for i in range(K):
                if g_matched[i, r, k] != 0.0:
                    for a in range(K):
                        share = log_push[k - 1, i, a] + back[r, k * K + a] - matched[t, i, r, k]
                        share = g_matched[i, r, k] * np.exp(share)
                        g_push[k - 1, i, a] += share
                        g_back[r, k * K + a] += share
        _floor(back[r], np.inf)
        for j in range(K):
            g_pop[j, r] += _spread(g_back[r], last[j, :n], log_pop[j, r], back[r], g_last[j, :n])


@kernel
def retreat(t, weights, tables, g_weights, adjoint):
    """The adjoint of `advance(t)`: moves gradients from time t to its inputs, in place."""
    K, Q = weights.pop.shape
    _retreat_top(t, tables, adjoint)
    g_matched = np.zeros((K, Q, t))
    if adjoint.matched.size:
        g_matched += adjoint.matched[t, :, :, :t]
    _retreat_segment(t, weights, tables, g_weights, adjoint, g_matched)
    _retreat_matched(t, weights, tables, g_weights, adjoint, g_matched)
    log_push, below, log_top, g_push, g_below, g_top = (
        weights.push, tables.below, tables.log_top, g_weights.push, adjoint.below, adjoint.log_top
    )  # fmt: skip
    for a in range(K):
        if g_below[t, a] == 0.0 or below[t, a] == -np.inf:
            continue
        for c in range(t):
            for i in range(K):
                share = g_below[t, a] * np.exp(log_top[t - 1, c, i] + log_push[t - 1, i, a] - below[t, a])
                g_top[t - 1, c, i] += share
                g_push[t - 1, i, a] += share


@kernel
def _weights_of(weights, b, n):
    """The n-th of the given steps of sequence b."""
    push, replace, bottom, pop, evidence = weights
    return Weights(push[b], replace[b, n], bottom[b, n], pop[b, n], evidence[b, n])


@kernel
def _tables_of(tables, b):
    segment, matched, below, log_top = tables
    return Tables(segment[b], matched[b], below[b], log_top[b])


@kernel
def forward(part, steps, best, weights, tables):
    """Some steps, from the first to the last, of sequences part[0]..part[1]-1; the weights are for these steps."""
    for b in range(part[0], part[1]):
        for t in range(steps[0], steps[1] + 1):
            advance(t, best, _weights_of(weights, b, t - steps[0]), _tables_of(tables, b))


@kernel
def backward(part, steps, weights, tables, g_weights, adjoint):
    """The adjoint of `forward`."""
    for b in range(part[0], part[1]):
        for t in range(steps[1], steps[0] - 1, -1):
            here, g_here = (
                _weights_of(weights, b, t - steps[0]),
                _weights_of(g_weights, b, t - steps[0]),
            )
            retreat(t, here, _tables_of(tables, b), g_here, _tables_of(adjoint, b))
