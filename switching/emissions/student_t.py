r"""Independent features with heavy tails: Student's t distribution.

$$p(x \mid \mu, \tau, \nu) = \frac{\Gamma((\nu + 1) / 2)}{\Gamma(\nu / 2)} \sqrt{\frac{\tau}{\pi \nu}}
  \left(1 + \frac{\tau (x - \mu)^2}{\nu}\right)^{-(\nu + 1) / 2}$$

As $\nu$ grows, it becomes normal with precision $\tau$. At $\nu = 1$ it is Cauchy's. It is a mixture of normal
distributions, $x \mid u \sim N(\mu, 1 / (\tau u))$ with $u \sim \text{Gamma}(\nu/2, \nu/2)$.

EM weighs each observation by $E\,u$: see `scale_mixture`.

**Message passing.** Location and precision have a normal-gamma density under q, and $\nu$ that of `Degrees`. With u of
each step and state summed out, and $\bar\nu = E\,\nu$,

$$E \log p(x \mid s) \ge \log \int \exp E \log p(x, u \mid \mu, \tau, \nu)\, du
  = E\,g(\nu) + \log\Gamma\big(\tfrac{\bar\nu + 1}{2}\big) + \tfrac12 (E \log\tau - \log 2\pi)
  - \tfrac{\bar\nu + 1}{2} \log \tfrac{\bar\nu + E[\tau (x - \mu)^2]}{2}$$

(g: see `Degrees`), which is convex in all expected statistics together: the logarithm of an integral of exponentials
that are linear in them. With $E[\tau (x - \mu)^2] = \bar\tau (x - m)^2 + 1/\kappa$ it is the log density of a t
distribution at $m$, $\bar\nu$ and the precision $\bar\tau \bar\nu / (\bar\nu + 1/\kappa)$, plus a constant.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyro.distributions as dist
import torch
from jaxtyping import Float
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ...inference.families import Degrees, LocPrecisionDf, Tailed
from ...inference.families.peak import NEAR_FLOOR
from ...inference.numerics.delegation import delegated
from ...inference.numerics.gammas import stirling_rest
from ..parameters import Parameter, Parameters
from .conjugate import ConjugateEmission, Representative
from .contract import ByGate, Maximized
from .normal import Normal
from .scale_mixture import TailStep, log_density
from .separate import by_scipy, weighted_moments

PAIRS = 2  # of the steps of one M-step; the next M-step continues


@dataclass(frozen=True, repr=False)
class StudentT(ConjugateEmission):
    """Independent features with heavy tails.

    Parameters `loc`, `precision` and `df` (degrees of freedom), `[K, F]` each. `scale` is accepted instead of
    `precision`, its inverse square. The variance is `scale**2 * df / (df - 2)`, and infinite for `df` up to 2. `loc` is
    the median of each state, and counts as its mean even where the distribution has none. Weak priors are those of
    `Normal` for `loc` and `precision`, and Gamma(2, 0.1) for `df` (Juarez & Steel 2010, *Model-based clustering of
    non-Gaussian panel data based on skew-t distributions*). `scipy.stats.t(df, loc, scale)` is the same distribution.
    All methods fit it; message passing by a mixture of normal distributions, whose bound it reports.

    Arguments:
        n_features: F.
        prior: distributions of Pyro by name of a parameter, in place of its default prior; each is of one number or of
            a table `[K, F]`. EM, SVI and NUTS accept any; message passing accepts a Gamma of `precision` or `df`.

    Raises:
        TypeError: a number of features that is not an integer; a prior that is no mapping.
        ValueError: no features; a prior of another parameter.

    See Also:
        `Normal`, without heavy tails; `Mixture`, for tails of another shape; docs/guides/emissions.md, a table of all.

    Example:
        >>> import samplehold as sh
        >>> x = [0.1, -0.2, 0.0, 9.0, 0.1, 5.1, 4.8, 5.0, 5.2, 4.9]
        >>> fit = sh.SwitchingSSM(sh.Copy(n_states=2), sh.StudentT()).fit(x, progress=False)
        >>> fit.model.values["loc"].round().flatten()
        tensor([0., 5.], dtype=torch.float64)
    """

    n_features: int = 1
    prior: Any = field(default=None, kw_only=True, repr=False, compare=False)
    family = Tailed()
    have_unit = True
    mixes = True
    adds_up = False  # type: ignore[assignment] mixing variables weigh each observation
    typical = 1.0
    parameters = {  # noqa: RUF012 the same for all instances
        **Normal.parameters,
        "df": Parameter(("state", "feature"), constraints.positive),
    }

    @cached_property
    def normal(self) -> Normal:
        """The emission at u = 1."""
        return Normal(self.n_features)

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.n_features

    # ---- the prior ---------------------------------------------------------------------------------------------------

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """That of `Normal` for locations and precisions; degrees of freedom about 20."""
        prior = self.normal.default_prior(n_states, x)
        one = torch.ones_like(prior["loc"])
        return prior | {"df_shape": 2 * one, "df_rate": 0.1 * one}

    def natural(self, prior: Parameters) -> Tensor:
        of_df = prior["df_shape"], prior["df_rate"], torch.zeros_like(prior["df_rate"])
        return torch.cat([self.normal.natural(prior), Degrees().natural(*of_df)], -1)

    in_units = delegated("normal")

    def point(self, values: Parameters) -> LocPrecisionDf:
        return LocPrecisionDf(*(values[name] for name in self.parameters))

    # ---- the density -------------------------------------------------------------------------------------------------

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        seen = ~torch.isnan(x)
        each = self.log_density(torch.where(seen, x, self.typical), values)
        return torch.where(seen, each, 0.0).sum(-1)

    def log_density(self, x: Float[Tensor, "*#n"], values: Parameters) -> Float[Tensor, "*n"]:
        """log p(x) of single numbers, under parameters that broadcast against them."""
        precision, df = values["precision"], values["df"]
        ratio = (x - values["loc"]) * precision.sqrt()  # whose square may overflow
        return log_density(ratio.abs(), precision, df)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return dist.StudentT(values["df"], values["loc"], values["precision"].rsqrt()).to_event(1)

    def moments(self, values: Parameters) -> tuple[Tensor, Tensor]:
        df = values["df"]
        heavy = df <= 2
        variance = df / (df.where(~heavy, 3.0) - 2) / values["precision"]
        return values["loc"], variance.where(~heavy, torch.inf)

    def narrowness(self, values: Parameters) -> Tensor:
        """The square of the scale, which falls to 0 where a state sits on a single point."""
        return 1 / values["precision"]

    def reach(self, values: Parameters, p: float) -> tuple[ByGate, ByGate]:
        scale = values["precision"].rsqrt()
        standard = by_scipy("stdtrit", values["df"], torch.full_like(values["df"], p))
        quantile, near = values["loc"] + scale * standard, 1e-3 * scale
        return ByGate(quantile - near, quantile - near), ByGate(quantile + near, quantile + near)

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        standard = (x - values["loc"]) * values["precision"].sqrt()
        return by_scipy("stdtr", *torch.broadcast_tensors(values["df"], standard))

    # ---- the M-step --------------------------------------------------------------------------------------------------

    def maximize(
        self, x: Tensor, weights: Tensor, near: Parameters, prior: Parameters | None, floor: Tensor
    ) -> Maximized:
        if prior is not None and not self.is_conjugate:
            return super().maximize(x, weights, near, prior, floor)
        x, weights, floor = x.double(), weights.double(), floor.double()
        step = TailStep.of(x, weights, prior, floor)
        values = {name: near[name].double() for name in self.parameters}
        mean, variance, _ = weighted_moments(x, weights)
        values = step.higher(values, self.by_moments(mean, variance.maximum(NEAR_FLOOR * floor)))
        for _ in range(PAIRS):
            values = step.of_df(step.of_normal(values))
        best = {name: value.to(near[name]) for name, value in values.items()}
        return Maximized(best)

    def by_moments(self, mean: Tensor, variance: Tensor) -> Parameters:
        """Parameters `[*r, K, F]` of a mean and a variance, with five degrees of freedom."""
        df = torch.full_like(mean, 5.0)
        return {"loc": mean, "precision": df / (df - 2) / variance, "df": df}

    # ---- message passing ---------------------------------------------------------------------------------------------

    def message(self, x: Tensor, weights: Tensor, near: Parameters | None = None) -> Tensor:
        """The message where parameters are at points, from which the mixing variables follow."""
        if near is None:
            raise TypeError(f"{self.name}: a message needs the parameters of its mixing variables; give `near`.")
        values = {name: near[name] for name in self.parameters}
        return self._message(x, weights, values, torch.ones_like(near["df"]))

    def expected_message(self, x: Tensor, weights: Tensor, statistics: Tensor) -> Tensor:
        values, (_, share) = self.representative(statistics).values, _locations(statistics)
        return self.family.moved(self._message(x, weights, values, share), values["loc"])

    def _message(self, x: Tensor, weights: Tensor, values: Parameters, share: Tensor) -> Tensor:
        """About the locations, of observations whose expected mixing variables are `share` times those at a point."""
        step = TailStep.of(x, weights, None, x.new_zeros(self.n_features))
        return step.message(values, share)

    def representative(self, statistics: Tensor) -> Representative:
        _, _, log_precision, precision, log_df, df, rest = statistics.unbind(-1)
        loc, share = _locations(statistics)
        values = {"loc": loc, "precision": precision * share, "df": df}
        constant = (log_precision - values["precision"].log() + (df + 1) * share.log() + log_df - df.log()) / 2
        return Representative(values, constant + rest + stirling_rest(df / 2))


def _locations(statistics: Float[Tensor, "*plates 7"]) -> tuple[Tensor, Tensor]:
    r"""The expected locations, and $\bar\nu / (\bar\nu + 1 / \kappa)$."""
    first, second, _, precision, _, df, _ = statistics.unbind(-1)
    loc = first / precision
    return loc, df / (df + second - first * loc)
