r"""Divergence from a prior, expected statistics and points of small tables of parameters, in one pass on the CPU.

torch spends microseconds on each call, and a normal-Wishart takes a hundred calls. A kernel repeats the prior's plates
if there are fewer, and computes in float64. If a matrix has no Cholesky factor, the plain form finds another factor or
raises an error.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..native.library import empty, function, integers, numbers
from ..numerics.cholesky import rounding
from ..numerics.native_calls import as_table, refuse_lack, run
from ..numerics.op import differentiated
from ..numerics.threads import ranges
from .family import relative
from .normal import ExpectedNormal, NormalGamma, NormalWishart, expected_normal, mean_point
from .peak import Peak, peak
from .positive import Beta, Dirichlet, Gamma

_TASK = 2**14  # entries of the plates of a task

_WISHART = 3
_KINDS = {Beta: 0, Dirichlet: 0, Gamma: 1, NormalGamma: 2, NormalWishart: _WISHART}
_WIDTHS = {Gamma: 2, NormalGamma: 4}


@relative.kernel("cpu")
def _relative(eta: Tensor, eta0: Tensor, family: Any) -> tuple[Tensor, Tensor]:
    kind, shape = _KINDS.get(type(family)), eta.shape
    width = _WIDTHS.get(type(family), shape[-1])
    fits = shape[-1] == width and eta0.shape == shape[eta.ndim - eta0.ndim :]
    if kind is None or not fits or (kind == _WISHART and _dim(eta) is None) or differentiated(eta, eta0):
        return relative.plain(eta, eta0, family)
    found = _of_plates("relative", eta, (shape[:-1], shape), _rows(eta0), kind=kind, plates0=eta0.shape[:-1].numel())
    return relative.plain(eta, eta0, family) if found is None else (found[0], found[1])


@expected_normal.kernel("cpu")
def _expected_normal(statistics: Tensor) -> ExpectedNormal:
    plates, dim, found = statistics.shape[:-1], _dim(statistics), None
    if dim is not None and not differentiated(statistics):
        found = _of_plates("expected_normals", statistics, ((*plates, dim), (*plates, dim, dim), plates, plates))
    return expected_normal.plain(statistics) if found is None else ExpectedNormal(*found)


@mean_point.kernel("cpu")
def _mean_point(eta: Tensor) -> tuple[Tensor, Tensor]:
    found = _points("mean_points", eta)
    return mean_point.plain(eta) if found is None else (found[0], found[1])


@peak.kernel("cpu")
def _peak(message: Tensor, floor: Tensor) -> Peak:
    found = None
    if floor.shape == (_dim(message),) and not differentiated(floor):
        found = _points("peaks", message, _rows(floor), numbers(rounding(floor)))
    return peak.plain(message, floor) if found is None else Peak(*found)


def _points(name: str, table: Tensor, *others: Any) -> list[Tensor] | None:
    """A location and a precision of each plate."""
    plates, dim = table.shape[:-1], _dim(table)
    if dim is None or differentiated(table):
        return None
    return _of_plates(name, table, ((*plates, dim), (*plates, dim, dim)), *others)


def _of_plates(
    name: str, table: Tensor, shapes: Sequence[Sequence[int]], *others: Any, kind: int = 0, plates0: int = 1
) -> list[Tensor] | None:
    """The results of a kernel for each plate of a table; None if a matrix has no factor."""
    width, n = table.shape[-1], table.shape[:-1].numel()
    results = [empty(*shape, dtype=torch.float64) for shape in shapes]
    sizes = integers(kind, width, _dim(table) or 0, plates0, 0, 0)
    tasks = [(0, n)] if n * width <= _TASK else ranges(n, max(1, _TASK // width), n)
    run(function(name), [integers(*plates) for plates in tasks], sizes, _rows(table), *others, *results)
    failed, lacking = sizes[4:]
    refuse_lack(lacking)
    if failed:
        return None
    return results if table.dtype == torch.float64 else [x.to(table.dtype) for x in results]


def _dim(table: Tensor) -> int | None:
    """The length of the vectors of NormalWisharts; None if no length fits."""
    width = table.shape[-1]
    dim = math.isqrt(max(width - 2, 0))
    return dim if dim and dim * dim + dim + 2 == width else None


def _rows(table: Tensor) -> Tensor:
    """The table in float64 and contiguous; itself if it is."""
    if table.dtype == torch.float64 and table.is_contiguous() and not table.is_neg():
        return table
    return as_table(table.detach().resolve_neg(), table.shape, torch.float64)
