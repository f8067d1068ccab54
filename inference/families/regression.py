"""The conjugate family of a linear regression: coefficients of the inputs, and the precision of the noise."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..numerics.cholesky import cholesky, cholesky_inverse, cholesky_solve, log_det
from .family import VectorFamily
from .normal import LocPrecision
from .numerics import LOG_2PI, least, normal_draw, one_entry, pack, positive_definite, require
from .wishart import expected_log_det, greatest_by_precision, wishart_divergence, wishart_draw, wishart_normalizer


@dataclass(frozen=True)
class MatrixNormalWishartParameters:
    r"""$\Lambda \sim$ Wishart(df, scale_matrix), rows of $M - loc$ normal with precision $weight \otimes \Lambda$."""

    loc: Float[Tensor, "*plates K D"]
    weight: Float[Tensor, "*plates K K"]
    df: Float[Tensor, "*plates"]
    scale_matrix: Float[Tensor, "*plates D D"]


class MatrixNormalWishart(VectorFamily[LocPrecision]):
    r"""Coefficients M and precision $\Lambda$ of $x \sim N(M^\top s, \Lambda^{-1})$.

    $$t = (M \Lambda,\; M \Lambda M^\top,\; \log|\Lambda|,\; \Lambda), \qquad
    \eta = (V m,\; -V/2,\; \nu/2,\; -(W^{-1} + m^\top V m)/2), \qquad h = |\Lambda|^{(K-D-1)/2},$$

    where m, V, $\nu$ and W are the `MatrixNormalWishartParameters`. With a single input it is a `NormalWishart`. Like
    that one, it subtracts a square from a second moment, so center the data. P = KD + K^2 + 1 + D^2.

    Arguments:
        n_inputs: K.
    """

    def __init__(self, n_inputs: int) -> None:
        self.n_inputs = n_inputs

    def natural(
        self,
        loc: Float[Tensor, "*#plates K D"],
        weight: Float[Tensor, "*#plates K K"],
        df: Float[Tensor, "*#plates"],
        scale_matrix: Float[Tensor, "*#plates D D"],
    ) -> Float[Tensor, "*out P"]:
        weighted = weight @ loc
        inverse = cholesky_inverse(cholesky(scale_matrix)) + loc.mT @ weighted
        return pack(weighted.flatten(-2), -weight.flatten(-2) / 2, df[..., None] / 2, -inverse.flatten(-2) / 2)

    def usual(self, eta: Float[Tensor, "*plates P"]) -> MatrixNormalWishartParameters:
        loc, chol_weight, df, chol = self._split(eta)
        return MatrixNormalWishartParameters(loc, chol_weight @ chol_weight.mT, df, cholesky_inverse(chol))

    def parts(self, table: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Statistics or natural parameters as [K, D], [K, K], [] and [D, D]."""
        k = self.n_inputs
        dim = self._n_outputs(table.shape[-1])
        first, second, log_volume, last = table.split([k * dim, k * k, 1, dim * dim], -1)
        matrices = first.unflatten(-1, (k, dim)), second.unflatten(-1, (k, k)), last.unflatten(-1, (dim, dim))
        return matrices[0], matrices[1], log_volume[..., 0], matrices[2]

    def _n_outputs(self, size: int) -> int:
        k = self.n_inputs
        return (math.isqrt(max(0, 4 * (size - 1) - 3 * k * k)) - k) // 2

    def _matrices(self, eta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """weight @ loc, weight, df, inverse scale matrix + loc' weight loc."""
        weighted, half, half_df, rest = self.parts(eta)
        return weighted, -(half + half.mT), 2 * half_df, -(rest + rest.mT)

    def _split(self, eta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """loc, the Cholesky factors of weight and of the inverse scale matrix, and df between them."""
        weighted, weight, df, total = self._matrices(eta)
        chol_weight = cholesky(weight)
        loc = cholesky_solve(weighted, chol_weight)
        return loc, chol_weight, df, cholesky(total - weighted.mT @ loc)

    def check(self, eta: Tensor) -> None:
        k, size = self.n_inputs, eta.shape[-1]
        dim = self._n_outputs(size)
        if dim < 1 or k * dim + k * k + 1 + dim * dim != size:
            raise ValueError(
                f"MatrixNormalWishart: got {size} natural parameters for {k} inputs, expected KD + K^2 + 1 + D^2; "
                "use `natural`."
            )
        weighted, weight, df, total = self._matrices(eta)
        positive_definite("weight", weight, self)
        require(df > dim - 1, "df", df, self, f"above D - 1 = {dim - 1}")
        loc, _ = torch.linalg.solve_ex(weight, weighted)
        positive_definite("scale_matrix", total - weighted.mT @ loc, self, total)

    def log_normalizer(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        loc, chol_weight, df, chol = self._split(eta)
        dim = loc.shape[-1]
        return wishart_normalizer(df, chol) + dim / 2 * (self.n_inputs * LOG_2PI - log_det(chol_weight))

    def mean(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates P"]:
        loc, chol_weight, df, chol = self._split(eta)
        dim = loc.shape[-1]
        precision = df[..., None, None] * cholesky_inverse(chol)
        first = loc @ precision
        second = first @ loc.mT + dim * cholesky_inverse(chol_weight)
        log_volume = expected_log_det(df, chol)[..., None]
        return pack(first.flatten(-2), second.flatten(-2), log_volume, precision.flatten(-2))

    def log_base(self, statistics: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        first, _, log_volume, _ = self.parts(statistics)
        return (self.n_inputs - first.shape[-1] - 1) / 2 * log_volume

    def kl(self, eta: Float[Tensor, "*#plates P"], eta0: Float[Tensor, "*#plates P"]) -> Float[Tensor, "*out"]:
        (loc, chol_weight, df, chol), (loc0, chol_weight0, df0, chol0) = self._split(eta), self._split(eta0)
        dim = loc.shape[-1]
        of_precision = wishart_divergence(df, chol, df0, chol0)
        inputs = torch.linalg.solve_triangular(chol_weight, chol_weight0, upper=False)
        excess = inputs.square().sum((-2, -1)) - self.n_inputs - (log_det(chol_weight0) - log_det(chol_weight))
        shift = torch.linalg.solve_triangular(chol, (loc - loc0).mT @ chol_weight0, upper=False).square().sum((-2, -1))
        return of_precision + dim * excess / 2 + df * shift / 2

    def statistics(self, point: LocPrecision) -> Float[Tensor, "*plates P"]:
        first = point.loc @ point.precision
        log_volume = log_det(cholesky(point.precision))[..., None]
        second = (first @ point.loc.mT).flatten(-2)
        return pack(first.flatten(-2), second, log_volume, point.precision.flatten(-2))

    def sample(self, eta: Float[Tensor, "*plates P"], n: int, generator: Generator | None = None) -> LocPrecision:
        """Of the precision, as `NormalWishart`; then of the coefficients."""
        loc, chol_weight, df, chol = self._split(eta)
        precision, lower = wishart_draw(df, chol, n, generator)
        noise = normal_draw(loc.new_empty(n, *df.shape, loc.shape[-1], self.n_inputs), generator)
        shift = chol @ torch.linalg.solve_triangular(lower.mT, noise, upper=True)  # of covariance inv(precision)
        shift = torch.linalg.solve_triangular(chol_weight.mT, shift.mT, upper=True)
        return LocPrecision(loc + shift, precision)

    def supremum(self, message: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        weighted, weight, df, total = self._matrices(message)
        chol, info = torch.linalg.cholesky_ex(weight - torch.diag_embed(least(weight.diagonal(dim1=-2, dim2=-1))))
        inverse = total - weighted.mT @ cholesky_solve(weighted, chol)
        value = greatest_by_precision(df, inverse, total)
        return torch.where((message == 0).all(-1), 0.0, torch.where(info == 0, value, torch.inf))

    def tilted(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates P"]:
        dim, position = self._n_outputs(eta.shape[-1]), self.n_inputs * (self._n_outputs(eta.shape[-1]) + self.n_inputs)
        return eta + one_entry(eta, position, (self.n_inputs - dim - 1) / 2)

    def moved(self, eta: Float[Tensor, "*#plates P"], by: Float[Tensor, "*#plates K D"]) -> Float[Tensor, "*out P"]:
        first, half, log_volume, last = self.parts(eta)
        shift = -2 * half @ by
        middle = (first + shift / 2).mT @ by
        parts = (first + shift).flatten(-2), half.flatten(-2), log_volume[..., None]
        return pack(*parts, (last - (middle + middle.mT) / 2).flatten(-2))

    def expected(self, eta: Float[Tensor, "*plates P"]) -> LocPrecision:
        q = self.usual(eta)
        return LocPrecision(q.loc, q.df[..., None, None] * q.scale_matrix)

    def mode(self, eta: Float[Tensor, "*plates P"]) -> LocPrecision:
        df = 2 * self.parts(eta)[2]
        excess = self.n_inputs - self._n_outputs(eta.shape[-1]) - 1
        require(df + excess > 0, "df", df, self, f"above {-excess} for a mode; take the mean instead")
        return self.expected(self.tilted(eta))
