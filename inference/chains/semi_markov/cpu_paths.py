"""The most probable path of a semi-Markov chain, and paths drawn from the posterior: backward, a segment at a time."""

from typing import Any

import numpy as np

from ...numerics.compilation import exact_kernel, inlined
from ..markov.cpu_log import NONE, invert
from .cpu_runs import FIRST, FIRST_LASTS, LAST, LASTS, MIDDLE, ONLY, sweep_forward, weigh_runs, workspace


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
    work = workspace(k, longest, n_steps, tables.log_likelihood)
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
                        work.row[i] = work.ends[i, t - 1] + table[min(t, len(table)) - 1, i, j]
                    origin[j, t] = _best(work.row, k)
                    work.enter[j, t] = work.row[origin[j, t]]
                work.since[j] += likelihood[t, j]
                n = weigh_runs(work, j, likelihood[t, j], t, rows, LASTS, LAST if last else MIDDLE, longest)
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
    work = workspace(k, longest, n_steps, tables.log_likelihood)
    log_state, increment = np.zeros((n_steps, k)), np.zeros(n_steps)
    mass = np.zeros(max(k, longest + 1))
    for b in range(sequences[0], sequences[1]):
        failed[b] = sweep_forward(b, tables, work, log_state, increment)
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
                    work.row[i] = work.ends[i, t] + (0.0 if last else table[min(t + 1, len(table)) - 1, i, following])
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
