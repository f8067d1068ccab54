"""What a linear model says of the future: normal distributions of latents and observations at every horizon."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from scipy.special import ndtri
from torch import Tensor

from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_probability
from ..data.series import Series
from ..forecast import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class LinearForecast(Record):
    """Latents and observations at horizons 1..H after the last step of each sequence.

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
    series: Series | None = None  # that it goes on from
    source: Any = None  # the model that made it

    @property
    def variance(self) -> Float[Tensor, "*b H F"]:
        """Of each feature by itself."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)

    def interval(self, level: float = 0.9) -> Interval:
        """Lower and upper ends of the central interval of each feature, `[*b, H, F]`.

        Raises:
            TypeError, ValueError: level is no probability between 0 and 1.
        """
        level = check_probability("level", level, proper=True)
        reach = float(ndtri((1 + level) / 2)) * self.variance.sqrt()
        return Interval(self.mean - reach, self.mean + reach)

    @property
    def beliefs(self) -> dict[str, Float[Tensor, "*b H"]]:
        """What a table says of latents, by the heads of its columns."""
        spread = self.state_covariance.diagonal(dim1=-2, dim2=-1).sqrt()
        found = {}
        for place, name in enumerate(self.source.dynamics.latents):
            found |= {f"latent {name}": self.state_mean[..., place], f"latent {name}, sd": spread[..., place]}
        return found

    def one(self, sequence: int) -> "LinearForecast":
        """That of one sequence, without batch axes; `ValueError` where there is no such sequence."""
        if self.series is None:
            raise ValueError("forecast: got one that knows no series; make it with model.forecast(x, horizon).")
        series, n_batch = self.series.one(sequence), len(self.series.batch_shape)
        tables = {name: getattr(self, name) for name in ("state_mean", "state_covariance", "mean", "covariance")}
        if n_batch:
            tables = {name: table.flatten(0, n_batch - 1)[sequence] for name, table in tables.items()}
        return replace(self, series=series, **tables)

    def plot(self, *, sequence: int = 0, level: float = 0.9) -> "Figure":
        """The end of the series and the forecast after it.

        Arguments:
            sequence: which one to draw, of several.
            level: probability of the interval.

        Raises:
            ValueError: no such sequence; level outside (0, 1).
        """
        level = check_probability("level", level, proper=True)
        return self.source._figures().plot_forecast(self.one(sequence), level)

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        from ..views.pages import forecast_page

        return forecast_page(self)
