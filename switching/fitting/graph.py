r"""A model under message passing: its parameters in conjugate blocks, its paths in one more, and the factors between.

$$q = q(\text{paths}) \prod_b q(\theta_b), \qquad
\log p(x, y \mid \theta) = \sum_b \langle t_b(\theta), n_b(y, x) \rangle + \text{const}$$

where y is the path, with whatever is missing of x. Each block of parameters meets the paths in one factor, in which an
update of the paths is an E-step under expected logs, and one of the parameters adds expected counts to the prior.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ...inference.chains.contract import Chain
from ...inference.families import CopyTables, FactoredTables, MarkovTables, VectorFamily
from ...inference.message_passing.engine import VMP
from ...inference.message_passing.factor_graph import Block, Factor
from ..data.series import Series
from ..dynamics.contract import PATHS, Dynamics
from ..dynamics.factors import named
from ..emissions.contract import ConjugateEmission, Emission, Part
from ..parameters import Parameter, Parameters, prefixed, reordered, with_prefix
from ..priors import Conjugate, log_prior
from ..problem import Problem

Etas = dict[str, Tensor]
"""By block of parameters, natural parameters or expected statistics `[*r, ...]`."""


@dataclass(frozen=True)
class Graph:
    """Blocks and factors of a problem.

    Attributes:
        problem: best in units of the data's spread: second moments lose no digits then.
        independent: whether every step of a path is on its own under q.
        share: the part that this series is of all data: the prior counts by it.
        before, after: [*r, *b, K], where the series is a stretch of a longer one: see `Chain.between`. The first step
            is then the last of the stretch before, where it was counted.
    """

    problem: Problem
    independent: bool = False
    share: float = 1.0
    before: Tensor | None = None
    after: Tensor | None = None

    @staticmethod
    def of(problem: Problem, independent: bool = False) -> "Graph":
        """The graph of a problem under its prior.

        Raises:
            TypeError: an emission that has no conjugate prior.
            ValueError: independent steps, two of which a gap of 0 makes one.
        """
        gaps = problem.series.drive.gaps
        if independent and gaps is not None and bool((gaps[..., 1:] == 0).any()):
            raise ValueError(
                "dt: got a gap of 0, which holds the state for certain, so that no two steps are independent; "
                'use factorization="structured".'
            )
        return Graph(problem, independent)

    @cached_property
    def blocks(self) -> "Blocks":
        """Those of the parameters, held where they are fixed."""
        return blocks_of(self.problem.dynamics, self.problem.emission, self.problem.fixed)

    @property
    def priors(self) -> Etas:
        """Natural parameters of each block's prior, or where q of a block starts whose prior is a factor."""
        assert self.problem.prior is not None
        return {n: block.natural(with_prefix(self.problem.prior, prefix)) for n, (prefix, block) in self.blocks.items()}

    # ---- the engine ------------------------------------------------------------------------------------------------

    def engine(self, etas: Etas, check: bool = True, linear: frozenset[str] = frozenset(), step: float = 1.0) -> VMP:
        """The engine with these natural parameters of the parameters; its paths are yet to be updated."""
        hyper, (name, prior) = self.problem.prior or {}, next(iter(self.priors.items()))
        lead = etas[name].shape[: etas[name].ndim - prior.ndim]
        blocks = [
            Block(name, block.family, None if block.prior_is_factor else prior, etas[name], step, self.share)
            for (name, (_, block)), prior in zip(self.blocks.items(), self.priors.values(), strict=True)
        ]
        dynamics, series, parts = self.problem.dynamics, self.problem.series, conjugates(self.problem.emission)
        gated = len(parts) > 1
        family, zero = dynamics.paths(series, tuple(lead), gated, alike=gated and not self.independent)
        cut = {"before": self.before, "after": self.after, "independent": self.independent}
        family = replace(family, **cut)  # pyright: ignore[reportArgumentType]
        factors = [
            *dynamics.factors(series, self.counted, gated),
            *(
                block.prior_factor(name, with_prefix(hyper, prefix), self.share)
                for name, (prefix, block) in self.blocks.items()
                if block.prior_is_factor
            ),
            *(emitted(part, PATHS, series.observations, self.counted, len(parts) == 1) for part in parts),
        ]
        restarts = int(lead[0]) if lead else None
        return VMP([*blocks, Block(PATHS, family, eta=zero)], factors, restarts, check, linear)

    def linear(self, etas: Etas) -> frozenset[str]:
        """`VMP.linear` of the engine, whose blocks and factors are tested on two steps."""
        first = self.problem.series.part(torch.zeros(1, dtype=torch.long, device="cpu"))
        return self.to(first.stretch(0, 2)).engine(etas).linear

    @property
    def counted(self) -> Tensor | None:
        """[T], 0 where a step was counted elsewhere; None: nowhere."""
        if self.before is None:
            return None
        counted = torch.ones(self.problem.series.n_steps).to(self.problem.series.observations)
        counted[0] = 0.0
        return counted

    def chain(self, etas: Etas) -> Chain:
        """The chain over paths under a q of the parameters: smoothing, draws, the most probable path."""
        engine = self.engine(etas, check=False)
        engine.update(PATHS)
        paths = engine.blocks[PATHS]
        return paths.family.chain(paths.eta)  # type: ignore[attr-defined]

    # ---- parameters ------------------------------------------------------------------------------------------------

    def point(self, values: Parameters) -> Etas:
        """Statistics of given parameters: those that a q has which is one point."""
        return {n: block.statistics(with_prefix(values, prefix)) for n, (prefix, block) in self.blocks.items()}

    def to(self, series: Series, share: float = 1.0, **changes: Tensor | None) -> "Graph":
        """The same for another part of the data."""
        return replace(self, problem=self.problem.of(series), share=self.share * share, **changes)


