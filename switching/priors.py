r"""Priors of the parameters: as Pyro sites, and in conjugate blocks.

A block of parameters $\theta$ with a conjugate prior has an exponential family. Everything in a fit follows from the
family's natural parameters $\eta = \eta_0 + m$, those of the prior plus the messages of the data:

    Pyro sites         the distribution with eta_0
        M-step             the mode of eta_0 + m; without a prior its limit, the maximum of <m, t(theta)>
    message passing    q(theta) with eta_0 + m
    posterior means    the expectation under that q

So a block defines its family, and maps a prior to a member of this family; see `Conjugate`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, ClassVar, NamedTuple, cast

import pyro
import pyro.distributions as dist
import torch
from jaxtyping import Int
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ..inference.families import (
    Beta,
    Dirichlet,
    Gamma,
    LocPrecision,
    NormalGamma,
    NormalWishart,
    Tailed,
    VectorFamily,
    given_in_part,
)
from ..inference.families.wishart import wishart_normalizer
from ..inference.message_passing.factor_graph import Factor
from ..inference.numerics.cholesky import cholesky, cholesky_inverse, log_det
from ..inference.numerics.delegation import delegated
from .definite import Wishart
from .parameters import Parameter, Parameters, reordered, with_prefix

NONE: Parameters = {}
"""No parameters."""


class Site(NamedTuple):
    """A named parameter and its prior, given the values of the sites before it."""

    name: str
    distribution: Callable[[Parameters], TorchDistributionMixin]
    density: Callable[[Parameters], Tensor] | None = None
    """The log density at values inside the support, without a distribution object."""

    def log_prob(self, values: Parameters, inside: bool) -> Tensor:
        """Log density of the parameter, one number for each restart."""
        if inside and self.density is not None:
            return self.density(values)
        return self.distribution(values).log_prob(values[self.name])

    def reading(self, own: Callable[[Parameters], Parameters]) -> "Site":
        """The same site, of which `own` finds the values that it depends on."""
        density = self.density
        own_density = None if density is None else lambda values: density(own(values))
        return Site(self.name, lambda values: self.distribution(own(values)), own_density)


def sample_sites(sites: Sequence[Site]) -> Parameters:
    """Draw every parameter, in order, as a Pyro sample site."""
    values: Parameters = {}
    for site in sites:
        values[site.name] = pyro.sample(site.name, site.distribution(values))
    return values


def log_prior(sites: Sequence[Site], values: Parameters, inside: bool = False) -> Tensor:
    """Log density of the sites at `values`, one number for each restart: [*r].

    Arguments:
        inside: whether the values are known to be in their supports; if not, values outside raise ValueError.
    """
    terms = [site.log_prob(values, inside) for site in sites]
    return torch.stack(torch.broadcast_tensors(*terms)).sum(0)


def prefixed_sites(sites: Sequence[Site], prefix: str, shared: Sequence[str] = ()) -> list[Site]:
    """The same sites under names that start with `prefix`; those of `shared` values do not."""

    def own(values: Parameters) -> Parameters:
        return with_prefix(values, prefix) | {name: values[name] for name in shared if name in values}

    return [site.reading(own)._replace(name=prefix + site.name) for site in sites]


def by_subject_sites(sites: Sequence[Site], n_subjects: int) -> list[Site]:
    """The same priors for the parameters of each subject, `[S, ...]`."""

    def of_all(site: Site) -> Site:
        def distribution(values: Parameters) -> TorchDistributionMixin:
            one: Any = site.distribution(values)
            alike = one if len(one.batch_shape) else one.expand([n_subjects])  # it may depend on values of the subject
            return alike.to_event(1)

        def density(values: Parameters) -> Tensor:
            return cast(Callable[[Parameters], Tensor], site.density)(values).sum(-1)

        return Site(site.name, distribution, None if site.density is None else density)

    return [of_all(site) for site in sites]


def for_subjects(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The parameters of each subject."""
    return {name: replace(parameter, dims=("subject", *parameter.dims)) for name, parameter in parameters.items()}


@singledispatch
def family_sites(family: VectorFamily, eta: Tensor, names: Sequence[str], about: Tensor | float = 0.0) -> list[Site]:
    """The density of a family with natural parameters `[*plates, P]` as Pyro sites, one for each part of its point.

    Locations in eta are relative to `about`.
    """
    raise TypeError(f"family: {type(family).__name__} has no Pyro sites; register them with `family_sites.register`.")


