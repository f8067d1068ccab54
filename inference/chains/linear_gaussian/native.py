"""Linear Gaussian chains on the CPU: covariances first, of every set of them, then the means of all sequences.

Covariances do not depend on observations. So there is one set of them for each combination of parameters, lengths and
missing features, and the sequences of a set go side by side. Threads take ranges of sets, then of groups of sequences.
All arithmetic is in float64. No table is copied to the batch axes or steps of another one.
"""

import ctypes
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...native.library import empty, function, integers, pointer
from ...numerics.checks import broadcast_shapes
from ...numerics.native_calls import check_given, parts, refuse_lack
from ...numerics.op import Call, differentiated
from ...numerics.threads import in_parallel
from . import op
from .gradient import Score, gradients
from .parameters import root
from .tables import OF_COVARIANCES, OWN_AXES, Tables

Results = tuple[Tensor, ...]

_WITHOUT_STEPS = "initial_mean", "initial_factor"
_BY_STEP = [name for name in OWN_AXES if name not in ("x", "seen", "lengths", *_WITHOUT_STEPS)]
_DTYPES = {"seen": torch.bool, "lengths": torch.int64}
_LANES = 16  # most sequences that go side by side
_FEW = 8  # the same where a set has few
_SMALL = 8  # rows of covariances that rotations decompose faster than LAPACK does


class Job(NamedTuple):
    """Chains whose gains are known."""

    tables: Tables
    batch: torch.Size
    shared: torch.Size  # the batch axes of sets
    block: Any  # as `Chain` of native/kalman.h
    memory: tuple[Tensor | None, ...]  # that the block points to
    fault: Tensor  # [*shared]
    lacking: Any
    n_sets: int
    n_groups: int
    kept: int  # numbers that a group keeps of all steps
    seconds: float  # that all steps of a set take, about
    all_steps: bool = True  # whether every result has all steps

    @property
    def faults(self) -> Tensor:
        return self.fault.expand(self.batch).contiguous()

    def new(self, *axes: int, by_set: bool = False, dtype: torch.dtype | None = None) -> Tensor:
        """Zeros where not everything is going to be written."""
        table = empty(*(self.shared if by_set else self.batch), *axes, dtype=dtype or self.tables.x.dtype)
        return table if self.all_steps else table.zero_()

    def over_sets(self, name: str, *others: Any, dtype: torch.dtype | None = None) -> list[Callable[[], None]]:
        """Tasks that cover all sets of covariances."""
        of, given = function(name, dtype), [pointer(x) if isinstance(x, Tensor) else x for x in others]
        tasks = parts(self.n_sets, self.seconds * self.n_sets)
        return [partial(of, integers(*span), self.block, *given) for span in tasks]

    def over_groups(self, name: str, *others: Any, keep: bool = False) -> list[Callable[[], None]]:
        """Tasks that cover all sequences."""
        of, given = function(name, self.tables.x.dtype), [pointer(x) if isinstance(x, Tensor) else x for x in others]
        kept = self.kept if keep else 0

        def work(span: Any) -> None:
            workspace = empty(kept, dtype=torch.float64) if kept else None
            of(span, pointer(workspace), self.block, *given)

        return [partial(work, integers(*span)) for span in parts(self.n_groups, self.seconds * self.n_groups)]

    def run(self, tasks: list[Callable[[], None]]) -> None:
        in_parallel(tasks)
        refuse_lack(self.lacking[0])


def _seconds(n_features: int, n_states: int) -> float:
    """That a step of a set or of a group takes, about."""
    return 2e-7 + 2e-9 * (n_features + n_states) ** 2 * (n_features + 3 * n_states) / 4


def _once(table: Tensor, n_whole: int = 0) -> Tensor:
    """The entries of a table that are there more than once, once; the last `n_whole` axes stay as they are."""
    for axis, stride in enumerate(table.stride()[: table.dim() - n_whole]):
        if stride == 0 and table.shape[axis] > 1:
            table = table.narrow(axis, 0, 1)
    return table


def _wide(table: Tensor) -> Tensor:
    return table if table.dtype == torch.float64 else _once(table).double().expand(table.shape)


def _is_small(covariance: Tensor) -> bool:
    """Whether a covariance is that of few numbers; if it is none, the plain form says so."""
    rows, columns = covariance.shape[-2:] if covariance.dim() > 1 else (0, 1)
    return rows == columns <= _SMALL and not differentiated(covariance)


