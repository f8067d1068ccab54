r"""Trajectories of more data than their tables should be held of at once: the same sums, part after part.

Sequences are independent given the parameters, so the log-normalizer and the expected counts of all are sums over
groups of sequences. A sequence that is too long for one turn is cut into stretches, each of which begins with the last
step of the one before. A first pass, forward, leaves the belief $a_t$ at each cut; a second, backward, takes for each
stretch from t to t' the chain

$$a_t(s_t) \prod_{u = t+1}^{t'} p(s_u, x_u \mid s_{u-1}) \; b_{t'}(s_{t'}), \qquad
b_t(s) = P(s_t = s \mid x) / a_t(s),$$

in which $b_{t'}$ stands for all that comes after it, and which gives the $b_t$ that the stretch before it needs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...inference.chains.contract import Marginals
from ..data.series import Sequences
from ..dynamics import Drive, Dynamics
from ..emissions import Emission
from ..parameters import Parameters
from .trajectories import Counts, Trajectories

ROOM = 2**20  # numbers in one table of a turn
LONG = 2**24  # numbers in one table beyond which a single sequence is cut


class InTurns(Trajectories):
    """The trajectories of all sequences, some of them at a time."""

    def __init__(self, parts: Sequence[Trajectories], *whole: Any) -> None:
        super().__init__(*whole)
        self.parts = parts

    def log_normalizer(self, eta: Counts) -> Tensor:
        return torch.stack([part.log_normalizer(eta) for part in self.parts]).sum(0)

    def turns(self, eta: Counts) -> Iterator[tuple[Trajectories, Marginals]]:
        for part in self.parts:
            yield from part.turns(eta)


class Stretches(Trajectories):
    """The trajectories of long sequences, `size` steps at a time."""

    def __init__(
        self,
        size: int,
        dynamics: Dynamics,
        emission: Emission,
        prior: Parameters,
        series: Sequences,
        drive: Drive,
        share: float,
    ) -> None:
        super().__init__(dynamics, emission, prior, series, drive, share)
        n_steps = series.values.shape[-2]
        first = range(0, max(1, n_steps - 1), size)  # where stretches begin
        lengths = torch.full(series.batch_shape, n_steps) if series.lengths is None else series.lengths
        self.stretches = []
        for start in first:
            steps = slice(start, start + size + 1)
            values = series.values[..., steps, :]
            own = (lengths - start).clamp(1, values.shape[-2])
            self.stretches.append(
                Trajectories(dynamics, emission, prior, Sequences(values, own), drive.at(steps), share / len(first))
            )

    def log_normalizer(self, eta: Counts) -> Tensor:
        return self._total(torch.stack([found for found, _ in self._forward(eta)]).sum(0), eta)

    def turns(self, eta: Counts) -> Iterator[tuple[Trajectories, Marginals]]:
        passed, log_after = list(self._forward(eta)), None
        for i in reversed(range(len(self.stretches))):
            stretch, log_before = self.stretches[i], passed[i - 1][1] if i else None
            chain = stretch.chain(eta)
            marginals = chain.between(log_before, log_after).marginals()
            if marginals.held is not None and len(stretch.emitted.emitters) > 1:  # held steps emit alike in all states
                marginals = replace(marginals, held=marginals.held.sum(-1, keepdim=True))
            if log_before is not None:
                belief = marginals.fresh[..., 0, :]
                # where a_t is 0, b_t is of no consequence
                log_after = torch.where(log_before == -math.inf, 0.0, belief.log() - log_before)
                belief.zero_()  # it was counted in the stretch before
                if marginals.initial is not None:
                    marginals = replace(marginals, initial=torch.zeros_like(marginals.initial))
            yield stretch, replace(marginals, log_normalizer=passed[i][0])

    def _forward(self, eta: Counts) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each stretch its part of the log-normalizer, and the log belief at its end."""
        log_belief = None
        for stretch in self.stretches:
            found = stretch.chain(eta).between(log_belief, None).filter()
            assert stretch.lengths is not None
            last = (stretch.lengths - 1)[..., None, None].expand(*found.state.shape[:-2], 1, found.state.shape[-1])
            log_belief = found.state.gather(-2, last).squeeze(-2).log()
            yield found.log_normalizer, log_belief
