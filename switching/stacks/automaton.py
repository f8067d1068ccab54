r"""A weighted pushdown automaton over time: states q, stack symbols x, and weights that may change at every step.

    push_t[q, x, r, y]      in state q with x on top: go to r, put y on top of x
    replace_t[q, x, r, y]   go to r, y takes the place of x (y = x: a no-op)
    pop_t[q, x, r]          go to r, take x off

A run starts with one symbol, the bottom, which may be replaced but never popped; it weighs the product of what it does.
All runs of T steps count, wherever they end. `samplehold.inference.stacks.automaton.op` has the recursion.

References: Lang 1974; DuSell & Chiang 2020 (locally normalised weights), 2022 (any weights).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...inference.numerics.checks import check_lengths, check_same_kind
from ...inference.stacks.automaton import op as inference
from .checks import check_count, check_numbers
from .histories import follow

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Transitions:
    """One number for each transition of each step: a weight's log, or how probable it is that a run takes it."""

    push: Float[Tensor, "*b T Q G Q G"]
    replace: Float[Tensor, "*b T Q G Q G"]
    pop: Float[Tensor, "*b T Q G Q"]


@dataclass(frozen=True)
class PushdownRuns:
    """Whole runs, n for each sequence: what was done at each step (0 push, 1 pop, 2 replace), and what held after it.

    Arguments:
        top: the step that pushed the element on top; -1 for the bottom.
        log_probability: of the run, among all runs.
    """

    action: Int[Tensor, "n *b T"]
    state: Int[Tensor, "n *b T"]
    symbol: Int[Tensor, "n *b T"]
    top: Int[Tensor, "n *b T"]
    depth: Int[Tensor, "n *b T"]
    log_probability: Float[Tensor, "n *b"]


@dataclass(frozen=True)
class PushdownState:
    """All runs after the steps so far.

    Arguments:
        log_top: log-weight of all runs with the element pushed at each step so far on top (first the bottom), by state
            and symbol. Everything that can be read off the stack now.
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
        """P(step that pushed the element on top, state, symbol | the steps so far), first the bottom.

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
    """Before the first step: log_initial [*b, Q, G] weighs state and bottom symbol; `n_steps` guesses the length."""
    check_same_kind(log_initial=log_initial)
    _check_initial(log_initial)
    check_count("n_steps", n_steps, 1)
    flat = log_initial.reshape(-1, log_initial.shape[-2] * log_initial.shape[-1])
    return PushdownState(log_initial.unsqueeze(-3), inference.start(flat, log_initial.shape[-2], n_steps))


def advance(
    state: PushdownState,
    log_push: Tensor,
    log_replace: Tensor,
    log_pop: Tensor,
) -> PushdownState:
    """One more step of all runs, in O(steps so far squared); differentiable, and `state` itself stays as it was.

    Arguments:
        log_push, log_replace: [*b, Q, G, Q, G], weights of this step, as in `PushdownAutomaton`.
        log_pop: [*b, Q, G, Q].
    """
    batch, (Q, G) = state.log_top.shape[:-3], state.log_top.shape[-2:]
    tables = {"log_push": log_push, "log_replace": log_replace, "log_pop": log_pop}
    check_same_kind(log_initial=state.log_top, **tables)
    _check_steps(batch, Q, G, **tables)
    K = Q * G
    push, replace, pop = log_push.reshape(-1, K, K), log_replace.reshape(-1, K, K), log_pop.reshape(-1, K, Q)
    log_top, tape = inference.advance(state.tape, push, replace, pop)
    return PushdownState(log_top.reshape(*batch, log_top.shape[1], Q, G), tape)


