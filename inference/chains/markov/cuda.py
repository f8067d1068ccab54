"""Markov chains on a GPU: the choice of the kernel.

- `cuda_scaled` takes constant transition tables, in their dtype, and reports the sequences of which it is certain.
- `cuda_logs` takes the rest in float64: the other sequences, tables for every step, and draws.
- `cuda_paths` finds and draws paths.

Chains whose rows depend on inputs have a table for every step here, of some sequences after others.

One program processes a sequence step by step; it takes several sequences if that is faster. A flag on the device tells
the kernels which of them computes a sequence, so the host does not wait. No table is expanded to the batch axes of the
others. A few long sequences are cut into stretches of time.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...numerics.gpu import BUSY, accumulated, launch, processors, triton
from ..cuda_stretches import Kernel, Stretches, WindowResults, in_stretches, whole
from . import op, plain_rows
from .cuda_logs import filter_logs, smooth_logs
from .cuda_paths import best_paths, draw_paths
from .cuda_scaled import filter_scaled, smooth_scaled
from .cuda_steps import DEPTH

Results = tuple[Tensor, ...]

_REGISTERS = 32  # largest number of states whose table stays in registers
_BYTES = 2048  # of a table in the registers of a warp
# the bounds of `native/sweep.h`
_TINY = {torch.float32: 1e-36, torch.float64: 1e-290}
_LEAST = {torch.float32: 1e-10, torch.float64: 1e-100}
_MIXES = {torch.float32: 1e-13, torch.float64: 1e-130}


class _Tables(NamedTuple):
    """The tables of chains, each batch flattened; column b of `numbers` has the numbers of sequence b's tables."""

    log_initial: Tensor  # [n, K]
    log_transition: Tensor  # [n, S, K, K], S = 1 (constant) or T - 1
    log_likelihood: Tensor  # [n, T, K]
    numbers: Tensor  # [3, B]
    lengths: Tensor  # [B]

    @property
    def size(self) -> tuple[int, int, int]:
        """B, T and K."""
        _, n_steps, n_states = self.log_likelihood.shape
        return len(self.lengths), n_steps, n_states

    @property
    def varies(self) -> bool:
        return self.log_transition.shape[1] > 1


class _Layout(NamedTuple):
    """The distribution of sequences over programs."""

    programs: int
    sequences: int  # of a program, S
    states: int  # P, padded
    rows: int  # of a table that are read at once; all rows if the table is in registers
    warps: int

    @property
    def sizes(self) -> dict[str, Any]:
        return {"S": self.sequences, "P": self.states, "ROWS": self.rows, "num_warps": self.warps}

    def room(self, like: Tensor, vectors: int, states: int) -> Tensor:
        """Memory for some vectors of each program, if it needs any."""
        return like.new_empty(0 if self.rows == self.states else self.programs * vectors * states)


def _flatten(log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor) -> _Tables:
    if log_transition.shape[-3] == 0:  # a single step reads no table
        log_transition = log_transition.new_zeros(1, *log_transition.shape[-2:])
    flat: list[Any] = []
    numbers = []
    for table, n_own in ((log_initial, 1), (log_transition, 3), (log_likelihood, 2)):
        batch, shape = table.shape[: table.dim() - n_own], table.shape[table.dim() - n_own :]
        flat.append(table.reshape(batch.numel(), *shape).contiguous())
        number = torch.arange(batch.numel(), device=table.device).reshape(batch)
        numbers.append(number.expand(lengths.shape).reshape(-1))
    return _Tables._make([*flat, torch.stack(numbers), lengths.reshape(-1).contiguous()])


