r"""Ready-made dynamics of one series: level, trend, season, autoregression, and their sum.

    LocalLevel         l' = l + N(0, sigma2.level)
    LocalLinearTrend   l' = l + b + N(0, sigma2.level),  b' = b + N(0, sigma2.trend)
    Seasonal           g' = -(g + g.L1 + ... + g.L(s-2)) + N(0, sigma2.seasonal), or harmonics of the period, each a
                       vector that rotates by 2 pi j / s per step, with noises of one variance
    Autoregression     a' = ar.L1 a + ar.L2 a.L1 + ... + N(0, sigma2.ar)

The series is the sum of their first entries (of all harmonics) and an irregular part N(0, sigma2.irregular), which a
level or trend can leave out. Parameters have the names of statsmodels' `UnobservedComponents`. An autoregression starts
from its stationary distribution, all other components have a diffuse start (Durbin & Koopman 2012, chapters 3 and 5).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch

from ...inference.numerics.scalars import check_flag, check_integer
from ..parameters import Parameter, Parameters
from .stationary import LOST, autocovariances, partial_autocorrelations, share_of_noise
from .structure import VARIANCE, Diffuse, Structure, Tables, on_diagonal

LONGEST = 10**5  # steps of a period; tables have its square
UNSTABLE = 1e-9  # with a partial autocorrelation above 1 - UNSTABLE the process is not stationary in float64


@dataclass(frozen=True, repr=False)
class LocalLevel(Diffuse):
    """A level that is a random walk; its parameter is `sigma2.level`.

    Arguments:
        stochastic: False: a constant, without a parameter.
        irregular: False: the series has no observation noise `sigma2.irregular`; alone it is then a random walk.

    Raises:
        TypeError: arguments that are not True or False.

    Durbin & Koopman 2012, *Time Series Analysis by State Space Methods*, chapter 3.

    See Also:
        `LocalLinearTrend`, which has a drift too; `LinearSSM`, the model of such components; docs/guides/linear.md.

    >>> import samplehold as sh
    >>> sh.LinearSSM(sh.LocalLevel())
    LinearSSM(LocalLevel())
    >>> list(sh.LinearSSM(sh.LocalLevel(irregular=False)).known)
    ['sigma2.level']
    """

    stochastic: bool = True
    irregular: bool = True

    has_level = True

    def __post_init__(self) -> None:
        _check_flags(self)

    @property
    def latents(self) -> tuple[str, ...]:
        return ("level",)

    @property
    def transition(self) -> Sequence[Sequence[float]]:
        return ((1.0,),)

    @property
    def noisy(self) -> tuple[str | None, ...]:
        return ("sigma2.level" if self.stochastic else None,)

    @property
    def seen(self) -> tuple[float, ...]:
        return (1.0,)


@dataclass(frozen=True, repr=False)
class LocalLinearTrend(Diffuse):
    """A level with a slope: a random walk whose drift is a random walk. Its parameters are `sigma2.level` and
    `sigma2.trend`.

    Arguments:
        stochastic_level, stochastic_trend: False: the level, or the drift, has no noise and no parameter.
        irregular: False: the series has no observation noise `sigma2.irregular`.

    The names of statsmodels for these forms:

        smooth trend                        stochastic_level=False
        local linear deterministic trend    stochastic_trend=False
        random walk with drift              stochastic_trend=False, irregular=False
        random trend                        stochastic_level=False, irregular=False
        deterministic trend                 stochastic_level=False, stochastic_trend=False

    Raises:
        TypeError: arguments that are not True or False.

    Durbin & Koopman 2012, *Time Series Analysis by State Space Methods*, chapter 3.

    See Also:
        `LocalLevel`, without a drift; `LinearSSM`, the model of such components; docs/guides/linear.md.

    >>> import samplehold as sh
    >>> sh.LocalLinearTrend().latents
    ('level', 'trend')
    >>> list(sh.LinearSSM(sh.LocalLinearTrend(stochastic_level=False)).known)
    ['sigma2.irregular', 'sigma2.trend']
    """

    stochastic_level: bool = True
    stochastic_trend: bool = True
    irregular: bool = True

    has_level = True

    def __post_init__(self) -> None:
        _check_flags(self)

    @property
    def latents(self) -> tuple[str, ...]:
        return "level", "trend"

    @property
    def transition(self) -> Sequence[Sequence[float]]:
        return (1.0, 1.0), (0.0, 1.0)

    @property
    def noisy(self) -> tuple[str | None, ...]:
        return (
            "sigma2.level" if self.stochastic_level else None,
            "sigma2.trend" if self.stochastic_trend else None,
        )

    @property
    def seen(self) -> tuple[float, ...]:
        return 1.0, 0.0

    @property
    def shown(self) -> tuple[int, ...]:
        return 0, 1


@dataclass(frozen=True, repr=False)
class Seasonal(Diffuse):
    """A seasonal pattern that sums to 0 over a period, except for noise.

    Arguments:
        period: in steps, at least 2.
        trigonometric: the number of harmonics; True: all, half the period; False: no harmonics, but one effect for each
            step of the period. The parameter is `sigma2.seasonal`, or for h harmonics
            `sigma2.freq_seasonal_period(h)`. The harmonic of period 2 has one entry; statsmodels adds a second one,
            which is never observed.
        stochastic: False: a season without noise and without a parameter.

    Raises:
        TypeError, ValueError: a period below 2; more harmonics than half the period.

    Durbin & Koopman 2012, *Time Series Analysis by State Space Methods*, chapter 3.

    See Also:
        `Cycle`, whose period may be estimated; `LinearSSM`, the model of such components; docs/guides/linear.md.

    >>> import samplehold as sh
    >>> sh.Seasonal(4).latents, sh.Seasonal(4, trigonometric=1).variances
    (('seasonal', 'seasonal.L1', 'seasonal.L2'), ('sigma2.freq_seasonal_4(1)',))
    """

    period: int
    trigonometric: int = 0
    stochastic: bool = True

    def __post_init__(self) -> None:
        period, harmonics = check_integer("period", self.period, 2, LONGEST), self.trigonometric
        if isinstance(harmonics, bool):
            harmonics = period // 2 if check_flag("trigonometric", harmonics) else 0
        object.__setattr__(self, "period", period)
        object.__setattr__(self, "trigonometric", check_integer("trigonometric", harmonics, 0, period // 2))
        _check_flags(self)

    @property
    def latents(self) -> tuple[str, ...]:
        if not self.trigonometric:
            return "seasonal", *(f"seasonal.L{lag}" for lag in range(1, self.period - 1))
        size = sum(len(turn) for turn in self._turns)
        return tuple(f"freq_seasonal_{self.period}.{entry}" for entry in range(size))

    @property
    def transition(self) -> Sequence[Sequence[float]]:
        if not self.trigonometric:
            n = self.n_latent
            lags = [[float(column == row) for column in range(n)] for row in range(n - 1)]
            return [[-1.0] * n, *lags]
        turns = (torch.tensor(turn, dtype=torch.float64, device="cpu") for turn in self._turns)
        return torch.block_diag(*turns).tolist()

    @property
    def noisy(self) -> tuple[str | None, ...]:
        if not self.stochastic:
            return (None,) * self.n_latent
        if not self.trigonometric:
            return ("sigma2.seasonal", *[None] * (self.n_latent - 1))
        return (f"sigma2.freq_seasonal_{self.period}({self.trigonometric})",) * self.n_latent

    @property
    def seen(self) -> tuple[float, ...]:
        if not self.trigonometric:
            return (1.0, *[0.0] * (self.n_latent - 1))
        return tuple(float(entry == 0) for turn in self._turns for entry in range(len(turn)))

    @property
    def _turns(self) -> list[list[list[float]]]:
        """The transition of each harmonic."""
        turns = []
        for number in range(1, self.trigonometric + 1):
            if 2 * number == self.period:
                turns.append([[-1.0]])
                continue
            angle = 2 * math.pi * number / self.period
            cos, sin = math.cos(angle), math.sin(angle)
            turns.append([[cos, sin], [-sin, cos]])
        return turns


@dataclass(frozen=True, repr=False)
class Autoregression(Structure):
    """A component that is a stationary autoregression; its parameters are `sigma2.ar` and `ar.L1`, `ar.L2`, ...

    Arguments:
        order: the number of lags, at least 1.

    Raises:
        TypeError, ValueError: order is not a positive whole number.

    Durbin & Koopman 2012, *Time Series Analysis by State Space Methods*, chapter 3.

    See Also:
        `AutoRegressive`, an emission with coefficients of the state; `LinearSSM`, the model; docs/guides/linear.md.

    >>> import samplehold as sh
    >>> list(sh.Autoregression(2).parameters)
    ['sigma2.ar', 'ar.L1', 'ar.L2']
    """

    order: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", check_integer("order", self.order))

    @property
    def latents(self) -> tuple[str, ...]:
        return tuple(f"ar.L{lag}" for lag in range(1, self.order + 1))

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"sigma2.ar": VARIANCE} | {name: Parameter(()) for name in self.latents}

    @property
    def seen(self) -> tuple[float, ...]:
        return (1.0, *[0.0] * (self.order - 1))

    @property
    def orders(self) -> dict[str, tuple[str, ...]]:
        return {"sigma2.ar": self.latents}

    def check_values(self, values: Parameters) -> Parameters:
        checked = super().check_values(values)
        weights = torch.stack([checked[name].double() for name in self.latents], -1)
        partial, names = partial_autocorrelations(weights), ", ".join(self.latents)
        if not bool((partial.abs() < 1 - UNSTABLE).all()):
            raise ValueError(
                f"{names}: got {weights.tolist()}, but this autoregression is not stationary; give smaller ones, "
                "or add a LocalLevel() for a series without a fixed mean."
            )
        least = float(share_of_noise(partial).min())
        if self.order > 1 and least < LOST:
            raise ValueError(
                f"{names}: got {weights.tolist()}, which leave only a share of {least:.1g} of the variance to new "
                f"noise, and rounding hides shares below {LOST:g}; give smaller weights, or a lower order."
            )
        return checked

    @property
    def tables(self) -> Tables:
        lags = range(self.order)
        shift = [[float(column == row) for column in lags] for row in range(self.order - 1)]
        start = [[f"covariance.{self.latents[abs(row - column)]}" for column in lags] for row in lags]
        return Tables([self.latents, *shift], on_diagonal(["sigma2.ar", *[0.0] * (self.order - 1)]), start)

    def numbers(self, values: Parameters) -> Parameters:
        weights = torch.stack([values[name] for name in self.latents], -1)
        covariances = values["sigma2.ar"].unsqueeze(-1) * autocovariances(weights)
        return values | {f"covariance.{name}": covariances[..., lag] for lag, name in enumerate(self.latents)}


def _check_flags(structure: Structure) -> None:
    """TypeError if an argument that is declared as a bool is none."""
    for field in fields(structure):  # type: ignore[arg-type]
        if field.type in (bool, "bool"):
            object.__setattr__(structure, field.name, check_flag(field.name, getattr(structure, field.name)))
