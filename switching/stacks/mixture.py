r"""A stack whose actions are random: exact inference in the mixture over all 3^T histories of push, pop and no-op.

    a_t ~ Categorical(exp log_action_t),    stack_t = push(stack_{t-1}, v_t) | pop(stack_{t-1}) | stack_{t-1}

A history weighs the product of its action weights, times the evidence for what it has on top at each step. Two cases:

- *Uncoupled.* If a pop of the empty stack does nothing and there is no evidence, every step is free of every other, so
  log Z is a sum over steps and the expected cells follow the linear recursion of the superposition stack.
- *Coupled.* If a pop of the empty stack is forbidden, or the top is observed, the histories are the runs of a weighted
  pushdown automaton with one state and one symbol. log Z comes from its inside recursion; the posterior of actions and
  tops is the gradient of log Z; depth and deeper cells are carried down the derivations (`inference.stack.carry`).

Elements are numbered by the step that pushed them, 0..T-1, then the cells of the initial stack from its top, T..T+D-1,
then "empty", the last index.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.numerics.checks import check_lengths
from ...inference.stacks.automaton import op as inference
from ...inference.stacks.automaton.plain import log_sum_exp
from ...inference.stacks.superposition.op import depths, superpose
from .checks import check_capacity, check_count, check_evidence, check_log_weights, check_mixture, check_reads
from .histories import Histories, follow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_HISTORIES = 3**10


@dataclass(frozen=True, eq=False)
class StackMixture:
    r"""All histories of a stack under uncertain actions, each with its weight.

    Arguments:
        log_action: [*b, T, 3] log-weights of push, pop, no-op: log-probabilities, or any numbers below +inf. Further
            columns are the weights of popping two cells, three cells, ... in one step (uncoupled mixtures only).
        values: [*b, T, V], what a push at each step puts on top.
        initial: [*b, D, V], the stack before the first step, from its top; None: empty.
        on_empty: "noop": popping the empty stack does nothing; "forbid": it has weight 0.
        capacity: cells that the recursions of uncoupled mixtures keep; None: all that can be filled.
        lengths: [*b], steps of each sequence; after them its stack is held, with certainty.
        log_evidence: [*b, T, T+D+1], see `condition`.

    Raises:
        ValueError: shapes do not fit; a weight is NaN or +inf; histories of more than rounding mass (T times the
            precision of the dtype, judged before evidence) outgrow `capacity`.

    See Also: Joulin & Mikolov 2015 (the expected stack), DuSell & Chiang 2020 (the weighted automaton).
    """

    log_action: Tensor
    values: Tensor
    initial: Tensor | None = None
    on_empty: str = "noop"
    capacity: int | None = None
    lengths: Tensor | Sequence[int] | None = None
    log_evidence: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_mixture(self)
        check_lengths(self.lengths, self._batch, self.values.shape[-2], self.values.device)
        if self.capacity is not None:
            check_capacity(self, self.capacity)

    @property
    def coupled(self) -> bool:
        """Whether the actions of different steps depend on each other."""
        return self.on_empty == "forbid" or self.log_evidence is not None

    @property
    def n_initial(self) -> int:
        return 0 if self.initial is None else self.initial.shape[-2]

    def log_normalizer(self) -> Float[Tensor, "*b"]:
        """log Z: the log of the summed weights of all histories. Differentiable; 0 for probabilities alone.

        Raises:
            ValueError: no history has any weight; names the sequence and the step.
        """
        if not self.coupled:
            return torch.logsumexp(self._log_action, -1).sum(-1)
        return inference.log_total(self._inside).reshape(self._batch).to(self.values.dtype)

    def action_posterior(self) -> Float[Tensor, "*b T A"]:
        """P(action_t | everything), smoothed: the gradient of log Z in `log_action`."""
        return self._posterior[0]

    def top(self) -> Float[Tensor, "*b T C"]:
        """P(element on top after step t | everything), the last entry: the stack is empty. O(T^3)."""
        return self._posterior[1]

    def superposition(self, depth: int) -> Float[Tensor, "*b T depth V"]:
        """Expected cells after each step, from the top; empty cells count as 0.

        O(T) a step for an uncoupled mixture, whatever the depth, or O(capacity); O(T^2 depth) a step for a coupled one.
        """
        check_count("depth", depth, 1)
        if not self.coupled:
            cells = self._recurse(self.values, self.initial)[..., :depth, :]
            return torch.nn.functional.pad(cells, (0, 0, 0, depth - cells.shape[-2]))
        self._inside  # noqa: B018 - raises if there is nothing to average over
        V = self.values.shape[-1]
        values = self._elements.reshape(-1, *self._elements.shape[-2:])

        def push(label: Tensor, first: int, last: int) -> Tensor:
            mass = label[..., :1]
            return torch.cat([mass, mass * values[:, first - 1 : last - 1], label[..., 1 : 1 + (depth - 1) * V]], -1)

        bottom = torch.nn.functional.pad(values.new_ones(len(values), 1), (0, depth * V))
        return self._carried(bottom, push)[..., 1:].unflatten(-1, (depth, V))

    def depth_distribution(self) -> Float[Tensor, "*b T C"]:
        """P(depth after step t | everything), for depths 0..T+D.

        O(T) a step for an uncoupled mixture, whose depth is a birth-death chain; O(T^3) a step for a coupled one.
        """
        C = self.values.shape[-2] + self.n_initial + 1
        if not self.coupled:
            return torch.stack(list(depths(self._log_action.softmax(-1), self.n_initial, C, "noop")), -2)
        self._inside  # noqa: B018
        bottom = torch.eye(C, dtype=torch.float64, device=self.values.device)[:1].expand(self._batch.numel(), C)
        return self._carried(bottom, lambda label, first, last: torch.nn.functional.pad(label[..., :-1], (1, 0)))

    def condition(self, log_likelihood: Tensor) -> "StackMixture":
        """The posterior mixture, given evidence about which element is on top after each step.

        Arguments:
            log_likelihood: [*b, T, T+D+1], log-likelihood of what was observed at t by the element on top (the last:
                empty stack); 0 where nothing was observed, -inf for impossible. Steps past `lengths` are ignored.

        Raises:
            TypeError: it is no tensor, or one of another dtype or device than values.
            ValueError: its shape does not fit, it holds NaN or +inf, or leaves nothing possible at some step.
        """
        check_evidence(self, "log_likelihood", log_likelihood)
        check_log_weights("log_likelihood", log_likelihood)
        before = 0.0 if self.log_evidence is None else self.log_evidence
        return replace(self, log_evidence=before + log_likelihood)

    def read_likelihood(self, reads: Tensor, scale: float) -> Float[Tensor, "*b T C"]:
        """Evidence for `condition` from reads [*b, T, V] of the value on top (0 if empty), with normal error.

        Arguments:
            reads: what was read; NaN: that number was not.
            scale: standard deviation of the error.
        """
        check_reads(self, "reads", reads, scale)
        table = torch.nn.functional.pad(self._table, (0, 0, 0, 1))
        error = (reads[..., :, None, :] - table[..., None, :, :]) / scale
        density = -0.5 * error**2 - math.log(scale) - 0.5 * math.log(2 * math.pi)
        return torch.where(error.isnan(), 0.0, density).sum(-1)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Histories:
        """n histories of each sequence, exactly from the mixture."""
        check_count("n", n, 1)
        if self.coupled:
            return self._trace(n, best=False, choose=inference.draw(generator))
        pick = inference.draw(generator)
        options = self._log_action.detach().flatten(0, -2).expand(n, -1, -1)
        return self._follow(pick(options.flatten(0, 1)).reshape(n, *self._log_action.shape[:-1]), equal=True)

    def viterbi(self) -> Histories:
        """The most probable whole history of each sequence (n = 1)."""
        if self.coupled:
            return self._trace(1, best=True, choose=inference.largest)
        return self._follow(self._log_action.argmax(-1)[None], equal=True)

    def enumerate(self) -> Histories:
        """Every history, with its probability: for small T.

        Raises:
            ValueError: there are more than 3^10 of them.
        """
        A, T = self.log_action.shape[-1], self.values.shape[-2]
        if A**T > MAX_HISTORIES:
            raise ValueError(
                f"enumerate: {A} actions over T = {T} steps make {A}^{T} histories, more than {MAX_HISTORIES}; shorten "
                "the sequence, or use sample, top, depth_distribution or superposition, which need no enumeration."
            )
        grid = torch.cartesian_prod(*[torch.arange(A, device=self.values.device)] * T).reshape(A**T, T)
        return self._follow(grid.reshape(A**T, *[1] * len(self._batch), T).expand(A**T, *self._batch, T))

    def plot(self, sequence: int | Sequence[int] = (), steps: Sequence[str] | None = None) -> "Figure":
        """Heat maps of actions (before and given the evidence), depth and element on top over time, of one sequence.

        Arguments:
            sequence: its index in the batch axes.
            steps: a name for each step.
        """
        from ..views.stack_figures import plot_mixture

        return plot_mixture(self, sequence, steps)

    @cached_property
    def _batch(self) -> torch.Size:
        return self.values.shape[:-2]

    @cached_property
    def _table(self) -> Tensor:
        """The values of all elements but "empty", [*b, T+D, V]."""
        return self.values if self.initial is None else torch.cat([self.values, self.initial], -2)

    @cached_property
    def _elements(self) -> Tensor:
        """Values in the order of the weighted recursion: the initial stack is pushed, bottom first, before step 0."""
        return self.values if self.initial is None else torch.cat([self.initial.flip(-2), self.values], -2)

    @cached_property
    def _past(self) -> Tensor:
        """[*b, T]: the steps past the end of a sequence."""
        T = self.values.shape[-2]
        lengths = check_lengths(self.lengths, self._batch, T, self.values.device)
        return torch.arange(T, device=self.values.device) >= lengths[..., None]

    @cached_property
    def _log_action(self) -> Tensor:
        """`log_action` with certain no-ops past the end."""
        hold = torch.full_like(self.log_action[..., :1, :], -torch.inf)
        hold[..., 2] = 0.0
        return self.log_action if self.lengths is None else torch.where(self._past[..., None], hold, self.log_action)

    def _recurse(self, values: Tensor, initial: Tensor | None) -> Tensor:
        """Superposed cells of an uncoupled mixture after each step, for any values: [*b, T, capacity, V]."""
        room = values.shape[-2] + self.n_initial if self.capacity is None else self.capacity
        cells = values.new_zeros(*values.shape[:-2], room, values.shape[-1])
        if initial is not None:
            cells = torch.cat([initial, cells[..., : room - initial.shape[-2], :]], -2)
        kept = []
        for action, value in zip(self._log_action.softmax(-1).unbind(-2), values.unbind(-2), strict=True):
            cells = superpose(cells, action, value)
            kept.append(cells)
        return torch.stack(kept, -3)

    @cached_property
    def _posterior(self) -> tuple[Tensor, Tensor]:
        """Smoothed actions [*b, T, A] and tops [*b, T, C]."""
        D, T = self.n_initial, self.values.shape[-2]
        if not self.coupled:
            eye = torch.eye(T + D, dtype=self.values.dtype, device=self.values.device).expand(*self._batch, -1, -1)
            tops = self._recurse(eye[..., :T, :], eye[..., T:, :] if D else None)[..., 0, :]
            return self._log_action.softmax(-1), torch.cat([tops, self.depth_distribution()[..., :1]], -1)
        self._inside  # noqa: B018
        action, top = inference.expected_use(self._weigh, self._log_action, self._evidence)
        return action, top

    def _weigh(self, log_action: Tensor, log_evidence: Tensor, best: bool = False) -> inference.Weights:
        """The weights of the automaton; the initial stack becomes forced pushes before the first step."""
        D, (T, A) = self.n_initial, log_action.shape[-2:]
        forced = log_action.new_tensor([0.0] + [-torch.inf] * (A - 1)).expand(*self._batch, D, A)
        push, pop, hold = torch.cat([forced, log_action], -2).reshape(-1, D + T, A).double().unbind(-1)
        bottom = hold
        if self.on_empty == "noop":
            bottom = torch.maximum(hold, pop) if best else log_sum_exp(torch.stack([hold, pop], -1), (-1,))
        order = torch.tensor([D + T, *range(D + T - 1, T - 1, -1), *range(T)], device=hold.device)
        seen = torch.nn.functional.pad(log_evidence[..., order], (0, 0, D, 0)).reshape(-1, D + T, D + T + 1, 1).double()
        push, pop, hold, bottom = (x[..., None, None] for x in (push, pop, hold, bottom))
        return inference.Weights(push.new_zeros(len(push), 1), push, hold, bottom, pop, seen)

    @cached_property
    def _evidence(self) -> Tensor:
        """`log_evidence`, or 0; and 0 past the end of a sequence."""
        T = self.values.shape[-2]
        if self.log_evidence is None:
            return self.values.new_zeros(*self._batch, T, T + self.n_initial + 1)
        return self.log_evidence.masked_fill(self._past[..., None], 0.0)

    @cached_property
    def _weights(self) -> inference.Weights:
        return self._weigh(self._log_action, self._evidence)

    @cached_property
    def _inside(self) -> inference.Inside:
        tables = inference.inside(self._weights)
        if (gone := inference.vanished(tables)) is not None:
            raise ValueError(
                f"log_action: every history of sequence {gone[0]} has weight 0 from step {gone[1] - self.n_initial} "
                "on; give some action that is possible there a weight above -inf, or loosen the evidence or on_empty."
            )
        return tables

    def _carried(self, bottom: Tensor, push: inference.Push) -> Tensor:
        needed = torch.is_grad_enabled() and any(x.requires_grad for x in self._weights.tensors())
        tables = inference.inside_differentiable(self._weights) if needed else self._inside
        found = inference.carry(self._weights, tables, bottom.double(), push)[:, self.n_initial :]
        return found.reshape(*self._batch, *found.shape[1:]).to(self.values.dtype)

    def _trace(self, n: int, best: bool, choose: inference.Choose) -> Histories:
        with torch.no_grad():
            weights, tables = self._weights, self._inside
            if best:
                weights = self._weigh(self._log_action, self._evidence, best=True)
                tables = inference.inside(weights, best=True)
            runs = inference.trace(weights, tables, n, choose)
            action, top = (
                x[..., self.n_initial :].reshape(n, *self._log_action.shape[:-1]) for x in (runs.action, runs.top)
            )
            if self.on_empty == "noop":  # a run that holds the bottom either held or popped an empty stack
                options = self._log_action.index_fill(-1, action.new_zeros(1), -torch.inf).expand(
                    n, *self._log_action.shape
                )
                action = torch.where((action == 2) & (top == 0), choose(options), action)
        return self._follow(action, equal=True)

    def _follow(self, action: Tensor, equal: bool = False) -> Histories:
        """Run given actions [n, *b, T] and weigh them; `equal`: each stands for as much as the others."""
        path = follow(action, self.n_initial)
        log_weight = _picked(self._log_action, action)
        if self.on_empty == "forbid":
            before = torch.cat([torch.full_like(path.depth[..., :1], self.n_initial), path.depth[..., :-1]], -1)
            log_weight = log_weight.masked_fill((action == 1) & (before == 0), -torch.inf)
        if self.log_evidence is not None:
            log_weight = log_weight + _picked(self._evidence, path.top)
        log_probability = log_weight.sum(-1) - self.log_normalizer().detach()
        values = torch.nn.functional.pad(self._table.detach(), (0, 0, 0, 1))
        weight = torch.full_like(log_probability, 1 / len(action)) if equal else log_probability.exp()
        return Histories(action, path.top, path.depth, path.below, log_probability, weight, values)


def _picked(table: Tensor, index: Tensor) -> Tensor:
    """The entries [n, *b, T] of a table [*b, T, X] at an index [n, *b, T]."""
    return table.detach().expand(len(index), *table.shape).gather(-1, index[..., None])[..., 0]
