r"""Quasi-recurrent networks (Bradbury et al. 2017): gates from a window of inputs, then a gated scan.

$$[z, f, (i), (o)]_t = (\tanh, \sigma, \sigma, \sigma)\Big(b + \sum_{j=0}^{k-1} W_j\, x_{t-j}\Big)$$

| pooling | cell                              | output            |
|---------|-----------------------------------|-------------------|
| "f"     | $c_t = f_t c_{t-1} + (1-f_t) z_t$ | $c_t$             |
| "fo"    | $c_t = f_t c_{t-1} + (1-f_t) z_t$ | $o_t \odot c_t$   |
| "ifo"   | $c_t = f_t c_{t-1} + i_t z_t$     | $o_t \odot c_t$   |

The cell of f- and fo-pooling is a minGRU's state. In ifo-pooling the factors of hold and draw need not sum to 1, so the
cell can accumulate: it counts.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ...inference.numerics.checks import check_table
from ...inference.numerics.products import linear
from ...inference.numerics.records import brief
from ...inference.numerics.scalars import check_choice, check_integer
from ...inference.scans.gated.op import PARTS, Activated, activate, gated_scan
from .inputs import Observed, check_state, last, promoted, weight_of, widened
from .recurrent import Recurrent

_GATES = {"f": "hold", "fo": "hold", "ifo": "free"}


class QRNNState(NamedTuple):
    """The state of a QRNN between steps or chunks, for each layer (and direction)."""

    cell: Tensor  # [num_layers, *batch, hidden_size]
    inputs: tuple[Tensor, ...]  # the last window - 1 inputs of each, oldest first, [*batch, window - 1, features]

    def __repr__(self) -> str:
        return brief(self)


class QRNN(Recurrent):
    """A stack of quasi-recurrent layers, whose gates read a window of inputs.

    Arguments:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional: as of `MinGRU`.
        pooling: "f", "fo" or "ifo".
        window: the number k of inputs that the gates read, including the present one.
        device, dtype: as of `MinGRU`.

    Parameters: `weight_l<k>` [parts * D, features, window], as in a causal `torch.nn.Conv1d` (the present input last),
    and `bias_l<k>` [parts * D]. The parts are forget gates, input gates (ifo), candidates, output gates (fo, ifo).
    Names of backward layers end in `_reverse`. States are `QRNNState`; cells and inputs are zero at the start.

    Raises:
        TypeError, ValueError: as for `MinGRU`; a window less than 1, an unknown pooling.

    Bradbury et al. 2017, *Quasi-recurrent neural networks*, arXiv 1611.01576, equations 3 to 5.

    See Also:
        `MinGRU`, which is similar with a window of 1; `automata.counting_qrnn`, which counts;
        docs/background/counting.md.

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
        dropout: float = 0.0,
        bidirectional: bool = False,
        pooling: str = "fo",
        window: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        check_choice("pooling", pooling, _GATES)
        self.pooling = pooling
        self.window: int = check_integer("window", window)
        self.gate: str = _GATES[pooling]
        self._make_parameters(device, dtype)

    def activations(self, rows: Tensor, layer: int = 0, reverse: bool = False) -> Activated:
        """`hold`, `draw`, `value` [*batch, T, D] from inputs [*batch, window - 1 + T, features] of a layer.

        Arguments:
            rows: the inputs of the layer, the latest last.
            layer, reverse: the number and the direction of the layer.
        """
        pre, _ = self._products(self._windows(rows), layer, reverse)
        return activate(pre, self.hidden_size, self.gate, "tanh")

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, pooling={self.pooling!r}, window={self.window}"

    def _shape(self, layer: int) -> tuple[int, ...]:
        return (PARTS[self.gate] + ("o" in self.pooling)) * self.hidden_size, self.layer_inputs(layer), self.window

    def _initial(self, batch: tuple[int, ...], like: Tensor) -> QRNNState:
        shapes = [(*batch, self.window - 1, self.layer_inputs(layer)) for layer, _ in self._each()]
        cell = like.new_zeros(len(shapes), *batch, self.hidden_size)
        return QRNNState(cell, tuple(like.new_zeros(shape) for shape in shapes))

    def _started(
        self, hx: QRNNState | None, x: Tensor, batch: torch.Size, name: str = "hx"
    ) -> list[tuple[Tensor, Tensor]]:
        if hx is None:
            hx = self._initial(batch, self._like(x))
        elif not isinstance(hx, QRNNState):
            raise TypeError(f"{name}: got {type(hx).__name__}, expected the QRNNState of an earlier call, or None.")
        else:
            self._check(hx, batch, name)
        return list(zip(hx.cell.unbind(), hx.inputs, strict=True))

    def _check(self, states: QRNNState, batch: torch.Size, name: str) -> None:
        layers, expected = [layer for layer, _ in self._each()], (*batch, self.hidden_size)
        like = weight_of(self, states.cell)
        check_state(f"{name}.cell", states.cell, (len(layers), *expected), like, finite=name == "hx")
        if len(states.inputs) != len(layers):
            raise ValueError(f"{name}.inputs: got {len(states.inputs)} tensors; give one a layer, {len(layers)}.")
        for k, (layer, rows) in enumerate(zip(layers, states.inputs, strict=True)):
            expected = (*batch, self.window - 1, self.layer_inputs(layer))
            check_table(f"{name}.inputs[{k}]", rows, like=weight_of(self, rows))
            if rows.shape != expected:
                raise ValueError(
                    f"{name}.inputs[{k}]: got shape {list(rows.shape)}, expected {list(expected)}, which is "
                    "[*batch, window - 1, features]; give the layer's last inputs, oldest first."
                )

    def _joined(self, ends: list[tuple[Tensor, Tensor]]) -> QRNNState:
        cells, inputs = zip(*ends, strict=True)
        return QRNNState(torch.stack(cells), inputs)

    def _sweep(
        self, rows: Tensor, start: tuple[Tensor, Tensor], some: Observed, layer: int, reverse: bool
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        rows = torch.cat([start[1], rows], -2)
        pre, shown = self._products(self._windows(rows), layer, reverse)
        states = gated_scan(*promoted(pre, start[0]), self.gate, "tanh")
        cell = last(states, some).squeeze(-2) if states.shape[-2] else start[0]
        return states if shown is None else shown.sigmoid() * states, (cell, last(rows, some, self.window - 1))

    def _step(self, x: Tensor, start: tuple[Tensor, Tensor], layer: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        rows = torch.cat([start[1], x[..., None, :]], -2)
        pre, shown = self._products(rows.transpose(-1, -2).flatten(-2), layer)
        pre, before = promoted(pre, start[0])
        now = activate(widened(pre), self.hidden_size, self.gate, "tanh")
        cell = (now.hold * widened(before) + now.draw * now.value).to(before.dtype)
        return cell if shown is None else shown.sigmoid() * cell, (cell, rows[..., 1:, :])

    def _windows(self, rows: Tensor) -> Tensor:
        """[*batch, T, features * window] of [*batch, window - 1 + T, features], columns in the order of the weights."""
        if self.window == 1:
            return rows
        steps = rows.shape[-2] - self.window + 1
        return torch.stack([rows[..., j : j + steps, :] for j in range(self.window)], -1).flatten(-2)

    def _products(self, windows: Tensor, layer: int, reverse: bool = False) -> tuple[Tensor, Tensor | None]:
        """Pre-activations [*batch, parts * D] of gates and candidates, and [*batch, D] of output gates, if any."""
        weight, bias = self._weights(windows, layer, reverse)
        rows = PARTS[self.gate] * self.hidden_size
        product = lambda weight, bias: linear(windows, weight.flatten(1), bias)
        if "o" not in self.pooling:
            return product(weight, bias), None
        biases = (None, None) if bias is None else (bias[:rows], bias[rows:])
        return product(weight[:rows], biases[0]), product(weight[rows:], biases[1])
