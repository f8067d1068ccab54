r"""Independent features with heavy tails: Student's t distribution.

$$p(x \mid \mu, \sigma, \nu) = \frac{\Gamma((\nu + 1) / 2)}{\Gamma(\nu / 2) \sqrt{\pi \nu}\, \sigma}
  \left(1 + \frac{(x - \mu)^2}{\nu \sigma^2}\right)^{-(\nu + 1) / 2}$$

As $\nu$ grows, it becomes normal with standard deviation $\sigma$. At $\nu = 1$ it is Cauchy's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from scipy import special
from torch import Tensor
from torch.distributions import constraints

from ..parameters import Parameter, Parameters
from .contract import ByGate
from .gammas import log_rising
from .separate import Separate, by_scipy
from .spread import spread

HUGE = 1e8  # a ratio whose square has no digits beside 1


@dataclass(frozen=True, repr=False)
class StudentT(Separate):
    """Independent features with heavy tails; parameters `loc`, `scale` and `df` (degrees of freedom), `[K, F]` each.

    The variance is `scale**2 * df / (df - 2)`, and infinite for `df` up to 2. `loc` is the median of each state, and
    counts as its mean even where the distribution has none. Weak priors are normal for `loc`, inverse gamma for
    `scale`, and Gamma(2, 0.1) for `df` (Juarez & Steel 2010, *Model-based clustering of non-Gaussian panel data based
    on skew-t distributions*). `scipy.stats.t(df, loc, scale)` is the same distribution.

    Arguments:
        n_features: F.
        prior: distributions of Pyro by name of a parameter, in place of its default prior; each is of one number or of
            a table `[K, F]`. EM, SVI and NUTS take any. Message passing does not take this emission.

    Example:
        >>> import samplehold as sh
        >>> x = [0.1, -0.2, 0.0, 9.0, 0.1, 5.1, 4.8, 5.0, 5.2, 4.9]
        >>> fit = sh.SwitchingSSM(sh.Copy(n_states=2), sh.StudentT()).fit(x, progress=False)
        >>> fit.model.values["loc"].round().flatten()
        tensor([0., 5.], dtype=torch.float64)
    """

    have_unit = True
    parameters = {  # noqa: RUF012 the same for all instances
        "loc": Parameter(("state", "feature")),
        "scale": Parameter(("state", "feature"), constraints.positive),
        "df": Parameter(("state", "feature"), constraints.positive),
    }

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """Locations within ten times the spread of the data; scales near that within a state or greater."""
        known = spread(x, n_states, self.n_features)
        one = torch.ones_like(known.center)
        rows = {
            "loc": known.center,
            "loc_scale": 10 * known.scale,
            "scale_shape": 0.5 * one,
            "scale_rate": 0.5 * known.within.sqrt(),
            "df_shape": 2 * one,
            "df_rate": 0.1 * one,
        }
        return {name: row.expand(n_states, -1) for name, row in rows.items()}

    def priors_of(self, prior: Parameters) -> Mapping[str, Any]:
        return {
            "loc": dist.Normal(prior["loc"], prior["loc_scale"]),
            "scale": dist.InverseGamma(prior["scale_shape"], prior["scale_rate"]),
            "df": dist.Gamma(prior["df_shape"], prior["df_rate"]),
        }

    def in_units(self, table: Parameters, unit: Tensor) -> Parameters:
        in_unit = ("loc", "loc_scale", "scale", "scale_rate")
        return {name: value / unit if name in in_unit else value for name, value in table.items()}

    def log_density(self, x: Tensor, values: Parameters) -> Tensor:
        scale, half = values["scale"], values["df"] / 2
        ratio = (x - values["loc"]).abs() / scale / (2 * half).sqrt()
        far = ratio > HUGE
        tail = torch.where(far, 2 * ratio.clamp_min(HUGE).log(), torch.log1p(ratio.where(~far, 0.0).square()))
        rising = log_rising(half, torch.full_like(half, 0.5))
        return rising - 0.5 * math.log(2 * math.pi) - scale.log() - (half + 0.5) * tail

    def law(self, values: Parameters) -> Any:
        return dist.StudentT(values["df"], values["loc"], values["scale"])

    def moments(self, values: Parameters) -> tuple[Tensor, Tensor]:
        df = values["df"]
        heavy = df <= 2
        variance = values["scale"].square() * df / (df.where(~heavy, 3.0) - 2)
        return values["loc"], variance.where(~heavy, torch.inf)

    def narrowness(self, values: Parameters) -> Tensor:
        return values["scale"].square()

    def by_moments(self, mean: Tensor, variance: Tensor) -> Parameters:
        df = torch.full_like(mean, 5.0)
        return {"loc": mean, "scale": (variance * (df - 2) / df).sqrt(), "df": df}

    def reach(self, values: Parameters, p: float) -> tuple[ByGate, ByGate]:
        standard = by_scipy(special.stdtrit, values["df"], torch.full_like(values["df"], p))
        quantile, near = values["loc"] + values["scale"] * standard, 1e-3 * values["scale"]
        return ByGate(quantile - near, quantile - near), ByGate(quantile + near, quantile + near)

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        return by_scipy(special.stdtr, *torch.broadcast_tensors(values["df"], (x - values["loc"]) / values["scale"]))
