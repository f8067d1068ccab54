r"""Logarithms of gamma functions without cancellation, by Stirling's formula.

$$\log \Gamma(a) = (a - \tfrac12) \log a - a + \tfrac12 \log 2\pi + \delta(a), \qquad
\delta(a) = \frac{1}{12 a} - \frac{1}{360 a^3} + \frac{1}{1260 a^5} - \ldots$$

Differences of log gamma functions of large arguments cancel, and their $\delta$ do not.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

LARGE = 16.0  # from which the series has all digits
VAST = 1e3  # from which its first term has six
LEAST = 1e-200  # in place of what is not positive, so that no inf meets a weight of 0
SERIES = 1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156
HALF_LOG_2_PI = math.log(2 * math.pi) / 2


def stirling_rest(a: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    r"""$\delta(a)$ of positive numbers."""
    is_large = a >= LARGE
    large, small = a.where(is_large, LARGE), a.where(~is_large, 1.0)
    inverse = 1 / large
    square, total = inverse.square(), torch.zeros_like(large)
    for coefficient in reversed(SERIES):
        total = total * square + coefficient
    direct = torch.lgamma(small) - (small - 0.5) * small.log() + small - HALF_LOG_2_PI
    return torch.where(is_large, inverse * total, direct)


def stirling_slope(a: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    r"""$\delta'(a)$ of numbers from `LARGE` on."""
    square, total = a.square().reciprocal(), torch.zeros_like(a)
    for i, coefficient in reversed([*enumerate(SERIES)]):
        total = total * square - (2 * i + 1) * coefficient
    return square * total


def stirling_slopes(a: Float[Tensor, "*n"]) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
    r"""The first two derivatives of $\delta(e^y)$ in y at positive numbers $a = e^y$, to six digits or more."""
    is_large = a >= VAST
    small, inverse = a.where(~is_large, 1.0), 1 / (12 * a)
    gap = small * (torch.digamma(small) - small.log())
    second = gap + small * (small * torch.polygamma(1, small) - 1)
    return torch.where(is_large, -inverse, gap + 0.5), torch.where(is_large, inverse, second)


def log_ratio(a: Float[Tensor, "*#n"], x: Float[Tensor, "*#n"]) -> Float[Tensor, "*n"]:
    r"""$\log((a + x) / a)$, a > 0, x >= 0."""
    return torch.where(x < a, torch.log1p(x.where(x < a, 0.0) / a), torch.log(a + x) - torch.log(a))


def log_rising(a: Float[Tensor, "*#n"], x: Float[Tensor, "*#n"]) -> Float[Tensor, "*n"]:
    r"""$\log \Gamma(a + x) - \log \Gamma(a) - x \log a$, a > 0, x >= 0."""
    return (a + x - 0.5) * log_ratio(a, x) - x + stirling_rest(a + x) - stirling_rest(a)


def log_beta(a: Float[Tensor, "*#n"], b: Float[Tensor, "*#n"]) -> Float[Tensor, "*n"]:
    r"""$\log B(a, b)$."""
    rest = stirling_rest(a) + stirling_rest(b) - stirling_rest(a + b)
    size = (torch.log(a) + torch.log(b) - torch.log(a + b)) / 2
    return HALF_LOG_2_PI - a * log_ratio(a, b) - b * log_ratio(b, a) - size + rest


def inverse_moments(shape: Float[Tensor, "*n"]) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
    r"""$E\,\tau^{-1/2} = \Gamma(a - \tfrac12) / \Gamma(a)$ and $E\,\tau^{-1} = 1 / (a - 1)$ of $\tau \sim$ Gamma(a, 1);
    about 1 / `LEAST` where they do not exist."""
    below = (shape - 0.5).clamp_min(LEAST)
    half = torch.full_like(below, 0.5)
    return torch.exp(-log_rising(below, half)) / below.sqrt(), 1 / (shape - 1).clamp_min(LEAST)
