"""The gradient of log p(x) in all tables of a linear Gaussian chain, from smoothed means and errors.

It has products of means, minus terms from covariances (Koopman & Shephard 1992, *Exact score for time series models in
state space form*); `native/kalman_score.h` has the equations.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .tables import Tables


class Score(NamedTuple):
    """What is taken from the products of means for each parameter, [*shared, S, rows, columns]."""

    transition: Any
    state: Any
    emission: Any
    observation: Any
    initial: Any  # of one step


def gradients(
    tables: Tables, d_total: Tensor | None, mean: Tensor, later: Tensor, error: Tensor, taken: Score
) -> list[Tensor]:
    """Of all tables of numbers, in their order.

    Arguments:
        d_total: [*b], by which each sequence counts.
        mean: [*b, T, L], smoothed.
        later: [*b, T, L], the gradient in the predicted mean.
        error: [*b, T, F], the gradient in observation offsets.
        taken: for one sequence of each set of covariances.
    """
    weight = mean.new_zeros(mean.shape[:-2]) if d_total is None else d_total.to(mean.dtype)
    each = weight[..., None, None]
    by_set = weight.sum_to_size(tables.shared_shape)[..., None, None, None]
    state, sight = later * each, error * each

    def product(left: Tensor, right: Tensor, less: Tensor, table: Tensor) -> Tensor:
        constant = table.shape[-3] == 1
        outer = (left.mT @ right).unsqueeze(-3) if constant else left.unsqueeze(-1) * right.unsqueeze(-2)
        return outer.sum_to_size(table.shape) - (by_set * less).sum_to_size(table.shape)

    def square(left: Tensor, right: Tensor, less: Tensor, factor: Tensor) -> Tensor:
        return product(left, right, less, factor) @ factor.to(left.dtype)

    initial = tables.initial_factor.unsqueeze(-3)
    by_name = {
        "x": -sight,
        "transition": product(state[..., 1:, :], mean[..., :-1, :], taken.transition, tables.transition),
        "transition_offset": state[..., 1:, :],
        "state_factor": square(state[..., 1:, :], later[..., 1:, :], taken.state, tables.state_factor),
        "emission": product(sight, mean, taken.emission, tables.emission),
        "emission_offset": sight,
        "observation_factor": square(sight, error, taken.observation, tables.observation_factor),
        "initial_mean": state[..., 0, :],
        "initial_factor": square(state[..., :1, :], later[..., :1, :], taken.initial, initial).squeeze(-3),
        "directions": torch.zeros_like(tables.directions),
    }
    wanted = {name: getattr(tables, name) for name in by_name}
    return [table.sum_to_size(wanted[name].shape).to(wanted[name].dtype) for name, table in by_name.items()]
