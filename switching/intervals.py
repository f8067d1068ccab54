"""Intervals: central intervals of draws, and quantiles by bisection of a distribution function."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..inference.numerics.records import brief
from ..inference.numerics.scalars import check_probability

BISECTIONS = 80


class Interval(NamedTuple):
    """Lower and upper ends of central intervals: tensors, or tensors by parameter name.

    Attributes:
        lower, upper: the ends.
    """

    lower: Any
    upper: Any

    def __repr__(self) -> str:
        return brief(self)


def central_interval(draws: Float[Tensor, "n *d"], level: float) -> Interval:
    """The central interval of each number, from its n draws."""
    level = check_probability("level", level, proper=True)
    tail = round((1 - level) / 2 * (len(draws) - 1)) + 1
    return Interval(draws.kthvalue(tail, dim=0).values, draws.kthvalue(len(draws) + 1 - tail, dim=0).values)


def bisected(
    cdf: Callable[[Tensor], Tensor], p: float, low: Tensor, high: Tensor, integer_valued: bool | Tensor = False
) -> Float[Tensor, "*b"]:
    """The least values (or whole numbers) between these bounds whose distribution function is at least p."""
    integer_valued = torch.as_tensor(integer_valued, device=low.device)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        middle = torch.where(integer_valued, middle.floor(), middle)
        enough = cdf(middle) >= p
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high
