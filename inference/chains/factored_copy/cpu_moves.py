r"""The tables of factored copy chains in `chains.cpu_sweeps`, at O(K) per step.

The transition matrix of a copy chain is a diagonal plus equal rows,

$$A_t = hold_t I + redraw_t \mathbf 1 \pi^\top, \qquad
A_t^\top a = hold_t\, a + redraw_t \textstyle(\sum a) \pi, \qquad A_t b = hold_t\, b + redraw_t (\pi^\top b) \mathbf 1$$

so the sweeps for matrices apply. The counts of a move from $a_{t-1}$ to $b_t$, with $n_{t-1}$ as there, are

$$P(s_t, z_t{=}1 \mid x) = redraw_t\, \pi \odot b_t / n_{t-1}, \qquad
P(z_t{=}0 \mid x) = hold_t \textstyle\sum a_{t-1} \odot b_t / n_{t-1}.$$
"""

from typing import Any, NamedTuple

from ...numerics.compilation import inlined
from ...numerics.lanes import load, muladd, splat, store, total, width
from ..cpu_steps import load_row, padding, rescale, store_row
from ..cpu_sweeps import count, for_inputs, meet, push, record, write_counts


class Inputs(NamedTuple):
    """The tables that kernels read. Entry b of `..._of` is the number of sequence b's table."""

    log_likelihood: Any
    likelihood_of: Any
    start: Any  # pi divided by its largest entry, [n, P]; also for the first step
    start_of: Any
    padding: int  # P
    hold: Any  # [n, T] or [n, 1]
    redraw: Any
    table_of: Any  # of both
    gates: int  # T or 1
    lengths: Any
    n_steps: int
    n_states: int
    counted_at_once: int  # steps
    tiny: Any  # smaller numbers are dropped
    least: Any  # with smaller normalisers this may lose digits


class Outputs(NamedTuple):
    """The tables that kernels write; tables of moves without entries are not wanted."""

    state: Any  # [B * T * K]
    log_normalizer: Any  # [B], float64
    log_increment: Any  # [B * T], or nothing if smoothed
    redraw: Any  # [B * T], P(z_t = 1 | ..); the first step is not written
    held: Any  # [B * T], P(z_t = 0 | x), or nothing if filtered
    counts: Any  # [B * K], the sum over time of P(s_t, z_t = 1 | x) without the first step, or nothing if filtered
    certain: Any  # [B * 2], whether each direction kept every digit


@inlined
def gate_of(inputs: Any, b: int, t: int) -> int:
    """The address of the gate of a step; for the step after the last one, any gate."""
    of = inputs.table_of[b]
    return of if inputs.gates == 1 else of * inputs.gates + min(t, inputs.gates - 1)


@inlined
def push_slot(inputs: Any, work: Any, slot: int, b: int, t: int, forward: bool) -> None:
    weight, message, p = work.weight, work.message, padding(work)
    wide, at, row, number = width(weight), slot * p, inputs.start_of[b] * p, weight.dtype.type
    gate = gate_of(inputs, b, t + 1 if forward else t)
    hold, redraw = splat(number(inputs.hold[gate] * work.inverse[slot])), number(inputs.redraw[gate])
    if forward:
        drawn = splat(redraw)
        for j in range(0, p, wide):
            fresh = drawn * load(inputs.start, row + j)
            store(message, at + j, muladd(hold, load(weight, at + j), fresh))
    else:
        reached = splat(number(0))
        for j in range(0, p, wide):
            reached = muladd(load(weight, at + j), load(inputs.start, row + j), reached)
        work.source[slot] = work.inverse[slot] * total(reached)
        drawn = splat(number(redraw * work.source[slot]))
        for j in range(0, p, wide):
            store(message, at + j, muladd(hold, load(weight, at + j), drawn))


@for_inputs(Inputs, push)
def _push(inputs: Any, work: Any, group: Any, stride: Any, together: bool, t: int) -> None:
    for slot in range(stride.first, stride.first + stride.n):
        push_slot(inputs, work, slot, group[slot], t, stride.step > 0)


