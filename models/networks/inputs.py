"""Inputs of recurrent layers, read once: layouts of batch and time, ragged lengths, packed sequences, dtypes.

Internally, series are [*batch, T, features]. Lengths are `Observed`: the checked lengths [*batch], and the mask
[*batch, T, 1] of the steps that belong to their sequence; None if all steps do.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ...inference.numerics.arrays import ordinary
from ...inference.numerics.checks import check_lengths, check_table
from ...inference.numerics.checks import widened as widened
from ...inference.numerics.op import transformed

Lengths = Tensor | list[int] | None
Observed = tuple[Tensor, Tensor] | None


def batch_major(x: Tensor, input_size: int, batch_first: bool, like: Tensor | None = None) -> Tensor:
    """`x` as [*batch, T, input_size], or an error that names the wrong axis."""
    expected = "[*batch, T, input_size]" if batch_first else "[T, *batch, input_size]"
    x = ordinary(check_table("x", x, like=like))
    if x.dim() < 2 or x.shape[-1] != input_size:
        raise ValueError(
            f"x: got shape {list(x.shape)}, expected {expected} with input_size={input_size}; "
            "add the time axis, or build the layer for this number of features."
        )
    return x if batch_first else x.movedim(0, -2)


def time_major(out: Tensor, batch_first: bool) -> Tensor:
    """Return to the layout of the caller."""
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
    """`state`, or an error unless it is a tensor of the expected shape and finite (unchecked if torch traces or maps
    it)."""
    check_table(name, state, like=like, finite=finite and not torch.compiler.is_compiling() and not transformed())
    if state.shape != expected:
        raise ValueError(
            f"{name}: got shape {list(state.shape)}, expected {list(expected)}, which is [num_layers, *batch, ...], "
            "or [2 * num_layers, ...] if bidirectional; give one state for each layer and each sequence."
        )
    return state


def check_pair(name: str, states: object, expected: tuple[int, ...], layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Hidden states and cells of this shape, or an error; finite if they are called `hx`."""
    if not isinstance(states, tuple | list) or len(states) != 2:
        raise TypeError(f"{name}: got {type(states).__name__}, expected a pair of hidden states and cells.")
    h, c = (
        check_state(f"{name}[{i}]", part, expected, weight_of(layer, part), finite=name == "hx")
        for i, part in enumerate(states)
    )
    return h, c


def observed(x: Tensor, lengths: Lengths) -> Observed:
    """`lengths` as int64 [*batch], and the mask [*batch, T, 1] of the steps inside them; None if all are.

    Values are checked unless torch traces or maps them.
    """
    if lengths is None:
        return None
    if torch.compiler.is_compiling() or transformed():
        checked = torch.as_tensor(lengths, device=x.device).expand(x.shape[:-2])
    else:
        checked = check_lengths(lengths, x.shape[:-2], x.shape[-2], x.device)
    return checked, (torch.arange(x.shape[-2], device=x.device) < checked[..., None])[..., None]


def keep(x: Tensor, some: Observed) -> Tensor:
    """`x` [*batch, T, F] with zeros after each sequence's length, for any values there."""
    return x if some is None else torch.where(some[1], x, x.new_zeros(()))


def last(rows: Tensor, some: Observed, n_rows: int = 1) -> Tensor:
    """The last `n_rows` rows of each sequence, [*batch, n_rows, F], of `rows` [*batch, extra + T, F].

    Rows before the first step, if any, come first: a sequence of length l ends at row extra + l - 1.
    """
    if some is None:
        return rows[..., rows.shape[-2] - n_rows :, :]
    lengths, mask = some
    ends = lengths + (rows.shape[-2] - mask.shape[-2])
    index = ends[..., None] + torch.arange(-n_rows, 0, device=rows.device)
    return rows.gather(-2, index[..., None].expand(*index.shape, rows.shape[-1]))


def reversed_in_time(rows: Tensor, some: Observed) -> Tensor:
    """`rows` [*batch, T, F] with each sequence's steps reversed, and the rows after its end unchanged."""
    if some is None:
        return rows.flip(-2)
    lengths, mask = some
    steps = torch.arange(rows.shape[-2], device=rows.device)
    index = torch.where(mask[..., 0], lengths[..., None] - 1 - steps, steps)
    return rows.gather(-2, index[..., None].expand_as(rows))


def unpacked(packed: PackedSequence, lengths: object) -> tuple[Tensor, Tensor]:
    """Sequences [batch, T, F] and their lengths, in the order before packing."""
    if lengths is not None:
        raise ValueError("lengths: a PackedSequence has its own lengths; leave them out.")
    return pad_packed_sequence(packed, batch_first=True)


def repacked(out: Tensor, lengths: Tensor, like: PackedSequence) -> PackedSequence:
    """Sequences [batch, T, F], packed like another packed sequence of the same lengths."""
    order = like.sorted_indices
    if order is not None:
        out, lengths = out[order], lengths[order.to(lengths.device)]
    data = pack_padded_sequence(out, lengths.cpu(), batch_first=True).data
    return PackedSequence(data, like.batch_sizes, order, like.unsorted_indices)


def weight_of(layer: nn.Module, x: object) -> Tensor | None:
    """A weight of the layer that x must match in dtype and device; None if there is none or torch converts dtypes."""
    if isinstance(x, Tensor) and x.is_floating_point() and converting(x):
        return x
    return a_parameter(layer)


def a_parameter(layer: nn.Module) -> Tensor | None:
    """One of the layer's parameters, for its dtype and device; None if there is none."""
    parameter = next((x for x in layer._parameters.values() if x is not None), None)
    return next(layer.parameters(), None) if parameter is None else parameter


def check_one_dtype(weights: Iterable[tuple[str, Tensor]], x: Tensor) -> None:
    """Raise TypeError if a weight has another dtype than x, unless dtypes are converted."""
    if converting(x):
        return
    for name, weight in weights:
        if weight.dtype != x.dtype:
            raise TypeError(f"{name}: got {weight.dtype}, but the layer reads {x.dtype}; give all weights one dtype.")


def converting(x: Tensor) -> bool:
    """Whether autocast or torch's tracing converts dtypes."""
    device = x.device.type
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.compiler.is_compiling() or autocast


def promoted(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the wider of the two dtypes, which differ only under autocast."""
    if x.dtype == state.dtype:
        return x, state
    dtype = torch.promote_types(x.dtype, state.dtype)
    return x.to(dtype), state.to(dtype)
