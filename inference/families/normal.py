"""Families around the normal density: the conjugate priors of its location and precision, and the vector itself."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..numerics.cholesky import cholesky, cholesky_inverse, cholesky_solve, log_det
from ..numerics.op import Variants
from .family import VectorFamily
from .numerics import (
    LOG_2PI,
    least,
    lgamma_gap,
    log_gamma_draw,
    normal_draw,
    one_entry,
    pack,
    positive,
    positive_definite,
    require,
    scale_gap,
)
from .wishart import expected_log_det, greatest_by_precision, wishart_divergence, wishart_draw, wishart_normalizer


@dataclass(frozen=True)
class LocPrecision:
    """A point of NormalGamma (two numbers for each plate), NormalWishart (a vector and a matrix) or MatrixNormalWishart
    (two matrices)."""

    loc: Float[Tensor, "..."]
    precision: Float[Tensor, "..."]


@dataclass(frozen=True)
class NormalGammaParameters:
    """`precision ~ Gamma(shape, rate)`, `loc | precision ~ N(loc, 1 / (kappa precision))`."""

    loc: Float[Tensor, "*plates"]
    kappa: Float[Tensor, "*plates"]
    shape: Float[Tensor, "*plates"]
    rate: Float[Tensor, "*plates"]


@dataclass(frozen=True)
class NormalWishartParameters:
    """`precision ~ Wishart(df, scale_matrix)`, with mean df * scale_matrix; `loc | precision` as in the NormalGamma."""

    loc: Float[Tensor, "*plates D"]
    kappa: Float[Tensor, "*plates"]
    df: Float[Tensor, "*plates"]
    scale_matrix: Float[Tensor, "*plates D D"]


@dataclass(frozen=True)
class GaussianParameters:
    loc: Float[Tensor, "*plates D"]
    precision: Float[Tensor, "*plates D D"]


class NormalGamma(VectorFamily[LocPrecision]):
    """Location and precision of a normal variable, one number each: see `NormalGammaParameters`."""

    kernel = "normal_gamma"

    def natural(
        self,
        loc: Float[Tensor, "*#plates"],
        kappa: Float[Tensor, "*#plates"],
        shape: Float[Tensor, "*#plates"],
        rate: Float[Tensor, "*#plates"],
    ) -> Float[Tensor, "*out 4"]:
        parts = kappa * loc, -kappa / 2, shape, -rate - kappa * loc.square() / 2
        return torch.stack(torch.broadcast_tensors(*parts), -1)

    def usual(self, eta: Float[Tensor, "*plates 4"]) -> NormalGammaParameters:
        weighted_loc, half_kappa, shape, rest = eta.unbind(-1)
        loc = weighted_loc / (-2 * half_kappa)
        return NormalGammaParameters(loc, -2 * half_kappa, shape, -rest - weighted_loc * loc / 2)

    def check(self, eta: Tensor) -> None:
        q = self.usual(eta)
        positive("kappa", q.kappa, self)
        positive("shape", q.shape, self)
        above = (q.rate > least(eta[..., 3:])[..., 0]) & q.rate.isfinite()
        require(above, "rate", q.rate, self, "a finite number above 0, by more than rounding")

    def log_normalizer(self, eta: Float[Tensor, "*plates 4"]) -> Float[Tensor, "*plates"]:
        q = self.usual(eta)
        return torch.lgamma(q.shape) - q.shape * q.rate.log() - q.kappa.log() / 2 + LOG_2PI / 2

    def mean(self, eta: Float[Tensor, "*plates 4"]) -> Float[Tensor, "*plates 4"]:
        q = self.usual(eta)
        precision = q.shape / q.rate
        first = precision * q.loc
        return torch.stack([first, first * q.loc + 1 / q.kappa, torch.digamma(q.shape) - q.rate.log(), precision], -1)

    def log_base(self, statistics: Float[Tensor, "*plates 4"]) -> Float[Tensor, "*plates"]:
        return -statistics[..., 2] / 2

    def kl(self, eta: Float[Tensor, "*#plates 4"], eta0: Float[Tensor, "*#plates 4"]) -> Float[Tensor, "*out"]:
        q, p = self.usual(eta), self.usual(eta0)
        of_precision = lgamma_gap(p.shape, q.shape) + scale_gap(p.rate, q.rate, p.shape, q.shape)
        of_loc = scale_gap(p.kappa, q.kappa) / 2 + p.kappa * q.shape / q.rate * (q.loc - p.loc).square() / 2
        return of_precision + of_loc

    def statistics(self, point: LocPrecision) -> Float[Tensor, "*plates 4"]:
        first = point.precision * point.loc
        return torch.stack([first, first * point.loc, point.precision.log(), point.precision], -1)

    def sample(self, eta: Float[Tensor, "*plates 4"], n: int, generator: Generator | None = None) -> LocPrecision:
        q = self.usual(eta)
        precision = log_gamma_draw(q.shape.expand(n, *q.shape.shape), generator).exp() / q.rate
        return LocPrecision(q.loc + normal_draw(precision, generator) * (q.kappa * precision).rsqrt(), precision)

    def supremum(self, message: Float[Tensor, "*plates 4"]) -> Float[Tensor, "*plates"]:
        q = self.usual(message)
        rate = q.rate - (1 + 2 * q.shape) * least(message[..., 3:])[..., 0]
        value = q.shape * ((q.shape / rate.clamp_min(0.0)).log() - 1)
        return torch.where((message == 0).all(-1), 0.0, value)

    def tilted(self, eta: Float[Tensor, "*plates 4"]) -> Float[Tensor, "*plates 4"]:
        return eta - one_entry(eta, 2, 0.5)

    def moved(self, eta: Float[Tensor, "*plates 4"], by: Float[Tensor, "*#plates"]) -> Float[Tensor, "*plates 4"]:
        first, half, shape, rest = eta.unbind(-1)
        shift = -2 * half * by
        return torch.stack([first + shift, half, shape, rest - (first + shift / 2) * by], -1)

    def expected(self, eta: Float[Tensor, "*plates 4"]) -> LocPrecision:
        q = self.usual(eta)
        return LocPrecision(q.loc, q.shape / q.rate)

    def mode(self, eta: Float[Tensor, "*plates 4"]) -> LocPrecision:
        shape = eta[..., 2]
        require(shape > 0.5, "shape", shape, self, "above 1/2 for a mode; take the mean instead")
        return self.expected(self.tilted(eta))


class NormalWishart(VectorFamily[LocPrecision]):
    """Location vector and precision matrix of a normal variable: see `NormalWishartParameters`. P = D + 1 + 1 + D^2."""

    def natural(
        self,
        loc: Float[Tensor, "*#plates D"],
        kappa: Float[Tensor, "*#plates"],
        df: Float[Tensor, "*#plates"],
        scale_matrix: Float[Tensor, "*#plates D D"],
    ) -> Float[Tensor, "*out P"]:
        return self.of_inverse(loc, kappa, df, cholesky_inverse(cholesky(scale_matrix)))

    @staticmethod
    def of_inverse(
        loc: Float[Tensor, "*#plates D"],
        kappa: Float[Tensor, "*#plates"],
        df: Float[Tensor, "*#plates"],
        inverse_scale: Float[Tensor, "*#plates D D"],
    ) -> Float[Tensor, "*out P"]:
        """`natural`, from the inverse of the scale matrix."""
        kappa, df = kappa[..., None], df[..., None]
        outer = (kappa * loc)[..., :, None] * loc[..., None, :]
        return pack(kappa * loc, -kappa / 2, df / 2, -(inverse_scale + outer).flatten(-2) / 2)

    def usual(self, eta: Float[Tensor, "*plates P"]) -> NormalWishartParameters:
        loc, kappa, df, chol = self._split(eta)
        return NormalWishartParameters(loc, kappa, df, cholesky_inverse(chol))

    def _split(self, eta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """loc, kappa, df, and the Cholesky factor of the inverse scale matrix."""
        loc, kappa, df, inverse = self._parts(eta)
        return loc, kappa, df, cholesky(inverse)

    def _parts(self, eta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """loc, kappa, df, inverse scale matrix."""
        dim = math.isqrt(eta.shape[-1] - 2)
        weighted_loc, half_kappa, half_df, rest = eta.split([dim, 1, 1, dim * dim], -1)
        loc = weighted_loc / (-2 * half_kappa)
        matrix = rest.unflatten(-1, (dim, dim))
        inverse = -(matrix + matrix.mT) - weighted_loc[..., :, None] * loc[..., None, :]
        return loc, -2 * half_kappa[..., 0], 2 * half_df[..., 0], inverse

    def check(self, eta: Tensor) -> None:
        dim = math.isqrt(max(eta.shape[-1] - 2, 0))
        if dim < 1 or dim * dim + dim + 2 != eta.shape[-1]:
            raise ValueError(
                f"NormalWishart: got {eta.shape[-1]} natural parameters, expected D^2 + D + 2; use `natural`."
            )
        loc, kappa, df, inverse = self._parts(eta)
        positive("kappa", kappa, self)
        require(df > dim - 1, "df", df, self, f"above D - 1 = {dim - 1}")
        outer = kappa[..., None, None] * loc[..., :, None] * loc[..., None, :]
        positive_definite("scale_matrix", inverse, self, inverse + outer)

    def log_normalizer(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        loc, kappa, df, chol = self._split(eta)
        dim = loc.shape[-1]
        return wishart_normalizer(df, chol) + dim / 2 * (LOG_2PI - kappa.log())

    def mean(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates P"]:
        loc, kappa, df, chol = self._split(eta)
        dim = loc.shape[-1]
        precision = df[..., None, None] * cholesky_inverse(chol)
        first = (precision @ loc[..., None])[..., 0]
        second = (first * loc).sum(-1) + dim / kappa
        return pack(first, second[..., None], expected_log_det(df, chol)[..., None], precision.flatten(-2))

    def log_base(self, statistics: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        dim = math.isqrt(statistics.shape[-1] - 2)
        return -dim / 2 * statistics[..., dim + 1]

    def kl(self, eta: Float[Tensor, "*#plates P"], eta0: Float[Tensor, "*#plates P"]) -> Float[Tensor, "*out"]:
        (loc, kappa, df, chol), (loc0, kappa0, df0, chol0) = self._split(eta), self._split(eta0)
        dim = loc.shape[-1]
        of_precision = wishart_divergence(df, chol, df0, chol0)
        shift = torch.linalg.solve_triangular(chol, (loc - loc0)[..., None], upper=False).square().sum((-2, -1))
        return of_precision + dim * scale_gap(kappa0, kappa) / 2 + kappa0 * df * shift / 2

    def statistics(self, point: LocPrecision) -> Float[Tensor, "*plates P"]:
        first = (point.precision @ point.loc[..., None])[..., 0]
        second = (first * point.loc).sum(-1, keepdim=True)
        log_volume = log_det(cholesky(point.precision))[..., None]
        return pack(first, second, log_volume, point.precision.flatten(-2))

    def sample(self, eta: Float[Tensor, "*plates P"], n: int, generator: Generator | None = None) -> LocPrecision:
        loc, kappa, df, chol = self._split(eta)
        precision, lower = wishart_draw(df, chol, n, generator)
        noise = normal_draw(lower[..., :1], generator)
        shift = chol @ torch.linalg.solve_triangular(lower.mT, noise, upper=True)
        return LocPrecision(loc + shift[..., 0] * kappa.rsqrt()[..., None], precision)

    def supremum(self, message: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        loc, kappa, df, inverse = self._parts(message)
        outer = kappa[..., None, None] * loc[..., :, None] * loc[..., None, :]
        return greatest_by_precision(df, inverse, inverse + outer).where((message != 0).any(-1), 0.0)

    def tilted(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates P"]:
        dim = math.isqrt(eta.shape[-1] - 2)
        return eta - one_entry(eta, dim + 1, dim / 2)

    def moved(self, eta: Float[Tensor, "*plates P"], by: Float[Tensor, "*#plates D"]) -> Float[Tensor, "*plates P"]:
        dim = math.isqrt(eta.shape[-1] - 2)
        first, half, half_df, rest = eta.split([dim, 1, 1, dim * dim], -1)
        shift = -2 * half * by
        middle = (first + shift / 2)[..., :, None] * by[..., None, :]
        return pack(first + shift, half, half_df, rest - ((middle + middle.mT) / 2).flatten(-2))

    def expected(self, eta: Float[Tensor, "*plates P"]) -> LocPrecision:
        return LocPrecision(*mean_point(eta))

    def mode(self, eta: Float[Tensor, "*plates P"]) -> LocPrecision:
        dim = math.isqrt(eta.shape[-1] - 2)
        df = 2 * eta[..., dim + 1]
        require(df > dim, "df", df, self, f"above D = {dim} for a mode; take the mean instead")
        return self.expected(self.tilted(eta))


def _mean_point(eta: Tensor) -> tuple[Tensor, Tensor]:
    q = NormalWishart().usual(eta)
    return q.loc, q.df[..., None, None] * q.scale_matrix


mean_point: Variants = Variants(_mean_point)
"""The expected location and precision for natural parameters of a NormalWishart."""


class ExpectedNormal(NamedTuple):
    r"""The parts of $E[\log N(x; u, L^{-1})]$: it is $\log N(x; loc, \bar L^{-1})$ plus a constant, or the same density
    with `log_volume` instead of $\log|\bar L|$, where $\bar L = E[L]$."""

    loc: Float[Tensor, "*plates D"]
    chol: Float[Tensor, "*plates D D"]  # the lower factor of E[L]
    constant: Float[Tensor, "*plates"]
    log_volume: Float[Tensor, "*plates"]


def _expected_normal(statistics: Tensor) -> ExpectedNormal:
    dim = math.isqrt(statistics.shape[-1] - 2)
    first, second, log_volume, flat = statistics.split([dim, 1, 1, dim * dim], -1)
    chol = cholesky(flat.unflatten(-1, (dim, dim)))
    loc = cholesky_solve(first[..., None], chol)[..., 0]
    volume = log_volume[..., 0] - second[..., 0] + (first * loc).sum(-1)
    return ExpectedNormal(loc, chol, (volume - log_det(chol)) / 2, volume)


expected_normal: Variants = Variants(_expected_normal)
"""The `ExpectedNormal` for expected statistics of a NormalWishart `[*plates, P]`."""


class Gaussian(VectorFamily[Tensor]):
    """A vector, by location and precision matrix. Its point is the vector. P = D + D^2."""

    latent = True

    def natural(
        self, loc: Float[Tensor, "*#plates D"], precision: Float[Tensor, "*#plates D D"]
    ) -> Float[Tensor, "*out P"]:
        return pack((precision @ loc[..., None])[..., 0], -precision.flatten(-2) / 2)

    def usual(self, eta: Float[Tensor, "*plates P"]) -> GaussianParameters:
        weighted_loc, precision = self._parts(eta)
        loc = cholesky_solve(weighted_loc[..., None], cholesky(precision))[..., 0]
        return GaussianParameters(loc, precision)

    def _parts(self, eta: Tensor) -> tuple[Tensor, Tensor]:
        """precision @ loc, precision."""
        dim = math.isqrt(eta.shape[-1])
        matrix = eta[..., dim:].unflatten(-1, (dim, dim))
        return eta[..., :dim], -(matrix + matrix.mT)

    def check(self, eta: Tensor) -> None:
        dim = math.isqrt(eta.shape[-1])
        if dim < 1 or dim * dim + dim != eta.shape[-1]:
            raise ValueError(f"Gaussian: got {eta.shape[-1]} natural parameters, expected D^2 + D; use `natural`.")
        positive_definite("precision", self._parts(eta)[1], self)

    def log_normalizer(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        weighted_loc, precision = self._parts(eta)
        chol = cholesky(precision)
        white = torch.linalg.solve_triangular(chol, weighted_loc[..., None], upper=False)[..., 0]
        return (white.square().sum(-1) - log_det(chol) + white.shape[-1] * LOG_2PI) / 2

    def mean(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates P"]:
        q = self.usual(eta)
        covariance = cholesky_inverse(cholesky(q.precision))
        return pack(q.loc, (covariance + q.loc[..., :, None] * q.loc[..., None, :]).flatten(-2))

    def kl(self, eta: Float[Tensor, "*#plates P"], eta0: Float[Tensor, "*#plates P"]) -> Float[Tensor, "*out"]:
        q, p = self.usual(eta), self.usual(eta0)
        chol, chol0 = cholesky(q.precision), cholesky(p.precision)
        ratio = torch.linalg.solve_triangular(chol, chol0, upper=False)
        shift = (chol0.mT @ (q.loc - p.loc)[..., None]).square().sum((-2, -1))
        trace = ratio.square().sum((-2, -1)) - q.loc.shape[-1]
        return (trace - (log_det(chol0) - log_det(chol)) + shift) / 2

    def statistics(self, point: Float[Tensor, "*plates D"]) -> Float[Tensor, "*plates P"]:
        return pack(point, (point[..., :, None] * point[..., None, :]).flatten(-2))

    def sample(self, eta: Float[Tensor, "*plates P"], n: int, generator: Generator | None = None) -> Tensor:
        q = self.usual(eta)
        noise = normal_draw(q.loc.new_empty(n, *q.loc.shape, 1), generator)
        return q.loc + torch.linalg.solve_triangular(cholesky(q.precision).mT, noise, upper=True)[..., 0]

    def expected(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates D"]:
        return self.usual(eta).loc

    def mode(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates D"]:
        return self.expected(eta)
