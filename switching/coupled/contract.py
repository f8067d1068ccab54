"""What models of several coupled copy chains share: exact inference over all joint states, the best q of independent
chains, their sites in a program, and each chain's prior as tables.

Sites are `z_t_d` and `s_t_d` for step t and chain d, both from 1. The first step redraws every chain.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...inference.chains.contract import Chain
from ...inference.families import CopyTables
from ...inference.message_passing.engine import VMP


@dataclass(frozen=True)
class CoupledDraw:
    """A draw of the whole model."""

    x: Float[Tensor, "*b T F"]
    path: Int[Tensor, "*b T D"]
    redraw: Bool[Tensor, "*b T D"]


@dataclass(frozen=True)
class CoupledBelief:
    """The exact marginals of each chain, and the evidence of the whole."""

    log_evidence: Float[Tensor, "*b"]
    state: tuple[Float[Tensor, "*b T _"], ...]  # P(s_dt | ...), a table for each chain


@dataclass(frozen=True)
class CoupledPaths:
    """The structured approximation: each chain's exact marginals under q, and how the bound rose."""

    state: tuple[Float[Tensor, "*b T _"], ...]  # q(s_dt)
    redraw: Float[Tensor, "*b T D"]  # q(z_dt = 1)
    elbo: Float[Tensor, "steps"]  # summed over sequences, <= log evidence
    converged: bool


class CoupledChains(ABC):
    """D copy chains of one model."""

    @abstractmethod
    def program(self, x: Tensor | None = None, n_steps: int | None = None, batch_shape: tuple[int, ...] = ()) -> Tensor:
        """The Pyro program; conditioned on x where given."""

    @abstractmethod
    def product_chain(self, x: Any, lengths: Any = None) -> Chain:
        """The chain over all joint states."""

    @abstractmethod
    def engine(self, x: Any, lengths: Any = None, check: bool = True) -> VMP:
        """The model on the engine, a block of exact paths for each chain."""

    @abstractmethod
    def _marginals(self, joint: Tensor) -> tuple[Tensor, ...]:
        """The beliefs about each chain in one about the joint state."""

    def log_evidence(self, x: Any, lengths: Any = None) -> Tensor:
        """log p(x), exact."""
        return self.product_chain(x, lengths).log_normalizer()

    def filter(self, x: Any, lengths: Any = None) -> CoupledBelief:
        """P(s_dt | x_1..t), exact."""
        found = self.product_chain(x, lengths).filter()
        return CoupledBelief(found.log_normalizer, self._marginals(found.state))

    def smooth(self, x: Any, lengths: Any = None) -> CoupledBelief:
        """P(s_dt | x), exact."""
        found = self.product_chain(x, lengths).smooth()
        return CoupledBelief(found.log_normalizer, self._marginals(found.state))

    def infer(self, x: Any, lengths: Any = None, max_steps: int = 200, tol: float = 1e-10) -> CoupledPaths:
        """The best q of independent chains, by coordinate ascent from the prior; the bound rises with every update."""
        engine = self.engine(x, lengths)
        run = engine.run(max_steps, tol)
        return paths_of([engine.stats(name) for name in engine.blocks], run.elbo, run.converged)


def paths_of(used: Sequence[CopyTables], elbo: Tensor, converged: bool) -> CoupledPaths:
    """What q says, from its expected uses of each chain's tables."""
    redraw = torch.stack([stats.fresh.sum(-1) for stats in used], -1)
    return CoupledPaths(tuple(stats.fresh + stats.held for stats in used), redraw, elbo, converged)


def draw_chain(t: int, d: int, rho: Tensor, probs: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gate and state of chain d (from 0) at step t, given the state before it; None at the first step."""
    rho = torch.ones_like(rho) if before is None else rho
    redraw = pyro.sample(f"z_{t}_{d + 1}", dist.Bernoulli(rho), infer={"enumerate": "parallel"})
    if before is not None:
        same = torch.nn.functional.one_hot(before, probs.shape[-1]).to(probs)
        probs = torch.where(redraw.bool().unsqueeze(-1), probs, same)
    return redraw, pyro.sample(f"s_{t}_{d + 1}", dist.Categorical(probs), infer={"enumerate": "parallel"})


def draw_model(
    program: Callable[..., Tensor], n_chains: int, n_steps: int, batch_shape: tuple[int, ...], seed: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Run `program(None, n_steps, batch_shape)`: x [*b, T, F], states and gates [*b, T, D].

    A seed makes the draw repeatable and leaves global state alone.
    """
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.random.manual_seed(seed)
        trace = pyro.poutine.trace(program).get_trace(None, n_steps, batch_shape)

    def value(name: str) -> Tensor:
        return torch.as_tensor(trace.nodes[name].get("value"))

    def sites(kind: str) -> Tensor:
        names = [[f"{kind}_{t + 1}_{d + 1}" for d in range(n_chains)] for t in range(n_steps)]
        return torch.stack([torch.stack([value(name) for name in row], -1) for row in names], -2)

    return value("_RETURN"), sites("s"), sites("z").bool()


def prior_tables(rho: Tensor, log_fresh: Tensor, n_steps: int) -> CopyTables:
    """log rho and the fresh states [K] as [T, K], and log(1 - rho) as [T, 1]; the first step redraws, whatever rho."""
    first = torch.arange(n_steps, device=rho.device) == 0
    log_rho = torch.where(first, 0.0, rho.log()).unsqueeze(-1)
    log_hold = torch.where(first, 0.0, torch.log1p(-rho)).unsqueeze(-1)
    return CopyTables(log_rho + log_fresh, log_hold)
