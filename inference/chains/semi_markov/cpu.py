"""Semi-Markov chains on the CPU: exact in logarithms, by the recursions of `plain`.

A run that begins at step u and goes on at step t has the weight of its beginning times the likelihoods from u to t. The
kernels add these up backward from t, so memory holds K numbers a step, and no run is copied from step to step. A thread
takes one sequence after another. No table is expanded to the batch axes of the others.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...numerics.compilation import exact_kernel, inlined
from ...numerics.lanes import width
from ...numerics.threads import in_parallel, ranges, sum_of_steps
from ..markov.cpu_log import NONE, invert, log_sum
from ..markov.cpu_scaled import entries
from . import op
from .plain import Place, survivors

MIDDLE, LAST, FIRST, ONLY = (int(place) for place in Place)
LASTS, FIRST_LASTS = 4, 5  # rows of survivors, after those of durations


class Tables(NamedTuple):
    """The tables in float64 as arrays. Entry b of `..._of` is the number of sequence b's table."""

    log_initial: Any  # [n, K]
    initial_of: Any
    log_transition: Any  # [n, K, K]
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
def _workspace(k: int, longest: int, n_steps: int, like: Any) -> Any:
    lanes = width(like)
    by_step = np.zeros((3, k, n_steps))
    by_state = np.zeros((3, k + lanes))
    by_run = np.zeros((2, longest + lanes))
    return Work(by_step[0], by_step[1], by_step[2], by_state[0], by_state[1], by_state[2], by_run[0], by_run[1])


@inlined
def _sum(vector: Any, n: int) -> float:
    """log sum exp of n numbers."""
    top, rest = log_sum(vector, 0, n)
    return top + rest


@inlined
def _runs(work: Any, j: int, likelihood: float, t: int, rows: Any, at: int, to: int, longest: int) -> int:
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
        work.enter[j, t] = _sum(work.row, k)


@inlined
def _one_more(log_a: float, log_b: float) -> float:
    """log(e^a + e^b)."""
    top = max(log_a, log_b)
    return top if top == NONE else top + np.log(np.exp(log_a - top) + np.exp(log_b - top))


@exact_kernel
def _sweep_forward(b: int, tables: Any, work: Any, state: Any, increment: Any) -> int:
    """Fill `enter`, `ends` and `scaled`; state [T, K] <- log P(s_t | x_1..t) and increment [T] <- log c_t, with the end
    at the last step. Returns the first step whose evidence is not a positive finite number, or -1."""
    rows, table = tables.durations[tables.durations_of[b]], tables.log_transition[tables.transition_of[b]]
    likelihood, length = tables.log_likelihood[tables.likelihood_of[b]], tables.lengths[b]
    k, longest = likelihood.shape[1], rows.shape[2]
    for t in range(length):
        last = t == length - 1
        if t > 0:
            _enter(work, t, table, k)
        for j in range(k):
            seen = likelihood[t, j]
            if t == 0:
                work.enter[j, 0] = tables.log_initial[tables.initial_of[b], j]
                work.since[j] = work.enter[j, 0]
            work.since[j] += seen
            n = _runs(work, j, seen, t, rows, LASTS, LAST if last else MIDDLE, longest)
            first = t < longest
            work.state[j] = _one_more(_sum(work.runs, n), work.since[j] + rows[FIRST_LASTS, j, t] if first else NONE)
            end = work.since[j] + rows[ONLY if last else FIRST, j, t] if first else NONE
            work.ends[j, t] = _one_more(_sum(work.done, n), end)
        scale = _sum(work.state, k)
        if not -np.inf < scale < np.inf:
            return t
        for j in range(k):
            work.since[j] -= scale
            work.scaled[j, t] = likelihood[t, j] - scale
            work.ends[j, t] -= scale
            state[t, j] = work.state[j] - scale
        increment[t] = scale
    for j in range(k):
        work.row[j] = work.ends[j, length - 1]
    end = _sum(work.row, k)
    if not -np.inf < end < np.inf:
        return length - 1
    increment[length - 1] += end
    for j in range(k):
        state[length - 1, j] = work.row[j] - end
    return -1


