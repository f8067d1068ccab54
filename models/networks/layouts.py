r"""Weights of recurrent layers as torch, Keras, flax and TensorFlow 1 store them: arrays in, arrays out.

All conversions use one record in torch's layout, `RecurrentWeights`: rows are gates, `input [G*H, I]`, `hidden [G*H,
H]` and two biases. The gates of an LSTM are i, f, g, o, those of a GRU r, z, n, with

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

If a layout has one bias for torch's two, only their sum matters. Reading such a layout puts the bias on the input and
leaves the other zero, so writing it back gives exactly the same arrays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...inference.numerics.arrays import numbers
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_choice, check_flag, check_integer, check_kind, check_number
from .recurrent import name_of

GATES = {"lstm": "ifgo", "gru": "rzn", "elman": "n"}
_KERAS = {"lstm": "ifgo", "gru": "zrn", "elman": "n"}
_TF1 = {"lstm": "igfo", "elman": "n"}


@dataclass(frozen=True, repr=False)
class RecurrentWeights(Record):
    """The weights of one recurrent layer of H units and I inputs in torch's layout.

    Arguments:
        cell: "lstm", "gru" or "elman", of G = 4, 3 or 1 gates.
        input, hidden: matrices [G*H, I] of x and [G*H, H] of h.
        input_bias, hidden_bias: [G*H].

    Raises:
        ValueError: an unknown cell, or shapes that do not fit together.

    See Also:
        `from_torch`, which makes one; `to_keras`, which writes one; `LSTM`, which loads its state_dict.

    >>> import torch, samplehold as sh
    >>> weights = sh.layouts.from_torch(torch.nn.LSTM(input_size=3, hidden_size=4))
    >>> weights.cell, weights.input.shape, weights.hidden.shape, weights.bias.shape
    ('lstm', (16, 3), (16, 4), (16,))
    >>> sh.LSTM(input_size=3, hidden_size=4).load_state_dict(weights.state_dict())
    <All keys matched successfully>
    """

    cell: str
    input: np.ndarray
    hidden: np.ndarray
    input_bias: np.ndarray
    hidden_bias: np.ndarray

    def __post_init__(self) -> None:
        check_choice("cell", self.cell, GATES)
        for name in ("input", "hidden", "input_bias", "hidden_bias"):
            object.__setattr__(self, name, _array(name, getattr(self, name), 1 if name.endswith("bias") else 2))
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
        """The sum of both biases, [G*H]."""
        return self.input_bias + self.hidden_bias

    def state_dict(self, layer: int = 0) -> dict[str, Tensor]:
        """Names and tensors, copies, as layer number `layer` of a `torch.nn.LSTM`, `GRU` or `RNN` loads them.

        Arguments:
            layer: the number of the layer, from 0.
        """
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        arrays = (self.input, self.hidden, self.input_bias, self.hidden_bias)
        return {f"{name}_l{layer}": torch.from_numpy(array.copy()) for name, array in zip(names, arrays, strict=True)}


def from_torch(module: nn.RNNBase, layer: int = 0) -> RecurrentWeights:
    """Read the weights of one layer of a `torch.nn.LSTM`, `GRU` or `RNN`, copied; missing biases are zero.

    An RNN's nonlinearity is not a weight: pass `nonlinearity="relu"` again for `torch.nn.RNN(nonlinearity="relu")`.

    Arguments:
        module: a `torch.nn.LSTM`, `GRU` or `RNN`.
        layer: the number of the layer, from 0.

    Raises:
        TypeError: a module of another kind.
        ValueError: a layer that the module does not have, a module of both directions, or an LSTM with proj_size.

    See Also:
        `GRU` and `LSTM`, which load the weights; `from_keras`, for Keras; docs/coming_from/torch_nn.md.

    >>> import torch, samplehold as sh
    >>> trained, layer, x = torch.nn.GRU(3, 4, batch_first=True), sh.GRU(3, 4), torch.randn(2, 9, 3)
    >>> layer.load_state_dict(sh.layouts.from_torch(trained).state_dict())
    <All keys matched successfully>
    >>> torch.equal(layer(x)[0], trained(x)[0])
    True
    """
    cell = {nn.LSTM: "lstm", nn.GRU: "gru", nn.RNN: "elman"}
    check_kind("module", module, tuple(cell), "a torch.nn.LSTM, GRU or RNN")
    kind = next(name for kind, name in cell.items() if isinstance(module, kind))
    layer = check_integer("layer", layer, least=0, most=module.num_layers - 1)
    if module.bidirectional:
        raise ValueError(
            "module: reads in both directions, but these weights are for one; build it with bidirectional=False."
        )
    if getattr(module, "proj_size", 0):
        raise ValueError(
            "module: an LSTM with proj_size has a third matrix, which no other layout supports; build it without."
        )
    parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 4 if module.bias else 2]
    # the values under the names, also of a parametrised or pruned weight
    tables = [getattr(module, name_of(part, layer)).detach().cpu().numpy().copy() for part in parts]
    zeros = np.zeros(len(tables[0]), tables[0].dtype)
    return RecurrentWeights(kind, *(tables if module.bias else [*tables, zeros, zeros.copy()]))


def from_joined(cell: str, kernel: Any, bias: Any = None, *, hidden_size: int) -> RecurrentWeights:
    """Read the weights of a layer whose gates are `[x, h] @ kernel + bias`, with torch's order of gates.

    Arguments:
        cell: "lstm" or "elman".
        kernel: [I + H, G*H].
        bias: [G*H]; None: zero.
        hidden_size: H.

    Raises:
        ValueError: a GRU, whose reset gate is between two products that one matrix would add; shapes that do not fit
            together.

    See Also:
        `to_joined`, the way back; `from_tf1`, for TensorFlow 1, whose matrix is of this kind.

    >>> import torch, samplehold as sh
    >>> kernel, bias, x, h = torch.randn(3 + 4, 4), torch.randn(4), torch.randn(3), torch.randn(1, 4)
    >>> layer = sh.Elman(input_size=3, hidden_size=4)
    >>> layer.load_state_dict(sh.layouts.from_joined("elman", kernel, bias, hidden_size=4).state_dict())
    <All keys matched successfully>
    >>> layer.step(x, h)[0].allclose((torch.cat([x, h[0]]) @ kernel + bias).tanh(), atol=1e-5)
    True
    """
    _refuse_joined(cell)
    kernel, hidden_size = _array("kernel", kernel, 2), check_integer("hidden_size", hidden_size)
    bias = None if bias is None else _array("bias", bias, 1)
    split = len(kernel) - hidden_size
    if split < 1:
        raise ValueError(f"kernel: got {len(kernel)} rows for {hidden_size} units; give [inputs + hidden_size, ...].")
    _check_columns(cell, hidden_size, kernel=kernel, bias=bias)
    return _with_one_bias(cell, kernel[:split].T, kernel[split:].T, bias)


def to_joined(weights: RecurrentWeights) -> tuple[np.ndarray, np.ndarray]:
    """Write weights as `(kernel [I + H, G*H], bias [G*H])`, one matrix on [x, h] that equals the two matrices.

    Arguments:
        weights: of one layer.

    Raises:
        ValueError: for a GRU, see `from_joined`.

    See Also:
        `from_joined`, the way back; `to_tf1`, for TensorFlow 1, whose matrix is of this kind.

    >>> import numpy as np, torch, samplehold as sh
    >>> weights = sh.layouts.from_torch(torch.nn.LSTM(input_size=3, hidden_size=4))
    >>> kernel, bias = sh.layouts.to_joined(weights)
    >>> kernel.shape, bias.shape
    ((7, 16), (16,))
    >>> np.array_equal(sh.layouts.from_joined("lstm", kernel, bias, hidden_size=4).hidden, weights.hidden)
    True
    """
    _refuse_joined(_checked(weights).cell)
    return np.concatenate([weights.input.T, weights.hidden.T]), weights.bias


def from_keras(
    cell: str, kernel: Any, recurrent_kernel: Any, bias: Any = None, *, reset_after: bool | None = None
) -> RecurrentWeights:
    """Read the weights of a Keras `LSTM`, `GRU` (reset_after=True) or `SimpleRNN`, in the order of `get_weights`.

    Activations are Keras' present defaults, tanh and sigmoid.

    Arguments:
        cell: "lstm", "gru" or "elman" (`SimpleRNN`).
        kernel: [I, G*H].
        recurrent_kernel: [H, G*H].
        bias: [G*H], for a GRU [2, G*H]; None for use_bias=False.
        reset_after: of the `GRU` layer. Required without bias, because only the bias differs between Keras' two
            GRUs; with a bias its shape decides. Ignored for other cells.

    Raises:
        ValueError: for a GRU with reset_after=False (its bias is one row), for a GRU without bias and without
            `reset_after`, and for shapes that do not fit together.

    A GRU with reset_after=False cannot be converted, with or without bias: its candidate multiplies U by the product of
    r and h, torch's multiplies r by the product of U and h. The two are equal only where U is diagonal, or where the
    reset gates of the units that it connects are equal.

    See Also:
        `to_keras`, the way back; `from_tf1`, for TensorFlow 1.

    >>> import numpy as np, samplehold as sh
    >>> arrays = np.array([[1.0, 2.0, 3.0]]), np.zeros((1, 3)), np.zeros((2, 3))  # get_weights() of a GRU: z, r, h
    >>> weights = sh.layouts.from_keras("gru", *arrays)
    >>> weights.input[:, 0]  # r, z, n
    array([2., 1., 3.])
    >>> [np.array_equal(array, given) for array, given in zip(sh.layouts.to_keras(weights), arrays)]
    [True, True, True]
    """
    check_choice("cell", cell, GATES)
    kernel, recurrent_kernel = _array("kernel", kernel, 2), _array("recurrent_kernel", recurrent_kernel, 2)
    bias = None if bias is None else _array("bias", bias, *((1, 2) if cell == "gru" else (1,)))
    if cell == "gru":
        _check_reset_after(reset_after, bias)
    order = _order(_KERAS, cell), GATES[cell]
    _check_columns(cell, len(recurrent_kernel), kernel=kernel, recurrent_kernel=recurrent_kernel, bias=bias)
    at_input, hidden = _reorder("kernel", kernel.T, *order), _reorder("recurrent_kernel", recurrent_kernel.T, *order)
    if cell != "gru" or bias is None:
        return _with_one_bias(cell, at_input, hidden, None if bias is None else _reorder("bias", bias, *order))
    return RecurrentWeights(cell, at_input, hidden, *(_reorder("bias", part, *order) for part in bias))


def to_keras(weights: RecurrentWeights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Write weights as `(kernel [I, G*H], recurrent_kernel [H, G*H], bias)` for `set_weights` of a Keras layer.

    The bias is [G*H]; for a GRU, which needs reset_after=True, [2, G*H].

    Arguments:
        weights: of one layer.

    See Also:
        `from_keras`, the way back; `to_tf1`, for TensorFlow 1.

    >>> import numpy as np, torch, samplehold as sh
    >>> weights = sh.layouts.from_torch(torch.nn.GRU(input_size=3, hidden_size=4))
    >>> arrays = sh.layouts.to_keras(weights)
    >>> [array.shape for array in arrays]
    [(3, 12), (4, 12), (2, 12)]
    >>> np.array_equal(sh.layouts.from_keras("gru", *arrays).hidden, weights.hidden)
    True
    """
    order = GATES[_checked(weights).cell], _KERAS[weights.cell]
    both = np.stack([weights.input_bias, weights.hidden_bias]) if weights.cell == "gru" else weights.bias
    tables = weights.input.T, weights.hidden.T, both
    kernel, recurrent, bias = (_reorder("weights", table.T, *order).T for table in tables)
    return kernel, recurrent, bias


