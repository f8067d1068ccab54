"""The naive factorisation of the paths, for comparison: every step on its own; see `inference.chains.mean_field`.

An evaluation starts from the q of the one before, if that was of the same shape, so that the bound does not fall as the
parameters move; the first starts at the marginals of the exact chain.
"""

from dataclasses import replace

from torch import Tensor

from ...inference.chains.contract import Marginals
from .trajectories import Counts, Trajectories


class IndependentSteps(Trajectories):
    """Trajectories whose states are independent under q."""

    _steps: Tensor | None = None  # q of the last evaluation

    def log_normalizer(self, eta: Counts) -> Tensor:
        return self.evaluate(eta)[0]

    def marginals(self, eta: Counts) -> Marginals:
        chain = self.chain(eta)
        shape = (*chain.batch_shape, chain.n_steps, chain.n_states)
        fits = self._steps is not None and self._steps.shape == shape
        found = chain.mean_field(self._steps if fits else None)
        self._steps = found.fresh if found.held is None else found.fresh + found.held
        if found.held is not None and len(self.emitted.emitters) > 1:  # held steps emit alike in all states
            found = replace(found, held=found.held.sum(-1, keepdim=True))
        return found
