r"""An LSTM whose forget gates reach 2: a memory of a word in a single cell.

$$c' = (f + f') \odot c + i \odot g, \qquad h' = o \odot \tanh c'$$

with sigmoids i, f, f', o and $g = \tanh$, all of $W [x, h] + b$. Hold, $f + f'$, is in (0, 2): a cell can be halved and
doubled, which is a stack of bits. `samplehold.models.automata.counters.palindrome_lstm` sets weights by hand that store
a word and read it back. To be able to double is to have gradients that do: $\prod_t (f_t + f'_t)$ is up to $2^T$.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from .inputs import Observed, check_state, last, weight_of
from .recurrent import Recurrent

State = tuple[Tensor, Tensor]


class DoublingLSTM(Recurrent):
    """An LSTM with a second forget gate, added to the first (see this module).

    Arguments:
        input_size: features of x.
        hidden_size: units D of a layer.
        num_layers: layers, each reading the states of the one below.
        bias: whether there are offsets.
        batch_first: whether time is the last axis but one of x, or the first.
        dropout: the share of a layer's outputs that the next one does not see in training.
        bidirectional: whether each layer also reads the series backward; outputs stand side by side, 2 D wide.

    Parameters: `weight_l<k>` [5 D, inputs + D], of [x, h], and `bias_l<k>` [5 D]; gates i, f, f', g, o. States are
    pairs (h, c) [num_layers, *batch, D], as torch's LSTM has them; zeros to begin with.

    Raises:
        TypeError: a size that is no integer. From every call: x or states that are no tensors of the weights' dtype,
            lengths of no integers.
        ValueError: a size less than 1. From every call: x, states or lengths that do not fit, states before the first
            step that are not finite.

    >>> import torch, samplehold as sh
    >>> layer, x = sh.DoublingLSTM(input_size=3, hidden_size=4), torch.randn(2, 9, 3)
    >>> out, (h, c) = layer(x, lengths=[9, 5])
    >>> out.shape, h.shape, c.shape
    (torch.Size([2, 9, 4]), torch.Size([1, 2, 4]), torch.Size([1, 2, 4]))
    >>> layer.step(x[0, 8], layer(x[0, :8])[1])[0].allclose(out[0, 8], atol=1e-6)  # step by step it is the same
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
        self._make_parameters(device, dtype)

    def product(self, x: Tensor, h: Tensor, layer: int = 0, reverse: bool = False) -> Tensor:
        """Pre-activations [*batch, 5 D] of a layer's inputs [*batch, features] and outputs one step before."""
        weight, bias = self._weights(x, layer, reverse)
        return linear(torch.cat([x, h], -1), weight, bias)

    def _shape(self, layer: int) -> tuple[int, ...]:
        return 5 * self.hidden_size, self.layer_inputs(layer) + self.hidden_size

    def _initial(self, batch: tuple[int, ...], like: Tensor) -> State:
        zeros = like.new_zeros(self.num_layers * self._directions, *batch, self.hidden_size)
        return zeros, zeros

    def _started(self, given: Any, x: Tensor, batch: torch.Size, name: str = "hx") -> list[State]:
        if given is None:
            given = self._initial(batch, self._like(x))
        elif not isinstance(given, tuple | list) or len(given) != 2:
            raise TypeError(f"{name}: got {type(given).__name__}, expected a pair of hidden states and cells.")
        expected = (self.num_layers * self._directions, *batch, self.hidden_size)
        parts = [
            check_state(f"{name}[{i}]", part, expected, weight_of(self, part), finite=name == "hx")
            for i, part in enumerate(given)
        ]
        return list(zip(*(part.unbind() for part in parts), strict=True))

    def _joined(self, ends: list[State]) -> State:
        hidden, cells = zip(*ends, strict=True)
        return torch.stack(hidden), torch.stack(cells)

    def _sweep(self, rows: Tensor, start: State, some: Observed, layer: int, reverse: bool) -> tuple[Tensor, State]:
        if not rows.shape[-2]:
            return rows.new_zeros(*rows.shape[:-1], self.hidden_size), start
        track = []
        for x in rows.unbind(-2):
            start = self._cell(x, start, layer, reverse)
            track.append(start)
        hidden, cells = (torch.stack(part, -2) for part in zip(*track, strict=True))
        return hidden, (last(hidden, some).squeeze(-2), last(cells, some).squeeze(-2))

    def _step(self, x: Tensor, start: State, layer: int) -> tuple[Tensor, State]:
        state = self._cell(x, start, layer)
        return state[0], state

    def _cell(self, x: Tensor, state: State, layer: int, reverse: bool = False) -> State:
        i, f, more, g, o = self.product(x, state[0], layer, reverse).chunk(5, -1)
        cell = (f.sigmoid() + more.sigmoid()) * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell
