r"""The contract of emissions: $p(x_t \mid s_t, z_t)$, its prior, and its M-step.

An emission is a stateless description. Its parameters are a dictionary of tensors `[*r, K, ...]`, where `*r` are
restarts or posterior draws, and its prior is another dictionary. So one description serves the Pyro program, EM over
many restarts at once, and message passing. A subclass of `Emission` defines

    parameters      their names, axes and supports
    log_prob        log p(x | parameters), feature values that are NaN marginalised
    distribution    the same as a Pyro distribution
    default_prior   hyperparameters, scaled to data
    priors          Pyro distributions with these hyperparameters

It can be fitted by EM (with gradient ascent as M-step), by SVI and by NUTS. A `ConjugateEmission` (`conjugate.py`) can
be fitted by message passing too.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, cast

import pyro.distributions as dist
import torch
from jaxtyping import Bool, Float, Int
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ...inference.families.peak import NEAR_FLOOR
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_integer
from ..data.series import place
from ..definite import free_coordinates
from ..inputs import Inputs, count_inputs
from ..known import known_sites
from ..parameters import (
    SINGLE,
    Named,
    Parameter,
    Parameters,
    check_parameters,
    kept,
    moved,
    prefixed,
    widened,
    with_prefix,
)
from ..priors import Conjugate, Site, log_prior
from ..responses import Response
from ..user_priors import UserPrior, as_text, hyperparameters, merged
from ..user_priors import read as read_priors
from .ascent import ascend


class ByGate(NamedTuple):
    """A quantity of redrawn steps and of held steps; the same tensor if the two are equal."""

    redrawn: Tensor
    held: Tensor


class Part(NamedTuple):
    """An emission of single states in a model."""

    block: str  # of its parameters
    prefix: str  # of their names
    emission: "Emission"
    alike: bool = False  # whether it is the same in all states; its parameters then have a state axis of length one
    shared: tuple[str, ...] = ()  # parameters and hyperparameters that all parts share, whose names have no prefix
    columns: tuple[int, ...] | None = None  # of the inputs in a row that it reads; None: the whole row is its own

    def own(self, values: Parameters) -> Parameters:
        """The entries of this part from a model's values or hyperparameters, under their names without the prefix."""
        return with_prefix(values, self.prefix) | {name: values[name] for name in self.shared if name in values}

    def rows(self, x: Float[Tensor, "*n R"]) -> Float[Tensor, "*n S"]:
        """The rows of this part, from those of all parts."""
        if self.columns is None:
            return x
        n = self.emission.n_features
        read = [x[..., :n], x[..., [n + column for column in self.columns]]]
        return torch.cat([*read, x[..., -1:]] if self.emission.reads_subjects else read, -1)


@dataclass(frozen=True, repr=False)
class Maximized(Record):
    """Parameters after an M-step; see `Emission.collapsed` for states that could not be estimated."""

    values: Parameters


