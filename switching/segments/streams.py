"""Streams of a `Segments` model: one observation at a time, in bounded memory."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.chains.segment.plain_stream import CHANGE, EXPECTED, INCREMENT, LEFT_OUT, RUN, TOTAL
from ...inference.chains.segment.records import Runs
from ...inference.chains.segment.stream import SegmentStream
from ...inference.numerics.records import Record, late
from ..data.design import read_inputs
from ..data.frames import to_tensor
from ..data.reading import check_finite, read_row
from ..data.series import Given, Series
from ..parameters import Parameters
from .durations import log_hazards, settled
from .hazards import HAZARD, Hazard, log_change_in
from .problem import SegmentProblem
from .records import SegmentsFiltered
from .rows import block, ordinary_row

LONGEST = 10_000  # steps, or more, of a segment after which its hazard is constant, under a distribution of durations
TOL, MOST = 1e-12, 1_000
COLUMNS = {"log_increment": INCREMENT, "change": CHANGE, "run": RUN}


@dataclass(frozen=True, repr=False)
class SegmentsStreamState(Record):
    """The memory of a stream: the runs that are kept, whose number does not grow."""

    runs: Runs
    steps: int
    batch_shape: tuple[int, ...] = field(repr=False)
    stream: SegmentStream = field(repr=False)
    problem: SegmentProblem = field(repr=False)  # of the last row

    @property
    def log_evidence(self) -> Float[Tensor, "*b"] | Float[Tensor, ""]:
        """log p(x so far)."""
        return self.runs.log_normalizer.to(self.problem.series.like)


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
        names = None if isinstance(model.inputs, int) else model.inputs
        series = replace(series, inputs=like.new_zeros(*batch, 1, model.n_inputs), drivers=names)
    about = values.get("loc", like.new_zeros(model.n_features)).double()
    problem = replace(model._problem(model._about_origin(series)), about=about)
    double = {name: value.double() for name, value in values.items()}
    one = block(model.emission, double, problem.rows)
    prior = one.prior.expand(*problem.batch_shape, *one.prior.shape[-2:])
    if model.duration is not None:
        by, log_hazard = "run", log_hazards(model.duration, settled(model.duration, LONGEST)).to(like.device)
    else:  # one that depends on inputs comes with each update
        by, log_hazard = "step", double.get(HAZARD, torch.full_like(about[0], 0.5)).log().reshape(1)
    stream = SegmentStream((one.family,), (prior,), log_hazard, by=by, tol=tol, most=most)
    return SegmentsStreamState(stream.start(), 0, batch, stream, problem)


def advanced(
    model: Any, state: SegmentsStreamState, x_t: Any, inputs: Any, dt: Any
) -> tuple[SegmentsStreamState, SegmentsStreamOutput]:
    """The state and the belief after one more observation."""
    stream, problem, x = state.stream, state.problem, None
    like = problem.series.like
    plain = inputs is None and dt is None and not model.n_inputs and not state.batch_shape
    if plain and like.dtype == torch.float64 and like.is_cpu:
        assert problem.about is not None
        row = ordinary_row(model.emission, x_t, problem.about)
        x = None if row is None else torch.from_numpy(np.array([[row]]))
    if x is None:
        problem = _read(model, state, x_t, inputs)
        x = _table(model, state, problem, None if dt is None else to_tensor(dt, "dt").unsqueeze(-1))
    memory, _ = stream.advance(stream.memory(state.runs), x, (problem.expectation,))
    runs = stream.runs(memory, state.runs.n_steps + 1)
    output = late(SegmentsStreamOutput, partial(_field, problem, stream, memory.found))
    return SegmentsStreamState(runs, state.steps + 1, state.batch_shape, stream, problem), output


def _field(problem: SegmentProblem, stream: SegmentStream, found: Tensor, name: str) -> dict[str, Any]:
    """A field of an output, or two, from the numbers of one step."""
    if name in COLUMNS:
        return {name: problem.each(stream.shaped(found[:, COLUMNS[name]]))}
    means, spreads = _summarised(problem, stream, found.unsqueeze(1))
    axis = len(problem.series.batch_shape)
    first = lambda tables: {name: table.select(axis, 0) for name, table in tables.items()}
    return {"mean": first(means), "sd": first(spreads)}


def _summarised(
    problem: SegmentProblem, stream: SegmentStream, found: Float[Tensor, "N S M"]
) -> tuple[Parameters, Parameters]:
    """Means and standard deviations of the parameters at S steps."""
    expected = stream.shaped(found[..., EXPECTED:])
    return problem.summarised(expected.unflatten(-1, (problem.rows.statistics.shape[-2], -1)))


def _read(model: Any, state: SegmentsStreamState, x_t: Any, inputs: Any) -> SegmentProblem:
    """The problem of one row."""
    x_t = read_row(x_t, state.batch_shape, model.n_features)
    given = read_inputs(inputs, x_t, model.inputs)
    names = None if given is None or isinstance(model.inputs, int) else model.inputs
    series = model._about_origin(Series(x_t.unsqueeze(-2), None, given, drivers=names))
    check_finite(series)
    model._check_observations(series)
    model._check_drives(series, 1)
    return replace(model._problem(series), about=state.problem.about)


def _table(model: Any, state: SegmentsStreamState, problem: SegmentProblem, gaps: Tensor | None) -> Tensor:
    """The rows of a problem as the stream reads them."""
    log_hazard = _of_steps(model, state, problem, gaps)
    return state.stream.table((problem.rows.statistics,), problem.rows.log_base, log_hazard)


def extended(
    model: Any, state: SegmentsStreamState, x: Any, given: Given
) -> tuple[SegmentsStreamState, SegmentsFiltered]:
    """The state after several observations more, and the belief after each."""
    series = model.read(x, **given)
    if series.batch_shape != state.batch_shape or series.lengths is not None or not series.n_steps:
        got = "lengths" if series.lengths is not None else f"shape {tuple(series.observations.shape)}"
        expected = (*state.batch_shape, "S", model.n_features)
        raise ValueError(f"x: got {got}, expected {expected}: S steps of each stream.")
    problem, stream = replace(model._problem(series), about=state.problem.about), state.stream
    x = _table(model, state, problem, series.gaps)
    memory, found = stream.advance(stream.memory(state.runs), x, (problem.expectation,))
    runs = stream.runs(memory, state.runs.n_steps + series.n_steps)
    total, left_out = (problem.each(stream.shaped(memory.found[:, i])) for i in (TOTAL, LEFT_OUT))
    increment, change, run = (problem.each(stream.shaped(found[..., i]), beyond=0) for i in (INCREMENT, CHANGE, RUN))
    mean, sd = _summarised(problem, stream, found)
    filtered = SegmentsFiltered(total, increment, change, run, mean, sd, left_out)
    return SegmentsStreamState(runs, state.steps + series.n_steps, state.batch_shape, stream, problem), filtered


def _of_steps(model: Any, state: SegmentsStreamState, problem: SegmentProblem, gaps: Tensor | None) -> Tensor | None:
    """log P(a change before each step), if inputs or gaps say it."""
    read = None if gaps is None else _read_gaps(model, state, gaps.to(problem.series.like.device).double())
    if read is None and not isinstance(model.hazard, Hazard):
        return None
    values = {name: value.double() for name, value in model.values_like(problem.series.like).items()}
    log_change, log_hold = problem.log_gate(values, problem.series.drive)
    return log_change if read is None else log_change_in(read, log_hold)


def _read_gaps(model: Any, state: SegmentsStreamState, gaps: Tensor) -> Tensor:
    """The gap before each step; that of the first step of a stream is not used."""
    if model.duration is not None or (model.shared and state.batch_shape):
        raise ValueError("dt: was given, but durations and shared changes do not use gaps; leave it out.")
    if tuple(gaps.shape[:-1]) != state.batch_shape:
        got = tuple(gaps.shape[:-1])
        raise ValueError(f"dt: got shape {got}, expected {state.batch_shape}: the gap before this step.")
    if not state.steps:
        gaps = torch.cat([torch.ones_like(gaps[..., :1]), gaps[..., 1:]], -1)
    if not bool(((gaps >= 0) & gaps.isfinite()).all()):
        raise ValueError(f"dt: got {gaps.tolist()}, expected the times since the previous steps, at least 0.")
    return gaps
