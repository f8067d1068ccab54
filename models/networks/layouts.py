r"""Weights of recurrent layers as torch, Keras, flax and TensorFlow 1 store them: arrays in, arrays out.

All go through one record in torch's layout, `RecurrentWeights`: rows are gates, `input [G*H, I]`, `hidden [G*H, H]`
and two biases; an LSTM's gates are i, f, g, o, a GRU's r, z, n, with

$$n = \tanh(W_n x + b_n + r \odot (U_n h + b'_n)), \qquad h' = (1 - z) \odot n + z \odot h$$

| layout | cell | matrices | gates | bias |
|---|---|---|---|---|
| Keras | lstm | kernel [I, 4H], recurrent_kernel [H, 4H] | i, f, c, o | one |
| Keras | gru | kernel [I, 3H], recurrent_kernel [H, 3H] | z, r, h | [2, 3H]: input, recurrent |
| Keras | elman | kernel [I, H], recurrent_kernel [H, H] | | one |
| TF 1 | lstm | kernel [I + H, 4H] on [x, h] | i, j, f, o | one; forget_bias added at run time |
| TF 1 | elman | kernel [I + H, H] on [x, h] | | one |
| flax | lstm | a kernel a gate, `ii`.. [I, H], `hi`.. [H, H] | i, f, g, o | on `hi`, `hf`, `hg`, `ho` |
| flax | gru | a kernel a gate | r, z, n | on `ir`, `iz`, `in` and `hn` |
| flax | elman | kernels `i`, `h` | | on `i` |

Where a layout has one bias for torch's two, their sum is what counts: reading such a layout puts it on the input and
leaves the other zero, so that a foreign layout is given back exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

GATES = {"lstm": "ifgo", "gru": "rzn", "elman": "n"}
_KERAS = {"lstm": "ifgo", "gru": "zrn", "elman": "n"}
_TF1 = {"lstm": "igfo", "elman": "n"}


@dataclass(frozen=True)
class RecurrentWeights:
    """One recurrent layer in torch's layout."""

    cell: str  # "lstm", "gru" or "elman"
    input: np.ndarray  # [G*H, I]
    hidden: np.ndarray  # [G*H, H]
    input_bias: np.ndarray  # [G*H]
    hidden_bias: np.ndarray  # [G*H]

    def __post_init__(self) -> None:
        if self.cell not in GATES:
            raise ValueError(f"cell: got {self.cell!r}, expected one of {', '.join(map(repr, GATES))}.")
        rows = len(GATES[self.cell]) * self.hidden.shape[-1]
        expected = {"input": (rows, self.input.shape[-1]), "hidden": (rows, self.hidden.shape[-1])}
        for name, shape in (expected | {"input_bias": (rows,), "hidden_bias": (rows,)}).items():
            if getattr(self, name).shape != shape:
                raise ValueError(
                    f"{name}: got shape {list(getattr(self, name).shape)}, expected {list(shape)} for a {self.cell} of "
                    f"{self.hidden.shape[-1]} units; check the layout the weights came in."
                )

    @property
    def bias(self) -> np.ndarray:
        """The sum of both biases."""
        return self.input_bias + self.hidden_bias

    def state_dict(self, layer: int = 0) -> dict[str, Tensor]:
        """Names and tensors as `torch.nn.LSTM`, `GRU` and `RNN` load them."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        arrays = (self.input, self.hidden, self.input_bias, self.hidden_bias)
        return {f"{name}_l{layer}": torch.from_numpy(array.copy()) for name, array in zip(names, arrays, strict=True)}


def from_torch(module: nn.RNNBase, layer: int = 0) -> RecurrentWeights:
    """The weights of one layer of a `torch.nn.LSTM`, `GRU` or `RNN`."""
    cell = {nn.LSTM: "lstm", nn.GRU: "gru", nn.RNN: "elman"}
    kind = next(name for kind, name in cell.items() if isinstance(module, kind))
    if getattr(module, "proj_size", 0):
        raise ValueError(
            "module: an LSTM with proj_size has a third matrix, which no other layout has; build it without."
        )
    state = {name: value.detach().cpu().numpy().copy() for name, value in module.named_parameters()}
    matrices = state[f"weight_ih_l{layer}"], state[f"weight_hh_l{layer}"]
    zeros = np.zeros(len(matrices[0]), matrices[0].dtype)
    return RecurrentWeights(kind, *matrices, *(state.get(f"bias_{part}_l{layer}", zeros) for part in ("ih", "hh")))


def from_joined(cell: str, kernel: Any, bias: Any = None, *, hidden_size: int) -> RecurrentWeights:
    """The layer whose gates are `[x, h] @ kernel + bias`, kernel [I + H, G*H] with torch's order of gates.

    Raises:
        ValueError: for a GRU, whose reset gate stands between two products that one matrix would add.
    """
    _refuse_joined(cell)
    kernel = np.asarray(kernel)
    split = len(kernel) - hidden_size
    if split < 0:
        raise ValueError(f"kernel: got {len(kernel)} rows for {hidden_size} units; give [inputs + hidden_size, ...].")
    return _with_one_bias(cell, kernel[:split].T, kernel[split:].T, bias)


def to_joined(weights: RecurrentWeights) -> tuple[np.ndarray, np.ndarray]:
    """`(kernel [I + H, G*H], bias [G*H])`, the one matrix on [x, h] that equals the two matrices.

    Raises:
        ValueError: for a GRU, see `from_joined`.
    """
    _refuse_joined(weights.cell)
    return np.concatenate([weights.input.T, weights.hidden.T]), weights.bias


def from_keras(cell: str, kernel: Any, recurrent_kernel: Any, bias: Any = None) -> RecurrentWeights:
    """From the weights of a Keras `LSTM`, `GRU` (reset_after=True) or `SimpleRNN`, in the order of `get_weights`.

    No bias stands for use_bias=False. Activations are Keras' present defaults, tanh and sigmoid.

    Raises:
        ValueError: for a GRU with reset_after=False (its bias is one row).
    """
    if cell == "gru" and bias is not None and np.asarray(bias).ndim != 2:
        raise ValueError(
            f"bias: got shape {list(np.asarray(bias).shape)}, the layout of a Keras GRU with reset_after=False, which "
            "resets h before its product; torch resets after it, and no weights make the two equal. "
            "Train the layer with reset_after=True."
        )
    order = _order(_KERAS, cell), GATES[cell]
    at_input, hidden = (_reorder(np.asarray(table).T, *order) for table in (kernel, recurrent_kernel))
    if cell != "gru" or bias is None:
        return _with_one_bias(cell, at_input, hidden, None if bias is None else _reorder(bias, *order))
    at_both = np.asarray(bias)
    return RecurrentWeights(cell, at_input, hidden, _reorder(at_both[0], *order), _reorder(at_both[1], *order))


def to_keras(weights: RecurrentWeights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`(kernel, recurrent_kernel, bias)` for `set_weights` of a Keras layer; a GRU needs reset_after=True."""
    order = GATES[weights.cell], _KERAS[weights.cell]
    both = np.stack([weights.input_bias, weights.hidden_bias]) if weights.cell == "gru" else weights.bias
    tables = weights.input.T, weights.hidden.T, both
    kernel, recurrent, bias = (_reorder(table.T, *order).T for table in tables)
    return kernel, recurrent, bias


