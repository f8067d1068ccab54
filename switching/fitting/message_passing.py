"""Variational fits: q(parameters) q(paths) by message passing; see `graph` for the blocks and the factors.

The restarts climb as `search` lets them, or through minibatches of the sequences.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...inference.message_passing.engine import VMP, Run
from ...inference.numerics.deferred import passed
from ..parameters import Parameters
from ..problem import Problem
from .chunked import ChunkedVMP, engine_from, engine_of, occupancy_of, parameters_of, run_batches
from .graph import Etas, Graph
from .options import Options
from .search import Climb, Found, Report, search
from .starts import Starts, first_guesses, opened

HALVINGS = 10  # of a leap


class Passing:
    """A batch of restarts that climb by message passing."""

    def __init__(self, engine: VMP | ChunkedVMP, graph: Graph | None = None) -> None:
        self.engine, self.graph = engine, graph

    @property
    def tables(self) -> Etas:
        return parameters_of(self.engine)

    @property
    def collapsed(self) -> None:
        """No state collapses under a prior."""

    def run(self, max_steps: int) -> Run:
        return self.engine.run(max_steps, tol=0.0)

    def select(self, restarts: Tensor) -> "Passing":
        return Passing(self.engine.select(restarts), self.graph)

    def extrapolated(self, before: Etas, by: Tensor) -> Etas | None:
        """Natural parameters as far ahead, or half or less of that where they would not be those of a density."""
        now = self.tables
        by = by.to(next(eta for eta in now.values() if isinstance(eta, Tensor)))
        for _ in range(HALVINGS):
            ahead = {
                name: eta + _wide(by, eta) * (eta - before[name]) if isinstance(eta, Tensor) else eta
                for name, eta in now.items()
            }
            single = [{n: eta[r] for n, eta in ahead.items() if isinstance(eta, Tensor)} for r in range(len(by))]
            proper = passed([partial(self.check, etas) for etas in single], ValueError)
            if all(proper):
                return ahead
            by = torch.where(torch.tensor(proper, device=by.device), by, by / 2)
        return None

    def check(self, etas: Etas) -> None:
        """Raise ValueError where natural parameters of one restart are not those of densities."""
        assert self.graph is not None
        for name, (_, block) in self.graph.blocks.items():
            block.family.check(etas[name])

    def at(self, tables: Etas) -> "Passing":
        assert self.graph is not None
        return Passing(engine_of(self.graph, tables, linear=self.engine.linear), self.graph)

    def height(self) -> Tensor:
        return self.engine.elbo()


def _wide(by: Tensor, like: Tensor) -> Tensor:
    return by.reshape(-1, *[1] * (like.ndim - 1))


@dataclass(frozen=True)
class Fitted:
    """The best q of the parameters, and how it was reached."""

    graph: Graph
    etas: Etas
    occupancy: Tensor  # [K], expected number of steps in each state
    found: Found


def fit_vmp(
    problem: Problem, options: Options, report: Report = lambda step, best: None, own: Parameters | None = None
) -> Fitted:
    """Message passing over all data, or over minibatches of the sequences; `own` as in `search`."""
    own = None if own is None else opened(problem, own)  # of a probability of 0 no logarithm is expected
    graph = Graph.of(problem, options.factorization == "mean_field")
    if options.batch_size is not None and options.batch_size < problem.series.n_sequences:
        found = _by_batches(graph, first_guesses(problem, options.restarts, options.number, own), options, report)
    else:

        def begin(values: Parameters) -> Passing:
            return Passing(engine_from(graph, values), graph)

        found = search(problem, begin, lambda etas: graph.chain(etas).smooth().state, options, report, own)
    engine = engine_of(graph, {name: eta.unsqueeze(0) for name, eta in found.best.tables.items()})
    occupancy = engine.occupancy if isinstance(engine, ChunkedVMP) else occupancy_of(engine)
    return Fitted(graph, found.best.tables, occupancy[0], found)


def _by_batches(graph: Graph, starts: Starts, options: Options, report: Report) -> Found:
    """Passes through minibatches, after which the bound of those that were kept is taken over all data."""
    passes = run_batches(graph, starts, options, report)
    bound = engine_of(graph, passes.etas).elbo().double().cpu()
    climbs = [
        Climb(kind, [last], ended="left behind") for kind, last in zip(starts.kinds, passes.final.tolist(), strict=True)
    ]
    ended = "interrupted" if passes.interrupted else "converged" if passes.converged else "max_steps"
    tol = options.tol * float(graph.problem.series.n_observed)
    for i, number in enumerate(passes.kept.tolist()):
        tables = {name: eta[i] for name, eta in passes.etas.items()}
        climbs[number] = Climb(starts.kinds[number], [*passes.objective, float(bound[i])], tables, ended=ended)
    kept = [climbs[number] for number in passes.kept.tolist()]
    return Found(climbs, max(kept, key=lambda climb: climb.final), passes.interrupted, tol, by_passes=True)
