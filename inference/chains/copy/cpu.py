r"""Copy chains on the CPU: the kernels of `copy_sums` and `copy_paths` as torch operators.

Threads take whole sequences, but two share one that is alone.

The log-normaliser is differentiable: its gradient is the posterior shares of the tables' entries, computed in the same
pass. A gradient that is itself to be differentiated comes from the plain-torch twin.

Sequences that a kernel marks risky, since they lean on weights too far apart for its number format, are computed again
in float64, and if that is not enough, by logarithms in plain torch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...numerics.results import empty_like
from ...numerics.workers import in_parallel, ranges
from . import cpu_sums as sums
from . import plain as vectorized
from .cpu_ends import from_both_ends
from .cpu_paths import sample_range, viterbi_range
from .cpu_weights import FINE, FLOOR, LIMITS, RISKY

_MIN_WORK = 1 << 16  # weights that repay a second thread


def log_normalizer(
    log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """log_normalizer [N], and the step at which each sequence failed, or -1, [N]."""
    tables = (log_fresh, log_held, log_initial)
    wanted = torch.is_grad_enabled() and any(table is not None and table.requires_grad for table in tables)
    value, _, _, _, failed = copy_marginals(*tables, lengths, wanted)
    return value, failed


def marginals(
    log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    """log_normalizer [N], fresh [N, T, K], held like its table, initial [N, K] or None, failed [N]."""
    value, fresh, held, initial, failed = copy_marginals(log_fresh, log_held, log_initial, lengths, True)
    return value, fresh, held, None if log_initial is None else initial, failed


@torch.library.custom_op("samplehold::copy_filter", mutates_args=())
def filter(
    log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log_increment [N, T] in float64, state [N, T, K], redraw [N, T], failed [N]."""
    tables = (log_fresh, log_held, log_initial, lengths)
    results, verdict = _filter(*tables)
    return _trusted(verdict, results, filter, vectorized.filter, tables)


