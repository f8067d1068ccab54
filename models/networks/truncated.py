"""The feed-forward network of a window: each output of a recurrent layer from its last inputs alone.

`samplehold.models.studies.forgetting` proves how far it is from the layer.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .recurrent import batch_major, time_major


class Truncated(nn.Module):
    """The feed-forward network of a layer's last `window` inputs; shares the layer's parameters.

    Steps that have fewer inputs than that before them start from the `h0` of the layer.
    """

    def __init__(self, layer: nn.Module, window: int) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"window: got {window}; give 1 or more inputs, the present one among them.")
        self.layer = layer
        self.window = window

    def forward(self, x: Tensor, h0: Any = None) -> Tensor:
        """Outputs of the layer's shape for inputs of the layer's shape, each from its own window alone."""
        layer: Any = self.layer
        x = batch_major(x, layer.input_size, layer.batch_first)
        first = layer(time_major(x[..., : self.window, :], layer.batch_first), h0)[0]
        if x.shape[-2] <= self.window:
            return first
        first = batch_major(first, layer.hidden_size, layer.batch_first)
        flat = x.reshape(-1, *x.shape[-2:]).unfold(1, self.window, 1)[:, 1:].transpose(2, 3)
        windows = flat.reshape(-1, self.window, x.shape[-1])
        at_once = max(1, 2**18 // self.window)
        rest = torch.cat([self._last(chunk) for chunk in windows.split(at_once)])
        return time_major(torch.cat([first, rest.reshape(*x.shape[:-2], -1, rest.shape[-1])], -2), layer.batch_first)

    def _last(self, windows: Tensor) -> Tensor:
        layer: Any = self.layer
        return layer(time_major(windows, layer.batch_first))[0].select(1 if layer.batch_first else 0, -1)

    def extra_repr(self) -> str:
        return f"window={self.window}"


def truncate(layer: nn.Module, window: int) -> Truncated:
    """The feed-forward network that computes each output of `layer` from its last `window` inputs."""
    return Truncated(layer, window)
