r"""Counts that vary more than those of a Poisson distribution, counts of failures, and counts that share a total.

| emission | $p(x \mid s)$ | mean | variance |
|---|---|---|---|
| NegativeBinomial | $\frac{\Gamma(x + r)}{x!\, \Gamma(r)} \frac{(\alpha m)^x}{(1 + \alpha m)^{x + r}}$, $r = 1 / \alpha$ | $m$ | $m + \alpha m^2$ |
| Geometric | $p (1 - p)^x$ | $(1 - p) / p$ | $(1 - p) / p^2$ |
| Multinomial | $\frac{n!}{\prod_f x_f!} \prod_f p_f^{x_f}$ | $n p_f$ | $n p_f (1 - p_f)$ |

**Missing counts of a multinomial.** If some counts of a step are missing, they share the rest $m = n - \sum_{seen} x_f$,
which has the probability $p_{rest} = \sum_{missing} p_f$, so the density of the others is
$\frac{n!}{m! \prod_{seen} x_f!}\, p_{rest}^m \prod_{seen} p_f^{x_f}$. An M-step divides the rest in proportion to the
current probabilities. A step all of whose counts are missing has the density 1.

**M-step of a negative binomial.** Since $\Gamma(x + r) / \Gamma(r) = \prod_{j < x} (r + j)$, the weighted log densities
are, with $S_j$ the weight of all counts above j, $n$ of all counts, and up to a constant,

$$\sum_j S_j \log(1 + \alpha j) - \Big(\frac{n}{\alpha} + \sum_j S_j\Big) \log(1 + \alpha m) + \log m \sum_j S_j.$$
"""  # noqa: E501

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyro.distributions as dist
import torch
from jaxtyping import Float
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ...inference.families import Beta, Dirichlet
from ...inference.numerics.gammas import log_ratio, stirling_rest
from ...inference.numerics.scalars import check_integer
from ..data.series import place
from ..parameters import Parameter, Parameters
from .conjugate import Representative, UsualEmission
from .contract import Maximized
from .discrete import Poisson
from .separate import Expected, Separate, by_scipy, maximized


