r"""The end of EM by quasi-Newton steps, where EM itself is slow.

The steps of EM shrink by the share of the information that the paths hide, often 0.99 or more. Given the best q of the
paths, the gradient of the bound in points $\theta$ needs no more than the messages (with one path, the bound is the
evidence, and this is Fisher's identity): with $m_b$ the messages to the blocks and $t_b$ their statistics,

$$\nabla \max_q L(q, \theta) = \nabla \sum_b \langle m_b, t_b(\theta) \rangle + \nabla \log p(\theta),$$

where $m_b$ counts as a constant. BFGS takes these gradients in free coordinates (Jamshidian & Jennrich 1997,
*Acceleration of the EM algorithm by using quasi-Newton methods*). Several paths are updated in turn before each
gradient, from where they were before, so they keep up with the steps, which are short at the end.
"""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from ...inference.families import (
    Held,
    InPieces,
    LocPrecision,
    MatrixNormalWishart,
    NormalWishart,
    Point,
    tree_map,
)
from ...inference.message_passing.engine import VMP, Block
from ...inference.numerics.deferred import deferred
from ...inference.numerics.interrupts import may_interrupt
from ..ascent import Ascent
from ..known import FreeCoordinates, joined, parted
from ..parameters import Parameters
from .chunked import ChunkedVMP
from .climbs import SAME, Climb
from .density import IMPOSSIBLE
from .graph import Graph
from .search import MultiStart, chosen

ENDS = "ends"  # the name of its loop in a checkpoint
BEFORE = 64  # steps of EM
STRIDE = 8  # steps between two checks of the progress
RESTS = 0.01  # promised rise of a step, in the tolerance of the search, below which a restart waits for the others


def repays(graph: Graph) -> bool:
    """Whether some points are free locations and precision matrices, and no point is known in part."""
    families = [family for family in graph.families.values() if isinstance(family, Point)]
    return bool(_moved(graph)) and not any(isinstance(family.family, InPieces) for family in families)


def finish(search: MultiStart, climbs: Sequence[Climb], graph: Graph, max_steps: int) -> None:
    """Take restarts of a search with equally many steps to their ends, in place."""
    climbs = [climb for climb in climbs if climb.ended == "max_steps" and len(climb.trace) < max_steps]
    if search.interrupted or not climbs:
        return
    known = search.saving.finished(ENDS)
    if known is not None:
        search.set(climbs, known)
        return
    try:
        with may_interrupt():
            _climb(search, climbs, graph, max_steps)
    except KeyboardInterrupt:
        search.interrupted = True
        for climb in climbs:
            climb.ended = "interrupted"
        search.saving.stop()
    except IMPOSSIBLE:
        pass  # what EM has reached stays
    search.saving.end(lambda: search.recorded(climbs))


def _climb(search: MultiStart, climbs: Sequence[Climb], graph: Graph, max_steps: int) -> None:
    known, steps = search.saving.start_loop(ENDS), len(climbs[0].trace)
    if known is None:
        going = _apart(climbs, range(len(climbs)), STRIDE)
    else:
        search.set(climbs, known["climbs"])
        going, steps = known["going"], known["steps"]
        if not going:  # it was noted as the last ones ended
            return
    surface = AtPoints(graph, tables_of([climbs[i] for i in going], graph.kept))
    ascent = Ascent(surface, surface.start, RESTS * search.tol)
    if known is not None:
        surface.set(known["surface"])
        ascent = ascent.resumed(known["ascent"])
    while going and steps < max_steps:
        run = ascent.run(min(STRIDE, max_steps - steps))
        tables, ends = surface.tables(ascent.point)
        steps += run.steps
        rising = _noted([climbs[i] for i in going], run.elbo.T.tolist(), ends.tolist(), tables, search.tol)
        search.report(steps, search.best.final)
        if run.interrupted:
            raise KeyboardInterrupt
        before, going = going, _apart(climbs, [i for i, rises in zip(going, rising, strict=True) if rises], run.steps)
        if len(going) < len(before) and going:
            some = torch.tensor([before.index(i) for i in going], device=ascent.point.device)
            surface, ascent = surface.select(some), ascent.select(some)
            ascent.density = surface
        parts = {"going": going, "steps": steps, "ascent": ascent, "surface": surface}
        search.saving.note(partial(_state, search, climbs, parts))


