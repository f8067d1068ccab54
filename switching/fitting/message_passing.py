"""Fits by message passing; see `graph` for the blocks and the factors.

The restarts climb as `search` lets them, or through minibatches of the sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...inference.message_passing.engine import VMP, Run
from ...inference.numerics.deferred import passed
from ..data.series import Series
from ..parameters import Parameters
from ..problem import Problem
from .chain_graph import ChainGraph
from .chunked import ChunkedVMP, engine_from, engine_of, occupancy_of, run_batches
from .graph import Etas, Graph
from .options import Options
from .posterior import VariationalPosterior
from .progress import Report
from .search import Climb, Found, multi_start, search
from .starts import Starts, first_guesses, opened

HALVINGS = 10  # of a leap


class Passing:
    """A batch of restarts that climb by message passing.

    Arguments:
        fresh: whether parameters are still those of the prior, which no basis would make more probable.
    """

    def __init__(self, engine: VMP | ChunkedVMP, graph: Graph, fresh: bool = True) -> None:
        self.engine, self.graph, self.fresh = engine, graph, fresh

    @property
    def tables(self) -> Etas:
        if isinstance(self.engine, ChunkedVMP):
            return self.engine.etas
        return {name: self.engine.blocks[name].eta for name in self.graph.kept}

    @property
    def collapsed(self) -> None:
        """No state collapses under a prior."""

    def run(self, max_steps: int) -> Run:
        if self.graph.rebase is not None and isinstance(self.engine, VMP) and not self.fresh:
            self.graph.rebase(self.engine)
        self.fresh = False
        return self.engine.run(max_steps, tol=0.0)

    def select(self, restarts: Tensor) -> "Passing":
        return Passing(self.engine.select(restarts), self.graph, self.fresh)

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
            proper = passed([partial(self.graph.check, etas) for etas in single], ValueError)
            if all(proper):
                return ahead
            by = torch.where(torch.tensor(proper, device=by.device), by, by / 2)
        return None

    def at(self, tables: Etas) -> "Passing":
        return Passing(engine_of(self.graph, tables, linear=self.engine.linear), self.graph, fresh=False)

    def height(self) -> Tensor:
        return self.engine.elbo()


def _wide(by: Tensor, like: Tensor) -> Tensor:
    return by.reshape(-1, *[1] * (like.ndim - 1))


def fit_graph(
    graph: Graph, kinds: Sequence[str], options: Options, series: Series, n_kept: int, shift: float = 0.0
) -> tuple[VariationalPosterior, Found]:
    """The best q of a graph, or with method "em" the best points; `kinds` are those of the starts of its paths.

    Arguments:
        n_kept: how many starts go on to the end.
        shift: by how much the objective is greater in the user's units.
    """
    graph = graph.at_points(flat=options.prior is None) if options.method == "em" else graph
    with multi_start(options, series, shift) as search:
        search.run(Passing(graph.engine(graph.start(len(kinds))), graph), kinds, n_kept)
    return VariationalPosterior.of(graph, search.best.tables), search.found().raised(shift)


@dataclass(frozen=True)
class Fitted:
    """The best q of the parameters, and how it was reached."""

    graph: ChainGraph
    etas: Etas
    occupancy: Tensor  # [K], expected number of steps in each state
    found: Found


def fit_vmp(
    problem: Problem, options: Options, report: Report = lambda step, best: None, own: Parameters | None = None
) -> Fitted:
    """Message passing over all data, or over minibatches of the sequences; `own` as in `search`."""
    own = None if own is None else opened(problem, own)  # of a probability of 0 no logarithm is expected
    graph = ChainGraph.of(problem, options.factorization == "mean_field")
    if options.batch_size is not None and options.batch_size < problem.series.n_sequences:
        found = _by_batches(graph, first_guesses(problem, options.restarts, options.number, own), options, report)
    else:

        def begin(values: Parameters) -> Passing:
            return Passing(engine_from(graph, values), graph)

        found = search(problem, begin, lambda etas: graph.chain(etas).smooth().state, options, report, own)
    engine = engine_of(graph, {name: eta.unsqueeze(0) for name, eta in found.best.tables.items()})
    occupancy = engine.occupancy if isinstance(engine, ChunkedVMP) else occupancy_of(engine)
    return Fitted(graph, found.best.tables, occupancy[0], found)


def _by_batches(graph: ChainGraph, starts: Starts, options: Options, report: Report) -> Found:
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
