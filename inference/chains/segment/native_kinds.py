"""What the kernels of segments know: families, and expectations of their parameters."""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...native.library import function
from ...numerics.native_calls import check_given
from . import op
from .plain import Functions
from .tables import Tables

_WIDTHS = {"normal_gamma": 4, "gamma": 2}
KINDS = {"normal_gamma": 0, "gamma": 1, "simplex": 2}


@cache
def number_from(name: str) -> Callable[..., int]:
    """A function of the library that returns a number."""
    found: Any = function(name)
    found.restype = ctypes.c_int64
    return found


def takes(steps: Tensor, tables: Tables, *others: Any) -> bool:
    return all(family.kernel in KINDS for family in tables.families)


def check_prior(kind: str | None, prior: Tensor, n: int) -> tuple[int, int]:
    """Plates and width of the parameters [n, F, D] of one kind."""
    plates, width = prior.shape[-2:]
    check_given("priors", prior, (n, plates, _WIDTHS.get(kind or "", max(1, width))), torch.float64)
    return plates, width


def are_moments(expect: Functions) -> bool:
    return all(getattr(of, "kernel", None) == "moments" for of in expect)


def knows(tables: Tables, expect: Functions | None) -> bool:
    """Whether kernels have these expectations."""
    return not expect or expect == op.means(tables) or are_moments(expect)


def widths(tables: Tables, expect: Functions | None) -> list[int]:
    """The numbers of expectations of one parameter, by block."""
    if not expect:
        return [0] * len(tables.priors)
    if not are_moments(expect):
        return [prior.shape[-1] for prior in tables.priors]
    return [of(prior[:1, :1]).shape[-1] for of, prior in zip(expect, tables.priors, strict=True)]
