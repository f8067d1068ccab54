r"""Filter and smooth a chain in logarithms: the kernels are exact for every table.

With the likelihoods of a step divided by the largest, `l_t`, all in logarithms,

$$a_t = l_t + m_t - \log c_t, \quad m_{t+1}(j) = \log \sum_i e^{a_t(i) + A_{ij}}, \qquad
b_t = l_t + v_t, \quad v_{t-1}(i) = \log \sum_j e^{A_{ij} + b_t(j)}$$

$$\log P(s_t = i \mid x) = a_t(i) + v_t(i) - n_t, \qquad
\log P(s_t = i, s_{t+1} = j \mid x) = a_t(i) + A_{ij} + b_{t+1}(j) - n_t$$

Nothing underflows before it is a probability, so a path through an improbable state is not lost. Each step
costs K^2 exponentials per direction, while the kernels of `cpu_sweeps` cost K. The kernels here compute sequences for
which those report lost digits, and chains with a table for every step, which need these exponentials anyway.

The most probable path and paths drawn from the posterior are computed in a similar way:

$$\delta_t(j) = l_t(j) + \max_i (\delta_{t-1}(i) + A_{ij}), \qquad
P(s_t = i \mid s_{t+1} = j, x) \propto P(s_t = i \mid x_{1:t})\, A_{ij}$$

A backward choice needs one column of a transition table, so the forward pass stores only one vector per step.

Kernels read the `Tables` of `cpu_scaled` in float64. Within them, all arrays are flat.
"""

from typing import Any, NamedTuple

import numpy as np

from ...numerics.compilation import exact_kernel, inlined
from ...numerics.elementary import exp
from ...numerics.lanes import larger, largest, load_some, splat, spread, store, store_some, total, width
from ...numerics.small_matrices import copy_row

NONE = -np.inf
LOWEST = -1e300  # replaces -inf, which cannot be subtracted from itself


class Workspace(NamedTuple):
    """The working memory of a thread: vectors of K numbers, padded by the width of one register."""

    message: Any  # log-weights of the steps before or after a step
    mass: Any
    vector: Any  # b_t
    belief: Any  # log P(s_t | x)


@exact_kernel
def workspace(k: int, like: Any) -> Any:
    room = k + width(like)
    return Workspace(np.zeros(room), np.zeros(room), np.zeros(room), np.zeros(room))


@inlined
def log_sum(vector: Any, at: int, k: int) -> Any:
    """log sum exp of k numbers, as the largest and the rest: two numbers keep more digits."""
    top = splat(NONE)
    for j in range(0, k, width(vector)):
        top = larger(top, load_some(vector, at + j, k - j, NONE))
    base = max(largest(top), LOWEST)
    mass = splat(0.0)
    for j in range(0, k, width(vector)):
        mass = mass + exp(load_some(vector, at + j, k - j, NONE) - splat(base))
    return base, np.log(total(mass))


@inlined
def update(log_likelihood: Any, row: int, message: Any, vector: Any, at: int, k: int) -> Any:
    """vector[at:] <- l_t + message, normalised; returns the largest log-likelihood, and log c_t without it."""
    shift = log_likelihood[row]
    for j in range(1, k):
        shift = max(shift, log_likelihood[row + j])
    for j in range(k):
        vector[at + j] = (log_likelihood[row + j] - shift) + message[j]
    top, rest = log_sum(vector, at, k)
    for j in range(at, at + k):
        vector[j] = (vector[j] - top) - rest
    return shift, top + rest


@inlined
def push_forward(vector: Any, at: int, table: Any, where: int, work: Any, k: int) -> None:
    """message(j) <- log sum_i exp(vector(i) + table(i, j))."""
    message, mass = work.message, work.mass
    for j in range(0, k, width(vector)):
        top, below = splat(LOWEST), splat(0.0)
        for i in range(k):
            top = larger(top, spread(vector, at + i) + load_some(table, where + i * k + j, k - j, NONE))
        for i in range(k):
            below = below + exp(spread(vector, at + i) + load_some(table, where + i * k + j, k - j, NONE) - top)
        store(message, j, top)
        store(mass, j, below)
    for j in range(k):
        message[j] += np.log(mass[j])


@inlined
def push_backward(table: Any, where: int, work: Any, k: int) -> None:
    """message(i) <- log sum_j exp(table(i, j) + vector(j))."""
    for i in range(k):
        for j in range(0, k, width(table)):
            row = load_some(table, where + i * k + j, k - j, NONE) + load_some(work.vector, j, k - j, NONE)
            store(work.mass, j, row)
        top, rest = log_sum(work.mass, 0, k)
        work.message[i] = top + rest


