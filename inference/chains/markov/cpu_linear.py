r"""Filter and smooth a chain with one constant transition table, in probabilities: the fast kernels.

Forward and backward are one recursion run in the two directions of time. With $l_t$ the likelihoods of step t divided
by the largest, the forward vectors $a_t$ and the backward vectors $b_t$, each normalised, are

$$a_t \propto l_t \odot A^\top a_{t-1}, \qquad b_t \propto l_t \odot A\, b_{t+1}$$

so both are a sweep: weigh the message by the likelihoods, normalise, store, push through a matrix. The second pass of
either direction meets what the other one stored: with message $m_t = A\, b_{t+1}$ and stored $a_t$,

$$P(s_t \mid x) = a_t \odot m_t / n_t, \quad n_t = \textstyle\sum a_t \odot m_t, \qquad
P(s_t = i, s_{t+1} = j \mid x) = a_t(i)\, A_{ij}\, b_{t+1}(j) / n_t$$

and the sums of the latter over t are $A_{ij} G_{ij}$ with $G = \sum_t (a_t / n_t) b_{t+1}^\top$, a matrix product over
a block of steps. A forward sweep and a backward meeting smooth a sequence; two threads smooth one sequence by sweeping
from both ends to the middle and meeting what the other left there. Nothing else is stored by step and state.

Numbers smaller than `TINY` are dropped. The evidence that this loses is, at each step, at most K `TINY` over the
normaliser and over n_t. So where both exceed `LEAST` at all steps, every answer is right to rounding, whatever the
tables; the kernels report where that is so.

Up to four sequences go side by side; where they share a table, each row of it is loaded once for all four. Matrices are
stored by panels of one vector's width, [panel, old state, lane].
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numba.extending import overload

from ...numerics.compilation import inlined, kernel
from ...numerics.lanes import BYTES, width
from .cpu_steps import combine, count, count_narrow, push_four, push_one, rescale, weigh

GROUP = 4  # sequences side by side
RENEW = 1024  # steps after which counts move to float64
TINY = {torch.float32: 1e-36, torch.float64: 1e-290}
LEAST = {torch.float32: 1e-10, torch.float64: 1e-100}


class Tables(NamedTuple):
    """What the kernels read; all tables flattened to one axis. Entry b of `..._of` says which table sequence b has."""

    log_likelihood: Any
    log_likelihood_of: Any
    start: Any  # P(s_1), [n, P]
    start_of: Any
    forward: Any  # transition probabilities, by panels
    backward: Any  # the same transposed
    transition_of: Any
    lengths: Any
    n_steps: int
    n_states: int
    tiny: float
    least: float


class Beliefs(NamedTuple):
    """What the kernels write."""

    state: Any  # [B * T * K]
    log_normalizer: Any  # [B], float64
    log_increment: Any  # [B * T], or nothing if not wanted
    counts: Any  # [B * K * K], or nothing if only filtered
    certain: Any  # [B * 2], whether each direction kept every digit


class Scratch(NamedTuple):
    """What a thread works in, for `GROUP` sequences side by side."""

    message: Any  # [GROUP * P]
    weight: Any  # [GROUP * P]
    inverse: Any  # [GROUP], one over the sum of the weights
    source: Any  # [GROUP * depth * P], normalised vectors that the messages came from
    target: Any  # [GROUP * depth * P], stored vectors they met, over n_t
    pairs: Any  # [GROUP * P * P], G of the last blocks
    sums: Any  # [GROUP * P * P], G in float64
    evidence: Any  # [GROUP * 3], float64: log p(x) so far, its rounding error, and a factor yet to be taken the log of
    sure: Any  # [GROUP], whether every digit was kept; not in `Beliefs`, where threads would share a cache line


class NarrowScratch(NamedTuple):
    """The same where P is one vector: its own type, so that the kernels are compiled without loops over vectors."""

    message: Any
    weight: Any
    inverse: Any
    source: Any
    target: Any
    pairs: Any
    sums: Any
    evidence: Any
    sure: Any


def padded(n_states: int, dtype: torch.dtype) -> int:
    """P: the number of states, rounded up to one vector, or to pairs of vectors."""
    lanes = BYTES // dtype.itemsize
    return lanes if n_states <= lanes else -(-n_states // (2 * lanes)) * 2 * lanes


def scratch(n_states: int, dtype: torch.dtype, *, counts: bool) -> Scratch | NarrowScratch:
    """A thread's working memory; without `counts`, only what filtering needs."""
    p = padded(n_states, dtype)
    depth = 16 if p < 128 else 48  # large pairs leave the nearest cache: go through them less often
    sizes = [GROUP * p, GROUP * p, GROUP] + [GROUP * n * p * counts for n in (depth, depth, p)]
    arrays = [np.asarray(torch.zeros(n, dtype=dtype)) for n in sizes]
    kind = NarrowScratch if p * dtype.itemsize == BYTES else Scratch
    own, line = 3 * GROUP, BYTES // 8  # nothing of another thread's within a cache line
    return kind._make([*arrays, np.zeros(sizes[-1]), np.zeros(own + line)[:own], np.zeros(GROUP + BYTES, bool)[:GROUP]])


