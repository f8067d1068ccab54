r"""Independent normal features: $x_{tf} \mid s \sim N(\mu_{sf}, 1/\tau_{sf})$ with a normal-gamma prior.

$$\tau \sim \text{Gamma}(a_0, b_0), \qquad \mu \mid \tau \sim N(m_0, 1/(\kappa_0 \tau))$$

With weights of total $n$, weighted mean $\bar x$ and scatter $S = \sum_t w_t (x_t - \bar x)^2$ the posterior is of the
same form with $\kappa = \kappa_0 + n$, $m = (\kappa_0 m_0 + n \bar x)/\kappa$, $a = a_0 + n/2$ and
$b = b_0 + S/2 + \kappa_0 n (\bar x - m_0)^2 / (2\kappa)$; its joint mode is $\mu = m$, $\tau = (a - 1/2)/b$
(Murphy 2007, *Conjugate Bayesian analysis of the Gaussian distribution*, section 3). Under a normal-gamma q

$$\theta' = (E[\tau\mu]/E[\tau],\; E[\tau]), \qquad c = (E[\log\tau] - \log E[\tau] - 1/\kappa)/2.$$

If the states share one $\tau$ for each feature, see `tied`. With `covariance="spherical"` the features of a state share
one $\tau$: then $a = a_0 + \sum_f n_f / 2$, and b is a sum over features. The family is that of tied states,
`SharedPrecision`, with features instead of states.

**Known noise.** If a measurement has noise of a known variance $v_t$, then $x_t \sim N(\mu, 1/\tau + v_t)$. The true
value $y_t \sim N(\mu, 1/\tau)$ is latent. With $g_t = 1 / (1 + \tau v_t)$ its posterior has mean
$\mu + g_t (x_t - \mu)$ and variance $g_t v_t$, whose moments stand in place of those of $x_t$ in an M-step.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

import pyro.distributions as dist
import torch
from jaxtyping import Float
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ...inference.families import LocPrecision, NormalGamma, SharedPrecision
from ...inference.gaussian.op import Moments, normal_log_density, normal_moments
from ...inference.numerics.scalars import check_choice
from ..parameters import Parameter, Parameters, Shown
from ..priors import Conjugate, Site, normal_gamma_sites
from ..user_priors import as_text
from .conjugate import Representative, UsualEmission
from .contract import Maximized
from .spread import Spread, common, spread, varying
from .tied import ALL_STATES, NormalEmission


def _precision_of(scale: Tensor) -> Tensor:
    return scale**-2


@dataclass(frozen=True, repr=False)
class Normal(NormalEmission, UsualEmission):
    """Independent normal features.

    Parameters `loc [K, F]` and `precision [K, F]` (inverse variance). `scale` is accepted instead of `precision`.

    Arguments:
        n_features: F.
        tied: `{"scale": "all states"}` for one scale of each feature, which all states share; `precision` and `scale`
            then are [1, F]. None: every state has its own.
        covariance: "diagonal", or "spherical" for one scale of all features; `precision` and `scale` then are [K, 1],
            or [1, 1] if they are tied. Features should have one unit.
        prior: distributions of Pyro by name of a parameter, in place of its default prior; each is of one number or of
            a table `[K, F]`. EM, SVI and NUTS accept any; message passing accepts those of the default's form.

    Raises:
        TypeError: a number of features that is not an integer; a prior that is no mapping.
        ValueError: no features; a prior of another parameter; another `tied` or `covariance`.

    Murphy 2007, *Conjugate Bayesian analysis of the Gaussian distribution*, section 3, for the default prior.

    See Also:
        `MultivariateNormal`, for dependent features; `StudentT`, for outliers; `LinearRegression`, for inputs;
        docs/guides/emissions.md.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal(n_features=1))
        >>> sorted(model.fit([0.1, -0.2, 0.0, 5.1, 4.8, 5.0], progress=False).model.describe())
        ['loc', 'redraw_prob', 'scale', 'state_probs']
        >>> tied = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal(tied={"scale": "all states"}))
        >>> tied.fit([0.1, -0.2, 0.0, 5.1, 4.8, 5.0], progress=False).model.describe()["scale"].shape
        torch.Size([1, 1])
    """

    n_features: int = 1
    prior: Any = field(default=None, kw_only=True, repr=False, compare=False)
    tied: Mapping[str, str] | None = field(default=None, kw_only=True, hash=False)
    covariance: InitVar[str] = field(default="diagonal", kw_only=True, repr=False)
    family = NormalGamma()
    stated_by = ("loc", "count", "shape", "rate")
    have_unit = True
    takes_noise = True
    aligned = True
    by_feature = True
    tied_name = "scale"
    of_precision = ("precision", "shape", "rate")
    parameters = {  # noqa: RUF012 the same for all instances
        "loc": Parameter(("state", "feature")),
        "precision": Parameter(
            ("state", "feature"),
            constraints.positive,
            Shown("scale", constraints.positive, torch.rsqrt, _precision_of),
        ),
    }

    def __new__(cls, n_features: Any = 1, *, prior: Any = None, tied: Any = None, covariance: str = "diagonal") -> Any:
        if isinstance(covariance, str) and covariance in ("full", "tied"):
            raise ValueError(
                f"covariance: got {covariance!r}, but the features of a Normal are independent; use "
                f'MultivariateNormal(n_features, covariance={covariance!r}), or tied={{"scale": "{ALL_STATES}"}}.'
            )
        check_choice("covariance", covariance, ("diagonal", "spherical"))
        return object.__new__(SphericalNormal if covariance == "spherical" else cls)

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """The weight of half an observation, with the spread within a state; locations within ten times that of the
        data."""
        scale, n_precisions = self._spread(x, n_states), n_states if self.tied is None else 1
        return {
            "loc": scale.center.expand(n_states, -1),
            "count": (0.01 * scale.within / scale.total).expand(n_states, -1),
            "shape": torch.full_like(scale.within, 0.75).expand(n_precisions, -1),
            "rate": (scale.within / 4).expand(n_precisions, -1),
        }

    def _spread(self, x: Tensor | None, n_states: int) -> Spread:
        """The spread of the data by features that have a precision of their own."""
        return spread(x, n_states, self.n_features)

    def in_units(self, table: Parameters, unit: Tensor) -> Parameters:
        factors = {"loc": 1 / unit, "precision": unit**2, "rate": unit**-2}
        return {name: value * factors[name] if name in factors else value for name, value in table.items()}

    def natural(self, prior: Parameters) -> Tensor:
        if not self.shares:
            return super().natural(prior)
        loc, count, shape, rate = (self._grouped(prior[name]) for name in self.stated_by)
        return SharedPrecision.of_inverse(loc.unsqueeze(-1), count, 2 * shape.squeeze(-1), 2 * rate.unsqueeze(-1))

    def hyperparameters_of(self, eta: Tensor) -> Parameters:
        return Conjugate.hyperparameters_of(self, eta) if self.shares else super().hyperparameters_of(eta)

    def wishart(self, prior: Parameters) -> tuple[Tensor, Tensor]:
        """The degrees of freedom and the scale matrices of the prior of precisions."""
        return 2 * prior["shape"], (0.5 / prior["rate"])[..., None, None]

    def default_sites(self, prior: Parameters) -> list[Site]:
        return normal_gamma_sites(("loc", "precision"), *(prior[name] for name in self.stated_by))

    def point(self, values: Parameters) -> Any:
        if not self.shares:
            return super().point(values)
        return LocPrecision(*(self._grouped(values[name]).unsqueeze(-1) for name in ("loc", "precision")))

    def values(self, point: Any) -> Parameters:
        if not self.shares:
            return super().values(point)
        return {name: self._ungrouped(table.squeeze(-1)) for name, table in vars(point).items()}

    def _grouped(self, table: Tensor, after: int = 0) -> Tensor:
        return table.transpose(-2 - after, -1 - after)

    def _ungrouped(self, table: Tensor, after: int = 0) -> Tensor:
        return self._grouped(table, after)

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        x, noise = self._measured(x)
        precision = values["precision"]
        precision = precision if noise is None else precision / (1 + precision * noise)
        observed = ~torch.isnan(x)
        residual = torch.where(observed, x, 0.0) - values["loc"]
        terms = 0.5 * (precision.log() - math.log(2 * math.pi) - precision * residual**2)
        return torch.where(observed, terms, 0.0).sum(-1)

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        return self._table(x, values, values["precision"].log())

    def _measured(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Observations, and the variances of their noise if they are beside them."""
        n = self.n_features
        return (x, None) if x.shape[-1] == n else (x[..., :n], x[..., n:])

    def _table(self, x: Tensor, values: Parameters, log_precision: Tensor) -> Tensor:
        if x.shape[-1] != self.n_features:
            return super().table(x, values)
        loc, precision = values["loc"], values["precision"]
        if precision.shape != loc.shape:
            precision, log_precision = precision.expand_as(loc), log_precision.expand_as(loc)
        if x.ndim == 2:
            return normal_log_density(x, loc, precision, log_precision)
        table = normal_log_density(x.reshape(-1, self.n_features), loc, precision, log_precision)
        return table.reshape(*table.shape[:-2], *x.shape[:-1], table.shape[-1])

    def expected_table(self, x: Tensor, statistics: Tensor) -> Tensor:
        values, constant = self.representative(statistics)
        return self._table(x, values, values["precision"].log() + 2 * constant)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return dist.Normal(values["loc"], values["precision"].rsqrt()).to_event(1)

    def narrowness(self, values: Parameters) -> Tensor:
        return (1 / values["precision"]).expand_as(values["loc"])

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        return torch.special.ndtr((x - values["loc"]) * values["precision"].sqrt())

    def message(self, x: Tensor, weights: Tensor, near: Parameters | None = None) -> Tensor:
        about = x.new_zeros(weights.shape[-1], self.n_features) if near is None else near["loc"]
        x, noise = self._measured(x)
        if noise is None:
            count, first, second = normal_moments(x, weights, about)
        else:
            assert near is not None  # an M-step starts from values
            count, first, second = _true_moments(x, noise, weights, near)
        return self.from_each(torch.stack([first, -count / 2, count / 2, -second / 2], -1))

    def peak_of(self, message: Tensor, floor: Tensor) -> Maximized:
        point = NormalGamma().expected(message)
        variance = 1 / point.precision
        held = variance.clamp_min(0.0).maximum(floor)  # NaN stays NaN
        return Maximized({"loc": point.loc, "precision": 1 / held})

    def representative(self, statistics: Tensor) -> Representative:
        first, second, log_precision, precision = self.to_each(statistics).unbind(-1)
        loc = first / precision
        constant = (log_precision - precision.log() - (second - first * loc)) / 2
        return Representative({"loc": loc, "precision": self._once(precision)}, constant)


