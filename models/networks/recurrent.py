"""The base of all recurrent layers: calls and steps, layers and directions, dropout, hooks, state dicts.

A layer maps `x [*batch, T, input_size]` (or `[T, *batch, input_size]` for batch_first=False) and states before the
first step to `out, h_n`, as torch's recurrent modules do. Entry l of the first axis of `hx` and `h_n` is the state of
layer l. In both directions, entry 2 l is the state of layer l forward and 2 l + 1 that of layer l backward, and their
outputs are concatenated. With `lengths [*batch]`, outputs after a sequence's length are zero, and inputs after it are
not read, not even a NaN. `h_n` is the state at its last step, and the backward direction starts there. A
`PackedSequence` has its lengths, and the output is packed again.

Weights are read by name once in each call. So the value under the name counts: a parametrisation, a pruned weight, a
random one, or one from `torch.func.functional_call`.
"""

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.utils.rnn import PackedSequence

from ...inference.numerics.checks import check_dtype
from ...inference.numerics.scalars import check_flag, check_integer, check_probability
from .inputs import (
    Lengths,
    Observed,
    a_parameter,
    batch_major,
    check_one_dtype,
    check_step,
    keep,
    last,
    observed,
    repacked,
    reversed_in_time,
    time_major,
    unpacked,
    weight_of,
)
from .listing import Listed

Sweep = Callable[[Tensor, Any, int, bool], tuple[Tensor, Any]]


class Reading(NamedTuple):
    """A layer in one direction, with weights read once: its transformed inputs, and its step.

    `seen` [*batch, P] is the part of a step that depends on the input. `after` maps it and the states before a step, a
    tuple (h,) or (h, c) of [*batch, D], to the states after it. Batch axes broadcast.
    """

    seen: Tensor
    after: Callable[[Tensor, Any], Any]

    def sweep(self, state: tuple[Tensor, ...], some: Observed) -> tuple[Tensor, tuple[Tensor, ...]]:
        """All steps after a state: every h [*batch, T, D], and the states after each sequence's last step."""
        track = []
        for seen in self.seen.unbind(-2):
            state = self.after(seen, state)
            track.append(state)
        states = [torch.stack(part, -2) for part in zip(*track, strict=True)]
        return states[0], tuple(last(part, some).squeeze(-2) for part in states)


