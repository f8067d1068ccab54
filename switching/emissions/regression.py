r"""Linear regression on inputs: $x_{tf} \mid s, u_t \sim N(d_t^\top M_{sf}, 1/\tau_{sf})$ with $d_t = (1, u_t)$.

$M = (\mu, \beta)$ are the location where all inputs are 0 and the coefficients. The prior is that of `Normal` with one
more axis,

$$\tau \sim \text{Gamma}(a_0, b_0), \qquad M \mid \tau \sim N((m_0, 0), \text{diag}(\kappa)^{-1} / \tau),$$

a matrix-normal-Wishart distribution of one output. Residuals $r = x - d^\top M'$ about any $M'$ add $\sum w\, d\, r$,
$\sum w\, d d^\top$, $\sum w$ and $\sum w\, r^2$ to the natural parameters of $M - M'$, so that no digits are lost.
Under a q with mean $m$ and precision $\tau V$ of M,

$$E \log p(x \mid d) = \log N(x;\, d^\top m,\, 1/E[\tau]) + (E[\log\tau] - \log E[\tau] - d^\top V^{-1} d)/2.$$
"""

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Any

import pyro.distributions as dist
import torch
from jaxtyping import Float
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ...inference.families import LocPrecision, MatrixNormalWishart, VectorFamily
from ...inference.families.restricted import given
from ..inputs import Inputs, named_or_counted
from ..parameters import Parameter, Parameters
from ..priors import Site
from ..responses import Real, Response
from .conjugate import ConjugateEmission, Representative
from .contract import Maximized
from .driven import DrivenEmission
from .generalized import GeneralizedLinear
from .normal import Normal


