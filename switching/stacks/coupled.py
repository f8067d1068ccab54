"""A mixture whose steps are coupled, as the runs of a weighted pushdown automaton of one state and one symbol.

log Z comes from the automaton's inside recursion. The posterior of actions and tops is the gradient of log Z. Depth and
deeper cells are carried down the derivations (`samplehold.inference.stacks.automaton.op.carry`). The initial stack is
pushed before the first step, bottom first, so the automaton numbers elements differently: 0 the empty stack, 1..D the
initial cells, then the pushes. All computations are in double precision.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ...inference.stacks.automaton import op as inference
from ...inference.stacks.automaton.plain import log_sum_exp
from .cached import cached_table


@dataclass(frozen=True, eq=False)
class CoupledStack:
    """See `StackMixture`: the weights of its steps, its evidence about the element on top, and its initial cells."""

    log_action: Float[Tensor, "*b T 3"]
    log_evidence: Float[Tensor, "*b T C"]
    n_initial: int
    on_empty: str

    def log_normalizer(self) -> Float[Tensor, "*b"]:
        """log Z. Here and below, `ValueError` if no history has any weight."""
        return inference.log_total(self._inside).reshape(self._batch)

    @cached_table
    def posterior(self) -> tuple[Float[Tensor, "*b T 3"], Float[Tensor, "*b T C"]]:
        """Smoothed actions and tops."""
        self._inside  # noqa: B018 - raises if there is nothing to differentiate
        action, top = inference.expected_use(self._weigh, self.log_action, self.log_evidence)
        return action, top

    def cells(self, pushed: Float[Tensor, "*b N V"], depth: int) -> Float[Tensor, "*b T depth V"]:
        """Expected cells, given the values of the initial cells from the bottom, and then of all pushes."""
        V = pushed.shape[-1]
        values = pushed.reshape(-1, *pushed.shape[-2:])

        def push(label: Tensor, first: int, last: int) -> Tensor:
            mass = label[..., :1]
            return torch.cat([mass, mass * values[:, first - 1 : last - 1], label[..., 1 : 1 + (depth - 1) * V]], -1)

        bottom = pad(values.new_ones(len(values), 1), (0, depth * V))
        return self._carried(bottom, push)[..., 1:].unflatten(-1, (depth, V))

    def depths(self) -> Float[Tensor, "*b T C"]:
        """P(depth)."""
        C = self.log_evidence.shape[-1]
        bottom = torch.eye(C, dtype=torch.float64, device=self.log_action.device)[:1].expand(self._batch.numel(), C)
        return self._carried(bottom, lambda label, first, last: pad(label[..., :-1], (1, 0)))

    @torch.no_grad()
    def sample(self, n: int, choose: inference.Choose) -> Int[Tensor, "n *b T"]:
        """Actions of n histories."""
        return self._named(inference.trace(self._weights, self._inside, n, choose), choose)

    @torch.no_grad()
    def viterbi(self) -> Int[Tensor, "1 *b T"]:
        """Actions of the most probable history."""
        self._inside  # noqa: B018
        weights = self._weigh(self.log_action, self.log_evidence, best=True)
        tables = inference.inside(weights, best=True)
        return self._named(inference.trace(weights, tables, 1, inference.largest), inference.largest)

    @property
    def _batch(self) -> torch.Size:
        return self.log_action.shape[:-2]

    def _weigh(self, log_action: Tensor, log_evidence: Tensor, best: bool = False) -> inference.Weights:
        """The weights of the automaton; the initial stack becomes certain pushes before the first step."""
        D, (T, A) = self.n_initial, log_action.shape[-2:]
        forced = torch.tensor([0.0] + [-torch.inf] * (A - 1)).to(log_action).expand(*self._batch, D, A)
        push, pop, hold = torch.cat([forced, log_action], -2).reshape(-1, D + T, A).double().unbind(-1)
        bottom = hold
        if self.on_empty == "noop":
            bottom = torch.maximum(hold, pop) if best else log_sum_exp(torch.stack([hold, pop], -1), (-1,))
        order = torch.tensor([D + T, *range(D + T - 1, T - 1, -1), *range(T)], device=hold.device)
        seen = pad(log_evidence[..., order], (0, 0, D, 0)).reshape(-1, D + T, D + T + 1, 1).double()
        push, pop, hold, bottom = (x[..., None, None] for x in (push, pop, hold, bottom))
        return inference.Weights(push.new_zeros(len(push), 1), push, hold, bottom, pop, seen)

    @cached_table
    def _weights(self) -> inference.Weights:
        return self._weigh(self.log_action, self.log_evidence)

    @cached_table
    def _inside(self) -> inference.Inside:
        tables = inference.inside(self._weights)
        if (gone := inference.vanished(tables)) is not None:
            raise ValueError(
                f"log_action: every history of sequence {gone[0]} has weight 0 from step {gone[1] - self.n_initial} "
                "on; give some action that is possible there a weight above -inf, or relax the evidence or on_empty."
            )
        return tables

    def _carried(self, bottom: Tensor, push: inference.Push) -> Tensor:
        tables = self._inside
        if torch.is_grad_enabled() and any(x.requires_grad for x in self._weights.tensors()):
            tables = inference.inside_differentiable(self._weights)
        carried = inference.carry(self._weights, tables, bottom.double(), push)[:, self.n_initial :]
        return carried.reshape(*self._batch, *carried.shape[1:])

    def _named(self, runs: inference.Runs, choose: inference.Choose) -> Tensor:
        """The actions of runs: a run that keeps the bottom has either held, or popped an empty stack."""
        shape = len(runs.action), *self.log_action.shape[:-1]
        action, top = (x[..., self.n_initial :].reshape(shape) for x in (runs.action, runs.top))
        if self.on_empty == "forbid":
            return action
        pop_or_hold = self.log_action.index_fill(-1, action.new_zeros(1), -torch.inf)
        return torch.where((action == 2) & (top == 0), choose(pop_or_hold.expand(*shape, -1)), action)
