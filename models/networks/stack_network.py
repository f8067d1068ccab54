"""The base of stack networks: the controller, its loop over time, and the result of a pass.

After the end of a sequence, its stack stays unchanged (`_idle`), and so do its controller's state and reading.
"""

import math
import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ...inference.numerics.checks import check_dtype, check_table
from ...inference.numerics.records import Record, brief
from ...inference.numerics.scalars import check_flag, check_integer, check_kind, check_probability
from .controllers import Controller, Layers, check_output, control, detached, fits, selected
from .inputs import (
    Lengths,
    Observed,
    batch_major,
    check_one_dtype,
    check_step,
    converting,
    keep,
    observed,
    repacked,
    time_major,
    unpacked,
    weight_of,
)
from .listing import Listed
from .recurrent import hooked, step_by_call

CONTRAST = 4.0  # the scale of the first weights that read inputs and hidden states, relative to torch's
FORGETTING = 4.0  # subtracted from the first logits of an LSTM's forget gates


class StackState(NamedTuple):
    """The state between two steps: the controller's state, the stack, its reading, and the controller's raw actions."""

    controller: Any
    stack: Any
    reading: Tensor  # [B, R]
    raw: Tensor  # [B, O]

    def detach(self) -> "StackState":
        """The same state without gradients, for truncated backpropagation."""
        return StackState(*map(detached, self))

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, repr=False)
class StackRun(Record):
    """A stack network's pass over its input, with its readings and actions.

    Arguments:
        output: hidden states of the controller.
        reading: the reading of the stack after each step.
        actions: the actions, in a record of the layer.
        state: for the next call.
    """

    output: Float[Tensor, "*b T H"]
    reading: Float[Tensor, "*b T R"]
    actions: Any
    state: StackState


class Pass(NamedTuple):
    """Hidden states, readings and raw actions [*batch, T, ...] of all steps, and the state after the last step of
    each."""

    output: Tensor
    reading: Tensor
    raw: Tensor
    state: StackState


@dataclass(frozen=True)
class Options:
    """The controller options of all stack networks, in the order of their last arguments."""

    controller: Controller
    feedback: bool
    num_layers: int
    bias: bool
    batch_first: bool
    dropout: float
    device: torch.device | str | None
    dtype: torch.dtype | None