def _event(distribution: Any) -> TorchDistributionMixin:
    """The distribution with all plates as part of the event."""
    return distribution.to_event(len(distribution.batch_shape))


def _over_plates(terms: Tensor, n: int) -> Tensor:
    """Sum over the last n axes, the plates."""
    return terms.sum(tuple(range(-n, 0))) if n else terms


@family_sites.register
def _(family: Dirichlet, eta: Tensor, names: Sequence[str], about: Tensor | float = 0.0) -> list[Site]:
    prior, (name,), log_normalizer = _event(dist.Dirichlet(eta)), names, family.log_normalizer(eta)

    def density(values: Parameters) -> Tensor:
        return _over_plates(torch.xlogy(eta - 1, values[name]).sum(-1) - log_normalizer, eta.ndim - 1)

    return [Site(name, lambda values: prior, density)]


@family_sites.register
def _(family: Beta, eta: Tensor, names: Sequence[str], about: Tensor | float = 0.0) -> list[Site]:
    prior, (name,), log_normalizer = _event(dist.Beta(eta[..., 0], eta[..., 1])), names, family.log_normalizer(eta)

    def density(values: Parameters) -> Tensor:
        p = values[name]
        terms = torch.xlogy(eta[..., 0] - 1, p) + torch.special.xlog1py(eta[..., 1] - 1, -p)
        return _over_plates(terms - log_normalizer, eta.ndim - 1)

    return [Site(name, lambda values: prior, density)]


def _gamma_density(name: str, shape: Tensor, rate: Tensor) -> Callable[[Parameters], Tensor]:
    log_normalizer, n = torch.lgamma(shape) - shape * rate.log(), shape.ndim
    return lambda values: _over_plates(torch.xlogy(shape - 1, values[name]) - rate * values[name] - log_normalizer, n)


@family_sites.register
def _(family: Gamma, eta: Tensor, names: Sequence[str], about: Tensor | float = 0.0) -> list[Site]:
    q, (name,) = family.usual(eta), names
    prior = _event(dist.Gamma(q.shape, q.rate))
    return [Site(name, lambda values: prior, _gamma_density(name, q.shape, q.rate))]


@family_sites.register
def _(family: NormalGamma, eta: Tensor, names: Sequence[str], about: Tensor | float = 0.0) -> list[Site]:
    q = family.usual(eta)
    return normal_gamma_sites(names, q.loc + about, q.kappa, q.shape, q.rate)


@family_sites.register
def _(family: Tailed, eta: Tensor, names: Sequence[str], about: Tensor | float = 0.0) -> list[Site]:
    """Without observed mixing variables, the prior of the degrees of freedom is a gamma density."""
    of_normal = family_sites(NormalGamma(), eta[..., :4], names[:2], about)
    return [*of_normal, *family_sites(Gamma(), eta[..., 4:6], names[2:])]


def normal_gamma_sites(names: Sequence[str], loc: Tensor, kappa: Tensor, shape: Tensor, rate: Tensor) -> list[Site]:
    """The sites of a location and a precision, whose plates `[*plates]` have the length 1 where locations share a
    precision."""
    name, precision = names
    spread = _event(dist.Gamma(shape, rate))
    log_normalizer = (math.log(2 * math.pi) - kappa.log()) / 2

    def location(values: Parameters) -> TorchDistributionMixin:
        return dist.Normal(loc, (kappa * values[precision]).rsqrt()).to_event(loc.ndim)

    def density(values: Parameters) -> Tensor:
        known, residual = values[precision], values[name] - loc
        return _over_plates((known.log() - kappa * known * residual.square()) / 2 - log_normalizer, kappa.ndim)

    return [
        Site(precision, lambda values: spread, _gamma_density(precision, shape, rate)),
        Site(name, location, density),
    ]


@family_sites.register
def _(family: NormalWishart, eta: Tensor, names: Sequence[str], about: Tensor | float = 0.0) -> list[Site]:
    q = family.usual(eta)
    return normal_wishart_sites(names, q.loc + about, q.kappa, q.df, q.scale_matrix)


