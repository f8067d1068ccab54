r"""Linear models by message passing: $q = q(A, c, Q)\, q(C, d, R)\, q(m, P)\, q(s_{1:T})$, with blocks as in `priors`.

Expectation-maximisation uses points instead of the first three factors, and is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...inference.families import GaussianPaths, GaussianTables, tree_map
from ...inference.message_passing.factor_graph import Block
from ..data.series import Series
from ..fitting.chunked import ChunkedVMP
from ..fitting.climbs import SearchResult
from ..fitting.graph import Etas, Graph, Points
from ..fitting.message_passing import Sharing, fit_graph
from ..fitting.options import Options
from ..fitting.posterior import VariationalPosterior
from ..fitting.series_graph import SeriesGraph
from ..fitting.units import Units
from ..fitting.whole import Whole
from ..parameters import Parameters
from .bases import axes_of, turned
from .emission import LinearEmission
from .factors import of_blocks
from .fixed import Known, in_states, inverse_in_groups, known_points, open_values
from .priors import families, one_point, one_value, prior_volume, weak
from .problem import LinearProblem, sizes
from .rebasing import rebase
from .starts import SURE, first_paths, near_path

PATHS = "latents"


def learn(
    problem: LinearProblem, units: Units, options: Options, user_start: Parameters | None, whole: Whole | None = None
) -> tuple[VariationalPosterior, SearchResult]:
    """The best q, or the best parameters, and the search for them.

    Arguments:
        whole: all data, if the series of the problem is a sample of them.
    """
    inner, emission, known = problem.in_units(units), problem.emission, Known(problem.fixed, units)
    assert isinstance(emission, LinearEmission)
    start, kinds = first_paths(inner.series, problem.dynamics.n_latent, options.n_tried, options.number)
    if user_start is not None:
        near = paths_at(graph_of(inner, start), one_point(in_states(units.values(user_start), known.unit), emission))
        pairs = zip(near, start, strict=True)
        start = [tree_map(lambda one, rest: torch.cat([one, rest[1:]]), own, others) for own, others in pairs]
        kinds = ["own", *kinds[1:]]
    graph = _as_known(graph_of(inner, start), inner, known, options)
    volume = float(units.log_volume(problem.series).sum())
    beside = 0.0
    if options.method == "em" and options.prior is not None:
        beside = float(prior_volume(problem.dynamics, emission, units.unit))
    sharing = None
    if whole is not None:
        everywhere = _as_known(LinearGraph.of(inner, replace(whole, units=units)), inner, known, options)
        sharing = Sharing(everywhere, whole, -whole.log_volume(units) - beside)
    posterior, search = fit_graph(graph, kinds, options, problem.series, options.n_kept, -volume - beside, sharing)
    turn = torch.eye(problem.dynamics.n_latent).to(inner.series.like)
    if not known.tables:
        turn = axes_of(posterior.mean["emission"])
    return replace(posterior, collect=partial(_in_data, known, emission, turn)), search


def _as_known(graph: Graph, problem: LinearProblem, known: Known, options: Options) -> Graph:
    """The graph with its known entries held; without any, its basis may change."""
    if known.tables:
        emission = problem.emission
        assert isinstance(emission, LinearEmission)
        tables = open_values(problem.parameters, sizes(problem.dynamics, emission), known.inner)
        return graph.fixed_at(known_points(one_point(tables, emission, inverse_in_groups)))
    if options.prior is None:
        return graph
    return replace(graph, rebase=partial(rebase, paths=[block.name for block in graph.paths]))


def _in_data(known: Known, emission: LinearEmission, turn: Tensor, points: Points) -> Parameters:
    """The parameters at points of a fit, in the units of the data and with turned axes of the states."""
    return known.back(turned(one_value(points, emission), turn, torch.zeros_like(turn[0])))


def graph_of(problem: LinearProblem, start: Sequence[GaussianTables]) -> Graph:
    """The graph of a problem in units of the data, with a block of paths for each group of sequences; these start at
    `start`, `[R, *b, 1, T, ...]`."""
    emission, factors, paths = problem.emission, [], []
    assert isinstance(emission, LinearEmission)
    for i, ((_, part), tables) in enumerate(zip(problem.groups, start, strict=True)):
        name, lengths = f"{PATHS}_{i}", part.series.lengths
        factors += of_blocks(name, part.series, emission.full).values()
        paths.append(Block(name, GaussianPaths(None if lengths is None else lengths.unsqueeze(-1)), eta=tables))
    return Graph(**_parameters(problem), factors=factors, paths=paths)


def _parameters(problem: LinearProblem) -> dict[str, Any]:
    """The fields of a graph that describe the blocks of parameters."""
    n, emission = problem.dynamics.n_latent, problem.emission
    assert isinstance(emission, LinearEmission)
    return {
        "families": families(n),
        "priors": weak(n, emission, problem.series.like),
        "collect": partial(one_value, emission=emission),
    }


@dataclass(frozen=True, kw_only=True)
class LinearGraph(SeriesGraph):
    """The graph of all data. Its paths follow from the parameters, and memory holds those of one part."""

    problem: LinearProblem

    @staticmethod
    def of(problem: LinearProblem, whole: Whole) -> "LinearGraph":
        """The graph of all data, of which the problem has a sample."""
        return LinearGraph(**_parameters(problem), factors=(), paths=(), follow=True, problem=problem, whole=whole)

    def to(
        self, series: Series, share: float = 1.0, before: Tensor | None = None, after: Tensor | None = None
    ) -> Graph:
        problem, n = self.problem.of(series), self.problem.dynamics.n_latent
        groups = [part.series for _, part in problem.groups]
        blank = [near_path(part.like.new_zeros(*part.batch_shape, 1, part.n_steps, n), SURE) for part in groups]
        part = graph_of(problem, blank)
        return replace(part, families=self.families, priors=self.priors, alike=True, share=share)

    @property
    def width(self) -> int:
        n, n_features = self.problem.dynamics.n_latent, self.problem.series.n_features
        of_sights = (n + 1) * (n + 1 + n_features) + 1 + n_features**2  # the numbers of a step: see `factors`
        return -(-of_sights // self.problem.n_states)

    def engine(self, etas: Etas, check: bool = True, linear: frozenset[str] = frozenset(), step: float = 1.0) -> Any:
        return ChunkedVMP(self, etas, linear)


def paths_at(graph: Graph, known: Points) -> list[GaussianTables]:
    """Natural parameters of each block of paths given parameters, `[1, *b, 1, T, ...]`."""
    paths = [replace(block, eta=tree_map(lambda part: part[:1], block.eta)) for block in graph.paths]
    engine = replace(graph, paths=paths).fixed_at(known).engine(graph.start(1), check=False)
    for block in paths:
        engine.update(block.name)
    return [engine.blocks[block.name].eta for block in paths]