def _noted(
    climbs: Sequence[Climb],
    risen: Sequence[Sequence[float]],
    ends: Sequence[float],
    tables: Mapping[str, Any],
    tol: float,
) -> list[bool]:
    """Note some steps of restarts, and their tables. Returns which gained more than `tol`.

    A restart for which rounding counts more than its steps keeps its old ones.
    """
    rising = []
    for place, (climb, heights, end) in enumerate(zip(climbs, risen, ends, strict=True)):
        before, last = climb.final, max(climb.final, end)
        rising.append(end > before + tol and end >= heights[-1] - tol)
        if end >= heights[-1] - tol:
            climb.trace += [min(max(height, before), last) for height in heights[:-1]] + [last]
            if end >= before:
                climb.tables = {name: tree_map(lambda part: part[place], table) for name, table in tables.items()}  # noqa: B023
            climb.ended = climb.ended if rising[-1] else "converged"
    return rising


def _apart(climbs: Sequence[Climb], going: Sequence[int], n: int) -> list[int]:
    """The restarts that go on: those that are not at the height of a better one, now and n steps before."""
    order, stay = sorted(range(len(climbs)), key=lambda i: -climbs[i].final), []
    for i in going:
        better = (climbs[j] for j in order[: order.index(i)])
        climbs[i].leader = next((other for other in better if _alike(other, climbs[i], n)), None)
        if climbs[i].leader is None:
            stay.append(i)
        else:
            climbs[i].ended = "merged"
    return stay


def _alike(better: Climb, climb: Climb, n: int) -> bool:
    """Whether two restarts had the same height after the last step of the second, and n steps before."""
    steps = len(climb.trace)
    heights = ((better.trace[min(len(better.trace), k) - 1], climb.trace[k - 1]) for k in (steps - n, steps))
    return better.leader is None and all(abs(one - other) <= SAME for one, other in heights)


def _state(search: MultiStart, climbs: Sequence[Climb], parts: dict[str, Any]) -> dict[str, Any]:
    states = {name: parts[name].state() for name in ("ascent", "surface")}
    return parts | states | {"climbs": search.recorded(climbs)}


def tables_of(climbs: Sequence[Climb], names: Collection[str]) -> dict[str, Any]:
    """The tables of some restarts, `[R, ...]`."""
    return {n: tree_map(lambda *parts: torch.stack(parts), *(climb.tables[n] for climb in climbs)) for n in names}


def _moved(graph: Graph) -> list[str]:
    """The blocks that are points of a location and a precision matrix."""
    points = {name: family.family for name, family in graph.families.items() if isinstance(family, Point)}
    return [name for name, family in points.items() if isinstance(family, MatrixNormalWishart | NormalWishart)]


class PointCoordinates:
    """Free coordinates `[*r, P]` of points, each a location and a precision matrix.

    Arguments:
        near: points `[...]`, by name.
        held: the names of those that have none.
    """

    names: list[str]
    free: FreeCoordinates

    def __init__(self, near: Mapping[str, LocPrecision], held: Collection[str] = ()) -> None:
        kinds = {"loc": constraints.real, "precision": constraints.positive_definite}
        self.names, tables = list(near), self._tables(near)
        known = self._tables({name: near[name] for name in held})
        self.free = FreeCoordinates({name: kinds[name.rpartition(".")[2]] for name in tables}, tables, known)

    def _tables(self, points: Mapping[str, LocPrecision]) -> Parameters:
        return {f"{name}.{part}": table for name, point in points.items() for part, table in vars(point).items()}

    def of(self, points: Mapping[str, LocPrecision]) -> Float[Tensor, "*r P"]:
        """The coordinates of points `[*r, ...]`."""
        return joined(self.free.of(self._tables(points)), self.free.start)

    def at(self, flat: Float[Tensor, "*r P"]) -> dict[str, LocPrecision]:
        """The points at coordinates."""
        tables = self.free.values(parted(flat, self.free.start))
        return {name: LocPrecision(tables[f"{name}.loc"], tables[f"{name}.precision"]) for name in self.names}