def normal_wishart_sites(
    names: Sequence[str], loc: Tensor, kappa: Tensor, df: Tensor, scale_matrix: Tensor
) -> list[Site]:
    """`normal_gamma_sites` of vectors and matrices."""
    name, precision = names
    spread, dim = _event(Wishart(df, scale_matrix)), loc.shape[-1]
    inverse = cholesky_inverse(cholesky(scale_matrix))
    of_precision = wishart_normalizer(df, cholesky(inverse))
    of_location = dim / 2 * (math.log(2 * math.pi) - kappa.log())

    def location(values: Parameters) -> TorchDistributionMixin:
        weighted = kappa[..., None, None] * values[precision]
        return dist.MultivariateNormal(loc, precision_matrix=weighted).to_event(kappa.ndim)

    def density_of_precision(values: Parameters) -> Tensor:
        known = values[precision]
        exponent = (df - dim - 1) * log_det(cholesky(known)) - (inverse * known).sum((-2, -1))
        return _over_plates(exponent / 2 - of_precision, df.ndim)

    def density_of_location(values: Parameters) -> Tensor:
        known, residual = values[precision], values[name] - loc
        square = (residual.unsqueeze(-2) @ known @ residual.unsqueeze(-1))[..., 0, 0]
        return _over_plates((log_det(cholesky(known)) - kappa * square) / 2 - of_location, kappa.ndim)

    return [Site(precision, lambda values: spread, density_of_precision), Site(name, location, density_of_location)]


# ---- conjugate blocks ------------------------------------------------------------------------------------------------


class Conjugate(ABC):
    """Parameters with a prior of one exponential family; see the module's equations.

    A subclass defines the `family`, its `parameters` (in the order of the parts of the family's point), and the map
    from hyperparameters to `natural` parameters of the family.

    Arguments of methods:
        values: parameters by name.
        prior: hyperparameters by name.
        point: a point of the family: the parameters in its form.
        eta: natural parameters of a density of the family.
        message: a term that data add to natural parameters.
        statistics: expected statistics of the family.
        known: values of parameters that are fixed, with NaN where free.
        order: the order of the states.
        block: the name of the block.
        share: the weight of the prior relative to all data.
        generator: of random numbers.
    """

    family: VectorFamily[Any]
    prior_is_factor: ClassVar[bool] = False
    """Whether the prior is not in the family: message passing then uses a factor for it."""

    parameters: Mapping[str, Parameter]
    """The description of each parameter, by name."""

    width: int = 1
    """The numbers for each step and state in the widest table that message passing makes from the block."""

    def prior_factor(self, block: str, prior: Parameters, share: float) -> Factor:
        """The factor of the prior, if it is a factor; `share` is its weight relative to all data."""
        raise TypeError(f"block {block!r}: its prior belongs to its family, and is not a factor.")

    @abstractmethod
    def natural(self, prior: Parameters) -> Tensor:
        """Natural parameters `[*plates, P]` of the prior with these hyperparameters."""

    def near(self, values: Parameters, rows: Callable[[], Tensor]) -> Tensor | None:
        """Natural parameters at which message passing begins near values `[R, ...]`, where updates are local; None: it
        begins at the prior.

        Arguments:
            rows: of an emission, the rows `[*b, T, R]` of the data.
        """
        return None

    def hyperparameters_of(self, eta: Tensor) -> Parameters:
        """The hyperparameters whose `natural` parameters are eta, if every member of the family is a prior.

        Raises:
            TypeError: not every member is.
        """
        raise TypeError(f"the prior of {', '.join(self.parameters)} has no population")

    def sites(self, prior: Parameters) -> list[Site]:
        """The prior as Pyro sites."""
        names = tuple(self.parameters)
        if "loc" not in names:
            return family_sites(self.family, self.natural(prior), names)
        # natural parameters subtract the squared location: use the location as the origin, so that no digits are lost
        eta = self.natural(prior | {"loc": torch.zeros_like(prior["loc"])})
        return family_sites(self.family, eta, names, prior["loc"])

    def point(self, values: Parameters) -> Any:
        """The parameters as a point of the family."""
        parts = [values[name] for name in self.parameters]
        return parts[0] if len(parts) == 1 else LocPrecision(*parts)

    def values(self, point: Any) -> Parameters:
        """A point of the family, as values by parameter name."""
        parts = (point,) if isinstance(point, Tensor) else tuple(vars(point).values())
        return dict(zip(self.parameters, parts, strict=True))

    def known_density(self, prior: Parameters, known: Parameters) -> Tensor | None:
        """The log density of known parameters in the coordinates of the family's point; None: that of their sites."""
        return None

    def statistics(self, values: Parameters) -> Tensor:
        """The family's statistics t(theta) `[*plates, P]` at these parameters."""
        return self.family.statistics(self.point(values))

    def given(self, known: Parameters) -> VectorFamily[Any]:
        """The family of these parameters, conditioned on known values of some."""
        nowhere = next(iter(known.values())).new_full((), torch.nan)
        return given_in_part(self.family, self.point({name: known.get(name, nowhere) for name in self.parameters}))

    def drawn_start(self, prior: Parameters, generator: torch.Generator) -> Parameters:
        """Parameters drawn from the prior `[1, ...]`, for starts."""
        return self.values(self.family.sample(self.natural(prior), 1, generator))

    def expected(self, eta: Tensor) -> Parameters:
        """Expected parameters."""
        return self.values(self.family.expected(eta))

    def drawn(self, eta: Tensor, values: Parameters, at: Parameters = NONE) -> Parameters:
        """A draw of the parameters given everything else, with these natural parameters of the family `[*r, ...]`.

        Arguments:
            values: before the draw, from which a block without a closed form draws the next ones.
            at: those that are held.
        """
        family = self.given(at) if at else self.family
        return {name: draw[0] for name, draw in self.values(family.sample(eta, 1)).items()}

    def reordered(self, eta: Tensor, order: Int[Tensor, "K"]) -> Tensor:
        """The same density with state `order[k]` as state k."""
        name, parameter = next(iter(self.parameters.items()))
        dims = parameter.dims
        if dims[:1] == ("state",) and len(eta) == 1:
            return eta  # a background that is the same in all states
        # natural parameters of a Dirichlet have the shape of its probabilities, others are [*plates, P]
        if eta.ndim > len(dims):
            dims = (*dims[: eta.ndim - 1], "statistic")
        return reordered({name: replace(parameter, dims=dims)}, {name: eta}, order)[name]

    def mode(self, prior: Parameters | None, message: Tensor, near: Parameters | None = None) -> Parameters:
        """The mode of the prior plus a message; without a prior, the limit: maximum likelihood.

        Arguments:
            near: values from which a block without a closed form looks for the mode.

        NaN or infinite if the message contains no information and there is no prior.
        """
        total = message if prior is None else self.family.tilted(self.natural(prior)) + message
        return self.values(self.family.expected(total))