def from_tf1(cell: str, kernel: Any, bias: Any, *, hidden_size: int, forget_bias: float = 1.0) -> RecurrentWeights:
    """Read the variables of a TensorFlow 1 `BasicLSTMCell`/`LSTMCell` ("lstm") or `BasicRNNCell` ("elman").

    Arguments:
        cell: "lstm" or "elman".
        kernel: [I + H, G*H].
        bias: [G*H].
        hidden_size: H.
        forget_bias: the number that the cell adds to its forget gate at run time; ignored for "elman".

    Raises:
        ValueError: for a GRUCell, which cannot be converted, and for shapes that do not fit together.

    See Also:
        `to_tf1`, the way back; `from_keras`, for Keras layers.

    >>> import numpy as np, samplehold as sh
    >>> kernel = np.array([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]])  # gates i, j, f, o of one unit
    >>> weights = sh.layouts.from_tf1("lstm", kernel, np.zeros(4), hidden_size=1)
    >>> weights.input[:, 0], weights.bias  # i, f, g, o, with the bias of the run
    (array([1., 3., 2., 4.]), array([0., 1., 0., 0.]))
    """
    order = _order(_TF1, cell)
    forget_bias = check_number("forget_bias", forget_bias)
    tables = {"kernel": _array("kernel", kernel, 2), "bias": _array("bias", bias, 1)}
    columns = (_reorder(name, table.T, order, GATES[cell]).T for name, table in tables.items())
    weights = from_joined(cell, *columns, hidden_size=hidden_size)
    return RecurrentWeights(
        cell, weights.input, weights.hidden, weights.input_bias, _run_time_bias(weights, forget_bias)
    )


