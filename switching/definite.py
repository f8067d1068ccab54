r"""Positive definite matrices in free coordinates. torch's own transform of them is not one to one.

$\Lambda = L L^\top$ with $L_{ij} = y_{ij}$ below the diagonal and $L_{ii} = e^{y_{ii}}$; the coordinates y are the rows
of the lower triangle one after another, and

$$\log \left| \frac{\partial \Lambda}{\partial y} \right| = F \log 2 + \sum_{i=1}^F (F - i + 2)\, y_{ii}.$$
"""

import math
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Transform, biject_to, constraints
from torch.distributions.constraints import Constraint

from ..inference.numerics.cholesky import cholesky


class _Definite(Constraint):
    """Symmetric positive definite matrices."""

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        return constraints.positive_definite.check(value)


definite = _Definite()


class DefiniteTransform(Transform):
    """From F (F + 1) / 2 free coordinates to a positive definite matrix `[F, F]`."""

    domain = constraints.real_vector
    codomain = definite
    bijective = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DefiniteTransform)

    def _call(self, x: Tensor) -> Tensor:
        n = _side(x.shape[-1])
        rows, columns = torch.tril_indices(n, n, device=x.device)
        where = torch.zeros(n, n, dtype=torch.long, device=x.device)
        where[rows, columns] = torch.arange(x.shape[-1], device=x.device)
        raw = x[..., where]
        diagonal = raw.diagonal(dim1=-2, dim2=-1)
        chol = raw.tril(-1) + torch.diag_embed(diagonal.exp())
        return chol @ chol.mT

    def _inverse(self, y: Tensor) -> Tensor:
        chol = cholesky(y)
        n = y.shape[-1]
        raw = chol.tril(-1) + torch.diag_embed(chol.diagonal(dim1=-2, dim2=-1).log())
        rows, columns = torch.tril_indices(n, n, device=y.device)
        return raw[..., rows, columns]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        n = y.shape[-1]
        at = torch.arange(n, device=x.device)
        weight = (n + 1 - at).to(x)
        return n * math.log(2) + (x[..., at * (at + 3) // 2] * weight).sum(-1)

    def forward_shape(self, shape: Any) -> torch.Size:
        n = _side(shape[-1])
        return torch.Size([*shape[:-1], n, n])

    def inverse_shape(self, shape: Any) -> torch.Size:
        n = shape[-1]
        return torch.Size([*shape[:-2], n * (n + 1) // 2])


def _side(size: int) -> int:
    return (math.isqrt(8 * size + 1) - 1) // 2


class Wishart(dist.Wishart):
    """Pyro's Wishart distribution, with a support that has free coordinates."""

    support = definite  # pyright: ignore[reportAssignmentType]


@biject_to.register(definite)
def _(constraint: Constraint) -> DefiniteTransform:
    return DefiniteTransform()


def free_coordinates(support: Constraint) -> Transform:
    """The bijection from free coordinates onto a support."""
    return DefiniteTransform() if isinstance(support, type(constraints.positive_definite)) else biject_to(support)
