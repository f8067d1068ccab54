r"""Emissions on integers: Bernoulli and Poisson features, and one categorical symbol.

| emission | $p(x \mid s)$ | conjugate prior | posterior mode with weights $w_t$ |
|---|---|---|---|
| Bernoulli | $p^x (1-p)^{1-x}$ | Beta(a, b) | $(a - 1 + \sum w x) / (a + b - 2 + \sum w)$ |
| Poisson | $\lambda^x e^{-\lambda} / x!$ | Gamma(a, b) | $(a - 1 + \sum w x) / (b + \sum w)$ |
| Categorical | $p_x$ | Dirichlet($\alpha$) | $(\alpha_c - 1 + \sum w [x = c]) / \sum_{c'} (\ldots)$ |

A missing feature has likelihood 1 and adds nothing to the sums. The expected log-likelihood under a conjugate q is the
log-likelihood at $\theta'$ plus c:

| emission | $\theta'$ | c |
|---|---|---|
| Bernoulli | $\propto e^{E \log p}, e^{E \log(1-p)}$ | log of their sum |
| Poisson | $e^{E \log \lambda}$ | $e^{E\log\lambda} - E[\lambda]$ |
| Categorical | $\propto e^{E \log p}$ | log of their sum |
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ...inference.families import Beta, Dirichlet, Gamma
from ...inference.numerics.arrays import floating
from ...inference.numerics.checks import broadcast_shapes
from ...inference.numerics.logs import log_sigmoid
from ...inference.numerics.op import Variants
from ...inference.numerics.scalars import check_integer
from ..inputs import Inputs
from ..parameters import Parameter, Parameters, concentration
from ..user_priors import read as read_priors
from .conjugate import Representative, UsualEmission
from .generalized import TakesInputs

FEW = 10  # observed values below which the spread of counts is not judged
LOOKED_UP = 100  # counts from which logarithms of factorials come from a table
FOUR_DIGITS = 1000.0
NORMAL_MEDIAN = 0.6745  # the median size of a standard normal number
FAR = 10.0  # how many times the mean the variance of amounts is at least


@dataclass(frozen=True)
class Bernoulli(TakesInputs, UsualEmission):
    """Independent binary features; parameter `probs [K, F]`.

    Arguments:
        n_features: F.
        prior: as for `Normal`.
        inputs, shared: see `GeneralizedLinear`.

    Raises:
        TypeError: a number of features that is not an integer; a prior that is no mapping; inputs that are neither
            names nor a number.
        ValueError: no features; a prior of another parameter; shared inputs that are not among the inputs.

    See Also:
        `Categorical`, for symbols of more than two kinds; `GeneralizedLinear`, for inputs; docs/guides/emissions.md, a
        table of all.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Bernoulli(n_features=1))
        >>> fit = model.fit([0, 0, 0, 1, 1, 1, 1, 0, 0, 0], progress=False)
        >>> fit.model.values["probs"].shape
        torch.Size([2, 1])
    """

    n_features: int = 1
    prior: Any = field(default=None, kw_only=True, repr=False, compare=False)
    inputs: InitVar[Inputs | Sequence[str]] = field(default=0, kw_only=True)
    shared: InitVar[Sequence[str]] = field(default=(), kw_only=True)
    family = Beta()
    stated_by = ("successes", "failures")
    aligned = True
    parameters = {"probs": Parameter(("state", "feature"), constraints.unit_interval)}  # noqa: RUF012
    support = constraints.boolean
    expects = "0 or 1"

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        like = torch.zeros((), dtype=torch.float64, device="cpu") if x is None else x
        two = like.new_full((n_states, self.n_features), 2.0)
        return {"successes": two, "failures": two.clone()}

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        one, zero = x == 1, x == 0  # neither where missing
        # a probability whose logarithm does not count gets no slope, which could be 0 / 0
        if "logits" in values:  # inputs move it so far that the probability may round to 0 or 1
            each = log_sigmoid(torch.where(one, 1.0, -1.0).to(x) * values["logits"])
            return torch.where(one | zero, each, 0.0).sum(-1)
        terms = values["probs"].where(one, 1.0).log() + torch.log1p(-values["probs"].where(zero, 0.0))
        return terms.sum(-1)

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        ones, zeros = _filled(x), _filled(1 - x)
        probs = values["probs"]
        never, always = probs == 0, probs == 1
        log_one, log_zero = probs.masked_fill(never, 1.0).log(), torch.log1p(-probs.masked_fill(always, 0.0))
        log_prob = ones @ log_one.mT + zeros @ log_zero.mT
        return _shaped(_unless(log_prob, (ones, never), (zeros, always)), x)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        known = "logits" if "logits" in values else "probs"
        given: dict[str, Any] = {known: values[known]}
        return dist.Bernoulli(**given).to_event(1)

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        return torch.where(x < 0, 0.0, torch.where(x < 1, 1 - values["probs"], 1.0))

    def message(self, x: Tensor, weights: Tensor, near: Parameters | None = None) -> Tensor:
        count, total = _weighted_sums(x, weights)
        return torch.stack([total, (count - total).clamp_min(0.0)], -1)

    def representative(self, statistics: Tensor) -> Representative:
        constant, most = statistics.logsumexp(-1), 1 - torch.finfo(statistics.dtype).eps / 2
        probs = torch.sigmoid(statistics[..., 0] - statistics[..., 1]).clamp_max(most)  # at 1 a 0 would be impossible
        return Representative({"probs": probs}, constant)


@dataclass(frozen=True)
class Poisson(TakesInputs, UsualEmission):
    """Independent counts; parameter `rate [K, F]`, the expected count per step.

    Arguments:
        n_features: F.
        prior: as for `Normal`.
        inputs, shared: see `GeneralizedLinear`.

    Raises:
        TypeError: a number of features that is not an integer; a prior that is no mapping; inputs that are neither
            names nor a number.
        ValueError: no features; a prior of another parameter; shared inputs that are not among the inputs.

    See Also:
        `NegativeBinomial`, for a variance above the mean; `ZeroInflated`, for more zeros; `GeneralizedLinear`, for
        inputs.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Poisson(n_features=1))
        >>> fit = model.fit([1, 0, 2, 1, 9, 8, 11, 10], progress=False)
        >>> fit.model.values["rate"].shape
        torch.Size([2, 1])
    """

    n_features: int = 1
    prior: Any = field(default=None, kw_only=True, repr=False, compare=False)
    inputs: InitVar[Inputs | Sequence[str]] = field(default=0, kw_only=True)
    shared: InitVar[Sequence[str]] = field(default=(), kw_only=True)
    family = Gamma()
    stated_by = ("shape", "rate")
    aligned = True
    parameters = {"rate": Parameter(("state", "feature"), constraints.nonnegative)}  # noqa: RUF012
    support = constraints.nonnegative_integer
    expects = "counts 0, 1, 2, ..."
    instead = "Gamma or LogNormal accept positive numbers, and Normal or StudentT any number"

    def doubts(self, rows: Tensor, names: Sequence[str], first: int = 0) -> Iterator[str]:
        """Numbers of four digits that vary much more from step to step than counts of their size."""
        for column, x in enumerate(rows.unbind(-1), start=first):
            seen = x[~x.isnan()].double()
            if len(seen) < FEW or float(seen.amax()) < FOUR_DIGITS:
                continue
            # a change of state is rare, so half of the steps show the variance within states
            ratio = (seen.diff().abs().median() / NORMAL_MEDIAN).square() / (2 * seen.median().clamp_min(1.0))
            if ratio > FAR:
                yield (
                    f"x: {names[column]} has numbers up to {float(seen.amax()):g}, whose variance from step to step is "
                    f"{float(ratio):.0f} times their size, but the variance of Poisson counts is their mean; so states "
                    "would follow the noise. Use NegativeBinomial for counts; Normal, Gamma or LogNormal for amounts."
                )

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """A vague rate below some times the mean of the data, with the weight of at most half a step without counts."""
        mean = torch.ones(self.n_features, dtype=torch.float64, device="cpu") if x is None else x.nanmean(0)
        rate = (1 / torch.where(mean > 0, mean, 1.0)).clamp_max(0.5).expand(n_states, -1)
        return {"shape": torch.ones_like(rate), "rate": rate}

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        observed = ~torch.isnan(x)
        filled = torch.where(observed, x, 0.0)
        rate = values["rate"]
        logs = torch.where(filled > 0, filled * values["log_rate"], 0.0) if "log_rate" in values else filled.xlogy(rate)
        terms = logs - rate - torch.lgamma(filled + 1)
        return torch.where(observed, terms, 0.0).sum(-1)

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        counts, rate = _filled(x), values["rate"]
        never = rate == 0
        log_rate = rate.masked_fill(never, 1.0).log()
        seen = (~torch.isnan(x)).to(x).reshape(counts.shape)
        log_prob = counts @ log_rate.mT - seen @ rate.mT
        log_prob = log_prob - _log_factorial(counts).sum(-1, keepdim=True)  # 0 where missing
        return _shaped(_unless(log_prob, (counts, never)), x)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return dist.Poisson(values["rate"]).to_event(1)

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        cdf = torch.special.gammaincc(x.clamp_min(0).floor() + 1, values["rate"])
        return torch.where(x < 0, 0.0, cdf)

    def message(self, x: Tensor, weights: Tensor, near: Parameters | None = None) -> Tensor:
        count, total = _weighted_sums(x, weights)
        return torch.stack([total, -count], -1)

    def representative(self, statistics: Tensor) -> Representative:
        rate = statistics[..., 0].exp()
        return Representative({"rate": rate}, rate - statistics[..., 1])

    def by_moments(self, mean: Tensor, variance: Tensor) -> Parameters:
        """Rates of these means."""
        return {"rate": mean}

    def embed(self, x: Tensor) -> Tensor:
        return x.sqrt()  # stabilises the variance of counts


@dataclass(frozen=True)
class Categorical(TakesInputs, UsualEmission):
    """One symbol 0, ..., C-1 per step; parameter `probs [K, C]`.

    Arguments:
        n_categories: C.
        prior: Dirichlet concentration, scalar, [C] or [K, C]; or as for `Normal`.
        inputs, shared: see `GeneralizedLinear`.

    Raises:
        TypeError: a number of categories that is not an integer; inputs that are neither names nor a number.
        ValueError: no categories; concentrations that are not positive; shared inputs that are not among the inputs.

    See Also:
        `Multinomial`, for several symbols a step; `one_hot`, which writes symbols for a network;
        docs/guides/emissions.md.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Categorical(n_categories=3))
        >>> fit = model.fit([0, 0, 1, 0, 2, 2, 2, 1, 2], progress=False)
        >>> fit.model.values["probs"].shape
        torch.Size([2, 3])
    """

    n_categories: int
    prior: float | Sequence | Mapping[str, Any] = 1.0
    inputs: InitVar[Inputs | Sequence[str]] = field(default=0, kw_only=True)
    shared: InitVar[Sequence[str]] = field(default=(), kw_only=True)
    n_features: ClassVar[int] = 1
    family = Dirichlet()
    stated_by = ("concentration",)
    aligned = True
    parameters = {"probs": Parameter(("state", "category"), constraints.simplex)}  # noqa: RUF012

    def __post_init__(self, *_: Any) -> None:
        n_categories = check_integer("n_categories", self.n_categories)
        object.__setattr__(self, "n_categories", n_categories)
        if isinstance(self.prior, Mapping):
            read_priors(self.prior, self.parameters, self.name)
        else:
            concentration(self.prior, (*floating(self.prior, "prior").shape[:-1], n_categories), "prior")

    @classmethod
    def sized_to(cls, x: Any) -> "Categorical":
        """With one category more than the greatest symbol; ValueError for several columns."""
        if x.shape[-1] != 1:
            raise ValueError(
                f"x: got {x.shape[-1]} columns, but a categorical emission is one symbol; give one column."
            )
        seen = x[~np.isnan(x)]
        return cls(max(1, int(seen.max()) + 1) if seen.size else 1)

    @property
    def support(self) -> constraints.Constraint:  # type: ignore[override]
        return constraints.integer_interval(0, self.n_categories - 1)

    @property
    def expects(self) -> str:  # type: ignore[override]
        return f"an integer from 0 to {self.n_categories - 1}, one of {self.n_categories} categories"

    @property
    def sizes(self) -> dict[str, int]:
        return super().sizes | {"category": self.n_categories}

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        known = 1.0 if isinstance(self.prior, Mapping) else self.prior
        table = concentration(known, (n_states, self.n_categories), "prior")
        return {"concentration": table if x is None else table.to(x)}

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        observed = ~torch.isnan(x[..., 0])
        symbol = torch.where(observed, x[..., 0], 0.0).long().unsqueeze(-1)
        log_probs = values["logits"] if "logits" in values else values["probs"].log()
        batch = broadcast_shapes(symbol.shape[:-1], log_probs.shape[:-1])
        log_density = log_probs.expand(*batch, -1).gather(-1, symbol.expand(*batch, -1)).squeeze(-1)
        return torch.where(observed, log_density, 0.0)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        known = "logits" if "logits" in values else "probs"
        given: dict[str, Any] = {known: values[known].unsqueeze(-2)}
        return dist.Categorical(**given).to_event(1)

    def moments(self, values: Parameters) -> tuple[Tensor, Tensor]:
        """Mean and variance of the symbols as numbers."""
        symbols = torch.arange(self.n_categories).to(values["probs"])
        mean = (values["probs"] * symbols).sum(-1, keepdim=True)
        return mean, (values["probs"] * (symbols - mean) ** 2).sum(-1, keepdim=True)

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        sums, symbol = values["probs"].cumsum(-1), x.floor().long()
        shape = (*broadcast_shapes(symbol.shape[:-1], sums.shape[:-1]), -1)
        cdf = sums.expand(shape).gather(-1, symbol.clamp(0, self.n_categories - 1).expand(shape))
        return torch.where(symbol < 0, 0.0, cdf)

    def message(self, x: Tensor, weights: Tensor, near: Parameters | None = None) -> Tensor:
        observed = ~torch.isnan(x[..., 0])
        if x.ndim > 2:
            symbols = torch.nn.functional.one_hot(torch.where(observed, x[..., 0], 0.0).long(), self.n_categories)
            return weights.mT @ (symbols * observed.unsqueeze(-1)).to(weights)
        counts = weights.new_zeros(*weights.shape[:-2], weights.shape[-1], self.n_categories)
        observed_weights = torch.where(observed.unsqueeze(-1), weights, 0.0)
        return counts.index_add(-1, torch.where(observed, x[:, 0], 0.0).long(), observed_weights.mT)

    def representative(self, statistics: Tensor) -> Representative:
        constant = statistics.logsumexp(-1, keepdim=True)
        return Representative({"probs": (statistics - constant).exp()}, constant)

    def embed(self, x: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(x[:, 0].long(), self.n_categories).to(x.dtype)


def _weighted_sums(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Two tables `[*r, K, F]`: the total weight of the observed values of each feature, and their weighted sum."""
    observed = ~torch.isnan(x)
    return weights.mT @ observed.to(x.dtype), weights.mT @ torch.where(observed, x, 0.0)