@exact_kernel
def filter_runs(sequences: Any, tables: Any, state: Any, increment: Any, failed: Any) -> None:
    """state [B, T, K] <- P(s_t | x_1..t), increment [B, T] <- log p(x_t | x_1..t-1) of a range of sequences."""
    n_steps, k = tables.log_likelihood.shape[1:]
    work = _workspace(k, tables.durations.shape[3], n_steps, state)
    for b in range(sequences[0], sequences[1]):
        failed[b] = _sweep_forward(b, tables, work, state[b], increment[b])
        for t in range(tables.lengths[b]):
            for j in range(k):
                state[b, t, j] = np.exp(state[b, t, j])


@inlined
def _counted(work: Any, n: int, norm: float, weight: float, counts: Any, j: int, entropy: float) -> float:
    """counts(j, :n) += weight times the shares of `runs` in their sum; returns the entropy with theirs added."""
    for r in range(n):
        log_share = work.runs[r] - norm
        if log_share > -745.0:  # below it, a share is 0
            share = np.exp(log_share)
            counts[j, r] += weight * share
            entropy -= weight * share * log_share
    return entropy


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
    longest = tables.durations.shape[3]
    work = _workspace(k, longest, n_steps, state)
    after, follows, tail, held = np.zeros((k, n_steps)), np.zeros(k + 8), np.zeros(k), np.zeros(k)
    for b in range(sequences[0], sequences[1]):
        failed[b] = _sweep_forward(b, tables, work, state[b], increment[b])
        if failed[b] >= 0:
            continue
        rows, table = tables.durations[tables.durations_of[b]], tables.log_transition[tables.transition_of[b]]
        length, surprise = tables.lengths[b], 0.0
        for j in range(k):
            work.row[j] = work.ends[j, length - 1]
        end = _sum(work.row, k)
        tail[:], held[:] = 0.0, 0.0
        for t in range(length - 1, -1, -1):
            going, ending = (FIRST, ONLY) if t == 0 else (MIDDLE, LAST)
            for j in range(k):
                total, n = 0.0, min(longest, length - 1 - t)
                for d in range(n):
                    total += work.scaled[j, t + d]
                    work.runs[d] = total + after[j, t + d + 1] + rows[going, j, d]
                tail[j] += work.scaled[j, t]
                left = length - 1 - t
                to_end = tail[j] + rows[ending, j, left] if left < longest else NONE
                follows[j] = _one_more(_sum(work.runs, n), to_end)
                begin = np.exp(work.enter[j, t] - end + follows[j])
                begins[b, t, j] = begin
                if begin > 0:
                    surprise = _counted(work, n, follows[j], begin, counts[b, going], j, surprise)
                    work.runs[0] = to_end
                    if left < longest:
                        surprise = _counted(work, 1, follows[j], begin, counts[b, ending, :, left:], j, surprise)
                    if t == 0:
                        surprise -= begin * np.log(begin)
            if t > 0:
                for i in range(k):
                    for j in range(k):
                        work.row[j] = table[i, j] + follows[j]
                    after[i, t] = _sum(work.row, k)
                    held[i] = np.exp(work.ends[i, t - 1] - end + after[i, t])
                    if held[i] > 0:
                        for j in range(k):
                            log_share = work.row[j] - after[i, t]
                            if log_share > -745.0:
                                share = np.exp(log_share)
                                moves[b, i, j] += held[i] * share
                                surprise -= held[i] * share * log_share
            for i in range(k):
                work.ends[i, t] = held[i] if t > 0 else 0.0  # from here on, P(a segment ended before step t)
        entropy[b] = surprise
        for j in range(k):
            total = 0.0
            for t in range(length):
                total += begins[b, t, j] - work.ends[j, t]
                state[b, t, j] = min(max(total, 0.0), 1.0) if state[b, t, j] > NONE else 0.0


@inlined
def _best(vector: Any, n: int) -> int:
    """The first place of the largest of n numbers; 0 if there is none."""
    place = 0
    for i in range(1, n):
        if vector[i] > vector[place]:
            place = i
    return place


