r"""Networks with gates at their limits: their counter machines, and networks with bounded states.

The asymptotic network (Merrill et al. 2020) has N times the weights, $N \to \infty$: $\sigma$ becomes a step (1/2 at 0)
and $\tanh$ a sign (0 at 0). Each cell then does $c' = hold\, c + add$ with a few values of hold and add:

This gives a cell $c' = hold\, c + add$ with a few values of hold and add:
|----------------------|--------------|----------------------------|------------------------------|
| LSTM                 | 0, 1         | -1, 0, 1, by x and h       | yes                          |
| QRNN, ifo-pooling    | 0, 1         | -1, 0, 1, by x             | yes                          |
| DoublingLSTM         | 0, 1, 2      | -1, 0, 1, by x and h       | yes, and it doubles          |
| QRNN, f- or fo-      | 0, 1         | (1 - hold) (-1, 1)         | no                           |
| GRU                  | 0, 1         | (1 - hold) (-1, 1)         | no                           |
| MinGRU               | 0, 1         | (1 - hold) v               | no                           |
| MinLSTM              | 0, 1/2, 1    | (1 - hold) v               | no                           |
| Elman, tanh          | 0            | -1, 1                      | no                           |

(The table omits 1/2 and 0, the values at 0. A MinLSTM's 1/2 occurs if both gates are open.)

**Networks without a counter.** If hold and draw sum to 1, saturated or not, $c' = hold\, c + (1 - hold) v$ is between c
and v. So a box that contains all candidates and the state before the first step contains every state, for any input.
The box is $[-1, 1]$ for tanh candidates (GRU, QRNN with f- or fo-pooling) and $[0, 1]$ on a simplex. For the linear
candidates of MinGRU and MinLSTM it is the interval of $W x + b$ over the inputs. An Elman network's state is a tanh. In
floats, or saturated, such a box has finitely many states that differ by a margin: a finite automaton. The cells of an
LSTM and of ifo-pooling have no such box: with hold 1 and add 1 they are t after t steps. In t steps every cell is in
$[-t, t]$. A ReLU has no limit, and an Elman network of ReLU can count, too (Weiss et al. 2018).

**One layer of ifo-pooling loses its count when it reads on.** Its hold and add depend on the last k inputs, not on the
state. Take words $x = a^p b^p a^q b^r u$ and $y = a^p b^r a^q b^p u$ with all blocks of k or more, and u a word in
which every window of k symbols occurs. Both words have the same windows before u, each equally often, and the same in
u. If some window resets a saturated cell, its last reset is at the same place of u. If none does, the cell has added
the same numbers. So both words end in the same state. But with r < p, x begins with $a^n b^n$ and y does not. So no
such layer accepts $a^n b^n w$, for any number of units. An LSTM's gates read h, which stores whether the count is over.

Merrill, Weiss, Goldberg, Schwartz, Smith & Yahav 2020, *A formal hierarchy of RNN architectures*; Weiss, Goldberg &
Yahav 2018, *On the practical computational power of finite precision RNNs for language recognition*.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.parametrize import is_parametrized

from ...inference.numerics.checks import DTYPES
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_kind, check_number
from ...inference.scans.linear.op import linear_scan
from .doubling import DoublingLSTM
from .inputs import a_parameter, batch_major, weight_of
from .minimal import MinGRU, MinLSTM
from .qrnn import QRNN
from .wrapped import GRU, LSTM, Elman

LIMIT = 2.0**60  # N: a power of two, so that sums of 0 stay 0
LAYERS = (LSTM, GRU, Elman, MinGRU, MinLSTM, QRNN, DoublingLSTM)
Layer = TypeVar("Layer", bound=nn.Module)


def saturated(network: Layer) -> Layer:
    """A copy of a layer in the limit of infinitely large weights: gates at their limits, and bounded candidates too.

    The class and its interface stay the same. Cells with linear or positive candidates (MinGRU, MinLSTM) keep these.

    Arguments:
        network: LSTM, GRU, MinGRU, MinLSTM, QRNN, DoublingLSTM, or Elman with tanh; with any layers and directions.

    Raises:
        TypeError: a network of another kind, or in half precision.
        ValueError: an Elman network with ReLU, which has no limit; parametrised weights.

    Merrill, Weiss, Goldberg, Schwartz, Smith & Yahav 2020, *A formal hierarchy of RNN architectures*.

    See Also:
        `counter_machine`, what such a layer computes; `count_states`, its number of states;
        docs/background/machines.md.

    >>> import torch, samplehold as sh
    >>> layer = sh.automata.saturated(sh.GRU(input_size=3, hidden_size=4))
    >>> set(layer(torch.randn(50, 3))[0].flatten().tolist()) <= {-1.0, 0.0, 1.0}  # 0 is where it starts
    True
    """
    parameter = a_parameter(check_kind("network", network, LAYERS, "an LSTM, GRU, Elman, MinGRU, MinLSTM or QRNN"))
    if parameter is not None and parameter.dtype not in DTYPES:
        raise TypeError(f"network: got weights of {parameter.dtype}, expected float32 or float64; convert it first.")
    if isinstance(network, Elman) and network.nonlinearity == "relu":
        raise ValueError('network: an Elman network with ReLU has no limit; build it with nonlinearity="tanh".')
    if is_parametrized(network):
        raise ValueError(
            "network: has parametrised weights; let torch.nn.utils.parametrize.remove_parametrizations make them plain."
        )
    limit = deepcopy(network)
    with torch.no_grad():
        for weight in limit.parameters():
            _bounded(limit, weight).mul_(LIMIT)
    return limit


def _bounded(layer: Any, weight: Tensor) -> Tensor:
    """The rows of a weight or bias except those of unbounded candidates."""
    endless = isinstance(layer, MinGRU | MinLSTM) and layer.candidate in ("linear", "positive")
    return weight[: len(weight) - layer.hidden_size] if endless else weight


@dataclass(frozen=True, repr=False)
class CounterMachine(Record):
    """The update of the cells of a saturated layer, c' = hold c + add; made by `counter_machine`.

    Arguments:
        hold: 1 if a cell is kept, 0 if it is reset.
        add: the increment after that.
        cells: after each step, from 0.
        counts: whether each cell is a counter: kept whole and changed at once, at some step.
    """

    hold: Float[Tensor, "*b T D"]
    add: Float[Tensor, "*b T D"]
    cells: Float[Tensor, "*b T D"]
    counts: Bool[Tensor, "D"]


@torch.no_grad()
def counter_machine(network: nn.Module, x: Float[Tensor, "*b T I"]) -> CounterMachine:
    """The counters of a saturated layer: what its cells hold and add at each step of x.

    If the gates of the layer read only the input, `x = torch.eye(V)[:, None]`, each symbol by itself, gives the whole
    machine: `hold[v, 0]` and `add[v, 0]` for symbol v.

    Arguments:
        network: as in `saturated`, one layer of one direction; `saturated` is applied to it.
        x: time is the second last axis, for any `batch_first` of the layer.

    Raises:
        TypeError: a network of another kind; x that is not a tensor.
        ValueError: a network of several layers or directions; x that does not fit it.

    Merrill, Weiss, Goldberg, Schwartz, Smith & Yahav 2020, *A formal hierarchy of RNN architectures*.

    See Also:
        `saturated`, the layer that it reads; `counting_lstm`, a network that counts; docs/background/counting.md.

    >>> import torch, samplehold as sh
    >>> layer = sh.QRNN(input_size=2, hidden_size=1, pooling="ifo", bias=False).requires_grad_(False)
    >>> layer.weight_l0.copy_(torch.tensor([[1.0, 1], [1, 1], [1, -1], [1, 1]])[..., None]).shape
    torch.Size([4, 2, 1])
    >>> machine = sh.automata.counter_machine(layer, torch.eye(2)[:, None])
    >>> machine.hold.flatten(), machine.add.flatten(), machine.counts  # one up for the first symbol, down for the other
    (tensor([1., 1.]), tensor([ 1., -1.]), tensor([True]))
    """
    layer: Any = saturated(_single(network))
    x = batch_major(x, layer.input_size, True, weight_of(layer, x))
    if not x.shape[-2]:
        raise ValueError(f"x: got shape {list(x.shape)}, expected at least one step.")
    hold, add = _instructions(layer, x)
    cells = linear_scan(hold, add, torch.zeros_like(add[..., 0, :]))
    counts = ((hold == 1) & (add != 0)).flatten(0, -2).any(0)
    return CounterMachine(hold, add, cells, counts)


def _single(network: nn.Module) -> nn.Module:
    layer: Any = check_kind("network", network, LAYERS, "an LSTM, GRU, Elman, MinGRU, MinLSTM or QRNN")
    if layer.num_layers > 1 or layer.bidirectional:
        raise ValueError("network: has several layers or directions; give one layer of one direction.")
    return layer


def _instructions(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """hold and add [*b, T, D] of a saturated layer."""
    if isinstance(layer, MinGRU | MinLSTM | QRNN):
        if isinstance(layer, QRNN):
            x = torch.cat([x.new_zeros(*x.shape[:-2], layer.window - 1, x.shape[-1]), x], -2)
        now = layer.activations(x)
        return now.hold, now.draw * now.value
    shape = (*x.shape[:-2], x.shape[-2], layer.hidden_size)
    rows = x.reshape(-1, *x.shape[-2:])
    out = layer(rows if layer.batch_first else rows.movedim(0, 1))[0]
    out = (out if layer.batch_first else out.movedim(1, 0)).reshape(shape)
    before = torch.cat([torch.zeros_like(out[..., :1, :]), out[..., :-1, :]], -2)
    if isinstance(layer, DoublingLSTM):
        doubling: Any = layer
        pre = linear(torch.cat([x, before], -1), doubling.weight_l0, doubling.bias_l0 if doubling.bias else None)
        i, f, more, g, _ = pre.chunk(5, -1)
        return f.sigmoid() + more.sigmoid(), i.sigmoid() * g.tanh()
    biases = (layer.bias_ih_l0, layer.bias_hh_l0) if layer.bias else (None, None)
    seen, held = linear(x, layer.weight_ih_l0, biases[0]), linear(before, layer.weight_hh_l0, biases[1])
    if isinstance(layer, LSTM):
        i, f, g, _ = (seen + held).chunk(4, -1)
        return f.sigmoid(), i.sigmoid() * g.tanh()
    if isinstance(layer, GRU):
        (r, z, n), (r_h, z_h, n_h) = seen.chunk(3, -1), held.chunk(3, -1)
        hold = (z + z_h).sigmoid()
        return hold, (1 - hold) * (n + (r + r_h).sigmoid() * n_h).tanh()
    return torch.zeros_like(out), (seen + held).tanh()


@dataclass(frozen=True, repr=False)
class StateBox(Record):
    """Bounds on the states of a layer, for each unit; infinite if there is no bound. Made by `state_box`."""

    lowest: Float[Tensor, "D"]
    highest: Float[Tensor, "D"]


@torch.no_grad()
def state_box(network: nn.Module, lowest: float = 0.0, highest: float = 1.0) -> StateBox:
    """A box that contains a layer's states after any number of steps from its default start.

    Arguments:
        network: as in `saturated`, one layer of one direction; or an Elman network with ReLU.
        lowest, highest: bounds of each feature of the inputs; 0 and 1 for symbols. Only linear candidates depend on
            them.

    Raises:
        TypeError: a network of another kind.
        ValueError: highest less than lowest.

    See Also:
        `count_states`, for saturated layers; `saturated`, the limit of great weights; `studies.stability`, on distances
        of states.

    >>> import torch, samplehold as sh
    >>> sh.automata.state_box(sh.GRU(3, 2)).highest, sh.automata.state_box(sh.LSTM(3, 2)).highest
    (tensor([1., 1.]), tensor([inf, inf]))
    """
    layer: Any = _single(network)
    low, high = check_number("lowest", lowest), check_number("highest", highest)
    if high < low:
        raise ValueError(f"highest: got {highest}, which is less than lowest, {lowest}; exchange them.")
    like = a_parameter(layer)
    one = torch.ones(layer.hidden_size, device="cpu") if like is None else like.new_ones(layer.hidden_size)
    relu = isinstance(layer, Elman) and layer.nonlinearity == "relu"
    if relu or isinstance(layer, LSTM | DoublingLSTM) or (isinstance(layer, QRNN) and layer.pooling == "ifo"):
        return StateBox(torch.zeros_like(one) if relu else -torch.inf * one, torch.inf * one)
    if not isinstance(layer, MinGRU | MinLSTM) or layer.candidate == "tanh":
        return StateBox(-one, one)
    if layer.candidate == "simplex":
        return StateBox(torch.zeros_like(one), one)
    rows: Any = layer.rows()
    weight = rows[-layer.hidden_size :]
    offset: Any = layer.bias_l0
    bias = torch.zeros_like(one) if offset is None else offset[-layer.hidden_size :]
    ends = weight * low, weight * high
    least, most = bias + torch.minimum(*ends).sum(1), bias + torch.maximum(*ends).sum(1)
    if layer.candidate == "positive":  # which is monotone in its pre-activation
        least, most = (torch.where(c >= 0, c + 0.5, c.sigmoid()) for c in (least, most))
    zero = torch.zeros_like(one)  # the state before the first step
    return StateBox(torch.minimum(least, zero), torch.maximum(most, zero))
