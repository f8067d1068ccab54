r"""Message passing in chunks of the data.

The tables of one chunk fit into memory. Sequences are independent given the parameters, so the bound and the messages
to the parameters are sums over groups of sequences. A sequence that is too long for one chunk is cut into stretches.
Each stretch begins with the last step of the previous one. A forward pass computes the belief $a_t$ at each cut. A
backward pass computes, for each stretch from t to t', the chain

$$a_t(s_t) \prod_{u = t+1}^{t'} p(s_u, x_u \mid s_{u-1}) \; b_{t'}(s_{t'}), \qquad
b_t(s) = P(s_t = s \mid x) / a_t(s),$$

where $b_{t'}$ carries the evidence of all later steps. The chain also gives the $b_t$ for the previous stretch.
"""

import math
from collections.abc import Collection, Iterator
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from ...inference.families import Stats, tree_map
from ...inference.message_passing.engine import HALVINGS, ROUNDINGS, VMP, Block, Run, per_restart
from ...inference.numerics.clock import passed
from ...inference.numerics.deferred import deferred, recompute
from ...inference.numerics.ranks import Ranks
from ..data.packed import ahead
from ..data.series import Series
from ..dynamics.contract import PATHS
from ..parameters import Parameters
from .chain_graph import ChainGraph
from .graph import Etas, Graph
from .series_graph import SeriesGraph

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
        self._lengths = self._data.lengths
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

        def occupancy() -> list[Tensor]:
            return [sum((occupancy_of(one.engine, one.counted) for one in self._chunks(self.etas, None)), none)]

        return self._data.ranks.summed(occupancy, [none])[0]

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
        zeros = [self._data.like.new_zeros(_restarts(etas)).double(), *map(torch.zeros_like, etas.values())]
        elbo, *messages = self._data.ranks.summed(lambda: self._local(etas, under, zeros), zeros)
        return Contribution(elbo, dict(zip(etas, messages, strict=True)))

    def _local(self, etas: Etas, under: Etas | None, zeros: list[Tensor]) -> list[Tensor]:
        """The bound and the messages of the data of this process."""
        total, messages = zeros[0], dict(zip(etas, zeros[1:], strict=True))
        chunks = self._chunks(etas, under)
        while True:
            with recompute(lambda: self._local(etas, under, zeros)):
                chunk = next(chunks, None)
                if chunk is None:
                    return [total, *messages.values()]
                engine, evidence, _ = chunk
                bound = engine.elbo() if evidence is None else evidence + engine.elbo(without=PATHS)
                # under other statistics q(paths) is not optimal for `etas`, so there is no bound
                total = total + (bound if under is None else torch.full_like(bound, -math.inf))
                messages = {name: message + engine.message(name) for name, message in messages.items()}

    def _chunks(self, etas: Etas, under: Etas | None) -> Iterator["Chunk"]:
        known, self._paths = self._paths, []
        for i, (some, later) in enumerate(ahead(self._groups)):
            share = len(some) / self._data.n_sequences
            if self._is_long(some, _restarts(etas)):
                yield from self._stretches(some, share, etas, under)
                continue
            part = self.graph.to(self._data.part(some), share)
            self._data.series.fetch(later)
            engine = part.engine(etas, check=False, linear=self.linear)
            if i < len(known):
                engine.put(engine.blocks[PATHS], near=known[i])
            for block in part.paths:
                engine.update(block.name, under)
            if self.graph.independent:
                self._paths.append(engine.stats(PATHS))
            yield Chunk(engine, engine.normalizer(PATHS) if PATHS in engine.blocks else None, None)
            self._data.series.release()
            self._passed(int(self._lengths[some].sum()))

    def _passed(self, rows: int) -> None:
        """Count rows, if they are of all data and not of a sample."""
        if self.graph.whole is not None:
            passed(rows)

    def _is_long(self, some: Int[Tensor, "n"], restarts: int) -> bool:
        """Whether this is a single sequence that is cut into stretches."""
        return len(some) == 1 and is_long(self.graph, restarts, int(self._lengths[some]))

    def _stretches(self, member: Int[Tensor, "1"], share: float, etas: Etas, under: Etas | None) -> Iterator["Chunk"]:
        """The chunks of a single long sequence."""
        n_steps = int(self._lengths[member])
        firsts = range(0, max(1, n_steps - 1), self._size)

        def stretch(i: int, before: Tensor | None, after: Tensor | None, way: int) -> tuple[ChainGraph, VMP]:
            series = self._data.stretch(member, firsts[i], self._size + 1)
            if 0 <= i + way < len(firsts):
                self._data.series.fetch(member, firsts[i + way], self._size + 1)
            part = self.graph.to(series, share / len(firsts), before=before, after=after)
            engine = part.engine(etas, check=False, linear=self.linear)
            engine.update(PATHS, under)
            return part, engine

        passed, log_belief = [], None  # the log belief before each stretch, and its part of the evidence
        for i in range(len(firsts)):
            part, engine = stretch(i, log_belief, None, 1)
            paths = engine.blocks[PATHS]
            filtered = paths.family.chain(paths.eta).filter()  # type: ignore[attr-defined]
            evidence = part.problem.series.weighed(filtered.log_normalizer)
            passed.append((log_belief, evidence.reshape(len(evidence), -1).sum(-1)))
            last = part.problem.series.last[..., None, None].expand(
                *filtered.state.shape[:-2], 1, filtered.state.shape[-1]
            )
            log_belief = filtered.state.gather(-2, last).squeeze(-2).log()
        log_after = None
        for i in reversed(range(len(firsts))):
            before, evidence = passed[i]
            part, engine = stretch(i, before, log_after, -1)
            yield Chunk(engine, evidence, part.counted)
            self._passed(min(self._size, n_steps - firsts[i]))
            if before is not None:
                family: Any = engine.blocks[PATHS].family
                belief = family.probabilities(engine.stats(PATHS).steps[0])[..., 0, :]
                # if a_t is 0, b_t has no effect
                log_after = torch.where(before == -math.inf, 0.0, belief.log() - before)


