r"""torch's GRU, LSTM and Elman network with the interface of this package's layers: `lengths` and `step`.

They are subclasses of torch's modules, so they have torch's `state_dict` and use torch's kernels.

$$\text{Elman: } h' = \tanh(W x + b + U h + b'), \qquad \text{GRU: } h' = (1 - z) n + z h,\;
n = \tanh(W_n x + b_n + r \odot (U_n h + b'_n))$$

**One matrix or two?** $W x + U h$ is $[W, U] [x, h]$: as many numbers, and the same map. Two matrices let the product
with all inputs precede the loop over steps; `tests/benchmarks/bench_elman.py` measures the forms.

GRU's z *holds*; a minGRU's gate *draws*. With $U = 0$, $b' = 0$ a GRU is a minGRU of gate $1 - z$ and tanh candidate.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ...inference.numerics.checks import check_dtype
from ...inference.numerics.op import transformed
from ...inference.numerics.scalars import check_choice
from .inputs import (
    Observed,
    batch_major,
    check_one_dtype,
    check_pair,
    check_state,
    check_step,
    observed,
    repacked,
    time_major,
    unpacked,
    weight_of,
)
from .listing import Listed
from .recurrent import Reading, check_one_way, check_sizes, hooked, name_of, over_layers, step_by_call


class _Wrapped(Listed, nn.RNNBase):
    """torch's kernels, or a loop in plain torch under `torch.func`'s transforms and for lengths that torch traces.

    Arguments of methods:
        x: the inputs of the layer.
        layer, reverse: the number of a layer, from 0, and whether it reads backward.
    """

    def forward(
        self, x: Tensor | PackedSequence, hx: Any = None, lengths: Tensor | list[int] | None = None
    ) -> tuple[Tensor | PackedSequence, Any]:
        """Outputs at every step and states after the last.

        Arguments:
            x: [batch, T, input_size] or [T, input_size]; [T, batch, input_size] for batch_first=False; or a
                `PackedSequence`.
            hx: states before the first step, [num_layers, batch, hidden_size] or [num_layers, hidden_size], twice as
                many in both directions; for an LSTM a pair of them, hidden states and cells. None: zeros.
            lengths: the number of steps of each sequence, [batch], between 1 and T; None: all T.

        Returns:
            out, zero after each length, or packed like x, and h_n, the states at each sequence's last step.
        """
        if isinstance(x, PackedSequence):
            padded, counts = unpacked(x, lengths)
            padded = self._fitting(padded, True)
            hx = self._started(hx, padded.shape[:-2])
            if not transformed():
                return self._fused(x, hx)
            out, state = self._looped(padded, hx, observed(padded, counts))
            return repacked(out, counts, x), state
        x = self._fitting(x, self.batch_first)
        hx = self._started(hx, x.shape[:-2])
        some = observed(x, lengths)
        if 0 in x.shape[:-1]:
            return self._nothing(x, hx)
        if transformed() or (some is not None and (x.is_meta or torch.compiler.is_compiling())):
            out, state = self._looped(x, hx, some)
            return time_major(out, self.batch_first), state
        if some is None:
            return self._fused(time_major(x, self.batch_first), hx)
        if x.dim() == 2:
            out, state = self._fused(time_major(x[: int(some[0])], self.batch_first), hx)
            empty = x.new_zeros(x.shape[0] - out.shape[0], out.shape[1])
            return torch.cat([out, empty]), state
        packed = pack_padded_sequence(x, some[0].cpu(), batch_first=True, enforce_sorted=False)
        out, state = self._fused(packed, hx)
        return pad_packed_sequence(out, batch_first=self.batch_first, total_length=x.shape[1])[0], state

    def step(self, x: Tensor, h: Any = None) -> tuple[Tensor, Any]:
        """One step: `x` [batch, input_size] or [input_size], and the states before it, to the output and the next.

        Arguments:
            x: the inputs of this step.
            h: the states before it, as in a call; None: zeros.
        """
        check_one_way(self, "the last input first, and so has no step")
        x = check_step(x, self.input_size, weight_of(self, x))
        check_one_dtype(((name, getattr(self, name)) for name in self._flat_weights_names), x)
        if x.dim() > 2:
            raise ValueError(f"x: got shape {list(x.shape)}, expected one batch axis at most; flatten the batch axes.")
        h = self._started(h, x.shape[:-1], "h")
        if hooked(self):
            return step_by_call(self, x, h)
        if 0 in x.shape[:-1]:
            out, state = self._nothing(x.unsqueeze(-2), h)
            return out.flatten(0, 1), state
        if transformed():
            out, state = self._looped(x.unsqueeze(-2), h, None)
            return out.squeeze(-2), state
        time = x.dim() - 1 if self.batch_first else 0
        out, state = self._fused(x.unsqueeze(time), h)
        return out.squeeze(time), state

    def _fused(self, x: Any, hx: Any) -> tuple[Any, Any]:
        """torch's own pass, which caches the weights; the cache of computed parameters is not copied with it."""
        try:
            return super().forward(x, hx)
        finally:
            if any(weight.grad_fn is not None for weight in self._flat_weights):
                self._flat_weights = [weight.detach() for weight in self._flat_weights]

    def _fitting(self, x: Tensor, batch_first: bool) -> Tensor:
        x = batch_major(x, self.input_size, batch_first, weight_of(self, x))
        check_one_dtype(((name, getattr(self, name)) for name in self._flat_weights_names), x)
        if x.dim() > 3:
            raise ValueError(
                f"x: got shape {list(time_major(x, batch_first).shape)}, expected one batch axis at most; flatten the "
                "batch axes."
            )
        return x

    def _started(self, hx: Any, batch: torch.Size, name: str = "hx") -> Any:
        """The states before the first step, checked."""
        if hx is None:
            return None
        expected = (self.num_layers * (1 + self.bidirectional), *batch, self.hidden_size)
        if not isinstance(self, nn.LSTM):
            return check_state(name, hx, expected, weight_of(self, hx), finite=name == "hx")
        return check_pair(name, hx, expected, self)

    def _nothing(self, x: Tensor, hx: Any) -> tuple[Tensor, Any]:
        """Outputs and states of a batch without sequences, or without steps."""
        directions = 1 + self.bidirectional
        out = x.new_zeros(*x.shape[:-1], directions * self.hidden_size)
        state = x.new_zeros(directions * self.num_layers, *x.shape[:-2], self.hidden_size)
        start = (state, state) if isinstance(self, nn.LSTM) else state
        return time_major(out, self.batch_first), start if hx is None else hx

    def _looped(self, x: Tensor, hx: Any, some: Observed) -> tuple[Tensor, Any]:
        """The result of torch's kernels for x [*batch, T, input_size], step by step."""
        n_parts = 2 if isinstance(self, nn.LSTM) else 1
        if hx is None:
            zeros = x.new_zeros(self.num_layers * (1 + self.bidirectional), *x.shape[:-2], self.hidden_size)
            hx = (zeros, zeros)[:n_parts]
        parts = tuple(hx) if n_parts == 2 else (hx[0] if isinstance(hx, tuple) else hx,)
        out, ends = over_layers(
            self,
            lambda rows, start, layer, reverse: self.reading(rows, layer, reverse).sweep(start, some),
            x,
            list(zip(*(part.unbind() for part in parts), strict=True)),
            some,
        )
        states = tuple(torch.stack(part) for part in zip(*ends, strict=True))
        return out, states if n_parts == 2 else states[0]

    def reading(self, x: Tensor, layer: int = 0, reverse: bool = False) -> Reading:
        """See `Reading`."""
        names = [name_of(part, layer, reverse) for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        of_x, of_h, *biases = (getattr(self, name) for name in names[: 4 if self.bias else 2])
        at_x, at_h = biases or (None, None)
        after = lambda seen, state: self._cell(seen, linear(state[0], of_h, at_h), state)
        return Reading(linear(x, of_x, at_x), after)

    def _cell(self, seen: Tensor, held: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The states after a step, from `W x + b` and `U h + b'`."""
        if isinstance(self, nn.LSTM):
            i, f, g, o = (seen + held).chunk(4, -1)
            cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
            return o.sigmoid() * cell.tanh(), cell
        if isinstance(self, nn.GRU):
            (r, z, n), (r_h, z_h, n_h) = seen.chunk(3, -1), held.chunk(3, -1)
            new, hold = (n + (r + r_h).sigmoid() * n_h).tanh(), (z + z_h).sigmoid()
            return ((1 - hold) * new + hold * state[0],)
        total = seen + held
        return (total.relu() if self.nonlinearity == "relu" else total.tanh(),)


class _WithGates(_Wrapped):
    """Layers whose nonlinearities are given."""

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
        sizes = check_sizes(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        check_dtype("dtype", dtype)
        super().__init__(*sizes, device=device, dtype=dtype)  # pyright: ignore[reportArgumentType] that of nn.GRU or nn.LSTM


class GRU(_WithGates, nn.GRU):  # pyright: ignore[reportIncompatibleMethodOverride]
    """`torch.nn.GRU` with `lengths` and `step`; batch_first is True by default.

    Arguments:
        input_size: features of x.
        hidden_size: units D of a layer.
        num_layers: number of layers; each reads the states of the layer below.
        bias: whether there are biases.
        batch_first: whether time is the second last axis of x; otherwise it is the first.
        dropout: the share of a layer's outputs that are set to 0 for the next layer in training.
        bidirectional: whether each layer also reads the series backward; outputs are concatenated, 2 D wide.
        device, dtype: of the parameters.

    Parameters are torch's: `weight_ih_l<k>` [3 D, inputs], `weight_hh_l<k>` [3 D, D], two biases [3 D]; gates r, z, n.

    Raises:
        TypeError: a size that is not an integer. From every call: x or states that are not tensors of the weights'
            dtype, lengths that are not integers.
        ValueError: a size less than 1. From every call: x, states or lengths that do not fit, no step, states that are
            not finite.

    `torch.export` unrolls the loop over steps, as of `nn.GRU`, so an exported layer takes the number of steps of its
    example alone; the number of sequences may vary.

    Cho et al. 2014, *Learning phrase representations using RNN encoder-decoder*; the reset follows the product with h.

    See Also:
        `MinGRU`, whose gates read only the input; `layouts.from_torch`, for trained weights;
        docs/coming_from/torch_nn.md.

    >>> import torch, samplehold as sh
    >>> layer, peer, x = sh.GRU(3, 4), torch.nn.GRU(3, 4, batch_first=True), torch.randn(2, 9, 3)
    >>> layer.load_state_dict(peer.state_dict())
    <All keys matched successfully>
    >>> torch.equal(layer(x)[0], peer(x)[0])
    True
    """


class LSTM(_WithGates, nn.LSTM):  # pyright: ignore[reportIncompatibleMethodOverride]
    r"""`torch.nn.LSTM` with `lengths` and `step`; its states are pairs (h, c).

    $c' = f \odot c + i \odot g$, $h' = o \odot \tanh c'$. Arguments, parameters (gates i, f, g, o), errors and
    export as `GRU`.

    Hochreiter & Schmidhuber 1997, *Long short-term memory*; forget gates of Gers et al. 2000, *Learning to forget*.

    Arguments:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as of `GRU`.

    Raises:
        TypeError, ValueError: as for `GRU`.

    See Also:
        `PeepholeLSTM` and `DoublingLSTM`, its variants; `MinLSTM`, whose gates read only the input;
        docs/coming_from/torch_nn.md.

    >>> import torch, samplehold as sh
    >>> layer, x = sh.LSTM(input_size=3, hidden_size=4), torch.randn(2, 9, 3)
    >>> out, (h, c) = layer(x, lengths=[9, 5])
    >>> out.shape, h.shape, c.shape
    (torch.Size([2, 9, 4]), torch.Size([1, 2, 4]), torch.Size([1, 2, 4]))
    >>> torch.equal(h[0, 1], out[1, 4]), out[1, 5:].any().item()  # ends at its fifth step, with zeros after it
    (True, False)
    """


class Elman(_Wrapped, nn.RNN):  # pyright: ignore[reportIncompatibleMethodOverride]
    """`torch.nn.RNN` with `lengths` and `step`; `nonlinearity` is "tanh" or "relu".

    Other arguments, parameters (no gates: D rows), errors and export as `GRU`; an unknown nonlinearity is a
    `ValueError` too.

    Elman 1990, *Finding structure in time*.

    Arguments:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as of `GRU`.
        nonlinearity: "tanh" or "relu".

    Raises:
        TypeError, ValueError: as for `GRU`; an unknown nonlinearity.

    See Also:
        `GRU` and `LSTM`, which have gates; `automata.SecondOrder`, which multiplies input and state.

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
        dropout: float = 0.0,
        bidirectional: bool = False,
        nonlinearity: str = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = check_sizes(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        check_dtype("dtype", dtype)
        nonlinearity = check_choice("nonlinearity", nonlinearity, ("tanh", "relu"))
        names = ("num_layers", "bias", "batch_first", "dropout", "bidirectional")
        options = dict(zip(names, sizes[2:], strict=True))
        super().__init__(*sizes[:2], nonlinearity=nonlinearity, device=device, dtype=dtype, **options)
