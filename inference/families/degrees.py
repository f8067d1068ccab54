r"""Degrees of freedom: the conjugate prior of a gamma variable's own shape, where this is also its rate.

If $u_i \mid \nu \sim \text{Gamma}(\nu/2, \nu/2)$, as in Student's t distribution, the likelihood of $\nu$ is
$\exp \sum_i \big(g(\nu) + (\tfrac\nu2 - 1) \log u_i - \tfrac\nu2 u_i\big)$ with
$g(\nu) = \tfrac\nu2 \log \tfrac\nu2 - \log\Gamma(\tfrac\nu2)$. With Stirling's $\delta$ (see `numerics.gammas`),
$g(\nu) = \tfrac\nu2 + \tfrac12 \log \nu - \tfrac12 \log 4\pi - \delta(\tfrac\nu2)$, so the density is

$$p(\nu) \propto \nu^{a - 1} e^{-b \nu} e^{-c\, \delta(\nu/2)}.$$

It is a gamma density for $c = 0$, and log-concave in $y = \log \nu$. Integrals are sums over equal distances in a
coordinate that is y, but in which a long left tail is shorter, around its mode, as far as the density has digits: their
error decreases exponentially (Trefethen & Weideman 2014, *The exponentially convergent trapezoidal rule*). They have
nine digits for shapes of 0.001 or more.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..numerics.gammas import HALF_LOG_2_PI, stirling_rest, stirling_slopes
from .family import VectorFamily
from .normal import LocPrecision, NormalGamma, NormalGammaParameters
from .numerics import one_entry, pack, positive, require

N_NODES = 256
DEPTH = 40.0  # log of the ratio of the density at its mode to that at the ends
LONGEST = 45.0  # from the mode to the left end in y, beyond which nodes to the left have greater distances
FAR = 6.0  # standard deviations from the mode, whence a tangent leads to an end
TINY = -100.0  # log of a number beside which 1 has all digits
TO_CENTER, TO_MODE = 6, 30  # steps of Newton's method


@dataclass(frozen=True)
class DegreesParameters:
    """`weight` is c, the number of gamma variables that were seen."""

    shape: Float[Tensor, "*plates"]
    rate: Float[Tensor, "*plates"]
    weight: Float[Tensor, "*plates"]


class Nodes(NamedTuple):
    """Places of y and the statistics there `[*plates, N, 3]`, their probabilities, and the log of the integral."""

    y: Float[Tensor, "*plates N"]
    statistics: Float[Tensor, "*plates N 3"]
    probs: Float[Tensor, "*plates N"]
    log_normalizer: Float[Tensor, "*plates"]


class Degrees(VectorFamily[Tensor]):
    r"""Degrees of freedom; statistics $\log \nu, \nu, -\delta(\nu/2)$, see the module's equations."""

    def natural(
        self, shape: Float[Tensor, "*#plates"], rate: Float[Tensor, "*#plates"], weight: Float[Tensor, "*#plates"]
    ) -> Float[Tensor, "*out 3"]:
        return torch.stack(torch.broadcast_tensors(shape, -rate, weight), -1)

    def usual(self, eta: Float[Tensor, "*plates 3"]) -> DegreesParameters:
        return DegreesParameters(eta[..., 0], -eta[..., 1], eta[..., 2])

    def check(self, eta: Tensor) -> None:
        q = self.usual(eta)
        positive("shape", q.shape, self)
        positive("rate", q.rate, self)
        require((q.weight >= 0) & q.weight.isfinite(), "weight", q.weight, self, "a finite number of at least 0")

    def statistics(self, point: Float[Tensor, "*plates"]) -> Float[Tensor, "*plates 3"]:
        return torch.stack([point.log(), point, -stirling_rest(point / 2)], -1)

    def log_base(self, statistics: Float[Tensor, "*plates 3"]) -> Float[Tensor, "*plates"]:
        return -statistics[..., 0]

    def nodes(self, eta: Float[Tensor, "*plates 3"]) -> Nodes:
        """The sum that stands for an integral, in float64."""
        eta = eta.double()
        with torch.no_grad():
            top = _peak(eta, TO_CENTER)
            left, right = _ends(eta, top)
            stretch = ((top - left) / LONGEST).clamp_min(1.0).unsqueeze(-1)
            begin, end = (left - top).unsqueeze(-1) / stretch, (right - top).unsqueeze(-1)
            place = begin + (end - begin) * torch.linspace(0.0, 1.0, N_NODES, dtype=eta.dtype, device=eta.device)
            y = top.unsqueeze(-1) + place - (stretch - 1) * torch.nn.functional.softplus(-place)
            slope = (1 + (stretch - 1) * torch.sigmoid(-place)).log()
            statistics = torch.stack([y, y.exp(), -_rest(y)], -1)
        weights = (eta.unsqueeze(-2) * statistics).sum(-1) + slope
        total = weights.logsumexp(-1)
        step = ((end - begin) / (N_NODES - 1)).squeeze(-1)
        return Nodes(y, statistics, (weights - total.unsqueeze(-1)).exp(), total + step.log())

    def log_normalizer(self, eta: Float[Tensor, "*plates 3"]) -> Float[Tensor, "*plates"]:
        return self.nodes(eta).log_normalizer.to(eta)

    def mean(self, eta: Float[Tensor, "*plates 3"]) -> Float[Tensor, "*plates 3"]:
        return self.evaluate(eta)[1]

    def evaluate(self, eta: Tensor, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
        nodes = self.nodes(eta)
        mean = (nodes.probs.unsqueeze(-1) * nodes.statistics).sum(-2)
        return nodes.log_normalizer.to(eta), mean.to(eta)

    def relative(self, eta: Tensor, eta0: Tensor) -> tuple[Tensor, Tensor]:
        log_normalizer, mean = self.evaluate(eta.double())
        gap = self.dot(eta.double() - eta0.double(), mean) - (log_normalizer - self.nodes(eta0).log_normalizer)
        return gap.to(eta), mean.to(eta)

    def kl(self, eta: Float[Tensor, "*#plates 3"], eta0: Float[Tensor, "*#plates 3"]) -> Float[Tensor, "*out"]:
        return self.relative(eta, eta0)[0]

    def sample(self, eta: Float[Tensor, "*plates 3"], n: int, generator: Generator | None = None) -> Tensor:
        """By the inverse of the distribution function of y, which is linear between nodes."""
        nodes = self.nodes(eta)
        like = nodes.probs
        middle = (nodes.probs[..., :-1] + nodes.probs[..., 1:]) / 2
        ends = torch.nn.functional.pad(middle.cumsum(-1), (1, 0))
        uniform = torch.rand(*eta.shape[:-1], n, generator=generator, dtype=like.dtype, device=like.device)
        uniform = uniform * ends[..., -1:]
        place = torch.searchsorted(ends.detach(), uniform).clamp(1, N_NODES - 1)
        low, high = ends.gather(-1, place - 1), ends.gather(-1, place)
        share = (uniform - low) / (high - low)
        y = torch.lerp(nodes.y.gather(-1, place - 1), nodes.y.gather(-1, place), share)
        return y.exp().movedim(-1, 0).to(eta)

    def tilted(self, eta: Float[Tensor, "*plates 3"]) -> Float[Tensor, "*plates 3"]:
        return eta - one_entry(eta, 0, 1.0)

    def expected(self, eta: Float[Tensor, "*plates 3"]) -> Float[Tensor, "*plates"]:
        return self.mean(eta)[..., 1]

    def peak(self, eta: Float[Tensor, "*plates 3"]) -> Float[Tensor, "*plates"]:
        tilted = self.tilted(eta)
        inside = tilted[..., 0] + tilted[..., 2] / 2 > 0
        safe = torch.where(inside.unsqueeze(-1), tilted, eta)
        return torch.where(inside, _peak(safe, TO_MODE).exp(), torch.nan)

    def mode(self, eta: Float[Tensor, "*plates 3"]) -> Float[Tensor, "*plates"]:
        power = self.usual(eta).shape + self.usual(eta).weight / 2
        require(power > 1, "shape", power, self, "above 1 with half the weight for a mode; take the mean instead")
        return self.peak(eta)


def _rest(y: Tensor) -> Tensor:
    r"""$\delta(e^y / 2)$, also where $e^y$ underflows."""
    tiny = y < TINY
    return torch.where(tiny, (math.log(2) - y) / 2 - HALF_LOG_2_PI, stirling_rest(y.where(~tiny, 0.0).exp() / 2))


def _slopes(eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The first two derivatives of <eta, t> in y."""
    shape, rate, weight = eta[..., 0], -eta[..., 1], eta[..., 2]
    first, second = stirling_slopes(y.exp() / 2)
    return shape - rate * y.exp() - weight * first, -rate * y.exp() - weight * second


def _peak(eta: Float[Tensor, "*plates 3"], n_steps: int) -> Float[Tensor, "*plates"]:
    r"""The y of the greatest <eta, t>, by Newton's method in a bracket.

    It begins at the upper end, which follows from $-a\, \delta'(a) < \min(1/2,\, 1/(12 a))$.
    """
    shape, rate, weight = eta[..., 0], -eta[..., 1], eta[..., 2]
    of_series = (shape + (shape.square() + rate * weight * (2 / 3)).sqrt()) / (2 * rate)
    high = ((shape + weight / 2) / rate).minimum(of_series).log()
    low = (shape.clamp_min(torch.finfo(eta.dtype).tiny) / rate).log()
    y = high
    for _ in range(n_steps):
        first, second = _slopes(eta, y)
        low, high = torch.where(first > 0, y, low), torch.where(first > 0, high, y)
        ahead = y - first / second
        y = torch.where((ahead >= low) & (ahead <= high), ahead, (low + high) / 2)
    return y


def _ends(eta: Float[Tensor, "*plates 3"], top: Tensor) -> tuple[Tensor, Tensor]:
    """Places where the density has fallen by `DEPTH` or more: where tangents of its logarithm have, which is a concave
    function of y, and of its exponential."""

    def height(y: Tensor) -> Tensor:
        return eta[..., 0] * y + eta[..., 1] * y.exp() - eta[..., 2] * _rest(y)

    least = height(top) - DEPTH
    width = FAR * (-_slopes(eta, top)[1]).rsqrt()
    left, right = top - width, top + width.clamp_max(1.0)
    left = left - (height(left) - least) / _slopes(eta, left)[0]
    return left, right + (-(height(right) - least) / _slopes(eta, right)[0]).log1p()


@dataclass(frozen=True)
class LocPrecisionDf(LocPrecision):
    """A point of `Tailed`: three numbers for each plate."""

    df: Float[Tensor, "..."]


@dataclass(frozen=True)
class TailedParameters(NormalGammaParameters):
    """Those of a NormalGamma, and of `DegreesParameters` with the prefix `df_`."""

    df_shape: Float[Tensor, "*plates"]
    df_rate: Float[Tensor, "*plates"]
    df_weight: Float[Tensor, "*plates"]


class Tailed(VectorFamily[LocPrecisionDf]):
    """Location and precision of Student's t distribution, a NormalGamma, and its independent degrees of freedom.

    Arguments:
        normal, degrees: the families of the two parts, if some of them is known.
    """

    normal: VectorFamily[Any] | NormalGamma
    degrees: VectorFamily[Any] | Degrees

    def __init__(self, normal: VectorFamily[Any] | None = None, degrees: VectorFamily[Any] | None = None) -> None:
        self.normal, self.degrees = normal or NormalGamma(), degrees or Degrees()

    def natural(
        self,
        loc: Float[Tensor, "*#plates"],
        kappa: Float[Tensor, "*#plates"],
        shape: Float[Tensor, "*#plates"],
        rate: Float[Tensor, "*#plates"],
        df_shape: Float[Tensor, "*#plates"],
        df_rate: Float[Tensor, "*#plates"],
        df_weight: Float[Tensor, "*#plates"],
    ) -> Float[Tensor, "*out 7"]:
        return pack(NormalGamma().natural(loc, kappa, shape, rate), Degrees().natural(df_shape, df_rate, df_weight))

    def usual(self, eta: Float[Tensor, "*plates 7"]) -> TailedParameters:
        normal, degrees = NormalGamma().usual(eta[..., :4]), Degrees().usual(eta[..., 4:])
        return TailedParameters(**vars(normal), **{f"df_{name}": value for name, value in vars(degrees).items()})

    def check(self, eta: Tensor) -> None:
        self.normal.check(eta[..., :4])
        self.degrees.check(eta[..., 4:])

    def log_normalizer(self, eta: Float[Tensor, "*plates 7"]) -> Float[Tensor, "*plates"]:
        return self.normal.log_normalizer(eta[..., :4]) + self.degrees.log_normalizer(eta[..., 4:])

    def mean(self, eta: Float[Tensor, "*plates 7"]) -> Float[Tensor, "*plates 7"]:
        return pack(self.normal.mean(eta[..., :4]), self.degrees.mean(eta[..., 4:]))

    def log_base(self, statistics: Float[Tensor, "*plates 7"]) -> Float[Tensor, "*plates"]:
        return self.normal.log_base(statistics[..., :4]) + self.degrees.log_base(statistics[..., 4:])

    def kl(self, eta: Float[Tensor, "*#plates 7"], eta0: Float[Tensor, "*#plates 7"]) -> Float[Tensor, "*out"]:
        return self.relative(eta, eta0)[0]

    def relative(self, eta: Float[Tensor, "*plates 7"], eta0: Float[Tensor, "*#plates 7"]) -> tuple[Tensor, Tensor]:
        of_normal, normal = self.normal.relative(eta[..., :4], eta0[..., :4])
        of_degrees, degrees = self.degrees.relative(eta[..., 4:], eta0[..., 4:])
        return of_normal + of_degrees, pack(normal, degrees)

    def statistics(self, point: LocPrecisionDf) -> Float[Tensor, "*plates 7"]:
        return pack(NormalGamma().statistics(point), Degrees().statistics(point.df))

    def sample(self, eta: Float[Tensor, "*plates 7"], n: int, generator: Generator | None = None) -> LocPrecisionDf:
        normal = self.normal.sample(eta[..., :4], n, generator)
        parts = normal.loc, normal.precision, self.degrees.sample(eta[..., 4:], n, generator)
        return LocPrecisionDf(*(table.expand(n, *eta.shape[:-1]) for table in parts))

    def tilted(self, eta: Float[Tensor, "*plates 7"]) -> Float[Tensor, "*plates 7"]:
        return pack(self.normal.tilted(eta[..., :4]), self.degrees.tilted(eta[..., 4:]))

    def moved(self, eta: Float[Tensor, "*plates 7"], by: Float[Tensor, "*#plates"]) -> Float[Tensor, "*plates 7"]:
        return pack(NormalGamma().moved(eta[..., :4], by), eta[..., 4:])

    def expected(self, eta: Float[Tensor, "*plates 7"]) -> LocPrecisionDf:
        return _joined(self.normal.expected(eta[..., :4]), self.degrees.expected(eta[..., 4:]))

    def peak(self, eta: Float[Tensor, "*plates 7"]) -> LocPrecisionDf:
        return _joined(self.normal.peak(eta[..., :4]), self.degrees.peak(eta[..., 4:]))

    def mode(self, eta: Float[Tensor, "*plates 7"]) -> LocPrecisionDf:
        return _joined(self.normal.mode(eta[..., :4]), self.degrees.mode(eta[..., 4:]))


def _joined(normal: LocPrecision, df: Tensor) -> LocPrecisionDf:
    return LocPrecisionDf(*torch.broadcast_tensors(normal.loc, normal.precision, df))
