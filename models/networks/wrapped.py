r"""torch's own GRU, LSTM and Elman network with the interface of this package's layers: `lengths` and `step`.

They are subclasses of torch's modules, so their `state_dict` is torch's, and all of torch's kernels serve them.

$$\text{Elman: } h' = \tanh(W x + b + U h + b'), \qquad \text{GRU: } h' = (1 - z) n + z h,\;
n = \tanh(W_n x + b_n + r \odot (U_n h + b'_n))$$

GRU's z *holds*; a minGRU's gate *draws*. With $U = 0$, $b' = 0$ a GRU is a minGRU of gate $1 - z$ and tanh candidate.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ...inference.numerics.checks import check_dtype
from ...inference.numerics.scalars import check_choice
from .recurrent import batch_major, check_sizes, check_state, check_step, observed, time_major, weight_of


class _Wrapped(nn.RNNBase):
    def forward(self, x: Tensor, h0: Any = None, lengths: Tensor | list[int] | None = None) -> tuple[Tensor, Any]:
        """Outputs at every step and states after the last.

        Arguments:
            x: [batch, T, input_size] or [T, input_size]; [T, batch, input_size] for batch_first=False.
            h0: states before the first step, [num_layers, batch, hidden_size] or [num_layers, hidden_size]; for an
                LSTM a pair of them, hidden states and cells. Zeros where None.
            lengths: the number of steps of each sequence, [batch], between 1 and T; all T where None.

        Returns:
            out, zero past each length, and h_n, the states at each sequence's last step.
        """
        x = batch_major(x, self.input_size, self.batch_first, weight_of(self, x))
        if x.dim() > 3 or not x.shape[-2]:
            raise ValueError(
                f"x: got shape {list(time_major(x, self.batch_first).shape)}, expected one batch axis at most, and at "
                "least one step; flatten the batch axes."
            )
        h0 = self._started(h0, x.shape[:-2])
        some = observed(x, lengths)
        if 0 in x.shape[:-2]:
            return self._nothing(x)
        if some is None:
            return super().forward(time_major(x, self.batch_first), h0)
        if x.dim() == 2:
            out, state = super().forward(time_major(x[: int(some[0])], self.batch_first), h0)
            empty = x.new_zeros(x.shape[0] - out.shape[0], out.shape[1])
            return torch.cat([out, empty]), state
        packed = pack_padded_sequence(x, some[0].cpu(), batch_first=True, enforce_sorted=False)
        out, state = super().forward(packed, h0)
        return pad_packed_sequence(out, batch_first=self.batch_first, total_length=x.shape[1])[0], state

    def step(self, x: Tensor, h: Any = None) -> tuple[Tensor, Any]:
        """One step: `x` [batch, input_size] or [input_size], and the states before it, to the output and the next."""
        x = check_step(x, self.input_size, weight_of(self, x))
        if x.dim() > 2:
            raise ValueError(f"x: got shape {list(x.shape)}, expected one batch axis at most; flatten the batch axes.")
        h = self._started(h, x.shape[:-1], "h")
        if 0 in x.shape[:-1]:
            out, state = self._nothing(x.unsqueeze(-2))
            return out.flatten(0, 1), state
        time = x.dim() - 1 if self.batch_first else 0
        out, state = super().forward(x.unsqueeze(time), h)
        return out.squeeze(time), state

    def _started(self, h0: Any, batch: torch.Size, name: str = "h0") -> Any:
        """The states before the first step, known to fit."""
        if h0 is None:
            return None
        expected = (self.num_layers, *batch, self.hidden_size)
        if not isinstance(self, nn.LSTM):
            return check_state(name, h0, expected, weight_of(self, h0), finite=name == "h0")
        if not isinstance(h0, tuple | list) or len(h0) != 2:
            raise TypeError(f"{name}: got {type(h0).__name__}, expected a pair of hidden states and cells.")
        return tuple(
            check_state(f"{name}[{i}]", part, expected, weight_of(self, part), finite=name == "h0")
            for i, part in enumerate(h0)
        )

    def _nothing(self, x: Tensor) -> tuple[Tensor, Any]:
        """Outputs and states of no sequence."""
        out = x.new_zeros(0, x.shape[-2], self.hidden_size)
        state = x.new_zeros(self.num_layers, 0, self.hidden_size)
        return time_major(out, self.batch_first), (state, state) if isinstance(self, nn.LSTM) else state


class GRU(_Wrapped, nn.GRU):  # pyright: ignore[reportIncompatibleMethodOverride]
    """`torch.nn.GRU` with `lengths` and `step`; batch_first is True unless said otherwise.

    Arguments:
        input_size: features of x.
        hidden_size: units D of a layer.
        num_layers: layers, each reading the states of the one below.
        bias: whether there are biases.
        batch_first: whether time is the last axis but one of x, or the first.

    Parameters are torch's: `weight_ih_l<k>` [3 D, inputs], `weight_hh_l<k>` [3 D, D], two biases [3 D]; gates r, z, n.

    Raises:
        TypeError: a size that is no integer. From every call: x or states that are no tensors of the weights' dtype,
            lengths of no integers.
        ValueError: a size less than 1. From every call: x, states or lengths that do not fit, no step, states that are
            not finite.

    Cho et al. 2014, *Learning phrase representations using RNN encoder-decoder*; the reset is after the product with h.

    >>> import torch, samplehold as sh
    >>> layer, peer, x = sh.GRU(3, 4), torch.nn.GRU(3, 4, batch_first=True), torch.randn(2, 9, 3)
    >>> layer.load_state_dict(peer.state_dict())
    <All keys matched successfully>
    >>> torch.equal(layer(x)[0], peer(x)[0])
    True
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = check_sizes(input_size, hidden_size, num_layers, bias, batch_first)
        check_dtype("dtype", dtype)
        super().__init__(*sizes, device=device, dtype=dtype)


