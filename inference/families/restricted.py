r"""Families with a known part of the point.

Given this part, the statistics are affine in those of a smaller family, $t = L t' + c$. With the base measures $\log h
= \langle b, t \rangle$ and $\log h' = \langle b', t' \rangle$, the free part has the density of that family with

$$\eta' = L^\top (\eta + b) - b', \qquad A(\eta) = A'(\eta') + \langle \eta + b, c \rangle, \qquad
E[t] = L\, E[t'] + c, \qquad KL(\eta \| \eta_0) = KL'(\eta' \| \eta_0').$$

    family                       known              free             L t' + c
    NormalGamma, NormalWishart   u                  Gamma, Wishart   L u, u'L u, log|L|, L
    NormalGamma, NormalWishart   L                  Gaussian         the same
    Gaussian                     coordinates k      Gaussian         x = E y + k, x x'

Natural parameters remain those of the whole family, so priors and messages stay unchanged. The divergence is that of
the free part from its prior given the known part; the known part adds no density.
"""

import math
from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..numerics.cholesky import cholesky, log_det
from ..numerics.delegation import delegated
from .family import VectorFamily
from .normal import Gaussian, LocPrecision, NormalGamma, NormalWishart
from .numerics import pack
from .point import Held
from .positive import Gamma
from .wishart import Wishart


