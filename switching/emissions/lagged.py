"""Normal observations that depend on earlier ones: what autoregressions with independent and with correlated noise
have in common. See `autoregression`."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...inference.numerics.scalars import check_choice, check_integer, check_kind
from ..inputs import Inputs, named_or_counted
from ..parameters import Parameter, Parameters
from ..priors import Site
from ..responses import Real, Response, moved_site
from ..user_priors import as_text
from .contract import Emission
from .regression import NormalRegression
from .spread import spread
from .tied import NormalEmission

SWITCHING = {"intercept": "loc", "coefficients": "coefficients", "scale": "precision"}


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
class Lagged(NormalRegression):
    """Normal observations whose means are linear in earlier observations and inputs.

    A subclass has `plain`, the distribution at known lags, and the conjugate prior.
    """

    order: int = 1
    n_features: int = 1
    inputs: Inputs | Sequence[str] = 0
    lags: str = "all"
    switching: Sequence[str] = tuple(SWITCHING)
    prior: Any = field(default=None, kw_only=True, repr=False, compare=False)

    @property
    @abstractmethod
    def plain(self) -> NormalEmission: ...

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
        """The axes, support and displayed form of each parameter."""
        known = dict(NormalRegression.parameters) | {"precision": self.plain.parameters["precision"]}
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

    @property
    def responses(self) -> tuple[Response, ...]:
        if not self.n_inputs:
            return ()
        stated, chosen = ("loc", "count"), bool(self.user_priors.keys() & {"loc", "coefficients"})
        inputs: Any = {"coefficients": self.inputs}
        return (Response("loc", Real(), inputs, stated, self._fixed_origin, chosen),)

    @property
    def _fixed_origin(self) -> bool:
        """Whether another origin of the regressors would need an intercept of each state."""
        return "intercept" not in self.switching and "coefficients" in self.switching

    def regressor_names(self, features: Sequence[Any], inputs: Sequence[str] | None) -> list[str]:
        """What the entries of an axis of regressors are called.

        Arguments:
            features, inputs: their names.
        """
        alone = self.lags == "own" or self.n_features == 1
        lags = [
            f"lag {lag}" if alone else f"lag {lag} of {feature}"
            for lag in range(1, self.order + 1)
            for feature in (features[:1] if alone else features)
        ]
        if isinstance(self.inputs, int):
            return lags + list((inputs or [f"input {i}" for i in range(self.inputs)])[: self.inputs])
        return lags + list(self.inputs)

    def __repr__(self) -> str:
        usual = {known.name: known.default for known in fields(self)}
        named = ("n_features", "inputs", "lags", "switching")
        shown = [f"{n}={getattr(self, n)!r}" for n in named if getattr(self, n) != usual[n]]
        shown += [] if self.plain.by_feature else ["covariance='full'"]
        return f"AutoRegressive({', '.join([f'order={self.order}', *shown, *filter(None, [as_text(self.prior)])])})"

    @property
    def not_conjugate(self) -> str:  # type: ignore[override]
        shared = [part for part in SWITCHING if part not in self.switching]
        return f"all states share its {' and '.join(shared)}" if shared else ""

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
        return of_plain | {"loc": torch.broadcast_tensors(of_plain["loc"], self._by_feature(of_plain["precision"]))[0]}

    def _by_feature(self, precision: Tensor) -> Float[Tensor, "*r F"]:
        """A number for each feature, of the shape of variances."""
        return precision if self.plain.by_feature else precision[..., 0]

    def fixed_point(self, values: Parameters) -> Float[Tensor, "*r K F"]:
        """The constant series of each state without noise, at inputs 0; the nearest to one if there is none."""
        matrices = self.lag_matrices(values).unflatten(-1, (self.order, self.n_features)).sum(-2)
        rest = torch.eye(self.n_features).to(matrices) - matrices
        point = (torch.linalg.pinv(rest) @ values["loc"].unsqueeze(-1)).squeeze(-1)
        return torch.broadcast_tensors(point, self._by_feature(values["precision"]))[0]

    def typical_lags(self, values: Parameters) -> Float[Tensor, "*r K P F"]:
        """Lags from which a series in each state begins: its constant series."""
        point = self.fixed_point(values)
        return point.unsqueeze(-2).expand(*point.shape[:-1], self.order, self.n_features)

    # ---- units -----------------------------------------------------------------------------------------------------

    def shifts(self, fixed: Collection[str]) -> bool:
        """Whether the parameters of x + a are of the same form: all that are shared or fixed stay so."""
        return "loc" not in fixed and not self._fixed_origin

    def shifted(self, table: Parameters, by: Tensor) -> Parameters:
        if "coefficients" not in table or "loc" not in table:
            return super().shifted(table, by)  # hyperparameters
        matrices = self.lag_matrices(table)
        moved = by - (matrices * by.repeat(self.order)).sum(-1)
        return table | {"loc": table["loc"] + moved.to(table["loc"])} if bool(by.any()) else table

    # ---- the prior -------------------------------------------------------------------------------------------------

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """That of the plain emission; coefficients are as vague as locations."""
        x = None if x is None else x[..., : self.n_features]
        prior = self.plain.default_prior(n_states, x)
        square = self.of_lags(spread(x, 1, self.n_features).scale.square().to(prior["count"]))
        prior["coefficients_count"] = prior["count"].unsqueeze(-1) * square
        names = {"intercept": ("loc", "count"), "coefficients": ("coefficients_count",)}
        names["scale"] = self.plain.of_precision[1:]
        shared = [name for part in SWITCHING if part not in self.switching for name in names[part]]
        return prior | {name: prior[name][:1] for name in shared}

    def with_user_priors(self, prior: Mapping[str, Any]) -> Emission:
        return super().with_user_priors(of_parameters(prior))

    def sites(self, prior: Parameters) -> list[Site]:
        sites = super().sites(prior)
        about, unit = vars(self).get("_units", (None, None))
        if about is None or "loc" not in self.user_priors or not bool(about.any()):
            return sites
        *others, of_loc = sites  # the intercept depends on the coefficients
        lags = self.of_lags((about / unit).to(prior["count"]), 0.0)
        return [*others, moved_site(of_loc, lambda values: (values["coefficients"] * lags).sum(-1), Real())]

    @abstractmethod
    def typical_precision(self, prior: Parameters) -> Tensor:
        """The prior mean of the precision."""

    def precision_of(self, part: str, values: Parameters, prior: Parameters) -> Tensor:
        """Those of its states, or typical ones if it is shared and they are not."""
        if part in self.switching or "scale" not in self.switching:
            return values["precision"]
        precision = self.typical_precision(prior)
        return precision.mean(-2 if self.plain.by_feature else -3, keepdim=True)

    def prior_loc(self, values: Parameters, prior: Parameters) -> Float[Tensor, "*r K F"]:
        """The prior mean of the intercepts, given the coefficients."""
        effect = (values["coefficients"] * self.of_lags(prior["loc"], 0.0)).sum(-1)
        effect = effect if "intercept" in self.switching else effect.mean(-2, keepdim=True)
        return prior["loc"] - effect

    def start(self, prior: Parameters) -> Parameters:
        """The location, no effect of lags, and the typical precision."""
        rows = prior["coefficients_count"].shape[0]
        zero = prior["loc"].new_zeros(rows, self.n_features, self.n_lags + self.n_inputs)
        return {"loc": prior["loc"], "coefficients": zero, "precision": self.typical_precision(prior)}

    # ---- the noise -------------------------------------------------------------------------------------------------

    @abstractmethod
    def covariances(self, precision: Tensor) -> Float[Tensor, "*n F F"]:
        """The covariance of the noise, from `precision`."""
