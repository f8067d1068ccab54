"""Linear Gaussian chains on the CPU: the kernels behind the operators.

Covariances first, of every set of them, then the means of all sequences; threads take ranges of either.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...numerics.op import Call
from ...numerics.threads import in_parallel, ranges
from . import op
from .cpu_backward import draw_paths, score_means, smooth_means
from .cpu_covariances import filter_factors
from .cpu_diffuse import follow_diffuse
from .cpu_means import evidence_of, filter_means
from .cpu_records import (
    Diffuse,
    Gains,
    Model,
    Sequences,
    diffuse_for,
    gains_for,
    model_of,
    room_for,
    sequences_of,
)
from .cpu_score import score_covariances
from .cpu_smoothing import filtered_covariances, smoothed_covariances
from .gradient import Score, gradients
from .tables import Tables

Results = tuple[Tensor, ...]


class Filtered(NamedTuple):
    """What a filter writes."""

    total: Any
    log_increment: Any
    mean: Any
    covariance: Any
    predicted_mean: Any
    predicted_covariance: Any
    diffuse: Any
    predicted_diffuse: Any


class Job(NamedTuple):
    """Chains whose gains are known."""

    tables: Tables
    model: Model
    sequences: Sequences
    gains: Gains
    diffuse: Diffuse

    @property
    def fault(self) -> Tensor:
        return torch.from_numpy(self.gains.fault[self.sequences.set_of]).reshape(self.tables.batch_shape)

    def over_sets(self, kernel: Callable[..., None], *others: Any) -> list[Callable[[], None]]:
        """Tasks that cover all sets of covariances."""
        inputs = (self.model, self.gains, self.diffuse, *others)
        return [partial(kernel, part, *inputs) for part in ranges(len(self.model.lengths))]

    def over_groups(self, kernel: Callable[..., None], *others: Any, keep: bool) -> list[Callable[[], None]]:
        """Tasks that cover all sequences, with the results of each step if they are kept."""
        inputs = self.model, self.sequences, self.gains, self.diffuse
        parts = ranges(len(self.sequences.groups))
        return [partial(kernel, part, *inputs, room_for(*inputs[:2], keep=keep), *others) for part in parts]

    def new(self, *axes: int, by_set: bool = False, dtype: torch.dtype | None = None) -> Tensor:
        """Zeros where not everything is going to be written."""
        shape = self.tables.shared_shape if by_set else self.tables.batch_shape
        whole = self.tables.lengths is None and not (self.gains.fault >= 0).any()
        kind = torch.empty((), dtype=dtype or self.tables.x.dtype).numpy().dtype
        # of numpy, which asks the system for large pages
        return torch.from_numpy((np.empty if whole else np.zeros)((*shape, *axes), kind))


def _job(inputs: Sequence[Any], *, smoothing: bool = False, by_step: bool = False) -> Job:
    tables = Tables(*inputs)
    model, sequences = model_of(tables), sequences_of(tables)
    job = Job(tables, model, sequences, gains_for(model, smoothing=smoothing), diffuse_for(model, by_step=by_step))
    in_parallel([partial(filter_factors, part, model, job.gains) for part in ranges(len(model.lengths))])
    if tables.n_diffuse:
        in_parallel(job.over_sets(follow_diffuse))
    return job


def _flat(table: Tensor, n_own: int) -> np.ndarray:
    """A table with its batch axes as one."""
    axes = table.shape[table.dim() - n_own :]
    return table.view(table.shape[: table.dim() - n_own].numel(), *axes).numpy()


@op.evidence.kernel("cpu")
def evidence(*inputs: Any) -> Results:
    job = _job(inputs)
    total = job.new(dtype=torch.float64)
    in_parallel(job.over_groups(evidence_of, _flat(total, 0), keep=False))
    return total.to(job.tables.x.dtype), job.fault


@op.filter.kernel("cpu")
def filter(*inputs: Any) -> Results:
    job = _job(inputs, by_step=True)
    n_steps, n_states = job.tables.n_steps, job.tables.initial_mean.shape[-1]
    total, increment = job.new(dtype=torch.float64), job.new(n_steps)
    means = [job.new(n_steps, n_states) for _ in range(2)]
    covariances = [job.new(n_steps, n_states, n_states, by_set=True) for _ in range(2)]
    n_open = n_steps if job.tables.n_diffuse else 0
    diffuse = [job.new(n_open, n_states, n_states, by_set=True) for _ in range(2)]
    by_step = [table for pair in zip(means, covariances, strict=True) for table in pair]
    out = Filtered(
        _flat(total, 0), _flat(increment, 1), *(_flat(t, 2 + i % 2) for i, t in enumerate(by_step)),
        *(_flat(t, 3) for t in diffuse),
    )  # fmt: skip
    in_parallel(job.over_groups(filter_means, out, keep=False) + job.over_sets(filtered_covariances, out))
    return total.to(increment.dtype), increment, *by_step, *diffuse, job.fault


@op.smooth.kernel("cpu")
def smooth(*inputs: Any) -> Results:
    job = _job(inputs, smoothing=True)
    n_steps, n_states = job.tables.n_steps, job.tables.initial_mean.shape[-1]
    total, mean = job.new(dtype=torch.float64), job.new(n_steps, n_states)
    covariance, cross = (job.new(n, n_states, n_states, by_set=True) for n in (n_steps, n_steps - 1))
    of_means = job.over_groups(smooth_means, _flat(total, 0), _flat(mean, 2), keep=True)
    in_parallel(of_means + job.over_sets(smoothed_covariances, _flat(covariance, 3), _flat(cross, 3)))
    return total.to(mean.dtype), mean, covariance, cross, job.fault


@op.sample.kernel("cpu")
def sample(*inputs: Any) -> Results:
    *tables, noise, diffuse_noise = inputs
    job = _job(tables, smoothing=True)
    path = torch.zeros_like(noise, memory_format=torch.contiguous_format)
    draws = [
        t.contiguous().view(len(t), job.fault.numel(), *t.shape[-n:])
        for t, n in ((noise, 2), (diffuse_noise, 1), (path, 2))
    ]
    in_parallel(job.over_groups(draw_paths, *(t.numpy() for t in draws), keep=True))
    return path, job.fault


@op.evidence.adjoint("cpu")
def score(call: Call, d_total: Tensor | None, _: Tensor | None) -> list[Tensor]:
    job = _job(call.inputs)
    tables = job.tables
    n_steps, n_features, n_states = *tables.x.shape[-2:], tables.initial_mean.shape[-1]
    kind = torch.float64
    mean, later = (job.new(n_steps, n_states, dtype=kind) for _ in range(2))
    error = job.new(n_steps, n_features, dtype=kind)
    shared = {
        "transition": (tables.transition.shape[-3], n_states, n_states),
        "state": (tables.state_factor.shape[-3], n_states, n_states),
        "emission": (tables.emission.shape[-3], n_features, n_states),
        "observation": (tables.observation_factor.shape[-3], n_features, n_features),
        "initial": (1, n_states, n_states),
    }
    taken = {name: torch.from_numpy(np.zeros((*tables.shared_shape, *axes))) for name, axes in shared.items()}
    of_means = job.over_groups(score_means, _flat(mean, 2), _flat(later, 2), _flat(error, 2), keep=True)
    in_parallel(of_means + job.over_sets(score_covariances, Score(*(_flat(t, 3) for t in taken.values()))))
    return gradients(tables, d_total, mean, later, error, Score(*taken.values()))