@root.kernel("cpu", takes=_is_small)
def root_of(covariance: Tensor) -> tuple[Tensor, bool]:
    table = _once(covariance.detach(), 2).contiguous()
    factor, sizes = torch.empty_like(table), integers(table.shape[:-2].numel(), table.shape[-1], 0, 0)
    function("covariance_roots", table.dtype)(sizes, pointer(table), pointer(factor))
    refuse_lack(sizes[3])
    return factor if factor.shape == covariance.shape else factor.expand(covariance.shape), sizes[2] > 0


def _batches(tables: Tables) -> dict[str, torch.Size]:
    """The batch axes of each table; an error unless the other axes, and the dtypes, are those of a chain."""
    (steps, f), k = tables.x.shape[-2:], tables.initial_mean.shape[-1]
    if not steps:
        raise ValueError(f"x: got shape {list(tables.x.shape)}, expected a step at least.")
    moves, found = steps - 1, {}
    shapes = (
        (steps, f), (steps, f), (), (moves, k, k), (moves, k), (moves, k, k), (steps, f, k), (steps, f), (steps, f, f),
        (k,), (k, k),
    )  # fmt: skip
    for name, table, shape in zip(OWN_AXES, tables, shapes, strict=False):
        if table is None:
            continue
        first, may_be_one = table.dim() - len(shape), name in _BY_STEP
        own = table.shape[first:]
        if own != shape and not (may_be_one and own == (1, *shape[1:])):
            expected = f"[*batch{', S' * may_be_one}{''.join(f', {size}' for size in shape[may_be_one:])}]"
            raise ValueError(f"{name}: got shape {list(table.shape)}, expected {expected}, for {steps} steps.")
        if name in _DTYPES and table.dtype != _DTYPES[name]:
            raise TypeError(f"{name}: got {table.dtype}, expected {_DTYPES[name]}.")
        found[name] = table.shape[:first]
    if tables.directions.shape != (k, tables.n_diffuse):
        raise ValueError(f"directions: got shape {list(tables.directions.shape)}, expected {k} rows.")
    return found


def _strides(table: Tensor | None, n_axes: int, n_own: int, has_steps: bool) -> list[int]:
    """Address, and numbers from an entry to the next one along batch axes, steps, rows and columns.

    They are 0 along an axis with one entry for all.
    """
    if table is None:
        return [0] * (n_axes + 4)
    strides = [0 if size == 1 else stride for size, stride in zip(table.shape, table.stride(), strict=True)]
    if not has_steps:
        strides.insert(len(strides) - n_own, 0)
    return [table.data_ptr(), *[0] * (n_axes - table.dim() + n_own), *strides, *[0] * (2 + has_steps - n_own)]


