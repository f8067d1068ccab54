r"""The common parts of the kernels of Markov chains for GPUs: a vector times a table.

A program takes S sequences through time, each with a vector of K states padded to P, as tables [S, P]. Tables of
transitions are [S, from, to] in both directions of time: `BACK` reads them with old and new states exchanged, so that
a step is always a sum over `from`. With up to 32 states a whole table is in registers. With more, S is 1, and every
step reads the table again, `ROWS` of its rows at a time, from the cache. Threads then exchange the vector through
`room`, a small memory of the program.
"""

from ...numerics.gpu import STRIDE, constexpr, kernel, tl

LOWEST = constexpr(-1e300)  # replaces -inf, which cannot be subtracted from itself
NONE = constexpr(float("-inf"))
DEPTH = constexpr(2 * STRIDE.value)  # steps whose pairs are counted together
FEW = constexpr(2)  # steps whose rows are on their way while as many are smoothed, which takes most registers


@kernel
def cells(base, first, states, ROWS: constexpr, P: constexpr, BACK: constexpr):
    """The addresses of ROWS rows from `first` in the tables [K, K] that begin at `base` [S], and which of them
    exist."""
    rows, columns = first + tl.arange(0, ROWS)[None, :, None], tl.arange(0, P)[None, None, :]
    place = columns * states + rows if BACK else rows * states + columns
    return base[:, None, None] + place, (rows < states) & (columns < states)


@kernel
def put(vector, room, states, P: constexpr):
    """Hand a vector [1, P] to all threads of the program."""
    tl.debug_barrier()  # the last one has been read
    tl.store(room + tl.arange(0, P)[None, :], vector, (tl.arange(0, P) < states)[None, :])
    tl.debug_barrier()


@kernel
def piece(room, first, states, ROWS: constexpr, other):
    """ROWS numbers of a vector that was `put`, as [1, ROWS, 1]."""
    place = first + tl.arange(0, ROWS)
    return tl.load(room + place, place < states, other)[None, :, None]


@kernel
def push(vector, table, moves, base, room, states, P: constexpr, ROWS: constexpr, BACK: constexpr):
    """sum_i vector(i) table(i, j), with the table in registers or in memory."""
    if ROWS == P:
        out = tl.sum(vector[:, :, None] * table, 1)
    else:
        put(vector, room, states, P)
        out = tl.zeros_like(vector)
        for first in range(0, states, ROWS):
            place, there = cells(base, first, states, ROWS, P, BACK)
            out += tl.sum(piece(room, first, states, ROWS, 0.0) * tl.load(moves + place, there, 0.0), 1)
    return out


@kernel
def push_logs(vector, table, moves, base, room, states, P: constexpr, ROWS: constexpr, BACK: constexpr):
    """log sum_i exp(vector(i) + table(i, j)), in float64."""
    if ROWS == P:
        terms = vector[:, :, None] + table
        top = tl.maximum(tl.max(terms, 1), LOWEST)
        mass = tl.sum(tl.exp(terms - top[:, None, :]), 1)
    else:
        put(vector, room, states, P)
        top, mass = tl.full(vector.shape, LOWEST, tl.float64), tl.zeros(vector.shape, tl.float64)
        for first in range(0, states, ROWS):
            place, there = cells(base, first, states, ROWS, P, BACK)
            terms = piece(room, first, states, ROWS, NONE) + tl.load(moves + place, there, NONE).to(tl.float64)
            new = tl.maximum(tl.max(terms, 1), top)
            mass = mass * tl.exp(top - new) + tl.sum(tl.exp(terms - new[:, None, :]), 1)
            top = new
    return top + tl.log(mass)


@kernel
def largest(x, lanes):
    """The largest of the states' numbers, as [S, 1]."""
    return tl.max(tl.where(lanes, x, NONE), 1, keep_dims=True)


@kernel
def normalise_logs(weight):
    """Weights whose exponentials add up to one, and the logarithm of the divisor, as [S, 1]."""
    top = tl.maximum(tl.max(weight, 1, keep_dims=True), LOWEST)
    rest = tl.log(tl.sum(tl.exp(weight - top), 1, keep_dims=True))
    return (weight - top) - rest, top + rest