def _padding(scratch: Any) -> Any:
    """P, inside a kernel."""
    raise TypeError("_padding: only inside a numba kernel")


@overload(_padding)
def _padding_of(scratch):
    if scratch.instance_class is NarrowScratch:
        return lambda scratch: width(scratch.weight)
    return lambda scratch: scratch.weight.size // GROUP


@inlined
def renew(pairs: Any, sums: Any, at: int, n: int) -> None:
    """Move `n` pairs to their float64 sums."""
    for i in range(at, at + n):
        sums[i] += pairs[i]
        pairs[i] = 0


@inlined
def begin(tables: Any, scratch: Any, group: Any, n: int, forward: bool) -> None:
    """Make a group ready for a pass from the first step (the message is P(s_1)) or from the last one (it is 1)."""
    message, weight, start, p = scratch.message, scratch.weight, tables.start, _padding(scratch)
    for slot in range(n):
        row = tables.start_of[group[slot]] * p
        for j in range(p):
            message[slot * p + j] = start[row + j] if forward else message.dtype.type(1)
            weight[slot * p + j] = 0
        if forward:
            scratch.evidence[3 * slot : 3 * slot + 2] = 0
            scratch.evidence[3 * slot + 2] = 1


@inlined
def gain(evidence: Any, slot: int, top: Any, mass: Any) -> None:
    """Log p(x) += top + log(mass), compensated; the logarithm is taken of many masses at once."""
    at = 3 * slot
    before, factor = evidence[at], evidence[at + 2] * mass
    after = before + top
    evidence[at + 1] += (before - after) + top if abs(before) >= abs(top) else (top - after) + before
    evidence[at] = after
    if factor < 1e-150 or factor > 1e150:
        evidence[at + 1] += np.log(factor)
        factor = 1.0
    evidence[at + 2] = factor


@inlined
def finish(tables: Any, beliefs: Any, scratch: Any, b: int, slot: int) -> None:
    """A sequence has been gone through to its end: write log p(x), and 0 beyond the end."""
    evidence, n_steps, n_states = scratch.evidence, tables.n_steps, tables.n_states
    beliefs.log_normalizer[b] = evidence[3 * slot] + (evidence[3 * slot + 1] + np.log(evidence[3 * slot + 2]))
    beliefs.state[(b * n_steps + tables.lengths[b]) * n_states : (b + 1) * n_steps * n_states] = 0
    if beliefs.log_increment.size:
        beliefs.log_increment[b * n_steps + tables.lengths[b] : (b + 1) * n_steps] = 0


