r"""Which state of one draw is which state of another: states have no names, only steps that they explain.

The states of a draw are matched one to one to those of a reference so that the expected number of steps on which both
agree, $\sum_t P(s_t = i \mid x, \theta_{ref})\, P(s_t = j \mid x, \theta)$, is greatest (Kuhn 1955; Stephens 2000).
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ..data.series import Sequences
from ..dynamics import Drive
from ..emissions import Emission
from ..emissions.gated import PREFIX
from ..parameters import Parameters
from .posterior import chain_of, in_turns

if TYPE_CHECKING:
    from ..model import SwitchingSSM


def match_states(
    model: "SwitchingSSM", draws: Parameters, reference: Parameters, series: Sequences, drive: Drive
) -> Int[Tensor, "n K"]:
    """For each of the draws `[n, ...]`, which of its states is state 0, 1, ... of the reference."""
    expected = chain_of(model, reference, series, drive).smooth().state.reshape(-1, model.n_states)
    orders = []
    for some in in_turns(draws, series, model.n_states):
        state = chain_of(model, some, series, drive).smooth().state
        shared = expected.mT @ state.reshape(state.shape[0], -1, model.n_states)
        orders += [linear_sum_assignment(table, maximize=True)[1] for table in shared.cpu().numpy()]
    return torch.stack([torch.from_numpy(order) for order in orders]).to(series.values.device)


def reorder_states(emission: Emission, draws: Parameters, order: Int[Tensor, "n K"]) -> Parameters:
    """The same draws with state `order[i, k]` of draw i as state k."""

    def along(value: Float[Tensor, "n K ..."], axis: int) -> Tensor:
        shape = [len(order), *(1,) * (value.ndim - 1)]
        shape[axis] = order.shape[1]
        return value.take_along_dim(order.reshape(shape), axis)

    moved = {}
    for name, value in draws.items():
        if name == "transition_probs":
            moved[name] = along(along(value, 1), 2)
        elif name in ("state_probs", "initial_probs") or (name in emission.event_dims and not name.startswith(PREFIX)):
            moved[name] = along(value, 1)
        else:
            moved[name] = value
    return moved
