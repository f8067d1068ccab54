"""Precision matrices: the Wishart, and the Wishart part of NormalWishart and MatrixNormalWishart.

All functions take `chol`, the Cholesky factor of the inverse scale matrix.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..numerics.cholesky import cholesky, cholesky_inverse, log_det
from .family import VectorFamily
from .numerics import least, lgamma_gap, log_gamma_draw, normal_draw, pack, positive_definite, require, steps


@dataclass(frozen=True)
class WishartParameters:
    """The mean is their product."""

    df: Float[Tensor, "*plates"]
    scale_matrix: Float[Tensor, "*plates D D"]


def wishart_normalizer(df: Float[Tensor, "*plates"], chol: Float[Tensor, "*plates D D"]) -> Float[Tensor, "*plates"]:
    dim = chol.shape[-1]
    powers = df / 2 * (dim * math.log(2) - log_det(chol))
    return torch.lgamma(steps(df, dim)).sum(-1) + powers + dim * (dim - 1) / 4 * math.log(math.pi)


def expected_log_det(df: Float[Tensor, "*plates"], chol: Float[Tensor, "*plates D D"]) -> Float[Tensor, "*plates"]:
    dim = chol.shape[-1]
    return torch.digamma(steps(df, dim)).sum(-1) + dim * math.log(2) - log_det(chol)


def greatest_by_precision(df: Tensor, inverse: Tensor, minuend: Tensor) -> Float[Tensor, "*plates"]:
    """The maximum over precisions of (df log|L| - tr(inverse L)) / 2; infinite if the matrix, a difference from
    `minuend`, is not positive definite by more than rounding."""
    margin = (1 + df[..., None]) * least(minuend.diagonal(dim1=-2, dim2=-1))
    chol, info = torch.linalg.cholesky_ex(inverse.nan_to_num() - torch.diag_embed(margin.nan_to_num()))
    dim = inverse.shape[-1]
    value = df / 2 * (dim * (df.log() - 1) - log_det(chol))
    return torch.where((info == 0) & (df > 0), value, torch.inf)


def wishart_divergence(df: Tensor, chol: Tensor, df0: Tensor, chol0: Tensor) -> Tensor:
    """KL of the first from the second, with like terms combined."""
    dim = chol.shape[-1]
    ratio = torch.linalg.solve_triangular(chol, chol0, upper=False)  # ratio ratio' is similar to inv(W0) W
    log_ratio = log_det(chol0) - log_det(chol)
    return lgamma_gap(steps(df0, dim), steps(df, dim)).sum(-1) + (
        df * (ratio.square().sum((-2, -1)) - dim - log_ratio) / 2 + (df - df0) * log_ratio / 2
    )


def wishart_draw(df: Tensor, chol: Tensor, n: int, generator: Generator | None) -> tuple[Tensor, Tensor]:
    """By Bartlett 1933: precisions inv(C)' A A' inv(C), where C is `chol` and A triangular; and the A."""
    dim = chol.shape[-1]
    chi = (log_gamma_draw(steps(df, dim).expand(n, *df.shape, dim), generator) / 2).exp() * math.sqrt(2)
    lower = normal_draw(chol.new_empty(n, *df.shape, dim, dim), generator).tril(-1) + torch.diag_embed(chi)
    half = torch.linalg.solve_triangular(chol.mT, lower, upper=True)
    return half @ half.mT, lower


class Wishart(VectorFamily[Tensor]):
    """A precision matrix: see `WishartParameters`. P = 1 + D^2; with D = 1 a Gamma of `df/2` and `1/(2W)`."""

    def natural(
        self, df: Float[Tensor, "*#plates"], scale_matrix: Float[Tensor, "*#plates D D"]
    ) -> Float[Tensor, "*out P"]:
        inverse = cholesky_inverse(cholesky(scale_matrix))
        return pack(df[..., None] / 2, -inverse.flatten(-2) / 2)

    def usual(self, eta: Float[Tensor, "*plates P"]) -> WishartParameters:
        df, chol = self._split(eta)
        return WishartParameters(df, cholesky_inverse(chol))

    def _split(self, eta: Tensor) -> tuple[Tensor, Tensor]:
        """df, and the Cholesky factor of the inverse scale matrix."""
        df, inverse = self._parts(eta)
        return df, cholesky(inverse)

    def _parts(self, eta: Tensor) -> tuple[Tensor, Tensor]:
        """df, inverse scale matrix."""
        matrix = eta[..., 1:].unflatten(-1, (self._dim(eta), -1))
        return 2 * eta[..., 0], -(matrix + matrix.mT)

    def _dim(self, eta: Tensor) -> int:
        return math.isqrt(eta.shape[-1] - 1)

    def check(self, eta: Tensor) -> None:
        dim = math.isqrt(max(eta.shape[-1] - 1, 0))
        if dim < 1 or dim * dim + 1 != eta.shape[-1]:
            raise ValueError(f"Wishart: got {eta.shape[-1]} natural parameters, expected D^2 + 1; use `natural`.")
        df, inverse = self._parts(eta)
        require(df > dim - 1, "df", df, self, f"above D - 1 = {dim - 1}")
        positive_definite("scale_matrix", inverse, self)

    def log_normalizer(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        return wishart_normalizer(*self._split(eta))

    def mean(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates P"]:
        df, chol = self._split(eta)
        precision = df[..., None, None] * cholesky_inverse(chol)
        return pack(expected_log_det(df, chol)[..., None], precision.flatten(-2))

    def log_base(self, statistics: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        return -(self._dim(statistics) + 1) / 2 * statistics[..., 0]

    def kl(self, eta: Float[Tensor, "*#plates P"], eta0: Float[Tensor, "*#plates P"]) -> Float[Tensor, "*out"]:
        return wishart_divergence(*self._split(eta), *self._split(eta0))

    def statistics(self, point: Float[Tensor, "*plates D D"]) -> Float[Tensor, "*plates P"]:
        return pack(log_det(cholesky(point))[..., None], point.flatten(-2))

    def sample(self, eta: Float[Tensor, "*plates P"], n: int, generator: Generator | None = None) -> Tensor:
        return wishart_draw(*self._split(eta), n, generator)[0]

    def tilted(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates P"]:
        base = eta.new_zeros(eta.shape[-1])
        base[0] = (self._dim(eta) + 1) / 2
        return eta - base

    def expected(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates D D"]:
        q = self.usual(eta)
        return q.df[..., None, None] * q.scale_matrix

    def mode(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates D D"]:
        df, dim = 2 * eta[..., 0], self._dim(eta)
        require(df > dim + 1, "df", df, self, f"above D + 1 = {dim + 1} for a mode; take the mean instead")
        return self.expected(self.tilted(eta))
