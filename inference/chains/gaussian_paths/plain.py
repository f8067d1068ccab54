r"""Gaussian paths in plain torch: block elimination forward in time, all sequences of a step at once.

With the precision's blocks $J_t = -(B_t + B_t^\top)$ and $-C_t$ below it,

$$\Lambda_{t+1} = J_{t+1} - C_t \Lambda_t^{-1} C_t^\top, \quad v_{t+1} = a_{t+1} + C_t \Lambda_t^{-1} v_t, \quad
A = \sum_t \tfrac12 (L \log 2\pi - \log|\Lambda_t| + v_t^\top \Lambda_t^{-1} v_t)$$

from $\Lambda_1 = J_1, v_1 = a_1$; given the next state, $s_t \sim N(\Lambda_t^{-1} (v_t + C_t^\top s_{t+1}),
\Lambda_t^{-1})$, which is what moments and draws come from, backward in time.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...numerics.cholesky import cholesky_inverse, cholesky_solve

LOG_2PI = math.log(2 * math.pi)


class Forward(NamedTuple):
    """Of each step: the factor of its precision, its mean and its gain, were the rest of the path known."""

    log_normalizer: Tensor  # [N]
    chol: list[Tensor]  # [N, L, L]
    mean: list[Tensor]  # [N, L, 1]
    gain: list[Tensor]  # [N, L, L]
    failed: Tensor  # [N]


def _forward(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor) -> Forward:
    n_steps, n_states = linear.shape[1:]
    diagonal, unit = -(square + square.mT), torch.eye(n_states, dtype=linear.dtype, device=linear.device)
    failed, total = torch.full_like(lengths, -1), linear.new_zeros(lengths.shape)
    chols, means, gains = [], [], []
    precision, shift = diagonal[:, 0], linear[:, 0, :, None]
    for t in range(n_steps):
        inside = t < lengths
        chol, info = torch.linalg.cholesky_ex(torch.where(inside[:, None, None], precision, unit))
        wrong = (info > 0) & (failed < 0)
        failed, usable = torch.where(wrong, t, failed), failed < 0
        chol = torch.where((usable & ~wrong)[:, None, None], chol, unit)
        mean = cholesky_solve(torch.where(inside[:, None, None], shift, 0.0), chol)
        log_det = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        term = (n_states * LOG_2PI - log_det + (shift * mean).sum((-2, -1))) / 2
        total = total + torch.where(inside, term, 0.0)
        chols.append(chol)
        means.append(mean)
        if t + 1 < n_steps:
            goes = (t + 1 < lengths)[:, None, None]
            below = torch.where(goes, cross[:, t], 0.0)
            gains.append(cholesky_solve(below.mT, chol))
            precision = diagonal[:, t + 1] - below @ gains[-1]
            shift = linear[:, t + 1, :, None] + below @ mean
    return Forward(total, chols, means, gains, failed)


def moments(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    """See `op.moments`."""
    run, inside = _forward(linear, square, cross, lengths), torch.arange(linear.shape[1], device=lengths.device)
    inside = (inside < lengths[:, None])[..., None]
    mean, covariance = run.mean[-1], cholesky_inverse(run.chol[-1])
    first, second, crossed = [mean], [covariance + mean @ mean.mT], []
    for chol, own, gain in zip(run.chol[-2::-1], run.mean[-2::-1], run.gain[::-1], strict=True):
        later, between = mean, covariance @ gain.mT
        mean = own + gain @ mean
        covariance = cholesky_inverse(chol) + gain @ between
        first.append(mean)
        second.append(covariance + mean @ mean.mT)
        crossed.append(between + later @ mean.mT)
    firsts = torch.where(inside, torch.stack(first[::-1], 1).squeeze(-1), 0.0)
    seconds = torch.where(inside[..., None], torch.stack(second[::-1], 1), 0.0)
    pairs = torch.stack(crossed[::-1], 1) if crossed else torch.zeros_like(cross)
    return run.log_normalizer, firsts, seconds, torch.where(inside[:, 1:, None], pairs, 0.0), run.failed


def log_normalizer(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor) -> Tensor:
    """The first result of `moments` alone."""
    return _forward(linear, square, cross, lengths).log_normalizer


def sample(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """See `op.sample`."""
    run, n_steps = _forward(linear, square, cross, lengths), linear.shape[1]
    state, found = None, []
    for t in reversed(range(n_steps)):
        spread = torch.linalg.solve_triangular(run.chol[t].mT, noise[:, :, t, :, None], upper=True)
        state = run.mean[t] + spread + (0.0 if state is None else run.gain[t] @ state)
        state = torch.where((t < lengths)[:, None, None], state, 0.0)
        found.append(state.squeeze(-1))
    return torch.stack(found[::-1], 2), run.failed
