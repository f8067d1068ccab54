r"""Features that are often 0: an emission of single features, and a point mass at 0.

$$p(x \mid s) = \pi_s\, [x = 0] + (1 - \pi_s)\, p_0(x \mid s)$$

Counts may be 0 by either term. If $p_0$ is a density, a 0 is of the point mass alone (a hurdle): the M-step of $p_0$
then sees the other numbers, and that of $\pi_s$ is the share of zeros.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import pyro.distributions as dist
import torch
from jaxtyping import Bool, Float
from pyro.distributions import TorchDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ...inference.families.peak import NEAR_FLOOR
from ...inference.numerics.delegation import delegated
from ...inference.numerics.user_warnings import warn_user
from ..parameters import Parameter, Parameters
from ..priors import Site
from .contract import Emission, Maximized, check_no_inputs
from .separate import Expected, maximized, weighted_moments

NOTHING = 1e-8  # the rate, or the probability of other numbers, of a state that has only zeros
ZERO, HYPERPARAMETERS = "zero_probs", ("zero_successes", "zero_failures")


class _WithZero(constraints.Constraint):
    """A set of numbers, and 0."""

    is_discrete = False

    def __init__(self, base: Any) -> None:
        self.base = base
        if hasattr(base, "lower_bound"):
            self.lower_bound = min(0.0, float(base.lower_bound))
        if hasattr(base, "upper_bound"):
            self.upper_bound = max(0.0, float(base.upper_bound))

    def check(self, value: Tensor) -> Tensor:
        return self.base.check(value) | (value == 0)


@dataclass(frozen=True, repr=False)
class ZeroInflated(Emission):
    """An emission of independent features, mixed with a point mass at 0.

    Parameters are those of the emission, and `zero_probs [K, F]`. Zeros of counts are of the point mass or of the
    emission; zeros beside continuous numbers are of the point mass alone.

    Arguments:
        emission: `Poisson`, `NegativeBinomial`, `Gamma`, `Exponential`, `LogNormal`, `Beta`, or another one whose
            parameters are all `[K, F]`.
        prior: as for `Gamma`.

    Raises:
        TypeError: something else than an emission of independent features.
        ValueError: a prior of another parameter.

    See Also:
        `Joint`, for other features beside it; `NegativeBinomial`, for counts with a great variance;
        docs/guides/emissions.md.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Markov(n_states=2), sh.ZeroInflated(sh.Gamma()))
        >>> fit = model.fit([0.0, 0.5, 0.0, 0.6, 9.0, 11.0, 0.0, 9.5], progress=False)
        >>> sorted(fit.model.values)
        ['initial_probs', 'rate', 'shape', 'transition_probs', 'zero_probs']
    """

    emission: Emission
    prior: Any = field(default=None, kw_only=True, repr=False, compare=False)

    def __post_init__(self, *_: Any) -> None:
        emission = self.emission
        if not isinstance(emission, Emission):
            raise TypeError(f"emission: got {type(emission).__name__}, expected an emission such as Gamma(n_features).")
        check_no_inputs("emission", emission)
        if any(parameter.dims != ("state", "feature") for parameter in emission.parameters.values()):
            raise TypeError(
                f"emission: got {emission!r}, expected one of independent features, each with parameters of its own in "
                "each state, such as Gamma(n_features) or Poisson(n_features)."
            )
        if isinstance(self.prior, Mapping):
            inner = {name: one for name, one in self.prior.items() if name != ZERO}
            if inner:
                object.__setattr__(self, "emission", emission.with_user_priors(inner))
            object.__setattr__(self, "prior", {n: one for n, one in self.prior.items() if n == ZERO} or None)
        super().__post_init__()

    n_features = delegated("emission")
    have_unit = delegated("emission")
    in_units = delegated("emission")

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        """The axes, support and displayed form of each parameter."""
        return dict(self.emission.parameters) | {ZERO: Parameter(("state", "feature"), constraints.unit_interval)}

    @cached_property
    def support(self) -> constraints.Constraint:  # type: ignore[override]
        return self.emission.support if self._counts else _WithZero(self.emission.support)

    @property
    def expects(self) -> str:  # type: ignore[override]
        return self.emission.expects if self._counts else f"0 or {self.emission.expects}"

    @property
    def instead(self) -> str:  # type: ignore[override]
        return "Normal or StudentT accept any number"

    @property
    def _counts(self) -> bool:
        return bool(self.emission.support.is_discrete)

    @cached_property
    def _single(self) -> Emission:
        """The emission of one feature."""
        return cast(Emission, replace(cast(Any, self.emission), n_features=1))

    def shifts(self, fixed: Any) -> bool:
        return False

    def _without_zeros(self, x: Float[Tensor, "*n F"]) -> Float[Tensor, "*n F"]:
        """The numbers of the emission's density, NaN elsewhere."""
        return x if self._counts else torch.where(x == 0, torch.nan, x)

    # ---- the density -------------------------------------------------------------------------------------------------

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        each = self.log_density(x, values)
        return torch.where(torch.isnan(x), 0.0, each).sum(-1)

    def log_density(self, x: Float[Tensor, "*#n"], values: Parameters) -> Float[Tensor, "*n"]:
        """log p(x) of single numbers."""
        zero_probs = values[ZERO]
        inner = {name: values[name].unsqueeze(-1) for name in self.emission.parameters}
        other = self._single.log_prob(self._without_zeros(x).unsqueeze(-1), inner) + _log(1 - zero_probs)
        at_zero = torch.logaddexp(other, _log(zero_probs)) if self._counts else _log(zero_probs)
        return torch.where(x == 0, at_zero, other)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return _Inflated(self, {name: values[name] for name in self.parameters})

    def moments(self, values: Parameters) -> tuple[Tensor, Tensor]:
        mean, variance = self.emission.moments(values)
        rest = 1 - values[ZERO]
        return rest * mean, rest * (variance + values[ZERO] * mean.square())

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        zero_probs = values[ZERO]
        return zero_probs * (x >= 0).to(zero_probs) + (1 - zero_probs) * self.emission.marginal_cdf(x, values)

    def embed(self, x: Tensor) -> Tensor:
        if self._counts:
            return self.emission.embed(x)
        is_zero = x == 0
        least = torch.where(is_zero, torch.inf, x).amin(0)
        inner = self.emission.embed(torch.where(is_zero, least.where(least.isfinite(), _typical(self.emission)), x))
        return torch.cat([is_zero.to(x), inner], -1)

    # ---- the prior ---------------------------------------------------------------------------------------------------

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """That of the emission, and two observations, of which one is a 0."""
        if x is not None:
            x = self._without_zeros(x)
            x = torch.where(x.isnan().all(0), _typical(self.emission), x)
        prior = self.emission.prior_scaled(n_states, x)
        like = next(iter(prior.values()))
        return prior | {name: like.new_full((n_states, self.n_features), 2.0) for name in HYPERPARAMETERS}

    def sites(self, prior: Parameters) -> list[Site]:
        of_zero: Any = dist.Beta(prior[HYPERPARAMETERS[0]], prior[HYPERPARAMETERS[1]]).to_event(2)
        sites = [Site(ZERO, lambda values: of_zero)]
        if self.user_priors:
            sites = self._with_user_priors(sites, prior, {ZERO: prior[HYPERPARAMETERS[0]]})
        return self.emission.sites(prior) + sites

    def in_fit_units(self, about: Tensor, unit: Tensor) -> "ZeroInflated":
        emission = self.emission.in_fit_units(about, unit)
        return self if emission is self.emission else replace(self, emission=emission)

    # ---- the M-step --------------------------------------------------------------------------------------------------

    def maximize(
        self, x: Tensor, weights: Tensor, near: Parameters, prior: Parameters | None, floor: Tensor
    ) -> Maximized:
        if self._counts and hasattr(self.emission, "by_moments"):
            return maximized(self, Expected.of(self, x, weights), near, prior, floor)
        if self._counts or (prior is not None and self.user_priors):
            return super().maximize(x, weights, near, prior, floor)
        best = self.emission.maximize(self._without_zeros(x), weights, near, prior, floor)
        return self._maximized(best, self._zeros(x, weights), prior)

    @property
    def adds_up(self) -> bool:  # type: ignore[override]
        return self.emission.adds_up and not (self._counts or self.user_priors)

    def sums(self, x: Tensor, weights: Tensor, near: Parameters) -> Parameters:
        return self.emission.sums(self._without_zeros(x), weights, near) | self._zeros(x, weights)

    def maximize_sums(self, sums: Parameters, near: Parameters, prior: Parameters | None, floor: Tensor) -> Maximized:
        return self._maximized(self.emission.maximize_sums(sums, near, prior, floor), sums, prior)

    @staticmethod
    def _zeros(x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"]) -> Parameters:
        """The weights of zeros and of all observed numbers, `[*r, K, F]`."""
        return {"zeros": weights.mT @ (x == 0).to(weights), "seen": weights.mT @ (~torch.isnan(x)).to(weights)}

    def _maximized(self, best: Maximized, sums: Parameters, prior: Parameters | None) -> Maximized:
        zeros, count = sums["zeros"], sums["seen"]
        if prior is not None:
            successes, failures = (prior[name] for name in HYPERPARAMETERS)
            zeros, count = zeros + successes - 1, count + successes + failures - 2
        return Maximized(best.values | {ZERO: zeros / count})

    def check_fitted(self, values: Parameters, rows: Tensor) -> None:
        """Warn if a state has only zeros, which leave some parameters free."""
        self.emission.check_fitted({name: values[name] for name in self.emission.parameters}, rows)
        alone = [(tuple(self.emission.parameters), values[ZERO] >= 1 - NOTHING)]
        if self._counts:
            alone.append(((ZERO,), self.emission.moments(values)[0] <= NOTHING))
        for free, only in alone:
            if not bool(only.any()):
                continue
            state, feature = torch.nonzero(only)[0].tolist()
            names, verb = " and ".join(free), "is" if len(free) == 1 else "are"
            warn_user(
                f"{names}: feature {feature} is always 0 in state {state}, so the likelihood does not depend on its "
                f"{names}, which {verb} no estimate{'s' * (len(free) > 1)}. Fit with prior='weak', or fewer states."
            )

    # ---- zeros of counts: the objective of each state and feature, see `separate` -----------------------------------

    typical = 1.0

    def guess(self, x: Tensor, weights: Tensor, least: Tensor) -> Parameters:
        """Half of the zeros are of the point mass."""
        mean, variance, count = weighted_moments(x, weights)
        share = (weights.mT @ (x == 0).to(x)) / count.clamp_min(1e-300) / 2 + 1e-3
        inner = mean / (1 - share)
        spread = (variance + mean.square()) / (1 - share) - inner.square()
        return cast(Any, self.emission).by_moments(inner, spread.clamp_min(0.0)) | {ZERO: share}

    def narrowness(self, values: Parameters) -> Tensor:
        """Infinite for counts, whose likelihood is bounded."""
        if self._counts:
            return torch.full_like(values[ZERO], torch.inf)
        return self.emission.narrowness({name: values[name] for name in self.emission.parameters})

    def collapsed(self, values: Parameters, floor: Tensor) -> Tensor:
        """Zeros alone say nothing of the emission."""
        narrow = self.narrowness(values) <= NEAR_FLOOR * floor
        return (narrow & (values[ZERO] < 1 - NOTHING)).any(-1)


class _Inflated(TorchDistribution):
    """An observation under parameters `[*batch, F]`."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 the interface of torch.distributions

    def __init__(self, emission: ZeroInflated, values: Parameters) -> None:
        self.emission, self.values = emission, values
        shape = values[ZERO].shape
        super().__init__(shape[:-1], shape[-1:], validate_args=False)

    @property
    def support(self) -> Any:
        return constraints.independent(self.emission.support, 1)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "_Inflated":
        wide = {name: value.expand(*batch_shape, value.shape[-1]) for name, value in self.values.items()}
        return _Inflated(self.emission, wide)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.emission.log_prob(value, self.values)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        drawn = self.emission.emission.distribution(self.values).sample(torch.Size(sample_shape))
        return drawn.masked_fill(self._is_zero(drawn), 0.0)

    def _is_zero(self, like: Tensor) -> Bool[Tensor, "*n F"]:
        return torch.rand(like.shape, dtype=like.dtype, device=like.device) < self.values[ZERO]

    @property
    def mean(self) -> Tensor:
        return self.emission.moments(self.values)[0]

    @property
    def variance(self) -> Tensor:
        return self.emission.moments(self.values)[1]


def _log(probability: Tensor) -> Tensor:
    """The logarithm; its gradient at 0 is 0."""
    possible = probability > 0
    return torch.where(possible, probability.where(possible, 1.0).log(), -torch.inf)


def _typical(emission: Emission) -> float:
    return float(getattr(emission, "typical", 1.0))  # a number inside its support
