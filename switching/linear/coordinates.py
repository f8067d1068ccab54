r"""Free coordinates of a linear model's parameters in units of the data, as one vector for samplers and optimisers.

For a structure they are standard deviations of either sign, so that a variance of 0 is an interior point;
$\operatorname{artanh}$ of partial autocorrelations, so that every autoregression is stationary; and for a range
$[a, b]$ angles y of $(a + b)/2 - \cos(y) (b - a)/2$, so that its ends are interior points too. Samplers use the
logarithm of a standard deviation whose prior density is 0 at 0. For other models the coordinates are the coefficients
and the free coordinates of precisions. Fixed parameters have no coordinates.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.numerics.cholesky import cholesky, log_det
from ..fitting.chains_in_parts import log_evidence
from ..fitting.density import FreeDensity
from ..fitting.points import PointCoordinates
from ..fitting.units import Units
from ..fitting.whole import Whole
from ..known import parted
from ..parameters import Parameters
from ..user_priors import UserPrior
from .emission import Irregular, LinearEmission
from .priors import NAMES, one_point, one_value
from .problem import LinearProblem
from .stationary import from_partial_autocorrelations, log_volume_of_weights, partial_autocorrelations
from .user_priors import at_zero

STEEPEST = 1 - 1e-7  # largest partial autocorrelation


class StructureCoordinates:
    """Coordinates of a structure and its irregular part.

    Arguments:
        fixed: parameters that have no coordinates, `[...]`.
        inputs: `[N, C]` of all steps; the standard deviation of a coefficient counts in units of 1 / root mean square
            of its input.
        logs: whether a standard deviation has its logarithm as coordinate if its prior excludes 0; for samplers.
    """

    priors: dict[str, UserPrior]

    def __init__(
        self, emission: Irregular, fixed: Parameters, inputs: Tensor | None = None, logs: bool = False
    ) -> None:
        structure, self.priors = emission.structure, emission.user_priors
        names = (*("sigma2.irregular",) * structure.irregular, *structure.variances)
        self.variances: list[str] = [name for name in names if name not in fixed]
        self.logs: list[str] = [name for name in self.variances if logs and self._excludes_zero(name)]
        self.weights: list[tuple[str, ...]] = [
            names_of for names_of in structure.orders.values() if not set(names_of) & set(fixed)
        ]
        self.ranges: dict[str, tuple[float, float]] = {
            name: ends for name, ends in emission.ranges.items() if name not in fixed
        }
        self.fixed = fixed
        sizes = [] if inputs is None else inputs.double().square().mean(0).sqrt().tolist()
        names = [f"sigma2.{structure.latents[place]}" for place in structure.driven]
        units = dict(zip(names, sizes, strict=False))
        self.units: list[float] = [units.get(name) or 1.0 for name in self.variances]

    def _excludes_zero(self, name: str) -> bool:
        """Whether the prior density of a standard deviation is 0 at 0."""
        prior = self.priors.get(name)
        return prior is not None and (not prior.shown or at_zero(prior) == -torch.inf)

    def of(self, values: Parameters) -> Float[Tensor, "*r P"]:
        """The coordinates of parameters."""
        parts = []
        for name, unit in zip(self.variances, self.units, strict=True):
            size = values[name].clamp_min(0).sqrt().unsqueeze(-1) * unit
            parts.append(size.log() if name in self.logs else size)
        parts += [partial_autocorrelations(self._stacked(values, weights)).atanh() for weights in self.weights]
        for name, (low, high) in self.ranges.items():
            parts.append((1 - 2 * (values[name] - low) / (high - low)).clamp(-1, 1).acos().unsqueeze(-1))
        return torch.cat(parts, -1)

    def values(self, at: Float[Tensor, "*r P"]) -> Parameters:
        """Parameters at coordinates."""
        n, values = len(self.variances), {}
        for i, (name, unit) in enumerate(zip(self.variances, self.units, strict=True)):
            values[name] = ((at[..., i].exp() if name in self.logs else at[..., i]) / unit).square()
        for names in self.weights:
            weights = from_partial_autocorrelations(at[..., n : n + len(names)].tanh() * STEEPEST)
            values |= dict(zip(names, weights.unbind(-1), strict=True))
            n += len(names)
        for i, (name, (low, high)) in enumerate(self.ranges.items(), n):
            values[name] = low + (high - low) / 2 * (1 - at[..., i].cos())
        return values | {name: value.to(at).expand(at.shape[:-1]) for name, value in self.fixed.items()}

    def log_volume(self, at: Float[Tensor, "*r P"]) -> Float[Tensor, "*r"]:
        """The log Jacobian, up to a constant, of the numbers that have a prior: standard deviations, partial
        autocorrelations and numbers in ranges, or variances and weights if the user's prior is theirs."""
        n = at.shape[-1] - len(self.ranges)
        partial = at[..., len(self.variances) : n].tanh()
        widths = at.new_tensor([(high - low) / 2 for low, high in self.ranges.values()])
        total = torch.log1p(-partial.square() * STEEPEST).sum(-1) + (widths * at[..., n:].sin().abs()).log().sum(-1)
        for name in self.logs:
            total = total + (1 if self.priors[name].shown else 2) * at[..., self.variances.index(name)]
        for names, rows in zip(self.weights, self._blocks(partial), strict=True):
            if names[0] in self.priors:
                total = total + log_volume_of_weights(rows * STEEPEST)
        return total

    def _blocks(self, partial: Tensor) -> tuple[Tensor, ...]:
        """The partial autocorrelations of each autoregression."""
        return partial.split([len(names) for names in self.weights], -1) if self.weights else ()

    @staticmethod
    def _stacked(values: Parameters, names: Sequence[str]) -> Tensor:
        return torch.stack([values[name] for name in names], -1)


