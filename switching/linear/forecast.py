"""Forecasts of linear models: normal distributions of latents and observations at every horizon."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from scipy.special import ndtri
from torch import Tensor

from ...inference.numerics.scalars import check_probability
from ..data.series import Series
from ..forecast import AfterSeries, ForecastInterval, normal_mixture
from ..mixture import StateMixture
from ..peers import explains_options


@dataclass(frozen=True, repr=False)
class LinearForecast(AfterSeries):
    """Latents and observations at horizons 1..H after the last step of each sequence.

    Attributes:
        state_mean, state_covariance: `[*b, H, L]` and `[*b, H, L, L]`, of the latents.
        mean, covariance: `[*b, H, F]` and `[*b, H, F, F]`, of the observations.
        series: the series before the forecast.
        source: the model that made it.

    >>> import samplehold as sh
    >>> model = sh.LinearSSM(sh.LocalLevel()).with_values({"sigma2.irregular": 1.0, "sigma2.level": 0.0})
    >>> ahead = model.forecast([1.0, 2.0, 3.0], horizon=2)
    >>> ahead.mean.flatten().round(decimals=4), ahead.interval(0.9).upper.flatten()
    (tensor([2., 2.], dtype=torch.float64), tensor([3.8993, 3.8993], dtype=torch.float64))
    """

    state_mean: Float[Tensor, "*b H L"]
    state_covariance: Float[Tensor, "*b H L L"]
    mean: Float[Tensor, "*b H F"]
    covariance: Float[Tensor, "*b H F F"]
    series: Series | None = None
    source: Any = None

    @property
    def observation(self) -> StateMixture:
        """The distribution of the observations."""
        weight = self.mean.new_ones(*self.mean.shape[:-1], 1)
        return normal_mixture(weight, self.mean.unsqueeze(-2), self.covariance.unsqueeze(-3))

    @property
    def variance(self) -> Float[Tensor, "*b H F"]:
        """The variance of each feature."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)

    @explains_options
    def interval(self, level: float = 0.9) -> ForecastInterval:
        """Lower and upper ends of the central interval of each feature, `[*b, H, F]`.

        Arguments:
            level: the probability of the interval.

        Raises:
            TypeError, ValueError: level is not a probability between 0 and 1.
        """
        level = check_probability("level", level, proper=True)
        reach = float(ndtri((1 + level) / 2)) * self.variance.sqrt()
        return self._labelled(self.mean - reach, self.mean + reach)

    @property
    def beliefs(self) -> dict[str, Float[Tensor, "*b H"]]:
        """The columns of a table for the latents, by their names."""
        spread = self.state_covariance.diagonal(dim1=-2, dim2=-1).sqrt()
        columns = {}
        for place, name in enumerate(() if self.source is None else self.source.dynamics.latents):
            columns |= {f"latent_mean_{name}": self.state_mean[..., place], f"latent_sd_{name}": spread[..., place]}
        return columns
