r"""Forecasts of segments: the segment in force goes on, or a later one has begun.

$$p(x_{T+h} \mid x) = \sum_r P(r_T = r \mid x)\, S_h(r)\, p(x_{T+h} \mid r_T = r, x)
+ \Big(1 - \sum_r P(r_T = r \mid x)\, S_h(r)\Big)\, p(x_{T+h}),$$

with $S_h(r)$ the probability that no change comes in h steps after a run of r, and the prior predictive distribution
as last term.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..data.series import Series
from ..dynamics.gates import log1mexp
from ..emissions.contract import ByGate
from ..emissions.driven import inputs_read
from ..forecast import Forecast
from ..mixture import StateMixture
from ..parameters import Parameters
from .durations import log_hazards
from .predictive import predicted
from .problem import SegmentProblem
from .rows import natural


@dataclass(frozen=True, repr=False)
class SegmentsForecast(Forecast):
    """Observations at horizons 1..H after the last step of each sequence.

    `state [*b, H, R + 1]` has P(the segment at the end of x still holds), by the step where it began, and in the last
    column P(a later segment). `redraw`: P(a change after the end of x, up to the horizon).

    Example:
        >>> import pyro.distributions as dist
        >>> import samplehold as sh
        >>> model = sh.Segments(sh.Poisson(1, prior={"rate": dist.Gamma(1.0, 1.0)}), hazard=0.1)
        >>> ahead = model.forecast([8, 11, 9, 10, 12], horizon=2)
        >>> ahead.mean.round(decimals=3).flatten(), ahead.redraw.round(decimals=2)
        (tensor([7.7490, 7.0740], dtype=torch.float64), tensor([0.1000, 0.1900], dtype=torch.float64))
    """

    @property
    def beliefs(self) -> dict[str, Float[Tensor, "*b H"]]:
        """The probability of a change since the end of the series."""
        return {"change": self.redraw}

    def _alone(self, series: Series, part: Callable[[Tensor], Tensor]) -> "SegmentsForecast":
        return SegmentsForecast(**vars(super()._alone(series, part)))


def forecast(problem: SegmentProblem, values: Parameters, horizon: int, source: Any) -> SegmentsForecast:
    """The forecast of every sequence of a problem, whose series has the inputs and gaps of the steps to come."""
    double = {name: value.double() for name, value in values.items()}
    runs, series, rows = problem.chain(values).runs(), problem.series, problem.rows
    n_batch = len(series.batch_shape)
    log_held = runs.log_weight.unsqueeze(-2) + log_survival(problem, double, runs.length, horizon)
    held = problem.each(log_held.double().exp())
    weights = torch.cat([held, (1 - held.sum(-1, keepdim=True)).clamp_min(0.0)], -1)
    eta, fresh = problem.apart(runs.natural[0], -2), natural(problem.emission, double, rows).unsqueeze(-3)
    eta = torch.cat([eta.double(), fresh.expand(*eta.shape[:-3], *fresh.shape[-3:])], -3)
    inputs = inputs_read(problem.emission, series, series.ahead).double() if problem.emission.n_inputs else None

    def at_each(table: Tensor) -> Tensor:
        shape = (*table.shape[:n_batch], horizon, *table.shape[n_batch + 1 :])
        return table.expand(shape).to(series.like)

    emission = predicted(problem.emission, eta, rows.about, inputs).cut(at_each)
    # equal gates, none of which has weights of 0 beside an infinite variance
    mixture = StateMixture(emission, {}, ByGate(weights / 2, weights / 2))
    mean, variance = mixture.mean, mixture.variance.nan_to_num(torch.inf, posinf=torch.inf)
    return SegmentsForecast(weights, weights[..., -1], mixture, mean, variance, series, source)


def log_survival(
    problem: SegmentProblem, values: Parameters, length: Int[Tensor, "*b R"], horizon: int
) -> Float[Tensor, "*#b H #R"]:
    """log S_h(r) after runs of these lengths."""
    ahead = torch.arange(1, horizon + 1, device=length.device)
    if problem.duration is not None:
        log_hold = log1mexp(log_hazards(problem.duration, problem.series.n_steps + horizon)).to(length.device)
        beyond = torch.nn.functional.pad(log_hold.cumsum(0), (1, 0))
        last = (length.unsqueeze(-2) - 1).clamp_min(0)
        later, before = torch.broadcast_tensors(beyond[last + ahead.unsqueeze(-1)], beyond[last])
        return torch.where(later == -torch.inf, later, later - before)  # no run is longer than durations can be
    drive = problem.series.ahead
    log_hold = problem.log_gate(values, drive)[1]
    passed = torch.ones_like(ahead, dtype=torch.float64) if drive.gaps is None else drive.gaps.double()
    return (log_hold * passed).cumsum(-1).unsqueeze(-1)
