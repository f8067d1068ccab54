"""The contract of an exponential family, and the contract of one whose parameters are a single tensor."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..numerics.op import Variants

Stats: TypeAlias = Any
"""Statistics, natural parameters or messages: a tensor, or a named tuple of tensors, depending on the family."""

Eta = TypeVar("Eta", bound=Tensor | tuple[Tensor, ...])
Point = TypeVar("Point")


class Family(ABC, Generic[Eta]):
    r"""Densities $p(x \mid \eta) = h(x) \exp(\langle \eta, t(x) \rangle - A(\eta))$, batched over plates.

    `Eta`, the type of natural parameters, statistics and messages, is a tensor or a named tuple of tensors.
    """

    latent: ClassVar[bool] = False
    """Whether a variable of this family may have no prior; factors then give its density, on the measure h."""

    @property
    def iterates(self) -> bool:
        """Whether `evaluate` depends on its start."""
        return False

    @abstractmethod
    def log_normalizer(self, eta: Eta) -> Tensor:
        r"""$A(\eta)$, one number for each plate."""

    @abstractmethod
    def mean(self, eta: Eta) -> Eta:
        r"""Expected statistics $\nabla A(\eta)$, in the shape of eta."""

    @abstractmethod
    def dot(self, eta: Eta, statistics: Eta) -> Tensor:
        r"""$\langle \eta, t \rangle$, one number for each plate."""

    @abstractmethod
    def log_base(self, statistics: Eta) -> Tensor:
        r"""$\log h$ as a function of the (expected) statistics, in which it is linear."""

    @abstractmethod
    def check(self, eta: Eta) -> None:
        """Raise ValueError, naming the parameter and the plate, if eta is not the parameter of a proper density."""

    def evaluate(self, eta: Eta, start: Eta | None = None) -> tuple[Tensor, Eta]:
        r"""$A(\eta)$ and $\nabla A(\eta)$ together; some families compute both in one pass.

        `start` are statistics at which an iterative family starts its search.
        """
        return self.log_normalizer(eta), self.mean(eta)

    def kl(self, eta: Eta, eta0: Eta) -> Tensor:
        r"""$KL(\eta \| \eta_0) \ge 0$, one number for each plate; plates broadcast."""
        mean = self.mean(eta)
        return self.dot(eta, mean) - self.dot(eta0, mean) - (self.log_normalizer(eta) - self.log_normalizer(eta0))

    def relative(self, eta: Eta, eta0: Eta) -> tuple[Tensor, Eta]:
        r"""$KL(\eta \| \eta_0)$ and $\nabla A(\eta)$ together; some families compute both in one pass."""
        return self.kl(eta, eta0), self.mean(eta)

    def entropy(self, eta: Eta) -> Float[Tensor, "*plates"]:
        """Entropy in the usual coordinates: differential, or of the probabilities of a discrete variable."""
        log_normalizer, mean = self.evaluate(eta)
        return log_normalizer - self.dot(eta, mean) - self.log_base(mean)


class VectorFamily(Family[Tensor], Generic[Point]):
    r"""A family whose natural parameters are one tensor `[*plates, P]`.

    `usual(eta)` is a record of the usual parameters, and `natural` takes these by name. A point is a tensor with the
    plates as leading axes, or a `LocPrecision` of two such tensors.

    If $\log h = \langle c, t \rangle$ is linear in t, the mode in the usual coordinates is the maximum of $\langle \eta
    + c, t \rangle$. In the continuous families here, the maximum of $\langle \eta, t \rangle$ is also the expected
    point, `expected` (Diaconis & Ylvisaker 1979). For a sum of messages alone it is the maximum of their likelihood.
    """

    kernel: ClassVar[str | None] = None
    """The name by which kernels of other rooms know the family."""

    natural: Callable[..., Tensor]
    """From the usual parameters, by name, to natural ones `[*plates, P]`."""

    usual: Callable[..., Any]
    """The record of the usual parameters, from natural ones."""

    @abstractmethod
    def statistics(self, point: Point) -> Float[Tensor, "*plates P"]:
        """t(x) at a point."""

    @abstractmethod
    def sample(self, eta: Float[Tensor, "*plates P"], n: int, generator: Generator | None = None) -> Point:
        """n draws, `[n, *plates, ...]`; differentiable if the variable is continuous."""

    @abstractmethod
    def expected(self, eta: Float[Tensor, "*plates P"]) -> Point:
        """The expected point; NaN or infinite if there is none."""

    @abstractmethod
    def mode(self, eta: Float[Tensor, "*plates P"]) -> Point:
        """The point of greatest density in the usual coordinates, jointly. Raises ValueError if there is none."""

    def tilted(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates P"]:
        """eta + c: the mode is the maximum of its product with t."""
        return eta

    def peak(self, eta: Float[Tensor, "*plates P"]) -> Point:
        """The mode; NaN or infinite if there is none."""
        return self.expected(self.tilted(eta))

    def supremum(self, message: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        """The greatest product of a sum of messages with t, which is a log-likelihood; NaN or infinite if there is
        none, or if rounding hides it. Infinite for families that do not know it."""
        return torch.full_like(message[..., 0], torch.inf)

    def moved(self, eta: Float[Tensor, "*plates P"], by: Tensor) -> Float[Tensor, "*plates P"]:
        """Natural parameters, or a message, with locations moved by `by`; unchanged for families without locations."""
        return eta

    def relative(self, eta: Float[Tensor, "*plates P"], eta0: Float[Tensor, "*#plates P"]) -> tuple[Tensor, Tensor]:
        return relative(eta, eta0, self)

    def log_prob(self, point: Point, eta: Float[Tensor, "*#plates P"]) -> Float[Tensor, "*out"]:
        """Log density of a point, in the usual coordinates."""
        statistics = self.statistics(point)
        return self.dot(eta, statistics) + self.log_base(statistics) - self.log_normalizer(eta)

    def dot(self, eta: Float[Tensor, "*#plates P"], statistics: Float[Tensor, "*#plates P"]) -> Float[Tensor, "*out"]:
        return (eta * statistics).sum(-1)

    def log_base(self, statistics: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        return statistics.new_zeros(statistics.shape[:-1])


def _apart(eta: Tensor, eta0: Tensor, family: VectorFamily[Any]) -> tuple[Tensor, Tensor]:
    return family.kl(eta, eta0), family.mean(eta)


relative: Variants = Variants(_apart)
"""`VectorFamily.relative` of a family, which is the last argument."""


def tree_map(function: Callable[..., Tensor], *stats: Stats) -> Stats:
    """Apply a function to each tensor of one or several statistics of the same structure."""
    if isinstance(stats[0], Tensor):
        return function(*stats)
    return type(stats[0])(*(function(*parts) for parts in zip(*stats, strict=True)))


def tree_parts(stats: Stats) -> tuple[Tensor, ...]:
    """The tensors of statistics."""
    return (stats,) if isinstance(stats, Tensor) else tuple(stats)
