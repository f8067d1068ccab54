r"""Recurrent networks with a differentiable stack: superposition, stratification and nondeterministic.

A controller reads the input and what was on the stack, and says what to do with the stack:

    h_t = controller([x_t, r_{t-1}], h_{t-1}),   actions_t = W h_t + b,   stack_t, r_t = update(stack_{t-1}, actions_t)

Given its actions, each update is an inference: the superposition stack holds the expected cells of `StackMixture`,
the nondeterministic stack the configurations of `PushdownAutomaton`; `layer.mixture(x)` returns that model. The network
as a whole is not: its controller reads the *mean* of the stacks, where in each history it would have read that
history's own top. Only with `feedback=False`, actions from the input alone, is the layer exact inference.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from ...inference.numerics.checks import check_lengths, check_table
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_choice, check_flag, check_integer, check_number
from ...inference.stacks.automaton.op import advance, start
from ...inference.stacks.stratification import stratify, strengths, visible
from ...inference.stacks.superposition.op import step as superposition
from ...inference.stacks.superposition.op import superposed_step
from ...switching.stacks.automaton import PushdownAutomaton
from ...switching.stacks.mixture import StackMixture
from .stack_network import StackRNN, StackRun, StackState, unchanged

Lengths = Tensor | Sequence[int] | int | None


@dataclass(frozen=True, repr=False)
class SuperpositionActions(Record):
    """Log-probabilities of push, pop, no-op (pop two, ...) and the value that a push puts on top, for every stack."""

    log_action: Float[Tensor, "*b T S A"]
    values: Float[Tensor, "*b T S V"]


class SuperpositionStackRNN(StackRNN):
    """A network on superposition stacks, whose cells are expectations over all histories.

    See `StackRNN` for its calls and what is raised.

    Arguments:
        input_size, hidden_size: of the controller.
        value_size: numbers a cell; a push writes the sigmoid of a linear map of the hidden state.
        stacks: how many, each with actions and values of its own.
        n_read: cells that are read from the top of each stack.
        most_pops: an action may pop up to this many cells (Yogatama et al. 2018).
        empty: what an empty cell reads as (-1 in the code of the 2015 paper).
        capacity: cells kept; a push on a full stack drops the deepest. None: all.
        controller, feedback: see `StackRNN`.

    See Also: Joulin & Mikolov 2015, section 3.2, with no-op; Yogatama et al. 2018.

    >>> import torch
    >>> import samplehold as sh
    >>> layer, x = sh.SuperpositionStackRNN(input_size=4, hidden_size=8, value_size=3), torch.randn(2, 10, 4)
    >>> output, state = layer(x)
    >>> output.shape, state.reading.shape
    (torch.Size([2, 10, 8]), torch.Size([2, 3]))
    >>> expected = layer.mixture(x).superposition(depth=1)  # [2, 1 stack, 10, 1 cell, 3]
    >>> torch.allclose(layer.run(x).reading, expected[:, 0, :, 0], atol=1e-5)
    True
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
        for name, size in sizes.items():
            check_integer(name, size)
        if capacity is not None:
            capacity = check_integer("capacity", capacity)
        empty = check_number("empty", empty)
        raw_size = stacks * (2 + most_pops + value_size)
        super().__init__(input_size, hidden_size, stacks * n_read * value_size, raw_size, controller, feedback)
        self.value_size, self.stacks, self.n_read = value_size, stacks, n_read
        self.most_pops, self.empty, self.capacity = most_pops, empty, capacity

    def run(self, x: Tensor, state: StackState | None = None, log_action: Tensor | None = None) -> StackRun:
        """As a call of the layer, with the reading and the actions of every step.

        Arguments:
            x: [*batch, T, input_size].
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
        override = pad(log_action, (0, self.value_size), value=torch.nan)  # values stay the controller's
        return self._run(x, state, override.reshape(-1, x.shape[-2], self.to_actions.out_features))

    def mixture(self, x: Tensor, *, lengths: Lengths = None) -> StackMixture:
        """The mixture over histories whose expected cells this network's stacks are, [*batch, stacks, T]-shaped.

        Its values are the pushed ones: an empty cell counts as 0 there, and as `empty` here.
        """
        actions = self.run(check_table("x", x, finite=True)).actions
        if lengths is not None:
            lengths = check_lengths(lengths, x.shape[:-2], x.shape[-2], x.device)[..., None]
        log_action, values = actions.log_action.movedim(-2, -3), actions.values.movedim(-2, -3)
        return StackMixture(log_action, values, capacity=self.capacity, lengths=lengths)

    def _fusible(self, x: Tensor) -> bool:
        plain = unchanged(self.controller, nn.LSTMCell) and unchanged(self.to_actions, nn.Linear)
        return plain and self.feedback and superposition.has_kernel(x.device.type)

    def _fused(self, x: Tensor, state: StackState | None) -> StackRun:
        """All steps of an LSTM cell at once on the CPU; the same numbers as `_run`."""
        from .stack_lstm import Settings, Start, Weights, stack_lstm

        cell, linear = self.controller, self.to_actions
        assert isinstance(cell, nn.LSTMCell)
        flat = x.reshape(-1, *x.shape[-2:]).transpose(0, 1)
        state = self._started(state, flat.shape[1], len(flat))
        zeros = x.new_zeros(flat.shape[1], self.hidden_size)
        hidden, memory = state.controller or (zeros, zeros)
        gates, gates_bias = torch.cat([cell.weight_ih, cell.weight_hh], 1), cell.bias_ih + cell.bias_hh
        done = stack_lstm(
            flat,
            Start(hidden, memory, state.reading, state.stack),
            Weights(gates, gates_bias, linear.weight, linear.bias),
            Settings(self.stacks, self.value_size, self.n_read, self.empty, self.capacity),
        )
        state = StackState((done.hidden[-1], done.cell), done.stacks, done.reading[-1], done.raw[-1])
        steps = (done.hidden, done.reading, done.raw)
        output, reading, raw = (z.transpose(0, 1).reshape(*x.shape[:-1], z.shape[-1]) for z in steps)
        return StackRun(output, reading, self._actions(raw), state)

    def _empty(self, batch: int, n_steps: int, like: Tensor) -> tuple[Tensor, Tensor]:
        cells = like.new_zeros(batch * self.stacks, 0, self.value_size)
        return cells, like.new_full((batch, self.reading_size), self.empty)

    def _update(self, stack: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        depth = stack.shape[1] + 1 if self.capacity is None else min(stack.shape[1] + 1, self.capacity)
        each = raw.unflatten(1, (self.stacks, -1)).flatten(0, 1)
        cells, reading = superposed_step(each, stack, depth, self.n_read, self.empty)
        return cells, reading.reshape(len(raw), self.reading_size)

    def _actions(self, raw: Tensor) -> SuperpositionActions:
        action, value = raw.unflatten(-1, (self.stacks, -1)).split([2 + self.most_pops, self.value_size], -1)
        return SuperpositionActions(action.log_softmax(-1), value.sigmoid())


@dataclass(frozen=True, repr=False)
class StratificationActions(Record):
    """Strengths poured on and drained at each step, and the values poured."""

    pour: Float[Tensor, "*b T"]
    drain: Float[Tensor, "*b T"]
    values: Float[Tensor, "*b T V"]


class StratificationStackRNN(StackRNN):
    """A network on a stratification stack: fluid layers, poured on, drained and read by depth.

    See `StackRNN` for its calls and what is raised. Its stack is no mixture of action histories, so there is no
    `mixture`; `strengths` shows it over time.

    Arguments:
        input_size, hidden_size: of the controller.
        value_size: numbers a layer; the tanh of a linear map of the hidden state is poured.
        controller, feedback: see `StackRNN`.

    See Also: Grefenstette et al. 2015, equations 1-3.

    >>> import torch
    >>> import samplehold as sh
    >>> layer, x = sh.StratificationStackRNN(input_size=4, hidden_size=8, value_size=3), torch.randn(2, 10, 4)
    >>> run = layer.run(x)
    >>> run.output.shape, run.reading.shape
    (torch.Size([2, 10, 8]), torch.Size([2, 10, 3]))
    >>> torch.equal(layer.strengths(x)[:, -1, -1], run.actions.pour[:, -1])  # what was poured last is all there
    True
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        value_size: int = 10,
        controller: Callable[[int, int], nn.Module] = nn.LSTMCell,
        feedback: bool = True,
    ) -> None:
        value_size = check_integer("value_size", value_size)
        super().__init__(input_size, hidden_size, value_size, 2 + value_size, controller, feedback)
        self.value_size = value_size

    def strengths(self, x: Tensor) -> Float[Tensor, "*b T T"]:
        """The strength that is left at each step (first T) of the layer poured at each step (last T)."""
        actions = self.run(check_table("x", x, finite=True)).actions
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


