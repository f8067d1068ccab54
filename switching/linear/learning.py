r"""Linear models by message passing: $q = q(A, c, Q)\, q(C, d, R)\, q(m, P)\, q(s_{1:T})$, with blocks as in `priors`.

Expectation-maximisation is the same with points in the place of the first three, and exact.
"""

import math
from dataclasses import replace
from functools import partial

import torch

from ...inference.families import GaussianPaths, GaussianTables, Held
from ...inference.message_passing.factor_graph import Block
from ..fitting.network import Network, NetworkPassing, NetworkPosterior, Points, multi_start
from ..fitting.options import Options
from ..fitting.search import KEPT, TRIALS, Found
from ..parameters import Parameters
from .bases import axes_of, turned
from .emission import LinearEmission
from .factors import features, first_state, moves, sights
from .priors import NAMES, Units, blocks, collect, points, prior_volume
from .problem import LinearProblem, typical
from .rebasing import rebase
from .starts import first_paths

PATHS = "latents"


def learn(
    problem: LinearProblem, units: Units, options: Options, own: Parameters | None
) -> tuple[NetworkPosterior, Found]:
    """The best q, or the best parameters, and how they were reached; `own` is the user's own first guess."""
    inner, emission = problem.in_units(units), problem.emission
    assert isinstance(emission, LinearEmission)
    n = options.restarts if options.restarts == 1 else TRIALS * options.restarts
    start, kinds = first_paths(inner.series, problem.dynamics.n_latent, n, options.number)
    whole = network_of(inner, start)
    if own is not None:
        near = paths_at(whole, points(emission.in_units(own, *units), emission))
        start = GaussianTables(*(torch.cat([one, rest[1:]]) for one, rest in zip(near, start, strict=True)))
        whole, kinds = network_of(inner, start), ["own", *kinds[1:]]
    network = whole.at_points(flat=options.prior is None) if options.method == "em" else whole
    held = points(typical(inner.dynamics, emission) | inner.fixed, emission) if inner.fixed else {}
    names = [name for name, known in NAMES.items() if known[0] in inner.fixed]
    network = replace(
        network, families=network.families | {name: Held(whole.families[name], held[name]) for name in names}
    )
    if options.prior is not None and not names:
        network = replace(network, between=partial(rebase, paths=PATHS))
    shift = -units.log_volume(problem.series)
    if options.method == "em" and options.prior is not None:
        shift -= float(prior_volume(problem.dynamics, emission, units.spread))
    with multi_start(options, problem.series, shift) as search:
        search.run(NetworkPassing(network.engine(n), network), kinds, math.ceil(KEPT * options.restarts))
    posterior = network.posterior(search.best.tables)
    turn = torch.eye(problem.dynamics.n_latent).to(inner.series.observations)
    if not inner.fixed:
        turn = axes_of(posterior.mean["emission"])

    def back(found: Points) -> Parameters:
        values = turned(network.collect(found), turn, torch.zeros_like(turn[0]))
        return emission.in_units(values, *units.back)

    return replace(posterior, collect=back), search.found().raised(shift)


def network_of(problem: LinearProblem, start: GaussianTables) -> Network:
    """The network of a problem in units of the data, whose paths start there, `[R, *b, 1, T, ...]`."""
    emission, series = problem.emission, problem.series
    assert isinstance(emission, LinearEmission)
    x, inside = series.observations, series.inside.to(series.observations)
    found = blocks(problem.dynamics.n_latent, emission, x)
    lengths = None if series.lengths is None else series.lengths.unsqueeze(-1)
    seen = (sights if emission.full else features)("sights", PATHS, x, inside)
    factors = [moves("moves", PATHS, inside), seen, first_state("first", PATHS, len(series.batch_shape))]
    return Network(
        {name: family for name, (family, _) in found.items()},
        {name: prior for name, (_, prior) in found.items()},
        factors,
        [Block(PATHS, GaussianPaths(lengths), eta=start)],
        lambda known: collect(known, emission),
    )


def paths_at(network: Network, known: Points) -> GaussianTables:
    """Natural parameters of the paths given parameters, `[1, *b, 1, T, ...]`."""
    families = {name: Held(family, known[name]) for name, family in network.families.items()}
    paths = [replace(block, eta=GaussianTables(*(part[:1] for part in block.eta))) for block in network.paths]
    engine = replace(network, families=families, paths=paths).engine(1, check=False)
    engine.update(PATHS)
    return engine.blocks[PATHS].eta
