"""What all recurrent layers share: the shapes they take, ragged input, and state dicts that name their version.

A layer maps `x [*batch, T, input_size]` (or `[T, *batch, input_size]` for batch_first=False) and states before the
first step to `out, h_n`, as torch's own recurrent modules do. Layer l's states are entry l of the first axis of `h0`
and `h_n`. With `lengths [*batch]`, outputs past a sequence's length are zero, nothing past it is read, not even a NaN,
and `h_n` is the state at its last step.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ...inference.numerics.arrays import ordinary
from ...inference.numerics.checks import check_lengths, check_table
from ...inference.numerics.scalars import check_flag, check_integer


class Recurrent(nn.Module):
    """Shapes, lengths and versions of a stack of recurrent layers."""

    _version = 1

    def __init__(self, input_size: int, hidden_size: int, num_layers: int, batch_first: bool) -> None:
        super().__init__()
        sizes = check_sizes(input_size, hidden_size, num_layers, True, batch_first)
        self.input_size, self.hidden_size, self.num_layers, _, self.batch_first = sizes

    def layer_inputs(self, layer: int) -> int:
        """How many features layer number `layer` reads."""
        return self.input_size if layer == 0 else self.hidden_size

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, batch_first={self.batch_first}"

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        found = local_metadata.get("version", self._version)
        if found > self._version:
            raise ValueError(
                f"state_dict: {prefix or type(self).__name__} was saved by version {found} of this layer, and this "
                f"library knows version {self._version}; update the library."
            )
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def check_sizes(
    input_size: object, hidden_size: object, num_layers: object, bias: object, batch_first: object
) -> tuple[int, int, int, bool, bool]:
    """What the constructors of all layers take first, as numbers and flags."""
    return (
        check_integer("input_size", input_size),
        check_integer("hidden_size", hidden_size),
        check_integer("num_layers", num_layers),
        check_flag("bias", bias),
        check_flag("batch_first", batch_first),
    )


def weight_of(layer: nn.Module, x: object) -> Tensor | None:
    """A weight of the layer, which what it is given must be like; None where autocast or torch's tracing converts."""
    free = torch.compiler.is_compiling() or (
        isinstance(x, Tensor)
        and torch.amp.is_autocast_available(x.device.type)
        and torch.is_autocast_enabled(x.device.type)
    )
    return None if free else next(layer.parameters(), None)


def batch_major(x: Tensor, input_size: int, batch_first: bool, like: Tensor | None = None) -> Tensor:
    """`x` as [*batch, T, input_size], or an error that says which axis is off."""
    expected = "[*batch, T, input_size]" if batch_first else "[T, *batch, input_size]"
    x = ordinary(check_table("x", x, like=like))
    if x.dim() < 2 or x.shape[-1] != input_size:
        raise ValueError(
            f"x: got shape {list(x.shape)}, expected {expected} with input_size={input_size}; "
            "add the time axis, or build the layer for as many features."
        )
    return x if batch_first else x.movedim(0, -2)


def time_major(out: Tensor, batch_first: bool) -> Tensor:
    """Back to the layout the caller gave."""
    return out if batch_first else out.movedim(-2, 0)


def check_step(x: Tensor, input_size: int, like: Tensor | None = None) -> Tensor:
    """x, or an error unless it is one step, [*batch, input_size]."""
    x = ordinary(check_table("x", x, like=like))
    if x.dim() < 1 or x.shape[-1] != input_size:
        raise ValueError(
            f"x: got shape {list(x.shape)}, expected one step, [*batch, input_size] with input_size={input_size}; "
            "give x[..., t, :], or call the layer itself for a whole series."
        )
    return x


def check_state(
    name: str, state: Tensor, expected: tuple[int, ...], like: Tensor | None = None, finite: bool = True
) -> Tensor:
    """`state`, or an error unless it is a tensor of the expected shape, finite unless torch traces it."""
    check_table(name, state, like=like, finite=finite and not torch.compiler.is_compiling())
    if state.shape != expected:
        raise ValueError(
            f"{name}: got shape {list(state.shape)}, expected {list(expected)}, which is [num_layers, *batch, ...]; "
            "give one state for each layer and each sequence."
        )
    return state


def observed(x: Tensor, lengths: Tensor | list[int] | None) -> tuple[Tensor, Tensor] | None:
    """`lengths` as checked int64 [*batch] and the mask [*batch, T, 1] of the steps they keep; None where all are."""
    if lengths is None:
        return None
    checked = check_lengths(lengths, x.shape[:-2], x.shape[-2], x.device)
    return checked, (torch.arange(x.shape[-2], device=x.device) < checked[..., None])[..., None]


def keep(x: Tensor, some: tuple[Tensor, Tensor] | None) -> Tensor:
    """`x` [*batch, T, F] with zeros past each sequence's length, whatever stood there."""
    return x if some is None else torch.where(some[1], x, x.new_zeros(()))


def last(rows: Tensor, some: tuple[Tensor, Tensor] | None, n_rows: int = 1) -> Tensor:
    """The last `n_rows` rows of each sequence, [*batch, n_rows, F], of `rows` [*batch, extra + T, F].

    Rows before the first step, if there are any, come first: a sequence of length l ends at row extra + l - 1.
    """
    if some is None:
        return rows[..., rows.shape[-2] - n_rows :, :]
    lengths, mask = some
    ends = lengths + (rows.shape[-2] - mask.shape[-2])
    index = ends[..., None] + torch.arange(-n_rows, 0, device=rows.device)
    return rows.gather(-2, index[..., None].expand(*index.shape, rows.shape[-1]))
