r"""Linear models by message passing: $q = q(A, c, Q)\, q(C, d, R)\, q(m, P)\, q(s_{1:T})$, with blocks as in `priors`.

Expectation-maximisation uses points instead of the first three factors, and is exact.
"""

from dataclasses import replace
from functools import partial

import torch

from ...inference.families import GaussianPaths, GaussianTables
from ...inference.message_passing.factor_graph import Block
from ..fitting.graph import Graph, Points
from ..fitting.message_passing import fit_graph
from ..fitting.options import Options
from ..fitting.posterior import VariationalPosterior
from ..fitting.search import SearchResult
from ..fitting.units import Units
from ..parameters import Parameters
from .bases import axes_of, turned
from .emission import LinearEmission
from .factors import of_blocks
from .priors import NAMES, families, one_point, one_value, prior_volume, weak
from .problem import LinearProblem, typical
from .rebasing import rebase
from .starts import first_paths

PATHS = "latents"


def learn(
    problem: LinearProblem, units: Units, options: Options, user_start: Parameters | None
) -> tuple[VariationalPosterior, SearchResult]:
    """The best q, or the best parameters, and the search for them."""
    inner, emission = problem.in_units(units), problem.emission
    assert isinstance(emission, LinearEmission)
    start, kinds = first_paths(inner.series, problem.dynamics.n_latent, options.n_tried, options.number)
    if user_start is not None:
        near = paths_at(graph_of(inner, start), one_point(units.values(user_start), emission))
        start = GaussianTables(*(torch.cat([one, rest[1:]]) for one, rest in zip(near, start, strict=True)))
        kinds = ["own", *kinds[1:]]
    graph = graph_of(inner, start)
    if inner.fixed:
        at = one_point(typical(inner.dynamics, emission) | inner.fixed, emission)
        graph = graph.held({name: at[name] for name, known in NAMES.items() if known[0] in inner.fixed})
    elif options.prior is not None:
        graph = replace(graph, rebase=partial(rebase, paths=PATHS))
    shift = -float(units.log_volume(problem.series).sum())
    if options.method == "em" and options.prior is not None:
        shift -= float(prior_volume(problem.dynamics, emission, units.unit))
    posterior, search = fit_graph(graph, kinds, options, problem.series, options.n_kept, shift)
    turn = torch.eye(problem.dynamics.n_latent).to(inner.series.observations)
    if not inner.fixed:
        turn = axes_of(posterior.mean["emission"])

    def back(points: Points) -> Parameters:
        return units.back(turned(graph.collect(points), turn, torch.zeros_like(turn[0])))

    return replace(posterior, collect=back), search


def graph_of(problem: LinearProblem, start: GaussianTables) -> Graph:
    """The graph of a problem in units of the data; its paths start at `start`, `[R, *b, 1, T, ...]`."""
    emission, series = problem.emission, problem.series
    assert isinstance(emission, LinearEmission)
    lengths = None if series.lengths is None else series.lengths.unsqueeze(-1)
    return Graph(
        families(problem.dynamics.n_latent),
        weak(problem.dynamics.n_latent, emission, series.observations),
        list(of_blocks(PATHS, series, emission.full).values()),
        [Block(PATHS, GaussianPaths(lengths), eta=start)],
        lambda known: one_value(known, emission),
    )


def paths_at(graph: Graph, known: Points) -> GaussianTables:
    """Natural parameters of the paths given parameters, `[1, *b, 1, T, ...]`."""
    paths = [replace(block, eta=GaussianTables(*(part[:1] for part in block.eta))) for block in graph.paths]
    engine = replace(graph, paths=paths).held(known).engine(graph.start(1), check=False)
    engine.update(PATHS)
    return engine.blocks[PATHS].eta
