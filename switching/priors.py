r"""Priors of the parameters: as Pyro sites, and in blocks that are conjugate to what the parameters say of the data.

A block of parameters $\theta$ with a conjugate prior has an exponential family, and everything that a fit needs follows
from the family's natural parameters $\eta = \eta_0 + m$, the prior's plus the messages of the data:

    Pyro sites         the distribution with eta_0
    M-step             the mode of eta_0 + m; without a prior its limit, the peak of <m, t(theta)>
    message passing    q(theta) with eta_0 + m
    posterior means    the expectation under that q

So a block says what its family is and how a prior is one of its members; see `Conjugate`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, ClassVar, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ..inference.families import Beta, Dirichlet, Gamma, LocPrecision, NormalGamma, NormalWishart, VectorFamily, given
from ..inference.message_passing.factor_graph import Factor
from .definite import Wishart
from .parameters import Parameter, Parameters, with_prefix


class Site(NamedTuple):
    """A named parameter and its prior, given the values of the sites before it."""

    name: str
    distribution: Callable[[Parameters], TorchDistributionMixin]


def sample_sites(sites: Sequence[Site]) -> Parameters:
    """Draw every parameter, in order, as a Pyro sample site."""
    values: Parameters = {}
    for site in sites:
        values[site.name] = pyro.sample(site.name, site.distribution(values))
    return values


def log_prior(sites: Sequence[Site], values: Parameters) -> Tensor:
    """Log density of the sites at `values`, one number a restart: [*r]."""
    terms = [site.distribution(values).log_prob(values[site.name]) for site in sites]
    return torch.stack(torch.broadcast_tensors(*terms)).sum(0)


def prefixed_sites(sites: Sequence[Site], prefix: str) -> list[Site]:
    """The same sites under names that start with `prefix`."""

    def rename(site: Site) -> Site:
        return Site(prefix + site.name, lambda values: site.distribution(with_prefix(values, prefix)))

    return [rename(site) for site in sites]


@singledispatch
def family_sites(family: VectorFamily, eta: Tensor, names: Sequence[str], about: Tensor | float = 0.0) -> list[Site]:
    """The density of a family with natural parameters `[*plates, P]` as Pyro sites, one for each part of its point.

    Locations are counted from `about` in eta.
    """
    raise TypeError(f"family: {type(family).__name__} has no Pyro sites; register them with `family_sites.register`.")


def _event(distribution: Any) -> TorchDistributionMixin:
    """All plates as part of the event."""
    return distribution.to_event(len(distribution.batch_shape))


@family_sites.register
def _(family: Dirichlet, eta: Tensor, names: Sequence[str], about: Tensor | float = 0.0) -> list[Site]:
    prior = _event(dist.Dirichlet(eta))
    return [Site(names[0], lambda values: prior)]


@family_sites.register
def _(family: Beta, eta: Tensor, names: Sequence[str], about: Tensor | float = 0.0) -> list[Site]:
    prior = _event(dist.Beta(eta[..., 0], eta[..., 1]))
    return [Site(names[0], lambda values: prior)]


@family_sites.register
def _(family: Gamma, eta: Tensor, names: Sequence[str], about: Tensor | float = 0.0) -> list[Site]:
    q = family.usual(eta)
    prior = _event(dist.Gamma(q.shape, q.rate))
    return [Site(names[0], lambda values: prior)]


@family_sites.register
def _(family: NormalGamma, eta: Tensor, names: Sequence[str], about: Tensor | float = 0.0) -> list[Site]:
    q, (loc, precision) = family.usual(eta), names
    spread = _event(dist.Gamma(q.shape, q.rate))

    def location(values: Parameters) -> TorchDistributionMixin:
        scale = (q.kappa * values[precision]).rsqrt()
        return dist.Normal(q.loc + about, scale).to_event(q.loc.ndim)

    return [Site(precision, lambda values: spread), Site(loc, location)]


@family_sites.register
def _(family: NormalWishart, eta: Tensor, names: Sequence[str], about: Tensor | float = 0.0) -> list[Site]:
    q, (loc, precision) = family.usual(eta), names
    spread = _event(Wishart(q.df, q.scale_matrix))

    def location(values: Parameters) -> TorchDistributionMixin:
        weighted = q.kappa[..., None, None] * values[precision]
        return dist.MultivariateNormal(q.loc + about, precision_matrix=weighted).to_event(q.kappa.ndim)

    return [Site(precision, lambda values: spread), Site(loc, location)]


# ---- conjugate blocks ------------------------------------------------------------------------------------------------


class Conjugate(ABC):
    """Some parameters whose prior is of one exponential family; see the module's equations.

    A subclass says which `family`, what its `parameters` are (in the order of the parts of the family's point), and
    how hyperparameters are `natural` parameters of the family. The rest follows.
    """

    family: VectorFamily[Any]
    prior_is_factor: ClassVar[bool] = False
    """Whether the prior is none of the family: message passing then takes a factor for it."""

    parameters: Mapping[str, Parameter]
    """By name, what is known of them."""

    def prior_factor(self, block: str, prior: Parameters, share: float) -> Factor:
        """Where the prior is a factor, that one; `share` is the part of all data by which it counts."""
        raise TypeError(f"block {block!r}: its prior is one of its family, and no factor.")

    @abstractmethod
    def natural(self, prior: Parameters) -> Tensor:
        """Natural parameters `[*plates, P]` of the prior with these hyperparameters."""

    def sites(self, prior: Parameters) -> list[Site]:
        """The prior as Pyro sites."""
        names = tuple(self.parameters)
        if "loc" not in names:
            return family_sites(self.family, self.natural(prior), names)
        # natural parameters subtract the square of the location: count it from itself, so that no digits are lost
        eta = self.natural(prior | {"loc": torch.zeros_like(prior["loc"])})
        return family_sites(self.family, eta, names, prior["loc"])

    def point(self, values: Parameters) -> Any:
        """The parameters as a point of the family."""
        parts = [values[name] for name in self.parameters]
        return parts[0] if len(parts) == 1 else LocPrecision(*parts)

    def values(self, point: Any) -> Parameters:
        """A point of the family under the parameters' names."""
        parts = (point,) if isinstance(point, Tensor) else tuple(vars(point).values())
        return dict(zip(self.parameters, parts, strict=True))

    def statistics(self, values: Parameters) -> Tensor:
        """The family's statistics t(theta) `[*plates, P]` at given parameters."""
        return self.family.statistics(self.point(values))

    def given(self, known: Parameters) -> VectorFamily[Any]:
        """The family of these parameters where some of them are known."""
        nowhere = next(iter(known.values())).new_full((), torch.nan)
        return given(self.family, self.point(dict.fromkeys(self.parameters, nowhere) | known))

    def expected(self, eta: Tensor) -> Parameters:
        """Expected parameters."""
        return self.values(self.family.expected(eta))

    def mode(self, prior: Parameters | None, message: Tensor) -> Parameters:
        """The mode of the prior plus a message; without a prior its limit, the maximum likelihood.

        NaN or infinite where the message says nothing and no prior helps.
        """
        total = message if prior is None else self.family.tilted(self.natural(prior)) + message
        return self.values(self.family.expected(total))


@dataclass(frozen=True)
class Probabilities(Conjugate):
    """The rows of a table of probabilities, Dirichlet each; for a single number p a beta distribution of (p, 1 - p)."""

    name: str
    hyperparameter: str
    dims: tuple[str, ...]

    @property
    def family(self) -> VectorFamily[Any]:  # type: ignore[override]
        return Dirichlet() if self.dims else Beta()

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        return {self.name: Parameter(self.dims, constraints.simplex if self.dims else constraints.unit_interval)}

    def natural(self, prior: Parameters) -> Tensor:
        return prior[self.hyperparameter]
