r"""What the table of a factored copy chain does to the messages of `chains.cpu_sweeps`: O(K) a step.

The moves of a copy chain are a Markov chain's whose matrix is a diagonal and one row for all states,

$$A_t = hold_t I + redraw_t \mathbf 1 \pi^\top, \qquad
A_t^\top a = hold_t\, a + redraw_t \textstyle(\sum a) \pi, \qquad A_t b = hold_t\, b + redraw_t (\pi^\top b) \mathbf 1$$

so that the sweeps for matrices serve. What is counted of a move from $a_{t-1}$ to $b_t$, with $n_{t-1}$ as there, is

$$P(s_t, z_t{=}1 \mid x) = redraw_t\, \pi \odot b_t / n_{t-1}, \qquad
P(z_t{=}0 \mid x) = hold_t \textstyle\sum a_{t-1} \odot b_t / n_{t-1}.$$
"""

from typing import Any, NamedTuple

from ...numerics.compilation import inlined
from ...numerics.lanes import load, muladd, splat, store, total, width
from ..cpu_steps import load_likelihood, load_row, padding, rescale, store_row
from ..cpu_sweeps import count, for_inputs, load_step, meet, push, record, step, step_by_likelihood, write_counts


class Inputs(NamedTuple):
    """What the kernels read. Entry b of `..._of` says which one sequence b has."""

    log_likelihood: Any
    likelihood_of: Any
    start: Any  # pi over its largest entry, [n, P]; that of the first step too
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
    tiny: Any  # numbers under it are dropped
    least: Any  # normalisers under it leave doubt about the digits that this loses


class Outputs(NamedTuple):
    """What the kernels write; those of moves are not wanted where they have no entries."""

    state: Any  # [B * T * K]
    log_normalizer: Any  # [B], float64
    log_increment: Any  # [B * T], or nothing if smoothed
    redraw: Any  # [B * T], P(z_t = 1 | ..); that of the first step is left alone
    held: Any  # [B * T], P(z_t = 0 | x), or nothing if filtered
    counts: Any  # [B * K], the sum over time of P(s_t, z_t = 1 | x) but for the first step, or nothing if filtered
    certain: Any  # [B * 2], whether each direction kept every digit


for_inputs(Inputs, load_step)(load_likelihood)
for_inputs(Inputs, step)(step_by_likelihood)


@inlined
def gate_of(inputs: Any, b: int, t: int) -> int:
    """Where the gate of a step lies; that of the step after the last one may be any."""
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
    """P(z_t = 0 | x) of a move to or from the record at `row`, where one minus that of redraws is inexact."""
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
    if (
        moved > 0 and work.inverse[slot] > 0
    ):  # there is a move: none into the first step, nor from what is not yet swept
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
        found = stored if forward else load(weight, at + j)
        store(counted, at + j, muladd(share, found, load(counted, at + j)))
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
