r"""Copy chains on the CPU: the kernels of `cpu_recursions` and `cpu_paths` behind the operators.

Threads take whole sequences; two threads share a single one.

A kernel marks sequences as risky if their weights are too far apart for its number format. These are computed again in
float64, and if that is not enough, by logarithms in plain torch.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...numerics.memory import empty_like
from ...numerics.threads import in_parallel, ranges, sum_of_steps
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
Results = tuple[Tensor, ...]


@op.evidence.kernel("cpu")
def log_normalizer(*tables: Any) -> Results:
    return _smooth(log_normalizer, plain.log_normalizer, tables)


@op.smooth.kernel("cpu")
def smooth(*tables: Any) -> Results:
    state = _new(tables, tables[1])
    return _smooth(smooth, plain.smooth, tables, state=state, redraw=_new(tables, state[:, :, 0]))


@op.marginals.kernel("cpu")
def marginals(*tables: Any) -> Results:
    _, fresh, held, _ = tables
    shares = {"fresh": _new(tables, fresh), "held": _new(tables, held), "initial": _new(tables, fresh[:, 0])}
    return _smooth(marginals, plain.marginals, tables, **shares)


@op.filter.kernel("cpu")
def filter(*tables: Any) -> Results:
    results, verdict, *_ = _filter(*tables)
    return _trusted(verdict, results, filter, plain.filter, tables)


@op.viterbi.kernel("cpu")
def viterbi(*tables: Any) -> Results:
    _, log_fresh, _, lengths = tables
    inputs, log_sum = _read(*tables)
    path = lengths.new_full(log_fresh.shape[:2], -1)
    redraw, gain = torch.zeros_like(path, dtype=torch.bool), torch.zeros_like(path, dtype=torch.float64)
    failed = torch.full_like(lengths, -1)
    _run(viterbi_range, inputs, *map(_array, (path, redraw, gain, failed)))
    return path, redraw, (sum_of_steps(gain) + log_sum).to(log_fresh.dtype), failed


@op.sample.kernel("cpu")
def sample(*arguments: Any) -> Results:
    *tables, uniform = arguments
    tables = _selected(tables)
    (_, _, _, failed), verdict, inputs, filtered = _filter(*tables)
    path = torch.full(uniform.shape[:3], -1)
    redraw = torch.zeros_like(path, dtype=torch.bool)
    _run(sample_range, inputs, filtered, *map(_array, (uniform, path, redraw)))
    index = (verdict == RISKY).nonzero().squeeze(-1)
    if len(index):
        again = plain.sample(*_selected(tables, index), uniform[:, index])
        path[:, index], redraw[:, index], failed[index] = again
    return path, redraw, failed


def _filter(*tables: Any) -> tuple[Results, Tensor, Inputs, Outputs]:
    """The results of `filter`, a verdict on each sequence, and the kernel's inputs and outputs."""
    log_fresh = tables[1]
    inputs, log_sum = _read(*tables)
    state, redraw = _new(tables, log_fresh), _new(tables, log_fresh[:, :, 0])
    increment = _new(tables, redraw.double())
    outputs, (_, verdict, failed) = _written(inputs, increment=increment, state=state, redraw=redraw)

    def task(n0: int, n1: int) -> None:
        _, steps, states = log_fresh.shape
        block = new_block(weights.rows_at_once(steps, states), states, 0, inputs.log_fresh.dtype)
        filter_range(n0, n1, LIMITS[log_fresh.dtype], inputs, block, outputs)

    _run(task, inputs, pass_on=False)
    increment[:, 0] += log_sum
    return (increment, state, redraw, failed), verdict, inputs, outputs


