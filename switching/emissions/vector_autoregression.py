r"""Autoregression with correlated noise: $x_t = c_s + \sum_l B_{s,l}\, x_{t-l} + \beta_s^\top u_t + \epsilon_t$, with
$\epsilon_t \sim N(0, \Lambda_s^{-1})$.

With $M$ the rows of the intercept and of the coefficients, $d_t$ the constant 1, the lags and the inputs, and $m_0$ the
location of the data, the prior is

$$\Lambda \sim \text{Wishart}(\nu_0, W_0), \qquad B_{\cdot g} \mid \Lambda \sim N(0, (\kappa_g \Lambda)^{-1}), \qquad
c + \sum_l B_l m_0 \mid B, \Lambda \sim N(m_0, (\kappa_0 \Lambda)^{-1}),$$

so M is matrix normal given $\Lambda$. If all parts switch, the prior is conjugate. Under a q with mean m and
weight V of the coefficients,

$$E \log p(x \mid d) = \log N(x;\, m^\top d,\, E[\Lambda]^{-1}) + (E\log|\Lambda| - \log|E[\Lambda]| - F\, d^\top V^{-1}
d)/2.$$

Missing features are integrated out, and imputed in moments, as in `multivariate_normal`. If states share a part, the
M-step is BFGS.
"""

import math
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import pyro.distributions as dist
import torch
from jaxtyping import Float
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions.transforms import ReshapeTransform

from ...inference.families import LocPrecision
from ...inference.families.numerics import pack
from ...inference.families.peak import peak
from ...inference.numerics.cholesky import cholesky, inverse, log_det
from ..parameters import Parameters
from ..priors import Site
from .contract import Maximized
from .lagged import Lagged
from .multivariate_normal import MultivariateNormal, completion, in_place, in_planes, patterns


