"""Factored copy chains on the CPU, by the kernels of `cpu_moves` for few sequences, and of `cpu_lanes` for many.

The states' table is divided by its largest entry, the gates of each step by the larger, the likelihoods of each step by
the largest. The logarithms of these divisors and of the normalisers of the forward sweep add up to log p(x). If the
kernels are not certain of a sequence, its tables are multiplied out, and the kernels of general copy chains take it.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...numerics.threads import sum_of_steps, zeros
from ..copy import op as general
from ..cpu_parts import sweep
from ..cpu_steps import padded
from ..cpu_sweeps import LEAST, RENEW, TINY, workspace
from ..markov.cpu_scaled import MIXES, entries
from . import op
from .cpu_lanes import faster_side_by_side, sweep_side_by_side
from .cpu_moves import Inputs, Outputs
from .cpu_stretches import is_long, sweep_in_stretches
from .plain import multiplied_out

Results = tuple[Tensor, ...]


class _Scale(NamedTuple):
    """The divisors of the tables of each sequence, as logarithms."""

    first: np.ndarray  # [B], the largest of the states
    moves: np.ndarray  # [B, T] or [B, 1], the larger gate of each step, with that of a fresh state
    least: np.ndarray  # [B], the least weight above 0 of a redraw of a state, after division
    lengths: np.ndarray

    def of_all(self) -> np.ndarray:
        """The log divisors of whole sequences."""
        after = self.lengths - 1
        if self.moves.shape[1] == 1:
            return self.first + np.where(after > 0, self.moves[:, 0], 0.0) * after
        sums = np.concatenate([np.zeros((len(after), 1)), self.moves[:, 1:].cumsum(1)], 1)
        return self.first + np.take_along_axis(sums, after[:, None], 1)[:, 0]

    def of_steps(self, n_steps: int) -> np.ndarray:
        """The log divisors of each step of each sequence, [B, T]."""
        steps = np.arange(n_steps)
        return np.where(steps < self.lengths[:, None], np.where(steps == 0, self.first[:, None], self.moves), 0.0)


def _prepare(*tables: Tensor) -> tuple[Inputs, _Scale]:
    log_redraw, log_hold, log_state, log_likelihood, lengths = tables
    dtype, (n_steps, n_states) = log_likelihood.dtype, log_likelihood.shape[-2:]
    table_axes = np.broadcast_shapes(log_redraw.shape[:-1], log_hold.shape[:-1], log_state.shape[:-1])
    gates = max(log_redraw.shape[-1], log_hold.shape[-1])
    redraw, of = entries(log_redraw.double().expand(*table_axes, gates), 1, lengths.shape)
    hold, _ = entries(log_hold.double().expand(*table_axes, gates), 1, lengths.shape)
    state, _ = entries(log_state.double().expand(*table_axes, n_states), 1, lengths.shape)
    top = state.max(1)
    top = np.where(np.isfinite(top), top, 0.0)
    start = np.exp(state - top[:, None])
    redraw = redraw + top[:, None]
    moves = np.maximum(redraw, hold)
    moves = np.where(np.isfinite(moves), moves, 0.0)
    redraw, hold = np.exp(redraw - moves), np.exp(hold - moves)
    likelihood, likelihood_of = entries(log_likelihood, 2, lengths.shape)
    number, counted = likelihood.dtype.type, lengths.reshape(-1).contiguous().numpy()
    wide = zeros(len(start), padded(n_states, dtype.itemsize), dtype=dtype).numpy()
    wide[:, :n_states] = start
    inputs = Inputs(
        log_likelihood=likelihood.ravel(),
        likelihood_of=likelihood_of,
        start=wide.ravel(),
        start_of=of,
        padding=wide.shape[1],
        hold=hold.astype(number).ravel(),
        redraw=redraw.astype(number).ravel(),
        table_of=of,
        gates=gates,
        lengths=counted,
        n_steps=n_steps,
        n_states=n_states,
        counted_at_once=RENEW,
        tiny=number(TINY[dtype]),
        least=number(LEAST[dtype]),
    )
    drawn = redraw if gates == 1 else redraw[:, 1:]  # the gate of the first step is not used
    least = np.fmin.reduce(drawn, 1, initial=1.0) * np.where(start > 0, start, 1.0).min(1)
    return inputs, _Scale(top[of], moves[of], least[of], counted)


def _new(lengths: Tensor, like: Tensor, *shape: int) -> Tensor:
    """A new table; zeros if some sequence does not fill its part."""
    made = torch.empty(lengths.numel(), *shape, dtype=like.dtype)
    return made.zero_() if bool((lengths < like.shape[-2]).any()) else made


def _sweep(inputs: Inputs, like: Tensor, **tables: Tensor) -> Any:
    """Fill the tables of the `Outputs`; whether the sweeps in both directions kept all digits, by sequence [B]."""
    certain, none = np.ones((len(inputs.lengths), 2), np.uint8), np.empty(0, inputs.start.dtype)
    arrays: dict[str, Any] = {name: table.view(-1).numpy() for name, table in tables.items()}
    outputs = Outputs(**{"log_increment": none, "held": none, "counts": none, "certain": certain.ravel()} | arrays)
    if faster_side_by_side(inputs):
        sweep_side_by_side(inputs, outputs)
        return certain.all(1)
    if is_long(inputs):
        if sweep_in_stretches(inputs, outputs):
            return certain.all(1)
        outputs.counts[:], certain[:] = 0, 1
    counted = padded(inputs.n_states, like.itemsize) if outputs.counts.size else 0
    room = partial(workspace, inputs.n_states, like.dtype, kept=1, counted=counted)
    sweep(inputs, outputs, room, smoothing=counted > 0)
    return certain.all(1)


def _evidence_and_state(lengths: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Tables for the results of every sweep: float64 numbers [B], and a table of states."""
    total = torch.empty(lengths.numel(), dtype=torch.float64)
    return total, torch.empty(lengths.numel(), *like.shape[-2:], dtype=like.dtype)


