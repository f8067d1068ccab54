r"""A Markov chain whose rows depend on inputs.

$$A_t[i, j] \propto \exp(P_{ij} + w_{ij}^\top c_t)$$

Evidence, beliefs and the sums of moves for learning come from operators that make the table of a step when they need
it. Other results are those of a chain with a table for every step, which is made for them.
"""

from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...numerics.checks import check_same_kind, check_start, check_weights
from ..contract import Filtered, Marginals, Smoothed, inside
from . import op
from .chain import MarkovChain
from .plain_rows import log_rows


class DrivenMarkovChain(MarkovChain):
    """The posterior over paths of a Markov chain whose rows depend on inputs.

    Arguments:
        log_initial: [*b, K], log P(s_1).
        log_base: [*b, K, K], logits [old, new] at inputs 0; -inf for an impossible move.
        weights: [*b, K, K, C], of the inputs in each logit.
        inputs: [*b, T-1, C], of each step but the first.
        log_likelihood: [*b, T, K].
        lengths: [*b]; None: all have T.

    Batch axes broadcast.

    Raises:
        As `MarkovChain`.
    """

    log_initial: Tensor
    log_base: Tensor
    weights: Tensor
    inputs: Tensor

    def __init__(
        self,
        log_initial: Tensor,
        log_base: Tensor,
        weights: Tensor,
        inputs: Tensor,
        log_likelihood: Tensor,
        lengths: Any = None,
    ):
        check_same_kind(
            log_initial=log_initial, log_base=log_base, weights=weights, inputs=inputs, log_likelihood=log_likelihood
        )
        self._size("log_likelihood", log_likelihood)
        self.varies = True
        self.log_initial, self.log_base, self.weights, self.inputs = log_initial, log_base, weights, inputs
        self.log_likelihood = log_likelihood
        self._share(
            lengths,
            log_likelihood.device,
            log_initial=log_initial.shape[:-1],
            log_base=log_base.shape[:-2],
            inputs=inputs.shape[:-2],
            log_likelihood=log_likelihood.shape[:-2],
        )
        check_start(log_initial)
        check_weights("log_base", log_base)

    @cached_property
    def log_transition(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The table of each move, [*b, T-1, K, K]."""
        return log_rows(self.log_base, self.weights, self.inputs)

    def log_normalizer(self) -> Float[Tensor, "*b"]:
        total, failed = op.rows_log_normalizer(*self._rows())
        self._check(failed, total)
        return total

    def filter(self) -> Filtered:
        total, state, increment, failed = op.rows_filter(*self._rows())
        self._check(failed, total)
        return Filtered(total, increment, state)

    def smooth(self) -> Smoothed:
        sums = self.sums()
        assert sums.moves is not None
        return Smoothed(sums.log_normalizer, sums.fresh, transition=sums.moves[..., 0])

    def sums(self) -> Marginals:
        """The posterior of the states, with the sums over moves that learning needs in place of their tables."""
        total, state, moves, _, failed = op.rows_posterior(*self._rows())
        self._check(failed, total)
        leaving = torch.where(inside(self)[..., 1:].unsqueeze(-1), state[..., :-1, :], 0.0)
        return Marginals(total, state, initial=state.select(-2, 0), moves=moves, leaving=leaving)

    def between(self, before: Tensor | None, after: Tensor | None) -> "DrivenMarkovChain":
        initial, table = self._ends(before, after)
        return DrivenMarkovChain(initial, self.log_base, self.weights, self.inputs, table, self.lengths)

    def _rows(self) -> tuple[Tensor, ...]:
        return self.log_initial, self.log_base, self.weights, self.inputs, self.log_likelihood, self.lengths
