r"""Filter and smooth chains with constant tables on a GPU, in probabilities.

The recursions are those of `native/sweep.h`: with $l_t$ the likelihoods of a step divided by the largest,

$$a_t \propto l_t \odot A^\top a_{t-1}, \qquad b_t \propto l_t \odot m_t, \qquad m_t = A\, b_{t+1}$$
$$P(s_t \mid x) = a_t \odot m_t / n_t, \quad n_t = \textstyle\sum a_t \odot m_t, \qquad
P(s_t = i, s_{t+1} = j \mid x) = a_t(i)\, A_{ij}\, b_{t+1}(j) / n_t$$

Numbers smaller than TINY are dropped. The evidence that this loses is, at each step, at most K TINY over the normaliser
and over n_t: if both exceed LEAST at all steps, every result is right to rounding. `certain` reports these
sequences; `cuda_logs` computes the others again.

A step forward reads K numbers, writes K (K + 1 to filter), and takes K^2 multiplications and K exponentials; back it
reads 2 K, writes K, and takes 2 K^2. With more than 32 states it also reads K^2 numbers of the table from the cache.
"""

from ...numerics.gpu import INTERPRETED, STRIDE, constexpr, kernel, position, rows, tl, within
from ...numerics.gpu_elementary import exp
from ...numerics.gpu_sequences import fill, sequences
from .cuda_steps import DEPTH, FEW, cells, largest, piece, push

_RENEW = constexpr(4 if INTERPRETED else 1024)  # steps after which counts move to float64


@kernel
def _probabilities(x, lanes):
    """exp(x) divided by the largest, and the logarithm of the largest."""
    top = largest(x, lanes)
    return tl.where(lanes, exp(x - top), 0), top


@kernel
def _normalise(weight, inside, sure, TINY: constexpr, LEAST: constexpr):
    """The normalised vector, its sum, and whether this step and all before it are certain."""
    weight = tl.where(weight < TINY, 0, weight)
    mass = tl.sum(weight, 1, keep_dims=True)
    return weight / tl.where(mass > 0, mass, 1), mass, sure & ((mass >= LEAST) | (inside == 0))


@kernel
def _table(moves, base, states, P: constexpr, ROWS: constexpr, BACK: constexpr):
    """The table in registers, if it fits."""
    if ROWS == P:
        place, real = cells(base, 0, states, P, P, BACK)
        table = tl.load(moves + place, real, 0.0)
    else:
        table = 0
    return table


@kernel
def filter_scaled(
    log_initial, moves, log_top, least, log_likelihood, numbers, lengths, total, state, increment, certain, room,
    n, steps, states,
    FILTERS: constexpr, TINY: constexpr, LEAST: constexpr, MIXES: constexpr,
    S: constexpr, P: constexpr, ROWS: constexpr, DTYPE: constexpr,
):  # fmt: skip
    """log p(x), P(s_t | x_1..t), and, if it `FILTERS`, log p(x_t | x_1..t-1); `certain`, whether they are.

    A filter cannot check its losses in a backward sweep, but the next step replaces dropped numbers by at least the
    least transition probability. It is certain if that is at least MIXES.
    """
    b, there, k, lanes, length = sequences(position(0), lengths, n, states, S, P)
    mask, longest = there & lanes, tl.max(length)
    at, base = tl.load(numbers + 2 * n + b, there, 0) * steps * states + k, tl.load(numbers + n + b, there, 0)
    own, following = room + position(0) * states, tl.load(log_top + base, there, 0).to(tl.float64)
    sure = length > 0
    if FILTERS:
        sure = sure & (tl.load(least + base, there, 0) >= MIXES)
    first = tl.load(log_initial + tl.load(numbers + b, there, 0) * states + k, mask, 0).to(DTYPE)
    message, before = _probabilities(first, lanes)
    before = before.to(tl.float64)
    base = tl.reshape(base, (S,)) * states * states
    table = _table(moves, base, states, P, ROWS, False)
    tops, scales = tl.zeros((S, 1), tl.float64), tl.zeros((S, 1), tl.float64)
    out, t = state + b * steps * states + k, position(0) * 0
    for _ in range(0, longest, STRIDE):
        xs = rows(log_likelihood + at, t, 1, 0, length, states, mask, DTYPE)
        for i in tl.static_range(STRIDE):
            inside = length > t + i
            likelihood, top = _probabilities(xs[i], lanes)
            vector, mass, sure = _normalise(likelihood * message, inside, sure, TINY, LEAST)
            tl.store(out + (t + i) * states, tl.where(inside, vector, 0), within(mask, t + i, 0, steps))
            top, scale = top.to(tl.float64) + before, tl.log(mass).to(tl.float64)
            tops, scales, before = (
                tl.where(inside, tops + top, tops),
                tl.where(inside, scales + scale, scales),
                following,
            )
            if FILTERS:
                gain = tl.where(inside, top + scale, 0)
                tl.store(increment + b * steps + t + i, gain, within(there, t + i, 0, steps))
            message = push(vector, table, moves, base, own, states, P, ROWS, False)
        t += STRIDE
    fill(out, t, steps, states, 0, mask)
    if FILTERS:
        fill(increment + b * steps, t, steps, 1, 0, there)
    tl.store(total + b, tops + scales, there)
    tl.store(certain + b, sure.to(tl.int8), there)


