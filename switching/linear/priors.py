r"""Priors of linear models, in units of the data, and the conjugate blocks that they are put together from.

Everything is said of $(x - a) / u$, where a and u, the hyperparameters `center` and `spread`, tell where the series
lies and how far it spreads, so that nothing depends on its unit. With $(M, \Lambda)$ the coefficients of $(s, 1)$
and the precision of what is left,

    moves     A, c, inv(Q)      matrix-normal-Wishart, about coefficients 0 and a noise of 1
    sights    C, d, inv(R)      the same, about a noise that is a small share of the spread; diagonal: by feature
    first     m, inv(P)         normal-Wishart, about 0 and 1

each worth about an observation. Of a structure, standard deviations are exponential with mean u, and partial
autocorrelations uniform.
"""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.families import LocPrecision, MatrixNormalWishart, NormalWishart, VectorFamily
from ...inference.numerics.cholesky import cholesky, cholesky_inverse
from ..data.series import Series
from ..emissions.spread import check_squares, spread
from ..parameters import Parameters
from .contract import LinearDynamics
from .emission import Irregular, LinearEmission
from .structures import LocalLevel, LocalLinearTrend, Structure, Sum

WEIGHT = 0.5  # steps that the prior of coefficients is worth
OFFSET_WEIGHT = 0.01
UNEXPLAINED = 0.1  # share of the variance that the prior takes for noise

Blocks = dict[str, tuple[VectorFamily[Any], Tensor]]
"""By name, families and natural parameters of the prior: with an axis of one regime, `[1, ...]`."""


class Units(NamedTuple):
    """Where a series lies and how far it spreads, [F]."""

    center: Tensor
    spread: Tensor

    @staticmethod
    def of(emission: LinearEmission | Irregular, series: Series | None) -> "Units":
        """Of the observed values; of a structure without a level about 0. Without a series 0 and 1.

        Raises:
            ValueError: a spread whose square the dtype of the series does not hold; names the feature.
        """
        rows = None if series is None else series.rows.detach().double()
        found = spread(rows, 1, emission.n_features)
        center, scale = found.center, found.scale
        if isinstance(emission, Irregular) and not has_level(emission.structure):
            center, scale = torch.zeros_like(center), (scale.square() + center.square()).sqrt()
        if series is not None:
            check_squares("x", scale, series.observations.dtype, series.features_of())
        return Units(center, scale)

    @property
    def back(self) -> "Units":
        """From these units to those of the data."""
        return Units(-self.center / self.spread, 1 / self.spread)

    def of_series(self, series: Series) -> Series:
        """The series in these units, in its own dtype."""
        x = series.observations
        return series._mapped(lambda table: ((table.double() - self.center) / self.spread).to(x), "observations")

    def log_volume(self, series: Series) -> float:
        """What the log density of all sequences is greater by in these units."""
        return float((~series.rows.isnan()).double().sum(0) @ self.spread.log())


def has_level(structure: Structure) -> bool:
    """Whether it takes up any constant."""
    terms = structure.terms if isinstance(structure, Sum) else (structure,)
    return any(isinstance(term, LocalLevel | LocalLinearTrend) for term in terms)


# ---- conjugate blocks ------------------------------------------------------------------------------------------------


def blocks(n_latent: int, emission: LinearEmission, like: Tensor) -> Blocks:
    """The prior in units of the data."""
    regression, n_features = MatrixNormalWishart(n_latent + 1), emission.n_features
    weight = torch.diag(torch.tensor([WEIGHT] * n_latent + [OFFSET_WEIGHT], device="cpu")).to(like)

    def of_noise(variance: float, size: int) -> Tensor:
        df = like.new_tensor(size + 1.0)
        loc = like.new_zeros(n_latent + 1, size)
        return regression.natural(loc, weight, df, torch.eye(size).to(like) / (df * variance))

    one = of_noise(UNEXPLAINED, n_features if emission.full else 1)
    sights = one if emission.full else one.expand(n_features, -1)
    df = like.new_tensor(n_latent + 1.0)
    first = NormalWishart().natural(
        like.new_zeros(n_latent), like.new_tensor(WEIGHT), df, torch.eye(n_latent).to(like) / df
    )
    return {
        "moves": (regression, of_noise(1.0, n_latent).unsqueeze(0)),
        "sights": (regression, sights.unsqueeze(0)),
        "first": (NormalWishart(), first.unsqueeze(0)),
    }


