r"""minGRU and minLSTM (Feng et al. 2024): recurrences whose gates read the input alone, so they run as one scan.

$$h_t = (1 - g_t) \odot h_{t-1} + g_t \odot v_t$$

minGRU: $g = \sigma(W_g x + b_g)$. minLSTM: $g = i / (f + i)$ with $f = \sigma(W_f x + b_f)$, $i = \sigma(W_i x + b_i)$;
that is a minGRU with the log-odds $\log \sigma(W_i x + b_i) - \log \sigma(W_f x + b_f)$ for its gate. The candidate $v$
is a function of $W_v x + b_v$. The scan is computed as it stands: states are convex combinations of candidates, so
nothing overflows, and no detour over logarithms is needed that would lose digits and forbid negative candidates.

A gate that draws (g = 1) replaces the state, one that does not (g = 0) holds it: h is the expectation of a state that
is drawn afresh with probability g, and `samplehold.models.bridge.correspondence` makes that exact.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...inference.numerics.checks import check_dtype
from ...inference.numerics.scalars import check_flag
from ...inference.scans.gated.op import PARTS, Activated, activate, check_kinds, gated_scan
from .recurrent import Recurrent, batch_major, check_state, check_step, keep, last, observed, time_major, weight_of


class _Minimal(Recurrent):
    """One matrix product and one gated scan a layer; `weight_l<k>` stacks the gates' rows above the candidates'.

    Units of a simplex share their gates, one row for each block: each block has one coin, and its state remains a
    distribution whatever the weights are.
    """

    gate: ClassVar[str]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        candidate: str = "linear",
        block: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, batch_first)
        hidden_size, num_layers = self.hidden_size, self.num_layers
        bias = check_flag("bias", bias)
        check_dtype("dtype", dtype)
        self.candidate = candidate
        self.block = check_kinds(hidden_size, self.gate, candidate, block)
        rows = self._gates * self._coins + hidden_size
        for layer in range(num_layers):
            weight = torch.empty(rows, self.layer_inputs(layer), device=device, dtype=dtype)
            self.register_parameter(f"weight_l{layer}", nn.Parameter(weight))
            offset = nn.Parameter(torch.empty(rows, device=device, dtype=dtype)) if bias else None
            self.register_parameter(f"bias_l{layer}", offset)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly within 1 / sqrt(number of inputs), as `torch.nn.Linear` does."""
        for name, parameter in self.named_parameters(recurse=False):
            width = 1 / math.sqrt(self.layer_inputs(int(name.rpartition("_l")[2])))
            nn.init.uniform_(parameter, -width, width)

    def initial_state(self, *batch: int) -> Tensor:
        """The default `h0` [num_layers, *batch, hidden_size]: zeros, or the uniform distribution on each simplex."""
        value = 1 / self.block if self.candidate == "simplex" else 0.0
        return self.get_parameter("weight_l0").new_full((self.num_layers, *batch, self.hidden_size), value)

    def activations(self, x: Tensor, layer: int = 0) -> Activated:
        """`hold`, `draw` and `value` [*batch, hidden_size] that a layer makes of its inputs [*batch, features]."""
        return self.activate(self.product(x, layer))

    def activate(self, pre: Tensor) -> Activated:
        """`hold`, `draw` and `value` of pre-activations [*batch, parts * hidden_size]."""
        return activate(pre, self.hidden_size, self.gate, self.candidate, self._block)

    def product(self, x: Tensor, layer: int = 0) -> Tensor:
        """Pre-activations [*batch, parts * hidden_size] of a layer's inputs: gates, then candidates, one a unit."""
        bias = getattr(self, f"bias_l{layer}")
        return linear(x, self.rows(layer), None if bias is None else self._spread(bias))

    def rows(self, layer: int = 0) -> Tensor:
        """The matrix [parts * hidden_size, features] of `product`: a layer's weights, with a gate's row a unit."""
        return self._spread(self.get_parameter(f"weight_l{layer}"))

    def forward(
        self, x: Tensor, h0: Tensor | None = None, lengths: Tensor | list[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """States of the last layer at every step, and of every layer at the last.

        Arguments:
            x: [*batch, T, input_size], any batch axes or none; [T, *batch, input_size] for batch_first=False.
            h0: [num_layers, *batch, hidden_size], `initial_state` where None.
            lengths: the number of steps of each sequence, [*batch], between 1 and T; all T where None.

        Returns:
            out [*batch, T, hidden_size] (time first for batch_first=False), zero past each length, and
            h_n [num_layers, *batch, hidden_size], which as `h0` of the next call continues the series.
        """
        x = batch_major(x, self.input_size, self.batch_first, weight_of(self, x))
        batch, steps = x.shape[:-2], x.shape[-2]
        some = observed(x, lengths)
        start = self._start(h0, batch)
        out, ends = keep(x, some), []
        for layer in range(self.num_layers):
            pre = self.product(out, layer)
            states = gated_scan(pre, start[layer], self.gate, self.candidate, self._block)
            ends.append(last(states, some).squeeze(-2) if steps else start[layer])
            out = keep(states, some)
        return time_major(out, self.batch_first), torch.stack(ends)

    def step(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One step: `x` [*batch, input_size] and `h` [num_layers, *batch, hidden_size] to the output and the next h."""
        x = check_step(x, self.input_size, weight_of(self, x))
        state, states = self._start(h, x.shape[:-1], "h"), []
        for layer in range(self.num_layers):
            now = self.activations(x, layer)
            x = now.hold * state[layer] + now.draw * now.value
            states.append(x)
        return x, torch.stack(states)

    def extra_repr(self) -> str:
        blocks = f", block={self.block}" if self.candidate == "simplex" else ""
        return f"{super().extra_repr()}, candidate={self.candidate!r}{blocks}"

    @property
    def _gates(self) -> int:
        return PARTS[self.gate] - 1

    @property
    def _coins(self) -> int:
        """Rows of weights a gate has."""
        return self.hidden_size // (self._block or 1)

    @property
    def _block(self) -> int | None:
        return self.block if self.candidate == "simplex" else None

    def _spread(self, rows: Tensor) -> Tensor:
        """Give every unit of a block its gates' rows."""
        if self._block is None:
            return rows
        gates, candidates = rows.split([self._gates * self._coins, self.hidden_size])
        return torch.cat([gates.repeat_interleave(self._block, 0), candidates])

    def _start(self, h0: Tensor | None, batch: torch.Size, name: str = "h0") -> Tensor:
        if h0 is None:
            return self.initial_state(*batch)
        expected = (self.num_layers, *batch, self.hidden_size)
        return check_state(name, h0, expected, weight_of(self, h0), finite=name == "h0")


class MinGRU(_Minimal):
    r"""minGRU: $h_t = (1 - g_t) \odot h_{t-1} + g_t \odot v_t$ with $g_t = \sigma(W_g x_t + b_g)$.

    Arguments:
        input_size: features of x.
        hidden_size: units D of a layer.
        num_layers: layers, each reading the states of the one below.
        bias: whether there are $b_g$ and $b_v$.
        batch_first: whether time is the last axis but one of x, or the first.
        candidate: "linear", "tanh", "positive" (the published g, at least 0) or "simplex" (softmax of each block of
            units, which share one gate, so that the state of a block is a probability distribution).
        block: units of one simplex; all where None.

    Parameters: `weight_l<k>` [G + D, inputs] and `bias_l<k>` [G + D], the G gates first, then the D candidates; G is
    D, or the number of blocks for candidate="simplex".

    Raises:
        TypeError: a size that is no integer. From every call: x or states that are no tensors of the weights' dtype,
            lengths of no integers.
        ValueError: a size less than 1, an unknown candidate, a block that does not divide the units. From every call:
            x, states or lengths that do not fit, states before the first step that are not finite.

    Feng et al. 2024, *Were RNNs All We Needed?*, section 3.1.

    >>> import torch, samplehold as sh
    >>> layer, x = sh.MinGRU(input_size=3, hidden_size=4, candidate="simplex", block=2), torch.randn(2, 9, 3)
    >>> out, h = layer(x)
    >>> out.shape, h.shape
    (torch.Size([2, 9, 4]), torch.Size([1, 2, 4]))
    >>> out.unflatten(-1, (2, 2)).sum(-1).allclose(torch.tensor(1.0))  # at each step two distributions over two states
    True
    >>> layer(x[:, 5:], layer(x[:, :5])[1])[0].allclose(out[:, 5:], atol=1e-5)  # h carries on a series
    True
    """

    gate = "redraw"


class MinLSTM(_Minimal):
    r"""minLSTM: $h_t = f'_t \odot h_{t-1} + i'_t \odot v_t$ with $f' = f / (f + i)$, $i' = i / (f + i)$.

    Arguments and errors as `MinGRU`. Parameters: `weight_l<k>` [2 G + D, inputs] and `bias_l<k>` [2 G + D]: forget
    gates, input gates, candidates.

    Feng et al. 2024, *Were RNNs All We Needed?*, section 3.2.

    >>> import torch, samplehold as sh
    >>> layer, x = sh.MinLSTM(input_size=3, hidden_size=4, num_layers=2), torch.randn(2, 9, 3)
    >>> out, h = layer(x, lengths=[9, 5])
    >>> out.shape, h.shape
    (torch.Size([2, 9, 4]), torch.Size([2, 2, 4]))
    >>> layer.step(x[0, 8], layer(x[0, :8])[1])[0].allclose(out[0, 8], atol=1e-5)  # step by step it is the same
    True
    """

    gate = "ratio"
