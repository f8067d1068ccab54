r"""Forecasts of switching linear models: a normal density for each regime, at every horizon.

Paths of regimes that end in the same regime are merged into one density with their mean and covariance. If regimes do
not depend on the states, mean and variance stay exact. If states choose the regimes, the probabilities of regimes are
expectations under the merged densities, by quadrature.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.numerics.scalars import check_probability
from ..data.series import Series
from ..forecast import AfterSeries, ForecastInterval, normal_mixture
from ..intervals import bisected
from ..mixture import StateMixture
from ..peers import explains_options
from .gpb import SwitchingBelief, gpb_filter
from .joint import Regimes


@dataclass(frozen=True, repr=False)
class SwitchingForecast(AfterSeries):
    """Regimes, states and observations at horizons 1..H after the last step of each sequence."""

    state: Float[Tensor, "*b H K"]  # P(z)
    state_mean: Float[Tensor, "*b H L"]
    state_covariance: Float[Tensor, "*b H L L"]
    mean: Float[Tensor, "*b H F"]
    variance: Float[Tensor, "*b H F"]
    by_regime_mean: Float[Tensor, "*b H K F"]  # of an observation, given its regime
    by_regime_covariance: Float[Tensor, "*b H K F F"]
    series: Series | None = None  # the series before the forecast
    source: Any = None  # the model that made it

    @property
    def by_regime_variance(self) -> Float[Tensor, "*b H K F"]:
        """The variance of each feature, given the regime."""
        return self.by_regime_covariance.diagonal(dim1=-2, dim2=-1)

    @property
    def observation(self) -> StateMixture:
        """The distribution of the observations: a normal for each regime."""
        return normal_mixture(self.state, self.by_regime_mean, self.by_regime_covariance)

    def cdf(self, value: Tensor) -> Float[Tensor, "*b H F"]:
        """P(x <= value) for each feature, under the mixture."""
        z = (value.unsqueeze(-2) - self.by_regime_mean) / self.by_regime_variance.sqrt()
        return (self.state.unsqueeze(-1) * torch.special.ndtr(z)).sum(-2)

    @explains_options
    def interval(self, level: float = 0.9) -> ForecastInterval:
        """Lower and upper ends of the central interval of each feature, `[*b, H, F]`, by bisection.

        Raises:
            TypeError, ValueError: level is not a probability between 0 and 1.
        """
        level = check_probability("level", level, proper=True)
        return self._labelled(*(self._quantile(p) for p in ((1 - level) / 2, (1 + level) / 2)))

    def _quantile(self, p: float) -> Tensor:
        wide = (1 / min(p, 1 - p)) ** 0.5 * self.by_regime_variance.sqrt()  # Chebyshev
        low, high = (self.by_regime_mean - wide).amin(-2), (self.by_regime_mean + wide).amax(-2)
        return bisected(self.cdf, p, low, high)

    @property
    def beliefs(self) -> dict[str, Float[Tensor, "*b H"]]:
        """The columns of a table for the regimes, by their names."""
        return {f"state_{k}": column for k, column in enumerate(self.state.unbind(-1))}


def look_ahead(regimes: Regimes, belief: SwitchingBelief, horizon: int, order: int) -> SwitchingForecast:
    """The forecast from the belief after the last step of a filter of this order."""
    blank = regimes.emission.new_full((*belief.log_weight.shape[:-1], 1, regimes.n_features), torch.nan)
    k, steps = regimes.n_regimes, []
    for _ in range(horizon):
        ahead = gpb_filter(regimes, blank, order, belief=belief)
        belief = ahead.belief
        steps.append((*_seen(regimes, belief, k), ahead.mean[..., 0, :], ahead.covariance[..., 0, :, :]))
    weight, mean, covariance, state_mean, state_covariance = (
        torch.stack(tables, -n).to(regimes.emission)
        for tables, n in zip(zip(*steps, strict=True), (2, 3, 4, 2, 3), strict=True)
    )
    share = weight.unsqueeze(-1)
    mixed = (share * mean).sum(-2)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    spread = (share * (variance + (mean - mixed.unsqueeze(-2)).square())).sum(-2)
    return SwitchingForecast(weight, state_mean, state_covariance, mixed, spread, mean, covariance)


def _seen(regimes: Regimes, belief: SwitchingBelief, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """P(z) [*b, K], and mean [*b, K, F] and covariance of an observation in each regime."""
    c = belief.log_weight.shape[-1]
    weight = belief.log_weight.exp().unflatten(-1, (c // k, k))
    total = weight.sum(-2)
    share = torch.where(total.unsqueeze(-2) > 0, weight / total.unsqueeze(-2), k / c)[..., None]
    kept = belief.mean.shape[-2]
    means = belief.mean.expand(*belief.mean.shape[:-2], max(kept, c), -1).unflatten(-2, (c // k, k))
    covariances = belief.covariance.expand(*belief.covariance.shape[:-3], max(kept, c), -1, -1).unflatten(
        -3, (c // k, k)
    )
    mean = (share * means).sum(-3)
    gap = means - mean.unsqueeze(-3)
    covariance = (share.unsqueeze(-1) * (covariances + gap.unsqueeze(-1) * gap.unsqueeze(-2))).sum(-4)
    emission, noise = regimes.emission.to(mean), regimes.observation_noise.to(mean)
    shown = (emission @ mean.unsqueeze(-1)).squeeze(-1) + regimes.emission_offset.to(mean)
    return total, shown, emission @ covariance @ emission.mT + noise
