"""Probabilities and positive numbers: Beta, Dirichlet, Gamma."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from .family import VectorFamily
from .numerics import lgamma_gap, log_gamma_draw, positive, require, scale_gap


@dataclass(frozen=True)
class BetaParameters:
    a: Float[Tensor, "*plates"]
    b: Float[Tensor, "*plates"]


@dataclass(frozen=True)
class DirichletParameters:
    concentration: Float[Tensor, "*plates K"]


@dataclass(frozen=True)
class GammaParameters:
    shape: Float[Tensor, "*plates"]
    rate: Float[Tensor, "*plates"]


class _Simplex(VectorFamily[Tensor]):
    """The base of Beta and Dirichlet: eta are the concentrations."""

    kernel = "simplex"

    def check(self, eta: Tensor) -> None:
        positive("concentration", eta, self)

    def log_normalizer(self, eta: Float[Tensor, "*plates K"]) -> Float[Tensor, "*plates"]:
        return torch.lgamma(eta).sum(-1) - torch.lgamma(eta.sum(-1))

    def mean(self, eta: Float[Tensor, "*plates K"]) -> Float[Tensor, "*plates K"]:
        return torch.digamma(eta) - torch.digamma(eta.sum(-1, keepdim=True))

    def log_base(self, statistics: Float[Tensor, "*plates K"]) -> Float[Tensor, "*plates"]:
        return -statistics.sum(-1)

    def kl(self, eta: Float[Tensor, "*#plates K"], eta0: Float[Tensor, "*#plates K"]) -> Float[Tensor, "*out"]:
        return lgamma_gap(eta0, eta).sum(-1) - lgamma_gap(eta0.sum(-1), eta.sum(-1))

    def supremum(self, message: Float[Tensor, "*plates K"]) -> Float[Tensor, "*plates"]:
        share = message / message.sum(-1, keepdim=True)
        return torch.xlogy(message, torch.where(message > 0, share, 1.0)).sum(-1)

    def tilted(self, eta: Float[Tensor, "*plates K"]) -> Float[Tensor, "*plates K"]:
        return eta - 1

    def _sample(self, eta: Float[Tensor, "*plates K"], n: int, generator: Generator | None) -> Tensor:
        return torch.softmax(log_gamma_draw(eta.expand(n, *eta.shape), generator), -1)

    def _require_mode(self, eta: Float[Tensor, "*plates K"]) -> None:
        require(eta >= 1, "concentration", eta, self, "at least 1 for a mode; take the mean instead")
        above = (eta > 1).any(-1, keepdim=True)
        require(above, "concentration", eta, self, "at least one above 1 for a mode; take the mean instead")


class Dirichlet(_Simplex):
    """A probability vector of length K. Its point is the vector itself."""

    def natural(self, concentration: Float[Tensor, "*plates K"]) -> Float[Tensor, "*plates K"]:
        return concentration

    def usual(self, eta: Float[Tensor, "*plates K"]) -> DirichletParameters:
        return DirichletParameters(eta)

    def statistics(self, point: Float[Tensor, "*plates K"]) -> Float[Tensor, "*plates K"]:
        return point.log()

    def sample(self, eta: Float[Tensor, "*plates K"], n: int, generator: Generator | None = None) -> Tensor:
        return self._sample(eta, n, generator)

    def expected(self, eta: Float[Tensor, "*plates K"]) -> Float[Tensor, "*plates K"]:
        return eta / eta.sum(-1, keepdim=True)

    def mode(self, eta: Float[Tensor, "*plates K"]) -> Float[Tensor, "*plates K"]:
        if eta.shape[-1] == 1:
            return torch.ones_like(eta)
        self._require_mode(eta)
        return self.expected(self.tilted(eta))


class Beta(_Simplex):
    """A probability p: the Dirichlet of (p, 1-p). Its point is p."""

    def natural(self, a: Float[Tensor, "*#plates"], b: Float[Tensor, "*#plates"]) -> Float[Tensor, "*out 2"]:
        return torch.stack(torch.broadcast_tensors(a, b), -1)

    def usual(self, eta: Float[Tensor, "*plates 2"]) -> BetaParameters:
        return BetaParameters(*eta.unbind(-1))

    def statistics(self, point: Float[Tensor, "*plates"]) -> Float[Tensor, "*plates 2"]:
        return torch.stack([point.log(), torch.log1p(-point)], -1)

    def sample(self, eta: Float[Tensor, "*plates 2"], n: int, generator: Generator | None = None) -> Tensor:
        return self._sample(eta, n, generator)[..., 0]

    def expected(self, eta: Float[Tensor, "*plates 2"]) -> Float[Tensor, "*plates"]:
        return eta[..., 0] / eta.sum(-1)

    def mode(self, eta: Float[Tensor, "*plates 2"]) -> Float[Tensor, "*plates"]:
        self._require_mode(eta)
        return self.expected(self.tilted(eta))


class Gamma(VectorFamily[Tensor]):
    """A positive number, by shape and rate."""

    kernel = "gamma"

    def natural(self, shape: Float[Tensor, "*#plates"], rate: Float[Tensor, "*#plates"]) -> Float[Tensor, "*out 2"]:
        return torch.stack(torch.broadcast_tensors(shape, -rate), -1)

    def usual(self, eta: Float[Tensor, "*plates 2"]) -> GammaParameters:
        return GammaParameters(eta[..., 0], -eta[..., 1])

    def check(self, eta: Tensor) -> None:
        positive("shape", eta[..., 0], self)
        positive("rate", -eta[..., 1], self)

    def log_normalizer(self, eta: Float[Tensor, "*plates 2"]) -> Float[Tensor, "*plates"]:
        q = self.usual(eta)
        return torch.lgamma(q.shape) - q.shape * q.rate.log()

    def mean(self, eta: Float[Tensor, "*plates 2"]) -> Float[Tensor, "*plates 2"]:
        q = self.usual(eta)
        return torch.stack([torch.digamma(q.shape) - q.rate.log(), q.shape / q.rate], -1)

    def log_base(self, statistics: Float[Tensor, "*plates 2"]) -> Float[Tensor, "*plates"]:
        return -statistics[..., 0]

    def kl(self, eta: Float[Tensor, "*#plates 2"], eta0: Float[Tensor, "*#plates 2"]) -> Float[Tensor, "*out"]:
        q, p = self.usual(eta), self.usual(eta0)
        return lgamma_gap(p.shape, q.shape) + scale_gap(p.rate, q.rate, p.shape, q.shape)

    def statistics(self, point: Float[Tensor, "*plates"]) -> Float[Tensor, "*plates 2"]:
        return torch.stack([point.log(), point], -1)

    def sample(self, eta: Float[Tensor, "*plates 2"], n: int, generator: Generator | None = None) -> Tensor:
        q = self.usual(eta)
        return log_gamma_draw(q.shape.expand(n, *q.shape.shape), generator).exp() / q.rate

    def supremum(self, message: Float[Tensor, "*plates 2"]) -> Float[Tensor, "*plates"]:
        shape, rate = message[..., 0], -message[..., 1]
        return torch.xlogy(shape, torch.where(shape > 0, shape / rate, 1.0)) - shape

    def tilted(self, eta: Float[Tensor, "*plates 2"]) -> Float[Tensor, "*plates 2"]:
        return torch.stack([eta[..., 0] - 1, eta[..., 1]], -1)

    def expected(self, eta: Float[Tensor, "*plates 2"]) -> Float[Tensor, "*plates"]:
        return -eta[..., 0] / eta[..., 1]

    def mode(self, eta: Float[Tensor, "*plates 2"]) -> Float[Tensor, "*plates"]:
        shape = eta[..., 0]
        require(shape >= 1, "shape", shape, self, "at least 1 for a mode; take the mean instead")
        return self.expected(self.tilted(eta))
