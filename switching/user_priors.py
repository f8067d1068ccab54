r"""User priors: a distribution of Pyro replaces the default prior of a parameter.

The numbers of a table are independent under it, and independent of the other parameters. The prior is for values in the
units of the data. It may be for the displayed form, such as a scale instead of a precision. If $y = g(v)$ are these
values and v those inside a fit, the density of v is $p(g(v))\, |g'(v)|$.

Some distributions have the form of the default prior: a Beta for a probability, a Gamma for a rate or a precision, a
Dirichlet for rows of probabilities. They become hyperparameters, so message passing takes them too.
"""

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.transforms import AffineTransform, PowerTransform, Transform

from .parameters import Parameter, Parameters
from .priors import Site


@dataclass(frozen=True, eq=False)
class UserPrior:
    """The prior of one parameter.

    Attributes:
        name: of the parameter in the program.
        distribution: of its values, or of their displayed form if `shown`.
        shown: whether the distribution is that of the displayed form.
    """

    name: str
    distribution: Distribution
    shown: bool

    def site(self, shape: torch.Size, like: Tensor, factor: Tensor | None, about: Tensor | None) -> Site:
        """The prior of the table inside a fit: `factor` times the values in the data's units, less `about`."""
        base = on(self.distribution, like)
        n = len(base.event_shape)
        try:
            base = base.expand(shape[: len(shape) - n])
        except (RuntimeError, ValueError):
            raise ValueError(
                f"prior[{self.name!r}]: got a distribution of shape {list(base.batch_shape + base.event_shape)}, "
                f"expected one number's, or a table {list(shape)}."
            ) from None
        steps: list[Transform] = [PowerTransform(torch.tensor(-2.0).to(like))] if self.shown else []
        if factor is not None:
            shift = torch.zeros_like(factor) if about is None else -about * factor
            steps.append(AffineTransform(shift, factor, event_dim=n))
        whole: Any = dist.TransformedDistribution(base, steps) if steps else base
        placed = whole.to_event(len(whole.batch_shape))
        return Site(self.name, lambda values: placed)


def is_distribution(value: Any) -> bool:
    """Whether an entry of a prior is a distribution, not a table of hyperparameters."""
    return isinstance(value, Distribution)


def read(prior: Any, parameters: Mapping[str, Parameter], of: str) -> dict[str, UserPrior]:
    """Priors by the names of parameters or of their displayed forms.

    Raises:
        TypeError: not a mapping of names to distributions.
        ValueError: an unknown name, or one twice; a distribution of another support.
    """
    if not isinstance(prior, Mapping):
        raise TypeError(f"prior: got {type(prior).__name__}, expected distributions by name of a parameter.")
    known: dict[str, tuple[str, Any, bool]] = {n: (n, p.support, False) for n, p in parameters.items()}
    known |= {p.shown.name: (n, p.shown.support, True) for n, p in parameters.items() if p.shown}
    priors: dict[str, UserPrior] = {}
    for name, distribution in prior.items():
        if name not in known:
            raise ValueError(f"prior: got {name!r}, expected some of {', '.join(known)}, the parameters of {of}.")
        place, support, shown = known[name]
        if not isinstance(distribution, Distribution):
            raise TypeError(
                f"prior[{name!r}]: got {type(distribution).__name__}, expected a distribution of Pyro, such as "
                f"dist.{_typical(support)}; hyperparameters go into model.with_prior(...)."
            )
        if support is constraints.positive_definite:
            raise ValueError(
                f"prior[{name!r}]: the prior of a matrix is a Wishart; give its hyperparameters, by "
                "model.with_prior(...)."
            )
        if not _fits(_support(distribution), support):
            raise ValueError(
                f"prior[{name!r}]: got {type(distribution).__name__}, whose values are not those of {name}; give a "
                f"distribution such as dist.{_typical(support)}."
            )
        if place in priors:
            raise ValueError(f"prior: got {place} twice, in two forms; give one.")
        priors[place] = UserPrior(place, distribution, shown)
    return priors


def has_default_form(prior: UserPrior, names: Collection[str]) -> bool:
    """Whether hyperparameters of the default prior, of these names, give this distribution."""
    return not prior.shown and bool(_numbers(prior, names))


