r"""Independent normal features: $x_{tf} \mid s \sim N(\mu_{sf}, 1/\tau_{sf})$ with a normal-gamma prior.

$$\tau \sim \text{Gamma}(a_0, b_0), \qquad \mu \mid \tau \sim N(m_0, 1/(\kappa_0 \tau))$$

With weights of total $n$, weighted mean $\bar x$ and scatter $S = \sum_t w_t (x_t - \bar x)^2$ the posterior is of the
same form with $\kappa = \kappa_0 + n$, $m = (\kappa_0 m_0 + n \bar x)/\kappa$, $a = a_0 + n/2$ and
$b = b_0 + S/2 + \kappa_0 n (\bar x - m_0)^2 / (2\kappa)$; its joint mode is $\mu = m$, $\tau = (a - 1/2)/b$
(Murphy 2007, *Conjugate Bayesian analysis of the Gaussian distribution*, section 3).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ...inference.gaussian.op import normal_log_density, normal_moments
from ..parameters import Parameters, Site
from .contract import ByGate, Maximized, StateEmission, is_complete, shaped


@dataclass(frozen=True)
class Normal(StateEmission):
    """Independent normal features.

    Parameters `loc [K, F]` and `precision [K, F]` (inverse variance); `scale` is accepted in place of `precision`.
    """

    n_features: int = 1
    event_dims: ClassVar[dict[str, int]] = {"loc": 1, "precision": 1}

    def check(self, x: Tensor) -> None:
        pass  # every finite number is in the support

    def check_values(self, values: Parameters) -> Parameters:
        values = dict(values)
        if "scale" in values:
            values["precision"] = values.pop("scale") ** -2
        checked = {name: shaped(values, name, (self.n_features,), "Normal") for name in self.event_dims}
        if not bool((checked["precision"] > 0).all()):
            raise ValueError("precision: got values that are not positive; an inverse variance is greater than 0.")
        return checked

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        mean, variance = location_and_variance(x, self.n_features)
        shape = (n_states, self.n_features)
        return {
            "loc": mean.expand(shape),
            "count": torch.full_like(mean, 0.01).expand(shape),
            "shape": torch.full_like(mean, 1.5).expand(shape),
            "rate": (variance / 2).expand(shape),  # the prior's expected variance is that of the data
        }

    def sites(self, prior: Parameters) -> list[Site]:
        return [
            Site("precision", lambda v: dist.Gamma(prior["shape"], prior["rate"]).to_event(2)),
            Site("loc", lambda v: dist.Normal(prior["loc"], (prior["count"] * v["precision"]).rsqrt()).to_event(2)),
        ]

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        precision = values["precision"]
        observed = ~torch.isnan(x)
        residual = torch.where(observed, x, 0.0) - values["loc"]
        terms = 0.5 * (precision.log() - math.log(2 * math.pi) - precision * residual**2)
        return torch.where(observed, terms, 0.0).sum(-1)

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        if not is_complete(x):
            return super().table(x, values)
        table = normal_log_density(x.reshape(-1, self.n_features), values["loc"], values["precision"])
        return table.reshape(*table.shape[:-2], *x.shape[:-1], table.shape[-1])

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return dist.Normal(values["loc"], values["precision"].rsqrt()).to_event(1)

    def moments(self, x: Tensor, weights: Tensor, values: Parameters | None) -> Parameters:
        # about a point near the state's mean, so that a state far from the others loses no digits
        about = values["loc"] if values is not None else x.nanmean(-2, keepdim=True)
        if is_complete(x):
            count, first, second = normal_moments(x, weights, about)
            count = count.unsqueeze(-1).expand_as(first)
        else:
            observed = ~torch.isnan(x)
            count = weights.mT @ observed.to(x.dtype)
            residual = torch.where(observed, x, 0.0).unsqueeze(-2) - about.unsqueeze(-3)
            residual = torch.where(observed.unsqueeze(-2), residual, 0.0)
            first = torch.einsum("...nk,...nkf->...kf", weights, residual)
            second = torch.einsum("...nk,...nkf->...kf", weights, residual**2)
        shift = first / count.clamp(min=torch.finfo(x.dtype).tiny)
        return {"count": count, "mean": about + shift, "scatter": (second - first * shift).clamp(min=0.0)}

    def maximize(self, moments: Parameters, prior: Parameters | None, floor: Tensor) -> Maximized:
        n, mean, scatter = moments["count"], moments["mean"], moments["scatter"]
        if prior is None:
            variance = scatter / n
            collapsed = (variance <= floor).any(-1)
            return Maximized({"loc": mean, "precision": 1 / torch.maximum(variance, floor)}, collapsed)
        count = prior["count"] + n
        loc = (prior["count"] * prior["loc"] + n * mean) / count
        rate = prior["rate"] + 0.5 * (scatter + prior["count"] * n / count * (mean - prior["loc"]) ** 2)
        precision = (prior["shape"] + 0.5 * n - 0.5) / rate
        return Maximized({"loc": loc, "precision": precision}, torch.zeros_like(n[..., 0], dtype=torch.bool))

    def mean(self, values: Parameters) -> ByGate:
        return ByGate(values["loc"], values["loc"])

    def variance(self, values: Parameters) -> ByGate:
        variance = 1 / values["precision"]
        return ByGate(variance, variance)

    def describe(self, values: Parameters) -> Parameters:
        return {"loc": values["loc"], "scale": values["precision"].rsqrt()}


def location_and_variance(x: Tensor | None, n_features: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of each feature over the observed values, [F] twice; 0 and 1 without data or spread."""
    if x is None:
        return torch.zeros(n_features, dtype=torch.float64), torch.ones(n_features, dtype=torch.float64)
    mean = x.nanmean(0)
    variance = ((x - mean) ** 2).nanmean(0)
    return mean, torch.where(variance > 0, variance, 1.0)
