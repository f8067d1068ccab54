"""Streams of a `Segments` model: one observation at a time, in bounded memory."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.chains.segment.records import Runs
from ...inference.chains.segment.stream import SegmentStream
from ...inference.numerics.records import Record
from ..data.cells import to_tensor
from ..data.design import read_inputs
from ..data.reading import check_finite, read_row
from ..data.series import Series
from ..dynamics.gates import log1mexp
from ..parameters import Parameters
from .durations import log_hazards, settled
from .hyperparameters import HAZARD
from .rows import block

LONGEST = 10_000  # steps, or more, of a segment after which its hazard is constant, under a distribution of durations
TOL, MOST = 1e-12, 1_000


@dataclass(frozen=True, repr=False)
class SegmentsStreamState(Record):
    """The memory of a stream: the runs that are kept, whose number does not grow, and the log evidence so far."""

    runs: Runs
    log_evidence: Float[Tensor, "*b"] | Float[Tensor, ""]
    steps: int
    batch_shape: tuple[int, ...] = field(repr=False)
    stream: SegmentStream = field(repr=False)
    about: Float[Tensor, "F"] = field(repr=False)  # the origin of locations


@dataclass(frozen=True, repr=False)
class SegmentsStreamOutput(Record):
    """The belief after one observation of a stream."""

    log_increment: Float[Tensor, "*b"]
    change: Float[Tensor, "*b"]  # P(a segment begins at this step | x so far)
    run: Float[Tensor, "*b"]  # expected steps since the segment began, this one included
    mean: dict[str, Float[Tensor, "*b F"] | Float[Tensor, "*b F G"]]  # of the parameters, given x so far
    sd: dict[str, Float[Tensor, "*b F"] | Float[Tensor, "*b F G"]]


def started(model: Any, values: Parameters, batch: tuple[int, ...], tol: float, most: int) -> SegmentsStreamState:
    """The state before any observation."""
    like = next(iter(values.values()))
    series = Series(like.new_full((*batch, 1, model.n_features), torch.nan))
    if model.n_inputs:
        series = replace(series, inputs=like.new_zeros(*batch, 1, model.n_inputs))
    about = values.get("loc", like.new_zeros(model.n_features)).double()
    problem = replace(model._problem(series), about=about)
    double = {name: value.double() for name, value in values.items()}
    one = block(model.emission, double, problem.rows)
    prior = one.prior.expand(*problem.batch_shape, *one.prior.shape[-2:])
    if model.duration is None:
        by, log_hazard = "step", double[HAZARD].log().reshape(1)
    else:
        by, log_hazard = "run", log_hazards(model.duration, settled(model.duration, LONGEST)).to(like.device)
    stream = SegmentStream((one.family,), (prior,), log_hazard, by=by, tol=tol, most=most)
    runs = stream.start()
    return SegmentsStreamState(runs, runs.log_normalizer.to(like), 0, batch, stream, about)


def advanced(
    model: Any, state: SegmentsStreamState, x_t: Any, inputs: Any, dt: Any
) -> tuple[SegmentsStreamState, SegmentsStreamOutput]:
    """The state and the belief after one more observation."""
    x_t = read_row(x_t, state.batch_shape, model.n_features)
    given = read_inputs(inputs, x_t, model.inputs)
    names = None if given is None or isinstance(model.inputs, int) else model.inputs
    series = Series(x_t.unsqueeze(-2), None, given, drivers=names)
    check_finite(series)
    model._check_observations(series)
    model._check_drives(series, 1)
    problem = replace(model._problem(series), about=state.about)
    rows = problem.rows
    log_hazard = None if dt is None else _of_gap(model, state, x_t, dt)
    step = rows.statistics[..., 0, :, :]
    runs, increment = state.stream.update(state.runs, (step,), rows.log_base[..., 0], log_hazard)
    weight = runs.log_weight.exp()
    change = torch.where(runs.length == 1, weight, 0.0).sum(-1)
    expected = (weight[..., None, None] * problem.expectation(runs.natural[0])).sum(-3)
    means, spreads = problem.summarised(expected.unsqueeze(-3))
    axis = len(state.batch_shape)
    increment, change, run = map(problem.each, (increment, change, (weight * runs.length).sum(-1)))
    mean, sd = ({name: table.select(axis, 0) for name, table in tables.items()} for tables in (means, spreads))
    output = SegmentsStreamOutput(increment, change, run, mean, sd)
    evidence = runs.log_normalizer.to(x_t)
    return replace(state, runs=runs, log_evidence=evidence, steps=state.steps + 1), output


def _of_gap(model: Any, state: SegmentsStreamState, x_t: Tensor, dt: Any) -> Tensor | None:
    """log P(a change in the gap before this step)."""
    gap = to_tensor(dt, "dt").to(x_t.device).double()
    if model.duration is not None or (model.shared and state.batch_shape):
        raise ValueError("dt: got some, but durations and shared changes take none; leave it out.")
    if tuple(gap.shape) != state.batch_shape:
        raise ValueError(f"dt: got shape {tuple(gap.shape)}, expected {state.batch_shape}: the gap before this step.")
    if not state.steps:
        return None
    if not bool(((gap >= 0) & gap.isfinite()).all()):
        raise ValueError(f"dt: got {dt}, expected the time since the previous step, a number of at least 0.")
    hold = torch.where(gap > 0, gap, 1.0) * torch.log1p(-model.values[HAZARD].to(gap))
    return torch.where(gap > 0, log1mexp(hold), -torch.inf)
