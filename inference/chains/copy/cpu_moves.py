r"""What a step of a copy chain does to the messages of `chains.cpu_sweeps`: O(K) a step, little memory beside results.

With the weights of a step over the largest, $f_t$ of redraws and $h_t$ of holds, beliefs $a_t$ and futures $b_t$ are

$$a_t \propto h_t \odot a_{t-1} + f_t, \qquad b_{t-1} \propto h_t \odot b_t + \langle f_t, b_t \rangle,$$

each normalised. The sweep forward records beliefs, that backward the futures, and where a sweep meets a record,

$$P(s_t, z_t{=}1 \mid x) = f_t \odot b_t / n_t, \qquad P(s_t, z_t{=}0 \mid x) = h_t \odot a_{t-1} \odot b_t / n_t,$$

with $n_t$ the sum of both over states. The backward sweep finds $a_{t-1}$ one step below the record that it replaces.

No number may underflow to a 0 that means "impossible". So a weight below e^`LOWEST` is raised to it, and a message
below `FLOOR` likewise. What that adds to the evidence is at each step at most some K `FLOOR` over $n_t$: where $n_t$
exceeds `LEAST` at all steps, every answer is right to rounding. A filter has no $n_t$. It is sure unless a belief below
`LOST`, which may have been raised, becomes more by being held, or the weight of a step is below `SMALL`.
"""

from typing import Any, NamedTuple

import numpy as np

from ...numerics.compilation import inlined
from ...numerics.elementary import exp
from ...numerics.lanes import (
    by_sign,
    larger,
    largest,
    load,
    muladd,
    splat,
    spread,
    store,
    total,
    width,
)
from ..cpu_steps import gain, load_row, padding, rescale, store_row
from ..cpu_sweeps import count, for_inputs, load_step, push, step, write_counts

LOWEST = -345.0  # the least log-weight of a step, relative to its largest, other than -inf
FLOOR = 1e-150  # the least message that is not 0: times the least weight it is still a normal number
LEAST = 1e-100  # the least n_t
LOST = 1e-70  # the belief below which a state is lost
SMALL = 1e-75  # the least weight of a step of a filter
SHARE = 1e-17  # what a lost state may contribute, in parts of a redraw
_HUGE = 1.79e308
_NONE = -np.inf


class Inputs(NamedTuple):
    """What the kernels read, in float64."""

    log_fresh: Any  # [B * T * K]
    log_held: Any  # [B * T * K], or [B * T]
    alike: int  # 1 if all states hold alike
    start: Any  # [B * P], the belief before the first step
    start_of: Any  # [B], which one a sequence has
    table_of: Any
    lengths: Any
    n_steps: int
    n_states: int
    counted_at_once: int  # steps; nothing is counted
    filters: int  # 1 if no sweep meets the records


class Outputs(NamedTuple):
    """What the kernels write, in float64; an array without entries is not wanted."""

    state: Any  # [B * T * K], records, then P(s_t | x); or P(s_t, z_t = 1 | x) where `held` is wanted
    log_normalizer: Any  # [B]
    log_increment: Any  # [B * T]
    redraw: Any  # [B * T]
    held: Any  # [B * T * K], or [B * T], P(s_t, z_t = 0 | x)
    initial: Any  # [B * K], P(s_0 | x)
    certain: Any  # [B * 2], whether each direction kept every digit
    failed: Any  # [B], the first impossible step, or -1


@inlined
def weight_of(log_weight: Any, shift: Any) -> Any:
    """Weights over the largest, raised to e^`LOWEST` where they are neither more nor impossible."""
    x = log_weight - shift
    return exp(by_sign(x + splat(_HUGE), larger(x, splat(LOWEST)), x))


@inlined
def held_of(inputs: Any, row: int, j: int) -> Any:
    """Log-weights of holding states j.. at a row of steps."""
    if inputs.alike > 0:
        return spread(inputs.log_held, row)
    return load_row(inputs.log_held, row * inputs.n_states + j, inputs.n_states - j, _NONE)


