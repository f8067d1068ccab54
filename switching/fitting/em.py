r"""Expectation-maximisation over many restarts at once.

    E-step   the chain's posterior marginals under the current parameters, and log p(x | theta)
    M-step   the mode of dynamics and emission parameters given these marginals

The objective $\log p(x \mid \theta) + \log p(\theta)$ (without a prior: $\log p(x \mid \theta)$) never falls (Dempster,
Laird & Rubin 1977). Restarts are the leading axis of every table. Sequences of different lengths are processed
without most of their padding: see `bucketing`.
"""

from copy import copy
from dataclasses import fields
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions.constraints import Constraint

from ...inference.chains.contract import Marginals
from ...inference.message_passing.engine import Run
from ...inference.numerics.deferred import deferred
from ..ascent import leaving
from ..definite import free_coordinates
from ..emissions.driven import rows_read
from ..known import with_known
from ..parameters import Parameters, is_simplex
from ..problem import Problem
from .bucketing import Bucketing
from .starts import variance_floor

LEFT = 0.5  # share of what an M-step gains that it may leave to the next one


class EM:
    """A batch of restarts that are optimised by EM.

    Attributes:
        tables: the parameters `[R, ...]`.
        collapsed: `[R, K]`, the states that have collapsed onto a point.
    """

    tables: Parameters
    collapsed: Tensor

    stride = 4

    def __init__(self, problem: Problem, values: Parameters) -> None:
        self._buckets = Bucketing.of(problem)
        self.problem: Problem = problem.padded() if self._buckets is None else self._buckets.problem  # of the M-step
        self._floor = variance_floor(self.problem.series)
        self._begin(values, None)

    def _begin(self, values: Parameters, marginals: Marginals | None) -> None:
        self.tables, self._marginals = values, marginals
        self._rows: tuple[Parameters, Tensor] | None = None  # since the E-step: all its restarts, and those of here
        like = next(iter(values.values()))
        self.collapsed = torch.zeros(len(like), self.problem.n_states, dtype=torch.bool, device=like.device)

    def run(self, max_steps: int) -> Run:
        """Take `max_steps` steps; after Ctrl-C only complete steps count."""
        trace: list[Tensor] = []
        interrupted = False
        try:
            self._marginals = self._expected(self.tables) if self._marginals is None else self._marginals
            while len(trace) < max_steps:
                with deferred():
                    with leaving(LEFT):
                        values, collapsed = self._maximized(self._marginals)
                    marginals = self._expected(values)
                    prior = self.problem.log_prior(values, inside=True)
                now = (self._evidence(marginals) + prior).double()
                # from here to the end of this block one step's results belong together
                self.tables, self._marginals, self.collapsed, self._rows = values, marginals, collapsed, None
                trace.append(now)
        except KeyboardInterrupt:
            if not trace:
                raise  # nothing has been reached yet
            interrupted = True
        return Run(torch.stack(trace), len(trace), False, interrupted=interrupted)

    def extrapolated(self, before: Parameters, by: Float[Tensor, "R"]) -> Parameters:
        """The parameters moved on by `by` times their change since `before`, in coordinates without bounds."""
        known, by = self.problem.parameters, by.to(next(iter(self.tables.values())))
        ahead = {n: _ahead(before[n], now, by, known[n].support) for n, now in self.tables.items()}
        return self.problem.admitted(ahead)

    def at(self, tables: Parameters) -> "EM":
        there = copy(self)
        there._begin(tables, None)
        return there

    def height(self) -> Float[Tensor, "R"]:
        self._marginals, self._rows = self._expected(self.tables), None
        return self._evidence(self._marginals) + self.problem.log_prior(self.tables)

    def select(self, restarts: Tensor) -> "EM":
        """Some of the restarts."""
        values = {name: table[restarts] for name, table in self.tables.items()}
        selected = copy(self)
        selected._begin(values, None if self._marginals is None else self._some(self._marginals, restarts))
        selected.collapsed = self.collapsed[restarts]
        tables, rows = (self.tables, restarts) if self._rows is None else (self._rows[0], self._rows[1][restarts])
        selected._rows = tables, rows
        return selected

    def state(self) -> dict[str, Any]:
        """The tables of all restarts of the last E-step, which is made again: its rounding depends on all of them."""
        tables, rows = (self.tables, None) if self._rows is None else self._rows
        return {"tables": tables, "rows": rows, "known": self._marginals is not None, "collapsed": self.collapsed}

    def resumed(self, state: dict[str, Any]) -> "EM":
        there = self.at(state["tables"])
        if state["known"]:
            there._marginals = there._expected(there.tables)
        there = there if state["rows"] is None else there.select(state["rows"])
        there.collapsed = state["collapsed"]
        return there

    @property
    def occupancy(self) -> Float[Tensor, "R K"] | None:
        """Expected number of steps in each state, without held steps whose emission is the same in all states; None
        before the E-step."""
        return None if self._marginals is None else self._occupancy(self._marginals)

    def counted(self) -> Float[Tensor, "R K"]:
        """`occupancy`, after the E-step."""
        self._marginals = self._expected(self.tables) if self._marginals is None else self._marginals
        return self._occupancy(self._marginals)

    def _occupancy(self, marginals: Marginals) -> Float[Tensor, "R K"]:
        return occupancy_of(marginals)

    def _expected(self, values: Parameters) -> Marginals:
        """The E-step."""
        if self._buckets is not None:
            return self._buckets.marginals(values)
        return self.problem.marginals(values)

    def _maximized(self, marginals: Marginals) -> tuple[Parameters, Bool[Tensor, "R K"]]:
        """The M-step."""
        return maximized(self.problem, marginals, self.tables, self._floor)

    def _evidence(self, marginals: Marginals) -> Float[Tensor, "R"]:
        """log p(x | parameters) of all sequences."""
        return self.problem.summed(marginals.log_normalizer)

    def _some(self, marginals: Marginals, restarts: Tensor) -> Marginals:
        tables: dict[str, Any] = {f.name: getattr(marginals, f.name) for f in fields(marginals)}
        return Marginals(**{name: None if table is None else table[restarts] for name, table in tables.items()})  # pyright: ignore[reportArgumentType]


