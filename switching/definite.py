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

from ..inference.numerics.checks import broadcast_shapes
from ..inference.numerics.cholesky import cholesky, cholesky_inverse, log_det


class _Definite(Constraint):
    """Symmetric positive definite matrices."""

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        return constraints.positive_definite.check(value)


definite: _Definite = _Definite()


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


class Congruence(Transform):
    """From a matrix X to D X D, with the numbers of a diagonal D `[*#b, F]`."""

    domain = codomain = definite
    bijective = True

    def __init__(self, sizes: Tensor) -> None:
        super().__init__()
        self.sizes = sizes

    def _call(self, x: Tensor) -> Tensor:
        return x * self.sizes.unsqueeze(-1) * self.sizes.unsqueeze(-2)

    def _inverse(self, y: Tensor) -> Tensor:
        return y / self.sizes.unsqueeze(-1) / self.sizes.unsqueeze(-2)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        volume = (x.shape[-1] + 1) * self.sizes.abs().log().sum(-1)
        return volume.expand(x.shape[:-2])


class Inversion(Transform):
    """From a matrix to its inverse, such as from a covariance to a precision."""

    domain = codomain = definite
    bijective = True

    def _call(self, x: Tensor) -> Tensor:
        return cholesky_inverse(cholesky(x))

    def _inverse(self, y: Tensor) -> Tensor:
        return self._call(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return (x.shape[-1] + 1) * log_det(cholesky(y))


def _side(size: int) -> int:
    return (math.isqrt(8 * size + 1) - 1) // 2


class ScaledCorrelation(dist.TorchDistribution):
    r"""Covariances $\Sigma = D R D$ with independent standard deviations D and correlations R.

    $$p(\Sigma) = p(R) \prod_i p(d_i)\, d_i^{-F} / 2$$

    Arguments:
        scale: of the standard deviations, of batch shape `[*#b, F]`.
        correlation: of the correlations, of batch shape `[*#b]` and event shape `[F, F]`.
    """

    scale: Any
    correlation: Any

    support = definite  # pyright: ignore[reportAssignmentType]
    arg_constraints = {}  # noqa: RUF012 # pyright: ignore[reportAssignmentType]

    def __init__(self, scale: Any, correlation: Any) -> None:
        batch_shape = broadcast_shapes(scale.batch_shape[:-1], correlation.batch_shape)
        self.scale, self.correlation = scale.expand([*batch_shape, scale.batch_shape[-1]]), correlation
        super().__init__(batch_shape, correlation.event_shape, validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "ScaledCorrelation":
        return ScaledCorrelation(self.scale.expand([*batch_shape, self.event_shape[-1]]), self.correlation)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        scale = self.scale.sample(sample_shape)
        missing = scale.shape[len(sample_shape) : -1].numel() // max(1, self.correlation.batch_shape.numel())
        draws = self.correlation.sample([*sample_shape, missing])
        return draws.reshape(*scale.shape, scale.shape[-1]) * scale.unsqueeze(-1) * scale.unsqueeze(-2)

    def log_prob(self, value: Tensor) -> Tensor:
        scale = value.diagonal(dim1=-2, dim2=-1).sqrt()
        correlation = value / scale.unsqueeze(-1) / scale.unsqueeze(-2)
        each = self.scale.log_prob(scale) - scale.shape[-1] * scale.log() - math.log(2)
        return each.sum(-1) + self.correlation.log_prob(correlation)


class Wishart(dist.Wishart):
    """Pyro's Wishart distribution, with a support that has free coordinates."""

    support = definite  # pyright: ignore[reportAssignmentType]


@biject_to.register(definite)
def _(constraint: Constraint) -> DefiniteTransform:
    return DefiniteTransform()


def free_coordinates(support: Constraint) -> Transform:
    """The bijection from free coordinates onto a support."""
    return DefiniteTransform() if isinstance(support, type(constraints.positive_definite)) else biject_to(support)
