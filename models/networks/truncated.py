"""The feed-forward network of a window: each output of a recurrent layer from its last inputs only.

`samplehold.models.studies.forgetting` bounds its distance from the layer.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ...inference.numerics.scalars import check_integer
from .inputs import batch_major, time_major, weight_of
from .recurrent import called


class Truncated(nn.Module):
    """The feed-forward network of a layer's last `window` inputs; it shares the layer's parameters.

    Steps with fewer inputs before them start from the default state of the layer.
    """

    def __init__(self, layer: nn.Module, window: int) -> None:
        super().__init__()
        if not hasattr(layer, "input_size") or not hasattr(layer, "hidden_size"):
            raise TypeError(
                f"layer: got {type(layer).__name__}, expected a recurrent layer, such as MinGRU or torch.nn.GRU."
            )
        if getattr(layer, "bidirectional", False) or getattr(layer, "proj_size", 0):
            raise ValueError(
                "layer: it looks ahead or projects its state, so no window of past inputs suffices; build it without."
            )
        self.layer = layer
        self.window: int = check_integer("window", window)

    def forward(self, x: Tensor, hx: Any = None) -> Tensor:
        """Outputs of the layer's shape for inputs of the layer's shape, each from its own window alone."""
        layer: Any = self.layer
        x = batch_major(x, layer.input_size, layer.batch_first, weight_of(layer, x))
        first = called(layer, time_major(x[..., : self.window, :], layer.batch_first), hx)[0]
        if x.shape[-2] <= self.window:
            return first
        first = batch_major(first, layer.hidden_size, layer.batch_first, first)
        flat = x.reshape(-1, *x.shape[-2:]).unfold(1, self.window, 1)[:, 1:].transpose(2, 3)
        windows = flat.flatten(0, 1)
        if torch.compiler.is_compiling():  # a number of chunks would be a constant
            rest = self._last(windows)
        else:
            rest = torch.cat([self._last(chunk) for chunk in windows.split(max(1, 2**18 // self.window))])
        return time_major(
            torch.cat([first, rest.reshape(*x.shape[:-2], flat.shape[1], rest.shape[-1])], -2), layer.batch_first
        )

    def _last(self, windows: Tensor) -> Tensor:
        layer: Any = self.layer
        return called(layer, time_major(windows, layer.batch_first))[0].select(1 if layer.batch_first else 0, -1)

    def extra_repr(self) -> str:
        return f"window={self.window}"


def truncate(layer: nn.Module, window: int) -> Truncated:
    """The feed-forward network that computes each output of `layer` from its last `window` inputs.

    Arguments:
        layer: `MinGRU`, `MinLSTM`, `QRNN`, `GRU`, `LSTM` or `Elman`, or torch's own, of one direction.
        window: the number of inputs that an output depends on, including the present one.

    Returns:
        A module that shares the layer's parameters. It maps x and `hx`, as the layer takes them, to out, as the layer
        returns it. Before each window the state is the layer's default; `hx` is the state before the first `window`
        steps.

    Raises:
        TypeError: a module that is not a recurrent layer.
        ValueError: a window less than 1; a layer of both directions, or with proj_size. From every call: x that does
            not fit the layer.

    Under `torch.export` the module takes any number of steps from window + 2, of any layer.

    Miller & Hardt 2019, *Stable recurrent models*, arXiv 1805.10369.

    See Also:
        `studies.truncation_bound`, on its error; `stable`, which makes the error small; docs/background/truncation.md.

    >>> import torch, samplehold as sh
    >>> layer, x = sh.MinGRU(input_size=3, hidden_size=4), torch.randn(9, 3)
    >>> network, other = sh.truncate(layer, window=5), torch.cat([torch.zeros(4, 3), x[4:]])
    >>> torch.equal(network(x)[8], network(other)[8]), torch.equal(layer(x)[0][8], layer(other)[0][8])
    (True, False)
    >>> network(x)[:5].allclose(layer(x)[0][:5], atol=1e-6)  # the first five windows are complete
    True
    """
    return Truncated(layer, window)