def _job(inputs: Sequence[Any], *, smoothing: bool = False, by_step: bool = False) -> Job:
    """Filtered covariances of all sets."""
    tables = Tables(*inputs)
    batches, n_steps = _batches(tables), tables.n_steps
    batch = broadcast_shapes(*batches.values())
    shared = broadcast_shapes(*(axes for name, axes in batches.items() if name in OF_COVARIANCES))
    n_features, n_states, q = tables.x.shape[-1], tables.initial_mean.shape[-1], tables.n_diffuse
    n_sets = shared.numel()
    n_each = batch.numel() // max(1, n_sets)
    lanes = 1 if n_each == 1 else _LANES if n_each >= 2 * _LANES else _FEW
    square, gain = n_states * n_states, n_features * n_states
    record = n_features * n_features + gain + 2 * square + 1 + smoothing * (2 * square + gain)
    effect = q * (2 * n_states + n_features) + (q + n_features) ** 2
    sizes = n_steps * record, n_steps * effect * (q > 0), (n_steps if by_step else 1) * (4 * q * q + 1) * (q > 0)
    memory = [empty(n_sets * size, dtype=torch.float64) for size in sizes]
    steady, fault = (empty(*shared, dtype=torch.int64) for _ in range(2))
    lacking = integers(0)
    wide = Tables(*tables[:3], *map(_wide, tables[3:]))
    directions = wide.directions.contiguous()
    numbers = array(
        "q",
        (
            len(batch), n_steps, n_features, n_states, q, n_sets, n_each, lanes, smoothing, by_step,
            tables.x.dtype == torch.float32, *(x.data_ptr() for x in (directions, *memory, steady, fault)),
            ctypes.addressof(lacking), *batch, *[1] * (len(batch) - len(shared)), *shared,
        ),
    )  # fmt: skip
    for (name, n_own), table in zip(OWN_AXES.items(), wide, strict=False):
        numbers.extend(_strides(table, len(batch), n_own, name not in _WITHOUT_STEPS))
    numbers.extend((0, *(prod(batch[axis + 1 :]) for axis in range(len(batch))), 0, 0, 0))
    block = (ctypes.c_int64 * len(numbers)).from_buffer(numbers)
    job = Job(
        tables, batch, shared, block, (*memory, steady, directions, *wide), fault, lacking, n_sets,
        n_sets * -(-n_each // lanes), n_steps * (n_features + n_states) * lanes,
        n_steps * _seconds(n_features, n_states),
    )  # fmt: skip
    job.run(job.over_sets("kalman_factors"))
    failed = n_sets > 0 and int(fault.max()) >= 0
    return job._replace(all_steps=tables.lengths is None and not failed)


@op.evidence.kernel("cpu")
def evidence(*inputs: Any) -> Results:
    job = _job(inputs)
    total = job.new()
    job.run(job.over_groups("kalman_evidence", total))
    return total, job.faults


@op.filter.kernel("cpu")
def filter(*inputs: Any) -> Results:
    job = _job(inputs, by_step=True)
    n_steps, n_states, dtype = job.tables.n_steps, job.tables.initial_mean.shape[-1], job.tables.x.dtype
    total, increment = job.new(), job.new(n_steps)
    mean, predicted = (job.new(n_steps, n_states) for _ in range(2))
    n_open = n_steps if job.tables.n_diffuse else 0
    covariances = [job.new(n, n_states, n_states, by_set=True) for n in (n_steps, n_steps, n_open, n_open)]
    job.run(
        job.over_groups("kalman_filter", total, increment, mean, predicted)
        + job.over_sets("kalman_filtered", *covariances, dtype=dtype)
    )
    covariance, before, *diffuse = covariances
    return total, increment, mean, covariance, predicted, before, *diffuse, job.faults


@op.smooth.kernel("cpu")
def smooth(*inputs: Any) -> Results:
    job = _job(inputs, smoothing=True)
    n_steps, n_states = job.tables.n_steps, job.tables.initial_mean.shape[-1]
    total, mean = job.new(), job.new(n_steps, n_states)
    covariance, cross = (job.new(n, n_states, n_states, by_set=True) for n in (n_steps, n_steps - 1))
    job.run(
        job.over_groups("kalman_smooth", total, mean, keep=True)
        + job.over_sets("kalman_smoothed", covariance, cross, dtype=mean.dtype)
    )
    return total, mean, covariance, cross, job.faults


@op.sample.kernel("cpu")
def sample(*inputs: Any) -> Results:
    *tables, noise, diffuse_noise = inputs
    job = _job(tables, smoothing=True)
    n, (n_states, n_diffuse), dtype = len(noise), job.tables.directions.shape, job.tables.x.dtype
    check_given("noise", noise, (n, *job.batch, job.tables.n_steps, n_states), dtype)
    check_given("diffuse_noise", diffuse_noise, (n, *job.batch, n_diffuse), dtype)
    noise, diffuse_noise = (x.detach().contiguous() for x in (noise, diffuse_noise))
    path = empty(*noise.shape, dtype=noise.dtype)
    path = path if job.all_steps else path.zero_()
    job.run(job.over_groups("kalman_draw", len(path), noise, diffuse_noise, path, keep=True))
    return path, job.faults


@op.evidence.adjoint("cpu")
def score(call: Call, d_total: Tensor | None, _: Tensor | None) -> list[Tensor]:
    job = _job(call.inputs)
    tables, wide = job.tables, torch.float64
    n_steps, n_features, n_states = *tables.x.shape[-2:], tables.initial_mean.shape[-1]
    mean, later = (job.new(n_steps, n_states, dtype=wide) for _ in range(2))
    error = job.new(n_steps, n_features, dtype=wide)
    names = ("transition", "state_factor", "emission", "observation_factor")
    steps = [getattr(tables, name).shape[-3] for name in names]
    rows = n_states, n_states, n_features, n_features
    columns = n_states, n_states, n_states, n_features
    shapes = [*zip(steps, rows, columns, strict=True), (1, n_states, n_states)]
    taken = [empty(*job.shared, *shape, dtype=wide).zero_() for shape in shapes]
    job.run(
        job.over_groups("kalman_score", mean, later, error, keep=True)
        + job.over_sets("kalman_score_covariances", *taken, integers(*steps))
    )
    return gradients(tables, d_total, mean, later, error, Score(*taken))