@dataclass(frozen=True, repr=False)
class NegativeBinomial(Separate):
    """Independent counts with a variance above their mean; parameters `mean` and `dispersion`, `[K, F]` each.

    The variance is `mean + dispersion * mean**2`, so a dispersion near 0 gives Poisson counts (the form NB2 of Cameron
    & Trivedi). R's `dnbinom(mu=mean, size=1 / dispersion)` and
    `scipy.stats.nbinom(1 / dispersion, 1 / (1 + dispersion * mean))` are the same distribution.

    Arguments:
        n_features: F.
        prior: as for `Gamma`.

    Raises:
        TypeError: a number of features that is not an integer.
        ValueError: no features; a prior of another parameter.

    See Also:
        `Poisson`, whose variance is its mean; `ZeroInflated`, for more zeros; docs/guides/emissions.md, a table of all.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Markov(n_states=2), sh.NegativeBinomial())
        >>> fit = model.fit([0, 1, 0, 4, 1, 19, 45, 8, 30, 12], progress=False)
        >>> fit.model.values["mean"].round(decimals=-1).flatten()
        tensor([ 0., 20.], dtype=torch.float64)
    """

    support = constraints.nonnegative_integer
    expects = "counts 0, 1, 2, ..."
    instead = Poisson.instead
    parameters = {  # noqa: RUF012 the same for all instances
        "mean": Parameter(("state", "feature"), constraints.positive),
        "dispersion": Parameter(("state", "feature"), constraints.positive),
    }

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """Means below some times that of the data; dispersions about that of all data."""
        one = torch.ones(self.n_features, dtype=torch.float64, device="cpu")
        mean, dispersion = one, one
        if x is not None:
            mean = x.nanmean(0)
            mean = torch.where(mean > 0, mean, 1.0)
            dispersion = (((x - mean).square().nanmean(0) - mean) / mean.square()).clamp(0.05, 5.0)
        rows = {
            "mean_shape": torch.ones_like(mean),
            "mean_rate": (1 / mean).clamp_max(0.5),
            "dispersion_shape": torch.full_like(mean, 1.25),
            "dispersion_rate": 1 / (4 * dispersion),
        }
        return {name: row.expand(n_states, -1) for name, row in rows.items()}

    def priors_of(self, prior: Parameters) -> Mapping[str, Any]:
        return {name: dist.Gamma(prior[f"{name}_shape"], prior[f"{name}_rate"]) for name in self.parameters}

    def log_density(self, x: Tensor, values: Parameters) -> Tensor:
        mean, size = values["mean"], 1 / values["dispersion"]
        total, ratio = size + x, log_ratio(size, mean)
        alone = (x + torch.lgamma(x + 1)) + (stirling_rest(size) + size * ratio)  # terms of x or of parameters
        of_mean = torch.where(x > 0, x * (mean.log() - ratio), 0.0)
        return (total - 0.5) * log_ratio(size, x) + stirling_rest(total) + of_mean - alone

    def in_a_row(self, first: int, end: int, values: Parameters) -> Tensor:
        """By $p(x + 1) / p(x) = (1 + a x) m / ((x + 1) (1 + a m))$ for a mean m and a dispersion a."""
        begin = self.log_density(values["mean"].new_full((), first), values)
        x, scaled = torch.arange(first, max(first, end - 1)).to(begin), values["dispersion"] * values["mean"]
        fall = values["mean"].log() - scaled.log1p()
        ratios = torch.log1p(values["dispersion"] * x) - (x + 1).log() + fall
        return torch.cat([begin, begin + ratios.cumsum(-1)], -1)[..., : end - first]

    def maximize(
        self, x: Tensor, weights: Tensor, near: Parameters, prior: Parameters | None, floor: Tensor
    ) -> Maximized:
        most = int(x.nan_to_num(0.0).amax()) if len(x) else 0
        if most > len(x):
            return super().maximize(x, weights, near, prior, floor)
        x, weights = x.double(), weights.double()
        count, above = _weights_above(x, weights, most)
        total, j = above.sum(-1), torch.arange(most).to(above)

        def log_density(values: Parameters) -> Tensor:
            mean, dispersion = values["mean"], values["dispersion"]
            rising = (above * torch.log1p(dispersion.unsqueeze(-1) * j)).sum(-1)
            return rising - (count / dispersion + total) * torch.log1p(dispersion * mean) + torch.xlogy(total, mean)

        return maximized(self, Expected(log_density, partial(self.guess, x, weights)), near, prior, floor)

    def law(self, values: Parameters) -> Any:
        scaled = values["dispersion"] * values["mean"]
        return dist.NegativeBinomial(1 / values["dispersion"], logits=scaled.log())

    def narrowness(self, values: Parameters) -> Tensor:
        return torch.full_like(values["mean"], torch.inf)

    def by_moments(self, mean: Tensor, variance: Tensor) -> Parameters:
        mean = mean.clamp_min(1e-6)
        return {"mean": mean, "dispersion": ((variance - mean) / mean.square()).clamp(0.01, 100.0)}

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        size, never = 1 / values["dispersion"], 1 / (1 + values["dispersion"] * values["mean"])
        return torch.where(x < 0, 0.0, by_scipy("betainc", size, x.clamp_min(0.0).floor() + 1, never))

    def embed(self, x: Tensor) -> Tensor:
        return x.sqrt()


def _weights_above(
    x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"], most: int
) -> tuple[Float[Tensor, "*r K F"], Float[Tensor, "*r K F J"]]:
    """The weight of all counts of each feature, and of those above j = 0, ..., most - 1."""
    seen, place = ~torch.isnan(x.T), x.nan_to_num(0.0).long().T
    by_count = weights.new_zeros(*weights.mT.shape[:-1], most + 1)
    tables = [by_count.index_add(-1, to, weights.mT * here) for to, here in zip(place, seen, strict=True)]
    at_least = torch.stack(tables, -2).flip(-1).cumsum(-1).flip(-1)
    return at_least[..., 0], at_least[..., 1:]


