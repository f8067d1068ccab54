"""Message passing in chunks of the data.

The tables of one chunk fit into memory. Sequences are independent given the parameters, so the bound and the messages
to the parameters are sums over groups of sequences. A sequence that is too long for one chunk is cut into stretches:
see `whole`.
"""

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from ...inference.chains.contract import log_belief_at_end
from ...inference.families import Stats, tree_map
from ...inference.message_passing.engine import HALVINGS, ROUNDINGS, VMP, Block, Run, per_restart
from ...inference.numerics.deferred import deferred, recompute
from ...inference.numerics.ranks import Ranks
from ...inference.numerics.scalars import MOST
from ..data.packed import consecutive
from ..data.series import Series
from ..dynamics.contract import PATHS
from ..parameters import Parameters
from .chain_graph import ChainGraph
from .graph import Etas, Graph
from .series_graph import SeriesGraph
from .whole import Piece

T = TypeVar("T")
MAX_NUMBERS = 2**20  # numbers in one table of a chunk on the CPU, whose caches hold it
ON_GPU = 16  # times as many there, where each kernel takes some time to begin
LONG = 2**24  # numbers in one table beyond which a single sequence is cut


class Contribution(NamedTuple):
    """The contribution of a part of the data: its part of the bound, `[R]`, and its messages to the parameters."""

    elbo: Tensor
    messages: Etas


