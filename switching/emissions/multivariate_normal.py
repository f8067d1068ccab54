r"""Full-covariance normal vectors: $x_t \mid s \sim N(\mu_s, \Lambda_s^{-1})$ with a normal-Wishart prior.

$$\Lambda \sim \text{Wishart}(\nu_0, W_0), \qquad \mu \mid \Lambda \sim N(m_0, (\kappa_0 \Lambda)^{-1})$$

With weighted count $n$, mean $\bar x$ and scatter $S$ the posterior has $\kappa = \kappa_0 + n$,
$m = (\kappa_0 m_0 + n \bar x)/\kappa$, $\nu = \nu_0 + n$ and
$W^{-1} = W_0^{-1} + S + \kappa_0 n (\bar x - m_0)(\bar x - m_0)^\top / \kappa$; its joint mode is $\mu = m$,
$\Lambda = (\nu - F) W$ (Murphy 2007, section 8).

Missing features are integrated out: the likelihood of a step is that of its observed features, and the moments take the
conditional mean and covariance of the missing ones under the current parameters (Ghahramani & Jordan 1994). Steps that
miss the same features share their factorisation.
"""

import math
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ...inference.gaussian.op import Moments, multivariate_normal_log_density, multivariate_normal_moments
from ..parameters import Parameters, Site
from .contract import ByGate, Maximized, StateEmission, against_steps, is_complete, shaped
from .normal import location_and_variance


@dataclass(frozen=True)
class MultivariateNormal(StateEmission):
    """Normal vectors with a full covariance for each state.

    Parameters `loc [K, F]` and `precision [K, F, F]` (inverse covariance); `covariance` is accepted in its place.
    """

    n_features: int
    event_dims: ClassVar[dict[str, int]] = {"loc": 1, "precision": 2}

    def check(self, x: Tensor) -> None:
        pass  # every finite vector is in the support

    def check_values(self, values: Parameters) -> Parameters:
        values = dict(values)
        if "covariance" in values:
            values["precision"] = _inverse(values.pop("covariance"), "covariance")
        loc = shaped(values, "loc", (self.n_features,), "MultivariateNormal")
        precision = shaped(values, "precision", (self.n_features, self.n_features), "MultivariateNormal")
        _inverse(precision, "precision")
        return {"loc": loc, "precision": precision}

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        mean, variance = location_and_variance(x, self.n_features)
        return {
            "loc": mean.expand(n_states, -1),
            "count": torch.full_like(mean[:1], 0.01).expand(n_states),
            "df": torch.full_like(mean[:1], self.n_features + 2.0).expand(n_states),
            "inverse_scale": torch.diag(variance).expand(n_states, -1, -1),  # expected covariance: that of the data
        }

    def sites(self, prior: Parameters) -> list[Site]:
        def loc(values: Parameters) -> TorchDistributionMixin:
            precision = prior["count"][..., None, None] * values["precision"]
            return dist.MultivariateNormal(prior["loc"], precision_matrix=precision).to_event(1)

        def precision(values: Parameters) -> TorchDistributionMixin:
            return dist.Wishart(prior["df"], precision_matrix=prior["inverse_scale"]).to_event(1)

        return [Site("precision", precision), Site("loc", loc)]

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        observed = ~torch.isnan(x)
        residual = torch.where(observed, x, 0.0) - values["loc"]
        if bool(observed.all()):
            return _log_density(residual, torch.linalg.cholesky(values["precision"]))
        # a missing feature becomes a standard normal at its mean, independent of the rest, and its density is taken out
        seen = observed.to(x.dtype)
        covariance = torch.cholesky_inverse(torch.linalg.cholesky(values["precision"]))
        covariance = covariance * seen.unsqueeze(-1) * seen.unsqueeze(-2) + torch.diag_embed(1 - seen)
        chol = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(covariance)))
        missing = (1 - seen).sum(-1)
        return _log_density(torch.where(observed, residual, 0.0), chol) + 0.5 * math.log(2 * math.pi) * missing

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        rows = x.reshape(-1, self.n_features)
        parts = []
        patterns = _patterns(rows)
        for observed, which in patterns:
            if observed is None:
                chol = torch.linalg.cholesky(values["precision"])
                parts.append(multivariate_normal_log_density(rows[which], values["loc"], chol))
            else:
                parts.append(self.log_prob(rows[which].unsqueeze(-2), against_steps(values, self.event_dims, 1)))
        table = parts[0]
        if len(patterns) > 1:
            order = torch.cat([torch.as_tensor(which) for _, which in patterns]).argsort()
            table = torch.cat(parts, -2).index_select(-2, order)
        return table.reshape(*table.shape[:-2], *x.shape[:-1], table.shape[-1])

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return dist.MultivariateNormal(values["loc"], precision_matrix=values["precision"])

    def moments(self, x: Tensor, weights: Tensor, values: Parameters | None) -> Parameters:
        if values is None:
            mean, variance = location_and_variance(x, self.n_features)
            values = {"loc": mean.unsqueeze(0), "precision": torch.diag(1 / variance).unsqueeze(0)}
        parts = [_pattern_moments(x[rows], observed, weights[..., rows, :], values) for observed, rows in _patterns(x)]
        count, first, second = (reduce(torch.add, part) for part in zip(*parts, strict=True))
        shift = first / count.clamp(min=torch.finfo(x.dtype).tiny).unsqueeze(-1)
        scatter = second - first.unsqueeze(-1) * shift.unsqueeze(-2)
        return {"count": count, "mean": values["loc"] + shift, "scatter": 0.5 * (scatter + scatter.mT)}

    def maximize(self, moments: Parameters, prior: Parameters | None, floor: Tensor) -> Maximized:
        n, mean, scatter = moments["count"][..., None], moments["mean"], moments["scatter"]
        if prior is None:
            # in units of the floor's square root a covariance with an eigenvalue below 1 has collapsed
            unit = floor.sqrt()
            any_mass = n.unsqueeze(-1) > 0
            scaled = scatter / torch.where(any_mass, n.unsqueeze(-1), 1.0) / (unit.unsqueeze(-1) * unit)
            variance, axes = torch.linalg.eigh(scaled)
            inverse = (axes / variance.clamp(min=1.0).unsqueeze(-2)) @ axes.mT / (unit.unsqueeze(-1) * unit)
            inverse = torch.where(any_mass, inverse, torch.nan)  # no estimate: the caller keeps what it had
            return Maximized({"loc": mean, "precision": _symmetric(inverse)}, (variance <= 1.0).any(-1))
        prior_count = prior["count"][..., None]
        count = prior_count + n
        loc = (prior_count * prior["loc"] + n * mean) / count
        offset = mean - prior["loc"]
        between = (prior_count * n / count).unsqueeze(-1) * offset.unsqueeze(-1) * offset.unsqueeze(-2)
        chol = torch.linalg.cholesky(prior["inverse_scale"] + scatter + between)
        df = (prior["df"] + moments["count"] - self.n_features)[..., None, None]
        values = {"loc": loc, "precision": _symmetric(df * torch.cholesky_inverse(chol))}
        return Maximized(values, torch.zeros_like(moments["count"], dtype=torch.bool))

    def mean(self, values: Parameters) -> ByGate:
        return ByGate(values["loc"], values["loc"])

    def variance(self, values: Parameters) -> ByGate:
        variance = torch.diagonal(self.describe(values)["covariance"], dim1=-2, dim2=-1)
        return ByGate(variance, variance)

    def describe(self, values: Parameters) -> Parameters:
        covariance = torch.cholesky_inverse(torch.linalg.cholesky(values["precision"]))
        return {"loc": values["loc"], "covariance": covariance}