@inlined
def write_counts(tables: Any, beliefs: Any, scratch: Any, b: int, slot: int, forward: bool) -> None:
    """Counts of sequence b <- transition probabilities * the sums of its slot, which are then 0."""
    matrix, sums, counts, k = tables.forward, scratch.sums, beliefs.counts, tables.n_states
    wide, p = width(scratch.weight), _padding(scratch)
    table, at = tables.transition_of[b] * p * p, slot * p * p
    for i in range(k):
        for j in range(k):
            pair = sums[at + (i * p + j if forward else j * p + i)]
            counts[(b * k + i) * k + j] = matrix[table + (j // wide * p + i) * wide + j % wide] * pair
    sums[at : at + p * p] = 0


@kernel
def walk(
    tables: Any, beliefs: Any, scratch: Any, group: Any, first: int, n: int, t0: int, t1: int, step: int, meeting: bool
) -> None:
    """Steps t0, t0+step, .. before t1 of slots first..first+n-1 of a group.

    A sweep stores each normalised vector; if `meeting`, the other direction has been there: its vectors are replaced by
    P(s_t | x), and pairs are counted. Before and after, `weight` holds the last normalised vector (0 before the first).
    """
    log_likelihood, lent, matrix_of = tables.log_likelihood, tables.log_likelihood_of, tables.transition_of
    matrix = tables.forward if step > 0 else tables.backward
    state, increment, sure = beliefs.state, beliefs.log_increment, scratch.sure
    message, weight, inverse, evidence = scratch.message, scratch.weight, scratch.inverse, scratch.evidence
    source, target, pairs, sums = scratch.source, scratch.target, scratch.pairs, scratch.sums
    k, p, n_steps, one = tables.n_states, _padding(scratch), tables.n_steps, weight.dtype.type(1)
    tiny, least, side = weight.dtype.type(tables.tiny), weight.dtype.type(tables.least), int(step < 0)
    room, narrow = source.size // (GROUP * p), p == width(weight)
    together = n == GROUP and not narrow
    for slot in range(first, first + n):
        together &= matrix_of[group[slot]] == matrix_of[group[first]]
        inverse[slot], sure[slot] = one, True
    depth, kept = 0, 0
    for t in range(t0, t1, step):
        for slot in range(first, first + n):
            b, at = group[slot], slot * p
            row, pair = (b * n_steps + t) * k, (slot * room + depth) * p
            if meeting:
                rescale(weight, at, inverse[slot], source, pair, p, p)
                norm = combine(state, row, k, message, at, target, pair, p)
                sure[slot] &= norm >= least
            mass, top = weigh(log_likelihood, (lent[b] * n_steps + t) * k, k, message, weight, at, p, tiny)
            sure[slot] &= mass >= least
            inverse[slot] = one / mass
            if not meeting:
                rescale(weight, at, inverse[slot], state, row, p, k)
            if step > 0:
                gain(evidence, slot, top, mass)
                if increment.size:
                    increment[b * n_steps + t] = top + np.log(mass)
        if together:
            push_four(weight, inverse, message, k, matrix, matrix_of[group[0]] * p * p, p)
        else:
            for slot in range(first, first + n):
                push_one(weight, inverse[slot], message, slot * p, k, matrix, matrix_of[group[slot]] * p * p, p)
        depth += 1
        if meeting and (depth == room or t + step == t1):
            kept += depth
            for slot in range(first, first + n):
                if narrow:
                    count_narrow(source, target, slot * room * p, depth, pairs, slot * p * p, p)
                else:
                    count(source, target, slot * room * p, depth, pairs, slot * p * p, p)
                if kept >= RENEW or t + step == t1:
                    renew(pairs, sums, slot * p * p, p * p)
            kept, depth = kept % RENEW, 0
    for slot in range(first, first + n):
        rescale(weight, slot * p, inverse[slot], weight, slot * p, p, p)
        beliefs.certain[2 * group[slot] + side] &= sure[slot]


@kernel
def run(tables: Any, beliefs: Any, scratch: Any, groups: Any, middle: int, legs: Any) -> None:
    """Take groups of sequences through `legs`: rows (forward or not, meeting or not).

    Arguments:
        groups: [n, GROUP] numbers of sequences, -1 for none.
        middle: the step where the two directions meet; n_steps if a whole sweep comes first.
    """
    n_steps, lengths = tables.n_steps, tables.lengths
    for g in range(groups.shape[0]):
        group, n, shared = groups[g], 0, n_steps
        while n < GROUP and group[n] >= 0:
            shared = min(shared, lengths[group[n]])
            n += 1
        for leg in range(legs.shape[0]):
            forward, meeting = legs[leg, 0], legs[leg, 1]
            if not meeting or middle == n_steps:
                begin(tables, scratch, group, n, forward)
            elif not forward:
                scratch.weight[:] = 0  # the pair across the middle is counted by those who go forward
            for part in range(n + 1):
                # side by side as far as the shortest goes (part 0 of the way), and what is left of each on its own
                slot = (part if forward else n - part) - 1
                size, low, high = n, 0, shared
                if slot >= 0:
                    size, low, high = 1, shared, lengths[group[slot]]
                slot = max(slot, 0)
                if forward == meeting:
                    low = max(low, middle)
                else:
                    high = min(high, middle)
                t0, t1, step = (low, high, 1) if forward else (high - 1, low - 1, -1)
                if low < high:
                    walk(tables, beliefs, scratch, group, slot, size, t0, t1, step, meeting)
            for slot in range(n):
                if meeting:
                    write_counts(tables, beliefs, scratch, group[slot], slot, forward)
                if forward:
                    finish(tables, beliefs, scratch, group[slot], slot)
