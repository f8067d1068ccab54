"""The conjugate family of several locations with one precision."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ..numerics.cholesky import cholesky, cholesky_inverse
from .family import VectorFamily
from .normal import LocPrecision
from .numerics import pack
from .pieces import given_entries
from .regression import MatrixNormalWishart


@dataclass(frozen=True)
class SharedPrecisionParameters:
    """`precision ~ Wishart(df, scale_matrix)`; given it, location k is `N(loc_k, inverse(kappa_k precision))`,
    independent of the others."""

    loc: Float[Tensor, "*plates K D"]
    kappa: Float[Tensor, "*plates K"]
    df: Float[Tensor, "*plates"]
    scale_matrix: Float[Tensor, "*plates D D"]


class SharedPrecision(VectorFamily[LocPrecision]):
    r"""Locations $\mu_1 \dots \mu_K$ and the precision $\Lambda$ of $x \mid s \sim N(\mu_s, \Lambda^{-1})$.

    $$t = (\Lambda \mu_k,\; \mu_k^\top \Lambda \mu_k,\; \log|\Lambda|,\; \Lambda), \qquad
    \eta = (\kappa_k m_k,\; -\kappa_k/2,\; \nu/2,\; -(W^{-1} + \sum_k \kappa_k m_k m_k^\top)/2), \qquad
    h = |\Lambda|^{(K-D-1)/2}$$

    $$A = \log \Gamma_D(\nu/2) + \tfrac{\nu}{2} \log |2 W| + \tfrac D2 \sum_k \log(2\pi/\kappa_k)$$

    These are a regression on the K indicators of the states, whose rows are independent given $\Lambda$. So it is a
    `MatrixNormalWishart` with a diagonal weight: mean, divergence, mode and draws are those of that family. With K = 1
    it is a `NormalWishart`, and with D = 1 as well a `NormalGamma`. P = KD + K + 1 + D^2, from which K follows.

    Arguments:
        n_outputs: D.
        known: a point whose entries that are not NaN are known, None for no known entry. If it has fewer locations than
            K, its first one stands for those that are missing.
    """

    n_outputs: int
    known: LocPrecision | None

    def __init__(self, n_outputs: int = 1, known: LocPrecision | None = None) -> None:
        self.n_outputs, self.known = n_outputs, known

    def natural(
        self,
        loc: Float[Tensor, "*#plates K D"],
        kappa: Float[Tensor, "*#plates K"],
        df: Float[Tensor, "*#plates"],
        scale_matrix: Float[Tensor, "*#plates D D"],
    ) -> Float[Tensor, "*out P"]:
        return self.of_inverse(loc, kappa, df, cholesky_inverse(cholesky(scale_matrix)))

    @staticmethod
    def of_inverse(
        loc: Float[Tensor, "*#plates K D"],
        kappa: Float[Tensor, "*#plates K"],
        df: Float[Tensor, "*#plates"],
        inverse_scale: Float[Tensor, "*#plates D D"],
    ) -> Float[Tensor, "*out P"]:
        """`natural`, from the inverse of the scale matrix."""
        weighted = kappa[..., None] * loc
        second_moment = inverse_scale + weighted.mT @ loc
        return pack(weighted.flatten(-2), -kappa / 2, df[..., None] / 2, -second_moment.flatten(-2) / 2)

    def usual(self, eta: Float[Tensor, "*plates P"]) -> SharedPrecisionParameters:
        q = MatrixNormalWishart(self.n_locations(eta)).usual(self._regression(eta))
        return SharedPrecisionParameters(q.loc, q.weight.diagonal(dim1=-2, dim2=-1), q.df, q.scale_matrix)

    # ---- layout ------------------------------------------------------------------------------------------------------

    def n_locations(self, table: Tensor) -> int:
        """K, of statistics or natural parameters."""
        dim = self.n_outputs
        return (table.shape[-1] - 1 - dim * dim) // (dim + 1)

    def parts(self, table: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Statistics or natural parameters as [K, D], [K], [1] and [D^2]."""
        dim, k = self.n_outputs, self.n_locations(table)
        first, second, log_volume, last = table.split([k * dim, k, 1, dim * dim], -1)
        return first.unflatten(-1, (k, dim)), second, log_volume, last

    def each(self, statistics: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates K Q"]:
        """The statistics of every location and the precision, as those of a `NormalWishart`."""
        first, second, log_volume, last = self.parts(statistics)
        return pack(first, second.unsqueeze(-1), log_volume.unsqueeze(-2), last.unsqueeze(-2))

    def joined(self, messages: Float[Tensor, "*plates K Q"]) -> Float[Tensor, "*plates P"]:
        """The message of messages to every location and the precision: the transpose of `each`."""
        dim = self.n_outputs
        first, second, rest = messages.split([dim, 1, 1 + dim * dim], -1)
        return pack(first.flatten(-2), second.squeeze(-1), rest.sum(-2))

    def within(self, message: Float[Tensor, "*plates P"]) -> tuple[Tensor, Tensor]:
        """The mean of every location `[*plates, K, D]`, NaN without weight, and the message `[*plates, Q]` of the
        residuals from these means to a `NormalWishart` at 0."""
        first, second, log_volume, last = self.parts(message)
        loc = first / (-2 * second).unsqueeze(-1)
        explained = first.mT @ torch.where(second.unsqueeze(-1) < 0, loc, 0.0) / 2
        return loc, pack(torch.zeros_like(first[..., 0, :]), -log_volume, log_volume, last + explained.flatten(-2))

    def reordered(self, eta: Float[Tensor, "*plates P"], order: Int[Tensor, "K"]) -> Float[Tensor, "*plates P"]:
        """The same density with location `order[k]` as location k."""
        first, second, log_volume, last = self.parts(eta)
        return pack(first[..., order, :].flatten(-2), second[..., order], log_volume, last)

    def _regression(self, table: Tensor) -> Tensor:
        """Natural parameters of the regression on indicators."""
        first, second, log_volume, last = self.parts(table)
        return pack(first.flatten(-2), torch.diag_embed(second).flatten(-2), log_volume, last)

    def _of_regression(self, statistics: Tensor, k: int) -> Tensor:
        """From the statistics of the regression."""
        first, second, log_volume, last = MatrixNormalWishart(k).parts(statistics)
        diagonal = second.diagonal(dim1=-2, dim2=-1)
        return pack(first.flatten(-2), diagonal, log_volume.unsqueeze(-1), last.flatten(-2))

    def _on(self, eta: Tensor) -> tuple[VectorFamily[Any], Tensor]:
        """The family of the regression, given known entries, and its natural parameters."""
        k = self.n_locations(eta)
        return self._family(k), self._regression(eta)

    def _family(self, k: int) -> VectorFamily[Any]:
        family, known = MatrixNormalWishart(k), self.known
        if known is None:
            return family
        missing = known.loc[..., :1, :].expand(*known.loc.shape[:-2], k - known.loc.shape[-2], self.n_outputs)
        return given_entries(family, LocPrecision(torch.cat([missing, known.loc], -2), known.precision))

    # ---- the contract ------------------------------------------------------------------------------------------------

    def check(self, eta: Tensor) -> None:
        dim, k = self.n_outputs, self.n_locations(eta)
        if k < 1 or k * (dim + 1) + 1 + dim * dim != eta.shape[-1]:
            raise ValueError(
                f"SharedPrecision: got {eta.shape[-1]} natural parameters, expected KD + K + 1 + D^2; use `natural`."
            )
        family, inner = self._on(eta)
        family.check(inner)

    def log_normalizer(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        family, inner = self._on(eta)
        return family.log_normalizer(inner)

    def mean(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates P"]:
        family, inner = self._on(eta)
        return self._of_regression(family.mean(inner), self.n_locations(eta))

    def log_base(self, statistics: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        return (self.n_locations(statistics) - self.n_outputs - 1) / 2 * self.parts(statistics)[2].squeeze(-1)

    def kl(self, eta: Float[Tensor, "*#plates P"], eta0: Float[Tensor, "*#plates P"]) -> Float[Tensor, "*out"]:
        family, inner = self._on(eta)
        return family.kl(inner, self._regression(eta0))

    def statistics(self, point: LocPrecision) -> Float[Tensor, "*plates P"]:
        k = point.loc.shape[-2]
        return self._of_regression(MatrixNormalWishart(k).statistics(point), k)

    def sample(self, eta: Float[Tensor, "*plates P"], n: int, generator: Generator | None = None) -> LocPrecision:
        family, inner = self._on(eta)
        return family.sample(inner, n, generator)

    def tilted(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates P"]:
        k, base = self.n_locations(eta), eta.new_zeros(eta.shape[-1])
        base[k * (self.n_outputs + 1)] = (k - self.n_outputs - 1) / 2
        return eta + base

    def moved(self, eta: Float[Tensor, "*plates P"], by: Float[Tensor, "*#plates K D"]) -> Float[Tensor, "*plates P"]:
        first, half, log_volume, last = self.parts(eta)
        shift = -2 * half.unsqueeze(-1) * by
        middle = (first + shift / 2).mT @ by
        return pack((first + shift).flatten(-2), half, log_volume, last - ((middle + middle.mT) / 2).flatten(-2))

    def expected(self, eta: Float[Tensor, "*plates P"]) -> LocPrecision:
        family, inner = self._on(eta)
        return family.expected(inner)

    def peak(self, eta: Float[Tensor, "*plates P"]) -> LocPrecision:
        family, inner = self._on(eta)
        return family.peak(inner)

    def mode(self, eta: Float[Tensor, "*plates P"]) -> LocPrecision:
        family, inner = self._on(eta)
        return family.mode(inner)
