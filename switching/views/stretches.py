"""A sequence longer than a part: the states of each step, computed in stretches.

Each stretch begins with the last step of the one before. Smoothing keeps the belief a_t at each cut in a forward pass,
and in a backward pass b_t(s) = P(s_t = s | x) / a_t(s), the evidence of all later steps. A last pass smooths each
stretch between the two (`Chain.between`).

The best path keeps at each cut the log probability of the best path to each state there, up to a constant. A backward
pass keeps the state of the best path at each cut, and a last pass finds the best path of each stretch between the two.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.chains.contract import log_belief_at_end, log_evidence_after
from ...inference.numerics.checks import ImpossibleError, naming
from ..data.series import Series, numbered_from

Steps = dict[str, Tensor]


class Stretches:
    """The stretches of a sequence.

    Arguments:
        whole: a batch of this one sequence, at least two steps long.
        size: the steps of a stretch, without the first one, which it shares with the one before.
    """

    def __init__(self, model: Any, sequence: Series, size: int) -> None:
        self._model, self._sequence, self._size = model, sequence, size
        self._values = model.values_like(sequence.like)
        self._product = model.product_of(self._values)
        self._firsts = range(0, sequence.n_steps - 1, size)

    @property
    def exist(self) -> bool:
        """Whether chains of the model, over its states, can be cut."""
        with self._chain(0) as chain:
            return hasattr(chain, "between") and not hasattr(self._model, "_of_steps")

    def smoothed(self) -> Iterator[tuple[Steps, dict[str, tuple[str, ...]]]]:
        """The probabilities of each step, `[n, ...]` of a stretch at a time, and the names of their axes."""
        befores: list[Tensor | None] = [None]
        for i in range(len(self._firsts) - 1):
            with self._chain(i, befores[i]) as chain:
                befores.append(log_belief_at_end(chain))
        afters: list[Tensor | None] = [None] * len(self._firsts)
        for i in reversed(range(1, len(self._firsts))):
            before = befores[i]
            assert before is not None
            with self._chain(i, before, afters[i]) as chain:
                afters[i - 1] = log_evidence_after(chain, before)
        for i, (before, after) in enumerate(zip(befores, afters, strict=True)):
            with self._chain(i, before, after) as chain:
                tables = self._model.probabilities(chain, self._values)
            steps = {name: table[0, int(i > 0) :] for name, (table, _) in tables.items()}
            yield steps, {name: axes for name, (_, axes) in tables.items()}

    def best(self) -> Iterator[Steps]:
        """The states of the best path, and its gates if there are any, `[n, ...]` of a stretch at a time."""
        befores: list[Tensor | None] = [None]
        for i in range(len(self._firsts) - 1):
            with self._chain(i, befores[i]) as chain:
                befores.append(self._best_to_each(chain))
        afters: list[Tensor | None] = [None] * len(self._firsts)
        for i in reversed(range(1, len(self._firsts))):
            with self._chain(i, befores[i], afters[i]) as chain:
                afters[i - 1] = self._only(chain, int(chain.viterbi().path[0, 0]))
        for i, (before, after) in enumerate(zip(befores, afters, strict=True)):
            with self._chain(i, before, after) as chain:
                best = chain.viterbi()
            steps = {"path": self._model.of_product(best.path), "redraw": best.redraw}
            yield {name: table[0, int(i > 0) :] for name, table in steps.items() if table is not None}

    @contextmanager
    def _chain(self, i: int, before: Tensor | None = None, after: Tensor | None = None) -> Iterator[Any]:
        """The chain of a stretch, given what is known of the steps before and after it. Errors have the numbers of
        steps in the whole sequence."""
        first = self._firsts[i]
        with numbered_from(0, first), naming("x"):
            chain = self._model.problem(self._sequence.stretch(first, self._size + 1)).chain(self._product)
            yield chain if before is None and after is None else chain.between(before, after)

    def _best_to_each(self, chain: Any) -> Float[Tensor, "1 K"]:
        """The log probability of the best path to each state at the end, less that of the best one."""
        best = chain.viterbi().log_probability
        scores = [torch.full_like(best, -torch.inf)] * chain.n_states
        for state in range(chain.n_states):
            with suppress(ImpossibleError):  # no path ends there
                scores[state] = chain.between(None, self._only(chain, state)).viterbi().log_probability - best
        return torch.stack(scores, -1)

    def _only(self, chain: Any, state: int) -> Float[Tensor, "1 K"]:
        """The log weights of an end in this state alone."""
        weights = self._sequence.like.new_full((1, chain.n_states), -torch.inf)
        weights[:, state] = 0.0
        return weights