@dataclass(frozen=True)
class FixedBlock(Conjugate):
    """A block of parameters of which a fit holds some, or all, at given values."""

    block: Conjugate
    at: Parameters

    @cached_property
    def family(self) -> VectorFamily[Any]:  # type: ignore[override]
        return self.block.given(self.at)

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        return self.block.parameters

    @property
    def prior_is_factor(self) -> bool:  # type: ignore[override]
        return self.block.prior_is_factor

    def prior_factor(self, block: str, prior: Parameters, share: float) -> Factor:
        """That of what is free."""
        whole, sites = self.block.prior_factor(block, prior, share), self.block.sites(prior)
        known = log_prior([site for site in sites if site.name in self.at], self.at)
        return replace(whole, elog=named(whole.name, lambda statistics: whole.elog(statistics) - known))

    def natural(self, prior: Parameters) -> Tensor:
        return self.block.natural(prior)

    def point(self, values: Parameters) -> Any:
        return self.block.point(values)

    def values(self, point: Any) -> Parameters:
        return self.block.values(point)


Blocks = dict[str, tuple[str, Conjugate]]
"""The blocks of parameters by name, each with the prefix that its parameters' names have."""


def blocks_of(dynamics: Dynamics, emission: Emission, fixed: Parameters | None = None) -> Blocks:
    """The blocks of a model's parameters, held where they are fixed."""
    found: Blocks = {name: ("", block) for name, block in dynamics.blocks.items()}
    found |= {part.block: (part.prefix, part.emission) for part in conjugates(emission)}  # type: ignore[dict-item]
    for name, (prefix, block) in found.items():
        at = {own: value for own, value in with_prefix(fixed or {}, prefix).items() if own in block.parameters}
        if at:
            found[name] = prefix, FixedBlock(block, at)
    return found


def renumbered(blocks: Blocks, etas: Etas, order: Int[Tensor, "K"]) -> Etas:
    """The same q with state `order[k]` as state k."""
    found = dict(etas)
    for name, (prefix, block) in blocks.items():
        if prefix:
            continue  # a background is the same in all states
        first, parameter = next(iter(block.parameters.items()))
        dims = parameter.dims
        if etas[name].ndim > len(dims):  # [*plates, P], where those of a Dirichlet are shaped as its probabilities
            dims = (*dims[: etas[name].ndim - 1], "statistic")
        found[name] = reordered({first: replace(parameter, dims=dims)}, {first: etas[name]}, order)[first]
    return found


def expected(blocks: Blocks, etas: Etas) -> Parameters:
    """Expected parameters under a q."""
    found: Parameters = {}
    for name, (prefix, block) in blocks.items():
        found |= prefixed(block.expected(etas[name]), prefix)
    return found


def drawn(blocks: Blocks, etas: Etas, n: int, generator: torch.Generator | None) -> Parameters:
    """n draws of the parameters, on a leading axis."""
    found: Parameters = {}
    for name, (prefix, block) in blocks.items():
        found |= prefixed(block.values(block.family.sample(etas[name], n, generator)), prefix)
    return found


def conjugates(emission: Emission) -> list[Part]:
    """The emission's parts, all of which have conjugate priors."""
    parts = []
    for part in emission.parts:
        if not isinstance(part.emission, ConjugateEmission):
            raise TypeError(
                f"emission: {part.emission.name} has no conjugate family, which message passing needs; "
                'use method="em", "svi" or "nuts".'
            )
        parts.append(part)
    return parts


def emitted(part: Part, chain: str, x: Tensor, counted: Tensor | None = None, alone: bool = True) -> Factor:
    """E log p(x_t | s_t) at the steps that a part of an emission answers for: all, those drawn, or those held."""
    emission, rows = part.emission, x.reshape(-1, x.shape[-1])
    assert isinstance(emission, ConjugateEmission)
    at_drawn, at_held = alone or not part.prefix, alone or bool(part.prefix)

    def weights(paths: CopyTables | FactoredTables | MarkovTables) -> Tensor:
        drawn, held = paths.steps
        if held is None:
            return drawn
        if at_drawn and at_held:
            return drawn + held
        return drawn if at_drawn else held.sum(-1, keepdim=True)

    def elog(paths: CopyTables | FactoredTables | MarkovTables, statistics: Tensor) -> Tensor:
        used = weights(paths)
        return torch.where(used == 0, 0.0, used * emission.expected_table(x, statistics)).sum(-1)

    def to_chain(
        paths: CopyTables | FactoredTables | MarkovTables, statistics: Tensor
    ) -> CopyTables | FactoredTables | MarkovTables:
        table = emission.expected_table(x, statistics)
        table = table if counted is None else table.mul_(counted.unsqueeze(-1))
        return type(paths).of_steps(table if at_drawn else None, table if at_held else None)

    def to_block(paths: CopyTables | FactoredTables | MarkovTables, statistics: Tensor) -> Tensor:
        own = weights(paths) if counted is None else weights(paths) * counted.unsqueeze(-1)
        return emission.expected_message(rows, own.reshape(*own.shape[: own.ndim - x.ndim], len(rows), -1), statistics)

    messages = {chain: to_chain, part.block: to_block}
    return Factor(named(part.block, elog), (chain, part.block), messages, mask=counted, convex=(part.block,))
