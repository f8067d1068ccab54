"""The gradient of log p(x) in all tables of a linear Gaussian chain, from smoothed means and errors.

It has products of means, minus terms from covariances (Koopman & Shephard 1992, *Exact score for time series models in
state space form*); `native/kalman_score.h` has the equations.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import parallel
from .factors import beside, covariance_of
from .plain import evidence_and_start, of_sets, scan_of
from .steps import seen_of, sights, update
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


@torch.no_grad()
def score(tables: Tables, d_total: Tensor) -> list[Tensor] | None:
    r"""The gradient of log p(x) in all tables of numbers, from smoothed means; None if there is no scan for them.

    `native/kalman_score.h` has the equations. The later steps enter by their information
    $\Lambda = Z Z^\top$ on the state there, of which $A^\top N A = Z (I + Z^\top P_f Z)^{-1} Z^\top$ and
    $A^\top r = \eta - \Lambda E[s \mid x]$.
    """
    scan = scan_of(tables)
    if scan is None:
        return None
    q, sight = tables.n_diffuse, sights(tables)
    seen = update(scan.predicted, sight)
    vector, information = parallel.future(scan.steps)
    belief = parallel.smooth(seen.belief, vector, information)
    _, start, _ = evidence_and_start(tables, scan.predicted, seen)
    shown = sight.emission @ scan.predicted.factor
    root = torch.linalg.qr(beside(shown, sight.noise).mT)[1].mT
    inverse = torch.linalg.solve_triangular(
        root, torch.eye(root.shape[-1], dtype=root.dtype, device=root.device), upper=False
    )
    half = inverse @ shown
    gain = inverse.mT @ (half @ scan.predicted.factor.mT)  # K', [*b, T, F, L]
    rest = torch.eye(gain.shape[-1], dtype=root.dtype, device=root.device) - gain.mT @ sight.emission
    kept = parallel.condense(seen.belief.factor, information)
    back = kept @ kept.mT
    ahead = vector - information @ (information.mT @ belief.means)
    error = inverse.mT @ seen.white - gain @ ahead
    later = sight.emission.mT @ error + ahead
    before = rest.mT @ back @ rest + sight.emission.mT @ (inverse.mT @ inverse) @ sight.emission
    weights, spread = start.weights[..., None, :, None], start.factor.unsqueeze(-3)
    columns = later[..., :q] @ spread, error[..., :q] @ spread, belief.means[..., :q] @ spread
    future, of_error, of_state = columns
    transition, after = tables.transition, covariance_of(seen.belief.factor)
    moved = before[..., 1:, :, :] @ transition @ after[..., :-1, :, :]
    inside = seen_of(tables).to(root)
    of_noise = (inverse.mT @ inverse + gain @ back @ gain.mT) * inside.unsqueeze(-1) * inside.unsqueeze(-2)
    taken = Score(
        transition=moved - future[..., 1:, :, :] @ of_state[..., :-1, :, :].mT,
        state=(before - future @ future.mT)[..., 1:, :, :],
        emission=gain - gain @ back @ after - of_error @ of_state.mT,
        observation=of_noise - of_error @ of_error.mT,
        initial=(before - future @ future.mT)[..., :1, :, :],
    )
    shape = tables.batch_shape
    means = ((table @ weights).squeeze(-1) for table in (belief.means, later, error))
    mean, later, error = (table.expand(*shape, *table.shape[-2:]) for table in means)
    return gradients(tables, d_total, mean, later, error, Score(*(of_sets(tables, table) for table in taken)))
