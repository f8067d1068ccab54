r"""Priors of linear models, in units of the data, and their conjugate blocks.

Priors are for $(x - a) / u$, where the hyperparameters `center` a and `spread` u are the location and the spread of the
series, so that they do not depend on its unit. With $(M, \Lambda)$ the coefficients of $(s, 1)$ and the precision of
the residual,

    moves     A, c, inv(Q)      matrix-normal-Wishart, about coefficients 0 and a noise of 1
    sights    C, d, inv(R)      the same, about a noise that is a small share of the spread; diagonal: by feature
    first     m, inv(P)         normal-Wishart, about 0 and 1

each with the weight of about one observation. For a structure, standard deviations are exponential with mean u, and
partial autocorrelations uniform, as are frequencies and damping in their ranges. Distributions of the user replace
these (`user_priors`); of tables, those of the offset and of the noise of observations.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.families import LocPrecision, MatrixNormalWishart, NormalWishart, VectorFamily, Wishart
from ...inference.numerics.cholesky import cholesky, cholesky_inverse, log_det
from ..data.series import Series
from ..emissions.spread import check_squares, spread
from ..fitting.units import Units
from ..parameters import Parameters, moved
from ..user_priors import log_density, summed
from .contract import LinearDynamics
from .emission import Irregular, LinearEmission
from .user_priors import VARIANCES

WEIGHT = 0.5  # weight of the prior of coefficients, in steps
OFFSET_WEIGHT = 0.01
SPARE = 1.0  # degrees of freedom of a noise under the prior, minus its size
UNEXPLAINED = 0.1  # share of the variance that is noise under the prior


def units_of(emission: LinearEmission | Irregular, series: Series | None) -> Units:
    """Units of the observed values; for a structure without a level, centred at 0. Without a series 0 and 1.

    Raises:
        ValueError: the square of a spread is out of range of the dtype of the series; names the feature.
    """
    of_data = spread(None if series is None else series.rows.detach().double(), 1, emission.n_features)
    center, scale = of_data.center, of_data.scale
    if isinstance(emission, Irregular) and not emission.structure.has_level:
        center, scale = torch.zeros_like(center), (scale.square() + center.square()).sqrt()
    if series is not None:
        check_squares("x", scale, series.like.dtype, series.features_of())
    return Units(emission, center, scale)


# ---- conjugate blocks ------------------------------------------------------------------------------------------------


def families(n_latent: int) -> dict[str, VectorFamily[Any]]:
    """The families of the blocks, by name."""
    regression = MatrixNormalWishart(n_latent + 1)
    return {"moves": regression, "sights": regression, "first": NormalWishart()}


def natural(
    emission: LinearEmission,
    about: Float[Tensor, "M L"],
    noise: Float[Tensor, "L"],
    weights: Float[Tensor, "M"],
    *,
    unexplained: float,
    spare: float,
) -> dict[str, Tensor]:
    """Natural parameters of the blocks of a single regime, in units of the data.

    Arguments:
        about: prior mean of the coefficients of the transition, M = L + 1.
        noise: variances of the transition.
        weights: weight of the prior of each coefficient, in steps; the first is also that of the first state.
        unexplained: share of the variance of a feature that is noise.
        spare: degrees of freedom of a noise minus its size.
    """
    n, size = len(noise), emission.n_features if emission.full else 1
    regression, first, weight = MatrixNormalWishart(n + 1), NormalWishart(), torch.diag(weights)
    df, seen = noise.new_tensor(n + spare), noise.new_tensor(size + spare)
    sights = regression.natural(
        noise.new_zeros(n + 1, size), weight, seen, torch.eye(size).to(noise) / (seen * unexplained)
    )
    return {
        "moves": regression.natural(about, weight, df, torch.diag(1 / noise) / df),
        "sights": sights if emission.full else sights.expand(emission.n_features, -1),
        "first": first.natural(noise.new_zeros(n), weights[0], df, torch.eye(n).to(noise) / df),
    }


def weak(n_latent: int, emission: LinearEmission, like: Tensor) -> dict[str, Tensor]:
    """Natural parameters of the prior of a linear model in units of the data, `[1, ...]` of one regime."""
    weights = torch.tensor([WEIGHT] * n_latent + [OFFSET_WEIGHT], device="cpu").to(like)
    about, noise = like.new_zeros(n_latent + 1, n_latent), like.new_ones(n_latent)
    etas = natural(emission, about, noise, weights, unexplained=UNEXPLAINED, spare=SPARE)
    return {name: eta.unsqueeze(0) for name, eta in etas.items()}


NAMES: dict[str, tuple[str, ...]] = {
    "moves": ("transition", "transition_offset", "state_noise"),
    "sights": ("emission", "emission_offset", "observation_noise"),
    "first": ("initial_mean", "initial_covariance"),
}
"""The parameters of each block."""


def points(
    values: Parameters, full: bool, inverse: Callable[[Tensor], Tensor] | None = None
) -> dict[str, LocPrecision]:
    """Parameters `[..., K, ...]` of regimes as points of the blocks; `full`: whether the observation noise is full.

    `inverse` is that of covariances, if some of their entries are unknown.
    """
    inverse = inverse or _inverse
    noise, sights = values["observation_noise"], _coefficients(values["emission"], values["emission_offset"])
    moves = _coefficients(values["transition"], values["transition_offset"])
    return {
        "moves": LocPrecision(moves, inverse(values["state_noise"])),
        "sights": LocPrecision(sights, inverse(noise))
        if full
        else LocPrecision(sights.mT.unsqueeze(-1), 1 / noise[..., None, None]),
        "first": LocPrecision(values["initial_mean"], inverse(values["initial_covariance"])),
    }


def values_at(points: Mapping[str, LocPrecision], full: bool) -> Parameters:
    """Points of the blocks as parameters, the inverse of `points`."""
    moves, sights, first = (points[name] for name in NAMES)
    loc = sights.loc if full else sights.loc.squeeze(-1).mT
    return {
        "transition": moves.loc[..., :-1, :].mT,
        "transition_offset": moves.loc[..., -1, :],
        "state_noise": _inverse(moves.precision),
        "emission": loc[..., :-1, :].mT,
        "emission_offset": loc[..., -1, :],
        "observation_noise": _inverse(sights.precision) if full else 1 / sights.precision[..., 0, 0],
        "initial_mean": first.loc,
        "initial_covariance": _inverse(first.precision),
    }


def one_point(
    values: Parameters, emission: LinearEmission, inverse: Callable[[Tensor], Tensor] | None = None
) -> dict[str, LocPrecision]:
    """Parameters `[*r, ...]` of a linear model as points, which have an axis for its single regime; see `points`."""
    axes = _axes(emission)
    return points({name: value.unsqueeze(-axes[name] - 1) for name, value in values.items()}, emission.full, inverse)


def one_value(points: Mapping[str, LocPrecision], emission: LinearEmission) -> Parameters:
    """Points as parameters, the inverse of `one_point`."""
    axes = _axes(emission)
    return {name: value.squeeze(-axes[name] - 1) for name, value in values_at(points, emission.full).items()}


def _axes(emission: LinearEmission) -> dict[str, int]:
    """The number of axes of each parameter."""
    axes = {name: 2 for block in NAMES.values() for name in block}
    return axes | {"transition_offset": 1, "initial_mean": 1} | {n: len(p.dims) for n, p in emission.parameters.items()}


def _coefficients(matrix: Tensor, offset: Tensor) -> Tensor:
    """Coefficients of the latents and of 1, [..., L + 1, D]."""
    return torch.cat([matrix.mT, offset.unsqueeze(-2)], -2)


def _inverse(matrix: Tensor) -> Tensor:
    return cholesky_inverse(cholesky(matrix))


# ---- densities -------------------------------------------------------------------------------------------------------


def log_prior(
    dynamics: LinearDynamics, emission: LinearEmission | Irregular, prior: Parameters, values: Parameters
) -> Float[Tensor, "*r"]:
    """Log density of coefficients and precisions at parameters `[*r, ...]`; for a structure, of standard deviations and
    partial autocorrelations, or of the numbers that have a user prior.

    Arguments:
        prior: hyperparameters; with "unit" in a problem whose series is in this unit, since user priors are for values
            in the units of the data.
    """
    unit = prior["spread"]
    scaled = emission.in_units(moved(values, -prior["center"]), unit)
    if isinstance(emission, Irregular):
        total = _of_structure(emission, scaled)
    else:
        etas, at = weak(dynamics.n_latent, emission, unit), one_point(scaled, emission)
        terms = [family.log_prob(at[name], etas[name]) for name, family in families(dynamics.n_latent).items()]
        how = {"weight": OFFSET_WEIGHT, "unexplained": UNEXPLAINED, "spare": SPARE}
        terms += [-log_default(name, at["sights"], **how) for name in emission.user_priors]
        total = torch.stack([summed(term, values["initial_mean"].ndim - 1) for term in terms]).sum(0)
    if emission.user_priors:
        in_data = moved(emission.in_units(values, 1 / prior["unit"]), prior["about"]) if "unit" in prior else values
        total = total + log_density(emission.user_priors, in_data)
    return total - prior_volume(dynamics, emission, unit)


def log_default(
    name: str, sights: LocPrecision, *, weight: float, unexplained: float, spare: float
) -> Float[Tensor, "*plates"]:
    """The default log density of each plate in units of the spread, as `natural` makes it: of the offset given the
    noise, or of the precision of the noise; `weight` is that of the offset."""
    if name == "emission_offset":
        return log_coefficients(sights, weight)[..., -1]
    precision, size = sights.precision, sights.precision.shape[-1]
    tilted, constant = _default_noise(size, unexplained, spare, precision.dtype, precision.device)
    return (tilted * Wishart().statistics(precision)).sum(-1) - constant


def log_coefficients(sights: LocPrecision, weight: float) -> Float[Tensor, "*plates M"]:
    """The default log densities of the coefficients of each input given the noise."""
    loc, precision = sights.loc, sights.precision
    squares = ((loc @ precision) * loc).sum(-1)
    size = loc.shape[-1] * math.log(2 * math.pi / weight)
    return (log_det(cholesky(precision)).unsqueeze(-1) - weight * squares - size) / 2


@lru_cache(maxsize=16)
def _default_noise(
    size: int, unexplained: float, spare: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The tilted natural parameters of the default prior of a precision, and its log-normalizer."""
    unit, family = torch.eye(size, dtype=dtype, device=device), Wishart()
    eta = family.natural(unit.new_tensor(size + spare), unit / ((size + spare) * unexplained))
    return family.tilted(eta), family.log_normalizer(eta)


