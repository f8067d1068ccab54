"""Copies of small tables to a device: several at once, or cached."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def placed(tables: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The same tables, of one dtype, on a device, in one copy; tables on this device are unchanged."""
    if all(table.device == device for table in tables):
        return list(tables)
    flat = torch.cat([table.reshape(-1) for table in tables]).to(device)
    parts = flat.split([table.numel() for table in tables])
    return [part.reshape(table.shape) for part, table in zip(parts, tables, strict=True)]


@lru_cache(maxsize=256)
def constant(numbers: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A small constant table, from tuples, cached for each device; read-only."""
    with torch.inference_mode(False):
        return torch.tensor(numbers, dtype=dtype, device=device)
