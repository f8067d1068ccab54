r"""Factors of covariances, of which only their products matter, and derivatives that hold where they are singular.

A covariance is kept as any $Z$ with $P = Z Z^\top$, so that it is never indefinite. What is computed from $Z$ is a
function of $P$, whose gradient $G$ reaches $Z$ as $2 G Z$. With $\Theta$ of orthonormal columns that span the
rows of $Z$, the gradient of $Z$ is that of $Z \Theta$ times $\Theta^\top$, of whatever rank it is; the derivative of
the decomposition that gave $\Theta$ would divide by the rank that is missing.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...numerics.checks import broadcast_shapes

ROUNDINGS = 16.0  # times the number of rows: eigenvalues of a correlation that are 0 to rounding


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and vectors, by LAPACK where there is more than one: a GPU's library looks whether it got there."""
    return (matrix[..., 0], torch.ones_like(matrix)) if matrix.shape[-1] == 1 else torch.linalg.eigh(matrix)


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, wide: Tensor, rotation: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(rotation)
        return wide @ rotation

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (rotation,) = ctx.saved_tensors
        return grad @ rotation.mT, None


class _Factor(torch.autograd.Function):
    @staticmethod
    def forward(covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        scale = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
        scale = torch.where(scale > 0, scale, 1.0).unsqueeze(-1)
        values, vectors = _eigen(covariance / scale / scale.mT)
        least = ROUNDINGS * covariance.shape[-1] * torch.finfo(covariance.dtype).eps
        root = torch.where(values > least, values, 0.0).sqrt()
        inverse = torch.where(root > 0, 1 / root, 0.0)
        factor = scale * vectors * root.unsqueeze(-2)
        return factor, (vectors * inverse.unsqueeze(-2) / scale).mT, values[..., 0] < -least

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
        factor, inverse, negative = output
        ctx.save_for_backward(factor, inverse)
        ctx.mark_non_differentiable(inverse, negative)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], covariance: Tensor) -> Any:
        return _Factor.apply(covariance.movedim(in_dims[0], 0)), (0, 0, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        factor, inverse = ctx.saved_tensors
        half = grad @ inverse / 2  # G on the range of the factor
        return half + half.mT - (factor @ inverse).mT @ half


def turn(wide: Tensor, rotation: Tensor) -> Tensor:
    """wide @ rotation, where the orthonormal columns of the rotation span the rows of `wide`."""
    return _Turn.apply(wide, rotation)  # pyright: ignore[reportReturnType]


def rotation_of(wide: Tensor) -> Tensor:
    """Orthonormal columns [*b, n, m] that span the rows of `wide` [*b, m, n], n >= m, and make it triangular."""
    return torch.linalg.qr(wide.detach().mT)[0]


def compress(*blocks: Tensor) -> Tensor:
    """The square factor [*b, L, L] with the product of the blocks [*b, L, n] side by side, L columns or more."""
    wide = beside(*blocks)
    return turn(wide, rotation_of(wide))


def rest_of(*rotations: Tensor, rows: int) -> Tensor:
    """The first rows of the projection on the complement of these orthonormal columns."""
    columns = beside(*rotations)
    unit = torch.eye(columns.shape[-2], dtype=columns.dtype, device=columns.device)[:rows]
    return unit - columns[..., :rows, :] @ columns.mT


def beside(*blocks: Tensor) -> Tensor:
    """Matrices side by side, their batch axes broadcast."""
    if len({block.shape[:-2] for block in blocks}) > 1:
        shape = broadcast_shapes(*(block.shape[:-2] for block in blocks))
        blocks = tuple(block.expand(*shape, *block.shape[-2:]) for block in blocks)
    return torch.cat(blocks, -1)


def factor_of(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """A factor of each covariance [*b, L, L], and whether [*b] it has an eigenvalue that is negative beyond rounding.

    The gradient of a singular covariance is that of moves which keep its rank: variances that are there, directions
    that are there. It is 0 for noise in a direction that has none.
    """
    factor, _, negative = _Factor.apply(covariance)  # pyright: ignore[reportGeneralTypeIssues]
    return factor, negative


def covariance_of(factor: Tensor) -> Tensor:
    return factor @ factor.mT
