"""Quantiles of columns."""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .op import Variants


def _by_sorting(x: Tensor, at: Sequence[float]) -> Tensor:
    last = (~x.isnan()).sum(0) - 1
    ordered = torch.cat([x, x.new_full((1, x.shape[1]), torch.nan)]).sort(0).values  # NaN is the greatest
    places = [share * last.clamp_min(0).to(x) for share in at]
    ends = [[ordered.gather(0, end.long()[None])[0] for end in (p.floor(), p.ceil())] for p in places]
    return torch.stack([torch.lerp(low, high, p - p.floor()) for p, (low, high) in zip(places, ends, strict=True)])


quantiles: Variants = Variants(_by_sorting)
"""Quantiles `[Q, F]` of each column of x `[N, F]`, ignoring NaN; NaN for a column without numbers."""


@quantiles.kernel("cpu")
def _by_numpy(x: Tensor, at: Sequence[float]) -> Tensor:
    """By numpy, which selects single order statistics without sorting."""
    with warnings.catch_warnings(action="ignore"):
        return torch.from_numpy(np.nanquantile(x.numpy(), at, axis=0).astype(x.numpy().dtype))


def median(x: Tensor) -> Tensor:
    """The median of each column of x `[N, F]`, ignoring NaN."""
    return quantiles(x, (0.5,))[0]
