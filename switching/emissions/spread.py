"""How far observations spread, in all and within a state: what a weak prior is scaled by."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.numerics.quantiles import median
from .clusters import clusters

MOST = 20_000  # observations that are looked at
NORMAL = 0.6744897501960817  # the median of |z| of a standard normal z
LEAST = 1e-3  # of the whole spread, below which the spread within a state is not taken to be
ROOM = 1e12  # times that a variance within a state may lie below that of the data, or a square above it


class Spread(NamedTuple):
    """Of each feature: the median, the root of the mean square around it, and its square; the variance within a state,
    by medians."""

    center: Float[Tensor, "F"]
    scale: Float[Tensor, "F"]
    total: Float[Tensor, "F"]
    within: Float[Tensor, "F"]


def spread(x: Float[Tensor, "N F"] | None, n_states: int, n_features: int) -> Spread:
    """Of observations x, in as many clusters as there are states.

    Outliers do not count within a state, and do count in all: a prior by these is tight nowhere.

    Without data 0, 1 and 1; where a feature never changes, it counts as of variance 1.

    Raises:
        ValueError: a spread whose square the dtype of x does not hold.
    """
    if x is None:
        zero = torch.zeros(n_features, dtype=torch.float64, device="cpu")
        return Spread(zero, zero + 1, zero + 1, zero + 1)
    seen = x.detach().isfinite().any(-1).nonzero().flatten()
    rows = x.detach()[seen[:: max(1, len(seen) // MOST)]].double()
    center = median(rows)
    residual = rows - center
    whole, typical = _or_one(_root_mean_square(residual)), _scale(residual)
    check_squares("x", whole, x.dtype)
    scaled = (residual / typical).nan_to_num().clamp(-5.0, 5.0)
    labels = clusters(scaled, scaled, n_states, seed=0).unsqueeze(-1)
    for cluster in range(n_states):
        own = labels == cluster
        residual = torch.where(own, rows - median(rows.where(own, torch.nan)), residual)
    within = torch.minimum(torch.maximum(_scale(residual), LEAST * typical), typical)
    return Spread(*(table.to(x) for table in (center, whole, whole.square(), within.square())))


def check_squares(
    given: str, scale: Tensor, dtype: torch.dtype, names: Sequence[str] | None = None, verb: str = "spreads by"
) -> None:
    """Raise ValueError where the dtype does not hold the squares `[F]`, or precisions, of features on such scales."""
    held = torch.finfo(dtype)
    least, most = (held.tiny * ROOM) ** 0.5, (held.max / ROOM) ** 0.5
    bad = torch.nonzero((scale < least) | (scale > most))
    if len(bad):
        feature = int(bad[0])
        called = f"feature {feature}{f' ({names[feature]})' if names else ''}"
        raise ValueError(
            f"{given}: {called} {verb} {float(scale[feature]):.3g}, and {str(dtype).removeprefix('torch.')} holds the "
            f"squares of numbers from {least:.0e} to {most:.0e}; give {given} in another unit"
            f"{' or in float64' if dtype == torch.float32 else ''}."
        )


def _scale(residual: Tensor) -> Tensor:
    """The standard deviation of each column by the median of its sizes; by their mean square where that is 0, and 1
    where all are."""
    middle = median(residual.abs()) / NORMAL
    return _or_one(torch.where(middle > 0, middle, _root_mean_square(residual)))


def _root_mean_square(residual: Tensor) -> Tensor:
    """Of each column, also where the squares are beyond what numbers hold."""
    size = _or_one(residual.abs().nan_to_num(0.0, posinf=torch.inf).amax(0))
    return size * (residual / size).square().nanmean(0).sqrt()


def _or_one(scale: Tensor) -> Tensor:
    return torch.where(scale > 0, scale, 1.0)