class Emission(Named, ABC):
    """The base class of emissions: the distribution of one observation given its state.

    A subclass is a frozen dataclass whose fields are its arguments, so models with it can be stored. An emission that
    differs between redrawn and held steps is a `Gated` of two.

    Attributes:
        n_features: F, the length of one observation.
        parameters: by name; the first of their axes is "state", or "shared" (of length one) for one that all states
            share.
        inputs: the inputs that it reads, by name or number.
        order: the number of earlier observations that it reads.
        support: the set of possible observations.
        expects: the same as text, for error messages.
        instead: emissions that take other observations, for error messages.

    Arguments of methods:
        x, rows: observations `[N, F]`, one a row, with inputs and lags beside them if the emission reads some. NaN is
            missing.
        values: parameters by name, `[*r, K, ...]`.
        prior: hyperparameters by name; None: maximum likelihood.
        n_states: K.
        weights: `[*r, N, K]`, the posterior weight of each row in each state.
        sums: what `sums` returned.
        near: parameters from which a maximum is sought.
        floor: `[F]`; variances at or below this count as collapsed.
        fixed: the parameters that keep their values.
        inputs: `[*n, C]`, of each step.
        columns: `[*n, C]`, what stands beside observations.
        subjects: `[*n]`, the number of the subject of each step.
        state, redraw: the state and the gate of each step.
        feature: the number of a feature, from 0.
        table: values or hyperparameters by name.
        unit, about, by: `[F]`, of each feature: another unit, another origin, a shift.
        center, scale: `[F]`, the middle and the spread of the data.
        mean, means, variance: moments of each feature in each state.
        expected: expectations of `averages`, or means.
        least: the least variance of each feature.
        p: a probability.
        like: a tensor of the dtype and the device of the results.
        part: takes a part of the steps from a table; or a part of the parameters by name.
        change: maps a part of the emission to another.
        fresh, held: posterior weights of redrawn and of held steps.
        statistics, eta, message: as in `Conjugate`.

    See Also:
        `ConjugateEmission`, for emissions with a conjugate prior; `Parameter`, which describes parameters;
        docs/guides/own_emission.md.

    Example:
        `docs/guides/own_emission.md` writes an emission, and fits it. Methods of every emission:

        >>> import samplehold as sh
        >>> emission = sh.Poisson(n_features=1)
        >>> values = emission.check_values({"rate": torch.tensor([[1.0], [9.0]])}, n_states=2)
        >>> emission.log_likelihood(torch.tensor([[0.0], [8.0]]), values).redrawn.argmax(-1)
        tensor([0, 1])
    """

    n_features: int = 1
    inputs: Inputs = 0
    order: int = 0
    parameters: Mapping[str, Parameter] = {}
    support: constraints.Constraint = constraints.real
    expects: str = "finite numbers"
    instead: str = ""
    prior: Any = None
    """Priors of some parameters, distributions of Pyro by name: see `user_priors`. A field of an emission that takes
    them."""
    column_names: tuple[str, ...] = ()
    """The names of the columns, if the emission names them."""
    have_unit: ClassVar[bool] = False
    """Whether `in_units` describes the effect of another unit on the parameters, and "loc" moves with the origin."""

    reads_subjects: bool = False
    """Whether rows have the number of a subject at their end: see `by_subject`."""

    aligned: ClassVar[bool] = False
    """Whether moments take observations `[*s, N, F]` with axes that are the last of the parameters' leading axes."""

    normal: ClassVar[bool] = False
    """Whether each feature is normal, given the state."""

    angular: ClassVar[bool] = False
    """Whether features are angles from -pi to pi."""

    takes_noise: ClassVar[bool] = False
    """Whether rows of observations may have the known variances of their noise beside them, `[N, 2 F]`."""

    adds_up: bool = False
    """Whether an M-step needs only `sums` over the data, which `maximize_sums` takes."""

    def __post_init__(self, *_: Any) -> None:
        n_features = check_integer("n_features", self.n_features)
        if n_features is not self.n_features:
            object.__setattr__(self, "n_features", n_features)
        if self.prior is not None:
            read_priors(self.prior, self.parameters, self.name)

    def __repr__(self) -> str:
        known = getattr(self, "__dataclass_fields__", {}).values()
        shown = {f.name: getattr(self, f.name) for f in known if f.repr}
        parts = [f"{name}={value!r}" for name, value in shown.items() if value is not None]
        return f"{self.name}({', '.join([*parts, *filter(None, [as_text(self.prior)])])})"

    # ---- what a subclass writes ------------------------------------------------------------------------------------

    @abstractmethod
    def log_prob(self, x: Float[Tensor, "*#n F"], values: Parameters) -> Float[Tensor, "*n"]:
        """log p(x | parameters), where parameters broadcast against x; a NaN feature is marginalised."""

    @abstractmethod
    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        """The Pyro distribution of a whole observation, with the batch of the parameters and event [F]."""

    @abstractmethod
    def default_prior(self, n_states: int, x: Float[Tensor, "N F"] | None) -> Parameters:
        """Hyperparameters of a weak prior, scaled to the observations x (of unit scale without x)."""

    def priors(self, prior: Parameters) -> Mapping[str, TorchDistributionMixin]:
        """The prior of each parameter, a distribution whose event is the whole table."""
        raise TypeError(f"{self.name}: has no priors; define `priors(prior)`, a Pyro distribution for each parameter.")

    # ---- what it may write better ----------------------------------------------------------------------------------

    def table(self, x: Float[Tensor, "*b T F"], values: Parameters) -> Float[Tensor, "*rb T K"]:
        """log p(x_t | s) of every step and state."""
        wide = {n: widened(values[n], len(p.dims), x.ndim - 1) for n, p in self.parameters.items()}
        return self.log_prob(x.unsqueeze(-2), wide)

    def in_a_row(self, first: int, end: int, values: Parameters) -> Float[Tensor, "*r K n"]:
        """log p of the counts from `first` to before `end` in every state, for a law of one count."""
        like = next(iter(values.values()))
        return self.table(torch.arange(first, end).to(like).unsqueeze(-1), values).mT

    def moments(self, values: Parameters) -> tuple[Float[Tensor, "*r K F"], Float[Tensor, "*r K F"]]:
        """Mean and variance of each feature in each state."""
        distribution, like = self.distribution(values), next(iter(values.values()))
        return distribution.mean.to(like), distribution.variance.to(like)

    def narrowness(self, values: Parameters) -> Float[Tensor, "*r K F"]:
        """The variance of each feature in each state that falls to 0 where the state sits on a single point; infinite
        if the likelihood is bounded."""
        variance = self.moments(values)[1]
        return torch.full_like(variance, torch.inf) if self.support.is_discrete else variance

    def collapsed(self, values: Parameters, floor: Float[Tensor, "F"]) -> Bool[Tensor, "*r K"]:
        """The states that have collapsed onto a single point or a plane, where the likelihood is unbounded.

        The variance of a feature, or of a sum of features, given inputs and lags, is at most `NEAR_FLOOR` times its
        floor.

        Arguments:
            values: the parameters, `[*r, K, ...]`.
            floor: the smallest variance of each feature.
        """
        return (self.narrowness(values) <= NEAR_FLOOR * floor).any(-1)

    def collapsed_parts(self, values: Parameters, floor: Float[Tensor, "F"]) -> Bool[Tensor, "*r K"]:
        """The states that have collapsed in some part, from a model's values."""
        parts = [part for part in self.parts if not part.alike]
        return torch.stack([part.emission.collapsed(part.own(values), floor) for part in parts]).any(0)

    def marginal_cdf(self, x: Float[Tensor, "*#n F"], values: Parameters) -> Float[Tensor, "*n F"]:
        """P(x_f <= x) of each feature separately, under parameters that broadcast against x.

        Raises:
            ValueError: the distribution has no density at some x, although `support` contains it.
        """
        low, high = self.ends(x)
        inside = x.clamp(low, high)
        with dist.validation_enabled(False):  # in a far tail, a transformed number may round to an end of its range
            distribution: Any = self.distribution(values)
            marginal = getattr(distribution, "base_dist", distribution)
            below = marginal.cdf(inside)
            wrong = ~marginal.support.check(inside) & (inside > low) & (inside < high)
        if bool(wrong.any()):
            raise ValueError(
                f"{self.name}.distribution: got {float(inside.expand_as(wrong)[wrong][0]):g}, outside its support; let "
                f"`{self.name}.support` be the support of the observations, as a constraint of torch."
            )
        return torch.where(x < low, 0.0, below)

    def ends(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The ends of the support, one of each feature or of all; infinite where there is none."""
        support, none = self.support, torch.inf
        ends = getattr(support, "lower_bound", -none), getattr(support, "upper_bound", none)
        return torch.as_tensor(ends[0]).to(like), torch.as_tensor(ends[1]).to(like)

    def in_units(self, table: Parameters, unit: Float[Tensor, "F"]) -> Parameters:
        """Values or hyperparameters of x, converted to those of x / unit, if observations `have_unit`."""
        return table

    def embed(self, x: Float[Tensor, "N F"]) -> Float[Tensor, "N E"]:
        """Coordinates in which similar observations are near, for k-means starts; x has no missing values."""
        return x

    def maximize(
        self,
        x: Float[Tensor, "N R"],
        weights: Float[Tensor, "*r N K"],
        near: Parameters,
        prior: Parameters | None,
        floor: Float[Tensor, "F"],
    ) -> Maximized:
        """Better parameters under the posterior weights of each step's state.

        If the emission `adds_up`, they come from its `sums`. Otherwise BFGS increases the expected log-likelihood plus
        the log prior from `near`, and never lowers it.

        Arguments:
            near: parameters `[*r, K, ...]` to start from.
            prior: None for maximum likelihood.
            floor: variances at or below this count as collapsed.
        """
        if self.adds_up:
            return self.maximize_sums(self.sums(x, weights, near), near, prior, floor)
        return self.maximize_beside({}, x, weights, near, prior, floor)

    def sums(self, x: Float[Tensor, "N R"], weights: Float[Tensor, "*r N K"], near: Parameters) -> Parameters:
        """Sums over weighted observations `[*r, ...]`, by name. Those of parts of the data add up.

        Arguments:
            near: the parameters of the last M-step, about which they may be taken.
        """
        raise TypeError(f"{self.name}: its M-step needs all observations; use `maximize`.")

    def maximize_sums(
        self, sums: Parameters, near: Parameters, prior: Parameters | None, floor: Float[Tensor, "F"]
    ) -> Maximized:
        """`maximize` from the sums of all observations."""
        raise TypeError(f"{self.name}: its M-step needs all observations; use `maximize`.")

    def maximize_beside(
        self,
        fixed: Parameters,
        x: Float[Tensor, "N R"],
        weights: Float[Tensor, "*r N K"],
        near: Parameters,
        prior: Parameters | None,
        floor: Float[Tensor, "F"],
    ) -> Maximized:
        """`maximize` by BFGS, with some of the parameters fixed: tables of these, NaN where entries are free."""
        sites = None if prior is None else known_sites(self.sites(prior), fixed, self.parameters)

        def objective(values: Parameters) -> Tensor:
            gained = torch.where(weights > 0, weights * self.table(x, values), 0.0).sum((-2, -1))
            return gained if sites is None else gained + log_prior(sites, values)

        supports = {name: parameter.support for name, parameter in self.parameters.items()}
        own = {name: near[name] for name in supports}
        return Maximized(ascend(objective, own, supports, self._spread_of(x, fixed), fixed))

    def _spread_of(self, x: Float[Tensor, "N R"], fixed: Collection[str]) -> dict[str, Tensor]:
        """The spread of the features, for real parameters of features: BFGS is slow where units differ much."""
        rows = x[..., : self.n_features]
        away = (rows - rows.nanmean(0)).square().nanmean(0).sqrt()
        unit = torch.where(away > 0, away, 1.0)
        real = {name: one for name, one in self.parameters.items() if one.support is constraints.real}
        dims = {name: one.dims for name, one in real.items() if name not in fixed}
        wide = {name: axes.index("feature") - len(axes) + 1 for name, axes in dims.items() if "feature" in axes}
        return {name: unit.reshape(-1, *[1] * -after) for name, after in wide.items()} if not self.have_unit else {}

    def maximize_parts(
        self,
        x: Float[Tensor, "N R"],
        weights: Sequence[Tensor],
        near: Parameters,
        prior: Parameters | None,
        floor: Float[Tensor, "F"],
        fixed: Parameters | None = None,
    ) -> Maximized:
        """`maximize` of all parts, under the names of a model. States without weight keep their values.

        Arguments:
            fixed: tables of the parameters that keep their values, NaN where entries are free.
        """
        weights_of = dict(zip((part.block for part in self.parts), weights, strict=True))

        def best(part: Part, begin: Parameters, part_prior: Parameters | None) -> Maximized:
            step = part.rows(x), weights_of[part.block], begin, part_prior, floor
            held = {name: table for name, table in part.own(fixed or {}).items() if name in part.emission.parameters}
            return part.emission.maximize_beside(held, *step) if held else part.emission.maximize(*step)

        return self._by_part(best, near, prior)

    def _by_part(
        self,
        best: Callable[[Part, Parameters, Parameters | None], Maximized],
        near: Parameters,
        prior: Parameters | None,
    ) -> Maximized:
        """The M-step of each part, from its own values and prior."""
        values: Parameters = {}
        for part in self.parts:
            begin = part.own(near)
            found = best(part, begin, None if prior is None else part.own(prior))
            values |= prefixed(kept(found.values, begin), part.prefix)
        return Maximized(values)

    def sums_of_parts(self, x: Float[Tensor, "N R"], weights: Sequence[Tensor], near: Parameters) -> Parameters:
        """`sums` of all parts, under names that begin with their blocks."""
        sums: Parameters = {}
        for part, part_weights in zip(self.parts, weights, strict=True):
            own = part.emission.sums(part.rows(x), part_weights, part.own(near))
            sums |= prefixed(own, f"{part.block}.")
        return sums

    def maximize_parts_sums(
        self, sums: Parameters, near: Parameters, prior: Parameters | None, floor: Float[Tensor, "F"]
    ) -> Maximized:
        """`maximize_parts` from the sums of all observations."""

        def best(part: Part, begin: Parameters, part_prior: Parameters | None) -> Maximized:
            return part.emission.maximize_sums(with_prefix(sums, f"{part.block}."), begin, part_prior, floor)

        return self._by_part(best, near, prior)

    @classmethod
    def sized_to(cls, x: Any) -> "Emission":
        """The emission of this class for observations `[N, F]` like x, with NaN where missing."""
        return cls(x.shape[-1])  # pyright: ignore[reportCallIssue] n_features is the first argument

    # ---- what follows ----------------------------------------------------------------------------------------------

    @property
    def sizes(self) -> dict[str, int]:
        """The lengths of the parameters' axes, except that of the states."""
        return {"feature": self.n_features, "feature_new": self.n_features}

    @cached_property
    def n_inputs(self) -> int:
        """C, the number of inputs."""
        return count_inputs(self.inputs)

    @property
    def inputs_of(self) -> dict[str, Inputs]:
        """The inputs along each axis of parameters, by the name of the axis."""
        return {}

    @property
    def responses(self) -> tuple[Response, ...]:
        """The parameters that respond to inputs."""
        return ()

    def arranged(self, x: Any) -> Any:
        """Observations in any form, with the columns of frames in the order of `column_names`."""
        return x

    @property
    def whole(self) -> bool | Bool[Tensor, "F"]:
        """Whether features are whole numbers."""
        return bool(self.support.is_discrete)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The emissions of redrawn and of held steps if these differ; otherwise only itself."""
        return (Part("emission", "", self),)

    @property
    def joined(self) -> Conjugate | None:
        """The block of the parameters of all parts, if they share some; None: each part has a block."""
        return None

    def check(self, x: Float[Tensor, "*b T F"], names: Sequence[str] | None = None, first: int = 0) -> None:
        """Raise ValueError with the place if x is outside the support.

        Arguments:
            names: of the columns of the whole observation.
            first: the number of the first column of x among these.
        """
        if self.support is constraints.real:  # infinite numbers are refused for all
            return
        good = self.support.check(x)
        if bool(good.all()):
            return
        bad = ~(good | x.isnan())
        if bool(bad.any()):
            where = torch.nonzero(bad)[0].tolist()
            got, column = float(x[tuple(where)]), first + where[-1]
            there = torch.nn.functional.pad(bad, (first, 0))
            called = f" ({names[column]})" if names else ""
            instead = f" {self.instead}." if self.instead else ""
            raise ValueError(
                f"x: got {got:g} at {place(there)}{called}; expected {self.expects} ({self.name}).{instead}"
            )

    def doubts(self, rows: Float[Tensor, "N F"], names: Sequence[str], first: int = 0) -> Iterator[str]:
        """Sentences about features that hardly come from such an emission.

        Arguments:
            names: of the columns of the whole observation.
            first: the number of the first column of the rows among these.
        """
        yield from ()

    def check_values(self, values: Parameters, n_states: int) -> Parameters:
        """Return the parameters under their names; raise ValueError if they are not valid."""
        sizes = {"state": n_states} | dict.fromkeys(SINGLE, 1) | self.sizes
        return check_parameters(self.parameters, values, sizes, self.name)

    def start(self, prior: Parameters) -> Parameters:
        """Typical parameters under a prior, equal in all states, as the start of a first M-step."""
        values = {}
        for site in self.sites(prior):
            distribution = site.distribution(values)
            try:
                mean = distribution.mean
            except NotImplementedError:
                mean = next(iter(prior.values())).new_full(distribution.event_shape, torch.nan)
            if not bool(mean.isfinite().all()):
                to_support = free_coordinates(self.parameters[site.name].support)
                mean = to_support(mean.new_zeros(to_support.inverse_shape(mean.shape)))
            values[site.name] = mean
        return values

    def log_likelihood(self, x: Float[Tensor, "*b T F"], values: Parameters) -> ByGate:
        """log p(x_t | s, z_t): `[*r, *b, T, K]` for redrawn steps, and the same or `[*r, *b, T, 1]` for held ones."""
        table = self.table(x, values)
        return ByGate(table, table)

    def mean(self, values: Parameters) -> ByGate:
        """Mean of each feature in each state: `[*r, K, F]` (held: the same or `[*r, 1, F]`)."""
        means = [part.emission.moments(part.own(values))[0] for part in self.parts]
        return ByGate(means[0], means[-1])

    def averages(self, values: Parameters) -> ByGate:
        """The numbers of each state `[*r, K, E]` whose expectation over states gives the `center` of a mixture: means;
        of angles, two for each direction."""
        return self.mean(values)

    def center(self, expected: Float[Tensor, "*n E"]) -> Float[Tensor, "*n F"]:
        """The mean of a mixture from expected `averages` or means."""
        return expected

    def away(self, mean: Float[Tensor, "*#n F"], center: Float[Tensor, "*#n F"]) -> Float[Tensor, "*n F"]:
        """The distances of means from a center."""
        return mean - center

    def reach(self, values: Parameters, p: float) -> tuple[ByGate, ByGate]:
        """Lower and upper bounds of the p-quantile of each feature in each state: Chebyshev's."""
        mean, variance = self.mean(values), self.variance(values)
        wide = ByGate(*((table / min(p, 1 - p)).sqrt() for table in variance))
        pairs = list(zip(mean, wide, strict=True))
        return ByGate(*(m - w for m, w in pairs)), ByGate(*(m + w for m, w in pairs))

    def cdf(self, x: Float[Tensor, "*#n F"], values: Parameters) -> ByGate:
        """P(x_f <= x) of each feature separately, in each state."""
        tables = [part.emission.marginal_cdf(x, part.own(values)) for part in self.parts]
        return ByGate(tables[0], tables[-1])

    def of_feature(self, feature: int, values: Parameters) -> tuple["Emission", Parameters, int]:
        """The emission of a feature, its values, and the number of the feature there."""
        return self, values, feature

    def category_probs(self, values: Parameters) -> ByGate:
        """P(category) in each state `[*r, K, C]`, for categorical observations."""
        if "category" not in self.sizes:
            raise TypeError(f"emission: {self.name} observations have no categories.")
        tables = [part.own(values)["probs"] for part in self.parts]
        return ByGate(tables[0], tables[-1])

    def variance(self, values: Parameters) -> ByGate:
        """Variance of each feature in each state, shaped as `mean`."""
        variances = [part.emission.moments(part.own(values))[1] for part in self.parts]
        return ByGate(variances[0], variances[-1])

    def unknown(self, columns: Float[Tensor, "*n C"]) -> Bool[Tensor, "*n F"]:
        """The features whose lags, among the columns beside an observation, are missing."""
        return torch.zeros_like(columns[..., :1], dtype=torch.bool).expand(*columns.shape[:-1], self.n_features)

    def beside(self, inputs: Float[Tensor, "*n C"]) -> "Emission":
        """The emission at steps with these inputs, if it reads any: see `driven`."""
        return self

    def mapped(self, change: Callable[["Emission"], "Emission"]) -> "Emission":
        """The emission with a change of each of its parts."""
        return change(self)

    def at_subjects(self, subjects: Int[Tensor, "*n"]) -> "Emission":
        """The emission at steps of these subjects, if its parameters differ between subjects."""
        return self

    def shifted(self, table: Parameters, by: Float[Tensor, "F"]) -> Parameters:
        """Values or hyperparameters of x, converted to those of x + by, if observations `have_unit`."""
        return moved(table, by)

    def units(
        self, center: Float[Tensor, "F"], scale: Float[Tensor, "F"], fixed: Collection[str]
    ) -> tuple[Float[Tensor, "F"], Float[Tensor, "F"]]:
        """The origin and the unit of each feature in a fit, for data with this center and scale, 0 where constant."""
        movable = self.have_unit and self.shifts(fixed)
        origin = center if movable else torch.zeros_like(center)
        return origin, torch.where(scale > 0, scale, 1.0) if self.have_unit else torch.ones_like(scale)

    def shifts(self, fixed: Collection[str]) -> bool:
        """Whether parameters of x + a have the same form as those of x, if these parameters are fixed."""
        return True

    def check_fitted(self, values: Parameters, rows: Float[Tensor, "N R"]) -> None:
        """Warn of values of maximum likelihood that are no estimates."""

    def cut(self, part: Callable[[Tensor], Tensor]) -> "Emission":
        """The emission at a part of the steps `[*b, T]` that it knows the inputs of."""
        return self

    def log_prob_at(self, x: Tensor, values: Parameters, state: Tensor, redraw: Tensor) -> Tensor:
        """log p(x | s, z) at given states and gates, which broadcast against the batch axes of x."""
        here = [(part, part.emission.at_states(part.own(values), state)) for part in self.parts]
        densities = [part.emission.log_prob(part.rows(x), parameters) for part, parameters in here]
        return densities[0] if len(densities) == 1 else torch.where(redraw.bool(), *densities)

    def sample_at(self, values: Parameters, state: Tensor, redraw: Tensor) -> Tensor:
        """One observation for each of the given states and gates: `[*batch, F]`."""
        like = next(iter(values.values()))
        if not state.numel():  # some of torch's distributions reject empty batches
            return like.new_zeros(*state.shape, self.n_features)
        here = [(part.emission, part.emission.at_states(part.own(values), state)) for part in self.parts]
        draws = [emission.distribution(parameters).sample().to(like) for emission, parameters in here]
        return draws[0] if len(draws) == 1 else torch.where(redraw.bool().unsqueeze(-1), *draws)

    def at_states(self, values: Parameters, state: Tensor) -> Parameters:
        """The parameters of given states: `[K, ...]` indexed by `[*batch]` gives `[*batch, ...]`.

        A background or a shared parameter has one row; a mixture over draws of the parameters has a row for each draw.
        """
        return {name: values[name][state.clamp(max=len(values[name]) - 1)] for name in self.parameters}

    def weights(self, fresh: Float[Tensor, "*n K"], held: Float[Tensor, "*n H"] | None) -> list[Tensor]:
        """The posterior weights of each part, from those of redrawn and of held steps."""
        if len(self.parts) == 1:
            return [fresh if held is None else fresh + held]
        assert held is not None  # an emission with two parts has copy dynamics
        return [fresh, held.sum(-1, keepdim=True) if self.parts[1].alike else held]

    # ---- priors ------------------------------------------------------------------------------------------------------

    def sites(self, prior: Parameters) -> list[Site]:
        """The parameters' prior as Pyro sites."""
        distributions = self.priors(prior)
        sites = [Site(name, lambda values, name=name: distributions[name]) for name in self.parameters]
        if not self.user_priors:
            return sites
        like = next(iter(prior.values()))
        typical = {name: like.new_zeros(prior_of.event_shape) for name, prior_of in distributions.items()}
        return self._with_user_priors(sites, prior, typical)

    @property
    def user_priors(self) -> dict[str, UserPrior]:
        """The user's priors, by parameter."""
        return read_priors(self.prior, self.parameters, self.name) if isinstance(self.prior, Mapping) else {}

    not_conjugate: str = ""
    """What keeps message passing from this emission, in words."""

    @property
    def is_conjugate(self) -> bool:
        """Whether all priors are of one exponential family, as message passing and closed M-steps need."""
        return False

    def with_user_priors(self, prior: Mapping[str, Any]) -> "Emission":
        """The same emission with these priors, beside those that it has of other parameters.

        Arguments:
            prior: distributions of Pyro by name of a parameter.
        """
        known, changed = self.prior if isinstance(self.prior, Mapping) else {}, cast(Any, self)
        if "prior" not in getattr(self, "__dataclass_fields__", {}):
            raise ValueError(
                f"prior: got distributions of {', '.join(sorted(prior))}, but {self.name} supports none; give the "
                "hyperparameters of `model.prior`, or write them into the `priors` of your own emission."
            )
        return cast(Emission, replace(changed, prior=merged(known, prior, self.parameters)))

    def in_fit_units(self, about: Tensor, unit: Tensor) -> "Emission":
        """The emission for values of (x - about) / unit, with the user's priors converted."""
        if not self.user_priors or not self.have_unit:
            return self
        converted = copy(self)
        object.__setattr__(converted, "_units", (about, unit))
        return converted

    def prior_scaled(self, n_states: int, x: Float[Tensor, "N F"] | None) -> Parameters:
        """`default_prior` with the hyperparameters of user priors that have its form."""
        prior = self.default_prior(n_states, x)
        for one in self.user_priors.values():
            prior = prior | hyperparameters(one, prior)
        return prior

    def _with_user_priors(self, sites: list[Site], prior: Parameters, typical: Parameters) -> list[Site]:
        """Sites with the user's priors in their places; `typical` values have the shapes of tables."""
        chosen = {name: one for name, one in self.user_priors.items() if not one.numbers(prior)}
        about, unit = vars(self).get("_units", (None, None))

        def replaced(name: str) -> Site:
            one = torch.ones_like(typical[name])
            factor = None if unit is None else self.in_units({name: one}, unit.to(one))[name]
            return chosen[name].site(one, factor, about.to(one) if name == "loc" and about is not None else None)

        return [replaced(site.name) if site.name in chosen else site for site in sites]


def check_no_inputs(argument: str, emission: Emission) -> None:
    """Raise ValueError if an emission reads inputs or earlier observations."""
    if emission.n_inputs or emission.order:
        reads = "lags" if emission.order else "inputs"
        raise ValueError(
            f"{argument}: got {emission!r}, but only a SwitchingSSM of one emission supports {reads} there; use "
            "SwitchingSSM(dynamics, emission), whose gate or transitions may have inputs too, as Copy(2, inputs=[...])."
        )
