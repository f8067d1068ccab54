"""Families of discrete variables, by log weights. An impossible value adds nothing to sums, because 0 log 0 = 0."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..numerics.logs import log_sigmoid
from .family import VectorFamily
from .numerics import require


@dataclass(frozen=True)
class BernoulliParameters:
    probs: Float[Tensor, "*plates"]


@dataclass(frozen=True)
class CategoricalParameters:
    probs: Float[Tensor, "*plates K"]


class Bernoulli(VectorFamily[Tensor]):
    """A coin. Its point is 0 or 1, in the dtype of the logit."""

    latent = True

    def natural(self, probs: Float[Tensor, "*plates"]) -> Float[Tensor, "*plates 1"]:
        return (probs.log() - torch.log1p(-probs))[..., None]

    def usual(self, eta: Float[Tensor, "*plates 1"]) -> BernoulliParameters:
        return BernoulliParameters(torch.sigmoid(eta[..., 0]))

    def check(self, eta: Tensor) -> None:
        require(~eta.isnan(), "logit", eta, self, "a number")

    def log_normalizer(self, eta: Float[Tensor, "*plates 1"]) -> Float[Tensor, "*plates"]:
        return torch.nn.functional.softplus(eta[..., 0])

    def mean(self, eta: Float[Tensor, "*plates 1"]) -> Float[Tensor, "*plates 1"]:
        return torch.sigmoid(eta)

    def dot(self, eta: Float[Tensor, "*#plates 1"], statistics: Float[Tensor, "*#plates 1"]) -> Float[Tensor, "*out"]:
        return super().dot(where_possible(eta, statistics), statistics)

    def kl(self, eta: Float[Tensor, "*#plates 1"], eta0: Float[Tensor, "*#plates 1"]) -> Float[Tensor, "*out"]:
        both, both0 = torch.cat([eta, -eta], -1), torch.cat([eta0, -eta0], -1)
        return discrete_kl(log_sigmoid(both), log_sigmoid(both0))

    def statistics(self, point: Float[Tensor, "*plates"]) -> Float[Tensor, "*plates 1"]:
        return point[..., None]

    def sample(self, eta: Float[Tensor, "*plates 1"], n: int, generator: Generator | None = None) -> Tensor:
        return torch.bernoulli(torch.sigmoid(eta[..., 0]).expand(n, *eta.shape[:-1]), generator=generator)

    def expected(self, eta: Float[Tensor, "*plates 1"]) -> Float[Tensor, "*plates"]:
        return torch.sigmoid(eta[..., 0])

    def mode(self, eta: Float[Tensor, "*plates 1"]) -> Float[Tensor, "*plates"]:
        return (eta[..., 0] > 0).to(eta.dtype)


class Categorical(VectorFamily[Tensor]):
    """One of K states, by its log weights (-inf for an impossible one). Its point is the state's index."""

    latent = True

    def natural(self, probs: Float[Tensor, "*plates K"]) -> Float[Tensor, "*plates K"]:
        return probs.log()

    def usual(self, eta: Float[Tensor, "*plates K"]) -> CategoricalParameters:
        return CategoricalParameters(torch.softmax(eta, -1))

    def check(self, eta: Tensor) -> None:
        top = eta.amax(-1, keepdim=True)  # NaN if any weight is NaN
        require(top.isfinite(), "log weights", top, self, "a finite greatest weight: numbers or -inf, not all -inf")

    def log_normalizer(self, eta: Float[Tensor, "*plates K"]) -> Float[Tensor, "*plates"]:
        return torch.logsumexp(eta, -1)

    def mean(self, eta: Float[Tensor, "*plates K"]) -> Float[Tensor, "*plates K"]:
        return torch.softmax(eta, -1)

    def dot(self, eta: Float[Tensor, "*#plates K"], statistics: Float[Tensor, "*#plates K"]) -> Float[Tensor, "*out"]:
        return super().dot(where_possible(eta, statistics), statistics)

    def kl(self, eta: Float[Tensor, "*#plates K"], eta0: Float[Tensor, "*#plates K"]) -> Float[Tensor, "*out"]:
        return discrete_kl(torch.log_softmax(eta, -1), torch.log_softmax(eta0, -1))

    def statistics(self, point: Float[Tensor, "*plates K"]) -> Float[Tensor, "*plates K"]:
        return point

    def sample(self, eta: Float[Tensor, "*plates K"], n: int, generator: Generator | None = None) -> Tensor:
        uniform = torch.rand(n, *eta.shape, generator=generator, dtype=eta.dtype, device=eta.device)
        return self.mode(eta - (-uniform.log()).log())  # Gumbel 1954

    def expected(self, eta: Float[Tensor, "*plates K"]) -> Float[Tensor, "*plates K"]:
        return torch.softmax(eta, -1)

    def mode(self, eta: Float[Tensor, "*plates K"]) -> Float[Tensor, "*plates K"]:
        return torch.nn.functional.one_hot(eta.argmax(-1), eta.shape[-1]).to(eta.dtype)


def discrete_kl(log_probs: Tensor, log_probs0: Tensor) -> Tensor:
    """sum p log(p / p0), in which an impossible state adds nothing, in value and in gradient."""
    impossible = log_probs == -torch.inf
    ratio = log_probs.masked_fill(impossible, 0.0) - log_probs0.masked_fill(impossible, 0.0)
    return (log_probs.exp() * ratio).sum(-1)


def where_possible(eta: Tensor, statistics: Tensor) -> Tensor:
    """eta, with 0 for an infinite weight of a state without mass, because 0 log 0 = 0."""
    return torch.where((statistics == 0) & eta.isinf(), 0.0, eta)
