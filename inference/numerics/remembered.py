"""What is known of a table that lies on a device, so that it is not looked at again at every iteration."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

Result = TypeVar("Result")


def remembered(function: Callable[[Tensor], Result]) -> Callable[[Tensor], Result]:
    """Keeps what is found of a tensor for as long as it, or what it is a view of, is there unchanged.

    Not of a tensor of the CPU, whose memory others may write to, and which is looked at without waiting.
    """
    known: Any = WeakTensorKeyDictionary()

    @wraps(function)
    def found(x: Tensor) -> Result:
        if x.device.type == "cpu" or x.is_inference():
            return function(x)
        of_whole = known.setdefault(x if x._base is None else x._base, {})
        key = x._version, x.shape, x.stride(), x.storage_offset(), x.dtype
        if key not in of_whole:
            of_whole[key] = function(x)
        return of_whole[key]

    return found