@for_inputs(Inputs, record)
def _record(inputs: Any, outputs: Any, work: Any, slot: int, b: int, t: int, mass: Any) -> None:
    p, row = padding(work), b * inputs.n_steps + t
    rescale(work, slot, outputs.state, row * inputs.n_states, inputs.n_states)
    if outputs.log_increment.size:
        likelihood, at, of = work.likelihood, slot * p, inputs.start_of[b] * p
        drawn = splat(likelihood.dtype.type(0))
        for j in range(0, p, width(likelihood)):
            drawn = muladd(load(likelihood, at + j), load(inputs.start, of + j), drawn)
        outputs.redraw[row] = inputs.redraw[gate_of(inputs, b, t)] * total(drawn) / mass


@inlined
def kept_share(inputs: Any, outputs: Any, work: Any, slot: int, row: int, gate: int, inverse: Any) -> Any:
    """P(z_t = 0 | x) of a move to or from the record at `row`, if 1 - P(z_t = 1 | x) is inexact."""
    weight, p, zero = work.weight, padding(work), work.weight.dtype.type(0)
    kept = splat(zero)
    for j in range(0, p, width(weight)):
        stored = load_row(outputs.state, row + j, inputs.n_states - j, zero)
        kept = muladd(stored, load(weight, slot * p + j), kept)
    return type(zero)(inputs.hold[gate] * total(kept) * work.inverse[slot] * inverse)


@for_inputs(Inputs, meet)
def _meet(inputs: Any, outputs: Any, work: Any, slot: int, b: int, t: int, depth: int, forward: bool) -> Any:
    state, message, weight, counted, k = outputs.state, work.message, work.weight, work.counted, inputs.n_states
    p, number = padding(work), weight.dtype.type
    wide, at, of, row = width(weight), slot * p, inputs.start_of[b] * p, (b * inputs.n_steps + t) * k
    zero = number(0)
    mass, drawn = splat(zero), splat(zero)
    for j in range(0, p, wide):
        stored = load_row(state, row + j, k - j, zero)
        mass = muladd(stored, load(message, at + j), mass)
        if forward:
            drawn = muladd(stored, load(inputs.start, of + j), drawn)
    norm, moved = total(mass), t if forward else t + 1
    inverse, gate = number(1) / norm, gate_of(inputs, b, moved)
    fresh = number(inputs.redraw[gate] * inverse)
    redraw = number(fresh * (total(drawn) if forward else work.source[slot]))
    share = splat(number(fresh if forward else fresh * work.inverse[slot]))
    # there is no move into the first step, nor from a step that is not swept yet
    if moved > 0 and work.inverse[slot] > 0:
        where = b * inputs.n_steps + moved
        outputs.redraw[where] = redraw
        outputs.held[where] = (
            number(1) - redraw if redraw < 0.5 else kept_share(inputs, outputs, work, slot, row, gate, inverse)
        )
    else:
        share = splat(zero)
    over = splat(inverse)
    for j in range(0, p, wide):
        stored = load_row(state, row + j, k - j, zero)
        target = stored if forward else load(weight, at + j)
        store(counted, at + j, muladd(share, target, load(counted, at + j)))
        store_row(state, row + j, stored * over * load(message, at + j), k - j)
    return norm


@for_inputs(Inputs, count)
def _count(inputs: Any, work: Any, stride: Any, depth: int, renew: bool) -> None:
    p = padding(work)
    for i in range(stride.first * p, (stride.first + stride.n) * p):
        work.sums[i] += work.counted[i]
        work.counted[i] = 0


@for_inputs(Inputs, write_counts)
def _write_counts(inputs: Any, outputs: Any, work: Any, b: int, slot: int, forward: bool) -> None:
    p, k = padding(work), inputs.n_states
    for s in range(k):
        outputs.counts[b * k + s] += inputs.start[inputs.start_of[b] * p + s] * work.sums[slot * p + s]
    work.sums[slot * p : (slot + 1) * p] = 0
