r"""Filters and smoothers of switching linear models that keep few normal densities, in plain torch.

The exact belief after t steps is a mixture of $K^t$ normal densities, one for each path of regimes. The generalised
pseudo-Bayesian filter of order n keeps those of the last n - 1 regimes: each step makes $K^n$ of them, exactly, from
which those that share the last n - 1 regimes are replaced by one with the same weight, mean and covariance:

$$w = \sum_i w_i, \quad m = \sum_i \tfrac{w_i}w m_i, \quad P = \sum_i \tfrac{w_i}w (P_i + (m_i - m)(m_i - m)^\top)$$

With n = 1 a single density is kept for all regimes, beside their probabilities (Bar-Shalom & Li 1993, *Estimation and
tracking*, 11.6; Shumway & Stoffer 1991, *Dynamic linear models with switching*); n = 2 is the filter of Kim 1994,
*Dynamic linear models with Markov-switching*. Nothing is replaced before step n: with n > T all is exact.

Histories of n regimes are numbered with the oldest as the first digit to the base K. At the start they are filled up
with regime 0, and those that cannot be have no weight.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ...numerics.cholesky import cholesky_solve
from ...numerics.logs import log_sum_exp
from ..linear_gaussian.plain import LOG_2PI
from .tables import Chosen, Tables, choose


class Belief(NamedTuple):
    """Of N sequences: C = K^max(n-1, 1) histories, of which each has its normal density, or all have one (n = 1)."""

    log_weight: Tensor  # [N, C]
    mean: Tensor  # [N, C or 1, L]
    covariance: Tensor  # [N, C or 1, L, L]


class Filtered(NamedTuple):
    """By step and at the end; 0 beyond the end of a sequence."""

    log_increment: Tensor  # [N, T]
    state: Tensor  # [N, T, K], P(z_t | x_1..t)
    lagged: Tensor  # [N, T, K], P(z_t | x_1..t+n-1), of the last n - 1 steps given all
    mean: Tensor  # [N, T, L]
    covariance: Tensor  # [N, T, L, L]
    belief: Belief  # after the last step of each sequence
    failed: Tensor  # [N], the first step whose observation has no density, or -1


class Smoothed(NamedTuple):
    log_normalizer: Tensor  # [N]
    state: Tensor  # [N, T, K]
    pairs: Tensor  # [N, T-1, K, K]
    mean: Tensor  # [N, T, L]
    covariance: Tensor  # [N, T, L, L]
    failed: Tensor  # [N]


def merge(log_weight: Tensor, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One normal density for [*b, M] of them; without weight 0."""
    total = log_sum_exp(log_weight, -1)
    share = (log_weight - torch.where(total.isneginf(), 0.0, total).unsqueeze(-1)).exp()
    centre = torch.einsum("...m,...ml->...l", share, mean)
    gap = mean - centre.unsqueeze(-2)
    spread = torch.einsum("...m,...mij->...ij", share, covariance)
    return total, centre, spread + torch.einsum("...m,...mi,...mj->...ij", share, gap, gap)


def start(tables: Tables, n_sequences: int, order: int) -> Chosen:
    """Before the first observation, as what is chosen by histories [N, C]: regime 0 before, of no other is anything."""
    k, n = tables.n_regimes, tables.n_latent
    histories = k ** (order - 1)
    log_prob = torch.full((histories, k), -torch.inf, dtype=torch.float64, device=tables.emission.device)
    log_prob[0] = tables.log_initial
    shape = n_sequences, histories, k
    return Chosen(
        log_prob.expand(shape),
        tables.initial_mean.expand(*shape, n),
        tables.initial_covariance.expand(*shape, n, n),
    )


def move(tables: Tables, belief: Belief, order: int) -> Chosen:
    """What the next regime is, and the latents that it meets, by histories [N, K^(n-1)]."""
    n_histories = belief.log_weight.shape[-1]
    last = torch.arange(n_histories, device=belief.mean.device) % tables.n_regimes
    mean = belief.mean.expand(-1, n_histories, -1)
    covariance = belief.covariance.expand(-1, n_histories, -1, -1)
    chosen = choose(tables, last, mean, covariance)
    log_prob = belief.log_weight.unsqueeze(-1) + chosen.log_prob
    if order > 1:
        return chosen._replace(log_prob=log_prob)
    merged = merge(log_prob.mT, chosen.mean.transpose(1, 2), chosen.covariance.transpose(1, 2))
    return Chosen(*(table.unsqueeze(1) for table in merged))