class NormalRegression(DrivenEmission, ConjugateEmission):
    """Independent normal features whose means are linear in the columns beside an observation.

    A subclass is a dataclass with `n_features` and `inputs`.
    """

    have_unit = True
    parameters = {  # noqa: RUF012 the same for all instances
        "loc": Parameter(("state", "feature")),
        "coefficients": Parameter(("state", "feature", "regressor")),
        "precision": Normal.parameters["precision"],
    }

    @property
    def family(self) -> MatrixNormalWishart:  # type: ignore[override]
        """Of (loc, coefficients) as a column, and the precision; plates [K, F]."""
        return MatrixNormalWishart(1 + self.sizes["regressor"])

    @property
    def responses(self) -> tuple[Response, ...]:
        return (Response("loc", Real(), {"coefficients": self.inputs}, ("loc", "count")),)

    @cached_property
    def plain(self) -> Normal:
        return Normal(self.n_features)

    def respond(self, values: Parameters, inputs: Tensor) -> Parameters:
        mean = values["loc"] + (values["coefficients"] * self.by_feature(inputs)).sum(-1)
        return {"loc": mean, "precision": values["precision"]}

    def by_feature(self, columns: Float[Tensor, "*n C"]) -> Float[Tensor, "*n G P"]:
        """The regressors of each feature; G = 1 if all have the same."""
        return columns.unsqueeze(-2)

    def _designs(self, columns: Float[Tensor, "*n C"]) -> tuple[Float[Tensor, "*n G Q"], Float[Tensor, "*n G QQ"]]:
        """The regressors of each feature after a constant, and their products."""
        design = torch.nn.functional.pad(self.by_feature(columns), (1, 0), value=1.0)
        return design, (design.unsqueeze(-1) * design.unsqueeze(-2)).flatten(-2)

    def of_lags(self, numbers: Float[Tensor, "*k F"], beyond: float = 1.0) -> Float[Tensor, "*k G P"]:
        """Numbers of the features at the regressors that are their lags, and `beyond` at inputs.

        Arguments:
            numbers: `[*k, F]`, of each feature.
            beyond: the number at inputs.
        """
        inputs = numbers.new_full((*numbers.shape[:-1], self.n_inputs), beyond)
        return self.by_feature(torch.cat([numbers.repeat(*[1] * (numbers.ndim - 1), self.order), inputs], -1))

    def in_units(self, table: Parameters, unit: Tensor) -> Parameters:
        scaled, of_lags = self.plain.in_units(table, unit), self.of_lags(unit)
        if "coefficients" in table:
            scaled["coefficients"] = table["coefficients"] * of_lags / unit.unsqueeze(-1)
        if "coefficients_count" in table:
            scaled["coefficients_count"] = table["coefficients_count"] / of_lags.square()
        return scaled

    # ---- the prior -------------------------------------------------------------------------------------------------

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """That of `Normal`; coefficients are as vague as locations."""
        prior = self.plain.default_prior(n_states, None if x is None else x[..., : self.n_features])
        return prior | {"coefficients_count": self._counts(prior)}

    def _counts(self, prior: Parameters) -> Float[Tensor, "*plates P"]:
        """The weights of the prior of the coefficients: that of the location, unless there are others."""
        count = prior["count"].unsqueeze(-1)
        table = prior.get("coefficients_count", count)
        return table.expand(*table.shape[:-1], self.sizes["regressor"])

    def natural(self, prior: Parameters) -> Tensor:
        loc, counts = prior["loc"], self._counts(prior)
        lags = self.of_lags(loc, 0.0)
        lags = lags if lags.ndim == counts.ndim else lags.squeeze(-2)
        row = torch.nn.functional.pad(lags.expand_as(counts), (1, 0), value=1.0)
        weight = prior["count"][..., None, None] * row.unsqueeze(-1) * row.unsqueeze(-2)
        weight = weight + torch.diag_embed(torch.nn.functional.pad(counts, (1, 0)))
        first = self._matrix(torch.nn.functional.pad(loc.unsqueeze(-1), (0, counts.shape[-1])))
        return self.family.natural(first, weight, *self.plain.wishart(prior))

    def default_sites(self, prior: Parameters) -> list[Site]:
        of_precision, of_loc = self.plain.default_sites(prior)

        def coefficients(values: Parameters) -> TorchDistributionMixin:
            precision = self.precision_of("coefficients", values, prior)
            scale = (self._counts(prior) * precision.unsqueeze(-1)).rsqrt()
            return dist.Normal(torch.zeros_like(scale), scale).to_event(3)

        return [of_precision, of_loc, Site("coefficients", coefficients)]

    def precision_of(self, part: str, values: Parameters, prior: Parameters) -> Tensor:
        """The precisions by which the prior of a part is scaled."""
        return values["precision"]

    # ---- points of the family --------------------------------------------------------------------------------------

    @staticmethod
    def _matrix(table: Float[Tensor, "*n F Q"]) -> Float[Tensor, "*plates Q D"]:
        """Numbers of each feature and regressor as the family has them."""
        return table.unsqueeze(-1)

    def point(self, values: Parameters) -> LocPrecision:
        loc, coefficients = values["loc"].unsqueeze(-1), values["coefficients"]
        return LocPrecision(self._matrix(torch.cat([loc, coefficients], -1)), values["precision"][..., None, None])

    def values(self, point: Any) -> Parameters:
        first = point.loc.squeeze(-1)
        return {"loc": first[..., 0], "coefficients": first[..., 1:], "precision": point.precision[..., 0, 0]}

    def given(self, known: Parameters) -> VectorFamily[Any]:
        """The family of known parameters; TypeError if only some are known."""
        if set(known) < set(self.parameters) or any(bool(table.isnan().any()) for table in known.values()):
            raise TypeError(
                f"fixed: got {', '.join(known)}, but message passing holds all parameters of {self.name} or none; fix "
                'all of them, or use method="em", "svi" or "nuts".'
            )
        return given(self.family, self.point(known))

    # ---- fits ------------------------------------------------------------------------------------------------------

    def message(self, x: Tensor, weights: Tensor, near: Parameters | None = None) -> Tensor:
        """About the coefficients `near`, in which residuals are taken."""
        observed, inputs = self.split(x)
        seen = (~torch.isnan(observed)).to(x)
        design, squares = self._designs(inputs)
        filled = observed.nan_to_num(0.0).unsqueeze(-2)
        about = 0.0 if near is None else self.at(near, inputs)["loc"]
        residual = (filled - about) * seen.unsqueeze(-2)  # [*r, N, K, F]
        of_seen = (seen.unsqueeze(-1) * squares).flatten(1)
        second = (weights.mT @ of_seen).unflatten(-1, (self.n_features, -1))
        weighted = weights.unsqueeze(-1) * residual
        if design.shape[-2] == 1:
            first = torch.einsum("np,...nkf->...kfp", design.squeeze(-2), weighted)
        else:
            first = torch.einsum("nfp,...nkf->...kfp", design, weighted)
        count, rest = weights.mT @ seen, (weighted * residual).sum(-3)
        return torch.cat([first, -second / 2, count.unsqueeze(-1) / 2, -rest.unsqueeze(-1) / 2], -1)

    def maximize_sums(self, sums: Parameters, near: Parameters, prior: Parameters | None, floor: Tensor) -> Maximized:
        message, about = sums["message"], self.point(near).loc
        if prior is None:
            shift, precision = self._limit(message, floor)
        else:
            total = self.family.tilted(self.family.moved(self.natural(prior), -about)) + message
            best = self.family.expected(total)
            shift, precision = best.loc, best.precision
            precision = precision if self.fills_in else 1 / (1 / precision).maximum(floor[:, None, None])
        return Maximized(self.values(LocPrecision(about + shift, precision)))

    def _limit(self, message: Tensor, floor: Float[Tensor, "F"]) -> tuple[Tensor, Tensor]:
        """Coefficients and precisions of maximum likelihood, from the message about some coefficients."""
        first, half, half_count, rest = self.family.parts(message)
        squares = -2 * half
        size = squares.diagonal(dim1=-2, dim2=-1)
        ridge = torch.diag_embed(1e-14 * torch.where(size == 0, 1.0, size))  # a column of zeros has no coefficient
        shift = torch.linalg.solve_ex(squares + ridge, first)[0]
        both = shift.mT @ first
        scatter = -2 * rest - (both + both.mT) + shift.mT @ squares @ shift
        return shift, self._of_scatter(scatter, half_count, floor)

    def _of_scatter(self, scatter: Tensor, half_count: Tensor, floor: Tensor) -> Tensor:
        """The precisions of maximum likelihood, of variances above the floor."""
        variance = (scatter / (2 * half_count)[..., None, None]).clamp_min(0.0)
        return 1 / variance.maximum(floor[:, None, None])

    def representative(self, statistics: Tensor) -> Representative:
        """At inputs 0; see `expected_table` for others."""
        point, constant, spread = self._under(statistics)
        return Representative(self.values(point), constant - spread[..., 0, 0] / 2)

    def expected_table(self, x: Tensor, statistics: Tensor) -> Tensor:
        observed, inputs = self.split(x)
        point, constant, spread = self._under(statistics)
        seen = ~torch.isnan(observed)
        seen = (seen.any(-1, keepdim=True) if self.fills_in else seen).to(x)
        of_seen = (seen.unsqueeze(-1) * self._designs(inputs)[1]).flatten(-2)
        rows = torch.cat([seen, -of_seen / 2], -1)
        by_state = torch.cat([constant, spread.flatten(-2).flatten(-2)], -1)  # [*r, K, F + F QQ]
        flat = rows.reshape(-1, rows.shape[-1]) @ by_state.mT
        return self.table(x, self.values(point)) + flat.reshape(*flat.shape[:-2], *rows.shape[:-1], flat.shape[-1])

    def _under(self, statistics: Tensor) -> tuple[LocPrecision, Float[Tensor, "*r K G"], Float[Tensor, "*r K G Q Q"]]:
        """The representative point, half of E log|L| - log|E L|, and D times the inverse weight of the coefficients."""
        first, second, log_volume, precision = self.family.parts(statistics)
        mean = first / precision
        return LocPrecision(mean, precision), (log_volume - precision[..., 0, 0].log()) / 2, second - first @ mean.mT


