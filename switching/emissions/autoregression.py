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

from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Any

import pyro.distributions as dist
import torch
from jaxtyping import Float
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ...inference.numerics.scalars import check_choice
from ..parameters import Parameters
from ..priors import Site
from .contract import Maximized
from .lagged import SWITCHING, Lagged
from .normal import Normal
from .shared_regression import Sharing
from .vector_autoregression import VectorAutoRegressive


@dataclass(frozen=True, repr=False)
class AutoRegressive(Lagged):
    """Normal observations whose means are linear in earlier observations, with parameters of the state.

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
            others, which message passing does not support. "scale" stands for the covariance if it is full.
        prior: distributions of Pyro instead of the default's, by name of a parameter or of its displayed form,
            e.g. `{"coefficients": dist.Normal(0.0, 0.5), "scale": dist.HalfNormal(2.0)}`. The intercept is "loc" or
            "intercept". They are of values in the units of the data. Message passing accepts a Gamma of `precision`.
        covariance: "diagonal": the noise of features is independent. "full": it has a covariance matrix, `precision
            [K, F, F]` or `covariance`, with a matrix-normal-Wishart prior; `lags` is then "all", and the emission a
            `VectorAutoRegressive`.

    Raises:
        TypeError: an order or a size that is not an integer; a prior that is no mapping.
        ValueError: an order or a size below 1; unknown lags, parts or covariance; a prior of another parameter.

    See Also:
        `DeviationAR`, whose lags are deviations from the mean of their state; docs/guides/autoregression.md, with
        priors and forecasts.

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

    covariance: InitVar[str] = field(default="diagonal", kw_only=True, repr=False)

    def __new__(
        cls,
        order: int = 1,
        n_features: int = 1,
        inputs: Any = 0,
        lags: str = "all",
        switching: Any = tuple(SWITCHING),
        *,
        prior: Any = None,
        covariance: str = "diagonal",
    ) -> Any:
        check_choice("covariance", covariance, ("diagonal", "full"))
        if covariance == "full":
            return VectorAutoRegressive(order, n_features, inputs, lags, switching, prior=prior)
        return super().__new__(cls)

    @cached_property
    def plain(self) -> Normal:
        return Normal(self.n_features)

    @classmethod
    def sized_to(cls, x: Any) -> "AutoRegressive":
        return cls(1, x.shape[-1])

    # ---- the prior -------------------------------------------------------------------------------------------------

    def default_sites(self, prior: Parameters) -> list[Site]:
        of_precision, _, of_coefficients = super().default_sites(prior)

        def loc(values: Parameters) -> TorchDistributionMixin:
            by = self.precision_of("intercept", values, prior)
            return dist.Normal(self.prior_loc(values, prior), (prior["count"] * by).rsqrt()).to_event(2)

        return [Site(*of_precision[:2]), of_coefficients, Site("loc", loc)]

    def typical_precision(self, prior: Parameters) -> Float[Tensor, "*r K F"]:
        return prior["shape"] / prior["rate"]

    def covariances(self, precision: Float[Tensor, "*n F"]) -> Float[Tensor, "*n F F"]:
        return torch.diag_embed(1 / precision)

    # ---- fits ------------------------------------------------------------------------------------------------------

    def maximize_sums(self, sums: Parameters, near: Parameters, prior: Parameters | None, floor: Tensor) -> Maximized:
        if not self.not_conjugate:
            return super().maximize_sums(sums, near, prior, floor)
        return Sharing(self, prior).maximize(self.family.parts(sums["message"]), near, floor)


@dataclass(frozen=True, repr=False)
class TupleAutoRegressive(AutoRegressive):
    """The emission of tuples of `n_levels` states, whose means all tuples share.

    The intercept of the tuple (k, ..., k) is (1 - sum of phi_k) times the mean of k.
    """

    n_levels: int = 2

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return object.__new__(cls)

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
