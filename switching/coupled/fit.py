r"""Learning in models of several copy chains, by message passing: every parameter a conjugate block, every chain exact.

    redraw_d                 beta, the redraw probability of chain d
    state_d, state, table_l  Dirichlet, where a fresh state comes from
    emission, background     the families of the emission (layers); of several chains together:
    noise                    matrix-normal-Wishart, all chains' locations and the precision
    rate_d                   gamma, for counts what the states of chain d multiply the rate by

Concentrations of the priors are 1; the emission's prior is scaled to the data. The rest is `fitting.network`.
"""

import torch

from ..data.series import Series
from ..fitting.interrupts import interruptible
from ..fitting.network import Network, NetworkPassing, multi_start
from ..fitting.options import Options
from ..fitting.result import Result, diagnostics


@interruptible()
def fit_coupled(network: Network, series: Series, options: Options) -> Result:
    """Fit the parameters of several chains; `paths` of the result are the expected uses of each chain's tables."""
    if options.method == "em":
        network = network.at_points(flat=options.prior is None)
    with multi_start(options, series) as search:
        optimizer = NetworkPassing(network.engine(options.restarts), network)
        search.run(optimizer, ["labels"] * options.restarts, -(-options.restarts // 3))
    tables = search.best.tables
    posterior = network.posterior(tables)
    used = [block.family.mean(tables[block.name]) for block in network.paths]
    empty = tuple((chain.fresh + chain.held).flatten(0, -2).sum(0) < 1.0 for chain in used)
    return Result(
        values=posterior.mean,
        method=options.method,
        empty_states=empty,
        collapsed_states=tuple(torch.zeros_like(chain) for chain in empty),
        posterior=posterior if options.method == "vmp" else None,
        paths=used,
        **diagnostics(search.found()),
    )