@dataclass(frozen=True, repr=False)
class PushdownActions(Record):
    """Log-weights of all transitions at each step, and the values pushed (None without)."""

    log_push: Float[Tensor, "*b T Q G Q G"]
    log_replace: Float[Tensor, "*b T Q G Q G"]
    log_pop: Float[Tensor, "*b T Q G Q"]
    values: Float[Tensor, "*b T V"] | None


class NondeterministicStackRNN(StackRNN):
    """A network on all runs of a weighted pushdown automaton at once.

    See `StackRNN` for its calls and what is raised. Starts in state 0 with symbol 0 at the bottom, which is never
    popped. O(T^3) a sequence.

    Arguments:
        input_size, hidden_size: of the controller.
        states, symbols: of the automaton.
        value_size: 0: reads the distribution over configurations; else each element also carries the sigmoid of a
            linear map of the hidden state at its push (replacing a symbol keeps it), and the reading is its expectation
            on top by configuration (the vector version, 2023). The bottom's is learned.
        normalized: weights are softmaxed over the transitions from a configuration (2020), or any positive (2022).
        reading: "configuration" (state and symbol, 2022) or "symbol" (summed over states, 2020).
        controller, feedback: see `StackRNN`.

    See Also: DuSell & Chiang 2020 (NS-RNN), 2022 (RNS-RNN), 2023 (vectors).

    >>> import torch
    >>> import samplehold as sh
    >>> layer, x = sh.NondeterministicStackRNN(input_size=4, hidden_size=8, states=2, symbols=3), torch.randn(2, 10, 4)
    >>> output, state = layer(x)
    >>> output.shape, state.reading.shape  # what is read: P(state, symbol on top)
    (torch.Size([2, 10, 8]), torch.Size([2, 6]))
    >>> torch.allclose(layer.run(x).reading, layer.mixture(x).reading().flatten(-2), atol=1e-5)
    True
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
        states, symbols = check_integer("states", states), check_integer("symbols", symbols)
        value_size = check_integer("value_size", value_size, least=0)
        check_choice("reading", reading, ("configuration", "symbol"))
        normalized = check_flag("normalized", normalized)
        K = states * symbols
        size = (K if reading == "configuration" else symbols) * max(1, value_size)
        super().__init__(input_size, hidden_size, size, K * (2 * K + states) + value_size, controller, feedback)
        self.states, self.symbols, self.value_size = states, symbols, value_size
        self.normalized, self.reads = normalized, reading
        self.bottom = nn.Parameter(torch.zeros(value_size)) if value_size else None

    def mixture(self, x: Tensor, *, lengths: Lengths = None) -> PushdownAutomaton:
        """The automaton, with the weights of this pass, all of whose runs the stack held."""
        actions = self.run(check_table("x", x, finite=True)).actions
        log_initial = self._log_initial(actions.log_pop).expand(*x.shape[:-2], -1, -1)
        return PushdownAutomaton(log_initial, actions.log_push, actions.log_replace, actions.log_pop, lengths=lengths)

    def _log_initial(self, like: Tensor) -> Tensor:
        first = torch.arange(self.states * self.symbols, device=like.device) == 0
        return torch.where(first, 0.0, -torch.inf).to(like.dtype).reshape(self.states, self.symbols)

    def _empty(self, batch: int, n_steps: int, like: Tensor) -> tuple[Any, Tensor]:
        log_initial = self._log_initial(like).flatten().expand(batch, -1)
        values = like.new_zeros(batch, 0, 0) if self.bottom is None else self.bottom.sigmoid().expand(batch, 1, -1)
        return (start(log_initial, self.states, n_steps), values), self._read(log_initial.unsqueeze(1), values)

    def _update(self, stack: tuple[object, Tensor], raw: Tensor) -> tuple[Any, Tensor]:
        *weights, value = self._transitions(raw)
        log_top, tape = advance(stack[0], *weights)
        values = stack[1] if value is None else torch.cat([stack[1], value.unsqueeze(1)], 1)
        return (tape, values), self._read(log_top, values)

    def _read(self, log_top: Tensor, values: Tensor) -> Tensor:
        """What is on top, given the log-weight of each element (the bottom, then each step's) by configuration."""
        by_element = log_top.flatten(1).softmax(-1).view(log_top.shape)
        if self.reads == "symbol":
            by_element = by_element.unflatten(-1, (self.states, self.symbols)).sum(-2)
        if self.value_size:
            return (by_element.transpose(1, 2) @ values).flatten(1)
        return by_element.sum(1)

    def _transitions(self, raw: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Log-weights of push and replace [*b, K, K] and pop [*b, K, Q], from each configuration, and the value."""
        K = self.states * self.symbols
        weights, value = raw.split([raw.shape[-1] - self.value_size, self.value_size], -1)
        weights = weights.unflatten(-1, (K, -1))
        weights = weights.log_softmax(-1) if self.normalized else weights
        push, replace, pop = weights.split([K, K, self.states], -1)
        return push, replace, pop, value.sigmoid() if self.value_size else None

    def _actions(self, raw: Tensor) -> PushdownActions:
        sizes = self.states, self.symbols
        push, replace, pop, value = self._transitions(raw)
        push, replace = (x.unflatten(-1, sizes).unflatten(-3, sizes) for x in (push, replace))
        return PushdownActions(push, replace, pop.unflatten(-2, sizes), value)