def hyperparameters(prior: UserPrior, default: Parameters) -> Parameters:
    """The default prior's hyperparameters that give this distribution; empty if there are none."""
    numbers = {} if prior.shown else _numbers(prior, default)
    return {name: _expanded(prior.name, table, default[name]) for name, table in numbers.items()}


def _numbers(prior: UserPrior, names: Collection[str]) -> Parameters:
    d: Any = prior.distribution
    if isinstance(d, torch.distributions.Beta) and prior.name == "probs" and "successes" in names:
        return {"successes": d.concentration1, "failures": d.concentration0}
    if isinstance(d, torch.distributions.Gamma) and prior.name in ("rate", "precision") and "shape" in names:
        return {"shape": d.concentration, "rate": d.rate}
    if isinstance(d, torch.distributions.Dirichlet) and prior.name == "probs" and "concentration" in names:
        return {"concentration": d.concentration}
    return {}


def on(distribution: Distribution, like: Tensor) -> Any:
    """The distribution with its numbers in the dtype and on the device of `like`, if it is made of numbers."""
    numbers = arguments(distribution)
    if numbers is None:
        return distribution
    placed = {name: value.to(like) if isinstance(value, Tensor) else value for name, value in numbers.items()}
    kind: Any = type(distribution)
    return kind(**placed, validate_args=False)


def arguments(distribution: Distribution) -> dict[str, Any] | None:
    """The numbers that make a distribution of Pyro; None if numbers do not."""
    kind: Any = type(distribution)
    if getattr(dist, kind.__name__, None) is not kind:
        return None
    names = [name for name in inspect.signature(kind.__init__).parameters if name in distribution.arg_constraints]
    for some in (names, [name for name in names if name in vars(distribution)]):
        numbers = {name: getattr(distribution, name) for name in some}
        try:
            kind(**numbers, validate_args=False)
        except (TypeError, ValueError, RuntimeError, AssertionError):
            continue
        return numbers or None
    return None


def distribution_of(name: str, numbers: Mapping[str, Tensor]) -> Distribution:
    """The distribution of Pyro with these numbers; ValueError if there is none."""
    kind: Any = getattr(dist, name, None) if isinstance(name, str) else None
    if not (isinstance(kind, type) and issubclass(kind, Distribution)):
        raise ValueError(f"prior: got {name!r}, which is no distribution of Pyro.")
    made: Any = kind
    return made(**{key: value.double() for key, value in numbers.items()})


def _expanded(name: str, table: Tensor, like: Tensor) -> Tensor:
    try:
        return table.to(like).expand_as(like)
    except RuntimeError:
        raise ValueError(
            f"prior[{name!r}]: got a distribution of shape {list(table.shape)}, expected one number's, or a table "
            f"{list(like.shape)}."
        ) from None


def _support(distribution: Distribution) -> Any:
    support: Any = distribution.support
    while hasattr(support, "base_constraint"):  # of independent numbers, and of mixtures
        support = support.base_constraint
    return support


def _fits(given: Any, expected: Any) -> bool:
    if _is_positive(expected):
        return _is_positive(given)
    if expected is constraints.unit_interval:
        bounds = getattr(given, "lower_bound", None), getattr(given, "upper_bound", None)
        return all(b is not None for b in bounds) and [float(torch.as_tensor(b).max()) for b in bounds] == [0.0, 1.0]
    if isinstance(expected, constraints.interval):
        return given is constraints.real or (isinstance(given, constraints.interval) and _overlap(given, expected))
    return type(given) is type(expected)


def _overlap(one: Any, other: Any) -> bool:
    return max(float(one.lower_bound), float(other.lower_bound)) < min(float(one.upper_bound), float(other.upper_bound))


def _is_positive(support: Any) -> bool:
    kinds = type(constraints.positive), type(constraints.nonnegative)
    return isinstance(support, kinds) and not bool(torch.as_tensor(support.lower_bound).any())


def _typical(support: Any) -> str:
    if _is_positive(support):
        return "HalfNormal(1.0)"
    if support is constraints.unit_interval:
        return "Beta(2.0, 2.0)"
    if support is constraints.simplex:
        return "Dirichlet(torch.ones(3))"
    if isinstance(support, constraints.interval):
        return f"Uniform({support.lower_bound:g}, {support.upper_bound:g})"
    return "Normal(0.0, 1.0)"
