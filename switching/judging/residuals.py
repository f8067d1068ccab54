r"""Pseudo-residuals: each observation as a normal score of its distribution given the observations before it.

$$u_t = P(X_t \le x_t \mid x_{1:t-1}), \qquad r_t = \Phi^{-1}(u_t),$$

under the mixture over predicted states, or over beginnings of the segment in force (Zucchini, MacDonald & Langrock
2016, section 6.2). At the true parameters the residuals of a feature are independent and standard normal. Where the
distribution jumps, as for counts, $u_t$ is drawn between its two limits (Dunn & Smyth 1996). At the parameters of a
fit, they are slightly too regular.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pandas as pd
import torch
from scipy.special import ndtri
from scipy.stats import chi2
from torch import Tensor

from ...inference.numerics.checks import naming
from ...inference.numerics.interrupts import importing
from ...inference.numerics.randomness import Seed, generator_of
from ...inference.numerics.scalars import check_integer
from ..data.frames import Frame
from ..data.series import Given, Series
from ..emissions.by_subject import of_one
from ..emissions.driven import emission_at, scored
from ..mixture import StateMixture
from ..parameters import Parameters
from ..problem import Problem
from ..seeding import seeded
from .scores import limits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST = 2.0**-53  # the least distance of a probability from 0 and from 1, that of 1 to the number before it
LAGS = 10


@dataclass(frozen=True, repr=False)
class Residuals:
    """One-step-ahead pseudo-residuals of a fit.

    Attributes:
        table: the residuals in pandas, on the labels of the steps.
        sequences: the residuals `[T, F]` of each sequence, in the order of its steps.
        frame: the kind of the user's frame, if it is not of pandas.
    """

    table: pd.DataFrame
    sequences: tuple[np.ndarray, ...]
    frame: Frame | None = None

    @property
    def values(self) -> pd.DataFrame | Any:
        """A row for each step, in the index or with the key columns of the data, and a column for each feature; NaN
        (null in other frames than those of pandas) where missing."""
        return self.table if self.frame is None else self.frame.like(self.table)

    @property
    def n_observed(self) -> pd.Series:
        """The number of residuals of each feature."""
        return self.table.notna().sum()

    def acf(self, lags: int = LAGS) -> pd.DataFrame:
        """Autocorrelations at the lags 1, 2, ..., `lags` of each feature, from pairs of steps of one sequence.

        Raises:
            ValueError: no two residuals of a sequence are so far apart.
        """
        return self._products(check_integer("lags", lags))[0]

    def lags_with_pairs(self, most: int) -> int:
        """The number of first lags, up to `most`, at which every feature has pairs."""
        seen = [~np.isnan(one) for one in self.sequences]
        for lag in range(1, most + 1):
            if not np.any([(one[lag:] & one[: max(0, len(one) - lag)]).any(0) for one in seen], 0).all():
                return lag - 1
        return most

    def ljung_box(self, lags: int = LAGS) -> pd.DataFrame:
        r"""The test of Ljung & Box 1978 that autocorrelations at the first `lags` lags are 0.

        $Q = n (n + 2) \sum_k r_k^2 / m_k$, where $m_k$ is the number of pairs at lag k: n - k in one series without
        missing values. Q is compared with a chi-squared distribution with `lags` degrees of freedom.

        Returns:
            A row for each feature, with `statistic`, `lags` and `p_value`.

        Raises:
            ValueError: as `acf`.
        """
        lags = check_integer("lags", lags)
        correlations, pairs = self._products(lags)
        n = self.n_observed.to_numpy()
        statistic = n * (n + 2) * (correlations.to_numpy() ** 2 / pairs).sum(0)
        columns = {"statistic": statistic, "lags": lags, "p_value": chi2.sf(statistic, lags)}
        return pd.DataFrame(columns, index=self.table.columns)

    def _products(self, lags: int) -> tuple[pd.DataFrame, np.ndarray]:
        """The autocorrelations, and the number of pairs at each lag `[lags, F]`."""
        centred = [one - np.nanmean(self.table.to_numpy(), 0) for one in self.sequences]
        products = [
            np.concatenate([one[lag:] * one[: max(0, len(one) - lag)] for one in centred]) for lag in range(1, lags + 1)
        ]
        pairs = np.stack([(~np.isnan(product)).sum(0) for product in products])
        if (pairs == 0).any():
            most = self.lags_with_pairs(lags)
            raise ValueError(f"lags: got {lags}, but residuals have pairs at {most} lag(s) only; use fewer lags.")
        total = np.nansum(np.concatenate(centred) ** 2, 0)
        correlations = np.stack([np.nansum(product, 0) for product in products]) / total
        index = pd.RangeIndex(1, lags + 1, name="lag")
        return pd.DataFrame(correlations, index=index, columns=self.table.columns), pairs

    def plot(self, lags: int = LAGS) -> "Figure":
        """For each feature the series of residuals, their quantiles against those of a standard normal, and their
        autocorrelations up to `lags`.

        Raises:
            ValueError: as `acf`.
        """
        with importing():
            from ..views.judging_figures import plot_residuals

        return plot_residuals(self, check_integer("lags", lags))

    def __repr__(self) -> str:
        spread = ", ".join(
            f"{name}: mean {self.table[name].mean():.3g}, sd {self.table[name].std():.3g}" for name in self.table
        )
        return f"Residuals of {len(self.table)} steps: {spread}"


@torch.no_grad()
def residuals(model: Any, x: Any, seed: Seed = 0, **given: Unpack[Given]) -> Residuals:
    """The pseudo-residuals of x under a model with values: see `Fit.residuals`."""
    problem = model.problem(x, **given)
    if not has_residuals(problem):
        raise TypeError(f"model: got a {model.name}, but only a SwitchingSSM or Segments have pseudo-residuals.")
    double = problem.double()
    values = model.product_of(model.values_like(double.series.like))
    with naming("x"), seeded(seed, double.series.like):
        ends = double.steps(lambda part: limits_before(part, values))
    below, at = (ends[name].cpu().numpy() for name in ("below", "at"))
    share = torch.rand(below.shape, dtype=torch.float64, generator=generator_of(seed), device="cpu").numpy()
    scores = ndtri(np.clip(below + share * (at - below), LEAST, 1 - LEAST))
    series = problem.series
    table = pd.DataFrame(scores, index=series.labels, columns=list(series.features_of()))
    return Residuals(table, _by_sequence(series, scores), series.frame)


def has_residuals(problem: Any) -> bool:
    """Whether the distribution of each observation given those before it is known."""
    return isinstance(problem, Problem) or hasattr(problem, "limits_before")


def limits_before(problem: Any, values: Parameters) -> dict[str, Tensor]:
    """P(X_t < x_t) and P(X_t <= x_t) given the observations before; NaN where the model gives no density."""
    if not isinstance(problem, Problem):
        return problem.limits_before(values)
    series = problem.series
    weights = problem.before_each(values, problem.chain(values).filter())
    known = scored(of_one(problem.emission), series)
    if series.powers is not None:
        known = known & (series.powers > 0).unsqueeze(-1)
    x = series.observations.masked_fill(~known, torch.nan)
    mixture = StateMixture(emission_at(problem.emission, series, series.drive), values, weights)
    if series.variances is None:
        below, at = limits(mixture, x)
        return {"below": below, "at": at}
    weight, mean, variance = mixture.components
    scale = (variance + series.variances.unsqueeze(-2)).sqrt()
    at = (weight.unsqueeze(-1) * torch.special.ndtr((x.unsqueeze(-2) - mean) / scale)).sum(-2)
    return {"below": at, "at": at}


def _by_sequence(series: Series, table: np.ndarray) -> tuple[np.ndarray, ...]:
    """The steps of each sequence, from those of all in the order of `Series.labels`."""
    if series.stacked is not None:
        return tuple(table[members] for members in series.stacked.members)
    return tuple(np.split(table, np.cumsum((series.last.flatten() + 1).cpu().numpy())[:-1]))
