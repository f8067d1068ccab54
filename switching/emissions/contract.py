r"""What an emission is: $p(x_t \mid s_t, z_t)$, its prior, and its M-step.

An emission is a stateless description. Its parameters live in a dictionary of tensors `[*r, K, ...]`, where `*r` are
restarts or posterior draws, and its prior in another, so one description serves the Pyro program, EM over many restarts
at once, and message passing. A subclass of `Emission` says

    parameters      their names, axes and supports
    log_prob        log p(x | parameters), feature values that are NaN marginalised
    distribution    the same as a Pyro distribution
    default_prior   hyperparameters, scaled to data
    priors          Pyro distributions with these hyperparameters

and fits by EM (the M-step climbs along the gradient), by SVI and by NUTS. A `ConjugateEmission` says instead of the
last how its prior is a member of an exponential `family` of which the data's `message` moves the natural parameters;
its M-step is exact, and it fits by message passing too. See `priors.Conjugate`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ...inference.numerics.op import Variants
from ...inference.numerics.records import Record
from ...inference.numerics.remembered import remembered
from ...inference.numerics.scalars import check_integer
from ..data.series import place
from ..parameters import Named, Parameter, Parameters, check_parameters, moved, widened, with_prefix
from ..priors import Conjugate, Site, log_prior
from .ascent import ascend


class ByGate(NamedTuple):
    """A quantity of redrawn steps and of held ones; the same tensor where the two do not differ."""

    redrawn: Tensor
    held: Tensor


class Part(NamedTuple):
    """An emission of single states in a model: the block of its parameters, and the prefix of their names."""

    block: str
    prefix: str
    emission: "Emission"

    def own(self, values: Parameters) -> Parameters:
        """Its own of a model's values or hyperparameters, under their own names."""
        return with_prefix(values, self.prefix)


@dataclass(frozen=True, repr=False)
class Maximized(Record):
    """Parameters after an M-step, and the states that could not be estimated."""

    values: Parameters
    collapsed: Bool[Tensor, "*r K"]  # a variance fell to its floor: the state sits on a single point


