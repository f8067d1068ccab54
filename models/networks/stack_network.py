"""What the stack networks share: the controller, its loop over time, and what a pass returns."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_flag, check_integer
from .recurrent import batch_major, check_step


@dataclass(frozen=True, repr=False)
class StackState(Record):
    """Between two steps: the controller's state, the stack, what is read off it, and the controller's raw actions."""

    controller: Any
    stack: Any
    reading: Float[Tensor, "B R"]
    raw: Float[Tensor, "B O"]


@dataclass(frozen=True, repr=False)
class StackRun(Record):
    """A stack network's pass over its input, with all that it did.

    Arguments:
        output: hidden states of the controller.
        reading: what was read off the stack after each step.
        actions: what was done, in the layer's own terms.
        state: to be passed on to the next call.
    """

    output: Float[Tensor, "*b T H"]
    reading: Float[Tensor, "*b T R"]
    actions: Any
    state: StackState


class StackRNN(nn.Module, ABC):
    """What the stack networks share: the controller, its loop over time, and the map from hidden state to actions.

    Called, a layer returns `(output, state)`, as torch's recurrent layers do; `run` adds what was done and read.

    Arguments:
        controller: makes the controller from its input and hidden size: a class of `models`, `torch.nn.LSTMCell`,
            `torch.nn.GRU`, ..., or a function that returns a module of torch's conventions or one with
            `step(x_t, state) -> (output, state)`.
        feedback: whether the controller reads the stack; if not, the actions depend on the input alone.

    Raises:
        TypeError: a size that is no whole number. From every call: x of another dtype or device than the weights, a
            state that is no `StackState`, a controller that is no recurrent layer.
        ValueError: a size or another option out of its range. From every call: x of another shape or without a step, a
            state of another number of sequences.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        reading_size: int,
        raw_size: int,
        controller: Callable[[int, int], nn.Module],
        feedback: bool,
    ) -> None:
        super().__init__()
        input_size, hidden_size = check_integer("input_size", input_size), check_integer("hidden_size", hidden_size)
        self.input_size, self.hidden_size, self.reading_size = input_size, hidden_size, reading_size
        self.feedback = check_flag("feedback", feedback)
        if not callable(controller):
            raise TypeError(f"controller: got {type(controller).__name__}, expected a class of layers, or a function.")
        self.controller = controller(input_size + (reading_size if self.feedback else 0), hidden_size)
        self.to_actions = nn.Linear(hidden_size, raw_size)

    def forward(self, x: Tensor, state: StackState | None = None) -> tuple[Float[Tensor, "*b T H"], StackState]:
        """The controller's outputs over x [*batch, T, input_size], and the state; `state` continues an earlier pass."""
        run = self.run(x, state)
        return run.output, run.state

    def run(self, x: Tensor, state: StackState | None = None) -> StackRun:
        """As a call of the layer, with the reading and the actions of every step."""
        return self._run(self._checked(x), state)

    def step(self, x: Tensor, state: StackState | None = None) -> tuple[Float[Tensor, "*b H"], StackState]:
        """One step: x [*batch, input_size] to the controller's output and the state, which holds the reading."""
        x = check_step(x, self.input_size)
        self._check_kind(x)
        batch = x.shape[:-1]
        output, state = self._step(x.reshape(-1, self.input_size), self._started(state, batch.numel()))
        return output.reshape(*batch, self.hidden_size), state

    def _run(self, x: Tensor, state: StackState | None, override: Tensor | None = None) -> StackRun:
        """Step by step; `override` [B, T, O] acts on the stack in place of the raw actions, except where it is NaN."""
        *batch, T, _ = x.shape
        flat = x.reshape(-1, T, self.input_size)
        state = self._started(state, len(flat), T)
        outputs, readings, raws = [], [], []
        for t, x_t in enumerate(flat.unbind(1)):
            output, state = self._step(x_t, state, None if override is None else override[:, t])
            outputs.append(output)
            readings.append(state.reading)
            raws.append(state.raw)
        output, reading, raw = (torch.stack(z, 1).reshape(*batch, T, z[0].shape[-1]) for z in (outputs, readings, raws))
        return StackRun(output, reading, self._actions(raw), state)

    def _step(self, x: Tensor, state: StackState, override: Tensor | None = None) -> tuple[Tensor, StackState]:
        seen = torch.cat([x, state.reading], -1) if self.feedback else x
        output, inner = _control(self.controller, seen, state.controller)
        raw = self.to_actions(output)
        acted = raw if override is None else torch.where(override.isnan(), raw, override)
        stack, reading = self._update(state.stack, acted)
        return output, StackState(inner, stack, reading, raw)

    def _started(self, state: StackState | None, batch: int, n_steps: int = 16) -> StackState:
        if state is None:
            weight = self.to_actions.weight
            stack, reading = self._empty(batch, n_steps, weight)
            return StackState(None, stack, reading, weight.new_zeros(batch, len(weight)))
        if not isinstance(state, StackState):
            raise TypeError(f"state: got {type(state).__name__}, expected the StackState of an earlier call, or None.")
        if len(state.reading) != batch:
            raise ValueError(
                f"state: holds {len(state.reading)} sequences, but x has {batch}; continue the sequences it came from."
            )
        return state

    def _check_kind(self, x: Tensor) -> None:
        weight = self.to_actions.weight
        if x.dtype != weight.dtype or x.device != weight.device:
            raise TypeError(
                f"x: got {x.dtype} on {x.device}, but the layer's weights are {weight.dtype} on {weight.device}; "
                "convert x, or the layer, with `.to(...)`."
            )

    def _checked(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(f"x: got {type(x).__name__}, expected a torch tensor; convert it with torch.as_tensor.")
        x = batch_major(x, self.input_size, batch_first=True)
        self._check_kind(x)
        if x.shape[-2] < 1:
            raise ValueError(f"x: got shape {list(x.shape)}, expected at least one step.")
        return x

    @abstractmethod
    def _empty(self, batch: int, n_steps: int, like: Tensor) -> tuple[Any, Tensor]:
        """The stack and the reading before the first step."""

    @abstractmethod
    def _update(self, stack: Any, raw: Tensor) -> tuple[Any, Tensor]:
        """The stack and the reading after a step."""

    @abstractmethod
    def _actions(self, raw: Tensor) -> Any:
        """The actions as they are reported, from [*batch, raw_size]."""


def _control(controller: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    """One step of any controller: (output, state)."""
    if callable(step := getattr(controller, "step", None)):
        return step(x, state)  # pyright: ignore[reportReturnType]
    if isinstance(controller, nn.RNNCellBase):
        state = controller(x, state)
        return (state[0] if isinstance(state, tuple) else state), state
    if isinstance(controller, nn.RNNBase):
        time = 1 if controller.batch_first else 0
        output, state = controller(x.unsqueeze(time), state)
        return output.squeeze(time), state
    raise TypeError(
        f"controller: got {type(controller).__name__}, expected one of torch's recurrent layers or cells, or a module "
        "with step(x_t, state) -> (output, state)."
    )


def unchanged(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of the module computes what `kind` does with all its parameters.

    Not so a subclass (which a parametrised module is), nor a module with hooks (which pruning works by), a `forward` of
    its own, or without a bias.
    """
    hooks = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    hooked = any(hooks) or bool(_has_any_global_hook())
    whole = all(parameter is not None for parameter in module._parameters.values())
    return type(module) is kind and whole and not hooked and "forward" not in vars(module)
