r"""Smooth a chain whose rows depend on inputs: the tables of some steps at once are made, used and dropped.

The tables of a block of steps are made side by side, a vector holding one entry at successive steps. Then the sweep
goes through the block as in `cpu_tables`, and the counts of its moves are sums along the same vectors:

$$\sum_t n_t(i, j)\, x_t = \sum_t \frac{a_t(i)}{n_t} A_t[i, j]\, w_{t+1}(j)\, x_t, \qquad x_t = (1, c_t).$$

The backward sweep makes the tables again, so memory holds those of one block. Numbers smaller than `TINY` are dropped.
Sequences in which a normaliser is below `LEAST` are reported. Several sequences are smoothed by `cpu_row_lanes`.

`row_sums` takes blocks of steps in the same way.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...numerics.compilation import exact_kernel, inlined
from ...numerics.elementary import exp
from ...numerics.lanes import larger, load, muladd, splat, store, total, width
from ...numerics.threads import in_parallel, ranges
from ..cpu_sweeps import LEAST, TINY
from .cpu_row_lanes import sweep_lanes
from .cpu_scaled import MIXES, entries

DROPPED, LOWEST = TINY[torch.float64], LEAST[torch.float64]
MIXING = MIXES[torch.float64]
CACHED = 1 << 13  # numbers in the tables of a block
LONGEST = 64  # steps of a block
SHORTEST = 8  # the numbers of a vector
SIDE_BY_SIDE = 4  # sequences that are smoothed in the lanes of vectors
SUMMED = 256  # steps of a block in `row_sums`


class Rows(NamedTuple):
    """The tables of chains whose rows depend on inputs, in float64. Entry b of `..._of` is the number of sequence b's
    table."""

    log_initial: Any  # [n, K]
    initial_of: Any
    log_base: Any  # [n, K, K]
    base_of: Any
    weights: Any  # [n, K, K, C]
    weights_of: Any
    inputs: Any  # [n, S, C]
    inputs_of: Any
    log_likelihood: Any  # [n, T, K]
    likelihood_of: Any
    lengths: Any  # [B]


class Room(NamedTuple):
    """The working memory of a thread; entry e at step n of a block is at e * size + n."""

    size: int  # steps of a block, a multiple of a vector's width
    table: Any  # [K, K, size], transition probabilities
    inputs: Any  # [C, size]
    likelihood: Any  # [K, size], divided by the largest of the step
    shift: Any  # [size], the logarithm of the largest
    before: Any  # [K, size], a_t / n_t
    after: Any  # [K, size], w_{t+1}
    leaving: Any  # [K, size], P(s_t | x)
    message: Any  # [K]


def flatten(*tables: Tensor) -> Rows:
    """Arrays of tables whose batch axes broadcast to those of the lengths, which come last."""
    lengths, parts = tables[-1], []
    for table, n_own in zip(tables[:-1], (1, 2, 3, 2, 2), strict=True):
        parts += entries(table.double(), n_own, lengths.shape)
    return Rows._make([*parts, lengths.reshape(-1).contiguous().numpy()])


def sweep_rows(rows: Rows, *, smoothing: bool) -> tuple[np.ndarray, tuple[Tensor, ...]]:
    """Whether all digits were kept, by sequence; the results of `op.rows_posterior` or `op.rows_filter` but the
    last, in float64."""
    n, (n_steps, k) = len(rows.lengths), rows.log_likelihood.shape[1:]
    d = 1 + rows.inputs.shape[-1]
    make = partial(torch.zeros, dtype=torch.float64, device="cpu")
    summed, state, increment = make(n), make(n, n_steps, k), make(0 if smoothing else n, n_steps)
    moves, expected = make(2, n if smoothing else 0, k, k, d)
    certain = np.ones(n, np.uint8)
    arrays = [table.view(-1).numpy() for table in (summed, state, increment, moves, expected)]
    if smoothing and n >= SIDE_BY_SIDE:
        groups = ranges(-(-n // SHORTEST))
        arrays.pop(2)
        in_parallel([partial(sweep_lanes, part, rows, *arrays, certain) for part in groups])
    else:
        in_parallel([partial(_sweep, part, rows, smoothing, *arrays, certain) for part in ranges(n)])
    results = (summed, state, moves, expected) if smoothing else (summed, state, increment)
    return certain == 1, results


@exact_kernel
def _room(k: int, c: int) -> Any:
    size = max(SHORTEST, min(LONGEST, CACHED // (k * k) // SHORTEST * SHORTEST))
    vector = k * size
    tables = np.zeros(k * vector), np.zeros(c * size), np.zeros(vector), np.zeros(size)
    return Room(size, *tables, np.zeros(vector), np.zeros(vector), np.zeros(vector), np.zeros(k))


@inlined
def _softmax(table: Any, first: int, k: int, size: int, at: int) -> None:
    """k logits of one vector of steps -> probabilities."""
    top = load(table, first + at)
    for j in range(1, k):
        top = larger(top, load(table, first + j * size + at))
    mass = splat(0.0)
    for j in range(k):
        p = exp(load(table, first + j * size + at) - top)
        mass = mass + p
        store(table, first + j * size + at, p)
    inverse = splat(1.0) / mass
    for j in range(k):
        store(table, first + j * size + at, load(table, first + j * size + at) * inverse)


@inlined
def _make_tables(rows: Any, b: int, first: int, n: int, room: Any) -> None:
    """The tables of the moves first..first + n - 1 of a sequence, and the likelihoods of the steps into which they
    go."""
    size, (n_steps, k), (n_moves, c) = room.size, rows.log_likelihood.shape[1:], rows.inputs.shape[1:]
    inputs, likelihood = rows.inputs.reshape(-1), rows.log_likelihood.reshape(-1)
    base, weights = rows.log_base.reshape(-1), rows.weights.reshape(-1)
    row = rows.inputs_of[b] * n_moves + first
    for d in range(c):
        for t in range(n):
            room.inputs[d * size + t] = inputs[(row + t) * c + d]
    row = rows.likelihood_of[b] * n_steps + first + 1
    for t in range(n):
        top = likelihood[(row + t) * k]
        for j in range(1, k):
            top = max(top, likelihood[(row + t) * k + j])
        room.shift[t] = top
        for j in range(k):
            below = likelihood[(row + t) * k + j] - top
            room.likelihood[j * size + t] = below
            if not below <= 0:  # NaN
                room.shift[t] = np.nan
    for at in range(0, n, width(room.table)):
        for j in range(k):
            store(room.likelihood, j * size + at, exp(load(room.likelihood, j * size + at)))
        for i in range(k):
            for j in range(k):
                logit = splat(base[(rows.base_of[b] * k + i) * k + j])
                weight = ((rows.weights_of[b] * k + i) * k + j) * c
                for d in range(c):
                    logit = muladd(splat(weights[weight + d]), load(room.inputs, d * size + at), logit)
                store(room.table, (i * k + j) * size + at, logit)
            _softmax(room.table, i * k * size, k, size, at)


@inlined
def _start(rows: Any, b: int, state: Any, at: int, k: int) -> Any:
    """state[at:] <- P(s_1 | x_1); the logarithm of the divisors, and the normaliser."""
    row, likelihood = rows.likelihood_of[b], rows.log_likelihood
    top, shift = -np.inf, -np.inf
    for j in range(k):
        top, shift = max(top, rows.log_initial[rows.initial_of[b], j]), max(shift, likelihood[row, 0, j])
    norm = 0.0
    for j in range(k):
        log_p = rows.log_initial[rows.initial_of[b], j] - top
        state[at + j] = np.exp(log_p) * np.exp(likelihood[row, 0, j] - shift)
        norm += state[at + j]
    for j in range(k):
        state[at + j] /= norm
    return top + shift, norm


@inlined
def _forward(state: Any, at: int, room: Any, n: int, increment: Any, record: int) -> Any:
    """Filter n steps after the one at state[at]; the sum of the log normalisers, and the least normaliser."""
    size, k, log_total, product, least = room.size, len(room.message), 0.0, 1.0, np.inf
    for t in range(n):
        here, norm = at + (t + 1) * k, 0.0
        for j in range(k):
            moved = 0.0
            for i in range(k):
                moved += state[here - k + i] * room.table[(i * k + j) * size + t]
            moved *= room.likelihood[j * size + t]
            moved = 0.0 if moved < DROPPED else moved  # NaN stays
            state[here + j] = moved
            norm += moved
        inverse = 1.0 / norm
        for j in range(k):
            state[here + j] *= inverse
        least = least if norm >= least else norm  # NaN too
        log_total, product = log_total + room.shift[t], product * norm
        if record >= 0:
            increment[record + t] = np.log(norm) + room.shift[t]
        if product < LOWEST:
            log_total, product = log_total + np.log(product), 1.0
    return log_total + np.log(product), least


@inlined
def _backward(state: Any, at: int, room: Any, n: int) -> Any:
    """Smooth the n steps from the one at state[at]; the message has the evidence of the later steps, over that
    expected. The least normaliser."""
    size, k, least = room.size, len(room.message), np.inf
    for t in range(n - 1, -1, -1):
        here, norm = at + t * k, 0.0
        for j in range(k):
            room.after[j * size + t] = room.message[j] * room.likelihood[j * size + t]
        for i in range(k):
            message = 0.0
            for j in range(k):
                message += room.table[(i * k + j) * size + t] * room.after[j * size + t]
            room.message[i] = message
            norm += state[here + i] * message
        least = least if norm >= least else norm
        inverse = 1.0 / norm
        for i in range(k):
            before = state[here + i] * inverse
            room.before[i * size + t] = before
            state[here + i] = before * room.message[i]
            room.leaving[i * size + t] = state[here + i]
            room.message[i] *= inverse
    return least


@inlined
def _least(room: Any, n: int) -> Any:
    """The least transition probability of a block."""
    least, k = 1.0, len(room.message)
    for e in range(k * k):
        for t in range(n):
            least = min(least, room.table[e * room.size + t])
    return least


@inlined
def _count(room: Any, n: int, c: int, moves: Any, expected: Any, to: int) -> None:
    """Add the moves of a block, and those that the tables expect, both times (1, inputs)."""
    size, k, wide = room.size, len(room.message), width(room.table)
    for e in range(k):
        for t in range(n, -(-n // wide) * wide):
            room.before[e * size + t] = room.leaving[e * size + t] = 0.0
            room.after[e * size + t] = 0.0
    for i in range(k):
        for j in range(k):
            e = i * k + j
            for d in range(c + 1):
                moved, thought = splat(0.0), splat(0.0)
                for t in range(0, n, wide):
                    p = load(room.table, e * size + t)
                    if d > 0:
                        p = p * load(room.inputs, (d - 1) * size + t)
                    pair = load(room.before, i * size + t) * load(room.after, j * size + t)
                    moved, thought = muladd(pair, p, moved), muladd(load(room.leaving, i * size + t), p, thought)
                moves[to + e * (c + 1) + d] += total(moved)
                expected[to + e * (c + 1) + d] += total(thought)


@exact_kernel
def _sweep(
    sequences: Any,
    rows: Any,
    smoothing: bool,
    summed: Any,
    state: Any,
    increment: Any,
    moves: Any,
    expected: Any,
    certain: Any,
) -> None:
    (n_steps, k), c = rows.log_likelihood.shape[1:], rows.inputs.shape[2]
    room = _room(k, c)
    for b in range(sequences[0], sequences[1]):
        begin, n_moves = b * n_steps, rows.lengths[b] - 1
        log_total, least = _start(rows, b, state, begin * k, k)
        log_total, least_move = log_total + np.log(least), 1.0
        if increment.size:
            increment[begin] = log_total
        for first in range(0, n_moves, room.size):
            n = min(room.size, n_moves - first)
            _make_tables(rows, b, first, n, room)
            if not smoothing:
                least_move = min(least_move, _least(room, n))
            record = begin + first + 1 if increment.size else -1
            gain, norm = _forward(state, (begin + first) * k, room, n, increment, record)
            log_total, least = log_total + gain, (least if norm >= least else norm)
        summed[b] = log_total
        if smoothing and least >= LOWEST:
            room.message[:] = 1.0
            for first in range((n_moves - 1) // room.size * room.size, -1, -room.size):
                n = min(room.size, n_moves - first)
                if first + room.size < n_moves:  # the tables of the last block are still there
                    _make_tables(rows, b, first, n, room)
                norm = _backward(state, (begin + first) * k, room, n)
                least = least if norm >= least else norm
                _count(room, n, c, moves, expected, b * k * k * (c + 1))
        certain[b] = least >= LOWEST and least_move >= MIXING and np.isfinite(log_total)


# ---- the M-step ------------------------------------------------------------------------------------------------------


def row_sums(log_base: Tensor, changes: Tensor, design: Tensor, leaving: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel of `op.row_sums`."""
    (restarts, n_rows, k), d = log_base.shape, design.shape[-1]
    padded = -(-len(design) // SHORTEST) * SHORTEST
    columns = np.zeros((d, padded))
    columns[:, : len(design)] = design.numpy().T
    used = torch.zeros(restarts, n_rows, k, d, d, dtype=torch.float64)
    products = torch.zeros(restarts, n_rows, k, d, k, d, dtype=torch.float64)
    arrays = log_base.contiguous().numpy(), changes.contiguous().numpy(), columns, leaving.numpy()
    in_parallel(
        [partial(_sum_rows, part, *arrays, used.numpy(), products.numpy()) for part in ranges(restarts * n_rows)]
    )
    return used, products


@inlined
def _add_products(q: Any, x: Any, n: int, d: int, size: int, out: Any, to: int, stride: int) -> None:
    """out[to + a * stride + b] += sum of q x_a x_b over the steps of a block, for all b >= a."""
    wide = width(q)
    for a in range(d):
        for b in range(a, d):
            mass = splat(0.0)
            for t in range(0, n, wide):
                mass = muladd(load(q, t), load(x, a * size + t) * load(x, b * size + t), mass)
            out[to + a * stride + b] += total(mass)


@exact_kernel
def _sum_rows(part: Any, log_base: Any, changes: Any, columns: Any, leaving: Any, used: Any, products: Any) -> None:
    n_rows, k = log_base.shape[1:]
    d, n_steps = columns.shape
    x, p, mass = np.zeros(d * SUMMED), np.zeros(k * SUMMED), np.zeros(SUMMED)
    q, mass_p, wide = np.zeros(SUMMED), np.zeros(SUMMED), width(x)
    flat_used, flat_products = used.reshape(-1), products.reshape(-1)
    for one in range(part[0], part[1]):
        r, i = one // n_rows, one % n_rows
        for first in range(0, n_steps, SUMMED):
            n = min(SUMMED, n_steps - first)
            for a in range(d):
                x[a * SUMMED : a * SUMMED + n] = columns[a, first : first + n]
            for t in range(n):
                mass[t] = leaving[r, first + t, i] if first + t < leaving.shape[1] else 0.0
            for t in range(0, n, wide):
                for j in range(k):
                    logit = splat(log_base[r, i, j])
                    for a in range(d):
                        logit = muladd(splat(changes[r, i, j, a]), load(x, a * SUMMED + t), logit)
                    store(p, j * SUMMED + t, logit)
                _softmax(p, 0, k, SUMMED, t)
            for j in range(k):
                for t in range(0, n, wide):
                    store(mass_p, t, load(mass, t) * load(p, j * SUMMED + t))
                _add_products(mass_p, x, n, d, SUMMED, flat_used, (one * k + j) * d * d, d)
                for h in range(j, k):
                    for t in range(0, n, wide):
                        store(q, t, load(mass_p, t) * load(p, h * SUMMED + t))
                    _add_products(q, x, n, d, SUMMED, flat_products, ((one * k + j) * d * k + h) * d, k * d)
        for j in range(k):
            for a in range(d):
                for b in range(a):
                    used[r, i, j, a, b] = used[r, i, j, b, a]
                    for h in range(j, k):
                        products[r, i, j, a, h, b] = products[r, i, j, b, h, a]
            for h in range(j):
                for a in range(d):
                    for b in range(d):
                        products[r, i, j, a, h, b] = products[r, i, h, b, j, a]
