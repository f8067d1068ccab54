r"""Every segmentation of a short series, in float64: no recursion, no running statistics.

The evidence of a segment is $p(x \mid \theta)\, p(\theta) / p(\theta \mid x)$ at one $\theta$.
"""

from collections.abc import Iterator
from itertools import pairwise, product
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Segmentation(NamedTuple):
    """Where segments begin, and its log joint with the series."""

    begins: tuple[int, ...]
    log_joint: Tensor


def segment_evidence(emission: Any, prior: dict[str, Tensor], x: Tensor) -> Tensor:
    """log p(x `[n, F]`) of one segment, under hyperparameters `[1, ...]`."""
    ones = x.new_ones(len(x), 1)
    before = emission.natural(prior)
    after = before + emission.message(x, ones)
    point = emission.family.expected(after)
    likelihood = emission.table(x, emission.values(point)).sum()
    ratio = emission.family.log_prob(point, before) - emission.family.log_prob(point, after)
    return likelihood + ratio.sum()


def segmentations(evidence: dict[tuple[int, int], Tensor], hazards: list[float]) -> Iterator[Segmentation]:
    """All segmentations; `hazards[r]` is P(change after r + 1 steps)."""
    n = max(end for _, end in evidence)
    for changes in product((False, True), repeat=n - 1):
        begins = (0, *(t + 1 for t, change in enumerate(changes) if change))
        total = torch.zeros((), dtype=torch.float64)
        for begin, end in pairwise((*begins, n)):
            total = total + evidence[begin, end]
            held = torch.tensor([1 - hazards[r] for r in range(end - begin - 1)], dtype=torch.float64)
            total = total + held.log().sum()
            if end < n:
                total = total + torch.tensor(hazards[end - begin - 1], dtype=torch.float64).log()
        yield Segmentation(begins, total)


def evidences(emission: Any, prior: dict[str, Tensor], x: Tensor) -> dict[tuple[int, int], Tensor]:
    """log p(x[a:b]) of every possible segment of x `[T, F]`."""
    n = len(x)
    return {(a, b): segment_evidence(emission, prior, x[a:b]) for a in range(n) for b in range(a + 1, n + 1)}
