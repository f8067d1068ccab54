"""Variational fits: q(parameters) q(paths) by message passing; see `graph` for the blocks and the factors.

All restarts run as one batch for a while, then the better ones go on until they have settled.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ...inference.message_passing.engine import Run
from ..problem import Problem
from .graph import Graph
from .in_parts import KEPT, InParts, engine_of, occupancy_of, parameters_of, run_batches, started
from .options import Options

TRIAL = 30  # steps after which the worse restarts are dropped
AT_ONCE = 10  # steps between two looks at the progress


@runtime_checkable
class Climber(Protocol):
    """What a climb needs of an engine."""

    def run(self, max_steps: int, tol: float) -> Run: ...

    def select(self, restarts: Tensor) -> "Climber": ...

    def elbo(self) -> Tensor: ...


@dataclass(frozen=True)
class Climb:
    """Where the restarts ended: the engine of those that were kept, the best of which is number `best`."""

    engine: Any
    best: int
    objective: Tensor  # [steps], of the best
    final: Tensor  # [R]
    converged: bool
    interrupted: bool


def climb(
    engine: Climber,
    options: Options,
    report: Callable[[int, float], None] = lambda step, best: None,
) -> Climb:
    """Run all restarts for some steps, then the best third of them until they have settled, or `max_steps`."""
    restarts, max_steps = options.restarts, options.max_steps
    kept = torch.arange(restarts)
    final, traces = torch.full((restarts,), -math.inf, dtype=torch.float64), []
    converged = interrupted = False
    steps = 0
    try:
        while steps < max_steps and not (converged or interrupted):
            until = min(TRIAL, max_steps) if len(kept) == restarts and restarts > 1 and steps < TRIAL else max_steps
            run = engine.run(min(AT_ONCE, until - steps), options.tol)
            steps, converged, interrupted = steps + run.steps, run.converged, run.interrupted
            row = torch.full((run.steps, restarts), torch.nan, dtype=torch.float64)
            row[:, kept] = run.elbo.double().cpu()
            traces.append(row)
            final[kept] = run.elbo[-1].double().cpu()
            report(steps, float(final.max()))
            if steps == TRIAL and len(kept) > 1 and not converged:
                better = run.elbo[-1].argsort(descending=True)[: math.ceil(len(kept) / KEPT)]
                kept, engine = kept[better.cpu()], engine.select(better)
    except KeyboardInterrupt:
        if not traces:
            raise  # nothing has been reached yet
        interrupted = True
    best = int(final[kept].argmax())
    trace = torch.cat(traces)[:, kept[best]]
    return Climb(engine, best, trace, final, converged, interrupted)


@dataclass(frozen=True)
class Fitted:
    """The best q of the parameters, and how it was reached."""

    graph: Graph
    etas: dict[str, Tensor]
    occupancy: Tensor  # [K], expected number of steps in each state
    objective: Tensor
    final: Tensor
    converged: bool
    interrupted: bool


def fit_vmp(
    problem: Problem, options: Options, report: Callable[[int, float], None] = lambda step, best: None
) -> Fitted:
    """Message passing over all data, or over minibatches of the sequences."""
    graph = Graph.of(problem, options.factorization == "mean_field")
    if options.batch_size is not None and options.batch_size < problem.series.n_sequences:
        passes = run_batches(graph, options, report)
        engine = engine_of(graph, passes.etas)
        bound = engine.elbo().double().cpu()
        final = passes.final.index_copy(0, passes.kept, bound)
        best = int(bound.argmax())
        trace = torch.tensor([*passes.objective, float(bound[best])], dtype=torch.float64)
        ended = Climb(engine, best, trace, final, passes.converged, passes.interrupted)
    else:
        ended = climb(started(graph, options), options, report)
    engine = ended.engine
    occupancy = engine.occupancy if isinstance(engine, InParts) else occupancy_of(engine)
    etas = {name: eta[ended.best] for name, eta in parameters_of(engine).items()}
    return Fitted(graph, etas, occupancy[ended.best], ended.objective, ended.final, ended.converged, ended.interrupted)
