r"""minGRU and minLSTM (Feng et al. 2024): recurrences whose gates read only the input, so they run as one scan.

$$h_t = (1 - g_t) \odot h_{t-1} + g_t \odot v_t$$

minGRU: $g = \sigma(W_g x + b_g)$. minLSTM: $g = i / (f + i)$ with $f = \sigma(W_f x + b_f)$, $i = \sigma(W_i x + b_i)$;
this is a minGRU whose gate has the log-odds $\log \sigma(W_i x + b_i) - \log \sigma(W_f x + b_f)$. The candidate $v$ is
a function of $W_v x + b_v$. The scan runs on the values themselves. States are convex combinations of candidates, so
nothing overflows. A scan of logarithms would lose digits and exclude negative candidates.

A gate of 1 draws a new state, and a gate of 0 holds the old one. So h is the expectation of a state that is drawn
afresh with probability g. `samplehold.models.bridge.correspondence` makes this exact.
"""

from typing import ClassVar

import torch
from torch import Tensor

from ...inference.numerics.products import linear
from ...inference.scans.gated.op import PARTS, Activated, activate, check_kinds, gated_scan
from .inputs import Observed, check_state, last, promoted, weight_of, widened
from .recurrent import Reading, Recurrent, name_of


class Minimal(Recurrent):
    """One matrix product and one gated scan a layer; `weight_l<k>` stacks the gates' rows above the candidates'.

    Units of a simplex share their gate, one row for each block. Each block then has one coin, and its state is a
    distribution for any weights.
    """

    gate: ClassVar[str]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        candidate: str = "linear",
        block: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        self.candidate = candidate
        self.block: int = check_kinds(self.hidden_size, self.gate, candidate, block)
        self._make_parameters(device, dtype)

    def activations(self, x: Tensor, layer: int = 0, reverse: bool = False) -> Activated:
        """`hold`, `draw` and `value` [*batch, hidden_size] from a layer's inputs [*batch, features].

        Arguments:
            x: the inputs of the layer.
            layer, reverse: the number and the direction of the layer.
        """
        return self.activate(self.product(x, layer, reverse))

    def activate(self, pre: Tensor) -> Activated:
        """`hold`, `draw` and `value` from pre-activations [*batch, parts * hidden_size].

        Arguments:
            pre: pre-activations, as `product` returns them.
        """
        return activate(pre, self.hidden_size, self.gate, self.candidate, self._block)

    def product(self, x: Tensor, layer: int = 0, reverse: bool = False) -> Tensor:
        """Pre-activations [*batch, parts * hidden_size] of a layer's inputs: gates, then candidates, one for each
        unit.

        Arguments:
            x: the inputs of the layer.
            layer, reverse: the number and the direction of the layer.
        """
        weight, bias = self._weights(x, layer, reverse)
        return linear(x, self._spread(weight), None if bias is None else self._spread(bias))

    def reading(self, x: Tensor, layer: int = 0, reverse: bool = False) -> Reading:
        """See `Reading`."""
        return Reading(self.product(x, layer, reverse), self._after)

    def first_redraw(self, x: Tensor, layer: int = 0) -> tuple[Tensor, Tensor]:
        """The state before a first step at x that makes it a redraw, and the state after it; both [*batch,
        hidden_size].

        Arguments:
            x: the first input of the layer.
            layer: the number of the layer.
        """
        value = self.activations(x, layer).value
        return value, value

    def rows(self, layer: int = 0, reverse: bool = False) -> Tensor:
        """The matrix [parts * hidden_size, features] of `product`: a layer's weights, with a gate's row for each
        unit.

        Arguments:
            layer, reverse: the number and the direction of the layer.
        """
        return self._spread(getattr(self, name_of("weight", layer, reverse)))

    def extra_repr(self) -> str:
        blocks = f", block={self.block}" if self.candidate == "simplex" else ""
        return f"{super().extra_repr()}, candidate={self.candidate!r}{blocks}"

    def _shape(self, layer: int) -> tuple[int, ...]:
        return self._gates * self._coins + self.hidden_size, self.layer_inputs(layer)

    def _initial(self, batch: tuple[int, ...], like: Tensor) -> Tensor:
        value = 1 / self.block if self.candidate == "simplex" else 0.0
        return like.new_full((self.num_layers * self._directions, *batch, self.hidden_size), value)

    def _started(self, hx: Tensor | None, x: Tensor, batch: torch.Size, name: str = "hx") -> list[Tensor]:
        if hx is None:
            return list(self._initial(batch, self._like(x)).unbind())
        expected = (self.num_layers * self._directions, *batch, self.hidden_size)
        return list(check_state(name, hx, expected, weight_of(self, hx), finite=name == "hx").unbind())

    def _sweep(self, rows: Tensor, start: Tensor, some: Observed, layer: int, reverse: bool) -> tuple[Tensor, Tensor]:
        pre = self.product(rows, layer, reverse)
        states = gated_scan(*promoted(pre, start), self.gate, self.candidate, self._block)
        return states, last(states, some).squeeze(-2) if states.shape[-2] else start

    def _step(self, x: Tensor, start: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        reading = self.reading(x, layer)
        (state,) = reading.after(reading.seen, (start,))
        return state, state

    def _after(self, seen: Tensor, state: tuple[Tensor]) -> tuple[Tensor]:
        pre, start = promoted(seen, state[0])
        now, before = self.activate(widened(pre)), widened(start)
        return ((now.hold * before + now.draw * now.value).to(start.dtype),)

    @property
    def _gates(self) -> int:
        return PARTS[self.gate] - 1

    @property
    def _coins(self) -> int:
        """The number of rows of weights of a gate."""
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


class MinGRU(Minimal):
    r"""minGRU: $h_t = (1 - g_t) \odot h_{t-1} + g_t \odot v_t$ with $g_t = \sigma(W_g x_t + b_g)$.

    Arguments:
        input_size: features of x.
        hidden_size: units D of a layer.
        num_layers: number of layers; each reads the states of the layer below.
        bias: whether there are $b_g$ and $b_v$.
        batch_first: whether time is the second last axis of x; otherwise it is the first.
        dropout: the share of a layer's outputs that are set to 0 for the next layer in training.
        bidirectional: whether each layer also reads the series backward; outputs are concatenated, 2 D wide.
        candidate: "linear", "tanh", "positive" (the published g, at least 0) or "simplex" (softmax of each block of
            units, which share one gate, so the state of a block is a probability distribution).
        block: the number of units of one simplex; None: all.
        device, dtype: of the parameters.

    Parameters: `weight_l<k>` [G + D, inputs] and `bias_l<k>` [G + D], the G gates first, then the D candidates; G is
    D, or the number of blocks for candidate="simplex". Names of backward layers end in `_reverse`.

    States are [num_layers, *batch, D], twice as many in both directions. They are zeros at the start, or uniform on
    each simplex.

    Raises:
        TypeError: a size that is not an integer. From every call: x or states that are not tensors of the weights'
            dtype, lengths that are not integers.
        ValueError: a size less than 1, an unknown candidate, a block that does not divide the units. From every call:
            x, states or lengths that do not fit, states before the first step that are not finite.

    A layer under `torch.export` takes any numbers of sequences and steps, if they are dynamic there.

    Feng et al. 2024, *Were RNNs All We Needed?*, section 3.1.

    See Also:
        `as_ssm`, the model whose filter it is; `GRU`, whose gates read the state;
        docs/background/mingru_exact_bayes.md.

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


class MinLSTM(Minimal):
    r"""minLSTM: $h_t = f'_t \odot h_{t-1} + i'_t \odot v_t$ with $f' = f / (f + i)$, $i' = i / (f + i)$.

    Arguments and errors as `MinGRU`. Parameters: `weight_l<k>` [2 G + D, inputs] and `bias_l<k>` [2 G + D]: forget
    gates, input gates, candidates.

    Feng et al. 2024, *Were RNNs All We Needed?*, section 3.2.

    Arguments:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional: as of `MinGRU`.
        candidate, block, device, dtype: as of `MinGRU`.

    Raises:
        TypeError, ValueError: as for `MinGRU`.

    See Also:
        `MinGRU`, with one gate; `as_ssm`, the model whose filter it is; docs/background/mingru_exact_bayes.md.

    >>> import torch, samplehold as sh
    >>> layer, x = sh.MinLSTM(input_size=3, hidden_size=4, num_layers=2), torch.randn(2, 9, 3)
    >>> out, h = layer(x, lengths=[9, 5])
    >>> out.shape, h.shape
    (torch.Size([2, 9, 4]), torch.Size([2, 2, 4]))
    >>> layer.step(x[0, 8], layer(x[0, :8])[1])[0].allclose(out[0, 8], atol=1e-5)  # step by step it is the same
    True
    """

    gate = "ratio"
