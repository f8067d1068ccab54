"""Parallel in time."""

import torch
from torch import Tensor


def prefix_rows(white: Tensor) -> Tensor:
    """The triangle [*b, T + 1, q, q + 1] of the rows [*b, T, F, q + 1] of all steps before each, and of all."""
    q = white.shape[-1] - 1
    rows = white.new_zeros(*white.shape[:-3], q, q + 1)
    kept = [rows]
    for t in range(white.shape[-3]):
        rows = torch.cat([rows, white[..., t, :, :]], -2)
        rotation, _ = torch.linalg.qr(rows[..., :q])
        rows = rotation.mT @ rows
        kept.append(rows)
    return torch.stack(kept, -3)