class ChunkedVMP:
    """The engine of a graph that holds the paths of one chunk at a time, with the interface of `VMP` that fits use.

    Paths follow from the parameters: they are updated by the first bound or message that is read after a change.

    Arguments:
        etas: natural parameters of the blocks of parameters, `[R, ...]`.
        linear: the blocks in whose statistics all factors are linear (see `ChainGraph.linear`).
        under: expected statistics of the parameters for the first update, instead of those of `etas`.
    """

    graph: SeriesGraph
    linear: frozenset[str]
    etas: Etas | dict[str, Tensor | Stats]

    def __init__(self, graph: SeriesGraph, etas: Etas, linear: frozenset[str], under: Etas | None = None):
        self._size = max(1, _max_size(graph) // (_restarts(etas) * graph.problem.n_states))  # steps of a chunk
        self._take(graph, etas)
        self._paths: list[Stats] = []  # of each group, if an evaluation continues from the previous one
        self.linear, self._fresh = linear, True
        self._now = self._contribution(etas, under)

    def _take(self, graph: SeriesGraph, etas: Etas) -> None:
        self.graph, self.etas, self._data = graph, etas, graph.data
        self._groups = alike(self._data.series, self._size)

    @property
    def contribution(self) -> Contribution:
        """Of all data, under the current parameters."""
        if not self._fresh:
            self._now, self._fresh = self._contribution(self.etas), True
        return self._now

    def elbo(self) -> Tensor:
        """The evidence lower bound of each restart."""
        return self.contribution.elbo

    def message(self, name: str) -> Tensor:
        """The messages of all data to a block of parameters."""
        return self.contribution.messages[name]

    @property
    def ranks(self) -> Ranks:
        """The processes that share the data."""
        return self._data.ranks

    @property
    def blocks(self) -> dict[str, Block]:
        """The blocks of parameters."""
        graph = self.graph
        return {n: Block(n, family, graph.priors[n], self.etas[n]) for n, family in graph.families.items()}

    def put(self, block: Block) -> None:
        """Replace the family and the natural parameters of a block of parameters."""
        self.graph = replace(self.graph, families=self.graph.families | {block.name: block.family})
        self.etas, self._fresh = self.etas | {block.name: block.eta}, False

    def update(self, name: str) -> None:
        """Move a block of parameters to its optimum given the paths, as they were at the last bound."""
        self.put(replace(self.blocks[name], eta=self._priors()[name] + self._now.messages[name]))

    @property
    def occupancy(self) -> Tensor:
        """Expected number of steps in each state, `[R, K]`."""
        none = self._data.like.new_zeros(len(self.elbo()), self.graph.problem.n_states)
        steps = partial(self._of_chunks, self.etas, None, lambda chunk: [occupancy_of(*chunk)])
        return self._data.summed(steps, [none])[0]

    def run(self, max_steps: int, tol: float) -> Run:
        """See `VMP.run`."""
        trace: list[Tensor] = []
        converged = False
        try:
            _ = self.contribution
            while len(trace) < max_steps and not converged:
                with deferred() as checks:
                    etas = {name: prior + self._now.messages[name] for name, prior in self._priors().items()}
                    now = self._contribution(etas)
                    if self._is_curved:
                        etas, now = self._raised(etas, now)
                    before = trace[-1] if trace else torch.full_like(now.elbo, math.nan)
                    (converged,) = map(bool, checks.settle(((now.elbo - before).abs() <= tol * now.elbo.abs()).all()))
                self._now, self.etas = now, etas
                trace.append(now.elbo)
        except KeyboardInterrupt:
            if not trace:
                raise  # nothing has been reached yet
            return Run(torch.stack(trace), len(trace), False, interrupted=True)
        return Run(torch.stack(trace), len(trace), converged)

    @property
    def _is_curved(self) -> bool:
        """Whether a whole step may lower the bound: see `Factor`."""
        return any(factor.curved for factor in self.graph.factors)

    def _raised(self, etas: Etas, now: Contribution) -> tuple[Etas, Contribution]:
        """The way to these natural parameters, halved in each restart until the bound does not fall."""
        for i in range(HALVINGS + 1):
            rounding = ROUNDINGS * torch.finfo(self._data.like.dtype).eps * now.elbo.abs()
            risen = now.elbo >= self._now.elbo - rounding  # False for NaN
            if bool(risen.all()):
                break
            part = 0.5 if i < HALVINGS else 0.0
            etas = {
                name: torch.where(per_restart(risen, e), e, self.etas[name].lerp(e, part)) for name, e in etas.items()
            }
            now = self._contribution(etas)
        return etas, now

    def select(self, restarts: Tensor) -> "ChunkedVMP":
        """The engine of some of the restarts."""
        now, selected = self.contribution, copy(self)
        selected.etas = {name: eta[restarts] for name, eta in self.etas.items()}
        messages = {name: message[restarts] for name, message in now.messages.items()}
        selected._now = Contribution(now.elbo[restarts], messages)
        selected._paths = [tree_map(lambda table: table[restarts], paths) for paths in self._paths]
        return selected

    def state(self, kept: Collection[str]) -> dict[str, Any]:
        """Its natural parameters, and what it has computed from them in chunks of so many steps; see `VMP.state`."""
        now = self.contribution
        chunks = {"size": self._size, "paths": self._paths, "elbo": now.elbo, "messages": now.messages}
        return {"etas": self.etas, "linear": sorted(self.linear), "chunks": chunks}

    @staticmethod
    def of_state(graph: SeriesGraph, state: dict[str, Any]) -> "ChunkedVMP":
        """The engine that had this state."""
        engine, chunks = object.__new__(ChunkedVMP), state["chunks"]
        engine._size, engine._paths, engine.linear = chunks["size"], chunks["paths"], frozenset(state["linear"])
        engine._take(graph, state["etas"])
        engine._fresh = True
        engine._now = Contribution(chunks["elbo"], chunks["messages"])
        return engine

    def _priors(self) -> Etas:
        return {
            name: torch.zeros_like(prior) if name in self.graph.factor_priors else prior
            for name, prior in self.graph.priors.items()
        }

    def _contribution(self, etas: Etas, under: Etas | None = None) -> Contribution:
        """The bound and the messages under these parameters; for the first update, under other statistics of them."""

        def terms(chunk: Chunk) -> list[Tensor]:
            engine, follows = chunk.engine, PATHS in chunk.engine.blocks
            bound = engine.normalizer(PATHS) + engine.elbo(without=PATHS) if follows else engine.elbo()
            # under other statistics q(paths) is not optimal for `etas`, so there is no bound
            return [bound if under is None else torch.full_like(bound, -math.inf), *map(engine.message, etas)]

        zeros = [self._data.like.new_zeros(_restarts(etas)).double(), *map(torch.zeros_like, etas.values())]
        elbo, *messages = self._data.summed(partial(self._of_chunks, etas, under, terms), zeros)
        return Contribution(elbo, dict(zip(etas, messages, strict=True)))

    def _of_chunks(self, etas: Etas, under: Etas | None, compute: Callable[["Chunk"], T]) -> Iterator[T]:
        """What is computed from each chunk, with its paths under these parameters."""
        known, self._paths = iter(self._paths), []

        def chunk(piece: Piece) -> Chunk:
            graph = self.graph.to(*piece)
            engine, paths = graph.engine(etas, check=False, linear=self.linear), next(known, None)
            if paths is not None:
                engine.put(engine.blocks[PATHS], near=paths)
            for block in graph.paths:
                engine.update(block.name, under)
            if self.graph.independent:
                self._paths.append(engine.stats(PATHS))
            return Chunk(engine, int(piece.before is not None))

        def within(sequence: int, step: int) -> AbstractContextManager[None]:
            return recompute(lambda: [*self._of_chunks(etas, under, compute)])

        longest = longest_of(self.graph, _restarts(etas))
        return self._data.of_pieces(self._groups, chunk, compute, within, longest, self._size + 1)


def alike(series: Series, most: int) -> list[Int[Tensor, "n"]]:
    """The numbers of the sequences in groups of similar length, each of at most `most` steps with padding."""
    lengths, order = (series.last.flatten() + 1).cpu().sort(stable=True)
    return [order[some].sort().values for some in consecutive(lengths, most)]


def _restarts(etas: Etas) -> int:
    return len(next(iter(etas.values())))


class Chunk(NamedTuple):
    """The engine of a piece of the data, and the number of its first steps that another one counts."""

    engine: VMP
    counted_before: int

    def log_belief(self) -> Tensor:
        paths = self.engine.blocks[PATHS]
        return log_belief_at_end(paths.family.chain(paths.eta))  # type: ignore[attr-defined]

    def log_evidence(self, before: Tensor) -> Tensor:
        family: Any = self.engine.blocks[PATHS].family
        belief = family.probabilities(self.engine.stats(PATHS).steps[0])[..., 0, :]
        return torch.where(before == -math.inf, 0.0, belief.log() - before)  # if a_t is 0, b_t has no effect


def longest_of(graph: SeriesGraph, restarts: int) -> int:
    """The steps beyond which a single sequence is cut into stretches; real-valued states are in memory."""
    can_cut = isinstance(graph, ChainGraph) and not graph.independent
    return LONG // (restarts * graph.problem.n_states * graph.width) if can_cut else MOST


def is_large(graph: SeriesGraph, restarts: int) -> bool:
    """Whether the tables of all data are too large to hold at once for so many restarts."""
    series = graph.problem.series
    if graph.whole is not None:
        return True
    numbers = series.n_sequences * restarts * series.n_steps * graph.problem.n_states
    return series.n_steps > longest_of(graph, restarts) or (series.n_sequences > 1 and numbers > _max_size(graph))


def _max_size(graph: SeriesGraph) -> int:
    """Steps of a chunk, times restarts and states."""
    return max_numbers(graph.problem.series.like) // graph.width


def max_numbers(like: Tensor) -> int:
    """The numbers in one table of a chunk, on the device of a tensor."""
    return MAX_NUMBERS if like.device.type == "cpu" else ON_GPU * MAX_NUMBERS


def occupancy_of(engine: VMP | ChunkedVMP, counted_before: int = 0) -> Tensor:
    """Expected number of steps in each state, `[R, K]`; without held steps whose emission is the same in all states,
    and without the first ones, which are counted elsewhere."""
    if isinstance(engine, ChunkedVMP):
        return engine.occupancy
    drawn, held = engine.stats(PATHS).steps
    mass = drawn if held is None or held.shape[-1] < drawn.shape[-1] else drawn + held
    mass = mass[..., counted_before:, :]
    return mass.reshape(len(mass), -1, mass.shape[-1]).sum(-2)


def engine_from(graph: ChainGraph, values: Parameters) -> VMP | ChunkedVMP:
    """The engine with the paths under parameters `[R, ...]`."""
    return engine_of(graph, graph.near(values), graph.point(values))


def engine_of(
    graph: Graph, etas: Etas, under: Etas | None = None, linear: frozenset[str] | None = None
) -> VMP | ChunkedVMP:
    """The engine with these natural parameters, and with the paths under them or under the statistics `under`.

    `linear` comes from an engine of the same graph, if there is one.
    """
    if isinstance(graph, SeriesGraph):
        linear = graph.linear(etas) if linear is None else linear
        if is_large(graph, _restarts(etas)):
            return ChunkedVMP(graph, etas, linear, under)
    engine = graph.engine(etas, check=False, linear=linear or frozenset())
    for block in graph.paths:
        engine.update(block.name, under)
    return engine


def engine_in(graph: Graph, state: dict[str, Any]) -> VMP | ChunkedVMP:
    """The engine of a graph that had this state."""
    etas, linear = state["etas"], frozenset(state["linear"])
    if isinstance(graph, SeriesGraph) and "chunks" in state:
        return ChunkedVMP.of_state(graph, state)
    engine = graph.engine(etas, check=False, linear=linear)
    for block in graph.paths:
        if block.name not in etas:
            engine.update(block.name)
    engine.set(state)
    return engine


def parameters_of(engine: VMP | ChunkedVMP) -> Etas:
    """Natural parameters of the blocks of parameters."""
    return {name: block.eta for name, block in engine.blocks.items() if name != PATHS}


def messages_of(engine: VMP | ChunkedVMP) -> Etas:
    """The messages of all data to the blocks of parameters."""
    return {name: engine.message(name) for name in engine.blocks if name != PATHS}
