r"""One long factored copy chain: stretches of its time run side by side, like sequences in `cpu_lanes`.

Each lane has a window of the chain: a stretch whose results are wanted, and a margin before and after it. A chain
forgets its start (`chains.cpu_parts` explains this), and the results are checked where two windows meet: at the first
step of a stretch, with the messages of the previous window, which started much earlier. If a message does not agree to
rounding, wider margins are tried. If these fail too, the chain is swept step by step. The windows follow from sizes and
tables alone, so results are the same bits for any number of threads.
"""

from functools import partial
from typing import Any

import numpy as np
import torch

from ...numerics.lanes import BYTES
from ...numerics.scratch import scratch
from ...numerics.threads import in_parallel
from ..cpu_parts import agree
from .cpu_blocks import likelihoods_of, new_block, rows_of
from .cpu_lanes import sweep_lanes

_MARGINS = 1 / 32, 1 / 8  # of a stretch
_GROUPS = 1 << 3  # of as many windows as a vector has lanes, at most
_FORGOTTEN = 1 << 12  # steps of a margin, at most
_SHORT = 1 << 10  # steps of a stretch, or 256 for each state, below which margins do not pay
_BLOCK = 1 << 7  # steps of a block, at least; a number of vectors
_KEPT = 1 << 24  # bytes of likelihoods that are kept between two sweeps, the size of a cache
_GATES_READ = 256  # gates that choose the margins


def is_long(inputs: Any) -> bool:
    """Whether sequences take less time here than step by step."""
    wide = BYTES // inputs.log_likelihood.itemsize
    short = max(_SHORT, _SHORT // 4 * inputs.n_states)
    return bool((inputs.lengths >= wide * short).all())


def sweep_in_stretches(inputs: Any, outputs: Any) -> bool:
    """Filter, or smooth if there is room for counts, each sequence by itself; False if one forgets too slowly.

    Then all outputs are invalid.
    """
    for b in range(len(inputs.lengths)):
        alone = _one(inputs, b), _one_result(inputs, outputs, b)
        if not any(_sweep(*alone, *windows) for windows in _windows(alone[0])):
            return False
    return True


def _windows(inputs: Any) -> list[tuple[int, int]]:
    """The numbers of windows to try, for one sequence, with the lengths of their margins.

    By the gates alone, a chain forgets at each step by their odds; observations commonly make it forget faster.
    """
    some = slice(None, None, max(1, inputs.gates // _GATES_READ))
    with np.errstate(all="ignore"):
        rate = np.log1p(inputs.redraw[some] * inputs.start.sum() / inputs.hold[some]).mean()
        steps = -0.5 * np.log(np.finfo(inputs.start.dtype).eps) / rate
    wide = BYTES // inputs.start.itemsize
    most = max(1, min(_GROUPS, inputs.n_steps // (2 * wide * _SHORT))).bit_length() - 1
    numbers = [wide << i for i in range(most, -1, -1)]
    each = [[(n, min(_FORGOTTEN, int(inputs.n_steps // n * share))) for n in numbers] for share in _MARGINS]
    tried = [next((way for way in ways if way[1] >= steps), None) for ways in each]
    return [way for way in tried if way] or [each[-1][max(0, most - 1)]]


def _one(inputs: Any, b: int) -> Any:
    """The inputs of one sequence alone."""
    steps, k, gates, p = int(inputs.lengths[b]), inputs.n_states, inputs.gates, inputs.padding
    likelihood, table, start = inputs.likelihood_of[b], inputs.table_of[b], inputs.start_of[b]
    return inputs._replace(
        log_likelihood=inputs.log_likelihood[likelihood * inputs.n_steps * k :][: steps * k],
        start=inputs.start[start * p :][:p],
        hold=inputs.hold[table * gates :][:gates],
        redraw=inputs.redraw[table * gates :][:gates],
        n_steps=steps,
    )


def _one_result(inputs: Any, outputs: Any, b: int) -> Any:
    n, k = inputs.n_steps, inputs.n_states
    sizes = {"state": n * k, "log_normalizer": 1, "log_increment": n, "redraw": n, "held": n, "counts": k, "certain": 2}
    return outputs._replace(**{name: getattr(outputs, name)[b * size :][:size] for name, size in sizes.items()})


def _sweep(inputs: Any, outputs: Any, n_windows: int, margin: int) -> bool:
    """Filter or smooth one sequence in at most so many windows, with margins of at least `margin` steps; False if they
    are too narrow."""
    dtype, smoothing = torch.from_numpy(outputs.state).dtype, outputs.counts.size > 0
    wide, n_steps, k = BYTES // dtype.itemsize, inputs.n_steps, inputs.n_states
    rows = min(rows_of(n_steps, k, dtype), _up(margin, _BLOCK))
    margin = _up(margin, rows)
    size = _up((n_steps - margin) // n_windows, rows)
    n = -(-(n_steps - margin) // size)  # after rounding up, fewer windows may be enough

    windows = np.arange(n)
    first = windows * size
    lengths = np.minimum(size + 2 * margin, n_steps - first)
    wanted = np.stack([np.full(n, margin), np.full(n, margin + size), n_steps - first], 1)
    wanted[0, 0], wanted[-1, 1] = 0, n_steps
    same = np.zeros(n, np.int64)
    table_of = same if inputs.gates == 1 else windows
    inputs = inputs._replace(likelihood_of=windows, start_of=same, table_of=table_of, lengths=lengths, n_steps=size)
    sums, certain = np.zeros(n), np.ones(2 * n, np.uint8)
    counts = np.zeros(n * outputs.counts.size, outputs.counts.dtype)
    of_windows = outputs._replace(log_normalizer=sums, counts=counts, certain=certain)

    groups = np.full((-(-n // wide), wide), -1)
    groups.flat[:n] = windows
    steps = int(lengths.max())
    kept = likelihoods_of(steps, k, dtype, rows) if smoothing and outputs.state.nbytes <= _KEPT else 0

    with scratch(len(groups) * kept, outputs.state.dtype) as memory:
        rooms = memory.reshape(len(groups), -1) if kept else [None] * len(groups)
        blocks = [new_block(steps, k, dtype, rows, room) for room in rooms]

        def run_part(part: int, message: str) -> bool:
            tasks = [(block, groups[i : i + 1]) for i, block in enumerate(blocks)]
            in_parallel([partial(sweep_lanes, inputs, of_windows, wanted, *task, part) for task in tasks])
            tables = [getattr(block, message).reshape(-1, k, wide) for block in blocks]
            begun, ended = (
                np.concatenate([table[edge // rows] for table in tables], 1)[:, :n] for edge in (margin, margin + size)
            )
            return agree(begun[:, 1:].T, ended[:, :-1].T)

        if not run_part(0, "kept") or (not run_part(1, "met") and smoothing):
            return False
    outputs.log_normalizer[0], outputs.certain[:] = sums.sum(), certain.reshape(n, 2).min(0)
    if smoothing:
        outputs.counts[:] += counts.reshape(n, k).sum(0)
    outputs.state[n_steps * k :] = 0
    outputs.log_increment[n_steps:] = 0
    return True


def _up(number: int, unit: int) -> int:
    """The next multiple of a unit, at least one."""
    return max(1, -(-number // unit)) * unit
