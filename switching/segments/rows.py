r"""What each row of a series adds to the natural parameters of its segment's posterior.

$$\log p(x_t \mid \theta) = \langle u(x_t), t(\theta) \rangle + \log h(x_t)$$

Locations are relative to a point near the data, so that no digits are lost. A missing feature adds nothing.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.chains.segment.chain import Block
from ...inference.families import MatrixNormalWishart, NormalGamma, NormalWishart
from ...inference.families.numerics import pack
from ..data.series import Series
from ..emissions.discrete import Poisson
from ..emissions.driven import rows_read
from ..emissions.multivariate_normal import MultivariateNormal
from ..emissions.regression import LinearRegression
from ..emissions.spread import check_squares
from ..parameters import Parameters, moved
from .hyperparameters import hyperparameters

LOG_2PI = math.log(2 * math.pi)


class Rows(NamedTuple):
    """The tables of a series.

    Attributes:
        statistics: what each row adds; D numbers for each of G groups of features with a prior of their own.
        log_base: log h of each row.
        about: the point to which locations are relative.
        scale: the spreads of inputs in the prior of coefficients; None: 1.
    """

    statistics: Float[Tensor, "*b T G D"]
    log_base: Float[Tensor, "*b T"]
    about: Float[Tensor, "F"]
    scale: Float[Tensor, "C"] | None = None

    @staticmethod
    def of(
        emission: Any, series: Series, about: Float[Tensor, "F"] | None = None, scale: Float[Tensor, "C"] | None = None
    ) -> "Rows":
        """The rows of a series, in float64; about its mean if no other point is given."""
        seen = series.rows.detach().double()
        about = center(emission, seen) if about is None else about
        if has_location(emission):
            largest = seen.abs().nan_to_num(1.0).amax(0) if len(seen) else torch.ones_like(about)
            check_squares("x", largest.clamp_min(1.0), seen.dtype, series.features_of())
        rows = rows_read(emission, series).double()
        return Rows(statistics(emission, rows, about), log_base(emission, rows), about, scale)


def has_location(emission: Any) -> bool:
    """Whether the family of an emission has locations."""
    return isinstance(emission.family, NormalGamma | NormalWishart | MatrixNormalWishart)


def center(emission: Any, rows: Float[Tensor, "n F"]) -> Float[Tensor, "F"]:
    """The mean of each feature; 0 of one without observations, or without a location."""
    return rows.nanmean(0).nan_to_num(0.0) if has_location(emission) else torch.zeros_like(rows[:0].sum(0))


def statistics(emission: Any, rows: Float[Tensor, "*n R"], about: Float[Tensor, "F"]) -> Float[Tensor, "*n G D"]:
    """u(x) of each row."""
    x = rows[..., : emission.n_features]
    seen = ~x.isnan()
    residual = torch.where(seen, x - about, 0.0)
    if isinstance(emission, MultivariateNormal):
        return _of_vectors(residual, seen.all(-1, keepdim=True).to(x)).unsqueeze(-2)
    if isinstance(emission, LinearRegression):
        return _of_regressions(emission, residual, seen.to(x), rows[..., x.shape[-1] :])
    return torch.stack(TERMS[emission.name](emission, residual, seen.to(x)), -1)


LARGEST = 1e100  # of numbers whose squares are far from the ends of float64


def ordinary_row(emission: Any, x: Any, about: Float[Tensor, "F"]) -> list[float] | None:
    """The statistics of one row in float64, side by side, and its log h, without torch; None if other code has to look:
    at missing or impossible numbers, vectors, regressions and other types."""
    if type(x) is float or type(x) is int:
        x = [x]
    elif isinstance(x, Tensor | np.ndarray) and x.dtype in _DOUBLE and x.ndim < 2 and not getattr(x, "is_cuda", False):
        x = x.tolist() if x.ndim else [x.item()]
    name = emission.name
    if type(x) is not list or len(x) != emission.n_features or name not in POSSIBLE:
        return None
    row, base, terms, possible, of = [], 0.0, TERMS[name], POSSIBLE[name], LOG_BASE.get(name)
    for value, origin in zip(x, about.tolist(), strict=True):
        if type(value) not in (float, int) or not abs(value) < LARGEST or not possible(emission, value):
            return None
        row += terms(emission, value - origin, 1.0)
        base += 0.0 if of is None else of(value)
    return [*row, base]


TERMS: dict[str, Callable[[Any, Any, Any], tuple[Any, ...]]] = {
    "Normal": lambda emission, x, one: (x, -one / 2, one / 2, -x * x / 2),
    "Poisson": lambda emission, x, one: (x, -one),
    "Exponential": lambda emission, x, one: (one, -x),
    "Bernoulli": lambda emission, x, one: (x, one - x),
    "Categorical": lambda emission, x, one: tuple((x == symbol) * one for symbol in range(emission.n_categories)),
}
"""u(x) of numbers, tables or single ones; `one` is 1, and 0 beside x = 0 where a number is missing."""

POSSIBLE: dict[str, Callable[[Any, float], bool]] = {
    "Normal": lambda emission, x: True,
    "Poisson": lambda emission, x: x >= 0 and x == int(x),
    "Exponential": lambda emission, x: x > 0,
    "Bernoulli": lambda emission, x: x in (0, 1),
    "Categorical": lambda emission, x: 0 <= x < emission.n_categories and x == int(x),
}
LOG_BASE: dict[str, Callable[[float], float]] = {
    "Normal": lambda x: -LOG_2PI / 2,
    "Poisson": lambda x: -math.lgamma(x + 1),
}
_DOUBLE = torch.float64, np.dtype(np.float64)


def _of_vectors(residual: Tensor, seen: Tensor) -> Float[Tensor, "*n D"]:
    square = (residual.unsqueeze(-1) * residual.unsqueeze(-2)).flatten(-2)
    return pack(residual, -seen / 2, seen / 2, -square / 2)


def _of_regressions(emission: Any, residual: Tensor, seen: Tensor, inputs: Tensor) -> Float[Tensor, "*n F D"]:
    design = torch.nn.functional.pad(inputs, (1, 0), value=1.0).unsqueeze(-2)
    square = (design.unsqueeze(-1) * design.unsqueeze(-2)).flatten(-2)
    first, size = residual.unsqueeze(-1) * design, seen.unsqueeze(-1)
    return pack(first, -size * square / 2, size / 2, -residual.square().unsqueeze(-1) / 2)


def log_base(emission: Any, rows: Float[Tensor, "*n R"]) -> Float[Tensor, "*n"]:
    """log h(x) of each row."""
    x = rows[..., : emission.n_features]
    if has_location(emission):
        return -LOG_2PI / 2 * (~x.isnan()).sum(-1).to(x)
    if isinstance(emission, Poisson):
        return -torch.lgamma(x.nan_to_num(0.0) + 1).sum(-1)
    return torch.zeros_like(x[..., 0])


def with_state(emission: Any, values: Parameters, scale: Float[Tensor, "C"] | None = None) -> Parameters:
    """Hyperparameters `[*r, ...]` with an axis of one state, as the prior of the emission has them; coefficients are
    as vague as locations where inputs have the spreads `scale`."""
    known = hyperparameters(emission)
    prior = {name: values[name].unsqueeze(-1 - len(parameter.dims)) for name, parameter in known.items()}
    if scale is not None:
        prior["coefficients_count"] = prior["count"].unsqueeze(-1) * scale.to(prior["count"]).square()
    return prior


def natural(emission: Any, values: Parameters, rows: Rows) -> Float[Tensor, "*r G D"]:
    """Natural parameters of the prior with these hyperparameters, relative to the point of `rows`."""
    relative = moved(values, -rows.about) if has_location(emission) else values
    prior = with_state(emission, relative, rows.scale)
    eta = emission.natural(prior)  # [*r, 1, F, D], or [*r, 1, D] of a vector
    return eta if isinstance(emission, MultivariateNormal) or "category" in emission.sizes else eta.squeeze(-3)


def block(emission: Any, values: Parameters, rows: Rows) -> Block:
    """The parameters of the segments of a series, as a block of a chain; values have leading axes `*r`."""
    eta, n_batch = natural(emission, values, rows), rows.statistics.ndim - 3
    eta = _repeated(eta, rows.statistics.shape[-2])
    wide = eta.reshape(*eta.shape[:-2], *[1] * n_batch, *eta.shape[-2:])
    batch = (*eta.shape[:-2], *rows.statistics.shape[:n_batch])
    prior = wide.expand(*batch, *eta.shape[-2:])
    return Block(emission.family, prior, rows.statistics.expand(*batch, *rows.statistics.shape[n_batch:]))


def _repeated(eta: Float[Tensor, "*r G D"], n: int) -> Float[Tensor, "*r N D"]:
    """Of sequences that change together, the prior of each."""
    times = n // eta.shape[-2]
    return eta if times == 1 else torch.cat([eta] * times, -2)
