r"""Independent proportions: the beta distribution.

$$p(x \mid a, b) = x^{a - 1} (1 - x)^{b - 1} / B(a, b), \qquad E[x] = \frac{a}{a + b}, \qquad
\text{Var}(x) = \frac{E[x]\,(1 - E[x])}{a + b + 1}$$
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ...inference.numerics.gammas import log_beta
from ..parameters import Parameter, Parameters
from .separate import Summarized, by_scipy
from .spread import spread


class _Inside(constraints.interval):
    """Numbers between 0 and 1, without these."""

    def check(self, value: Tensor) -> Tensor:
        return (value > 0) & (value < 1)


@dataclass(frozen=True, repr=False)
class Beta(Summarized):
    """Independent proportions; parameters `concentration1` and `concentration0`, `[K, F]` each.

    The mean is `concentration1 / (concentration1 + concentration0)`. These are the names of torch and Pyro;
    `scipy.stats.beta(concentration1, concentration0)` is the same distribution.

    Arguments:
        n_features: F.
        prior: as for `Gamma`.

    Raises:
        TypeError: a number of features that is not an integer.
        ValueError: no features; a prior of another parameter.

    See Also:
        `Bernoulli`, for values that are 0 or 1 themselves; `Multinomial`, for shares of a known total;
        docs/guides/emissions.md.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Markov(n_states=2), sh.Beta())
        >>> fit = model.fit([0.1, 0.2, 0.15, 0.9, 0.8, 0.85], progress=False)
        >>> fit.forecast(1).interval(0.9).upper < 1
        tensor([[True]])
    """

    support = _Inside(0.0, 1.0)
    expects = "proportions between 0 and 1, without these"
    instead = "ZeroInflated(Beta(...)) accepts 0 too, and Gamma or LogNormal accept numbers above 1"
    typical = 0.5
    parameters = {  # noqa: RUF012 the same for all instances
        "concentration1": Parameter(("state", "feature"), constraints.positive),
        "concentration0": Parameter(("state", "feature"), constraints.positive),
    }

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """Concentrations near those of the data within a state or less."""
        known = spread(None if x is None else x.logit(), n_states, self.n_features)
        middle = known.center.sigmoid().clamp(0.05, 0.95)
        one = torch.ones_like(middle)
        rows = {
            "concentration1_shape": 1.25 * one,
            "concentration1_rate": known.within * (1 - middle) / 4,
            "concentration0_shape": 1.25 * one,
            "concentration0_rate": known.within * middle / 4,
        }
        return {name: row.expand(n_states, -1) for name, row in rows.items()}

    def priors_of(self, prior: Parameters) -> Mapping[str, Any]:
        return {name: dist.Gamma(prior[f"{name}_shape"], prior[f"{name}_rate"]) for name in self.parameters}

    def statistics(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.log(), torch.log1p(-x)

    def log_density_of(self, statistics: tuple[Tensor, ...], values: Parameters) -> Tensor:
        (log_x, log_rest), one, zero = statistics, values["concentration1"], values["concentration0"]
        return (one - 1) * log_x + (zero - 1) * log_rest - log_beta(one, zero)

    def law(self, values: Parameters) -> Any:
        return dist.Beta(values["concentration1"], values["concentration0"])

    def by_means(self, means: tuple[Tensor, ...], least: Tensor) -> Parameters:
        r"""With $\psi(a) \approx \log(a - \frac12)$ (Johnson, Kotz & Balakrishnan 1995, *Continuous Univariate
        Distributions* 2, section 25.4)."""
        one, zero = (mean.exp() for mean in means)
        rest = (1 - one - zero).clamp_min(torch.finfo(one.dtype).eps)
        one, zero = 0.5 + one / (2 * rest), 0.5 + zero / (2 * rest)
        total, mean = one + zero, one / (one + zero)
        most = (mean * (1 - mean) / least - 1).clamp(0.1, 1e14)
        total = total.minimum(most)
        return {"concentration1": mean * total, "concentration0": (1 - mean) * total}

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        return by_scipy("betainc", values["concentration1"], values["concentration0"], x.clamp(0.0, 1.0))

    def embed(self, x: Tensor) -> Tensor:
        return x.logit()
