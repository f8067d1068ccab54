r"""The naive factorisation, for comparison: q(s_1) ... q(s_T), every step on its own.

With log weights $W_t(i, j)$ of a move from i to j at step t (for a copy chain the gate is summed out of it, since a
held step joins the states on both sides) and $\lambda_t(j)$ of being in j, the bound and the update of one step are

$$B(q) = \sum_t q_t^\top \lambda_t + q_{t-1}^\top W_t\, q_t + H(q_t), \qquad
\log q_t = \lambda_t + W_t^\top q_{t-1} + W_{t+1} q_{t+1} + \text{const}.$$

For a copy chain $W_t$ is diagonal, $\log(1 + held_t / fresh_t)$, and $\lambda_t = \log fresh_t$. Steps with even and
with odd t are updated in turn, all at once, so B never falls. It has many local optima. An evaluation starts from the q
of the one before, if that was of the same shape, so that the bound does not fall as the parameters move; the first
starts at the marginals of the exact chain.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ...inference.chains.copy.chain import CopyChain, CopyMarginals
from ...inference.chains.markov.chain import MarkovChain, MarkovMarginals
from ..dynamics.contract import Chain, Marginals
from .trajectories import Counts, Trajectories

SWEEPS = 5  # over all steps in one evaluation: the parameters move as well


class IndependentSteps(Trajectories):
    """Trajectories whose states are independent under q."""

    _steps: Tensor | None = None  # q of the last evaluation

    def log_normalizer(self, eta: Counts) -> Tensor:
        return self.evaluate(eta)[0]

    def marginals(self, eta: Counts) -> Marginals:
        field = Field(self.chain(eta))
        q = self._steps
        if q is None or q.shape != field.local.shape:
            q = field.exact()
        for _ in range(SWEEPS):
            for parity in (0, 1):
                q = torch.where(field.parity == parity, field.update(q), q)
        self._steps = q
        return field.marginals(q)


class Field:
    """A chain's tables as weights of single steps and of moves between neighbours."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        table = chain.log_fresh if isinstance(chain, CopyChain) else chain.log_likelihood
        n_steps, n_states = table.shape[-2:]
        steps = torch.arange(n_steps, device=table.device).unsqueeze(-1)
        self.parity = steps % 2
        self.inside = steps < chain.lengths[..., None, None]
        local = torch.where(self.inside, table.expand(*chain.batch_shape, n_steps, n_states), 0.0)
        if isinstance(chain, CopyChain):
            hold = torch.where(self.inside, softplus(chain.log_held - chain.log_fresh), 0.0)
            self.hold = torch.where(steps > 0, hold, 0.0)
            self.local = local
        else:
            start = torch.where(steps == 0, chain.log_initial.unsqueeze(-2), 0.0)
            self.local = local + start

    def exact(self) -> Tensor:
        smoothed = self.chain.smooth().state
        return torch.where(self.inside, smoothed, 1 / smoothed.shape[-1])

    def update(self, q: Tensor) -> Tensor:
        """The best q of every step given its neighbours."""
        return torch.softmax(self.local + self._from_before(q) + self._from_after(q), -1)

    def _from_before(self, q: Tensor) -> Tensor:
        """W_t' q_{t-1} of every step, 0 of the first."""
        if isinstance(self.chain, CopyChain):
            return _later(q) * self.hold
        return torch.where(self.inside, _later(q @ self._moves), 0.0)

    def _from_after(self, q: Tensor) -> Tensor:
        """W_{t+1} q_{t+1} of every step, 0 of the last."""
        if isinstance(self.chain, CopyChain):
            return _earlier(q * self.hold)
        return _earlier(torch.where(self.inside, q @ self._moves.mT, 0.0))

    @property
    def _moves(self) -> Tensor:
        assert isinstance(self.chain, MarkovChain)
        return self.chain.log_transition

    def marginals(self, q: Tensor) -> Marginals:
        """The bound in the place of the evidence, and the expected uses of each entry of the tables."""
        energy = q * (self.local + self._from_before(q) - q.clamp_min(torch.finfo(q.dtype).tiny).log())
        bound = torch.where(self.inside, energy, 0.0).sum((-2, -1))
        q = torch.where(self.inside, q, 0.0)
        if isinstance(self.chain, CopyChain):
            open_odds = self.chain.log_held - self.chain.log_fresh
            held = _later(q) * q * torch.sigmoid(open_odds)
            fresh = q - held
            if self.chain.log_held.shape[-1] == 1:
                held = held.sum(-1, keepdim=True)
            return CopyMarginals(bound, fresh, held, None)
        moves = q[..., :-1, :].mT @ q[..., 1:, :]
        return MarkovMarginals(bound, q[..., 0, :], moves, q)


def _later(table: Tensor) -> Tensor:
    """Each step gets what was at the step before it; the first gets 0."""
    return torch.nn.functional.pad(table[..., :-1, :], (0, 0, 1, 0))


def _earlier(table: Tensor) -> Tensor:
    """Each step gets what was at the step after it; the last gets 0."""
    return torch.nn.functional.pad(table[..., 1:, :], (0, 0, 0, 1))
