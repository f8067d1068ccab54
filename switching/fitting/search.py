r"""The search for the best of many optima: many brief runs, few runs to convergence.

All restarts run as one batch. After 8, 16, 32, ... steps the worse half stops, except restarts that rise so fast that
they would pass the best before the next such comparison. A run has converged if its estimated remaining gain, by
Aitken's extrapolation of its last rises $d_1, d_2$,

$$\sum_{i \ge 1} d_2 (d_2/d_1)^i = d_2^2 / (d_1 - d_2),$$

is below a tolerance, or the rises are below rounding. Slow runs are extrapolated. With
$\rho^2 = d_2/d_1$, the parameters move on from $\theta'$, which k steps have reached from $\theta$, to

$$\theta'' = \theta' + \frac{\rho^k}{1 - \rho^k} (\theta' - \theta),$$

if the objective is higher there. A run has not converged if an extrapolation gains more than the tolerance. After that,
new starts are made by rearranging the states of the best end (see `starts.rearranged`), and the search continues from
them until they find no better end.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
from .progress import Report, Reporter, reported
from .starts import SAMPLE, first_guesses, rearranged

FIRST_LOOK = 8  # steps before the first half stops
STRIDE = 8  # steps between two checks of the progress, and between extrapolations
FIRST_EXTRAPOLATION = 16  # steps before the first extrapolation
FARTHEST = 100.0  # longest extrapolation, in strides
ROUNDS = 4  # of rearrangements
ROOM = 2**25  # numbers in one table of all restarts
ROUNDING = {torch.float64: 2e-13, torch.float32: 1e-6}  # relative rounding error of an objective
VISIBLE = 1e-9  # share of an objective below which a fall is ignored
SAME = 0.01  # nats within which two runs have reached the same optimum

COLUMNS = ["start", "steps", "objective", "ended", "agrees"]


@runtime_checkable
class Optimizer(Protocol):
    """A batch of restarts that are optimised together."""

    @property
    def tables(self) -> dict[str, Any]:
        """The tables that are optimised, `[R, ...]`: parameters, or natural parameters of their distribution."""
        ...

    @property
    def collapsed(self) -> Tensor | None:
        """`[R, K]`, the states that have collapsed onto a single point; None: states cannot collapse."""
        ...

    def run(self, max_steps: int) -> Run:
        """Take at most `max_steps` steps; the trace has one row per step."""
        ...

    def extrapolated(self, before: dict[str, Any], by: Tensor) -> dict[str, Any] | None:
        """The tables moved on by `by [R]` times their change since `before`; None: this is not possible."""
        ...

    def at(self, tables: dict[str, Any]) -> Any:
        """The batch at other tables."""
        ...

    def height(self) -> Tensor:
        """`[R]`, the objective at the current tables."""
        ...

    def select(self, restarts: Tensor) -> Any:
        """Some of the restarts."""
        ...


@dataclass
class Climb:
    """One restart: the kind of its start, its trace, and its current tables."""

    kind: str
    trace: list[float] = field(default_factory=list)
    tables: dict[str, Any] = field(default_factory=dict)
    collapsed: Tensor | None = None
    sound: bool = True
    """Whether no state has collapsed. A likelihood that is unbounded at a collapsed state does not count as better."""
    ended: str = ""

    @property
    def final(self) -> float:
        return self.trace[-1] if self.trace else -math.inf

    def raised(self, by: float) -> "Climb":
        """The restart for an objective that is greater by a constant."""
        return replace(self, trace=[height + by for height in self.trace])

    def remaining_gain(self, rounding: float) -> float:
        """The estimated remaining gain, from the last two rises."""
        before, last = self._rises
        if abs(last) <= rounding * abs(self.final):
            return 0.0
        return last * last / (before - last) if before > last else math.inf

    def extrapolation(self, rounding: float) -> float:
        """The length of an extrapolation in strides, from the last two rises; 0 if they allow no estimate."""
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
class SearchResult:
    """All restarts of a search, and the best of them."""

    climbs: list[Climb]
    best: Climb
    interrupted: bool
    tol: float = 0.0  # remaining gain in nats at which a run has converged
    by_passes: bool = False  # whether the steps were passes through minibatches; then the trace is an estimate

    def raised(self, by: float) -> "SearchResult":
        """The result for an objective that is greater by a constant."""
        climbs = [climb.raised(by) for climb in self.climbs]
        best = next(new for new, old in zip(climbs, self.climbs, strict=True) if old is self.best)
        return replace(self, climbs=climbs, best=best)

    @property
    def reason(self) -> str:
        """Why the best restart ended."""
        return self._ending + (f"; the objective fell by {self.fall:.2g} nats at a step" if self.fall else "")

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
            return "not converged: interrupted, so that better ends may not have been looked for"
        if self.best.ended == "converged":
            ending = "were gained in the last pass" if self.by_passes else "are left to gain"
            return f"converged: less than {self.tol:.2g} nats {ending}"
        gain = math.inf if self.by_passes else self.best.remaining_gain(0.0)
        ahead = f"about {gain:.2g} nats are" if math.isfinite(gain) else "it is not known how much is"
        return f"not converged: {ahead} left to gain after {len(self.best.trace)} steps; raise max_steps"

    @property
    def table(self) -> pd.DataFrame:
        """One row per restart: kind of start, steps, objective, how it ended, whether it reached the best optimum."""
        rows = [(c.kind, len(c.trace), c.final, c.ended, abs(c.final - self.best.final) <= SAME) for c in self.climbs]
        return pd.DataFrame(rows, columns=COLUMNS)


def search(
    problem: Problem,
    begin: Callable[[Parameters], Optimizer],
    states: Callable[[dict[str, Tensor]], Tensor],
    options: Options,
    report: Report,
    user_start: Parameters | None = None,
) -> SearchResult:
    """Run from first guesses, then from rearrangements of the best end.

    Arguments:
        user_start: the user's start `[1, ...]`.
        begin: makes a batch of restarts from parameters `[R, ...]`.
        states: maps the final tables of a restart to smoothed probabilities `[*b, T, K]` of the states.
    """
    size = problem.series.n_sequences * problem.series.n_steps
    inside = int((problem.series.last + 1).sum())
    n = max(min(options.n_tried, ROOM // (inside * problem.n_states)), options.restarts)
    multi = MultiStart(options, problem.series, report)
    starts = first_guesses(problem, n, options.number, user_start)
    multi.run(begin(starts.values), starts.kinds, options.n_kept)
    rounds = ROUNDS if problem.n_states > 1 and options.restarts > 1 and size <= SAMPLE else 0
    try:
        with may_interrupt():
            for number in range(rounds):
                before = multi.best.final
                if multi.interrupted:
                    break
                starts = rearranged(problem, states(multi.best.tables), options.restarts, options.number + number)
                multi.run(begin(starts.values), starts.kinds, 0)
                if multi.best.final <= before + multi.tol:
                    break
    except KeyboardInterrupt:
        multi.interrupted = True
    return multi.result()


class MultiStart:
    """Many restarts in batches; the worse ones are stopped early.

    Attributes:
        climbs: all restarts so far.
        tol: remaining gain in nats at which a restart has converged.
        interrupted: whether Ctrl-C ended the search.
        max_steps: of each run.
        report: takes the progress.
    """

    def __init__(self, options: Options, series: Series, report: Report) -> None:
        self.climbs: list[Climb] = []
        self.interrupted = False
        self.tol = options.tol * float(series.n_observed)
        self.max_steps, self.report = options.max_steps, report
        self._rounding = ROUNDING[series.observations.dtype]
        self._device = series.observations.device

    @property
    def best(self) -> Climb:
        """The restart with the highest objective so far, without a collapsed state if possible. Among equally high
        ones, a converged one."""
        sound = [climb for climb in self.climbs if climb.sound] or self.climbs
        top = max(climb.final for climb in sound) - self.tol
        return max(
            (climb for climb in sound if climb.final >= top),
            key=lambda climb: (climb.ended == "converged", climb.final),
        )

    def stage(self, title: str) -> AbstractContextManager[None]:
        """A part of the search without steps, with a title for its progress."""
        return self.report.stage(title) if isinstance(self.report, Reporter) else nullcontext()

    def result(self) -> SearchResult:
        return SearchResult(self.climbs, self.best, self.interrupted, self.tol)

    def run(self, optimizer: Optimizer, kinds: Sequence[str], n_kept: int) -> None:
        """Run one more batch; `n_kept` of it, and those that may still pass the best, are run to convergence."""
        going = [Climb(kind) for kind in kinds]
        self.climbs += going
        try:
            with may_interrupt():
                self._climb(optimizer, going, n_kept)
        except KeyboardInterrupt:
            self.interrupted = True
            if not self.best.trace:  # one start alone has a result soon
                alone = optimizer.select(torch.zeros(1, dtype=torch.long, device=self._device))
                self._note(going[:1], alone, alone.run(1))
        for climb in self.climbs:
            if not climb.ended:
                climb.ended = "interrupted" if self.interrupted else "max_steps"

    def _climb(self, optimizer: Optimizer, going: list[Climb], n_kept: int) -> None:
        steps, look = 0, FIRST_LOOK
        while going and steps < self.max_steps and not self.interrupted:
            before = optimizer.tables
            run = optimizer.run(min(STRIDE, self.max_steps - steps))
            steps, self.interrupted = steps + run.steps, run.interrupted
            self._note(going, optimizer, run)
            self.report(steps, self.best.final)
            gains = [0.0] * len(going)
            if steps >= FIRST_EXTRAPOLATION and run.steps == STRIDE and not self.interrupted:
                optimizer, gains = self._extrapolate(optimizer, before, going)
            leave = [self._has_settled(climb, gain) for climb, gain in zip(going, gains, strict=True)]
            if steps == look:
                look *= 2
                behind = self._behind(going, n_kept, steps)
                leave = [out or behind_best for out, behind_best in zip(leave, behind, strict=True)]
            if any(leave):
                stay = [i for i, out in enumerate(leave) if not out]
                going = [going[i] for i in stay]
                if going:
                    optimizer = optimizer.select(torch.tensor(stay, device=self._device))

    def _extrapolate(
        self, optimizer: Optimizer, before: dict[str, Any], going: list[Climb]
    ) -> tuple[Optimizer, list[float]]:
        """The batch after extrapolation of the restarts that gain by it, and the gain of each restart."""
        none = [0.0] * len(going)
        by = torch.tensor([climb.extrapolation(self._rounding) for climb in going], dtype=torch.float64, device="cpu")
        try:
            ahead = optimizer.extrapolated(before, by) if bool((by > 0).any()) else None
            if ahead is None:
                return optimizer, none
            with deferred() as checks:
                there = optimizer.at(ahead)
                heights = torch.tensor(checks.settle(*there.height()), dtype=torch.float64, device="cpu")
        except IMPOSSIBLE:
            return optimizer, none  # some extrapolation leads to impossible parameters
        gains = heights - torch.tensor([climb.final for climb in going], dtype=torch.float64, device="cpu")
        higher = (gains > 0) & (by > 0)  # False for NaN
        if not bool(higher.any()):
            return optimizer, none
        if not bool(higher.all()):
            here, those = optimizer.tables, higher.to(self._device)
            mixed = {name: tree_map(partial(_where, those), table, here[name]) for name, table in ahead.items()}
            with deferred():
                there = optimizer.at(mixed)
        return there, torch.where(higher, gains, 0.0).tolist()

    def _note(self, going: list[Climb], optimizer: Optimizer, run: Run) -> None:
        rows, tables, collapsed = run.elbo.double(), optimizer.tables, optimizer.collapsed
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
        """Which restarts stop: the worse half, except those that would pass the best within the same number of
        steps."""
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
    """A search that shows its progress; `shift`: the increase of the objective in the user's units."""
    with reported(options, shift) as report:
        yield MultiStart(options, series, report)


def _where(which: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(which.reshape(-1, *[1] * (no.ndim - 1)), yes, no)
