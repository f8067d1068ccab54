r"""Autoregression: $x_t = c_s + \sum_l B_{s,l}\, x_{t-l} + \beta_s^\top u_t + \epsilon_t$, $\epsilon_{tf} \sim N(0,
1/\tau_{sf})$, with $s = s_t$.

It is a regression whose first columns are the observations before each step. A density is conditional on the first
`order` observations of each sequence, and on every observation whose lags are missing: these steps have no density of
their own, as if x_t were missing, but they are lags of later steps.

With the location $m_0$ of the data, the prior is

$$\tau \sim \text{Gamma}(a_0, b_0), \qquad B_{fg} \mid \tau \sim N(0, 1/(\kappa_{fg} \tau_f)), \qquad
c + \sum_l B_l m_0 \mid B, \tau \sim N(m_0, 1/(\kappa_0 \tau)),$$

The last is the mean of x_t after lags at $m_0$, so the prior is the same for x + a and $m_0 + a$. The coefficients $M =
(c, B)$ are normal given $\tau$, of precision $\tau L^\top V L$, where L adds the lags' $m_0$ to the constant. If all
parts switch, this is the conjugate prior of `regression`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyro.distributions as dist
import torch
from jaxtyping import Bool, Float
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ...inference.numerics.scalars import check_choice, check_integer, check_kind
from ..inputs import Inputs, named_or_counted
from ..parameters import Parameter, Parameters
from ..priors import Site, moved_site
from .contract import Emission, Maximized
from .regression import NormalRegression
from .shared_regression import Sharing
from .spread import spread

SWITCHING = {"intercept": "loc", "coefficients": "coefficients", "scale": "precision"}
PRIORS = {"intercept": ("loc", "count"), "coefficients": ("coefficients_count",), "scale": ("shape", "rate")}


def parts_of(switching: Any, known: Sequence[str]) -> tuple[str, ...]:
    """The names of the parts that switch.

    Raises:
        TypeError: neither a name nor several.
        ValueError: an unknown part.
    """
    check_kind("switching", switching, Collection, f"some of {', '.join(known)}")
    parts = (switching,) if isinstance(switching, str) else tuple(switching)
    for part in parts:
        check_choice("switching", part, known)
    return parts


def of_parameters(prior: Any) -> Any:
    """Priors by the names of parameters, of which "intercept" is another name of "loc".

    Raises:
        ValueError: both names.
    """
    if not isinstance(prior, Mapping) or "intercept" not in prior:
        return prior
    if "loc" in prior:
        raise ValueError("prior: got 'intercept' and 'loc', two names of one parameter; give one.")
    return {"loc" if name == "intercept" else name: one for name, one in prior.items()}


@dataclass(frozen=True, repr=False)
class AutoRegressive(NormalRegression):
    """Observations that depend on earlier observations, with parameters of the state.

    Parameters `loc [K, F]`, the intercepts c; `coefficients [K, F, C]`, those of the lags (of all features at lag 1,
    then at lag 2, ...), then those of inputs; and `precision [K, F]`. `scale` is accepted instead of `precision`. A
    part that does not switch has one row.

    The first `order` observations of each sequence have no density, because their lags are not known, unless they are
    given by `before=`. Neither has an observation whose lags are missing.

    Arguments:
        order: the number of lags, at least 1.
        n_features: F.
        inputs: the names of inputs that the mean depends on too, or their number.
        lags: "all": the mean of each feature depends on the lags of all features; "own": on its own lags.
        switching: the parts that differ by state, among "intercept", "coefficients" and "scale"; all states share the
            others, which message passing does not take.
        prior: distributions of Pyro in the place of the default's, by name of a parameter or of its displayed form,
            e.g. `{"coefficients": dist.Normal(0.0, 0.5), "scale": dist.HalfNormal(2.0)}`. The intercept is "loc" or
            "intercept". They are of values in the units of the data. Message passing takes a Gamma of `precision`.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(order=1))
        >>> model = model.with_values(
        ...     initial_probs=[0.5, 0.5], transition_probs=[[0.95, 0.05], [0.05, 0.95]],
        ...     loc=[[0.0], [0.0]], coefficients=[[[0.9]], [[-0.9]]], scale=[[1.0], [1.0]],
        ... )
        >>> x = model.simulate(400, seed=0).x
        >>> fit = sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(order=1)).fit(x, progress=False)
        >>> fit.model.values["coefficients"].flatten().sort().values.round()
        tensor([-1.,  1.], dtype=torch.float64)
    """

    order: int = 1
    n_features: int = 1
    inputs: Inputs | Sequence[str] = 0
    lags: str = "all"
    switching: Sequence[str] = tuple(SWITCHING)
    prior: Any = field(default=None, kw_only=True, repr=False, compare=False)

    def __post_init__(self, *_: Any) -> None:
        object.__setattr__(self, "order", check_integer("order", self.order))
        object.__setattr__(self, "inputs", named_or_counted(self.inputs))
        check_choice("lags", self.lags, ("all", "own"))
        parts = parts_of(self.switching, tuple(SWITCHING))
        if not parts:
            raise ValueError(f"switching: got no part, so all states are alike; name some of {', '.join(SWITCHING)}.")
        object.__setattr__(self, "switching", tuple(part for part in SWITCHING if part in parts))
        object.__setattr__(self, "prior", of_parameters(self.prior))
        super().__post_init__()

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        known = dict(NormalRegression.parameters)
        for part, name in SWITCHING.items():
            if part not in self.switching:
                known[name] = known[name].renamed({"state": "shared"})
        return known

    @property
    def n_columns(self) -> int:
        return self.order * self.n_features + self.n_inputs

    @property
    def n_lags(self) -> int:
        """The lags that the mean of each feature depends on."""
        return self.order * (1 if self.lags == "own" else self.n_features)

    @property
    def sizes(self) -> dict[str, int]:
        return super().sizes | {"regressor": self.n_lags + self.n_inputs}

    @property
    def inputs_of(self) -> dict[str, Inputs]:
        return {}

    def regressor_names(self, features: Sequence[Any], inputs: Sequence[str] | None) -> list[str]:
        """What the entries of an axis of regressors are called."""
        alone = self.lags == "own" or self.n_features == 1
        lags = [
            f"lag {lag}" if alone else f"lag {lag} of {feature}"
            for lag in range(1, self.order + 1)
            for feature in (features[:1] if alone else features)
        ]
        if isinstance(self.inputs, int):
            return lags + list((inputs or [f"input {i}" for i in range(self.inputs)])[: self.inputs])
        return lags + list(self.inputs)

    @property
    def is_conjugate(self) -> bool:
        return not self.not_conjugate and self.has_default_priors

    @property
    def not_conjugate(self) -> str:  # type: ignore[override]
        shared = [part for part in SWITCHING if part not in self.switching]
        return f"all states share its {' and '.join(shared)}" if shared else ""

    def __repr__(self) -> str:
        plain = AutoRegressive()
        named = ("n_features", "inputs", "lags", "switching")
        shown = [f"{n}={getattr(self, n)!r}" for n in named if getattr(self, n) != getattr(plain, n)]
        return f"{self.name}({', '.join([f'order={self.order}', *shown])})"

    @classmethod
    def sized_to(cls, x: Any) -> "AutoRegressive":
        return cls(1, x.shape[-1])

    # ---- lags ------------------------------------------------------------------------------------------------------

    def by_feature(self, columns: Float[Tensor, "*n C"]) -> Float[Tensor, "*n G P"]:
        if self.lags == "all":
            return super().by_feature(columns)
        size = self.order * self.n_features
        own = columns[..., :size].unflatten(-1, (self.order, self.n_features)).mT
        inputs = columns[..., size:].unsqueeze(-2)
        return torch.cat([own, inputs.expand(*own.shape[:-1], -1)], -1)

    def unknown(self, columns: Float[Tensor, "*n C"]) -> Bool[Tensor, "*n F"]:
        missing = columns[..., : self.order * self.n_features].isnan().unflatten(-1, (self.order, self.n_features))
        by_feature = missing.any(-2)
        return by_feature if self.lags == "own" else by_feature.any(-1, keepdim=True).expand_as(by_feature)

    def lag_matrices(self, values: Parameters) -> Float[Tensor, "*r K F LF"]:
        """The coefficients of the lags of all features, latest first."""
        table = values["coefficients"][..., : self.n_lags]
        if self.lags == "all":
            return table
        eye = torch.eye(self.n_features).to(table)
        return (table.unsqueeze(-1) * eye.unsqueeze(-2)).flatten(-2)

    def respond(self, values: Parameters, inputs: Tensor) -> Parameters:
        of_plain = super().respond(values, inputs)
        loc, precision = torch.broadcast_tensors(of_plain["loc"], of_plain["precision"])
        return {"loc": loc, "precision": precision}

    def fixed_point(self, values: Parameters) -> Float[Tensor, "*r K F"]:
        """The constant series of each state without noise, at inputs 0; the nearest to one if there is none."""
        matrices = self.lag_matrices(values).unflatten(-1, (self.order, self.n_features)).sum(-2)
        rest = torch.eye(self.n_features).to(matrices) - matrices
        point = (torch.linalg.pinv(rest) @ values["loc"].unsqueeze(-1)).squeeze(-1)
        return torch.broadcast_tensors(point, values["precision"])[0]

    def typical_lags(self, values: Parameters) -> Float[Tensor, "*r K P F"]:
        """Lags from which a series in each state begins: its constant series."""
        point = self.fixed_point(values)
        return point.unsqueeze(-2).expand(*point.shape[:-1], self.order, self.n_features)

    # ---- units -----------------------------------------------------------------------------------------------------

    def shifts(self, fixed: Collection[str]) -> bool:
        """Whether the parameters of x + a are of the same form: all that are shared or fixed stay so."""
        alike = "intercept" not in self.switching and "coefficients" in self.switching
        return "loc" not in fixed and not alike

    def shifted(self, table: Parameters, by: Tensor) -> Parameters:
        if "coefficients" not in table or "loc" not in table:
            return super().shifted(table, by)  # hyperparameters
        matrices = self.lag_matrices(table)
        moved = by - (matrices * by.repeat(self.order)).sum(-1)
        return table | {"loc": table["loc"] + moved.to(table["loc"])} if bool(by.any()) else table

    def in_units(self, table: Parameters, unit: Tensor) -> Parameters:
        scaled, of_lags = self.plain.in_units(table, unit), self.of_lags(unit)
        if "coefficients" in table:
            scaled["coefficients"] = table["coefficients"] * of_lags / unit.unsqueeze(-1)
        if "coefficients_count" in table:
            scaled["coefficients_count"] = table["coefficients_count"] / of_lags.square()
        return scaled

    def of_lags(self, numbers: Float[Tensor, "*k F"], beyond: float = 1.0) -> Float[Tensor, "*k G P"]:
        """Numbers of the features at the regressors that are their lags, and `beyond` at inputs."""
        inputs = numbers.new_full((*numbers.shape[:-1], self.n_inputs), beyond)
        return self.by_feature(torch.cat([numbers.repeat(*[1] * (numbers.ndim - 1), self.order), inputs], -1))

    # ---- the prior -------------------------------------------------------------------------------------------------

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """That of `Normal`; coefficients are as vague as locations."""
        x = None if x is None else x[..., : self.n_features]
        prior = self.plain.default_prior(n_states, x)
        square = self.of_lags(spread(x, 1, self.n_features).scale.square().to(prior["count"]))
        prior["coefficients_count"] = prior["count"].unsqueeze(-1) * square.expand(n_states, -1, -1)
        shared = [name for part, names in PRIORS.items() if part not in self.switching for name in names]
        return prior | {name: prior[name][:1] for name in shared}

    def natural(self, prior: Parameters) -> Tensor:
        loc, shape, rate = (prior[name] for name in ("loc", "shape", "rate"))
        first = torch.nn.functional.pad(loc.unsqueeze(-1), (0, self.family.n_inputs - 1)).unsqueeze(-1)
        row = torch.nn.functional.pad(self.of_lags(loc, 0.0).expand_as(prior["coefficients_count"]), (1, 0), value=1.0)
        weight = prior["count"][..., None, None] * row.unsqueeze(-1) * row.unsqueeze(-2)
        weight = weight + torch.diag_embed(torch.nn.functional.pad(prior["coefficients_count"], (1, 0)))
        return self.family.natural(first, weight, 2 * shape, (0.5 / rate)[..., None, None])

    def with_user_priors(self, prior: Mapping[str, Any]) -> Emission:
        return super().with_user_priors(of_parameters(prior))

    def sites(self, prior: Parameters) -> list[Site]:
        sites = self.default_sites(prior)
        if not self.user_priors:
            return sites
        sites = self._with_user_priors(sites, prior, self.start(prior))
        about, unit = vars(self).get("_units", (None, None))
        if about is None or "loc" not in self.user_priors or not bool(about.any()):
            return sites
        *others, of_loc = sites
        lags = self.of_lags((about / unit).to(prior["count"]), 0.0)
        return [*others, moved_site(of_loc, lambda values: (values["coefficients"] * lags).sum(-1))]

    def default_sites(self, prior: Parameters) -> list[Site]:
        """The default prior as Pyro sites."""

        def precision(values: Parameters) -> TorchDistributionMixin:
            return dist.Gamma(prior["shape"], prior["rate"]).to_event(2)

        def coefficients(values: Parameters) -> TorchDistributionMixin:
            count = prior["coefficients_count"]
            by = self.precision_of("coefficients", values, prior).unsqueeze(-1)
            return dist.Normal(torch.zeros_like(count * by), (count * by).rsqrt()).to_event(3)

        def loc(values: Parameters) -> TorchDistributionMixin:
            by = self.precision_of("intercept", values, prior)
            return dist.Normal(self.prior_loc(values, prior), (prior["count"] * by).rsqrt()).to_event(2)

        return [Site("precision", precision), Site("coefficients", coefficients), Site("loc", loc)]

    def precision_of(self, part: str, values: Parameters, prior: Parameters) -> Float[Tensor, "*r K F"]:
        """The precisions by which the prior of a part is scaled: those of its states, or typical ones if it is shared
        and they are not."""
        if part in self.switching or "scale" not in self.switching:
            return values["precision"]
        return (prior["shape"] / prior["rate"]).mean(-2, keepdim=True)

    def prior_loc(self, values: Parameters, prior: Parameters) -> Float[Tensor, "*r K F"]:
        """The prior mean of the intercepts, given the coefficients."""
        effect = (values["coefficients"] * self.of_lags(prior["loc"], 0.0)).sum(-1)
        effect = effect if "intercept" in self.switching else effect.mean(-2, keepdim=True)
        return prior["loc"] - effect

    def start(self, prior: Parameters) -> Parameters:
        precision = prior["shape"] / prior["rate"]
        return {
            "loc": prior["loc"],
            "coefficients": torch.zeros_like(prior["coefficients_count"]),
            "precision": precision,
        }

    # ---- fits ------------------------------------------------------------------------------------------------------

    def maximize(
        self, x: Tensor, weights: Tensor, near: Parameters, prior: Parameters | None, floor: Tensor
    ) -> Maximized:
        if prior is not None and not self.has_default_priors:
            return Emission.maximize(self, x, weights, near, prior, floor)
        if not self.not_conjugate:
            return super().maximize(x, weights, near, prior, floor)
        return Sharing(self, prior).maximize(self.family.parts(self.message(x, weights, near)), near, floor)


@dataclass(frozen=True, repr=False)
class TupleAutoRegressive(AutoRegressive):
    """The emission of tuples of `n_levels` states, whose means all tuples share.

    The intercept of the tuple (k, ..., k) is (1 - sum of phi_k) times the mean of k.
    """

    n_levels: int = 2

    def fixed_point(self, values: Parameters) -> Float[Tensor, "*r M 1"]:
        """The mean of the last state of each tuple."""
        return self._means(values)[..., :1]

    def typical_lags(self, values: Parameters) -> Float[Tensor, "*r M P 1"]:
        """The means of the states in which the lags were."""
        return self._means(values)[..., 1:].unsqueeze(-1)

    def _means(self, values: Parameters) -> Float[Tensor, "*r M L"]:
        """The means of the states of each tuple."""
        point = super().fixed_point(values)[..., 0]
        every = torch.arange(self.n_levels, device=point.device)
        alike = every * ((point.shape[-1] - 1) // (self.n_levels - 1))
        return point[..., alike][..., torch.cartesian_prod(*[every] * (self.order + 1))]
