r"""Filter and smooth a chain in logarithms: the kernels that are right for every table.

With the likelihoods of a step divided by the largest, `l_t`, all in logarithms,

$$a_t = l_t + m_t - \log c_t, \quad m_{t+1}(j) = \log \sum_i e^{a_t(i) + A_{ij}}, \qquad
b_t = l_t + v_t, \quad v_{t-1}(i) = \log \sum_j e^{A_{ij} + b_t(j)}$$

$$\log P(s_t = i \mid x) = a_t(i) + v_t(i) - n_t, \qquad
\log P(s_t = i, s_{t+1} = j \mid x) = a_t(i) + A_{ij} + b_{t+1}(j) - n_t$$

Nothing underflows before it is a probability, so a path that leads through a hardly possible state is not lost. Each
step costs K^2 exponentials a direction, where the kernels of `markov_linear` cost K: these take over where those
report lost digits, and where the transition has a table for every step, whose exponentials are due anyway.

All arrays are float64 and flat; transition tables are [table, step, old, new] with one step if they are constant.
"""

from typing import Any, NamedTuple

import numpy as np

from ...numerics.compilation import exact_kernel, inlined
from ...numerics.elementary import exp
from ...numerics.lanes import larger, largest, load_some, splat, spread, store, store_some, total, width

NEVER = -np.inf
LOWEST = -1e300  # stands for -inf where that would be subtracted from itself


class LogTables(NamedTuple):
    """What the kernels read; entry b of `..._of` says which table sequence b has."""

    log_initial: Any
    initial_of: Any
    log_transition: Any
    transition_of: Any
    log_likelihood: Any
    likelihood_of: Any
    lengths: Any
    n_steps: int
    n_tables: int  # transition tables of a sequence
    n_states: int


@inlined
def log_sum(vector: Any, at: int, k: int) -> Any:
    """log sum exp of k numbers, as the largest and what is added to it: apart, they keep more digits."""
    top = splat(NEVER)
    for j in range(0, k, width(vector)):
        top = larger(top, load_some(vector, at + j, k - j, NEVER))
    base = max(largest(top), LOWEST)
    mass = splat(0.0)
    for j in range(0, k, width(vector)):
        mass = mass + exp(load_some(vector, at + j, k - j, NEVER) - splat(base))
    return base, np.log(total(mass))


@inlined
def weigh(log_likelihood: Any, row: int, message: Any, weight: Any, at: int, k: int) -> Any:
    """weight[at:] <- l_t + message, normalised; returns the largest log-likelihood, and log c_t without it."""
    shift = log_likelihood[row]
    for j in range(1, k):
        shift = max(shift, log_likelihood[row + j])
    for j in range(k):
        weight[at + j] = (log_likelihood[row + j] - shift) + message[j]
    top, rest = log_sum(weight, at, k)
    for j in range(at, at + k):
        weight[j] = (weight[j] - top) - rest
    return shift, top + rest


@inlined
def push_forward(vector: Any, at: int, table: Any, where: int, message: Any, mass: Any, k: int) -> None:
    """message(j) <- log sum_i exp(vector(i) + table(i, j))."""
    for j in range(0, k, width(vector)):
        top, below = splat(LOWEST), splat(0.0)
        for i in range(k):
            top = larger(top, spread(vector, at + i) + load_some(table, where + i * k + j, k - j, NEVER))
        for i in range(k):
            below = below + exp(spread(vector, at + i) + load_some(table, where + i * k + j, k - j, NEVER) - top)
        store(message, j, top)
        store(mass, j, below)
    for j in range(k):
        message[j] += np.log(mass[j])


@inlined
def push_backward(vector: Any, table: Any, where: int, message: Any, mass: Any, k: int) -> None:
    """message(i) <- log sum_j exp(table(i, j) + vector(j))."""
    for i in range(k):
        for j in range(0, k, width(vector)):
            row = load_some(table, where + i * k + j, k - j, NEVER) + load_some(vector, j, k - j, NEVER)
            store(mass, j, row)
        top, rest = log_sum(mass, 0, k)
        message[i] = top + rest


