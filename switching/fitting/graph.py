r"""The graph of a model for message passing: blocks of parameters and of paths, and the factors between them.

$$q = \prod_b q(\theta_b)\, \prod_d q_d(\text{path}_d)$$

Restarts are the first axis of every block. Expectation-maximisation is the special case in which every $q(\theta_b)$ is
a point. If no factor joins two paths, its bound is the evidence.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ...inference.families import Held, Point, VectorFamily, given_entries, tree_map
from ...inference.message_passing.engine import VMP
from ...inference.message_passing.factor_graph import Block, Factor
from ...inference.numerics.ranks import Ranks
from ..parameters import Parameters

RIDGE = 1e-9  # weight of a prior under maximum likelihood: it determines parameters that the data do not

Etas = dict[str, Tensor]
"""By block of parameters, natural parameters or expected statistics `[*r, ...]`."""

Points = dict[str, Any]
"""By block, a point of its family."""


class Earlier(NamedTuple):
    r"""The q of earlier data. Its power $\lambda$ enters the prior, $q(\theta)^\lambda\, p_0(\theta)^{1 - \lambda}$."""

    etas: Etas
    power: float

    def before(self, priors: Etas, of_priors: dict[str, Factor]) -> tuple[Etas, dict[str, Factor]]:
        """The priors of a graph, from those without earlier data: natural parameters, and priors that are factors."""
        mixed = {
            name: torch.lerp(torch.zeros_like(eta) if name in of_priors else eta, self.etas[name], self.power)
            for name, eta in priors.items()
        }
        weaker = {name: replace(factor, scale=(1 - self.power) * factor.scale) for name, factor in of_priors.items()}
        return mixed, {} if self.power == 1 else weaker


SomeGraph = TypeVar("SomeGraph", bound="Graph")


@dataclass(frozen=True)
class Graph:
    """Blocks and factors from which a model is fitted.

    Attributes:
        families, priors: of the blocks of parameters, by name. If a prior is a factor, `priors` has the natural
            parameters at which q starts.
        factors: the factors that join the blocks.
        paths: the blocks of paths, in order, at their start.
        collect: maps points of the blocks of parameters, with any leading axes, to the model's parameters.
        rebase: moves all blocks together if their single updates are slow; it does not lower the bound.
        alike: whether paths start equal in all restarts, and have no axis for restarts.
        factor_priors: the blocks whose prior is a factor.
        share: the fraction of all data that the series is; it weights the priors.
        ranks: the processes that share the data; factors and paths are those of this process.
        follow: whether paths follow from the parameters, so that a fit does not keep them.
    """

    families: dict[str, VectorFamily[Any]]
    priors: Etas
    factors: Sequence[Factor]
    paths: Sequence[Block]
    collect: Callable[[Points], Parameters]
    rebase: Callable[[Any], None] | None = None
    alike: bool = False
    factor_priors: frozenset[str] = frozenset()
    share: float = 1.0
    ranks: Ranks = field(default_factory=Ranks)
    follow: bool = False

    @property
    def names(self) -> list[str]:
        """Those of all blocks, paths last."""
        return [*self.families, *(block.name for block in self.paths)]

    @property
    def kept(self) -> Collection[str]:
        """The blocks whose natural parameters define the state of a fit."""
        return list(self.families) if self.follow else self.names

    @property
    def exact(self) -> bool:
        """Whether no factor joins two blocks of paths; then the bound at points is the evidence."""
        names = {block.name for block in self.paths}
        return all(len(names & set(factor.blocks)) <= 1 for factor in self.factors)

    def at_points(self: SomeGraph, flat: bool) -> SomeGraph:
        """The graph with points instead of densities, except for blocks that are held; `flat`: without priors."""
        free = {name: Point(f, flat) for name, f in self.families.items() if not isinstance(f, Held)}
        priors = {name: point.nothing(self.priors[name]) + RIDGE * self.priors[name] for name, point in free.items()}
        return replace(self, families=self.families | free, priors=self.priors | (priors if flat else {}))

    def fixed_at(self: SomeGraph, points: Points) -> SomeGraph:
        """The graph with some blocks of parameters held at points, whose NaN entries are free."""
        known = {name: given_entries(self.families[name], point) for name, point in points.items()}
        return replace(self, families=self.families | known)

    def start(self, restarts: int) -> Etas:
        """Natural parameters of all blocks of parameters at their priors."""
        return {name: prior.expand(restarts, *prior.shape) for name, prior in self.priors.items()}

    def engine(self, etas: Etas, check: bool = True, linear: frozenset[str] = frozenset(), step: float = 1.0) -> VMP:
        """The engine with these natural parameters; paths that are not among them start at their own."""
        name, prior = next(iter(self.priors.items()))
        lead = etas[name].shape[: etas[name].ndim - prior.ndim]
        blocks = [
            Block(name, family, None if name in self.factor_priors else prior, etas[name], step, self.share)
            for (name, family), prior in zip(self.families.items(), self.priors.values(), strict=True)
        ]
        for block in self.paths:
            eta = etas.get(block.name, block.eta)
            if self.alike and block.name not in etas:
                eta = tree_map(lambda part: part.expand(*lead, *part.shape), eta)
            blocks.append(replace(block, eta=eta))
        return VMP(blocks, self.factors, int(lead[0]) if lead else None, check, linear, self.ranks)

    def check(self, etas: Etas) -> None:
        """Raise ValueError if natural parameters or points are out of range of their families, in any restart."""
        for name, family in self.families.items():
            family.check(etas[name])
            family.mean(etas[name])