@inlined
def add_pairs(table: Any, where: int, work: Any, pairs: Any, to: int, k: int) -> None:
    """pairs(i, j) += exp(belief(i) + table(i, j) + vector(j) - message(i)): P(s_t = i) P(s_t+1 = j | s_t = i)."""
    for i in range(k):
        log_belief, norm = spread(work.belief, i), splat(max(work.message[i], LOWEST))
        for j in range(0, k, width(table)):
            onward = load_some(table, where + i * k + j, k - j, NONE) + load_some(work.vector, j, k - j, NONE)
            cell = to + i * k + j
            store_some(pairs, cell, load_some(pairs, cell, k - j, 0.0) + exp(log_belief + (onward - norm)), k - j)


@exact_kernel
def filter_logs(sequences: Any, tables: Any, state: Any, increment: Any, failed: Any) -> None:
    """state <- log P(s_t | x_1..t), increment <- log p(x_t | x_1..t-1) of a range of sequences.

    `failed` is set to the first step whose increment is not a finite number; later steps of that sequence are not
    written.
    """
    n_tables, (n_steps, k) = tables.log_transition.shape[1], tables.log_likelihood.shape[1:]
    log_likelihood, log_transition = tables.log_likelihood.reshape(-1), tables.log_transition.reshape(-1)
    work = workspace(k, state)
    for b in range(sequences[0], sequences[1]):
        copy_row(tables.log_initial[tables.initial_of[b]], work.message)
        for t in range(tables.lengths[b]):
            at, row = (b * n_steps + t) * k, (tables.likelihood_of[b] * n_steps + t) * k
            if t > 0:
                table = tables.transition_of[b] * n_tables + (t - 1 if n_tables > 1 else 0)
                push_forward(state, at - k, log_transition, table * k * k, work, k)
            shift, scale = update(log_likelihood, row, work.message, state, at, k)
            increment[b * n_steps + t] = shift + scale
            if not -np.inf < shift + scale < np.inf:
                failed[b] = t
                break
        state[(b * n_steps + tables.lengths[b]) * k : (b + 1) * n_steps * k] = NONE


@exact_kernel
def smooth_logs(sequences: Any, tables: Any, state: Any, pairs: Any) -> None:
    """state: log P(s_t | x_1..t) -> P(s_t | x); pairs [B, n_tables, K, K] += P(s_t, s_t+1 | x)."""
    n_tables, (n_steps, k) = tables.log_transition.shape[1], tables.log_likelihood.shape[1:]
    log_likelihood, log_transition = tables.log_likelihood.reshape(-1), tables.log_transition.reshape(-1)
    work = workspace(k, state)
    message, belief = work.message, work.belief
    for b in range(sequences[0], sequences[1]):
        message[:] = 0
        for t in range(tables.lengths[b] - 1, -1, -1):
            at, row = (b * n_steps + t) * k, (tables.likelihood_of[b] * n_steps + t) * k
            step = t if n_tables > 1 else 0
            where = (tables.transition_of[b] * n_tables + step) * k * k
            if t + 1 < tables.lengths[b]:
                push_backward(log_transition, where, work, k)
            for j in range(k):
                belief[j] = state[at + j] + message[j]
            top, rest = log_sum(belief, 0, k)
            for j in range(k):
                belief[j] = (belief[j] - top) - rest
            if t + 1 < tables.lengths[b]:
                add_pairs(log_transition, where, work, pairs, (b * n_tables + step) * k * k, k)
            update(log_likelihood, row, message, work.vector, 0, k)
            for j in range(0, k, width(state)):
                store_some(state, at + j, exp(load_some(belief, j, k - j, NONE)), k - j)
        state[(b * n_steps + tables.lengths[b]) * k : (b + 1) * n_steps * k] = 0


@inlined
def push_best(best: Any, at: int, table: Any, where: int, message: Any, k: int) -> None:
    """message(j) <- max_i best(i) + table(i, j)."""
    for j in range(0, k, width(best)):
        top = splat(NONE)
        for i in range(k):
            top = larger(top, spread(best, at + i) + load_some(table, where + i * k + j, k - j, NONE))
        store(message, j, top)


