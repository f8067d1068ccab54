r"""Independent angles: the von Mises distribution.

$$p(x \mid \mu, \kappa) = \frac{e^{\kappa \cos(x - \mu)}}{2 \pi I_0(\kappa)}, \qquad R = I_1(\kappa) / I_0(\kappa)$$

R is the length of the mean of $(\cos x, \sin x)$. The circular standard deviation is $\sqrt{-2 \log R}$ (Mardia & Jupp
2000, *Directional Statistics*, section 2.3.1), and about $\kappa^{-1/2}$ for great $\kappa$.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ..parameters import Parameter, Parameters
from .contract import ByGate
from .separate import Summarized, by_scipy
from .spread import spread

END = float(np.float32(np.pi))  # a little above pi: angles of float32 may be there
LEAST_LENGTH = 1e-3  # of a mean direction, at which the density is as good as flat
SHARP = 1e4  # a concentration, from which the circular variance is a series


class _Exact(dist.VonMises):
    """Pyro's distribution, whose Bessel functions are polynomials of seven digits, with all digits."""

    def log_prob(self, value: Tensor) -> Tensor:
        return _log_density(value, self.loc, self.concentration)


def _log_density(x: Tensor, loc: Tensor, concentration: Tensor) -> Tensor:
    around = -2 * concentration * torch.sin((x - loc) / 2).square()  # cos - 1, without cancellation
    return around - math.log(2 * math.pi) - torch.special.i0e(concentration).log()


@dataclass(frozen=True, repr=False)
class VonMises(Summarized):
    """Independent angles in (-pi, pi]; parameters `loc` (the mean direction) and `concentration`, `[K, F]` each.

    Means are mean directions, also those of forecasts, and the variance of a state is that of its circular standard
    deviation. Quantiles are those of numbers from -pi to pi; angles that lie about pi are better turned by pi first.
    The weak prior of `loc` is uniform. `scipy.stats.vonmises(concentration, loc)` is the same distribution.

    Arguments:
        n_features: F.
        prior: as for `Gamma`. A prior of `loc` has a support inside [-pi, pi].

    Raises:
        TypeError: a number of features that is not an integer.
        ValueError: no features; a prior of another parameter.

    Mardia & Jupp 2000, *Directional Statistics*.

    See Also:
        `Joint`, which combines angles with other features; docs/guides/emissions.md; docs/coming_from/moveHMM.md, on
        tracks of animals.

    Example:
        >>> import samplehold as sh
        >>> fit = sh.SwitchingSSM(sh.Markov(n_states=2), sh.VonMises()).fit(
        ...     [0.1, -0.1, 0.05, -0.05, 3.1, -3.1, 3.0, -3.0], progress=False
        ... )
        >>> fit.model.values["loc"].cos().round().flatten().sort().values
        tensor([-1.,  1.], dtype=torch.float64)
    """

    support = constraints.interval(-END, END)
    expects = "angles in radians, from -pi to pi"
    instead = "Turn others into this range by (x + pi) % (2 * pi) - pi; Normal or StudentT accept any number"
    typical = 0.0
    angular = True
    parameters = {  # noqa: RUF012 the same for all instances
        "loc": Parameter(("state", "feature"), constraints.interval(-END, END)),
        "concentration": Parameter(("state", "feature"), constraints.positive),
    }

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """Concentrations near that of the data within a state or less."""
        around = None
        if x is not None:
            mean = torch.atan2(x.sin().nansum(0), x.cos().nansum(0))
            around = torch.atan2((x - mean).sin(), (x - mean).cos())
        known = spread(around, n_states, self.n_features)
        rows = {"concentration_shape": torch.full_like(known.within, 1.25), "concentration_rate": known.within / 4}
        return {name: row.expand(n_states, -1) for name, row in rows.items()}

    def priors_of(self, prior: Parameters) -> Mapping[str, Any]:
        end = torch.full_like(prior["concentration_rate"], END)
        return {
            "loc": dist.Uniform(-end, end),
            "concentration": dist.Gamma(prior["concentration_shape"], prior["concentration_rate"]),
        }

    def statistics(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.cos(), x.sin()

    def log_density_of(self, statistics: tuple[Tensor, ...], values: Parameters) -> Tensor:
        (cos, sin), loc, concentration = statistics, values["loc"], values["concentration"]
        around = concentration * (loc.cos() * cos + loc.sin() * sin - 1)
        return around - math.log(2 * math.pi) - torch.special.i0e(concentration).log()

    def log_density(self, x: Tensor, values: Parameters) -> Tensor:
        return _log_density(x, values["loc"], values["concentration"])

    def law(self, values: Parameters) -> Any:
        return _Exact(values["loc"], values["concentration"])

    def moments(self, values: Parameters) -> tuple[Tensor, Tensor]:
        return values["loc"], self.narrowness(values)

    def averages(self, values: Parameters) -> ByGate:
        loc, length = values["loc"], (-self.narrowness(values) / 2).exp()
        directions = torch.cat([length * loc.cos(), length * loc.sin()], -1)
        return ByGate(directions, directions)

    def center(self, expected: Tensor) -> Tensor:
        if expected.shape[-1] == self.n_features:
            return expected
        cos, sin = expected.chunk(2, -1)
        return torch.atan2(sin, cos)

    def away(self, mean: Tensor, center: Tensor) -> Tensor:
        return torch.atan2((mean - center).sin(), (mean - center).cos())

    def narrowness(self, values: Parameters) -> Tensor:
        concentration = values["concentration"]
        length = torch.special.i1e(concentration) / torch.special.i0e(concentration)
        small, inverse = concentration < LEAST_LENGTH, 1 / concentration.clamp_min(SHARP)
        around = -2 * torch.where(small, concentration.clamp_min(1e-300) / 2, length).log()
        return torch.where(concentration > SHARP, inverse + inverse.square() / 2 + 11 * inverse**3 / 24, around)

    def by_means(self, means: tuple[Tensor, ...], least: Tensor) -> Parameters:
        """The mean direction, which is the maximum, and a concentration (Banerjee et al. 2005, *Clustering on the unit
        hypersphere using von Mises-Fisher distributions*, equation 4.4)."""
        cos, sin = means
        loc, length = torch.atan2(sin, cos), torch.hypot(sin, cos).clamp_min(LEAST_LENGTH)
        concentration = length * (2 - length.square()) / (1 - length.square()).clamp_min(torch.finfo(cos.dtype).eps)
        return {"loc": loc.clamp(-END, END), "concentration": concentration.minimum(1 / least)}

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        return by_scipy(_cdf, x, values["loc"], values["concentration"]).clamp(0.0, 1.0)

    def embed(self, x: Tensor) -> Tensor:
        return torch.cat([x.cos(), x.sin()], -1)


def _cdf(x: np.ndarray, loc: np.ndarray, concentration: np.ndarray) -> np.ndarray:
    """P(-pi < angle <= x)."""
    from scipy.stats import vonmises  # slow to import

    below, here = (vonmises.cdf(end - loc, concentration) for end in (-np.pi, np.clip(x, -np.pi, np.pi)))
    return here - below
