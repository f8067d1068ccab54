r"""A copy model's filter by the message-passing engine itself: two blocks and two factors at each step.

$q(z_t)\, q(s_t)$ is fitted to one step of the model, given the belief $Q_{t-1}$ about the state before it. With
$j_1(s) = \log \pi(s) + \log p(x_t \mid s, 1)$ and $j_0(s) = \log Q_{t-1}(s) + \log p(x_t \mid s, 0)$ the step is

    z ~ Bernoulli(rho)                  a block with a prior
    drawn   E[z j_1(s)]                 a factor
    kept    E[(1 - z) j_0(s)]           a factor

The engine differentiates these two functions, and its messages are the updates. To s it sends $q\, j_1 + (1-q)\, j_0$.
For a given gate and held steps that are independent of the state, this is a minGRU's $h_t = (1-q)\, h_{t-1} + q\, v_t$.
To z it sends $E[j_1(s) - j_0(s)]$. This file contains no network and no update. `filter_vmp` computes the same in one
pass of a kernel.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from samplehold.inference.families import Bernoulli, Categorical
from samplehold.inference.message_passing.engine import VMP, Block, Factor
from samplehold.inference.numerics.checks import broadcast_shapes
from samplehold.inference.numerics.records import Record
from torch import Tensor


@dataclass(frozen=True, repr=False)
class EngineFiltered(Record):
    """The beliefs after each observation."""

    logits: Float[Tensor, "*b T K"]  # log Q(s_t)
    redraw: Float[Tensor, "*b T"]  # Q(z_t = 1)


def engine_filter(
    log_redrawn: Float[Tensor, "*#b T K"],
    log_held: Float[Tensor, "*#b T #K"],
    log_state: Float[Tensor, "*#b K"],
    log_odds: Float[Tensor, "*#b T"],
    gate: Float[Tensor, "*#b T"] | None = None,
    sweeps: int = 4,
) -> EngineFiltered:
    r"""The filter that `filter_steps` computes, by `VMP`, for all models and sequences of the batch at once.

    Arguments:
        log_redrawn: $\log p(x_t \mid s, z_t{=}1)$; of all, the axes broadcast.
        log_held: $\log p(x_t \mid s, z_t{=}0)$, or [*b, T, 1] for all states alike.
        log_state: $\log \pi(s)$.
        log_odds: $\text{logit}\, \rho$.
        gate: $Q(z_t = 1)$ if it is given instead of inferred. The first step always redraws.
        sweeps: updates of gate and state at each step, where the gate is inferred. They start from the exact posterior
            of the gate given $Q_{t-1}$.

    Example:
        >>> import torch
        >>> logits, pi = torch.randn(9, 3).log_softmax(-1), torch.full((3,), 1 / 3).log()
        >>> filtered = engine_filter(logits, torch.zeros(9, 1), pi, torch.zeros(9), gate=torch.full((9,), 0.3))
        >>> h = [pi + logits[0]]
        >>> for v in pi + logits[1:]:  # a minGRU
        ...     h.append(0.7 * h[-1] + 0.3 * v)
        >>> torch.allclose(filtered.logits.softmax(-1), torch.stack(h).softmax(-1))
        True
    """
    shape = broadcast_shapes(log_redrawn.shape, log_held.shape, log_state.unsqueeze(-2).shape)
    belief, logits, redraw = log_state.expand(*shape[:-2], shape[-1]).log_softmax(-1), [], []
    for t in range(shape[-2]):
        drawn, kept = log_state + log_redrawn[..., t, :], belief + log_held[..., t, :]
        odds = log_odds[..., t, None].expand(*shape[:-2], 1)
        start = odds + (drawn.logsumexp(-1, True) - kept.logsumexp(-1, True))
        if gate is not None:
            start = torch.logit(gate[..., t, None]).expand_as(odds)
        if t == 0:
            odds = start = torch.full_like(odds, torch.inf)
        step = _step(drawn, kept, odds, start, check=t == 0)
        step.update("s")
        for _ in range(sweeps if gate is None else 0):
            step.step()
        belief = step.blocks["s"].eta.log_softmax(-1)
        logits.append(belief)
        redraw.append(step.stats("z").squeeze(-1))
    return EngineFiltered(torch.stack(logits, -2), torch.stack(redraw, -1))


def _step(drawn: Tensor, kept: Tensor, log_odds: Tensor, start: Tensor, check: bool) -> VMP:
    """The engine of one step: the gate before the state, as they are updated."""

    def drawn_afresh(z: Tensor, s: Tensor) -> Tensor:
        return z.squeeze(-1) * (s * drawn).sum(-1)

    def kept_as_it_was(z: Tensor, s: Tensor) -> Tensor:
        return (1 - z.squeeze(-1)) * (s * kept).sum(-1)

    return VMP(
        [Block("z", Bernoulli(), prior=log_odds, eta=start), Block("s", Categorical(), eta=kept)],
        [Factor(drawn_afresh, ("z", "s")), Factor(kept_as_it_was, ("z", "s"))],
        check=check,
    )
