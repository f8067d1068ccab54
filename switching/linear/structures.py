r"""Ready-made dynamics of one series: level, trend, season, autoregression, and their sum.

    LocalLevel         l' = l + N(0, sigma2.level)
    LocalLinearTrend   l' = l + b + N(0, sigma2.level),  b' = b + N(0, sigma2.trend)
    Seasonal           g' = -(g + g.L1 + ... + g.L(s-2)) + N(0, sigma2.seasonal), or harmonics of the period, each a
                       vector that rotates by 2 pi j / s per step, with noises of one variance
    Autoregression     a' = ar.L1 a + ar.L2 a.L1 + ... + N(0, sigma2.ar)

The series is the sum of their first entries (of all harmonics) and an irregular part N(0, sigma2.irregular). Parameters
have the names of statsmodels' `UnobservedComponents`. An autoregression starts from its stationary distribution, all
other components have a diffuse start (Durbin & Koopman 2012, chapters 3 and 5).
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import constraints

from ...inference.numerics.checks import broadcast_shapes
from ...inference.numerics.placement import constant
from ...inference.numerics.scalars import check_flag, check_integer, check_kind
from ..parameters import Parameter, Parameters
from .contract import LinearDynamics, TransitionParameters
from .stationary import partial_autocorrelations, stationary_covariance

VARIANCE = Parameter((), constraints.nonnegative)
UNSTABLE = 1e-9  # with a partial autocorrelation above 1 - UNSTABLE the process is not stationary in float64


class Structure(LinearDynamics):
    """Dynamics of one series with a known emission."""

    @property
    def n_latent(self) -> int:  # type: ignore[override]
        """L, the length of the latent vector."""
        return len(self.latents)

    def __add__(self, other: "Structure") -> "Sum":
        """The sum of two structures."""
        check_kind("structure", other, Structure, "a structure such as LocalLevel()")
        return Sum((*_terms(self), *_terms(other)))

    @property
    @abstractmethod
    def seen(self) -> tuple[float, ...]:
        """[L], the coefficient of each entry in the series."""

    @property
    def shown(self) -> tuple[int, ...]:
        return tuple(place for place, share in enumerate(self.seen) if share)

    @property
    def variances(self) -> tuple[str, ...]:
        """The names of the variances."""
        return tuple(name for name in self.parameters if name.startswith("sigma2."))

    @property
    def orders(self) -> dict[str, tuple[str, ...]]:
        """The names of the coefficients of each autoregression, by the name of its variance."""
        return {}


class Diffuse(Structure):
    """A structure with a known transition, noises with variances as parameters, and a diffuse start."""

    @property
    def diffuse(self) -> tuple[bool, ...]:
        return (True,) * self.n_latent

    @property
    @abstractmethod
    def transition(self) -> Sequence[Sequence[float]]:
        """[L, L], to the new state (rows) from the old one."""

    @property
    @abstractmethod
    def noisy(self) -> tuple[str | None, ...]:
        """[L], the name of the variance of each entry's noise; None: no noise."""

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {name: VARIANCE for name in dict.fromkeys(self.noisy) if name is not None}

    def moves(self, values: Parameters) -> TransitionParameters:
        like = values[self.variances[0]]
        zero = torch.zeros_like(like)
        noise = torch.stack([zero if name is None else values[name] for name in self.noisy], -1)
        transition = constant(tuple(map(tuple, self.transition)), like.dtype, like.device)
        return TransitionParameters(transition, torch.diag_embed(noise), None, None)


@dataclass(frozen=True)
class LocalLevel(Diffuse):
    """A random walk; its parameter is `sigma2.level`.

    >>> import samplehold as sh
    >>> sh.LinearSSM(sh.LocalLevel())
    LinearSSM(LocalLevel())
    """

    @property
    def latents(self) -> tuple[str, ...]:
        return ("level",)

    @property
    def transition(self) -> Sequence[Sequence[float]]:
        return ((1.0,),)

    @property
    def noisy(self) -> tuple[str | None, ...]:
        return ("sigma2.level",)

    @property
    def seen(self) -> tuple[float, ...]:
        return (1.0,)


@dataclass(frozen=True)
class LocalLinearTrend(Diffuse):
    """A random walk whose drift is a random walk; its parameters are `sigma2.level` and `sigma2.trend`.

    >>> import samplehold as sh
    >>> sh.LocalLinearTrend().latents
    ('level', 'trend')
    """

    @property
    def latents(self) -> tuple[str, ...]:
        return "level", "trend"

    @property
    def transition(self) -> Sequence[Sequence[float]]:
        return (1.0, 1.0), (0.0, 1.0)

    @property
    def noisy(self) -> tuple[str | None, ...]:
        return "sigma2.level", "sigma2.trend"

    @property
    def seen(self) -> tuple[float, ...]:
        return 1.0, 0.0

    @property
    def shown(self) -> tuple[int, ...]:
        return 0, 1


