r"""Filter and smooth chains with constant tables in probabilities: what surrounds the kernels of `cpu_sweeps`.

The initial and transition tables are divided by their largest entry, the likelihoods of each step by theirs; the
logarithms of these divisors and of the normalisers of the forward sweep add up to log p(x).

Everything but the kernels is small. numpy does it: torch would spread some of it over threads that wait for each other.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...numerics.lanes import BYTES
from ...numerics.threads import zeros
from .cpu_matrix import Inputs, Outputs
from .cpu_steps import padded
from .cpu_sweeps import LEAST, TINY, workspace
from .cpu_teams import go

# A filter cannot look back to see what it lost. It drops numbers under TINY, but the next step puts at least the least
# transition probability in their place: where that exceeds this, the loss is beyond the last digit.
MIXES = {torch.float32: 1e-13, torch.float64: 1e-130}


class Tables(NamedTuple):
    """The tables of chains as arrays. Entry b of `..._of` says which one sequence b has: a shared one is there once."""

    log_initial: np.ndarray  # [n, K]
    initial_of: np.ndarray  # [B]
    log_transition: np.ndarray  # [n, S, K, K], S = 1 (constant) or T - 1
    transition_of: np.ndarray
    log_likelihood: np.ndarray  # [n, T, K]
    likelihood_of: np.ndarray
    lengths: np.ndarray

    def select(self, sequences: np.ndarray) -> "Tables":
        """Those of some sequences only."""
        parts: list[Any] = []
        for table, of in zip(self[:6:2], self[1:6:2], strict=True):
            used, number = np.unique(of[sequences], return_inverse=True)
            parts += [table[used], number]
        return Tables._make([*parts, self.lengths[sequences]])

    def double(self) -> "Tables":
        """The same in float64."""
        return Tables._make(part.astype(np.float64, copy=False) if part.dtype.kind == "f" else part for part in self)


def flatten(log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor) -> Tables:
    """Of tables whose batch axes broadcast to those of `lengths`."""
    parts: list[Any] = []
    for table, n_own in ((log_initial, 1), (log_transition, 3), (log_likelihood, 2)):
        batch, own = table.shape[: table.dim() - n_own], table.shape[table.dim() - n_own :]
        number = np.arange(batch.numel()).reshape(batch) + np.zeros(lengths.shape, np.int64)
        parts += [table.detach().reshape(batch.numel(), *own).contiguous().numpy(), number.ravel()]
    return Tables._make([*parts, lengths.reshape(-1).contiguous().numpy()])


class Scaled(NamedTuple):
    """Chains filtered or smoothed."""

    inputs: Inputs
    certain: Any  # [B, 2], whether a sweep in either direction kept every digit
    log_normalizer: Tensor  # [B]
    state: Tensor  # [B, T, K]
    log_increment: Tensor  # [B, T]; empty if smoothed
    counts: Tensor  # [B, K, K]; empty if only filtered

    def go(self) -> None:
        total, state, increment, counts = (tensor.view(-1).numpy() for tensor in self[2:])
        p, smoothing = padded(self.inputs.n_states, self.state.itemsize), counts.size > 0
        room = {"kept": self.inputs.counted_at_once * p, "counted": p * p} if smoothing else {"kept": 0, "counted": 0}
        outputs = Outputs(state, total, increment, counts, self.certain.ravel())
        go(self.inputs, outputs, partial(workspace, self.inputs.n_states, self.state.dtype, **room))


def filter_scaled(tables: Tables) -> tuple[np.ndarray, tuple[Tensor, ...]]:
    """Where no digit was lost; log p(x), P(s_t | x_1..t) and log p(x_t | x_1..t-1)."""
    job, scale = _prepare(tables, smoothing=False)
    job.go()
    increment = job.log_increment.numpy()
    moved = np.arange(job.inputs.n_steps) < tables.lengths[:, None]
    increment += np.where(moved, scale.next[:, None], 0).astype(increment.dtype)
    increment[:, 0] += (scale.first - scale.next).astype(increment.dtype)
    mixes = scale.least >= MIXES[job.state.dtype]
    return job.certain.all(1) & mixes, (scale.of_all(tables, job), job.state, job.log_increment)


def smooth_scaled(tables: Tables) -> tuple[np.ndarray, tuple[Tensor, ...]]:
    """Where no digit was lost; log p(x), P(s_t | x) and the expected numbers of transitions."""
    job, scale = _prepare(tables, smoothing=True)
    job.go()
    return job.certain.all(1), (scale.of_all(tables, job), job.state, job.counts.unsqueeze(1))


class _Scale(NamedTuple):
    """What the tables of each sequence were divided by, [B]."""

    first: np.ndarray  # log of the largest initial probability
    next: np.ndarray  # log of the largest transition probability
    least: np.ndarray  # the least transition probability then

    def of_all(self, tables: Tables, job: Scaled) -> Tensor:
        """log p(x)."""
        total = job.log_normalizer.numpy()
        total += self.first + self.next * (tables.lengths - 1)
        return job.log_normalizer.to(job.state.dtype)


def _prepare(tables: Tables, *, smoothing: bool) -> tuple[Scaled, _Scale]:
    n, (n_steps, n_states) = len(tables.lengths), tables.log_likelihood.shape[1:]
    dtype = torch.from_numpy(tables.log_initial[:0]).dtype
    start, first = _probabilities(tables.log_initial)
    matrix, following = _probabilities(tables.log_transition[:, 0])
    p, number = padded(n_states, dtype.itemsize), start.dtype.type
    inputs = Inputs(
        log_likelihood=tables.log_likelihood.ravel(),
        likelihood_of=tables.likelihood_of,
        start=_widened(start, p).ravel(),
        start_of=tables.initial_of,
        forward=_panels(matrix, p, dtype),
        backward=_panels(matrix.transpose(0, 2, 1), p, dtype),
        table_of=tables.transition_of,
        lengths=tables.lengths,
        n_steps=n_steps,
        n_states=n_states,
        counted_at_once=16 if p < 128 else 48,  # large pairs leave the nearest cache: go through them less often
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
    moves = tables.transition_of
    return job, _Scale(first[tables.initial_of], following[moves], matrix.min((1, 2))[moves])


def _probabilities(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """exp(table [n, ...]) over its largest entry, and the logarithm of that in float64."""
    top = table.max(tuple(range(1, table.ndim)), keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    return np.exp(table - top), top.ravel().astype(np.float64)


def _panels(matrix: np.ndarray, p: int, dtype: torch.dtype) -> np.ndarray:
    """[n, K, K] padded to [n, P, P] and stored by panels of a vector's width, [n, panel, row, lane], flat."""
    n, n_states, _ = matrix.shape
    lanes = BYTES // dtype.itemsize
    room = zeros(n, p // lanes, p, lanes, dtype=dtype).numpy()  # torch's memory begins where a vector may
    room.transpose(0, 2, 1, 3)[:, :n_states] = _widened(matrix, p).reshape(n, n_states, p // lanes, lanes)
    return room.ravel()


def _widened(table: np.ndarray, p: int) -> np.ndarray:
    """The table with zeros up to p columns."""
    wide = np.zeros((*table.shape[:-1], p), table.dtype)
    wide[..., : table.shape[-1]] = table
    return wide
