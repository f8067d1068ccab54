r"""Polya-Gamma numbers in plain torch, exact, by Devroye's method of alternating series, all of them at once.

Of $PG(1, c) = J^*(1, |c|/2) / 4$ (Polson, Scott & Windle 2013, *Bayesian inference for logistic models using
Polya-Gamma latent variables*, section 4). A proposal is a truncated inverse Gaussian number left of 0.64, and an
exponential one right of it; partial sums of the density, which bound it from both sides in turn, accept or reject it.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

CUT = 0.64
FAR = 30.0  # from here on no proposal is to the right of the cut, to rounding


def polya_gamma(c: Tensor, seeds: Tensor) -> Tensor:
    """PG(1, c) of each of [N, M] numbers."""
    generator = torch.Generator(c.device).manual_seed(int(seeds[0]) if len(seeds) else 0)
    uniform = lambda like: torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)

    def propose(z: Tensor) -> tuple[Tensor, Tensor]:
        rate = math.pi**2 / 8 + z.square() / 2
        proposal = CUT - uniform(z).log() / rate
        is_left = uniform(z) >= _right(z, rate)
        proposal[is_left] = _repeat(lambda some: _left(some, uniform), z[is_left])
        return proposal, _accepted(proposal, uniform(z))

    return _repeat(propose, c.flatten().abs() / 2).view_as(c) / 4


def _repeat(propose: Callable[[Tensor], tuple[Tensor, Tensor]], z: Tensor) -> Tensor:
    """Numbers that were accepted, one for each z."""
    drawn, todo = torch.empty_like(z), torch.arange(len(z), device=z.device)
    while len(todo):
        proposal, accepted = propose(z[todo])
        drawn[todo[accepted]] = proposal[accepted]
        todo = todo[~accepted]
    return drawn


def _right(z: Tensor, rate: Tensor) -> Tensor:
    """The probability of a proposal right of the cut."""
    near, root = z.clamp_max(FAR), math.sqrt(0.5 / CUT)
    below = torch.erfc(-(CUT * near - 1) * root) + (2 * near).exp() * torch.erfc((CUT * near + 1) * root)
    tail = math.pi / 2 / rate * (-rate * CUT).exp()
    return torch.where(z < FAR, tail / (tail + (-near).exp() * below), 0.0)


def _left(z: Tensor, uniform: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Inverse Gaussian numbers of mean 1 / z and shape 1, and which of them are less than the cut."""
    a, b = -uniform(z).log(), -uniform(z).log()
    small = CUT / (1 + CUT * a).square()
    fits = (a.square() <= 2 * b / CUT) & (uniform(z) <= (-z.square() * small / 2).exp())
    mean = 1 / z.clamp_min(1e-300)
    y = mean * (-2 * uniform(z).log()) * (2 * math.pi * uniform(z)).cos().square()
    root = mean / (1 + y / 2 + (y + y.square() / 4).sqrt())
    other = torch.where(uniform(z) > mean / (mean + root), mean.square() / root, root)
    flat = z < 1 / CUT
    return torch.where(flat, small, other), torch.where(flat, fits, other < CUT)


def _accepted(x: Tensor, uniform: Tensor) -> Tensor:
    """Whether a uniform share of the first term of the density at x is below the whole density."""
    total = _term(0, x)
    bound, accepted, decided, n = uniform * total, torch.zeros_like(x, dtype=torch.bool), torch.isnan(x), 0
    while not bool(decided.all()):
        n += 1
        total = total + _term(n, x) * (-1) ** n
        settled = bound <= total if n % 2 else bound > total
        accepted |= settled & ~decided & bool(n % 2)
        decided |= settled
    return accepted


def _term(n: int, x: Tensor) -> Tensor:
    """The n-th term of the density of J*(1, 0)."""
    k = n + 0.5
    right = math.pi * k * (-k * k * math.pi**2 / 2 * x).exp()
    left_part = math.pi * k * (1.5 * (math.log(2 / math.pi) - x.log()) - 2 * k * k / x).exp()
    return torch.where(x > CUT, right, left_part)
