r"""The most probable path of a chain, and paths drawn from its posterior: kernels in logarithms.

$$\delta_t(j) = l_t(j) + \max_i (\delta_{t-1}(i) + A_{ij}), \qquad
P(s_t = i \mid s_{t+1} = j, x) \propto P(s_t = i \mid x_{1:t})\, A_{ij}$$

Going back, a choice needs one column of a transition table, so only one vector a step is stored on the way there.
Arrays are as in `markov_log`.
"""

from typing import Any

import numpy as np

from ...numerics.compilation import exact_kernel, inlined
from ...numerics.lanes import larger, load_some, splat, spread, store, width
from .cpu_log import NEVER


@inlined
def push_best(best: Any, at: int, table: Any, where: int, message: Any, k: int) -> None:
    """message(j) <- max_i best(i) + table(i, j)."""
    for j in range(0, k, width(best)):
        top = splat(NEVER)
        for i in range(k):
            top = larger(top, spread(best, at + i) + load_some(table, where + i * k + j, k - j, NEVER))
        store(message, j, top)


@inlined
def weigh_best(log_likelihood: Any, row: int, message: Any, best: Any, at: int, k: int) -> bool:
    """best <- log-likelihoods + message, less the largest; False if there is no largest finite number."""
    shift, top, known = log_likelihood[row], NEVER, True
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
    choice, top = 0, NEVER
    for i in range(k):
        score = best[at + i] + (table[column + i * k] if column >= 0 else 0.0)
        if score > top:
            choice, top = i, score
    return choice


@exact_kernel
def best_paths(tables: Any, path: Any, failed: Any, first: int, last: int) -> None:
    """path [B, T] <- the most probable path of sequences first..last-1, -1 beyond their length.

    `failed` is set to the first step that no path reaches.
    """
    k, n_steps, n_tables = tables.n_states, tables.n_steps, tables.n_tables
    log_likelihood, log_transition = tables.log_likelihood, tables.log_transition
    message, best = np.zeros(k + width(log_likelihood)), np.zeros(n_steps * k)
    for b in range(first, last):
        length, own = tables.lengths[b], tables.transition_of[b] * n_tables
        for j in range(k):
            message[j] = tables.log_initial[tables.initial_of[b] * k + j]
        for t in range(length):
            if t > 0:
                table = own + (t - 1 if n_tables > 1 else 0)
                push_best(best, (t - 1) * k, log_transition, table * k * k, message, k)
            if not weigh_best(log_likelihood, (tables.likelihood_of[b] * n_steps + t) * k, message, best, t * k, k):
                failed[b] = t
                break
        path[b * n_steps + length : (b + 1) * n_steps] = -1
        column = -1
        for t in range(length - 1, -1, -1):
            choice = best_into(best, t * k, log_transition, column, k)
            path[b * n_steps + t] = choice
            column = (own + (t - 1 if n_tables > 1 else 0)) * k * k + choice


@inlined
def cumulate(state: Any, at: int, table: Any, column: int, mass: Any, to: int, k: int) -> None:
    """mass[to:] <- running sums of exp(state(i) + table(i, column)), up to a factor; no table if column is -1."""
    top, sofar = NEVER, 0.0
    for i in range(k):
        mass[to + i] = state[at + i] + (table[column + i * k] if column >= 0 else 0.0)
        top = max(top, mass[to + i])
    for i in range(to, to + k):
        sofar += np.exp(mass[i] - top)
        mass[i] = sofar


@inlined
def invert(mass: Any, at: int, uniform: Any, k: int) -> int:
    """The first state up to which more than a share `uniform` of the mass lies; never one without mass."""
    whole = mass[at + k - 1]
    for i in range(k):
        if mass[at + i] > uniform * whole or mass[at + i] == whole:
            return i
    return k - 1


@exact_kernel
def draw_paths(tables: Any, state: Any, uniform: Any, path: Any, first: int, last: int) -> None:
    """path [n, B, T] <- draws at `uniform` [n, B, T] from the filtered log-beliefs `state` [B, T, K].

    A column of running sums is made when the first draw asks for it.
    """
    k, n_steps, n_tables = tables.n_states, tables.n_steps, tables.n_tables
    log_transition, n_batch = tables.log_transition, tables.lengths.size
    mass, made = np.zeros(k * k), np.zeros(k, np.int64)
    for b in range(first, last):
        length, own = tables.lengths[b], tables.transition_of[b] * n_tables
        for draw in range(path.size // max(1, n_batch * n_steps)):
            begin = (draw * n_batch + b) * n_steps
            path[begin + length : begin + n_steps] = -1
        made[:] = n_steps
        for t in range(length - 1, -1, -1):
            table = (own + (t if n_tables > 1 else 0)) * k * k
            for draw in range(path.size // (n_batch * n_steps)):
                at = (draw * n_batch + b) * n_steps + t
                following = path[at + 1] if t + 1 < length else 0
                if made[following] != t:
                    column = table + following if t + 1 < length else -1
                    cumulate(state, (b * n_steps + t) * k, log_transition, column, mass, following * k, k)
                    made[following] = t
                path[at] = invert(mass, following * k, uniform[at], k)