class StackRNN(Listed):
    """The base of stack networks: the controller, its loop over time, and the map from hidden state to actions.

    A call returns `(output, state)`, as torch's recurrent layers do; `run` also returns actions and readings.

    Arguments:
        controller: makes the controller from its input and hidden size: a class of `models`, `torch.nn.LSTMCell`,
            `torch.nn.GRU`, ..., or a function that returns a module with torch's conventions or with `step(x_t, state)
            -> (output, state)`.
        feedback: whether the controller reads the stack; if not, the actions depend on the input alone.
        num_layers: number of controllers, one above the other; the lowest reads the input and the stack, the highest
            acts.
        bias: whether controllers and the map to actions have offsets; if not, `controller` must accept `bias=False`.
        batch_first: whether time is the second last axis of x, output and reading; otherwise it is the first.
        dropout: probability with which the outputs of all controllers but the highest are zeroed in training.
        device, dtype: of all parameters.

    Raises:
        TypeError: a size that is not an integer. From every call: x of another dtype or device than the weights, a
            state that is not a `StackState`, a controller that is not a recurrent layer.
        ValueError: a size or another option out of its range. From every call: x of another shape or without a step,
            lengths that do not fit, a state of another number of sequences or of another layer, a controller or a map
            to actions whose outputs a hook has given another shape.

    `torch.export` unrolls the loop over steps, so an exported layer takes the number of steps of its example alone; the
    number of sequences may vary.
    """

    input_size: int
    hidden_size: int
    reading_size: int
    raw_size: int
    feedback: bool
    num_layers: int
    batch_first: bool
    bias: bool
    dropout: float
    controller: nn.Module | Layers
    to_actions: nn.Linear

    bidirectional = False  # a stack is read from its first step on

    def __init__(self, input_size: int, hidden_size: int, reading_size: int, raw_size: int, options: Options) -> None:
        super().__init__()
        input_size, hidden_size = check_integer("input_size", input_size), check_integer("hidden_size", hidden_size)
        self.input_size, self.hidden_size = input_size, hidden_size
        self.reading_size, self.raw_size = reading_size, raw_size
        self.feedback = check_flag("feedback", options.feedback)
        self.num_layers = check_integer("num_layers", options.num_layers)
        self.batch_first, self.bias = check_flag("batch_first", options.batch_first), check_flag("bias", options.bias)
        self.dropout = check_probability("dropout", options.dropout)
        if self.dropout and self.num_layers == 1:
            warnings.warn(
                f"dropout: got {self.dropout} for one layer, but it acts between layers; give num_layers of 2 or more, "
                "or 0.",
                stacklevel=3,
            )
        check_dtype("dtype", options.dtype)
        if not callable(options.controller):
            kind = type(options.controller).__name__
            raise TypeError(f"controller: got {kind}, expected a class of layers, or a function.")
        keywords = {} if self.bias else {"bias": False}
        sizes = [input_size + (reading_size if self.feedback else 0)] + [hidden_size] * (self.num_layers - 1)
        layers = [options.controller(size, hidden_size, **keywords) for size in sizes]
        for layer in layers:
            check_kind("controller", layer, nn.Module, "a recurrent layer")
        self.controller = layers[0] if self.num_layers == 1 else Layers(layers, hidden_size, self.dropout)
        self.to_actions = nn.Linear(hidden_size, raw_size, bias=self.bias)
        self.to(device=options.device, dtype=options.dtype)

    def reset_parameters(self) -> None:
        """Draw all parameters anew, as a new layer does."""
        for module in (*self.controller.modules(), self.to_actions):
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
        self._set_apart()

    @torch.no_grad()
    def _set_apart(self) -> None:
        """A start from which training learns to use the stack.

        With small random weights all inputs are pushed with nearly the same value, and an LSTM memorises short series
        in its own state. This is a local optimum that training rarely leaves. So inputs start well separated, pushes
        likely, and the memory of LSTM cells short. Other controllers keep their own initialisation.
        """
        self.to_actions.weight.mul_(CONTRAST)
        if self.to_actions.bias is not None:
            self.to_actions.bias.add_(self._inclination(self.to_actions.bias))
        for cell in self.controller.modules():
            if isinstance(cell, nn.LSTMCell):
                cell.weight_ih.mul_(CONTRAST)
                if cell.bias:
                    cell.bias_ih.unflatten(0, (4, -1))[1].sub_(FORGETTING)

    def forward(
        self, x: Tensor | PackedSequence, hx: StackState | None = None, lengths: Lengths = None
    ) -> tuple[Tensor | PackedSequence, StackState]:
        """The highest controller's outputs, and the state.

        Arguments:
            x: [*batch, T, input_size], any batch axes or none; [T, *batch, input_size] for batch_first=False; or a
                `PackedSequence`.
            hx: the state of an earlier call, which this call continues.
            lengths: the number of steps of each sequence, [*batch], between 1 and T; None: all T.

        Returns:
            out [*batch, T, hidden_size] (time first for batch_first=False), zero after each length, or packed like x,
            and the state at each sequence's last step. Steps after a length are not read.
        """
        if isinstance(x, PackedSequence):
            padded, counts = unpacked(x, lengths)
            out, state = self._over(padded, hx, counts, batch_first=True)
            return repacked(out, counts, x), state
        out, state = self._over(x, hx, lengths, self.batch_first)
        return time_major(out, self.batch_first), state

    def run(self, x: Tensor, hx: StackState | None = None, lengths: Lengths = None) -> StackRun:
        """Like a call of the layer, with the reading and the actions of every step; nothing is done after the end.

        Arguments:
            x, hx, lengths: as in a call.
        """
        x, some = self._checked(x, lengths, self.batch_first)
        return self._report(self._pass(x, hx, some), some)

    def step(self, x: Tensor, h: StackState | None = None) -> tuple[Float[Tensor, "*b H"], StackState]:
        """One step: x [*batch, input_size] to the controller's output and the state, which holds the reading.

        Arguments:
            x: the inputs of this step.
            h: the state before it, as a call returns it; None: the start.
        """
        x = check_step(x, self.input_size, weight_of(self, x))
        check_one_dtype(self.named_parameters(), x)
        if hooked(self):
            return step_by_call(self, x, h)
        batch = x.shape[:-1]
        flat = x.reshape(math.prod(batch), self.input_size)
        output, state = self._step(flat, self._started(h, flat, name="h"))
        return output.reshape(*batch, self.hidden_size), state

    def _over(self, x: Tensor, hx: StackState | None, lengths: Lengths, batch_first: bool) -> tuple[Tensor, StackState]:
        x, some = self._checked(x, lengths, batch_first)
        steps = self._pass(x, hx, some)
        return keep(steps.output, some), steps.state

    def _checked(self, x: Any, lengths: Lengths, batch_first: bool) -> tuple[Tensor, Observed]:
        """x [*batch, T, input_size] with zeros past the lengths, and these as `observed` gives them."""
        x = batch_major(x, self.input_size, batch_first, weight_of(self, x))
        check_one_dtype(self.named_parameters(), x)
        some = observed(x, lengths)
        return keep(x, some), some

    def _pass(self, x: Tensor, hx: StackState | None, some: Observed, override: Tensor | None = None) -> Pass:
        """Step by step; where `override` [*batch, T, O] is not NaN it replaces the raw actions on the stack."""
        *batch, T, _ = x.shape
        B, going = math.prod(x.shape[:-2]), None
        flat = x.reshape(B, T, self.input_size)
        if override is not None:
            override = override.reshape(B, T, self.raw_size)
        if some is not None:
            going = some[1].reshape(B, T)
            override = x.new_full((), torch.nan) if override is None else override
            override = torch.where(going[..., None], override, self._idle(x))
        state, steps = self._started(hx, flat, T), []
        if not T:
            sizes = self.hidden_size, state.reading.shape[-1], self.raw_size
            output, reading, raw = (x.new_zeros(*batch, 0, n) for n in sizes)
            return Pass(output, reading, raw, state)
        for t, x_t in enumerate(flat.unbind(1)):
            output, new = self._step(x_t, state, None if override is None else override[:, t])
            state = new if going is None or not t else _held(going[:, t], new, state)
            steps.append((output, state.reading, state.raw))
        parts = (torch.stack(z, 1).reshape(*batch, T, z[0].shape[-1]) for z in zip(*steps, strict=True))
        output, reading, raw = parts
        return Pass(output, reading, raw, state)

    def _report(self, steps: Pass, some: Observed) -> StackRun:
        """The result of a run, in the layout of the caller."""
        raw = steps.raw if some is None else torch.where(some[1], steps.raw, self._idle(steps.raw))
        parts = keep(steps.output, some), keep(steps.reading, some), raw
        output, reading, raw = (time_major(z, self.batch_first) for z in parts)
        return StackRun(output, reading, self._actions(raw), steps.state)

    def _acted(self, x: Tensor, lengths: Lengths) -> tuple[Any, Tensor | None]:
        """The actions on x, [*b, T, ...], and the lengths as checked."""
        x, some = self._checked(x, lengths, self.batch_first)
        raw = self._pass(check_table("x", x, finite=True), None, some).raw
        if some is None:
            return self._actions(raw), None
        return self._actions(torch.where(some[1], raw, self._idle(raw))), some[0]

    def _step(self, x: Tensor, state: StackState, override: Tensor | None = None) -> tuple[Tensor, StackState]:
        seen = torch.cat([x, state.reading], -1) if self.feedback else x
        output, inner = control(self.controller, seen, state.controller)
        check_output("controller", output, (x.shape[0], self.hidden_size))
        raw = self.to_actions(output)
        check_output("to_actions", raw, (x.shape[0], self.raw_size))
        acted = raw if override is None else torch.where(override.isnan(), raw, override)
        stack, reading = self._update(state.stack, acted)
        return output, StackState(inner, stack, reading, raw)

    def _started(self, hx: StackState | None, x: Tensor, n_steps: int = 16, name: str = "hx") -> StackState:
        """The state before the first step of x [B, ...]."""
        batch = x.shape[0]
        if hx is None:
            stack, reading = self._empty(n_steps, x)
            return StackState(None, stack, reading, x.new_zeros(batch, self.raw_size))
        if not isinstance(hx, StackState):
            raise TypeError(f"{name}: got {type(hx).__name__}, expected the StackState of an earlier call, or None.")
        if len(hx.reading) != batch:
            raise ValueError(
                f"{name}: holds {len(hx.reading)} sequences, but x has {batch}; continue the sequences it came from."
            )
        sizes = hx.reading.shape[-1], hx.raw.shape[-1]
        if sizes != (self.reading_size, self.raw_size) or not self._holds(hx.stack):
            raise ValueError(
                f"{name}: holds {sizes[0]} numbers read and {sizes[1]} of actions, expected {self.reading_size} and "
                f"{self.raw_size}, and a stack of {type(self).__name__}; give a state of this layer."
            )
        if hx.controller is not None and not fits(self.controller, hx.controller, x):
            raise ValueError(
                f"{name}: holds the state of another controller, and this layer has {type(self.controller).__name__}; "
                "give a state of this layer."
            )
        if not converting(x):
            check_table(f"{name}.reading", hx.reading, like=x)
        return hx

    @abstractmethod
    def _empty(self, n_steps: int, like: Tensor) -> tuple[Any, Tensor]:
        """The stack and the reading before the first step."""

    @abstractmethod
    def _holds(self, stack: Any) -> bool:
        """Whether `stack` is a stack of this kind of layer."""

    @abstractmethod
    def _update(self, stack: Any, raw: Tensor) -> tuple[Any, Tensor]:
        """The stack and the reading after a step."""

    @abstractmethod
    def _idle(self, like: Tensor) -> Tensor:
        """Raw actions [O] that leave the stack unchanged."""

    @abstractmethod
    def _inclination(self, like: Tensor) -> Tensor:
        """The initial offsets of raw actions [O]."""

    @abstractmethod
    def _actions(self, raw: Tensor) -> Any:
        """The reported form of actions, from [*batch, raw_size]."""


def _held(going: Tensor, new: StackState, old: StackState) -> StackState:
    """The new state of sequences that continue, and the old state of the others, whose stacks are unchanged."""
    parts = ((new.controller, old.controller), (new.reading, old.reading), (new.raw, old.raw))
    controller, reading, raw = (selected(going, *pair) for pair in parts)
    return StackState(controller, new.stack, reading, raw)
