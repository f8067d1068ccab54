"""An M-step by gradient ascent, for emissions without a conjugate prior."""

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor
from torch.distributions.constraints import Constraint

from ..definite import free_coordinates
from ..parameters import Parameters

MAX_STEPS = 8  # of L-BFGS in one M-step; the next M-step continues


def ascend(
    objective: Callable[[Parameters], Tensor], values: Parameters, supports: Mapping[str, Constraint]
) -> Parameters:
    """Increase an objective `[*r]` by L-BFGS in unconstrained coordinates, from all restarts `*r` at once.

    A restart whose objective would not increase keeps its values.
    """
    to_support = {name: free_coordinates(support) for name, support in supports.items()}
    free = {n: cast(Tensor, to_support[n].inv(value)).detach().clone().requires_grad_() for n, value in values.items()}
    optimiser = torch.optim.LBFGS(list(free.values()), max_iter=MAX_STEPS, line_search_fn="strong_wolfe")

    def moved() -> Parameters:
        return {name: cast(Tensor, to_support[name](value)) for name, value in free.items()}

    def closure() -> Tensor:
        optimiser.zero_grad()
        with torch.enable_grad():
            loss = -objective(moved()).sum()
            loss.backward()
        return loss

    optimiser.step(closure)
    with torch.no_grad():
        raised = {name: value.detach() for name, value in moved().items()}
        better = objective(raised) >= objective(values)  # False for NaN
    return {
        name: torch.where(better.reshape(*better.shape, *[1] * (values[name].ndim - better.ndim)), value, values[name])
        for name, value in raised.items()
    }
