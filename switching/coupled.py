"""What models of several coupled copy chains share: their sites in a program, and each chain's prior as tables.

Sites are `z_t_d` and `s_t_d` for step t and chain d, both from 1. The first step redraws every chain.
"""

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from ..inference.families import CopyTables


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
