r"""Recurrent networks with a differentiable stack: superposition, stratification and nondeterministic.

A controller reads the input and what was on the stack, and says what to do with the stack:

    h_t = controller([x_t, r_{t-1}], h_{t-1}),   actions_t = W h_t + b,   stack_t, r_t = update(stack_{t-1}, actions_t)

Given its actions, each update is an inference: the superposition stack holds the expected cells of `StackMixture`,
the nondeterministic stack the configurations of `PushdownAutomaton`; `layer.mixture(x)` returns that model. The network
as a whole is not: its controller reads the *mean* of the stacks, where in each history it would have read that
history's own top. Only with `feedback=False`, actions from the input alone, is the layer exact inference.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...inference.numerics.checks import check_lengths
from ...inference.stacks.automaton.op import advance, start
from ...inference.stacks.stratification import stratify, strengths, visible
from ...inference.stacks.superposition.op import step as superposition
from ...inference.stacks.superposition.op import superposed_step
from ...switching.stacks.automaton import PushdownAutomaton
from ...switching.stacks.mixture import StackMixture
from .stack_network import StackRNN, StackRun, StackState, check_sizes


@dataclass(frozen=True)
class SuperpositionActions:
    """Log-probabilities of push, pop, no-op (pop two, ...) and the value that a push puts on top, for every stack."""

    log_action: Float[Tensor, "*b T S A"]
    values: Float[Tensor, "*b T S V"]


class SuperpositionStackRNN(StackRNN):
    """A network on superposition stacks (Joulin & Mikolov 2015), whose cells are expectations over all histories.

    Arguments:
        input_size, hidden_size: of the controller.
        value_size: numbers a cell; a push writes the sigmoid of a linear map of the hidden state.
        stacks: how many, each with actions and values of its own.
        n_read: cells that are read from the top of each stack.
        most_pops: an action may pop up to this many cells (Yogatama et al. 2018).
        empty: what an empty cell reads as (-1 in the code of the 2015 paper).
        capacity: cells kept; a push on a full stack drops the deepest. None: all.
        controller, feedback: see `StackRNN`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        value_size: int = 10,
        stacks: int = 1,
        n_read: int = 1,
        most_pops: int = 1,
        empty: float = 0.0,
        capacity: int | None = None,
        controller: Callable[[int, int], nn.Module] = nn.LSTMCell,
        feedback: bool = True,
    ) -> None:
        sizes = {"value_size": value_size, "stacks": stacks, "n_read": n_read, "most_pops": most_pops}
        check_sizes(input_size=input_size, hidden_size=hidden_size, **sizes)
        if capacity is not None:
            check_sizes(capacity=capacity)
        raw_size = stacks * (2 + most_pops + value_size)
        super().__init__(input_size, hidden_size, stacks * n_read * value_size, raw_size, controller, feedback)
        self.value_size, self.stacks, self.n_read = value_size, stacks, n_read
        self.most_pops, self.empty, self.capacity = most_pops, empty, capacity

    def forward(self, x: Tensor, state: StackState | None = None, log_action: Tensor | None = None) -> StackRun:
        """Run over x [*batch, T, input_size].

        Arguments:
            state: continues an earlier run.
            log_action: [*batch, T, stacks, A], log-probabilities to act with in place of the controller's, which are
                still reported. With certain actions (0 and -inf) the controller reads the stack of that one history.
        """
        x = self._checked(x)
        if log_action is None:
            return self._fused(x, state) if self._fusible(x) else self._run(x, state)
        expected = (*x.shape[:-1], self.stacks, 2 + self.most_pops)
        if log_action.shape != expected:
            raise ValueError(f"log_action: got shape {list(log_action.shape)}, expected {list(expected)} for this x.")
        forced = log_action.reshape(-1, *log_action.shape[-3:])

        def change(t: int, raw: Tensor) -> Tensor:
            each = raw.unflatten(-1, (self.stacks, -1))
            return torch.cat([forced[:, t], each[..., 2 + self.most_pops :]], -1).flatten(-2)

        return self._run(x, state, change)

    def mixture(self, x: Tensor, lengths: Any = None) -> StackMixture:
        """The mixture over histories whose expected cells this network's stacks are, [*batch, stacks, T]-shaped.

        Its values are the pushed ones: an empty cell counts as 0 there, and as `empty` here.
        """
        actions = self(x).actions
        if lengths is not None:
            lengths = check_lengths(lengths, x.shape[:-2], x.shape[-2], x.device)[..., None]
        log_action, values = actions.log_action.movedim(-2, -3), actions.values.movedim(-2, -3)
        return StackMixture(log_action, values, capacity=self.capacity, lengths=lengths)

    def _fusible(self, x: Tensor) -> bool:
        plain_cell = type(self.controller) is nn.LSTMCell and self.controller.bias
        return plain_cell and self.feedback and superposition.has_kernel(x.device.type)

    def _fused(self, x: Tensor, state: StackState | None) -> StackRun:
        """All steps of an LSTM cell at once on the CPU; the same numbers as `_run`."""
        from .stack_lstm import Settings, StackLSTM

        batch = x.shape[:-2]
        input_weight, weight, input_bias, bias = self.controller.parameters()
        flat = x.reshape(-1, *x.shape[-2:]).transpose(0, 1)
        state = self._started(state, flat.shape[1], flat.shape[0])
        zeros = x.new_zeros(flat.shape[1], self.hidden_size)
        hidden, memory = state.controller or (zeros, zeros)
        weight, bias = torch.cat([input_weight, weight], 1), input_bias + bias
        out, reading, raw, memory, cells = StackLSTM.apply(
            flat, hidden, memory, state.reading, state.stack, weight, bias, *self.to_actions.parameters(),
            Settings(self.stacks, self.value_size, self.n_read, self.empty, self.capacity),
        )  # fmt: skip
        state = StackState((out[-1], memory), cells, reading[-1], raw[-1])
        out, reading, raw = (z.transpose(0, 1).reshape(*batch, *z.shape[::2]) for z in (out, reading, raw))
        return StackRun(out, reading, self._actions(raw), state)

    def _empty(self, batch: int, n_steps: int, like: Tensor) -> tuple[Tensor, Tensor]:
        return like.new_zeros(batch * self.stacks, 0, self.value_size), like.new_full(
            (batch, self.reading_size), self.empty
        )

    def _update(self, stack: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        depth = stack.shape[1] + 1 if self.capacity is None else min(stack.shape[1] + 1, self.capacity)
        each = raw.reshape(len(raw) * self.stacks, raw.shape[1] // self.stacks)
        cells, reading = superposed_step(each, stack, depth, self.n_read, self.empty)
        return cells, reading.reshape(len(raw), self.reading_size)

    def _actions(self, raw: Tensor) -> SuperpositionActions:
        action, value = raw.unflatten(-1, (self.stacks, -1)).split([2 + self.most_pops, self.value_size], -1)
        return SuperpositionActions(action.log_softmax(-1), value.sigmoid())


@dataclass(frozen=True)
class StratificationActions:
    """Strengths poured on and drained at each step, and the values poured."""

    pour: Float[Tensor, "*b T"]
    drain: Float[Tensor, "*b T"]
    values: Float[Tensor, "*b T V"]


class StratificationStackRNN(StackRNN):
    """A network on a stratification stack (Grefenstette et al. 2015): fluid layers, drained and read by depth.

    Its stack is no mixture of action histories, so there is no `mixture`; `strengths` shows it over time.

    Arguments:
        input_size, hidden_size: of the controller.
        value_size: numbers a layer; the tanh of a linear map of the hidden state is poured.
        controller, feedback: see `StackRNN`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        value_size: int = 10,
        controller: Callable[[int, int], nn.Module] = nn.LSTMCell,
        feedback: bool = True,
    ) -> None:
        check_sizes(input_size=input_size, hidden_size=hidden_size, value_size=value_size)
        super().__init__(input_size, hidden_size, value_size, 2 + value_size, controller, feedback)
        self.value_size = value_size

    def strengths(self, x: Tensor) -> Float[Tensor, "*b T T"]:
        """The strength that is left at each step (first T) of the layer poured at each step (last T)."""
        actions = self(x).actions
        return strengths(actions.pour, actions.drain)

    def _empty(self, batch: int, n_steps: int, like: Tensor) -> tuple[Any, Tensor]:
        stack = like.new_zeros(batch, 0), like.new_zeros(batch, 0, self.value_size)
        return stack, like.new_zeros(batch, self.reading_size)

    def _update(self, stack: tuple[Tensor, Tensor], raw: Tensor) -> tuple[Any, Tensor]:
        now = self._actions(raw)
        strength = stratify(stack[0], now.pour, now.drain)
        values = torch.cat([stack[1], now.values.unsqueeze(1)], 1)
        return (strength, values), (visible(strength).unsqueeze(1) @ values).squeeze(1)

    def _actions(self, raw: Tensor) -> StratificationActions:
        strengths, value = raw.split([2, self.value_size], -1)
        pour, drain = strengths.sigmoid().unbind(-1)
        return StratificationActions(pour, drain, value.tanh())


@dataclass(frozen=True)
class PushdownActions:
    """Log-weights of all transitions at each step, and the values pushed (None without)."""

    log_push: Float[Tensor, "*b T Q G Q G"]
    log_replace: Float[Tensor, "*b T Q G Q G"]
    log_pop: Float[Tensor, "*b T Q G Q"]
    values: Float[Tensor, "*b T V"] | None


class NondeterministicStackRNN(StackRNN):
    """A network on all runs of a weighted pushdown automaton at once (DuSell & Chiang 2020, 2022).

    Starts in state 0 with symbol 0 at the bottom, which is never popped. O(T^3) a sequence.

    Arguments:
        input_size, hidden_size: of the controller.
        states, symbols: of the automaton.
        value_size: 0: reads the distribution over configurations; else each element also carries the sigmoid of a
            linear map of the hidden state at its push (replacing a symbol keeps it), and the reading is its expectation
            on top by configuration (the vector version, 2022). The bottom's is learned.
        normalized: weights are softmaxed over the transitions from a configuration (2020), or any positive (2022).
        reading: "configuration" (state and symbol, 2022) or "symbol" (summed over states, 2020).
        controller, feedback: see `StackRNN`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        states: int = 1,
        symbols: int = 2,
        value_size: int = 0,
        normalized: bool = False,
        reading: str = "configuration",
        controller: Callable[[int, int], nn.Module] = nn.LSTMCell,
        feedback: bool = True,
    ) -> None:
        check_sizes(input_size=input_size, hidden_size=hidden_size, states=states, symbols=symbols)
        check_sizes(0, value_size=value_size)
        if reading not in ("configuration", "symbol"):
            raise ValueError(f"reading: got {reading!r}, expected 'configuration' or 'symbol'.")
        K = states * symbols
        size = (K if reading == "configuration" else symbols) * max(1, value_size)
        super().__init__(input_size, hidden_size, size, K * (2 * K + states) + value_size, controller, feedback)
        self.states, self.symbols, self.value_size = states, symbols, value_size
        self.normalized, self.reads = normalized, reading
        self.bottom = nn.Parameter(torch.zeros(value_size)) if value_size else None

    def mixture(self, x: Tensor, lengths: Any = None) -> PushdownAutomaton:
        """The automaton, with the weights of this pass, all of whose runs the stack held."""
        actions = self(x).actions
        log_initial = self._log_initial(actions.log_pop).expand(*x.shape[:-2], -1, -1)
        return PushdownAutomaton(log_initial, actions.log_push, actions.log_replace, actions.log_pop, lengths)

    def _log_initial(self, like: Tensor) -> Tensor:
        first = torch.arange(self.states * self.symbols, device=like.device) == 0
        return torch.where(first, 0.0, -torch.inf).to(like.dtype).reshape(self.states, self.symbols)

    def _empty(self, batch: int, n_steps: int, like: Tensor) -> tuple[Any, Tensor]:
        log_initial = self._log_initial(like).flatten().expand(batch, -1)
        values = like.new_zeros(batch, 0, 0) if self.bottom is None else self.bottom.sigmoid().expand(batch, 1, -1)
        return (start(log_initial, self.states, n_steps), values), self._read(log_initial.unsqueeze(1), values)

    def _update(self, stack: tuple[object, Tensor], raw: Tensor) -> tuple[Any, Tensor]:
        K = self.states * self.symbols
        weights, value = self._weights(raw)
        log_top, tape = advance(stack[0], *weights.split([K, K, self.states], -1))
        values = torch.cat([stack[1], value.sigmoid().unsqueeze(1)], 1) if self.value_size else stack[1]
        return (tape, values), self._read(log_top, values)

    def _read(self, log_top: Tensor, values: Tensor) -> Tensor:
        """What is on top, given the log-weight of each element (the bottom, then each step's) by configuration."""
        by_element = log_top.flatten(1).softmax(-1).view(log_top.shape)
        if self.reads == "symbol":
            by_element = by_element.unflatten(-1, (self.states, self.symbols)).sum(-2)
        if self.value_size:
            return (by_element.transpose(1, 2) @ values).flatten(1)
        return by_element.sum(1)

    def _weights(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Log-weights [*b, K, 2 K + Q] of push, replace and pop from each configuration, and the raw value."""
        weights, value = raw.split([raw.shape[-1] - self.value_size, self.value_size], -1)
        weights = weights.unflatten(-1, (self.states * self.symbols, -1))
        return (weights.log_softmax(-1) if self.normalized else weights), value

    def _actions(self, raw: Tensor) -> PushdownActions:
        Q, G = self.states, self.symbols
        weights, value = self._weights(raw)
        push, replace, pop = weights.unflatten(-2, (Q, G)).split([Q * G, Q * G, Q], -1)
        values = value.sigmoid() if self.value_size else None
        return PushdownActions(push.unflatten(-1, (Q, G)), replace.unflatten(-1, (Q, G)), pop, values)
