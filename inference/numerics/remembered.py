"""Cached facts about tables on a device, so that they are not read again in every iteration."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

Result = TypeVar("Result")


def remembered(function: Callable[[Tensor], Result]) -> Callable[[Tensor], Result]:
    """Cache the result for a tensor as long as it, or the tensor that it is a view of, is unchanged.

    CPU tensors are not cached: other code may write to their memory, and reading them does not wait.
    """
    known: Any = WeakTensorKeyDictionary()

    @wraps(function)
    def cached(x: Tensor) -> Result:
        if x.device.type == "cpu" or x.is_inference():
            return function(x)
        of_whole = known.setdefault(x if x._base is None else x._base, {})
        key = x._version, x.shape, x.stride(), x.storage_offset(), x.dtype
        if key not in of_whole:
            of_whole[key] = function(x)
        return of_whole[key]

    return cached
