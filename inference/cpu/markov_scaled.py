r"""Filter and smooth chains with constant tables in probabilities: what surrounds the kernels of `markov_linear`.

The initial and transition tables are divided by their largest entry, the likelihoods of each step by theirs; the
logarithms of these divisors and of the normalisers of the forward pass add up to log p(x).
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import markov_linear as linear
from .lanes import BYTES
from .markov_tables import Tables
from .workers import in_parallel

# A filter drops numbers under TINY; the next step puts at least their share of the least transition probability in
# their place. Where that probability exceeds this, the loss is beyond the last digit.
_MIXES = {torch.float32: 1e-13, torch.float64: 1e-130}
_MIN_HALVED = 256  # steps that repay a second thread for one sequence
_MIN_WORK = 4096  # sequences times steps times states that repay a second thread
_FILTER = np.array([[True, False]])  # legs: forward or not, meeting or not
_SMOOTH = np.array([[True, False], [False, True]])


class Scaled(NamedTuple):
    """Chains filtered or smoothed."""

    state: Tensor  # [B, T, K]
    counts: Tensor  # [B, K, K]; empty if only filtered
    scale: Tensor  # [B, T], normalisers of the forward pass; 1 beyond the length
    shift: Tensor  # [B, T], log of the largest likelihood of each step; 0 beyond the length
    into_first: Tensor  # [B], log of the largest initial probability
    into_next: Tensor  # [B], log of the largest transition probability
    lengths: Tensor  # [B]
    certain: Tensor  # [B], whether no digit was lost

    def log_increment(self) -> Tensor:
        """log p(x_t | x_1..t-1), [B, T]."""
        increment = self.scale.log() + self.shift + self.into_next.unsqueeze(-1)
        increment[:, 0] += self.into_first - self.into_next
        return increment.where(torch.arange(self.shift.shape[1]) < self.lengths.unsqueeze(-1), 0)

    def log_normalizer(self) -> Tensor:
        """log p(x), [B]."""
        steps = self.scale.double().log().sum(-1) + self.shift.sum(-1, dtype=torch.float64)
        return (steps + self.into_first + self.into_next.double() * (self.lengths - 1)).to(self.state.dtype)


def filter_scaled(tables: Tables) -> Scaled:
    """State is P(s_t | x_1..t); certain only if every transition is likely enough, see `_MIXES`."""
    scaled, read, write, least = _prepare(tables, smoothing=False)
    _go_along(tables, read, write, _FILTER, scaled.counts)
    return scaled._replace(certain=scaled.certain.bool().all(-1) & (least >= _MIXES[scaled.state.dtype]))


def smooth_scaled(tables: Tables) -> Scaled:
    """State is P(s_t | x), counts are the expected numbers of transitions."""
    scaled, read, write, _ = _prepare(tables, smoothing=True)
    if read.n_steps >= _MIN_HALVED and 2 * len(tables.lengths) <= torch.get_num_threads():
        scaled = scaled._replace(counts=_go_from_both_ends(read, write, scaled.counts))
    else:
        _go_along(tables, read, write, _SMOOTH, scaled.counts)
    return scaled._replace(certain=scaled.certain.bool().all(-1))


def _prepare(tables: Tables, *, smoothing: bool) -> tuple[Scaled, linear.Tables, linear.Beliefs, Tensor]:
    """What the kernels write, twice (as tensors and as they see it), what they read, and the least transition."""
    n, (n_steps, n_states), dtype = len(tables.lengths), tables.log_likelihood.shape[1:], tables.log_initial.dtype
    start, into_first = _probabilities(tables.log_initial, 1)
    matrix, into_next = _probabilities(tables.log_transition[:, 0], 2)
    scaled = Scaled(
        torch.empty(n, n_steps, n_states, dtype=dtype),
        torch.empty(n if smoothing else 0, n_states, n_states, dtype=dtype),
        torch.empty(n, n_steps, dtype=dtype),
        torch.empty(n, n_steps, dtype=dtype),
        into_first[tables.initial_of],
        into_next[tables.transition_of],
        tables.lengths,
        torch.ones(n, 2, dtype=torch.uint8),
    )
    p = linear.padded(n_states, dtype)
    read = linear.Tables(
        _flat(tables.log_likelihood),
        _flat(tables.likelihood_of),
        _flat(torch.nn.functional.pad(start, (0, p - n_states))),
        _flat(tables.initial_of),
        _flat(_panels(matrix, p)),
        _flat(_panels(matrix.mT, p)),
        _flat(tables.transition_of),
        _flat(tables.lengths),
        n_steps,
        n_states,
        linear.TINY[dtype],
        linear.LEAST[dtype],
    )
    write = linear.Beliefs._make(map(_flat, (scaled.state, scaled.scale, scaled.shift, scaled.certain)))
    return scaled, read, write, matrix.amin((-1, -2))[tables.transition_of]


def _flat(table: Tensor) -> Any:
    return table.view(-1).numpy()


def _probabilities(table: Tensor, n_own: int) -> tuple[Tensor, Tensor]:
    """exp(table) over its largest entry, and the logarithm of that."""
    top = table.flatten(-n_own).amax(-1)
    top = top.where(top.isfinite(), 0)
    return (table - top.view(-1, *[1] * n_own)).exp_(), top


def _panels(matrix: Tensor, p: int) -> Tensor:
    """[n, K, K] padded to [n, P, P] and stored by panels [n, panel, row, lane]."""
    lanes, room = BYTES // matrix.dtype.itemsize, p - matrix.shape[-1]
    square = torch.nn.functional.pad(matrix, (0, room, 0, room))
    return square.view(-1, p, p // lanes, lanes).transpose(1, 2).contiguous()


def _go_along(tables: Tables, read: linear.Tables, write: linear.Beliefs, legs: Any, counts: Tensor) -> None:
    """Sequences side by side in groups, and groups spread over threads."""
    work = len(tables.lengths) * read.n_steps * read.n_states
    n_threads = min(torch.get_num_threads(), max(1, work // _MIN_WORK))
    groups = _groups(tables, n_threads)

    def go(own: Any) -> None:
        room = linear.scratch(read.n_states, counts.dtype, counts=len(counts) > 0)
        linear.run(read, write, _flat(counts), room, own, read.n_steps, legs)

    if len(groups):
        in_parallel([partial(go, groups[i::n_threads]) for i in range(min(n_threads, len(groups)))])


def _groups(tables: Tables, n_threads: int) -> np.ndarray:
    """Sequences that go side by side, [n, GROUP], -1 for none: of one table and like length where possible."""
    n = len(tables.lengths)
    size = min(linear.GROUP, max(1, n // n_threads))
    order = np.lexsort((-tables.lengths.numpy(), tables.transition_of.numpy()))
    filled = np.append(order, np.full(-n % size, -1)).reshape(-1, size)
    return np.pad(filled, ((0, 0), (0, linear.GROUP - size)), constant_values=-1)


def _go_from_both_ends(read: linear.Tables, write: linear.Beliefs, counts: Tensor) -> Tensor:
    """Two threads a sequence: each sweeps from its end to the middle, and meets what the other left there."""
    ways = [(b, forward) for b in range(len(counts)) for forward in (True, False)]
    rooms = [linear.scratch(read.n_states, counts.dtype, counts=True) for _ in ways]
    halves = torch.zeros(2, *counts.shape, dtype=counts.dtype)

    def go(way: int, meeting: bool) -> None:
        b, forward = ways[way]
        alone = np.array([[b, *[-1] * (linear.GROUP - 1)]])
        middle = int(read.lengths[b]) // 2
        linear.run(read, write, _flat(halves[int(forward)]), rooms[way], alone, middle, np.array([[forward, meeting]]))

    for meeting in (False, True):
        in_parallel([partial(go, way, meeting) for way in range(len(ways))])
    return halves.sum(0)