def _true_moments(
    x: Float[Tensor, "*s N F"], noise: Float[Tensor, "*s N F"], weights: Float[Tensor, "*rs N K"], near: Parameters
) -> Moments:
    """Weighted moments about the locations, of the posterior of true values under parameters `[*r, K, F]`; with an axis
    of subjects before all others, of each subject alone."""
    seen = ~x.isnan()
    loc, precision = near["loc"].unsqueeze(-3), near["precision"].unsqueeze(-3)
    gain = 1 / (1 + precision * noise.unsqueeze(-2))
    mean = gain * (torch.where(seen, x, 0.0).unsqueeze(-2) - loc)
    used = weights.unsqueeze(-1) * seen.unsqueeze(-2)
    variance = gain * noise.unsqueeze(-2)
    return Moments(used.sum(-3), (used * mean).sum(-3), (used * (mean.square() + variance)).sum(-3))


@dataclass(frozen=True, repr=False)
class SphericalNormal(Normal):
    """A `Normal` with one scale of all features in each state; made by `Normal(n, covariance="spherical")`.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Markov(2), sh.Normal(3, covariance="spherical"))
        >>> model.fit(torch.eye(6)[:, :3], restarts=1, progress=False).model.describe()["scale"].shape
        torch.Size([2, 1])
    """

    covariance: InitVar[str] = field(default="spherical", kw_only=True, repr=False)
    family = SharedPrecision()
    parameters = {  # noqa: RUF012 the same for all instances
        "loc": Normal.parameters["loc"],
        "precision": replace(Normal.parameters["precision"], dims=("state", "shared")),
    }

    @property
    def shares(self) -> bool:
        return True

    def __repr__(self) -> str:
        tied = [] if self.tied is None else [f"tied={self.tied!r}"]
        shown = [f"n_features={self.n_features}", *tied, "covariance='spherical'", *filter(None, [as_text(self.prior)])]
        return f"Normal({', '.join(shown)})"

    @property
    def _per_state(self) -> int:  # type: ignore[override]
        return self.n_features

    def _spread(self, x: Tensor | None, n_states: int) -> Spread:
        known = super()._spread(x, n_states)
        varies = torch.ones_like(known.within, dtype=torch.bool) if x is None else varying(x)
        total = torch.where(varies, known.total, common(known.total, varies))
        return known._replace(total=total, within=common(known.within, varies))

    # ---- units: one for all features ---------------------------------------------------------------------------------

    def units(self, center: Tensor, scale: Tensor, fixed: Collection[str]) -> tuple[Tensor, Tensor]:
        return super().units(center, common(scale.square(), scale > 0).sqrt().expand_as(scale), fixed)

    def in_units(self, table: Parameters, unit: Tensor) -> Parameters:
        return super().in_units(table, unit[:1])

    # ---- the family: a plate for each state, or none if they share a precision too; a location for each feature ------

    def _grouped(self, table: Tensor, after: int = 0) -> Tensor:
        return table if self.tied is None else table.flatten(-2 - after, -1 - after)

    def _ungrouped(self, table: Tensor, after: int = 0) -> Tensor:
        n = min(self.n_features, table.shape[-1 - after])  # one precision
        return table if self.tied is None else table.unflatten(-1 - after, (-1, n))

    def peak_of(self, message: Tensor, floor: Tensor) -> Maximized:
        return super().peak_of(message, floor.mean(-1, keepdim=True))
