r"""The search for the best of many optima: many brief runs, few runs to convergence.

All restarts run as one batch. After 8, 16, 32, ... steps the worse half stops, except restarts that rise so fast that
they would pass the best before the next such comparison. A run has converged if its estimated remaining gain, by
Aitken's extrapolation of its last rises $d_1, d_2$,

$$\sum_{i \ge 1} d_2 (d_2/d_1)^i = d_2^2 / (d_1 - d_2),$$

is below a tolerance, or the rises are below rounding. Slow runs are extrapolated. With
$\rho^2 = d_2/d_1$, the parameters move on from $\theta'$, which k steps have reached from $\theta$, to

$$\theta'' = \theta' + \frac{\rho^k}{1 - \rho^k} (\theta' - \theta),$$

if the objective is higher there. A run has not converged if an extrapolation gains more than the tolerance. After that,
new starts are made by changing the best ends (see `perturbation`), and the search continues from them until a round
finds no better end. While fewer than two kinds of first guess have reached the best end, it takes six such rounds in a
row. Most of these starts lead back, so they stop as soon as they promise no better end.

Many runs lead to the same optimum. A run that has arrived at the same point as a better one merges with it. The best
run of each kind of start goes on longer than its height allows, because some kinds rise late. Steps of a small series
cost little more for many restarts than for few, so small series have more of them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from ...inference.families import tree_map, tree_parts
from ...inference.message_passing.engine import Run
from ...inference.numerics.deferred import deferred
from ...inference.numerics.interrupts import may_interrupt
from ..data.series import Series
from ..parameters import Parameters
from ..problem import Problem
from .checkpoint import Checkpoint
from .climbs import SAME, Climb, SearchResult, merged
from .density import IMPOSSIBLE
from .options import Options
from .perturbation import End, perturbed
from .progress import Reporter, Reporting, reported
from .starts import SAMPLE, first_guesses
from .whole import Whole

BATCH = "batch"  # the name of its loop in a checkpoint
SPREAD = "spread"  # the name of the tables there, if processes have shared the restarts
FIRST_LOOK = 8  # steps before the first half stops
FIRST_EXTRAPOLATION = 2  # strides before the first extrapolation
CLEAR = 3  # steps after an extrapolation, whose last two rises contain nothing of it
CHAMPIONS = 16  # steps for which the best restart of each kind goes on
ROUNDS = 36  # of perturbations at most
PATIENCE = 6  # rounds in a row without a better end, after which a doubted best end is accepted
VARIED = 2  # starts of all kinds in turn for each restart; the others are of cheap kinds
SURE = 3  # kinds of first guesses that reach one optimum, above which little more is tried
PARENTS = 6  # ends from which perturbations start
WORK = 2**16  # numbers in the tables of all restarts, below which more restarts cost little
MORE = 4, 256  # if they cost little, so many times as many at most, and so many at most
MAX_NUMBERS = 2**25  # numbers in one table of all restarts
ROUNDING = {torch.float64: 2e-13, torch.float32: 1e-6}  # relative rounding error of an objective


@runtime_checkable
class Optimizer(Protocol):
    """A batch of restarts that are optimised together."""

    @property
    def stride(self) -> int:
        """Steps between two checks of the progress, and between extrapolations."""
        ...

    @property
    def tables(self) -> dict[str, Any]:
        """The tables that are optimised, `[R, ...]`: parameters, or natural parameters of their distribution."""
        ...

    @property
    def collapsed(self) -> Tensor | None:
        """`[R, K]`, the states that have collapsed onto a single point; None: states cannot collapse."""
        ...

    @property
    def occupancy(self) -> Tensor | None:
        """`[R, K]`, the expected number of steps in each state; None: it takes another pass through the data."""
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

    def state(self) -> Any:
        """A tree (see `trees`) from which `resumed` continues with the same bits."""
        ...

    def resumed(self, state: Any) -> Any:
        """The batch with this state, which a batch for the same data had."""
        ...


def search(
    problem: Problem,
    make_optimizer: Callable[[Parameters], Optimizer],
    end: Callable[[dict[str, Tensor]], End],
    options: Options,
    report: Reporting,
    user_start: Parameters | None = None,
    shows_points: Callable[[Climb, Climb], bool] = lambda sound, narrow: False,
) -> SearchResult:
    """Run from first guesses, then from perturbations of the best ends.

    Arguments:
        shows_points: whether a higher end with states on single points is preferred to the best one without.
        user_start: the user's start `[1, ...]`.
        make_optimizer: makes a batch of restarts from parameters `[R, ...]`.
        end: maps the final tables of a restart to its parameters and smoothed states.
    """
    size = problem.series.n_sequences * problem.series.n_steps
    numbers = int((problem.series.last + 1).sum()) * problem.n_states
    n = max(min(options.n_tried, MAX_NUMBERS // numbers), options.restarts)
    multi = MultiStart(options, problem.series, report)
    if not multi.replayed():
        starts = first_guesses(problem, n, options.number, user_start, VARIED * options.restarts)
        multi.run(make_optimizer(starts.values), starts.kinds, options.n_kept)
    if problem.n_states == 1 or options.restarts == 1:
        return multi.result()
    sure = multi.result().agreement[0] >= SURE
    try:
        with may_interrupt():
            more = 0 if sure or multi.interrupted else _widened(n, numbers) - n
            if more and not multi.replayed():
                starts = first_guesses(problem, more, options.number + 1, None, 0)
                multi.run(make_optimizer(starts.values), starts.kinds, options.n_kept)
            if size <= SAMPLE:
                n = options.restarts if sure else _widened(options.restarts, numbers)
                _perturb(multi, problem, make_optimizer, end, options, n)
    except KeyboardInterrupt:
        multi.interrupted = True
        multi.saving.stop()
    best, highest = multi.best, multi.highest
    if highest.final > best.final:  # a best one that was left behind would have collapsed too
        multi.avoids_points = best.ended != "left behind" and not shows_points(best, highest)
    return multi.result()


def continued(
    found: SearchResult,
    values: Callable[[Climb], Parameters],
    make_optimizer: Callable[[Parameters], Optimizer],
    options: Options,
    whole: Whole,
    report: Reporting,
    n_kept: int | None = None,
    finish: Callable[["MultiStart"], Any] = lambda multi: None,
) -> SearchResult:
    """The best ends of a search on a sample of the data, run on with all data.

    Arguments:
        values: the parameters of an end.
        n_kept: the number of ends; None: as many as the options say.
        finish: what follows these runs.
    """
    n_kept = options.n_kept if n_kept is None else n_kept
    multi, (interrupted,) = MultiStart(options, whole, report), whole.ranks.total(float(found.interrupted))
    multi.avoids_points = whole.ranks.gathered(lambda: found.best.sound)[0]
    if interrupted:
        multi.max_steps = 1

    def best_values() -> tuple[Parameters, list[str]]:
        ends = best_ends(found.best, found.climbs, n_kept)
        tables = [values(climb) for climb in ends]
        starts = {name: torch.stack([table[name] for table in tables]) for name in tables[0]}
        return starts, [climb.kind for climb in ends]

    if not multi.replayed():
        starts, kinds = whole.ranks.gathered(best_values)[
            0
        ]  # the rounding of another machine may have led to other ends
        multi.run(make_optimizer({name: table.to(whole.like) for name, table in starts.items()}), kinds, n_kept)
    if not interrupted:
        finish(multi)
    return replace(multi.result(), interrupted=multi.interrupted or interrupted > 0, sample=found)


def _perturb(
    multi: "MultiStart",
    problem: Problem,
    make_optimizer: Callable[[Parameters], Optimizer],
    end: Callable[[dict[str, Tensor]], End],
    options: Options,
    n: int,
) -> None:
    """Run n perturbations of the best ends, again and again until they find no better one.

    A best end that has not converged is perturbed once: its number of steps is the user's choice.
    """
    fruitless = 0
    for number in range(ROUNDS):
        if multi.interrupted:
            return
        before = multi.best.final
        if not multi.replayed():
            ends = [end(climb.tables) for climb in multi.ends(PARENTS)]
            starts = perturbed(problem, ends, n, options.number + number)
            if not starts.kinds:
                return
            multi.run(make_optimizer(starts.values), starts.kinds, options.n_kept, independent=False)
        if multi.best.ended != "converged":  # further rounds would only raise it by further steps
            return
        fruitless = 0 if multi.best.final > before + multi.tol else fruitless + 1
        if fruitless >= (PATIENCE if multi.result().doubted else 1):
            return


def _widened(n: int, numbers: int) -> int:
    """More restarts, if they are cheap. `numbers`: entries in the tables of one restart."""
    return max(n, min(MORE[0] * n, MORE[1], WORK // numbers))


class MultiStart:
    """Many restarts in batches; the worse ones are stopped early.

    Attributes:
        climbs: all restarts so far.
        tol: remaining gain in nats at which a restart has converged.
        interrupted: whether Ctrl-C ended the search.
        max_steps: of each run.
        report: takes the progress.
        saving: the checkpoint of the fit.
        avoids_points: whether a restart with a state on a single point is passed over if there are others.
    """

    interrupted: bool
    avoids_points: bool
    max_steps: int
    report: Reporting
    saving: Checkpoint

    def __init__(self, options: Options, series: Series | Whole, report: Reporting) -> None:
        self.climbs: list[Climb] = []
        self.interrupted, self.avoids_points = False, True
        self.tol: float = options.tol * float(series.n_observed)
        self.max_steps, self.report, self.saving = options.max_steps, report, options.saving
        self._rounding = ROUNDING[series.like.dtype]
        self._device = series.like.device

    @property
    def best(self) -> Climb:
        """The restart with the highest objective so far; see `avoids_points`. Among equally high ones, a converged
        one. One that failed only if all did."""
        there = [climb for climb in self.climbs if climb.ended != "failed"] or self.climbs
        sound = [climb for climb in there if climb.is_sound or not self.avoids_points] or there
        top = max(climb.final for climb in sound) - self.tol
        return max(
            (climb for climb in sound if climb.final >= top),
            key=lambda climb: (climb.ended == "converged", climb.final),
        )

    @property
    def highest(self) -> Climb:
        """The restart with the highest objective, even if a state of it sits on a single point."""
        return max((climb for climb in self.climbs if climb.ended != "failed"), key=lambda climb: climb.final)

    def ends(self, most: int) -> list[Climb]:
        """The best restart and the next best at other heights, at most so many."""
        return best_ends(self.best, self.climbs, most)

    def stage(self, title: str) -> AbstractContextManager[None]:
        """A part of the search without steps, with a title for its progress."""
        return self.report.stage(title) if isinstance(self.report, Reporter) else nullcontext()

    def result(self) -> SearchResult:
        return SearchResult(self.climbs, self.best, self.interrupted, self.tol)

    def run(
        self,
        optimizer: Optimizer,
        kinds: Sequence[str],
        n_kept: int,
        independent: bool = True,
        beside: Climb | None = None,
    ) -> None:
        """Run one more batch; `n_kept` of it, and those that may still pass the best, are run to convergence.

        Arguments:
            independent: whether its starts do not come from ends of others.
            beside: an earlier restart, with which others merge that come to its point.
        """
        if self.replayed():
            return
        going = [Climb(kind, independent=independent) for kind in kinds]
        self.climbs += going
        try:
            with may_interrupt():
                self._climb(optimizer, going, n_kept, beside)
        except KeyboardInterrupt:
            self.interrupted = True
            if not self.best.trace:  # one start alone has a result soon
                alone = optimizer.select(torch.zeros(1, dtype=torch.long, device=self._device))
                self._note(going[:1], alone, alone.run(1))
        except IMPOSSIBLE:
            if not any(climb.ended not in ("", "failed") for climb in self.climbs):
                raise
            for climb in going:  # those that have ended, in this batch or before, stay
                climb.ended = climb.ended or "failed"
        for climb in self.climbs:
            if not climb.ended:
                climb.ended = "interrupted" if self.interrupted else "max_steps"
        if self.interrupted:
            self.saving.stop()
        self.saving.end(lambda: self.recorded(going))

    def replayed(self) -> bool:
        """Whether the checkpoint has the next batch, whose restarts are then among `climbs`."""
        records = self.saving.finished(BATCH)
        if records is None:
            return False
        new = [Climb(record["kind"]) for record in records]
        self.climbs += new
        self.set(new, records)
        return True

    def recorded(self, climbs: Sequence[Climb]) -> list[dict[str, Any]]:
        """Restarts for the checkpoint."""
        return [climb.recorded(self.climbs) for climb in climbs]

    def set(self, climbs: Sequence[Climb], records: Sequence[Mapping[str, Any]]) -> None:
        """Make restarts those that were recorded."""
        for climb, record in zip(climbs, records, strict=True):
            climb.set(record, self.climbs)

    def _state(self, batch: list[Climb], optimizer: Optimizer, where: dict[str, int]) -> dict[str, Any]:
        return where | {"climbs": self.recorded(batch), "optimizer": optimizer.state()}

    def _climb(self, optimizer: Optimizer, batch: list[Climb], n_kept: int, beside: Climb | None) -> None:
        going, steps, look, stride = batch, 0, FIRST_LOOK, optimizer.stride
        known = self.saving.start_loop(BATCH)
        if known is not None:
            self.set(batch, known["climbs"])
            going, steps, look = [climb for climb in batch if not climb.ended], known["steps"], known["look"]
            optimizer = resumed(optimizer, known["optimizer"])
        while going and steps < self.max_steps and not self.interrupted:
            going, optimizer, before, run = self._risen(going, optimizer, min(stride, self.max_steps - steps))
            steps, self.interrupted = steps + run.steps, run.interrupted
            self._note(going, optimizer, run)
            self.report(steps, self.best.final)
            gains = [0.0] * len(going)
            if steps >= FIRST_EXTRAPOLATION * stride and run.steps == stride and not self.interrupted:
                optimizer, gains = self._extrapolate(optimizer, before, going)
            clear = run.steps >= CLEAR or run.converged
            leave = [clear and self._has_settled(climb, gain) for climb, gain in zip(going, gains, strict=True)]
            if steps == look:
                look *= 2
                leave = self._merge(going, optimizer, leave, beside)
                behind = self._behind(going, n_kept, steps)
                leave = [out or behind_best for out, behind_best in zip(leave, behind, strict=True)]
            if any(leave):
                stay = [i for i, out in enumerate(leave) if not out]
                going = [going[i] for i in stay]
                if going:
                    optimizer = optimizer.select(self._numbers(stay))
            if going and not self.interrupted:
                where = {"steps": steps, "look": look}
                self.saving.note(partial(self._state, batch, optimizer, where))

    def _risen(
        self, going: list[Climb], optimizer: Optimizer, n_steps: int
    ) -> tuple[list[Climb], Optimizer, dict[str, Any], Run]:
        """The restarts after some steps, and their tables before. Those that fail are dropped; an error if all do."""
        before, run = optimizer.tables, None
        try:
            run = optimizer.run(n_steps)
            failed = (run.elbo[-1].isnan() | _has_nan(optimizer.tables)).tolist()
        except IMPOSSIBLE:
            failed = [_fails(optimizer.select(self._numbers([i]))) for i in range(len(going))]
            if all(failed) or not any(failed):
                raise
        if all(failed):
            raise ValueError("x: the parameters of all restarts became NaN; scale x, or give start=.")
        if run is not None and not any(failed):
            return going, optimizer, before, run
        for climb, out in zip(going, failed, strict=True):
            climb.ended = "failed" if out else climb.ended
        stay = [i for i, out in enumerate(failed) if not out]
        going, optimizer = [going[i] for i in stay], optimizer.select(self._numbers(stay))
        if run is None:
            return self._risen(going, optimizer, n_steps)
        before = {name: tree_map(lambda part: part[self._numbers(stay)], table) for name, table in before.items()}
        return going, optimizer, before, replace(run, elbo=run.elbo[:, self._numbers(stay)])

    def _numbers(self, some: list[int]) -> Tensor:
        return torch.tensor(some, dtype=torch.long, device=self._device)

    def _extrapolate(
        self, optimizer: Optimizer, before: dict[str, Any], going: list[Climb]
    ) -> tuple[Optimizer, list[float]]:
        """The batch after extrapolation of the restarts that gain by it, and the gain of each restart."""
        none = [0.0] * len(going)
        lengths = [climb.extrapolation(self._rounding, optimizer.stride) for climb in going]
        by = torch.tensor(lengths, dtype=torch.float64, device="cpu")
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
            mixed = {name: tree_map(partial(chosen, those), table, here[name]) for name, table in ahead.items()}
            with deferred():
                there = optimizer.at(mixed)
        return there, torch.where(higher, gains, 0.0).tolist()

    def _note(self, going: list[Climb], optimizer: Optimizer, run: Run) -> None:
        rows, tables = run.elbo.double(), optimizer.tables
        collapsed, occupancy = optimizer.collapsed, optimizer.occupancy
        bad = torch.zeros_like(rows[:1]) if collapsed is None else collapsed.any(-1).to(rows).unsqueeze(0)
        for i, (climb, (unsound, *trace)) in enumerate(zip(going, torch.cat([bad, rows]).T.tolist(), strict=True)):
            climb.trace += trace
            climb.sound = not unsound
            climb.tables = {name: tree_map(lambda part: part[i], table) for name, table in tables.items()}  # noqa: B023
            climb.collapsed = None if collapsed is None else collapsed[i]
            climb.occupancy = None if occupancy is None else occupancy[i]

    def _has_settled(self, climb: Climb, gain: float) -> bool:
        if max(climb.remaining_gain(self._rounding), gain) > self.tol:
            return False
        climb.ended = "converged"
        return True

    def _merge(self, going: list[Climb], optimizer: Optimizer, leave: list[bool], beside: Climb | None) -> list[bool]:
        """Which restarts stop, those included that are at the same point as a better one."""
        tables = optimizer.tables.values()
        if not all(isinstance(table, Tensor) for table in tables):
            return leave
        points = torch.cat([table.reshape(len(going), -1).sort(-1).values for table in tables], -1)
        climbs = going if beside is None else [*going, beside]
        if beside is not None:
            there = [table.flatten().sort().values for table in beside.tables.values()]
            points = torch.cat([points, torch.cat(there).unsqueeze(0)])
        for climb, leader in zip(going, merged(climbs, points), strict=False):
            if leader is not None and not climb.ended:
                climb.leader, climb.ended = leader, "merged"
        return [out or climb.ended == "merged" for out, climb in zip(leave, going, strict=True)]

    def _behind(self, going: list[Climb], n_kept: int, steps: int) -> list[bool]:
        """Which restarts stop: the worse half, except the best of each kind in the beginning, and those that would pass
        the best within the same number of steps. After the beginning, restarts that come from other ends stop unless
        they would pass it."""
        order = sorted((climb for climb in going if not climb.ended), key=lambda climb: -climb.final)
        kept = order[: max(n_kept, math.ceil(len(order) / 2))]
        if steps >= CHAMPIONS and not going[0].independent:
            kept = []
        if steps <= CHAMPIONS:
            kept += {climb.kind: climb for climb in reversed(order)}.values()
        stay, best, leave = {id(climb) for climb in kept}, self.best.final, []
        for climb in going:
            lead, rise = best - climb.final, climb.trace[-1] - climb.trace[-2]
            leave.append(not climb.ended and id(climb) not in stay and lead > 0 and rise * steps <= lead)
            if leave[-1]:
                climb.ended = "left behind"
        return leave


def _fails(alone: Optimizer) -> bool:
    """Whether one restart cannot take a step."""
    try:
        return bool(alone.run(1).elbo.isnan().any()) or bool(_has_nan(alone.tables).any())
    except IMPOSSIBLE:
        return True


def _has_nan(tables: Mapping[str, Any]) -> Bool[Tensor, "R"]:
    """Whether a number of a restart `[R, ...]` is NaN."""
    parts = [part for table in tables.values() for part in tree_parts(table)]
    return torch.stack([part.isnan().reshape(len(part), -1).any(-1) for part in parts]).any(0)


def resumed(optimizer: Optimizer, state: dict[str, Any]) -> Optimizer:
    """The batch with a state of a checkpoint; one of processes that share the restarts is their tables."""
    return optimizer.at(state[SPREAD]) if SPREAD in state else optimizer.resumed(state)


def best_ends(best: Climb, climbs: list[Climb], most: int) -> list[Climb]:
    """The best restart and the next best at other heights, at most so many."""
    there = [best]
    for climb in sorted(climbs, key=lambda climb: -climb.final):
        possible = climb.sound and climb.ended != "failed"
        if len(there) < most and possible and all(abs(climb.final - other.final) > SAME for other in there):
            there.append(climb)
    return there


@contextmanager
def multi_start(options: Options, series: Series | Whole, shift: float = 0.0) -> Iterator[MultiStart]:
    """A search that shows its progress; `shift`: the increase of the objective in the user's units."""
    with reported(options, shift) as report:
        yield MultiStart(options, series, report)


def chosen(which: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """One table for the restarts `which [R]`, the other for all others."""
    return torch.where(which.reshape(-1, *[1] * (no.ndim - 1)), yes, no)