def to_tf1(weights: RecurrentWeights, forget_bias: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Write weights as `(kernel [I + H, G*H], bias [G*H])` of the TensorFlow 1 cell that adds `forget_bias` at run
    time.

    Arguments:
        weights: of one layer.
        forget_bias: what the cell adds to its forget gate.

    Raises:
        ValueError: for a GRU, see `from_tf1`.

    See Also:
        `from_tf1`, the way back; `to_keras`, for Keras layers.

    >>> import numpy as np, samplehold as sh
    >>> kernel, bias = np.arange(28.0).reshape(7, 4), np.ones(4)  # 6 features, 1 unit
    >>> back = sh.layouts.to_tf1(sh.layouts.from_tf1("lstm", kernel, bias, hidden_size=1))
    >>> np.array_equal(back[0], kernel), np.array_equal(back[1], bias)
    (True, True)
    """
    order = GATES[_checked(weights).cell], _order(_TF1, weights.cell)
    bias = weights.input_bias + (weights.hidden_bias - _run_time_bias(weights, forget_bias))
    return _reorder("weights", to_joined(weights)[0].T, *order).T, _reorder("weights", bias, *order)


def from_flax(cell: str, params: Mapping[str, Mapping[str, Any]]) -> RecurrentWeights:
    """Read the parameters of a flax.linen `LSTMCell`/`OptimizedLSTMCell`, `GRUCell` or `SimpleCell` ("elman").

    Arguments:
        cell: "lstm", "gru" or "elman".
        params: `cell.init(...)["params"]`: by submodule ("ii", "hi", ...; "i" and "h" for "elman") a kernel, [I, H] or
            [H, H], and perhaps a bias [H].

    Raises:
        ValueError: submodules that are missing, or shapes that do not fit together.

    See Also:
        `to_flax`, the way back; `from_torch` and `from_keras`, for other libraries.

    >>> import numpy as np, samplehold as sh
    >>> params = {"i": {"kernel": np.ones((3, 4)), "bias": np.arange(4.0)}, "h": {"kernel": np.eye(4)}}
    >>> weights = sh.layouts.from_flax("elman", params)
    >>> weights.input.shape, weights.bias
    ((4, 3), array([0., 1., 2., 3.]))
    """
    gates = _order(GATES, cell)
    check_kind("params", params, Mapping, "parameters by submodule")
    if missing := {_flax_name(cell, side, gate) for side in "ih" for gate in gates} - set(params):
        raise ValueError(
            f"params: got {sorted(params)}, without {sorted(missing)}, which cell={cell!r} has; "
            'give `cell.init(...)["params"]` of the cell itself.'
        )

    def read(module: str) -> tuple[np.ndarray, np.ndarray]:
        check_kind(f"params[{module!r}]", params[module], Mapping, "a kernel, and perhaps a bias, by name")
        if "kernel" not in params[module]:
            raise ValueError(f"params[{module!r}]: got {sorted(params[module])}, expected a kernel.")
        kernel = _array(f"params[{module!r}]['kernel']", params[module]["kernel"], 2)
        bias = params[module].get("bias", np.zeros(kernel.shape[1], kernel.dtype))
        return kernel, _array(f"params[{module!r}]['bias']", bias, 1)

    modules = {side: [_flax_name(cell, side, gate) for gate in gates] for side in "ih"}
    layer = {side: [read(module) for module in modules[side]] for side in "ih"}
    inputs, units = len(layer["i"][0][0]), len(layer["h"][0][0])
    for side, rows in (("i", inputs), ("h", units)):
        for module, tables in zip(modules[side], layer[side], strict=True):
            for name, table, shape in zip(("kernel", "bias"), tables, ((rows, units), (units,)), strict=True):
                if table.shape != shape:
                    raise ValueError(
                        f"params[{module!r}][{name!r}]: got shape {list(table.shape)}, expected {list(shape)}, of a "
                        f"cell of {inputs} inputs and {units} units; give one cell's."
                    )
    matrices = (np.concatenate([kernel.T for kernel, _ in layer[side]]) for side in "ih")
    return RecurrentWeights(cell, *matrices, *(np.concatenate([bias for _, bias in layer[side]]) for side in "ih"))


def to_flax(weights: RecurrentWeights) -> dict[str, dict[str, np.ndarray]]:
    """Write weights as parameters of a flax.linen cell, by submodule: a kernel [I, H] or [H, H], and the bias [H] if it
    has one.

    Arguments:
        weights: of one layer.

    See Also:
        `from_flax`, the way back; `from_torch`, which reads a trained layer.

    >>> import numpy as np, torch, samplehold as sh
    >>> weights = sh.layouts.from_torch(torch.nn.GRU(input_size=3, hidden_size=4))
    >>> params = sh.layouts.to_flax(weights)
    >>> {name: sorted(tables) for name, tables in params.items() if "bias" in tables}
    {'ir': ['bias', 'kernel'], 'iz': ['bias', 'kernel'], 'in': ['bias', 'kernel'], 'hn': ['bias', 'kernel']}
    >>> np.array_equal(sh.layouts.from_flax("gru", params).hidden, weights.hidden)
    True
    """
    cell, units = _checked(weights).cell, weights.hidden.shape[1]
    params = {}
    for k, gate in enumerate(GATES[cell]):
        rows = slice(k * units, (k + 1) * units)
        at_input, at_hidden = {"kernel": weights.input[rows].T.copy()}, {"kernel": weights.hidden[rows].T.copy()}
        if cell == "gru" and gate == "n":
            at_input["bias"], at_hidden["bias"] = weights.input_bias[rows].copy(), weights.hidden_bias[rows].copy()
        else:
            (at_hidden if cell == "lstm" else at_input)["bias"] = weights.bias[rows]
        params[_flax_name(cell, "i", gate)], params[_flax_name(cell, "h", gate)] = at_input, at_hidden
    return params


def _check_reset_after(reset_after: bool | None, bias: np.ndarray | None) -> None:
    """Raise ValueError unless a GRU of Keras resets h after its product, as torch does."""
    after = reset_after is None or check_flag("reset_after", reset_after)
    if bias is None and reset_after is None:
        raise ValueError(
            "reset_after: got None for a GRU without bias, expected True or False; without bias both kinds have "
            "weights of the same shapes. Give that of the Keras layer, `layer.reset_after`."
        )
    cure = (
        "which resets h before its product. torch resets h after it, and no weights make the two equal: "
        "train the layer with reset_after=True."
    )
    if not after:
        raise ValueError(f"reset_after: got False, {cure}")
    if bias is not None and bias.shape[:-1] != (2,):
        raise ValueError(
            f"bias: got shape {list(bias.shape)}, expected [2, 3 * units]; one row is the layout of a GRU with "
            f"reset_after=False, {cure}"
        )


def _check_columns(cell: str, units: int, **tables: np.ndarray | None) -> None:
    """Raise ValueError unless all tables have a column for each gate of each unit."""
    expected = len(GATES[cell]) * units
    for name, table in tables.items():
        if table is not None and table.shape[-1] != expected:
            raise ValueError(
                f"{name}: got shape {list(table.shape)}, expected {expected} columns for a {cell} of {units} units; "
                "check the layout the weights came in."
            )


def _array(name: str, table: Any, *axes: int) -> np.ndarray:
    """Finite weights, in any form, with one of these numbers of axes."""
    array = numbers(table, name).detach().cpu().numpy()
    if array.ndim not in axes or not array.size:
        expected = " or ".join({1: "a row", 2: "a matrix"}[n] for n in axes)
        raise ValueError(f"{name}: got shape {list(array.shape)}, expected {expected}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: got numbers that are not finite; give finite weights.")
    return array


def _flax_name(cell: str, side: str, gate: str) -> str:
    return side if cell == "elman" else side + gate


def _order(layouts: Mapping[str, str], cell: str) -> str:
    check_choice("cell", cell, GATES)
    if cell not in layouts:
        raise ValueError(
            "cell: a TensorFlow 1 GRUCell resets h before its product; torch's GRU resets after it, and no weights "
            "make the two equal. Train with CudnnCompatibleGRUCell, or with Keras' GRU and reset_after=True."
        )
    return layouts[cell]


def _reorder(name: str, rows: np.ndarray, have: Sequence[str], want: Sequence[str]) -> np.ndarray:
    """Rows [G*H, ...] of gates in the order `have`, put in the order `want`."""
    if len(rows) % len(have):
        raise ValueError(f"{name}: got {len(rows)} gate columns, not a multiple of {len(have)} gates; check the cell.")
    parts = dict(zip(have, np.split(rows, len(have)), strict=True))
    return np.concatenate([parts[gate] for gate in want])


def _with_one_bias(cell: str, at_input: np.ndarray, hidden: np.ndarray, bias: Any) -> RecurrentWeights:
    zeros = np.zeros(len(at_input), at_input.dtype)
    return RecurrentWeights(
        cell, at_input.copy(), hidden.copy(), zeros.copy() if bias is None else np.array(bias), zeros
    )


def _checked(weights: Any) -> RecurrentWeights:
    expected = "RecurrentWeights, such as from_torch(layer)"
    return check_kind("weights", weights, RecurrentWeights, expected)


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