def from_tf1(cell: str, kernel: Any, bias: Any, *, hidden_size: int, forget_bias: float = 1.0) -> RecurrentWeights:
    """From the variables of a TensorFlow 1 `BasicLSTMCell`/`LSTMCell` ("lstm") or `BasicRNNCell` ("elman").

    Arguments:
        forget_bias: what the cell adds to its forget gate at run time; ignored for "elman".

    Raises:
        ValueError: for a GRUCell, which cannot be converted.
    """
    order = _order(_TF1, cell)
    columns = (_reorder(np.asarray(table).T, order, GATES[cell]).T for table in (kernel, bias))
    weights = from_joined(cell, *columns, hidden_size=hidden_size)
    return RecurrentWeights(
        cell, weights.input, weights.hidden, weights.input_bias, _run_time_bias(weights, forget_bias)
    )


def to_tf1(weights: RecurrentWeights, forget_bias: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """`(kernel [I + H, G*H], bias [G*H])` of the TensorFlow 1 cell that adds `forget_bias` at run time."""
    order = GATES[weights.cell], _order(_TF1, weights.cell)
    bias = weights.input_bias + (weights.hidden_bias - _run_time_bias(weights, forget_bias))
    return _reorder(to_joined(weights)[0].T, *order).T, _reorder(bias, *order)


def from_flax(cell: str, params: Mapping[str, Mapping[str, Any]]) -> RecurrentWeights:
    """From the parameters of a flax.linen `LSTMCell`/`OptimizedLSTMCell`, `GRUCell` or `SimpleCell` ("elman")."""
    gates = _order(GATES, cell)

    def stacked(side: str, name: str) -> np.ndarray:
        tables = [params[_flax_name(cell, side, gate)] for gate in gates]
        width = np.asarray(tables[0]["kernel"]).shape[1]
        zeros = np.zeros(width, np.asarray(tables[0]["kernel"]).dtype)
        return np.concatenate([np.asarray(table.get(name, zeros)).T for table in tables])

    matrices = (stacked(side, "kernel") for side in "ih")
    return RecurrentWeights(cell, *matrices, *(stacked(side, "bias") for side in "ih"))


def to_flax(weights: RecurrentWeights) -> dict[str, dict[str, np.ndarray]]:
    """Parameters of the flax.linen cell, by submodule."""
    cell, units = weights.cell, weights.hidden.shape[1]
    params = {}
    for k, gate in enumerate(GATES[cell]):
        rows = slice(k * units, (k + 1) * units)
        at_input, at_hidden = {"kernel": weights.input[rows].T}, {"kernel": weights.hidden[rows].T}
        if cell == "gru" and gate == "n":
            at_input["bias"], at_hidden["bias"] = weights.input_bias[rows], weights.hidden_bias[rows]
        else:
            (at_hidden if cell == "lstm" else at_input)["bias"] = weights.bias[rows]
        params[_flax_name(cell, "i", gate)], params[_flax_name(cell, "h", gate)] = at_input, at_hidden
    return params


def _flax_name(cell: str, side: str, gate: str) -> str:
    return side if cell == "elman" else side + gate


def _order(layouts: Mapping[str, str], cell: str) -> str:
    if cell not in GATES:
        raise ValueError(f"cell: got {cell!r}, expected one of {', '.join(map(repr, GATES))}.")
    if cell not in layouts:
        raise ValueError(
            "cell: a TensorFlow 1 GRUCell resets h before its product; torch's GRU resets after it, and no weights "
            "make the two equal. Train with CudnnCompatibleGRUCell, or with Keras' GRU and reset_after=True."
        )
    return layouts[cell]


def _reorder(rows: Any, have: Sequence[str], want: Sequence[str]) -> np.ndarray:
    """Rows [G*H, ...] of gates in order `have`, put in order `want`."""
    rows = np.asarray(rows)
    if len(rows) % len(have):
        raise ValueError(f"weights: got {len(rows)} gate columns, not a multiple of {len(have)} gates; check the cell.")
    parts = dict(zip(have, np.split(rows, len(have)), strict=True))
    return np.concatenate([parts[gate] for gate in want])


def _with_one_bias(cell: str, at_input: np.ndarray, hidden: np.ndarray, bias: Any) -> RecurrentWeights:
    zeros = np.zeros(len(at_input), at_input.dtype)
    return RecurrentWeights(
        cell, at_input.copy(), hidden.copy(), zeros.copy() if bias is None else np.asarray(bias), zeros
    )


def _run_time_bias(weights: RecurrentWeights, forget_bias: float) -> np.ndarray:
    rows = np.zeros_like(weights.hidden_bias)
    if weights.cell == "lstm":
        units = weights.hidden.shape[1]
        rows[units : 2 * units] = forget_bias
    return rows


def _refuse_joined(cell: str) -> None:
    if _order(GATES, cell) == GATES["gru"]:
        raise ValueError(
            "cell: a GRU resets U h before it is added to W x, and one matrix on [x, h] gives only the sum; "
            "keep the two matrices."
        )