class AtPoints:
    """The bound of a graph in free coordinates `[R, P]` of its points: see `ascent.Climbable`.

    All other blocks are updated before each gradient, from where they were at the highest bound so far.
    """

    together = True
    best: dict[str, Any]
    highest: Tensor

    def __init__(self, graph: Graph, tables: Mapping[str, Any]) -> None:
        self.graph = graph
        self.families: dict[str, Any] = {name: graph.families[name] for name in _moved(graph)}
        near = {name: family.expected(tables[name]) for name, family in self.families.items()}
        first = {name: LocPrecision(point.loc[0], point.precision[0]) for name, point in near.items()}
        self.coordinates = PointCoordinates(first)
        self.start: Tensor = self.coordinates.of(near)
        self.best, self.highest = dict(tables), torch.full_like(self.start[:, 0], -torch.inf)
        self._last: VMP | ChunkedVMP | None = None  # the engine at the highest bounds, which knows expected statistics

    @property
    def others(self) -> list[str]:
        """The blocks without coordinates that are free, paths last."""
        families = self.graph.families
        return [
            name for name in self.graph.names if not isinstance(families.get(name), Held) and name not in self.families
        ]

    def state(self) -> dict[str, Any]:
        """Where the other blocks are; see `search.Optimizer`."""
        return {"best": dict(self.best), "highest": self.highest}

    def set(self, state: Mapping[str, Any]) -> None:
        self.best, self.highest = dict(state["best"]), state["highest"]

    def select(self, restarts: Tensor) -> "AtPoints":
        """The bound of some of the restarts."""
        some, there = {name: tree_map(lambda part: part[restarts], eta) for name, eta in self.best.items()}, copy(self)
        there.start, there.best, there.highest, there._last = self.start[restarts], some, self.highest[restarts], None
        return there

    def engine(self, flat: Float[Tensor, "R P"]) -> VMP | ChunkedVMP:
        """The engine at these points, after an update of all other blocks."""
        engine, self._last = self._last or self.graph.engine(self.best, check=False), None
        for name, point in self.coordinates.at(flat).items():
            engine.put(Block(name, Held(self.families[name], point), self.graph.priors[name], self.best[name]))
        for name in self.others:
            engine.update(name)
        return engine

    def climb(self, flat: Float[Tensor, "R P"]) -> tuple[Float[Tensor, "R"], Float[Tensor, "R P"]]:
        """The bound and its gradient."""
        flat = flat.detach()
        try:
            with deferred():
                engine = self.engine(flat)
                bound = engine.elbo()
                messages = {name: engine.message(name) for name in self.families}
        except IMPOSSIBLE:
            return torch.full_like(flat[:, 0], -torch.inf), torch.zeros_like(flat)
        with torch.enable_grad():
            here = flat.requires_grad_()
            terms, prior = [], here.new_zeros(len(flat))
            for name, point in self.coordinates.at(here).items():
                statistics = self.families[name].statistics(point)
                terms.append((messages[name] * statistics).sum())
                prior = prior - self.families[name].kl_of(statistics, self.graph.priors[name]).flatten(1).sum(-1)
            (slope,) = torch.autograd.grad(torch.stack(terms).sum() + prior.sum(), here)
        height = bound + prior.detach()
        there = height.isfinite() & slope.isfinite().all(-1)
        self._keep(engine, there & (height > self.highest), height)
        return torch.where(there, height, -torch.inf), torch.where(there.unsqueeze(-1), slope, 0.0)

    def _keep(self, engine: VMP | ChunkedVMP, risen: Tensor, height: Tensor) -> None:
        """Note the other blocks of the restarts whose bound has risen."""
        self.highest = torch.where(risen, height, self.highest)
        if bool(risen.all()):
            self._last = engine
        for name in set(self.others) & set(self.best):
            self.best[name] = tree_map(partial(chosen, risen), engine.blocks[name].eta, self.best[name])

    def tables(self, flat: Float[Tensor, "R P"]) -> tuple[dict[str, Any], Float[Tensor, "R"]]:
        """Natural parameters of all blocks after one more step of EM, and the bound there."""
        engine = self.engine(flat)
        moved = {name: self.graph.priors[name] + engine.message(name) for name in self.families}
        etas = {name: engine.blocks[name].eta for name in self.graph.kept} | moved
        engine = self.graph.engine(etas, check=False)
        for name in self.others:
            engine.update(name)
        return {name: engine.blocks[name].eta for name in self.graph.kept}, engine.elbo()