class Recurrent(Listed):
    """The base of recurrent layers: layers, directions, ragged input and versions.

    A subclass defines the shape of its weights, the states before the first step, and one layer over a series.

    Arguments of methods:
        x: the inputs of the layer.
        layer, reverse: the number of a layer, from 0, and whether it reads backward.
    """

    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool

    _version = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
    ) -> None:
        super().__init__()
        sizes = check_sizes(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        self.input_size, self.hidden_size, self.num_layers, self.bias, self.batch_first = sizes[:5]
        self.dropout, self.bidirectional = sizes[5:]
        if self.dropout and self.num_layers == 1:
            warnings.warn(
                f"dropout: got {dropout} for one layer, but it acts between layers; give more layers, or 0.",
                stacklevel=3,
            )

    def layer_inputs(self, layer: int) -> int:
        """The number of features that layer number `layer` reads.

        Arguments:
            layer: from 0, the lowest.
        """
        return self.input_size if layer == 0 else self.hidden_size * (1 + self.bidirectional)

    def initial_state(self, *batch: int) -> Any:
        """The default states before the first step.

        Arguments:
            batch: the batch axes.
        """
        return self._initial(batch, self._like(torch.empty(0, device="cpu")))

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly within 1 / sqrt(number of inputs), as torch's linear layers do."""
        for layer, reverse in self._each():
            width = 1 / math.sqrt(math.prod(self._shape(layer)[1:]))
            for part in ("weight", "bias")[: 1 + self.bias]:
                nn.init.uniform_(getattr(self, name_of(part, layer, reverse)), -width, width)

    def forward(
        self, x: Tensor | PackedSequence, hx: Any = None, lengths: Tensor | list[int] | None = None
    ) -> tuple[Tensor | PackedSequence, Any]:
        """Outputs of the last layer at every step, and the states of every layer at the last.

        Arguments:
            x: [*batch, T, input_size], any batch axes or none; [T, *batch, input_size] for batch_first=False; or a
                `PackedSequence`.
            hx: states before the first step, as an earlier call returned them; None: `initial_state`.
            lengths: the number of steps of each sequence, [*batch], between 1 and T; None: all T.

        Returns:
            out [*batch, T, hidden_size] (time first for batch_first=False), zero after each length, or packed like x,
            twice as wide in both directions; and h_n. As `hx` of the next call it continues the series.
        """
        if isinstance(x, PackedSequence):
            padded, counts = unpacked(x, lengths)
            out, state = self._over(self._fitting(padded, True), hx, counts)
            return repacked(out, counts, x), state
        out, state = self._over(self._fitting(x, self.batch_first), hx, lengths)
        return time_major(out, self.batch_first), state

    def step(self, x: Tensor, h: Any = None) -> tuple[Tensor, Any]:
        """One step: from `x` [*batch, input_size] and the states before it to the output and the states after it.

        Arguments:
            x: the inputs of this step.
            h: the states before it, as in a call; None: `initial_state`.
        """
        check_one_way(self, "the last input first, and so has no step")
        x = check_step(x, self.input_size, weight_of(self, x))
        starts, ends = self._started(h, x, x.shape[:-1], "h"), []
        if hooked(self):
            return step_by_call(self, x, h)
        for layer, start in enumerate(starts):
            x, end = self._step(dropped(self, x, layer), start, layer)
            ends.append(end)
        return x, self._joined(ends)

    def extra_repr(self) -> str:
        more = {"bias": (self.bias, True), "dropout": (self.dropout, 0.0), "bidirectional": (self.bidirectional, False)}
        shown = "".join(f", {name}={value}" for name, (value, default) in more.items() if value != default)
        sizes = f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, batch_first={self.batch_first}"
        return sizes + shown

    @abstractmethod
    def _shape(self, layer: int) -> tuple[int, ...]:
        """The shape of a layer's weight: rows, features and further axes."""

    @abstractmethod
    def _initial(self, batch: tuple[int, ...], like: Tensor) -> Any:
        """`initial_state`, in the dtype of `like`."""

    @abstractmethod
    def _started(self, hx: Any, x: Tensor, batch: torch.Size, name: str = "hx") -> list[Any]:
        """The states before the first step, checked, for each layer and direction."""

    def _joined(self, ends: list[Any]) -> Any:
        """The states of each layer and direction, in the form that a call returns."""
        return torch.stack(ends)

    @abstractmethod
    def _sweep(self, rows: Tensor, start: Any, some: Observed, layer: int, reverse: bool) -> tuple[Tensor, Any]:
        """Outputs [*batch, T, hidden_size] and last state of a layer in one direction, rows in the order of reading."""

    @abstractmethod
    def _step(self, x: Tensor, start: Any, layer: int) -> tuple[Tensor, Any]:
        """One step of a layer."""

    def _make_parameters(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        check_dtype("dtype", dtype)
        for layer, reverse in self._each():
            weight = nn.Parameter(torch.empty(self._shape(layer), device=device, dtype=dtype))
            bias = nn.Parameter(torch.empty(len(weight), device=device, dtype=dtype)) if self.bias else None
            self.register_parameter(name_of("weight", layer, reverse), weight)
            self.register_parameter(name_of("bias", layer, reverse), bias)
        self.reset_parameters()

    def _like(self, x: Tensor) -> Tensor:
        """The tensor that gives states their dtype and device: a parameter, or x if there is none."""
        parameter = a_parameter(self)
        return x if parameter is None else parameter

    def _each(self) -> Iterator[tuple[int, bool]]:
        """Layers and directions in the order of their states."""
        return ((layer, reverse) for layer in range(self.num_layers) for reverse in (False, True)[: self._directions])

    @property
    def _directions(self) -> int:
        return 1 + self.bidirectional

    def _weights(self, x: Tensor, layer: int, reverse: bool = False) -> tuple[Tensor, Tensor | None]:
        """A layer's weight and bias, read by name, in the right shapes and x's dtype."""
        expected, tensors = self._shape(layer), []
        for part, shape in (("weight", expected), ("bias", expected[:1])):
            name = name_of(part, layer, reverse)
            value = getattr(self, name)
            if value is not None and value.shape != shape:
                raise ValueError(
                    f"{name}: got shape {list(value.shape)}, expected {list(shape)} for this layer; a replacement of "
                    "a weight must keep its shape."
                )
            if value is not None:
                check_one_dtype([(name, value)], x)
            tensors.append(value)
        return tensors[0], tensors[1]

    def _fitting(self, x: Tensor, batch_first: bool) -> Tensor:
        return batch_major(x, self.input_size, batch_first, weight_of(self, x))

    def _over(self, x: Tensor, hx: Any, lengths: Lengths) -> tuple[Tensor, Any]:
        some = observed(x, lengths)
        starts = self._started(hx, x, x.shape[:-2])
        sweep = lambda rows, start, layer, reverse: self._sweep(rows, start, some, layer, reverse)
        out, ends = over_layers(self, sweep, x, starts, some)
        return out, self._joined(ends)

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
        version = local_metadata.get("version", self._version)
        if version > self._version:
            raise ValueError(
                f"state_dict: {prefix or type(self).__name__} was saved by version {version} of this layer, and this "
                f"library knows version {self._version}; update the library."
            )
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def check_sizes(
    input_size: object,
    hidden_size: object,
    num_layers: object,
    bias: object,
    batch_first: object,
    dropout: object,
    bidirectional: object,
) -> tuple[int, int, int, bool, bool, float, bool]:
    """Check the numbers and flags that the constructors of all layers take."""
    return (
        check_integer("input_size", input_size),
        check_integer("hidden_size", hidden_size),
        check_integer("num_layers", num_layers),
        check_flag("bias", bias),
        check_flag("batch_first", batch_first),
        check_probability("dropout", dropout),
        check_flag("bidirectional", bidirectional),
    )


def name_of(part: str, layer: int, reverse: bool = False) -> str:
    """The name of a parameter, as in torch."""
    return f"{part}_l{layer}{'_reverse' if reverse else ''}"


def over_layers(network: Any, sweep: Sweep, x: Tensor, starts: list[Any], some: Observed) -> tuple[Tensor, list[Any]]:
    """Outputs [*batch, T, directions * hidden_size] of the last layer, and the last states of all.

    Arguments:
        network: has the number of layers and directions, and the share of inputs that is dropped.
        sweep: one layer in one direction, from rows and start to outputs and end; rows are in reading order.
        starts: for each layer and direction.
    """
    rows, ends, directions = keep(x, some), [], 1 + network.bidirectional
    for layer in range(network.num_layers):
        rows, sides = dropped(network, rows, layer), []
        for reverse in (False, True)[:directions]:
            read = reversed_in_time(rows, some) if reverse else rows
            out, end = sweep(read, starts[directions * layer + reverse], layer, reverse)
            out = keep(out, some)
            sides.append(reversed_in_time(out, some) if reverse else out)
            ends.append(end)
        rows = torch.cat(sides, -1) if network.bidirectional else sides[0]
    return rows, ends


def dropped(network: Any, rows: Tensor, layer: int) -> Tensor:
    """The inputs of a layer: in training, all layers but the first lose a share of them."""
    return dropout(rows, network.dropout) if layer and network.dropout and network.training else rows


def hooked(module: nn.Module) -> bool:
    """Whether a call of the module does more than its `forward`: pruning and other tools use hooks."""
    hooks = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return any(hooks) or bool(_has_any_global_hook())


def called(layer: Any, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
    """Outputs and states of a layer's call with its hooks, which must not change the shape of the outputs."""
    result = layer(x, hx)
    pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Tensor)
    expected = [*x.shape[:-1], layer.hidden_size * (1 + layer.bidirectional)]
    if not pair or list(result[0].shape) != expected:
        got = f"outputs of shape {list(result[0].shape)}" if pair else f"a {type(result).__name__}"
        raise ValueError(
            f"layer: {type(layer).__name__} gave {got}, expected the pair (out, state) with out {expected}; let its "
            "hooks keep that."
        )
    return result


def step_by_call(layer: Any, x: Tensor, h: Any) -> tuple[Tensor, Any]:
    """A step as a series of one step."""
    time = x.dim() - 1 if layer.batch_first else 0
    out, state = called(layer, x.unsqueeze(time), h)
    return out.squeeze(time), state


def check_one_way(layer: Any, why: str, name: str = "layer") -> None:
    """Raise ValueError with a reason for a layer of both directions."""
    if layer.bidirectional:
        raise ValueError(f"{name}: reads in both directions, {why}; build it with bidirectional=False.")
