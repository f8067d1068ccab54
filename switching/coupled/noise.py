"""Emissions whose log-likelihood is multilinear in the states of several chains: normal, and log-linear counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TINY = 1e-30  # least probability or rate after an M-step


@dataclass(frozen=True)
class NormalNoise:
    """Normal observations: x with 0 where missing, precision [*b, T, F, F] or [F, F] with 0 there, log-normalizer."""

    x: Tensor
    precision: Tensor
    constant: Tensor

    @staticmethod
    def of(x: Tensor, precision: Tensor) -> "NormalNoise":
        """Observations x with NaN where a feature is missing, which is marginalised."""
        seen = (~torch.isnan(x)).to(x)
        if not bool((seen > 0).all()):
            covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
            covariance = covariance * seen.unsqueeze(-1) * seen.unsqueeze(-2) + torch.diag_embed(1 - seen)
            precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance)) - torch.diag_embed(1 - seen)
        log_det = torch.linalg.slogdet(precision + torch.diag_embed(1 - seen)).logabsdet
        constant = (log_det - seen.sum(-1) * math.log(2 * math.pi)) / 2
        return NormalNoise(torch.where(seen.bool(), x, 0.0), precision, constant)

    def table(self, eta: Tensor) -> Tensor:
        """log p(x | eta) for each row of eta [N, F]: [*b, T, N]."""
        residual = self.x.unsqueeze(-2) - eta
        return self.constant.unsqueeze(-1) - ((residual @ self.precision) * residual).sum(-1) / 2

    def expected(self, loc: Sequence[Tensor], states: Sequence[Tensor]) -> Tensor:
        """E[log p(x | eta)] where chains are independent, with probabilities [*b, T, K_d] of their states: [*b, T]."""
        means = [m @ table for m, table in zip(states, loc, strict=True)]
        value = self.constant - self._product(self.x, self.x) / 2
        before = torch.zeros_like(self.x)
        for m, table, mean in zip(states, loc, means, strict=True):
            own = ((table @ self.precision) * table).sum(-1)
            value = value + self._product(self.x - before, mean) - (m * own).sum(-1) / 2
            before = before + mean
        return value

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        return ((self.precision @ b.unsqueeze(-1)).squeeze(-1) * a).sum(-1)


@dataclass(frozen=True)
class CountNoise:
    """Counts x, with 0 where they are missing."""

    x: Tensor
    seen: Tensor

    @staticmethod
    def of(x: Tensor) -> "CountNoise":
        """Counts x with NaN where missing."""
        seen = ~torch.isnan(x)
        return CountNoise(torch.where(seen, x, 0.0), seen.to(x))

    def table(self, eta: Tensor) -> Tensor:
        """log p(x | eta) for each row of eta [N, F]: [*b, T, N]."""
        terms = self.x.unsqueeze(-2) * eta - eta.exp() - torch.lgamma(self.x + 1).unsqueeze(-2)
        return (terms * self.seen.unsqueeze(-2)).sum(-1)

    def expected(self, loc: Sequence[Tensor], states: Sequence[Tensor]) -> Tensor:
        """E[log p(x | eta)] where chains are independent, with probabilities [*b, T, K_d] of their states: [*b, T]."""
        linear = torch.stack([m @ table for m, table in zip(states, loc, strict=True)]).sum(0)
        rate = torch.stack([m @ table.exp() for m, table in zip(states, loc, strict=True)]).prod(0)
        return ((self.x * linear - rate - torch.lgamma(self.x + 1)) * self.seen).sum(-1)


def fit_normal(x: Tensor, states: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Means of each chain's states and noise precision that are best for x [N, F] under independent states [N, K_d].

    Least squares on expected states; of solutions that differ by offsets between chains, the smallest. Rows of x with
    NaN are left out.
    """
    rows, _, states = _seen(x, states)
    joint = torch.cat(states, -1)
    own = torch.block_diag(*(torch.ones(m.shape[-1], m.shape[-1]) for m in states)).to(joint)
    second = (joint.mT @ joint) * (1 - own) + torch.diag(joint.sum(0))
    cross = joint.mT @ rows
    loc = torch.linalg.pinv(second, hermitian=True) @ cross
    scatter = rows.mT @ rows - loc.mT @ cross - cross.mT @ loc + loc.mT @ second @ loc
    chol = torch.linalg.cholesky((scatter + scatter.mT) / (2 * len(rows)))
    return list(loc.split([m.shape[-1] for m in states])), torch.cholesky_inverse(chol)


def fit_counts(x: Tensor, states: Sequence[Tensor], loc: Sequence[Tensor]) -> list[Tensor]:
    """Log rates of each chain's states, one chain after the other at its best for counts x [N, F] given the others."""
    rows, ones, states = _seen(x, states)
    fitted = list(loc)
    for d, m in enumerate(states):
        others = [states[e] @ fitted[e].exp() for e in range(len(states)) if e != d]
        exposure = m.mT @ torch.stack([ones, *others]).prod(0)
        total = (m.mT @ rows).clamp_min(TINY)
        fitted[d] = torch.where(exposure > 0, (total / exposure.clamp_min(TINY)).log(), fitted[d])
    return fitted


def _seen(x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The rows of x without NaN, as many ones, and the same rows of the states."""
    seen = ~torch.isnan(x).any(-1)
    return x[seen], torch.ones_like(x[seen]), [m[seen] for m in states]
