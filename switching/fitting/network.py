r"""Learning by message passing in models whose every parameter is in a conjugate block, and whose every chain is exact.

$$q = q(\theta)\, \prod_d q_d(\text{path}_d), \qquad q(\theta) = \text{a product over blocks}$$

Restarts are the first axis of every block. Expectation-maximisation is the same with every q of a block a point; with
one chain its bound is the evidence.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ...inference.families import Gamma, Point, VectorFamily
from ...inference.message_passing.engine import VMP, Run
from ...inference.message_passing.factor_graph import Block, Factor
from ...inference.numerics.randomness import Seed, generator_of
from ..data.series import Series
from ..parameters import Parameters
from .graph import Etas
from .message_passing import Passing
from .options import Options
from .posterior import ParameterPosterior
from .progress import Progress
from .search import MultiStart

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
        between: what moves all blocks at once where their updates are slow; it does not lower the bound.
    """

    families: dict[str, VectorFamily[Any]]
    priors: dict[str, Tensor]
    factors: list[Factor]
    paths: list[Block]
    collect: Callable[[Points], Parameters]
    between: Callable[[VMP], None] | None = None

    def at_points(self, flat: bool) -> "Network":
        """The same with points in the place of densities; `flat`: without priors."""
        families = {name: Point(family, flat) for name, family in self.families.items()}
        if not flat:
            return replace(self, families=families)
        priors = {name: families[name].nothing(prior) + RIDGE * prior for name, prior in self.priors.items()}
        return replace(self, families=families, priors=priors)

    def engine(
        self,
        restarts: int,
        start: dict[str, Tensor] | None = None,
        check: bool = True,
        linear: frozenset[str] = frozenset(),
    ) -> VMP:
        """The engine. Paths start where they are; parameters start at `start [R, ...]`, or else at their prior."""
        begin = {name: prior.expand(restarts, *prior.shape) for name, prior in self.priors.items()} | (start or {})
        blocks = [Block(name, kind, self.priors[name], begin[name]) for name, kind in self.families.items()]
        return VMP([*blocks, *self.paths], self.factors, restarts, check=check, linear=linear)

    def posterior(self, tables: dict[str, Any]) -> "NetworkPosterior":
        """The distribution of the parameters with these natural parameters."""
        return NetworkPosterior({name: tables[name] for name in self.families}, self.families, self.collect)


@contextmanager
def multi_start(options: Options, series: Series, shift: float = 0.0) -> Iterator[MultiStart]:
    """A search that shows its progress; `shift`: by how much the objective is greater in the user's units."""
    title = f"{options.method.upper()}, {options.restarts} restarts"
    with Progress(title, options.max_steps, options.progress) as shown:
        yield MultiStart(options, series, lambda step, best: shown(step, best + shift))


class NetworkPassing(Passing):
    """A batch of restarts of a network that climb, and leap."""

    def __init__(self, engine: VMP, network: Network, fresh: bool = True) -> None:
        super().__init__(engine)
        self.engine: VMP = engine
        self.network, self.fresh = network, fresh

    def run(self, max_steps: int) -> Run:
        if self.network.between is not None and not self.fresh:
            self.network.between(self.engine)
        self.fresh = False  # parameters have left the prior
        return super().run(max_steps)

    def select(self, restarts: Tensor) -> "NetworkPassing":
        return NetworkPassing(self.engine.select(restarts), self.network, self.fresh)

    def check(self, etas: Etas) -> None:
        """Raise ValueError where natural parameters of one restart, or points, are out of range of their families."""
        for name, family in self.network.families.items():
            family.check(etas[name])
            family.mean(etas[name])

    def at(self, tables: Etas) -> "NetworkPassing":
        there = self.resumed(tables, self.engine.restarts)
        for block in self.network.paths:
            there.engine.update(block.name)
        return there

    def resumed(self, tables: Etas, restarts: int | None) -> "NetworkPassing":
        """Climbs that go on from the natural parameters of all blocks."""
        blocks = [replace(block, eta=tables[name]) for name, block in self.engine.blocks.items()]
        engine = VMP(blocks, self.engine.factors, restarts, check=False, linear=self.engine.linear)
        return NetworkPassing(engine, self.network, fresh=False)


@dataclass(frozen=True, repr=False)
class NetworkPosterior(ParameterPosterior):
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
        generator = generator_of(seed, next(iter(self.blocks.values())).device)
        points = {name: family.sample(self.blocks[name], n, generator) for name, family in self.families.items()}
        return self.collect(points)


def _expected(family: VectorFamily[Any], eta: Tensor) -> Any:
    inner = family.family if isinstance(family, Point) else family
    return family.mean(eta)[..., 0].exp() if isinstance(inner, Gamma) else family.expected(eta)