@dataclass(frozen=True)
class Probabilities(Conjugate):
    """The rows of a table of probabilities, each with a Dirichlet prior; a single number p has a beta prior of (p, 1 -
    p)."""

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

    def natural_of(self, distribution: Any) -> Tensor | None:
        """Natural parameters of a conjugate distribution: a Dirichlet of rows, a Beta of one number. None of others."""
        if isinstance(distribution, torch.distributions.Dirichlet if self.dims else torch.distributions.Beta):
            d: Any = distribution
            return d.concentration if self.dims else torch.stack([d.concentration1, d.concentration0], -1)
        return None

    def hyperparameters_of(self, eta: Tensor) -> Parameters:
        return {self.hyperparameter: eta}


@dataclass(frozen=True)
class BySubject(Conjugate):
    """A block of parameters of each subject, with the same prior."""

    block: Conjugate
    n_subjects: int

    family = delegated("block")
    prior_is_factor = delegated("block")
    prior_factor = delegated("block")
    hyperparameters_of = delegated("block")
    point = delegated("block")
    values = delegated("block")
    given = delegated("block")

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        return for_subjects(self.block.parameters)

    def natural(self, prior: Parameters) -> Tensor:
        eta = self.block.natural(prior)
        return eta.expand(self.n_subjects, *eta.shape)

    def sites(self, prior: Parameters) -> list[Site]:
        return by_subject_sites(self.block.sites(prior), self.n_subjects)

    def reordered(self, eta: Tensor, order: Int[Tensor, "K"]) -> Tensor:
        return torch.stack([self.block.reordered(one, order) for one in eta])