def alike(series: Series, most: int) -> list[Int[Tensor, "n"]]:
    """The numbers of the sequences in groups of similar length, each of at most `most` steps with padding."""
    if not series.n_sequences:
        return []
    if series.lengths is None:
        return list(torch.arange(series.n_sequences, device="cpu").split(max(1, most // series.n_steps)))
    lengths, order = series.lengths.flatten().cpu().sort(stable=True)
    groups, first = [], 0
    while first < len(order):
        some = lengths[first : first + max(1, most)]
        padded = some * torch.arange(1, len(some) + 1, device="cpu")
        n = max(1, int((padded <= most).sum()))
        groups.append(order[first : first + n].sort().values)
        first += n
    return groups


def _restarts(etas: Etas) -> int:
    return len(next(iter(etas.values())))


class Chunk(NamedTuple):
    """The engine of a part of the data, the part of the bound `[R]` of its only block of paths, and
    `ChainGraph.counted` of its steps."""

    engine: VMP
    evidence: Tensor | None
    counted: Tensor | None


def is_long(graph: SeriesGraph, restarts: int, n_steps: int) -> bool:
    """Whether a single sequence is so long that it is cut into stretches; real-valued states are in memory."""
    numbers = restarts * n_steps * graph.problem.n_states * graph.width
    return numbers > LONG and isinstance(graph, ChainGraph) and not graph.independent


def is_large(graph: SeriesGraph, restarts: int) -> bool:
    """Whether the tables of all data are too large to hold at once for so many restarts."""
    series = graph.problem.series
    if graph.whole is not None:
        return True
    numbers = series.n_sequences * restarts * series.n_steps * graph.problem.n_states
    return is_long(graph, restarts, series.n_steps) or (series.n_sequences > 1 and numbers > _max_size(graph))


def _max_size(graph: SeriesGraph) -> int:
    """Steps of a chunk, times restarts and states."""
    return max_numbers(graph.problem.series.like) // graph.width


def max_numbers(like: Tensor) -> int:
    """The numbers in one table of a chunk, on the device of a tensor."""
    return MAX_NUMBERS if like.device.type == "cpu" else ON_GPU * MAX_NUMBERS


def occupancy_of(engine: VMP | ChunkedVMP, counted: Tensor | None = None) -> Tensor:
    """Expected number of steps in each state, `[R, K]`; without held steps whose emission is the same in all states."""
    if isinstance(engine, ChunkedVMP):
        return engine.occupancy
    drawn, held = engine.stats(PATHS).steps
    mass = drawn if held is None or held.shape[-1] < drawn.shape[-1] else drawn + held
    mass = mass if counted is None else mass * counted.unsqueeze(-1)
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
    if isinstance(engine, ChunkedVMP):
        return engine.etas
    return {name: block.eta for name, block in engine.blocks.items() if name != PATHS}


def messages_of(engine: VMP | ChunkedVMP) -> Etas:
    """The messages of all data to the blocks of parameters."""
    if isinstance(engine, ChunkedVMP):
        return engine.contribution.messages
    return {name: engine.message(name) for name in engine.blocks if name != PATHS}
