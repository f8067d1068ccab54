r"""Draws of the hyperparameters of a population, from their posterior.

Given the paths, the data of subject i add a message $m_i$ to the natural parameters $\eta$ of its block, so that the
parameters of subjects are integrated out in closed form:

$$\log p(\eta \mid m) = \log p(\eta) + \sum_i A(\eta + m_i) - A(\eta) + c.$$

A fit takes the $\eta$ of the greatest height. If there are few subjects, that is often a population with hardly any
spread, and every subject gets the mean of all. Draws of $\eta$ keep the spreads that the data allow too. Their prior is
flat in the mean of the population. The standard deviation of its members, in units of that of a member,
$c^{-1/2}$ with a concentration $c$, is half-Cauchy (Gelman 2006, *Prior distributions for variance parameters in
hierarchical models*). Walkers that move along the lines through two of them make the draws (Goodman & Weare 2010,
*Ensemble samplers with affine invariance*).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.families import VectorFamily
from .hyperparameters import Coordinates

STRETCH = 2.0  # of the longest move, as in Goodman & Weare


@dataclass(frozen=True)
class Walkers:
    """Draws of the natural parameters of a population, each plate by itself.

    Attributes:
        family: of the parameters of its members.
        known: the coordinates of its hyperparameters.
        points: the draws, `[2, W / 2, *plates, d]`; each half moves along lines through draws of the other.
        generator: of random numbers.
    """

    family: VectorFamily[Any]
    known: Coordinates
    points: Float[Tensor, "2 H *plates d"]
    generator: torch.Generator | None

    @staticmethod
    def of(family: VectorFamily[Any], known: Coordinates, n: int, generator: torch.Generator | None) -> "Walkers":
        """Walkers about the fit of a population.

        Arguments:
            n: half the number of walkers; more than the number of coordinates of a plate.
        """
        here = known.start.expand(2, n, *known.start.shape)
        walkers = Walkers(family, known, here, generator)
        return replace(walkers, points=here + walkers._uniform(here.shape) - 0.5)

    @property
    def natural(self) -> Float[Tensor, "W *plates P"]:
        """The natural parameters."""
        return self.known.natural(self.points.flatten(0, 1))

    def moved(self, messages: Float[Tensor, "W S *plates P"], rounds: int) -> "Walkers":
        """The walkers after some moves.

        Arguments:
            messages: what the data of each subject add to the natural parameters, by walker; one for all has length 1.
            rounds: the number of moves of each walker.
        """
        _, half, *plates, dim = self.points.shape
        by_subject = messages.expand(2 * half, *messages.shape[1:]).transpose(0, 1)
        added, points = by_subject.chunk(2, 1), list(self.points)
        heights = [self._height(some, by) for some, by in zip(points, added, strict=True)]
        for turn in range(2 * rounds):
            i = turn % 2
            fixed = points[1 - i][torch.randint(half, (half,), generator=self.generator, device=messages.device)]
            size = (1 + (STRETCH - 1) * self._uniform([half, *plates])).square() / STRETCH
            there = fixed + size.unsqueeze(-1) * (points[i] - fixed)
            height = self._height(there, added[i])
            taken = self._uniform([half, *plates]).log() < (dim - 1) * size.log() + height - heights[i]
            points[i] = torch.where(taken.unsqueeze(-1), there, points[i])
            heights[i] = torch.where(taken, height, heights[i])
        return replace(self, points=torch.stack(points))

    def _height(self, free: Float[Tensor, "H *plates d"], added: Float[Tensor, "S H *plates P"]) -> Tensor:
        eta = self.known.natural(free)
        gained = (self.family.log_normalizer(eta + added) - self.family.log_normalizer(eta)).sum(0)
        return (gained + self.known.log_prior(free)).nan_to_num(-math.inf, posinf=-math.inf)

    def _uniform(self, shape: Sequence[int]) -> Tensor:
        like = self.points
        return torch.rand(shape, generator=self.generator, device=like.device, dtype=like.dtype)
