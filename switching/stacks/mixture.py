r"""A stack whose actions are random: exact inference in the mixture over all 3^T histories of push, pop and no-op.

    a_t ~ Categorical(exp log_action_t),    stack_t = push(stack_{t-1}, v_t) | pop(stack_{t-1}) | stack_{t-1}

The weight of a history is the product of its action weights, times the evidence for its top at each step. There are two
cases:

- *Uncoupled.* A pop of the empty stack has no effect, and there is no evidence. Then all steps are independent: log Z
  is a sum over steps, and the expected cells follow the linear recursion of the superposition stack.
- *Coupled.* A pop of the empty stack is forbidden, or the top is observed. Then histories are the runs of a weighted
  pushdown automaton, and `samplehold.switching.stacks.coupled` has the recursions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ...inference.numerics.checks import check_lengths, check_table
from ...inference.numerics.interrupts import importing
from ...inference.numerics.randomness import Seed, generator_of
from ...inference.numerics.scalars import check_integer
from ...inference.stacks.automaton.op import draw
from ...inference.stacks.superposition.op import depths, superpose
from .cached import cached_table
from .checks import check_capacity, check_evidence, check_log_weights, check_mixture, check_reads
from .coupled import CoupledStack
from .histories import Histories, follow, picked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_HISTORIES = 3**10


@dataclass(frozen=True, eq=False, repr=False)
class StackMixture:
    r"""All histories of a stack with uncertain actions, with their weights.

    Elements are numbered by the step that pushed them. The cells of the initial stack from its top follow, then
    "empty".

    Arguments:
        log_action: [*b, T, 3] log-weights of push, pop, no-op: log-probabilities, or any numbers below +inf. Further
            columns are the weights of popping two cells, three cells, ... in one step, without a push (uncoupled
            mixtures only).
        values: [*b, T, V], the value that a push at each step puts on top.
        initial: [*b, D, V], the stack before the first step, from its top; None: empty.
        on_empty: "noop": popping the empty stack does nothing; "forbid": it has weight 0.
        capacity: the number of cells in the recursions of uncoupled mixtures; None: all that can be filled.
        lengths: [*b], each sequence's number of steps; after them its stack is certainly held. None: all have T.
        log_evidence: [*b, T, T+D+1], see `condition`.

    Raises:
        TypeError: tables that are not float32 or float64 tensors of one dtype on one device; lengths that are not
            integers.
        ValueError: shapes do not fit; a weight is NaN or +inf; histories of more than rounding mass (T times the
            precision
            of the dtype, before evidence) need more than `capacity`. From every method: no history has any weight (the
            error
            names the sequence and the step).

    Joulin & Mikolov 2015, section 3.2 (the expected stack); DuSell & Chiang 2020 (the weighted automaton).

    See Also:
        `SuperpositionStackRNN.mixture`, of a network; `stack_program`, the same in Pyro; docs/background/stacks.md.

    >>> import torch
    >>> import samplehold as sh
    >>> action = torch.tensor([[0.9, 0.0, 0.1], [0.6, 0.1, 0.3], [0.2, 0.5, 0.3]])  # push, pop, no-op
    >>> mixture = sh.stacks.StackMixture(action.log(), torch.tensor([[1.0], [2.0], [3.0]]))
    >>> mixture.superposition(depth=1)[:, 0, 0]  # the mean value on top after each step
    tensor([0.9000, 1.4700, 1.3110])
    >>> mixture.depth_distribution()[-1]
    tensor([0.2690, 0.3950, 0.2280, 0.1080])
    >>> mixture.top()[-1]  # pushed at step 0, 1, 2, or empty
    tensor([0.3510, 0.1800, 0.2000, 0.2690])
    >>> mixture.sample(1000, seed=0).depth.shape
    torch.Size([1000, 3])

    Given that the stack is empty at the end, the best history is push, no-op, pop:

    >>> evidence = torch.zeros(3, 4)
    >>> evidence[-1, :-1] = -torch.inf
    >>> mixture.condition(evidence).viterbi().action
    tensor([[0, 2, 1]])
    """

    log_action: Tensor
    values: Tensor
    initial: Tensor | None = None
    on_empty: str = "noop"
    capacity: int | None = None
    lengths: Tensor | Sequence[int] | int | None = field(default=None, kw_only=True)
    log_evidence: Tensor | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        check_mixture(self.log_action, self.values, self.initial, self.on_empty)
        check_lengths(self.lengths, self._batch, self.values.shape[-2], self.values.device)
        if self.log_evidence is not None:
            check_evidence("log_evidence", self.log_evidence, self.log_action, self.n_elements)
        if self.capacity is not None:
            object.__setattr__(self, "capacity", check_integer("capacity", self.capacity))
            check_capacity(self.capacity, self.log_prior.softmax(-1), self.n_initial, self.on_empty)

    def __repr__(self) -> str:
        """The number of histories and the sizes."""
        extent = ", ".join(f"{name}: {value}" for name, value in self._extent().items())
        return f"StackMixture({extent})"

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        import pandas as pd

        from ..views.tables import html

        return html("StackMixture", pd.DataFrame({"": self._extent()}))

    def _extent(self) -> dict[str, object]:
        """Its sizes and options."""
        (*batch, T, V), actions = self.values.shape, self.log_action.shape[-1]
        return {
            "sequences": math.prod(batch),
            "steps": T,
            "actions": actions,
            "numbers in a cell": V,
            "initial cells": self.n_initial,
            "pop of the empty stack": self.on_empty,
            "evidence": "none" if self.log_evidence is None else "of what is on top",
        }

    @property
    def coupled(self) -> bool:
        """Whether the actions of different steps depend on each other."""
        return self.on_empty == "forbid" or self.log_evidence is not None

    @property
    def initial_cells(self) -> Float[Tensor, "*b D V"]:
        """The stack before the first step, D = 0 for an empty one."""
        return self.values[..., :0, :] if self.initial is None else self.initial

    @property
    def n_initial(self) -> int:
        """D, the cells of the initial stack."""
        return self.initial_cells.shape[-2]

    @property
    def n_elements(self) -> int:
        """C = T + D + 1: the number of possible tops with "empty", and also the number of depths."""
        return self.values.shape[-2] + self.n_initial + 1

    @cached_table
    def past_end(self) -> Bool[Tensor, "*b T"]:
        """The steps after the end of their sequence."""
        T = self.values.shape[-2]
        lengths = check_lengths(self.lengths, self._batch, T, self.values.device)
        return torch.arange(T, device=self.values.device) >= lengths[..., None]

    @cached_table
    def log_prior(self) -> Float[Tensor, "*b T A"]:
        """`log_action`, with certain no-ops after the end of a sequence."""
        hold = torch.full_like(self.log_action[..., :1, :], -torch.inf)
        hold[..., 2] = 0.0
        return self.log_action if self.lengths is None else torch.where(self.past_end[..., None], hold, self.log_action)

    def log_normalizer(self) -> Float[Tensor, "*b"]:
        """log Z: the log of the summed weights of all histories. Differentiable; 0 if the weights are probabilities
        only."""
        if not self.coupled:
            return torch.logsumexp(self.log_prior, -1).sum(-1)
        return self._coupled.log_normalizer().to(self.values.dtype)

    def action_posterior(self) -> Float[Tensor, "*b T A"]:
        """P(action_t | everything), smoothed: the gradient of log Z in `log_action`."""
        return self._coupled.posterior[0] if self.coupled else self.log_prior.softmax(-1)

    def top(self) -> Float[Tensor, "*b T C"]:
        """P(element on top after step t | everything), the last entry: the stack is empty. O(T^3)."""
        return self._coupled.posterior[1] if self.coupled else self._top

    def superposition(self, depth: int) -> Float[Tensor, "*b T depth V"]:
        """Expected cells after each step, from the top; empty cells count as 0. `depth` is 1 or more.

        O(T) a step for an uncoupled mixture, or O(capacity), for any depth; O(T^2 depth) a step for a coupled one.

        Arguments:
            depth: the number of cells from the top.
        """
        depth = check_integer("depth", depth)
        if not self.coupled:
            cells = self._superposed(self.values, self.initial_cells)[..., :depth, :]
            return pad(cells, (0, 0, 0, depth - cells.shape[-2]))
        pushed = torch.cat([self.initial_cells.flip(-2), self.values], -2)
        return self._coupled.cells(pushed, depth).to(self.values.dtype)

    def depth_distribution(self) -> Float[Tensor, "*b T C"]:
        """P(depth after step t | everything), for depths 0..T+D.

        O(T) a step for an uncoupled mixture, whose depth is a birth-death chain; O(T^3) a step for a coupled one.
        """
        if self.coupled:
            return self._coupled.depths().to(self.values.dtype)
        return torch.stack(list(depths(self.log_prior.softmax(-1), self.n_initial, self.n_elements, "noop")), -2)

    def condition(self, log_likelihood: Tensor) -> "StackMixture":
        """The posterior mixture, given evidence about the element on top after each step.

        Arguments:
            log_likelihood: [*b, T, T+D+1], log-likelihood of the evidence at t for each element on top (the last: empty
                stack); 0 without evidence, -inf for impossible. Steps after `lengths` are ignored.

        Raises:
            TypeError: it is not a tensor, or has another dtype or device than values.
            ValueError: its shape does not fit, it holds NaN or +inf, or some step has no possible element.
        """
        check_evidence("log_likelihood", log_likelihood, self.log_action, self.n_elements)
        check_log_weights("log_likelihood", log_likelihood)
        before = 0.0 if self.log_evidence is None else self.log_evidence
        return replace(self, log_evidence=before + log_likelihood)

    def read_likelihood(self, reads: Tensor, scale: float) -> Float[Tensor, "*b T C"]:
        """Evidence for `condition` from reads [*b, T, V] of the value on top (0 if empty), with normal error.

        Arguments:
            reads: the reads; NaN for a number that was not read.
            scale: standard deviation of the error.

        Raises:
            TypeError: reads are not a tensor, or have another dtype or device than values.
            ValueError: they have another shape than values, or hold inf; scale is not a finite number above 0.
        """
        scale = check_reads(check_table("reads", reads), scale, self.values)
        error = (reads[..., :, None, :] - self._table[..., None, :, :]) / scale
        density = -0.5 * error**2 - math.log(scale) - 0.5 * math.log(2 * math.pi)
        return torch.where(error.isnan(), 0.0, density).sum(-1)

    @torch.no_grad()
    def sample(self, n: int, seed: Seed = None) -> Histories:
        """n independent histories of each sequence from the mixture, exactly.

        Arguments:
            n: the number of draws.
            seed: a number, a `torch.Generator`, or None, torch's global generator.
        """
        n = check_integer("n", n)
        choose = draw(generator_of(seed, self.values.device))
        if self.coupled:
            return self._weighed(self._coupled.sample(n, choose), 1 / n)
        return self._weighed(choose(self.log_prior.expand(n, *self.log_prior.shape)), 1 / n)

    @torch.no_grad()
    def viterbi(self) -> Histories:
        """The most probable whole history of each sequence (n = 1)."""
        return self._weighed(self._coupled.viterbi() if self.coupled else self.log_prior.argmax(-1)[None], 1.0)

    def enumerate(self) -> Histories:
        """Every history, with its probability: for small T. `ValueError` if there are more than 3^10 of them."""
        A, T = self.log_action.shape[-1], self.values.shape[-2]
        if A**T > MAX_HISTORIES:
            raise ValueError(
                f"enumerate: {A} actions over T = {T} steps make {A}^{T} histories, more than {MAX_HISTORIES}; shorten "
                "the sequence, or use sample, top, depth_distribution or superposition, which need no enumeration."
            )
        grid = torch.cartesian_prod(*[torch.arange(A, device=self.values.device)] * T).reshape(A**T, T)
        return self._weighed(grid.reshape(A**T, *[1] * len(self._batch), T).expand(A**T, *self._batch, T))

    def plot(self, sequence: int | Sequence[int] = (), steps: Sequence[str] | None = None) -> "Figure":
        """Heat maps of actions (before and given the evidence), depth and element on top over time, of one sequence.

        Arguments:
            sequence: its index in the batch axes; `ValueError` if there is none.
            steps: a name for each step; `ValueError` for another number of names.
        """
        with importing():
            from ..views.stack_figures import check_names, one_of, plot_mixture

        index = one_of(sequence, self._batch)
        steps = check_names("steps", steps, steps=self.values.shape[-2])
        with torch.no_grad():
            actions = [("action", self.action_posterior()[index])]
            if self.coupled:
                prior = self.log_prior.softmax(-1)[index]
                actions = [("action, each step alone", prior), ("action, given everything", actions[0][1])]
            best = self.viterbi().depth[0]
            return plot_mixture(actions, self.depth_distribution()[index], self.top()[index], best[index], steps)

    @property
    def _batch(self) -> torch.Size:
        return self.values.shape[:-2]

    @cached_table
    def _table(self) -> Tensor:
        """The values of all elements, [*b, C, V]; "empty" has 0."""
        return pad(torch.cat([self.values, self.initial_cells], -2), (0, 0, 0, 1))

    @cached_table
    def _evidence(self) -> Tensor:
        """`log_evidence` or 0, with 0 after the end of a sequence."""
        if self.log_evidence is None:
            return self.values.new_zeros(*self.values.shape[:-1], self.n_elements)
        return self.log_evidence.masked_fill(self.past_end[..., None], 0.0)

    @cached_table
    def _coupled(self) -> CoupledStack:
        return CoupledStack(self.log_prior, self._evidence, self.n_initial, self.on_empty)

    @cached_table
    def _top(self) -> Tensor:
        """P(element on top) of an uncoupled mixture: the expected cells if each element is its own unit vector."""
        T = self.values.shape[-2]
        eye = torch.eye(T + self.n_initial, dtype=self.values.dtype, device=self.values.device)
        pushed, initial = eye.expand(*self._batch, -1, -1).tensor_split([T], -2)
        tops = self._superposed(pushed, initial)[..., 0, :]
        return torch.cat([tops, self.depth_distribution()[..., :1]], -1)

    def _superposed(self, values: Tensor, initial: Tensor) -> Tensor:
        """Expected cells of an uncoupled mixture after each step, for any values: [*b, T, capacity, V]."""
        empty = values.shape[-2] if self.capacity is None else self.capacity - self.n_initial
        cells, kept = pad(initial, (0, 0, 0, empty)), []
        for action, value in zip(self.log_prior.softmax(-1).unbind(-2), values.unbind(-2), strict=True):
            cells = superpose(cells, action, value)
            kept.append(cells)
        return torch.stack(kept, -3)

    @torch.no_grad()
    def _weighed(self, action: Int[Tensor, "n *b T"], weight: float | None = None) -> Histories:
        """The histories of these actions, each with the share `weight` of the mixture; None: with its probability."""
        path = follow(action, self.n_initial)
        log_weight = picked(self.log_prior, action)
        if self.on_empty == "forbid":
            before = torch.cat([torch.full_like(path.depth[..., :1], self.n_initial), path.depth[..., :-1]], -1)
            log_weight = log_weight.masked_fill((action == 1) & (before == 0), -torch.inf)
        if self.log_evidence is not None:
            log_weight = log_weight + picked(self._evidence, path.top)
        log_probability = log_weight.sum(-1) - self.log_normalizer()
        each = log_probability.exp() if weight is None else torch.full_like(log_probability, weight)
        return Histories(action, path.top, path.depth, path.below, log_probability, each, self._table)
