"""Which state comes first: states have no order of their own, readers want one."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..emissions import Emission
from ..emissions.gated import PREFIX
from ..parameters import Parameters


def state_levels(emission: Emission, values: Parameters) -> Float[Tensor, "K"]:
    """One number a state to order it by: the sum over features of its means in units of their spread."""
    mean = emission.mean(values).redrawn
    spread = mean.std(0, correction=0)
    return (mean / torch.where(spread > 0, spread, 1.0)).sum(-1)


def reordered(emission: Emission, values: Parameters, order: Int[Tensor, "K"]) -> Parameters:
    """The same parameters with state `order[k]` as state k: another name for the same model."""

    def moved(name: str, value: Tensor) -> Tensor:
        if name == "transition_probs":
            return value[order][:, order]
        if name in ("state_probs", "initial_probs") or (name in emission.event_dims and not name.startswith(PREFIX)):
            return value[order]
        return value

    return {name: moved(name, value) for name, value in values.items()}
