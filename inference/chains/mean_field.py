r"""The naive factorisation, for comparison: q(s_1) ... q(s_T), with independent steps.

With log weights $W_t(i, j)$ of a move from i to j at step t (for a copy chain the gate is summed out of it, since a
held step joins the states on both sides) and $\lambda_t(j)$ of being in j, the bound and the update of one step are

$$B(q) = \sum_t q_t^\top \lambda_t + q_{t-1}^\top W_t\, q_t + H(q_t), \qquad
\log q_t = \lambda_t + W_t^\top q_{t-1} + W_{t+1} q_{t+1} + \text{const}.$$

Steps with even and with odd t are updated in turn, all at once, so B never falls. It has many local optima.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..numerics.deferred import refuse_if
from ..numerics.scalars import check_integer

Push = Callable[[Tensor], Tensor]


def independent_steps(
    local: Float[Tensor, "*b T K"],
    forward: Push,
    backward: Push,
    inside: Bool[Tensor, "*b T"],
    q: Float[Tensor, "*b T K"],
    sweeps: int,
) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b T K"]]:
    r"""The bound B(q), and q after some sweeps over all steps; 0 after the end of a sequence.

    Arguments:
        local: $\lambda_t$, 0 after the end.
        forward: maps q to $W_t^\top q_{t-1}$ of every step, 0 at the first step and after the end.
        backward: maps q to $W_{t+1} q_{t+1}$ of every step, 0 at the last step.
        inside: the steps that belong to their sequence.
        q: the start.
    """
    sweeps = check_integer("sweeps", sweeps, least=0)
    odd = (torch.arange(local.shape[-2], device=local.device) % 2 == 1).unsqueeze(-1)
    for _ in range(sweeps):
        for turn in (~odd, odd):
            q = torch.where(turn, torch.softmax(local + forward(q) + backward(q), -1), q)
    energy = q * (local + forward(q) - q.clamp_min(torch.finfo(q.dtype).tiny).log())
    bound = torch.where(inside.unsqueeze(-1) & (q > 0), energy, 0.0).sum((-2, -1))
    return bound, torch.where(inside.unsqueeze(-1), q, 0.0)


def check_finite(**tables: Tensor) -> None:
    """Raise `ValueError` unless all weights are numbers: independent steps cannot avoid an impossible move."""
    for name, table in tables.items():
        refuse_if(~table.isfinite().all(), partial(_complain, name))


def _complain(name: str) -> None:
    raise ValueError(f"{name}: holds weights that are not finite; give finite ones, or use exact inference.")


def later(table: Float[Tensor, "*b T K"]) -> Float[Tensor, "*b T K"]:
    """Each step gets the entry of the previous step; the first gets 0."""
    return torch.nn.functional.pad(table[..., :-1, :], (0, 0, 1, 0))


def earlier(table: Float[Tensor, "*b T K"]) -> Float[Tensor, "*b T K"]:
    """Each step gets the entry of the next step; the last gets 0."""
    return torch.nn.functional.pad(table[..., 1:, :], (0, 0, 0, 1))
