"""Variational fits: q(parameters) q(paths) by message passing; see `graph` for the blocks and the factors.

The restarts climb as `search` lets them, or through minibatches of the sequences.
"""

from dataclasses import dataclass

from torch import Tensor

from ...inference.message_passing.engine import VMP, Run
from ..parameters import Parameters
from ..problem import Problem
from .graph import Etas, Graph
from .in_parts import InParts, engine_from, engine_of, occupancy_of, parameters_of, run_batches
from .options import Options
from .search import Climb, Found, Report, search
from .starts import Starts, first_guesses


class Passing:
    """A batch of restarts that climb by message passing."""

    def __init__(self, engine: VMP | InParts) -> None:
        self.engine = engine

    @property
    def tables(self) -> Etas:
        return parameters_of(self.engine)

    @property
    def collapsed(self) -> None:
        """No state collapses under a prior."""

    def run(self, max_steps: int) -> Run:
        return self.engine.run(max_steps, tol=0.0)

    def select(self, restarts: Tensor) -> "Passing":
        return Passing(self.engine.select(restarts))


@dataclass(frozen=True)
class Fitted:
    """The best q of the parameters, and how it was reached."""

    graph: Graph
    etas: Etas
    occupancy: Tensor  # [K], expected number of steps in each state
    found: Found


def fit_vmp(problem: Problem, options: Options, report: Report = lambda step, best: None) -> Fitted:
    """Message passing over all data, or over minibatches of the sequences."""
    graph = Graph.of(problem, options.factorization == "mean_field")
    if options.batch_size is not None and options.batch_size < problem.series.n_sequences:
        found = _by_batches(graph, first_guesses(problem, options.restarts, options.number), options, report)
    else:

        def begin(values: Parameters) -> Passing:
            return Passing(engine_from(graph, values))

        found = search(problem, begin, lambda etas: graph.chain(etas).smooth().state, options, report)
    engine = engine_of(graph, {name: eta.unsqueeze(0) for name, eta in found.best.tables.items()})
    occupancy = engine.occupancy if isinstance(engine, InParts) else occupancy_of(engine)
    return Fitted(graph, found.best.tables, occupancy[0], found)


def _by_batches(graph: Graph, starts: Starts, options: Options, report: Report) -> Found:
    """Passes through minibatches, after which the bound of those that were kept is taken over all data."""
    passes = run_batches(graph, starts, options, report)
    bound = engine_of(graph, passes.etas).elbo().double().cpu()
    climbs = [
        Climb(kind, [last], ended="left behind") for kind, last in zip(starts.kinds, passes.final.tolist(), strict=True)
    ]
    ended = "interrupted" if passes.interrupted else "converged" if passes.converged else "max_steps"
    for i, number in enumerate(passes.kept.tolist()):
        tables = {name: eta[i] for name, eta in passes.etas.items()}
        climbs[number] = Climb(starts.kinds[number], [*passes.objective, float(bound[i])], tables, ended=ended)
    kept = [climbs[number] for number in passes.kept.tolist()]
    return Found(climbs, max(kept, key=lambda climb: climb.final), passes.interrupted)
