r"""Smooth several chains whose rows depend on inputs, side by side: each lane of a vector holds one sequence.

The recursions are those of `cpu_rows`. The table of a step is made when a sweep reaches it, and the moves are counted
then. If all tables of a group of sequences fit into the cache, the backward sweep finds them there. A sequence that has
ended has likelihoods of 1, so that its lane does not change, and its moves are not counted.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from ...numerics.compilation import exact_kernel, inlined
from ...numerics.elementary import exp
from ...numerics.lanes import at_least, larger, load, muladd, splat, store, width
from ..cpu_sweeps import LEAST, TINY

DROPPED, LOWEST = TINY[torch.float64], LEAST[torch.float64]
CACHED = 1 << 17  # numbers in the tables of a group that stay in the cache


class Room(NamedTuple):
    """The working memory of a thread, with a number of each lane for each entry."""

    base: Any  # [K, K, lane]
    weights: Any  # [K, K, C, lane]
    table: Any  # [T or 1, K, K, lane], transition probabilities
    likelihood: Any  # [T or 1, K, lane], in logarithms, then divided by the largest
    inputs: Any  # [C, lane]
    state: Any  # [K, lane]
    after: Any  # [K, lane], the weights of the steps from this one on
    message: Any  # [K, lane]
    moves: Any  # [K, K, 1 + C, lane]
    expected: Any
    shift: Any  # [lane], the logarithm of the largest likelihood
    live: Any  # 1 where a sequence has this step
    norm: Any
    product: Any  # of normalisers whose logarithm is not taken yet
    log_total: Any
    sure: Any
    length: Any


@exact_kernel
def _room(k: int, c: int, lanes: int, steps: int) -> Any:
    kk, d, n = k * k * lanes, c + 1, k * lanes
    tables = np.zeros(kk), np.zeros(kk * c), np.zeros(kk * steps), np.zeros(n * steps), np.zeros(c * lanes)
    vectors = np.zeros(n), np.zeros(n), np.zeros(n)
    sums = np.zeros(kk * d), np.zeros(kk * d)
    numbers = np.zeros(lanes), np.zeros(lanes), np.zeros(lanes), np.zeros(lanes), np.zeros(lanes)
    return Room(*tables, *vectors, *sums, *numbers, np.zeros(lanes, np.bool_), np.zeros(lanes, np.int64))


@inlined
def _begin(rows: Any, first: int, n: int, room: Any, k: int, c: int, lanes: int) -> int:
    """Load the tables of n sequences, the message to the first step being P(s_1); the greatest length."""
    longest = 0
    for lane in range(lanes):
        b = first + min(lane, n - 1)
        room.length[lane] = rows.lengths[b] if lane < n else 0
        longest = max(longest, room.length[lane])
        top = -np.inf
        for j in range(k):
            top = max(top, rows.log_initial[rows.initial_of[b], j])
        for i in range(k):
            room.message[i * lanes + lane] = np.exp(rows.log_initial[rows.initial_of[b], i] - top)
            for j in range(k):
                room.base[(i * k + j) * lanes + lane] = rows.log_base[rows.base_of[b], i, j]
                for d in range(c):
                    to = ((i * k + j) * c + d) * lanes + lane
                    room.weights[to] = rows.weights[rows.weights_of[b], i, j, d]
        room.log_total[lane], room.product[lane], room.sure[lane] = top, 1.0, True
    for e in range(room.moves.size):
        room.moves[e] = room.expected[e] = 0.0
    return longest


@inlined
def _load_inputs(rows: Any, first: int, n: int, t: int, room: Any, c: int, lanes: int) -> None:
    """The inputs of the move into step t, and which sequences have it."""
    for lane in range(lanes):
        live = t < room.length[lane]
        room.live[lane] = 1.0 if live else 0.0
        of = rows.inputs_of[first + min(lane, n - 1)]
        for d in range(c):
            room.inputs[d * lanes + lane] = rows.inputs[of, t - 1, d] if live and t > 0 else 0.0


@inlined
def _load_likelihood(rows: Any, first: int, n: int, t: int, room: Any, at: int, k: int, lanes: int) -> None:
    """The likelihoods of step t, divided by the largest."""
    likelihood = room.likelihood
    for lane in range(lanes):
        live, row = t < room.length[lane], rows.likelihood_of[first + min(lane, n - 1)]
        for j in range(k):
            likelihood[at + j * lanes + lane] = rows.log_likelihood[row, t, j] if live else 0.0
    top = load(likelihood, at)
    for j in range(1, k):
        top = larger(top, load(likelihood, at + j * lanes))
    store(room.shift, 0, top)
    for j in range(k):
        for lane in range(lanes):
            if likelihood[at + j * lanes + lane] != likelihood[at + j * lanes + lane]:
                room.shift[lane] = np.nan
        store(likelihood, at + j * lanes, exp(load(likelihood, at + j * lanes) - top))


@inlined
def _make_table(room: Any, at: int, k: int, c: int, lanes: int) -> None:
    for i in range(k):
        row = at + i * k * lanes
        for j in range(k):
            e = i * k + j
            logit = load(room.base, e * lanes)
            for d in range(c):
                logit = muladd(load(room.weights, (e * c + d) * lanes), load(room.inputs, d * lanes), logit)
            store(room.table, row + j * lanes, logit)
        top = load(room.table, row)
        for j in range(1, k):
            top = larger(top, load(room.table, row + j * lanes))
        mass = splat(0.0)
        for j in range(k):
            p = exp(load(room.table, row + j * lanes) - top)
            mass = mass + p
            store(room.table, row + j * lanes, p)
        inverse = splat(1.0) / mass
        for j in range(k):
            store(room.table, row + j * lanes, load(room.table, row + j * lanes) * inverse)


@inlined
def _filter_step(room: Any, moves: bool, at: int, k: int, lanes: int) -> None:
    """state <- P(s_t | x_1..t)."""
    if moves:
        for j in range(k):
            moved = splat(0.0)
            for i in range(k):
                moved = muladd(load(room.state, i * lanes), load(room.table, (at * k + i * k + j) * lanes), moved)
            store(room.message, j * lanes, moved)
    norm = splat(0.0)
    for j in range(k):
        weight = at_least(load(room.message, j * lanes) * load(room.likelihood, (at + j) * lanes), DROPPED)
        norm = norm + weight
        store(room.message, j * lanes, weight)
    inverse = splat(1.0) / norm
    for j in range(k):
        store(room.state, j * lanes, load(room.message, j * lanes) * inverse)
    store(room.norm, 0, norm)
    for lane in range(lanes):
        room.sure[lane] &= room.norm[lane] >= LOWEST
        room.product[lane] *= room.norm[lane]
        room.log_total[lane] += room.shift[lane]
        if room.product[lane] < LOWEST:
            room.log_total[lane] += np.log(room.product[lane])
            room.product[lane] = 1.0


@inlined
def _smooth_step(room: Any, at: int, k: int, c: int, lanes: int) -> None:
    """state: P(s_t-1 | x_1..t-1) -> P(s_t-1 | x); count the move into t."""
    norm = splat(0.0)
    for j in range(k):
        store(room.after, j * lanes, load(room.message, j * lanes) * load(room.likelihood, (at + j) * lanes))
    for i in range(k):
        message = splat(0.0)
        for j in range(k):
            message = muladd(load(room.table, (at * k + i * k + j) * lanes), load(room.after, j * lanes), message)
        store(room.message, i * lanes, message)
        norm = muladd(load(room.state, i * lanes), message, norm)
    store(room.norm, 0, norm)
    inverse, live = splat(1.0) / norm, load(room.live, 0)
    for i in range(k):
        before, message = load(room.state, i * lanes) * inverse, load(room.message, i * lanes)
        state = before * message
        store(room.state, i * lanes, state)
        store(room.message, i * lanes, message * inverse)
        before, state = before * live, state * live
        for j in range(k):
            e = i * k + j
            p = load(room.table, (at * k + e) * lanes)
            pair, thought = before * p * load(room.after, j * lanes), state * p
            to = e * (c + 1) * lanes
            store(room.moves, to, load(room.moves, to) + pair)
            store(room.expected, to, load(room.expected, to) + thought)
            for d in range(c):
                x, to = load(room.inputs, d * lanes), to + lanes
                store(room.moves, to, muladd(pair, x, load(room.moves, to)))
                store(room.expected, to, muladd(thought, x, load(room.expected, to)))


@exact_kernel
def sweep_lanes(groups: Any, rows: Any, summed: Any, state: Any, moves: Any, expected: Any, certain: Any) -> None:
    """Smooth a range of groups of as many sequences as a vector has lanes."""
    (n_steps, k), c = rows.log_likelihood.shape[1:], rows.inputs.shape[2]
    lanes, size = width(summed), k * k * (c + 1)
    kept = n_steps * k * k * lanes <= CACHED
    room = _room(k, c, lanes, n_steps if kept else 1)
    for group in range(groups[0], groups[1]):
        first = group * lanes
        n = min(lanes, len(rows.lengths) - first)
        longest = _begin(rows, first, n, room, k, c, lanes)
        for t in range(longest):
            at = t * k if kept else 0
            _load_inputs(rows, first, n, t, room, c, lanes)
            _load_likelihood(rows, first, n, t, room, at * lanes, k, lanes)
            if t > 0:
                _make_table(room, at * k * lanes, k, c, lanes)
            _filter_step(room, t > 0, at, k, lanes)
            for lane in range(n):
                if t < room.length[lane]:
                    for j in range(k):
                        state[((first + lane) * n_steps + t) * k + j] = room.state[j * lanes + lane]
        for t in range(longest - 1, 0, -1):
            at = t * k if kept else 0
            _load_inputs(rows, first, n, t, room, c, lanes)
            if not kept:
                _load_likelihood(rows, first, n, t, room, at * lanes, k, lanes)
                _make_table(room, at * k * lanes, k, c, lanes)
            for lane in range(lanes):
                here = ((first + min(lane, n - 1)) * n_steps + t - 1) * k
                for j in range(k):
                    if t >= room.length[lane] - 1:
                        room.message[j * lanes + lane] = 1.0
                    room.state[j * lanes + lane] = state[here + j] if t <= room.length[lane] else 1.0 / k
            _smooth_step(room, at, k, c, lanes)
            for lane in range(n):
                if t < room.length[lane]:
                    room.sure[lane] &= room.norm[lane] >= LOWEST
                    for j in range(k):
                        state[((first + lane) * n_steps + t - 1) * k + j] = room.state[j * lanes + lane]
        for lane in range(n):
            total = room.log_total[lane] + np.log(room.product[lane])
            summed[first + lane], certain[first + lane] = total, room.sure[lane] and np.isfinite(total)
            for e in range(size):
                moves[(first + lane) * size + e] = room.moves[e * lanes + lane]
                expected[(first + lane) * size + e] = room.expected[e * lanes + lane]