def _layout(tables: _Tables, itemsize: int) -> _Layout:
    """As many sequences per program as its registers hold, but fewer if processors would be idle."""
    n, _, states = tables.size
    p = max(2, triton.next_power_of_2(states))
    if p > _REGISTERS:
        return _Layout(n, 1, p, max(1, min(p // 2, 8 * _BYTES // (itemsize * p))), 8)
    sequences, least = max(1, _BYTES // (itemsize * p * p)), max(1, 32 // (p * p))
    while sequences > least and n < sequences * BUSY * processors(tables.lengths):
        sequences //= 2
    return _Layout(triton.cdiv(n, sequences), sequences, p, p, max(1, itemsize * p * p // _BYTES))


def _scaled(tables: _Tables, total: Tensor, state: Tensor, increment: Tensor | None, counts: Tensor | None) -> Tensor:
    """Filter, and smooth if there are counts, and report the sequences [B] of which this is certain."""
    log_transition, dtype = tables.log_transition, state.dtype
    top = log_transition.amax((1, 2, 3), keepdim=True)
    top = torch.where(top.isfinite(), top, 0)
    moves, layout = (log_transition - top).exp(), _layout(tables, state.element_size())
    certain, grid = torch.empty(tables.size[0], dtype=torch.int8, device=state.device), (layout.programs,)
    sizes = {"TINY": _TINY[dtype], "LEAST": _LEAST[dtype], **layout.sizes, "DTYPE": accumulated(state)}
    room = layout.room(state, 2 * DEPTH.value + 1, tables.size[2])
    shared = tables.log_likelihood, tables.numbers, tables.lengths
    results = total, state, increment, certain, room, *tables.size
    mixes = {"FILTERS": increment is not None, "MIXES": _MIXES[dtype]}
    least = moves.amin((1, 2, 3))
    launch(filter_scaled, grid, tables.log_initial, moves, top.view(-1), least, *shared, *results, **mixes, **sizes)
    if counts is not None:
        launch(smooth_scaled, grid, moves, *shared, state, counts, certain, room, *tables.size, **sizes)
    return certain


def _logs(
    tables: _Tables,
    total: Tensor,
    state: Tensor | None,
    log_state: Tensor | None,
    increment: Tensor | None,
    certain: Tensor | None,
) -> Tensor:
    """Filter by logarithms the sequences that are not certain; the first step of each that is impossible, or -1."""
    layout, failed = _layout(tables, 8), torch.full((tables.size[0],), -1, device=total.device)
    room, options = _room(layout, tables), {"VARIES": tables.varies, **layout.sizes}
    results = total, state, log_state, increment, failed, certain, room
    launch(filter_logs, (layout.programs,), *tables, *results, *tables.size, **options)
    return failed


def _room(layout: _Layout, tables: _Tables) -> Tensor:
    """Memory for a kernel of `cuda_logs`."""
    return layout.room(tables.numbers.new_empty(0, dtype=torch.float64), 1, tables.size[2])


def _answer(lengths: Tensor, *results: Tensor) -> Results:
    return tuple(table.reshape((*lengths.shape, *table.shape[1:])) for table in results)


def _find(kernel: Kernel, stretches: Stretches, *arguments: Tensor) -> WindowResults:
    """The results of a kernel for windows; see `in_stretches`."""
    *tables, lengths = arguments
    initial, moves, likelihood = whole(tables, (1, 3, 2), lengths.shape)
    cut = stretches.cut(likelihood), stretches.lengths(lengths.reshape(-1))
    windows = stretches.starts(initial), moves.unsqueeze(1), *cut
    _, filtered, increment, failed = _filter(*windows)
    by_step = stretches.join(filtered), stretches.join(increment)
    total, smoothed = by_step[1].sum(-1, dtype=torch.float64), None
    if kernel is _posterior:
        smoothed = _posterior(*windows)[1]
        after = stretches.join(smoothed)
        by_step = after, _pairs(by_step[0], moves, after)
    return WindowResults(failed, filtered, smoothed, [total, *by_step])


def _pairs(filtered: Tensor, moves: Tensor, smoothed: Tensor) -> Tensor:
    r"""Sums over time of $P(s_t = i, s_{t+1} = j \mid x) = a_t(i) A_{ij} P(s_{t+1} = j \mid x) / (A^\top a_t)(j)$."""
    top = moves.amax((-3, -2, -1), keepdim=True)
    matrix = (moves - torch.where(top.isfinite(), top, 0)).exp().squeeze(1).double()
    before, after = filtered[:, :-1].double(), smoothed[:, 1:].double()
    reached = before @ matrix
    share = torch.where(reached > 0, after / reached, 0)
    return (matrix * (before.mT @ share)).unsqueeze(1)


def _filter(*arguments: Tensor) -> Results:
    tables, like = _flatten(*arguments), arguments[2]
    n, n_steps, n_states = tables.size
    total, state, increment = (like.new_empty(n, *shape) for shape in ((), (n_steps, n_states), (n_steps,)))
    certain = None if tables.varies else _scaled(tables, total, state, increment, None)
    failed = _logs(tables, total, state, None, increment, certain)
    return _answer(arguments[3], total, state, increment, failed)


def _posterior(*arguments: Tensor) -> Results:
    tables, like = _flatten(*arguments), arguments[2]
    n, n_steps, n_states = tables.size
    total, state = like.new_empty(n), like.new_empty(n, n_steps, n_states)
    if tables.varies:
        certain, pairs = None, like.new_empty(n, n_steps - 1, n_states, n_states)
    else:
        pairs = like.new_zeros(n, 1, n_states, n_states, dtype=torch.float64)
        certain = _scaled(tables, total, state, None, pairs)
    log_state = state if state.dtype == torch.float64 else torch.empty_like(state, dtype=torch.float64)
    failed = _logs(tables, total, None, log_state, None, certain)
    layout, others = _layout(tables, 8), (tables.numbers, tables.lengths, log_state, state, pairs, certain)
    options = {"VARIES": tables.varies, **layout.sizes}
    read = tables.log_transition, tables.log_likelihood, *others, _room(layout, tables)
    launch(smooth_logs, (layout.programs,), *read, *tables.size, **options)
    return _answer(arguments[3], total, state, pairs[:, : arguments[1].shape[-3]].to(like.dtype), failed)


def _serve(kernel: Kernel, *arguments: Tensor) -> Results:
    """The results of a kernel; sequences with tables for every step are not cut."""
    return in_stretches(kernel, _find, *arguments) if arguments[1].shape[-3] == 1 else kernel(*arguments)


op.filter.kernel("cuda")(partial(_serve, _filter))
op.posterior.kernel("cuda")(partial(_serve, _posterior))
op.rows_filter.kernel("cuda")(partial(plain_rows.filtered, op.filter))
op.rows_posterior.kernel("cuda")(partial(plain_rows.smoothed, op.posterior))


@op.viterbi.kernel("cuda")
def viterbi(*arguments: Tensor) -> Results:
    tables = _flatten(*arguments)
    n, n_steps, n_states = tables.size
    layout, failed = _layout(tables, 8), torch.empty_like(tables.lengths)
    path = failed.new_empty(n, n_steps)
    origin = failed.new_empty(n, n_steps, n_states, dtype=torch.uint8 if n_states <= 256 else torch.int16)
    results = path, origin, failed, _room(layout, tables)
    options = {"VARIES": tables.varies, **layout.sizes}
    launch(best_paths, (layout.programs,), *tables, *results, *tables.size, **options)
    return _answer(arguments[3], path, failed)


@op.sample.kernel("cuda")
def sample(*arguments: Tensor) -> Results:
    *chains, uniform = arguments
    tables, path = _flatten(*chains), torch.empty(uniform.shape, dtype=torch.int64, device=uniform.device)
    n, n_steps, n_states = tables.size
    total, log_state = (uniform.new_empty(n, *shape, dtype=torch.float64) for shape in ((), (n_steps, n_states)))
    failed = _logs(tables, total, None, log_state, None, None)
    p, n_paths = max(2, triton.next_power_of_2(n_states)), path.numel() // n_steps
    side = max(1, 128 // p)
    options = {"VARIES": tables.varies, "S": side, "P": p, "num_warps": 1 if p <= 64 else 4}
    read = tables.log_transition, tables.numbers, tables.lengths, log_state, uniform.contiguous()
    launch(draw_paths, (triton.cdiv(n_paths, side),), *read, path, n, n_paths, n_steps, n_states, **options)
    return path, failed.view(arguments[3].shape)
