"""Linear Gaussian chains on a GPU: the Triton kernels behind the operators.

As on the CPU, covariances come first, of every set of them, then the means of all sequences, all in float64. Diffuse
starts, and more states or features than registers hold, are left to the plain form.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...numerics.gpu import launch, triton
from ...numerics.gpu_matrices import beside, warps
from ...numerics.op import Call
from . import op
from .cuda_means import filter_means, score_means, smooth_means
from .cuda_score import score_sets
from .cuda_sets import filter_sets, smooth_sets, triangularize
from .gradient import Score, gradients
from .steps import SCALE
from .tables import OWN_AXES, Tables

Results = tuple[Tensor, ...]
_MOST_STATES, _MOST_FEATURES = 32, 64
_SAME = 8.0 * torch.finfo(torch.float64).eps  # of a row's norm: the limit for "no change"
_OF_SETS = "transition", "state_factor", "emission", "observation_factor", "initial_factor"
_OF_SEQUENCES = "x", "transition_offset", "emission_offset", "initial_mean"
_SIZES = "STATES", "FEATURES"
_SCORES = {"transition": (0, 0), "state_factor": (0, 0), "emission": (1, 0), "observation_factor": (1, 1)}  # of _SIZES


def _takes(*inputs: Any) -> bool:
    tables = Tables(*inputs[: len(Tables._fields)])
    n_features, n_states = tables.emission.shape[-2:]
    return not tables.n_diffuse and n_states <= _MOST_STATES and n_features <= _MOST_FEATURES


class Gains(NamedTuple):
    """Of the sets; row min(t, steady) is that of step t."""

    white: Tensor  # [C, T, F, F], F_t^-1/2, a lower triangle
    gain: Tensor  # [C, T, L, F], K_t F_t^1/2
    constant: Tensor  # [C, T] of log p(x_t | ...)
    filtered: Tensor | None  # [C, T, L, L], as below
    drift: Tensor | None  # [C, T, L, F]
    back: Tensor | None  # [C, T, L, L]
    stays: Tensor | None  # [C, T, L, L]
    covariance: Tensor | None  # after each observation
    predicted: Tensor | None  # before it
    steady: Tensor  # [C]
    fault: Tensor  # [C]


class Job(NamedTuple):
    """Chains that are laid out for kernels."""

    tables: Tables
    of: dict[str, Tensor]  # the tables, each with one axis of sets, or of sequences
    seen: Tensor | None  # [C, T, F]
    lengths: Tensor  # [C]
    set_of: Tensor  # [N]

    @property
    def sizes(self) -> dict[str, int]:
        """Of the state and the features, and of the tiles that hold them."""
        n_features, n_states = self.tables.emission.shape[-2:]
        sides = {"SIDE": triton.next_power_of_2(n_states), "WIDE": triton.next_power_of_2(n_features)}
        return {"STATES": n_states, "FEATURES": n_features, **sides}

    def new(self, *axes: int, by_set: bool = False, dtype: torch.dtype | None = None) -> Tensor:
        shape = self.tables.shared_shape if by_set else self.tables.batch_shape
        return self.tables.x.new_empty((*shape, *axes), dtype=dtype)

    def over_sets(self, kernel: Any, *arguments: Any, **options: Any) -> None:
        """Launch a program a set."""
        sizes = self.sizes
        n_warps = warps(sizes["SIDE"] * max(sizes["SIDE"], sizes["WIDE"]))
        launch(kernel, (len(self.lengths),), *arguments, self.tables.n_steps, **sizes, **options, num_warps=n_warps)

    def over_sequences(self, kernel: Any, n: int, gains: Gains, *tables: Any) -> None:
        """Launch programs of enough sequences that no lane is idle."""
        sizes = self.sizes
        side = max(sizes["SIDE"], sizes["WIDE"])
        sets = self.set_of, self.lengths, gains.steady, gains.fault
        options = {"SEQUENCES": beside(n, side), "num_warps": warps(side**2)}
        launch(kernel, (triton.cdiv(n, beside(n, side)),), *sets, *tables, n, self.tables.n_steps, **sizes, **options)

    def fault(self, gains: Gains) -> Tensor:
        return gains.fault[self.set_of].view(self.tables.batch_shape)


def _flat(table: Tensor, shape: torch.Size, n_own: int) -> Tensor:
    """A table with all batch axes of a shape, as one."""
    axes = table.shape[table.dim() - n_own :]
    return table.detach().expand((*shape, *axes)).reshape((shape.numel(), *axes)).contiguous()


def _job(inputs: Any) -> Job:
    tables = Tables(*inputs)
    shape, batch, device = tables.shared_shape, tables.batch_shape, tables.x.device
    of = {name: _flat(getattr(tables, name), shape, OWN_AXES[name]) for name in _OF_SETS}
    of |= {name: _flat(getattr(tables, name), batch, OWN_AXES[name]) for name in _OF_SEQUENCES}
    lengths = torch.full((), tables.n_steps, device=device) if tables.lengths is None else tables.lengths
    sets = torch.arange(shape.numel(), device=device).view(shape)
    seen = None if tables.seen is None else _flat(tables.seen, shape, 2)
    return Job(tables, of, seen, _flat(lengths, shape, 0), _flat(sets, batch, 0))


def _gains(job: Job, *, factors: bool = False, smoothing: bool = False, moments: bool = False) -> Gains:
    """Filter the sets, and keep the requested tables."""
    n_states, n_features, kind = job.sizes["STATES"], job.sizes["FEATURES"], torch.float64

    def by_step(*axes: int, dtype: torch.dtype | None = kind) -> Tensor:
        return job.new(job.tables.n_steps, *axes, by_set=True, dtype=dtype)

    square, mark = (n_states, n_states), (lambda: torch.empty_like(job.lengths))
    gains = Gains(
        by_step(n_features, n_features),
        by_step(n_states, n_features),
        by_step(),
        by_step(*square) if factors or smoothing else None,
        by_step(n_states, n_features) if smoothing else None,
        by_step(*square) if smoothing else None,
        by_step(*square) if smoothing else None,
        by_step(*square, dtype=None) if moments else None,
        by_step(*square, dtype=None) if moments else None,
        mark(),
        mark(),
    )
    of, info = job.of, torch.finfo(job.tables.x.dtype)
    noises = _triangles(of["state_factor"]), _triangles(of["observation_factor"], job.seen)
    parameters = of["transition"], noises[0], of["emission"], noises[1]
    steps = [table.shape[1] for table in parameters]
    limits = {"LEAST": SCALE * info.eps, "LARGEST": info.max, "SAME": _SAME}
    inputs = *parameters, of["initial_factor"], job.seen, job.lengths
    job.over_sets(filter_sets, *inputs, *gains, *steps, AT_REST=job.seen is None and max(steps) <= 1, **limits)
    return gains


def _triangles(factor: Tensor, seen: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Lower triangles [C, S, n, n] in float64, of unit noise for features that are not seen."""
    size = factor.shape[-1]
    if seen is not None:
        factor = factor.expand(*seen.shape[:2], size, size).contiguous()
    out = torch.empty_like(factor, dtype=torch.float64) if out is None else out
    side, n = triton.next_power_of_2(size), factor.shape[:-2].numel()
    launch(triangularize, (n,), factor, seen, out, SIZE=size, SIDE=side, num_warps=warps(side**2))
    return out


