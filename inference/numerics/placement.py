"""Small tables that go to a device: together, or once."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def placed(tables: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The same tables, of one dtype, on a device, in one copy; those that lie there already as they are."""
    if all(table.device == device for table in tables):
        return list(tables)
    flat = torch.cat([table.reshape(-1) for table in tables]).to(device)
    parts = flat.split([table.numel() for table in tables])
    return [part.reshape(table.shape) for part, table in zip(parts, tables, strict=True)]


@lru_cache(maxsize=256)
def constant(numbers: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A small table of known numbers, in tuples, which is there once on each device; not to be written to."""
    with torch.inference_mode(False):
        return torch.tensor(numbers, dtype=dtype, device=device)
