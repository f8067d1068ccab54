"""An M-step by gradient ascent, for emissions without a conjugate prior."""

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor
from torch.distributions.constraints import Constraint

from ..ascent import Ascent, Differentiable
from ..definite import free_coordinates
from ..parameters import Parameters

MAX_STEPS = 8  # of BFGS in one M-step; the next M-step continues


def ascend(
    objective: Callable[[Parameters], Tensor], values: Parameters, supports: Mapping[str, Constraint]
) -> Parameters:
    """Increase an objective `[*r]` by BFGS in unconstrained coordinates, from all restarts `*r` at once.

    A restart whose objective would not increase keeps its values.
    """
    to_support = {name: free_coordinates(support) for name, support in supports.items()}
    free = {name: cast(Tensor, to_support[name].inv(value)).detach() for name, value in values.items()}
    shape = objective(values).shape
    sizes = [value[(0,) * len(shape)].numel() for value in free.values()]

    def moved(flat: Tensor) -> Parameters:
        parts = zip(free.items(), flat.split(sizes, -1), strict=True)
        return {name: cast(Tensor, to_support[name](part.reshape(value.shape))) for (name, value), part in parts}

    start = torch.cat([value.reshape(shape.numel(), -1) for value in free.values()], -1)
    climb = Ascent(Differentiable(lambda flat: objective(moved(flat)).flatten()), start)
    climb.run(MAX_STEPS)
    with torch.no_grad():
        raised = moved(climb.point)
        better = objective(raised) >= objective(values)  # False for NaN
    return {
        name: torch.where(better.reshape(*better.shape, *[1] * (values[name].ndim - better.ndim)), value, values[name])
        for name, value in raised.items()
    }
