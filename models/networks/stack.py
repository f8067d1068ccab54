r"""Recurrent networks with a differentiable stack: superposition, stratification and nondeterministic.

A controller reads the input and the top of the stack, and outputs actions on the stack:

    h_t = controller([x_t, r_{t-1}], h_{t-1}),   actions_t = W h_t + b,   stack_t, r_t = update(stack_{t-1}, actions_t)

Given its actions, each update is exact inference: the superposition stack holds the expected cells of `StackMixture`,
the nondeterministic stack the configurations of `PushdownAutomaton`. `layer.mixture(x)` returns this model. The network
as a whole is not exact: its controller reads the *mean* of the stacks, but in each history it would read the top of
that history. The layer is exact inference only with `feedback=False`, where actions depend on the input alone.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_choice, check_flag, check_integer, check_number
from ...inference.stacks.automaton.op import Tape, advance, start
from ...inference.stacks.stratification.op import stratified_step, strengths
from ...inference.stacks.superposition.op import superposed_step
from ...switching.stacks.automaton import PushdownAutomaton
from ...switching.stacks.mixture import StackMixture
from .controllers import Controller, unchanged
from .inputs import Lengths, Observed, converting, last, widened
from .stack_lstm.op import Settings, Start, Weights, passes, stack_lstm
from .stack_network import Options, Pass, StackRNN, StackRun, StackState


class _FusedStackRNN(StackRNN):
    """A network that takes all steps at once if its controller is an LSTM cell, where there is a kernel for that."""

    def _pass(self, x: Tensor, hx: StackState | None, some: Observed, override: Tensor | None = None) -> Pass:
        return (
            self._fused(x, hx, some)
            if x.shape[-2] and override is None and self._fusible(x)
            else super()._pass(x, hx, some, override)
        )

    def _fusible(self, x: Tensor) -> bool:
        plain = unchanged(self.controller, nn.LSTMCell) and unchanged(self.to_actions, nn.Linear)
        return plain and self.feedback and passes.serving(x) is not None and not converting(x)

    def _fused(self, x: Tensor, hx: StackState | None, some: Observed) -> Pass:
        """All steps of an LSTM cell at once, with the same results as step by step."""
        cell, linear, batch, T = self.controller, self.to_actions, x.shape[:-2], x.shape[-2]
        assert isinstance(cell, nn.LSTMCell)
        flat = x.reshape(math.prod(batch), *x.shape[-2:])
        some = None if some is None else (some[0].reshape(-1), some[1].reshape(-1, T, 1))
        state = self._started(hx, flat, T)
        zeros = x.new_zeros(flat.shape[0], self.hidden_size)
        hidden, memory = state.controller or (zeros, zeros)
        gates, gates_bias = torch.cat([cell.weight_ih, cell.weight_hh], 1), cell.bias_ih + cell.bias_hh
        past = None if some is None else ~some[1][..., 0].t()
        done = stack_lstm(
            flat.transpose(0, 1),
            Start(hidden, memory, state.reading, self._joined(state.stack)),
            Weights(gates, gates_bias, linear.weight, linear.bias),
            self._settings()._replace(past=past, idle=self._idle(x)),
        )
        steps = [z.transpose(0, 1) for z in (done.hidden, done.cell, done.raw, done.reading)]
        *controller, raw = (last(z, some).squeeze(1) for z in steps[:3])
        state = StackState(tuple(controller), self._parted(done.stacks), done.reading[-1], raw)
        output, _, raw, reading = (z.reshape(*batch, T, z.shape[-1]) for z in steps)
        return Pass(output, reading, raw, state)

    @abstractmethod
    def _settings(self) -> Settings:
        """The sizes of the stacks."""

    def _joined(self, stack: Any) -> Tensor:
        """A stack as one table."""
        return stack

    def _parted(self, stack: Tensor) -> Any:
        return stack


@dataclass(frozen=True, repr=False)
class SuperpositionActions(Record):
    """Log-probabilities of push, pop, no-op (pop two, ...) and the value that a push puts on top, for every stack."""

    log_action: Float[Tensor, "*b T S A"]
    values: Float[Tensor, "*b T S V"]


class SuperpositionStackRNN(_FusedStackRNN):
    """A network with superposition stacks, whose cells are expectations over all histories.

    See `StackRNN` for its calls and errors.

    Arguments:
        input_size, hidden_size: of the controller.
        value_size: numbers in a cell; a push writes the sigmoid of a linear map of the hidden state.
        stacks: the number of stacks, each with its own actions and values; with several, training learns to use one
            sooner.
        n_read: cells that are read from the top of each stack.
        most_pops: an action may pop up to this many cells (Yogatama et al. 2018). Here an action pops or pushes. In
            stacknn's `MultiPopStack` it does both: it pops k cells, then pushes.
        empty: the reading of an empty cell (-1 in the code of the 2015 paper).
        capacity: cells kept; a push on a full stack drops the deepest. None: all.
        controller, feedback, num_layers, bias, batch_first, dropout, device, dtype: see `StackRNN`.

    Joulin & Mikolov 2015, section 3.2, with no-op; Yogatama et al. 2018.

    See Also:
        `StackMixture`, the histories that it averages; `NondeterministicStackRNN`, of automata;
        docs/background/stacks.md.

    >>> import torch
    >>> import samplehold as sh
    >>> layer, x = sh.stacks.SuperpositionStackRNN(input_size=4, hidden_size=8, value_size=3), torch.randn(2, 10, 4)
    >>> output, state = layer(x)
    >>> output.shape, state.reading.shape
    (torch.Size([2, 10, 8]), torch.Size([2, 24]))
    >>> expected = layer.mixture(x).superposition(depth=1)  # [2, 8 stacks, 10, 1 cell, 3]
    >>> torch.allclose(layer.run(x).reading, expected[..., 0, :].movedim(1, 2).flatten(2), atol=1e-5)
    True
    """

    value_size: int
    stacks: int
    n_read: int
    most_pops: int
    empty: float
    capacity: int | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        value_size: int = 10,
        stacks: int = 8,
        n_read: int = 1,
        most_pops: int = 1,
        empty: float = 0.0,
        capacity: int | None = None,
        controller: Controller = nn.LSTMCell,
        feedback: bool = True,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options = Options(controller, feedback, num_layers, bias, batch_first, dropout, device, dtype)
        sizes = {"value_size": value_size, "stacks": stacks, "n_read": n_read, "most_pops": most_pops}
        for name, size in sizes.items():
            check_integer(name, size)
        if capacity is not None:
            capacity = check_integer("capacity", capacity)
        empty = check_number("empty", empty)
        raw_size = stacks * (2 + most_pops + value_size)
        super().__init__(input_size, hidden_size, stacks * n_read * value_size, raw_size, options)
        self.value_size, self.stacks, self.n_read = value_size, stacks, n_read
        self.most_pops, self.empty, self.capacity = most_pops, empty, capacity
        self._set_apart()

    def run(
        self, x: Tensor, hx: StackState | None = None, lengths: Lengths = None, log_action: Tensor | None = None
    ) -> StackRun:
        """Like a call of the layer, with the reading and the actions of every step; nothing is done after the end.

        Arguments:
            x, hx, lengths: as in a call.
            log_action: [*batch, T, stacks, A], log-probabilities that replace the controller's, which are still
                reported. With certain actions (0 and -inf) the controller reads the stack of that one history.
        """
        expected = (*getattr(x, "shape", ())[:-1], self.stacks, 2 + self.most_pops)
        x, some = self._checked(x, lengths, self.batch_first)
        if log_action is None:
            return self._report(self._pass(x, hx, some), some)
        if log_action.shape != expected:
            raise ValueError(f"log_action: got shape {list(log_action.shape)}, expected {list(expected)} for this x.")
        log_action = log_action if self.batch_first else log_action.movedim(0, -3)
        override = pad(log_action, (0, self.value_size), value=torch.nan)  # values still come from the controller
        return self._report(self._pass(x, hx, some, override), some)

    def mixture(self, x: Tensor, *, lengths: Lengths = None) -> StackMixture:
        """The mixture over histories whose expected cells are this network's stacks, with shape [*batch, stacks, T].

        Its values are the pushed ones. An empty cell counts as 0 there, and as `empty` in the network.

        Arguments:
            x, lengths: as in a call.
        """
        actions, lengths = self._acted(x, lengths)
        log_action, values = actions.log_action.movedim(-2, -3), actions.values.movedim(-2, -3)
        lengths = None if lengths is None else lengths[..., None]
        return StackMixture(log_action, values, capacity=self.capacity, lengths=lengths)

    def _settings(self) -> Settings:
        return Settings(self.stacks, self.value_size, self.n_read, self.empty, self.capacity)

    def _empty(self, n_steps: int, like: Tensor) -> tuple[Tensor, Tensor]:
        batch = like.shape[0]
        cells = like.new_zeros(batch * self.stacks, 0, self.value_size)
        return cells, like.new_full((batch, self.reading_size), self.empty)

    def _holds(self, stack: Any) -> bool:
        return isinstance(stack, Tensor)

    def _idle(self, like: Tensor) -> Tensor:
        action = like.new_full((self.stacks, 2 + self.most_pops), -torch.inf)
        action[:, 2] = 0
        return pad(action, (0, self.value_size)).flatten()

    def _inclination(self, like: Tensor) -> Tensor:
        push = torch.arange(2 + self.most_pops + self.value_size, device=like.device) == 0
        return push.to(like.dtype).repeat(self.stacks)

    def _update(self, stack: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        depth = stack.shape[1] + 1 if self.capacity is None else min(stack.shape[1] + 1, self.capacity)
        each = raw.unflatten(1, (self.stacks, -1)).flatten(0, 1)
        cells, reading = superposed_step(each, stack, depth, self.n_read, self.empty)
        return cells, reading.reshape(raw.shape[0], self.reading_size)

    def _actions(self, raw: Tensor) -> SuperpositionActions:
        action, value = raw.unflatten(-1, (self.stacks, -1)).split([2 + self.most_pops, self.value_size], -1)
        return SuperpositionActions(action.log_softmax(-1), value.sigmoid())


@dataclass(frozen=True, repr=False)
class StratificationActions(Record):
    """Strengths added and removed at each step, and the added values, for every stack."""

    pour: Float[Tensor, "*b T S"]
    drain: Float[Tensor, "*b T S"]
    values: Float[Tensor, "*b T S V"]


class StratificationStackRNN(_FusedStackRNN):
    """A network with a stratification stack: fluid layers that are poured, drained and read by depth.

    See `StackRNN` for its calls and errors. Its stack is not a mixture of action histories, so there is no `mixture`;
    `strengths` shows it over time.

    Arguments:
        input_size, hidden_size: of the controller.
        value_size: numbers in a layer; the poured value is the tanh of a linear map of the hidden state.
        stacks: the number of stacks, each with its own strengths and values.
        controller, feedback, num_layers, bias, batch_first, dropout, device, dtype: see `StackRNN`.

    Grefenstette et al. 2015, equations 1-3.

    See Also:
        `SuperpositionStackRNN`, whose stack is a mixture of histories; docs/background/stack_languages.md, a
        comparison.

    >>> import torch
    >>> import samplehold as sh
    >>> layer, x = sh.stacks.StratificationStackRNN(input_size=4, hidden_size=8, value_size=3), torch.randn(2, 10, 4)
    >>> run = layer.run(x)
    >>> run.output.shape, run.reading.shape
    (torch.Size([2, 10, 8]), torch.Size([2, 10, 24]))
    >>> torch.equal(layer.strengths(x)[..., -1, -1], run.actions.pour[:, -1])  # the last layer is still complete
    True
    """

    value_size: int
    stacks: int

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        value_size: int = 10,
        stacks: int = 8,
        controller: Controller = nn.LSTMCell,
        feedback: bool = True,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options = Options(controller, feedback, num_layers, bias, batch_first, dropout, device, dtype)
        value_size, stacks = check_integer("value_size", value_size), check_integer("stacks", stacks)
        super().__init__(input_size, hidden_size, stacks * value_size, stacks * (2 + value_size), options)
        self.value_size, self.stacks = value_size, stacks
        self._set_apart()

    def strengths(self, x: Tensor, lengths: Lengths = None) -> Float[Tensor, "*b S T T"]:
        """The remaining strength at each step (first T) of the layer poured at each step (last T), in every stack.

        Arguments:
            x, lengths: as in a call.
        """
        actions, _ = self._acted(x, lengths)
        return strengths(actions.pour.movedim(-1, -2), actions.drain.movedim(-1, -2))

    def _settings(self) -> Settings:
        return Settings(self.stacks, self.value_size, 1, 0.0, None, layered=True)

    def _joined(self, stack: tuple[Tensor, Tensor]) -> Tensor:
        return torch.cat([stack[0].unsqueeze(-1), stack[1]], -1)

    def _parted(self, stack: Tensor) -> tuple[Tensor, Tensor]:
        return stack[..., 0], stack[..., 1:]

    def _empty(self, n_steps: int, like: Tensor) -> tuple[Any, Tensor]:
        batch = like.shape[0]
        n = batch * self.stacks
        stack = like.new_zeros(n, 0), like.new_zeros(n, 0, self.value_size)
        return stack, like.new_zeros(batch, self.reading_size)

    def _holds(self, stack: Any) -> bool:
        return isinstance(stack, tuple) and isinstance(stack[0], Tensor)

    def _idle(self, like: Tensor) -> Tensor:
        return pad(like.new_full((2,), -torch.inf), (0, self.value_size)).repeat(self.stacks)

    def _inclination(self, like: Tensor) -> Tensor:
        return pad(like.new_ones(1), (0, 1 + self.value_size)).repeat(self.stacks)

    def _update(self, stack: tuple[Tensor, Tensor], raw: Tensor) -> tuple[Any, Tensor]:
        kind = stack[0].dtype
        each = widened(raw).unflatten(1, (self.stacks, -1)).flatten(0, 1)
        strength, values, reading = stratified_step(each, *map(widened, stack))
        return (strength.to(kind), values.to(kind)), reading.reshape(raw.shape[0], self.reading_size).to(kind)

    def _actions(self, raw: Tensor) -> StratificationActions:
        return StratificationActions(*self._parts(raw))

    def _parts(self, raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        strengths, value = raw.unflatten(-1, (self.stacks, -1)).split([2, self.value_size], -1)
        pour, drain = strengths.sigmoid().unbind(-1)
        return pour, drain, value.tanh()


@dataclass(frozen=True, repr=False)
class PushdownActions(Record):
    """Log-weights of all transitions at each step, and the pushed values (or None), for every stack."""

    log_push: Float[Tensor, "*b T S Q G Q G"]
    log_replace: Float[Tensor, "*b T S Q G Q G"]
    log_pop: Float[Tensor, "*b T S Q G Q"]
    values: Float[Tensor, "*b T S V"] | None


class NondeterministicStackRNN(StackRNN):
    """A network with nondeterministic stacks: all runs of weighted pushdown automata at once.

    See `StackRNN` for its calls and errors. Each automaton starts in state 0 with symbol 0 at the bottom, which is
    never popped. O(T^3) for each automaton of a sequence.

    Arguments:
        input_size, hidden_size: of the controller.
        states, symbols: of the automaton.
        value_size: 0: the network reads the distribution over configurations. Otherwise each element also carries the
            sigmoid of a linear map of the hidden state at its push (replacing a symbol keeps it), and the reading is
            its expectation on top by configuration (the vector version, 2023). The value of the bottom is learned. It
            starts in state 0 with symbol 0, as the automaton does. The released code of the paper starts it under all
            pairs of configurations, so readings there can exceed every value.
        normalized: weights are a softmax over the transitions from a configuration (2020), or any positive numbers
            (2022).
        reading: "configuration" (state and symbol, 2022) or "symbol" (summed over states, 2020).
        stacks: the number of automata, each with its own weights; with several, training learns to use one sooner
            (papers: 1).
        controller, feedback, num_layers, bias, batch_first, dropout, device, dtype: see `StackRNN`.

    DuSell & Chiang 2020 (NS-RNN), 2022 (RNS-RNN), 2023 (vectors).

    See Also:
        `SuperpositionStackRNN`, which is cheaper and has no automaton; `PushdownAutomaton`, its runs;
        docs/background/stacks.md.

    >>> import torch
    >>> import samplehold as sh
    >>> layer = sh.stacks.NondeterministicStackRNN(input_size=4, hidden_size=8, states=2, symbols=3)
    >>> x = torch.randn(2, 10, 4)
    >>> output, state = layer(x)
    >>> output.shape, state.reading.shape  # the reading: P(state, symbol on top) of 8 automata
    (torch.Size([2, 10, 8]), torch.Size([2, 48]))
    >>> expected = layer.mixture(x).reading()  # [2, 8 stacks, 10, 2 states, 3 symbols]
    >>> torch.allclose(layer.run(x).reading, expected.movedim(1, 2).flatten(2), atol=1e-5)
    True
    """

    states: int
    symbols: int
    value_size: int
    stacks: int
    normalized: bool
    reads: str

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        states: int = 1,
        symbols: int = 2,
        value_size: int = 0,
        normalized: bool = False,
        reading: str = "configuration",
        stacks: int = 8,
        controller: Controller = nn.LSTMCell,
        feedback: bool = True,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options = Options(controller, feedback, num_layers, bias, batch_first, dropout, device, dtype)
        states, symbols = check_integer("states", states), check_integer("symbols", symbols)
        value_size = check_integer("value_size", value_size, least=0)
        check_choice("reading", reading, ("configuration", "symbol"))
        normalized = check_flag("normalized", normalized)
        stacks = check_integer("stacks", stacks)
        K = states * symbols
        size = (K if reading == "configuration" else symbols) * max(1, value_size)
        raw_size = stacks * (K * (2 * K + states) + value_size)
        super().__init__(input_size, hidden_size, stacks * size, raw_size, options)
        self.states, self.symbols, self.value_size, self.stacks = states, symbols, value_size, stacks
        self.normalized, self.reads = normalized, reading
        bottom = torch.zeros(stacks, value_size, device=device, dtype=dtype)
        self.bottom: nn.Parameter | None = nn.Parameter(bottom) if value_size else None
        self._set_apart()

    def reset_parameters(self) -> None:
        """Draw all parameters anew, as a new layer does."""
        super().reset_parameters()
        if self.bottom is not None:
            nn.init.zeros_(self.bottom)

    def mixture(self, x: Tensor, *, lengths: Lengths = None) -> PushdownAutomaton:
        """The automata, [*batch, stacks, T], with the weights of this pass, whose runs the stacks represent.

        Arguments:
            x, lengths: as in a call.
        """
        actions, lengths = self._acted(x, lengths)
        push, replace = (z.movedim(-5, -6) for z in (actions.log_push, actions.log_replace))
        pop = actions.log_pop.movedim(-4, -5)
        log_initial = self._log_initial(pop).expand(*pop.shape[:-4], -1, -1)
        lengths = None if lengths is None else lengths[..., None]
        return PushdownAutomaton(log_initial, push, replace, pop, lengths=lengths)

    def _log_initial(self, like: Tensor) -> Tensor:
        first = torch.arange(self.states * self.symbols, device=like.device) == 0
        return torch.where(first, 0.0, -torch.inf).to(like.dtype).reshape(self.states, self.symbols)

    def _empty(self, n_steps: int, like: Tensor) -> tuple[Any, Tensor]:
        n = like.shape[0] * self.stacks
        log_initial = self._log_initial(widened(like)).flatten().expand(n, -1)
        values = like.new_zeros(n, 0, 0)
        if self.bottom is not None:
            values = widened(self.bottom).sigmoid().repeat(like.shape[0], 1).unsqueeze(1)
        reading = self._read(log_initial.unsqueeze(1), values).to(like.dtype)
        return (start(log_initial, self.states, n_steps), values), reading

    def _holds(self, stack: Any) -> bool:
        return isinstance(stack, tuple) and isinstance(stack[0], Tape)

    def _idle(self, like: Tensor) -> Tensor:
        K = self.states * self.symbols
        replace = torch.eye(K, dtype=like.dtype, device=like.device).log()
        weights = pad(replace, (K, self.states), value=-torch.inf).flatten()
        return pad(weights, (0, self.value_size)).repeat(self.stacks)

    def _inclination(self, like: Tensor) -> Tensor:
        K = self.states * self.symbols
        push = pad(like.new_ones(K, K), (0, K + self.states)).flatten()
        return pad(push, (0, self.value_size)).repeat(self.stacks)

    def _update(self, stack: tuple[object, Tensor], raw: Tensor) -> tuple[Any, Tensor]:
        *weights, value = self._transitions(widened(raw))
        log_top, tape = advance(stack[0], *(weight.flatten(0, 1) for weight in weights))
        values = stack[1] if value is None else torch.cat([stack[1], value.flatten(0, 1).unsqueeze(1)], 1)
        return (tape, values), self._read(log_top, values).to(raw.dtype)

    def _read(self, log_top: Tensor, values: Tensor) -> Tensor:
        """The top, given the log-weight of each element (the bottom, then each step's) by configuration."""
        by_element = log_top.flatten(1).softmax(-1).view(log_top.shape)
        if self.reads == "symbol":
            by_element = by_element.unflatten(-1, (self.states, self.symbols)).sum(-2)
        seen = by_element.transpose(1, 2) @ values if self.value_size else by_element.sum(1)
        return seen.reshape(-1, self.reading_size)

    def _transitions(self, raw: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Log-weights of push and replace [*b, S, K, K] and pop [*b, S, K, Q], from each configuration, and values."""
        K = self.states * self.symbols
        raw = raw.unflatten(-1, (self.stacks, -1))
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
