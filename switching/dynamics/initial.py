r"""The start of a Markov chain: free probabilities, a logit of inputs, given ones, or the stationary distribution.

The stationary distribution of a table A is $\pi = \pi A$, the solution of

$$\pi\, (I - A + 1 1^\top) = 1^\top,$$

which is unique if A has a single closed class of states. It depends on A, so the M-step of A has the start as another
term and no closed form. It is made by steps of BFGS, in coordinates in which the information of the moves is one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...inference.numerics.scalars import check_choice
from ..ascent import Ascent, Differentiable
from ..entries import Entries
from ..parameters import check_simplex, read_table
from .rows import InputWeights, RowLikelihood

STEPS = 4  # of BFGS in one M-step; the next M-step continues
RISE = 1e-11  # nats that a step of BFGS has to promise
NEWTON_STEPS = 4  # of the moves alone, if all steps share one table


def given_start(initial: Any, n_states: int, words: Sequence[str]) -> str | tuple[float, ...]:
    """The argument `initial` of dynamics: one of some words, or the probabilities of the first state.

    Raises:
        ValueError: neither.
    """
    if isinstance(initial, str):
        check_choice("initial", initial, tuple(words))
        return initial
    table = read_table(initial, "initial").double()
    if table.shape != (n_states,):
        raise ValueError(f"initial: got shape {tuple(table.shape)}, expected {n_states} probabilities of the states.")
    return tuple(check_simplex(table, "initial").tolist())


def stationary(table: Float[Tensor, "*n K K"]) -> Float[Tensor, "*n K"]:
    """The stationary distribution of transition tables; not finite if there are several."""
    wide = table.double()
    system = torch.eye(table.shape[-1]).to(wide) - wide + 1.0
    solution, _ = torch.linalg.solve_ex(system.mT, torch.ones_like(wide[..., :1]))
    probs = solution.squeeze(-1).clamp_min(0.0)
    return (probs / probs.sum(-1, keepdim=True)).to(table)


def closed_class(table: Float[Tensor, "K K"] | Bool[Tensor, "K K"]) -> Bool[Tensor, "K"]:
    """The states of the single closed class of a chain, reached from all states; none if there are several."""
    reach = ((table > 0) | torch.eye(len(table), dtype=torch.bool, device=table.device)).double()
    for _ in range(len(table).bit_length()):
        reach = (reach @ reach > 0).double()
    return reach.all(0)


def has_one_class(table: Float[Tensor, "K K"] | Bool[Tensor, "K K"]) -> bool:
    """Whether a chain has a single closed class of states, so a single stationary distribution."""
    return bool(closed_class(table).any())


def initial_weights(n_states: int, n_inputs: int) -> InputWeights:
    """The weights [K, C] of the start; those of state 0 are 0."""
    free = torch.ones(n_states, n_inputs, dtype=torch.bool, device="cpu")
    free[:1] = False
    support = Entries(free, "weights are relative to those of state 0", relative=True)
    return InputWeights("initial_weights", ("state", "initial_input"), support)


@dataclass(frozen=True)
class StationaryRows:
    """The objective of an M-step of rows whose stationary distribution is that of the start.

    Attributes:
        rows: the objective without the start.
        design: 1 and the inputs of the first step of each sequence; a single row if all sequences start alike.
        starts: the expected first states.
    """

    rows: RowLikelihood
    design: Float[Tensor, "B D"]
    starts: Float[Tensor, "R B K"]

    def value(self, numbers: Float[Tensor, "R K P"]) -> Float[Tensor, "R"]:
        """The objective of each restart."""
        changes = numbers.unflatten(-1, self.rows.moves.shape[-2:])
        logits = self.rows.log_base.unsqueeze(1) + torch.einsum("bd,rijd->rbij", self.design, changes)
        probs = stationary(torch.softmax(logits, -1))
        used = self.starts > 0
        of_start = torch.where(used, self.starts * torch.where(used, probs, 1.0).log(), 0.0).sum((-2, -1))
        return self.rows.value(numbers).sum(-1) + of_start

    def raised(self, numbers: Float[Tensor, "R K P"]) -> Float[Tensor, "R K P"]:
        """Numbers at which the objective of each restart is at least as high."""
        before, moved = self.value(numbers), numbers
        for _ in range(NEWTON_STEPS if len(self.rows.design) <= 2 else 1):
            moved = self.rows.raised(moved)
        base = self._better(moved, numbers, before)
        _, curvature = self.rows.slopes(base)
        root = torch.linalg.cholesky(curvature + torch.eye(curvature.shape[-1]).to(curvature))
        free = self.rows.free

        def at(flat: Tensor) -> Tensor:
            step = torch.linalg.solve_triangular(root.mT, flat.reshape(base.shape).unsqueeze(-1), upper=True)
            return base + step.squeeze(-1) * free

        climb = Ascent(
            Differentiable(lambda flat: self.value(at(flat))), base.new_zeros(len(base), base[0].numel()), RISE
        )
        climb.run(STEPS)
        with torch.no_grad():
            return self._better(at(climb.point), numbers, before)

    def _better(self, new: Tensor, old: Tensor, height: Float[Tensor, "R"]) -> Tensor:
        """The new numbers of restarts whose objective is not below this height, the old ones of others."""
        return torch.where((self.value(new) >= height)[:, None, None], new, old)
