r"""Learning in models of several copy chains, by message passing: every parameter a conjugate block, every chain exact.

$$q = q(\theta)\, \prod_d q_d(z_d, s_d), \qquad q(\theta) = \text{a product over blocks}$$

    redraw_d                 beta, the redraw probability of chain d
    state_d, state, table_l  Dirichlet, where a fresh state comes from
    emission, background     the families of the emission (layers); of several chains together:
    noise                    matrix-normal-Wishart, all chains' locations and the precision
    rate_d                   gamma, for counts what the states of chain d multiply the rate by

Restarts are the first axis of every block. Concentrations of the priors are 1; the emission's prior is scaled to the
data. Expectation-maximisation is the same with every q of a block a point.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...inference.families import Gamma, Point, VectorFamily
from ...inference.message_passing.engine import VMP
from ...inference.message_passing.factor_graph import Block, Factor
from ...inference.numerics.randomness import Seed, generator_of
from ..data.series import Series
from ..fitting.fit import Fit, check_enough, course, definite
from ..fitting.interrupts import sheltered
from ..fitting.message_passing import Passing
from ..fitting.options import Options
from ..fitting.posterior import ParameterPosterior
from ..fitting.progress import Progress
from ..fitting.search import Race
from ..parameters import Parameters
from .contract import CoupledSSM, paths_of

RIDGE = 1e-9  # how often a prior still counts under maximum likelihood: it holds what the data leave open

Points = dict[str, Any]
"""By block, a point of its family."""


@dataclass(frozen=True)
class Network:
    """What a model learns from.

    Attributes:
        families, priors: of the blocks of parameters, by name.
        factors: that join them to the paths.
        paths: the blocks of the chains' paths, in order.
        collect: from points of the blocks, with any leading axes, to the model's parameters.
    """

    families: dict[str, VectorFamily[Any]]
    priors: dict[str, Tensor]
    factors: list[Factor]
    paths: list[Block]
    collect: Callable[[Points], Parameters]

    def at_points(self, flat: bool) -> "Network":
        """The same with points in the place of densities; `flat`: without priors."""
        families = {name: Point(family, flat) for name, family in self.families.items()}
        if not flat:
            return replace(self, families=families)
        priors = {name: families[name].nothing(prior) + RIDGE * prior for name, prior in self.priors.items()}
        return replace(self, families=families, priors=priors)

    def engine(self, restarts: int) -> VMP:
        """The engine, whose parameters start at their prior and whose paths start at their labels."""
        blocks = [
            Block(name, family, self.priors[name], self.priors[name].expand(restarts, *self.priors[name].shape))
            for name, family in self.families.items()
        ]
        return VMP([*blocks, *self.paths], self.factors, restarts)


@dataclass(frozen=True, repr=False)
class CoupledPosterior(ParameterPosterior):
    """Independent blocks of conjugate families over the parameters; the model says of what.

    Attributes:
        blocks: natural parameters of each block.
        families: of the blocks.
        collect: from points of the blocks to the model's parameters.
    """

    blocks: dict[str, Tensor]
    families: dict[str, VectorFamily[Any]]
    collect: Callable[[Points], Parameters]

    @property
    def mean(self) -> Parameters:
        """Posterior means; of rates, whose logarithms are the parameters, the geometric mean."""
        return self.collect({name: _expected(family, self.blocks[name]) for name, family in self.families.items()})

    def sample(self, n: int, seed: Seed = 0) -> Parameters:
        generator = generator_of(seed)
        points = {name: family.sample(self.blocks[name], n, generator) for name, family in self.families.items()}
        return self.collect(points)


def _expected(family: VectorFamily[Any], eta: Tensor) -> Any:
    inner = family.family if isinstance(family, Point) else family
    return family.mean(eta)[..., 0].exp() if isinstance(inner, Gamma) else family.expected(eta)


@sheltered()
@definite()
def fit_coupled(model: CoupledSSM, series: Series, options: Options) -> Fit[CoupledSSM]:
    """See `CoupledSSM.fit`."""
    if options.method not in ("em", "vmp"):
        raise ValueError(
            f'method: got {options.method!r}, expected "em" or "vmp": the parameters of a {model.name} have no sites.'
        )
    if options.factorization != "structured" or options.batch_size is not None:
        raise ValueError(
            f'factorization, batch_size: got "{options.factorization}" and {options.batch_size}, but the chains of a '
            f"{model.name} are exact, and take all sequences at once; leave both out."
        )
    if options.start is not None or options.fixed:
        raise ValueError(f"start, fixed: got some, but a {model.name} starts from guesses of its own; leave them out.")
    if options.prior == "own":
        raise ValueError(f'prior: got "own", but a {model.name} has no prior of its own; use "scaled", or None.')
    check_enough(series, max(model.n_states))
    network = model.network(series, options)
    if options.method == "em":
        network = network.at_points(flat=options.prior is None)
    title = f"{options.method.upper()}, {options.restarts} restarts"
    with Progress(title, options.max_steps, options.progress) as shown:
        race = Race(options, series, shown)
        race.run(Passing(network.engine(options.restarts)), ("labels",) * options.restarts, -(-options.restarts // 3))
    best = race.best
    etas = {name: best.tables[name] for name in network.families}
    posterior = CoupledPosterior(etas, network.families, network.collect)
    used = [block.family.mean(best.tables[block.name]) for block in network.paths]
    how = course(race.found())
    paths = paths_of(used, how["objective"], how["converged"])
    empty = tuple(state.flatten(0, -2).sum(0) < 1.0 for state in paths.state)
    return Fit(
        model=model.with_parameters(posterior.mean),
        method=options.method,
        empty_states=empty,
        collapsed_states=tuple(torch.zeros_like(chain) for chain in empty),
        posterior=posterior if options.method == "vmp" else None,
        paths=paths,
        **how,
    )
