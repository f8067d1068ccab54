r"""Message passing over minibatches.

After each batch of n of the N sequences, every block of parameters takes a step along the natural
gradient of the bound,

$$\eta \leftarrow (1 - \epsilon_i)\, \eta + \epsilon_i \Big(\eta_0 + \tfrac Nn \sum_{b \in \text{batch}} m_b\Big),
\qquad \epsilon_i = i^{-\kappa},$$

with the messages $m_b$ of exact paths under the previous $\eta$. For $1/2 < \kappa \le 1$ the steps sum to infinity
and the steps' squares do not, so $\eta$ converges to a stationary point of the bound (Robbins & Monro 1951; Hoffman,
Blei, Wang & Paisley 2013). A pass takes each sequence once, in random order. The mean over its batches of
$\tfrac Nn \sum_b \log Z_b - KL(q \| p)$ estimates the bound. After the last pass the bound itself is computed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...inference.numerics.deferred import deferred
from ...inference.numerics.interrupts import may_interrupt
from ..dynamics.contract import PATHS
from .chain_graph import ChainGraph
from .chunked import engine_from, parameters_of
from .graph import Etas
from .options import Options
from .starts import Starts, sample_of

LOOP = "passes"  # its name in a checkpoint
FORGETTING = 0.7  # kappa: with values near 1/2, early batches are forgotten sooner
REPEATED = 10  # updates of a bounded block in each batch, which a small step alone would leave far from its optimum
KEPT = 3  # of this many restarts one continues


@dataclass
class Passes:
    """Passes through minibatches: the restarts that were kept, and the last bound of every restart.

    Attributes:
        etas: natural parameters of the kept restarts after the last whole pass.
        now: the same after the last batch.
        linear: see `VMP.linear`.
        kept: the numbers of the kept restarts.
        final: `[R]`, the last estimate of the bound of every restart.
        objective: the best estimate of each pass.
        n_batches: the number of batches so far, in all passes.
        order: of the sequences in the pass that has begun; None: it has ended.
        place: in it, the number of batches so far.
        estimate: in it, the sum over these batches.
    """

    etas: Etas
    now: Etas
    linear: list[str]
    kept: Tensor
    final: Tensor
    objective: list[float] = field(default_factory=list)
    n_batches: int = 0
    order: Tensor | None = None
    place: int = 0
    estimate: Any = 0.0
    converged: bool = False
    interrupted: bool = False

    @staticmethod
    def first(graph: ChainGraph, starts: Starts, options: Options) -> "Passes":
        """Before the first pass: starts learn from a sample of the sequences."""
        first = engine_from(graph.to(sample_of(graph.problem.series, options.number)), starts.values)
        first.run(1, 0.0)
        etas, restarts = parameters_of(first), len(starts.kinds)
        final = torch.full((restarts,), -math.inf, dtype=torch.float64, device="cpu")
        return Passes(etas, etas, sorted(first.linear), torch.arange(restarts, device="cpu"), final)

    def state(self) -> dict[str, Any]:
        return vars(self) | {"final": self.final.clone(), "objective": list(self.objective)}

    def learn(self, graph: ChainGraph) -> None:
        """Take a step from a batch."""
        batch = graph.engine(self.now, False, frozenset(self.linear), (self.n_batches + 1) ** -FORGETTING)
        with deferred():
            batch.update(PATHS)
            estimate = self.estimate + batch.elbo().double()
            for name in self.now:
                batch.update(name, repeated=REPEATED)
            now = parameters_of(batch)
        self.estimate, self.now, self.place, self.n_batches = estimate, now, self.place + 1, self.n_batches + 1

    def end(self, tol: float) -> None:
        """End a pass: keep the better restarts, or see whether the only one has converged."""
        estimate = self.estimate.cpu()
        self.etas, self.order, self.final[self.kept] = self.now, None, estimate
        self.objective.append(float(estimate.max()))
        if len(self.kept) > 1:
            better = estimate.argsort(descending=True)[: math.ceil(len(self.kept) / KEPT)]
            self.kept = self.kept[better]
            self.etas = {name: eta[better.to(eta.device)] for name, eta in self.etas.items()}
        else:
            rise = self.objective[-1] - self.objective[-2] if len(self.objective) > 1 else math.inf
            self.converged = abs(rise) <= tol


def run_batches(
    graph: ChainGraph, starts: Starts, options: Options, report: Callable[[int, float], None] = lambda step, best: None
) -> Passes:
    """Pass through all sequences until the estimate of the bound settles, at most `max_steps` times.

    Each of the first passes keeps the better third of the restarts, until one remains.
    """
    saving, generator, data = options.saving, torch.Generator().manual_seed(options.number), graph.data
    finished = saving.finished(LOOP)
    if finished is not None:
        return Passes(**finished)
    n, tol = data.n_sequences, options.tol * data.n_observed
    n_batches = -(-n // (options.batch_size or n))
    known = saving.start_loop(LOOP)
    if known is not None:
        generator.set_state(known.pop("generator"))
    passes = Passes.first(graph, starts, options) if known is None else Passes(**known)
    try:
        with may_interrupt():
            while len(passes.objective) < options.max_steps and not passes.converged:
                if passes.order is None:
                    passes.order = torch.randperm(n, generator=generator, device="cpu")
                    passes.now, passes.place, passes.estimate = passes.etas, 0, 0.0
                batches = [some.sort().values for some in passes.order.tensor_split(n_batches)[passes.place :]]
                for _ in data.of_pieces(batches, lambda piece: graph.to(*piece), passes.learn):
                    saving.note(lambda: passes.state() | {"generator": generator.get_state()})
                passes.end(tol)
                report(len(passes.objective), passes.objective[-1])
    except KeyboardInterrupt:
        if not passes.objective:
            raise  # nothing has been reached yet
        passes.interrupted = True
        saving.stop()
    saving.end(passes.state)
    return passes
