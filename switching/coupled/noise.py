"""Emissions whose log-likelihood is multilinear in the states of several chains: normal, and log-linear counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from ...inference.numerics.cholesky import cholesky, cholesky_inverse


@dataclass(frozen=True)
class NormalNoise:
    """Normal observations: x, precision [*b, T, F, F] or [F, F], both 0 at missing features, and log-normalizer."""

    x: Tensor
    precision: Tensor
    constant: Tensor

    @staticmethod
    def of(x: Tensor, precision: Tensor) -> "NormalNoise":
        """The noise of observations x; missing features, NaN, are marginalised."""
        seen = (~torch.isnan(x)).to(x)
        if not bool((seen > 0).all()):
            covariance = cholesky_inverse(cholesky(precision))
            covariance = covariance * seen.unsqueeze(-1) * seen.unsqueeze(-2) + torch.diag_embed(1 - seen)
            precision = cholesky_inverse(cholesky(covariance)) - torch.diag_embed(1 - seen)
        log_det = torch.linalg.slogdet(precision + torch.diag_embed(1 - seen)).logabsdet
        constant = (log_det - seen.sum(-1) * math.log(2 * math.pi)) / 2
        return NormalNoise(torch.where(seen.bool(), x, 0.0), precision, constant)

    def table(self, eta: Tensor) -> Tensor:
        """log p(x | eta) for each row of eta [N, F]: [*b, T, N]."""
        residual = self.x.unsqueeze(-2) - eta
        return self.constant.unsqueeze(-1) - ((residual @ self.precision) * residual).sum(-1) / 2

    def expected(self, loc: Sequence[Tensor], states: Sequence[Tensor]) -> Tensor:
        """E[log p(x | eta)] of independent chains, with probabilities [*b, T, K_d] of their states: [*b, T]."""
        means = [m @ table for m, table in zip(states, loc, strict=True)]
        value = self.constant - self._product(self.x, self.x) / 2
        before = torch.zeros_like(self.x)
        for m, table, mean in zip(states, loc, means, strict=True):
            squares = ((table @ self.precision) * table).sum(-1)
            value = value + self._product(self.x - before, mean) - (m * squares).sum(-1) / 2
            before = before + mean
        return value

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        return ((self.precision @ b.unsqueeze(-1)).squeeze(-1) * a).sum(-1)


@dataclass(frozen=True)
class CountNoise:
    """Counts x, with 0 for missing counts."""

    x: Tensor
    seen: Tensor

    @staticmethod
    def of(x: Tensor) -> "CountNoise":
        """The noise of counts x, with NaN for missing counts."""
        seen = ~torch.isnan(x)
        return CountNoise(torch.where(seen, x, 0.0), seen.to(x))

    def table(self, eta: Tensor) -> Tensor:
        """log p(x | eta) for each row of eta [N, F]: [*b, T, N]."""
        terms = self.x.unsqueeze(-2) * eta - eta.exp() - torch.lgamma(self.x + 1).unsqueeze(-2)
        return (terms * self.seen.unsqueeze(-2)).sum(-1)

    def expected(self, loc: Sequence[Tensor], states: Sequence[Tensor]) -> Tensor:
        """E[log p(x | eta)] of independent chains, with probabilities [*b, T, K_d] of their states: [*b, T]."""
        linear = torch.stack([m @ table for m, table in zip(states, loc, strict=True)]).sum(0)
        rate = reduce(torch.mul, [m @ table.exp() for m, table in zip(states, loc, strict=True)])
        return ((self.x * linear - rate - torch.lgamma(self.x + 1)) * self.seen).sum(-1)