@dataclass(frozen=True)
class Seasonal(Diffuse):
    """A season that sums to 0 over a period, except for noise.

    Arguments:
        period: in steps, at least 2.
        trigonometric: the number of harmonics; True: all, half the period; False: no harmonics, but one effect for each
            step of the period. The parameter is `sigma2.seasonal`, or for h harmonics
            `sigma2.freq_seasonal_period(h)`. The harmonic of period 2 has one entry; statsmodels adds a second one,
            which is never observed.

    Raises:
        TypeError, ValueError: a period below 2; more harmonics than half the period.

    >>> import samplehold as sh
    >>> sh.Seasonal(4).latents, sh.Seasonal(4, trigonometric=1).variances
    (('seasonal', 'seasonal.L1', 'seasonal.L2'), ('sigma2.freq_seasonal_4(1)',))
    """

    period: int
    trigonometric: int = 0

    def __post_init__(self) -> None:
        period, harmonics = check_integer("period", self.period, least=2), self.trigonometric
        if isinstance(harmonics, bool):
            harmonics = period // 2 if check_flag("trigonometric", harmonics) else 0
        object.__setattr__(self, "period", period)
        object.__setattr__(self, "trigonometric", check_integer("trigonometric", harmonics, 0, period // 2))

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


@dataclass(frozen=True)
class Autoregression(Structure):
    """A stationary autoregression; its parameters are `sigma2.ar` and `ar.L1`, `ar.L2`, ...

    Raises:
        TypeError, ValueError: order is not a positive whole number.

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
        if not bool((partial_autocorrelations(weights).abs() < 1 - UNSTABLE).all()):
            names = ", ".join(self.latents)
            raise ValueError(
                f"{names}: got {weights.tolist()}, but this autoregression is not stationary; give smaller ones, "
                "or add a LocalLevel() for a series without a fixed mean."
            )
        return checked

    def moves(self, values: Parameters) -> TransitionParameters:
        weights = torch.stack([values[name] for name in self.latents], -1)
        variance, p = values["sigma2.ar"], self.order
        shift = torch.eye(p, dtype=weights.dtype, device=weights.device)[:-1].expand(*weights.shape[:-1], p - 1, p)
        noise = torch.diag_embed(torch.stack([variance, *[torch.zeros_like(variance)] * (p - 1)], -1))
        start = variance[..., None, None] * stationary_covariance(weights)
        return TransitionParameters(torch.cat([weights.unsqueeze(-2), shift], -2), noise, None, start)


@dataclass(frozen=True)
class Sum(Structure):
    """A sum of structures; made with `+`.

    Raises:
        ValueError: two structures with a parameter of the same name.

    >>> import samplehold as sh
    >>> (sh.LocalLevel() + sh.Seasonal(4) + sh.Autoregression(1)).variances
    ('sigma2.level', 'sigma2.seasonal', 'sigma2.ar')
    """

    terms: tuple[Structure, ...]

    def __post_init__(self) -> None:
        if not self.terms or not all(isinstance(term, Structure) for term in self.terms):
            raise TypeError(f"terms: got {self.terms!r}, expected structures, such as LocalLevel() + Seasonal(4).")
        names = [name for term in self.terms for name in dict.fromkeys([*term.parameters, *term.latents])]
        for name in [name for name in names if names.count(name) > 1][:1]:
            raise ValueError(
                f"structure: got two terms with {name}, which a series cannot separate; leave one out, or give a "
                "season as harmonics, Seasonal(period, trigonometric=True)."
            )

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.terms))

    @property
    def latents(self) -> tuple[str, ...]:
        return tuple(name for term in self.terms for name in term.latents)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {name: known for term in self.terms for name, known in term.parameters.items()}

    @property
    def diffuse(self) -> tuple[bool, ...]:
        return tuple(flag for term in self.terms for flag in term.diffuse)

    @property
    def seen(self) -> tuple[float, ...]:
        return tuple(share for term in self.terms for share in term.seen)

    @property
    def shown(self) -> tuple[int, ...]:
        places, before = [], 0
        for term in self.terms:
            places += [before + place for place in term.shown]
            before += term.n_latent
        return tuple(places)

    @property
    def orders(self) -> dict[str, tuple[str, ...]]:
        return {name: weights for term in self.terms for name, weights in term.orders.items()}

    def check_values(self, values: Parameters) -> Parameters:
        return {name: value for term in self.terms for name, value in term.check_values(values).items()}

    def moves(self, values: Parameters) -> TransitionParameters:
        parts = [term.moves(values) for term in self.terms]
        starts = [
            torch.zeros_like(part.transition) if part.initial_covariance is None else part.initial_covariance
            for part in parts
        ]
        transition, noise = beside([part.transition for part in parts]), beside([part.state_noise for part in parts])
        return TransitionParameters(transition, noise, None, beside(starts))


def _terms(structure: Structure) -> tuple[Structure, ...]:
    return structure.terms if isinstance(structure, Sum) else (structure,)


def beside(blocks: Sequence[Tensor]) -> Tensor:
    """Square blocks [*r, l, l] along the diagonal, their leading axes broadcast."""
    lead = broadcast_shapes(*(block.shape[:-2] for block in blocks))
    size, at, whole = sum(block.shape[-1] for block in blocks), 0, []
    for block in blocks:
        n = block.shape[-1]
        whole.append(torch.nn.functional.pad(block.expand(*lead, n, n), (at, size - at - n)))
        at += n
    return torch.cat(whole, -2)