@kernel
def _count(pairs, counts, vectors, moves, base, out, states, there, depth, P: constexpr, ROWS: constexpr):
    """Counts += table * pairs in registers, or those of the last steps' `vectors`: b's, and as many a's over n_t."""
    tl.debug_barrier()  # the last steps have written
    if ROWS == P:
        place, real = cells(base, 0, states, P, P, True)
        to, _ = cells(out, 0, states, P, P, True)
        new = pairs * tl.load(moves + place, real, 0.0)
        real = real & there[:, :, None]
        tl.store(counts + to, tl.load(counts + to, real, 0.0) + new.to(tl.float64), real)
    else:
        k = tl.arange(0, P)
        for first in range(0, states, ROWS):
            place, real = cells(base, first, states, ROWS, P, True)
            to, _ = cells(out, first, states, ROWS, P, True)
            new = tl.zeros((1, ROWS, P), pairs.dtype)
            for d in range(depth):
                row = vectors + d * states
                target = tl.load(row + DEPTH * states + k, k < states, 0.0)[None, None, :]
                new += piece(row, first, states, ROWS, 0.0) * target
            new *= tl.load(moves + place, real, 0.0)
            tl.store(counts + to, tl.load(counts + to, real, 0.0) + new.to(tl.float64), real)
    tl.debug_barrier()


@kernel
def smooth_scaled(
    moves, log_likelihood, numbers, lengths, state, counts, certain, room, n, steps, states,
    TINY: constexpr, LEAST: constexpr, S: constexpr, P: constexpr, ROWS: constexpr, DTYPE: constexpr,
):  # fmt: skip
    """state: P(s_t | x_1..t) -> P(s_t | x); counts += P(s_t, s_t+1 | x) over all t; `certain`, whether both are."""
    b, there, k, lanes, length = sequences(position(0), lengths, n, states, S, P)
    mask, longest = there & lanes, tl.max(length)
    at, base = tl.load(numbers + 2 * n + b, there, 0) * steps * states + k, tl.load(numbers + n + b, there, 0)
    base, own = tl.reshape(base, (S,)) * states * states, room + position(0) * (2 * DEPTH + 1) * states
    table, to = _table(moves, base, states, P, ROWS, True), tl.reshape(b, (S,)) * states * states
    sure = tl.load(certain + b, there, 0) > 0
    vector, message = tl.zeros((S, P), DTYPE), tl.where(mask, 1, tl.zeros((S, P), DTYPE))
    out, t = state + b * steps * states + k, position(0) * 0 + longest - 1
    BLOCK: constexpr = _RENEW if ROWS == P else DEPTH
    xs = rows(log_likelihood + at, t, -1, 0, length, states, mask, DTYPE, FEW)
    ys = rows(out, t, -1, 0, length, states, mask, DTYPE, FEW)
    for begin in range(0, longest, BLOCK):
        pairs, depth = tl.zeros((S, P, P) if ROWS == P else (S, 1, 1), DTYPE), 0
        for _ in range(begin, tl.minimum(begin + BLOCK, longest), FEW):
            next_xs = rows(log_likelihood + at, t - FEW, -1, 0, length, states, mask, DTYPE, FEW)
            next_ys = rows(out, t - FEW, -1, 0, length, states, mask, DTYPE, FEW)
            tl.debug_barrier()  # the posterior takes the place of what has been read
            for i in tl.static_range(FEW):
                inside = (length > t - i) & (t >= i)
                norm = tl.sum(ys[i] * message, 1, keep_dims=True)
                sure = sure & ((norm >= LEAST) | (inside == 0))
                target = tl.where(inside, ys[i] / tl.where(norm > 0, norm, 1), 0)
                tl.store(out + (t - i) * states, target * message, within(mask, t - i, 0, length))
                if ROWS == P:
                    pairs += vector[:, :, None] * target[:, None, :]
                else:
                    tl.store(own + depth * states + k, vector, lanes)
                    tl.store(own + (DEPTH + depth) * states + k, target, lanes)
                likelihood, _ = _probabilities(xs[i], lanes)
                weight, _, sure = _normalise(likelihood * message, inside, sure, TINY, LEAST)
                vector = tl.where(inside, weight, 0)
                pushed = push(vector, table, moves, base, own + 2 * DEPTH * states, states, P, ROWS, True)
                message = tl.where(inside, pushed, message)
                depth += 1
            xs, ys = next_xs, next_ys
            t -= FEW
        _count(pairs, counts, own, moves, base, to, states, there, depth, P, ROWS)
    tl.store(certain + b, sure.to(tl.int8), there)
