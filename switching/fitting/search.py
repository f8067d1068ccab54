r"""The search for the best of many optima: many short climbs, few long ones.

All restarts climb as one batch. After 8, 16, 32, ... steps the worse half leaves, except those that climb so fast that
they would pass the best before the next such look. A climb has settled when what is left to gain, by Aitken's
extrapolation of its last rises $d_1, d_2$,

$$\sum_{i \ge 1} d_2 (d_2/d_1)^i = d_2^2 / (d_1 - d_2),$$

is below a tolerance, or the rises are below rounding. Where a climb is slow, it leaps: with $\rho^2 = d_2/d_1$ the
parameters go to where k steps from $\theta$ to $\theta'$ lead if they go on like this,

$$\theta'' = \theta' + \frac{\rho^k}{1 - \rho^k} (\theta' - \theta),$$

if that is higher; and no climb has settled from which a leap gains more than the tolerance. The best end is then
rearranged (see `starts.rearranged`), and the search goes on from there, as long as that finds a better one.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import pandas as pd
import torch
from torch import Tensor

from ...inference.families import tree_map
from ...inference.message_passing.engine import Run
from ...inference.numerics.deferred import deferred
from ..data.series import Series
from ..parameters import Parameters
from ..problem import Problem
from .density import IMPOSSIBLE
from .interrupts import may_interrupt
from .options import Options
from .progress import Report, reported
from .starts import SAMPLE, first_guesses, rearranged

FIRST_LOOK = 8  # steps before the first half leaves
STRIDE = 8  # steps between two looks at the progress, and between leaps
FIRST_LEAP = 16  # steps before the first
FARTHEST = 100.0  # times as far as a stride
ROUNDS = 4  # of rearrangements
ROOM = 2**25  # numbers in one table of all restarts
ROUNDING = {torch.float64: 2e-13, torch.float32: 1e-6}  # of an objective, by which it may rise and fall for ever
VISIBLE = 1e-9  # share of an objective, below which nobody sees that it falls
SAME = 0.01  # nats within which two climbs have reached the same optimum

COLUMNS = ["start", "steps", "objective", "ended", "agrees"]


@runtime_checkable
class Optimizer(Protocol):
    """A batch of restarts that climb."""

    @property
    def tables(self) -> dict[str, Any]:
        """What the climb moves, `[R, ...]`: parameters, or natural parameters of their distribution."""
        ...

    @property
    def collapsed(self) -> Tensor | None:
        """`[R, K]`, which states sit on a single point; None: none can."""
        ...

    def run(self, max_steps: int) -> Run:
        """Climb so many steps, or less where nothing moves any more; each row of the trace belongs to one of them."""
        ...

    def extrapolated(self, before: dict[str, Any], by: Tensor) -> dict[str, Any] | None:
        """Tables that lie `by [R]` times as far from where it is as that lies from `before`; None: it cannot."""
        ...

    def at(self, tables: dict[str, Any]) -> Any:
        """The same batch at other tables."""
        ...

    def height(self) -> Tensor:
        """`[R]`, the objective where it is."""
        ...

    def select(self, restarts: Tensor) -> Any:
        """Some of the restarts."""
        ...


@dataclass
class Climb:
    """One restart: where it came from, how it went, where it is."""

    kind: str
    trace: list[float] = field(default_factory=list)
    tables: dict[str, Any] = field(default_factory=dict)
    collapsed: Tensor | None = None
    sound: bool = True
    """Whether no state has collapsed: a likelihood that grows without bound on one is no better for it."""
    ended: str = ""

    @property
    def final(self) -> float:
        return self.trace[-1] if self.trace else -math.inf

    def raised(self, by: float) -> "Climb":
        """The same of an objective that is greater by a constant."""
        return replace(self, trace=[height + by for height in self.trace])

    def remaining_gain(self, rounding: float) -> float:
        """What is left to gain, by the last two rises."""
        before, last = self._rises
        if abs(last) <= rounding * abs(self.final):
            return 0.0
        return last * last / (before - last) if before > last else math.inf

    def leap(self, rounding: float) -> float:
        """How many strides lie ahead, by the last two rises; 0 where nothing is known of them."""
        before, last = self._rises
        if not rounding * abs(self.final) < last < before < math.inf:
            return 0.0
        rate = (last / before) ** (STRIDE / 2)
        return min(rate / (1 - rate), FARTHEST)

    @property
    def _rises(self) -> tuple[float, float]:
        if len(self.trace) < 3:
            return math.inf, math.inf
        a, b, c = self.trace[-3:]
        return b - a, c - b


@dataclass(frozen=True)
class Found:
    """All climbs, and the best of them."""

    climbs: list[Climb]
    best: Climb
    interrupted: bool
    tol: float = 0.0  # nats that may be left to gain
    by_passes: bool = False  # whether the steps were passes through minibatches, whose trace is an estimate

    def raised(self, by: float) -> "Found":
        """The same of an objective that is greater by a constant."""
        climbs = [climb.raised(by) for climb in self.climbs]
        best = next(new for new, old in zip(climbs, self.climbs, strict=True) if old is self.best)
        return replace(self, climbs=climbs, best=best)

    @property
    def reason(self) -> str:
        """Why the best climb ended."""
        return self._ending + (f"; the objective fell by {self.fall:.2g} nats at a step" if self.fall else "")

    @property
    def fall(self) -> float:
        """The most nats that the objective of the best climb fell by at a step; 0 where that is in the tolerance."""
        trace = [] if self.by_passes else self.best.trace
        falls = [before - after for before, after in itertools.pairwise(trace)]
        most = max(falls, default=0.0)
        return most if most > self.tol + VISIBLE * abs(self.best.final) else 0.0

    @property
    def _ending(self) -> str:
        if self.interrupted:
            return "not converged: interrupted, so that better ends may not have been looked for"
        if self.best.ended == "converged":
            what = "were gained in the last pass" if self.by_passes else "are left to gain"
            return f"converged: less than {self.tol:.2g} nats {what}"
        left = math.inf if self.by_passes else self.best.remaining_gain(0.0)
        ahead = f"about {left:.2g} nats are" if math.isfinite(left) else "it is not known how much is"
        return f"not converged: {ahead} left to gain after {len(self.best.trace)} steps; raise max_steps"

    @property
    def table(self) -> pd.DataFrame:
        """One row a climb: kind of its start, steps, objective, how it ended, whether its end is that of the best."""
        rows = [(c.kind, len(c.trace), c.final, c.ended, abs(c.final - self.best.final) <= SAME) for c in self.climbs]
        return pd.DataFrame(rows, columns=COLUMNS)


def search(
    problem: Problem,
    begin: Callable[[Parameters], Optimizer],
    states: Callable[[dict[str, Tensor]], Tensor],
    options: Options,
    report: Report,
    own: Parameters | None = None,
) -> Found:
    """Climb from first guesses, then from rearrangements of the best end.

    Arguments:
        own: the user's own first guess `[1, ...]`.
        begin: starts a batch of climbs from parameters `[R, ...]`.
        states: smoothed probabilities `[*b, T, K]` of the states at the end of a climb.
    """
    size = problem.series.n_sequences * problem.series.n_steps
    inside = int((problem.series.last + 1).sum())
    n = max(min(options.n_tried, ROOM // (inside * problem.n_states)), options.restarts)
    race = MultiStart(options, problem.series, report)
    starts = first_guesses(problem, n, options.number, own)
    race.run(begin(starts.values), starts.kinds, options.n_kept)
    rounds = ROUNDS if problem.n_states > 1 and options.restarts > 1 and size <= SAMPLE else 0
    try:
        with may_interrupt():
            for number in range(rounds):
                before = race.best.final
                if race.interrupted:
                    break
                starts = rearranged(problem, states(race.best.tables), options.restarts, options.number + number)
                race.run(begin(starts.values), starts.kinds, 0)
                if race.best.final <= before + race.tol:
                    break
    except KeyboardInterrupt:
        race.interrupted = True
    return race.found()


class MultiStart:
    """Climbs side by side, of which those that are left behind leave.

    Attributes:
        climbs: all so far.
        tol: nats that may be left to gain at the end.
        interrupted: whether Ctrl-C ended it.
    """

    def __init__(self, options: Options, series: Series, report: Report) -> None:
        self.climbs: list[Climb] = []
        self.interrupted = False
        self.tol = options.tol * float(series.n_observed)
        self._max_steps, self._report = options.max_steps, report
        self._rounding = ROUNDING[series.observations.dtype]
        self._device = series.observations.device

    @property
    def best(self) -> Climb:
        """The highest so far, without a collapsed state if there is such; of those as high one that has settled."""
        sound = [climb for climb in self.climbs if climb.sound] or self.climbs
        top = max(climb.final for climb in sound) - self.tol
        return max(
            (climb for climb in sound if climb.final >= top),
            key=lambda climb: (climb.ended == "converged", climb.final),
        )

    def found(self) -> Found:
        return Found(self.climbs, self.best, self.interrupted, self.tol)

    def run(self, climber: Optimizer, kinds: Sequence[str], n_kept: int) -> None:
        """Let one more batch climb; of it `n_kept`, and those that may still pass the best, go on to the end."""
        going = [Climb(kind) for kind in kinds]
        self.climbs += going
        try:
            with may_interrupt():
                self._climb(climber, going, n_kept)
        except KeyboardInterrupt:
            if not self.best.trace:
                raise  # nothing has been reached yet
            self.interrupted = True
        for climb in self.climbs:
            if not climb.ended:
                climb.ended = "interrupted" if self.interrupted else "max_steps"

    def _climb(self, climber: Optimizer, going: list[Climb], n_kept: int) -> None:
        steps, look = 0, FIRST_LOOK
        while going and steps < self._max_steps and not self.interrupted:
            before = climber.tables
            run = climber.run(min(STRIDE, self._max_steps - steps))
            steps, self.interrupted = steps + run.steps, run.interrupted
            self._note(going, climber, run)
            self._report(steps, self.best.final)
            gains = [0.0] * len(going)
            if steps >= FIRST_LEAP and run.steps == STRIDE and not self.interrupted:
                climber, gains = self._leap(climber, before, going)
            leave = [self._has_settled(climb, gain) for climb, gain in zip(going, gains, strict=True)]
            if steps == look:
                look *= 2
                behind = self._behind(going, n_kept, steps)
                leave = [out or left for out, left in zip(leave, behind, strict=True)]
            if any(leave):
                stay = [i for i, out in enumerate(leave) if not out]
                going = [going[i] for i in stay]
                if going:
                    climber = climber.select(torch.tensor(stay, device=self._device))

    def _leap(self, climber: Optimizer, before: dict[str, Any], going: list[Climb]) -> tuple[Optimizer, list[float]]:
        """The batch after leaps of those that are the higher for it, and what each has gained."""
        none = [0.0] * len(going)
        by = torch.tensor([climb.leap(self._rounding) for climb in going], dtype=torch.float64, device="cpu")
        try:
            ahead = climber.extrapolated(before, by) if bool((by > 0).any()) else None
            if ahead is None:
                return climber, none
            with deferred() as checks:
                there = climber.at(ahead)
                heights = torch.tensor(checks.settle(*there.height()), dtype=torch.float64, device="cpu")
        except IMPOSSIBLE:
            return climber, none  # nothing is there where one of them would land
        gains = heights - torch.tensor([climb.final for climb in going], dtype=torch.float64, device="cpu")
        higher = (gains > 0) & (by > 0)  # False for NaN
        if not bool(higher.any()):
            return climber, none
        if not bool(higher.all()):
            here, those = climber.tables, higher.to(self._device)
            mixed = {name: tree_map(partial(_where, those), table, here[name]) for name, table in ahead.items()}
            with deferred():
                there = climber.at(mixed)
        return there, torch.where(higher, gains, 0.0).tolist()

    def _note(self, going: list[Climb], climber: Optimizer, run: Run) -> None:
        rows, tables, collapsed = run.elbo.double(), climber.tables, climber.collapsed
        bad = torch.zeros_like(rows[:1]) if collapsed is None else collapsed.any(-1).to(rows).unsqueeze(0)
        for i, (climb, (unsound, *trace)) in enumerate(zip(going, torch.cat([bad, rows]).T.tolist(), strict=True)):
            climb.trace += trace
            climb.sound = not unsound
            climb.tables = {name: tree_map(lambda part: part[i], table) for name, table in tables.items()}  # noqa: B023
            climb.collapsed = None if collapsed is None else collapsed[i]

    def _has_settled(self, climb: Climb, gain: float) -> bool:
        if max(climb.remaining_gain(self._rounding), gain) > self.tol:
            return False
        climb.ended = "converged"
        return True

    def _behind(self, going: list[Climb], n_kept: int, steps: int) -> list[bool]:
        """Which leave: the worse half, but not those that would pass the best within as many steps again."""
        order = sorted(range(len(going)), key=lambda i: -going[i].final)
        worse = set(order[n_kept if n_kept == 0 else max(n_kept, math.ceil(len(going) / 2)) :])
        best, leave = self.best.final, []
        for i, climb in enumerate(going):
            lead, rise = best - climb.final, climb.trace[-1] - climb.trace[-2]
            leave.append(i in worse and lead > 0 and rise * steps <= lead)
            if leave[-1]:
                climb.ended = "left behind"
        return leave


@contextmanager
def multi_start(options: Options, series: Series, shift: float = 0.0) -> Iterator[MultiStart]:
    """A search that shows its progress; `shift`: by how much the objective is greater in the user's units."""
    with reported(options, shift) as report:
        yield MultiStart(options, series, report)


def _where(which: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(which.reshape(-1, *[1] * (no.ndim - 1)), yes, no)