class LSTM(_Wrapped, nn.LSTM):  # pyright: ignore[reportIncompatibleMethodOverride]
    r"""`torch.nn.LSTM` with `lengths` and `step`; its states are pairs (h, c).

    $c' = f \odot c + i \odot g$, $h' = o \odot \tanh c'$. Arguments, parameters (gates i, f, g, o) and errors as `GRU`.

    Hochreiter & Schmidhuber 1997, *Long short-term memory*; forget gates of Gers et al. 2000, *Learning to forget*.

    >>> import torch, samplehold as sh
    >>> layer, x = sh.LSTM(input_size=3, hidden_size=4), torch.randn(2, 9, 3)
    >>> out, (h, c) = layer(x, lengths=[9, 5])
    >>> out.shape, h.shape, c.shape
    (torch.Size([2, 9, 4]), torch.Size([1, 2, 4]), torch.Size([1, 2, 4]))
    >>> torch.equal(h[0, 1], out[1, 4]), out[1, 5:].any().item()  # ends at its fifth step, with zeros after it
    (True, False)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = check_sizes(input_size, hidden_size, num_layers, bias, batch_first)
        check_dtype("dtype", dtype)
        super().__init__(*sizes, device=device, dtype=dtype)


class Elman(_Wrapped, nn.RNN):  # pyright: ignore[reportIncompatibleMethodOverride]
    """`torch.nn.RNN` with `lengths` and `step`; `nonlinearity` is "tanh" or "relu".

    Other arguments, parameters (no gates: D rows) and errors as `GRU`; an unknown nonlinearity is a `ValueError` too.

    Elman 1990, *Finding structure in time*.

    >>> import torch, samplehold as sh
    >>> layer, x = sh.Elman(input_size=3, hidden_size=4), torch.randn(9, 3)
    >>> out, h = layer(x)
    >>> out.shape, h.shape
    (torch.Size([9, 4]), torch.Size([1, 4]))
    >>> layer.step(x[8], layer(x[:8])[1])[0].allclose(out[8], atol=1e-6)  # step by step it is the same
    True
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        nonlinearity: str = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = check_sizes(input_size, hidden_size, num_layers, bias, batch_first)
        check_dtype("dtype", dtype)
        nonlinearity = check_choice("nonlinearity", nonlinearity, ("tanh", "relu"))
        input_size, hidden_size, num_layers, bias, batch_first = sizes
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias=bias,
            batch_first=batch_first,
            nonlinearity=nonlinearity,
            device=device,
            dtype=dtype,
        )