def _filled(x: Tensor) -> Tensor:
    """The values of every step `[N, F]`, 0 where missing."""
    return torch.nan_to_num(x.reshape(-1, x.shape[-1]), nan=0.0)


_log_factorial = Variants(lambda counts: torch.lgamma(counts + 1))


@_log_factorial.kernel("cpu")
def _looked_up(counts: Tensor) -> Tensor:
    """log n!, from a table if the counts are small, in a tenth of the time of gamma functions."""
    if counts.numel() < LOOKED_UP:
        return torch.lgamma(counts + 1)
    low, high = (float(end) for end in counts.aminmax())
    if not (low >= 0 and high < min(counts.numel(), 2**31) and float(counts.floor().sub_(counts).amin()) == 0):
        return torch.lgamma(counts + 1)
    table = torch.lgamma(torch.arange(1, int(high) + 2).to(counts))
    return table.index_select(0, counts.int().flatten()).reshape(counts.shape)


def _without(table: Tensor, *impossible: tuple[Tensor, Tensor]) -> Tensor:
    for shown, never in impossible:
        table = table.masked_fill(shown @ never.to(shown).mT > 0, -torch.inf)
    return table


_unless = Variants(_without)
"""A table `[*r, N, K]` with -inf for impossible values: pairs of `[N, F]` (it occurs) and `[*r, K, F]` (it cannot)."""


@_unless.kernel("cpu")
def _where_any(table: Tensor, *impossible: tuple[Tensor, Tensor]) -> Tensor:
    return _without(table, *(pair for pair in impossible if bool(pair[1].any())))


def _shaped(table: Tensor, x: Tensor) -> Tensor:
    """A table of all steps `[*r, N, K]` with the batch axes of x `[*b, T, F]`: `[*r, *b, T, K]`."""
    return table.reshape(*table.shape[:-2], *x.shape[:-1], table.shape[-1])
