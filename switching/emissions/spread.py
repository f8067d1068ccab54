"""The spread of observations, in total and within a state: the scale of weak priors."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...inference.numerics.quantiles import median
from .clusters import clusters

MOST = 20_000  # the most observations that are used
NORMAL = 0.6744897501960817  # the median of |z| of a standard normal z
LEAST = 1e-3  # the least spread within a state, relative to the total spread
ROOM = 1e12  # the greatest ratio of the variance of the data to a variance within a state, or of a square to it


class Spread(NamedTuple):
    """For each feature: the median, the root mean square around it, and its square; the variance within a state, by
    medians."""

    center: Float[Tensor, "F"]
    scale: Float[Tensor, "F"]
    total: Float[Tensor, "F"]
    within: Float[Tensor, "F"]


def spread(x: Float[Tensor, "N F"] | None, n_states: int, n_features: int) -> Spread:
    """The spread of observations x, in as many clusters as there are states.

    The spread within a state is robust to outliers, and the total spread includes them, so a prior is never too tight.

    Without data the results are 0, 1 and 1. A feature that never changes has variance 1.

    Raises:
        ValueError: a spread whose square the dtype of x cannot represent.
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
        members = labels == cluster
        residual = torch.where(members, rows - median(rows.where(members, torch.nan)), residual)
    within = torch.minimum(torch.maximum(_scale(residual), LEAST * typical), typical)
    return Spread(*(table.to(x) for table in (center, whole, whole.square(), within.square())))


def typical_square(x: Float[Tensor, "N F"]) -> Float[Tensor, "F"]:
    """The square of the spread of each feature, robust to outliers; of a constant feature that of its size, or 1."""
    rows = x.detach()[:: max(1, len(x) // MOST)].double()
    residual = rows - median(rows)
    scale = torch.minimum(_scale(residual), _or_one(_root_mean_square(residual)))
    return torch.where(varying(rows), scale, _or_one(_root_mean_square(rows))).square().to(x)


def least_mean(x: Float[Tensor, "N F"], embedded: Float[Tensor, "N E"], n_states: int) -> Float[Tensor, "F"]:
    """The least mean of each feature of x >= 0 in as many clusters as there are states, but no less than `LEAST` times
    that of all.

    Arguments:
        embedded: x in coordinates in which similar observations are near.
    """
    seen = x.detach().isfinite().any(-1).nonzero().flatten()
    some = seen[:: max(1, len(seen) // MOST)]
    rows, points = x.detach()[some].double(), embedded.detach()[some].double().nan_to_num()
    labels = clusters(points, points, n_states, seed=0).unsqueeze(-1)
    means = torch.stack([rows.where(labels == cluster, torch.nan).nanmean(0) for cluster in range(n_states)])
    whole = _or_one(rows.nanmean(0))
    return means.nan_to_num(torch.inf).amin(0).clamp_min(0.0).maximum(LEAST * whole).minimum(whole).to(x)


def varying(x: Float[Tensor, "N F"]) -> Bool[Tensor, "F"]:
    """Which features have two different values."""
    return x.nan_to_num(-torch.inf).amax(0) > x.nan_to_num(torch.inf).amin(0)


def common(squares: Float[Tensor, "F"], varies: Bool[Tensor, "F"]) -> Float[Tensor, "1"]:
    """The mean square of the features that vary; 1 if none does."""
    return squares[varies].mean(0, keepdim=True) if bool(varies.any()) else torch.ones_like(squares[:1])


def check_squares(
    argument: str, scale: Tensor, dtype: torch.dtype, names: Sequence[str] | None = None, verb: str = "spreads by"
) -> None:
    """Raise ValueError if the dtype cannot represent the squares `[F]`, or precisions, of features on such scales."""
    held = torch.finfo(dtype)
    least, most = (held.tiny * ROOM) ** 0.5, (held.max / ROOM) ** 0.5
    bad = torch.nonzero((scale < least) | (scale > most))
    if len(bad):
        feature = int(bad[0])
        called = f"feature {feature}{f' ({names[feature]})' if names else ''}"
        raise ValueError(
            f"{argument}: {called} {verb} {float(scale[feature]):.3g}, and {str(dtype).removeprefix('torch.')} only "
            f"represents the squares of numbers from {least:.0e} to {most:.0e}; give {argument} in another unit"
            f"{' or in float64' if dtype == torch.float32 else ''}."
        )


def _scale(residual: Tensor) -> Tensor:
    """The standard deviation of each column from the median of absolute values. If this is 0, it is the root mean
    square, and 1 for a column of zeros."""
    middle = median(residual.abs()) / NORMAL
    return _or_one(torch.where(middle > 0, middle, _root_mean_square(residual)))


def _root_mean_square(residual: Tensor) -> Tensor:
    """The root mean square of each column, also if the squares overflow."""
    size = _or_one(residual.abs().nan_to_num(0.0, posinf=torch.inf).amax(0))
    return size * (residual / size).square().nanmean(0).sqrt()


def _or_one(scale: Tensor) -> Tensor:
    return torch.where(scale > 0, scale, 1.0)