NAMES = {
    "moves": ("transition", "transition_offset", "state_noise"),
    "sights": ("emission", "emission_offset", "observation_noise"),
    "first": ("initial_mean", "initial_covariance"),
}
"""The parameters of each block."""


def points(values: Parameters, emission: LinearEmission) -> dict[str, LocPrecision]:
    """Parameters `[*r, ...]` as points of the blocks, `[*r, 1, ...]`."""
    noise, sights = values["observation_noise"], _coefficients(values["emission"], values["emission_offset"])
    if not emission.full:
        noise, sights = noise[..., None, None], sights.mT.unsqueeze(-1)
    found = {
        "moves": LocPrecision(
            _coefficients(values["transition"], values["transition_offset"]), _inverse(values["state_noise"])
        ),
        "sights": LocPrecision(sights, _inverse(noise)),
        "first": LocPrecision(values["initial_mean"], _inverse(values["initial_covariance"])),
    }
    axes = {"moves": 2, "sights": 2 if emission.full else 3, "first": 1}
    return {
        name: LocPrecision(point.loc.unsqueeze(-axes[name] - 1), point.precision.unsqueeze(-max(axes[name], 2) - 1))
        for name, point in found.items()
    }


def collect(found: dict[str, LocPrecision], emission: LinearEmission) -> Parameters:
    """The other way round."""
    moves, sights, first = (found[name] for name in NAMES)
    loc, noise = moves.loc.squeeze(-3), _inverse(moves.precision.squeeze(-3))
    tables = {"transition": loc[..., :-1, :].mT, "transition_offset": loc[..., -1, :], "state_noise": noise}
    if emission.full:
        loc, noise = sights.loc.squeeze(-3), _inverse(sights.precision.squeeze(-3))
    else:
        loc, noise = sights.loc.squeeze(-4).squeeze(-1).mT, 1 / sights.precision.squeeze(-4)[..., 0, 0]
    tables |= {"emission": loc[..., :-1, :].mT, "emission_offset": loc[..., -1, :], "observation_noise": noise}
    start = {"initial_mean": first.loc.squeeze(-2), "initial_covariance": _inverse(first.precision.squeeze(-3))}
    return tables | start


def _coefficients(matrix: Tensor, offset: Tensor) -> Tensor:
    """[*r, L + 1, D], of the latents and of 1."""
    return torch.cat([matrix.mT, offset.unsqueeze(-2)], -2)


def _inverse(matrix: Tensor) -> Tensor:
    return cholesky_inverse(cholesky(matrix))


# ---- densities -------------------------------------------------------------------------------------------------------


def log_prior(
    dynamics: LinearDynamics, emission: LinearEmission | Irregular, prior: Parameters, values: Parameters
) -> Float[Tensor, "*r"]:
    """Log density at parameters `[*r, ...]`, of coefficients and precisions; of a structure of standard deviations and
    partial autocorrelations."""
    center, unit = prior["center"], prior["spread"]
    own = emission.in_units(values, center, unit)
    if isinstance(emission, Irregular):
        sizes = [own[name].clamp_min(0).sqrt() for name in own if name.startswith("sigma2.")]
        n_weights = len(own) - len(sizes)
        total = -torch.stack(torch.broadcast_tensors(*sizes)).sum(0) - n_weights * math.log(2.0)
        return total - prior_volume(dynamics, emission, unit)
    found, at = blocks(dynamics.n_latent, emission, unit), points(own, emission)
    terms = [family.log_prob(at[name], eta) for name, (family, eta) in found.items()]
    total = torch.stack([term.flatten(values["initial_mean"].ndim - 1).sum(-1) for term in terms]).sum(0)
    return total - prior_volume(dynamics, emission, unit)


def prior_volume(
    dynamics: LinearDynamics, emission: LinearEmission | Irregular, unit: Float[Tensor, "F"]
) -> Float[Tensor, ""]:
    """What the log density of the prior is greater by in units of the data."""
    if isinstance(emission, Irregular):
        return (
            sum(name.startswith("sigma2.") for name in (*emission.parameters, *dynamics.parameters)) * unit.log().sum()
        )
    per_feature = dynamics.n_latent + 1 - (emission.n_features + 1 if emission.full else 2)
    return per_feature * unit.log().sum()
