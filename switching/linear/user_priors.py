r"""Priors of a structure's parameters from the user, as distributions of Pyro, in the units of the data.

The density of a parameter is that of the number under its name: of the variance for `sigma2.level`, of the standard
deviation for `sigma.level`. The mode under "em" is that of the product of these densities and the likelihood. Outside
the values that a fit allows (stationary autoregressions, the range of a frequency) the density is 0, so it has another
constant than the distribution there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, constraints

from ..parameters import Parameter, Shown
from ..user_priors import NEAR_END, UserPrior, limit, on, read, support_of
from .structure import VARIANCE, Structure

VARIANCES, DEVIATIONS = "sigma2.", "sigma."  # the starts of names of variances and of standard deviations
NEAR_ZERO = 1e-50, 1e-100
SINGLE = 1e-6  # relative rounding of a parameter to float32
DECADES = 8  # of standard deviations in which the scale of a prior is looked for, on either side of the unit


@dataclass(frozen=True, eq=False)
class NumberPrior(UserPrior):
    """The prior of a number of a structure, whose density has a limit at the ends of its values."""

    def log_prob(self, table: Float[Tensor, "*r"]) -> Float[Tensor, "*r"]:
        law = on(self.distribution, table)
        if not self.name.startswith(VARIANCES):
            return law.log_prob(_within(support_of(law), table))
        there = table > 0
        inside = torch.where(there, table, 1.0)
        return torch.where(there, law.log_prob(inside.sqrt() if self.shown else inside), at_zero(self))


def read_priors(prior: Any, structure: Structure, forms: Mapping[str, Parameter]) -> dict[str, UserPrior]:
    """The priors of a structure's parameters by name, from those of parameters or standard deviations.

    Raises:
        TypeError, ValueError: see `switching.user_priors.read`; priors of some weights of an autoregression without the
            others; a distribution of several numbers, or with an infinite density.
    """
    for called, distribution in prior.items():
        if isinstance(distribution, Distribution) and distribution.batch_shape + distribution.event_shape:
            shape = list(distribution.batch_shape + distribution.event_shape)
            raise ValueError(f"prior[{called!r}]: got a distribution of shape {shape}, expected one number's.")
    priors: dict[str, UserPrior] = {
        name: NumberPrior(**vars(one)) for name, one in read(prior, forms, repr(structure)).items()
    }
    for together in structure.orders.values():
        some = [name for name in together if name in priors]
        if some and len(some) < len(together):
            raise ValueError(f"prior: got {some} without the rest of {list(together)}; give all of these, or none.")
    for name, own in priors.items():
        _check_finite(own, ranges(structure, priors).get(name))
    return priors


def form(name: str, structure: Structure) -> Parameter:
    """The parameter with the support of its priors, and with the other form that these may have."""
    if name.startswith(VARIANCES):
        deviation = DEVIATIONS + name.removeprefix(VARIANCES)
        return replace(VARIANCE, shown=Shown(deviation, constraints.nonnegative, torch.sqrt, torch.square))
    ends = structure.ranges.get(name)
    return Parameter(()) if ends is None else Parameter((), constraints.interval(*ends))


def ranges(structure: Structure, priors: Mapping[str, UserPrior]) -> dict[str, tuple[float, float]]:
    """The ranges of a structure's parameters within the supports of their priors."""
    narrow = dict(structure.ranges)
    for name in narrow.keys() & priors.keys():
        low, high = narrow[name]
        support: Any = support_of(priors[name].distribution)
        narrow[name] = (
            max(low, float(getattr(support, "lower_bound", low))),
            min(high, float(getattr(support, "upper_bound", high))),
        )
    return narrow


def _within(support: Any, value: Tensor) -> Tensor:
    """The value; at an end of an interval, or beyond by rounding to float32, the nearest number inside."""
    if not isinstance(support, constraints.interval):
        return value
    low, high = (torch.as_tensor(end).to(value) for end in (support.lower_bound, support.upper_bound))
    size = torch.maximum(low.abs(), high.abs())
    least = 4 * torch.finfo(value.dtype).eps * size
    inside = value.clamp(low + least, high - least)
    return torch.where((value - inside).abs() <= SINGLE * size, inside, value)


@lru_cache(maxsize=256)
def at_zero(prior: UserPrior) -> float:
    """The limit of the log density of a variance or a standard deviation at 0: finite, or infinite of either sign."""
    return _limit(prior, *NEAR_ZERO)


def typical_deviation(prior: UserPrior, unit: float) -> float:
    """The standard deviation at which the density of its logarithm is greatest, divided by `unit`."""
    sizes = torch.logspace(-DECADES, DECADES, 20 * DECADES + 1, dtype=torch.float64, device="cpu")
    value = (sizes * unit).square()
    power = 1 if prior.shown else 2
    heights = prior.log_prob(value) + power * sizes.log()
    return float(sizes[heights.nan_to_num(-torch.inf).argmax()])


def _limit(prior: UserPrior, near: float, nearer: float) -> float:
    """The limit of the log density in the direction from one place to another."""
    places = torch.tensor([near, nearer], dtype=torch.float64, device="cpu")
    return float(limit(prior.distribution, *places))


def _check_finite(prior: UserPrior, ends: tuple[float, float] | None) -> None:
    """Raise ValueError if the density is infinite at an end of the parameter's values: it is highest there whatever the
    data."""
    kind = type(prior.distribution).__name__
    if ends is not None:
        width = ends[1] - ends[0]
        for end, away in zip(ends, (width, -width), strict=True):
            if _limit(prior, *(end + share * away for share in NEAR_END)) == float("inf"):
                raise ValueError(
                    f"prior[{prior.name!r}]: got {kind} with an infinite density at {end:g}, so that the mode is there "
                    "whatever the data; give one with a finite density."
                )
    elif prior.name.startswith(VARIANCES) and at_zero(prior) == float("inf"):
        deviation = DEVIATIONS + prior.name.removeprefix(VARIANCES)
        called = deviation if prior.shown else prior.name
        other = "" if prior.shown else f", or the prior of {deviation!r}"
        raise ValueError(
            f"prior[{called!r}]: got {kind} with an infinite density at 0, so that the mode is 0 whatever the data; "
            f"give one with a finite density{other}, such as dist.HalfNormal(1.0)."
        )