class Restricted(VectorFamily[Any]):
    """`family` with a known part of its point. The rest is of the family `free`; see the module's equations."""

    family: VectorFamily[Any]
    free: VectorFamily[Any]

    def __init__(self, family: VectorFamily[Any], free: VectorFamily[Any]) -> None:
        self.family, self.free = family, free

    latent = delegated("family")
    log_base = delegated("family")
    statistics = delegated("family")
    tilted = delegated("family")

    @abstractmethod
    def expanded(self, statistics: Tensor) -> Tensor:
        """L t' + c."""

    @abstractmethod
    def reduced(self, eta: Tensor) -> Tensor:
        """L' eta."""

    @abstractmethod
    def completed(self, point: Any) -> Any:
        """The whole point, from its free part."""

    def free_eta(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates Q"]:
        """Natural parameters of the free part."""
        part = self.reduced(self.family.tilted(eta))
        return part - self.free.tilted(torch.zeros_like(part))

    def usual(self, eta: Float[Tensor, "*plates P"]) -> Any:
        """The usual parameters of the free part."""
        return self.free.usual(self.free_eta(eta))  # type: ignore[attr-defined]

    def check(self, eta: Tensor) -> None:
        self.free.check(self.free_eta(eta))

    def log_normalizer(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        free_eta = self.free_eta(eta)
        return self.free.log_normalizer(free_eta) + self.dot(
            self.family.tilted(eta), self.expanded(torch.zeros_like(free_eta))
        )

    def mean(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates P"]:
        return self.expanded(self.free.mean(self.free_eta(eta)))

    def kl(self, eta: Float[Tensor, "*#plates P"], eta0: Float[Tensor, "*#plates P"]) -> Float[Tensor, "*out"]:
        return self.free.kl(self.free_eta(eta), self.free_eta(eta0))

    def sample(self, eta: Float[Tensor, "*plates P"], n: int, generator: Generator | None = None) -> Any:
        return self.completed(self.free.sample(self.free_eta(eta), n, generator))

    def expected(self, eta: Float[Tensor, "*plates P"]) -> Any:
        return self.completed(self.free.expected(self.free_eta(eta)))

    def peak(self, eta: Float[Tensor, "*plates P"]) -> Any:
        return self.completed(self.free.peak(self.free_eta(eta)))

    def mode(self, eta: Float[Tensor, "*plates P"]) -> Any:
        return self.completed(self.free.mode(self.free_eta(eta)))


class GivenLoc(Restricted):
    """The precision at a known location, `[*plates]` or `[*plates, D]`."""

    def __init__(self, family: NormalGamma | NormalWishart, loc: Tensor) -> None:
        self._single, self._loc = isinstance(family, NormalGamma), loc
        self._vector = loc.unsqueeze(-1) if self._single else loc
        super().__init__(family, Gamma() if self._single else Wishart())

    def expanded(self, statistics: Float[Tensor, "*plates Q"]) -> Float[Tensor, "*plates P"]:
        dim = self._vector.shape[-1]
        first = (statistics[..., 1:].unflatten(-1, (dim, dim)) @ self._vector.unsqueeze(-1)).squeeze(-1)
        return pack(first, (first * self._vector).sum(-1, keepdim=True), statistics)

    def reduced(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates Q"]:
        dim = self._vector.shape[-1]
        first, second, log_volume, matrix = eta.split([dim, 1, 1, dim * dim], -1)
        outer = (first + second * self._vector).unsqueeze(-1) * self._vector.unsqueeze(-2)
        return pack(log_volume, matrix + outer.flatten(-2))

    def completed(self, point: Tensor) -> LocPrecision:
        return LocPrecision(self._loc.expand(point.shape if self._single else point.shape[:-1]), point)


class GivenPrecision(Restricted):
    """The location at a known precision, `[*plates]` or `[*plates, D, D]`."""

    def __init__(self, family: NormalGamma | NormalWishart, precision: Tensor) -> None:
        super().__init__(family, Gaussian())
        self._single, self._precision = isinstance(family, NormalGamma), precision
        self._matrix = precision[..., None, None] if self._single else precision
        self._log_volume = log_det(cholesky(self._matrix)).unsqueeze(-1)

    def expanded(self, statistics: Float[Tensor, "*plates Q"]) -> Float[Tensor, "*plates P"]:
        first, second = _split(statistics)
        first, matrix = (self._matrix @ first.unsqueeze(-1)).squeeze(-1), self._matrix.flatten(-2)
        return pack(first, (matrix * second.flatten(-2)).sum(-1, keepdim=True), self._log_volume, matrix)

    def reduced(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates Q"]:
        dim = self._matrix.shape[-1]
        first, second = eta[..., :dim], eta[..., dim : dim + 1]
        return pack((self._matrix @ first.unsqueeze(-1)).squeeze(-1), second * self._matrix.flatten(-2))

    def completed(self, point: Tensor) -> LocPrecision:
        loc = point.squeeze(-1) if self._single else point
        return LocPrecision(loc, self._precision.expand(loc.shape if self._single else (*loc.shape, loc.shape[-1])))


class GivenCoordinates(Restricted):
    """Some coordinates of a vector, given the others: those of `vector [*plates, D]` that are NaN are free, the same in
    all plates."""

    def __init__(self, family: Gaussian, vector: Float[Tensor, "*plates D"]) -> None:
        super().__init__(family, Gaussian())
        self._known = vector.nan_to_num(0.0)
        free = vector.reshape(-1, vector.shape[-1])[0].isnan()
        self._free = torch.diag(torch.ones_like(free).to(vector))[free]  # E'

    def expanded(self, statistics: Float[Tensor, "*plates Q"]) -> Float[Tensor, "*plates P"]:
        first, second = _split(statistics)
        moved = first @ self._free
        cross, known = moved.unsqueeze(-1) * self._known.unsqueeze(-2), self._known.unsqueeze(-1)
        squares = self._free.mT @ second @ self._free + cross + cross.mT + known @ known.mT
        return pack(moved + self._known, squares.flatten(-2))

    def reduced(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates Q"]:
        first, second = _split(eta)
        first = first + ((second + second.mT) @ self._known.unsqueeze(-1)).squeeze(-1)
        return pack(first @ self._free.mT, (self._free @ second @ self._free.mT).flatten(-2))

    def completed(self, point: Tensor) -> Tensor:
        return point @ self._free + self._known


def _split(table: Tensor) -> tuple[Tensor, Tensor]:
    """Statistics or natural parameters of a Gaussian as a vector and a matrix."""
    dim = math.isqrt(table.shape[-1])
    return table[..., :dim], table[..., dim:].unflatten(-1, (dim, dim))


def given(family: VectorFamily[Any], point: Any) -> VectorFamily[Any]:
    """The family of the NaN parts of a point, given the other parts.

    Raises:
        TypeError: a family whose parts cannot be known separately.
    """
    free = [bool(table.isnan().any()) for table in _parts(point)]
    if not any(free):
        return Held(family, point)
    if isinstance(family, Gaussian):
        return GivenCoordinates(family, point)
    if isinstance(family, NormalGamma | NormalWishart):
        return GivenPrecision(family, point.precision) if free[0] else GivenLoc(family, point.loc)
    raise TypeError(f"point: a {type(family).__name__} cannot have only some known entries; give all of them, or none.")


def _parts(point: Any) -> tuple[Tensor, ...]:
    return (point,) if isinstance(point, Tensor) else tuple(vars(point).values())