@for_inputs(Inputs, load_step)
def _load_step(inputs: Any, work: Any, at: int, b: int, t: int) -> None:
    log_fresh, weights, k, p = inputs.log_fresh, work.likelihood, inputs.n_states, padding(work)
    row, to, most = b * inputs.n_steps + t, 2 * p * at, splat(_NONE)
    for j in range(0, p, width(weights)):
        most = larger(most, larger(load_row(log_fresh, row * k + j, k - j, _NONE), held_of(inputs, row, j)))
    top = largest(most)
    top = top if top > _NONE else 0.0
    shift = splat(top)
    for j in range(0, p, width(weights)):
        store(weights, to + j, weight_of(load_row(log_fresh, row * k + j, k - j, _NONE), shift))
        store(weights, to + p + j, weight_of(held_of(inputs, row, j), shift))
    work.top[at] = top


@inlined
def fetch_neighbours(inputs: Any, outputs: Any, work: Any, slot: int, b: int, t: int, forward: bool) -> None:
    """Source <- the belief before step t, target <- the future after it: one is the message, one a record."""
    state, message, source, target = outputs.state, work.message, work.source, work.target
    k, p, row = inputs.n_states, padding(work), (b * inputs.n_steps + t) * inputs.n_states
    for j in range(0, p, width(message)):
        at = slot * p + j
        if forward:
            store(source, at, load(message, at))
            store(target, at, load_row(state, row + j, k - j, 0.0))
        else:
            store(target, at, load(message, at))
            if t == 0:
                store(source, at, load(inputs.start, inputs.start_of[b] * p + j))
            else:
                store(source, at, load_row(state, row - k + j, k - j, 0.0))


@inlined
def meet(inputs: Any, outputs: Any, work: Any, slot: int, at: int, b: int, t: int) -> bool:
    """Posteriors of a step, from its neighbours; whether n_t is large enough."""
    weights, source, target, joint = work.likelihood, work.source, work.target, work.weight
    k, p, row, wide = inputs.n_states, padding(work), b * inputs.n_steps + t, width(work.weight)
    fresh, held, own = 2 * p * at, 2 * p * at + p, slot * p
    mass, drawn, kept = splat(0.0), splat(0.0), splat(0.0)
    for j in range(0, p, wide):
        after = load(target, own + j)
        redraws, holds = load(weights, fresh + j) * after, load(weights, held + j) * load(source, own + j) * after
        store(joint, own + j, redraws + holds)
        mass = mass + load(joint, own + j)
        drawn, kept = drawn + redraws, kept + holds
    norm, redraw, hold = total(mass), total(drawn), total(kept)
    over = splat(norm)
    for j in range(0, p, wide):
        after = load(target, own + j) / over
        belief = load(joint, own + j) / over
        if outputs.held.size > 0:
            belief = load(weights, fresh + j) * after
            if inputs.alike == 0:
                store_row(outputs.held, row * k + j, load(weights, held + j) * load(source, own + j) * after, k - j)
        store_row(outputs.state, row * k + j, belief, k - j)
        if t == 0 and outputs.initial.size > 0:
            before = muladd(load(weights, held + j), after, splat(redraw / norm))
            store_row(outputs.initial, b * k + j, load(source, own + j) * before, k - j)
    if outputs.redraw.size > 0:
        outputs.redraw[row] = redraw / norm
    if inputs.alike > 0 and outputs.held.size > 0:
        outputs.held[row] = hold / norm
    return norm >= LEAST


@inlined
def weigh_forward(inputs: Any, work: Any, slot: int, at: int) -> Any:
    """Weight <- the belief after a step, not yet normalised; returns its sum and that of its redraws."""
    weights, p = work.likelihood, padding(work)
    fresh, own, mass, drawn = 2 * p * at, slot * p, splat(0.0), splat(0.0)
    for j in range(0, p, width(weights)):
        redraw = load(weights, fresh + j)
        belief = muladd(load(weights, fresh + p + j), load(work.message, own + j), redraw)
        store(work.weight, own + j, belief)
        mass, drawn = mass + belief, drawn + redraw
    return total(mass), total(drawn)