@dataclass(frozen=True, eq=False)
class PushdownAutomaton:
    """All runs of a weighted pushdown automaton.

    Arguments:
        log_initial: [*b, Q, G], log-weight of the first state and of the bottom symbol.
        log_push: [*b, T, Q, G, Q, G], state and top before, state and pushed symbol after.
        log_replace: [*b, T, Q, G, Q, G], state and top before and after.
        log_pop: [*b, T, Q, G, Q], state and top before, state after.
        lengths: [*b], steps of each sequence; after them a run holds, with weight 1.

    Raises:
        ValueError: shapes do not fit, a weight is NaN or +inf, or no run has any weight (names sequence and step).
    """

    log_initial: Tensor
    log_push: Tensor
    log_replace: Tensor
    log_pop: Tensor
    lengths: Tensor | Sequence[int] | None = None

    def __post_init__(self) -> None:
        _check(self)

    def log_normalizer(self) -> Float[Tensor, "*b"]:
        """log of the summed weights of all runs; differentiable, and its gradient is `transition_posterior`."""
        return inference.log_total(self._inside).reshape(self._batch).to(self.log_pop.dtype)

    def reading(self) -> Float[Tensor, "*b T Q G"]:
        """P(state, symbol on top after step t | steps 1..t), differentiable: what a stack network reads."""
        weight = torch.logsumexp(self._inside.log_top[:, 1:], 2).softmax(-1)
        return weight.reshape(*self._batch, self._steps, *self._sizes).to(self.log_pop.dtype)

    def marginals(self) -> Float[Tensor, "*b T Q G"]:
        """P(state, symbol on top after step t | all steps), smoothed."""
        return self._posterior[1].reshape(*self._batch, self._steps, self._steps + 1, *self._sizes).sum(-3)

    def top(self) -> Float[Tensor, "*b T C"]:
        """P(step that pushed the element on top after step t | all steps), the last entry: the bottom."""
        by_element = self._posterior[1].sum(-1).reshape(*self._batch, self._steps, self._steps + 1)
        return by_element.roll(-1, -1)

    def transition_posterior(self) -> Transitions:
        """P(a run takes this transition at step t | all steps)."""
        return self._posterior[0]

    def sample(self, n: int, generator: torch.Generator | None = None) -> PushdownRuns:
        """n runs of each sequence, exactly with their probability."""
        check_count("n", n, 1)
        with torch.no_grad():
            return self._runs(inference.trace(self._weights, self._inside, n, inference.draw(generator)))

    def viterbi(self) -> PushdownRuns:
        """The run of most weight of each sequence (n = 1)."""
        with torch.no_grad():
            self._inside  # noqa: B018 - raises if there is no run
            tables = inference.inside(self._weights, best=True)
            return self._runs(inference.trace(self._weights, tables, 1, inference.largest))

    def plot(self, sequence: int | Sequence[int] = (), steps: Sequence[str] | None = None) -> "Figure":
        """Heat maps of actions, state and symbol on top, and element on top over time, of one sequence.

        Arguments:
            sequence: its index in the batch axes.
            steps: a name for each step.
        """
        from ..views.stack_figures import plot_automaton

        return plot_automaton(self, sequence, steps)

    @cached_property
    def _batch(self) -> torch.Size:
        return self.log_initial.shape[:-2]

    @cached_property
    def _sizes(self) -> torch.Size:
        return self.log_initial.shape[-2:]

    @cached_property
    def _steps(self) -> int:
        return self.log_pop.shape[-4]

    def _held(self, table: Tensor, past: float | Tensor) -> Tensor:
        """A table of weights [*b, T, ...] with `past` after the end of a sequence."""
        if self.lengths is None:
            return table
        lengths = check_lengths(self.lengths, self._batch, self._steps, table.device)
        ended = torch.arange(self._steps, device=table.device) >= lengths[..., None]
        return torch.where(ended.reshape(*ended.shape, *[1] * (table.dim() - ended.dim())), past, table)

    def _weigh(
        self, log_push: Tensor, log_replace: Tensor, log_pop: Tensor, evidence: Tensor | None = None
    ) -> inference.Weights:
        Q, G = self._sizes
        K, T = Q * G, self._steps
        hold = torch.where(torch.eye(K, dtype=torch.bool, device=log_pop.device), 0.0, -torch.inf).to(log_pop.dtype)
        push = self._held(log_push, -torch.inf).reshape(-1, T, K, K).double()
        replace = self._held(log_replace, hold.reshape(Q, G, Q, G)).reshape(-1, T, K, K).double()
        pop = self._held(log_pop, -torch.inf).reshape(-1, T, K, Q).double()
        return inference.Weights(self.log_initial.reshape(-1, K).double(), push, replace, replace, pop, evidence)

    @cached_property
    def _weights(self) -> inference.Weights:
        return self._weigh(self.log_push, self.log_replace, self.log_pop)

    @cached_property
    def _inside(self) -> inference.Inside:
        tables = inference.inside(self._weights)
        if (gone := inference.vanished(tables)) is not None:
            step = "before the first step: log_initial is -inf" if gone[1] < 0 else f"at step {gone[1]}"
            raise ValueError(
                f"log_push, log_replace, log_pop: no run of sequence {gone[0]} survives; the last mass vanished {step} "
                "(the bottom symbol cannot be popped). Give a transition that is possible there a weight above -inf."
            )
        return tables

    @cached_property
    def _posterior(self) -> tuple[Transitions, Tensor]:
        """Transitions, and tops [B, T, C, K]."""
        self._inside  # noqa: B018
        T, K = self._steps, self._sizes.numel()
        nothing = self.log_pop.new_zeros(self._batch.numel(), T, T + 1, K, dtype=torch.float64)
        *steps, top = inference.expected_use(self._weigh, self.log_push, self.log_replace, self.log_pop, nothing)
        return Transitions(*steps), top.to(self.log_pop.dtype)

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
            top=shaped(runs.top) - 1,
            depth=follow(action).depth,
            log_probability=shaped(log_probability),
        )


def _check(automaton: PushdownAutomaton) -> None:
    tables = {k: v for k, v in vars(automaton).items() if k.startswith("log_")}
    check_same_kind(**tables)
    _check_initial(automaton.log_initial)
    *batch, Q, G = automaton.log_initial.shape
    T = automaton.log_pop.shape[-4] if automaton.log_pop.dim() >= 4 else 0
    del tables["log_initial"]
    if T < 1:
        raise ValueError(
            f"log_pop: got shape {list(automaton.log_pop.shape)}, expected {[*batch, 'T', Q, G, Q]} with T > 0."
        )
    _check_steps((*batch, T), Q, G, **tables)
    check_lengths(automaton.lengths, batch, T, automaton.log_pop.device)


def _check_initial(log_initial: Tensor) -> None:
    if log_initial.dim() < 2 or not log_initial.shape[-2:].numel():
        raise ValueError(
            f"log_initial: got shape {list(log_initial.shape)}, expected [*batch, Q, G], one state and symbol or more."
        )
    check_numbers("log_initial", log_initial)


def _check_steps(leading: tuple[int, ...], Q: int, G: int, **tables: Tensor) -> None:
    """Weights of transitions, with the axes `leading` before those of states and symbols."""
    ends = {"log_pop": (Q, G, Q), "log_push": (Q, G, Q, G), "log_replace": (Q, G, Q, G)}
    for name, end in ends.items():
        if tables[name].shape != (*leading, *end):
            raise ValueError(
                f"{name}: got shape {list(tables[name].shape)}, expected {[*leading, *end]} for {Q} states and {G} "
                "symbols, as log_initial has them; all tables have the same batch and time axes."
            )
    for name, table in tables.items():
        check_numbers(name, table)
