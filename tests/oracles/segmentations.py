"""Every segmentation of a short series: posterior expectations of any function of it, without recursions."""

from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import torch
from samplehold.face.chains import Block
from torch import Tensor


@dataclass(frozen=True)
class Segmentations:
    """All 2^(T-1) segmentations of one series."""

    begun: Tensor  # [S, T]
    log_joint: Tensor  # [S]
    natural: tuple[Tensor, ...]  # by block, posterior natural parameters at each step, [S, T, F, D]

    @property
    def log_normalizer(self) -> Tensor:
        return self.log_joint.logsumexp(0)

    @property
    def weight(self) -> Tensor:
        return self.log_joint.softmax(0)

    @property
    def change(self) -> Tensor:
        return self.weight @ self.begun.to(self.weight)

    @property
    def entropy(self) -> Tensor:
        return -torch.xlogy(self.weight, self.weight).sum()

    def expected(self, block: int, function: Any) -> Tensor:
        """[T, F, M]"""
        values = function(self.natural[block])
        return torch.where(self.weight[:, None, None, None] > 0, self.weight[:, None, None, None] * values, 0.0).sum(0)


def enumerate_segmentations(
    blocks: tuple[Block, ...], hazard: Tensor, log_base: Tensor, by: str = "step"
) -> Segmentations:
    """`hazard` is a probability, [T] by step or [R] by run; tables of one series, without batch axes."""
    n_steps = len(log_base)
    posterior, evidence = _segments(blocks, log_base)
    rows, joints, naturals = [], [], []
    for later in product((False, True), repeat=n_steps - 1):
        begun = (True, *later)
        edges = [t for t in range(n_steps) if begun[t]] + [n_steps]
        value = torch.zeros_like(log_base[0])
        for a, b in pairwise(edges):
            value = value + evidence[a, b]
            for t in range(a + 1, b):
                value = value + (1 - _hazard(hazard, by, t, t - a)).log()
            if b < n_steps:
                value = value + _hazard(hazard, by, b, b - a).log()
        rows.append(begun)
        joints.append(value)
        natural = [torch.cat([posterior[a, b][k] for a, b in pairwise(edges)]) for k in range(len(blocks))]
        naturals.append(natural)
    stacked = tuple(torch.stack([natural[k] for natural in naturals]) for k in range(len(blocks)))
    return Segmentations(torch.tensor(rows), torch.stack(joints), stacked)


def _segments(blocks: tuple[Block, ...], log_base: Tensor) -> tuple[dict, dict]:
    """By beginning and end of each possible segment: posterior natural parameters at each step, by block, and log
    evidence."""
    posterior, evidence = {}, {}
    for a in range(len(log_base)):
        for b in range(a + 1, len(log_base) + 1):
            etas = [block.prior + block.statistics[a:b].sum(0) for block in blocks]
            evidence[a, b] = log_base[a:b].sum()
            for block, eta in zip(blocks, etas, strict=True):
                gain = block.family.log_normalizer(eta) - block.family.log_normalizer(block.prior)
                evidence[a, b] = evidence[a, b] + gain.sum()
            posterior[a, b] = [eta.expand(b - a, *eta.shape) for eta in etas]
    return posterior, evidence


def _hazard(hazard: Tensor, by: str, step: int, run: int) -> Tensor:
    return hazard[min(step, len(hazard) - 1)] if by == "step" else hazard[min(run, len(hazard)) - 1]


def best_segmentation(block: Block, log_base: Tensor, log_hazard: Tensor, by: str = "step") -> tuple[list[int], Tensor]:
    """The beginnings of the best segmentation and its log joint, by dynamic programming over all last segments."""
    n, best, sources = len(log_base), [torch.zeros((), dtype=log_base.dtype)], []
    zero = block.family.log_normalizer(block.prior).sum()
    for end in range(1, n + 1):
        starts = torch.arange(end)
        sums = block.statistics[:end].flip(0).cumsum(0).flip(0)
        evidence = block.family.log_normalizer(block.prior + sums).sum(-1) - zero
        evidence = evidence + log_base[:end].flip(0).cumsum(0).flip(0)
        hold = torch.stack([_log_hold(log_hazard, by, int(a), end) for a in starts])
        change = torch.zeros_like(hold)
        if end < n:
            change = torch.stack([_hazard(log_hazard, by, end, end - int(a)) for a in starts])
        values = torch.stack(best) + evidence + hold + change
        best.append(values.max())
        sources.append(int(values.argmax()))
    begun, end = [], n
    while end > 0:
        end = sources[end - 1]
        begun.append(end)
    return begun[::-1], best[-1]


def _log_hold(log_hazard: Tensor, by: str, start: int, end: int) -> Tensor:
    if by == "step":
        return torch.log1p(-log_hazard[start + 1 : end].exp()).sum()
    index = torch.arange(end - start - 1).clamp(max=len(log_hazard) - 1)
    return torch.log1p(-log_hazard[index].exp()).sum()
