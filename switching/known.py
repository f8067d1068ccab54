r"""Parameters of which some entries are known, and others free.

`fixed` has tables by name of a parameter, with NaN where an entry is free. Everything else follows from the support of
the free entries, and from the prior given the known ones:

    rows of probabilities    free entries share the rest of their row, $p_j = (1 - \sum_{known} p_k)\, q_j$, and q has
                             the Dirichlet distribution of the free concentrations
    other numbers            entries, or whole matrices, have the support of the parameter

`PossibleRows` and `KnownEntries` are the supports, `FreeCoordinates` what steps and densities move, `known_sites` the
priors, and `FixedBlock` a conjugate block.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from pyro.distributions import TorchDistribution
from pyro.distributions.util import sum_rightmost
from torch import Tensor
from torch.distributions import Transform, constraints
from torch.distributions.constraints import Constraint

from ..inference.families import VectorFamily
from ..inference.message_passing.factor_graph import Factor
from ..inference.numerics.delegation import delegated
from .definite import free_coordinates
from .entries import KnownEntries, PossibleRows, of_free
from .parameters import Parameter, Parameters, is_simplex
from .priors import NONE, Conjugate, Site

NO_AXES = torch.Size()
ENDED = torch.distributions.Beta, torch.distributions.Gamma  # whose density may be 0 or infinite at an end of its range
REASON = "this entry is known"


def is_whole(table: Tensor) -> bool:
    """Whether all entries are known."""
    return not bool(table.isnan().any())


def support_beside(support: Constraint, table: Tensor) -> KnownEntries | PossibleRows:
    """The support of a parameter whose entries that are not NaN in a table are known."""
    return PossibleRows(table, REASON) if is_simplex(support) else KnownEntries(support, table)


def with_known(values: Parameters, fixed: Parameters, known: Mapping[str, Parameter]) -> Parameters:
    """Values `[*r, ...]` with the known entries in their places; free probabilities of a row share the rest."""
    return {
        name: _with_known(value, fixed[name], known[name].support) if name in fixed else value
        for name, value in values.items()
    }


def _with_known(value: Tensor, table: Tensor, support: Constraint) -> Tensor:
    if is_whole(table):
        return table.to(value).expand_as(value)
    return support_beside(support, table.to(value)).fitted(value)


def whole_parameters(fixed: Parameters) -> Parameters:
    """The parameters all of whose entries are known."""
    return {name: table for name, table in fixed.items() if is_whole(table)}


# ---- free coordinates ------------------------------------------------------------------------------------------------


class FreeCoordinates:
    """Free coordinates of parameters, by name; known entries have none.

    Arguments:
        supports: of whole tables.
        near: a point `[...]`.
        fixed: tables of known parameters, with NaN where an entry is free.
        others: bijections from other coordinates, by name.

    Attributes:
        start: the coordinates of the point.
    """

    start: Parameters

    def __init__(
        self,
        supports: Mapping[str, Constraint],
        near: Parameters,
        fixed: Parameters = NONE,
        others: Mapping[str, Transform] = MappingProxyType({}),
    ) -> None:
        self._whole = whole_parameters(fixed)
        free = {name: support for name, support in supports.items() if name not in self._whole}
        self._transforms = {
            name: others.get(name)
            or free_coordinates(support_beside(support, fixed[name]) if name in fixed else support)
            for name, support in free.items()
        }
        self.start = self.of(near)

    def of(self, values: Parameters) -> Parameters:
        """The coordinates of parameters `[*r, ...]`."""
        return {name: cast(Tensor, to.inv(values[name])) for name, to in self._transforms.items()}

    def values(self, free: Parameters) -> Parameters:
        """The parameters at coordinates `[*r, ...]`."""
        values = {name: cast(Tensor, to(free[name])) for name, to in self._transforms.items()}
        name, some = next(iter(free.items()))
        lead = some.shape[: some.ndim - self.start[name].ndim]
        return values | {name: table.expand((*lead, *table.shape)) for name, table in self._whole.items()}

    def log_volume(self, free: Parameters, values: Parameters) -> Float[Tensor, "*r"]:
        """The log Jacobian of the parameters at coordinates."""
        terms = []
        for name, to in self._transforms.items():
            each, lead = to.log_abs_det_jacobian(free[name], values[name]), free[name].ndim - self.start[name].ndim
            terms.append(each.reshape(*each.shape[:lead], -1).sum(-1))
        return torch.stack(terms).sum(0)


def joined(free: Parameters, like: Parameters) -> Float[Tensor, "*r P"]:
    """Coordinates `[*r, ...]` one after another; `like` are those of one point."""
    tables = [(table, table.ndim - like[name].ndim) for name, table in free.items()]
    return torch.cat([table.reshape(*table.shape[:lead], -1) for table, lead in tables], -1)


def parted(flat: Float[Tensor, "*r P"], like: Parameters) -> Parameters:
    """The same coordinates by name."""
    parts = zip(like.items(), flat.split([table.numel() for table in like.values()], -1), strict=True)
    return {name: part.reshape((*flat.shape[:-1], *table.shape)) for (name, table), part in parts}


# ---- priors ----------------------------------------------------------------------------------------------------------


class PossibleDirichlet(TorchDistribution):
    """Rows of probabilities with Dirichlet priors of the shares of their free entries."""

    concentration: Tensor
    rows: PossibleRows

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 the interface of torch.distributions
    has_rsample = True

    def __init__(self, concentration: Tensor, rows: PossibleRows, batch_shape: torch.Size = NO_AXES) -> None:
        self.concentration, self.rows = concentration, rows
        super().__init__(batch_shape, concentration.shape, validate_args=False)

    @property
    def support(self) -> Constraint:
        return self.rows

    def log_prob(self, value: Tensor) -> Tensor:
        free = self.rows.free.to(value.device)
        terms = torch.where(free, torch.xlogy(self.concentration - 1, self.rows.shares(value)), 0.0)
        used = torch.where(free, self.concentration, 0.0).sum(-1)
        parts = torch.where(free, torch.lgamma(self.concentration), 0.0)
        of_sums = torch.where(free.any(-1), torch.lgamma(torch.where(free.any(-1), used, 1.0)), 0.0)
        return terms.flatten(terms.ndim - free.ndim).sum(-1) + of_sums.sum() - parts.sum()

    def rsample(self, sample_shape: torch.Size = NO_AXES) -> Tensor:
        alpha = self.concentration.expand(self._extended_shape(sample_shape))
        drawn = torch.distributions.Gamma(alpha, torch.ones_like(alpha)).rsample()
        return self.rows.fitted(drawn)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> "PossibleDirichlet":
        return PossibleDirichlet(self.concentration, self.rows, torch.Size(batch_shape))


class KnownDistribution(TorchDistribution):
    """A distribution of tables, at tables some of whose entries are known: the density of the free entries, times that
    of the known ones.

    Arguments:
        extreme: known entries that are left out, because their density is 0 or infinite and would decide the product.
    """

    base: Any
    known: KnownEntries
    extreme: Tensor | None

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 the interface of torch.distributions
    has_rsample: ClassVar[Any] = delegated("base")

    def __init__(
        self, base: Any, known: KnownEntries, extreme: Tensor | None = None, batch_shape: torch.Size = NO_AXES
    ) -> None:
        self.base, self.known, self.extreme = base, known, extreme
        super().__init__(batch_shape, base.event_shape, validate_args=False)

    @property
    def support(self) -> Constraint:
        return self.known

    def log_prob(self, value: Tensor) -> Tensor:
        if self.extreme is None:
            return self.base.log_prob(value)
        inner, n_axes = _apart(self.base)
        each = inner.log_prob(torch.where(self.extreme, inner.mean, value))
        return cast(Tensor, sum_rightmost(torch.where(self.extreme, 0.0, each), n_axes))

    def rsample(self, sample_shape: torch.Size = NO_AXES) -> Tensor:
        return self._completed(self.base.rsample(sample_shape + self.batch_shape))

    def sample(self, sample_shape: torch.Size = NO_AXES) -> Tensor:
        return self._completed(self.base.sample(sample_shape + self.batch_shape))

    def _completed(self, drawn: Tensor) -> Tensor:
        table = self.known.table.to(drawn)
        return torch.where(table.isnan(), drawn, table)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> "KnownDistribution":
        return KnownDistribution(self.base, self.known, self.extreme, torch.Size(batch_shape))


def known_sites(sites: Sequence[Site], fixed: Parameters, known: Mapping[str, Parameter]) -> list[Site]:
    """The prior given the known entries, of parameters that are known in part or at an end of their range."""
    return [_known_site(site, fixed.get(site.name), known[site.name].support) for site in sites]


def _apart(prior: Any) -> tuple[Any, int]:
    """The distribution of the entries of a table, and the number of its axes."""
    if isinstance(prior, torch.distributions.Independent):
        return prior.base_dist, prior.reinterpreted_batch_ndims
    return prior, 0


def _extreme(prior: Any, table: Tensor) -> Tensor | None:
    """Which known entries lie at an end of their range where the density is 0 or infinite; None: not any."""
    inner, _ = _apart(prior)
    if not isinstance(inner, ENDED):
        return None
    table = table.to(inner.mean)
    density = inner.log_prob(torch.where(table.isnan(), inner.mean, table))
    out = ~table.isnan() & ~density.isfinite()
    return out if bool(out.any()) else None


def _known_site(site: Site, table: Tensor | None, support: Constraint) -> Site:
    if table is None:
        return site
    if is_simplex(support):
        if is_whole(table) and bool((table > 0).all()):
            return site
        concentration = _concentration(site.distribution({}))
        if concentration is None:
            return site
        of_rows = PossibleDirichlet(concentration, PossibleRows(table, REASON))
        return Site(site.name, lambda values: of_rows, lambda values: of_rows.log_prob(values[site.name]))
    base = of_free(support)
    closed = base is constraints.nonnegative or isinstance(base, constraints.interval)
    extreme = _extreme(site.distribution({}), table) if closed else None
    if is_whole(table) and extreme is None:
        return site

    def distribution(values: Parameters) -> Any:
        prior = site.distribution(values)
        return KnownDistribution(prior, KnownEntries(cast(Any, prior.support), table), extreme)

    return Site(site.name, distribution, site.density if extreme is None else None)


def _concentration(distribution: Any) -> Tensor | None:
    """The concentrations of Dirichlet rows; None: another distribution."""
    while hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return getattr(distribution, "concentration", None)


# ---- conjugate blocks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FixedBlock(Conjugate):
    """A block of parameters, some or all of which a fit holds at fixed values."""

    block: Conjugate
    at: Parameters

    @cached_property
    def family(self) -> VectorFamily[Any]:  # type: ignore[override]
        return self.block.given(self.at)

    parameters = delegated("block")
    prior_is_factor = delegated("block")
    width = delegated("block")
    natural = delegated("block")
    near = delegated("block")
    reordered = delegated("block")
    point = delegated("block")
    values = delegated("block")

    def drawn(self, eta: Tensor, values: Parameters, at: Parameters = NONE) -> Parameters:
        return self.block.drawn(eta, values, self.at)

    def prior_factor(self, block: str, prior: Parameters, share: float) -> Factor:
        """The prior factor of the free parameters."""
        factor, known = self.block.prior_factor(block, prior, share), self.block.known_density(prior, self.at)
        if known is None:
            known = sum(_density_of_known(site, self.at) for site in self.block.sites(prior) if site.name in self.at)

        def elog(*statistics: Tensor) -> Tensor:
            return factor.elog(*statistics) - known

        elog.__name__ = factor.name
        return replace(factor, elog=elog)


def _density_of_known(site: Site, at: Parameters) -> Tensor:
    """The log density of the known entries of one parameter, which are independent under its prior."""
    table, prior = at[site.name], cast(Any, site.distribution(at))
    if is_whole(table):
        return prior.log_prob(table)
    while isinstance(prior, torch.distributions.Independent):
        prior = prior.base_dist
    each = prior.log_prob(table.nan_to_num(0.0))
    return torch.where(table.isnan(), 0.0, each).sum()


def block_beside(block: Conjugate, fixed: Parameters) -> Conjugate:
    """The block of the free entries."""
    at = {name: fixed[name] for name in block.parameters if name in fixed}
    return FixedBlock(block, at) if at else block


# ---- reading ---------------------------------------------------------------------------------------------------------


def known_rows(called: str, table: Float[Tensor, "*r K"]) -> Float[Tensor, "*r K"]:
    """Rows of probabilities, NaN where they are free; a single free entry of a row is the rest.

    Raises:
        ValueError: negative numbers, known entries that sum to more than 1, or to less without free ones.
    """
    free = table.isnan()
    total = table.nan_to_num(0.0).sum(-1, keepdim=True)
    some = free.any(-1, keepdim=True)
    wrong = torch.where(some, total >= 1, (total - 1).abs() > 1e-6)
    if bool((table < 0).any()) or bool(wrong.any()):
        raise ValueError(
            f"{called}: got rows whose known entries sum to {total.flatten().tolist()}, expected probabilities that "
            "sum to 1, or to less beside entries that are free (NaN)."
        )
    rest = torch.where(free & (free.sum(-1, keepdim=True) == 1), 1 - total, table)
    return torch.where(some, rest, rest / total)
