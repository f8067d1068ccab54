r"""Linear recurrences in plain torch, about $2 \sqrt T$ operations in sequence: any device, differentiable at will.

Time is cut into about $\sqrt T$ blocks. All blocks run side by side from a state of 0, and keep the product of their
factors. Then the blocks are joined one after the other, and every step adds the effect of its block's first state:

$$h_t = local_t + \Big(\prod_{u \le t} a_u\Big) \odot h_{\text{before the block}}$$
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...numerics.op import in_single_precision


@in_single_precision
def scan(first: Tensor, second: Tensor, h0: Tensor, lerp: bool) -> Tensor:
    """All states [N, T, D], see `op.scan`."""
    a, b = (1 - first, first * second) if lerp else (first, second)
    steps = b.shape[1]
    if steps == 0:
        return a * h0.unsqueeze(1) + b  # empty, yet a function of all three
    length = math.isqrt(steps - 1) + 1
    n_blocks = -(-steps // length)
    fill = (0, 0, 0, n_blocks * length - steps)
    blocks_a = pad(a, fill, value=1.0).unflatten(1, (n_blocks, length))
    blocks_b = pad(b, fill).unflatten(1, (n_blocks, length))

    factor, state = torch.ones_like(blocks_a[:, :, 0]), torch.zeros_like(blocks_b[:, :, 0])
    factors, states = [], []
    for a_t, b_t in zip(blocks_a.unbind(2), blocks_b.unbind(2), strict=True):
        factor, state = a_t * factor, a_t * state + b_t
        factors.append(factor)
        states.append(state)

    before = [h0]
    for block_factor, block_state in zip(factor.unbind(1), state.unbind(1), strict=True):
        before.append(block_factor * before[-1] + block_state)
    h = torch.stack(states, 2) + torch.stack(factors, 2) * torch.stack(before[:-1], 1).unsqueeze(2)
    return h.flatten(1, 2)[:, :steps]
