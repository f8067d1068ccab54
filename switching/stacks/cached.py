"""Tables that are computed once."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")


class cached_table(Generic[Value]):
    """A property that is computed at most twice: once with gradients recorded, and once without.

    So a table that a draw or a figure computes under `torch.no_grad` is not used where gradients are needed.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, owner: Any, _kind: type) -> Value:
        if owner is None:
            return self  # pyright: ignore[reportReturnType] - the class itself was asked, as `help` does
        kept = vars(owner)
        recorded = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in kept.values())
        key = f"{self.compute.__name__} (recorded: {recorded})"
        if key not in kept:
            kept[key] = self.compute(owner)
        return kept[key]
