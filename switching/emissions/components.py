r"""A mixture of components in each state, all of one family.

$$p(x \mid s) = \sum_c w_{sc}\, p(x \mid \theta_{sc})$$

The components of all states are K C states of the plain emission, so its tables, priors and M-step serve. An M-step
divides the weight of a state among its components by their posterior probabilities under the current parameters, and
the weights $w_s$ have Dirichlet priors. Components that start equal would stay equal. They start in parts of a state's
observations, cut along its principal axis.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyro.distributions as dist
import torch
from jaxtyping import Float
from pyro.distributions import TorchDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ...inference.numerics.delegation import delegated
from ...inference.numerics.scalars import check_integer
from ..parameters import Parameter, Parameters
from ..priors import Site
from ..user_priors import support_of
from .contract import ByGate, Emission, Maximized, check_no_inputs

WEIGHTS, CONCENTRATION = "component_probs", "component_concentration"
CUT = 0.9  # the share of an observation that goes to the component of its part at first


@dataclass(frozen=True, repr=False)
class Mixture(Emission):
    """A mixture of n components of one emission in each state, as in a mixture of Gaussians.

    Parameters are those of the emission with an axis of components after that of states, such as `loc [K, n, F]`, and
    `component_probs [K, n]`. EM, SVI and NUTS fit it; message passing does not support it. The order of the components
    of a state has no meaning.

    Arguments:
        emission: such as `Normal(F)` or `MultivariateNormal(F)`, with parameters for each state.
        n: the number of components.

    Raises:
        TypeError: something else than an emission of this kind; a number that is not an integer.
        ValueError: no components.

    See Also:
        `Normal`, of one component; `StudentT`, for heavy tails; docs/guides/emissions.md, a table of all emissions.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Markov(n_states=2), sh.Mixture(sh.Normal(), n=2))
        >>> fit = model.fit([0.1, 3.0, 0.2, 2.9, 0.0, 9.1, 7.2, 9.0, 7.1, 9.2], restarts=2, progress=False)
        >>> fit.model.values["loc"].shape
        torch.Size([2, 2, 1])
    """

    emission: Emission
    n: int

    def __post_init__(self, *_: Any) -> None:
        emission = self.emission
        if not isinstance(emission, Emission) or len(emission.parts) > 1:
            raise TypeError(
                f"emission: got {type(emission).__name__}, expected an emission such as Normal(n_features)."
            )
        check_no_inputs("emission", emission)
        if isinstance(emission, Mixture) or any(p.dims[0] != "state" for p in emission.parameters.values()):
            raise TypeError(f"emission: got {emission!r}, expected one with parameters of its own in each state.")
        check_integer("n", self.n)
        super().__post_init__()

    n_features = delegated("emission")
    support = delegated("emission")
    expects = delegated("emission")
    instead = delegated("emission")
    have_unit = delegated("emission")
    shifts = delegated("emission")
    units = delegated("emission")
    whole = delegated("emission")
    embed = delegated("emission")
    check = delegated("emission")
    arranged = delegated("emission")
    column_names = delegated("emission")
    in_units = delegated("emission")
    shifted = delegated("emission")

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        """The axes, support and displayed form of each parameter."""
        inner = {
            name: Parameter(("state", "component", *p.dims[1:]), p.support, p.shown)
            for name, p in self.emission.parameters.items()
        }
        return inner | {WEIGHTS: Parameter(("state", "component"), constraints.simplex)}

    @property
    def sizes(self) -> dict[str, int]:
        return self.emission.sizes | {"component": self.n}

    def _flat(self, values: Mapping[str, Tensor]) -> Parameters:
        """Parameters `[*r, K, n, ...]` of the emission as those of K n states."""
        known = self.emission.parameters
        return {name: values[name].flatten(-1 - len(p.dims), -len(p.dims)) for name, p in known.items()}

    def _split(self, values: Parameters) -> Parameters:
        known = self.emission.parameters
        return {name: values[name].unflatten(-len(p.dims), (-1, self.n)) for name, p in known.items()}

    # ---- the density -------------------------------------------------------------------------------------------------

    def _tables(self, x: Float[Tensor, "*b T F"], values: Parameters) -> Float[Tensor, "*rb T K n"]:
        """The log joint density of each step and component."""
        table = self.emission.table(x, self._flat(values)).unflatten(-1, (-1, self.n))
        log_weights = values[WEIGHTS].log()
        lead = log_weights.shape[:-2]
        return table + log_weights.reshape(*lead, *[1] * (table.ndim - len(lead) - 2), *log_weights.shape[-2:])

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        return self._tables(x, values).logsumexp(-1)

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        each = self.emission.log_prob(x.unsqueeze(-2), {name: values[name] for name in self.emission.parameters})
        return (each + values[WEIGHTS].log()).logsumexp(-1)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        inner: Any = self.emission.distribution({name: values[name] for name in self.emission.parameters})
        weights: Any = dist.Categorical(probs=values[WEIGHTS])
        return dist.MixtureSameFamily(weights, inner, validate_args=False)

    def moments(self, values: Parameters) -> tuple[Tensor, Tensor]:
        mean, variance = (table.unflatten(-2, (-1, self.n)) for table in self.emission.moments(self._flat(values)))
        weights = values[WEIGHTS].unsqueeze(-1)
        center = (weights * mean).sum(-2)
        return center, (weights * (variance + (mean - center.unsqueeze(-2)).square())).sum(-2)

    def narrowness(self, values: Parameters) -> Tensor:
        """That of the narrowest component."""
        return self.emission.narrowness(self._flat(values)).unflatten(-2, (-1, self.n)).amin(-2)

    def collapsed(self, values: Parameters, floor: Tensor) -> Tensor:
        return self.emission.collapsed(self._flat(values), floor).unflatten(-1, (-1, self.n)).any(-1)

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        each = self.emission.marginal_cdf(x.unsqueeze(-2), {name: values[name] for name in self.emission.parameters})
        return (values[WEIGHTS].unsqueeze(-1) * each).sum(-2)

    def reach(self, values: Parameters, p: float) -> tuple[ByGate, ByGate]:
        ends = (end.redrawn.unflatten(-2, (-1, self.n)) for end in self.emission.reach(self._flat(values), p))
        low, high = next(ends).amin(-2), next(ends).amax(-2)
        return ByGate(low, low), ByGate(high, high)

    # ---- the prior ---------------------------------------------------------------------------------------------------

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """That of the emission for each component, and one observation more in each."""
        prior = self.emission.prior_scaled(n_states * self.n, x)
        apart = {name: table.unflatten(0, (n_states, self.n)) for name, table in prior.items()}
        like = next(iter(prior.values()))
        return apart | {CONCENTRATION: like.new_full((n_states, self.n), 2.0)}

    def _prior_of_each(self, prior: Parameters) -> Parameters:
        return {name: prior[name].flatten(0, 1) for name in self._hyperparameters}

    @cached_property
    def _hyperparameters(self) -> tuple[str, ...]:
        return tuple(self.emission.default_prior(1, None))

    def start(self, prior: Parameters) -> Parameters:
        concentration = prior[CONCENTRATION]
        weights = concentration / concentration.sum(-1, keepdim=True)
        return self._split(self.emission.start(self._prior_of_each(prior))) | {WEIGHTS: weights}

    def sites(self, prior: Parameters) -> list[Site]:
        weights: Any = dist.Dirichlet(prior[CONCENTRATION]).to_event(1)
        sites = [self._site(site) for site in self.emission.sites(self._prior_of_each(prior))]
        return [*sites, Site(WEIGHTS, lambda values: weights)]

    def _site(self, site: Site) -> Site:
        """The prior of a parameter of K n states, as that of components."""
        known = self.emission.parameters

        def flat(values: Parameters) -> Parameters:
            return {n: v.flatten(-1 - len(known[n].dims), -len(known[n].dims)) for n, v in values.items() if n in known}

        return site.reading(flat)._replace(distribution=lambda values: _Apart(site.distribution(flat(values)), self.n))

    def with_user_priors(self, prior: Mapping[str, Any]) -> "Mixture":
        return Mixture(self.emission.with_user_priors(prior), self.n)

    def in_fit_units(self, about: Tensor, unit: Tensor) -> "Mixture":
        emission = self.emission.in_fit_units(about, unit)
        return self if emission is self.emission else Mixture(emission, self.n)

    # ---- the M-step --------------------------------------------------------------------------------------------------

    def maximize(
        self, x: Tensor, weights: Tensor, near: Parameters, prior: Parameters | None, floor: Tensor
    ) -> Maximized:
        each, each_prior = self._weights(x, weights, near), None if prior is None else self._prior_of_each(prior)
        best = self.emission.maximize(x, each.flatten(-2), self._flat(near), each_prior, floor)
        return self._maximized(best, each.sum(-3), prior)

    @property
    def adds_up(self) -> bool:  # type: ignore[override]
        return self.emission.adds_up

    def sums(self, x: Tensor, weights: Tensor, near: Parameters) -> Parameters:
        each = self._weights(x, weights, near)
        return self.emission.sums(x, each.flatten(-2), self._flat(near)) | {WEIGHTS: each.sum(-3)}

    def maximize_sums(self, sums: Parameters, near: Parameters, prior: Parameters | None, floor: Tensor) -> Maximized:
        each_prior = None if prior is None else self._prior_of_each(prior)
        best = self.emission.maximize_sums(sums, self._flat(near), each_prior, floor)
        return self._maximized(best, sums[WEIGHTS], prior)

    def _weights(
        self, x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"], near: Parameters
    ) -> Float[Tensor, "*r N K n"]:
        """The posterior weights of the components."""
        return weights.unsqueeze(-1) * self._shares(x, weights, near)

    def _maximized(self, best: Maximized, count: Float[Tensor, "*r K n"], prior: Parameters | None) -> Maximized:
        count = count if prior is None else count + prior[CONCENTRATION] - 1
        total = count.sum(-1, keepdim=True)
        some = total > torch.finfo(total.dtype).tiny / torch.finfo(total.dtype).eps  # below it, quotients lose digits
        probs = torch.where(some, count / total, 1 / self.n)
        return Maximized(self._split(best.values) | {WEIGHTS: probs})

    def _shares(
        self, x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"], near: Parameters
    ) -> Float[Tensor, "*r N K n"]:
        """The posterior probabilities of the components, given the state; parts of the state if they are equal."""
        shares = self._tables(x, near).softmax(-1).nan_to_num(1 / self.n)
        known = self.emission.parameters
        equal = torch.ones_like(weights[..., 0, :], dtype=torch.bool)
        for name, parameter in known.items():
            table = near[name].movedim(-len(parameter.dims), 0)
            equal = equal & (table == table[:1]).movedim(0, -1).flatten(near[name].ndim - len(parameter.dims)).all(-1)
        if self.n == 1 or not bool(equal.any()):
            return shares
        return torch.where(equal[..., None, :, None], self._cut(x, weights), shares)

    def _cut(self, x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"]) -> Float[Tensor, "*r N K n"]:
        """Shares of components by the place of an observation along the principal axis of its state."""
        points = self.emission.embed(torch.where(x.isnan(), x.nanmedian(0).values, x)).to(weights)
        used = (weights / weights.sum(-2, keepdim=True).clamp_min(1e-300)).mT.unsqueeze(-1)  # [*r, K, N, 1]
        away = points - (used * points).sum(-2, keepdim=True)
        covariance = (used * away).mT @ away
        scale = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(x.dtype).tiny).sqrt()
        axes = torch.linalg.eigh(covariance / scale.unsqueeze(-1) / scale.unsqueeze(-2))[1]
        place = ((away / scale.unsqueeze(-2)) @ axes[..., -1:]).squeeze(-1)  # [*r, K, N]
        spread = (used.squeeze(-1) * place.square()).sum(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny).sqrt()
        share = torch.special.ndtr(place / spread).nan_to_num(0.5)  # NaN for a state without weight
        part = (share * self.n).long().clamp_max(self.n - 1)
        one_hot = torch.nn.functional.one_hot(part, self.n).to(weights)
        return (CUT * one_hot + (1 - CUT) / self.n).movedim(-3, -2)


class _Apart(TorchDistribution):
    """A distribution of a table of K n rows, as one of a table `[K, n, ...]`."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 the interface of torch.distributions

    def __init__(self, flat: Any, n: int) -> None:
        self.flat, self.n = flat, n
        shape = torch.Size((flat.event_shape[0] // n, n, *flat.event_shape[1:]))
        super().__init__(flat.batch_shape, shape, validate_args=False)

    @property
    def support(self) -> Any:
        base = support_of(self.flat)
        return constraints.independent(base, len(self.event_shape) - base.event_dim)

    @property
    def mean(self) -> Tensor:
        return self.flat.mean.unflatten(-len(self.event_shape) + 1, (-1, self.n))

    def expand(self, batch_shape: Any, _instance: Any = None) -> "_Apart":
        return _Apart(self.flat.expand(batch_shape), self.n)

    def log_prob(self, value: Tensor) -> Tensor:
        n_axes = len(self.event_shape)
        return self.flat.log_prob(value.flatten(-n_axes, -n_axes + 1))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.flat.sample(torch.Size(sample_shape)).unflatten(-len(self.event_shape) + 1, (-1, self.n))
