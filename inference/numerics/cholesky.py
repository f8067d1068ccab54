"""Cholesky factors of small matrices, which rounding may have made indefinite.

The covariance of collinear features, or of a state with few steps, is known only to rounding, and so are its least
eigenvalues. If a factor does not exist, the diagonal is increased by at most `MOST * D * eps` of itself, 3e-14 in
float64 and 2e-5 in float32 for two features.

torch clears the upper triangles of a batch on several threads, even for small batches. This is a microsecond's work,
but the threads wait for each other, and on a busy machine for milliseconds. numpy uses one thread.

Forward derivatives of torch's `cholesky_inverse` and `cholesky_solve` are wrong (pytorch issues 196682 and 196694), so
the functions here use triangular systems if these are needed.
"""

import numpy as np
import torch
from torch import Tensor

from .deferred import are_deferred, refuse_if
from .op import Variants, differentiated, dual

FEW = 4  # the number of rows from which on LAPACK solves, one matrix of a batch at a time
SMALL = 2**12  # the numbers in a batch below which a second thread does not pay for triangles
MOST = 64.0  # the largest increase of the diagonal, in roundings times D
JITTERS = (1.0, 8.0, MOST)  # the increases that are tried


class NotDefiniteError(torch.linalg.LinAlgError, ValueError):  # pyright: ignore[reportPrivateImportUsage]
    """A matrix that is not positive definite, beyond rounding."""


def rounding(matrix: Tensor) -> float:
    """The share of its diagonal below which an eigenvalue of a matrix `[..., D, D]` cannot be separated from
    rounding."""
    return MOST * matrix.shape[-1] * torch.finfo(matrix.dtype).eps


def _by_torch(matrix: Tensor) -> Tensor:
    if are_deferred() and not differentiated(matrix):
        return _at_once(matrix)
    chol, info = torch.linalg.cholesky_ex(matrix)
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    for jitter in JITTERS:
        if not bool(info.any()):
            return chol
        more = jitter / MOST * rounding(matrix) * (info != 0).to(matrix)
        chol, info = torch.linalg.cholesky_ex(matrix + torch.diag_embed(more.unsqueeze(-1) * diagonal))
    if not bool(info.any()):
        return chol
    raise NotDefiniteError(_what_is_wrong(matrix.detach(), info))


def _at_once(matrix: Tensor) -> Tensor:
    """The same without reading the results: all jitters are tried, and the first success is used for each matrix."""
    more = matrix.new_zeros(1 + len(JITTERS), *matrix.shape[:-1])
    for i, jitter in enumerate(JITTERS):
        more[i + 1] = jitter / MOST * rounding(matrix) * matrix.diagonal(dim1=-2, dim2=-1)
    chol, info = torch.linalg.cholesky_ex(matrix + torch.diag_embed(more))
    failed = info != 0
    first = failed.int().cumprod(0).sum(0).clamp(max=len(JITTERS))  # how many before the first that serves

    def complain() -> None:
        raise NotDefiniteError(_what_is_wrong(matrix.detach(), info[-1]))

    refuse_if(failed.all(0).any(), complain)
    return chol.gather(0, first[None, ..., None, None].expand(1, *matrix.shape)).squeeze(0)


def _what_is_wrong(matrix: Tensor, info: Tensor) -> str:
    place = tuple(torch.nonzero(info)[0].tolist())
    index = f" {list(place)}" if place else ""
    row, dtype = int(info[place]) - 1, str(matrix.dtype).removeprefix("torch.")
    if not bool(matrix[place].isfinite().all()):
        return f"matrix{index}: holds numbers that are not finite in {dtype}; check its inputs."
    return (
        f"matrix{index}: up to row {row} of {matrix.shape[-1]}, it is not positive definite in {dtype}: a feature is a "
        "sum of others, or its scale is far from that of the others; leave this feature out, or give float64."
    )


cholesky: Variants = Variants(_by_torch)
"""The lower factors `[*b, D, D]` of positive definite matrices. Raises `NotDefiniteError` where one is none."""


@cholesky.kernel("cpu")
def _by_numpy(matrix: Tensor) -> Tensor:
    if matrix.numel() > SMALL or differentiated(matrix):
        return _by_torch(matrix)
    try:
        chol = np.linalg.cholesky(matrix.detach().resolve_neg().numpy())
    except np.linalg.LinAlgError:
        return _by_torch(matrix)
    return torch.from_numpy(chol) if np.isfinite(chol.sum()) else _by_torch(matrix)


def solve_lower(chol: Tensor, right: Tensor) -> Tensor:
    """chol^-1 right [*b, D, N], of a lower triangle."""
    n = chol.shape[-1]
    if not 0 < n < FEW:
        return torch.linalg.solve_triangular(chol, right, upper=False)
    rows: list[Tensor] = []
    for i in range(n):
        total = right[..., i, :]
        for j in range(i):
            total = total - chol[..., i, j, None] * rows[j]
        rows.append(total / chol[..., i, i, None])
    return torch.stack(rows, -2)


def solve_upper(chol: Tensor, right: Tensor) -> Tensor:
    """(chol')^-1 right [*b, D, N], of a lower triangle."""
    if not 0 < chol.shape[-1] < FEW:
        return torch.linalg.solve_triangular(chol.mT, right, upper=True)
    return solve_lower(chol.mT.flip(-2, -1), right.flip(-2)).flip(-2)


def cholesky_inverse(chol: Tensor) -> Tensor:
    """The inverse of the matrix `[*b, D, D]` whose lower Cholesky factor this is."""
    if chol.shape[-1] >= FEW and not dual(chol):
        return torch.cholesky_inverse(chol)
    half = solve_lower(chol, torch.eye(chol.shape[-1], dtype=chol.dtype, device=chol.device))
    return half.mT @ half


def inverse(matrix: Tensor) -> Tensor:
    """The inverse of a positive definite matrix `[*b, D, D]`."""
    return cholesky_inverse(cholesky(matrix))


def cholesky_solve(right: Tensor, chol: Tensor) -> Tensor:
    """What the inverse of that matrix takes `right` `[*b, D, N]` to."""
    if chol.shape[-1] >= FEW and not dual(right, chol):
        return torch.cholesky_solve(right, chol)
    return solve_upper(chol, solve_lower(chol, right))


def _log_det(chol: Tensor) -> Tensor:
    return 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)


log_det: Variants = Variants(_log_det)
"""The log determinants `[*b]` of the matrices whose lower Cholesky factors `[*b, D, D]` these are."""


@log_det.kernel("cpu")
def _log_det_by_numpy(chol: Tensor) -> Tensor:
    if chol.numel() > SMALL or differentiated(chol):
        return _log_det(chol)
    diagonal = chol.detach().resolve_neg().numpy().diagonal(0, -2, -1)
    with np.errstate(invalid="ignore", divide="ignore"):  # like torch, without warnings about invalid factors
        return torch.from_numpy(np.asarray(2 * np.log(diagonal).sum(-1)))
