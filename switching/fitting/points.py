r"""The end of EM by quasi-Newton steps, where EM itself is slow.

The steps of EM shrink by the share of the information that the paths hide, often 0.99 or more. With one path the bound
at points $\theta$ is the evidence, and its gradient needs no more than one E-step (Fisher's identity): with $m_b$ the
messages to the blocks and $t_b$ their statistics,

$$\nabla \log p(x, \theta) = \nabla \sum_b \langle m_b, t_b(\theta) \rangle + \nabla \log p(\theta),$$

where $m_b$ counts as a constant. BFGS takes these gradients in free coordinates (Jamshidian & Jennrich 1997,
*Acceleration of the EM algorithm by using quasi-Newton methods*).
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.families import InPieces, LocPrecision, Point, tree_map
from ...inference.message_passing.engine import VMP
from ...inference.numerics.deferred import deferred
from ..ascent import Ascent
from ..definite import DefiniteTransform
from .climbs import Climb
from .density import IMPOSSIBLE
from .graph import Etas, Graph
from .interrupts import may_interrupt
from .search import MultiStart

BEFORE = 64  # steps of EM
STRIDE = 8  # steps between two checks of the progress
DEFINITE: Any = DefiniteTransform()


def repays(graph: Graph) -> bool:
    """Whether the bound at points is the evidence, and all points are free locations and precisions."""
    free = [name for name, family in graph.families.items() if isinstance(family, Point)]
    if any(isinstance(family, Point) and isinstance(family.family, InPieces) for family in graph.families.values()):
        return False
    points = [graph.families[name].expected(graph.priors[name]) for name in free]
    return len(graph.paths) == 1 and bool(free) and all(isinstance(point, LocPrecision) for point in points)


def finish(search: MultiStart, graph: Graph, max_steps: int) -> None:
    """Take the best of a search to its end, in place."""
    best = search.best
    if search.interrupted or best.ended == "converged" or len(best.trace) >= max_steps:
        return
    try:
        with may_interrupt():
            _climb(search, best, graph, max_steps)
    except KeyboardInterrupt:
        search.interrupted = True
        best.ended = "interrupted"
    except IMPOSSIBLE:
        return  # what EM has reached stays


def _climb(search: MultiStart, best: Climb, graph: Graph, max_steps: int) -> None:
    surface = AtPoints(graph, best.tables)
    ascent = Ascent(surface, surface.flat(best.tables))
    while len(best.trace) < max_steps:
        run = ascent.run(min(STRIDE, max_steps - len(best.trace)))
        risen = [max(height, best.final) for height in run.elbo[:, 0].tolist()]
        gain = risen[-1] - best.final
        best.trace += risen
        best.tables, height = surface.tables(ascent.point)
        best.trace[-1] = max(best.final, height)
        search.report(len(best.trace), best.final)
        if run.interrupted:
            raise KeyboardInterrupt
        if gain <= search.tol:
            best.ended = "converged"
            return
    best.ended = "max_steps"


class AtPoints:
    """The log posterior of a graph of one path in free coordinates `[1, P]` of its points: see `ascent.Climbable`."""

    def __init__(self, graph: Graph, tables: Etas) -> None:
        paths = [replace(b, eta=tree_map(lambda part: part.unsqueeze(0), tables[b.name])) for b in graph.paths]
        self.graph = replace(graph, paths=paths)
        self.families = {name: family for name, family in graph.families.items() if isinstance(family, Point)}
        self.like = {name: tables[name] for name in self.families}

    def flat(self, tables: Etas) -> Float[Tensor, "1 P"]:
        """The coordinates of natural parameters."""
        parts = []
        for name, family in self.families.items():
            point = family.expected(tables[name])
            parts += [point.loc.flatten(), DEFINITE.inv(point.precision).flatten()]
        return torch.cat(parts).unsqueeze(0)

    def points(self, flat: Float[Tensor, "P"]) -> dict[str, LocPrecision]:
        """The points of coordinates."""
        points, first = {}, 0
        for name, family in self.families.items():
            like = family.expected(self.like[name])
            n, shape = like.loc.numel(), DEFINITE.inverse_shape(like.precision.shape)
            m = shape.numel()
            loc, precision = flat[first : first + n].reshape(like.loc.shape), flat[first + n : first + n + m]
            points[name] = LocPrecision(loc, DEFINITE(precision.reshape(shape)))
            first += n + m
        return points

    def engine(self, flat: Float[Tensor, "1 P"]) -> VMP:
        """The engine at these points, with its path at their posterior."""
        engine = self.graph.held(self.points(flat[0])).engine(self.graph.start(1), check=False)
        for block in self.graph.paths:
            engine.update(block.name)
        return engine

    def climb(self, flat: Float[Tensor, "R P"]) -> tuple[Float[Tensor, "R"], Float[Tensor, "R P"]]:
        """The log posterior and its gradient."""
        flat = flat.detach()
        try:
            with deferred():
                engine = self.engine(flat)
                messages = {name: engine.message(name)[0] for name in self.families}
                evidence = engine.elbo()
        except IMPOSSIBLE:
            return flat.new_full((1,), -torch.inf), torch.zeros_like(flat)
        with torch.enable_grad():
            here = flat.requires_grad_()
            terms, prior = [], here.new_zeros(())
            for name, point in self.points(here[0]).items():
                statistics = self.families[name].statistics(point)
                terms.append((messages[name] * statistics).sum())
                prior = prior - self.families[name].kl_of(statistics, self.graph.priors[name]).sum()
            (slope,) = torch.autograd.grad(torch.stack(terms).sum() + prior, here)
        height = evidence + prior.detach()
        there = height.isfinite() & slope.isfinite().all(-1)
        return torch.where(there, height, -torch.inf), torch.where(there.unsqueeze(-1), slope, 0.0)

    def tables(self, flat: Float[Tensor, "1 P"]) -> tuple[dict[str, Any], float]:
        """Natural parameters after one more step of EM, those of the path too, and the log posterior there."""
        engine = self.engine(flat)
        moved = {name: self.graph.priors[name] + engine.message(name)[0] for name in self.families}
        etas: dict[str, Any] = {name: engine.blocks[name].eta for name in self.graph.families} | {
            name: eta.unsqueeze(0) for name, eta in moved.items()
        }
        engine = self.graph.engine(etas, check=False)
        for block in self.graph.paths:
            engine.update(block.name)
        tables = {name: tree_map(lambda part: part[0], engine.blocks[name].eta) for name in self.graph.kept}
        return tables, float(engine.elbo())