def predict(tables: Tables, chosen: Chosen) -> Chosen:
    """The latents after their move under each regime [*b, K]."""
    a = tables.transition
    mean = (a @ chosen.mean.unsqueeze(-1)).squeeze(-1) + tables.transition_offset
    return Chosen(chosen.log_prob, mean, a @ chosen.covariance @ a.mT + tables.state_noise)


def update(tables: Tables, before: Chosen, x: Tensor) -> tuple[Chosen, Tensor]:
    """Weights, means and covariances with one observation [N, F], and whether [N] all had a density."""
    seen = ~x.isnan()
    row = seen[:, None, None, :, None]
    emission = torch.where(row, tables.emission, 0.0)
    noise = torch.where(row & row.mT, tables.observation_noise, torch.diag_embed((~seen).to(x))[:, None, None])
    gap = torch.where(seen[:, None, None], x[:, None, None] - tables.emission_offset, 0.0).unsqueeze(-1)
    gap = gap - emission @ before.mean.unsqueeze(-1)
    shown = emission @ before.covariance
    chol, info = torch.linalg.cholesky_ex(shown @ emission.mT + noise)
    failed = ((info != 0) & ~before.log_prob.isneginf()).flatten(1).any(-1)
    chol = torch.where((info != 0)[..., None, None], torch.eye(x.shape[-1], dtype=x.dtype, device=x.device), chol)
    white = torch.linalg.solve_triangular(chol, gap, upper=False)
    gain = cholesky_solve(shown, chol).mT
    log_det = chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    log_density = -white.square().sum((-2, -1)) / 2 - log_det - LOG_2PI / 2 * seen.to(x).sum(-1)[:, None, None]
    rest = torch.eye(gain.shape[-2], dtype=x.dtype, device=x.device) - gain @ emission
    covariance = rest @ before.covariance @ rest.mT + gain @ noise @ gain.mT
    mean = before.mean + (gain @ gap).squeeze(-1)
    return Chosen(before.log_prob + log_density, mean, (covariance + covariance.mT) / 2), failed


def keep(after: Chosen, order: int) -> Belief:
    """The belief from normalised histories [N, K^(n-1), K]."""
    log_weight, mean, covariance = (table.flatten(1, 2) for table in after)
    if order == 1:
        _, *moments = merge(log_weight, mean, covariance)
        return Belief(log_weight, *(table.unsqueeze(1) for table in moments))
    k = after.log_prob.shape[-1]
    split = (table.unflatten(1, (k, -1)).transpose(1, 2) for table in (log_weight, mean, covariance))
    return Belief(*merge(*split))


class Step(NamedTuple):
    """What a step makes of the belief before it."""

    chosen: Chosen  # [N, K^(n-1), K], before the latents move; at the start those that the model begins with
    predicted: Chosen  # after that
    after: Chosen  # given x_t, normalised
    log_increment: Tensor  # [N]
    belief: Belief  # that is kept
    failed: Tensor  # [N], whether x_t has no density


def steps(tables: Tables, x: Tensor, lengths: Tensor, order: int, belief: Belief | None) -> Iterator[Step]:
    """Of x [N, T, F], NaN missing; from the model's start, or from a belief about the step before."""
    for t in range(x.shape[1]):
        active = lengths > t
        if belief is None:
            chosen = predicted = start(tables, len(x), order)
        else:
            chosen = move(tables, belief, order)
            predicted = predict(tables, chosen)
        after, bad = update(tables, predicted, torch.where(active.unsqueeze(-1), x[:, t], torch.nan))
        total = log_sum_exp(after.log_prob, (1, 2))
        after = after._replace(log_prob=after.log_prob - total[:, None, None])
        found = keep(after, order)
        belief = found if belief is None else _where(active, found, belief)
        yield Step(chosen, predicted, after, total, belief, active & (bad | ~total.isfinite()))