@dataclass(frozen=True, repr=False)
class Geometric(UsualEmission):
    """Independent numbers of failures before a success; parameter `probs [K, F]`, of a success.

    All methods fit it, message passing too. `scipy.stats.geom(probs, loc=-1)` is the same distribution.

    Arguments:
        n_features: F.
        prior: as for `Normal`; a Beta of `probs` for message passing.

    Raises:
        TypeError: a number of features that is not an integer; a prior that is no mapping.
        ValueError: no features; a prior of another parameter.

    See Also:
        `NegativeBinomial`, which has a free dispersion; `SemiMarkov`, whose durations may be geometric;
        docs/guides/emissions.md.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Geometric())
        >>> fit = model.fit([0, 1, 0, 0, 0, 30, 12, 9, 41, 8], progress=False)
        >>> fit.model.values["probs"].flatten().sort().values.round(decimals=1)
        tensor([0.1000, 0.5000], dtype=torch.float64)
    """

    n_features: int = 1
    prior: Any = field(default=None, kw_only=True, repr=False, compare=False)
    family = Beta()
    stated_by = ("successes", "failures")
    parameters = {"probs": Parameter(("state", "feature"), constraints.unit_interval)}  # noqa: RUF012
    support = constraints.nonnegative_integer
    expects = "counts 0, 1, 2, ..."
    instead = Poisson.instead

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """With the weight of half a count, which is the mean of the data."""
        one = torch.ones(self.n_features, dtype=torch.float64, device="cpu")
        mean = one if x is None else x.nanmean(0)
        rows = {"successes": torch.full_like(mean, 1.5), "failures": 1 + mean / 2}
        return {name: row.expand(n_states, -1) for name, row in rows.items()}

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        seen, probs = ~torch.isnan(x), values["probs"]
        # a probability whose logarithm does not count gets no slope, which could be 0 / 0
        failures = torch.where(x > 0, x, 0.0) * torch.log1p(-probs.where(x > 0, 0.0))
        return (failures + probs.where(seen, 1.0).log()).sum(-1)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return dist.Geometric(values["probs"]).to_event(1)

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        below = -torch.expm1((x.clamp_min(0.0).floor() + 1) * torch.log1p(-values["probs"]))
        return torch.where(x < 0, 0.0, below)

    def message(self, x: Tensor, weights: Tensor, near: Parameters | None = None) -> Tensor:
        seen = ~torch.isnan(x)
        return torch.stack([weights.mT @ seen.to(x), weights.mT @ torch.where(seen, x, 0.0)], -1)

    def representative(self, statistics: Tensor) -> Representative:
        most = 1 - torch.finfo(statistics.dtype).eps / 2  # at 1 another count than 0 would be impossible
        probs = (-torch.expm1(statistics[..., 1])).clamp(torch.finfo(statistics.dtype).tiny, most)
        return Representative({"probs": probs}, statistics[..., 0] - probs.log())

    def embed(self, x: Tensor) -> Tensor:
        return x.sqrt()


