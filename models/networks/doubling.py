r"""An LSTM whose forget gates reach 2: a memory of a word in a single cell.

$$c' = (f + f') \odot c + i \odot g, \qquad h' = o \odot \tanh c'$$

with sigmoids i, f, f', o and $g = \tanh$, all of $W [x, h] + b$. The hold factor $f + f'$ is in (0, 2), so a cell can
be halved and doubled: it is a stack of bits. `samplehold.models.automata.counters.palindrome_lstm` sets weights by hand
that store a word and read it back. Gradients double too: $\prod_t (f_t + f'_t)$ is up to $2^T$.
"""

from torch import Tensor
from torch.nn.functional import linear

from .recurrent import Reading
from .with_cell import Pair, WithCell


class DoublingLSTM(WithCell):
    """An LSTM with a second forget gate, added to the first, so that a cell can double in one step.

    Arguments:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as of `GRU`.

    Parameters: `weight_l<k>` [5 D, inputs + D], of [x, h], and `bias_l<k>` [5 D]; gates i, f, f', g, o. States are
    pairs (h, c) [num_layers, *batch, D], as in torch's LSTM; zeros at the start.

    Raises:
        TypeError, ValueError: as for `MinGRU`.

    `torch.export` unrolls the loop over steps, as of `GRU`.

    See Also:
        `LSTM`, with one forget gate; `automata.palindrome_lstm`, which needs two; docs/background/doubling.md.

    >>> import torch, samplehold as sh
    >>> layer, x = sh.DoublingLSTM(input_size=3, hidden_size=4), torch.randn(2, 9, 3)
    >>> out, (h, c) = layer(x, lengths=[9, 5])
    >>> out.shape, h.shape, c.shape
    (torch.Size([2, 9, 4]), torch.Size([1, 2, 4]), torch.Size([1, 2, 4]))
    >>> layer.step(x[0, 8], layer(x[0, :8])[1])[0].allclose(out[0, 8], atol=1e-6)  # step by step it is the same
    True
    """

    def reading(self, x: Tensor, layer: int = 0, reverse: bool = False) -> Reading:
        """See `Reading`."""
        weight, bias = self._weights(x, layer, reverse)
        of_x, of_h = weight.split([self.layer_inputs(layer), self.hidden_size], 1)
        return Reading(linear(x, of_x, bias), lambda seen, state: _after(seen + linear(state[0], of_h), state[1]))

    def _shape(self, layer: int) -> tuple[int, ...]:
        return 5 * self.hidden_size, self.layer_inputs(layer) + self.hidden_size


def _after(pre: Tensor, cell: Tensor) -> Pair:
    """The states after a step, from W [x, h] + b [*batch, 5 D] and the previous cell."""
    i, f, more, g, o = pre.chunk(5, -1)
    cell = (f.sigmoid() + more.sigmoid()) * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell
