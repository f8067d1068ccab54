r"""Filter and smooth a chain with one constant transition table, in probabilities: the fast kernels.

Forward and backward are one recursion run in the two directions of time. With $l_t$ the likelihoods of step t divided
by the largest, the forward vectors $a_t$ and the backward vectors $b_t$, each normalised, are

$$a_t \propto l_t \odot A^\top a_{t-1}, \qquad b_t \propto l_t \odot A\, b_{t+1}$$

so both are a **sweep**: weigh the message by the likelihoods, normalise, record, push through a matrix. A sweep in one
direction **meets** the records of a sweep in the other: with message $m_t = A\, b_{t+1}$ and record $a_t$,

$$P(s_t \mid x) = a_t \odot m_t / n_t, \quad n_t = \textstyle\sum a_t \odot m_t, \qquad
P(s_t = i, s_{t+1} = j \mid x) = a_t(i)\, A_{ij}\, b_{t+1}(j) / n_t$$

and the sums of the latter over t are $A_{ij} G_{ij}$ with $G = \sum_t (a_t / n_t) b_{t+1}^\top$, a matrix product over
a block of steps. A forward sweep that records and a backward sweep that meets smooth a sequence; so do two
that begin at its ends, pass in the middle, and meet the other's records. Nothing else is stored by step and state, as
the posterior replaces the record.

Numbers smaller than `TINY` are dropped. The evidence that this loses is, at each step, at most K `TINY` over the
normaliser and over n_t. So if both exceed `LEAST` at all steps, every result is right to rounding for any tables. The
kernels report for which sequences this holds.

A chain defines, for its kind of `Inputs`, how a message is pushed to the next step (`push`), how a step records
(`record`) and meets a record (`meet`), and the counts (`count`, `write_counts`). The chains are those of matrices
(`markov.cpu_matrix`) and factored copy chains (`factored_copy.cpu_moves`).

Sequences of a group are swept side by side up to the length of the shortest; the rest of each is swept alone. If they
share a table, each row of it is loaded once for all. A step of a recursion waits for the previous step, so several
recursions side by side take little longer than one. A single sequence is therefore swept from both ends at once. A long
one is cut into parts, and each `Part` of its steps is swept in this way.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numba.extending import overload

from ..numerics.compilation import INLINED, inlined, lean_kernel
from ..numerics.lanes import BYTES, width
from ..numerics.scratch import scratch
from ..numerics.threads import zeros
from .cpu_steps import GROUP, NarrowWorkspace, Workspace, gain, load_likelihood, padded, padding, place, rescale, weigh

RENEW = 1024  # steps after which counts move to float64
TINY = {torch.float32: 1e-36, torch.float64: 1e-290}
LEAST = {torch.float32: 1e-10, torch.float64: 1e-100}


class Sweep(NamedTuple):
    """The direction of a sweep, and whether it meets records or makes them."""

    forward: bool
    meets: bool


class Part(NamedTuple):
    """Steps low <= t < high of a sequence."""

    low: int
    high: int


APPROACH, SMOOTH, JOIN = range(3)  # the stages in which a sequence is smoothed by parts


class Stride(NamedTuple):
    """A part of a sweep, for some slots of a group together: steps begin, begin + step, .. before end."""

    first: int  # slot
    n: int  # slots
    begin: int
    end: int
    step: int
    home: int  # of the first slot: see `place`


def push(inputs: Any, work: Any, group: Any, stride: Any, together: bool, t: int) -> None:
    """The messages to the next step of a stride, from step t."""
    raise TypeError("push: only inside a numba kernel")


def record(inputs: Any, outputs: Any, work: Any, slot: int, b: int, t: int, mass: Any) -> None:
    """Write the results of a sweep that makes records; its weights have the sum `mass`."""
    raise TypeError("record: only inside a numba kernel")


def meet(inputs: Any, outputs: Any, work: Any, slot: int, b: int, t: int, depth: int, forward: bool) -> Any:
    """Replace the record by the posterior, and keep vectors for counts at `depth`. Returns n_t."""
    raise TypeError("meet: only inside a numba kernel")


def count(inputs: Any, work: Any, stride: Any, depth: int, renew: bool) -> None:
    """Count the vectors of the last `depth` steps, and if `renew`, add all counts to their float64 sums."""
    raise TypeError("count: only inside a numba kernel")


def write_counts(inputs: Any, outputs: Any, work: Any, b: int, slot: int, forward: bool) -> None:
    """Add the sums of a slot to the counts of sequence b, and reset them to 0."""
    raise TypeError("write_counts: only inside a numba kernel")


def for_inputs(kind: type, hook: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the implementation of one of these functions for a kind of `inputs`, its first argument."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        body, options = inspect.unwrap(function), cast(Any, INLINED)  # numba cannot compile through a wrapper

        @overload(hook, jit_options=options, strict=False)
        def choose(inputs, *others):
            return body if getattr(inputs, "instance_class", None) is kind else None

        return function

    return register


def workspace(n_states: int, dtype: torch.dtype, *, kept: int = 0, counted: int = 0) -> Any:
    """A thread's working memory, with `kept` numbers for counts and `counted` counts per slot."""
    p, line = padded(n_states, dtype.itemsize), BYTES // dtype.itemsize
    sizes = [GROUP * n for n in (p, p, p, 1, kept, kept, counted, 1)]
    rooms = [-(-size // line) * line for size in sizes]  # threads share no cache line
    whole = zeros(sum(rooms), dtype=dtype).numpy()
    ends = zip(accumulate(rooms), rooms, sizes, strict=True)
    *arrays, top = (whole[end - room :][:size] for end, room, size in ends)
    kind = NarrowWorkspace if p == line else Workspace
    evidence, sure = np.zeros(3 * GROUP + BYTES)[: 3 * GROUP], np.zeros(GROUP + BYTES, bool)[:GROUP]
    return kind._make([*arrays, np.zeros(sizes[-2]), top, evidence, sure])


@contextmanager
def keeping(rooms: list[Any], steps: int, sharing: int = 1) -> Iterator[list[Any]]:
    """The workspaces with room for the tables of all steps, so that a sweep that meets takes no exponentials.

    `sharing`: this many successive workspaces share one sequence.
    """
    p, dtype = rooms[0].likelihood.size // GROUP, rooms[0].weight.dtype
    n, aligned = len(rooms) // sharing, -(-steps // BYTES) * BYTES
    with scratch(n * aligned * (p + 1), dtype) as memory:
        likelihood, top = memory[: n * aligned * p].reshape(n, -1), memory[n * aligned * p :].reshape(n, -1)
        yield [
            room._replace(likelihood=likelihood[i // sharing, : steps * p], top=top[i // sharing, :steps])
            for i, room in enumerate(rooms)
        ]


@inlined
def load(inputs: Any, work: Any, slot: int, home: int, b: int, t: int, meets: bool) -> None:
    """Load a step, unless it was kept.

    This is separate from `step`, because a processor looks too few operations ahead to begin the exponentials of one
    slot while it waits for the recursion of another."""
    if not meets or work.top.size == GROUP:
        load_likelihood(inputs, work, place(inputs, work, slot, home, t), b, t)


@inlined
def step(
    inputs: Any, outputs: Any, work: Any, slot: int, at: int, b: int, t: int, depth: int, forward: bool, meets: bool
) -> None:
    """Step t of sequence b, whose likelihoods are at a place: write its weights, and meet or make its record."""
    if meets:
        work.sure[slot] &= meet(inputs, outputs, work, slot, b, t, depth, forward) >= inputs.least
    mass, top = weigh(work, slot, at, inputs.tiny), work.top[at]
    work.sure[slot] &= mass >= inputs.least
    work.inverse[slot] = work.weight.dtype.type(1) / mass
    if not meets:
        record(inputs, outputs, work, slot, b, t, mass)
    if forward:
        gain(work.evidence, slot, top, mass)
        if outputs.log_increment.size:
            outputs.log_increment[b * inputs.n_steps + t] = top + np.log(mass)


@inlined
def end_sweep(outputs: Any, work: Any, slot: int, b: int, forward: bool) -> None:
    """Normalise the last vector of a slot, and write whether all digits were kept."""
    p = padding(work)
    rescale(work, slot, work.weight, slot * p, p)
    work.inverse[slot] = work.weight.dtype.type(1)
    outputs.certain[2 * b + int(not forward)] &= work.sure[slot]


@lean_kernel
def sweep_stride(inputs: Any, outputs: Any, work: Any, group: Any, stride: Any, meets: bool) -> None:
    """Take all steps of a stride. Before and after, `work.weight` holds the last normalised vector, or 0 before the
    first, and `work.inverse` 1, or 0 then."""
    p, first, end_slot, forward = padding(work), stride.first, stride.first + stride.n, stride.step > 0
    room, away = inputs.counted_at_once, stride.home - first
    together = stride.n == GROUP and p > width(work.weight)
    for slot in range(first, end_slot):
        together &= inputs.table_of[group[slot]] == inputs.table_of[group[first]]
    depth, uncounted = 0, 0
    for t in range(stride.begin, stride.end, stride.step):
        for slot in range(first, end_slot):
            load(inputs, work, slot, slot + away, group[slot], t, meets)
        for slot in range(first, end_slot):
            at = place(inputs, work, slot, slot + away, t)
            step(inputs, outputs, work, slot, at, group[slot], t, depth, forward, meets)
        push(inputs, work, group, stride, together, t)
        depth += 1
        last = t + stride.step == stride.end
        if meets and (depth == room or last):
            uncounted += depth
            count(inputs, work, stride, depth, uncounted >= RENEW or last)
            uncounted, depth = uncounted % RENEW, 0
    for slot in range(first, end_slot):
        end_sweep(outputs, work, slot, group[slot], forward)


@lean_kernel
def sweep_both_ways(inputs: Any, outputs: Any, work: Any, group: Any, up: int, down: int, n: int, meets: bool) -> None:
    """Take n steps of one sequence forward from `up` in slot 0, and n backward from `down` in slot 1."""
    room, b = inputs.counted_at_once, group[0]
    depth, uncounted, slots = 0, 0, Stride(0, 2, 0, n, 1, 0)
    upward, downward = Stride(0, 1, 0, n, 1, 0), Stride(1, 1, 0, n, -1, 0)
    for i in range(n):
        load(inputs, work, 0, 0, b, up + i, meets)
        load(inputs, work, 1, 0, b, down - i, meets)
        step(inputs, outputs, work, 0, place(inputs, work, 0, 0, up + i), b, up + i, depth, True, meets)
        step(inputs, outputs, work, 1, place(inputs, work, 1, 0, down - i), b, down - i, depth, False, meets)
        push(inputs, work, group, upward, False, up + i)
        push(inputs, work, group, downward, False, down - i)
        depth += 1
        if meets and (depth == room or i + 1 == n):
            uncounted += depth
            count(inputs, work, slots, depth, uncounted >= RENEW or i + 1 == n)
            uncounted, depth = uncounted % RENEW, 0
    end_sweep(outputs, work, 0, b, True)
    end_sweep(outputs, work, 1, b, False)


@inlined
def begin(inputs: Any, work: Any, slot: int, b: int, forward: bool) -> None:
    """Make a slot ready for a sweep from the first step (the message is P(s_1)) or from the last one (it is 1)."""
    p = padding(work)
    row, one, none = inputs.start_of[b] * p, work.message.dtype.type(1), work.message.dtype.type(0)
    for j in range(p):
        work.message[slot * p + j] = inputs.start[row + j] if forward else one
        work.weight[slot * p + j] = 0
    work.inverse[slot], work.sure[slot] = none, True
    if forward:
        work.evidence[3 * slot : 3 * slot + 2] = 0
        work.evidence[3 * slot + 2] = 1


@inlined
def finish(inputs: Any, outputs: Any, work: Any, b: int, slot: int) -> None:
    """Write log p(x) of a sequence, and 0 after its end."""
    evidence, n_steps, n_states = work.evidence, inputs.n_steps, inputs.n_states
    outputs.log_normalizer[b] = evidence[3 * slot] + (evidence[3 * slot + 1] + np.log(evidence[3 * slot + 2]))
    outputs.state[(b * n_steps + inputs.lengths[b]) * n_states : (b + 1) * n_steps * n_states] = 0
    if outputs.log_increment.size:
        outputs.log_increment[b * n_steps + inputs.lengths[b] : (b + 1) * n_steps] = 0


@inlined
def stride_of(lengths: Any, group: Any, n: int, sweep: Any, part: int) -> Any:
    """Stride 0..n of a group's sweep, in the order of the sweep; it may have no steps.

    The steps that all n sequences have are taken side by side, before or after the rest of each. The first steps of
    the sequences coincide.
    """
    shared = lengths[group[0]]
    for slot in range(1, n):
        shared = min(shared, lengths[group[slot]])
    slot = (part if sweep.forward else n - part) - 1
    low, high = (0, shared) if slot < 0 else (shared, lengths[group[slot]])
    size = n if slot < 0 else 1
    if sweep.forward:
        return Stride(max(slot, 0), size, low, high, 1, max(slot, 0))
    return Stride(max(slot, 0), size, high - 1, low - 1, -1, max(slot, 0))


@inlined
def begin_both_ways(inputs: Any, work: Any, group: Any) -> None:
    """Make two slots ready for a single sequence of a group."""
    group[1] = group[0]
    begin(inputs, work, 0, group[0], True)
    begin(inputs, work, 1, group[0], False)


@inlined
def smooth_both_ways(inputs: Any, outputs: Any, work: Any, group: Any, low: int, high: int) -> None:
    """Smooth steps low <= t < high of a sequence; if their number is odd, the backward sweep records one more.

    The forward sweep counts the pair of steps in the middle.
    """
    p, half = padding(work), (high - low) // 2
    middle, odd = low + half, (high - low) % 2 > 0
    sweep_both_ways(inputs, outputs, work, group, low, high - 1, half, False)
    if odd:
        sweep_stride(inputs, outputs, work, group, Stride(1, 1, middle, middle - 1, -1, 0), False)
    work.weight[p : 2 * p] = 0
    work.inverse[1] = 0
    sweep_both_ways(inputs, outputs, work, group, middle, middle - 1, half, True)
    if odd:
        sweep_stride(inputs, outputs, work, group, Stride(0, 1, high - 1, high, 1, 0), True)


@lean_kernel
def sweep_groups(inputs: Any, outputs: Any, work: Any, groups: Any, n_sweeps: int) -> None:
    """Filter groups of sequences, [n, GROUP] of their numbers with -1 for none, or with two sweeps smooth them."""
    for g in range(groups.shape[0]):
        group, n = groups[g], 0
        while n < GROUP and group[n] >= 0:
            n += 1
        if n == 1 and n_sweeps == 2:
            begin_both_ways(inputs, work, group)
            smooth_both_ways(inputs, outputs, work, group, 0, inputs.lengths[group[0]])
            write_counts(inputs, outputs, work, group[0], 0, True)
            write_counts(inputs, outputs, work, group[0], 1, False)
            finish(inputs, outputs, work, group[0], 0)
            continue
        for way in range(n_sweeps):
            sweep = Sweep(way == 0, way == 1)
            for slot in range(n):
                begin(inputs, work, slot, group[slot], sweep.forward)
            for part in range(n + 1):
                stride = stride_of(inputs.lengths, group, n, sweep, part)
                if (stride.end - stride.begin) * stride.step > 0:
                    sweep_stride(inputs, outputs, work, group, stride, sweep.meets)
            for slot in range(n):
                if sweep.meets:
                    write_counts(inputs, outputs, work, group[slot], slot, sweep.forward)
                if sweep.forward:
                    finish(inputs, outputs, work, group[slot], slot)


@lean_kernel
def sweep_part(inputs: Any, outputs: Any, work: Any, group: Any, part: Any, stage: int) -> None:
    """A stage of smoothing part of a sequence. All parts must have ended a stage before the next one begins.

    - `APPROACH`: sweep from both ends of the part to its middle, where slot 0 then has the message from before, and
      slot 1 the one from after. They start as if nothing was known. The records are overwritten later.
    - `SMOOTH`: sweep the part. The slots must have the messages at its ends, unless the sequence begins or ends there.
    - `JOIN`: meet the first step of the next part, whose record is still there, to count the move to it.
    """
    b, low, high = group[0], part.low, part.high
    if stage == APPROACH:
        begin_both_ways(inputs, work, group)
        begin(inputs, work, 0, b, False)
        sweep_both_ways(inputs, outputs, work, group, low, high - 1, (high - low) // 2, False)
    elif stage == SMOOTH:
        group[1] = b
        if low == 0:
            begin(inputs, work, 0, b, True)
        if high == inputs.lengths[b]:
            begin(inputs, work, 1, b, False)
        smooth_both_ways(inputs, outputs, work, group, low, high)
        write_counts(inputs, outputs, work, b, 0, True)
        write_counts(inputs, outputs, work, b, 1, False)
        finish(inputs, outputs, work, b, 0)
    else:
        sweep_stride(inputs, outputs, work, group, Stride(0, 1, high, high + 1, 1, 0), True)
        write_counts(inputs, outputs, work, b, 0, True)
