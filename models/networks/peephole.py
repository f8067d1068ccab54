r"""LSTM with peepholes: gates that read the cell (Gers & Schmidhuber 2000).

$$i = \sigma(W_i x + U_i h + p_i \odot c + b_i), \quad f = \sigma(W_f x + U_f h + p_f \odot c + b_f), \quad
c' = f \odot c + i \odot \tanh(W_g x + U_g h + b_g)$$
$$o = \sigma(W_o x + U_o h + p_o \odot c' + b_o), \qquad h' = o \odot \tanh c'$$

The output gate reads the new cell, the other two read the old one. With $p = 0$ it is an LSTM.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from .inputs import check_one_dtype
from .recurrent import Reading, name_of
from .with_cell import Pair, WithCell


class PeepholeLSTM(WithCell):
    """LSTM whose gates also read the cell of their unit; its states are pairs (h, c).

    Arguments:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as of `GRU`.

    Parameters: `weight_l<k>` [4 D, inputs + D], which acts on [x, h], and `bias_l<k>` [4 D], in the order i, f, g, o of
    torch's LSTM; `peephole_l<k>` [3, D]: i, f, o. Names of backward layers end in `_reverse`. States are two tensors
    [num_layers, *batch, D], twice as many in both directions; zeros at the start.

    Raises:
        TypeError, ValueError: as for `MinGRU`; states that are not a pair.

    `torch.export` unrolls the loop over steps, as of `GRU`.

    Gers & Schmidhuber 2000, *Recurrent nets that time and count*.

    See Also:
        `LSTM`, without peepholes; `DoublingLSTM`, another variant; `StateRegularized`, which may have it as cell.

    >>> import torch, samplehold as sh
    >>> layer, peer, x = sh.PeepholeLSTM(3, 4), sh.LSTM(3, 4), torch.randn(2, 9, 3)
    >>> with torch.no_grad():
    ...     _ = layer.peephole_l0.zero_()
    ...     _ = layer.weight_l0.copy_(torch.cat([peer.weight_ih_l0, peer.weight_hh_l0], 1))
    ...     _ = layer.bias_l0.copy_(peer.bias_ih_l0 + peer.bias_hh_l0)
    >>> layer(x)[0].allclose(peer(x)[0], atol=1e-6)  # without peepholes it is an LSTM
    True
    """

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

    def _make_parameters(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        for layer, reverse in self._each():
            peephole = nn.Parameter(torch.empty(3, self.hidden_size, device=device, dtype=dtype))
            self.register_parameter(name_of("peephole", layer, reverse), peephole)
        super()._make_parameters(device, dtype)


def _after(pre: Tensor, state: Pair, peephole: Tensor) -> Pair:
    """The states after a step, from W x + U h + b [*batch, 4 D] and the states before it."""
    (i, f, g, o), (at_i, at_f, at_o), cell = pre.chunk(4, -1), peephole.unbind(), state[1]
    cell = (f + at_f * cell).sigmoid() * cell + (i + at_i * cell).sigmoid() * g.tanh()
    return (o + at_o * cell).sigmoid() * cell.tanh(), cell