@dataclass(frozen=True, repr=False)
class LinearRegression(NormalRegression):
    """Independent normal features whose means are linear in inputs.

    Parameters `loc [K, F]`, the means where all inputs are 0, `coefficients [K, F, C]` and `precision [K, F]`. `scale`
    is accepted instead of `precision`.

    Arguments:
        n_features: F.
        inputs: the names of C inputs, or their number. A fit scales its weak prior to them.
        shared: the names of inputs whose coefficients all states share.
        tied: `{"scale": "all states"}` for one scale of each feature, as in `Normal`. An emission with shared
            coefficients or tied scales is a `GeneralizedLinear`, whose coefficients have normal priors of their own.

    Raises:
        TypeError: a number of features that is not an integer; inputs that are neither names nor a number.
        ValueError: no features or no inputs; shared inputs that are not among the inputs; another `tied`.

    See Also:
        `GeneralizedLinear`, for counts and categories; `AutoRegressive`, which also reads lags; docs/guides/inputs.md.

    Example:
        >>> import torch
        >>> import samplehold as sh
        >>> dose = torch.linspace(-1, 1, 200, dtype=torch.float64)
        >>> x = torch.where(torch.arange(200) < 100, 1 + 2 * dose, 1 - 3 * dose) + 0.1 * torch.sin(torch.arange(200.0))
        >>> model = sh.SwitchingSSM(sh.Copy(2), sh.LinearRegression(1, inputs=["dose"]))
        >>> fit = model.fit(x, inputs={"dose": dose}, progress=False)
        >>> fit.model.values["coefficients"].flatten().sort().values.round(decimals=1)
        tensor([-3.,  2.], dtype=torch.float64)
    """

    n_features: int = 1
    inputs: Inputs | Sequence[str] = 1
    shared: InitVar[Sequence[str]] = field(default=(), kw_only=True, repr=False)
    tied: InitVar[Mapping[str, str] | None] = field(default=None, kw_only=True, repr=False)

    def __new__(cls, n_features: int = 1, inputs: Any = 1, *, shared: Any = (), tied: Any = None) -> Any:
        if len(shared) or tied is not None:
            return GeneralizedLinear(Normal(n_features, tied=tied), inputs, shared)
        return super().__new__(cls)

    def __post_init__(self, *_: Any) -> None:
        object.__setattr__(self, "inputs", named_or_counted(self.inputs, least=1))
        super().__post_init__()
