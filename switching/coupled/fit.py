r"""Fits of models of several copy chains by message passing, with conjugate blocks of parameters and exact chains.

    redraw_d                 beta, the redraw probability of chain d
    state_d, state, table_l  Dirichlet, the distribution of a fresh state
    emission, background     the families of the emission (layers); for the joint emission of several chains:
    noise                    matrix-normal-Wishart, all chains' locations and the precision
    rate_d                   gamma, for counts the factors of the states of chain d in the rate

Concentrations of the priors are 1; the emission's prior is scaled to the data. The rest is `fitting.graph`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..data.series import Series
from ..fitting.graph import Graph
from ..fitting.message_passing import Sharing, fit_graph
from ..fitting.options import Options
from ..fitting.result import Result, result_of


def fit_coupled(
    graph: Graph, series: Series, options: Options, sizes: Sequence[int], sharing: Sharing | None = None
) -> Result:
    """Fit the parameters of several chains; `paths` of the result are the expected uses of each chain's tables, for
    each group of sequences, of this process.

    Arguments:
        sizes: the number of states of each chain.
        sharing: all data, if the series is a sample of them.
    """
    kinds, n_kept = ["labels"] * options.restarts, -(-options.restarts // 3)
    posterior, search = fit_graph(graph, kinds, options, series, n_kept, sharing=sharing)
    ended, there = (graph, series) if sharing is None else (sharing.graph, sharing.whole.series)
    paths = ended.paths if there.n_sequences else []
    means = [block.family.mean(search.best.tables[block.name]) for block in paths]
    used = [means[i : i + len(sizes)] for i in range(0, len(means), len(sizes))]
    zeros = [series.like.new_zeros(k) for k in sizes]

    def counts() -> list[Tensor]:
        groups = [[(chain.fresh + chain.held).flatten(0, -2).sum(0) for chain in group] for group in used]
        return [torch.stack(of_chain).sum(0) for of_chain in zip(*groups, strict=True)] or zeros

    empty = tuple(count < 1.0 for count in ended.ranks.summed(counts, zeros))
    return result_of(search, options.method, posterior.mean, empty, posterior, paths=used)
