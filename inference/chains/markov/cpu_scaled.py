r"""Filter and smooth chains with constant tables in probabilities, by the kernels of `chains.cpu_sweeps`.

The initial and transition tables are divided by their largest entry, the likelihoods of each step by the largest; the
logarithms of these divisors and of the normalisers of the forward sweep add up to log p(x).

Work outside the kernels is small and uses numpy, as torch would spread some of it over threads that wait for each
other.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...numerics.compilation import inlined, lean_kernel
from ...numerics.elementary import exp
from ...numerics.lanes import BYTES
from ...numerics.threads import zeros
from ..cpu_parts import sweep
from ..cpu_steps import padded
from ..cpu_sweeps import LEAST, TINY, workspace
from .cpu_matrix import Inputs, Outputs

# A filter cannot check its losses in a backward sweep. It drops numbers under TINY, but the next step replaces them by
# at least the least transition probability. If that exceeds this number, the loss is below the last digit.
MIXES = {torch.float32: 1e-13, torch.float64: 1e-130}


class Tables(NamedTuple):
    """The tables of chains as arrays. Entry b of `..._of` is the number of sequence b's table; shared tables exist
    once."""

    log_initial: np.ndarray  # [n, K]
    initial_of: np.ndarray  # [B]
    log_transition: np.ndarray  # [n, S, K, K], S = 1 (constant) or T - 1
    transition_of: np.ndarray
    log_likelihood: np.ndarray  # [n, T, K]
    likelihood_of: np.ndarray
    lengths: np.ndarray

    def select(self, sequences: np.ndarray) -> "Tables":
        """The tables of some sequences."""
        parts: list[Any] = []
        for table, of in zip(self[:6:2], self[1:6:2], strict=True):
            used, number = np.unique(of[sequences], return_inverse=True)
            parts += [table[used], number]
        return Tables._make([*parts, self.lengths[sequences]])

    def double(self) -> "Tables":
        """The same in float64."""
        return Tables._make(part.astype(np.float64, copy=False) if part.dtype.kind == "f" else part for part in self)


def flatten(log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor) -> Tables:
    """Arrays of tables whose batch axes broadcast to those of `lengths`."""
    parts: list[Any] = []
    for table, n_own in ((log_initial, 1), (log_transition, 3), (log_likelihood, 2)):
        parts += entries(table, n_own, lengths.shape)
    return Tables._make([*parts, lengths.reshape(-1).contiguous().numpy()])


def entries(table: Tensor, n_own: int, batch: torch.Size) -> tuple[np.ndarray, np.ndarray]:
    """A table with its batch axes flattened into one, and the number of each sequence's entry."""
    axes, rest = table.shape[: table.dim() - n_own], table.shape[table.dim() - n_own :]
    number = np.arange(axes.numel())
    if axes != batch:
        number = (number.reshape(axes) + np.zeros(batch, np.int64)).ravel()
    return np.ascontiguousarray(table.detach().numpy()).reshape(axes.numel(), *rest), number


class Scaled(NamedTuple):
    """The results of filtering or smoothing."""

    inputs: Inputs
    certain: Any  # [B, 2], whether the sweeps in both directions kept all digits
    log_normalizer: Tensor  # [B]
    state: Tensor  # [B, T, K]
    log_increment: Tensor  # [B, T]; empty if smoothed
    counts: Tensor  # [B, K, K]; empty if only filtered

    def sweep(self) -> None:
        total, state, increment, counts = (tensor.view(-1).numpy() for tensor in self[2:])
        p, smoothing = padded(self.inputs.n_states, self.state.itemsize), counts.size > 0
        room = {"kept": self.inputs.counted_at_once * p, "counted": p * p} if smoothing else {"kept": 0, "counted": 0}
        outputs = Outputs(state, total, increment, counts, self.certain.ravel())
        room = partial(workspace, self.inputs.n_states, self.state.dtype, **room)
        sweep(self.inputs, outputs, room, smoothing=smoothing, divided=True)


def filter_scaled(tables: Tables) -> tuple[np.ndarray, tuple[Tensor, ...]]:
    """Whether all digits were kept, by sequence; log p(x), P(s_t | x_1..t) and log p(x_t | x_1..t-1)."""
    job, scale = _prepare(tables, smoothing=False)
    job.sweep()
    increment = job.log_increment.numpy()
    moved = np.arange(job.inputs.n_steps) < tables.lengths[:, None]
    increment += np.where(moved, scale.next[:, None], 0).astype(increment.dtype)
    increment[:, 0] += (scale.first - scale.next).astype(increment.dtype)
    mixes = scale.least >= MIXES[job.state.dtype]
    return job.certain.all(1) & mixes, (scale.of_all(tables, job), job.state, job.log_increment)


