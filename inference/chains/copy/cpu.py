r"""Copy chains on the CPU: the kernels of `cpu_recursions` and `cpu_paths` behind the operators.

Threads take whole sequences, but two share one that is alone.

Sequences that a kernel marks risky, since they lean on weights too far apart for its number format, are computed again
in float64, and if that is not enough, by logarithms in plain torch.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...numerics.memory import empty_like
from ...numerics.threads import in_parallel, ranges
from . import cpu_weights as weights
from . import op, plain
from .cpu_paths import sample_range, viterbi_range
from .cpu_recursions import (
    filter_range,
    meet_futures,
    smooth_range,
    sweep_backward,
    sweep_forward,
    sweep_futures,
)
from .cpu_weights import FINE, FLOOR, LIMITS, RISKY, Inputs, Limits, Outputs, new_block

_MIN_WORK = 1 << 16  # weights that repay a second thread


@op.evidence.kernel("cpu")
def log_normalizer(
    log_initial: Tensor | None, log_fresh: Tensor, log_held: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    tables = (log_initial, log_fresh, log_held, lengths)
    value, verdict, failed = _smooth(*tables)
    return _trusted(verdict, (value, failed), log_normalizer, plain.log_normalizer, tables)


@op.filter.kernel("cpu")
def filter(
    log_initial: Tensor | None, log_fresh: Tensor, log_held: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tables = (log_initial, log_fresh, log_held, lengths)
    results, verdict, *_ = _filter(*tables)
    return _trusted(verdict, results, filter, plain.filter, tables)


@op.smooth.kernel("cpu")
def smooth(
    log_initial: Tensor | None, log_fresh: Tensor, log_held: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tables = (log_initial, log_fresh, log_held, lengths)
    new = _maker(lengths, log_fresh.shape[1])
    state, redraw = new(log_fresh), new(log_fresh[:, :, 0])
    value, verdict, failed = _smooth(*tables, state=state, redraw=redraw)
    return _trusted(verdict, (value, state, redraw, failed), smooth, plain.smooth, tables)


@op.marginals.kernel("cpu")
def marginals(
    log_initial: Tensor | None, log_fresh: Tensor, log_held: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    tables = (log_initial, log_fresh, log_held, lengths)
    new = _maker(lengths, log_fresh.shape[1])
    fresh, held, initial = new(log_fresh), new(log_held), new(log_fresh[:, 0])
    value, verdict, failed = _smooth(*tables, fresh=fresh, held=held, initial=initial.unsqueeze(1))
    return _trusted(verdict, (value, fresh, held, initial, failed), marginals, plain.marginals, tables)


@op.viterbi.kernel("cpu")
def viterbi(
    log_initial: Tensor | None, log_fresh: Tensor, log_held: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs, log_sum = _read(log_initial, log_fresh, log_held, lengths)
    path = lengths.new_full(log_fresh.shape[:2], -1)
    redraw, gain = torch.zeros_like(path, dtype=torch.bool), torch.zeros_like(path, dtype=torch.float64)
    failed = torch.full_like(lengths, -1)
    _run(viterbi_range, log_fresh, inputs, *map(_array, (path, redraw, gain, failed)))
    return path, redraw, (gain.sum(-1) + log_sum).to(log_fresh.dtype), failed


@op.sample.kernel("cpu")
def sample(
    log_initial: Tensor | None, log_fresh: Tensor, log_held: Tensor, lengths: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    tables = _selected((log_initial, log_fresh, log_held, lengths))
    (_, _, _, failed), verdict, inputs, filtered = _filter(*tables)
    path = lengths.new_full(uniform.shape[:3], -1)
    redraw = torch.zeros_like(path, dtype=torch.bool)
    _run(sample_range, log_fresh, inputs, filtered, *map(_array, (uniform, path, redraw)))
    index = (verdict == RISKY).nonzero().squeeze(-1)
    if len(index):
        initial, fresh, held, counts = _selected(tables, index)
        again = plain.sample(initial, fresh, held, counts, uniform[:, index])
        path[:, index], redraw[:, index], failed[index] = again
    return path, redraw, failed


def _filter(log_initial: Tensor | None, log_fresh: Tensor, log_held: Tensor, lengths: Tensor) -> tuple[Any, ...]:
    """The results of `filter`, a verdict on each sequence, and what the kernel read and wrote."""
    _, steps, states = log_fresh.shape
    inputs, log_sum = _read(log_initial, log_fresh, log_held, lengths)
    new = _maker(lengths, steps)
    state, redraw = new(log_fresh), new(log_fresh[:, :, 0])
    increment = new(redraw.double())
    outputs, (_, verdict, failed) = _written(lengths, inputs, increment=increment, state=state, redraw=redraw)

    def task(n0: int, n1: int) -> None:
        block = new_block(weights.rows_at_once(steps, states), states, 0, inputs.log_fresh.dtype)
        filter_range(n0, n1, LIMITS[log_fresh.dtype], inputs, block, outputs)

    _run(task, log_fresh)
    increment[:, 0] += log_sum
    return (increment, state, redraw, failed), verdict, inputs, outputs


def _smooth(
    log_initial: Tensor | None, log_fresh: Tensor, log_held: Tensor, lengths: Tensor, **wanted: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """log_normalizer, verdict, failed; fills those `Outputs` that are wanted."""
    sequences, steps, states = log_fresh.shape
    inputs, log_sum = _read(log_initial, log_fresh, log_held, lengths)
    outputs, (value, verdict, failed) = _written(lengths, inputs, **wanted)
    limits = LIMITS[log_fresh.dtype]

    def task(n0: int, n1: int) -> None:
        rows = min(steps, max(1, weights.BLOCK // states))
        block = new_block(rows, states, -(-steps // rows), inputs.log_fresh.dtype)
        smooth_range(n0, n1, limits, inputs, block, outputs)

    alone = sequences == 1 and steps * states >= _MIN_WORK
    if not (alone and _from_both_ends(limits, inputs, outputs)):
        _run(task, log_fresh)
    return (value + log_sum).to(log_fresh.dtype), verdict, failed


def _from_both_ends(limits: Limits, inputs: Inputs, outputs: Outputs) -> bool:
    """Smooth one sequence on two threads, from both ends to the middle and back; whether that succeeded.

    It may not: a future without the belief that belongs to it may be too small to be trusted, and it does not tell
    which observation is impossible. Results do not depend on the number of threads.
    """
    steps, states, dtype = int(inputs.lengths[0]), inputs.log_fresh.shape[2], inputs.log_fresh.dtype
    rows = min(max(1, weights.BLOCK // states), -(-steps // 2))
    blocks = -(-steps // rows)
    middle = blocks // 2
    left, right = (0, 0, middle), (0, middle, blocks)
    near, far = (new_block(rows, states, part, dtype) for part in (middle, blocks - middle))
    near.kept[0] = inputs.start[0]
    (before, verdict, _), (after, trusted) = _both(
        lambda: sweep_forward(inputs, limits, left, near),
        lambda: sweep_futures(inputs, limits, right, far),
    )
    if verdict != FINE or not trusted:
        return False
    if not (outputs.state.size or outputs.fresh.size):
        met = float(near.kept[middle] @ far.future[0])
        outputs.value[0] = before + after + math.log(met) if met > 0 else math.nan
        return math.isfinite(outputs.value[0])
    near.future[:] = far.future
    _, (after, verdict) = _both(
        lambda: sweep_backward(inputs, limits, left, near, outputs),
        lambda: meet_futures(inputs, limits, right, near.kept[middle], far, outputs),
    )
    outputs.value[0] = before + after
    return verdict == FINE


def _both(*functions: Callable[[], Any]) -> list[Any]:
    results: list[Any] = [None] * len(functions)

    def call(k: int) -> None:
        results[k] = functions[k]()

    in_parallel([partial(call, k) for k in range(len(functions))])
    return results


def _read(log_initial: Tensor | None, log_fresh: Tensor, log_held: Tensor, lengths: Tensor) -> tuple[Inputs, Tensor]:
    """The tables as arrays, and the logarithm of what the initial table was divided by, [N] in float64."""
    if log_initial is None:
        log_start = torch.full_like(log_fresh[:, 0], -torch.inf, dtype=torch.float64)
        log_sum = torch.zeros_like(log_start[:, 0])
    else:
        log_sum = log_initial.double().logsumexp(-1)
        log_start = log_initial.double() - log_sum.unsqueeze(-1)
    start = _array(log_start)
    # 0 only for what is impossible; by numpy, as torch would wake its threads for it
    belief = np.where(start > -np.inf, np.maximum(np.exp(start), FLOOR), 0.0)
    return Inputs(_array(log_fresh), _array(log_held), start, belief, _array(lengths)), log_sum


def _written(lengths: Tensor, inputs: Inputs, **wanted: Tensor) -> tuple[Outputs, tuple[Tensor, Tensor, Tensor]]:
    """Where the kernels write, and the tensors of value, verdict and failed step that lie there."""
    own = torch.empty_like(lengths, dtype=torch.float64), torch.full_like(lengths, FINE), torch.full_like(lengths, -1)
    none: NDArray[Any] = np.empty((len(lengths), 1, 0), inputs.log_fresh.dtype)
    value, verdict, failed = map(_array, own)
    increment = np.empty((len(lengths), 0))
    empty = Outputs(value, verdict, failed, increment, none, none[:, 0], none, none, none)
    return empty._replace(**{name: _array(table) for name, table in wanted.items()}), own


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
        safer = function if tables[1].dtype == torch.float32 else twin
        with torch.no_grad():
            again = safer(*_selected(tables, index))
        for result, new in zip(results, again, strict=True):
            result[index] = new.to(result)
    return results


def _selected(tables: Any, index: Any = ...) -> Any:
    """The tables of some sequences, in float64."""
    return *(None if table is None else table.detach()[index].double() for table in tables[:3]), tables[3][index]


def _array(table: Tensor) -> Any:
    return table.detach().contiguous().numpy()


def _maker(lengths: Tensor, steps: int) -> Callable[[Tensor], Tensor]:
    """Makes a new tensor like another; zeros if some sequence is not going to fill its part of it."""
    if bool((lengths < steps).any()):
        return partial(torch.zeros_like, memory_format=torch.contiguous_format)
    return empty_like