@dataclass(frozen=True, repr=False)
class Multinomial(UsualEmission):
    """Counts of F categories that share a total; parameter `probs [K, F]`.

    All methods fit it, message passing too. `scipy.stats.multinomial(total, probs)` is the same distribution.

    Arguments:
        n_features: F, the number of categories, each a column.
        total: the sum of the counts of each step.
        prior: as for `Normal`; a Dirichlet of `probs` for message passing.

    Raises:
        TypeError: a size or a total that is not an integer; a prior that is no mapping.
        ValueError: a size or a total below 1; a prior of another parameter.

    See Also:
        `Categorical`, for one symbol a step; `Poisson`, for counts without a common total; docs/guides/emissions.md.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Multinomial(n_features=3, total=5))
        >>> x = [[5.0, 0.0, 0.0], [4.0, 1.0, 0.0], [0.0, 1.0, 4.0], [1.0, 0.0, 4.0], [0.0, 0.0, 5.0]]
        >>> model.fit(x, progress=False).model.values["probs"].argmax(-1).sort().values
        tensor([0, 2])
    """

    n_features: int = field()
    total: int = field()
    prior: Any = field(default=None, kw_only=True, repr=False, compare=False)
    family = Dirichlet()
    stated_by = ("concentration",)
    fills_in = True
    parameters = {"probs": Parameter(("state", "feature"), constraints.simplex)}  # noqa: RUF012
    support = constraints.nonnegative_integer
    expects = "counts 0, 1, 2, ..."
    instead = "Poisson accepts counts without a total"

    def __post_init__(self, *_: Any) -> None:
        super().__post_init__()
        check_integer("total", self.total)

    @classmethod
    def sized_to(cls, x: Any) -> "Multinomial":
        """With the sum of the first step without missing counts as the total."""
        sums = x.sum(-1)
        whole = sums[sums == sums]
        return cls(x.shape[-1], max(1, int(whole[0])) if len(whole) else 1)

    def check(self, x: Tensor, names: Sequence[str] | None = None, first: int = 0) -> None:
        super().check(x, names, first)
        sums = x.nan_to_num(0.0).sum(-1, keepdim=True)
        seen = (~x.isnan()).sum(-1, keepdim=True)
        bad = (seen > 0) & torch.where(seen == x.shape[-1], sums != self.total, sums > self.total)
        if bool(bad.any()):
            got = float(sums[tuple(torch.nonzero(bad)[0].tolist())])
            where = place(bad).rsplit(",", 1)[0]
            raise ValueError(
                f"x: got counts that sum to {got:g} at {where}; expected the total {self.total} (Multinomial). "
                "Poisson accepts counts without a total."
            )

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        like = torch.zeros((), dtype=torch.float64, device="cpu") if x is None else x
        return {"concentration": like.new_full((n_states, self.n_features), 1.5)}

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        seen = ~torch.isnan(x)
        counts, probs = torch.where(seen, x, 0.0), values["probs"]
        rest = self.total - counts.sum(-1)
        of_rest = torch.where(seen, 0.0, probs).sum(-1)
        ways = math.lgamma(self.total + 1) - torch.lgamma(counts + 1).sum(-1) - torch.lgamma(rest + 1)
        density = ways + torch.xlogy(counts, probs).sum(-1) + torch.xlogy(rest, of_rest)
        return torch.where(seen.any(-1), density, 0.0)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return dist.Multinomial(self.total, probs=values["probs"])

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        counts = x.floor()
        inside = counts.clamp(0.0, self.total - 1.0)
        below = by_scipy("betainc", self.total - inside, inside + 1, 1 - values["probs"])
        return torch.where(counts < 0, 0.0, torch.where(counts >= self.total, 1.0, below))

    def message(self, x: Tensor, weights: Tensor, near: Parameters | None = None) -> Tensor:
        seen = ~torch.isnan(x)
        counts = torch.where(seen, x, 0.0)
        direct = weights.mT @ counts
        rest = torch.where(seen.any(-1), self.total - counts.sum(-1), 0.0)
        if near is None or bool(seen.all()):
            return direct
        probs = near["probs"].unsqueeze(-3) * (~seen).unsqueeze(-2).to(weights)
        shares = probs / probs.sum(-1, keepdim=True).clamp_min(torch.finfo(probs.dtype).tiny)
        return direct + torch.einsum("...nk,n,...nkf->...kf", weights, rest, shares)

    def representative(self, statistics: Tensor) -> Representative:
        constant = statistics.logsumexp(-1, keepdim=True)
        return Representative({"probs": (statistics - constant).exp()}, self.total * constant)

    def embed(self, x: Tensor) -> Tensor:
        return x.sqrt()
