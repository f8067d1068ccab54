r"""Emissions on integers: Bernoulli and Poisson features, and one categorical symbol.

| emission | $p(x \mid s)$ | conjugate prior | posterior mode with weights $w_t$ |
|---|---|---|---|
| Bernoulli | $p^x (1-p)^{1-x}$ | Beta(a, b) | $(a - 1 + \sum w x) / (a + b - 2 + \sum w)$ |
| Poisson | $\lambda^x e^{-\lambda} / x!$ | Gamma(a, b) | $(a - 1 + \sum w x) / (b + \sum w)$ |
| Categorical | $p_x$ | Dirichlet($\alpha$) | $(\alpha_c - 1 + \sum w [x = c]) / \sum_{c'} (\ldots)$ |

A missing feature has likelihood 1 and adds nothing to the sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ..parameters import Parameters, Site, concentration
from .contract import ByGate, Maximized, StateEmission, check_support, shaped


def _never(count: Tensor) -> Tensor:
    """These emissions have no variance that could collapse."""
    return torch.zeros(count.shape[:-1], dtype=torch.bool, device=count.device)


def _weighted_sums(x: Tensor, weights: Tensor) -> Parameters:
    observed = ~torch.isnan(x)
    return {"count": weights.mT @ observed.to(x.dtype), "total": weights.mT @ torch.where(observed, x, 0.0)}


@dataclass(frozen=True)
class Bernoulli(StateEmission):
    """Independent binary features; parameter `probs [K, F]`."""

    n_features: int = 1
    event_dims: ClassVar[dict[str, int]] = {"probs": 1}

    def check(self, x: Tensor) -> None:
        check_support(x, (x == 0) | (x == 1), "0 or 1 (Bernoulli)")

    def check_values(self, values: Parameters) -> Parameters:
        probs = shaped(values, "probs", (self.n_features,), "Bernoulli")
        if not bool(((probs >= 0) & (probs <= 1)).all()):
            raise ValueError("probs: got values outside [0, 1]; give probabilities.")
        return {"probs": probs}

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        two = torch.full((n_states, self.n_features), 2.0, dtype=torch.float64 if x is None else x.dtype)
        return {"successes": two, "failures": two.clone()}

    def sites(self, prior: Parameters) -> list[Site]:
        return [Site("probs", lambda v: dist.Beta(prior["successes"], prior["failures"]).to_event(2))]

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        observed = ~torch.isnan(x)
        filled = torch.where(observed, x, 0.0)
        terms = torch.xlogy(filled, values["probs"]) + torch.special.xlog1py(1 - filled, -values["probs"])
        return torch.where(observed, terms, 0.0).sum(-1)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return dist.Bernoulli(values["probs"]).to_event(1)

    def moments(self, x: Tensor, weights: Tensor, values: Parameters | None) -> Parameters:
        return _weighted_sums(x, weights)

    def maximize(self, moments: Parameters, prior: Parameters | None, floor: Tensor) -> Maximized:
        count, total = moments["count"], moments["total"]
        if prior is not None:
            total = total + prior["successes"] - 1
            count = count + prior["successes"] + prior["failures"] - 2
        return Maximized({"probs": (total / count).clamp(0.0, 1.0)}, _never(count))

    def mean(self, values: Parameters) -> ByGate:
        return ByGate(values["probs"], values["probs"])

    def variance(self, values: Parameters) -> ByGate:
        variance = values["probs"] * (1 - values["probs"])
        return ByGate(variance, variance)


@dataclass(frozen=True)
class Poisson(StateEmission):
    """Independent counts; parameter `rate [K, F]`, the expected count a step."""

    n_features: int = 1
    event_dims: ClassVar[dict[str, int]] = {"rate": 1}

    def check(self, x: Tensor) -> None:
        check_support(x, (x >= 0) & (x == x.floor()), "counts 0, 1, 2, ... (Poisson)")

    def check_values(self, values: Parameters) -> Parameters:
        rate = shaped(values, "rate", (self.n_features,), "Poisson")
        if not bool((rate >= 0).all()):
            raise ValueError("rate: got negative values; give expected counts.")
        return {"rate": rate}

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        mean = torch.ones(self.n_features, dtype=torch.float64) if x is None else x.nanmean(0)
        shape = torch.full((n_states, self.n_features), 2.0, dtype=mean.dtype, device=mean.device)
        return {"shape": shape, "rate": shape / torch.where(mean > 0, mean, 1.0)}  # prior mean: that of the data

    def sites(self, prior: Parameters) -> list[Site]:
        return [Site("rate", lambda v: dist.Gamma(prior["shape"], prior["rate"]).to_event(2))]

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        observed = ~torch.isnan(x)
        filled = torch.where(observed, x, 0.0)
        terms = torch.xlogy(filled, values["rate"]) - values["rate"] - torch.lgamma(filled + 1)
        return torch.where(observed, terms, 0.0).sum(-1)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return dist.Poisson(values["rate"]).to_event(1)

    def moments(self, x: Tensor, weights: Tensor, values: Parameters | None) -> Parameters:
        return _weighted_sums(x, weights)

    def maximize(self, moments: Parameters, prior: Parameters | None, floor: Tensor) -> Maximized:
        count, total = moments["count"], moments["total"]
        if prior is not None:
            count, total = count + prior["rate"], total + prior["shape"] - 1
        return Maximized({"rate": total / count}, _never(count))

    def mean(self, values: Parameters) -> ByGate:
        return ByGate(values["rate"], values["rate"])

    def variance(self, values: Parameters) -> ByGate:
        return ByGate(values["rate"], values["rate"])

    def embed(self, x: Tensor) -> Tensor:
        return x.sqrt()  # stabilises the variance of counts


@dataclass(frozen=True)
class Categorical(StateEmission):
    """One symbol 0, ..., C-1 a step; parameter `probs [K, C]`. `prior` is a Dirichlet concentration: scalar, [C] or [K,
    C]."""

    n_categories: int
    prior: float | Sequence = 1.0
    n_features: ClassVar[int] = 1
    event_dims: ClassVar[dict[str, int]] = {"probs": 1}

    def __post_init__(self) -> None:
        if self.n_categories < 1:
            raise ValueError(f"n_categories: got {self.n_categories}, expected at least 1.")

    def check(self, x: Tensor) -> None:
        expected = f"an integer from 0 to {self.n_categories - 1} (Categorical of {self.n_categories} categories)"
        check_support(x, (x >= 0) & (x < self.n_categories) & (x == x.floor()), expected)

    def check_values(self, values: Parameters) -> Parameters:
        probs = shaped(values, "probs", (self.n_categories,), "Categorical")
        return {"probs": check_simplex(probs, "probs")}

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        table = concentration(self.prior, (n_states, self.n_categories), "prior")
        return {"concentration": table if x is None else table.to(x)}

    def sites(self, prior: Parameters) -> list[Site]:
        return [Site("probs", lambda v: dist.Dirichlet(prior["concentration"]).to_event(1))]

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        observed = ~torch.isnan(x[..., 0])
        symbol = torch.where(observed, x[..., 0], 0.0).long().unsqueeze(-1)
        log_probs = values["probs"].log()
        batch = torch.broadcast_shapes(symbol.shape[:-1], log_probs.shape[:-1])
        found = log_probs.expand(*batch, -1).gather(-1, symbol.expand(*batch, -1)).squeeze(-1)
        return torch.where(observed, found, 0.0)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return dist.Categorical(probs=values["probs"].unsqueeze(-2)).to_event(1)

    def moments(self, x: Tensor, weights: Tensor, values: Parameters | None) -> Parameters:
        observed = torch.nonzero(~torch.isnan(x[:, 0]))[:, 0]
        counts = weights.new_zeros(*weights.shape[:-2], weights.shape[-1], self.n_categories)
        return {"counts": counts.index_add(-1, x[observed, 0].long(), weights[..., observed, :].mT)}

    def maximize(self, moments: Parameters, prior: Parameters | None, floor: Tensor) -> Maximized:
        counts = moments["counts"] + (0.0 if prior is None else prior["concentration"] - 1)
        return Maximized({"probs": counts / counts.sum(-1, keepdim=True)}, _never(counts))

    def mean(self, values: Parameters) -> ByGate:
        mean = (values["probs"] * self._symbols(values)).sum(-1, keepdim=True)
        return ByGate(mean, mean)

    def variance(self, values: Parameters) -> ByGate:
        deviation = self._symbols(values) - self.mean(values).redrawn
        variance = (values["probs"] * deviation**2).sum(-1, keepdim=True)
        return ByGate(variance, variance)

    def _symbols(self, values: Parameters) -> Tensor:
        return torch.arange(self.n_categories, dtype=values["probs"].dtype, device=values["probs"].device)

    def embed(self, x: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(x[:, 0].long(), self.n_categories).to(x.dtype)


def check_simplex(probs: Tensor, name: str) -> Tensor:
    """The table itself, where its last axis holds probabilities that sum to 1 to rounding; else ValueError."""
    total = probs.sum(-1, keepdim=True)
    if not bool((probs >= 0).all()) or not bool(((total - 1).abs() <= 1e-6).all()):
        sums = total.flatten().tolist()[:4]
        raise ValueError(f"{name}: got rows that are not probabilities (sums {sums}); normalise them.")
    exact = (total - 1).abs() <= 8 * torch.finfo(probs.dtype).eps
    return torch.where(exact, probs, probs / total)