def _log_density(residual: Tensor, chol_precision: Tensor) -> Tensor:
    """log N(x; loc, precision) from x - loc [..., F] and the Cholesky factor of the precision."""
    whitened = (chol_precision * residual.unsqueeze(-1)).sum(-2)
    half_log_det = chol_precision.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return half_log_det - 0.5 * (whitened.square().sum(-1) + residual.shape[-1] * math.log(2 * math.pi))


def _patterns(x: Tensor) -> list[tuple[Tensor | None, Tensor | slice]]:
    """Each pattern of observed features in x [N, F], None where all are, and an index of the rows that have it."""
    if is_complete(x):
        return [(None, slice(None))]
    patterns, which = torch.unique(~torch.isnan(x), dim=0, return_inverse=True)
    rows = [torch.nonzero(which == i)[:, 0] for i in range(len(patterns))]
    return [(None if bool(p.all()) else p, index) for p, index in zip(patterns, rows, strict=True)]


def _pattern_moments(x: Tensor, observed: Tensor | None, weights: Tensor, values: Parameters) -> Moments:
    """Expected moments about the state's mean of rows that miss the same features."""
    if observed is None:
        return multivariate_normal_moments(x, weights, values["loc"])
    filled, spread = _conditional(x, observed, values)
    count, residual = weights.sum(-2), filled - values["loc"].unsqueeze(-2)
    weighted = residual * weights.mT.unsqueeze(-1)
    return Moments(count, weighted.sum(-2), weighted.mT @ residual + count[..., None, None] * spread)


def _conditional(x: Tensor, observed: Tensor, values: Parameters) -> tuple[Tensor, Tensor]:
    """Mean [*r, K, n, F] of rows x [n, F] given their observed features, and covariance [*r, K, F, F] of the missing.

    Given the observed, the missing features have precision `precision[m, m]` and mean
    `loc[m] - precision[m, m]^-1 precision[m, o] (x[o] - loc[o])`.
    """
    loc, precision = values["loc"].unsqueeze(-2), values["precision"]
    missing = ~observed
    residual = torch.where(observed, torch.where(observed, x, 0.0) - loc, 0.0)
    both = missing.unsqueeze(-1) & missing
    block = torch.where(both, precision, torch.diag(observed.to(x.dtype)))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(block))
    spread = torch.where(both, inverse, 0.0)
    return loc + residual - torch.where(missing, (residual @ precision) @ spread, 0.0), spread


def _inverse(matrix: Tensor, name: str) -> Tensor:
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(f"{name}: got shape {tuple(matrix.shape)}, expected square matrices [K, F, F].")
    chol, failed = torch.linalg.cholesky_ex(matrix)
    asymmetry = (matrix - matrix.mT).abs().amax() > 1e-6 * matrix.abs().amax()
    if bool(failed.any()) or bool(asymmetry) or not bool(torch.isfinite(matrix).all()):
        raise ValueError(f"{name}: got a matrix that is not symmetric positive definite; check each state's matrix.")
    return torch.cholesky_inverse(chol)


def _symmetric(matrix: Tensor) -> Tensor:
    return 0.5 * (matrix + matrix.mT)
