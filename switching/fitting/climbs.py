"""Restarts of a search: their traces, and the result of all of them."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

FARTHEST = 100.0  # longest extrapolation, in strides
VISIBLE = 1e-9  # share of an objective below which a fall is ignored
SAME = 0.01  # nats within which two runs have reached the same optimum
ALIKE = 0.02  # relative difference of all parameters, below which two such runs are at the same point
NEIGHBOURS = 4  # by height, with which a run is compared
FEW = 2  # kinds of start below which an optimum is doubted
THIRD = 3  # of the kinds, by height: see `SearchResult.spacing`

COLUMNS = ["start", "steps", "objective", "ended", "agrees", "independent"]


@dataclass
class Climb:
    """One restart: the kind of its start, its trace, and its current tables."""

    kind: str
    trace: list[float] = field(default_factory=list)
    tables: dict[str, Any] = field(default_factory=dict)
    collapsed: Tensor | None = None
    occupancy: Tensor | None = None
    """`[K]`, expected number of steps in each state, if it is known from the last step."""
    sound: bool = True
    """Whether no state has collapsed: see `unbounded`."""
    ended: str = ""
    independent: bool = True
    """Whether its start does not come from the end of another restart."""
    leader: "Climb | None" = None
    """The restart with which this one has merged, because both were at the same point."""

    @property
    def final(self) -> float:
        return self.trace[-1] if self.trace else -math.inf

    def recorded(self, others: Sequence["Climb"]) -> dict[str, Any]:
        """All of it for a checkpoint; `others` has its leader."""
        place = next((i for i, other in enumerate(others) if other is self.leader), None)
        trace = torch.tensor(self.trace, dtype=torch.float64, device="cpu")
        return vars(self) | {"trace": trace, "tables": dict(self.tables), "leader": place}

    def set(self, record: Mapping[str, Any], others: Sequence["Climb"]) -> None:
        """Become the restart that was recorded."""
        leader = None if record["leader"] is None else others[record["leader"]]
        vars(self).update(record, trace=record["trace"].tolist(), leader=leader)

    def raised(self, by: float) -> "Climb":
        """The restart for an objective that is greater by a constant."""
        leader = None if self.leader is None else self.leader.raised(by)
        return replace(self, trace=[height + by for height in self.trace], leader=leader)

    def reached(self, height: float) -> bool:
        """Whether this restart, or the one that it has merged with, ended within 0.01 nats of this height."""
        return abs(self.final - height) <= SAME if self.leader is None else self.leader.reached(height)

    @property
    def is_sound(self) -> bool:
        """Whether no state has collapsed at its end, which of a merged restart is that of the other one."""
        return self.sound if self.leader is None else self.leader.is_sound

    def remaining_gain(self, rounding: float) -> float:
        """The estimated remaining gain, from the last two rises."""
        before, last = self._rises
        if abs(last) <= rounding * abs(self.final):
            return 0.0
        return last * last / (before - last) if before > last else math.inf

    def extrapolation(self, rounding: float, stride: int) -> float:
        """The length of an extrapolation in strides of so many steps, from the last two rises; 0 if they allow no
        estimate."""
        before, last = self._rises
        if not rounding * abs(self.final) < last < before < math.inf:
            return 0.0
        rate = (last / before) ** (stride / 2)
        return min(rate / (1 - rate), FARTHEST)

    @property
    def _rises(self) -> tuple[float, float]:
        if len(self.trace) < 3:
            return math.inf, math.inf
        a, b, c = self.trace[-3:]
        return b - a, c - b


@dataclass(frozen=True)
class SearchResult:
    """All restarts of a search, and the best of them."""

    climbs: list[Climb]
    best: Climb
    interrupted: bool
    tol: float = 0.0  # remaining gain in nats at which a run has converged
    by_passes: bool = False  # whether the steps were passes through minibatches; then the trace is an estimate
    points: tuple[str, str] = "a state on a single point", 'prior="weak" bounds it'  # of an unbounded end, and its cure
    sample: "SearchResult | None" = None  # the search on a sample of the data, whose best ends went on with all

    def raised(self, by: float, on_sample: float = 0.0) -> "SearchResult":
        """The result for an objective that is greater by a constant, and by another one on the sample."""
        climbs = [climb.raised(by) for climb in self.climbs]
        best = next(new for new, old in zip(climbs, self.climbs, strict=True) if old is self.best)
        sample = None if self.sample is None else self.sample.raised(on_sample)
        return replace(self, climbs=climbs, best=best, sample=sample)

    @property
    def reason(self) -> str:
        """Why the best restart ended, and whether few kinds of start have reached it."""
        fall = f"; the objective fell by {self.fall:.2g} nats at a step" if self.fall else ""
        n_failed = sum(climb.ended == "failed" for climb in self.climbs)
        failed = f"; {n_failed} of {len(self.climbs)} starts failed and were dropped" if n_failed else ""
        return self._ending + fall + self._doubt + self._unbounded + failed

    @property
    def agreement(self) -> tuple[int, int]:
        """The number of independent kinds of start that reached the best optimum, and of all; of a search on a sample,
        there."""
        if self.sample is not None:
            return self.sample.agreement
        first = [climb for climb in self.climbs if climb.independent]
        reached = {climb.kind for climb in first if climb.reached(self.best.final)}
        return len(reached), len({climb.kind for climb in first})

    @property
    def doubted(self) -> bool:
        """Whether so few kinds of start have reached the best optimum that a better one may exist."""
        n, tried = self.agreement
        return n < FEW < tried

    @property
    def _doubt(self) -> str:
        if self.interrupted or not self.doubted:
            return ""
        n, tried = self.agreement
        reached = f"only {n} of {tried} kinds of start reached this optimum"
        if not n:
            others = "only changed copies of other ends did"
            reached = f"none of the {tried} kinds of first guess reached this optimum, {others}"
        within = f", within about {self.spacing:.2g} nats" if self.spacing > self.tol else ""
        return f"; {reached}, so a better one may exist{within}: raise restarts="

    @property
    def spacing(self) -> float:
        """How far the third best kind of first guess ends below the best optimum, in nats; 0 if it is not known.

        If the optimum is doubted, a better one is rarely further above it: see docs/quality/fit_quality.md.
        """
        if self.sample is not None:
            return self.sample.spacing
        heights: dict[str, float] = {}
        for climb in self.climbs:
            if climb.independent and climb.ended != "failed":
                heights[climb.kind] = max(climb.final, heights.get(climb.kind, -math.inf))
        gap = self.best.final - sorted(heights.values(), reverse=True)[:THIRD][-1] if heights else 0.0
        return gap if math.isfinite(gap) else 0.0

    @property
    def _unbounded(self) -> str:
        """Whether starts ended higher, or this one did, where the likelihood is unbounded."""
        points = [climb for climb in self.climbs if not climb.is_sound]
        if self.best.is_sound and all(climb.final <= self.best.final for climb in points):
            return ""
        which = "the best of the others is kept" if self.best.is_sound else "this one too"
        end, cure = self.points
        return (
            f"; {len(points)} of {len(self.climbs)} starts ended with {end}, where the likelihood is unbounded "
            f"({which}): {cure}"
        )

    @property
    def fall(self) -> float:
        """The largest fall of the best restart's objective at a step, in nats; 0 if it is within the tolerance."""
        trace = [] if self.by_passes else self.best.trace
        falls = [before - after for before, after in itertools.pairwise(trace)]
        most = max(falls, default=0.0)
        return most if most > self.tol + VISIBLE * abs(self.best.final) else 0.0

    @property
    def _ending(self) -> str:
        if self.interrupted:
            return "not converged: interrupted before the search was complete, so a better optimum may exist"
        if self.best.ended == "converged":
            gain = "gain of the last pass" if self.by_passes else "remaining gain"
            return f"converged: the {gain} is below {self.tol:.2g} nats"
        gain = math.inf if self.by_passes else self.best.remaining_gain(0.0)
        ahead = f"about {gain:.2g} nats" if math.isfinite(gain) else "unknown"
        return f"not converged: the remaining gain is {ahead} after {len(self.best.trace)} steps; raise max_steps"

    @property
    def table(self) -> pd.DataFrame:
        """One row per restart: kind of start, steps, objective, how it ended, whether it reached the best optimum, and
        whether its start does not come from another end. After a search on a sample, these are its restarts."""
        if self.sample is not None:
            return self.sample.table
        rows = [
            (c.kind, len(c.trace), c.final, c.ended, c.reached(self.best.final), c.independent) for c in self.climbs
        ]
        return pd.DataFrame(rows, columns=COLUMNS)


def merged(climbs: list[Climb], points: Float[Tensor, "R P"]) -> list[Climb | None]:
    """For each restart a slightly better one that is at the same point, up to the order of states, or None.

    Arguments:
        points: all parameters, sorted within each table, so that the order of states does not matter.
    """
    order = sorted(range(len(climbs)), key=lambda i: -climbs[i].final)
    points = points[torch.tensor(order, device=points.device)]
    leaders: list[Climb | None] = [None] * len(climbs)
    for ahead in range(min(NEIGHBOURS, len(climbs) - 1), 0, -1):
        worse, better = points[ahead:], points[:-ahead]
        near = (worse - better).abs() <= ALIKE * torch.maximum(worse.abs(), better.abs()).clamp_min(ALIKE)
        for place, alike in enumerate(near.all(-1).tolist(), start=ahead):
            climb, leader = climbs[order[place]], climbs[order[place - ahead]]
            if alike and leader.final - climb.final <= SAME:
                leaders[order[place]] = leader
    return leaders