@exact_kernel
def best_runs(sequences: Any, tables: Any, path: Any, failed: Any) -> None:
    """path [B, T] <- the most probable paths of a range of sequences, -1 after their end.

    `failed` is set to the first step that no path reaches.
    """
    n_steps, k = tables.log_likelihood.shape[1:]
    longest = tables.durations.shape[3]
    work = _workspace(k, longest, n_steps, tables.log_likelihood)
    origin, begin = np.zeros((k, n_steps), np.int64), np.zeros((k, n_steps), np.int64)
    for b in range(sequences[0], sequences[1]):
        rows, table = tables.durations[tables.durations_of[b]], tables.log_transition[tables.transition_of[b]]
        likelihood, length = tables.log_likelihood[tables.likelihood_of[b]], tables.lengths[b]
        for t in range(length):
            last, top, known = t == length - 1, NONE, True
            for j in range(k):
                known &= likelihood[t, j] == likelihood[t, j]
                work.scaled[j, t] = likelihood[t, j]
                if t == 0:
                    work.enter[j, 0] = tables.log_initial[tables.initial_of[b], j]
                    work.since[j] = work.enter[j, 0]
                else:
                    for i in range(k):
                        work.row[i] = work.ends[i, t - 1] + table[i, j]
                    origin[j, t] = _best(work.row, k)
                    work.enter[j, t] = work.row[origin[j, t]]
                work.since[j] += likelihood[t, j]
                n = _runs(work, j, likelihood[t, j], t, rows, LASTS, LAST if last else MIDDLE, longest)
                run = _best(work.done, n)
                weight = work.done[run] if n > 0 else NONE
                first = work.since[j] + rows[ONLY if last else FIRST, j, t] if t < longest else NONE
                begin[j, t] = 0 if first > weight or n == 0 else t - run
                work.ends[j, t] = max(first, weight)
                if n > 0:
                    top = max(top, work.runs[_best(work.runs, n)])
                if t < longest:
                    top = max(top, work.since[j] + rows[FIRST_LASTS, j, t])
            if failed[b] < 0 and not (known and -np.inf < top < np.inf):
                failed[b] = t
        for j in range(k):
            work.row[j] = work.ends[j, length - 1]
        state = _best(work.row, k)
        if failed[b] < 0 and not -np.inf < work.row[state] < np.inf:
            failed[b] = length - 1
        path[b, length:] = -1
        t = length - 1
        while t >= 0:
            since = begin[state, t]
            path[b, since : t + 1] = state
            state, t = origin[state, since], since - 1


@exact_kernel
def draw_runs(sequences: Any, tables: Any, uniform: Any, path: Any, failed: Any) -> None:
    """path [n, B, T] <- draws at `uniform` [n, B, T, 2], backward from each sequence's end."""
    n_steps, k = tables.log_likelihood.shape[1:]
    longest = tables.durations.shape[3]
    work = _workspace(k, longest, n_steps, tables.log_likelihood)
    log_state, increment = np.zeros((n_steps, k)), np.zeros(n_steps)
    mass = np.zeros(max(k, longest + 1))
    for b in range(sequences[0], sequences[1]):
        failed[b] = _sweep_forward(b, tables, work, log_state, increment)
        if failed[b] >= 0:
            continue
        rows, table = tables.durations[tables.durations_of[b]], tables.log_transition[tables.transition_of[b]]
        length = tables.lengths[b]
        for draw in range(len(path)):
            path[draw, b, length:] = -1
            t, following = length - 1, 0
            while t >= 0:
                last = t == length - 1
                for i in range(k):
                    work.row[i] = work.ends[i, t] + (0.0 if last else table[i, following])
                _cumulate(work.row, mass, k)
                state = invert(mass, uniform[draw, b, t, 0], k)
                n, total = min(t + 1, longest), 0.0
                for r in range(n):
                    total += work.scaled[state, t - r]
                    first = t - r == 0
                    row = (ONLY if last else FIRST) if first else (LAST if last else MIDDLE)
                    work.runs[r] = work.enter[state, t - r] + total + rows[row, state, r]
                _cumulate(work.runs, mass, n)
                since = t - invert(mass, uniform[draw, b, t, 1], n)
                path[draw, b, since : t + 1] = state
                following, t = state, since - 1