class Emission(Named, ABC):
    """The distribution of one observation given its state; see the module's docstring.

    A subclass is a frozen dataclass whose fields are its arguments, so that models with it can be stored. One that
    differs between redrawn and held steps is put together from two by `Gated`.

    Attributes:
        n_features: F, the length of one observation.
        parameters: by name; the first of their axes is "state".
        support: where observations lie.
        expects: the same in words, for messages.

    Example:
        `docs/own_emission.md` writes one, and fits it. What every emission does:

        >>> import samplehold as sh
        >>> emission = sh.Poisson(n_features=1)
        >>> values = emission.check_values({"rate": torch.tensor([[1.0], [9.0]])}, n_states=2)
        >>> emission.log_likelihood(torch.tensor([[0.0], [8.0]]), values).redrawn.argmax(-1)
        tensor([0, 1])
    """

    n_features: int = 1
    parameters: Mapping[str, Parameter] = {}
    support: constraints.Constraint = constraints.real
    expects: str = "finite numbers"
    have_unit: ClassVar[bool] = False
    """Whether `in_units` says what another unit does to the parameters, and "loc" is what another origin moves."""

    def __post_init__(self) -> None:
        n_features = check_integer("n_features", self.n_features)
        if n_features is not self.n_features:
            object.__setattr__(self, "n_features", n_features)

    # ---- what a subclass writes ------------------------------------------------------------------------------------

    @abstractmethod
    def log_prob(self, x: Float[Tensor, "*#n F"], values: Parameters) -> Float[Tensor, "*n"]:
        """log p(x | parameters), which broadcast against x; a NaN feature is marginalised."""

    @abstractmethod
    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        """The Pyro distribution of a whole observation: batch as the parameters, event [F]."""

    @abstractmethod
    def default_prior(self, n_states: int, x: Float[Tensor, "N F"] | None) -> Parameters:
        """Hyperparameters of a weak prior, scaled to the observations x (unit scale without any)."""

    def priors(self, prior: Parameters) -> Mapping[str, TorchDistributionMixin]:
        """Of each parameter its prior, a distribution whose event is the whole table."""
        raise TypeError(f"{self.name}: has no priors; write `priors(prior)`, a Pyro distribution for each parameter.")

    # ---- what it may write better ----------------------------------------------------------------------------------

    def table(self, x: Float[Tensor, "*b T F"], values: Parameters) -> Float[Tensor, "*rb T K"]:
        """log p(x_t | s) of every step and state."""
        wide = {n: widened(values[n], len(p.dims), x.ndim - 1) for n, p in self.parameters.items()}
        return self.log_prob(x.unsqueeze(-2), wide)

    def moments(self, values: Parameters) -> tuple[Float[Tensor, "*r K F"], Float[Tensor, "*r K F"]]:
        """Mean and variance of each feature in each state."""
        found, like = self.distribution(values), next(iter(values.values()))
        return found.mean.to(like), found.variance.to(like)

    def marginal_cdf(self, x: Float[Tensor, "*#n F"], values: Parameters) -> Float[Tensor, "*n F"]:
        """P(x_f <= x) of each feature by itself, under parameters that broadcast against x."""
        found: Any = self.distribution(values)
        return getattr(found, "base_dist", found).cdf(x)

    def in_units(self, table: Parameters, unit: Float[Tensor, "F"]) -> Parameters:
        """Values or hyperparameters of x in those of x / unit, where observations `have_unit`."""
        return table

    def embed(self, x: Float[Tensor, "N F"]) -> Float[Tensor, "N E"]:
        """Coordinates in which near observations are alike, for k-means starts; x has no missing values."""
        return x

    def maximize(
        self,
        x: Float[Tensor, "N F"],
        weights: Float[Tensor, "*r N K"],
        near: Parameters,
        prior: Parameters | None,
        floor: Float[Tensor, "F"],
    ) -> Maximized:
        """Better parameters under the posterior weights of each step's state.

        The expected log-likelihood plus the log prior is raised by L-BFGS from `near`, never lowered.

        Arguments:
            near: parameters `[*r, K, ...]` to start from.
            prior: None for maximum likelihood.
            floor: variances at or below it count as collapsed.
        """

        return self.maximize_beside({}, x, weights, near, prior, floor)

    def maximize_beside(
        self,
        fixed: Parameters,
        x: Float[Tensor, "N F"],
        weights: Float[Tensor, "*r N K"],
        near: Parameters,
        prior: Parameters | None,
        floor: Float[Tensor, "F"],
    ) -> Maximized:
        """As `maximize` by L-BFGS, with some of the parameters held at their values `[*r, K, ...]`."""

        def objective(free: Parameters) -> Tensor:
            values = fixed | free
            gained = torch.where(weights > 0, weights * self.table(x, values), 0.0).sum((-2, -1))
            return gained if prior is None else gained + log_prior(self.sites(prior), values)

        free = {name: parameter.support for name, parameter in self.parameters.items() if name not in fixed}
        values = fixed | (ascend(objective, {name: near[name] for name in free}, free) if free else {})
        return Maximized(values, (self.moments(values)[1] <= floor).any(-1))

    @classmethod
    def sized_to(cls, x: Any) -> "Emission":
        """The emission of this kind for observations `[N, F]` like these, NaN where missing."""
        return cls(x.shape[-1])  # pyright: ignore[reportCallIssue] n_features is the first argument

    # ---- what follows ----------------------------------------------------------------------------------------------

    @property
    def sizes(self) -> dict[str, int]:
        """The lengths of the parameters' axes, but for that of the states."""
        return {"feature": self.n_features, "feature_new": self.n_features}

    @property
    def parts(self) -> tuple[Part, ...]:
        """The emissions of redrawn and of held steps, where these differ; otherwise only itself."""
        return (Part("emission", "", self),)

    def check(self, x: Float[Tensor, "*b T F"]) -> None:
        """Raise ValueError, naming the place, where x lies outside the support."""
        bad = ~self.support.check(x) & ~torch.isnan(x)
        if bool(bad.any()):
            got = float(x[tuple(torch.nonzero(bad)[0].tolist())])
            raise ValueError(f"x: got {got:g} at {place(bad)}; expected {self.expects} ({self.name}).")

    def check_values(self, values: Parameters, n_states: int) -> Parameters:
        """Return the parameters under their own names; raise ValueError where they are not valid."""
        sizes = {"state": n_states, "background": 1} | self.sizes
        return check_parameters(self.parameters, values, sizes, self.name)

    def sites(self, prior: Parameters) -> list[Site]:
        """The parameters' prior as Pyro sites."""
        distributions = self.priors(prior)
        return [Site(name, lambda values, name=name: distributions[name]) for name in self.parameters]

    def start(self, prior: Parameters) -> Parameters:
        """Typical parameters under a prior, the same in all states: what a first M-step starts from."""
        found = {}
        for site in self.sites(prior):
            mean = site.distribution(found).mean
            to_support = torch.distributions.biject_to(self.parameters[site.name].support)
            middle = to_support(mean.new_zeros(to_support.inverse_shape(mean.shape)))
            found[site.name] = mean if bool(mean.isfinite().all()) else middle
        return found

    def log_likelihood(self, x: Float[Tensor, "*b T F"], values: Parameters) -> ByGate:
        """log p(x_t | s, z_t): `[*r, *b, T, K]` for redrawn steps, and the same or `[*r, *b, T, 1]` for held ones."""
        tables = [part.emission.table(x, part.own(values)) for part in self.parts]
        return ByGate(tables[0], tables[-1])

    def mean(self, values: Parameters) -> ByGate:
        """Mean of each feature in each state: `[*r, K, F]` (held: the same or `[*r, 1, F]`)."""
        means = [part.emission.moments(part.own(values))[0] for part in self.parts]
        return ByGate(means[0], means[-1])

    def cdf(self, x: Float[Tensor, "*#n F"], values: Parameters) -> ByGate:
        """P(x_f <= x) of each feature by itself, in each state."""
        found = [part.emission.marginal_cdf(x, part.own(values)) for part in self.parts]
        return ByGate(found[0], found[-1])

    def category_probs(self, values: Parameters) -> ByGate:
        """P(category) in each state `[*r, K, C]`, of symbols."""
        if "category" not in self.sizes:
            raise TypeError(f"emission: {self.name} observations have no categories.")
        tables = [part.own(values)["probs"] for part in self.parts]
        return ByGate(tables[0], tables[-1])

    def variance(self, values: Parameters) -> ByGate:
        """Variance of each feature in each state, shaped as `mean`."""
        variances = [part.emission.moments(part.own(values))[1] for part in self.parts]
        return ByGate(variances[0], variances[-1])

    def log_prob_at(self, x: Tensor, values: Parameters, state: Tensor, redraw: Tensor) -> Tensor:
        """log p(x | s, z) at given states and gates, which broadcast against the batch axes of x."""
        found = [part.emission.log_prob(x, _at(part, values, state)) for part in self.parts]
        return found[0] if len(found) == 1 else torch.where(redraw.bool(), *found)

    def sample_at(self, values: Parameters, state: Tensor, redraw: Tensor) -> Tensor:
        """One observation for each of the given states and gates: `[*batch, F]`."""
        like = next(iter(values.values()))
        if not state.numel():  # which torch's distributions do not all take
            return like.new_zeros(*state.shape, self.n_features)
        found = [part.emission.distribution(_at(part, values, state)).sample().to(like) for part in self.parts]
        return found[0] if len(found) == 1 else torch.where(redraw.bool().unsqueeze(-1), *found)

    def weights(self, fresh: Float[Tensor, "*n K"], held: Float[Tensor, "*n H"] | None) -> list[Tensor]:
        """Of the posterior weights of redrawn and of held steps those that each part answers for."""
        if len(self.parts) == 1:
            return [fresh if held is None else fresh + held]
        assert held is not None  # what differs between the two has copy dynamics
        return [fresh, held.sum(-1, keepdim=True)]


