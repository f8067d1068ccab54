r"""Fits of models of several copy chains by message passing, with conjugate blocks of parameters and exact chains.

    redraw_d                 beta, the redraw probability of chain d
    state_d, state, table_l  Dirichlet, the distribution of a fresh state
    emission, background     the families of the emission (layers); for the joint emission of several chains:
    noise                    matrix-normal-Wishart, all chains' locations and the precision
    rate_d                   gamma, for counts the factors of the states of chain d in the rate

Concentrations of the priors are 1; the emission's prior is scaled to the data. The rest is `fitting.graph`.
"""

import torch

from ..data.series import Series
from ..fitting.graph import Graph
from ..fitting.message_passing import fit_graph
from ..fitting.options import Options
from ..fitting.result import Result, result_of


def fit_coupled(graph: Graph, series: Series, options: Options) -> Result:
    """Fit the parameters of several chains; `paths` of the result are the expected uses of each chain's tables, for
    each group of sequences."""
    posterior, search = fit_graph(graph, ["labels"] * options.restarts, options, series, -(-options.restarts // 3))
    means = [block.family.mean(search.best.tables[block.name]) for block in graph.paths]
    n_chains = len(means) // len(series.groups())
    used = [means[i : i + n_chains] for i in range(0, len(means), n_chains)]
    counts = [[(chain.fresh + chain.held).flatten(0, -2).sum(0) for chain in group] for group in used]
    empty = tuple(torch.stack(of_chain).sum(0) < 1.0 for of_chain in zip(*counts, strict=True))
    return result_of(search, options.method, posterior.mean, empty, posterior, paths=used)