class TableCoordinates:
    """Coordinates of `LinearGaussian` dynamics and a `LinearEmission`.

    Arguments:
        near: parameters, for their sizes.
        fixed: parameters that have no coordinates; they are complete blocks.
    """

    emission: LinearEmission
    fixed: Parameters
    priors: dict[str, UserPrior]

    def __init__(self, emission: LinearEmission, near: Parameters, fixed: Parameters) -> None:
        self.emission, self.fixed, self.priors = emission, fixed, emission.user_priors
        held = [name for name, names in NAMES.items() if names[0] in fixed]
        self._points = PointCoordinates(one_point(near | fixed, emission), held)

    def of(self, values: Parameters) -> Float[Tensor, "*r P"]:
        """The coordinates of parameters."""
        return self._points.of(one_point(values, self.emission))

    def values(self, at: Float[Tensor, "*r P"]) -> Parameters:
        """Parameters at coordinates."""
        fixed = {name: value.to(at).expand(*at.shape[:-1], *value.shape) for name, value in self.fixed.items()}
        return one_value(self._points.at(at), self.emission) | fixed

    def log_volume(self, at: Float[Tensor, "*r P"]) -> Float[Tensor, "*r"]:
        """How densities of coefficients and precisions change, or of a noise under a prior of the user."""
        free = parted(at, self._points.free.start)
        tables = self._points.free.values(free)
        total = self._points.free.log_volume(free, tables)
        if "sights.precision" in free and "observation_noise" in self.priors:  # of the noise, not of its precision
            precision = tables["sights.precision"]
            change = (precision.shape[-1] + 1) * log_det(cholesky(precision))
            total = total - change.flatten(at.ndim - 1).sum(-1)
        return total


class LinearDensity(FreeDensity):
    """The log joint of a problem in coordinates of its parameters.

    Arguments:
        problem: the problem in units of the data.
        units: these units, for the conversion back.
        near: parameters in these units at which the density is defined.
        volume: whether to add the log Jacobian of the coordinates: yes for draws, no for the mode.
        whole: all data in the user's units, if the series of the problem is a sample of them, whose inputs give the
            units of the coordinates; all processes compute the density together.
    """

    problem: LinearProblem
    units: Units
    volume: bool

    def __init__(
        self, problem: LinearProblem, units: Units, near: Parameters, volume: bool = True, whole: Whole | None = None
    ) -> None:
        self.problem, self.units, self.volume, self.whole = problem, units, volume, whole
        emission = problem.emission
        if isinstance(emission, Irregular):
            emission = Irregular(emission.structure) if problem.prior is None else emission
            self.coordinates = StructureCoordinates(emission, problem.fixed, problem.series.design_rows, logs=volume)
        else:
            self.coordinates: StructureCoordinates | TableCoordinates = TableCoordinates(emission, near, problem.fixed)
        self.start = {"y": self.coordinates.of(near)}

    def values(self, free: Parameters) -> Parameters:
        return self.units.to(free["y"]).back(self.coordinates.values(free["y"]))

    def log_prob(self, free: Parameters) -> Float[Tensor, "*r"]:
        values = self.coordinates.values(free["y"])
        total = self._evidence(self.problem, values) + self.problem.log_prior(values)
        return total + self.coordinates.log_volume(free["y"]) if self.volume else total

    def evidence(self, problem: LinearProblem, values: Parameters) -> float:
        """log p(x) of a problem with the same data, in the units of this density or of the user."""
        return float(self._evidence(problem, values))

    def _evidence(self, problem: LinearProblem, values: Parameters) -> Float[Tensor, "*r"]:
        units = self.units if problem is self.problem else None
        return log_evidence(problem, self.whole and replace(self.whole, units=units), values)

    @property
    def variances(self) -> list[str]:
        """The names of a structure's variances, whose coordinates come first."""
        return self.coordinates.variances if isinstance(self.coordinates, StructureCoordinates) else []

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The parameters in ranges, whose coordinates come last."""
        return self.coordinates.ranges if isinstance(self.coordinates, StructureCoordinates) else {}

    @property
    def shapes(self) -> bool:
        """Whether a structure has coordinates besides those of variances."""
        return len(self.variances) < len(self.point)

    @property
    def at_once(self) -> int:
        return self.problem.evidences_at_once if self.whole is None else sys.maxsize  # parts are smaller for more