def smooth_scaled(tables: Tables) -> tuple[np.ndarray, tuple[Tensor, ...]]:
    """Whether all digits were kept, by sequence; log p(x), P(s_t | x) and the expected numbers of transitions."""
    job, scale = _prepare(tables, smoothing=True)
    job.sweep()
    return job.certain.all(1), (scale.of_all(tables, job), job.state, job.counts.unsqueeze(1))


class _Scale(NamedTuple):
    """The divisors of the tables of each sequence, [B]."""

    first: np.ndarray  # log of the largest initial probability
    next: np.ndarray  # log of the largest transition probability
    least: np.ndarray  # the least transition probability after division

    def of_all(self, tables: Tables, job: Scaled) -> Tensor:
        """log p(x)."""
        total = job.log_normalizer.numpy()
        total += self.first + self.next * (tables.lengths - 1)
        return job.log_normalizer.to(job.state.dtype)


def _prepare(tables: Tables, *, smoothing: bool) -> tuple[Scaled, _Scale]:
    n, (n_steps, n_states) = len(tables.lengths), tables.log_likelihood.shape[1:]
    dtype = torch.from_numpy(tables.log_initial[:0]).dtype
    p, lanes, number = padded(n_states, dtype.itemsize), BYTES // dtype.itemsize, tables.log_initial.dtype.type
    starts, moves = len(tables.log_initial), len(tables.log_transition)
    start = zeros(starts, p, dtype=dtype).numpy()
    # torch's memory is aligned for vectors
    forward, backward = zeros(2, moves, p // lanes, p, lanes, dtype=dtype).numpy()
    first, following, least = np.empty(starts), np.empty(moves), np.empty(moves)
    _tabulate(
        tables.log_initial,
        tables.log_transition.reshape(moves, n_states**2),
        start,
        forward,
        backward,
        first,
        following,
        least,
    )
    inputs = Inputs(
        log_likelihood=tables.log_likelihood.ravel(),
        likelihood_of=tables.likelihood_of,
        start=start.ravel(),
        start_of=tables.initial_of,
        forward=forward.ravel(),
        backward=backward.ravel(),
        table_of=tables.transition_of,
        lengths=tables.lengths,
        n_steps=n_steps,
        n_states=n_states,
        counted_at_once=16 if p < 128 else 48,  # large pairs leave the nearest cache, so they are read less often
        tiny=number(TINY[dtype]),
        least=number(LEAST[dtype]),
    )
    job = Scaled(
        inputs,
        certain=np.ones((n, 2), np.uint8),
        log_normalizer=torch.empty(n, dtype=torch.float64),
        state=torch.empty(n, n_steps, n_states, dtype=dtype),
        log_increment=torch.empty(0 if smoothing else n, n_steps, dtype=dtype),
        counts=zeros(n if smoothing else 0, n_states, n_states, dtype=dtype),
    )
    of = tables.transition_of
    return job, _Scale(first[tables.initial_of], following[of], least[of])


@inlined
def _top(table: Any, n: int) -> Any:
    """The largest number of a row; 0 if it is not finite."""
    top = table[n, 0]
    for j in range(1, table.shape[1]):
        top = max(top, table[n, j])
    return top if abs(top) < np.inf else table.dtype.type(0)


@lean_kernel
def _tabulate(
    log_initial: Any,
    log_transition: Any,
    start: Any,
    forward: Any,
    backward: Any,
    first: Any,
    following: Any,
    least: Any,
) -> None:
    """Probabilities divided by the largest of their table, and its logarithm: `start` [n, P]; `forward` by panels of
    a vector's width, [n, panel, old state, lane], and `backward` the same of the transposed table; 0 in the padding
    after K."""
    n_states, lanes = log_initial.shape[1], forward.shape[3]
    for n in range(len(log_initial)):
        top = _top(log_initial, n)
        first[n] = top
        for j in range(n_states):
            start[n, j] = exp(log_initial[n, j] - top)
    for n in range(len(log_transition)):
        top, lowest = _top(log_transition, n), following.dtype.type(1)
        for i in range(n_states):
            for j in range(n_states):
                p = exp(log_transition[n, i * n_states + j] - top)
                lowest = min(lowest, p)
                forward[n, j // lanes, i, j % lanes] = p
                backward[n, i // lanes, j, i % lanes] = p
        following[n], least[n] = top, lowest
