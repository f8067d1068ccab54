"""Large working memory, reused between calls.

The system maps the pages of new memory one by one when they are first used. This can take longer than the computation.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_MOST = 1 << 25  # bytes that are kept
_spare: list[np.ndarray] = []  # at most one; calls at once take and leave it in single operations of the interpreter


@contextmanager
def scratch(n: int, dtype: np.dtype) -> Iterator[np.ndarray]:
    """n numbers that may have any value, beginning where a vector may; afterwards others may have them.

    Not after an error or an interrupt, when threads may still be at work in them.
    """
    size = n * dtype.itemsize
    try:
        memory = _spare.pop()
    except IndexError:
        memory = np.empty(0, np.uint8)
    if memory.size < size:
        memory = torch.empty(size, dtype=torch.uint8, device="cpu").numpy()  # which begins where a vector may
    yield memory[:size].view(dtype)
    if size <= _MOST and not _spare:
        _spare.append(memory)
