"""The tables of a `SegmentChain`, flat and in float64, as its operators read them."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .records import Conjugate


class Tables(NamedTuple):
    """N sequences of T steps; steps after the end hold, without observations."""

    families: tuple[Conjugate, ...]
    priors: tuple[Tensor, ...]  # [N, F, D]
    statistics: tuple[Tensor, ...]  # [N, T, F, D]
    log_base: Tensor  # [N, T]
    log_change: Tensor  # [N, H], by step or by run
    log_hold: Tensor  # [N, H]
    by_run: bool
    lengths: Tensor  # [N]
    tol: float

    @property
    def inside(self) -> Tensor:
        """[N, T], which steps belong to their sequence."""
        return torch.arange(self.n_steps, device=self.lengths.device) < self.lengths.unsqueeze(-1)

    @property
    def n_steps(self) -> int:
        return self.log_base.shape[-1]

    @property
    def floats(self) -> tuple[Tensor, ...]:
        """The tables that have derivatives."""
        return *self.priors, *self.statistics, self.log_base, self.log_change, self.log_hold

    def with_floats(self, floats: tuple[Tensor, ...]) -> "Tables":
        n = len(self.families)
        base, change, hold = floats[2 * n :]
        return self._replace(
            priors=floats[:n], statistics=floats[n : 2 * n], log_base=base, log_change=change, log_hold=hold
        )

    def blocks(self) -> Iterator[tuple[Conjugate, Tensor, Tensor]]:
        return zip(self.families, self.priors, self.statistics, strict=True)

    def change(self, step: Tensor, run: Tensor) -> tuple[Tensor, Tensor]:
        """log P(change before `step`) and log P(none), [N, ...], after segments of `run` steps."""
        step = step.expand_as(run)
        index = run.clamp(1, self.log_change.shape[-1]) - 1 if self.by_run else step
        within = step < self.lengths.reshape(-1, *(1,) * step.dim())
        change, hold = self.log_change[:, index], self.log_hold[:, index]
        return torch.where(within, change, -torch.inf), torch.where(within, hold, 0.0)

    def evidence(self, sums: tuple[Tensor, ...]) -> Tensor:
        """Log-normalizers [N, ...] of posteriors with these sums of statistics [N, ..., F, D]."""
        total = 0.0
        for family, prior, table in zip(self.families, self.priors, sums, strict=True):
            eta = prior.reshape(len(prior), *(1,) * (table.dim() - 3), *prior.shape[1:]) + table
            total = total + family.log_normalizer(eta).sum(-1)
        assert isinstance(total, Tensor)
        return total

    def prior_evidence(self) -> Tensor:
        """[N], the log-normalizers of the priors."""
        return self.evidence(tuple(torch.zeros_like(prior) for prior in self.priors))

    def suprema(self, sums: tuple[Tensor, ...]) -> Tensor:
        """[N, ...], the greatest log-likelihood of these sums, log h excepted."""
        total = 0.0
        for family, table in zip(self.families, sums, strict=True):
            total = total + family.supremum(table).sum(-1)
        assert isinstance(total, Tensor)
        return total.nan_to_num(torch.inf, posinf=torch.inf)


class Filtered(NamedTuple):
    """The belief after each step."""

    begun: Tensor  # [N, T], the probability that a segment begins at the step
    run: Tensor  # [N, T], expected steps since a segment began
    expected: tuple[Tensor, ...]  # by block [N, T, F, M]


def log_one_less(log_p: Tensor) -> Tensor:
    """log(1 - p), -inf if p is 1; the gradient is 0 there, and where p is 0."""
    large = log_p > -0.693
    sure = log_p >= 0
    near = torch.where(large & ~sure, log_p, -1.0)
    value = torch.where(large, (-torch.expm1(near)).log(), torch.log1p(-torch.where(large, -1.0, log_p).exp()))
    return torch.where(sure, -torch.inf, value)