@torch.library.custom_op("samplehold::copy_smooth", mutates_args=())
def smooth(
    log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log_normalizer [N], state [N, T, K], redraw [N, T], failed [N]."""
    tables = (log_fresh, log_held, log_initial, lengths)
    new = _output(lengths, log_fresh.shape[1])
    state, redraw = new(log_fresh), new(log_fresh[:, :, 0])
    value, verdict, failed = _posterior(*tables, state=state, redraw=redraw)
    return _trusted(verdict, (value, state, redraw, failed), smooth, vectorized.smooth, tables)


@torch.library.custom_op("samplehold::copy_marginals", mutates_args=())
def copy_marginals(
    log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor, wanted: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """log_normalizer [N], fresh [N, T, K], held like its table, initial [N, K], failed [N].

    The posteriors are empty unless they are wanted; `initial` is meaningless if there is no such table.
    """
    tables = (log_fresh, log_held, log_initial, lengths)
    if not wanted:
        value, verdict, failed = _posterior(*tables)
        value, failed = _trusted(verdict, (value, failed), log_normalizer, vectorized.log_normalizer, tables)
        return value, log_fresh.new_empty(0), log_held.new_empty(0), log_fresh.new_empty(0), failed
    new = _output(lengths, log_fresh.shape[1])
    fresh, held, initial = new(log_fresh), new(log_held), new(log_fresh[:, 0])
    value, verdict, failed = _posterior(*tables, fresh=fresh, held=held, initial=initial.unsqueeze(1))
    return _trusted(verdict, (value, fresh, held, initial, failed), marginals, vectorized.marginals, tables)


@torch.library.custom_op("samplehold::copy_viterbi", mutates_args=())
def viterbi(
    log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """path [N, T], redraw [N, T], log_probability [N], failed [N]."""
    path = lengths.new_full(log_fresh.shape[:2], -1)
    redraw, gain = torch.zeros_like(path, dtype=torch.bool), torch.zeros_like(path, dtype=torch.float64)
    start, log_sum = _start(log_fresh, log_initial)
    failed = torch.full_like(lengths, -1)
    _run(viterbi_range, log_fresh, *map(_array, (log_fresh, log_held, start, lengths, path, redraw, gain, failed)))
    return path, redraw, (gain.sum(-1) + log_sum).to(log_fresh.dtype), failed


@torch.library.custom_op("samplehold::copy_sample", mutates_args=())
def sample(
    log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """path [n, N, T], redraw [n, N, T], failed [N], from uniform numbers [n, N, T, 2] for gates and states."""
    tables = _selected(log_fresh, log_held, log_initial, lengths)
    (_, state, _, failed), verdict = _filter(*tables)
    path = lengths.new_full(uniform.shape[:3], -1)
    redraw = torch.zeros_like(path, dtype=torch.bool)
    start = _belief(_start(tables[0], tables[2])[0])
    arrays = map(_array, (*tables[:2], start, lengths, state, uniform, failed, path, redraw))
    _run(sample_range, log_fresh, *arrays)
    index = (verdict == RISKY).nonzero().squeeze(-1)
    if len(index):
        picked = _selected(*tables, index=index)
        path[:, index], redraw[:, index], failed[index] = vectorized.sample(*picked, uniform[:, index])
    return path, redraw, failed


def _filter(
    log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The results of `filter`, and a verdict on each sequence."""
    _, steps, states = log_fresh.shape
    tables, log_sum = _prepared(log_fresh, log_held, log_initial, lengths)
    new = _output(lengths, steps)
    state, redraw = new(log_fresh), new(log_fresh[:, :, 0])
    increment = new(redraw.double())
    verdict, failed = torch.full_like(lengths, FINE), torch.full_like(lengths, -1)
    rows = sums.weights_at_once(steps, states)
    results = tuple(map(_array, (increment, state, redraw, verdict, failed)))

    def task(n0: int, n1: int) -> None:
        buffer = sums.new_buffer(rows, states, 0, tables.log_fresh.dtype)
        sums.filter_range(n0, n1, LIMITS[log_fresh.dtype], tables, buffer, *results)

    _run(task, log_fresh)
    increment[:, 0] += log_sum
    return (increment, state, redraw, failed), verdict


def _posterior(
    log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor, **wanted: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """log_normalizer, verdict, failed; fills those tensors of a `Posterior` that are given."""
    sequences, steps, states = log_fresh.shape
    tables, log_sum = _prepared(log_fresh, log_held, log_initial, lengths)
    limits, dtype = LIMITS[log_fresh.dtype], tables.log_fresh.dtype
    posterior = sums.no_posterior(sequences, dtype)._replace(**{name: _array(part) for name, part in wanted.items()})
    value, verdict, failed = torch.empty_like(log_sum), torch.full_like(lengths, FINE), torch.full_like(lengths, -1)
    outcome = tuple(map(_array, (value, verdict, failed)))

    def task(n0: int, n1: int) -> None:
        rows = min(steps, max(1, sums.BLOCK // states))
        buffer = sums.new_buffer(rows, states, -(-steps // rows), dtype)
        sums.posterior_range(n0, n1, limits, tables, buffer, posterior, *outcome)

    alone = sequences == 1 and steps * states >= _MIN_WORK
    if not (alone and from_both_ends(limits, tables, posterior, outcome[0])):
        _run(task, log_fresh)
    return (value + log_sum).to(log_fresh.dtype), verdict, failed


def _prepared(
    log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor
) -> tuple[sums.Tables, Tensor]:
    """The tables as arrays, and the logarithm of what the initial table was divided by."""
    start, log_sum = _start(log_fresh, log_initial)
    return sums.Tables(*map(_array, (log_fresh, log_held, _belief(start), lengths))), log_sum


def _start(log_fresh: Tensor, log_initial: Tensor | None) -> tuple[Tensor, Tensor]:
    """The normalised log-belief before the first step [N, K], and the log of what it was divided by [N], in float64."""
    if log_initial is None:
        start = torch.full_like(log_fresh[:, 0], -torch.inf, dtype=torch.float64)
        return start, torch.zeros_like(start[:, 0])
    log_sum = log_initial.double().logsumexp(-1, keepdim=True)
    return log_initial.double() - log_sum, log_sum.squeeze(-1)


def _belief(log_start: Tensor) -> Tensor:
    """Its exponential, which is 0 only for what is impossible; by numpy, as torch would wake its threads for it."""
    start = log_start.numpy()
    return torch.from_numpy(np.where(start > -np.inf, np.maximum(np.exp(start), FLOOR), 0.0))


def _run(task: Callable[..., None], like: Tensor, *arguments: Any) -> None:
    """Call `task(n0, n1, *arguments)` on ranges of sequences that cover them all."""
    sequences, steps, states = like.shape
    parts = ranges(sequences, max(1, -(-_MIN_WORK // (steps * states))))
    in_parallel([partial(task, *part, *arguments) for part in parts])


def _trusted(
    verdict: Tensor, results: tuple[Tensor, ...], function: Callable[..., Any], twin: Callable[..., Any], tables: Any
) -> tuple[Any, ...]:
    """The results, those of risky sequences replaced by `function` in float64, or by its twin where that was tried."""
    index = (verdict == RISKY).nonzero().squeeze(-1)
    if len(index):
        safer = function if tables[0].dtype == torch.float32 else twin
        with torch.no_grad():
            again = safer(*_selected(*tables, index=index))
        for result, new in zip(results, again, strict=True):
            if new is not None:
                result[index] = new.to(result)
    return results


def _selected(
    log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor, index: Any = ...
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """The tables of some sequences, in float64."""
    initial = None if log_initial is None else log_initial.detach()[index].double()
    return log_fresh.detach()[index].double(), log_held.detach()[index].double(), initial, lengths[index]


def _array(table: Tensor) -> Any:
    return table.detach().contiguous().numpy()


def _output(lengths: Tensor, steps: int) -> Callable[[Tensor], Tensor]:
    """Makes a new tensor like another; zeros if some sequence is not going to fill its part of it."""
    if bool((lengths < steps).any()):
        return partial(torch.zeros_like, memory_format=torch.contiguous_format)
    return empty_like


def _empty(like: Tensor) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)


@filter.register_fake
def _(log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor) -> tuple[Tensor, ...]:
    by_step = _empty(log_fresh[:, :, 0])
    return torch.empty_like(by_step, dtype=torch.float64), _empty(log_fresh), by_step, _empty(lengths)


@smooth.register_fake
def _(log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor) -> tuple[Tensor, ...]:
    return _empty(log_fresh[:, 0, 0]), _empty(log_fresh), _empty(log_fresh[:, :, 0]), _empty(lengths)


@copy_marginals.register_fake
def _(
    log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor, wanted: bool
) -> tuple[Tensor, ...]:
    if wanted:
        shares = _empty(log_fresh), _empty(log_held), _empty(log_fresh[:, 0])
    else:
        shares = tuple(log_fresh.new_empty(0) for _ in range(3))
    return _empty(log_fresh[:, 0, 0]), *shares, _empty(lengths)


@viterbi.register_fake
def _(log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor) -> tuple[Tensor, ...]:
    path = lengths.new_empty(log_fresh.shape[:2])
    return path, torch.empty_like(path, dtype=torch.bool), _empty(log_fresh[:, 0, 0]), _empty(lengths)


@sample.register_fake
def _(
    log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor, uniform: Tensor
) -> tuple[Tensor, ...]:
    path = lengths.new_empty(uniform.shape[:3])
    return path, torch.empty_like(path, dtype=torch.bool), _empty(lengths)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tables, ctx.wanted = inputs
    _, *shares, failed = output
    ctx.mark_non_differentiable(*shares, failed)
    ctx.save_for_backward(*tables, *shares)


def _differentiate(ctx: Any, grad: Tensor, *_others: Any) -> tuple[Tensor | None, ...]:
    log_fresh, log_held, log_initial, lengths, fresh, held, initial = ctx.saved_tensors
    tables = (log_fresh, log_held, log_initial, lengths)
    if torch.is_grad_enabled():  # someone will differentiate these gradients
        _, fresh, held, initial, _ = vectorized.marginals(*tables)
    elif not ctx.wanted:
        _, fresh, held, initial, _ = marginals(*tables)
    start = None if log_initial is None or initial is None else grad.unsqueeze(-1) * initial
    by_step = grad.unsqueeze(-1).unsqueeze(-1)
    return by_step * fresh, by_step * held, start, None, None


copy_marginals.register_autograd(_differentiate, setup_context=_save)
