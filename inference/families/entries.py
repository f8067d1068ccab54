r"""Families with some entries of their points known: of a vector, of probabilities, or of a linear regression.

Each is a `Restricted` family, so what is free has the density of a smaller family. With columns d of a regression
$x_d \sim M_{\cdot d}^\top s$,

    known                                           free
    coefficients, the same inputs in all columns    the other inputs' coefficients and the precision: the known part
                                                    of x is subtracted, and a regression on the other inputs remains
    the precision, and any coefficients             the other coefficients, a normal vector
    zeros in the precision that part the columns    a regression for each group of columns

so columns whose known inputs differ need a known precision, or zeros between them. `pieces` makes these groups.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..numerics.cholesky import cholesky, log_det
from .normal import Gaussian, LocPrecision
from .numerics import pack
from .point import LEAST
from .positive import Dirichlet
from .regression import MatrixNormalWishart
from .restricted import GivenCoordinates, Restricted
from .wishart import Wishart


class GivenProbabilities(Restricted):
    """Some probabilities of a row, given the others: those of `probs [*plates, K]` that are NaN are free."""

    def __init__(self, probs: Float[Tensor, "*plates K"]) -> None:
        super().__init__(Dirichlet(), Dirichlet())
        free = probs.isnan()
        self._free = free.flatten(0, -2)[0] if free.ndim > 1 else free
        self._known = probs.nan_to_num(0.0)
        self._rest = 1 - self._known.sum(-1, keepdim=True)
        self._log = torch.where(self._free, self._rest.log(), self._known.log().clamp_min(LEAST))

    def expanded(self, statistics: Float[Tensor, "*plates Q"]) -> Float[Tensor, "*plates P"]:
        full = statistics.new_zeros(*statistics.shape[:-1], len(self._free))
        full[..., self._free] = statistics
        return full + self._log.to(full)

    def reduced(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates Q"]:
        return eta[..., self._free]

    def completed(self, point: Tensor) -> Tensor:
        full = self._known.to(point).expand(*point.shape[:-1], len(self._free)).clone()
        full[..., self._free] = self._rest.to(point) * point
        return full


class GivenInputs(Restricted):
    """A regression, given the coefficients of some inputs: rows of `loc [*plates, K, D]` that are not NaN are known."""

    def __init__(self, family: MatrixNormalWishart, loc: Float[Tensor, "*plates K D"]) -> None:
        free = loc.isnan().any(-1)
        self._free = free.flatten(0, -2)[0] if free.ndim > 1 else free
        self._known = loc[..., ~self._free, :]
        n = int(self._free.sum())
        super().__init__(family, MatrixNormalWishart(n) if n else Wishart())
        self._regression, self._n = family, n

    def expanded(self, statistics: Float[Tensor, "*plates Q"]) -> Float[Tensor, "*plates P"]:
        first, second, log_volume, precision = MatrixNormalWishart(self._n).parts(statistics)
        known = self._known @ precision
        crossed, k = self._known @ first.mT, len(self._free)
        rows = first.new_zeros(*first.shape[:-2], k, first.shape[-1])
        rows[..., self._free, :] = first
        rows[..., ~self._free, :] = known.expand(*first.shape[:-2], *known.shape[-2:])
        table = first.new_zeros(*first.shape[:-2], k, k)
        joined = torch.cat([torch.cat([second, crossed.mT], -1), torch.cat([crossed, known @ self._known.mT], -1)], -2)
        order = torch.cat([self._free.nonzero(), (~self._free).nonzero()]).squeeze(-1)
        table[..., order.unsqueeze(-1), order] = joined
        return pack(rows.flatten(-2), table.flatten(-2), log_volume.unsqueeze(-1), precision.flatten(-2))

    def reduced(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates Q"]:
        first, second, log_volume, last = self._regression.parts(eta)
        both = second + second.mT
        of_known = both[..., :, ~self._free] @ self._known  # [*plates, K, D]
        outer = self._known.mT @ (first + of_known / 2)[..., ~self._free, :]
        first = (first + of_known)[..., self._free, :]
        second = second[..., self._free, :][..., self._free]
        last = last + (outer + outer.mT) / 2
        return pack(first.flatten(-2), second.flatten(-2), log_volume.unsqueeze(-1), last.flatten(-2))

    def completed(self, point: Any) -> LocPrecision:
        precision = point.precision if self._n else point
        loc = precision.new_zeros(*precision.shape[:-2], len(self._free), precision.shape[-1])
        loc[..., ~self._free, :] = self._known.expand(*loc.shape[:-2], *self._known.shape[-2:])
        if self._n:
            loc[..., self._free, :] = point.loc
        return LocPrecision(loc, precision)


class GivenNoise(Restricted):
    """Coefficients of a regression, given the precision; those of `loc [*plates, K, D]` that are not NaN are known."""

    def __init__(self, family: MatrixNormalWishart, point: LocPrecision) -> None:
        super().__init__(family, Gaussian())
        self._regression, self._precision = family, point.precision
        self._entries = GivenCoordinates(Gaussian(), point.loc.flatten(-2))
        self._log_volume = log_det(cholesky(point.precision)).unsqueeze(-1)

    def expanded(self, statistics: Float[Tensor, "*plates Q"]) -> Float[Tensor, "*plates P"]:
        (k, d), moments = self._shape, self._entries.expanded(statistics)
        loc, square = moments[..., : k * d], moments[..., k * d :].unflatten(-1, (k, d, k, d))
        first = loc.unflatten(-1, (k, d)) @ self._precision
        second = torch.einsum("...iajb,...ab->...ij", square, self._precision)
        return pack(first.flatten(-2), second.flatten(-2), self._log_volume, self._precision.flatten(-2))

    def reduced(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates Q"]:
        first, second, _, _ = self._regression.parts(eta)
        linear, square = first @ self._precision, torch.einsum("...ij,...ab->...iajb", second, self._precision)
        return self._entries.reduced(pack(linear.flatten(-2), square.flatten(-4, -3).flatten(-2).flatten(-2)))

    def completed(self, point: Tensor) -> LocPrecision:
        loc = self._entries.completed(point).unflatten(-1, self._shape)
        return LocPrecision(loc, self._precision.expand(*loc.shape[:-2], *self._precision.shape[-2:]))

    @property
    def _shape(self) -> tuple[int, int]:
        return self._regression.n_inputs, self._precision.shape[-1]
