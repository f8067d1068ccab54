r"""Filter and smooth chains with constant tables in probabilities: what surrounds the kernels of `markov_linear`.

The initial and transition tables are divided by their largest entry, the likelihoods of each step by theirs; the
logarithms of these divisors and of the normalisers of the forward pass add up to log p(x).

Everything but the kernels is small. numpy does it: torch would spread some of it over threads that wait for each other.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...numerics.lanes import BYTES
from ...numerics.workers import in_parallel
from . import cpu_linear as linear
from .cpu_tables import Tables

# A filter cannot look back to see what it lost. It drops numbers under TINY, but the next step puts at least the least
# transition probability in their place: where that exceeds this, the loss is beyond the last digit.
_MIXES = {torch.float32: 1e-13, torch.float64: 1e-130}
_MIN_HALVED = 1 << 17  # steps times states, padded, that repay a second thread for one sequence
_MIN_WORK = 1 << 16  # sequences times steps times states, padded, that repay a second thread
_FILTER = np.array([[True, False]])  # legs: forward or not, meeting or not
_SMOOTH = np.array([[True, False], [False, True]])


class Scaled(NamedTuple):
    """Chains filtered or smoothed; `certain` [B] says where no digit was lost."""

    certain: np.ndarray
    log_normalizer: Tensor  # [B]
    state: Tensor  # [B, T, K]
    log_increment: Tensor  # [B, T]; empty if smoothed
    counts: Tensor  # [B, K, K]; empty if only filtered


class _Job(NamedTuple):
    read: linear.Tables
    write: linear.Beliefs
    result: Scaled  # what is written, as tensors
    into_first: np.ndarray  # [B], log of the largest initial probability
    into_next: np.ndarray  # [B], log of the largest transition probability
    least: np.ndarray  # [B], the least transition probability


def filter_scaled(tables: Tables) -> Scaled:
    """State is P(s_t | x_1..t)."""
    job = _prepare(tables, smoothing=False)
    _go_along(tables, job, _FILTER)
    increment = job.result.log_increment.numpy()
    moved = np.arange(job.read.n_steps) < tables.lengths[:, None]
    increment += np.where(moved, job.into_next[:, None], 0).astype(increment.dtype)
    increment[:, 0] += (job.into_first - job.into_next).astype(increment.dtype)
    result = _result(tables, job)
    return result._replace(certain=result.certain & (job.least >= _MIXES[result.state.dtype]))


def smooth_scaled(tables: Tables) -> Scaled:
    """State is P(s_t | x), counts are the expected numbers of transitions."""
    job = _prepare(tables, smoothing=True)
    work = job.read.n_steps * linear.padded(job.read.n_states, job.result.state.dtype)
    if work >= _MIN_HALVED and 2 * len(tables.lengths) <= torch.get_num_threads():
        _go_from_both_ends(job)
    else:
        _go_along(tables, job, _SMOOTH)
    return _result(tables, job)


def _prepare(tables: Tables, *, smoothing: bool) -> _Job:
    n, (n_steps, n_states) = len(tables.lengths), tables.log_likelihood.shape[1:]
    dtype = torch.from_numpy(tables.log_initial[:0]).dtype
    start, into_first = _probabilities(tables.log_initial)
    matrix, into_next = _probabilities(tables.log_transition[:, 0])
    result = Scaled(
        np.ones((n, 2), np.uint8),
        torch.empty(n, dtype=torch.float64),
        torch.empty(n, n_steps, n_states, dtype=dtype),
        torch.empty(0 if smoothing else n, n_steps, dtype=dtype),
        torch.empty(n if smoothing else 0, n_states, n_states, dtype=dtype),
    )
    p = linear.padded(n_states, dtype)
    read = linear.Tables(
        tables.log_likelihood.ravel(),
        tables.likelihood_of,
        _widened(start, p).ravel(),
        tables.initial_of,
        _panels(matrix, p, dtype),
        _panels(matrix.transpose(0, 2, 1), p, dtype),
        tables.transition_of,
        tables.lengths,
        n_steps,
        n_states,
        linear.TINY[dtype],
        linear.LEAST[dtype],
    )
    state, total, increment, counts = (
        tensor.view(-1).numpy() for tensor in (result.state, result.log_normalizer, result.log_increment, result.counts)
    )
    write = linear.Beliefs(state, total, increment, counts, result.certain.ravel())
    least = matrix.min((1, 2))[tables.transition_of]
    return _Job(read, write, result, into_first[tables.initial_of], into_next[tables.transition_of], least)


def _probabilities(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """exp(table [n, ...]) over its largest entry, and the logarithm of that in float64."""
    top = table.max(tuple(range(1, table.ndim)), keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    return np.exp(table - top), top.ravel().astype(np.float64)


def _panels(matrix: np.ndarray, p: int, dtype: torch.dtype) -> np.ndarray:
    """[n, K, K] padded to [n, P, P] and stored by panels [n, panel, row, lane], flat."""
    n, n_states, _ = matrix.shape
    lanes = BYTES // dtype.itemsize
    room = torch.zeros(n, p // lanes, p, lanes, dtype=dtype).numpy()  # torch's memory begins where a vector may
    room.transpose(0, 2, 1, 3)[:, :n_states] = _widened(matrix, p).reshape(n, n_states, -1, lanes)
    return room.ravel()


def _widened(table: np.ndarray, p: int) -> np.ndarray:
    """The table with zeros up to p columns."""
    wide = np.zeros((*table.shape[:-1], p), table.dtype)
    wide[..., : table.shape[-1]] = table
    return wide


def _result(tables: Tables, job: _Job) -> Scaled:
    total = job.result.log_normalizer.numpy()
    total += job.into_first + job.into_next * (tables.lengths - 1)
    return job.result._replace(
        certain=job.result.certain.all(1), log_normalizer=job.result.log_normalizer.to(job.result.state.dtype)
    )


def _go_along(tables: Tables, job: _Job, legs: np.ndarray) -> None:
    """Sequences side by side in groups, and groups spread over threads."""
    read, dtype = job.read, job.result.state.dtype
    work = len(tables.lengths) * read.n_steps * linear.padded(read.n_states, dtype)
    n_threads = min(torch.get_num_threads(), max(1, work // _MIN_WORK))
    groups = _groups(tables, n_threads)
    shares = [groups[i::n_threads] for i in range(min(n_threads, len(groups)))]
    # made here, not by the threads: torch lets go of the interpreter for each, and they would wait for one another
    rooms = [linear.scratch(read.n_states, dtype, counts=len(legs) > 1) for _ in shares]
    if shares:
        in_parallel(
            [
                partial(linear.run, read, job.write, room, own, read.n_steps, legs)
                for room, own in zip(rooms, shares, strict=True)
            ]
        )


def _groups(tables: Tables, n_threads: int) -> np.ndarray:
    """Sequences that go side by side, [n, GROUP], -1 for none: of one table and like length where possible."""
    n = len(tables.lengths)
    size = min(linear.GROUP, max(1, n // n_threads))
    groups, place = np.full((-(-n // size), linear.GROUP), -1), np.arange(n)
    groups[place // size, place % size] = np.lexsort((-tables.lengths, tables.transition_of))
    return groups


def _go_from_both_ends(job: _Job) -> None:
    """Two threads a sequence: each sweeps from its end to the middle, and meets what the other left there."""
    read, counts = job.read, job.result.counts
    ways = [(b, forward) for b in range(len(counts)) for forward in (True, False)]
    rooms = [linear.scratch(read.n_states, counts.dtype, counts=True) for _ in ways]
    halves = np.zeros((2, counts.numel()), job.write.counts.dtype)

    def go(way: int, meeting: bool) -> None:
        b, forward = ways[way]
        alone = np.array([[b, *[-1] * (linear.GROUP - 1)]])
        write = job.write._replace(counts=halves[int(forward)])
        linear.run(read, write, rooms[way], alone, int(read.lengths[b]) // 2, np.array([[forward, meeting]]))

    for meeting in (False, True):
        in_parallel([partial(go, way, meeting) for way in range(len(ways))])
    np.sum(halves, 0, out=job.write.counts)
