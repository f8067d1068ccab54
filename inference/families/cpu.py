r"""Divergence from a prior and expected statistics of small tables of parameters, in one numba kernel for each family.

A table of K states has a few dozen numbers. torch spends microseconds on each call, and a normal-Wishart takes a
hundred calls. A kernel processes one plate at a time, repeats the prior's plates if there are fewer, and computes in
float64. If a matrix has no Cholesky factor, the kernel reports it, and the plain form finds another factor or raises an
error.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..numerics.cholesky import rounding
from ..numerics.compilation import inlined, kernel
from ..numerics.elementary import digamma
from ..numerics.op import differentiated
from ..numerics.small_matrices import factor, invert, solve_column
from .family import relative
from .normal import ExpectedNormal, NormalGamma, NormalWishart, expected_normal, mean_point
from .peak import Peak, peak
from .positive import Beta, Dirichlet, Gamma

SMALL = 2**14  # the number of entries of a table below which a second thread does not pay


@inlined
def _lgamma_gap(a0: float, a: float) -> float:
    """lgamma(a0) less its tangent at a."""
    return math.lgamma(a0) - math.lgamma(a) - (a0 - a) * digamma(a)


@inlined
def _scale_gap(rate0: float, rate: float, shape0: float, shape: float) -> float:
    """See `numerics.scale_gap`."""
    ratio, excess = rate0 / rate, (rate0 - rate) / rate
    return shape * excess - shape0 * (math.log(ratio) if ratio < 0.5 else math.log1p(excess))


@kernel
def _simplex(eta, eta0, divergence, mean):
    for n in range(len(eta)):
        m = n % len(eta0)
        total, total0, gap = eta[n].sum(), eta0[m].sum(), 0.0
        whole = digamma(total)
        for k in range(eta.shape[1]):
            mean[n, k] = digamma(eta[n, k]) - whole
            gap += _lgamma_gap(eta0[m, k], eta[n, k])
        divergence[n] = gap - _lgamma_gap(total0, total)
    return True


@kernel
def _gamma(eta, eta0, divergence, mean):
    for n in range(len(eta)):
        m = n % len(eta0)
        shape, rate, shape0, rate0 = eta[n, 0], -eta[n, 1], eta0[m, 0], -eta0[m, 1]
        mean[n, 0], mean[n, 1] = digamma(shape) - math.log(rate), shape / rate
        divergence[n] = _lgamma_gap(shape0, shape) + _scale_gap(rate0, rate, shape0, shape)
    return True


@kernel
def _normal_gamma(eta, eta0, divergence, mean):
    for n in range(len(eta)):
        m = n % len(eta0)
        kappa, kappa0 = -2 * eta[n, 1], -2 * eta0[m, 1]
        loc, loc0 = eta[n, 0] / kappa, eta0[m, 0] / kappa0
        shape, rate = eta[n, 2], -eta[n, 3] - eta[n, 0] * loc / 2
        shape0, rate0 = eta0[m, 2], -eta0[m, 3] - eta0[m, 0] * loc0 / 2
        precision = shape / rate
        mean[n, 0], mean[n, 1] = precision * loc, precision * loc * loc + 1 / kappa
        mean[n, 2], mean[n, 3] = digamma(shape) - math.log(rate), precision
        of_precision = _lgamma_gap(shape0, shape) + _scale_gap(rate0, rate, shape0, shape)
        of_loc = _scale_gap(kappa0, kappa, 1.0, 1.0) / 2 + kappa0 * precision * (loc - loc0) ** 2 / 2
        divergence[n] = of_precision + of_loc
    return True


@inlined
def _location_and_factor(eta: Any, n: int, dim: int, loc: Any, chol: Any) -> float:
    """loc and chol <- the location, and the lower factor of the inverse scale matrix; returns its log determinant."""
    kappa, rest = -2 * eta[n, dim], dim + 2
    for i in range(dim):
        loc[i] = eta[n, i] / kappa
        for j in range(i + 1):
            chol[i, j] = -(eta[n, rest + i * dim + j] + eta[n, rest + j * dim + i]) - eta[n, i] * loc[j]
    return factor(chol, dim)


@kernel
def _normal_wishart(eta, eta0, divergence, mean):
    dim = int(math.sqrt(eta.shape[1] - 2))  # whose square it exceeds by itself
    loc, chol, lower, inverse = np.zeros(dim), np.zeros((dim, dim)), np.zeros((dim, dim)), np.zeros((dim, dim))
    loc0, chol0, column = np.zeros(dim), np.zeros((dim, dim)), np.zeros(dim)
    for n in range(len(eta)):
        m = n % len(eta0)
        log_det = _location_and_factor(eta, n, dim, loc, chol)
        log_det0 = _location_and_factor(eta0, m, dim, loc0, chol0)
        if not (math.isfinite(log_det) and math.isfinite(log_det0)):
            return False
        kappa, df = -2 * eta[n, dim], 2 * eta[n, dim + 1]
        kappa0, df0 = -2 * eta0[m, dim], 2 * eta0[m, dim + 1]
        invert(chol, lower, inverse)
        squares = 0.0  # of the inverse factor times the prior's
        for j in range(dim):
            for i in range(dim):
                column[i] = chol0[i, j] if i >= j else 0.0
            solve_column(chol, column, j, dim)
            for i in range(j, dim):
                squares += column[i] * column[i]
        for i in range(dim):
            column[i] = loc[i] - loc0[i]
        solve_column(chol, column, 0, dim)
        shift = 0.0
        for i in range(dim):
            shift += column[i] * column[i]
        second, log_volume, gap = dim / kappa, dim * math.log(2.0) - log_det, 0.0
        for i in range(dim):
            first = 0.0
            for j in range(dim):
                entry = df * inverse[i, j]
                mean[n, dim + 2 + i * dim + j] = entry
                first += entry * loc[j]
            mean[n, i] = first
            second += first * loc[i]
            log_volume += digamma((df - i) / 2)
            gap += _lgamma_gap((df0 - i) / 2, (df - i) / 2)
        mean[n, dim], mean[n, dim + 1] = second, log_volume
        log_ratio = log_det0 - log_det
        of_precision = gap + df * (squares - dim - log_ratio) / 2 + (df - df0) * log_ratio / 2
        divergence[n] = of_precision + dim * _scale_gap(kappa0, kappa, 1.0, 1.0) / 2 + kappa0 * df * shift / 2
    return True


@kernel
def _normals(statistics, loc, chol, constant, log_volume):
    dim = loc.shape[1]
    for n in range(len(loc)):
        precision, location = chol[n], loc[n]
        for i in range(dim):
            location[i] = statistics[n, i]
            for j in range(i + 1):
                precision[i, j] = statistics[n, dim + 2 + i * dim + j]
        log_det = factor(precision, dim)
        if not math.isfinite(log_det):
            return False
        solve_column(precision, location, 0, dim)
        spread = statistics[n, dim]
        for i in range(dim):
            spread -= location[i] * location[i]
        for i in range(dim - 1, -1, -1):
            for k in range(i + 1, dim):
                location[i] -= precision[k, i] * location[k]
            location[i] /= precision[i, i]
        log_volume[n] = statistics[n, dim + 1] - spread
        constant[n] = (log_volume[n] - log_det) / 2
    return True


@kernel
def _mean_points(eta, loc, precision):
    dim = loc.shape[1]
    chol, lower, inverse = np.zeros((dim, dim)), np.zeros((dim, dim)), np.zeros((dim, dim))
    for n in range(len(eta)):
        if not math.isfinite(_location_and_factor(eta, n, dim, loc[n], chol)):
            return False
        invert(chol, lower, inverse)
        for i in range(dim):
            for j in range(dim):
                precision[n, i, j] = 2 * eta[n, dim + 1] * inverse[i, j]
    return True


@kernel
def _peaks(message, unit, least, loc, precision):
    """False if a plate has no weight, or a covariance that its floor or rounding may change."""
    dim = loc.shape[1]
    covariance, chol = np.zeros((dim, dim)), np.zeros((dim, dim))
    lower, inverse = np.zeros((dim, dim)), np.zeros((dim, dim))
    for n in range(len(loc)):
        weight = -2 * message[n, dim]
        if not weight > 0:
            return False
        for i in range(dim):
            loc[n, i] = message[n, i] / weight
            for j in range(i + 1):
                both = message[n, dim + 2 + i * dim + j] + message[n, dim + 2 + j * dim + i]
                covariance[i, j] = -both / weight - loc[n, i] * loc[n, j]
        for test in range(3):
            for i in range(dim):
                for j in range(i + 1):
                    chol[i, j] = covariance[i, j]
                    if test == 0:  # whether the excess over the floor is positive definite
                        chol[i, j] = chol[i, j] / (unit[i] * unit[j]) - (1.0 if i == j else 0.0)
                    elif test == 1:  # and the correlations minus the rounding errors of 0
                        chol[i, j] /= math.sqrt(covariance[i, i] * covariance[j, j])
                        chol[i, j] -= least if i == j else 0.0
            if not math.isfinite(factor(chol, dim)):
                return False
        invert(chol, lower, inverse)
        for i in range(dim):
            for j in range(dim):
                precision[n, i, j] = inverse[i, j]
    return True


_FUSED = {
    Beta: _simplex,
    Dirichlet: _simplex,
    Gamma: _gamma,
    NormalGamma: _normal_gamma,
    NormalWishart: _normal_wishart,
}


@relative.kernel("cpu")
def _relative(eta: Tensor, eta0: Tensor, family: Any) -> tuple[Tensor, Tensor]:
    fused, shape = _FUSED.get(type(family)), eta.shape
    if fused is None or not _small(eta, eta0) or eta0.shape != shape[eta.ndim - eta0.ndim :]:
        return relative.plain(eta, eta0, family)
    results = np.empty(shape[:-1]), np.empty(shape)
    if not fused(_rows(eta), _rows(eta0), results[0].reshape(-1), results[1].reshape(-1, shape[-1])):
        return relative.plain(eta, eta0, family)
    divergence, mean = (torch.from_numpy(result).to(eta.dtype) for result in results)
    return divergence, mean


@expected_normal.kernel("cpu")
def _expected_normal(statistics: Tensor) -> ExpectedNormal:
    if not _small(statistics):
        return expected_normal.plain(statistics)
    plates, dim = statistics.shape[:-1], math.isqrt(statistics.shape[-1] - 2)
    n = plates.numel()
    results = np.empty((n, dim)), np.zeros((n, dim, dim)), np.empty(n), np.empty(n)
    if not _normals(_rows(statistics), *results):
        return expected_normal.plain(statistics)
    shapes = (*plates, dim), (*plates, dim, dim), plates, plates
    shaped = zip(results, shapes, strict=True)
    return ExpectedNormal(*(torch.from_numpy(result).to(statistics.dtype).view(shape) for result, shape in shaped))


@mean_point.kernel("cpu")
def _mean_point(eta: Tensor) -> tuple[Tensor, Tensor]:
    results = _blank_points(eta)
    if not _small(eta) or not _mean_points(_rows(eta), *results):
        return mean_point.plain(eta)
    return _as_points(results, eta)


@peak.kernel("cpu")
def _peak(message: Tensor, floor: Tensor) -> Peak:
    results, unit = _blank_points(message), np.sqrt(floor.detach().numpy())
    if not _small(message, floor) or not _peaks(_rows(message), unit, rounding(floor), *results):
        return peak.plain(message, floor)
    return Peak(*_as_points(results, message), torch.zeros(message.shape[:-1], dtype=torch.bool, device="cpu"))


def _blank_points(eta: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Empty locations and precisions of the same number of plates."""
    n, dim = eta.shape[:-1].numel(), math.isqrt(eta.shape[-1] - 2)
    return np.empty((n, dim)), np.empty((n, dim, dim))


def _as_points(points: tuple[np.ndarray, np.ndarray], eta: Tensor) -> tuple[Tensor, Tensor]:
    plates = eta.shape[:-1]
    loc, precision = (torch.from_numpy(part).to(eta.dtype).view(*plates, *part.shape[1:]) for part in points)
    return loc, precision


def _small(*tables: Tensor) -> bool:
    return tables[0].numel() <= SMALL and not differentiated(*tables)


def _rows(table: Tensor) -> np.ndarray:
    return np.ascontiguousarray(table.detach().numpy(), np.float64).reshape(-1, table.shape[-1])
