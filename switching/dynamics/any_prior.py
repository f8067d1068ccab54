r"""Priors of any form of probabilities: the next state's, the first one's, the redraw's.

A distribution of Pyro replaces the Dirichlet or Beta prior of a block. The block is no longer conjugate, so its M-step
maximises

$$\langle m, t(\theta) \rangle + \log p(\theta)$$

by steps of BFGS in free coordinates. Here m is the message of the paths, and p is the density of the probabilities
themselves.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from ..data.series import Series
from ..emissions.ascent import ascend
from ..parameters import Parameters
from ..priors import Conjugate, Probabilities, Site
from ..user_priors import NEAR_END, UserPrior, excluded, limit, read, support_of

ROUNDING = 1e-6  # relative, of a probability to float32
INSIDE = 1e-2  # share of the range of a support that separates a start from its ends


@dataclass(frozen=True, eq=False)
class AnyPrior(Probabilities):
    """Rows of probabilities, or a single one, under a prior of the user."""

    user: UserPrior

    @property
    def kind(self) -> str:
        """The name of the prior's distribution."""
        return type(self.user.distribution).__name__

    @property
    def default_kind(self) -> str:
        """The name of the distribution that the default prior has."""
        return type(self.family).__name__

    @property
    def support(self) -> Constraint:
        """The support of the prior, which may be a part of the unit interval."""
        if self.dims:
            return constraints.simplex
        low, high = self._ends
        return constraints.unit_interval if (low, high) == (0.0, 1.0) else constraints.interval(low, high)

    @property
    def _ends(self) -> tuple[float, float]:
        support = support_of(self.user.distribution)
        return float(support.lower_bound), float(support.upper_bound)

    def end_at(self, value: Tensor) -> float | None:
        """The end of the prior's range at which a value is; None for rows, and inside the range."""
        if self.dims or self.support is constraints.unit_interval:
            return None
        low, high = self._ends
        near = [end for end in (low, high) if abs(float(value) - end) <= ROUNDING * (high - low)]
        return near[0] if near else None

    def check_mode(self, prior: Parameters) -> None:
        """Raise ValueError if the density is infinite where a probability is at an end of its range."""
        like = self.natural(prior).double()
        if self.dims and like.shape[-1] == 1:
            return
        for near, nearer in zip(*(self._near_ends(like, share) for share in NEAR_END), strict=True):
            if bool((limit(self.user.distribution, near, nearer) == torch.inf).any()):
                raise ValueError(
                    f"prior[{self.name!r}]: got {self.kind} with an infinite density at an end of its range, so the "
                    'posterior has no mode; give one with a finite density, or use method="svi" or "nuts".'
                )

    def _near_ends(self, like: Tensor, share: float) -> list[Tensor]:
        """Probabilities with one near an end of the support."""
        if self.dims:
            unit = torch.eye(like.shape[-1]).to(like)
            rows = share * unit + (1 - share) * (1 - unit) / (like.shape[-1] - 1)
            return [row.expand(like.shape) for row in rows]
        low, high = self._ends
        return [like.new_tensor(end) for end in (low + share * (high - low), high - share * (high - low))]

    def sites(self, prior: Parameters) -> list[Site]:
        eta = self.natural(prior)
        return [self.user.site(eta if self.dims else eta[..., 0])]

    def mode(self, prior: Parameters | None, message: Tensor, near: Parameters | None = None) -> Parameters:
        """The mode near some values, or values at which the density is at least as high."""
        if prior is None:
            return super().mode(prior, message)
        assert near is not None  # dynamics give their values
        if self.dims and near[self.name].shape[-1] == 1:
            return {self.name: near[self.name]}  # a single state
        eta = self.natural(prior).double()
        (site,), counts = self.sites({self.hyperparameter: eta}), message.double()

        def objective(values: Parameters) -> Tensor:
            fit = (counts * self.statistics(values)).flatten(counts.ndim - eta.ndim).sum(-1)
            return fit + site.log_prob(values, inside=True)

        def height(table: Tensor) -> Tensor:
            return objective({self.name: table}).nan_to_num(-torch.inf, posinf=torch.inf)

        here = moved_inside(near[self.name].double(), self.support)
        typical = moved_inside(self.expected(eta + counts)[self.name], self.support)
        better = height(typical) > height(here)
        start = torch.where(better.reshape(*better.shape, *[1] * len(self.dims)), typical, here)
        support: Any = cast(Any, site.distribution({})).support
        best = ascend(objective, {self.name: start}, {self.name: support})[self.name]
        return {self.name: off_the_ends(best.to(near[self.name]), self.support)}