def filter(tables: Tables, x: Tensor, lengths: Tensor, order: int, belief: Belief | None) -> Filtered:
    """All steps; see `steps`."""
    n_sequences, n_steps, _ = x.shape
    k, failed = tables.n_regimes, torch.full_like(lengths, -1)
    state, mean, covariance, increment = [], [], [], []
    lagged = x.new_zeros(n_sequences, n_steps, k)
    for t, step in enumerate(steps(tables, x, lengths, order, belief)):
        active, belief = lengths > t, step.belief
        failed = torch.where((failed < 0) & step.failed, t, failed)
        _, centre, spread = merge(*(table.flatten(1, 2) for table in step.after))
        share = step.after.log_prob.exp()
        increment.append(torch.where(active, step.log_increment, 0.0))
        state.append(torch.where(active[:, None], share.sum(1), 0.0))
        mean.append(torch.where(active[:, None], centre, 0.0))
        covariance.append(torch.where(active[:, None, None], spread, 0.0))
        digits = share.reshape(n_sequences, *[k] * order)
        for age in range(min(order, t + 1)):  # the digit of step t - age
            told = active if age == order - 1 else lengths == t + 1
            own = digits.sum([a for a in range(1, order + 1) if a != order - age]) if order > 1 else digits
            lagged[:, t - age] = torch.where(told[:, None], own, lagged[:, t - age])
    assert belief is not None
    increments, states, means, covariances = (torch.stack(table, 1) for table in (increment, state, mean, covariance))
    return Filtered(increments, states, lagged, means, covariances, belief, failed)


def _where(active: Tensor, new: Belief, old: Belief) -> Belief:
    pairs = zip(new, old, strict=True)
    return Belief(*(torch.where(active.view(-1, *[1] * (a.dim() - 1)), a, b) for a, b in pairs))


def smooth(tables: Tables, x: Tensor, lengths: Tensor) -> Smoothed:
    r"""Kim's smoother on the filter of order 2, back from the last step.

    $$P(z_t, z_{t+1} \mid x) \approx P(z_{t+1} \mid x) \frac{P(z_t, z_{t+1} \mid x_{1:t})}{P(z_{t+1} \mid x_{1:t})}$$

    and given both regimes the latents by a step of Rauch, Tung & Striebel from what is known of $s_{t+1}$ given
    $z_{t+1}$; it neglects that $z_t$ tells of $s_{t+1}$ too (Kim & Nelson 1999, *State-space models with regime
    switching*, 5.3). Such a step undoes the move: where that contracts and adds no noise, what is neglected grows.
    """
    run = list(steps(tables, x, lengths, 2, None))
    n_sequences, n_steps, _ = x.shape
    k, failed = tables.n_regimes, torch.stack([step.failed for step in run], 1)
    total = torch.stack([step.log_increment for step in run], 1)
    now, found, pairs = run[-1].belief, [], []
    for t in reversed(range(n_steps)):
        if t + 1 < n_steps:
            active, here = lengths > t + 1, run[t].belief
            joint, earlier = _back(tables, here, run[t + 1], now)
            pairs.append(torch.where(active[:, None, None], joint.exp(), 0.0))
            now = _where(active, earlier, here)
        active = lengths > t
        _, centre, spread = merge(*now)
        rows = zip((now.log_weight.exp(), centre, spread), (1, 1, 2), strict=True)
        found.append([torch.where(active.view(-1, *[1] * n), row, 0.0) for row, n in rows])
    state, mean, covariance = (torch.stack(table, 1) for table in zip(*reversed(found), strict=True))
    transition = torch.stack(pairs[::-1], 1) if pairs else x.new_zeros(n_sequences, 0, k, k)
    evidence = torch.where(torch.arange(n_steps, device=lengths.device) < lengths[:, None], total, 0.0).sum(-1)
    first = torch.where(failed.any(1), failed.int().argmax(1), -1)
    return Smoothed(evidence, state, transition, mean, covariance, first)


def _back(tables: Tables, here: Belief, later: Step, smoothed: Belief) -> tuple[Tensor, Belief]:
    """log P(z_t, z_t+1 | x) [N, K, K], and the belief about step t, from that about the next."""
    chosen, predicted = later.chosen, later.predicted
    joint = chosen.log_prob - log_sum_exp(chosen.log_prob, 1).unsqueeze(1) + smoothed.log_weight.unsqueeze(1)
    joint = torch.where(chosen.log_prob.isneginf(), -torch.inf, joint)
    inverse = torch.linalg.pinv(predicted.covariance, hermitian=True)
    gain = chosen.covariance @ tables.transition.mT @ inverse
    mean = chosen.mean + (gain @ (smoothed.mean.unsqueeze(1) - predicted.mean).unsqueeze(-1)).squeeze(-1)
    covariance = chosen.covariance + gain @ (smoothed.covariance.unsqueeze(1) - predicted.covariance) @ gain.mT
    return joint, Belief(*merge(joint, mean, covariance))
