"""The sweeps of semi-Markov chains, exact in logarithms: filter and smooth by the recursions of `plain`.

A run that begins at step u and goes on at step t has the weight of its beginning times the likelihoods from u to t. The
kernels add these up backward from t, so memory holds K numbers a step, and no run is copied from step to step.
"""

from typing import Any, NamedTuple

import numpy as np

from ...numerics.compilation import exact_kernel, inlined
from ...numerics.lanes import width
from ..markov.cpu_log import NONE, log_sum
from .plain import Place

MIDDLE, LAST, FIRST, ONLY = (int(place) for place in Place)
LEAST = -745.0  # logarithm of a share below which it is 0
LASTS, FIRST_LASTS = 4, 5  # rows of survivors, after those of durations


class Tables(NamedTuple):
    """The tables in float64 as arrays. Entry b of `..._of` is the number of sequence b's table."""

    log_initial: Any  # [n, K]
    initial_of: Any
    log_transition: Any  # [n, S, K, K]
    transition_of: Any
    durations: Any  # [n, 6, K, D]: by `Place`, and two rows of survivors
    durations_of: Any
    log_likelihood: Any  # [n, T, K]
    likelihood_of: Any
    lengths: Any  # [B]


class Work(NamedTuple):
    """The working memory of a thread."""

    enter: Any  # [K, T], log-weight of all before a segment that begins at a step
    scaled: Any  # [K, T], log-likelihoods divided by the evidence of their step
    ends: Any  # [K, T], of all up to a segment that ends at a step
    since: Any  # [K], of a first segment that goes on
    state: Any  # [K + width]
    row: Any  # [K + width]
    runs: Any  # [D + width], of runs that go on
    done: Any  # [D + width], of runs that end


@exact_kernel
def workspace(k: int, longest: int, n_steps: int, like: Any) -> Any:
    lanes = width(like)
    by_step = np.zeros((3, k, n_steps))
    by_state = np.zeros((3, k + lanes))
    by_run = np.zeros((2, longest + lanes))
    return Work(by_step[0], by_step[1], by_step[2], by_state[0], by_state[1], by_state[2], by_run[0], by_run[1])


@inlined
def sum_up(vector: Any, n: int) -> float:
    """log sum exp of n numbers."""
    top, rest = log_sum(vector, 0, n)
    return top + rest


@inlined
def weigh_runs(work: Any, j: int, likelihood: float, t: int, rows: Any, at: int, to: int, longest: int) -> int:
    """runs and done <- weights of the runs of state j up to step t, the shortest first, with the rows `at` and `to` of
    durations; runs of the first segment are not among them. Returns their number."""
    total, n = likelihood, min(t, longest)
    for r in range(n):
        if r > 0:
            total += work.scaled[j, t - r]
        weight = work.enter[j, t - r] + total
        work.runs[r] = weight + rows[at, j, r]
        work.done[r] = weight + rows[to, j, r]
    return n


@inlined
def _enter(work: Any, t: int, table: Any, k: int) -> None:
    """enter(., t) <- weights of segments that begin at step t."""
    for j in range(k):
        for i in range(k):
            work.row[i] = work.ends[i, t - 1] + table[i, j]
        work.enter[j, t] = sum_up(work.row, k)


@inlined
def _one_more(log_a: float, log_b: float) -> float:
    """log(e^a + e^b)."""
    top = max(log_a, log_b)
    return top if top == NONE else top + np.log(np.exp(log_a - top) + np.exp(log_b - top))


@exact_kernel
def sweep_forward(b: int, tables: Any, work: Any, predicted: Any, increment: Any) -> int:
    """Fill `enter`, `ends` and `scaled`; predicted [T, K] <- log P(s_t | x_1..t-1) and increment [T] <- log c_t, with
    the end at the last step. Returns the first step whose evidence is not a positive finite number, or -1."""
    rows, table = tables.durations[tables.durations_of[b]], tables.log_transition[tables.transition_of[b]]
    likelihood, length = tables.log_likelihood[tables.likelihood_of[b]], tables.lengths[b]
    k, longest = likelihood.shape[1], rows.shape[2]
    for t in range(length):
        last = t == length - 1
        if t > 0:
            _enter(work, t, table[min(t, len(table)) - 1], k)
        for j in range(k):
            if t == 0:
                work.enter[j, 0] = tables.log_initial[tables.initial_of[b], j]
                work.since[j] = work.enter[j, 0]
            n = weigh_runs(work, j, 0.0, t, rows, LASTS, LAST if last else MIDDLE, longest)
            first = t < longest
            going = work.since[j] + rows[FIRST_LASTS, j, t] if first else NONE
            end = work.since[j] + rows[ONLY if last else FIRST, j, t] if first else NONE
            predicted[t, j] = _one_more(sum_up(work.runs, n), going)
            work.state[j] = predicted[t, j] + likelihood[t, j]
            work.ends[j, t] = _one_more(sum_up(work.done, n), end) + likelihood[t, j]
        scale = sum_up(work.state, k)
        if not -np.inf < scale < np.inf:
            return t
        for j in range(k):
            work.scaled[j, t] = likelihood[t, j] - scale
            work.since[j] += work.scaled[j, t]
            work.ends[j, t] -= scale
        increment[t] = scale
    for j in range(k):
        work.row[j] = work.ends[j, length - 1]
    end = sum_up(work.row, k)
    if not -np.inf < end < np.inf:
        return length - 1
    increment[length - 1] += end
    return -1


