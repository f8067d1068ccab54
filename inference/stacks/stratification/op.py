r"""The stratification stack: layers of fluid that are poured on, drained and read from the top.

Layer i was poured at step i with strength (thickness) $s[i]$. A step drains a depth $u$ from the top, then pours a
layer of strength $d$; reading mixes the layers of the topmost unit of depth (Grefenstette et al. 2015, eqs. 1-3):

$$s_t[i] = \max(0,\; s_{t-1}[i] - \max(0,\; u_t - \sum_{j>i} s_{t-1}[j])), \quad s_t[t] = d_t, \qquad
r_t = \sum_i \min(s_t[i],\; \max(0,\; 1 - \sum_{j>i} s_t[j]))\, v_i$$

It averages over the depth of reading, not over actions: in general, no distribution over action sequences gives the
same reads.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ...numerics.op import Variants


def stratify(strength: Float[Tensor, "*b n"], pour: Float[Tensor, "*b"], drain: Float[Tensor, "*b"]) -> Tensor:
    """Strengths [*b, n + 1] of all layers, oldest first, after draining and then pouring one more.

    >>> stratify(torch.tensor([0.5, 1.0]), pour=torch.tensor(0.7), drain=torch.tensor(1.2))
    tensor([0.3000, 0.0000, 0.7000])
    """
    rest = strength - (drain[..., None] - _above(strength)).relu()
    return torch.cat([rest.relu(), pour[..., None]], -1)


def visible(strength: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    """The part of each layer in the topmost unit of depth: its weight in a read.

    >>> visible(torch.tensor([0.5, 0.8, 0.7]))
    tensor([0.0000, 0.3000, 0.7000])
    """
    return torch.minimum(strength, (1 - _above(strength)).relu())


def strengths(pour: Float[Tensor, "*b T"], drain: Float[Tensor, "*b T"]) -> Float[Tensor, "*b T T"]:
    """What is left, after each step (first T), of the layer poured at each step (last T).

    >>> strengths(torch.tensor([1.0, 0.5]), torch.tensor([0.0, 0.25]))
    tensor([[1.0000, 0.0000],
            [0.7500, 0.5000]])
    """
    strength, kept, T = pour[..., :0], [], pour.shape[-1]
    for d, u in zip(pour.unbind(-1), drain.unbind(-1), strict=True):
        strength = stratify(strength, d, u)
        kept.append(pad(strength, (0, T - strength.shape[-1])))
    return torch.stack(kept, -2)


def _step(raw: Tensor, strength: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`stratified_step` in plain torch."""
    pour, drain = raw[:, :2].sigmoid().unbind(-1)
    strength = stratify(strength, pour, drain)
    values = torch.cat([values, raw[:, None, 2:].tanh()], 1)
    return strength, values, (visible(strength).unsqueeze(1) @ values).squeeze(1)


step: Variants = Variants(_step)
"""`stratified_step`; not an operator, whose bookkeeping would take longer than the step of a small network."""


def stratified_step(
    raw: Float[Tensor, "M R"], strength: Float[Tensor, "M n"], values: Float[Tensor, "M n V"]
) -> tuple[Float[Tensor, "M n+1"], Float[Tensor, "M n+1 V"], Float[Tensor, "M V"]]:
    """What a stack network does in one step: drain, pour one more layer, read.

    Arguments:
        raw: two numbers whose sigmoids are the strengths poured and drained, then V whose tanh is the value poured.
        strength, values: of the layers there are, oldest first.

    Returns:
        Strengths and values after the step, and the reading.

    >>> _, _, reading = stratified_step(torch.tensor([[0.0, -9.0, 9.0]]), torch.ones(1, 1), -torch.ones(1, 1, 1))
    >>> reading.abs().round(decimals=2)  # half of 1 on top of half of -1
    tensor([[0.]])
    """
    return step(raw, strength, values)


def _above(strength: Tensor) -> Tensor:
    """The strength above each layer, summed from the top."""
    return strength.flip(-1).cumsum(-1).flip(-1) - strength