def _forward(job: Job, gains: Gains, *by_step: Tensor | None) -> Tensor:
    """log p(x), and the requested tables: its increments, means before and after each observation, innovations."""
    total, of = job.new(dtype=torch.float64), job.of
    tables = [of[name] for name in ("transition", "transition_offset", "emission", "emission_offset")]
    inputs = of["x"], job.seen, of["initial_mean"], *tables, *gains[:3]
    steps = [table.shape[1] for table in tables]
    job.over_sequences(filter_means, len(job.set_of), gains, *inputs, total, *by_step, *steps)
    return total.to(of["x"].dtype)


def _kept(job: Job, gains: Gains) -> tuple[Tensor, Tensor, Tensor]:
    """log p(x), filtered means and innovations."""
    filtered, innovations = (job.new(job.tables.n_steps, job.sizes[name], dtype=torch.float64) for name in _SIZES)
    return _forward(job, gains, None, None, filtered, innovations), filtered, innovations


def _backward(job: Job, gains: Gains, kept: tuple[Tensor, ...], noise: Tensor | None, out: Tensor) -> Tensor:
    """Smoothed means or, with noise, draws."""
    n = out.shape[:-2].numel()
    job.over_sequences(smooth_means, n, gains, *kept, *gains[3:7], noise, out, len(job.set_of))
    return out


