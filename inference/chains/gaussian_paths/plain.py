r"""Gaussian paths in plain torch: block elimination as a scan over all steps, all sequences at once, in float64.

With the precision's blocks $J_t = -(B_t + B_t^\top)$ and $-C_t$ below it,

$$\Lambda_{t+1} = J_{t+1} - C_t \Lambda_t^{-1} C_t^\top, \quad v_{t+1} = a_{t+1} + C_t \Lambda_t^{-1} v_t, \quad
A = \sum_t \tfrac12 (L \log 2\pi - \log|\Lambda_t| + v_t^\top \Lambda_t^{-1} v_t)$$

from $\Lambda_1 = J_1, v_1 = a_1$. Given the next state, $s_t \sim N(\Lambda_t^{-1} (v_t + C_t^\top s_{t+1}),
\Lambda_t^{-1})$. Moments and draws follow from this, backward in time.

The steps after i up to j have a quadratic form of $s_i$ and $s_j$, with the steps between summed out. Two consecutive
forms combine by summing out the state where they meet. The form of all steps up to t is $\Lambda_t, v_t$. The backward
passes compose as affine maps with noise.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...numerics.cholesky import cholesky_inverse, cholesky_solve, solve_lower, solve_upper
from ...numerics.prefixes import Elements, prefixes

LOG_2PI = math.log(2 * math.pi)


class Forward(NamedTuple):
    """Of each step: the factor of its precision, its mean and its gain, were the rest of the path known."""

    log_normalizer: Tensor  # [N]
    chol: Tensor  # [N, T, L, L]
    mean: Tensor  # [N, T, L, 1]
    gain: Tensor  # [N, T, L, L], 0 at the last step
    failed: Tensor  # [N]


def _forward(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor) -> Forward:
    n_steps, n_states = linear.shape[1:]
    inside = torch.arange(n_steps, device=lengths.device) < lengths[:, None]
    unit = torch.eye(n_states, dtype=torch.float64, device=linear.device)
    diagonal = torch.where(inside[..., None, None], -(square + square.mT).double(), unit)
    shift = torch.where(inside[..., None], linear.double(), 0.0).unsqueeze(-1)
    below = torch.where(inside[:, 1:, None, None], cross.double(), 0.0)
    precision, shift = _eliminate(diagonal, shift, torch.nn.functional.pad(below, (0, 0, 0, 0, 1, 0)))
    chol, info = torch.linalg.cholesky_ex(precision)
    wrong = info != 0
    failed = torch.where(wrong.any(1), wrong.int().argmax(1).to(lengths), -1)
    chol = torch.where((wrong.cumsum(1) > 0)[..., None, None], unit, chol)
    solved = cholesky_solve(torch.cat([shift, torch.nn.functional.pad(below.mT, (0, 0, 0, 0, 0, 1))], -1), chol)
    mean, gain = solved[..., :1], solved[..., 1:]
    log_det = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    terms = (n_states * LOG_2PI - log_det + (shift * mean).sum((-2, -1))) / 2
    return Forward(torch.where(inside, terms, 0.0).sum(1), chol, mean, gain, failed)


def _eliminate(diagonal: Tensor, shift: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
    """Each step's precision and shift given the steps before it, [N, T, L, L] and [N, T, L, 1]."""
    n = diagonal.shape[-1]

    def join(earlier: Elements, later: Elements) -> Elements:
        first, tie, last, begins, ends = earlier
        first_later, tie_later, last_later, begins_later, ends_later = later
        chol, _ = torch.linalg.cholesky_ex(last + first_later)
        met = torch.cat([tie, tie_later.mT, ends + begins_later], -1)
        half = solve_lower(chol, met)
        before, after, white = half[..., :n], half[..., n : 2 * n], half[..., 2 * n :]
        return (
            first - before.mT @ before,
            after.mT @ before,
            last_later - after.mT @ after,
            begins + before.mT @ white,
            ends_later + after.mT @ white,
        )

    blank = torch.zeros_like(diagonal), torch.zeros_like(shift)
    elements = tuple(x.transpose(0, 1) for x in (blank[0], below, diagonal, blank[1], shift))
    _, _, precision, _, vector = prefixes(join, elements)
    return precision.transpose(0, 1), vector.transpose(0, 1)


def _backward(gain: Tensor, *others: Tensor) -> Elements:
    """The gains composed from each step to the end, and means [.., T, L, n], and covariances [.., T, L, L] if given."""

    def join(later: Elements, earlier: Elements) -> Elements:
        gain, mean, *noise = earlier
        composed = gain @ later[0], mean + gain @ later[1]
        return *composed, *(term + gain @ ahead @ gain.mT for term, ahead in zip(noise, later[2:], strict=True))

    elements = tuple(x.movedim(-3, 0).flip(0) for x in (gain, *others))
    return tuple(x.flip(0).movedim(0, -3) for x in prefixes(join, elements))


def moments(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    """See `op.moments`."""
    forward = _forward(linear, square, cross, lengths)
    _, mean, covariance = _backward(forward.gain, forward.mean, cholesky_inverse(forward.chol))
    second = covariance + mean @ mean.mT
    crossed = covariance[:, 1:] @ forward.gain[:, :-1].mT + mean[:, 1:] @ mean[:, :-1].mT
    inside = (torch.arange(linear.shape[1], device=lengths.device) < lengths[:, None])[..., None]
    tables = mean.squeeze(-1), second, crossed
    kept = inside, inside[..., None], inside[:, 1:, None]
    results = (torch.where(mask, table, 0.0).to(linear.dtype) for mask, table in zip(kept, tables, strict=True))
    return forward.log_normalizer.to(linear.dtype), *results, forward.failed


def log_normalizer(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor) -> Tensor:
    """The first result of `moments` alone."""
    return _forward(linear, square, cross, lengths).log_normalizer.to(linear.dtype)


def sample(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """See `op.sample`."""
    forward = _forward(linear, square, cross, lengths)
    numbers = noise.double().movedim(0, -1)  # draws as columns
    _, path = _backward(forward.gain, forward.mean + solve_upper(forward.chol, numbers))
    inside = torch.arange(linear.shape[1], device=lengths.device) < lengths[:, None]
    return torch.where(inside[..., None], path.movedim(-1, 0), 0.0).to(noise.dtype), forward.failed