@inlined
def _cumulate(log_weight: Any, mass: Any, n: int) -> None:
    """mass <- running sums of n weights, up to a factor."""
    top, sofar = NONE, 0.0
    for i in range(n):
        top = max(top, log_weight[i])
    for i in range(n):
        sofar += np.exp(log_weight[i] - top)
        mass[i] = sofar


def _flatten(
    log_initial: Tensor, log_transition: Tensor, log_durations: Tensor, log_likelihood: Tensor, lengths: Tensor
) -> Tables:
    rows = log_durations.detach().double()
    rows = torch.cat([rows, survivors(rows[..., :: Place.FIRST, :, :])], -3)
    parts: list[Any] = []
    for table, n_own in ((log_initial, 1), (log_transition, 2), (rows, 3), (log_likelihood, 2)):
        parts += entries(table.double(), n_own, lengths.shape)
    return Tables._make([*parts, lengths.reshape(-1).contiguous().numpy()])


def _over_sequences(kernel: Callable[..., None], tables: Tables, *arrays: Tensor) -> None:
    n = len(tables.lengths)
    in_parallel([partial(kernel, part, tables, *(x.numpy() for x in arrays)) for part in ranges(n)])


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


@op.filter.kernel("cpu")
def filter(*tables: Tensor) -> tuple[Tensor, ...]:
    flat, lengths, dtype = _flatten(*tables), tables[-1], tables[3].dtype
    n, (n_steps, k) = lengths.numel(), tables[3].shape[-2:]
    state, increment, failed = _zeros(n, n_steps, k), _zeros(n, n_steps), torch.full((n,), -1)
    _over_sequences(filter_runs, flat, state, increment, failed)
    results = sum_of_steps(increment), state, increment
    return *(_shaped(x.to(dtype), lengths) for x in results), failed.view(lengths.shape)


@op.posterior.kernel("cpu")
def posterior(*tables: Tensor) -> tuple[Tensor, ...]:
    flat, lengths, dtype = _flatten(*tables), tables[-1], tables[3].dtype
    n, (n_steps, k), longest = lengths.numel(), tables[3].shape[-2:], tables[2].shape[-1]
    state, increment, begins = _zeros(n, n_steps, k), _zeros(n, n_steps), _zeros(n, n_steps, k)
    moves, counts, entropy, failed = _zeros(n, k, k), _zeros(n, 4, k, longest), _zeros(n), torch.full((n,), -1)
    _over_sequences(smooth_runs, flat, state, increment, begins, moves, counts, entropy, failed)
    results = sum_of_steps(increment), state, begins, moves, counts, entropy
    return *(_shaped(x.to(dtype), lengths) for x in results), failed.view(lengths.shape)


@op.viterbi.kernel("cpu")
def viterbi(*tables: Tensor) -> tuple[Tensor, ...]:
    flat, lengths = _flatten(*tables), tables[-1]
    path, failed = (
        torch.zeros(lengths.numel(), tables[3].shape[-2], dtype=torch.int64),
        torch.full((lengths.numel(),), -1),
    )
    _over_sequences(best_runs, flat, path, failed)
    return _shaped(path, lengths), failed.view(lengths.shape)


@op.sample.kernel("cpu")
def sample(*arguments: Tensor) -> tuple[Tensor, ...]:
    *tables, uniform = arguments
    flat, lengths = _flatten(*tables), tables[-1]
    n, n_steps = len(uniform), uniform.shape[-2]
    path, failed = torch.zeros(n, lengths.numel(), n_steps, dtype=torch.int64), torch.full((lengths.numel(),), -1)
    _over_sequences(draw_runs, flat, uniform.reshape(n, lengths.numel(), n_steps, 2).contiguous(), path, failed)
    return path.view(uniform.shape[:-1]), failed.view(lengths.shape)


def _shaped(x: Tensor, lengths: Tensor) -> Tensor:
    return x.reshape((*lengths.shape, *x.shape[1:]))
