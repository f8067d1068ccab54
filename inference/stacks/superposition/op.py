r"""The superposition stack: expected cells and depths when each action is uncertain and independent of the others.

If an action is push, pop or no-op with probabilities $p, q, n$, the expected cells of the stack follow

$$S_t[i] = p\, S_{t-1}[i-1] + q\, S_{t-1}[i+1] + n\, S_{t-1}[i], \qquad S_{t-1}[-1] = v_t$$

for any distribution over stacks before, because the three actions are linear (Joulin & Mikolov 2015). The depth is a
birth-death chain.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ...numerics.op import Variants


def superpose(
    cells: Float[Tensor, "*b D V"], action: Float[Tensor, "*b A"], value: Float[Tensor, "*b V"]
) -> Float[Tensor, "*b D V"]:
    """Expected cells, top first, after one more action; the deepest cell falls out of a push, empty cells are 0.

    Arguments:
        action: probabilities of push, pop, no-op, and possibly of popping two cells, three cells and so on.

    >>> superpose(torch.tensor([[4.0], [2.0]]), torch.tensor([0.5, 0.25, 0.25]), torch.tensor([8.0])).squeeze(-1)
    tensor([5.5000, 2.5000])
    """
    depth = cells.shape[-2]
    above = torch.cat([value.unsqueeze(-2), cells], -2)
    push, pop, hold, *pops = action[..., None, None].unbind(-3)
    result = push * above[..., :depth, :] + hold * cells
    for n, weight in enumerate([pop, *pops], start=1):
        rest = (weight * cells[..., n:, :], cells.new_zeros(*cells.shape[:-2], min(n, depth), cells.shape[-1]))
        result = result + torch.cat(rest, -2)
    return result


def _step(raw: Tensor, cells: Tensor, depth: int, n_read: int, empty: float) -> tuple[Tensor, Tensor]:
    """`superposed_step` in plain torch."""
    V = cells.shape[-1]
    value = raw[..., -V:].sigmoid() - empty
    below = cells.new_zeros(*cells.shape[:-2], max(depth - cells.shape[-2], n_read - cells.shape[-2], 0), V)
    new = superpose(torch.cat([cells, below], -2), raw[..., :-V].softmax(-1), value)
    new = pad(new[..., :depth, :], (0, 0, 0, new.shape[-2] - depth))
    return new[..., :depth, :], (new[..., :n_read, :] + empty).flatten(-2)


step: Variants = Variants(_step)
"""`superposed_step`; not an operator, whose bookkeeping would take longer than the step of a small network."""


def superposed_step(
    raw: Float[Tensor, "M R"], cells: Float[Tensor, "M n V"], depth: int, n_read: int, empty: float = 0.0
) -> tuple[Float[Tensor, "M depth V"], Float[Tensor, "M r"]]:
    """What a stack network does in one step: actions, value, update and read.

    Arguments:
        raw: logits of the A = R - V actions, then V numbers whose sigmoid is the pushed value.
        cells: expected cells before, less `empty`; there may be fewer than `depth`.
        n_read: cells to read.
        empty: the reading of an empty cell.

    Returns:
        The cells after, less `empty`, and the first n_read of them as they read, flattened.

    >>> cells, reading = superposed_step(torch.tensor([[9.0, 0.0, 0.0, 9.0]]), torch.zeros(1, 0, 1), depth=1, n_read=1)
    >>> reading.round(decimals=2)  # pushed, with a value near 1
    tensor([[1.]])
    """
    return step(raw, cells, depth, n_read, empty)


def depths(action: Tensor, n_initial: int, n_depths: int, on_empty: str) -> Iterator[Tensor]:
    """The birth-death chain of the depth after each step; mass that grows past `n_depths` - 1 is lost.

    Arguments:
        action: [*b, T, A], probabilities as in `superpose`.
        on_empty: "noop", a pop of more than there is does nothing; else its mass is lost.

    Yields:
        P(depth) [*b, n_depths] after each step.

    >>> action = torch.tensor([[0.5, 0.5, 0.0]]).expand(2, 3)
    >>> [depth.tolist() for depth in depths(action, 0, 3, "noop")]
    [[0.5, 0.5, 0.0], [0.5, 0.25, 0.25]]
    """
    depth = action.new_zeros(*action.shape[:-2], n_depths)
    depth[..., n_initial] = 1.0
    for step in action.unbind(-2):
        moved = superpose(depth[..., None], step, step.new_zeros(*step.shape[:-1], 1))[..., 0]
        if on_empty == "noop":
            pops = torch.stack([step[..., 1], *step[..., 3:].unbind(-1)], -1)
            short = depth[..., : pops.shape[-1]].cumsum(-1)  # P(depth < n) for n = 1, 2, ...
            stuck = (pops[..., : short.shape[-1]] * short).sum(-1, keepdim=True)
            moved = torch.cat([moved[..., :1] + stuck, moved[..., 1:]], -1)
        depth = moved
        yield depth
