"""`Spread`: a batch of restarts of which each process optimises some.

The search for the best optimum is made on a sample that all processes have, so each could run all restarts. Instead
each runs a share, with the interface of `Optimizer`. After each operation all processes know the tables and traces of
all restarts, bit for bit the same, so all of them decide the same. If shares become unequal, restarts move to other
processes with their tables, from which every optimizer goes on as before.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...inference.families import tree_map, tree_parts
from ...inference.message_passing.engine import Run
from ...inference.numerics.deferred import deferred
from ...inference.numerics.ranks import Ranks
from ..parameters import Parameters
from .search import SPREAD, Optimizer
from .whole import Whole

Members = list[list[int]]
"""The numbers of the restarts of each process. One with none runs a restart of another, whose numbers count."""


def spread(make_optimizer: Callable[[Parameters], Optimizer], whole: Whole | None) -> Callable[[Parameters], Optimizer]:
    """What makes a batch of restarts from parameters `[R, ...]`, of which each process runs some."""
    return make_optimizer if whole is None or whole.ranks.n == 1 else partial(Spread.of, whole.ranks, make_optimizer)


class Spread:
    """A batch of restarts of which each process optimises some.

    Arguments:
        mine: those of this process.
        tables, collapsed: of all; see `Optimizer`.
    """

    tables: dict[str, Any]

    def __init__(
        self, ranks: Ranks, members: Members, mine: Optimizer, tables: dict[str, Any], collapsed: Tensor | None
    ) -> None:
        self._ranks, self._members, self._mine = ranks, members, mine
        self.occupancy = None  # known to one process alone
        self.tables, self.collapsed = tables, collapsed
        self._height: Tensor | None = None

    @staticmethod
    def of(ranks: Ranks, make_optimizer: Callable[[Parameters], Optimizer], values: Parameters) -> "Spread":
        """The batch that starts from parameters `[R, ...]`."""
        members = shares(_number(values), ranks.n)
        mine = make_optimizer(_part(values, members[ranks.rank]))
        there = Spread(ranks, members, mine, mine.tables, mine.collapsed)
        there._take(list)
        return there

    @property
    def stride(self) -> int:
        return self._mine.stride

    def run(self, max_steps: int) -> Run:
        def run() -> list[Tensor]:
            ran = self._mine.run(max_steps)
            if ran.interrupted:
                raise KeyboardInterrupt  # in all processes, because others are at another step
            last = ran.elbo[-1:].expand(max_steps - ran.steps, -1)  # a share may converge before the others
            ends = ran.elbo.new_tensor([ran.steps, ran.converged]).expand(len(ran.elbo.T), 2)
            return [torch.cat([ran.elbo, last]).T, ends]

        trace, ends = self._take(run)
        self._height = None
        n_steps = int(ends[:, 0].max())
        return Run(trace.T[:n_steps], n_steps, bool(ends[:, 1].all()))

    def extrapolated(self, before: dict[str, Any], by: Tensor) -> dict[str, Any] | None:
        def ahead() -> dict[str, Any] | None:
            with deferred():
                there = self._mine.extrapolated(_part(before, self._ours), by[self._ours])
            return None if there is None else _sent(there)

        parts = self._ranks.gathered(ahead)
        return None if any(part is None for part in parts) else self._joined(parts)

    def at(self, tables: dict[str, Any]) -> "Spread":
        members = self._members if _number(tables) == _number(self.tables) else shares(_number(tables), self._ranks.n)
        there = Spread(self._ranks, members, self._mine, tables, None)

        def placed() -> list[Tensor]:
            there._mine = self._mine.at(_part(tables, there._ours))
            return [there._mine.height()]

        (there._height,) = there._take(placed)
        return there

    def height(self) -> Tensor:
        if self._height is None:
            (self._height,) = self._take(lambda: [self._mine.height()])
        return self._height

    def select(self, restarts: Tensor) -> "Spread":
        chosen = restarts.tolist()
        tables, collapsed = _part(self.tables, chosen), None if self.collapsed is None else self.collapsed[chosen]
        stay = [[chosen.index(i) for i in own if i in chosen] for own in self._members]
        if all(0 < len(own) <= math.ceil(len(chosen) / self._ranks.n) for own in stay):
            own = torch.tensor([place for place, i in enumerate(self._ours) if i in chosen], device=restarts.device)
            return Spread(self._ranks, stay, self._mine.select(own), tables, collapsed)
        return self._moved(tables, collapsed)

    def state(self) -> dict[str, Any]:
        return {SPREAD: self.tables}

    def resumed(self, state: dict[str, Any]) -> "Spread":
        """The batch with a state that one process alone had."""
        alone = self._mine.resumed(state)
        return self._moved(alone.tables, alone.collapsed)

    def _moved(self, tables: dict[str, Any], collapsed: Tensor | None) -> "Spread":
        """Restarts at these tables, in equal shares."""
        members = shares(_number(tables), self._ranks.n)
        mine = self._mine.at(_part(tables, members[self._ranks.rank]))
        return Spread(self._ranks, members, mine, tables, collapsed)

    # ---- what all processes know -------------------------------------------------------------------------------------

    @property
    def _ours(self) -> list[int]:
        return self._members[self._ranks.rank]

    def _take(self, compute: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Tables `[R, ...]` of all restarts, from those that each process computes; `tables` and `collapsed` become
        those after it."""

        def here() -> tuple[list[Any], dict[str, Any], Tensor | None]:
            with deferred():
                computed = [table.cpu() for table in compute()]
            collapsed = self._mine.collapsed
            return computed, _sent(self._mine.tables), None if collapsed is None else collapsed.cpu()

        computed, tables, collapsed = zip(*self._ranks.gathered(here), strict=True)
        self.tables = self._joined(tables)
        self.collapsed = None if collapsed[0] is None else self._table(*collapsed)
        return [self._table(*parts) for parts in zip(*computed, strict=True)]

    def _joined(self, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {name: tree_map(self._table, *(part[name] for part in parts)) for name in parts[0]}

    def _table(self, *parts: Tensor) -> Tensor:
        """The table of all restarts, from those of the processes."""
        numbers = [i for own in self._members for i in own]
        order = [numbers.index(i) for i in range(max(numbers) + 1)]
        return torch.cat(parts)[order].to(tree_parts(next(iter(self._mine.tables.values())))[0].device)


def shares(n: int, n_ranks: int) -> Members:
    """n restarts in equal shares, alternately; if they are fewer than processes, some have the same."""
    return [[*range(rank, n, n_ranks)] or [rank % n] for rank in range(n_ranks)]


def _part(tables: Mapping[str, Any], restarts: list[int]) -> dict[str, Any]:
    return {name: tree_map(lambda part: part[restarts], table) for name, table in tables.items()}


def _sent(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables as they are sent: on the CPU, as devices of processes differ."""
    return {name: tree_map(Tensor.cpu, table) for name, table in tables.items()}


def _number(tables: Mapping[str, Any]) -> int:
    return len(tree_parts(next(iter(tables.values())))[0])