@op.evidence.kernel("cuda", _takes)
def evidence(*inputs: Any) -> Results:
    job = _job(inputs)
    gains = _gains(job)
    return _forward(job, gains, None, None, None, None), job.fault(gains)


@op.filter.kernel("cuda", _takes)
def filter(*inputs: Any) -> Results:
    job = _job(inputs)
    gains = _gains(job, moments=True)
    n_steps, n_states = job.tables.n_steps, job.sizes["STATES"]
    increment, (mean, predicted) = job.new(n_steps), (job.new(n_steps, n_states) for _ in range(2))
    total = _forward(job, gains, increment, predicted, mean, None)
    none = [job.new(0, n_states, n_states, by_set=True) for _ in range(2)]
    assert gains.covariance is not None
    assert gains.predicted is not None
    return total, increment, mean, gains.covariance, predicted, gains.predicted, *none, job.fault(gains)


@op.smooth.kernel("cuda", _takes)
def smooth(*given: Any) -> Results:
    job = _job(given)
    gains = _gains(job, smoothing=True)
    n_steps, n_states = job.tables.n_steps, job.sizes["STATES"]
    total, *kept = _kept(job, gains)
    mean = _backward(job, gains, (*kept,), None, job.new(n_steps, n_states))
    covariance, cross = (job.new(n, n_states, n_states, by_set=True) for n in (n_steps, n_steps - 1))
    assert gains.stays is not None
    _triangles(gains.stays, out=gains.stays)
    inputs = gains.filtered, gains.back, gains.stays, gains.steady, job.lengths
    job.over_sets(smooth_sets, *inputs, covariance, cross)
    return total, mean, covariance, cross, job.fault(gains)


@op.sample.kernel("cuda", _takes)
def sample(*inputs: Any) -> Results:
    *tables, noise, _ = inputs
    job = _job(tables)
    gains = _gains(job, smoothing=True)
    _, *kept = _kept(job, gains)
    path = torch.empty_like(noise, memory_format=torch.contiguous_format)
    return _backward(job, gains, (*kept,), noise.contiguous(), path), job.fault(gains)


@op.evidence.adjoint("cuda", _takes)
def score(call: Call, d_total: Tensor | None, _: Tensor | None) -> list[Tensor]:
    job = _job(call.inputs)
    gains, kind = _gains(job, factors=True), torch.float64
    _, *kept = _kept(job, gains)
    sizes_of = [job.sizes[name] for name in _SIZES]
    mean, later, error = (job.new(job.tables.n_steps, size, dtype=kind) for size in (sizes_of[0], *sizes_of))
    moves = job.of["transition"], job.of["emission"]
    inputs, steps = (*moves, job.seen, gains.filtered, gains.white, gains.gain), [table.shape[1] for table in moves]
    job.over_sequences(score_means, len(job.set_of), gains, *kept, *inputs, mean, later, error, *steps)
    rows = [job.of[name].shape[1] for name in _SCORES]
    sizes = [(n, sizes_of[a], sizes_of[b]) for n, (a, b) in zip(rows, _SCORES.values(), strict=True)]
    taken = Score(*(job.new(*size, by_set=True, dtype=kind) for size in (*sizes, (1, sizes_of[0], sizes_of[0]))))
    by = {f"BY_{name.upper()}": n != 1 for name, n in zip(Score._fields, rows, strict=False)}
    job.over_sets(score_sets, *inputs, job.lengths, gains.steady, gains.fault, *taken, *steps, **by)
    return gradients(job.tables, d_total, mean, later, error, taken)
