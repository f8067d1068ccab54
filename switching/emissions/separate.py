r"""Emissions of independent features without a conjugate prior: a family of one number, with parameters `[K, F]` each.

A subclass defines the log density of one number, its distribution, and the prior of each parameter as a distribution of
one number. The objective of an M-step is then a sum over states and features,

$$\sum_t w_{tk} \log p(x_{tf} \mid \theta_{kf}) + \log p(\theta_{kf}),$$

and each term has few parameters. Newton's method maximises all terms at once in free coordinates. Where the curvature
is not negative definite, its eigenvalues change their sign, so that every step goes uphill (Nocedal & Wright 2006,
*Numerical Optimization*, section 3.4). It begins at the current parameters or at rough estimates, whichever is higher.
The log density of an exponential family is linear in a few statistics of x, whose weighted means then replace the
observations (`Summarized`), so its M-step needs only sums over the data.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ...inference.families.peak import NEAR_FLOOR
from ..ascent import newton
from ..definite import free_coordinates
from ..newton import uphill
from ..parameters import Parameter, Parameters
from ..priors import Site, log_prior
from .ascent import ascend
from .contract import Emission, Maximized

MAX_STEPS = 12  # of Newton's method in one M-step; the next M-step continues
ROUNDING = 1e-6  # of a variance that is at the floor


@dataclass(frozen=True, repr=False)
class Separate(Emission):
    """Independent features: see the module's docstring."""

    n_features: int = 1
    prior: Any = field(default=None, kw_only=True, repr=False, compare=False)
    typical = 1.0  # a number inside the support, in the place of missing ones

    # ---- what a family writes --------------------------------------------------------------------------------------

    @abstractmethod
    def log_density(self, x: Float[Tensor, "*#n"], values: Parameters) -> Float[Tensor, "*n"]:
        """log p(x) of single numbers, under parameters that broadcast against them."""

    @abstractmethod
    def law(self, values: Parameters) -> Any:
        """The Pyro distribution of single numbers."""

    @abstractmethod
    def priors_of(self, prior: Parameters) -> Mapping[str, Any]:
        """For each parameter, the Pyro distribution of single numbers."""

    def by_moments(self, mean: Float[Tensor, "*n"], variance: Float[Tensor, "*n"]) -> Parameters:
        """Parameters inside their supports, about those of a mean and a variance."""
        raise TypeError(f"{self.name}: has no estimates by moments; define `by_moments`.")

    def narrowness(self, values: Parameters) -> Tensor:
        """The variance that falls to 0 where a state sits on a single point; infinite if the likelihood is bounded."""
        return self.law(values).variance

    # ---- what follows ----------------------------------------------------------------------------------------------

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        seen = ~torch.isnan(x)
        each = self.log_density(torch.where(seen, x, self.typical), values)
        return torch.where(seen, each, 0.0).sum(-1)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return self.law(values).to_event(1)

    def priors(self, prior: Parameters) -> Mapping[str, TorchDistributionMixin]:
        return {name: one.to_event(len(one.batch_shape)) for name, one in self.priors_of(prior).items()}

    def maximize(
        self, x: Tensor, weights: Tensor, near: Parameters, prior: Parameters | None, floor: Tensor
    ) -> Maximized:
        """The maximum by Newton's method."""
        return maximized(self, Expected.of(self, x, weights), near, prior, floor)

    def guess(self, x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"], least: Float[Tensor, "F"]) -> Parameters:
        """Parameters `[*r, K, F]` from which Newton's method may begin, with variances of at least these."""
        mean, variance, _ = weighted_moments(x, weights)
        return self.by_moments(mean, variance.maximum(least))


class Summarized(Separate):
    """Independent features of an exponential family, whose log density is linear in a few statistics."""

    @abstractmethod
    def statistics(self, x: Float[Tensor, "*n"]) -> tuple[Tensor, ...]:
        """The numbers in which the log density is linear."""

    @abstractmethod
    def log_density_of(self, statistics: tuple[Tensor, ...], values: Parameters) -> Tensor:
        """The log density at statistics, or its mean at their means."""

    @abstractmethod
    def by_means(self, means: tuple[Tensor, ...], least: Float[Tensor, "F"]) -> Parameters:
        """Parameters inside their supports, about the most likely ones at these means of the statistics, with variances
        of at least these."""

    def log_density(self, x: Tensor, values: Parameters) -> Tensor:
        return self.log_density_of(self.statistics(x), values)

    # ---- the M-step --------------------------------------------------------------------------------------------------

    adds_up = True

    def maximize(
        self, x: Tensor, weights: Tensor, near: Parameters, prior: Parameters | None, floor: Tensor
    ) -> Maximized:
        return self.maximize_sums(self.sums(x, weights, near), near, prior, floor)

    def sums(self, x: Tensor, weights: Tensor, near: Parameters) -> Parameters:
        x, weights = x.double(), weights.double()
        seen = ~torch.isnan(x)
        parts = self.statistics(torch.where(seen, x, self.typical))
        totals = [weights.mT @ torch.where(seen, part, 0.0) for part in parts]
        return {"statistics": torch.stack([weights.mT @ seen.to(x), *totals], -1)}

    def maximize_sums(self, sums: Parameters, near: Parameters, prior: Parameters | None, floor: Tensor) -> Maximized:
        count, *totals = sums["statistics"].unbind(-1)
        typical = self.statistics(count.new_full((), self.typical))
        pairs = zip(totals, typical, strict=True)
        means = tuple(torch.where(count > 0, total / count.clamp_min(1e-300), one) for total, one in pairs)
        expected = Expected(lambda values: count * self.log_density_of(means, values), partial(self.by_means, means))
        return maximized(self, expected, near, prior, floor)


@runtime_checkable
class Climbable(Protocol):
    """An emission of independent features: see `Separate`."""

    typical: float
    log_density: Callable[[Tensor, Parameters], Tensor]
    sites: Callable[[Parameters], list[Site]]
    guess: Callable[[Tensor, Tensor, Tensor], Parameters]
    narrowness: Callable[[Parameters], Tensor]

    @property
    def parameters(self) -> Mapping[str, Parameter]: ...


class Expected(NamedTuple):
    """The weighted log densities of all observations, in float64."""

    log_density: Callable[[Parameters], Tensor]  # their sum `[*r, K, F]`, a function of parameters
    guess: Callable[[Tensor], Parameters]  # a start of Newton's method, with variances of at least these

    @staticmethod
    def of(emission: Climbable, x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"]) -> "Expected":
        """From all observations."""
        x, weights = x.double(), weights.double()
        seen = ~torch.isnan(x)
        filled = torch.where(seen, x, emission.typical).unsqueeze(-2)
        used = weights.unsqueeze(-1) * seen.unsqueeze(-2)

        def total(values: Parameters) -> Tensor:
            wide = {name: value.unsqueeze(-3) for name, value in values.items()}
            return torch.where(used > 0, used * emission.log_density(filled, wide), 0.0).sum(-3)

        return Expected(total, partial(emission.guess, x, weights))


def maximized(
    emission: Climbable, expected: Expected, near: Parameters, prior: Parameters | None, floor: Tensor
) -> Maximized:
    """The M-step of each state and feature by Newton's method, in float64; by BFGS under priors of whole tables."""
    sites = [] if prior is None else emission.sites({name: table.double() for name, table in prior.items()})
    priors = {site.name: _of_numbers(site.distribution({})) for site in sites}
    begin, floor = {name: near[name].double() for name in emission.parameters}, floor.double()
    supports = {name: emission.parameters[name].support for name in begin}
    least = (1 - ROUNDING) * floor.minimum(emission.narrowness(begin))  # a state at the floor stays there

    def objective(values: Parameters) -> Tensor:
        total = expected.log_density(values) + sum(one.log_prob(values[name]) for name, one in priors.items())
        return total if priors else total.where(emission.narrowness(values) >= least, -torch.inf)

    def of_tables(values: Parameters) -> Tensor:
        return expected.log_density(values).sum((-2, -1)) + log_prior(sites, values)

    if None in priors.values():
        best = ascend(of_tables, begin, supports)
    else:
        first = _begun(objective, begin, expected.guess(floor), supports)
        wide = True if priors else emission.narrowness(first) > NEAR_FLOOR * floor
        best = _climbed(emission, objective, first, wide)
    values = {name: value.to(near[name]) for name, value in best.items()}
    return Maximized(values)


def _begun(
    objective: Callable[[Parameters], Tensor], begin: Parameters, guess: Parameters, supports: Mapping[str, Any]
) -> Parameters:
    """The guess where it is higher than the current parameters."""
    # rounding may lead a guess out of its space, as a mean of counts below 0
    possible = {name: guess[name].isfinite() & supports[name].check(guess[name]) for name in begin}
    guess = {name: guess[name].where(possible[name], begin[name]) for name in begin}
    higher = objective(guess) > objective(begin)
    return {name: guess[name].where(higher, begin[name]) for name in begin}


def _of_numbers(distribution: Any) -> Any:
    """The distribution of each number of a table, if numbers are independent; otherwise None."""
    inner = getattr(distribution, "base_dist", None)
    is_table = isinstance(distribution, torch.distributions.Independent) and not distribution.batch_shape
    return inner if is_table and inner is not None and not inner.event_shape else None


def _climbed(
    emission: Climbable, objective: Callable[[Parameters], Tensor], values: Parameters, wide: Tensor | bool
) -> Parameters:
    """The values after some steps of Newton's method, each number of the objective with its own parameters. Steps from
    values that are not `wide` would only approach the floor, so these stay."""
    to_support = {name: free_coordinates(emission.parameters[name].support) for name in values}
    start = torch.stack([cast(Tensor, to_support[name].inv(value)) for name, value in values.items()], -1)

    def at(point: Tensor) -> Parameters:
        parts = zip(to_support.items(), point.unbind(-1), strict=True)
        return {name: cast(Tensor, to(part)) for (name, to), part in parts}

    def height(point: Tensor) -> Tensor:
        return objective(at(point))

    def step_from(point: Tensor) -> tuple[Tensor, Tensor]:
        step, gain = uphill(height, point)
        return step, gain * wide

    with torch.no_grad():
        end = newton(lambda point: height(point).nan_to_num(-torch.inf), step_from, start, MAX_STEPS)
        moved = (end != start).any(-1)
        return {name: value.where(moved, values[name]) for name, value in at(end).items()}


def weighted_moments(
    x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"]
) -> tuple[Float[Tensor, "*r K F"], Float[Tensor, "*r K F"], Float[Tensor, "*r K F"]]:
    """The mean, the variance and the total weight of each feature in each state; 0 without weight."""
    seen = ~torch.isnan(x)
    center = x.nan_to_num(0.0).sum(0) / seen.sum(0).clamp_min(1)
    away = torch.where(seen, x - center, 0.0)
    count = weights.mT @ seen.to(x)
    total = torch.where(count > 0, count, 1.0)
    mean = (weights.mT @ away) / total
    variance = ((weights.mT @ away.square()) / total - mean.square()).clamp_min(0.0)
    return center + mean, variance, count


def by_scipy(function: str | Callable[..., Any], *tables: Tensor) -> Tensor:
    """A function of some tensors, or one of `scipy.special` by its name, on the CPU in float64, as a tensor like the
    first."""
    from scipy import special  # slow to import

    compute = getattr(special, function) if isinstance(function, str) else function
    numbers = torch.broadcast_tensors(*(table.detach().double().cpu() for table in tables))
    return torch.as_tensor(compute(*(table.numpy() for table in numbers))).to(tables[0])
