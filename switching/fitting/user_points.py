r"""Points under priors of the user that are not conjugate.

The prior of a block is that of its family times a ratio r: the density of the user's priors over that of the default
ones, in whose place they stand. The M-step maximises

$$\langle \eta + c, t(\theta) \rangle + \log r(\theta)$$

by Newton's method in free coordinates, from the mode without r. Here $\eta$ has the natural parameters of the default
prior plus all messages, and $\langle c, t \rangle$ is the log of the family's base measure.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions.transforms import SoftmaxTransform, Transform, identity_transform

from ...inference.families import Dirichlet, LocPrecision, MatrixNormalWishart, Point, VectorFamily
from ..ascent import newton
from ..definite import DefiniteTransform
from ..newton import uphill
from ..user_priors import summed

MAX_STEPS = 50


class UnderPrior(Point):
    """A point under the prior of its family times a ratio of densities.

    Arguments:
        family: of the block, of probabilities, vectors or regressions; or one with known entries.
        ratio: log r from statistics `[*r, *plates, P]`: a number for each index of `*r` and of the first plates, up to
            those that the user's distributions join.
        known: a point with NaN at free entries; None: all are free.
        max_steps: of Newton's method; fewer than needed lead only a part of the way.
    """

    ratio: Callable[[Tensor], Float[Tensor, "*groups"]]
    known: list[Tensor] | None

    def __init__(
        self,
        family: VectorFamily[Any],
        ratio: Callable[[Tensor], Float[Tensor, "*groups"]],
        known: Any = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        super().__init__(family)
        self.max_steps = max_steps
        self.ratio, self.known = ratio, None if known is None else _parts(known)
        inner = getattr(family, "family", family)
        self._to: list[Transform] = [SoftmaxTransform()] if isinstance(inner, Dirichlet) else [identity_transform]
        self._to += [DefiniteTransform()] if isinstance(inner, MatrixNormalWishart) else []

    def kl_of(self, statistics: Float[Tensor, "*plates P"], eta0: Float[Tensor, "*#plates P"]) -> Tensor:
        ratio = self.ratio(statistics)
        return summed(super().kl_of(statistics, eta0), ratio.ndim) - ratio

    def expected(self, eta: Float[Tensor, "*plates P"]) -> Any:
        inside = isinstance(self._to[0], SoftmaxTransform)  # a mode may be at the edge, from where no slope leads
        point = self.family.expected(eta) if inside else super().expected(eta)
        wide, weights = [table.double() for table in _parts(point)], self.family.tilted(eta).double()
        free = [cast(Tensor, to.inv(table)) for to, table in zip(self._to, wide, strict=True)]
        groups = self.ratio(self.family.statistics(_point(wide))).shape
        shapes = [table.shape[len(groups) :] for table in free]

        def point(flat: Tensor) -> list[Tensor]:
            parts = flat.split([shape.numel() for shape in shapes], -1)
            lead = flat.shape[:-2]
            made = [table.reshape(*lead, *groups, *shape) for table, shape in zip(parts, shapes, strict=True)]
            parts = [cast(Tensor, to(table)) for to, table in zip(self._to, made, strict=True)]
            if self.known is None:
                return parts
            pairs = zip(parts, self.known, strict=True)
            return [torch.where(known.isnan(), table, known) for table, known in pairs]

        def height(flat: Tensor) -> Tensor:
            statistics = self.family.statistics(_point(point(flat)))
            ratio = self.ratio(statistics)
            return (summed((weights * statistics).sum(-1), ratio.ndim) + ratio).reshape(flat.shape[:-1])

        start = torch.cat([table.reshape(groups.numel(), -1) for table in free], -1)
        with torch.no_grad():
            best = newton(height, lambda flat: uphill(height, flat), start, self.max_steps)
        return _point([table.to(eta) for table in point(best)])


def _parts(point: Any) -> list[Tensor]:
    return [point] if isinstance(point, Tensor) else list(vars(point).values())


def _point(parts: list[Tensor]) -> Any:
    return parts[0] if len(parts) == 1 else LocPrecision(*parts)