@inlined
def add_pairs(belief: Any, message: Any, table: Any, where: int, vector: Any, pairs: Any, to: int, k: int) -> None:
    """pairs(i, j) += exp(belief(i) + table(i, j) + vector(j) - message(i)): P(s_t = i) P(s_t+1 = j | s_t = i)."""
    for i in range(k):
        left, norm = spread(belief, i), splat(max(message[i], LOWEST))
        for j in range(0, k, width(vector)):
            right = load_some(table, where + i * k + j, k - j, NEVER) + load_some(vector, j, k - j, NEVER)
            cell = to + i * k + j
            store_some(pairs, cell, load_some(pairs, cell, k - j, 0.0) + exp(left + (right - norm)), k - j)


@exact_kernel
def filter_logs(tables: Any, state: Any, increment: Any, failed: Any, first: int, last: int) -> None:
    """state <- log P(s_t | x_1..t), increment <- log p(x_t | x_1..t-1) of sequences first..last-1.

    `failed` is set to the first step whose increment is not a finite number; the rest of that sequence is left alone.
    """
    k, n_steps, n_tables = tables.n_states, tables.n_steps, tables.n_tables
    log_likelihood, log_transition = tables.log_likelihood, tables.log_transition
    message, mass = np.zeros(k + width(state)), np.zeros(k + width(state))
    for b in range(first, last):
        for j in range(k):
            message[j] = tables.log_initial[tables.initial_of[b] * k + j]
        for t in range(tables.lengths[b]):
            at, row = (b * n_steps + t) * k, (tables.likelihood_of[b] * n_steps + t) * k
            if t > 0:
                table = tables.transition_of[b] * n_tables + (t - 1 if n_tables > 1 else 0)
                push_forward(state, at - k, log_transition, table * k * k, message, mass, k)
            shift, scale = weigh(log_likelihood, row, message, state, at, k)
            increment[b * n_steps + t] = shift + scale
            if not -np.inf < shift + scale < np.inf:
                failed[b] = t
                break
        state[(b * n_steps + tables.lengths[b]) * k : (b + 1) * n_steps * k] = NEVER


@exact_kernel
def smooth_logs(tables: Any, state: Any, pairs: Any, first: int, last: int) -> None:
    """state: log P(s_t | x_1..t) -> P(s_t | x); pairs [B, n_tables, K, K] += P(s_t, s_t+1 | x)."""
    k, n_steps, n_tables = tables.n_states, tables.n_steps, tables.n_tables
    log_likelihood, log_transition = tables.log_likelihood, tables.log_transition
    room = k + width(state)
    message, mass, vector, belief = np.zeros(room), np.zeros(room), np.zeros(room), np.zeros(room)
    for b in range(first, last):
        message[:] = 0
        for t in range(tables.lengths[b] - 1, -1, -1):
            at, row = (b * n_steps + t) * k, (tables.likelihood_of[b] * n_steps + t) * k
            step = t if n_tables > 1 else 0
            where = (tables.transition_of[b] * n_tables + step) * k * k
            if t + 1 < tables.lengths[b]:
                push_backward(vector, log_transition, where, message, mass, k)
            for j in range(k):
                belief[j] = state[at + j] + message[j]
            top, rest = log_sum(belief, 0, k)
            for j in range(k):
                belief[j] = (belief[j] - top) - rest
            if t + 1 < tables.lengths[b]:
                to = (b * n_tables + step) * k * k
                add_pairs(belief, message, log_transition, where, vector, pairs, to, k)
            weigh(log_likelihood, row, message, vector, 0, k)
            for j in range(0, k, width(state)):
                store_some(state, at + j, exp(load_some(belief, j, k - j, NEVER)), k - j)
        state[(b * n_steps + tables.lengths[b]) * k : (b + 1) * n_steps * k] = 0
