"""Memory for results."""

import numpy as np
import torch
from torch import Tensor


def empty_like(table: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A contiguous tensor to be filled, on the CPU.

    numpy asks the system for large pages, which torch does not: of a large result, the first touch of every page would
    otherwise cost more than computing it.
    """
    kind = torch.empty((), dtype=dtype or table.dtype).numpy().dtype
    return torch.from_numpy(np.empty(table.shape, kind))