def _at(part: Part, values: Parameters, state: Tensor) -> Parameters:
    """The parameters of given states: `[K, ...]` indexed by `[*batch]` gives `[*batch, ...]`.

    A background has one row, or in a mixture over draws of the parameters one for each of its states.
    """
    own = part.own(values)
    return {name: own[name][state.clamp(max=len(own[name]) - 1)] for name in part.emission.parameters}


class Representative(NamedTuple):
    r"""Parameters whose log-likelihood is an expected one: $E_q[\log p(x \mid \theta)] = \log p(x \mid \theta') + c$.

    `values` are $\theta'$ `[*r, K, ...]`; `constant` is c of each observed feature `[*r, K, F]`, or `[*r, K, 1]` of a
    whole step.
    """

    values: Parameters
    constant: Float[Tensor, "*r K C"]


class ConjugateEmission(Conjugate, Emission):
    """An emission whose prior is conjugate: see the module's docstring.

    A subclass writes `log_prob`, `distribution`, `default_prior`, `natural` (see `Conjugate`), `message` and
    `representative`, and names its `family`. Its parameters are in the order of the parts of the family's point.

    Example:
        The M-step is the mode of prior and weighted observations, here of a rate under a gamma prior:

        >>> import samplehold as sh
        >>> emission = sh.Poisson(n_features=1)
        >>> x, weights = torch.tensor([[3.0], [5.0]]), torch.ones(2, 1)
        >>> prior = {"shape": torch.tensor([[2.0]]), "rate": torch.tensor([[1.0]])}
        >>> emission.maximize(x, weights, emission.start(prior), prior, floor=torch.zeros(1)).values["rate"]
        tensor([[3.]])
    """

    fills_in: ClassVar[bool] = False
    """Whether missing features of a step are filled in under the parameters: its expected log-likelihood is then convex
    in their statistics, and linear only where no step misses single features."""

    @abstractmethod
    def message(
        self, x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"], near: Parameters | None = None
    ) -> Float[Tensor, "*plates P"]:
        """What the weighted observations add to the natural parameters.

        Arguments:
            near: parameters from whose location those in the message are counted, so that it loses no digits, and under
                which missing features are filled in. Without it, locations are counted from 0.
        """

    @abstractmethod
    def representative(self, statistics: Float[Tensor, "*plates P"]) -> Representative:
        """The parameters at which the log-likelihood is the expected one."""

    def maximize(
        self, x: Tensor, weights: Tensor, near: Parameters, prior: Parameters | None, floor: Tensor
    ) -> Maximized:
        """The mode of the prior and the weighted observations; without a prior the limit, variances above the floor.

        NaN where a state has no weight and no prior helps.
        """
        message, about = self.message(x, weights, near), near.get("loc")
        if prior is None:
            found = self.limit(message, floor)
        else:
            found = self._none_collapsed(self.mode(prior if about is None else moved(prior, -about), message))
        return found if about is None else replace(found, values=moved(found.values, about))

    def limit(self, message: Float[Tensor, "*plates P"], floor: Float[Tensor, "F"]) -> Maximized:
        """The greatest likelihood under the message alone, with variances of at least the floor."""
        return self._none_collapsed(self.mode(None, message))

    def start(self, prior: Parameters) -> Parameters:
        about = prior.get("loc")
        if about is None:
            return self.expected(self.natural(prior))
        return moved(self.expected(self.natural(moved(prior, -about))), about)

    def expected_table(
        self, x: Float[Tensor, "*b T F"], statistics: Float[Tensor, "*plates P"]
    ) -> Float[Tensor, "*rb T K"]:
        """E log p(x_t | s) of every step and state, what is missing of a step summed out."""
        values, constant = self.representative(statistics)
        table = self.table(x, values)
        add = table.add if table.requires_grad else table.add_  # a density may keep its values for the backward pass
        if is_complete(x):
            return add(widened(constant.sum(-1), 1, x.ndim - 1))
        seen = ~torch.isnan(x.reshape(-1, x.shape[-1]))
        seen = seen if constant.shape[-1] == x.shape[-1] else seen.any(-1, keepdim=True)
        total = seen.to(x) @ constant.mT
        return add(total.reshape(*total.shape[:-2], *x.shape[:-1], total.shape[-1]))

    def expected_message(
        self, x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"], statistics: Float[Tensor, "*plates P"]
    ) -> Float[Tensor, "*plates P"]:
        """The gradient of the weighted `expected_table` with respect to the statistics."""
        near = self.representative(statistics).values
        message = self.message(x, weights, near)
        return self.family.moved(message, near["loc"]) if "loc" in near else message

    def _none_collapsed(self, values: Parameters) -> Maximized:
        name, parameter = next(iter(self.parameters.items()))
        shape = values[name].shape[: values[name].ndim - len(parameter.dims) + 1]
        return Maximized(values, torch.zeros(shape, dtype=torch.bool, device=values[name].device))


is_complete = Variants(remembered(lambda x: not bool(torch.isnan(x).any())))
"""Whether nothing is missing."""


@is_complete.kernel("cpu")
def _is_complete(x: Tensor) -> bool:
    """In one pass; by numpy, since torch would wake its threads, which then stay awake."""
    return not np.isnan(x.detach().numpy().min(initial=0.0))
