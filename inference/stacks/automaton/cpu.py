"""Fused CPU kernels of the weighted pushdown recursion (`op` has the equations and the names).

One step is one call of `advance`, its adjoint one call of `retreat`; both walk tables of one sequence in place. They
are used twice: `inside` runs all steps of given weights behind `torch.library.custom_op`, and the tape of
`stack_tape.py` runs them one by one, for a network that reads the stack before it chooses the next weights.

Tables are float64 logarithms. Rows (element c, configuration a it was pushed in) are the contiguous axes, and at every
earlier time those in use are a prefix; so each sum over split points k is a sweep of long vectors:

    segment[t, j, c, a]   from element c newly on top in configuration a to c on top again in j at time t
    matched[t, i, r, k]   an element pushed at step k on configuration i and popped at step t into state r
    below[c, a]           everything that ends with pushing c in configuration a (c = 0: the initial weight)
    log_top[t, c, j]      all runs with element c on top at time t in configuration j

Adjoints of logarithms are shares of a posterior: they stay in [0, 1] however far the weights range.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...numerics.elementary import exp
from ...numerics.workers import in_parallel, kernel, ranges

_MIN_WORK = 200_000  # terms a thread should have before a second one pays


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
    given = 0.0
    for i in range(x.shape[0]):
        share = amount[i] * exp(x[i] + weight - total[i])
        grad[i] += share
        given += share
    return given


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
def advance(t, best, log_push, log_replace, log_bottom, log_pop, log_evidence, segment, matched, below, log_top):
    """Fill step t >= 1 of the tables. log_push [t.., K, K] holds all steps so far, the other weights are of step t."""
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
    _put_on_top(t, best, log_push, segment, below, log_top)


@kernel
def _put_on_top(t, best, log_push, segment, below, log_top):
    """below[t] and log_top[t]."""
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
def _retreat_top(t, segment, below, log_top, g_segment, g_below, g_top):
    """The adjoint of log_top[t]."""
    K = below.shape[1]
    for c in range(t + 1):
        for j in range(K):
            if g_top[t, c, j] != 0.0 and log_top[t, c, j] > -np.inf:
                for a in range(K):
                    share = g_top[t, c, j] * np.exp(below[c, a] + segment[t, j, c, a] - log_top[t, c, j])
                    g_below[c, a] += share
                    g_segment[t, j, c, a] += share


@kernel
def _retreat_matched(t, log_push, log_pop, matched, last, g_matched, g_last, g_push, g_pop):
    """The adjoint of matched[t]."""
    K, Q = log_pop.shape
    n = t * K
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
def retreat(
    t, log_push, log_replace, log_bottom, log_pop, log_evidence, segment, matched, below, log_top,
    g_segment, g_below, g_top, g_push, g_replace, g_bottom, g_pop, g_evidence,
):  # fmt: skip
    """The adjoint of `advance(t)`: moves gradients from time t to what step t was made of, all in place."""
    K, Q = log_pop.shape
    G = K // Q
    n = t * K
    rows = segment.reshape((segment.shape[0], K, segment.shape[2] * K))
    g_rows = g_segment.reshape(rows.shape)
    _retreat_top(t, segment, below, log_top, g_segment, g_below, g_top)
    g_matched = np.zeros((K, Q, t))
    whole = np.empty(n)
    for j in range(K):
        r, y = j // G, j % G
        amount = g_rows[t, j, :n]
        whole[:] = rows[t, j, :n]
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
    _retreat_matched(t, log_push, log_pop, matched, rows[t - 1], g_matched, g_rows[t - 1], g_push, g_pop)
    for a in range(K):
        if g_below[t, a] == 0.0 or below[t, a] == -np.inf:
            continue
        for c in range(t):
            for i in range(K):
                share = g_below[t, a] * np.exp(log_top[t - 1, c, i] + log_push[t - 1, i, a] - below[t, a])
                g_top[t - 1, c, i] += share
                g_push[t - 1, i, a] += share


@kernel
def _forward(lo, hi, best, weights, tables):
    """All steps of sequences lo..hi-1."""
    log_push, log_replace, log_bottom, log_pop, log_evidence = weights
    segment, matched, below, log_top = tables
    for b in range(lo, hi):
        for t in range(1, log_push.shape[1] + 1):
            advance(
                t, best, log_push[b], log_replace[b, t - 1], log_bottom[b, t - 1], log_pop[b, t - 1],
                log_evidence[b, t - 1], segment[b], matched[b], below[b], log_top[b],
            )  # fmt: skip


@kernel
def _backward(lo, hi, weights, tables, g_segment, g_below, g_top, gradients):
    """The adjoint of `_forward`."""
    log_push, log_replace, log_bottom, log_pop, log_evidence = weights
    segment, matched, below, log_top = tables
    g_push, g_replace, g_bottom, g_pop, g_evidence = gradients
    for b in range(lo, hi):
        for step in range(log_push.shape[1]):
            t = log_push.shape[1] - step
            retreat(
                t, log_push[b], log_replace[b, t - 1], log_bottom[b, t - 1], log_pop[b, t - 1], log_evidence[b, t - 1],
                segment[b], matched[b], below[b], log_top[b], g_segment[b], g_below[b], g_top[b],
                g_push[b], g_replace[b, t - 1], g_bottom[b, t - 1], g_pop[b, t - 1], g_evidence[b, t - 1],
            )  # fmt: skip
        for a in range(below.shape[2]):
            g_below[b, 0, a] += g_top[b, 0, 0, a]


def new_tables(log_initial: Tensor, n_states: int, n_steps: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """segment, matched, below and log_top before the first step: one element, the bottom, on top of nothing."""
    B, K = log_initial.shape
    times = n_steps + 1
    full = partial(torch.full, fill_value=-torch.inf, dtype=torch.float64)
    segment, matched = full((B, times, K, times, K)), full((B, times, K, n_states, times))
    below, log_top = full((B, times, K)), full((B, times, times, K))
    segment[:, 0, :, 0].diagonal(dim1=-2, dim2=-1).zero_()
    below[:, 0] = log_initial
    log_top[:, 0, 0] = log_initial
    return segment, matched, below, log_top


def arrays(*tensors: Tensor) -> tuple[np.ndarray, ...]:
    return tuple(x.detach().contiguous().numpy() for x in tensors)


def shares(tables: tuple[Tensor, ...] | list[Tensor], pairs: float) -> list[tuple[int, int]]:
    """Sequences for each thread, given the pairs of times that are summed over in each."""
    B, _, K, Q = tables[1].shape[:4]
    return ranges(B, at_least=int(_MIN_WORK / (K * K * Q * pairs / 2 + 1)) + 1)


def inside(
    log_initial: Float[Tensor, "B K"],
    log_push: Float[Tensor, "B T K K"],
    log_replace: Float[Tensor, "B T K K"],
    log_bottom: Float[Tensor, "B T K K"],
    log_pop: Float[Tensor, "B T K Q"],
    log_evidence: Float[Tensor, "B T C K"] | None = None,
    best: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The tables `(segment, matched, below, log_top)` of all steps; see `op.inside`."""
    if log_evidence is None:
        log_evidence = log_push.new_zeros(*log_push.shape[:2], 0, log_push.shape[2])
    weights = [w.double() for w in (log_initial, log_push, log_replace, log_bottom, log_pop, log_evidence)]
    segment, matched, below, log_top = _pushdown(*weights, best)
    return segment.detach().permute(0, 3, 4, 2, 1), matched.detach(), below.detach(), log_top