def _smooth(function: Callable[..., Results], twin: Callable[..., Results], tables: Any, **wanted: Tensor) -> Results:
    """log p(x), the `Outputs` that are wanted, and the failed steps."""
    sequences, steps, states = tables[1].shape
    inputs, log_sum = _read(*tables)
    outputs, (value, verdict, failed) = _written(inputs, **wanted)
    limits = LIMITS[tables[1].dtype]

    def task(n0: int, n1: int) -> None:
        rows = min(steps, max(1, weights.BLOCK // states))
        block = new_block(rows, states, -(-steps // rows), inputs.log_fresh.dtype)
        smooth_range(n0, n1, limits, inputs, block, outputs)

    alone = sequences == 1 and steps * states >= _MIN_WORK
    if not (alone and _from_both_ends(limits, inputs, outputs)):
        _run(task, inputs, pass_on=False)
    results = (value + log_sum).to(tables[1].dtype), *wanted.values(), failed
    return _trusted(verdict, results, function, twin, tables)


def _from_both_ends(limits: Limits, inputs: Inputs, outputs: Outputs) -> bool:
    """Smooth one sequence on two threads, from both ends to the middle and back; whether it succeeded.

    It may fail, because a future without its belief may be too small to be reliable, and does not show which
    observation is impossible. Results do not depend on the number of threads.
    """
    steps, states, dtype = int(inputs.lengths[0]), inputs.log_fresh.shape[2], inputs.log_fresh.dtype
    rows = min(max(1, weights.BLOCK // states), -(-steps // 2))
    blocks = -(-steps // rows)
    middle = blocks // 2
    first_half, second_half = (0, 0, middle), (0, middle, blocks)
    near, far = (new_block(rows, states, part, dtype) for part in (middle, blocks - middle))
    near.kept[0] = inputs.start[0]
    (before, verdict, _), (after, trusted) = _both(
        lambda: sweep_forward(inputs, limits, first_half, near),
        lambda: sweep_futures(inputs, limits, second_half, far),
    )
    if verdict != FINE or not trusted:
        return False
    if not (outputs.state.size or outputs.fresh.size):
        met = float(near.kept[middle] @ far.future[0])
        outputs.value[0] = before + after + math.log(met) if met > 0 else math.nan
        return math.isfinite(outputs.value[0])
    near.future[:] = far.future
    _, (after, verdict) = _both(
        lambda: sweep_backward(inputs, limits, first_half, near, outputs),
        lambda: meet_futures(inputs, limits, second_half, near.kept[middle], far, outputs),
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
    """The tables as arrays, and the logarithm of the divisor of the initial table, [N] in float64."""
    if log_initial is None:
        log_start = torch.full_like(log_fresh[:, 0], -torch.inf, dtype=torch.float64)
        log_sum = torch.zeros_like(log_start[:, 0])
    else:
        log_sum = log_initial.double().logsumexp(-1)
        log_start = log_initial.double().log_softmax(-1)  # not `- log_sum`, which is rounded next to 1e30
    start = _array(log_start)
    # 0 only for impossible states; by numpy, as torch would use threads for it
    belief = np.where(start > -np.inf, np.maximum(np.exp(start), FLOOR), 0.0)
    return Inputs(_array(log_fresh), _array(log_held), start, belief, _array(lengths)), log_sum


def _written(inputs: Inputs, **wanted: Tensor) -> tuple[Outputs, tuple[Tensor, Tensor, Tensor]]:
    """The arrays for the kernels' outputs, and the tensors of value, verdict and failed step among them."""
    n = len(inputs.lengths)
    per_sequence = torch.empty(n, dtype=torch.float64), torch.full((n,), FINE), torch.full((n,), -1)
    none: Any = np.empty((n, 1, 0), inputs.log_fresh.dtype)
    outputs = Outputs(*map(_array, per_sequence), np.empty((n, 0)), none, none[:, 0], none, none, none[:, 0])  # pyright: ignore
    return outputs._replace(**{name: _array(table) for name, table in wanted.items()}), per_sequence


def _run(task: Callable[..., None], inputs: Inputs, *others: Any, pass_on: bool = True) -> None:
    """Call `task(n0, n1, inputs, *others)`, or `task(n0, n1)`, on ranges that cover all sequences."""
    sequences, steps, states = inputs.log_fresh.shape
    arguments = (inputs, *others) if pass_on else ()
    parts = ranges(sequences, max(1, -(-_MIN_WORK // (steps * states))))
    in_parallel([partial(task, *part, *arguments) for part in parts])


def _trusted(
    verdict: Tensor, results: Results, function: Callable[..., Results], twin: Callable[..., Results], tables: Any
) -> Results:
    """The results, with risky sequences from `function` in float64, or from its plain form if that was tried."""
    index = (verdict == RISKY).nonzero().squeeze(-1)
    if len(index):
        safer = function if tables[1].dtype == torch.float32 else twin
        for result, new in zip(results, safer(*_selected(tables, index)), strict=True):
            result[index] = new.to(result)
    return results


def _selected(tables: Any, index: Any = ...) -> Any:
    """The tables of some sequences, in float64."""
    return *(None if table is None else table.detach()[index].double() for table in tables[:3]), tables[3][index]


def _array(table: Tensor) -> Any:
    return table.detach().contiguous().numpy()


def _new(tables: Any, like: Tensor) -> Tensor:
    """A new tensor like another; zeros if some sequence does not fill its part."""
    ragged = bool((tables[3] < tables[1].shape[1]).any())
    return torch.zeros(like.shape, dtype=like.dtype) if ragged else empty_like(like)
