r"""Scores of a predictive distribution at the value that was observed.

The probability integral transform of x is $F(x)$, or a uniform draw between $F(x^-)$ and $F(x)$ where F jumps
(Brockwell 2007, *Universal residuals*). It is uniform if F is the distribution of x. The continuous ranked probability
score is $\int (F(z) - 1(z \ge x))^2\, dz = E|X - x| - \tfrac12 E|X - X'|$, lower is better (Gneiting & Raftery 2007).
For a mixture of normals it has a closed form (Grimit, Gneiting, Berrocal & Johnson 2006): with
$A(\mu, \sigma^2) = \mu (2\Phi(\mu/\sigma) - 1) + 2\sigma\phi(\mu/\sigma)$,

$$\sum_m w_m A(x - \mu_m, \sigma_m^2) - \tfrac12 \sum_{m, n} w_m w_n A(\mu_m - \mu_n, \sigma_m^2 + \sigma_n^2).$$
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ..mixture import StateMixture

DRAWS = 10_000  # where there is no closed form
MOST_VALUES = 3000  # of a sum over whole numbers
AT_ONCE = 2**18  # numbers in a table of their distribution functions
REACH = 12.0  # standard deviations beyond which there is no probability to speak of


def limits(mixture: StateMixture, x: Float[Tensor, "*b F"]) -> tuple[Tensor, Tensor]:
    """P(X < x) and P(X <= x) of each feature separately; shares of draws if the emission has no distribution
    function. NaN where x is missing."""
    known = x.nan_to_num(0.0)
    try:
        below, at = mixture.cdf(torch.nextafter(known, known.new_tensor(-torch.inf))), mixture.cdf(known)
    except NotImplementedError:
        draws = mixture.sample((DRAWS,))
        below, at = (draws < known).to(known).mean(0), (draws <= known).to(known).mean(0)
    return below.masked_fill(x.isnan(), torch.nan), at.masked_fill(x.isnan(), torch.nan)


def crps(mixture: StateMixture, x: Float[Tensor, "*b F"]) -> Float[Tensor, "*b F"]:
    """The continuous ranked probability score of each feature; NaN where x is missing.

    Exact for mixtures of normals, and for whole numbers, where it is a sum; otherwise that of `DRAWS` draws.
    """
    emission = mixture.emission
    if all(part.emission.normal for part in emission.parts):
        return _of_normals(*mixture.components, x)
    first, last = _range(mixture, x)
    if emission.support.is_discrete and last - first <= MOST_VALUES:  # False if the range is not finite
        score, exact = _of_whole_numbers(mixture, x, first, last)
        return score if bool(exact.all()) else torch.where(exact, score, _of_draws(mixture.sample((DRAWS,)), x))
    return _of_draws(mixture.sample((DRAWS,)), x)


def _range(mixture: StateMixture, x: Tensor) -> tuple[float, float]:
    """Whole numbers between which nearly all probability is, and x."""
    _, mean, variance = mixture.components
    reach, known = REACH * variance.sqrt() + REACH, x[~x.isnan()]
    ends = torch.cat([(mean - reach).flatten(), (mean + reach).flatten(), known])
    return float(ends.amin().floor()), float(ends.amax().ceil())


def _of_normals(
    weights: Float[Tensor, "*b M"], mean: Float[Tensor, "*#b M F"], variance: Float[Tensor, "*#b M F"], x: Tensor
) -> Float[Tensor, "*b F"]:
    variance = variance.expand_as(mean)
    away = (weights.unsqueeze(-1) * _expected_distance(x.unsqueeze(-2) - mean, variance)).sum(-2)
    scale, n_components = variance.sqrt(), mean.shape[-2]
    low, high = (mean - REACH * scale).amin(-2), (mean + REACH * scale).amax(-2)
    points = 2 + 2 * float(((high - low) / scale.amin(-2)).amax())
    if points < n_components:
        return away - _spread_by_steps(weights, mean, scale, low, high, int(points))
    return away - _spread_by_pairs(weights, mean, variance)


def _spread_by_pairs(weights: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """E|X - X'| / 2, by the closed form."""
    used, total = weights.unsqueeze(-1), 0.0
    for m in range(mean.shape[-2]):
        apart = _expected_distance(mean[..., m : m + 1, :] - mean, variance[..., m : m + 1, :] + variance)
        total = total + used[..., m, :] * (used * apart).sum(-2) / 2
    return torch.as_tensor(total)


def _spread_by_steps(weights: Tensor, mean: Tensor, scale: Tensor, low: Tensor, high: Tensor, points: int) -> Tensor:
    """The same as the integral of F (1 - F), by equal steps of at most half the least standard deviation: the error of
    this rule is below rounding, because the transform of a normal density falls so fast."""
    step, total = (high - low) / (points - 1), torch.zeros_like(low)
    for number in range(points):
        z = ((low + number * step).unsqueeze(-2) - mean) / scale
        below = (weights.unsqueeze(-1) * torch.special.ndtr(z)).sum(-2)
        total = total + below * (1 - below)
    return total * step


def _expected_distance(mean: Tensor, variance: Tensor) -> Tensor:
    """E|X| of a normal X."""
    scale = variance.sqrt()
    z = mean / scale
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    return mean * (2 * torch.special.ndtr(z) - 1) + 2 * scale * density


def _of_whole_numbers(mixture: StateMixture, x: Tensor, first: float, last: float) -> tuple[Tensor, Tensor]:
    """The score of each feature as a sum, and whether it takes whole numbers alone: its distribution function is then
    constant between them."""
    total, exact = torch.zeros_like(x), torch.ones_like(x, dtype=torch.bool)
    numbers = torch.arange(first, last + 1, dtype=x.dtype, device=x.device)
    for some in numbers.split(max(1, AT_ONCE // max(1, x.numel() * mixture.weights.redrawn.shape[-1]))):
        values = some.reshape(-1, *[1] * x.ndim).expand(-1, *x.shape)
        below = mixture.cdf(values)
        exact &= (mixture.cdf(values + 0.5) == below).all(0)
        total = total + (below - (values >= x).to(x)).square().sum(0)
    return total.masked_fill(x.isnan(), torch.nan), exact


def _of_draws(draws: Float[Tensor, "n *b F"], x: Tensor) -> Float[Tensor, "*b F"]:
    ordered, n = draws.sort(0).values, len(draws)
    rank = torch.arange(1, n + 1).to(x).reshape(-1, *[1] * x.ndim)
    apart = 2 * ((2 * rank - n - 1) * ordered).sum(0) / n**2
    return (draws - x).abs().mean(0) - apart / 2