@op.filter.kernel("cpu")
def filter(*tables: Tensor) -> Results:
    (inputs, scale), (like, lengths) = _prepare(*tables), tables[-2:]
    (total, state), steps = _evidence_and_state(lengths, like), like.shape[-2]
    increment, redraw = torch.empty(lengths.numel(), steps, dtype=like.dtype), _new(lengths, like, steps)
    certain = _sweep(inputs, like, log_normalizer=total, state=state, log_increment=increment, redraw=redraw)
    total += torch.from_numpy(scale.of_all())
    increment += torch.from_numpy(scale.of_steps(steps)).to(like)
    redraw[:, :1] = 1.0
    certain &= scale.least >= MIXES[like.dtype]

    def exactly(*tables: Any) -> Results:
        increment, filtered, drawn, failed = general.filter(*tables)
        return sum_of_steps(increment), filtered, increment, drawn, failed

    return _answer(tables, certain, (total.to(like), state, increment, redraw), exactly)


@op.posterior.kernel("cpu")
def posterior(*tables: Tensor) -> Results:
    (inputs, scale), (like, lengths) = _prepare(*tables), tables[-2:]
    (total, state), (steps, states) = _evidence_and_state(lengths, like), like.shape[-2:]
    redraw, held = _new(lengths, like, steps), _new(lengths, like, steps)
    fresh = zeros(lengths.numel(), states, dtype=like.dtype)
    certain = _sweep(inputs, like, log_normalizer=total, state=state, redraw=redraw, held=held, counts=fresh)
    total += torch.from_numpy(scale.of_all())
    redraw[:, :1], held[:, :1] = 1.0, 0.0
    fresh += state[:, :1].sum(1)

    def exactly(*tables: Any) -> Results:
        value, drawn, kept, _, failed = general.marginals(*tables)
        return value, drawn + kept, drawn.sum(-1), kept.sum(-1), drawn.sum(-2), failed

    return _answer(tables, certain, (total.to(like), state, redraw, held, fresh), exactly)


def _answer(tables: Any, certain: np.ndarray, results: Results, exactly: Any) -> Results:
    """The results, with uncertain sequences from the chain multiplied out, and failed steps."""
    *factors, lengths = tables
    failed = torch.full((lengths.numel(),), -1)
    (doubtful,) = np.nonzero(~certain)
    if len(doubtful):
        picked = [
            torch.from_numpy(rows[of[doubtful]])
            for rows, of in (entries(table, n, lengths.shape) for table, n in zip(factors, (1, 1, 1, 2), strict=True))
        ]
        fresh, held = multiplied_out(*(table.double() for table in picked))
        *exact, failed[doubtful] = exactly(None, fresh, held.expand_as(fresh), lengths.reshape(-1)[doubtful])
        for table, rows in zip(results, exact, strict=True):
            table[doubtful] = rows.to(table)
    return tuple(table.reshape((*lengths.shape, *table.shape[1:])) for table in (*results, failed))
