"""Mean field on one gate and one state a step, as one Triton kernel: sequences side by side, one pass over time.

Sums are float64 for any dtype of the tables, as on every device. Steps are sequential; while one is processed, the rows
of the next are loaded. O(K) for each step and sweep: four exponentials for each state, and two more for each sweep.
Each step reads 2K + 1 numbers (K + 2 if `log_held` has one column; one more if gates are given) and writes K + 3, each
once. No other memory is used.
"""

from typing import Any

from torch import Tensor

from ...numerics.gpu import constexpr, kernel, launch, position, tl, within
from ...numerics.gpu_sequences import fill, sequences, side_by_side
from . import op

_NONE = constexpr(float("-inf"))
_INFINITE = constexpr(float("inf"))


@kernel
def _log(mass):
    """log of a sum of weights, -inf of 0, NaN of NaN."""
    return tl.where(mass == 0, _NONE, tl.log(tl.where(mass == 0, 1.0, mass)))


@kernel
def _finite(top):
    """The number to subtract before exponentials are taken."""
    return tl.where(top == _NONE, 0.0, top)


@kernel
def _log_sum(logs):
    """log sum exp over states, [S, 1]."""
    top = _finite(tl.max(logs, 1, keep_dims=True))
    return top + _log(tl.sum(tl.exp(logs - top), 1, keep_dims=True))


@kernel
def _log_add(x, y):
    top = _finite(tl.maximum(x, y))
    return top + _log(tl.exp(x - top) + tl.exp(y - top))


@kernel
def _log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1 + tl.exp(-tl.abs(x)))


@kernel
def _sigmoid(x):
    grown = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, grown) / (1 + grown)


@kernel
def _first_gate(j1, j0, log_rho, log_hold):
    """The logit at which the sweeps start; NaN if no state is possible."""
    drawn, kept = log_rho + _log_sum(j1), log_hold + _log_sum(j0)
    logit = drawn - kept
    both = tl.max(((j1 > _NONE) & (j0 > _NONE)).to(tl.int32), 1, keep_dims=True) > 0
    certain = tl.where(drawn >= kept, _INFINITE, _NONE).to(tl.float64)
    return tl.where(both | (logit != logit), logit, certain)


@kernel
def _state(j1, j0, q, hold):
    """log Q(s) given Q(z), and the log of its normaliser."""
    log_q = tl.where(q == 0, 0.0, q * j1) + tl.where(hold == 0, 0.0, hold * j0)
    total = _log_sum(log_q)
    return log_q - _finite(total), total


@kernel
def _divergence(weight, log_prior):
    some = weight > 0
    return tl.where(some, weight * (tl.log(tl.where(some, weight, 1.0)) - log_prior), 0.0)


@kernel
def _row(redrawn, held, odds, gate, t, high, states, there, lanes, NARROW: constexpr):
    """The entries of the tables at one step; without gates, the odds instead of them."""
    kept, width = (there, 1) if NARROW else (lanes, states)
    seen = tl.load(redrawn + t * states, within(lanes, t, 0, high), 0.0).to(tl.float64)
    unmoved = tl.load(held + t * width, within(kept, t, 0, high), 0.0).to(tl.float64)
    log_odds = tl.load(odds + t, within(there, t, 0, high), 0.0).to(tl.float64)
    known_gate = log_odds
    if gate is not None:
        known_gate = tl.load(gate + t, within(there, t, 0, high), 0.0).to(tl.float64)
    return seen, unmoved, log_odds, known_gate


@kernel
def _filter(
    redrawn, held, fresh, odds, initial, gate, lengths, state, redraw, bound, change, failed, n, steps, states, sweeps,
    S: constexpr, P: constexpr, NARROW: constexpr, INDEPENDENT: constexpr,
):  # fmt: skip
    b, there, k, lanes, length = sequences(position(0), lengths, n, states, S, P)
    high = tl.max(length)
    by_step, by_state = b * steps, b * steps * states + k
    redrawn, held, odds = redrawn + by_state, held + (by_step if NARROW else by_state), odds + by_step
    gate = None if gate is None else gate + by_step
    log_fresh = tl.where(lanes, tl.load(fresh + b * states + k, lanes, 0.0).to(tl.float64), _NONE)
    log_q = tl.where(lanes, tl.load(initial + b * states + k, lanes, 0.0).to(tl.float64), _NONE)
    wrong = length * 0 - 1
    seen, unmoved, log_odds, known_gate = _row(redrawn, held, odds, gate, high * 0, high, states, there, lanes, NARROW)
    for t in range(high):
        following = _row(redrawn, held, odds, gate, t + 1, high, states, there, lanes, NARROW)
        log_rho, log_hold = _log_sigmoid(log_odds), _log_sigmoid(-log_odds)
        drawn, kept = log_fresh, log_q
        if INDEPENDENT:
            drawn = _log_add(log_rho + drawn, log_hold + kept)
            kept = drawn
        j1, j0 = tl.where(lanes, drawn + seen, _NONE), tl.where(lanes, kept + unmoved, _NONE)
        if gate is None:
            logit = _first_gate(j1, j0, log_rho, log_hold)
            q, hold = _sigmoid(logit), _sigmoid(-logit)
        else:
            q, hold = known_gate, 1 - known_gate
        new, total = _state(j1, j0, q, hold)
        moved = q * 0
        if gate is None:
            for _ in range(sweeps):
                belief, old = tl.exp(new), q
                logit = log_odds + tl.sum(tl.where(belief > 0, belief * (j1 - j0), 0.0), 1, keep_dims=True)
                q, hold = _sigmoid(logit), _sigmoid(-logit)
                new, total = _state(j1, j0, q, hold)
                moved = tl.abs(q - old)
        inside, row = within(there, t, 0, length), within(there, t, 0, high)
        possible = (total > _NONE) & (total < _INFINITE)
        wrong = tl.where(inside & (wrong < 0) & (possible == 0), t, wrong)
        least = total - _divergence(q, log_rho) - _divergence(hold, log_hold)
        tl.store(redraw + by_step + t, tl.where(inside, q, 0.0), row)
        tl.store(bound + by_step + t, tl.where(inside, least, 0.0), row)
        tl.store(change + by_step + t, tl.where(inside, moved, 0.0), row)
        tl.store(state + by_state + t * states, tl.where(inside & lanes, tl.exp(new), 0.0), lanes)
        log_q = new
        seen, unmoved, log_odds, known_gate = following
    tl.store(failed + b, wrong, there)
    fill(state + by_state, high, steps, states, 0.0, lanes)
    fill(redraw + by_step, high, steps, 1, 0.0, there)
    fill(bound + by_step, high, steps, 1, 0.0, there)
    fill(change + by_step, high, steps, 1, 0.0, there)


@op.filter.kernel("cuda")
def filter(*arguments: Any) -> tuple[Tensor, ...]:
    *tables, lengths, sweeps, independent = arguments
    tables = [None if table is None else table.detach().contiguous() for table in (*tables, lengths)]
    (n, steps, states), side = arguments[0].shape, side_by_side(arguments[0].shape[0], arguments[0].shape[2])
    by_step = [arguments[0].new_empty(n, steps) for _ in range(3)]
    results = arguments[0].new_empty(arguments[0].shape), *by_step, lengths.new_empty(lengths.shape)
    options = side.options | {"NARROW": arguments[1].shape[-1] == 1, "INDEPENDENT": independent}
    launch(_filter, (side.programs,), *tables, *results, n, steps, states, sweeps, **options)
    return results