def moved_inside(value: Tensor, support: Constraint) -> Tensor:
    """Probabilities inside an interval, or greater than 0; those that are inside already stay."""
    if support is constraints.simplex:
        least = torch.finfo(value.dtype).tiny
        return torch.where((value < least).any(-1, keepdim=True), value.clamp_min(least), value)
    low, high = support.lower_bound, support.upper_bound  # pyright: ignore[reportAttributeAccessIssue]
    edge = INSIDE * (high - low)
    return torch.where((value > low) & (value < high), value, value.clamp(low + edge, high - edge))


def off_the_ends(value: Tensor, support: Constraint) -> Tensor:
    """Probabilities that rounding has moved to an end of an interval, as the nearest ones inside."""
    if support is constraints.simplex:
        return value
    low, high = (value.new_tensor(float(getattr(support, f"{end}_bound"))) for end in ("lower", "upper"))
    return value.clamp(torch.nextafter(low, high), torch.nextafter(high, low))


def under_user_priors(blocks: Mapping[str, Conjugate], prior: Any, of: str) -> Mapping[str, Conjugate]:
    """The blocks with priors of the user, distributions of Pyro by name of a parameter; conjugate ones are
    hyperparameters.

    Raises:
        TypeError: not a mapping of names to distributions.
        ValueError: an unknown name; a distribution of another support or shape.
    """
    if prior is None:
        return blocks
    rows = {place: block for place, block in blocks.items() if isinstance(block, Probabilities)}
    known = {block.name: block.parameters[block.name] for block in rows.values()}
    users = read(prior, known, f"{of} dynamics", narrower=True)
    other = {
        place: AnyPrior(block.name, block.hyperparameter, block.dims, users[block.name])
        for place, block in rows.items()
        if block.name in users and block.natural_of(users[block.name].distribution) is None
    }
    return {**blocks, **other}


def check_prior(dynamics: Any, beside: str) -> None:
    """Raise ValueError if the user's priors do not fit their parameters or the constructor's other arguments.

    Arguments:
        beside: an argument of the dynamics that allows only priors of the default form; empty: there is none.
    """
    default = dynamics.default_prior()
    for block in dynamics.any_priors:
        if beside:
            raise ValueError(
                f"prior[{block.name!r}]: got {block.kind}, but {dynamics.name} with {beside} supports only a "
                f"{block.default_kind} there; give one, or leave {beside} out."
            )
        block.sites(default)  # raises an error for another shape
    for name in dynamics.prior or {}:
        for argument, usual in hyperparameter_defaults(dynamics, (name,)).items():
            given = getattr(dynamics, argument)
            if bool((torch.as_tensor(given) != torch.as_tensor(usual)).any()):
                raise ValueError(
                    f"{argument}: got {given!r} together with prior[{name!r}], which replaces it; leave one of them "
                    "out."
                )


def hyperparameter_defaults(dynamics: Any, names: Iterable[str]) -> dict[str, Any]:
    """The arguments of a constructor with the hyperparameters of some parameters, and their defaults."""
    arguments = {argument for name in names for argument in dynamics.arguments.get(name, ())}
    return {one.name: one.default for one in fields(dynamics) if one.name in arguments}


def check_start(blocks: Sequence[AnyPrior], values: Parameters, fixed: Parameters) -> None:
    """Raise ValueError if a start is outside the range of a user's prior, by more than rounding to float32."""
    for block in blocks:
        if block.dims or block.name in fixed or block.name not in values:
            continue
        support: Any = block.support
        low, high, value = float(support.lower_bound), float(support.upper_bound), values[block.name]
        outside = (value < low - ROUNDING * high) | (value > high + ROUNDING * high)
        if bool(outside.any()):
            raise excluded("start", block.name, value[outside][0], block.kind)


def check_fit(blocks: Sequence[AnyPrior], series: Series, fixed: Parameters) -> None:
    """Raise ValueError if a fit cannot use the user's priors beside gaps or known entries."""
    for block in blocks:
        given = f"prior[{block.name!r}]: got {block.kind}"
        if series.dt is not None:
            raise ValueError(
                f"{given} together with dt, but gaps allow only a {block.default_kind} there; give one, or leave dt "
                "out."
            )
        table = fixed.get(block.name)
        if table is None or table.shape[-1:] == (1,):
            continue
        if bool(table.isnan().any()):
            raise ValueError(
                f"{given} together with a table in fixed that is known in part; fix the whole table, or give a "
                f"{block.default_kind}."
            )
        support: Any = block.support
        inside = table > 0 if block.dims else (table > support.lower_bound) & (table < support.upper_bound)
        if not bool(inside.all()):
            raise ValueError(
                f"fixed: got {block.name} {table.tolist()}, which is not inside the range of its prior, a "
                f"{block.kind}; fix other numbers, or give another prior."
            )
