r"""Networks whose gates are at their limits: the counter machines that they become, and the boxes that others stay in.

The asymptotic network (Merrill et al. 2020) has N times the weights, $N \to \infty$: $\sigma$ becomes a step (1/2 at 0)
and $\tanh$ a sign (0 at 0). Each cell then does $c' = hold\, c + add$ with a few values of hold and add:

| layer                | hold         | add                        | a counter: hold 1, add not 0 |
|----------------------|--------------|----------------------------|------------------------------|
| LSTM                 | 0, 1         | -1, 0, 1, by x and h       | yes                          |
| QRNN, ifo-pooling    | 0, 1         | -1, 0, 1, by x             | yes                          |
| DoublingLSTM         | 0, 1, 2      | -1, 0, 1, by x and h       | yes, and it doubles          |
| QRNN, f- or fo-      | 0, 1         | (1 - hold) (-1, 1)         | no                           |
| GRU                  | 0, 1         | (1 - hold) (-1, 1)         | no                           |
| MinGRU               | 0, 1         | (1 - hold) v               | no                           |
| MinLSTM              | 0, 1/2, 1    | (1 - hold) v               | no                           |
| Elman, tanh          | 0            | -1, 1                      | no                           |

(1/2 and 0, the values at 0, are left out; a MinLSTM's 1/2 is that of two gates both open.)

**Who has no counter, and why.** Where hold and draw sum to 1, saturated or not, $c' = hold\, c + (1 - hold) v$ lies
between c and v. So a box that holds all candidates and the state before the first step holds every state, whatever the
input: $[-1, 1]$ for tanh candidates (GRU, QRNN with f- or fo-pooling), $[0, 1]$ on a simplex, and for the linear
candidates of MinGRU and MinLSTM the interval that $W x + b$ takes over the inputs. An Elman network's state is a tanh.
In floats, or saturated, such a box has finitely many states that differ by a margin: a finite automaton. The cells of
an LSTM and of ifo-pooling are in no box: with hold 1 and add 1 they are t after t steps. The box that all have in t
steps is $[-t, t]$. A ReLU has no limit; an Elman network of ReLU can count, too (Weiss et al. 2018).

**One layer of ifo-pooling keeps no count while it reads on.** Its hold and add are read from the last k inputs, not
from the state. Take words $x = a^p b^p a^q b^r u$ and $y = a^p b^r a^q b^p u$ with all blocks of k or more, and u a
word in which every window of k symbols occurs. Both have the same windows before u, each as often, and the same in u. A
saturated cell that some window resets is reset last at the same place of u; one that none resets has added up the same.
So both end in the same state. But with r < p x begins with $a^n b^n$ and y does not: no such layer accepts
$a^n b^n w$, whatever its units. An LSTM's gates read h, which holds whether the count is over.

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

LIMIT = 2.0**60  # N: a power of two, so that what sums to 0 still does
LAYERS = (LSTM, GRU, Elman, MinGRU, MinLSTM, QRNN, DoublingLSTM)
Layer = TypeVar("Layer", bound=nn.Module)


def saturated(network: Layer) -> Layer:
    """A copy of a layer with its gates, and its candidates where they are bounded, at their limits.

    Its class, and so its interface, is the same. Cells of linear or positive candidates (MinGRU, MinLSTM) keep these.

    Arguments:
        network: LSTM, GRU, MinGRU, MinLSTM, QRNN, DoublingLSTM, or Elman with tanh; of any layers and directions.

    Raises:
        TypeError: a network of another kind, or in half precision.
        ValueError: an Elman network with ReLU, which has no limit; parametrised weights.

    >>> import torch, samplehold as sh
    >>> layer = sh.automata.saturated(sh.GRU(input_size=3, hidden_size=4))
    >>> set(layer(torch.randn(50, 3))[0].flatten().tolist()) <= {-1.0, 0.0, 1.0}  # 0 is where it starts
    True
    """
    own = a_parameter(check_kind("network", network, LAYERS, "an LSTM, GRU, Elman, MinGRU, MinLSTM or QRNN"))
    if own is not None and own.dtype not in DTYPES:
        raise TypeError(f"network: got weights of {own.dtype}, expected float32 or float64; convert it first.")
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
    """The rows of a weight or bias that are not of candidates without bound."""
    endless = isinstance(layer, MinGRU | MinLSTM) and layer.candidate in ("linear", "positive")
    return weight[: len(weight) - layer.hidden_size] if endless else weight


@dataclass(frozen=True, repr=False)
class CounterMachine(Record):
    """What a saturated layer does to its cells, c' = hold c + add; made by `counter_machine`.

    Arguments:
        hold: 1 where a cell is kept, 0 where it is reset.
        add: what it is then increased by.
        cells: after each step, from 0.
        counts: which cells are counters: kept whole and changed at once, at some step.
    """

    hold: Float[Tensor, "*b T D"]
    add: Float[Tensor, "*b T D"]
    cells: Float[Tensor, "*b T D"]
    counts: Bool[Tensor, "D"]


@torch.no_grad()
def counter_machine(network: nn.Module, x: Float[Tensor, "*b T I"]) -> CounterMachine:
    """The counter machine that a layer is in the limit, as it reads x.

    For layers whose gates read the input alone, `x = torch.eye(V)[:, None]`, each symbol by itself, gives the whole
    machine: `hold[v, 0]` and `add[v, 0]` for symbol v.

    Arguments:
        network: as in `saturated`, one layer of one direction; `saturated` is applied to it.
        x: time is the last axis but one, whatever the layer's `batch_first`.

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
    """hold and add [*b, T, D] of a layer in the limit."""
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
        own: Any = layer
        pre = linear(torch.cat([x, before], -1), own.weight_l0, own.bias_l0 if own.bias else None)
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
    """Where all states of a layer lie, per unit; infinite where there is no bound. Made by `state_box`."""

    lowest: Float[Tensor, "D"]
    highest: Float[Tensor, "D"]


@torch.no_grad()
def state_box(network: nn.Module, lowest: float = 0.0, highest: float = 1.0) -> StateBox:
    """The box in which a layer's states stay after any number of steps from its default start (the proof: this module).

    Arguments:
        network: as in `saturated`, one layer of one direction; or an Elman network with ReLU.
        lowest, highest: of each feature of the inputs; 0 and 1 for symbols. They matter to linear candidates alone.

    Raises:
        ValueError: highest less than lowest.

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
    if layer.candidate == "positive":  # which rises with its pre-activation
        least, most = (torch.where(c >= 0, c + 0.5, c.sigmoid()) for c in (least, most))
    zero = torch.zeros_like(one)  # the state before the first step
    return StateBox(torch.minimum(least, zero), torch.maximum(most, zero))
