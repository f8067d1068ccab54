"""A point instead of a density: expectation-maximisation as message passing, and known parameters."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..numerics.delegation import delegated
from .family import VectorFamily

LEAST = -69.0  # log of about 1e-30, used for a probability of 0, so that no message is infinite


class Point(VectorFamily[Any]):
    r"""All mass at the mode of another family's density with natural parameters eta.

    An update moves to the point that maximises the expected log density, which is the M-step of
    expectation-maximisation. The block's part of the bound is the log density of the prior there.

    Arguments:
        family: of the prior, with a mode.
        flat: ignore the prior, also in the block's part of the bound: maximum likelihood. Its natural parameters must
            then be those of `nothing`.
    """

    statistics = delegated("family")

    def __init__(self, family: VectorFamily[Any], flat: bool = False) -> None:
        self.family = family
        self.flat = flat

    def nothing(self, like: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates P"]:
        """Natural parameters without information: the mode of these plus a message is the maximum of the message."""
        return -self.family.tilted(torch.zeros_like(like))

    def check(self, eta: Tensor) -> None:
        if not self.flat:
            self.family.check(eta)

    def log_normalizer(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        return torch.zeros_like(eta[..., 0])

    def mean(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates P"]:
        return self.family.statistics(self.expected(eta)).nan_to_num(nan=torch.nan, neginf=LEAST)

    def kl(self, eta: Float[Tensor, "*#plates P"], eta0: Float[Tensor, "*#plates P"]) -> Float[Tensor, "*out"]:
        """Minus the log density of the point under the family's member eta0; 0 if `flat`."""
        return self.kl_of(self.mean(eta), eta0)

    def relative(self, eta: Float[Tensor, "*plates P"], eta0: Float[Tensor, "*#plates P"]) -> tuple[Tensor, Tensor]:
        mean = self.mean(eta)
        return self.kl_of(mean, eta0), mean

    def kl_of(self, statistics: Float[Tensor, "*#plates P"], eta0: Float[Tensor, "*#plates P"]) -> Tensor:
        """`kl`, from the statistics of the point."""
        if self.flat:
            return torch.zeros_like(statistics[..., 0])
        return self.family.log_normalizer(eta0) - (self.family.tilted(eta0) * statistics).sum(-1)

    def sample(self, eta: Float[Tensor, "*plates P"], n: int, generator: Generator | None = None) -> Any:
        """The point itself, n times."""
        return _repeated(self.expected(eta), n)

    def expected(self, eta: Float[Tensor, "*plates P"]) -> Any:
        """The mode; the expected point if there is no mode, because nothing is known."""
        mode, mean = self.family.peak(eta), self.family.expected(eta)
        if isinstance(mode, Tensor):
            return torch.where(mode.isnan(), mean, mode)
        pairs = zip(vars(mode).values(), vars(mean).values(), strict=True)
        return type(mode)(*(torch.where(a.isnan(), b, a) for a, b in pairs))

    def mode(self, eta: Float[Tensor, "*plates P"]) -> Any:
        return self.expected(eta)


class Held(VectorFamily[Any]):
    """All mass at one known point `[*plates, ...]`, for any natural parameters; it adds nothing to the bound.

    Arguments:
        family: the family of the prior, to whose points it belongs.
    """

    family: VectorFamily[Any]
    point: Any

    def __init__(self, family: VectorFamily[Any], point: Any) -> None:
        self.family, self.point = family, point
        self._known = family.statistics(point).nan_to_num(nan=torch.nan, neginf=LEAST)

    latent = delegated("family")
    statistics = delegated("family")

    def check(self, eta: Tensor) -> None:
        """Any natural parameters are valid."""

    def log_normalizer(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        return self.dot(eta, self.mean(eta))

    def mean(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates P"]:
        return self._known.expand_as(eta)

    def kl(self, eta: Float[Tensor, "*#plates P"], eta0: Float[Tensor, "*#plates P"]) -> Float[Tensor, "*out"]:
        return torch.zeros_like(eta[..., 0])

    def sample(self, eta: Float[Tensor, "*plates P"], n: int, generator: Generator | None = None) -> Any:
        """The point itself, n times."""
        return _repeated(self.point, n)

    def expected(self, eta: Float[Tensor, "*plates P"]) -> Any:
        return self.point

    def mode(self, eta: Float[Tensor, "*plates P"]) -> Any:
        return self.point


def _repeated(point: Any, n: int) -> Any:
    if isinstance(point, Tensor):
        return point.expand(n, *point.shape)
    return type(point)(*(table.expand(n, *table.shape) for table in vars(point).values()))
