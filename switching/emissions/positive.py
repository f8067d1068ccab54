r"""Independent positive features: gamma, exponential and log-normal.

| emission | $p(x \mid s)$ | mean | variance | prior |
|---|---|---|---|---|
| Gamma | $b^a x^{a - 1} e^{-b x} / \Gamma(a)$ | $a / b$ | $a / b^2$ | gamma for a, log-normal for b |
| Exponential | $b e^{-b x}$ | $1 / b$ | $1 / b^2$ | gamma for b, conjugate |
| LogNormal | $N(\log x; \mu, v) / x$ | $e^{\mu + v / 2}$ | $(e^v - 1)\, e^{2 \mu + v}$ | normal-gamma, conjugate |

Fits use logarithms of parameters, which another unit of x only moves; so these emissions need no units. With Stirling's
$\delta$ (see `gammas`) the log density of a gamma is, without cancellation where a is large,

$$a\,(\log u - (u - 1)) - \log x + \tfrac12 \log(a / 2\pi) - \delta(a), \qquad u = b x / a.$$
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ...inference import families
from ...inference.families import NormalGamma
from ...inference.numerics.delegation import delegated
from ...inference.numerics.gammas import stirling_rest
from ..parameters import Parameter, Parameters
from .conjugate import Representative, UsualEmission
from .contract import Maximized
from .normal import Normal
from .separate import Summarized, by_scipy
from .spread import least_mean, spread

POSITIVE = "positive numbers"
INSTEAD = "ZeroInflated({name}(...)) accepts 0 too, and Normal or StudentT accept any number"
WIDE = 2.0  # the standard deviation of log rate under its weak prior, whose mode has e^(WIDE^2 / 2) times the density


@dataclass(frozen=True, repr=False)
class Gamma(Summarized):
    """Independent positive features; parameters `shape` and `rate`, `[K, F]` each.

    The mean is `shape / rate`, and the standard deviation `shape**0.5 / rate`. `Gamma.of_moments(mean, sd)` gives the
    parameters of a mean and a standard deviation. `scipy.stats.gamma(shape, scale=1 / rate)` is the same distribution.

    Arguments:
        n_features: F.
        prior: distributions of Pyro by name of a parameter, in place of its default prior; each is of one number or of
            a table `[K, F]`. EM, SVI and NUTS accept any. Message passing does not support this emission.

    Raises:
        TypeError: a number of features that is not an integer.
        ValueError: no features; a prior of another parameter.

    See Also:
        `Exponential`, whose shape is 1; `LogNormal`, which message passing supports; `ZeroInflated`, for exact zeros;
        docs/guides/emissions.md.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Markov(n_states=2), sh.Gamma())
        >>> model.fit([0.5, 0.4, 0.6, 0.5, 9.0, 11.0, 10.0, 9.5], progress=False).model.emission
        Gamma(n_features=1)
        >>> sh.Gamma.of_moments(mean=[[1.0], [10.0]], sd=[[0.5], [5.0]])["shape"].flatten()
        tensor([4., 4.])
    """

    support = constraints.positive
    expects = POSITIVE
    instead = INSTEAD.format(name="Gamma")
    parameters = {  # noqa: RUF012 the same for all instances
        "shape": Parameter(("state", "feature"), constraints.positive),
        "rate": Parameter(("state", "feature"), constraints.positive),
    }

    @staticmethod
    def of_moments(mean: Any, sd: Any) -> Parameters:
        """Parameters `shape` and `rate` of means and standard deviations, numbers or tables of one shape.

        Arguments:
            mean, sd: `[K, F]`, of each feature in each state.

        Raises:
            ValueError: a mean or a standard deviation that is not positive and finite.
        """
        tables = {name: torch.as_tensor(value) for name, value in {"mean": mean, "sd": sd}.items()}
        for name, table in tables.items():
            if not bool(((table > 0) & (table < torch.inf)).all()):
                raise ValueError(f"{name}: got {table.tolist()}, expected positive, finite numbers.")
        ratio = tables["mean"] / tables["sd"]
        return {"shape": ratio.square(), "rate": ratio / tables["sd"]}

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """Shapes near that of the data within a state or less; rates within e^4 of that of the mean."""
        known = spread(None if x is None else x.log(), n_states, self.n_features)
        one = torch.ones_like(known.center)
        rows = {
            "shape_shape": 1.25 * one,
            "shape_rate": known.within / 4,
            "rate_loc": -known.within.log() - known.center,
            "rate_scale": WIDE * one,
        }
        return {name: row.expand(n_states, -1) for name, row in rows.items()}

    def priors_of(self, prior: Parameters) -> Mapping[str, Any]:
        return {
            "shape": dist.Gamma(prior["shape_shape"], prior["shape_rate"]),
            "rate": dist.LogNormal(prior["rate_loc"], prior["rate_scale"]),
        }

    def statistics(self, x: Tensor) -> tuple[Tensor, ...]:
        return x, x.log()

    def log_density_of(self, statistics: tuple[Tensor, ...], values: Parameters) -> Tensor:
        (x, log_x), shape, rate = statistics, values["shape"], values["rate"]
        log_ratio = rate.log() - shape.log() + log_x
        around = shape * (log_ratio - (rate * x - shape) / shape)
        return around - log_x + (shape.log() - math.log(2 * math.pi)) / 2 - stirling_rest(shape)

    def law(self, values: Parameters) -> Any:
        return dist.Gamma(values["shape"], values["rate"])

    def by_means(self, means: tuple[Tensor, ...], least: Tensor) -> Parameters:
        """With an error of the shape of at most 1.5% (Minka 2002, *Estimating a gamma distribution*)."""
        mean, log_mean = means
        gap = (mean.log() - log_mean).clamp_min(torch.finfo(mean.dtype).eps)
        shape = (3 - gap + ((gap - 3).square() + 24 * gap).sqrt()) / (12 * gap)
        shape = shape.minimum(mean.square() / least).clamp(1e-3, 1e14)
        return {"shape": shape, "rate": shape / mean}

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        return by_scipy("gammainc", *torch.broadcast_tensors(values["shape"], values["rate"] * x.clamp_min(0.0)))

    def embed(self, x: Tensor) -> Tensor:
        return x.log()


@dataclass(frozen=True, repr=False)
class Exponential(UsualEmission):
    """Independent waiting times; parameter `rate [K, F]`, the inverse of the mean.

    `scipy.stats.expon(scale=1 / rate)` is the same distribution. All methods fit it, message passing too.

    Arguments:
        n_features: F.
        prior: as for `Normal`; a Gamma of `rate` for message passing.

    Raises:
        TypeError: a number of features that is not an integer; a prior that is no mapping.
        ValueError: no features; a prior of another parameter.

    See Also:
        `Gamma`, which has a shape too; `LogNormal`, with a heavier tail; docs/guides/emissions.md, a table of all.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Exponential())
        >>> model.fit([0.1, 0.3, 0.2, 11.0, 8.0, 15.0], "vmp", progress=False).model.values["rate"].shape
        torch.Size([2, 1])
    """

    n_features: int = 1
    prior: Any = field(default=None, kw_only=True, repr=False, compare=False)
    family = families.Gamma()
    stated_by = ("shape", "rate")
    parameters = {"rate": Parameter(("state", "feature"), constraints.positive)}  # noqa: RUF012
    support = constraints.nonnegative
    expects = "numbers of at least 0"
    instead = "Normal or StudentT accept any number"

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """The weight of half an observation, with the mean of the state that waits least."""
        mean = torch.ones(self.n_features, dtype=torch.float64, device="cpu")
        mean = (mean if x is None else least_mean(x, self.embed(x), n_states)).expand(n_states, -1)
        return {"shape": torch.full_like(mean, 1.5), "rate": mean / 2}

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        seen, rate = ~torch.isnan(x), values["rate"]
        return torch.where(seen, rate.log() - rate * torch.where(seen, x, 0.0), 0.0).sum(-1)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return dist.Exponential(values["rate"]).to_event(1)

    def narrowness(self, values: Parameters) -> Tensor:
        return values["rate"] ** -2

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        return -torch.expm1(-values["rate"] * x.clamp_min(0.0))

    def message(self, x: Tensor, weights: Tensor, near: Parameters | None = None) -> Tensor:
        seen = ~torch.isnan(x)
        return torch.stack([weights.mT @ seen.to(x), -(weights.mT @ torch.where(seen, x, 0.0))], -1)

    def limit(self, message: Tensor, floor: Tensor) -> Maximized:
        rate, most = super().limit(message, floor).values["rate"], floor.rsqrt()
        return Maximized({"rate": rate.clamp(max=most)})

    def representative(self, statistics: Tensor) -> Representative:
        expected_log, rate = statistics.unbind(-1)
        return Representative({"rate": rate}, expected_log - rate.log())

    def embed(self, x: Tensor) -> Tensor:
        return x**0.25  # nearly normal for exponential x


@dataclass(frozen=True, repr=False)
class LogNormal(UsualEmission):
    """Independent positive features whose logarithms are normal.

    Parameters `loc [K, F]` and `precision [K, F]`, of log x. `scale`, the standard deviation of log x, is accepted
    instead of `precision`. `exp(loc)` is the median. `scipy.stats.lognorm(scale, scale=exp(loc))` is the same
    distribution. All methods fit it, message passing too.

    Arguments:
        n_features: F.
        prior: as for `Normal`, of the parameters of log x.

    Raises:
        TypeError: a number of features that is not an integer; a prior that is no mapping.
        ValueError: no features; a prior of another parameter.

    See Also:
        `Gamma`, with a lighter tail; `Normal`, which it is for log x; docs/guides/emissions.md, a table of all.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.LogNormal())
        >>> model.fit([0.1, 0.3, 0.2, 11.0, 8.0, 15.0], progress=False).model.describe()["scale"].shape
        torch.Size([2, 1])
    """

    n_features: int = 1
    prior: Any = field(default=None, kw_only=True, repr=False, compare=False)
    family = NormalGamma()
    stated_by = ("loc", "count", "shape", "rate")
    parameters = Normal.parameters
    support = constraints.positive
    expects = POSITIVE
    instead = INSTEAD.format(name="LogNormal")

    @cached_property
    def normal(self) -> Normal:
        """The emission of log x."""
        return Normal(self.n_features)

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """That of `Normal` for log x."""
        return self.normal.default_prior(n_states, None if x is None else x.log())

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        return self.normal.log_prob(x.log(), values) - x.log().nan_to_num(0.0).sum(-1)

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        return self.normal.table(x.log(), values) - x.log().nan_to_num(0.0).sum(-1, keepdim=True)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return dist.LogNormal(values["loc"], values["precision"].rsqrt()).to_event(1)

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        return self.normal.marginal_cdf(x.clamp_min(0.0).log(), values)

    def message(self, x: Tensor, weights: Tensor, near: Parameters | None = None) -> Tensor:
        return self.normal.message(x.log(), weights, near)

    def limit(self, message: Tensor, floor: Tensor) -> Maximized:
        """The maximum likelihood, with variances of log x that have digits."""
        return self.normal.limit(message, torch.full_like(floor, torch.finfo(message.dtype).eps))

    representative = delegated("normal")

    def embed(self, x: Tensor) -> Tensor:
        return x.log()