def _of_structure(emission: Irregular, scaled: Parameters) -> Float[Tensor, "*r"]:
    """The log density of the parameters that have no prior of the user, in units of the spread."""
    default = {name: value for name, value in scaled.items() if name not in emission.user_priors}
    sizes = [_root(value) for name, value in default.items() if name.startswith(VARIANCES)]
    widths = [high - low for name, (low, high) in emission.structure.ranges.items() if name in default]
    n_weights = len(default) - len(sizes) - len(widths)
    constant = n_weights * math.log(2.0) + sum(map(math.log, widths))
    like = torch.zeros_like(next(iter(scaled.values())))
    return like - torch.stack(torch.broadcast_tensors(*sizes, like)).sum(0) - constant


def _root(value: Tensor) -> Tensor:
    """The square root, with the slope 0 at 0."""
    there = value > 0
    return torch.where(there, torch.where(there, value, 1.0).sqrt(), 0.0)


def prior_volume(
    dynamics: LinearDynamics, emission: LinearEmission | Irregular, unit: Float[Tensor, "F"]
) -> Float[Tensor, ""]:
    """The increase of the log density of the prior in units of the data; user priors keep theirs."""
    if isinstance(emission, Irregular):
        names = {*emission.parameters, *dynamics.parameters} - set(emission.user_priors)
        return sum(name.startswith(VARIANCES) for name in names) * unit.log().sum()
    powers = {"emission_offset": 1, "observation_noise": -(emission.n_features + 1 if emission.full else 2)}
    default = [power for name, power in powers.items() if name not in emission.user_priors]
    return (dynamics.n_latent + sum(default)) * unit.log().sum()
