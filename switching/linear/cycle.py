r"""A stochastic cycle: a vector that turns by a frequency at each step, and may shrink.

$$\begin{pmatrix} c' \\ c^{*\prime} \end{pmatrix} = \rho
\begin{pmatrix} \cos \lambda & \sin \lambda \\ -\sin \lambda & \cos \lambda \end{pmatrix}
\begin{pmatrix} c \\ c^* \end{pmatrix} + N(0, \sigma^2 I)$$

With damping $\rho < 1$ the cycle is stationary and starts from its stationary distribution, of the variance
$\sigma^2 / (1 - \rho^2)$ (Harvey 1989, *Forecasting, Structural Time Series Models and the Kalman Filter*, 2.3).
Without damping its start is diffuse. The evidence of a diffuse start contains a factor $1 / |\sin \lambda|$, so it has
no maximum in $\lambda$ down to 0: an estimated frequency needs bounds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributions import constraints

from ...inference.numerics.scalars import check_flag, check_number
from ..parameters import Parameter, Parameters
from .structure import VARIANCE, Rows, Structure, Tables, on_diagonal

SHORTEST = 2.0  # steps of a period
MOST_DAMPING = 1 - 1e-7  # largest factor of a damped cycle in a fit


@dataclass(frozen=True, repr=False)
class Cycle(Structure):
    """A cycle whose amplitude and phase drift; its parameters are `sigma2.cycle`, `frequency.cycle` if the period is
    not fixed, and `damping.cycle` if it is damped. The frequency is in radians per step, 2 pi / period.

    Arguments:
        period: in steps, more than 2. A number fixes it. A pair of bounds, such as (6, 48), is for a period that is
            estimated. None: any period, for a damped cycle.
        damped: whether the cycle shrinks by the factor `damping.cycle` at each step. It then starts from its stationary
            distribution; statsmodels gives it a diffuse start.
        stochastic: False: amplitude and phase are constant; then there is no `sigma2.cycle`.

    Raises:
        TypeError, ValueError: a period of 2 or less; bounds in the wrong order; no bounds without damping; a
            damped cycle that is not stochastic.

    Harvey 1989, *Forecasting, Structural Time Series Models and the Kalman Filter*, 2.3.

    See Also:
        `Seasonal`, for a period that is known and a pattern of any form; `LinearSSM`, the model; docs/guides/linear.md.

    >>> import samplehold as sh
    >>> list(sh.Cycle(12).parameters), list(sh.Cycle(damped=True).parameters)
    (['sigma2.cycle'], ['sigma2.cycle', 'frequency.cycle', 'damping.cycle'])
    >>> sh.LinearSSM(sh.LocalLevel() + sh.Cycle((6, 48), damped=True)).latents
    ('level', 'cycle', 'cycle.auxiliary')
    """

    period: Any = None
    damped: bool = False
    stochastic: bool = True

    def __post_init__(self) -> None:
        for name in ("damped", "stochastic"):
            object.__setattr__(self, name, check_flag(name, getattr(self, name)))
        object.__setattr__(self, "period", _period(self.period))
        if self.period is None and not self.damped:
            raise ValueError(
                "period: got None, but without damping the likelihood has no maximum over all periods; give a period, "
                "bounds such as (6, 48), or damped=True."
            )
        if self.damped and not self.stochastic:
            raise ValueError("stochastic: got False, but a damped cycle without noise vanishes; give damped=False.")

    @property
    def latents(self) -> tuple[str, ...]:
        return "cycle", "cycle.auxiliary"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        noise = {"sigma2.cycle": VARIANCE} if self.stochastic else {}
        frequencies = constraints.interval(*self._frequencies)
        ranges = {"frequency.cycle": frequencies, "damping.cycle": constraints.unit_interval}
        return noise | {name: Parameter((), ranges[name]) for name in self.ranges}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        frequency = {} if isinstance(self.period, float) else {"frequency.cycle": self._frequencies}
        return frequency | ({"damping.cycle": (0.0, MOST_DAMPING)} if self.damped else {})

    @property
    def diffuse(self) -> tuple[bool, ...]:
        return (not self.damped,) * 2

    @property
    def seen(self) -> tuple[float, ...]:
        return 1.0, 0.0

    @property
    def _frequencies(self) -> tuple[float, float]:
        """The least and the greatest frequency."""
        if self.period is None:
            return 0.0, math.pi
        least, most = self.period if isinstance(self.period, tuple) else (self.period, self.period)
        return 2 * math.pi / most, 2 * math.pi / least

    def check_values(self, values: Parameters) -> Parameters:
        checked = super().check_values(values)
        if self.damped and bool((checked["damping.cycle"] >= 1).any()):
            raise ValueError(
                f"damping.cycle: got {checked['damping.cycle'].tolist()}, expected less than 1; a Cycle without "
                "damping keeps its amplitude."
            )
        return checked

    @property
    def tables(self) -> Tables:
        turn: Rows = [["cycle.cos", "cycle.sin"], ["cycle.-sin", "cycle.cos"]]
        if not self.ranges:
            cos, sin = self._turn
            turn = [[cos, sin], [-sin, cos]]
        noise = on_diagonal(2 * ["sigma2.cycle" if self.stochastic else 0.0])
        return Tables(turn, noise, on_diagonal(2 * ["cycle.variance" if self.damped else 0.0]))

    def numbers(self, values: Parameters) -> Parameters:
        if not self.ranges:
            return values
        frequency = values.get("frequency.cycle")
        cos, sin = self._turn if frequency is None else (frequency.cos(), frequency.sin())
        damping = values["damping.cycle"] if self.damped else torch.ones_like(next(iter(values.values())))
        found = {"cycle.cos": damping * cos, "cycle.sin": damping * sin, "cycle.-sin": -damping * sin}
        if self.damped:
            found["cycle.variance"] = values["sigma2.cycle"] / (1 - damping.square())
        return values | found

    @property
    def _turn(self) -> tuple[float, float]:
        """The cosine and the sine of a fixed frequency."""
        frequency = self._frequencies[0]
        return math.cos(frequency), math.sin(frequency)


def _period(period: Any) -> float | tuple[float, float] | None:
    """A period, or the bounds of one."""
    if period is None:
        return None
    if not isinstance(period, tuple | list):
        return _above("period", period)
    if len(period) != 2:
        raise ValueError(f"period: got {len(period)} numbers, expected one, or two bounds such as (6, 48).")
    least, most = (_above("period", bound) for bound in period)
    if not least < most:
        raise ValueError(f"period: got bounds {least:g} and {most:g}, expected the lower one first.")
    return least, most


def _above(name: str, period: Any) -> float:
    period = check_number(name, period, above=0)
    if period <= SHORTEST:
        raise ValueError(f"{name}: got {period:g}, expected more than 2 steps, the period of an alternating series.")
    return period
