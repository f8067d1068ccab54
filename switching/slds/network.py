r"""Switching linear models on the engine: one block for the paths of states, one for those of the switch.

$$q = q(\theta)\, q(z_{1:T}) \prod_m q(s^{(m)}_{1:T})$$

Every q of paths is an exact chain (Ghahramani & Hinton 2000, *Variational learning for switching state-space models*):
given the others a path of states has the natural parameters of its own moves, and of sights that count as often as the
switch is expected to show them. A responsibility of 0 is a term that is not there.

The blocks of the parameters are densities to learn, points of them, or held at values: the factors are the same.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...inference.families import (
    Dirichlet,
    Gaussian,
    GaussianPaths,
    GaussianTables,
    Held,
    MarkovPaths,
    MarkovTables,
    MatrixNormalWishart,
    NormalWishart,
    VectorFamily,
    tree_map,
)
from ...inference.message_passing.engine import VMP
from ...inference.message_passing.factor_graph import Block, Factor
from ...inference.numerics.deferred import deferred
from ..data.series import Series
from ..dynamics import factors as discrete
from ..linear import factors as linear
from ..parameters import Parameters
from .layout import LinearRegimes
from .recurrence import recurrence

CHAIN, SWITCH = "chain", "switch"
COLD = 0.01  # degrees above 1, from which on the temperature is 1


@dataclass(frozen=True)
class Graph:
    """What a model and a series are on the engine, but for the blocks of parameters."""

    layout: LinearRegimes
    x: Tensor  # [*b, T, F] with NaN
    lengths: Tensor  # [*b]

    @staticmethod
    def of(layout: LinearRegimes, series: Series) -> "Graph":
        x = series.observations
        lengths = torch.full(series.batch_shape, series.n_steps, device=x.device)
        return Graph(layout, x, lengths if series.lengths is None else series.lengths)

    @property
    def inside(self) -> Tensor:
        """[*b, T], 1 where a step belongs to its sequence."""
        steps = torch.arange(self.x.shape[-2], device=self.x.device)
        return (steps < self.lengths.unsqueeze(-1)).to(self.x)

    @property
    def switched(self) -> bool:
        """Whether there is more than one regime."""
        return self.layout.n_regimes > 1

    @property
    def families(self) -> dict[str, VectorFamily[Any]]:
        """Of the blocks of parameters."""
        n, k = self.layout.n_latent, self.layout.n_regimes
        found: dict[str, VectorFamily[Any]] = {
            "first": NormalWishart(),
            "moves": MatrixNormalWishart(n + 1),
            "sights": MatrixNormalWishart(n + 1),
        }
        if k > 1:
            found["initial"] = Dirichlet()
            found |= {"recurrence": Gaussian()} if self.layout.recurrent else {"transition": Dirichlet()}
        return found

    def factors(self, temperature: float = 1.0) -> list[Factor]:
        """All factors; those that join states and switch count 1 / temperature."""
        n_axes, inside = self.inside.ndim, self.inside
        switch = SWITCH if self.switched else None
        moved = switch if self.layout.one_chain else None
        seen = None if self.layout.common_emission else switch
        sights = linear.sights if self.layout.full_noise else linear.features
        found = [
            linear.first_state("first", CHAIN, n_axes - 1),
            linear.moves("moves", CHAIN, inside, moved),
            sights("sights", CHAIN, self.x, inside, seen),
        ]
        if switch is not None:
            found.append(discrete.first_state("initial", SWITCH, n_axes))
            if self.layout.recurrent:
                found.append(recurrence("recurrence", CHAIN, SWITCH, inside))
            else:
                found.append(discrete.moves("transition", SWITCH, n_axes))
        both = {CHAIN, SWITCH}
        return [replace(f, scale=1 / temperature) if both <= set(f.blocks) else f for f in found]

    def states(self, restarts: int) -> GaussianTables:
        """Natural parameters of paths of states [R, *b, C, T, ...] of which is known that they are near 0."""
        n, steps = self.layout.n_latent, self.x.shape[-2]
        shape = (restarts, *self.lengths.shape, self.layout.n_chains)
        zero, unit = self.x.new_zeros(()), torch.eye(n).to(self.x)
        return GaussianTables(
            zero.expand(*shape, steps, n), (-unit / 2).expand(*shape, steps, n, n), zero.expand(*shape, steps - 1, n, n)
        )

    def regimes(self, log_weight: Tensor) -> MarkovTables:
        """Natural parameters of paths of the switch from log-weights [R, *b, T, K] of each step."""
        *shape, steps, k = log_weight.shape
        moves = (steps - 1, k, k) if self.layout.recurrent else (k, k)
        zero = log_weight.new_zeros(())
        return MarkovTables(zero.expand(*shape, k), zero.expand(*shape, *moves), log_weight)

    def paths(self, states: GaussianTables, log_weight: Tensor | None) -> list[Block]:
        """The blocks of both paths at a start."""
        found = [Block(CHAIN, GaussianPaths(self.lengths.unsqueeze(-1)), eta=states)]
        if not self.switched:
            return found
        assert log_weight is not None
        return [*found, Block(SWITCH, MarkovPaths(self.lengths), eta=self.regimes(log_weight))]

    def held(self, values: Parameters, restarts: int) -> list[Block]:
        """The blocks of parameters at known values."""
        points, found = self.layout.points(values), []
        for name, family in self.families.items():
            eta = family.statistics(points[name])
            held = Held(family, points[name])
            found.append(Block(name, held, eta, eta.nan_to_num(neginf=0.0).expand(restarts, *eta.shape)))
        return found

    def at(self, values: Parameters, states: GaussianTables, log_weight: Tensor | None) -> VMP:
        """The engine at known parameters, from a start of both paths."""
        blocks = [*self.held(values, states.linear.shape[0]), *self.paths(states, log_weight)]
        return VMP(blocks, self.factors(), states.linear.shape[0], check=False, linear=LINEAR)


LINEAR = frozenset({SWITCH})
"""The blocks in whose statistics all factors are linear, not just affine."""


def annealed(engine: VMP, graph: Graph, which: Tensor, hot: float, cooling: float, sweeps: int) -> VMP:
    """The engine after some of its restarts, `which` [R], have been cooled down.

    What joins states and switch counts 1/T for some sweeps, from T = hot on; then T - 1 is multiplied by `cooling`,
    until it is `COLD`, and all count fully again.
    """
    places = which.nonzero().flatten().to(graph.x.device)
    if not len(places) or not graph.switched:
        return engine
    part, temperature = engine.select(places), hot
    while temperature > 1 + COLD:
        blocks = part.blocks.values()
        part = VMP(blocks, graph.factors(temperature), len(places), check=False, linear=engine.linear)
        with deferred():
            for _ in range(sweeps):
                part.step()
        temperature = 1 + cooling * (temperature - 1)
    blocks = []
    for name, block in engine.blocks.items():
        eta = tree_map(
            lambda all_, own: all_.clone().index_copy(0, places.to(own.device), own), block.eta, part.blocks[name].eta
        )
        blocks.append(replace(block, eta=eta))
    return VMP(blocks, engine.factors, engine.restarts, check=False, linear=engine.linear)


def bound_by_sequence(engine: VMP, graph: Graph) -> Tensor:
    """The part of the bound that is each sequence's own, [R, *b]; at known parameters they sum to the whole."""
    axes = 1 + graph.lengths.ndim
    total = torch.zeros((), dtype=graph.x.dtype, device=graph.x.device)
    for factor in engine.factors:
        value = factor.value(*map(engine.stats, factor.blocks))
        total = total + factor.scale * value.flatten(axes).sum(-1) if value.ndim > axes else total + value
    for name in (CHAIN, SWITCH):
        if name in engine.blocks:
            block = engine.blocks[name]
            log_normalizer, mean = block.family.evaluate(block.eta)
            entropy = log_normalizer - block.family.dot(block.eta, mean)
            total = total + (entropy.flatten(axes).sum(-1) if entropy.ndim > axes else entropy)
    return total
