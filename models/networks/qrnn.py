r"""Quasi-recurrent networks (Bradbury et al. 2017): gates from a window of inputs, then a gated scan.

$$[z, f, (i), (o)]_t = (\tanh, \sigma, \sigma, \sigma)\Big(b + \sum_{j=0}^{k-1} W_j\, x_{t-j}\Big)$$

| pooling | cell                              | output            |
|---------|-----------------------------------|-------------------|
| "f"     | $c_t = f_t c_{t-1} + (1-f_t) z_t$ | $c_t$             |
| "fo"    | $c_t = f_t c_{t-1} + (1-f_t) z_t$ | $o_t \odot c_t$   |
| "ifo"   | $c_t = f_t c_{t-1} + i_t z_t$     | $o_t \odot c_t$   |

The cell of f- and fo-pooling is a minGRU's state. In ifo-pooling hold and draw need not sum to 1, so the cell can
accumulate: it counts.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...inference.numerics.checks import check_dtype, check_table
from ...inference.numerics.records import brief
from ...inference.numerics.scalars import check_choice, check_flag, check_integer
from ...inference.scans.gated.op import PARTS, Activated, activate, gated_scan
from .recurrent import Recurrent, batch_major, check_state, check_step, keep, last, observed, time_major, weight_of

_GATES = {"f": "hold", "fo": "hold", "ifo": "free"}


class QRNNState(NamedTuple):
    """What a QRNN carries from one step, or one chunk, to the next."""

    cell: Tensor  # [num_layers, *batch, hidden_size]
    inputs: tuple[
        Tensor, ...
    ]  # for each layer its last window - 1 inputs, oldest first, [*batch, window - 1, features]

    def __repr__(self) -> str:
        return brief(self)


class QRNN(Recurrent):
    """A stack of quasi-recurrent layers.

    Arguments:
        input_size: features of x.
        hidden_size: units D of a layer.
        num_layers: layers, each reading the outputs of the one below.
        bias: whether pre-activations have an offset.
        batch_first: whether time is the last axis but one of x, or the first.
        pooling: "f", "fo" or "ifo".
        window: the number k of inputs that the gates read, the present one among them.

    Parameters: `weight_l<k>` [parts * D, features, window], as a causal `torch.nn.Conv1d` has it (the present input
    last), and `bias_l<k>` [parts * D]; parts are forget gates, input gates (ifo), candidates, output gates (fo, ifo).

    Raises:
        TypeError: a size that is no integer. From every call: x or states that are no tensors of the weights' dtype,
            lengths of no integers.
        ValueError: a size or window less than 1, or an unknown pooling. From every call: x, states or lengths that do
            not fit, states before the first step that are not finite.

    Bradbury et al. 2017, *Quasi-recurrent neural networks*, arXiv 1611.01576, equations 3 to 5.

    >>> import torch, samplehold as sh
    >>> out, h = sh.QRNN(input_size=3, hidden_size=4, window=2)(torch.randn(2, 9, 3))
    >>> out.shape, h.cell.shape, h.inputs[0].shape  # the last input stays for the next window
    (torch.Size([2, 9, 4]), torch.Size([1, 2, 4]), torch.Size([2, 1, 3]))
    >>> layer = sh.QRNN(input_size=1, hidden_size=1, pooling="ifo").requires_grad_(False)
    >>> _ = layer.weight_l0.zero_(), layer.bias_l0.fill_(100)  # hold all, add 1, show all: it counts
    >>> layer(torch.zeros(5, 1))[0].squeeze(-1)
    tensor([1., 2., 3., 4., 5.])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        pooling: str = "fo",
        window: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, batch_first)
        hidden_size, num_layers = self.hidden_size, self.num_layers
        bias = check_flag("bias", bias)
        check_dtype("dtype", dtype)
        check_choice("pooling", pooling, _GATES)
        window = check_integer("window", window)
        self.pooling = pooling
        self.window = window
        self.gate = _GATES[pooling]
        rows = (PARTS[self.gate] + ("o" in pooling)) * hidden_size
        for layer in range(num_layers):
            weight = torch.empty(rows, self.layer_inputs(layer), window, device=device, dtype=dtype)
            self.register_parameter(f"weight_l{layer}", nn.Parameter(weight))
            offset = nn.Parameter(torch.empty(rows, device=device, dtype=dtype)) if bias else None
            self.register_parameter(f"bias_l{layer}", offset)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly within 1 / sqrt(features * window), as `torch.nn.Conv1d` does."""
        for name, parameter in self.named_parameters(recurse=False):
            width = 1 / math.sqrt(self.layer_inputs(int(name.rpartition("_l")[2])) * self.window)
            nn.init.uniform_(parameter, -width, width)

    def initial_state(self, *batch: int) -> QRNNState:
        """Cells and inputs of zero."""
        zeros = self.get_parameter("weight_l0").new_zeros
        inputs = tuple(zeros(*batch, self.window - 1, self.layer_inputs(layer)) for layer in range(self.num_layers))
        return QRNNState(zeros(self.num_layers, *batch, self.hidden_size), inputs)

    def activations(self, rows: Tensor, layer: int = 0) -> Activated:
        """`hold`, `draw`, `value` [*batch, T, D] of inputs [*batch, window - 1 + T, features] of a layer."""
        return activate(self._pooled(self._windows(rows), layer), self.hidden_size, self.gate, "tanh")

    def forward(
        self, x: Tensor, h0: QRNNState | None = None, lengths: Tensor | list[int] | None = None
    ) -> tuple[Tensor, QRNNState]:
        """Outputs of the last layer at every step, and what every layer carries on after the last.

        Arguments:
            x: [*batch, T, input_size], any batch axes or none; [T, *batch, input_size] for batch_first=False.
            h0: what the previous chunk returned; `initial_state` where None.
            lengths: the number of steps of each sequence, [*batch], between 1 and T; all T where None.

        Returns:
            out [*batch, T, hidden_size] (time first for batch_first=False), zero past each length, and
            `QRNNState(cell [num_layers, *batch, hidden_size], inputs, one [*batch, window - 1, features] a layer)`.
        """
        x = batch_major(x, self.input_size, self.batch_first, weight_of(self, x))
        some = observed(x, lengths)
        start = self._start(h0, x.shape[:-2])
        out, cells, inputs = keep(x, some), [], []
        for layer in range(self.num_layers):
            rows = torch.cat([start.inputs[layer], out], -2)
            windows = self._windows(rows)
            states = gated_scan(self._pooled(windows, layer), start.cell[layer], self.gate, "tanh")
            cells.append(last(states, some).squeeze(-2) if x.shape[-2] else start.cell[layer])
            inputs.append(last(rows, some, self.window - 1))
            out = keep(self._output(states, windows, layer), some)
        return time_major(out, self.batch_first), QRNNState(torch.stack(cells), tuple(inputs))

    def step(self, x: Tensor, h: QRNNState | None = None) -> tuple[Tensor, QRNNState]:
        """One step: `x` [*batch, input_size] and what the steps before it left, to the output and what to carry on."""
        x = check_step(x, self.input_size, weight_of(self, x))
        start, cells, inputs = self._start(h, x.shape[:-1], "h"), [], []
        for layer in range(self.num_layers):
            rows = torch.cat([start.inputs[layer], x[..., None, :]], -2)
            window = rows.transpose(-1, -2).flatten(-2)
            now = activate(self._pooled(window, layer), self.hidden_size, self.gate, "tanh")
            cell = now.hold * start.cell[layer] + now.draw * now.value
            x = self._output(cell, window, layer)
            cells.append(cell)
            inputs.append(rows[..., 1:, :])
        return x, QRNNState(torch.stack(cells), tuple(inputs))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, pooling={self.pooling!r}, window={self.window}"

    def _windows(self, rows: Tensor) -> Tensor:
        """[*batch, T, features * window] of [*batch, window - 1 + T, features], columns in the order of the weights."""
        if self.window == 1:
            return rows
        steps = rows.shape[-2] - self.window + 1
        return torch.stack([rows[..., j : j + steps, :] for j in range(self.window)], -1).flatten(-2)

    def _pooled(self, windows: Tensor, layer: int) -> Tensor:
        return self._product(windows, layer, slice(0, PARTS[self.gate] * self.hidden_size))

    def _output(self, cell: Tensor, windows: Tensor, layer: int) -> Tensor:
        if "o" not in self.pooling:
            return cell
        return self._product(windows, layer, slice(PARTS[self.gate] * self.hidden_size, None)).sigmoid() * cell

    def _product(self, windows: Tensor, layer: int, rows: slice) -> Tensor:
        bias = getattr(self, f"bias_l{layer}")
        weight = self.get_parameter(f"weight_l{layer}")[rows].flatten(1)
        return linear(windows, weight, None if bias is None else bias[rows])

    def _start(self, h0: QRNNState | None, batch: torch.Size, name: str = "h0") -> QRNNState:
        if h0 is None:
            return self.initial_state(*batch)
        if not isinstance(h0, QRNNState):
            raise TypeError(f"{name}: got {type(h0).__name__}, expected the QRNNState of an earlier call, or None.")
        like, expected = weight_of(self, h0.cell), (self.num_layers, *batch, self.hidden_size)
        cell = check_state(f"{name}.cell", h0.cell, expected, like, finite=name == "h0")
        if len(h0.inputs) != self.num_layers:
            raise ValueError(f"{name}.inputs: got {len(h0.inputs)} tensors; give one a layer, {self.num_layers}.")
        for layer, rows in enumerate(h0.inputs):
            expected = (*batch, self.window - 1, self.layer_inputs(layer))
            check_table(f"{name}.inputs[{layer}]", rows, like=like)
            if rows.shape != expected:
                raise ValueError(
                    f"{name}.inputs[{layer}]: got shape {list(rows.shape)}, expected {list(expected)}, which is "
                    "[*batch, window - 1, features]; give the layer's last inputs, oldest first."
                )
        return QRNNState(cell, h0.inputs)
