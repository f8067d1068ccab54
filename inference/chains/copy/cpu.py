r"""Copy chains on the CPU: the kernels of `cpu_moves` and `cpu_paths` behind the operators, all in float64.

Sequences that the sweeps are not sure of, since they lean on weights too far apart, are computed again by logarithms,
in plain torch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...numerics.memory import empty_like
from ...numerics.threads import in_parallel, ranges
from ..cpu_parts import sweep
from ..cpu_steps import GROUP, padded
from ..cpu_sweeps import workspace
from . import op, plain
from .cpu_moves import FLOOR, Inputs, Outputs
from .cpu_paths import Tables, sample_range, viterbi_range

_MIN_WORK = 1 << 16  # weights that repay a second thread
_WIDE = 32  # states that fill a processor's units, so that sequences gain nothing side by side
Results = tuple[Tensor, ...]


@op.evidence.kernel("cpu")
def log_normalizer(*tables: Any) -> Results:
    return _smooth(plain.log_normalizer, tables)


@op.smooth.kernel("cpu")
def smooth(*tables: Any) -> Results:
    _, fresh, _, _ = tables
    return _smooth(plain.smooth, tables, state=_new(tables, fresh), redraw=_new(tables, fresh[:, :, 0]))


@op.marginals.kernel("cpu")
def marginals(*tables: Any) -> Results:
    _, fresh, held, _ = tables
    shares = {"state": _new(tables, fresh), "held": _new(tables, held), "initial": _new(tables, fresh[:, 0])}
    return _smooth(plain.marginals, tables, **shares)


@op.filter.kernel("cpu")
def filter(*tables: Any) -> Results:
    (increment, *beliefs, failed), certain, _ = _filter(tables)
    results = increment, *(belief.to(tables[1].dtype) for belief in beliefs), failed
    return _answer(plain.filter, tables, certain, results)


@op.viterbi.kernel("cpu")
def viterbi(*tables: Any) -> Results:
    _, log_fresh, _, lengths = tables
    arrays, log_sum = _read(*tables)
    path = lengths.new_full(log_fresh.shape[:2], -1)
    redraw, gain = torch.zeros_like(path, dtype=torch.bool), torch.zeros_like(path, dtype=torch.float64)
    failed = torch.full_like(lengths, -1)
    _over_sequences(viterbi_range, arrays, path, redraw, gain, failed)
    return path, redraw, (gain.sum(-1) + log_sum).to(log_fresh.dtype), failed


@op.sample.kernel("cpu")
def sample(*tables_and_uniform: Any) -> Results:
    *tables, uniform = tables_and_uniform
    (_, state, _, failed), certain, arrays = _filter(tables)
    path = torch.full(uniform.shape[:3], -1)
    redraw = torch.zeros_like(path, dtype=torch.bool)
    _over_sequences(sample_range, arrays, state, failed, uniform, path, redraw)
    doubtful = _doubtful(certain, failed)
    if len(doubtful):
        again = plain.sample(*_selected(tables, doubtful), uniform[:, doubtful], exact=True)
        path[:, doubtful], redraw[:, doubtful], failed[doubtful] = again
    return path, redraw, failed


def _filter(tables: Any) -> tuple[Results, np.ndarray, Tables]:
    """The results of `filter` in float64, of which sequences they are certain, and the tables as arrays."""
    fresh = tables[1]
    arrays, log_sum = _read(*tables)
    state, redraw, increment = _new(tables, fresh), _new(tables, fresh[:, :, 0]), _new(tables, fresh[:, :, 0])
    _, certain, failed = _sweep(arrays, filters=True, state=state, redraw=redraw, log_increment=increment)
    increment[:, 0] += log_sum
    return (increment, state, redraw, failed), certain, arrays


def _smooth(twin: Callable[..., Results], tables: Any, **wanted: Tensor) -> Results:
    """log p(x), those of the `Outputs` that are wanted, and the failed steps."""
    arrays, log_sum = _read(*tables)
    value, certain, failed = _sweep(arrays, filters=not wanted, **wanted)
    results = *(table.to(tables[1].dtype) for table in (value + log_sum, *wanted.values())), failed
    return _answer(twin, tables, certain, results)


def _sweep(tables: Tables, *, filters: bool, **wanted: Tensor) -> tuple[Tensor, np.ndarray, Tensor]:
    """Fill the wanted tables of the `Outputs`; log p(x), of which sequences they are certain, and the failed steps."""
    n, n_steps, n_states = tables.log_fresh.shape
    start = np.zeros((n, padded(n_states, 8)))
    start[:, :n_states] = tables.start
    inputs = Inputs(
        log_fresh=tables.log_fresh.ravel(),
        log_held=tables.log_held.ravel(),
        alike=int(tables.log_held.shape[2] < n_states),
        start=start.ravel(),
        start_of=np.arange(n),
        table_of=np.zeros(n, np.int64),
        lengths=tables.lengths,
        n_steps=n_steps,
        n_states=n_states,
        counted_at_once=n_steps + 1,
        filters=int(filters),
    )
    value, failed = torch.empty(n, dtype=torch.float64), torch.full((n,), -1)
    certain: Any = np.ones((n, 2), np.uint8)
    arrays: Any = dict.fromkeys(Outputs._fields, np.empty(0))
    arrays |= {name: table.view(-1).numpy() for name, table in wanted.items()}
    arrays |= {"log_normalizer": value.numpy(), "certain": certain.ravel(), "failed": failed.numpy()}
    room = partial(workspace, n_states, torch.float64, tables=2, kept=0 if filters else start.shape[1])
    # the tables of several wide sequences would not stay in a near cache
    sweep(inputs, Outputs(**arrays), room, smoothing=not filters, side_by_side=1 if start.shape[1] >= _WIDE else GROUP)
    return value, certain.all(1), failed


def _read(log_initial: Tensor | None, log_fresh: Tensor, log_held: Tensor, lengths: Tensor) -> tuple[Tables, Tensor]:
    """The tables as arrays, and the logarithm of what the initial table was divided by, [N]; all in float64."""
    if log_initial is None:
        log_start = torch.full_like(log_fresh[:, 0], -torch.inf, dtype=torch.float64)
        log_sum = torch.zeros_like(log_start[:, 0])
    else:
        log_sum = log_initial.double().logsumexp(-1)
        log_start = log_initial.double().log_softmax(-1)  # not less log_sum, which beside 1e30 is rounded
    fresh, held, start = (_array(table.double()) for table in (log_fresh, log_held, log_start))
    # 0 only for what is impossible; by numpy, as torch would wake its threads for it
    belief = np.where(start > -np.inf, np.maximum(np.exp(start), FLOOR), 0.0)
    return Tables(fresh, held, start, belief, _array(lengths)), log_sum


def _over_sequences(kernel: Callable[..., None], tables: Tables, *others: Tensor) -> None:
    """Call `kernel(n0, n1, tables, *others)` on ranges of sequences that cover them all."""
    sequences, steps, states = tables.log_fresh.shape
    arrays = map(_array, others)
    arguments = tables, *arrays
    parts = ranges(sequences, max(1, -(-_MIN_WORK // (steps * states))))
    in_parallel([partial(kernel, *part, *arguments) for part in parts])


def _doubtful(certain: np.ndarray, failed: Tensor) -> Tensor:
    """The sequences whose results are neither certain nor impossible."""
    return (~torch.from_numpy(certain) & (failed < 0)).nonzero().squeeze(-1)


def _answer(twin: Callable[..., Results], tables: Any, certain: np.ndarray, results: Results) -> Results:
    """The results, those of doubtful sequences replaced by the twin's in logarithms."""
    doubtful = _doubtful(certain, results[-1])
    if len(doubtful):
        for result, exact in zip(results, twin(*_selected(tables, doubtful), exact=True), strict=True):
            result[doubtful] = exact.to(result)
    return results


def _selected(tables: Any, index: Any) -> Any:
    """The tables of some sequences, in float64."""
    return *(None if table is None else table.detach()[index].double() for table in tables[:3]), tables[3][index]


def _array(table: Tensor) -> Any:
    return table.detach().contiguous().numpy()


def _new(tables: Any, like: Tensor) -> Tensor:
    """A new tensor of a shape, in float64; zeros if some sequence is not going to fill its part of it."""
    if bool((tables[3] < tables[1].shape[1]).any()):
        return torch.zeros(like.shape, dtype=torch.float64)
    return empty_like(like, torch.float64)