@exact_kernel
def filter_runs(sequences: Any, tables: Any, state: Any, predicted: Any, increment: Any, failed: Any) -> None:
    """state [B, T, K] <- P(s_t | x_1..t), predicted [B, T, K] <- P(s_t | x_1..t-1) and increment [B, T] <-
    log p(x_t | x_1..t-1) of a range of sequences."""
    n_steps, k = tables.log_likelihood.shape[1:]
    work = workspace(k, tables.durations.shape[3], n_steps, state)
    for b in range(sequences[0], sequences[1]):
        failed[b], last = sweep_forward(b, tables, work, predicted[b], increment[b]), tables.lengths[b] - 1
        end = sum_up(work.row, k)  # `row` has the parts of the last step
        for t in range(last + 1):
            for j in range(k):
                here = work.row[j] - end if t == last else predicted[b, t, j] + work.scaled[j, t]
                state[b, t, j], predicted[b, t, j] = np.exp(here), np.exp(predicted[b, t, j])


class Ahead(NamedTuple):
    """The working memory of the backward sweep."""

    after: Any  # [K, T], log-weight of all that follows a segment that ends before a step
    ended: Any  # [K, T], P(a segment ended before a step | x)
    follows: Any  # [K + width], log-weight of all that follows the beginning of a segment at a step
    tail: Any  # [K], of the steps from a step to the end


@exact_kernel
def _ahead(k: int, n_steps: int, like: Any) -> Any:
    by_step = np.zeros((2, k, n_steps))
    return Ahead(by_step[0], by_step[1], np.zeros(k + width(like)), np.zeros(k))


@inlined
def _counted(log_weight: Any, n: int, norm: float, weight: float, counts: Any, j: int, entropy: float) -> float:
    """counts(j, :n) += weight times the shares of n numbers in their sum; returns the entropy with theirs added."""
    for r in range(n):
        log_share = log_weight[r] - norm
        if log_share > LEAST:
            share = np.exp(log_share)
            counts[j, r] += weight * share
            entropy -= weight * share * log_share
    return entropy


@exact_kernel
def _begin(
    j: int, t: int, length: int, end: float, work: Any, ahead: Any, rows: Any, begins: Any, counts: Any, entropy: float
) -> float:
    """What segments of state j that begin at step t add to `counts` [4, K, D]; begins(t, j) <- their probability."""
    longest, left = rows.shape[2], length - 1 - t
    going, ending = (FIRST, ONLY) if t == 0 else (MIDDLE, LAST)
    total, n = 0.0, min(longest, left)
    for d in range(n):
        total += work.scaled[j, t + d]
        work.runs[d] = total + ahead.after[j, t + d + 1] + rows[going, j, d]
    ahead.tail[j] += work.scaled[j, t]
    work.done[0] = ahead.tail[j] + rows[ending, j, left] if left < longest else NONE
    ahead.follows[j] = _one_more(sum_up(work.runs, n), work.done[0])
    begin = np.exp(work.enter[j, t] - end + ahead.follows[j])
    begins[t, j] = begin
    if begin > 0:
        entropy = _counted(work.runs, n, ahead.follows[j], begin, counts[going], j, entropy)
        if left < longest:
            entropy = _counted(work.done, 1, ahead.follows[j], begin, counts[ending, :, left:], j, entropy)
        if t == 0:
            entropy -= begin * np.log(begin)
    return entropy


@inlined
def _move(t: int, end: float, work: Any, ahead: Any, table: Any, moves: Any, entropy: float) -> float:
    """What moves between segments before step t add to `moves` [K, K]."""
    k = len(table)
    for i in range(k):
        for j in range(k):
            work.row[j] = table[i, j] + ahead.follows[j]
        ahead.after[i, t] = sum_up(work.row, k)
        ended = np.exp(work.ends[i, t - 1] - end + ahead.after[i, t])
        ahead.ended[i, t] = ended
        if ended > 0:
            entropy = _counted(work.row, k, ahead.after[i, t], ended, moves, i, entropy)
    return entropy


@inlined
def _cover(length: int, begins: Any, ahead: Any, scaled: Any, state: Any) -> None:
    """state [T, K]: log P(s_t | x_1..t-1) -> P(s_t | x), which rises by beginnings and falls by ends."""
    for j in range(state.shape[1]):
        total = 0.0
        for t in range(length):
            total += begins[t, j] - (ahead.ended[j, t] if t > 0 else 0.0)
            state[t, j] = min(max(total, 0.0), 1.0) if state[t, j] + scaled[j, t] > NONE else 0.0


@exact_kernel
def smooth_runs(
    sequences: Any,
    tables: Any,
    state: Any,
    increment: Any,
    begins: Any,
    moves: Any,
    counts: Any,
    entropy: Any,
    failed: Any,
) -> None:
    """What `plain.posterior` has, of a range of sequences; all arrays begin with zeros."""
    n_steps, k = tables.log_likelihood.shape[1:]
    work, ahead = workspace(k, tables.durations.shape[3], n_steps, state), _ahead(k, n_steps, state)
    for b in range(sequences[0], sequences[1]):
        failed[b] = sweep_forward(b, tables, work, state[b], increment[b])
        if failed[b] >= 0:
            continue
        rows, table = tables.durations[tables.durations_of[b]], tables.log_transition[tables.transition_of[b]]
        length, surprise = tables.lengths[b], 0.0
        for j in range(k):
            work.row[j] = work.ends[j, length - 1]
        end = sum_up(work.row, k)
        ahead.tail[:] = 0.0
        for t in range(length - 1, -1, -1):
            for j in range(k):
                surprise = _begin(j, t, length, end, work, ahead, rows, begins[b], counts[b], surprise)
            if t > 0:
                at = min(t, len(table)) - 1
                surprise = _move(t, end, work, ahead, table[at], moves[b, at], surprise)
        entropy[b] = surprise
        _cover(length, begins[b], ahead, work.scaled, state[b])
