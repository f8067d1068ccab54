r"""A stationary start under message passing: a bound of $E \log \pi_i$ from expected logarithms of transitions.

By the Markov chain tree theorem $\pi_i = \tau_i(A) / \sum_j \tau_j(A)$, where $\tau_i(A)$ is a sum over the trees whose
edges all lead to i, of the products of $A_{jk}$ along the edges. Let $\ell \le E \log A$ entry by entry, with rows that
are independent under q. Then

$$E \log \tau_i(A) \ge \log \tau_i(e^\ell), \qquad E \log \sum_j \tau_j(A) \le \log \sum_j \tau_j(E A), \qquad
E A_{jk} = 1 - \sum_{m \ne k} E A_{jm} \le 1 - \sum_{m \ne k} e^{\ell_{jm}},$$

because log-sum-exp is convex, a tree has one edge from each state but i, and $E A \ge e^\ell$. The bound is exact at a
point. It rises with each $\ell$, so its messages are counts of moves that are not negative. With two states it is
convex in $\ell$. With more it is not everywhere.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...inference.families import MarkovTables
from ...inference.message_passing.factor_graph import Factor
from .factors import named

NEVER = -1e3  # the logarithm of an impossible move


def log_trees(logs: Float[Tensor, "*n K K"]) -> Float[Tensor, "*n K"]:
    """log tau of each state, from logarithms of the moves between states.

    States are eliminated one by one, which subtracts nothing (Grassmann, Taksar & Heyman 1985).
    """
    rows = [list(row.unbind(-1)) for row in logs.unbind(-2)]
    pivots: list[Tensor] = []
    for last in reversed(range(1, len(rows))):
        pivots.insert(0, torch.stack(rows[last][:last], -1).logsumexp(-1))
        for j in range(last):
            for k in set(range(last)) - {j}:
                around = rows[j][last] + rows[last][k] - pivots[0]
                rows[j][k] = torch.logaddexp(rows[j][k], around)
    found = [torch.stack(pivots).sum(0) if pivots else torch.zeros_like(logs[..., 0, 0])]
    for state in range(1, len(rows)):
        into = torch.stack([found[j] + rows[j][state] for j in range(state)], -1)
        found.append(into.logsumexp(-1) - pivots[state - 1])
    return torch.stack(found, -1)


def stationary_bound(logs: Float[Tensor, "*n K K"], possible: Bool[Tensor, "K K"]) -> Float[Tensor, "*n K"]:
    """The bound of E log pi from lower bounds of E log A; entries of impossible moves are ignored."""
    possible = possible.to(logs.device)
    below = torch.where(possible, logs.double(), NEVER)
    least = below.exp()
    rest = (1 - least.sum(-1, keepdim=True)).clamp_min(0.0)
    above = torch.where(possible, (least + rest).clamp_min(torch.finfo(least.dtype).tiny).log(), NEVER)
    return (log_trees(below) - log_trees(above).logsumexp(-1, keepdim=True)).to(logs)


def stationary_start(
    block: str,
    chain: str,
    logs: Callable[[Tensor], Float[Tensor, "*rb K K"]],
    possible: Bool[Tensor, "K K"],
    counted: Tensor | None = None,
) -> Factor:
    """Bounds on E log P(s_1) of the first state of each sequence; `logs` maps statistics to bounds of E log A."""
    mask = torch.ones((), device="cpu") if counted is None else counted[0]

    def elog(paths: MarkovTables, statistics: Tensor) -> Tensor:
        return (paths.initial * stationary_bound(logs(statistics), possible)).sum(-1)

    def to_chain(paths: MarkovTables, statistics: Tensor) -> MarkovTables:
        return MarkovTables(stationary_bound(logs(statistics), possible) * mask, None, None)  # type: ignore[arg-type]

    return Factor(named("start", elog), (chain, block), {chain: to_chain}, mask=mask, curved=(block,))