@dataclass(frozen=True, repr=False)
class VectorAutoRegressive(Lagged):
    """An `AutoRegressive` whose noise has a covariance matrix; made by `AutoRegressive(order, n, covariance="full")`.

    Parameters `loc [K, F]`, `coefficients [K, F, C]` and `precision [K, F, F]`, or `covariance`. A part that does not
    switch has one row. A step whose lags are known may lack some of its features.

    Arguments:
        order, n_features, inputs, switching, prior: as for `AutoRegressive`; `lags` is "all". Message passing accepts a
            Wishart of `precision`.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(1, 2, covariance="full"))
        >>> model.known["precision"].dims
        ('state', 'feature', 'feature_new')
    """

    fills_in = True

    def __post_init__(self, *_: Any) -> None:
        super().__post_init__()
        if self.lags != "all":
            raise ValueError(
                f'lags: got {self.lags!r} with covariance="full", whose prior is that of all lags of all features; use '
                'lags="all", or covariance="diagonal".'
            )

    @cached_property
    def plain(self) -> MultivariateNormal:
        return MultivariateNormal(self.n_features)

    def covariances(self, precision: Float[Tensor, "*n F F"]) -> Float[Tensor, "*n F F"]:
        return inverse(precision)

    # ---- the prior -------------------------------------------------------------------------------------------------

    def typical_precision(self, prior: Parameters) -> Float[Tensor, "*r K F F"]:
        df, scale_matrix = self.plain.wishart(prior)
        return df[..., None, None] * scale_matrix

    def default_sites(self, prior: Parameters) -> list[Site]:
        of_precision, _ = self.plain.default_sites(prior)

        def coefficients(values: Parameters) -> TorchDistributionMixin:
            spread = cholesky(inverse(self.precision_of("coefficients", values, prior)))
            scales = torch.diag_embed(prior["coefficients_count"].rsqrt())
            size, n = scales.shape[-1], self.n_features
            both = spread[..., :, None, :, None] * scales[..., None, :, None, :]
            scale_tril = both.reshape(*both.shape[:-4], n * size, n * size)
            flat = dist.MultivariateNormal(torch.zeros_like(scale_tril[..., 0]), scale_tril=scale_tril)
            table: Any = dist.TransformedDistribution(
                flat, [ReshapeTransform(torch.Size((n * size,)), torch.Size((n, size)))]
            )
            return table.to_event(1)

        def loc(values: Parameters) -> TorchDistributionMixin:
            by = prior["count"][..., None, None] * self.precision_of("intercept", values, prior)
            return dist.MultivariateNormal(self.prior_loc(values, prior), precision_matrix=by).to_event(1)

        return [Site(*of_precision[:2]), Site("coefficients", coefficients), Site("loc", loc)]

    # ---- points of the family --------------------------------------------------------------------------------------

    @staticmethod
    def _matrix(table: Float[Tensor, "*n F Q"]) -> Float[Tensor, "*n Q F"]:
        return table.mT

    def point(self, values: Parameters) -> LocPrecision:
        rows = torch.cat([values["loc"].unsqueeze(-2), values["coefficients"].mT], -2)
        return LocPrecision(rows, values["precision"])

    def values(self, point: Any) -> Parameters:
        loc, coefficients = point.loc[..., 0, :], point.loc[..., 1:, :].mT
        return {"loc": loc, "coefficients": coefficients, "precision": point.precision}

    # ---- densities -------------------------------------------------------------------------------------------------

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        observed, inputs = self.split(x.reshape(-1, x.shape[-1]))
        mean, some = self.at(values, inputs)["loc"], patterns(observed)

        def density(seen: Tensor | None, rows: Tensor | slice) -> Float[Tensor, "*r n K"]:
            residual, precision = self._residual(observed, mean, rows), values["precision"]
            if seen is not None:
                residual = residual[..., seen]
                precision = inverse(inverse(precision)[..., seen, :][..., seen])
            chol = cholesky(precision)
            square = (residual @ chol).square().sum(-1) + residual.shape[-1] * math.log(2 * math.pi)
            return (log_det(chol).unsqueeze(-1) - square).mT / 2

        table = in_place([density(*pattern) for pattern in some], some)
        return table.reshape(*table.shape[:-2], *x.shape[:-1], table.shape[-1])

    @staticmethod
    def _residual(
        observed: Float[Tensor, "N F"], mean: Float[Tensor, "*r N K F"], rows: Tensor | slice
    ) -> Float[Tensor, "*r K n F"]:
        return (observed[rows].unsqueeze(-2) - mean[..., rows, :, :]).movedim(-2, -3)

    def _under(self, statistics: Tensor) -> tuple[LocPrecision, Tensor, Tensor]:
        first, second, log_volume, precision = self.family.parts(statistics)
        mean = first @ inverse(precision)
        constant = (log_volume - log_det(cholesky(precision))) / 2
        return LocPrecision(mean, precision), constant.unsqueeze(-1), (second - first @ mean.mT).unsqueeze(-3)

    # ---- fits ------------------------------------------------------------------------------------------------------

    def message(self, x: Tensor, weights: Tensor, near: Parameters | None = None) -> Tensor:
        """About the coefficients `near`, under which missing features are imputed."""
        observed, inputs = self.split(x)
        if near is None:
            size, n = self.n_lags + self.n_inputs, self.n_features
            zero = x.new_zeros(weights.shape[-1], n, 1 + size)
            near = {"loc": zero[..., 0], "coefficients": zero[..., 1:], "precision": torch.eye(n).to(x).unsqueeze(0)}
        mean, precision = self.at(near, inputs)["loc"], near["precision"]
        design, squares = (table.squeeze(-2) for table in self._designs(inputs))

        def sums(seen: Tensor | None, rows: Tensor | slice) -> tuple[Tensor, ...]:
            residual, used = self._residual(observed, mean, rows), weights[..., rows, :].mT
            count, second, extra = used.sum(-1, keepdim=True), used @ squares[rows], 0.0
            if seen is not None:
                gain, spread = completion(seen, precision)
                residual, extra = residual[..., seen] @ gain.mT, count.unsqueeze(-1) * spread
            weighted = used.unsqueeze(-1) * residual
            first, rest = design[rows].mT @ weighted, weighted.mT @ residual + extra
            return first.flatten(-2), second, count, rest.flatten(-2)

        parts = [sums(*pattern) for pattern in patterns(observed) if pattern[0] is None or len(pattern[0])]
        parts = parts or [tuple(0.0 * table for table in sums(None, slice(0, 0)))]  # nothing is observed
        first, second, count, rest = (reduce(torch.add, some) for some in zip(*parts, strict=True))
        return pack(first, -second / 2, count / 2, -rest / 2)

    @property
    def adds_up(self) -> bool:  # type: ignore[override]
        return self.is_conjugate

    def maximize(
        self, x: Tensor, weights: Tensor, near: Parameters, prior: Parameters | None, floor: Tensor
    ) -> Maximized:
        if self.not_conjugate:
            return self.maximize_beside({}, x, weights, near, prior, floor)
        return super().maximize(x, weights, near, prior, floor)

    def collapsed(self, values: Parameters, floor: Tensor) -> Tensor:
        return in_planes(values["precision"], floor)

    def _of_scatter(self, scatter: Tensor, half_count: Tensor, floor: Tensor) -> Tensor:
        count = half_count.unsqueeze(-1)
        return peak(pack(torch.zeros_like(scatter[..., 0]), -count, count, -scatter.flatten(-2) / 2), floor).precision
