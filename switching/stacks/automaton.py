r"""A weighted pushdown automaton over time: states q, stack symbols x, and weights that may change at every step.

    push_t[q, x, r, y]      in state q with x on top: go to r, put y on top of x
    replace_t[q, x, r, y]   go to r, y takes the place of x (y = x: a no-op)
    pop_t[q, x, r]          go to r, take x off

A run starts with one symbol, the bottom, which may be replaced but never popped. Its weight is the product of the
weights of its transitions. All runs of T steps count, with any end. `samplehold.inference.stacks.automaton.op` has the
recursion.

References: Lang 1974; DuSell & Chiang 2020 (locally normalised weights), 2022 (any weights).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...inference.numerics.arrays import ordinary
from ...inference.numerics.checks import check_lengths, check_same_kind
from ...inference.numerics.interrupts import importing
from ...inference.numerics.randomness import Seed, generator_of
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_integer
from ...inference.stacks.automaton import op as inference
from .cached import cached_table
from .checks import check_initial, check_transitions
from .histories import follow

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Transitions(Record):
    """One number for each transition of each step: its log-weight, or the probability that a run takes it."""

    push: Float[Tensor, "*b T Q G Q G"]
    replace: Float[Tensor, "*b T Q G Q G"]
    pop: Float[Tensor, "*b T Q G Q"]


@dataclass(frozen=True, repr=False)
class PushdownRuns(Record):
    """Whole runs, n for each sequence: the action of each step (0 push, 1 pop, 2 replace), and the configuration after
    it.

    Arguments:
        top: the step that pushed the element on top; T for the bottom.
        log_probability: of the run, among all runs.
    """

    action: Int[Tensor, "n *b T"]
    state: Int[Tensor, "n *b T"]
    symbol: Int[Tensor, "n *b T"]
    top: Int[Tensor, "n *b T"]
    depth: Int[Tensor, "n *b T"]
    log_probability: Float[Tensor, "n *b"]


@dataclass(frozen=True, repr=False)
class PushdownState(Record):
    """All runs after the n - 1 steps so far; `start` creates it, `advance` continues it.

    Arguments:
        log_top: log-weight of all runs with the element pushed at each step so far on top (last the bottom), by state
            and symbol. All present readings of the stack follow from it.
    """

    log_top: Float[Tensor, "*b n Q G"]
    tape: object = field(repr=False)

    @property
    def log_normalizer(self) -> Float[Tensor, "*b"]:
        """log of the summed weights of all runs so far."""
        return torch.logsumexp(self.log_top.flatten(-3), -1)

    @property
    def reading(self) -> Float[Tensor, "*b Q G"]:
        """P(state, symbol on top | the steps so far); `ValueError` if no run has any weight."""
        return self.pushed.sum(-3)

    @property
    def pushed(self) -> Float[Tensor, "*b n Q G"]:
        """P(step that pushed the element on top, state, symbol | the steps so far), last the bottom.

        Raises:
            ValueError: no run has any weight any more; names the sequence and the step.
        """
        gone = self.log_normalizer.isneginf()
        if gone.any():
            where = gone.nonzero()[0].tolist()
            raise ValueError(
                f"log_push, log_replace, log_pop: no run{f' of sequence {where}' if where else ''} has weight after "
                f"step {self.log_top.shape[-3] - 2}; give a transition that is possible there a weight above -inf."
            )
        return self.log_top.flatten(-3).softmax(-1).reshape(self.log_top.shape)


def start(log_initial: Tensor, n_steps: int = 16) -> PushdownState:
    """The state before the first step: log_initial [*b, Q, G] weighs state and bottom symbol; `n_steps` is the expected
    length.

    Raises what `PushdownAutomaton` raises.
    """
    check_same_kind(log_initial=log_initial)
    check_initial(log_initial)
    n_steps = check_integer("n_steps", n_steps)
    flat = ordinary(log_initial).reshape(-1, log_initial.shape[-2] * log_initial.shape[-1])
    return PushdownState(log_initial.unsqueeze(-3), inference.start(flat, log_initial.shape[-2], n_steps))


def advance(state: PushdownState, log_push: Tensor, log_replace: Tensor, log_pop: Tensor) -> PushdownState:
    """Continue all runs by one step, in O(steps so far squared). Differentiable; `state` is not changed.

    Arguments:
        log_push, log_replace: [*b, Q, G, Q, G], weights of this step, as in `PushdownAutomaton`.
        log_pop: [*b, Q, G, Q].

    Raises what `PushdownAutomaton` raises.

    >>> import torch
    >>> from samplehold.switching.stacks.automaton import advance, start
    >>> state = start(torch.zeros(1, 1))  # one state, one symbol
    >>> for step in range(2):  # push with probability 0.7, else pop, which runs at the bottom cannot
    ...     push, pop = torch.full((1, 1, 1, 1), 0.7).log(), torch.full((1, 1, 1), 0.3).log()
    ...     state = advance(state, push, torch.full_like(push, -torch.inf), pop)
    >>> state.pushed.flatten()  # step 0, step 1, bottom
    tensor([0.0000, 0.7000, 0.3000])
    """
    batch, (Q, G) = state.log_top.shape[:-3], state.log_top.shape[-2:]
    tables = {"log_push": log_push, "log_replace": log_replace, "log_pop": log_pop}
    check_same_kind(log_initial=state.log_top, **tables)
    check_transitions(batch, (Q, G), **tables)
    K = Q * G
    push, replace = (ordinary(table).reshape(-1, K, K) for table in (log_push, log_replace))
    pop = ordinary(log_pop).reshape(-1, K, Q)
    log_top, tape = inference.advance(state.tape, push, replace, pop)
    bottom_last = log_top.roll(-1, 1)  # the recursion has the bottom first
    return PushdownState(bottom_last.reshape(*batch, log_top.shape[1], Q, G), tape)


@dataclass(frozen=True, eq=False, repr=False)
class PushdownAutomaton(Record):
    """All runs of a weighted pushdown automaton.

    Elements are numbered by the step that pushed them; the last number is the bottom.

    Arguments:
        log_initial: [*b, Q, G], log-weight of the first state and of the bottom symbol.
        log_push: [*b, T, Q, G, Q, G], state and top before, state and pushed symbol after.
        log_replace: [*b, T, Q, G, Q, G], state and top before and after.
        log_pop: [*b, T, Q, G, Q], state and top before, state after.
        lengths: [*b], each sequence's number of steps; after them a run holds, with weight 1. None: all have T.

    Raises:
        TypeError: tables that are not float32 or float64 tensors of one dtype on one device; lengths that are not
            integers.
        ValueError: shapes do not fit; a weight is NaN or +inf. From every method: no run has any weight (the error
            names the
            sequence and the step).

    Lang 1974; DuSell & Chiang 2022, whose stack reading is `reading`. `advance` takes one step at a time.

    See Also:
        `NondeterministicStackRNN`, its network; `StackMixture`, a stack of values without states;
        docs/background/stacks.md.

    >>> import torch
    >>> import samplehold as sh
    >>> table = torch.zeros(3, 1, 2, 1, 2)  # three steps, one state, two symbols, all transitions alike
    >>> push, replace, pop = table.clone(), table.clone(), table[..., 0].clone()
    >>> push[1:], replace[0], pop[0] = -torch.inf, -torch.inf, -torch.inf  # a push comes first, and then no other
    >>> start = torch.tensor([[0.0, -torch.inf]])  # symbol 0 lies at the bottom
    >>> automaton = sh.stacks.PushdownAutomaton(start, push, replace, pop)
    >>> automaton.log_normalizer().exp()  # 8 runs keep what is pushed; 4 + 4 pop it at once or after a replacement
    tensor(16.)
    >>> automaton.top()[-1]  # pushed at step 0, 1, 2, or the bottom
    tensor([0.5000, 0.0000, 0.0000, 0.5000])
    >>> automaton.sample(5, seed=0).depth[:, 0].tolist()
    [1, 1, 1, 1, 1]
    """

    log_initial: Tensor
    log_push: Tensor
    log_replace: Tensor
    log_pop: Tensor
    lengths: Tensor | Sequence[int] | int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_same_kind(log_initial=self.log_initial, **self._tables)
        check_initial(self.log_initial)
        if self.log_pop.dim() < 4 or self.log_pop.shape[-4] < 1:
            shape, (Q, G) = list(self.log_pop.shape), self._sizes
            raise ValueError(f"log_pop: got shape {shape}, expected {[*self._batch, 'T', Q, G, Q]} with T > 0.")
        check_transitions((*self._batch, self._steps), self._sizes, **self._tables)
        check_lengths(self.lengths, self._batch, self._steps, self.log_pop.device)

    def log_normalizer(self) -> Float[Tensor, "*b"]:
        """log of the summed weights of all runs; differentiable, and its gradient is `transition_posterior`."""
        return inference.log_total(self._inside).reshape(self._batch).to(self.log_pop.dtype)

    def reading(self) -> Float[Tensor, "*b T Q G"]:
        """P(state, symbol on top after step t | steps 1..t), the reading of a stack network. Differentiable."""
        weight = torch.logsumexp(self._inside.log_top[:, 1:], 2).softmax(-1)
        return weight.reshape(*self._batch, self._steps, *self._sizes).to(self.log_pop.dtype)

    def marginals(self) -> Float[Tensor, "*b T Q G"]:
        """P(state, symbol on top after step t | all steps), smoothed."""
        return self._posterior[1].sum(-3)

    def top(self) -> Float[Tensor, "*b T C"]:
        """P(step that pushed the element on top after step t | all steps), the last entry: the bottom."""
        return self._posterior[1].sum((-2, -1)).roll(-1, -1)

    def transition_posterior(self) -> Transitions:
        """P(a run takes this transition at step t | all steps)."""
        return self._posterior[0]

    @torch.no_grad()
    def sample(self, n: int, seed: Seed = None) -> PushdownRuns:
        """n runs of each sequence, exactly with their probability.

        Arguments:
            n: the number of draws.
            seed: a number, a `torch.Generator`, or None, torch's global generator.
        """
        n = check_integer("n", n)
        choose = inference.draw(generator_of(seed, self.log_pop.device))
        return self._runs(inference.trace(self._weights, self._inside, n, choose))

    @torch.no_grad()
    def viterbi(self) -> PushdownRuns:
        """The run of most weight of each sequence (n = 1)."""
        self._inside  # noqa: B018 - raises if there is no run
        tables = inference.inside(self._weights, best=True)
        return self._runs(inference.trace(self._weights, tables, 1, inference.largest))

    def plot(self, sequence: int | Sequence[int] = (), steps: Sequence[str] | None = None) -> "Figure":
        """Heat maps of actions, state and symbol on top, and element on top over time, of one sequence.

        Arguments:
            sequence: its index in the batch axes; `ValueError` if there is none.
            steps: a name for each step; `ValueError` for another number of names.
        """
        with importing():
            from ..views.stack_figures import check_names, one_of, plot_automaton

        index = one_of(sequence, self._batch)
        steps = check_names("steps", steps, steps=self._steps)
        with torch.no_grad():
            taken = self.transition_posterior()
            action = torch.stack([x[index].flatten(1).sum(1) for x in (taken.push, taken.pop, taken.replace)], -1)
            return plot_automaton(action, self.marginals()[index], self.top()[index], steps)

    @property
    def _batch(self) -> torch.Size:
        return self.log_initial.shape[:-2]

    @property
    def _sizes(self) -> tuple[int, int]:
        """States Q and symbols G."""
        return self.log_initial.shape[-2], self.log_initial.shape[-1]

    @property
    def _steps(self) -> int:
        return self.log_pop.shape[-4]

    @property
    def _tables(self) -> dict[str, Tensor]:
        return {"log_push": self.log_push, "log_replace": self.log_replace, "log_pop": self.log_pop}

    def _weigh(
        self, log_push: Tensor, log_replace: Tensor, log_pop: Tensor, evidence: Tensor | None = None
    ) -> inference.Weights:
        """The weights of each step by configuration, with holding after the end of a sequence."""
        (Q, G), T, device = self._sizes, self._steps, log_pop.device
        K = Q * G
        ended = torch.arange(T, device=device) >= check_lengths(self.lengths, self._batch, T, device)[..., None]
        ended = ended.reshape(-1, T, 1, 1)
        hold = torch.where(torch.eye(K, dtype=torch.bool, device=device), 0.0, -torch.inf).double()
        push = torch.where(ended, -torch.inf, log_push.reshape(-1, T, K, K).double())
        replace = torch.where(ended, hold, log_replace.reshape(-1, T, K, K).double())
        pop = torch.where(ended, -torch.inf, log_pop.reshape(-1, T, K, Q).double())
        return inference.Weights(self.log_initial.reshape(-1, K).double(), push, replace, replace, pop, evidence)

    @cached_table
    def _weights(self) -> inference.Weights:
        return self._weigh(**self._tables)

    @cached_table
    def _inside(self) -> inference.Inside:
        tables = inference.inside(self._weights)
        if (gone := inference.vanished(tables)) is not None:
            step = "before the first step: log_initial is -inf" if gone[1] < 0 else f"at step {gone[1]}"
            raise ValueError(
                f"log_push, log_replace, log_pop: no run of sequence {gone[0]} survives; the last mass vanished {step} "
                "(the bottom symbol cannot be popped). Give a transition that is possible there a weight above -inf."
            )
        return tables

    @cached_table
    def _posterior(self) -> tuple[Transitions, Float[Tensor, "*b T C Q G"]]:
        """Transitions, and the top after each step: element (the bottom first), state and symbol."""
        self._inside  # noqa: B018
        T, (Q, G) = self._steps, self._sizes
        nothing = self.log_pop.new_zeros(self._batch.numel(), T, T + 1, Q * G, dtype=torch.float64)
        *steps, top = inference.expected_use(self._weigh, *self._tables.values(), nothing)
        return Transitions(*steps), top.to(self.log_pop.dtype).reshape(*self._batch, T, T + 1, Q, G)

    def _runs(self, runs: inference.Runs) -> PushdownRuns:
        def shaped(x: Tensor) -> Tensor:
            return x.reshape(len(x), *self._batch, *x.shape[2:])

        log_probability = (runs.log_weight - inference.log_total(self._inside)).to(self.log_pop.dtype)
        configuration, action = shaped(runs.configuration), shaped(runs.action)
        G = self._sizes[1]
        return PushdownRuns(
            action=action,
            state=configuration // G,
            symbol=configuration % G,
            top=(shaped(runs.top) - 1) % (self._steps + 1),  # the recursion numbers the bottom 0
            depth=follow(action).depth,
            log_probability=shaped(log_probability),
        )