@torch.library.custom_op("samplehold::pushdown", mutates_args=())
def _pushdown(
    log_initial: Tensor, log_push: Tensor, log_replace: Tensor, log_bottom: Tensor, log_pop: Tensor,
    log_evidence: Tensor, best: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    T = log_push.shape[1]
    tables = new_tables(log_initial, log_pop.shape[-1], T)
    weights = arrays(log_push, log_replace, log_bottom, log_pop, log_evidence)
    filled = arrays(*tables)
    in_parallel([partial(_forward, lo, hi, int(best), weights, filled) for lo, hi in shares(tables, T**3 / 3)])
    return tables


@_pushdown.register_fake
def _(log_initial, log_push, log_replace, log_bottom, log_pop, log_evidence, best):
    (B, T, K), Q = log_push.shape[:3], log_pop.shape[-1]
    new = log_push.new_empty
    return new(B, T + 1, K, T + 1, K), new(B, T + 1, K, Q, T + 1), new(B, T + 1, K), new(B, T + 1, T + 1, K)


@torch.library.custom_op("samplehold::pushdown_adjoint", mutates_args=())
def _pushdown_adjoint(grad_top: Tensor, weights: list[Tensor], tables: list[Tensor]) -> list[Tensor]:
    segment, _, below, _ = tables
    gradients = [torch.zeros(w.shape, dtype=w.dtype) for w in weights]
    scratch = torch.zeros_like(segment), torch.zeros_like(below), grad_top.clone(memory_format=torch.contiguous_format)
    args = arrays(*weights), arrays(*tables), *arrays(*scratch), arrays(*gradients)
    in_parallel([partial(_backward, lo, hi, *args) for lo, hi in shares(tables, weights[0].shape[1] ** 3 / 3)])
    return [scratch[1][:, 0].clone(), *gradients]


@_pushdown_adjoint.register_fake
def _(grad_top, weights, tables):
    return [torch.empty_like(tables[2][:, 0])] + [torch.empty_like(w) for w in weights]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    if inputs[-1]:
        raise ValueError("best: the tables of best runs have no gradient; detach the weights.")
    ctx.save_for_backward(*inputs[1:-1], *output)


def _adjoint(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    saved = list(ctx.saved_tensors)
    return *_pushdown_adjoint(gradients[-1], saved[:5], saved[5:]), None


_pushdown.register_autograd(_adjoint, setup_context=_setup)