def maximized(
    problem: Problem, marginals: Marginals, values: Parameters, floor: Float[Tensor, "F"]
) -> tuple[Parameters, Bool[Tensor, "R K"]]:
    """The M-step: new parameters, and the states that have collapsed onto a point."""
    moved = problem.dynamics.maximize(marginals, problem.prior, values, problem.series.drive, problem.fixed)
    rows, weights = weighted_rows(problem, marginals)
    best = problem.emission.maximize_parts(rows, weights, values, problem.prior, floor, problem.fixed)
    values = with_known(moved | best.values, problem.fixed, problem.parameters)
    return values, collapsed_at(problem, values, floor)


def collapsed_at(problem: Problem, values: Parameters, floor: Float[Tensor, "F"]) -> Bool[Tensor, "R K"]:
    """The states that have collapsed at parameters `[R, ...]`: see `Emission.collapsed`. None under a prior."""
    if problem.prior is None:
        return problem.emission.collapsed_parts(values, floor)
    n = len(next(iter(values.values())))
    return torch.zeros(n, problem.n_states, dtype=torch.bool, device=problem.series.like.device)


def weighted_rows(problem: Problem, marginals: Marginals) -> tuple[Float[Tensor, "N R"], list[Tensor]]:
    """The rows that the emission reads, and their weights `[R, N, K]` for each of its parts."""
    rows = rows_read(problem.emission, problem.series).flatten(0, -2)
    weights = problem.emission.weights(marginals.fresh, marginals.held)
    return rows, [problem.series.powered(table.reshape(len(table), len(rows), -1)) for table in weights]


def occupancy_of(marginals: Marginals) -> Float[Tensor, "R K"]:
    """Expected number of steps in each state: see `EM.occupancy`."""
    fresh, held = marginals.fresh, marginals.held
    weights = fresh if held is None or held.shape[-1] == 1 else fresh + held
    return weights.flatten(1, -2).sum(1)


def _ahead(before: Tensor, now: Tensor, by: Float[Tensor, "R"], support: Constraint) -> Tensor:
    """A parameter moved on by `by` times its change since `before`; probabilities and rates of 0 stay 0."""
    by = by.reshape(-1, *[1] * (now.ndim - 1))
    if is_simplex(support):
        move = torch.where(now > 0, now.log() - before.log(), 0.0)
        return torch.softmax((now.log() + by * move), -1)
    to_support = free_coordinates(support)
    here = cast(Tensor, to_support.inv(now))
    by = by.reshape(-1, *[1] * (here.ndim - 1))
    move = here - cast(Tensor, to_support.inv(before))
    return cast(Tensor, to_support(here + torch.where(here > -torch.inf, by * move, 0.0)))