@inlined
def update_best(log_likelihood: Any, row: int, message: Any, best: Any, at: int, k: int) -> bool:
    """best <- log-likelihoods + message, minus the largest; False if the largest is not a finite number."""
    shift, top, known = log_likelihood[row], NONE, True
    for j in range(1, k):
        shift = max(shift, log_likelihood[row + j])
    for j in range(k):
        score = (log_likelihood[row + j] - shift) + message[j]
        best[at + j] = score
        top = max(top, score)
        known &= score == score
    for j in range(at, at + k):
        best[j] -= top
    return known and -np.inf < top < np.inf


@inlined
def best_into(best: Any, at: int, table: Any, column: int, k: int) -> int:
    """The first i with the largest best(i) + table(i, column), or the largest best(i) if column is -1."""
    choice, top = 0, NONE
    for i in range(k):
        score = best[at + i] + (table[column + i * k] if column >= 0 else 0.0)
        if score > top:
            choice, top = i, score
    return choice


@exact_kernel
def best_paths(sequences: Any, tables: Any, path: Any, failed: Any) -> None:
    """path [B, T] <- the most probable paths of a range of sequences, -1 after their end.

    `failed` is set to the first step that no path reaches.
    """
    n_tables, (n_steps, k) = tables.log_transition.shape[1], tables.log_likelihood.shape[1:]
    log_likelihood, log_transition = tables.log_likelihood.reshape(-1), tables.log_transition.reshape(-1)
    message, best = np.zeros(k + width(log_likelihood)), np.zeros(n_steps * k)
    for b in range(sequences[0], sequences[1]):
        length, first_table = tables.lengths[b], tables.transition_of[b] * n_tables
        copy_row(tables.log_initial[tables.initial_of[b]], message)
        for t in range(length):
            if t > 0:
                table = first_table + (t - 1 if n_tables > 1 else 0)
                push_best(best, (t - 1) * k, log_transition, table * k * k, message, k)
            if not update_best(log_likelihood, (tables.likelihood_of[b] * n_steps + t) * k, message, best, t * k, k):
                failed[b] = t
                break
        path[b * n_steps + length : (b + 1) * n_steps] = -1
        column = -1
        for t in range(length - 1, -1, -1):
            choice = best_into(best, t * k, log_transition, column, k)
            path[b * n_steps + t] = choice
            column = (first_table + (t - 1 if n_tables > 1 else 0)) * k * k + choice


@inlined
def cumulate(state: Any, at: int, table: Any, column: int, mass: Any, k: int) -> None:
    """mass <- running sums of exp(state(i) + table(i, column)), up to a factor; no table if column is -1."""
    top, sofar = NONE, 0.0
    for i in range(k):
        mass[i] = state[at + i] + (table[column + i * k] if column >= 0 else 0.0)
        top = max(top, mass[i])
    for i in range(k):
        sofar += np.exp(mass[i] - top)
        mass[i] = sofar


@inlined
def invert(mass: Any, uniform: Any, k: int) -> int:
    """The first state at which the cumulative mass exceeds the share `uniform`; never a state without mass."""
    for i in range(k):
        if mass[i] > uniform * mass[k - 1] or mass[i] == mass[k - 1]:
            return i
    return k - 1


@exact_kernel
def draw_paths(sequences: Any, tables: Any, state: Any, uniform: Any, path: Any) -> None:
    """path [n, B, T] <- draws at `uniform` [n, B, T] from the filtered log-beliefs `state` [B, T, K].

    A column of running sums is computed when a draw first needs it.
    """
    n_tables, (n_steps, k) = tables.log_transition.shape[1], tables.log_likelihood.shape[1:]
    log_transition, n_batch = tables.log_transition.reshape(-1), tables.lengths.size
    mass, made = np.zeros((k, k)), np.zeros(k, np.int64)
    for b in range(sequences[0], sequences[1]):
        length, first_table = tables.lengths[b], tables.transition_of[b] * n_tables
        for draw in range(path.size // max(1, n_batch * n_steps)):
            begin = (draw * n_batch + b) * n_steps
            path[begin + length : begin + n_steps] = -1
        made[:] = n_steps
        for t in range(length - 1, -1, -1):
            table = (first_table + (t if n_tables > 1 else 0)) * k * k
            for draw in range(path.size // (n_batch * n_steps)):
                at = (draw * n_batch + b) * n_steps + t
                following = path[at + 1] if t + 1 < length else 0
                if made[following] != t:
                    column = table + following if t + 1 < length else -1
                    cumulate(state, (b * n_steps + t) * k, log_transition, column, mass[following], k)
                    made[following] = t
                path[at] = invert(mass[following], uniform[at], k)
