"""Any recurrent module as the controller of a stack: one step at a time, with any kind of state."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from ...inference.numerics.op import transformed
from .qrnn import QRNNState
from .recurrent import hooked

Controller = Callable[..., nn.Module]


class Layers(nn.ModuleList):
    """Controllers one above the other, with dropout on the outputs of all but the highest."""

    hidden_size: int
    dropout: float

    def __init__(self, layers: list[nn.Module], hidden_size: int, share: float) -> None:
        super().__init__(layers)
        self.hidden_size, self.dropout = hidden_size, share

    def step(self, x: Tensor, state: tuple[Any, ...] | None) -> tuple[Tensor, tuple[Any, ...]]:
        """One step of all controllers."""
        after = []
        for layer, before in zip(self, state or [None] * len(self), strict=True):
            x = dropout(x, self.dropout, self.training) if after else x
            x, now = control(layer, x, before)
            check_output(f"controller[{len(after)}]", x, (x.shape[0], self.hidden_size))
            after.append(now)
        return x, tuple(after)


def control(controller: nn.Module, x: Tensor, state: Any) -> tuple[Any, Any]:
    """One step of any controller: (output, state)."""
    if callable(step := getattr(controller, "step", None)):
        return step(x, state)  # pyright: ignore[reportReturnType]
    if isinstance(controller, nn.RNNCellBase):
        state = _cell(controller, x, state) if transformed() and not hooked(controller) else controller(x, state)
        return (state[0] if isinstance(state, tuple) else state), state
    if isinstance(controller, nn.RNNBase):
        if transformed():
            kind = type(controller).__name__
            raise ValueError(f"controller: torch.func's transforms do not support torch's {kind}; give nn.{kind}Cell.")
        time = 1 if controller.batch_first else 0
        output, state = controller(x.unsqueeze(time), state)
        return output.squeeze(time), state
    raise TypeError(
        f"controller: got {type(controller).__name__}, expected one of torch's recurrent layers or cells, or a module "
        "with step(x_t, state) -> (output, state)."
    )


def _cell(cell: Any, x: Tensor, state: Any) -> Any:
    """A call of one of torch's cells. Their kernels do not support `torch.func`'s maps."""
    zeros = x.new_zeros(*x.shape[:-1], cell.hidden_size)
    hidden, memory = (state or (zeros, zeros)) if isinstance(cell, nn.LSTMCell) else (state, None)
    hidden = zeros if hidden is None else hidden
    seen, held = linear(x, cell.weight_ih, cell.bias_ih), linear(hidden, cell.weight_hh, cell.bias_hh)
    if memory is not None:
        i, f, g, o = (seen + held).chunk(4, -1)
        memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
        return o.sigmoid() * memory.tanh(), memory
    if isinstance(cell, nn.GRUCell):
        (r, z, n), (r_h, z_h, n_h) = seen.chunk(3, -1), held.chunk(3, -1)
        new, hold = (n + (r + r_h).sigmoid() * n_h).tanh(), (z + z_h).sigmoid()
        return (1 - hold) * new + hold * hidden
    return (seen + held).relu() if cell.nonlinearity == "relu" else (seen + held).tanh()


def unchanged(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of the module computes what `kind` does with all its parameters.

    False for a subclass (such as a parametrised module), a module with hooks (which pruning uses), with its own
    `forward`, or without a bias.
    """
    has_all = all(parameter is not None for parameter in module._parameters.values())
    return type(module) is kind and has_all and not hooked(module) and "forward" not in vars(module)


def check_output(name: str, output: Any, expected: tuple[Any, ...]) -> None:
    if not isinstance(output, Tensor) or output.shape != expected:
        got = f"shape {list(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"{name}: gave {got}, expected a tensor of shape {list(expected)}; see its hooks and its forward."
        )


def fits(controller: nn.Module, state: Any, x: Tensor) -> bool:
    """Whether `state` can be a state of the controller for x [B, ...]; True for any controller that is not torch's."""
    if isinstance(controller, Layers):
        pairs = zip(controller, state, strict=False) if isinstance(state, tuple) else ()
        return isinstance(state, tuple) and len(state) == len(controller) and all(fits(*p, x) for p in pairs)
    if not isinstance(controller, nn.RNNCellBase | nn.RNNBase):
        return True
    parts = (state,) if isinstance(state, Tensor) else tuple(state) if isinstance(state, tuple | list) else ()
    n = 2 if isinstance(controller, nn.LSTMCell | nn.LSTM) else 1
    shape = x.shape[0], controller.hidden_size
    return len(parts) == n and all(isinstance(part, Tensor) and part.shape[-2:] == shape for part in parts)


def selected(going: Tensor, new: Any, old: Any) -> Any:
    """`new` [..., B, H] where a sequence continues, else `old`; in the same records."""
    if isinstance(new, Tensor):
        return torch.where(going[:, None], new, old)
    if isinstance(new, QRNNState):
        inputs = (torch.where(going[:, None, None], *pair) for pair in zip(new.inputs, old.inputs, strict=True))
        return QRNNState(selected(going, new.cell, old.cell), tuple(inputs))
    if isinstance(new, tuple | list):
        parts = [selected(going, *pair) for pair in zip(new, old, strict=True)]
        return type(new)(*parts) if hasattr(new, "_fields") else type(new)(parts)
    raise TypeError(
        f"lengths: got sequences of several lengths, and a controller whose states are of type {type(new).__name__}; "
        "give sequences of one length at a time, or use states that are tensors [..., B, H], or tuples of them."
    )


def detached(part: Any) -> Any:
    """Detach tensors, records with a `detach` method, and tuples of them."""
    if hasattr(part, "detach"):
        return part.detach()
    if isinstance(part, tuple | list):
        parts = map(detached, part)
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
    return part
