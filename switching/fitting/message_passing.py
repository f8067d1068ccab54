"""Fits by message passing; see `graph` for the blocks and the factors.

`search` runs the restarts on all data; alternatively they run through minibatches of the sequences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...inference.message_passing.engine import VMP, Block, Run, per_restart
from ...inference.message_passing.factor_graph import check_proper
from ...inference.numerics.deferred import passed
from ..data.series import Series
from ..dynamics.contract import PATHS
from ..parameters import Parameters
from ..problem import Problem
from . import points
from .chain_graph import ChainGraph
from .checkpoint import Checkpoint
from .chunked import ChunkedVMP, engine_from, engine_in, engine_of, occupancy_of
from .climbs import Climb, SearchResult
from .graph import Etas, Graph
from .minibatches import run_batches
from .options import Options
from .perturbation import End
from .posterior import VariationalPosterior
from .progress import Reporting, reported
from .search import MultiStart, best_ends, continued, search
from .spread import spread
from .starts import Starts, first_guesses, opened, stacked
from .whole import Whole, jointly

HALVINGS = 10  # of an extrapolation
SWEEPS = 20  # of paths that factors join, from which parameters go on with all data


class Passing:
    """A batch of restarts that are optimised by message passing.

    Arguments:
        fresh: whether parameters still have their prior; then no change of basis raises the bound.
    """

    engine: VMP | ChunkedVMP
    graph: Graph
    fresh: bool

    stride = 8  # a change of basis, and the height after an extrapolation, cost as much as a step

    def __init__(self, engine: VMP | ChunkedVMP, graph: Graph, fresh: bool = True) -> None:
        self.engine, self.graph, self.fresh = engine, graph, fresh
        self._rows: tuple[dict[str, Any], Tensor] | None = None  # since the last step: all its restarts, those of here

    @property
    def tables(self) -> Etas:
        return {name: self.engine.blocks[name].eta for name in self.graph.kept}

    @property
    def collapsed(self) -> None:
        """No state collapses under a prior."""

    @property
    def occupancy(self) -> Tensor | None:
        known = isinstance(self.engine, VMP) and PATHS in self.engine.blocks and self.engine.knows(PATHS)
        return occupancy_of(self.engine) if known else None

    def run(self, max_steps: int) -> Run:
        if self.graph.rebase is not None and not self.fresh:
            self.graph.rebase(self.engine)
        self.fresh, self._rows = False, None
        return self.engine.run(max_steps, tol=0.0)

    def select(self, restarts: Tensor) -> "Passing":
        selected = Passing(self.engine.select(restarts), self.graph, self.fresh)
        if isinstance(self.engine, VMP):
            state, rows = (self.engine.state(self.graph.kept), restarts) if self._rows is None else self._rows
            selected._rows = state, rows if self._rows is None else rows[restarts]
        return selected

    def state(self) -> dict[str, Any]:
        """That of the engine of all restarts of the last step, on which the rounding of the paths depends."""
        state, rows = (self.engine.state(self.graph.kept), None) if self._rows is None else self._rows
        return {"engine": state, "rows": rows, "fresh": self.fresh}

    def resumed(self, state: dict[str, Any]) -> "Passing":
        there = Passing(engine_in(self.graph, state["engine"]), self.graph, state["fresh"])
        return there if state["rows"] is None else there.select(state["rows"])

    def extrapolated(self, before: Etas, by: Tensor) -> Etas | None:
        """Natural parameters moved on by `by` times their change since `before`; restarts whose natural parameters
        would be out of range move half as far or less."""
        now = self.tables
        by = by.to(next(eta for eta in now.values() if isinstance(eta, Tensor)))
        for _ in range(HALVINGS):
            ahead = {
                name: eta + per_restart(by, eta) * (eta - before[name]) if isinstance(eta, Tensor) else eta
                for name, eta in now.items()
            }
            tables = {name: eta for name, eta in ahead.items() if isinstance(eta, Tensor)}
            if all(passed([partial(self.graph.check, tables)], ValueError)):
                return ahead
            single = [{name: eta[r] for name, eta in tables.items()} for r in range(len(by))]
            proper = passed([partial(self.graph.check, etas) for etas in single], ValueError)
            by = torch.where(torch.tensor(proper, device=by.device), by, by / 2)
        return None

    def at(self, tables: Etas) -> "Passing":
        return Passing(engine_of(self.graph, tables, linear=self.engine.linear), self.graph, fresh=False)

    def height(self) -> Tensor:
        return self.engine.elbo()


class Sharing(NamedTuple):
    """All data of a fit whose search is made on a sample of them.

    Attributes:
        graph: of all data; the paths of this process start at their natural parameters.
        whole: the data.
        shift: the increase of the objective in the user's units.
    """

    graph: Graph
    whole: Whole
    shift: float


def fit_graph(
    graph: Graph,
    kinds: Sequence[str],
    options: Options,
    series: Series,
    n_kept: int,
    shift: float = 0.0,
    sharing: Sharing | None = None,
) -> tuple[VariationalPosterior, SearchResult]:
    """The best q of a graph, or with method "em" the best points; `kinds` has the kinds of the starts of its paths.

    Arguments:
        n_kept: number of starts that are run to convergence.
        shift: the increase of the objective in the user's units.
        sharing: all data, if the series is a sample of them; the best ends on the sample go on with all data.
    """
    graph = _as_fitted(graph, options)
    newton = options.method == "em" and graph.exact and points.repays(graph)
    some = replace(options, max_steps=min(options.max_steps, points.BEFORE)) if newton else options

    def run(report: Reporting) -> MultiStart:
        search = MultiStart(some, series, report)
        search.run(Passing(graph.engine(graph.start(len(kinds))), graph), kinds, n_kept)
        return search

    def finish(graph: Graph, search: MultiStart) -> None:
        if newton:
            points.finish(search, [search.best], graph, options.max_steps)

    with reported(options, shift if sharing is None else sharing.shift) as report:
        if sharing is None:
            search = run(report)
            finish(graph, search)
            found = search.result().raised(shift)
        else:
            everywhere = _as_fitted(sharing.graph, options)
            found = sharing.whole.ranks.together(lambda: run(report).result())
            found = continued_graph(everywhere, found, some, sharing.whole, report, n_kept, partial(finish, everywhere))
            found = found.raised(sharing.shift, shift)
    return VariationalPosterior.of(graph, found.best.tables), found


def _as_fitted(graph: Graph, options: Options) -> Graph:
    """The graph with points in place of densities, for "em"."""
    return graph.at_points(flat=options.prior is None) if options.method == "em" else graph


def continued_graph(
    graph: Graph,
    found: SearchResult,
    options: Options,
    whole: Whole,
    report: Reporting,
    n_kept: int,
    finish: Callable[[MultiStart], Any],
    make_engine: Callable[[Etas], VMP | ChunkedVMP] | None = None,
) -> SearchResult:
    """`search.continued` of a graph of all data.

    A checkpoint has no paths of processes that share the data, so a fit that is resumed takes these steps anew, unless
    paths follow from the parameters.

    Arguments:
        make_engine: makes the engine from natural parameters of the blocks of parameters.
    """
    make_engine = partial(_near, graph) if make_engine is None else make_engine
    return continued(
        found,
        lambda climb: {name: climb.tables[name] for name in graph.families},
        lambda etas: Passing(make_engine(etas), graph, fresh=False),
        options if graph.follow else replace(options, saving=Checkpoint()),
        whole,
        report,
        n_kept,
        finish,
    )


def _near(graph: Graph, etas: Etas) -> VMP | ChunkedVMP:
    """The engine with its paths under parameters, whose first steps move paths alone if factors join them."""
    engine = engine_of(graph, etas)
    if isinstance(engine, VMP) and not graph.exact:
        for block in SWEEPS * list(graph.paths):
            engine.update(block.name)
    return engine


@dataclass(frozen=True)
class Fitted:
    """The best q of the parameters, and the search for it."""

    graph: ChainGraph
    etas: Etas
    occupancy: Tensor  # [K], expected number of steps in each state
    search: SearchResult


def fit_vmp(
    problem: Problem,
    options: Options,
    report: Reporting = lambda step, best: None,
    user_start: Parameters | None = None,
    whole: Whole | None = None,
    sharing: Whole | None = None,
) -> Fitted:
    """Message passing over all data, or over minibatches of the sequences; `user_start` as in `search`.

    Arguments:
        whole: all data, if the series of the problem is a sample of them.
        sharing: those whose processes share the search.
    """
    if user_start is not None:  # the expected logarithm of a probability of 0 does not exist
        user_start = opened(problem, user_start)
    graph = ChainGraph.of(problem, options.factorization == "mean_field")

    def make_optimizer(values: Parameters, graph: ChainGraph = graph) -> Passing:
        return Passing(engine_from(graph, values), graph)

    def values_of(etas: Etas) -> Parameters:
        points = {name: graph.families[name].expected(eta) for name, eta in etas.items()}
        return problem.admitted(graph.collect(points))

    def end(etas: Etas) -> End:
        return End(values_of(etas), graph.chain(etas).smooth().state)

    whole_graph = replace(graph, whole=whole)
    by_batches = options.batch_size is not None and options.batch_size < whole_graph.data.n_sequences
    if by_batches and whole is None:
        guesses = first_guesses(problem, options.restarts, options.number, user_start)
        result = _by_batches(graph, guesses, options, report)
    else:
        result = jointly(
            sharing, lambda: search(problem, spread(make_optimizer, sharing), end, options, report, user_start)
        )
        if by_batches:
            ends = best_ends(result.best, result.climbs, options.n_kept)
            tables = [{n: v.unsqueeze(0) for n, v in values_of(climb.tables).items()} for climb in ends]
            guesses = Starts(stacked(problem, tables), tuple(climb.kind for climb in ends))
            result = replace(_by_batches(whole_graph, guesses, options, report), sample=result)
        elif whole is not None:
            go_on = partial(make_optimizer, graph=whole_graph)
            result = continued(result, lambda climb: values_of(climb.tables), go_on, options, whole, report)
    return ended(whole_graph, result)


def ended(graph: ChainGraph, result: SearchResult) -> Fitted:
    """The best q of a search, checked, and its states."""
    etas, occupancy = result.best.tables, result.best.occupancy
    for name, eta in etas.items():
        check_proper(Block(name, graph.families[name], graph.priors[name], eta))
    if occupancy is None:
        occupancy = occupancy_of(engine_of(graph, {name: eta.unsqueeze(0) for name, eta in etas.items()}))[0]
    return Fitted(graph, etas, occupancy, result)


def _by_batches(graph: ChainGraph, starts: Starts, options: Options, report: Reporting) -> SearchResult:
    """Passes through minibatches; then the bound of the kept restarts is computed over all data."""
    passes = run_batches(graph, starts, options, report)
    bound = engine_of(graph, passes.etas).elbo().double().cpu()
    climbs = [
        Climb(kind, [last], ended="left behind") for kind, last in zip(starts.kinds, passes.final.tolist(), strict=True)
    ]
    ended = "interrupted" if passes.interrupted else "converged" if passes.converged else "max_steps"
    tol = options.tol * float(graph.data.n_observed)
    for i, number in enumerate(passes.kept.tolist()):
        tables = {name: eta[i] for name, eta in passes.etas.items()}
        climbs[number] = Climb(starts.kinds[number], [*passes.objective, float(bound[i])], tables, ended=ended)
    kept = [climbs[number] for number in passes.kept.tolist()]
    return SearchResult(climbs, max(kept, key=lambda climb: climb.final), passes.interrupted, tol, by_passes=True)
