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
from ..fitting.fit import Fit, check_enough, course, definite
from ..fitting.interrupts import sheltered
from ..fitting.network import NetworkPosterior
from ..fitting.options import Options
from .contract import CoupledSSM, paths_of


@sheltered()
@definite()
def fit_coupled(model: CoupledSSM, series: Series, options: Options) -> Fit[CoupledSSM]:
    """See `CoupledSSM.fit`."""
    check_enough(series, max(model.chain_sizes))
    network = model.network(series, options)
    if options.method == "em":
        network = network.at_points(flat=options.prior is None)
    race = network.race(options, series, ["labels"] * options.restarts, -(-options.restarts // 3))
    best = race.best
    etas = {name: best.tables[name] for name in network.families}
    posterior = NetworkPosterior(etas, network.families, network.collect)
    used = [block.family.mean(best.tables[block.name]) for block in network.paths]
    how = course(race.found())
    paths = paths_of(used, how["objective"], how["converged"])
    empty = tuple(state.flatten(0, -2).sum(0) < 1.0 for state in paths.state)
    return Fit(
        model=model.with_values(posterior.mean),
        method=options.method,
        empty_states=empty,
        collapsed_states=tuple(torch.zeros_like(chain) for chain in empty),
        posterior=posterior if options.method == "vmp" else None,
        paths=paths,
        **how,
    )