@inlined
def weigh_backward(inputs: Any, work: Any, slot: int, at: int, reached: bool) -> Any:
    """Weight <- the future before a step, not yet normalised, 0 where `reached` says that no belief leads; its sum."""
    weights, message, p, zero = work.likelihood, work.message, padding(work), splat(0.0)
    fresh, own, mass, drawn = 2 * p * at, slot * p, zero, zero
    for j in range(0, p, width(weights)):
        drawn = muladd(load(weights, fresh + j), load(message, own + j), drawn)
    drawn = splat(total(drawn))
    for j in range(0, p, width(weights)):
        future = muladd(load(weights, fresh + p + j), load(message, own + j), drawn)
        if reached:
            future = by_sign(zero - load(work.source, own + j), zero, future)
        store(work.weight, own + j, future)
        mass = mass + future
    return total(mass)


@inlined
def is_safe(work: Any, slot: int, at: int, mass: Any) -> bool:
    """Whether no state that was lost before a step has become more by being held."""
    weights, p, zero, worst = work.likelihood, padding(work), splat(0.0), splat(0.0)
    for j in range(0, p, width(weights)):
        fresh, before = load(weights, 2 * p * at + j), load(work.message, slot * p + j)
        excess = muladd(load(weights, 2 * p * at + p + j), before, zero) - fresh * splat(SHARE)
        found = by_sign(load(work.weight, slot * p + j) - splat(LOST * mass), excess, zero)
        worst = larger(worst, by_sign(before - splat(LOST), zero, found))
    return largest(worst) <= 0.0 and mass >= SMALL


@for_inputs(Inputs, step)
def _step(
    inputs: Any, outputs: Any, work: Any, slot: int, at: int, b: int, t: int, depth: int, forward: bool, meets: bool
) -> None:
    row, k, p = b * inputs.n_steps + t, inputs.n_states, padding(work)
    if meets:
        fetch_neighbours(inputs, outputs, work, slot, b, t, forward)
        work.sure[slot] &= meet(inputs, outputs, work, slot, at, b, t)
    if forward:
        mass, drawn = weigh_forward(inputs, work, slot, at)
        if inputs.filters > 0:
            work.sure[slot] &= is_safe(work, slot, at, mass)
        if not (0.0 < mass < np.inf) and outputs.failed[b] < 0:
            outputs.failed[b] = t
        gain(work.evidence, slot, work.top[at], mass)
        if outputs.log_increment.size > 0:
            outputs.log_increment[row] = work.top[at] + np.log(mass)
            outputs.redraw[row] = drawn / mass
    else:
        mass = weigh_backward(inputs, work, slot, at, meets)
    work.inverse[slot] = 1.0 / mass
    if not meets and outputs.state.size > 0:
        if forward:
            rescale(work, slot, outputs.state, row * k, k)
        else:
            for j in range(0, p, width(work.weight)):
                store_row(outputs.state, row * k + j, load(work.message, slot * p + j), k - j)


@for_inputs(Inputs, push)
def _push(inputs: Any, work: Any, group: Any, stride: Any, together: bool, t: int) -> None:
    p, zero, floor = padding(work), splat(0.0), splat(FLOOR)
    for slot in range(stride.first, stride.first + stride.n):
        inverse = splat(work.inverse[slot])
        for j in range(slot * p, (slot + 1) * p, width(work.weight)):
            x = load(work.weight, j) * inverse
            store(work.message, j, by_sign(zero - x, x, larger(x, floor)))


@for_inputs(Inputs, count)
def _count(inputs: Any, work: Any, stride: Any, depth: int, renew: bool) -> None:
    pass


@for_inputs(Inputs, write_counts)
def _write_counts(inputs: Any, outputs: Any, work: Any, b: int, slot: int, forward: bool) -> None:
    pass
