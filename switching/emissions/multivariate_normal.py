r"""Full-covariance normal vectors: $x_t \mid s \sim N(\mu_s, \Lambda_s^{-1})$ with a normal-Wishart prior.

$$\Lambda \sim \text{Wishart}(\nu_0, W_0), \qquad \mu \mid \Lambda \sim N(m_0, (\kappa_0 \Lambda)^{-1})$$

With weighted count $n$, mean $\bar x$ and scatter $S$ the posterior has $\kappa = \kappa_0 + n$,
$m = (\kappa_0 m_0 + n \bar x)/\kappa$, $\nu = \nu_0 + n$ and
$W^{-1} = W_0^{-1} + S + \kappa_0 n (\bar x - m_0)(\bar x - m_0)^\top / \kappa$; its joint mode is $\mu = m$,
$\Lambda = (\nu - F) W$ (Murphy 2007, section 8). Under a normal-Wishart q

$$\theta' = (E[\Lambda]^{-1} E[\Lambda\mu],\; E[\Lambda]), \qquad
c = (E\log|\Lambda| - \log|E[\Lambda]| - F/\kappa)/2.$$

Missing features are integrated out. The likelihood of a step is that of its observed features, and the moments use the
conditional mean and covariance of the missing ones under the current parameters (Ghahramani & Jordan 1994). Under a q
they are one more latent variable, $q(x_{mis} \mid s)$, and $\log \int e^{E_q[\log p(x \mid \theta)]} dx_{mis}$ is the
likelihood of the observed features under $\theta'$, plus c. Steps with the same missing features share a factorisation.
A step without any observed feature is skipped. If the states share one $\Lambda$, see `tied`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import reduce
from typing import Any, cast

import pyro.distributions as dist
import torch
from jaxtyping import Bool, Float
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ...inference.families import LocPrecision, NormalWishart, SharedPrecision
from ...inference.families.normal import expected_normal
from ...inference.families.numerics import pack
from ...inference.families.peak import NEAR_FLOOR, peak
from ...inference.gaussian.op import Moments, multivariate_normal_log_density, multivariate_normal_moments
from ...inference.numerics.cholesky import cholesky, inverse, rounding
from ...inference.numerics.remembered import remembered
from ...inference.numerics.scalars import check_choice
from ..parameters import Parameter, Parameters, Shown
from ..priors import Site, normal_wishart_sites
from .conjugate import Representative, is_complete
from .contract import Maximized
from .normal import Normal
from .spread import spread
from .tied import ALL_STATES, NormalEmission, check_tied

WORD = 32  # the number of features whose pattern is coded in one integer


@dataclass(frozen=True, repr=False)
class MultivariateNormal(NormalEmission):
    """Normal vectors with a full covariance for each state.

    Parameters `loc [K, F]` and `precision [K, F, F]` (inverse covariance). `covariance` is accepted instead of
    `precision`.

    Arguments:
        n_features: F.
        prior: as for `Normal`. A Wishart of `precision` has the form of the default prior; it is an inverse Wishart of
            the covariance. Instead of `covariance` there may be a prior of its standard deviations and one of its
            correlations: `{"scale": dist.HalfNormal(2.0), "correlation": dist.LKJ(n_features, 2.0)}`.
        covariance: "full", a covariance for each state; "tied", one for all states; "diagonal" or "spherical", which
            make a `Normal` of this covariance, with `scale` in place of `covariance`.
        tied: `{"covariance": "all states"}` for one covariance, which all states share; `precision` and `covariance`
            then are [1, F, F]. None: every state has its own, except with `covariance="tied"`.

    Raises:
        TypeError: a number of features that is not an integer; a prior that is no mapping.
        ValueError: no features; a prior of another parameter; another `tied` or `covariance`.

    Murphy 2007, *Conjugate Bayesian analysis of the Gaussian distribution*, section 8, for the default prior.

    See Also:
        `Normal`, for independent features; `FactorAnalysis`, for a covariance of fewer parameters;
        docs/guides/emissions.md.

    Example:
        >>> import samplehold as sh
        >>> x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> model = sh.SwitchingSSM(sh.Markov(n_states=2), sh.MultivariateNormal(n_features=2))
        >>> fit = model.fit(x, progress=False)
        >>> fit.model.describe()["covariance"].shape
        torch.Size([2, 2, 2])
    """

    n_features: int
    prior: Any = field(default=None, kw_only=True, repr=False, compare=False)
    tied: Mapping[str, str] | None = field(default=None, kw_only=True, hash=False)
    covariance: InitVar[str] = field(default="full", kw_only=True, repr=False)
    family = NormalWishart()
    have_unit = True
    fills_in = True
    by_feature = False
    tied_name = "covariance"
    of_precision = ("precision", "df", "inverse_scale")
    parameters = {  # noqa: RUF012 the same for all instances
        "loc": Parameter(("state", "feature")),
        "precision": Parameter(
            ("state", "feature", "feature_new"),
            constraints.positive_definite,
            Shown("covariance", constraints.positive_definite, inverse, inverse),
        ),
    }

    def __new__(cls, n_features: Any = 1, *, prior: Any = None, tied: Any = None, covariance: str = "full") -> Any:
        check_choice("covariance", covariance, ("full", "diagonal", "spherical", "tied"))
        if covariance in ("full", "tied"):
            return super().__new__(cls)
        check_tied(tied, cls.tied_name)
        shared = None if tied is None else {Normal.tied_name: ALL_STATES}
        return Normal(n_features, prior=prior, tied=shared, covariance=covariance)

    def __post_init__(self, *covariance: str) -> None:
        if "tied" in covariance and self.tied is None:
            object.__setattr__(self, "tied", {self.tied_name: ALL_STATES})
        super().__post_init__()

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """The weight of half an observation, with the spread within a state; locations within ten times that of the
        data."""
        scale, n_precisions = spread(x, n_states, self.n_features), n_states if self.tied is None else 1
        return {
            "loc": scale.center.expand(n_states, -1),
            "count": (0.01 * scale.within / scale.total).min().expand(n_states),
            "df": torch.full_like(scale.center[:1], self.n_features + 0.5).expand(n_precisions),
            "inverse_scale": torch.diag(scale.within / 2).expand(n_precisions, -1, -1),
        }

    def in_units(self, table: Parameters, unit: Tensor) -> Parameters:
        squares = unit.unsqueeze(-1) * unit
        factors = {"loc": 1 / unit, "precision": squares, "inverse_scale": 1 / squares}
        return {name: value * factors[name] if name in factors else value for name, value in table.items()}

    def natural(self, prior: Parameters) -> Tensor:
        loc, count, df, scale = (prior[name] for name in ("loc", "count", "df", "inverse_scale"))
        if self.tied is None:
            return NormalWishart.of_inverse(loc, count, df, scale)
        return SharedPrecision.of_inverse(loc, count, df.squeeze(-1), scale.squeeze(-3))

    def hyperparameters_of(self, eta: Tensor) -> Parameters:
        if self.tied is not None:
            return super().hyperparameters_of(eta)
        q = NormalWishart().usual(eta)
        return {"loc": q.loc, "count": q.kappa, "df": q.df, "inverse_scale": inverse(q.scale_matrix)}

    def wishart(self, prior: Parameters) -> tuple[Tensor, Tensor]:
        """The degrees of freedom and the scale matrices of the prior of precisions."""
        return prior["df"], inverse(prior["inverse_scale"])

    def default_sites(self, prior: Parameters) -> list[Site]:
        return normal_wishart_sites(("loc", "precision"), prior["loc"], prior["count"], *self.wishart(prior))

    def point(self, values: Parameters) -> Any:
        if self.tied is None:
            return super().point(values)
        return LocPrecision(values["loc"], values["precision"].squeeze(-3))

    def values(self, point: Any) -> Parameters:
        if self.tied is None:
            return super().values(point)
        return {"loc": point.loc, "precision": point.precision.unsqueeze(-3)}

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        observed = ~torch.isnan(x)
        residual = torch.where(observed, x, 0.0) - values["loc"]
        if bool(observed.all()):
            return _log_density(residual, cholesky(values["precision"]))
        # a missing feature becomes an independent standard normal at its mean, and its density is subtracted
        seen = observed.to(x.dtype)
        covariance = inverse(values["precision"])
        covariance = covariance * seen.unsqueeze(-1) * seen.unsqueeze(-2) + torch.diag_embed(1 - seen)
        chol = cholesky(inverse(covariance))
        missing = (1 - seen).sum(-1)
        return _log_density(torch.where(observed, residual, 0.0), chol) + 0.5 * math.log(2 * math.pi) * missing

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        rows = x.reshape(-1, self.n_features)
        known, loc = patterns(rows), values["loc"]
        values = {"loc": loc, "precision": values["precision"].expand(*loc.shape, -1)}
        parts = [_pattern_density(rows[members], observed, values) for observed, members in known]
        table = in_place(parts, known)
        return table.reshape(*table.shape[:-2], *x.shape[:-1], table.shape[-1])

    def expected_table(self, x: Tensor, statistics: Tensor) -> Tensor:
        if not is_complete(x):
            return super().expected_table(x, statistics)
        rows, expected = x.reshape(-1, self.n_features), expected_normal(self.to_each(statistics))
        table = multivariate_normal_log_density(rows, expected.loc, expected.chol, expected.log_volume)
        return table.reshape(*table.shape[:-2], *x.shape[:-1], table.shape[-1])

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return dist.MultivariateNormal(values["loc"], precision_matrix=values["precision"])

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        mean, variance = self.moments(values)
        return torch.special.ndtr((x - mean) / variance.sqrt())

    def message(self, x: Tensor, weights: Tensor, near: Parameters | None = None) -> Tensor:
        if near is None:
            zero = x.new_zeros(weights.shape[-1], self.n_features)
            near = {"loc": zero, "precision": torch.diag_embed(torch.ones_like(zero))}
        precision = near["precision"]
        count, first, second = weighted_moments(x, weights, near["loc"], lambda seen: completion(seen, precision))
        half = 0.5 * count.unsqueeze(-1)
        return self.from_each(pack(first, -half, half, -0.5 * second.flatten(-2)))

    def peak_of(self, message: Tensor, floor: Tensor) -> Maximized:
        maximum = peak(message, floor)
        return Maximized({"loc": maximum.loc, "precision": maximum.precision})

    def collapsed(self, values: Parameters, floor: Tensor) -> Tensor:
        return in_planes(values["precision"], floor).expand(values["loc"].shape[:-1])

    def representative(self, statistics: Tensor) -> Representative:
        dim, each = self.n_features, self.to_each(statistics)
        expected, precision = expected_normal(each), each[..., dim + 2 :].unflatten(-1, (dim, dim))
        values = {"loc": expected.loc, "precision": self._once(precision)}
        return Representative(values, expected.constant[..., None])


def in_planes(precision: Float[Tensor, "*n F F"], floor: Float[Tensor, "F"]) -> Bool[Tensor, "*n"]:
    """Whether the variance of some sum of features has fallen to its floor, or to rounding."""
    unit, covariance = floor.sqrt(), inverse(precision)
    size = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    narrow = torch.linalg.eigvalsh(covariance / unit.unsqueeze(-1) / unit)[..., 0] <= NEAR_FLOOR
    correlations = covariance / size.unsqueeze(-1) / size.unsqueeze(-2)
    return narrow | (torch.linalg.eigvalsh(correlations)[..., 0] <= 2 * rounding(precision))


def _log_density(residual: Tensor, chol_precision: Tensor) -> Tensor:
    """log N(x; loc, precision) from x - loc [..., F] and the Cholesky factor of the precision."""
    whitened = (chol_precision * residual.unsqueeze(-1)).sum(-2)
    half_log_det = chol_precision.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return half_log_det - 0.5 * (whitened.square().sum(-1) + residual.shape[-1] * math.log(2 * math.pi))


@remembered
def patterns(x: Tensor) -> list[tuple[Tensor | None, Tensor | slice]]:
    """The patterns of observed features in x [N, F]: the numbers of the features (None: all), and the rows of the
    pattern."""
    if is_complete(x):
        return [(None, slice(None))]
    missing = torch.isnan(x)
    some = missing.any(-1)
    rows, missing = some.nonzero()[:, 0], missing[some]
    number = torch.zeros_like(rows)
    for columns in missing.split(WORD, -1):  # a pattern so far and the bits of these features make one integer
        bits = columns.long() << torch.arange(columns.shape[-1], device=x.device)
        number = torch.unique((number << WORD) + bits.sum(-1), return_inverse=True)[1]
    groups = number.argsort(stable=True).split(number.bincount().tolist())
    patterns: list[tuple[Tensor | None, Tensor | slice]] = [
        ((~missing[group[0]]).nonzero()[:, 0], rows[group]) for group in groups
    ]
    return patterns if bool(some.all()) else [(None, (~some).nonzero()[:, 0]), *patterns]


def in_place(parts: Sequence[Tensor], some: Sequence[tuple[Tensor | None, Tensor | slice]]) -> Float[Tensor, "*r N K"]:
    """Tables `[*r, n, K]` of the n rows of each pattern as one table of all rows."""
    if len(some) == 1:
        return parts[0]
    members = torch.cat([cast(Tensor, members) for _, members in some])
    place = torch.empty_like(members).scatter_(0, members, torch.arange(len(members), device=members.device))
    return torch.cat(list(parts), -2).index_select(-2, place)


def _pattern_density(x: Tensor, observed: Tensor | None, values: Parameters) -> Tensor:
    """Log density [*r, N, K] of rows with the same missing features."""
    loc, precision = values["loc"], values["precision"]
    if observed is not None:
        x, loc = x[:, observed], loc[..., observed]
        # from the covariance: computed from the whole precision, the precision of the observed features loses its
        # digits if # features are strongly correlated
        precision = inverse(inverse(precision)[..., observed, :][..., observed])
    return multivariate_normal_log_density(x, loc, cholesky(precision))


def weighted_moments(
    x: Float[Tensor, "N F"],
    weights: Float[Tensor, "*r N K"],
    loc: Float[Tensor, "*#r #K F"],
    completed: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> Moments:
    """Expected moments about the states' means; steps without any observed feature do not count.

    Arguments:
        completed: see `completion`, from the numbers of the observed features.
    """

    def of_pattern(observed: Tensor | None, rows: Tensor | slice) -> Moments:
        used = weights[..., rows, :]
        if observed is None:
            return multivariate_normal_moments(x[rows], used, loc)
        gain, spread = completed(observed)
        count, first, second = multivariate_normal_moments(x[rows][:, observed], used, loc[..., observed])
        first = (gain @ first.unsqueeze(-1)).squeeze(-1)
        return Moments(count, first, gain @ second @ gain.mT + count[..., None, None] * spread)

    parts = [of_pattern(observed, rows) for observed, rows in patterns(x) if observed is None or len(observed)]
    parts = parts or [of_pattern(None, slice(0, 0))]  # nothing is observed
    return Moments(*(reduce(torch.add, part) for part in zip(*parts, strict=True)))


def completion(observed: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """The regression of features on the observed ones: residuals are `gain [*r, K, F, O]` times the observed residuals.
    They have the covariance `spread [*r, K, F, F]`, which is 0 except for missing features.

    Given the observed, the missing features have precision `precision[m, m]` and mean
    `loc[m] - precision[m, m]^-1 precision[m, o] (x[o] - loc[o])`.
    """
    unit = torch.eye(precision.shape[-1], dtype=precision.dtype, device=precision.device)
    missing = torch.ones_like(unit[0], dtype=torch.bool).index_fill(0, observed, False)
    both = missing.unsqueeze(-1) & missing
    spread = torch.where(both, inverse(torch.where(both, precision, unit)), 0.0)
    whole = unit - spread @ precision
    return whole[..., observed], spread
