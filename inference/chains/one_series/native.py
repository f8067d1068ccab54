"""The evidence of one series on the CPU: parameters side by side, series with the same missing steps at once."""

import numpy as np
import torch
from torch import Tensor

from ...native.library import empty, function, integers
from ...numerics.native_calls import check_given, parts, refuse_lack, run
from .op import evidence

_BLOCK = 8  # parameters that stay together


@evidence.kernel("cpu", takes=lambda x, *tables: x.dtype == torch.float64 and tables[0].shape[0] > 0 and len(x) > 0)
def of_series(
    x: Tensor,
    transition: Tensor,
    state_noise: Tensor,
    emission: Tensor,
    observation_noise: Tensor,
    initial: Tensor,
    diffuse: Tensor,
) -> Tensor:
    inputs = x, transition, state_noise, emission, observation_noise, initial, diffuse
    (n_series, n_steps), (n, size), rows = x.shape, transition.shape[:2], emission.shape[1]
    if len(emission) not in (1, n_series) or rows not in (1, n_steps):
        expected = f"[1 or {n_series}, 1 or {n_steps}, {size}]"
        raise ValueError(f"emission: got shape {list(emission.shape)}, expected {expected}.")
    square, each = (n, size, size), len(emission)
    shapes = x.shape, square, (n, size), (each, rows, size), (n,), square, (size,)
    names = "x", "transition", "state_noise", "emission", "observation_noise", "initial", "diffuse"
    for name, table, shape in zip(names, inputs, shapes, strict=True):
        check_given(name, table, shape, torch.bool if name == "diffuse" else x.dtype)
    tables = [table.detach().contiguous() for table in inputs]
    total, lacking = empty(n, n_series, dtype=torch.float64), integers(0)
    for members in _groups(x, len(emission) > 1):
        rows = tables[3][int(members[0]) if len(emission) > 1 else 0]
        addresses = [table.data_ptr() for table in (*tables[:3], rows, *tables[4:])]
        block = integers(n_steps, size, len(rows), n, n_series, *addresses)
        seconds = 1e-9 * n * n_steps * size * (size + len(members))
        tasks = [integers(*span) for span in parts(-(-n // _BLOCK), seconds)]
        run(function("one_series_evidence"), tasks, block, members, len(members), total, lacking)
    refuse_lack(lacking[0])
    return total


def _groups(x: Tensor, alone: bool) -> list[Tensor]:
    """The numbers of the series with the same missing steps; of each one if its inputs are its own."""
    if alone or len(x) == 1:
        return list(torch.arange(len(x), device="cpu").unsqueeze(-1))
    seen = ~np.isnan(x.numpy())
    if (seen == seen[0]).all():
        return [torch.arange(len(x), device="cpu")]
    _, kind = np.unique(np.packbits(seen, axis=1), axis=0, return_inverse=True)
    return [torch.from_numpy(np.flatnonzero(kind.ravel() == k)) for k in range(kind.max() + 1)]
