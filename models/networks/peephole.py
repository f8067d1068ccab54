r"""LSTM with peepholes: gates that see the cell (Gers & Schmidhuber 2000).

$$i = \sigma(W_i x + U_i h + p_i \odot c + b_i), \quad f = \sigma(W_f x + U_f h + p_f \odot c + b_f), \quad
c' = f \odot c + i \odot \tanh(W_g x + U_g h + b_g)$$
$$o = \sigma(W_o x + U_o h + p_o \odot c' + b_o), \qquad h' = o \odot \tanh c'$$

The output gate sees the new cell, the other two the old one. With $p = 0$ it is an LSTM.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...inference.numerics.checks import check_dtype
from .inputs import Observed, check_one_dtype, check_pair, last
from .recurrent import Reading, Recurrent, name_of

Parts = tuple[Tensor, Tensor]


class PeepholeLSTM(Recurrent):
    """LSTM whose gates also see the cell, each unit's its own; its states are pairs (h, c).

    Arguments:
        input_size: features of x.
        hidden_size: units D of a layer.
        num_layers: layers, each reading the states of the one below.
        bias: whether there are offsets.
        batch_first: whether time is the last axis but one of x, or the first.
        dropout: the share of a layer's outputs that the next one does not see in training.
        bidirectional: whether each layer also reads the series backward; outputs stand side by side, 2 D wide.

    Parameters: `weight_l<k>` [4 D, inputs + D], which acts on [x, h], and `bias_l<k>` [4 D], in the order i, f, g, o of
    torch's LSTM; `peephole_l<k>` [3, D]: i, f, o. Those that read backward end in `_reverse`. States are two tensors
    [num_layers, *batch, D], twice as many in both directions; zeros to begin with.

    Raises:
        TypeError: a size that is no integer. From every call: x or states that are no tensors of the weights' dtype, no
            pair of states, lengths of no integers.
        ValueError: a size less than 1. From every call: x, states or lengths that do not fit, states before the first
            step that are not finite.

    Gers & Schmidhuber 2000, *Recurrent nets that time and count*.

    >>> import torch, samplehold as sh
    >>> layer, peer, x = sh.PeepholeLSTM(3, 4), sh.LSTM(3, 4), torch.randn(2, 9, 3)
    >>> with torch.no_grad():
    ...     _ = layer.peephole_l0.zero_()
    ...     _ = layer.weight_l0.copy_(torch.cat([peer.weight_ih_l0, peer.weight_hh_l0], 1))
    ...     _ = layer.bias_l0.copy_(peer.bias_ih_l0 + peer.bias_hh_l0)
    >>> layer(x)[0].allclose(peer(x)[0], atol=1e-6)  # without peepholes it is an LSTM
    True
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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        check_dtype("dtype", dtype)
        for layer, reverse in self._each():
            peephole = nn.Parameter(torch.empty(3, self.hidden_size, device=device, dtype=dtype))
            self.register_parameter(name_of("peephole", layer, reverse), peephole)
        self._make_parameters(device, dtype)

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly within 1 / sqrt(hidden_size), as torch's LSTM does."""
        for parameter in self.parameters(recurse=False):
            nn.init.uniform_(parameter, -1 / math.sqrt(self.hidden_size), 1 / math.sqrt(self.hidden_size))

    def reading(self, x: Tensor, layer: int = 0, reverse: bool = False) -> Reading:
        """See `Reading`."""
        weight, bias = self._weights(x, layer, reverse)
        name = name_of("peephole", layer, reverse)
        of_x, of_h = weight.split([self.layer_inputs(layer), self.hidden_size], 1)
        peephole: Tensor = getattr(self, name)
        check_one_dtype([(name, peephole)], x)
        return Reading(
            linear(x, of_x, bias), lambda seen, state: _after(seen + linear(state[0], of_h), state, peephole)
        )

    def _shape(self, layer: int) -> tuple[int, ...]:
        return 4 * self.hidden_size, self.layer_inputs(layer) + self.hidden_size

    def _initial(self, batch: tuple[int, ...], like: Tensor) -> Parts:
        zeros = like.new_zeros(self.num_layers * self._directions, *batch, self.hidden_size)
        return zeros, zeros

    def _started(self, given: Parts | None, x: Tensor, batch: torch.Size, name: str = "hx") -> list[Parts]:
        if given is None:
            given = self._initial(batch, self._like(x))
        expected = (self.num_layers * self._directions, *batch, self.hidden_size)
        h, c = check_pair(name, given, expected, self)
        return list(zip(h.unbind(), c.unbind(), strict=True))

    def _joined(self, ends: list[Parts]) -> Parts:
        h, c = zip(*ends, strict=True)
        return torch.stack(h), torch.stack(c)

    def _sweep(self, rows: Tensor, start: Parts, some: Observed, layer: int, reverse: bool) -> tuple[Tensor, Parts]:
        if not rows.shape[-2]:
            return rows.new_zeros(*rows.shape[:-1], self.hidden_size), start
        reading, state, track = self.reading(rows, layer, reverse), start, []
        for seen in reading.seen.unbind(-2):
            state = reading.after(seen, state)
            track.append(state)
        h, c = (torch.stack(part, -2) for part in zip(*track, strict=True))
        return h, (last(h, some).squeeze(-2), last(c, some).squeeze(-2))

    def _step(self, x: Tensor, start: Parts, layer: int) -> tuple[Tensor, Parts]:
        reading = self.reading(x, layer)
        state = reading.after(reading.seen, start)
        return state[0], state


def _after(pre: Tensor, state: Parts, peephole: Tensor) -> Parts:
    """The states after a step, from W x + U h + b [*batch, 4 D] and those before it."""
    (i, f, g, o), (at_i, at_f, at_o), cell = pre.chunk(4, -1), peephole.unbind(), state[1]
    cell = (f + at_f * cell).sigmoid() * cell + (i + at_i * cell).sigmoid() * g.tanh()
    return (o + at_o * cell).sigmoid() * cell.tanh(), cell
