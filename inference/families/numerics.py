"""Shared functions of families: differences without cancellation, draws, checks."""

import math

import torch
from jaxtyping import Bool
from torch import Generator, Tensor

from ..numerics.checks import broadcast_shapes
from ..numerics.deferred import refuse_if
from ..numerics.gammas import LARGE, stirling_rest, stirling_slope

LOG_2PI = math.log(2 * math.pi)


def lgamma_gap(a0: Tensor, a: Tensor) -> Tensor:
    """lgamma(a0) minus its tangent at a, which is never negative; like terms are combined first to keep digits."""
    large = (a0 >= LARGE) & (a >= LARGE)
    high0, high, low0, low = a0.where(large, LARGE), a.where(large, LARGE), a0.where(~large, 1.0), a.where(~large, 1.0)
    rests = stirling_rest(high0) - stirling_rest(high) - (high0 - high) * stirling_slope(high)
    by_series = rests - scale_gap(high0, high, high0 - 0.5, high - 0.5)
    direct = torch.lgamma(low0) - torch.lgamma(low) - (low0 - low) * torch.digamma(low)
    return torch.where(large, by_series, direct)


def scale_gap(rate0: Tensor, rate: Tensor, shape0: Tensor | float = 1.0, shape: Tensor | float = 1.0) -> Tensor:
    """The part of a Gamma's divergence due to its rates: shape (r - 1) - shape0 log r, with r = rate0 / rate."""
    ratio, excess = rate0 / rate, (rate0 - rate) / rate
    apart = ratio < 0.5  # where 1 + excess has lost the digits of the ratio
    log_ratio = torch.where(apart, torch.where(apart, ratio, 1.0).log(), torch.where(apart, 0.0, excess).log1p())
    return shape * excess - shape0 * log_ratio


def steps(df: Tensor, dim: int) -> Tensor:
    """df/2, (df-1)/2, ..., (df-D+1)/2: the arguments of the multivariate gamma function."""
    return (df[..., None] - torch.arange(dim, dtype=df.dtype, device=df.device)) / 2


def pack(*tables: Tensor) -> Tensor:
    """Concatenate along the last axis, and broadcast the plates before it."""
    shapes = {table.shape[:-1] for table in tables}
    if len(shapes) > 1:
        plates = broadcast_shapes(*shapes)
        tables = tuple(table.expand(*plates, -1) for table in tables)
    return torch.cat(tables, -1)


def log_gamma_draw(shape: Tensor, generator: Generator | None) -> Tensor:
    """Log of a Gamma(shape, 1) draw (the draw itself may underflow): G(a) = G(a + 1) U^(1/a), Marsaglia & Tsang
    2000."""
    uniform = torch.rand(shape.shape, generator=generator, dtype=shape.dtype, device=shape.device)
    above = torch._standard_gamma(shape + 1, generator)  # pyright: ignore[reportPrivateImportUsage]
    return above.log() + torch.log1p(-uniform) / shape


def normal_draw(like: Tensor, generator: Generator | None) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def one_entry(like: Tensor, position: int, value: float) -> Tensor:
    """A vector `[P]` for a table `[..., P]`, 0 but at one position. `base[position] = value` would wait for a GPU."""
    base = like.new_zeros(like.shape[-1])
    base[position].fill_(value)
    return base


def positive(name: str, value: Tensor, family: object) -> None:
    require((value > 0) & value.isfinite(), name, value, family, "a finite number above 0")


def least(minuend: Tensor) -> Tensor:
    """The size below which a difference from `whole [..., D]` cannot be separated from rounding."""
    return 4 * max(minuend.shape[-1], 1) * torch.finfo(minuend.dtype).eps * minuend.abs()


def positive_definite(name: str, matrix: Tensor, family: object, minuend: Tensor | None = None) -> None:
    """Refuse a matrix that is not positive definite; if it is a difference from `minuend`, by more than rounding."""
    less = matrix if minuend is None else matrix - torch.diag_embed(least(minuend.diagonal(dim1=-2, dim2=-1)))
    bad = torch.linalg.cholesky_ex(less).info != 0

    def complain() -> None:
        smallest = torch.linalg.eigvalsh(matrix.nan_to_num())[..., 0]
        _refuse(bad, name, smallest, family, "positive definite (least eigenvalue shown)")

    refuse_if(bad.any(), complain)


def require(ok: Bool[Tensor, "..."], name: str, value: Tensor, family: object, expected: str) -> None:
    refuse_if(~ok.all(), lambda: _refuse(~ok, name, value, family, expected))


def _refuse(bad: Tensor, name: str, value: Tensor, family: object, expected: str) -> None:
    index = tuple(bad.nonzero()[0].tolist())
    place = f" at {list(index)}" if index else ""
    raise ValueError(
        f"{name} of {type(family).__name__}: got {float(value[index]) + 0.0:g}{place}, expected {expected}."
    )
